#![allow(clippy::unwrap_used, reason = "tests may")]

use super::*;

fn options(arrivals: &[Arrival]) -> Options {
    Options { sessions: 500, workers: 2, arrivals: arrivals.to_vec(), seconds: 0.02, seed: 1 }
}

/// A team on whatever cores there are: sharing one costs time, and changes nothing else.
fn team(workers: usize) -> (Team, Vec<CoreId>) {
    let hz = tsc::frequency_hz(20);
    let options = options(&[]);
    let mut team = Team::new(settings(&options, workers), workers, &options, hz).unwrap();
    team.establish().unwrap();
    let cores = core_affinity::get_core_ids().unwrap();
    (team, cores.into_iter().cycle().take(workers).collect())
}

#[test]
fn steered_packets_pass_no_ring() {
    let (mut team, cores) = team(2);
    let turn = team.turn(Arrival::Steered, 0.01, &cores).unwrap();
    assert!(turn.packets() > 0.0 && turn.handed_off_share() == 0.0);
}

#[test]
fn packets_from_outside_at_the_wrong_worker_pass_a_ring() {
    let (mut team, cores) = team(3);
    let turn = team.turn(Arrival::Handoff, 0.05, &cores).unwrap();
    assert!(turn.packets() > 0.0 && turn.handed_off_share() > 0.0);
    // Over the whole turn, the packets still on their way at its end included.
    for member in &team.members {
        let counters = member.worker.counters();
        let inbound = counters.of(nat::Verdict::Inbound);
        // The answers of the servers were steered.
        assert_eq!(counters.taken_over, inbound - team.flows[member.worker.id().index()].len() as u64);
    }
}

#[test]
fn a_report_is_made_of_the_medians_of_its_turns() {
    let turn = |packets, cycles| Turn { shares: vec![Share { packets, cycles, handed_off: 0 }], wall_seconds: 1.0 };
    let turns = [(100, 190), (100, 50), (100, 200)].map(|(one, all)| (turn(one, 1e3), turn(all, 1e3)));
    let report = report(&options(&[]), Arrival::Steered, &turns, 1e9);
    assert!((report.ratio - 1.9).abs() < 1e-9 && (report.ratio_min - 0.5).abs() < 1e-9, "{report:?}");
    assert!((report.one_worker_mpps - 100.0).abs() < 1e-9 && (report.mpps - 190.0).abs() < 1e-9, "{report:?}");
    assert!((report.cycles_per_packet - 1e3 / 190.0).abs() < 1e-9, "{report:?}");
}

#[test]
fn senseless_numbers_are_refused_before_anything_is_taken() {
    for (workers, sessions, seconds) in
        [(1, 500, 1.0), (65, 8_000, 1.0), (2, 127, 1.0), (2, u64::MAX, 1.0), (2, 500, -1.0)]
    {
        let options = Options { workers, sessions, seconds, ..options(&Arrival::ALL) };
        assert!(matches!(check(&options, 64), Err(ScalingError::Option { .. })));
    }
    assert!(matches!(check(&options(&Arrival::ALL), 1), Err(ScalingError::Option { what: "--workers", .. })));
}
