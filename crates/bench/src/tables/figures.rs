//! The paper's figures, drawn anew: cycles a packet and million packets a second over the number of sessions, as SVG.

use plotters::chart::ChartBuilder;
use plotters::chart::ChartContext;
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::combinators::LogCoord;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::drawing::DrawingArea;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::drawing::IntoDrawingArea;
use plotters::element::Circle;
use plotters::element::PathElement;
use plotters::prelude::Cartesian2d;
use plotters::prelude::DrawingBackend;
use plotters::prelude::SVGBackend;
use plotters::series::LineSeries;
use plotters::style::Color;
use plotters::style::RGBColor;
use plotters::style::WHITE;

use super::kind::Kind;
use super::report::Row;

/// Pixels of a figure.
const SIZE: (u32, u32) = (900, 540);
/// What the paper asks for: cycles a packet at most.
const CYCLES_TARGET: f64 = 436.0;
/// And million packets a second at least.
const MPPS_TARGET: f64 = 5.5;
/// Colours that people with any eyesight tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(120, 94, 240),
];
const TARGET_COLOUR: RGBColor = RGBColor(150, 150, 150);

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

/// A figure could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bench tables: {figure}: can not be drawn ({reason}); this is a fault of Natrix, please report it")]
pub struct FigureError {
    figure: &'static str,
    reason: String,
}

/// A line of a figure.
struct Line {
    label: String,
    /// Sessions and value, by sessions.
    points: Vec<(f64, f64)>,
}

impl Figure {
    fn lines(&self, rows: &[Row]) -> Vec<Line> {
        let threads_max = rows.iter().map(|row| row.threads).max().unwrap_or(1);
        let threads = match self.threads {
            Threads::One => 1..=1,
            Threads::Each if threads_max == 1 => return Vec::new(),
            Threads::Each => 1..=threads_max,
        };
        let each = self.structures.iter().flat_map(|kind| threads.clone().map(move |threads| (*kind, threads)));
        let line = |(kind, threads): (Kind, usize)| {
            let of_line = rows.iter().filter(|row| row.structure == kind && row.threads == threads);
            let mut points: Vec<_> = of_line.map(|row| (f64::from(row.sessions), self.value(row))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let label = match self.threads {
                Threads::One => kind.name().to_owned(),
                Threads::Each => format!("{kind}, {threads} thread{}", if threads == 1 { "" } else { "s" }),
            };
            Line { label, points }
        };
        each.map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn value(&self, row: &Row) -> f64 {
        match self.unit {
            Unit::Cycles => row.tsc_cycles_per_packet,
            Unit::Mpps => row.mpps,
        }
    }
}

/// Draws all figures there are rows for: file names and their contents.
///
/// # Errors
/// What the drawing library says.
pub fn draw(rows: &[Row]) -> Result<Vec<(String, String)>, FigureError> {
    let mut drawn = Vec::new();
    for figure in &FIGURES {
        let lines = figure.lines(rows);
        if lines.is_empty() {
            continue;
        }
        let mut svg = String::new();
        draw_one(figure, &lines, &SVGBackend::with_string(&mut svg, SIZE).into_drawing_area())
            .map_err(|error| FigureError { figure: figure.name, reason: error.to_string() })?;
        drawn.push((format!("{}.svg", figure.name), svg));
    }
    Ok(drawn)
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn draw_one<B: DrawingBackend>(
    figure: &Figure,
    lines: &[Line],
    area: &DrawingArea<B, Shift>,
) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    // A single size gets a piece of axis on both sides.
    let left = points().map(|point| point.0).fold(f64::INFINITY, f64::min) / 1.5;
    let right = points().map(|point| point.0).fold(0.0, f64::max) * 1.5;
    let low = points().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.1).fold(0.0, f64::max);
    let mut builder = ChartBuilder::on(area);
    builder.caption(figure.title, ("sans-serif", 22)).margin(14).x_label_area_size(46).y_label_area_size(70);
    let sessions = (left..right).log_scale();
    match figure.unit {
        Unit::Cycles => {
            let (low, high) = (low.min(CYCLES_TARGET) / 1.5, high.max(CYCLES_TARGET) * 1.5);
            let mut chart = builder.build_cartesian_2d(sessions, (low..high).log_scale())?;
            // Cycles rise to the right and rates fall: the legend is where nothing is.
            let legend = SeriesLabelPosition::UpperLeft;
            fill_in(&mut chart, lines, "TSC cycles a packet", CYCLES_TARGET, (left, right), legend)
        }
        Unit::Mpps => {
            let mut chart = builder.build_cartesian_2d(sessions, 0.0..high.max(MPPS_TARGET) * 1.1)?;
            let legend = SeriesLabelPosition::UpperRight;
            fill_in(&mut chart, lines, "million packets a second", MPPS_TARGET, (left, right), legend)
        }
    }?;
    area.present()
}

/// A number of sessions as people write it.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{} M", number / 1e6),
        1e3.. => format!("{} k", number / 1e3),
        _ => number.to_string(),
    }
}

fn fill_in<'a, B, Y>(
    chart: &mut ChartContext<'a, B, Cartesian2d<LogCoord<f64>, Y>>,
    lines: &[Line],
    unit: &str,
    target: f64,
    (left, right): (f64, f64),
    legend: SeriesLabelPosition,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .x_desc("sessions")
        .y_desc(unit)
        .x_label_formatter(&|sessions| short(*sessions))
        .axis_desc_style(("sans-serif", 16))
        .label_style(("sans-serif", 14))
        .light_line_style(WHITE)
        .draw()?;
    chart
        .draw_series(LineSeries::new([(left, target), (right, target)], TARGET_COLOUR.stroke_width(2)))?
        .label(format!("target of the paper: {target}"))
        .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], TARGET_COLOUR.stroke_width(2)));
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
            .label(line.label.as_str())
            .legend(|(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.8))
        .border_style(TARGET_COLOUR)
        .label_font(("sans-serif", 14))
        .draw()
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

    #[test]
    fn sessions_are_written_short() {
        assert_eq!([short(500.0), short(1_000.0), short(2_500_000.0)], ["500", "1 k", "2.5 M"]);
    }
}
