const WORDS: usize = 65_536 / 8 / 64;

#[derive(Clone, Debug)]
pub(super) struct Units {
    arrived: [u64; WORDS],
    begins: [u64; WORDS],
}

impl Units {
    pub(super) const NONE: Units = Units { arrived: [0; WORDS], begins: [0; WORDS] };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    New,
    Duplicate,
    /// Some of it arrived before, or was cut differently.
    Overlap,
}

fn words_of(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64)).map(move |word| {
        let low = from.saturating_sub(word * 64).min(63);
        let high = (to - word * 64).min(64);
        (word, (u64::MAX >> (64 - high)) & (u64::MAX << low))
    })
}

impl Units {
    fn has(bits: &[u64; WORDS], unit: usize) -> bool {
        bits.get(unit / 64).is_some_and(|word| word >> (unit % 64) & 1 != 0)
    }

    pub(super) fn fit(&self, from: usize, to: usize) -> Fit {
        let (mut any, mut all, mut inner) = (false, true, false);
        for (word, mask) in words_of(from, to) {
            let arrived = self.arrived.get(word).copied().unwrap_or(0) & mask;
            let begins = self.begins.get(word).copied().unwrap_or(0) & mask;
            any |= arrived != 0;
            all &= arrived == mask;
            let own = if word == from / 64 { 1 << (from % 64) } else { 0 };
            inner |= begins & !own != 0;
        }
        if !any {
            return Fit::New;
        }
        // A duplicate begins and ends where a fragment did, and none begins inside.
        let ends = Units::has(&self.begins, to) || !Units::has(&self.arrived, to);
        if all && !inner && ends && Units::has(&self.begins, from) { Fit::Duplicate } else { Fit::Overlap }
    }

    pub(super) fn mark(&mut self, from: usize, to: usize) {
        for (word, mask) in words_of(from, to) {
            if let Some(arrived) = self.arrived.get_mut(word) {
                *arrived |= mask;
            }
        }
        if let Some(begins) = self.begins.get_mut(from / 64) {
            *begins |= 1 << (from % 64);
        }
    }

    pub(super) fn clear(&mut self, to: usize) {
        let words = to.div_ceil(64).min(WORDS);
        for word in self.arrived.iter_mut().take(words) {
            *word = 0;
        }
        for word in self.begins.iter_mut().take(words) {
            *word = 0;
        }
    }
}
