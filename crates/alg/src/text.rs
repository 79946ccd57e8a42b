//! Small readers of text, all linear. They count what they look at ([`crate::work`]).

use crate::Context;
use crate::Frame;
use crate::Memory;
use crate::work;

/// The bytes of `from..to` with their positions.
pub(crate) fn bytes(message: &[u8], from: usize, to: usize) -> impl Iterator<Item = (usize, u8)> {
    (from..).zip(part(message, from, to).iter().copied()).inspect(|_| work::count(1))
}

/// Position of the first byte that `is_it` accepts.
pub(crate) fn position(bytes: &[u8], is_it: impl Fn(u8) -> bool) -> Option<usize> {
    let found = bytes.iter().position(|byte| is_it(*byte));
    work::count(found.map_or(bytes.len(), |at| at + 1));
    found
}

/// Position of the last byte that `is_it` accepts.
pub(crate) fn last_position(bytes: &[u8], is_it: impl Fn(u8) -> bool) -> Option<usize> {
    let found = bytes.iter().rposition(|byte| is_it(*byte));
    work::count(found.map_or(bytes.len(), |at| bytes.len() - at));
    found
}

/// Bytes outside quoted strings (RFC 3261 §25.1, RFC 7826 §20.1), and the quotes that begin these.
pub(crate) fn unquoted(message: &[u8], from: usize, to: usize) -> impl Iterator<Item = (usize, u8)> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    bytes(message, from, to).filter(move |(_, byte)| {
        let was_quoted = is_quoted;
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        !was_quoted
    })
}

/// How many bytes at the start `is_it` accepts.
pub(crate) fn leading(bytes: &[u8], is_it: impl Fn(u8) -> bool) -> usize {
    position(bytes, |byte| !is_it(byte)).unwrap_or(bytes.len())
}

/// Whether `is_it` accepts every byte.
pub(crate) fn all(bytes: &[u8], is_it: impl Fn(u8) -> bool) -> bool {
    position(bytes, |byte| !is_it(byte)).is_none()
}

/// Parts between separators.
pub(crate) fn parts(bytes: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    bytes.split(move |byte| *byte == separator).inspect(|part| work::count(part.len() + 1))
}

/// Lines, however they end.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| matches!(byte, b'\r' | b'\n')).inspect(|line| work::count(line.len() + 1))
}

/// Whether these are the same letters.
pub(crate) fn is(bytes: &[u8], known: &[u8]) -> bool {
    work::count(if bytes.len() == known.len() { known.len() } else { 1 });
    bytes.eq_ignore_ascii_case(known)
}

/// Whether the bytes begin so, letter by letter.
pub(crate) fn starts(bytes: &[u8], start: &[u8]) -> bool {
    work::count(start.len());
    bytes.starts_with(start)
}

/// Whether the bytes end so, letter by letter.
pub(crate) fn ends(bytes: &[u8], end: &[u8]) -> bool {
    work::count(end.len());
    bytes.ends_with(end)
}

/// A decimal number of at most `digits` digits at the start, and its length. A digit after it makes
/// it no number.
pub(crate) fn number(bytes: &[u8], digits: usize) -> Option<(u32, usize)> {
    let length = leading(&bytes[..bytes.len().min(digits + 1)], |byte| byte.is_ascii_digit());
    if length == 0 || length > digits {
        return None;
    }
    let value = bytes[..length].iter().fold(0_u32, |value, byte| value * 10 + u32::from(byte - b'0'));
    Some((value, length))
}

/// A time at the start: at most 2³² − 1 seconds (RFC 3261 §20.19).
pub(crate) fn seconds(bytes: &[u8]) -> Option<u32> {
    let length = leading(bytes, |byte| byte.is_ascii_digit());
    let add = |value: u32, byte: &u8| value.checked_mul(10)?.checked_add(u32::from(byte - b'0'));
    bytes[..length].iter().try_fold(0, add).filter(|_| length > 0)
}

/// The value of a header field that is a number of at most five digits and nothing else: the
/// number, and where its digits begin and end.
pub(crate) fn whole_number(message: &[u8], from: usize, to: usize) -> Option<(u32, usize, usize)> {
    let at = skip_blanks(message, from);
    let (value, digits) = number(part(message, at, to), 5)?;
    (trim_end(message, at, to) == at + digits).then_some((value, at, at + digits))
}

pub(crate) fn port(bytes: &[u8]) -> Option<(u16, usize)> {
    let (value, length) = number(bytes, 5)?;
    Some((u16::try_from(value).ok()?, length))
}

/// An IPv4 address at the start, and its length. Octets have no leading zeros, which some read as
/// octal.
pub(crate) fn address(bytes: &[u8]) -> Option<(u32, usize)> {
    let (mut value, mut at) = (0_u32, 0);
    for i in 0..4 {
        if i > 0 {
            if bytes.get(at) != Some(&b'.') {
                return None;
            }
            at += 1;
        }
        let (octet, length) = number(bytes.get(at..)?, 3)?;
        if octet > 255 || (length > 1 && bytes[at] == b'0') {
            return None;
        }
        value = value << 8 | octet;
        at += length;
    }
    match bytes.get(at) {
        Some(b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_') => None,
        _ => Some((value, at)),
    }
}

/// Whether this address is somewhere in the bytes, also as only some programs would read it: before
/// further numbers, or with zeros before its own.
pub(crate) fn has_address(bytes: &[u8], address: u32) -> bool {
    let mut at = 0;
    while let Some(digit) = position(&bytes[at..], |byte| byte.is_ascii_digit()) {
        let from = at + digit;
        at = from + leading(&bytes[from..], |byte| byte.is_ascii_digit() || byte == b'.');
        if may_be_address(&bytes[from..at], address) {
            return true;
        }
    }
    false
}

fn may_be_address(numbers: &[u8], address: u32) -> bool {
    let mut numbers = parts(numbers, b'.');
    let mut has_zeros = false;
    let mut octets = address.to_be_bytes().into_iter();
    octets.all(|octet| {
        let Some(number) = numbers.next() else { return false };
        has_zeros |= number.len() > 1 && number[0] == b'0';
        let add = |value: u32, digit: &u8| value.saturating_mul(10).saturating_add(u32::from(digit - b'0'));
        // Some read zeros before it as octal.
        has_zeros || !number.is_empty() && number.iter().fold(0, add) == u32::from(octet)
    })
}

/// Position of `needle`, searched from `from` on.
pub(crate) fn find(bytes: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let found = rest.windows(needle.len()).position(|window| window == needle);
    work::count(needle.len() * found.map_or(rest.len(), |at| at + 1));
    found.map(|at| from + at)
}

pub(crate) fn starts_with_ignoring_case(bytes: &[u8], start: &[u8]) -> bool {
    bytes.get(..start.len()).is_some_and(|head| is(head, start))
}

/// Whether the rest may still become one of `words`.
pub(crate) fn may_become(bytes: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| {
        let length = bytes.len().min(word.len());
        work::count(length);
        bytes[..length] == word[..length]
    })
}

/// `from..to`, or nothing if it is no range of the bytes.
pub(crate) fn part(bytes: &[u8], from: usize, to: usize) -> &[u8] {
    bytes.get(from..to).unwrap_or(&[])
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

pub(crate) fn skip_blanks(bytes: &[u8], at: usize) -> usize {
    at + leading(bytes.get(at..).unwrap_or(&[]), is_blank)
}

pub(crate) fn trim_end(bytes: &[u8], from: usize, to: usize) -> usize {
    last_position(part(bytes, from, to), |byte| !is_blank(byte)).map_or(from, |at| from + at + 1)
}

/// The header fields of a message whose first line has ended at `at`, with folded lines joined:
/// name, and where the value begins and ends. Ends at the empty line.
pub(crate) struct Fields<'a> {
    message: &'a [u8],
    at: usize,
    /// The offset of the body, once all fields were read.
    pub(crate) body: Option<usize>,
    /// A line was no header field, or too long.
    pub(crate) is_malformed: bool,
    /// Fields that may be as long as their message.
    long: &'static [&'static [u8]],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8], at: usize, long: &'static [&'static [u8]]) -> Fields<'a> {
        Fields { message, at, body: None, is_malformed: false, long }
    }

    /// How long each line of the field that begins here may be.
    fn line_max(&self, from: usize) -> usize {
        let line = self.message.get(from..).unwrap_or_default();
        let is_it = |name: &&[u8]| {
            starts_with_ignoring_case(line, name) && matches!(line.get(name.len()), Some(b':' | b' ' | b'\t'))
        };
        if self.long.iter().any(is_it) { crate::MESSAGE_MAX } else { crate::LINE_MAX }
    }

    fn line_end(&self, from: usize, max: usize) -> Option<usize> {
        let line = self.message.get(from..)?;
        let line = &line[..line.len().min(max + 2)];
        let end = position(line, |byte| matches!(byte, b'\r' | b'\n'))?;
        (line.get(end..end + 2)? == b"\r\n").then_some(from + end)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        if self.body.is_some() || self.is_malformed {
            return None;
        }
        let start = self.at;
        let max = self.line_max(start);
        let Some(mut end) = self.line_end(start, max) else {
            self.is_malformed = true;
            return None;
        };
        if end == start {
            self.body = Some(end + 2);
            return None;
        }
        while matches!(self.message.get(end + 2), Some(b' ' | b'\t')) {
            let Some(folded) = self.line_end(end + 2, max) else {
                self.is_malformed = true;
                return None;
            };
            end = folded;
        }
        self.at = end + 2;
        let line = &self.message[start..end];
        let Some(colon) = position(line, |byte| byte == b':') else {
            self.is_malformed = true;
            return None;
        };
        let name = &line[..trim_end(line, 0, colon)];
        if name.is_empty() || !all(name, |byte| byte.is_ascii_alphanumeric() || b"-_.!%*+`'~".contains(&byte)) {
            self.is_malformed = true;
            return None;
        }
        Some((name, start + colon + 1, end))
    }
}

/// Messages that consist of a line, header fields, and a body with its length in a field.
pub(crate) struct Shape {
    /// What a message may begin with.
    pub(crate) starts: &'static [&'static [u8]],
    /// Bytes of the longest of them.
    pub(crate) start_max: usize,
    /// Whether this is a first line.
    pub(crate) is_start: fn(&[u8]) -> bool,
    /// Whether the field of this name has the length.
    pub(crate) is_length: fn(&[u8]) -> bool,
    /// Bodies are read, so that a message waits for its body.
    pub(crate) has_read_body: bool,
    /// Fields that may be as long as their message.
    pub(crate) long: &'static [&'static [u8]],
}

/// The first line of a message that is not complete was read. One bit for each direction; both are
/// above those of the gateways.
const LINE_READ: u32 = 1 << 30;
/// The first line of any message was read. One bit for each direction, too.
const KNOWN: u32 = 1 << 28;

/// See [`crate::Alg::is_surely_its_own`].
pub(crate) fn is_surely_begun(memory: &Memory, context: &Context<'_>, bytes: &[u8], shape: &Shape) -> bool {
    let is_known = memory.flags & KNOWN << u32::from(context.from_client) != 0;
    let is_begun = is_known || shape.starts.iter().any(|start| starts(bytes, start));
    is_begun && !has_bare_line_end(bytes)
}

/// Whether a header has a line that ends with LF or CR alone. Its receiver may take an empty one
/// for the end of the header (RFC 2326 §4), and this gateway does not.
fn has_bare_line_end(message: &[u8]) -> bool {
    let header = find(message, b"\r\n\r\n", 0).map_or(message, |end| &message[..end]);
    let mut before = 0;
    bytes(header, 0, header.len()).any(|(_, byte)| (byte == b'\n') != (core::mem::replace(&mut before, byte) == b'\r'))
}

/// The first message of a stream. Each byte is looked at when it comes, and the header fields when
/// they are complete and once more with the whole body.
pub(crate) fn frame(memory: &mut Memory, context: &Context<'_>, bytes: &[u8], seen: usize, shape: &Shape) -> Frame {
    if seen < shape.start_max && !may_become(&bytes[..bytes.len().min(shape.start_max)], shape.starts) {
        return Frame::Over;
    }
    let line_read = LINE_READ << u32::from(context.from_client);
    if seen == 0 {
        memory.flags &= !line_read;
    }
    let is_end = |byte| matches!(byte, b'\r' | b'\n');
    if memory.flags & line_read == 0 {
        let line = &bytes[..bytes.len().min(crate::LINE_MAX)];
        match position(line.get(seen..).unwrap_or(&[]), is_end) {
            Some(end) if !(shape.is_start)(&bytes[..seen + end]) => return Frame::Over,
            Some(_) => memory.flags |= line_read | KNOWN << u32::from(context.from_client),
            None if bytes.len() >= crate::LINE_MAX => return Frame::Over,
            None => return Frame::More,
        }
    }
    let Some(end) = find(bytes, b"\r\n\r\n", seen.saturating_sub(3)) else {
        return Frame::More;
    };
    let first = position(bytes, is_end).unwrap_or(0);
    let mut length = None;
    let mut fields = Fields::new(&bytes[..end + 4], first + 2, shape.long);
    for (name, from, to) in fields.by_ref() {
        if (shape.is_length)(name) {
            match whole_number(bytes, from, to) {
                // Two lengths would let both sides see different messages.
                Some((value, ..)) if length.is_none_or(|known| known == value) => length = Some(value),
                _ => return Frame::Over,
            }
        }
    }
    if fields.is_malformed {
        return Frame::Over;
    }
    let total = end + 4 + length.unwrap_or(0) as usize;
    if total > crate::MESSAGE_MAX {
        Frame::Over
    } else if !shape.has_read_body && total > end + 4 {
        Frame::Part(end + 4, total - end - 4)
    } else if bytes.len() < total {
        Frame::Needs(total)
    } else {
        Frame::Message(total)
    }
}
