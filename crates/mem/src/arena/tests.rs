use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;

use zerocopy::FromZeros;

use super::*;

#[derive(FromZeros)]
#[repr(C, align(64))]
struct Record {
    counter: AtomicU64,
    tags: [u16; 8],
}

#[test]
fn records_start_zeroed_and_keep_what_is_written() {
    for length in [1, 7, 4096, 100_000] {
        let mut arena = Arena::<Record>::zeroed(length).unwrap();
        assert_eq!(arena.len(), length);
        assert!(arena.bytes() >= length * 64);
        assert!(arena.iter().all(|record| record.counter.load(Ordering::Relaxed) == 0 && record.tags == [0; 8]));
        for (index, record) in arena.iter_mut().enumerate() {
            record.counter = AtomicU64::new(index as u64);
        }
        let last = u32::try_from(length - 1).unwrap();
        assert_eq!(arena.at(last).counter.load(Ordering::Relaxed), u64::from(last));
        arena.at_mut(last).tags[7] = 9;
        assert_eq!(arena[length - 1].tags[7], 9);
        assert_eq!(arena.first.as_ptr().addr() % 64, 0);
    }
}

#[test]
fn reserved_arena_takes_memory_where_it_is_written() {
    let mut arena = Arena::<[u64; 512]>::reserved(100).unwrap();
    assert_eq!((arena.len(), arena.resident_bytes()), (100, 0));
    arena[7][3] = 1;
    assert_eq!((arena.resident_bytes(), arena.bytes()), (4_096, 100 * 4_096));
    assert!(arena.iter().enumerate().all(|(place, record)| record.iter().sum::<u64>() == u64::from(place == 7)));
    assert_eq!(Arena::<[u64; 512]>::zeroed(100).unwrap().resident_bytes(), 100 * 4_096);
}

#[test]
fn empty_arena_takes_no_memory() {
    let arena = Arena::<u64>::zeroed(0).unwrap();
    assert!(arena.is_empty());
    assert_eq!(arena.bytes(), 0);
}

#[test]
fn prefetch_ignores_an_index_out_of_range() {
    let arena = Arena::<u64>::zeroed(3).unwrap();
    for index in [0, 2, 3, usize::MAX] {
        arena.prefetch(index);
        arena.prefetch_write(index);
    }
}

#[test]
#[should_panic(expected = "out of bounds")]
fn access_out_of_range_panics() {
    let arena = Arena::<u64>::zeroed(3).unwrap();
    let _ = arena.at(3);
}

#[test]
fn the_error_names_bytes_before_anything_is_taken() {
    let available = available::bytes().unwrap();
    let error = Arena::<u64>::zeroed(usize::try_from(available / 4).unwrap()).unwrap_err();
    let ArenaError::NotEnough { needed, available } = error else { panic!("unexpected error: {error}") };
    assert!(needed > available);
    let text = error.to_string();
    assert!(text.contains(&needed.to_string()) && text.contains(&available.to_string()), "{text}");
}

#[test]
fn length_that_overflows_is_an_error() {
    assert!(matches!(Arena::<u64>::zeroed(usize::MAX / 4), Err(ArenaError::TooLarge { .. })));
    assert!(matches!(Arena::<u8>::zeroed(isize::MAX as usize), Err(ArenaError::TooLarge { .. })));
}

#[test]
fn large_arena_is_aligned_for_hugepages() {
    let arena = Arena::<u8>::zeroed(5 << 20).unwrap();
    assert_eq!(arena.first.as_ptr().addr() % PAGE_2M, 0);
    assert!(arena.bytes() >= 5 << 20);
}

#[test]
fn arena_can_be_shared_between_threads() {
    let arena = Arena::<AtomicU64>::zeroed(64).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    arena.at(5).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(arena.at(5).load(Ordering::Relaxed), 4000);
}

#[test]
fn missed_hugepage_bytes_are_counted_while_the_arena_lives() {
    // Other tests make smaller arenas at the same time.
    const LARGE: u64 = 64 << 20;
    let arena = Arena::<u8>::zeroed(LARGE as usize).unwrap();
    match arena.pages() {
        PageKind::Huge1G | PageKind::Huge2M => assert_eq!(arena.missed, 0),
        PageKind::Transparent | PageKind::Plain => {
            assert_eq!(arena.missed, LARGE);
            assert!(missed_bytes() >= LARGE);
        }
    }
    drop(arena);
    assert!(missed_bytes() < LARGE);
    // Small tables do not gain from hugepages.
    assert_eq!(Arena::<u8>::zeroed(100_000).unwrap().missed, 0);
}
