//! The cause of each end, as the event log shows it.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use nat::Duration;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::ReloadPolicy;
use nat::settings::Removed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const FAR: SocketAddrV4 = at(E1, 443);
const HOME: SocketAddrV4 = at(I1, 5_000);

/// Causes of all ends recorded since the last call.
fn ends(bed: &mut Bed) -> Vec<Cause> {
    let events = bed.take_events(0, usize::MAX).into_iter();
    events.filter(|event| event.kind == EventKind::MappingEnded).map(|event| event.cause).collect()
}

fn segment(from: SocketAddrV4, to: SocketAddrV4, flags: Flags, sequence: u32, acknowledgment: u32) -> Vec<u8> {
    build::tcp(from, to, flags).sequence(sequence).acknowledgment(acknowledgment).build()
}

#[test]
fn unused_mappings_end_idle_and_closed_ones_end_closed() {
    let mut bed = Bed::new(settings()).record_events(1_000);
    bed.open_udp(HOME, FAR);
    bed.advance_secs(400);
    bed.sweep();
    assert_eq!(ends(&mut bed), [Cause::Idle]);
    // A SYN that nobody answers.
    bed.open_tcp(HOME, FAR);
    bed.advance_secs(400);
    bed.sweep();
    assert_eq!(ends(&mut bed), [Cause::Idle]);
    // Both sides close.
    let external = bed.connect(HOME, FAR);
    bed.inside(&build::tcp(HOME, FAR, Flags::FIN.union(Flags::ACK)).build());
    bed.outside(&build::tcp(FAR, external, Flags::FIN.union(Flags::ACK)).build());
    bed.take_outside();
    bed.take_inside();
    bed.advance_secs(400);
    bed.sweep();
    assert_eq!(ends(&mut bed), [Cause::Closed]);
    // One resets.
    bed.inside(&segment(HOME, FAR, Flags::SYN, 100, 0));
    let external = source(&bed.take_outside().pop().expect("a SYN"));
    bed.outside(&segment(FAR, external, Flags::SYN.union(Flags::ACK), 900, 101));
    bed.inside(&segment(HOME, FAR, Flags::ACK, 101, 901));
    bed.inside(&segment(HOME, FAR, Flags::RST, 101, 0));
    bed.advance_secs(400);
    bed.sweep();
    assert_eq!(ends(&mut bed), [Cause::Closed]);
}

#[test]
fn a_mapping_ends_closed_only_if_all_connections_did() {
    let mut bed = Bed::new(settings()).record_events(1_000);
    let other = at(E2, 443);
    for closes_both in [true, false] {
        for far in [FAR, other] {
            let external = bed.connect(HOME, far);
            if far == FAR || closes_both {
                bed.inside(&build::tcp(HOME, far, Flags::FIN.union(Flags::ACK)).build());
                bed.outside(&build::tcp(far, external, Flags::FIN.union(Flags::ACK)).build());
                bed.take_outside();
                bed.take_inside();
            }
        }
        bed.advance_secs(9_000);
        bed.sweep();
        assert_eq!(ends(&mut bed), [if closes_both { Cause::Closed } else { Cause::Idle }]);
    }
}

#[test]
fn ends_by_a_change_and_by_draining_have_their_own_cause() {
    for (removed, drain_time, cause) in
        [(Removed::End, None, Cause::Configuration), (Removed::Drain, Some(Duration::from_secs(30)), Cause::Drained)]
    {
        let mut first = settings().addresses(&POOL[..1]);
        first.limits.external_addresses_max = 2;
        let mut bed = Bed::new(first.clone()).record_events(1_000);
        bed.open_udp(HOME, FAR);
        let mut next = first.addresses(&POOL[1..2]);
        next.reload = ReloadPolicy { removed, drain_time };
        bed.reload(next);
        bed.advance_secs(29);
        bed.sweep();
        let before = ends(&mut bed);
        bed.advance_secs(2);
        bed.sweep();
        let after = ends(&mut bed);
        // With the change, or when time is up.
        assert_eq!(if removed == Removed::End { (before, after) } else { (after, before) }, (vec![cause], vec![]));
    }
}
