//! The table of the NFWare paper: throughput of one and of a thousand flows, new connections,
//! concurrent ones, delay.

use super::Options;
use super::SHARED_CORES;
use super::paper;
use crate::study::extract::Rate;
use crate::study::extract::capacity;
use crate::study::extract::delay;
use crate::study::extract::lost;
use crate::study::extract::rate;
use crate::study::plan::Made;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;

/// What is measured: its name, the paper's figure, the test with its options, the seconds it takes,
/// and how the result is read.
struct Row {
    what: &'static str,
    paper: &'static str,
    unit: &'static str,
    test: &'static str,
    options: &'static [(&'static str, &'static str)],
    seconds: u32,
    read: fn(&Made<'_>) -> Option<Rate>,
}

/// Typical delay, µs.
fn typical(made: &Made<'_>) -> Option<Rate> {
    delay(made, "typical_us").map(|point| Rate::exact(point.y, made.result))
}

const CAPACITY: &[(&str, &str)] =
    &[("--room", "200000"), ("--c0", "50000"), ("--capacity-error", "10000"), ("--rate-min", "20000")];
/// Each trial of this search makes all connections.
const CAPACITY_QUICK: &[(&str, &str)] =
    &[("--room", "20000"), ("--c0", "10000"), ("--capacity-error", "2000"), ("--rate-min", "20000")];

const ROWS: [Row; 7] = [
    Row {
        what: "throughput, 64 bytes, 1 flow",
        paper: "10 M, in all at most 12 M",
        unit: "frames/s",
        test: "throughput",
        options: &[("--sessions", "1")],
        seconds: 5,
        read: rate,
    },
    Row {
        what: "throughput, 64 bytes, 1 000 flows",
        paper: "6 M",
        unit: "frames/s",
        test: "throughput",
        options: &[("--sessions", "1000")],
        seconds: 5,
        read: rate,
    },
    Row {
        what: "new connections, single ports",
        paper: "0.6 M",
        unit: "/s",
        test: "cps",
        options: &[("--sessions", "50000"), ("--rate-min", "20000")],
        seconds: 10,
        read: rate,
    },
    Row {
        what: "new connections, port blocks",
        paper: "5 M",
        unit: "/s",
        test: "cps",
        options: &[("--sessions", "50000"), ("--rate-min", "20000"), ("--allocation", "blocks")],
        seconds: 10,
        read: rate,
    },
    Row {
        what: "concurrent connections in a table made for 200 000 (--quick: 20 000)",
        paper: "7.5 M in 16 GB",
        unit: "",
        test: "capacity",
        options: CAPACITY,
        seconds: 15,
        read: capacity,
    },
    Row {
        what: "delay of a connection's first packet, typical",
        paper: "80",
        unit: "µs",
        test: "latency",
        options: &[("--first-packet", ""), ("--rate", "20000"), ("--sessions", "20000")],
        seconds: 3,
        read: typical,
    },
    Row {
        what: "delay of its next packets, typical",
        paper: "40",
        unit: "µs",
        test: "latency",
        options: &[("--rate", "20000"), ("--sessions", "1000")],
        seconds: 3,
        read: typical,
    },
];

/// Whether a device has what the row is about: the kernel has no port blocks.
fn has(device: &str, row: &Row) -> bool {
    device != "netfilter" || !row.options.contains(&("--allocation", "blocks"))
}

pub(super) fn plan(options: &Options) -> Plan {
    let mut runs = Vec::new();
    for (position, row) in ROWS.iter().enumerate() {
        for device in &options.devices {
            if !has(device, row) {
                continue;
            }
            let given = if options.quick && row.test == "capacity" { CAPACITY_QUICK } else { row.options };
            let more: Vec<(&str, String)> =
                given.iter().map(|(option, value)| (*option, (*value).to_owned())).collect();
            runs.push(Run {
                series: device.clone(),
                x: position as f64,
                arguments: options.lab(row.test, device, &more),
                seconds: if options.quick { row.seconds } else { row.seconds * 10 },
                load: None,
            });
        }
    }
    Plan {
        question: "Where does a carrier's NAT in software stand today, by the figures NFWare gave of theirs?",
        paper: paper(
            "A. Shalimov et al., Virtual Carrier Grade NAT with Linux and Intel Architectures (NFWare)",
            "2 CPUs of 8 cores at 3 GHz, 16 GB, 10 Gbit/s",
        ),
        method:
            "Each row is one test of RFC 9693 on one core of the device; the paper had 16 cores and a network card."
                .to_owned(),
        limits: SHARED_CORES.to_owned(),
        runs,
        charts: Vec::new(),
        tables: vec![TablePlan {
            title: "Beside the paper",
            columns: &["what", "paper", "natrix", "netfilter"],
            rows: Box::new(|made| {
                let row = |(position, row): (usize, &Row)| {
                    let here = |device: &str| {
                        if !has(device, row) {
                            return "has none".to_owned();
                        }
                        let is_it = |made: &&Made<'_>| made.run.series == device && made.run.x == position as f64;
                        let made = made.iter().find(is_it);
                        let shown = Rate::shown(made.and_then(|made| (row.read)(made)), row.unit);
                        // A delay is that of what came. What a search lost was beyond what it
                        // found.
                        let is_delay = row.test == "latency";
                        match made.filter(|_| is_delay).and_then(|made| lost(made.result)) {
                            Some(lost) => format!("{shown}, lost: {}", lost.shown()),
                            None => shown,
                        }
                    };
                    vec![
                        row.what.to_owned(),
                        format!("{} {}", row.paper, row.unit).trim_end().to_owned(),
                        here("natrix"),
                        here("netfilter"),
                    ]
                };
                ROWS.iter().enumerate().map(row).collect()
            }),
        }],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_options;
    use super::*;

    #[test]
    fn only_delays_have_what_was_lost_beside_them() {
        // The last trial of a search for a capacity is one that had to fail.
        let trial = json!({"repetition": 0, "phase": "phase2", "sent": 21_250, "lost": 1250, "void": false});
        let capacity = json!({"result": {"samples": {"median": 2e4}, "repetitions": [{"stored": 20_000, "failed": 21_250}]}, "trials": [trial]});
        let delays = json!({"result": {"repetitions": [{"delays": [{"typical_us": 5.0}]}]}, "trials": [trial]});
        let plan = plan(&test_options(true));
        let result = |run: &Run| if run.arguments[1] == "capacity" { &capacity } else { &delays };
        let made: Vec<Made<'_>> = plan.runs.iter().map(|run| Made { run, result: result(run) }).collect();
        let rows = (plan.tables[0].rows)(&made);
        assert_eq!(rows[4][2..], ["20 k", "20 k"]);
        assert_eq!(rows[6][2..], ["5 µs, lost: 5.88 %", "5 µs, lost: 5.88 %"]);
    }

    #[test]
    fn a_row_without_a_result_or_that_a_device_cannot_have_says_so() {
        let plan = plan(&test_options(true));
        let rows = (plan.tables[0].rows)(&[]);
        assert!(rows.iter().all(|row| row[2] == "no result"), "{rows:?}");
        let of_netfilter: Vec<&str> = rows.iter().map(|row| &*row[3]).collect();
        assert_eq!(of_netfilter.iter().filter(|cell| **cell == "has none").count(), 1);
        assert_eq!(of_netfilter.iter().filter(|cell| **cell == "no result").count(), ROWS.len() - 1);
    }
}
