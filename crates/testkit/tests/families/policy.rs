//! Rules, filters and classes that name IPv6 prefixes: hosts of NAT64 by their address, hosts in
//! softwires by that of their B4.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use nat::Settings;
use nat::Verdict;
use nat::rules::Match;
use nat::settings::Class;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::settings::SubscriberLimits;
use nat::stand_in::stand_ins;
use nat::types::Facing;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::Protocol;
use nat::types::RealmId;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::topology::INSIDE;
use testkit::*;
use wire::build;

use crate::why::why;

/// The settings with these prefixes, and what stands for each.
fn naming<const N: usize>(prefixes: [&str; N]) -> (Settings, [Prefix; N]) {
    let mut settings = settings6();
    settings.transition.stand_ins = stand_ins(prefixes.map(prefix6)).expect("they are few");
    let blocks = prefixes.map(|prefix| settings.transition.block_of(prefix6(prefix)).expect("it was named"));
    (settings, blocks)
}

fn from(source: Prefix) -> Match {
    Match { source, ..Match::ALL }
}

fn nat64(host: &str, port: u16) -> Vec<u8> {
    udp6((v6(host), port), (behind(E1), 53), b"question")
}

fn home(b4: &str, port: u16) -> Vec<u8> {
    softwire(v6(b4), v6(AFTR), &build::udp(at([192, 168, 1, 2].into(), port), at(E1, 53)).build())
}

/// The verdict, which `why` has explained.
fn verdict(bed: &mut Bed6, packet: &[u8]) -> Verdict {
    let preview = why(bed, INSIDE, packet).verdict;
    bed.inside(packet);
    assert_eq!(bed.verdict(), Some(preview), "what was preview");
    preview
}

#[test]
fn rules_choose_hosts_and_b4s_by_the_longest_prefix() {
    let (mut settings, [wide, one, host]) = naming(["2001:db8:c::/48", "2001:db8:c:100::/56", "2001:db8:c:100::7/128"]);
    let own = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointIndependent };
    settings.rules = vec![
        Rule { matches: from(host), action: RuleAction::Drop },
        Rule { matches: from(one), action: own },
        Rule { matches: from(wide), action: RuleAction::Drop },
    ];
    for workers in [1, 3] {
        let mut bed = Bed6::with_workers(settings.clone(), workers);
        let expected = [
            ("2001:db8:c:100::6", Verdict::Outbound),
            // Of the same subscriber, which is known by now.
            ("2001:db8:c:100::7", Verdict::DroppedByRule),
            ("2001:db8:c:1ff::9", Verdict::Outbound),
            ("2001:db8:c:200::6", Verdict::DroppedByRule),
            ("2001:db8:d:100::6", Verdict::Outbound),
        ];
        for (address, expected) in expected {
            assert_eq!(verdict(&mut bed, &nat64(address, 5_000)), expected, "{address}");
            assert_eq!(verdict(&mut bed, &home(address, 5_000)), expected, "the B4 {address}");
        }
        assert_eq!(verdict(&mut bed, &build::udp(at(I1, 5_000), at(E1, 53)).build()), Verdict::Outbound);
        let (_, _, hits) = bed.shared().rules().at(2).expect("there are three");
        assert_eq!(hits, 2, "a rule counts what it drops");
        // Another prefix around moves the blocks, and rules mean the same hosts.
        let (mut next, [wide, one, host, _]) =
            naming(["2001:db8:c::/48", "2001:db8:c:100::/56", "2001:db8:c:100::7/128", "2001:db8::/32"]);
        for (matches, action) in [(host, RuleAction::Drop), (one, own), (wide, RuleAction::Drop)] {
            next.rules.push(Rule { matches: from(matches), action });
        }
        bed.reload(next, |_| {}).expect("it can be");
        for (address, expected) in expected {
            assert_eq!(verdict(&mut bed, &nat64(address, 6_000)), expected, "{address} after the reload");
        }
    }
}

#[test]
fn a_rule_sends_a_prefix_to_another_pool() {
    let (mut settings, [one]) = naming(["2001:db8:c:100::/56"]);
    settings = settings.addresses(&POOL[..1]);
    settings.pools.push(Pool {
        name: "other".into(),
        addresses: vec![POOL[1]],
        subscribers: vec![],
        ..Pool::default()
    });
    let action = RuleAction::Translate { pool: Some(PoolId(1)), mapping: MappingKind::EndpointIndependent };
    settings.rules = vec![Rule { matches: from(one), action }];
    let mut bed = Bed6::new(settings);
    for (address, expected) in [(C6, POOL[1]), (D6, POOL[0])] {
        let [_, out] = bed.inside(&nat64(address, 5_000));
        assert_eq!(*source(&out[0]).ip(), expected, "{address}");
        let [_, out] = bed.inside(&home(address, 5_000));
        assert_eq!(*source(&out[0]).ip(), expected, "the B4 {address}");
    }
}

#[test]
fn filters_deny_a_prefix_in_each_direction() {
    let (settings, [one]) = naming(["2001:db8:c:100::/56"]);
    let filter = |out: bool| FilterRule { matches: from(one), action: FilterAction::Deny, out, back: !out, log: false };
    let mut bed = Bed6::new(settings.clone());
    let packets = [nat64(C6, 5_000), home(C6, 5_000), nat64(D6, 5_000)];
    let externals: Vec<_> = packets.iter().map(|packet| source(&bed.inside(packet)[1][0])).collect();
    let answers = |bed: &mut Bed6| -> Vec<usize> {
        let answer = |external| bed.outside(&build::udp(at(E1, 53), external).build())[0].len();
        externals.iter().copied().map(answer).collect()
    };
    assert_eq!(answers(&mut bed), [1, 1, 1]);
    bed.reload(Settings { filters: vec![filter(false)], ..settings.clone() }, |_| {}).expect("it can be");
    assert_eq!(answers(&mut bed), [0, 0, 1], "answers to the prefix are denied, also of known sessions");
    assert_eq!(bed.count(Verdict::DeniedByFilter), 2);
    bed.reload(Settings { filters: vec![filter(true)], ..settings }, |_| {}).expect("it can be");
    assert_eq!(answers(&mut bed), [1, 1, 1]);
    let verdicts: Vec<Verdict> = packets.iter().map(|packet| verdict(&mut bed, packet)).collect();
    assert_eq!(verdicts, [Verdict::DeniedByFilter, Verdict::DeniedByFilter, Verdict::Outbound]);
}

#[test]
fn a_class_limits_the_subscribers_of_its_prefix() {
    let limited = |settings: Settings, block: Prefix, ports: u32| Settings {
        classes: vec![Class {
            name: "few".into(),
            subscribers: vec![block],
            realms: vec![],
            limits: SubscriberLimits { ports_max: [ports; Protocol::COUNT], ..SubscriberLimits::default() },
            gateways: None,
        }],
        ..settings
    };
    let (settings, [block]) = naming(["2001:db8:c::/48"]);
    let mut bed = Bed6::new(limited(settings, block, 2));
    // The B4 and the host have one subscriber, so they share its ports.
    assert_eq!(verdict(&mut bed, &nat64(C6, 5_000)), Verdict::Outbound);
    assert_eq!(verdict(&mut bed, &home(C6, 5_000)), Verdict::Outbound);
    assert_eq!(verdict(&mut bed, &nat64(C6, 5_001)), Verdict::SubscriberPortQuota);
    assert_eq!(verdict(&mut bed, &nat64("2001:db8:c:300::9", 5_000)), Verdict::Outbound, "another subscriber");
    for port in 5_000..5_005 {
        assert_eq!(verdict(&mut bed, &nat64(D6, port)), Verdict::Outbound, "not of the class");
    }
    // The class moves to the others; what they have stays.
    let (settings, [block]) = naming(["2001:db8:d:200::/56"]);
    bed.reload(limited(settings, block, 2), |_| {}).expect("it can be");
    assert_eq!(verdict(&mut bed, &nat64(C6, 5_001)), Verdict::Outbound);
    assert_eq!(verdict(&mut bed, &nat64(D6, 5_000)), Verdict::Outbound);
    assert_eq!(verdict(&mut bed, &nat64(D6, 5_009)), Verdict::SubscriberPortQuota);
    let from = Facing::inside(RealmId(0));
    let shown = bed.shards()[0].explain(bed.now(), from, &nat64("2001:db8:d:2ff::1", 1)).verdict;
    assert_eq!(shown, Verdict::SubscriberPortQuota, "a host without a record, of a full subscriber");
}
