//! What a change of the configuration takes its place away, on an address that goes on: forwards
//! that go or move, ports that become somebody else's or nobody's. It drains, takes in nobody new
//! where the port is another's, and ends by the deadline.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use nat::Duration;
use nat::Fates;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::EventKind;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Pool;
use nat::settings::Removed;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// Where a forward leads, and where it leads afterwards.
const SERVER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 80);
const OTHER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 81);
const PORT: u16 = 8_080;
/// Seconds that orphaned mappings may drain.
const DRAIN: u64 = 60;

fn forward(protocol: Protocol, external: SocketAddrV4, inside: Ipv4Addr) -> Forward {
    Forward {
        realm: RealmId::default(),
        protocol,
        external: *external.ip(),
        ports: (external.port(), external.port()),
        inside: inside.into(),
        inside_port: PORT,
        admission: Admission::Anyone,
    }
}

/// Anyone may speak to any mapping, which makes it hardest.
fn plain() -> Settings {
    let mut settings = settings().filtering(Filtering::EndpointIndependent).limits(|limits| {
        limits.external_addresses_max = 16;
    });
    settings.reload.drain_time = Some(Duration::from_secs(DRAIN));
    settings
}

fn forwarded(inside: Ipv4Addr) -> Settings {
    let mut settings = plain();
    settings.forwards = [Protocol::Tcp, Protocol::Udp].map(|protocol| forward(protocol, open(), inside)).to_vec();
    settings
}

fn open() -> SocketAddrV4 {
    at(POOL[1], PORT)
}

fn beds(settings: &Settings) -> [Bed; 2] {
    let bed = || Bed::new(settings.clone());
    [bed(), bed().workers(4).steering(Steering::Wrong)]
}

/// The inside host that the first segment of a stranger reaches.
fn knock(bed: &mut Bed, stranger: SocketAddrV4, external: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::tcp(stranger, external, Flags::SYN).sequence(1).mss(1_460).build());
    bed.take_inside().first().map(|packet| destination(packet))
}

/// The inside host that a datagram of a stranger reaches.
fn call(bed: &mut Bed, stranger: SocketAddrV4, external: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::udp(stranger, external).payload(b"who is there").build());
    bed.take_inside().first().map(|packet| destination(packet))
}

/// A segment of a connection that exists goes in, and one comes out.
fn talks_on(bed: &mut Bed, inside: SocketAddrV4, remote: SocketAddrV4, external: SocketAddrV4) -> bool {
    // Drop the errors sent to a refused stranger.
    bed.take_outside();
    bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(2).acknowledgment(10).build());
    let came = bed.take_inside().first().map(|packet| destination(packet));
    bed.inside(&build::tcp(inside, remote, Flags::ACK).sequence(10).acknowledgment(2).build());
    let went = bed.take_outside().first().map(|packet| source(packet));
    came == Some(inside) && went == Some(external)
}

/// A stranger is connected to the server and another speaks UDP with it, each through the forward.
fn begin(bed: &mut Bed) {
    let server = at(SERVER, PORT);
    assert_eq!(knock(bed, at(E1, 4_000), open()), Some(server));
    let answer = build::tcp(server, at(E1, 4_000), Flags::SYN.union(Flags::ACK)).sequence(9).acknowledgment(2);
    bed.inside(&answer.build());
    bed.take_outside();
    assert!(talks_on(bed, server, at(E1, 4_000), open()));
    assert_eq!(call(bed, at(E1, 5_000), open()), Some(server));
    assert_eq!(bed.open_udp(server, at(E1, 5_000)), open());
}

#[test]
fn a_removed_forward_opens_nothing_and_ends_by_the_deadline() {
    for next in [plain(), forwarded(OTHER)] {
        for mut bed in beds(&forwarded(SERVER)) {
            let server = at(SERVER, PORT);
            begin(&mut bed);
            let counted = bed.census(next.clone());
            assert_eq!(counted[0].mappings, Fates { drain_until: 2, ..Fates::default() });
            bed.reload(next.clone());
            for second in 0..DRAIN / 5 - 1 {
                let stranger = at(E2, 6_000 + second as u16);
                assert_eq!(knock(&mut bed, stranger, open()), None, "new ones are not let in");
                assert_eq!(call(&mut bed, stranger, open()), None);
                assert_eq!(
                    call(&mut bed, at(E1, 6_000 + second as u16), open()),
                    None,
                    "nor by an address that is known"
                );
                assert!(talks_on(&mut bed, server, at(E1, 4_000), open()), "who is there stays");
                assert_eq!(bed.open_udp(server, at(E1, 5_000)), open());
                assert_eq!(call(&mut bed, at(E1, 5_000), open()), Some(server));
                bed.advance_secs(5);
                if second == 3 {
                    // Another change does not begin the time anew.
                    bed.reload(next.clone().timers(|timers| timers.icmp = Duration::from_secs(61)));
                }
            }
            bed.advance_secs(15);
            bed.take_outside();
            assert_eq!(bed.mappings(), [], "the time is over, however much they are used");
            let leads = (!next.forwards.is_empty()).then_some(at(OTHER, PORT));
            assert_eq!(knock(&mut bed, at(E2, 7_000), open()), leads);
            assert_eq!(call(&mut bed, at(E2, 7_000), open()), leads);
            assert_ne!(bed.open_udp(server, at(E1, 5_000)), open());
            bed.run_out();
        }
    }
}

#[test]
fn a_plan_counts_forwards_that_wait_for_old_mappings() {
    let moved_port = || {
        let mut settings = forwarded(SERVER);
        settings.forwards.iter_mut().for_each(|forward| forward.inside_port = PORT + 1);
        settings
    };
    let at_once = |mut settings: Settings| {
        settings.reload.removed = Removed::End;
        settings
    };
    let until = Fates { drain_until: 2, ..Fates::default() };
    for mut bed in beds(&forwarded(SERVER)) {
        begin(&mut bed);
        for (next, expected) in [
            (forwarded(SERVER), Fates::default()),
            (plain(), Fates::default()),
            (forwarded(OTHER), until),
            (moved_port(), until),
            (at_once(moved_port()), Fates { end: 2, ..Fates::default() }),
        ] {
            assert_eq!(bed.census(next)[0].in_the_way_of_forwards, expected);
        }
        // So it is: the new port is reached when the old mapping has ended.
        bed.reload(moved_port());
        assert_eq!(call(&mut bed, at(E2, 6_000), open()), None);
        bed.advance_secs(DRAIN + 20);
        assert_eq!(call(&mut bed, at(E2, 6_000), open()), Some(at(SERVER, PORT + 1)));
        bed.run_out();
    }
}

#[test]
fn a_removed_forward_ends_at_once_if_the_settings_say_so() {
    let mut next = forwarded(OTHER);
    next.reload.removed = Removed::End;
    for mut bed in beds(&forwarded(SERVER)) {
        begin(&mut bed);
        assert_eq!(bed.census(next.clone())[0].mappings, Fates { end: 2, ..Fates::default() });
        bed.reload(next.clone());
        bed.advance_secs(6);
        assert_eq!(bed.mappings(), []);
        assert_eq!(knock(&mut bed, at(E1, 4_001), open()), Some(at(OTHER, PORT)));
        assert_eq!(call(&mut bed, at(E1, 5_000), open()), Some(at(OTHER, PORT)));
        bed.run_out();
    }
}

#[test]
fn without_a_deadline_sessions_of_a_forward_end_by_themselves() {
    let with = |inside| {
        let mut settings = forwarded(inside);
        settings.reload.drain_time = None;
        settings
    };
    for mut bed in beds(&with(SERVER)) {
        begin(&mut bed);
        assert_eq!(bed.census(with(OTHER))[0].mappings, Fates { drain: 2, ..Fates::default() });
        bed.reload(with(OTHER));
        for round in 0..10 {
            assert_eq!(call(&mut bed, at(E2, 7_000 + round), open()), None);
            bed.advance_secs(20);
        }
        bed.advance_secs(120);
        // Strangers did not keep it alive; it is the other's now.
        assert_eq!(call(&mut bed, at(E2, 7_000), open()), Some(at(OTHER, PORT)));
        assert!(talks_on(&mut bed, at(SERVER, PORT), at(E1, 4_000), open()), "the connection has its own time");
        bed.run_out();
    }
}

#[test]
fn a_forward_gets_a_port_in_use_by_the_deadline() {
    for (removed, rounds) in [(Removed::Drain, DRAIN / 5 - 1), (Removed::End, 0)] {
        for bed in beds(&plain()) {
            let mut bed = bed.record_events(1 << 10);
            let holder = at(I1, 5_000);
            let external = bed.open_udp(holder, at(E1, 9));
            let mut next = plain();
            next.reload.removed = removed;
            next.forwards = vec![forward(Protocol::Udp, external, SERVER)];
            let expected = match removed {
                Removed::Drain => Fates { drain_until: 1, ..Fates::default() },
                Removed::End => Fates { end: 1, ..Fates::default() },
            };
            assert_eq!(bed.census(next.clone())[0].mappings, expected);
            bed.reload(next.clone());
            for _ in 0..rounds {
                assert_eq!(
                    call(&mut bed, at(E2, 7_000), external),
                    None,
                    "the port is the forward's, not the holder's"
                );
                assert_eq!(bed.open_udp(holder, at(E1, 9)), external);
                assert!(bed.udp_reaches(at(E1, 9), external, holder), "the holder's mapping goes on");
                bed.inside(&build::udp(at(SERVER, PORT), at(E2, 7_000)).build());
                assert!(bed.take_outside().is_empty(), "it leaves from its own port or not at all");
                bed.take_inside();
                bed.advance_secs(5);
            }
            let refused = bed.count(Verdict::PortsExhausted);
            assert_eq!(refused, rounds);
            bed.advance_secs(15);
            assert_eq!(call(&mut bed, at(E2, 7_000), external), Some(at(SERVER, PORT)));
            assert_ne!(bed.open_udp(holder, at(E1, 9)), external);
            for worker in 0..bed.shards().count() {
                let events = bed.take_events(worker, usize::MAX);
                let exhausted = events.iter().filter(|event| event.kind == EventKind::PoolExhausted).count();
                assert_eq!(exhausted, 0, "the pool has ports in plenty");
            }
            bed.run_out();
        }
    }
}

#[test]
fn ports_out_of_the_range_drain_and_end_by_the_deadline() {
    for mut bed in beds(&plain().ports(10_000, 10_999)) {
        let holders: Vec<_> = (5_000..5_040).map(|port| at(I1, port)).collect();
        let externals: Vec<_> = holders.iter().map(|holder| bed.open_udp(*holder, at(E1, 9))).collect();
        let narrow = || plain().ports(10_500, 10_999).reserved(&[externals[0].port(), externals[1].port()]);
        let leaves = |external: &SocketAddrV4| {
            external.port() < 10_500 || [externals[0].port(), externals[1].port()].contains(&external.port())
        };
        let leaving = externals.iter().filter(|external| leaves(external)).count() as u64;
        let counted = bed.census(narrow())[0].mappings;
        assert_eq!(counted, Fates { keep: 40 - leaving, drain_until: leaving, ..Fates::default() });
        bed.reload(narrow());
        for _ in 0..DRAIN / 10 - 1 {
            for (holder, external) in holders.iter().zip(&externals) {
                assert_eq!(bed.open_udp(*holder, at(E1, 9)), *external);
                assert!(bed.udp_reaches(at(E2, 9), *external, *holder), "the pool's filter lets anyone in");
            }
            bed.advance_secs(10);
        }
        bed.reload(narrow());
        bed.advance_secs(15);
        for (holder, external) in holders.iter().zip(&externals) {
            let now = bed.open_udp(*holder, at(E1, 9));
            assert!(!leaves(&now));
            assert_eq!(now == *external, !leaves(external), "only those that have no place any more ended");
        }
        bed.run_out();
    }
}

#[test]
fn a_new_one_to_one_pool_ends_other_mappings_by_the_deadline() {
    let with = |one_to_one: bool| {
        let mut settings = plain();
        settings.pools = vec![Pool {
            name: "servers".into(),
            addresses: (64..68).map(|last| Ipv4Addr::new(203, 0, 113, last)).collect(),
            subscribers: vec![topology::prefix([100, 64, 0, 20], 30)],
            one_to_one,
            ..settings.pools[0].clone()
        }];
        settings
    };
    for mut bed in beds(&with(false)) {
        let holders: Vec<_> =
            (20..23_u8).flat_map(|host| (5_000..5_004).map(move |port| at([100, 64, 0, host].into(), port))).collect();
        let before: Vec<_> = holders.iter().map(|holder| bed.open_udp(*holder, at(E1, 9))).collect();
        let counted = bed.census(with(true))[0].mappings;
        assert_eq!(counted, Fates { drain_until: 12, ..Fates::default() }, "none has its own port on its own address");
        bed.reload(with(true));
        for (holder, external) in holders.iter().zip(&before) {
            assert_eq!(bed.open_udp(*holder, at(E1, 9)), *external);
        }
        bed.advance_secs(DRAIN - 20);
        for (holder, external) in holders.iter().zip(&before) {
            assert_eq!(bed.open_udp(*holder, at(E1, 9)), *external, "as long as there is time");
        }
        bed.advance_secs(30);
        for holder in &holders {
            let own = Ipv4Addr::new(203, 0, 113, 64 + holder.ip().octets()[3] - 20);
            assert_eq!(bed.open_udp(*holder, at(E1, 9)), at(own, holder.port()));
        }
        bed.run_out();
    }
}

#[test]
fn a_forward_on_a_draining_address_outlives_the_deadline() {
    let mut settings = forwarded(SERVER);
    settings.pools[0].draining_addresses = vec![*open().ip()];
    for workers in [1, 4] {
        let mut bed = Bed::new(forwarded(SERVER)).workers(workers).steering(Steering::Random).record_events(1 << 10);
        let server = at(SERVER, PORT);
        begin(&mut bed);
        assert_eq!(bed.census(settings.clone())[0].mappings, Fates { keep: 2, ..Fates::default() });
        bed.reload(settings.clone());
        for _ in 0..DRAIN / 5 {
            bed.advance_secs(10);
            assert!(talks_on(&mut bed, server, at(E1, 4_000), open()), "a connection goes on");
        }
        assert_eq!(call(&mut bed, at(E2, 5_000), open()), Some(server), "and others are let in");
        bed.advance_secs(10);
        assert_eq!(bed.open_udp(server, at(E2, 5_000)), open());
        let events = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect::<Vec<_>>();
        let ended = events.iter().filter(|event| event.kind == EventKind::StaticEnded).count();
        assert_eq!(ended, 0, "{events:?}");
        bed.run_out();
    }
}
