//! SIP (RFC 3261) over UDP and TCP: `Via`, `Contact`, `Route`, `Record-Route`, the request's URI,
//! and the SDP in the body (`sdp`).
//!
//! Towards the outside, the sender's own address becomes the external endpoint. Towards the inside,
//! an external endpoint of the session becomes the internal one again, so that a phone recognises
//! its own `Via` and `Contact`.

mod named;
mod sdp;

use crate::Alg;
use crate::Context;
use crate::Findings;
use crate::Frame;
use crate::LINE_MAX;
use crate::MESSAGE_MAX;
use crate::Memory;
use crate::PORT_MIN;
use crate::Reading;
use crate::Transport;
use crate::Want;
use crate::WantKind;
use crate::findings::CallStep;
use crate::findings::Put;
use crate::text;
use crate::text::Fields;
use crate::text::Shape;

pub(crate) struct Sip;

const STARTS: &[&[u8]] = &[
    b"INVITE ",
    b"ACK ",
    b"BYE ",
    b"CANCEL ",
    b"REGISTER ",
    b"OPTIONS ",
    b"PRACK ",
    b"SUBSCRIBE ",
    b"NOTIFY ",
    b"PUBLISH ",
    b"INFO ",
    b"REFER ",
    b"MESSAGE ",
    b"UPDATE ",
    b"SIP/2.0 ",
];
/// Bytes of the longest start.
const START_MAX: usize = 10;
/// A signature, what is signed, and where its certificate is (RFC 8224 §4): they are not read.
const LONG: &[&[u8]] = &[b"Identity", b"y"];
const SHAPE: Shape =
    Shape { starts: STARTS, start_max: START_MAX, is_start, is_length, has_read_body: true, long: LONG };
/// Flag of a session: the outside has sent a request, so that the inside has something to answer.
const ASKED: u32 = 2;
/// RFC 3261 §10.2.1.1 lets the registrar choose; this is what its §10.3 suggests.
const REGISTRATION_S: u32 = 3600;

impl Alg for Sip {
    fn name(&self) -> &'static str {
        "sip"
    }

    fn about(&self) -> &'static str {
        "SIP over UDP and TCP (RFC 3261)."
    }

    fn ports(&self) -> &'static [u16] {
        &[5060]
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Udp, Transport::Tcp]
    }

    fn frame(&self, memory: &mut Memory, context: &Context<'_>, bytes: &[u8], seen: usize) -> Frame {
        // Keep-alives between messages (RFC 5626 §4.4.1).
        if bytes.first() == Some(&b'\r') {
            return match bytes.get(1) {
                Some(b'\n') => Frame::Skip(2),
                Some(_) => Frame::Over,
                None => Frame::Needs(2),
            };
        }
        text::frame(memory, context, bytes, seen, &SHAPE)
    }

    fn read(&self, memory: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading {
        let known = message.len() <= MESSAGE_MAX && text::may_become(&message[..message.len().min(START_MAX)], STARTS);
        let line_end = text::position(&message[..message.len().min(LINE_MAX)], |byte| byte == b'\r');
        let Some(line_end) = line_end.filter(|end| known && is_start(&message[..*end])) else {
            self.note_unread(memory, context, Some(message));
            return Reading::Done;
        };
        if !context.from_inside {
            named::note(memory, context, message, line_end);
        }
        let mut found = Findings::default();
        if named::is_closed(memory, context) {
            found.only_renew();
        }
        found.only_renew_at(named::named(memory, context), context.internal.port);
        if read_message(memory, context, message, line_end, &mut found).is_some() {
            *findings = found;
        }
        Reading::Done
    }

    fn note_unread(&self, memory: &mut Memory, context: &Context<'_>, message: Option<&[u8]>) {
        if !context.from_inside {
            named::note_unread(memory, context, message);
        }
    }

    fn is_surely_its_own(&self, memory: &Memory, context: &Context<'_>, bytes: &[u8]) -> bool {
        text::is_surely_begun(memory, context, bytes, &SHAPE)
    }

    fn keeps_ahead(&self) -> bool {
        true
    }

    fn is_first_request(&self) -> Option<fn(&[u8]) -> bool> {
        Some(|message| {
            let line_end = text::position(&message[..message.len().min(LINE_MAX)], |byte| byte == b'\r');
            line_end.is_some_and(|end| is_start(&message[..end])) && !text::starts(message, b"SIP/2.0 ")
        })
    }
}

/// Whether this is a request line or a status line.
fn is_start(line: &[u8]) -> bool {
    STARTS.iter().any(|start| text::starts(line, start))
        && (text::starts(line, b"SIP/2.0 ") || text::ends(line, b" SIP/2.0"))
        && text::all(line, |byte| byte >= 0x20)
}

/// Of a message whose first line has ended there.
fn fields(message: &[u8], line_end: usize) -> Fields<'_> {
    Fields::new(message, line_end + 2, LONG)
}

fn is_length(name: &[u8]) -> bool {
    text::is(name, b"Content-Length") || text::is(name, b"l")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Field {
    Via,
    Contact,
    Route,
    Expires,
    Length,
    Type,
    /// `Call-ID`.
    Call,
    /// `CSeq`.
    Method,
    Encoding,
}

fn field(name: &[u8]) -> Option<Field> {
    const FIELDS: &[(&[u8], Field)] = &[
        (b"Via", Field::Via),
        (b"v", Field::Via),
        (b"Contact", Field::Contact),
        (b"m", Field::Contact),
        (b"Record-Route", Field::Route),
        (b"Route", Field::Route),
        (b"Expires", Field::Expires),
        (b"Content-Length", Field::Length),
        (b"l", Field::Length),
        (b"Content-Type", Field::Type),
        (b"c", Field::Type),
        (b"Content-Encoding", Field::Encoding),
        (b"e", Field::Encoding),
        (b"Call-ID", Field::Call),
        (b"i", Field::Call),
        (b"CSeq", Field::Method),
    ];
    FIELDS.iter().find(|(known, _)| text::is(name, known)).map(|(_, field)| *field)
}

/// `None` if the message is not to be touched.
fn read_message(
    memory: &mut Memory,
    context: &Context<'_>,
    message: &[u8],
    line_end: usize,
    findings: &mut Findings,
) -> Option<()> {
    let is_request = !text::starts(message, b"SIP/2.0 ");
    if is_request && !context.from_inside {
        let uri = text::position(&message[..line_end], |byte| byte == b' ')? + 1;
        let uri_end = text::last_position(&message[..line_end], |byte| byte == b' ')?;
        // A domain name or an IPv6 address is for the proxy or the phone to know.
        if let Some(host) = host_of_uri(message, uri, uri_end).and_then(|at| Host::read(message, at, uri_end)) {
            host.replace(context, findings, Role::Route);
        }
    }
    let mut all = fields(message, line_end);
    let (mut registers, mut expires) = (text::starts(message, b"REGISTER "), None);
    let (mut length, mut is_sdp, mut is_encoded) = (None, false, false);
    let (mut transaction, mut hops) = (0, 0);
    let (mut request, mut invites) = (0, false);
    for (name, from, to) in all.by_ref() {
        let value = text::skip_blanks(message, from);
        match field(name) {
            Some(Field::Expires) => expires = text::seconds(text::part(message, value, to)),
            // No number, or two of them: it is unknown where the body ends.
            Some(Field::Length) if length.is_none() => length = Some(text::whole_number(message, from, to)?),
            Some(Field::Length) => return None,
            Some(Field::Type) => {
                is_sdp = text::starts_with_ignoring_case(text::part(message, value, to), b"application/sdp")
            }
            Some(Field::Encoding) => is_encoded = true,
            Some(Field::Via) => each(message, from, to, |_, _| hops += 1),
            Some(Field::Call) => {
                transaction ^= digest(message, value, to);
                request ^= digest(message, value, to);
            }
            Some(Field::Method) => {
                registers |= is_register(message, from, to);
                transaction ^= digest(message, value, to).rotate_left(16);
                invites = has_method(message, from, to, b"INVITE");
                // CANCEL has the number of what it cancels (RFC 3261 §9.1).
                let digits = text::leading(text::part(message, value, to), |byte| byte.is_ascii_digit());
                request ^= digest(message, value, value + digits).rotate_left(16);
            }
            _ => {}
        }
    }
    if all.is_malformed {
        return None;
    }
    let body = all.body?;
    if let Some(step) = call_step(context, message, invites) {
        findings.set_call(step, (request ^ request >> 16) as u16);
    }
    if is_request && !context.from_inside {
        memory.flags |= ASKED;
    }
    // What it relays was written by another host, and what it answers unread may be anything: both
    // open nothing.
    let is_of_others = if is_request { hops > 1 } else { memory.flags & ASKED == 0 };
    // A server's own endpoint is that of the session. All others that its answers name may be what
    // another client has registered; so may those that a client lists in answers like a registrar's
    // or a redirect server's (RFC 3261 §10.3, §21.3, §21.4.23).
    let is_list = registers || text::starts(message, b"SIP/2.0 3") || text::starts(message, b"SIP/2.0 485");
    let lists_others = !is_request && (!context.from_client || context.serves || is_list);
    let asks = registers && is_request && context.from_inside && !is_of_others;
    let takes_back = asks && expires == Some(0);
    if asks {
        memory.await_answer(transaction);
    }
    // Of what it registers, for the longest.
    let mut lasts = None;
    // Only what the phone has asked for is answered, and once.
    let is_answer =
        registers && !context.from_inside && text::starts(message, b"SIP/2.0 2") && memory.take_answer(transaction);
    for (name, from, to) in fields(message, line_end) {
        match field(name) {
            Some(Field::Contact) if takes_back && is_star(message, from, to) => findings.end_registrations(),
            Some(Field::Contact) if (is_of_others || lists_others) && context.from_inside => {
                each(message, from, to, |from, to| read_uri(context, message, from, to, Role::Route, findings));
            }
            Some(Field::Contact) => each(message, from, to, |from, to| {
                let said = || seconds_after_uri(message, from, to, b"expires").or(expires);
                let lifetime = match context.from_inside {
                    true => asks.then(|| said().unwrap_or(REGISTRATION_S)),
                    false => is_answer.then(said).flatten(),
                };
                lasts = lasts.max(lifetime.filter(|_| asks));
                read_uri(context, message, from, to, Role::Contact { lifetime }, findings);
            }),
            Some(Field::Route) => {
                each(message, from, to, |from, to| read_uri(context, message, from, to, Role::Route, findings));
            }
            _ => {}
        }
    }
    // Last, because it may name the port of a contact. A side has written those of its requests,
    // which the answers repeat; all others belong to another client, perhaps behind the same
    // address. Of several, a phone has written the topmost.
    let names_sender = hops > 0 && is_request == context.from_inside;
    let vias = fields(message, line_end).filter(|(name, ..)| matches!(field(name), Some(Field::Via)));
    for (_, from, to) in vias.take(usize::from(names_sender)) {
        let mut is_topmost = true;
        each(message, from, to, |from, to| {
            if core::mem::take(&mut is_topmost) {
                read_via(context, message, from, to, lasts, findings);
            }
        });
    }
    let body_end = match length {
        Some((length, ..)) => body.checked_add(length as usize).filter(|end| *end <= message.len())?,
        None if context.transport == Transport::Tcp => body,
        None => message.len(),
    };
    if is_sdp && !is_encoded && context.from_inside && !is_of_others && body < body_end {
        findings.set_body(body);
        sdp::read(context, message, body, body_end, findings);
        if let Some((length, at, end)) = length {
            findings.edit(at, end, Put::BodyLength(length as u16));
        }
    }
    Some(())
}

/// What a message says about a call that the inside asks for. `invites`: by its `CSeq`. Only the
/// inside announces something by its requests, so no host outside can keep what the inside has not
/// asked for.
fn call_step(context: &Context<'_>, message: &[u8], invites: bool) -> Option<CallStep> {
    let starts = |start| text::starts(message, start);
    match () {
        () if context.from_inside && starts(b"CANCEL ") => Some(CallStep::Ends),
        () if !invites => None,
        () if context.from_inside => starts(b"INVITE ").then_some(CallStep::Asks),
        () if starts(b"SIP/2.0 1") => Some(CallStep::Rings),
        () if starts(b"SIP/2.0 ") => Some(CallStep::Ends),
        () => None,
    }
}

fn is_register(message: &[u8], from: usize, to: usize) -> bool {
    has_method(message, from, to, b"REGISTER")
}

/// Whether this is the method of a `CSeq`, with any blanks around it: servers copy the field as it
/// came.
fn has_method(message: &[u8], from: usize, to: usize, method: &[u8]) -> bool {
    let value = text::part(message, from, text::trim_end(message, from, to));
    let start = text::last_position(value, |byte| byte.is_ascii_whitespace()).map_or(0, |at| at + 1);
    text::is(&value[start..], method)
}

/// Of a value without the blanks around it (FNV-1a).
fn digest(message: &[u8], from: usize, to: usize) -> u32 {
    let end = text::trim_end(message, from, to);
    text::bytes(message, from, end)
        .fold(0x811c_9dc5, |sum, (_, byte)| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// `Contact: *`.
fn is_star(message: &[u8], from: usize, to: usize) -> bool {
    let from = text::skip_blanks(message, from);
    message.get(from..to).is_some_and(|value| &value[..text::trim_end(value, 0, value.len())] == b"*")
}

/// Calls `read` for each value of a list: commas outside quotes and angle brackets separate them.
fn each(message: &[u8], from: usize, to: usize, mut read: impl FnMut(usize, usize)) {
    let (mut start, mut in_brackets) = (from, false);
    for (at, byte) in text::unquoted(message, from, to) {
        match byte {
            b'<' => in_brackets = true,
            b'>' => in_brackets = false,
            b',' if !in_brackets => {
                read(start, at);
                start = at + 1;
            }
            _ => {}
        }
    }
    read(start, to);
}

/// `SIP/2.0/UDP host:port;parameters` (RFC 3261 §20.42).
fn read_via(
    context: &Context<'_>,
    message: &[u8],
    from: usize,
    to: usize,
    lifetime: Option<u32>,
    findings: &mut Findings,
) {
    let from = text::skip_blanks(message, from);
    let Some(value) = message.get(from..to) else { return };
    if !text::starts_with_ignoring_case(value, b"SIP/2.0/") {
        return;
    }
    let Some(blank) = text::position(value, |byte| byte.is_ascii_whitespace()) else { return };
    let at = text::skip_blanks(message, from + blank);
    if let Some(host) = Host::read(message, at, to) {
        host.replace(context, findings, Role::Via { lifetime });
    }
}

fn read_uri(context: &Context<'_>, message: &[u8], from: usize, to: usize, role: Role, findings: &mut Findings) {
    if let Some(host) = uri_host(message, from, to) {
        host.replace(context, findings, role);
    }
}

/// The host of a URI, with or without a display name and brackets.
fn uri_host(message: &[u8], from: usize, to: usize) -> Option<Host> {
    let (start, end) = uri(message, from, to);
    host_of_uri(message, start, end).and_then(|at| Host::read(message, at, end))
}

/// Where a URI begins and ends, with or without a display name and brackets.
fn uri(message: &[u8], from: usize, to: usize) -> (usize, usize) {
    // A display name may be quoted and contain anything.
    let open = text::unquoted(message, from, to).find(|(_, byte)| *byte == b'<');
    let start = open.map_or_else(|| text::skip_blanks(message, from), |(at, _)| at + 1);
    let closing = if open.is_some() { b'>' } else { b';' };
    let end = text::position(text::part(message, start, to), |byte| byte == closing).map_or(to, |at| start + at);
    (start, end)
}

/// Where the host of `sip:user@host:port` begins. TLS (`sips:`) cannot be read and is left alone.
fn host_of_uri(message: &[u8], from: usize, to: usize) -> Option<usize> {
    let uri = message.get(from..to)?;
    if !text::starts_with_ignoring_case(uri, b"sip:") {
        return None;
    }
    let at = text::position(uri, |byte| matches!(byte, b'?' | b'@')).filter(|at| uri[*at] == b'@');
    let at = at.map_or(4, |at| at + 1);
    Some(from + at)
}

/// The value of a parameter that follows a URI. That of another one may be quoted, and contain
/// anything: the `+sip.instance` of most phones is a URI in brackets (RFC 5626 §4.1).
fn seconds_after_uri(message: &[u8], from: usize, to: usize, name: &[u8]) -> Option<u32> {
    let (_, uri_end) = uri(message, from, to);
    let mut begins = text::unquoted(message, uri_end, to).filter(|(_, byte)| *byte == b';').map(|(at, _)| at + 1);
    begins.find_map(|at| {
        let at = text::skip_blanks(message, at);
        let part = text::part(message, at, to);
        let length = text::leading(part, |byte| !matches!(byte, b'=' | b';'));
        let is_it = text::is(&part[..text::trim_end(part, 0, length)], name);
        let value = text::skip_blanks(message, at + length + 1);
        if is_it && part.get(length) == Some(&b'=') { text::seconds(text::part(message, value, to)) } else { None }
    })
}

enum Role {
    /// `lifetime`: of the registration that a phone asks for. Over UDP, the answers come to its
    /// port (RFC 3261 §18.2.2).
    Via { lifetime: Option<u32> },
    /// `Route`, `Record-Route` and the URI of a request. A phone copies them from what the other
    /// side sends, so they open no port.
    Route,
    /// `lifetime`: of a registration that a phone asks for, or that its registrar has made.
    Contact { lifetime: Option<u32> },
}

struct Host {
    address: u32,
    at: usize,
    address_end: usize,
    port: Option<(u16, usize, usize)>,
}

impl Host {
    /// `None` if it is no IPv4 address. A missing port means 5060.
    fn read(message: &[u8], at: usize, to: usize) -> Option<Host> {
        let (address, length) = text::address(message.get(at..to)?)?;
        let address_end = at + length;
        // `sent-by` may have blanks around its colon (RFC 3261 §25.1: COLON).
        let colon = text::skip_blanks(message, address_end);
        let port = match message.get(colon) {
            Some(b':') if colon < to => {
                let port_at = text::skip_blanks(message, colon + 1);
                let (port, digits) = text::port(message.get(port_at..to)?)?;
                Some((port, port_at, port_at + digits))
            }
            _ => None,
        };
        Some(Host { address, at, address_end, port })
    }

    fn port(&self) -> u16 {
        self.port.map_or(5060, |(port, ..)| port)
    }

    fn replace(&self, context: &Context<'_>, findings: &mut Findings, role: Role) {
        if context.from_inside { self.hide(context, findings, &role) } else { self.restore(context, findings, &role) }
    }

    fn hide(&self, context: &Context<'_>, findings: &mut Findings, role: &Role) {
        if self.address != context.internal.address {
            return;
        }
        let is_session = self.port() == context.internal.port;
        if matches!(role, Role::Via { .. }) {
            findings.set_via(self.port());
        }
        if let Role::Via { .. } | Role::Route = role
            && !is_session
        {
            match role {
                Role::Via { lifetime } if context.transport == Transport::Udp => {
                    self.hide_via(context, findings, *lifetime);
                }
                // Over TCP answers come by the connection (RFC 3261 §18.2.2), and CANCEL and ACK
                // must have the `Via` of their INVITE (§17.2.3).
                _ => findings.edit(self.at, self.address_end, Put::Address(None)),
            }
            return;
        }
        let lifetime = match role {
            Role::Contact { lifetime } => *lifetime,
            Role::Via { .. } | Role::Route => None,
        };
        let mut of = None;
        if !is_session || lifetime.is_some() {
            if self.port() < PORT_MIN {
                return;
            }
            let (port, transport) = (self.port(), context.transport);
            let want = Want { port, transport, kind: WantKind::Control, lifetime, ..Want::default() };
            let want = findings.want(want);
            // A TCP connection's own port does not listen, so its mapping stays the session's.
            of = (!is_session).then_some(want);
        }
        self.put(findings, Put::AddressPort(of), |of| (Put::Address(of), Put::Port(of, 0)), of);
    }

    /// Over UDP answers come to the port that sent the request, or to the one that is named, where
    /// the phone may listen for all of them (RFC 3261 §18.2.2).
    fn hide_via(&self, context: &Context<'_>, findings: &mut Findings, lifetime: Option<u32>) {
        if lifetime.is_some() && findings.control_want(self.port()).is_none() && self.port() >= PORT_MIN {
            let kind = WantKind::Control;
            findings.want(Want { port: self.port(), transport: Transport::Udp, kind, lifetime, ..Want::default() });
        }
        let (wanted, known) = (findings.control_want(self.port()), context.external_port(self.port()));
        match (wanted, known, self.port) {
            (Some(want), _, Some((_, at, end))) => {
                findings.edit(self.at, self.address_end, Put::AddressElseOwn(want));
                findings.edit(at, end, Put::Port(Some(want), 0));
            }
            (Some(want), _, None) => findings.edit(self.at, self.address_end, Put::AddressPortElseOwn(want)),
            (None, Some(external), Some((_, at, end))) => {
                findings.edit(self.at, self.address_end, Put::Address(None));
                findings.edit(at, end, Put::LiteralPort(external));
            }
            (None, Some(external), None) => {
                let put = Put::LiteralAddressPort(context.external.address, external);
                findings.edit(self.at, self.address_end, put);
            }
            (None, None, _) => findings.edit(self.at, self.address_end, Put::Address(None)),
        }
    }

    fn put(&self, findings: &mut Findings, whole: Put, halves: impl Fn(Option<u8>) -> (Put, Put), of: Option<u8>) {
        match self.port {
            Some((_, at, end)) => {
                let (address, port) = halves(of);
                findings.edit(self.at, self.address_end, address);
                findings.edit(at, end, port);
            }
            None => findings.edit(self.at, self.address_end, whole),
        }
    }

    fn restore(&self, context: &Context<'_>, findings: &mut Findings, role: &Role) {
        if self.address != context.external.address {
            return;
        }
        let inside = context.inside_port(self.port());
        if let (Role::Contact { lifetime: Some(seconds) }, Some(port)) = (role, inside) {
            findings.register(port, *seconds);
        }
        match (inside, self.port) {
            (Some(inside), Some((_, at, end))) => {
                findings.edit(self.at, self.address_end, Put::LiteralAddress(context.internal.address));
                findings.edit(at, end, Put::LiteralPort(inside));
            }
            (Some(5060), None) => {
                findings.edit(self.at, self.address_end, Put::LiteralAddress(context.internal.address));
            }
            (None, _) if matches!(role, Role::Via { .. }) => {
                findings.edit(self.at, self.address_end, Put::LiteralAddress(context.internal.address));
            }
            _ => {}
        }
    }
}
