//! Where the running instance keeps its event log.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use cli::CliError;
use control::Actor;
use control::AuditRecord;
use control::Client;
use control::EventLog;
use control::Fault;
use control::Record;
use control::Request;
use control::Status;

use crate::failure::Failure;

/// Time limit for the daemon to name its log.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The log of the running instance, if it has one.
pub(crate) fn of(socket: &Path) -> Result<Option<EventLog>, Failure> {
    let mut client = Client::connect(socket, env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT).map_err(CliError::from)?;
    let status: Status = client.request_one(&Request::Status).map_err(CliError::from)?;
    Ok(status.event_log)
}

/// Refuses a case where nothing would have it.
pub(crate) fn refuse_case(case: Option<&String>, where_to: &str) -> Result<(), Failure> {
    let Some(case) = case else { return Ok(()) };
    let problem = format!("would not be recorded: no record is kept of {where_to}");
    Err(CliError::from(Fault::new("--case", problem, "leave it out, or ask the running instance").seen(case)).into())
}

/// Has the running instance record a lookup in its log, and what came of it, before it is answered.
/// `id` is that of the record which this one ends. Returns the id of a record that begins
/// something.
///
/// # Errors
/// It is not recorded.
pub(crate) fn record(
    socket: &Path,
    (action, subject): (&str, String),
    case: Option<String>,
    result: String,
    id: Option<String>,
) -> Result<Option<String>, Failure> {
    // The instance knows the user.
    let actor = case.map(|case| Actor { case: Some(case), ..Actor::default() });
    let client = Client::connect_for(socket, env!("CARGO_PKG_VERSION"), REPLY_TIMEOUT, actor);
    let record = Request::Record(Record { action: action.to_owned(), subject, result: Some(result), id });
    let recorded = client.map_err(CliError::from)?.request_one::<AuditRecord>(&record);
    Ok(recorded.map_err(CliError::from)?.id)
}

/// The folder of its store.
pub(crate) fn store(socket: &Path) -> Result<PathBuf, Failure> {
    let store = of(socket)?.and_then(|log| log.store);
    let missing = || Fault::new("log.store", "the running instance has no store", "give the folder: --dir DIR");
    Ok(PathBuf::from(store.ok_or_else(|| CliError::from(missing()))?.path))
}
