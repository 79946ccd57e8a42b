//! Rules and packet filters: what is translated, by which pool, what goes through as it is, and what is dropped.

use core::net::Ipv4Addr;

use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::types::Facing;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

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
        // In the middle of a connection nobody has seen the beginning of: there is no state to miss.
        for (from, to) in [(at(I1, 80), at(E1, 4000)), (at(I2, 80), at(E1, 4000))] {
            bed.inside(&build::tcp(from, to, Flags::ACK).payload(b"data").build());
            assert_eq!(source(&bed.only_outside()), from);
            bed.outside(&build::tcp(to, from, Flags::ACK).payload(b"data").build());
            assert_eq!(destination(&bed.only_inside()), from);
        }
        // A ping from outside reaches the inside host: nothing is translated.
        bed.outside(&build::echo_request(E1, I3, 7).build());
        assert_eq!(destination(&bed.only_inside()).ip(), &I3);
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
        assert_eq!(bed.count(Verdict::Passed), 10);
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
fn a_filter_decides_by_direction_and_whoever_is_first() {
    let tcp = Match { protocol: Some(6), ..Match::ALL };
    let mut rules = settings()
        .filter(Match { destination: Prefix::host(E1), ..tcp }, FilterAction::Permit)
        .filter(tcp, FilterAction::Deny);
    // Nothing comes in from E2 to I2, whatever I2 sends there.
    let quiet = Match { destination: Prefix::host(E2), ..from(I2) };
    rules.filters.push(FilterRule { matches: quiet, action: FilterAction::Deny, out: false, back: true });
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
        let asked = bed.shards().map(|shard| shard.worker_to_ask(Side::Outside, &packet)).next();
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
