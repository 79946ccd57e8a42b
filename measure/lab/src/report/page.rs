//! The page: what was measured on what, charts, tables, the method and its limits, how to repeat
//! each number.

use chart::Chart;
use chart::ChartError;
use chart::Look;
use chart::short;
use maud::DOCTYPE;
use maud::Markup;
use maud::PreEscaped;
use maud::html;
use serde_json::Value;

use super::Results;
use super::Utc;
use super::single;
use crate::result::Machine;
use crate::result::note_for;
use crate::study::RunRecord;
use crate::study::StudyRecord;
use crate::study::TableRecord;

/// Titles and names of lines are the page's.
const LOOK: Look = Look { size: (860, 400), is_titled: false, legend: None, mark: None };
const STYLE: &str = include_str!("style.css");

pub(super) fn page(results: &Results) -> Result<String, ChartError> {
    let mut studies = Vec::new();
    for study in &results.studies {
        studies.push(section(study)?);
    }
    let mut singles = Vec::new();
    for (file, record) in &results.single {
        singles.push(single::section(file, record)?);
    }
    let of_single = |(_, record): &(String, Value)| record.get("started_unix").and_then(Value::as_u64);
    let of_studies = results.studies.iter().map(|study| study.measured_unix().1);
    let newest = of_studies.chain(results.single.iter().filter_map(of_single)).max();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Natrix lab: report" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Natrix lab: report" }
                    @if let Some(newest) = newest { p { "Newest measurement: " (Utc(newest)) } }
                    @if results.studies.iter().any(|study| study.quick) {
                        p.note { "Studies marked quick have few points, short trials and one repetition: they show where things stand, not what to quote." }
                    }
                }
                nav {
                    ul {
                        @for study in &results.studies {
                            li { a href={ "#" (study.study) } { (study.study) } ": " (study.question) }
                        }
                        @if !results.single.is_empty() { li { a href="#single" { "single results" } } }
                        li { a href="#machines" { "machines" } }
                    }
                }
                main {
                    @for study in &studies { (study) }
                    @if !singles.is_empty() {
                        section #single {
                            h2 { "Single results" }
                            @for single in &singles { (single) }
                        }
                    }
                    (machines(results))
                    @if !results.unread.is_empty() {
                        section {
                            h2 { "Files that are no results" }
                            ul { @for (file, reason) in &results.unread { li { code { (file) } ": " (reason) } } }
                        }
                    }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn section(study: &StudyRecord) -> Result<Markup, ChartError> {
    let drawn = figures(&study.charts)?;
    let failures: Vec<_> = study.runs.iter().filter_map(|run| Some((run, run.failure.as_ref()?))).collect();
    // Each arrangement once.
    let mut shared: Vec<String> = study
        .runs
        .iter()
        .filter(|run| !run.cores.is_empty())
        .map(|run| format!("{}: {}", run.series, run.cores.join("; ")))
        .collect();
    shared.sort();
    shared.dedup();
    Ok(html! {
        section id=(study.study) {
            h2 { (study.study) @if study.quick { " " span.badge { "quick" } } @if study.interrupted { " " span.badge.warn { "interrupted" } } }
            p.question { (study.question) }
            p { "After " (study.paper.name) ". There: " (study.paper.machine) "." }
            @for table in &study.tables { (table_of(table)) }
            (every_test(study))
            (drawn)
            @if !failures.is_empty() {
                h3 { "No result" }
                ul { @for (run, reason) in &failures { li { code { (run.command) } ": " (reason) } } }
            }
            dl {
                dt { "Method" } dd { (study.method) }
                dt { "Limits" } dd { (study.limits) }
                dt { "Taken" }
                dd { (taken(study)) ", Natrix " (study.version) ", " (machine_line(&study.machine)) (releases(study)) "; seed " (study.seed) @if let Some(kept) = kept(study) { (kept) } }
            }
            @if !shared.is_empty() {
                p { "Who shared a CPU:" }
                ul { @for line in &shared { li { (line) } } }
            }
            details {
                summary { "How to repeat each number (" (study.runs.len()) " runs)" }
                p { "All of it: " code { (study.command) } }
                table {
                    thead { tr { th { "line" } th { "command" } th { "result" } th { "settings of the device" } th { "s" } } }
                    tbody {
                        @for run in &study.runs {
                            tr {
                                td { (run.series) }
                                td { code { (run.command) } }
                                td { @if run.failure.is_some() { "none" } @else { code { (run.file) } } }
                                td { (settings(run)) }
                                td.number { (format!("{:.0}", run.took_seconds)) }
                            }
                        }
                    }
                }
            }
        }
    })
}

/// Charts, each with its title and the names of its lines.
pub(super) fn figures(charts: &[Chart]) -> Result<Markup, ChartError> {
    let mut drawn = Vec::new();
    for chart in charts {
        drawn.push((chart, chart::svg(chart, &LOOK)?));
    }
    Ok(html! {
        @for (chart, svg) in &drawn {
            figure {
                figcaption { (chart.title) }
                @let note = note_for(chart.series.iter().map(|series| &series.name));
                @if chart.series.len() > 1 || note.is_some() {
                    ul.legend {
                        @for (place, series) in chart.series.iter().enumerate() {
                            li { span style={ "background:" (chart::swatch(place)) } {} (series.name) }
                        }
                    }
                }
                (PreEscaped(svg))
                @if let Some(note) = note { p.footnote { (note) } }
            }
        }
    })
}

/// Whether a cell is a figure, which stands right.
fn is_number(cell: &str) -> bool {
    let figure = cell.trim_start_matches("≥ ").trim_start_matches("≤ ");
    figure.starts_with(|letter: char| letter.is_ascii_digit()) && figure.split(' ').count() <= 3
}

pub(super) fn table_of(table: &TableRecord) -> Markup {
    html! {
        h3 { (table.title) }
        table {
            thead { tr { @for column in &table.columns { th { (column) } } } }
            tbody {
                @for row in &table.rows {
                    tr { @for cell in row { td.number[is_number(cell)] { (cell) } } }
                }
            }
        }
        @if let Some(note) = note_for(table.rows.iter().flatten()) { p.footnote { (note) } }
    }
}

pub(super) fn machine_line(machine: &Machine) -> String {
    format!(
        "{}, {} CPUs, {} MiB, Linux {}, {}",
        machine.cpu, machine.cpus, machine.memory_mib, machine.kernel, machine.system
    )
}

fn machines(results: &Results) -> Markup {
    let of_single = results.single.iter().filter_map(|(_, record)| single::machine(record));
    let all = results.studies.iter().map(|study| study.machine.clone()).chain(of_single);
    let mut lines: Vec<String> = all.map(|machine| machine_line(&machine)).collect();
    lines.sort();
    lines.dedup();
    html! {
        section #machines {
            h2 { "Machines" }
            ul { @for line in &lines { li { (line) } } }
            p { "Rates, sizes and delays hold for these machines as they were, with whatever else ran on them." }
        }
    }
}

/// What took part besides, and which release.
fn releases(study: &StudyRecord) -> String {
    let others = study.versions.iter().filter(|(name, _)| !["natrix", "linux"].contains(&name.as_str()));
    others.map(|(_, text)| format!(", {text}")).collect()
}

/// `name = value`, one after the other.
fn settings(run: &RunRecord) -> String {
    let all = run.summary.iter().flat_map(|summary| &summary.device);
    all.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join("; ")
}

/// Every test of a study with its figure and what RFC 9693 §5 wants beside it.
fn every_test(study: &StudyRecord) -> Markup {
    let told: Vec<_> = study.runs.iter().filter_map(|run| Some((run, run.summary.as_ref()?))).collect();
    html! {
        @if !told.is_empty() {
            h3 { "Every test" }
            table.tests {
                thead {
                    tr {
                        th { "line" } th { "test" } th { "found: median (1st to 99th percentile)" } th { "tester's own ceiling, frames/s" } th { "experiments" }
                        th { "error of the search" } th { "connections" } th { "source ports" } th { "destination ports" } th { "frame, bytes" }
                    }
                }
                tbody {
                    @for (run, told) in &told {
                        tr {
                            td { (run.series) }
                            td { (told.test) }
                            td { (told.found) }
                            td.number { @if let Some(ceiling) = run.ceiling { (short(ceiling)) } @else { "none" } }
                            td.number { (told.experiments) }
                            td.number { @if let Some(error) = told.error { (short(error)) } @else { "no search" } }
                            td.number { (told.sessions) }
                            td { (told.source_ports) }
                            td { (told.destination_ports) }
                            td.number { (told.frames) }
                        }
                    }
                }
            }
            @if let Some(note) = note_for(told.iter().map(|(_, told)| &told.found)) { p.footnote { (note) } }
        }
    }
}

/// When what it shows was measured, and how long this took now.
fn taken(study: &StudyRecord) -> String {
    let (first, last) = study.measured_unix();
    let all_kept = study.runs.iter().all(|run| run.kept_unix.is_some());
    let when = if first == last { Utc(first).to_string() } else { format!("{} to {}", Utc(first), Utc(last)) };
    match all_kept && !study.runs.is_empty() {
        true => format!("{when}, all of it before {}, when it was put together", Utc(study.started_unix)),
        false => format!("{when}, {:.0} s", study.took_seconds),
    }
}

/// Results that were there already, in a sentence; nothing where there were none.
fn kept(study: &StudyRecord) -> Option<String> {
    let times: Vec<u64> = study.runs.iter().filter_map(|run| run.kept_unix).collect();
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    let (count, all) = (times.len(), study.runs.len());
    Some(format!("; {count} of {all} results were there already, measured from {} to {}", Utc(*first), Utc(*last)))
}
