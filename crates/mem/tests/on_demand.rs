//! [`provide_on_demand`] holds for a whole process, so this test has its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mem::Arena;
use mem::arena::provide_on_demand;

const RECORDS: usize = 1 << 20;

#[test]
fn an_arena_takes_memory_only_where_it_is_written() {
    let whole: Arena<u64> = Arena::zeroed(RECORDS).unwrap();
    assert!(whole.resident_bytes() >= RECORDS * size_of::<u64>());
    provide_on_demand();
    let mut arena: Arena<u64> = Arena::zeroed(RECORDS).unwrap();
    assert_eq!(arena.resident_bytes(), 0);
    arena[RECORDS - 1] = 7;
    assert_eq!((arena[0], arena[RECORDS - 1]), (0, 7));
    // One page was written and one read.
    assert!(arena.resident_bytes() <= 2 * 64 * 1024, "{}", arena.resident_bytes());
}
