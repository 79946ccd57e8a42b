//! FTP (RFC 959, RFC 2428): `PORT` and `EPRT` of a client inside, replies to `PASV` and `EPSV` of a
//! server inside.

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
use crate::findings::Put;
use crate::text;

pub(crate) struct Ftp;

/// The server has sent its 220.
const GREETED: u32 = 1 << 0;
/// The client has sent its first command.
const SPOKEN: u32 = 1 << 1;
/// `AUTH` waits for its reply.
const AUTHENTICATING: u32 = 1 << 2;
const PASV: u32 = 1 << 3;
const EPSV: u32 = 1 << 4;
/// A 1xx reply was sent and the final one was not: a transfer runs.
const TRANSFERRING: u32 = 1 << 5;

/// Place of the number of commands without a reply, up to [`IN_FLIGHT_MAX`].
const IN_FLIGHT: usize = 0;
/// Place of the number of those that are answered before `PASV` or `EPSV` is.
const AHEAD: usize = 1;
const IN_FLIGHT_MAX: u32 = 255;

/// Letters of a command: `PWD`, `XSHA512`, and room for others.
const COMMAND_MIN: usize = 3;
const COMMAND_MAX: usize = 12;

/// A code and what follows it, which begin the greeting.
const GREETING_MIN: usize = 4;

const COMMANDS: &[&str] = &["PORT", "EPRT", "PASV", "EPSV"];

/// What FTP clients begin with. None is a method of HTTP or a verb of SMTP that a browser sends.
const FIRST: &[&[u8]] = &[
    b"USER", b"AUTH", b"FEAT", b"HOST", b"OPTS", b"CLNT", b"SYST", b"QUIT", b"NOOP", b"PASS", b"ACCT", b"LANG",
    b"PBSZ", b"PROT", b"REIN", b"HELP", b"STAT", b"CSID",
];

impl Alg for Ftp {
    fn name(&self) -> &'static str {
        "ftp"
    }

    fn about(&self) -> &'static str {
        "FTP (RFC 959, RFC 2428)."
    }

    fn ports(&self) -> &'static [u16] {
        &[21]
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Tcp]
    }

    fn commands(&self) -> &'static [&'static str] {
        COMMANDS
    }

    fn frame(&self, memory: &mut Memory, context: &Context<'_>, bytes: &[u8], seen: usize) -> Frame {
        // A client that speaks before the greeting is no FTP client.
        if context.from_client && memory.flags & GREETED == 0 {
            return Frame::Over;
        }
        if seen < 4 && !is_plausible_start(memory, context, bytes) {
            return Frame::Over;
        }
        let from = seen.saturating_sub(1);
        let end = text::position(bytes.get(from..).unwrap_or(&[]), |byte| matches!(byte, b'\r' | b'\n' | 0));
        match end.map(|end| from + end) {
            // Some servers end a line where there is only a LF, others do not.
            Some(end) if bytes[end] != b'\r' => Frame::Over,
            Some(end) if end > LINE_MAX - 2 => Frame::Over,
            Some(end) => match bytes.get(end + 1) {
                None => Frame::More,
                Some(b'\n') => Frame::Message(end + 2),
                Some(_) => Frame::Over,
            },
            None if bytes.len() >= LINE_MAX => Frame::Over,
            None => Frame::More,
        }
    }

    fn read(&self, memory: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading {
        let line = message.strip_suffix(b"\r\n").unwrap_or(message);
        if context.from_client {
            read_command(memory, context, line, findings)
        } else {
            read_reply(memory, context, line, findings)
        }
    }

    /// Both read lines. The server has introduced itself by its first word, and the client has
    /// waited for it.
    fn is_surely_its_own(&self, memory: &Memory, _: &Context<'_>, bytes: &[u8]) -> bool {
        memory.flags & GREETED != 0 || bytes.len() >= GREETING_MIN
    }

    fn is_busy(&self, memory: &Memory) -> bool {
        memory.flags & TRANSFERRING != 0
    }
}

fn is_plausible_start(memory: &Memory, context: &Context<'_>, bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(4)];
    if context.from_client {
        if memory.flags & SPOKEN != 0 {
            return true;
        }
        let mut upper = [0; 4];
        let upper = &mut upper[..head.len()];
        upper.copy_from_slice(head);
        upper.make_ascii_uppercase();
        return text::may_become(upper, FIRST);
    }
    memory.flags & GREETED != 0 || text::may_become(head, &[b"220 ", b"220-", b"120 ", b"120-", b"421 ", b"421-"])
}

/// Whether the line begins with this command, and where its argument begins.
fn argument(line: &[u8], command: &[u8]) -> Option<usize> {
    if !text::starts_with_ignoring_case(line, command) {
        return None;
    }
    match line.get(command.len()) {
        None => Some(command.len()),
        Some(b' ') => Some(command.len() + 1),
        Some(_) => None,
    }
}

/// Whether a line begins with a word as commands have, and the first one with a command of
/// [`FIRST`]. Header fields, empty lines and markup do not: they are of another protocol, whose
/// method may be called as a command is.
fn is_command(memory: &Memory, line: &[u8]) -> bool {
    if memory.flags & SPOKEN == 0 {
        return FIRST.iter().any(|first| argument(line, first).is_some());
    }
    let word = text::leading(line, |byte| byte.is_ascii_alphanumeric());
    word.clamp(COMMAND_MIN, COMMAND_MAX) == word && matches!(line.get(word), None | Some(b' '))
}

fn read_command(memory: &mut Memory, context: &Context<'_>, line: &[u8], findings: &mut Findings) -> Reading {
    // Telnet's interrupt comes before ABOR (RFC 959 §4.1.3): IAC IP, IAC DM.
    // Each of its bytes is in this range, and 255 is every other one.
    let controls = text::leading(line, |byte| byte >= 240) & !1;
    let telnet = text::bytes(line, 0, controls).find(|(at, byte)| at % 2 == 0 && *byte != 255);
    let telnet = telnet.map_or(controls, |(at, _)| at);
    let command = &line[telnet..];
    if !text::all(command, |byte| byte >= 0x20 || byte == b'\t') || !is_command(memory, command) {
        return Reading::Over;
    }
    memory.flags |= SPOKEN;
    let ahead = memory.awaited[IN_FLIGHT];
    memory.awaited[IN_FLIGHT] = (ahead + 1).min(IN_FLIGHT_MAX);
    let mut await_reply = |command: u32| {
        memory.flags = memory.flags & !(PASV | EPSV) | command;
        memory.awaited[AHEAD] = ahead;
    };
    let allows = |bit: u8| context.disabled & 1 << bit == 0;
    if argument(command, b"AUTH").is_some() {
        memory.flags |= AUTHENTICATING;
    } else if argument(command, b"PASV").is_some() && allows(2) {
        await_reply(PASV);
    } else if argument(command, b"EPSV").is_some() && allows(3) {
        await_reply(EPSV);
    } else if let Some(at) = argument(command, b"PORT").filter(|_| allows(0) && context.from_inside) {
        read_port(context, line, telnet + at, findings);
    } else if let Some(at) = argument(command, b"EPRT").filter(|_| allows(1) && context.from_inside) {
        read_eprt(context, line, telnet + at, findings);
    }
    Reading::Done
}

fn read_reply(memory: &mut Memory, context: &Context<'_>, line: &[u8], findings: &mut Findings) -> Reading {
    let code = match text::number(line, 3) {
        Some((code, 3)) if matches!(line.get(3), Some(b' ' | b'-') | None) => Some(code),
        _ => None,
    };
    // RFC 959 §4.2: a reply of several lines ends with its code and a blank; lines between may
    // begin with anything.
    let several = memory.number;
    if several != 0 {
        if code != Some(several) || line.get(3) == Some(&b'-') {
            return Reading::Done;
        }
        memory.number = 0;
    }
    let Some(code) = code else { return Reading::Over };
    if line.get(3) == Some(&b'-') {
        memory.number = code;
        return Reading::Done;
    }
    let asked = memory.flags & (PASV | EPSV);
    if code >= 200 {
        memory.flags &= !TRANSFERRING;
    }
    match code {
        220 => memory.flags |= GREETED,
        110..=159 if memory.flags & GREETED != 0 => memory.flags |= TRANSFERRING,
        // What follows is encrypted.
        234 | 334 if memory.flags & AUTHENTICATING != 0 => return Reading::Over,
        227 if several == 0 && asked == PASV && context.from_inside => read_passive(context, line, findings),
        229 if several == 0 && asked == EPSV && context.from_inside => read_extended(context, line, findings),
        _ => {}
    }
    if code >= 200 {
        memory.flags &= !AUTHENTICATING;
        memory.awaited[IN_FLIGHT] = memory.awaited[IN_FLIGHT].saturating_sub(1);
        // Replies come in the order of commands, and a client may send several at once.
        match memory.awaited[AHEAD].checked_sub(1) {
            Some(ahead) if !matches!(code, 227 | 229) => memory.awaited[AHEAD] = ahead,
            _ => memory.flags &= !(PASV | EPSV),
        }
    }
    Reading::Done
}

/// `h1,h2,h3,h4,p1,p2` at the start: address, port, length.
fn commas(bytes: &[u8]) -> Option<(u32, u16, usize)> {
    let (mut value, mut at) = (0_u64, 0);
    for i in 0..6 {
        if i > 0 {
            if bytes.get(at) != Some(&b',') {
                return None;
            }
            at += 1;
        }
        let (octet, length) = text::number(bytes.get(at..)?, 3)?;
        if octet > 255 {
            return None;
        }
        value = value << 8 | u64::from(octet);
        at += length;
    }
    Some(((value >> 16) as u32, value as u16, at))
}

fn is_own(context: &Context<'_>, address: u32, port: u16) -> bool {
    address == context.internal.address && port >= PORT_MIN
}

fn connection(port: u16, needs_own_address: bool) -> Want {
    // RFC 959 §4.1.2: a further PORT or PASV is about the next transfer.
    Want { port, transport: Transport::Tcp, needs_own_address, replaces: true, ..Want::default() }
}

fn read_port(context: &Context<'_>, line: &[u8], at: usize, findings: &mut Findings) {
    let from = text::skip_blanks(line, at);
    let Some((address, port, length)) = line.get(from..).and_then(commas) else { return };
    if text::skip_blanks(line, from + length) == line.len() && is_own(context, address, port) {
        let want = findings.want(connection(port, false));
        findings.edit(from, from + length, Put::Commas(Some(want)));
    }
}

/// `|1|address|port|` (RFC 2428 §2), with any delimiter.
fn read_eprt(context: &Context<'_>, line: &[u8], at: usize, findings: &mut Findings) {
    let from = text::skip_blanks(line, at);
    let Some(&delimiter) = line.get(from).filter(|byte| byte.is_ascii_graphic() && !byte.is_ascii_alphanumeric())
    else {
        return;
    };
    if line.get(from + 1..from + 3) != Some(&[b'1', delimiter]) {
        return;
    }
    let address_at = from + 3;
    let Some((address, length)) = line.get(address_at..).and_then(text::address) else { return };
    let port_at = address_at + length + 1;
    if line.get(port_at - 1) != Some(&delimiter) {
        return;
    }
    let Some((port, digits)) = line.get(port_at..).and_then(text::port) else { return };
    if line.get(port_at + digits) == Some(&delimiter)
        && text::skip_blanks(line, port_at + digits + 1) == line.len()
        && is_own(context, address, port)
    {
        let want = findings.want(connection(port, false));
        findings.edit(address_at, address_at + length, Put::Address(Some(want)));
        findings.edit(port_at, port_at + digits, Put::Port(Some(want), 0));
    }
}

/// The six numbers may stand in parentheses or not (RFC 1123 §4.1.2.6).
fn read_passive(context: &Context<'_>, line: &[u8], findings: &mut Findings) {
    let mut at = 4;
    while at < line.len() {
        at += text::leading(&line[at..], |byte| !byte.is_ascii_digit());
        if at == line.len() {
            return;
        }
        let Some((address, port, length)) = commas(&line[at..]) else {
            at += text::leading(&line[at..], |byte| byte.is_ascii_digit());
            continue;
        };
        if is_own(context, address, port) {
            let want = findings.want(connection(port, false));
            findings.edit(at, at + length, Put::Commas(Some(want)));
        }
        return;
    }
}

/// `(|||port|)` (RFC 2428 §3).
fn read_extended(context: &Context<'_>, line: &[u8], findings: &mut Findings) {
    let Some(open) = text::position(line, |byte| byte == b'(') else { return };
    let Some(&[a, b, c]) = line.get(open + 1..open + 4) else { return };
    if a != b || b != c || a.is_ascii_digit() {
        return;
    }
    let at = open + 4;
    let Some((port, digits)) = line.get(at..).and_then(text::port) else { return };
    if line.get(at + digits..at + digits + 2) == Some(&[a, b')']) && is_own(context, context.internal.address, port) {
        let want = findings.want(connection(port, true));
        findings.edit(at, at + digits, Put::Port(Some(want), 0));
    }
}
