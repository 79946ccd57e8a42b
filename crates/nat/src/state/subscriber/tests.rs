use super::*;
use crate::random::KeyedHash;
use crate::types::HostNumber;
use crate::types::WorkerId;

const REALM: RealmId = RealmId(0);
const POOL: PoolId = PoolId(1);

fn store(subscribers_max: u32) -> SubscriberStore {
    let hash = KeyedHash::new([7, 9, 4, 2]);
    let hosts = HostStore::new(0, (56, 1), (WorkerId(0), 1), hash).expect("an empty table");
    SubscriberStore::new(subscribers_max, hash, hosts).expect("a small table")
}

#[test]
fn subscribers_need_no_account_until_something_is_noted() {
    let mut store = store(1_000);
    let before = store.bytes();
    for address in (0..1_000).map(HostNumber) {
        let slot = store.insert(REALM, address, POOL, AddressIndex(3), 1).expect("room");
        store.count_mapping(slot, Protocol::Udp);
        store.note_place(slot, AddressIndex(3), POOL);
        store.set_elsewhere(slot, None);
        assert_eq!((store.mappings_created(slot), store.addresses_paired(slot)), (1, 1));
        assert_eq!((store.elsewhere(slot), *store.account(slot)), (None, Account::default()));
    }
    assert_eq!(store.bytes(), before);
    let slot = store.find(REALM, HostNumber(700)).expect("it is there");
    store.note_place(slot, AddressIndex(9), PoolId(2));
    assert_eq!(store.elsewhere(slot), Some(AddressIndex(9)));
    assert!(store.bytes() > before);
}

#[test]
fn all_mappings_and_addresses_of_a_subscriber_are_counted() {
    let mut store = store(4);
    let slot = store.insert(REALM, HostNumber(5), POOL, AddressIndex(3), 1).expect("room");
    for created in 1..=200_000 {
        store.count_mapping(slot, Protocol::Tcp);
        assert_eq!(store.mappings_created(slot), created);
        store.get_mut(slot).mappings[Protocol::Tcp.index()] = 0;
    }
    for (address, paired) in [(3, 1), (4, 2), (u32::MAX, 2), (4, 3), (4, 3), (2, 4)] {
        store.settle(slot, POOL, AddressIndex(address), 1);
        assert_eq!(store.addresses_paired(slot), paired, "then at {address}");
    }
}

#[test]
fn a_successor_inherits_no_account() {
    let mut store = store(4);
    let slot = store.insert(REALM, HostNumber(5), POOL, AddressIndex(3), 1).expect("room");
    store.account_mut(slot).count(Verdict::BlockLimit);
    store.settle(slot, POOL, AddressIndex(4), 1);
    assert_eq!(store.remove_if_idle(slot), Some(AddressIndex(4)));
    let next = store.insert(REALM, HostNumber(6), POOL, AddressIndex(3), 1).expect("room");
    assert_eq!((next, *store.account(next)), (slot, Account::default()));
    *store.account_mut(next) = Account { home: 8, ..*store.account(next) };
    assert_eq!(*store.account(next), Account { home: 8, ..Account::default() });
}
