//! Where Natrix stands: beside Netfilter on the same transport and core, in one run.

use super::Options;
use super::SHARED_CORES;
use super::axis;
use super::paper;
use crate::study::extract::Rate;
use crate::study::extract::delay;
use crate::study::extract::lost;
use crate::study::extract::rate;
use crate::study::extract::rates;
use crate::study::plan::ChartPlan;
use crate::study::plan::Made;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use chart::Point;

/// Memory of the session table that both devices get, and with `--quick`: a trial makes all connections it holds.
const MEMORY_MIB: u64 = 32;
const MEMORY_MIB_QUICK: u64 = 4;
/// Bytes a connection takes in Netfilter: its object (256 on today's kernels), its extensions (128) and its place in the hash table.
const NETFILTER_BYTES: u64 = 256 + 128 + 8;
/// And in Natrix: mapping, session and their places (docs/performance.md).
const NATRIX_BYTES: u64 = 84;

/// What a run asks; the x of the throughput chart is its sessions.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    Throughput(u32),
    SharedMemory,
    Cps,
    /// By real handshakes of TCP.
    TcpCps,
    Capacity,
    HalfLoad,
    /// Natrix at half of Netfilter's highest rate.
    SameLoad,
    NinetyPercent,
}

/// A row of the table: what, and the target.
const ROWS: [(Asks, &str, &str); 10] = [
    (Asks::Throughput(1), "throughput, 64 bytes, 1 session", ""),
    (Asks::Throughput(1_000), "throughput, 64 bytes, 1 000 sessions", "2.5 times"),
    (Asks::Throughput(1_000_000), "throughput, 64 bytes, 1 M sessions", ""),
    (Asks::SharedMemory, "throughput, 64 bytes, 1 000 sessions, Natrix over shared memory", "10 times"),
    (Asks::Cps, "new connections a second", "5 times"),
    (Asks::TcpCps, "new connections a second, by handshakes of TCP", ""),
    (Asks::Capacity, "connections held in equal memory", ""),
    (Asks::HalfLoad, "delay at half of its own highest rate, 99.9th percentile, µs", ""),
    (Asks::SameLoad, "delay at half of Netfilter's highest rate, 99.9th percentile, µs", ""),
    (Asks::NinetyPercent, "lost at 90 % of the highest rate, %", "0 (Natrix)"),
];

/// Rows by their place, so that a run can say which one it is for.
fn place(asks: Asks) -> f64 {
    ROWS.iter().position(|row| row.0 == asks).unwrap_or(ROWS.len()) as f64
}

fn read(asks: Asks, made: &Made<'_>) -> Option<Rate> {
    let exact = |point: Option<Point>| point.map(|point| Rate { value: point.y, is_least: false });
    match asks {
        Asks::Throughput(_) | Asks::SharedMemory | Asks::Cps | Asks::TcpCps | Asks::Capacity => rate(made),
        Asks::HalfLoad | Asks::SameLoad => exact(delay(made, "worst_case_us")),
        Asks::NinetyPercent => exact(lost(made)),
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
            if sessions == 1_000 {
                push(device, Asks::HalfLoad, "latency", &more, 2, Some((highest, 0.5)));
                push(device, Asks::NinetyPercent, "latency", &more, 2, Some((highest, 0.9)));
                let beside = options.devices.iter().filter(|other| device == "netfilter" && *other == "natrix");
                for other in beside {
                    push(other, Asks::SameLoad, "latency", &more, 2, Some((highest, 0.5)));
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
        let bytes = if device == "natrix" { NATRIX_BYTES } else { NETFILTER_BYTES };
        let room = (memory_mib << 20) / bytes;
        let more = [
            least(),
            ("--room", room.to_string()),
            ("--c0", (room / 4).to_string()),
            ("--capacity-error", (room / 20).to_string()),
        ];
        push(device, Asks::Capacity, "capacity", &more, 20, None);
    }
    Plan {
        question: "Where does Natrix stand beside Linux Netfilter, on the same transport and core?",
        paper: paper("RFC 9693; both devices on this machine in one run", "this one"),
        method: format!(
            "Each row is one test of RFC 9693, made on both devices one after the other. Equal memory: {memory_mib} MiB for the table, {NATRIX_BYTES} bytes a connection \
             in Natrix, {NETFILTER_BYTES} in Netfilter, tables made for as many as that is. Where the tester ends before the device there is no result; what had passed \
             until then is given as a bound (≥)."
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
                        let of_device = made.iter().filter(|made| made.run.series == device);
                        // Over shared memory only Natrix can be had; it stands beside Netfilter over virtual Ethernet.
                        let asks = match asks {
                            Asks::SharedMemory if device != "natrix" => Asks::Throughput(1_000),
                            Asks::SameLoad if device != "natrix" => Asks::HalfLoad,
                            _ => *asks,
                        };
                        of_device.filter(|made| made.run.x == place(asks)).find_map(|made| read(asks, made))
                    };
                    let (natrix, netfilter) = (of("natrix"), of("netfilter"));
                    let ratio = match asks {
                        // What is lost may be nothing; and two delays at two rates have no ratio.
                        Asks::NinetyPercent | Asks::HalfLoad => String::new(),
                        _ => Rate::times(natrix, netfilter),
                    };
                    vec![
                        (*what).to_owned(),
                        Rate::shown(natrix, ""),
                        Rate::shown(netfilter, ""),
                        ratio,
                        (*target).to_owned(),
                    ]
                };
                ROWS.iter().map(row).collect()
            }),
        }],
    }
}
