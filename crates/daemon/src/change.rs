//! A change of the configuration of a running instance: what it would do, doing it, and going back.
//!
//! All that can fail comes first and touches nothing: reading and checking the file, comparing it
//! with the running configuration, compiling the snapshot. Then every worker learns of new
//! addresses, ports that are no longer offered are taken out, every worker switches to the new
//! snapshot between two polls, and ports that are offered now are put in (`nat::change` explains
//! this order). If a worker does not answer, the change is undone: the others switch back at once,
//! and that worker does when it goes on.

mod warnings;

use core::net::Ipv4Addr;
use std::io;
use std::io::Read as _;
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
use control::PlanDenial;
use control::PlanDetail;
use control::PlanFate;
use control::PlanRules;
use control::PlanSubject;
use control::PoolPlan;
use control::Reloaded;
use control::Reply;
use control::Unnamed;
use lookup::convert::per_protocol;
use lookup::convert::pool_name;
use lookup::convert::protocol;
use mem::Stock;
use nat::Affected;
use nat::AlreadyHeld;
use nat::BuildError;
use nat::Census;
use nat::Denial;
use nat::Fates;
use nat::Held;
use nat::Named;
use nat::Onward;
use nat::Outlook;
use nat::PoolCensus;
use nat::Prospect;
use nat::Shared;
use nat::SliceHolds;
use nat::SlicePlan;
use nat::address_slots::Slot;
use nat::change::GuaranteePlan;
use nat::change::Reshape;
use nat::types::HostNumber;
use nat::types::PoolId;

use crate::adoption::Adoption;
use crate::adoption::Expectation;
use crate::event_log;
use crate::instance::Instance;
use crate::instance::lock;
use crate::instance::mismatch;
use crate::log::Log;
use crate::mailbox::Question;
use crate::notify::Report;
use crate::notify::notify;
use crate::saved;
use crate::saved::Saved;
use crate::server::convert;

/// Addresses whose ports are changed between two polls of a worker: some tens of microseconds.
const RESHAPES_PER_QUESTION: usize = 1;

/// How a worker is asked.
type Ask = fn(&Instance, usize, Question) -> Result<Question, Fault>;

/// The running configuration, and the one before.
#[derive(Clone, Debug)]
pub struct Live {
    /// The running configuration.
    pub config: Config,
    /// Where it was read.
    pub path: String,
    /// What ran before the last reload that changed something.
    pub previous: Option<Previous>,
    /// The file that a restart reads.
    pub started: String,
    /// Where log lines go.
    pub log: Log,
}

/// A configuration that ran, and what a rollback to it needs.
#[derive(Clone, Debug)]
pub struct Previous {
    /// The configuration.
    pub config: Config,
    /// Where it was read.
    pub path: String,
    /// What the change after it wrote to the file.
    pub saved: Option<Saved>,
}

/// Why a change is not made. Nothing is changed then.
#[derive(Debug)]
pub(crate) struct Refused {
    /// What is sent before the fault.
    pub(crate) replies: Vec<Reply>,
    pub(crate) fault: Fault,
}

impl Refused {
    /// The same, with more replies in front.
    fn after(self, replies: impl Iterator<Item = Reply>) -> Refused {
        Refused { replies: replies.chain(self.replies).collect(), ..self }
    }
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused { replies: Vec::new(), fault }
    }
}

/// Faults of a configuration that are named: a text of a mebibyte may have 100,000.
const FAULTS_MAX: usize = 1_000;
const UNCHANGED: &str = "nothing was changed";

/// The configuration asked for, and where it comes from.
fn wanted(live: &Live, asked: &NewConfig) -> Result<(Config, String), Refused> {
    match (&asked.config, &asked.text, asked.rollback) {
        (Some(path), None, false) => Ok((read(path, &live.config)?, path.clone())),
        (None, Some(text), false) => {
            Ok((parse(text.clone().into_bytes(), &live.path, &live.config, config::parse_sent)?, live.path.clone()))
        }
        (None, None, true) => match &live.previous {
            Some(previous) => Ok((previous.config.clone(), previous.path.clone())),
            None => {
                let remedy = "a rollback is possible after a reload with differences";
                Err(Fault::new("rollback", "no reload has changed anything since the start", remedy).into())
            }
        },
        _ => Err(Fault::new("request", "needs a file, a text, or a rollback", "send one of them").into()),
    }
}

/// Reads and checks a file that is to follow the configuration in use, but for memory: tables keep
/// theirs.
fn read(path: &str, before: &Config) -> Result<Config, Refused> {
    let object = || format!("configuration {path}");
    if !Path::new(path).is_absolute() {
        return Err(Fault::new(object(), "is not an absolute path", "write the path from the root").into());
    }
    let mut bytes = Vec::new();
    let read = config::open_regular(Path::new(path)).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| {
        let fault = Fault::new(object(), "cannot be read by the daemon", "check the path and its permissions");
        Refused::from(fault.seen(error.to_string()))
    })?;
    parse(bytes, path, before, config::parse_following)
}

/// What is wrong with a configuration that has `count` faults.
fn many(problem: &str, count: usize) -> String {
    let is_cut = count > FAULTS_MAX;
    format!("{problem}{}", if is_cut { format!("; the first {FAULTS_MAX} are listed") } else { String::new() })
}

/// How a text is compiled: as a file that the daemon was asked to read, or as one that was sent.
type Compile = fn(&str, &str, &Machine, &Config) -> Result<Config, Vec<config::Fault>>;

/// Checks a configuration that is, or stands for, the file `path`.
fn parse(bytes: Vec<u8>, path: &str, before: &Config, compile: Compile) -> Result<Config, Refused> {
    let object = || format!("configuration {path}");
    let text = config::text(bytes, path).map_err(|fault| {
        let config::Fault { line, problem, seen, remedy, .. } = *fault;
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        Refused::from(Fault::new(format!("{}{line}", object()), problem, remedy).seen(seen))
    })?;
    let machine = Machine { memory: None, ..crate::machine::this_machine() };
    compile(&text, path, &machine, before).map_err(|faults| {
        let count = faults.len();
        let replies = faults.into_iter().take(FAULTS_MAX).map(|fault| {
            let config::Fault { file, line, object, problem, seen, remedy } = fault;
            ConfigFault { file, line, object, problem, seen, remedy }.into()
        });
        let remedy = format!("correct them and try again; {UNCHANGED}");
        let fault = Fault::new(object(), many("has faults", count), remedy).seen(count.to_string());
        Refused { replies: replies.collect(), fault }
    })
}

/// The differences, in the words of the protocol.
///
/// # Errors
/// One of them decides about records of subscribers, and the client may not.
fn changes(before: &Config, after: &Config, path: &str, asked: &NewConfig) -> Result<Vec<Change>, Refused> {
    let found = config::changes(before, after);
    let of_records = found.iter().filter(|change| change.of_records).map(|change| change.object.as_str());
    let of_records = of_records.collect::<Vec<_>>().join(", ");
    let changes = found.into_iter().map(|change| Change {
        object: change.object,
        before: change.before,
        after: change.after,
        live: change.restart.is_none(),
        reason: change.restart.map(str::to_owned),
    });
    if of_records.is_empty() || !asked.keep_records {
        return Ok(changes.collect());
    }
    let problem = "needs the role audit too: it decides which records of subscribers are kept, or where they go";
    let remedy = format!("make this change on the machine, with natrix reload, or leave it as it is; {UNCHANGED}");
    let fault = Fault::new(format!("configuration {path}"), problem, remedy).seen(of_records);
    Err(Refused { replies: changes.map(Reply::from).collect(), fault })
}

/// Compiles another configuration. What can only change by a restart stays as it is.
fn candidate(instance: &Instance, live: &Live, config: &Config, path: &str) -> Result<Arc<Shared>, Refused> {
    config.check_memory_after(&live.config, Stock::of_this_machine).map_err(|not_enough| {
        let problem = format!("needs {} bytes of memory in all workers", not_enough.needed_bytes);
        let remedy = format!("write fewer, or add memory; {UNCHANGED}");
        let fault = Fault::new(format!("configuration {path}: alg.sessions"), problem, remedy);
        fault.seen(format!("{} bytes available", not_enough.available_bytes))
    })?;
    let mut settings = config.nat.clone();
    settings.interfaces.clone_from(&live.config.nat.interfaces);
    settings.realm_names.clone_from(&live.config.nat.realm_names);
    let shared = instance.shared().successor(settings, instance.clock.now());
    shared.map(Arc::new).map_err(|error| {
        let faults = match error {
            BuildError::Several(errors) => errors,
            one => vec![one],
        };
        let replies: Vec<Reply> = faults.iter().take(FAULTS_MAX).map(|error| hindrance(path, error).into()).collect();
        let object = format!("configuration {path}");
        let remedy = format!("see the faults listed; {UNCHANGED}");
        let fault = Fault::new(object, many("cannot replace the running one", faults.len()), remedy);
        let fault = fault.seen(faults.len().to_string());
        Refused { replies, fault }
    })
}

/// Why a configuration that could start an instance cannot replace the running one, and what to do.
fn hindrance(path: &str, error: &BuildError) -> ConfigFault {
    let (object, problem, seen, remedy) = match error {
        BuildError::NoRoomForAddresses { needed, removed, places } => (
            "tables.external_addresses".to_owned(),
            format!("has places for {places} addresses while this instance runs, and {needed} are needed"),
            format!("{} configured, {removed} removed that may be in use", needed - removed),
            if needed - removed > *places {
                "restart with this configuration, or write fewer addresses".to_owned()
            } else {
                "wait until removed ones are free (see natrix show pools --addresses), or restart".to_owned()
            },
        ),
        BuildError::TooManyTargetLists { protocol, external, limit } => (
            format!("forward of {protocol} {external}"),
            format!("has sessions of {limit} lists of targets, which is the maximum, and would have one more"),
            format!("list {}", limit + 1),
            "wait until the sessions of an earlier list have ended; reload.drain_time limits the sessions of removed targets"
                .to_owned(),
        ),
        error => ("engine".to_owned(), error.to_string(), String::new(), "see the message".to_owned()),
    };
    ConfigFault { file: path.to_owned(), line: None, object, problem, seen, remedy }
}

/// What a reload would do: differences, pool by pool what becomes of what is there, some by name,
/// and all together.
pub(crate) fn plan(instance: &Instance, asked: &NewConfig) -> Result<Vec<Reply>, Refused> {
    let began = SystemInstant::now();
    let live = lock(&instance.live).clone().ok_or_else(not_reloadable)?;
    let (config, path) = wanted(&live, asked)?;
    let changes = changes(&live.config, &config, &path, asked)?;
    let restart = changes.iter().filter(|change| !change.live).count();
    let shared = instance.shared();
    let replies = || changes.iter().cloned().map(Reply::from);
    let candidate = candidate(instance, &live, &config, &path);
    let candidate = candidate.map_err(|refused| refused.after(replies()))?;
    let details = asked.details.min(DETAILS_MAX) as usize;
    let outlook = Outlook::between(&shared, &candidate);
    let mut census = census(instance, &shared, &candidate, outlook, (details, asked.kept))?;
    leave_out_ipv6_hosts(&mut census);
    let named = shared.pools().zip(&census.pools).map(|((_, pool), count)| pool_plan(pool.name.clone(), count));
    let mut pools: Vec<PoolPlan> = named.collect();
    let mut sum = PoolCensus::default();
    census.pools.iter().for_each(|count| sum.add(count));
    let mut total = pool_plan(String::new(), &sum);
    for plan in candidate.guarantee_plan(&census.already_held) {
        guarantee(&candidate, &plan, &mut pools, &mut total);
    }
    let now = instance.clock.now();
    for plan in candidate.slice_plan(&census.slice_holds) {
        slices(&candidate, &plan, now, &mut pools, &mut total);
    }
    let (added, closed) = (opened(&candidate, &shared), opened(&shared, &candidate));
    let addresses = (added.len() + closed.len()) as u64;
    let plan = Plan {
        config: path,
        applies: restart == 0,
        changes: changes.len() as u64,
        changes_restart: restart as u64,
        addresses_added: added.len() as u64,
        addresses_closed: closed.len() as u64,
        drain_time_us: config.nat.reload.drain_time.map(nat::Duration::as_micros),
        rules: rules(&census.outlook),
        unnamed: if details == 0 { Unnamed::default() } else { unnamed(&census, &sum, addresses, details) },
        total,
        warnings: warnings::of_change(&live.config, &config, instance.event_log()),
        took_us: micros(began),
    };
    let subscribers = census.affected.iter().map(|affected| subscriber_detail((&shared, &candidate), affected, now));
    let fates = [(added, PlanFate::Added, &candidate), (closed, PlanFate::Closed, &shared)];
    let addresses = fates.into_iter().flat_map(|(slots, becomes, snapshot)| {
        let detail = move |slot: Slot| address_detail(snapshot, slot, becomes);
        slots.into_iter().map(detail)
    });
    let named = [&census.concerned, &census.kept].into_iter();
    let held = named.flat_map(|named| {
        let blocks = named.blocks.iter().map(|held| (PlanSubject::Block, held));
        let mappings = named.mappings.iter().map(|held| (PlanSubject::Mapping, held));
        blocks.chain(mappings).chain(named.flows.iter().map(|held| (PlanSubject::Flow, held)))
    });
    let held = held.map(|(what, held)| held_detail(&shared, what, held, now));
    let details = subscribers.chain(addresses.take(details)).chain(held).map(Reply::from);
    Ok(replies().chain(pools.into_iter().map(Reply::from)).chain(details).chain([plan.into()]).collect())
}

/// Subscribers, addresses, mappings, flows and blocks a plan names at most, of each.
const DETAILS_MAX: u32 = 10_000;

/// A detail has no place for the address of an IPv6 host: it counts among those that are not named.
fn leave_out_ipv6_hosts(census: &mut Census) {
    let is_ipv4 = |address: Ipv4Addr| !HostNumber::from(address).is_ipv6();
    census.affected.retain(|affected| is_ipv4(affected.address));
    for named in [&mut census.concerned, &mut census.kept] {
        for held in [&mut named.mappings, &mut named.flows, &mut named.blocks] {
            held.retain(|held| is_ipv4(held.internal.address));
        }
    }
}

/// How many there are beside those named.
fn unnamed(census: &Census, sum: &PoolCensus, addresses: u64, details: usize) -> Unnamed {
    let noticing = sum.subscribers_move + sum.subscribers_drain + sum.subscribers_drain_until + sum.subscribers_leave;
    let is_kept_named = census.kept.mappings.capacity() > 0;
    let others = |all: &Fates, concerned: &[Held], kept: &[Held]| {
        let all = if is_kept_named { all.total() } else { all.total() - all.keep };
        all.saturating_sub((concerned.len() + kept.len()) as u64)
    };
    let (concerned, kept) = (&census.concerned, &census.kept);
    Unnamed {
        subscribers: noticing.saturating_sub(census.affected.len() as u64),
        addresses: addresses.saturating_sub(details as u64),
        mappings: others(&sum.mappings, &concerned.mappings, &kept.mappings),
        flows: others(&sum.flows, &concerned.flows, &kept.flows),
        blocks: others(&sum.blocks, &concerned.blocks, &kept.blocks),
    }
}

/// The addresses that are open under `one` and not under `other`.
fn opened(one: &Shared, other: &Shared) -> Vec<Slot> {
    let is_open = |address| other.address_index(address).is_some_and(|index| other.closed(index).is_none());
    let open = one.addresses().map(|(_, slot)| slot).filter(|slot| slot.closed.is_none());
    open.filter(|slot| !is_open(slot.address)).copied().collect()
}

/// How rules differ, in the words of the protocol.
fn rules(outlook: &Outlook) -> PlanRules {
    let nat::RuleChanges { added, removed, moved, narrow } = outlook.rule_changes();
    PlanRules { added, removed, moved, narrow, compared: !outlook.is_blind() }
}

fn subscriber_detail((shared, candidate): (&Shared, &Shared), affected: &Affected, now: nat::Instant) -> PlanDetail {
    let pool = shared.pool(affected.pool).map(|pool| pool.name.clone());
    let (becomes, ends_in_us) = fate(affected.becomes, now);
    let (next_pool, denied) = match affected.onward {
        Some(Onward::Pool(pool)) => (candidate.pool(pool).map(|pool| pool.name.clone()), None),
        Some(Onward::Nothing(denial)) => (None, denied(denial)),
        None => (None, None),
    };
    let concerned = nat::Protocol::ALL.into_iter().filter(|protocol| affected.protocols[protocol.index()]);
    let protocols: Vec<_> = concerned.map(protocol).collect();
    PlanDetail {
        what: PlanSubject::Subscriber,
        vrf: shared.settings().realm_names.get(affected.realm.index()).cloned(),
        address: affected.address,
        protocol: None,
        internal_port: None,
        pool: pool.unwrap_or_default(),
        external: affected.external,
        first_port: None,
        last_port: None,
        remote: None,
        becomes,
        ends_in_us,
        next_pool,
        denied,
        protocols: if protocols.len() == nat::Protocol::COUNT { Vec::new() } else { protocols },
    }
}

fn denied(denial: Denial) -> Option<PlanDenial> {
    match denial {
        Denial::Dropped => Some(PlanDenial::Dropped),
        Denial::Untranslated => Some(PlanDenial::Untranslated),
        Denial::OtherMode => Some(PlanDenial::OtherMode),
        Denial::NotServed => None,
    }
}

/// In the words of the protocol; and after how many microseconds what drains ends.
fn fate(prospect: Prospect, now: nat::Instant) -> (PlanFate, Option<u64>) {
    match prospect {
        Prospect::Keeps => (PlanFate::Keeps, None),
        Prospect::Moves => (PlanFate::Moves, None),
        Prospect::Drains(ends) => (PlanFate::Drains, ends.map(|ends| ends.saturating_since(now).as_micros())),
        Prospect::Leaves => (PlanFate::Leaves, None),
        Prospect::Ends => (PlanFate::Ends, None),
    }
}

fn held_detail(shared: &Shared, what: PlanSubject, held: &Held, now: nat::Instant) -> PlanDetail {
    let (becomes, ends_in_us) = fate(held.becomes, now);
    PlanDetail {
        what,
        vrf: shared.settings().realm_names.get(held.realm.index()).cloned(),
        address: held.internal.address,
        protocol: held.protocol.map(protocol),
        internal_port: held.protocol.map(|_| held.internal.port),
        pool: pool_name(shared, held.pool),
        external: Some(held.external),
        first_port: Some(held.ports.0),
        last_port: Some(held.ports.1),
        remote: held.remote.map(convert::socket),
        becomes,
        ends_in_us,
        next_pool: None,
        denied: None,
        protocols: Vec::new(),
    }
}

fn address_detail(shared: &Shared, slot: Slot, becomes: PlanFate) -> PlanDetail {
    let pool = shared.pool(slot.pool).map(|pool| pool.name.clone()).unwrap_or_default();
    PlanDetail {
        what: PlanSubject::Address,
        vrf: None,
        address: slot.address,
        protocol: None,
        internal_port: None,
        pool,
        external: None,
        first_port: None,
        last_port: None,
        remote: None,
        becomes,
        ends_in_us: None,
        next_pool: None,
        denied: None,
        protocols: Vec::new(),
    }
}

fn pool_plan(pool: String, count: &PoolCensus) -> PoolPlan {
    let PoolCensus { mappings, flows, blocks, in_the_way_of_forwards, .. } = count;
    PoolPlan {
        pool,
        subscribers_keep: count.subscribers_keep,
        subscribers_move: count.subscribers_move,
        subscribers_drain: count.subscribers_drain,
        subscribers_drain_until: count.subscribers_drain_until,
        subscribers_leave: count.subscribers_leave,
        mappings_keep: mappings.keep,
        mappings_drain: mappings.drain,
        mappings_drain_until: mappings.drain_until,
        mappings_end: mappings.end,
        flows_keep: flows.keep,
        flows_drain: flows.drain,
        flows_drain_until: flows.drain_until,
        flows_end: flows.end,
        blocks_keep: blocks.keep,
        blocks_drain: blocks.drain,
        blocks_drain_until: blocks.drain_until,
        blocks_end: blocks.end,
        forwards_wait_drain: in_the_way_of_forwards.drain,
        forwards_wait_drain_until: in_the_way_of_forwards.drain_until,
        ..PoolPlan::default()
    }
}

/// Adds the guaranteed ports of a pool, and those that other subscribers still use, to the plan of
/// the pool and to the sum of all pools.
fn guarantee(candidate: &Shared, plan: &GuaranteePlan, pools: &mut Vec<PoolPlan>, total: &mut PoolPlan) {
    let (guaranteed, missing) = (per_protocol(plan.for_guarantees), per_protocol(plan.missing));
    for sum in [plan_of(candidate, plan.pool, pools), total] {
        sum.guaranteed = sum.guaranteed.plus(&guaranteed);
        sum.guarantee_missing = sum.guarantee_missing.plus(&missing);
    }
}

/// The same for slices of a pool that overlap leased blocks of other subscribers.
fn slices(candidate: &Shared, plan: &SlicePlan, now: nat::Instant, pools: &mut Vec<PoolPlan>, total: &mut PoolPlan) {
    let until = plan.until.map(|until| until.saturating_since(now).as_micros());
    for sum in [plan_of(candidate, plan.pool, pools), total] {
        let is_first = sum.slices_leased == 0;
        let latest = sum.slices_leased_us.zip(until).map(|(one, other)| one.max(other));
        sum.slices_leased_us = if is_first { until } else { latest };
        sum.slices += plan.slices;
        sum.slices_leased += plan.leased;
        sum.slices_leased_whole += plan.leased_whole;
    }
}

/// The plan of a pool that is to be.
fn plan_of<'a>(candidate: &Shared, pool: PoolId, pools: &'a mut Vec<PoolPlan>) -> &'a mut PoolPlan {
    let name = candidate.pool(pool).map_or("", |pool| &pool.name);
    let position = pools.iter().position(|pool| pool.pool == name).unwrap_or(pools.len());
    if position == pools.len() {
        pools.push(PoolPlan { pool: name.to_owned(), ..PoolPlan::default() });
    }
    &mut pools[position]
}

fn micros(began: SystemInstant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn not_reloadable() -> Fault {
    Fault::new("instance", "has no configuration file to change", "start it with natrix run -c FILE")
}

/// Counts what `candidate` would do, in bounded pieces of every worker's tables. Names at most so
/// many of the subscribers that would notice and of the mappings, flows and blocks that would not
/// stay as they are; with `kept`, also of those that would.
fn census(
    instance: &Instance,
    shared: &Shared,
    candidate: &Arc<Shared>,
    outlook: Outlook,
    (details, kept): (usize, bool),
) -> Result<Census, Fault> {
    let pools = vec![PoolCensus::default(); shared.pools().count()];
    let mut census = Box::new(Census {
        pools,
        affected: Vec::with_capacity(details),
        concerned: Named::with_room(details),
        kept: Named::with_room(if kept { details } else { 0 }),
        already_held: AlreadyHeld::under(candidate),
        slice_holds: SliceHolds::under(candidate),
        outlook,
    });
    for worker in 0..instance.worker_count() {
        census.already_held.begin_worker();
        let mut cursor = Some(0);
        while cursor.is_some() {
            let question = Question::Census { candidate: Arc::clone(candidate), cursor, census };
            let Question::Census { cursor: next, census: so_far, .. } = instance.ask(worker, question)? else {
                return Err(mismatch(worker));
            };
            (cursor, census) = (next, so_far);
        }
    }
    Ok(*census)
}

/// Logs which guarantees of these settings, which are now in use, cannot be kept yet, by class and
/// by formula.
fn warn_of_missing(instance: &Instance, shared: &Arc<Shared>, log: Log) {
    for plan in shared.slice_plan(&SliceHolds::default()) {
        let name = shared.pool(plan.pool).map_or("", |pool| &pool.name);
        log.warn(&format_args!(
            "pool \"{name}\": {} of {} slices overlap blocks that other subscribers lease, {} of them completely; their \
             subscribers get these ports as the leases end",
            plan.leased, plan.slices, plan.leased_whole
        ));
    }
    let is_missing = |plan: &GuaranteePlan| plan.missing.iter().any(|ports| *ports > 0);
    // Usually no port is missing, not even with the ports that the subscribers have themselves.
    if !shared.guarantee_plan(&AlreadyHeld::default()).iter().any(is_missing) {
        return;
    }
    let Ok(census) = census(instance, shared, shared, Outlook::default(), (0, false)) else { return };
    for plan in shared.guarantee_plan(&census.already_held).iter().filter(|plan| is_missing(plan)) {
        let (name, missing) = (shared.pool(plan.pool).map_or("", |pool| &pool.name), plan.missing.iter().sum::<u64>());
        log.warn(&format_args!(
            "pool \"{name}\": {missing} guaranteed ports are in use by other subscribers; they will be reserved as they become free"
        ));
    }
}

/// The most differences that a refusal names; all are listed before it.
const NAMED_MAX: usize = 10;

/// The fault for all differences that a running instance cannot take over, if there are any.
fn needs_restart(path: &str, changes: &[Change]) -> Option<Fault> {
    let fixed: Vec<&Change> = changes.iter().filter(|change| !change.live).collect();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let step = |change: &Change| format!("{} to {}", text(&change.before), text(&change.after));
    let named = fixed.iter().take(NAMED_MAX);
    let more = fixed.len().saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let objects: Vec<&str> = named.clone().map(|change| change.object.as_str()).collect();
    let mut reasons: Vec<&str> = Vec::new();
    for reason in named.clone().filter_map(|change| change.reason.as_deref()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    let seen = match &fixed[..] {
        [] => return None,
        [one] => step(one),
        _ => named.map(|change| format!("{} {}", change.object, step(change))).collect::<Vec<_>>().join(", "),
    };
    let it = if fixed.len() == 1 { "it as it is" } else { "them as they are" };
    let object = format!("configuration {path}: {}{more}", objects.join(", "));
    let problem = format!("cannot change while the instance runs: {}", reasons.join(", and "));
    Some(Fault::new(object, problem, format!("restart the instance, or leave {it}; {UNCHANGED}")).seen(seen))
}

/// Makes a change.
pub(crate) fn reload(instance: &Instance, asked: &NewConfig) -> Result<Vec<Reply>, Refused> {
    let began = SystemInstant::now();
    // One change at a time: the next one starts from what this one leaves.
    let mut guard = lock(&instance.live);
    let live = guard.as_mut().ok_or_else(not_reloadable)?;
    let (config, path) = wanted(live, asked)?;
    let changes = changes(&live.config, &config, &path, asked)?;
    if let Some(fault) = needs_restart(&path, &changes) {
        return Err(Refused { replies: changes.into_iter().map(Reply::from).collect(), fault });
    }
    let before = instance.shared();
    let after = candidate(instance, live, &config, &path);
    let after = after.map_err(|refused| refused.after(changes.iter().cloned().map(Reply::from)))?;
    // The new log is opened before anything is changed.
    let log_changes = live.config.event_log != config.event_log;
    let wanted_log = config.event_log.as_ref().filter(|_| log_changes);
    let log = wanted_log.map(event_log::prepare).transpose().map_err(|error| {
        Fault::new(
            format!("configuration {path}: log.events"),
            error.to_string(),
            format!("then try again; {UNCHANGED}"),
        )
    })?;
    if let Some(sinks) = instance.sinks() {
        sinks.check(&config.log_sinks).map_err(|error| {
            let remedy = format!("then try again; {UNCHANGED}");
            Fault::new(format!("configuration {path}"), error.to_string(), remedy)
        })?;
    }
    let warnings = warnings::of_change(&live.config, &config, instance.event_log());
    let reshapes = after.reshapes(&before);
    notify(live.log, Report::Reloading);
    let committed = commit(instance, &before, &after, &reshapes, live.log);
    notify(live.log, Report::Ready);
    let adoption_us = match committed {
        Ok(took) => took,
        Err(fault) => {
            live.log.error(&format_args!("reload of {path}: {fault}"));
            return Err(fault.into());
        }
    };
    if let (Some(log), Some(view)) = (log, instance.event_log()) {
        view.change(log);
    }
    if let Some(sinks) = instance.sinks()
        && let Err(error) = sinks.set(&config.log_sinks)
    {
        live.log.error(&format_args!("reload of {path}: {error}"));
    }
    warn_of_missing(instance, &after, live.log);
    // From here on the change is made, so nothing is a refusal.
    let took_us = micros(began);
    let (saved, not_saved) = bring_to_file(live, asked, &config, &path);
    let before = std::mem::replace(&mut live.config, config);
    let path_before = std::mem::replace(&mut live.path, path.clone());
    // Two reloads of one file must not lose the way back to what was before the first.
    if !changes.is_empty() {
        live.previous = Some(Previous { config: before, path: path_before, saved });
    }
    let reloaded = Reloaded {
        config: path,
        generation: after.generation(),
        changes: changes.len() as u64,
        addresses_changed: reshapes.iter().filter(|reshape| reshape.offers_others()).count() as u64,
        workers: instance.worker_count() as u64,
        took_us,
        adoption_us,
        not_saved,
        warnings,
    };
    log_reloaded(live.log, asked, &reloaded);
    Ok(changes.into_iter().map(Reply::from).chain([reloaded.into()]).collect())
}

/// Says in the log what is in use, and if a restart would bring something else.
pub(crate) fn log_reloaded(log: Log, asked: &NewConfig, reloaded: &Reloaded) {
    match reloaded.changes {
        0 => log.info(&format_args!("configuration {}: matches the running one; nothing changed", reloaded.config)),
        count => log.info(&format_args!(
            "configuration {}: in use (change {}, {}, {})",
            reloaded.config,
            reloaded.generation,
            control::counted(count, "difference"),
            control::duration_text(reloaded.took_us)
        )),
    }
    for warning in &reloaded.warnings {
        log.warn(warning);
    }
    let Some(why) = &reloaded.not_saved else { return };
    let message = format_args!(
        "configuration {}: in use, but not in the file ({why}); write it to the file before the next restart",
        reloaded.config
    );
    match asked.save {
        // What was asked for has failed.
        true => log.error(&message),
        false => log.warn(&message),
    }
}

/// Gives up removed addresses of which nothing is left, so that other stations may have them: from
/// then on Natrix neither answers for them nor takes their packets.
pub(crate) fn give_up_addresses(instance: &Instance) {
    // A change under way gives them up itself.
    let Ok(guard) = instance.live.try_lock() else { return };
    let Some(live) = guard.as_ref() else { return };
    let before = instance.shared();
    let given_up: Vec<Ipv4Addr> = before.addresses_left().collect();
    let Some(first) = given_up.first() else { return };
    // These settings were compiled before.
    let Ok(after) = before.successor(before.settings().clone(), instance.clock.now()).map(Arc::new) else { return };
    let reshapes = after.reshapes(&before);
    let more = match given_up.len() - 1 {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    match commit(instance, &before, &after, &reshapes, live.log) {
        Ok(_) => live.log.info(&format_args!(
            "external address {first}{more}: removed, and no longer in use; other stations may have it from now on"
        )),
        Err(fault) => live.log.error(&format_args!("external address {first}{more}: cannot be given up: {fault}")),
    }
}

/// Brings the file that a restart reads to what is in use from now on: by the text of a change that
/// is to be saved, and by what such a change had replaced when it is rolled back. Returns what was
/// written, and why the file has something else, if it has.
fn bring_to_file(live: &Live, asked: &NewConfig, config: &Config, path: &str) -> (Option<Saved>, Option<String>) {
    let started = &live.started;
    let outcome = match (&asked.text, asked.rollback) {
        (Some(text), _) if asked.save => match saved::is_same(path, started) {
            true => Saved::new(path, text, live.log).map(Some),
            false => Err(io::Error::other(format!("a restart reads {started}, and {path} is in use"))),
        },
        (_, true) => {
            let saved = live.previous.as_ref().and_then(|previous| previous.saved.clone());
            let undone = saved.map(|saved| saved.undone(live.log)).transpose();
            // What the change had replaced may not be what ran before it.
            match (undone, is_in_file(started, config)) {
                (undone, Ok(())) => Ok(undone.unwrap_or_default()),
                (Ok(saved), Err(differs)) => return (saved, Some(differs.to_string())),
                (Err(failed), Err(_)) => Err(failed),
            }
        }
        // The file was read just now.
        _ if asked.config.is_some() && saved::is_same(path, started) => Ok(None),
        _ => is_in_file(started, config).map(|()| None),
    };
    match outcome {
        Ok(saved) => (saved, None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// Whether a file has this configuration.
fn is_in_file(path: &str, config: &Config) -> io::Result<()> {
    let path = std::fs::canonicalize(path)?.display().to_string();
    let found = read(&path, config).map_err(|refused| io::Error::other(refused.fault.to_string()))?;
    if config::changes(config, &found).is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("{path} has another configuration, which a restart would bring back")))
}

/// Switches all workers; returns the time from the first to the last in microseconds.
fn commit(
    instance: &Instance,
    before: &Arc<Shared>,
    after: &Arc<Shared>,
    reshapes: &[Reshape],
    log: Log,
) -> Result<u64, Fault> {
    for worker in 0..instance.worker_count() {
        expect(instance, worker, before, after).map_err(|fault| undo(instance, before, (after, 0), fault))?;
    }
    reshape(instance, Instance::ask, after, reshapes, false)
        .map_err(|fault| undo(instance, before, (after, 0), fault))?;
    let began = SystemInstant::now();
    instance.announce(after);
    for worker in 0..instance.worker_count() {
        adopt(instance, Instance::ask, worker, Adoption::new(before, after))
            .map_err(|fault| undo(instance, before, (after, worker + 1), fault))?;
    }
    let took = micros(began);
    after.settle_hits(before);
    after.settle();
    instance.set_shared(Arc::clone(after));
    // The snapshot is in use. Ports that could not be put in are missing until the next change.
    if let Err(fault) = reshape(instance, Instance::ask, after, reshapes, true) {
        log.warn(&format_args!("reload: not all ports are offered: {fault}"));
    }
    Ok(took)
}

/// Undoes a change after some workers switched and one did not answer. Mappings made on addresses
/// that only `after` has are not lost: they drain, as after any other change. The silent worker
/// answers its questions in order when it goes on, so it switches and switches back. Only the first
/// `asked` workers were asked to switch; for the others, `before` is what they leave.
fn undo(instance: &Instance, before: &Arc<Shared>, (after, asked): (&Arc<Shared>, usize), fault: Fault) -> Fault {
    after.settle_hits(before);
    let back = after.successor(before.settings().clone(), instance.clock.now());
    // These settings were compiled before.
    let Ok(back) = back.map(Arc::new) else { return fault };
    let reshapes = back.reshapes(after);
    let _ = reshape(instance, Instance::ask_to_undo, &back, &reshapes, false);
    instance.announce(&back);
    let mut all_adopted = true;
    for worker in 0..instance.worker_count() {
        let left = if worker < asked { after } else { before };
        all_adopted &= adopt(instance, Instance::ask_to_undo, worker, Adoption::undoing(left, &back)).is_ok();
    }
    back.settle_hits(after);
    if all_adopted {
        back.settle();
    } else {
        back.forget_full_addresses();
    }
    instance.set_shared(Arc::clone(&back));
    let _ = reshape(instance, Instance::ask_to_undo, &back, &reshapes, true);
    let remedy = format!("see the log of the daemon; the old configuration is still in use, {UNCHANGED}");
    Fault { remedy, ..fault }
}

/// Announces new addresses to one worker.
fn expect(instance: &Instance, worker: usize, before: &Shared, after: &Shared) -> Result<(), Fault> {
    let Some(expectation) = Expectation::new(before, after) else { return Ok(()) };
    match instance.ask(worker, Question::Expect(Box::new(expectation)))? {
        // The reply holds what the worker knew before; it is freed here.
        Question::Expect(_) => Ok(()),
        _ => Err(mismatch(worker)),
    }
}

/// Switches one worker.
fn adopt(instance: &Instance, ask: Ask, worker: usize, adoption: Adoption) -> Result<(), Fault> {
    match ask(instance, worker, Question::Adopt(Box::new(adoption)))? {
        // The reply holds the worker's old snapshot; it is freed here.
        Question::Adopt(_) => Ok(()),
        _ => Err(mismatch(worker)),
    }
}

/// Takes ports out, or puts them in. The first worker does it, because an instance with one worker
/// allows no other thread to write to the port table.
fn reshape(
    instance: &Instance,
    ask: Ask,
    shared: &Arc<Shared>,
    reshapes: &[Reshape],
    offers: bool,
) -> Result<(), Fault> {
    for some in reshapes.chunks(RESHAPES_PER_QUESTION) {
        let question = Question::Reshape { shared: Arc::clone(shared), reshapes: some.to_vec(), offers };
        let Question::Reshape { .. } = ask(instance, 0, question)? else { return Err(mismatch(0)) };
    }
    Ok(())
}
