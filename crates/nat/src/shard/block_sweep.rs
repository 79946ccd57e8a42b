//! Returns blocks in which nothing is in use: looks at so many subscribers a call.

use super::Shard;
use crate::blocks::Block;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;

/// A whole round over all subscribers takes about this long, if calls come often enough.
const ROUND_MICROS: u64 = 1_000_000;
/// Subscribers looked at in one call at least, so that few of them are done soon.
const SUBSCRIBERS_PER_CALL_MIN: u64 = 4;
/// And at most: each may take a few microseconds.
const SUBSCRIBERS_PER_CALL_MAX: u64 = 32;
/// Blocks looked at in one call at most: a subscriber may have many, so that its turn may take several calls.
const BLOCKS_PER_CALL_MAX: usize = 64;

/// Who has mappings and one block mostly has them there: it is looked at in every so many rounds only. A power of two.
const ROUNDS_BETWEEN_LOOKS: u32 = 8;

/// Where the sweep is.
#[derive(Debug)]
pub(super) struct BlockSweep {
    /// The next subscriber.
    hand: u32,
    /// Blocks of it that were looked at already.
    done: u16,
    /// Counts the rounds.
    round: u32,
}

impl Default for BlockSweep {
    fn default() -> BlockSweep {
        BlockSweep { hand: 1, done: 0, round: 0 }
    }
}

impl Shard {
    /// Looks at the blocks of some subscribers, and returns those that have not been in use for as long as their pool says.
    pub(super) fn sweep_blocks(&mut self, now: Instant, elapsed: u64) {
        if !self.shared.ports.blocks.is_ready() {
            return;
        }
        let end = self.subscribers.walk_end();
        // More than a whole round there is not, and products stay below 2^64.
        let due = u64::from(end) * elapsed.min(ROUND_MICROS) / ROUND_MICROS;
        let visits = due.clamp(SUBSCRIBERS_PER_CALL_MIN, SUBSCRIBERS_PER_CALL_MAX).min(u64::from(end));
        let mut budget = BLOCKS_PER_CALL_MAX;
        // The records were asked for by the last call; what they name is waited for all at once.
        for slot in (self.block_sweep.hand..end).take(visits as usize) {
            if let Some(block) = self.subscribers.get(slot).latest_block() {
                if is_looked_at(slot, self.block_sweep.round) {
                    self.shared.ports.prefetch_block(block);
                } else {
                    self.shared.ports.blocks.prefetch(block);
                }
            }
        }
        for _ in 0..visits {
            if self.block_sweep.hand >= end {
                let round = self.block_sweep.round.wrapping_add(1);
                self.block_sweep = BlockSweep { round, ..BlockSweep::default() };
            }
            self.subscribers.prefetch((self.block_sweep.hand + visits as u32) % end);
            let (slot, skip) = (self.block_sweep.hand, self.block_sweep.done);
            let (looked_at, kept) = self.return_idle_blocks(now, slot, skip, budget);
            if looked_at >= budget {
                self.block_sweep.done += kept;
                return;
            }
            budget -= looked_at;
            (self.block_sweep.hand, self.block_sweep.done) = (slot + 1, 0);
        }
    }

    /// Looks at up to `budget` blocks of a subscriber, behind the first `skip`: at how many, and how many of them it keeps.
    fn return_idle_blocks(&mut self, now: Instant, slot: u32, skip: u16, budget: usize) -> (usize, u16) {
        let record = self.subscribers.get(slot);
        if !record.is_in_use() {
            return (0, 0);
        }
        let mut next = record.latest_block();
        if next.is_some_and(|only| self.is_taken_to_be_in_use(slot, only)) {
            return (1, 1);
        }
        let mut before: Option<Block> = None;
        for _ in 0..skip {
            let Some(block) = next else { break };
            before = next;
            next = self.shared.ports.blocks.next(block);
        }
        let (mut looked_at, mut kept) = (0, 0);
        while let Some(block) = next
            && looked_at < budget
        {
            looked_at += 1;
            next = self.shared.ports.blocks.next(block);
            // A block whose end can not be recorded is kept until it can.
            if self.is_idle(now, block) && self.may_end_mapping() {
                self.return_block(now, slot, block, before, next);
            } else {
                before = Some(block);
                kept += 1;
            }
        }
        if looked_at > 0 {
            self.forget_idle_subscriber(now, slot);
        }
        (looked_at, kept)
    }

    /// Whether this is a subscriber's only block, and its mappings are taken to be in it: the usual case, told without looking at the ports.
    /// They may be elsewhere all the same: of another pool, by a forward, or from when its pool gave out single ports. So now and then its
    /// ports are looked at, and then in each round once nothing was found there.
    fn is_taken_to_be_in_use(&self, slot: u32, block: Block) -> bool {
        let facts = self.shared.facts(block.address());
        let blocks = &self.shared.ports.blocks;
        self.subscribers.get(slot).has_mappings()
            && facts.slice_ports == 0
            && facts.blocks.is_some()
            && !is_looked_at(slot, self.block_sweep.round)
            && blocks.next(block).is_none()
            && blocks.unused_since(block).is_none()
    }

    /// A mapping of this subscriber has ended, on this port. With the last one its block begins to be watched, if the port was in it:
    /// nobody looked at its ports while it had mappings.
    #[inline]
    pub(super) fn watch_blocks(&mut self, slot: u32, address: Option<AddressIndex>, port: u16) {
        let record = self.subscribers.get(slot);
        if let Some(block) = record.latest_block()
            && !record.has_mappings()
            && Some(block.address()) == address
            && (block.first_port()..=block.last_port()).contains(&port)
        {
            self.shared.ports.blocks.set_unused_since(block, None);
        }
    }

    /// Whether nothing in the block has been in use for as long as its pool says. Takes notice when that begins and ends.
    fn is_idle(&mut self, now: Instant, block: Block) -> bool {
        let ports = &self.shared.ports;
        let since = ports.blocks.unused_since(block);
        if !ports.is_unused(block) {
            if since.is_some() {
                ports.blocks.set_unused_since(block, None);
            }
            return false;
        }
        // A pool that leases no blocks any more wants them back.
        let idle = self.shared.facts(block.address()).blocks.map_or(Duration::ZERO, |blocks| blocks.idle);
        if since.is_none() {
            ports.blocks.set_unused_since(block, Some(now));
        }
        now.saturating_since(since.unwrap_or(now)) >= idle
    }

    /// Takes a block out of the subscriber's list, where it stands between `before` and `after`, and gives it back.
    fn return_block(&mut self, now: Instant, slot: u32, block: Block, before: Option<Block>, after: Option<Block>) {
        self.note_block_returned(now, slot, block);
        let ports = &self.shared.ports;
        if let Some(before) = before {
            ports.blocks.set_next(before, after);
        }
        let latest = if before.is_none() { after } else { self.subscribers.get(slot).latest_block() };
        self.subscribers.remove_block(slot, block, latest);
        ports.give_back(block);
        self.counters.blocks_returned += 1;
    }

    /// Removes a subscriber that has neither mapping nor block any more.
    fn forget_idle_subscriber(&mut self, now: Instant, slot: u32) {
        if let Some(paired) = self.subscribers.remove_if_idle(slot) {
            self.part_with(now, slot, paired);
        }
    }
}

/// Whether the ports of a subscriber's only block are looked at in this round, though it has mappings.
fn is_looked_at(slot: u32, round: u32) -> bool {
    slot.wrapping_add(round).is_multiple_of(ROUNDS_BETWEEN_LOOKS)
}
