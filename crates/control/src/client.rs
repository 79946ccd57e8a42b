//! The client end of the control socket, with blocking I/O.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use crate::fault::Fault;
use crate::hello::Actor;
use crate::hello::Hello;
use crate::hello::PROTOCOL_VERSION;
use crate::line::LineError;
use crate::line::LineReader;
use crate::line::REPLY_BYTES_MAX;
use crate::line::write_line;
use crate::reply::Object;
use crate::reply::Reply;
use crate::request::List;
use crate::request::Request;
use crate::server::SILENCE_MAX;

/// After this time without a request, the daemon may have closed the connection: connect again.
const RECONNECTS_AFTER: Duration = SILENCE_MAX.saturating_sub(Duration::from_secs(1));

/// Why a request got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon listens, or this user may not connect.
    #[error("{}: cannot connect ({source}); start `natrix run`, or run this as a member of the group natrix", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The other side speaks another version, or is not Natrix.
    #[error(
        "{}: protocol mismatch (daemon {daemon}, this command version {PROTOCOL_VERSION}); use the natrix command of the daemon's release",
        path.display()
    )]
    Version {
        /// The socket.
        path: PathBuf,
        /// The hello of the daemon.
        daemon: String,
    },
    /// The daemon went away or stopped answering.
    #[error("{}: lost the daemon ({reason}); look at the daemon's log and try again", path.display())]
    Lost {
        /// The socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(Fault),
}

/// Why a daemon that does not answer is lost.
const NO_ANSWER: &str = "no answer in time";

impl ClientError {
    /// True if no process listens: there is no socket, or only its file.
    pub fn is_not_running(&self) -> bool {
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
        matches!(self, ClientError::Connect { source, .. } if kinds.contains(&source.kind()))
    }

    /// True if the daemon is there, or was, and does not answer in time.
    pub fn is_timeout(&self) -> bool {
        match self {
            ClientError::Connect { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            ClientError::Lost { reason, .. } => reason == NO_ANSWER,
            ClientError::Version { .. } | ClientError::Refused(_) => false,
        }
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    reader: LineReader<UnixStream>,
    writer: UnixStream,
    daemon_version: String,
    /// The release of this program.
    version: String,
    actor: Option<Actor>,
    timeout: Duration,
    /// When the last answer was complete; None while one is awaited.
    idle_since: Option<Instant>,
}

impl Client {
    /// Connects to the socket at `path` and exchanges hellos. Connecting, and each read and write,
    /// fails after `timeout`. `version` is the release of this program.
    pub fn connect(path: &Path, version: &str, timeout: Duration) -> Result<Client, ClientError> {
        Client::connect_for(path, version, timeout, None)
    }

    /// The same on behalf of `actor`, for the audit log of the daemon.
    pub fn connect_for(
        path: &Path,
        version: &str,
        timeout: Duration,
        actor: Option<Actor>,
    ) -> Result<Client, ClientError> {
        let open = || -> io::Result<(UnixStream, UnixStream)> {
            let writer = connect_in_time(path, timeout)?;
            writer.set_read_timeout(Some(timeout))?;
            writer.set_write_timeout(Some(timeout))?;
            Ok((writer.try_clone()?, writer))
        };
        let (reader, writer) = open().map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
        let reader = LineReader::new(reader, REPLY_BYTES_MAX);
        let mut client = Client {
            path: path.to_owned(),
            reader,
            writer,
            daemon_version: String::new(),
            version: version.to_owned(),
            actor: actor.clone(),
            timeout,
            idle_since: Some(Instant::now()),
        };
        // If the other side sent a reason before it closed, report that reason.
        let sent = write_line(&mut client.writer, &Hello { actor, ..Hello::new(version) });
        match client.reader.next_value::<Hello>() {
            Ok(Some(hello)) if hello.speaks_our_version() => {
                sent.map_err(|error| client.unsent(error))?;
                client.daemon_version = hello.version;
                Ok(client)
            }
            Ok(Some(hello)) => {
                let daemon = format!("version {} of natrix {}", hello.natrix_control, hello.version);
                Err(ClientError::Version { path: client.path, daemon })
            }
            Err(LineError::Unreadable(_)) => {
                Err(ClientError::Version { path: client.path, daemon: "sent no hello of natrix".to_owned() })
            }
            Ok(None) => Err(ClientError::Lost { path: client.path, reason: "it closed the connection".to_owned() }),
            Err(error) => Err(client.lost(&error)),
        }
    }

    /// Release of the daemon.
    pub fn daemon_version(&self) -> &str {
        &self.daemon_version
    }

    /// Limits the time of a read from now on; None waits without limit (for a trace).
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> Result<(), ClientError> {
        self.reader.stream().set_read_timeout(timeout).map_err(|error| self.lost(&LineError::Io(error)))
    }

    /// A handle on the stream, to send [`Request::TraceStop`] from another thread or to shut the
    /// connection down.
    pub fn stream(&self) -> Result<UnixStream, ClientError> {
        self.writer.try_clone().map_err(|error| self.lost(&LineError::Io(error)))
    }

    /// Sends a request without reading its answer. Connects again first if the last answer is so
    /// long ago that the daemon may have closed the connection, for example while a pager shows a
    /// long list.
    pub fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        if self.idle_since.is_some_and(|since| since.elapsed() >= RECONNECTS_AFTER) {
            *self = Client::connect_for(&self.path, &self.version, self.timeout, self.actor.clone())?;
        }
        self.idle_since = None;
        let sent = write_line(&mut self.writer, request);
        sent.map_err(|error| self.unsent(error))
    }

    /// The next reply, of any kind.
    pub fn receive(&mut self) -> Result<Reply, ClientError> {
        match self.reader.next_value() {
            Ok(Some(reply)) => {
                if matches!(reply, Reply::End(_) | Reply::Error(_)) {
                    self.idle_since = Some(Instant::now());
                }
                Ok(reply)
            }
            Ok(None) => {
                Err(ClientError::Lost { path: self.path.clone(), reason: "it closed the connection".to_owned() })
            }
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// The next object of the answer to the last request, or the cursor at the end of the answer.
    pub fn next_object<T: Object>(&mut self) -> Result<Next<T>, ClientError> {
        match self.receive()? {
            Reply::End(end) => Ok(Next::End(end.cursor)),
            Reply::Error(fault) => Err(ClientError::Refused(fault)),
            reply => match T::from_reply(reply) {
                Ok(object) => Ok(Next::Object(object)),
                Err(_) => Err(self.out_of_step("it sent an object of another kind")),
            },
        }
    }

    /// One page: the objects that answer `request`, and the cursor.
    pub fn request<T: Object>(&mut self, request: &Request) -> Result<(Vec<T>, Option<String>), ClientError> {
        self.send(request)?;
        let mut objects = Vec::new();
        loop {
            match self.next_object()? {
                Next::Object(object) => objects.push(object),
                Next::End(cursor) => return Ok((objects, cursor)),
            }
        }
    }

    /// The one object that answers `request`.
    pub fn request_one<T: Object>(&mut self, request: &Request) -> Result<T, ClientError> {
        let (objects, _) = self.request(request)?;
        let mut objects = objects.into_iter();
        match (objects.next(), objects.next()) {
            (Some(object), None) => Ok(object),
            _ => Err(self.out_of_step("it did not send exactly one object")),
        }
    }

    /// Walks through all pages of a list, object by object; `page` makes the request for one page.
    pub fn pages<T: Object>(&mut self, list: List, page: fn(List) -> Request) -> Pages<'_, T> {
        Pages { client: self, list, page, buffered: Vec::new().into_iter(), done: false }
    }

    /// Why a request could not be sent. A daemon that refuses a client sends the reason before it
    /// closes.
    fn unsent(&mut self, error: io::Error) -> ClientError {
        match self.reader.next_value() {
            Ok(Some(Reply::Error(fault))) => ClientError::Refused(fault),
            _ => self.lost(&LineError::Io(error)),
        }
    }

    fn out_of_step(&self, reason: &str) -> ClientError {
        ClientError::Lost { path: self.path.clone(), reason: reason.to_owned() }
    }

    fn lost(&self, error: &LineError) -> ClientError {
        let reason = match error {
            LineError::Io(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                NO_ANSWER.to_owned()
            }
            error => error.to_string(),
        };
        ClientError::Lost { path: self.path.clone(), reason }
    }
}

/// Connects within `timeout`. `connect` blocks without limit once the backlog of a daemon that does
/// not accept is full, and the socket of the standard library has no timeout for it. So a thread
/// waits instead.
fn connect_in_time(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    let connect = move || {
        // If the receiver has timed out, this closes the stream again.
        let _ = sender.send(UnixStream::connect(path));
    };
    thread::Builder::new().name("connect".to_owned()).spawn(connect)?;
    receiver.recv_timeout(timeout).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A result of [`Client::next_object`].
#[derive(Clone, Debug, PartialEq)]
pub enum Next<T> {
    /// One object.
    Object(T),
    /// The end, with the cursor of the next page.
    End(Option<String>),
}

/// All objects of a list, fetched page by page. Ends after the first error.
#[derive(Debug)]
pub struct Pages<'a, T> {
    client: &'a mut Client,
    list: List,
    page: fn(List) -> Request,
    buffered: std::vec::IntoIter<T>,
    done: bool,
}

impl<T: Object> Iterator for Pages<'_, T> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Result<T, ClientError>> {
        loop {
            if let Some(object) = self.buffered.next() {
                return Some(Ok(object));
            }
            if self.done {
                return None;
            }
            match self.client.request(&(self.page)(self.list.clone())) {
                Ok((objects, cursor)) => {
                    self.done = cursor.is_none();
                    self.list.cursor = cursor;
                    self.buffered = objects.into_iter();
                }
                Err(error) => {
                    self.done = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::reply::End;
    use crate::server::Connection;

    #[test]
    fn a_request_after_a_long_silence_has_a_new_connection() {
        let folder = std::env::temp_dir().join(format!("natrix-silence-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("socket")).unwrap();
        // Answers one request of each connection, and closes it.
        let server = thread::spawn(move || {
            for stream in listener.incoming().take(2).map(Result::unwrap) {
                let mut connection = Connection::new(stream.try_clone().unwrap(), stream, "0.1.0").unwrap();
                assert_eq!(connection.next_request().unwrap(), Some(Request::Status));
                connection.send(&Reply::End(End::default())).unwrap();
            }
        });
        let mut client = Client::connect(&folder.join("socket"), "0.1.0", Duration::from_secs(60)).unwrap();
        for _ in 0..2 {
            client.send(&Request::Status).unwrap();
            assert!(matches!(client.receive(), Ok(Reply::End(_))));
            client.idle_since = Instant::now().checked_sub(RECONNECTS_AFTER);
        }
        server.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
