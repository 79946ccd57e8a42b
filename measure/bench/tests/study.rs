//! The study of data structures, as `natrix bench tables` runs it.
//!
//! Also run without the feature `dpdk`, where one structure is left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use bench::tables::Kind;
use bench::tables::Notice;
use bench::tables::Options;
use bench::tables::run;

#[test]
fn the_study_has_a_row_for_each_structure_and_size() {
    let (structures, sessions) = (Kind::STUDY.to_vec(), vec![200, 1_000]);
    let options = Options { structures, sessions, threads: 1, load: 1, seconds: 0.0, seed: 1 };
    let mut notices = Vec::new();
    let mut seen = 0;
    let rows = run(&options, |notice| notices.push(notice), |_| seen += 1).unwrap();
    let measured: Vec<_> = rows.iter().map(|row| (row.structure, row.sessions)).collect();
    let built: Vec<Kind> =
        Kind::STUDY.into_iter().filter(|kind| cfg!(feature = "dpdk") || *kind != Kind::DpdkHash).collect();
    let expected: Vec<_> = [200, 1_000].iter().flat_map(|size| built.iter().map(move |kind| (*kind, *size))).collect();
    assert_eq!((measured, seen), (expected, rows.len()));
    for row in &rows {
        assert!(row.tsc_cycles_per_packet > 0.0 && row.mpps > 0.0 && row.bytes_per_session > 16.0, "{row:?}");
        let mean = (row.new_cycles_per_packet + row.answered_cycles_per_packet) / 2.0;
        assert!(mean > 0.0 && row.threads == 1, "{row:?}");
    }
    assert_eq!(notices.contains(&Notice::NoDpdk), !cfg!(feature = "dpdk"));
}
