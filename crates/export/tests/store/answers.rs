//! Lookups against the list.

use core::cell::Cell;
use std::collections::HashMap;
use std::collections::HashSet;

use export::store::Bounds;
use export::store::Generated;
use export::store::Generator;
use export::store::Interval;
use export::store::Question;
use export::store::Store;
use export::store::StoreError;
use export::store::Until;

use super::Folder;
use super::generated;
use super::world::Faults;
use super::world::World;

fn compare_all(name: &str, seeds: core::ops::Range<u64>, faults: Faults) -> (usize, usize, usize) {
    let mut totals = (0, 0, 0);
    for seed in seeds {
        let folder = Folder::new(&format!("{name}-{seed}"));
        let mut world = World::new(seed, &folder.0, faults);
        for round in 0..6 {
            for _ in 0..250 {
                world.step();
            }
            if round % 2 == 1 {
                world.advance();
            }
            let (held, complete) = world.compare(60, seed);
            totals = (totals.0 + held, totals.1 + complete, totals.2 + 60);
        }
    }
    totals
}

#[test]
fn answers_without_faults_are_those_of_the_list() {
    let (held, complete, asked) = compare_all("plain", 0..12, Faults::default());
    // All but times after the last frame.
    assert!(complete * 100 > asked * 95, "{complete} of {asked}");
    assert!(held * 10 > asked, "{held} of {asked}");
}

#[test]
fn clock_steps_lose_no_holder_and_name_both() {
    let (held, complete, asked) = compare_all("clock", 100..112, Faults { clock: true, ..Faults::default() });
    assert!(complete * 100 > asked * 50 && held * 20 > asked, "{held} and {complete} of {asked}");
}

#[test]
fn kills_and_torn_journals_never_name_a_wrong_holder() {
    let (held, complete, asked) = compare_all("kills", 200..212, Faults { kills: true, ..Faults::default() });
    assert!(complete * 100 > asked * 40 && held * 20 > asked, "{held} and {complete} of {asked}");
}

#[test]
fn lost_records_never_name_a_wrong_holder() {
    let (held, complete, asked) = compare_all("loss", 300..312, Faults { loss: true, ..Faults::default() });
    // A report of all live state makes answers complete again.
    assert!(complete * 100 > asked * 5 && held > 0, "{held} and {complete} of {asked}");
}

#[test]
fn retention_deletes_and_never_says_no_record() {
    let (held, complete, asked) = compare_all("retention", 400..410, Faults { retention: true, ..Faults::default() });
    assert!(complete * 100 > asked * 10 && complete * 100 < asked * 90 && held > 0, "{complete} of {asked}");
}

#[test]
fn nothing_that_ended_longer_ago_than_retention_is_answered() {
    let mut ended = 0;
    for seed in 420..426 {
        let folder = Folder::new(&format!("maximum-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults { retention: true, ..Faults::default() });
        world.options.merge = 64;
        for _ in 0..20 {
            (0..60).for_each(|_| world.step());
            // Twice: what was sealed is entered by the second, which deletes what became too old.
            (0..2).for_each(|_| world.advance());
            let retention_us = world.options.retention_us.unwrap();
            let oldest = (world.now_us - retention_us).saturating_add_signed(world.offset);
            let put = |Interval { holder, .. }: &Interval| {
                if let Until::Ended(end_us) = holder.until {
                    ended += 1;
                    // The segment that is written may span a 64th; it is looked at when it is full.
                    assert!(end_us + retention_us / 8 > oldest, "seed {seed}: {holder:?}, oldest {oldest}");
                }
                Ok::<(), StoreError>(())
            };
            Store::open(&folder.0).unwrap().intervals(0, 1 << 60, put).unwrap();
        }
    }
    assert!(ended > 1_000, "{ended}");
}

#[test]
fn all_faults_together_never_name_a_wrong_holder() {
    let faults = Faults { clock: true, loss: true, kills: true, retention: true };
    compare_all("all", 500..516, faults);
}

#[test]
fn a_lookup_ends_when_its_answer_is_no_longer_wanted() {
    let folder = Folder::new("unwanted");
    let (_writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let from_us = Generator::begin().unix_us;
    let to_us = from_us + now.monotonic_us;
    let question = Question { address: begun[0].external, host: None, port: None, protocol: None, from_us, to_us };
    let store = Store::open(&folder.0).unwrap();
    let looks = Cell::new(0);
    let all = store.look_up_within(
        &question,
        Bounds {
            goes_on: &|| {
                looks.set(looks.get() + 1);
                true
            },
            ..Bounds::NONE
        },
    );
    assert_eq!(all.unwrap().holders, store.look_up(&question).unwrap().holders);
    let all = looks.get();
    assert!(all > 10, "{all} looks");
    // At whichever place it is: at the beginning, among the segments, among their rows.
    for last in [0, 1, all / 2, all - 1] {
        looks.set(0);
        let goes_on = || {
            looks.set(looks.get() + 1);
            looks.get() <= last
        };
        let ended = store.look_up_within(&question, Bounds { goes_on: &goes_on, ..Bounds::NONE }).unwrap_err();
        assert!(matches!(ended, StoreError::Ended { .. }), "{ended}");
        assert_eq!(looks.get(), last + 1, "it goes no further");
    }
}

#[test]
fn a_question_beyond_the_records_lists_each_holder_once() {
    let folder = Folder::new("beyond");
    // The instance goes on: what its records do not cover yet may have other holders.
    let (_writer, now, begun) = generated(&folder, Generated::Mappings(40_000), 5);
    let mut by_address = HashMap::new();
    begun.iter().for_each(|event| *by_address.entry(event.external).or_insert(0) += 1);
    let (address, count) = by_address.into_iter().max_by_key(|(_, count)| *count).unwrap();
    assert!(count > 10, "{count}");
    let from_us = Generator::begin().unix_us;
    let to_us = from_us + now.monotonic_us + 60_000_000;
    let question = Question { address, host: None, port: None, protocol: None, from_us, to_us };
    let store = Store::open(&folder.0).unwrap();
    let all = store.look_up(&question).unwrap();
    assert_eq!((all.holders.len(), all.is_complete), (count, false));
    let found = store.look_up_within(&question, Bounds { holders_max: 2 * count, ..Bounds::NONE }).unwrap();
    assert_eq!(found.holders, all.holders);
    let ports: HashSet<_> = found.holders.iter().map(|holder| (holder.first_port, holder.since_us)).collect();
    assert_eq!(ports.len(), count, "each once");
    for max in [0, 1, count / 2] {
        let refused = store.look_up_within(&question, Bounds { holders_max: max, ..Bounds::NONE }).unwrap_err();
        assert!(matches!(refused, StoreError::TooMany { max: named, .. } if named == max), "{refused}");
        assert!(refused.to_string().contains(&format!("more than {max} holders; name a port")), "{refused}");
    }
}
