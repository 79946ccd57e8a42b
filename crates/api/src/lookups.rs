//! The present or past holder of an address. Each lookup needs the role `audit` and is recorded.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use control::Fault;
use control::Find;
use control::FindAddress;
use control::FindAnswer;
use control::PAGE_OBJECTS_DEFAULT;
use control::PAGE_OBJECTS_MAX;
use control::Protocol;
use control::Request;
use serde::Deserialize;
use serde::Serialize;
use serde_json::Value;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::event_log::NotAnswered;
use crate::event_log::record;
use crate::event_log::record_end;
use crate::routes::Api;
use crate::state::Page;

/// A question about an earlier time.
#[derive(Clone, Debug)]
pub struct PastQuestion {
    /// `ADDRESS` or `ADDRESS:PORT`.
    pub endpoint: String,
    /// The time.
    pub time: PastTime,
    /// Only this transport.
    pub protocol: Option<Protocol>,
    /// Only this VRF.
    pub vrf: Option<String>,
    /// Of flows only those towards it: `ADDRESS` or `ADDRESS:PORT`.
    pub remote: Option<String>,
    /// What the lookup is for.
    pub case: Option<String>,
    /// Holders to return.
    pub limit: u64,
    /// The end of the page before.
    pub cursor: Option<String>,
}

/// An earlier time, in the words of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PastTime {
    /// At one moment, or in one second.
    At(String),
    /// All holdings between two moments. Only a store answers.
    Between {
        /// The first moment.
        from: String,
        /// The last one.
        to: String,
    },
}

impl fmt::Display for PastTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PastTime::At(at) => write!(f, "at {at}"),
            PastTime::Between { from, to } => write!(f, "from {from} to {to}"),
        }
    }
}

/// What `natrix find --at --json` prints, or with `--from` and `--to`.
#[derive(Debug, Serialize, ToSchema)]
pub struct PastFound {
    /// The holders of this page, oldest first; from a store the last object says whether the time
    /// is covered.
    #[schema(value_type = Vec<Object>)]
    pub objects: Vec<Value>,
    /// Limits of the answer: periods without records, and what makes it ambiguous.
    pub notes: Vec<String>,
    /// Where the next page begins; null: this is the last one.
    pub cursor: Option<String>,
    /// What came of it, for the audit log.
    #[serde(skip)]
    pub result: String,
}

/// An answer, or why there is none.
pub type PastAnswer = Result<PastFound, NotAnswered>;

/// The time of a question without words that are relative to now, or the one that its cursor
/// continues.
pub type Times = Arc<dyn Fn(&Find, &PastTime) -> Result<PastTime, Fault> + Send + Sync>;

/// Answers a question about an earlier time. Blocks. The function says whether the answer is still
/// wanted; once it is not, the search fails soon.
pub type Past = Arc<dyn Fn(&PastQuestion, &dyn Fn() -> bool) -> PastAnswer + Send + Sync>;

/// Dropped together with the request that it belongs to, which is when the client leaves.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The endpoint in question.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// External or internal address; an IPv6 address or prefix for IPv6 hosts and B4s.
    #[param(value_type = String)]
    address: FindAddress,
    /// Port, or ICMP query identifier. Without it: all users of the address.
    port: Option<u16>,
    /// Only this transport.
    protocol: Option<Protocol>,
    /// Only this VRF.
    vrf: Option<String>,
    /// An earlier time: RFC 3339, or "2 min ago". Without a fraction of a second, the whole second;
    /// with fewer than six digits, all that begins with them. Answered from the log. Without it:
    /// now.
    at: Option<String>,
    /// All holdings from this time on, in the store of the log. Needs `to`.
    from: Option<String>,
    /// Until this time, inclusive; without a fraction, to the end of that second.
    to: Option<String>,
    /// With an earlier time: of flows only those towards this IPv4 `ADDRESS`, or `ADDRESS:PORT`.
    remote: Option<String>,
    /// What the lookup is for; goes into the audit log.
    case: Option<String>,
    /// Objects in this page, at most 10,000.
    limit: Option<u32>,
    /// The end of the page before.
    cursor: Option<String>,
}

impl Asked {
    /// The earlier time in question; None: now.
    fn time(&self) -> Result<Option<PastTime>, Refused> {
        match (self.at.clone(), self.from.clone(), self.to.clone()) {
            (at, None, None) => Ok(at.map(PastTime::At)),
            (None, Some(from), Some(to)) => Ok(Some(PastTime::Between { from, to })),
            _ => {
                let remedy = "send `at`, or both `from` and `to`";
                Err(Refused::new(StatusCode::BAD_REQUEST, "query", "is neither one time nor a range", remedy))
            }
        }
    }
}

/// Finds out whether a remote endpoint can be asked about.
fn check_remote(remote: &str, is_past: bool) -> Result<(), Refused> {
    let wrong = |what: &str, remedy: &'static str| Err(Refused::new(StatusCode::BAD_REQUEST, "remote", what, remedy));
    if !is_past {
        return wrong("needs an earlier time", "send `at`, or both `from` and `to`");
    }
    if remote.parse::<Ipv4Addr>().is_err() && remote.parse::<SocketAddrV4>().is_err() {
        return wrong("is not an IPv4 address, or one with a port", "send for example 198.51.100.7:443");
    }
    Ok(())
}

/// An answer of now, or of then.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Found {
    /// The holder now.
    Now(Page<FindAnswer>),
    /// The holder then.
    Then(PastFound),
}

/// The present or past holder of an endpoint.
#[utoipa::path(get, path = "/api/v1/find", tag = "lookups", params(Asked), responses(
    (status = OK, description = "Its holders; an endpoint without a holder has one answer too", body = Found),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn find(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(asked): Query<Asked>,
) -> Result<Json<Found>, Refused> {
    let time = asked.time()?;
    if let Some(remote) = &asked.remote {
        check_remote(remote, time.is_some())?;
    }
    let Asked { address, port, protocol, vrf, remote, case, limit, cursor, .. } = asked;
    let actor = principal.actor_for(case);
    let asked = Find { address, port, protocol, vrf, limit, cursor };
    let Some(time) = time else {
        let (objects, cursor) = api.daemon.page(actor, Request::Find(asked)).await?;
        return Ok(Json(Found::Now(Page { objects, cursor })));
    };
    let wrong = |fault| Refused::of(StatusCode::BAD_REQUEST, fault);
    let time = (api.log.times)(&asked, &time).map_err(wrong)?;
    let endpoint = asked.address.with_port(asked.port);
    let towards = remote.as_ref().map(|remote| format!(" towards {remote}")).unwrap_or_default();
    let subject = format!("{} {time}{towards}", asked.subject());
    let limit = u64::from(asked.limit.unwrap_or(PAGE_OBJECTS_DEFAULT).clamp(1, PAGE_OBJECTS_MAX));
    let Find { protocol, vrf, cursor, .. } = asked;
    let case = actor.case.clone();
    let question = PastQuestion { endpoint, time, protocol, vrf, remote, case, limit, cursor };
    let (past, daemon) = (Arc::clone(&api.log.past), api.daemon.clone());
    let turn = api.daemon.past_turn().await?;
    let wanted = Wanted(Arc::new(AtomicBool::new(true)));
    let still_wanted = Arc::clone(&wanted.0);
    let answered = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let goes_on = || still_wanted.load(Ordering::Relaxed);
        let answered = past(&question, &goes_on);
        // Recorded before it is sent, and also if no client waits for it any more.
        let result = match &answered {
            // As an export: a question that is wrong is no lookup.
            Err(NotAnswered::Question(_)) => return answered.map_err(Refused::from),
            Err(NotAnswered::Log(_)) if !goes_on() => "ended: the client left".to_owned(),
            Err(NotAnswered::Log(fault)) => format!("failed: {fault}"),
            Ok(found) => found.result.clone(),
        };
        record_end(&daemon, actor, None, record("find", &subject, result))?;
        answered.map_err(Refused::from)
    });
    let found = answered.await.map_err(|error| crate::ask::failed(&error.to_string()))??;
    drop(wanted);
    Ok(Json(Found::Then(found)))
}

/// A page of the audit log.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditPage {
    /// Objects in this page, at most 10,000.
    limit: Option<u32>,
    /// The end of the page before.
    cursor: Option<String>,
}

/// Changes and lookups with their users, the latest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "lookups", params(AuditPage), responses(
    (status = OK, description = "Records", body = Page<control::AuditRecord>),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn audit(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(page): Query<AuditPage>,
) -> Result<Json<Page<control::AuditRecord>>, Refused> {
    let list = control::List { limit: page.limit, cursor: page.cursor, ..control::List::default() };
    let (objects, cursor) = api.daemon.page(principal.actor(), Request::Audit(list)).await?;
    Ok(Json(Page { objects, cursor }))
}
