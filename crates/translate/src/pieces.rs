//! Cuts a translated IPv6 packet into fragments (RFC 7915 §4.1, RFC 8200 §4.5).

use wire::field;
use wire::ipv6;
use wire::ipv6::Fragment;
use wire::ipv6::Ipv6;

const HEADERS_LENGTH: usize = ipv6::HEADER_LENGTH + ipv6::FRAGMENT_HEADER_LENGTH;

/// A fragment: its headers, and the bytes behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// IPv6 header and Fragment header.
    pub headers: [u8; HEADERS_LENGTH],
    /// Part of the packet.
    pub payload: &'a [u8],
}

/// Iterator of [`pieces`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    header: [u8; ipv6::HEADER_LENGTH],
    protocol: u8,
    fragment: Fragment,
    rest: &'a [u8],
    room: usize,
}

/// The fragments, of at most `mtu` bytes each, of an IPv6 packet that [`crate::to_ipv6`] wrote. The
/// packet may be a fragment already. `identification` is the IPv4 identification, which becomes the
/// low 16 bits (RFC 7915 §4.1); a fragment keeps its own. Without a whole header there are none.
#[must_use]
pub fn pieces(packet: &[u8], mtu: u16, identification: u32) -> Pieces<'_> {
    let view = Ipv6::new_unchecked(packet);
    let header = packet.first_chunk().copied().unwrap_or([0; ipv6::HEADER_LENGTH]);
    let whole = Fragment { offset: 0, more: false, identification };
    let (protocol, fragment, start) = if view.next_header() == ipv6::HEADER_FRAGMENT {
        let protocol = field::u8_at(packet, ipv6::HEADER_LENGTH);
        (protocol, Fragment::at(packet, ipv6::HEADER_LENGTH), HEADERS_LENGTH)
    } else {
        (view.next_header(), whole, ipv6::HEADER_LENGTH)
    };
    let rest = packet.get(start..view.length()).unwrap_or(&[]);
    let room = (usize::from(mtu).saturating_sub(HEADERS_LENGTH) & !7).max(8);
    Pieces { header, protocol, fragment, rest, room }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let (payload, rest) = self.rest.split_at(self.room.min(self.rest.len()));
        let fragment = Fragment { more: self.fragment.more || !rest.is_empty(), ..self.fragment };
        let mut headers = [0; HEADERS_LENGTH];
        if let Some(front) = headers.first_chunk_mut() {
            *front = self.header;
        }
        let mut ip = Ipv6::new_unchecked(headers.as_mut_slice());
        ip.set_next_header(ipv6::HEADER_FRAGMENT);
        ip.set_payload_length((ipv6::FRAGMENT_HEADER_LENGTH + payload.len()) as u16);
        fragment.write(&mut headers, ipv6::HEADER_LENGTH, self.protocol);
        self.fragment.offset = self.fragment.offset.wrapping_add(payload.len() as u16);
        self.rest = rest;
        Some(Piece { headers, payload })
    }
}
