//! What all shards of an instance share: the compiled settings, read-only, and the port table.

mod balanced;
mod compile;
mod compiled_pool;
mod next_hops;
mod pool_ports;

use core::net::Ipv4Addr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use self::compile::check_ranges;
use self::compile::in_range;
use self::compile::no_room;
use self::compile::too_many_lists;
use crate::external::address_slots::Closed;
use crate::external::address_slots::Slot;
use crate::external::address_slots::Slots;
use crate::external::between_workers::BetweenWorkers;
use crate::external::deterministic::Formula;
use crate::external::deterministic::Owner;
use crate::external::load_balancing::Balance;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortTable;
use crate::external::static_mapping::Static;
use crate::external::static_mapping::StaticKey;
use crate::external::static_mapping::StaticMappingTable;
use crate::external::static_mapping::static_at;
use crate::external::static_mapping::static_count;
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
use crate::routes::RouteTable;
use crate::routes::live::LiveRoutes;
use crate::rows::StaticView;
use crate::settings::Filtering;
use crate::settings::Interface;
use crate::settings::Pool;
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
use crate::snapshot::transition::Transition;
use crate::state::flow::OutsideKey;
use crate::state::host::Way;
use crate::state::host::subscriber_prefix;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::HostNumber;
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

pub use self::compile::BuildError;
pub(crate) use self::compiled_pool::CompiledBlocks;
pub(crate) use self::compiled_pool::CompiledPool;
pub(crate) use self::next_hops::NextHop;
pub use self::next_hops::NextHopView;
pub(crate) use self::next_hops::compile_routes;

/// Compiled settings and port table of one instance.
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
    /// Formulas by pool.
    formulas: Vec<Option<Formula>>,
    /// By place.
    slots: Slots,
    /// By place: index into `pools`.
    compiled_of: Vec<u16>,
    /// Open addresses, pool by pool.
    open: Vec<AddressIndex>,
    /// All addresses, pool by pool.
    members: Vec<AddressIndex>,
    /// Sessions are hashed differently than in the snapshot before.
    rehashes_sessions: bool,
    /// Some mappings end at a given time, whatever their timers say.
    has_deadlines: bool,
    pub(crate) orphans: Orphans,
    /// Position in its pool, by place; `None` if removed from it.
    position_of: Vec<Option<u32>>,
    generation: u32,
    /// The latest generation that a worker may have adopted, over all snapshots of the instance.
    adopted: Arc<AtomicU32>,
    /// For each realm: pools by subscriber prefix.
    pool_routes: Vec<RouteTable>,
    outside_routes: RouteTable,
    /// For each realm: the routes inside.
    inside_routes: Vec<RouteTable>,
    next_hops: Vec<NextHop>,
    /// With routes of the kernel: next hops to IPv6 hosts, in the order of their values.
    host_hops: Vec<Option<NextHop>>,
    /// With routes of the kernel, in place of `next_hops`.
    live: Option<Arc<LiveRoutes>>,
    /// By interface: true if a kernel device takes packets to Natrix itself.
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
    /// Takes about 0.8 MiB an external address.
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
    /// it. It closes addresses at `now`.
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

    /// What is at a place.
    pub fn slot(&self, index: AddressIndex) -> Option<&Slot> {
        self.slots.slots.get(index.index())?.as_ref()
    }

    /// All external addresses by place, with closed ones.
    pub fn addresses(&self) -> impl Iterator<Item = (AddressIndex, &Slot)> {
        let places = (0..).map(AddressIndex).zip(&self.slots.slots);
        places.filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    /// Removed external addresses of which nothing is left. The next snapshot has them no more.
    pub fn addresses_left(&self) -> impl Iterator<Item = Ipv4Addr> {
        let is_left = |(place, slot): &(AddressIndex, &Slot)| {
            slot.closed.is_some_and(|closed| closed.removed)
                && self.ports.is_idle(*place)
                && !self.balance.concerns(slot.address.to_bits())
        };
        self.addresses().filter(is_left).map(|(_, slot)| slot.address)
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

    /// External addresses of both snapshots, which all workers must know before one switches.
    /// `None` without new ones.
    pub fn expected(&self, before: &Shared) -> Option<Arc<LocalAddresses>> {
        let is_new = |(place, slot): (AddressIndex, &Slot)| {
            before.slot(place).is_none_or(|before| before.address != slot.address)
        };
        if !self.addresses().any(is_new) {
            return None;
        }
        let places = (0..self.address_count().max(before.address_count()) as u32).map(AddressIndex);
        // An address that another replaced has no state left.
        let slots = places.filter_map(|place| Some((self.slot(place).or(before.slot(place))?.address, place)));
        let external: Vec<(Ipv4Addr, AddressIndex)> = slots.collect();
        Some(Arc::new(LocalAddresses::new(&self.settings.interfaces, &external)))
    }

    /// Why an address takes no new mappings.
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

    /// A worker may adopt this snapshot from now on. Even if the change is undone, no other
    /// snapshot has its generations next.
    pub(crate) fn note_adoption(&self) {
        self.adopted.store(self.generation, Ordering::Relaxed);
        self.filters.note_adoption();
    }

    /// The generation of records that were checked under this snapshot.
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

    /// True if all that the pool could give to an inside address drains. Forwards are created
    /// anyway.
    #[inline]
    pub(crate) fn has_only_closed(&self, compiled: &CompiledPool, realm: RealmId, inside: HostNumber) -> bool {
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

    /// True if an address offers this port, or a configured endpoint has it.
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

    /// True if a formula gives the port to this inside address; other realms may have it, too.
    pub(crate) fn is_by_formula(&self, index: AddressIndex, port: u16, realm: RealmId, inside: Ipv4Addr) -> bool {
        let is_served = || self.pool(self.pool_of(index)).is_some_and(|pool| pool.serves(realm));
        self.slice_owner(index, port) == Some(Owner::Subscriber(inside)) && is_served()
    }

    pub(crate) fn specs(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.ports())
    }

    /// By place, what is offered after the end of all removed forwards.
    pub(crate) fn specs_afterwards(&self) -> Vec<AddressSpec> {
        self.slots.specs(&self.settings, self.balance.led_ports())
    }

    /// Call it when all workers use this snapshot.
    pub fn settle(&self) {
        self.ports.forget_full_addresses();
        self.is_settled.store(true, Ordering::Release);
    }

    /// Forgets which addresses have no free block: size or range may have changed.
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

    pub(crate) fn closing(&self, address: u32) -> Option<Closed> {
        self.closed(self.local.pool_address(address)?)
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

    /// Like [`Shared::owner`]; for a shared endpoint, the worker with the flow to this remote
    /// endpoint.
    #[inline]
    pub(crate) fn owner_towards(&self, index: AddressIndex, key: &OutsideKey) -> Option<(WorkerId, MappingIndex)> {
        match self.ports.lookup(index, key.protocol, key.external.port) {
            Some((home, MappingIndex::SHARED)) => {
                Some((self.worker_of_flow(key).unwrap_or(home), MappingIndex::SHARED))
            }
            owner => owner,
        }
    }

    fn worker_of_flow(&self, key: &OutsideKey) -> Option<WorkerId> {
        self.between_workers.as_ref()?.claims.worker_of(key)
    }

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

    /// The pool that serves an inside address.
    pub fn pool_for(&self, realm: RealmId, inside: Ipv4Addr) -> Option<PoolId> {
        self.pool_routes.get(realm.index())?.lookup(inside.to_bits()).map(|pool| PoolId(pool as u16))
    }

    /// True for a packet from this interface to NAT64, a softwire's end or the port-control server.
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
            Some(Way::Softwire(_)) => view.next_header() == wire::ipv6::PROTOCOL_IPV4 || self.is_of_softwire(packet),
        }
    }

    /// True for a packet to a softwire's end that is more than IPv4 in IPv6, and still for the NAT:
    /// with extension headers, a request for port control, or an error about a softwire. All others
    /// are for Natrix as a host.
    #[cold]
    fn is_of_softwire(&self, packet: &[u8]) -> bool {
        let length = wire::ipv6::Ipv6::new_unchecked(packet).length().min(packet.len());
        let packet = packet.get(..length).unwrap_or_default();
        let Ok(chain) = wire::ipv6::chain_at_destination(packet) else { return false };
        if chain.segments_left.is_some() || wire::ipv6::unknown_option(packet).is_some() {
            return false;
        }
        let is_whole = chain.fragment.is_none_or(|fragment| fragment.is_atomic());
        let transport = packet.get(chain.offset..).unwrap_or_default();
        match chain.protocol {
            wire::ipv6::PROTOCOL_IPV4 => true,
            wire::ipv4::PROTOCOL_UDP => {
                let port = transport.get(2..).and_then(<[u8]>::first_chunk);
                is_whole && self.settings.port_control.pcp && port == Some(&pcp::SERVER_PORT.to_be_bytes())
            }
            wire::ipv6::PROTOCOL_ICMP6 => {
                is_whole && transport.first().is_some_and(|icmp_type| wire::icmp6::is_error(*icmp_type))
            }
            _ => false,
        }
    }

    /// True for a packet to the port-control server at an IPv6 address of Natrix in this
    /// interface's realm. Without NAT64 no IPv6 host has anything to ask there.
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

    /// The worker of an IPv6 host's subscriber.
    #[inline]
    pub fn worker_of_host(&self, address: u128) -> WorkerId {
        let prefix = subscriber_prefix(address, self.transition.prefix_length);
        self.spread((prefix >> 64) as u64 ^ (prefix as u64).rotate_left(32))
    }

    #[inline]
    pub(crate) fn worker_of_inside(&self, host: &InsideHost) -> WorkerId {
        match host {
            InsideHost::Ipv4(address) => self.worker_of_subscriber((*address).into()),
            InsideHost::Ipv6(address) | InsideHost::BehindB4 { b4: address, .. } => {
                self.worker_of_host(address.to_bits())
            }
        }
    }

    /// True if the address has a route inside.
    pub fn leads_inside(&self, realm: RealmId, address: Ipv4Addr) -> bool {
        self.route_in(realm, address.to_bits()).is_some()
    }

    /// What an address is as seen from this side. An address of another inside realm is not
    /// visible.
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

    /// The realm an interface faces; 0 outside.
    #[inline]
    pub fn realm_of(&self, interface: InterfaceId) -> RealmId {
        self.facing(interface).realm
    }

    pub(crate) fn own_address_towards(&self, towards: Facing, destination: u32) -> Option<u32> {
        if HostNumber(destination).is_ipv6() {
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

    /// The source of an own error about a hairpinned packet; without an IPv4 address inside the
    /// dummy address (RFC 7600 §4.8).
    pub(crate) fn own_source_towards(&self, realm: RealmId, receiver: Ipv4Addr) -> Ipv4Addr {
        let towards = Facing::inside(realm);
        let interfaces = self.settings.interfaces.iter().filter(|interface| interface.facing() == towards);
        let any = || interfaces.flat_map(|interface| &interface.addresses).map(|own| own.address.to_bits()).next();
        Ipv4Addr::from_bits(self.own_address_towards(towards, receiver.to_bits()).or_else(any).unwrap_or(DUMMY))
    }

    pub(crate) fn redirection(&self, id: RedirectionId) -> Option<&Redirection> {
        self.settings.redirections.get(id.0 as usize)
    }

    /// The first matching rule for a packet from inside that opens a mapping or a session.
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

    /// Rules that pass other protocols.
    pub fn passes(&self) -> &RuleBook {
        &self.passes
    }
}

impl core::fmt::Debug for Shared {
    /// Everything would fill pages.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Shared").field("generation", &self.generation).finish_non_exhaustive()
    }
}
