//! RTSP 1.0 (RFC 2326) and 2.0 (RFC 7826): ports in `Transport`. Interleaved data passes unread.

use crate::Alg;
use crate::Context;
use crate::Findings;
use crate::Frame;
use crate::LINE_MAX;
use crate::Memory;
use crate::PORT_MIN;
use crate::Reading;
use crate::Transport;
use crate::Want;
use crate::WantKind;
use crate::findings::Put;
use crate::text;
use crate::text::Fields;
use crate::text::Shape;

pub(crate) struct Rtsp;

const STARTS: &[&[u8]] = &[
    b"OPTIONS ",
    b"DESCRIBE ",
    b"SETUP ",
    b"PLAY ",
    b"PAUSE ",
    b"TEARDOWN ",
    b"GET_PARAMETER ",
    b"SET_PARAMETER ",
    b"ANNOUNCE ",
    b"RECORD ",
    b"REDIRECT ",
    b"PLAY_NOTIFY ",
    b"RTSP/",
];
/// Bytes of the longest start.
const START_MAX: usize = 14;
/// Servers may write a description after the header, in segments of their own.
const SHAPE: Shape = Shape {
    starts: STARTS,
    start_max: START_MAX,
    is_start,
    is_length: |name| text::is(name, b"Content-Length"),
    has_read_body: false,
    long: &[],
};

impl Alg for Rtsp {
    fn name(&self) -> &'static str {
        "rtsp"
    }

    fn about(&self) -> &'static str {
        "RTSP 1.0 and 2.0 (RFC 2326, RFC 7826)."
    }

    fn ports(&self) -> &'static [u16] {
        &[554]
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Tcp]
    }

    fn frame(&self, memory: &mut Memory, context: &Context<'_>, bytes: &[u8], seen: usize) -> Frame {
        let spoken = 1 << u32::from(context.from_client);
        match bytes {
            // Interleaved data (RFC 2326 §10.12), never at the start.
            [b'$', rest @ ..] if memory.flags & spoken != 0 => {
                return match rest {
                    [_, high, low, ..] => Frame::Skip(4 + usize::from(u16::from_be_bytes([*high, *low]))),
                    _ => Frame::Needs(4),
                };
            }
            // Some clients send an empty line between requests.
            [b'\r', b'\n', ..] if memory.flags & spoken != 0 => return Frame::Skip(2),
            [b'\r'] if memory.flags & spoken != 0 => return Frame::Needs(2),
            _ => {}
        }
        let frame = text::frame(memory, context, bytes, seen, &SHAPE);
        if matches!(frame, Frame::Message(_) | Frame::Part(..)) {
            memory.flags |= spoken;
        }
        frame
    }

    fn is_surely_its_own(&self, memory: &Memory, context: &Context<'_>, bytes: &[u8]) -> bool {
        text::is_surely_begun(memory, context, bytes, &SHAPE)
    }

    fn read(&self, _: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading {
        let line = &message[..message.len().min(LINE_MAX)];
        let Some(end) = text::position(line, |byte| byte == b'\r') else { return Reading::Over };
        let mut fields = Fields::new(message, end + 2, SHAPE.long);
        let mut found = Findings::default();
        for (name, from, to) in fields.by_ref() {
            if text::is(name, b"Transport") {
                read_transports(context, message, from, to, &mut found);
            }
        }
        if !fields.is_malformed {
            *findings = found;
        }
        Reading::Done
    }

    fn ends_media(&self) -> bool {
        true
    }
}

fn is_start(line: &[u8]) -> bool {
    let version = |bytes: &[u8]| bytes == b"RTSP/1.0" || bytes == b"RTSP/2.0";
    let begins = line.get(..8).is_some_and(version) && line.get(8) == Some(&b' ');
    let ends = line.len() > 9 && version(&line[line.len() - 8..]) && line[line.len() - 9] == b' ';
    (begins || ends) && text::all(line, |byte| byte >= 0x20)
}

fn read_transports(context: &Context<'_>, message: &[u8], from: usize, to: usize, findings: &mut Findings) {
    let mut at = from;
    while at <= to {
        let end = list_end(message, at, to, b',');
        read_transport(context, message, at, end, findings);
        at = end + 1;
    }
}

/// The end of the first part, outside quotes.
fn list_end(message: &[u8], from: usize, to: usize, separator: u8) -> usize {
    let mut bytes = text::unquoted(message, from, to);
    bytes.find(|(_, byte)| *byte == separator).map_or(to, |(at, _)| at)
}

/// One specification: `RTP/AVP;unicast;client_port=5000-5001`.
fn read_transport(context: &Context<'_>, message: &[u8], from: usize, to: usize, findings: &mut Findings) {
    let first = list_end(message, from, to, b';');
    let profile = &message[text::skip_blanks(message, from).min(first)..first];
    let profile = &profile[..text::trim_end(profile, 0, profile.len())];
    // The lower transport of RTP is UDP unless it says otherwise (RFC 2326 §12.39).
    let is_udp = text::starts(profile, b"RTP/") && !text::ends(profile, b"/TCP") || text::ends(profile, b"/UDP");
    if !is_udp || text::find(&message[..to], b"interleaved", from).is_some() {
        return;
    }
    let mut at = first + 1;
    while at < to {
        let end = list_end(message, at, to, b';');
        at = text::skip_blanks(message, at).min(end);
        let part = &message[at..end];
        let value_at = |name: &[u8]| {
            let is_it = text::starts_with_ignoring_case(part, name) && part.get(name.len()) == Some(&b'=');
            is_it.then(|| at + name.len() + 1)
        };
        // Each side names its own ports, and repeats those of its peer.
        let (own, peers): (&[u8], &[u8]) =
            if context.from_client { (b"client_port", b"server_port") } else { (b"server_port", b"client_port") };
        let own_host: &[u8] = if context.from_client { b"destination" } else { b"source" };
        let (own_address, peers_address): (&[u8], &[u8]) =
            if context.from_client { (b"dest_addr", b"src_addr") } else { (b"src_addr", b"dest_addr") };
        if let Some(value) = value_at(own).filter(|_| context.from_inside) {
            hide_ports(message, value, end, findings);
        } else if let Some(value) = value_at(peers).filter(|_| !context.from_inside) {
            restore_ports(context, message, value, end, findings);
        } else if let Some(value) = value_at(own_address).filter(|_| context.from_inside) {
            read_addresses(context, message, value, end, findings);
        } else if let Some(value) = value_at(peers_address).filter(|_| !context.from_inside) {
            read_addresses(context, message, value, end, findings);
        } else if let Some(value) = value_at(own_host).filter(|_| context.from_inside)
            && let Some((address, length)) = text::address(&message[value..end])
            && address == context.internal.address
        {
            findings.edit(value, value + length, Put::Address(None));
        }
        at = end + 1;
    }
}

/// `port` or `port-port`: the ports, and where they end.
fn ports(message: &[u8], at: usize, end: usize) -> Option<(u16, Option<u16>, usize)> {
    let (first, digits) = text::port(message.get(at..end)?)?;
    let after = at + digits;
    if message.get(after..end)?.first() != Some(&b'-') {
        return Some((first, None, after));
    }
    let (second, digits) = text::port(message.get(after + 1..end)?)?;
    Some((first, Some(second), after + 1 + digits))
}

/// The peer sends to the address of the session, since the field names none.
fn hide_ports(message: &[u8], at: usize, end: usize, findings: &mut Findings) {
    let Some((first, second, after)) = ports(message, at, end) else { return };
    if first < PORT_MIN {
        return;
    }
    let want = Want { port: first, needs_own_address: true, ..Want::default() };
    match second {
        Some(second) if first % 2 == 0 && second == first + 1 => {
            let want = findings.want(Want { kind: WantKind::Pair, ..want });
            findings.edit(at, after, Put::Range(Some(want)));
        }
        None => {
            let want = findings.want(want);
            findings.edit(at, after, Put::Port(Some(want), 0));
        }
        Some(_) => {}
    }
}

fn restore_ports(context: &Context<'_>, message: &[u8], at: usize, end: usize, findings: &mut Findings) {
    let Some((first, second, after)) = ports(message, at, end) else { return };
    let Some(known) = context.known.iter().find(|known| known.external == first) else { return };
    let put = if second.is_some() { Put::LiteralRange(known.inside) } else { Put::LiteralPort(known.inside) };
    findings.edit(at, after, put);
}

/// `":5000"/":5001"` or `"192.0.2.5:5000"/"192.0.2.5:5001"`, for RTP and RTCP, or one of them if
/// RTCP shares the port (RFC 7826 §18.54).
fn read_addresses(context: &Context<'_>, message: &[u8], from: usize, to: usize, findings: &mut Findings) {
    let Some(first) = quoted(message, from, to) else { return };
    let (second, after) = match message.get(first.end..to) {
        Some([b'/', ..]) => match quoted(message, first.end + 1, to) {
            Some(second) => (Some(second), second.end),
            None => return,
        },
        _ => (None, first.end),
    };
    if text::skip_blanks(message, after) < to {
        return;
    }
    if context.from_inside {
        hide_addresses(context, first, second, findings);
        return;
    }
    for part in [Some(first), second].into_iter().flatten() {
        restore_address(context, &part, findings);
    }
}

fn hide_addresses(context: &Context<'_>, first: Quoted, second: Option<Quoted>, findings: &mut Findings) {
    let parts = [Some(first), second];
    let owns = |part: &Quoted| {
        part.address.is_none_or(|(address, ..)| address == context.internal.address)
            && part.port.is_none_or(|(port, ..)| port >= PORT_MIN)
    };
    if !parts.iter().flatten().all(owns) {
        return;
    }
    let want_of = |part: &Quoted, port| Want { port, needs_own_address: part.address.is_none(), ..Want::default() };
    let mut pair = None;
    if let (Some((port, ..)), Some(Quoted { port: Some((above, ..)), address, .. })) = (first.port, second)
        && port % 2 == 0
        && above == port + 1
    {
        let needs_own_address = first.address.is_none() || address.is_none();
        pair = Some(findings.want(Want { kind: WantKind::Pair, needs_own_address, ..want_of(&first, port) }));
    }
    for (part, plus) in parts.iter().zip([0, 1]) {
        let Some(part) = part else { continue };
        let want = part.port.map(|(port, ..)| pair.unwrap_or_else(|| findings.want(want_of(part, port))));
        if let Some((_, at, end)) = part.address {
            findings.edit(at, end, Put::Address(want));
        }
        if let Some((_, at, end)) = part.port {
            findings.edit(at, end, Put::Port(want, if pair.is_some() { plus } else { 0 }));
        }
    }
}

fn restore_address(context: &Context<'_>, part: &Quoted, findings: &mut Findings) {
    if part.address.is_some_and(|(address, ..)| address != context.external.address) {
        return;
    }
    if let Some((port, at, end)) = part.port {
        let pairs = context.known.iter().map(|known| (known.external, known.inside));
        let above = context.known.iter().map(|known| (known.external.wrapping_add(1), known.inside.wrapping_add(1)));
        let Some((_, inside)) = pairs.chain(above).find(|(external, _)| *external == port) else { return };
        findings.edit(at, end, Put::LiteralPort(inside));
    }
    if let Some((_, at, end)) = part.address {
        findings.edit(at, end, Put::LiteralAddress(context.internal.address));
    }
}

/// `"host:port"`, `"host"` or `":port"`, with the place of each.
#[derive(Clone, Copy)]
struct Quoted {
    address: Option<(u32, usize, usize)>,
    port: Option<(u16, usize, usize)>,
    /// Behind the closing quote.
    end: usize,
}

fn quoted(message: &[u8], from: usize, to: usize) -> Option<Quoted> {
    let message = message.get(..to)?;
    if message.get(from) != Some(&b'"') {
        return None;
    }
    let mut at = from + 1;
    let mut address = None;
    if let Some((value, length)) = text::address(message.get(at..)?) {
        address = Some((value, at, at + length));
        at += length;
    }
    let mut port = None;
    if message.get(at) == Some(&b':') {
        let (value, digits) = text::port(message.get(at + 1..)?)?;
        port = Some((value, at + 1, at + 1 + digits));
        at += 1 + digits;
    }
    let is_whole = message.get(at) == Some(&b'"') && (address.is_some() || port.is_some());
    is_whole.then_some(Quoted { address, port, end: at + 1 })
}
