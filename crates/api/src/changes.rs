//! Plan, reload, rollback, drain. The text of the configuration is sent, never a path.

use std::time::Duration;

use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::Uri;
use control::Actor;
use control::Change;
use control::ClientError;
use control::ConfigFault;
use control::Drain;
use control::Drained;
use control::Fault;
use control::NewConfig;
use control::Plan;
use control::PlanDetail;
use control::PoolPlan;
use control::Reloaded;
use control::Reply;
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
use crate::answer::Text;
use crate::ask::refused_by;
use crate::routes::Api;
use crate::settings::Role;

/// What a plan names.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanQuery {
    /// Subscribers, addresses, mappings, flows and blocks to name, of each. Needs the role `audit`.
    #[serde(default)]
    #[param(maximum = 10_000)]
    details: u32,
    /// Also name as many mappings, flows and blocks that do not change. Needs `details`.
    #[serde(default)]
    kept: bool,
    /// The plan of a rollback, without a text.
    #[serde(default)]
    rollback: bool,
    /// What it is for, if it names some; goes into the audit log.
    case: Option<String>,
}

/// The role that a plan needs: with details it names subscribers. A query that cannot be read is
/// refused by the handler.
pub(crate) fn needed_by_plan(uri: &Uri) -> Role {
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|query| query.0);
    let names_some = |(name, value): &(String, String)| name == "details" && value != "0";
    if query.unwrap_or_default().iter().any(names_some) { Role::Audit } else { Role::Operate }
}

impl PlanQuery {
    fn config(self, text: String) -> Result<NewConfig, Refused> {
        let PlanQuery { details, kept, rollback, .. } = self;
        let wrong = |problem, remedy| Err(Refused::new(StatusCode::BAD_REQUEST, "plan", problem, remedy));
        if kept && details == 0 {
            return wrong("has `kept` without `details`", "say how many to name: details=N");
        }
        if rollback && !text.is_empty() {
            return wrong("has a text, and `rollback`", "send one of them");
        }
        Ok(NewConfig { text: (!rollback).then_some(text), rollback, details, kept, ..NewConfig::default() })
    }
}

/// What a reload does.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReloadQuery {
    /// Also write the text to the configuration file, so that it outlives a restart.
    #[serde(default)]
    save: bool,
}

/// What a reload would do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Planned {
    /// Differences to the running configuration.
    changes: Vec<Change>,
    /// What becomes of each pool. Without the role `audit`, counts below 10 are null, and the
    /// others are rounded down to tens.
    #[schema(value_type = Vec<PoolPlan>)]
    pools: Vec<Value>,
    /// As many as were asked for.
    details: Vec<PlanDetail>,
    /// The sums.
    #[schema(value_type = Plan)]
    plan: Value,
}

/// Below so many, a count is not for a user that may not look subscribers up: a text may be about a
/// few.
const FEW: u64 = 10;

/// A part of a plan. With `audit` it has all counts; else those below [`FEW`] are null, zero too,
/// and the others are rounded down to tens, so that two plans do not differ by one subscriber.
fn shown(principal: &Principal, part: &impl Serialize, counts: &str) -> Result<Value, Refused> {
    let mut object = serde_json::to_value(part).map_err(|error| crate::ask::failed(&error.to_string()))?;
    if !principal.permits(Role::Audit)
        && let Some(counts) = object.pointer_mut(counts)
    {
        without_few(counts);
    }
    Ok(object)
}

/// Counts below [`FEW`] become null, and others are rounded down to tens.
pub(crate) fn without_few(counts: &mut Value) {
    match counts {
        Value::Object(fields) => fields.values_mut().for_each(without_few),
        Value::Array(parts) => parts.iter_mut().for_each(without_few),
        Value::Number(number) => {
            let count = number.as_u64().unwrap_or_default();
            *counts = if count < FEW { Value::Null } else { (count - count % FEW).into() };
        }
        _ => {}
    }
}

/// What a reload did.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// Differences to the configuration before.
    changes: Vec<Change>,
    /// The result.
    reloaded: Reloaded,
}

/// Everything that changes answer.
#[derive(Default)]
struct Answered {
    changes: Vec<Change>,
    pools: Vec<PoolPlan>,
    details: Vec<PlanDetail>,
    plan: Option<Plan>,
    reloaded: Option<Reloaded>,
    drained: Option<Drained>,
    faults: Vec<ConfigFault>,
    refused: Option<Fault>,
}

/// The same, bounded by what its sender may decide: a user that may not look subscribers up must
/// not have their records sent elsewhere either.
fn bounded(config: NewConfig, principal: &Principal) -> NewConfig {
    NewConfig { keep_records: !principal.permits(Role::Audit), ..config }
}

/// How long the daemon may take for each line: a plan of a large change takes seconds.
const CHANGES_WITHIN: Duration = Duration::from_secs(60);

async fn ask(api: &Api, actor: Actor, request: Request) -> Result<Answered, Refused> {
    let read = move |client: &mut control::Client| -> Result<Answered, ClientError> {
        client.set_read_timeout(Some(CHANGES_WITHIN))?;
        client.send(&request)?;
        let mut answered = Answered::default();
        loop {
            match client.receive()? {
                Reply::Change(change) => answered.changes.push(change),
                Reply::PoolPlan(pool) => answered.pools.push(pool),
                Reply::PlanDetail(detail) => answered.details.push(detail),
                Reply::Plan(plan) => answered.plan = Some(plan),
                Reply::Reloaded(reloaded) => answered.reloaded = Some(reloaded),
                Reply::Drained(drained) => answered.drained = Some(drained),
                Reply::ConfigFault(fault) => answered.faults.push(fault),
                Reply::Error(fault) => {
                    answered.refused = Some(fault);
                    return Ok(answered);
                }
                // Answers of a newer daemon.
                Reply::End(_) => return Ok(answered),
                _ => {}
            }
        }
    };
    let answered = api.daemon.with(actor, read).await?;
    match answered.refused {
        Some(fault) => Err(refused_by(fault).with_faults(answered.faults)),
        None => Ok(answered),
    }
}

fn incomplete() -> Refused {
    crate::ask::failed("the answer of the instance is incomplete")
}

/// What a reload with this text, or a rollback, would do. Changes nothing. With `details` it is a
/// lookup: it names subscribers.
#[utoipa::path(post, path = "/api/v1/plan", tag = "changes", params(PlanQuery),
    request_body(content = Option<String>, content_type = "text/plain", description = "The whole configuration, TOML. Relative paths in it are those of the running configuration's folder"),
    responses(
        (status = OK, description = "Differences and effects", body = Planned),
        (status = "4XX", description = "Refused, with each fault of the text", body = ErrorBody),
        (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn plan(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<PlanQuery>,
    Text(text): Text,
) -> Result<Json<Planned>, Refused> {
    let actor = principal.actor_for(query.case.clone());
    let config = bounded(query.config(text)?, &principal);
    let Answered { changes, pools, details, plan, .. } = ask(&api, actor, Request::Plan(config)).await?;
    let pools = pools.iter().map(|pool| shown(&principal, pool, "")).collect::<Result<_, _>>()?;
    let plan = shown(&principal, &plan.ok_or_else(incomplete)?, "/total")?;
    Ok(Json(Planned { changes, pools, details, plan }))
}

/// Changes the configuration while traffic flows. If the text has a fault, nothing changes.
#[utoipa::path(post, path = "/api/v1/reload", tag = "changes", params(ReloadQuery),
    request_body(content = String, content_type = "text/plain", description = "The whole configuration, TOML"),
    responses(
        (status = OK, description = "What changed", body = Done),
        (status = "4XX", description = "Refused, with each fault of the text; nothing was changed", body = ErrorBody),
        (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn reload(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<ReloadQuery>,
    Text(text): Text,
) -> Result<Json<Done>, Refused> {
    change(&api, &principal, NewConfig { text: Some(text), save: query.save, ..NewConfig::default() }).await
}

/// Returns to the configuration before the last reload.
#[utoipa::path(post, path = "/api/v1/rollback", tag = "changes", responses(
    (status = OK, description = "What changed", body = Done),
    (status = "4XX", description = "Refused; nothing was changed", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn rollback(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
) -> Result<Json<Done>, Refused> {
    change(&api, &principal, NewConfig { rollback: true, ..NewConfig::default() }).await
}

/// Whether a drain begins or ends.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainQuery {
    /// Announce the pools again.
    #[serde(default)]
    undo: bool,
}

/// Withdraws the pools from the routing, or announces them again. Does not wait for the traffic.
#[utoipa::path(post, path = "/api/v1/drain", tag = "changes", params(DrainQuery), responses(
    (status = OK, description = "What is left", body = Drained),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn drain(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<DrainQuery>,
) -> Result<Json<Drained>, Refused> {
    let answered = ask(&api, principal.actor(), Request::Drain(Drain { undo: query.undo })).await?;
    answered.drained.map(Json).ok_or_else(incomplete)
}

async fn change(api: &Api, principal: &Principal, config: NewConfig) -> Result<Json<Done>, Refused> {
    let answered = ask(api, principal.actor(), Request::Reload(bounded(config, principal))).await?;
    Ok(Json(Done { changes: answered.changes, reloaded: answered.reloaded.ok_or_else(incomplete)? }))
}
