//! Application-level gateways (RFC 2663 §2.9): protocols that carry addresses in their payload.
//!
//! Pure functions on bytes. The crate has no allocator (`no_std` without `alloc`), no clock and no
//! state of its own, so each parser can be fuzzed alone.
//!
//! ```text
//!  stream ─► Stream ─► Alg::frame ─┐ one message
//!                                  ├─► Alg::read ─► Findings: expect, replace
//!  datagram ───────────────────────┘                   │ the engine reserves external ports
//!                                                      ▼
//!  output with other sequence numbers ◄─ Stream ◄─ Findings::resolve: Replacements
//! ```
//!
//! What protects subscribers from forged payload (NAT slipstreaming and its kin):
//! - A stream is parsed from its first byte or never. A gap, the first line of another protocol, a
//!   line or message that is too long, or anything ambiguous ends parsing permanently.
//! - The address in the payload must be the sender's own, and its port at least [`PORT_MIN`].
//! - The crate reports what a message asks for. The engine limits the remote side to the peer of
//!   the control session.
//!
//! To add one: a file with an [`Alg`], and a line in [`ALGS`]. Its table `[alg.NAME]`, its origin,
//! counters and lists follow from these.

#![cfg_attr(not(test), no_std)]

// The harness of the tests outside uses the crate by its name.
#[cfg(test)]
extern crate self as alg;

mod findings;
mod ftp;
mod pptp;
mod rtsp;
mod sip;
mod stream;
mod text;
mod tftp;
mod work;

pub use findings::CallStep;
pub use findings::EDITS_MAX;
pub use findings::Findings;
pub use findings::Replacement;
pub use findings::Replacements;
pub use findings::TEXT_MAX;
pub use findings::WANTS_MAX;
pub use findings::Want;
pub use findings::WantKind;
pub use stream::CORRECTIONS_MAX;
pub use stream::Held;
pub use stream::Passed;
pub use stream::Segment;
pub use stream::Step;
pub use stream::Stream;

/// A longer line ends parsing.
pub const LINE_MAX: usize = 512;
/// A longer message ends parsing.
pub const MESSAGE_MAX: usize = 4096;
/// Requests of one session that a gateway waits for an answer to.
pub const AWAITED_MAX: usize = 8;
/// A payload cannot ask for a lower inside port.
pub const PORT_MIN: u16 = 1024;

/// All gateways, in the order of their numbers, which stay the same: a new one comes last.
pub static ALGS: [&dyn Alg; 5] = [&ftp::Ftp, &sip::Sip, &rtsp::Rtsp, &tftp::Tftp, &pptp::Pptp];

/// The number of a gateway: its place in [`ALGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlgId(pub u8);

impl AlgId {
    /// PPTP, whose calls the engine translates packet by packet.
    pub const PPTP: AlgId = AlgId(4);

    /// Its parser.
    #[must_use]
    pub fn alg(self) -> Option<&'static dyn Alg> {
        ALGS.get(usize::from(self.0)).copied()
    }

    /// The gateway with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<AlgId> {
        let place = ALGS.iter().position(|alg| alg.name() == name)?;
        u8::try_from(place).ok().map(AlgId)
    }

    /// Its name in the configuration and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.alg().map_or("", Alg::name)
    }
}

/// A transport that gateways read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// Each datagram is a message.
    #[default]
    Udp,
    /// A [`Stream`] in each direction.
    Tcp,
}

/// An IPv4 address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// In host order.
    pub address: u32,
    /// In host order.
    pub port: u16,
}

/// The external port of an expectation of the session, and its port inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Known {
    /// What the outside sees.
    pub external: u16,
    /// What the inside sees.
    pub inside: u16,
    /// PPTP: the identifier that the peer expects. SIP: of the request that announced it last
    /// ([`Findings::call`]), until that has ended.
    pub peer: Option<u16>,
}

/// What surrounds a message.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Of the session.
    pub transport: Transport,
    /// The sender is inside.
    pub from_inside: bool,
    /// The sender opened the session.
    pub from_client: bool,
    /// The inside is a server that others are led to, also if it has opened the session.
    pub serves: bool,
    /// Of the session.
    pub internal: Endpoint,
    /// Of the session.
    pub external: Endpoint,
    /// As the inside sees it.
    pub remote: Endpoint,
    /// Of the session's expectations.
    pub known: &'a [Known],
    /// Commands that are left alone, as bits of the gateway's own ([`Alg::commands`]).
    pub disabled: u8,
    /// In seconds from any beginning.
    pub time_s: u32,
}

impl Context<'_> {
    /// The external port of an inside port of its expectations, the latest if there were several.
    fn external_port(&self, inside: u16) -> Option<u16> {
        self.known.iter().rev().find(|known| known.inside == inside).map(|known| known.external)
    }

    /// The inside port of an external port of this session or of its expectations.
    fn inside_port(&self, external: u16) -> Option<u16> {
        if external == self.external.port {
            return Some(self.internal.port);
        }
        self.known.iter().find(|known| known.external == external).map(|known| known.inside)
    }
}

/// What a gateway remembers of a session, in its own bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Bits of its own.
    pub flags: u32,
    /// A number of its own.
    pub number: u32,
    /// What it waits for an answer to, the latest first; 0 for nothing.
    pub awaited: [u32; AWAITED_MAX],
    /// Inside ports that the outside has named, until this time in seconds.
    pub named: Ports,
    /// See `named`.
    pub named_until: u32,
}

/// A set of ports that forgets none, but may have others as well: an even port and the odd one
/// above it share one of 128 places with further pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports([u32; 4]);

impl Ports {
    /// Every port.
    pub(crate) const ALL: Ports = Ports([u32::MAX; 4]);

    fn place(port: u16) -> (usize, u32) {
        let pair = port / 2;
        (usize::from(pair / 32 % 4), 1 << (pair % 32))
    }

    pub(crate) fn add(&mut self, port: u16) {
        let (word, bit) = Ports::place(port);
        self.0[word] |= bit;
    }

    pub(crate) fn add_all(&mut self, others: &Ports) {
        self.0.iter_mut().zip(others.0).for_each(|(word, other)| *word |= other);
    }

    pub(crate) fn has(&self, port: u16) -> bool {
        let (word, bit) = Ports::place(port);
        self.0[word] & bit != 0
    }
}

impl Memory {
    /// Waits for an answer to this. Of more than [`AWAITED_MAX`], the oldest is forgotten.
    fn await_answer(&mut self, to: u32) {
        if !self.awaited.contains(&to) {
            self.awaited.copy_within(..AWAITED_MAX - 1, 1);
            self.awaited[0] = to;
        }
    }

    /// True once, if an answer to this is awaited.
    fn take_answer(&mut self, to: u32) -> bool {
        let found = self.awaited.iter_mut().find(|awaited| **awaited == to && to != 0);
        found.is_some_and(|awaited| core::mem::take(awaited) != 0)
    }
}

/// The start of a stream's unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Ask again when there is more: the end of the message is not among these bytes.
    More,
    /// Ask again when this many bytes are there, without having seen more than the last time.
    Needs(usize),
    /// A message of this many bytes.
    Message(usize),
    /// The same, with so many further bytes that belong to it and pass unread, as they come.
    Part(usize, usize),
    /// Forward this many bytes without reading them. They may not all have arrived yet.
    Skip(usize),
    /// The rest of the session passes unread.
    Over,
}

/// What reading a message led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The next message will be read.
    Done,
    /// The rest of the session passes unread, in both directions.
    Over,
}

/// The parser of one protocol.
pub trait Alg: Sync {
    /// Its name in the configuration and in JSON.
    fn name(&self) -> &'static str;

    /// What it reads, with the RFC: a sentence for the manual of the configuration.
    fn about(&self) -> &'static str;

    /// Ports of its servers, unless the configuration says otherwise.
    fn ports(&self) -> &'static [u16];

    /// What its sessions run over.
    fn transports(&self) -> &'static [Transport];

    /// Commands that can be disabled, lowest bit first.
    fn commands(&self) -> &'static [&'static str] {
        &[]
    }

    /// Finds the first message of a stream. `seen` bytes were there when it was last asked about
    /// the same message; work that depends on them again would not be linear.
    fn frame(&self, memory: &mut Memory, context: &Context<'_>, bytes: &[u8], seen: usize) -> Frame;

    /// Reads one whole message.
    fn read(&self, memory: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading;

    /// A message passes without being read, or a part of one: all of it that came, or `None` if
    /// more may come.
    fn note_unread(&self, _memory: &mut Memory, _context: &Context<'_>, _message: Option<&[u8]>) {}

    /// Over TCP: whether a message that begins with these bytes is of this protocol for sure. Then
    /// its receiver does nothing either before the message is whole, so all that came of it may be
    /// acknowledged: its sender has no reason to wait for anything else.
    fn is_surely_its_own(&self, _memory: &Memory, _context: &Context<'_>, _bytes: &[u8]) -> bool {
        false
    }

    /// Over TCP: whether what comes ahead of a lost segment is kept, as much as a message may be
    /// long. A receiver, to which nothing of an incomplete message is sent on, cannot ask for it,
    /// and many senders repeat only their first unacknowledged segment. Messages that may be longer
    /// than one segment need this; of others, the sender repeats what was dropped.
    fn keeps_ahead(&self) -> bool {
        false
    }

    /// Over UDP: whether a datagram is a request that may begin a session with a server inside.
    /// `None` if nothing is read of what such a server is asked.
    fn is_first_request(&self) -> Option<fn(&[u8]) -> bool> {
        None
    }

    /// True if the media that a session has announced end with it.
    fn ends_media(&self) -> bool {
        false
    }

    /// True while the session may be idle for longer than usual, because it has a transfer.
    fn is_busy(&self, _memory: &Memory) -> bool {
        false
    }
}
