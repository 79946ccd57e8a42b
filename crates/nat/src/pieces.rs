//! Steps of a packet's walk, each by itself: for `cargo bench -p nat`. Tables and hash are public anyway; these are what is left.
//! No part of the interface: nothing else may use it.

use crate::packet::Packet;
use crate::parse::HEADERS;
use crate::parse::Parsed;
use crate::rewrite::End;
use crate::rewrite::Rewrite;
use crate::shard::Shard;
use crate::verdict::Verdict;

/// What [`parse`] read.
#[derive(Clone, Copy, Debug)]
pub struct Headers(Parsed);

/// Reads and checks all headers, as of every packet that is not as usual.
///
/// # Errors
/// The verdict of a packet that cannot be processed.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Headers, Verdict> {
    crate::parse::parse(bytes).map(Headers)
}

/// The first pass over a packet as usual: reads and checks its headers, hashes its internal endpoint or finds the place of
/// its external one, and asks for that line. Returns the hash or the place.
#[inline]
pub fn first_pass(shard: &Shard, packet: &Packet<'_>) -> u64 {
    shard.first_pass(packet)
}

/// Gives a packet of any kind another source, and takes one from its TTL.
#[inline]
pub fn rewrite(bytes: &mut [u8], headers: &Headers, address: u32, port: u16) {
    let change = Rewrite { end: End::Source, address, port, identification: None, decrement_ttl: true };
    crate::rewrite::rewrite(bytes, &headers.0, &change);
}

/// The same for a packet as usual: UDP or TCP, whole, without IP options. Packets shorter than 40 bytes stay as they are.
#[inline]
pub fn rewrite_usual(bytes: &mut [u8], is_tcp: bool, address: u32, port: u16) {
    if let Some(header) = bytes.first_chunk_mut::<HEADERS>() {
        crate::rewrite::rewrite_headers(header, is_tcp, End::Source, address, port, None);
    }
}
