//! What a run says of itself, for the report: what was found, how often, with what (RFC 9693 §5
//! asks for it beside each figure).

use chart::short;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;

use super::extract::Lost;
use super::extract::lost;
use super::extract::percent;
use crate::result::bound_by;
use crate::result::mark_of;
use crate::result::mark_of_step;
use crate::result::near_ceiling;

/// A test of RFC 9693 in a few words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Its name.
    pub test: String,
    /// What was found: the median, with the 1st and 99th percentile.
    pub found: String,
    /// Experiments that the median is of.
    pub experiments: u64,
    /// Connections.
    pub sessions: u64,
    /// `1024-65535 of 16 addresses`.
    pub source_ports: String,
    /// The same of the other end.
    pub destination_ports: String,
    /// Frames: bytes, or `imix`.
    pub frames: String,
    /// Error of a binary search, in what is searched; None where there is no search.
    pub error: Option<f64>,
    /// Settings of the device, by name.
    pub device: Vec<(String, String)>,
}

/// Of a result of the lab; None of anything else.
pub(crate) fn summary(result: &Value) -> Option<Summary> {
    let parameters = result.get("parameters")?;
    let test = result.get("test")?.as_str()?;
    let count = |key: &str| parameters.get(key).and_then(Value::as_u64);
    let error = match test {
        "capacity" => count("E").map(|error| error as f64),
        "cps" | "throughput" => parameters.get("error").and_then(Value::as_f64),
        _ => None,
    };
    let settings = result.get("device").and_then(Value::as_object).into_iter().flatten();
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(Summary {
        test: test.to_owned(),
        found: found(result),
        experiments: experiments(result)?,
        sessions: count("N")?,
        source_ports: ports(parameters.get("inside")?)?,
        destination_ports: ports(parameters.get("remote")?)?,
        frames: parameters.get("frame_bytes").map(word).unwrap_or_default(),
        error,
        device: settings.map(|(name, value)| (name.clone(), word(value))).collect(),
    })
}

/// Repetitions that came to an end.
fn experiments(result: &Value) -> Option<u64> {
    let length = |pointer: &str| Some(result.pointer(pointer)?.as_array()?.len());
    // The tester may not have kept the higher rates in each of them.
    let of_step = |step: &Value| Some(step.pointer("/lost_share/values")?.as_array()?.len());
    let of_steps = || result.pointer("/result/steps")?.as_array()?.iter().filter_map(of_step).max();
    let count = length("/result/samples/values").or_else(|| length("/result/repetitions")).or_else(of_steps);
    // A bound is of the search that the tester ended.
    let count = count.or_else(|| result.pointer("/result/at_least")?.as_f64().map(|_| 1));
    count.map(|count| count as u64)
}

fn ports(range: &Value) -> Option<String> {
    let port = |end: &str| range.pointer(&format!("/ports/{end}"))?.as_u64();
    let addresses = range.get("addresses")?.as_u64()?;
    let noun = if addresses == 1 { "address" } else { "addresses" };
    Some(format!("{}-{} of {addresses} {noun}", port("start")?, port("end")?))
}

/// What came of a result, in a few words. Disturbed figures have their mark.
pub(crate) fn found(record: &Value) -> String {
    let mark = mark_of(record);
    let number = |pointer: &str| record.pointer(pointer).and_then(Value::as_f64);
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Some(median) = number("/result/samples/median") {
        let ends = number("/result/samples/p1").zip(number("/result/samples/p99"));
        // Of one experiment they are the median.
        let ends = ends.filter(|(low, high)| low < high);
        let ends =
            ends.map(|(low, high)| format!(" ({}{mark} to {}{mark})", short(low), short(high))).unwrap_or_default();
        let (sign, why) = match near_ceiling(record) {
            Some(share) => {
                let share = 100.0 * share;
                ("≥ ", format!(" ({share:.0} % of the tester's own ceiling, so the device may do more)"))
            }
            None => ("", String::new()),
        };
        return format!("{sign}{}{mark} {}{ends}{why}", short(median), text(record, "unit"));
    }
    if let Some(passed) = number("/result/at_least") {
        return format!("≥ {} {} ({})", short(passed), text(record, "unit"), bound_by(record));
    }
    if let Some(steps) = record.pointer("/result/steps").and_then(Value::as_array) {
        let rate = |step: &Value| step.get("rate").and_then(Value::as_f64).map(short).unwrap_or_default();
        let step = |step: &Value| {
            let share = 100.0 * step.get("lost")?.as_f64()? / step.get("sent")?.as_f64()?.max(1.0);
            let each = step.pointer("/lost_share/values").and_then(Value::as_array).into_iter().flatten();
            let worst = each.filter_map(Value::as_f64).fold(0.0, f64::max) * 100.0;
            // Of one repetition they are the same.
            let busy = mark_of_step(step);
            let worst =
                if worst > share * 1.0001 { format!(" (worst {}{busy})", percent(worst)) } else { String::new() };
            let is_beyond = step.get("beyond_ceiling") == Some(&Value::Bool(true));
            let mark = if is_beyond { " (more than the tester alone passes)" } else { "" };
            Some(format!("at {} {}{busy} lost{worst}{mark}", rate(step), percent(share)))
        };
        let not_sent = record.pointer("/result/not_sent").and_then(Value::as_array).into_iter().flatten();
        let not_sent = not_sent.map(|step| format!("at {} no result (tester too slow)", rate(step)));
        return not_sent.chain(steps.iter().filter_map(step)).collect::<Vec<_>>().join("; ");
    }
    if let Some(findings) = record.get("findings").and_then(Value::as_array) {
        let verdict = |verdict: &str| findings.iter().filter(|finding| text(finding, "verdict") == verdict).count();
        let [met, not_met, undecided] = ["met", "not_met", "undecided"].map(verdict);
        let count = findings.len();
        return format!("{count} findings: {met} as the RFCs ask, {not_met} not, {undecided} undecided");
    }
    if let Some(failure) = record.get("failure").and_then(Value::as_str) {
        return format!("no result: {failure}");
    }
    let over = record.pointer("/result/over_repetitions/delays").and_then(Value::as_array);
    let one = record.pointer("/result/repetitions/0/delays").and_then(Value::as_array);
    let delay = |way: &Value| {
        let of = |key: &str| {
            let value = way.get(key);
            let at = |figure: &str| value.and_then(|value| value.get(figure)).and_then(Value::as_f64);
            match (value.and_then(Value::as_f64), at("median"), at("p1"), at("p99")) {
                (Some(one), ..) => format!("{one:.1}{mark}"),
                (None, Some(median), Some(low), Some(high)) if low < high => {
                    format!("{median:.1}{mark} ({low:.1}{mark} to {high:.1}{mark})")
                }
                (None, Some(median), ..) => format!("{median:.1}{mark}"),
                _ => "unknown".to_owned(),
            }
        };
        format!("{} {} us, worst {}", text(way, "way"), of("typical_us"), of("worst_case_us"))
    };
    let lost = lost(record).map_or_else(|| "unknown".to_owned(), Lost::shown);
    over.or(one)
        .map(|delays| format!("{}; lost: {lost}", delays.iter().map(delay).collect::<Vec<_>>().join("; ")))
        .unwrap_or_else(|| "see the file".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_says_what_the_rfc_asks_for_beside_its_figure() {
        let result = json!({
            "test": "throughput", "unit": "frames/s", "device": {"nf_conntrack_max": "65536"},
            "parameters": {
                "N": 1000, "error": 2000.0, "frame_bytes": 64,
                "inside": {"addresses": 16, "ports": {"start": 1024, "end": 65535}},
                "remote": {"addresses": 1, "ports": {"start": 80, "end": 80}},
            },
            "result": {"samples": {"values": [1e5, 2e5, 3e5], "median": 2e5, "p1": 1e5, "p99": 3e5}},
        });
        let told = summary(&result).unwrap();
        assert_eq!((told.experiments, told.sessions, told.error), (3, 1000, Some(2000.0)));
        assert_eq!((&*told.found, &*told.frames), ("200 k frames/s (100 k to 300 k)", "64"));
        assert_eq!(told.source_ports, "1024-65535 of 16 addresses");
        assert_eq!(told.destination_ports, "80-80 of 1 address");
        assert_eq!(told.device, [("nf_conntrack_max".to_owned(), "65536".to_owned())]);
        assert_eq!(summary(&json!({"ns_per_lookup": 9.0})), None);
    }

    #[test]
    fn delays_summarize_repetitions_and_bounds_stay_bounds() {
        let samples = json!({"median": 5.0, "p1": 4.0, "p99": 6.0});
        let way = json!({"way": "inbound", "typical_us": samples, "worst_case_us": samples});
        let told = found(&json!({"result": {"over_repetitions": {"delays": [way]}, "repetitions": []}}));
        assert_eq!(told, "inbound 5.0 (4.0 to 6.0) us, worst 5.0 (4.0 to 6.0); lost: unknown");
        let once = json!({"median": 5.0, "p1": 5.0, "p99": 5.0});
        let way = json!({"way": "inbound", "typical_us": once, "worst_case_us": once});
        let trial = |repetition: u32, lost: u32| json!({"repetition": repetition, "phase": "phase2", "sent": 100, "lost": lost, "void": false});
        let told = found(&json!({
            "result": {"over_repetitions": {"delays": [way]}, "repetitions": [{}, {}]}, "trials": [trial(0, 0), trial(1, 3)],
        }));
        assert_eq!(told, "inbound 5.0 us, worst 5.0; lost: median 1.5 %, worst 3 % of 2");
        let told = found(&json!({"unit": "frames/s", "result": {"samples": null, "at_least": 9e5}}));
        assert_eq!(told, "≥ 900 k frames/s (the tester ended)");
        let failure = crate::experiment::ExperimentError::RangeTooLow { what: "connections", rate: 3e4 }.to_string();
        let told =
            found(&json!({"unit": "connections/s", "result": {"samples": null, "at_least": 3e4}, "failure": failure}));
        assert_eq!(told, "≥ 30 k connections/s (no higher rate was asked for)");
        assert_eq!(failure, "rate: the device passes even the highest (30000 connections/s); raise --rate-max");
        let busy = found(&json!({"unit": "frames/s", "result": {"samples": {"median": 9e4}, "disturbed": 1}}));
        assert_eq!(busy, "90 k* frames/s");
        let way = json!({"way": "inbound", "typical_us": 5.0, "worst_case_us": 9.0});
        let busy = found(&json!({"result": {"repetitions": [{"delays": [way]}], "disturbed": 1}}));
        assert_eq!(busy, "inbound 5.0* us, worst 9.0*; lost: unknown");
        let step = json!({"rate": 1e6, "sent": 100, "lost": 2, "disturbed": 1});
        assert_eq!(found(&json!({"result": {"steps": [step], "disturbed": 1}})), "at 1 M 2 %* lost");
    }

    #[test]
    fn a_delay_of_the_tester_alone_is_shown_as_a_bound() {
        let of = |share: f64| {
            let samples = json!({"values": [938e3], "median": 938e3, "p1": 938e3, "p99": 938e3});
            found(&json!({"unit": "connections/s", "result": {"samples": samples}, "ceiling": {"share": share}}))
        };
        assert_eq!(of(1.0004), "≥ 938 k connections/s (100 % of the tester's own ceiling, so the device may do more)");
        assert_eq!(of(0.5), "938 k connections/s");
    }

    #[test]
    fn a_loss_curve_is_shown_by_rate_with_what_was_not_sent() {
        let step = |rate: f64, values: &[f64], beyond: bool| json!({"rate": rate, "sent": 200, "lost": 100.0 * values.iter().sum::<f64>(), "lost_share": {"values": values}, "beyond_ceiling": beyond});
        let told = found(&json!({"result": {
            "steps": [step(2e6, &[0.0, 0.4], true), step(1e6, &[0.0, 0.0], false)], "not_sent": [{"rate": 3e6}],
        }}));
        assert_eq!(
            told,
            "at 3 M no result (tester too slow); at 2 M 20 % lost (worst 40 %) (more than the tester alone passes); at 1 M 0 % lost"
        );
        let steps = [step(2e6, &[0.0], false), step(1e6, &[0.0, 0.0], false)];
        assert_eq!(
            experiments(&json!({"result": {"steps": steps}})),
            Some(2),
            "those of the rate that was kept most often"
        );
        let findings = json!({"findings": [{"verdict": "met"}, {"verdict": "met"}, {"verdict": "not_met"}]});
        assert_eq!(found(&findings), "3 findings: 2 as the RFCs ask, 1 not, 0 undecided");
        assert_eq!(found(&json!({"result": {"samples": null}, "failure": "tester: slow"})), "no result: tester: slow");
    }
}
