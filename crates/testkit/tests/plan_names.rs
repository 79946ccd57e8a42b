//! A plan names what it is about: mappings, flows and blocks that drain or end, and those that keep where that is asked for.

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
fn told(found: &[Held]) -> Vec<(Endpoint, SocketAddrV4, Prospect)> {
    let mut told: Vec<_> =
        found.iter().map(|held| (held.internal, at(held.external, held.ports.0), held.becomes)).collect();
    told.sort_by_key(|(internal, ..)| (internal.address, internal.port));
    told
}

fn endpoint(from: SocketAddrV4) -> Endpoint {
    Endpoint::new(*from.ip(), from.port())
}

#[test]
fn mappings_flows_and_blocks_that_drain_are_named_with_their_owner_and_their_end() {
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
    assert_eq!(told(&census.concerned.mappings), expected(Prospect::Drains(None), &goes));
    assert!(census.concerned.mappings.iter().all(|held| held.protocol == Some(Protocol::Udp) && held.remote.is_none()));
    assert_eq!(told(&census.kept.mappings), expected(Prospect::Keeps, &|external| !goes(external)));
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
    assert!(all.into_iter().flatten().all(|held| held.becomes == ends), "{all:?}");
    next.reload.removed = Removed::End;
    let census = bed.census_with_names(next, 1_000);
    assert_eq!(told(&census.concerned.mappings), expected(Prospect::Ends, &goes));
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
        told(&census.concerned.mappings),
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
