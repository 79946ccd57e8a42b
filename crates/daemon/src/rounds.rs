//! How long a worker's rounds with packets took.

/// Entries: up to 1, 2, 4, … 16,384 µs, and longer.
pub const ENTRIES: usize = 16;

/// Rounds of one worker by the time they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds([u64; ENTRIES]);

impl Rounds {
    /// Counts a round of `took_us`. A few instructions, once per round.
    #[inline]
    pub fn count(&mut self, took_us: u64) {
        let entry = (u64::BITS - took_us.saturating_sub(1).leading_zeros()) as usize;
        self.0[entry.min(ENTRIES - 1)] += 1;
    }

    /// Entry `n` has the rounds that took at most 2^`n` µs and more than those of the entry before.
    pub fn counts(&self) -> &[u64; ENTRIES] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_counted_under_its_bound() {
        for (took_us, entry) in
            [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (16_384, 14), (16_385, 15), (u64::MAX, 15)]
        {
            let mut rounds = Rounds::default();
            rounds.count(took_us);
            assert_eq!(rounds.counts().iter().position(|count| *count == 1), Some(entry), "{took_us} µs");
        }
    }
}
