//! A plan names what it is about: mappings, flows and blocks that drain or end, and those that keep
//! where that is asked for.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Held;
use nat::Prospect;
use nat::Protocol;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::rules::Match;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::MappingKind;
use nat::settings::Removed;
use nat::settings::RuleAction;
use nat::types::Endpoint;
use testkit::*;
use wire::build;

fn local(host: u8, port: u16) -> SocketAddrV4 {
    at([100, 64, 0, host].into(), port)
}

/// Two addresses with blocks of 64 ports; DNS shares ports.
fn in_blocks() -> Settings {
    let mut settings = settings().addresses(&POOL[..2]);
    settings.limits.external_addresses_max = 8;
    settings.limits.flows_max = 100;
    let size = BlockSize::of_ports(64).expect("a block size");
    settings.pools[0].allocation =
        Allocation::Blocks(Blocks { size, per_subscriber_max: 4, idle: Duration::from_secs(60) });
    let dns = Match { destination_ports: nat::rules::PortRange { first: 53, last: 53 }, ..Match::ALL };
    settings.rule(dns, RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent })
}

fn without(address: Ipv4Addr) -> Settings {
    let mut next = in_blocks();
    next.pools[0].addresses.retain(|other| *other != address);
    next
}

/// The internal endpoint, the external one and what becomes of it.
fn reported(found: &[Held]) -> Vec<(Endpoint, SocketAddrV4, Prospect)> {
    let mut reported: Vec<_> =
        found.iter().map(|held| (held.internal, at(held.external, held.ports.0), held.becomes)).collect();
    reported.sort_by_key(|(internal, ..)| (internal.address, internal.port));
    reported
}

fn endpoint(from: SocketAddrV4) -> Endpoint {
    Endpoint::new(*from.ip(), from.port())
}

#[test]
fn draining_state_is_named_with_owner_and_end() {
    let mut bed = Bed::new(in_blocks()).workers(2);
    let opened: Vec<_> =
        (10..30).map(|host| (local(host, 5_000), bed.open_udp(local(host, 5_000), at(E1, 80)))).collect();
    let gone = *opened[0].1.ip();
    let flow = local(10, 6_000);
    bed.inside(&build::udp(flow, at(E1, 53)).build());
    bed.take_outside();
    let mut next = without(gone);
    let expected = |becomes: Prospect, is_named: &dyn Fn(&SocketAddrV4) -> bool| -> Vec<_> {
        let some = opened.iter().filter(|(_, external)| is_named(external));
        some.map(|(internal, external)| (endpoint(*internal), *external, becomes)).collect()
    };
    let goes = |external: &SocketAddrV4| *external.ip() == gone;
    let census = bed.census_with_names(next.clone(), 1_000);
    assert_eq!(reported(&census.concerned.mappings), expected(Prospect::Drains(None), &goes));
    assert!(census.concerned.mappings.iter().all(|held| held.protocol == Some(Protocol::Udp) && held.remote.is_none()));
    assert_eq!(reported(&census.kept.mappings), expected(Prospect::Keeps, &|external| !goes(external)));
    let [dns] = &census.concerned.flows[..] else { panic!("one flow, not {:?}", census.concerned.flows) };
    assert_eq!((dns.internal, dns.external), (endpoint(flow), gone));
    assert_eq!(dns.remote, Some(Endpoint::new(E1, 53)));
    // Each mapping that drains is in a block of its subscriber that drains.
    let blocks = &census.concerned.blocks;
    assert_eq!(blocks.len() as u64, census.pools[0].blocks.drain);
    for (internal, external) in opened.iter().filter(|(_, external)| goes(external)) {
        let has_it = |held: &&Held| {
            held.internal.address == *internal.ip() && (held.ports.0..=held.ports.1).contains(&external.port())
        };
        let block = blocks.iter().find(has_it).expect("its block is named");
        assert_eq!((block.external, block.ports.1 - block.ports.0, block.becomes), (gone, 63, Prospect::Drains(None)));
    }
    // With a deadline each says when, and where it ends with the change that.
    next.reload.drain_time = Some(Duration::from_secs(60));
    let ends = Prospect::Drains(Some(bed.now() + Duration::from_secs(60)));
    let census = bed.census_with_names(next.clone(), 1_000);
    let all = [&census.concerned.mappings, &census.concerned.flows, &census.concerned.blocks];
    let [mappings, flows, blocks] = all;
    assert!(mappings.iter().chain(flows).all(|held| held.becomes == ends), "{all:?}");
    // A block stays leased while its ports rest, and then until it has been idle for long enough.
    let goes_back = |ends_in_s: u64| Prospect::Drains(Some(bed.now() + Duration::from_secs(ends_in_s + 120 + 60)));
    assert!(!blocks.is_empty() && blocks.iter().all(|held| held.becomes == goes_back(60)), "{blocks:?}");
    next.reload.removed = Removed::End;
    let census = bed.census_with_names(next.clone(), 1_000);
    assert_eq!(reported(&census.concerned.mappings), expected(Prospect::Ends, &goes));
    let blocks = &census.concerned.blocks;
    assert!(!blocks.is_empty() && blocks.iter().all(|held| held.becomes == goes_back(0)), "{blocks:?}");
    assert_eq!(census.pools[0].blocks.drain_until, blocks.len() as u64);
    // Where ports do not rest and blocks are not kept idle they end with the change, too.
    next.pools[0].reuse_delay = Duration::ZERO;
    next.pools[0].allocation = Allocation::Ports;
    let census = bed.census_with_names(next, 1_000);
    assert!(census.concerned.blocks.iter().any(|held| held.external == gone), "{census:?}");
    let of_gone = census.concerned.blocks.iter().filter(|held| held.external == gone);
    assert!(of_gone.into_iter().all(|held| held.becomes == Prospect::Ends), "{census:?}");
    bed.run_out();
}

#[test]
fn what_drains_already_says_how_much_of_its_time_is_left() {
    let mut bed = Bed::new(in_blocks());
    let external = bed.open_udp(local(10, 5_000), at(E1, 80));
    let mut next = without(*external.ip());
    next.reload.drain_time = Some(Duration::from_secs(100));
    let since = bed.now();
    bed.reload(next.clone());
    bed.advance_secs(40);
    bed.open_udp(local(10, 5_000), at(E1, 80));
    let census = bed.census_with_names(next, 10);
    assert_eq!(
        reported(&census.concerned.mappings),
        [(endpoint(local(10, 5_000)), external, Prospect::Drains(Some(since + Duration::from_secs(100))))]
    );
    bed.run_out();
}

#[test]
fn no_more_are_named_than_there_is_room_for_and_all_are_counted() {
    let mut bed = Bed::new(in_blocks());
    for host in 10..40 {
        bed.open_udp(local(host, 5_000), at(E1, 80));
    }
    let mut next = in_blocks();
    next.pools[0].draining = true;
    let census = bed.census_with_names(next, 7);
    assert_eq!((census.concerned.mappings.len(), census.concerned.blocks.len(), census.affected.len()), (7, 7, 7));
    assert_eq!((census.pools[0].mappings.drain, census.pools[0].blocks.drain), (30, 30));
    let census = bed.census_with_names(in_blocks(), 0);
    assert_eq!((census.concerned.mappings.len(), census.kept.mappings.len()), (0, 0));
    bed.run_out();
}

/// The pool of [`in_blocks`] with its upper half taken out of the range, and a time for what is
/// left there.
fn narrowed() -> Settings {
    let mut next = in_blocks();
    next.pools[0].port_max = 32_767;
    next.reload.drain_time = Some(Duration::from_secs(100));
    next
}

#[test]
fn a_block_out_of_range_stays_until_its_last_mapping_and_hold() {
    let mut bed = Bed::new(in_blocks());
    for host in 10..60 {
        bed.open_udp(local(host, 5_000), at(E1, 80));
    }
    let census = bed.census_with_names(narrowed(), 1_000);
    let (mappings, blocks) = (&census.concerned.mappings, &census.concerned.blocks);
    let mapping_ends = Prospect::Drains(Some(bed.now() + Duration::from_secs(100)));
    let block_ends = bed.now() + Duration::from_secs(100 + 120 + 60);
    assert!(!mappings.is_empty() && mappings.len() < 50, "some are on each half");
    assert!(mappings.iter().all(|held| held.becomes == mapping_ends), "{mappings:?}");
    assert_eq!(blocks.len(), mappings.len());
    assert!(blocks.iter().all(|held| held.becomes == Prospect::Drains(Some(block_ends))), "{blocks:?}");
    assert_eq!((census.pools[0].blocks.drain, census.pools[0].blocks.drain_until), (0, blocks.len() as u64));
    // And so it is: with mappings that are used to the last, it is there until then and no longer.
    let gone: Vec<_> = blocks.iter().map(|held| (held.internal.address, held.ports)).collect();
    let last = gone[0];
    bed.reload(narrowed());
    let is_leased = |bed: &Bed| {
        let shared = bed.shared();
        let addresses = shared.addresses().map(|(address, _)| address);
        let leases: Vec<_> = addresses.filter_map(|address| shared.lease_of(address, last.1.0)).collect();
        leases.iter().any(|lease| lease.holder.address == last.0.into())
    };
    while bed.now() + Duration::from_secs(10) < block_ends {
        bed.advance_secs(5);
        assert!(is_leased(&bed), "{:?} before {block_ends:?}", bed.now());
        if bed.mapping_of(Protocol::Udp, at(last.0, 5_000)).is_some() {
            bed.inside(&build::udp(at(last.0, 5_000), at(E1, 80)).build());
            bed.take_outside();
        }
    }
    bed.advance_secs(20);
    assert!(!is_leased(&bed), "at the latest then");
    bed.run_out();
}

#[test]
fn a_block_of_another_size_stays_with_its_holder() {
    let mut bed = Bed::new(in_blocks());
    bed.open_udp(local(10, 5_000), at(E1, 80));
    let mut next = in_blocks();
    let size = BlockSize::of_ports(128).expect("a block size");
    next.pools[0].allocation =
        Allocation::Blocks(Blocks { size, per_subscriber_max: 4, idle: Duration::from_secs(60) });
    next.reload.drain_time = Some(Duration::from_secs(100));
    let census = bed.census_with_names(next.clone(), 10);
    assert_eq!((census.pools[0].mappings.keep, census.pools[0].blocks.keep), (1, 1));
    let external = bed.mappings()[0].external;
    let address = bed.shared().address_index(external.address).expect("it is of the pool");
    let block = bed.shared().lease_of(address, external.port).expect("it is in a block").block;
    bed.reload(next);
    let port = bed.open_udp(local(10, 5_001), at(E1, 80)).port();
    assert!((block.first_port()..=block.last_port()).contains(&port), "{port} is of {block:?}");
    bed.run_out();
}

#[test]
fn a_subscriber_with_only_an_idle_block_is_not_affected() {
    let mut bed = Bed::new(in_blocks());
    let gone = *bed.open_udp(local(10, 5_000), at(E1, 80)).ip();
    // Its mapping is over; its port is held down, and its block waits.
    bed.advance_secs(310);
    assert!(bed.mappings().is_empty());
    let census = bed.census_with_names(without(gone), 10);
    assert_eq!(census.affected, []);
    let counted = census.pools[0];
    let subscribers = [
        counted.subscribers_keep,
        counted.subscribers_move,
        counted.subscribers_drain,
        counted.subscribers_drain_until,
        counted.subscribers_leave,
    ];
    assert_eq!(subscribers, [0; 5]);
    let [block] = &census.concerned.blocks[..] else { panic!("its block is named: {census:?}") };
    assert!(matches!(block.becomes, Prospect::Drains(Some(_))), "{block:?}");
    bed.run_out();
}

#[test]
fn a_pool_that_was_narrowed_has_no_more_in_use_than_there_is() {
    let mut bed = Bed::new(in_blocks());
    for host in 10..60 {
        bed.open_udp(local(host, 5_000), at(E1, 80));
    }
    // One block's worth is left on each address.
    let mut next = in_blocks();
    (next.pools[0].port_min, next.pools[0].port_max) = (32_768, 32_831);
    bed.reload(next);
    let shared = bed.shared();
    for (address, _) in shared.addresses() {
        let leased = shared.ports_leased(address);
        assert!(leased > 64, "more than there is now");
        for protocol in Protocol::ALL {
            assert!(shared.ports_used(address, protocol) <= shared.ports_there(address, protocol));
        }
        assert_eq!(shared.ports_there(address, Protocol::Icmp), leased + 64, "what is left, and one that is free");
        let left = shared.ports_used(address, Protocol::Udp);
        assert_eq!(shared.ports_there(address, Protocol::Udp), 64 + left);
    }
    bed.run_out();
}
