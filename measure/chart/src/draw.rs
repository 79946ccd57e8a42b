//! One chart as SVG: lines where the horizontal axis counts, bars where it names.

use core::ops::Range;

use plotters::chart::ChartBuilder;
use plotters::chart::ChartContext;
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::DefaultFormatting;
use plotters::coord::ranged1d::KeyPointHint;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::DrawingArea;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::drawing::IntoDrawingArea;
use plotters::element::Circle;
use plotters::element::DashedPathElement;
use plotters::element::DynElement;
use plotters::element::IntoDynElement;
use plotters::element::PathElement;
use plotters::element::Rectangle;
use plotters::prelude::Cartesian2d;
use plotters::prelude::DrawingBackend;
use plotters::prelude::SVGBackend;
use plotters::series::DashedLineSeries;
use plotters::series::LineSeries;
use plotters::style::Color;
use plotters::style::RGBColor;
use plotters::style::WHITE;

use crate::Axis;
use crate::Chart;
use crate::Point;
use crate::Series;
use crate::short;
use crate::ticks;

/// How a chart looks.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// Pixels; it is higher by the room that long names need below.
    pub size: (u32, u32),
    /// Whether its title stands above it.
    pub is_titled: bool,
    /// Where the names of its lines are; None: elsewhere, with [`colour`].
    pub legend: Option<Corner>,
    /// A value that is to be reached.
    pub mark: Option<Mark>,
}

/// An upper corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corner {
    /// The left one.
    Left,
    /// The right one.
    Right,
}

/// A horizontal line.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// What it means.
    pub label: String,
    /// Where it is.
    pub y: f64,
}

/// Colours that people with any eyesight can distinguish (Okabe and Ito).
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
/// Of a line with gaps, pixels.
const DASH: u32 = 6;
const GAP: u32 = 4;
/// Height of a line of names, and about the width of a letter, pixels.
const NAME_LINE: i32 = 15;
const NAME_LETTER: usize = 7;
/// Letters of a line of an upright name, where there is room for more of them.
const NAME_LETTERS: usize = 22;
/// Pixels below an axis that has numbers, and around and left of what is drawn.
const NUMBERS_HEIGHT: u32 = 46;
const MARGIN: u32 = 12;
const NUMBERS_WIDTH: u32 = 76;
const GRID: RGBColor = RGBColor(225, 225, 225);
const MARK_COLOUR: RGBColor = RGBColor(150, 150, 150);

/// A chart could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chart {title:?}: cannot be drawn ({reason}); this is a fault of Natrix, please report it")]
pub struct ChartError {
    title: String,
    reason: String,
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

/// What a line is drawn with.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pen {
    colour: RGBColor,
    /// Where all colours have gone before, lines have gaps, and points are rings.
    has_gaps: bool,
}

impl Pen {
    /// By the place of a line among the lines.
    fn of(place: usize) -> Pen {
        Pen { colour: COLOURS[place % COLOURS.len()], has_gaps: place / COLOURS.len() % 2 == 1 }
    }
}

/// What a line looks like by its place among the lines: a background, as CSS has it.
pub fn swatch(place: usize) -> String {
    let Pen { colour: RGBColor(red, green, blue), has_gaps } = Pen::of(place);
    let colour = format!("#{red:02x}{green:02x}{blue:02x}");
    match has_gaps {
        false => colour,
        true => format!("repeating-linear-gradient(90deg, {colour} 0 {DASH}px, transparent {DASH}px {}px)", DASH + GAP),
    }
}

/// The chart, as an `svg` element.
///
/// # Errors
/// What the drawing library says.
pub fn svg(chart: &Chart, look: &Look) -> Result<String, ChartError> {
    let mut text = String::new();
    let (width, height) = look.size;
    let named = named(&chart.x.names, width.saturating_sub(NUMBERS_WIDTH + 2 * MARGIN));
    let size = (width, height + room_for(&named).saturating_sub(NUMBERS_HEIGHT));
    draw(chart, look, &named, &SVGBackend::with_string(&mut text, size).into_drawing_area())
        .map_err(|error| ChartError { title: chart.title.clone(), reason: error.to_string() })?;
    Ok(text)
}

fn points(chart: &Chart) -> impl Iterator<Item = &Point> + Clone {
    chart.series.iter().flat_map(|series| &series.points)
}

/// From the least to the most, with room at both ends; a logarithmic axis has no zero.
fn range(axis: &Axis, values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let high = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if axis.logarithmic {
        let low = values.filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let (low, high) = if low.is_finite() { (low, high) } else { (1.0, 10.0) };
        low / 1.5..high * 1.5
    } else {
        let room = if high > 0.0 { high * 1.08 } else { 1.0 };
        0.0..room
    }
}

fn draw<B: DrawingBackend>(
    chart: &Chart,
    look: &Look,
    named: &[Vec<String>],
    area: &DrawingArea<B, Shift>,
) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let mark = look.mark.iter().map(|mark| mark.y);
    let y = range(&chart.y, points(chart).flat_map(|point| [point.low, point.y, point.high]).chain(mark));
    let x = if chart.x.names.is_empty() {
        range(&chart.x, points(chart).map(|point| point.x))
    } else {
        0.0..chart.x.names.len() as f64
    };
    let mut builder = ChartBuilder::on(area);
    if look.is_titled {
        builder.caption(&chart.title, ("sans-serif", 22));
    }
    builder.margin(MARGIN).x_label_area_size(room_for(named)).y_label_area_size(NUMBERS_WIDTH);
    let x_ends = [x.start, x.end];
    let multiplied = |range: &Range<f64>| range.clone().log_scale().with_key_points(ticks::logarithmic(range));
    let are_wholes = points(chart).all(|point| point.x.fract() == 0.0);
    // Names stand where the numbers would.
    let numbers = |range: &Range<f64>| match &chart.x.names[..] {
        [] => ticks::linear(range, are_wholes),
        _ => Vec::new(),
    };
    let added = |range: &Range<f64>| Added { axis: range.clone().into(), ticks: numbers(range) };
    match (chart.x.logarithmic, chart.y.logarithmic) {
        (false, false) => {
            fill(&mut builder.build_cartesian_2d(added(&x), y.clone())?, chart, (look, named), (x_ends, y))?
        }
        (true, false) => {
            fill(&mut builder.build_cartesian_2d(multiplied(&x), y.clone())?, chart, (look, named), (x_ends, y))?
        }
        (false, true) => {
            fill(&mut builder.build_cartesian_2d(added(&x), multiplied(&y))?, chart, (look, named), (x_ends, y))?
        }
        (true, true) => {
            fill(&mut builder.build_cartesian_2d(multiplied(&x), multiplied(&y))?, chart, (look, named), (x_ends, y))?
        }
    }
    area.present()
}

/// An axis whose steps add, with these numbers: the library's own has no way to choose them.
struct Added {
    axis: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ranged for Added {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.axis.map(value, limit)
    }

    fn key_points<H: KeyPointHint>(&self, hint: H) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.axis.range()
    }
}

/// What stands beside an axis: one whose steps multiply says so, as it has no zero.
fn described(axis: &Axis) -> String {
    if axis.logarithmic { format!("{}, logarithmic", axis.label) } else { axis.label.clone() }
}

fn fill<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    (look, named): (&Look, &[Vec<String>]),
    (x_ends, y): ([f64; 2], Range<f64>),
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let number = |value: &f64| short(*value);
    let names = chart.x.names.len();
    let mut mesh = context.configure_mesh();
    mesh.x_desc(described(&chart.x))
        .y_desc(described(&chart.y))
        .y_label_formatter(&number)
        .axis_desc_style(("sans-serif", 15))
        .label_style(("sans-serif", 13))
        .bold_line_style(GRID)
        .light_line_style(WHITE);
    if names == 0 {
        mesh.x_label_formatter(&number).draw()?;
    } else {
        // Names stand below their bars.
        mesh.x_labels(0).disable_x_mesh().draw()?;
    }
    if let Some(mark) = &look.mark {
        let ends = x_ends.map(|x| (x, mark.y));
        let drawn = context.draw_series(LineSeries::new(ends, MARK_COLOUR.stroke_width(2)))?;
        let pen = Pen { colour: MARK_COLOUR, has_gaps: false };
        drawn.label(mark.label.as_str()).legend(move |place| sample(place, pen));
    }
    if names > 0 {
        bars(context, chart, named, y)?;
    } else {
        for (place, series) in chart.series.iter().enumerate() {
            line(context, chart, series, Pen::of(place))?;
        }
    }
    let Some(corner) = look.legend else { return Ok(()) };
    let position = match corner {
        Corner::Left => SeriesLabelPosition::UpperLeft,
        Corner::Right => SeriesLabelPosition::UpperRight,
    };
    let mut labels = context.configure_series_labels();
    labels.position(position).background_style(WHITE.mix(0.8)).border_style(MARK_COLOUR);
    labels.label_font(("sans-serif", 14)).draw()
}

/// A piece of a line, beside its name.
fn sample<B: DrawingBackend>((x, y): (i32, i32), pen: Pen) -> DynElement<'static, B, (i32, i32)> {
    let Pen { colour, has_gaps } = pen;
    let piece = [(x, y), (x + 20, y)];
    match has_gaps {
        false => PathElement::new(piece, colour.stroke_width(2)).into_dyn(),
        true => DashedPathElement::new(piece, DASH, GAP, colour.stroke_width(2)).into_dyn(),
    }
}

/// A value that the axis can show.
fn shown(axis: &Axis, value: f64) -> bool {
    !axis.logarithmic || value > 0.0
}

fn line<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    series: &Series,
    pen: Pen,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let all = || series.points.iter().filter(|point| shown(&chart.x, point.x) && shown(&chart.y, point.y));
    let path: Vec<(f64, f64)> = all().map(|point| (point.x, point.y)).collect();
    let Pen { colour, has_gaps } = pen;
    let drawn = match has_gaps {
        false => context.draw_series(LineSeries::new(path, colour.stroke_width(2)))?,
        true => context.draw_series(DashedLineSeries::new(path, DASH, GAP, colour.stroke_width(2)))?,
    };
    drawn.label(series.name.as_str()).legend(move |place| sample(place, pen));
    let dot = if has_gaps { colour.stroke_width(1) } else { colour.filled() };
    context.draw_series(all().map(|point| Circle::new((point.x, point.y), 3, dot)))?;
    // From the 1st percentile to the 99th.
    let spread = all().filter(|point| point.low < point.high && shown(&chart.y, point.low));
    context.draw_series(
        spread.map(|point| PathElement::new([(point.x, point.low), (point.x, point.high)], colour.stroke_width(1))),
    )?;
    Ok(())
}

/// A bar for each point, next to those of other lines of the same name. A logarithmic axis has no
/// zero that a bar could begin at, so the length would mislead: it gets dots.
fn bars<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    named: &[Vec<String>],
    y: Range<f64>,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    // A line without a point of this name needs no room there.
    let has = |series: &Series, x: f64| series.points.iter().any(|point| point.x == x);
    let beside = |x: f64| chart.series.iter().filter(|series| has(series, x)).count();
    let most = (0..chart.x.names.len()).map(|place| beside(place as f64)).max();
    let width = 0.8 / most.unwrap_or(1).max(1) as f64;
    for (place, series) in chart.series.iter().enumerate() {
        let Pen { colour, .. } = Pen::of(place);
        let all = || series.points.iter().filter(|point| shown(&chart.y, point.y));
        let left = |x: f64| {
            let before = chart.series[..place].iter().filter(|series| has(series, x)).count();
            x + 0.1 + before as f64 * width
        };
        if chart.y.logarithmic {
            let middle = |x: f64| left(x) + width / 2.0;
            context.draw_series(all().map(|point| Circle::new((middle(point.x), point.y), 5, colour.filled())))?;
            let spread = all().filter(|point| point.low < point.high && shown(&chart.y, point.low));
            let spread = spread.map(|point| [point.low, point.high].map(|y| (middle(point.x), y)));
            context.draw_series(spread.map(|ends| PathElement::new(ends, colour.stroke_width(2))))?;
        } else {
            let bar = |point: &Point| {
                let left = left(point.x);
                Rectangle::new([(left, y.start), (left + width * 0.95, point.y)], colour.filled())
            };
            context.draw_series(all().map(bar))?;
        }
    }
    names(context, named, y.start)
}

/// Many names stand upright.
const fn is_upright<T>(names: &[T]) -> bool {
    names.len() > 4
}

/// A name in lines of so many letters at most, whole words each.
fn lines_of(name: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Names below an axis of so many pixels, in lines: as few letters each as there is room beside the
/// next name.
fn named(names: &[String], pixels: u32) -> Vec<Vec<String>> {
    let room = pixels as usize / names.len().max(1);
    let all = |letters: usize| names.iter().map(|name| lines_of(name, letters)).collect::<Vec<_>>();
    if !is_upright(names) {
        return all((room / NAME_LETTER).max(1));
    }
    let most = (room / NAME_LINE as usize).max(1);
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let fitting = (NAME_LETTERS..longest).map(all).find(|names| names.iter().all(|lines| lines.len() <= most));
    fitting.unwrap_or_else(|| all(longest))
}

/// Pixels below the axis that names need, and the numbers where there are none.
fn room_for(named: &[Vec<String>]) -> u32 {
    if is_upright(named) {
        let longest = named.iter().flatten().map(|line| line.chars().count()).max();
        return (longest.unwrap_or_default() * NAME_LETTER) as u32 + 16;
    }
    let most = named.iter().map(Vec::len).max().unwrap_or(1).max(1);
    NUMBERS_HEIGHT + NAME_LINE as u32 * (most as u32 - 1)
}

/// The names below the axis.
fn names<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    named: &[Vec<String>],
    bottom: f64,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    use plotters::style::FontTransform;
    use plotters::style::IntoFont;
    use plotters::style::IntoTextStyle;
    use plotters::style::text_anchor::HPos;
    use plotters::style::text_anchor::Pos;
    use plotters::style::text_anchor::VPos;
    let area = context.plotting_area().strip_coord_spec();
    let is_upright = is_upright(named);
    for (place, lines) in named.iter().enumerate() {
        let (x, y) = context.backend_coord(&(place as f64 + 0.5, bottom));
        let (left, top) = area.get_base_pixel();
        for (number, line) in lines.iter().enumerate() {
            let font = ("sans-serif", 13).into_font();
            let number = number as i32;
            let (style, x, y) = if is_upright {
                let font = font.transform(FontTransform::Rotate270);
                let style = font.into_text_style(&area).pos(Pos::new(HPos::Right, VPos::Center));
                (style, x + NAME_LINE * number - NAME_LINE * (lines.len() as i32 - 1) / 2, y)
            } else {
                (font.into_text_style(&area).pos(Pos::new(HPos::Center, VPos::Top)), x, y + NAME_LINE * number)
            };
            area.draw_text(line, &style, (x - left, y - top + 8))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: Look = Look { size: (860, 400), is_titled: false, legend: None, mark: None };

    fn axis(logarithmic: bool, names: &[&str]) -> Axis {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Axis { label: "across".to_owned(), logarithmic, names }
    }

    fn chart(x: Axis, y: Axis, values: &[(f64, f64)]) -> Chart {
        let point = |(x, y): &(f64, f64)| Point { x: *x, y: *y, low: y / 2.0, high: y * 2.0 };
        let series = ["natrix", "netfilter"]
            .map(|name| Series { name: name.to_owned(), points: values.iter().map(point).collect() })
            .to_vec();
        Chart { title: "a".to_owned(), x, y, series }
    }

    #[test]
    fn where_there_are_names_there_are_no_numbers_beside_them() {
        let drawn =
            svg(&chart(axis(false, &["whole", "in pieces"]), axis(false, &[]), &[(0.0, 1.0), (1.0, 2.0)]), &BARE);
        let drawn = drawn.expect("it is drawn");
        let texts: Vec<&str> =
            drawn.lines().map(str::trim).filter(|line| !line.starts_with('<') && !line.is_empty()).collect();
        assert!(texts.contains(&"whole") && texts.contains(&"in pieces"), "{texts:?}");
        // The library writes its own numbers so; those of the other axis are shorter.
        assert!(!texts.iter().any(|text| text.ends_with(".0")), "{texts:?}");
    }

    #[test]
    fn charts_of_each_kind_show_their_points_and_names() {
        for logarithmic in [false, true] {
            let drawn = svg(&chart(axis(true, &[]), axis(logarithmic, &[]), &[(1.0, 5.0), (1e6, 9.0)]), &BARE).unwrap();
            assert_eq!(drawn.matches("<circle").count(), 4, "{drawn}");
            assert!(drawn.contains("across"));
        }
        let drawn =
            svg(&chart(axis(false, &["whole", "in pieces"]), axis(false, &[]), &[(0.0, 1.0), (1.0, 2.0)]), &BARE)
                .unwrap();
        assert!(drawn.contains("in pieces") && drawn.matches("<rect").count() >= 5, "{drawn}");
    }

    /// The texts of a drawing, in order.
    fn texts(drawn: &str) -> Vec<&str> {
        drawn
            .split("<text")
            .skip(1)
            .filter_map(|text| text.split('>').nth(1)?.split('<').next())
            .map(str::trim)
            .collect()
    }

    #[test]
    fn an_axis_within_a_decade_has_numbers_and_says_logarithmic() {
        let mut narrow = chart(axis(false, &[]), axis(true, &[]), &[(1.0, 248.0), (9.0, 407.0)]);
        let points = narrow.series.iter_mut().flat_map(|series| &mut series.points);
        points.for_each(|point| *point = Point::single(point.x, point.y));
        let drawn = svg(&narrow, &BARE).unwrap();
        let texts = texts(&drawn);
        assert!(["200", "300", "400", "500", "600"].iter().all(|number| texts.contains(number)), "{texts:?}");
        assert!(texts.contains(&"across, logarithmic") && texts.contains(&"across"), "{texts:?}");
    }

    #[test]
    fn more_lines_than_colours_are_distinguished() {
        let all: std::collections::BTreeSet<String> = (0..2 * COLOURS.len()).map(swatch).collect();
        assert_eq!(all.len(), 2 * COLOURS.len());
        let mut ten = chart(axis(false, &[]), axis(false, &[]), &[(1.0, 5.0), (9.0, 8.0)]);
        let one = ten.series.swap_remove(0);
        ten.series = (0..10).map(|number| Series { name: format!("line {number}"), ..one.clone() }).collect();
        let look = Look { legend: Some(Corner::Left), ..BARE };
        let drawn = svg(&ten, &look).unwrap();
        // The first and the ninth have one colour; only the ninth is of many pieces and has rings.
        let blue: Vec<&str> = drawn.lines().filter(|line| line.contains("#0072B2")).collect();
        assert!(blue.iter().filter(|line| line.starts_with("<polyline")).count() > 20, "{blue:#?}");
        let circles = |filled: bool| {
            let is_one = |line: &&&str| line.starts_with("<circle") && line.contains("fill=\"none\"") != filled;
            blue.iter().filter(is_one).count()
        };
        assert_eq!((circles(true), circles(false)), (2, 2), "{blue:#?}");
    }

    #[test]
    fn long_names_are_whole_beside_each_other_and_within_the_chart() {
        let long = "Natrix (af-xdp), one core of the computer the paper priced";
        for count in [1, 4, 8, 24] {
            let mut names = vec![long, long];
            names.resize(count, "a router");
            let chart = chart(axis(false, &names), axis(false, &[]), &[(0.0, 3.0)]);
            let drawn = svg(&chart, &BARE).unwrap();
            let texts = texts(&drawn);
            let width = BARE.size.0 - NUMBERS_WIDTH - 2 * MARGIN;
            let named = named(&chart.x.names, width);
            let lines = &named[0];
            assert!(lines.iter().all(|line| texts.contains(&line.as_str())), "{texts:?}");
            assert_eq!(lines.join(" "), long);
            let letters = lines.iter().map(|line| line.chars().count()).max().unwrap();
            let (along, across) = (letters * NAME_LETTER, lines.len() * NAME_LINE as usize);
            let (wide, high) = if is_upright(&named) { (across, along) } else { (along, across) };
            assert!(wide * count <= width as usize, "{count}: {lines:?}");
            assert!(room_for(&named) as usize > high, "{count}: {lines:?}");
            let height = 400 + room_for(&named) - NUMBERS_HEIGHT;
            assert!(drawn.contains(&format!("height=\"{height}\"")), "{count}: what there is to see stays as high");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_dots_and_no_misleading_bars() {
        let drawn = |y: Axis| svg(&chart(axis(false, &["a", "b"]), y, &[(0.0, 3.0), (1.0, 900.0)]), &BARE).unwrap();
        let count = |drawn: &str| (drawn.matches("<rect").count(), drawn.matches("<circle").count());
        // The background is one, too.
        assert_eq!(count(&drawn(axis(false, &[]))), (5, 0));
        assert_eq!(count(&drawn(axis(true, &[]))), (1, 4));
    }

    #[test]
    fn charts_with_nothing_to_show_are_drawn_all_the_same() {
        for y in [false, true] {
            for values in [&[][..], &[(0.0, 0.0)][..], &[(64.0, 3.0)][..]] {
                assert!(svg(&chart(axis(false, &[]), axis(y, &[]), values), &BARE).unwrap().contains("<svg"));
            }
        }
    }

    #[test]
    fn a_chart_that_stands_alone_has_its_title_names_and_mark() {
        let mark = Some(Mark { label: "to be reached".to_owned(), y: 90.0 });
        let look = Look { is_titled: true, legend: Some(Corner::Left), mark, ..BARE };
        let alone = chart(axis(true, &[]), axis(true, &[]), &[(1.0, 5.0), (1e6, 9.0)]);
        let drawn = svg(&Chart { title: "what it is".to_owned(), ..alone.clone() }, &look).unwrap();
        for word in ["what it is", "to be reached", "natrix", "netfilter"] {
            assert!(drawn.contains(word), "{word}: {drawn}");
        }
        let bare = svg(&alone, &BARE).unwrap();
        assert!(!bare.contains("netfilter"), "{bare}");
    }
}
