//! Client and server on one socket.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use control::Client;
use control::ClientError;
use control::Fault;
use control::List;
use control::Mapping;
use control::Reply;
use control::Request;
use control::Status;
use control::TraceRecord;
use control::client::Next;
use control::line::LineError;
use control::server::Connection;

const PATIENCE: Duration = Duration::from_secs(60);

fn golden(wanted: fn(&Reply) -> bool) -> Vec<Reply> {
    let lines = include_str!("replies.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).filter(wanted).collect()
}

/// A listening socket in a folder of its own, removed at the end.
struct Listening(PathBuf);

impl Listening {
    fn start(serve: fn(UnixStream)) -> Listening {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("natrix-control-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let listener = UnixListener::bind(directory.join("socket")).unwrap();
        thread::spawn(move || listener.incoming().flatten().for_each(serve));
        Listening(directory)
    }

    fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.0.join("socket"), "0.1.0", PATIENCE)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Pages of mappings by position; all other requests are refused.
fn serve(stream: UnixStream) {
    let mut connection = Connection::new(stream.try_clone().unwrap(), stream, "0.1.0").unwrap();
    loop {
        let sent = match connection.next_request() {
            Ok(Some(Request::Mappings(list))) => {
                let all = golden(|reply| matches!(reply, Reply::Mapping(_)));
                let start: usize = list.cursor.as_ref().map_or(0, |cursor| cursor.parse().unwrap());
                let end = (start + list.limit_effective() as usize).min(all.len());
                let cursor = (end < all.len()).then(|| end.to_string());
                connection.send_all(all[start..end].to_vec(), cursor)
            }
            Ok(Some(Request::Trace(_))) => {
                connection.send(&golden(|reply| matches!(reply, Reply::Trace(_)))[0]).unwrap();
                assert_eq!(connection.next_request().unwrap(), Some(Request::TraceStop));
                connection.send(&Reply::End(control::End::default()))
            }
            Ok(Some(_)) => connection.send(&Reply::Error(Fault::new("request", "not served here", "ask another"))),
            Err(LineError::Unreadable(_)) => Ok(()),
            Ok(None) | Err(_) => return,
        };
        sent.unwrap();
    }
}

#[test]
fn pages_join_to_the_whole_list() {
    let listening = Listening::start(serve);
    let mut client = listening.connect().unwrap();
    assert_eq!(client.daemon_version(), "0.1.0");
    let list = List { limit: Some(2), ..List::default() };
    let mappings: Vec<Mapping> = client.pages(list, Request::Mappings).collect::<Result<_, _>>().unwrap();
    assert_eq!(mappings.len(), 3);
    assert_eq!(mappings[2].internal.to_string(), "10.0.0.3:4000");
}

#[test]
fn a_refusal_leaves_the_connection_usable() {
    let listening = Listening::start(serve);
    let mut client = listening.connect().unwrap();
    let error = client.request_one::<Status>(&Request::Status).unwrap_err();
    assert_eq!(error.to_string(), "request: not served here; ask another");
    let (mappings, cursor) = client.request::<Mapping>(&Request::Mappings(List::default())).unwrap();
    assert_eq!((mappings.len(), cursor), (3, None));
}

#[test]
fn a_trace_ends_when_the_client_says_so() {
    let listening = Listening::start(serve);
    let mut client = listening.connect().unwrap();
    client.send(&Request::Trace(control::Trace::default())).unwrap();
    assert!(matches!(client.next_object::<TraceRecord>().unwrap(), Next::Object(_)));
    client.send(&Request::TraceStop).unwrap();
    assert_eq!(client.next_object::<TraceRecord>().unwrap(), Next::End(None));
}

#[test]
fn an_unreadable_request_is_answered_and_the_next_one_served() {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    let listening = Listening::start(serve);
    let mut stream = UnixStream::connect(listening.0.join("socket")).unwrap();
    let hello = "{\"natrix_control\":1,\"version\":\"0.1.0\"}\n";
    stream.write_all(format!("{hello}nonsense\n\n{{\"request\":\"mappings\",\"limit\":1}}\n").as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap() + "\n", hello);
    let error = lines.next().unwrap();
    assert!(error.starts_with(r#"{"error":{"object":"request","problem":"unreadable line"#), "{error}");
    assert!(lines.next().unwrap().starts_with(r#"{"mapping":{"#));
    assert_eq!(lines.next().unwrap(), r#"{"end":{"cursor":"1"}}"#);
}

#[test]
fn a_client_without_hello_gets_an_error_and_is_disconnected() {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    let listening = Listening::start(serve);
    let mut stream = UnixStream::connect(listening.0.join("socket")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"nonsense\n").unwrap();
    // The lines end because the server closes; this side does not.
    let lines: Vec<String> = BufReader::new(&stream).lines().collect::<Result<_, _>>().unwrap();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[1].starts_with(r#"{"error":{"object":"hello","problem":"unreadable line"#), "{}", lines[1]);
}

#[test]
fn a_client_of_another_version_learns_both_versions() {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    let listening = Listening::start(serve);
    let mut stream = UnixStream::connect(listening.0.join("socket")).unwrap();
    stream.write_all(b"{\"natrix_control\":2,\"version\":\"9.0.0\"}\n{\"request\":\"status\"}\n").unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map_while(Result::ok).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        lines[1],
        "{\"error\":{\"object\":\"protocol\",\"problem\":\"the daemon speaks version 1, the client another one\",\
         \"seen\":\"version 2 of natrix 9.0.0\",\"remedy\":\"use the natrix command of the daemon's release\"}}"
    );
}

#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let listening = Listening::start(|stream| {
        let _hello_only = Connection::new(stream.try_clone().unwrap(), &stream, "0.1.0").unwrap();
        thread::sleep(PATIENCE);
    });
    let mut client = listening.connect().unwrap();
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let error = client.request_one::<Status>(&Request::Status).unwrap_err();
    assert!(matches!(error, ClientError::Lost { ref reason, .. } if reason == "no answer in time"), "{error}");
}

#[test]
fn a_refused_client_learns_why() {
    let listening = Listening::start(|stream| {
        let mut connection = Connection::new(&stream, &stream, "0.1.0").unwrap();
        connection.send(&Reply::Error(Fault::new("control socket", "too many clients", "try again later"))).unwrap();
    });
    // The daemon may close before the hello, before the request or later: the reason is the same.
    let asked = listening.connect().and_then(|mut client| client.request_one::<Status>(&Request::Status));
    let error = asked.unwrap_err();
    assert_eq!(error.to_string(), "control socket: too many clients; try again later");
}
