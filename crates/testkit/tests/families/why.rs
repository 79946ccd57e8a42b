//! What is explained of a packet of an IPv6 host is what becomes of it.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::cell::RefCell;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Filtering;
use nat::settings::MappingKind;
use nat::settings::Pooling;
use nat::settings::RuleAction;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::view::Explanation;
use nat::view::HostRole;
use nat::view::HostView;
use nat::view::Step;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::seeds::for_each_seed;
use testkit::topology::INSIDE;
use testkit::topology::OUTSIDE;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

pub(crate) fn why(bed: &Bed6, ingress: InterfaceId, packet: &[u8]) -> Explanation {
    let from = if ingress == INSIDE { Facing::inside(RealmId(0)) } else { Facing::OUTSIDE };
    let answer = bed.shared().explain(from, packet, |worker, onward| -> Result<_, ()> {
        let shard = &bed.shards()[worker.index()];
        Ok(match onward {
            None => shard.explain(bed.now(), from, packet),
            Some(onward) => shard.explain_onward(bed.now(), onward, packet),
        })
    });
    answer.expect("shards always answer").1
}

/// Asks first, then sends. Returns also what left outside.
fn check(bed: &mut Bed6, worker: usize, ingress: InterfaceId, packet: &[u8]) -> (Explanation, Vec<Vec<u8>>) {
    let preview = why(bed, ingress, packet);
    assert_eq!(preview, why(bed, ingress, packet), "asking changes nothing");
    let before: Vec<u64> = Verdict::ALL.iter().map(|verdict| bed.count(*verdict)).collect();
    let [_, out] = bed.receive(worker, ingress, packet);
    let counts = Verdict::ALL.iter().zip(before);
    let given: Vec<Verdict> =
        counts.filter(|(verdict, before)| bed.count(**verdict) > *before).map(|(verdict, _)| *verdict).collect();
    assert_eq!(given, [preview.verdict], "{packet:02x?}: preview was {preview:#?}");
    assert!(!preview.steps.is_empty(), "{packet:02x?}: {:?} without a step", preview.verdict);
    check_names(&preview);
    (preview, out)
}

/// Each number of a host is named by a step.
fn check_names(explanation: &Explanation) {
    let is_named = |number: Ipv4Addr| {
        explanation.steps.iter().any(|step| matches!(step, Step::Host { number: named, .. } if *named == number))
    };
    for step in &explanation.steps {
        let address = match step {
            Step::MappingFound { internal, .. } | Step::FlowFound { internal, .. } => internal.address,
            Step::Routed { next_hop, .. } => *next_hop,
            _ => continue,
        };
        assert!(!nat::types::HostNumber::from(address).is_ipv6() || is_named(address), "{address}: {explanation:#?}");
    }
}

fn host_in(explanation: &Explanation) -> Option<(HostView, HostRole)> {
    explanation.steps.iter().find_map(|step| match step {
        Step::Host { host, role, .. } => Some((*host, *role)),
        _ => None,
    })
}

#[test]
fn why_names_a_nat64_host_before_and_with_its_mapping() {
    let mut bed = Bed6::new(settings6());
    let packet = udp6((v6(C6), 5_000), (behind(E1), 53), b"question");
    let host = HostView { address: Ipv6Addr::from_bits(v6(C6)), prefix_length: 128, inner: None, is_softwire: false };
    let (preview, out) = check(&mut bed, 0, INSIDE, &packet);
    assert_eq!(host_in(&preview), Some((host, HostRole::Sender { is_known: false })));
    assert!(preview.steps.iter().any(|step| matches!(step, Step::MappingWouldBeCreated { .. })));
    let external = source(&out[0]);
    let (preview, _) = check(&mut bed, 0, INSIDE, &packet);
    assert_eq!(host_in(&preview), Some((host, HostRole::Sender { is_known: true })));
    assert_eq!(
        preview.source_after.map(|source| (source.address, source.port)),
        Some((*external.ip(), external.port()))
    );
    let answer = build::udp(at(E1, 53), external).payload(b"answer").build();
    let (preview, _) = check(&mut bed, 0, OUTSIDE, &answer);
    let remote = Some(Ipv6Addr::from_bits(behind(E1)));
    assert_eq!(host_in(&preview), Some((host, HostRole::Receiver { remote })));
}

#[test]
fn why_distinguishes_homes_with_equal_inner_addresses() {
    let mut bed = Bed6::new(settings6());
    let home = Ipv4Addr::new(192, 168, 1, 2);
    let inner = build::udp(at(home, 5_000), at(E1, 53)).payload(b"question").build();
    let mut externals = Vec::new();
    for b4 in [C6, D6] {
        let packet = softwire(v6(b4), v6(AFTR), &inner);
        let host =
            HostView { address: Ipv6Addr::from_bits(v6(b4)), prefix_length: 128, inner: Some(home), is_softwire: true };
        let (preview, out) = check(&mut bed, 0, INSIDE, &packet);
        assert_eq!(host_in(&preview), Some((host, HostRole::Sender { is_known: false })));
        externals.push(source(&out[0]));
        let answer = build::udp(at(E1, 53), externals[externals.len() - 1]).payload(b"answer").build();
        let (preview, _) = check(&mut bed, 0, OUTSIDE, &answer);
        assert_eq!(host_in(&preview), Some((host, HostRole::Receiver { remote: None })));
    }
    assert_ne!(externals[0], externals[1]);
    let ping = build::echo_request(home, Ipv4Addr::new(192, 0, 0, 1), 7).payload(b"hi").build();
    assert_eq!(check(&mut bed, 0, INSIDE, &softwire(v6(C6), v6(AFTR), &ping)).0.verdict, Verdict::Local);
}

#[test]
fn why_names_the_host_of_a_packet_that_is_dropped() {
    let mut settings = settings6();
    settings.port_control.nat_pmp = true;
    let mut bed = Bed6::new(settings);
    let home = Ipv4Addr::new(192, 168, 1, 2);
    let inner = build::udp(at(home, 5_000), at(E1, 53)).build();
    for (packet, length) in
        [(udp6((v6(C6), 5_000), (behind(E1), 53), b"question"), 1_500), (softwire(v6(D6), v6(AFTR), &inner), 60)]
    {
        let out = bed.inside(&packet)[1].clone();
        let answer = build::udp(at(E1, 53), source(&out[0])).payload_length(length - 28).dont_fragment();
        for (answer, verdict) in [(answer.clone(), Verdict::TooBig), (answer.ttl(1), Verdict::TtlExpired)] {
            let preview = check(&mut bed, 0, OUTSIDE, &answer.build()).0;
            if preview.verdict != Verdict::Inbound {
                assert_eq!(preview.verdict, verdict);
            }
            assert!(host_in(&preview).is_some_and(|(host, _)| host.address != Ipv6Addr::UNSPECIFIED));
        }
    }
    // A request for port control, and a packet from a number.
    let request = build::udp(at(home, 5_000), at(Ipv4Addr::new(192, 0, 0, 1), 5_351)).payload(&[0, 0]).build();
    let preview = check(&mut bed, 0, INSIDE, &softwire(v6(D6), v6(AFTR), &request)).0;
    assert_eq!(preview.verdict, Verdict::Local);
    let number = build::udp(at(Ipv4Addr::new(224, 0, 0, 1), 5_000), at(E1, 53)).build();
    assert_eq!(check(&mut bed, 0, INSIDE, &number).0.verdict, Verdict::SourceInvalid);
}

/// Small limits of all sorts, so that each runs out.
fn random_settings(random: &mut SmallRng) -> Settings {
    let filtering = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    let ports = random.random_range(4..40);
    let mut settings = settings6()
        .addresses(&POOL[..1])
        .ports(10_000, 9_999 + ports)
        .filtering(filtering[random.random_range(0..filtering.len())])
        .pooling(if random.random() { Pooling::Paired } else { Pooling::Arbitrary });
    settings.pools[0].shared_ports_min = 2;
    settings.transition.hosts_max = random.random_range(6..40);
    settings.transition.hosts_per_subscriber_max = random.random_range(1..5);
    if random.random() {
        settings.subscriber.ports_max = [random.random_range(2..8); Protocol::COUNT];
    }
    let to = |port| Match { destination_ports: PortRange { first: port, last: port }, ..Match::ALL };
    let dependent = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent };
    settings =
        settings.rule(to(443), dependent).rule(to(446), RuleAction::Drop).rule(to(447), RuleAction::NoTranslation);
    settings.limits(|limits| {
        limits.flows_max = 64;
        limits.mappings_max = 512;
        limits.subscribers_max = 64;
        limits.extra_sessions_max = 512;
    })
}

/// A packet of a random host of a random family to this IPv4 endpoint.
fn from_inside(random: &mut SmallRng, to: SocketAddrV4) -> Vec<u8> {
    let port = random.random_range(5_000..5_004);
    let flags = if random.random_bool(0.8) { Flags::SYN } else { Flags::ACK };
    let length = if random.random_bool(0.05) { 1_460 } else { 8 };
    let kind = random.random_range(0..3);
    let inner = |from: Ipv4Addr| match kind {
        0 => build::tcp(at(from, port), to, flags).sequence(1).build(),
        1 => build::udp(at(from, port), to).payload_length(length).build(),
        _ => build::echo_request(from, *to.ip(), port).payload(b"natrix").build(),
    };
    let subscriber = v6(["2001:db8:c:100::", "2001:db8:c:1ff::", "2001:db8:d:200::"][random.random_range(0..3)]);
    let host = subscriber + random.random_range(1..5);
    match random.random_range(0..6) {
        0..3 => {
            let embedded = if random.random_bool(0.03) { Ipv4Addr::new(10, 0, 0, 1) } else { *to.ip() };
            let (from, to) = ((host, port), (behind(embedded), to.port()));
            match kind {
                0 => tcp6(from, to, flags.0, (1, 0), &[]),
                1 => udp6(from, to, &vec![7; length]),
                _ => ping6(from.0, to.0, port),
            }
        }
        3..5 => {
            let home = [Ipv4Addr::new(192, 168, 1, 2), Ipv4Addr::new(192, 168, 1, 3), Ipv4Addr::new(10, 0, 0, 1)];
            let which = if random.random_bool(0.05) { 2 } else { random.random_range(0..2) };
            softwire(host, v6(AFTR), &inner(home[which]))
        }
        _ => inner(Ipv4Addr::new(100, 64, 0, random.random_range(10..16))),
    }
}

#[test]
fn what_is_explained_happens_to_hosts_of_each_family() {
    let seen = RefCell::new(HashMap::new());
    for_each_seed(40, |seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        let workers = [1, 1, 2, 4][random.random_range(0..4)];
        let mut bed = Bed6::with_workers(random_settings(&mut random), workers);
        let mut externals = vec![at(POOL[0], 10_001)];
        for _ in 0..150 {
            if random.random_bool(0.02) {
                bed.advance(Duration::from_secs(random.random_range(1..400)));
            }
            let outside = at([E1, E2][random.random_range(0..2)], random.random_range(441..449));
            let external = externals[random.random_range(0..externals.len())];
            let worker = random.random_range(0..workers);
            let (preview, out) = match random.random_range(0..10) {
                0..5 => check(&mut bed, worker, INSIDE, &from_inside(&mut random, outside)),
                5..7 => check(&mut bed, worker, INSIDE, &from_inside(&mut random, external)),
                _ => {
                    let answer = match random.random_range(0..4) {
                        0 => build::tcp(outside, external, Flags::SYN.union(Flags::ACK)).build(),
                        1 => build::udp(outside, external).payload_length(8).build(),
                        2 => build::udp(outside, external).payload_length(1_470).dont_fragment().build(),
                        _ => build::echo_reply(*outside.ip(), *external.ip(), external.port()).payload(b"hi").build(),
                    };
                    check(&mut bed, worker, OUTSIDE, &answer)
                }
            };
            *seen.borrow_mut().entry((preview.verdict, host_in(&preview).is_some())).or_insert(0) += 1;
            externals.extend(out.iter().map(|packet| source(packet)));
            if externals.len() > 20 {
                externals.remove(7);
            }
        }
    });
    let seen = seen.into_inner();
    for verdict in [Verdict::Outbound, Verdict::Inbound, Verdict::Hairpin] {
        assert!(seen.contains_key(&(verdict, true)), "{verdict:?} of an IPv6 host: {seen:?}");
    }
    for verdict in [Verdict::HostLimit, Verdict::HostTableFull, Verdict::EmbeddedPrivate, Verdict::SoftwireSource] {
        assert!(seen.contains_key(&(verdict, false)), "{verdict:?}: {seen:?}");
    }
}
