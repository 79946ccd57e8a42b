//! The report: results as one HTML file that needs nothing besides itself.
//!
//! It reads a folder: the studies' records (`*.study.json`) and single results (any other `*.json`
//! that a test of the lab wrote).

mod page;
mod single;

use core::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use chart::ChartError;
use serde_json::Value;

use crate::study::CEILINGS;
use crate::study::StudyName;
use crate::study::StudyRecord;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder.
    #[error("results: {}: cannot be read ({source}); name the folder with --results", .path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Nothing is there.
    #[error("results: {}: holds no result (0 files); measure first, or let `natrix lab report --quick` do it", .0.display())]
    Empty(PathBuf),
    /// A chart.
    #[error("report: {0}")]
    Chart(#[from] ChartError),
}

/// What a folder holds.
#[derive(Debug, Default)]
pub struct Results {
    /// Studies, in the order of their names' list.
    pub studies: Vec<StudyRecord>,
    /// Single results that belong to no study, by file name.
    pub single: Vec<(String, Value)>,
    /// Files that are not results, with the reason that the report shows.
    pub unread: Vec<(String, String)>,
}

/// A result that a study points at: file name and content.
fn is_of_a_study(studies: &[StudyRecord], file: &str) -> bool {
    studies.iter().any(|study| study.runs.iter().any(|run| run.file == file))
}

impl Results {
    /// Reads a folder.
    ///
    /// # Errors
    /// [`ReportError`]: the folder cannot be read, or there is nothing in it.
    pub fn read(folder: &Path) -> Result<Results, ReportError> {
        let error = |source| ReportError::Folder { path: folder.to_owned(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(error)? {
            let name = entry.map_err(error)?.file_name();
            names.extend(name.to_str().filter(|name| name.ends_with(".json") && *name != CEILINGS).map(str::to_owned));
        }
        names.sort();
        let mut results = Results::default();
        let mut others = Vec::new();
        for name in names {
            let read = fs::read_to_string(folder.join(&name)).map_err(|error| error.to_string());
            if name.ends_with(".study.json") {
                match read.and_then(|text| serde_json::from_str(&text).map_err(|error| error.to_string())) {
                    Ok(study) => results.studies.push(study),
                    Err(reason) => results.unread.push((name, reason)),
                }
            } else {
                match read.and_then(|text| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string())) {
                    Ok(value) => others.push((name, value)),
                    Err(reason) => results.unread.push((name, reason)),
                }
            }
        }
        let place = |study: &StudyRecord| {
            StudyName::ALL.iter().position(|name| name.name() == study.study).unwrap_or(StudyName::ALL.len())
        };
        results.studies.sort_by_key(place);
        for (name, value) in others {
            if is_of_a_study(&results.studies, &name) {
                continue;
            }
            if value.get("test").is_some() {
                results.single.push((name, value));
            } else {
                results.unread.push((name, "not a result of the lab, and of no study here".to_owned()));
            }
        }
        if results.studies.is_empty() && results.single.is_empty() {
            return Err(ReportError::Empty(folder.to_owned()));
        }
        Ok(results)
    }

    /// The page.
    ///
    /// # Errors
    /// [`ReportError::Chart`].
    pub fn html(&self) -> Result<String, ReportError> {
        Ok(page::page(self)?)
    }
}

/// Seconds since 1970 as `2026-11-22 02:30 UTC`.
struct Utc(u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::from_second(self.0.try_into().unwrap_or(i64::MAX)).unwrap_or_default();
        write!(f, "{}", time.strftime("%Y-%m-%d %H:%M UTC"))
    }
}

#[cfg(test)]
mod tests;
