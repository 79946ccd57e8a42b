//! Endpoint-dependent sessions and their external ports, which lead to several targets or are
//! shared (ADR 11):
//!
//! ```text
//!   a random port that this worker shares, without a session to this remote endpoint
//!   else a new one of the pool
//!   else any that this worker shares, in order
//!   else one that other workers share
//! ```

use crate::external::load_balancing::Aim;
use crate::external::load_balancing::Group as TargetGroup;
use crate::external::ports::PortClass;
use crate::external::ports::PortRange;
use crate::external::ports::Sought;
use crate::external::ports::Taker;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::may_reach;
use crate::random::Random;
use crate::settings::MappingKind;
use crate::settings::Pooling;
use crate::settings::RuleAction;
use crate::snapshot::shared::CompiledPool;
use crate::state::flow::Flow;
use crate::state::flow::InsideKey;
use crate::state::flow::OutsideKey;
use crate::state::mapping::InternalKey;
use crate::state::shared_ports::Group;
use crate::state::shared_ports::SharedPort;
use crate::state::tcp;
use crate::state::tcp::TcpState;
use crate::steps::expired::Expired;
use crate::steps::new_mapping::report_pool;
use crate::steps::opening::Ask;
use crate::steps::opening::Entered;
use crate::steps::opening::Entry;
use crate::steps::opening::Hints;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::opening::turn_of;
use crate::steps::outbound::Departure;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Way;
use crate::steps::pairing::UNPAIRED;
use crate::steps::port_choice::port_class;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::ExternalEndpoint;
use crate::types::Facing;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::verdict::Verdict;
use wire::tcp::Flags;

const TARGET_HASH: u64 = 0x7a26;
/// Random shared ports tried before a new port.
const PROBES: u32 = 8;
/// Shared ports tried in order if there is no new port.
const LAST_PROBES: u32 = 64;
/// Ports searched for one that only other workers share.
const BORROWABLE_PROBES: usize = 256;
const ADDRESS_PROBES: usize = 16;

#[derive(Clone, Copy)]
pub(crate) struct DependentSessionRequest<'k> {
    pub(crate) now: Instant,
    pub(crate) key: &'k InternalKey,
    pub(crate) remote_inside: RemoteInside,
    pub(crate) remote_outside: RemoteOutside,
    pub(crate) wanted: Option<PoolId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSource {
    /// A port that sessions of this worker share, or did: the number of its record.
    Own(u32),
    Borrowed,
    New,
}

#[derive(Clone, Copy)]
pub(crate) struct NewDependent {
    pub(crate) key: InternalKey,
    pub(crate) remote_inside: RemoteInside,
    pub(crate) outside: OutsideKey,
    pub(crate) owner: Owner,
    pub(crate) entered: Option<Entered>,
    pub(crate) address: AddressIndex,
    pub(crate) class: PortClass,
    pub(crate) source: PortSource,
    pub(crate) may_open: bool,
    pub(crate) turn: Option<PoolId>,
    /// An ended session with one of the five-tuples: end it, then decide again.
    pub(crate) over: Option<u32>,
}

#[derive(Clone, Copy)]
pub(crate) struct NewLead {
    pub(crate) key: InternalKey,
    pub(crate) outside: OutsideKey,
    pub(crate) position: usize,
    pub(crate) owner: Owner,
    pub(crate) entered: Option<Entered>,
    pub(crate) over: Option<u32>,
}

/// Blocks have ports of all classes.
fn class_in(compiled: &CompiledPool, class: PortClass) -> Option<PortClass> {
    compiled.blocks.is_none().then_some(class)
}

impl View<'_> {
    /// The remote endpoint outside; `None` if the packet should open no such session.
    pub(crate) fn dependent_wanted(
        &self,
        key: &InternalKey,
        remote_inside: RemoteInside,
        has_mapping: bool,
        action: RuleAction,
    ) -> Option<RemoteOutside> {
        match action {
            RuleAction::Redirect(redirection) => {
                // Hashes the subscriber, so that all its sessions go to one target.
                let hash = self.state.hash.hash(self.lasting_name(key.realm, key.address), TARGET_HASH);
                Some(self.snapshot.redirection(redirection)?.remote_outside(key.protocol, remote_inside, hash))
            }
            RuleAction::Translate { mapping: MappingKind::EndpointDependent, pool } => {
                // Static mappings, existing mappings and ports by formula (RFC 7422) share no
                // external endpoint.
                let pool = || pool.or_else(|| self.snapshot.pool_for(key.realm, key.address.into()));
                let has_own = has_mapping
                    || self.static_mapping_of(key).is_some()
                    || pool().is_some_and(|pool| self.snapshot.formula(pool).is_some());
                (!has_own).then_some(remote_inside.not_redirected())
            }
            RuleAction::Translate { .. } | RuleAction::NoTranslation | RuleAction::Drop => None,
        }
    }

    /// `None`: a mapping serves.
    pub(crate) fn open_dependent<T: Report>(
        &self,
        parsed: &Parsed,
        ask: &DependentSessionRequest<'_>,
        action: RuleAction,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Option<Departure>, Ending> {
        let DependentSessionRequest { key, remote_outside: remote, wanted, .. } = *ask;
        if !may_reach(key.address, remote.address) || self.local.lookup(remote.address).is_some() {
            return Err(Ending::Drop(Verdict::DestinationInvalid));
        }
        let way = Way::Out(self.way(Facing::OUTSIDE, remote.address, parsed, report)?);
        if parsed.class == Class::IcmpReply {
            return Err(Ending::Drop(Verdict::IcmpTypeUnsupported));
        }
        if parsed.fragment_offset != 0 {
            return Err(Ending::Drop(Verdict::FragmentRefused));
        }
        if key.protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) {
            return Err(Ending::Drop(Verdict::TcpNoSession));
        }
        match self.decide_dependent(ask, random, report) {
            Ok(new) => {
                report.step(|| Step::FlowWouldBeCreated { remote: remote.into() });
                Ok(Some(Departure::OpenDependent { new, way }))
            }
            Err(verdict @ (Verdict::PortsExhausted | Verdict::SubscriberPortQuota)) => {
                let at_quota = verdict == Verdict::SubscriberPortQuota;
                report.step(|| Step::NoSharedPort { remote: remote.into(), at_quota });
                // The subscriber's blocks may have ports left for a mapping. A changed destination
                // needs an endpoint-dependent session.
                let serves = matches!(action, RuleAction::Translate { .. }) && !at_quota;
                if serves { Ok(None) } else { Err(Ending::Refuse { key: *key, verdict, wanted }) }
            }
            Err(verdict) => Err(Ending::Refuse { key: *key, verdict, wanted }),
        }
    }

    fn decide_dependent<T: Report>(
        &self,
        ask: &DependentSessionRequest<'_>,
        random: &mut Random,
        report: &mut T,
    ) -> Result<NewDependent, Verdict> {
        let DependentSessionRequest { now, key, remote_inside, remote_outside, wanted } = *ask;
        let expired = self.state.flows.find_inside(&InsideKey::new(key, remote_inside));
        self.admit_record(expired)?;
        let owner = self.owner(&Ask { now, key, wanted, hints: Hints::of(0), expired: Expired::NONE });
        let own = || self.snapshot.pool_for(key.realm, key.address.into());
        let pool = owner.penalty.or(wanted).or_else(own).ok_or(Verdict::SourceNotSubscriber)?;
        report_pool(pool, owner.penalty.is_some(), wanted.is_some(), report);
        if self.snapshot.formula(pool).is_some() {
            // With a formula, each port belongs to a subscriber.
            return Err(Verdict::PortsExhausted);
        }
        let compiled = &self.snapshot.pools[pool.index()];
        if self.snapshot.has_only_closed(compiled, key.realm, key.address) {
            return Err(Verdict::AddressDraining);
        }
        let search = Search {
            key,
            owner: &owner,
            compiled,
            class: port_class(key.port, compiled),
            remote: remote_outside,
            // The expired session ends first, and its port may then not count.
            may_open: self.admits_port(key, u32::from(expired.is_some_and(|index| self.is_last_on_port(index)))),
            now,
        };
        let entered = self.entry_for_dependent(&search, random);
        self.admit_dependent(now, key, &owner, &entered)?;
        let entered = entered?;
        let address = self.address_for_dependent(&search, &entered, random, report)?;
        let (port, source, over) = self.shared_port(&search, address, random).ok_or(search.exhausted())?;
        let external = ExternalEndpoint { address: self.snapshot.address(address).to_bits(), port };
        let outside = OutsideKey { protocol: key.protocol, external, remote_outside };
        // After a long idle time, an ended session may have the five-tuple.
        let over = over.or_else(|| self.state.flows.find_outside(&outside));
        Ok(NewDependent {
            key: *key,
            remote_inside,
            outside,
            owner,
            entered: Some(entered).filter(|entered| entered.entry.is_new),
            address,
            class: search.class,
            source,
            may_open: search.may_open,
            turn: search.turn(&entered),
            over: expired.or(over),
        })
    }

    fn admit_record(&self, over: Option<u32>) -> Result<(), Verdict> {
        let ends_one = over.is_some_and(|index| self.state.flows.get(index).is_in_use());
        if ends_one && !self.events.has_room_to_end(1) {
            return Err(Verdict::LogFull);
        }
        if self.state.flows.is_full() && !ends_one { Err(Verdict::FlowTableFull) } else { Ok(()) }
    }

    fn admit_dependent<E>(
        &self,
        now: Instant,
        key: &InternalKey,
        owner: &Owner,
        entered: &Result<E, Verdict>,
    ) -> Result<(), Verdict> {
        if owner.slot.is_none() {
            if let Err(verdict) = entered {
                return Err(*verdict);
            }
            if self.state.subscribers.is_full() {
                return Err(Verdict::SubscriberTableFull);
            }
        }
        if !self.events.has_room_to_allocate() {
            return Err(Verdict::LogFull);
        }
        self.admit_flow(now, key.realm, key.address)
    }

    fn entry_for_dependent(&self, search: &Search<'_>, random: &mut Random) -> Result<Entered, Verdict> {
        let Search { key, owner, compiled, class, .. } = *search;
        if let Some(slot) = owner.slot.filter(|slot| self.is_settled(owner, *slot)) {
            let record = self.state.subscribers.get(slot);
            let paired = AddressIndex(record.paired);
            let place = if paired == UNPAIRED { Place::Any } else { Place::At(paired) };
            let entry = Entry { is_new: false, ..Entry::new(PoolId(record.pool), place) };
            return Ok(Entered { entry, address: paired });
        }
        let entry = self.entry(owner, key, compiled, class);
        let entered = entry.and_then(|entry| {
            let address = self.address_at(entry.place, key, compiled, class, random)?;
            Ok(Entered { entry, address })
        });
        let may_share = |verdict: Verdict| {
            owner.slot.is_some() || verdict == Verdict::PortsExhausted && compiled.pooling == Pooling::Paired
        };
        match entered {
            Err(verdict) if may_share(verdict) => {
                let address = self.address_to_share(search, random).ok_or(search.exhausted())?;
                Ok(Entered { entry: Entry::new(compiled.id, Place::At(address)), address })
            }
            entered => entered,
        }
    }

    fn address_for_dependent<T: Report>(
        &self,
        search: &Search<'_>,
        entered: &Entered,
        random: &mut Random,
        report: &mut T,
    ) -> Result<AddressIndex, Verdict> {
        let Search { key, owner, compiled, class, .. } = *search;
        let place = match owner.slot {
            Some(slot) if entered.entry.pool != compiled.id => {
                self.place_in_other_pool(slot, compiled).ok_or(Verdict::PortsExhausted)?
            }
            _ => match entered.entry.place {
                Place::Preferred(home) if home == entered.address => Place::At(home),
                place => place,
            },
        };
        if let Place::At(address) = place {
            report.step(|| Step::PairedWith(self.snapshot.address(address)));
            return Ok(address);
        }
        if place != Place::Any {
            return Ok(entered.address);
        }
        let found = if search.may_open {
            let free = self.choose_address(key, compiled, class, random);
            free.or_else(|| self.address_to_share(search, random))
        } else {
            self.address_with_shared_ports(search, random)
        };
        found.ok_or(search.exhausted())
    }

    /// An address of a full pool that has a shared port, or a single port of a block that cannot be
    /// leased.
    fn address_to_share(&self, search: &Search<'_>, random: &mut Random) -> Option<AddressIndex> {
        let (compiled, protocol) = (search.compiled, search.key.protocol);
        let has_single = |address: AddressIndex| self.snapshot.ports.has_single_port(address, protocol, search.class);
        let gives_blocks = compiled.blocks.is_some() && compiled.slice_ports == 0;
        let single = self.random_address(compiled, random, |address| gives_blocks && has_single(address));
        single.or_else(|| self.address_with_shared_ports(search, random))
    }

    fn address_with_shared_ports(&self, search: &Search<'_>, random: &mut Random) -> Option<AddressIndex> {
        self.random_address(search.compiled, random, |address| {
            let group = Group::new(address, search.key.protocol, search.class);
            match &self.snapshot.between_workers {
                Some(between_workers) => between_workers.map.count(group) > 0,
                None => self.state.shared_ports.count(group) > 0,
            }
        })
    }

    fn random_address(
        &self,
        compiled: &CompiledPool,
        random: &mut Random,
        suits: impl Fn(AddressIndex) -> bool,
    ) -> Option<AddressIndex> {
        let open = self.snapshot.choices(compiled);
        let first = if open.is_empty() { 0 } else { random.below(open.len() as u32) as usize };
        let (before, after) = open.split_at(first);
        let mut from_there = after.iter().chain(before).take(ADDRESS_PROBES).copied();
        from_there.find(|address| suits(*address))
    }

    /// At its port limit, a subscriber only shares ports that carry sessions.
    fn shared_port(
        &self,
        search: &Search<'_>,
        address: AddressIndex,
        random: &mut Random,
    ) -> Option<(u16, PortSource, Option<u32>)> {
        let group = Group::new(address, search.key.protocol, search.class);
        let ports = &self.state.shared_ports;
        let count = ports.count(group);
        let min = if search.may_open { u32::from(search.compiled.shared_ports_min) } else { 0 };
        if count >= min {
            let picked = (0..PROBES.min(count)).find_map(|_| self.carries(search, ports.pick(group, random)?));
            if picked.is_some() {
                return picked;
            }
        }
        if search.may_open
            && let Some(port) = self.free_port_to_share(search.compiled, group, search.class, random)
        {
            return Some((port, PortSource::New, None));
        }
        if count > 0 {
            let first = random.below(count);
            let mut slots = (0..count.min(LAST_PROBES)).filter_map(|n| ports.nth_from(group, first, n));
            if let Some(found) = slots.find_map(|slot| self.carries(search, slot)) {
                return Some(found);
            }
        }
        self.borrowable_port(search, group, random).map(|port| (port, PortSource::Borrowed, None))
    }

    /// Also returns an ended session that still has the five-tuple.
    fn carries(&self, search: &Search<'_>, slot: u32) -> Option<(u16, PortSource, Option<u32>)> {
        let record = self.state.shared_ports.get(slot)?;
        let (address, protocol, port) = (record.group().address(), record.group().protocol(), record.port());
        let ports = &self.snapshot.ports;
        // The home may have given the port back while this record remains.
        if !ports.is_shared(address, protocol, port) || ports.is_going_out(address, protocol, port) {
            return None;
        }
        let users = ports.users(address, protocol, port);
        let subscriber = search.owner.slot.unwrap_or(0);
        if !record.may_carry(subscriber, search.may_open, || users > 0) {
            return None;
        }
        let external = ExternalEndpoint { address: self.snapshot.address(address).to_bits(), port };
        let outside = OutsideKey { protocol, external, remote_outside: search.remote };
        let found = (port, PortSource::Own(slot), self.state.flows.find_outside(&outside));
        let Some(over) = found.2 else { return (!self.snapshot.is_claimed(&outside)).then_some(found) };
        let flow = self.state.flows.get(over);
        if flow.is_held_down() {
            return (search.now >= flow.expires()).then_some(found);
        }
        if flow.is_alive(search.now) || !self.events.has_room_to_end(1) || self.hold_down_of(flow) != Duration::ZERO {
            return None;
        }
        // After the end of `over`, the port may carry nothing, or not count for its opener.
        let is_own = flow.subscriber == subscriber && self.is_last_on_port(over);
        let is_busy = record.flows() > 1 || users > 1;
        (search.may_open || is_busy || is_own && self.admits_port(search.key, 1)).then_some(found)
    }

    fn free_port_to_share(
        &self,
        compiled: &CompiledPool,
        group: Group,
        class: PortClass,
        random: &mut Random,
    ) -> Option<u16> {
        let (address, protocol) = (group.address(), group.protocol());
        if self.state.shared_ports.is_full()
            || compiled.has_guarantees() && !self.has_beyond_guarantees(compiled, address, protocol)
        {
            return None;
        }
        let found = self.port_among_shared(compiled, group, class, random);
        let sought = Sought { address, protocol, class, worker: self.worker, workers: self.snapshot.workers() };
        // A shared port's record cannot hold port 0, which a one-to-one address also has.
        let mut picked = (0..2).filter_map(|_| self.snapshot.ports.pick(&sought, None, random));
        found.or_else(|| picked.find(|port| *port != 0))
    }

    /// Next to ports that this worker shares, or in an unused block: scattered ports would leave
    /// few blocks to lease.
    fn port_among_shared(
        &self,
        compiled: &CompiledPool,
        group: Group,
        class: PortClass,
        random: &mut Random,
    ) -> Option<u16> {
        let blocks = compiled.blocks.filter(|_| compiled.slice_ports == 0)?;
        let (address, protocol, ports) = (group.address(), group.protocol(), &self.snapshot.ports);
        for neighbour in [protocol, Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
            let slot = self.state.shared_ports.pick(Group::new(address, neighbour, class), random);
            let Some(port) = slot.and_then(|slot| self.state.shared_ports.get(slot)).map(SharedPort::port) else {
                continue;
            };
            let size = blocks.size.ports() as u16;
            let first = port / size * size;
            let range =
                PortRange { address, first: first.max(blocks.first), last: (first | (size - 1)).min(blocks.last) };
            if !range.contains(port) {
                continue;
            }
            let found = ports.pick_within(&range, protocol, None, Taker::Anyone, random);
            if found.is_some() {
                return found;
            }
        }
        let whole = PortRange { address, first: blocks.first, last: blocks.last };
        let block = ports.free_block(&whole, blocks.size, random)?;
        ports.pick_within(&PortRange::of_block(block), protocol, None, Taker::Anyone, random)
    }

    fn borrowable_port(&self, search: &Search<'_>, group: Group, random: &mut Random) -> Option<u16> {
        let (ports, known) = (&self.snapshot.ports, &self.state.shared_ports);
        // This worker has already tried its own ports.
        let between_workers = self
            .snapshot
            .between_workers
            .as_ref()
            .filter(|between_workers| between_workers.map.count(group) > known.count(group))?;
        if known.is_full() {
            return None;
        }
        let (address, protocol) = (group.address(), group.protocol());
        let external = self.snapshot.address(address).to_bits();
        let first = random.next_u64() as u16;
        let all =
            between_workers.map.from(group, class_in(search.compiled, search.class), first).take(BORROWABLE_PROBES);
        let mut unknown = all.filter(|port| known.find_port(group, *port).is_none()).take(LAST_PROBES as usize);
        unknown.find(|port| {
            let outside = OutsideKey {
                protocol,
                external: ExternalEndpoint { address: external, port: *port },
                remote_outside: search.remote,
            };
            (search.may_open || ports.users(address, protocol, *port) > 0)
                && !ports.is_going_out(address, protocol, *port)
                && !self.snapshot.is_claimed(&outside)
        })
    }

    /// True if the port no longer counts for its opener after this session.
    fn is_last_on_port(&self, index: u32) -> bool {
        let flow = self.state.flows.get(index);
        let port = flow.generation().is_none().then(|| self.state.shared_ports.get(flow.port)).flatten();
        port.is_some_and(|port| port.is_last_of_opener(flow.subscriber))
    }

    /// The hold-down of the five-tuple, if the session ends now (RFC 6888 REQ-8).
    pub(crate) fn hold_down_of(&self, flow: &Flow) -> Duration {
        let Some(address) = self.snapshot.address_index(flow.external().address.into()) else { return Duration::ZERO };
        let compiled = self.snapshot.compiled_pool(address);
        let was_closed = flow.protocol() == Protocol::Tcp && flow.state() == TcpState::Closing;
        let is_free = compiled.reuse_at_once.filtered || compiled.reuse_at_once.tcp_closed && was_closed;
        if is_free { Duration::ZERO } else { compiled.reuse_delay }
    }

    /// Decides about a packet from outside without a live session.
    pub(crate) fn decide_lead(
        &self,
        now: Instant,
        aim: &Aim,
        outside: &OutsideKey,
        random: &mut Random,
    ) -> Result<NewLead, Verdict> {
        let OutsideKey { protocol, external, remote_outside } = *outside;
        let key = InternalKey { realm: aim.realm, protocol, address: aim.address, port: aim.port };
        let flows = &self.state.flows;
        // Each table holds one session for a five-tuple, so old ones must end first.
        let over = flows
            .find_outside(outside)
            .or_else(|| flows.find_inside(&InsideKey::new(&key, remote_outside.not_redirected())));
        self.admit_record(over)?;
        let owner = self.owner(&Ask { now, key: &key, wanted: None, hints: Hints::of(0), expired: Expired::NONE });
        let entered = match owner.slot {
            Some(_) => Ok(None),
            None => self.entry_of_target(&key, external.address, random).map(Some),
        };
        self.admit_dependent(now, &key, &owner, &entered)?;
        let group = self.snapshot.balance.find(external.address, protocol, external.port);
        if group.and_then(TargetGroup::current).is_none() {
            return Err(Verdict::NoMapping);
        }
        let entered = entered?;
        Ok(NewLead { key, outside: *outside, position: aim.position, owner, entered, over })
    }

    /// A target's sessions take no port, so the pool may be full: a new subscriber is then paired
    /// with the address at which it was reached.
    fn entry_of_target(&self, key: &InternalKey, external: u32, random: &mut Random) -> Result<Entered, Verdict> {
        let pool = self.snapshot.pool_for(key.realm, key.address.into()).ok_or(Verdict::SourceNotSubscriber)?;
        let compiled = &self.snapshot.pools[pool.index()];
        let entry = Entry::new(pool, self.place_of_new(key, compiled)?);
        match self.address_at(entry.place, key, compiled, port_class(key.port, compiled), random) {
            Ok(address) => Ok(Entered { entry, address }),
            Err(verdict @ (Verdict::PortsExhausted | Verdict::AddressDraining))
                if compiled.pooling == Pooling::Paired =>
            {
                let reached = self.snapshot.address_index(external.into());
                let address = reached.filter(|address| self.snapshot.pool_of(*address) == pool).ok_or(verdict)?;
                Ok(Entered { entry: Entry::new(pool, Place::At(address)), address })
            }
            Err(verdict) => Err(verdict),
        }
    }
}

struct Search<'s> {
    now: Instant,
    key: &'s InternalKey,
    owner: &'s Owner,
    compiled: &'s CompiledPool,
    class: PortClass,
    remote: RemoteOutside,
    may_open: bool,
}

impl Search<'_> {
    fn turn(&self, entered: &Entered) -> Option<PoolId> {
        let is_chosen = match entered.entry.place {
            Place::At(_) => false,
            Place::Any => self.may_open,
            Place::Preferred(_) | Place::Chosen => entered.entry.is_new,
        };
        turn_of(self.compiled, is_chosen)
    }

    fn exhausted(&self) -> Verdict {
        if self.may_open { Verdict::PortsExhausted } else { Verdict::SubscriberPortQuota }
    }
}
