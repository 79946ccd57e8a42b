//! What the lab prints for people: its progress, and its results.

use core::fmt;
use core::time::Duration;
use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant;

use indicatif::ProgressBar;
use indicatif::ProgressState;
use indicatif::ProgressStyle;
use lab::experiment::Progress;
use lab::result::DISTURBED_NOTE;
use lab::result::bound_by;
use lab::result::mark_of;
use lab::result::mark_of_repetition;
use lab::result::mark_of_step;
use lab::result::near_ceiling;
use serde_json::Value;

/// Frames whose delay is taken at least (RFC 8219 §7.2).
const FRAMES_OF_RFC: u64 = 500;

/// A trial of at least this length is announced before it begins.
const LONG: Duration = Duration::from_secs(3);

/// How often the sign of being at work changes.
const BUSY_TICK: Duration = Duration::from_millis(200);

/// Progress on standard error: a bar with the time left on a terminal, elsewhere a line for each
/// trial, and one before each that takes long.
pub(super) struct ShownProgress {
    started: Instant,
    repetitions: u32,
    bar: Option<ProgressBar>,
    state: Arc<Mutex<Under>>,
}

/// What is under way, and how long what is over took.
#[derive(Clone, Copy, Debug)]
struct Under {
    /// When the trial under way began, and when it is over about; when the last one was.
    began: Instant,
    ends: Instant,
    ended: Instant,
    /// Whether it prepares others: it is seldom as long as these.
    is_preparation: bool,
    /// Trials that are not made yet, and preparations of repetitions that have not begun.
    to_be: u64,
    preparations_to_be: u64,
    /// Trials that are over, and how long they took: preparations, others.
    over: [(u32, Duration); 2],
}

impl Under {
    fn new(now: Instant) -> Under {
        let over = [(0, Duration::ZERO); 2];
        Under { began: now, ends: now, ended: now, is_preparation: false, to_be: 0, preparations_to_be: 0, over }
    }

    /// Seconds left, and whether it is that at least: before a trial is over nobody knows how long
    /// the others take.
    fn left(&self, now: Instant) -> (u64, bool) {
        let trial = self.ends.saturating_duration_since(now);
        let each = |(made, took): (u32, Duration)| took.checked_div(made).map(|each| each.as_secs_f64());
        let Some(other) = each(self.over[1]) else { return (trial.as_secs(), true) };
        let preparations = each(self.over[0]).unwrap_or_default() * self.preparations_to_be as f64;
        let whole = Duration::from_secs_f64(other * self.to_be as f64 + preparations);
        (whole.saturating_sub(now.saturating_duration_since(self.ended)).max(trial).as_secs(), false)
    }

    /// The trial under way is over.
    fn made(&mut self, now: Instant) {
        let (made, took) = &mut self.over[usize::from(!self.is_preparation)];
        (*made, *took) = (*made + 1, *took + now.saturating_duration_since(self.began));
        self.ended = now;
    }
}

impl ShownProgress {
    /// For a test of so many repetitions.
    pub(super) fn new(test: &'static str, repetitions: u32) -> ShownProgress {
        let now = Instant::now();
        let state = Arc::new(Mutex::new(Under::new(now)));
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(1);
            let shown = Arc::clone(&state);
            let left = move |_: &ProgressState, text: &mut dyn fmt::Write| {
                let Ok((seconds, at_least)) = shown.lock().map(|under| under.left(Instant::now())) else { return };
                let sign = if at_least { "more than " } else { "" };
                // It is only shown.
                let _ = write!(text, "{sign}{seconds} s");
            };
            // The template is a literal; without it the bar has another look.
            if let Ok(style) =
                ProgressStyle::with_template("{prefix} {spinner} [{bar:30}] {elapsed} gone, {left} left  {msg}")
            {
                bar.set_style(style.with_key("left", left));
            }
            bar.set_prefix(test);
            bar.set_message("the device is started");
            bar.enable_steady_tick(BUSY_TICK);
            bar
        });
        ShownProgress { started: now, repetitions, bar, state }
    }

    /// A trial begins that takes so long.
    pub(super) fn begins(&self, phase: &'static str, time: Duration) {
        if let Ok(mut under) = self.state.lock() {
            under.began = Instant::now();
            under.ends = under.began + time;
            under.is_preparation = phase == "preparation";
        }
        if time < LONG {
            return;
        }
        let line = format!("{phase} takes {} s", time.as_secs());
        match &self.bar {
            Some(bar) => bar.set_message(line),
            // A line that cannot be written has no reader.
            None => drop(writeln!(io::stderr(), "{:>6.1} s  {line}", self.started.elapsed().as_secs_f64())),
        }
    }

    /// A trial was made.
    pub(super) fn trial(&self, progress: &Progress) {
        let [made, expected] = progress.trials.map(u64::from);
        let expected = expected.max(made + 1);
        let made = u64::from(progress.repetitions) * expected + made;
        let all = u64::from(self.repetitions.max(1)) * expected;
        if let Ok(mut under) = self.state.lock() {
            under.made(Instant::now());
            under.to_be = all.saturating_sub(made);
            under.preparations_to_be = u64::from(self.repetitions.saturating_sub(progress.repetitions + 1));
        }
        let Some(bar) = &self.bar else {
            // A line that cannot be written has no reader.
            let _ = writeln!(io::stderr(), "{:>6.1} s  {}", self.started.elapsed().as_secs_f64(), progress.line);
            return;
        };
        bar.set_length(all);
        bar.set_position(made);
        bar.set_message(progress.line.clone());
    }
}

/// Something that takes a few seconds and prints nothing itself. Shows a sign of work on a terminal
/// until it is dropped; elsewhere prints a line.
pub(super) struct Busy(Option<ProgressBar>);

/// Shows that this is being done.
pub(super) fn busy(what: &'static str) -> Busy {
    if !io::stderr().is_terminal() {
        // A line that cannot be written has no reader.
        let _ = writeln!(io::stderr(), "{:>6.1} s  {what}", 0.0);
        return Busy(None);
    }
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.enable_steady_tick(BUSY_TICK);
    Busy(Some(bar))
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ShownProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The result for people.
pub(super) fn print(record: &Value, out: &mut dyn Write) -> io::Result<()> {
    let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
    writeln!(
        out,
        "{} of {} over {}: {} connections, frames of {}",
        text("test"),
        text("dut"),
        text("transport"),
        record["parameters"]["N"],
        match &record["parameters"]["frame_bytes"] {
            Value::Number(bytes) => format!("{bytes} bytes"),
            _ => "the Internet mix".to_owned(),
        }
    )?;
    if record["parameters"]["protocol"] == "tcp" {
        let what = if record["parameters"]["tcp_close"] == true { "opened and closed" } else { "opened" };
        // That of a ceiling stands in its result: only one of handshakes has it.
        let frames = &record["parameters"]["frames_per_connection"];
        match frames.as_u64().or_else(|| record["result"]["frames_per_connection"].as_u64()) {
            Some(frames) => writeln!(out, "  over TCP: each connection is {what} by {frames} frames")?,
            None => writeln!(out, "  over TCP: data on connections that exist")?,
        }
    }
    let result = &record["result"];
    let mark = mark_of(record);
    let repetitions = || result["repetitions"].as_array().into_iter().flatten();
    if let Some(samples) = result.get("samples") {
        let number = |key: &str| samples[key].as_f64().unwrap_or_default();
        let count = samples["values"].as_array().map_or(0, Vec::len);
        let unit = record["unit"].as_str().unwrap_or_default();
        match (count, result["at_least"].as_f64()) {
            (0, Some(passed)) => {
                writeln!(out, "  no result: {passed:.0} {unit} passed, then {}", bound_by(record))?;
            }
            (0, None) if record["failure"].is_string() => writeln!(out, "  no result")?,
            (0, None) => writeln!(out, "  no result: no repetition came to its end")?,
            (1.., _) => writeln!(
                out,
                "  median {:.0}{mark} {unit}, 1st percentile {:.0}{mark}, 99th {:.0}{mark}, of {count}",
                number("median"),
                number("p1"),
                number("p99")
            )?,
        }
    }
    for step in result["steps"].as_array().into_iter().flatten() {
        let number = |key: &str| step[key].as_f64().unwrap_or_default();
        let share = 100.0 * number("lost") / number("sent").max(1.0);
        let mark = mark_of_step(step);
        let (rate, lost, sent) = (number("rate"), &step["lost"], &step["sent"]);
        write!(out, "  {rate:>10.0} frames/s: {share:.4} %{mark} lost ({lost} of {sent})")?;
        let repeated = &step["lost_share"];
        if let count @ 2.. = repeated["values"].as_array().map_or(0, Vec::len) {
            let percent = |key: &str| 100.0 * repeated[key].as_f64().unwrap_or_default();
            let (median, p1, p99) = (percent("median"), percent("p1"), percent("p99"));
            write!(out, ", median {median:.4} %{mark}, 1st percentile {p1:.4}{mark}, 99th {p99:.4}{mark}, of {count}")?;
        }
        if let Some(missing) = step["not_sent"].as_u64().filter(|missing| *missing > 0) {
            write!(out, "; not sent in {missing} more: the tester was too slow")?;
        }
        if step["beyond_ceiling"] == true {
            write!(out, "; above the tester's own ceiling, so the tester may have lost these frames")?;
        }
        writeln!(out)?;
    }
    for step in result["not_sent"].as_array().into_iter().flatten() {
        let number = |key: &str| step[key].as_f64().unwrap_or_default();
        let (rate, reached) = (number("rate"), number("reached"));
        writeln!(
            out,
            "  {rate:>10.0} frames/s: no result, the tester is too slow ({reached:.0} frames/s at most in {} tries)",
            step["repetitions"]
        )?;
    }
    for (place, repetition) in repetitions().enumerate() {
        let mark = mark_of_repetition(record, place);
        for delays in repetition["delays"].as_array().into_iter().flatten() {
            let number = |key: &str| delays[key].as_f64().unwrap_or_default();
            writeln!(
                out,
                "  {:<8} typical {:.1}{mark} us, worst case {:.1}{mark} us, least {:.1}{mark}, most {:.1}{mark}, \
                 PDV {:.1}{mark}, {} frames, {}{mark} lost",
                delays["way"].as_str().unwrap_or_default(),
                number("typical_us"),
                number("worst_case_us"),
                number("min_us"),
                number("max_us"),
                number("pdv_us"),
                delays["frames"],
                repetition["lost"]
            )?;
            if delays["frames"].as_u64().is_some_and(|frames| frames < FRAMES_OF_RFC) {
                writeln!(out, "  {:<8} of fewer frames than the {FRAMES_OF_RFC} that RFC 8219 §7.2 wants", "")?;
            }
        }
    }
    for delays in result["over_repetitions"]["delays"].as_array().into_iter().flatten() {
        for (key, name) in [("typical_us", "typical"), ("worst_case_us", "worst case")] {
            let number = |figure: &str| delays[key][figure].as_f64().unwrap_or_default();
            let count = delays[key]["values"].as_array().map_or(0, Vec::len);
            if count > 1 {
                writeln!(
                    out,
                    "  {:<8} {name}: median {:.1}{mark} us, 1st percentile {:.1}{mark}, 99th {:.1}{mark}, of {count}",
                    delays["way"].as_str().unwrap_or_default(),
                    number("median"),
                    number("p1"),
                    number("p99")
                )?;
            }
        }
    }
    for teardown in repetitions().filter(|one| one.get("idle_seconds").is_some()) {
        let ms = |key: &str| 1e3 * teardown[key].as_f64().unwrap_or_default();
        let (took, idle) = (ms("seconds"), ms("idle_seconds"));
        writeln!(out, "  {} connections in {took:.1} ms; an empty table takes {idle:.1} ms", teardown["connections"])?;
    }
    for (place, capacity) in repetitions().enumerate().filter(|(_, one)| one.get("stored").is_some()) {
        let mark = mark_of_repetition(record, place);
        match capacity["failed"].as_u64() {
            Some(failed) => writeln!(out, "  {}{mark} connections held, {failed}{mark} not", capacity["stored"])?,
            None => writeln!(out, "  {}{mark} connections held; the tester has no more", capacity["stored"])?,
        }
    }
    if let (Some(failure), None) =
        (record["failure"].as_str(), result.get("samples").filter(|samples| samples.is_null()))
    {
        writeln!(out, "  fewer repetitions than asked for: {failure}")?;
    }
    if !mark.is_empty() {
        writeln!(out, "  {DISTURBED_NOTE}")?;
    }
    if let Some(ceiling) = record["ceiling"].as_object() {
        let share = ceiling["share"].as_f64();
        let of_it = share.map_or_else(String::new, |share| format!("; this is {:.0} % of it", 100.0 * share));
        let warning = near_ceiling(record).map_or("", |_| ", so the device may do more");
        let frames = format!("{:.0} frames/s", ceiling["frames_per_second"].as_f64().unwrap_or_default());
        let rate = match ceiling["connections_per_second"].as_f64() {
            Some(connections) => format!("{connections:.0} connections/s by handshakes ({frames})"),
            None => frames,
        };
        writeln!(
            out,
            "  the tester alone: {rate} over {}{of_it}{warning}",
            ceiling["loopback"].as_str().unwrap_or_default()
        )?;
    }
    let machine = &record["machine"];
    writeln!(
        out,
        "  on {}, {} CPUs, Linux {}; {}",
        machine["cpu"].as_str().unwrap_or_default(),
        machine["cpus"],
        machine["kernel"].as_str().unwrap_or_default(),
        cpus_text(&record["cpus"])
    )
}

/// `tester on CPU 0, device on CPU 1`.
fn cpus_text(cpus: &Value) -> String {
    let cpus: Vec<String> = cpus.as_array().into_iter().flatten().map(Value::to_string).collect();
    match &cpus[..] {
        [] => String::new(),
        [tester] => format!("tester on CPU {tester}"),
        [tester, device] => format!("tester on CPU {tester}, device on CPU {device}"),
        [tester, device @ ..] => format!("tester on CPU {tester}, device on CPUs {}", device.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn printed(result: &Value) -> String {
        let mut out = Vec::new();
        print(&json!({ "unit": "frames/s", "result": result }), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn loss_and_delays_of_several_repetitions_are_summarised() {
        let step = |values: &[f64]| {
            let share = json!({ "values": values, "median": 0.02, "p1": 0.01, "p99": 0.03 });
            printed(&json!({ "steps": [{ "rate": 500.0, "sent": 300, "lost": 6, "lost_share": share }] }))
        };
        let text = step(&[0.01, 0.02, 0.03]);
        let whole =
            "500 frames/s: 2.0000 % lost (6 of 300), median 2.0000 %, 1st percentile 1.0000, 99th 3.0000, of 3\n";
        assert!(text.contains(whole), "{text}");
        assert!(step(&[0.02]).contains("500 frames/s: 2.0000 % lost (6 of 300)\n"));
        let figure = json!({ "values": [4.0, 6.0], "median": 5.0, "p1": 4.02, "p99": 5.98 });
        let delays = json!([{ "way": "inbound", "typical_us": figure, "worst_case_us": figure }]);
        let text = printed(&json!({ "repetitions": [], "over_repetitions": { "delays": delays } }));
        assert!(text.contains("  inbound  typical: median 5.0 us, 1st percentile 4.0, 99th 6.0, of 2\n"), "{text}");
        assert!(text.contains("  inbound  worst case: median 5.0 us"), "{text}");
    }

    #[test]
    fn each_disturbed_figure_has_a_mark_and_a_footnote_says_why() {
        let samples = json!({ "values": [5.0, 6.0, 7.0], "median": 6.0, "p1": 5.0, "p99": 7.0 });
        let rates = printed(&json!({ "samples": samples, "disturbed": 1, "disturbed_repetitions": [2] }));
        let note =
            "\n  * measured while a CPU was taken away: this machine was too busy, and the device may be faster\n";
        assert!(rates.contains("  median 6* frames/s, 1st percentile 5*, 99th 7*, of 3\n"), "{rates}");
        assert_eq!(rates.matches(note).count(), 1, "{rates}");
        // Figures of one repetition, and steps of a curve, have it only where they were disturbed.
        let delays = |frames: u32| json!({ "delays": [{ "way": "inbound", "typical_us": 4.0, "frames": frames }] });
        let both = json!([delays(600), delays(700)]);
        let text = printed(&json!({ "repetitions": both, "disturbed": 1, "disturbed_repetitions": [1] }));
        assert!(text.contains("  inbound  typical 4.0 us, worst case"), "{text}");
        assert!(text.contains("  inbound  typical 4.0* us, worst case") && text.contains(note), "{text}");
        let held = json!([{ "stored": 100, "failed": 200 }, { "stored": 90, "failed": 100 }]);
        let text = printed(&json!({ "repetitions": held, "disturbed": 1, "disturbed_repetitions": [1] }));
        assert!(text.contains("  100 connections held, 200 not\n  90* connections held, 100* not\n"), "{text}");
        let step = |rate: f64, disturbed: u32| json!({ "rate": rate, "sent": 100, "lost": 1, "disturbed": disturbed });
        let text = printed(&json!({ "steps": [step(900.0, 1), step(800.0, 0)], "disturbed": 1 }));
        assert!(
            text.contains(" 900 frames/s: 1.0000 %* lost") && text.contains(" 800 frames/s: 1.0000 % lost"),
            "{text}"
        );
        assert!(!printed(&json!({ "samples": samples })).contains('*'));
    }

    #[test]
    fn a_step_not_sent_is_shown_and_one_beyond_the_ceiling_marked() {
        let share = json!({ "values": [0.4], "median": 0.4, "p1": 0.4, "p99": 0.4 });
        let step = json!({ "rate": 500.0, "sent": 100, "lost": 40, "lost_share": share, "not_sent": 2, "beyond_ceiling": true });
        let missing = json!({ "rate": 2e6, "reached": 1.4e6, "repetitions": 2 });
        let text = printed(&json!({ "steps": [step], "not_sent": [missing] }));
        let marked = "40.0000 % lost (40 of 100); not sent in 2 more: the tester was too slow; above the tester's own ceiling, so the tester may have lost these frames\n";
        assert!(text.contains(marked), "{text}");
        let none = "  2000000 frames/s: no result, the tester is too slow (1400000 frames/s at most in 2 tries)\n";
        assert!(text.contains(none), "{text}");
    }

    #[test]
    fn the_time_left_covers_at_least_the_trial_under_way() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let mut under = Under { ends: after(20), is_preparation: true, ..Under::new(now) };
        assert_eq!([under.left(now), under.left(after(5))], [(20, true), (15, true)]);
        // The preparation has no effect on the trials.
        under.made(after(20));
        assert_eq!(under.left(after(20)), (0, true));
        (under.is_preparation, under.began) = (false, after(20));
        under.made(after(22));
        (under.to_be, under.preparations_to_be) = (4, 1);
        assert_eq!(under.left(after(22)), (4 * 2 + 20, false));
        assert_eq!(under.left(after(25)), (4 * 2 + 20 - 3, false));
        (under.to_be, under.preparations_to_be, under.ends) = (0, 0, after(30));
        assert_eq!(under.left(after(25)), (5, false), "the trial under way is not over");
    }

    #[test]
    fn a_teardown_shows_the_time_of_an_empty_table_and_known_cpus() {
        let text = printed(&json!({ "repetitions": [{ "connections": 500, "seconds": 0.025, "idle_seconds": 0.02 }] }));
        assert!(text.contains("  500 connections in 25.0 ms; an empty table takes 20.0 ms\n"), "{text}");
        let text = [json!([0]), json!([0, 1]), json!([3, 4, 5])].map(|cpus| cpus_text(&cpus));
        let all = ["tester on CPU 0", "tester on CPU 0, device on CPU 1", "tester on CPU 3, device on CPUs 4, 5"];
        assert_eq!(text, all);
    }

    #[test]
    fn a_failed_result_is_not_shown_as_a_figure() {
        let whole = printed(&json!({ "samples": { "values": [5.0], "median": 5.0, "p1": 5.0, "p99": 5.0 } }));
        assert!(whole.contains("  median 5 frames/s, 1st percentile 5, 99th 5, of 1\n"), "{whole}");
        let none = json!({ "values": [], "median": null, "p1": null, "p99": null });
        let interrupted = printed(&json!({ "samples": none }));
        assert!(interrupted.contains("  no result: no repetition came to its end\n"), "{interrupted}");
        let bound = printed(&json!({ "samples": null, "at_least": 7e5 }));
        assert!(bound.contains("  no result: 700000 frames/s passed, then the tester ended\n"), "{bound}");
    }
}
