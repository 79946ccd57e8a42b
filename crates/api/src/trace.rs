//! Packets as they pass, and figures every second, as server-sent events.

use core::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::response::sse::KeepAlive;
use control::Client;
use control::ClientError;
use control::Request;
use control::Trace;
use control::TraceRecord;
use control::client::Next;
use futures_core::Stream;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::sync::oneshot;
use utoipa::IntoParams;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::routes::Api;
use crate::state::Chunks;

/// Events waiting for a client.
const EVENTS_MAX: usize = 64;
/// Records of a trace without a count, and the most that can be asked for.
const RECORDS: u64 = 1_000;
const RECORDS_MAX: u64 = 1_000_000;
/// How long the headers wait for a refusal; a later one is an event.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);
/// A trace without a packet for so long looks whether its client is still there.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Which packets to trace. All given conditions must hold.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct TraceQuery {
    /// Transport.
    protocol: Option<control::Protocol>,
    /// Prefix of source or destination, before or after translation.
    #[param(value_type = Option<String>)]
    address: Option<control::AnyPrefix>,
    /// Source or destination port, before or after translation.
    port: Option<u16>,
    /// Interface of arrival.
    interface: Option<String>,
    /// Only packets with this verdict.
    verdict: Option<String>,
    /// Only dropped packets.
    #[serde(default)]
    dropped_only: bool,
    /// Packets to trace: 1,000 without it, at most 1,000,000.
    count: Option<u64>,
    /// Bytes of each frame to include.
    #[serde(default)]
    #[param(maximum = 65_535)]
    snap_bytes: u32,
    /// What the trace is for; goes into the audit log.
    case: Option<String>,
}

/// Packets and their verdicts as they pass (server-sent events named `trace`, each with one JSON
/// object; at the end one named `end`, or `error`).
#[utoipa::path(get, path = "/api/v1/trace", tag = "trace", params(TraceQuery), responses(
    (status = OK, description = "Events", body = String, content_type = "text/event-stream"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn trace(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<TraceQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let turn = api.daemon.trace_turn()?;
    let TraceQuery { protocol, address, port, interface, verdict, dropped_only, count, snap_bytes, case } = query;
    let count = Some(count.unwrap_or(RECORDS).clamp(1, RECORDS_MAX));
    let wanted = Trace { protocol, address, port, interface, verdict, dropped_only, count, snap_bytes };
    let (daemon, actor) = (api.daemon.clone(), principal.actor_for(case));
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let (refusal, refused) = oneshot::channel();
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        // Until the first record.
        let mut refusal = Some(refusal);
        let outcome =
            daemon.connect(actor).and_then(|mut client| send_trace(&mut client, wanted, &sender, &mut refusal));
        let last = match outcome.map_err(Refused::from) {
            Ok(()) => Event::default().event("end").data("{}"),
            Err(error) => {
                let refused = match refusal {
                    Some(refusal) => refusal.send(error),
                    None => Err(error),
                };
                let Err(error) = refused else { return };
                json_event("error", error.fault())
            }
        };
        let _ = sender.blocking_send(Ok(last));
    });
    // What is wrong with the question has a status of its own.
    if let Ok(Ok(refused)) = tokio::time::timeout(REFUSED_WITHIN, refused).await {
        return Err(refused);
    }
    Ok(Sse::new(Chunks(receiver)).keep_alive(KeepAlive::default()))
}

pub(crate) fn json_event(name: &str, object: &impl serde::Serialize) -> Event {
    let data = serde_json::to_string(object).unwrap_or_default();
    Event::default().event(name).data(data)
}

fn send_trace(
    client: &mut Client,
    wanted: Trace,
    to: &mpsc::Sender<Result<Event, Infallible>>,
    refusal: &mut Option<oneshot::Sender<Refused>>,
) -> Result<(), ClientError> {
    client.send(&Request::Trace(wanted))?;
    // The client may leave while no packet passes: its end of the channel shows it.
    let stream = client.stream()?;
    let gone = to.downgrade();
    let watch = move || {
        // No sender: the trace has ended.
        while let Some(sender) = gone.upgrade() {
            if sender.is_closed() {
                // It may have ended meanwhile.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
            drop(sender);
            std::thread::sleep(LOOKS_EVERY);
        }
    };
    std::thread::Builder::new()
        .name("trace end".to_owned())
        .spawn(watch)
        .map_err(|error| ClientError::Lost { path: std::path::PathBuf::new(), reason: error.to_string() })?;
    client.set_read_timeout(None)?;
    loop {
        let next = client.next_object::<TraceRecord>()?;
        *refusal = None;
        match next {
            Next::Object(record) if to.blocking_send(Ok(json_event("trace", &record))).is_ok() => {}
            _ => return Ok(()),
        }
    }
}

/// The status every second (server-sent events named `status`).
#[utoipa::path(get, path = "/api/v1/live", tag = "state", responses(
    (status = OK, description = "Events", body = String, content_type = "text/event-stream"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn live(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    let follower = api.followers.enter(principal.name(), "live")?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _follower = follower;
        loop {
            let event = match api.daemon.one::<control::Status>(principal.actor(), Request::Status).await {
                Ok(status) => json_event("status", &status),
                Err(refused) => json_event("error", refused.fault()),
            };
            if sender.send(Ok(event)).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    Ok(Sse::new(Chunks(receiver)).keep_alive(KeepAlive::default()))
}
