//! Replies, and what a server sends unasked.

use crate::Body;
use crate::Code;
use crate::HEADER;
use crate::MESSAGE_MAX;
use crate::Map;
use crate::Options;
use crate::Peer;
use crate::PortSet;
use crate::Request;
use crate::VERSION;
use crate::be32;
use crate::put;

const RESPONSE: u8 = 1 << 7;
const MAP: u8 = 1;
const PEER: u8 = 2;
/// A reply to a request that is no longer than this may be as long as this, so that the server
/// amplifies nothing: the reply to a MAP without options.
const REPLY_MIN: usize = 60;

/// A message being written.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    bytes: [u8; MESSAGE_MAX],
    length: usize,
}

impl Reply {
    /// The message.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }

    fn empty() -> Reply {
        Reply { bytes: [0; MESSAGE_MAX], length: 0 }
    }

    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.bytes.get_mut(self.length..self.length + bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        self.length += bytes.len();
        true
    }

    fn set_header(&mut self, opcode: u8, code: Code, lifetime: u32, epoch: u32) {
        put(&mut self.bytes, 0, &[VERSION, opcode | RESPONSE]);
        put(&mut self.bytes, 3, &[code as u8]);
        put(&mut self.bytes, 4, &lifetime.to_be_bytes());
        put(&mut self.bytes, 8, &epoch.to_be_bytes());
    }

    /// The reply to a request that was carried out: `external` is what was assigned, `set` the
    /// ports of a set. Options that were processed follow in the order of the request. `None` if it
    /// would be too long.
    pub fn success(
        request: &Request<'_>,
        lifetime: u32,
        epoch: u32,
        external: Option<(u16, u32)>,
        options: &Options,
        set: Option<PortSet>,
    ) -> Option<Reply> {
        let mut reply = Reply::empty();
        let fixed = request.datagram.get(..request.fixed_length())?;
        reply.append(fixed).then_some(())?;
        let opcode = *request.datagram.get(1)?;
        put(&mut reply.bytes, 4, &[0; 20]);
        reply.set_header(opcode, Code::Success, lifetime, epoch);
        if let (Body::Map(_) | Body::Peer(_), Some((port, address))) = (request.body, external) {
            put(&mut reply.bytes, HEADER + 18, &port.to_be_bytes());
            put(&mut reply.bytes, HEADER + 20, &crate::mapped(address));
        }
        reply.append_options(options, set).then_some(reply)
    }

    /// Adds PREFIX64 (RFC 7225 §3.1): the translation prefix with its suffix, of which so many bits
    /// are the prefix. `None` if the reply would be too long.
    pub fn with_prefix64(mut self, prefix: u128, length: u8) -> Option<Reply> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = prefix.to_be_bytes();
        let fits = self.append(&[129, 0, 0, 16, 0, length / 8])
            && self.append(&[a, b, c, d, e, f, g, h, i, j, k, l])
            && self.append(&[0, 0]);
        fits.then_some(self)
    }

    fn append_map(&mut self, map: &Map) -> bool {
        self.append(&map.nonce)
            && self.append(&[map.protocol, 0, 0, 0])
            && self.append(&map.internal_port.to_be_bytes())
            && self.append(&map.external_port.to_be_bytes())
            && self.append(&map.external_address)
    }

    fn append_options(&mut self, options: &Options, set: Option<PortSet>) -> bool {
        let mut fits = true;
        if let Some(address) = options.third_party {
            fits &= self.append(&[1, 0, 0, 16]) && self.append(&address);
        }
        if options.prefer_failure {
            fits &= self.append(&[2, 0, 0, 0]);
        }
        for filter in options.filters() {
            let [high, low] = filter.port.to_be_bytes();
            fits &= self.append(&[3, 0, 0, 20, 0, filter.length, high, low]) && self.append(&filter.address);
        }
        if let Some(PortSet { size, first, parity }) = set {
            fits &= self.append(&[130, 0, 0, 5]) && self.append(&size.to_be_bytes());
            fits &= self.append(&first.to_be_bytes()) && self.append(&[u8::from(parity), 0, 0, 0]);
        }
        fits
    }
}

/// The reply to a request that is refused: a copy of it (RFC 6887 §8.2) in whole words. Up to 60
/// bytes it is padded; a longer request loses the bytes after its last whole word, and those
/// beyond the longest message.
pub fn error(datagram: &[u8], code: Code, lifetime: u32, epoch: u32) -> Reply {
    let mut reply = Reply::empty();
    let length = match datagram.len() {
        short @ 0..=REPLY_MIN => short.next_multiple_of(4).max(HEADER),
        long => (long & !3).min(MESSAGE_MAX),
    };
    let kept = datagram.get(..length).unwrap_or(datagram);
    reply.append(kept);
    reply.length = length;
    let opcode = datagram.get(1).copied().unwrap_or(0);
    reply.set_header(opcode, code, lifetime, epoch);
    if code.is_parsed() {
        put(&mut reply.bytes, 12, &[0; 12]);
    }
    reply
}

/// ANNOUNCE without a request (RFC 6887 §14.1.3).
pub fn announcement(epoch: u32) -> Reply {
    let mut reply = Reply::empty();
    reply.length = HEADER;
    reply.set_header(0, Code::Success, 0, epoch);
    reply
}

/// A Mapping Update (RFC 6887 §14.2): the reply that a renewal would get.
pub fn map_update(lifetime: u32, epoch: u32, map: &Map, options: &Options) -> Option<Reply> {
    let mut reply = announcement(epoch);
    reply.set_header(MAP, Code::Success, lifetime, epoch);
    (reply.append_map(map) && reply.append_options(options, options.port_set)).then_some(reply)
}

/// The same for a PEER.
pub fn peer_update(lifetime: u32, epoch: u32, peer: &Peer, options: &Options) -> Option<Reply> {
    let mut reply = announcement(epoch);
    reply.set_header(PEER, Code::Success, lifetime, epoch);
    let [high, low] = peer.remote_port.to_be_bytes();
    let fits = reply.append_map(&peer.map) && reply.append(&[high, low, 0, 0]) && reply.append(&peer.remote_address);
    (fits && reply.append_options(options, None)).then_some(reply)
}

/// The fields of a reply that a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// With the response bit.
    pub opcode: u8,
    /// Result code.
    pub result: u8,
    /// Lifetime, seconds.
    pub lifetime: u32,
    /// Epoch time of the server, seconds.
    pub epoch: u32,
}

impl Fields {
    /// `None` for what is no reply.
    pub fn of(reply: &[u8]) -> Option<Fields> {
        let header = reply.get(..HEADER)?;
        let [_, opcode, _, result, ..] = *header else { return None };
        (opcode & RESPONSE != 0).then(|| Fields { opcode, result, lifetime: be32(header, 4), epoch: be32(header, 8) })
    }
}
