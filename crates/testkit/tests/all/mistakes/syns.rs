//! S10: the 6-second rule.

use nat::Duration;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::beds;

/// One address with one port, so that the external endpoint of the next mapping is known before it
/// is made.
pub(super) fn one_port() -> Settings {
    settings().addresses(&POOL[..1]).ports(10_000, 10_000)
}

#[test]
fn an_unsolicited_syn_is_answered_once_between_6_and_7_seconds() {
    covers!("S10", "5382-REQ-4");
    for mut bed in beds(&one_port()) {
        let syn = build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).mss(1460).build();
        bed.outside(&syn);
        // Retransmissions change nothing.
        bed.advance_secs(1);
        bed.outside(&syn);
        bed.advance_secs(2);
        bed.outside(&syn);
        bed.advance(Duration::from_millis(2_990));
        bed.assert_silent();
        bed.advance(Duration::from_millis(1_010));
        let error = bed.only_outside();
        assert!(is_icmp(&error, 3, 3));
        assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_OUTSIDE, &E1));
        assert!(syn.starts_with(quote(&error)) && quote(&error).len() >= 28);
        bed.advance_secs(30);
        bed.assert_silent();
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn a_matching_syn_from_inside_drops_the_held_one() {
    covers!("S10", "5382-REQ-4");
    for mut bed in beds(&one_port()) {
        bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).build());
        bed.advance_secs(3);
        bed.assert_silent();
        assert_eq!(bed.open_tcp(at(I1, 5000), at(E1, 80)), at(POOL[0], 10_000));
        bed.advance_secs(60);
        bed.assert_silent();
        assert_eq!(bed.counters().originated, 0);
        // The retransmitted SYN of the other side is now a simultaneous open.
        bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).sequence(7).build());
        assert_eq!(destination(&bed.only_inside()), at(I1, 5000));
    }
}

#[test]
fn a_syn_that_a_filter_refuses_is_held_like_one_without_mapping() {
    covers!("S10", "5382-REQ-4");
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for mut bed in beds(&one_port().filtering(filtering)) {
            let external = bed.open_tcp(at(I1, 5000), at(E2, 80));
            let syn = build::tcp(at(E1, 80), external, Flags::SYN).sequence(7).build();
            bed.outside(&syn);
            bed.advance(Duration::from_millis(5_990));
            bed.assert_silent();
            bed.advance(Duration::from_millis(1_010));
            assert!(is_icmp(&bed.only_outside(), 3, 3));
            // And forgotten when the inside opens to the same peer in time.
            bed.outside(&syn);
            bed.advance_secs(3);
            assert_eq!(bed.open_tcp(at(I1, 5000), at(E1, 80)), external);
            bed.advance_secs(30);
            bed.assert_silent();
        }
    }
}

#[test]
fn a_flood_of_syns_makes_bounded_state_no_storm_and_no_reset() {
    covers!("S10", "S11", "5382-REQ-4");
    for workers in [1, 4] {
        let mut bed = Bed::new(settings()).workers(workers).steering(Steering::Random);
        let mut answers = Vec::new();
        for round in 0..100_u32 {
            let syns: Vec<_> = (0..1_000_u32)
                .map(|number| {
                    let from = at((0xc612_0000 + round * 1_000 + number).into(), 80);
                    build::tcp(from, at(POOL[0], 2_000 + number as u16), Flags::SYN).sequence(round).build()
                })
                .collect();
            bed.burst(Side::Outside, &syns);
            bed.advance(Duration::from_millis(100));
            answers.extend(bed.take_outside());
        }
        bed.advance_secs(10);
        answers.extend(bed.take_outside());
        assert_eq!(bed.take_inside(), Vec::<Vec<u8>>::new());
        assert!(answers.iter().all(|answer| is_icmp(answer, 3, 3)), "no RST, nothing else");
        // The store holds 64 on each worker, and is emptied every 6 s.
        let bound = settings().limits.unsolicited_syns_max as usize * workers * 3;
        assert!((1..=bound).contains(&answers.len()), "{} answers", answers.len());
        assert_eq!(bed.count(Verdict::UnsolicitedSyn), 100_000);
        assert!(bed.counters().unsolicited_syns_overflow >= 100_000 - bound as u64);
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn where_policy_forbids_it_an_unsolicited_syn_is_not_answered() {
    covers!("S10", "5382-REQ-4a");
    let mut wanted = settings();
    wanted.answer_unsolicited_syn = false;
    let mut bed = Bed::new(wanted);
    bed.outside(&build::tcp(at(E1, 80), at(POOL[0], 10_000), Flags::SYN).build());
    bed.advance_secs(30);
    bed.assert_silent();
}
