//! Traffic of the subscribers: flows of datagrams that account for each answer, and connections
//! that fill the links.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::io::Read as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::SocketType;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::sockopt::socket_error;

use super::STREAMS;
use super::SharingError;
use super::SharingOptions;
use super::network::ECHO_PORT;
use super::network::Network;
use super::network::SERVER;
use super::network::SINK_PORT;
use super::network::nat_of;
use super::pause;
use super::subscriber;

/// Datagrams that a busy server has room for, bytes.
const SERVER_BUFFER_BYTES: usize = 8 << 20;
/// How long a thread waits in a call before it looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// So long the last answers may take.
const LAST_ANSWERS: Duration = Duration::from_secs(2);
/// So long may a connection take to open.
const CONNECT: Duration = Duration::from_secs(5);
/// Connections open before a rate is measured, so that slow start is no part of it.
const WARM_UP_SECONDS: f64 = 1.0;

/// Number of a datagram; in an answer also the external endpoint, and when the server had it, in
/// microseconds of its clock.
const REQUEST_BYTES: usize = 8;
const ANSWER_BYTES: usize = REQUEST_BYTES + 4 + 2 + 8;

/// The server: sends each datagram back, with the address it came from and the time.
#[derive(Debug)]
pub(super) struct Echo {
    /// Zero of its clock.
    begun: Instant,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Echo {
    pub(super) fn start(network: &Network) -> Result<Echo, SharingError> {
        let socket = network.inside("server", || {
            let socket = UdpSocket::bind((SERVER, ECHO_PORT))?;
            socket.set_read_timeout(Some(LOOK))?;
            set_socket_recv_buffer_size_force(&socket, SERVER_BUFFER_BYTES)?;
            Ok(socket)
        })?;
        let (begun, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&stop);
        let serve = move || {
            let mut bytes = [0; ANSWER_BYTES];
            while !ends.load(Ordering::Relaxed) {
                let Ok((REQUEST_BYTES, SocketAddr::V4(from))) = socket.recv_from(&mut bytes) else { continue };
                bytes[8..12].copy_from_slice(&from.ip().octets());
                bytes[12..14].copy_from_slice(&from.port().to_be_bytes());
                bytes[14..].copy_from_slice(&(begun.elapsed().as_micros() as u64).to_be_bytes());
                // A lost answer is counted by its subscriber.
                let _ = socket.send_to(&bytes, from);
            }
        };
        Ok(Echo { begun, stop, thread: Some(thread::spawn(serve)) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What became of the datagrams of one subscriber.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    /// Number of the next datagram.
    sent: u64,
    /// By number, whether it has an answer.
    answered: Vec<bool>,
    /// External endpoints in the order in which they appeared, each with the time at which the
    /// server had the first datagram that was answered.
    seen: Vec<(SocketAddrV4, Instant)>,
}

impl Flow {
    /// Takes in an answer. Anything else is no answer and does not count.
    fn take(&mut self, bytes: &[u8], begun: Instant) {
        let Ok(bytes) = <&[u8; ANSWER_BYTES]>::try_from(bytes) else { return };
        let number = u64::from_be_bytes(core::array::from_fn(|place| bytes[place]));
        let Some(answered) = self.answered.get_mut(number as usize) else { return };
        *answered = true;
        let address = Ipv4Addr::from(core::array::from_fn::<u8, 4, _>(|place| bytes[8 + place]));
        let endpoint = SocketAddrV4::new(address, u16::from_be_bytes([bytes[12], bytes[13]]));
        let micros = u64::from_be_bytes(core::array::from_fn(|place| bytes[14 + place]));
        if self.seen.iter().all(|(seen, _)| *seen != endpoint) {
            self.seen.push((endpoint, begun + Duration::from_micros(micros)));
        }
    }

    /// Datagrams without an answer.
    pub(super) fn lost(&self) -> u64 {
        self.answered.iter().filter(|answered| !**answered).count() as u64
    }

    /// External endpoints so far.
    pub(super) fn external(&self) -> impl Iterator<Item = &SocketAddrV4> {
        self.seen.iter().map(|(endpoint, _)| endpoint)
    }

    /// The NAT of its first answer, from 0.
    pub(super) fn first_nat(&self) -> Option<usize> {
        nat_of(*self.seen.first()?.0.ip())
    }

    /// When the server had its first answered datagram through another NAT.
    pub(super) fn first_after_move(&self) -> Option<Instant> {
        let first = self.first_nat()?;
        self.seen.iter().find(|(endpoint, _)| nat_of(*endpoint.ip()) != Some(first)).map(|(_, at)| *at)
    }
}

/// A flow of each of some subscribers, until [`Flows::end`].
#[derive(Debug)]
pub(super) struct Flows {
    flows: Arc<Mutex<Vec<Flow>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn lock(flows: &Mutex<Vec<Flow>>) -> MutexGuard<'_, Vec<Flow>> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Flows {
    /// Each address sends a datagram every `interval`.
    pub(super) fn start(
        network: &Network,
        echo: &Echo,
        addresses: Vec<Ipv4Addr>,
        interval: Duration,
    ) -> Result<Flows, SharingError> {
        let sockets: Vec<UdpSocket> = network.inside("subs", || {
            let socket = |address: &Ipv4Addr| {
                let socket = UdpSocket::bind((*address, 0))?;
                socket.connect((SERVER, ECHO_PORT))?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            addresses.iter().map(socket).collect::<io::Result<_>>()
        })?;
        let flows = Arc::new(Mutex::new(vec![Flow::default(); sockets.len()]));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, ends, begun) = (Arc::clone(&flows), Arc::clone(&stop), echo.begun);
        let thread = thread::spawn(move || converse(&sockets, &shared, &ends, begun, interval));
        Ok(Flows { flows, stop, thread: Some(thread) })
    }

    /// Flows with an answer.
    pub(super) fn answered(&self) -> u64 {
        lock(&self.flows).iter().filter(|flow| !flow.seen.is_empty()).count() as u64
    }

    /// Flows whose first answer came through this NAT.
    pub(super) fn first_at(&self, nat: usize) -> u64 {
        lock(&self.flows).iter().filter(|flow| flow.first_nat() == Some(nat)).count() as u64
    }

    /// Of these, those that have an answer through another one.
    pub(super) fn moved_from(&self, nat: usize) -> u64 {
        let moved = |flow: &&Flow| flow.first_nat() == Some(nat) && flow.first_after_move().is_some();
        lock(&self.flows).iter().filter(moved).count() as u64
    }

    /// Sends nothing more, waits for the last answers, and gives the account of all.
    pub(super) fn end(mut self) -> Vec<Flow> {
        self.finish();
        core::mem::take(&mut *lock(&self.flows))
    }

    fn finish(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Sends and reads in turns, evenly over the interval and never faster, until it is to stop.
fn converse(sockets: &[UdpSocket], flows: &Mutex<Vec<Flow>>, stop: &AtomicBool, begun: Instant, interval: Duration) {
    let step = interval / u32::try_from(sockets.len()).unwrap_or(u32::MAX).max(1);
    let mut due = Instant::now();
    let mut bytes = [0; ANSWER_BYTES + 1];
    let mut read = |socket: &UdpSocket, flow: &mut Flow| {
        while let Ok(length) = socket.recv(&mut bytes) {
            flow.take(&bytes[..length], begun);
        }
    };
    while !stop.load(Ordering::Relaxed) {
        for (place, socket) in sockets.iter().enumerate() {
            {
                let mut flows = lock(flows);
                let flow = &mut flows[place];
                read(socket, flow);
                // A datagram that the host itself refuses was not sent.
                if socket.send(&flow.sent.to_be_bytes()).is_ok() {
                    flow.sent += 1;
                    flow.answered.push(false);
                }
            }
            // Time that was lost is not made up for.
            due = (due + step).max(Instant::now().checked_sub(Duration::from_millis(20)).unwrap_or(due));
            let wait = due.saturating_duration_since(Instant::now());
            if wait > Duration::from_millis(1) {
                thread::sleep(wait);
            }
        }
    }
    let ended = Instant::now();
    while ended.elapsed() < LAST_ANSWERS && lock(flows).iter().any(|flow| flow.lost() > 0) {
        for (socket, flow) in sockets.iter().zip(lock(flows).iter_mut()) {
            read(socket, flow);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Connects a socket that does not block, unless all is over before. Whether it is connected.
fn connect(socket: &OwnedFd, over: &AtomicBool) -> bool {
    let begun = Instant::now();
    match rustix::net::connect(socket, &SocketAddrV4::new(SERVER, SINK_PORT)) {
        Err(Errno::INPROGRESS) => {}
        result => return result.is_ok(),
    }
    let look = Timespec::try_from(LOOK).ok();
    while !over.load(Ordering::Relaxed) && begun.elapsed() < CONNECT {
        if poll(&mut [PollFd::new(socket, PollFlags::OUT)], look.as_ref()) == Ok(1) {
            return socket_error(socket) == Ok(Ok(()));
        }
    }
    false
}

/// Mbit/s that the payload of [`STREAMS`] TCP connections of as many subscribers has together.
pub(super) fn tcp_rate(network: &Network, options: &SharingOptions, stop: &AtomicBool) -> Result<f64, SharingError> {
    let failed = |source| SharingError::System { what: "a connection through the NATs", source };
    let listener = network.inside("server", || TcpListener::bind((SERVER, SINK_PORT)))?;
    listener.set_nonblocking(true).map_err(failed)?;
    let sockets = network.inside("subs", || {
        let socket = |number| -> io::Result<_> {
            let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
            rustix::io::ioctl_fionbio(&socket, true)?;
            rustix::net::bind(&socket, &SocketAddrV4::new(subscriber(10_000 + number, options.seed), 0))?;
            Ok(socket)
        };
        (0..STREAMS).map(socket).collect::<io::Result<Vec<_>>>()
    })?;
    let (received, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let over = &over;
    let sink = |mut stream: TcpStream| {
        let mut bytes = vec![0; 1 << 16];
        // Without data it looks from time to time whether all is over.
        let _ = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK)));
        while !over.load(Ordering::Relaxed) {
            match stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(length) => drop(received.fetch_add(length as u64, Ordering::Relaxed)),
                Err(_) => {}
            }
        }
    };
    let sink = &sink;
    thread::scope(|scope| {
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => drop(scope.spawn(move || sink(stream))),
                    Err(_) => thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        for socket in sockets {
            scope.spawn(move || {
                let bytes = vec![0; 1 << 16];
                // A connection that is refused carries nothing, and the rate says so.
                let is_connected = connect(&socket, over);
                let mut stream = TcpStream::from(socket);
                let _ = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(LOOK)));
                while is_connected && !over.load(Ordering::Relaxed) {
                    // A full buffer is no end.
                    let is_full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                    if stream.write(&bytes).is_err_and(|error| !is_full(&error)) {
                        break;
                    }
                }
            });
        }
        let measured = || {
            pause(WARM_UP_SECONDS, stop)?;
            let (before, begun) = (received.load(Ordering::Relaxed), Instant::now());
            pause(options.rate_seconds, stop)?;
            let bytes = received.load(Ordering::Relaxed) - before;
            Ok(bytes as f64 * 8.0 / 1e6 / begun.elapsed().as_secs_f64())
        };
        let rate = measured();
        over.store(true, Ordering::Relaxed);
        rate
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(number: u64, external: SocketAddrV4, micros: u64) -> Vec<u8> {
        let mut bytes = number.to_be_bytes().to_vec();
        bytes.extend(external.ip().octets());
        bytes.extend(external.port().to_be_bytes());
        bytes.extend(micros.to_be_bytes());
        bytes
    }

    #[test]
    fn a_flow_accounts_for_answers_addresses_and_a_move() {
        let begun = Instant::now();
        let mut flow = Flow { sent: 4, answered: vec![false; 4], seen: Vec::new() };
        let [first, second] = [16, 33].map(|last| SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, last), 2_000));
        flow.take(&answer(0, first, 10), begun);
        flow.take(&answer(1, first, 20), begun);
        assert_eq!((flow.lost(), flow.first_nat(), flow.first_after_move()), (2, Some(0), None));
        flow.take(&answer(3, second, 500), begun);
        assert_eq!(flow.first_after_move(), Some(begun + Duration::from_micros(500)));
        assert_eq!((flow.lost(), flow.external().count()), (1, 2));
        flow.take(&answer(9, second, 600), begun);
        flow.take(b"short", begun);
        assert_eq!(flow.lost(), 1, "what was never sent is no answer");
    }
}
