//! A daemon that serves the golden replies of the `control` crate, with the filters and pages of a
//! real one.

use std::fs;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread;

use control::Candidate;
use control::Fault;
use control::List;
use control::Reply;
use control::Request;
use control::Unnamed;
use control::line::LineError;
use control::server::Connection;

const GOLDEN: &str = include_str!("../../../control/tests/replies.jsonl");

/// A file that is in use, while a restart reads another.
const UNSAVED: &str = "/etc/natrix/unsaved.toml";

/// A listening mock, which removes its socket. Its threads end with the test process.
pub(crate) struct Mock {
    directory: PathBuf,
}

impl Mock {
    /// Serves the golden replies.
    pub(crate) fn start() -> Mock {
        Mock::serve(answer_all)
    }

    /// Serves each connection with `serve`.
    pub(crate) fn serve(serve: fn(UnixStream)) -> Mock {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("natrix-cli-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let mock = Mock { directory };
        let listener = UnixListener::bind(mock.socket()).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || serve(stream));
            }
        });
        mock
    }

    /// Path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("control.sock")
    }

    /// Its folder, for files of the test.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Mock {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn golden(wanted: fn(&Reply) -> bool) -> Vec<Reply> {
    GOLDEN.lines().map(|line| serde_json::from_str(line).unwrap()).filter(wanted).collect()
}

fn candidate(reply: &Reply) -> Candidate<'_> {
    match reply {
        Reply::Mapping(mapping) => Candidate {
            protocol: Some(mapping.protocol),
            internal: Some(*mapping.internal.ip()),
            internal_port: Some(mapping.internal.port()),
            external: Some(*mapping.external.ip()),
            external_port: Some(mapping.external.port()),
            pool: Some(&mapping.pool),
            worker: Some(mapping.worker),
            ..Candidate::default()
        },
        Reply::Session(session) => Candidate {
            protocol: Some(session.protocol),
            internal: Some(*session.internal.ip()),
            internal_port: Some(session.internal.port()),
            external: Some(*session.external.ip()),
            external_port: Some(session.external.port()),
            remote: Some(session.remote),
            state: Some(&session.state),
            pool: Some(&session.pool),
            vrf: Some(&session.vrf),
            worker: Some(session.worker),
            alg: None,
            host: Some(session.host.map(|host| host.address)),
        },
        Reply::Subscriber(subscriber) => Candidate {
            internal: subscriber.address,
            external: subscriber.external_address,
            pool: Some(&subscriber.pool),
            worker: Some(subscriber.worker),
            ..Candidate::default()
        },
        Reply::PoolAddress(address) => {
            Candidate { external: Some(address.address), pool: Some(&address.pool), ..Candidate::default() }
        }
        _ => Candidate::default(),
    }
}

/// One page; the cursor is the position of the next object.
fn page(replies: Vec<Reply>, list: &List) -> Result<(Vec<Reply>, Option<String>), Fault> {
    let start = match &list.cursor {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| {
            Fault::new("cursor", "not made by this daemon", "start from the first page").seen(cursor.clone())
        })?,
    };
    let mut wanted: Vec<(usize, Reply)> = replies
        .into_iter()
        .enumerate()
        .skip(start)
        .filter(|(_, reply)| list.filter.matches(&candidate(reply)))
        .collect();
    let limit = list.limit_effective() as usize;
    let cursor = wanted.get(limit).map(|(position, _)| position.to_string());
    wanted.truncate(limit);
    Ok((wanted.into_iter().map(|(_, reply)| reply).collect(), cursor))
}

fn answer(request: &Request) -> Result<(Vec<Reply>, Option<String>), Fault> {
    let all = List { limit: Some(1_000), ..List::default() };
    match request {
        Request::Status => page(golden(|reply| matches!(reply, Reply::Status(_))), &all),
        Request::Interfaces => page(golden(|reply| matches!(reply, Reply::Interface(_))), &all),
        Request::Pools => page(golden(|reply| matches!(reply, Reply::Pool(_))), &all),
        Request::PoolAddresses(list) => page(golden(|reply| matches!(reply, Reply::PoolAddress(_))), list),
        Request::Subscribers(list) => page(golden(|reply| matches!(reply, Reply::Subscriber(_))), list),
        Request::Mappings(list) => page(golden(|reply| matches!(reply, Reply::Mapping(_))), list),
        Request::Routes(list) => page(golden(|reply| matches!(reply, Reply::Route(_))), list),
        Request::Neighbours(list) => page(golden(|reply| matches!(reply, Reply::Neighbour(_))), list),
        Request::Grants(list) => page(golden(|reply| matches!(reply, Reply::Grant(_))), list),
        Request::Algs(list) => page(golden(|reply| matches!(reply, Reply::Alg(_))), list),
        Request::Expectations(list) => page(golden(|reply| matches!(reply, Reply::Expectation(_))), list),
        Request::Sessions(list) => page(golden(|reply| matches!(reply, Reply::Session(_))), list),
        Request::Rules(list) => page(golden(|reply| matches!(reply, Reply::Rule(_))), list),
        Request::Counters(_) => page(golden(|reply| matches!(reply, Reply::Counter(_))), &all),
        Request::Drops => page(golden(|reply| matches!(reply, Reply::Drop(_))), &all),
        Request::Find(find) => {
            let queried = match find.port {
                Some(port) => format!("{}:{port}", find.address),
                None => find.address.to_string(),
            };
            let mut found = golden(|reply| matches!(reply, Reply::Find(_)));
            found.retain(|reply| matches!(reply, Reply::Find(answer) if answer.queried == queried));
            page(found, &all)
        }
        Request::Why(why) if why.interface.as_deref() == Some("dmz") => {
            Err(Fault::new("interface", "no such interface", "see `natrix show interfaces`").seen("dmz"))
        }
        Request::Why(_) => page(golden(|reply| matches!(reply, Reply::Why(_))), &all),
        Request::Trace(trace) => {
            let mut records = golden(|reply| matches!(reply, Reply::Trace(_)));
            records
                .retain(|reply| matches!(reply, Reply::Trace(record) if !trace.dropped_only || record.after.is_none()));
            let count = trace.count.map(|count| u32::try_from(count).unwrap());
            page(records, &List { limit: count, ..List::default() }).map(|(records, _)| (records, None))
        }
        Request::Plan(asked) if asked.config.as_deref().is_some_and(|path| path.ends_with("faulty.toml")) => {
            Err(Fault::new("configuration /etc/natrix/faulty.toml", "has faults", "correct them and try again")
                .seen("1"))
        }
        Request::Plan(asked) => {
            let mut replies = golden(|reply| {
                matches!(reply, Reply::Change(_) | Reply::PoolPlan(_) | Reply::PlanDetail(_) | Reply::Plan(_))
            });
            replies.retain(|reply| asked.details > 0 || !matches!(reply, Reply::PlanDetail(_)));
            for reply in &mut replies {
                if let Reply::Plan(plan) = reply
                    && asked.details == 0
                {
                    plan.unnamed = Unnamed::default();
                }
            }
            page(replies, &all)
        }
        Request::Reload(asked)
            if asked.config.as_deref().is_some_and(|path| path.ends_with("/natrix.toml") || path == UNSAVED) =>
        {
            let mut replies = golden(|reply| matches!(reply, Reply::Reloaded(_)));
            for reply in &mut replies {
                if let Reply::Reloaded(reloaded) = reply {
                    if asked.config.as_deref() == Some(UNSAVED) {
                        let why = "/etc/natrix/natrix.toml has another configuration, which a restart would bring back";
                        reloaded.not_saved = Some(why.to_owned());
                    }
                    reloaded.config = asked.config.clone().unwrap_or_default();
                    (reloaded.changes, reloaded.addresses_changed) = (0, 0);
                }
            }
            page(replies, &all)
        }
        Request::Reload(_) => page(
            golden(|reply| {
                matches!(reply, Reply::Reloaded(_)) || matches!(reply, Reply::Change(change) if change.live)
            }),
            &all,
        ),
        Request::Drain(asked) => {
            let mut replies = golden(|reply| matches!(reply, Reply::Drained(_)));
            for reply in &mut replies {
                if let (Reply::Drained(drained), true) = (reply, asked.undo) {
                    drained.drained = false;
                    drained.announcement = control::Announcement { prefixes: 3, withheld: None, drained_us: None };
                }
            }
            page(replies, &all)
        }
        Request::Audit(list) => page(golden(|reply| matches!(reply, Reply::Audit(_))), list),
        Request::Record(_) => page(golden(|reply| matches!(reply, Reply::Audit(_))), &all),
        Request::TraceStop => Ok((Vec::new(), None)),
    }
}

/// What no line of a table or text may pass on.
pub(crate) const HOSTILE: &str = "\u{1b}[2J\u{202e}\nforged";

/// As [`answer_all`], with hostile texts wherever a name may be.
pub(crate) fn answer_hostile(stream: UnixStream) {
    let Ok(writer) = stream.try_clone() else { return };
    let Ok(mut connection) = Connection::new(stream, writer, "0.1.0") else { return };
    while let Ok(Some(request)) = connection.next_request() {
        let Ok((replies, cursor)) = answer(&request) else { return };
        if connection.send_all(replies.iter().map(hostile), cursor).is_err() {
            return;
        }
    }
}

fn hostile(reply: &Reply) -> Reply {
    fn change(value: &mut serde_json::Value) {
        const NAMES: [&str; 12] = [
            "interface",
            "interface_out",
            "before",
            "after",
            "origin",
            "step",
            "decision",
            "detail",
            "description",
            "pool",
            "config",
            "object",
        ];
        match value {
            serde_json::Value::Object(fields) => {
                for (name, field) in fields {
                    match field {
                        serde_json::Value::String(text) if NAMES.contains(&name.as_str()) => text.push_str(HOSTILE),
                        field => change(field),
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter_mut().for_each(change),
            _ => {}
        }
    }
    let mut value = serde_json::to_value(reply).unwrap();
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn answer_all(stream: UnixStream) {
    let Ok(writer) = stream.try_clone() else { return };
    let Ok(mut connection) = Connection::new(stream, writer, "0.1.0") else { return };
    loop {
        let sent = match connection.next_request() {
            Ok(Some(request)) => match answer(&request) {
                Ok((replies, cursor)) => connection.send_all(replies, cursor),
                Err(fault) => {
                    let found = golden(|reply| matches!(reply, Reply::ConfigFault(_)));
                    let faults = if fault.problem == "has faults" { found } else { Vec::new() };
                    let last = Reply::Error(fault);
                    faults.iter().chain([&last]).try_for_each(|reply| connection.send(reply))
                }
            },
            Err(LineError::Unreadable(_)) => Ok(()),
            Ok(None) | Err(_) => return,
        };
        if sent.is_err() {
            return;
        }
    }
}
