//! Every path against every role, and what one client may do to the others.

use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use axum::http::StatusCode;
use control::Reply;
use control::Request as Question;
use control::Trace;
use control::server::Connection;
use futures_core::Stream;
use tower::ServiceExt;

use super::*;
use crate::access::BODY_BYTES_MAX;
use crate::access::CASE_HEADER;
use crate::access::CSRF_HEADER;
use crate::access::Peer;
use crate::settings::Listen;
use crate::settings::Settings;
use crate::settings::User;

/// The role that each answer needs. A new path is added here once it is decided who may see it.
const DECISIONS: [(&str, Method, Role); 44] = [
    ("/", Method::GET, Role::View),
    ("/page.js", Method::GET, Role::View),
    ("/page.css", Method::GET, Role::View),
    ("/uplot.js", Method::GET, Role::View),
    ("/uplot.css", Method::GET, Role::View),
    ("/api/v1/openapi.json", Method::GET, Role::View),
    ("/api/v1/status", Method::GET, Role::View),
    ("/api/v1/live", Method::GET, Role::View),
    ("/api/v1/interfaces", Method::GET, Role::View),
    ("/api/v1/pools", Method::GET, Role::View),
    ("/api/v1/pools/addresses", Method::GET, Role::View),
    ("/api/v1/algs", Method::GET, Role::View),
    ("/api/v1/counters", Method::GET, Role::View),
    ("/api/v1/drops", Method::GET, Role::View),
    ("/api/v1/log/stat", Method::GET, Role::View),
    ("/metrics", Method::GET, Role::View),
    // With the table of mappings only for `audit`.
    ("/restconf/data/ietf-nat:nat", Method::GET, Role::View),
    ("/restconf/data/ietf-nat:nat/instances/instance=1/statistics", Method::GET, Role::View),
    ("/restconf/streams/ietf-nat?high-threshold=80", Method::GET, Role::View),
    // A forward names the address behind it, and the next hop may be a subscriber.
    ("/api/v1/rules", Method::GET, Role::Operate),
    ("/api/v1/routes", Method::GET, Role::Operate),
    ("/api/v1/plan", Method::POST, Role::Operate),
    ("/api/v1/plan?details=0", Method::POST, Role::Operate),
    ("/api/v1/plan?rollback=true", Method::POST, Role::Operate),
    ("/api/v1/reload", Method::POST, Role::Operate),
    ("/api/v1/rollback", Method::POST, Role::Operate),
    ("/api/v1/drain", Method::POST, Role::Operate),
    ("/api/v1/plan?details=1", Method::POST, Role::Audit),
    ("/api/v1/plan?rollback=true&details=1&kept=true", Method::POST, Role::Audit),
    ("/api/v1/subscribers", Method::GET, Role::Audit),
    // Of subscribers on the link it says who is active.
    ("/api/v1/neighbours", Method::GET, Role::Audit),
    ("/api/v1/mappings", Method::GET, Role::Audit),
    ("/api/v1/sessions", Method::GET, Role::Audit),
    ("/api/v1/grants", Method::GET, Role::Audit),
    ("/api/v1/expectations", Method::GET, Role::Audit),
    ("/api/v1/find?address=203.0.113.1", Method::GET, Role::Audit),
    ("/api/v1/find?address=203.0.113.1&at=yesterday", Method::GET, Role::Audit),
    ("/api/v1/why?protocol=udp&source=100.64.0.7:1&destination=192.0.2.1:2", Method::GET, Role::Audit),
    ("/api/v1/trace?port=53", Method::GET, Role::Audit),
    ("/restconf/data/ietf-nat:nat/instances/instance=1/mapping-table", Method::GET, Role::Audit),
    ("/api/v1/log/head", Method::GET, Role::Audit),
    ("/api/v1/log/verify", Method::POST, Role::Audit),
    ("/api/v1/log/export?from=monday&to=tuesday", Method::GET, Role::Audit),
    ("/api/v1/audit", Method::GET, Role::Audit),
];

fn served() -> Router {
    served_by("/nonexistent/control.sock".into())
}

/// The routes to the instance behind this control socket.
fn served_by(control: PathBuf) -> Router {
    let missing = || control::Fault::new("log", "is not there", "start the instance");
    let past = move |asked: &crate::PastQuestion, _: &dyn Fn() -> bool| {
        Err(crate::NotAnswered::Log(missing().seen(asked.time.to_string())))
    };
    let past = Arc::new(past);
    served_with(control, EventLog { past, ..EventLog::missing(missing) })
}

fn served_with(control: PathBuf, log: EventLog) -> Router {
    let user = |role: Role, group| User { name: role.to_string(), role, token: None, group: Some(group) };
    let settings = Settings {
        listen: Listen::Unix("/nonexistent/http.sock".into()),
        hosts: Vec::new(),
        tls: None,
        users: vec![user(Role::View, 1), user(Role::Operate, 2), user(Role::Audit, 3)],
        control,
    };
    routes(Arc::new(Access::new(settings, [7; 32], u32::MAX)), log, None)
}

/// The status of the answer to a member of `groups`. There is no instance, so whatever is
/// admitted and asks it ends as 503.
async fn status(routes: &Router, (path, method): (&str, &Method), groups: Vec<u32>, uid: u32) -> StatusCode {
    let request = Request::builder().method(method).uri(path).extension(Peer::Unix { uid, groups });
    routes.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap().status()
}

#[tokio::test]
async fn every_path_answers_only_to_its_role() {
    let routes = served();
    // One user for each question, so that none asks too often.
    let mut uid = 1000;
    for (path, method, needed) in DECISIONS {
        for (group, role) in [(0, None), (1, Some(Role::View)), (2, Some(Role::Operate)), (3, Some(Role::Audit))] {
            uid += 1;
            let status = status(&routes, (path, &method), vec![group], uid).await;
            match role {
                None => assert_eq!(status, StatusCode::UNAUTHORIZED, "{path} without a login"),
                Some(role) if role.permits(needed) => {
                    assert!(
                        [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNPROCESSABLE_ENTITY]
                            .contains(&status),
                        "{path} as {role}: {status}"
                    );
                }
                Some(role) => assert_eq!(status, StatusCode::FORBIDDEN, "{path} as {role}"),
            }
        }
    }
    // Members of two groups may do what either may, and root everything.
    for groups in [vec![2, 3], vec![3, 2, 1]] {
        assert_eq!(status(&routes, ("/api/v1/audit", &Method::GET), groups.clone(), 1).await, 503);
        assert_eq!(status(&routes, ("/api/v1/plan?details=1", &Method::POST), groups.clone(), 1).await, 503);
        assert_eq!(status(&routes, ("/api/v1/plan", &Method::POST), groups, 1).await, 503);
    }
    assert_eq!(status(&routes, ("/api/v1/plan?details=1", &Method::POST), Vec::new(), 0).await, 503);
}

/// An instance without traffic: traces get no packet, and the list of mappings never ends. It
/// answers other questions with the objects of the contract of the control protocol.
struct Silent {
    path: PathBuf,
    streams: Arc<Mutex<Vec<UnixStream>>>,
    /// What it was asked.
    questions: Arc<Mutex<Vec<Question>>>,
    /// Those in whose name.
    actors: Arc<Mutex<Vec<control::Actor>>>,
}

impl Silent {
    fn start(name: &str) -> Silent {
        let path = std::env::temp_dir().join(format!("natrix-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let streams = Arc::new(Mutex::new(Vec::new()));
        let of_clients = Arc::clone(&streams);
        let questions = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::clone(&questions);
        let actors = Arc::new(Mutex::new(Vec::new()));
        let of_questions = Arc::clone(&actors);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                of_clients.lock().unwrap().push(stream.try_clone().unwrap());
                let (asked, actors) = (Arc::clone(&asked), Arc::clone(&of_questions));
                thread::spawn(move || Silent::answer(&stream, &asked, &actors));
            }
        });
        Silent { path, streams, questions, actors }
    }

    fn answer(stream: &UnixStream, asked: &Mutex<Vec<Question>>, actors: &Mutex<Vec<control::Actor>>) {
        let Ok(mut connection) = Connection::new(stream, stream, "test") else { return };
        while let Ok(Some(question)) = connection.next_request() {
            asked.lock().unwrap().push(question.clone());
            actors.lock().unwrap().extend(connection.actor().cloned());
            let kind = match question {
                // As if the disk of the audit log were full.
                Question::Trace(Trace { port: Some(1), .. })
                | Question::Drain(_)
                | Question::Reload(_)
                | Question::Sessions(_) => {
                    let fault = control::Fault::new(control::AUDIT_LOG, "cannot be written", "make room");
                    if connection.send(&Reply::Error(fault)).is_err() {
                        return;
                    }
                    continue;
                }
                Question::Trace(Trace { port: Some(2), .. }) => {
                    let fault = control::Fault::new("trace", control::TOO_MANY_TRACES, "end another one first");
                    if connection.send(&Reply::Error(fault)).is_err() {
                        return;
                    }
                    continue;
                }
                // As on a busy machine.
                Question::Grants(_) => {
                    thread::sleep(core::time::Duration::from_millis(700));
                    let fault = control::Fault::new("cursor", "is not one", "send that of the page before");
                    if connection.send(&Reply::Error(fault)).is_err() {
                        return;
                    }
                    continue;
                }
                // The first page has no match yet. The next never comes.
                Question::Expectations(list) => {
                    if list.cursor.is_none() && connection.send_all(Vec::<Reply>::new(), Some("1".to_owned())).is_err()
                    {
                        return;
                    }
                    continue;
                }
                // Nothing passes yet.
                Question::Trace(_) => continue,
                Question::Mappings(list) => {
                    // A first page with enough for a piece. The next never comes.
                    let mut replies = include_str!("../../../control/tests/replies.jsonl").lines();
                    let mapping = replies.find(|line| line.starts_with("{\"mapping\"")).unwrap();
                    let mapping = serde_json::from_str::<Reply>(mapping).unwrap();
                    let page = vec![mapping; crate::state::CHUNK_BYTES / 100];
                    if list.cursor.is_none() && connection.send_all(page, Some("1".to_owned())).is_err() {
                        return;
                    }
                    continue;
                }
                Question::Status => "{\"status\"",
                Question::Pools => "{\"pool\"",
                Question::Plan(_) => "{\"plan\"",
                Question::Rules(_) => "{\"rule\"",
                _ => "none",
            };
            let replies = include_str!("../../../control/tests/replies.jsonl").lines();
            let replies = replies.filter(|line| line.starts_with(kind));
            if connection.send_all(replies.map(|line| serde_json::from_str::<Reply>(line).unwrap()), None).is_err() {
                return;
            }
        }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn ask(routes: &Router, path: &str, group: u32) -> Response {
    send(routes, (Method::GET, path), group, "").await
}

async fn send(routes: &Router, (method, path): (Method, &str), group: u32, body: &'static str) -> Response {
    let peer = Peer::Unix { uid: 1000, groups: vec![group] };
    let request = Request::builder().method(method).uri(path).extension(peer).body(Body::from(body)).unwrap();
    routes.clone().oneshot(request).await.unwrap()
}

async fn json(answer: Response) -> serde_json::Value {
    let body = axum::body::to_bytes(answer.into_body(), BODY_BYTES_MAX).await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

async fn open_streams_and_ask(path: &str, most: usize) {
    let instance = Silent::start(&format!("{}-streams", path.len()));
    let routes = served_by(instance.path.clone());
    let mut open = Vec::new();
    for _ in 0..most {
        let answer = ask(&routes, path, 3).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        open.push(answer);
    }
    assert_eq!(ask(&routes, path, 3).await.status(), StatusCode::SERVICE_UNAVAILABLE, "{path} beyond the limit");
    assert_eq!(ask(&routes, "/api/v1/drops", 1).await.status(), StatusCode::OK, "beside all of {path}");
    // The threads of the streams end with the instance.
    drop(instance);
}

#[tokio::test]
async fn a_parameter_that_a_path_lacks_is_refused() {
    let instance = Silent::start("parameters");
    let routes = served_by(instance.path.clone());
    let other_list = |list: &str, query: &str| (Method::GET, format!("/api/v1/{list}?{query}"), 3);
    let refused = [
        other_list("mappings", "remote=8.8.8.8"),
        other_list("mappings", "remote=8.8.8.8&stream=true"),
        other_list("subscribers", "remote=8.8.8.8"),
        other_list("neighbours", "internal=100.64.0.1"),
        other_list("sessions", "alg=ftp"),
        other_list("status", "verbose=true"),
        other_list("drops", "reason=x"),
        other_list("pools", "pool=a"),
        other_list("interfaces", "limit=1"),
        (Method::GET, "/restconf/data/ietf-nat:nat?depth=1".to_owned(), 3),
        (Method::POST, "/api/v1/rollback?dry_run=true".to_owned(), 2),
        (Method::GET, "/api/v1/rules?pool=a".to_owned(), 2),
    ];
    for (method, path, group) in refused {
        let answer = send(&routes, (method, &path), group, "").await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{path}");
        let (_, query) = path.split_once('?').unwrap();
        let wanted = format!("parameter {}", query.split('=').next().unwrap());
        assert_eq!(json(answer).await.pointer("/error/object"), Some(&wanted.into()), "{path}");
    }
    assert_eq!(*instance.questions.lock().unwrap(), [], "nothing was asked, nothing rolled back");
    let (_, list, _) = other_list("neighbours", "remote=8.8.8.8");
    let remedy = json(ask(&routes, &list, 3).await).await.pointer("/error/remedy").cloned();
    let takes = "use one of: limit, cursor, stream, worker, address, interface, case";
    assert_eq!(remedy, Some(takes.into()));
}

#[tokio::test]
async fn an_instance_that_hangs_is_given_up_as_by_the_command() {
    let instance = Silent::start("hangs");
    let begun = std::time::Instant::now();
    let answer = ask(&served_by(instance.path.clone()), "/api/v1/expectations?cursor=1", 3).await;
    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert!((9..20).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn each_list_has_its_own_filters_in_the_document() {
    let document = json(ask(&served(), "/api/v1/openapi.json", 1).await).await;
    for (path, list) in [("pools/addresses", "pool_addresses"), ("sessions", "sessions"), ("rules", "rules")] {
        let operation = &document["paths"][format!("/api/v1/{path}")]["get"];
        let named = operation["parameters"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str());
        let mut filters: Vec<&str> = named.filter(|name| control::is_filter(name)).collect();
        let mut wanted = control::filters_of(list).unwrap().to_vec();
        filters.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(filters, wanted, "{path}");
    }
    let headers = |path: &str, method: &str| {
        let parameters = document["paths"][path][method]["parameters"].as_array().unwrap().iter();
        let headers = parameters.filter(|one| one["in"] == "header");
        headers.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(headers("/api/v1/reload", "post"), [CSRF_HEADER]);
    assert_eq!(headers("/api/v1/find", "get"), [CASE_HEADER]);
    assert_eq!(document["components"]["securitySchemes"]["certificate"]["type"], "mutualTLS");
}

#[tokio::test]
async fn the_case_of_restconf_is_that_of_the_query() {
    let instance = Silent::start("case");
    let routes = served_by(instance.path.clone());
    let table = "/restconf/data/ietf-nat:nat/instances/instance=1/mapping-table";
    for path in [table, "/restconf/data/ietf-nat:nat"] {
        instance.actors.lock().unwrap().clear();
        assert_eq!(ask(&routes, &format!("{path}?case=AZ-17"), 3).await.status(), StatusCode::OK);
        let actors = instance.actors.lock().unwrap();
        let cases: Vec<_> = actors.iter().map(|actor| actor.case.as_deref()).collect();
        assert!(!cases.is_empty() && cases.iter().all(|case| *case == Some("AZ-17")), "{path}: {cases:?}");
    }
}

#[tokio::test]
async fn few_hits_of_a_rule_are_shown_only_to_audit() {
    let instance = Silent::start("hits");
    let routes = served_by(instance.path.clone());
    let rules = async |groups: Vec<u32>, query: &str| {
        let peer = Peer::Unix { uid: 1000, groups };
        let request = Request::builder().uri(format!("/api/v1/rules{query}")).extension(peer);
        let answer = routes.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let body = axum::body::to_bytes(answer.into_body(), BODY_BYTES_MAX).await.unwrap();
        let mut parts = serde_json::Deserializer::from_slice(&body).into_iter::<serde_json::Value>();
        let first = parts.next().unwrap().unwrap();
        let all = first["objects"].as_array().cloned().unwrap_or_else(|| vec![first.clone()]);
        all.into_iter().chain(parts.map(Result::unwrap)).collect::<Vec<_>>()
    };
    let exact = rules(vec![2, 3], "").await;
    let shown = |count: &serde_json::Value| match count.as_u64() {
        None | Some(0..10) => serde_json::Value::Null,
        Some(many) => (many / 10 * 10).into(),
    };
    let names_one = |rule: &serde_json::Value| rule["inside"].as_str().is_some_and(|inside| inside.ends_with("/32"));
    let hits = |rule| if names_one(rule) { serde_json::Value::Null } else { shown(&rule["hits"]) };
    let wanted: Vec<_> = exact.iter().map(hits).collect();
    assert!(exact.iter().any(|rule| rule["hits"].as_u64().is_some_and(|hits| hits % 10 > 0)), "{exact:?}");
    for query in ["", "?stream=true"] {
        let bounded = rules(vec![2], query).await;
        assert_eq!(bounded.iter().map(|rule| rule["hits"].clone()).collect::<Vec<_>>(), wanted, "{query}");
        for (exact, bounded) in exact.iter().zip(&bounded) {
            let Some(targets) = exact["target_hits"].as_array() else { continue };
            assert_eq!(bounded["target_hits"], serde_json::Value::from(vec![serde_json::Value::Null; targets.len()]));
        }
    }
}

#[tokio::test]
async fn a_client_with_a_certificate_makes_changes_with_a_header() {
    let instance = Silent::start("certificate");
    let routes = served_by(instance.path.clone());
    for (headers, wanted) in [
        (&[][..], 403),
        (&[(CSRF_HEADER, "client")], 200),
        (&[(CSRF_HEADER, "another")], 403),
        (&[(CSRF_HEADER, "client"), ("origin", "https://127.0.0.1:8080")], 403),
        (&[(CSRF_HEADER, "client"), ("sec-fetch-site", "same-origin")], 403),
        (&[(CSRF_HEADER, "client"), ("cookie", "a=b")], 403),
    ] {
        let peer = Peer::Tcp { address: [192, 0, 2, 1].into(), certificate: Some("operate".to_owned()) };
        let request = Request::builder().method(Method::POST).uri("/api/v1/plan").extension(peer);
        let request = request.header("host", "127.0.0.1:8080");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let answer = routes.clone().oneshot(request.body(Body::from("text")).unwrap()).await.unwrap();
        assert_eq!(answer.status(), wanted, "{headers:?}");
    }
}

#[tokio::test]
async fn open_traces_leave_other_requests_alone() {
    open_streams_and_ask("/api/v1/trace?port=53", crate::ask::TRACES_MAX).await;
}

#[tokio::test]
async fn slow_streams_leave_other_requests_alone() {
    open_streams_and_ask("/api/v1/mappings?stream=true", crate::ask::STREAMS_MAX).await;
}

#[tokio::test]
async fn only_operate_and_audit_see_subscribers_prefixes() {
    let instance = Silent::start("prefixes");
    let routes = served_by(instance.path.clone());
    for (path, place, group, seen) in [
        ("/api/v1/pools", "/objects/0/subscriber_prefixes/0", 1, false),
        ("/api/v1/pools", "/objects/0/subscriber_prefixes/0", 2, true),
        ("/api/v1/pools", "/objects/0/subscriber_prefixes/0", 3, true),
        ("/restconf/data/ietf-nat:nat", "/ietf-nat:nat/instances/instance/0/policy/0/subscriber-match", 1, false),
        ("/restconf/data/ietf-nat:nat", "/ietf-nat:nat/instances/instance/0/policy/0/subscriber-match", 2, true),
    ] {
        let answer = ask(&routes, path, group).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let body = json(answer).await;
        assert_eq!(body.pointer(place).is_some(), seen, "{path} as group {group}: {body}");
    }
}

#[tokio::test]
async fn a_plan_counts_few_subscribers_only_for_audit() {
    let instance = Silent::start("few");
    let routes = served_by(instance.path.clone());
    let plan = |groups: Vec<u32>| {
        let peer = Peer::Unix { uid: 1000, groups };
        let request = Request::builder().method(Method::POST).uri("/api/v1/plan").extension(peer);
        let answer = routes.clone().oneshot(request.body(Body::from("text")).unwrap());
        async { json(answer.await.unwrap()).await }
    };
    let all = plan(vec![2, 3]).await;
    let some = plan(vec![2]).await;
    let counts = |body: &serde_json::Value| body.pointer("/plan/total").unwrap().as_object().unwrap().clone();
    let (exact, shown) = (counts(&all), counts(&some));
    let (mut few, mut many) = (0, 0);
    for (name, exact) in &exact {
        let Some(exact) = exact.as_u64() else { continue };
        let wanted = if exact < 10 { serde_json::Value::Null } else { (exact / 10 * 10).into() };
        assert_eq!(shown[name], wanted, "{name}");
        if exact < 10 { few += 1 } else { many += 1 }
    }
    assert!(few > 0 && many > 0, "{exact:?}");
    assert_eq!(all["plan"]["changes"], some["plan"]["changes"], "figures of the text itself");
}

#[tokio::test]
async fn only_the_answer_with_the_rules_reads_them() {
    let instance = Silent::start("rules");
    let routes = served_by(instance.path.clone());
    let statistics = "/restconf/data/ietf-nat:nat/instances/instance=1/statistics";
    let all = "/restconf/data/ietf-nat:nat";
    for (path, group, reads) in [(statistics, 2, false), (statistics, 3, false), (all, 1, false), (all, 2, true)] {
        instance.questions.lock().unwrap().clear();
        assert_eq!(ask(&routes, path, group).await.status(), StatusCode::OK, "{path}");
        let asked = instance.questions.lock().unwrap();
        let has_read = asked.iter().any(|question| matches!(question, Question::Rules(_)));
        assert_eq!(has_read, reads, "{path} as group {group}: {asked:?}");
    }
}

#[tokio::test]
async fn event_streams_share_one_look_a_second() {
    let instance = Silent::start("looks");
    let routes = served_by(instance.path.clone());
    let begun = std::time::Instant::now();
    let mut open = Vec::new();
    for _ in 0..12 {
        let answer = ask(&routes, "/restconf/streams/ietf-nat?notify-subscribers-limit=0", 1).await;
        // Its first event shows that it has the figures.
        let mut events = answer.into_body().into_data_stream();
        let first = core::future::poll_fn(|context| core::pin::Pin::new(&mut events).poll_next(context));
        let first = tokio::time::timeout(Duration::from_secs(60), first).await.unwrap().unwrap().unwrap();
        assert!(first.starts_with(b"data: {\"ietf-restconf:notification\""), "{first:?}");
        open.push(events);
    }
    let asked = instance.questions.lock().unwrap();
    let looks = asked.iter().filter(|question| **question == Question::Pools).count() as u64;
    // One in each second, however many streams there are.
    assert!(looks <= begun.elapsed().as_secs() + 1, "{looks} looks in {:?}", begun.elapsed());
    assert!(!asked.iter().any(|question| matches!(question, Question::Rules(_))), "{asked:?}");
}

#[tokio::test]
async fn a_refused_lookup_or_change_is_in_the_audit_log() {
    let instance = Silent::start("refusals");
    let routes = served_by(instance.path.clone());
    let neighbours = "/api/v1/neighbours?address=100.64.0.7";
    assert_eq!(ask(&routes, neighbours, 2).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(send(&routes, (Method::POST, "/api/v1/reload"), 3, "").await.status(), StatusCode::FORBIDDEN);
    assert_eq!(send(&routes, (Method::POST, "/api/v1/plan?details=1"), 2, "").await.status(), 403);
    // The role comes before the case.
    assert_eq!(ask(&routes, "/api/v1/neighbours?case=a%0Ab", 2).await.status(), StatusCode::FORBIDDEN);
    let wrong_case = "/api/v1/plan?details=1&case=a%0Ab";
    assert_eq!(send(&routes, (Method::POST, wrong_case), 2, "").await.status(), StatusCode::FORBIDDEN);
    let record = |action: &str, subject: &str, needed: &str| {
        let (action, subject) = (action.to_owned(), subject.to_owned());
        let result = Some(format!("refused: needs {needed}"));
        Question::Record(control::Record { action, subject, result, id: None })
    };
    let wanted = [
        record("GET /api/v1/neighbours", "address=100.64.0.7", "audit"),
        record("POST /api/v1/reload", "", "operate"),
        record("POST /api/v1/plan", "details=1", "audit"),
        record("GET /api/v1/neighbours", "case=a%0Ab", "audit"),
        record("POST /api/v1/plan", "details=1&case=a%0Ab", "audit"),
    ];
    assert_eq!(*instance.questions.lock().unwrap(), wanted);
    // There is a bound.
    for _ in 0..50 {
        assert_eq!(ask(&routes, neighbours, 2).await.status(), StatusCode::FORBIDDEN);
    }
    assert_eq!(instance.questions.lock().unwrap().len(), 10);
}

#[tokio::test]
async fn what_cannot_be_recorded_is_no_fault_of_the_client() {
    let instance = Silent::start("unrecorded");
    let routes = served_by(instance.path.clone());
    let asked = [
        (Method::POST, "/api/v1/drain", 2),
        (Method::POST, "/api/v1/reload", 2),
        (Method::POST, "/api/v1/rollback", 2),
        (Method::GET, "/api/v1/sessions", 3),
        (Method::GET, "/api/v1/sessions?stream=true", 3),
        (Method::GET, "/api/v1/trace?port=1", 3),
    ];
    for (method, path, group) in asked {
        let answer = send(&routes, (method, path), group, "").await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        let body = json(answer).await;
        assert_eq!(body.pointer("/error/object"), Some(&control::AUDIT_LOG.into()), "{path}: {body}");
    }
}

#[tokio::test]
async fn traces_of_others_take_room_too() {
    let instance = Silent::start("taps");
    let answer = ask(&served_by(instance.path.clone()), "/api/v1/trace?port=2", 3).await;
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(json(answer).await.pointer("/error/problem"), Some(&control::TOO_MANY_TRACES.into()));
    // Of the four that a worker has room for, the API leaves one.
    assert_eq!(crate::ask::TRACES_MAX, 3);
}

#[tokio::test]
async fn the_headers_of_a_stream_do_not_wait_for_its_first_match() {
    let instance = Silent::start("no-match");
    let routes = served_by(instance.path.clone());
    let answer = ask(&routes, "/api/v1/expectations?stream=true&external_port=7", 3);
    let answer = tokio::time::timeout(core::time::Duration::from_secs(8), answer).await.expect("headers");
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_late_refusal_of_a_stream_has_its_own_status() {
    let instance = Silent::start("late-refusal");
    let answer = ask(&served_by(instance.path.clone()), "/api/v1/grants?stream=true&cursor=7", 3).await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(json(answer).await.pointer("/error/object"), Some(&"cursor".into()));
}

#[tokio::test]
async fn another_site_reads_no_data_in_the_name_of_a_user() {
    let instance = Silent::start("foreign");
    let routes = served_by(instance.path.clone());
    let all = "/restconf/data/ietf-nat:nat";
    for (path, site, wanted) in [
        (all, "cross-site", 403),
        ("/api/v1/pools", "cross-site", 403),
        (all, "same-origin", 200),
        ("/", "cross-site", 200),
        ("/metrics", "cross-site", 200),
    ] {
        let peer = Peer::Unix { uid: 1000, groups: vec![2] };
        let request = Request::builder().uri(path).extension(peer).header("sec-fetch-site", site);
        let answer = routes.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), wanted, "{path} from {site}");
    }
}

#[tokio::test]
async fn who_must_wait_learns_how_long() {
    let answer = ask(&served(), "/api/v1/status", 1).await;
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &HeaderValue::from_static("5")));
    let routes = served();
    for _ in 0..300 {
        let answer = ask(&routes, "/page.css", 1).await;
        if answer.status() != StatusCode::OK {
            assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(answer.headers()["retry-after"], "60");
            return;
        }
    }
    panic!("any number of requests is answered");
}

#[tokio::test]
async fn a_rollback_is_planned_without_a_text() {
    let instance = Silent::start("plans");
    let routes = served_by(instance.path.clone());
    let plan = |query: &str, body| {
        let (routes, path) = (routes.clone(), format!("/api/v1/plan?{query}"));
        async move { send(&routes, (Method::POST, &path), 3, body).await.status() }
    };
    assert_eq!(plan("rollback=true&details=3&kept=true", "").await, StatusCode::OK);
    assert_eq!(plan("details=3", "x = 1").await, StatusCode::OK);
    assert_eq!(plan("rollback=true&details=3", "x = 1").await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&routes, (Method::POST, "/api/v1/plan?kept=true"), 2, "").await.status(), 400);
    let none = control::NewConfig { details: 3, ..control::NewConfig::default() };
    let wanted = [
        Question::Plan(control::NewConfig { rollback: true, kept: true, ..none.clone() }),
        Question::Plan(control::NewConfig { text: Some("x = 1".to_owned()), ..none }),
    ];
    assert_eq!(*instance.questions.lock().unwrap(), wanted);
}

#[tokio::test]
async fn an_export_with_a_wrong_time_is_a_wrong_request() {
    let status = async |refused: crate::NotAnswered| {
        let log = EventLog {
            export: Arc::new(move |_| Err(refused.clone())),
            ..EventLog::missing(|| control::Fault::new("log", "is not there", "start the instance"))
        };
        let routes = served_with("/nonexistent/control.sock".into(), log);
        ask(&routes, "/api/v1/log/export?from=now&to=yesterday&format=parquet", 3).await.status()
    };
    let fault = || control::Fault::new("to", "is before from", "give the earlier time as from");
    assert_eq!(status(crate::NotAnswered::Question(fault())).await, StatusCode::BAD_REQUEST);
    assert_eq!(status(crate::NotAnswered::Log(fault())).await, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn a_range_of_time_is_looked_up_and_recorded() {
    let instance = Silent::start("ranges");
    let routes = served_by(instance.path.clone());
    let find = async |query: &str| ask(&routes, &format!("/api/v1/find?address=203.0.113.1&{query}"), 3).await;
    let answer = find("from=monday&to=tuesday&case=AZ-17").await;
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(json(answer).await.pointer("/error/seen"), Some(&"from monday to tuesday".into()));
    let subject = "203.0.113.1 from monday to tuesday".to_owned();
    // The log of this test knows nothing.
    let result = Some("failed: log: is not there (from monday to tuesday); start the instance".to_owned());
    let record = Question::Record(control::Record { action: "find".to_owned(), subject, result, id: None });
    assert_eq!(*instance.questions.lock().unwrap(), [record]);
    for wrong in ["from=monday", "to=monday", "at=monday&from=monday&to=tuesday", "at=monday&to=tuesday"] {
        assert_eq!(find(wrong).await.status(), StatusCode::BAD_REQUEST, "{wrong}");
    }
}

#[test]
fn every_path_has_a_decision_and_its_refusals_documented() {
    let settings = Settings {
        listen: Listen::Unix("/nonexistent/http.sock".into()),
        hosts: Vec::new(),
        tls: None,
        users: Vec::new(),
        control: "/nonexistent/control.sock".into(),
    };
    let (_, document) = by_role(&Arc::new(Access::new(settings, [7; 32], u32::MAX))).split_for_parts();
    let mut there: Vec<(String, Method)> = vec![("/api/v1/openapi.json".to_owned(), Method::GET)];
    there.extend(page_files().map(|(path, _)| (path.to_owned(), Method::GET)));
    for (path, item) in &document.paths.paths {
        for (operation, method) in [
            (&item.get, Method::GET),
            (&item.post, Method::POST),
            (&item.put, Method::PUT),
            (&item.delete, Method::DELETE),
            (&item.patch, Method::PATCH),
        ] {
            let Some(operation) = operation else { continue };
            assert!(operation.responses.responses.contains_key("403"), "{path} does not document 403");
            there.push((path.clone(), method));
        }
    }
    let decided = |path: &str, method: &Method| {
        DECISIONS.iter().any(|(own, how, _)| own.split('?').next() == Some(path) && how == method)
    };
    for (path, method) in &there {
        assert!(decided(path, method), "{method} {path}: decide who may see it");
    }
    for (path, method, _) in &DECISIONS {
        let path = path.split('?').next().unwrap_or_default();
        assert!(there.contains(&(path.to_owned(), method.clone())), "{method} {path} is no longer there");
    }
}
