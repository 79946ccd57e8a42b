//! A hairpinned packet that is refused leaves nothing behind, unless something else has a use for it.

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

/// Whom nobody may speak to.
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
            // Nothing idled.
            let events: Vec<_> =
                (0..bed.shards().count()).flat_map(|worker| bed.take_events(worker, usize::MAX)).collect();
            let ended: Vec<_> = events.iter().filter(|event| event.kind == EventKind::MappingEnded).collect();
            assert_eq!(ended.len(), 40);
            assert!(ended.iter().all(|event| event.cause == Cause::TakenBack), "{ended:?}");
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
fn who_opens_the_way_for_somebody_who_does_not_let_him_in_yet_keeps_it() {
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
