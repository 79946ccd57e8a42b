//! The thread that follows the kernel's routes, and announces the pools to it.
//!
//! Messages of the kernel may get lost when they come faster than they are read. The socket says so
//! (ENOBUFS). Then older messages are taken in, and all routes are read and compared. The
//! same happens once in a while and whenever a device of Natrix changes, because the kernel removes
//! routes of a device that goes down without a word. What the comparison finds is counted.
//!
//! A million routes take seconds to compare. So whatever takes long is done in pieces, and between
//! them the thread looks at links ([`Follower::look_if_due`]): a pool whose link has gone is
//! withdrawn at once. Messages of links have a socket of their own, and those of routes wait.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use compare::Cause;
use control::Withheld;
use nat::Shared;
use nat::stand_in::Prefix6;
use nat::types::InterfaceId;
use nat::types::Prefix;
use packet_io::PortIndex;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use crate::below::Seen;
use crate::instance::lock;
use crate::ipv6::OwnAddresses;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::kernel::netlink::RouteNews;
use crate::kernel::next_hop_objects::NextHopObjects;
use crate::kernel::setup::Devices;
use crate::log::Log;
use crate::routing::announcement::Health;
use crate::routing::announcement::Served;
use crate::routing::announcement::UNREACHABLE;
use crate::routing::announcement::draining;
use crate::routing::announcement::unreachable;
use crate::routing::announcement::withheld;
use crate::routing::default_route::Change;
use crate::routing::default_route::DefaultRoute;
use crate::routing::fib::Fib;
use crate::routing::record::Record;
use crate::routing::rib::Table;
use crate::routing::shared::RouteCounters;
use crate::routing::shared::Routing;

mod announce;
mod changes;
mod compare;
mod devices;
mod objects;

use devices::DeviceFault;
pub(crate) use devices::addresses_of;

/// Time between two comparisons of all routes.
const COMPARE_INTERVAL: Duration = Duration::from_secs(10);
/// Least time between two comparisons that messages about single routes and next hops ask for.
const COMPARE_PAUSE: Duration = Duration::from_millis(300);
/// Time in which messages that wait are taken in before all routes are compared.
const TAKEN_IN_WITHIN: Duration = Duration::from_secs(1);
/// Time between two looks at ports and pools.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Looks after which the addresses of new devices are no longer repeated: about a minute.
const REPEATED_LOOKS: u32 = 256;

/// The thread. Dropping it ends it and withdraws the pools.
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

/// Reports the health. Gets what was seen of the kernel's devices.
trait Asked: Fn(&Seen) -> Health + Send {}

impl<F: Fn(&Seen) -> Health + Send> Asked for F {}

static NOTHING: BTreeSet<Served> = BTreeSet::new();

struct Follower {
    routing: Arc<Routing>,
    /// Own IPv6 addresses, which the kernel checks on its devices.
    own: Arc<OwnAddresses>,
    shared: Box<dyn Fn() -> Arc<Shared> + Send>,
    health: Box<dyn Asked>,
    devices: Devices,
    /// Interface of a device, and the kernel's table of it.
    interface_of: HashMap<u32, (InterfaceId, u32)>,
    /// The table of the VRF device that a device is in.
    vrf_tables: HashMap<u32, u32>,
    fib: Option<Fib>,
    socket: Netlink,
    /// Messages of links and addresses.
    links: Netlink,
    carrier: HashMap<PortIndex, bool>,
    /// The devices of the kernel.
    seen: Seen,
    /// Those that ports are on top of.
    below: BTreeSet<u32>,
    /// Those that devices of Natrix are part of.
    masters: BTreeSet<u32>,
    /// A device has changed since all were read.
    reads_links: bool,
    /// What is wrong with devices of interfaces.
    faults: BTreeMap<InterfaceId, DeviceFault>,
    /// Addresses that other stations had at the last look.
    duplicates: Vec<(InterfaceId, IpAddr)>,
    /// When addresses that other stations had were last tried again.
    checked_at: Option<Instant>,
    /// Next hops that routes of the kernel name.
    objects: NextHopObjects,
    /// Prefixes and metrics that the kernel has several routes of, one behind the other.
    doubled: HashSet<(Table, IpAddr, u8, u32)>,
    /// What a comparison corrected, while a message about it may still be unread.
    suspects: HashSet<(Table, IpAddr, u8)>,
    /// A message says too little, so that all routes must be compared.
    compares_soon: bool,
    /// A device has changed, so that all routes must be compared now.
    compares_now: bool,
    /// Interfaces whose link has changed, and whose routes are still to follow.
    moved: BTreeSet<InterfaceId>,
    /// Refused routes are to be tried again.
    retries: bool,
    /// Another program may have removed what is announced.
    announces_again: bool,
    /// What is announced, and in which tables of the kernel.
    announced: BTreeSet<(Served, u32)>,
    record: Record,
    /// What keeps the pools away by the last line of the log.
    reported: Option<Option<Withheld>>,
    default_route: DefaultRoute,
    /// Refused routes before those that are tried next.
    retried: usize,
    /// Looks at ports and pools; no more than [`REPEATED_LOOKS`].
    looks: u32,
    /// When the next one is due.
    look_at: Instant,
    settings_of: Arc<Shared>,
    has_said: bool,
    log: Log,
}

impl Keeper {
    /// Starts the thread. When it returns, the workers have all routes of the configuration.
    /// `own` gets what the kernel finds out about the IPv6 addresses of its devices, and `health`
    /// what was seen of the devices. `record` is of what earlier processes of this instance have
    /// announced.
    ///
    /// # Errors
    /// The system refuses a socket or the thread.
    pub(crate) fn start(
        (routing, own): (Arc<Routing>, Arc<OwnAddresses>),
        shared: impl Fn() -> Arc<Shared> + Send + 'static,
        health: impl Fn(&Seen) -> Health + Send + 'static,
        (devices, record): (Devices, Record),
        log: Log,
    ) -> io::Result<Keeper> {
        let mut monitor = Netlink::open(&[netlink::ROUTES, netlink::ROUTES6])?;
        // Kernels before 5.3 have none.
        let _ = monitor.join(netlink::NEXT_HOPS);
        let reader = Netlink::open(&[])?;
        let mut follower = Follower::new((routing, own), Box::new(shared), Box::new(health), (devices, record), log)?;
        follower.refresh_all(|_| ());
        // In which tables it announces.
        follower.read_links();
        follower.withdraw_old();
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let run = move || follower.run(monitor, reader, &until);
        let thread = thread::Builder::new().name("routes".to_owned()).spawn(run)?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Follower {
    fn new(
        (routing, own): (Arc<Routing>, Arc<OwnAddresses>),
        shared: Box<dyn Fn() -> Arc<Shared> + Send>,
        health: Box<dyn Asked>,
        (devices, record): (Devices, Record),
        log: Log,
    ) -> io::Result<Follower> {
        let now = shared();
        let tables = 1 + now.settings().realms();
        Ok(Follower {
            fib: now.live_routes().map(|live| Fib::new(live, tables)),
            routing,
            own,
            shared,
            health,
            devices,
            interface_of: HashMap::new(),
            vrf_tables: HashMap::new(),
            socket: Netlink::open(&[])?,
            links: Netlink::open(&[netlink::LINKS, netlink::ADDRESSES, netlink::ADDRESSES6])?,
            carrier: HashMap::new(),
            seen: Seen::default(),
            below: BTreeSet::new(),
            masters: BTreeSet::new(),
            reads_links: false,
            faults: BTreeMap::new(),
            duplicates: Vec::new(),
            checked_at: None,
            objects: NextHopObjects::default(),
            doubled: HashSet::new(),
            suspects: HashSet::new(),
            compares_soon: false,
            compares_now: false,
            moved: BTreeSet::new(),
            retries: false,
            announces_again: false,
            announced: BTreeSet::new(),
            record,
            reported: None,
            default_route: DefaultRoute::default(),
            retried: 0,
            looks: 0,
            look_at: Instant::now(),
            settings_of: now,
            has_said: false,
            log,
        })
    }

    /// Messages about routes come by `monitor`; `reader` is for reading all of them.
    fn run(mut self, mut monitor: Netlink, mut reader: Netlink, stop: &AtomicBool) {
        let mut compare_at = Instant::now();
        let mut compare_soonest = compare_at;
        let mut lost_at: Option<Instant> = None;
        let mut due_since: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            let received = self.take_messages(&mut monitor);
            self.take_settings();
            self.look_if_due();
            self.follow_links();
            let now = Instant::now();
            if !matches!(received, Ok(true)) {
                self.count_suspects();
            }
            if received.is_err() {
                RouteCounters::add(&self.routing.counters.lost, 1);
                lost_at.get_or_insert(now);
                self.announces_again = true;
            }
            // Messages that wait are older than what a comparison reads, and would undo what it
            // corrects, so they are taken in first. Under a flood that takes too long.
            let is_empty = matches!(received, Ok(false));
            let has_waited = |since: Option<Instant>| {
                since.is_some_and(|since| is_empty || now.duration_since(since) > TAKEN_IN_WITHIN)
            };
            // The kernel reports a loss ahead of older messages.
            let makes_good = has_waited(lost_at);
            let is_time = now >= compare_at || self.compares_soon && now >= compare_soonest;
            if self.compares_now || is_time {
                due_since.get_or_insert(now);
            }
            if makes_good || has_waited(due_since) {
                due_since = None;
                if makes_good {
                    lost_at = (!is_empty).then_some(now);
                }
                let cause = match self.compares_now || self.compares_soon {
                    _ if makes_good => Cause::Lost,
                    true => Cause::Asked,
                    false => Cause::Time,
                };
                (self.compares_soon, self.compares_now) = (false, false);
                self.read_links();
                self.compare(&mut reader, cause);
                self.announces_again = true;
                let done = Instant::now();
                compare_at = done + COMPARE_INTERVAL;
                // A tenth of the time at most, however often messages ask for it.
                compare_soonest = done + COMPARE_PAUSE.max((done - now) * 10);
            }
            if !matches!(received, Ok(true)) {
                let sockets = [&monitor, &self.links];
                let mut waited = sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                // After an error the loop reads again.
                let _ = poll(&mut waited, Some(&pause));
            }
        }
        self.announce(&NOTHING);
    }

    /// Takes in what the kernel says of routes and next hops. Returns whether there may be more.
    fn take_messages(&mut self, monitor: &mut Netlink) -> io::Result<bool> {
        let (mut news, mut news6) = (Vec::new(), Vec::new());
        let received = monitor.receive_bytes(|message| {
            self.announces_again |= netlink::is_own_route_gone(message);
            if !netlink::is_route(message) {
                self.take_in_object(message, &mut news, &mut news6);
                return;
            }
            let known = (news.len(), news6.len());
            news.extend(netlink::route_news::<Prefix>(message, &self.objects));
            news6.extend(netlink::route_news::<Prefix6>(message, &self.objects));
            let is_unknown = |id: u32| !self.objects.has(id);
            self.compares_soon |= netlink::object_of_route(message).is_some_and(is_unknown);
            if netlink::is_replacement(message) {
                let is_announced =
                    |news: &RouteNews<Prefix>| self.announced.contains(&(Served::Pool(news.prefix), news.table));
                self.announces_again |= news.iter().skip(known.0).any(is_announced) || news6.len() > known.1;
                // A known route may have given way to one that is not read.
                self.compares_soon |= known == (news.len(), news6.len());
            }
        });
        self.take_in(&news);
        if self.has_ipv6() {
            self.take_in(&news6);
        }
        received
    }

    /// All messages are read, so nothing explains what the last comparison corrected and is left.
    fn count_suspects(&mut self) {
        RouteCounters::add(&self.routing.counters.corrected, self.suspects.len());
        self.suspects.clear();
    }

    /// Takes over a changed configuration.
    fn take_settings(&mut self) {
        let shared = (self.shared)();
        if Arc::ptr_eq(&shared, &self.settings_of) {
            return;
        }
        self.settings_of = shared;
        self.replace_fixed::<Prefix>();
        if self.has_ipv6() {
            self.replace_fixed::<Prefix6>();
        }
        self.refresh_all(Follower::look_if_due);
    }

    /// Looks if a device has changed, or if it is time. Called between the pieces of all that may
    /// take long, so it takes up nothing of the kind itself.
    fn look_if_due(&mut self) {
        let mut devices = Vec::new();
        let mut removed = Vec::new();
        let received = self.links.receive_bytes(|message| {
            devices.extend(netlink::device_of(message));
            removed.extend(netlink::removed_device(message));
        });
        // Some were lost: all devices are read.
        let is_lost = received.is_err();
        // The kernel removes routes of a device without a word, but only these are used.
        let has_moved = is_lost || devices.iter().any(|device| self.is_of_routes(*device));
        let is_seen_now = has_moved || devices.iter().any(|device| self.below.contains(device));
        self.seen.removed.extend(removed);
        self.compares_now |= has_moved;
        // Other devices, such as those of containers, may come and go all the time.
        self.reads_links |= !devices.is_empty();
        let is_time = Instant::now() >= self.look_at;
        if is_seen_now || is_time && self.reads_links {
            self.read_links();
        }
        if is_seen_now || is_time {
            self.look();
            self.look_at = Instant::now() + LOOK_INTERVAL;
        }
    }

    /// Whether a device, by the kernel's number, is one of Natrix, or the VRF device of one.
    fn is_of_routes(&self, device: u32) -> bool {
        let is_own = self.devices.interfaces.iter().any(|(_, own)| *own == device);
        is_own || self.masters.contains(&device)
    }

    /// What changes without a message: links of ports, and the pools' health.
    fn look(&mut self) {
        let mut health = (self.health)(&self.seen);
        self.seen.removed.clear();
        self.below.clone_from(&health.devices_below);
        let faults = || self.faults.iter().filter(|(_, fault)| !fault.is_harmless());
        health.devices_down6 = faults().map(|(interface, _)| *interface).collect();
        let down = faults().filter(|(_, fault)| !fault.is_of_ipv6());
        health.devices_down = down.map(|(interface, _)| *interface).collect();
        for device in &self.devices.ports {
            let is_up = health.ports_up.get(device.port.index()).copied().unwrap_or(false);
            // Before the kernel forgets its neighbours.
            device.link.store(is_up, Ordering::Release);
            if self.carrier.insert(device.port, is_up) != Some(is_up) && device.tap.set_carrier(is_up).is_err() {
                self.log.warn(&format_args!("kernel device {}: the kernel refuses its link state", device.name));
            }
        }
        self.note_links(&health);
        if self.looks < REPEATED_LOOKS {
            self.looks += 1;
            if self.looks.is_power_of_two() {
                self.repeat_addresses(self.looks == 1);
            }
        }
        if !self.routing.follows_kernel {
            return;
        }
        let is_drained = lock(&self.routing.pools).drained_at.is_some();
        let withheld = withheld(&health, self.settings_of.settings(), &lock(&self.routing.rib), is_drained);
        self.report(withheld);
        self.report_default_route(withheld.is_none());
        let served = Served::all(self.settings_of.settings(), &draining(&self.settings_of, health.now));
        let unreachable = unreachable(&health, self.settings_of.settings(), &served);
        self.report_unreachable(&unreachable);
        let reachable: BTreeSet<Served> = served.difference(&unreachable).copied().collect();
        self.announce(if withheld.is_none() { &reachable } else { &NOTHING });
        {
            let mut pools = lock(&self.routing.pools);
            (pools.withheld, pools.served, pools.unreachable) = (withheld, served, unreachable);
            pools.announced = self.announced.iter().map(|(served, _)| *served).collect();
        }
        self.routing.looks.fetch_add(1, Ordering::Release);
    }

    /// A line in the log when the pools are announced, and when they no longer are.
    fn report(&mut self, withheld: Option<Withheld>) {
        if self.reported.replace(withheld) == Some(withheld) {
            return;
        }
        match withheld {
            None => self.log.info(&"pools: announced"),
            Some(why @ Withheld::Drained) => self.log.info(&format_args!("pools: not announced: {}", why.reason())),
            Some(why) => self.log.warn(&format_args!("pools: not announced: {}", why.reason())),
        }
    }

    /// A line in the log when the default route outside goes although pools are announced, because
    /// packets to the Internet are then dropped.
    fn report_default_route(&mut self, is_announced: bool) {
        let is_there = lock(&self.routing.rib).best(Table::Outside, Prefix::ALL).is_some_and(|hops| !hops.is_empty());
        match self.default_route.look(is_there, is_announced) {
            None => {}
            Some(Change::Gone) => self.log.warn(
                &"pools: the default route outside is gone, but they are announced; see ip route show default, and \
                  natrix doctor",
            ),
            Some(Change::Back) => self.log.info(&"pools: the default route outside is back"),
        }
    }

    /// The same of what IPv6 hosts use.
    fn report_unreachable(&mut self, now: &BTreeSet<Served>) {
        let before = lock(&self.routing.pools).unreachable.clone();
        for served in now.difference(&before) {
            self.log.warn(&format_args!("prefix {served}: not announced: {UNREACHABLE}"));
        }
        for served in before.difference(now) {
            self.log
                .info(&format_args!("prefix {served}: an interface of its VRF can use all its IPv6 addresses again"));
        }
    }

    /// Takes over which interfaces have a link. Routes follow in [`Follower::follow_links`].
    fn note_links(&mut self, health: &Health) {
        // Without an answer of the workers nothing is known about links.
        if !health.workers_alive {
            return;
        }
        let interfaces = || (0..health.interfaces_up.len() as u16).map(InterfaceId);
        let is_up: Vec<bool> = interfaces().map(|interface| health.is_up(interface)).collect();
        let faulty = |is_up: &[bool]| -> Vec<InterfaceId> {
            let up = interfaces().zip(is_up);
            up.filter(|(id, is_up)| !**is_up && health.has_link(*id)).map(|(id, _)| id).collect()
        };
        {
            let mut rib = lock(&self.routing.rib);
            self.moved.extend(rib.set_links(&is_up));
            rib.set_faulty(faulty(&is_up));
        }
        if self.has_ipv6() {
            let is_up6: Vec<bool> = interfaces().map(|interface| health.is_up6(interface)).collect();
            let mut rib = lock(&self.routing.rib6);
            self.moved.extend(rib.set_links(&is_up6));
            rib.set_faulty(faulty(&is_up6));
        }
        self.retries = true;
    }

    /// Lets routes follow the links of their interfaces, and tries those again that were refused.
    fn follow_links(&mut self) {
        while !self.moved.is_empty() {
            let moved: Vec<InterfaceId> = core::mem::take(&mut self.moved).into_iter().collect();
            self.refresh_over::<Prefix>(&moved);
            if self.has_ipv6() {
                self.refresh_over::<Prefix6>(&moved);
            }
        }
        if core::mem::take(&mut self.retries) {
            self.retry::<Prefix>();
            if self.has_ipv6() {
                self.retry::<Prefix6>();
            }
            self.publish();
        }
    }
}

#[cfg(test)]
mod tests;
