//! What is explained of a packet is what becomes of it: over random configurations, and where
//! something has run out.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Shard;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::redirection::Target;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
use nat::settings::Blocks;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::types::Endpoint;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::view::Explanation;
use nat::view::Step;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::seeds::for_each_seed;
use testkit::topology::INSIDE;
use testkit::topology::OUTSIDE;
use testkit::topology::OUTSIDE_ROUTER;
use testkit::topology::OWN_INSIDE;
use testkit::topology::OWN_OUTSIDE;
use testkit::topology::prefix;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const BLUE: InterfaceId = InterfaceId(2);
const OTHER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 200);
/// A remote host until a reload gives its address to a pool.
const LATER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 210);

/// The n-th subscriber of the red or the blue VRF.
fn host(realm: u16, n: u8) -> Ipv4Addr {
    if realm == 0 { Ipv4Addr::new(100, 64, 0, 10 + n) } else { Ipv4Addr::new(10, 9, 0, 10 + n) }
}

/// Two VRFs, which speak to each other if that is allowed.
fn two_realms(may_hairpin: bool) -> Settings {
    let mut settings = settings();
    settings.realm_names = vec!["red".into(), "blue".into()];
    settings.hairpin_between_realms = may_hairpin;
    settings.interfaces.push(Interface {
        name: "blue".into(),
        side: Side::Inside,
        realm: RealmId(1),
        addresses: vec![InterfaceAddress { address: Ipv4Addr::new(10, 9, 0, 1), prefix_length: 24 }],
        mtu: 1_500,
    });
    settings.pools[0].subscribers.push(prefix([10, 9, 0, 0], 24));
    settings
}

fn to_targets(realm: u16, protocol: Protocol, external: SocketAddrV4, hosts: &[u8]) -> BalancedForward {
    let target = |n: &u8| Target { address: host(realm, *n).to_bits(), port: Some(8_080), weight: 1 };
    BalancedForward {
        realm: RealmId(realm),
        protocol,
        external: *external.ip(),
        ports: (external.port(), external.port()),
        targets: hosts.iter().map(target).collect(),
        admission: Admission::Anyone,
        is_sticky: false,
    }
}

fn to_one(realm: u16, protocol: Protocol, external: SocketAddrV4, inside: u8) -> Forward {
    Forward {
        realm: RealmId(realm),
        protocol,
        external: *external.ip(),
        ports: (external.port(), external.port()),
        inside: host(realm, inside).into(),
        inside_port: 8_080,
        admission: Admission::Anyone,
    }
}

fn endpoint(socket: SocketAddrV4) -> Endpoint {
    Endpoint::new(*socket.ip(), socket.port())
}

/// What would happen, asked of whichever workers it is asked of in a running instance.
fn why(bed: &Bed, from: Facing, packet: &[u8]) -> Explanation {
    let shards: Vec<&Shard> = bed.shards().collect();
    let answer = bed.shared().explain(from, packet, |worker, onward| -> Result<_, ()> {
        let shard = shards[worker.index()];
        Ok(match onward {
            None => shard.explain(bed.now(), from, packet),
            Some(onward) => shard.explain_onward(bed.now(), onward, packet),
        })
    });
    answer.expect("shards always answer").1
}

/// Sends it, and says which verdict it got.
fn send(bed: &mut Bed, interface: InterfaceId, packet: &[u8]) -> Vec<Verdict> {
    let before = bed.counters();
    match interface {
        OUTSIDE => bed.outside(packet),
        interface => bed.inside_by(interface, packet),
    }
    let after = bed.counters();
    Verdict::ALL.iter().copied().filter(|verdict| after.of(*verdict) > before.of(*verdict)).collect()
}

fn facing(bed: &Bed, interface: InterfaceId) -> Facing {
    bed.settings().interfaces[usize::from(interface.0)].facing()
}

/// Asks first, then sends.
pub(crate) fn check(bed: &mut Bed, interface: InterfaceId, packet: &[u8]) -> Explanation {
    let preview = why(bed, facing(bed, interface), packet);
    let given = send(bed, interface, packet);
    let what = format!("{:?} to {:?} by {interface:?}", source(packet), destination(packet));
    let is_open = preview.steps.iter().any(|step| matches!(step, Step::AnyTarget { agree: false, .. }));
    assert!(given == [preview.verdict] || is_open, "{what}: {given:?}, and preview was {preview:?}");
    preview
}

fn beds(settings: &Settings) -> impl Iterator<Item = Bed> {
    [1, 2, 4].into_iter().map(|workers| Bed::new(settings.clone()).workers(workers).steering(Steering::Random))
}

#[test]
fn targets_in_another_vrf_are_refused_without_vrf_hairpins() {
    let external = at(POOL[1], 443);
    let mut settings = two_realms(false).limits(|limits| limits.flows_max = 1_000);
    settings.balanced_forwards = vec![to_targets(1, Protocol::Tcp, external, &[1, 2, 3])];
    settings.forwards = vec![to_one(1, Protocol::Tcp, at(POOL[1], 444), 4)];
    for mut bed in beds(&settings) {
        for n in 0..16 {
            for to in [external, at(POOL[1], 444)] {
                for realm in [0, 1] {
                    let by = if realm == 0 { INSIDE } else { BLUE };
                    let syn = build::tcp(at(host(realm, 20 + n), 5_000), to, Flags::SYN).build();
                    let expected = if realm == 0 { Verdict::HairpinRefused } else { Verdict::Hairpin };
                    // Before the host has a mapping, and with it.
                    for _ in 0..2 {
                        assert_eq!(check(&mut bed, by, &syn).verdict, expected, "from {realm} to {to}");
                    }
                }
            }
        }
    }
}

#[test]
fn sessions_into_another_vrf_end_once_hairpins_must_stay_in_one() {
    let external = at(POOL[1], 443);
    let settings = |may_hairpin| {
        let mut settings = two_realms(may_hairpin).limits(|limits| limits.flows_max = 1_000);
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            settings.balanced_forwards.push(to_targets(1, protocol, external, &[1, 2, 3]));
        }
        settings
    };
    for mut bed in beds(&settings(true)) {
        let packets = |n: u8| {
            let from = at(host(0, 20 + n), 5_000);
            [build::tcp(from, external, Flags::SYN).build(), build::udp(from, external).payload_length(8).build()]
        };
        for (may_hairpin, expected) in
            [(true, Verdict::Hairpin), (false, Verdict::HairpinRefused), (true, Verdict::Hairpin)]
        {
            bed.reload(settings(may_hairpin));
            for packet in (0..8).flat_map(packets) {
                assert_eq!(check(&mut bed, INSIDE, &packet).verdict, expected);
            }
        }
    }
}

#[test]
fn a_mapping_of_another_worker_in_another_vrf_is_refused() {
    for mut bed in beds(&two_realms(false).filtering(Filtering::EndpointIndependent)) {
        for n in 0..8 {
            let callee = bed.open_udp(at(host(0, n), 5_000), at(E1, 53));
            let call = build::udp(at(host(1, n), 6_000), callee).payload_length(8).build();
            assert_eq!(check(&mut bed, BLUE, &call).verdict, Verdict::HairpinRefused);
            let call = build::udp(at(host(0, n + 20), 6_000), callee).payload_length(8).build();
            assert_eq!(check(&mut bed, INSIDE, &call).verdict, Verdict::Hairpin);
        }
    }
}

/// An error about what the receiver is said to have sent, or has sent before the ban.
#[test]
fn icmp_errors_stay_in_their_vrf_without_vrf_hairpins() {
    let settings = |may_hairpin| two_realms(may_hairpin).filtering(Filtering::EndpointIndependent);
    for mut bed in beds(&settings(true)) {
        let by_realm = [INSIDE, BLUE];
        let udp = |from, to| build::udp(from, to).payload_length(8).build();
        for n in 0..4 {
            let internal = [0, 1].map(|realm| at(host(realm, n), 5_000));
            let external = [0, 1].map(|realm| {
                bed.inside_by(by_realm[realm], &udp(internal[realm], at(E1, 53)));
                source(&bed.only_outside())
            });
            for (from, to) in [(0, 1), (1, 0)] {
                // What `to` has sent, as `from` gets it.
                bed.inside_by(by_realm[to], &udp(internal[to], external[from]));
                let errors = [
                    build::icmp_error(*internal[from].ip(), *external[to].ip(), 3, 3, &bed.only_inside()).build(),
                    build::icmp_error(
                        host(from as u16, 30),
                        *external[to].ip(),
                        3,
                        1,
                        &udp(external[to], internal[from]),
                    )
                    .build(),
                ];
                for (may_hairpin, expected) in [(true, Verdict::Hairpin), (false, Verdict::HairpinRefused)] {
                    bed.reload(settings(may_hairpin));
                    for error in &errors {
                        assert_eq!(check(&mut bed, by_realm[from], error).verdict, expected);
                        let arrived: Vec<InterfaceId> = bed.take_inside_by().iter().map(|(by, _)| *by).collect();
                        assert_eq!(arrived.as_slice(), if may_hairpin { &by_realm[to..=to] } else { &[] });
                    }
                }
                bed.reload(settings(true));
            }
        }
    }
}

/// Without room for a session, a packet to its own endpoint needs the filtering to let it in.
#[test]
fn an_orphaned_mapping_admits_itself_only_by_a_session() {
    let external = at(POOL[1], 81);
    let udp = |from, to| build::udp(from, to).payload_length(8).build();
    let without = settings().filtering(Filtering::EndpointIndependent).limits(|limits| limits.extra_sessions_max = 4);
    let mut with = without.clone();
    with.forwards = vec![to_one(0, Protocol::Udp, external, 1)];
    for mut bed in beds(&with) {
        let inside = at(host(0, 1), 8_080);
        assert_eq!(check(&mut bed, OUTSIDE, &udp(at(E1, 53), external)).verdict, Verdict::Inbound);
        for port in 54..64 {
            assert_eq!(check(&mut bed, INSIDE, &udp(inside, at(E1, port))).verdict, Verdict::Outbound);
        }
        assert_eq!(check(&mut bed, INSIDE, &udp(inside, external)).verdict, Verdict::Hairpin);
        bed.reload(without.clone());
        assert_eq!(check(&mut bed, INSIDE, &udp(inside, external)).verdict, Verdict::Filtered);
    }
}

/// A packet that answers this one.
fn answer_to(packet: &[u8]) -> Vec<u8> {
    build::udp(destination(packet), source(packet)).payload_length(8).build()
}

#[test]
fn the_answer_of_a_target_is_followed_to_the_caller() {
    let external = at(POOL[1], 80);
    let mut settings = settings().limits(|limits| limits.flows_max = 1_000);
    settings.balanced_forwards = vec![to_targets(0, Protocol::Udp, external, &[1, 2, 3])];
    for mut bed in beds(&settings) {
        let mut answers = Vec::new();
        for n in 0..8 {
            let call = build::udp(at(host(0, 20 + n), 5_000), external).payload_length(8).build();
            assert_eq!(check(&mut bed, INSIDE, &call).verdict, Verdict::Hairpin);
            answers.push(answer_to(&bed.only_inside()));
        }
        let from_20 = Match { source: Prefix::new(host(0, 20), 32).expect("a prefix"), ..Match::ALL };
        bed.reload(settings.clone().filter(from_20, FilterAction::Deny));
        for (n, answer) in answers.iter().enumerate() {
            let expected = if n == 0 { Verdict::DeniedByFilter } else { Verdict::Hairpin };
            let preview = check(&mut bed, INSIDE, answer);
            assert_eq!(preview.verdict, expected, "{preview:?}");
            let caller = at(host(0, 20 + n as u8), 5_000);
            let led_to = preview.destination_after.map(|to| at(to.address, to.port));
            assert_eq!(led_to, (n > 0).then_some(caller), "{preview:?}");
        }
        bed.reload(settings.clone());
        // The targets keep their sessions, but not the mappings of silent callers.
        for expected in [Verdict::Hairpin, Verdict::Hairpin, Verdict::NoMapping] {
            bed.advance_secs(120);
            for answer in &answers {
                assert_eq!(check(&mut bed, INSIDE, answer).verdict, expected);
            }
        }
    }
}

#[test]
fn an_echo_reply_is_refused_in_spite_of_a_session() {
    for mut bed in beds(&settings().endpoint_dependent(Prefix::ALL, (0, u16::MAX))) {
        for n in 0..4 {
            let request = build::echo_request(host(0, n), E1, 7).build();
            assert_eq!(check(&mut bed, INSIDE, &request).verdict, Verdict::Outbound);
            let reply = build::echo_reply(host(0, n), E1, 7).build();
            assert_eq!(check(&mut bed, INSIDE, &reply).verdict, Verdict::IcmpTypeUnsupported);
        }
    }
}

fn with_later(mut settings: Settings) -> Settings {
    settings.pools.push(Pool {
        name: "later".into(),
        addresses: vec![LATER],
        subscribers: Vec::new(),
        ..Pool::default()
    });
    settings
}

/// The session that a mapping was made for is found faster than its others.
#[test]
fn sessions_with_a_later_pool_address_no_longer_go_outside() {
    let before = settings().endpoint_dependent(Prefix::ALL, (443, 443));
    let before = before.limits(|limits| limits.external_addresses_max = 8);
    for mut bed in beds(&before) {
        let packets = |n: u8| {
            let [first, further, by_rule] = [5_000, 6_000, 7_000].map(|port| at(host(0, n), port));
            let udp = |from, to| build::udp(from, to).payload_length(8).build();
            let tcp =
                build::tcp(at(host(0, n), 5_000), at(LATER, 80), Flags::ACK).sequence(2).acknowledgment(2).build();
            [udp(first, at(LATER, 53)), udp(further, at(LATER, 53)), tcp, udp(by_rule, at(LATER, 443))]
        };
        let is_by_rule = |packet: &[u8]| destination(packet).port() == 443;
        let mut answers = Vec::new();
        for n in 0..4 {
            bed.open_udp(at(host(0, n), 6_000), at(E1, 53));
            bed.connect(at(host(0, n), 5_000), at(LATER, 80));
            for packet in packets(n) {
                assert_eq!(check(&mut bed, INSIDE, &packet).verdict, Verdict::Outbound);
                let sent = bed.only_outside();
                // All are established.
                if wire_protocol(&packet) == Protocol::Udp {
                    answers.push(answer_to(&sent));
                    assert_eq!(check(&mut bed, OUTSIDE, &answer_to(&sent)).verdict, Verdict::Inbound);
                }
            }
            assert_eq!(bed.take_inside().len(), 3);
        }
        bed.reload(with_later(before.clone()));
        for packet in (0..4).flat_map(packets) {
            let expected = if is_by_rule(&packet) { Verdict::DestinationInvalid } else { Verdict::NoMapping };
            for _ in 0..2 {
                assert_eq!(check(&mut bed, INSIDE, &packet).verdict, expected, "to {}", destination(&packet));
            }
        }
        for answer in &answers {
            assert_eq!(check(&mut bed, OUTSIDE, answer).verdict, Verdict::SourceSpoofed);
        }
        // Other sessions go on.
        for n in 0..4 {
            let packet = build::udp(at(host(0, n), 6_000), at(E1, 53)).payload_length(8).build();
            assert_eq!(check(&mut bed, INSIDE, &packet).verdict, Verdict::Outbound);
        }
        // Without the pool, they go outside again, once its address is forgotten.
        bed.reload(before.clone());
        bed.advance_secs(10);
        bed.reload(before.clone());
        for packet in (0..4).flat_map(packets) {
            assert_eq!(check(&mut bed, INSIDE, &packet).verdict, Verdict::Outbound);
        }
    }
}

fn is_error(packet: &[u8]) -> bool {
    wire_protocol(packet) == Protocol::Icmp
}

fn wire_protocol(packet: &[u8]) -> Protocol {
    Protocol::from_number(packet::header(packet).protocol()).expect("a protocol that is translated")
}

#[test]
fn hairpins_of_addresses_that_a_pool_loses_are_explained() {
    let without = settings().filtering(Filtering::EndpointIndependent).addresses(&POOL[..1]);
    let mut with = with_later(without.clone());
    with.pools[1].subscribers = vec![prefix([100, 64, 0, 12], 30)];
    with.pools[1].filtering = [Filtering::EndpointIndependent; Protocol::COUNT];
    for mut bed in beds(&with) {
        let callee = bed.open_udp(at(host(0, 2), 5_000), at(E1, 53));
        assert_eq!(*callee.ip(), LATER);
        let call = build::udp(at(host(0, 0), 6_000), callee).payload_length(8).build();
        // The session outlives the mapping that it leads to, and the address goes with that.
        for expected in [Verdict::Hairpin, Verdict::Hairpin, Verdict::Hairpin, Verdict::NoMapping] {
            assert_eq!(check(&mut bed, INSIDE, &call).verdict, expected);
            bed.advance_secs(110);
        }
        bed.reload(without.clone());
        bed.advance_secs(10);
        bed.reload(without.clone());
        for _ in 0..2 {
            assert_eq!(check(&mut bed, INSIDE, &call).verdict, Verdict::Outbound);
        }
    }
}

/// An expired mapping ends with the packet that needs another one, not only by the sweep.
#[test]
fn a_mapping_after_an_expired_one_is_explained() {
    let blocks = Blocks { size: BlockSize::MIN, per_subscriber_max: 1, idle: Duration::from_secs(60) };
    let modes = [
        (Allocation::Ports, 2_000),
        (Allocation::Blocks(blocks), 2_111),
        (Allocation::Deterministic { dynamic_slices: 0, overflow: blocks }, 2_111),
    ];
    for (allocation, last) in modes {
        for (reuse_s, pooling) in [(0, Pooling::Paired), (0, Pooling::Arbitrary), (60, Pooling::Paired)] {
            if pooling == Pooling::Arbitrary && matches!(allocation, Allocation::Deterministic { .. }) {
                continue;
            }
            let mut settings = settings().addresses(&POOL[..1]).pooling(pooling).ports(2_048.min(last), last);
            settings.pools[0].allocation = allocation;
            settings.pools[0].reuse_delay = Duration::from_secs(reuse_s);
            settings.pools[0].subscribers = vec![prefix([100, 64, 0, 11], 32)];
            for mut bed in beds(&settings) {
                let all = 64.min(last - 2_048.min(last) + 1);
                for n in 0..all {
                    let packet = build::udp(at(host(0, 1), 5_000 + n), at(E1, 53)).payload_length(8).build();
                    check(&mut bed, INSIDE, &packet);
                }
                bed.jump(Duration::from_secs(301));
                for n in [0, all - 1, 70] {
                    for to in [at(E2, 53), at(E1, 53)] {
                        let packet = build::udp(at(host(0, 1), 5_000 + n), to).payload_length(8).build();
                        let preview = check(&mut bed, INSIDE, &packet);
                        let is_free = reuse_s == 0 && n == 0;
                        assert!(!is_free || preview.verdict == Verdict::Outbound, "{allocation:?}, {pooling:?}");
                    }
                }
            }
        }
    }
}

/// A reload has moved the forward. Nothing has ended the mapping that had its port before.
#[test]
fn a_moved_forward_takes_the_port_of_an_expired_mapping() {
    let external = at(POOL[1], 81);
    let udp = |from, to| build::udp(from, to).payload_length(8).build();
    let to = |n: u8| {
        let mut settings = two_realms(true);
        settings.forwards = vec![to_one(0, Protocol::Udp, external, n)];
        settings
    };
    let inside = |n: u8| at(host(0, n), 8_080);
    for (n, with_own) in [(2, false), (3, true), (4, false), (5, true), (6, false), (7, true)] {
        let packets = [
            (OUTSIDE, udp(at(E1, 53), external), Verdict::Inbound),
            (INSIDE, udp(inside(n), at(E1, 53)), Verdict::Outbound),
            (INSIDE, udp(inside(n), external), Verdict::Hairpin),
            (INSIDE, udp(inside(1), external), Verdict::Hairpin),
            (BLUE, udp(at(host(1, n), 5_000), external), Verdict::Hairpin),
        ];
        for (by, packet, expected) in packets {
            for mut bed in beds(&to(1)) {
                assert_eq!(check(&mut bed, OUTSIDE, &udp(at(E2, 53), external)).verdict, Verdict::Inbound);
                if with_own {
                    bed.open_udp(inside(n), at(E1, 53));
                }
                bed.reload(to(n));
                bed.jump(Duration::from_secs(100_000));
                assert_eq!(check(&mut bed, by, &packet).verdict, expected, "{n} {packet:?}");
                let own = check(&mut bed, INSIDE, &udp(inside(n), at(E1, 53)));
                assert_eq!((own.verdict, own.source_after), (Verdict::Outbound, Some(endpoint(external))));
                bed.run_out();
            }
        }
    }
}

/// Only the port's worker knows that the mapping lives on.
#[test]
fn a_moved_forward_waits_for_a_mapping_that_lives_on() {
    let external = at(POOL[1], 81);
    let to = |n: u8| {
        let mut settings = settings();
        settings.forwards = vec![to_one(0, Protocol::Udp, external, n)];
        settings
    };
    for mut bed in beds(&to(1)) {
        let call = build::udp(at(E1, 53), external).payload_length(8).build();
        assert_eq!(check(&mut bed, OUTSIDE, &call).verdict, Verdict::Inbound);
        for n in 2..8 {
            bed.reload(to(n));
            let out = build::udp(at(host(0, n), 8_080), at(E1, 53)).payload_length(8).build();
            let preview = check(&mut bed, INSIDE, &out);
            assert_eq!(preview.verdict, Verdict::PortsExhausted);
            assert!(preview.steps.iter().any(|step| matches!(step, Step::PortAwaited(_))), "{preview:?}");
        }
    }
}

#[test]
fn a_flow_that_gets_no_port_is_explained() {
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        let mut settings = settings().endpoint_dependent(Prefix::ALL, (443, 443)).addresses(&POOL[..1]);
        settings = settings.pooling(pooling).ports(10_000, 10_009);
        settings.pools[0].shared_ports_min = 2;
        for mut bed in beds(&settings) {
            let mut refused = 0;
            for n in 0..40 {
                let syn = build::tcp(at(host(0, n % 7), 5_000 + u16::from(n)), at(E1, 443), Flags::SYN).build();
                let preview = check(&mut bed, INSIDE, &syn);
                if preview.verdict == Verdict::PortsExhausted {
                    assert!(preview.steps.iter().any(|step| matches!(step, Step::NoSharedPort { .. })));
                    refused += 1;
                }
            }
            assert!(refused >= 30, "ten ports towards one server: {refused}");
            // Towards another one the same ports serve.
            let syn = build::tcp(at(host(0, 0), 5_000), at(E2, 443), Flags::SYN).build();
            assert_eq!(check(&mut bed, INSIDE, &syn).verdict, Verdict::Outbound);
        }
    }
}

#[test]
fn a_flow_that_would_open_one_port_too_many_is_explained() {
    for pooling in [Pooling::Paired, Pooling::Arbitrary] {
        let mut settings = settings().endpoint_dependent(Prefix::ALL, (443, 443)).addresses(&POOL[..1]);
        settings = settings.pooling(pooling);
        settings.subscriber.ports_max = [3; Protocol::COUNT];
        for mut bed in beds(&settings) {
            for n in 0..8 {
                let syn = build::tcp(at(host(0, 1), 5_000 + n), at(E1, 443), Flags::SYN).build();
                let preview = check(&mut bed, INSIDE, &syn);
                let is_told = |step: &Step| matches!(step, Step::NoSharedPort { at_quota: true, .. });
                let expected = if n < 3 { Verdict::Outbound } else { Verdict::SubscriberPortQuota };
                assert_eq!((preview.verdict, preview.steps.iter().any(is_told)), (expected, n >= 3));
            }
            // Elsewhere the same ports serve; for a mapping there is none either.
            let syn = build::tcp(at(host(0, 1), 5_000), at(E2, 443), Flags::SYN).build();
            assert_eq!(check(&mut bed, INSIDE, &syn).verdict, Verdict::Outbound);
            let syn = build::tcp(at(host(0, 1), 6_000), at(E2, 80), Flags::SYN).build();
            assert_eq!(check(&mut bed, INSIDE, &syn).verdict, Verdict::SubscriberPortQuota);
        }
    }
}

#[test]
fn the_pool_of_a_rule_is_not_said_to_be_that_of_a_prefix() {
    let translate = RuleAction::Translate { pool: Some(PoolId(0)), mapping: MappingKind::EndpointIndependent };
    let by_rule = |settings: Settings| {
        let bed = Bed::new(settings);
        let explained = why(&bed, facing(&bed, INSIDE), &build::udp(at(host(0, 1), 5_000), at(E1, 53)).build());
        assert_eq!(explained.verdict, Verdict::Outbound);
        explained.steps.iter().any(|step| matches!(step, Step::Pool(_)))
    };
    assert!(by_rule(settings()), "its prefix chooses");
    assert!(!by_rule(settings().rule(Match::ALL, translate)), "the rule has said so");
}

/// The order of a subscriber's first flows makes no difference to what its own pool of blocks or
/// slices gives it, next to a pool of single ports that a rule sends some flows to.
#[test]
fn a_rule_does_not_take_away_own_blocks_and_slices() {
    let blocks =
        |per_subscriber_max| Blocks { size: BlockSize::MIN, per_subscriber_max, idle: Duration::from_secs(60) };
    let modes = [
        (Allocation::Blocks(blocks(2)), Pooling::Paired),
        (Allocation::Blocks(blocks(2)), Pooling::Arbitrary),
        (Allocation::Deterministic { dynamic_slices: 0, overflow: blocks(0) }, Pooling::Paired),
    ];
    for (allocation, pooling) in modes {
        let mut settings = settings().addresses(&POOL[..2]).pooling(pooling).ports(2_048, 3_071);
        settings.pools[0].allocation = allocation;
        settings.pools[0].subscribers = vec![prefix([100, 64, 0, 16], 28)];
        let addresses = vec![OTHER, Ipv4Addr::new(203, 0, 113, 204)];
        settings.pools.push(Pool { name: "web".into(), addresses, subscribers: Vec::new(), ..Pool::default() });
        let of_tcp = Match { protocol: Some(Protocol::Tcp.number()), ..Match::ALL };
        let elsewhere = RuleAction::Translate { pool: Some(PoolId(1)), mapping: MappingKind::EndpointIndependent };
        let settings = settings.rule(of_tcp, elsewhere);
        for mut bed in beds(&settings) {
            let mut send = |n: u8, protocol, port| {
                let (from, to) = (at(host(0, n), port), at(E1, 443));
                let packet = match protocol {
                    Protocol::Tcp => build::tcp(from, to, Flags::SYN).build(),
                    _ => build::udp(from, to).payload_length(8).build(),
                };
                assert_eq!(check(&mut bed, INSIDE, &packet).verdict, Verdict::Outbound, "{allocation:?}, {pooling:?}");
                *source(&bed.only_outside()).ip()
            };
            for (n, first) in [(10, Protocol::Tcp), (11, Protocol::Udp)] {
                let second = if first == Protocol::Tcp { Protocol::Udp } else { Protocol::Tcp };
                let there = [send(n, first, 5_000), send(n, second, 5_001)];
                let [web, own] = if first == Protocol::Tcp { there } else { [there[1], there[0]] };
                assert!(POOL.contains(&own) && !POOL.contains(&web), "{own}, {web}");
                // And all that follow from the same addresses.
                for port in 5_002..5_020 {
                    assert_eq!(send(n, Protocol::Tcp, port), web);
                    let again = send(n, Protocol::Udp, port);
                    assert!(again == own || pooling == Pooling::Arbitrary && POOL.contains(&again));
                }
            }
        }
    }
}

/// Small pools, few records, rules that share ports, redirect or name a pool, forwards of both
/// kinds into both VRFs.
fn random_settings(random: &mut SmallRng) -> Settings {
    let mut settings = two_realms(random.random());
    let filtering = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    // One address a pool: which of several a new subscriber gets is drawn, and full ones may be
    // among them.
    let ports = random.random_range(4..40);
    settings = settings
        .addresses(&POOL[1..2])
        .ports(10_000, 9_999 + ports)
        .filtering(filtering[random.random_range(0..filtering.len())])
        .pooling(if random.random() { Pooling::Paired } else { Pooling::Arbitrary });
    settings.pools[0].shared_ports_min = random.random_range(1..4);
    let mut second = Pool {
        name: "second".into(),
        addresses: vec![OTHER],
        port_min: 1_024,
        port_max: 1_024 + 64 * 3 - 1,
        shared_ports_min: 1,
        subscribers: Vec::new(),
        ..Pool::default()
    };
    // Blocks, and slices for others on the same ports: a reload goes from each to each.
    let blocks =
        |per_subscriber_max| Blocks { size: BlockSize::MIN, per_subscriber_max, idle: Duration::from_secs(60) };
    match random.random_range(0..4) {
        0 => {}
        1..3 => {
            second.allocation = Allocation::Blocks(blocks(1));
            second.subscribers = vec![prefix([100, 64, 0, 12], 30)];
        }
        _ => {
            let overflow = blocks(random.random_range(0..3));
            second.allocation = Allocation::Deterministic { dynamic_slices: random.random_range(0..4), overflow };
            second.subscribers = vec![prefix([100, 64, 0, 8], random.random_range(28..31))];
        }
    }
    settings.pools.push(second);
    // Each of four subscribers has an address of its own, of which some drain.
    if random.random() {
        let addresses: Vec<Ipv4Addr> = (0..4).map(|n| Ipv4Addr::new(203, 0, 113, 204 + n)).collect();
        settings.pools.push(Pool {
            name: "own".into(),
            realms: vec![RealmId(0)],
            subscribers: vec![prefix([100, 64, 0, 16], 30)],
            one_to_one: true,
            filtering: [filtering[random.random_range(0..filtering.len())]; Protocol::COUNT],
            draining: random.random_bool(0.2),
            draining_addresses: addresses.iter().copied().filter(|_| random.random_bool(0.4)).collect(),
            addresses,
            ..Pool::default()
        });
    }
    settings.reload.drain_time = None;
    settings = settings.limits(|limits| {
        // Only flows run out: of other tables the first half of a hairpin may take the last place,
        // which the second misses then.
        limits.flows_max = 64;
        limits.mappings_max = 512;
        limits.subscribers_max = 64;
        limits.extra_sessions_max = 512;
        limits.external_addresses_max = 12;
    });
    if random.random() {
        settings.subscriber.ports_max = [random.random_range(2..8); Protocol::COUNT];
    }
    let to = |port| Match { destination_ports: PortRange { first: port, last: port }, ..Match::ALL };
    let dependent = |pool| RuleAction::Translate { pool, mapping: MappingKind::EndpointDependent };
    let independent = |pool| RuleAction::Translate { pool, mapping: MappingKind::EndpointIndependent };
    settings = settings.rule(to(443), dependent(None)).rule(to(444), dependent(Some(PoolId(1))));
    settings = settings.rule(to(445), independent(Some(PoolId(1)))).rule(to(446), RuleAction::Drop);
    if random.random_bool(0.3) {
        settings = settings.filter(to(8_080), FilterAction::Deny);
    }
    if random.random_bool(0.3) {
        let source = Prefix::new(host(random.random_range(0..2), random.random_range(0..12)), 32);
        let matches = Match { source: source.expect("a prefix"), ..Match::ALL };
        let (out, back) = [(true, true), (true, false), (false, true)][random.random_range(0..3)];
        settings.filters.push(FilterRule { matches, action: FilterAction::Deny, out, back, log: false });
    }
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        let count = random.random_range(1..4);
        let hosts: Vec<u8> = (0..count).map(|n| 100 + n).collect();
        let mut several = to_targets(random.random_range(0..2), protocol, at(POOL[1], 80), &hosts);
        // A reload may move them, and the second has a port that mappings get as well.
        let mut one = to_one(random.random_range(0..2), protocol, at(POOL[1], 81), random.random_range(104..107));
        if random.random_bool(0.4) {
            let external = at(POOL[1], random.random_range(10_000..10_003));
            settings.forwards.push(to_one(
                random.random_range(0..2),
                protocol,
                external,
                random.random_range(107..109),
            ));
        }
        if random.random_bool(0.2) {
            (several.admission, one.admission) = (Admission::AsPool, Admission::AsPool);
        }
        settings.balanced_forwards.push(several);
        settings.forwards.push(one);
    }
    settings
}

/// After a reload: the address of a pool may drain beside another one, which who had the first is
/// moved to. A remote host's address may be a pool's.
fn changed(mut settings: Settings, random: &mut SmallRng) -> Settings {
    let others = [POOL[0], Ipv4Addr::new(203, 0, 113, 201)];
    for (pool, other) in settings.pools.iter_mut().zip(others) {
        if random.random_bool(0.4) {
            pool.draining_addresses.clone_from(&pool.addresses);
            pool.addresses.push(other);
        }
    }
    if random.random_bool(0.4) { with_later(settings) } else { settings }
}

/// Filtering refuses everybody else, so it is not what lets the peer in.
#[test]
fn an_expected_packet_enters_by_its_grant_alone() {
    let mut bed = Bed::new(crate::gateways::with(&["rtsp"]));
    let (_, _, external) =
        crate::control_sessions::rtsp(&mut bed, at(I1, 40_000), 5_000, false).expect("a gateway reads it");
    for (remote, enters) in [(E1, true), (E2, false)] {
        let preview = why(&bed, Facing::OUTSIDE, &build::udp(at(remote, 6_000), external).build());
        assert_eq!(preview.verdict == Verdict::Inbound, enters, "{preview:?}");
        let filters = preview.steps.iter().filter(|step| matches!(step, Step::FilterAsked { allowed: true, .. }));
        assert_eq!(filters.count(), 0, "{preview:?}");
        let grants = preview.steps.iter().filter(|step| matches!(step, Step::Granted { allowed: true, .. }));
        assert_eq!(grants.count(), usize::from(enters), "{preview:?}");
    }
    bed.run_out();
}

/// Nothing runs out, and no timer but those of mappings and sessions makes a difference, so that
/// it makes none either what housekeeping sweeps between the question and the packet.
fn plentiful(mut settings: Settings) -> Settings {
    for pool in &mut settings.pools {
        pool.reuse_delay = Duration::ZERO;
    }
    settings.pools[0].port_max = 10_399;
    settings.pools[1].port_max = 1_024 + 64 * 32 - 1;
    settings.subscriber = Settings::default().subscriber;
    settings.limits.flows_max = 1_000;
    let shares =
        |rule: &Rule| matches!(rule.action, RuleAction::Translate { mapping: MappingKind::EndpointDependent, .. });
    // Blocks and slices serve a subscriber of another pool once its last mapping is swept.
    let has_blocks = settings.pools[1].allocation != Allocation::Ports;
    let names_pool = |rule: &Rule| matches!(rule.action, RuleAction::Translate { pool: Some(_), .. });
    settings.rules.retain(|rule| !(shares(rule) || has_blocks && names_pool(rule)));
    settings
}

/// An error about this packet, by its receiver, a router on the way or somebody else.
fn error_about(packet: &[u8], is_from_inside: bool, random: &mut SmallRng) -> Vec<u8> {
    let realm = random.random_range(0..2);
    let others = match is_from_inside {
        true => [host(realm, 50), host(realm, 1), POOL[1], E1],
        false => [OUTSIDE_ROUTER, E2, POOL[1], host(realm, 1)],
    };
    let by = if random.random() { *destination(packet).ip() } else { others[random.random_range(0..4)] };
    let to = match random.random_range(0..10) {
        0 => [OWN_INSIDE, OWN_OUTSIDE, POOL[1], E1][random.random_range(0..4)],
        _ => *source(packet).ip(),
    };
    let (kind, code) = [(3, 3), (3, 1), (11, 0)][random.random_range(0..3)];
    let ttl = if random.random_bool(0.1) { 1 } else { 64 };
    build::icmp_error(by, to, kind, code, packet).ttl(ttl).build()
}

/// `is_unswept`: mappings expire, and nothing but packets ends them.
fn ask_and_send(seed: u64, is_unswept: bool) {
    let mut random = SmallRng::seed_from_u64(seed);
    let some_settings = |random: &mut SmallRng| {
        let settings = random_settings(random);
        if is_unswept { plentiful(settings) } else { settings }
    };
    let settings = some_settings(&mut random);
    let workers = [1, 1, 2, 4][random.random_range(0..4)];
    let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random);
    let mut externals = vec![at(POOL[1], 80), at(POOL[1], 81), at(POOL[1], 82), at(POOL[1], 10_001)];
    let mut heard: Vec<(InterfaceId, Vec<u8>)> = Vec::new();
    let mut left: Vec<Vec<u8>> = Vec::new();
    if bed.settings().pools.iter().any(|pool| pool.one_to_one) {
        externals.extend((204..208).map(|last| at(Ipv4Addr::new(203, 0, 113, last), 5_000)));
    }
    for step in 0..150 {
        if [50, 100].contains(&step) && random.random() {
            let next = some_settings(&mut random);
            bed.reload(changed(next, &mut random));
            // Blocks that are not those of their pool any more go back with the next polls.
            bed.advance_secs(2);
        }
        if random.random_bool(0.02) {
            bed.advance_secs(random.random_range(1..400));
        }
        if is_unswept && random.random_bool(0.1) {
            bed.jump(Duration::from_secs(random.random_range(1..400)));
        }
        let realm = random.random_range(0..2);
        let mut inside = at(host(realm, random.random_range(0..12)), random.random_range(5_000..5_004));
        if random.random_bool(0.2) {
            inside = at(host(realm, random.random_range(100..109)), 8_080);
        }
        let outside = at([E1, E2, LATER][random.random_range(0..3)], random.random_range(441..448));
        let external = externals[random.random_range(0..externals.len())];
        let flags = if random.random_bool(0.8) { Flags::SYN } else { Flags::ACK };
        let is_tcp = random.random();
        let packet = |from, to| match is_tcp {
            true => build::tcp(from, to, flags).sequence(1).build(),
            false => build::udp(from, to).payload_length(8).build(),
        };
        let by = if realm == 0 { INSIDE } else { BLUE };
        match random.random_range(0..16) {
            0..5 => check(&mut bed, by, &packet(inside, outside)),
            // Before the sweep, only another worker knows that a mapping has expired.
            5..8 if is_unswept => check(&mut bed, by, &packet(inside, externals[random.random_range(0..4)])),
            5..8 => check(&mut bed, by, &packet(inside, external)),
            8..10 => check(&mut bed, OUTSIDE, &packet(outside, external)),
            10..12 => {
                let about = left.get(random.random_range(0..8)).cloned();
                let about = about.unwrap_or_else(|| packet(external, outside));
                check(&mut bed, OUTSIDE, &error_about(&about, false, &mut random))
            }
            12 => {
                let about = heard.get(random.random_range(0..8)).cloned();
                let (by, about) = about.unwrap_or_else(|| (by, packet(outside, inside)));
                check(&mut bed, by, &error_about(&about, true, &mut random))
            }
            // About what nobody there got.
            13 => {
                let from = if random.random() { external } else { outside };
                check(&mut bed, by, &error_about(&packet(from, inside), true, &mut random))
            }
            // What was delivered is answered.
            _ => match heard.get(random.random_range(0..8)) {
                Some((by, heard)) => {
                    let (from, to) = (destination(heard), source(heard));
                    let answer = match wire_protocol(heard) {
                        Protocol::Tcp => {
                            build::tcp(from, to, Flags::SYN | Flags::ACK).sequence(1).acknowledgment(2).build()
                        }
                        _ => build::udp(from, to).payload_length(8).build(),
                    };
                    check(&mut bed, *by, &answer)
                }
                None => check(&mut bed, by, &packet(inside, outside)),
            },
        };
        let delivered = bed.take_inside_by().into_iter().filter(|(_, packet)| !is_error(packet));
        heard.extend(delivered);
        let sent: Vec<Vec<u8>> = bed.take_outside().into_iter().filter(|packet| !is_error(packet)).collect();
        externals.extend(sent.iter().map(|packet| source(packet)));
        left.extend(sent);
        while heard.len() > 8 {
            heard.remove(0);
        }
        while left.len() > 8 {
            left.remove(0);
        }
        while externals.len() > 20 {
            externals.remove(7);
        }
    }
    bed.jump(Duration::from_secs(1));
}

#[test]
fn what_is_explained_is_what_happens() {
    for_each_seed(60, |seed| ask_and_send(seed, false));
}

#[test]
fn what_is_explained_happens_before_the_sweep() {
    for_each_seed(60, |seed| ask_and_send(seed, true));
}

#[test]
fn why_does_not_promise_a_held_port() {
    for one_to_one in [false, true] {
        let rest = |mut settings: Settings| {
            settings.pools[0].reuse_delay = Duration::from_secs(60);
            settings.limits.external_addresses_max = 4;
            settings.addresses(&POOL[..2])
        };
        let mut bed = Bed::new(rest(settings().ports(2_000, 2_000)));
        // A port of either address; one is held down now.
        let external = bed.open_udp(at(host(0, 1), 5_000), at(E1, 53));
        bed.advance_secs(301);
        assert_eq!(bed.mappings().len(), 0);
        let mut next = rest(settings());
        match one_to_one {
            true => {
                next.pools[0].addresses.retain(|address| address != external.ip());
                next.pools.push(Pool {
                    name: "own".into(),
                    addresses: vec![*external.ip()],
                    subscribers: vec![Prefix::new(host(0, 9), 32).expect("a prefix")],
                    one_to_one: true,
                    filtering: [Filtering::EndpointIndependent; Protocol::COUNT],
                    ..Pool::default()
                });
            }
            false => {
                let forward = to_one(0, Protocol::Udp, external, 9);
                next.forwards.push(Forward { inside_port: external.port(), ..forward });
            }
        }
        bed.reload(next);
        let out = build::udp(at(host(0, 9), external.port()), at(E1, 53)).payload_length(8).build();
        let back = build::udp(at(E1, 53), external).payload_length(8).build();
        for packet in [(OUTSIDE, &back), (INSIDE, &out)] {
            let preview = check(&mut bed, packet.0, packet.1);
            assert_eq!(preview.verdict, Verdict::PortsExhausted, "{one_to_one} {preview:?}");
            assert!(preview.steps.iter().any(|step| matches!(step, Step::PortAwaited(_))), "{preview:?}");
        }
        bed.advance_secs(61);
        assert_eq!(check(&mut bed, OUTSIDE, &back).verdict, Verdict::Inbound);
        bed.run_out();
    }
}
