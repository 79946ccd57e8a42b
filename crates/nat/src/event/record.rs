//! An event as bytes with a fixed meaning, as in the rings, which a later process may read.

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

/// The fields of an [`Event`], in its order.
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

impl From<Event> for Record {
    #[inline]
    fn from(event: Event) -> Record {
        Record {
            at_us: event.at.as_micros(),
            sequence: event.sequence,
            subscriber: event.subscriber.to_bits(),
            external: event.external.to_bits(),
            remote: event.remote.to_bits(),
            amount: event.amount,
            internal_port: event.internal_port,
            first_port: event.first_port,
            last_port: event.last_port,
            remote_port: event.remote_port,
            realm: event.realm.0,
            pool: event.pool.0,
            kind: event.kind as u8,
            cause: event.cause.code(),
            protocol: event.protocol.map_or(0, |protocol| protocol.index() as u8 + 1),
            unused: 0,
        }
    }
}

impl Record {
    /// The event; None if the bytes are not an event.
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
