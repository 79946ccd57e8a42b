//! What a change of the configuration would do to the state of one worker, counted a bounded piece at a time.

use core::cmp::Reverse;
use core::net::Ipv4Addr;

use super::Shard;
use super::next_mapping::Denial;
use super::next_mapping::Next;
use super::penalty::pool_under;
use super::port_choice::UNPAIRED;
use crate::blocks::Block;
use crate::displaced::Displaced;
use crate::entitled::Entitled;
use crate::flow::endpoint;
use crate::outlook::Outlook;
use crate::ports::PortRange;
use crate::shared::Shared;
use crate::slices_in_blocks::SliceHolds;
use crate::slots::ends;
use crate::subscriber::Subscriber;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

/// Cursors from here on walk the flows.
const FLOW_CURSOR: u32 = 1 << 30;
/// Cursors from here on walk the subscribers.
const SUBSCRIBER_CURSOR: u32 = 1 << 31;

/// What becomes of the state of one pool. By its number in the present settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCensus {
    /// Subscribers who notice nothing.
    pub subscribers_keep: u64,
    /// Subscribers whose next mapping is on another external address.
    pub subscribers_move: u64,
    /// Subscribers who keep what they have and get nothing new: all external addresses that they may have drain.
    pub subscribers_drain: u64,
    /// The same, and what they have ends at the latest after the drain time.
    pub subscribers_drain_until: u64,
    /// Subscribers who get no further mapping, as no pool serves them any more; or as what they have ends with the change and they can
    /// have nothing else.
    pub subscribers_leave: u64,
    /// Mappings.
    pub mappings: Fates,
    /// Flows, which share external ports.
    pub flows: Fates,
    /// Port blocks.
    pub blocks: Fates,
}

/// What becomes of things that have external ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Nothing happens to them.
    pub keep: u64,
    /// They stay as long as they are used, on ports that are not given out again.
    pub drain: u64,
    /// They stay as long as they are used, but no longer than the drain time.
    pub drain_until: u64,
    /// They end with the change.
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

    /// All of them.
    pub fn total(&self) -> u64 {
        self.keep + self.drain + self.drain_until + self.end
    }
}

/// What becomes of one; the later, the sooner it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Keep,
    Drain,
    DrainUntil(Reverse<Instant>),
    End,
}

impl Fate {
    /// Of what has to end then, if at all.
    fn until(ends: Option<Instant>, now: Instant) -> Fate {
        match ends {
            Some(ends) if ends <= now => Fate::End,
            Some(ends) => Fate::DrainUntil(Reverse(ends)),
            None => Fate::Drain,
        }
    }

    /// What becomes of what has it.
    fn prospect(self) -> Prospect {
        match self {
            Fate::Keep => Prospect::Keeps,
            Fate::Drain => Prospect::Drains(None),
            Fate::DrainUntil(Reverse(ends)) => Prospect::Drains(Some(ends)),
            Fate::End => Prospect::Ends,
        }
    }

    /// This is said by its address; something else may be said of it alone. Whatever ends it first holds.
    fn or(self, displaced: Option<Displaced>, now: Instant) -> Fate {
        let other = displaced.map_or(Fate::Keep, |found| Fate::until(found.ends, now));
        self.max(other)
    }
}

/// Where a subscriber's next mapping is to be, of one who notices a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// In this pool, by its number under the new settings.
    Pool(PoolId),
    /// Nowhere, as rules have it.
    Nothing(Denial),
}

/// What becomes of a subscriber.
struct Foretold {
    becomes: Prospect,
    /// The address that his next mapping would be on now, of one who notices the change.
    from: Option<AddressIndex>,
    onward: Option<Onward>,
    protocols: [bool; Protocol::COUNT],
}

impl Foretold {
    const KEEPS: Foretold =
        Foretold { becomes: Prospect::Keeps, from: None, onward: None, protocols: [false; Protocol::COUNT] };
}

/// A subscriber who notices a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affected {
    /// Inside realm.
    pub realm: RealmId,
    /// Internal address.
    pub address: Ipv4Addr,
    /// His pool now; None: none serves him.
    pub pool: PoolId,
    /// His external address now; None: any of the pool, or he has none.
    pub external: Option<Ipv4Addr>,
    /// What becomes of him.
    pub becomes: Prospect,
    /// Where his next mapping is, where that is why and one for these protocols.
    pub onward: Option<Onward>,
    /// By [`Protocol::index`]: whether that is so for this one.
    pub protocols: [bool; Protocol::COUNT],
}

/// A mapping, a flow or a port block that a change does something to; or nothing, where that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Inside realm of its subscriber.
    pub realm: RealmId,
    /// Internal endpoint; of a block the subscriber's address and port 0.
    pub internal: Endpoint,
    /// Transport; None: a block has all of them.
    pub protocol: Option<Protocol>,
    /// The pool of its external address now.
    pub pool: PoolId,
    /// Its external address.
    pub external: Ipv4Addr,
    /// Its external ports, the first and the last.
    pub ports: (u16, u16),
    /// Whom a flow is with, as its subscriber knows it: others may have the same external port.
    pub remote: Option<Endpoint>,
    /// What becomes of it.
    pub becomes: Prospect,
}

/// Some of each kind by name: as many as there is room for, so that nothing is allocated.
#[derive(Clone, Debug, Default)]
pub struct Named {
    /// Mappings.
    pub mappings: Vec<Held>,
    /// Flows.
    pub flows: Vec<Held>,
    /// Port blocks.
    pub blocks: Vec<Held>,
}

impl Named {
    /// With room for so many of each kind.
    pub fn with_room(each: usize) -> Named {
        Named { mappings: Vec::with_capacity(each), flows: Vec::with_capacity(each), blocks: Vec::with_capacity(each) }
    }
}

/// Names one more if there is room.
fn name(list: &mut Vec<Held>, held: impl FnOnce() -> Held) {
    if list.len() < list.capacity() {
        list.push(held());
    }
}

/// What becomes of a subscriber, or of what one has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Nothing.
    Keeps,
    /// His next mapping is on another address.
    Moves,
    /// He gets nothing new, and keeps what he has; it stays as long as it is used. Until then at the latest, if there is an end.
    Drains(Option<Instant>),
    /// He gets nothing new: no pool serves him, or what he has ends and he can have nothing else.
    Leaves,
    /// It ends with the change.
    Ends,
}

impl Prospect {
    /// The higher, the more it takes away.
    fn rank(self) -> u8 {
        match self {
            Prospect::Keeps => 0,
            Prospect::Moves => 1,
            Prospect::Drains(_) => 2,
            Prospect::Leaves | Prospect::Ends => 3,
        }
    }
}

/// What a census found so far.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// By pool.
    pub pools: Vec<PoolCensus>,
    /// Some of the subscribers who notice it: as many as there is room for, so that nothing is allocated.
    pub affected: Vec<Affected>,
    /// Some of what does not stay as it is.
    pub concerned: Named,
    /// Some of what stays as it is.
    pub kept: Named,
    /// What subscribers have of the ports that are to be guaranteed to them.
    pub entitled: Entitled,
    /// Until when blocks lie in slices of others.
    pub slice_holds: SliceHolds,
    /// What both settings say, to ask subscribers about.
    pub outlook: Outlook,
}

impl Census {
    /// Where to name what this becomes of.
    fn named(&mut self, becomes: Prospect) -> &mut Named {
        if becomes == Prospect::Keeps { &mut self.kept } else { &mut self.concerned }
    }
}

impl PoolCensus {
    /// Adds another count.
    pub fn add(&mut self, other: &PoolCensus) {
        self.subscribers_keep += other.subscribers_keep;
        self.subscribers_move += other.subscribers_move;
        self.subscribers_drain += other.subscribers_drain;
        self.subscribers_drain_until += other.subscribers_drain_until;
        self.subscribers_leave += other.subscribers_leave;
        self.mappings.add(&other.mappings);
        self.flows.add(&other.flows);
        self.blocks.add(&other.blocks);
    }
}

impl Shard {
    /// Counts what `candidate`, a successor of the present snapshot, would do to the next `scan_max` records from `cursor` on
    /// (0 to begin); what is looked at for a subscriber counts as records: its blocks, and rules. `census` has a place for each
    /// pool of [`Shared::pools`]. Returns the cursor to go on with; None at the end. Changes nothing.
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
            if cursor < FLOW_CURSOR && cursor >= self.mappings.walk_end() {
                cursor = FLOW_CURSOR | 1;
            }
            if (FLOW_CURSOR..SUBSCRIBER_CURSOR).contains(&cursor) && cursor & !FLOW_CURSOR >= self.flows.walk_end() {
                cursor = SUBSCRIBER_CURSOR | 1;
            }
            if cursor < FLOW_CURSOR {
                self.count_mapping_under(now, candidate, cursor, census);
            } else if cursor < SUBSCRIBER_CURSOR {
                self.count_flow_under(now, candidate, cursor & !FLOW_CURSOR, census);
            } else if cursor & !SUBSCRIBER_CURSOR >= self.subscribers.walk_end() {
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
        let mapping = self.mappings.get(index);
        if !mapping.is_in_use() || !self.is_alive(index, now) {
            return;
        }
        let external = mapping.external();
        let Some((address, count)) = self.pool_count(external.address, census) else { return };
        let (slot, protocol) = (mapping.subscriber, mapping.protocol());
        let fate = self.fate_of_mapping(now, candidate, index, address);
        count.mappings.count(fate);
        let becomes = fate.prospect();
        if self.subscribers.get(slot).paired == address.0
            && let Some(mask) = census.entitled.mask(address, protocol)
            && self.shared.ports.is_taken_of_the_rest(address, protocol, external.port, mask)
        {
            census.entitled.count(slot, protocol);
        }
        name(&mut census.named(becomes).mappings, || Held {
            realm: mapping.realm(),
            internal: mapping.internal(),
            protocol: Some(mapping.protocol()),
            pool: self.shared.pool_of(address),
            external: external.address,
            ports: (external.port, external.port),
            remote: None,
            becomes,
        });
    }

    /// What becomes of a mapping, which is on this external address.
    fn fate_of_mapping(&self, now: Instant, candidate: &Shared, index: u32, address: AddressIndex) -> Fate {
        let mapping = self.mappings.get(index);
        let (key, external) = (mapping.key(), mapping.external());
        let fate = match candidate.is_at_home(&key, external) {
            true => Fate::Keep,
            false => self.fate_of_address(now, candidate, address),
        };
        fate.or(candidate.displaced(&key, external, mapping.created_s()), now)
    }

    fn count_flow_under(&self, now: Instant, candidate: &Shared, index: u32, census: &mut Census) {
        let flow = self.flows.get(index);
        if !flow.is_in_use() || !flow.is_alive(now) {
            return;
        }
        let external = endpoint(flow.external());
        let Some((address, count)) = self.pool_count(external.address, census) else { return };
        let displaced = candidate.displaced_flow(flow);
        let fate = match candidate.is_flow_at_home(flow) {
            true => Fate::Keep,
            false => self.fate_of_address(now, candidate, address),
        };
        let fate = fate.or(displaced, now);
        count.flows.count(fate);
        let becomes = fate.prospect();
        name(&mut census.named(becomes).flows, || Held {
            realm: flow.realm(),
            internal: endpoint(flow.internal()),
            protocol: Some(flow.protocol()),
            pool: self.shared.pool_of(address),
            external: external.address,
            ports: (external.port, external.port),
            remote: Some(endpoint(flow.near())),
            becomes,
        });
    }

    /// The place of an external address, and the count of its pool.
    fn pool_count<'a>(&self, external: Ipv4Addr, census: &'a mut Census) -> Option<(AddressIndex, &'a mut PoolCensus)> {
        let address = self.shared.address_index(external)?;
        Some((address, census.pools.get_mut(self.shared.pool_of(address).index())?))
    }

    /// What becomes of what is on an external address, as far as that is for the address to say.
    fn fate_of_address(&self, now: Instant, candidate: &Shared, address: AddressIndex) -> Fate {
        // A successor knows every address that has mappings.
        match candidate.slot(address).map(|slot| slot.closed) {
            None => Fate::End,
            Some(None) => Fate::Keep,
            Some(Some(closed)) => Fate::until(closed.ends, now),
        }
    }

    /// Returns how much else was looked at with the subscriber.
    fn count_subscriber_under(&self, now: Instant, candidate: &Shared, slot: u32, census: &mut Census) -> usize {
        let subscriber = self.subscribers.get(slot);
        if !subscriber.is_in_use() {
            return 0;
        }
        let (realm, address) = (subscriber.realm(), Ipv4Addr::from_bits(subscriber.address));
        let paired = AddressIndex(subscriber.paired);
        if census.entitled.has_counted(slot) {
            census.entitled.settle(slot, paired, self.covered_under(candidate, slot));
        }
        // Who has but a block that is not in use yet returned, or a penalty, is not served now, and notices nothing.
        let is_served = subscriber.has_mappings() || subscriber.flows > 0;
        let Foretold { becomes, from, onward, protocols } = match is_served {
            true => self.foretell(now, candidate, slot, &census.outlook),
            false => Foretold::KEEPS,
        };
        // Whom a rule sends to another pool may be paired with an address of that one.
        let by_pairing = || Some(paired).filter(|paired| *paired != UNPAIRED && self.shared.closed(*paired).is_none());
        let here = from.or_else(by_pairing).map(|address| self.shared.pool_of(address));
        let here = here
            .or_else(|| pool_under(&self.shared, subscriber))
            .or_else(|| self.pool_in_use(slot))
            .unwrap_or(PoolId::NONE);
        if let Some(count) = census.pools.get_mut(here.index()).filter(|_| is_served) {
            *match becomes {
                // A subscriber without anything leaves.
                Prospect::Leaves | Prospect::Ends => &mut count.subscribers_leave,
                Prospect::Keeps => &mut count.subscribers_keep,
                Prospect::Moves => &mut count.subscribers_move,
                Prospect::Drains(None) => &mut count.subscribers_drain,
                Prospect::Drains(Some(_)) => &mut count.subscribers_drain_until,
            } += 1;
        }
        if is_served && becomes != Prospect::Keeps && census.affected.len() < census.affected.capacity() {
            let external = from.or((paired != UNPAIRED).then_some(paired)).map(|address| self.shared.address(address));
            census.affected.push(Affected { realm, address, pool: here, external, becomes, onward, protocols });
        }
        // Searches of rules, blocks, and the mappings in them that were looked at.
        let mut seen_in_all = if is_served { census.outlook.searches() } else { 0 };
        let mut next = subscriber.latest_block();
        while let Some(block) = next {
            next = self.shared.ports.blocks.next(block);
            seen_in_all += 1;
            let pool = self.shared.pool_of(block.address());
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
                external: self.shared.address(block.address()),
                ports: (block.first_port(), block.last_port()),
                remote: None,
                becomes,
            });
        }
        seen_in_all
    }

    /// What becomes of a port block, and at how many of its ports was looked for that. It stays leased while a mapping has one of its
    /// ports or one rests, and then for as long as its pool lets it lie idle.
    fn fate_of_block(&self, now: Instant, candidate: &Shared, block: Block, holder: &Subscriber) -> (Fate, usize) {
        let address = block.address();
        let of_address = self.fate_of_address(now, candidate, address);
        let Some(facts) = candidate.slot(address).map(|_| candidate.facts(address)) else { return (Fate::End, 0) };
        // One of another size serves its holder as before: only the next one is of the new size.
        let is_as_leased_now =
            facts.blocks.is_some_and(|facts| facts.first <= block.first_port() && facts.last >= block.last_port());
        if of_address == Fate::Keep && is_as_leased_now {
            return (Fate::Keep, 0);
        }
        // Where some of its ports are offered still its holder goes on to get them.
        let pool = candidate.pool(facts.id);
        let is_offered =
            pool.is_some_and(|pool| pool.port_min <= block.last_port() && block.first_port() <= pool.port_max);
        // Whom the formula of the pool does not know gets no more of them.
        let is_known = candidate.formula(facts.id).is_none_or(|formula| formula.slice_of(holder.address).is_some())
            && pool.is_some_and(|pool| pool.serves(holder.realm()));
        if of_address == Fate::Keep && is_offered && !facts.gives_single_ports() && is_known {
            return (Fate::Drain, 0);
        }
        let idle = facts.blocks.map_or(Duration::ZERO, |blocks| blocks.idle);
        let (mut latest, mut seen) = (self.shared.ports.blocks.unused_since(block).unwrap_or(now), 0);
        for (protocol, port) in self.shared.ports.taken_in(block) {
            (seen, latest) = (seen + 1, latest.max(now));
            let owner = self.shared.ports.lookup(address, protocol, port);
            let mapping = owner.filter(|(worker, mapping)| *worker == self.worker && self.is_mapped(*mapping, now));
            let rested = match mapping {
                // It rests already.
                None => now + self.shared.facts(address).reuse_delay,
                Some((_, MappingIndex(index))) => {
                    let ends = match self.fate_of_mapping(now, candidate, index, address) {
                        Fate::Keep | Fate::Drain => return (Fate::Drain, seen),
                        Fate::DrainUntil(Reverse(ends)) => ends,
                        Fate::End => now,
                    };
                    ends + Shard::rest_of(self.mappings.get(index), facts)
                }
            };
            latest = latest.max(rested);
        }
        (Fate::until(Some(latest + idle), now), seen)
    }

    /// How many ports beside those of its pledge a subscriber would be guaranteed at its address.
    fn covered_under(&self, candidate: &Shared, slot: u32) -> [u32; Protocol::COUNT] {
        let (subscriber, account) = (self.subscribers.get(slot), self.subscribers.account(slot));
        let (realm, paired) = (subscriber.realm(), AddressIndex(subscriber.paired));
        if paired == UNPAIRED {
            // Since its mappings were counted.
            return [0; Protocol::COUNT];
        }
        let own = candidate.pool_for(realm, subscriber.address.into());
        if own != Some(candidate.facts(paired).id) || account.has_pledge() && !account.is_pledged(paired) {
            return [0; Protocol::COUNT];
        }
        let reserved = candidate.classes.facts(candidate.classes.of(realm, subscriber.address)).reserved;
        let within = account.within();
        [0, 1, 2].map(|p| reserved[p].saturating_sub(within[p]))
    }

    /// What becomes of a subscriber: of the protocols that fare differently, what is worst.
    fn foretell(&self, now: Instant, candidate: &Shared, slot: u32, outlook: &Outlook) -> Foretold {
        let asked = outlook.protocols();
        let mut worst = Foretold::KEEPS;
        for protocol in asked {
            let general = (*protocol, outlook.general(*protocol));
            let one = self.next_mapping(&self.shared, slot, general);
            let other = self.next_mapping(candidate, slot, general);
            let (becomes, onward) = self.fate_of_next(now, candidate, slot, (one, other), outlook);
            if becomes.rank() > worst.becomes.rank() {
                let from = if let Next::At(address) = one { Some(address) } else { None };
                worst = Foretold { becomes, from, onward, protocols: [false; Protocol::COUNT] };
            }
            if becomes != Prospect::Keeps && becomes.rank() == worst.becomes.rank() {
                // Named where it is one for all.
                worst.onward = worst.onward.filter(|_| worst.onward == onward);
                worst.protocols[protocol.index()] = true;
            }
        }
        if asked.iter().all(|protocol| worst.protocols[protocol.index()]) {
            worst.protocols = [true; Protocol::COUNT];
        }
        worst
    }

    /// What it is to a subscriber that his next mapping is there then, and not where it would be now.
    fn fate_of_next(
        &self,
        now: Instant,
        candidate: &Shared,
        slot: u32,
        (one, other): (Next, Next),
        outlook: &Outlook,
    ) -> (Prospect, Option<Onward>) {
        let stays = |address: AddressIndex, then: AddressIndex| self.shared.address(address) == candidate.address(then);
        let paired = AddressIndex(self.subscribers.get(slot).paired);
        let (does_stay, pool) = match other {
            Next::Drains(pool) => return (self.drains_under(now, candidate, slot, pool), None),
            // What was so before is no news: of ICMP, say, that rules drop.
            Next::None(denial) if matches!(one, Next::None(before) if before.is_by_rule() && denial.is_by_rule()) => {
                return (Prospect::Keeps, None);
            }
            Next::None(Denial::NotServed) => return (Prospect::Leaves, None),
            Next::None(denial) => return (Prospect::Drains(None), Some(Onward::Nothing(denial))),
            Next::At(then) => {
                let does_stay = match one {
                    Next::At(address) => stays(address, then),
                    // Whoever would be paired anew now, too, is not moved by the change.
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

    /// What becomes of a subscriber who can have nothing new, as all that this pool might give him then drains.
    fn drains_under(&self, now: Instant, candidate: &Shared, slot: u32, pool: PoolId) -> Prospect {
        let paired = AddressIndex(self.subscribers.get(slot).paired);
        let of_pool = Fate::until(ends(candidate.settings(), false, now), now);
        let has_own = candidate.pools.get(pool.index()).is_some_and(|facts| facts.slice_ports != 0 || facts.one_to_one);
        let fate = match paired {
            UNPAIRED => of_pool,
            // Where the formula, or the list of pairs, has put him elsewhere, his ports are another's by now.
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
