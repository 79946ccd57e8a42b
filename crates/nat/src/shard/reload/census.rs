//! Counts what a configuration change would do to one worker's state.

use crate::rows::Prospect;
use crate::steps::port_choice::hold_down_of_port;
use crate::steps::view::View;
use core::cmp::Reverse;
use core::net::Ipv4Addr;

use crate::external::address_slots::ends;
use crate::external::blocks::Block;
use crate::external::ports::PortRange;
use crate::reload::already_held::AlreadyHeld;
use crate::reload::outlook::Outlook;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::shard::reload::next_mapping::Denial;
use crate::shard::reload::next_mapping::Next;
use crate::shard::reload::stay::Stay;
use crate::snapshot::shared::Shared;
use crate::snapshot::slices_in_blocks::SliceHolds;
use crate::state::subscriber::Subscriber;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

const FLOW_CURSOR: u32 = 1 << 30;
const SUBSCRIBER_CURSOR: u32 = 1 << 31;

/// One pool's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCensus {
    /// They notice nothing.
    pub subscribers_keep: u64,
    /// Their next mapping is on another address.
    pub subscribers_move: u64,
    /// They get nothing new, because all their addresses drain.
    pub subscribers_drain: u64,
    /// The same, until the drain time ends.
    pub subscribers_drain_until: u64,
    /// No pool serves them any more, or their state ends.
    pub subscribers_leave: u64,
    /// Mappings.
    pub mappings: Fates,
    /// Endpoint-dependent sessions.
    pub flows: Fates,
    /// Port blocks.
    pub blocks: Fates,
    /// Mappings on a port that a forward gives to another inside endpoint. Until they end, the
    /// forward takes no new sessions there.
    pub in_the_way_of_forwards: Fates,
}

/// What happens to mappings, sessions or blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Unchanged.
    pub keep: u64,
    /// Kept while used, on ports not allocated again.
    pub drain: u64,
    /// The same, until the drain time ends.
    pub drain_until: u64,
    /// Ended by the change.
    pub end: u64,
}

impl Fates {
    fn add(&mut self, other: &Fates) {
        self.keep += other.keep;
        self.drain += other.drain;
        self.drain_until += other.drain_until;
        self.end += other.end;
    }

    fn count(&mut self, fate: Fate) {
        match fate {
            Fate::Keep => self.keep += 1,
            Fate::Drain => self.drain += 1,
            Fate::DrainUntil(_) => self.drain_until += 1,
            Fate::End => self.end += 1,
        }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        self.keep + self.drain + self.drain_until + self.end
    }
}

/// In order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Keep,
    Drain,
    DrainUntil(Reverse<Instant>),
    End,
}

impl Fate {
    fn until(ends: Option<Instant>, now: Instant) -> Fate {
        match ends {
            Some(ends) if ends <= now => Fate::End,
            Some(ends) => Fate::DrainUntil(Reverse(ends)),
            None => Fate::Drain,
        }
    }

    fn prospect(self) -> Prospect {
        match self {
            Fate::Keep => Prospect::Keeps,
            Fate::Drain => Prospect::Drains(None),
            Fate::DrainUntil(Reverse(ends)) => Prospect::Drains(Some(ends)),
            Fate::End => Prospect::Ends,
        }
    }

    fn of(stay: Stay, now: Instant) -> Fate {
        match stay {
            Stay::Stays => Fate::Keep,
            Stay::Leaves(ends) => Fate::until(ends, now),
        }
    }
}

/// Where an affected subscriber's next mapping will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// In this pool, numbered as in the new settings.
    Pool(PoolId),
    /// Nowhere, because of a rule.
    Nothing(Denial),
}

struct Forecast {
    becomes: Prospect,
    from: Option<AddressIndex>,
    onward: Option<Onward>,
    protocols: [bool; Protocol::COUNT],
}

impl Forecast {
    const KEEPS: Forecast =
        Forecast { becomes: Prospect::Keeps, from: None, onward: None, protocols: [false; Protocol::COUNT] };
}

/// A subscriber that notices the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affected {
    /// Inside realm.
    pub realm: RealmId,
    /// Internal address.
    pub address: Ipv4Addr,
    /// Its present pool, or [`PoolId::NONE`].
    pub pool: PoolId,
    /// None if it has none, or may have any of the pool.
    pub external: Option<Ipv4Addr>,
    /// Its prospect.
    pub becomes: Prospect,
    /// Where its next mapping will be, if that changes and is the same for all `protocols`.
    pub onward: Option<Onward>,
    /// Affected protocols, by [`Protocol::index`].
    pub protocols: [bool; Protocol::COUNT],
}

/// A mapping, an endpoint-dependent session or a port block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Inside realm.
    pub realm: RealmId,
    /// For a block the subscriber's address and port 0.
    pub internal: Endpoint,
    /// None for a block.
    pub protocol: Option<Protocol>,
    /// Of the external address.
    pub pool: PoolId,
    /// External address.
    pub external: Ipv4Addr,
    /// First and last.
    pub ports: (u16, u16),
    /// As the subscriber of an endpoint-dependent session sees it.
    pub remote: Option<Endpoint>,
    /// Its prospect.
    pub becomes: Prospect,
}

/// As many examples as there is room for.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Mappings.
    pub mappings: Vec<Held>,
    /// Endpoint-dependent sessions.
    pub flows: Vec<Held>,
    /// Port blocks.
    pub blocks: Vec<Held>,
}

impl Named {
    /// Room for `each` of each kind.
    pub fn with_room(each: usize) -> Named {
        Named { mappings: Vec::with_capacity(each), flows: Vec::with_capacity(each), blocks: Vec::with_capacity(each) }
    }
}

fn name(list: &mut Vec<Held>, held: impl FnOnce() -> Held) {
    if list.len() < list.capacity() {
        list.push(held());
    }
}

/// A census's result.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// By pool.
    pub pools: Vec<PoolCensus>,
    /// As many as there is room for.
    pub affected: Vec<Affected>,
    /// What changes.
    pub concerned: Named,
    /// What stays.
    pub kept: Named,
    /// Ports already held of those to be guaranteed.
    pub already_held: AlreadyHeld,
    /// Until when blocks lie in other subscribers' slices.
    pub slice_holds: SliceHolds,
    /// How the settings differ.
    pub outlook: Outlook,
}

impl Census {
    fn named(&mut self, becomes: Prospect) -> &mut Named {
        if becomes == Prospect::Keeps { &mut self.kept } else { &mut self.concerned }
    }
}

impl PoolCensus {
    /// Adds `other`.
    pub fn add(&mut self, other: &PoolCensus) {
        self.subscribers_keep += other.subscribers_keep;
        self.subscribers_move += other.subscribers_move;
        self.subscribers_drain += other.subscribers_drain;
        self.subscribers_drain_until += other.subscribers_drain_until;
        self.subscribers_leave += other.subscribers_leave;
        self.mappings.add(&other.mappings);
        self.flows.add(&other.flows);
        self.blocks.add(&other.blocks);
        self.in_the_way_of_forwards.add(&other.in_the_way_of_forwards);
    }
}

impl View<'_> {
    /// Counts what `candidate` would do to the next `scan_max` records from `cursor` on (0 to
    /// begin), including blocks and rules. `census` has an entry for each of [`Shared::pools`].
    /// Returns the next cursor, None at the end.
    pub fn census_page(
        &self,
        now: Instant,
        candidate: &Shared,
        cursor: u32,
        scan_max: usize,
        census: &mut Census,
    ) -> Option<u32> {
        let mut cursor = cursor.max(1);
        let mut seen = 0;
        while seen < scan_max {
            if cursor < FLOW_CURSOR && cursor >= self.state.mappings.walk_end() {
                cursor = FLOW_CURSOR | 1;
            }
            if (FLOW_CURSOR..SUBSCRIBER_CURSOR).contains(&cursor)
                && cursor & !FLOW_CURSOR >= self.state.flows.walk_end()
            {
                cursor = SUBSCRIBER_CURSOR | 1;
            }
            if cursor < FLOW_CURSOR {
                self.count_mapping_under(now, candidate, cursor, census);
            } else if cursor < SUBSCRIBER_CURSOR {
                self.count_flow_under(now, candidate, cursor & !FLOW_CURSOR, census);
            } else if cursor & !SUBSCRIBER_CURSOR >= self.state.subscribers.walk_end() {
                return None;
            } else {
                seen += self.count_subscriber_under(now, candidate, cursor & !SUBSCRIBER_CURSOR, census);
            }
            cursor += 1;
            seen += 1;
        }
        Some(cursor)
    }

    fn count_mapping_under(&self, now: Instant, candidate: &Shared, index: u32, census: &mut Census) {
        let mapping = self.state.mappings.get(index);
        if !mapping.is_in_use() || !self.state.is_alive(index, now) {
            return;
        }
        let external = mapping.external();
        let Some((address, count)) = self.pool_count(external.address, census) else { return };
        let (slot, protocol) = (mapping.subscriber, mapping.protocol());
        let fate = self.fate_of_mapping(now, candidate, index);
        count.mappings.count(fate);
        if candidate.is_in_the_way_of_forward(&self.static_key(&mapping.key()), external) {
            count.in_the_way_of_forwards.count(fate);
        }
        let becomes = fate.prospect();
        if self.state.subscribers.get(slot).paired == address.0
            && let Some(mask) = census.already_held.mask(address, protocol)
            && self.snapshot.ports.is_taken_of_the_rest(address, protocol, external.port, mask)
        {
            census.already_held.count(slot, protocol);
        }
        name(&mut census.named(becomes).mappings, || Held {
            realm: mapping.realm(),
            internal: mapping.internal(),
            protocol: Some(mapping.protocol()),
            pool: self.snapshot.pool_of(address),
            external: external.address,
            ports: (external.port, external.port),
            remote: None,
            becomes,
        });
    }

    fn fate_of_mapping(&self, now: Instant, candidate: &Shared, index: u32) -> Fate {
        let fate = Fate::of(self.stay_of_mapping(candidate, index), now);
        match self.ends_with_grants(now, index, fate != Fate::Keep, candidate.settings()) {
            true => Fate::End,
            false => fate,
        }
    }

    fn count_flow_under(&self, now: Instant, candidate: &Shared, index: u32, census: &mut Census) {
        let flow = self.state.flows.get(index);
        if !flow.is_in_use() || !flow.is_alive(now) {
            return;
        }
        let external = Endpoint::from(flow.external());
        let Some((address, count)) = self.pool_count(external.address, census) else { return };
        let fate = Fate::of(self.stay_of_flow(candidate, index), now);
        count.flows.count(fate);
        let becomes = fate.prospect();
        name(&mut census.named(becomes).flows, || Held {
            realm: flow.realm(),
            internal: flow.internal().into(),
            protocol: Some(flow.protocol()),
            pool: self.snapshot.pool_of(address),
            external: external.address,
            ports: (external.port, external.port),
            remote: Some(flow.remote_inside().into()),
            becomes,
        });
    }

    fn pool_count<'a>(&self, external: Ipv4Addr, census: &'a mut Census) -> Option<(AddressIndex, &'a mut PoolCensus)> {
        let address = self.snapshot.address_index(external)?;
        Some((address, census.pools.get_mut(self.snapshot.pool_of(address).index())?))
    }

    fn fate_of_address(&self, now: Instant, candidate: &Shared, address: AddressIndex) -> Fate {
        // A successor knows every address in use.
        match candidate.slot(address).map(|slot| slot.closed) {
            None => Fate::End,
            Some(None) => Fate::Keep,
            Some(Some(closed)) => Fate::until(closed.ends, now),
        }
    }

    /// Returns how many blocks, ports and rules were examined.
    fn count_subscriber_under(&self, now: Instant, candidate: &Shared, slot: u32, census: &mut Census) -> usize {
        let subscriber = self.state.subscribers.get(slot);
        if !subscriber.is_in_use() {
            return 0;
        }
        let (realm, address) = (subscriber.realm(), Ipv4Addr::from(subscriber.address));
        let paired = AddressIndex(subscriber.paired);
        if census.already_held.has_counted(slot) {
            census.already_held.settle(slot, paired, self.covered_under(candidate, slot));
        }
        // A subscriber with only an idle block or a penalty notices nothing.
        let is_served = subscriber.has_mappings() || subscriber.flows > 0;
        let Forecast { becomes, from, onward, protocols } = match is_served {
            true => self.forecast(now, candidate, slot, &census.outlook),
            false => Forecast::KEEPS,
        };
        // A rule may have paired it with another pool.
        let by_pairing =
            || Some(paired).filter(|paired| *paired != UNPAIRED && self.snapshot.closed(*paired).is_none());
        let here = from.or_else(by_pairing).map(|address| self.snapshot.pool_of(address));
        let here =
            here.or_else(|| self.pool_under(subscriber)).or_else(|| self.pool_in_use(slot)).unwrap_or(PoolId::NONE);
        if let Some(count) = census.pools.get_mut(here.index()).filter(|_| is_served) {
            *match becomes {
                Prospect::Leaves | Prospect::Ends => &mut count.subscribers_leave,
                Prospect::Keeps => &mut count.subscribers_keep,
                Prospect::Moves => &mut count.subscribers_move,
                Prospect::Drains(None) => &mut count.subscribers_drain,
                Prospect::Drains(Some(_)) => &mut count.subscribers_drain_until,
            } += 1;
        }
        if is_served && becomes != Prospect::Keeps && census.affected.len() < census.affected.capacity() {
            let external =
                from.or((paired != UNPAIRED).then_some(paired)).map(|address| self.snapshot.address(address));
            census.affected.push(Affected { realm, address, pool: here, external, becomes, onward, protocols });
        }
        let mut seen_in_all = if is_served { census.outlook.searches() } else { 0 };
        let mut next = subscriber.latest_block();
        while let Some(block) = next {
            next = self.snapshot.ports.blocks.next(block);
            seen_in_all += 1;
            let pool = self.snapshot.pool_of(block.address());
            let Some(count) = census.pools.get_mut(pool.index()) else { continue };
            let (fate, seen) = self.fate_of_block(now, candidate, block, subscriber);
            seen_in_all += seen;
            count.blocks.count(fate);
            let becomes = fate.prospect();
            let (range, holder) = (PortRange::of_block(block), (realm, subscriber.address));
            census.slice_holds.count(candidate, range, holder, becomes, now);
            name(&mut census.named(becomes).blocks, || Held {
                realm,
                internal: Endpoint::new(address, 0),
                protocol: None,
                pool,
                external: self.snapshot.address(block.address()),
                ports: (block.first_port(), block.last_port()),
                remote: None,
                becomes,
            });
        }
        seen_in_all
    }

    /// Returns how many ports were examined, too. A block stays leased for its idle time after its
    /// last mapping or hold-down.
    fn fate_of_block(&self, now: Instant, candidate: &Shared, block: Block, holder: &Subscriber) -> (Fate, usize) {
        let address = block.address();
        let of_address = self.fate_of_address(now, candidate, address);
        let Some(compiled) = candidate.slot(address).map(|_| candidate.compiled_pool(address)) else {
            return (Fate::End, 0);
        };
        // Only the subscriber's next block has the new size.
        let is_as_leased_now = compiled
            .blocks
            .is_some_and(|compiled| compiled.first <= block.first_port() && compiled.last >= block.last_port());
        if of_address == Fate::Keep && is_as_leased_now {
            return (Fate::Keep, 0);
        }
        // While some ports of the block are offered, its holder gets them.
        let pool = candidate.pool(compiled.id);
        let is_offered =
            pool.is_some_and(|pool| pool.port_min <= block.last_port() && block.first_port() <= pool.port_max);
        // A subscriber outside the formula gets no more ports from its block.
        let is_known = candidate.formula(compiled.id).is_none_or(|formula| formula.slice_of(holder.address).is_some())
            && pool.is_some_and(|pool| pool.serves(holder.realm()));
        if of_address == Fate::Keep && is_offered && !compiled.gives_single_ports() && is_known {
            return (Fate::Drain, 0);
        }
        let idle = compiled.blocks.map_or(Duration::ZERO, |blocks| blocks.idle);
        let (mut latest, mut seen) = (self.snapshot.ports.blocks.unused_since(block).unwrap_or(now), 0);
        for (protocol, port) in self.snapshot.ports.taken_in(block) {
            (seen, latest) = (seen + 1, latest.max(now));
            let owner = self.snapshot.ports.lookup(address, protocol, port);
            let mapping =
                owner.filter(|(worker, mapping)| *worker == self.worker && self.state.is_mapped(*mapping, now));
            let free_at = match mapping {
                // The port is held down already.
                None => now + self.snapshot.compiled_pool(address).reuse_delay,
                Some((_, MappingIndex(index))) => {
                    let ends = match self.fate_of_mapping(now, candidate, index) {
                        Fate::Keep | Fate::Drain => return (Fate::Drain, seen),
                        Fate::DrainUntil(Reverse(ends)) => ends,
                        Fate::End => now,
                    };
                    ends + hold_down_of_port(self.state.mappings.get(index), compiled)
                }
            };
            latest = latest.max(free_at);
        }
        (Fate::until(Some(latest + idle), now), seen)
    }

    fn covered_under(&self, candidate: &Shared, slot: u32) -> [u32; Protocol::COUNT] {
        let (subscriber, account) = (self.state.subscribers.get(slot), self.state.subscribers.account(slot));
        let (realm, paired) = (subscriber.realm(), AddressIndex(subscriber.paired));
        if paired == UNPAIRED {
            return [0; Protocol::COUNT];
        }
        let own = candidate.pool_for(realm, subscriber.address.into());
        if own != Some(candidate.compiled_pool(paired).id) || account.has_guarantee() && !account.is_guaranteed(paired)
        {
            return [0; Protocol::COUNT];
        }
        let reserved = candidate.classes.compiled(self.under(candidate).class_of(realm, subscriber.address)).reserved;
        let within = account.within();
        [0, 1, 2].map(|p| reserved[p].saturating_sub(within[p]))
    }

    /// The worst result of all protocols.
    fn forecast(&self, now: Instant, candidate: &Shared, slot: u32, outlook: &Outlook) -> Forecast {
        let asked = outlook.protocols();
        let mut worst = Forecast::KEEPS;
        for protocol in asked {
            let general = (*protocol, outlook.general(*protocol));
            let one = self.next_mapping(now, self.snapshot, slot, general);
            let other = self.next_mapping(now, candidate, slot, general);
            let (becomes, onward) = self.fate_of_next(now, candidate, slot, (one, other), outlook);
            if becomes.rank() > worst.becomes.rank() {
                let from = if let Next::At(address) = one { Some(address) } else { None };
                worst = Forecast { becomes, from, onward, protocols: [false; Protocol::COUNT] };
            }
            if becomes != Prospect::Keeps && becomes.rank() == worst.becomes.rank() {
                worst.onward = worst.onward.filter(|_| worst.onward == onward);
                worst.protocols[protocol.index()] = true;
            }
        }
        if asked.iter().all(|protocol| worst.protocols[protocol.index()]) {
            worst.protocols = [true; Protocol::COUNT];
        }
        worst
    }

    /// `one`: the next mapping now; `other`: under `candidate`.
    fn fate_of_next(
        &self,
        now: Instant,
        candidate: &Shared,
        slot: u32,
        (one, other): (Next, Next),
        outlook: &Outlook,
    ) -> (Prospect, Option<Onward>) {
        let stays =
            |address: AddressIndex, then: AddressIndex| self.snapshot.address(address) == candidate.address(then);
        let paired = AddressIndex(self.state.subscribers.get(slot).paired);
        let (does_stay, pool) = match other {
            Next::Drains(pool) => return (self.drains_under(now, candidate, slot, pool), None),
            // Rules refused these packets before, ICMP for example.
            Next::None(denial) if matches!(one, Next::None(before) if before.is_by_rule() && denial.is_by_rule()) => {
                return (Prospect::Keeps, None);
            }
            Next::None(Denial::NotServed) => return (Prospect::Leaves, None),
            Next::None(denial) => return (Prospect::Drains(None), Some(Onward::Nothing(denial))),
            Next::At(then) => {
                let does_stay = match one {
                    Next::At(address) => stays(address, then),
                    // The subscriber would be paired again anyway.
                    Next::Chosen(pool) => outlook.shares(pool, candidate.pool_of(then)),
                    Next::Any(_) => false,
                    Next::Drains(_) | Next::None(_) => paired != UNPAIRED && stays(paired, then),
                };
                (does_stay, candidate.pool_of(then))
            }
            Next::Chosen(then) => {
                let does_stay = match one {
                    Next::Chosen(pool) => outlook.shares(pool, then),
                    Next::At(_) | Next::Any(_) | Next::Drains(_) | Next::None(_) => false,
                };
                (does_stay, then)
            }
            Next::Any(then) => {
                let does_stay = match one {
                    Next::Any(pool) | Next::Chosen(pool) => outlook.shares(pool, then),
                    Next::At(_) => false,
                    Next::Drains(_) => true,
                    Next::None(_) => self.pool_in_use(slot).is_some_and(|pool| outlook.shares(pool, then)),
                };
                (does_stay, then)
            }
        };
        if does_stay { (Prospect::Keeps, None) } else { (Prospect::Moves, Some(Onward::Pool(pool))) }
    }

    fn drains_under(&self, now: Instant, candidate: &Shared, slot: u32, pool: PoolId) -> Prospect {
        let paired = AddressIndex(self.state.subscribers.get(slot).paired);
        let of_pool = Fate::until(ends(candidate.settings(), false, now), now);
        let has_own =
            candidate.pools.get(pool.index()).is_some_and(|compiled| compiled.slice_ports != 0 || compiled.one_to_one);
        let fate = match paired {
            UNPAIRED => of_pool,
            // If the formula or the list of pairs moved the subscriber, its old ports belong to
            // someone else.
            _ => match self.fate_of_address(now, candidate, paired) {
                Fate::Keep if has_own => of_pool,
                fate => fate,
            },
        };
        match fate.prospect() {
            Prospect::Keeps => Prospect::Drains(None),
            Prospect::Ends => Prospect::Leaves,
            drains => drains,
        }
    }
}
