//! A second instance, which is fed with the changes of a first one.

use std::sync::Arc;

use nat::Delta;
use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::types::WorkerId;

/// The clock of the second instance is this far ahead.
pub const AHEAD: Duration = Duration::from_secs(7_200);
/// Changes that a worker's ring has room for.
pub const RING: usize = 1 << 16;

/// Takes what a standby sends: nothing is to leave it.
struct Nowhere;

impl Sink for Nowhere {
    fn transmit(&mut self, _: Egress, _: &[&[u8]]) -> bool {
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        true
    }
}

/// The second instance.
pub struct Peer {
    /// Its workers' state.
    pub shards: Vec<Shard>,
    /// What they share.
    pub shared: Arc<Shared>,
}

impl Peer {
    /// Nothing in it yet.
    ///
    /// # Panics
    /// When the settings are wrong.
    pub fn new(settings: Settings, workers: usize) -> Peer {
        mem::arena::provide_on_demand();
        let shared = Arc::new(Shared::new(settings, workers).expect("the settings are good"));
        let shard = |worker| Shard::new(Arc::clone(&shared), WorkerId(worker as u8), [9, 8, 7, worker as u64]);
        let shards = (0..workers).map(shard).collect::<Result<Vec<Shard>, _>>().expect("there is memory");
        Peer { shards, shared }
    }

    /// Takes over these changes.
    ///
    /// # Panics
    /// When one is refused.
    pub fn install(&mut self, now: Instant, deltas: &[Delta]) {
        for delta in deltas {
            let worker = self.shared.worker_of_delta(delta);
            assert_eq!(self.shards[worker.index()].install(now + AHEAD, delta), Ok(()), "{delta:?}");
        }
    }

    /// Housekeeping.
    pub fn maintain(&mut self, now: Instant) {
        for shard in &mut self.shards {
            for _ in 0..64 {
                shard.maintain(now + AHEAD, &mut Nowhere);
            }
        }
    }
}
