//! One refusal event for each subscriber and cause in an interval.
//!
//! The first refusal is reported at once. In the bounded table a new entry replaces the one
//! reported longest ago, whose refusals are reported then. So every refusal is counted.

use core::net::Ipv4Addr;

use super::Cause;
use super::Event;
use super::EventKind;
use crate::random::KeyedHash;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;

const WAYS: usize = 4;
/// A power of two.
const SETS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// [`EventKind::Refused`] or [`EventKind::PoolExhausted`].
    pub(crate) kind: EventKind,
    pub(crate) cause: Cause,
    pub(crate) realm: RealmId,
    pub(crate) subscriber: Ipv4Addr,
    pub(crate) external: Ipv4Addr,
    pub(crate) pool: PoolName,
    pub(crate) protocol: Option<Protocol>,
}

impl Refusal {
    fn event(&self, amount: u32, at: Instant) -> Event {
        Event {
            cause: self.cause,
            realm: self.realm,
            subscriber: self.subscriber,
            external: self.external,
            pool: self.pool,
            protocol: self.protocol,
            amount,
            ..Event::new(self.kind, at)
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    refusal: Refusal,
    reported: Instant,
    suppressed: u32,
}

type Set = [Option<Entry>; WAYS];

#[derive(Debug)]
pub(super) struct Refusals {
    sets: Box<[Set]>,
    hash: KeyedHash,
    interval: Duration,
    cursor: usize,
}

impl Refusals {
    pub(super) const BYTES: u64 = (SETS * size_of::<Set>()) as u64;

    pub(super) fn new(interval: Duration, hash: KeyedHash) -> Refusals {
        Refusals { sets: vec![[None; WAYS]; SETS].into_boxed_slice(), hash, interval, cursor: 0 }
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// The due event of this refusal, and that of a replaced entry.
    pub(super) fn count(&mut self, refusal: Refusal, now: Instant) -> (Option<Event>, Option<Event>) {
        let who = u64::from(refusal.subscriber.to_bits()) << 16 | u64::from(refusal.realm.0);
        let hash = self.hash.hash(who, refusal.cause.number() << 8 | refusal.kind as u64);
        let interval = self.interval;
        let Some(set) = self.sets.get_mut(hash as usize & (SETS - 1)) else { return (None, None) };
        if let Some(entry) = set.iter_mut().flatten().find(|entry| entry.refusal == refusal) {
            if now < entry.reported + interval {
                entry.suppressed = entry.suppressed.saturating_add(1);
                return (None, None);
            }
            let amount = entry.suppressed.saturating_add(1);
            (entry.reported, entry.suppressed) = (now, 0);
            return (Some(refusal.event(amount, now)), None);
        }
        // A free entry, or the one reported longest ago.
        let Some(way) = set.iter_mut().min_by_key(|way| way.map(|entry| entry.reported)) else { return (None, None) };
        let evicted = way.filter(|entry| entry.suppressed != 0).map(|entry| entry.refusal.event(entry.suppressed, now));
        *way = Some(Entry { refusal, reported: now, suppressed: 0 });
        (Some(refusal.event(1, now)), evicted)
    }

    pub(super) fn next_due(&mut self, now: Instant) -> Option<Event> {
        let interval = self.interval;
        let set = self.sets.get_mut(self.cursor)?;
        for way in set {
            let Some(entry) = way else { continue };
            if now < entry.reported + interval {
                continue;
            }
            if entry.suppressed == 0 {
                *way = None;
                continue;
            }
            let event = entry.refusal.event(entry.suppressed, now);
            (entry.reported, entry.suppressed) = (now, 0);
            // The rest of the set comes in later calls.
            return Some(event);
        }
        self.cursor = (self.cursor + 1) & (SETS - 1);
        None
    }

    pub(super) fn take_any(&mut self, now: Instant) -> Option<Event> {
        let entry = self.sets.iter_mut().flatten().flatten().find(|entry| entry.suppressed != 0)?;
        let event = entry.refusal.event(entry.suppressed, now);
        entry.suppressed = 0;
        Some(event)
    }
}
