//! Once a second: computes rates from two snapshots, and logs what the workers, the pools and the
//! event log noticed. Every few seconds it gives up removed addresses that are no longer in use.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread;
use std::thread::JoinHandle;

use control::Fault;
use control::RunState;
use control::ratio;
use nat::Instant;
use nat::Verdict;
use nat::types::InterfaceId;
use nat::verdict::VerdictKind;

use super::log_watch;
use super::log_watch::LogWatch;
use super::numbers::packets_of;
use super::pool_watch::PoolWatch;
use crate::below::LinkBelow;
use crate::below::Seen;
use crate::change::give_up_addresses;
use crate::conflict::Conflicts;
use crate::instance::Instance;
use crate::instance::Rates;
use crate::ipv6::Conflict6;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::log::Log;
use crate::mailbox::Snapshot;
use crate::neighbour::RouterView;

const PERIOD: Duration = Duration::from_secs(1);
/// Time from one line about a silent next hop to the next about the same.
const ROUTER_LINES_AFTER: nat::Duration = nat::Duration::from_secs(60);
/// How new a silence must be to be reported.
const ROUTER_NEWS_WITHIN: nat::Duration = nat::Duration::from_secs(5);
/// How long a silence is remembered that no longer matters.
const ROUTER_FORGOTTEN_AFTER: nat::Duration = nat::Duration::from_secs(600);
/// Next hops whose silence is remembered.
const ROUTERS_MAX: usize = 64;
/// Time that a link has to come up after the start. Drivers report links as down until they have
/// negotiated with the other end.
const LINK_COMES_WITHIN: nat::Duration = nat::Duration::from_secs(2);
/// Ticks between two looks for removed addresses that are no longer in use.
const GIVES_UP_EVERY: u64 = 5;
/// How soon the thread sees that it must stop.
const STEP: Duration = Duration::from_millis(50);

/// The ticking thread; stops when dropped.
#[derive(Debug)]
pub struct Ticker {
    stop: Arc<AtomicBool>,
    /// The last numbers of each worker, once all have stopped.
    last: Arc<OnceLock<Vec<Snapshot>>>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Keeps the rates of `instance` up to date until dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(instance: Arc<Instance>, log: Log) -> io::Result<Ticker> {
        let (stop, last) = (Arc::new(AtomicBool::new(false)), Arc::new(OnceLock::new()));
        let (stopped, at_the_end) = (Arc::clone(&stop), Arc::clone(&last));
        let tick = move || run(&instance, log, &stopped, &at_the_end);
        let thread = thread::Builder::new().name("rates".to_owned()).spawn(tick)?;
        Ok(Ticker { stop, last, thread: Some(thread) })
    }

    /// Ends it with the last numbers of each worker.
    pub fn end(self, last: &[Snapshot]) {
        let _ = self.last.set(last.to_vec());
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

fn run(instance: &Instance, log: Log, stop: &AtomicBool, last: &OnceLock<Vec<Snapshot>>) {
    let mut before: Vec<Snapshot> = Vec::new();
    let mut silent: Option<String> = None;
    let mut log_watch = LogWatch::default();
    let mut pool_watch = PoolWatch::default();
    let mut links = LinkWatch::default();
    let mut below = LookBelow::default();
    let mut routers = RouterWatch::default();
    let steps = PERIOD.as_millis() / STEP.as_millis();
    let mut ticks = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        match instance.snapshots() {
            Ok(snapshots) => {
                if let Some(object) = silent.take() {
                    log.info(&format_args!("{object}: answers again"));
                }
                instance.set_rates(rates(&before, &snapshots));
                for (worker, snapshot) in snapshots.iter().enumerate() {
                    let reported = before.get(worker).map(|before| before.conflicts).unwrap_or_default();
                    report(instance, log, &reported, &snapshot.conflicts);
                }
                report_routers(instance, log, &snapshots, &mut routers);
                pool_watch.look_at(instance, &snapshots).iter().for_each(|line| log_watch::write(log, line));
                if let Some(snapshot) = snapshots.first().filter(|_| instance.state() == RunState::Running) {
                    below.look(instance);
                    links.report(instance, log, &instance.ports_up(&snapshot.ports_up), snapshot.now);
                    ticks += 1;
                    if ticks.is_multiple_of(GIVES_UP_EVERY) {
                        give_up_addresses(instance);
                    }
                }
                before = snapshots;
            }
            // The rates stay as they are meanwhile. At the end of the instance all workers stop.
            Err(fault) if silent.is_none() && instance.state() == RunState::Running => {
                let Fault { object, problem, .. } = fault;
                log.error(&format_args!(
                    "{object}: {problem}; its subscribers have no service until it does, and no pool is announced"
                ));
                silent = Some(object);
            }
            Err(_) => {}
        }
        log_watch.tick(instance, log, &before);
        for _ in 0..steps {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            thread::sleep(STEP);
        }
    }
    log_watch.end(instance, log, last.get().unwrap_or(&before));
}

fn report(instance: &Instance, log: Log, reported: &Conflicts, conflicts: &Conflicts) {
    let shared = instance.shared();
    let interfaces = &shared.settings().interfaces;
    let name = |id: InterfaceId| interfaces.get(id.index()).map_or("", |interface| &*interface.name);
    for conflict in conflicts.since(reported) {
        log.warn(&format_args!(
            "interface \"{}\": another station uses an address of Natrix ({} is at {}); give one of them another address",
            name(conflict.interface),
            Ipv4Addr::from_bits(conflict.address),
            conflict.station,
        ));
    }
    for Conflict6 { interface, address, station, is_given_up } in conflicts.since6(reported) {
        let use_of = if is_given_up { "it is not used until a restart" } else { "it stays in use" };
        log.warn(&format_args!(
            "interface \"{}\": another station uses an address of Natrix ({} is at {station}), {use_of}; give one of \
             them another address",
            name(interface),
            Ipv6Addr::from_bits(address),
        ));
    }
    let unnamed = conflicts.unnamed(reported);
    if unnamed > 0 {
        log.warn(&format_args!(
            "other stations use {unnamed} more addresses of Natrix, which are not used until a restart"
        ));
    }
}

/// A line of the log for each next hop of a route that does not answer, and when it answers again.
fn report_routers(instance: &Instance, log: Log, snapshots: &[Snapshot], watch: &mut RouterWatch) {
    let shared = instance.shared();
    for RouterView { interface, address, answers, .. } in watch.changes(snapshots) {
        let name = shared.settings().interfaces.get(interface.index()).map_or("", |interface| &interface.name);
        if answers {
            log.info(&format_args!("interface \"{name}\": next hop {address} answers again"));
        } else {
            log.warn(&format_args!(
                "interface \"{name}\": next hop {address} does not answer, so packets to it are dropped; check that it \
                 is up and on this link"
            ));
        }
    }
}

/// Which next hops the log has as silent.
#[derive(Debug, Default)]
pub(super) struct RouterWatch {
    /// With the time of the line about each, and whether it answers again.
    known: Vec<(RouterView<IpAddr>, Instant)>,
}

impl RouterWatch {
    /// What has changed since the last call. Of one next hop, at most one silence a minute.
    pub(super) fn changes(&mut self, snapshots: &[Snapshot]) -> Vec<RouterView<IpAddr>> {
        let now = snapshots.iter().map(|snapshot| snapshot.now).max().unwrap_or(Instant::ORIGIN);
        self.known.retain(|(view, said)| match view.answers {
            true => now < *said + ROUTER_LINES_AFTER,
            // Nothing is sent to it any more.
            false => now < view.at + ROUTER_FORGOTTEN_AFTER,
        });
        let mut changes = Vec::new();
        let mut views: Vec<RouterView<IpAddr>> =
            snapshots.iter().flat_map(|snapshot| snapshot.routers.iter().copied()).collect();
        // Of several workers, the last one to know is right.
        views.sort_by_key(|view| core::cmp::Reverse(view.at));
        for (position, view) in views.iter().enumerate() {
            let is_it = |other: &RouterView<IpAddr>| (other.interface, other.address) == (view.interface, view.address);
            if views.iter().take(position).any(is_it) {
                continue;
            }
            let is_room = self.known.len() < ROUTERS_MAX;
            match self.known.iter_mut().find(|(known, _)| is_it(known)) {
                Some((known, _)) if !known.answers && view.at > known.at => {
                    *known = *view;
                    changes.extend(view.answers.then_some(*view));
                }
                Some(_) => {}
                // An old silence: no packet has asked since.
                None if !view.answers && now < view.at + ROUTER_NEWS_WITHIN && is_room => {
                    self.known.push((*view, now));
                    changes.push(*view);
                }
                None => {}
            }
        }
        changes
    }
}

/// What the log has said about the links of ports.
#[derive(Debug, Default)]
pub(super) struct LinkWatch {
    /// By port; `None` while its link has not been up yet and has time to come up.
    known: Vec<Option<PortLink>>,
    /// Time of the first look.
    begun: Option<Instant>,
}

impl LinkWatch {
    /// A line of the log for each port whose link has changed since the tick before, so no more
    /// than one a second. The state at the start is no change: it has a line only if the link is
    /// still down after [`LINK_COMES_WITHIN`].
    pub(super) fn report(&mut self, instance: &Instance, log: Log, up: &[bool], at: Instant) {
        let is_early = at < *self.begun.get_or_insert(at) + LINK_COMES_WITHIN;
        let ports = &instance.description.ports;
        self.known.resize(ports.len(), None);
        let all_below = instance.below();
        for (number, ((port, &is_up), known)) in ports.iter().zip(up).zip(&mut self.known).enumerate() {
            let (device, below) = all_below.port(number).unwrap_or(("", LinkBelow::Up));
            let is_lost = matches!(below, LinkBelow::Gone | LinkBelow::Replaced);
            if known.is_none() && is_early && !is_up && !is_lost {
                continue;
            }
            let now = PortLink { is_up, below };
            let was = known.replace(now);
            if was == Some(now) {
                continue;
            }
            let name = &port.name;
            match (below, was.map(|was| was.is_up)) {
                (LinkBelow::Gone, _) => log.warn(&format_args!(
                    "port {name}: its device {device} is gone, so the link is down; restart Natrix when {device} is \
                     there again"
                )),
                (LinkBelow::Replaced, _) => log.warn(&format_args!(
                    "port {name}: its device {device} was removed, so the link is down; another {device} is there \
                     now: restart Natrix to use it"
                )),
                (_, None) if !is_up => {
                    log.warn(&format_args!("port {name}: the link is down (it has not been up since the start)"))
                }
                (_, Some(true)) if !is_up => log.warn(&format_args!("port {name}: the link is down")),
                (_, Some(false)) if is_up => log.info(&format_args!("port {name}: the link is up")),
                _ => {}
            }
        }
    }
}

/// The link of a port by the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortLink {
    is_up: bool,
    below: LinkBelow,
}

/// Looks at the devices of the kernel below ports.
#[derive(Default)]
struct LookBelow {
    /// One that hears of devices that go, and one that asks for all.
    sockets: Option<(Netlink, Netlink)>,
}

impl LookBelow {
    /// The thread that follows the routes of the kernel does it by itself, and sooner.
    fn look(&mut self, instance: &Instance) {
        if instance.routing().is_some() || instance.below().is_empty() {
            return;
        }
        let sockets = match self.sockets.take() {
            Some(sockets) => Ok(sockets),
            None => Netlink::open(&[netlink::LINKS]).and_then(|monitor| Ok((monitor, Netlink::open(&[])?))),
        };
        // If there is an error, the links stay as they were.
        if let Ok((mut monitor, mut asker)) = sockets
            && let Ok(seen) = look_below(&mut monitor, &mut asker)
        {
            instance.below().take(&seen);
            self.sockets = Some((monitor, asker));
        }
    }
}

/// All devices, and those that were removed since the last call: one that was moved to another
/// namespace and back has its old number, and its port is dead all the same.
fn look_below(monitor: &mut Netlink, asker: &mut Netlink) -> io::Result<Seen> {
    let mut removed = Vec::new();
    // After an error, the next call goes on.
    while let Ok(true) = monitor.receive_bytes(|message| removed.extend(netlink::removed_device(message))) {}
    let mut links = Vec::new();
    asker.dump(netlink::all_links(), |message| links.extend(netlink::device_link(&message)))?;
    Ok(Seen { links: Some(links), removed })
}

/// What grew by how much a second. Every rate that is shown anywhere comes from here.
pub(crate) fn rates(before: &[Snapshot], after: &[Snapshot]) -> Rates {
    let mut rates = Rates { by_verdict: vec![0; Verdict::ALL.len()], ..Rates::default() };
    for (before, after) in before.iter().zip(after) {
        let elapsed_us = after.now.saturating_since(before.now).as_micros().max(1);
        // A verdict may be reverted, so a count may fall by a few.
        let grown = |before: u64, after: u64| {
            let change = u128::from(after.saturating_sub(before));
            (change * 1_000_000 / u128::from(elapsed_us)) as u64
        };
        let per_second = |of: &dyn Fn(&Snapshot) -> u64| grown(of(before), of(after));
        rates.packets += per_second(&|snapshot| packets_of(&snapshot.counters, VerdictKind::Forwarded));
        rates.bits += per_second(&|snapshot| snapshot.counters.bytes_forwarded.iter().sum::<u64>() * 8);
        rates.drops += per_second(&|snapshot| packets_of(&snapshot.counters, VerdictKind::Dropped));
        rates.mappings += per_second(&|snapshot| snapshot.counters.mappings_created.iter().sum());
        rates.sessions += per_second(&|snapshot| snapshot.counters.sessions_created);
        for (rate, verdict) in rates.by_verdict.iter_mut().zip(Verdict::ALL) {
            *rate += per_second(&|snapshot| snapshot.counters.of(*verdict));
        }
        rates.interfaces.resize(after.interfaces.len(), [0; 4]);
        let interfaces = before.interfaces.iter().zip(&after.interfaces);
        for (rate, (before, after)) in rates.interfaces.iter_mut().zip(interfaces) {
            rate[0] += grown(before.received_packets, after.received_packets);
            rate[1] += grown(before.received_bytes, after.received_bytes) * 8;
            rate[2] += grown(before.sent_packets, after.sent_packets);
            rate[3] += grown(before.sent_bytes, after.sent_bytes) * 8;
        }
        rates.busy.push(ratio(after.busy_us.saturating_sub(before.busy_us), elapsed_us).min(1.0));
        rates.received.push(per_second(&|snapshot| snapshot.counters.received));
    }
    rates
}
