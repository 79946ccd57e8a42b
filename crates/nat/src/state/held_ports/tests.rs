use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// Due times are counted in ticks.
const TICK: Duration = Duration::from_micros(1 << TICK_SHIFT);

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

#[test]
fn a_port_is_held_for_its_whole_time_and_hardly_longer() {
    let delay = Duration::from_secs(120);
    for start in [0, 1, 16_383, 16_384, 3_600_000_000, (1 << (DUE_BITS + TICK_SHIFT)) - 60_000_000] {
        let mut held = HeldPorts::new(4).unwrap();
        assert_eq!(held.hold(70_000, delay, at(start)), None);
        let due = at(start) + delay;
        assert_eq!(held.pop_due(at(start)), None);
        assert_eq!(held.pop_due(at(due.as_micros() - 1)), None, "a microsecond early");
        assert_eq!(held.pop_due(due + TICK), Some(70_000));
        assert_eq!((held.pop_due(due + TICK), held.len()), (None, 0));
    }
}

#[test]
fn ports_held_three_months_ago_are_still_due() {
    let mut held = HeldPorts::new(4).unwrap();
    held.hold(1, Duration::from_secs(120), at(5_000_000));
    assert_eq!(held.pop_due(at(5_000_000) + Duration::from_secs(90 * 24 * 3_600)), Some(1));
}

#[test]
fn the_port_with_least_time_left_goes_early_without_room() {
    let mut held = HeldPorts::new(3).unwrap();
    let (long, short) = (Duration::from_secs(100), Duration::from_secs(10));
    assert_eq!(held.hold(1, long, at(0)), None);
    assert_eq!(held.hold(2, short, at(0)), None);
    assert_eq!(held.hold(3, long, at(0)), None);
    assert_eq!(held.hold(4, long, at(0)), Some(2));
    assert_eq!(held.hold(5, long, at(0)), Some(1));
    assert_eq!(held.len(), 3);
    let mut none = HeldPorts::new(0).unwrap();
    assert_eq!(none.hold(9, long, at(0)), Some(9), "no room at all");
}

#[test]
fn with_more_delays_than_queues_ports_are_held_longer() {
    let mut held = HeldPorts::new(100).unwrap();
    for length in 1..=40 {
        assert_eq!(held.hold(length as usize, Duration::from_secs(length), at(0)), None);
    }
    let mut gone = Vec::new();
    for second in 0..=41 {
        while let Some(place) = held.pop_due(at(second * 1_000_000) + TICK) {
            assert!(place as u64 <= second, "{place} went after {second} s");
            gone.push(place);
        }
    }
    gone.sort_unstable();
    assert_eq!(gone, (1..=40).collect::<Vec<_>>());
}

#[test]
fn the_next_ports_due_are_known_beforehand() {
    let mut held = HeldPorts::new(1_000).unwrap();
    for place in 0..300 {
        held.hold(place, Duration::from_secs(1), at(place as u64));
    }
    for place in 0..300 {
        let upcoming: Vec<usize> = held.upcoming(8).collect();
        assert!(!upcoming.is_empty());
        assert_eq!(upcoming, (place..place + upcoming.len()).collect::<Vec<_>>());
        assert!(held.ahead(4).is_none_or(|ahead| ahead == place + 4));
        assert_eq!(held.pop_due(at(10_000_000)), Some(place));
    }
    assert_eq!(held.upcoming(8).count(), 0);
}

#[test]
fn the_computed_memory_is_that_allocated() {
    for capacity in [0, 1, 50, 500_000] {
        let [table, _] = HeldPorts::needs(capacity);
        let held = HeldPorts::new(capacity).unwrap();
        assert!(held.bytes() as u64 >= table.bytes(), "{capacity}");
        assert!(table.bytes() <= u64::from(capacity) * 8 + (SPARE_CHUNKS as u64 + 1) * CHUNK as u64 * 8, "{capacity}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Hold(u64),
    Pass(u64),
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => prop::sample::select(vec![1_u64, 7, 120, 300]).prop_map(Step::Hold),
        2 => (0_u64..40_000_000).prop_map(Step::Pass),
        3 => Just(Step::Pop),
    ]
}

proptest! {
    /// Against a deque for each delay.
    #[test]
    fn behaves_like_deques(capacity in 1_u32..400, steps in prop::collection::vec(step(), 0..3_000)) {
        let mut held = HeldPorts::new(capacity).unwrap();
        let mut model: Vec<(u64, VecDeque<(u64, usize)>)> = Vec::new();
        let mut now = 1_u64 << (DUE_BITS + TICK_SHIFT - 1);
        let round_up = |micros: u64| micros.div_ceil(1 << TICK_SHIFT) << TICK_SHIFT;
        let earliest = |model: &mut Vec<(u64, VecDeque<(u64, usize)>)>| {
            let due = model.iter().filter_map(|(_, queue)| queue.front().map(|first| first.0)).min()?;
            Some(due)
        };
        for (place, step) in steps.into_iter().enumerate() {
            match step {
                Step::Hold(seconds) => {
                    let len: usize = model.iter().map(|(_, queue)| queue.len()).sum();
                    let gone = held.hold(place, Duration::from_secs(seconds), at(now));
                    if len as u32 == capacity {
                        let due = earliest(&mut model);
                        let gone = gone.unwrap();
                        let owner = model.iter_mut().find(|(_, queue)| queue.front().is_some_and(|first| first.1 == gone));
                        let first = owner.and_then(|(_, queue)| queue.pop_front());
                        prop_assert_eq!(first.map(|first| first.0), due);
                    } else {
                        prop_assert_eq!(gone, None);
                    }
                    let entry = (round_up(now + seconds * 1_000_000), place);
                    match model.iter_mut().find(|(length, _)| *length == seconds) {
                        Some((_, queue)) => queue.push_back(entry),
                        None => model.push((seconds, VecDeque::from([entry]))),
                    }
                }
                Step::Pass(micros) => now += micros,
                Step::Pop => {
                    let is_due = earliest(&mut model).is_some_and(|due| due <= now);
                    match held.pop_due(at(now)) {
                        Some(gone) => {
                            let owner = model.iter_mut().find(|(_, queue)| queue.front().is_some_and(|first| first.1 == gone));
                            let first = owner.and_then(|(_, queue)| queue.pop_front());
                            prop_assert!(first.is_some_and(|first| first.0 <= now));
                        }
                        None => prop_assert!(!is_due),
                    }
                }
            }
            let len: usize = model.iter().map(|(_, queue)| queue.len()).sum();
            prop_assert_eq!(held.len() as usize, len);
        }
    }
}
