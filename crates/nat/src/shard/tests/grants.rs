//! Without the protocols that ask for grants.

use alg::AlgId;
use alg::Transport;
use alg::Want;

use super::*;
use crate::event::Cause;
use crate::event::EventKind;
use crate::event::Record;
use crate::external::blocks::BlockSize;
use crate::settings::Algorithm;
use crate::settings::Allocation;
use crate::settings::Blocks;
use crate::settings::Filtering;
use crate::settings::Gateway;
use crate::state::alg::AlgKey;
use crate::state::alg::Begun;
use crate::state::grant::Grant;
use crate::state::grant::Kind;
use crate::state::grant::Origin;
use crate::state::grant::Remote;
use crate::state::grant::Remotes;
use crate::state::grant::Request;
use crate::state::grant::Requester;
use crate::state::grant::Suggested;
use crate::state::grant::Wish;
use crate::state::mapping::InternalKey;
use crate::steps::announcement::Asking;
use crate::steps::grant::Denied;
use crate::types::Endpoint;

const HOST: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 10);
const OTHER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 11);
const E1: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const E2: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN + Duration::from_secs(seconds)
}

fn request(protocol: Protocol, port: u16, until_s: u64) -> Request {
    Request {
        key: InternalKey { realm: RealmId(0), protocol, address: HOST.into(), port },
        origin: Origin::Pcp,
        kind: Kind::Map,
        remotes: Remotes::default(),
        expires: at(until_s),
        requester: Requester::new([7; 12], Endpoint::new(HOST, port)),
        suggested: Suggested::Any,
    }
}

fn with(change: impl FnOnce(&mut Pool)) -> Shard {
    let mut settings = settings();
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (true, true);
    let pool = &mut settings.pools[0];
    pool.addresses = vec![Ipv4Addr::new(203, 0, 113, 1)];
    pool.filtering = [Filtering::AddressAndPortDependent; 3];
    change(pool);
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices")
}

fn two_blocks() -> Blocks {
    Blocks { size: BlockSize::of_ports(64).expect("a size"), per_subscriber_max: 2, idle: Duration::from_secs(60) }
}

fn blocks(pool: &mut Pool) {
    pool.allocation = Allocation::Blocks(two_blocks());
}

fn all_ways() -> [(&'static str, Shard); 4] {
    let subscribers = || Prefix::new(Ipv4Addr::new(100, 64, 0, 0), 24).expect("a prefix");
    let slices = |pool: &mut Pool| {
        pool.subscribers = vec![subscribers()];
        pool.allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: two_blocks() };
    };
    let whole = |pool: &mut Pool| {
        pool.addresses = (0..=255).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
        pool.subscribers = vec![subscribers()];
        pool.one_to_one = true;
        pool.reserved_ports.clear();
    };
    [("ports", with(|_| ())), ("blocks", with(blocks)), ("slices", with(slices)), ("one to one", with(whole))]
}

fn open(shard: &mut Shard, now_s: u64, request: &Request) -> Endpoint {
    let index = shard.path.ledger.open_grant(at(now_s), request).expect("there is room");
    shard.path.ledger.state.grants.get(index).external()
}

fn arrives(shard: &mut Shard, now_s: u64, from: (Ipv4Addr, u16), to: Endpoint, protocol: Protocol) -> Option<Verdict> {
    let (from, to) = (SocketAddr::new(from.0, from.1), SocketAddr::new(to.address, to.port));
    let packet = match protocol {
        Protocol::Tcp => build::tcp(from, to, Flags::SYN).sequence(1).build(),
        _ => build::udp(from, to).payload(b"hello").build(),
    };
    send(shard, now_s, Side::Outside, &packet).0
}

type SocketAddr = std::net::SocketAddrV4;

fn maintain(shard: &mut Shard, from_s: u64, until_s: u64) {
    for tenth in from_s * 10..until_s * 10 {
        shard.maintain(Instant::from_micros(tenth * 100_000), &mut Caught::default());
    }
}

#[test]
fn a_grant_lets_strangers_in_however_ports_are_given_out() {
    for (way, mut shard) in all_ways() {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let external = open(&mut shard, 1, &request(protocol, 7_000, 600));
            assert_eq!(arrives(&mut shard, 2, (E1, 9_000), external, protocol), Some(Verdict::Inbound), "{way}");
            assert_eq!(arrives(&mut shard, 3, (E2, 9_001), external, protocol), Some(Verdict::Inbound), "{way}");
            let from = SocketAddr::new(OTHER, 7_001);
            let to = SocketAddr::new(external.address, external.port);
            let packet = match protocol {
                Protocol::Tcp => build::tcp(from, to, Flags::SYN).sequence(1).build(),
                _ => build::udp(from, to).payload(b"hello").build(),
            };
            assert_eq!(send(&mut shard, 4, Side::Inside, &packet).0, Some(Verdict::Hairpin), "{way}");
        }
        assert_eq!(shard.path.ledger.state.subscribers.len(), 2, "{way}: one subscriber and its neighbour");
    }
}

#[test]
fn a_grant_keeps_its_mapping_over_idle_sessions() {
    for (way, mut shard) in all_ways() {
        let external = open(&mut shard, 1, &request(Protocol::Udp, 7_000, 7_200));
        let out = build::udp(SocketAddr::new(HOST, 7_000), SocketAddr::new(E1, 53)).payload(b"x").build();
        let (_, left) = send(&mut shard, 2, Side::Inside, &out);
        assert_eq!(source_of(&left[0]), (external.address, external.port), "{way}: packets use the granted port");
        maintain(&mut shard, 3, 1_200);
        assert_eq!(arrives(&mut shard, 1_200, (E2, 5), external, Protocol::Udp), Some(Verdict::Inbound), "{way}");
        maintain(&mut shard, 7_199, 7_210);
        assert_ne!(arrives(&mut shard, 7_210, (E2, 6), external, Protocol::Udp), Some(Verdict::Inbound), "{way}");
        maintain(&mut shard, 7_210, 8_600);
        assert!(shard.is_empty(), "{way}: nothing is left");
    }
}

#[test]
fn a_grant_with_filters_lets_only_these_in() {
    let mut shard = with(|pool| pool.filtering = [Filtering::EndpointIndependent; 3]);
    let remotes = Remotes::one(Remote::new(E1, 32, 0));
    let external = open(&mut shard, 1, &Request { remotes, ..request(Protocol::Udp, 7_000, 600) });
    assert_eq!(arrives(&mut shard, 2, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound));
    assert_eq!(arrives(&mut shard, 2, (E2, 1), external, Protocol::Udp), Some(Verdict::Filtered));
}

#[test]
fn a_grant_for_one_connection_ends_with_its_first_session() {
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let mut shard = with(|_| ());
        let remotes = Remotes::one(Remote::new(E1, 32, 0));
        let external = open(&mut shard, 1, &Request { remotes, kind: Kind::Once, ..request(protocol, 7_000, 31) });
        assert_ne!(arrives(&mut shard, 2, (E2, 1), external, protocol), Some(Verdict::Inbound), "not expected");
        assert_eq!(arrives(&mut shard, 2, (E1, 1), external, protocol), Some(Verdict::Inbound));
        assert_ne!(arrives(&mut shard, 3, (E1, 2), external, protocol), Some(Verdict::Inbound), "only one");
        let grants = &shard.path.ledger.state.grants;
        let is_over = |index| grants.get(index).is_used() && !grants.get(index).is_alive(at(3));
        assert!(grants.of_owner(RealmId(0), HOST.into()).all(is_over), "only its origin is kept");
        let (_, _) = send(&mut shard, 4, Side::Outside, &[]);
        assert_eq!(arrives(&mut shard, 5, (E1, 1), external, protocol), Some(Verdict::Inbound), "its session lives");
        maintain(&mut shard, 5, 8_600);
        assert!(shard.is_empty(), "nothing is left");
    }
}

#[test]
fn an_unused_grant_for_one_connection_leaves_nothing() {
    let mut shard = with(blocks);
    open(&mut shard, 1, &Request { kind: Kind::Once, ..request(Protocol::Tcp, 7_000, 31) });
    maintain(&mut shard, 1, 400);
    assert!(shard.is_empty());
}

#[test]
fn a_suggested_port_is_given_if_it_is_the_subscribers_to_have() {
    for (way, mut shard) in all_ways() {
        let drawn = open(&mut shard, 1, &request(Protocol::Udp, 7_000, 600));
        let free = drawn.port ^ 1;
        let wish = |address, port| Suggested::Rather(Wish { address, port });
        let wished = wish(Some(drawn.address.to_bits()), free);
        let given = open(&mut shard, 1, &Request { suggested: wished, ..request(Protocol::Udp, 7_002, 600) });
        if way == "one to one" {
            assert_eq!(given.port, 7_002, "a whole address keeps ports");
        } else {
            assert_eq!(given, Endpoint::new(drawn.address, free), "{way}");
        }
        // Taken, foreign, and never granted.
        for (number, port) in (0..).zip([drawn.port, 5_350, 5_351, 0]) {
            let suggested = wish(None, port);
            let given = open(&mut shard, 1, &Request { suggested, ..request(Protocol::Udp, 7_010 + number, 600) });
            assert!(given.port != drawn.port && !(5_350..=5_351).contains(&given.port), "{way}: {given:?}");
        }
        let only = Suggested::Only(Wish { address: Some(E1.to_bits()), port: 9 });
        let refused =
            shard.path.ledger.open_grant(at(1), &Request { suggested: only, ..request(Protocol::Udp, 7_020, 600) });
        assert_eq!(refused, Err(Denied::OtherEndpoint), "{way}");
    }
}

#[test]
fn a_grant_joins_the_mapping_of_packets_and_leaves_it() {
    let mut shard = with(|_| ());
    let out = build::udp(SocketAddr::new(HOST, 7_000), SocketAddr::new(E1, 53)).payload(b"x").build();
    let (_, left) = send(&mut shard, 1, Side::Inside, &out);
    let external = open(&mut shard, 2, &request(Protocol::Udp, 7_000, 600));
    assert_eq!(source_of(&left[0]), (external.address, external.port));
    let index = shard.path.ledger.view().find_grant(&request(Protocol::Udp, 7_000, 600)).expect("it is there");
    shard.path.ledger.retire_grant(at(3), index, Duration::from_secs(60));
    assert_eq!(arrives(&mut shard, 3, (E1, 53), external, Protocol::Udp), Some(Verdict::Inbound), "its session");
    assert_eq!(arrives(&mut shard, 3, (E2, 53), external, Protocol::Udp), Some(Verdict::Filtered));
}

#[test]
fn a_deleted_port_is_held_down_for_its_client() {
    let mut shard = with(|pool| pool.filtering = [Filtering::EndpointIndependent; 3]);
    let external = open(&mut shard, 1, &request(Protocol::Udp, 7_000, 600));
    let index = shard.path.ledger.view().find_grant(&request(Protocol::Udp, 7_000, 600)).expect("it is there");
    shard.path.ledger.retire_grant(at(2), index, Duration::from_secs(300));
    assert_eq!(arrives(&mut shard, 3, (E1, 1), external, Protocol::Udp), Some(Verdict::Filtered), "gone");
    maintain(&mut shard, 3, 60);
    assert_eq!(open(&mut shard, 60, &request(Protocol::Udp, 7_000, 600)), external, "its client may reclaim it");
    assert_eq!(arrives(&mut shard, 61, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound));
}

#[test]
fn grants_count_against_the_subscribers_ports_and_memory() {
    let mut settings = settings();
    settings.subscriber.ports_max = [2, 2, 2];
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
    open(&mut shard, 1, &request(Protocol::Udp, 7_000, 600));
    open(&mut shard, 1, &request(Protocol::Udp, 7_001, 600));
    let refused = shard.path.ledger.open_grant(at(1), &request(Protocol::Udp, 7_002, 600));
    assert_eq!(refused, Err(Denied::Verdict(Verdict::SubscriberPortQuota)));
    let slot = shard.path.ledger.state.subscribers.find(RealmId(0), HOST.into()).expect("a subscriber");
    let record = shard.path.ledger.state.subscribers.get(slot);
    assert_eq!((record.mappings, record.extra_sessions), ([2, 0, 0], 2));
}

/// After a restart, another formula gives the port of a grant to somebody else.
#[test]
fn a_grant_on_the_port_of_another_is_recorded() {
    let with_formula = |algorithm| {
        with(|pool| {
            pool.addresses = (1..=2).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect();
            pool.subscribers = vec![Prefix::new(Ipv4Addr::new(100, 64, 0, 0), 24).expect("a prefix")];
            pool.allocation = Allocation::Deterministic { dynamic_slices: 0, overflow: two_blocks() };
            pool.algorithm = algorithm;
        })
    };
    for (algorithm, is_recorded) in [(Algorithm::Sequential, false), (Algorithm::Spread, true)] {
        let (mut before, mut after) = (with_formula(Algorithm::Sequential), with_formula(algorithm));
        let (ring, mut events) = mem::ring::channel(64);
        after.set_events(ring);
        let external = open(&mut before, 10, &request(Protocol::Udp, 7_000, 600));
        let mut page = Vec::new();
        assert_eq!(before.view().grant_deltas_page(at(10), 0, 64, &mut page), None);
        after.install_grant(at(20), &page[0]).expect("there is room");
        assert_eq!(arrives(&mut after, 21, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound));
        maintain(&mut after, 21, 22);
        let mut created = Vec::new();
        events.pop_burst(64, |record: Record| {
            created.extend(record.event().filter(|event| event.kind == EventKind::MappingCreated));
        });
        let owners: Vec<_> =
            created.iter().map(|event| (event.subscriber, event.external, event.first_port, event.cause)).collect();
        let expected = (HOST, external.address, external.port, Cause::Configuration);
        assert_eq!(owners, if is_recorded { vec![expected] } else { Vec::new() }, "{algorithm:?}");
    }
}

#[test]
fn a_pair_is_found_before_a_port_is_taken() {
    for (way, mut shard) in all_ways() {
        let ledger = &mut shard.path.ledger;
        for inside in (7_000..7_040).step_by(2) {
            let wanted =
                Request { kind: Kind::Once, origin: Origin::Alg(AlgId(1)), ..request(Protocol::Udp, inside, 60) };
            let first = ledger.open_pair(at(1), &wanted).expect("there is room");
            let external = ledger.state.grants.get(first).external();
            assert!(external.port.is_multiple_of(2), "{way}: {external}");
            let rtcp = InternalKey { port: inside + 1, ..wanted.key };
            let second = ledger.state.grants.find(&rtcp, Grant::is_second_of_pair).expect("its pair");
            let above = Endpoint::new(external.address, external.port + 1);
            assert_eq!(ledger.state.grants.get(second).external(), above, "{way}");
        }
        assert_eq!((ledger.counters.mappings_created[0], ledger.counters.mappings_removed), (40, [0; 3]), "{way}");
    }
}

/// A limit, or another worker, takes the second port after the decision.
#[test]
fn half_a_pair_keeps_its_port() {
    let mut settings = settings();
    settings.subscriber.ports_max = [1; 3];
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
    let ledger = &mut shard.path.ledger;
    let wanted = Request { kind: Kind::Once, origin: Origin::Alg(AlgId(1)), ..request(Protocol::Udp, 7_000, 60) };
    let made = [(); 2].map(|()| ledger.open_pair(at(1), &wanted).expect("there is room for one"));
    assert_eq!(made[0], made[1], "it is renewed");
    assert_eq!((ledger.counters.mappings_created[0], ledger.counters.mappings_removed), (1, [0; 3]));
}

#[test]
fn a_grant_is_installed_elsewhere_as_it_was() {
    for ((way, mut shard), (_, mut other)) in all_ways().into_iter().zip(all_ways()) {
        let (changes, mut taken) = mem::ring::channel(64);
        shard.set_grant_deltas(changes);
        let remotes = Remotes::one(Remote::new(E1, 32, 0));
        let external = open(&mut shard, 10, &Request { remotes, ..request(Protocol::Tcp, 7_000, 600) });
        other.set_epoch(at(0), 5_000);
        let mut page = Vec::new();
        assert_eq!(shard.view().grant_deltas_page(at(10), 0, 64, &mut page), None);
        let record = taken.try_pop().expect("the change was reported");
        let delta = record.delta().expect("a record made here is sound");
        assert_eq!(page, [delta], "{way}: a walk shows the same");
        other.install_grant(at(1), &delta).expect("there is room");
        assert_eq!(arrives(&mut other, 2, (E1, 1), external, Protocol::Tcp), Some(Verdict::Inbound), "{way}");
        assert_ne!(arrives(&mut other, 2, (E2, 1), external, Protocol::Tcp), Some(Verdict::Inbound), "{way}");
        assert_eq!(other.path.ledger.state.grants.epoch(RealmId(0), HOST.into(), at(1)), delta.epoch_s);
    }
}

/// RFC 6886 §3.3: it leads nowhere, also after a restart.
#[test]
fn a_port_that_nat_pmp_reserves_is_no_grant_elsewhere() {
    let (mut shard, mut other) = (with(|_| ()), with(|_| ()));
    let (changes, mut taken) = mem::ring::channel(64);
    shard.set_grant_deltas(changes);
    let wanted = Request { origin: Origin::NatPmp, ..request(Protocol::Udp, 7_000, 600) };
    let external = open(&mut shard, 1, &wanted);
    let ledger = &mut shard.path.ledger;
    let index = ledger.view().find_grant(&wanted).expect("it was opened");
    let grant = *ledger.state.grants.get(index);
    ledger.move_twin(at(1), &grant, index);
    assert_eq!(ledger.shared.ports_used(crate::types::AddressIndex(0), Protocol::Tcp), 1, "it is reserved");
    let mut records = 0;
    while let Some(record) = taken.try_pop() {
        let delta = record.delta().expect("a record made here is sound");
        other.install_grant(at(2), &delta).expect("there is room");
        records += 1;
    }
    assert!(records >= 2, "{records} records");
    for shard in [&mut shard, &mut other] {
        assert_eq!(arrives(shard, 3, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound));
        assert_ne!(arrives(shard, 3, (E1, 1), external, Protocol::Tcp), Some(Verdict::Inbound));
    }
}

#[test]
fn a_refused_grant_leaves_a_used_one_as_it_was() {
    let mut shard = with(|_| ());
    let once = Request { kind: Kind::Once, ..request(Protocol::Udp, 7_000, 31) };
    let external = open(&mut shard, 1, &once);
    assert_eq!(arrives(&mut shard, 2, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound));
    let used = shard.path.ledger.view().find_grant(&once).expect("its origin is kept");
    let only = Suggested::Only(Wish { address: Some(E1.to_bits()), port: 9 });
    let refused = shard.path.ledger.open_grant(at(3), &Request { suggested: only, ..once });
    assert_eq!(refused, Err(Denied::OtherEndpoint));
    let grant = shard.path.ledger.state.grants.get(used);
    assert!(grant.is_in_use() && grant.is_used() && grant.external() == external, "as it was");
    assert_eq!(arrives(&mut shard, 4, (E1, 1), external, Protocol::Udp), Some(Verdict::Inbound), "its session lives");
    assert_eq!(open(&mut shard, 5, &once), external, "it gives way to one that is granted");
    assert_eq!(shard.path.ledger.state.grants.of_owner(RealmId(0), HOST.into()).count(), 1);
}

#[test]
fn a_refused_grant_leaves_an_expired_mapping_as_it_was() {
    let mut shard = with(|_| ());
    let out = build::udp(SocketAddr::new(HOST, 7_000), SocketAddr::new(E1, 53)).payload(b"x").build();
    assert_eq!(send(&mut shard, 1, Side::Inside, &out).0, Some(Verdict::Outbound));
    let only = Suggested::Only(Wish { address: Some(E1.to_bits()), port: 9 });
    let wanted = request(Protocol::Udp, 7_000, 2_000);
    let refused = shard.path.ledger.open_grant(at(1_000), &Request { suggested: only, ..wanted });
    assert_eq!(refused, Err(Denied::OtherEndpoint));
    let counters = shard.counters();
    assert_eq!((counters.mappings_created, counters.mappings_removed), ([1, 0, 0], [0; 3]), "it only waits");
    open(&mut shard, 1_000, &wanted);
    let counters = shard.counters();
    assert_eq!((counters.mappings_created, counters.mappings_removed), ([2, 0, 0], [1, 0, 0]));
}

#[test]
fn an_expired_mapping_does_not_count_against_a_grant() {
    let mut settings = settings();
    (settings.subscriber.ports_max, settings.subscriber.sessions_max) = ([1; 3], 2);
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
    for remote in [E1, E2] {
        let out = build::udp(SocketAddr::new(HOST, 7_000), SocketAddr::new(remote, 53)).payload(b"x").build();
        assert_eq!(send(&mut shard, 1, Side::Inside, &out).0, Some(Verdict::Outbound));
    }
    open(&mut shard, 1_000, &request(Protocol::Udp, 7_000, 2_000));
}

#[test]
fn a_refused_announcement_leaves_the_earlier_ones() {
    for (ports, is_refused) in [(9, true), (10, false)] {
        let mut settings = settings();
        settings.gateways = vec![Gateway::new(AlgId(0))];
        let pool = &mut settings.pools[0];
        pool.addresses.truncate(1);
        (pool.port_min, pool.port_max) = (20_000, 20_000 + ports - 1);
        pool.reserved_ports.clear();
        let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
        let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
        let syn = build::tcp(SocketAddr::new(HOST, 7_000), SocketAddr::new(E1, 21), Flags::SYN).sequence(1).build();
        assert_eq!(send(&mut shard, 1, Side::Inside, &syn).0, Some(Verdict::Outbound));
        let ledger = &mut shard.path.ledger;
        let control = InternalKey { port: 7_000, ..request(Protocol::Tcp, 7_000, 0).key };
        let index = ledger.state.find_live_mapping(&control, at(1)).expect("the control session's");
        let key = AlgKey::of(index, ledger.state.mappings.get(index), (E1.to_bits(), 21));
        let store = ledger.state.control_sessions.as_mut().expect("there is a gateway");
        let place = match store.find(&key) {
            Some(place) => place,
            None => {
                let (client_is_inside, is_of_registration) = (true, false);
                let alg = AlgId(0);
                let begun = Begun { key, inside: control, subscriber: 1, alg, client_is_inside, is_of_registration };
                store.start(&begun).expect("there is room")
            }
        };
        let asking = Asking { now: at(1), place, key, alg: AlgId(0) };
        let want = |port| Want { port, transport: Transport::Tcp, replaces: true, ..Want::default() };
        for port in 8_000..8_008 {
            assert!(ledger.expect(&asking, &want(port)).is_some(), "{port}");
        }
        let is_there = |ledger: &Ledger, port| {
            let key = InternalKey { port, ..control };
            let is_alive = ledger.state.grants.find(&key, |grant| grant.is_alive(at(1))).is_some();
            let store = ledger.state.control_sessions.as_ref().expect("there is a gateway");
            is_alive && store.get(place).known().iter().any(|known| known.inside == port)
        };
        assert_eq!(ledger.expect(&asking, &want(8_008)).is_none(), is_refused);
        assert_eq!(is_there(ledger, 8_000), is_refused, "the oldest gives way only to one that has a port");
        assert_eq!(is_there(ledger, 8_008), !is_refused);
        assert!((8_001..8_008).all(|port| is_there(ledger, port)));
    }
}

#[test]
fn a_peer_that_is_not_renewed_ends_as_before() {
    let mut settings = settings();
    settings.limits.sessions_per_mapping_max = 3;
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
    let out = build::udp(SocketAddr::new(HOST, 7_000), SocketAddr::new(E1, 53)).payload(b"x").build();
    assert_eq!(send(&mut shard, 1, Side::Inside, &out).0, Some(Verdict::Outbound));
    let remotes = Remotes::one(Remote::exactly(Endpoint::new(E2, 53)));
    let peer = |until_s| Request { kind: Kind::Peer, remotes, ..request(Protocol::Udp, 7_000, until_s) };
    open(&mut shard, 1, &peer(100));
    // The ended records of its session and its hold still count.
    assert_eq!(send(&mut shard, 101, Side::Inside, &out).0, Some(Verdict::Outbound));
    let ledger = &mut shard.path.ledger;
    assert_eq!(ledger.open_grant(at(101), &peer(700)), Err(Denied::Verdict(Verdict::SessionLimit)));
    let known = ledger.view().find_grant(&peer(700)).expect("it is not swept");
    assert_eq!(ledger.state.grants.get(known).expires(), at(100));
}
