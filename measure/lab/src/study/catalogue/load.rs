//! Loss and delay of a device that serves a steady load: against sessions, frame sizes and packet
//! filters.

use super::Options;
use super::SHARED_CORES;
use super::axis;
use super::paper;
use crate::study::extract::Lost;
use crate::study::extract::delay;
use crate::study::extract::losses;
use crate::study::extract::lost;
use crate::study::extract::lost_at;
use crate::study::extract::on_its_line;
use crate::study::plan::ChartPlan;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use crate::study::record::Paper;
use chart::Axis;

/// Frames a second, both ways together.
const RATE: u32 = 20_000;
/// Connections are made so fast where there are many of them.
const PREPARATION_RATE: u32 = 50_000;
/// What the paper sent at once.
const SESSIONS: u32 = 2_000;

fn hayashi() -> Paper {
    paper(
        "Hayashi Yu-ichi, NAT Router Performance Evaluation",
        "UltraSPARC III with ipchains and PowerPC 405GP 200 MHz with iptables, 100 Mbit/s",
    )
}

/// Three charts: lost, typical delay, worst delay.
fn charts(x: &Axis) -> Vec<ChartPlan> {
    vec![
        ChartPlan { title: "Frames lost", x: x.clone(), y: axis("per cent", false), points: Box::new(losses) },
        ChartPlan {
            title: "Delay, typical (median of frames)",
            x: x.clone(),
            y: axis("µs", true),
            points: Box::new(|made| on_its_line(made, delay(made, "typical_us"))),
        },
        ChartPlan {
            title: "Delay, worst case (99.9th percentile of frames)",
            x: x.clone(),
            y: axis("µs", true),
            points: Box::new(|made| on_its_line(made, delay(made, "worst_case_us"))),
        },
    ]
}

fn method() -> String {
    format!(
        "{RATE} frames a second over established connections, both ways together, each stamped and checked; lost is what did not come back within the trial \
         and its grace time (RFC 8219 §7.2, §7.4): of the repetitions the median, and the worst where it is another. Without loss is what lost nothing in any of them. Delays: median, 1st \
         and 99th percentile of the repetitions."
    )
}

fn preparation(sessions: u32) -> String {
    // Up to a second's worth the default rate is fast enough.
    if sessions > RATE { PREPARATION_RATE } else { RATE }.to_string()
}

pub(super) fn sessions(options: &Options) -> Plan {
    let counts: &[u32] =
        if options.quick { &[1, 1_000, 100_000] } else { &[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000] };
    let arguments = |device: &str, sessions: u32| {
        let more = [
            ("--rate", RATE.to_string()),
            ("--sessions", sessions.to_string()),
            ("--preparation-rate", preparation(sessions)),
        ];
        options.lab("latency", device, &more)
    };
    Plan {
        question: "Do many sessions at once cost packets or time?",
        paper: hayashi(),
        method: method(),
        limits: format!(
            "{SHARED_CORES} Frames have 64 bytes, and go at one rate; the paper's datagrams had 100 bytes of payload, sent at once (its table 5)."
        ),
        runs: options.each(counts, 4, arguments).collect(),
        charts: charts(&axis("sessions", true)),
        tables: vec![TablePlan {
            title: "Beside the paper",
            columns: &["what", "paper", "natrix", "netfilter"],
            rows: Box::new(|made| {
                let most = made.iter().map(|made| made.run.x).fold(0.0, f64::max);
                let here = |device| lost_at(made, device, most);
                vec![vec![
                    format!("lost with all sessions there are (paper: 4 095 and 3 974; here {most})"),
                    "none".to_owned(),
                    here("natrix"),
                    here("netfilter"),
                ]]
            }),
        }],
    }
}

pub(super) fn sizes(options: &Options) -> Plan {
    let arguments = |device: &str, size: u32| {
        let more =
            [("--rate", RATE.to_string()), ("--sessions", SESSIONS.to_string()), ("--frame-bytes", size.to_string())];
        options.lab("latency", device, &more)
    };
    let (devices, largest) = (options.devices.clone(), options.sizes().iter().copied().max().unwrap_or_default());
    Plan {
        question: "Do large packets cost packets or time?",
        paper: hayashi(),
        method: method(),
        limits: format!("{SHARED_CORES} Frames go at one rate; the paper's were sent at once."),
        runs: options.each(options.sizes(), 3, arguments).collect(),
        charts: charts(&axis("frame, bytes", false)),
        tables: vec![TablePlan {
            title: "Beside the paper: lost of large packets",
            columns: &["device", "lost"],
            rows: Box::new(move |made| {
                let mut rows = said_of([("0.01 %", "29.28 %")]);
                // The largest there is to be, whether it has a result or not.
                rows.extend(devices.iter().map(|device| {
                    let lost = lost_at(made, device, f64::from(largest));
                    vec![format!("{device}, {SESSIONS} sessions, {largest} bytes"), lost]
                }));
                rows
            }),
        }],
    }
}

/// What the paper's two devices lost.
fn said_of(values: [(&str, &str); 1]) -> Vec<Vec<String>> {
    let row = |device: &str, value: &str| vec![device.to_owned(), value.to_owned()];
    let [(sparc, blocks)] = values;
    vec![
        row("paper: UltraSPARC, ipchains, 2 000 sessions, 1 000 bytes", sparc),
        row("paper: OpenBlocks, iptables, 2 000 sessions, 1 000 bytes", blocks),
    ]
}

pub(super) fn filters(options: &Options) -> Plan {
    let counts: &[u32] = if options.quick { &[0, 10_000] } else { &[0, 1, 10, 100, 1_000, 10_000] };
    // Netfilter twice: rules one after the other, as the paper's, and as a set.
    let all: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
    let ways = |device: &str| -> &[&str] { if device == "netfilter" { &["list", "set"] } else { &[""] } };
    let runs = options.each(counts, 3, |_, _| Vec::new()).flat_map(|run| {
        let each = ways(&run.series).iter().map(|way| {
            let mut more = vec![
                ("--rate", RATE.to_string()),
                ("--sessions", SESSIONS.to_string()),
                ("--filters", run.x.to_string()),
            ];
            more.extend((!way.is_empty()).then(|| ("--rules-kind", (*way).to_owned())));
            let arguments = options.lab("latency", &run.series, &more);
            Run { series: format!("{} {way}", run.series).trim_end().to_owned(), arguments, ..run }
        });
        each.collect::<Vec<_>>()
    });
    Plan {
        question: "What do packet filters cost, up to ten thousand of them?",
        paper: hayashi(),
        method: method() + " No filter matches the traffic: each packet is compared with the whole list.",
        limits: format!(
            "{SHARED_CORES} {SESSIONS} sessions and frames of 64 bytes; the paper had all ports of its device in use, and 100 bytes of payload (its table 10)."
        ),
        runs: runs.collect(),
        charts: charts(&axis("filters", false)),
        tables: vec![TablePlan {
            title: "Beside the paper: how many filters can be had without loss",
            columns: &["device", "filters"],
            rows: Box::new(move |made| {
                let row = |device: &str, filters: String| vec![device.to_owned(), filters];
                let mut rows = vec![
                    row("paper: UltraSPARC, ipchains", "1 024".to_owned()),
                    row("paper: OpenBlocks, iptables", "4".to_owned()),
                ];
                let mut lines: Vec<&str> = made.iter().map(|made| made.run.series.as_str()).collect();
                lines.dedup();
                lines.sort_unstable();
                lines.dedup();
                for line in lines {
                    let of_line = made.iter().filter(|made| made.run.series == line);
                    let tried: Vec<(f64, Option<Lost>)> = of_line.map(|made| (made.run.x, lost(made.result))).collect();
                    rows.push(row(line, without_loss(&tried, &all)));
                }
                rows
            }),
        }],
    }
}

/// How many filters there were without loss in any repetition: of each number that was tried, or
/// was to be, what was lost where that is known.
fn without_loss(tried: &[(f64, Option<Lost>)], all: &[f64]) -> String {
    let at = |count: f64| tried.iter().find(|(other, _)| *other == count).and_then(|(_, lost)| *lost);
    let mut clean = None;
    for count in all {
        let upto = clean.map_or_else(|| "none".to_owned(), |most: f64| most.to_string());
        match at(*count) {
            Some(lost) if lost.is_none() => clean = Some(*count),
            Some(lost) => return format!("{upto} (lost with {count}: {})", lost.shown()),
            None => return format!("{upto} at least (no result with {count})"),
        }
    }
    clean.map_or_else(|| "no result".to_owned(), |most| format!("{most} (more were not tried)"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_options;
    use super::*;
    use crate::study::plan::Made;

    #[test]
    fn filters_without_a_result_do_not_count_as_filters_with_loss() {
        let all = [0.0, 100.0, 10_000.0];
        let told = |tried: &[(f64, Option<Lost>)]| without_loss(tried, &all);
        let of = |median, worst| Some(Lost { median, worst, repetitions: 5, is_disturbed: false });
        let none = of(0.0, 0.0);
        assert_eq!(told(&[(0.0, none), (100.0, none), (10_000.0, none)]), "10000 (more were not tried)");
        assert_eq!(told(&[(0.0, none), (100.0, of(1.5, 1.5))]), "0 (lost with 100: 1.5 %)");
        assert_eq!(told(&[(0.0, none), (100.0, of(0.0, 40.0))]), "0 (lost with 100: median 0 %, worst 40 % of 5)");
        assert_eq!(told(&[(0.0, none), (100.0, None)]), "0 at least (no result with 100)");
        assert_eq!(told(&[(0.0, of(2.0, 2.0))]), "none (lost with 0: 2 %)");
        assert_eq!(told(&[]), "none at least (no result with 0)");
    }

    #[test]
    fn the_loss_of_large_packets_is_not_claimed_for_smaller_ones() {
        let plan = sizes(&test_options(true));
        let result = json!({
            "result": {"repetitions": [{"lost": 10}]}, "trials": [{"repetition": 0, "phase": "phase2", "sent": 1000, "lost": 10, "void": false}],
        });
        // Of Natrix all sizes but the largest, of Netfilter all.
        let is_made = |run: &&Run| run.series == "netfilter" || run.x < 1518.0;
        let made: Vec<Made<'_>> = plan.runs.iter().filter(is_made).map(|run| Made { run, result: &result }).collect();
        let rows = (plan.tables[0].rows)(&made);
        assert_eq!(rows[2], ["natrix, 2000 sessions, 1518 bytes", "no result"]);
        assert_eq!(rows[3], ["netfilter, 2000 sessions, 1518 bytes", "1 %"]);
    }
}
