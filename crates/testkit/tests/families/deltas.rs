//! A second instance that is fed with the changes of a first one holds the same mappings, sessions,
//! ports and hosts, though its clock, its workers and its numbers of hosts differ.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeSet;

use nat::Delta;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Shard;
use nat::Shared;
use nat::types::AddressIndex;
use nat::types::Endpoint;
use nat::types::Prefix;
use nat::view::Filter;
use nat::view::HostView;
use nat::view::Query;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::bed6::*;
use testkit::peer::AHEAD;
use testkit::peer::Peer;
use testkit::peer::RING;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::hosts::Host;

/// An internal endpoint without the number that only one worker knows.
fn named(internal: Endpoint, host: Option<HostView>) -> String {
    match host {
        Some(host) => format!("{host:?} {}", internal.port),
        None => internal.to_string(),
    }
}

/// Mappings, sessions and subscribers.
fn held(shards: &[Shard], now: Instant) -> [BTreeSet<String>; 3] {
    let mut held = [const { BTreeSet::new() }; 3];
    for shard in shards {
        let mut mappings = Query::all(Filter::default());
        shard.view().mappings_page(now, &mut mappings);
        for view in mappings.records {
            let left = if view.sessions == 0 { view.expires_in } else { Duration::ZERO };
            let internal = named(view.internal, view.host);
            held[0].insert(format!("{:?} {internal} {} {} {left:?}", view.protocol, view.external, view.sessions));
        }
        let mut sessions = Query::all(Filter::default());
        shard.view().sessions_page(now, &mut sessions);
        for view in sessions.records {
            let internal = named(view.internal, view.host);
            held[1].insert(format!(
                "{:?} {internal} {} {} {:?} {:?} {} {:?}",
                view.protocol, view.external, view.remote, view.opened_from, view.state, view.hairpin, view.expires_in
            ));
        }
        let mut subscribers = Query::all(Filter::default());
        shard.view().subscribers_page(now, &mut subscribers);
        for SubscriberView { address, host, mappings, .. } in subscribers.records {
            held[2].insert(format!("{} {mappings:?}", named(Endpoint::new(address, 0), host)));
        }
    }
    held
}

fn all(bed: &Bed6) -> Vec<Delta> {
    let mut deltas = Vec::new();
    for shard in bed.shards() {
        let mut cursor = Some(0_u64);
        while let Some(from) = cursor {
            cursor = shard.view().deltas_page(bed.now(), from, 100, &mut deltas);
        }
    }
    deltas
}

fn ports_used(shared: &Shared) -> u64 {
    let addresses = (0..shared.address_count() as u32).map(AddressIndex);
    let used = addresses.flat_map(|address| Protocol::ALL.map(|protocol| shared.ports_used(address, protocol)));
    used.map(u64::from).sum()
}

fn run(seed: u64, workers: usize, peer_workers: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut settings = settings6().short_timers().addresses(&POOL[..2]).ports(10_000, 10_000 + 400);
    settings.pools[0].reuse_delay = Duration::ZERO;
    settings.limits.mappings_max = 2_000;
    settings.limits.extra_sessions_max = 2_000;
    settings.transition.hosts_max = 2_000;
    if random.random() {
        settings = settings.endpoint_dependent(Prefix::host(E2), (443, 443));
        settings.limits.flows_max = 2_000;
        settings.pools[0].shared_ports_min = 2;
    }
    let mut bed = Bed6::with_workers(settings.clone(), workers).record_deltas(RING);
    let mut peer = Peer::new(settings, peer_workers);
    let mut families = [0; 3];
    for _ in 0..60 {
        for _ in 0..random.random_range(1..20) {
            let to = at([E1, E2][random.random_range(0..2)], [80, 443, 5_000][random.random_range(0..3)]);
            let known = bed.mapping_views();
            let known = known.get(random.random_range(0..known.len().max(1)));
            let external = known.map(|view| at(view.external.address, view.external.port));
            let protocol = Protocol::ALL[random.random_range(0..3)];
            let flags = [Flags::SYN, Flags::SYN, Flags::ACK, Flags::FIN.union(Flags::ACK), Flags::RST];
            let flags = flags[random.random_range(0..5)];
            let worker = random.random_range(0..workers);
            match (random.random_range(0..5), external) {
                (0, Some(external)) => {
                    let packet = match protocol {
                        Protocol::Tcp => build::tcp(to, external, flags).sequence(1_000).build(),
                        _ => build::udp(to, external).build(),
                    };
                    bed.receive(worker, topology::OUTSIDE, &packet);
                }
                (choice, external) => {
                    let to = external.filter(|_| choice == 1).unwrap_or(to);
                    let host = Host::random(&mut random);
                    families[match host {
                        Host::V4(_) => 0,
                        Host::Nat64(_) => 1,
                        Host::Home(..) => 2,
                    }] += 1;
                    let packet = host.packet(protocol, random.random_range(5_000..5_006), to, flags, b"x");
                    bed.receive(worker, topology::INSIDE, &packet);
                }
            }
        }
        peer.install(bed.now(), &bed.take_deltas());
        if random.random_ratio(1, 4) {
            bed.advance(Duration::from_millis(random.random_range(100..4_000)));
            let deltas = bed.take_deltas();
            peer.install(bed.now(), &deltas);
            // A peer is brought up to date before its own timers run out.
            peer.install(bed.now(), &all(&bed));
            peer.maintain(bed.now());
        }
    }
    bed.sweep();
    let deltas = bed.take_deltas();
    peer.install(bed.now(), &deltas);
    peer.install(bed.now(), &all(&bed));
    peer.maintain(bed.now());
    assert!(bed.shards().iter().all(|shard| shard.deltas_lost() == 0), "the ring has room");
    let (first, second) = (held(bed.shards(), bed.now()), held(&peer.shards, bed.now() + AHEAD));
    for (what, (first, second)) in ["mappings", "sessions", "subscribers"].iter().zip(first.iter().zip(&second)) {
        assert_eq!(first, second, "seed {seed}: {what}");
    }
    assert!(!first[1].is_empty() && families.iter().all(|count| *count > 20), "{families:?}");
    if bed.shards().iter().all(|shard| shard.view().shared_ports_len() == 0) {
        assert_eq!(ports_used(bed.shared()), ports_used(&peer.shared), "seed {seed}: ports");
    }
    // In the end all is over in both, and no port is left behind.
    for _ in 0..20 {
        bed.advance(Duration::from_secs(10));
        let deltas = bed.take_deltas();
        peer.install(bed.now(), &deltas);
        peer.maintain(bed.now());
    }
    assert!(peer.shards.iter().all(Shard::is_empty), "seed {seed}: nothing is left");
    assert_eq!(ports_used(&peer.shared), 0, "seed {seed}: no port is left");
}

#[test]
fn a_peer_fed_with_deltas_has_the_same_ipv6_hosts() {
    for_each_seed(16, |seed| run(seed, 1, 1));
}

#[test]
fn a_peer_with_other_workers_has_the_same_ipv6_hosts() {
    for_each_seed(16, |seed| run(seed, [1, 2, 3][seed as usize % 3], [2, 3, 1, 4][seed as usize % 4]));
}
