#![allow(clippy::unwrap_used, reason = "tests may")]

use super::*;

fn reports(sessions: u64, ending: u64, events: &[Event]) -> Vec<Report> {
    let options = Options { sessions, ending, events: events.to_vec(), seconds: 0.02 };
    let mut reports = Vec::new();
    run(&options, &|_| {}, &mut |report| reports.push(report)).unwrap();
    reports
}

#[test]
fn each_event_happens_to_its_last_record() {
    let reports = reports(2_000, 5_001, &Event::ALL);
    let events: Vec<Event> = reports.iter().map(|report| report.event).collect();
    assert_eq!(events, Event::ALL);
    // All that is there; all ports but those of the 1000 TCP sessions; all that end.
    let records: Vec<u64> = reports.iter().map(|report| report.records).collect();
    assert!(records[0] >= 5, "each kind of change");
    assert_eq!(records[1..], [7_001, 2 * 64_512 - 1_000, 5_001]);
    let [_, dump, pool_full, expiry] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((dump.refused, expiry.refused), (0, 0));
    assert!(pool_full.refused >= pool_full.disturbed.bursts / 2, "{pool_full:?}");
    for report in &reports {
        assert!(report.undisturbed.bursts > 0 && report.undisturbed.p50_cycles > 0, "{report:?}");
        assert!(report.disturbed.p999_cycles >= report.disturbed.p50_cycles, "{report:?}");
    }
    // A page for each 64 sessions, and one that finds nothing more.
    assert!(dump.disturbed.bursts >= 7_001_u64.div_ceil(64), "{dump:?}");
}

#[test]
fn events_can_be_asked_for_one_by_one_and_happen_in_their_order() {
    let reports = reports(64, 1, &[Event::Expiry, Event::Dump]);
    assert_eq!(
        reports.iter().map(|report| (report.event, report.records)).collect::<Vec<_>>(),
        [(Event::Dump, 65), (Event::Expiry, 1)]
    );
}

#[test]
fn a_stride_comes_to_each_place_once() {
    for count in [1, 2, 3, 64, 1_000, 4_097] {
        let stride = far_stride(count);
        let mut places: Vec<u64> = (0..count).map(|step| step * stride % count).collect();
        places.sort_unstable();
        assert_eq!(places, (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn senseless_numbers_are_refused_before_anything_is_taken() {
    for (sessions, ending, seconds) in
        [(63, 1, 1.0), (64, 0, 1.0), (1 << 40, 1, 1.0), (64, u64::MAX, 1.0), (64, 1, 0.0)]
    {
        let options = Options { sessions, ending, events: Event::ALL.to_vec(), seconds };
        let error = run(&options, &|_| {}, &mut |_| {}).unwrap_err();
        assert!(matches!(error, StallsError::Option { .. }), "{error}");
    }
}
