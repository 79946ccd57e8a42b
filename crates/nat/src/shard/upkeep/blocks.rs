//! Frees idle blocks, limited per call.

use crate::external::blocks::Block;
use crate::shard::Ledger;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::upkeep::walk::Pace;

/// A subscriber's turn may take several calls.
const BLOCKS_PER_CALL_MAX: usize = 64;

/// A power of two: see [`Ledger::is_taken_to_be_in_use`].
const ROUNDS_BETWEEN_LOOKS: u32 = 8;

#[derive(Debug)]
pub(in crate::shard) struct BlockSweep {
    cursor: u32,
    done: u16,
    round: u32,
}

impl Default for BlockSweep {
    fn default() -> BlockSweep {
        BlockSweep { cursor: 1, done: 0, round: 0 }
    }
}

impl Ledger {
    pub(in crate::shard) fn sweep_blocks(&mut self, now: Instant, elapsed: u64) {
        if !self.shared.ports.blocks.is_ready() {
            return;
        }
        let end = self.state.subscribers.walk_end();
        let visits = Pace::SLOW.due(end, elapsed);
        let mut budget = BLOCKS_PER_CALL_MAX;
        // The last call prefetched the records. These prefetches are waited for together.
        for slot in (self.upkeep.block_sweep.cursor..end).take(visits as usize) {
            if let Some(block) = self.state.subscribers.get(slot).latest_block() {
                if is_looked_at(slot, self.upkeep.block_sweep.round) {
                    self.shared.ports.prefetch_block(block);
                } else {
                    self.shared.ports.blocks.prefetch(block);
                }
            }
        }
        for _ in 0..visits {
            if self.upkeep.block_sweep.cursor >= end {
                let round = self.upkeep.block_sweep.round.wrapping_add(1);
                self.upkeep.block_sweep = BlockSweep { round, ..BlockSweep::default() };
            }
            self.state.subscribers.prefetch((self.upkeep.block_sweep.cursor + visits) % end);
            let (slot, skip) = (self.upkeep.block_sweep.cursor, self.upkeep.block_sweep.done);
            let (looked_at, kept) = self.return_idle_blocks(now, slot, skip, budget);
            if looked_at >= budget {
                self.upkeep.block_sweep.done += kept;
                return;
            }
            budget -= looked_at;
            (self.upkeep.block_sweep.cursor, self.upkeep.block_sweep.done) = (slot + 1, 0);
        }
    }

    /// Returns how many blocks it examined, and how many stay.
    fn return_idle_blocks(&mut self, now: Instant, slot: u32, skip: u16, budget: usize) -> (usize, u16) {
        let record = self.state.subscribers.get(slot);
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
            // A block is kept until its end can be recorded.
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

    /// A subscriber's only block is assumed to have its mappings. They may be elsewhere (another
    /// pool, a forward, earlier single ports), so its ports are examined now and then, and in each
    /// round once they were unused.
    fn is_taken_to_be_in_use(&self, slot: u32, block: Block) -> bool {
        let compiled = self.shared.compiled_pool(block.address());
        let blocks = &self.shared.ports.blocks;
        self.state.subscribers.get(slot).has_mappings()
            && compiled.slice_ports == 0
            && compiled.blocks.is_some()
            && !is_looked_at(slot, self.upkeep.block_sweep.round)
            && blocks.next(block).is_none()
            && blocks.unused_since(block).is_none()
    }

    /// Ports were not examined meanwhile, so the idle time starts with the next look.
    #[inline]
    pub(in crate::shard) fn watch_blocks(&mut self, slot: u32, address: Option<AddressIndex>, port: u16) {
        let record = self.state.subscribers.get(slot);
        if let Some(block) = record.latest_block()
            && !record.has_mappings()
            && Some(block.address()) == address
            && (block.first_port()..=block.last_port()).contains(&port)
        {
            self.shared.ports.blocks.set_unused_since(block, None);
        }
    }

    /// Also notes when the block becomes idle or busy.
    fn is_idle(&mut self, now: Instant, block: Block) -> bool {
        let ports = &self.shared.ports;
        let since = ports.blocks.unused_since(block);
        if !ports.is_unused(block) {
            if since.is_some() {
                ports.blocks.set_unused_since(block, None);
            }
            return false;
        }
        // A pool that no longer leases blocks wants them back at once.
        let idle = self.shared.compiled_pool(block.address()).blocks.map_or(Duration::ZERO, |blocks| blocks.idle);
        if since.is_none() {
            ports.blocks.set_unused_since(block, Some(now));
        }
        now.saturating_since(since.unwrap_or(now)) >= idle
    }

    fn return_block(&mut self, now: Instant, slot: u32, block: Block, before: Option<Block>, after: Option<Block>) {
        self.note_block_returned(now, slot, block);
        let ports = &self.shared.ports;
        if let Some(before) = before {
            ports.blocks.set_next(before, after);
        }
        let latest = if before.is_none() { after } else { self.state.subscribers.get(slot).latest_block() };
        self.state.subscribers.remove_block(slot, block, latest);
        ports.give_back(block);
        self.counters.blocks_returned += 1;
    }

    fn forget_idle_subscriber(&mut self, now: Instant, slot: u32) {
        if let Some(paired) = self.state.subscribers.remove_if_idle(slot) {
            self.part_with(now, slot, paired);
        }
    }
}

fn is_looked_at(slot: u32, round: u32) -> bool {
    slot.wrapping_add(round).is_multiple_of(ROUNDS_BETWEEN_LOOKS)
}
