//! A pool as packets need it.

use crate::external::blocks::BlockSize;
use crate::external::deterministic::Formula;
use crate::settings::Allocation;
use crate::settings::Blocks;
use crate::settings::Filtering;
use crate::settings::Pool;
use crate::settings::Pooling;
use crate::settings::ReuseAtOnce;
use crate::settings::Selection;
use crate::time::Duration;
use crate::types::PoolId;
use crate::types::Protocol;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledPool {
    pub(crate) filtering: [Filtering; Protocol::COUNT],
    pub(crate) pooling: Pooling,
    pub(crate) parity: bool,
    pub(crate) one_to_one: bool,
    pub(crate) reuse_delay: Duration,
    pub(crate) reuse_at_once: ReuseAtOnce,
    pub(crate) shared_ports_min: u16,
    pub(crate) has_low_ports: bool,
    pub(crate) has_high_ports: bool,
    pub(crate) id: PoolId,
    pub(crate) is_closed: bool,
    /// Start and number of its open addresses in `Shared`.
    pub(super) first: u32,
    pub(crate) count: u32,
    pub(super) first_member: u32,
    pub(crate) selection: Selection,
    pub(crate) blocks: Option<CompiledBlocks>,
    /// Ports of a slice, else 0.
    pub(crate) slice_ports: u16,
    /// Ports kept for guarantees on each address.
    pub(crate) for_guarantees: [u32; Protocol::COUNT],
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CompiledBlocks {
    pub(crate) size: BlockSize,
    pub(crate) per_subscriber_max: u16,
    pub(crate) idle: Duration,
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl CompiledPool {
    /// For an address not known here: decides nothing.
    pub(super) fn of_elsewhere() -> CompiledPool {
        // One-to-one, so that queries are looked up like everything else.
        CompiledPool {
            is_closed: true,
            one_to_one: true,
            ..CompiledPool::new(&Pool::default(), PoolId::default(), None)
        }
    }

    pub(super) fn new(pool: &Pool, id: PoolId, formula: Option<&Formula>) -> CompiledPool {
        let blocks = |blocks: Blocks, (first, last)| CompiledBlocks {
            size: blocks.size,
            per_subscriber_max: blocks.per_subscriber_max,
            idle: blocks.idle,
            first,
            last,
        };
        CompiledPool {
            filtering: pool.filtering,
            // A one-to-one address is for all mappings of its subscriber.
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
            // A slice has fewer ports than 65,536.
            slice_ports: formula.map_or(0, |formula| formula.slice_ports() as u16),
            for_guarantees: [0; Protocol::COUNT],
        }
    }

    #[inline]
    pub(crate) fn has_guarantees(&self) -> bool {
        self.for_guarantees != [0; Protocol::COUNT]
    }

    #[inline]
    pub(crate) fn gives_single_ports(&self) -> bool {
        self.blocks.is_none() && self.slice_ports == 0
    }
}
