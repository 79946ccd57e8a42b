//! Connections: how many there may be, and how long each may take for what.

use core::net::IpAddr;
use std::fs;
use std::io;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::Router;
use confine::NO_LANDLOCK;
use confine::Needs;
use confine::confine;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use nix::unistd::Uid;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpListener;
use tokio::net::UnixListener;
use tokio::net::UnixStream;
use tokio_io_timeout::TimeoutStream;

use crate::access::Access;
use crate::access::Peer;
use crate::connections::Connections;
use crate::connections::Standing;
use crate::event_log::EventLog;
use crate::routes;
use crate::settings::Listen;
use crate::settings::Settings;
use crate::tls::Certificates;
use crate::wrong_logins::Place;

/// Time for a TLS handshake, and for the headers of a request.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(10);
/// A client that takes nothing of its answer for so long is disconnected.
const STALLS_MAX: Duration = Duration::from_secs(30);
/// Bytes of the headers of a request.
const HEADERS_BYTES_MAX: usize = 32 * 1024;
/// Pause after a connection could not be accepted, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Threads for questions to the daemon and for hashes of tokens.
const BLOCKING_THREADS_MAX: usize = 24;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address or path is not to be had.
    #[error("http.listen: {address}: {source}; {}", remedy_for(source))]
    Listen {
        /// What was asked for.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The certificate cannot be used.
    #[error("http.tls: {0}")]
    Tls(String),
    /// The system refuses threads, random bytes or the like.
    #[error("http: {0}; see the system's log")]
    System(io::Error),
}

/// What to do about an address or path that cannot be listened on.
fn remedy_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "create the folder of the socket, or name another path",
        io::ErrorKind::PermissionDenied => "let Natrix write to the folder of the socket, or use a port above 1023",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine",
        _ => "use another address, or stop the program that uses this one",
    }
}

/// Serves until standard input ends, which it does when the process that started this one ends.
/// `past` answers which subscriber had an address at an earlier time.
///
/// # Errors
/// [`ServeError`]: it could not start.
pub fn serve(settings: Settings, log: EventLog) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(ServeError::System)?;
    let outcome = runtime.block_on(run(settings, log));
    // A question to a daemon that hangs must not keep this process.
    runtime.shutdown_background();
    outcome
}

async fn run(settings: Settings, log: EventLog) -> Result<(), ServeError> {
    let mut key = [0; 32];
    rand::TryRngCore::try_fill_bytes(&mut rand::rngs::OsRng, &mut key)
        .map_err(|error| ServeError::System(io::Error::other(error)))?;
    let listener = Listener::open(&settings.listen).await?;
    let certificates = settings.tls.clone().map(Certificates::load).transpose().map_err(ServeError::Tls)?;
    let certificates = certificates.map(Arc::new);
    // Before another thread is started: each inherits what this one may do.
    let needs = Needs { own_socket: listener.path(), connects_to: None, writes_beside: None };
    if !confine(needs).map_err(ServeError::System)? {
        tracing::warn!(target: "natrix", object = "api", "{NO_LANDLOCK}");
    }
    let (ended, end) = tokio::sync::oneshot::channel();
    let wait = move || {
        // Nothing more is sent: this returns at the end.
        let _ = io::copy(&mut io::stdin().lock().by_ref(), &mut io::sink());
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("end".to_owned()).spawn(wait).map_err(ServeError::System)?;
    let access = Arc::new(Access::new(settings, key, Uid::effective().as_raw()));
    let server = Arc::new(Server {
        routes: routes::routes(access, log, certificates.clone()),
        certificates,
        connections: Arc::default(),
    });
    tokio::select! {
        () = accept(&server, &listener) => Ok(()),
        _ = end => Ok(()),
    }
}

struct Server {
    routes: Router,
    certificates: Option<Arc<Certificates>>,
    connections: Arc<Connections>,
}

/// An open socket for connections.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    async fn open(listen: &Listen) -> Result<Listener, ServeError> {
        let failed = |address: String| move |source| ServeError::Listen { address, source };
        match listen {
            Listen::Tcp(address) => {
                TcpListener::bind(address).await.map(Listener::Tcp).map_err(failed(address.to_string()))
            }
            Listen::Unix(path) => {
                let (listener, file) = open_unix(path).map_err(failed(path.display().to_string()))?;
                Ok(Listener::Unix(listener, file))
            }
        }
    }

    /// The file of a Unix socket.
    fn path(&self) -> Option<&Path> {
        match self {
            Listener::Tcp(_) => None,
            Listener::Unix(_, file) => Some(&file.0),
        }
    }
}

/// Accepts connections for ever.
async fn accept(server: &Arc<Server>, listener: &Listener) {
    loop {
        let accepted = match listener {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, from)| Arc::clone(server).welcome_tcp(stream, from.ip()))
            }
            Listener::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| Arc::clone(server).welcome_unix(stream))
            }
        };
        if accepted.is_err() {
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// Removes the socket's file at the end.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may have been removed already.
        let _ = fs::remove_file(&self.0);
    }
}

/// Anyone may connect: what a client may do follows from its user and groups.
fn open_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Ok(metadata) = fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() || std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    let file = SocketFile(path.to_owned());
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok((listener, file))
}

impl Server {
    fn welcome_tcp(self: Arc<Server>, stream: tokio::net::TcpStream, address: IpAddr) {
        // An answer in several pieces would wait for the client's acknowledgement of the first.
        let _ = stream.set_nodelay(true);
        let connections = Arc::clone(&self.connections);
        connections.spawn(Place::of(address), move |standing| async move {
            let Some(certificates) = &self.certificates else {
                return self.talk(stream, Peer::Tcp { address, certificate: None }, standing).await;
            };
            let handshake = certificates.acceptor().accept(stream);
            let Ok(Ok(stream)) = tokio::time::timeout(HEADERS_WITHIN, handshake).await else { return };
            let certificate = certificates.name_of(stream.get_ref().1.peer_certificates());
            self.talk(stream, Peer::Tcp { address, certificate }, standing).await;
        });
    }

    fn welcome_unix(self: Arc<Server>, stream: UnixStream) {
        let Ok(peer) = stream.peer_cred() else { return };
        let connections = Arc::clone(&self.connections);
        connections.spawn(Place::User(peer.uid()), move |standing| async move {
            let groups = groups_of(&stream, peer.gid());
            self.talk(stream, Peer::Unix { uid: peer.uid(), groups }, standing).await;
        });
    }

    async fn talk(&self, stream: impl AsyncRead + AsyncWrite, peer: Peer, standing: Arc<Standing>) {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(STALLS_MAX));
        let service = TowerToHyperService::new(self.routes.clone().layer(Extension(peer)).layer(Extension(standing)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_buf_size(HEADERS_BYTES_MAX)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        // What a client does wrong concerns only that client.
        let _ = connection.await;
    }
}

/// The groups that a client had when it connected; without support of the kernel, its main group
/// alone. The user database is not asked: it may be on the network, and this thread serves all.
fn groups_of(stream: &UnixStream, gid: u32) -> Vec<u32> {
    let mut groups = mem::peer_groups(stream).unwrap_or_default();
    groups.push(gid);
    groups
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering;

    use nix::unistd::Gid;
    use tokio::io::AsyncReadExt;
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::connections::CONNECTIONS_OF_ONE_MAX;
    use crate::settings::Role;
    use crate::settings::User;

    /// Until something has come to pass, or much too long.
    async fn until(what: &str, come: impl Fn() -> bool) {
        let wait = async {
            while !come() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), wait).await.expect(what);
    }

    #[test]
    fn a_socket_without_a_folder_asks_for_the_folder() {
        let path = Path::new("/nonexistent/http.sock");
        let source = open_unix(path).map(|_| ()).unwrap_err();
        let said = ServeError::Listen { address: path.display().to_string(), source }.to_string();
        assert!(said.contains("; create the folder of the socket"), "{said}");
        let source = io::ErrorKind::AddrInUse.into();
        let said = ServeError::Listen { address: "127.0.0.1:8080".to_owned(), source }.to_string();
        assert!(said.contains("stop the program"), "{said}");
    }

    #[tokio::test]
    async fn a_body_without_a_login_is_refused_unread() {
        let settings = Settings {
            listen: Listen::Unix("/nonexistent/http.sock".into()),
            hosts: Vec::new(),
            tls: None,
            users: vec![User { name: "noc".to_owned(), role: Role::Operate, token: None, group: Some(1) }],
            control: "/nonexistent/control.sock".into(),
        };
        let log = EventLog::missing(|| control::Fault::new("log", "is not there", "start the instance"));
        let server = Arc::new(Server {
            routes: routes::routes(Arc::new(Access::new(settings, [7; 32], u32::MAX)), log, None),
            certificates: None,
            connections: Arc::default(),
        });
        for (path, wanted) in [("plan", "401"), ("reload", "401"), ("status", "405"), ("nothing", "404")] {
            let (mut client, stream) = UnixStream::pair().unwrap();
            let of_client = Arc::clone(&server);
            tokio::spawn(async move {
                let peer = Peer::Tcp { address: [192, 0, 2, 1].into(), certificate: None };
                of_client.talk(stream, peer, Arc::default()).await;
            });
            // The rest of the body does not come: the handler that waits for it answers 408.
            let head = format!("POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf");
            client.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            let answer = answer.to_ascii_lowercase();
            assert!(answer.starts_with(&format!("http/1.1 {wanted} ")), "{path}: {answer}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{path}: {answer}");
        }
    }

    #[tokio::test]
    async fn a_search_of_the_past_ends_when_its_client_leaves() {
        let flag = || Arc::new(AtomicBool::new(false));
        let (begun, ended) = (flag(), flag());
        let of_search = (Arc::clone(&begun), Arc::clone(&ended));
        // Searches for as long as the answer is wanted, or until this test has failed.
        let past = move |_: &crate::PastQuestion, goes_on: &dyn Fn() -> bool| {
            of_search.0.store(true, Ordering::Relaxed);
            for _ in 0..12_000 {
                if !goes_on() {
                    of_search.1.store(true, Ordering::Relaxed);
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let fault = control::Fault::new("find", "was ended", "ask again");
            Err(crate::NotAnswered::Log(fault))
        };
        let log = EventLog {
            past: Arc::new(past),
            ..EventLog::missing(|| control::Fault::new("log", "is not there", "start the instance"))
        };
        let own = Gid::effective().as_raw();
        let user = User { name: "law".to_owned(), role: Role::Audit, token: None, group: Some(own) };
        let settings = Settings {
            listen: Listen::Unix("/nonexistent/http.sock".into()),
            hosts: Vec::new(),
            tls: None,
            users: vec![user],
            control: "/nonexistent/control.sock".into(),
        };
        let access = Arc::new(Access::new(settings, [7; 32], Uid::effective().as_raw()));
        let server = Arc::new(Server {
            routes: routes::routes(access, log, None),
            certificates: None,
            connections: Arc::default(),
        });
        let (mut client, stream) = UnixStream::pair().unwrap();
        server.welcome_unix(stream);
        let question = b"GET /api/v1/find?address=203.0.113.7&at=now HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.write_all(question).await.unwrap();
        until("the search begins", || begun.load(Ordering::Relaxed)).await;
        assert!(!ended.load(Ordering::Relaxed), "its client is still there");
        drop(client);
        until("the search ends", || ended.load(Ordering::Relaxed)).await;
    }

    #[tokio::test]
    async fn one_local_user_cannot_hold_all_connections() {
        let server = Arc::new(Server { routes: Router::new(), certificates: None, connections: Arc::default() });
        let mut open = Vec::new();
        for _ in 0..CONNECTIONS_OF_ONE_MAX {
            let (client, stream) = UnixStream::pair().unwrap();
            Arc::clone(&server).welcome_unix(stream);
            open.push(client);
        }
        let (extra, stream) = UnixStream::pair().unwrap();
        Arc::clone(&server).welcome_unix(stream);
        let read = tokio::time::timeout(HEADERS_WITHIN / 2, open[0].read(&mut [0])).await;
        assert_eq!(read.expect("the oldest connection stays open").unwrap(), 0);
        assert_eq!(server.connections.count(), CONNECTIONS_OF_ONE_MAX);
        drop((open, extra));
        let empty = async {
            while server.connections.count() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(HEADERS_WITHIN, empty).await.expect("the places of closed connections come back");
    }
}
