//! Reading figures out of results.

use chart::Point;
use chart::short;
use serde_json::Value;

use super::plan::Made;
use super::plan::Placed;
use crate::experiment::Samples;
use crate::result::mark_if;
use crate::result::mark_of;
use crate::result::near_ceiling;

/// Median and percentiles of a result with one figure a repetition, multiplied.
pub(super) fn samples(made: &Made<'_>, factor: f64) -> Option<Point> {
    let samples = made.result.pointer("/result/samples")?;
    let number = |key: &str| samples.get(key)?.as_f64().map(|number| number * factor);
    let y = number("median")?;
    Some(Point { x: made.run.x, y, low: number("p1").unwrap_or(y), high: number("p99").unwrap_or(y) })
}

/// A number at one place of a result, multiplied.
pub(super) fn number(made: &Made<'_>, pointer: &str, factor: f64) -> Option<Point> {
    let y = made.result.pointer(pointer)?.as_f64()? * factor;
    Some(Point { x: made.run.x, y, low: y, high: y })
}

/// A number of each repetition of a delay measurement: of its ways the worst, of its repetitions
/// median and percentiles.
pub(super) fn delay(made: &Made<'_>, key: &str) -> Option<Point> {
    let repetitions = made.result.pointer("/result/repetitions")?.as_array()?;
    let worst = |repetition: &Value| {
        let ways = repetition.get("delays")?.as_array()?;
        ways.iter().filter_map(|way| way.get(key)?.as_f64()).reduce(f64::max)
    };
    spread(made.run.x, repetitions.iter().filter_map(worst).collect())
}

/// Loss, in per cent of the frames sent. Each repetition counts: a repetition with loss is never
/// hidden by others without.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Lost {
    /// Of the repetitions the median.
    pub(crate) median: f64,
    /// The one that lost most.
    pub(crate) worst: f64,
    /// Repetitions.
    pub(crate) repetitions: usize,
    /// Whether a CPU was away in one of them.
    pub(crate) is_disturbed: bool,
}

impl Lost {
    /// Of the shares of each repetition, per cent.
    fn of(shares: Vec<f64>, is_disturbed: bool) -> Option<Lost> {
        let worst = shares.iter().copied().reduce(f64::max)?;
        Some(Lost { repetitions: shares.len(), median: Samples::of(shares).median, worst, is_disturbed })
    }

    /// Whether no repetition lost a frame.
    pub(crate) fn is_none(self) -> bool {
        self.worst == 0.0
    }

    /// `0 %`, `3.1 %*`, `median 0 %, worst 40 % of 5`.
    pub(crate) fn shown(self) -> String {
        let mark = mark_if(self.is_disturbed);
        let (median, worst) = (percent(self.median) + mark, percent(self.worst) + mark);
        if self.median == self.worst {
            return worst;
        }
        format!("median {median}, worst {worst} of {}", self.repetitions)
    }
}

/// A share in per cent; what is not nothing is never shown as nothing.
pub(crate) fn percent(share: f64) -> String {
    match share {
        0.0 => "0 %".to_owned(),
        share if share < 0.001 => "less than 0.001 %".to_owned(),
        share => format!("{} %", short(share)),
    }
}

/// What was lost in each repetition of a delay measurement: the delay of a part of the frames only
/// is taken.
pub(crate) fn lost(result: &Value) -> Option<Lost> {
    let repetitions = result.pointer("/result/repetitions")?.as_array()?.len() as u64;
    let trials = result.get("trials")?.as_array()?;
    let share = |repetition: u64| {
        // Those before it in the same repetition were made again, and say so.
        let counts = |trial: &&Value| {
            let is_measured = matches!(trial.get("phase").and_then(Value::as_str), Some("phase1" | "phase2"));
            let is_void = trial.get("void").and_then(Value::as_bool).unwrap_or(false);
            is_measured && !is_void && trial.get("repetition").and_then(Value::as_u64) == Some(repetition)
        };
        let trial = trials.iter().rfind(counts)?;
        let sent = trial.get("sent")?.as_f64().filter(|sent| *sent > 0.0)?;
        Some(100.0 * trial.get("lost")?.as_f64()? / sent)
    };
    Lost::of((0..repetitions).filter_map(share).collect(), !mark_of(result).is_empty())
}

/// The median on the line of the run, and on one of its own the repetition that lost most, where
/// that is another.
pub(super) fn losses(made: &Made<'_>) -> Vec<Placed> {
    let Some(lost) = lost(made.result) else { return Vec::new() };
    let mut placed = on_its_line(made, Some(Point::single(made.run.x, lost.median)));
    if lost.worst > lost.median {
        let line = format!("{}, worst repetition", line_of(made));
        placed.push((line, Point::single(made.run.x, lost.worst)));
    }
    placed
}

/// What the run with this line and x lost, or that it has no result.
pub(super) fn lost_at(made: &[Made<'_>], series: &str, x: f64) -> String {
    let found = made.iter().find(|made| made.run.series == series && made.run.x == x);
    found.and_then(|made| lost(made.result)).map_or_else(|| "no result".to_owned(), Lost::shown)
}

fn spread(x: f64, values: Vec<f64>) -> Option<Point> {
    let Samples { median, p1, p99, values } = Samples::of(values);
    (!values.is_empty()).then_some(Point { x, y: median, low: p1, high: p99 })
}

/// What the line of bounds is called.
pub(super) const AT_LEAST: &str = "at least";

/// A rate, or what is known of it where the tester was slower than the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) value: f64,
    /// The device does at least this: the tester ended before it.
    pub(super) is_least: bool,
    /// A CPU was away in the trial that decided it.
    pub(super) is_disturbed: bool,
}

impl Rate {
    /// An exact figure of this result.
    pub(super) fn exact(value: f64, result: &Value) -> Rate {
        Rate { value, is_least: false, is_disturbed: !mark_of(result).is_empty() }
    }

    /// What stands before the figure.
    pub(super) fn sign(self) -> &'static str {
        if self.is_least { "≥ " } else { "" }
    }

    /// What stands behind the figure.
    fn mark(self) -> &'static str {
        mark_if(self.is_disturbed)
    }

    /// `751 k`, `≥ 751 k`, or `751 k* frames/s`.
    pub(super) fn shown(rate: Option<Rate>, unit: &str) -> String {
        let Some(rate) = rate else { return shown(None, unit) };
        format!("{}{}{} {unit}", rate.sign(), short(rate.value), rate.mark()).trim_end().to_owned()
    }

    /// In millions, with two places.
    pub(super) fn in_millions(self) -> String {
        format!("{}{:.2}{}", self.sign(), self.value * 1e-6, self.mark())
    }

    /// How many times another rate this is: `2.5`, `≥ 2.5`, `≤ 2.5`; nothing where one is missing,
    /// and why not where both are bounds.
    pub(super) fn times(this: Option<Rate>, other: Option<Rate>) -> String {
        let (Some(this), Some(other)) = (this, other) else { return "no result of both".to_owned() };
        let sign = match (this.is_least, other.is_least) {
            (false, false) => "",
            (true, false) => "≥ ",
            (false, true) => "≤ ",
            (true, true) => return "not known: both are bounds".to_owned(),
        };
        let mark = mark_if(this.is_disturbed || other.is_disturbed);
        match other.value > 0.0 {
            true => format!("{sign}{:.2}{mark}", this.value / other.value),
            false => String::new(),
        }
    }
}

/// The rate a run found: a bound where the tester ended before the device, or may have.
pub(super) fn rate(made: &Made<'_>) -> Option<Rate> {
    let is_least = near_ceiling(made.result).is_some();
    let found = samples(made, 1.0).map(|point| Rate { is_least, ..Rate::exact(point.y, made.result) });
    found.or_else(|| {
        let value = made.result.pointer("/result/at_least")?.as_f64()?;
        Some(Rate { value, is_least: true, is_disturbed: false })
    })
}

/// Connections a table holds, of all repetitions the median: a bound where the tester had no more
/// of them in one of these.
pub(super) fn capacity(made: &Made<'_>) -> Option<Rate> {
    let value = samples(made, 1.0)?.y;
    let ended = |repetition: &Value| repetition.get("failed").is_none_or(Value::is_null);
    let is_least = made.result.pointer("/result/repetitions")?.as_array()?.iter().any(ended);
    Some(Rate { is_least, ..Rate::exact(value, made.result) })
}

/// Bytes of memory that a connection takes in the device of this result.
pub(super) fn bytes_per_connection(result: &Value) -> Option<f64> {
    let bytes: f64 = result.pointer("/device/bytes_per_connection")?.as_str()?.parse().ok()?;
    (bytes > 0.0).then_some(bytes)
}

/// Rates on the line of the run, multiplied; those of which only a bound is known on one of its
/// own.
pub(super) fn rates(made: &Made<'_>, factor: f64) -> Vec<Placed> {
    match rate(made) {
        Some(Rate { value, is_least: true, .. }) => {
            vec![(format!("{}, {AT_LEAST}", line_of(made)), Point::single(made.run.x, value * factor))]
        }
        _ => on_its_line(made, samples(made, factor)),
    }
}

/// On the line of the run.
pub(super) fn on_its_line(made: &Made<'_>, point: Option<Point>) -> Vec<Placed> {
    point.map(|point| (line_of(made), point)).into_iter().collect()
}

/// The line of the run. Disturbed points have a line of their own, as bounds have.
fn line_of(made: &Made<'_>) -> String {
    match mark_of(made.result) {
        "" => made.run.series.clone(),
        mark => format!("{}, disturbed{mark}", made.run.series),
    }
}

/// A figure as people write it, or that there is none.
pub(super) fn shown(figure: Option<f64>, unit: &str) -> String {
    figure.map_or_else(|| "no result".to_owned(), |figure| format!("{} {unit}", short(figure)).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::plan::Run;
    use super::*;

    fn run() -> Run {
        Run { series: "natrix".to_owned(), x: 64.0, arguments: Vec::new(), seconds: 1, load: None }
    }

    #[test]
    fn figures_are_read_from_results_of_each_form() {
        let run = run();
        let result = json!({"result": {"samples": {"median": 2e6, "p1": 1e6, "p99": 3e6, "values": [1e6, 2e6, 3e6]}}});
        let point = samples(&Made { run: &run, result: &result }, 1e-6).unwrap();
        assert_eq!((point.x, point.y, point.low, point.high), (64.0, 2.0, 1.0, 3.0));
        let delays = json!({"result": {"repetitions": [
            {"delays": [{"typical_us": 5.0}, {"typical_us": 7.0}]},
            {"delays": [{"typical_us": 4.0}]},
            {"delays": [{"typical_us": 9.0}]},
        ]}});
        let made = Made { run: &run, result: &delays };
        let point = delay(&made, "typical_us").unwrap();
        assert_eq!(point.y, 7.0, "the worse way of each");
        assert!(
            (point.low - 4.06).abs() < 1e-9 && (point.high - 8.96).abs() < 1e-9,
            "1st and 99th percentile: {point:?}"
        );
        assert_eq!(spread(1.0, vec![4.0, 6.0]).unwrap().y, 5.0, "the median of an even number");
        assert_eq!(lost(made.result), None, "nobody knows of how many");
        assert_eq!(number(&Made { run: &run, result: &json!({"ns": 3.0}) }, "/ns", 2.0).unwrap().y, 6.0);
        assert_eq!(samples(&Made { run: &run, result: &json!({}) }, 1.0), None);
    }

    #[test]
    fn loss_is_a_share_of_all_frames_sent_in_the_trial_that_counts() {
        let trial = |repetition: u32, phase: &str, sent: u32, lost: u32, void: bool| json!({"repetition": repetition, "phase": phase, "sent": sent, "lost": lost, "void": void});
        // Of 240 000 frames the delay of 100 000 each way is taken.
        let once = json!({"lost": 2400, "delays": [{"frames": 59_000}, {"frames": 59_000}]});
        let result = json!({
            "result": {"repetitions": [once, {"lost": 0, "delays": []}, {"lost": 5, "delays": []}]},
            "trials": [
                trial(0, "preparation", 1000, 100, false), trial(0, "phase2", 240_000, 90_000, true), trial(0, "phase2", 240_000, 2400, false),
                trial(1, "phase2", 1000, 0, false), trial(2, "phase1", 1000, 5, false),
            ],
        });
        assert_eq!(lost(&result), Some(Lost { median: 0.5, worst: 1.0, repetitions: 3, is_disturbed: false }));
    }

    #[test]
    fn a_repetition_that_lost_is_not_hidden_by_more_that_did_not() {
        let trials: Vec<Value> = [0, 0, 0, 400, 400].into_iter().enumerate().map(|(repetition, lost)| json!({"repetition": repetition, "phase": "phase2", "sent": 1000, "lost": lost, "void": false})).collect();
        let result = json!({"result": {"repetitions": [{}, {}, {}, {}, {}]}, "trials": trials});
        let run = run();
        let made = Made { run: &run, result: &result };
        let all = lost(&result).unwrap();
        assert!(!all.is_none());
        assert_eq!(all.shown(), "median 0 %, worst 40 % of 5");
        assert_eq!(lost_at(&[Made { run: &run, result: &result }], "natrix", 64.0), all.shown());
        let lines = losses(&made).into_iter().map(|(line, point)| (line, point.y)).collect::<Vec<_>>();
        assert_eq!(lines, [("natrix".to_owned(), 0.0), ("natrix, worst repetition".to_owned(), 40.0)]);
        assert_eq!([percent(0.0), percent(0.000_01), percent(2.5)], ["0 %", "less than 0.001 %", "2.5 %"]);
    }

    #[test]
    fn a_table_that_the_tester_could_not_fill_is_a_bound() {
        let run = run();
        let found = |failed: Value| {
            let result = json!({"result": {"samples": {"median": 21_398.0}, "repetitions": [{"stored": 21_398, "failed": failed}]}});
            Rate::shown(capacity(&Made { run: &run, result: &result }), "")
        };
        assert_eq!([found(Value::Null), found(json!(22_000))], ["≥ 21.4 k", "21.4 k"]);
    }

    #[test]
    fn a_bound_is_shown_as_one_and_never_on_the_line_of_results() {
        let run = run();
        let (exact, bound) =
            (json!({"result": {"samples": {"median": 2e5}}}), json!({"result": {"samples": null, "at_least": 5e5}}));
        let of = |result| rate(&Made { run: &run, result });
        let (exact_rate, bound_rate) = (of(&exact), of(&bound));
        assert_eq!([exact_rate, bound_rate, None].map(|rate| Rate::shown(rate, "")), ["200 k", "≥ 500 k", "no result"]);
        assert_eq!(Rate::times(bound_rate, exact_rate), "≥ 2.50");
        assert_eq!(Rate::times(exact_rate, bound_rate), "≤ 0.40");
        assert_eq!(Rate::times(exact_rate, exact_rate), "1.00");
        assert_eq!(Rate::times(bound_rate, bound_rate), "not known: both are bounds");
        assert_eq!(Rate::times(None, exact_rate), "no result of both");
        let placed = |result| rates(&Made { run: &run, result }, 1e-6);
        let [(line, point)] = &placed(&exact)[..] else { panic!("one point") };
        assert!(line == "natrix" && (point.y - 0.2).abs() < 1e-9);
        assert_eq!(placed(&bound)[0].1.y, 0.5);
        assert!(placed(&bound)[0].0.starts_with("natrix, at least"));
        assert!(samples(&Made { run: &run, result: &bound }, 1.0).is_none());
    }

    #[test]
    fn a_disturbed_figure_has_a_mark_and_a_line_of_its_own() {
        let run = run();
        let result = |disturbed: u32| {
            json!({
                "result": {"samples": {"median": 2e5}, "repetitions": [{}], "disturbed": disturbed},
                "trials": [{"repetition": 0, "phase": "phase2", "sent": 100, "lost": 3, "void": false}],
            })
        };
        let (calm, busy) = (result(0), result(1));
        let of = |result| rate(&Made { run: &run, result });
        assert_eq!(Rate::shown(of(&busy), "frames/s"), "200 k* frames/s");
        assert_eq!(of(&busy).unwrap().in_millions(), "0.20*");
        assert_eq!([Rate::times(of(&busy), of(&calm)), Rate::times(of(&calm), of(&busy))], ["1.00*", "1.00*"]);
        assert_eq!([&calm, &busy].map(|result| lost(result).unwrap().shown()), ["3 %", "3 %*"]);
        let line = |result| rates(&Made { run: &run, result }, 1.0).swap_remove(0).0;
        assert_eq!([&calm, &busy].map(line), ["natrix", "natrix, disturbed*"]);
    }

    #[test]
    fn a_result_at_the_testers_own_ceiling_is_a_bound() {
        let run = run();
        let of = |share: Value| {
            let result = json!({"result": {"samples": {"median": 938e3}}, "ceiling": {"share": share}});
            let made = Made { run: &run, result: &result };
            (Rate::shown(rate(&made), ""), rates(&made, 1e-6).swap_remove(0).0)
        };
        assert_eq!(of(json!(1.0004)), ("≥ 938 k".to_owned(), "natrix, at least".to_owned()));
        assert_eq!(of(json!(0.9)).0, "≥ 938 k");
        for far in [json!(0.89), Value::Null] {
            assert_eq!(of(far), ("938 k".to_owned(), "natrix".to_owned()));
        }
    }
}
