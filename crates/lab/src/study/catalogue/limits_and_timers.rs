//! What the probe finds: fragments, exhaustion of ports, and the diagram of timers.

use serde_json::Value;

use super::Options;
use super::paper;
use crate::study::plan::Made;
use crate::study::plan::Plan;
use crate::study::plan::Run;
use crate::study::plan::TablePlan;
use crate::study::record::Paper;

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

/// The findings of each device, one row each.
fn findings(made: &[Made<'_>]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for made in made {
        let findings = made.result.pointer("/result/findings").or(made.result.get("findings"));
        for finding in findings.and_then(Value::as_array).into_iter().flatten() {
            let cell = |key: &str| text(finding.get(key));
            rows.push(vec![made.run.series.clone(), cell("name"), cell("value"), cell("requirement"), cell("verdict")]);
        }
    }
    rows
}

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
                    columns: &["device", "what", "found", "requirement", "verdict"],
                    rows: Box::new(findings),
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
                 1 443 bytes at once, each of a session of its own and in two fragments, and their answers; and the same in whole frames, to tell what is lost of those.",
        limits: "At once is as fast as the tester writes, whatever comes out being taken meanwhile. The fragments of the burst are of 1 000 bytes and less.",
        title: "In the paper: lost of 2 000 datagrams of 1 443 bytes, sent at once, and their answers",
        columns: &["device", "lost"],
        said: &[["UltraSPARC, ipchains", "32.32 %"], ["OpenBlocks, iptables", "57.83 %"], ["no NAT", "32.28 %"]],
    };
    study.plan(probes(options, "fragments", 8, &[]))
}

pub(super) fn exhaustion(options: &Options) -> Plan {
    let study = Findings {
        question: "What happens to him who wants a port when there is none left, and to those who have one?",
        method: "The probe takes ports from inside until no further endpoint is answered, then looks whether those before it still are.",
        limits: "The device has one address and 2 000 ports for this.",
        title: "In the paper",
        columns: &["device", "found"],
        said: &[
            ["UltraSPARC, ipchains", "refuses new sessions until one ends, and says so in its log"],
            ["OpenBlocks, iptables", "ends an older session for the new one, and says nothing"],
        ],
    };
    let few = [("--external-addresses", "1".to_owned()), ("--dut-ports", "2000-3999".to_owned())];
    study.plan(probes(options, "exhaustion", 12, &few))
}

pub(super) fn timers(options: &Options) -> Plan {
    let more = if options.quick { vec![("--quick", String::new())] } else { Vec::new() };
    Plan {
        question: "In which states are sessions, how long does each last, and whose packets renew it?",
        paper: hayashi(),
        method: "Many sessions are brought into a state at once and each is tried once, at its own time: the last that is alive and the first that is not enclose the timer."
            .to_owned(),
        limits: "A timer longer than what was waited for is given as `more than`. With `--quick` the lab sets the devices' timers, which the rows say.".to_owned(),
        runs: probes(options, "timers", if options.quick { 40 } else { 400 }, &more),
        charts: Vec::new(),
        tables: vec![
            TablePlan {
                title: "Found",
                columns: &["device", "protocol", "state", "seconds", "renewed by"],
                rows: Box::new(|made| {
                    let mut rows = Vec::new();
                    for made in made {
                        let timers = made.result.pointer("/result/timers").or(made.result.get("timers"));
                        for timer in timers.and_then(Value::as_array).into_iter().flatten() {
                            let cell = |key: &str| text(timer.get(key));
                            let is_beyond = timer.get("beyond").and_then(Value::as_bool).unwrap_or(false);
                            let is_set = timer.get("set_by_lab").and_then(Value::as_bool).unwrap_or(false);
                            let whose = if is_set { " (with the timers the lab set)" } else { "" };
                            let seconds = if is_beyond {
                                format!("more than {}{whose}", cell("seconds_low"))
                            } else {
                                format!("{} to {}{whose}", cell("seconds_low"), cell("seconds_high"))
                            };
                            rows.push(vec![made.run.series.clone(), cell("protocol"), cell("state"), seconds, cell("refresh")]);
                        }
                    }
                    rows
                }),
            },
            TablePlan {
                title: "In the paper",
                columns: &["device", "protocol", "state", "seconds", "renewed by"],
                rows: Box::new(|_| {
                    let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
                    vec![
                        row(["ipchains", "UDP", "the only one", "30", "both"]),
                        row(["iptables", "UDP", "not answered (T1)", "30", "both"]),
                        row(["iptables", "UDP", "answered, then both ways (T2)", "30, then longer", "both"]),
                        row(["ipchains", "ICMP", "query", "60", ""]),
                        row(["ipchains", "TCP", "established", "3600", ""]),
                        row(["ipchains", "TCP", "after FIN", "120", ""]),
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
    fn a_timer_that_the_lab_set_is_told_from_the_devices_own_and_the_paper_has_its_timer_of_icmp() {
        let plan = timers(&test_options(true));
        let timer = |is_set: bool| json!({"protocol": "udp", "state": "answered", "seconds_low": 5, "seconds_high": 6, "set_by_lab": is_set});
        let result = json!({"timers": [timer(true), timer(false)]});
        let made = [Made { run: &plan.runs[0], result: &result }];
        let seconds: Vec<String> = (plan.tables[0].rows)(&made).into_iter().map(|mut row| row.swap_remove(3)).collect();
        assert_eq!(seconds, ["5 to 6 (with the timers the lab set)", "5 to 6"]);
        assert!((plan.tables[1].rows)(&[]).iter().any(|row| row[1] == "ICMP" && row[3] == "60"));
    }
}
