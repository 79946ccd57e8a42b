//! What all shards of an instance share: the compiled settings, and the external ports.
//!
//! Everything but the port table is read-only. The port table is shared because one array read must
//! find the worker that owns an external endpoint (see `docs/adr/0001-one-port-table.md`).

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::sync::Arc;

use mem::ArenaError;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

use crate::external::address_slots::Closed;
use crate::external::address_slots::NoRoom;
use crate::external::address_slots::Slot;
use crate::external::address_slots::Slots;
use crate::external::between_workers::BetweenWorkers;
use crate::external::blocks::BlockSize;
use crate::external::blocks::Lease;
use crate::external::deterministic::Formula;
use crate::external::deterministic::FormulaError;
use crate::external::deterministic::Owner;
use crate::external::guaranteed_ports::reservations;
use crate::external::load_balancing::Balance;
use crate::external::load_balancing::Group;
use crate::external::load_balancing::Origin;
use crate::external::load_balancing::TARGET_GENERATIONS_MAX;
use crate::external::load_balancing::TooManyGenerations;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortRange;
use crate::external::ports::PortTable;
use crate::external::static_mapping::Static;
use crate::external::static_mapping::StaticKey;
use crate::external::static_mapping::StaticMappingTable;
use crate::external::static_mapping::carry_hits;
use crate::external::static_mapping::hits_after;
use crate::external::static_mapping::static_at;
use crate::external::static_mapping::static_count;
use crate::headers::packet::Egress;
use crate::headers::packet::NextHopId;
use crate::policy::class::Classes;
use crate::policy::gateways::Gateways;
use crate::policy::redirection::Redirection;
use crate::policy::redirection::RedirectionId;
use crate::policy::rules::FilterBook;
use crate::policy::rules::Hits;
use crate::policy::rules::RuleBook;
use crate::policy::rules::RuleId;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::routes;
use crate::routes::CUT;
use crate::routes::RouteTable;
use crate::routes::cache::Departure;
use crate::routes::cache::RouteCache;
use crate::routes::live::HOPS_MAX;
use crate::routes::live::HOST_HOPS;
use crate::routes::live::LiveRoutes;
use crate::routes::live::PackedHop;
use crate::rows::BalancedView;
use crate::rows::OwnPorts;
use crate::rows::StaticView;
use crate::rows::TornBlock;
use crate::settings::Allocation;
use crate::settings::Blocks;
use crate::settings::Filtering;
use crate::settings::Interface;
use crate::settings::PassRule;
use crate::settings::Pool;
use crate::settings::Pooling;
use crate::settings::ReuseAtOnce;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::settings::Selection;
use crate::settings::Settings;
use crate::snapshot::addresses::Local;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::orphaned::Orphans;
use crate::snapshot::pool_counts::PoolCount;
use crate::snapshot::pool_counts::PoolCounted;
use crate::snapshot::pool_counts::PoolCounts;
use crate::snapshot::pool_names::PoolNames;
use crate::snapshot::pressure::Pressure;
use crate::snapshot::removed_forwards::RemovedForwards;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::snapshot::transition::RealmEdge;
use crate::snapshot::transition::Transition;
use crate::state::flow::OutsideKey;
use crate::state::host::Way;
use crate::state::host::subscriber_prefix;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::InsideHost;
use crate::types::InterfaceId;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::SOFTWIRE_HOSTS_FIRST;
use crate::types::Side;
use crate::types::WorkerId;
use crate::types::is_host_number;

/// Why an engine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A table could not be allocated.
    #[error("table \"{table}\": {source}")]
    Memory {
        /// Which table.
        table: &'static str,
        /// What went wrong.
        source: ArenaError,
    },
    /// The routes or subscriber prefixes cannot be compiled.
    #[error(transparent)]
    Routes(#[from] routes::RouteError),
    /// The formula of a deterministic pool fails; `config` refuses such files earlier.
    #[error("pool \"{pool}\": {source}")]
    Formula {
        /// Its name.
        pool: String,
        /// Why it fails.
        source: FormulaError,
    },
    /// Out of memory, or too many rules.
    #[error(transparent)]
    Rules(#[from] crate::policy::rules::RuleSetError),
    /// More external addresses than places.
    #[error(
        "external addresses: {needed} are needed, {removed} of them removed ones that are in use still, and there are places for {places}"
    )]
    NoRoomForAddresses {
        /// Addresses of the new settings, and removed ones still in use.
        needed: u64,
        /// The removed ones.
        removed: u64,
        /// Places there are.
        places: u64,
    },
    /// A forward has sessions of too many lists of targets.
    #[error("{protocol} {external}: has sessions of {limit} lists of targets already, as many as there may be")]
    TooManyTargetLists {
        /// Transport.
        protocol: Protocol,
        /// External endpoint, the first of its ports.
        external: Endpoint,
        /// Upper bound of lists.
        limit: u64,
    },
    /// Several errors.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<BuildError>),
    /// A number is out of bounds; `config` refuses such files earlier.
    #[error("settings: {what} is out of range ({value}); allowed are {minimum} to {maximum}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// Value seen.
        value: u64,
        /// Smallest allowed.
        minimum: u64,
        /// Largest allowed.
        maximum: u64,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHop {
    id: NextHopId,
    /// Router; 0 if destinations are on the link.
    gateway: u32,
    pub(crate) interface: InterfaceId,
    pub(crate) mtu: u16,
}

impl NextHop {
    fn of_slot(slot: u32, hop: PackedHop) -> NextHop {
        NextHop { id: NextHopId(slot), gateway: hop.gateway(), interface: hop.interface(), mtu: hop.mtu() }
    }

    #[inline(always)]
    pub(crate) fn egress(&self) -> Egress {
        Egress { next_hop: self.id }
    }

    /// The address whose link-layer address is needed.
    pub(crate) fn neighbour(&self, destination: u32) -> u32 {
        if self.gateway == 0 { destination } else { self.gateway }
    }
}

impl From<NextHop> for Departure {
    #[inline(always)]
    fn from(hop: NextHop) -> Departure {
        Departure { egress: hop.egress(), mtu: hop.mtu }
    }
}

/// A next hop, for the link layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHopView {
    /// Interface that leads to it.
    pub interface: InterfaceId,
    /// The router; `None` if destinations are on the link.
    pub gateway: Option<Ipv4Addr>,
    /// Its packets are IPv6, and IPv6 routes of the realm of the interface apply to them.
    pub is_ipv6: bool,
}

/// Route value of destinations on the other side. Not the number of a next hop.
const HOLE: u32 = routes::VALUE_LIMIT - 1;

/// Nodes of each live table: enough for 1 million host routes far from each other, or for far more
/// routes as in the Internet.
const LIVE_NODES: usize = 1 << 21;

fn live_after(
    settings: &Settings,
    workers: usize,
    before: Option<&Shared>,
) -> Result<Option<Arc<LiveRoutes>>, BuildError> {
    if let Some(before) = before {
        return Ok(before.live.clone());
    }
    if !settings.live_routes {
        return Ok(None);
    }
    let live = LiveRoutes::new(settings.realms(), workers, LIVE_NODES, !settings.ipv6.addresses.is_empty());
    let live = live.map_err(|source| BuildError::Memory { table: "routes of the kernel", source })?;
    Ok(Some(Arc::new(live)))
}

fn between_workers_after(
    settings: &Settings,
    workers: usize,
    places: usize,
    before: Option<&Shared>,
) -> Result<Option<Arc<BetweenWorkers>>, BuildError> {
    if let Some(before) = before {
        return Ok(before.between_workers.clone());
    }
    let flows_max = settings.limits.flows_max as usize;
    if workers <= 1 || flows_max == 0 {
        return Ok(None);
    }
    let between_workers = BetweenWorkers::new(places, flows_max.saturating_mul(workers));
    let between_workers =
        between_workers.map_err(|source| BuildError::Memory { table: "flows of all workers", source })?;
    Ok(Some(Arc::new(between_workers)))
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledPool {
    pub(crate) filtering: [Filtering; Protocol::COUNT],
    pub(crate) pooling: Pooling,
    pub(crate) parity: bool,
    pub(crate) one_to_one: bool,
    pub(crate) reuse_delay: Duration,
    pub(crate) reuse_at_once: ReuseAtOnce,
    pub(crate) shared_ports_min: u16,
    pub(crate) has_low_ports: bool,
    pub(crate) has_high_ports: bool,
    pub(crate) id: PoolId,
    pub(crate) is_closed: bool,
    /// Start and number of its open addresses in the list of all pools.
    first: u32,
    pub(crate) count: u32,
    first_member: u32,
    pub(crate) selection: Selection,
    pub(crate) blocks: Option<CompiledBlocks>,
    /// Ports of each slice of a deterministic pool, else 0.
    pub(crate) slice_ports: u16,
    /// Ports kept for guarantees on each address.
    pub(crate) for_guarantees: [u32; Protocol::COUNT],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledBlocks {
    pub(crate) size: BlockSize,
    pub(crate) per_subscriber_max: u16,
    pub(crate) idle: Duration,
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// Compiled settings and port table of one instance, shared by its shards.
pub struct Shared {
    settings: Settings,
    workers: usize,
    pub(crate) ports: Arc<PortTable>,
    pub(crate) local: Arc<LocalAddresses>,
    pub(crate) static_mappings: StaticMappingTable,
    pub(crate) balance: Balance,
    pub(crate) removed_forwards: RemovedForwards,
    /// `None` with one worker or without flows.
    pub(crate) between_workers: Option<Arc<BetweenWorkers>>,
    is_settled: AtomicBool,
    pub(crate) static_hits: Arc<Hits>,
    pub(crate) pools: Vec<CompiledPool>,
    pool_names: PoolNames,
    pool_counts: PoolCounts,
    pub(crate) turns: Box<[AtomicU32]>,
    /// By pool.
    formulas: Vec<Option<Formula>>,
    /// By place.
    slots: Slots,
    /// By place: index into `pools`.
    compiled_of: Vec<u16>,
    /// Open addresses, pool by pool.
    open: Vec<AddressIndex>,
    /// All addresses, pool by pool.
    members: Vec<AddressIndex>,
    /// Sessions are hashed differently than before.
    rehashes_sessions: bool,
    /// Some mappings end at a given time, whatever their timers say.
    has_deadlines: bool,
    pub(crate) orphans: Orphans,
    /// Position in its pool, by place; `None` if removed from it.
    position_of: Vec<Option<u32>>,
    generation: u32,
    /// By realm, by subscriber prefix.
    pool_routes: Vec<RouteTable>,
    outside_routes: RouteTable,
    /// By realm.
    inside_routes: Vec<RouteTable>,
    next_hops: Vec<NextHop>,
    /// With routes of the kernel, the next hops to IPv6 hosts, in the order of their values.
    host_hops: Vec<Option<NextHop>>,
    /// In place of `next_hops`, if routes come from the kernel.
    live: Option<Arc<LiveRoutes>>,
    /// By interface.
    has_kernel: Box<[bool]>,
    pub(crate) transition: Transition,
    pub(crate) classes: Classes,
    pub(crate) gateways: Gateways,
    pub(crate) pressure: Pressure,
    pub(crate) rules: RuleBook,
    pub(crate) passes: RuleBook,
    pub(crate) filters: FilterBook,
    facings: Vec<Facing>,
}

impl Shared {
    /// Compiles `settings` for `workers` shards and allocates the port table: about 0.8 MiB an
    /// external address.
    pub fn new(settings: Settings, workers: usize) -> Result<Shared, BuildError> {
        in_range("workers", workers as u64, 1, WorkerId::COUNT_MAX as u64)?;
        in_range("mappings_max", u64::from(settings.limits.mappings_max), 1, MappingIndex::COUNT_MAX as u64)?;
        check_ranges(&settings)?;
        let slots = Slots::new(&settings);
        let balance = Balance::new(&settings);
        let specs = slots.specs(&settings, balance.ports());
        let ports = PortTable::with_room(&specs, settings.limits.external_addresses_max as usize);
        let ports = ports.map_err(|source| BuildError::Memory { table: "external ports", source })?;
        let ports = Arc::new(if workers == 1 { ports.for_one_worker() } else { ports });
        Shared::compile(settings, workers, slots, ports, balance, None)
    }

    /// The next snapshot, for the same workers and port table. Nothing changes before workers adopt
    /// it. `now` is the time at which it closes addresses.
    pub fn successor(&self, settings: Settings, now: Instant) -> Result<Shared, BuildError> {
        check_ranges(&settings)?;
        let slots = self.slots.successor(&self.settings, &settings, &self.ports, &self.balance, now);
        let places = self.ports.places() as u64;
        let slots = slots.map_err(|error| no_room(error, places));
        let balance = self.balance.successor(&settings, now).map_err(too_many_lists);
        let (slots, balance) = match (slots, balance) {
            (Ok(slots), Ok(balance)) => (slots, balance),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => return Err(error),
            (Err(one), Err(other)) => return Err(BuildError::Several(vec![one, other])),
        };
        let mut next = Shared::compile(settings, self.workers, slots, Arc::clone(&self.ports), balance, Some(self))?;
        next.orphans = Orphans::successor(self, &next, now);
        next.has_deadlines |= next.orphans.have_deadlines(&next.settings);
        next.has_deadlines |= next.balance.has_past();
        next.removed_forwards = RemovedForwards::of(&next);
        next.rehashes_sessions = self.addresses().any(|(place, _)| {
            let next = next.slot(place).map(|_| next.compiled_pool(place));
            next.is_some_and(|next| {
                let (old, new) = (self.compiled_pool(place).filtering, next.filtering);
                let by_address = |filtering| filtering == Filtering::AddressDependent;
                old.into_iter().zip(new).any(|(old, new)| by_address(old) != by_address(new))
            })
        });
        Ok(next)
    }

    fn compile(
        settings: Settings,
        workers: usize,
        slots: Slots,
        ports: Arc<PortTable>,
        balance: Balance,
        before: Option<&Shared>,
    ) -> Result<Shared, BuildError> {
        let all_pools = || settings.pools.iter().chain(&slots.removed_pools);
        let pool_count = settings.pools.len() + slots.removed_pools.len();
        let places =
            || (0..).map(AddressIndex).zip(&slots.slots).filter_map(|(place, slot)| Some((place, slot.as_ref()?)));
        let place_of: HashMap<Ipv4Addr, AddressIndex> = places().map(|(place, slot)| (slot.address, place)).collect();
        let (mut open, mut members) = (Vec::new(), Vec::new());
        let mut position_of = vec![None; slots.slots.len()];
        let mut pools = Vec::with_capacity(pool_count * 2);
        let mut formulas = Vec::with_capacity(pool_count);
        let reserved = reservations(&settings)?;
        for (id, pool) in (0..).map(PoolId).zip(all_pools()) {
            // Removed pools give out nothing.
            let formula = if id.index() < settings.pools.len() { Formula::of(pool) } else { Ok(None) };
            let formula = formula.map_err(|source| BuildError::Formula { pool: pool.name.clone(), source })?;
            let (first, first_member) = (open.len(), members.len());
            members.extend(pool.addresses.iter().filter_map(|address| place_of.get(address).copied()));
            for (position, place) in (0..).zip(&members[first_member..]) {
                position_of[place.index()] = Some(position);
            }
            let is_open = |place: &AddressIndex| {
                let slot = slots.slots.get(place.index()).copied().flatten();
                slot.is_some_and(|slot| slot.pool == id && slot.closed.is_none())
            };
            open.extend(members[first_member..].iter().copied().filter(is_open));
            let mut compiled = CompiledPool {
                first: first as u32,
                count: (open.len() - first) as u32,
                first_member: first_member as u32,
                ..CompiledPool::new(pool, id, formula.as_ref())
            };
            // In other pools the mode determines what a subscriber has.
            if compiled.gives_single_ports() && compiled.pooling == Pooling::Paired && !compiled.one_to_one {
                let each = reserved.get(id.index()).copied().unwrap_or_default();
                let each = each.of_each_address(u64::from(compiled.count));
                compiled.for_guarantees = each.map(|ports| u32::try_from(ports).unwrap_or(u32::MAX));
            }
            if compiled.has_guarantees() {
                ports
                    .prepare_guarantees()
                    .map_err(|source| BuildError::Memory { table: "guaranteed ports", source })?;
            }
            pools.push(compiled);
            formulas.push(formula);
        }
        // Closed addresses have a closed copy of their compiled pool.
        pools.extend_from_within(..);
        for compiled in &mut pools[pool_count..] {
            compiled.is_closed = true;
        }
        // Other places belong to the next configuration, which a worker that uses them has adopted.
        pools.push(CompiledPool::of_elsewhere());
        let elsewhere = pool_count as u16 * 2;
        let compiled_of = (0..ports.places()).map(|place| match slots.slots.get(place).copied().flatten() {
            Some(slot) if slot.closed.is_none() => slot.pool.0,
            slot => slot.map_or(elsewhere, |slot| slot.pool.0 + pool_count as u16),
        });
        let compiled_of = compiled_of.collect();
        let external: Vec<(Ipv4Addr, AddressIndex)> = places().map(|(place, slot)| (slot.address, place)).collect();
        let has_deadlines = places().any(|(_, slot)| slot.closed.is_some_and(|closed| closed.ends.is_some()));
        let mut pool_prefixes = vec![Vec::new(); settings.realms()];
        for (realm, prefixes) in (0..).map(RealmId).zip(&mut pool_prefixes) {
            for (position, pool) in settings.pools.iter().enumerate().filter(|(_, pool)| pool.serves(realm)) {
                prefixes.extend(pool.subscribers.iter().map(|prefix| (*prefix, position as u32)));
            }
        }
        let (mut route_lists, mut next_hops) = compile_routes(&settings);
        let live = live_after(&settings, workers, before)?;
        let mut host_hops = Vec::new();
        let transition = match &live {
            Some(_) => {
                next_hops.clear();
                compile_host_hops(&settings, &mut host_hops)
            }
            None => compile_transition(&settings, &mut route_lists, &mut next_hops),
        };
        let table = |list: &[(Prefix, u32)], number: usize| match &live {
            Some(live) => Ok(RouteTable::live(live, number)),
            None => RouteTable::new(list),
        };
        let outside_routes = table(&route_lists.outside, 0)?;
        let inside_routes = route_lists.inside.iter().zip(1..).map(|(list, number)| table(list, number));
        let inside_routes = inside_routes.collect::<Result<_, _>>()?;
        let is_kernel = |number: usize| settings.kernel_interfaces.contains(&InterfaceId(number as u16));
        let has_kernel = (0..settings.interfaces.len()).map(is_kernel).collect();
        if settings.pools.iter().any(|pool| pool.allocation != Allocation::Ports) {
            ports.prepare_blocks().map_err(|source| BuildError::Memory { table: "port blocks", source })?;
        }
        let places_of_ports = ports.places();
        let pool_names = PoolNames::new(all_pools(), before.map(|before| &before.pool_names));
        Ok(Shared {
            ports,
            local: Arc::new(LocalAddresses::new(&settings.interfaces, &external)),
            turns: pools.iter().map(|_| AtomicU32::new(0)).collect(),
            formulas,
            static_mappings: StaticMappingTable::new(&settings, |forward| balance.has_taken(forward)),
            balance,
            between_workers: between_workers_after(&settings, workers, places_of_ports, before)?,
            removed_forwards: RemovedForwards::default(),
            // Without a predecessor, no worker can use another snapshot.
            is_settled: AtomicBool::new(before.is_none()),
            static_hits: hits_after(&settings, workers, before.map(|before| (&before.settings, &before.static_hits))),
            members,
            pool_counts: PoolCounts::new(workers, pool_names.len(), before.map(|before| &before.pool_counts)),
            pool_names,
            pools,
            compiled_of,
            open,
            has_deadlines,
            orphans: Orphans::default(),
            position_of,
            rehashes_sessions: false,
            generation: before.map_or(0, |before| before.generation.wrapping_add(1)),
            slots,
            pool_routes: pool_prefixes.iter().map(|list| RouteTable::new(list)).collect::<Result<_, _>>()?,
            outside_routes,
            inside_routes,
            next_hops,
            host_hops,
            live,
            has_kernel,
            transition,
            pressure: Pressure::default(),
            gateways: Gateways::new(&settings),
            classes: Classes::new(&settings.subscriber, &settings.classes, settings.realms())?,
            rules: match before {
                Some(before) => RuleBook::successor(&settings.rules, workers, &before.rules)?,
                None => RuleBook::new(&settings.rules, workers)?,
            },
            passes: passes(&settings, workers, before.map(|before| &before.passes))?,
            // A new generation: sessions are judged again.
            filters: FilterBook::new(&settings.filters, workers, before.map(|before| &before.filters))?,
            facings: settings.interfaces.iter().map(Interface::facing).collect(),
            workers,
            settings,
        })
    }

    /// The settings this snapshot was built from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of shards.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes of the port table.
    pub fn bytes(&self) -> usize {
        self.ports.bytes() + self.between_workers.as_ref().map_or(0, |between_workers| between_workers.bytes())
    }

    /// One past the highest [`AddressIndex`] ever used.
    pub fn address_count(&self) -> usize {
        self.slots.slots.len()
    }

    /// What is at a place, if anything.
    pub fn slot(&self, index: AddressIndex) -> Option<&Slot> {
        self.slots.slots.get(index.index())?.as_ref()
    }

    /// All external addresses by place, with closed ones.
    pub fn addresses(&self) -> impl Iterator<Item = (AddressIndex, &Slot)> {
        let places = (0..).map(AddressIndex).zip(&self.slots.slots);
        places.filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// The external address at a place.
    pub fn address(&self, index: AddressIndex) -> Ipv4Addr {
        self.slot(index).map_or(Ipv4Addr::UNSPECIFIED, |slot| slot.address)
    }

    /// The place of an external address.
    pub fn address_index(&self, address: Ipv4Addr) -> Option<AddressIndex> {
        self.local.lookup(address.to_bits()).and_then(Local::pool_address)
    }

    /// The pool of an external address.
    pub fn pool_of(&self, index: AddressIndex) -> PoolId {
        self.slot(index).map_or_else(PoolId::default, |slot| slot.pool)
    }

    /// The external addresses of both snapshots, which all workers must know before one switches.
    /// `None` without new ones.
    pub fn expected(&self, before: &Shared) -> Option<Arc<LocalAddresses>> {
        let is_new = |(place, slot): (AddressIndex, &Slot)| {
            before.slot(place).is_none_or(|before| before.address != slot.address)
        };
        if !self.addresses().any(is_new) {
            return None;
        }
        let places = (0..self.address_count().max(before.address_count()) as u32).map(AddressIndex);
        // If an address replaces another at a place, the old one has no state left.
        let slots = places.filter_map(|place| Some((self.slot(place).or(before.slot(place))?.address, place)));
        let external: Vec<(Ipv4Addr, AddressIndex)> = slots.collect();
        Some(Arc::new(LocalAddresses::new(&self.settings.interfaces, &external)))
    }

    /// Whether and why an address takes no new mappings.
    pub fn closed(&self, index: AddressIndex) -> Option<Closed> {
        self.slot(index)?.closed
    }

    /// A pool of the settings, or a removed one with mappings left.
    pub fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.slots.pool_in(&self.settings, id)
    }

    /// All pools; removed ones with mappings left come last.
    pub fn pools(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        (0..).map(PoolId).zip(self.settings.pools.iter().chain(&self.slots.removed_pools))
    }

    /// The permanent number of a pool's name.
    #[inline]
    pub fn name_of_pool(&self, id: PoolId) -> PoolName {
        self.pool_names.of(id)
    }

    #[inline]
    pub(crate) fn count_in_pool(&self, worker: WorkerId, pool: PoolId, what: PoolCount) {
        self.pool_counts.count(worker, self.pool_names.of(pool), what);
    }

    /// What was counted of a pool since the start.
    pub fn counted_in_pool(&self, pool: PoolId) -> PoolCounted {
        self.pool_counts.of(self.pool_names.of(pool))
    }

    /// The name of a present or former pool.
    pub fn pool_name(&self, name: PoolName) -> Option<&str> {
        self.pool_names.name(name)
    }

    /// The names of all present and former pools, by number.
    pub fn pool_names(&self) -> impl Iterator<Item = &str> {
        self.pool_names.all()
    }

    /// Reloads since the start.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Stored in records that were checked under this snapshot.
    #[inline]
    pub(crate) fn short_generation(&self) -> u16 {
        self.generation as u16
    }

    #[inline]
    pub(crate) fn member(&self, compiled: &CompiledPool, n: u32) -> AddressIndex {
        self.members[(compiled.first_member + n) as usize]
    }

    #[inline]
    pub(crate) fn choices(&self, compiled: &CompiledPool) -> &[AddressIndex] {
        &self.open[compiled.first as usize..(compiled.first + compiled.count) as usize]
    }

    /// True if everything that a pool could give to an inside address drains. Forwards are created
    /// anyway.
    #[inline]
    pub(crate) fn has_only_closed(&self, compiled: &CompiledPool, realm: RealmId, inside: u32) -> bool {
        if compiled.one_to_one {
            let own = self.static_mappings.own_address(realm, inside).and_then(|own| self.address_index(own.into()));
            return own.is_some_and(|own| self.closed(own).is_some());
        }
        if compiled.slice_ports == 0 {
            return compiled.count == 0 && self.has_members(compiled.id);
        }
        let slice = self.formula(compiled.id).and_then(|formula| formula.slice_of(inside));
        slice.is_some_and(|slice| self.closed(self.member(compiled, slice.address)).is_some())
    }

    #[cold]
    fn has_members(&self, pool: PoolId) -> bool {
        self.pool(pool).is_some_and(|pool| !pool.addresses.is_empty())
    }

    /// True if an address offers this port or uses it for a configured endpoint, in use or not.
    pub(crate) fn offers(&self, index: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let Some(slot) = self.slot(index).filter(|slot| slot.closed.is_none()) else { return false };
        let Some(pool) = self.pool(slot.pool) else { return false };
        let is_offered = protocol == Protocol::Icmp && port != 0
            || (pool.port_min..=pool.port_max).contains(&port) && !pool.reserved_ports.contains(&port);
        let address = slot.address.to_bits();
        let is_forwarded = || self.static_mappings.is_forwarded(address, protocol, port);
        pool.one_to_one || is_offered || is_forwarded() || self.balance.find(address, protocol, port).is_some()
    }

    /// False if the configuration gives the port to another internal endpoint.
    pub(crate) fn may_have(&self, index: AddressIndex, protocol: Protocol, port: u16, internal: &StaticKey) -> bool {
        let external = Endpoint { address: self.address(index), port };
        if self.balance.find(external.address.to_bits(), protocol, port).is_some() {
            // Its sessions are flows.
            return false;
        }
        if let Some(one) = self.static_of_external(external, protocol) {
            return (one.realm, one.host, one.internal_port) == (internal.realm, internal.host, internal.port);
        }
        match (self.slice_owner(index, port), internal.host) {
            (Some(Owner::Subscriber(_)), InsideHost::Ipv4(address)) => {
                self.is_by_formula(index, port, internal.realm, address)
            }
            (Some(Owner::Subscriber(_)), _) => false,
            (Some(Owner::Nobody | Owner::Outside), _) => false,
            (Some(Owner::Dynamic) | None, _) => true,
        }
    }

    /// True if a formula gives the port to this inside address; other realms may have the same
    /// address.
    pub(crate) fn is_by_formula(&self, index: AddressIndex, port: u16, realm: RealmId, inside: Ipv4Addr) -> bool {
        let is_served = || self.pool(self.pool_of(index)).is_some_and(|pool| pool.serves(realm));
        self.slice_owner(index, port) == Some(Owner::Subscriber(inside)) && is_served()
    }

    pub(crate) fn specs(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.ports())
    }

    /// By place, the ports that are offered after the end of all removed forwards.
    pub(crate) fn specs_afterwards(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.led_ports())
    }

    /// Call it when all workers use this snapshot.
    pub fn settle(&self) {
        self.ports.forget_full_addresses();
        self.is_settled.store(true, Ordering::Release);
    }

    /// Clears the hints about addresses without free blocks, which may be for another size or
    /// range.
    pub fn forget_full_addresses(&self) {
        self.ports.forget_full_addresses();
    }

    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    pub(crate) fn rehashes_sessions(&self) -> bool {
        self.rehashes_sessions
    }

    #[inline]
    pub(crate) fn has_deadlines(&self) -> bool {
        self.has_deadlines
    }

    pub(crate) fn deadline(&self, address: u32) -> Option<Instant> {
        self.closed(self.local.pool_address(address)?)?.ends
    }

    /// Ports of one address held down; included in [`Shared::ports_used`].
    pub fn ports_held_down(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.held_down(index, protocol)
    }

    /// Ports of one address in use or held down.
    pub fn ports_used(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.used(index, protocol)
    }

    /// External ports one address can give out.
    pub fn ports_available(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.available(index, protocol)
    }

    /// Ports that subscribers can get. With blocks and slices this limits query identifiers,
    /// although the address offers all of them.
    pub fn ports_obtainable(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let compiled = self.compiled_pool(index);
        let Some(pool) =
            self.pool(compiled.id).filter(|_| protocol == Protocol::Icmp && !compiled.gives_single_ports())
        else {
            return self.ports_available(index, protocol);
        };
        let range = PortRange { address: index, first: pool.port_min, last: pool.port_max };
        match pool.allocation {
            Allocation::Blocks(blocks) => self.ports.available_in_blocks(&range, blocks.size, protocol),
            _ => self.ports.available_within(&range, protocol),
        }
    }

    /// [`Shared::ports_obtainable`], and ports in use, held down or leased but no longer offered.
    pub fn ports_there(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let compiled = self.compiled_pool(index);
        let pool = self.pool(compiled.id).filter(|_| protocol == Protocol::Icmp && !compiled.gives_single_ports());
        let left = match pool {
            Some(pool) => {
                let range = PortRange { address: index, first: pool.port_min, last: pool.port_max };
                self.ports.busy_outside(&range, protocol)
            }
            None => self.ports.used_of_withheld(index, protocol),
        };
        self.ports_obtainable(index, protocol).saturating_add(left)
    }

    /// Subscribers paired with one address now.
    pub fn paired_subscribers(&self, index: AddressIndex) -> u32 {
        self.ports.paired_subscribers(index)
    }

    /// The static mapping of an external endpoint.
    pub fn static_of_external(&self, external: Endpoint, protocol: Protocol) -> Option<StaticView> {
        self.static_mappings.view_of_external(external, protocol)
    }

    /// The static mapping of an internal endpoint.
    pub fn static_of_internal(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Option<StaticView> {
        let key = StaticKey { realm, protocol, host: internal.address.into(), port: internal.port };
        self.static_mappings.view_of_internal(&key)
    }

    /// The owner of an external endpoint, for steering between workers.
    #[inline]
    pub fn owner(&self, index: AddressIndex, protocol: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        self.ports.lookup(index, protocol, port)
    }

    /// Like [`Shared::owner`]; for a shared endpoint, the worker whose flow has this remote
    /// endpoint.
    #[inline]
    pub(crate) fn owner_towards(&self, index: AddressIndex, key: &OutsideKey) -> Option<(WorkerId, MappingIndex)> {
        match self.ports.lookup(index, key.protocol, key.external.1) {
            Some((home, MappingIndex::SHARED)) => {
                Some((self.worker_of_flow(key).unwrap_or(home), MappingIndex::SHARED))
            }
            owner => owner,
        }
    }

    fn worker_of_flow(&self, key: &OutsideKey) -> Option<WorkerId> {
        self.between_workers.as_ref()?.claims.worker_of(key)
    }

    /// False if another flow has this outside five-tuple.
    pub(crate) fn claim(&self, key: &OutsideKey, worker: WorkerId) -> bool {
        self.between_workers.as_ref().is_none_or(|between_workers| between_workers.claims.claim(key, worker))
    }

    /// Always false with one worker, whose own tables are complete.
    pub(crate) fn is_claimed(&self, key: &OutsideKey) -> bool {
        self.worker_of_flow(key).is_some()
    }

    pub(crate) fn release(&self, key: &OutsideKey, worker: WorkerId) {
        if let Some(between_workers) = &self.between_workers {
            between_workers.claims.release(key, worker);
        }
    }

    #[inline(always)]
    pub(crate) fn compiled_pool(&self, index: AddressIndex) -> &CompiledPool {
        &self.pools[usize::from(self.compiled_of[index.index()])]
    }

    /// The formula of a deterministic pool.
    pub fn formula(&self, pool: PoolId) -> Option<&Formula> {
        self.formulas.get(pool.index())?.as_ref()
    }

    /// The lease that has an external port, if any.
    pub fn lease_of(&self, index: AddressIndex, port: u16) -> Option<Lease> {
        self.ports.lease_of(index, port)
    }

    /// The leased blocks of one address, in order. Not for the packet path.
    pub fn leases_on(&self, index: AddressIndex) -> impl Iterator<Item = Lease> + '_ {
        self.ports.leases_on(index)
    }

    /// True if the pool's formula excludes this network or broadcast address.
    pub fn is_nobody_by_formula(&self, pool: PoolId, inside: Ipv4Addr) -> bool {
        self.formula(pool).is_some_and(|formula| formula.slice_of(inside.to_bits()).is_none())
    }

    /// A subscriber's slice and blocks, on its paired address or on all of the pool. Not for the
    /// packet path.
    pub fn own_ports(&self, pool: PoolId, realm: RealmId, inside: Ipv4Addr, paired: Option<Ipv4Addr>) -> Vec<OwnPorts> {
        let Some(compiled) = self.pools.get(pool.index()) else { return Vec::new() };
        let slice = self.formula(pool).and_then(|formula| formula.slice_of(inside.to_bits()));
        let mut found: Vec<OwnPorts> = Vec::new();
        found.extend(slice.map(|slice| {
            let range =
                PortRange { address: self.member(compiled, slice.address), first: slice.first, last: slice.last };
            self.own_range(&range, None)
        }));
        let addresses = match paired.and_then(|address| self.address_index(address)) {
            Some(address) => vec![address],
            None if slice.is_none() => self.choices(compiled).to_vec(),
            None => Vec::new(),
        };
        for address in addresses {
            let leases = self.ports.leases_on(address);
            let mine = leases.filter(|lease| lease.holder.realm == realm && lease.holder.address == inside.to_bits());
            found.extend(mine.map(|lease| self.own_lease(&lease)));
        }
        found
    }

    /// The ports of a leased block. Not for the packet path.
    pub fn own_lease(&self, lease: &Lease) -> OwnPorts {
        self.own_range(&PortRange::of_block(lease.block), Some(lease.since_s))
    }

    fn own_range(&self, range: &PortRange, leased_s: Option<u32>) -> OwnPorts {
        OwnPorts {
            address: self.address(range.address),
            first: range.first,
            last: range.last,
            leased_s,
            used: Protocol::ALL.map(|protocol| self.ports.used_within(range, protocol)),
        }
    }

    /// Ports of one address in leased blocks.
    pub fn ports_leased(&self, index: AddressIndex) -> u32 {
        self.ports.ports_leased(index)
    }

    /// Ports of unleased blocks that nobody can lease, because other ports of the block are in use
    /// singly.
    pub fn ports_unleasable(&self, index: AddressIndex) -> u32 {
        let Some((range, size)) = self.range_of_blocks(index) else { return 0 };
        self.ports.ports_unleasable(&range, size)
    }

    /// The port's block, if single ports keep it from being leased.
    pub fn torn_block(&self, index: AddressIndex, port: u16) -> Option<TornBlock> {
        let (range, size) = self.range_of_blocks(index)?;
        self.ports.torn_block(&range, size, port)
    }

    fn range_of_blocks(&self, index: AddressIndex) -> Option<(PortRange, BlockSize)> {
        let blocks = self.compiled_pool(index).blocks?;
        Some((PortRange { address: index, first: blocks.first, last: blocks.last }, blocks.size))
    }

    /// The owner by formula. Mappings may be left on an address that was removed from the formula.
    pub fn slice_owner(&self, index: AddressIndex, port: u16) -> Option<Owner> {
        let compiled = self.compiled_pool(index);
        let formula = self.formula(compiled.id)?;
        Some(formula.owner_of((*self.position_of.get(index.index())?)?, port))
    }

    /// The pool that serves an inside address.
    pub fn pool_for(&self, realm: RealmId, inside: Ipv4Addr) -> Option<PoolId> {
        self.pool_routes.get(realm.index())?.lookup(inside.to_bits()).map(|pool| PoolId(pool as u16))
    }

    /// All next hops, in the order of [`NextHopId`]. Of live routes also unused ones, which are on
    /// no interface.
    pub fn next_hops(&self) -> impl Iterator<Item = NextHopView> + '_ {
        let view = |hop: &NextHop| NextHopView {
            interface: hop.interface,
            gateway: (hop.gateway != 0).then(|| Ipv4Addr::from_bits(hop.gateway)),
            is_ipv6: hop.id >= self.transition.first_hop,
        };
        let unused = NextHopView { interface: InterfaceId(u16::MAX), gateway: None, is_ipv6: false };
        let slots = if self.live.is_some() { HOPS_MAX as u32 } else { 0 };
        let live = (0..slots).map(move |slot| self.live_slot(slot).map_or(unused, |hop| view(&hop)));
        let to_hosts = self.host_hops.iter().map(move |hop| hop.as_ref().map_or(unused, view));
        self.next_hops.iter().map(view).chain(live).chain(to_hosts)
    }

    pub(crate) fn interface_of(&self, hop: NextHopId) -> Option<InterfaceId> {
        let number = hop.index();
        let to_host = || self.host_hops.get(number.checked_sub(HOPS_MAX)?).copied().flatten();
        let live = || u32::try_from(number).ok().and_then(|slot| self.live_slot(slot));
        self.next_hops.get(number).copied().or_else(live).or_else(to_host).map(|hop| hop.interface)
    }

    /// The routes that change while packets are looked up, if there are any.
    pub fn live_routes(&self) -> Option<&Arc<LiveRoutes>> {
        self.live.as_ref()
    }

    /// The kernel takes packets to Natrix itself from this interface.
    #[inline]
    pub fn has_kernel(&self, interface: InterfaceId) -> bool {
        self.has_kernel.get(interface.index()).copied().unwrap_or(false)
    }

    #[inline(always)]
    fn hop_of(&self, value: u32, subscriber: u32) -> Option<NextHop> {
        match self.next_hops.get(value as usize) {
            Some(hop) => Some(*hop),
            None => self.live_hop(value, subscriber),
        }
    }

    /// Of several next hops, a subscriber keeps one.
    #[inline(never)]
    fn live_hop(&self, value: u32, subscriber: u32) -> Option<NextHop> {
        if let Some(hop) = value.checked_sub(HOST_HOPS).and_then(|number| self.host_hops.get(number as usize)) {
            return *hop;
        }
        let (slot, hop) = self.live.as_ref()?.hop(value, subscriber)?;
        Some(NextHop::of_slot(slot, hop))
    }

    fn live_slot(&self, slot: u32) -> Option<NextHop> {
        let hop = self.live.as_ref()?.slot(slot)?;
        Some(NextHop::of_slot(slot, hop))
    }

    #[inline]
    pub(crate) fn route_out(&self, destination: u32, subscriber: u32) -> Option<NextHop> {
        self.outside_routes.lookup(destination).and_then(|value| self.hop_of(value, subscriber))
    }

    /// The destination is the subscriber.
    #[inline]
    pub(crate) fn route_in(&self, realm: RealmId, destination: u32) -> Option<NextHop> {
        let routes = self.inside_routes.get(realm.index())?;
        routes.lookup(destination).and_then(|value| self.hop_of(value, destination))
    }

    /// What a coarse entry leads to ([`RouteCache::set_ways`]).
    pub(crate) fn way_of(&self, leaf: u8) -> Option<Departure> {
        let value = routes::value_of(leaf)?;
        // A coarse entry has no room for groups and hosts of live routes.
        self.next_hops.get(value as usize).copied().or_else(|| self.live_slot(value)).map(Departure::from)
    }

    /// Like [`Shared::route_out`], for established packets. None if a packet of this length does
    /// not fit.
    #[inline(always)]
    pub(crate) fn steady_out(
        &self,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        self.steady(&self.outside_routes, cache, destination, subscriber, length)
    }

    /// Like [`Shared::route_in`], for established packets. None if a packet of this length does not
    /// fit.
    #[inline(always)]
    pub(crate) fn steady_in(
        &self,
        cache: &mut RouteCache,
        realm: RealmId,
        destination: u32,
        length: u16,
    ) -> Option<Egress> {
        let routes = self.inside_routes.get(realm.index())?;
        self.steady(routes, cache, destination, destination, length)
    }

    #[inline(always)]
    fn steady(
        &self,
        routes: &RouteTable,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        let leaf = routes.leaf(destination);
        let way = cache.way(leaf);
        if length <= way.mtu {
            return Some(way.egress);
        }
        if leaf != CUT {
            return None;
        }
        if let Some(leaf) = routes.fine_leaf(destination) {
            let way = cache.way(leaf);
            if length <= way.mtu {
                return Some(way.egress);
            }
            if leaf != 0 {
                return None;
            }
        }
        self.steady_by_address(routes, cache, destination, subscriber, length)
    }

    /// Like [`Shared::steady_out`], where no single byte has the answer. Not inlined, because that
    /// would take registers from all packets.
    #[inline(never)]
    fn steady_by_address(
        &self,
        routes: &RouteTable,
        cache: &mut RouteCache,
        destination: u32,
        subscriber: u32,
        length: u16,
    ) -> Option<Egress> {
        let known = cache.get(routes.number(), destination);
        if let Some(egress) = known.and_then(|way| way.of(length)) {
            return Some(egress);
        }
        let value = match known {
            Some(known) => known.egress.next_hop.0,
            None => routes.find(destination)?,
        };
        let hop = self.hop_of(value, subscriber)?;
        let is_group = LiveRoutes::is_group(value);
        // Next hops to IPv6 hosts belong to the snapshot, which may change.
        if known.is_none() && (value < HOST_HOPS || is_group) {
            let known = if is_group { Departure::undecided(value) } else { hop.into() };
            cache.put(routes.number(), destination, known);
        }
        Departure::from(hop).of(length)
    }

    /// `subscriber` chooses among several next hops outside.
    pub(crate) fn route(&self, towards: Facing, destination: u32, subscriber: u32) -> Option<NextHop> {
        match towards.side {
            Side::Inside => self.route_in(towards.realm, destination),
            Side::Outside => self.route_out(destination, subscriber),
        }
    }

    /// The hop to hosts on the link of an interface.
    pub(crate) fn on_link(&self, interface: InterfaceId) -> Option<NextHop> {
        let is_meant =
            |hop: &NextHop| hop.interface == interface && hop.gateway == 0 && hop.id < self.transition.first_hop;
        let slots = if self.live.is_some() { HOPS_MAX as u32 } else { 0 };
        let live = (0..slots).filter_map(|slot| self.live_slot(slot));
        self.next_hops.iter().copied().chain(live).find(is_meant)
    }

    /// True if a packet that came in by this interface goes to an IPv4 host by NAT64, ends a
    /// softwire here, or is a request for port control.
    #[inline]
    pub fn takes_ipv6(&self, ingress: InterfaceId, packet: &[u8]) -> bool {
        if self.transition.is_off() || self.side(ingress) == Side::Outside {
            return false;
        }
        let Some(header) = packet.first_chunk::<{ wire::ipv6::HEADER_LENGTH }>() else { return false };
        let view = wire::ipv6::Ipv6::new_unchecked(header.as_slice());
        match self.transition.way_of(self.realm_of(ingress), view.destination()) {
            None => self.is_request6(ingress, packet),
            Some(Way::Nat64(_)) => true,
            // Neighbours and pings of the address itself are for Natrix as a host.
            Some(Way::Softwire(_)) => {
                view.next_header() != wire::ipv6::PROTOCOL_ICMP6
                    || packet.get(wire::ipv6::HEADER_LENGTH).is_some_and(|icmp_type| wire::icmp6::is_error(*icmp_type))
            }
        }
    }

    /// True for a packet to the port-control server at one of Natrix's IPv6 addresses in the realm
    /// of this inside interface. Without NAT64 no IPv6 host has anything to ask there.
    pub(crate) fn is_request6(&self, ingress: InterfaceId, packet: &[u8]) -> bool {
        const DESTINATION_PORT: usize = wire::ipv6::HEADER_LENGTH + 2;
        let realm = self.realm_of(ingress);
        let view = wire::ipv6::Ipv6::new_unchecked(packet);
        let is_to_server = packet.get(DESTINATION_PORT..).and_then(<[u8]>::first_chunk)
            == Some(&pcp::SERVER_PORT.to_be_bytes())
            && view.next_header() == wire::ipv4::PROTOCOL_UDP;
        let settings = self.settings();
        if !is_to_server || !settings.port_control.pcp || self.transition.way_of_grants(realm).is_none() {
            return false;
        }
        let to = view.destination();
        settings
            .ipv6
            .addresses
            .iter()
            .any(|own| own.address.to_bits() == to && self.facing(own.interface) == Facing::inside(realm))
    }

    /// The worker of an IPv6 host: that of its subscriber.
    #[inline]
    pub fn worker_of_host(&self, address: u128) -> WorkerId {
        let prefix = subscriber_prefix(address, self.transition.prefix_length);
        self.spread((prefix >> 64) as u64 ^ (prefix as u64).rotate_left(32))
    }

    /// The worker of an inside host that the configuration names.
    #[inline]
    pub(crate) fn worker_of_inside(&self, host: &InsideHost) -> WorkerId {
        match host {
            InsideHost::Ipv4(address) => self.worker_of_subscriber(address.to_bits()),
            InsideHost::Ipv6(address) | InsideHost::BehindB4 { b4: address, .. } => {
                self.worker_of_host(address.to_bits())
            }
        }
    }

    /// True if an address of this realm has a route inside.
    pub fn leads_inside(&self, realm: RealmId, address: Ipv4Addr) -> bool {
        self.route_in(realm, address.to_bits()).is_some()
    }

    /// An address of another inside realm is not visible.
    #[inline]
    pub(crate) fn as_seen(&self, from: Facing, address: u32, found: Local) -> Option<Local> {
        if self.inside_routes.len() == 1 { Some(found) } else { self.local_among_realms(from, address, found) }
    }

    #[cold]
    fn local_among_realms(&self, from: Facing, address: u32, found: Local) -> Option<Local> {
        let is_seen = |interface: &&Interface| interface.side == Side::Outside || interface.facing() == from;
        let seen = || (0..).map(InterfaceId).zip(&self.settings.interfaces).filter(|(_, interface)| is_seen(interface));
        let is_own = |interface: &Interface| interface.addresses.iter().any(|own| own.address.to_bits() == address);
        let own = seen().find(|(_, interface)| is_own(interface)).map(|(id, _)| id);
        match (own, found.pool_address()) {
            (Some(id), Some(index)) => Some(Local::OwnAndPool(id, index)),
            (Some(id), None) => Some(Local::Own(id)),
            (None, Some(index)) => Some(Local::Pool(index)),
            (None, None) => {
                let is_broadcast = |interface: &Interface| {
                    let prefixes = interface.addresses.iter().filter(|own| own.prefix_length < 31);
                    let prefixes = prefixes.filter_map(|own| Prefix::new(own.address, own.prefix_length));
                    prefixes.into_iter().any(|prefix| prefix.last().to_bits() == address)
                };
                seen().find(|(_, interface)| is_broadcast(interface)).map(|(id, _)| Local::Broadcast(id))
            }
        }
    }

    #[inline]
    pub(crate) fn may_hairpin(&self, from: RealmId, to: RealmId) -> bool {
        from == to || self.settings.hairpin_between_realms
    }

    pub(crate) fn is_inside(&self, address: u32) -> bool {
        self.inside_routes.iter().any(|routes| routes.lookup(address).is_some()) && self.route_out(address, 0).is_none()
    }

    #[inline]
    pub(crate) fn facing(&self, interface: InterfaceId) -> Facing {
        self.facings.get(interface.index()).copied().unwrap_or(Facing::OUTSIDE)
    }

    #[inline]
    pub(crate) fn side(&self, interface: InterfaceId) -> Side {
        self.facing(interface).side
    }

    /// The realm an interface faces; 0 for the outside.
    #[inline]
    pub fn realm_of(&self, interface: InterfaceId) -> RealmId {
        self.facing(interface).realm
    }

    pub(crate) fn own_address_towards(&self, towards: Facing, destination: u32) -> Option<u32> {
        if is_host_number(destination) {
            return Some(if destination < SOFTWIRE_HOSTS_FIRST { DUMMY } else { AFTR_INSIDE });
        }
        let hop = self.route(towards, destination, destination)?;
        let interface = self.settings.interfaces.get(hop.interface.index())?;
        let on_link = interface.addresses.iter().find(|own| {
            Prefix::new(own.address, own.prefix_length)
                .is_some_and(|prefix| prefix.contains(Ipv4Addr::from_bits(hop.neighbour(destination))))
        });
        on_link.or(interface.addresses.first()).map(|own| own.address.to_bits())
    }

    pub(crate) fn any_own_address(&self, towards: Facing) -> Option<u32> {
        let interfaces = self.settings.interfaces.iter().filter(|interface| interface.facing() == towards);
        interfaces.flat_map(|interface| &interface.addresses).map(|own| own.address.to_bits()).next()
    }

    pub(crate) fn redirection(&self, id: RedirectionId) -> Option<&Redirection> {
        self.settings.redirections.get(id.0 as usize)
    }

    /// The ruling for a packet from inside that opens a mapping or a session.
    #[inline]
    pub fn rule_for(&self, key: &RuleKey) -> Ruling {
        self.rules.ruling(key)
    }

    /// The rules and their counters.
    pub fn rules(&self) -> &RuleBook {
        &self.rules
    }

    /// The filters and their counters.
    pub fn filters(&self) -> &FilterBook {
        &self.filters
    }

    /// Number of static forwards and one-to-one pools.
    pub fn static_count(&self) -> usize {
        static_count(&self.settings)
    }

    /// A static entry, forwards first, and the mappings it made.
    pub fn static_at(&self, place: usize) -> Option<(Static<'_>, u64)> {
        Some((static_at(&self.settings, place)?, self.static_hits.of(RuleId(place as u32))))
    }

    /// Adds what `before` counted while workers switched. Call it when no worker uses `before` any
    /// more, and not on the thread of a worker.
    pub fn settle_hits(&self, before: &Shared) {
        self.rules.settle_hits(&before.rules);
        self.passes.settle_hits(&before.passes);
        self.filters.settle_hits(&before.filters);
        self.pool_counts.carry(&before.pool_counts);
        carry_hits((&self.settings, &self.static_hits), (&before.settings, &before.static_hits));
    }

    pub(crate) fn count_lead(&self, worker: WorkerId, group: Option<&Group>) {
        if let Some(Origin::Forward(position)) = group.and_then(|group| group.origin) {
            self.static_hits.count(worker, RuleId(position));
        }
    }

    /// What an external endpoint with several targets leads to, or led to as long as sessions are
    /// left.
    pub fn balanced(&self, external: Endpoint, protocol: Protocol) -> Option<BalancedView> {
        let group = self.balance.find(external.address.to_bits(), protocol, external.port)?;
        let generation = group.generations().last()?;
        let targets = (0..generation.targets().len()).filter_map(|position| {
            let aim = generation.aim(position, external.port)?;
            Some((Endpoint::new(aim.address.into(), aim.port), generation.targets()[position].weight))
        });
        let targets = if group.current().is_some() { targets.collect() } else { Vec::new() };
        Some(BalancedView { protocol, realm: generation.realm(), external, targets })
    }

    /// External endpoints that lead to this internal one among others.
    pub fn balanced_to(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Vec<BalancedView> {
        let forwards = self.settings.balanced_forwards.iter().filter(|forward| forward.protocol == protocol);
        let externals = forwards.filter_map(|forward| forward.external_of(realm, internal));
        externals.filter_map(|external| self.balanced(external, protocol)).collect()
    }

    /// Workers that may have the session of this remote endpoint, in the order in which its packets
    /// visit them.
    pub fn balanced_workers(&self, external: Endpoint, protocol: Protocol, remote: Endpoint) -> Vec<WorkerId> {
        let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) else {
            return Vec::new();
        };
        let remote_outside = (remote.address.to_bits(), remote.port);
        let aims = group.generations().filter_map(|generation| generation.choose(external.port, remote_outside));
        aims.map(|aim| self.worker_of_subscriber(aim.address)).collect()
    }

    /// Sessions by target of a balanced forward, in the order of the settings.
    pub fn balanced_hits(&self, position: usize) -> Vec<u64> {
        self.balance.hits(&self.settings, position)
    }

    /// Rules that pass other protocols.
    pub fn passes(&self) -> &RuleBook {
        &self.passes
    }
}

impl core::fmt::Debug for Shared {
    /// Shows only the generation, because everything would fill pages.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl CompiledPool {
    /// For an address not known here: allocates and decides nothing.
    fn of_elsewhere() -> CompiledPool {
        // One-to-one, so that queries are looked up like everything else.
        CompiledPool {
            is_closed: true,
            one_to_one: true,
            ..CompiledPool::new(&Pool::default(), PoolId::default(), None)
        }
    }

    fn new(pool: &Pool, id: PoolId, formula: Option<&Formula>) -> CompiledPool {
        let blocks = |blocks: Blocks, (first, last)| CompiledBlocks {
            size: blocks.size,
            per_subscriber_max: blocks.per_subscriber_max,
            idle: blocks.idle,
            first,
            last,
        };
        CompiledPool {
            filtering: pool.filtering,
            // A one-to-one address is for all mappings of its subscriber.
            pooling: if pool.one_to_one { Pooling::Paired } else { pool.pooling },
            one_to_one: pool.one_to_one,
            parity: pool.parity,
            reuse_delay: pool.reuse_delay,
            reuse_at_once: pool.reuse_at_once,
            shared_ports_min: pool.shared_ports_min,
            has_low_ports: pool.port_min <= 1023,
            has_high_ports: pool.port_max >= 1024,
            id,
            is_closed: false,
            first: 0,
            count: 0,
            first_member: 0,
            selection: pool.selection,
            blocks: match pool.allocation {
                Allocation::Ports => None,
                Allocation::Blocks(all) => Some(blocks(all, (pool.port_min, pool.port_max))),
                Allocation::Deterministic { overflow, .. } => {
                    formula.and_then(Formula::dynamic).map(|range| blocks(overflow, range))
                }
            },
            // A slice has fewer ports than 65,536.
            slice_ports: formula.map_or(0, |formula| formula.slice_ports() as u16),
            for_guarantees: [0; Protocol::COUNT],
        }
    }

    #[inline]
    pub(crate) fn has_guarantees(&self) -> bool {
        self.for_guarantees != [0; Protocol::COUNT]
    }

    #[inline]
    pub(crate) fn gives_single_ports(&self) -> bool {
        self.blocks.is_none() && self.slice_ports == 0
    }
}

fn passes(settings: &Settings, workers: usize, before: Option<&RuleBook>) -> Result<RuleBook, BuildError> {
    let rule = |rule: &PassRule| Rule { matches: rule.matches(), action: RuleAction::NoTranslation };
    let rules: Vec<Rule> = settings.pass_rules.iter().map(rule).collect();
    Ok(match before {
        Some(before) => RuleBook::successor(&rules, workers, before)?,
        None => RuleBook::new(&rules, workers)?,
    })
}

pub(crate) struct RouteLists {
    pub(crate) outside: Vec<(Prefix, u32)>,
    pub(crate) inside: Vec<Vec<(Prefix, u32)>>,
}

impl RouteLists {
    fn add(&mut self, towards: Facing, prefix: Prefix, hop: NextHopId) {
        let list = match towards.side {
            Side::Outside => Some(&mut self.outside),
            Side::Inside => self.inside.get_mut(towards.realm.index()),
        };
        if let Some(list) = list {
            list.push((prefix, hop.0));
        }
    }
}

#[derive(Default)]
struct NextHops {
    list: Vec<NextHop>,
    known: HashMap<(InterfaceId, u32), NextHopId>,
}

impl NextHops {
    fn add(&mut self, interface: InterfaceId, gateway: u32, mtu: u16) -> NextHopId {
        let next = NextHopId(self.list.len() as u32);
        let id = *self.known.entry((interface, gateway)).or_insert(next);
        if id == next {
            self.list.push(NextHop { id, gateway, interface, mtu });
        }
        id
    }
}

pub(crate) fn compile_routes(settings: &Settings) -> (RouteLists, Vec<NextHop>) {
    let mut next_hops = NextHops::default();
    let mut lists = RouteLists { outside: Vec::new(), inside: vec![Vec::new(); settings.realms()] };
    // RFC 6598 §4: packets to inside addresses "MUST NOT be forwarded" outside. So the outside
    // table has a hole for each inside route, unless an outside one is as long or longer.
    let inside = |id: InterfaceId| settings.interfaces.get(id.index()).filter(|found| found.side == Side::Inside);
    let connected = settings.interfaces.iter().filter(|interface| interface.side == Side::Inside);
    let connected = connected
        .flat_map(|interface| &interface.addresses)
        .filter_map(|own| Prefix::new(own.address, own.prefix_length));
    let routed = settings.routes.iter().filter(|route| inside(route.interface).is_some()).map(|route| route.prefix);
    lists.outside.extend(connected.chain(routed).map(|prefix| (prefix, HOLE)));
    for (position, interface) in settings.interfaces.iter().enumerate() {
        for own in &interface.addresses {
            let Some(prefix) = Prefix::new(own.address, own.prefix_length) else { continue };
            let hop = next_hops.add(InterfaceId(position as u16), 0, interface.mtu);
            lists.add(interface.facing(), prefix, hop);
        }
    }
    for route in &settings.routes {
        let Some(interface) = settings.interfaces.get(route.interface.index()) else { continue };
        let hop = next_hops.add(route.interface, route.next_hop.to_bits(), interface.mtu);
        lists.add(interface.facing(), route.prefix, hop);
    }
    (lists, next_hops.list)
}

/// Routes from each realm to its IPv6 hosts.
fn compile_transition(settings: &Settings, lists: &mut RouteLists, hops: &mut Vec<NextHop>) -> Transition {
    let transition = Transition::new(settings, NextHopId(hops.len() as u32));
    for realm in (0..settings.realms() as u16).map(RealmId) {
        let Some(edge) = transition.realm(realm) else { continue };
        for (prefix, mtu) in to_hosts(edge) {
            let id = NextHopId(hops.len() as u32);
            hops.push(NextHop { id, gateway: 0, interface: edge.interface, mtu });
            lists.add(Facing::inside(realm), prefix, id);
        }
    }
    transition
}

/// The same if routes come from the kernel: its tables have fixed values for these hosts, two for
/// each realm.
fn compile_host_hops(settings: &Settings, hops: &mut Vec<Option<NextHop>>) -> Transition {
    let transition = Transition::new(settings, NextHopId(HOST_HOPS));
    for realm in (0..settings.realms() as u16).map(RealmId) {
        let ways = transition.realm(realm).map(|edge| to_hosts(edge).map(|(_, mtu)| (edge.interface, mtu)));
        for number in 0..2 {
            let id = NextHopId(HOST_HOPS + hops.len() as u32);
            let hop = ways.and_then(|ways| ways.get(number).copied());
            hops.push(hop.map(|(interface, mtu)| NextHop { id, gateway: 0, interface, mtu }));
        }
    }
    transition
}

/// Numbers of hosts, and the MTU towards them.
fn to_hosts(edge: &RealmEdge) -> [(Prefix, u16); 2] {
    // The softwire packet is fragmented, not the IPv4 packet inside (RFC 6333 §5.3).
    let mtu4 = edge.mtu.saturating_sub((wire::ipv6::HEADER_LENGTH - wire::ipv4::HEADER_LENGTH_MIN) as u16);
    [(Prefix::HOSTS, mtu4), (Prefix::SOFTWIRE_HOSTS, u16::MAX)]
}

fn no_room(NoRoom { needed, removed }: NoRoom, places: u64) -> BuildError {
    BuildError::NoRoomForAddresses { needed: needed as u64, removed: removed as u64, places }
}

fn too_many_lists(TooManyGenerations { protocol, external }: TooManyGenerations) -> BuildError {
    BuildError::TooManyTargetLists { protocol, external, limit: TARGET_GENERATIONS_MAX as u64 }
}

fn check_ranges(settings: &Settings) -> Result<(), BuildError> {
    for pool in &settings.pools {
        in_range("port_min", u64::from(pool.port_min), 1, u64::from(pool.port_max))?;
    }
    in_range("classes", settings.classes.len() as u64, 0, u64::from(u16::MAX) - 1)?;
    in_range("realms", settings.realms() as u64, 1, RealmId::COUNT_MAX as u64)
}

fn in_range(what: &'static str, value: u64, minimum: u64, maximum: u64) -> Result<(), BuildError> {
    if value < minimum || value > maximum {
        return Err(BuildError::OutOfRange { what, value, minimum, maximum });
    }
    Ok(())
}
