//! What all shards of an instance share: the compiled settings, and the external ports.
//!
//! Everything here but the port table is read-only. The port table is shared because it answers, with
//! one array read, which worker owns an external endpoint; its lines are written only when a mapping
//! begins or ends (see `docs/adr/0001-one-port-table.md`).

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::sync::Arc;

use mem::ArenaError;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;

use crate::addresses::Local;
use crate::addresses::LocalAddresses;
use crate::balance::Balance;
use crate::balance::ERAS_MAX;
use crate::balance::Group;
use crate::balance::Origin;
use crate::balance::TooManyEras;
use crate::blocks::BlockSize;
use crate::blocks::Lease;
use crate::class::Classes;
use crate::commons::Commons;
use crate::deterministic::Formula;
use crate::deterministic::FormulaError;
use crate::deterministic::Owner;
use crate::displaced::Displacements;
use crate::flow::OutsideKey;
use crate::leftovers::Leftovers;
use crate::mapping::InternalKey;
use crate::packet::Egress;
use crate::pool_names::PoolNames;
use crate::ports::AddressSpec;
use crate::ports::PortRange;
use crate::ports::PortTable;
use crate::pressure::Pressure;
use crate::redirection::Redirection;
use crate::redirection::RedirectionId;
use crate::reserve::reservations;
use crate::route::RouteTable;
use crate::rules::FilterBook;
use crate::rules::Hits;
use crate::rules::RuleBook;
use crate::rules::RuleId;
use crate::rules::RuleKey;
use crate::rules::Ruling;
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
use crate::slots::Closed;
use crate::slots::NoRoom;
use crate::slots::Slot;
use crate::slots::Slots;
use crate::statics::Static;
use crate::statics::Statics;
use crate::statics::carry_hits;
use crate::statics::hits_after;
use crate::statics::static_at;
use crate::statics::static_count;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::InterfaceId;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::view::BalancedView;
use crate::view::OwnPorts;
use crate::view::StaticView;
use crate::view::TornBlock;

/// Why an engine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Memory for a table could not be had.
    #[error("table \"{table}\": {source}")]
    Memory {
        /// Which table.
        table: &'static str,
        /// What went wrong.
        source: ArenaError,
    },
    /// The routes or the pools' subscriber prefixes can not be compiled.
    #[error(transparent)]
    Routes(#[from] crate::route::RouteError),
    /// The formula of a deterministic pool does not work out; `config` refuses such files before they come here.
    #[error("pool \"{pool}\": {source}")]
    Formula {
        /// Which pool.
        pool: String,
        /// What does not.
        source: FormulaError,
    },
    /// Memory for the rules could not be had, or there are too many.
    #[error(transparent)]
    Rules(#[from] crate::rules::RuleSetError),
    /// More external addresses than there are places for while the instance runs.
    #[error(
        "external addresses: {needed} are needed, {removed} of them removed ones that are in use still, and there are places for {places}"
    )]
    NoRoomForAddresses {
        /// Those of the new settings, and removed ones that are in use still.
        needed: u64,
        /// The removed ones.
        removed: u64,
        /// Places there are.
        places: u64,
    },
    /// A forward with targets has sessions of as many lists as it may.
    #[error("{protocol} {external}: has sessions of {limit} lists of targets already, as many as there may be")]
    TooManyTargetLists {
        /// Transport.
        protocol: Protocol,
        /// External endpoint, the first of its ports.
        external: Endpoint,
        /// Lists there may be.
        limit: u64,
    },
    /// Each of these.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<BuildError>),
    /// A number in the settings is out of bounds; `config` refuses such files before they come here.
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

/// Where a packet to some destination goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextHop {
    pub(crate) interface: InterfaceId,
    /// Router; 0 when the destination is on the link itself.
    gateway: u32,
    pub(crate) mtu: u16,
}

impl NextHop {
    #[inline]
    pub(crate) fn egress(&self, destination: u32) -> Egress {
        Egress { interface: self.interface, next_hop: if self.gateway == 0 { destination } else { self.gateway } }
    }
}

/// Route of destinations that are on the other side: no hop has this number.
const HOLE: u32 = crate::route::VALUE_LIMIT - 1;

/// What the workers keep in common about shared ports: what they had before, or else room for the flows of all.
fn commons_after(
    settings: &Settings,
    workers: usize,
    places: usize,
    before: Option<&Shared>,
) -> Result<Option<Arc<Commons>>, BuildError> {
    if let Some(before) = before {
        return Ok(before.commons.clone());
    }
    let flows_max = settings.limits.flows_max as usize;
    if workers <= 1 || flows_max == 0 {
        return Ok(None);
    }
    let commons = Commons::new(places, flows_max.saturating_mul(workers));
    let commons = commons.map_err(|source| BuildError::Memory { table: "flows of all workers", source })?;
    Ok(Some(Arc::new(commons)))
}

/// What the packet path needs of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFacts {
    pub(crate) filtering: [Filtering; Protocol::COUNT],
    pub(crate) pooling: Pooling,
    pub(crate) parity: bool,
    pub(crate) one_to_one: bool,
    pub(crate) reuse_delay: Duration,
    pub(crate) reuse_at_once: ReuseAtOnce,
    pub(crate) shared_ports_min: u16,
    pub(crate) has_low_ports: bool,
    pub(crate) has_high_ports: bool,
    /// Number of the pool; of one that was removed, behind those of the settings.
    pub(crate) id: PoolId,
    /// No new mappings, and no new subscribers.
    pub(crate) is_closed: bool,
    /// Where its open addresses begin in the list of those of all pools, and how many they are.
    first: u32,
    pub(crate) count: u32,
    /// Where its addresses begin in the list of those of all pools, open or not.
    first_member: u32,
    pub(crate) selection: Selection,
    /// Where and how blocks are leased, if they are.
    pub(crate) blocks: Option<BlockFacts>,
    /// Ports of each subscriber's slice in a deterministic pool; 0 in any other.
    pub(crate) slice_ports: u16,
    /// Ports of each of its addresses that are set aside for what is guaranteed to subscribers.
    pub(crate) set_aside: [u32; Protocol::COUNT],
}

/// What the packet path needs of a pool's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockFacts {
    pub(crate) size: BlockSize,
    pub(crate) per_subscriber_max: u16,
    pub(crate) idle: Duration,
    /// Lowest and highest port that may be in one.
    pub(crate) first: u16,
    pub(crate) last: u16,
}

/// Compiled settings and port table of one instance; shared by its shards.
pub struct Shared {
    settings: Settings,
    workers: usize,
    pub(crate) ports: Arc<PortTable>,
    pub(crate) local: Arc<LocalAddresses>,
    pub(crate) statics: Statics,
    /// External endpoints that lead to several inside ones.
    pub(crate) balance: Balance,
    /// Ports that led to several and are to be given out again.
    pub(crate) leftovers: Leftovers,
    /// What several workers keep in common about shared ports; None for one worker, or where there are no flows.
    pub(crate) commons: Option<Arc<Commons>>,
    /// All workers go by this.
    is_settled: AtomicBool,
    /// By static, how many mappings it made.
    pub(crate) static_hits: Arc<Hits>,
    pub(crate) pools: Vec<PoolFacts>,
    pool_names: PoolNames,
    /// By pool, how many times an address was chosen in turn.
    pub(crate) turns: Box<[AtomicU32]>,
    /// By pool, the formula of a deterministic one.
    formulas: Vec<Option<Formula>>,
    /// By place: address, pool, and whether it is closed.
    slots: Slots,
    /// By place: where the facts about it are in `pools`.
    facts_of: Vec<u16>,
    /// The open addresses of the pools, pool by pool.
    open: Vec<AddressIndex>,
    /// All addresses of the pools, pool by pool in the order of the settings.
    members: Vec<AddressIndex>,
    /// Sessions are found by another hash than under the snapshot before.
    rehashes_sessions: bool,
    /// Some mappings have to end at a given time, whatever their timers say.
    has_deadlines: bool,
    /// Whom changes took their place away, and since when.
    pub(crate) displacements: Displacements,
    /// By place: its position among the addresses of its pool; None where the pool has it no more.
    position_of: Vec<Option<u32>>,
    /// Counts the changes since the start, from 0.
    generation: u32,
    /// By realm, the pool by subscriber prefix: value is the pool.
    pool_routes: Vec<RouteTable>,
    outside_routes: RouteTable,
    /// By realm.
    inside_routes: Vec<RouteTable>,
    next_hops: Vec<NextHop>,
    pub(crate) classes: Classes,
    /// How full the fullest pool is.
    pub(crate) pressure: Pressure,
    pub(crate) rules: RuleBook,
    /// Other protocols that are let through.
    pub(crate) passes: RuleBook,
    pub(crate) filters: FilterBook,
    /// What each interface faces.
    facings: Vec<Facing>,
}

impl Shared {
    /// Compiles `settings` for `workers` shards and takes the memory of the port table: about 0.8 MiB per
    /// external address.
    ///
    /// # Errors
    /// [`BuildError`] when memory is short or a number is out of range.
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

    /// Compiles what follows this under other settings, for the same workers and on the same port table. Nothing is changed
    /// before workers adopt it. `now` is when addresses that are closed by it are.
    ///
    /// # Errors
    /// [`BuildError`] when memory is short, a number is out of range, or the port table has too few places.
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
        next.displacements = Displacements::successor(self, &next, now);
        next.has_deadlines |= next.displacements.have_deadlines(&next.settings);
        next.has_deadlines |= next.balance.has_past();
        next.leftovers = Leftovers::of(&next);
        next.rehashes_sessions = self.addresses().any(|(place, _)| {
            let next = next.slot(place).map(|_| next.facts(place));
            next.is_some_and(|next| {
                let (old, new) = (self.facts(place).filtering, next.filtering);
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
            // Pools that were removed give nothing out any more.
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
            let mut facts = PoolFacts {
                first: first as u32,
                count: (open.len() - first) as u32,
                first_member: first_member as u32,
                ..PoolFacts::new(pool, id, formula.as_ref())
            };
            // Elsewhere the mode of the pool says what each has.
            if facts.gives_single_ports() && facts.pooling == Pooling::Paired && !facts.one_to_one {
                let each = reserved.get(id.index()).copied().unwrap_or_default();
                let each = each.of_each_address(u64::from(facts.count));
                facts.set_aside = each.map(|ports| u32::try_from(ports).unwrap_or(u32::MAX));
            }
            if facts.is_guarded() {
                ports.prepare_guard().map_err(|source| BuildError::Memory { table: "guaranteed ports", source })?;
            }
            pools.push(facts);
            formulas.push(formula);
        }
        // Addresses that are closed have the facts of their pool, but for that.
        pools.extend_from_within(..);
        for facts in &mut pools[pool_count..] {
            facts.is_closed = true;
        }
        // What is at other places the next configuration knows, and who has something there goes by that one.
        pools.push(PoolFacts::of_elsewhere());
        let elsewhere = pool_count as u16 * 2;
        let facts_of = (0..ports.places()).map(|place| match slots.slots.get(place).copied().flatten() {
            Some(slot) if slot.closed.is_none() => slot.pool.0,
            slot => slot.map_or(elsewhere, |slot| slot.pool.0 + pool_count as u16),
        });
        let facts_of = facts_of.collect();
        let external: Vec<(Ipv4Addr, AddressIndex)> = places().map(|(place, slot)| (slot.address, place)).collect();
        let has_deadlines = places().any(|(_, slot)| slot.closed.is_some_and(|closed| closed.ends.is_some()));
        let mut pool_prefixes = vec![Vec::new(); settings.realms()];
        for (realm, prefixes) in (0..).map(RealmId).zip(&mut pool_prefixes) {
            for (position, pool) in settings.pools.iter().enumerate().filter(|(_, pool)| pool.serves(realm)) {
                prefixes.extend(pool.subscribers.iter().map(|prefix| (*prefix, position as u32)));
            }
        }
        let (route_lists, next_hops) = compile_routes(&settings);
        if settings.pools.iter().any(|pool| pool.allocation != Allocation::Ports) {
            ports.prepare_blocks().map_err(|source| BuildError::Memory { table: "port blocks", source })?;
        }
        let places_of_ports = ports.places();
        Ok(Shared {
            ports,
            local: Arc::new(LocalAddresses::new(&settings.interfaces, &external)),
            turns: pools.iter().map(|_| AtomicU32::new(0)).collect(),
            formulas,
            statics: Statics::new(&settings, |forward| balance.has_taken(forward)),
            balance,
            commons: commons_after(&settings, workers, places_of_ports, before)?,
            leftovers: Leftovers::default(),
            // There was nobody before who could go by anything else.
            is_settled: AtomicBool::new(before.is_none()),
            static_hits: hits_after(&settings, workers, before.map(|before| (&before.settings, &before.static_hits))),
            members,
            pool_names: PoolNames::new(all_pools(), before.map(|before| &before.pool_names)),
            pools,
            facts_of,
            open,
            has_deadlines,
            displacements: Displacements::default(),
            position_of,
            rehashes_sessions: false,
            generation: before.map_or(0, |before| before.generation.wrapping_add(1)),
            slots,
            pool_routes: pool_prefixes.iter().map(|list| RouteTable::new(list)).collect::<Result<_, _>>()?,
            outside_routes: RouteTable::new(&route_lists.outside)?,
            inside_routes: route_lists.inside.iter().map(|list| RouteTable::new(list)).collect::<Result<_, _>>()?,
            next_hops,
            pressure: Pressure::default(),
            classes: Classes::new(&settings.subscriber, &settings.classes, settings.realms())?,
            rules: match before {
                Some(before) => RuleBook::successor(&settings.rules, workers, &before.rules)?,
                None => RuleBook::new(&settings.rules, workers)?,
            },
            passes: passes(&settings, workers, before.map(|before| &before.passes))?,
            // Sessions that other filters have stamped are judged anew.
            filters: FilterBook::new(&settings.filters, workers, before.map(|before| &before.filters))?,
            facings: settings.interfaces.iter().map(Interface::facing).collect(),
            workers,
            settings,
        })
    }

    /// The settings this instance was built from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Number of shards.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes of the port table.
    pub fn bytes(&self) -> usize {
        self.ports.bytes() + self.commons.as_ref().map_or(0, |commons| commons.bytes())
    }

    /// Places for external addresses that were ever used: one past the highest [`AddressIndex`].
    pub fn address_count(&self) -> usize {
        self.slots.slots.len()
    }

    /// What is at a place; None when nothing is.
    pub fn slot(&self, index: AddressIndex) -> Option<&Slot> {
        self.slots.slots.get(index.index())?.as_ref()
    }

    /// All external addresses, closed ones among them, by place.
    pub fn addresses(&self) -> impl Iterator<Item = (AddressIndex, &Slot)> {
        let places = (0..).map(AddressIndex).zip(&self.slots.slots);
        places.filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// The external address with this index.
    pub fn address(&self, index: AddressIndex) -> Ipv4Addr {
        self.slot(index).map_or(Ipv4Addr::UNSPECIFIED, |slot| slot.address)
    }

    /// The index of an external address; None when no pool has it.
    pub fn address_index(&self, address: Ipv4Addr) -> Option<AddressIndex> {
        self.local.lookup(address.to_bits()).and_then(Local::pool_address)
    }

    /// The pool an external address belongs to.
    pub fn pool_of(&self, index: AddressIndex) -> PoolId {
        self.slot(index).map_or_else(PoolId::default, |slot| slot.pool)
    }

    /// What all workers have to know before one goes over from `before` to this: the external addresses of both, so that what the first
    /// one gives out is known to the others. None: there are no others than before.
    pub fn expected(&self, before: &Shared) -> Option<Arc<LocalAddresses>> {
        let is_new = |(place, slot): (AddressIndex, &Slot)| {
            before.slot(place).is_none_or(|before| before.address != slot.address)
        };
        if !self.addresses().any(is_new) {
            return None;
        }
        let places = (0..self.address_count().max(before.address_count()) as u32).map(AddressIndex);
        // Of two at one place nothing is left of the one before.
        let slots = places.filter_map(|place| Some((self.slot(place).or(before.slot(place))?.address, place)));
        let external: Vec<(Ipv4Addr, AddressIndex)> = slots.collect();
        Some(Arc::new(LocalAddresses::new(&self.settings.interfaces, &external)))
    }

    /// Whether an external address takes no new mappings.
    pub fn closed(&self, index: AddressIndex) -> Option<Closed> {
        self.slot(index)?.closed
    }

    /// The pool with this number: one of the settings', or one that was removed while mappings of it are left.
    pub fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.slots.pool_in(&self.settings, id)
    }

    /// All pools with their numbers; those removed while mappings of theirs are left come last.
    pub fn pools(&self) -> impl Iterator<Item = (PoolId, &Pool)> {
        (0..).map(PoolId).zip(self.settings.pools.iter().chain(&self.slots.removed_pools))
    }

    /// The number that the name of a pool has under these settings and all later ones.
    #[inline]
    pub fn name_of_pool(&self, id: PoolId) -> PoolName {
        self.pool_names.of(id)
    }

    /// The name of a pool that there is, or was.
    pub fn pool_name(&self, name: PoolName) -> Option<&str> {
        self.pool_names.name(name)
    }

    /// The names of all pools that there are or were, by number.
    pub fn pool_names(&self) -> impl Iterator<Item = &str> {
        self.pool_names.all()
    }

    /// Changes of the configuration since the start.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// What a record carries that was brought up to date under this snapshot.
    #[inline]
    pub(crate) fn stamp(&self) -> u16 {
        self.generation as u16
    }

    /// The n-th address of a pool in the order of the settings, open or not.
    #[inline]
    pub(crate) fn member(&self, facts: &PoolFacts, n: u32) -> AddressIndex {
        self.members[(facts.first_member + n) as usize]
    }

    /// The open addresses of a pool.
    #[inline]
    pub(crate) fn choices(&self, facts: &PoolFacts) -> &[AddressIndex] {
        &self.open[facts.first as usize..(facts.first + facts.count) as usize]
    }

    /// Whether a pool has nothing new for an inside address because all that it might have there drains: the address that the formula
    /// gives it, or that is its own, or else each address of the pool. Forwards are made all the same.
    #[inline]
    pub(crate) fn has_only_closed(&self, facts: &PoolFacts, realm: RealmId, inside: u32) -> bool {
        if facts.one_to_one {
            let own = self.statics.own_address(realm, inside).and_then(|own| self.address_index(own.into()));
            return own.is_some_and(|own| self.closed(own).is_some());
        }
        if facts.slice_ports == 0 {
            return facts.count == 0 && self.has_members(facts.id);
        }
        let slice = self.formula(facts.id).and_then(|formula| formula.slice_of(inside));
        slice.is_some_and(|slice| self.closed(self.member(facts, slice.address)).is_some())
    }

    #[cold]
    fn has_members(&self, pool: PoolId) -> bool {
        self.pool(pool).is_some_and(|pool| !pool.addresses.is_empty())
    }

    /// Whether an external address offers this port, or has it for something of its own; who has it is another question.
    pub(crate) fn offers(&self, index: AddressIndex, protocol: Protocol, port: u16) -> bool {
        let Some(slot) = self.slot(index).filter(|slot| slot.closed.is_none()) else { return false };
        let Some(pool) = self.pool(slot.pool) else { return false };
        let is_offered = protocol == Protocol::Icmp && port != 0
            || (pool.port_min..=pool.port_max).contains(&port) && !pool.reserved_ports.contains(&port);
        let address = slot.address.to_bits();
        let is_forwarded = || self.statics.is_forwarded(address, protocol, port);
        pool.one_to_one || is_offered || is_forwarded() || self.balance.find(address, protocol, port).is_some()
    }

    /// Whether an external port is not some other internal endpoint's by the configuration: by a forward, an address of his own,
    /// or a formula.
    pub(crate) fn may_have(
        &self,
        index: AddressIndex,
        protocol: Protocol,
        port: u16,
        realm: RealmId,
        internal: Endpoint,
    ) -> bool {
        let external = Endpoint { address: self.address(index), port };
        if self.balance.find(external.address.to_bits(), protocol, port).is_some() {
            // Its sessions are flows.
            return false;
        }
        if let Some(one) = self.static_of_external(external, protocol) {
            return one.realm == realm && one.internal == internal;
        }
        match self.slice_owner(index, port) {
            Some(Owner::Subscriber(_)) => self.is_by_formula(index, port, realm, internal.address),
            Some(Owner::Nobody | Owner::Outside) => false,
            Some(Owner::Dynamic) | None => true,
        }
    }

    /// Whether an external port is in the slice that a formula gives an inside address of this realm: others may have the same address.
    pub(crate) fn is_by_formula(&self, index: AddressIndex, port: u16, realm: RealmId, inside: Ipv4Addr) -> bool {
        let is_served = || self.pool(self.pool_of(index)).is_some_and(|pool| pool.serves(realm));
        self.slice_owner(index, port) == Some(Owner::Subscriber(inside)) && is_served()
    }

    /// What each external address offers, by place.
    pub(crate) fn specs(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.ports())
    }

    /// What each external address will offer when nothing is left of what led to several targets, by place.
    pub(crate) fn specs_afterwards(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.led_ports())
    }

    /// All workers go by this, and none by what was before.
    pub fn settle(&self) {
        self.ports.forget_full_addresses();
        self.is_settled.store(true, Ordering::Release);
    }

    /// What was found out about addresses without free blocks says nothing any more: some workers may have looked for blocks of another
    /// size, or elsewhere.
    pub fn forget_full_addresses(&self) {
        self.ports.forget_full_addresses();
    }

    /// Whether all workers go by this.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::Acquire)
    }

    /// Whether sessions are found by another hash than under the snapshot before.
    pub(crate) fn rehashes_sessions(&self) -> bool {
        self.rehashes_sessions
    }

    /// Whether some mappings have to end at a given time.
    #[inline]
    pub(crate) fn has_deadlines(&self) -> bool {
        self.has_deadlines
    }

    /// When the mappings of an external address have to end, if at all.
    pub(crate) fn deadline(&self, address: u32) -> Option<Instant> {
        self.closed(self.local.pool_address(address)?)?.ends
    }

    /// Of [`Shared::ports_used`] those that rest before they are given out again.
    pub fn ports_resting(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.resting(index, protocol)
    }

    /// External ports of one address in use now, or at rest.
    pub fn ports_used(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.used(index, protocol)
    }

    /// External ports one address can give out.
    pub fn ports_available(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        self.ports.available(index, protocol)
    }

    /// External ports of one address that somebody can get. With blocks and slices query identifiers come out of these, though the
    /// address offers all of them, and none out of a block without ports.
    pub fn ports_obtainable(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let facts = self.facts(index);
        let Some(pool) = self.pool(facts.id).filter(|_| protocol == Protocol::Icmp && !facts.gives_single_ports())
        else {
            return self.ports_available(index, protocol);
        };
        let range = PortRange { address: index, first: pool.port_min, last: pool.port_max };
        match pool.allocation {
            Allocation::Blocks(blocks) => self.ports.available_in_blocks(&range, blocks.size, protocol),
            _ => self.ports.available_within(&range, protocol),
        }
    }

    /// External ports of one address that are there: those that somebody can get ([`Shared::ports_obtainable`]), and those in use, at
    /// rest or leased in blocks that are not given out any more.
    pub fn ports_there(&self, index: AddressIndex, protocol: Protocol) -> u32 {
        let facts = self.facts(index);
        let pool = self.pool(facts.id).filter(|_| protocol == Protocol::Icmp && !facts.gives_single_ports());
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

    /// The static mapping of an external endpoint: a forward, or a one-to-one address.
    pub fn static_of_external(&self, external: Endpoint, protocol: Protocol) -> Option<StaticView> {
        self.statics.view_of_external(external, protocol)
    }

    /// The static mapping of an internal endpoint.
    pub fn static_of_internal(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Option<StaticView> {
        let key = InternalKey { realm, protocol, address: internal.address.to_bits(), port: internal.port };
        self.statics.view_of_internal(&key)
    }

    /// The worker and mapping that own an external endpoint. What multi-worker steering asks.
    #[inline]
    pub fn owner(&self, index: AddressIndex, protocol: Protocol, port: u16) -> Option<(WorkerId, MappingIndex)> {
        self.ports.lookup(index, protocol, port)
    }

    /// As [`Shared::owner`], but of an endpoint that flows share the worker whose flow has this remote endpoint, if one's has.
    #[inline]
    pub(crate) fn owner_towards(&self, index: AddressIndex, key: &OutsideKey) -> Option<(WorkerId, MappingIndex)> {
        match self.ports.lookup(index, key.protocol, key.external.1) {
            Some((home, MappingIndex::SHARED)) => {
                Some((self.worker_of_flow(key).unwrap_or(home), MappingIndex::SHARED))
            }
            owner => owner,
        }
    }

    /// Of several workers the one whose flow has this five-tuple outside.
    fn worker_of_flow(&self, key: &OutsideKey) -> Option<WorkerId> {
        self.commons.as_ref()?.claims.worker_of(key)
    }

    /// Whether a flow on a shared port may have this five-tuple outside: it is this worker's then.
    pub(crate) fn claim(&self, key: &OutsideKey, worker: WorkerId) -> bool {
        self.commons.as_ref().is_none_or(|commons| commons.claims.claim(key, worker))
    }

    /// Whether a flow of some worker has this five-tuple outside. Not told where one worker's own tables tell it.
    pub(crate) fn is_claimed(&self, key: &OutsideKey) -> bool {
        self.worker_of_flow(key).is_some()
    }

    /// A flow on a shared port is over.
    pub(crate) fn release(&self, key: &OutsideKey, worker: WorkerId) {
        if let Some(commons) = &self.commons {
            commons.claims.release(key, worker);
        }
    }

    #[inline(always)]
    pub(crate) fn facts(&self, index: AddressIndex) -> &PoolFacts {
        &self.pools[usize::from(self.facts_of[index.index()])]
    }

    /// The formula of a pool, if it is deterministic.
    pub fn formula(&self, pool: PoolId) -> Option<&Formula> {
        self.formulas.get(pool.index())?.as_ref()
    }

    /// The lease that has an external port, if one has.
    pub fn lease_of(&self, index: AddressIndex, port: u16) -> Option<Lease> {
        self.ports.lease_of(index, port)
    }

    /// The leases of blocks of one address, in order. For people: reads all there is to read of it.
    pub fn leases_on(&self, index: AddressIndex) -> impl Iterator<Item = Lease> + '_ {
        self.ports.leases_on(index)
    }

    /// Whether the pool's formula leaves this inside address out, as a network or broadcast address. Such an address gets no ports.
    pub fn is_nobody_by_formula(&self, pool: PoolId, inside: Ipv4Addr) -> bool {
        self.formula(pool).is_some_and(|formula| formula.slice_of(inside.to_bits()).is_none())
    }

    /// The ports that a subscriber of this pool has for itself: its slice, and the blocks it holds on its paired address, or on any
    /// of the pool if it has none. For people: reads all leases of these addresses.
    pub fn own_ports(&self, pool: PoolId, realm: RealmId, inside: Ipv4Addr, paired: Option<Ipv4Addr>) -> Vec<OwnPorts> {
        let Some(facts) = self.pools.get(pool.index()) else { return Vec::new() };
        let slice = self.formula(pool).and_then(|formula| formula.slice_of(inside.to_bits()));
        let mut found: Vec<OwnPorts> = Vec::new();
        found.extend(slice.map(|slice| OwnPorts {
            address: self.address(self.member(facts, slice.address)),
            first: slice.first,
            last: slice.last,
            leased_s: None,
        }));
        let addresses = match paired.and_then(|address| self.address_index(address)) {
            Some(address) => vec![address],
            None if slice.is_none() => self.choices(facts).to_vec(),
            None => Vec::new(),
        };
        for address in addresses {
            let leases = self.ports.leases_on(address);
            let mine = leases.filter(|lease| lease.holder.realm == realm && lease.holder.address == inside.to_bits());
            found.extend(mine.map(|lease| OwnPorts {
                address: self.address(address),
                first: lease.block.first_port(),
                last: lease.block.last_port(),
                leased_s: Some(lease.since_s),
            }));
        }
        found
    }

    /// Ports of one address that are leased in blocks.
    pub fn ports_leased(&self, index: AddressIndex) -> u32 {
        self.ports.ports_leased(index)
    }

    /// Ports of one address in blocks that nobody can lease though nobody has leased them, as ports of theirs are taken singly: shared by
    /// flows, or from other settings.
    pub fn ports_unleasable(&self, index: AddressIndex) -> u32 {
        let Some((range, size)) = self.range_of_blocks(index) else { return 0 };
        self.ports.ports_unleasable(&range, size)
    }

    /// The block that a port would be in, if nobody can lease it because of ports that are taken singly.
    pub fn torn_block(&self, index: AddressIndex, port: u16) -> Option<TornBlock> {
        let (range, size) = self.range_of_blocks(index)?;
        self.ports.torn_block(&range, size, port)
    }

    /// Where on an address there are blocks, and how large they are.
    fn range_of_blocks(&self, index: AddressIndex) -> Option<(PortRange, BlockSize)> {
        let blocks = self.facts(index).blocks?;
        Some((PortRange { address: index, first: blocks.first, last: blocks.last }, blocks.size))
    }

    /// The subscriber whose slice an external port is in, if its pool is deterministic. An address that was removed from one is in no
    /// formula any more, though mappings may be left there.
    pub fn slice_owner(&self, index: AddressIndex, port: u16) -> Option<Owner> {
        let facts = self.facts(index);
        let formula = self.formula(facts.id)?;
        Some(formula.owner_of((*self.position_of.get(index.index())?)?, port))
    }

    /// The pool that serves an inside address of this realm.
    pub fn pool_for(&self, realm: RealmId, inside: Ipv4Addr) -> Option<PoolId> {
        self.pool_routes.get(realm.index())?.lookup(inside.to_bits()).map(|pool| PoolId(pool as u16))
    }

    /// Where a packet to `destination` leaves outside.
    #[inline]
    pub(crate) fn route_out(&self, destination: u32) -> Option<&NextHop> {
        self.outside_routes.lookup(destination).and_then(|hop| self.next_hops.get(hop as usize))
    }

    /// Where a packet to `destination` leaves inside, in this realm.
    #[inline]
    pub(crate) fn route_in(&self, realm: RealmId, destination: u32) -> Option<&NextHop> {
        let routes = self.inside_routes.get(realm.index())?;
        routes.lookup(destination).and_then(|hop| self.next_hops.get(hop as usize))
    }

    /// Where a packet to `destination` leaves towards what some interface faces.
    pub(crate) fn route(&self, towards: Facing, destination: u32) -> Option<&NextHop> {
        match towards.side {
            Side::Inside => self.route_in(towards.realm, destination),
            Side::Outside => self.route_out(destination),
        }
    }

    /// Whether packets to an address of this inside realm are sent anywhere inside.
    pub fn leads_inside(&self, realm: RealmId, address: Ipv4Addr) -> bool {
        self.route_in(realm, address.to_bits()).is_some()
    }

    /// What an address is to Natrix, given what it is to somebody, as a packet from `from` sees it: what only another inside realm has
    /// is nothing here.
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

    /// Whether a packet of subscriber realm `from` may go to a mapping of realm `to`.
    #[inline]
    pub(crate) fn may_hairpin(&self, from: RealmId, to: RealmId) -> bool {
        from == to || self.settings.hairpin_between_realms
    }

    /// Whether an address is inside as far as the routes say: there is a way to it in some realm, and none outside.
    pub(crate) fn is_inside(&self, address: u32) -> bool {
        self.inside_routes.iter().any(|routes| routes.lookup(address).is_some()) && self.route_out(address).is_none()
    }

    /// What an interface faces.
    #[inline]
    pub(crate) fn facing(&self, interface: InterfaceId) -> Facing {
        self.facings.get(interface.index()).copied().unwrap_or(Facing::OUTSIDE)
    }

    #[inline]
    pub(crate) fn side(&self, interface: InterfaceId) -> Side {
        self.facing(interface).side
    }

    /// The inside realm an interface faces; 0 for one that faces the outside.
    #[inline]
    pub fn realm_of(&self, interface: InterfaceId) -> RealmId {
        self.facing(interface).realm
    }

    /// Natrix's own address on the interface that leads to `destination`: the source of what it says there.
    pub(crate) fn own_address_towards(&self, towards: Facing, destination: u32) -> Option<u32> {
        let hop = self.route(towards, destination)?;
        let interface = self.settings.interfaces.get(hop.interface.index())?;
        let on_link = interface.addresses.iter().find(|own| {
            Prefix::new(own.address, own.prefix_length)
                .is_some_and(|prefix| prefix.contains(Ipv4Addr::from_bits(hop.egress(destination).next_hop)))
        });
        on_link.or(interface.addresses.first()).map(|own| own.address.to_bits())
    }

    /// Some address of Natrix's own towards what some interface faces.
    pub(crate) fn any_own_address(&self, towards: Facing) -> Option<u32> {
        let interfaces = self.settings.interfaces.iter().filter(|interface| interface.facing() == towards);
        interfaces.flat_map(|interface| &interface.addresses).map(|own| own.address.to_bits()).next()
    }

    /// Where a rule redirects to.
    pub(crate) fn redirection(&self, id: RedirectionId) -> Option<&Redirection> {
        self.settings.redirections.get(id.0 as usize)
    }

    /// What is done with a packet from inside that opens a mapping or a session.
    #[inline]
    pub fn rule_for(&self, key: &RuleKey) -> Ruling {
        self.rules.ruling(key)
    }

    /// The rules and how often they were applied.
    pub fn rules(&self) -> &RuleBook {
        &self.rules
    }

    /// The filters and how often they decided.
    pub fn filters(&self) -> &FilterBook {
        &self.filters
    }

    /// Static forwards and one-to-one pools.
    pub fn static_count(&self) -> usize {
        static_count(&self.settings)
    }

    /// The static forward or one-to-one pool at a place, forwards first; and how many mappings it made.
    pub fn static_at(&self, place: usize) -> Option<(Static<'_>, u64)> {
        Some((static_at(&self.settings, place)?, self.static_hits.of(RuleId(place as u32))))
    }

    /// No worker goes by `before` any more: what its rules and filters decided and its static mappings counted while workers went over
    /// counts here, too. Looks at every rule, so not for a worker to do.
    pub fn settle_hits(&self, before: &Shared) {
        self.rules.settle_hits(&before.rules);
        self.passes.settle_hits(&before.passes);
        self.filters.settle_hits(&before.filters);
        carry_hits((&self.settings, &self.static_hits), (&before.settings, &before.static_hits));
    }

    /// A session was opened to a target of this group. Of a forward to one inside endpoint that counts as a mapping it made.
    pub(crate) fn count_lead(&self, worker: WorkerId, group: Option<&Group>) {
        if let Some(Origin::Forward(position)) = group.and_then(|group| group.origin) {
            self.static_hits.count(worker, RuleId(position));
        }
    }

    /// What an external endpoint leads to, if it leads to several, or did and has sessions left.
    pub fn balanced(&self, external: Endpoint, protocol: Protocol) -> Option<BalancedView> {
        let group = self.balance.find(external.address.to_bits(), protocol, external.port)?;
        let era = group.eras().last()?;
        let targets = (0..era.targets().len()).filter_map(|position| {
            let aim = era.aim(position, external.port)?;
            Some((Endpoint::new(aim.address.into(), aim.port), era.targets()[position].weight))
        });
        let targets = if group.current().is_some() { targets.collect() } else { Vec::new() };
        Some(BalancedView { protocol, realm: era.realm(), external, targets })
    }

    /// External endpoints that lead to this internal one among others.
    pub fn balanced_to(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Vec<BalancedView> {
        let forwards = self.settings.balanced_forwards.iter().filter(|forward| forward.protocol == protocol);
        let externals = forwards.filter_map(|forward| forward.external_of(realm, internal));
        externals.filter_map(|external| self.balanced(external, protocol)).collect()
    }

    /// The workers that may have the session of this remote endpoint with an external one that leads to several, in the order in
    /// which its packets visit them: the last one is where it would be opened.
    pub fn balanced_workers(&self, external: Endpoint, protocol: Protocol, remote: Endpoint) -> Vec<WorkerId> {
        let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) else {
            return Vec::new();
        };
        let far = (remote.address.to_bits(), remote.port);
        let aims = group.eras().filter_map(|era| era.choose(external.port, far));
        aims.map(|aim| self.worker_of_subscriber(aim.address)).collect()
    }

    /// Sessions opened to each target of a forward to several, in the order of the settings.
    pub fn balanced_hits(&self, position: usize) -> Vec<u64> {
        self.balance.hits(&self.settings, position)
    }

    /// The rules for protocols that are let through, and how often they did.
    pub fn passes(&self) -> &RuleBook {
        &self.passes
    }
}

impl core::fmt::Debug for Shared {
    /// Which snapshot it is; all of it would fill pages.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("generation", &self.generation).finish_non_exhaustive()
    }
}

impl PoolFacts {
    /// Of an address that is not known here: nothing is given out, and nothing judged.
    fn of_elsewhere() -> PoolFacts {
        // Also queries are for whoever has the endpoint.
        PoolFacts { is_closed: true, one_to_one: true, ..PoolFacts::new(&Pool::default(), PoolId::default(), None) }
    }

    fn new(pool: &Pool, id: PoolId, formula: Option<&Formula>) -> PoolFacts {
        let blocks = |blocks: Blocks, (first, last)| BlockFacts {
            size: blocks.size,
            per_subscriber_max: blocks.per_subscriber_max,
            idle: blocks.idle,
            first,
            last,
        };
        PoolFacts {
            filtering: pool.filtering,
            // Whoever has an address of his own has it for all mappings.
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
            // A formula has fewer ports in a slice than there are.
            slice_ports: formula.map_or(0, |formula| formula.slice_ports() as u16),
            set_aside: [0; Protocol::COUNT],
        }
    }

    /// Whether ports are guaranteed to some of its subscribers.
    #[inline]
    pub(crate) fn is_guarded(&self) -> bool {
        self.set_aside != [0; Protocol::COUNT]
    }

    /// Whether each mapping takes any free port.
    #[inline]
    pub(crate) fn gives_single_ports(&self) -> bool {
        self.blocks.is_none() && self.slice_ports == 0
    }
}

/// The rules for protocols without translation, as the search of all rules wants them.
fn passes(settings: &Settings, workers: usize, before: Option<&RuleBook>) -> Result<RuleBook, BuildError> {
    let rule = |rule: &PassRule| Rule { matches: rule.matches(), action: RuleAction::NoTranslation };
    let rules: Vec<Rule> = settings.pass_rules.iter().map(rule).collect();
    Ok(match before {
        Some(before) => RuleBook::successor(&rules, workers, before)?,
        None => RuleBook::new(&rules, workers)?,
    })
}

/// Routes, each with the position of its hop.
pub(crate) struct RouteLists {
    pub(crate) outside: Vec<(Prefix, u32)>,
    /// By realm.
    pub(crate) inside: Vec<Vec<(Prefix, u32)>>,
}

impl RouteLists {
    fn add(&mut self, towards: Facing, prefix: Prefix, hop: usize) {
        let list = match towards.side {
            Side::Outside => Some(&mut self.outside),
            Side::Inside => self.inside.get_mut(towards.realm.index()),
        };
        if let Some(list) = list {
            list.push((prefix, hop as u32));
        }
    }
}

/// The routes of the outside and of each inside realm.
pub(crate) fn compile_routes(settings: &Settings) -> (RouteLists, Vec<NextHop>) {
    let mut next_hops = Vec::new();
    let mut lists = RouteLists { outside: Vec::new(), inside: vec![Vec::new(); settings.realms()] };
    // RFC 6598 §4: packets to inside addresses "MUST NOT be forwarded" outside, whatever the default route there. So
    // the outside table has a hole for each inside route; a route outside that is as long or longer fills it.
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
            let hop = NextHop { interface: InterfaceId(position as u16), gateway: 0, mtu: interface.mtu };
            lists.add(interface.facing(), prefix, next_hops.len());
            next_hops.push(hop);
        }
    }
    for route in &settings.routes {
        let Some(interface) = settings.interfaces.get(route.interface.index()) else { continue };
        let hop = NextHop { interface: route.interface, gateway: route.next_hop.to_bits(), mtu: interface.mtu };
        lists.add(interface.facing(), route.prefix, next_hops.len());
        next_hops.push(hop);
    }
    (lists, next_hops)
}

fn no_room(NoRoom { needed, removed }: NoRoom, places: u64) -> BuildError {
    BuildError::NoRoomForAddresses { needed: needed as u64, removed: removed as u64, places }
}

fn too_many_lists(TooManyEras { protocol, external }: TooManyEras) -> BuildError {
    BuildError::TooManyTargetLists { protocol, external, limit: ERAS_MAX as u64 }
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
