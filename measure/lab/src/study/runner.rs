//! Makes a study: starts each run as a process of its own, keeps its result, writes the study's
//! record after each.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::fs;
use std::io;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use super::catalogue::Options;
use super::catalogue::StudyName;
use super::extract::bytes_per_connection;
use super::plan::Load;
use super::plan::Made;
use super::plan::NOT_MADE;
use super::plan::Plan;
use super::plan::Run;
use super::record::RunRecord;
use super::record::SCHEMA;
use super::record::StudyRecord;
use super::summary::summary;
use crate::process::ask_to_end;
use crate::process::not_outliving;
use crate::result::Machine;
use crate::result::command_line;
use crate::result::own_command_line;
use crate::result::unix_now;
use crate::result::versions;

/// What another study measured within this time need not be measured again.
const LATELY_SECONDS: u64 = 3_600;
/// How often a run is looked at.
const TICK: Duration = Duration::from_millis(100);
/// What the tester can do alone, by what it was measured with; it is no result of a device.
pub(crate) const CEILINGS: &str = "ceilings.json";
/// A run that takes so many times as long as it should, and this many seconds more, is ended.
const OVERTIME: (u32, u64) = (20, 300);

/// Why a study could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// A file of results.
    #[error("results: {}: cannot be written ({source}); choose another folder with --results", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// This program.
    #[error("natrix: cannot be started again ({0}); start it by its path")]
    Itself(io::Error),
}

/// How far a study is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Runs that are over.
    pub done: usize,
    /// All of them.
    pub runs: usize,
    /// Seconds that what is left will take about.
    pub seconds_left: u64,
    /// What runs now; None when a run is over.
    pub running: Option<&'a str>,
    /// Why the last run has no result.
    pub failure: Option<&'a str>,
}

/// Makes a study and writes `NAME.study.json`, and a file for each run, into `folder`. A run whose
/// file is there already, of the same command, is not made again unless `again`. Ends early, with
/// what there is, once `stop` is set; the run under way is asked to end (SIGTERM).
///
/// # Errors
/// [`StudyError`]. A run without a result is none: its reason is in the record.
pub fn perform(
    name: StudyName,
    options: &Options,
    folder: &Path,
    again: bool,
    stop: &AtomicBool,
    mut on_progress: impl FnMut(&Progress<'_>),
) -> Result<StudyRecord, StudyError> {
    let program = std::env::current_exe().map_err(StudyError::Itself)?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| StudyError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(at(folder))?;
    let plan = name.plan(options);
    let (started_unix, started) = (unix_now(), Instant::now());
    let mut made: Vec<(usize, Value)> = Vec::new();
    let mut runs = Vec::new();
    for number in 0..plan.runs.len() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut file =
            format!("{name}-{:02}-{}-{}.json", number + 1, word(&plan.runs[number].series), plan.runs[number].x);
        let seconds_left = plan.runs[number..].iter().map(|run| u64::from(run.seconds)).sum();
        let progress = Progress { done: number, runs: plan.runs.len(), seconds_left, running: None, failure: None };
        let mut run = match loaded(&plan, number, &made) {
            Ok(run) => run,
            Err(NotMade { command, why }) => {
                on_progress(&Progress { done: number + 1, failure: Some(&why), ..progress });
                made.push((number, json!({ (NOT_MADE): why })));
                runs.push(RunRecord {
                    series: plan.runs[number].series.clone(),
                    command,
                    file,
                    took_seconds: 0.0,
                    failure: Some(why),
                    ceiling: None,
                    cores: Vec::new(),
                    kept_unix: None,
                    measured_unix: None,
                    summary: None,
                });
                let record = record(name, options, &plan, &made, runs.clone(), (started_unix, started));
                write(&record, folder)?;
                continue;
            }
        };
        // As anybody can repeat it, anywhere.
        let command = format!("natrix {} --json", command_line(&run.arguments));
        if has_ceiling(&run) {
            // The tester is the same for many runs: it is measured once an hour for all of them.
            run.arguments.extend(["--ceiling-file".to_owned(), folder.join(CEILINGS).display().to_string()]);
        }
        let run = &run;
        let path = folder.join(&file);
        let (begun, begun_unix) = (Instant::now(), unix_now());
        let kept = if again {
            None
        } else {
            kept(&path, &command).or_else(|| {
                let (other, output, began) = made_lately(folder, &command, unix_now())?;
                file = other;
                Some((output, began))
            })
        };
        let (Output { value, failure }, took_seconds, kept_unix) = match kept {
            Some((output, began)) => (output, 0.0, Some(began)),
            None => {
                let output = start(&program, run, stop, |elapsed| {
                    let seconds_left = seconds_left.saturating_sub(elapsed.min(u64::from(run.seconds)));
                    on_progress(&Progress { seconds_left, running: Some(&command), ..progress });
                })?;
                if let Some(value) = &output.value {
                    let whole = json!({
                        "schema": SCHEMA,
                        "command": command,
                        "machine": Machine::this(),
                        "version": env!("CARGO_PKG_VERSION"),
                        "versions": versions(env!("CARGO_PKG_VERSION"), None),
                        "seed": options.seed,
                        "started_unix": begun_unix,
                        "took_seconds": begun.elapsed().as_secs_f64(),
                        "output": value,
                        "failure": output.failure,
                    });
                    fs::write(&path, format!("{whole}\n")).map_err(at(&path))?;
                }
                (output, begun.elapsed().as_secs_f64(), None)
            }
        };
        let (ceiling, cores) = value.as_ref().map(|value| (ceiling(value), cores(value))).unwrap_or_default();
        let summary = value.as_ref().and_then(summary);
        if let Some(value) = value {
            made.push((number, value));
        }
        on_progress(&Progress { done: number + 1, failure: failure.as_deref(), ..progress });
        let series = run.series.clone();
        // A run without a result measured nothing.
        let measured_unix = kept_unix.or(failure.is_none().then_some(begun_unix));
        runs.push(RunRecord {
            series,
            command,
            file,
            took_seconds,
            failure,
            ceiling,
            cores,
            kept_unix,
            measured_unix,
            summary,
        });
        let record = record(name, options, &plan, &made, runs.clone(), (started_unix, started));
        write(&record, folder)?;
    }
    let mut record = record(name, options, &plan, &made, runs, (started_unix, started));
    record.interrupted = stop.load(Ordering::Relaxed);
    write(&record, folder)?;
    Ok(record)
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
struct Output {
    /// What it printed. There may be something besides a failure: what passed before the tester
    /// itself ended the search.
    value: Option<Value>,
    /// Why there is no result, in one sentence.
    failure: Option<String>,
}

impl Output {
    fn failed(why: impl Into<String>) -> Output {
        Output { value: None, failure: Some(why.into()) }
    }
}

/// Whether the tester's own ceiling stands beside its result.
fn has_ceiling(run: &Run) -> bool {
    let [first, test, ..] = &run.arguments[..] else { return false };
    first == "lab" && matches!(test.as_str(), "cps" | "throughput" | "loss" | "latency" | "capacity" | "teardown")
}

/// A run that was not made: nobody knows at what rate, or with what room.
#[derive(Debug)]
struct NotMade {
    /// What it would have been, a letter for what is not known.
    command: String,
    /// In one sentence.
    why: String,
}

/// A run with what an earlier one found for it.
fn loaded(plan: &Plan, number: usize, made: &[(usize, Value)]) -> Result<Run, NotMade> {
    let mut run = plan.runs[number].clone();
    let found = |other: usize| made.iter().find(|(number, _)| *number == other).map(|(_, result)| result);
    let (more, missing) = match run.load {
        None => return Ok(run),
        Some(Load::Rate { run: other, share }) => {
            let passed = |result: &Value| {
                let at = |pointer| result.pointer(pointer)?.as_f64();
                at("/result/samples/median").or_else(|| at("/result/at_least"))
            };
            let rate = found(other).and_then(passed).map(|median| median * share);
            let what = format!("its rate is to be {:.0} % of what run {} finds", share * 100.0, other + 1);
            (rate.map(|rate| vec![("--rate", format!("{rate:.0}"))]), ("--rate R", what))
        }
        Some(Load::Room { run: other, bytes }) => {
            let room = found(other).and_then(bytes_per_connection).map(|each| (bytes as f64 / each) as u64);
            let options = |room: u64| {
                // From half of it on, and within a twentieth.
                let (c0, error) = ((room / 2).max(1), (room / 20).max(1));
                vec![("--room", room.to_string()), ("--c0", c0.to_string()), ("--capacity-error", error.to_string())]
            };
            let what =
                format!("its room is to be {} MiB by the bytes a connection takes in run {}", bytes >> 20, other + 1);
            (room.filter(|room| *room > 0).map(options), ("--room N", what))
        }
    };
    let Some(more) = more else {
        let (option, what) = missing;
        return Err(NotMade {
            command: format!("natrix {} {option} --json", run.arguments.join(" ")),
            why: format!("not made: {what}, and that has no result"),
        });
    };
    run.arguments.extend(more.into_iter().flat_map(|(option, value)| [option.to_owned(), value]));
    Ok(run)
}

/// What the tester does alone, where a result says so.
fn ceiling(result: &Value) -> Option<f64> {
    result.pointer("/ceiling/frames_per_second")?.as_f64()
}

/// `CPU 0: tester, kernel of the tester's side`.
fn cores(result: &Value) -> Vec<String> {
    let core = |core: &Value| {
        let runs = core.get("runs")?.as_array()?.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
        Some(format!("CPU {}: {runs}", core.get("cpu")?))
    };
    result.get("cores").and_then(Value::as_array).into_iter().flatten().filter_map(core).collect()
}

/// A text that a file's name can have.
fn word(text: &str) -> String {
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect()
}

fn write(record: &StudyRecord, folder: &Path) -> Result<(), StudyError> {
    let path = folder.join(format!("{}.study.json", record.study));
    let written = serde_json::to_string_pretty(record).map_err(io::Error::from);
    written
        .and_then(|text| fs::write(&path, text + "\n"))
        .map_err(|source| StudyError::File { path: path.clone(), source })
}

fn record(
    name: StudyName,
    options: &Options,
    plan: &Plan,
    made: &[(usize, Value)],
    runs: Vec<RunRecord>,
    (started_unix, started): (u64, Instant),
) -> StudyRecord {
    let made: Vec<Made<'_>> = made.iter().map(|(number, result)| Made { run: &plan.runs[*number], result }).collect();
    StudyRecord {
        schema: SCHEMA,
        study: name.to_string(),
        question: plan.question.to_owned(),
        paper: plan.paper.clone(),
        method: plan.method.clone(),
        limits: plan.limits.clone(),
        quick: options.quick,
        interrupted: false,
        runs,
        charts: plan.draw(&made),
        tables: plan.tabulate(&made),
        machine: Machine::this(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        versions: versions(env!("CARGO_PKG_VERSION"), None)
            .0
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text))
            .collect(),
        seed: options.seed,
        command: own_command_line(),
        started_unix,
        took_seconds: started.elapsed().as_secs_f64(),
    }
}

/// What an earlier run of the same command printed, on this machine with this release, and when it
/// began.
fn kept(path: &Path, command: &str) -> Option<(Output, u64)> {
    let mut whole: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
    let here = (json!(Machine::this()), json!(env!("CARGO_PKG_VERSION")));
    if (whole.get("machine")?, whole.get("version")?) != (&here.0, &here.1) {
        return None;
    }
    let began = whole.get("started_unix")?.as_u64()?;
    let output = whole.get_mut("output")?.take();
    let was_interrupted = output.get("interrupted").and_then(Value::as_bool).unwrap_or(false);
    let failure = whole.get("failure").and_then(Value::as_str).map(str::to_owned);
    let is_it = whole.get("command")?.as_str()? == command && !was_interrupted;
    is_it.then_some((Output { value: Some(output), failure }, began))
}

/// The same of a run of another study in this folder, if it is of the last hour: studies have some
/// commands in common. With its file.
fn made_lately(folder: &Path, command: &str, now_unix: u64) -> Option<(String, Output, u64)> {
    let mut names: Vec<String> =
        fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let whole = |name: String| {
        let (output, began) = kept(&folder.join(&name), command)?;
        (now_unix.saturating_sub(began) < LATELY_SECONDS).then_some((name, output, began))
    };
    names.into_iter().filter(|name| name.ends_with(".json")).find_map(whole)
}

/// Runs one command to its end: what it printed, or the sentence in which it says why it printed
/// nothing.
fn start(program: &Path, run: &Run, stop: &AtomicBool, mut on_tick: impl FnMut(u64)) -> Result<Output, StudyError> {
    let mut child = not_outliving(program)
        .args(&run.arguments)
        .arg("--json")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(StudyError::Itself)?;
    let (out, errors) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let begun = Instant::now();
    let deadline = u64::from(run.seconds * OVERTIME.0) + OVERTIME.1;
    let mut was_asked = false;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(StudyError::Itself)? {
            break status;
        }
        let elapsed = begun.elapsed().as_secs();
        if !was_asked && (stop.load(Ordering::Relaxed) || elapsed > deadline) {
            was_asked = true;
            ask_to_end(child.id());
        }
        on_tick(elapsed);
        thread::sleep(TICK);
    };
    let text = |reader: JoinHandle<String>| reader.join().unwrap_or_default();
    let (out, errors) = (text(out), text(errors));
    if begun.elapsed().as_secs() > deadline {
        return Ok(Output::failed(format!("it was ended after {deadline} s; it should take {} s", run.seconds)));
    }
    let lines: Result<Vec<Value>, _> = out.lines().filter(|line| !line.is_empty()).map(serde_json::from_str).collect();
    // A run that was asked to end prints what it has, and that it is incomplete.
    let was_interrupted = |line: &Value| line.get("interrupted").and_then(Value::as_bool).unwrap_or(false);
    let is_bound = |line: &Value| line.pointer("/result/at_least").is_some_and(Value::is_number);
    if !status.success() && !lines.as_ref().is_ok_and(|lines| lines.iter().any(was_interrupted)) {
        if was_asked && lines.as_ref().is_ok_and(Vec::is_empty) {
            return Ok(Output::failed("it was ended before it had a result"));
        }
        let last = errors.lines().rfind(|line| line.starts_with("error: ")).or(errors.lines().last());
        let last = last.map_or_else(|| format!("it ended with {status} and said nothing"), str::to_owned);
        let value = lines.ok().and_then(|lines| lines.into_iter().find(is_bound));
        return Ok(Output { value, failure: Some(last.trim_start_matches("error: ").to_owned()) });
    }
    Ok(match lines {
        Ok(lines) if lines.is_empty() => Output::failed("it printed nothing"),
        Ok(mut lines) => {
            let value = if lines.len() == 1 { lines.remove(0) } else { Value::Array(lines) };
            Output { value: Some(value), failure: None }
        }
        Err(error) => Output::failed(format!("it did not print JSON ({error})")),
    })
}

/// Reads all that comes, so that the writer never waits.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error counts.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        let arguments = ["-c", script].map(str::to_owned).to_vec();
        Run { series: "a".to_owned(), x: 1.0, arguments, seconds: 1, load: None }
    }

    fn output(script: &str) -> Output {
        start(Path::new("/bin/sh"), &shell(script), &AtomicBool::new(false), |_| ()).unwrap()
    }

    fn started(script: &str) -> Result<Value, String> {
        let Output { value, failure } = output(script);
        failure.map_or_else(|| Ok(value.unwrap()), Err)
    }

    #[test]
    fn what_a_run_prints_is_its_result() {
        assert_eq!(started("echo '{\"a\": 1}'"), Ok(json!({"a": 1})));
        assert_eq!(started("echo 1; echo 2"), Ok(json!([1, 2])));
        assert_eq!(
            started("echo 'error: lab: no privileges (uid 1); become root' >&2; exit 1").unwrap_err(),
            "lab: no privileges (uid 1); become root"
        );
        assert!(started("exit 3").unwrap_err().contains("said nothing"));
        assert_eq!(started("true").unwrap_err(), "it printed nothing");
        assert!(started("echo hello").unwrap_err().starts_with("it did not print JSON"));
    }

    #[test]
    fn what_passed_before_the_tester_ended_is_kept_with_the_failure() {
        let script =
            "echo '{\"result\": {\"samples\": null, \"at_least\": 5000}}'; echo 'error: tester: slower' >&2; exit 1";
        let Output { value, failure } = output(script);
        let value = value.unwrap();
        assert_eq!((&value["result"]["at_least"], failure.as_deref()), (&json!(5000), Some("tester: slower")));
        assert_eq!(output("echo '{\"result\": {}}'; exit 1").value, None, "no other failure has a value");
        let half = Run { load: Some(Load::Rate { run: 0, share: 0.5 }), ..shell("") };
        let room = Run { load: Some(Load::Room { run: 0, bytes: 4 << 20 }), ..shell("") };
        let plan = Plan {
            question: "",
            paper: super::super::record::Paper { name: String::new(), machine: String::new() },
            method: String::new(),
            limits: String::new(),
            runs: vec![shell(""), half, room],
            charts: vec![],
            tables: vec![],
        };
        let rate = |made: &[(usize, Value)]| loaded(&plan, 1, made).unwrap().arguments[2..].to_vec();
        assert_eq!(rate(&[(0, value)]), ["--rate", "2500"]);
        assert_eq!(rate(&[(0, json!({"result": {"samples": {"median": 800}}}))]), ["--rate", "400"]);
        // Never at the rate it has by itself.
        for made in [&[][..], &[(0, json!({"result": {"samples": null}}))]] {
            let NotMade { command, why } = loaded(&plan, 1, made).unwrap_err();
            assert!(command.ends_with("--rate R --json"), "{command}");
            let shown = loaded(&plan, 2, made).unwrap_err().why;
            assert!(shown.contains("room is to be 4 MiB by the bytes a connection takes in run 1"), "{shown}");
            assert_eq!(why, "not made: its rate is to be 50 % of what run 1 finds, and that has no result");
        }
        let measured = [(0, json!({"device": {"bytes_per_connection": "419.4"}}))];
        let arguments = loaded(&plan, 2, &measured).unwrap().arguments;
        assert_eq!(arguments[2..], ["--room", "10000", "--c0", "5000", "--capacity-error", "500"]);
    }

    #[test]
    fn a_stop_request_ends_the_run_and_keeps_its_output() {
        let stop = AtomicBool::new(true);
        let script = "trap 'echo {\\\"interrupted\\\":true}; exit 1' TERM; for i in $(seq 100); do sleep 0.1; done";
        // The signal may come before the trap is set.
        let result = start(Path::new("/bin/sh"), &shell(script), &stop, |_| ()).unwrap();
        assert!(result.value == Some(json!({"interrupted": true})) || result.failure.is_some(), "{result:?}");
        // A remark is no reason.
        let result = start(Path::new("/bin/sh"), &shell("echo 'note: fewer' >&2; exec sleep 100"), &stop, |_| ());
        assert_eq!(result.unwrap(), Output::failed("it was ended before it had a result"));
    }

    #[test]
    fn a_result_has_the_testers_ceiling_and_shared_cpus() {
        let result =
            json!({"ceiling": {"frames_per_second": 5e5}, "cores": [{"cpu": 0, "runs": ["tester", "kernel"]}]});
        assert_eq!((ceiling(&result), cores(&result)), (Some(5e5), vec!["CPU 0: tester, kernel".to_owned()]));
        assert_eq!((ceiling(&json!({"ceiling": null})), cores(&json!([]))), (None, Vec::new()));
    }

    #[test]
    fn a_result_is_kept_for_the_same_command_only() {
        let folder = std::env::temp_dir().join(format!("natrix-study-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.json");
        let written = |more: Value| {
            let mut file = json!({
                "command": "natrix x --json", "output": {"n": 1}, "started_unix": 17,
                "machine": Machine::this(), "version": env!("CARGO_PKG_VERSION"),
            });
            file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            fs::write(&path, file.to_string()).unwrap();
        };
        written(json!({}));
        let whole = Output { value: Some(json!({"n": 1})), failure: None };
        assert_eq!(kept(&path, "natrix x --json"), Some((whole.clone(), 17)));
        assert_eq!(kept(&path, "natrix y --json"), None);
        // Another study may have the same command, for an hour.
        let lately = |command, now| made_lately(&folder, command, now);
        assert_eq!(lately("natrix x --json", 17 + 3_599), Some(("a.json".to_owned(), whole.clone(), 17)));
        assert_eq!((lately("natrix x --json", 17 + 3_600), lately("natrix y --json", 18)), (None, None));
        written(json!({"failure": "slow"}));
        assert_eq!(kept(&path, "natrix x --json"), Some((Output { failure: Some("slow".to_owned()), ..whole }, 17)));
        let machine = Machine { cpu: "another".to_owned(), ..Machine::this() };
        for other in [json!({"output": {"interrupted": true}}), json!({"version": "0"}), json!({"machine": machine})] {
            written(other);
            assert_eq!(kept(&path, "natrix x --json"), None);
            assert_eq!(made_lately(&folder, "natrix x --json", 18), None);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
