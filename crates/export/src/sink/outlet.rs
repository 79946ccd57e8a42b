//! The way to a collector: datagrams, a stream, or a stream in TLS.

use std::fmt;
use std::io;
use std::io::Read;
use std::io::Write;
use std::net::IpAddr;
use std::net::Shutdown;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::net::ToSocketAddrs;
use std::net::UdpSocket;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::net;
use rustix::net::AddressFamily;
use rustix::net::SocketFlags;
use rustix::net::SocketType;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::ClientConnection;
use rustls::RootCertStore;
use rustls::StreamOwned;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;

/// Longest time to connect, the handshake of TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A write, or a step of the handshake, is tried so long at a time, so that an end of the sink is
/// noticed.
const TRY: Duration = Duration::from_millis(500);
/// How often a look-up of a name looks for the end of the sink.
const LOOK: Duration = Duration::from_millis(50);
/// A collector that takes nothing for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// Longest time without an acknowledgement of what was sent, in ms.
const UNACKNOWLEDGED_MS: u32 = 20_000;
/// Bytes that the system keeps for a connection; Linux doubles it.
const SEND_BUFFER: usize = 512 << 10;
/// Earlier datagrams whose refusal may be reported when another one is sent.
const REFUSED_MAX: usize = 8;
/// Time for the collector to read the rest and to close the connection.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// How bytes get to the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams; what is lost on the way stays lost.
    Udp,
    /// A stream.
    Tcp,
    /// A stream in TLS.
    Tls,
}

/// A collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How to get there.
    pub transport: Transport,
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// Files for TLS, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// Certificates of the authorities that sign the collector's certificate.
    pub authorities: PathBuf,
    /// Our own certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// A file of certificates cannot be used.
    #[error("certificates {path}: {what}; write certificates in PEM to it", path = .path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// The name is none that a certificate can have.
    #[error("collector {host}: not a name that a certificate can have; use a host name or an address")]
    Name {
        /// The name.
        host: String,
    },
}

/// The addresses of a name.
type Found = io::Result<Vec<SocketAddr>>;

/// Connects, any number of times.
#[derive(Debug)]
pub(crate) struct Connector {
    target: Target,
    /// The look-up of the name that has not ended yet.
    looking_up: Mutex<Option<Receiver<Found>>>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Outlet {
    Udp(UdpSocket),
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Connector {
    pub(crate) fn new(target: &Target, security: Option<&Security>) -> Result<Connector, TargetError> {
        let tls = match (target.transport, security) {
            (Transport::Tls, Some(security)) => {
                let name = ServerName::try_from(target.host.clone());
                let name = name.map_err(|_| TargetError::Name { host: target.host.clone() })?;
                Some((Arc::new(client_config(security)?), name))
            }
            (Transport::Tls, None) => {
                let what = "there are none".to_owned();
                return Err(TargetError::Certificates { path: PathBuf::new(), what });
            }
            _ => None,
        };
        Ok(Connector { target: target.clone(), looking_up: Mutex::default(), tls })
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Connects. A certificate that is not signed by the authorities, has expired or does not have
    /// the collector's name is an error. Gives up soon when `is_over` says so.
    pub(crate) fn connect(&self, is_over: impl Fn() -> bool) -> io::Result<Outlet> {
        let addresses = self.addresses(&is_over)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in addresses {
            let connected = match self.target.transport {
                Transport::Udp => {
                    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                    UdpSocket::bind(any).and_then(|socket| {
                        socket.connect(address)?;
                        Ok(Outlet::Udp(socket))
                    })
                }
                Transport::Tcp | Transport::Tls => {
                    open_stream(address, &is_over).and_then(|stream| self.secure(stream, &is_over))
                }
            };
            match connected {
                Ok(outlet) => return Ok(outlet),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The addresses of the collector. The system may take long to look up a name, and nothing ends
    /// that: so a thread of its own does it, which is left behind when `is_over` says so.
    fn addresses(&self, is_over: &impl Fn() -> bool) -> Found {
        let (host, port) = (self.target.host.clone(), self.target.port);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![(address, port).into()]);
        }
        self.look_up(move || Ok((host.as_str(), port).to_socket_addrs()?.collect()), is_over)
    }

    fn look_up(&self, ask: impl FnOnce() -> Found + Send + 'static, is_over: &impl Fn() -> bool) -> Found {
        let mut looking_up = self.looking_up.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = match looking_up.take() {
            Some(receiver) => receiver,
            None => {
                let (sender, receiver) = mpsc::channel();
                let thread = thread::Builder::new().name("look up collector".to_owned());
                // The collector may be gone.
                thread.spawn(move || drop(sender.send(ask())))?;
                receiver
            }
        };
        let since = Instant::now();
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(found) => return found,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the look-up of the name failed")),
            }
            if is_over() || since.elapsed() > CONNECT_WITHIN {
                *looking_up = Some(receiver);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no name server answers"));
            }
        }
    }

    fn secure(&self, mut stream: TcpStream, is_over: &impl Fn() -> bool) -> io::Result<Outlet> {
        // What was sent is kept for so long: the collector's system has it by then, or there is an
        // error.
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED_MS)?;
        sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, STALLED)?;
        let outlet = match &self.tls {
            None => Outlet::Tcp(stream),
            Some((config, name)) => {
                stream.set_read_timeout(Some(TRY))?;
                stream.set_write_timeout(Some(TRY))?;
                let connection = ClientConnection::new(Arc::clone(config), name.clone()).map_err(io::Error::other)?;
                let mut connection = connection;
                shake_hands(&mut connection, &mut stream, is_over)?;
                Outlet::Tls(Box::new(StreamOwned::new(connection, stream)))
            }
        };
        if let Some(stream) = outlet.stream() {
            stream.set_write_timeout(Some(TRY))?;
        }
        Ok(outlet)
    }
}

/// Opens a TCP connection, for which a collector that is off may let us wait.
fn open_stream(address: SocketAddr, is_over: &impl Fn() -> bool) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    let since = Instant::now();
    match net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let step = Timespec::try_from(TRY).map_err(io::Error::other)?;
            while poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&step)).unwrap_or(0) == 0 {
                let longest = if is_over() { CLOSE_WITHIN } else { CONNECT_WITHIN };
                if since.elapsed() > longest {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the collector does not answer"));
                }
            }
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Completes the handshake of TLS, which a collector may send byte by byte.
fn shake_hands(
    connection: &mut ClientConnection,
    stream: &mut TcpStream,
    is_over: &impl Fn() -> bool,
) -> io::Result<()> {
    let since = Instant::now();
    while connection.is_handshaking() {
        let moved = if connection.wants_write() { connection.write_tls(stream) } else { connection.read_tls(stream) };
        match moved {
            Ok(0) => {
                let why = "the collector closed the connection during the handshake of TLS";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Ok(_) => {
                if let Err(error) = connection.process_new_packets() {
                    // The collector gets to know why, if it still reads.
                    let _ = connection.write_tls(stream);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
            Err(error) if is_waiting(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let longest = if is_over() { CLOSE_WITHIN } else { CONNECT_WITHIN };
        if connection.is_handshaking() && since.elapsed() > longest {
            let why = "the collector does not complete the handshake of TLS";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
    Ok(())
}

/// True if a timeout of the socket ended a call.
fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn client_config(security: &Security) -> Result<ClientConfig, TargetError> {
    let bad = |path: &Path, what: String| TargetError::Certificates { path: path.to_owned(), what };
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, TargetError> {
        let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.map_err(|error| bad(path, error.to_string()))?;
        if found.is_empty() { Err(bad(path, "no certificate is in it".to_owned())) } else { Ok(found) }
    };
    let mut roots = RootCertStore::empty();
    let path = &security.authorities;
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| bad(path, error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| bad(path, error.to_string()))?.with_root_certificates(roots);
    let Some((certificate, key)) = &security.own else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(certificate)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| bad(key, error.to_string()))?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| bad(certificate, error.to_string()))
}

impl Outlet {
    fn stream(&self) -> Option<&TcpStream> {
        match self {
            Outlet::Udp(_) => None,
            Outlet::Tcp(stream) => Some(stream),
            Outlet::Tls(tls) => Some(&tls.sock),
        }
    }

    /// Sends all bytes, as one datagram or on the stream. Gives up when the collector takes nothing
    /// for long, or when `is_over` says so while it takes nothing.
    pub(crate) fn send(&mut self, bytes: &[u8], is_over: impl Fn() -> bool) -> io::Result<()> {
        let stream: &mut dyn Write = match self {
            Outlet::Udp(socket) => {
                let sent = socket.send(bytes).map(|_| ());
                let mut again = sent.as_ref().map(|()| 0).map_err(io::Error::kind);
                // That earlier datagrams were refused kept this one from being sent.
                for _ in 0..REFUSED_MAX {
                    if again != Err(io::ErrorKind::ConnectionRefused) {
                        break;
                    }
                    again = socket.send(bytes).map_err(|error| error.kind());
                }
                return sent;
            }
            Outlet::Tcp(stream) => stream,
            Outlet::Tls(tls) => tls,
        };
        let (mut left, mut since) = (bytes, Instant::now());
        loop {
            let result = if left.is_empty() { stream.flush().map(|()| 0) } else { stream.write(left) };
            match result {
                Ok(0) if left.is_empty() => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    left = left.get(count..).unwrap_or_default();
                    since = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_waiting(&error) => {
                    if since.elapsed() > STALLED || is_over() {
                        return Err(io::Error::new(io::ErrorKind::TimedOut, "the collector takes nothing"));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// An error if the collector has closed the connection. What it sends is ignored.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        let Some(stream) = self.stream() else { return Ok(()) };
        stream.set_nonblocking(true)?;
        let mut bytes = [0; 1_024];
        let read = match self {
            Outlet::Udp(_) => return Ok(()),
            Outlet::Tcp(stream) => stream.read(&mut bytes),
            Outlet::Tls(tls) => tls.read(&mut bytes),
        };
        if let Some(stream) = self.stream() {
            stream.set_nonblocking(false)?;
        }
        match read {
            Ok(0) => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the collector closed the connection")),
            Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Err(error),
            _ => Ok(()),
        }
    }

    /// Ends the connection. True if the collector has read everything: it closed its side after
    /// ours.
    pub(crate) fn close(mut self) -> bool {
        if let Outlet::Tls(tls) = &mut self {
            tls.conn.send_close_notify();
            let _ = tls.flush();
        }
        let Some(stream) = self.stream() else { return true };
        let is_shut = stream.shutdown(Shutdown::Write).and_then(|()| stream.set_read_timeout(Some(TRY)));
        let (mut bytes, since) = ([0; 1_024], Instant::now());
        while is_shut.is_ok() && since.elapsed() < CLOSE_WITHIN {
            let read = match &mut self {
                Outlet::Udp(_) => return true,
                // The bytes of TLS do not matter any more.
                Outlet::Tcp(stream) => stream.read(&mut bytes),
                Outlet::Tls(tls) => tls.sock.read(&mut bytes),
            };
            match read {
                Ok(0) => return true,
                Err(error) if !is_waiting(&error) => break,
                _ => {}
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_that_hangs_is_left_and_heard_later() {
        let host = "collector.example".to_owned();
        let connector = Connector::new(&Target { transport: Transport::Tcp, host, port: 514 }, None).unwrap();
        let (answer, question) = mpsc::channel::<SocketAddr>();
        let ask = move || Ok(vec![question.recv().map_err(io::Error::other)?]);
        let error = connector.look_up(ask, &|| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // The next attempt waits for the same one: threads do not add up.
        let address = SocketAddr::from(([192, 0, 2, 1], 514));
        answer.send(address).unwrap();
        let found = connector.look_up(|| unreachable!("asked twice"), &|| false).unwrap();
        assert_eq!(found, [address]);
    }
}
