//! Where Natrix stands: beside Netfilter on the same transport and core, in one run.

use super::Options;
use super::SHARED_CORES;
use super::axis;
use super::paper;
use crate::study::extract::Lost;
use crate::study::extract::Rate;
use crate::study::extract::bytes_per_connection;
use crate::study::extract::capacity;
use crate::study::extract::delay;
use crate::study::extract::lost;
use crate::study::extract::rate;
use crate::study::extract::rates;
use crate::study::plan::ChartPlan;
use crate::study::plan::Load;
use crate::study::plan::Made;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use chart::Point;

/// Memory of the session table that both devices get, and with `--quick`: a trial makes all
/// connections it holds.
const MEMORY_MIB: u64 = 32;
const MEMORY_MIB_QUICK: u64 = 4;
/// Connections by which it is found what each takes.
const WEIGHED: u32 = 10_000;

/// Sessions with which delay and loss are measured, at a share of the rate found with as many.
const LOADED_SESSIONS: u32 = 1_000;

/// What a run asks; the x of the throughput chart is its sessions.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    Throughput(u32),
    SharedMemory,
    Cps,
    /// By real handshakes of TCP.
    TcpCps,
    /// Bytes each of them takes.
    Bytes,
    Capacity,
    HalfLoad,
    /// Natrix at half of Netfilter's highest rate.
    SameLoad,
    NinetyPercent,
}

/// A row of the table: what, and the target.
const ROWS: [(Asks, &str, &str); 11] = [
    (Asks::Throughput(1), "throughput, 64 bytes, 1 session", ""),
    (Asks::Throughput(1_000), "throughput, 64 bytes, 1 000 sessions", "2.5 times"),
    (Asks::Throughput(1_000_000), "throughput, 64 bytes, 1 M sessions", ""),
    (Asks::SharedMemory, "throughput, 64 bytes, 1 000 sessions, Natrix over shared memory", "10 times"),
    (Asks::Cps, "new connections a second", "5 times"),
    (Asks::TcpCps, "new connections a second, by handshakes of TCP", ""),
    (Asks::Bytes, "memory a connection takes, bytes", ""),
    (Asks::Capacity, "connections held in equal memory", ""),
    (Asks::HalfLoad, "delay at half of its own highest rate, 99.9th percentile, µs", ""),
    (Asks::SameLoad, "delay at half of Netfilter's highest rate, 99.9th percentile, µs", ""),
    (Asks::NinetyPercent, "lost at 90 % of the highest rate", "0 % in every repetition (Natrix)"),
];

/// Rows by their place, so that a run can say which one it is for.
fn place(asks: Asks) -> f64 {
    ROWS.iter().position(|row| row.0 == asks).unwrap_or(ROWS.len()) as f64
}

fn read(asks: Asks, made: &Made<'_>) -> Option<Rate> {
    let exact = |value: f64| Rate::exact(value, made.result);
    match asks {
        Asks::Throughput(_) | Asks::SharedMemory | Asks::Cps | Asks::TcpCps => rate(made),
        Asks::Capacity => capacity(made),
        Asks::Bytes => bytes_per_connection(made.result).map(exact),
        Asks::HalfLoad | Asks::SameLoad => delay(made, "worst_case_us").map(|point| exact(point.y)),
        // The repetition that lost most: the target is that none loses.
        Asks::NinetyPercent => lost(made.result).map(|lost| exact(lost.worst)),
    }
}

pub(super) fn plan(options: &Options) -> Plan {
    let memory_mib = if options.quick { MEMORY_MIB_QUICK } else { MEMORY_MIB };
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |device: &str, asks: Asks, test: &str, more: &[(&str, String)], seconds: u32, load| {
        runs.push(Run {
            series: device.to_owned(),
            x: place(asks),
            arguments: options.lab(test, device, more),
            seconds: if options.quick { seconds } else { seconds * 10 },
            load,
        });
        runs.len() - 1
    };
    for (sessions, seconds) in [(1_u32, 5), (1_000, 4), (1_000_000, 14)] {
        for device in &options.devices {
            let mut more = vec![("--sessions", sessions.to_string())];
            more.extend((sessions > 20_000).then(|| ("--preparation-rate", "100000".to_owned())));
            let highest = push(device, Asks::Throughput(sessions), "throughput", &more, seconds, None);
            if sessions == LOADED_SESSIONS {
                push(device, Asks::HalfLoad, "latency", &more, 2, Some(Load::Rate { run: highest, share: 0.5 }));
                push(device, Asks::NinetyPercent, "latency", &more, 2, Some(Load::Rate { run: highest, share: 0.9 }));
                let beside = options.devices.iter().filter(|other| device == "netfilter" && *other == "natrix");
                for other in beside {
                    push(other, Asks::SameLoad, "latency", &more, 2, Some(Load::Rate { run: highest, share: 0.5 }));
                }
            }
        }
    }
    for device in &options.devices {
        if device == "natrix" {
            let more = [("--transport", "memif".to_owned()), ("--sessions", "1000".to_owned())];
            push(device, Asks::SharedMemory, "throughput", &more, 9, None);
        }
        // From a rate at which a trial does not last for minutes.
        let least = || ("--rate-min", "20000".to_owned());
        let cps = [("--sessions", "50000".to_owned()), least()];
        push(device, Asks::Cps, "cps", &cps, 10, None);
        push(
            device,
            Asks::TcpCps,
            "cps",
            &[("--protocol", "tcp".to_owned()), cps[0].clone(), cps[1].clone()],
            10,
            None,
        );
        let weighed = [("--sessions", WEIGHED.to_string())];
        let run = push(device, Asks::Bytes, "teardown", &weighed, 3, None);
        push(device, Asks::Capacity, "capacity", &[least()], 20, Some(Load::Room { run, bytes: memory_mib << 20 }));
    }
    Plan {
        question: "Where does Natrix stand beside Linux Netfilter, on the same transport and core?",
        paper: paper("RFC 9693; both devices on this machine in one run", "this one"),
        method: format!(
            "Each row is one test of RFC 9693, made on both devices one after the other. Equal memory: {memory_mib} MiB, by the bytes a connection takes in this run. In \
             Netfilter: what the kernel's slabs (/proc/slabinfo: nf_conntrack, and those kmalloc sizes that grow with it) have more with {WEIGHED} connections than \
             without, for each; its hash buckets, made at boot, are not counted. In Natrix: what its configuration reserves for so many mappings more than for \
             one, for each, and a port of its pool. Each table is limited to as many as fit. Where the tester ends before the device there is no result; what had passed until then is \
             given as a bound (≥), and so is a result of 90 % of the tester's own ceiling or more; where a share of it was the load of another row, that row says of what."
        ),
        limits: SHARED_CORES.to_owned(),
        runs,
        charts: vec![ChartPlan {
            title: "Throughput, frames of 64 bytes",
            x: axis("sessions", true),
            y: axis("million frames a second", false),
            points: Box::new(|made| {
                let sessions = ROWS.iter().find_map(|(asks, ..)| match asks {
                    Asks::Throughput(sessions) if place(*asks) == made.run.x => Some(f64::from(*sessions)),
                    _ => None,
                });
                let placed =
                    |x: f64| rates(made, 1e-6).into_iter().map(move |(line, point)| (line, Point { x, ..point }));
                sessions.into_iter().flat_map(placed).collect()
            }),
        }],
        tables: vec![TablePlan {
            title: "Natrix beside Netfilter",
            columns: &["what", "natrix", "netfilter", "ratio", "target"],
            rows: Box::new(|made| {
                let row = |(asks, what, target): &(Asks, &str, &str)| {
                    let of = |device: &str| {
                        // Over shared memory only Natrix can be had; it stands beside Netfilter
                        // over virtual Ethernet.
                        let asks = match asks {
                            Asks::SharedMemory if device != "natrix" => Asks::Throughput(1_000),
                            Asks::SameLoad if device != "natrix" => Asks::HalfLoad,
                            _ => *asks,
                        };
                        let is_it = |made: &&Made<'_>| made.run.series == device && made.run.x == place(asks);
                        let result = made.iter().filter(is_it).find_map(|made| read(asks, made));
                        let why = made.iter().filter(is_it).find_map(Made::not_made);
                        // A rate that was found for another row, or a bound of it.
                        let load = match asks {
                            Asks::HalfLoad | Asks::NinetyPercent => made.iter().find(|made| {
                                made.run.series == device && made.run.x == place(Asks::Throughput(LOADED_SESSIONS))
                            }),
                            _ => None,
                        };
                        let of = match load.and_then(rate).filter(|load| load.is_least) {
                            Some(load) if result.is_some() => format!(" (of {})", Rate::shown(Some(load), "")),
                            _ => String::new(),
                        };
                        let shown = match (result, why) {
                            (None, Some(why)) => format!("no result ({why})"),
                            _ if asks == Asks::NinetyPercent => {
                                let lost = made.iter().filter(is_it).find_map(|made| lost(made.result));
                                lost.map_or_else(|| "no result".to_owned(), Lost::shown) + &of
                            }
                            _ => Rate::shown(result, "") + &of,
                        };
                        (result, shown)
                    };
                    let ((natrix, natrix_shown), (netfilter, netfilter_shown)) = (of("natrix"), of("netfilter"));
                    let ratio = match asks {
                        // What is lost may be nothing; and two delays at two rates have no ratio.
                        Asks::NinetyPercent | Asks::HalfLoad => String::new(),
                        _ => Rate::times(natrix, netfilter),
                    };
                    vec![(*what).to_owned(), natrix_shown, netfilter_shown, ratio, (*target).to_owned()]
                };
                ROWS.iter().map(row).collect()
            }),
        }],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use serde_json::json;

    use super::super::test_options;
    use super::*;
    use crate::study::plan::NOT_MADE;

    /// The row of the table for this question, where each run has the result that `result` gives
    /// it.
    fn row(asks: Asks, result: impl Fn(&Run) -> Value) -> Vec<String> {
        let plan = plan(&test_options(true));
        let results: Vec<Value> = plan.runs.iter().map(result).collect();
        let made: Vec<Made<'_>> = plan.runs.iter().zip(&results).map(|(run, result)| Made { run, result }).collect();
        (plan.tables[0].rows)(&made).swap_remove(place(asks) as usize)
    }

    #[test]
    fn a_run_that_was_not_made_has_no_figure_and_its_row_says_why() {
        let cells = row(Asks::NinetyPercent, |run| match run.load {
            Some(_) => json!({ (NOT_MADE): "run 3 has no result" }),
            None => json!({"result": {"samples": {"median": 1e5}}}),
        });
        let bound = row(Asks::NinetyPercent, |run| match run.load {
            Some(_) => json!({
                "result": {"repetitions": [{}]},
                "trials": [{"repetition": 0, "phase": "phase2", "sent": 100, "lost": 3, "void": false}],
            }),
            None if run.series == "natrix" => json!({"result": {"samples": null, "at_least": 9e5}}),
            None => json!({"result": {"samples": {"median": 1e5}}}),
        });
        assert_eq!(bound[1..4], ["3 % (of ≥ 900 k)", "3 %", ""]);
        let some = row(Asks::NinetyPercent, |run| match run.load {
            Some(_) => json!({
                "result": {"repetitions": [{}, {}, {}]},
                "trials": [
                    {"repetition": 0, "phase": "phase2", "sent": 100, "lost": 0, "void": false},
                    {"repetition": 1, "phase": "phase2", "sent": 100, "lost": 40, "void": false},
                    {"repetition": 2, "phase": "phase2", "sent": 100, "lost": 0, "void": false},
                ],
            }),
            None => json!({"result": {"samples": {"median": 1e5}}}),
        });
        assert_eq!(some[1], "median 0 %, worst 40 % of 3");
        assert_eq!(cells[1..4], ["no result (run 3 has no result)", "no result (run 3 has no result)", ""]);
    }
}
