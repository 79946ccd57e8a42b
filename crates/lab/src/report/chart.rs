//! One chart as SVG: lines where the horizontal axis counts, bars where it names.

use core::ops::Range;

use plotters::chart::ChartBuilder;
use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::drawing::DrawingArea;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::drawing::IntoDrawingArea;
use plotters::element::Circle;
use plotters::element::PathElement;
use plotters::element::Rectangle;
use plotters::prelude::Cartesian2d;
use plotters::prelude::DrawingBackend;
use plotters::prelude::SVGBackend;
use plotters::series::LineSeries;
use plotters::style::Color;
use plotters::style::RGBColor;
use plotters::style::WHITE;

use crate::study::Axis;
use crate::study::Chart;
use crate::study::Point;
use crate::study::Series;
use crate::study::short;

/// Pixels of a chart.
const SIZE: (u32, u32) = (860, 400);
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

/// A chart could not be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("report: chart {title:?}: can not be drawn ({reason}); this is a fault of Natrix, please report it")]
pub struct ChartError {
    title: String,
    reason: String,
}

type Failure<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

/// The colour of a line by its place among the lines, as CSS has it.
pub(super) fn colour(place: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[place % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The chart, as an `svg` element.
pub(super) fn svg(chart: &Chart) -> Result<String, ChartError> {
    let mut text = String::new();
    draw(chart, &SVGBackend::with_string(&mut text, SIZE).into_drawing_area())
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

fn draw<B: DrawingBackend>(chart: &Chart, area: &DrawingArea<B, Shift>) -> Result<(), Failure<B>> {
    area.fill(&WHITE)?;
    let y = range(&chart.y, points(chart).flat_map(|point| [point.low, point.y, point.high]));
    let x = if chart.x.names.is_empty() {
        range(&chart.x, points(chart).map(|point| point.x))
    } else {
        0.0..chart.x.names.len() as f64
    };
    let mut builder = ChartBuilder::on(area);
    let labels = if chart.x.names.len() > 4 { 150 } else { 46 };
    builder.margin(12).x_label_area_size(labels).y_label_area_size(76);
    match (chart.x.logarithmic, chart.y.logarithmic) {
        (false, false) => fill(&mut builder.build_cartesian_2d(x, y.clone())?, chart, y)?,
        (true, false) => fill(&mut builder.build_cartesian_2d(x.log_scale(), y.clone())?, chart, y)?,
        (false, true) => fill(&mut builder.build_cartesian_2d(x, y.clone().log_scale())?, chart, y)?,
        (true, true) => fill(&mut builder.build_cartesian_2d(x.log_scale(), y.clone().log_scale())?, chart, y)?,
    }
    area.present()
}

fn fill<'a, B, X, Y>(
    context: &mut ChartContext<'a, B, Cartesian2d<X, Y>>,
    chart: &Chart,
    y: Range<f64>,
) -> Result<(), Failure<B>>
where
    B: DrawingBackend + 'a,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let number = |value: &f64| short(*value);
    let names = chart.x.names.len();
    let mut mesh = context.configure_mesh();
    mesh.x_desc(chart.x.label.as_str())
        .y_desc(chart.y.label.as_str())
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
    if names > 0 {
        bars(context, chart, y)?;
    } else {
        for (series, colour) in chart.series.iter().zip(COLOURS.iter().cycle()) {
            line(context, chart, series, *colour)?;
        }
    }
    Ok(())
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
    context.draw_series(LineSeries::new(all().map(|point| (point.x, point.y)), colour.stroke_width(2)))?;
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
            let drawn = svg(&chart(axis(true, &[]), axis(logarithmic, &[]), &[(1.0, 5.0), (1e6, 9.0)])).unwrap();
            assert_eq!(drawn.matches("<circle").count(), 4, "{drawn}");
            assert!(drawn.contains("across"));
        }
        let drawn =
            svg(&chart(axis(false, &["whole", "in pieces"]), axis(false, &[]), &[(0.0, 1.0), (1.0, 2.0)])).unwrap();
        assert!(drawn.contains("in pieces") && drawn.matches("<rect").count() >= 5, "{drawn}");
    }

    #[test]
    fn charts_with_nothing_to_show_are_drawn_all_the_same() {
        for y in [false, true] {
            for values in [&[][..], &[(0.0, 0.0)][..], &[(64.0, 3.0)][..]] {
                assert!(svg(&chart(axis(false, &[]), axis(y, &[]), values)).unwrap().contains("<svg"));
            }
        }
    }
}
