//! What a study leaves behind: one JSON object that a report is drawn from.

use chart::Chart;
use serde::Deserialize;
use serde::Serialize;

use super::summary::Summary;
use crate::result::Machine;

/// Number of the form of [`StudyRecord`]; it grows when a key changes its meaning or goes.
pub(super) const SCHEMA: u32 = 1;

/// The paper whose experiment is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paper {
    /// Who, what, when.
    pub name: String,
    /// What it was measured on there.
    pub machine: String,
}

/// A study, with all that is needed to repeat it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Number of the form of this object; it grows when a key changes its meaning or goes.
    pub schema: u32,
    /// Its name on the command line.
    pub study: String,
    /// What is asked.
    pub question: String,
    /// Whose experiment it is.
    pub paper: Paper,
    /// How it is measured.
    pub method: String,
    /// What it does not say.
    pub limits: String,
    /// Whether it was cut short by `--quick`.
    pub quick: bool,
    /// Whether it was ended before all runs were made.
    pub interrupted: bool,
    /// Each run, in order.
    pub runs: Vec<RunRecord>,
    /// The charts.
    pub charts: Vec<Chart>,
    /// The tables, that of the paper's figures among them.
    pub tables: Vec<TableRecord>,
    /// The machine.
    pub machine: Machine,
    /// Release of Natrix.
    pub version: String,
    /// Releases of Natrix, the kernel, and the tools that set devices up.
    #[serde(default)]
    pub versions: Vec<(String, String)>,
    /// Seed of all pseudorandom orders of its tests.
    #[serde(default)]
    pub seed: u64,
    /// The command.
    pub command: String,
    /// Seconds since 1970 when it began.
    pub started_unix: u64,
    /// How long it took.
    pub took_seconds: f64,
}

impl StudyRecord {
    /// From when to when its results were measured, seconds since 1970: that may be long before it
    /// was made, where all were there already.
    pub fn measured_unix(&self) -> (u64, u64) {
        let measured: Vec<u64> = self.runs.iter().filter_map(|run| run.measured_unix.or(run.kept_unix)).collect();
        // Older records have this date only for runs that were kept.
        let is_of_before = self.runs.iter().all(|run| run.measured_unix.is_none());
        let own = (is_of_before && measured.len() < self.runs.len()).then_some(self.started_unix);
        let times = || measured.iter().copied().chain(own);
        let (first, last) = (times().min(), times().max());
        (first.unwrap_or(self.started_unix), last.unwrap_or(self.started_unix))
    }
}

/// One run of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The line of a chart it belongs to.
    pub series: String,
    /// The command that repeats it.
    pub command: String,
    /// The file of its result, beside the study's.
    pub file: String,
    /// How long it took; 0 where the result was there already.
    pub took_seconds: f64,
    /// Why there is no result, in one sentence.
    pub failure: Option<String>,
    /// What the tester can do by itself, frames a second.
    #[serde(default)]
    pub ceiling: Option<f64>,
    /// What shared a CPU with what, as the result says.
    #[serde(default)]
    pub cores: Vec<String>,
    /// When its result was there already, of an earlier run on the same machine and release: when
    /// that began, seconds since 1970.
    #[serde(default)]
    pub kept_unix: Option<u64>,
    /// When its result was measured, seconds since 1970; None where there is none.
    #[serde(default)]
    pub measured_unix: Option<u64>,
    /// What it found, and with what.
    #[serde(default)]
    pub summary: Option<Summary>,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    /// What it shows.
    pub title: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// Its rows, a cell for each column.
    pub rows: Vec<Vec<String>>,
}
