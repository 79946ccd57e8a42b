//! Against a model that remembers everybody.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use super::*;
use crate::types::AddressIndex;
use crate::types::HostNumber;
use crate::types::PoolId;

const REALM: RealmId = RealmId(3);
const CAPACITY: usize = 12;

fn store() -> SubscriberStore {
    let hash = crate::random::KeyedHash::new([7, 9, 4, 2]);
    let hosts = crate::state::host::HostStore::new(0, (56, 1), (crate::types::WorkerId(0), 1), hash);
    SubscriberStore::new(CAPACITY as u32, hash, hosts.expect("an empty table")).expect("a small table")
}

/// The same sequence in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % limit
    }
}

fn bucket(number: u64) -> Bucket {
    Bucket::numbered(number)
}

#[test]
fn a_lapsed_subscriber_is_hidden_and_resumes_its_counts() {
    let mut store = store();
    // Buckets of those that have any, and of lapsed ones in order of time.
    let mut present: BTreeMap<HostNumber, (u32, Bucket)> = BTreeMap::new();
    let mut lapsed: VecDeque<(HostNumber, Bucket)> = VecDeque::new();
    let (mut numbers, mut pushed_out, mut renewed) = (Numbers(1), 0, 0);
    for step in 1..20_000_u64 {
        let address = HostNumber(numbers.below(20));
        match (numbers.below(3), present.get(&address).copied()) {
            (0, None) => {
                let is_full = present.len() == CAPACITY;
                assert_eq!(store.is_full(), is_full);
                let before = lapsed.iter().position(|(known, _)| *known == address);
                let slot = store.insert(REALM, address, PoolId(1), AddressIndex(5), 2);
                assert_eq!(slot.is_none(), is_full && before.is_none());
                let Some(slot) = slot else { continue };
                let expected = match before.and_then(|position| lapsed.remove(position)) {
                    Some((_, bucket)) => {
                        renewed += 1;
                        bucket
                    }
                    None => Bucket::default(),
                };
                if before.is_none() && present.len() + lapsed.len() == CAPACITY {
                    lapsed.pop_front();
                    pushed_out += 1;
                }
                let record = store.get(slot);
                assert_eq!((record.mapping_bucket, record.paired, record.pool), (expected, 5, 1));
                assert!(record.is_in_use() && !record.is_lapsed() && store.elsewhere(slot).is_none());
                assert!(record.latest_block().is_none() && record.memory() == 0 && record.sessions() == 0);
                present.insert(address, (slot, expected));
            }
            (2, Some((slot, _))) => {
                assert_eq!(store.remove_if_idle(slot), Some(AddressIndex(5)));
                let (_, bucket) = present.remove(&address).expect("it was there");
                if bucket != Bucket::default() {
                    lapsed.push_back((address, bucket));
                }
            }
            (_, Some((slot, _))) => {
                let now = bucket(step);
                store.get_mut(slot).mapping_bucket = now;
                present.insert(address, (slot, now));
            }
            (_, None) => {
                if let Some(position) = lapsed.iter().position(|(known, _)| *known == address && step % 5 == 0) {
                    let slot = store.find_lapsed(REALM, address).expect("it waits");
                    store.forget_lapsed(slot);
                    lapsed.remove(position);
                }
            }
        }
        assert_eq!((store.len(), store.lapsed_len() as usize), (present.len(), lapsed.len()));
        for address in (0..20).map(HostNumber) {
            assert_eq!(store.find(REALM, address), present.get(&address).map(|(slot, _)| *slot), "step {step}");
            let known = lapsed.iter().find(|(known, _)| *known == address).map(|(_, bucket)| *bucket);
            let found = store.find_lapsed(REALM, address).map(|slot| store.get(slot).mapping_bucket);
            assert_eq!(found, known, "step {step}");
        }
    }
    assert!(pushed_out > 100 && renewed > 500, "{pushed_out} {renewed}");
}

#[test]
fn the_sweep_comes_to_each_that_waits_in_turn() {
    let mut store = store();
    for address in (0..8).map(HostNumber) {
        let slot = store.insert(REALM, address, PoolId(0), AddressIndex(0), 0).expect("room");
        store.get_mut(slot).mapping_bucket = bucket(9);
        store.remove_if_idle(slot);
    }
    let turn = |store: &mut SubscriberStore| {
        let slot = store.next_lapsed().expect("some wait");
        store.get(slot).address.0
    };
    assert_eq!([0; 3].map(|_| turn(&mut store)), [0, 1, 2]);
    // The next one is removed, and the walk goes on behind it.
    let slot = store.find_lapsed(REALM, HostNumber(3)).expect("it waits");
    store.forget_lapsed(slot);
    assert_eq!([0; 6].map(|_| turn(&mut store)), [4, 5, 6, 7, 0, 1]);
    for address in [0, 1, 2, 4, 5, 6, 7].map(HostNumber) {
        let slot = store.find_lapsed(REALM, address).expect("it waits");
        store.forget_lapsed(slot);
    }
    assert_eq!(store.next_lapsed(), None);
}

#[test]
fn a_lapsed_record_forgets_refusals_and_guarantees() {
    let mut store = store();
    let slot = store.insert(REALM, HostNumber(1), PoolId(0), AddressIndex(0), 0).expect("room");
    let account = store.account_mut(slot);
    account.session_bucket = bucket(4);
    account.count(crate::verdict::Verdict::SubscriberRateLimit);
    account.set_home(Some(AddressIndex(3)));
    store.remove_if_idle(slot);
    let slot = store.insert(REALM, HostNumber(1), PoolId(0), AddressIndex(0), 0).expect("room");
    let expected = Account { session_bucket: bucket(4), ..Account::default() };
    assert_eq!(*store.account(slot), expected);
}
