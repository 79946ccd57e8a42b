//! A single result: what was measured on what, its figures drawn, the method and its limits, how to
//! repeat it.

use chart::Axis;
use chart::Chart;
use chart::ChartError;
use chart::Point;
use chart::Series;
use chart::short;
use maud::Markup;
use maud::html;
use serde_json::Value;

use super::Utc;
use super::page::figures;
use super::page::machine_line;
use super::page::table_of;
use crate::result::Machine;
use crate::result::mark_of;
use crate::result::mark_of_repetition;
use crate::result::mark_of_step;
use crate::result::near_ceiling;
use crate::result::note_for;
use crate::study::FINDINGS;
use crate::study::SHARED_CORES;
use crate::study::TIMERS;
use crate::study::TableRecord;
use crate::study::findings;
use crate::study::found;
use crate::study::summary;
use crate::study::timers;

/// Points of a curve of delays at most.
const CURVE_POINTS: usize = 200;

/// The machine of a result, where it says.
pub(super) fn machine(record: &Value) -> Option<Machine> {
    serde_json::from_value(record.get("machine")?.clone()).ok()
}

fn text<'a>(record: &'a Value, pointer: &str) -> &'a str {
    record.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn number(record: &Value, pointer: &str) -> Option<f64> {
    record.pointer(pointer)?.as_f64()
}

fn list<'a>(record: &'a Value, pointer: &str) -> &'a [Value] {
    record.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How each test is made.
fn method(test: &str) -> &'static str {
    match test {
        "cps" => {
            "New connections at a constant rate on an empty table, then a frame back over each of them at α times the rate (RFC 9693 §4.4, §4.5); the rate is halved \
             towards the highest at which every connection works."
        }
        "throughput" => {
            "Frames at a constant rate over connections that exist; the rate is halved towards the highest at which none is lost (RFC 9693 §4.6)."
        }
        "loss" => {
            "Frames at ten rates, the highest first, over connections that exist; what did not come back within the trial and its grace time is lost (RFC 8219 §7.4)."
        }
        "latency" => {
            "Frames at one rate over connections that exist, or those that make them, each stamped when it is sent and when it comes (RFC 8219 §7.2, §7.3); of each repetition the \
             median is typical, the 99.9th percentile the worst case."
        }
        "capacity" => {
            "Ever more connections on an empty table, each number at the highest rate that makes them all, until one can't be held; then halving (RFC 9693 §4.9)."
        }
        "teardown" => {
            "A table of connections is emptied as a whole, and then an empty one: the time of both (RFC 9693 §4.8)."
        }
        "ceiling" => {
            "Frames from one port of the tester to the other with nothing between them; the rate is halved towards the highest that it keeps."
        }
        "probe" => {
            "Hosts on both sides send packets and look at what comes out: nothing is known of the device. Observations are shown next to the requirements of the RFCs."
        }
        _ => "",
    }
}

/// Of results over memory that tester and device share.
const SHARED_MEMORY: &str = "Tester and device have a CPU each, and write into memory of each other: there is no kernel in the path, as there is with network cards or \
    virtual Ethernet. The tester's own ceiling is over such memory, between two ports of its own.";

/// What a result does not say.
fn limits(record: &Value) -> Vec<String> {
    let mut all = Vec::new();
    if text(record, "/test") == "probe" {
        all.push("A finding is undecided where what was seen does not decide.".to_owned());
    } else if text(record, "/dut") == "external" {
        all.push(
            "Nothing is known of the device's CPUs; frames to old endpoints show whether its table was empty."
                .to_owned(),
        );
    } else if record.get("cores").is_some() {
        let has_kernel_between = text(record, "/transport").starts_with("net_af_");
        all.push(if has_kernel_between { SHARED_CORES } else { SHARED_MEMORY }.to_owned());
    }
    if record.pointer("/parameters/device_cpus_watched") == Some(&Value::Bool(false)) {
        all.push("Nobody saw whether a CPU of the device was taken from it.".to_owned());
    }
    if record.get("interrupted") == Some(&Value::Bool(true)) {
        all.push("It was ended by a signal: there are fewer repetitions than asked for.".to_owned());
    }
    all
}

/// The tester alone, in the unit of what it was measured by.
fn ceiling(record: &Value) -> String {
    let more = near_ceiling(record).map_or("", |_| ", so the device may do more");
    let share = number(record, "/ceiling/share")
        .map_or_else(String::new, |share| format!("; this is {:.0} % of it{more}", 100.0 * share));
    let rate = match (number(record, "/ceiling/connections_per_second"), number(record, "/ceiling/frames_per_second")) {
        (Some(connections), _) => format!("{} handshakes/s", short(connections)),
        (None, Some(frames)) => format!("{} frames/s", short(frames)),
        _ => return "not measured".to_owned(),
    };
    format!("{rate} over {}{share}", text(record, "/ceiling/loopback"))
}

fn axis(label: &str, logarithmic: bool) -> Axis {
    Axis { label: label.to_owned(), logarithmic, names: Vec::new() }
}

fn chart(title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Option<Chart> {
    let series: Vec<Series> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| Chart { title: title.to_owned(), x, y, series })
}

fn series(name: impl Into<String>, points: impl IntoIterator<Item = Point>) -> Series {
    Series { name: name.into(), points: points.into_iter().collect() }
}

/// Loss by rate: the median of the repetitions, and what the tester may have lost itself on a line
/// of its own.
fn loss_curve(record: &Value) -> Option<Chart> {
    let of = |beyond: bool, mark: &str| {
        let steps = list(record, "/result/steps").iter();
        let steps = steps.filter(move |step| (step.get("beyond_ceiling") == Some(&Value::Bool(true))) == beyond);
        let steps = steps.filter(|step| mark_of_step(step) == mark);
        let point = |step: &Value| {
            let share = |figure: &str| Some(100.0 * number(step, &format!("/lost_share/{figure}"))?);
            Some(Point { x: number(step, "/rate")?, y: share("median")?, low: share("p1")?, high: share("p99")? })
        };
        steps.filter_map(point).rev().collect::<Vec<_>>()
    };
    let lines = vec![
        series("median, 1st to 99th percentile of the repetitions", of(false, "")),
        series("the same, disturbed*", of(false, "*")),
        series("beyond what the tester alone passes", of(true, "")),
        series("the same, disturbed*", of(true, "*")),
    ];
    chart("Frames lost", axis("frames/s", false), axis("per cent", false), lines)
}

/// The figure of each repetition.
fn each_repetition(record: &Value) -> Option<Chart> {
    let of = |mark: &str| {
        let values = list(record, "/result/samples/values").iter().filter_map(Value::as_f64).enumerate();
        let values = values.filter(|(place, _)| mark_of_repetition(record, *place) == mark);
        values.map(|(place, value)| Point::single(place as f64 + 1.0, value)).collect::<Vec<_>>()
    };
    let test = text(record, "/test");
    let lines = vec![series(test, of("")), series(format!("{test}, disturbed*"), of("*"))];
    chart("Each repetition", axis("repetition", false), axis(text(record, "/unit"), false), lines)
}

/// Delays of all repetitions by way: the share of frames that took no longer.
fn delays(record: &Value) -> Option<Chart> {
    let ways = ["outbound", "inbound"].map(|way| {
        let all = list(record, "/result/repetitions").iter().flat_map(|repetition| list(repetition, "/delays"));
        let of_way = all.filter(|delays| text(delays, "/way") == way);
        let pair = |pair: &Value| Some((pair.get(0)?.as_f64()?, pair.get(1)?.as_f64()?));
        let mut counted: Vec<(f64, f64)> =
            of_way.flat_map(|delays| list(delays, "/histogram_ns")).filter_map(pair).collect();
        counted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let whole: f64 = counted.iter().map(|(_, count)| count).sum();
        let (mut sum, mut points) = (0.0, Vec::<Point>::new());
        for (place, (nanoseconds, count)) in counted.iter().enumerate() {
            sum += count;
            let y = 100.0 * sum / whole;
            let is_far = points.last().is_none_or(|last| y - last.y >= 100.0 / CURVE_POINTS as f64);
            if is_far || place + 1 == counted.len() {
                points.push(Point::single(nanoseconds / 1e3, y));
            }
        }
        // The frames of all repetitions are one line.
        series(format!("{way}{}", mark_of(record)), points)
    });
    chart("Delays: frames that took no longer", axis("µs", true), axis("per cent of the frames", false), ways.into())
}

/// The charts that there are points for.
pub(super) fn charts(record: &Value) -> Vec<Chart> {
    [loss_curve(record), each_repetition(record), delays(record)].into_iter().flatten().collect()
}

fn tables(record: &Value) -> Vec<TableRecord> {
    let device = text(record, "/dut");
    let table = |title: &str, columns: &[&str], rows: Vec<Vec<String>>| TableRecord {
        title: title.to_owned(),
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        rows,
    };
    let both = [table("Found", &FINDINGS, findings(device, record)), table("Timers", &TIMERS, timers(device, record))];
    both.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

/// Names and values of an object: `name = value`, one after the other.
fn settings(object: Option<&Value>) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let all = object.and_then(Value::as_object).into_iter().flatten();
    all.map(|(name, value)| format!("{name} = {}", word(value))).collect::<Vec<_>>().join("; ")
}

/// What RFC 9693 §5 wants beside a figure, each with its name.
fn facts(record: &Value) -> Vec<(&'static str, String)> {
    let mut all = vec![("Tester's own ceiling", ceiling(record))];
    if let Some(told) = summary(record) {
        let asked = number(record, "/parameters/repetitions").unwrap_or_default();
        all.push(("Repetitions", format!("{} of {asked}", told.experiments)));
        all.push(("Error of the search", told.error.map_or_else(|| "no search".to_owned(), short)));
        all.push(("Connections", told.sessions.to_string()));
        all.push(("Source ports", told.source_ports));
        all.push(("Destination ports", told.destination_ports));
        all.push(("Frames, bytes", told.frames));
    }
    let cpus: Vec<String> = list(record, "/cpus").iter().map(Value::to_string).collect();
    let core = |core: &Value| {
        let runs: Vec<&str> = list(core, "/runs").iter().filter_map(Value::as_str).collect();
        Some(format!("CPU {}: {}", core.get("cpu")?, runs.join(", ")))
    };
    let cores: Vec<String> = list(record, "/cores").iter().filter_map(core).collect();
    let began = number(record, "/started_unix").unwrap_or_default() as u64;
    let took = number(record, "/took_seconds").unwrap_or_default();
    let seed = record.get("seed").or(record.pointer("/parameters/seed"));
    all.extend([
        ("CPUs", if cores.is_empty() { cpus.join(", ") } else { cores.join("; ") }),
        ("Device", settings(record.get("device"))),
        ("All parameters", settings(record.get("parameters"))),
        ("Machine", machine(record).map(|machine| machine_line(&machine)).unwrap_or_default()),
        ("Releases", settings(record.get("versions"))),
        ("Seed", seed.map(Value::to_string).unwrap_or_default()),
        ("Taken", format!("{}, {took:.0} s", Utc(began))),
    ]);
    all.retain(|(_, value)| !value.is_empty());
    all
}

/// Its part of the page.
pub(super) fn section(file: &str, record: &Value) -> Result<Markup, ChartError> {
    let (test, device) = (text(record, "/test"), text(record, "/dut"));
    let drawn = figures(&charts(record))?;
    Ok(html! {
        section {
            h3 {
                (test) " of " (device) " over " (text(record, "/transport"))
                @if record.get("interrupted") == Some(&Value::Bool(true)) { " " span.badge.warn { "interrupted" } }
            }
            @let found = found(record);
            p { "Found: " (found) }
            @if let Some(note) = note_for([&found]) { p.footnote { (note) } }
            (drawn)
            @for table in &tables(record) { (table_of(table)) }
            dl {
                dt { "Method" } dd { (method(test)) }
                @let limits = limits(record);
                @if !limits.is_empty() { dt { "Limits" } }
                @for limit in &limits { dd { (limit) } }
                @if let Some(failure) = record.get("failure").and_then(Value::as_str) { dt { "It failed" } dd { (failure) } }
                dt { "To repeat it" } dd { code { (text(record, "/command")) } "; its result: " code { (file) } }
            }
            details {
                summary { "On what, and with what" }
                dl { @for (name, value) in &facts(record) { dt { (name) } dd { (value) } } }
            }
        }
    })
}
