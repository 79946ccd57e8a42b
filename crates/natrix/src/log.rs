//! `natrix log`: the store of the event log.

mod new_file;
mod parquet;

use core::net::Ipv4Addr;
use std::fs;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use api::Export;
use api::ExportFormat;
use api::ExportQuestion;
use api::NotAnswered;
use api::Prepared;
use cli::CliError;
use cli::LogAllocation;
use cli::LogCommand;
use cli::LogDir;
use cli::LogExport;
use cli::LogFormat;
use cli::LogGenerate;
use cli::LogHead;
use cli::LogSize;
use cli::LogStat;
use cli::LogVerify;
use control::Fault;
use control::LogSink;
use control::STARTED;
use control::count_text;
use control::counted;
use control::escaped;
use control::with_unit;
use export::sink::IpfixFile;
use export::store::Edition;
use export::store::Found;
use export::store::GapFound;
use export::store::Generated;
use export::store::Generator;
use export::store::Interval;
use export::store::Question;
use export::store::Stat;
use export::store::Store;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::Verified;
use export::store::lookups;
use export::store::verify;
use export::store::verify_text;
use export::utc_text;
use serde_json::json;

use crate::failure::Failure;
use crate::find_at::unrecorded;
use crate::instance_log;
use crate::log::new_file::NewFile;
use crate::log::parquet::GROUP_ROWS_OF_FILE;
use crate::log::parquet::GROUP_ROWS_OF_STREAM;
use crate::log::parquet::ParquetFile;
use crate::progress::bar;
use crate::times;

/// Events that are made at a time.
const BATCH: usize = 16_384;
/// Mean bytes of an interval in generated stores of 10^7 intervals and more.
const BYTES_PER_MAPPING: f64 = 8.9;
const BYTES_PER_LEASE: f64 = 7.9;
/// What a subscriber makes a day: 20 mappings a minute in the busy hour, and half of that in the
/// mean of the day; a block every four hours.
const MAPPINGS_PER_DAY: u64 = 15_000;
const LEASES_PER_DAY: u64 = 6;

/// Gaps that are printed as text.
const GAPS_SHOWN: usize = 10;
/// Mappings from which on the bytes of one are worth a line.
const MAPPINGS_LEAST: u64 = 10_000;

/// Runs one command.
pub(crate) fn run(command: &LogCommand, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        LogCommand::Stat(arguments) => stat(arguments, out),
        LogCommand::Verify(arguments) => run_verify(arguments, out),
        LogCommand::Head(arguments) => run_head(arguments, out),
        LogCommand::Export(arguments) => run_export(arguments, out),
        LogCommand::Generate(arguments) => generate(arguments, out),
        LogCommand::Size(arguments) => Ok(size(arguments, out)?),
    }
}

/// The folder of the store.
fn folder(store: &LogDir) -> Result<PathBuf, Failure> {
    store.dir.as_ref().map_or_else(|| instance_log::store(store.socket.path()), |dir| Ok(dir.clone()))
}

/// Of a running instance, also how far its collectors are.
fn stat(arguments: &LogStat, out: &mut dyn Write) -> Result<(), Failure> {
    let LogDir { dir, socket } = &arguments.store;
    let sinks = match dir {
        Some(_) => Vec::new(),
        None => instance_log::of(socket.path())?.map(|log| log.sinks).unwrap_or_default(),
    };
    let store = Store::open(&folder(&arguments.store)?)?;
    Ok(print_stat(&store.stat()?, &sinks, arguments.json, out)?)
}

/// What the store of the running instance has, as `natrix log stat --json` prints it.
pub(crate) fn stat_of_instance(socket: &Path) -> Result<serde_json::Value, Failure> {
    let sinks = instance_log::of(socket)?.map(|log| log.sinks).unwrap_or_default();
    let store = Store::open(&instance_log::store(socket)?)?;
    Ok(stat_object(&store.stat()?, &sinks))
}

fn stat_object(stat: &Stat, sinks: &[LogSink]) -> serde_json::Value {
    let (first, last) = (stat.first_us.map(utc_text), stat.last_us.map(utc_text));
    json!({
        "records": stat.records, "records_in_journal": stat.in_journal, "mappings": stat.mappings, "leases": stat.leases, "segments": stat.segments,
        "bytes": stat.bytes, "bytes_per_mapping": stat.bytes_per_mapping, "bytes_per_lease": stat.bytes_per_lease,
        "first": first, "last": last, "gaps": stat.gaps, "lost": stat.lost, "cuts": stat.cuts,
        "lost_ends": stat.lost_ends,
        "bytes_per_day": stat.bytes_per_day,
        "bytes_free": stat.bytes_free, "days_left": stat.days_left, "sinks": sinks,
    })
}

fn print_stat(stat: &Stat, sinks: &[LogSink], json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        return writeln!(out, "{}", stat_object(stat, sinks));
    }
    let (first, last) = (stat.first_us.map(utc_text), stat.last_us.map(utc_text));
    let Stat { records, in_journal, mappings, leases, segments, bytes, gaps, lost, cuts, .. } = stat;
    let size = with_unit(*bytes as f64, "B");
    writeln!(
        out,
        "{}: {}, {}; {}, {size}",
        counted(*records, "record"),
        counted(*mappings, "mapping"),
        counted(*leases, "lease"),
        counted(*segments, "segment")
    )?;
    if *in_journal > 0 {
        writeln!(out, "  {} of the records are in the journal, and not in a segment yet", count_text(*in_journal))?;
    }
    // The fixed parts of small segments would be most of it.
    if let Some(bytes) = stat.bytes_per_mapping.filter(|_| *mappings >= MAPPINGS_LEAST) {
        writeln!(out, "  a mapping takes {bytes:.2} bytes")?;
    }
    if let Some(bytes) = stat.bytes_per_lease {
        writeln!(out, "  a lease takes {bytes:.2} bytes")?;
    }
    if let (Some(first), Some(last)) = (first, last) {
        writeln!(out, "  from {first} to {last}")?;
    }
    match stat.bytes_per_day {
        Some(bytes) => writeln!(out, "  a day takes {}", with_unit(bytes, "B"))?,
        None => writeln!(out, "  what a day takes is known with the first segment (log.store.segment_interval)")?,
    }
    if let Some(days) = stat.days_left {
        let free = with_unit(stat.bytes_free as f64, "B");
        writeln!(out, "  {free} are free: {days:.1} days, if nothing is deleted")?;
    }
    let meaning = if *gaps > 0 { ": `natrix log verify` names them" } else { "" };
    writeln!(out, "  {}, {} lost{meaning}", counted(*gaps, "gap"), counted(*lost, "record"))?;
    if *cuts > 0 {
        let times = counted(*cuts, "time");
        writeln!(out, "  {times} a start found the log damaged or cut: `natrix log verify` says where")?;
    }
    print_lost_ends(stat.lost_ends, out)?;
    for LogSink { name, lag_us, records_lost, connected, .. } in sinks {
        let state = if *connected { "" } else { ", not connected" };
        let behind = *lag_us as f64 / 1e6;
        let lost = counted(*records_lost, "record");
        writeln!(out, "  sink {name}: {behind:.1} s behind, {lost} lost{state}")?;
    }
    Ok(())
}

fn print_lost_ends(lost_ends: u64, out: &mut dyn Write) -> io::Result<()> {
    if lost_ends == 0 {
        return Ok(());
    }
    let (runs, whose) = (counted(lost_ends, "run"), if lost_ends == 1 { "its" } else { "their" });
    writeln!(out, "  {runs} ended without a stop, and {whose} last records may be lost")
}

fn deleted_last(verified: &Verified) -> Option<String> {
    (verified.deleted > 0).then(|| utc_text(verified.deleted_us))
}

fn verified_object(verified: &Verified) -> serde_json::Value {
    json!({
        "faults": verified.faults, "entries": verified.entries, "segments": verified.segments,
        "frames": verified.frames, "bytes": verified.bytes, "deleted": verified.deleted,
        "deleted_last": deleted_last(verified), "gaps": verified.gaps, "lost": verified.lost,
        "cuts": verified.cuts, "cut_bytes": verified.cut_bytes, "lost_ends": verified.lost_ends,
        "gaps_found": verified.gaps_found.iter().map(gap_object).collect::<Vec<_>>(),
    })
}

fn gap_object(gap: &GapFound) -> serde_json::Value {
    json!({
        "worker": gap.worker, "first": gap.first, "last": gap.last, "records": gap.records(),
        "from": utc_text(gap.from_us), "to": utc_text(gap.until_us),
        "cause": (!gap.limits_answers()).then(|| gap.cause.name()),
    })
}

/// What gaps mean for answers.
fn meaning_of(gaps: &[GapFound]) -> String {
    match gaps.iter().filter(|gap| gap.limits_answers()).count() {
        0 if gaps.is_empty() => String::new(),
        0 => ": no allocation is among these, so they change no answer".to_owned(),
        all if all == gaps.len() => ": answers about these times are not complete".to_owned(),
        some => format!(": answers about the times of {some} of them are not complete; the others have no allocation"),
    }
}

/// Prints the newest gaps.
fn print_gaps(gaps: &[GapFound], out: &mut dyn Write) -> io::Result<()> {
    for gap in gaps.iter().take(GAPS_SHOWN) {
        let GapFound { worker, first, last, from_us, until_us, .. } = gap;
        let (from, to, records) = (utc_text(*from_us), utc_text(*until_us), counted(gap.records(), "record"));
        let cause = if gap.limits_answers() { "" } else { ", no allocation among them" };
        writeln!(out, "    {from} to {to}: worker {worker}, numbers {first}-{last}, {records}{cause}")?;
    }
    match gaps.len().saturating_sub(GAPS_SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "    and {more} earlier ones: --json lists all"),
    }
}

/// What `natrix log head` prints of the store of the running instance.
pub(crate) fn head_of_instance(socket: &Path) -> Result<String, Failure> {
    Ok(Store::open(&instance_log::store(socket)?)?.head(None)?)
}

/// What `natrix log verify --json` prints of it; None if it was stopped.
pub(crate) fn verify_instance(
    socket: &Path,
    head: Option<&str>,
    progress: api::Progress<'_>,
) -> Result<Option<serde_json::Value>, Failure> {
    let verified = verify_text(&instance_log::store(socket)?, head, progress)?;
    Ok(verified.as_ref().map(verified_object))
}

/// `natrix log export` of it, for the API.
pub(crate) fn prepare_export(socket: &Path, question: &ExportQuestion) -> Result<Prepared, NotAnswered> {
    let span = span_of(("from", &question.from), ("to", &question.to)).map_err(NotAnswered::Question)?;
    let failed = |failure: Failure| NotAnswered::Log(of_the_log(&failure));
    let folder = instance_log::store(socket).map_err(failed)?;
    let store = Store::open(&folder).map_err(|error| failed(error.into()))?;
    let (format, domain) = (question.format, question.domain.unwrap_or(1));
    let (is_complete, notes) = limits_of(&folder, span);
    let run: Export = Box::new(move |out| {
        let mut count = 0;
        let outcome = Output::streamed(format, domain, out)
            .map_err(ExportError::Output)
            .and_then(|output| put_all(&store, span, (output, own_name().as_deref()), &mut count, |_, _| {}));
        (count, outcome.map(drop).map_err(|error| of_the_log(&error)))
    });
    Ok(Prepared { subject: subject_of_export(span), notes, is_complete, run })
}

/// The first and the last moment between two times, each with the name of its argument. Both times
/// belong to it: a last time without a fraction is the whole second.
pub(crate) fn span_of((from, from_text): (&str, &str), (to, to_text): (&str, &str)) -> Result<(u64, u64), Fault> {
    let span = (times::read(from, from_text)?.from_us, times::read(to, to_text)?.to_us);
    if span.1 < span.0 {
        let fault = Fault::new(to, format!("is before {from}"), format!("give the earlier time as {from}"));
        return Err(fault.seen(format!("{} is before {}", utc_text(span.1), utc_text(span.0))));
    }
    Ok(span)
}

/// A failure of the log in an answer of the API.
pub(crate) fn of_the_log(failure: &dyn core::fmt::Display) -> Fault {
    Fault::new("log", failure.to_string(), "see docs/logging.md")
}

fn subject_of_export((from_us, to_us): (u64, u64)) -> String {
    format!("from {} to {}", utc_text(from_us), utc_text(to_us))
}

/// Has the instance record what is asked of its own store. A folder that was named has no instance,
/// and no record of what names no subscriber, so a case is refused then.
fn record(
    store: &LogDir,
    (action, subject): (&str, &str),
    case: Option<&String>,
    result: String,
    id: Option<String>,
) -> Result<Option<String>, Failure> {
    match &store.dir {
        Some(_) => instance_log::refuse_case(case, &format!("{action} of a folder")).map(|()| None),
        None => instance_log::record(store.socket.path(), (action, subject.to_owned()), case.cloned(), result, id),
    }
}

fn run_head(arguments: &LogHead, out: &mut dyn Write) -> Result<(), Failure> {
    let head = folder(&arguments.store).and_then(|folder| Ok(Store::open(&folder)?.head(arguments.key.as_deref())?));
    let result = head.as_ref().map_or_else(|failure| format!("failed: {failure}"), |_| "answered".to_owned());
    let recorded = record(&arguments.store, ("log head", "the store"), arguments.case.case.as_ref(), result, None);
    // Without an answer, why there is none comes first.
    let head = head?;
    recorded?;
    Ok(out.write_all(head.as_bytes())?)
}

fn run_verify(arguments: &LogVerify, out: &mut dyn Write) -> Result<(), Failure> {
    let subject = if arguments.head.is_some() { "the store, with an exported head" } else { "the store" };
    let record = |result: String, id: Option<String>| {
        record(&arguments.store, ("log verify", subject), arguments.case.case.as_ref(), result, id)
    };
    let id = record(STARTED.to_owned(), None)?;
    let bar = bar(0);
    let verified = folder(&arguments.store).and_then(|folder| {
        let progress = |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        };
        Ok(verify(&folder, arguments.head.as_deref(), progress)?)
    });
    bar.finish_and_clear();
    let result = match &verified {
        Ok(verified) => api::result_of_verify(verified.faults.len()),
        Err(failure) => format!("failed: {failure}"),
    };
    record(result, id)?;
    let verified = verified?;
    if arguments.json {
        writeln!(out, "{}", verified_object(&verified))?;
    } else {
        verified.faults.iter().try_for_each(|fault| writeln!(out, "{fault}"))?;
        writeln!(
            out,
            "{}: {} {}, {}, {} of the journal, {}",
            counted(verified.faults.len() as u64, "fault"),
            count_text(verified.entries),
            if verified.entries == 1 { "entry" } else { "entries" },
            counted(verified.segments, "segment"),
            counted(verified.frames, "frame"),
            with_unit(verified.bytes as f64, "B")
        )?;
        if let Some(deleted) = deleted_last(&verified) {
            let segments = counted(verified.deleted, "segment");
            writeln!(out, "  deleted by retention: {segments}, the last at {deleted}")?;
        }
        // Without a fault, they are easily taken for nothing.
        let meaning = meaning_of(&verified.gaps_found);
        let (gaps, lost) = (counted(verified.gaps, "recorded gap"), counted(verified.lost, "record"));
        writeln!(out, "  {gaps}, {lost} lost in them{meaning}")?;
        print_gaps(&verified.gaps_found, out)?;
        if verified.cuts > 0 {
            let what = "a start found the log damaged or cut";
            writeln!(
                out,
                "  {} {what}; {} of journals could not be read",
                counted(verified.cuts, "time"),
                with_unit(verified.cut_bytes as f64, "B")
            )?;
        }
        print_lost_ends(verified.lost_ends, out)?;
    }
    if verified.faults.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}

/// An error of the store or of the file that is written.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Store(StoreError),
    #[error(transparent)]
    Output(io::Error),
}

impl From<StoreError> for ExportError {
    fn from(error: StoreError) -> ExportError {
        ExportError::Store(error)
    }
}

/// Where the rows of an export come from.
pub(crate) struct Origin {
    /// Identifier of the store.
    store: String,
    /// Name of the machine, if its own instance writes the store: a folder may be another's.
    machine: Option<String>,
    /// Of two rows about one interval, the one with the higher version knows more.
    version: u64,
}

impl Origin {
    fn of(edition: Edition, machine: Option<&str>) -> Origin {
        let store = format!("{:032x}", u128::from_be_bytes(edition.store));
        Origin { store, machine: machine.map(str::to_owned), version: edition.version }
    }
}

/// The name of this machine.
fn own_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// An interval as JSON: as an answer, with what the rows of later exports need.
fn interval_object(origin: &Origin, interval: &Interval) -> serde_json::Value {
    let mut object = lookup::stored::object(&interval.holder);
    object["known_since"] = json!(interval.known_us.map(|(since_us, _)| utc_text(since_us)));
    object["known_until"] = json!(interval.known_us.map(|(_, until_us)| utc_text(until_us)));
    object["clock_set_back"] = json!(interval.has_time_twice);
    object["store"] = json!(origin.store);
    object["machine"] = json!(origin.machine);
    object["run"] = json!(format!("{:032x}", u128::from_be_bytes(interval.run)));
    object["started"] = json!(interval.started_ms);
    object["version"] = json!(origin.version);
    object
}

/// The file of an export.
enum Output<'a> {
    Json(Box<dyn Write + 'a>),
    Ipfix(Box<dyn Write + 'a>, Box<IpfixFile>),
    Parquet(Box<ParquetFile<Box<dyn Write + Send + 'a>>>),
}

impl<'a> Output<'a> {
    /// To `file`, or to standard output without one.
    fn begin(arguments: &LogExport, file: Option<&NewFile>, out: &'a mut dyn Write) -> io::Result<Output<'a>> {
        let Some(file) = file else {
            return Output::lines(arguments.format, arguments.domain, BufWriter::with_capacity(1 << 20, out));
        };
        let file = BufWriter::with_capacity(1 << 20, file.writer()?);
        match arguments.format {
            LogFormat::Parquet => Output::parquet(file, GROUP_ROWS_OF_FILE),
            format => Output::lines(format, arguments.domain, file),
        }
    }

    /// What the API sends.
    fn streamed(format: ExportFormat, domain: u32, out: &'a mut (dyn Write + Send)) -> io::Result<Output<'a>> {
        match format {
            ExportFormat::Json => Output::lines(LogFormat::Json, domain, out),
            ExportFormat::Ipfix => Output::lines(LogFormat::Ipfix, domain, out),
            ExportFormat::Parquet => Output::parquet(out, GROUP_ROWS_OF_STREAM),
        }
    }

    /// Each interval is written as it comes.
    fn lines(format: LogFormat, domain: u32, file: impl Write + 'a) -> io::Result<Output<'a>> {
        let file: Box<dyn Write + 'a> = Box::new(file);
        if format != LogFormat::Ipfix {
            return Ok(Output::Json(file));
        }
        Ok(Output::Ipfix(file, Box::new(IpfixFile::begin(domain))))
    }

    /// Intervals are written in groups of rows.
    fn parquet(file: impl Write + Send + 'a, group_rows: usize) -> io::Result<Output<'a>> {
        let file: Box<dyn Write + Send + 'a> = Box::new(file);
        Ok(Output::Parquet(Box::new(ParquetFile::begin(file, group_rows)?)))
    }

    fn put(&mut self, origin: &Origin, interval: &Interval) -> io::Result<()> {
        match self {
            Output::Json(file) => writeln!(file, "{}", interval_object(origin, interval)),
            Output::Ipfix(file, ipfix) => ipfix.put(interval, file),
            Output::Parquet(parquet) => parquet.put(origin, interval),
        }
    }

    /// Returns how many intervals the format had to shorten or leave out.
    fn end(self) -> io::Result<u64> {
        match self {
            Output::Json(mut file) => file.flush().map(|()| 0),
            Output::Ipfix(mut file, ipfix) => {
                let shortened = ipfix.end(&mut file)?;
                file.flush().map(|()| shortened)
            }
            Output::Parquet(parquet) => parquet.end().map(|()| 0),
        }
    }
}

fn run_export(arguments: &LogExport, out: &mut dyn Write) -> Result<(), Failure> {
    let (from_us, to_us) = span_of(("--from", &arguments.from), ("--to", &arguments.to)).map_err(CliError::from)?;
    let is_standard = arguments.output == Path::new("-");
    if is_standard && arguments.format == LogFormat::Parquet {
        let fault = Fault::new("--output", "Parquet cannot be written to standard output", "name a file");
        return Err(CliError::from(fault.seen("-")).into());
    }
    let case = &arguments.case.case;
    let LogDir { dir, socket } = &arguments.store;
    let Some(dir) = dir else {
        // It may be too long to keep until its end, so that a second record has what came of it.
        let record = |result: String, id: Option<String>| {
            let what = ("log export", subject_of_export((from_us, to_us)));
            instance_log::record(socket.path(), what, case.clone(), result, id)
        };
        let id = record(STARTED.to_owned(), None)?;
        let exported = folder(&arguments.store).and_then(|folder| export(arguments, &folder, (from_us, to_us), out));
        let result = match &exported {
            Ok(0) => "ended: none".to_owned(),
            Ok(count) => format!("ended: found {count}"),
            Err(failure) => format!("failed: {failure}"),
        };
        record(result, id)?;
        return exported.map(drop);
    };
    // As `natrix find --dir`.
    Store::open(dir)?;
    let now_us = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
    lookups::record_export(dir, (from_us, to_us), case.as_deref(), now_us).map_err(unrecorded)?;
    export(arguments, dir, (from_us, to_us), out).map(drop)
}

/// Writes the holders between two times, and counts them. Returns how many the format had to
/// shorten or leave out.
fn put_all(
    store: &Store,
    (from_us, to_us): (u64, u64),
    (mut output, machine): (Output<'_>, Option<&str>),
    count: &mut u64,
    progress: impl FnMut(u64, u64),
) -> Result<u64, ExportError> {
    let mut origin = None;
    let each = |edition: Edition, interval: &Interval| -> Result<(), ExportError> {
        let origin = origin.get_or_insert_with(|| Origin::of(edition, machine));
        output.put(origin, interval).map_err(ExportError::Output)?;
        *count += 1;
        Ok(())
    };
    store.intervals_with(from_us, to_us, each, progress)?;
    output.end().map_err(ExportError::Output)
}

/// Exports the holders between two times; returns how many there are.
fn export(
    arguments: &LogExport,
    folder: &Path,
    (from_us, to_us): (u64, u64),
    out: &mut dyn Write,
) -> Result<u64, Failure> {
    let is_standard = arguments.output == Path::new("-");
    // Before it reads the store: what is recorded meanwhile need not be in it.
    let before = limits_of(folder, (from_us, to_us));
    let store = Store::open(folder)?;
    let failed = |source: io::Error| {
        let fault = Fault::new(
            "--output",
            format!("cannot be written: {source}"),
            "name another file, or - for standard output",
        );
        Failure::from(CliError::from(fault.seen(arguments.output.display().to_string())))
    };
    let mut count = 0_u64;
    let file = (!is_standard).then(|| NewFile::begin(&arguments.output)).transpose().map_err(failed)?;
    let output = Output::begin(arguments, file.as_ref(), out).map_err(failed)?;
    let bar = bar(0);
    let machine = if arguments.store.dir.is_none() { own_name() } else { None };
    let written = put_all(&store, (from_us, to_us), (output, machine.as_deref()), &mut count, |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    if let Ok(shortened) = &written {
        // Retention may have deleted something meanwhile.
        let after = limits_of(folder, (from_us, to_us));
        note_limits(if before.0 { &after } else { &before })?;
        if *shortened > 0 {
            let what = "IPFIX has no field for time that is not proved";
            writeln!(
                io::stderr(),
                "note: {what}: {shortened} intervals are cut to what is; JSON and Parquet have all"
            )?;
        }
    }
    match written {
        Ok(_) => {
            if let Some(file) = file {
                file.end().map_err(failed)?;
                writeln!(out, "{count} intervals written to {}", arguments.output.display())?;
            }
            Ok(count)
        }
        Err(ExportError::Store(error)) => Err(error.into()),
        Err(ExportError::Output(error)) if is_standard => Err(error.into()),
        Err(ExportError::Output(error)) => Err(failed(error)),
    }
}

/// Whether all records of the time are there, and what limits an export, as `natrix find` says it.
fn limits_of(folder: &Path, (from_us, to_us): (u64, u64)) -> (bool, Vec<String>) {
    let nobody = Question { address: Ipv4Addr::UNSPECIFIED, host: None, port: None, protocol: None, from_us, to_us };
    // The store may have merged segments during a long export, and may do so again.
    let look = || Store::open(folder).and_then(|store| store.look_up(&nobody));
    let found = match look().or_else(|_| look()) {
        Ok(found) => found,
        Err(error) => {
            let notes = vec![format!("which records of that time are missing is not known: {error}")];
            Found { notes, ..Found::default() }
        }
    };
    let of_formulas = "ports of deterministic pools have no records".to_owned();
    let notes = found.notes.into_iter().chain((!found.formulas.is_empty()).then_some(of_formulas));
    (found.is_complete, notes.collect())
}

/// Writes these limits to standard error.
fn note_limits((is_complete, notes): &(bool, Vec<String>)) -> Result<(), Failure> {
    let mut errors = io::stderr();
    if !is_complete {
        writeln!(errors, "note: the records of that time are not complete")?;
    }
    for note in notes {
        writeln!(errors, "note: {}", escaped(note))?;
    }
    Ok(())
}

fn generate(arguments: &LogGenerate, out: &mut dyn Write) -> Result<(), Failure> {
    let kind = match (arguments.mappings, arguments.leases) {
        (_, Some(leases)) => Generated::Leases(leases),
        (mappings, None) => Generated::Mappings(mappings.unwrap_or(0)),
    };
    if arguments.dir.join("catalogue").exists() {
        let fault = Fault::new("--dir", "a store is there already", "use another folder");
        return Err(CliError::from(fault.seen(arguments.dir.display().to_string())).into());
    }
    let mut generator = Generator::new(kind, arguments.seed);
    let bar = bar(generator.left());
    let total = generator.left();
    // Seconds of the generated time pass in microseconds: syncs by that clock would be all it does.
    let options = StoreOptions {
        segment_rows: 4 << 20,
        sync_interval_us: 60_000_000,
        segment_interval_us: u64::MAX,
        ..StoreOptions::default()
    };
    // A new folder gets its name once the store is whole.
    let part = (!arguments.dir.exists()).then(|| {
        // Without a slash at the end.
        let mut part = arguments.dir.components().collect::<PathBuf>().into_os_string();
        part.push(".part");
        PathBuf::from(part)
    });
    let dir = part.as_deref().unwrap_or(&arguments.dir);
    if dir.join("catalogue").exists() {
        let fault = Fault::new(dir.display().to_string(), "is an incomplete store of an earlier run", "remove it");
        return Err(CliError::from(fault).into());
    }
    let mut writer = StoreWriter::open(dir, options, Generator::begin())?;
    let mut events = Vec::new();
    loop {
        events.clear();
        generator.fill(BATCH, &mut events);
        if events.is_empty() {
            break;
        }
        writer.push_all(Generator::WORKER, &events);
        let now = generator.now();
        writer.advance(now, now.monotonic_us)?;
        bar.set_position(total - generator.left());
    }
    let now = generator.now();
    writer.finish(now, now.monotonic_us, true)?;
    bar.finish_and_clear();
    if let Some(part) = &part {
        let failed = |error: io::Error| Fault::new("--dir", error.to_string(), "use another folder");
        fs::rename(part, &arguments.dir)
            .map_err(|error| CliError::from(failed(error).seen(arguments.dir.display().to_string())))?;
    }
    let store = Store::open(&arguments.dir)?;
    Ok(print_stat(&store.stat()?, &[], arguments.json, out)?)
}

fn size(arguments: &LogSize, out: &mut dyn Write) -> io::Result<()> {
    let (each, bytes_each, what) = match arguments.allocation {
        LogAllocation::Ports => (arguments.per_day.unwrap_or(MAPPINGS_PER_DAY), BYTES_PER_MAPPING, "mapping"),
        LogAllocation::Blocks => (arguments.per_day.unwrap_or(LEASES_PER_DAY), BYTES_PER_LEASE, "lease"),
    };
    let bytes_per_day = arguments.subscribers as f64 * each as f64 * bytes_each;
    let bytes_per_year = bytes_per_day * 365.0;
    if arguments.json {
        let object = json!({
            "subscribers": arguments.subscribers, "per_subscriber_and_day": each, "bytes_each": bytes_each,
            "bytes_per_day": bytes_per_day, "bytes_per_year": bytes_per_year,
        });
        return writeln!(out, "{object}");
    }
    let (subscribers, each) = (counted(arguments.subscribers, "subscriber"), counted(each, what));
    writeln!(out, "{subscribers} with {each} a day, {bytes_each} bytes each:")?;
    writeln!(out, "  {} a day, {} a year", with_unit(bytes_per_day, "B"), with_unit(bytes_per_year, "B"))
}
