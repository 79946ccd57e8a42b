//! The control socket: which clients may connect, how many at a time, and their answers.
//!
//! Every client has a thread. It asks workers through their mailboxes, so that a slow client delays
//! no other.

pub(crate) mod convert;
mod drain;
mod find;
mod lists;
mod log_watch;
mod numbers;
mod pool_watch;
mod port;
mod recorded;
mod remedies;
mod resources;
mod routes;
mod ticker;
mod trace;
mod why;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use control::Actor;
use control::AuditRecord;
use control::End;
use control::Fault;
use control::Filter;
use control::List;
use control::NewConfig;
use control::Page;
use control::Reply;
use control::Request;
use control::STARTED;
use control::Why;
use control::line::LineError;
use control::server::Connection;
use control::server::SILENCE_MAX;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Uid;
use serde::Serialize;

use crate::audit;
use crate::audit::Audit;
use crate::audit::Begun;
use crate::change;
use crate::instance::Instance;
use crate::instance::SEE_LOG;
use crate::instance::lock;
use crate::log::Log;

use recorded::Lookup;
use recorded::Part;
pub(crate) use recorded::Recorded;
use recorded::WHOLE_LIST;
pub use ticker::Ticker;

/// Maximum clients at a time. The last place is reserved for the owner of the socket, the user of
/// the daemon.
pub const CLIENTS_MAX: usize = 32;
/// Time limit for a client to read its answer.
const CLIENT_READS_WITHIN: Duration = Duration::from_secs(30);
/// How often the thread of a client checks whether it must stop.
const CLIENT_WAKES: Duration = Duration::from_millis(200);
/// How often the listening thread checks whether it must stop.
const STOP_WITHIN: Duration = Duration::from_millis(100);
/// Pause after a connection could not be accepted, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The connection to one client.
pub(crate) type Client = Connection<UnixStream, UnixStream>;

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another instance answers on it.
    #[error("control socket {path}: another instance is running; stop it, or set another [control] socket", path = .0.display())]
    InUse(PathBuf),
    /// Another kind of file has this path.
    #[error("control socket {path}: exists and is not a socket; remove it, or set another [control] socket", path = .0.display())]
    Occupied(PathBuf),
    /// The system refused the socket.
    #[error("control socket {path}: {source}; check the directory and its permissions", path = .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The listening socket; removes its file when dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Opens the socket at `path` with permission bits `mode`. Replaces the file of an instance
    /// that has ended.
    ///
    /// # Errors
    /// [`SocketError`] names the cause.
    pub fn open(path: &Path, mode: u32) -> Result<Socket, SocketError> {
        let system = |source| SocketError::System { path: path.to_owned(), source };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(system)?;
        }
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(system(error)),
            Ok(metadata) => {
                use std::os::unix::fs::FileTypeExt;
                if !metadata.file_type().is_socket() {
                    return Err(SocketError::Occupied(path.to_owned()));
                }
                // Only a running instance accepts connections.
                if UnixStream::connect(path).is_ok() {
                    return Err(SocketError::InUse(path.to_owned()));
                }
                fs::remove_file(path).map_err(system)?;
            }
        }
        let listener = UnixListener::bind(path).map_err(system)?;
        let socket = Socket { listener, path: path.to_owned() };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(system)?;
        socket.listener.set_nonblocking(true).map_err(system)?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

/// The running server; stops when dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `instance` on `socket` until dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(socket: Socket, instance: Arc<Instance>, log: Log) -> io::Result<Server> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let listen = move || accept(&socket, &instance, log, &stopped);
        let thread = thread::Builder::new().name("control".to_owned()).spawn(listen)?;
        Ok(Server { stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

fn accept(socket: &Socket, instance: &Arc<Instance>, log: Log, stop: &Arc<AtomicBool>) {
    let clients = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let stream = match socket.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                await_client(&socket.listener);
                continue;
            }
            Err(error) => {
                log.warn(&format_args!("control socket: {error}; no client was accepted"));
                thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let places = if has_kept_place(&stream) { CLIENTS_MAX } else { CLIENTS_MAX - 1 };
        if clients.fetch_add(1, Ordering::Relaxed) >= places {
            refuse(&stream, instance, places);
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (instance, stop) = (Arc::clone(instance), Arc::clone(stop));
        let guard = Leaving(Arc::clone(&clients));
        let serve = move || {
            let _guard = guard;
            // An error with one client concerns only that client, which gets a message if possible.
            let _ = serve(stream, &instance, &stop);
        };
        if let Err(error) = thread::Builder::new().name("control client".to_owned()).spawn(serve) {
            log.warn(&format_args!("control socket: {error}; the client was refused"));
        }
    }
}

/// Waits for a client to connect, for a short time.
fn await_client(listener: &UnixListener) {
    let mut wanted = [PollFd::new(listener, PollFlags::IN)];
    let within = Timespec { tv_sec: 0, tv_nsec: STOP_WITHIN.as_nanos() as i64 };
    // A signal wakes it early, which does no harm.
    if poll(&mut wanted, Some(&within)).is_err_and(|error| error != rustix::io::Errno::INTR) {
        thread::sleep(ACCEPT_PAUSE);
    }
}

/// Frees the place of a client, however its thread ends.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// True if the place that others cannot take is for this client.
fn has_kept_place(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| keeps_place(peer.uid, rustix::process::geteuid()))
}

/// It is kept for the owner of the socket, and for root: where the daemon has a user of its own,
/// no operator is that user.
pub(crate) fn keeps_place(client: Uid, owner: Uid) -> bool {
    client == owner || client.is_root()
}

/// True if the client runs as the owner of the socket.
fn is_owner(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn refuse(stream: &UnixStream, instance: &Instance, places: usize) {
    let remedy = format!("close one, or try again in {} s: idle clients are disconnected", SILENCE_MAX.as_secs());
    let fault = Fault::new("control socket", "too many clients", remedy).seen(format!("{places} connected"));
    if let Ok(mut client) = Connection::new(stream, stream, &instance.description.version) {
        // If this fails, the client sees the closed connection.
        let _ = client.send(&Reply::Error(fault));
    }
}

fn serve(stream: UnixStream, instance: &Instance, stop: &AtomicBool) -> Result<(), LineError> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(CLIENT_READS_WITHIN))?;
    stream.set_read_timeout(Some(CLIENT_WAKES))?;
    let writer = stream.try_clone()?;
    let mut asker = Asker::of(&stream);
    let mut client = Connection::new(stream, writer, &instance.description.version)?;
    client.return_within(CLIENT_WAKES);
    let outcome = converse(&mut client, instance, stop, &mut asker);
    record_left(instance, &asker.actor(client.actor()), asker.recorded);
    outcome
}

/// Answers the requests of a client until it leaves.
fn converse(client: &mut Client, instance: &Instance, stop: &AtomicBool, asker: &mut Asker) -> Result<(), LineError> {
    let mut silent_since = Instant::now();
    while !stop.load(Ordering::Relaxed) && silent_since.elapsed() < SILENCE_MAX {
        match client.next_request() {
            Ok(None) => break,
            Ok(Some(request)) => {
                answer(client, instance, stop, asker, request)?;
                silent_since = Instant::now();
            }
            Err(LineError::Unreadable(_)) => {}
            Err(LineError::Io(error)) if is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True if a read only found no data yet.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn answer(
    client: &mut Client,
    instance: &Instance,
    stop: &AtomicBool,
    asker: &mut Asker,
    request: Request,
) -> Result<(), LineError> {
    let actor = asker.actor(client.actor());
    if let Err(fault) = actor.check_case().and_then(|()| request.check_filter()) {
        return Ok(client.send(&Reply::Error(fault))?);
    }
    let is_of_snmp = asker.is_owner && (actor.who.as_str(), actor.from.as_str()) == SNMP;
    let record = |asker: &mut Asker, lookup: &Option<(Lookup, bool)>, came: &Came| {
        let Some((lookup, goes_on)) = lookup else { return Ok(()) };
        let mut of_snmp = is_of_snmp.then(|| lock(&instance.recorded_of_snmp));
        let recorded = of_snmp.as_deref_mut().unwrap_or(&mut asker.recorded);
        record_lookup(instance, &actor, (lookup, *goes_on), recorded, came)
    };
    let lookup = lookup_of(&request);
    let objects = match request {
        Request::Status => numbers::status(instance).map(|status| whole(vec![status])),
        Request::Interfaces => numbers::interfaces(instance).map(whole),
        Request::Pools => numbers::pools(instance).map(whole),
        Request::PoolAddresses(list) => lists::pool_addresses(instance, &list).map(Page::replies),
        Request::Subscribers(list) => lists::subscribers(instance, &list, lists::PAGE_WITHIN).map(Page::replies),
        Request::Mappings(list) => lists::mappings(instance, &list, lists::PAGE_WITHIN).map(Page::replies),
        Request::Grants(list) => lists::grants(instance, &list).map(Page::replies),
        Request::Algs(list) => lists::algs(instance, &list).map(Page::replies),
        Request::Expectations(list) => lists::expectations(instance, &list).map(Page::replies),
        Request::Sessions(list) => lists::sessions(instance, &list, lists::PAGE_WITHIN).map(Page::replies),
        Request::Routes(list) => routes::routes(instance, &list).map(Page::replies),
        Request::Neighbours(list) => routes::neighbours(instance, &list).map(Page::replies),
        Request::Rules(list) => lists::rules(instance, &list).map(Page::replies),
        Request::Counters(wanted) => numbers::counters(instance, wanted.per_worker).map(whole),
        Request::Drops => numbers::drops(instance).map(whole),
        Request::Find(find) => lookup::live::find(instance, &find).map(Page::replies),
        Request::Why(why) => why::why(instance, &why).map(|answer| whole(vec![answer])),
        Request::Plan(asked) => {
            let planned = change::plan(instance, &asked);
            let (replies, result) = match &planned {
                Ok(replies) => (replies, ANSWERED.to_owned()),
                Err(refused) => (&refused.replies, unanswered(&refused.fault)),
            };
            let lookup = lookup.map(|((action, what), goes_on)| ((action, change_subject(&what, replies)), goes_on));
            return match record(asker, &lookup, &result.into()) {
                Ok(()) => change_answered(client, planned),
                Err(fault) => Ok(client.send(&Reply::Error(fault))?),
            };
        }
        Request::Reload(asked) => {
            let (action, what) = name_of(&asked);
            let begun = match begin_change(instance, &actor, action, what) {
                Ok(begun) => begun,
                Err(fault) => return Ok(client.send(&Reply::Error(fault))?),
            };
            let outcome = change::reload(instance, &asked);
            end_reload(instance, begun, what, &outcome);
            return change_answered(client, outcome);
        }
        Request::Drain(asked) => {
            let action = if asked.undo { "drain --undo" } else { "drain" };
            begin_change(instance, &actor, action, "").and_then(|begun| {
                let outcome = drain::drain(instance, asked.undo);
                let result = outcome.as_ref().map_or_else(failed, |_| DONE.to_owned());
                end_change(instance, begun, "", &result);
                outcome.map(|drained| whole(vec![drained]))
            })
        }
        Request::Audit(list) => {
            instance.audit().map_or_else(|| Ok(Page::whole(Vec::new())), |audit| audit.page(&list)).map(Page::replies)
        }
        Request::Record(wanted) => record_for(instance, &actor, &wanted).map(|record| whole(vec![record])),
        Request::Trace(wanted) => {
            let mut begun = None;
            let record = |result: &str| record_trace(instance, &actor, &wanted, &mut begun, result);
            return trace::trace(client, instance, stop, &wanted, record);
        }
        // The trace that this would end is over.
        Request::TraceStop => return Ok(()),
    };
    // Nothing is sent of a lookup that is not recorded.
    let objects = match record(asker, &lookup, &result_of(&objects)) {
        Ok(()) => objects,
        Err(fault) => Err(fault),
    };
    match objects {
        Ok(Page { objects, cursor }) => {
            for reply in &objects {
                client.send(reply)?;
            }
            client.send(&Reply::End(End { cursor }))?;
        }
        Err(fault) => client.send(&Reply::Error(fault))?,
    }
    Ok(())
}

/// The user at the other end of a connection.
struct Asker {
    uid: Option<u32>,
    is_owner: bool,
    recorded: Recorded,
}

impl Asker {
    fn of(stream: &UnixStream) -> Asker {
        let uid = socket_peercred(stream).ok().map(|peer| peer.uid.as_raw());
        Asker { uid, is_owner: is_owner(stream), recorded: Recorded::default() }
    }

    /// The user that asks, for the audit log. Only the daemon's own user, which is the API's, may
    /// ask for another.
    fn actor(&self, claimed: Option<&Actor>) -> Actor {
        match claimed {
            Some(actor) if self.is_owner && !actor.who.is_empty() => actor.clone(),
            claimed => Actor {
                who: self.uid.map_or_else(|| "unknown".to_owned(), |uid| format!("uid {uid}")),
                from: "control socket".to_owned(),
                case: claimed.and_then(|actor| actor.case.clone()),
            },
        }
    }
}

/// What a request looks up of subscribers, and whether it is for a further page. Whatever names a
/// subscriber, or what one has, is a lookup, whole lists too.
fn lookup_of(request: &Request) -> Option<(Lookup, bool)> {
    let of_list = |action, list: &List| {
        let subject = if list.filter == Filter::default() { WHOLE_LIST.to_owned() } else { text(&list.filter) };
        Some(((action, subject), list.cursor.is_some()))
    };
    match request {
        Request::Find(find) => Some((("find", find.subject()), find.cursor.is_some())),
        Request::Subscribers(list) => of_list("show subscribers", list),
        // Subscribers on the link are neighbours while they are active.
        Request::Neighbours(list) => of_list("show neighbours", list),
        Request::Mappings(list) => of_list("show mappings", list),
        Request::Sessions(list) => of_list("show sessions", list),
        Request::Grants(list) => of_list("show grants", list),
        Request::Expectations(list) => of_list("show expectations", list),
        Request::Why(why) => {
            let Why { protocol, source, destination, b4, inbound, interface, vrf, .. } = why;
            let b4 = b4.map(|b4| format!(" of B4 {b4}")).unwrap_or_default();
            let way = if *inbound { " inbound" } else { "" };
            let interface = interface.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
            let vrf = vrf.as_ref().map(|vrf| format!(" in VRF {vrf}")).unwrap_or_default();
            Some((("why", format!("{protocol} {source} {destination}{b4}{way}{interface}{vrf}")), false))
        }
        Request::Trace(trace) => Some((("trace", text(trace)), false)),
        // Without details too: its counts may say whether a certain subscriber is active.
        Request::Plan(plan) => {
            let subject = match (&plan.config, plan.rollback) {
                (_, true) => "the rollback",
                (Some(path), false) => path.as_str(),
                (None, false) => "a text",
            };
            let named = if plan.details > 0 { format!(", {} of each kind named", plan.details) } else { String::new() };
            Some((("plan", format!("{subject}{named}")), false))
        }
        _ => None,
    }
}

fn text(object: &impl Serialize) -> String {
    serde_json::to_string(object).unwrap_or_default()
}

/// Records a lookup of subscribers, and what came of it, before it is answered.
fn record_lookup(
    instance: &Instance,
    actor: &Actor,
    (lookup, goes_on): (&Lookup, bool),
    asker: &mut Recorded,
    came: &Came,
) -> Result<(), Fault> {
    let Some(audit) = instance.audit() else { return Ok(()) };
    let write = |result: &str| audit.write_lookup(&audit::record(actor, lookup.0, &lookup.1, result), NOTHING_DONE);
    if asker.covers(lookup, goes_on, Instant::now()) {
        if let Some(all) = came.part.and_then(|part| asker.add(lookup, goes_on, part)) {
            write(&ended(all))?;
            asker.end(lookup);
        }
        return Ok(());
    }
    write(&came.result)?;
    asker.remember(lookup.clone(), came.part, Instant::now());
    Ok(())
}

/// The result of a list of several pages at its end.
fn ended(all: Part) -> String {
    format!("ended: {}", all.text())
}

/// Records how much of a list of several pages a client has seen that left before its end.
fn record_left(instance: &Instance, actor: &Actor, recorded: Recorded) {
    let Some(audit) = instance.audit() else { return };
    for ((action, subject), all) in recorded.left() {
        write_late(instance, audit, &audit::record(actor, action, &subject, &ended(all)));
    }
}

/// The result of a change that was made.
const DONE: &str = "done";
/// The result of a lookup that has one answer.
const ANSWERED: &str = "answered";

/// What came of a lookup, for the audit log.
struct Came {
    result: String,
    /// Of a list.
    part: Option<Part>,
}

impl From<String> for Came {
    fn from(result: String) -> Came {
        Came { result, part: None }
    }
}

/// What came of a lookup. Of a list it counts this page.
fn result_of(page: &Result<Page<Reply>, Fault>) -> Came {
    let Page { objects, cursor } = match page {
        Ok(page) => page,
        Err(fault) => return unanswered(fault).into(),
    };
    if let [Reply::Why(_)] = objects.as_slice() {
        return ANSWERED.to_owned().into();
    }
    let is_found = |reply: &&Reply| match reply {
        // An endpoint without a holder has an answer too.
        Reply::Find(answer) => answer.holder.is_some() || answer.host.is_some(),
        _ => true,
    };
    let part = Part { found: objects.iter().filter(is_found).count() as u64, is_open: cursor.is_some() };
    Came { result: part.text(), part: Some(part) }
}

/// A question that was wrong is refused; a worker that is silent is a failure.
pub(crate) fn unanswered(fault: &Fault) -> String {
    let word = if fault.remedy == SEE_LOG { "failed" } else { "refused" };
    format!("{word}: {fault}")
}

/// Why there is no answer without a record.
const NOTHING_DONE: &str = "nothing was done";
/// The process for SNMP. Its connections count as one: it connects anew after a few idle seconds.
const SNMP: (&str, &str) = ("snmp", "agentx");

/// What a change is called in the audit log, and where it comes from.
fn name_of(asked: &NewConfig) -> (&'static str, &str) {
    match (&asked.config, asked.rollback) {
        (_, true) => ("rollback", ""),
        (Some(path), false) => ("reload", path.as_str()),
        (None, false) if asked.save => ("reload --save", "a text"),
        (None, false) => ("reload", "a text"),
    }
}

/// Records a change before it is made: one that cannot be recorded is not made. None: nothing is
/// recorded here.
fn begin_change<'a>(
    instance: &'a Instance,
    actor: &Actor,
    action: &str,
    subject: &str,
) -> Result<Option<Begun<'a>>, Fault> {
    let record = audit::record(actor, action, subject, STARTED);
    instance.audit().map(|audit| audit.begin(record, false, NOTHING_DONE)).transpose()
}

/// Records a trace before its first packet, and how many it had after the last; or why there is
/// none.
fn record_trace<'a>(
    instance: &'a Instance,
    actor: &Actor,
    wanted: &control::Trace,
    begun: &mut Option<Begun<'a>>,
    result: &str,
) -> Result<(), Fault> {
    let Some(audit) = instance.audit() else { return Ok(()) };
    let record = audit::record(actor, "trace", &text(wanted), result);
    match begun.take() {
        Some(begun) => begun.end(&record.subject, result, NOTHING_DONE),
        None if result == STARTED => {
            *begun = Some(audit.begin(record, true, NOTHING_DONE)?);
            Ok(())
        }
        None => audit.write_lookup(&record, NOTHING_DONE),
    }
}

/// Records what came of a reload or rollback.
fn end_reload(
    instance: &Instance,
    begun: Option<Begun<'_>>,
    what: &str,
    outcome: &Result<Vec<Reply>, change::Refused>,
) {
    let (replies, result) = match outcome {
        Ok(replies) => (replies, done(replies)),
        Err(refused) => (&refused.replies, failed(&refused.fault)),
    };
    end_change(instance, begun, &change_subject(what, replies), &result);
}

/// The result of a change that was made, whether or not its text could be saved.
fn done(replies: &[Reply]) -> String {
    let not_saved = replies.iter().find_map(|reply| match reply {
        Reply::Reloaded(done) => done.not_saved.as_deref(),
        _ => None,
    });
    not_saved.map_or_else(|| DONE.to_owned(), |why| format!("{DONE}: not saved: {why}"))
}

/// The result of a change that was not made.
fn failed(fault: &Fault) -> String {
    format!("failed: {fault}")
}

/// What was changed: where it came from, the number of the change, and the objects that differ, as
/// many as a record has room for. Those with values are last, so that long values hide no names.
fn change_subject(what: &str, replies: &[Reply]) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!what.is_empty()).then(|| what.to_owned()));
    parts.extend(replies.iter().find_map(|reply| match reply {
        Reply::Reloaded(done) if done.changes == 0 => Some(format!("change {} (no differences)", done.generation)),
        Reply::Reloaded(done) => Some(format!("change {}", done.generation)),
        _ => None,
    }));
    let changes = || {
        replies.iter().filter_map(|reply| match reply {
            Reply::Change(change) => Some(change),
            _ => None,
        })
    };
    let names = changes().filter(|change| !may_be_of_one(change)).map(|change| change.object.clone());
    let value = |value: &Option<String>| value.as_deref().unwrap_or("none").to_owned();
    let valued = changes().filter(|change| may_be_of_one(change));
    let valued =
        valued.map(|change| format!("{} ({} -> {})", change.object, value(&change.before), value(&change.after)));
    let objects: Vec<String> = names.chain(valued).collect();
    parts.extend((!objects.is_empty()).then(|| objects.join(", ")));
    parts.join(": ")
}

/// True for a change of what may be about one subscriber, whose counters the author of the change
/// can then read: the record has its values.
fn may_be_of_one(change: &control::Change) -> bool {
    let object = change.object.as_str();
    let is_pool = object.starts_with("pool \"") && object.ends_with('"');
    let is_wanted =
        ["rule", "filter"].contains(&object) || object.starts_with("forward") || object.ends_with(".subscribers");
    is_pool || is_wanted
}

/// Records what came of a change.
fn end_change(instance: &Instance, begun: Option<Begun<'_>>, subject: &str, result: &str) {
    let Some(begun) = begun else { return };
    let AuditRecord { who, from, action, .. } = begun.record();
    let lacks = lacks(who, from, (action, subject), result);
    report(instance, begun.end(subject, result, &lacks));
}

/// Records a lookup that is over.
fn write_late(instance: &Instance, audit: &Audit, record: &AuditRecord) {
    let AuditRecord { who, from, action, subject, result, .. } = record;
    report(instance, audit.write(record, &lacks(who, from, (action, subject), result)));
}

fn lacks(who: &str, from: &str, (action, subject): (&str, &str), result: &str) -> String {
    format!("it lacks: {who} {from}: {action} {subject}: {result}")
}

/// The log of the daemon has what the audit log lacks.
fn report(instance: &Instance, written: Result<(), Fault>) {
    if let Err(fault) = written {
        // Without it there was no change to record.
        if let Some(live) = lock(&instance.live).as_ref() {
            live.log.error(&fault);
        }
    }
}

/// Records what a client does without the daemon. Any client may: the record has the number of its
/// user.
fn record_for(instance: &Instance, actor: &Actor, wanted: &control::Record) -> Result<AuditRecord, Fault> {
    let result = wanted.result.as_deref().unwrap_or("asked");
    let record = audit::record(actor, &wanted.action, &wanted.subject, result);
    match instance.audit() {
        Some(audit) => audit.write_of_client(record, wanted.id.as_deref(), NOTHING_DONE),
        None => Ok(record),
    }
}

/// Reports what a change does, or why it is refused; a refusal may follow objects too.
fn change_answered(client: &mut Client, outcome: Result<Vec<Reply>, change::Refused>) -> Result<(), LineError> {
    let (replies, last) = match outcome {
        Ok(replies) => (replies, Reply::End(End { cursor: None })),
        Err(refused) => (refused.replies, Reply::Error(refused.fault)),
    };
    for reply in replies.iter().chain([&last]) {
        client.send(reply)?;
    }
    Ok(())
}

/// A complete answer.
fn whole<T: Into<Reply>>(objects: Vec<T>) -> Page<Reply> {
    Page::whole(objects).replies()
}

#[cfg(test)]
mod tests;
