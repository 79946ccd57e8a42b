//! Watches the device's CPUs: whether the machine took one of them away during a trial.
//!
//! On shared machines a CPU is gone for some milliseconds every few seconds, and no counter of the
//! kernel says so. A virtual pair holds 256 frames, a third of a millisecond at 800 000 frames/s:
//! what is lost then is not the device's fault. The tester notices when its own CPU is gone,
//! because frames leave late. For each CPU of the device there is a thread, with priority over
//! everything else there, that sleeps and looks how late it wakes up. It takes half a percent of
//! the CPU, of each device alike.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::thread::CpuSet;
use rustix::thread::gettid;
use rustix::thread::sched_setaffinity;

use crate::topology::run;

/// How long it sleeps each time. What is as long is seen for sure.
const SLEEP: Duration = Duration::from_micros(500);

/// What watches, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    longest_nanoseconds: AtomicU64,
}

impl Watch {
    /// Watches these CPUs. None without the privilege to be before all others there: an ordinary
    /// thread would see the device at work.
    pub fn start(cpus: &[usize]) -> Option<Watch> {
        let mut watch = Watch { shared: Arc::default(), threads: Vec::new() };
        for cpu in cpus.iter().copied() {
            let shared = Arc::clone(&watch.shared);
            let (tell, told) = std::sync::mpsc::channel();
            let watcher = move || {
                let is_ready = is_first_on(cpu);
                // Who asked may have gone.
                let _ = tell.send(is_ready);
                if is_ready {
                    shared.watch();
                }
            };
            watch.threads.push(thread::Builder::new().name(format!("watch {cpu}")).spawn(watcher).ok()?);
            if told.recv() != Ok(true) {
                return None;
            }
        }
        Some(watch)
    }

    /// The longest time that any of the CPUs was away since the last call, seconds.
    pub fn longest_seconds(&self) -> f64 {
        self.shared.longest_nanoseconds.swap(0, Ordering::Relaxed) as f64 / 1e9
    }
}

impl Shared {
    fn watch(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let begin = Instant::now();
            thread::sleep(SLEEP);
            let late = begin.elapsed().saturating_sub(SLEEP);
            self.longest_nanoseconds.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

/// Binds the calling thread to a CPU and puts it before all ordinary threads there.
fn is_first_on(cpu: usize) -> bool {
    let mut only = CpuSet::new();
    only.set(cpu);
    let thread = gettid().as_raw_nonzero().to_string();
    sched_setaffinity(None, &only).is_ok() && run(&["chrt", "--fifo", "--pid", "1", &thread]).is_ok()
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked watches no more.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_watched_and_asked_for_once() {
        let Some(watch) = Watch::start(&[0]) else {
            // Without the privilege it says so.
            assert!(!rustix::process::geteuid().is_root() || run(&["chrt", "--fifo", "1", "true"]).is_err());
            return;
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while watch.longest_seconds() == 0.0 {
            assert!(Instant::now() < deadline, "nobody wakes up");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_longest_pause_is_reported_and_reset() {
        let shared = Arc::new(Shared::default());
        shared.longest_nanoseconds.store(3_000_000, Ordering::Relaxed);
        let watch = Watch { shared, threads: Vec::new() };
        assert_eq!((watch.longest_seconds(), watch.longest_seconds()), (0.003, 0.0));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_not_watched() {
        assert!(Watch::start(&[1023]).is_none());
    }
}
