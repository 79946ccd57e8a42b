//! Mappings created in this burst, which its earlier passes did not see.

/// A bit for each value of ten hash bits: of 64 new mappings, two are looked for without need.
#[derive(Default)]
pub(in crate::shard) struct Created([u64; 16]);

impl Created {
    #[inline(always)]
    pub(in crate::shard) fn clear(&mut self) {
        self.0 = [0; 16];
    }

    #[inline(always)]
    pub(in crate::shard) fn note(&mut self, hash: u64) {
        let (word, bit) = place(hash);
        self.0[word] |= bit;
    }

    #[inline(always)]
    pub(in crate::shard) fn may_have(&self, hash: u64) -> bool {
        let (word, bit) = place(hash);
        self.0[word] & bit != 0
    }
}

#[inline(always)]
const fn place(hash: u64) -> (usize, u64) {
    ((hash >> 6 & 15) as usize, 1 << (hash & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_not_missed_until_the_next_burst() {
        let mut created = Created::default();
        for hash in [0_u64, 63, 64, 1_023, u64::MAX, 0x1234_5678_9abc_de00] {
            assert!(!created.may_have(hash));
            created.note(hash);
            assert!(created.may_have(hash));
            created.clear();
        }
        created.note(7);
        assert!(!created.may_have(8) && created.may_have(7 + 1_024), "ten bits are compared");
    }
}
