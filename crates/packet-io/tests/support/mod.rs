//! What the DPDK tests share: settings, and networks of their own to send and receive in.
//!
//! Each test file is a process of its own, for DPDK starts once per process. Tests with kernel
//! interfaces need root; they move into a fresh network namespace that ends with them, so nothing
//! outside is touched.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]
#![allow(unsafe_code, reason = "system calls for namespaces and packet sockets")]

use std::ffi::CString;
use std::fs;
use std::mem;
use std::process::Command;
use std::thread;
use std::time::Duration;

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkIo;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use packet_io::dpdk::Hugepages;

/// How often a test looks for a frame before it gives up, and how long it waits in between.
const LOOKS: usize = 15_000;
const PAUSE: Duration = Duration::from_millis(2);

/// A virtual device with usual sizes.
pub fn port(device: &str) -> DpdkPort {
    DpdkPort { device: device.to_owned(), is_pci: false, mtu: 1_500, rx_descriptors: 256, tx_descriptors: 256 }
}

/// Small settings without hugepages.
pub fn settings(ports: Vec<DpdkPort>, workers: usize) -> DpdkSettings {
    DpdkSettings { ports, workers, hugepages: Hugepages::Off, memory_bytes: 192 << 20, buffers: 8_191 }
}

/// A broadcast frame of a local experimental type (IEEE 802 0x88b5), which no kernel answers.
pub fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame.extend(number.to_be_bytes());
    frame.resize(len.max(60), number as u8);
    frame
}

/// The number in a frame made by [`frame`]; kernels send frames of their own in between.
pub fn number_of(frame: &[u8]) -> Option<u32> {
    let ours = frame.get(12..14) == Some(&[0x88, 0xb5]);
    ours.then(|| u32::from_be_bytes([frame[14], frame[15], frame[16], frame[17]]))
}

/// Calls `look` until it has something.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..LOOKS {
        if let Some(found) = look() {
            return found;
        }
        thread::sleep(PAUSE);
    }
    panic!("{what} did not come in time");
}

/// Sends frames through a port, as many at a time as fit.
pub fn send(io: &mut DpdkIo, port: PortIndex, frames: &[Vec<u8>]) {
    for frame in frames {
        let mut buffer = wait_for("a free buffer", || io.allocate());
        assert!(buffer.fill(&[frame]));
        let mut burst = Burst::new();
        assert!(burst.push(buffer).is_ok());
        wait_for("room in the transmit queue", || {
            io.transmit(port, &mut burst);
            burst.is_empty().then_some(())
        });
    }
}

/// Our frames received by any of these workers, until there are `count`.
pub fn receive(ios: &mut [DpdkIo], port: PortIndex, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    wait_for("frames", || {
        for io in &mut *ios {
            let mut burst = Burst::new();
            io.receive(port, &mut burst);
            frames
                .extend(burst.iter().map(|buffer| buffer.bytes().to_vec()).filter(|frame| number_of(frame).is_some()));
        }
        (frames.len() >= count).then_some(())
    });
    frames
}

/// Moves the calling thread into a network namespace of its own.
pub fn own_network() {
    // SAFETY: a system call without pointers.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(result, 0, "a network namespace needs root: {}", std::io::Error::last_os_error());
    // /sys shows the interfaces of the namespace it was mounted in; DPDK and libxdp read it.
    // SAFETY: system calls with constant strings that end in a zero byte.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0, "{}", std::io::Error::last_os_error());
        let none = c"none".as_ptr();
        let private = libc::MS_REC | libc::MS_PRIVATE;
        assert_eq!(libc::mount(none, c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()), 0);
        assert_eq!(libc::mount(none, c"/sys".as_ptr(), c"sysfs".as_ptr(), 0, std::ptr::null()), 0);
    }
    run("ip link set lo up");
}

/// Runs a command that has to succeed.
pub fn run(command: &str) {
    let mut words = command.split_whitespace();
    let program = words.next().expect("a command");
    let output = Command::new(program).args(words).output().expect("the program is installed");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A virtual Ethernet pair, up and silent. `queues` each way on the first end.
pub fn veth(ours: &str, theirs: &str, queues: usize) {
    run(&format!(
        "ip link add {ours} numrxqueues {queues} numtxqueues {queues} type veth peer name {theirs} \
         numrxqueues {queues} numtxqueues {queues}"
    ));
    for name in [ours, theirs] {
        silence(name);
        run(&format!("ip link set {name} up"));
    }
}

/// Keeps the kernel from sending anything of its own on an interface.
pub fn silence(name: &str) {
    fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1").expect("an interface of that name");
}

/// The far end of a cable: a raw packet socket.
pub struct Wire {
    socket: libc::c_int,
}

impl Wire {
    pub fn open(interface: &str) -> Wire {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let name = CString::new(interface).expect("a name");
        // SAFETY: system calls on a fresh socket; the address is a zeroed structure with its fields
        // set.
        unsafe {
            let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_NONBLOCK, i32::from(all));
            assert!(socket >= 0, "a packet socket needs root: {}", std::io::Error::last_os_error());
            let mut address: libc::sockaddr_ll = mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = all;
            address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
            let len = size_of::<libc::sockaddr_ll>() as u32;
            assert_eq!(libc::bind(socket, (&raw const address).cast(), len), 0, "{}", std::io::Error::last_os_error());
            Wire { socket }
        }
    }

    pub fn send(&self, frame: &[u8]) {
        // SAFETY: `frame` is valid for its length.
        let sent = unsafe { libc::send(self.socket, frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// The next of our frames that came over the wire (not one that was sent from here).
    pub fn receive(&self) -> Vec<u8> {
        wait_for("a frame on the wire", || {
            let mut bytes = vec![0; 70_000];
            // SAFETY: zeroed is a valid address; both places are valid for the lengths given.
            let (received, kind) = unsafe {
                let mut from: libc::sockaddr_ll = mem::zeroed();
                let mut len = size_of::<libc::sockaddr_ll>() as u32;
                let place = (&raw mut from).cast();
                let count = libc::recvfrom(self.socket, bytes.as_mut_ptr().cast(), bytes.len(), 0, place, &raw mut len);
                (count, from.sll_pkttype)
            };
            bytes.truncate(usize::try_from(received).ok()?);
            (kind != libc::PACKET_OUTGOING && number_of(&bytes).is_some()).then_some(bytes)
        })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: the socket is open and closed once.
        unsafe { libc::close(self.socket) };
    }
}

/// An AF_XDP socket that holds the first queue of an interface until it is dropped.
pub struct XdpQueue {
    socket: libc::c_int,
}

impl XdpQueue {
    pub fn hold(interface: &str) -> XdpQueue {
        const FRAME: u32 = 4_096;
        let name = CString::new(interface).expect("a name");
        let frames = 64_u32;
        let bytes = (FRAME * frames) as usize;
        let check = |result: libc::c_int, what: &str| {
            assert_eq!(result, 0, "{what}: {}", std::io::Error::last_os_error());
        };
        // SAFETY: system calls on a fresh socket, with structures that live as long; the kernel
        // holds the memory for as long as it needs it.
        unsafe {
            let socket = libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0);
            assert!(socket >= 0, "an AF_XDP socket needs root: {}", std::io::Error::last_os_error());
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let memory = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            let mut area: libc::xdp_umem_reg = mem::zeroed();
            area.addr = memory as u64;
            area.len = bytes as u64;
            area.chunk_size = FRAME;
            let (place, length) = ((&raw const area).cast(), size_of_val(&area) as u32);
            check(libc::setsockopt(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, place, length), "the memory");
            for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
                let (place, length) = ((&raw const frames).cast(), size_of_val(&frames) as u32);
                check(libc::setsockopt(socket, libc::SOL_XDP, ring, place, length), "a ring");
            }
            let mut address: libc::sockaddr_xdp = mem::zeroed();
            address.sxdp_family = libc::AF_XDP as u16;
            address.sxdp_ifindex = libc::if_nametoindex(name.as_ptr());
            let length = size_of_val(&address) as u32;
            check(libc::bind(socket, (&raw const address).cast(), length), "the queue");
            XdpQueue { socket }
        }
    }
}

impl Drop for XdpQueue {
    fn drop(&mut self) {
        // SAFETY: the socket is open and closed once.
        unsafe { libc::close(self.socket) };
    }
}

/// Sends frames of several lengths both ways between a port and the wire, and compares every byte.
pub fn exchange(ios: &mut [DpdkIo], port: PortIndex, wire: &Wire, lengths: &[usize]) {
    let frames: Vec<_> = lengths.iter().zip(0u32..).map(|(len, number)| frame(number, *len)).collect();
    for frame in &frames {
        wire.send(frame);
    }
    let mut received = receive(ios, port, frames.len());
    received.sort_by_key(|frame| number_of(frame));
    assert_eq!(received, frames);

    let sender = ios.iter_mut().find(|io| io.can_transmit(port)).expect("a worker with a transmit queue");
    send(sender, port, &frames);
    for frame in &frames {
        assert_eq!(&wire.receive(), frame);
    }
}
