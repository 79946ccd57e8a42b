use super::*;

fn hash() -> KeyedHash {
    KeyedHash::new([7, 1, 2, 3])
}

const DELAY: Duration = Duration::from_secs(6);

fn external(n: u16) -> Endpoint {
    Endpoint::new(Ipv4Addr::new(203, 0, 113, 1), n)
}

fn remote(n: u16) -> Endpoint {
    Endpoint::new(Ipv4Addr::new(198, 51, 100, 1), n)
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn hold(store: &mut SynStore, now: Instant, n: u16) -> Hold {
    store.hold(now, external(80), remote(n), InterfaceId(1), &[n as u8; 40])
}

#[test]
fn a_syn_comes_out_after_exactly_six_seconds_with_all_it_had() {
    let mut store = SynStore::new(4, DELAY, hash());
    assert_eq!(hold(&mut store, at(10), 7), Hold::Held);
    assert_eq!(store.next_due(), Some(at(16)));
    assert_eq!(store.pop_due(Instant::from_micros(at(16).as_micros() - 1)), None);
    let syn = store.pop_due(at(16)).unwrap();
    assert_eq!((syn.external, syn.remote, syn.ingress), (external(80), remote(7), InterfaceId(1)));
    assert_eq!(syn.quote(), &[7; 40]);
    assert_eq!(store.pop_due(at(16)), None);
    assert!(store.is_empty());
}

#[test]
fn a_retransmission_is_answered_once_and_does_not_wait_longer() {
    let mut store = SynStore::new(4, DELAY, hash());
    assert_eq!(hold(&mut store, at(10), 7), Hold::Held);
    assert_eq!(hold(&mut store, at(11), 7), Hold::AlreadyHeld);
    assert_eq!(hold(&mut store, at(13), 7), Hold::AlreadyHeld);
    assert!(store.pop_due(at(16)).is_some());
    assert!(store.pop_due(at(60)).is_none());
}

#[test]
fn a_matching_outbound_syn_makes_it_forgotten() {
    let mut store = SynStore::new(4, DELAY, hash());
    hold(&mut store, at(10), 7);
    hold(&mut store, at(10), 8);
    assert!(!store.forget(external(81), remote(7)), "another external endpoint");
    assert!(!store.forget(external(80), remote(9)), "another remote endpoint");
    assert!(store.forget(external(80), remote(7)));
    assert!(!store.forget(external(80), remote(7)));
    assert_eq!(store.pop_due(at(20)).map(|syn| syn.remote), Some(remote(8)));
    assert_eq!(store.pop_due(at(20)), None);
}

#[test]
fn a_flood_is_bounded_and_room_comes_back() {
    let mut store = SynStore::new(100, DELAY, hash());
    let held = (0..10_000).filter(|n| hold(&mut store, at(1), *n) == Hold::Held).count();
    assert_eq!((held, store.len()), (100, 100));
    assert_eq!(hold(&mut store, at(2), 60_000), Hold::Full);
    assert_eq!((0..1_000).filter(|_| store.pop_due(at(7)).is_some()).count(), 100);
    assert_eq!(hold(&mut store, at(7), 60_000), Hold::Held);
}

#[test]
fn forgetting_makes_room_at_once() {
    let mut store = SynStore::new(2, DELAY, hash());
    hold(&mut store, at(1), 1);
    hold(&mut store, at(1), 2);
    assert!(store.forget(external(80), remote(2)));
    assert_eq!(hold(&mut store, at(2), 3), Hold::Held);
    let order: Vec<u16> = core::iter::from_fn(|| store.pop_due(at(9))).map(|syn| syn.remote.port).collect();
    assert_eq!(order, [1, 3]);
}

#[test]
fn long_packets_are_quoted_in_part_and_no_room_is_full() {
    let mut store = SynStore::new(1, DELAY, hash());
    store.hold(at(1), external(1), remote(1), InterfaceId(0), &[9; 1_500]);
    assert_eq!(store.pop_due(at(7)).map(|syn| syn.quote().len()), Some(QUOTE_MAX));
    let mut none = SynStore::new(0, DELAY, hash());
    assert_eq!(hold(&mut none, at(1), 1), Hold::Full);
}
