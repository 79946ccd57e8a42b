//! SDP (RFC 4566, RFC 3605): the address of `c=`, the port of `m=` and of `a=rtcp`.

use crate::Context;
use crate::Findings;
use crate::LINE_MAX;
use crate::PORT_MIN;
use crate::Ports;
use crate::Want;
use crate::WantKind;
use crate::findings::Put;
use crate::sip::named::Said;
use crate::text;

/// A `c=` line with the sender's own address: where the address is.
type Connection = Option<(usize, usize)>;

#[derive(Clone, Copy)]
struct Media {
    port: u16,
    at: usize,
    end: usize,
    is_rtp: bool,
    connection: Connection,
    /// It has its own `c=`.
    has_own: bool,
    /// `a=rtcp`: port, where it is, and its address, if any.
    rtcp: Option<(u16, usize, usize, Connection)>,
}

const ENCODING: &[u8] = b"Content-Transfer-Encoding";

/// Media of a description that open something.
const MEDIA_MAX: usize = 8;

/// Notes what a body from outside names: the internal address in `c=` or `a=rtcp`, also as only
/// some programs would read it, and the ports of all media.
pub(super) fn note_named(context: &Context<'_>, message: &[u8], from: usize, said: &mut Said) {
    for line in text::lines(&message[from..]) {
        match line {
            [b'c', b'=', value @ ..] => said.is_inside |= text::has_address(value, context.internal.address),
            [b'm', b'=', value @ ..] => {
                let digits = text::position(value, |byte| byte.is_ascii_digit()).unwrap_or(value.len());
                note_port(&value[digits..], said);
            }
            [b'a', b'=', b'r', b't', b'c', b'p', b':', value @ ..] => {
                note_port(value, said);
                said.is_inside |= text::has_address(value, context.internal.address);
            }
            _ if is_encoded_part(line) => (said.is_inside, said.ports) = (true, Ports::ALL),
            _ => {}
        }
    }
}

fn note_port(value: &[u8], said: &mut Said) {
    match text::port(value) {
        Some((port, _)) => said.ports.add(port),
        None => said.ports = Ports::ALL,
    }
}

/// Whether a message that is not read may name the inside.
pub(super) fn may_name(context: &Context<'_>, message: &[u8]) -> bool {
    text::lines(message).any(|line| text::has_address(line, context.internal.address) || is_encoded_part(line))
}

/// A line that says that what follows is encoded (RFC 3261 §20.12, RFC 2045 §6.1).
fn is_encoded_part(line: &[u8]) -> bool {
    let Some(colon) = text::position(&line[..line.len().min(ENCODING.len() + 8)], |byte| byte == b':') else {
        return false;
    };
    let (name, value) = (&line[..text::trim_end(line, 0, colon)], &line[colon + 1..]);
    let value = &value[text::skip_blanks(value, 0)..];
    let is_plain = || [&b"7bit"[..], b"8bit", b"binary"].iter().any(|plain| text::is(value, plain));
    text::is(name, b"Content-Encoding") || text::is(name, b"e") || text::is(name, ENCODING) && !is_plain()
}

/// Reads `from..to` of the message.
pub(super) fn read(context: &Context<'_>, message: &[u8], from: usize, to: usize, findings: &mut Findings) {
    let mut session: Connection = None;
    let mut media: [Option<Media>; MEDIA_MAX] = [None; MEDIA_MAX];
    // Of media that open nothing, as those that were taken out of a call, there may be any number.
    let (mut count, mut has_media, mut last, mut at) = (0, false, None, from);
    while at < to {
        let rest = &message[at..to];
        let first = &rest[..rest.len().min(LINE_MAX)];
        let Some(length) = text::position(first, |byte| matches!(byte, b'\r' | b'\n')) else {
            if rest.len() >= LINE_MAX {
                return;
            }
            break;
        };
        let end = at + length;
        let line = &message[at..end];
        if text::starts(line, b"c=") {
            let connection = own_address(context, message, at + 2, end);
            match last.and_then(|last: usize| media[last].as_mut()) {
                Some(last) => (last.connection, last.has_own) = (connection, true),
                None if has_media => {}
                None => session = connection,
            }
        } else if text::starts(line, b"m=") {
            (has_media, last) = (true, None);
            if let Some(found) = media_at(message, at + 2, end).filter(|found| found.port >= PORT_MIN) {
                // A message with a rewritten header and this description would promise media that
                // cannot come.
                let Some(slot) = media.get_mut(count) else { return findings.overflow() };
                (*slot, last) = (Some(found), Some(count));
                count += 1;
            }
        } else if text::starts(line, b"a=rtcp:")
            && let Some(last) = last.and_then(|last| media[last].as_mut())
            && let Some((port, digits)) = text::port(text::part(message, at + 7, end))
        {
            let port_end = at + 7 + digits;
            last.rtcp = Some((port, at + 7, port_end, own_address(context, message, port_end + 1, end)));
        }
        at = end + if text::starts(&message[end..to], b"\r\n") { 2 } else { 1 };
    }
    let mut of_session = None;
    for media in media.into_iter().flatten() {
        let connection = if media.has_own { media.connection } else { session };
        let Some((from, to)) = connection else { continue };
        let kind = if media.is_rtp && !has_other_rtcp(&media) { WantKind::Pair } else { WantKind::Data };
        let want = findings.want(Want { port: media.port, kind, ..Want::default() });
        findings.edit(media.at, media.end, Put::Port(Some(want), 0));
        if media.has_own {
            findings.edit(from, to, Put::Address(Some(want)));
        } else {
            of_session.get_or_insert((from, to, want));
        }
        let Some((port, from, to, address)) = media.rtcp else { continue };
        let (rtcp, plus) = match kind {
            WantKind::Pair => (want, 1),
            _ if port >= PORT_MIN => (findings.want(Want { port, ..Want::default() }), 0),
            _ => continue,
        };
        findings.edit(from, to, Put::Port(Some(rtcp), plus));
        if let Some((from, to)) = address {
            findings.edit(from, to, Put::Address(Some(rtcp)));
        }
    }
    if let Some((from, to, want)) = of_session {
        findings.edit(from, to, Put::Address(Some(want)));
    }
}

fn has_other_rtcp(media: &Media) -> bool {
    media.rtcp.is_some_and(|(port, ..)| media.port.checked_add(1) != Some(port)) || media.port % 2 == 1
}

/// `IN IP4 address`, if the address is the sender's own.
fn own_address(context: &Context<'_>, message: &[u8], from: usize, to: usize) -> Connection {
    let value = message.get(from..to)?;
    let at = from + value.strip_prefix(b"IN IP4 ").map(|_| 7)?;
    let (address, length) = text::address(message.get(at..to)?)?;
    (address == context.internal.address).then_some((at, at + length))
}

/// `audio 5004 RTP/AVP 0`. A number of ports after a slash is left alone.
fn media_at(message: &[u8], from: usize, to: usize) -> Option<Media> {
    let value = message.get(from..to)?;
    let at = from + text::position(value, |byte| byte == b' ')? + 1;
    let (port, digits) = text::port(message.get(at..to)?)?;
    let end = at + digits;
    let protocol = message.get(end..to)?.strip_prefix(b" ")?;
    let is_udp = [&b"RTP/"[..], b"UDP", b"udptl"].iter().any(|start| text::starts(protocol, start));
    let port = if is_udp { port } else { 0 };
    let is_rtp = text::starts(protocol, b"RTP/") || text::starts(protocol, b"UDP/TLS/RTP/");
    Some(Media { port, at, end, is_rtp, connection: None, has_own: false, rtcp: None })
}
