//! What is where, and which role it needs.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::StatusCode;
use axum::http::header;
use axum::middleware;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::response::Response;
use axum::routing::get;
use tokio::sync::Semaphore;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::Modify;
use utoipa::OpenApi;
use utoipa::openapi::security::HttpAuthScheme;
use utoipa::openapi::security::HttpBuilder;
use utoipa::openapi::security::SecurityScheme;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::answer::Refused;
use crate::ask::Daemon;
use crate::guard::Guard;
use crate::guard::admit;
use crate::guard::authorize;
use crate::lookups::EventLog;
use crate::settings::Role;
use crate::trace;

/// Bytes of a body, and time for it to arrive.
const BODY_BYTES_MAX: usize = 1024 * 1024;
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// What handlers use.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) daemon: Daemon,
    pub(crate) guard: Arc<Guard>,
    pub(crate) log: EventLog,
    pub(crate) followers: Arc<Semaphore>,
}

/// The head of the OpenAPI document.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Natrix",
        description = "A carrier-grade NAT. Everything that the command `natrix` can do with a running instance."
    ),
    components(schemas(control::TcpSegment)),
    modifiers(&Login),
    security(("bearer" = []), ("basic" = []))
)]
struct Document;

struct Login;

impl Modify for Login {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = |scheme| SecurityScheme::Http(HttpBuilder::new().scheme(scheme).build());
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("bearer", scheme(HttpAuthScheme::Bearer));
        components.add_security_scheme("basic", scheme(HttpAuthScheme::Basic));
    }
}

/// All routes of a server.
pub(crate) fn routes(guard: Arc<Guard>, log: EventLog) -> Router {
    let daemon = Daemon::new(guard.socket());
    let api = Api { daemon, guard: Arc::clone(&guard), log, followers: trace::followers() };
    let needs = |role| middleware::from_fn_with_state((Arc::clone(&guard), role), authorize);
    let view = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(crate::state::status))
        .routes(routes!(crate::state::interfaces))
        .routes(routes!(crate::state::pools))
        .routes(routes!(crate::state::pool_addresses))
        .routes(routes!(crate::state::subscribers))
        .routes(routes!(crate::state::mappings))
        .routes(routes!(crate::state::sessions))
        .routes(routes!(crate::state::grants))
        .routes(routes!(crate::state::algs))
        .routes(routes!(crate::state::expectations))
        .routes(routes!(crate::state::routes))
        .routes(routes!(crate::state::neighbours))
        .routes(routes!(crate::state::rules))
        .routes(routes!(crate::state::counters))
        .routes(routes!(crate::state::drops))
        .routes(routes!(crate::state::why))
        .routes(routes!(crate::lookups::log_stat))
        .routes(routes!(crate::trace::live))
        .routes(routes!(crate::metrics::metrics))
        .routes(routes!(crate::restconf::nat))
        .routes(routes!(crate::restconf::mapping_table))
        .routes(routes!(crate::restconf::only_statistics))
        .routes(routes!(crate::notifications::stream))
        .route("/", get(crate::page::page))
        .route("/page.js", get(crate::page::script))
        .route("/page.css", get(crate::page::style))
        .route("/uplot.js", get(crate::page::plot_script))
        .route("/uplot.css", get(crate::page::plot_style))
        .route_layer(needs(Role::View));
    let operate = OpenApiRouter::new()
        .routes(routes!(crate::changes::plan))
        .routes(routes!(crate::changes::reload))
        .routes(routes!(crate::changes::rollback))
        .routes(routes!(crate::changes::drain))
        .routes(routes!(crate::trace::trace))
        .route_layer(needs(Role::Operate));
    let audit = OpenApiRouter::new()
        .routes(routes!(crate::lookups::find))
        .routes(routes!(crate::lookups::audit))
        .route_layer(needs(Role::Audit));
    let (router, mut document) = view.merge(operate).merge(audit).with_state(api).split_for_parts();
    document.info.version = env!("CARGO_PKG_VERSION").to_owned();
    let document = Arc::new(document);
    let serve_document = move || {
        let document = Arc::clone(&document);
        async move { Json(document.as_ref().clone()) }
    };
    let document = Router::new().route("/api/v1/openapi.json", get(serve_document)).route_layer(needs(Role::View));
    router
        .merge(document)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn(bounded_body))
        .layer(middleware::from_fn_with_state(guard, admit))
        .layer(CatchPanicLayer::new())
        .layer(middleware::from_fn(headers))
}

async fn unknown() -> Refused {
    Refused::new(StatusCode::NOT_FOUND, "path", "does not exist", "see /api/v1/openapi.json")
}

async fn wrong_method() -> Refused {
    Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method", "is not for this path", "see /api/v1/openapi.json")
}

/// Reads the body before anything else sees it, so that nothing waits for a slow client.
async fn bounded_body(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_WITHIN, axum::body::to_bytes(body, BODY_BYTES_MAX)).await;
    match read {
        Ok(Ok(bytes)) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Ok(Err(_)) => {
            let remedy = "send at most 1 MiB, and all that Content-Length announces";
            Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "body", "is too long or incomplete", remedy).into_response()
        }
        Err(_) => {
            let remedy = "send it within 10 s";
            Refused::new(StatusCode::REQUEST_TIMEOUT, "body", "did not arrive in time", remedy).into_response()
        }
    }
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
