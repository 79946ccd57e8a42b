//! Refused subscribers without a record, so that subscribers that get nothing are visible too.
//!
//! Small, because packets with invented sources can fill it: a new entry replaces the one of its
//! set that was refused longest ago. An entry counts for an hour, much longer than the number of an
//! IPv6 host lasts: so it has the prefix.

use crate::random::KeyedHash;
use crate::state::subscriber::Refused;
use crate::state::subscriber::add_refusal;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::RealmId;
use crate::verdict::Verdict;

const WAYS: usize = 4;
const SETS: usize = 256;
const SHOWN: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) realm: RealmId,
    /// An IPv4 address if below 2^32, else the first address of an IPv6 prefix.
    pub(crate) address: u128,
    /// By [`crate::state::subscriber::Account::CAUSES`].
    pub(crate) refused: Refused,
    last: Instant,
}

impl Entry {
    fn is_shown(&self, now: Instant) -> bool {
        now < self.last + SHOWN
    }

    fn total(&self) -> u64 {
        self.refused.iter().map(|count| u64::from(*count)).sum()
    }
}

pub(crate) struct RefusedSubscribers {
    entries: Box<[Option<Entry>]>,
    hash: KeyedHash,
}

impl RefusedSubscribers {
    pub(crate) const PLACES: u32 = (WAYS * SETS) as u32;
    pub(crate) const BYTES: u64 = (WAYS * SETS * size_of::<Option<Entry>>()) as u64;

    pub(crate) fn new(hash: KeyedHash) -> RefusedSubscribers {
        RefusedSubscribers { entries: vec![None; WAYS * SETS].into_boxed_slice(), hash }
    }

    /// Returns the refusals of a replaced entry, which only the totals and the log keep.
    pub(crate) fn count(&mut self, now: Instant, realm: RealmId, address: u128, verdict: Verdict) -> u64 {
        let set = self.set_of(realm, address);
        let Some(set) = self.entries.get_mut(set) else { return 0 };
        if let Some(entry) = set.iter_mut().flatten().find(|entry| is_of(entry, realm, address)) {
            if !entry.is_shown(now) {
                entry.refused = Refused::default();
            }
            add_refusal(&mut entry.refused, verdict);
            entry.last = now;
            return 0;
        }
        let mut new = Entry { realm, address, refused: Refused::default(), last: now };
        if !add_refusal(&mut new.refused, verdict) {
            return 0;
        }
        let Some(way) = set.iter_mut().min_by_key(|way| way.map(|entry| entry.last)) else { return 0 };
        let pushed_out = way.replace(new);
        pushed_out.filter(|entry| entry.is_shown(now)).map_or(0, |entry| entry.total())
    }

    pub(crate) fn refused(&self, now: Instant, realm: RealmId, address: u128) -> Refused {
        let set = self.entries.get(self.set_of(realm, address)).unwrap_or_default();
        let found = set.iter().flatten().find(|entry| is_of(entry, realm, address) && entry.is_shown(now));
        found.map_or(Refused::default(), |entry| entry.refused)
    }

    pub(crate) fn at(&self, place: u32, now: Instant) -> Option<Entry> {
        self.entries.get(place as usize).copied().flatten().filter(|entry| entry.is_shown(now))
    }

    fn set_of(&self, realm: RealmId, address: u128) -> core::ops::Range<usize> {
        let high = (address >> 64) as u64 ^ u64::from(realm.0) << 32;
        let first = (self.hash.hash(high ^ 0x7a, address as u64) as usize & (SETS - 1)) * WAYS;
        first..first + WAYS
    }
}

fn is_of(entry: &Entry, realm: RealmId, address: u128) -> bool {
    (entry.realm, entry.address) == (realm, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REALM: RealmId = RealmId(3);

    fn table() -> RefusedSubscribers {
        RefusedSubscribers::new(KeyedHash::new([1, 2, 3, 4]))
    }

    fn shown(table: &RefusedSubscribers, now: Instant) -> Vec<Entry> {
        (0..RefusedSubscribers::PLACES).filter_map(|place| table.at(place, now)).collect()
    }

    #[test]
    fn refusals_are_counted_by_subscriber_realm_and_cause() {
        let (mut table, now) = (table(), Instant::ORIGIN);
        for _ in 0..5 {
            assert_eq!(table.count(now, REALM, 7, Verdict::SubscriberPortQuota), 0);
        }
        table.count(now, REALM, 7, Verdict::PortsExhausted);
        table.count(now, RealmId(4), 7, Verdict::BlockLimit);
        let refused = |realm, address| table.refused(now, realm, address);
        assert_eq!(
            (refused(REALM, 7)[..6].to_vec(), refused(REALM, 7)[6..].to_vec()),
            (vec![5, 0, 0, 0, 0, 1], vec![0; 7])
        );
        assert_eq!(refused(RealmId(4), 7).iter().sum::<u32>(), 1);
        assert_eq!(refused(REALM, 8), Refused::default());
        assert_eq!(shown(&table, now).len(), 2);
    }

    #[test]
    fn what_is_nobodys_refusal_takes_no_place() {
        let mut table = table();
        table.count(Instant::ORIGIN, REALM, 7, Verdict::SourceNotSubscriber);
        assert!(shown(&table, Instant::ORIGIN).is_empty());
    }

    #[test]
    fn an_hour_after_the_last_refusal_it_is_forgotten() {
        let (mut table, begin) = (table(), Instant::ORIGIN);
        table.count(begin, REALM, 7, Verdict::PortsExhausted);
        let later = begin + Duration::from_secs(3_599);
        table.count(later, REALM, 7, Verdict::PortsExhausted);
        assert_eq!(table.refused(later + Duration::from_secs(3_599), REALM, 7)[5], 2);
        let forgotten = later + Duration::from_secs(3_600);
        assert_eq!((table.refused(forgotten, REALM, 7)[5], shown(&table, forgotten).len()), (0, 0));
        table.count(forgotten, REALM, 7, Verdict::PortsExhausted);
        assert_eq!(table.refused(forgotten, REALM, 7)[5], 1);
    }

    #[test]
    fn the_table_is_bounded_and_every_refusal_is_counted() {
        let mut table = table();
        let (mut pushed_out, mut now) = (0, Instant::ORIGIN);
        let subscribers = 10 * RefusedSubscribers::PLACES;
        for address in 0..subscribers {
            now = now + Duration::from_micros(1);
            for _ in 0..3 {
                pushed_out += table.count(now, REALM, address.into(), Verdict::PortsExhausted);
            }
        }
        let left = shown(&table, now);
        assert!(left.len() as u32 <= RefusedSubscribers::PLACES && !left.is_empty());
        assert_eq!(left.iter().map(Entry::total).sum::<u64>() + pushed_out, u64::from(subscribers) * 3);
        assert_eq!(table.refused(now, REALM, (subscribers - 1).into())[5], 3);
        let mut addresses: Vec<u128> = left.iter().map(|entry| entry.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), left.len());
    }
}
