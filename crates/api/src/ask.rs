//! Questions to the daemon. Its client blocks, so each question has a thread of the pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use control::Actor;
use control::Client;
use control::ClientError;
use control::Fault;
use control::Object;
use control::Request;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::answer::Refused;

/// Questions at a time. The daemon has 32 places for all its clients.
pub(crate) const QUESTIONS_MAX: usize = 8;
/// Traces at a time, and lists that are streamed. Each lasts as long as its client wants, so they
/// have places of their own and leave those of the questions free. A worker has room for four
/// traces; one is left to the command line.
pub(crate) const TRACES_MAX: usize = 3;
pub(crate) const STREAMS_MAX: usize = 4;
/// Verifications of the store at a time: each reads all of it.
pub(crate) const VERIFIES_MAX: usize = 1;
/// Searches of an earlier time at a time: each may take long and much memory.
pub(crate) const PASTS_MAX: usize = 2;
/// How long a question waits for its turn.
const TURN_WITHIN: Duration = Duration::from_secs(5);
/// How long the daemon may take for each line of an answer, as for the command line.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The way to the daemon.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    socket: Arc<PathBuf>,
    turns: Arc<Semaphore>,
    traces: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    verifies: Arc<Semaphore>,
    pasts: Arc<Semaphore>,
}

impl Daemon {
    pub(crate) fn new(socket: PathBuf) -> Daemon {
        let places = |count| Arc::new(Semaphore::new(count));
        Daemon {
            socket: Arc::new(socket),
            turns: places(QUESTIONS_MAX),
            traces: places(TRACES_MAX),
            streams: places(STREAMS_MAX),
            verifies: places(VERIFIES_MAX),
            pasts: places(PASTS_MAX),
        }
    }

    /// Waits for a place among the questions.
    pub(crate) async fn turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let turn = tokio::time::timeout(TURN_WITHIN, Arc::clone(&self.turns).acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| busy("too many requests wait for the instance", "try again later"))
    }

    /// Waits for a place among the searches of an earlier time.
    pub(crate) async fn past_turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let turn = tokio::time::timeout(TURN_WITHIN, Arc::clone(&self.pasts).acquire_owned()).await;
        turn.ok().and_then(Result::ok).ok_or_else(|| busy("too many searches of the past", "try again later"))
    }

    /// A place among the traces. Does not wait: none of them need end.
    pub(crate) fn trace_turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let turn = Arc::clone(&self.traces).try_acquire_owned();
        turn.map_err(|_| busy(control::TOO_MANY_TRACES, "end another trace"))
    }

    /// A place among the answers that are streamed. Does not wait: their clients may be slow.
    pub(crate) fn stream_turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let turn = Arc::clone(&self.streams).try_acquire_owned();
        turn.map_err(|_| busy("too many streams", "try again later, or read pages"))
    }

    /// The place of the verification of the store. Does not wait: one may take hours.
    pub(crate) fn verify_turn(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let turn = Arc::clone(&self.verifies).try_acquire_owned();
        turn.map_err(|_| busy("the store is being verified", "wait for the end of the other verification"))
    }

    /// Runs `questions` with a connection of `actor`, on a thread of its own.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        actor: Actor,
        questions: impl FnOnce(&mut Client) -> Result<T, ClientError> + Send + 'static,
    ) -> Result<T, Refused> {
        let turn = self.turn().await?;
        let daemon = self.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            questions(&mut daemon.connect(actor)?)
        });
        match asked.await {
            Ok(outcome) => outcome.map_err(Refused::from),
            Err(error) => Err(failed(&error.to_string())),
        }
    }

    /// Connects. Blocks.
    pub(crate) fn connect(&self, actor: Actor) -> Result<Client, ClientError> {
        Client::connect_for(&self.socket, env!("CARGO_PKG_VERSION"), ANSWERS_WITHIN, Some(actor))
    }

    /// One page of objects.
    pub(crate) async fn page<T: Object + Send + 'static>(
        &self,
        actor: Actor,
        request: Request,
    ) -> Result<(Vec<T>, Option<String>), Refused> {
        self.with(actor, move |client| client.request(&request)).await
    }

    /// One object.
    pub(crate) async fn one<T: Object + Send + 'static>(&self, actor: Actor, request: Request) -> Result<T, Refused> {
        self.with(actor, move |client| client.request_one(&request)).await
    }
}

fn busy(problem: &str, remedy: &str) -> Refused {
    Refused::of(StatusCode::SERVICE_UNAVAILABLE, Fault::new("api", problem, remedy))
}

/// A fault of this program.
pub(crate) fn failed(reason: &str) -> Refused {
    let fault = Fault::new("api", "the request failed", "report this with the log of the daemon");
    Refused::of(StatusCode::INTERNAL_SERVER_ERROR, fault.seen(reason))
}

/// What the instance refused. What it cannot record, or has no room for, is not the client's fault.
pub(crate) fn refused_by(fault: Fault) -> Refused {
    let is_of_instance = fault.object == control::AUDIT_LOG || fault.problem == control::TOO_MANY_TRACES;
    let status = if is_of_instance { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::UNPROCESSABLE_ENTITY };
    Refused::of(status, fault)
}

impl From<ClientError> for Refused {
    fn from(error: ClientError) -> Refused {
        match error {
            ClientError::Refused(fault) => refused_by(fault),
            // Its text names the socket, which no client needs to know.
            _ => {
                let remedy = "try again; see the log of the daemon if it goes on";
                let fault = Fault::new("instance", "does not answer", remedy);
                let is_late = error.is_timeout();
                let status = if is_late { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::SERVICE_UNAVAILABLE };
                Refused::of(status, fault)
            }
        }
    }
}
