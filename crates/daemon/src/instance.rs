//! A running instance as seen by the control server: its configuration, and questions to its
//! workers.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::thread;
use std::time::Instant;

use control::Fault;
use control::RunState;
use control::UserWithoutGroup;
use nat::Shared;
use nat::view::Query;
use wire::ethernet::MacAddress;

use crate::audit::Audit;
use crate::below::Below;
use crate::below::LinkBelow;
use crate::change::Live;
use crate::clock::Clock;
use crate::event_log::EventLogView;
use crate::event_log::names_in;
use crate::ipv6::OwnAddresses;
use crate::links::InterfaceLink;
use crate::mailbox::Asker;
use crate::mailbox::Listed;
use crate::mailbox::Question;
use crate::mailbox::Snapshot;
use crate::routing::family::Family;
use crate::routing::rib::RibOf;
use crate::routing::shared::Routing;
use crate::server::Recorded;
use crate::sinks::Sinks;

/// What to do about a worker that is silent, which no request can cause.
pub(crate) const SEE_LOG: &str = "see the log of the daemon";
/// Time limit for a worker's answer. A healthy worker takes microseconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// The same for a worker that left the question before without an answer: several questions wait
/// for each other, and their askers should not wait for each of them.
const SILENT_WITHIN: Duration = Duration::from_millis(100);

/// Posts a question to a worker.
type Post = fn(&mut Asker, Question) -> Result<(), Question>;

/// A port, for `show interfaces`.
#[derive(Clone, Debug)]
pub struct PortDescription {
    /// Name in the configuration.
    pub name: String,
    /// Driver string.
    pub driver: String,
    /// Own Ethernet address.
    pub station: MacAddress,
}

/// The part that does not change while the instance runs.
#[derive(Clone, Debug)]
pub struct Description {
    /// Release.
    pub version: String,
    /// Path of the configuration.
    pub config_path: String,
    /// Ports in order.
    pub ports: Vec<PortDescription>,
    /// Port and VLAN of each interface.
    pub links: Vec<InterfaceLink>,
    /// CPU of each pinned worker.
    pub cpus: Vec<Option<u16>>,
    /// Users of the API whose group this machine did not have at the start.
    pub users_without_group: Vec<UserWithoutGroup>,
}

/// Sums over the workers between two ticks, per second.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Packets forwarded.
    pub packets: u64,
    /// Bits of IP packets forwarded.
    pub bits: u64,
    /// Packets dropped.
    pub drops: u64,
    /// Mappings created.
    pub mappings: u64,
    /// Sessions created.
    pub sessions: u64,
    /// Packets dropped by reason, in the order of the verdicts.
    pub by_verdict: Vec<u64>,
    /// Packets and bits received, packets and bits sent, of each interface.
    pub interfaces: Vec<[u64; 4]>,
    /// Busy part of each worker's time.
    pub busy: Vec<f64>,
    /// Packets taken from ports by each worker.
    pub received: Vec<u64>,
}

/// A running instance. Control threads share it.
pub struct Instance {
    /// The constant part.
    pub description: Description,
    /// The clock of the workers.
    pub clock: Clock,
    /// The snapshot that the workers use or are switching to.
    shared: Mutex<Arc<Shared>>,
    /// The current configuration, to change it; None if it cannot be changed.
    pub(crate) live: Mutex<Option<Live>>,
    askers: Vec<Mutex<Asker>>,
    /// By worker: it left the last question without an answer.
    silent: Vec<AtomicBool>,
    rates: Mutex<Rates>,
    state: AtomicU8,
    traces: AtomicU64,
    event_log: OnceLock<EventLogView>,
    sinks: OnceLock<Sinks>,
    audit: OnceLock<Audit>,
    /// The latest lookups of the process for SNMP, over all its connections.
    pub(crate) recorded_of_snmp: Mutex<Recorded>,
    routing: OnceLock<Arc<Routing>>,
    own_addresses: OnceLock<Arc<OwnAddresses>>,
    below: Mutex<Below>,
}

/// Takes a lock even if a thread panicked while holding it: the guarded data is consistent at any
/// time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Instance {
    /// An instance whose workers answer `askers`, in order.
    pub fn new(description: Description, shared: Arc<Shared>, clock: Clock, askers: Vec<Asker>) -> Instance {
        let below = Below::of(description.ports.iter().map(|port| port.driver.as_str()));
        Instance {
            description,
            shared: Mutex::new(shared),
            live: Mutex::new(None),
            clock,
            silent: askers.iter().map(|_| AtomicBool::new(false)).collect(),
            askers: askers.into_iter().map(Mutex::new).collect(),
            rates: Mutex::new(Rates::default()),
            state: AtomicU8::new(0),
            traces: AtomicU64::new(1),
            event_log: OnceLock::new(),
            sinks: OnceLock::new(),
            audit: OnceLock::new(),
            recorded_of_snmp: Mutex::default(),
            routing: OnceLock::new(),
            own_addresses: OnceLock::new(),
            below: Mutex::new(below),
        }
    }

    /// The snapshot of the workers. It may change at any time: use one answer for related
    /// questions.
    pub fn shared(&self) -> Arc<Shared> {
        Arc::clone(&lock(&self.shared))
    }

    /// Sets the current configuration, so that it can be changed.
    pub fn set_live(&self, live: Live) {
        *lock(&self.live) = Some(live);
    }

    /// Path of the current configuration.
    pub fn config_path(&self) -> String {
        // During a change this is still the previous one.
        let live = self.live.try_lock().ok().and_then(|live| live.as_ref().map(|live| live.path.clone()));
        live.unwrap_or_else(|| self.description.config_path.clone())
    }

    /// Sets the snapshot of the workers.
    pub fn set_shared(&self, shared: Arc<Shared>) {
        if let Some(log) = self.event_log() {
            log.handle.set_names(names_in(&shared));
        }
        if let Some(sinks) = self.sinks() {
            sinks.set_known(names_in(&shared), shared.settings());
        }
        *lock(&self.shared) = shared;
    }

    /// Prepares the log for workers that adopt `shared`: its names and the checksum of its
    /// formulas.
    pub fn announce(&self, next: &Shared) {
        if let Some(log) = self.event_log() {
            log.handle.announce(names_in(next));
        }
    }

    /// Sets the destination of event records, once at the start.
    pub fn set_event_log(&self, view: EventLogView) {
        // A second call would be a mistake in the start; the first log is the one that runs.
        let _ = self.event_log.set(view);
    }

    /// Sets the sinks of the log's store, once at the start.
    pub fn set_sinks(&self, sinks: Sinks) {
        // As above.
        let _ = self.sinks.set(sinks);
    }

    /// The sinks of the log's store, if it has one.
    pub fn sinks(&self) -> Option<&Sinks> {
        self.sinks.get()
    }

    /// The destination of event records, if any.
    pub fn event_log(&self) -> Option<&EventLogView> {
        self.event_log.get()
    }

    /// Sets the audit log, once at the start.
    pub fn set_audit(&self, audit: Audit) {
        // As with the event log.
        let _ = self.audit.set(audit);
    }

    /// Sets the routes of the kernel, once at the start.
    pub fn set_routing(&self, routing: Arc<Routing>) {
        // As with the event log.
        let _ = self.routing.set(routing);
    }

    /// Routes of the kernel, if any port has a device there.
    pub fn routing(&self) -> Option<&Arc<Routing>> {
        self.routing.get()
    }

    /// Sets the own IPv6 addresses, once at the start.
    pub fn set_own_addresses(&self, own: Arc<OwnAddresses>) {
        // As with the event log.
        let _ = self.own_addresses.set(own);
    }

    /// The own IPv6 addresses, and whether they may be used.
    pub fn own_addresses(&self) -> Option<&Arc<OwnAddresses>> {
        self.own_addresses.get()
    }

    /// The devices of the kernel that ports are on top of.
    pub(crate) fn below(&self) -> MutexGuard<'_, Below> {
        lock(&self.below)
    }

    /// By port: whether it has link, by its driver (`by_driver`) and by the kernel.
    pub(crate) fn ports_up(&self, by_driver: &[bool]) -> Vec<bool> {
        let below = self.below();
        let has_link = |port| below.port(port).is_none_or(|(_, link)| link == LinkBelow::Up);
        let is_up = |(port, is_up): (usize, &bool)| *is_up && has_link(port);
        by_driver.iter().enumerate().map(is_up).collect()
    }

    /// The audit log; None if nothing is recorded, as in a replay.
    pub(crate) fn audit(&self) -> Option<&Audit> {
        self.audit.get()
    }

    /// Number of workers.
    pub fn worker_count(&self) -> usize {
        self.askers.len()
    }

    /// The state of the instance.
    pub fn state(&self) -> RunState {
        RunState::ALL.get(usize::from(self.state.load(Ordering::Relaxed))).copied().unwrap_or(RunState::Running)
    }

    /// Sets the state of the instance.
    pub fn set_state(&self, state: RunState) {
        let position = RunState::ALL.iter().position(|known| *known == state).unwrap_or(0);
        self.state.store(position as u8, Ordering::Relaxed);
    }

    /// A number for a new trace.
    pub fn next_trace(&self) -> u64 {
        self.traces.fetch_add(1, Ordering::Relaxed)
    }

    /// Looks at the routes of a family. They change meanwhile only after `look` has returned.
    pub(crate) fn with_routes<P: Family, T>(&self, look: impl FnOnce(&RibOf<P>) -> T) -> T {
        match self.routing.get() {
            Some(routing) => look(&lock(P::rib(routing))),
            None => {
                let mut rib = RibOf::of(self.shared().settings());
                // No thread follows links. If no worker answers, nothing is known about them.
                if let Ok(is_up) = self.interfaces_up() {
                    rib.set_links(&is_up);
                }
                look(&rib)
            }
        }
    }

    /// By interface: whether its port has link.
    fn interfaces_up(&self) -> Result<Vec<bool>, Fault> {
        let ports_up = self.ports_up(&self.snapshot(0)?.ports_up);
        let is_up = |link: &InterfaceLink| ports_up.get(link.port.index()).copied().unwrap_or(false);
        Ok(self.description.links.iter().map(is_up).collect())
    }

    /// The rates of the last second.
    pub fn rates(&self) -> Rates {
        lock(&self.rates).clone()
    }

    /// Publishes new rates.
    pub fn set_rates(&self, rates: Rates) {
        *lock(&self.rates) = rates;
    }

    /// A page of the records of one worker.
    ///
    /// # Errors
    /// As [`Instance::ask`].
    pub fn page<V: Listed>(&self, worker: usize, query: Query<V>) -> Result<Query<V>, Fault> {
        V::page(self.ask(worker, V::question(query))?).ok_or_else(|| mismatch(worker))
    }

    /// Asks one worker and waits for its answer.
    ///
    /// # Errors
    /// No such worker, or it does not answer in time.
    pub fn ask(&self, worker: usize, question: Question) -> Result<Question, Fault> {
        self.ask_by(Asker::ask, worker, question)
    }

    /// As [`Instance::ask`], to undo a change: a worker gets such a question however many wait.
    pub(crate) fn ask_to_undo(&self, worker: usize, question: Question) -> Result<Question, Fault> {
        self.ask_by(Asker::ask_to_undo, worker, question)
    }

    fn ask_by(&self, ask: Post, worker: usize, question: Question) -> Result<Question, Fault> {
        let fault = |problem, remedy| Fault::new(format!("worker {worker}"), problem, remedy);
        let (Some(asker), Some(silent)) = (self.askers.get(worker), self.silent.get(worker)) else {
            return Err(fault("does not exist", "see natrix show status"));
        };
        let mut asker = lock(asker);
        // After the lock: the question before may have found out.
        let is_stuck = silent.load(Ordering::Relaxed) && !asker.has_answered_late();
        let within = if is_stuck { SILENT_WITHIN } else { ANSWER_WITHIN };
        let answer = wait_for_answer(&mut asker, ask, question, within);
        silent.store(answer.is_err(), Ordering::Relaxed);
        answer.map_err(|problem| fault(problem, SEE_LOG))
    }

    /// The numbers of one worker.
    ///
    /// # Errors
    /// As [`Instance::ask`].
    pub fn snapshot(&self, worker: usize) -> Result<Snapshot, Fault> {
        match self.ask(worker, Question::Snapshot(Box::default()))? {
            Question::Snapshot(snapshot) => Ok(*snapshot),
            _ => Err(mismatch(worker)),
        }
    }

    /// The numbers of all workers.
    ///
    /// # Errors
    /// As [`Instance::ask`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Fault> {
        (0..self.worker_count()).map(|worker| self.snapshot(worker)).collect()
    }
}

/// The answer to a question, or what the worker does instead.
fn wait_for_answer(
    asker: &mut Asker,
    ask: Post,
    question: Question,
    within: Duration,
) -> Result<Question, &'static str> {
    ask(asker, question).map_err(|_question| "has not answered earlier questions yet")?;
    let deadline = Instant::now() + within;
    let mut pause = Duration::from_micros(10);
    loop {
        if let Some(answer) = asker.answer() {
            return Ok(answer);
        }
        if asker.is_abandoned() {
            return Err("has stopped");
        }
        if Instant::now() >= deadline {
            return Err("does not answer");
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// A worker answered another question, which its mailbox rules out.
pub(crate) fn mismatch(worker: usize) -> Fault {
    Fault::new(format!("worker {worker}"), "answered another question", "report this")
}
