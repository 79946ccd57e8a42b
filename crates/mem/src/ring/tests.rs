use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;

use super::channel;

#[test]
fn items_come_out_in_order_and_a_full_ring_gives_them_back() {
    let (mut producer, mut consumer) = channel(4);
    assert_eq!(producer.capacity(), 4);
    for round in 0..10 {
        for item in 0..4 {
            assert_eq!(producer.try_push(round * 4 + item), Ok(()));
        }
        assert_eq!(producer.try_push(99), Err(99));
        assert_eq!((producer.len(), consumer.len()), (4, 4));
        for item in 0..4 {
            assert_eq!(consumer.try_pop(), Some(round * 4 + item));
        }
        assert_eq!(consumer.try_pop(), None);
        assert!(consumer.is_empty() && producer.is_empty());
    }
}

#[test]
fn burst_takes_no_item_it_cannot_push() {
    let (mut producer, mut consumer) = channel(8);
    let mut items = 0..20;
    assert_eq!(producer.push_burst(&mut items), 8);
    assert_eq!(producer.push_burst(&mut items), 0);
    let mut got = Vec::new();
    assert_eq!(consumer.pop_burst(3, |item| got.push(item)), 3);
    assert_eq!(producer.push_burst(&mut items), 3);
    assert_eq!(consumer.pop_burst(100, |item| got.push(item)), 8);
    assert_eq!(consumer.pop_burst(100, |item| got.push(item)), 0);
    assert_eq!(got, (0..11).collect::<Vec<_>>());
    assert_eq!(items, 11..20);
}

#[test]
fn staged_items_can_be_taken_back_until_they_are_published() {
    let (mut producer, mut consumer) = channel(4);
    assert_eq!(producer.try_push(1), Ok(()));
    assert_eq!(producer.unstage(), None, "the consumer can see it");
    for round in 0..10 {
        assert_eq!((producer.stage(2 + round), producer.stage(99)), (Ok(()), Ok(())));
        assert_eq!(producer.unstage(), Some(99));
        producer.publish();
        assert_eq!(producer.unstage(), None);
        assert_eq!(consumer.try_pop(), Some(1 + round));
    }
}

#[test]
fn nothing_is_lost_or_reordered_between_two_threads() {
    const ITEMS: u64 = 200_000;
    let (mut producer, mut consumer) = channel::<u64>(64);
    let pusher = thread::spawn(move || {
        let mut items = 0..ITEMS;
        while items.start < ITEMS {
            let pushed = if items.start % 3 == 0 {
                let burst = (items.start + 17).min(ITEMS);
                let count = producer.push_burst(&mut (items.start..burst));
                items.start += count as u64;
                count
            } else {
                let pushed = producer.try_push(items.start).is_ok();
                items.start += u64::from(pushed);
                usize::from(pushed)
            };
            if pushed == 0 {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < ITEMS {
        let popped = if expected % 2 == 0 {
            consumer.pop_burst(13, |item| {
                assert_eq!(item, expected);
                expected += 1;
            })
        } else {
            consumer.try_pop().map_or(0, |item| {
                assert_eq!(item, expected);
                expected += 1;
                1
            })
        };
        if popped == 0 {
            assert!(!consumer.is_abandoned() || !consumer.is_empty(), "producer ended before all items came");
            thread::yield_now();
        }
    }
    pusher.join().unwrap();
    assert_eq!(consumer.try_pop(), None);
}

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn dropping_the_ring_drops_what_is_inside_once() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (mut producer, mut consumer) = channel(8);
    for _ in 0..7 {
        assert!(producer.try_push(Counted(Arc::clone(&dropped))).is_ok());
    }
    drop((consumer.try_pop(), consumer.try_pop()));
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    drop(producer);
    assert!(consumer.is_abandoned());
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    drop(consumer);
    assert_eq!(dropped.load(Ordering::Relaxed), 7);
}

#[test]
fn items_taken_before_a_panic_are_not_seen_again() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let (mut producer, mut consumer) = channel(8);
    for _ in 0..4 {
        assert!(producer.try_push(Counted(Arc::clone(&dropped))).is_ok());
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut seen = 0;
        consumer.pop_burst(4, |_| {
            seen += 1;
            assert_ne!(seen, 2, "on purpose");
        });
    }));
    assert!(result.is_err());
    assert_eq!(consumer.len(), 2);
    drop((producer, consumer));
    assert_eq!(dropped.load(Ordering::Relaxed), 4);
}

#[test]
fn staged_items_are_seen_when_published_and_take_room_before() {
    let (mut producer, mut consumer) = channel(2);
    assert_eq!((producer.stage(1), producer.stage(2), producer.stage(3)), (Ok(()), Ok(()), Err(3)));
    assert_eq!((producer.len(), consumer.try_pop()), (2, None));
    producer.publish();
    assert_eq!((consumer.try_pop(), consumer.try_pop(), consumer.try_pop()), (Some(1), Some(2), None));
    // A push shows what was staged before it, in order.
    assert_eq!((producer.stage(4), producer.try_push(5)), (Ok(()), Ok(())));
    assert_eq!((consumer.try_pop(), consumer.try_pop()), (Some(4), Some(5)));
}

#[test]
fn staged_items_of_a_ring_whose_producer_is_gone_are_not_lost() {
    let (mut producer, mut consumer) = channel(4);
    let item = Arc::new(());
    assert!(producer.stage(Arc::clone(&item)).is_ok() && producer.stage(Arc::clone(&item)).is_ok());
    drop(producer);
    assert!(consumer.try_pop().is_some());
    drop(consumer);
    assert_eq!(Arc::strong_count(&item), 1, "what nobody took was dropped with the ring");
}
