//! Traffic through DPDK: ports, queues and buffers behind [`Io`].
//!
//! ```text
//!   port 0   queue 0 ── worker 0     a port with fewer queues than workers serves some of them,
//!            queue 1 ── worker 1     and each port serves others: two ports with one queue each
//!   port 1   queue 0 ── worker 1     keep two workers busy
//! ```
//!
//! All of the driver's state is created by [`start`] and released with the last [`DpdkIo`].

mod buffer;
mod devargs;
mod ffi;
pub mod hash;
pub mod routes;

use core::ffi::CStr;
use core::fmt;
use core::ptr::NonNull;
use core::time::Duration;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use mem::Stock;
use mem::Turn;

pub use buffer::DpdkBuffer;

use crate::burst::Burst;
use crate::io::Io;
use crate::io::PortIndex;
use crate::io::PortStatistics;
use devargs::Device;

/// Room for one frame besides the head room: a full Ethernet frame and a tag, or what AF_XDP asks
/// for.
const DATA_ROOM_MIN: u32 = 2048;
/// Bytes of Ethernet header, two tags and checksum on top of the MTU.
const LINK_OVERHEAD: u32 = 26;
/// The largest buffer that fits a page with DPDK's own header (of mempool and mbuf), as AF_XDP
/// demands.
const XDP_ROOM_MAX: u32 = 4096 - 256;
/// Buffers an AF_XDP receive queue holds, whatever its number of descriptors.
const XDP_QUEUE_BUFFERS: u32 = 2048;
/// Buffers there have to be besides those in receive queues: a few bursts on their way.
const SPARE_BUFFERS: u32 = 256;
/// DPDK's head room in front of each packet.
const HEADROOM: u16 = 128;

/// How often a server that is not there is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a client waits for its link before it connects once more, at first and at most: it
/// doubles, for a server that is slow to answer.
const LINK_WAIT: Duration = Duration::from_millis(500);
const LINK_WAIT_MAX: Duration = Duration::from_secs(8);

/// Use of hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hugepages {
    /// Take them where there are enough, else ordinary pages.
    Auto,
    /// Ordinary pages only.
    Off,
    /// Do not start without.
    Required,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkPort {
    /// A PCI address or a virtual device with its arguments.
    pub device: String,
    /// Whether it is a PCI address.
    pub is_pci: bool,
    /// Largest IP packet, bytes.
    pub mtu: u16,
    /// Receive descriptors per queue.
    pub rx_descriptors: u16,
    /// Transmit descriptors per queue.
    pub tx_descriptors: u16,
}

/// What DPDK is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// Devices in the order of [`PortIndex`].
    pub ports: Vec<DpdkPort>,
    /// Workers: one [`DpdkIo`] each.
    pub workers: usize,
    /// Use of hugepages.
    pub hugepages: Hugepages,
    /// Memory for buffers and queues, bytes.
    pub memory_bytes: u64,
    /// Packet buffers shared by all ports and workers.
    pub buffers: u32,
}

/// Why DPDK could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DpdkError {
    /// The environment layer did not start.
    #[error("DPDK: does not start ({0}); its own messages above say why")]
    Environment(String),
    /// Hugepages are required and there are too few.
    #[error("hugepages: {needed} MiB are needed ({free} MiB free); reserve more in /proc/sys/vm/nr_hugepages")]
    Hugepages {
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// No memory for packet buffers.
    #[error("DPDK: no memory for {buffers} packet buffers ({reason}); raise the memory or lower the buffers")]
    Buffers {
        /// How many were asked for.
        buffers: u32,
        /// What DPDK says.
        reason: String,
    },
    /// Frames would not fit the memory AF_XDP shares with the kernel.
    #[error(
        "port {device}: AF_XDP takes buffers of {limit} bytes at most ({room}); lower the mtu of all ports, \
             or use another driver"
    )]
    XdpRoom {
        /// The device.
        device: String,
        /// Buffers of this many bytes are needed.
        room: u32,
        /// The largest that fit.
        limit: u32,
    },
    /// Buffers would be larger than a buffer can be.
    #[error("packet buffers: {room} bytes each are too many (most: 65535); lower the mtu or framesz")]
    Room {
        /// What is needed.
        room: u32,
    },
    /// The receive queues alone would swallow all buffers.
    #[error("packet buffers: {buffers} are too few for the receive queues (needed: {needed}); raise dpdk.buffers")]
    TooFewBuffers {
        /// How many there are.
        buffers: u32,
        /// How many there have to be.
        needed: u32,
    },
    /// No driver took the device.
    #[error("port {device}: no such device; check the driver string")]
    NoDevice {
        /// The device.
        device: String,
    },
    /// A client of `net_memif` has no server, and no operator wants to wait for it.
    #[error("port {device}: no memif server on {socket}; start the server, or correct `socket`")]
    NoServer {
        /// The device.
        device: String,
        /// The server's socket.
        socket: String,
    },
    /// The driver refused something.
    #[error("port {device}: {what} failed ({reason}); DPDK's own messages above say why")]
    Port {
        /// The device.
        device: String,
        /// What was asked of it.
        what: &'static str,
        /// What DPDK says.
        reason: String,
    },
}

/// Something the operator should know though it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DpdkNotice {
    /// Memory is in ordinary pages because there are too few hugepages.
    NoHugepages {
        /// What is needed, MiB.
        needed: u64,
        /// What is free, MiB.
        free: u64,
    },
    /// Some workers have no queue of their own; packets are handed from worker to worker.
    FewQueues {
        /// The device.
        device: String,
        /// Queues it has each way.
        queues: u16,
        /// Workers there are.
        workers: usize,
    },
    /// An interface spreads packets over more queues than have AF_XDP sockets.
    QueuesUnserved {
        /// The device.
        device: String,
        /// Receive queues of the interface.
        queues: usize,
        /// Those with a socket.
        served: u16,
    },
}

impl fmt::Display for DpdkNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DpdkNotice::NoHugepages { needed, free } => write!(
                f,
                "hugepages: {needed} MiB are needed ({free} MiB free), so DPDK runs on ordinary pages, slower; \
                 reserve more in /proc/sys/vm/nr_hugepages"
            ),
            DpdkNotice::FewQueues { device, queues, workers } => write!(
                f,
                "port {device}: has fewer queues than there are workers ({queues} for {workers}), so packets are \
                 handed between workers; give it more queues or run fewer workers"
            ),
            DpdkNotice::QueuesUnserved { device, queues, served } => write!(
                f,
                "port {device}: only part of the interface's receive queues is served ({served} of {queues}), packets \
                 on the others are lost; ethtool -L <interface> combined {served}, or create it with fewer queues"
            ),
        }
    }
}

/// A client of `net_memif` that waits for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting<'a> {
    /// The device.
    pub device: &'a str,
    /// The server's socket.
    pub socket: &'a str,
    /// How often the server has been looked for without success.
    pub looks: u32,
}

impl fmt::Display for Waiting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}: waiting for the memif server on {}", name_in(self.device), self.socket)
    }
}

/// A configured port.
struct Port {
    id: u16,
    mac: [u8; 6],
    queues: u16,
    /// Of `net_memif`: its peer may take the port's memory away at any time.
    is_shared: bool,
    /// Added to the queue number to give the worker.
    shift: usize,
    too_long: AtomicU64,
}

/// What all workers share; dropping it stops the ports.
struct Shared {
    ports: Vec<Port>,
    pool: NonNull<ffi::Mempool>,
    notices: Vec<DpdkNotice>,
}

#[allow(unsafe_code, reason = "a DPDK pool may be used by every thread")]
// SAFETY: the pool is made for several producers and consumers, and lives until the process ends.
unsafe impl Send for Shared {}
#[allow(unsafe_code, reason = "a DPDK pool may be used by every thread")]
// SAFETY: as above; the rest is plain data and atomics.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        for port in &self.ports {
            ffi::port_stop(port.id);
        }
    }
}

/// One worker's view of all DPDK ports.
pub struct DpdkIo {
    shared: Arc<Shared>,
    /// This worker's queue of each port.
    queues: Vec<Option<u16>>,
}

/// Starts DPDK and all ports; one view for each worker. Once per process.
///
/// What DPDK, libxdp and libbpf say meanwhile is shown only if this fails: they report as errors
/// what does no harm.
///
/// # Errors
/// [`DpdkError`] says which device, what and why. A client of `net_memif` whose server is not there
/// is an error.
pub fn start(settings: &DpdkSettings) -> Result<Vec<DpdkIo>, DpdkError> {
    start_patiently(settings, &mut |_| false)
}

/// Like [`start`], but asks `goes_on` before each further look for a server that is not there, and
/// waits while it says yes.
///
/// # Errors
/// As [`start`]; [`DpdkError::NoServer`] once `goes_on` says no.
pub fn start_patiently(
    settings: &DpdkSettings,
    goes_on: &mut dyn FnMut(&Waiting<'_>) -> bool,
) -> Result<Vec<DpdkIo>, DpdkError> {
    ffi::keep_messages();
    start_ports(settings, goes_on).inspect_err(|error| {
        // Nothing failed that DPDK could explain.
        if !matches!(error, DpdkError::NoServer { .. }) {
            show_messages();
        }
    })
}

/// Writes what DPDK said last to the standard error: for a caller that is about to report a
/// failure.
pub fn show_messages() {
    eprint!("{}", ffi::messages());
}

fn start_ports(
    settings: &DpdkSettings,
    goes_on: &mut dyn FnMut(&Waiting<'_>) -> bool,
) -> Result<Vec<DpdkIo>, DpdkError> {
    let memory_mib = (settings.memory_bytes >> 20).max(64);
    let room = buffer_room(settings)?;
    let huge = start_environment(settings, memory_mib)?;
    let pool = ffi::pool_create(settings.buffers, room)
        .map_err(|reason| DpdkError::Buffers { buffers: settings.buffers, reason })?;

    let mut shared = Shared { ports: Vec::new(), pool, notices: Vec::new() };
    let mut needed = 0;
    if !huge && settings.hugepages == Hugepages::Auto {
        shared.notices.push(DpdkNotice::NoHugepages { needed: memory_mib, free: free_hugepages_mib() });
    }
    // Clients of memif come last, for they wait: two processes that are each other's servers would
    // wait for ever.
    let is_client = |index: &usize| Device::new(&settings.ports[*index].device).memif_server().is_some();
    let (clients, others): (Vec<usize>, Vec<usize>) = (0..settings.ports.len()).partition(is_client);
    if !clients.is_empty() {
        ffi::memory_files_keep();
    }
    let mut ports: Vec<Option<Port>> = settings.ports.iter().map(|_| None).collect();
    for index in others.into_iter().chain(clients) {
        match start_port(&settings.ports[index], index, settings, pool, &mut needed, goes_on) {
            Ok(port) => ports[index] = Some(port),
            Err(error) => {
                // Those started so far are stopped as it is dropped.
                shared.ports = ports.into_iter().flatten().collect();
                return Err(error);
            }
        }
    }
    shared.ports = ports.into_iter().flatten().collect();
    for (port, started) in settings.ports.iter().zip(&shared.ports) {
        if usize::from(started.queues) < settings.workers {
            let (device, queues) = (port.device.clone(), started.queues);
            shared.notices.push(DpdkNotice::FewQueues { device, queues, workers: settings.workers });
        }
        let (served, queues) = (started.queues, Device::new(&port.device).xdp_interface_queues());
        if usize::from(served) < queues {
            shared.notices.push(DpdkNotice::QueuesUnserved { device: port.device.clone(), queues, served });
        }
    }
    let shared = Arc::new(shared);
    let io = |worker: usize| {
        let queues = shared.ports.iter().map(|port| port.queue_of(worker, settings.workers)).collect();
        DpdkIo { shared: Arc::clone(&shared), queues }
    };
    Ok((0..settings.workers).map(io).collect())
}

/// Name and release of the DPDK that this program runs with.
pub fn version() -> String {
    ffi::version()
}

/// To be called first on each worker's thread: gives it a cache of buffers of its own, until the
/// thread ends.
pub fn register_thread() {
    REGISTRATION.with(|_| ());
}

thread_local! {
    static REGISTRATION: Registration = Registration::new();
}

/// This thread is known to DPDK for as long as this lives.
struct Registration {
    registered: bool,
}

impl Registration {
    fn new() -> Registration {
        // Without, the thread takes buffers from the common store: slower, nothing else.
        Registration { registered: ffi::thread_register() }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.registered {
            ffi::thread_unregister();
        }
    }
}

impl DpdkIo {
    /// Moves these ports to a new view, for another thread. This view stops receiving and sending
    /// on them.
    pub fn split_off(&mut self, ports: &[PortIndex]) -> DpdkIo {
        let mut queues = vec![None; self.queues.len()];
        for port in ports {
            if let (Some(theirs), Some(own)) = (queues.get_mut(port.index()), self.queues.get_mut(port.index())) {
                *theirs = own.take();
            }
        }
        DpdkIo { shared: Arc::clone(&self.shared), queues }
    }

    /// Lets a port receive frames to every group, as IPv6 needs it: a network card may pass only
    /// those to its own address and the broadcast address. A driver without a setting for groups
    /// is set to pass all frames. Virtual drivers without either pass all frames anyway.
    ///
    /// # Errors
    /// What the driver says, if it has neither setting.
    pub fn receive_groups(&self, port: PortIndex) -> Result<(), String> {
        let started = self.shared.ports.get(port.index());
        started.map_or(Ok(()), |started| ffi::port_receive_groups(started.id))
    }

    /// What the operator should know about how DPDK started.
    pub fn notices(&self) -> &[DpdkNotice] {
        &self.shared.notices
    }
}

/// Bytes of each buffer, head room included: enough for the longest frame of any port.
fn buffer_room(settings: &DpdkSettings) -> Result<u16, DpdkError> {
    let frame = |port: &DpdkPort| Device::new(&completed(port, settings.workers)).room().max(frame_bytes(port));
    let longest = settings.ports.iter().map(frame).max().unwrap_or(0);
    let room = longest.max(DATA_ROOM_MIN) + u32::from(HEADROOM);
    let xdp = settings.ports.iter().find(|port| !port.is_pci && Device::new(&port.device).is_xdp());
    match xdp {
        Some(port) if room > XDP_ROOM_MAX => {
            Err(DpdkError::XdpRoom { device: port.device.clone(), room, limit: XDP_ROOM_MAX })
        }
        _ => u16::try_from(room).map_err(|_| DpdkError::Room { room }),
    }
}

/// The longest frame of a port.
fn frame_bytes(port: &DpdkPort) -> u32 {
    u32::from(port.mtu) + LINK_OVERHEAD
}

/// The port's device string with what its driver needs for this many workers.
fn completed(port: &DpdkPort, workers: usize) -> String {
    if port.is_pci { port.device.clone() } else { Device::new(&port.device).completed(workers, frame_bytes(port)) }
}

impl Port {
    fn queue_of(&self, worker: usize, workers: usize) -> Option<u16> {
        (0..self.queues).find(|queue| (usize::from(*queue) + self.shift) % workers == worker)
    }
}

/// Starts DPDK itself. Returns whether it runs on hugepages.
fn start_environment(settings: &DpdkSettings, memory_mib: u64) -> Result<bool, DpdkError> {
    // No other process takes the pages that are counted.
    let _turn = Turn::wait();
    let huge = use_hugepages(settings.hugepages, memory_mib)?;
    initialise(settings, memory_mib, huge)?;
    Ok(huge)
}

/// Whether hugepages are used, from what is wanted and what is free.
fn use_hugepages(wanted: Hugepages, memory_mib: u64) -> Result<bool, DpdkError> {
    let free = free_hugepages_mib();
    match wanted {
        Hugepages::Off => Ok(false),
        Hugepages::Auto => Ok(free >= memory_mib),
        Hugepages::Required if free >= memory_mib => Ok(true),
        Hugepages::Required => Err(DpdkError::Hugepages { needed: memory_mib, free }),
    }
}

fn free_hugepages_mib() -> u64 {
    Stock::of_this_machine().hugepage_bytes() >> 20
}

fn initialise(settings: &DpdkSettings, memory_mib: u64, huge: bool) -> Result<(), DpdkError> {
    let mut arguments = vec!["natrix".to_owned(), "--no-telemetry".to_owned()];
    arguments.extend(["--log-level".to_owned(), "warning".to_owned()]);
    arguments.extend(["-m".to_owned(), memory_mib.to_string()]);
    // Nothing shared on disk, so that several instances never meet. DPDK has another word for it
    // without hugepages.
    let memory: &[&str] = if huge { &["--in-memory"] } else { &["--no-huge", "--no-shconf"] };
    arguments.extend(memory.iter().map(|&word| word.to_owned()));
    let first_cpu = first_cpu();
    arguments.extend(["-l".to_owned(), first_cpu.to_string()]);
    if settings.ports.iter().all(|port| !port.is_pci) {
        arguments.push("--no-pci".to_owned());
    }
    if settings.ports.iter().any(|port| Device::new(&completed(port, settings.workers)).shares_buffers()) {
        // The other side maps all memory that buffers are in; of many files each would be a
        // mapping. A vhost-user link allows eight, and with more hugepages never comes up.
        arguments.push("--single-file-segments".to_owned());
    }
    for port in &settings.ports {
        arguments.extend([if port.is_pci { "-a" } else { "--vdev" }.to_owned(), completed(port, settings.workers)]);
    }
    let arguments: Vec<CString> = arguments.into_iter().filter_map(|argument| CString::new(argument).ok()).collect();
    ffi::eal_init(&arguments).map_err(DpdkError::Environment)
}

/// A CPU this process may use.
fn first_cpu() -> usize {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return 0 };
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    list.trim().split(['-', ',']).next().and_then(|cpu| cpu.parse().ok()).unwrap_or(0)
}

fn start_port(
    port: &DpdkPort,
    index: usize,
    settings: &DpdkSettings,
    pool: NonNull<ffi::Mempool>,
    needed: &mut u32,
    goes_on: &mut dyn FnMut(&Waiting<'_>) -> bool,
) -> Result<Port, DpdkError> {
    let failed =
        |what: &'static str| move |reason: String| DpdkError::Port { device: port.device.clone(), what, reason };
    let name = CString::new(name_in(&port.device)).map_err(|_| DpdkError::NoDevice { device: port.device.clone() })?;
    let id = find(&name).ok_or_else(|| DpdkError::NoDevice { device: port.device.clone() })?;
    let info = ffi::port_info(id).map_err(failed("asking what it can do"))?;
    let queues_max = info.rx_queues_max.min(info.tx_queues_max);
    let queues = queues_max.min(u16::try_from(settings.workers).unwrap_or(u16::MAX));
    // A driver that finds no buffer for its queue says no more than that an argument is invalid.
    let held = if Device::new(&port.device).is_xdp() { XDP_QUEUE_BUFFERS } else { u32::from(port.rx_descriptors) };
    *needed = needed.saturating_add(u32::from(queues).saturating_mul(held));
    if needed.saturating_add(SPARE_BUFFERS) > settings.buffers {
        return Err(DpdkError::TooFewBuffers { buffers: settings.buffers, needed: *needed + SPARE_BUFFERS });
    }
    // Receiving more than the link's MTU does no harm, and many drivers know no less than 1500.
    let mtu = port.mtu.max(1500).min(info.mtu_max).max(info.mtu_min);
    let mut looks = 0;
    let mut link_wait = LINK_WAIT;
    let server = Device::new(&port.device).memif_server();
    loop {
        // The driver prints an error each time it finds no server, so it is not asked before there
        // is a socket.
        if server.as_deref().is_none_or(|path| has_socket(path) && ffi::memory_files_open()) {
            match ffi::port_start(id, queues, port.rx_descriptors, port.tx_descriptors, mtu, pool) {
                // A server whose interface is not ready yet refuses, and the driver never asks
                // again.
                Ok(()) if server.is_none() || link_comes(id, link_wait) => break,
                Ok(()) => {
                    ffi::port_pause(id);
                    link_wait = (link_wait * 2).min(LINK_WAIT_MAX);
                }
                // The socket of a server that has ended.
                Err(ffi::NotStarted { has_no_peer: true, .. }) if server.is_some() => {}
                Err(ffi::NotStarted { reason, .. }) => return Err(failed("start")(reason)),
            }
        }
        let (device, socket) = (port.device.as_str(), server.as_deref().unwrap_or_default());
        if !goes_on(&Waiting { device, socket, looks }) {
            return Err(DpdkError::NoServer { device: name_in(device).to_owned(), socket: socket.to_owned() });
        }
        looks += 1;
        thread::sleep(LOOK_EVERY);
    }
    let is_shared = Device::new(&port.device).is_memif();
    Ok(Port { id, mac: info.mac, queues, is_shared, shift: index, too_long: AtomicU64::new(0) })
}

/// Whether a link is up within this time.
fn link_comes(port: u16, within: Duration) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < within {
        if ffi::port_link_up(port) {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    ffi::port_link_up(port)
}

/// The name of a device, without its arguments.
fn name_in(device: &str) -> &str {
    device.split(',').next().unwrap_or_default()
}

/// Whether there is a socket of this path. Sockets without a file cannot be looked at without
/// connecting to them.
fn has_socket(path: &str) -> bool {
    path.starts_with('@') || fs::metadata(path).is_ok_and(|file| file.file_type().is_socket())
}

fn find(name: &CStr) -> Option<u16> {
    ffi::find_port(name)
}

/// Drops frames that came in several buffers: nothing here reads further than the first.
#[cold]
fn drop_pieces(burst: &mut Burst<DpdkBuffer>, too_long: &AtomicU64) {
    let mut whole = Burst::new();
    for buffer in burst.drain() {
        if buffer.is_whole() {
            // As many as came out go in again at most.
            let _ = whole.push(buffer);
        } else {
            too_long.fetch_add(1, Ordering::Relaxed);
        }
    }
    *burst = whole;
}

impl Io for DpdkIo {
    type Buffer = DpdkBuffer;

    fn port_count(&self) -> usize {
        self.shared.ports.len()
    }

    #[inline]
    #[allow(unsafe_code, reason = "received buffers are written straight into the burst")]
    fn receive(&mut self, port: PortIndex, burst: &mut Burst<DpdkBuffer>) {
        let Some(Some(queue)) = self.queues.get(port.index()) else { return };
        let Some(device) = self.shared.ports.get(port.index()) else { return };
        let before = burst.len();
        let received = ffi::receive(device.id, device.is_shared, *queue, burst.spare());
        // SAFETY: DPDK has written that many buffers to the front of the spare part and gives them
        // away.
        unsafe { burst.grow(received) };
        let mut are_whole = true;
        for buffer in burst.iter().skip(before) {
            buffer.prefetch_frame();
            are_whole &= buffer.is_whole();
        }
        if !are_whole {
            drop_pieces(burst, &device.too_long);
        }
    }

    #[inline]
    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<DpdkBuffer>) {
        let Some(Some(queue)) = self.queues.get(port.index()) else { return };
        let Some(device) = self.shared.ports.get(port.index()) else { return };
        let sent = ffi::transmit(device.id, device.is_shared, *queue, burst);
        burst.drain_front(sent).forget();
    }

    fn allocate(&mut self) -> Option<DpdkBuffer> {
        ffi::allocate(self.shared.pool)
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.shared.ports.get(port.index()).map_or([0; 6], |port| port.mac)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        matches!(self.queues.get(port.index()), Some(Some(_)))
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.can_receive(port)
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.shared.ports.get(port.index()).is_some_and(|port| ffi::port_link_up(port.id))
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        let Some(device) = self.shared.ports.get(port.index()) else { return PortStatistics::default() };
        let counted = ffi::port_statistics(device.id);
        PortStatistics {
            received_packets: counted.ipackets,
            received_bytes: counted.ibytes,
            sent_packets: counted.opackets,
            sent_bytes: counted.obytes,
            receive_missed: counted.imissed,
            receive_errors: counted.ierrors,
            receive_no_buffer: counted.rx_nombuf,
            receive_too_long: device.too_long.load(Ordering::Relaxed),
            send_errors: counted.oerrors,
        }
    }
}
