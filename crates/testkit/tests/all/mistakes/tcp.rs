//! S9: timers of RST and FIN.

use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::FIN_ACK;

#[test]
fn after_a_reset_the_same_endpoints_connect_again_at_once() {
    covers!("S9", "7857-2.2b");
    for from_inside in [true, false] {
        let mut bed = Bed::new(settings());
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.connect(inside, remote);
        if from_inside {
            bed.inside(&build::tcp(inside, remote, Flags::RST).sequence(1_001).build());
            bed.only_outside();
        } else {
            bed.outside(&build::tcp(remote, external, Flags::RST).sequence(5_001).build());
            bed.only_inside();
        }
        bed.advance_secs(1);
        assert_eq!(bed.connect(inside, remote), external);
        bed.advance_secs(3_600);
        bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"alive").build());
        assert_eq!(payload(&bed.only_inside()), b"alive");
    }
}

#[test]
fn a_reset_out_of_the_window_does_not_end_the_connection() {
    covers!("S9", "7857-2.2c");
    let mut bed = Bed::new(settings());
    let (inside, remote) = (at(I1, 5000), at(E1, 80));
    let external = bed.connect(inside, remote);
    for sequence in [0, 1, 5_001 + 0x1000_0000, 5_001 + 0x7fff_ffff, u32::MAX] {
        bed.outside(&build::tcp(remote, external, Flags::RST).sequence(sequence).build());
    }
    bed.take_inside();
    assert_eq!(bed.counters().tcp_resets_ignored, 5);
    bed.advance_secs(7_000);
    bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"alive").build());
    assert_eq!(payload(&bed.only_inside()), b"alive");
}

#[test]
fn a_half_closed_transfer_goes_on_for_hours() {
    covers!("S9", "7857-2");
    for from_inside in [true, false] {
        let mut bed = Bed::new(settings());
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.connect(inside, remote);
        if from_inside {
            bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
            bed.only_outside();
        } else {
            bed.outside(&build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_001).build());
            bed.only_inside();
        }
        // The other side sends on: every three minutes, then more rarely than any short timer.
        for pause in [180, 180, 180, 180, 600, 3_600, 7_000] {
            bed.advance_secs(pause);
            if from_inside {
                bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).payload(b"data").build());
                assert_eq!(payload(&bed.only_inside()), b"data", "after {pause} s");
            } else {
                bed.inside(&build::tcp(inside, remote, Flags::ACK).sequence(1_001).payload(b"data").build());
                assert_eq!(source(&bed.only_outside()), external, "after {pause} s");
            }
        }
    }
}

#[test]
fn retransmitted_fins_pass_for_240_s_when_the_last_ack_is_lost() {
    covers!("S9", "7857-2");
    let mut bed = Bed::new(settings());
    let (inside, remote) = (at(I1, 5000), at(E1, 80));
    let external = bed.connect(inside, remote);
    bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
    let fin = build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_002).build();
    let last_ack = build::tcp(inside, remote, Flags::ACK).sequence(1_002).acknowledgment(5_002).build();
    bed.outside(&fin);
    bed.only_outside();
    bed.only_inside();
    let mut elapsed = 0;
    for at_second in [1, 3, 7, 15, 31, 63, 127, 239] {
        bed.advance_secs(at_second - elapsed);
        elapsed = at_second;
        bed.outside(&fin);
        assert_eq!(destination(&bed.only_inside()), inside, "at {at_second} s");
        bed.inside(&last_ack);
        assert_eq!(source(&bed.only_outside()), external, "at {at_second} s");
    }
    // Also when not one packet came in between.
    let mut bed = Bed::new(settings());
    let external = bed.connect(inside, remote);
    bed.inside(&build::tcp(inside, remote, FIN_ACK).sequence(1_001).acknowledgment(5_001).build());
    let fin = build::tcp(remote, external, FIN_ACK).sequence(5_001).acknowledgment(1_002).build();
    bed.outside(&fin);
    bed.take_inside();
    bed.advance_secs(239);
    bed.outside(&fin);
    assert_eq!(destination(&bed.only_inside()), inside);
}
