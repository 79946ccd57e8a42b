//! The paper's figures, drawn anew: cycles a packet and million packets a second over the number of
//! sessions, as SVG.

use chart::Axis;
use chart::Chart;
use chart::ChartError;
use chart::Corner;
use chart::Look;
use chart::Mark;
use chart::Point;
use chart::Series;

use super::kind::Kind;
use super::report::Row;

/// Pixels of a figure.
const SIZE: (u32, u32) = (900, 540);
/// What the paper asks for: cycles a packet at most.
const CYCLES_TARGET: f64 = 436.0;
/// And million packets a second at least.
const MPPS_TARGET: f64 = 5.5;
/// What the vertical axis shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Cycles,
    Mpps,
}

/// Which threads' rows a figure shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// Those of one thread.
    One,
    /// Each number of threads as a line of its own, if there was more than one.
    Each,
}

/// A figure: file name, title, vertical axis, structures.
struct Figure {
    name: &'static str,
    title: &'static str,
    unit: Unit,
    threads: Threads,
    structures: &'static [Kind],
}

const fn figure(name: &'static str, title: &'static str, unit: Unit, structures: &'static [Kind]) -> Figure {
    Figure { name, title, unit, threads: Threads::One, structures }
}

const TREES: &[Kind] = &[Kind::Bst, Kind::RbTree];
const HASH: &[Kind] = &[Kind::Bst, Kind::RbTree, Kind::Chain];
const COLLISIONS: &[Kind] = &[Kind::Chain, Kind::ChainTree, Kind::Bucket2, Kind::Bucket3];
const TODAY: &[Kind] = &[Kind::None, Kind::Bucket3, Kind::Hashbrown, Kind::DpdkHash, Kind::Natrix];

/// The figures by their numbers in the paper; 7 is this study's own.
const FIGURES: [Figure; 11] = [
    figure("figure-1-headers-cycles", "Packet changes only, no table", Unit::Cycles, &[Kind::None]),
    figure("figure-2.1-linear-cycles", "Linear search", Unit::Cycles, &[Kind::Linear]),
    figure("figure-2.2-linear-mpps", "Linear search", Unit::Mpps, &[Kind::Linear]),
    figure("figure-3.1-trees-cycles", "Binary trees and inbound array", Unit::Cycles, TREES),
    figure("figure-3.2-trees-mpps", "Binary trees and inbound array", Unit::Mpps, TREES),
    figure("figure-4-hash-mpps", "Hash table with chaining, beside the trees", Unit::Mpps, HASH),
    figure("figure-5.1-collisions-cycles", "Hash tables by collision resolution", Unit::Cycles, COLLISIONS),
    figure("figure-5.2-collisions-mpps", "Hash tables by collision resolution", Unit::Mpps, COLLISIONS),
    Figure {
        name: "figure-6-threads-mpps",
        title: "Threads, each with tables of its own",
        unit: Unit::Mpps,
        threads: Threads::Each,
        structures: &[Kind::Bucket2, Kind::Bucket3, Kind::Natrix],
    },
    figure("figure-7.1-today-cycles", "The paper's choice beside tables of today", Unit::Cycles, TODAY),
    figure("figure-7.2-today-mpps", "The paper's choice beside tables of today", Unit::Mpps, TODAY),
];

impl Figure {
    fn lines(&self, rows: &[Row]) -> Vec<Series> {
        let threads_max = rows.iter().map(|row| row.threads).max().unwrap_or(1);
        let threads = match self.threads {
            Threads::One => 1..=1,
            Threads::Each if threads_max == 1 => return Vec::new(),
            Threads::Each => 1..=threads_max,
        };
        let each = self.structures.iter().flat_map(|kind| threads.clone().map(move |threads| (*kind, threads)));
        let line = |(kind, threads): (Kind, usize)| {
            let of_line = rows.iter().filter(|row| row.structure == kind && row.threads == threads);
            let mut points: Vec<_> =
                of_line.map(|row| Point::single(f64::from(row.sessions), self.value(row))).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            let name = match self.threads {
                Threads::One => kind.name().to_owned(),
                Threads::Each => format!("{kind}, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            };
            Series { name, points }
        };
        each.map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn value(&self, row: &Row) -> f64 {
        match self.unit {
            Unit::Cycles => row.tsc_cycles_per_packet,
            Unit::Mpps => row.mpps,
        }
    }

    /// The vertical axis, what the paper asks for, and the corner where nothing is: cycles rise to
    /// the right, rates fall.
    fn vertical(&self) -> (Axis, f64, Corner) {
        let axis = |label: &str, logarithmic| Axis { label: label.to_owned(), logarithmic, names: Vec::new() };
        match self.unit {
            Unit::Cycles => (axis("TSC cycles a packet", true), CYCLES_TARGET, Corner::Left),
            Unit::Mpps => (axis("million packets a second", false), MPPS_TARGET, Corner::Right),
        }
    }
}

/// Draws all figures there are rows for: file names and their contents.
///
/// # Errors
/// What the drawing library says.
pub fn draw(rows: &[Row]) -> Result<Vec<(String, String)>, ChartError> {
    let mut drawn = Vec::new();
    for figure in &FIGURES {
        let series = figure.lines(rows);
        if series.is_empty() {
            continue;
        }
        let (y, target, corner) = figure.vertical();
        let x = Axis { label: "sessions".to_owned(), logarithmic: true, names: Vec::new() };
        let mark = Mark { label: format!("target of the paper: {target}"), y: target };
        let look = Look { size: SIZE, is_titled: true, legend: Some(corner), mark: Some(mark) };
        let chart = Chart { title: figure.title.to_owned(), x, y, series };
        drawn.push((format!("{}.svg", figure.name), chart::svg(&chart, &look)?));
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(structure: Kind, sessions: u32, threads: usize) -> Row {
        Row {
            structure,
            sessions,
            tsc_cycles_per_packet: 100.0,
            mpps: 20.0,
            bytes_per_session: 30.0,
            threads,
            new_cycles_per_packet: 120.0,
            answered_cycles_per_packet: 80.0,
        }
    }

    fn names(rows: &[Row]) -> Vec<String> {
        draw(rows).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn figures_are_drawn_for_what_was_measured_and_no_others() {
        assert_eq!(names(&[]), [""; 0]);
        let bst = row(Kind::Bst, 1_000, 1);
        assert_eq!(
            names(&[bst]),
            ["figure-3.1-trees-cycles.svg", "figure-3.2-trees-mpps.svg", "figure-4-hash-mpps.svg"]
        );
        let natrix = [row(Kind::Natrix, 1_000, 1), row(Kind::Natrix, 1_000, 2)];
        assert_eq!(
            names(&natrix),
            ["figure-6-threads-mpps.svg", "figure-7.1-today-cycles.svg", "figure-7.2-today-mpps.svg"]
        );
    }

    #[test]
    fn a_figure_names_its_lines_and_axes() {
        let rows = [row(Kind::Bst, 1_000, 1), row(Kind::Bst, 2_000_000, 1), row(Kind::RbTree, 1_000, 1)];
        let figures = draw(&rows).unwrap();
        let (_, svg) = &figures[0];
        for word in ["<svg", "Binary trees and inbound array", "bst", "rbtree", "TSC cycles a packet", "sessions"] {
            assert!(svg.contains(word), "{word}");
        }
        assert_eq!(svg.matches("<circle").count(), 3);
    }
}
