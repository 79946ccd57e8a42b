//! Drivers, tables, and what a packet rate costs.

use serde_json::Value;

use super::Options;
use super::SHARED_CORES;
use super::axis;
use super::paper;
use crate::study::extract::AT_LEAST;
use crate::study::extract::Rate;
use crate::study::extract::rate;
use crate::study::extract::rates;
use crate::study::extract::shown;
use crate::study::plan::ChartPlan;
use crate::study::plan::Made;
use crate::study::plan::Placed;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use crate::study::prices::Price;
use crate::study::record::Paper;
use chart::Axis;
use chart::Point;

const SIZES_QUICK: [u32; 2] = [64, 1518];
const TRANSPORTS: [&str; 4] = ["af-packet", "af-xdp", "memif", "vhost-user"];

fn plotnikov() -> Paper {
    paper(
        "D. Plotnikov, Analysis of high performance software NAT design approaches",
        "Intel Core i5-4210U, 2 cores with 2 threads each",
    )
}

/// Line of a transport with so many CPUs.
fn line_of(transport: &str, cpus: usize) -> String {
    if cpus == 1 { transport.to_owned() } else { format!("{transport}, {cpus} CPUs") }
}

/// What the paper says of its best driver (DPDK) at a frame size: line rate of 10 Gbit/s from 256
/// bytes on; what is below is only drawn.
fn macsad_at(size: f64) -> String {
    match size {
        256.0.. => format!("DPDK, line rate: {:.2}", 10_000.0 / ((size + 20.0) * 8.0)),
        _ => "DPDK, below line rate".to_owned(),
    }
}

pub(super) fn drivers(options: &Options) -> Plan {
    let all_cpus = options.device_cpus.clone();
    let counts = 1..=options.device_cpus.len().max(1);
    let run = |size: u32, transport: &str, cpus: usize| {
        let mut more = vec![
            ("--transport", transport.to_owned()),
            ("--sessions", "100".to_owned()),
            ("--frame-bytes", size.to_string()),
        ];
        let numbers: Vec<String> = all_cpus.iter().take(cpus).map(usize::to_string).collect();
        more.extend((cpus > 1).then(|| ("--device-cpus", numbers.join(","))));
        Run {
            series: line_of(transport, cpus),
            x: f64::from(size),
            arguments: options.lab("throughput", "natrix", &more),
            seconds: if options.quick { 5 } else { 50 },
            load: None,
        }
    };
    let each = |size: &u32| {
        let (size, run) = (*size, &run);
        let of_size = counts.clone().flat_map(move |cpus| TRANSPORTS.map(|transport| run(size, transport, cpus)));
        of_size.collect::<Vec<_>>()
    };
    // The ends say most of a driver: with the least and the most bytes a frame.
    let sizes: &[u32] = if options.quick { &SIZES_QUICK } else { options.sizes() };
    let runs: Vec<Run> = sizes.iter().flat_map(each).collect();
    let (smallest, most) = (f64::from(sizes[0]), all_cpus.len().max(1));
    Plan {
        question: "What does the way packets come in and go out allow?",
        paper: paper(
            "NAT in P4 with MACSAD",
            "Intel Xeon E5-2620v2, 6 cores, 10 Gbit/s; Socket-mmap, Netmap and DPDK, table of 100 entries",
        ),
        method: "Throughput of Natrix over 100 established connections, with each of DPDK's drivers that need no network card.".to_owned(),
        limits: format!("{SHARED_CORES} Shared memory (memif, vhost-user) has no kernel in the path."),
        runs,
        charts: vec![
            ChartPlan {
                title: "Throughput by driver",
                x: axis("frame, bytes", false),
                y: axis("million frames a second", true),
                points: Box::new(|made| rates(made, 1e-6)),
            },
            ChartPlan {
                title: "Throughput by driver, on the line",
                x: axis("frame, bytes", false),
                y: axis("Gbit/s, with gaps", true),
                points: Box::new(|made| rates(made, (made.run.x + 20.0) * 8e-9)),
            },
        ],
        tables: vec![TablePlan {
            title: "Beside the paper: best driver, million frames a second",
            columns: &["frame, bytes", "paper", "here"],
            rows: Box::new(|made| {
                let mut sizes: Vec<f64> = made.iter().map(|made| made.run.x).collect();
                sizes.dedup();
                let row = |size: f64| vec![size.to_string(), macsad_at(size), best(made.iter().filter(|made| made.run.x == size))];
                sizes.into_iter().map(row).collect()
            }),
        }, TablePlan {
            title: "By cores of the device: best driver at the smallest frames, million frames a second",
            columns: &["cores", "paper (6 cores)", "here"],
            rows: Box::new(move |made| {
                let row = |cpus: usize| {
                    let lines = TRANSPORTS.map(|transport| line_of(transport, cpus));
                    let of_count = made.iter().filter(|made| made.run.x == smallest && lines.contains(&made.run.series));
                    vec![cpus.to_string(), "more with each core, most of all DPDK and Netmap".to_owned(), best(of_count)]
                };
                let mut rows: Vec<Vec<String>> = (1..=most).map(row).collect();
                if most == 1 {
                    rows[0][2] += " (no more: this machine has one CPU beside the tester's)";
                }
                rows
            }),
        }],
    }
}

/// The best of these, and its line.
fn best<'a>(made: impl Iterator<Item = &'a Made<'a>>) -> String {
    let rates = made.filter_map(|made| Some((rate(made)?, made.run.series.as_str())));
    let best = rates.max_by(|a, b| a.0.value.total_cmp(&b.0.value));
    best.map_or_else(|| "no result".to_owned(), |(rate, name)| format!("{name}: {}", rate.in_millions()))
}

/// The lines of `bench tables`, each an object.
fn rows_of<'a>(made: &'a Made<'_>) -> impl Iterator<Item = &'a Value> {
    let lines = made.result.as_array().map_or_else(|| core::slice::from_ref(made.result), Vec::as_slice);
    lines.iter()
}

fn by_structure(made: &Made<'_>, key: &str) -> Vec<Placed> {
    let placed = |row: &Value| {
        let y = row.get(key)?.as_f64()?;
        let point = Point { x: row.get("sessions")?.as_f64()?, y, low: y, high: y };
        Some((row.get("structure")?.as_str()?.to_owned(), point))
    };
    rows_of(made).filter_map(placed).collect()
}

pub(super) fn tables(options: &Options) -> Plan {
    let (sizes, seconds) =
        if options.quick { ("1000,65536,1000000", "0.1") } else { ("1000,10000,65536,1000000,8000000", "0.5") };
    let run = Run {
        series: "tables".to_owned(),
        x: 0.0,
        arguments: ["bench", "tables", "--sessions", sizes, "--seconds", seconds, "--seed", &options.seed.to_string()]
            .map(str::to_owned)
            .to_vec(),
        seconds: if options.quick { 25 } else { 300 },
        load: None,
    };
    Plan {
        question: "Which data structure finds a session fastest?",
        paper: plotnikov(),
        method: "The paper's own routine: packets of new sessions, then their answers, on one core, packets in memory; the same set for each structure.".to_owned(),
        limits: "Structures that slow down with their size are measured up to a size of their own.".to_owned(),
        runs: vec![run],
        charts: vec![
            ChartPlan {
                title: "Cycles a packet",
                x: axis("sessions", true),
                y: axis("TSC cycles a packet", true),
                points: Box::new(|made| by_structure(made, "tsc_cycles_per_packet")),
            },
            ChartPlan {
                title: "Packets a second",
                x: axis("sessions", true),
                y: axis("million packets a second", true),
                points: Box::new(|made| by_structure(made, "mpps")),
            },
        ],
        tables: vec![TablePlan {
            title: "Beside the paper: its target of 436 cycles a packet (5.5 Mpps) with one core",
            columns: &["structure", "sessions up to which it is met, paper", "here"],
            rows: Box::new(|made| {
                let said = |name: &str| match name {
                    "linear" => "below 2 000: three times too slow there",
                    "bst" | "rbtree" => "never: three times too slow",
                    "bucket3" => "four sessions a cell; with 2^24 cells all 65.5 M",
                    _ => "",
                };
                let placed: Vec<Placed> = made.iter().flat_map(|made| by_structure(made, "tsc_cycles_per_packet")).collect();
                let mut names: Vec<&str> = Vec::new();
                for (name, _) in &placed {
                    if !names.contains(&name.as_str()) {
                        names.push(name);
                    }
                }
                let row = |name: &str| {
                    let met = placed.iter().filter(|(other, point)| other == name && point.y <= 436.0);
                    let most = met.map(|(_, point)| point.x).reduce(f64::max);
                    vec![name.to_owned(), said(name).to_owned(), most.map_or("at no size tried".to_owned(), |most| shown(Some(most), ""))]
                };
                names.into_iter().map(row).collect()
            }),
        }],
    }
}

pub(super) fn cost(options: &Options) -> Plan {
    let run = |transport: &str| Run {
        series: transport.to_owned(),
        x: 0.0,
        arguments: options.lab(
            "throughput",
            "natrix",
            &[
                ("--transport", transport.to_owned()),
                // As in the comparison: it is measured once.
                ("--sessions", "1000".to_owned()),
            ],
        ),
        seconds: if options.quick { 5 } else { 50 },
        load: None,
    };
    let measured: Vec<&Price> = options.prices.iter().filter(|price| price.mpps.is_none()).collect();
    let own: Vec<String> =
        measured.iter().map(|price| format!("{} {} at {} USD", price.maker, price.model, price.price_usd)).collect();
    let transports = ["memif", options.transport.as_str()];
    let mut names: Vec<String> = options
        .prices
        .iter()
        .filter(|price| price.mpps.is_some())
        .map(|price| format!("{} {}", price.maker, price.model))
        .collect();
    names.extend(measured.iter().flat_map(|price| transports.map(|transport| measured_name(price, transport))));
    let (prices, of_table) = (options.prices.clone(), options.prices.clone());
    Plan {
        question: "How many packets a second does a thousand dollars buy?",
        paper: plotnikov(),
        method: format!(
            "Rates of routers are those of their makers, prices those of the list (--prices). Natrix: throughput at 64 bytes of one core of this machine, over shared \
             memory and over virtual Ethernet, set beside the price of: {}.",
            if own.is_empty() { "nothing in the list".to_owned() } else { own.join(", ") }
        ),
        limits: "The computer whose price is used is not the one measured. Prices of 2015; a router's rate is with its firewall on, which the paper took for NAT.".to_owned(),
        runs: vec![run("memif"), run(&options.transport)],
        charts: vec![ChartPlan {
            title: "Million packets a second for 1 000 USD",
            x: Axis { label: String::new(), logarithmic: false, names: names.clone() },
            y: axis("Mpps for 1 000 USD", true),
            points: Box::new(move |made| {
                let bars = bars(&prices, made);
                let place = |name: &str| names.iter().position(|other| other == name).unwrap_or_default() as f64;
                let placed = |(name, rate, price): (String, Rate, f64)| {
                    let y = rate.value * 1e-6 / price * 1e3;
                    let line = if rate.is_least { AT_LEAST } else { "Mpps for 1 000 USD" };
                    (line.to_owned(), Point::single(place(&name), y))
                };
                bars.into_iter().map(placed).collect()
            }),
        }],
        tables: vec![TablePlan {
            title: "Million packets a second for 1 000 USD, the best first",
            columns: &["device", "Mpps", "price, USD", "Mpps for 1 000 USD"],
            rows: Box::new(move |made| {
                let mut all: Vec<_> = made.iter().flat_map(|made| bars(&of_table, made)).collect();
                // Each result comes with the whole price list.
                all.sort_by(|a, b| a.0.cmp(&b.0));
                all.dedup_by(|a, b| a.0 == b.0);
                all.sort_by(|a, b| (b.1.value / b.2).total_cmp(&(a.1.value / a.2)));
                let row = |(name, rate, price): (String, Rate, f64)| {
                    let for_thousand = rate.value * 1e-6 / price * 1e3;
                    vec![name, rate.in_millions(), price.to_string(), format!("{}{for_thousand:.3}", rate.sign())]
                };
                all.into_iter().map(row).collect()
            }),
        }],
    }
}

/// A device of the list that is this Natrix, with packets coming in this way.
fn measured_name(price: &Price, transport: &str) -> String {
    format!("{} ({transport}), {}", price.maker, price.model)
}

/// Name, rate and price: of what is measured as this run says, of the rest as the list says.
fn bars(prices: &[Price], made: &Made<'_>) -> Vec<(String, Rate, f64)> {
    let bar = |price: &Price| match price.mpps {
        Some(mpps) => {
            let rate = Rate { value: mpps * 1e6, is_least: false, is_disturbed: false };
            Some((format!("{} {}", price.maker, price.model), rate, price.price_usd))
        }
        None => Some((measured_name(price, &made.run.series), rate(made)?, price.price_usd)),
    };
    prices.iter().filter_map(bar).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_options;
    use super::*;

    #[test]
    fn drivers_are_measured_with_each_number_of_cores() {
        let result = json!({"result": {"samples": {"median": 6e5, "p1": 6e5, "p99": 6e5}}});
        let rows = |cpus: &[usize], table: usize| {
            let plan = drivers(&Options { device_cpus: cpus.to_vec(), ..test_options(true) });
            let made: Vec<Made<'_>> = plan.runs.iter().map(|run| Made { run, result: &result }).collect();
            (plan.tables[table].rows)(&made)
        };
        let one = rows(&[1], 1);
        assert_eq!(one.len(), 1);
        assert!(one[0][2].contains("0.60 (no more: this machine has one CPU"), "{one:?}");
        let three = rows(&[1, 2, 3], 1);
        assert_eq!(three.len(), 3);
        assert!(three[2][0] == "3" && three[2][2].contains(", 3 CPUs: 0.60"), "{three:?}");
        let paper: Vec<String> = rows(&[1], 0).into_iter().map(|mut row| row.swap_remove(1)).collect();
        assert_eq!(paper, ["DPDK, below line rate", "DPDK, line rate: 0.81"]);
        assert_eq!(macsad_at(256.0), "DPDK, line rate: 4.53");
    }

    #[test]
    fn each_device_of_the_price_list_is_there_once() {
        let plan = cost(&test_options(true));
        let results = [
            json!({"result": {"samples": null, "at_least": 5e6}}),
            json!({"result": {"samples": {"median": 6e5, "p1": 6e5, "p99": 6e5}}}),
        ];
        let made: Vec<Made<'_>> = plan.runs.iter().zip(&results).map(|(run, result)| Made { run, result }).collect();
        let rows = (plan.tables[0].rows)(&made);
        let mut names: Vec<&String> = rows.iter().map(|row| &row[0]).collect();
        assert!(rows[0][0].contains("memif") && rows[0][1] == "≥ 5.00", "{:?}", rows[0]);
        names.sort();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(all, Price::of_the_paper().len() + 1, "Natrix stands there with either transport");
    }
}
