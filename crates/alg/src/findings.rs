//! What a message asks for, and the text to put into it.

use crate::Endpoint;
use crate::Ports;
use crate::Transport;
use crate::work;

/// Expectations one message can ask for. A pair of ports counts as one.
pub const WANTS_MAX: usize = 8;
/// Replacements in one message.
pub const EDITS_MAX: usize = 32;
/// Longest replacement: `255,255,255,255,255,255`.
pub const TEXT_MAX: usize = 24;

/// What a peer will send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WantKind {
    /// One connection or flow of data.
    #[default]
    Data,
    /// An even port and the odd one above it (RTP and RTCP).
    Pair,
    /// Further control sessions of the same gateway.
    Control,
    /// Tunnelled packets with a call identifier in place of a port (RFC 2637 §4.1).
    Call,
}

/// An inside port that the peer will send to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Want {
    /// The inside port.
    pub port: u16,
    /// What the peer will use.
    pub transport: Transport,
    /// What the peer will send.
    pub kind: WantKind,
    /// In seconds, if the message says so. 0 ends it.
    pub lifetime: Option<u32>,
    /// The message has no room for an address, so it must be that of the session.
    pub needs_own_address: bool,
    /// Of a call that both ends have accepted: the identifier that the peer expects.
    pub peer: Option<u16>,
    /// Only if the session has announced it before and its peer may still use it: perhaps it is the
    /// outside that has named it now.
    pub renews: bool,
    /// The protocol has one such port at a time, so the session's oldest unused one gives way if
    /// there are too many.
    pub replaces: bool,
}

/// What the text is made of. `Endpoint` numbers are places in the wants; none is the session's own
/// external endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Address(Option<u8>),
    Port(Option<u8>, u16),
    AddressPort(Option<u8>),
    /// The same two, but the session's own address if the want was refused.
    AddressElseOwn(u8),
    AddressPortElseOwn(u8),
    /// `h1,h2,h3,h4,p1,p2` (RFC 959 §4.1.2).
    Commas(Option<u8>),
    /// `port-port`, or `port` if only one was had.
    Range(Option<u8>),
    LiteralAddress(u32),
    LiteralPort(u16),
    LiteralAddressPort(u32, u16),
    LiteralRange(u16),
    /// A port as two bytes.
    Number(Option<u8>),
    LiteralNumber(u16),
    /// The length of the body, after its changes.
    BodyLength(u16),
}

/// What a message says about a call that the inside asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStep {
    /// The inside asks, and announces what the message wants.
    Asks,
    /// The other side has yet to answer (RFC 3261 §13.2.1).
    Rings,
    /// It was answered or refused (RFC 3261 §13.2.2), or the inside has given up (§9.1).
    Ends,
}

#[derive(Clone, Copy, Debug)]
struct Edit {
    at: u16,
    length: u16,
    put: Put,
}

/// The result of reading a message.
#[derive(Clone, Debug)]
pub struct Findings {
    wants: [Want; WANTS_MAX],
    wants_len: usize,
    edits: [Edit; EDITS_MAX],
    edits_len: usize,
    /// Offset of the body. Its edits are made only if all that they refer to is granted.
    body: u16,
    overflowed: bool,
    ends_registrations: bool,
    via: Option<u16>,
    call: Option<(CallStep, u16)>,
    renews: bool,
    renews_at: (Ports, u16),
    registered: [(u16, u32); WANTS_MAX],
    registered_len: usize,
    /// A bit for each want of a pair that got one port.
    singles: u8,
}

impl Default for Findings {
    fn default() -> Findings {
        let nothing = Edit { at: 0, length: 0, put: Put::LiteralPort(0) };
        Findings {
            wants: [Want::default(); WANTS_MAX],
            wants_len: 0,
            edits: [nothing; EDITS_MAX],
            edits_len: 0,
            body: u16::MAX,
            overflowed: false,
            ends_registrations: false,
            via: None,
            call: None,
            renews: false,
            renews_at: (Ports::default(), 0),
            registered: [(0, 0); WANTS_MAX],
            registered_len: 0,
            singles: 0,
        }
    }
}

impl Findings {
    /// What the message asks for. Empty if it asks for too much.
    #[must_use]
    pub fn wants(&self) -> &[Want] {
        if self.overflowed { &[] } else { &self.wants[..self.wants_len] }
    }

    /// True if the message asks for too much, and so for nothing.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// True if nothing changes and nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.overflowed || (self.wants_len == 0 && self.edits_len == 0)
    }

    /// True if the message ends all registrations of its sender (RFC 3261 §10.2.2).
    #[must_use]
    pub fn ends_registrations(&self) -> bool {
        self.ends_registrations && !self.overflowed
    }

    /// The port where the sender says that it listens (RFC 3261 §18.1.1).
    #[must_use]
    pub fn via(&self) -> Option<u16> {
        self.via
    }

    /// What it says about a call, and a digest that the messages of one request have in common.
    #[must_use]
    pub fn call(&self) -> Option<(CallStep, u16)> {
        self.call
    }

    /// Inside ports that the other side has registered, and for how many seconds (RFC 3261 §10.3).
    #[must_use]
    pub fn registered(&self) -> &[(u16, u32)] {
        if self.overflowed { &[] } else { &self.registered[..self.registered_len] }
    }

    /// More than [`WANTS_MAX`] are left as they are.
    pub(crate) fn register(&mut self, port: u16, seconds: u32) {
        if let Some(free) = self.registered.get_mut(self.registered_len) {
            *free = (port, seconds);
            self.registered_len += 1;
        }
    }

    /// The place of what the message wants for control sessions at this inside port.
    pub(crate) fn control_want(&self, port: u16) -> Option<u8> {
        let is_it = |want: &Want| want.port == port && want.kind == WantKind::Control;
        self.wants[..self.wants_len].iter().position(is_it).map(|place| place as u8)
    }

    pub(crate) fn set_via(&mut self, port: u16) {
        self.via = self.via.or(Some(port));
    }

    pub(crate) fn set_call(&mut self, step: CallStep, request: u16) {
        self.call = Some((step, request));
    }

    /// What the message wants from here on opens nothing: [`Want::renews`].
    pub(crate) fn only_renew(&mut self) {
        self.renews = true;
    }

    /// The same for what it wants at these ports. The session's own is open already.
    pub(crate) fn only_renew_at(&mut self, ports: Ports, own: u16) {
        self.renews_at = (ports, own);
    }

    pub(crate) fn end_registrations(&mut self) {
        self.ends_registrations = true;
    }

    /// The message asks for more than it can have, so nothing in it changes and it gets nothing.
    pub(crate) fn overflow(&mut self) {
        self.overflowed = true;
    }

    pub(crate) fn set_body(&mut self, at: usize) {
        self.body = at as u16;
    }

    /// The want at this place, a pair, got only its first port.
    pub fn got_one_of_pair(&mut self, place: usize) {
        self.singles |= 1 << (place % WANTS_MAX);
    }

    /// The place of the want. An equal one is not repeated.
    pub(crate) fn want(&mut self, want: Want) -> u8 {
        let (ports, own) = &self.renews_at;
        let is_named = want.port != *own && ports.has(want.port);
        let want = Want { renews: self.renews || is_named, ..want };
        work::count(self.wants_len);
        if let Some(place) = self.wants[..self.wants_len].iter().position(|known| *known == want) {
            return place as u8;
        }
        let Some(free) = self.wants.get_mut(self.wants_len) else {
            self.overflowed = true;
            return 0;
        };
        *free = want;
        self.wants_len += 1;
        (self.wants_len - 1) as u8
    }

    /// Replaces `from..to` of the message.
    pub(crate) fn edit(&mut self, from: usize, to: usize, put: Put) {
        let (Ok(at), Ok(length)) = (u16::try_from(from), u16::try_from(to.saturating_sub(from))) else {
            self.overflowed = true;
            return;
        };
        if self.edits_len == EDITS_MAX {
            self.overflowed = true;
            return;
        }
        work::count(self.edits_len);
        // In order, because a session-level `c=` is judged after the media below it.
        let place = self.edits[..self.edits_len].iter().position(|edit| edit.at > at).unwrap_or(self.edits_len);
        self.edits.copy_within(place..self.edits_len, place + 1);
        self.edits[place] = Edit { at, length, put };
        self.edits_len += 1;
    }

    /// The replacements, in order, if the wants were answered with `granted` and the session's
    /// external endpoint is `own`.
    #[must_use]
    pub fn resolve(&self, own: Endpoint, granted: &[Option<Endpoint>]) -> Replacements {
        let mut result = Replacements::default();
        if self.overflowed {
            return result;
        }
        let answer = |want: Option<u8>| match want {
            None => Some(own),
            Some(place) => granted.get(usize::from(place)).copied().flatten(),
        };
        let edits = &self.edits[..self.edits_len];
        work::count(3 * edits.len());
        let body_is_granted = edits.iter().filter(|edit| edit.at >= self.body).all(|edit| match edit.put {
            Put::Address(want) | Put::Port(want, _) | Put::AddressPort(want) => answer(want).is_some(),
            Put::Commas(want) | Put::Range(want) | Put::Number(want) => answer(want).is_some(),
            _ => true,
        });
        let mut body_change = 0_i32;
        let mut length_at = None;
        for edit in edits {
            if edit.at >= self.body && !body_is_granted {
                continue;
            }
            let mut text = Text::default();
            let written = match edit.put {
                Put::Address(want) => answer(want).map(|endpoint| text.address(endpoint.address, b'.')),
                Put::Port(want, plus) => answer(want).map(|endpoint| text.number(endpoint.port.wrapping_add(plus))),
                Put::AddressPort(want) => {
                    answer(want).map(|endpoint| text.endpoint(endpoint.address, Some(endpoint.port)))
                }
                Put::AddressElseOwn(want) => {
                    text.address(answer(Some(want)).unwrap_or(own).address, b'.');
                    Some(())
                }
                Put::AddressPortElseOwn(want) => {
                    let granted = answer(Some(want));
                    text.endpoint(granted.unwrap_or(own).address, granted.map(|endpoint| endpoint.port));
                    Some(())
                }
                Put::Commas(want) => answer(want).map(|endpoint| {
                    text.address(endpoint.address, b',');
                    for byte in endpoint.port.to_be_bytes() {
                        text.byte(b',');
                        text.number(byte.into());
                    }
                }),
                Put::Range(Some(place)) if self.singles >> place & 1 != 0 => {
                    answer(Some(place)).map(|endpoint| text.number(endpoint.port))
                }
                Put::Range(want) => answer(want).map(|endpoint| text.range(endpoint.port)),
                Put::LiteralAddress(address) => {
                    text.address(address, b'.');
                    Some(())
                }
                Put::LiteralPort(port) => {
                    text.number(port);
                    Some(())
                }
                Put::LiteralAddressPort(address, port) => {
                    text.endpoint(address, Some(port));
                    Some(())
                }
                Put::LiteralRange(port) => {
                    text.range(port);
                    Some(())
                }
                Put::Number(want) => answer(want).map(|endpoint| text.two_bytes(endpoint.port)),
                Put::LiteralNumber(port) => {
                    text.two_bytes(port);
                    Some(())
                }
                Put::BodyLength(_) => {
                    length_at = Some(result.len);
                    Some(())
                }
            };
            if written.is_none() {
                continue;
            }
            if edit.at >= self.body {
                body_change += text.length as i32 - i32::from(edit.length);
            }
            result.list[result.len] = Replacement { at: edit.at, length: edit.length, text };
            result.len += 1;
        }
        if let Some(place) = length_at {
            let old = edits.iter().find_map(|edit| match edit.put {
                Put::BodyLength(length) => Some(length),
                _ => None,
            });
            let length = i32::from(old.unwrap_or(0)) + body_change;
            result.list[place].text.number(length.clamp(0, 0xffff) as u16);
        }
        result
    }
}

/// Bytes that stand for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Offset in the message.
    pub at: u16,
    /// How many bytes of the message it replaces.
    pub length: u16,
    text: Text,
}

impl Replacement {
    /// The new bytes.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text.bytes[..usize::from(self.text.length)]
    }
}

/// The changes of one message, in order and without overlap.
#[derive(Clone, Copy, Debug)]
pub struct Replacements {
    list: [Replacement; EDITS_MAX],
    len: usize,
}

impl Default for Replacements {
    fn default() -> Replacements {
        Replacements { list: [Replacement::default(); EDITS_MAX], len: 0 }
    }
}

impl Replacements {
    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Replacement] {
        &self.list[..self.len]
    }

    /// Writes the changed message to `out` and returns its length, or `None` if it does not fit.
    #[must_use]
    pub fn apply(&self, message: &[u8], out: &mut [u8]) -> Option<usize> {
        let (mut read, mut written) = (0, 0);
        let mut copy = |bytes: &[u8]| {
            work::count(bytes.len());
            out.get_mut(written..written + bytes.len())?.copy_from_slice(bytes);
            written += bytes.len();
            Some(written)
        };
        for change in self.as_slice() {
            let at = usize::from(change.at);
            copy(message.get(read..at)?)?;
            copy(change.text())?;
            read = at + usize::from(change.length);
        }
        copy(message.get(read..)?)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Text {
    bytes: [u8; TEXT_MAX],
    length: u8,
}

impl Text {
    fn byte(&mut self, byte: u8) {
        if let Some(free) = self.bytes.get_mut(usize::from(self.length)) {
            *free = byte;
            self.length += 1;
        }
    }

    fn two_bytes(&mut self, number: u16) {
        for byte in number.to_be_bytes() {
            self.byte(byte);
        }
    }

    fn number(&mut self, number: u16) {
        let mut divisor = 10_000;
        while divisor > 1 && number < divisor {
            divisor /= 10;
        }
        while divisor > 0 {
            self.byte(b'0' + (number / divisor % 10) as u8);
            divisor /= 10;
        }
    }

    fn address(&mut self, address: u32, separator: u8) {
        for (i, byte) in address.to_be_bytes().into_iter().enumerate() {
            if i > 0 {
                self.byte(separator);
            }
            self.number(byte.into());
        }
    }

    fn endpoint(&mut self, address: u32, port: Option<u16>) {
        self.address(address, b'.');
        if let Some(port) = port {
            self.byte(b':');
            self.number(port);
        }
    }

    fn range(&mut self, port: u16) {
        self.number(port);
        self.byte(b'-');
        self.number(port.wrapping_add(1));
    }
}
