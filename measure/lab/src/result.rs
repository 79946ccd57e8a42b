//! What a result says besides its figures: the machine, the versions, the command, the time.
//! Without these nobody can repeat it.
//!
//! One result is one JSON object, [`Record`]. Its keys stay: reports and studies read them.

use std::fs;
use std::process::Command;
use std::process::Stdio;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use serde::Deserialize;
use serde::Serialize;
use serde::Serializer;
use serde_json::Value;

/// Number of the form of [`Record`]; it grows when a key changes its meaning or goes.
pub const SCHEMA: u32 = 1;

/// The machine a result was taken on (RFC 9693 §5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of its CPUs.
    pub cpu: String,
    /// CPUs that are on.
    pub cpus: usize,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Distribution.
    pub system: String,
}

impl Machine {
    /// This machine, as far as it describes itself.
    pub fn this() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, key: &str, separator: char| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(separator)?.1.trim().trim_matches('"').to_owned())
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal", ':').unwrap_or_default();
        let kib: u64 = memory.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0);
        Machine {
            cpu: after(&read("/proc/cpuinfo"), "model name", ':').unwrap_or_else(|| "unknown".to_owned()),
            // Not those this thread may use: the tester is pinned.
            cpus: read("/proc/cpuinfo").lines().filter(|line| line.starts_with("processor")).count(),
            memory_mib: kib >> 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: after(&read("/etc/os-release"), "PRETTY_NAME", '=').unwrap_or_else(|| "unknown".to_owned()),
        }
    }
}

/// Words as one line that a shell takes apart into the same words.
pub fn command_line<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    let is_plain = |word: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:,=@%+".contains(letter);
        !word.is_empty() && word.chars().all(plain)
    };
    let quoted = |word: W| match word.as_ref() {
        word if is_plain(word) => word.to_owned(),
        word => format!("'{}'", word.replace('\'', r"'\''")),
    };
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// The command line of this process.
pub fn own_command_line() -> String {
    command_line(std::env::args_os().map(|word| word.to_string_lossy().into_owned()))
}

/// Names and values in the order in which they were given; one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(pub Vec<(&'static str, String)>);

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Who worked on a CPU during a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Number of the CPU.
    pub cpu: usize,
    /// What ran there.
    pub runs: Vec<String>,
}

/// What the tester can do with nothing between its two ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// How its ports were connected.
    pub loopback: String,
    /// The highest rate without loss, frames a second, both ways together.
    pub frames_per_second: f64,
    /// Where these are the segments of handshakes, as those of the test are: its connections a
    /// second. None where they are data.
    #[serde(default)]
    pub connections_per_second: Option<f64>,
    /// Seconds since 1970 when it was measured: before the test, or by a command before this one.
    pub measured_unix: u64,
    /// The result's rate in frames a second, as a share of it; None where the result is no rate.
    pub share: Option<f64>,
}

/// A result of this share of the tester's own ceiling says of the device only that it does no less.
pub const NEAR_CEILING: f64 = 0.9;

/// The share of the tester's own ceiling that a result is, where it is so near that the device may
/// do more.
pub fn near_ceiling(record: &Value) -> Option<f64> {
    record.pointer("/ceiling/share")?.as_f64().filter(|share| *share >= NEAR_CEILING)
}

/// Follows a figure that was decided by a trial in which a CPU was away.
pub const DISTURBED_MARK: char = '*';

/// What the mark means: below a table that has one.
pub const DISTURBED_NOTE: &str =
    "* measured while a CPU was taken away: this machine was too busy, and the device may be faster";

/// The mark of figures over all repetitions: where one of these was disturbed.
pub fn mark_of(record: &Value) -> &'static str {
    let count = record.pointer("/result/disturbed").and_then(Value::as_u64).unwrap_or(0);
    mark_if(count > 0)
}

/// The mark of figures of one repetition, counted from 0. Records of older releases do not say
/// which one was disturbed, so each may have been.
pub fn mark_of_repetition(record: &Value, repetition: usize) -> &'static str {
    match record.pointer("/result/disturbed_repetitions").and_then(Value::as_array) {
        Some(disturbed) => mark_if(disturbed.iter().any(|one| one.as_u64() == Some(repetition as u64))),
        None => mark_of(record),
    }
}

/// The mark of a step of a loss curve.
pub fn mark_of_step(step: &Value) -> &'static str {
    mark_if(step.get("disturbed").and_then(Value::as_u64).is_some_and(|count| count > 0))
}

/// The mark, or nothing.
pub(crate) fn mark_if(is_disturbed: bool) -> &'static str {
    if is_disturbed { "*" } else { "" }
}

/// The note, if one of these cells has the mark.
pub fn note_for<'a>(cells: impl IntoIterator<Item = &'a String>) -> Option<&'static str> {
    cells.into_iter().any(|cell| cell.contains(DISTURBED_MARK)).then_some(DISTURBED_NOTE)
}

/// Why only a bound is known of a result: what ended a search before the device did.
pub fn bound_by(record: &Value) -> &'static str {
    let failure = record.get("failure").and_then(Value::as_str).unwrap_or_default();
    if failure.starts_with(crate::experiment::RATE) { "no higher rate was asked for" } else { "the tester ended" }
}

/// One result, with all that is needed to repeat it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `cps`, `throughput` and so on.
    pub test: &'static str,
    /// The device: `natrix`, `netfilter` or `external`.
    pub dut: &'static str,
    /// How tester and device are connected: the tester's driver.
    pub transport: String,
    /// The parameters, by the names of RFC 9693 where it has one.
    pub parameters: Value,
    /// Unit of the figures in `result.samples`, and of delays.
    pub unit: &'static str,
    /// What came of it. `samples` has `values`, `median`, `p1` and `p99` where the result is one
    /// figure a repetition.
    pub result: Value,
    /// Every trial in order: the raw samples.
    pub trials: Vec<Trial>,
    /// Whether it was ended by a signal before all repetitions were made: what is here was measured
    /// until then.
    pub interrupted: bool,
    /// The tester alone; None where it was not asked for.
    pub ceiling: Option<Ceiling>,
    /// The device's version and settings.
    pub device: Settings,
    /// The machine.
    pub machine: Machine,
    /// Releases of what took part.
    pub versions: Settings,
    /// Seed of all pseudorandom orders.
    pub seed: u64,
    /// CPU of the tester, then those of the device where they are known.
    pub cpus: Vec<usize>,
    /// What each CPU was shared by.
    pub cores: Vec<Core>,
    /// Seconds since 1970 when it began.
    pub started_unix: u64,
    /// How long it took.
    pub took_seconds: f64,
    /// The command, as a shell takes it.
    pub command: String,
    /// Why there is no result, or why there are fewer repetitions than asked for, in one sentence.
    pub failure: Option<String>,
}

/// One trial, as it was: a raw sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// Number of the repetition it belongs to, from 0.
    pub repetition: u32,
    /// `preparation`, `phase1`, `validation` or `phase2`.
    pub phase: &'static str,
    /// Frames a second asked for, both ways together; answers are not among them, so that of TCP's
    /// handshakes these are connections.
    pub rate: f64,
    /// Frames a second that left.
    pub reached: f64,
    /// Frames sent.
    pub sent: u64,
    /// Frames sent in answer to others besides: the rest of TCP's handshakes.
    pub answers: u64,
    /// Frames missing, those that the device did not take among them.
    pub lost: u64,
    /// Frames and answers for which there was no room in the ring that the device has to empty.
    pub not_taken: u64,
    /// Frames that arrived and should not have, or not so.
    pub faults: u64,
    /// Frames without the tag of this trial: touched on their way, or of a trial before.
    pub forged: u64,
    /// Frames with the right tag and a wrong checksum.
    pub damaged: u64,
    /// Frames that came out of the end they were sent into.
    pub returned: u64,
    /// Seconds from the first frame to the last.
    pub seconds: f64,
    /// The longest that a frame left late, milliseconds: the tester was kept from its CPU so long.
    pub late_ms: f64,
    /// The longest that a CPU of the device was away, milliseconds, as far as somebody looked.
    pub away_ms: f64,
    /// Whether the tester itself was too slow, or a CPU was away and frames were lost, so that this
    /// shows nothing of the device.
    pub void: bool,
}

/// Releases of the programs that take part: the tester's, DPDK's, the kernel's and those of the
/// tools that set the device up.
pub fn versions(natrix: &str, dpdk: Option<&str>) -> Settings {
    let told = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let mut all = vec![("natrix", natrix.to_owned())];
    all.extend(dpdk.map(|dpdk| ("dpdk", dpdk.to_owned())));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    all.push(("linux", kernel.trim().to_owned()));
    all.extend(told("nft", "--version").map(|text| ("nft", text)));
    all.extend(told("ip", "-V").map(|text| ("iproute2", text)));
    Settings(all)
}

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_an_object_in_their_own_order() {
        let settings = Settings(vec![("workers", "1".to_owned()), ("drivers", "a b".to_owned())]);
        assert_eq!(serde_json::to_string(&settings).unwrap(), r#"{"workers":"1","drivers":"a b"}"#);
    }

    #[test]
    fn figures_of_a_disturbed_repetition_have_the_mark() {
        let record = json!({"result": {"disturbed": 2, "disturbed_repetitions": [0, 2]}});
        assert_eq!([0, 1, 2].map(|repetition| mark_of_repetition(&record, repetition)), ["*", "", "*"]);
        assert_eq!(mark_of(&record), "*", "they are among all");
        let older = json!({"result": {"disturbed": 1}});
        assert_eq!(mark_of_repetition(&older, 0), "*");
        let calm = json!({"result": {}});
        assert_eq!([mark_of(&calm), mark_of_repetition(&calm, 0)], ["", ""]);
        assert_eq!([json!({"disturbed": 1}), json!({"disturbed": 0})].map(|step| mark_of_step(&step)), ["*", ""]);
        assert!(DISTURBED_NOTE.starts_with(DISTURBED_MARK));
        assert_eq!(note_for(&["5 k* frames/s".to_owned()]), Some(DISTURBED_NOTE));
        assert_eq!(note_for(&["5 k frames/s".to_owned()]), None);
    }

    #[test]
    fn this_machine_has_a_kernel_and_cpus() {
        let machine = Machine::this();
        assert!(machine.cpus >= 1 && machine.memory_mib > 0, "{machine:?}");
        assert_eq!(versions("1", Some("2")).0[..2], [("natrix", "1".to_owned()), ("dpdk", "2".to_owned())]);
    }
}
