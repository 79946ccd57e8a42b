//! Load sharing over several NATs by a routing protocol (Hayashi §8): rates, subscribers that keep
//! their address, a drain and a kill.

use chart::Point;
use serde_json::Value;

use super::Options;
use super::axis;
use super::paper;
use crate::sharing::PAPER_LINK_MBIT;
use crate::sharing::STREAMS;
use crate::study::extract::number;
use crate::study::plan::ChartPlan;
use crate::study::plan::Made;
use crate::study::plan::Placed;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;

/// NATs side by side.
const NATS: [u32; 3] = [1, 2, 4];
/// Lines of the charts.
const LIMITED: &str = "natrix, links of 100 Mbit/s";
const UNLIMITED: &str = "natrix, links without a limit";
const PAPER: &str = "links of the paper's devices, 100 Mbit/s each (not measured there)";
const NO_CURVE: &str = "no figure: its Fig. 13 draws the network";

pub(super) fn plan(options: &Options) -> Plan {
    let (subscribers, rate_seconds, idle_seconds) = if options.quick { (200, "0.5", 1) } else { (1_000, "10", 3) };
    let nats: &'static [u32] = if options.quick { &NATS[..2] } else { &NATS };
    let run = |nats: &u32| Run {
        series: "natrix".to_owned(),
        x: f64::from(*nats),
        arguments: [
            ("--nats", nats.to_string()),
            ("--subscribers", subscribers.to_string()),
            ("--rate-seconds", rate_seconds.to_owned()),
            ("--idle", idle_seconds.to_string()),
            ("--transport", options.transport.clone()),
            ("--seed", options.seed.to_string()),
        ]
        .into_iter()
        .fold(vec!["lab".to_owned(), "sharing".to_owned()], |mut words, (option, value)| {
            words.extend([option.to_owned(), value]);
            words
        }),
        // A drain and a kill, where there is another way.
        seconds: match (options.quick, *nats) {
            (true, 1) => 12,
            (true, _) => 27,
            (false, 1) => 40,
            (false, _) => 70,
        },
        load: None,
    };
    let axis_of_nats = axis("NATs", false);
    Plan {
        question: "Do several NATs side by side, as next hops of equal cost by OSPF, share the load of one router?",
        paper: paper(
            "Hayashi Yu-ichi, NAT Router Performance Evaluation, §8",
            "UltraSPARC III with ipchains and PowerPC 405GP 200 MHz with iptables, 100 Mbit/s",
        ),
        method: format!(
            "Network namespaces with the distribution's FRR (OSPF, BFD). The access router hashes by source address over resilient next hops \
             (examples/sticky-next-hops.py); each NAT has a pool of its own. Rates: {STREAMS} TCP connections of as many subscribers, once over links of \
             {PAPER_LINK_MBIT} Mbit/s to the NATs and once over links without a limit. Address: three flows of each subscriber. Drain: flows that \
             send all the time and end while the second NAT is drained, which is at least {} s. Kill: SIGKILL of the first NAT; back is the time until the \
             last of its subscribers has an answered packet through another NAT.",
            2 * idle_seconds
        ),
        limits: "The paper proposes this network (its Fig. 13) and reports no measurement of it, so no curve of the paper stands beside ours; the charts show \
                 the sum of its devices' links instead. Links without a limit end at the CPUs, which routers, NATs and hosts share here."
            .to_owned(),
        runs: nats.iter().map(run).collect(),
        charts: vec![
            ChartPlan { title: "Rate of all subscribers together", x: axis_of_nats.clone(), y: axis("Mbit/s", false), points: Box::new(rates) },
            ChartPlan {
                title: "Time until the last subscriber of a killed NAT is back",
                x: axis_of_nats,
                y: axis("s", false),
                points: Box::new(|made| placed("natrix", number(made, "/result/kill/back_seconds", 1.0))),
            },
        ],
        tables: vec![TablePlan {
            title: "Beside the paper (which has no measurement of load sharing)",
            columns: &["what", "paper", "1 NAT", "2 NATs", "4 NATs"],
            rows: Box::new(|made| rows(made, nats)),
        }],
    }
}

fn placed(line: &str, point: Option<Point>) -> Vec<Placed> {
    point.map(|point| (line.to_owned(), point)).into_iter().collect()
}

fn rates(made: &Made<'_>) -> Vec<Placed> {
    let links = Point::single(made.run.x, made.run.x * f64::from(PAPER_LINK_MBIT));
    let mut all = placed(LIMITED, number(made, "/result/limited/mbit_per_second", 1.0));
    all.extend(placed(UNLIMITED, number(made, "/result/unlimited/mbit_per_second", 1.0)));
    all.extend(placed(PAPER, Some(links)));
    all
}

/// What each row asks, what the paper says, and the answer of one result.
type Question = (&'static str, &'static str, fn(&Value) -> Option<String>);

const QUESTIONS: [Question; 8] = [
    ("Mbit/s over links of 100 Mbit/s", NO_CURVE, |result| mbit(result, "limited")),
    ("Mbit/s over links without a limit", NO_CURVE, |result| mbit(result, "unlimited")),
    ("subscribers with one external address", "not tried", |result| {
        of(result, "/steady/kept_one_address", "/steady/answered")
    }),
    ("subscribers of each NAT", "not tried", |result| {
        let counts = result.pointer("/steady/of_each_nat")?.as_array()?;
        Some(counts.iter().map(Value::to_string).collect::<Vec<_>>().join(", "))
    }),
    ("flows lost when one is drained", "not tried", |result| of(result, "/drain/flows_lost", "/drain/flows")),
    ("flows of the others lost in a drain", "not tried", |result| {
        of(result, "/drain/other_flows_lost", "/drain/other_flows")
    }),
    ("back after a kill, s", "not tried", |result| {
        let back = result.pointer("/kill/back_seconds")?.as_f64()?;
        Some(format!("{back:.2} (noticed after {:.2})", result.pointer("/kill/noticed_seconds")?.as_f64()?))
    }),
    ("datagrams lost by the others in a kill", "not tried", |result| {
        let lost = result.pointer("/kill/others_datagrams_lost")?;
        Some(format!("{lost} of {} subscribers", result.pointer("/kill/others")?))
    }),
];

fn mbit(result: &Value, which: &str) -> Option<String> {
    Some(format!("{:.0}", result.get(which)?.get("mbit_per_second")?.as_f64()?))
}

fn of(result: &Value, part: &str, whole: &str) -> Option<String> {
    Some(format!("{} of {}", result.pointer(part)?, result.pointer(whole)?))
}

/// `tried`: the numbers of NATs of this plan.
fn rows(made: &[Made<'_>], tried: &[u32]) -> Vec<Vec<String>> {
    let row = |(what, paper, answer): &Question| {
        let cell = |nats: &u32| {
            let found =
                made.iter().find(|made| made.run.x == f64::from(*nats)).and_then(|made| made.result.get("result"));
            match found {
                None if !tried.contains(nats) => "not with --quick".to_owned(),
                None => "no result".to_owned(),
                // There is no second NAT.
                Some(result) => answer(result).unwrap_or_else(|| "-".to_owned()),
            }
        };
        [(*what).to_owned(), (*paper).to_owned()].into_iter().chain(NATS.iter().map(cell)).collect()
    };
    QUESTIONS.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_options;
    use super::*;

    #[test]
    fn what_a_single_nat_cannot_show_is_left_out() {
        let plan = plan(&test_options(false));
        let steady = json!({"answered": 1000, "kept_one_address": 999, "of_each_nat": [600, 400]});
        let rate = |mbit: f64| json!({"mbit_per_second": mbit});
        let one = json!({"result": {"limited": rate(95.0), "unlimited": rate(1500.4), "steady": steady, "drain": null, "kill": null}});
        let drain = json!({"flows": 400, "flows_lost": 1, "other_flows": 600, "other_flows_lost": 0});
        let kill = json!({"back_seconds": 0.849, "noticed_seconds": 0.6, "others": 400, "others_datagrams_lost": 2});
        let two = json!({"result": {"limited": rate(190.0), "unlimited": rate(1800.0), "steady": steady, "drain": drain, "kill": kill}});
        let results = [&one, &two];
        let made: Vec<Made<'_>> = plan.runs.iter().zip(results).map(|(run, result)| Made { run, result }).collect();
        let rows = (plan.tables[0].rows)(&made);
        assert_eq!(rows[0][1..], [NO_CURVE, "95", "190", "no result"]);
        assert_eq!(rows[2][2..], ["999 of 1000", "999 of 1000", "no result"]);
        assert_eq!(rows[4][2..], ["-", "1 of 400", "no result"]);
        assert_eq!(rows[6][2..], ["-", "0.85 (noticed after 0.60)", "no result"]);
        assert_eq!(rows[7][3], "2 of 400 subscribers");
        let charts = plan.draw(&made);
        let lines: Vec<(&str, usize)> =
            charts[0].series.iter().map(|series| (series.name.as_str(), series.points.len())).collect();
        assert_eq!(lines, [(LIMITED, 2), (UNLIMITED, 2), (PAPER, 2)]);
        let quick = super::plan(&test_options(true));
        assert_eq!((quick.tables[0].rows)(&[])[0][2..], ["no result", "no result", "not with --quick"]);
        assert_eq!(charts[1].series[0].points, [Point::single(2.0, 0.849)], "only where one was killed");
    }
}
