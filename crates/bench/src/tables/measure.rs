//! The timed part: threads, repetitions, time stamps.

use std::sync::Barrier;

use mem::tsc;

use super::TablesError;
use super::bst::Bst;
use super::bucket2::Bucket2;
use super::bucket3::Bucket3;
use super::chain::Chain;
use super::chain_tree::ChainTree;
use super::hashbrown::Hashbrown;
use super::kind::Kind;
use super::linear::Linear;
use super::natrix::Natrix;
use super::none::None as NoStructure;
use super::rbtree::RbTree;
use super::structure::BURST;
use super::structure::Full;
use super::structure::Nat;
use super::structure::Size;
use super::structure::WithArray;
use super::workload::PacketSet;
use super::workload::Wrong;

/// Repetitions of one size at most, however short they are.
const REPETITIONS_MAX: usize = 500;
/// Repetitions of one size at least, unless one of them takes longer than [`LONG_SECONDS`].
const REPETITIONS_MIN: usize = 3;
/// What takes this long is not repeated for the sake of numbers.
const LONG_SECONDS: f64 = 5.0;

/// What one thread measured: medians over its repetitions, TSC cycles a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadResult {
    /// Outbound packets: each one of a new flow, but for very few.
    pub(super) new_cycles: f64,
    /// Inbound packets.
    pub(super) answered_cycles: f64,
    /// Both, over all packets.
    pub(super) cycles: f64,
    /// Bytes of its tables.
    pub(super) bytes: usize,
}

/// Measures a structure with `threads` threads of `size` flows each.
pub(super) fn measure(kind: Kind, size: Size, threads: usize, seconds: f64) -> Result<Vec<ThreadResult>, TablesError> {
    let run = Run { kind, size, threads, seconds };
    match kind {
        Kind::None => run.threads::<WithArray<NoStructure>>(),
        Kind::Linear => run.threads::<WithArray<Linear>>(),
        Kind::Bst => run.threads::<WithArray<Bst>>(),
        Kind::RbTree => run.threads::<WithArray<RbTree>>(),
        Kind::Chain => run.threads::<WithArray<Chain>>(),
        Kind::ChainTree => run.threads::<WithArray<ChainTree>>(),
        Kind::Bucket2 => run.threads::<WithArray<Bucket2>>(),
        Kind::Bucket3 => run.threads::<WithArray<Bucket3>>(),
        Kind::Hashbrown => run.threads::<WithArray<Hashbrown>>(),
        #[cfg(feature = "dpdk")]
        Kind::DpdkHash => run.threads::<super::dpdk_hash::DpdkTable>(),
        #[cfg(not(feature = "dpdk"))]
        Kind::DpdkHash => Ok(Vec::new()),
        Kind::Natrix => run.threads::<Natrix>(),
    }
}

/// One structure, size and number of threads.
#[derive(Clone, Copy)]
struct Run {
    kind: Kind,
    size: Size,
    threads: usize,
    seconds: f64,
}

impl Run {
    fn threads<N: Nat>(self) -> Result<Vec<ThreadResult>, TablesError> {
        let barrier = Barrier::new(self.threads);
        std::thread::scope(|scope| {
            let barrier = &barrier;
            let threads: Vec<_> =
                (0..self.threads).map(|thread| scope.spawn(move || self.thread::<N>(thread, barrier))).collect();
            threads.into_iter().map(|thread| thread.join().map_err(|_| TablesError::Thread)?).collect()
        })
    }

    fn thread<N: Nat>(self, thread: usize, barrier: &Barrier) -> Result<ThreadResult, TablesError> {
        if self.threads > 1
            && let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.get(thread).copied())
        {
            core_affinity::set_for_current(core);
        }
        let set = PacketSet::new(self.size.sessions as usize, 0x7461_626c_6573 + thread as u64);
        // All threads meet here, also when one has no memory: nobody waits for ever.
        barrier.wait();
        self.repeat::<N>(set?)
    }

    fn repeat<N: Nat>(self, mut set: PacketSet) -> Result<ThreadResult, TablesError> {
        let hz = tsc::frequency_hz(10);
        let (mut new, mut answered, mut both) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut cycles) = (0, 0);
        loop {
            let once = self.once::<N>(&mut set)?;
            bytes = bytes.max(once.bytes);
            cycles += once.new_cycles + once.answered_cycles;
            let packets = f64::from(self.size.sessions);
            new.push(once.new_cycles as f64 / packets);
            answered.push(once.answered_cycles as f64 / packets);
            both.push((once.new_cycles + once.answered_cycles) as f64 / (2.0 * packets));
            let seconds = cycles as f64 / hz;
            let enough = both.len() >= REPETITIONS_MIN && seconds >= self.seconds;
            if enough || both.len() >= REPETITIONS_MAX || seconds >= LONG_SECONDS.max(self.seconds) {
                break;
            }
        }
        Ok(ThreadResult {
            new_cycles: median(&mut new),
            answered_cycles: median(&mut answered),
            cycles: median(&mut both),
            bytes,
        })
    }

    /// The whole workload once, on a table of its own.
    fn once<N: Nat>(self, set: &mut PacketSet) -> Result<Once, TablesError> {
        let wrong = |Wrong { position }| TablesError::Wrong { structure: self.kind, position };
        let full = |Full| TablesError::Full { structure: self.kind, sessions: self.size.sessions };
        let mut nat = N::new(self.size)?;
        set.write();
        let (new_cycles, done) = timed(|now| set.packets().chunks_mut(BURST).try_for_each(|b| nat.leave(b, now())));
        done.map_err(full)?;
        set.answer().map_err(wrong)?;
        let (answered_cycles, ()) = timed(|now| set.packets().chunks_mut(BURST).for_each(|b| nat.enter(b, now())));
        set.check().map_err(wrong)?;
        Ok(Once { new_cycles, answered_cycles, bytes: nat.bytes() })
    }
}

struct Once {
    new_cycles: u64,
    answered_cycles: u64,
    bytes: usize,
}

/// Cycles of `work`, which gets a clock: about microseconds since its beginning, asked once a burst.
#[inline]
fn timed<T>(work: impl FnOnce(&dyn Fn() -> u32) -> T) -> (u64, T) {
    let begun = tsc::read();
    let result = work(&|| (tsc::read().wrapping_sub(begun) >> 11) as u32);
    (tsc::read().wrapping_sub(begun), result)
}

/// The middle value; of an even number the lower one of the two. There is at least one.
fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_whatever_the_order() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), 2.0);
        assert_eq!(median(&mut [7.0]), 7.0);
    }
}
