//! An event in fixed bytes: a later process may read the rings.

use core::net::Ipv4Addr;

use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::Cause;
use super::Event;
use super::EventKind;
use crate::time::Instant;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;

/// In the order of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Record {
    at_us: u64,
    sequence: u64,
    subscriber: u32,
    external: u32,
    remote: u32,
    amount: u32,
    internal_port: u16,
    first_port: u16,
    last_port: u16,
    remote_port: u16,
    realm: u16,
    pool: u16,
    kind: u8,
    cause: u8,
    /// 0 for all.
    protocol: u8,
    unused: u8,
}

const _: () = assert!(size_of::<Record>() == 48, "a record is shorter than a cache line");
const _: () = assert!(cfg!(target_endian = "little"), "words are made of fields from the lowest byte on");

impl From<Event> for Record {
    /// Six whole words: reading single fields back as one word would wait for all earlier stores.
    #[inline(always)]
    fn from(event: Event) -> Record {
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let four = |a: u16, b: u16, c: u16, d: u16| {
            u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(d) << 48
        };
        let protocol = event.protocol.map_or(0, |protocol| protocol.index() as u8 + 1);
        let words = [
            event.at.as_micros(),
            event.sequence,
            pair(event.subscriber.to_bits(), event.external.to_bits()),
            pair(event.remote.to_bits(), event.amount),
            four(event.internal_port, event.first_port, event.last_port, event.remote_port),
            four(
                event.realm.0,
                event.pool.0,
                u16::from_le_bytes([event.kind as u8, event.cause.code()]),
                u16::from_le_bytes([protocol, 0]),
            ),
        ];
        zerocopy::transmute!(words)
    }
}

impl Record {
    /// None if the bytes are no event.
    #[inline]
    pub fn event(&self) -> Option<Event> {
        let protocol = match self.protocol.checked_sub(1) {
            None => None,
            Some(index) => Some(Protocol::from_index(usize::from(index))?),
        };
        Some(Event {
            at: Instant::from_micros(self.at_us),
            sequence: self.sequence,
            subscriber: Ipv4Addr::from_bits(self.subscriber),
            external: Ipv4Addr::from_bits(self.external),
            remote: Ipv4Addr::from_bits(self.remote),
            amount: self.amount,
            internal_port: self.internal_port,
            first_port: self.first_port,
            last_port: self.last_port,
            remote_port: self.remote_port,
            realm: RealmId(self.realm),
            pool: PoolName(self.pool),
            kind: *EventKind::ALL.get(usize::from(self.kind))?,
            cause: Cause::from_code(self.cause)?,
            protocol,
        })
    }
}
