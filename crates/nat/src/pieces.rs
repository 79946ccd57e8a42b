//! For `cargo bench -p nat` only: steps of a packet's processing.

use crate::headers::packet::Packet;
use crate::headers::parse::HEADERS;
use crate::headers::parse::Parsed;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::shard::Shard;
use crate::verdict::Verdict;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug)]
pub struct Headers(Parsed);

/// Reads and checks all headers.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Headers, Verdict> {
    crate::headers::parse::parse(bytes).map(Headers)
}

/// Checks a usual packet's headers and prefetches its table line; returns the line's hash or place.
#[inline]
pub fn first_pass(shard: &Shard, packet: &Packet<'_>) -> u64 {
    shard.first_pass(packet)
}

/// Changes the source of any packet, and decrements its TTL.
#[inline]
pub fn rewrite(bytes: &mut [u8], headers: &Headers, address: u32, port: u16) {
    let change = Rewrite { end: End::Source, address, port, identification: None, decrement_ttl: true };
    crate::headers::rewrite::rewrite(bytes, &headers.0, &change);
}

/// The same for a usual packet of at least 40 bytes.
#[inline]
pub fn rewrite_usual(bytes: &mut [u8], is_tcp: bool, address: u32, port: u16) {
    if let Some(header) = bytes.first_chunk_mut::<HEADERS>() {
        crate::headers::rewrite::rewrite_headers(header, is_tcp, End::Source, address, port, None);
    }
}
