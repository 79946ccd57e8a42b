//! `natrix find --at`: which log and which configuration to ask about a time.

use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::UNIX_EPOCH;

use cli::CliError;
use cli::Find;
use config::Config;
use config::EventTarget;
use control::Client;
use control::Fault;
use control::Request;
use control::Status;
use export::store::Question;
use export::store::Store;
use export::store::StoreError;
use export::store::lookups;
use lookup::log as lines;
use lookup::log::History;
use lookup::log::Query;
use lookup::past::Answer;
use lookup::past::Formulas;

use crate::data_plane;
use crate::failure::Failure;
use crate::log;

/// Time limit for the daemon to name its log.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers from the given files, from the log that the given configuration names, or from the log
/// of the running instance. Limits of the answer go to `notes`.
pub(crate) fn run(arguments: &Find, out: &mut dyn Write, notes: &mut dyn Write) -> Result<(), Failure> {
    let at = arguments.at.as_deref().unwrap_or_default();
    let asked = data_plane::asked(arguments);
    if let Some(folder) = &arguments.dir {
        return in_store(arguments, folder, at, out, notes);
    }
    let mut query = Query::at(asked, at).map_err(|_| {
        let fault = Fault::new("--at", "not a time", "use 2026-11-21T19:30:00Z, or an offset such as +01:00");
        CliError::from(fault.seen(at.to_owned()))
    })?;
    let mut formulas = None;
    let mut config = None;
    if let Some(file) = &arguments.config {
        let read = data_plane::config_of(file)?;
        formulas = Some(Formulas::of(&read.nat, file, &asked)?);
        config = Some(read);
    }
    query.formulas = formulas.as_ref().map(Formulas::checksum);
    let history = match (arguments.log.as_slice(), &config) {
        ([], Some(config)) => look_up_own(config, &query),
        ([], None) => Ok(look_up_in(&log_of_instance(&arguments.output.socket.socket)?, &query)?),
        ([one], _) => Ok(look_up_in(one, &query)?),
        (several, _) => Ok(lines::look_up(several, &query)?),
    };
    Ok(Answer { query, history, formulas }.print(arguments.output.json, out, notes)?)
}

/// Answers from a store.
fn in_store(
    arguments: &Find,
    folder: &Path,
    at: &str,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> Result<(), Failure> {
    let at_us = log::parse_time("--at", at)?;
    let asked = data_plane::asked(arguments);
    let question =
        Question { address: asked.address, port: asked.port, protocol: asked.protocol, from_us: at_us, to_us: at_us };
    if asked.vrf.is_some() {
        let fault = Fault::new("--vrf", "a store has numbers of VRFs, not names", "leave it out");
        return Err(CliError::from(fault).into());
    }
    // A merge may remove a segment between the catalogue and the lookup: then read both again.
    let mut answer = Store::open(folder)?.look_up(&question);
    if matches!(&answer, Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound) {
        answer = Store::open(folder)?.look_up(&question);
    }
    let found = answer?;
    let now_us = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
    if let Err(error) = lookups::record(folder, &question, &found, arguments.case.as_deref(), now_us) {
        writeln!(notes, "note: this lookup was not recorded: {error}")?;
    }
    Ok(lookup::stored::print(&question, &found, arguments.output.json, out, notes)?)
}

/// Looks up a log with its rotated files.
fn look_up_in(path: &Path, query: &Query<'_>) -> Result<History, lines::HistoryError> {
    lines::look_up(&lines::files_of(path)?, query)
}

/// Looks up the log that a configuration names.
///
/// # Errors
/// Why the log was not read.
fn look_up_own(config: &Config, query: &Query<'_>) -> Result<History, String> {
    let path = match config.event_log.as_ref().and_then(|log| log.target.as_ref()) {
        Some(EventTarget::File(path)) => path,
        Some(EventTarget::StandardOutput) => return Err("[log] events of that configuration is not a file".to_owned()),
        None => return Err("that configuration has no [log] events".to_owned()),
    };
    let found = look_up_in(path, query);
    found.map_err(|error| format!("log {} of that configuration: {}", error.path.display(), error.source))
}

/// The log of the running instance.
fn log_of_instance(socket: &Path) -> Result<PathBuf, Failure> {
    let mut client = Client::connect(socket, env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT).map_err(CliError::from)?;
    let status: Status = client.request_one(&Request::Status).map_err(CliError::from)?;
    let destination = status.event_log.map(|log| log.destination).filter(|destination| destination != "-");
    let missing = || Fault::new("event log", "the running instance writes no file", "give the files: --log FILE");
    let path = destination.ok_or_else(|| CliError::from(missing()))?;
    Ok(PathBuf::from(path))
}
