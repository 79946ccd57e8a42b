//! The experiments of Quick NAT: frame sizes, cores, the rule search.

use super::Options;
use super::SHARED_CORES;
use super::axis;
use super::paper;
use crate::study::extract::Rate;
use crate::study::extract::number;
use crate::study::extract::rate;
use crate::study::extract::rates;
use crate::study::extract::shown;
use crate::study::plan::ChartPlan;
use crate::study::plan::Made;
use crate::study::plan::Placed;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use crate::study::record::Paper;
use chart::Point;

const RULES: u32 = 1_000;
const FLOWS: u32 = 8_000;

fn quick_nat() -> Paper {
    paper(
        "Li Junfeng, Quick NAT: High Performance NAT System on Commodity Platforms",
        "Intel Core i7-5930K 3.5 GHz, 6 cores, Intel 82599ES 10 Gbit/s, DPDK 16.11, Linux 4.4",
    )
}

fn throughput(options: &Options, device: &str, more: &[(&str, String)]) -> Vec<String> {
    let mut all = vec![("--sessions", FLOWS.to_string()), ("--rules", RULES.to_string())];
    // One rule after the other, as the paper's Netfilter had them.
    all.extend((device == "netfilter").then(|| ("--rules-kind", "list".to_owned())));
    all.extend_from_slice(more);
    options.lab("throughput", device, &all)
}

/// The rate of this device with this x.
fn rate_at(made: &[Made<'_>], series: &str, x: f64) -> Option<Rate> {
    made.iter().find(|made| made.run.series == series && made.run.x == x).and_then(rate)
}

pub(super) fn sizes(options: &Options) -> Plan {
    let arguments = |device: &str, size: u32| throughput(options, device, &[("--frame-bytes", size.to_string())]);
    Plan {
        question: "How much do Natrix and Netfilter pass at each frame size, with a thousand rules?",
        paper: quick_nat(),
        method: format!(
            "Highest rate without a lost frame, both ways together, over {FLOWS} established connections with {RULES} rules (RFC 9693 §4.6). \
             Netfilter has its rules one after the other, as in the paper."
        ),
        limits: SHARED_CORES.to_owned(),
        runs: options.each(options.sizes(), 6, arguments).collect(),
        charts: vec![
            ChartPlan {
                title: "Throughput",
                x: axis("frame, bytes", false),
                y: axis("million frames a second", false),
                points: Box::new(|made| rates(made, 1e-6)),
            },
            ChartPlan {
                title: "Throughput on the line",
                x: axis("frame, bytes", false),
                y: axis("Gbit/s, with gaps", false),
                points: Box::new(|made| {
                    // 20 bytes of preamble and gap a frame.
                    rates(made, (made.run.x + 20.0) * 8e-9)
                }),
            },
        ],
        tables: vec![TablePlan {
            title: "Beside the paper: times Netfilter's throughput",
            columns: &["frame, bytes", "paper", "here"],
            rows: Box::new(|made| {
                let mut sizes: Vec<f64> = made.iter().map(|made| made.run.x).collect();
                sizes.dedup();
                let row = |size: f64| {
                    let ratio = Rate::times(rate_at(made, "natrix", size), rate_at(made, "netfilter", size));
                    // Its figure 12 is drawn; these are its words.
                    let paper = match size {
                        64.0 => "8.6 (with 6 cores); Quick NAT close to line rate (14.88 Mpps)",
                        800.0.. => "Netfilter up to 9.3 Gbit/s of 10; Quick NAT close to line rate",
                        _ => "Netfilter a fraction of line rate at small sizes; Quick NAT close to it",
                    };
                    vec![size.to_string(), paper.to_owned(), ratio]
                };
                sizes.into_iter().map(row).collect()
            }),
        }],
    }
}

pub(super) fn cores(options: &Options) -> Plan {
    let counts: Vec<u32> = (1..=options.device_cpus.len() as u32).collect();
    let arguments = |device: &str, count: u32| {
        let cpus: Vec<String> = options.device_cpus.iter().take(count as usize).map(usize::to_string).collect();
        throughput(options, device, &[("--frame-bytes", "64".to_owned()), ("--device-cpus", cpus.join(","))])
    };
    let engine = Run {
        series: "natrix, tables only".to_owned(),
        x: 2.0,
        arguments: ["bench", "scaling", "--workers", "2", "--arrival", "steered", "--seconds", "1", "--seed"]
            .map(str::to_owned)
            .into_iter()
            .chain([options.seed.to_string()])
            .collect(),
        seconds: 8,
        load: None,
    };
    let mut runs: Vec<Run> = options.each(&counts, 6, arguments).collect();
    runs.push(engine);
    Plan {
        question: "What does each further core bring?",
        paper: quick_nat(),
        method: format!(
            "Frames of 64 bytes over {FLOWS} connections with {RULES} rules, the device on 1 core and more. The line `tables only` is `natrix bench scaling`: \
             workers on packets in memory, each with sessions of its own, in turns with one worker alone."
        ),
        limits: format!("{SHARED_CORES} This machine leaves {} CPU(s) to the device.", options.device_cpus.len()),
        runs,
        charts: vec![ChartPlan {
            title: "Throughput",
            x: axis("cores of the device", false),
            y: axis("million frames a second", false),
            points: Box::new(|made| {
                if made.run.arguments[0] == "bench" {
                    let alone = number(made, "/one_worker_mpps", 1.0).map(|point| Point { x: 1.0, ..point });
                    let together = number(made, "/mpps", 1.0);
                    let line = |point: Point| (made.run.series.clone(), point);
                    alone.into_iter().chain(together).map(line).collect()
                } else {
                    rates(made, 1e-6)
                }
            }),
        }],
        tables: vec![TablePlan {
            title: "Beside the paper",
            columns: &["what", "paper", "here"],
            rows: Box::new(|made| {
                let engine = made.iter().find(|made| made.run.arguments[0] == "bench");
                let ratio = engine.and_then(|made| number(made, "/ratio", 1.0)).map(|point| point.y);
                let best = |device: &str| {
                    let of_device = made.iter().filter(|made| made.run.series == device);
                    of_device.filter_map(rate).reduce(|a, b| if b.value > a.value { b } else { a })
                };
                let times = Rate::times(best("natrix"), best("netfilter"));
                vec![
                    vec![
                        "two workers beside one, packets in memory".to_owned(),
                        "linear".to_owned(),
                        shown(ratio, "times"),
                    ],
                    vec!["times Netfilter, with all cores there are".to_owned(), "8.6".to_owned(), times],
                ]
            }),
        }],
    }
}

pub(super) fn rules(options: &Options) -> Plan {
    let counts: &[u32] =
        if options.quick { &[100, 10_000, 1_000_000] } else { &[100, 1_000, 10_000, 100_000, 1_000_000] };
    let run = |rules: &u32| Run {
        series: "natrix".to_owned(),
        x: f64::from(*rules),
        arguments: vec![
            "bench".to_owned(),
            "rules".to_owned(),
            "--rules".to_owned(),
            rules.to_string(),
            "--seconds".to_owned(),
            if options.quick { "0.5" } else { "3" }.to_owned(),
            "--seed".to_owned(),
            options.seed.to_string(),
        ],
        seconds: if *rules >= 1_000_000 { 15 } else { 4 } * if options.quick { 1 } else { 3 },
        load: None,
    };
    Plan {
        question: "Does the search for a rule depend on their number?",
        paper: quick_nat(),
        method: "Packets drawn uniformly over the rules, looked up in bursts of 64, beside a linear search for the same packets; their answers are compared."
            .to_owned(),
        limits: "Only the search: no packet is read or written.".to_owned(),
        runs: counts.iter().map(run).collect(),
        charts: vec![ChartPlan {
            title: "One search",
            x: axis("rules", true),
            y: axis("ns", true),
            points: Box::new(|made| {
                let line = |name: &str, pointer| -> Option<Placed> { Some((name.to_owned(), number(made, pointer, 1.0)?)) };
                [line("natrix", "/ns_per_lookup"), line("linear search", "/linear_ns_per_lookup")].into_iter().flatten().collect()
            }),
        }],
        tables: vec![TablePlan {
            title: "Beside the paper",
            columns: &["rules", "paper, ns", "here, ns", "linear search, ns", "load, s", "one change, ms"],
            rows: Box::new(|made| {
                let row = |made: &Made<'_>| {
                    let read = |pointer: &str| shown(number(made, pointer, 1.0).map(|point| point.y), "");
                    let paper = if made.run.x <= 10_000.0 { "43" } else { "not tried" };
                    vec![
                        made.run.x.to_string(),
                        paper.to_owned(),
                        read("/ns_per_lookup"),
                        read("/linear_ns_per_lookup"),
                        read("/load_seconds"),
                        read("/change_ms_p50"),
                    ]
                };
                made.iter().map(row).collect()
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
    fn frame_sizes_stand_beside_the_papers_two_bounds_have_no_ratio() {
        let plan = sizes(&test_options(true));
        let bound = json!({"result": {"samples": null, "at_least": 5e5}});
        let made: Vec<Made<'_>> = plan.runs.iter().map(|run| Made { run, result: &bound }).collect();
        let rows = (plan.tables[0].rows)(&made);
        assert!(rows.iter().all(|row| !row[1].is_empty() && row[2] == "not known: both are bounds"), "{rows:?}");
        assert!(rows.iter().any(|row| row[0] == "1518" && row[1].contains("9.3 Gbit/s")), "{rows:?}");
    }
}
