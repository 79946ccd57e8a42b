//! The thread that follows the kernel's routes, and announces the pools to it.
//!
//! Messages of the kernel may get lost when they come faster than they are read. The socket says so
//! (ENOBUFS). Then older messages are taken in, and all routes are read and compared. The
//! same happens once in a while and whenever a device changes, because the kernel removes routes of
//! a device that goes down without a word. What the comparison finds is counted.

use core::fmt;
use core::net::IpAddr;
use core::net::Ipv6Addr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use control::Withheld;
use nat::Settings;
use nat::Shared;
use nat::stand_in::Prefix6;
use nat::types::Facing;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use netlink_packet_core::NLM_F_CREATE;
use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::InfoData;
use netlink_packet_route::link::InfoVrf;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::link::LinkFlags;
use netlink_packet_route::link::LinkInfo;
use netlink_packet_route::route::RouteMessage;
use packet_io::PortIndex;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use crate::instance::lock;
use crate::kernel::netlink;
use crate::kernel::netlink::Netlink;
use crate::kernel::netlink::RouteNews;
use crate::kernel::setup::Devices;
use crate::log::Log;
use crate::routing::family::Family;
use crate::routing::fib::Fib;
use crate::routing::rib::HOPS_MAX;
use crate::routing::rib::Hop;
use crate::routing::rib::KernelRoute;
use crate::routing::rib::Rib;
use crate::routing::rib::Rib6;
use crate::routing::rib::RibOf;
use crate::routing::rib::Table;

/// Time between two comparisons of all routes.
const COMPARE_INTERVAL: Duration = Duration::from_secs(10);
/// Time after a loss in which older messages are taken in before all routes are compared.
const MADE_GOOD_WITHIN: Duration = Duration::from_secs(1);
/// Time between two looks at ports and pools.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Looks after which the addresses of new devices are no longer repeated: about a minute.
const REPEATED_LOOKS: u32 = 256;
/// How long the thread may take to announce or withdraw the pools. A look asks all workers, and one
/// that does not answer costs 2 seconds.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(8);
/// Changes made while others who want to read the routes wait: less than a millisecond.
const CHANGES_LOCKED: usize = 64;
/// Tries to read all routes while they change.
const DUMPS_MAX: usize = 5;

/// What has happened to routes. Only grow, but for `routes`.
#[derive(Debug, Default)]
pub struct RouteCounters {
    /// Routes of the kernel now.
    pub routes: AtomicU64,
    /// Routes in the tables of the workers now.
    pub installed: AtomicU64,
    /// Messages about routes taken in.
    pub changes: AtomicU64,
    /// Times that messages were lost.
    pub lost: AtomicU64,
    /// Comparisons of all routes.
    pub compared: AtomicU64,
    /// Prefixes that a comparison corrected.
    pub corrected: AtomicU64,
    /// Routes for which the tables had no room.
    pub refused: AtomicU64,
    /// Prefixes announced now.
    pub announced: AtomicU64,
}

impl RouteCounters {
    fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// What the rest of the daemon shares with the thread.
#[derive(Debug)]
pub struct Routing {
    /// All routes of IPv4.
    pub(crate) rib: Mutex<Rib>,
    /// All routes of IPv6.
    pub(crate) rib6: Mutex<Rib6>,
    /// Counters.
    pub counters: RouteCounters,
    follows_kernel: bool,
    pools: Mutex<Pools>,
    /// Complete looks at ports and pools.
    looks: AtomicU64,
}

/// The pools as the routing sees them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    /// Time of `natrix drain`, until it is undone.
    pub(crate) drained_at: Option<Instant>,
    /// Why none is announced.
    pub(crate) withheld: Option<Withheld>,
    /// Everything that can be announced.
    pub(crate) served: BTreeSet<Served>,
    /// What has a route in the kernel.
    pub(crate) announced: BTreeSet<Served>,
}

/// Destinations that Natrix serves, so that routers must send them here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Served {
    /// Of a pool, for the outside.
    Pool(Prefix),
    /// A translation prefix, for IPv6 hosts of a realm.
    Nat64(RealmId, Prefix6),
    /// The address of an AFTR, for B4s of a realm.
    Softwire(RealmId, Prefix6),
}

impl Served {
    /// The prefixes of all pools, of NAT64 and of softwires, without addresses that the kernel has
    /// on an interface.
    fn all(settings: &Settings) -> BTreeSet<Served> {
        let addresses = settings.pools.iter().flat_map(|pool| &pool.addresses).map(|address| address.to_bits());
        let own = settings.interfaces.iter().flat_map(|interface| &interface.addresses);
        let own: BTreeSet<u32> = own.map(|own| own.address.to_bits()).collect();
        let pools = prefixes_of(addresses.filter(|address| !own.contains(address))).into_iter().map(Served::Pool);
        let nat64 =
            settings.transition.nat64.iter().filter_map(|one| {
                Some(Served::Nat64(one.realm, Prefix6::new(one.prefix.address(), one.prefix.length())?))
            });
        let has = |aftr: Ipv6Addr| settings.ipv6.addresses.iter().any(|own| own.address == aftr);
        let softwires = settings.transition.softwires.iter().filter(|one| !has(one.aftr));
        let softwires =
            softwires.filter_map(|one| Some(Served::Softwire(one.realm, Prefix6::new(one.aftr.to_bits(), 128)?)));
        pools.chain(nat64).chain(softwires).collect()
    }

    /// Its route in a table of the kernel.
    fn message(self, table: u32) -> RouteMessage {
        match self {
            Served::Pool(prefix) => netlink::announcement(table, prefix),
            Served::Nat64(_, prefix) | Served::Softwire(_, prefix) => netlink::announcement(table, prefix),
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Served::Pool(prefix) => prefix.fmt(f),
            Served::Nat64(_, prefix) | Served::Softwire(_, prefix) => prefix.fmt(f),
        }
    }
}

/// What a pool needs to be announced, as the instance sees it now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// By port: whether it has link.
    pub ports_up: Vec<bool>,
    /// By interface: whether its port has link.
    pub interfaces_up: Vec<bool>,
    /// All workers answer.
    pub workers_alive: bool,
    /// New mappings can be logged, or need no log.
    pub log_healthy: bool,
}

/// The thread that announces the pools does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread that announces the pools does not follow")]
pub(crate) struct Stuck;

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

impl Routing {
    /// The routes of a configuration.
    pub fn new(shared: &Shared) -> Routing {
        Routing {
            rib: Mutex::new(Rib::of(shared.settings())),
            rib6: Mutex::new(Rib6::of(shared.settings())),
            counters: RouteCounters::default(),
            follows_kernel: shared.live_routes().is_some(),
            pools: Mutex::default(),
            looks: AtomicU64::new(0),
        }
    }

    /// Whether pools are announced at all.
    pub(crate) fn announces(&self) -> bool {
        self.follows_kernel
    }

    /// The pools now.
    pub(crate) fn pools(&self) -> Pools {
        lock(&self.pools).clone()
    }

    /// Drains, or ends the drain. Returns whether that is a change. When it returns, the kernel has
    /// the routes that follow from it.
    ///
    /// # Errors
    /// The thread does not follow in time.
    pub(crate) fn drain(&self, wanted: bool) -> Result<bool, Stuck> {
        let changed = {
            let mut pools = lock(&self.pools);
            let changed = pools.drained_at.is_some() != wanted;
            if changed {
                pools.drained_at = wanted.then(Instant::now);
            }
            changed
        };
        // A look may be under way that began before.
        let enough = self.looks.load(Ordering::Acquire) + 2;
        let begun = Instant::now();
        while self.looks.load(Ordering::Acquire) < enough {
            if begun.elapsed() > FOLLOWED_WITHIN {
                return Err(Stuck);
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(changed)
    }
}

/// The prefixes that cover these addresses and no other.
pub fn prefixes_of(addresses: impl Iterator<Item = u32>) -> Vec<Prefix> {
    let mut sorted: Vec<u32> = addresses.collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut prefixes: Vec<Prefix> = Vec::new();
    for address in sorted {
        let mut last = Prefix::host(address.into());
        // Two halves are one prefix.
        while let Some(before) = prefixes.last() {
            let whole = last.length().checked_sub(1).and_then(|length| Prefix::new(last.address(), length));
            let Some(whole) =
                whole.filter(|whole| before.length() == last.length() && whole.contains(before.address()))
            else {
                break;
            };
            prefixes.pop();
            last = whole;
        }
        prefixes.push(last);
    }
    prefixes
}

/// What keeps the pools from being announced.
fn withheld(health: &Health, settings: &Settings, rib: &Rib, is_drained: bool) -> Option<Withheld> {
    let is_up = |interface: InterfaceId| health.interfaces_up.get(interface.index()).copied().unwrap_or(false);
    let has_link = |side| {
        let mut all = settings.interfaces.iter().enumerate();
        all.any(|(number, interface)| interface.side == side && is_up(InterfaceId(number as u16)))
    };
    let has_router = |hops: &[Hop]| hops.iter().any(|hop| hop.gateway != 0 && is_up(hop.interface));
    if is_drained {
        Some(Withheld::Drained)
    } else if !health.workers_alive {
        Some(Withheld::Workers)
    } else if !has_link(Side::Inside) || !has_link(Side::Outside) {
        Some(Withheld::NoLink)
    } else if !rib.any(Table::Outside, has_router) {
        Some(Withheld::NoNextHop)
    } else if !health.log_healthy {
        Some(Withheld::Log)
    } else {
        None
    }
}

/// Reports the health. Gets the names of the kernel's devices without link.
trait Asked: Fn(&HashSet<String>) -> Health + Send {}

impl<F: Fn(&HashSet<String>) -> Health + Send> Asked for F {}

static NOTHING: BTreeSet<Served> = BTreeSet::new();

struct Follower {
    routing: Arc<Routing>,
    shared: Box<dyn Fn() -> Arc<Shared> + Send>,
    health: Box<dyn Asked>,
    devices: Devices,
    /// Interface of a device, and the kernel's table of it.
    interface_of: HashMap<u32, (InterfaceId, u32)>,
    fib: Option<Fib>,
    socket: Netlink,
    carrier: HashMap<PortIndex, bool>,
    /// Names of all devices of the kernel without link. Drivers on top of such a device report it
    /// as up.
    without_link: HashSet<String>,
    /// What is announced, and in which table of the kernel.
    announced: BTreeMap<Served, u32>,
    /// Looks at ports and pools; no more than [`REPEATED_LOOKS`].
    looks: u32,
    settings_of: Arc<Shared>,
    has_said: bool,
    log: Log,
}

impl Keeper {
    /// Starts the thread. When it returns, the workers have all routes of the configuration.
    /// `health` gets the names of the kernel's devices without link.
    ///
    /// # Errors
    /// The system refuses a socket or the thread.
    pub fn start(
        routing: Arc<Routing>,
        shared: impl Fn() -> Arc<Shared> + Send + 'static,
        health: impl Fn(&HashSet<String>) -> Health + Send + 'static,
        devices: Devices,
        log: Log,
    ) -> io::Result<Keeper> {
        let monitor = Netlink::open(&[
            netlink::LINKS,
            netlink::ADDRESSES,
            netlink::ROUTES,
            netlink::ADDRESSES6,
            netlink::ROUTES6,
        ])?;
        let now = shared();
        let tables = 1 + now.settings().realms();
        let mut follower = Follower {
            fib: now.live_routes().map(|live| Fib::new(live, tables)),
            routing,
            shared: Box::new(shared),
            health: Box::new(health),
            devices,
            interface_of: HashMap::new(),
            socket: Netlink::open(&[])?,
            carrier: HashMap::new(),
            without_link: HashSet::new(),
            announced: BTreeMap::new(),
            looks: 0,
            settings_of: now,
            has_said: false,
            log,
        };
        follower.refresh_all();
        follower.withdraw_old();
        let stop = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stop);
        let run = move || follower.run(monitor, &until);
        let thread = thread::Builder::new().name("routes".to_owned()).spawn(run)?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Follower {
    fn run(mut self, mut monitor: Netlink, stop: &AtomicBool) {
        let (mut compare_at, mut look_at) = (Instant::now(), Instant::now());
        let mut lost_at: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            let (mut news, mut news6, mut has_changed_links) = (Vec::new(), Vec::new(), false);
            let received = monitor.receive_bytes(|message| match netlink::is_route(message) {
                true => {
                    news.extend(netlink::route_news::<Prefix>(message));
                    news6.extend(netlink::route_news::<Prefix6>(message));
                }
                false => has_changed_links = true,
            });
            self.take_in(&news);
            if self.has_ipv6() {
                self.take_in(&news6);
            }
            let now = Instant::now();
            if received.is_err() {
                RouteCounters::add(&self.routing.counters.lost, 1);
                lost_at.get_or_insert(now);
            }
            // The kernel reports a loss ahead of older messages. They would undo what a
            // comparison corrects, so they are taken in first. Under a flood that takes too long.
            let is_empty = matches!(received, Ok(false));
            let makes_good = lost_at.is_some_and(|at| is_empty || now.duration_since(at) > MADE_GOOD_WITHIN);
            if makes_good || has_changed_links || now >= compare_at {
                if makes_good {
                    lost_at = (!is_empty).then_some(now);
                }
                self.compare();
                compare_at = Instant::now() + COMPARE_INTERVAL;
            }
            if now >= look_at {
                self.look();
                look_at = now + LOOK_INTERVAL;
            }
            if !matches!(received, Ok(true)) {
                let mut waited = [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)];
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                // After an error the loop reads again.
                let _ = poll(&mut waited, Some(&pause));
            }
        }
        self.announce(&NOTHING);
    }

    /// Whether there are tables of IPv6.
    fn has_ipv6(&self) -> bool {
        self.settings_of.live_routes().is_some_and(|live| live.has_ipv6())
    }

    /// Takes in changes, in their order.
    fn take_in<P: Family>(&mut self, news: &[RouteNews<P>]) {
        if news.is_empty() || self.fib.is_none() {
            return;
        }
        RouteCounters::add(&self.routing.counters.changes, news.len());
        let routing = Arc::clone(&self.routing);
        // Devices do not change meanwhile.
        let mut filled: HashMap<u32, Vec<Table>> = HashMap::new();
        for news in news.chunks(CHANGES_LOCKED) {
            let mut rib = lock(P::rib(&routing));
            for news in news {
                let parts = self.parts(news);
                let tables = filled.entry(news.table).or_insert_with(|| self.tables_of(news.table));
                for &table in tables.iter() {
                    let hops = parts.iter().find(|(other, _)| *other == table).map(|(_, hops)| hops.as_slice());
                    let Some(hops) = after(&rib, table, news, hops) else { continue };
                    let route = hops.as_ref().map(|hops| (news.protocol, hops.as_slice()));
                    if rib.change_kernel(table, news.prefix, news.metric, route) {
                        self.refresh(&rib, table, news.prefix);
                    }
                }
            }
        }
        self.publish();
    }

    fn refresh<P: Family>(&mut self, rib: &RibOf<P>, table: Table, prefix: P) {
        let Some(fib) = &mut self.fib else { return };
        let Err(error) = fib.refresh(rib, self.settings_of.settings(), table, prefix) else { return };
        RouteCounters::add(&self.routing.counters.refused, 1);
        if !self.has_said {
            self.has_said = true;
            self.log.error(&format_args!("route {prefix}: {error}; see routes_refused in natrix show counters"));
        }
    }

    fn publish(&mut self) {
        let Some(fib) = &mut self.fib else { return };
        fib.publish();
        let counters = &self.routing.counters;
        counters.installed.store(fib.len() as u64, Ordering::Relaxed);
        let routes = lock(&self.routing.rib).kernel_len() + lock(&self.routing.rib6).kernel_len();
        counters.routes.store(routes as u64, Ordering::Relaxed);
    }

    /// The next hops of a route by the table that its devices belong to. A route that drops packets
    /// is one of each table.
    fn parts<P: Family>(&self, news: &RouteNews<P>) -> Vec<(Table, Vec<Hop<P::Address>>)> {
        let mut parts: Vec<(Table, Vec<Hop<P::Address>>)> = Vec::new();
        if news.prefix.is_of_link() {
            return parts;
        }
        if news.hops.is_empty() {
            parts.extend(self.tables_of(news.table).into_iter().map(|table| (table, Vec::new())));
        }
        for &(device, gateway, weight) in &news.hops {
            let Some(&(interface, table)) = self.interface_of.get(&device) else { continue };
            if table != news.table {
                continue;
            }
            let (table, hop) = (Table::of(self.facing(interface)), Hop { interface, gateway, weight });
            match parts.iter_mut().find(|(other, _)| *other == table) {
                Some((_, hops)) => hops.push(hop),
                None => parts.push((table, vec![hop])),
            }
        }
        for (_, hops) in &mut parts {
            hops.sort_unstable();
            hops.truncate(HOPS_MAX);
        }
        parts
    }

    fn facing(&self, interface: InterfaceId) -> Facing {
        let found = self.settings_of.settings().interfaces.get(interface.index());
        found.map_or(Facing::OUTSIDE, nat::settings::Interface::facing)
    }

    /// The tables that a table of the kernel fills.
    fn tables_of(&self, kernel: u32) -> Vec<Table> {
        let of_table = self.interface_of.values().filter(|(_, table)| *table == kernel);
        let mut tables: Vec<Table> = of_table.map(|(interface, _)| Table::of(self.facing(*interface))).collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// Reads all routes, and corrects what differs.
    fn compare(&mut self) {
        self.read_links();
        if self.fib.is_none() {
            return;
        }
        let mut corrected = self.compare_family::<Prefix>();
        if self.has_ipv6() {
            corrected += self.compare_family::<Prefix6>();
        }
        // The first comparison reads what was there before.
        let is_first = self.routing.counters.compared.fetch_add(1, Ordering::Relaxed) == 0;
        if !is_first {
            RouteCounters::add(&self.routing.counters.corrected, corrected);
        }
        self.publish();
    }

    /// The same of one family. Returns how many prefixes differed.
    fn compare_family<P: Family>(&mut self) -> usize {
        let mut wanted: BTreeMap<(Table, P), Vec<KernelRoute<P::Address>>> = BTreeMap::new();
        let mut is_complete = false;
        for _ in 0..DUMPS_MAX {
            let mut news: Vec<RouteNews<P>> = Vec::new();
            let dump =
                self.socket.dump_bytes(netlink::all_routes::<P>(), |message| news.extend(netlink::route_news(message)));
            wanted.clear();
            for news in &news {
                for (table, hops) in self.parts(news) {
                    let routes = wanted.entry((table, news.prefix)).or_default();
                    if routes.iter().all(|route| route.metric != news.metric) {
                        routes.push(KernelRoute { protocol: news.protocol, metric: news.metric, hops });
                    }
                }
            }
            is_complete = dump.is_ok();
            if is_complete {
                break;
            }
        }
        if !is_complete {
            // Routes change faster than they can be read. What was read is right, so nothing is
            // removed, and the next comparison goes on.
            self.log.warn(&"routes: they change too fast to be compared; trying again");
        }
        let routing = Arc::clone(&self.routing);
        let mut corrected = 0;
        let mut correct = |this: &mut Follower, table, prefix, routes: &[KernelRoute<P::Address>]| {
            let mut rib = lock(P::rib(&routing));
            if rib.set_kernel(table, prefix, routes) {
                corrected += 1;
                this.refresh(&rib, table, prefix);
            }
        };
        for table in Table::all(self.settings_of.settings().realms()).filter(|_| is_complete) {
            let gone: Vec<P> = {
                let rib = lock(P::rib(&routing));
                rib.kernel_prefixes(table).filter(|prefix| !wanted.contains_key(&(table, *prefix))).collect()
            };
            for prefix in gone {
                correct(self, table, prefix, &[]);
            }
        }
        for ((table, prefix), routes) in &wanted {
            correct(self, *table, *prefix, routes);
        }
        corrected
    }

    /// Which interface each device is, and which table of the kernel its routes are in: that of the
    /// configuration, else that of its VRF device, else the main one.
    fn read_links(&mut self) {
        let (mut masters, mut tables, mut without_link) = (HashMap::new(), HashMap::new(), HashSet::new());
        let read = self.socket.dump(netlink::all_links(), |message| {
            let RouteNetlinkMessage::NewLink(link) = message else { return };
            for attribute in &link.attributes {
                match attribute {
                    LinkAttribute::IfName(name) if !link.header.flags.contains(LinkFlags::Running) => {
                        without_link.insert(name.clone());
                    }
                    LinkAttribute::Controller(master) => {
                        masters.insert(link.header.index, *master);
                    }
                    LinkAttribute::LinkInfo(infos) => {
                        for info in infos {
                            if let LinkInfo::Data(InfoData::Vrf(vrf)) = info {
                                let table = vrf.iter().find_map(|info| match info {
                                    InfoVrf::TableId(table) => Some(*table),
                                    _ => None,
                                });
                                tables.extend(table.map(|table| (link.header.index, table)));
                            }
                        }
                    }
                    _ => {}
                }
            }
        });
        if read.is_err() {
            return;
        }
        self.without_link = without_link;
        let table_of = |device: &u32| masters.get(device).and_then(|master| tables.get(master)).copied();
        self.interface_of = self
            .devices
            .interfaces
            .iter()
            .map(|(interface, device)| {
                let configured = self.devices.tables.get(interface).copied();
                let table = configured.or_else(|| table_of(device)).unwrap_or(netlink::TABLE_MAIN);
                (*device, (*interface, table))
            })
            .collect();
    }

    /// Routes of the configuration, after it has changed too.
    fn refresh_all(&mut self) {
        self.refresh_family::<Prefix>();
        if self.has_ipv6() {
            self.refresh_family::<Prefix6>();
        }
        self.publish();
    }

    fn refresh_family<P: Family>(&mut self) {
        let routing = Arc::clone(&self.routing);
        let rib = lock(P::rib(&routing));
        for table in Table::all(self.settings_of.settings().realms()) {
            let mut from = core::ops::Bound::Unbounded;
            while let Some(prefix) = rib.next_prefix(table, from) {
                self.refresh(&rib, table, prefix);
                from = core::ops::Bound::Excluded(prefix);
            }
        }
    }

    /// Takes over the routes of a changed configuration.
    fn replace_fixed<P: Family>(&mut self) {
        let routing = Arc::clone(&self.routing);
        let mut rib = lock(P::rib(&routing));
        let before: Vec<(Table, P)> = rib.fixed_prefixes().collect();
        rib.set_fixed(self.settings_of.settings());
        for (table, prefix) in before {
            self.refresh(&rib, table, prefix);
        }
    }

    /// What changes without a message: the configuration, links of ports, and the pools' health.
    fn look(&mut self) {
        let shared = (self.shared)();
        if !Arc::ptr_eq(&shared, &self.settings_of) {
            self.settings_of = shared;
            self.replace_fixed::<Prefix>();
            if self.has_ipv6() {
                self.replace_fixed::<Prefix6>();
            }
            self.refresh_all();
        }
        let health = (self.health)(&self.without_link);
        for device in &self.devices.ports {
            let is_up = health.ports_up.get(device.port.index()).copied().unwrap_or(false);
            if self.carrier.insert(device.port, is_up) != Some(is_up) && device.tap.set_carrier(is_up).is_err() {
                self.log.warn(&format_args!("kernel device {}: the kernel does not take its link state", device.name));
            }
        }
        if self.looks < REPEATED_LOOKS {
            self.looks += 1;
            if self.looks.is_power_of_two() {
                self.repeat_addresses();
            }
        }
        if !self.routing.follows_kernel {
            return;
        }
        let is_drained = lock(&self.routing.pools).drained_at.is_some();
        let withheld = withheld(&health, self.settings_of.settings(), &lock(&self.routing.rib), is_drained);
        let served = Served::all(self.settings_of.settings());
        self.announce(if withheld.is_none() { &served } else { &NOTHING });
        {
            let mut pools = lock(&self.routing.pools);
            (pools.withheld, pools.served) = (withheld, served);
            pools.announced = self.announced.keys().copied().collect();
        }
        self.routing.looks.fetch_add(1, Ordering::Release);
    }

    /// The kernel sends the addresses of its devices to all listeners again. Routing daemons that
    /// hear of links and addresses in different threads (FRR 8.4) lose the address of a new
    /// device that they do not know yet.
    fn repeat_addresses(&mut self) {
        let shared = Arc::clone(&self.settings_of);
        for (interface, device) in &self.devices.interfaces {
            for (address, prefix_length) in addresses_of(shared.settings(), *interface) {
                // The device may have been removed by hand.
                let _ = self.socket.request(netlink::address(*device, address, prefix_length), NLM_F_REPLACE);
            }
        }
    }

    /// The table of the kernel that something is announced in: pools in the main one, and what
    /// IPv6 hosts use in that of their realm, if the kernel has an interface of it.
    fn table_of(&self, served: Served) -> Option<u32> {
        let (Served::Nat64(realm, _) | Served::Softwire(realm, _)) = served else { return Some(netlink::TABLE_MAIN) };
        let mut all = self.interface_of.values();
        all.find(|(interface, _)| self.facing(*interface) == Facing::inside(realm)).map(|(_, table)| *table)
    }

    fn announce(&mut self, wanted: &BTreeSet<Served>) {
        let wanted: BTreeMap<Served, u32> =
            wanted.iter().filter_map(|served| Some((*served, self.table_of(*served)?))).collect();
        for (served, table) in self.announced.clone() {
            if wanted.get(&served) != Some(&table) {
                // It may be gone already.
                let _ = self.socket.request(RouteNetlinkMessage::DelRoute(served.message(table)), 0);
                self.announced.remove(&served);
            }
        }
        for (served, table) in wanted {
            if self.announced.contains_key(&served) {
                continue;
            }
            let message = RouteNetlinkMessage::NewRoute(served.message(table));
            match self.socket.request(message, NLM_F_CREATE | NLM_F_REPLACE) {
                Ok(()) => {
                    self.announced.insert(served, table);
                }
                Err(error) => {
                    self.log.warn(&format_args!("prefix {served}: the kernel refuses its route: {error}"));
                }
            }
        }
        self.routing.counters.announced.store(self.announced.len() as u64, Ordering::Relaxed);
    }

    /// Routes of a process before this one that was killed.
    fn withdraw_old(&mut self) {
        let mut old = Vec::new();
        let mut keep = |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message
                && u8::from(route.header.protocol) == netlink::PROTOCOL_NATRIX
            {
                old.push(route);
            }
        };
        // What is missing then is withdrawn by the next process.
        let _ = self.socket.dump(netlink::all_routes::<Prefix>(), &mut keep);
        let _ = self.socket.dump(netlink::all_routes::<Prefix6>(), &mut keep);
        for route in old {
            // It may be gone already.
            let _ = self.socket.request(RouteNetlinkMessage::DelRoute(route), 0);
        }
    }
}

/// The own addresses of an interface, with the lengths of their prefixes.
pub(crate) fn addresses_of(settings: &Settings, interface: InterfaceId) -> Vec<(IpAddr, u8)> {
    let own = settings.interfaces.get(interface.index()).into_iter().flat_map(|interface| &interface.addresses);
    let own6 = settings.ipv6.addresses.iter().filter(|own| own.interface == interface);
    own.map(|own| (own.address.into(), own.prefix_length))
        .chain(own6.map(|own| (own.address.into(), own.prefix_length)))
        .collect()
}

/// The next hops of a route in a table after a message that has `hops` for it; Some(None): it has
/// none any more, None: the message is about other tables.
///
/// A message of IPv4 is about the whole route. Those of IPv6 report each next hop that goes, and
/// routes of a prefix with the same metric over different devices stand beside each other unless
/// one replaces the others.
fn after<P: Family>(
    rib: &RibOf<P>,
    table: Table,
    news: &RouteNews<P>,
    hops: Option<&[Hop<P::Address>]>,
) -> Option<Option<Vec<Hop<P::Address>>>> {
    if !P::HOPS_GO_SINGLY {
        return Some(hops.filter(|_| news.is_there).map(<[_]>::to_vec));
    }
    match (news.is_there, hops) {
        (true, Some(hops)) => Some(Some(hops.to_vec())),
        (true, None) => news.replaces.then_some(None),
        (false, None) => None,
        (false, Some(gone)) => {
            let before = rib.kernel(table, news.prefix).into_iter().find(|route| route.metric == news.metric)?;
            let is_gone = |hop: &Hop<P::Address>| {
                gone.iter().any(|gone| gone.interface == hop.interface && gone.gateway == hop.gateway)
            };
            let left: Vec<_> = before.hops.iter().copied().filter(|hop| !is_gone(hop)).collect();
            match (before.hops.is_empty(), gone.is_empty()) {
                (true, true) => Some(None),
                (false, false) => Some((!left.is_empty()).then_some(left)),
                // Another route with the same metric.
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_addresses_become_the_fewest_prefixes() {
        let prefixes = |addresses: core::ops::Range<u32>| {
            let found = prefixes_of(addresses.map(|low| 0xcb00_7100 + low));
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(prefixes(0..256), ["203.0.113.0/24"]);
        assert_eq!(prefixes(1..5), ["203.0.113.1/32", "203.0.113.2/31", "203.0.113.4/32"]);
        assert_eq!(prefixes(8..12), ["203.0.113.8/30"]);
        assert!(prefixes(0..0).is_empty());
    }

    /// Two interfaces with link, and everything else as it should be.
    fn healthy() -> Health {
        Health { ports_up: vec![true, true], interfaces_up: vec![true, true], workers_alive: true, log_healthy: true }
    }

    #[test]
    fn pools_are_withheld_while_they_cannot_serve() {
        let settings = crate::routing::rib::tests::settings();
        let rib = Rib::of(&settings);
        let why = |health: Health| withheld(&health, &settings, &rib, false);
        assert_eq!(why(healthy()), None);
        assert_eq!(withheld(&healthy(), &settings, &rib, true), Some(Withheld::Drained));
        assert_eq!(why(Health { workers_alive: false, ..healthy() }), Some(Withheld::Workers));
        assert_eq!(why(Health { interfaces_up: vec![true, false], ..healthy() }), Some(Withheld::NoLink));
        assert_eq!(why(Health { interfaces_up: vec![false, true], ..healthy() }), Some(Withheld::NoLink));
        assert_eq!(why(Health { log_healthy: false, ..healthy() }), Some(Withheld::Log));
        assert_eq!(why(Health::default()), Some(Withheld::Workers));
    }

    #[test]
    fn pools_need_a_router_outside_over_a_link_that_is_up() {
        let mut settings = crate::routing::rib::tests::settings();
        settings.routes.retain(|route| route.interface != InterfaceId(1));
        let mut rib = Rib::of(&settings);
        let why = |rib: &Rib, settings: &Settings, up: &[bool]| {
            withheld(&Health { interfaces_up: up.to_vec(), ..healthy() }, settings, rib, false)
        };
        // The connected prefix outside leads to no router.
        assert_eq!(why(&rib, &settings, &[true, true]), Some(Withheld::NoNextHop));
        let hop = |interface| Hop { interface: InterfaceId(interface), gateway: 7, weight: 1 };
        let route = |hops: &[Hop]| KernelRoute { protocol: 186, metric: 20, hops: hops.to_vec() };
        rib.set_kernel(Table::Outside, Prefix::ALL, &[route(&[hop(1)])]);
        assert_eq!(why(&rib, &settings, &[true, true]), None, "a route of the kernel is enough");
        // A second interface outside has link, and no route leads over it.
        settings.interfaces.push(settings.interfaces[1].clone());
        assert_eq!(why(&rib, &settings, &[true, false, true]), Some(Withheld::NoNextHop));
        rib.set_kernel(Table::Outside, Prefix::ALL, &[route(&[hop(1), hop(2)])]);
        assert_eq!(why(&rib, &settings, &[true, false, true]), None, "one of two next hops is enough");
        rib.set_kernel(Table::Outside, Prefix::ALL, &[]);
        assert_eq!(why(&rib, &settings, &[true, true, true]), Some(Withheld::NoNextHop), "it is gone");
    }

    /// What is left of a route of IPv6 over these next hops after a message.
    fn left(before: &[u128], is_there: bool, replaces: bool, said: Option<&[u128]>) -> Option<Option<Vec<u128>>> {
        let hop = |gateway: &u128| Hop { interface: InterfaceId(0), gateway: *gateway, weight: 1 };
        let hops = |all: &[u128]| all.iter().map(hop).collect::<Vec<_>>();
        let prefix = Prefix6::new(0x2001_0db8 << 96, 56).unwrap();
        let table = Table::Inside(RealmId(0));
        let mut rib = Rib6::of(&crate::routing::rib::tests::settings());
        if !before.is_empty() {
            rib.set_kernel(table, prefix, &[KernelRoute { protocol: 188, metric: 20, hops: hops(before) }]);
        }
        let news = RouteNews { is_there, replaces, table: 254, prefix, metric: 20, protocol: 188, hops: Vec::new() };
        let said = said.map(hops);
        let after = after(&rib, table, &news, said.as_deref());
        after.map(|after| after.map(|hops| hops.iter().map(|hop| hop.gateway).collect()))
    }

    #[test]
    fn a_route_of_ipv6_loses_its_next_hops_one_by_one() {
        assert_eq!(left(&[1, 2, 3], false, false, Some(&[2])), Some(Some(vec![1, 3])));
        assert_eq!(left(&[1], false, false, Some(&[1])), Some(None), "the last one goes");
        assert_eq!(left(&[1, 2], false, false, Some(&[1, 2])), Some(None), "all go at once");
        assert_eq!(left(&[], false, false, Some(&[1])), None, "it was not known");
        assert_eq!(left(&[1], false, false, None), None, "it was over a device of another table");
        assert_eq!(left(&[1], true, false, Some(&[1, 2])), Some(Some(vec![1, 2])), "one comes");
        assert_eq!(left(&[1], true, false, None), None, "one beside it, over a device of another table");
        assert_eq!(left(&[1], true, true, None), Some(None), "one over a device of another table in its place");
        assert_eq!(left(&[1], false, false, Some(&[])), None, "one that dropped packets, beside it");
    }

    #[test]
    fn prefixes_that_ipv6_hosts_use_are_served_like_pools() {
        let mut settings = crate::routing::rib::tests::settings();
        let realm = RealmId(0);
        let aftr = "2001:db8:64::aaaa".parse().unwrap();
        settings.transition.nat64 =
            vec![nat::settings::Nat64 { prefix: translate::Prefix::WELL_KNOWN, realm, lowest_mtu6: 1_280 }];
        let softwire = nat::settings::Softwire { aftr, realm, inner: Vec::new(), subscribers: Vec::new() };
        settings.transition.softwires = vec![softwire];
        let all = |settings: &Settings| Served::all(settings).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all(&settings), ["64:ff9b::/96", "2001:db8:64::aaaa/128"]);
        settings.ipv6.addresses =
            vec![nat::settings::Address6 { interface: InterfaceId(0), address: aftr, prefix_length: 64 }];
        assert_eq!(all(&settings), ["64:ff9b::/96"], "the kernel has that address");
    }
}
