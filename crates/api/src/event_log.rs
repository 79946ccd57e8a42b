//! The store of the event log: what it has, its signed head, whether it is whole, and an export.
//!
//! The server asks the store itself, without the instance; the instance only records the user that
//! asked. What lasts has two records: one before it begins, and one of what came of it.

use core::convert::Infallible;
use std::io;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::response::sse::KeepAlive;
use control::Actor;
use control::Fault;
use control::Record;
use control::Request;
use control::STARTED;
use futures_core::Stream;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use tokio::sync::mpsc;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::answer::Text;
use crate::ask::Daemon;
use crate::lookups::Past;
use crate::lookups::Times;
use crate::routes::Api;
use crate::state::CHUNK_BYTES;
use crate::state::CHUNKS_MAX;
use crate::state::Chunks;
use crate::trace::json_event;

/// How often a verification says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Events waiting for a client.
const EVENTS_MAX: usize = 4;

/// What `natrix log stat --json` prints. Blocks.
pub type LogStat = Arc<dyn Fn() -> Result<Value, Fault> + Send + Sync>;

/// What `natrix log head` prints. Blocks.
pub type LogHead = Arc<dyn Fn() -> Result<String, Fault> + Send + Sync>;

/// How far a verification is: bytes done, and bytes in all. Answers whether it goes on.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// What `natrix log verify --json` prints, with an exported head if there is one; None if it was
/// stopped. Blocks, for hours if the store is large.
pub type LogVerify = Arc<dyn Fn(Option<&str>, Progress<'_>) -> Result<Option<Value>, Fault> + Send + Sync>;

/// The intervals to export.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ExportQuestion {
    /// Intervals held at this time or later: RFC 3339, or "1 h ago".
    pub from: String,
    /// Intervals held at this time or earlier.
    pub to: String,
    /// `json`: one object a line. `ipfix`: messages of RFC 7011, as in a file of RFC 5655.
    /// `parquet`: a file of Apache Parquet, complete only with its last byte.
    #[serde(default)]
    pub format: ExportFormat,
    /// Observation domain of IPFIX messages; 1 without it.
    pub domain: Option<u32>,
    /// What it is for; goes into the audit log.
    pub case: Option<String>,
}

/// Format of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExportFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// IPFIX messages (RFC 7011, RFC 5655).
    Ipfix,
    /// Apache Parquet.
    Parquet,
}

impl ExportFormat {
    fn media_type(self) -> &'static str {
        match self {
            ExportFormat::Json => "application/x-ndjson",
            ExportFormat::Ipfix => "application/ipfix",
            ExportFormat::Parquet => "application/vnd.apache.parquet",
        }
    }
}

/// Writes the intervals; returns how many were written, also if it failed then.
pub type Export = Box<dyn FnOnce(&mut (dyn Write + Send)) -> (u64, Result<(), Fault>) + Send>;

/// An export that can begin.
pub struct Prepared {
    /// For the audit log.
    pub subject: String,
    /// What limits it, in sentences; `is_complete` is false if records of that time are missing.
    pub notes: Vec<String>,
    /// True if it has all there was.
    pub is_complete: bool,
    /// Does it. Blocks.
    pub run: Export,
}

/// Why there is no answer about an earlier time.
#[derive(Clone, Debug)]
pub enum NotAnswered {
    /// The question is wrong.
    Question(Fault),
    /// The log cannot answer.
    Log(Fault),
}

/// As `natrix log export`.
pub type LogExport = Arc<dyn Fn(&ExportQuestion) -> Result<Prepared, NotAnswered> + Send + Sync>;

/// What came of a verification that found so many faults, for the audit log.
pub fn result_of_verify(faults: usize) -> String {
    match faults {
        0 => "ended: no faults".to_owned(),
        1 => "ended: 1 fault".to_owned(),
        count => format!("ended: {count} faults"),
    }
}

/// What the server can ask of the event log itself, without the instance.
#[derive(Clone)]
pub struct EventLog {
    /// Which time that is.
    pub times: Times,
    /// The holder of an endpoint at a time.
    pub past: Past,
    /// How much is in it.
    pub stat: LogStat,
    /// Where its chain ends.
    pub head: LogHead,
    /// Whether it is whole.
    pub verify: LogVerify,
    /// All of a time.
    pub export: LogExport,
}

impl EventLog {
    /// A log that answers everything with the same fault.
    pub(crate) fn missing(fault: fn() -> Fault) -> EventLog {
        EventLog {
            times: Arc::new(|_, time| Ok(time.clone())),
            past: Arc::new(move |_, _| Err(NotAnswered::Log(fault()))),
            stat: Arc::new(move || Err(fault())),
            head: Arc::new(move || Err(fault())),
            verify: Arc::new(move |_, _| Err(fault())),
            export: Arc::new(move |_| Err(NotAnswered::Log(fault()))),
        }
    }
}

fn refused(fault: Fault) -> Refused {
    Refused::of(StatusCode::UNPROCESSABLE_ENTITY, fault)
}

/// A record of what is asked of the store.
pub(crate) fn record(action: &str, subject: &str, result: String) -> Record {
    Record { action: action.to_owned(), subject: subject.to_owned(), result: Some(result), id: None }
}

/// Returns the id of the record, if it is that of a beginning.
async fn recorded(daemon: &Daemon, actor: Actor, record: Record) -> Result<Option<String>, Refused> {
    let record = Request::Record(record);
    let (records, _) = daemon.with(actor, move |client| client.request::<control::AuditRecord>(&record)).await?;
    Ok(records.into_iter().next().and_then(|record| record.id))
}

/// Records what came of a question, from a thread that blocks: the end of what began with the
/// record `id`, or all of it.
pub(crate) fn record_end(daemon: &Daemon, actor: Actor, id: Option<String>, record: Record) -> Result<(), Refused> {
    let record = Request::Record(Record { id, ..record });
    let client = daemon.connect(actor);
    client.and_then(|mut client| client.request::<control::AuditRecord>(&record)).map_err(Refused::from)?;
    Ok(())
}

impl From<NotAnswered> for Refused {
    fn from(why: NotAnswered) -> Refused {
        match why {
            NotAnswered::Question(fault) => Refused::of(StatusCode::BAD_REQUEST, fault),
            NotAnswered::Log(fault) => refused(fault),
        }
    }
}

/// Asks the store on a thread of its own.
async fn on_thread<T: Send + 'static>(
    api: &Api,
    question: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let turn = api.daemon.turn().await?;
    let answered = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        question()
    });
    answered.await.map_err(|error| crate::ask::failed(&error.to_string()))?
}

/// What the store of the event log has: records, sizes, gaps, room, and how far its collectors are.
#[utoipa::path(get, path = "/api/v1/log/stat", tag = "log", responses(
    (status = OK, description = "What `natrix log stat --json` prints", body = Object),
    (status = "4XX", description = "Refused, or the instance has no store", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn stat(State(api): State<Api>) -> Result<Json<Value>, Refused> {
    let stat = Arc::clone(&api.log.stat);
    on_thread(&api, move || stat().map_err(refused)).await.map(Json)
}

/// An event of a verification, as its lines are read.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "only the document has it: events are written line by line")]
pub(crate) struct VerifyEvent {
    /// `progress`, `verified` or `error`.
    event: Option<String>,
    /// One JSON object.
    data: Option<String>,
}

/// What the lookup is for.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForCase {
    /// What it is for; goes into the audit log.
    pub(crate) case: Option<String>,
}

/// The signed head of the store's chain, as text to keep elsewhere: with it, `log/verify` also sees
/// whether the end of the store was cut off or rewritten.
#[utoipa::path(get, path = "/api/v1/log/head", tag = "log", params(ForCase), responses(
    (status = OK, description = "What `natrix log head` prints", body = String, content_type = "text/plain"),
    (status = "4XX", description = "Refused, or the instance has no store", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn head(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(ForCase { case }): Query<ForCase>,
) -> Result<String, Refused> {
    let head = Arc::clone(&api.log.head);
    let answered = on_thread(&api, move || head().map_err(refused)).await;
    let result = answered.as_ref().map_or_else(|refused| format!("failed: {}", refused.fault()), |_| "answered".into());
    recorded(&api.daemon, principal.actor_for(case), record("log head", "the store", result)).await?;
    answered
}

/// Verifies the store: the chain and its signed head, every segment's hash, the journal, and that
/// every sequence number is there once or in a recorded gap. The body is an exported head, or
/// empty.
///
/// Server-sent events: `progress` with `bytes_done` and `bytes_total` about every second, and at
/// the end `verified` with what `natrix log verify --json` prints, or `error`. Ends when the client
/// leaves. One verification at a time.
#[utoipa::path(post, path = "/api/v1/log/verify", tag = "log", params(ForCase),
    request_body(content = String, content_type = "text/plain", description = "An exported head, or nothing"),
    responses(
        (status = OK, description = "Events", body = VerifyEvent, content_type = "text/event-stream"),
        (status = "4XX", description = "Refused, or the instance has no store", body = ErrorBody),
        (status = "5XX", description = "Failed", body = ErrorBody),
    )
)]
pub(crate) async fn verify(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(ForCase { case }): Query<ForCase>,
    Text(head): Text,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let turn = api.daemon.verify_turn()?;
    let head = (!head.trim().is_empty()).then_some(head);
    let subject = if head.is_some() { "the store, with an exported head" } else { "the store" };
    let actor = principal.actor_for(case);
    let id = recorded(&api.daemon, actor.clone(), record("log verify", subject, STARTED.to_owned())).await?;
    let (daemon, verify) = (api.daemon.clone(), Arc::clone(&api.log.verify));
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let mut said = Instant::now();
        let mut progress = |bytes_done: u64, bytes_total: u64| {
            if said.elapsed() < PROGRESS_EVERY {
                return !sender.is_closed();
            }
            said = Instant::now();
            let event = json_event("progress", &json!({ "bytes_done": bytes_done, "bytes_total": bytes_total }));
            sender.blocking_send(Ok(event)).is_ok()
        };
        let outcome = verify(head.as_deref(), &mut progress);
        let result = match &outcome {
            Ok(Some(verified)) => result_of_verify(verified["faults"].as_array().map_or(0, Vec::len)),
            Ok(None) => "ended: the client left".to_owned(),
            Err(fault) => format!("failed: {fault}"),
        };
        let outcome =
            record_end(&daemon, actor, id, record("log verify", subject, result)).and(outcome.map_err(refused));
        let last = match &outcome {
            Ok(Some(verified)) => json_event("verified", verified),
            Ok(None) => return,
            Err(refused) => json_event("error", refused.fault()),
        };
        let _ = sender.blocking_send(Ok(last));
    });
    Ok(Sse::new(Chunks(receiver)).keep_alive(KeepAlive::default()))
}

/// Whether an export has all there was.
const COMPLETE: HeaderName = HeaderName::from_static("x-natrix-complete");
/// Why it may not.
const NOTE: HeaderName = HeaderName::from_static("x-natrix-note");
/// Some hundred bytes each at most.
const NOTES_MAX: usize = 8;

/// The intervals of a time, as they are read: holders and what they held. An answer that is cut off
/// is one that failed.
#[utoipa::path(get, path = "/api/v1/log/export", tag = "log", params(ExportQuestion), responses(
    (status = OK, description = "The intervals", headers(
        ("X-Natrix-Complete" = bool, description = "False if records of that time are missing"),
        ("X-Natrix-Note" = String, description = "What limits the answer; one header for each reason"),
    ), content(
        (String = "application/x-ndjson"), (Vec<u8> = "application/ipfix"),
        (Vec<u8> = "application/vnd.apache.parquet"),
    )),
    (status = "4XX", description = "Refused, or the instance has no store", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn export(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(question): Query<ExportQuestion>,
) -> Result<Response, Refused> {
    let turn = api.daemon.stream_turn()?;
    let (format, actor) = (question.format, principal.actor_for(question.case.clone()));
    let prepare = Arc::clone(&api.log.export);
    let Prepared { subject, notes, is_complete, run } =
        on_thread(&api, move || prepare(&question).map_err(Refused::from)).await?;
    let id = recorded(&api.daemon, actor.clone(), record("log export", &subject, STARTED.to_owned())).await?;
    let daemon = api.daemon.clone();
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let mut out = ChunkWriter { chunk: Vec::new(), to: sender };
        let (count, outcome) = run(&mut out);
        let result = match (count, &outcome) {
            (0, Ok(())) => "ended: none".to_owned(),
            (count, Ok(())) => format!("ended: found {count}"),
            (count, Err(_)) if out.to.is_closed() => format!("ended: found {count} so far"),
            (_, Err(fault)) => format!("failed: {fault}"),
        };
        // The last chunk is not sent of what is not recorded.
        let outcome = record_end(&daemon, actor, id, record("log export", &subject, result))
            .and(outcome.map_err(refused))
            .map_err(|refused| io::Error::other(refused.fault().to_string()));
        let _ = match outcome.and_then(|()| out.send()) {
            Ok(()) => Ok(()),
            Err(error) => out.to.blocking_send(Err(error)),
        };
    });
    let body = Body::from_stream(Chunks(receiver));
    let mut response = ([(header::CONTENT_TYPE, format.media_type())], body).into_response();
    let headers = response.headers_mut();
    headers.insert(COMPLETE, HeaderValue::from_static(if is_complete { "true" } else { "false" }));
    // Some clients take a hundred headers, some proxies 4 KiB: the first few say what kind it is.
    let more = notes.len().saturating_sub(NOTES_MAX);
    let more = (more > 0).then(|| format!("{more} more: ask natrix find, or for a shorter time"));
    for note in notes.into_iter().take(NOTES_MAX).chain(more) {
        // They are plain text, but a name in one may not be.
        let note: String = note.chars().map(|letter| if matches!(letter, ' '..='~') { letter } else { '?' }).collect();
        if let Ok(note) = HeaderValue::from_str(&note) {
            headers.append(NOTE, note);
        }
    }
    Ok(response)
}

/// Sends what is written, some tens of KiB at a time; fails when the client has gone.
struct ChunkWriter {
    chunk: Vec<u8>,
    to: mpsc::Sender<io::Result<Bytes>>,
}

impl ChunkWriter {
    fn send(&mut self) -> io::Result<()> {
        let chunk = core::mem::take(&mut self.chunk);
        self.to.blocking_send(Ok(chunk.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    /// The rest waits for [`ChunkWriter::send`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
