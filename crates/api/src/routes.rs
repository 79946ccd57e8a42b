//! What is where, and which role it needs.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::body::HttpBody;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::middleware;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::MethodRouter;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa::openapi::path::ParameterIn;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Access;
use crate::access::Needed;
use crate::access::admit;
use crate::access::authorize;
use crate::answer::Refused;
use crate::ask::Daemon;
use crate::document;
use crate::event_log::EventLog;
use crate::followers::Followers;
use crate::notifications::Looks;
use crate::settings::Role;
use crate::tls::Certificates;

/// What handlers use.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) daemon: Daemon,
    pub(crate) access: Arc<Access>,
    pub(crate) log: EventLog,
    pub(crate) followers: Followers,
    pub(crate) looks: Looks,
    /// Those of the server, if it has TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
}

/// All routes of a server.
pub(crate) fn routes(access: Arc<Access>, log: EventLog, certificates: Option<Arc<Certificates>>) -> Router {
    let daemon = Daemon::new(access.socket());
    let (followers, looks) = (Followers::default(), Looks::default());
    let api = Api { daemon: daemon.clone(), access: Arc::clone(&access), log, followers, looks, certificates };
    let (router, mut document) = by_role(&access).with_state(api).split_for_parts();
    document::complete(&mut document);
    let document = Arc::new(document);
    let serve_document = move || {
        let document = Arc::clone(&document);
        async move { Json(document.as_ref().clone()) }
    };
    let needs_view = middleware::from_fn_with_state((Arc::clone(&access), (|_| Role::View) as Needed), authorize);
    let document = Router::new().route("/api/v1/openapi.json", get(serve_document)).route_layer(needs_view);
    router
        .merge(document)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state((access, daemon), admit))
        .layer(middleware::from_fn(without_body))
        .layer(CatchPanicLayer::new())
        .layer(middleware::from_fn(headers))
}

/// The files of the page, which are not in the document.
fn page_files() -> [(&'static str, MethodRouter<Api>); 5] {
    [
        ("/", get(crate::page::page)),
        ("/page.js", get(crate::page::script)),
        ("/page.css", get(crate::page::style)),
        ("/uplot.js", get(crate::page::plot_script)),
        ("/uplot.css", get(crate::page::plot_style)),
    ]
}

/// Every path with the role that it needs. What names a subscriber, or says which endpoint is or
/// was whose, needs `audit`; what the network's configuration says, `operate`; `view` sees figures.
fn by_role(access: &Arc<Access>) -> OpenApiRouter<Api> {
    let view = OpenApiRouter::with_openapi(document::Document::openapi())
        .routes(routes!(crate::state::status))
        .routes(routes!(crate::state::interfaces))
        .routes(routes!(crate::state::pools))
        .routes(routes!(crate::state::pool_addresses))
        .routes(routes!(crate::state::algs))
        .routes(routes!(crate::state::counters))
        .routes(routes!(crate::state::drops))
        .routes(routes!(crate::event_log::stat))
        .routes(routes!(crate::trace::live))
        .routes(routes!(crate::metrics::metrics))
        .routes(routes!(crate::restconf::nat))
        .routes(routes!(crate::restconf::only_statistics))
        .routes(routes!(crate::notifications::stream));
    let view = page_files().into_iter().fold(view, |view, (path, file)| view.route(path, file));
    let operate = OpenApiRouter::new()
        .routes(routes!(crate::state::rules))
        .routes(routes!(crate::state::routes))
        .routes(routes!(crate::changes::reload))
        .routes(routes!(crate::changes::rollback))
        .routes(routes!(crate::changes::drain));
    let audit = OpenApiRouter::new()
        .routes(routes!(crate::state::subscribers))
        .routes(routes!(crate::state::neighbours))
        .routes(routes!(crate::state::mappings))
        .routes(routes!(crate::state::sessions))
        .routes(routes!(crate::state::grants))
        .routes(routes!(crate::state::expectations))
        .routes(routes!(crate::state::why))
        .routes(routes!(crate::trace::trace))
        .routes(routes!(crate::restconf::mapping_table))
        .routes(routes!(crate::lookups::find))
        .routes(routes!(crate::event_log::head))
        .routes(routes!(crate::event_log::verify))
        .routes(routes!(crate::event_log::export))
        .routes(routes!(crate::lookups::audit));
    // Its own parameter decides whether it names subscribers.
    let plan = OpenApiRouter::new().routes(routes!(crate::changes::plan));
    needing(view, access, |_| Role::View, "view")
        .merge(needing(operate, access, |_| Role::Operate, "operate"))
        .merge(needing(audit, access, |_| Role::Audit, "audit"))
        .merge(needing(plan, access, crate::changes::needed_by_plan, "operate; with details, audit"))
}

/// The parameters that the query of each path may have.
type Parameters = HashMap<String, Vec<String>>;

/// Refuses parameters that the path does not take: an answer that ignored one would look like one
/// that heeds it.
async fn check_parameters(
    State(all): State<Arc<Parameters>>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let uri = request.uri();
    let Some(takes) = all.get(uri.path()) else { return Ok(next.run(request).await) };
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|query| query.0);
    let query = query.unwrap_or_default();
    let Some((unknown, _)) = query.iter().find(|(name, _)| !takes.contains(name)) else {
        return Ok(next.run(request).await);
    };
    let unknown: String = unknown.chars().take(PARAMETER_CHARACTERS_MAX).collect();
    let remedy = match takes.as_slice() {
        [] => "omit it: this path takes none".to_owned(),
        takes => format!("use one of: {}", takes.join(", ")),
    };
    let problem = format!("is not one of {}", uri.path());
    let fault = control::Fault::new(format!("parameter {unknown}"), problem, remedy);
    Err(Refused::of(StatusCode::BAD_REQUEST, fault))
}

/// Of a parameter that is refused.
const PARAMETER_CHARACTERS_MAX: usize = 64;

/// Routes behind a role, which the document names.
fn needing(routes: OpenApiRouter<Api>, access: &Arc<Access>, needed: Needed, role: &str) -> OpenApiRouter<Api> {
    let mut routes = routes;
    let mut parameters = Parameters::new();
    for (path, item) in &mut routes.get_openapi_mut().paths.paths {
        document::complete_parameters(item);
        let known = document::operations(item).flat_map(|operation| operation.parameters.iter().flatten());
        let of_query = known.filter(|one| one.parameter_in == ParameterIn::Query).map(|one| one.name.clone());
        parameters.insert(path.clone(), of_query.collect());
    }
    // The role comes first.
    let mut routes = routes
        .route_layer(middleware::from_fn_with_state(Arc::new(parameters), check_parameters))
        .route_layer(middleware::from_fn_with_state((Arc::clone(access), needed), authorize));
    document::name_role(routes.get_openapi_mut(), role);
    routes
}

async fn unknown() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "path", "does not exist", "see /api/v1/openapi.json")
}

async fn wrong_method() -> Refused {
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method", "is not for this path", "see /api/v1/openapi.json")
}

/// Closes the connection of a request that was refused before its body was read: the rest of the
/// body is no request.
async fn without_body(request: Request, next: Next) -> Response {
    let has_body = !request.body().is_end_stream();
    let mut response = next.run(request).await;
    let unread = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::METHOD_NOT_ALLOWED,
        StatusCode::MISDIRECTED_REQUEST,
        StatusCode::TOO_MANY_REQUESTS,
    ];
    if has_body && unread.contains(&response.status()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Nothing is stored, framed, or loaded from elsewhere.
async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, policy),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests;
