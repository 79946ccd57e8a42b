use core::net::Ipv4Addr;

use super::*;
use crate::time::Duration;
use crate::types::HostNumber;

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN + Duration::from_secs(seconds)
}

fn request(address: u32, port: u16, remotes: Remotes) -> Request {
    Request {
        key: InternalKey { realm: RealmId(3), protocol: Protocol::Tcp, address: HostNumber(address), port },
        origin: Origin::Pcp,
        kind: Kind::Map,
        remotes,
        expires: at(100),
        requester: Requester::default(),
        suggested: Suggested::Any,
    }
}

fn store(grants_max: u32) -> GrantStore {
    GrantStore::new(grants_max, KeyedHash::new([1, 2, 3, 4])).expect("memory suffices")
}

const EXTERNAL: Endpoint = Endpoint::new(Ipv4Addr::new(203, 0, 113, 1), 4_000);

#[test]
fn a_remote_contains_its_prefix_and_port() {
    let any = |length, port| Remote::new(Ipv4Addr::new(198, 51, 100, 77), length, port);
    let inside = Ipv4Addr::new(198, 51, 100, 1).to_bits();
    assert!(any(24, 0).contains((inside, 5)) && any(0, 0).contains((1, 1)) && any(24, 5).contains((inside, 5)));
    assert!(
        !any(24, 6).contains((inside, 5)) && !any(32, 0).contains((inside, 5)) && !any(31, 0).contains((inside, 5))
    );
}

#[test]
fn remotes_hold_four_and_refuse_a_fifth() {
    let mut remotes = Remotes::default();
    assert!(remotes.admit((1, 1)), "none admits everyone");
    let added = (0..5).map(|last| remotes.add(Remote::new(Ipv4Addr::from_bits(last), 32, 0))).collect::<Vec<_>>();
    assert_eq!(added, [true, true, true, true, false]);
    assert!(remotes.admit((3, 9)) && !remotes.admit((4, 9)));
}

#[test]
fn owners_list_and_count_their_own() {
    let mut store = store(8);
    let mut made = Vec::new();
    for (address, port) in [(1, 10), (2, 10), (1, 11), (1, 12)] {
        let request = request(address, port, Remotes::default());
        made.push(store.insert(&request, request.key.address, (7, EXTERNAL), 0, at(1)).expect("there is room"));
    }
    let list = |store: &GrantStore, address| store.of_owner(RealmId(3), HostNumber(address)).collect::<Vec<_>>();
    assert_eq!(list(&store, 1), [made[3], made[2], made[0]]);
    assert_eq!(([1, 2].map(|host| store.count_of_owner(RealmId(3), HostNumber(host)))), [3, 1]);
    store.remove(made[2]);
    assert_eq!(list(&store, 1), [made[3], made[0]]);
    for index in [made[0], made[1], made[3]] {
        store.remove(index);
    }
    assert!(store.is_empty() && list(&store, 1).is_empty() && store.count_of_owner(RealmId(4), HostNumber(1)) == 0);
}

#[test]
fn a_full_store_refuses_and_has_room_again() {
    let mut store = store(2);
    let mut insert =
        |address| store.insert(&request(address, 1, Remotes::default()), HostNumber(address), (1, EXTERNAL), 0, at(1));
    let first = insert(1).expect("there is room");
    assert!(insert(2).is_some() && insert(3).is_none());
    store.remove(first);
    assert!(store.insert(&request(3, 1, Remotes::default()), HostNumber(3), (1, EXTERNAL), 0, at(1)).is_some());
}

#[test]
fn strangers_are_admitted_by_filter_until_the_end() {
    let mut store = store(4);
    let only = Remotes::one(Remote::new(Ipv4Addr::from_bits(9), 32, 0));
    let request = request(1, 10, only);
    assert_eq!(store.admission(&request.key, (9, 1), false, at(1)), Admission::AsPool);
    let index = store.insert(&request, request.key.address, (1, EXTERNAL), 0, at(1)).expect("there is room");
    assert_eq!(store.admission(&request.key, (9, 1), false, at(99)), Admission::Granted(index));
    assert_eq!(store.admission(&request.key, (8, 1), false, at(99)), Admission::Refused(index));
    assert_eq!(store.admission(&request.key, (9, 1), false, at(100)), Admission::AsPool, "expired");
    store.get_mut(index).reserve_until(at(200));
    assert_eq!(store.admission(&request.key, (9, 1), false, at(150)), Admission::Refused(index));
    assert_eq!(store.admission(&request.key, (9, 1), true, at(150)), Admission::AsPool, "packets use it");
}

#[test]
fn what_a_gateway_opens_closes_nothing() {
    let mut store = store(4);
    let only = Remotes::one(Remote::new(Ipv4Addr::from_bits(9), 32, 0));
    let request = Request { origin: Origin::Alg(AlgId(0)), ..request(1, 10, only) };
    let index = store.insert(&request, request.key.address, (1, EXTERNAL), 0, at(1)).expect("there is room");
    assert_eq!(store.admission(&request.key, (9, 1), false, at(99)), Admission::Granted(index));
    assert_eq!(store.admission(&request.key, (8, 1), false, at(99)), Admission::AsPool);
}

#[test]
fn epochs_go_on_and_begin_again_by_client() {
    let mut store = store(4);
    store.set_epoch(at(10), 500);
    let address = 1;
    store
        .insert(&request(address, 10, Remotes::default()), HostNumber(address), (1, EXTERNAL), 0, at(12))
        .expect("there is room");
    assert_eq!(store.epoch(RealmId(3), HostNumber(address), at(20)), 510);
    store.reset_epoch(RealmId(3), HostNumber(address), at(20));
    assert_eq!(
        (store.epoch(RealmId(3), HostNumber(address), at(25)), store.epoch(RealmId(3), HostNumber(2), at(25))),
        (5, 515)
    );
    store.set_epoch_of(RealmId(3), HostNumber(address), at(30), 77);
    assert_eq!(store.epoch(RealmId(3), HostNumber(address), at(31)), 78);
}
