//! At most one process on a device: each claims the devices of its ports before it opens them.
//!
//! A claim is an abstract Unix socket that is named after the device. Each network namespace has
//! its own names, as it has its own devices, and the kernel frees a name when its process ends,
//! however it ends. A device that is renamed or moved later keeps its claim.
//!
//! Any program may take such a name. One of another user that could not open a device is no reason
//! not to start: then the device has no claim, and the caller says so.

#![allow(unsafe_code, reason = "a connection that never waits, and the process at its other end")]

use core::fmt;
use core::mem::offset_of;
use core::mem::size_of;
use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::AsRawFd;
use std::os::fd::FromRawFd;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::thread;
use std::thread::JoinHandle;

/// How the names of claims begin.
const PREFIX: &str = "natrix/device/";
/// Drivers of ports on devices of the kernel, or of ports that make one. The name of a device is
/// no path.
const OF_KERNEL: [&str; 5] = ["net_af_packet", "net_af_xdp", "net_pcap", "net_tap", "net_virtio_user"];
/// Bits in `CapEff` of CAP_NET_ADMIN and CAP_NET_RAW: a process that opens devices has one of them.
const CAPABILITIES: u64 = 1 << 12 | 1 << 13;
/// Attempts to take a name whose process has just ended or is about to listen, or whose queue is
/// full, and the time between two.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// How long connections may wait in the queue of a claim. Shorter than all attempts.
const CLEARED_EVERY: Duration = Duration::from_millis(100);

/// The driver of a port, and the devices that it names, those that it receives from first.
pub fn driver_of(words: &str) -> (&str, impl Iterator<Item = &str>) {
    let (driver, words) = words.split_once(',').unwrap_or((words, ""));
    let driver = driver.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let keys: &[&str] = match driver {
        "net_pcap" => &["iface=", "rx_iface=", "rx_iface_in=", "tx_iface="],
        _ => &["iface="],
    };
    let named = keys.iter().flat_map(move |key| words.split(',').filter_map(move |word| word.strip_prefix(key)));
    (driver, named)
}

/// What no two processes may have: the devices of the kernel that a driver string names, or the
/// card.
fn devices_of(words: &str) -> Vec<String> {
    let (driver, named) = driver_of(words);
    if !words.starts_with("net_") {
        let card = words.split(',').next().unwrap_or_default().to_ascii_lowercase();
        return vec![if card.matches(':').count() == 1 { format!("0000:{card}") } else { card }];
    }
    if !OF_KERNEL.contains(&driver) {
        return Vec::new();
    }
    // A TAP may take over the packets of another device.
    let remote = words.split(',').filter_map(|word| word.strip_prefix("remote=")).filter(|_| driver == "net_tap");
    named.chain(remote).map(str::to_owned).collect()
}

/// A device that another process has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Number of the port whose driver string names it.
    pub port: usize,
    /// The device.
    pub device: String,
    /// The process; None if it is in another PID namespace, or is not known.
    pub pid: Option<u32>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "another natrix already runs on {}", self.device)?;
        self.pid.map_or(Ok(()), |pid| write!(f, " (pid {pid})"))
    }
}

/// A device that this process could not claim although no other has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unclaimed {
    /// Number of the port whose driver string names it.
    pub port: usize,
    /// The device.
    pub device: String,
    /// Why.
    pub reason: String,
}

/// The claims of this process. Dropping them gives the devices back.
#[derive(Debug)]
#[must_use]
pub struct Claims {
    _names: Option<Names>,
    unclaimed: Vec<Unclaimed>,
}

/// The sockets of claims, and the thread that has them. It closes what has connected: each look at
/// a claim leaves a connection in its queue, and a full queue hides whose it is.
#[derive(Debug)]
struct Names {
    /// Closed to end the thread.
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Names {
    fn keep(listeners: Vec<UnixListener>) -> io::Result<Names> {
        let (end, ended) = UnixStream::pair()?;
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let thread = thread::Builder::new().name("claims".to_owned()).spawn(move || clear(&listeners, &ended))?;
        Ok(Names { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

/// Closes connections to claims until the other end of `ended` is closed.
fn clear(listeners: &[UnixListener], ended: &UnixStream) {
    let wait = |descriptor: &dyn AsRawFd| libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        let mut waits: Vec<libc::pollfd> = listeners.iter().map(|listener| wait(listener)).collect();
        waits.push(wait(ended));
        // SAFETY: the list lives through the call, which changes `revents` in it.
        let ready = unsafe { libc::poll(waits.as_mut_ptr(), waits.len() as libc::nfds_t, -1) };
        if ready > 0 && waits.last().is_some_and(|ended| ended.revents != 0) {
            return;
        }
        for listener in listeners {
            while listener.accept().is_ok() {}
        }
        // A program that connects again and again, or a lack of descriptors, takes little time.
        thread::sleep(CLEARED_EVERY);
    }
}

impl Claims {
    /// Claims the devices of ports with these driver strings, in this network namespace.
    ///
    /// # Errors
    /// Another process has one of them; nothing is claimed then.
    pub fn take<'a>(drivers: impl IntoIterator<Item = &'a str>) -> Result<Claims, Held> {
        let (mut names, mut unclaimed, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (port, words) in drivers.into_iter().enumerate() {
            for device in devices_of(words) {
                // A port may receive from the device that it sends to.
                if !seen.insert(device.clone()) {
                    continue;
                }
                match claim(&device) {
                    Ok(name) => names.push(name),
                    Err(Refused::ByNatrix(pid)) => return Err(Held { port, device, pid }),
                    Err(Refused::Otherwise(reason)) => unclaimed.push(Unclaimed { port, device, reason }),
                }
            }
        }
        let names = if names.is_empty() { None } else { Some(names) };
        let names = names.map(Names::keep).transpose();
        Ok(match names {
            Ok(names) => Claims { _names: names, unclaimed },
            Err(error) => {
                unclaimed.push(Unclaimed { port: 0, device: "each device".to_owned(), reason: error.to_string() });
                Claims { _names: None, unclaimed }
            }
        })
    }

    /// What could not be claimed.
    pub fn unclaimed(&self) -> &[Unclaimed] {
        &self.unclaimed
    }
}

/// The devices of ports with these driver strings that processes have now.
pub fn held<'a>(drivers: impl IntoIterator<Item = &'a str>) -> Vec<Held> {
    let ports = drivers.into_iter().enumerate();
    let devices = ports.flat_map(|(port, words)| devices_of(words).into_iter().map(move |device| (port, device)));
    let held = devices.filter_map(|(port, device)| match holder(&device) {
        Ok(Holder::Natrix(pid)) => Some(Held { port, device, pid }),
        _ => None,
    });
    held.collect()
}

/// Why a device cannot be claimed.
enum Refused {
    ByNatrix(Option<u32>),
    Otherwise(String),
}

fn claim(device: &str) -> Result<UnixListener, Refused> {
    let otherwise = |error: io::Error| Refused::Otherwise(error.to_string());
    let address = SocketAddr::from_abstract_name(format!("{PREFIX}{device}")).map_err(otherwise)?;
    for _ in 0..ATTEMPTS {
        match UnixListener::bind_addr(&address) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(otherwise(error)),
            Err(_) => {}
        }
        match holder(device).map_err(otherwise)? {
            Holder::Natrix(pid) => return Err(Refused::ByNatrix(pid)),
            Holder::Other(pid) => {
                let process = pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
                return Err(Refused::Otherwise(format!("{process}, which is not Natrix, has the name of its claim")));
            }
            Holder::None | Holder::Silent => thread::sleep(PAUSE),
        }
    }
    Err(Refused::Otherwise("a process, which is not Natrix, has the name of its claim".to_owned()))
}

/// The process that has the name of a claim.
enum Holder {
    None,
    Natrix(Option<u32>),
    /// Of another user, and not known to be able to open a device.
    Other(Option<u32>),
    /// Its queue is full. Natrix clears its own.
    Silent,
}

fn holder(device: &str) -> io::Result<Holder> {
    let peer = match connect(format!("{PREFIX}{device}").as_bytes()) {
        Ok(socket) => peer_of(&socket),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(Holder::None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Holder::Silent),
        Err(error) => return Err(error),
    };
    let Some(peer) = peer else { return Ok(Holder::Other(None)) };
    let pid = number_of(&peer);
    // SAFETY: no pointers are passed.
    let is_trusted = peer.uid == 0 || peer.uid == unsafe { libc::geteuid() };
    let is_natrix = is_trusted || pid.is_some_and(|pid| is_privileged(pid, peer.uid));
    Ok(if is_natrix { Holder::Natrix(pid) } else { Holder::Other(pid) })
}

/// Whether a process of another user is seen to be able to open devices of this namespace.
fn is_privileged(pid: u32, user: u32) -> bool {
    let of = |process: &str, file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).ok();
    let (ours, theirs) = (of("self", "uid_map"), of(&pid.to_string(), "uid_map"));
    // In another user namespace its capabilities are none here.
    ours.is_some() && ours == theirs && of(&pid.to_string(), "status").is_some_and(|status| may_open(&status, user))
}

/// True for the `/proc/PID/status` of a process with the rights to open devices, all of whose
/// identities are this user. So a program that got the socket and then other rights does not count.
fn may_open(status: &str, user: u32) -> bool {
    let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let mut users = line("Uid:").split_whitespace();
    let effective = u64::from_str_radix(line("CapEff:").trim(), 16).unwrap_or_default();
    users.all(|other| other == user.to_string()) && effective & CAPABILITIES != 0
}

/// The process at the other end of a Unix socket: the one that listened, or connected. None if it
/// has no number here.
pub fn peer_pid(socket: &impl AsFd) -> Option<u32> {
    peer_of(socket).and_then(|peer| number_of(&peer))
}

fn number_of(peer: &libc::ucred) -> Option<u32> {
    u32::try_from(peer.pid).ok().filter(|pid| *pid > 0)
}

fn peer_of(socket: &impl AsFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes, the size of `peer`, which lives through the
    // call.
    let result = unsafe {
        libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length)
    };
    (result == 0).then_some(peer)
}

/// The address of an abstract name, and its length.
fn address_of(name: &[u8]) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    // The first byte is 0: the name is no path.
    let places = address.sun_path.get_mut(1..=name.len()).ok_or(io::ErrorKind::InvalidInput)?;
    places.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte as libc::c_char);
    Ok((address, (offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t))
}

/// A socket for abstract names that never waits.
fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers are passed.
    let descriptor = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Connects to an abstract name without waiting for a place in the listener's queue.
fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let ((address, length), socket) = (address_of(name)?, socket()?);
    // SAFETY: the address lives through the call, and `length` bytes of it are initialised.
    let result = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of a test alone: tests run side by side in one network namespace.
    fn device(test: &str) -> String {
        format!("{test}-{}", std::process::id())
    }

    #[test]
    fn driver_strings_name_the_devices_that_are_claimed() {
        let found = |words: &str| devices_of(words).join(" ");
        assert_eq!(found("net_af_packet0,iface=eth1,qpairs=2"), "eth1");
        assert_eq!(found("net_af_xdp1,iface=eth2,start_queue=1"), "eth2");
        assert_eq!(found("net_tap0,iface=wan,remote=eth3"), "wan eth3");
        assert_eq!(found("net_pcap0,rx_iface=eth1,tx_iface=eth2"), "eth1 eth2");
        assert_eq!(found("net_virtio_user0,path=/dev/vhost-net,iface=tap7"), "tap7");
        assert_eq!([found("3B:00.0,arg=1"), found("0000:3b:00.0")], ["0000:3b:00.0"; 2]);
        for shared in ["net_tap0", "net_memif0,socket=/run/a", "net_null0", "net_ring0", "net_vhost0,iface=/run/a"] {
            assert_eq!(found(shared), "", "{shared}");
        }
    }

    #[test]
    fn a_claimed_device_is_refused_until_it_is_given_back() {
        let device = device("refused");
        let (sender, receiver) = (format!("net_af_packet0,iface={device}"), format!("net_af_xdp7,iface={device}"));
        let claims = Claims::take([sender.as_str()]).unwrap();
        assert_eq!(claims.unclaimed(), []);
        let pid = std::process::id();
        let expected = Held { port: 1, device: device.clone(), pid: Some(pid) };
        assert_eq!(Claims::take(["net_null0", &receiver]).unwrap_err(), expected);
        assert_eq!(held(["net_null0", &receiver]), core::slice::from_ref(&expected));
        assert_eq!(expected.to_string(), format!("another natrix already runs on {device} (pid {pid})"));
        assert_eq!(Held { pid: None, ..expected }.to_string(), format!("another natrix already runs on {device}"));
        drop(claims);
        assert_eq!(held([sender.as_str()]), []);
        assert!(Claims::take([receiver.as_str()]).unwrap().unclaimed().is_empty());
    }

    #[test]
    fn many_looks_at_a_claim_fill_no_queue() {
        let device = device("looks");
        let words = format!("net_af_packet0,iface={device}");
        let claims = Claims::take([words.as_str()]).unwrap();
        let name = format!("{PREFIX}{device}");
        // More than a queue may have. A full one is cleared soon.
        for _ in 0..10_000 {
            while connect(name.as_bytes()).is_err() {
                thread::sleep(PAUSE);
            }
        }
        let [found] = <[Held; 1]>::try_from(held([words.as_str()])).unwrap();
        assert_eq!(found.pid, Some(std::process::id()));
        drop(claims);
    }

    #[test]
    fn a_full_queue_is_not_that_of_natrix() {
        let device = device("full");
        let name = format!("{PREFIX}{device}");
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        // What is not accepted stays in the queue, also when it is closed.
        let connected = (0..100_000).take_while(|_| connect(name.as_bytes()).is_ok()).count();
        assert!(connected < 100_000, "a queue has an end");
        let words = format!("net_af_packet0,iface={device}");
        assert!(held([words.as_str()]).is_empty());
        assert_eq!(Claims::take([words.as_str()]).unwrap().unclaimed().len(), 1);
        drop(listener);
    }

    #[test]
    fn a_device_may_have_both_directions_of_a_port() {
        let device = device("both");
        let words = format!("net_pcap0,rx_iface={device},tx_iface={device}");
        assert!(Claims::take([words.as_str()]).unwrap()._names.is_some());
    }

    #[test]
    fn a_process_without_rights_stops_no_instance() {
        let of_natrix = "Name:\tnatrix\nUid:\t999\t999\t999\t999\nCapEff:\t0000000000003000\n";
        assert!(may_open(of_natrix, 999) && !may_open(of_natrix, 1_000));
        assert!(!may_open(&of_natrix.replace("3000", "0000"), 999));
        assert!(!may_open(&of_natrix.replace("\t999\t999\t999\n", "\t0\t0\t0\n"), 999), "it became another user");
        assert!(!may_open("", 999), "not known");
        // A name that is bound and has no listener.
        let device = device("bound");
        let (address, length) = address_of(format!("{PREFIX}{device}").as_bytes()).unwrap();
        let bound = socket().unwrap();
        // SAFETY: the address lives through the call, and `length` bytes of it are initialised.
        assert_eq!(unsafe { libc::bind(bound.as_raw_fd(), (&raw const address).cast(), length) }, 0);
        let words = format!("net_af_packet0,iface={device}");
        let claims = Claims::take([words.as_str()]).unwrap();
        assert_eq!(claims.unclaimed().len(), 1);
        assert!(held([words.as_str()]).is_empty());
    }
}
