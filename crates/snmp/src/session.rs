//! A session with the master agent: opens it, registers the subtree, answers, reports.

use core::net::SocketAddr;
use std::io;
use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use std::time::Instant;

use crate::agent::Agent;
use crate::bytes::Malformed;
use crate::bytes::Order;
use crate::clock::MasterClock;
use crate::oid::Oid;
use crate::pdu::Body;
use crate::pdu::ErrorStatus;
use crate::pdu::HEADER_BYTES;
use crate::pdu::Header;
use crate::pdu::Pdu;
use crate::settings::Master;
use crate::tables::subtree;

/// Seconds within which this agent answers; the first picture of large tables takes some.
const ANSWERS_WITHIN_S: u8 = 20;
/// Time for the master to take or send the rest of a PDU, and to answer.
const MASTER_WITHIN: Duration = Duration::from_secs(10);
/// How often to look at thresholds.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// A master that is silent for so long is asked whether it is there.
const PINGS_AFTER: Duration = Duration::from_secs(15);
const PRIORITY: u8 = 127;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the master agent sent something else than AgentX ({0})")]
    Malformed(#[from] Malformed),
    #[error("the master agent refused {0} (error {code})", code = .1.code())]
    Refused(&'static str, ErrorStatus),
    #[error("the master agent closed the session (reason {0})")]
    Closed(u8),
    #[error("the master agent does not answer")]
    Silent,
}

/// The connection, over either kind of socket.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(master: &Master) -> io::Result<Stream> {
        let stream = match master {
            Master::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
            Master::Tcp(address) => Stream::Tcp(connect_tcp(*address)?),
        };
        match &stream {
            Stream::Unix(stream) => stream.set_write_timeout(Some(MASTER_WITHIN))?,
            Stream::Tcp(stream) => stream.set_write_timeout(Some(MASTER_WITHIN))?,
        }
        Ok(stream)
    }

    fn read_within(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Stream::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(to),
            Stream::Tcp(stream) => stream.read(to),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }
}

fn connect_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, MASTER_WITHIN)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An open session.
pub(crate) struct Session {
    stream: Stream,
    id: u32,
    packet: u32,
    clock: MasterClock,
    /// When the master was last heard of, and a ping that it has not answered.
    heard: Instant,
    pinged: Option<Instant>,
}

impl Session {
    /// Opens a session and registers the subtree.
    pub(crate) fn open(master: &Master, description: &str) -> Result<Session, Ended> {
        let now = Instant::now();
        let clock = MasterClock::new(now, 0);
        let stream = Stream::connect(master)?;
        let mut session = Session { stream, id: 0, packet: 0, clock, heard: now, pinged: None };
        let description = description.as_bytes().to_vec();
        session.ask("a session", Body::Open { timeout: ANSWERS_WITHIN_S, id: Oid::default(), description })?;
        let register = Body::Register { timeout: ANSWERS_WITHIN_S, priority: PRIORITY, subtree: subtree() };
        session.ask("the registration of NATV2-MIB", register)?;
        Ok(session)
    }

    /// Answers and reports until the session ends. `is_over` says whether the process ends.
    pub(crate) fn serve(&mut self, agent: &mut Agent, is_over: impl Fn() -> bool) -> Result<(), Ended> {
        let mut looked = Instant::now();
        loop {
            if is_over() {
                // Shutting down; there is nothing to do if the master is gone.
                let _ = self.send(Body::Close { reason: 5 });
                return Ok(());
            }
            if let Some(pdu) = self.receive(LOOKS_EVERY)? {
                self.take(&pdu, agent)?;
            }
            if looked.elapsed() >= LOOKS_EVERY {
                looked = Instant::now();
                for objects in agent.notifications() {
                    self.send(Body::Notify(objects))?;
                }
            }
            match self.pinged {
                Some(pinged) if pinged.elapsed() >= MASTER_WITHIN => return Err(Ended::Silent),
                None if self.heard.elapsed() >= PINGS_AFTER => {
                    self.send(Body::Ping)?;
                    self.pinged = Some(Instant::now());
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, pdu: &Pdu, agent: &mut Agent) -> Result<(), Ended> {
        match &pdu.body {
            Body::Close { reason } => return Err(Ended::Closed(*reason)),
            // An answer to a ping or a notification.
            Body::Response { uptime, error, .. } => {
                if *error == ErrorStatus::NotOpen {
                    return Err(Ended::Refused("a request", *error));
                }
                self.clock = MasterClock::new(Instant::now(), *uptime);
            }
            _ => {
                if let Some(answer) = agent.answer(pdu, self.clock) {
                    self.stream.write_all(&answer.to_bytes())?;
                }
            }
        }
        Ok(())
    }

    /// Sends a PDU of this agent.
    fn send(&mut self, body: Body) -> Result<u32, Ended> {
        self.packet = self.packet.wrapping_add(1);
        let (session, packet) = (self.id, self.packet);
        let pdu = Pdu { session, transaction: 0, packet, order: Order::Big, context: None, body };
        self.stream.write_all(&pdu.to_bytes())?;
        Ok(packet)
    }

    /// Sends a PDU and waits for its answer. Only while nothing is registered: the master sends
    /// nothing else then.
    fn ask(&mut self, what: &'static str, body: Body) -> Result<(), Ended> {
        let packet = self.send(body)?;
        let begun = Instant::now();
        while begun.elapsed() < MASTER_WITHIN {
            let Some(pdu) = self.receive(MASTER_WITHIN)? else { continue };
            let Body::Response { uptime, error, .. } = pdu.body else { continue };
            if pdu.packet != packet {
                continue;
            }
            if error != ErrorStatus::NoError {
                return Err(Ended::Refused(what, error));
            }
            (self.id, self.clock) = (pdu.session, MasterClock::new(Instant::now(), uptime));
            return Ok(());
        }
        Err(Ended::Silent)
    }

    /// The next PDU; None if none begins in time, or if its payload cannot be read, which is
    /// reported to the master.
    fn receive(&mut self, within: Duration) -> Result<Option<Pdu>, Ended> {
        let mut head = [0; HEADER_BYTES];
        if !self.fill(&mut head, within)? {
            return Ok(None);
        }
        let header = Header::read(&head)?;
        let mut payload = vec![0; header.payload_bytes];
        if !payload.is_empty() && !self.fill(&mut payload, MASTER_WITHIN)? {
            return Err(Ended::Silent);
        }
        (self.heard, self.pinged) = (Instant::now(), None);
        match Pdu::read(&header, &payload) {
            Ok(pdu) => Ok(Some(pdu)),
            Err(error) if header.is_response() => Err(error.into()),
            Err(_) => {
                self.stream.write_all(&header.parse_error(0).to_bytes())?;
                Ok(None)
            }
        }
    }

    /// Fills `to`; false if not a byte comes within `within`.
    fn fill(&mut self, to: &mut [u8], within: Duration) -> Result<bool, Ended> {
        let mut filled = 0;
        let begun = Instant::now();
        self.stream.read_within(within)?;
        while filled < to.len() {
            match self.stream.read(&mut to[filled..]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    if filled == 0 {
                        self.stream.read_within(MASTER_WITHIN)?;
                    }
                    filled += count;
                    // A master that sends a byte now and then is as good as silent.
                    if begun.elapsed() > within + MASTER_WITHIN {
                        return Err(Ended::Silent);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return if filled == 0 { Ok(false) } else { Err(Ended::Silent) };
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
