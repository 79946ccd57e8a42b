//! Ports of subscribers that have ports of their own: in blocks they lease, or in slices of a deterministic pool.

use super::Shard;
use super::port_choice::ARBITRARY_ATTEMPTS;
use super::port_choice::UNPAIRED;
use crate::blocks::Block;
use crate::blocks::Holder;
use crate::mapping::InternalKey;
use crate::ports::Parity;
use crate::ports::PortAim;
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::ports::Taker;
use crate::shared::PoolFacts;
use crate::slices_in_blocks::SliceUse;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;
use crate::verdict::Verdict;

impl Shard {
    /// Where a subscriber's next port of this protocol comes from, if there is one left: its slice, of which ports are used while
    /// one is free (RFC 7422 §2), or else the active block.
    #[inline]
    pub(super) fn usual_range(
        &self,
        subscriber: u32,
        facts: &PoolFacts,
        protocol: Protocol,
    ) -> Option<(PortRange, Taker)> {
        let record = self.subscribers.get(subscriber);
        let paired = AddressIndex(record.paired);
        if facts.slice_ports != 0 {
            let slice = self.slice_of(facts, record.address).filter(|range| range.address == paired);
            return slice.map(|range| (range, Taker::Anyone));
        }
        let block = record.active_block(protocol).filter(|block| block.address() == paired)?;
        Some((PortRange::of_block(block), Taker::Holder))
    }

    /// The slice of an inside address; None where the pool has none for it.
    #[inline]
    fn slice_of(&self, facts: &PoolFacts, inside: u32) -> Option<PortRange> {
        let slice = self.shared.formula(facts.id)?.slice_of(inside)?;
        Some(PortRange { address: self.shared.member(facts, slice.address), first: slice.first, last: slice.last })
    }

    /// A subscriber's blocks, the latest first.
    pub(super) fn blocks_of(&self, subscriber: u32) -> impl Iterator<Item = Block> + '_ {
        let blocks = &self.shared.ports.blocks;
        core::iter::successors(self.subscribers.get(subscriber).latest_block(), |block| blocks.next(*block))
    }

    /// Whether new mappings of this pool come out of a block. One of an address that another pool has by now, or that drains, is for those it has:
    /// it goes back by itself, and does not count meanwhile, as its holder has another address for what is new.
    fn serves(&self, facts: &PoolFacts, block: Block) -> bool {
        let address = block.address();
        self.shared.pool_of(address) == facts.id && self.shared.closed(address).is_none()
    }

    /// Takes a port of the subscriber's own; leases a block when there is none.
    ///
    /// # Errors
    /// [`Verdict::BlockLimit`] when it may not have one more block, [`Verdict::PortsExhausted`] when there is none.
    pub(super) fn take_own_port(
        &mut self,
        now: Instant,
        key: &InternalKey,
        facts: &PoolFacts,
        parity: Option<Parity>,
        subscriber: u32,
        aim: Option<PortAim>,
    ) -> Result<(AddressIndex, u16), Verdict> {
        if let Some(aim) = aim
            && let Some((range, taker)) = self.usual_range(subscriber, facts, key.protocol)
            && range.contains(aim.port())
            && let Some(port) = self.shared.ports.allocate_near_within(&range, key.protocol, parity, aim, taker)
        {
            return Ok((range.address, port));
        }
        self.find_own_port(now, key, facts, parity, subscriber)
    }

    #[inline(never)]
    fn find_own_port(
        &mut self,
        now: Instant,
        key: &InternalKey,
        facts: &PoolFacts,
        parity: Option<Parity>,
        subscriber: u32,
    ) -> Result<(AddressIndex, u16), Verdict> {
        // Parity is a preference: a port of the other one serves better than a block more.
        for wanted in [parity, None] {
            if let Some(found) = self.search_own_ports(subscriber, facts, key.protocol, wanted) {
                return Ok(found);
            }
            if parity.is_none() {
                break;
            }
        }
        let block = self.lease_block(now, key, facts, subscriber)?;
        let range = PortRange::of_block(block);
        for wanted in [parity, None] {
            let ports = &self.shared.ports;
            if let Some(port) = ports.allocate_within(&range, key.protocol, wanted, Taker::Holder, &mut self.random) {
                return Ok((range.address, port));
            }
        }
        // Nothing of it is given out for this protocol.
        Err(Verdict::PortsExhausted)
    }

    /// A free port of the slice, of the active block or of another one, which becomes the active one then.
    fn search_own_ports(
        &mut self,
        subscriber: u32,
        facts: &PoolFacts,
        protocol: Protocol,
        parity: Option<Parity>,
    ) -> Option<(AddressIndex, u16)> {
        let record = self.subscribers.get(subscriber);
        let (active, mut next) = (record.active_block(protocol), record.latest_block());
        let ports = &self.shared.ports;
        if facts.slice_ports != 0
            && let Some(range) = self.slice_of(facts, record.address)
        {
            let found = ports.allocate_within(&range, protocol, parity, Taker::Anyone, &mut self.random);
            if let Some(port) = found {
                return Some((range.address, port));
            }
        }
        if let Some(block) = active.filter(|block| self.serves(facts, *block)) {
            let range = PortRange::of_block(block);
            let found = ports.allocate_within(&range, protocol, parity, Taker::Holder, &mut self.random);
            if let Some(port) = found {
                return Some((range.address, port));
            }
        }
        while let Some(block) = next {
            next = ports.blocks.next(block);
            if active == Some(block) || !self.serves(facts, block) {
                continue;
            }
            let range = PortRange::of_block(block);
            let found = ports.allocate_within(&range, protocol, parity, Taker::Holder, &mut self.random);
            if let Some(port) = found {
                self.subscribers.set_active_block(subscriber, protocol, block);
                return Some((range.address, port));
            }
        }
        None
    }

    /// Leases one more block for a subscriber; it is the active one of this protocol then.
    fn lease_block(
        &mut self,
        now: Instant,
        key: &InternalKey,
        facts: &PoolFacts,
        subscriber: u32,
    ) -> Result<Block, Verdict> {
        let blocks = facts.blocks.ok_or(Verdict::PortsExhausted)?;
        let may_have = usize::from(blocks.per_subscriber_max);
        if self.blocks_of(subscriber).filter(|block| self.serves(facts, *block)).take(may_have).count() >= may_have {
            return Err(Verdict::BlockLimit);
        }
        self.admit_record()?;
        let record = self.subscribers.get(subscriber);
        let (paired, latest) = (AddressIndex(record.paired), record.latest_block());
        let holder = Holder { worker: self.worker, realm: key.realm, address: key.address };
        let attempts = if paired == UNPAIRED { ARBITRARY_ATTEMPTS } else { 1 };
        for _ in 0..attempts {
            let address = if paired == UNPAIRED {
                self.choose_address(key, facts, PortClass::High).ok_or(Verdict::PortsExhausted)?
            } else {
                paired
            };
            let range = PortRange { address, first: blocks.first, last: blocks.last };
            let ports = &self.shared.ports;
            if let Some(block) = ports.lease(&range, blocks.size, holder, latest, now, &mut self.random) {
                self.subscribers.add_block(subscriber, block);
                self.subscribers.set_active_block(subscriber, key.protocol, block);
                self.counters.blocks_leased += 1;
                self.note_block_leased(now, subscriber, block);
                return Ok(block);
            }
        }
        Err(Verdict::PortsExhausted)
    }

    /// First and last port of an inside address's slice, and what of it others have in blocks of theirs. None where the pool has
    /// no slice for it. For people.
    pub(super) fn slice_in_blocks(&self, facts: &PoolFacts, key: &InternalKey) -> Option<(PortRange, SliceUse)> {
        let slice = self.slice_of(facts, key.address).filter(|_| facts.slice_ports != 0)?;
        Some((slice, self.shared.slice_in_blocks(slice, key.protocol, key.realm, key.address)))
    }

    /// Ports a subscriber, or somebody who would become one, could still have of this protocol, who is, or would be, `paired` with an address; at
    /// most, as others may be faster.
    /// Reads the words of all ports it may have: for people.
    pub(super) fn own_ports_left(
        &self,
        subscriber: Option<u32>,
        mut paired: Option<AddressIndex>,
        facts: &PoolFacts,
        inside: u32,
        protocol: Protocol,
    ) -> Result<u64, Verdict> {
        let ports = &self.shared.ports;
        let left = |range: PortRange| {
            u64::from(ports.available_within(&range, protocol) - ports.used_within(&range, protocol))
        };
        let mut free = 0;
        if facts.slice_ports != 0 {
            let formula = self.shared.formula(facts.id);
            let why = || formula.map_or(Verdict::SourceNotSubscriber, |formula| formula.why_no_slice(inside));
            let slice = self.slice_of(facts, inside).ok_or_else(why)?;
            // Those in a block of his come with the block.
            free += u64::from(ports.free_within(&slice, protocol));
            paired = Some(slice.address);
        }
        let mut count = 0;
        for block in subscriber.into_iter().flat_map(|slot| self.blocks_of(slot)) {
            if !self.serves(facts, block) {
                continue;
            }
            free += left(PortRange::of_block(block));
            count += 1;
        }
        let may_have = facts.blocks.map_or(0, |blocks| blocks.per_subscriber_max.saturating_sub(count));
        if let Some(blocks) = facts.blocks.filter(|_| may_have > 0) {
            let there = |address| {
                let range = PortRange { address, first: blocks.first, last: blocks.last };
                u64::from(ports.blocks_free(&range, blocks.size))
            };
            let blocks_free = match paired {
                Some(address) => there(address),
                None => self.shared.choices(facts).iter().map(|address| there(*address)).sum(),
            };
            free += blocks_free.min(u64::from(may_have)) * u64::from(blocks.size.ports());
        }
        match (free, may_have) {
            (0, 0) if facts.blocks.is_some() => Err(Verdict::BlockLimit),
            (0, _) => Err(Verdict::PortsExhausted),
            (free, _) => Ok(free),
        }
    }
}
