use proptest::prelude::*;

use super::TcpState::Closing;
use super::TcpState::Established;
use super::TcpState::FinInside;
use super::TcpState::FinOutside;
use super::TcpState::OpeningInbound;
use super::TcpState::OpeningOutbound;
use super::TcpState::Transitory;
use super::*;

const FIN: Flags = Flags::FIN.union(Flags::ACK);
const SYN: Flags = Flags::SYN;
const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);
const RST: Flags = Flags::RST;
const RST_ACK: Flags = Flags::RST.union(Flags::ACK);
const DATA: Flags = Flags::PSH.union(Flags::ACK);
const ACK: Flags = Flags::ACK;

const IN: Side = Side::Inside;
const OUT: Side = Side::Outside;

/// RFC 7857 §2 figure 1, and every segment without an edge.
#[test]
fn each_edge_leads_where_rfc_7857_says() {
    let edges = [
        // Both SYNs open it, with or without ACK (RFC 5382 REQ-2a).
        (OpeningOutbound, OUT, SYN_ACK, Established),
        (OpeningOutbound, OUT, SYN, Established),
        (OpeningInbound, IN, SYN_ACK, Established),
        (OpeningInbound, IN, SYN, Established),
        (OpeningOutbound, IN, SYN, OpeningOutbound),
        (OpeningOutbound, IN, DATA, OpeningOutbound),
        (OpeningOutbound, OUT, ACK, OpeningOutbound),
        (OpeningOutbound, OUT, FIN, OpeningOutbound),
        (OpeningInbound, OUT, SYN, OpeningInbound),
        (OpeningInbound, IN, ACK, OpeningInbound),
        // A SYN-ACK may carry the FIN already.
        (OpeningOutbound, OUT, SYN_ACK.union(Flags::FIN), FinOutside),
        (OpeningInbound, IN, SYN_ACK.union(Flags::FIN), FinInside),
        (Established, IN, FIN, FinInside),
        (Established, OUT, FIN, FinOutside),
        (FinInside, IN, FIN, FinInside),
        (FinInside, OUT, FIN, Closing),
        (FinOutside, OUT, FIN, FinOutside),
        (FinOutside, IN, FIN, Closing),
        (Closing, IN, FIN, Closing),
        (Closing, OUT, FIN, Closing),
        (FinInside, OUT, DATA, FinInside),
        (FinOutside, IN, DATA, FinOutside),
        (Closing, IN, ACK, Closing),
        (Closing, OUT, DATA, Closing),
        // The host answers such SYNs by a challenge ACK (RFC 5961 §4).
        (Established, IN, SYN, Established),
        (Established, OUT, SYN, Established),
        (Established, OUT, SYN_ACK, Established),
        (FinInside, OUT, SYN, FinInside),
        // A SYN re-opens (RFC 6191); a late SYN-ACK does not.
        (Closing, IN, SYN, OpeningOutbound),
        (Closing, OUT, SYN, OpeningInbound),
        (Closing, OUT, SYN_ACK, Closing),
        (Transitory, IN, SYN, OpeningOutbound),
        (Transitory, OUT, SYN, OpeningInbound),
        (Transitory, OUT, SYN_ACK, Transitory),
        // All else revives.
        (Transitory, IN, DATA, Established),
        (Transitory, OUT, ACK, Established),
        (Transitory, IN, FIN, FinInside),
        (Transitory, OUT, FIN, FinOutside),
    ];
    for (state, from, flags, expected) in edges {
        for reset_accepted in [false, true] {
            let got = next(state, from, flags, reset_accepted);
            assert_eq!(got, expected, "{state:?} and {flags:?} from {from:?}");
        }
    }
}

#[test]
fn an_accepted_reset_only_ends_established_sessions() {
    for state in TcpState::ALL {
        for from in [IN, OUT] {
            for flags in [RST, RST_ACK, RST.union(Flags::SYN), RST.union(Flags::FIN)] {
                let expected = if state.is_established() { Transitory } else { state };
                assert_eq!(next(state, from, flags, true), expected, "{state:?} {from:?}");
                assert_eq!(next(state, from, flags, false), state, "{state:?} {from:?}");
            }
        }
    }
}

#[test]
fn half_closed_sessions_keep_the_established_timer() {
    let timeouts = Timeouts {
        tcp_opening: Duration::from_secs(5),
        tcp_established: Duration::from_secs(100),
        tcp_closing: Duration::from_secs(9),
        ..Timeouts::default()
    };
    for state in TcpState::ALL {
        let expected = match state {
            OpeningOutbound | OpeningInbound => 5,
            Established | FinInside | FinOutside => 109,
            Closing | Transitory => 9,
        };
        assert_eq!(lifetime(state, &timeouts), Duration::from_secs(expected), "{state:?}");
    }
}

#[test]
fn an_established_session_turns_transitory_when_idle() {
    let timeouts = Timeouts::default();
    let limit = timeouts.tcp_established;
    let before = Duration::from_micros(limit.as_micros() - 1);
    for state in [Established, FinInside, FinOutside] {
        assert_eq!(state.at_idle(before, &timeouts), state);
        assert_eq!(state.at_idle(limit, &timeouts), Transitory);
    }
    for state in [OpeningOutbound, OpeningInbound, Closing, Transitory] {
        assert_eq!(state.at_idle(limit, &timeouts), state);
    }
}

#[test]
fn resets_restart_the_timer_only_when_they_change_the_state() {
    assert!(restarts_timer(Established, Transitory, RST));
    assert!(!restarts_timer(Transitory, Transitory, RST));
    assert!(!restarts_timer(Established, Established, RST_ACK));
    assert!(!restarts_timer(OpeningInbound, OpeningInbound, RST_ACK));
    assert!(restarts_timer(Established, Established, DATA));
}

#[test]
fn state_numbers_survive_storage() {
    for state in TcpState::ALL {
        assert_eq!(TcpState::from_number(state as u8), Some(state));
    }
    assert_eq!(TcpState::from_number(7), None);
}

/// Opened by the inside with initial sequence numbers `i` and `o`, and some data each way.
fn connection(i: u32, o: u32) -> SequenceTracker {
    let mut tracker = SequenceTracker::new();
    tracker.observe(IN, i, 1, 0, SYN);
    tracker.observe(OUT, o, 1, i.wrapping_add(1), SYN_ACK);
    tracker.observe(IN, i.wrapping_add(1), 100, o.wrapping_add(1), DATA);
    tracker.observe(OUT, o.wrapping_add(1), 50_000, i.wrapping_add(101), DATA);
    tracker
}

#[test]
fn a_reset_at_the_next_number_is_plausible_from_both_sides() {
    for (i, o) in [(1_000, 2_000), (u32::MAX - 50, u32::MAX - 10_000), (0, u32::MAX)] {
        let tracker = connection(i, o);
        assert!(tracker.reset_is_plausible(IN, i.wrapping_add(101), None));
        assert!(tracker.reset_is_plausible(OUT, o.wrapping_add(50_001), None));
        // In answer to a segment: at what the inside acknowledged last.
        assert!(tracker.reset_is_plausible(OUT, o.wrapping_add(1), None));
    }
}

#[test]
fn a_reset_far_from_the_connection_is_not_plausible() {
    let (i, o) = (5_000_u32, 9_000_u32);
    let tracker = connection(i, o);
    for distance in [100_000_u32, 1 << 20, 1 << 31, u32::MAX - 100_000] {
        assert!(!tracker.reset_is_plausible(OUT, o.wrapping_add(50_001).wrapping_add(distance), None));
        assert!(!tracker.reset_is_plausible(OUT, o.wrapping_sub(distance), None));
        assert!(!tracker.reset_is_plausible(IN, i.wrapping_add(101).wrapping_add(distance), None));
    }
}

#[test]
fn blind_resets_hit_a_small_part_of_the_sequence_space() {
    let tracker = connection(1, 1);
    let step = 1_021;
    let tried = u32::MAX / step;
    let hits = (0..tried).filter(|n| tracker.reset_is_plausible(OUT, n * step, None)).count();
    // 50 000 bytes in flight and the slack on both ends, of 2^32.
    assert!(hits <= (50_000 + 2 * RESET_SLACK as usize) / step as usize + 1, "{hits} of {tried}");
}

#[test]
fn a_reset_must_acknowledge_the_syn_it_refuses() {
    let mut tracker = SequenceTracker::new();
    tracker.observe(IN, 7_000, 1, 0, SYN);
    assert!(tracker.reset_is_plausible(OUT, 0, Some(7_001)));
    assert!(!tracker.reset_is_plausible(OUT, 0, Some(900_000)));
    assert!(!tracker.reset_is_plausible(OUT, 0, None));
    assert!(!tracker.reset_is_plausible(OUT, 7_001, None));
    assert!(tracker.reset_is_plausible(IN, 7_001, None));
    assert!(!tracker.reset_is_plausible(IN, 700_001, None));
}

#[test]
fn a_reset_may_acknowledge_the_syn_with_or_without_its_data() {
    let mut tracker = SequenceTracker::new();
    tracker.observe(IN, 7_000, 1_401, 0, SYN);
    assert!(tracker.reset_is_plausible(OUT, 0, Some(8_401)));
    assert!(tracker.reset_is_plausible(OUT, 0, Some(7_001)));
}

#[test]
fn a_tracker_that_saw_nothing_believes_no_reset() {
    let tracker = SequenceTracker::new();
    for side in [IN, OUT] {
        assert!(!tracker.reset_is_plausible(side, 0, None));
        assert!(!tracker.reset_is_plausible(side, 0, Some(0)));
        assert!(!tracker.reset_is_plausible(side, 12_345, Some(1)));
    }
}

#[test]
fn a_forged_segment_far_away_does_not_move_the_range() {
    let mut tracker = connection(1_000, 2_000);
    let before = tracker;
    tracker.observe(OUT, 1_000_000_000, 1_400, 1_101, DATA);
    assert_eq!(tracker, before);
    assert!(!tracker.reset_is_plausible(OUT, 1_000_001_400, None));
}

#[test]
fn resets_leave_no_trace_in_the_tracker() {
    let mut tracker = connection(1_000, 2_000);
    let before = tracker;
    tracker.observe(OUT, 52_001, 10, 1_101, RST_ACK);
    assert_eq!(tracker, before);
}

#[test]
fn acknowledgments_catch_up_after_a_gap_larger_than_a_jump() {
    let mut tracker = connection(1_000, 2_000);
    // The outside sent megabytes another way.
    tracker.observe(IN, 1_101, 0, 5_000_000, ACK);
    assert!(tracker.reset_is_plausible(OUT, 5_000_000, None));
    assert!(!tracker.reset_is_plausible(OUT, 52_001, None), "what is acknowledged is no place for a RST");
}

proptest! {
    /// At the sender's next sequence number.
    #[test]
    fn a_true_reset_is_always_plausible(
        starts in any::<(u32, u32)>(),
        segments in prop::collection::vec((any::<bool>(), 0_u32..1_500), 0..60),
        who in any::<bool>(),
    ) {
        let mut tracker = SequenceTracker::new();
        let mut sent = [starts.0.wrapping_add(1), starts.1.wrapping_add(1)];
        tracker.observe(IN, starts.0, 1, 0, SYN);
        tracker.observe(OUT, starts.1, 1, sent[0], SYN_ACK);
        for (from_inside, length) in segments {
            let side = if from_inside { IN } else { OUT };
            tracker.observe(side, sent[side.index()], length, sent[side.index() ^ 1], DATA);
            sent[side.index()] = sent[side.index()].wrapping_add(length);
        }
        let side = if who { IN } else { OUT };
        prop_assert!(tracker.reset_is_plausible(side, sent[side.index()], None));
    }

    #[test]
    fn no_sequence_of_segments_panics(segments in prop::collection::vec(any::<(bool, u32, u32, u32, u8)>(), 0..40)) {
        let mut tracker = SequenceTracker::new();
        let mut state = OpeningOutbound;
        for (inside, sequence, length, ack, flags) in segments {
            let (side, flags) = (if inside { IN } else { OUT }, Flags(flags));
            let accepted = tracker.reset_is_plausible(side, sequence, Some(ack));
            state = next(state, side, flags, accepted);
            tracker.observe(side, sequence, length, ack, flags);
        }
    }
}
