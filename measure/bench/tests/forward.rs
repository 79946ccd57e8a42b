//! The benchmark of the whole path, short: that packets are translated on every driver, not how
//! fast.

#![cfg(feature = "dpdk")]

use bench::forward::Driver;
use bench::forward::ForwardError;
use bench::forward::Options;
use bench::forward::run;

// One test, for DPDK starts once per process.
#[test]
fn packets_are_translated_on_every_driver() {
    const SESSIONS: u64 = 1_000;
    let options = |sessions, seconds| Options {
        drivers: Driver::ALL.to_vec(),
        sessions,
        seconds,
        testpmd: Some("dpdk-testpmd-of-nowhere".to_owned()),
        apart: false,
    };
    for (sessions, seconds) in [(0, 1.0), (u64::MAX, 1.0), (SESSIONS, 0.0), (SESSIONS, f64::NAN)] {
        let refused = run(&options(sessions, seconds), |_| {});
        assert!(matches!(refused, Err(ForwardError::Option { .. })), "{refused:?}");
    }
    let twice = Options { drivers: vec![Driver::Ring, Driver::Null, Driver::Ring], ..options(SESSIONS, 1.0) };
    let refused = run(&twice, |_| {}).expect_err("a driver has its ports once");
    assert_eq!(refused.to_string(), "bench forward: --driver is out of range (net_ring twice); name each driver once");

    let reports = run(&options(SESSIONS, 0.05), |_| {}).expect("DPDK starts and packets are translated");
    assert_eq!(reports.iter().map(|report| report.driver).collect::<Vec<_>>(), Driver::ALL);
    for report in &reports {
        assert_eq!(report.sessions, SESSIONS);
        assert_eq!((report.natrix_dropped, report.plain_dropped), (0, 0), "{report:?}");
        // At least one burst of each port in each turn.
        assert!(report.natrix_packets >= 5 * 128 && report.plain_packets >= 5 * 128, "{report:?}");
        // Both directions of each session while it was opened, and bursts of the measurement.
        assert!(report.frames_checked >= 2 * SESSIONS + 64, "{report:?}");
        let ratio = report.natrix_mpps / report.plain_mpps;
        assert!((report.natrix_to_plain - ratio).abs() < 1e-9, "{report:?}");
        assert_eq!((report.testpmd_mpps, report.natrix_to_testpmd), (None, None));
        assert_eq!(
            report.testpmd_reason.as_deref(),
            Some("dpdk-testpmd-of-nowhere is not installed; apt-get install dpdk-dev")
        );
    }
}
