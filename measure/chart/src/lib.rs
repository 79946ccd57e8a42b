//! Charts of measurements: axes, lines and points as data ([`Chart`]), and drawn as SVG ([`svg`]).
//!
//! The report of the lab and the figures of the table study are drawn by this.

mod draw;
mod ticks;

use serde::Deserialize;
use serde::Serialize;

pub use draw::ChartError;
pub use draw::Corner;
pub use draw::Look;
pub use draw::Mark;
pub use draw::svg;
pub use draw::swatch;

/// A chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// Across.
    pub x: Axis,
    /// Up.
    pub y: Axis,
    /// Its lines.
    pub series: Vec<Series>,
}

/// An axis of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it counts, with the unit.
    pub label: String,
    /// Whether steps multiply.
    pub logarithmic: bool,
    /// Names instead of numbers: a point's x is a place among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// What it is called.
    pub name: String,
    /// Its points, by x.
    pub points: Vec<Point>,
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Across.
    pub x: f64,
    /// The median.
    pub y: f64,
    /// The 1st percentile.
    pub low: f64,
    /// The 99th.
    pub high: f64,
}

impl Point {
    /// A value that was measured once.
    pub const fn single(x: f64, y: f64) -> Point {
        Point { x, y, low: y, high: y }
    }
}

/// A number with three digits that count, and M, k or G where it is large.
pub fn short(number: f64) -> String {
    let (number, letter) = match number.abs() {
        1e9.. => (number / 1e9, " G"),
        1e6.. => (number / 1e6, " M"),
        1e4.. => (number / 1e3, " k"),
        _ => (number, ""),
    };
    let digits = match number.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        // What is not nothing is not shown as nothing.
        small if small > 0.0 => (2 - small.log10().floor() as i32).clamp(4, 12) as usize,
        _ => 0,
    };
    let text = format!("{number:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_short() {
        assert_eq!([0.0004, 0.0123, 0.099_96].map(short), ["0.0004", "0.0123", "0.1"]);
        let all = [0.0, 0.34, 5.0, 47.25, 8_000.0, 128_300.0, 65_500_000.0, 12e9].map(short);
        assert_eq!(all, ["0", "0.34", "5", "47.2", "8000", "128 k", "65.5 M", "12 G"]);
    }
}
