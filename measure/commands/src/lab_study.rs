//! `natrix lab study` and `natrix lab report`.

use core::sync::atomic::AtomicBool;
use std::fs;
use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use cli::LabDevice;
use cli::LabReport;
use cli::LabStudies;
use cli::LabStudy;
use cli::LabStudyName;
use indicatif::ProgressBar;
use indicatif::ProgressStyle;
use lab::report::ReportError;
use lab::report::Results;
use lab::result::note_for;
use lab::study::Options;
use lab::study::Price;
use lab::study::PricesError;
use lab::study::RunRecord;
use lab::study::StudyError;
use lab::study::StudyName;
use lab::study::StudyRecord;
use lab::study::perform;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;

use crate::failure::Failure;

/// Why there is no study, or no report.
#[derive(Debug, thiserror::Error)]
pub enum StudyFailure {
    /// The study.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// The report.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The price list.
    #[error(transparent)]
    Prices(#[from] PricesError),
    /// The report's file.
    #[error("--output: {}: cannot be written ({source}); name another file", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// It does not measure this device.
    #[error("study {name}: measures no such device (--dut {device}); {remedy}", device = word(*.device))]
    Device {
        /// Which study.
        name: StudyName,
        /// Which device.
        device: LabDevice,
        /// What helps.
        remedy: &'static str,
    },
    /// Nothing was measured.
    #[error("study {name}: none of its runs has a result ({runs} runs); the first says: {reason}")]
    Nothing {
        /// Which study.
        name: StudyName,
        /// How many.
        runs: usize,
        /// In its own words.
        reason: String,
    },
    /// A signal.
    #[error("lab: interrupted by a signal ({0} studies are complete); run the same command again to continue")]
    Interrupted(usize),
}

fn failure(error: impl Into<StudyFailure>) -> Failure {
    Failure::LabStudy(error.into())
}

/// The name of a value on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The study that a word of the command line means.
fn study_named(name: LabStudyName) -> StudyName {
    match name {
        LabStudyName::Compare => StudyName::Compare,
        LabStudyName::Sessions => StudyName::Sessions,
        LabStudyName::Sizes => StudyName::Sizes,
        LabStudyName::Fragments => StudyName::Fragments,
        LabStudyName::Filters => StudyName::Filters,
        LabStudyName::Exhaustion => StudyName::Exhaustion,
        LabStudyName::Timers => StudyName::Timers,
        LabStudyName::Ospf => StudyName::Ospf,
        LabStudyName::QuicknatSizes => StudyName::QuicknatSizes,
        LabStudyName::QuicknatCores => StudyName::QuicknatCores,
        LabStudyName::QuicknatRules => StudyName::QuicknatRules,
        LabStudyName::Nfware => StudyName::Nfware,
        LabStudyName::Drivers => StudyName::Drivers,
        LabStudyName::Tables => StudyName::Tables,
        LabStudyName::Cost => StudyName::Cost,
    }
}

fn options(studies: &LabStudies, devices: Vec<String>) -> Result<Options, Failure> {
    let cpus: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
    let tester_cpu = studies.tester_cpu.map(usize::from).or_else(|| cpus.first().copied()).unwrap_or_default();
    // With a single CPU the device shares it with the tester.
    let others: Vec<usize> = cpus.into_iter().filter(|cpu| *cpu != tester_cpu).collect();
    let prices = match &studies.prices {
        Some(path) => Price::from_file(path).map_err(failure)?,
        None => Price::of_the_paper(),
    };
    Ok(Options {
        quick: studies.quick,
        devices,
        transport: word(studies.transport),
        seed: studies.seed,
        device_cpus: if others.is_empty() { vec![tester_cpu] } else { others },
        tester_cpu,
        prices,
    })
}

/// Set once a signal asks to end.
fn stop_flag() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// One study, with a bar of its runs where standard error is a terminal, and a line for each run
/// without a result anywhere.
fn make(name: StudyName, options: &Options, studies: &LabStudies, stop: &AtomicBool) -> Result<StudyRecord, Failure> {
    let bar = ProgressBar::new(name.plan(options).runs.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len}  {msg}") {
        bar.set_style(style);
    }
    bar.set_prefix(name.to_string());
    let record = perform(name, options, &studies.results, studies.again, stop, |progress| {
        bar.set_position(progress.done as u64);
        if let Some(reason) = progress.failure {
            // A line that cannot be written, as to a closed terminal, has no reader.
            bar.suspend(|| drop(writeln!(io::stderr(), "no result: {reason}")));
        }
        let left = format!("{} min {:02} s left", progress.seconds_left / 60, progress.seconds_left % 60);
        bar.set_message(format!("{left}  {}", progress.running.unwrap_or_default()));
    })
    .map_err(failure)?;
    bar.finish_and_clear();
    Ok(record)
}

/// Makes a study and prints its tables.
pub(crate) fn study(arguments: &LabStudy, out: &mut dyn Write) -> Result<(), Failure> {
    let name = study_named(arguments.name);
    let others = [
        (
            LabDevice::External,
            "measure it with `natrix lab TEST --dut external` and the command that empties its table",
        ),
        (LabDevice::Vpp, "studies do not measure vpp; `natrix lab --help` lists the tests that measure it"),
    ];
    if let Some((device, remedy)) = others.into_iter().find(|(device, _)| arguments.dut.contains(device)) {
        return Err(failure(StudyFailure::Device { name, device, remedy }));
    }
    if !name.has_devices() && !arguments.dut.contains(&LabDevice::Natrix) {
        let remedy = "the study is of a feature that only natrix has; omit --dut";
        return Err(failure(StudyFailure::Device { name, device: arguments.dut[0], remedy }));
    }
    let options = options(&arguments.studies, arguments.dut.iter().map(|device| word(*device)).collect())?;
    let stop = stop_flag()?;
    let record = make(name, &options, &arguments.studies, &stop)?;
    if arguments.json {
        serde_json::to_writer(&mut *out, &record).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&record, out)?;
    }
    if record.interrupted {
        return Err(failure(StudyFailure::Interrupted(0)));
    }
    // What the tester ended has its bound in the tables.
    let has_nothing = |run: &&RunRecord| run.summary.as_ref().is_none_or(|summary| summary.experiments == 0);
    let reasons: Vec<&String> = record.runs.iter().filter(has_nothing).filter_map(|run| run.failure.as_ref()).collect();
    match reasons.first() {
        Some(reason) if reasons.len() == record.runs.len() => {
            Err(failure(StudyFailure::Nothing { name, runs: reasons.len(), reason: (*reason).clone() }))
        }
        _ => Ok(()),
    }
}

/// Below a table, what the mark of disturbed figures means, if one of these cells has it.
fn write_note<'a>(cells: impl IntoIterator<Item = &'a String>, out: &mut dyn Write) -> io::Result<()> {
    note_for(cells).map_or(Ok(()), |note| writeln!(out, "{note}"))
}

fn print(record: &StudyRecord, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}: {}", record.study, record.question)?;
    writeln!(out, "after {}; there: {}", record.paper.name, record.paper.machine)?;
    for table in &record.tables {
        writeln!(out, "\n{}", table.title)?;
        cli::write_table(&table.columns, &table.rows, out)?;
        write_note(table.rows.iter().flatten(), out)?;
    }
    for chart in &record.charts {
        writeln!(out, "\n{} ({}) by {}", chart.title, chart.y.label, chart.x.label)?;
        let mut columns = vec![String::new()];
        let mut xs: Vec<f64> = chart.series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        columns.extend(chart.series.iter().map(|series| series.name.clone()));
        let row = |x: &f64| {
            let name = chart.x.names.get(*x as usize).cloned();
            let mut cells = vec![name.unwrap_or_else(|| chart::short(*x))];
            let at = |series: &chart::Series| series.points.iter().find(|point| point.x == *x).map(|point| point.y);
            cells.extend(chart.series.iter().map(|series| at(series).map_or_else(String::new, chart::short)));
            cells
        };
        cli::write_table(&columns, &xs.iter().map(row).collect::<Vec<_>>(), out)?;
        write_note(&columns, out)?;
    }
    for run in &record.runs {
        if let Some(reason) = &run.failure {
            writeln!(out, "\nno result: {}\n  {reason}", run.command)?;
        }
    }
    Ok(())
}

/// With `--quick` makes all studies; then writes what the folder has into one file.
pub(crate) fn report(arguments: &LabReport, out: &mut dyn Write) -> Result<(), Failure> {
    let mut whole = 0;
    let at = |source| failure(StudyFailure::File { path: arguments.output.clone(), source });
    // Said before ten minutes are spent, and not after.
    drop(fs::OpenOptions::new().append(true).create(true).open(&arguments.output).map_err(at)?);
    let stop = stop_flag()?;
    if arguments.studies.quick {
        let options = options(&arguments.studies, ["natrix", "netfilter"].map(str::to_owned).to_vec())?;
        for (position, name) in StudyName::ALL.into_iter().enumerate() {
            // As above.
            let _ = writeln!(io::stderr(), "study {} of {}: {name}", position + 1, StudyName::ALL.len());
            if make(name, &options, &arguments.studies, &stop)?.interrupted {
                break;
            }
            whole += 1;
        }
    }
    let results = Results::read(&arguments.studies.results).map_err(failure)?;
    let html = results.html().map_err(failure)?;
    fs::write(&arguments.output, html).map_err(at)?;
    writeln!(
        out,
        "{}: {} studies and {} single results of {}",
        arguments.output.display(),
        results.studies.len(),
        results.single.len(),
        arguments.studies.results.display()
    )?;
    if stop.load(core::sync::atomic::Ordering::Relaxed) {
        return Err(failure(StudyFailure::Interrupted(whole)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn studies_have_the_names_they_are_asked_for_by() {
        let asked: Vec<String> =
            LabStudyName::value_variants().iter().map(|name| study_named(*name).to_string()).collect();
        let words: Vec<String> = LabStudyName::value_variants().iter().map(|name| word(*name)).collect();
        assert_eq!(asked, words);
        assert_eq!(asked, StudyName::ALL.map(|name| name.to_string()));
    }
}
