//! The threads of the workers: each polls its worker until it must stop, then drains it.
//!
//! A bad packet never ends the process: a panic inside a poll is caught, the burst goes to the
//! quarantine, and the worker continues with its state.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::panic;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::thread::JoinHandle;

use nat::Instant;
use packet_io::Io;

use crate::clock::Clock;
use crate::mailbox::Snapshot;
use crate::worker::Worker;

/// What a worker does without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Keeps polling, for the least delay: the worker has its own CPU.
    Poll,
    /// Gives up the CPU for growing intervals. The first packet after a pause waits up to
    /// [`SLEEP`], after a second's pause up to [`DOZE`].
    #[default]
    Sleep,
}

/// How long an idle worker sleeps.
pub const SLEEP: Duration = Duration::from_micros(200);
/// How long it sleeps if nothing has happened for a while. At a million packets a second, a port's
/// queue of 1,024 packets is full after that.
pub const DOZE: Duration = Duration::from_millis(1);
/// Idle times before a worker yields the CPU, sleeps briefly, and sleeps longer.
const YIELD_AFTER_US: u64 = 20;
const NAP_AFTER_US: u64 = 500;
const SLEEP_AFTER_US: u64 = 10_000;
const DOZE_AFTER_US: u64 = 1_000_000;
const NAP: Duration = Duration::from_micros(50);
/// After a question of the control server another one follows soon, as for each page of a list.
const ASKED_US: u64 = 20_000;

/// Time that a stopping worker waits for packets of other workers.
const DRAIN_QUIET_US: u64 = 50_000;
/// Maximum time to stop: enough for one more answer of a neighbour, and less than a service manager
/// waits.
const DRAIN_MAX_US: u64 = 2_000_000;

/// Packets of a burst on which the engine failed.
#[derive(Debug)]
pub struct Quarantined {
    /// The failed worker.
    pub worker: u8,
    /// The time.
    pub at: Instant,
    /// The packets from their IP headers.
    pub packets: Vec<Vec<u8>>,
    /// Packets lost, including those that are not kept.
    pub lost: u64,
}

/// Arguments of all worker threads.
#[derive(Clone, Debug)]
pub struct ThreadOptions {
    /// The clock of the instance.
    pub clock: Clock,
    /// Behaviour when idle.
    pub idle: Idle,
    /// Channel for failed bursts; when it is full they are counted and dropped.
    pub quarantine: SyncSender<Quarantined>,
}

/// The running worker threads.
#[derive(Debug)]
pub struct Fleet {
    stop: Arc<AtomicBool>,
    panics: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Snapshot>>,
}

impl Fleet {
    /// Starts a thread for each worker and pins worker `n` to `cpus[n]`, if given. `prepare` runs
    /// first on each thread (to register it with DPDK).
    ///
    /// # Errors
    /// A thread cannot be started. The others are stopped.
    pub fn start<I>(
        workers: Vec<Worker<I>>,
        cpus: &[Option<u16>],
        options: &ThreadOptions,
        prepare: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Fleet>
    where
        I: Io + Send + 'static,
    {
        let mut fleet =
            Fleet { stop: Arc::new(AtomicBool::new(false)), panics: Arc::new(AtomicU64::new(0)), threads: Vec::new() };
        for worker in workers {
            let cpu = cpus.get(worker.id().index()).copied().flatten();
            let (stop, panics) = (Arc::clone(&fleet.stop), Arc::clone(&fleet.panics));
            let (options, prepare) = (options.clone(), prepare.clone());
            let name = format!("worker {}", worker.id().0);
            let run = move || {
                if let Some(cpu) = cpu {
                    // Checked before the start; a CPU that disappeared since costs only speed.
                    let _ = core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(cpu) });
                }
                prepare();
                run(worker, &options, &stop, &panics)
            };
            fleet.threads.push(thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(fleet)
    }

    /// Bursts on which the engine failed so far.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Drains all workers: they take no more packets from ports and send those they hold. Returns
    /// the last numbers of each worker when all are done.
    pub fn stop(mut self) -> Vec<Snapshot> {
        self.stop.store(true, Ordering::Relaxed);
        // A dead thread has no numbers.
        self.threads.drain(..).map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

fn run<I: Io>(mut worker: Worker<I>, options: &ThreadOptions, stop: &AtomicBool, panics: &AtomicU64) -> Snapshot {
    let mut idle_since: Option<Instant> = None;
    let mut stopping_since: Option<Instant> = None;
    let mut asked_at = Instant::ORIGIN;
    let mut now = options.clock.now();
    loop {
        let started = now;
        let taken = match panic::catch_unwind(AssertUnwindSafe(|| worker.poll(now))) {
            Ok(taken) => taken,
            Err(_payload) => {
                panics.fetch_add(1, Ordering::Relaxed);
                quarantine(&mut worker, options, now);
                0
            }
        };
        now = options.clock.now();
        if worker.was_asked() {
            asked_at = now;
        }
        if taken > 0 {
            let took_us = now.saturating_since(started).as_micros();
            worker.busy_us += took_us;
            worker.rounds.count(took_us);
            idle_since = None;
        } else {
            let idle = now.saturating_since(*idle_since.get_or_insert(started)).as_micros();
            if options.idle == Idle::Sleep {
                rest(idle, now.saturating_since(asked_at).as_micros());
                now = options.clock.now();
            }
        }
        if stop.load(Ordering::Relaxed) {
            worker.set_receiving(false);
            let stopping = now.saturating_since(*stopping_since.get_or_insert(now)).as_micros();
            if (stopping >= DRAIN_QUIET_US && worker.is_quiet()) || stopping >= DRAIN_MAX_US {
                break;
            }
        }
    }
    worker.abandon_waiting();
    worker.finish_events(now);
    let mut last = Snapshot::default();
    worker.fill_snapshot(now, &mut last);
    last
}

/// Gives up the CPU, for longer the longer no packet and no question has come.
fn rest(idle_us: u64, unasked_us: u64) {
    match idle_us {
        0..YIELD_AFTER_US => core::hint::spin_loop(),
        YIELD_AFTER_US..NAP_AFTER_US => thread::yield_now(),
        _ => thread::sleep(length_of_sleep(idle_us, unasked_us)),
    }
}

const fn length_of_sleep(idle_us: u64, unasked_us: u64) -> Duration {
    match idle_us {
        0..SLEEP_AFTER_US => NAP,
        DOZE_AFTER_US.. if unasked_us >= ASKED_US => DOZE,
        _ => SLEEP,
    }
}

fn quarantine<I: Io>(worker: &mut Worker<I>, options: &ThreadOptions, now: Instant) {
    let mut packets = Vec::new();
    let lost = worker.recover(|packet| packets.push(packet.to_vec()));
    let failed = Quarantined { worker: worker.id().0, at: now, packets, lost };
    // A full queue means that many such bursts are already being written.
    let _ = options.quarantine.try_send(failed);
}

#[cfg(test)]
mod tests;
