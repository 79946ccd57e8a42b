//! A change of the configuration of a running instance: what it would do, doing it, and going back.
//!
//! All that can fail comes first and touches nothing: reading and checking the file, comparing it with the one in force,
//! compiling the snapshot. Then ports that are no longer offered are taken out, every worker goes over between two polls, and
//! ports that are offered more are put in (`nat::change` says why in this order). A worker that does not answer undoes the
//! change: the others go back, and it follows when it goes on.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant as SystemInstant;

use config::Config;
use config::Machine;
use control::Change;
use control::ConfigFault;
use control::Fault;
use control::NewConfig;
use control::Plan;
use control::PoolPlan;
use control::Reloaded;
use control::Reply;
use nat::BuildError;
use nat::PoolCensus;
use nat::Shared;
use nat::change::Reshape;

use crate::adoption::Adoption;
use crate::instance::Instance;
use crate::instance::lock;
use crate::instance::mismatch;
use crate::log::Log;
use crate::mailbox::Question;

/// Addresses whose ports are changed between two polls of a worker: some tens of microseconds.
const RESHAPES_PER_QUESTION: usize = 1;

/// The configuration in force, and the one before.
#[derive(Clone, Debug)]
pub struct Live {
    /// In force.
    pub config: Config,
    /// Where it was read.
    pub path: String,
    /// What was in force before the last reload.
    pub previous: Option<(Config, String)>,
    /// Where log lines go.
    pub log: Log,
}

/// Why a change is not made. Nothing is changed then.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What is to be told before the fault.
    pub(crate) replies: Vec<Reply>,
    pub(crate) fault: Fault,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused { replies: Vec::new(), fault }
    }
}

const UNCHANGED: &str = "nothing was changed";

/// The configuration asked for, and where it comes from.
fn wanted(live: &Live, asked: &NewConfig) -> Result<(Config, String), Refused> {
    match (&asked.config, asked.rollback) {
        (Some(path), false) => Ok((read(path)?, path.clone())),
        (None, true) => live.previous.clone().ok_or_else(|| {
            let remedy = "there is something to go back to after a reload";
            Fault::new("rollback", "nothing was reloaded since the start", remedy).into()
        }),
        _ => Err(Fault::new("request", "needs either a file or a rollback", "name one of them").into()),
    }
}

/// Reads and checks a file as at start, but for memory: tables keep theirs.
fn read(path: &str) -> Result<Config, Refused> {
    let object = || format!("configuration {path}");
    if !Path::new(path).is_absolute() {
        return Err(Fault::new(object(), "is no absolute path", "write the path from the root").into());
    }
    let text = std::fs::read_to_string(path).map_err(|error| {
        let fault = Fault::new(object(), "can not be read by the daemon", "check the path and its permissions");
        Refused::from(fault.seen(error.to_string()))
    })?;
    let machine = Machine { memory: None, ..crate::machine::this_machine() };
    config::parse_for(&text, path, &machine).map_err(|faults| {
        let count = faults.len();
        let replies = faults.into_iter().map(|fault| {
            let config::Fault { file, line, object, problem, seen, remedy } = fault;
            ConfigFault { file, line, object, problem, seen, remedy }.into()
        });
        let remedy = format!("correct them and try again; {UNCHANGED}");
        let fault = Fault::new(object(), "has faults", remedy).seen(count.to_string());
        Refused { replies: replies.collect(), fault }
    })
}

/// The differences, in the words of the protocol.
fn changes(before: &Config, after: &Config) -> Vec<Change> {
    let found = config::changes(before, after).into_iter();
    let told = found.map(|change| Change {
        object: change.object,
        before: change.before,
        after: change.after,
        live: change.restart.is_none(),
        reason: change.restart.map(str::to_owned),
    });
    told.collect()
}

/// The snapshot of another configuration. Of what needs a restart it keeps what is there.
fn candidate(instance: &Instance, live: &Live, config: &Config) -> Result<Arc<Shared>, Fault> {
    let mut settings = config.nat.clone();
    settings.interfaces.clone_from(&live.config.nat.interfaces);
    settings.realm_names.clone_from(&live.config.nat.realm_names);
    let shared = instance.shared().successor(settings, instance.clock.now());
    shared.map(Arc::new).map_err(|error| {
        let remedy = match &error {
            BuildError::OutOfRange { .. } => {
                "raise tables.external_addresses and restart, or wait until drained ones are free"
            }
            _ => "see the message",
        };
        Fault::new("engine", error.to_string(), remedy)
    })
}

/// What a reload would do: differences, pool by pool what becomes of what is there, and all together.
pub(crate) fn plan(instance: &Instance, asked: &NewConfig) -> Result<Vec<Reply>, Refused> {
    let began = SystemInstant::now();
    let live = lock(&instance.live).clone().ok_or_else(not_reloadable)?;
    let (config, path) = wanted(&live, asked)?;
    let changes = changes(&live.config, &config);
    let restart = changes.iter().filter(|change| !change.live).count();
    let shared = instance.shared();
    let candidate = candidate(instance, &live, &config)?;
    let counts = census(instance, &shared, &candidate)?;
    let named = shared.pools().zip(&counts).map(|((_, pool), count)| pool_plan(pool.name.clone(), count));
    let pools: Vec<PoolPlan> = named.collect();
    let mut sum = PoolCensus::default();
    counts.iter().for_each(|count| sum.add(count));
    let is_open =
        |shared: &Shared, address| shared.address_index(address).is_some_and(|index| shared.closed(index).is_none());
    let open_in = |one: &Shared, but_not_in: &Shared| {
        let addresses = one.addresses().filter(|(_, slot)| slot.closed.is_none());
        addresses.filter(|(_, slot)| !is_open(but_not_in, slot.address)).count() as u64
    };
    let plan = Plan {
        config: path,
        applies: restart == 0,
        changes: changes.len() as u64,
        changes_restart: restart as u64,
        addresses_added: open_in(&candidate, &shared),
        addresses_closed: open_in(&shared, &candidate),
        drain_time_us: config.nat.reload.drain_time.map(nat::Duration::as_micros),
        total: pool_plan(String::new(), &sum),
        took_us: micros(began),
    };
    let replies = changes.into_iter().map(Reply::from).chain(pools.into_iter().map(Reply::from));
    Ok(replies.chain([plan.into()]).collect())
}

fn pool_plan(pool: String, count: &PoolCensus) -> PoolPlan {
    PoolPlan {
        pool,
        subscribers_keep: count.subscribers_keep,
        subscribers_move: count.subscribers_move,
        subscribers_leave: count.subscribers_leave,
        mappings_keep: count.mappings_keep,
        mappings_drain: count.mappings_drain,
        mappings_drain_until: count.mappings_drain_until,
        mappings_end: count.mappings_end,
    }
}

fn micros(began: SystemInstant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn not_reloadable() -> Fault {
    Fault::new("instance", "has no configuration file to change", "start it with natrix run -c FILE")
}

/// Counts what `candidate` would do, a bounded piece of every worker's tables at a time.
fn census(instance: &Instance, shared: &Shared, candidate: &Arc<Shared>) -> Result<Vec<PoolCensus>, Fault> {
    let mut counts = vec![PoolCensus::default(); shared.pools().count()];
    for worker in 0..instance.worker_count() {
        let mut cursor = Some(0);
        while cursor.is_some() {
            let question = Question::Census { candidate: Arc::clone(candidate), cursor, counts };
            let Question::Census { cursor: next, counts: so_far, .. } = instance.ask(worker, question)? else {
                return Err(mismatch(worker));
            };
            (cursor, counts) = (next, so_far);
        }
    }
    Ok(counts)
}

/// Makes a change.
pub(crate) fn reload(instance: &Instance, asked: &NewConfig) -> Result<Vec<Reply>, Refused> {
    let began = SystemInstant::now();
    // One change at a time; whoever comes second works on what the first one left.
    let mut guard = lock(&instance.live);
    let live = guard.as_mut().ok_or_else(not_reloadable)?;
    let (config, path) = wanted(live, asked)?;
    let changes = changes(&live.config, &config);
    if let Some(change) = changes.iter().find(|change| !change.live) {
        let object = format!("configuration {path}: {}", change.object);
        let remedy = format!("restart the instance, or leave it as it is; {UNCHANGED}");
        let reason = change.reason.clone().unwrap_or_default();
        let fault = Fault::new(object, format!("can not change while it runs: {reason}"), remedy);
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        let fault = fault.seen(format!("{} to {}", text(&change.before), text(&change.after)));
        return Err(Refused { replies: changes.into_iter().map(Reply::from).collect(), fault });
    }
    let before = instance.shared();
    let after = candidate(instance, live, &config)?;
    let reshapes = after.reshapes(&before);
    let adoption_us = match commit(instance, &before, &after, &reshapes, live.log) {
        Ok(took) => took,
        Err(fault) => {
            live.log.error(&format_args!("reload of {path}: {fault}"));
            return Err(fault.into());
        }
    };
    live.previous =
        Some((std::mem::replace(&mut live.config, config), std::mem::replace(&mut live.path, path.clone())));
    let reloaded = Reloaded {
        config: path,
        generation: after.generation(),
        changes: changes.len() as u64,
        addresses_changed: reshapes.len() as u64,
        workers: instance.worker_count() as u64,
        took_us: micros(began),
        adoption_us,
    };
    live.log.info(&format_args!(
        "configuration {}: in force as change {}, differences {}, {} us",
        reloaded.config, reloaded.generation, reloaded.changes, reloaded.took_us
    ));
    Ok(changes.into_iter().map(Reply::from).chain([reloaded.into()]).collect())
}

/// Has all workers go over; the time from the first to the last in microseconds.
fn commit(
    instance: &Instance,
    before: &Arc<Shared>,
    after: &Arc<Shared>,
    reshapes: &[Reshape],
    log: Log,
) -> Result<u64, Fault> {
    let undo = |adopted: usize, fault: Fault| {
        for worker in 0..=adopted.min(instance.worker_count().saturating_sub(1)) {
            // One that does not answer goes back when it goes on: questions are answered in order.
            let _ = adopt(instance, worker, after, before);
        }
        let _ = reshape(instance, before, &before.reshapes(after), true);
        let remedy = format!("see the log of the daemon; the configuration before is in force, {UNCHANGED}");
        Fault { remedy, ..fault }
    };
    reshape(instance, after, reshapes, false).inspect_err(|_fault| {
        // What was taken out goes back in.
        let _ = reshape(instance, before, &before.reshapes(after), true);
    })?;
    let began = SystemInstant::now();
    for worker in 0..instance.worker_count() {
        adopt(instance, worker, before, after).map_err(|fault| undo(worker, fault))?;
    }
    let took = micros(began);
    instance.set_shared(Arc::clone(after));
    // It is in force. Ports that could not be put in are missing, until the next change puts them in.
    if let Err(fault) = reshape(instance, after, reshapes, true) {
        log.warn(&format_args!("reload: not all ports are offered: {fault}"));
    }
    Ok(took)
}

/// Has one worker go over.
fn adopt(instance: &Instance, worker: usize, before: &Shared, after: &Arc<Shared>) -> Result<(), Fault> {
    let adoption = Adoption::new(before, after);
    match instance.ask(worker, Question::Adopt(Box::new(adoption)))? {
        // What comes back is what it had before, and ends here.
        Question::Adopt(_) => Ok(()),
        _ => Err(mismatch(worker)),
    }
}

/// Takes ports out, or puts them in. The first worker does it: with one worker nobody else may write to the port table.
fn reshape(instance: &Instance, shared: &Arc<Shared>, reshapes: &[Reshape], offers: bool) -> Result<(), Fault> {
    for some in reshapes.chunks(RESHAPES_PER_QUESTION) {
        let question = Question::Reshape { shared: Arc::clone(shared), reshapes: some.to_vec(), offers };
        let Question::Reshape { .. } = instance.ask(0, question)? else { return Err(mismatch(0)) };
    }
    Ok(())
}
