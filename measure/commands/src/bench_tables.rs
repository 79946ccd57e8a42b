//! `natrix bench tables`.

use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use bench::tables;
use bench::tables::Kind;
use bench::tables::Options;
use bench::tables::Row;
use bench::tables::TablesError;
use bench::tables::UnknownKind;
use cli::BenchTables;

use crate::failure::Failure;

/// Why the study of tables failed.
#[derive(Debug, thiserror::Error)]
pub enum BenchTablesFailure {
    /// The measurement.
    #[error(transparent)]
    Measure(#[from] TablesError),
    /// A name of a structure.
    #[error(transparent)]
    Kind(#[from] UnknownKind),
    /// A plot.
    #[error(transparent)]
    Figure(#[from] chart::ChartError),
    /// A file of results.
    #[error("{}: cannot be written ({source}); choose another place", .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// Measures the structures and prints each result as it comes; what else there is to say goes to
/// `notes`.
pub(crate) fn run(arguments: &BenchTables, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failure> {
    let structures = match arguments.structures.as_slice() {
        [] => Kind::STUDY.to_vec(),
        names => names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map_err(BenchTablesFailure::from)?,
    };
    let options = Options {
        structures,
        sessions: arguments.sessions.clone(),
        threads: usize::from(arguments.threads),
        load: arguments.load,
        seconds: arguments.seconds,
        seed: arguments.seed,
    };
    // Before a long measurement, not after it.
    let mut csv = arguments.csv.as_deref().map(create).transpose()?;
    if let Some(folder) = &arguments.out_dir {
        fs::create_dir_all(folder).map_err(|source| BenchTablesFailure::File { path: folder.clone(), source })?;
    }
    let mut printed = if arguments.json { Ok(()) } else { print_heading(out) };
    let note = |notice: tables::Notice| {
        // A note that cannot be written has no reader.
        let _ = writeln!(notes, "note: {notice}");
    };
    let print = |row: &Row| {
        if printed.is_ok() {
            printed = if arguments.json { print_json(row, out) } else { print_row(row, out) };
        }
    };
    let rows = tables::run(&options, note, print).map_err(BenchTablesFailure::from)?;
    printed?;
    if let (Some(file), Some(path)) = (&mut csv, &arguments.csv) {
        write_csv(&rows, path, file)?;
    }
    if let Some(folder) = &arguments.out_dir {
        write_folder(&rows, folder)?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, BenchTablesFailure> {
    File::create(path).map_err(|source| BenchTablesFailure::File { path: path.to_owned(), source })
}

fn write_csv(rows: &[Row], path: &Path, file: &mut File) -> Result<(), BenchTablesFailure> {
    tables::write_csv(rows, file).map_err(|source| BenchTablesFailure::File { path: path.to_owned(), source })
}

/// All results and the figures there are results for.
fn write_folder(rows: &[Row], folder: &Path) -> Result<(), BenchTablesFailure> {
    let csv = folder.join("tables.csv");
    write_csv(rows, &csv, &mut create(&csv)?)?;
    for (name, svg) in tables::draw_figures(rows)? {
        let path = folder.join(name);
        fs::write(&path, svg).map_err(|source| BenchTablesFailure::File { path, source })?;
    }
    Ok(())
}

fn print_json(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, row)?;
    writeln!(out)
}

fn print_heading(out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:>10} {:>7} {:>13} {:>9} {:>9} {:>9} {:>13}",
        "structure", "sessions", "threads", "cycles/packet", "new", "answered", "Mpps", "bytes/session"
    )
}

fn print_row(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<10} {:>10} {:>7} {:>13.1} {:>9.1} {:>9.1} {:>9.2} {:>13.1}",
        row.structure,
        row.sessions,
        row.threads,
        row.tsc_cycles_per_packet,
        row.new_cycles_per_packet,
        row.answered_cycles_per_packet,
        row.mpps,
        row.bytes_per_session
    )
}
