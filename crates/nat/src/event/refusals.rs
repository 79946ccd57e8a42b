//! Refusals come at the rate of packets; the log gets one event per subscriber and cause in an interval, with their number.
//!
//! The first of them is told at once. The table is bounded; what finds no room in it pushes out the entry that was told
//! longest ago, whose number is told then. So no refusal goes uncounted.

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

/// Entries in one set of the table.
const WAYS: usize = 4;
/// Sets of the table; a power of two.
const SETS: usize = 256;

/// Who was refused what.
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
    told: Instant,
    /// Since then.
    untold: u32,
}

type Set = [Option<Entry>; WAYS];

/// The refusals of one worker.
#[derive(Debug)]
pub(super) struct Refusals {
    sets: Box<[Set]>,
    hash: KeyedHash,
    interval: Duration,
    /// The set that is looked at next.
    hand: usize,
}

impl Refusals {
    /// What it takes.
    pub(super) const BYTES: u64 = (SETS * size_of::<Set>()) as u64;

    pub(super) fn new(interval: Duration, hash: KeyedHash) -> Refusals {
        Refusals { sets: vec![[None; WAYS]; SETS].into_boxed_slice(), hash, interval, hand: 0 }
    }

    pub(super) fn set_interval(&mut self, interval: Duration) {
        self.interval = interval;
    }

    /// Counts a refusal: the event that tells of it if one is due, and that of an entry that had to make room.
    pub(super) fn count(&mut self, refusal: Refusal, now: Instant) -> (Option<Event>, Option<Event>) {
        let who = u64::from(refusal.subscriber.to_bits()) << 16 | u64::from(refusal.realm.0);
        let hash = self.hash.hash(who, refusal.cause.number() << 8 | refusal.kind as u64);
        let interval = self.interval;
        let Some(set) = self.sets.get_mut(hash as usize & (SETS - 1)) else { return (None, None) };
        if let Some(entry) = set.iter_mut().flatten().find(|entry| entry.refusal == refusal) {
            if now < entry.told + interval {
                entry.untold = entry.untold.saturating_add(1);
                return (None, None);
            }
            let amount = entry.untold.saturating_add(1);
            (entry.told, entry.untold) = (now, 0);
            return (Some(refusal.event(amount, now)), None);
        }
        // The free ones first, then whoever was told longest ago.
        let Some(way) = set.iter_mut().min_by_key(|way| way.map(|entry| entry.told)) else { return (None, None) };
        let displaced = way.filter(|entry| entry.untold != 0).map(|entry| entry.refusal.event(entry.untold, now));
        *way = Some(Entry { refusal, told: now, untold: 0 });
        (Some(refusal.event(1, now)), displaced)
    }

    /// Looks at one set: an event that has become due without another refusal. Entries that are quiet are forgotten.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Event> {
        let interval = self.interval;
        let set = self.sets.get_mut(self.hand)?;
        for way in set {
            let Some(entry) = way else { continue };
            if now < entry.told + interval {
                continue;
            }
            if entry.untold == 0 {
                *way = None;
                continue;
            }
            let event = entry.refusal.event(entry.untold, now);
            (entry.told, entry.untold) = (now, 0);
            // The others of the set come in another round.
            return Some(event);
        }
        self.hand = (self.hand + 1) & (SETS - 1);
        None
    }

    /// Some event that is still untold, due or not. For the end; looks at all sets.
    pub(super) fn take_any(&mut self, now: Instant) -> Option<Event> {
        let entry = self.sets.iter_mut().flatten().flatten().find(|entry| entry.untold != 0)?;
        let event = entry.refusal.event(entry.untold, now);
        entry.untold = 0;
        Some(event)
    }
}
