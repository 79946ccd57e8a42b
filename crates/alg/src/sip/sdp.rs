//! SDP (RFC 4566, RFC 3605): the address of `c=`, the port of `m=` and of `a=rtcp`.

use crate::Context;
use crate::Findings;
use crate::LINE_MAX;
use crate::PORT_MIN;
use crate::Want;
use crate::WantKind;
use crate::findings::Put;
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

/// Media of a description.
const MEDIA_MAX: usize = 8;

/// Whether `c=` or `a=rtcp` of a description from outside has the internal address.
pub(super) fn names_inside(context: &Context<'_>, message: &[u8], from: usize, to: usize) -> bool {
    let mut at = from;
    while at < to {
        let length = text::position(&message[at..to], |byte| matches!(byte, b'\r' | b'\n')).unwrap_or(to - at);
        let (line, end) = (&message[at..at + length], at + length);
        let connection = match line {
            [b'c', b'=', ..] => own_address(context, message, at + 2, end),
            [b'a', b'=', b'r', b't', b'c', b'p', b':', ..] => text::position(line, |byte| byte == b' ')
                .and_then(|blank| own_address(context, message, at + blank + 1, end)),
            _ => None,
        };
        if connection.is_some() {
            return true;
        }
        at = end + 1;
    }
    false
}

/// Reads `from..to` of the message.
pub(super) fn read(context: &Context<'_>, message: &[u8], from: usize, to: usize, findings: &mut Findings) {
    let mut session: Connection = None;
    let mut media: [Option<Media>; MEDIA_MAX] = [None; MEDIA_MAX];
    let (mut count, mut at) = (0_usize, from);
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
            match count.checked_sub(1).and_then(|last| media.get_mut(last)) {
                Some(Some(last)) => (last.connection, last.has_own) = (connection, true),
                // Of a media line that was not understood.
                Some(None) => {}
                None => session = connection,
            }
        } else if text::starts(line, b"m=") {
            let Some(slot) = media.get_mut(count) else { return };
            *slot = media_at(message, at + 2, end);
            count += 1;
        } else if text::starts(line, b"a=rtcp:")
            && let Some(last) = count.checked_sub(1).and_then(|last| media.get_mut(last)?.as_mut())
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
        if media.port < PORT_MIN {
            continue;
        }
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
