//! What the probe finds: fragments, exhaustion of ports, and the diagram of timers.

use serde_json::Value;

use super::Options;
use super::axis;
use super::paper;
use crate::probe::flow_state::FlowState;
use crate::study::plan::ChartPlan;
use crate::study::plan::Made;
use crate::study::plan::Placed;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use crate::study::record::Paper;
use chart::Axis;
use chart::Point;

fn hayashi() -> Paper {
    paper(
        "Hayashi Yu-ichi, NAT Router Performance Evaluation",
        "ipchains on an UltraSPARC, iptables on a PowerPC 405GP",
    )
}

fn probes(options: &Options, only: &str, seconds: u32, more: &[(&str, String)]) -> Vec<Run> {
    let run = |(position, device): (usize, &String)| {
        let mut all = vec![("--only", only.to_owned())];
        all.extend_from_slice(more);
        Run {
            series: device.clone(),
            x: position as f64,
            arguments: options.lab("probe", device, &all),
            seconds,
            load: None,
        }
    };
    options.devices.iter().enumerate().map(run).collect()
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Columns of [`findings`].
pub(crate) const FINDINGS: [&str; 5] = ["device", "what", "found", "requirement", "verdict"];
/// Columns of [`timers_of`].
pub(crate) const TIMERS: [&str; 6] = ["device", "protocol", "state", "reached by", "seconds", "renewed by"];

/// The findings of a device, a row for each requirement: of one finding one may be met and another
/// not.
pub(crate) fn findings(device: &str, result: &Value) -> Vec<Vec<String>> {
    let findings = result.pointer("/result/findings").or(result.get("findings"));
    let rows = |finding: &Value| {
        let judgements = finding.get("judgements").and_then(Value::as_array).filter(|all| !all.is_empty());
        let of_finding = judgements.cloned().unwrap_or_else(|| vec![finding.clone()]);
        let row = |judged: &Value| {
            let requirement = match (text(judged.get("requirement")), text(judged.get("asks"))) {
                (number, asks) if asks.is_empty() => number,
                (number, asks) => format!("{number}: {asks}"),
            };
            let verdict = text(judged.get("verdict")).replace('_', " ");
            vec![device.to_owned(), text(finding.get("name")), text(finding.get("value")), requirement, verdict]
        };
        of_finding.iter().map(row).collect::<Vec<_>>()
    };
    findings.and_then(Value::as_array).into_iter().flatten().flat_map(rows).collect()
}

/// The timers in a result.
fn timers_in(result: &Value) -> impl Iterator<Item = &Value> {
    let timers = result.pointer("/result/timers").or(result.get("timers"));
    timers.and_then(Value::as_array).into_iter().flatten()
}

/// Seconds that a state lasts, and whose timers these are: nothing where they are the device's own.
fn lasts(timer: &Value) -> (String, &'static str) {
    let is = |key: &str| timer.get(key).and_then(Value::as_bool).unwrap_or(false);
    let cell = |key: &str| text(timer.get(key));
    let seconds = match is("beyond") {
        true => format!("more than {}", cell("seconds_low")),
        false => format!("{} to {}", cell("seconds_low"), cell("seconds_high")),
    };
    (seconds, if is("set_by_lab") { " (with the timers the lab set)" } else { "" })
}

/// The timers of a device, one row each.
pub(crate) fn timers_of(device: &str, result: &Value) -> Vec<Vec<String>> {
    let row = |timer: &Value| {
        let cell = |key: &str| text(timer.get(key));
        let (seconds, whose) = lasts(timer);
        let state = cell("state").replace('_', " ");
        vec![device.to_owned(), cell("protocol"), state, cell("reached_by"), seconds + whose, cell("refresh")]
    };
    timers_in(result).map(row).collect()
}

/// The states that the probe looks at, as a chart names them, in its order.
fn states() -> Vec<(&'static str, &'static str)> {
    let split = |state: FlowState| state.name().split_once('.').unwrap_or((state.name(), ""));
    FlowState::ALL.into_iter().map(split).collect()
}

/// How long each state lasts: a point at the last time that a flow was there, from there to the
/// first that it was not. What lived longer than was waited for is on a line of its own.
fn durations(made: &Made<'_>) -> Vec<Placed> {
    let states = states();
    let placed = |timer: &Value| {
        let word = |key: &str| timer.get(key).and_then(Value::as_str);
        let x =
            states.iter().position(|state| Some(state.0) == word("protocol") && Some(state.1) == word("state"))? as f64;
        let low = timer.get("seconds_low")?.as_f64()?;
        Some(match timer.get("seconds_high").and_then(Value::as_f64) {
            Some(high) => (made.run.series.clone(), Point { x, y: f64::midpoint(low, high), low, high }),
            None => (format!("{}, more than", made.run.series), Point::single(x, low)),
        })
    };
    timers_in(made.result).filter_map(placed).collect()
}

/// The state diagram of a device as rows: from which state what leads where, and when silence ends
/// it.
fn diagram(made: &Made<'_>) -> Vec<Vec<String>> {
    let seconds = |protocol: &str, state: &str| {
        let is_it = |timer: &&Value| text(timer.get("protocol")) == protocol && text(timer.get("state")) == state;
        timers_in(made.result).find(is_it).map(lasts).map(|(seconds, whose)| format!("{seconds} s{whose}"))
    };
    let arrow = |(from, event, to): &(&str, &str, &str)| {
        let (protocol, state) = to.split_once('.').unwrap_or((to, ""));
        let lasts = seconds(protocol, state)?;
        let show = |name: &str| name.replace(['.', '_'], " ");
        Some(vec![made.run.series.clone(), show(from), (*event).to_owned(), show(to), lasts])
    };
    TRANSITIONS.iter().filter_map(arrow).collect()
}

/// What leads from one state that is looked at into another.
const TRANSITIONS: [(&str, &str, &str); 13] = [
    ("none", "datagram out", "udp.unanswered"),
    ("udp.unanswered", "datagram in", "udp.answered"),
    ("udp.answered", "more of them, both ways", "udp.stream"),
    ("none", "SYN out", "tcp.syn_sent"),
    ("tcp.syn_sent", "SYN-ACK in", "tcp.syn_received"),
    ("tcp.syn_received", "ACK out", "tcp.established"),
    ("tcp.established", "FIN out, acknowledged", "tcp.client_closed"),
    ("tcp.established", "FIN in, acknowledged", "tcp.server_closed"),
    ("tcp.client_closed", "FIN in, acknowledged", "tcp.closed"),
    ("tcp.server_closed", "FIN out, acknowledged", "tcp.closed"),
    ("tcp.established", "RST out", "tcp.client_reset"),
    ("tcp.established", "RST in", "tcp.server_reset"),
    ("none", "Echo out", "icmp.query"),
];

/// A study of what the probe finds, beside what the paper says in words.
struct Findings {
    question: &'static str,
    method: &'static str,
    limits: &'static str,
    title: &'static str,
    columns: &'static [&'static str],
    said: &'static [[&'static str; 2]],
}

impl Findings {
    fn plan(self, runs: Vec<Run>) -> Plan {
        let said = self.said;
        Plan {
            question: self.question,
            paper: hayashi(),
            method: self.method.to_owned(),
            limits: self.limits.to_owned(),
            runs,
            charts: Vec::new(),
            tables: vec![
                TablePlan {
                    title: "Found",
                    columns: &FINDINGS,
                    rows: Box::new(|made| {
                        made.iter().flat_map(|made| findings(&made.run.series, made.result)).collect()
                    }),
                },
                TablePlan {
                    title: self.title,
                    columns: self.columns,
                    rows: Box::new(move |_| said.iter().map(|row| row.map(str::to_owned).to_vec()).collect()),
                },
            ],
        }
    }
}

pub(super) fn fragments(options: &Options) -> Plan {
    let study = Findings {
        question: "Do fragments get through?",
        method: "The probe sends datagrams in pieces, in order and out of order, both ways, and looks at what comes out. Then the paper's burst: 2 000 datagrams of \
                 1 443 bytes at once, each of a session of its own and in two fragments, and their answers; and the same in whole frames, to see what is lost of those.",
        limits: "At once is as fast as the tester writes, whatever comes out being taken meanwhile. The fragments of the burst are of 1 000 bytes and less.",
        title: "In the paper: lost of 2 000 datagrams of 1 443 bytes, sent at once, and their answers",
        columns: &["device", "lost"],
        said: &[["UltraSPARC, ipchains", "32.32 %"], ["OpenBlocks, iptables", "57.83 %"], ["no NAT", "32.28 %"]],
    };
    study.plan(probes(options, "fragments", 8, &[]))
}

pub(super) fn exhaustion(options: &Options) -> Plan {
    let study = Findings {
        question: "What happens to a host that wants a port when there is none left, and to hosts that have one?",
        method: "The probe takes ports from inside until no further endpoint is answered, then looks whether those before it still are.",
        limits: "The device has one address and 2 000 ports for this.",
        title: "In the paper",
        columns: &["device", "found"],
        said: &[
            ["UltraSPARC, ipchains", "refuses new sessions until one ends, and says so in its log"],
            ["OpenBlocks, iptables", "ends an older session for the new one, without a message"],
        ],
    };
    let few = [("--external-addresses", "1".to_owned()), ("--dut-ports", "2000-3999".to_owned())];
    study.plan(probes(options, "exhaustion", 12, &few))
}

pub(super) fn timers(options: &Options) -> Plan {
    // The lab sets the timers then, the longest to 7 s, to which Natrix adds 2 s: nothing is to be
    // found beyond.
    let quick = [("--quick", String::new()), ("--timer-max", "10".to_owned())];
    let more = if options.quick { quick.to_vec() } else { Vec::new() };
    Plan {
        question: "In which states are sessions, how long does each last, and whose packets renew it?",
        paper: hayashi(),
        method: "Many sessions are brought into a state at once and each is tried once, at its own time: the last that is alive and the first that is not enclose the timer."
            .to_owned(),
        limits: "A timer longer than what was waited for is given as `more than`. With `--quick` the lab sets the devices' timers, which the rows say.".to_owned(),
        runs: probes(options, "timers", if options.quick { 32 } else { 400 }, &more),
        charts: vec![ChartPlan {
            title: "How long a flow without packets lasts in each state",
            x: Axis {
                label: String::new(),
                logarithmic: false,
                names: states().iter().map(|(protocol, state)| format!("{protocol} {}", state.replace('_', " "))).collect(),
            },
            y: axis("seconds", true),
            points: Box::new(durations),
        }],
        tables: vec![
            TablePlan {
                title: "Found",
                columns: &TIMERS,
                rows: Box::new(|made| made.iter().flat_map(|made| timers_of(&made.run.series, made.result)).collect()),
            },
            TablePlan {
                title: "State diagram: what leads where, and when silence ends it (two states that last as long may be one of the device's)",
                columns: &["device", "from", "by", "to", "ends after"],
                rows: Box::new(|made| made.iter().flat_map(diagram).collect()),
            },
            TablePlan {
                title: "In the paper",
                columns: &["device", "protocol", "state", "seconds", "renewed by"],
                rows: Box::new(|_| {
                    let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
                    vec![
                        row(["ipchains", "UDP", "the only one", "30", "both"]),
                        row(["ipchains", "ICMP", "query", "60", "not said"]),
                        row(["ipchains", "TCP", "established", "3600", "not said"]),
                        row(["ipchains", "TCP", "after FIN", "120", "not said"]),
                        row(["OpenBlocks, iptables", "UDP", "not answered (T1)", "30", "not said"]),
                        row(["OpenBlocks, iptables", "UDP", "answered (T2)", "30", "not said"]),
                        row(["OpenBlocks, iptables", "TCP", "established", "long (no figure)", "not said"]),
                        row(["OpenBlocks, iptables", "TCP", "after FIN", "long (no figure)", "not said"]),
                    ]
                }),
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_options;
    use super::*;

    #[test]
    fn each_requirement_of_a_finding_has_its_own_verdict() {
        let judged = |requirement: &str, asks: &str, verdict: &str| json!({"requirement": requirement, "asks": asks, "verdict": verdict});
        let refusal = json!({
            "name": "exhaustion.refusal", "value": "refused silently", "requirement": "RFC 6888 REQ-11a, RFC 6888 REQ-11b", "verdict": "not_met",
            "judgements": [judged("RFC 6888 REQ-11a", "refused packets are dropped", "met"), judged("RFC 6888 REQ-11b", "ICMP 3/1", "not_met")],
        });
        let plain = json!({"name": "ports.parity", "value": "kept", "requirement": "", "verdict": "not_applicable", "judgements": []});
        let rows = findings("netfilter", &json!({"findings": [refusal, plain]}));
        let of_refusal = ["netfilter", "exhaustion.refusal", "refused silently"];
        assert_eq!(rows[0], [&of_refusal[..], &["RFC 6888 REQ-11a: refused packets are dropped", "met"]].concat());
        assert_eq!(rows[1], [&of_refusal[..], &["RFC 6888 REQ-11b: ICMP 3/1", "not met"]].concat());
        assert_eq!(rows[2], ["netfilter", "ports.parity", "kept", "", "not applicable"]);
    }

    #[test]
    fn timers_set_by_the_lab_are_marked_and_the_paper_has_icmp() {
        let plan = timers(&test_options(true));
        let timer = |is_set: bool| json!({"protocol": "udp", "state": "answered", "seconds_low": 5, "seconds_high": 6, "set_by_lab": is_set});
        let result = json!({"timers": [timer(true), timer(false)]});
        let made = [Made { run: &plan.runs[0], result: &result }];
        let seconds: Vec<String> = (plan.tables[0].rows)(&made).into_iter().map(|mut row| row.swap_remove(4)).collect();
        assert_eq!(seconds, ["5 to 6 (with the timers the lab set)", "5 to 6"]);
        assert!((plan.tables[2].rows)(&[]).iter().any(|row| row[1] == "ICMP" && row[3] == "60"));
    }
    #[test]
    fn timers_have_a_chart_and_a_diagram_and_the_paper_is_quoted() {
        let plan = timers(&test_options(true));
        let timer = |protocol: &str, state: &str, low: f64, high: Option<f64>| json!({"protocol": protocol, "state": state, "seconds_low": low, "seconds_high": high, "beyond": high.is_none()});
        let result =
            json!({"timers": [timer("udp", "unanswered", 29.0, Some(31.0)), timer("udp", "answered", 300.0, None)]});
        let made = [Made { run: &plan.runs[0], result: &result }];
        let charts = plan.draw(&made);
        let lines: Vec<_> = charts[0].series.iter().map(|series| (&*series.name, series.points[0])).collect();
        assert_eq!(lines[0], ("natrix", Point { x: 0.0, y: 30.0, low: 29.0, high: 31.0 }));
        assert_eq!(lines[1], ("natrix, more than", Point::single(1.0, 300.0)));
        let diagram = (plan.tables[1].rows)(&made);
        assert_eq!(diagram[0], ["natrix", "none", "datagram out", "udp unanswered", "29.0 to 31.0 s"]);
        assert_eq!(diagram[1], ["natrix", "udp unanswered", "datagram in", "udp answered", "more than 300.0 s"]);
        assert_eq!(diagram.len(), 2, "of states that were looked at");
        // Every state that is looked at is somewhere in it.
        for state in FlowState::ALL {
            assert!(TRANSITIONS.iter().any(|(.., to)| *to == state.name()), "{state:?}");
        }
        let said = (plan.tables[2].rows)(&[]);
        assert!(said.iter().all(|row| !row[3].contains("then")), "{said:?}");
        assert!(
            said.iter().any(|row| row[0].starts_with("OpenBlocks") && row[1] == "TCP" && row[3].starts_with("long"))
        );
    }
}
