//! The timed part: threads, repetitions, time stamps.

use std::sync::Barrier;

use mem::tsc;

use super::Options;
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
use super::none::NoTable;
use super::rbtree::RbTree;
use super::structure::BURST;
use super::structure::Full;
use super::structure::Nat;
use super::structure::Size;
use super::structure::WithArray;
use super::workload::PacketSet;
use super::workload::Wrong;

/// Rounds: the structures of one size take turns, so that a noisy neighbour meets all of them.
const ROUNDS: usize = 5;
/// Repetitions in one round at most, however short they are.
const REPETITIONS_MAX: usize = 100;
/// What takes this long in all gets no further round.
const LONG_SECONDS: f64 = 5.0;

/// What one thread measured: medians over its repetitions and rounds, TSC cycles a packet.
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
    /// Length of all timed parts.
    seconds: f64,
}

/// A structure at one size and number of threads, and what was measured so far.
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) size: Size,
    threads: usize,
    /// By round, then by thread.
    rounds: Vec<Vec<ThreadResult>>,
    seconds: f64,
}

impl Job {
    /// Each of `threads` threads gets `size` flows.
    pub(super) fn new(kind: Kind, size: Size, threads: usize) -> Job {
        Job { kind, size, threads, rounds: Vec::new(), seconds: 0.0 }
    }

    /// Measures all jobs, in turns, for as long as the options say each at least, or once when that
    /// is 0. `hz` is the rate of the time-stamp counter.
    pub(super) fn measure_all(jobs: &mut [Job], options: &Options, hz: f64) -> Result<(), TablesError> {
        let Options { seconds, seed, .. } = *options;
        let rounds = if seconds > 0.0 { ROUNDS } else { 1 };
        for _ in 0..rounds {
            for job in jobs.iter_mut().filter(|job| job.seconds < LONG_SECONDS.max(seconds)) {
                let (kind, size, threads) = (job.kind, job.size, job.threads);
                let run = Run { kind, size, threads, seconds: seconds / ROUNDS as f64, seed, hz };
                let results = measure(run)?;
                job.seconds += results.iter().map(|result| result.seconds).fold(0.0, f64::max);
                job.rounds.push(results);
            }
        }
        Ok(())
    }

    /// By thread, the medians of all rounds.
    pub(super) fn results(&self) -> Vec<ThreadResult> {
        let median_of = |thread: usize, of: fn(&ThreadResult) -> f64| {
            median(&mut self.rounds.iter().filter_map(|round| round.get(thread)).map(of).collect::<Vec<_>>())
        };
        let first = self.rounds.first().map_or(&[][..], Vec::as_slice);
        let by_thread = first.iter().enumerate().map(|(thread, result)| ThreadResult {
            new_cycles: median_of(thread, |result| result.new_cycles),
            answered_cycles: median_of(thread, |result| result.answered_cycles),
            cycles: median_of(thread, |result| result.cycles),
            bytes: result.bytes,
            seconds: self.seconds,
        });
        by_thread.collect()
    }
}

/// One round of one structure.
fn measure(run: Run) -> Result<Vec<ThreadResult>, TablesError> {
    match run.kind {
        Kind::None => run.threads::<NoTable>(),
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
    seed: u64,
    /// Rate of the time-stamp counter.
    hz: f64,
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
        let set = PacketSet::new(self.size.sessions as usize, (self.seed << 8) + thread as u64);
        // All threads meet here, also when one has no memory: nobody waits for ever.
        barrier.wait();
        self.repeat::<N>(set?)
    }

    fn repeat<N: Nat>(self, mut set: PacketSet) -> Result<ThreadResult, TablesError> {
        let (mut new, mut answered, mut both) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bytes, mut cycles) = (0, 0);
        let seconds = loop {
            let once = self.once::<N>(&mut set)?;
            bytes = bytes.max(once.bytes);
            cycles += once.new_cycles + once.answered_cycles;
            let packets = f64::from(self.size.sessions);
            new.push(once.new_cycles as f64 / packets);
            answered.push(once.answered_cycles as f64 / packets);
            both.push((once.new_cycles + once.answered_cycles) as f64 / (2.0 * packets));
            let seconds = cycles as f64 / self.hz;
            if seconds >= self.seconds || both.len() >= REPETITIONS_MAX {
                break seconds;
            }
        };
        Ok(ThreadResult {
            new_cycles: median(&mut new),
            answered_cycles: median(&mut answered),
            cycles: median(&mut both),
            bytes,
            seconds,
        })
    }

    /// The whole workload once, on a table of its own.
    fn once<N: Nat>(self, set: &mut PacketSet) -> Result<Once, TablesError> {
        let wrong = |Wrong { position }| TablesError::Wrong { structure: self.kind, position };
        let full = |Full| TablesError::Full { structure: self.kind, sessions: self.size.sessions };
        let mut nat = N::new(self.size)?;
        set.write();
        let (new_cycles, done) =
            timed(self.hz, |now| set.packets().chunks_mut(BURST).try_for_each(|b| nat.leave(b, now())));
        done.map_err(full)?;
        set.answer().map_err(wrong)?;
        let (answered_cycles, ()) =
            timed(self.hz, |now| set.packets().chunks_mut(BURST).for_each(|b| nat.enter(b, now())));
        set.check().map_err(wrong)?;
        Ok(Once { new_cycles, answered_cycles, bytes: nat.bytes() })
    }
}

struct Once {
    new_cycles: u64,
    answered_cycles: u64,
    bytes: usize,
}

/// Cycles of `work`, which gets a clock: about microseconds since its beginning, asked once a
/// burst.
///
/// The time while another program has the CPU is left out, where the system reports it: a set of
/// millions takes longer than any time slice, so on a busy machine all repetitions would have some.
#[inline]
fn timed<T>(hz: f64, work: impl FnOnce(&dyn Fn() -> u32) -> T) -> (u64, T) {
    let running_before = tsc::thread_seconds();
    let begun = tsc::read();
    let result = work(&|| (tsc::read().wrapping_sub(begun) >> 11) as u32);
    let cycles = tsc::read().wrapping_sub(begun);
    let running = tsc::thread_seconds().zip(running_before).map(|(after, before)| ((after - before) * hz) as u64);
    // The thread's clock has its own calls in it, so it is the longer one unless the thread was
    // interrupted.
    (running.map_or(cycles, |running| running.min(cycles)), result)
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
