//! Fragmentation for the next link's MTU, with DF clear (RFC 791 §3.2, RFC 4787 §12 REQ-13a). The
//! first piece has all options, the others those with the copied flag.

use core::fmt;
use core::ops::Range;

use wire::ipv4;
use wire::ipv4::Ipv4;

#[cfg(test)]
mod tests;

/// Why a packet cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Lengths contradict each other.
    Malformed,
    /// DF is set: inform the sender instead.
    DontFragment,
    /// Not even 8 bytes fit behind the header.
    MtuTooSmall,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Malformed => "IPv4 lengths contradict each other",
            Fault::DontFragment => "packet may not be fragmented",
            Fault::MtuTooSmall => "MTU leaves no room behind the IPv4 header",
        })
    }
}

impl core::error::Error for Fault {}

/// The header of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    bytes: [u8; ipv4::HEADER_LENGTH_MAX],
    length: u8,
}

impl Header {
    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&[])
    }

    fn new(fixed: &[u8], options: impl Iterator<Item = u8>) -> Header {
        let mut header = Header { bytes: [0; ipv4::HEADER_LENGTH_MAX], length: ipv4::HEADER_LENGTH_MIN as u8 };
        for (to, from) in header.bytes.iter_mut().zip(fixed.iter().take(ipv4::HEADER_LENGTH_MIN)) {
            *to = *from;
        }
        for (to, from) in header.bytes.iter_mut().skip(ipv4::HEADER_LENGTH_MIN).zip(options) {
            *to = from;
            header.length += 1;
        }
        // Padded with zeros: "end of options".
        header.length = header.length.next_multiple_of(4);
        let length = usize::from(header.length);
        Ipv4::new_unchecked(&mut header.bytes[..]).set_header_length(length);
        header
    }
}

/// A header, and its payload as a range of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Whole, with its checksum.
    pub header: Header,
    /// A range of the packet.
    pub payload: Range<usize>,
}

/// Pieces of a packet, in order.
#[derive(Clone, Debug)]
pub struct Split {
    first: Header,
    other: Header,
    mtu: usize,
    /// The remaining payload, as a range of the packet.
    rest: Range<usize>,
    /// Of `rest`, in units of 8 bytes.
    offset: u16,
    /// More-fragments flag of the packet itself.
    more: u16,
    is_first: bool,
}

/// Splits a translated packet into pieces of at most `mtu` bytes. Fragments can be split again.
pub fn split(packet: &[u8], mtu: u16) -> Result<Split, Fault> {
    let view = Ipv4::new_checked(packet).map_err(|_| Fault::Malformed)?;
    if view.dont_fragment() {
        return Err(Fault::DontFragment);
    }
    let (header_length, length) = (view.header_length(), usize::from(view.total_length()));
    let mtu = usize::from(mtu);
    if length > mtu && header_length + 8 > mtu {
        return Err(Fault::MtuTooSmall);
    }
    let bits = view.fragment_bits();
    Ok(Split {
        first: Header::new(packet, view.options().iter().copied()),
        other: Header::new(packet, copied_options(view.options())),
        mtu,
        rest: header_length..length,
        offset: bits & ipv4::FRAGMENT_OFFSET_MASK,
        more: bits & ipv4::FLAG_MORE_FRAGMENTS,
        is_first: true,
    })
}

/// Options that every fragment carries (RFC 791 §3.1).
fn copied_options(options: &[u8]) -> impl Iterator<Item = u8> {
    ipv4::options(options).filter(ipv4::Ipv4Option::is_copied).flat_map(|option| {
        let length = option.data.len() as u8 + 2;
        [option.kind, length].into_iter().chain(option.data.iter().copied())
    })
}

impl Iterator for Split {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.rest.is_empty() && !self.is_first {
            return None;
        }
        let mut header = if self.is_first { self.first } else { self.other };
        self.is_first = false;
        let header_length = usize::from(header.length);
        let room = self.mtu.saturating_sub(header_length);
        let is_last = self.rest.len() <= room;
        let length = if is_last { self.rest.len() } else { room & !7 };
        let payload = self.rest.start..self.rest.start + length;
        self.rest.start = payload.end;

        let mut view = Ipv4::new_unchecked(&mut header.bytes[..]);
        view.set_total_length((header_length + length) as u16);
        let more = if is_last { self.more } else { ipv4::FLAG_MORE_FRAGMENTS };
        view.set_fragment_bits(more | (self.offset & ipv4::FRAGMENT_OFFSET_MASK));
        view.fill_checksum();
        self.offset += (length / 8) as u16;
        if !is_last && length == 0 {
            // Guards against an endless loop; excluded by `split`.
            self.rest.start = self.rest.end;
        }
        Some(Piece { header, payload })
    }
}
