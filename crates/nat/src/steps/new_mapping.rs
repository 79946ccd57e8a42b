use crate::event::Cause;
use crate::external::ports::PortClass;
use crate::external::static_mapping::Kind;
use crate::random::Random;
use crate::settings::Pooling;
use crate::settings::Selection;
use crate::snapshot::shared::CompiledPool;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Ask;
use crate::steps::opening::Drawn;
use crate::steps::opening::Entered;
use crate::steps::opening::Entry;
use crate::steps::opening::External;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::opening::turn_of;
use crate::steps::port_choice::port_class;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::PoolId;
use crate::verdict::Verdict;

#[derive(Clone, Copy)]
pub(crate) struct Preview {
    pub(crate) mapping: NewMapping,
    /// The external address; `None` if it is chosen at random.
    pub(crate) address: Option<AddressIndex>,
}

/// One in which a new subscriber is paired with a little used address, and takes single ports.
fn is_usual_pool(compiled: &CompiledPool) -> bool {
    compiled.gives_single_ports()
        && compiled.pooling == Pooling::Paired
        && compiled.selection == Selection::LeastUsed
        && !compiled.one_to_one
        && !compiled.has_guarantees()
}

impl View<'_> {
    pub(crate) fn decide_mapping<T: Report>(
        &self,
        ask: &Ask<'_>,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        let owner = self.owner(ask);
        let compiled = self.pool_of_new(ask, &owner, report)?;
        let static_mapping = self.static_mapping_of(ask.key);
        self.admit_new(ask, compiled, static_mapping)?;
        match static_mapping {
            Some(static_mapping) => self.decide_static(ask, &owner, compiled, static_mapping, random, report),
            None => self.decide_dynamic(ask, &owner, compiled, random, report),
        }
    }

    /// What [`View::decide_mapping`] finds for most new subscribers: a port of a little used
    /// address of their own pool. `None` if they need a closer look.
    pub(crate) fn usual_new_subscriber(
        &self,
        key: &InternalKey,
        hash: u64,
        drawn: Option<&Drawn>,
        random: &mut Random,
    ) -> Option<NewMapping> {
        let (snapshot, subscribers) = (self.snapshot, &self.state.subscribers);
        let is_usual =
            snapshot.rules.is_empty() && snapshot.static_mappings.is_empty() && subscribers.lapsed_len() == 0;
        if !is_usual || subscribers.is_full() || self.check_source(Facing::inside(key.realm), key.address.0).is_some() {
            return None;
        }
        let pool = snapshot.pool_for(key.realm, key.address.into())?;
        let compiled = &snapshot.pools[pool.index()];
        let class = self.class_of(key.realm, key.address);
        if !is_usual_pool(compiled) || snapshot.classes.compiled(class).counts_mappings() {
            return None;
        }
        let owner = Owner { slot: None, past: None, class, penalty: None, released: None };
        let class_of_port = port_class(key.port, compiled);
        let drawn = drawn.filter(|drawn| drawn.pool == pool);
        let address = self.choose_of(drawn, key, compiled, class_of_port, random)?;
        let aim = drawn.and_then(|drawn| drawn.aim_at(address));
        let external = self.external_for(&owner, address, key, compiled, class_of_port, aim, random).ok()?;
        Some(NewMapping {
            key: *key,
            hash,
            owner,
            entered: Some(Entered { entry: Entry::new(pool, Place::Chosen), address }),
            external,
            notes_place: false,
            gives_single_ports: true,
            turn: None,
            cause: Cause::Outbound,
        })
    }

    /// For [`View::usual_new_subscriber`]. `None` if its pool is not usual.
    pub(crate) fn draw_for_new_subscriber(&self, key: &InternalKey, random: &mut Random) -> Option<Drawn> {
        let snapshot = self.snapshot;
        let pool = snapshot.pool_for(key.realm, key.address.into())?;
        let compiled = &snapshot.pools[pool.index()];
        if !is_usual_pool(compiled) {
            return None;
        }
        let draw = snapshot.ports.draw(snapshot.choices(compiled), key.protocol, random)?;
        let class = port_class(key.port, compiled);
        let aims = draw
            .addresses()
            .map(|address| snapshot.ports.aim(address, key.protocol, class, self.worker, snapshot.workers(), random));
        Some(Drawn { pool, draw, aims })
    }

    /// The address for a new subscriber, of those drawn for it.
    fn choose_of(
        &self,
        drawn: Option<&Drawn>,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
        random: &mut Random,
    ) -> Option<AddressIndex> {
        let Some(Drawn { draw, .. }) = drawn else { return self.choose_address(key, compiled, class, random) };
        self.snapshot.ports.choose_drawn(draw, self.snapshot.choices(compiled), key.protocol, class, random)
    }

    fn pool_of_new<T: Report>(&self, ask: &Ask<'_>, owner: &Owner, report: &mut T) -> Result<&CompiledPool, Verdict> {
        let static_mapping = self.static_mapping_of(ask.key);
        let pool = self.pool_of_endpoint(ask.key, owner, ask.wanted, static_mapping);
        if let Some(pool) = pool.filter(|_| self.pool_of_own_address(static_mapping).is_none()) {
            report_pool(pool, owner.penalty.is_some(), ask.wanted.is_some(), report);
        }
        let ends = self.recorded_ends(&ask.expired);
        if ends > 0 && !self.events.has_room_to_end(ends) {
            return Err(Verdict::LogFull);
        }
        let is_full = self.state.mappings.is_full() || self.state.outbound.is_full();
        if is_full && !ask.expired.is_any() {
            return Err(Verdict::MappingTableFull);
        }
        pool.map(|pool| &self.snapshot.pools[pool.index()]).ok_or(Verdict::SourceNotSubscriber)
    }

    /// Without a look at room. Rules choose `wanted`.
    #[inline]
    pub(crate) fn pool_of_endpoint(
        &self,
        key: &InternalKey,
        owner: &Owner,
        wanted: Option<PoolId>,
        static_mapping: Option<(Endpoint, Kind)>,
    ) -> Option<PoolId> {
        let own = || self.snapshot.pool_for(key.realm, key.address.into());
        self.pool_of_own_address(static_mapping).or(owner.penalty).or(wanted).or_else(own)
    }

    /// Whether the pool gives this endpoint anything new, if it has room.
    #[inline]
    pub(crate) fn check_pool(
        &self,
        key: &InternalKey,
        compiled: &CompiledPool,
        static_mapping: Option<(Endpoint, Kind)>,
    ) -> Result<(), Verdict> {
        if compiled.one_to_one && static_mapping.is_none() {
            // A one-to-one pool has addresses for its own subscribers only.
            return Err(Verdict::PortsExhausted);
        }
        if self.drains_for(key, compiled, static_mapping) { Err(Verdict::AddressDraining) } else { Ok(()) }
    }

    /// Where the pool gives the subscriber of `entry` something. `serves_others`: it has ports for
    /// subscribers of other pools.
    #[inline]
    pub(crate) fn place_given(
        &self,
        slot: Option<u32>,
        entry: &Entry,
        compiled: &CompiledPool,
        serves_others: bool,
    ) -> Option<Place> {
        match slot {
            Some(slot) if entry.pool != compiled.id => {
                if serves_others {
                    self.place_in_other_pool(slot, compiled)
                } else {
                    None
                }
            }
            _ => Some(entry.place),
        }
    }

    fn admit_new(
        &self,
        ask: &Ask<'_>,
        compiled: &CompiledPool,
        static_mapping: Option<(Endpoint, Kind)>,
    ) -> Result<(), Verdict> {
        let is_recorded = compiled.gives_single_ports() || self.snapshot.settings().events.block_mappings;
        if is_recorded && !self.events.has_room_to_allocate() {
            return Err(Verdict::LogFull);
        }
        if static_mapping.is_some() && !self.events.has_room_to_allocate() {
            return Err(Verdict::LogFull);
        }
        self.check_pool(ask.key, compiled, static_mapping)
    }

    fn decide_static<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        (external, kind): (Endpoint, Kind),
        random: &mut Random,
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        let key = ask.key;
        let class = port_class(key.port, compiled);
        let admitted = self.admit_mapping(ask, owner);
        let entry = match owner.slot {
            Some(slot) if self.is_settled(owner, slot) => Ok(None),
            _ => self.entry(owner, key, compiled, class).map(Some),
        };
        let entered = entry.and_then(|entry| match entry {
            Some(entry) => Ok(Some(self.entered(entry, ask, compiled, random)?)),
            None => Ok(None),
        });
        if owner.slot.is_none() {
            self.admit_subscriber(ask, owner, &entered)?;
        }
        let (host, port) = (self.configured_host(key.address), key.port);
        report.step(|| Step::StaticMapping { host, port, external, one_to_one: kind == Kind::OneToOne });
        admitted?;
        let entered = match entered {
            // Static mappings need no room. Anything else pairs the subscriber again.
            Err(Verdict::PortsExhausted | Verdict::AddressDraining) if owner.slot.is_some() => None,
            entered => entered?,
        };
        let Some(found) = self.static_external(key.protocol, (external, kind), &ask.expired) else {
            report.step(|| Step::PortAwaited(external));
            return Err(Verdict::PortsExhausted);
        };
        // The configured address pairs only a subscriber without another.
        let elsewhere = owner.slot.and_then(|slot| self.state.subscribers.elsewhere(slot));
        let elsewhere = entered.and_then(|entered| entered.entry.elsewhere).or(elsewhere);
        let mapping =
            NewMapping { notes_place: elsewhere.is_none(), ..self.new_mapping(ask, owner, entered, found, compiled) };
        Ok(Preview { mapping, address: Some(found.address) })
    }

    fn decide_dynamic<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        let decided = self.decide_unused(ask, owner, compiled, random, report);
        let Err(verdict @ (Verdict::PortsExhausted | Verdict::BlockLimit)) = decided else { return decided };
        match ask.expired.own.and_then(|_| self.external_of_expired(ask, owner, compiled)) {
            Some((entry, external)) => self.decide_at_expired(ask, owner, compiled, (entry, external), report),
            None => Err(verdict),
        }
    }

    #[cold]
    fn external_of_expired(&self, ask: &Ask<'_>, owner: &Owner, compiled: &CompiledPool) -> Option<(Entry, External)> {
        let entry = self.entry(owner, ask.key, compiled, port_class(ask.key.port, compiled)).ok()?;
        let place = self.place_given(owner.slot, &entry, compiled, compiled.gives_single_ports())?;
        Some((entry, self.port_of_expired(ask, compiled, place)?))
    }

    #[cold]
    fn decide_at_expired<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        (entry, external): (Entry, External),
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        self.admit_mapping(ask, owner)?;
        report.step(|| Step::MappingWouldBeCreated { ports_free: 1 });
        let entered = Some(Entered { entry, address: external.address }).filter(|_| entry.is_new);
        let mapping = self.new_mapping(ask, owner, entered, external, compiled);
        Ok(Preview { mapping, address: Some(external.address) })
    }

    /// With a port that is free now.
    fn decide_unused<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        let key = ask.key;
        let class = port_class(key.port, compiled);
        let entry = self.entry(owner, key, compiled, class);
        if owner.slot.is_none() {
            let entered = entry.and_then(|entry| self.entered(entry, ask, compiled, random));
            let refused = entered.as_ref().err().is_some();
            if refused {
                self.report_guarantee(owner, compiled, None, ask, report);
            }
            self.admit_subscriber(ask, owner, &entered)?;
            return self.decide_entered(ask, owner, compiled, entered?, random, report);
        }
        let entered = entry.and_then(|entry| self.entered(entry, ask, compiled, random));
        match entered {
            Ok(entered) => self.decide_entered(ask, owner, compiled, entered, random, report),
            // The subscriber's own limits come first.
            Err(verdict) => self.admit_mapping(ask, owner).and(Err(verdict)),
        }
    }

    fn decide_entered<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        entered: Entered,
        random: &mut Random,
        report: &mut T,
    ) -> Result<Preview, Verdict> {
        let is_own = entered.entry.pool == compiled.id;
        let place = || self.place_given(owner.slot, &entered.entry, compiled, compiled.gives_single_ports());
        let paired = owner.slot.and_then(|_| place()).and_then(known);
        if let Some(address) = paired {
            report.step(|| Step::PairedWith(self.snapshot.address(address)));
        }
        report.step(|| Step::Class(owner.class));
        self.admit_mapping(ask, owner)?;
        let external = self.external_now(ask, owner, &entered, compiled, random);
        if T::LISTENS {
            self.report_ports(ask, owner, compiled, is_own, paired, external.is_ok(), report);
        }
        let external = external?;
        let only = match self.snapshot.choices(compiled) {
            [only] => Some(*only),
            _ => None,
        };
        let entered = Some(entered).filter(|entered| entered.entry.is_new);
        let mapping = self.new_mapping(ask, owner, entered, external, compiled);
        Ok(Preview { mapping, address: paired.or(only) })
    }

    fn external_now(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        entered: &Entered,
        compiled: &CompiledPool,
        random: &mut Random,
    ) -> Result<External, Verdict> {
        let (key, class) = (ask.key, port_class(ask.key.port, compiled));
        match owner.slot {
            Some(slot) if entered.entry.pool != compiled.id => {
                self.external_in_other_pool(slot, key, compiled, class, random)
            }
            slot => {
                let is_previewed = slot == Some(ask.hints.subscriber) && !entered.entry.is_new;
                let aim = ask.hints.aim.filter(|_| is_previewed);
                let drawn = ask.hints.drawn_for(&entered.entry, compiled);
                let aim = aim.or_else(|| drawn?.aim_at(entered.address));
                self.external_for(owner, entered.address, key, compiled, class, aim, random)
            }
        }
    }

    fn entered(
        &self,
        entry: Entry,
        ask: &Ask<'_>,
        compiled: &CompiledPool,
        random: &mut Random,
    ) -> Result<Entered, Verdict> {
        let class = port_class(ask.key.port, compiled);
        let address = match ask.hints.drawn_for(&entry, compiled) {
            None => self.address_at(entry.place, ask.key, compiled, class, random)?,
            drawn => {
                let chosen = self.choose_of(drawn, ask.key, compiled, class, random);
                chosen.ok_or_else(|| self.why_no_address(compiled, ask.key))?
            }
        };
        Ok(Entered { entry, address })
    }

    fn admit_subscriber<E>(&self, ask: &Ask<'_>, owner: &Owner, entered: &Result<E, Verdict>) -> Result<(), Verdict> {
        if let Err(verdict) = entered {
            return Err(*verdict);
        }
        // Its record becomes free when its expired mapping ends, as does that of another.
        let ends = |index: u32| self.ends_with(self.state.mappings.get(index).subscriber, &ask.expired);
        let has_room =
            owner.past.is_some() || !self.state.subscribers.is_full() || ask.expired.at_port.is_some_and(ends);
        if has_room { Ok(()) } else { Err(Verdict::SubscriberTableFull) }
    }

    fn new_mapping(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        entered: Option<Entered>,
        external: External,
        compiled: &CompiledPool,
    ) -> NewMapping {
        let is_chosen = |entered: Entered| matches!(entered.entry.place, Place::Chosen | Place::Preferred(_));
        let is_any = entered.map_or_else(
            || owner.slot.is_some_and(|slot| self.state.subscribers.get(slot).paired == u32::MAX),
            |entered| entered.entry.place == Place::Any,
        );
        NewMapping {
            key: *ask.key,
            hash: ask.hints.hash,
            owner: *owner,
            entered,
            external,
            notes_place: true,
            gives_single_ports: compiled.gives_single_ports(),
            turn: turn_of(compiled, is_any || entered.is_some_and(is_chosen)),
            cause: Cause::Outbound,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what the decision has found so far")]
    fn report_ports<T: Report>(
        &self,
        ask: &Ask<'_>,
        owner: &Owner,
        compiled: &CompiledPool,
        is_own: bool,
        paired: Option<AddressIndex>,
        is_made: bool,
        report: &mut T,
    ) {
        let key = ask.key;
        if !compiled.gives_single_ports() && is_own {
            if let Some((slice, used)) = self.slice_in_blocks(compiled, key).filter(|(_, used)| used.leased > 0) {
                let (first, last, leased, ports) = (slice.first, slice.last, used.leased, used.offered);
                report.step(|| Step::SliceInBlocks { first, last, leased, ports });
            }
            if !is_made {
                return;
            }
        }
        let owner = &Owner { slot: owner.slot.filter(|_| is_own), ..*owner };
        self.report_guarantee(owner, compiled, paired, ask, report);
        if is_made {
            report.step(|| Step::MappingWouldBeCreated { ports_free: self.ports_left(owner, paired, key, compiled) });
        }
    }

    fn report_guarantee<T: Report>(
        &self,
        owner: &Owner,
        compiled: &CompiledPool,
        address: Option<AddressIndex>,
        ask: &Ask<'_>,
        report: &mut T,
    ) {
        if !T::LISTENS {
            return;
        }
        if let Some(guarantee) = self.guarantee_now(owner.slot, compiled, address, ask.key) {
            let p = ask.key.protocol.index();
            report.step(|| Step::Guaranteed { ports: guarantee.ports[p], missing: guarantee.missing[p] });
        }
    }

    /// The pool of the address of a static mapping, which takes precedence over rules and needs no
    /// room elsewhere.
    #[inline]
    fn pool_of_own_address(&self, static_mapping: Option<(Endpoint, Kind)>) -> Option<PoolId> {
        match static_mapping {
            Some((external, Kind::OneToOne)) => {
                self.snapshot.address_index(external.address).map(|own| self.snapshot.pool_of(own))
            }
            _ => None,
        }
    }

    /// True if everything that this pool could give drains. Forwards are made on draining addresses
    /// too.
    fn drains_for(&self, key: &InternalKey, compiled: &CompiledPool, static_mapping: Option<(Endpoint, Kind)>) -> bool {
        match static_mapping {
            Some((_, Kind::Forward)) => false,
            Some((external, Kind::OneToOne)) => {
                let address = self.snapshot.address_index(external.address);
                address.is_some_and(|address| self.snapshot.closed(address).is_some())
            }
            None => self.snapshot.has_only_closed(compiled, key.realm, key.address),
        }
    }
}

fn known(place: Place) -> Option<AddressIndex> {
    match place {
        Place::At(address) => Some(address),
        Place::Preferred(_) | Place::Chosen | Place::Any => None,
    }
}

pub(crate) fn report_pool<T: Report>(pool: PoolId, by_penalty: bool, by_rule: bool, report: &mut T) {
    match (by_penalty, by_rule) {
        (true, _) => report.step(|| Step::Penalty(pool)),
        (false, true) => {}
        (false, false) => report.step(|| Step::Pool(pool)),
    }
}
