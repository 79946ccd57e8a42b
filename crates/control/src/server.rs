//! The server end of one connection.

use std::io;
use std::io::Read;
use std::io::Write;
use std::time::Duration;

use crate::fault::Fault;
use crate::hello::Actor;
use crate::hello::Hello;
use crate::hello::PROTOCOL_VERSION;
use crate::line::LineError;
use crate::line::LineReader;
use crate::line::REQUEST_BYTES_MAX;
use crate::line::write_line;
use crate::reply::End;
use crate::reply::Reply;
use crate::request::Request;

/// The server closes the connection of a client without a whole request for this long, so that
/// neither silent clients nor those that send single bytes can take all places.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);

/// One client. `R` and `W` are the two halves of its stream (for a Unix stream: itself and its
/// `try_clone`).
#[derive(Debug)]
pub struct Connection<R, W> {
    reader: LineReader<R>,
    writer: W,
    /// Lines of the current answer: a long list is sent in large pieces and not line by line.
    unsent: Vec<u8>,
    greeted: bool,
    /// On whose behalf the client says it asks.
    actor: Option<Actor>,
}

/// Bytes of an answer to send together.
const UNSENT_BYTES: usize = 64 * 1024;

impl<R: Read, W: Write> Connection<R, W> {
    /// Takes the stream and sends the hello of the server; `version` is the release of the daemon.
    pub fn new(reader: R, mut writer: W, version: &str) -> io::Result<Connection<R, W>> {
        write_line(&mut writer, &Hello::new(version))?;
        writer.flush()?;
        Ok(Connection {
            reader: LineReader::new(reader, REQUEST_BYTES_MAX),
            writer,
            unsent: Vec::new(),
            greeted: false,
            actor: None,
        })
    }

    /// Makes [`Connection::next_request`] return `TimedOut` after `patience`, even while the bytes
    /// of a request arrive one by one.
    pub fn return_within(&mut self, patience: Duration) {
        self.reader.return_within(patience);
    }

    /// The next request; None if the client has gone. Reads and checks the hello of the client
    /// first.
    ///
    /// # Errors
    /// [`LineError::Unreadable`] has been answered, and the next request can be read. `WouldBlock`
    /// and `TimedOut` lose nothing either. After any other error, close the connection.
    pub fn next_request(&mut self) -> Result<Option<Request>, LineError> {
        if !self.greeted {
            let hello = self.next_or_refuse::<Hello>("hello", "send the hello line first");
            // A client that begins with something else will not send anything useful later.
            let hello = hello.map_err(|error| match error {
                LineError::Unreadable(_) => LineError::Io(io::Error::new(io::ErrorKind::InvalidData, error)),
                error => error,
            })?;
            let Some(hello) = hello else { return Ok(None) };
            if !hello.speaks_our_version() {
                let fault = Fault::new(
                    "protocol",
                    format!("the daemon speaks version {PROTOCOL_VERSION}, the client another one"),
                    "use the natrix command of the daemon's release",
                );
                let fault = fault.seen(format!("version {} of natrix {}", hello.natrix_control, hello.version));
                self.send(&Reply::Error(fault.clone()))?;
                return Err(LineError::Io(io::Error::new(io::ErrorKind::Unsupported, fault)));
            }
            self.greeted = true;
            self.actor = hello.actor;
        }
        self.next_or_refuse("request", "see docs/control-protocol.md for the requests there are")
    }

    fn next_or_refuse<T: serde::de::DeserializeOwned>(
        &mut self,
        object: &str,
        remedy: &str,
    ) -> Result<Option<T>, LineError> {
        let outcome = self.reader.next_value();
        if let Err(error @ (LineError::Unreadable(_) | LineError::TooLong { .. })) = &outcome {
            let fault = Fault::new(object, error.to_string(), remedy);
            self.send(&Reply::Error(fault))?;
        }
        outcome
    }

    /// Sends one reply at once.
    pub fn send(&mut self, reply: &Reply) -> io::Result<()> {
        write_line(&mut self.unsent, reply)?;
        self.write_out()
    }

    /// Sends a whole answer: the objects, then the end with its cursor.
    pub fn send_all<T: Into<Reply>>(
        &mut self,
        objects: impl IntoIterator<Item = T>,
        cursor: Option<String>,
    ) -> io::Result<()> {
        for object in objects {
            write_line(&mut self.unsent, &object.into())?;
            if self.unsent.len() >= UNSENT_BYTES {
                self.write_out()?;
            }
        }
        self.send(&Reply::End(End { cursor }))
    }

    fn write_out(&mut self) -> io::Result<()> {
        let outcome = self.writer.write_all(&self.unsent);
        self.unsent.clear();
        outcome?;
        self.writer.flush()
    }

    /// On whose behalf the client says it asks; None before the first request.
    pub fn actor(&self) -> Option<&Actor> {
        self.actor.as_ref()
    }

    /// The stream requests are read from.
    pub fn stream(&self) -> &R {
        self.reader.stream()
    }
}
