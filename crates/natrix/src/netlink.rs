//! Messages of netlink, as far as two questions to the kernel need them (`linux/netlink.h`).

use std::io;

use netlink_sys::Socket;
use netlink_sys::SocketAddr;

/// Bytes of a message's header.
pub(crate) const HEADER: usize = 16;
/// A request that is no dump.
const REQUEST: u16 = 1;
/// Kind of an answer that is an error.
const ERROR: u16 = 2;
/// Flag of an attribute that has others in it.
pub(crate) const NESTED: u16 = 0x8000;
/// Longest answer: some hundred features with their names, or an interface with its statistics.
const ANSWER_MAX: usize = 64 * 1024;

/// A socket for questions to the kernel in one protocol.
pub(crate) fn connect(protocol: isize) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

/// One question and its answer, each without the header.
pub(crate) fn ask(socket: &Socket, kind: u16, question: &[u8]) -> io::Result<Vec<u8>> {
    let length = (HEADER + question.len()) as u32;
    let mut message = Vec::with_capacity(HEADER + question.len());
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Sequence number, port.
    message.extend([0; 8]);
    message.extend(question);
    socket.send(&message, 0)?;
    let mut answer = Vec::with_capacity(ANSWER_MAX);
    socket.recv(&mut answer, 0)?;
    if u16_at(&answer, 4) == Some(ERROR) {
        let code = answer.get(HEADER..HEADER + 4).and_then(|code| code.try_into().ok()).map_or(0, i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(-code));
    }
    Ok(answer.get(HEADER..).unwrap_or_default().to_vec())
}

pub(crate) fn u16_at(bytes: &[u8], place: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(place..place + 2)?.try_into().ok()?))
}

/// A text with its end, as the kernel reads it.
pub(crate) fn text(name: &str) -> Vec<u8> {
    [name.as_bytes(), &[0]].concat()
}

pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + value.len());
    bytes.extend(((4 + value.len()) as u16).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Kinds, without their flags, and values.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The text of an attribute, up to its end.
pub(crate) fn text_of(value: &[u8]) -> Option<&str> {
    core::str::from_utf8(value.split(|byte| *byte == 0).next()?).ok()
}
