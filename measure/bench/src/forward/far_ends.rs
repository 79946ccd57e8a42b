//! The far ends of the links: they put frames in before a poll and take out what left after it, on
//! the worker's own thread or on a CPU of their own.
//!
//! Between two programs, each line of a frame is in another core's cache when Natrix reads it, and
//! the other program's copies are not Natrix's time. That is what a CPU of their own shows
//! ([`Apart`]). The two threads take turns, so that every poll has full bursts however slow the far
//! ends are, and neither runs while the other is measured.

use core::hint;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;

use core_affinity::CoreId;
use packet_io::Burst;
use packet_io::Io;
use packet_io::dpdk;
use packet_io::dpdk::DpdkBuffer;
use packet_io::dpdk::DpdkIo;

use super::Driver;
use super::bed::Ports;
use super::traffic::Traffic;

/// Looks at the other thread's step before this one gives its CPU up: they may have one CPU between
/// them, and other programs want it, too.
const LOOKS: u32 = 10_000;

/// What the far ends keep.
pub(super) struct FarEnds {
    ports: Ports,
    pub(super) traffic: Traffic,
    /// Per port: the ring has a burst that the far end put there.
    pub(super) fed: [bool; 2],
    /// Their buffers, to be used again.
    spare: [Burst<DpdkBuffer>; 2],
}

impl FarEnds {
    pub(super) fn new(ports: Ports, traffic: Traffic) -> FarEnds {
        FarEnds { ports, traffic, fed: [false; 2], spare: [Burst::new(), Burst::new()] }
    }

    /// Before a poll: puts a burst into the receive queue of each port the traffic has something
    /// for. Returns false when there was no buffer or no room, which never happens while every
    /// burst is taken away again.
    pub(super) fn feed(&mut self, io: &mut DpdkIo) -> bool {
        if self.ports.driver == Driver::Null {
            return true;
        }
        for side in 0..2 {
            let burst = &mut self.spare[side];
            while !burst.is_full() {
                let Some(buffer) = io.allocate() else { return false };
                // There is room, so it does not come back.
                let _ = burst.push(buffer);
            }
            self.fed[side] = self.traffic.write(side, burst);
            if self.fed[side] {
                io.transmit(self.ports.far_ends[side], burst);
                if !burst.is_empty() {
                    return false;
                }
            }
        }
        true
    }

    /// After a poll: takes what left.
    pub(super) fn drain(&mut self, io: &mut DpdkIo) {
        if self.ports.driver == Driver::Null {
            return;
        }
        for side in 0..2 {
            loop {
                let mut burst = Burst::new();
                io.receive(self.ports.far_ends[side], &mut burst);
                if burst.is_empty() {
                    break;
                }
                self.traffic.look(side, &burst);
                if self.spare[side].is_empty() {
                    self.spare[side] = burst;
                }
            }
        }
    }
}

/// What the other thread is to do next.
#[derive(Clone, Copy)]
enum Step {
    Feed,
    Drain,
    End,
}

/// A thread on a CPU of its own that does the far ends' work, a step at a time.
pub(super) struct Apart {
    turn: Arc<Turn>,
    thread: Option<JoinHandle<()>>,
}

/// Whose turn it is.
#[derive(Default)]
struct Turn {
    /// Odd: the far ends have a step to do. Even: it is done.
    count: AtomicU32,
    /// The far ends' thread has ended, perhaps by a panic.
    is_over: AtomicBool,
    step: AtomicU32,
    /// Whether the last bursts went in.
    fed: AtomicBool,
}

impl Turn {
    fn wait(&self, odd: bool) {
        let mut looks = 0_u32;
        while (self.count.load(Ordering::Acquire) % 2 == 1) != odd && !self.is_over.load(Ordering::Relaxed) {
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                thread::yield_now();
            }
            hint::spin_loop();
        }
    }

    fn pass_on(&self) {
        self.count.fetch_add(1, Ordering::Release);
    }
}

/// Says that the thread has ended, whatever ended it.
struct Over<'a>(&'a Turn);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Apart {
    /// Starts the thread. `io` has the far ends' ports.
    pub(super) fn start(mut io: DpdkIo, far_ends: Arc<Mutex<FarEnds>>, cpu: CoreId) -> Apart {
        let turn = Arc::new(Turn::default());
        let theirs = Arc::clone(&turn);
        let thread = thread::spawn(move || {
            let _over = Over(&theirs);
            core_affinity::set_for_current(cpu);
            dpdk::register_thread();
            loop {
                theirs.wait(true);
                match theirs.step.load(Ordering::Relaxed) {
                    step if step == Step::Feed as u32 => {
                        let fed = locked(&far_ends).feed(&mut io);
                        theirs.fed.store(fed, Ordering::Relaxed);
                    }
                    step if step == Step::Drain as u32 => locked(&far_ends).drain(&mut io),
                    _ => return,
                }
                theirs.pass_on();
            }
        });
        Apart { turn, thread: Some(thread) }
    }

    fn have(&self, step: Step) {
        self.turn.step.store(step as u32, Ordering::Relaxed);
        self.turn.pass_on();
        self.turn.wait(false);
    }

    /// As [`FarEnds::feed`].
    pub(super) fn feed(&self) -> bool {
        self.have(Step::Feed);
        self.turn.fed.load(Ordering::Relaxed) && !self.turn.is_over.load(Ordering::Relaxed)
    }

    /// As [`FarEnds::drain`].
    pub(super) fn drain(&self) {
        self.have(Step::Drain);
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.turn.step.store(Step::End as u32, Ordering::Relaxed);
        self.turn.pass_on();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the figures are not given then.
            let _ = thread.join();
        }
    }
}

/// A panic on the other thread may have left it half changed; there is no report then.
pub(super) fn locked(far_ends: &Mutex<FarEnds>) -> MutexGuard<'_, FarEnds> {
    far_ends.lock().unwrap_or_else(PoisonError::into_inner)
}
