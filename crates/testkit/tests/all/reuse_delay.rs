//! RFC 6888 REQ-8: a port whose mapping has ended is held down before it is given out again.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::ReuseAtOnce;
use nat::types::Endpoint;
use nat::types::Prefix;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// One external address with so many ports.
fn few_ports(count: u16) -> Settings {
    settings().addresses(&POOL[..1]).ports(10_000, 10_000 + count - 1)
}

fn with_delay(mut settings: Settings, seconds: u64, reuse_at_once: ReuseAtOnce) -> Settings {
    for pool in &mut settings.pools {
        pool.reuse_delay = Duration::from_secs(seconds);
        pool.reuse_at_once = reuse_at_once;
    }
    settings
}

const NONE: ReuseAtOnce = ReuseAtOnce { tcp_closed: false, filtered: false };

/// Tries to open a UDP mapping; where it left from.
fn try_udp(bed: &mut Bed, internal: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.inside(&build::udp(internal, at(E1, 9)).payload(b"x").build());
    bed.take_inside();
    bed.take_outside().first().map(|packet| source(packet))
}

/// The same to a server.
fn try_udp_to(bed: &mut Bed, internal: SocketAddrV4, remote: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.inside(&build::udp(internal, remote).payload(b"x").build());
    bed.take_inside();
    bed.take_outside().first().map(|packet| source(packet))
}

/// The subscribers of the tests; not those that keep their mappings alive.
fn new_subscriber(number: u32) -> SocketAddrV4 {
    at((0x6441_0000 + number).into(), 5_000)
}

#[test]
fn a_port_is_held_down_for_two_minutes_after_its_mapping() {
    covers!("6888-REQ-8");
    for workers in [1, 4] {
        let mut bed = Bed::new(few_ports(8)).workers(workers).steering(Steering::Random);
        let ends = bed.open_udp(at(I1, 5_000), at(E1, 9));
        let others: Vec<SocketAddrV4> = (0..7).map(new_subscriber).collect();
        for other in &others {
            bed.open_udp(*other, at(E1, 9));
        }
        let keep_alive = |bed: &mut Bed| {
            for other in &others {
                assert!(try_udp(bed, *other).is_some(), "who has a mapping keeps it");
            }
        };
        let mut waited = 0;
        while waited < 300 {
            bed.advance_secs(100);
            waited += 100;
            keep_alive(&mut bed);
        }
        // At 300 s the mapping ended; from the sweep on, at most half a second later, the port is
        // held down.
        bed.advance_secs(1);
        assert_eq!((bed.mappings().len(), bed.ports_held(), bed.ports_used()), (7, 1, 8));
        for _ in 0..17 {
            bed.advance_secs(7);
            assert_eq!(try_udp(&mut bed, new_subscriber(100)), None, "everything else is taken");
            assert_eq!(try_udp(&mut bed, at(I1, 5_000)), None, "nor does its last owner get it");
            // A packet to the old mapping still reaches nobody.
            bed.outside(&build::udp(at(E1, 9), ends).payload(b"late").build());
            bed.assert_silent();
        }
        assert!(bed.count(Verdict::PortsExhausted) >= 34 && bed.count(Verdict::NoMapping) == 17);
        keep_alive(&mut bed);
        // 301 + 119 seconds: now it has been held down for 120.
        bed.advance_secs(2);
        assert_eq!(bed.ports_held(), 0);
        assert_eq!(try_udp(&mut bed, new_subscriber(101)), Some(ends), "with {workers} workers");
        bed.run_out();
    }
}

#[test]
fn no_port_is_reused_within_its_hold_down() {
    covers!("6888-REQ-8");
    let wanted = with_delay(few_ports(200), 30, NONE).timers(|timeouts| {
        timeouts.udp = Duration::from_secs(10);
    });
    let mut bed = Bed::new(wanted).workers(3).steering(Steering::Random).seed(7);
    let mut last_seen = std::collections::HashMap::new();
    for second in 0..300_u64 {
        for number in 0..5_u64 {
            let internal = new_subscriber((second * 5 + number) as u32);
            let external = try_udp(&mut bed, internal);
            if let Some(before) = external.and_then(|external| last_seen.insert(external, second)) {
                assert!(second - before >= 40, "{external:?} after {} s", second - before);
            }
        }
        bed.advance_secs(1);
    }
    // 200 ports, each away for 40 s and a little: five a second.
    assert!(bed.counters().mappings_created.iter().sum::<u64>() > 1_200);
    bed.run_out();
}

#[test]
fn only_a_closed_tcp_connection_frees_its_port_at_once() {
    covers!("6888-REQ-8a");
    for (tcp_closed, free_at_once) in [(true, true), (false, false)] {
        let wanted = with_delay(few_ports(1), 120, ReuseAtOnce { tcp_closed, filtered: false });
        let mut bed = Bed::new(wanted);
        let external = bed.connect(at(I1, 5_000), at(E1, 80));
        let fin = Flags::FIN.union(Flags::ACK);
        bed.inside(&build::tcp(at(I1, 5_000), at(E1, 80), fin).sequence(1_001).acknowledgment(5_001).build());
        bed.outside(&build::tcp(at(E1, 80), external, fin).sequence(5_001).acknowledgment(1_002).build());
        bed.take_inside();
        bed.take_outside();
        // Closing lasts for four minutes.
        bed.advance_secs(241);
        assert_eq!((bed.mappings().len(), bed.ports_held()), (0, u64::from(!free_at_once)));
        bed.inside(&build::tcp(at(I2, 5_000), at(E1, 80), Flags::SYN).sequence(1).build());
        let next = bed.take_outside().first().map(|packet| source(packet));
        assert_eq!(next, free_at_once.then_some(external));
        bed.take_inside();
    }
    // A SYN that nobody answered is no closed connection.
    let mut bed = Bed::new(with_delay(few_ports(1), 120, ReuseAtOnce { tcp_closed: true, filtered: false }));
    bed.open_tcp(at(I1, 5_000), at(E1, 80));
    bed.advance_secs(241);
    assert_eq!((bed.mappings().len(), bed.ports_held()), (0, 1));
}

#[test]
fn a_port_behind_a_filter_needs_no_rest_where_that_is_asked_for() {
    covers!("6888-REQ-8c");
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for filtered in [false, true] {
            let wanted = few_ports(1).filtering_of(Protocol::Udp, filtering);
            let mut bed = Bed::new(with_delay(wanted, 120, ReuseAtOnce { tcp_closed: false, filtered }));
            let external = bed.open_udp(at(I1, 5_000), at(E1, 9));
            bed.advance_secs(301);
            let is_free = filtered && filtering != Filtering::EndpointIndependent;
            assert_eq!((bed.mappings().len(), bed.ports_held()), (0, u64::from(!is_free)));
            assert_eq!(try_udp(&mut bed, at(I2, 5_000)), is_free.then_some(external));
            if is_free {
                // What is under way to the old mapping does not reach the new one.
                bed.outside(&build::udp(at(E2, 9), external).payload(b"late").build());
                bed.assert_silent();
                assert_eq!(bed.count(Verdict::Filtered), 1);
            }
        }
    }
}

/// Ports that flows share are reused at once, but not towards the same remote endpoint: its late
/// packets reach nobody.
#[test]
fn a_five_tuple_of_a_flow_is_held_down_like_a_port() {
    covers!("6888-REQ-8", "6888-REQ-8a", "6888-REQ-8c");
    let late = |bed: &mut Bed, external| {
        bed.outside(&build::udp(at(E1, 443), external).payload(b"late").build());
        bed.take_inside().len()
    };
    for workers in [1, 4] {
        for (seconds, filtered) in [(120, false), (30, false), (600, false), (120, true)] {
            let settings = few_ports(3).endpoint_dependent(Prefix::ALL, (443, 443)).short_timers();
            let at_once = ReuseAtOnce { tcp_closed: true, filtered };
            let mut settings = with_delay(settings, seconds, at_once);
            settings.pools[0].shared_ports_min = 1;
            let mut bed = Bed::new(settings).workers(workers).steering(Steering::Random);
            let mut externals: HashSet<SocketAddrV4> =
                (0..3).filter_map(|n| try_udp_to(&mut bed, new_subscriber(n), at(E1, 443))).collect();
            assert_eq!(externals.len(), 3, "each a port of its own towards one server");
            // They are over soon, and the ports carry flows to another server meanwhile.
            let elsewhere = |bed: &mut Bed| (10..13).all(|n| try_udp_to(bed, new_subscriber(n), at(E2, 443)).is_some());
            let mut waited = 0;
            while bed.sessions().iter().any(|session| session.remote == Endpoint::new(E1, 443)) {
                assert!(elsewhere(&mut bed));
                bed.advance_secs(1);
                waited += 1;
                assert!(waited < 60, "short timers");
            }
            let least = if filtered { 0 } else { seconds.saturating_sub(2) };
            let mut paused = 0;
            while try_udp_to(&mut bed, new_subscriber(20), at(E1, 443)).is_none() {
                assert!(elsewhere(&mut bed), "towards others the same ports serve");
                assert!(externals.iter().all(|external| late(&mut bed, *external) == 0));
                bed.advance_secs(1);
                paused += 1;
                assert!(paused <= seconds + 3, "no longer than it has to");
            }
            assert!(paused >= least, "{paused} of {seconds} s, at once: {filtered}");
            externals.clear();
            bed.run_out();
        }
    }
}

/// A connection that both sides closed has been away long enough.
#[test]
fn a_five_tuple_of_a_closed_connection_needs_no_rest() {
    covers!("6888-REQ-8a");
    for (tcp_closed, free_at_once) in [(true, true), (false, false)] {
        let settings = few_ports(1).endpoint_dependent(Prefix::ALL, (443, 443));
        let mut bed = Bed::new(with_delay(settings, 120, ReuseAtOnce { tcp_closed, filtered: false }));
        let external = bed.connect(at(I1, 5_000), at(E1, 443));
        let fin = Flags::FIN.union(Flags::ACK);
        bed.inside(&build::tcp(at(I1, 5_000), at(E1, 443), fin).sequence(1_001).acknowledgment(5_001).build());
        bed.outside(&build::tcp(at(E1, 443), external, fin).sequence(5_001).acknowledgment(1_002).build());
        bed.take_inside();
        bed.take_outside();
        bed.advance_secs(241);
        assert!(bed.sessions().is_empty());
        bed.inside(&build::tcp(at(I2, 5_000), at(E1, 443), Flags::SYN).sequence(1).build());
        let next = bed.take_outside().first().map(|packet| source(packet));
        assert_eq!(next, free_at_once.then_some(external));
        bed.take_inside();
    }
}

/// No subscriber is refused for held ports where the table of flows is full: those held the longest
/// are released.
#[test]
fn held_ports_are_released_when_the_table_of_flows_is_full() {
    let mut settings = few_ports(100).endpoint_dependent(Prefix::ALL, (443, 443)).short_timers();
    settings.limits.flows_max = 20;
    let mut bed = Bed::new(with_delay(settings, 600, NONE));
    for round in 0..10_u32 {
        let server = at(Ipv4Addr::from_bits(E1.to_bits() + round), 443);
        let opened = (0..20).filter_map(|n| try_udp_to(&mut bed, new_subscriber(round * 20 + n), server)).count();
        assert_eq!(opened, 20, "round {round}");
        assert_eq!(bed.sessions().iter().filter(|session| session.shared).count(), 20, "round {round}");
        assert_eq!(try_udp_to(&mut bed, new_subscriber(9_999), server), None, "the table is full of live ones");
        bed.advance_secs(30);
        assert!(bed.sessions().is_empty());
    }
    bed.run_out();
}

#[test]
fn how_long_and_how_many_ports_rest_is_configurable() {
    covers!("6888-REQ-8cfg");
    let wanted = with_delay(few_ports(100), 10, NONE).limits(|limits| limits.held_ports_max = 50);
    let mut bed = Bed::new(wanted);
    let open = |bed: &mut Bed, numbers: core::ops::Range<u32>| -> HashSet<SocketAddrV4> {
        numbers.filter_map(|number| try_udp(bed, new_subscriber(number))).collect()
    };
    assert_eq!(open(&mut bed, 0..100).len(), 100);
    // The sweep goes round in four seconds.
    bed.advance_secs(305);
    let counters = bed.counters();
    assert_eq!((bed.mappings().len(), bed.ports_held()), (0, 50), "no more rest than may");
    assert_eq!((counters.ports_held, counters.ports_held_short), (50, 50), "the others went early, and are counted");
    assert_eq!(open(&mut bed, 100..200).len(), 50, "those are given out");
    bed.advance_secs(4);
    assert_eq!(open(&mut bed, 200..300).len(), 0, "the rest of ten seconds is not over");
    bed.advance_secs(7);
    assert_eq!(bed.ports_held(), 0);
    assert_eq!(open(&mut bed, 300..400).len(), 50);
    bed.run_out();

    // None at all: the port is free when the mapping is.
    for wanted in [
        with_delay(few_ports(1), 0, NONE),
        with_delay(few_ports(1), 120, NONE).limits(|limits| limits.held_ports_max = 0),
    ] {
        let mut bed = Bed::new(wanted);
        let external = bed.open_udp(at(I1, 5_000), at(E1, 9));
        bed.advance_secs(301);
        assert_eq!(bed.ports_held(), 0);
        assert_eq!(bed.open_udp(at(I2, 5_000), at(E1, 9)), external);
    }
}

#[test]
fn each_pool_has_its_own_hold_down() {
    covers!("6888-REQ-8cfg");
    let mut wanted = with_delay(few_ports(4), 100, NONE);
    let mut second = wanted.pools[0].clone();
    second.name = "second".into();
    second.addresses = vec![Ipv4Addr::new(192, 0, 2, 77)];
    second.subscribers = vec![topology::prefix([100, 65, 0, 0], 16)];
    second.reuse_delay = Duration::from_secs(10);
    wanted.pools.push(second);
    let mut bed = Bed::new(wanted);
    for number in 0..4 {
        bed.open_udp(at(I1, 5_000 + number), at(E1, 9));
        bed.open_udp(new_subscriber(u32::from(number)), at(E1, 9));
    }
    bed.advance_secs(301);
    assert_eq!(bed.ports_held(), 8);
    bed.advance_secs(11);
    assert_eq!(bed.ports_held(), 4, "those of the second pool are back");
    bed.advance_secs(90);
    assert_eq!(bed.ports_held(), 0);
}

#[test]
fn held_ports_are_counted_apart_from_used_ones() {
    let mut bed = Bed::new(few_ports(8)).workers(2);
    let [used, held_down] = [nat::Shared::ports_used, nat::Shared::ports_held_down];
    let count = |bed: &Bed, of: fn(&nat::Shared, nat::types::AddressIndex, Protocol) -> u32| {
        of(bed.shared(), nat::types::AddressIndex(0), Protocol::Udp)
    };
    bed.open_udp(at(I1, 5_000), at(E1, 9));
    bed.open_udp(at(I2, 5_000), at(E1, 9));
    assert_eq!((count(&bed, used), count(&bed, held_down)), (2, 0));
    bed.advance_secs(250);
    assert!(try_udp(&mut bed, at(I2, 5_000)).is_some());
    bed.advance_secs(60);
    assert_eq!((count(&bed, used), count(&bed, held_down)), (2, 1), "one mapping is over, its port is held down");
    bed.run_out();
    assert_eq!((count(&bed, used), count(&bed, held_down)), (0, 0));
}
