//! Settings become a snapshot: every check and allocation that can fail.

use core::net::Ipv4Addr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use mem::ArenaError;

use super::CompiledPool;
use super::NextHop;
use super::Shared;
use super::compile_routes;
use super::next_hops::compile_host_hops;
use super::next_hops::compile_transition;
use crate::external::address_slots::NoRoom;
use crate::external::address_slots::Slot;
use crate::external::address_slots::Slots;
use crate::external::between_workers::BetweenWorkers;
use crate::external::deterministic::Formula;
use crate::external::deterministic::FormulaError;
use crate::external::guaranteed_ports::reservations;
use crate::external::load_balancing::Balance;
use crate::external::load_balancing::TARGET_GENERATIONS_MAX;
use crate::external::load_balancing::TooManyGenerations;
use crate::external::ports::PortTable;
use crate::external::static_mapping::StaticMappingTable;
use crate::external::static_mapping::hits_after;
use crate::policy::class::Classes;
use crate::policy::gateways::Gateways;
use crate::policy::rules::FilterBook;
use crate::policy::rules::RuleBook;
use crate::routes;
use crate::routes::RouteTable;
use crate::routes::live::LiveRoutes;
use crate::settings::Allocation;
use crate::settings::Interface;
use crate::settings::PassRule;
use crate::settings::Pooling;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::settings::Settings;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::orphaned::Orphans;
use crate::snapshot::pool_counts::PoolCounts;
use crate::snapshot::pool_names::PoolNames;
use crate::snapshot::pressure::Pressure;
use crate::snapshot::removed_forwards::RemovedForwards;
use crate::snapshot::transition::Transition;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::InterfaceId;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;

/// Why an engine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A table could not be allocated.
    #[error("table \"{table}\": {source}")]
    Memory {
        /// Its name.
        table: &'static str,
        /// What went wrong.
        source: ArenaError,
    },
    /// The routes or subscriber prefixes cannot be compiled.
    #[error(transparent)]
    Routes(#[from] routes::RouteError),
    /// `config` refuses such files earlier.
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
    #[error("{protocol} {external}: has sessions of {limit} lists of targets already, the maximum")]
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
    /// `config` refuses such files earlier.
    #[error("settings: {what} is out of range ({value}); allowed are {minimum} to {maximum}")]
    OutOfRange {
        /// Its name.
        what: &'static str,
        /// Value seen.
        value: u64,
        /// Smallest allowed.
        minimum: u64,
        /// Largest allowed.
        maximum: u64,
    },
}

/// Nodes of each live table: enough for 1 million scattered host routes, or far more as in the
/// Internet.
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

/// Pools, their addresses, and where an address is.
struct CompiledPools {
    pools: Vec<CompiledPool>,
    formulas: Vec<Option<Formula>>,
    open: Vec<AddressIndex>,
    members: Vec<AddressIndex>,
    position_of: Vec<Option<u32>>,
    compiled_of: Vec<u16>,
}

impl CompiledPools {
    fn new(settings: &Settings, slots: &Slots, ports: &PortTable) -> Result<CompiledPools, BuildError> {
        let pool_count = settings.pools.len() + slots.removed_pools.len();
        let place_of: HashMap<Ipv4Addr, AddressIndex> =
            taken_slots(slots).map(|(place, slot)| (slot.address, place)).collect();
        let mut all = CompiledPools {
            pools: Vec::with_capacity(pool_count * 2),
            formulas: Vec::with_capacity(pool_count),
            open: Vec::new(),
            members: Vec::new(),
            position_of: vec![None; slots.slots.len()],
            compiled_of: Vec::new(),
        };
        let reserved = reservations(settings)?;
        for (id, pool) in (0..).map(PoolId).zip(settings.pools.iter().chain(&slots.removed_pools)) {
            // Removed pools give out nothing.
            let formula = if id.index() < settings.pools.len() { Formula::of(pool) } else { Ok(None) };
            let formula = formula.map_err(|source| BuildError::Formula { pool: pool.name.clone(), source })?;
            let (first, first_member) = (all.open.len(), all.members.len());
            all.members.extend(pool.addresses.iter().filter_map(|address| place_of.get(address).copied()));
            for (position, place) in (0..).zip(&all.members[first_member..]) {
                all.position_of[place.index()] = Some(position);
            }
            let is_open = |place: &AddressIndex| {
                let slot = slots.slots.get(place.index()).copied().flatten();
                slot.is_some_and(|slot| slot.pool == id && slot.closed.is_none())
            };
            all.open.extend(all.members[first_member..].iter().copied().filter(is_open));
            let mut compiled = CompiledPool {
                first: first as u32,
                count: (all.open.len() - first) as u32,
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
            all.pools.push(compiled);
            all.formulas.push(formula);
        }
        // Closed addresses have a closed copy of their pool.
        all.pools.extend_from_within(..);
        for compiled in &mut all.pools[pool_count..] {
            compiled.is_closed = true;
        }
        // Other places belong to the next configuration, which a worker that uses them has adopted.
        all.pools.push(CompiledPool::of_elsewhere());
        let elsewhere = pool_count as u16 * 2;
        let compiled_of = (0..ports.places()).map(|place| match slots.slots.get(place).copied().flatten() {
            Some(slot) if slot.closed.is_none() => slot.pool.0,
            slot => slot.map_or(elsewhere, |slot| slot.pool.0 + pool_count as u16),
        });
        all.compiled_of = compiled_of.collect();
        Ok(all)
    }
}

fn taken_slots(slots: &Slots) -> impl Iterator<Item = (AddressIndex, &Slot)> {
    (0..).map(AddressIndex).zip(&slots.slots).filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
}

/// Each realm's table of the pools that serve its prefixes.
fn pool_routes(settings: &Settings) -> Result<Vec<RouteTable>, BuildError> {
    let mut pool_prefixes = vec![Vec::new(); settings.realms()];
    for (realm, prefixes) in (0..).map(RealmId).zip(&mut pool_prefixes) {
        for (position, pool) in settings.pools.iter().enumerate().filter(|(_, pool)| pool.serves(realm)) {
            prefixes.extend(pool.subscribers.iter().map(|prefix| (*prefix, position as u32)));
        }
    }
    Ok(pool_prefixes.iter().map(|list| RouteTable::new(list)).collect::<Result<_, _>>()?)
}

struct CompiledRoutes {
    outside: RouteTable,
    inside: Vec<RouteTable>,
    next_hops: Vec<NextHop>,
    host_hops: Vec<Option<NextHop>>,
    transition: Transition,
}

impl CompiledRoutes {
    fn new(settings: &Settings, live: Option<&Arc<LiveRoutes>>) -> Result<CompiledRoutes, BuildError> {
        let (mut lists, mut next_hops) = compile_routes(settings);
        let mut host_hops = Vec::new();
        let transition = match live {
            Some(_) => {
                next_hops.clear();
                compile_host_hops(settings, &mut host_hops)
            }
            None => compile_transition(settings, &mut lists, &mut next_hops),
        };
        let table = |list: &[(Prefix, u32)], number: usize| match live {
            Some(live) => Ok(RouteTable::live(live, number)),
            None => RouteTable::new(list),
        };
        let outside = table(&lists.outside, 0)?;
        let inside = lists.inside.iter().zip(1..).map(|(list, number)| table(list, number));
        Ok(CompiledRoutes { outside, inside: inside.collect::<Result<_, _>>()?, next_hops, host_hops, transition })
    }
}

impl Shared {
    pub(super) fn compile(
        settings: Settings,
        workers: usize,
        slots: Slots,
        ports: Arc<PortTable>,
        balance: Balance,
        before: Option<&Shared>,
    ) -> Result<Shared, BuildError> {
        let CompiledPools { pools, formulas, open, members, position_of, compiled_of } =
            CompiledPools::new(&settings, &slots, &ports)?;
        let external: Vec<(Ipv4Addr, AddressIndex)> =
            taken_slots(&slots).map(|(place, slot)| (slot.address, place)).collect();
        let has_deadlines =
            taken_slots(&slots).any(|(_, slot)| slot.closed.is_some_and(|closed| closed.ends.is_some()));
        let live = live_after(&settings, workers, before)?;
        let routes = CompiledRoutes::new(&settings, live.as_ref())?;
        let is_kernel = |number: usize| settings.kernel_interfaces.contains(&InterfaceId(number as u16));
        let has_kernel = (0..settings.interfaces.len()).map(is_kernel).collect();
        if settings.pools.iter().any(|pool| pool.allocation != Allocation::Ports) {
            ports.prepare_blocks().map_err(|source| BuildError::Memory { table: "port blocks", source })?;
        }
        let places_of_ports = ports.places();
        let local = LocalAddresses::new(&settings.interfaces, &external);
        let is_remote_taken = before.is_some_and(|before| local.adds_to(&before.local));
        let all_pools = settings.pools.iter().chain(&slots.removed_pools);
        let pool_names = PoolNames::new(all_pools, before.map(|before| &before.pool_names));
        Ok(Shared {
            ports,
            local: Arc::new(local),
            turns: pools.iter().map(|_| AtomicU32::new(0)).collect(),
            formulas,
            static_mappings: StaticMappingTable::new(&settings, |forward| balance.has_taken(forward)),
            balance,
            between_workers: between_workers_after(&settings, workers, places_of_ports, before)?,
            removed_forwards: RemovedForwards::default(),
            // Without a predecessor no worker can use another snapshot.
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
            generation: before.map_or(0, |before| before.adopted.load(Ordering::Relaxed).wrapping_add(1)),
            adopted: before.map_or_else(Arc::default, |before| Arc::clone(&before.adopted)),
            slots,
            pool_routes: pool_routes(&settings)?,
            outside_routes: routes.outside,
            inside_routes: routes.inside,
            next_hops: routes.next_hops,
            host_hops: routes.host_hops,
            live,
            has_kernel,
            transition: routes.transition,
            pressure: Pressure::default(),
            gateways: Gateways::new(&settings),
            classes: Classes::new(&settings.subscriber, &settings.classes, settings.realms())?,
            rules: match before {
                Some(before) => RuleBook::successor(&settings.rules, workers, &before.rules)?,
                None => RuleBook::new(&settings.rules, workers)?,
            },
            passes: passes(&settings, workers, before.map(|before| &before.passes))?,
            // A new generation: sessions are judged again.
            filters: FilterBook::new(
                &settings.filters,
                workers,
                before.map(|before| (&before.filters, is_remote_taken)),
            )?,
            facings: settings.interfaces.iter().map(Interface::facing).collect(),
            workers,
            settings,
        })
    }
}

pub(super) fn passes(settings: &Settings, workers: usize, before: Option<&RuleBook>) -> Result<RuleBook, BuildError> {
    let rule = |rule: &PassRule| Rule { matches: rule.matches(), action: RuleAction::NoTranslation };
    let rules: Vec<Rule> = settings.pass_rules.iter().map(rule).collect();
    Ok(match before {
        Some(before) => RuleBook::successor(&rules, workers, before)?,
        None => RuleBook::new(&rules, workers)?,
    })
}

pub(super) fn no_room(NoRoom { needed, removed }: NoRoom, places: u64) -> BuildError {
    BuildError::NoRoomForAddresses { needed: needed as u64, removed: removed as u64, places }
}

pub(super) fn too_many_lists(TooManyGenerations { protocol, external }: TooManyGenerations) -> BuildError {
    BuildError::TooManyTargetLists { protocol, external, limit: TARGET_GENERATIONS_MAX as u64 }
}

pub(super) fn check_ranges(settings: &Settings) -> Result<(), BuildError> {
    for pool in &settings.pools {
        in_range("port_min", u64::from(pool.port_min), 1, u64::from(pool.port_max))?;
    }
    in_range("classes", settings.classes.len() as u64, 0, u64::from(u16::MAX) - 1)?;
    in_range("realms", settings.realms() as u64, 1, RealmId::COUNT_MAX as u64)
}

pub(super) fn in_range(what: &'static str, value: u64, minimum: u64, maximum: u64) -> Result<(), BuildError> {
    if value < minimum || value > maximum {
        return Err(BuildError::OutOfRange { what, value, minimum, maximum });
    }
    Ok(())
}
