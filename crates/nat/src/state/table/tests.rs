use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::random::Random;

const SECRET: [u64; 4] = [3, 1, 4, 1];

#[derive(Clone, Debug)]
enum Step {
    Insert(u8),
    Remove(u8, u32),
    /// Modulo the existing entries.
    RemovePresent(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Insert),
        1 => (any::<u8>(), 0_u32..400).prop_map(|(hash, index)| Step::Remove(hash, index)),
        3 => any::<usize>().prop_map(Step::RemovePresent),
    ]
}

/// Sorted.
fn all(table: &BucketTable, hash: u64) -> Vec<u32> {
    let mut found = Vec::new();
    let end = table.find(hash, |index| {
        found.push(index);
        false
    });
    assert_eq!(end, None);
    found.sort_unstable();
    found
}

/// `overflow` must count the entries beyond the bucket with their home there or before.
fn assert_overflow_counts_are_exact(table: &BucketTable, entries: &[(u64, u32)]) {
    let mut expected = vec![0; table.buckets.len()];
    for &(hash, index) in entries {
        let (position, _) = table.locate(hash, index).unwrap();
        let mut passed = table.home(hash);
        while passed != position {
            expected[passed] += 1;
            passed = table.after(passed);
        }
    }
    let counted: Vec<u32> = table.buckets.iter().map(|bucket| bucket.overflow).collect();
    assert_eq!(counted, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// `spread`: whether the 256 hashes lie in one bucket, in neighbours (also at the wrap), or
    /// anywhere.
    #[test]
    fn table_has_the_entries_a_plain_list_has(
        capacity in 1_usize..120,
        spread in prop_oneof![Just(0_u32), Just(1), Just(2), Just(3)],
        steps in vec(step(), 0..400),
    ) {
        let hash_of = |small: u8| match spread {
            0 => u64::from(small & 3),
            1 => u64::MAX << 32 | u64::from(small & 15),
            2 => u64::from(small) << 56 | u64::from(small & 1),
            _ => u64::from(small).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        let mut table = BucketTable::with_capacity(capacity).unwrap();
        let mut entries: Vec<(u64, u32)> = Vec::new();
        // As in the engine, each index is entered once.
        for (index, step) in (0..).zip(steps) {
            match step {
                Step::Insert(small) => {
                    let result = table.insert(hash_of(small), index);
                    prop_assert_eq!(result.is_ok(), entries.len() < capacity);
                    if result.is_ok() {
                        entries.push((hash_of(small), index));
                    }
                }
                Step::Remove(small, index) => {
                    let present = entries.iter().position(|&entry| entry == (hash_of(small), index));
                    // Tags 0 and 1 are one tag, and hashes that differ only in the middle are equal
                    // to the table.
                    let same = |&(hash, other): &(u64, u32)| {
                        other == index
                            && BucketTable::tag(hash) == BucketTable::tag(hash_of(small))
                    };
                    if present.is_some() || !entries.iter().any(same) {
                        prop_assert_eq!(table.remove(hash_of(small), index), present.is_some());
                        if let Some(position) = present {
                            entries.swap_remove(position);
                        }
                    }
                }
                Step::RemovePresent(number) => {
                    if !entries.is_empty() {
                        let (hash, index) = entries.swap_remove(number % entries.len());
                        prop_assert!(table.remove(hash, index));
                    }
                }
            }
            prop_assert_eq!(table.len(), entries.len());
        }
        for &(hash, index) in &entries {
            prop_assert_eq!(table.find(hash, |other| other == index), Some(index));
            prop_assert!(table.first_candidate(hash).is_some());
        }
        assert_overflow_counts_are_exact(&table, &entries);
        for (hash, index) in entries {
            prop_assert!(table.remove(hash, index));
        }
        prop_assert!(table.is_empty());
        prop_assert!(table.buckets.iter().all(|bucket| bucket.overflow == 0 && bucket.tags == [0; SLOTS]));
    }
}

#[test]
fn table_fills_to_its_capacity_and_then_refuses() {
    for capacity in [1, 2, 7, 8, 9, 15, 16, 17, 100, 1000, 99_999] {
        let mut table = BucketTable::with_capacity(capacity).unwrap();
        let mut random = Random::new(SECRET);
        let hashes: Vec<u64> = (0..capacity).map(|_| random.next_u64()).collect();
        for (index, &hash) in (0..).zip(&hashes) {
            assert_eq!(table.insert(hash, index), Ok(()));
        }
        assert_eq!(table.insert(1, 1), Err(TableFull));
        assert_eq!((table.len(), table.capacity()), (capacity, capacity));
        for (index, &hash) in (0..).zip(&hashes) {
            assert_eq!(table.find(hash, |other| other == index), Some(index));
        }
        assert!(capacity * 4 <= table.buckets.len() * SLOTS * 3, "load is at most 3 of 4 at capacity {capacity}");
    }
}

#[test]
fn a_full_table_takes_ten_bytes_an_entry_and_one_line_a_lookup() {
    const ENTRIES: usize = 1_000_000;
    let mut table = BucketTable::with_capacity(ENTRIES).unwrap();
    let mut random = Random::new(SECRET);
    for index in 0..ENTRIES as u32 {
        table.insert(random.next_u64(), index).unwrap();
    }
    assert!(table.buckets.len() * size_of::<Bucket>() <= ENTRIES * 10 + 128);
    let mut random = Random::new(SECRET);
    let (mut lines, mut rejected) = (0, 0);
    for index in 0..ENTRIES as u32 {
        let hash = random.next_u64();
        let (position, _) = table.locate(hash, index).unwrap();
        lines += (position + table.buckets.len() - table.home(hash)) % table.buckets.len() + 1;
        let found = table.find(hash, |other| {
            rejected += usize::from(other != index);
            other == index
        });
        assert_eq!(found, Some(index));
    }
    assert!(lines * 10 < ENTRIES * 12, "{lines} lines for {ENTRIES} lookups");
    // About eight other tags are compared each time, each equal with chance 1/65536.
    assert!(rejected * 2_000 < ENTRIES, "{rejected} wrong candidates in {ENTRIES} lookups");
}

#[test]
fn equal_hashes_are_kept_apart_by_their_indices() {
    let mut table = BucketTable::with_capacity(500).unwrap();
    for index in 0..500 {
        table.insert(u64::MAX, index).unwrap();
    }
    assert_eq!(all(&table, u64::MAX), (0..500).collect::<Vec<_>>());
    for index in (0..500).step_by(2) {
        assert!(table.remove(u64::MAX, index));
        assert!(!table.remove(u64::MAX, index));
    }
    assert_eq!(all(&table, u64::MAX), (1..500).step_by(2).collect::<Vec<_>>());
    for index in (0..500).step_by(2) {
        table.insert(u64::MAX, index).unwrap();
    }
    assert_eq!(all(&table, u64::MAX).len(), 500);
}

#[test]
fn years_of_insertion_and_deletion_leave_no_trace() {
    let mut table = BucketTable::with_capacity(800).unwrap();
    let mut random = Random::new(SECRET);
    let mut entries = Vec::new();
    for index in 0..300_000_u32 {
        if entries.len() == 800 || (!entries.is_empty() && random.below(100) < 48) {
            let (hash, index) = entries.swap_remove(random.below(entries.len() as u32) as usize);
            assert!(table.remove(hash, index));
            assert_eq!(table.find(hash, |other| other == index), None);
        } else {
            let hash = random.next_u64();
            table.insert(hash, index).unwrap();
            entries.push((hash, index));
        }
    }
    assert_overflow_counts_are_exact(&table, &entries);
    for (hash, index) in entries {
        assert_eq!(table.find(hash, |other| other == index), Some(index));
        assert!(table.remove(hash, index));
    }
    assert!(table.buckets.iter().all(|bucket| bucket.overflow == 0));
}

#[test]
fn empty_table_finds_nothing() {
    let table = BucketTable::with_capacity(0).unwrap();
    assert_eq!(table.find(7, |_| true), None);
    assert_eq!(table.first_candidate(0), None);
    table.prefetch(u64::MAX);
}

/// Of a million hashes.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// As under a good hash.
    Random,
    /// This many, each repeated: needs the secret.
    FewHashes(u32),
    /// Anywhere, all with one tag.
    OneTag,
    /// This many in one bucket under different tags, the others anywhere.
    OneBucket(u32),
}

impl Spread {
    fn hash(self, serial: u32, random: &mut Random) -> u64 {
        let any = random.next_u64();
        match self {
            Spread::Random => any,
            Spread::FewHashes(hashes) => (any % u64::from(hashes)).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Spread::OneTag => any | 0xffff,
            Spread::OneBucket(members) if serial.is_multiple_of(1_000_000 / members) => any & 0xffff_ffff,
            Spread::OneBucket(_) => any,
        }
    }
}

fn fill_change_and_empty(secret: [u64; 4], capacity: usize, spread: Spread) {
    let mut random = Random::new(secret);
    let mut table = BucketTable::with_capacity(capacity).unwrap();
    let mut entries: Vec<(u64, u32)> = Vec::with_capacity(capacity);
    let mut serial = 0;
    let mut enter = |table: &mut BucketTable, entries: &mut Vec<(u64, u32)>, random: &mut Random| {
        serial += 1;
        let hash = spread.hash(serial, random);
        let entered = table.insert(hash, serial);
        if entered.is_ok() {
            entries.push((hash, serial));
        }
        entered
    };
    while entries.len() < capacity {
        assert_eq!(enter(&mut table, &mut entries, &mut random), Ok(()));
    }
    // Fewer are removed before each refill: at last one at a time.
    for taken_out in [50_000, 1_000, 30, 1] {
        for _ in 0..50_000_usize.div_ceil(taken_out).min(1_000) {
            assert_eq!(enter(&mut table, &mut entries, &mut random), Err(TableFull));
            assert_eq!(table.len(), capacity);
            for _ in 0..taken_out {
                let (hash, index) = entries.swap_remove(random.below(entries.len() as u32) as usize);
                assert!(table.remove(hash, index));
                assert_eq!(table.find(hash, |other| other == index), None);
            }
            while entries.len() < capacity {
                assert_eq!(enter(&mut table, &mut entries, &mut random), Ok(()));
            }
        }
    }
    assert_overflow_counts_are_exact(&table, &entries);
    for &(hash, index) in &entries {
        assert_eq!(table.find(hash, |other| other == index), Some(index));
    }
    for (hash, index) in entries {
        assert!(table.remove(hash, index));
    }
    assert!(table.buckets.iter().all(|bucket| bucket.overflow == 0 && bucket.tags == [0; SLOTS]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2))]

    #[test]
    fn a_full_table_of_a_million_has_the_entries_a_plain_list_has(
        secret in any::<[u64; 4]>(),
        capacity in 1_000_000_usize..1_000_100,
        hashes in 10_000_u32..200_000,
        members in 100_u32..1_500,
    ) {
        for spread in [Spread::Random, Spread::OneTag, Spread::FewHashes(hashes), Spread::OneBucket(members)] {
            fill_change_and_empty(secret, capacity, spread);
        }
    }
}
