//! The memory of one run of `natrix bench engine`, reported and compared with what there is before
//! any is taken.

use mem::Need;
use nat::Settings;
use nat::memory::needs as engine_needs;
use nat::memory::shard_needs;
use nat::memory::shared_needs;

use crate::engine::FILLED_ONCE_FROM;
use crate::engine::Mode;
use crate::engine::Options;
use crate::memory_bound::MemoryBound;
use crate::traffic::flows_need;

/// Histograms, lists of subscribers and buffers of one worker.
const WORKER_REST_BYTES: u64 = 2 << 20;

/// Everything a run takes at its peak: the engine's tables, the list of flows, and the region of
/// the memory bound, which is as large as the tables.
pub(crate) fn needs(options: &Options, settings: &Settings) -> Vec<Need> {
    let workers = options.workers as u64;
    let flows = options.sessions.div_ceil(workers);
    let shard = shard_needs(settings, options.workers);
    let sum = |needs: &[Need]| needs.iter().fold(0, |sum: u64, need| sum.saturating_add(need.bytes()));
    let region = sum(&shard).saturating_add(sum(&shared_needs(settings, options.workers)).div_ceil(workers));
    let mut needs = engine_needs(settings, options.workers);
    for _ in 0..options.workers {
        needs.extend([flows_need(flows), MemoryBound::need(region), Need::Heap(WORKER_REST_BYTES)]);
        // A new shard is built while the full one is still there.
        if options.mode == Mode::New && flows < FILLED_ONCE_FROM {
            needs.extend_from_slice(&shard);
        }
    }
    needs
}
