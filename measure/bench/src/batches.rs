//! Short pieces of work, timed one by one: the median leaves out those in which the machine did
//! something else.

use mem::tsc;

/// Cycles of batches.
pub(crate) struct Batches {
    cycles: Vec<u64>,
    spent: u64,
    end: u64,
}

impl Batches {
    /// For so many seconds of timed work; the counter has `hz` cycles a second.
    pub(crate) fn new(seconds: f64, hz: f64) -> Batches {
        Batches { cycles: Vec::new(), spent: 0, end: (seconds * hz) as u64 }
    }

    /// Whether that much was timed.
    pub(crate) fn is_done(&self) -> bool {
        self.spent >= self.end
    }

    /// Times one batch.
    pub(crate) fn time(&mut self, batch: impl FnOnce()) {
        let before = tsc::read();
        batch();
        let cycles = tsc::read().wrapping_sub(before);
        self.spent += cycles;
        self.cycles.push(cycles);
    }

    /// Batches timed.
    pub(crate) fn len(&self) -> usize {
        self.cycles.len()
    }

    /// Cycles of one piece of work in a batch of `pieces`; 0 without batches.
    pub(crate) fn median(&mut self, pieces: usize) -> f64 {
        self.cycles.sort_unstable();
        self.cycles.get(self.cycles.len() / 2).map_or(0.0, |cycles| *cycles as f64 / pieces as f64)
    }
}
