//! What `natrix show` shows.

use axum::Extension;
use axum::Json;
use axum::body::Body;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use control::Client;
use control::ClientError;
use control::Filter;
use control::List;
use control::Object;
use control::Request;
use serde::Deserialize;
use serde::Serialize;
use tokio::sync::mpsc;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::routes::Api;
use crate::settings::Role;

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// The objects.
    pub(crate) objects: Vec<T>,
    /// Send it as `cursor` for the next page; null at the end.
    pub(crate) cursor: Option<String>,
}

/// A page, and conditions on its objects. [`control::filters_of`] says which list takes which; the
/// others are neither in the document nor let through to the handler.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Listed {
    /// Objects in this page: 100 without it, at most 10,000.
    limit: Option<u32>,
    /// The end of the page before.
    cursor: Option<String>,
    /// All pages in one answer, one object a line (`application/x-ndjson`).
    #[serde(default)]
    stream: bool,
    /// Transport.
    protocol: Option<control::Protocol>,
    /// Prefix of the internal address.
    #[param(value_type = Option<String>)]
    internal: Option<control::Prefix>,
    /// Prefix of the address of an IPv6 host.
    #[param(value_type = Option<String>)]
    host: Option<control::Prefix6>,
    /// Internal port.
    internal_port: Option<u16>,
    /// Prefix of the external address.
    #[param(value_type = Option<String>)]
    external: Option<control::Prefix>,
    /// External port.
    external_port: Option<u16>,
    /// Prefix of the remote address.
    #[param(value_type = Option<String>)]
    remote: Option<control::Prefix>,
    /// Remote port.
    remote_port: Option<u16>,
    /// Any of these ports.
    port: Option<u16>,
    /// State of a session.
    state: Option<String>,
    /// Name of the pool.
    pool: Option<String>,
    /// Name of the VRF.
    vrf: Option<String>,
    /// Number of the worker.
    worker: Option<u8>,
    /// Name of the gateway.
    alg: Option<String>,
    /// Address that a route covers, or that a neighbour has.
    #[param(value_type = Option<String>)]
    address: Option<core::net::IpAddr>,
    /// Name of the interface of a next hop or neighbour.
    interface: Option<String>,
    /// Where a route is from.
    source: Option<control::RouteSource>,
    /// Side of the table of a route.
    side: Option<control::Side>,
    /// What the lookup is for, if it is one; goes into the audit log.
    case: Option<String>,
}

impl Listed {
    fn list(self) -> List {
        let filter = Filter {
            protocol: self.protocol,
            internal: self.internal,
            host: self.host,
            internal_port: self.internal_port,
            external: self.external,
            external_port: self.external_port,
            remote: self.remote,
            remote_port: self.remote_port,
            port: self.port,
            state: self.state,
            pool: self.pool,
            vrf: self.vrf,
            worker: self.worker,
            alg: self.alg,
            address: self.address,
            interface: self.interface,
            source: self.source,
            side: self.side,
        };
        List { filter, limit: self.limit, cursor: self.cursor }
    }
}

async fn all<T: Object + Send + 'static>(
    api: &Api,
    principal: &Principal,
    request: Request,
) -> Result<Json<Page<T>>, Refused> {
    let (objects, cursor) = api.daemon.page(principal.actor(), request).await?;
    Ok(Json(Page { objects, cursor }))
}

/// Lines waiting for a client that streams: each has some tens of KiB.
pub(crate) const CHUNKS_MAX: usize = 4;
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;

async fn listed<T: Object + Send + 'static, S: Serialize>(
    api: &Api,
    principal: &Principal,
    listed: Listed,
    request: fn(List) -> Request,
    shown: impl Fn(T) -> S + Send + 'static,
) -> Result<Response, Refused> {
    let actor = principal.actor_for(listed.case.clone());
    if !listed.stream {
        let (objects, cursor) = api.daemon.page::<T>(actor, request(listed.list())).await?;
        let objects = objects.into_iter().map(shown).collect();
        return Ok(Json(Page { objects, cursor }).into_response());
    }
    let turn = api.daemon.stream_turn()?;
    let daemon = api.daemon.clone();
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let outcome = daemon
            .connect(actor)
            .and_then(|mut client| send_all(&mut client, listed.list(), (request, shown), &sender));
        if let Err(error) = outcome {
            // An answer that is cut off is an error for the client.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], begun(receiver).await?).into_response())
}

/// Sends a list as lines; ends early when the client has gone.
fn send_all<T: Object, S: Serialize>(
    client: &mut Client,
    list: List,
    (request, shown): (fn(List) -> Request, impl Fn(T) -> S),
    to: &mpsc::Sender<Result<Bytes, ClientError>>,
) -> Result<(), ClientError> {
    let list = List { limit: Some(list.limit.unwrap_or(control::PAGE_OBJECTS_MAX)), ..list };
    let mut chunk = Vec::new();
    let sent = page_by_page::<T>(client, list, request, to, |object| {
        let written = serde_json::to_writer(&mut chunk, &shown(object));
        debug_assert!(written.is_ok(), "objects of the protocol are JSON");
        chunk.push(b'\n');
        if chunk.len() < CHUNK_BYTES {
            return Ok(());
        }
        to.blocking_send(Ok(core::mem::take(&mut chunk).into())).map_err(|_| Gone)
    })?;
    if sent.is_ok() {
        let _ = to.blocking_send(Ok(chunk.into()));
    }
    Ok(())
}

/// The client has gone.
pub(crate) struct Gone;

/// Gives the objects of a list to `push`, page by page. Sends [`BEGUN`] after the first page.
pub(crate) fn page_by_page<T: Object>(
    client: &mut Client,
    mut list: List,
    request: fn(List) -> Request,
    to: &mpsc::Sender<Result<Bytes, ClientError>>,
    mut push: impl FnMut(T) -> Result<(), Gone>,
) -> Result<Result<(), Gone>, ClientError> {
    let mut is_begun = false;
    loop {
        let (objects, cursor) = client.request::<T>(&request(list.clone()))?;
        if !core::mem::replace(&mut is_begun, true) && to.blocking_send(Ok(BEGUN)).is_err() {
            return Ok(Err(Gone));
        }
        for object in objects {
            if push(object).is_err() {
                return Ok(Err(Gone));
            }
        }
        if cursor.is_none() {
            return Ok(Ok(()));
        }
        // Pages may have no match for long, and then nothing is sent.
        if to.is_closed() {
            return Ok(Err(Gone));
        }
        list.cursor = cursor;
    }
}

/// Precedes the chunks of a list once the daemon has answered with its first page.
pub(crate) const BEGUN: Bytes = Bytes::new();

/// A body of the chunks after [`BEGUN`]. An error in its place has a status of its own: the headers
/// wait for it, however busy the machine is, but not for the first match of a filter.
pub(crate) async fn begun(mut chunks: mpsc::Receiver<Result<Bytes, ClientError>>) -> Result<Body, Refused> {
    let begun = chunks.recv().await.ok_or_else(|| crate::ask::failed("the answer did not begin"))??;
    debug_assert!(begun.is_empty(), "chunks of data come after BEGUN");
    Ok(Body::from_stream(Chunks(chunks)))
}

/// The receiving end as a stream.
pub(crate) struct Chunks<T>(pub(crate) mpsc::Receiver<T>);

impl<T> futures_core::Stream for Chunks<T> {
    type Item = T;

    fn poll_next(
        mut self: core::pin::Pin<&mut Self>,
        context: &mut core::task::Context<'_>,
    ) -> core::task::Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

/// The instance as a whole, and its workers.
#[utoipa::path(get, path = "/api/v1/status", tag = "state", responses(
    (status = OK, description = "Status", body = control::Status),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn status(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
) -> Result<Json<control::Status>, Refused> {
    api.daemon.one(principal.actor(), Request::Status).await.map(Json)
}

macro_rules! whole_lists {
    ($( $(#[doc = $about:literal])+ $name:ident, $path:literal, $object:ty, $request:expr; )+) => { $(
        $(#[doc = $about])+
        #[utoipa::path(get, path = $path, tag = "state", responses(
            (status = OK, description = "All of them", body = Page<$object>),
            (status = "4XX", description = "Refused", body = ErrorBody),
            (status = "5XX", description = "Failed", body = ErrorBody),
        ))]
        pub(crate) async fn $name(
            State(api): State<Api>,
            Extension(principal): Extension<Principal>,
        ) -> Result<Json<Page<$object>>, Refused> {
            all(&api, &principal, $request).await
        }
    )+ };
}

whole_lists! {
    /// Interfaces in the order of the configuration.
    interfaces, "/api/v1/interfaces", control::Interface, Request::Interfaces;
    /// Dropped packets by reason.
    drops, "/api/v1/drops", control::DropReason, Request::Drops;
}

/// Pools in the order of the configuration. Without the role `operate` or `audit` they have no
/// `subscriber_prefixes`: where an address or a slice follows from the subscriber's, or the
/// reverse, these would name subscribers.
#[utoipa::path(get, path = "/api/v1/pools", tag = "state", responses(
    (status = OK, description = "All of them", body = Page<control::Pool>),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn pools(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
) -> Result<Json<Page<control::Pool>>, Refused> {
    let Json(mut page) = all::<control::Pool>(&api, &principal, Request::Pools).await?;
    if !principal.sees_prefixes() {
        page.objects.iter_mut().for_each(|pool| pool.subscriber_prefixes.clear());
    }
    Ok(Json(page))
}

/// Which counters.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counted {
    /// One object for each counter and worker.
    #[serde(default)]
    per_worker: bool,
}

/// Counters: their sums over all workers, or those of each.
#[utoipa::path(get, path = "/api/v1/counters", tag = "state", params(Counted), responses(
    (status = OK, description = "All of them", body = Page<control::Counter>),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn counters(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(Counted { per_worker }): Query<Counted>,
) -> Result<Json<Page<control::Counter>>, Refused> {
    all(&api, &principal, Request::Counters(control::Counters { per_worker })).await
}

macro_rules! paged_lists {
    ($( $(#[doc = $about:literal])+ $name:ident, $path:literal, $object:ty, $request:expr; )+) => { $(
        $(#[doc = $about])+
        #[utoipa::path(get, path = $path, tag = "state", params(Listed), responses(
            (status = OK, description = "A page, or with `stream` one object a line", content(
                (Page<$object> = "application/json"), (String = "application/x-ndjson"),
            )),
            (status = "4XX", description = "Refused", body = ErrorBody),
            (status = "5XX", description = "Failed", body = ErrorBody),
        ))]
        pub(crate) async fn $name(
            State(api): State<Api>,
            Extension(principal): Extension<Principal>,
            Query(query): Query<Listed>,
        ) -> Result<Response, Refused> {
            listed::<$object, _>(&api, &principal, query, $request, core::convert::identity).await
        }
    )+ };
}

paged_lists! {
    /// External addresses of the pools.
    pool_addresses, "/api/v1/pools/addresses", control::PoolAddress, Request::PoolAddresses;
    /// Subscribers with a mapping, port block, or recent refusal.
    subscribers, "/api/v1/subscribers", control::Subscriber, Request::Subscribers;
    /// Mappings.
    mappings, "/api/v1/mappings", control::Mapping, Request::Mappings;
    /// Sessions.
    sessions, "/api/v1/sessions", control::Session, Request::Sessions;
    /// Ports that subscribers asked for by PCP or NAT-PMP.
    grants, "/api/v1/grants", control::Grant, Request::Grants;
    /// Application-level gateways.
    algs, "/api/v1/algs", control::Alg, Request::Algs;
    /// Ports that payloads announced.
    expectations, "/api/v1/expectations", control::Expectation, Request::Expectations;
    /// Routes by table and prefix.
    routes, "/api/v1/routes", control::Route, Request::Routes;
    /// Neighbours in the caches of the workers.
    neighbours, "/api/v1/neighbours", control::Neighbour, Request::Neighbours;
}

/// Rules, filters and forwards in their order. Without the role `audit`, `target_hits`, the `hits`
/// of what names a single subscriber and those below 10 are null, and the others are rounded down
/// to tens.
#[utoipa::path(get, path = "/api/v1/rules", tag = "state", params(Listed), responses(
    (status = OK, description = "A page, or with `stream` one object a line", content(
        (Page<control::Rule> = "application/json"), (String = "application/x-ndjson"),
    )),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn rules(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(query): Query<Listed>,
) -> Result<Response, Refused> {
    if principal.permits(Role::Audit) {
        return listed::<control::Rule, _>(&api, &principal, query, Request::Rules, core::convert::identity).await;
    }
    listed(&api, &principal, query, Request::Rules, rule_without_few).await
}

/// The shortest prefix of IPv6 that sites usually have (RFC 6177 section 2): a rule for a prefix as
/// long or longer may be about one subscriber.
const SITE_BITS: u8 = 48;

/// A user that may change rules could name one subscriber in a rule, and read what it does.
fn rule_without_few(rule: control::Rule) -> serde_json::Value {
    let names_one = rule.target_hits.len() == 1
        || match rule.inside {
            control::AnyPrefix::V4(prefix) => prefix.length() == 32,
            control::AnyPrefix::V6(prefix) => prefix.length() >= SITE_BITS,
        };
    let targets = rule.target_hits.len();
    let rule = control::Rule { hits: rule.hits.filter(|_| !names_one), target_hits: Vec::new(), ..rule };
    let rule = serde_json::to_value(rule);
    debug_assert!(rule.is_ok(), "objects of the protocol are JSON");
    let mut rule = rule.unwrap_or_default();
    rule.get_mut("hits").map(crate::changes::without_few);
    // Each target is the host of a subscriber.
    if let (Some(fields), 1..) = (rule.as_object_mut(), targets) {
        fields.insert("target_hits".to_owned(), vec![serde_json::Value::Null; targets].into());
    }
    rule
}

/// The packet in question.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhyQuestion {
    /// Transport.
    protocol: control::Protocol,
    /// Source, `ADDRESS:PORT`.
    #[param(value_type = String)]
    source: core::net::SocketAddr,
    /// Destination, `ADDRESS:PORT`.
    #[param(value_type = String)]
    destination: core::net::SocketAddr,
    /// It comes in the softwire of this B4.
    #[param(value_type = Option<String>)]
    b4: Option<core::net::Ipv6Addr>,
    /// It comes from outside.
    #[serde(default)]
    inbound: bool,
    /// Flags of a TCP segment; without it: SYN.
    tcp_segment: Option<control::TcpSegment>,
    /// Interface it arrives on.
    interface: Option<String>,
    /// VRF of a packet from inside; without it: that of the interface.
    vrf: Option<String>,
    /// Length of the IP packet.
    length_bytes: Option<u16>,
    /// Must not be fragmented.
    #[serde(default)]
    dont_fragment: bool,
    /// What the lookup is for; goes into the audit log.
    case: Option<String>,
}

/// What would happen to a packet now, step by step. Changes nothing.
#[utoipa::path(get, path = "/api/v1/why", tag = "state", params(WhyQuestion), responses(
    (status = OK, description = "The way to the verdict", body = control::WhyAnswer),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn why(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(asked): Query<WhyQuestion>,
) -> Result<Json<control::WhyAnswer>, Refused> {
    let why = control::Why {
        protocol: asked.protocol,
        source: asked.source,
        destination: asked.destination,
        b4: asked.b4,
        inbound: asked.inbound,
        tcp_segment: asked.tcp_segment,
        interface: asked.interface,
        vrf: asked.vrf,
        length_bytes: asked.length_bytes,
        dont_fragment: asked.dont_fragment,
    };
    api.daemon.one(principal.actor_for(asked.case), Request::Why(why)).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_what_names_one_subscriber_are_hidden() {
        let replies = include_str!("../../control/tests/replies.jsonl").lines();
        let mut rules = replies.filter_map(|line| match serde_json::from_str(line) {
            Ok(control::Reply::Rule(rule)) => Some(rule),
            _ => None,
        });
        let rule = rules.next().unwrap();
        let shown = |inside: &str, hits, targets: &[u64]| {
            let (inside, target_hits) = (inside.parse().unwrap(), targets.to_vec());
            let shown = rule_without_few(control::Rule { inside, hits: Some(hits), target_hits, ..rule.clone() });
            (shown["hits"].as_u64(), shown.get("target_hits").cloned())
        };
        let nulls = |count| Some(vec![serde_json::Value::Null; count].into());
        assert_eq!(shown("100.64.0.0/31", 57, &[]), (Some(50), None));
        assert_eq!(shown("100.64.0.0/31", 9, &[]), (None, None), "few");
        assert_eq!(shown("100.64.0.7/32", 57, &[]), (None, None));
        assert_eq!(shown("2001:db8:1::/48", 57, &[]), (None, None));
        assert_eq!(shown("2001:db8::/47", 57, &[]), (Some(50), None));
        assert_eq!(shown("0.0.0.0/0", 57, &[47, 10]), (Some(50), nulls(2)), "a forward to several targets");
        assert_eq!(shown("0.0.0.0/0", 57, &[57]), (None, nulls(1)), "a forward to one");
    }
}
