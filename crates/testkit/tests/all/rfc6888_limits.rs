//! RFC 6888 REQ-4, REQ-5 and REQ-11: what one subscriber may use, to the last port, session and
//! mapping a second, whatever the number of workers; and that nothing of anybody else's, nor
//! anything that exists, is touched.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::Class;
use nat::settings::PortTimeout;
use nat::settings::Rate;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::types::Side;
use nat::view::SubscriberView;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::topology::prefix;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const E1_HTTP: SocketAddrV4 = at(E1, 80);
const E2_HTTP: SocketAddrV4 = at(E2, 80);

fn limited(limits: SubscriberLimits) -> Settings {
    let mut settings = settings();
    settings.subscriber = limits;
    settings
}

fn class(name: &str, address: [u8; 4], length: u8, limits: SubscriberLimits) -> Class {
    Class { name: name.into(), subscribers: vec![prefix(address, length)], realms: Vec::new(), limits, gateways: None }
}

/// How many of `wanted` mappings a subscriber gets, from port 10000 on.
fn opened(bed: &mut Bed, protocol: Protocol, subscriber: Ipv4Addr, wanted: u16) -> usize {
    for port in 0..wanted {
        let internal = SocketAddrV4::new(subscriber, 10_000 + port);
        bed.inside(&match protocol {
            Protocol::Udp => build::udp(internal, E1_HTTP).payload_length(10).build(),
            Protocol::Tcp => build::tcp(internal, E1_HTTP, Flags::SYN).build(),
            Protocol::Icmp => build::echo_request(subscriber, *E1_HTTP.ip(), 10_000 + port).build(),
        });
    }
    bed.take_outside().len()
}

fn view(bed: &Bed, subscriber: Ipv4Addr) -> SubscriberView {
    bed.subscribers().into_iter().find(|view| view.address == subscriber).expect("a subscriber with mappings")
}

/// So many refusals for one cause and none for any other.
fn causes(verdict: Verdict, count: u32) -> [u32; SubscriberView::CAUSES.len()] {
    SubscriberView::CAUSES.map(|cause| if cause == verdict { count } else { 0 })
}

#[test]
fn the_mapping_above_the_quota_is_refused_and_all_others_go_on() {
    covers!("6888-REQ-4", "6888-REQ-4b", "6888-REQ-11a", "6888-REQ-11b", "6888-REQ-11d");
    for workers in [1, 3] {
        let limits = SubscriberLimits { ports_max: [100, 200, 20], ..SubscriberLimits::default() };
        let mut bed = Bed::new(limited(limits)).workers(workers);
        for (protocol, quota) in [(Protocol::Udp, 100), (Protocol::Tcp, 200), (Protocol::Icmp, 20)] {
            assert_eq!(opened(&mut bed, protocol, I1, quota + 1), usize::from(quota), "{protocol}");
            let answer = bed.take_inside();
            assert!(answer.len() == 1 && is_icmp(&answer[0], 3, 1), "{protocol}: one ICMP error reports the refusal");
        }
        assert_eq!(bed.count(Verdict::SubscriberPortQuota), 3);
        let seen = view(&bed, I1);
        assert_eq!(
            (seen.mappings, seen.sessions, seen.refused),
            ([100, 200, 20], 320, causes(Verdict::SubscriberPortQuota, 3))
        );
        // Existing mappings work, and another subscriber has all of its own.
        assert_eq!(opened(&mut bed, Protocol::Udp, I1, 100), 100);
        assert_eq!(opened(&mut bed, Protocol::Udp, I2, 100), 100);
        bed.check_books();
    }
}

#[test]
fn a_subscriber_refused_from_its_start_is_counted_and_shown() {
    covers!("6888-REQ-4");
    for workers in [1, 3] {
        let mut settings = limited(SubscriberLimits::default());
        settings.classes =
            vec![class("none", I2.octets(), 32, SubscriberLimits { ports_max: [0; 3], ..SubscriberLimits::default() })];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        assert_eq!(opened(&mut bed, Protocol::Udp, I1, 2), 2);
        assert_eq!(opened(&mut bed, Protocol::Udp, I2, 5), 0);
        let [none] = bed.refused_subscribers()[..] else { panic!("{:?}", bed.refused_subscribers()) };
        assert_eq!((none.address, none.refused, none.mappings), (I2, causes(Verdict::SubscriberPortQuota, 5), [0; 3]));
        assert_eq!((none.class, none.external_address, none.sessions), (1, None, 0));
        assert_eq!(bed.subscribers().len(), 1, "it is not among those that have something");
        // With its first mapping it is, and what was refused before is not forgotten.
        settings.classes.clear();
        bed.reload(settings);
        assert_eq!(opened(&mut bed, Protocol::Udp, I2, 1), 1);
        assert!(bed.refused_subscribers().is_empty());
        assert_eq!(view(&bed, I2).refused, causes(Verdict::SubscriberPortQuota, 5));
        // And when it has nothing any more, it is shown for an hour after its last refusal.
        bed.advance_secs(1_000);
        assert_eq!(bed.refused_subscribers().len(), 1);
        bed.advance_secs(2_700);
        assert!(bed.refused_subscribers().is_empty());
        bed.check_books();
    }
}

#[test]
fn every_refusal_counts_for_a_subscriber_or_as_unlisted() {
    covers!("6888-REQ-4");
    let mut settings = limited(SubscriberLimits { ports_max: [0; 3], ..SubscriberLimits::default() });
    settings.classes =
        vec![class("some", I1.octets(), 32, SubscriberLimits { ports_max: [3; 3], ..Default::default() })];
    let mut bed = Bed::new(settings).workers(3);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 10), 3);
    let refused = |bed: &Bed| {
        let shown = bed.subscribers().into_iter().chain(bed.refused_subscribers());
        shown.flat_map(|view| view.refused).map(u64::from).sum::<u64>()
    };
    // Sources as many as there are: the list is bounded, and nothing is lost.
    for number in 0..10_000_u32 {
        let source = SocketAddrV4::new(Ipv4Addr::from_bits(u32::from(I1) & !0xffff | number), 5_000);
        if *source.ip() != I1 {
            bed.inside(&build::udp(source, E1_HTTP).payload_length(10).build());
        }
    }
    let counters = bed.counters();
    assert!(counters.refusals_unlisted > 0 && bed.refused_subscribers().len() <= 3 * 1_024);
    let counted: u64 = SubscriberView::CAUSES.iter().map(|cause| bed.count(*cause)).sum();
    assert!(counted > 9_000, "{counted} refused");
    assert_eq!(refused(&bed) + counters.refusals_unlisted, counted);
}

#[test]
fn a_port_that_comes_back_may_be_had_again() {
    covers!("6888-REQ-4");
    let limits = SubscriberLimits { ports_max: [5, 5, 5], ..SubscriberLimits::default() };
    let mut bed = Bed::new(limited(limits).short_timers());
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 5), 5);
    // A ping keeps the subscriber known while all the rest runs out.
    bed.advance_secs(8);
    bed.ping(I1, 1, *E1_HTTP.ip());
    bed.advance_secs(6);
    bed.take_outside();
    assert_eq!(view(&bed, I1).mappings, [0, 0, 1]);
    let again = |port| build::udp(SocketAddrV4::new(I1, port), E1_HTTP).build();
    for port in 20_000..20_006 {
        bed.inside(&again(port));
    }
    assert_eq!(bed.take_outside().len(), 5);
}

#[test]
fn classes_have_their_own_limits() {
    covers!("6888-REQ-4a", "6888-REQ-5a");
    let of = |ports| SubscriberLimits { ports_max: [ports; 3], ..SubscriberLimits::default() };
    let mut settings = limited(of(10));
    settings.classes = vec![class("few", I1.octets(), 32, of(3)), class("none", I2.octets(), 32, of(0))];
    let mut bed = Bed::new(settings);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 20), 3);
    assert_eq!(opened(&mut bed, Protocol::Udp, I2, 20), 0);
    assert_eq!(opened(&mut bed, Protocol::Udp, I3, 20), 10);
    assert_eq!((view(&bed, I1).class, view(&bed, I3).class), (1, 0));
    assert_eq!(bed.subscribers().len(), 2, "who may have nothing leaves nothing behind");
}

#[test]
fn new_mappings_are_made_no_faster_than_the_rate() {
    covers!("6888-REQ-4c");
    let rate = Some(Rate { per_second: 1_000, burst: 100 });
    let mut bed = Bed::new(limited(SubscriberLimits { new_mappings: rate, ..SubscriberLimits::default() }));
    let (mut made, mut others) = (0, 0);
    // 20 packets a millisecond of one subscriber, for a second; now and then one of another.
    for tick in 0..1_000_u16 {
        for port in 0..20 {
            let internal = SocketAddrV4::new(I1, 1_024 + (tick * 20 + port) % 60_000);
            bed.offer(Side::Inside, &build::udp(internal, E1_HTTP).build());
        }
        bed.settle();
        made += bed.take_outside().len();
        if tick % 10 == 0 {
            bed.inside(&build::udp(SocketAddrV4::new(I2, 2_000 + tick), E1_HTTP).build());
            others += bed.take_outside().len();
        }
        bed.jump(Duration::from_millis(1));
    }
    assert!((1_090..=1_100).contains(&made), "{made} in a second, with a burst of 100");
    assert_eq!(others, 100, "nobody else feels it");
    let refused = view(&bed, I1).refused;
    assert_eq!(refused.iter().sum::<u32>() as usize, 20_000 - made);
    assert_eq!(bed.count(Verdict::SubscriberRateLimit) as usize, 20_000 - made);
}

/// What would become of a packet of this subscriber now.
fn explained(bed: &Bed, subscriber: Ipv4Addr, packet: &[u8]) -> Verdict {
    let worker = bed.shared().worker_of_subscriber(subscriber.into());
    let shard = bed.shards().nth(worker.index()).expect("its worker");
    shard.explain(bed.now(), Side::Inside.into(), packet).verdict
}

/// What goes to port 80 ends after a second.
fn short_lived(limits: SubscriberLimits) -> Settings {
    let mut settings = limited(limits);
    let idle = Duration::from_secs(1);
    settings.port_timeouts = vec![PortTimeout { protocol: Protocol::Udp, ports: 80..=80, idle }];
    settings
}

#[test]
fn a_rate_belongs_to_the_subscriber_and_not_to_a_mapping() {
    covers!("6888-REQ-4c");
    let rate = Some(Rate { per_second: 1, burst: 30 });
    let settings = short_lived(SubscriberLimits { new_mappings: rate, ..SubscriberLimits::default() });
    for workers in [1, 3] {
        for keeps_one in [true, false] {
            let mut bed = Bed::new(settings.clone()).workers(workers);
            if keeps_one {
                bed.open_udp(SocketAddrV4::new(I1, 9), SocketAddrV4::new(E1, 9_000));
            }
            let mut made = Vec::new();
            for round in 0..6 {
                made.push(opened(&mut bed, Protocol::Udp, I1, 40) + usize::from(keeps_one && round == 0));
                // What would happen is what happens, whether the subscriber has anything or not.
                let packet = build::udp(SocketAddrV4::new(I1, 20_000), E1_HTTP).build();
                assert_eq!(explained(&bed, I1, &packet), Verdict::SubscriberRateLimit);
                bed.advance_secs(2);
                bed.sweep();
                assert_eq!(bed.mappings().len(), usize::from(keeps_one));
                assert_eq!(bed.subscribers().len(), usize::from(keeps_one), "who has nothing is none");
            }
            assert_eq!(made, [30, 2, 2, 2, 2, 2], "keeps one: {keeps_one}");
            // Nobody else pays, and who waits long enough has all of it again.
            assert_eq!(opened(&mut bed, Protocol::Udp, I2, 40), 30);
            bed.advance_secs(40);
            bed.sweep();
            assert_eq!(opened(&mut bed, Protocol::Udp, I1, 40), 30);
            bed.check_books();
        }
    }
}

#[test]
fn a_rate_of_sessions_outlives_the_last_mapping_too() {
    covers!("6888-REQ-5b");
    let rate = Some(Rate { per_second: 1, burst: 10 });
    let mut bed = Bed::new(short_lived(SubscriberLimits { new_sessions: rate, ..SubscriberLimits::default() }));
    let mut made = Vec::new();
    for _ in 0..4 {
        for host in 0..20 {
            let remote = SocketAddrV4::new(Ipv4Addr::from_bits(0x0808_0000 + host), 80);
            bed.inside(&build::udp(SocketAddrV4::new(I1, 5_000), remote).build());
        }
        // The first one comes with its mapping.
        made.push(bed.take_outside().len() - 1);
        bed.advance_secs(2);
        bed.sweep();
        assert_eq!(bed.subscribers().len(), 0);
    }
    assert_eq!(made, [10, 2, 2, 2]);
}

#[test]
fn a_rate_limited_subscriber_uses_no_room_of_others() {
    covers!("6888-REQ-4c");
    let rate = Some(Rate { per_second: 1, burst: 3 });
    let mut settings = short_lived(SubscriberLimits { new_mappings: rate, ..SubscriberLimits::default() });
    settings.limits.subscribers_max = 3;
    let mut bed = Bed::new(settings);
    let host = |number: u8| Ipv4Addr::new(100, 64, 0, 100 + number);
    // The last one of them comes later, and so lapses later.
    for number in 0..3 {
        bed.advance(Duration::from_millis(if number == 2 { 600 } else { 0 }));
        assert_eq!(opened(&mut bed, Protocol::Udp, host(number), 5), 3);
    }
    bed.inside(&build::udp(SocketAddrV4::new(host(3), 5_000), E1_HTTP).build());
    assert_eq!((bed.take_outside().len(), bed.count(Verdict::SubscriberTableFull)), (0, 1));
    for _ in 0..2 {
        bed.advance(Duration::from_millis(550));
        bed.sweep();
    }
    assert_eq!(bed.subscribers().len(), 0);
    // Two more, for which the two are forgotten that have waited longest.
    for number in [3, 4] {
        let packet = build::udp(SocketAddrV4::new(host(number), 5_000), E1_HTTP).build();
        assert_eq!(explained(&bed, host(number), &packet), Verdict::Outbound);
        assert_eq!(opened(&mut bed, Protocol::Udp, host(number), 5), 3);
    }
    assert_eq!(opened(&mut bed, Protocol::Udp, host(2), 5), 1, "of this one it is known that it used its burst");
    assert_eq!(bed.count(Verdict::SubscriberTableFull), 1);
    bed.check_books();
}

#[test]
fn one_mapping_has_no_more_sessions_than_its_owner_may_have() {
    covers!("6888-REQ-5");
    let mut bed = Bed::new(limited(SubscriberLimits { sessions_max: 50, ..SubscriberLimits::default() }));
    let internal = SocketAddrV4::new(I1, 5_000);
    for host in 0..5_000_u32 {
        let remote = SocketAddrV4::new(Ipv4Addr::from_bits(0x0808_0000 + host), 443);
        bed.inside(&build::udp(internal, remote).build());
    }
    assert_eq!(bed.take_outside().len(), 50);
    let seen = view(&bed, I1);
    assert_eq!((seen.mappings[0], seen.sessions), (1, 50));
    assert_eq!(bed.count(Verdict::SubscriberSessionQuota), 4_950);
    // A new mapping would have a session too.
    assert_eq!(opened(&mut bed, Protocol::Tcp, I1, 1), 0);
    assert_eq!(opened(&mut bed, Protocol::Tcp, I2, 50), 50);
    // The first of them goes on.
    bed.inside(&build::udp(internal, SocketAddrV4::new(Ipv4Addr::from_bits(0x0808_0000), 443)).build());
    assert_eq!(bed.take_outside().len(), 1);
    bed.check_books();
}

#[test]
fn the_state_of_a_subscriber_takes_no_more_memory_than_it_may() {
    covers!("6888-REQ-5", "6888-REQ-5a");
    let memory_max = 10 * nat::class::MAPPING_BYTES + 5 * nat::class::EXTRA_SESSION_BYTES;
    let mut bed = Bed::new(limited(SubscriberLimits { memory_max, ..SubscriberLimits::default() }));
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 10), 10);
    let internal = SocketAddrV4::new(I1, 10_000);
    for port in 0..20 {
        bed.inside(&build::udp(internal, SocketAddrV4::new(*E1_HTTP.ip(), 1_000 + port)).build());
    }
    assert_eq!(bed.take_outside().len(), 5);
    let seen = view(&bed, I1);
    assert_eq!((seen.sessions, seen.memory_bytes), (15, memory_max));
    assert_eq!(bed.count(Verdict::SubscriberMemoryQuota), 15);
}

#[test]
fn endpoint_dependent_flows_count_as_sessions() {
    covers!("6888-REQ-5", "6888-REQ-4c");
    let rate = Some(Rate { per_second: 10, burst: 40 });
    let limits = SubscriberLimits { sessions_max: 30, new_mappings: rate, ..SubscriberLimits::default() };
    let mut bed = Bed::new(limited(limits).endpoint_dependent(prefix([198, 51, 100, 0], 24), (80, 80)));
    assert_eq!(opened(&mut bed, Protocol::Tcp, I1, 10), 10);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 30), 20);
    let seen = view(&bed, I1);
    assert_eq!((seen.sessions, seen.mappings, seen.memory_bytes), (30, [0; 3], 30 * nat::class::FLOW_BYTES));
    assert_eq!(bed.count(Verdict::SubscriberSessionQuota), 10);
    assert_eq!(opened(&mut bed, Protocol::Udp, I2, 30), 30);
}

#[test]
fn a_flood_of_syns_makes_no_more_sessions_than_the_rate() {
    covers!("6888-REQ-5b");
    let rate = Some(Rate { per_second: 10, burst: 10 });
    let mut bed = Bed::new(limited(SubscriberLimits { new_sessions: rate, ..SubscriberLimits::default() }));
    let external = bed.connect(SocketAddrV4::new(I1, 5_000), E1_HTTP);
    bed.take_inside();
    for round in 0..5_u32 {
        for host in 0..500_u32 {
            let remote = SocketAddrV4::new(Ipv4Addr::from_bits(0x0808_0000 + round * 1_000 + host), 4_000);
            bed.offer(Side::Outside, &build::tcp(remote, external, Flags::SYN).build());
        }
        bed.settle();
        bed.jump(Duration::from_secs(1));
    }
    let let_in = bed.take_inside().len();
    assert!((50..=60).contains(&let_in), "{let_in} in 5 s");
    assert_eq!(bed.count(Verdict::SubscriberRateLimit) as usize, 2_500 - let_in);
    assert!(bed.take_outside().is_empty(), "no error goes outside");
    assert_eq!(view(&bed, I1).sessions as usize, 1 + let_in);
}

#[test]
fn new_sessions_of_a_mapping_keep_to_the_rate() {
    covers!("6888-REQ-5b");
    let rate = Some(Rate { per_second: 100, burst: 10 });
    let mut bed = Bed::new(limited(SubscriberLimits { new_sessions: rate, ..SubscriberLimits::default() }));
    let mut made = 0;
    for tick in 0..1_000_u32 {
        let remote = SocketAddrV4::new(Ipv4Addr::from_bits(0x0808_0000 + tick), 443);
        bed.inside(&build::udp(SocketAddrV4::new(I1, 5_000), remote).build());
        made += bed.take_outside().len();
        bed.jump(Duration::from_millis(1));
    }
    assert!((108..=112).contains(&made), "{made} in a second");
}

#[test]
fn a_timer_of_a_well_known_port_is_for_its_sessions_only() {
    covers!("4787-REQ-5a");
    let mut settings = settings();
    settings.port_timeouts =
        vec![PortTimeout { protocol: Protocol::Udp, ports: 53..=53, idle: Duration::from_secs(10) }];
    let (dns, other) = (SocketAddrV4::new(*E1_HTTP.ip(), 53), SocketAddrV4::new(*E2_HTTP.ip(), 5_000));
    let mut bed = Bed::new(settings);
    let (short, both) = (SocketAddrV4::new(I1, 5_000), SocketAddrV4::new(I1, 5_001));
    let external = bed.open_udp(short, dns);
    let external_both = bed.open_udp(both, dns);
    bed.open_udp(both, other);
    bed.advance_secs(9);
    assert!(bed.udp_reaches(dns, external, short));
    // The answer did not refresh it: inbound packets do not by default.
    bed.advance_secs(2);
    assert!(!bed.udp_reaches(dns, external, short));
    assert!(bed.udp_reaches(other, external_both, both), "it keeps the mapping for its own timer");
    bed.advance_secs(280);
    assert!(bed.udp_reaches(other, external_both, both));
    bed.advance_secs(20);
    assert!(!bed.udp_reaches(other, external_both, both));
}

#[test]
fn unanswered_mappings_end_before_answered_ones() {
    covers!("4787-REQ-5", "4787-REQ-5b");
    let mut bed = Bed::new(settings().timers(|timeouts| timeouts.udp_unanswered = Duration::from_secs(120)));
    let (silent, answered) = (SocketAddrV4::new(I1, 5_000), SocketAddrV4::new(I1, 5_001));
    let (external, external_answered) = (bed.open_udp(silent, E1_HTTP), bed.open_udp(answered, E1_HTTP));
    assert!(bed.udp_reaches(E1_HTTP, external_answered, answered));
    bed.advance_secs(119);
    assert_eq!(bed.mappings().len(), 2);
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(E1_HTTP, external, silent));
    bed.advance_secs(179);
    assert!(bed.udp_reaches(E1_HTTP, external_answered, answered));
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(E1_HTTP, external_answered, answered));
}

#[test]
fn one_answer_only_lengthens_a_session() {
    covers!("4787-REQ-6a");
    let mut bed = Bed::new(settings().timers(|timeouts| timeouts.udp_unanswered = Duration::from_secs(120)));
    let internal = SocketAddrV4::new(I1, 5_000);
    let external = bed.open_udp(internal, E1_HTTP);
    // From 100 s on it is answered every second: 300 s from the first answer, and no longer.
    bed.advance_secs(100);
    for second in 0..299 {
        assert!(bed.udp_reaches(E1_HTTP, external, internal), "{second}");
        bed.advance_secs(1);
    }
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(E1_HTTP, external, internal));
}

/// Threshold events of all workers since the last time: kind, cause and percent.
fn crossings(bed: &mut Bed) -> Vec<(EventKind, Cause, u32)> {
    let workers = bed.shards().count();
    let events = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect::<Vec<_>>();
    let is_crossing = |kind| matches!(kind, EventKind::ThresholdReached | EventKind::ThresholdCleared);
    let found = events.into_iter().filter(|event| is_crossing(event.kind));
    found.map(|event| (event.kind, event.cause, event.amount)).collect()
}

#[test]
fn crossing_a_threshold_is_reported_once_each_way() {
    covers!("6888-REQ-11c");
    let threshold = Some(Threshold { high_percent: 80, low_percent: 50 });
    let limits = SubscriberLimits { ports_max: [10; 3], sessions_max: 40, threshold, ..SubscriberLimits::default() };
    let mut bed = Bed::new(limited(limits).short_timers()).record_events(10_000);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 7), 7);
    assert_eq!(crossings(&mut bed), []);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 14), 10);
    assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, Cause::SubscriberPorts, 80)]);
    // Sessions of one mapping, to 32 of 40.
    for port in 1..=22 {
        bed.inside(&build::udp(SocketAddrV4::new(I1, 10_000), SocketAddrV4::new(E2, port)).build());
    }
    assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, Cause::SubscriberSessions, 80)]);
    bed.run_out();
    let mut over = crossings(&mut bed);
    over.sort_by_key(|(_, cause, _)| cause.name());
    let kinds: Vec<_> = over.iter().map(|(kind, cause, _)| (*kind, *cause)).collect();
    let cleared = EventKind::ThresholdCleared;
    assert_eq!(kinds, [(cleared, Cause::SubscriberPorts), (cleared, Cause::SubscriberSessions)]);
}

#[test]
fn a_threshold_below_current_use_is_reported_at_a_refusal() {
    covers!("6888-REQ-11c");
    let limits = SubscriberLimits { ports_max: [8; 3], ..SubscriberLimits::default() };
    let mut bed = Bed::new(limited(limits)).record_events(10_000);
    assert_eq!(opened(&mut bed, Protocol::Udp, I1, 8), 8);
    let threshold = Some(Threshold { high_percent: 50, low_percent: 40 });
    bed.reload(limited(SubscriberLimits { threshold, ..limits }));
    assert_eq!(crossings(&mut bed), []);
    bed.inside(&build::udp(SocketAddrV4::new(I1, 20_000), E1_HTTP).build());
    assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, Cause::SubscriberPorts, 100)]);
    bed.inside(&build::udp(SocketAddrV4::new(I1, 20_001), E1_HTTP).build());
    assert_eq!(crossings(&mut bed), [], "once");
}

#[test]
fn a_full_pool_shortens_timers_within_the_bounds_of_the_rfcs() {
    covers!("6888-REQ-11c", "4787-REQ-5");
    for workers in [1, 3] {
        let mut settings = settings().ports(1_024, 1_123).addresses(&POOL[..1]);
        settings.pools[0].threshold = Some(Threshold { high_percent: 90, low_percent: 80 });
        settings.pools[0].reuse_delay = Duration::ZERO;
        settings.timeouts.adapt_above_percent = Some(50);
        let mut bed = Bed::new(settings).workers(workers).record_events(10_000);
        let wait = |bed: &mut Bed| (0..40).for_each(|_| bed.advance(Duration::from_millis(100)));
        let udp = |bed: &Bed| bed.shards().map(|shard| shard.timeouts().udp).collect::<Vec<_>>();
        assert_eq!(opened(&mut bed, Protocol::Udp, I1, 50), 50);
        wait(&mut bed);
        assert_eq!((crossings(&mut bed), udp(&bed)), (vec![], vec![Duration::from_secs(300); workers]));
        assert_eq!(opened(&mut bed, Protocol::Udp, I2, 45), 45);
        wait(&mut bed);
        assert_eq!(crossings(&mut bed), [(EventKind::ThresholdReached, Cause::PoolPorts, 95)]);
        // 95 is 9/10 of the way from 50 to 100.
        assert_eq!(udp(&bed), vec![Duration::from_secs(300 - 162); workers]);
        assert_eq!(opened(&mut bed, Protocol::Udp, I3, 9), 5);
        wait(&mut bed);
        assert_eq!(udp(&bed), vec![Duration::from_secs(120); workers]);
        bed.shards().for_each(|shard| assert_eq!(shard.timeouts().tcp_established, Duration::from_secs(7_440)));
        bed.advance_secs(400);
        wait(&mut bed);
        // Reported in the middle of the sweep, with what was left then.
        let over = crossings(&mut bed);
        assert!(matches!(over[..], [(EventKind::ThresholdCleared, Cause::PoolPorts, 0..=80)]), "{over:?}");
        assert_eq!(udp(&bed), vec![Duration::from_secs(300); workers]);
    }
}

/// Churn of all kinds by 40 subscribers of three classes on one and on four workers: no subscriber
/// ever has one port or session too many, each that is refused had all of its own, and the counts
/// are right.
#[test]
fn quotas_are_exact_under_churn_on_any_number_of_workers() {
    covers!("6888-REQ-4", "6888-REQ-5", "6888-REQ-11d");
    for (workers, seed) in [(1, 11), (4, 12), (4, 13)] {
        let limits =
            |ports_max, sessions_max| SubscriberLimits { ports_max, sessions_max, ..SubscriberLimits::default() };
        let mut settings = limited(limits([6, 8, 2], 20)).short_timers();
        settings.classes = vec![
            class("small", [100, 64, 1, 0], 28, limits([1, 2, 1], 3)),
            class("large", [100, 64, 1, 32], 29, limits([30, 30, 30], 60)),
        ];
        // Every refusal is looked at by its verdict, not by its message.
        settings.icmp.errors_to_inside = false;
        let classes = settings.classes.clone();
        let common = settings.subscriber;
        let mut bed = Bed::new(settings).workers(workers).seed(seed);
        let mut random = SmallRng::seed_from_u64(seed);
        for step in 0..6_000_u32 {
            let subscriber = Ipv4Addr::new(100, 64, 1, random.random_range(1..41));
            let internal = SocketAddrV4::new(subscriber, 5_000 + random.random_range(0..40));
            let remote = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, random.random_range(1..5)), 80);
            let packet = match random.random_range(0..10) {
                0 => build::echo_request(subscriber, *remote.ip(), internal.port()).build(),
                1..=4 => build::tcp(internal, remote, Flags::SYN).build(),
                _ => build::udp(internal, remote).build(),
            };
            let refused =
                |bed: &Bed| (bed.count(Verdict::SubscriberPortQuota), bed.count(Verdict::SubscriberSessionQuota));
            let before = refused(&bed);
            bed.inside(&packet);
            let after = refused(&bed);
            if after != before {
                // A subscriber that is refused has all of its own, and not one less.
                let view =
                    bed.subscribers().into_iter().find(|view| view.address == subscriber).expect("has something");
                let limits = if view.class == 0 { &common } else { &classes[usize::from(view.class) - 1].limits };
                let protocol = match packet[9] {
                    1 => Protocol::Icmp,
                    6 => Protocol::Tcp,
                    _ => Protocol::Udp,
                };
                if after.0 > before.0 {
                    let index = protocol.index();
                    assert_eq!(view.mappings[index], limits.ports_max[index], "{view:?} refused {protocol}");
                } else {
                    assert_eq!(view.sessions, limits.sessions_max, "{view:?} refused a session");
                }
            }
            if step % 50 == 0 {
                bed.advance(Duration::from_millis(random.random_range(0..3_000)));
                // An expired mapping counts until the sweep has found it.
                bed.sweep();
            }
            if step % 20 == 0 {
                let mut mappings: HashMap<Ipv4Addr, [u32; 3]> = HashMap::new();
                for mapping in bed.mappings() {
                    mappings.entry(mapping.internal.address).or_default()[mapping.protocol.index()] += 1;
                }
                for view in bed.subscribers() {
                    let limits = if view.class == 0 { &common } else { &classes[usize::from(view.class) - 1].limits };
                    let alive = mappings.get(&view.address).copied().unwrap_or_default();
                    for ((counted, alive), quota) in view.mappings.iter().zip(alive).zip(limits.ports_max) {
                        assert!(*counted <= quota && alive <= *counted, "{view:?}");
                    }
                    assert!(view.sessions <= limits.sessions_max, "{view:?}");
                }
            }
        }
        bed.take_outside();
        let refused = bed.count(Verdict::SubscriberPortQuota) + bed.count(Verdict::SubscriberSessionQuota);
        assert!(refused > 500, "the quotas were felt: {refused}");
        bed.check_books();
        bed.run_out();
    }
}
