//! Rules and packet filters: what is translated, by which pool, what goes through as it is, and
//! what is dropped.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::redirection::Target;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::MappingKind;
use nat::settings::PassRule;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use testkit::topology::INSIDE;
use testkit::topology::INSIDE_ROUTER;
use testkit::topology::OUTSIDE;
use testkit::topology::OWN_OUTSIDE;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::why::check;

/// A second pool, which serves nobody of its own.
const OTHER: [Ipv4Addr; 2] = [Ipv4Addr::new(203, 0, 113, 65), Ipv4Addr::new(203, 0, 113, 66)];

fn two_pools() -> Settings {
    let mut settings = settings();
    let other = Pool { name: "other".into(), addresses: OTHER.to_vec(), subscribers: Vec::new(), ..Pool::default() };
    settings.pools.push(other);
    settings
}

fn by_pool(pool: u16) -> RuleAction {
    RuleAction::Translate { pool: Some(PoolId(pool)), mapping: MappingKind::EndpointIndependent }
}

fn from(source: Ipv4Addr) -> Match {
    Match { source: Prefix::host(source), ..Match::ALL }
}

fn to(destination: Ipv4Addr) -> Match {
    Match { destination: Prefix::host(destination), ..Match::ALL }
}

fn hits(bed: &Bed) -> Vec<u64> {
    let book = bed.shared().rules();
    (0..book.set().len()).filter_map(|position| book.at(position)).map(|(_, _, hits)| hits).collect()
}

#[test]
fn what_a_rule_exempts_leaves_and_returns_as_it_is() {
    covers!("6888-REQ-6");
    for workers in [1, 3] {
        let rules = settings().rule(to(E1), RuleAction::NoTranslation);
        let mut bed = Bed::new(rules).workers(workers).steering(Steering::Random);
        let out = build::udp(at(I1, 5000), at(E1, 53)).payload(b"query").build();
        bed.inside(&out);
        let left = bed.only_outside();
        assert_eq!((source(&left), destination(&left), ttl(&left)), (at(I1, 5000), at(E1, 53), 63));
        bed.outside(&build::udp(at(E1, 53), at(I1, 5000)).payload(b"answer").build());
        let entered = bed.only_inside();
        assert_eq!(
            (source(&entered), destination(&entered), payload(&entered)),
            (at(E1, 53), at(I1, 5000), &b"answer"[..])
        );
        // In the middle of a connection nobody has seen the beginning of: there is no state to
        // miss.
        for (from, to) in [(at(I1, 80), at(E1, 4000)), (at(I2, 80), at(E1, 4000))] {
            bed.inside(&build::tcp(from, to, Flags::ACK).payload(b"data").build());
            assert_eq!(source(&bed.only_outside()), from);
            bed.outside(&build::tcp(to, from, Flags::ACK).payload(b"data").build());
            assert_eq!(destination(&bed.only_inside()), from);
        }
        // A ping from outside reaches the inside host: nothing is translated.
        bed.outside(&build::echo_request(E1, I3, 7).build());
        assert_eq!(destination(&bed.only_inside()).ip(), &I3);
        bed.inside(&build::echo_reply(I3, E1, 7).build());
        assert_eq!(source(&bed.only_outside()).ip(), &I3);
        // In fragments, the last one first.
        let whole = build::udp(at(E1, 53), at(I1, 5000)).payload_length(4_000).build();
        for piece in build::fragment(&whole, 1_500).iter().rev() {
            bed.outside(piece);
        }
        let pieces = bed.take_inside();
        assert_eq!(
            (pieces.len(), build::reassemble(&pieces).map(|whole| destination(&whole))),
            (3, Some(at(I1, 5000)))
        );
        assert!(bed.mappings().is_empty() && bed.sessions().is_empty() && bed.subscribers().is_empty(), "no state");
        assert_eq!(bed.count(Verdict::Passed), 11);
        // A reply to another host has no query that could have come in.
        bed.inside(&build::echo_reply(I3, E2, 7).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::IcmpTypeUnsupported), 1);
        // Everybody else is translated, and nobody else comes in.
        let external = bed.open_udp(at(I1, 5000), at(E2, 53));
        assert!(POOL.contains(external.ip()));
        bed.outside(&build::udp(at(E2, 53), at(I1, 5000)).payload(b"x").build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::DestinationNotPool), 1);
    }
}

#[test]
fn icmp_errors_about_exempt_packets_pass_both_ways() {
    covers!("6888-REQ-6");
    let mut bed = Bed::new(settings().rule(to(E1), RuleAction::NoTranslation));
    let sent = build::udp(at(I1, 5000), at(E1, 53)).payload(b"query").build();
    bed.outside(&build::icmp_error(Ipv4Addr::new(192, 0, 2, 9), I1, 3, 3, &sent).build());
    let error = bed.only_inside();
    assert!(is_icmp(&error, 3, 3) && source(&error).ip() == &Ipv4Addr::new(192, 0, 2, 9));
    assert_eq!(source(quote(&error)), at(I1, 5000), "what it quotes is unchanged");
    let received = build::udp(at(E1, 53), at(I1, 5000)).payload(b"answer").build();
    bed.inside(&build::icmp_error(I1, E1, 3, 3, &received).build());
    let error = bed.only_outside();
    assert!(is_icmp(&error, 3, 3) && source(&error).ip() == &I1);
    // About packets that are translated no error passes so.
    let other = build::udp(at(I1, 5000), at(E2, 53)).payload(b"query").build();
    bed.outside(&build::icmp_error(E2, I1, 3, 3, &other).build());
    bed.assert_silent();
}

#[test]
fn a_rule_sends_flows_to_a_pool_of_its_own_and_pairs_there_too() {
    let rules = two_pools().rule(from(I1), by_pool(1)).rule(Match { protocol: Some(6), ..from(I2) }, by_pool(1));
    for workers in [1, 4] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random);
        let first = bed.open_udp(at(I1, 1000), at(E1, 9));
        assert!(OTHER.contains(first.ip()));
        for port in 1001..1050 {
            assert_eq!(bed.open_udp(at(I1, port), at(E2, 9)).ip(), first.ip(), "one address for all (RFC 6888 REQ-2)");
        }
        assert_eq!(bed.open_udp(at(I1, 1000), at(E2, 10)), first, "endpoint-independent");
        assert!(POOL.contains(bed.open_udp(at(I2, 1000), at(E1, 9)).ip()), "the rule is about TCP");
        assert!(OTHER.contains(bed.open_tcp(at(I2, 1000), at(E1, 9)).ip()));
        assert!(POOL.contains(bed.open_udp(at(I3, 1000), at(E1, 9)).ip()), "no rule: the subscriber's own pool");
        assert!(bed.udp_reaches(at(E2, 77), first, at(I1, 1000)));
        // Each rule as often as it opened something: 51 sessions, and one.
        assert_eq!(hits(&bed), [51, 1]);
        bed.run_out();
    }
}

#[test]
fn the_first_rule_in_order_counts_and_drop_drops() {
    let web = Match { protocol: Some(6), destination_ports: PortRange::one(80), ..Match::ALL };
    let rules = two_pools()
        .rule(Match { source: Prefix::host(I1), ..web }, by_pool(1))
        .rule(web, RuleAction::Drop)
        .rule(from(I1), RuleAction::Drop);
    let mut bed = Bed::new(rules);
    assert!(OTHER.contains(bed.open_tcp(at(I1, 1000), at(E1, 80)).ip()));
    bed.inside(&build::tcp(at(I2, 1000), at(E1, 80), Flags::SYN).build());
    bed.inside(&build::udp(at(I1, 1000), at(E1, 80)).payload(b"x").build());
    bed.assert_silent();
    assert!(POOL.contains(bed.open_tcp(at(I2, 1000), at(E1, 443)).ip()));
    assert_eq!((bed.count(Verdict::DroppedByRule), hits(&bed)), (2, vec![1, 1, 1]));
    assert_eq!(bed.mappings().len(), 2, "what is dropped leaves nothing behind");
}

#[test]
fn a_subscriber_is_shown_with_its_own_and_a_rules_pool() {
    let web = Match { protocol: Some(6), destination_ports: PortRange::one(80), ..Match::ALL };
    let rules = two_pools().rule(web, by_pool(1));
    for workers in [1, 3] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random);
        let shown = |bed: &Bed, subscriber: Ipv4Addr| {
            let view = bed.subscribers().into_iter().find(|view| view.address == subscriber).expect("a subscriber");
            (view.pool, view.external_address, view.pool_elsewhere, view.elsewhere)
        };
        let own = *bed.open_udp(at(I1, 1_000), at(E1, 53)).ip();
        assert_eq!(shown(&bed, I1), (PoolId(0), Some(own), None, None));
        let other = *bed.open_tcp(at(I1, 1_000), at(E1, 80)).ip();
        assert!(OTHER.contains(&other));
        assert_eq!(shown(&bed, I1), (PoolId(0), Some(own), Some(PoolId(1)), Some(other)));
        // What it gets on its own address later changes nothing, nor do other settings, where pools
        // have other numbers.
        bed.open_udp(at(I1, 1_001), at(E1, 53));
        let mut next = rules.clone();
        next.pools.insert(0, Pool { name: "first".into(), subscribers: Vec::new(), ..Pool::default() });
        next.rules[0].action = by_pool(2);
        bed.reload(next);
        assert_eq!(shown(&bed, I1), (PoolId(1), Some(own), Some(PoolId(2)), Some(other)));
        // A subscriber that begins with the rule's pool is paired there, and has its own pool too.
        let other = *bed.open_tcp(at(I2, 1_000), at(E1, 80)).ip();
        assert_eq!(shown(&bed, I2), (PoolId(2), Some(other), None, None));
        let own = *bed.open_udp(at(I2, 1_000), at(E1, 53)).ip();
        assert_eq!(shown(&bed, I2), (PoolId(2), Some(other), Some(PoolId(1)), Some(own)));
        bed.run_out();
    }
}

#[test]
fn a_filter_decides_by_the_direction_of_the_first_packet() {
    let tcp = Match { protocol: Some(6), ..Match::ALL };
    let mut rules = settings()
        .filter(Match { destination: Prefix::host(E1), ..tcp }, FilterAction::Permit)
        .filter(tcp, FilterAction::Deny);
    // Nothing comes in from E2 to I2, whatever I2 sends there.
    let quiet = Match { destination: Prefix::host(E2), ..from(I2) };
    rules.filters.push(FilterRule { matches: quiet, action: FilterAction::Deny, out: false, back: true, log: false });
    for workers in [1, 3] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random);
        bed.connect(at(I1, 1000), at(E1, 80));
        bed.inside(&build::tcp(at(I1, 1000), at(E2, 80), Flags::SYN).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::DeniedByFilter), 1);
        let external = bed.open_udp(at(I2, 1000), at(E2, 53));
        for _ in 0..3 {
            bed.outside(&build::udp(at(E2, 53), external).payload(b"answer").build());
            bed.assert_silent();
            assert_eq!(bed.open_udp(at(I2, 1000), at(E2, 53)), external, "one direction does not close the other");
        }
        assert_eq!(bed.count(Verdict::DeniedByFilter), 4);
        assert!(bed.udp_reaches(at(E1, 53), external, at(I2, 1000)), "others may send to it");
        // The filters see what the inside sees: the port is I2's own, not the external one.
        let packet = build::udp(at(E2, 53), external).payload(b"x").build();
        let asked = bed.shards().map(|shard| shard.view().worker_to_ask(bed.now(), Side::Outside, &packet)).next();
        let shard = bed.shards().find(|shard| Some(shard.worker()) == asked).expect("a shard");
        assert_eq!(shard.explain(bed.now(), Facing::OUTSIDE, &packet).verdict, Verdict::DeniedByFilter);
    }
}

#[test]
fn filters_see_queries_and_protocols_without_ports_too() {
    let icmp = Match { protocol: Some(1), ..from(I1) };
    let gre = Match { protocol: Some(47), ..from(I1) };
    let rules =
        settings().pass(47, Prefix::ALL, Prefix::ALL).filter(icmp, FilterAction::Deny).filter(gre, FilterAction::Deny);
    let mut bed = Bed::new(rules);
    bed.inside(&build::echo_request(I1, E1, 7).build());
    bed.inside(&build::raw(I1, E1, 47).payload_length(20).build());
    bed.outside(&build::raw(E1, I1, 47).payload_length(20).build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::DeniedByFilter), 3);
    bed.ping(I2, 7, E1);
    bed.inside(&build::raw(I2, E1, 47).payload_length(20).build());
    assert_eq!(source(&bed.only_outside()).ip(), &I2);
    assert_eq!(bed.mappings().iter().filter(|mapping| mapping.protocol == Protocol::Icmp).count(), 1);
}

/// The events of all workers about filters.
fn filter_events(bed: &mut Bed) -> Vec<Event> {
    bed.finish_events();
    let workers = bed.shards().count();
    let events = (0..workers).flat_map(|worker| bed.take_events(worker, 10_000)).collect::<Vec<_>>();
    let is_wanted = |event: &Event| {
        matches!(event.kind, EventKind::FilterPermitted | EventKind::FilterDenied | EventKind::FilterSuppressed)
    };
    events.into_iter().filter(is_wanted).collect()
}

#[test]
fn a_logging_filter_records_denied_packets_and_new_sessions() {
    let mut rules = settings()
        .filter(Match { protocol: Some(17), ..to(E1) }, FilterAction::Permit)
        .filter(to(E2), FilterAction::Deny)
        .filter(Match::ALL, FilterAction::Permit);
    for filter in &mut rules.filters[..2] {
        filter.log = true;
    }
    for workers in [1, 3] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random).record_events(1_024);
        let external = bed.open_udp(at(I1, 5_000), at(E1, 53));
        // The second session of the mapping, and many packets of both.
        for _ in 0..5 {
            assert_eq!(bed.open_udp(at(I1, 5_000), at(E1, 53)), external);
            assert_eq!(bed.open_udp(at(I1, 5_000), at(E1, 54)), external);
            assert!(bed.udp_reaches(at(E1, 53), external, at(I1, 5_000)));
        }
        for _ in 0..3 {
            bed.inside(&build::udp(at(I2, 5_000), at(E2, 53)).build());
        }
        bed.inside(&build::raw(I2, E2, 47).payload_length(8).build());
        // A filter that does not log.
        bed.connect(at(I3, 1_000), at(E1, 80));
        bed.take_inside();
        bed.take_outside();
        let events = filter_events(&mut bed);
        let of = |kind| events.iter().filter(move |event| event.kind == kind);
        let permitted: Vec<_> = of(EventKind::FilterPermitted)
            .map(|event| (event.amount, event.subscriber, event.internal_port, event.remote, event.remote_port))
            .collect();
        assert_eq!(permitted, [(0, I1, 5_000, E1, 53), (0, I1, 5_000, E1, 54)], "a session is logged once");
        let denied: Vec<_> = of(EventKind::FilterDenied)
            .map(|event| (event.amount, event.subscriber, event.remote, event.protocol, event.first_port, event.cause))
            .collect();
        let one = (1, I2, E2, Some(Protocol::Udp), 17, Cause::Outbound);
        assert_eq!(denied, [one; 3], "GRE is dropped before: nothing lets it through");
        bed.run_out();
    }
}

#[test]
fn a_flood_of_logged_packets_is_bounded_and_counted() {
    let mut rules = settings().filter(to(E2), FilterAction::Deny);
    rules.filters[0].log = true;
    rules.events.filter_events_per_second = 20;
    let mut bed = Bed::new(rules).record_events(1_024);
    for port in 0..500 {
        bed.inside(&build::udp(at(I1, 5_000 + port), at(E2, 53)).build());
    }
    bed.assert_silent();
    let events = filter_events(&mut bed);
    let reported = events.iter().filter(|event| event.kind == EventKind::FilterDenied).count();
    let unreported: u32 =
        events.iter().filter(|event| event.kind == EventKind::FilterSuppressed).map(|event| event.amount).sum();
    assert_eq!((reported, unreported), (20, 480));
}

#[test]
fn a_rule_that_redirects_counts_and_stands_in_the_one_order() {
    let target = Target { address: E2.to_bits(), port: None, weight: 1 };
    let dns = Match { protocol: Some(17), destination_ports: PortRange::one(53), ..Match::ALL };
    let rules = settings()
        .rule(from(I1), RuleAction::Drop)
        .redirected(Prefix::host(E1), (53, 53), Redirection::Targets(vec![target]))
        .rule(dns, RuleAction::Drop);
    for workers in [1, 3] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random);
        bed.inside(&build::udp(at(I1, 5_000), at(E1, 53)).build());
        bed.assert_silent();
        for port in 0..3 {
            bed.inside(&build::udp(at(I2, 5_000 + port), at(E1, 53)).build());
            assert_eq!(*destination(&bed.only_outside()).ip(), E2);
        }
        bed.inside(&build::udp(at(I2, 5_000), at(E2, 53)).build());
        bed.assert_silent();
        assert_eq!(hits(&bed), [1, 3, 1]);
    }
}

#[test]
fn a_hundred_thousand_redirections_are_each_found() {
    let mut rules = settings();
    rules.limits.flows_max = 1_000;
    for number in 0..100_000_u32 {
        let destination = Prefix::host(Ipv4Addr::from_bits(0xc612_0000 + number));
        let target = Target { address: 0xc633_6400 + number % 50, port: None, weight: 1 };
        let id = RedirectionId(number);
        rules.redirections.push(Redirection::Targets(vec![target]));
        rules = rules.rule(Match { destination, ..Match::ALL }, RuleAction::Redirect(id));
    }
    let mut bed = Bed::new(rules);
    for number in [0, 1, 777, 50_001, 99_999_u32] {
        bed.inside(&build::udp(at(I1, 5_000), at(Ipv4Addr::from_bits(0xc612_0000 + number), 53)).build());
        let expected = Ipv4Addr::from_bits(0xc633_6400 + number % 50);
        assert_eq!(*destination(&bed.only_outside()).ip(), expected);
        assert_eq!(bed.shared().rules().at(number as usize).map(|(_, _, hits)| hits), Some(1));
    }
}

/// Two inside realms with the same addresses; the second has only a rule of its own for GRE.
fn two_realms() -> Settings {
    let mut settings = settings();
    settings.realm_names.push("blue".into());
    settings.interfaces.push(Interface {
        name: "blue".into(),
        side: Side::Inside,
        realm: RealmId(1),
        addresses: vec![InterfaceAddress { address: Ipv4Addr::new(10, 9, 0, 1), prefix_length: 24 }],
        mtu: 1_500,
    });
    let gre = |realm, last| PassRule {
        realm: Some(RealmId(realm)),
        protocol: 47,
        inside: topology::prefix([10, 9, 0, 0], 24),
        outside: Prefix::host(Ipv4Addr::new(198, 51, 100, last)),
    };
    settings.pass_rules = vec![gre(0, 1), gre(1, 2)];
    settings
}

#[test]
fn other_protocols_pass_in_the_realm_of_their_rule() {
    const BLUE: InterfaceId = InterfaceId(2);
    let host = Ipv4Addr::new(10, 9, 0, 7);
    for workers in [1, 3] {
        let bed = Bed::new(two_realms()).workers(workers);
        let shard = bed.shards().next().expect("a worker");
        let verdict = |facing, from, to| {
            let packet = build::raw(from, to, 47).payload_length(8).build();
            shard.explain(bed.now(), facing, &packet).verdict
        };
        let blue = Facing::inside(RealmId(1));
        assert_eq!(bed.settings().interfaces[usize::from(BLUE.0)].facing(), blue);
        assert_eq!(verdict(blue, host, E2), Verdict::Passed);
        assert_eq!(verdict(blue, host, E1), Verdict::ProtocolUnsupported, "a rule of the other realm");
        // From outside: only in the realm whose rule it is and that leads there.
        assert_eq!(verdict(Facing::OUTSIDE, E2, host), Verdict::Passed);
        assert_eq!(verdict(Facing::OUTSIDE, E1, host), Verdict::DestinationNotPool);
    }
    let mut bed = Bed::new(two_realms());
    bed.outside(&build::raw(E2, host, 47).payload_length(8).build());
    bed.outside(&build::raw(E1, host, 47).payload_length(8).build());
    assert_eq!((bed.count(Verdict::Passed), bed.count(Verdict::DestinationNotPool)), (1, 1));
    assert_eq!(bed.shared().passes().at(1).map(|(_, _, hits)| hits), Some(1));
}

const ESP: u8 = 50;

/// By nobody inside or outside.
const ROUTER: Ipv4Addr = Ipv4Addr::new(7, 7, 7, 7);

fn error_about(by: Ipv4Addr, (kind, code): (u8, u8), packet: &[u8]) -> Vec<u8> {
    let mtu = if kind == 3 { 1_300 } else { 0 };
    build::icmp_error(by, *source(packet).ip(), kind, code, packet).next_hop_mtu(mtu).build()
}

#[test]
fn errors_about_passed_protocols_pass_both_ways() {
    covers!("6888-REQ-6");
    for workers in [1, 4] {
        let mut bed = Bed::new(settings().pass(ESP, Prefix::host(I1), Prefix::ALL)).workers(workers);
        let sent = build::raw(I1, E1, ESP).payload_length(1_400).dont_fragment().build();
        bed.inside(&sent);
        assert_eq!(destination(&bed.only_outside()).ip(), &E1);
        let received = build::raw(E1, I1, ESP).payload_length(1_400).dont_fragment().build();
        bed.outside(&received);
        assert_eq!(destination(&bed.only_inside()).ip(), &I1);
        for kind in [(3, 4), (3, 2), (11, 0)] {
            // No ports are needed.
            for quoted in [20, 24, 28, 548] {
                let error = error_about(ROUTER, kind, &sent[..quoted]);
                assert_eq!(check(&mut bed, OUTSIDE, &error).verdict, Verdict::Passed);
                let passed = bed.only_inside();
                assert_eq!((&passed[12..], ttl(&passed)), (&error[12..], 63), "otherwise unchanged");
                for by in [I1, INSIDE_ROUTER, Ipv4Addr::new(10, 7, 7, 7)] {
                    let error = error_about(by, kind, &received[..quoted]);
                    assert_eq!(check(&mut bed, INSIDE, &error).verdict, Verdict::Passed);
                    let passed = bed.only_outside();
                    assert_eq!((&passed[12..], ttl(&passed)), (&error[12..], 63), "otherwise unchanged");
                }
            }
        }
        assert_eq!(bed.shared().passes().at(0).map(|(_, _, hits)| hits), Some(2), "of the packets only");
    }
}

#[test]
fn errors_about_what_no_rule_passes_are_refused() {
    let too_big = |by, to, quoted: &[u8]| build::icmp_error(by, to, 3, 4, quoted).build();
    let esp = |from, to| build::raw(from, to, ESP).payload_length(64).build();
    let gre = |from, to| build::raw(from, to, 47).payload_length(64).build();
    let later = |from, to| build::raw(from, to, ESP).fragment_bits(185).payload_length(64).build();
    let broken = |from, to| {
        let mut quoted = esp(from, to);
        quoted[10] ^= 1;
        quoted
    };
    let mut bed = Bed::new(settings().pass(ESP, Prefix::host(I1), Prefix::host(E1)));
    let from_outside = [
        (I1, esp(I1, E2)),
        (I2, esp(I2, E1)),
        (I1, gre(I1, E1)),
        (I1, later(I1, E1)),
        (I1, broken(I1, E1)),
        // Of the other direction, and about a packet of somebody else.
        (I1, esp(E1, I1)),
        (I2, esp(I1, E1)),
        (I1, esp(I1, OWN_OUTSIDE)),
    ];
    for (to, quoted) in from_outside {
        let verdict = check(&mut bed, OUTSIDE, &too_big(ROUTER, to, &quoted)).verdict;
        assert_eq!(verdict, Verdict::DestinationNotPool, "{quoted:02x?}");
    }
    let from_inside = [
        (E2, esp(E2, I1), Verdict::ProtocolUnsupported),
        (E1, esp(E1, I2), Verdict::ProtocolUnsupported),
        (E1, gre(E1, I1), Verdict::ProtocolUnsupported),
        (E1, later(E1, I1), Verdict::IcmpQuoteMalformed),
        (E1, broken(E1, I1), Verdict::IcmpQuoteMalformed),
        (E1, esp(I1, E1), Verdict::ProtocolUnsupported),
        (E2, esp(E1, I1), Verdict::ProtocolUnsupported),
        (POOL[0], esp(POOL[0], I1), Verdict::ProtocolUnsupported),
        (E1, esp(E1, POOL[0]), Verdict::ProtocolUnsupported),
    ];
    for (to, quoted, expected) in from_inside {
        let verdict = check(&mut bed, INSIDE, &too_big(I1, to, &quoted)).verdict;
        assert_eq!(verdict, expected, "{quoted:02x?}");
    }
    let last_hop = build::icmp_error(ROUTER, I1, 3, 4, &esp(I1, E1)).ttl(1).build();
    assert_eq!(check(&mut bed, OUTSIDE, &last_hop).verdict, Verdict::TtlExpired);
    let last_hop = build::icmp_error(I1, E1, 3, 4, &esp(E1, I1)).ttl(1).build();
    assert_eq!(check(&mut bed, INSIDE, &last_hop).verdict, Verdict::TtlExpired);
    // Which packets a filter denies, nobody has sent.
    let denied = Match { protocol: Some(ESP), ..from(I1) };
    let rules = settings().pass(ESP, Prefix::host(I1), Prefix::ALL).filter(denied, FilterAction::Deny);
    let mut filtered = Bed::new(rules);
    let verdict = check(&mut filtered, OUTSIDE, &too_big(ROUTER, I1, &esp(I1, E1))).verdict;
    assert_eq!(verdict, Verdict::DestinationNotPool);
    let verdict = check(&mut filtered, INSIDE, &too_big(I1, E1, &esp(E1, I1))).verdict;
    assert_eq!(verdict, Verdict::ProtocolUnsupported);
    for bed in [&mut bed, &mut filtered] {
        bed.assert_silent();
    }
}

#[test]
fn errors_about_passed_protocols_stay_in_their_realm() {
    const BLUE: InterfaceId = InterfaceId(2);
    let host = Ipv4Addr::new(10, 9, 0, 7);
    let mut bed = Bed::new(two_realms());
    let gre = |from, to| build::raw(from, to, 47).payload_length(8).build();
    let verdict = check(&mut bed, OUTSIDE, &error_about(ROUTER, (3, 4), &gre(host, E2))).verdict;
    assert_eq!(verdict, Verdict::Passed);
    assert_eq!(bed.take_inside_by().iter().map(|(by, _)| *by).collect::<Vec<_>>(), [BLUE]);
    let about_received = error_about(host, (3, 4), &gre(E2, host));
    assert_eq!(check(&mut bed, BLUE, &about_received).verdict, Verdict::Passed);
    assert_eq!(bed.take_outside().len(), 1);
    assert_eq!(check(&mut bed, INSIDE, &about_received).verdict, Verdict::ProtocolUnsupported);
    // The rule for this address is one of the other realm, which has no way to the host.
    let verdict = check(&mut bed, OUTSIDE, &error_about(ROUTER, (3, 4), &gre(host, E1))).verdict;
    assert_eq!(verdict, Verdict::DestinationNotPool);
    bed.assert_silent();
}

#[test]
fn an_answer_that_two_realms_pass_reaches_neither() {
    let host = Ipv4Addr::new(10, 9, 0, 7);
    let gre = |realm| PassRule {
        realm,
        protocol: 47,
        inside: topology::prefix([10, 9, 0, 0], 24),
        outside: Prefix::host(E1),
    };
    let udp = |realm| Match { realm, ..to(E1) };
    let of = |realm: u16| Some(RealmId(realm));
    // For any realm, or one rule for each: both have a way to the host. Of one realm only, it is
    // clear whose it is.
    for (realms, may_enter) in [(vec![None], false), (vec![of(0), of(1)], false), (vec![of(1)], true)] {
        let mut settings = two_realms();
        let next_hop = InterfaceAddress { address: Ipv4Addr::new(10, 8, 0, 1), prefix_length: 15 };
        settings.interfaces.push(Interface {
            name: "default".into(),
            side: Side::Inside,
            realm: RealmId(0),
            addresses: vec![next_hop],
            mtu: 1_500,
        });
        settings.pass_rules = realms.iter().map(|realm| gre(*realm)).collect();
        for realm in &realms {
            settings = settings.rule(udp(*realm), RuleAction::NoTranslation);
        }
        let mut bed = Bed::new(settings);
        let query = build::udp(at(host, 5000), at(E1, 53)).payload(b"query").build();
        let answers = [
            build::udp(at(E1, 53), at(host, 5000)).payload(b"answer").build(),
            build::raw(E1, host, 47).payload_length(8).build(),
            build::icmp_error(E2, host, 3, 3, &query).build(),
            build::icmp_error(E2, host, 3, 4, &build::raw(host, E1, 47).payload_length(8).build()).build(),
        ];
        for answer in &answers {
            bed.outside(answer);
        }
        let (expected, verdict) = if may_enter { (4, Verdict::Passed) } else { (0, Verdict::DestinationNotPool) };
        assert_eq!(bed.count(Verdict::Passed), expected, "{realms:?}");
        assert_eq!(bed.count(Verdict::DestinationNotPool), 4 - expected, "{realms:?}");
        let shard = bed.shards().next().expect("a worker");
        for answer in &answers[..2] {
            assert_eq!(shard.explain(bed.now(), Facing::OUTSIDE, answer).verdict, verdict, "{realms:?}");
        }
    }
}

#[test]
fn match_keys_narrow_a_rule_and_the_first_equal_rule_wins() {
    let exact = Match {
        realm: Some(RealmId(0)),
        protocol: Some(17),
        source: Prefix::host(I1),
        destination: Prefix::host(E1),
        source_ports: PortRange { first: 5_000, last: 5_009 },
        destination_ports: PortRange { first: 50, last: 59 },
    };
    let rules = two_pools()
        .rule(Match { realm: Some(RealmId(1)), ..exact }, by_pool(0))
        .rule(exact, RuleAction::Drop)
        // Of the same packets and more: those that the rule before has left.
        .rule(Match { destination_ports: PortRange { first: 55, last: 65 }, ..exact }, by_pool(1));
    for workers in [1, 3] {
        let mut bed = Bed::new(rules.clone()).workers(workers).steering(Steering::Random);
        for (internal, remote) in
            [(at(I1, 5_000), at(E1, 50)), (at(I1, 5_009), at(E1, 59)), (at(I1, 5_005), at(E1, 55))]
        {
            bed.inside(&build::udp(internal, remote).build());
            bed.assert_silent();
        }
        assert_eq!(hits(&bed), [0, 3, 0]);
        assert!(OTHER.contains(bed.open_udp(at(I1, 5_001), at(E1, 60)).ip()), "the second of the two");
        // One step outside of each part.
        for (internal, remote) in [
            (at(I1, 4_999), at(E1, 50)),
            (at(I1, 5_010), at(E1, 50)),
            (at(I1, 5_002), at(E1, 49)),
            (at(I2, 5_000), at(E1, 50)),
            (at(I1, 5_003), at(E2, 50)),
        ] {
            assert!(POOL.contains(bed.open_udp(internal, remote).ip()), "{internal} to {remote}");
        }
        bed.connect(at(I1, 5_004), at(E1, 50));
        assert_eq!(hits(&bed), [0, 3, 1]);
    }
}

fn filter_hits(bed: &Bed) -> Vec<u64> {
    let book = bed.shared().filters();
    (0..book.len()).filter_map(|position| book.at(position)).map(|(_, hits)| hits).collect()
}

#[test]
fn a_filter_counts_the_first_packet_of_a_session() {
    let permitting = settings().filter(to(E1), FilterAction::Permit).filter(Match::ALL, FilterAction::Permit);
    let dependent = permitting.clone().endpoint_dependent(Prefix::ALL, (443, 443));
    for (kind, settings) in [("by mapping", permitting), ("endpoint-dependent", dependent)] {
        for workers in [1, 3] {
            let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
            for (host, remote, expected) in [(I1, E1, [1, 0]), (I2, E2, [1, 1]), (I3, E1, [2, 1])] {
                for packets in 1..=3 {
                    let external = bed.open_udp(at(host, 5_000), at(remote, 443));
                    assert_eq!(filter_hits(&bed), expected, "{kind}: {packets} packets to {remote}");
                    assert!(bed.udp_reaches(at(remote, 443), external, at(host, 5_000)));
                    assert_eq!(filter_hits(&bed), expected, "{kind}: {packets} answers of {remote}");
                }
            }
            let shared = bed.sessions().iter().filter(|session| session.shared).count();
            assert_eq!(shared, if kind == "by mapping" { 0 } else { 3 });
        }
    }
}

#[test]
fn a_filter_counts_the_first_packet_of_a_further_session() {
    let elsewhere = |settings: Settings| settings.filter(to(E2), FilterAction::Deny);
    let permitting = settings().filter(to(E1), FilterAction::Permit);
    for workers in [1, 3] {
        let mut bed = Bed::new(permitting.clone()).workers(workers).steering(Steering::Random);
        let exchange = |bed: &mut Bed, port: u16| {
            let external = bed.open_udp(at(I1, 5_000), at(E1, port));
            assert!(bed.udp_reaches(at(E1, port), external, at(I1, 5_000)));
        };
        for (sessions, port) in (1..).zip(443..446) {
            for _ in 0..3 {
                exchange(&mut bed, port);
                assert_eq!(filter_hits(&bed), [sessions], "with {workers} workers");
            }
        }
        assert_eq!(bed.mappings().len(), 1, "the sessions have one mapping");
        // Asked once more about each.
        bed.reload(elsewhere(permitting.clone()));
        for _ in 0..3 {
            (443..446).for_each(|port| exchange(&mut bed, port));
        }
        assert_eq!(filter_hits(&bed), [6, 0], "with {workers} workers");
        bed.reload(settings().filter(to(E1), FilterAction::Deny));
        for port in 443..446 {
            bed.inside(&build::udp(at(I1, 5_000), at(E1, port)).build());
        }
        assert_eq!((filter_hits(&bed), bed.count(Verdict::DeniedByFilter)), (vec![3], 3), "with {workers} workers");
    }
}

#[test]
fn hits_outlive_reloads_as_long_as_their_rule_stands_somewhere() {
    let ssh = Match { protocol: Some(6), destination_ports: PortRange::one(22), ..Match::ALL };
    let filter = |port| FilterRule {
        matches: Match { protocol: Some(17), destination_ports: PortRange::one(port), ..Match::ALL },
        action: FilterAction::Deny,
        out: true,
        back: false,
        log: false,
    };
    for workers in [1, 3] {
        let mut settings = two_pools().rule(ssh, RuleAction::Drop).rule(from(I1), by_pool(1));
        settings.filters = vec![filter(137), filter(138)];
        let mut bed = Bed::new(settings.clone()).workers(workers).steering(Steering::Random);
        for port in 0..5 {
            bed.inside(&build::tcp(at(I2, 1000 + port), at(E1, 22), Flags::SYN).build());
            bed.inside(&build::udp(at(I3, 1000 + port), at(E1, 138)).build());
        }
        bed.open_udp(at(I1, 1000), at(E1, 9));
        assert_eq!((hits(&bed), filter_hits(&bed)), (vec![5, 1], vec![0, 5]));
        // Something else changes.
        settings.pools[1].reuse_delay = Duration::from_secs(7);
        bed.reload(settings.clone());
        assert_eq!((hits(&bed), filter_hits(&bed)), (vec![5, 1], vec![0, 5]));
        // Another rule comes before them, one filter goes; they go on counting where they were.
        settings.rules.insert(0, nat::settings::Rule { matches: to(E2), action: RuleAction::Drop });
        settings.filters.remove(0);
        bed.reload(settings.clone());
        bed.open_udp(at(I1, 1001), at(E1, 9));
        assert_eq!((hits(&bed), filter_hits(&bed)), (vec![0, 5, 2], vec![5]));
        // A rule that does something else from now on is another rule.
        settings.rules.swap(1, 2);
        settings.rules[2].action = RuleAction::NoTranslation;
        bed.reload(settings.clone());
        assert_eq!(hits(&bed), [0, 2, 0]);
        // So many changes that the search is made anew.
        let many =
            (0..3_000).map(|n| nat::settings::Rule { matches: to((0x2d00_0000 + n).into()), action: RuleAction::Drop });
        settings.rules.splice(0..0, many);
        bed.reload(settings);
        assert_eq!(hits(&bed)[3_000..], [0, 2, 0]);
    }
}

#[test]
fn rules_are_counted_while_workers_switch_snapshots() {
    let ssh = Match { protocol: Some(6), destination_ports: PortRange::one(22), ..Match::ALL };
    let netbios = FilterRule {
        matches: Match { protocol: Some(17), destination_ports: PortRange::one(137), ..Match::ALL },
        action: FilterAction::Deny,
        out: true,
        back: false,
        log: false,
    };
    let other = FilterRule { action: FilterAction::Permit, ..netbios };
    let mut settings = two_pools().rule(ssh, RuleAction::Drop);
    settings.filters = vec![netbios];
    let mut bed = Bed::new(settings.clone()).workers(3).steering(Steering::Random);
    let (mut port, mut sent) = (1_000, 0);
    for round in 0..4_u32 {
        // The rule and the filter that count are the last ones, and others come and go before them.
        settings.rules.truncate(0);
        settings.rules.extend(
            (0..round % 3)
                .map(|n| nat::settings::Rule { matches: to((0x2d00_0000 + n).into()), action: RuleAction::Drop }),
        );
        settings.rules.push(nat::settings::Rule { matches: ssh, action: RuleAction::Drop });
        settings.filters = if round % 2 == 0 { vec![other, netbios] } else { vec![netbios] };
        settings.filters[0].matches.destination_ports = PortRange::one(if round % 2 == 0 { 139 } else { 137 });
        let result = bed.reload_while(settings.clone(), &[2, 0, 1], |bed| {
            for _ in 0..7 {
                (port, sent) = (port + 1, sent + 1);
                bed.inside(&build::tcp(at(I2, port), at(E1, 22), Flags::SYN).build());
                bed.inside(&build::udp(at(I3, port), at(E1, 137)).build());
            }
        });
        result.expect("the settings can follow those before");
        let filters = bed.shared().filters();
        assert_eq!(hits(&bed).last(), Some(&sent), "round {round}");
        assert_eq!(filters.at(filters.len() - 1).map(|(_, hits)| hits), Some(sent), "round {round}");
    }
    assert!(sent >= 4 * 3 * 7, "{sent} packets between the adoptions");
}

#[test]
fn a_refusal_by_the_pool_of_a_rule_counts_as_a_hit() {
    let mut settings = two_pools().rule(from(I1), by_pool(1)).rule(from(I2), by_pool(2));
    settings.pools[1].name = "narrow".into();
    settings.pools[1].addresses.truncate(1);
    (settings.pools[1].port_min, settings.pools[1].port_max) = (2_000, 2_009);
    // One address for each of its own subscribers, who I2 is not.
    settings.pools.push(Pool {
        name: "whole".into(),
        addresses: vec![Ipv4Addr::new(203, 0, 113, 80)],
        subscribers: vec![Prefix::host(I3)],
        one_to_one: true,
        ..Pool::default()
    });
    let mut bed = Bed::new(settings).record_events(1 << 10);
    for port in 0..13 {
        bed.inside(&build::udp(at(I1, 5_000 + port), at(E1, 443)).build());
    }
    let packet = build::udp(at(I2, 5_000), at(E1, 443)).build();
    let explained = bed.shards().next().map(|shard| shard.explain(bed.now(), Side::Inside.into(), &packet).verdict);
    assert_eq!(explained, Some(Verdict::PortsExhausted), "while the subscriber is still unknown");
    bed.inside(&packet);
    assert_eq!((bed.count(Verdict::PortsExhausted), hits(&bed)), (4, vec![13, 1]));
    let events = bed.take_events(0, usize::MAX);
    let reported = |kind| -> Vec<(u16, Ipv4Addr)> {
        events.iter().filter(|event| event.kind == kind).map(|event| (event.pool.0, event.external)).collect()
    };
    let own = [(1, OTHER[0]), (2, Ipv4Addr::UNSPECIFIED)];
    assert_eq!((reported(EventKind::Refused), reported(EventKind::PoolExhausted)), (own.to_vec(), own.to_vec()));
}

#[test]
fn what_would_happen_in_a_second_pool_is_what_happens() {
    // TCP of I1 comes from the other pool, in which it has always the same address.
    let mut settings = two_pools().rule(Match { protocol: Some(6), ..from(I1) }, by_pool(1));
    (settings.pools[1].port_min, settings.pools[1].port_max) = (2_000, 2_004);
    let mut bed = Bed::new(settings);
    bed.open_udp(at(I1, 999), at(E1, 9));
    let mut refused = 0;
    for port in 1_000..1_012 {
        let packet = build::tcp(at(I1, port), at(E1, 80), Flags::SYN).build();
        let explained = bed.shards().next().map(|shard| shard.explain(bed.now(), Side::Inside.into(), &packet).verdict);
        bed.inside(&packet);
        let left = bed.take_outside().len();
        assert_eq!(explained, Some(if left == 1 { Verdict::Outbound } else { Verdict::PortsExhausted }));
        refused += 1 - left;
    }
    assert_eq!(refused, 7, "five ports of one address");
}

#[test]
fn pairings_in_two_pools_survive_changes_of_addresses() {
    covers!("4787-REQ-2", "6888-REQ-2");
    let web = Match { protocol: Some(6), ..Match::ALL };
    let mut settings = two_pools().rule(web, by_pool(1)).limits(|limits| limits.external_addresses_max = 16);
    let spare = |number: u8| Ipv4Addr::new(198, 18, 7, number);
    settings.pools[1].addresses = (0..4).map(spare).collect();
    let host = |number: u8| Ipv4Addr::new(100, 64, 0, 60 + number);
    for (workers, begins_there) in [(1, false), (3, false), (1, true), (3, true)] {
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let mut port = 1_000;
        // A mapping in the own pool, and one in the other: their addresses.
        let mut both = |bed: &mut Bed, subscriber: Ipv4Addr, begins_there: bool| {
            port += 1;
            let own = |bed: &mut Bed| *bed.open_udp(at(subscriber, port), at(E1, 53)).ip();
            let there = |bed: &mut Bed| *bed.open_tcp(at(subscriber, port), at(E1, 443)).ip();
            let first = if begins_there { there(bed) } else { own(bed) };
            if begins_there { (own(bed), first) } else { (first, there(bed)) }
        };
        let paired: Vec<_> = (0..24).map(|number| both(&mut bed, host(number), begins_there)).collect();
        let mut next = settings.clone();
        next.pools[0].addresses.push(spare(40));
        next.pools[1].addresses.insert(0, spare(10));
        next.pools[1].addresses.push(spare(11));
        for round in 0..3_u8 {
            // Addresses come at both ends; then one that is not theirs drains.
            if round == 1 {
                next.pools[1].draining_addresses = vec![spare(10)];
            }
            bed.reload(next.clone());
            for number in 0..24 {
                let found = both(&mut bed, host(number), (round + number) % 2 == 0);
                assert_eq!(found, paired[usize::from(number)], "{workers} workers, round {round}, host {number}");
            }
        }
        // One that is theirs drains: they move, all others stay.
        next.pools[1].draining_addresses = vec![spare(0)];
        bed.reload(next.clone());
        let mut moved = 0;
        for number in 0..24 {
            let (own, there) = both(&mut bed, host(number), false);
            let (own_before, there_before) = paired[usize::from(number)];
            assert_eq!(own, own_before);
            assert_eq!(there == there_before, there_before != spare(0));
            moved += usize::from(there != there_before);
            assert_eq!(both(&mut bed, host(number), true), (own, there), "and stay where they are then");
        }
        assert!((1..24).contains(&moved), "{moved}");
    }
}

#[test]
fn a_subscriber_is_shown_in_the_pool_that_a_rule_chose() {
    let mut bed = Bed::new(two_pools().rule(from(I1), by_pool(1)));
    bed.open_udp(at(I1, 1_000), at(E1, 53));
    bed.open_udp(at(I2, 1_000), at(E1, 53));
    for (pool, host) in [(0, I2), (1, I1)] {
        let mut found = Vec::new();
        let filter = nat::view::Filter { pool: Some(PoolId(pool)), ..nat::view::Filter::default() };
        for shard in bed.shards() {
            let mut all = nat::view::Query::all(filter);
            shard.view().subscribers_page(bed.now(), &mut all);
            found.append(&mut all.records);
        }
        let shown: Vec<_> = found.iter().map(|view| (view.address, view.pool)).collect();
        assert_eq!(shown, [(host, PoolId(pool))]);
    }
}
