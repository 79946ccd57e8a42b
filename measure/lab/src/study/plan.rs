//! What a study is going to do.

use serde_json::Value;

use super::record::Paper;
use super::record::TableRecord;
use chart::Axis;
use chart::Chart;
use chart::Point;
use chart::Series;

/// The points that a result has for a chart.
pub(super) type Points = Box<dyn Fn(&Made<'_>) -> Vec<Placed>>;
/// The rows of a table, of all that was measured.
pub(super) type Rows = Box<dyn Fn(&[Made<'_>]) -> Vec<Vec<String>>>;

/// A study before it is made.
pub struct Plan {
    /// What is asked.
    pub question: &'static str,
    /// Whose experiment it is.
    pub paper: Paper,
    /// How it is measured.
    pub method: String,
    /// What it does not say.
    pub limits: String,
    /// What is run, in order.
    pub runs: Vec<Run>,
    pub(super) charts: Vec<ChartPlan>,
    pub(super) tables: Vec<TablePlan>,
}

/// A command of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The line of a chart it belongs to.
    pub series: String,
    /// Where on it.
    pub x: f64,
    /// What follows `natrix`, without `--json`.
    pub arguments: Vec<String>,
    /// How long it will take about, seconds.
    pub seconds: u32,
    /// What of it comes from an earlier run. Where that has no result, this one is not made.
    pub load: Option<Load>,
}

/// What an earlier run of a study, by its place, says for a later one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Its median, times this share, is the `--rate`.
    Rate {
        /// Which run.
        run: usize,
        /// The share.
        share: f64,
    },
    /// So many bytes, by those a connection took in it, are the `--room`.
    Room {
        /// Which run.
        run: usize,
        /// The memory.
        bytes: u64,
    },
}

/// A run and what it printed: one JSON object, or an array of those of its lines.
#[derive(Debug)]
pub(super) struct Made<'a> {
    pub(super) run: &'a Run,
    pub(super) result: &'a Value,
}

/// Key of what stands for the result of a run that was not made: why.
pub(super) const NOT_MADE: &str = "not_made";

impl Made<'_> {
    /// Why it was not made.
    pub(super) fn not_made(&self) -> Option<&str> {
        self.result.get(NOT_MADE)?.as_str()
    }
}

/// A place on a chart: line and point.
pub(super) type Placed = (String, Point);

pub(super) struct ChartPlan {
    pub(super) title: &'static str,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) points: Points,
}

pub(super) struct TablePlan {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    pub(super) rows: Rows,
}

impl Plan {
    /// The charts that there are points for.
    pub(super) fn draw(&self, made: &[Made<'_>]) -> Vec<Chart> {
        let charts = self.charts.iter().map(|plan| {
            let mut series: Vec<Series> = Vec::new();
            for (name, point) in made.iter().flat_map(|made| (plan.points)(made)) {
                match series.iter_mut().find(|series| series.name == name) {
                    Some(series) => series.points.push(point),
                    None => series.push(Series { name, points: vec![point] }),
                }
            }
            for series in &mut series {
                series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
                // Two results may both say what the price list says.
                series.points.dedup();
            }
            Chart { title: plan.title.to_owned(), x: plan.x.clone(), y: plan.y.clone(), series }
        });
        charts.filter(|chart| !chart.series.is_empty()).collect()
    }

    /// The tables that there are rows for.
    pub(super) fn tabulate(&self, made: &[Made<'_>]) -> Vec<TableRecord> {
        let tables = self.tables.iter().map(|plan| TableRecord {
            title: plan.title.to_owned(),
            columns: plan.columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: (plan.rows)(made),
        });
        tables.filter(|table| !table.rows.is_empty()).collect()
    }
}
