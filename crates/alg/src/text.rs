//! Small readers of text, all linear.

/// A decimal number of at most `digits` digits at the start, and its length. A digit after it makes
/// it no number.
pub(crate) fn number(bytes: &[u8], digits: usize) -> Option<(u32, usize)> {
    let length = bytes.iter().take(digits + 1).take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 || length > digits {
        return None;
    }
    let value = bytes[..length].iter().fold(0_u32, |value, byte| value * 10 + u32::from(byte - b'0'));
    Some((value, length))
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

/// Position of `needle`, searched from `from` on.
pub(crate) fn find(bytes: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(needle.len()).position(|window| window == needle).map(|at| from + at)
}

pub(crate) fn starts_with_ignoring_case(bytes: &[u8], start: &[u8]) -> bool {
    bytes.get(..start.len()).is_some_and(|head| head.eq_ignore_ascii_case(start))
}

/// Whether the rest may still become one of `words`.
pub(crate) fn may_become(bytes: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| {
        let length = bytes.len().min(word.len());
        bytes[..length] == word[..length]
    })
}

/// `from..to`, or nothing if it is no range of the bytes.
pub(crate) fn part(bytes: &[u8], from: usize, to: usize) -> &[u8] {
    bytes.get(from..to).unwrap_or(&[])
}

pub(crate) fn skip_blanks(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

pub(crate) fn trim_end(bytes: &[u8], from: usize, mut to: usize) -> usize {
    while to > from && matches!(bytes[to - 1], b' ' | b'\t' | b'\r' | b'\n') {
        to -= 1;
    }
    to
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
}

impl<'a> Fields<'a> {
    pub(crate) fn new(message: &'a [u8], at: usize) -> Fields<'a> {
        Fields { message, at, body: None, is_malformed: false }
    }

    fn line_end(&self, from: usize) -> Option<usize> {
        let line = self.message.get(from..)?;
        let line = &line[..line.len().min(crate::LINE_MAX + 2)];
        let end = line.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
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
        let Some(mut end) = self.line_end(start) else {
            self.is_malformed = true;
            return None;
        };
        if end == start {
            self.body = Some(end + 2);
            return None;
        }
        while matches!(self.message.get(end + 2), Some(b' ' | b'\t')) {
            let Some(folded) = self.line_end(end + 2) else {
                self.is_malformed = true;
                return None;
            };
            end = folded;
        }
        self.at = end + 2;
        let line = &self.message[start..end];
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            self.is_malformed = true;
            return None;
        };
        let name = &line[..trim_end(line, 0, colon)];
        if name.is_empty() || !name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.!%*+`'~".contains(byte)) {
            self.is_malformed = true;
            return None;
        }
        Some((name, start + colon + 1, end))
    }
}

/// The first message of a stream of messages that consist of a line, header fields, and a body with
/// its length in a field.
pub(crate) fn frame(
    bytes: &[u8],
    seen: usize,
    starts: &[&[u8]],
    start_max: usize,
    is_start: impl Fn(&[u8]) -> bool,
    is_length: impl Fn(&[u8]) -> bool,
) -> crate::Frame {
    use crate::Frame;
    if !may_become(&bytes[..bytes.len().min(start_max)], starts) {
        return Frame::Over;
    }
    let line = &bytes[..bytes.len().min(crate::LINE_MAX)];
    match line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(end) if !is_start(&bytes[..end]) => return Frame::Over,
        Some(_) => {}
        None if bytes.len() >= crate::LINE_MAX => return Frame::Over,
        None => return Frame::More,
    }
    let Some(end) = find(bytes, b"\r\n\r\n", seen.saturating_sub(3)) else {
        return Frame::More;
    };
    let first = line.iter().position(|byte| *byte == b'\r').unwrap_or(0);
    let mut length = None;
    let mut fields = Fields::new(&bytes[..end + 4], first + 2);
    for (name, from, to) in fields.by_ref() {
        if is_length(name) {
            let value = part(bytes, skip_blanks(bytes, from), to);
            match number(value, 5) {
                // Two lengths would let both sides see different messages.
                Some((value, _)) if length.is_none_or(|known| known == value) => length = Some(value),
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
    } else if bytes.len() < total {
        Frame::Needs(total)
    } else {
        Frame::Message(total)
    }
}
