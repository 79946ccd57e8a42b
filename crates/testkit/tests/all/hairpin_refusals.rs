//! A hairpinned packet that is refused leaves nothing behind, unless something else has a use for
//! it.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Filtering;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// A port that no host may send to.
const CLOSED: u16 = 9_999;

/// A filter denies what is sent to some of the subscribers' ports.
fn guarded(protocol: u8) -> Settings {
    let mut settings = settings();
    // As packets of a session with it look from inside.
    let matches = Match { protocol: Some(protocol), source_ports: PortRange::one(CLOSED), ..Match::ALL };
    settings.filters.push(FilterRule { matches, action: FilterAction::Deny, out: false, back: true, log: false });
    settings
}

fn beds(settings: &Settings) -> [Bed; 2] {
    [Bed::new(settings.clone()), Bed::new(settings.clone()).workers(8).steering(Steering::Wrong)]
}

fn send(bed: &mut Bed, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4) {
    bed.inside(&match protocol {
        Protocol::Tcp => build::tcp(from, to, Flags::SYN).sequence(1).mss(1_460).build(),
        _ => build::udp(from, to).payload(b"knock").build(),
    });
}

#[test]
fn what_was_made_for_a_packet_that_is_refused_is_taken_back() {
    for (protocol, number) in [(Protocol::Udp, 17), (Protocol::Tcp, 6)] {
        for bed in beds(&guarded(number)) {
            let mut bed = bed.record_events(1_000);
            send(&mut bed, protocol, at(I2, CLOSED), at(E1, 80));
            let closed = source(&bed.only_outside());
            let used = bed.ports_used();
            for n in 0..40 {
                let from = at([100, 64, 9, n].into(), 5_000);
                send(&mut bed, protocol, from, closed);
                bed.assert_silent();
                assert!(bed.mapping_of(protocol, from).is_none(), "{from} has nothing");
            }
            assert_eq!(bed.count(Verdict::DeniedByFilter), 40);
            assert_eq!((bed.ports_used(), bed.subscribers().len()), (used, 1), "nor does a port rest");
            // Nothing idled. One worker that decides about both sides makes no records at all.
            let workers = bed.shards().count();
            let events: Vec<_> = (0..workers).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect();
            let of = |kind| events.iter().filter(move |event| event.kind == kind).collect::<Vec<_>>();
            let (created, ended) = (of(EventKind::MappingCreated), of(EventKind::MappingEnded));
            assert_eq!(created.len(), ended.len() + 1, "one mapping is left, and was recorded");
            assert!(if workers == 1 { ended.is_empty() } else { (1..=40).contains(&ended.len()) }, "{ended:?}");
            assert!(ended.iter().all(|event| event.cause == Cause::RolledBack), "{ended:?}");
            // Who has a mapping keeps it, without the session.
            let from = at([100, 64, 9, 1].into(), 6_000);
            send(&mut bed, protocol, from, at(E1, 80));
            let external = source(&bed.only_outside());
            let sessions = bed.sessions().len();
            send(&mut bed, protocol, from, closed);
            bed.assert_silent();
            assert_eq!(bed.sessions().len(), sessions);
            send(&mut bed, protocol, from, at(E2, 80));
            assert_eq!(source(&bed.only_outside()), external);
            bed.run_out();
        }
    }
}

#[test]
fn a_hairpin_refused_for_resources_makes_one_record() {
    let limited = settings().filtering(Filtering::EndpointIndependent).limits(|limits| {
        limits.sessions_per_mapping_max = 1;
    });
    let mut bed = Bed::new(limited).record_events(100);
    send(&mut bed, Protocol::Tcp, at(I2, 6_000), at(E1, 9));
    let full = source(&bed.only_outside());
    let before = bed.take_events(0, usize::MAX);
    assert_eq!(before.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::MappingCreated]);
    send(&mut bed, Protocol::Tcp, at(I1, 5_000), full);
    bed.assert_silent();
    assert!(bed.mapping_of(Protocol::Tcp, at(I1, 5_000)).is_none());
    let events = bed.take_events(0, usize::MAX);
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.subscriber)).collect();
    assert_eq!(kinds, [(EventKind::Refused, I2)], "{events:?}");
    assert_eq!(events[0].sequence, before[0].sequence + 1, "no number is missing");
    bed.run_out();
}

#[test]
fn a_mapping_survives_a_hairpin_that_the_filter_refuses() {
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&settings().filtering(filtering)) {
            let second = bed.open_udp(at(I2, 6_000), at(E1, 9));
            send(&mut bed, Protocol::Udp, at(I1, 5_000), second);
            bed.assert_silent();
            let first = bed.open_udp(at(I1, 5_000), at(E1, 9));
            send(&mut bed, Protocol::Udp, at(I2, 6_000), first);
            assert_eq!(destination(&bed.only_inside()), at(I1, 5_000), "the way is open");
            send(&mut bed, Protocol::Udp, at(I1, 5_000), second);
            assert_eq!(destination(&bed.only_inside()), at(I2, 6_000), "from both sides");
            bed.run_out();
        }
    }
}
