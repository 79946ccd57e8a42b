//! Requests from any bytes, for the fuzzer. There is no instance behind the server, so each request
//! that is admitted and understood ends as "does not answer".

use core::cell::RefCell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::http::StatusCode;
use axum::http::header;
use control::Fault;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::access::Access;
use crate::access::Peer;
use crate::event_log::EventLog;
use crate::routes::routes;
use crate::settings::Listen;
use crate::settings::Role;
use crate::settings::Settings;
use crate::settings::User;

/// Clients differ by their user, so that the limit of requests a second is not in the way.
const CLIENTS: u32 = 4_000;

struct Server {
    runtime: Runtime,
    routes: Router,
}

fn server() -> Option<Server> {
    let user = |name: &str, role, group| User { name: name.to_owned(), role, token: None, group: Some(group) };
    let settings = Settings {
        listen: Listen::Tcp(([127, 0, 0, 1], 8080).into()),
        hosts: vec!["nat.example".to_owned()],
        tls: None,
        users: vec![user("see", Role::View, 1), user("noc", Role::Operate, 2), user("law", Role::Audit, 3)],
        control: "/nonexistent/control.sock".into(),
    };
    let missing = || Fault::new("log", "is not there", "start the instance");
    let log = EventLog::missing(missing);
    let access = Arc::new(Access::new(settings, [7; 32], u32::MAX));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build().ok()?;
    Some(Server { runtime, routes: routes(access, log, None) })
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = RefCell::new(server());
}

static CLIENT: AtomicU32 = AtomicU32::new(1);

/// Sends the request in `bytes`: a byte for method and user, then lines: the target, headers until
/// an empty line, and the body. None if the bytes are no request. Otherwise the status of the
/// answer.
///
/// # Panics
/// The answer breaks a claim: it is an internal error, a failure that does not say what is wrong
/// and what to do, or has no security headers.
pub fn request(bytes: &[u8]) -> Option<u16> {
    let (first, rest) = bytes.split_first()?;
    let method = ["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"].get(usize::from(first >> 2) % 6)?;
    let (head, body) = rest.split_at(rest.windows(2).position(|pair| pair == b"\n\n").unwrap_or(rest.len()));
    let mut lines = head.split(|byte| *byte == b'\n');
    let target = core::str::from_utf8(lines.next()?).ok()?;
    let mut request = Request::builder().method(*method).uri(format!("/{target}"));
    let mut has_host = false;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        has_host |= name.eq_ignore_ascii_case(b"host");
        request = request.header(name, value.get(1..)?);
    }
    if !has_host {
        request = request.header(header::HOST, "127.0.0.1:8080");
    }
    let mut request = request.body(Body::from(body.get(2..).unwrap_or_default().to_vec())).ok()?;
    let uid = 1 + CLIENT.fetch_add(1, Ordering::Relaxed) % CLIENTS;
    request.extensions_mut().insert(Peer::Unix { uid, groups: vec![u32::from(first & 3)] });
    SERVER.with_borrow(|server| {
        let server = server.as_ref()?;
        let answer = server.runtime.block_on(async {
            let response = server.routes.clone().oneshot(request).await.ok()?;
            let (head, body) = response.into_parts();
            // Streams have no end here.
            let is_stream = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
            let body = if is_stream { None } else { axum::body::to_bytes(body, usize::MAX).await.ok() };
            Some((head, body))
        });
        let (head, body) = answer?;
        assert_ne!(head.status, StatusCode::INTERNAL_SERVER_ERROR, "{target:?}: {body:?}");
        assert!(head.headers.contains_key(header::CONTENT_SECURITY_POLICY), "{target:?}");
        let is_failure = head.status.is_client_error() || head.status.is_server_error();
        if let Some(body) = body.filter(|body| is_failure && *method != "HEAD" && !body.is_empty()) {
            let said: Result<crate::answer::ErrorBody, _> = serde_json::from_slice(&body);
            assert!(said.is_ok_and(|said| said.is_complete()), "{target:?}: {body:?}");
        }
        Some(head.status.as_u16())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sent_as_written() {
        for (bytes, status) in [
            (&b"\x03api/v1/mappings?limit=7"[..], 503),
            (b"\x03api/v1/mappings?limit=x", 400),
            (b"\x01api/v1/mappings?limit=7", 403),
            (b"\x01api/v1/openapi.json", 200),
            (b"\x01api/v1/audit", 403),
            (b"\x03api/v1/audit", 503),
            (b"\x00api/v1/status", 401),
            (b"\x01api/v1/status\nHost:evil.example", 421),
            (b"\x06api/v1/plan\nOrigin:http://evil.example\n\nx = 1", 403),
            (b"\x06api/v1/plan\n\nx = 1", 503),
            (b"\x05api/v1/status", 405),
            (b"\x03api/v1/find?address=203.0.113.1&at=yesterday", 503),
        ] {
            assert_eq!(request(bytes), Some(status), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
