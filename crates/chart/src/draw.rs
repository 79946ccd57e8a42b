//! One chart as SVG: lines where the horizontal axis counts, bars where it names.

use core::ops::Range;

use plotters::chart::ChartBuilder;
use plotters::chart::ChartContext;
use plotters::chart::SeriesLabelPosition;
use plotters::coord::Shift;
use plotters::coord::combinators::BindKeyPoints;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::drawing::DrawingArea;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::drawing::IntoDrawingArea;
use plotters::element::Circle;
use plotters::element::DynElement;
use plotters::element::IntoDynElement;
use plotters::element::PathElement;
use plotters::element::Rectangle;
use plotters::prelude::Cartesian2d;
use plotters::prelude::DrawingBackend;
use plotters::prelude::SVGBackend;
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
    /// Pixels.
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
const GRID: RGBColor = RGBColor(225, 225, 225);
const MARK_COLOUR: RGBColor = RGBColor(150, 150, 150);

/// A chart could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chart {title:?}: can not be drawn ({reason}); this is a fault of Natrix, please report it")]
pub struct ChartError {
    title: String,
    reason: String,
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

/// The colour of a line by its place among the lines, as CSS has it.
pub fn colour(place: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[place % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The chart, as an `svg` element.
///
/// # Errors
/// What the drawing library says.
pub fn svg(chart: &Chart, look: &Look) -> Result<String, ChartError> {
    let mut text = String::new();
    draw(chart, look, &SVGBackend::with_string(&mut text, look.size).into_drawing_area())
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

fn draw<B: DrawingBackend>(chart: &Chart, look: &Look, area: &DrawingArea<B, Shift>) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let mark = look.mark.iter().map(|mark| mark.y);
    let y = range(&chart.y, points(chart).flat_map(|point| [point.low, point.y, point.high]).chain(mark));
    let x = if chart.x.names.is_empty() {
        range(&chart.x, points(chart).map(|point| point.x))
    } else {
        0.0..chart.x.names.len() as f64
    };
    let mut builder = ChartBuilder::on(area);
    let labels = if chart.x.names.len() > 4 { 150 } else { 46 };
    if look.is_titled {
        builder.caption(&chart.title, ("sans-serif", 22));
    }
    builder.margin(12).x_label_area_size(labels).y_label_area_size(76);
    let x_ends = [x.start, x.end];
    let multiplied = |range: &Range<f64>| range.clone().log_scale().with_key_points(ticks::logarithmic(range));
    match (chart.x.logarithmic, chart.y.logarithmic) {
        (false, false) => fill(&mut builder.build_cartesian_2d(x, y.clone())?, chart, look, (x_ends, y))?,
        (true, false) => fill(&mut builder.build_cartesian_2d(multiplied(&x), y.clone())?, chart, look, (x_ends, y))?,
        (false, true) => fill(&mut builder.build_cartesian_2d(x, multiplied(&y))?, chart, look, (x_ends, y))?,
        (true, true) => {
            fill(&mut builder.build_cartesian_2d(multiplied(&x), multiplied(&y))?, chart, look, (x_ends, y))?
        }
    }
    area.present()
}

/// What stands beside an axis: one whose steps multiply says so, as it has no zero.
fn described(axis: &Axis) -> String {
    if axis.logarithmic { format!("{}, logarithmic", axis.label) } else { axis.label.clone() }
}

fn fill<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    look: &Look,
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
        drawn.label(mark.label.as_str()).legend(|place| sample(place, MARK_COLOUR));
    }
    if names > 0 {
        bars(context, chart, y)?;
    } else {
        for (series, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
            line(context, chart, series, *colour)?;
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
fn sample<B: DrawingBackend>((x, y): (i32, i32), colour: RGBColor) -> DynElement<'static, B, (i32, i32)> {
    PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)).into_dyn()
}

/// A value that the axis can show.
fn shown(axis: &Axis, value: f64) -> bool {
    !axis.logarithmic || value > 0.0
}

fn line<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    series: &Series,
    colour: RGBColor,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let all = || series.points.iter().filter(|point| shown(&chart.x, point.x) && shown(&chart.y, point.y));
    let path = all().map(|point| (point.x, point.y));
    let drawn = context.draw_series(LineSeries::new(path, colour.stroke_width(2)))?;
    drawn.label(series.name.as_str()).legend(move |place| sample(place, colour));
    context.draw_series(all().map(|point| Circle::new((point.x, point.y), 3, colour.filled())))?;
    // From the 1st percentile to the 99th.
    let spread = all().filter(|point| point.low < point.high && shown(&chart.y, point.low));
    context.draw_series(
        spread.map(|point| PathElement::new([(point.x, point.low), (point.x, point.high)], colour.stroke_width(1))),
    )?;
    Ok(())
}

fn bars<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    y: Range<f64>,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let width = 0.8 / chart.series.len().max(1) as f64;
    for ((place, series), colour) in chart.series.iter().enumerate().zip(COLOURS.iter().cycle()) {
        let all = series.points.iter().filter(|point| shown(&chart.y, point.y));
        let bar = |point: &Point| {
            let left = point.x + 0.1 + place as f64 * width;
            Rectangle::new([(left, y.start), (left + width * 0.95, point.y)], colour.filled())
        };
        context.draw_series(all.map(bar))?;
    }
    names(context, chart, y.start)
}

/// The names below the axis; many of them stand upright.
fn names<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
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
    let many = chart.x.names.len() > 4;
    for (place, name) in chart.x.names.iter().enumerate() {
        let (x, y) = context.backend_coord(&(place as f64 + 0.5, bottom));
        let (left, top) = area.get_base_pixel();
        let font = ("sans-serif", 13).into_font();
        let style = if many {
            font.transform(FontTransform::Rotate270).into_text_style(&area).pos(Pos::new(HPos::Right, VPos::Center))
        } else {
            font.into_text_style(&area).pos(Pos::new(HPos::Center, VPos::Top))
        };
        area.draw_text(name, &style, (x - left, y - top + 8))?;
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
    fn an_axis_between_two_powers_of_ten_has_numbers_and_says_that_it_is_logarithmic() {
        let mut narrow = chart(axis(false, &[]), axis(true, &[]), &[(1.0, 248.0), (9.0, 407.0)]);
        let points = narrow.series.iter_mut().flat_map(|series| &mut series.points);
        points.for_each(|point| *point = Point::single(point.x, point.y));
        let drawn = svg(&narrow, &BARE).unwrap();
        let texts = texts(&drawn);
        assert!(["200", "300", "400", "500", "600"].iter().all(|number| texts.contains(number)), "{texts:?}");
        assert!(texts.contains(&"across, logarithmic") && texts.contains(&"across"), "{texts:?}");
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
