//! Exports against the list and against lookups.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::path::Path;

use export::Subscriber;
use export::store::Edition;
use export::store::Interval;
use export::store::Question;
use export::store::Store;
use export::store::StoreError;
use export::store::Until;
use nat::Protocol;
use rand::Rng;

use super::Folder;
use super::segments;
use super::world::FIRST_EXTERNAL;
use super::world::Faults;
use super::world::World;

/// Compares an export of a moment with the list. Returns how many it had.
fn compare_export(world: &mut World, seed: u64) -> usize {
    let moment = Question { host: None, port: None, ..world.question() };
    let store = Store::open(&world.folder).unwrap();
    let (mut expected, mut exported) = (Vec::new(), Vec::new());
    for place in 0..2 {
        let question = Question { address: Ipv4Addr::from_bits(FIRST_EXTERNAL + place), ..moment };
        if !store.look_up(&question).unwrap().is_complete {
            return 0;
        }
        expected.extend(
            world.holders(&question).into_iter().map(|(key, _)| (key.external, key.first_port, key.subscriber)),
        );
    }
    let each = |Interval { holder, .. }: &Interval| {
        exported.push((holder.external.to_bits(), holder.first_port, holder.subscriber));
        Ok::<(), StoreError>(())
    };
    store.intervals(moment.from_us, moment.to_us, each).unwrap();
    expected.sort_unstable();
    exported.sort_unstable();
    assert_eq!(exported, expected, "seed {seed}: {moment:?}");
    expected.len()
}

#[test]
fn an_export_has_what_ended_later_or_is_in_the_journal() {
    let mut exported = 0;
    for seed in 600..606 {
        let folder = Folder::new(&format!("export-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults::default());
        for _ in 0..8 {
            for _ in 0..250 {
                world.step();
            }
            for _ in 0..10 {
                exported += compare_export(&mut world, seed);
            }
        }
    }
    assert!(exported > 1_000, "{exported}");
}

/// While an export is read, an instance merges its segments and deletes some by retention.
#[test]
fn an_export_of_a_store_that_goes_on_meanwhile_is_whole() {
    let (mut gone, mut exported) = (0, 0);
    for seed in 620..624 {
        let folder = Folder::new(&format!("export-live-{seed}"));
        let mut world = World::new(seed, &folder.0, Faults { retention: true, ..Faults::default() });
        for _ in 0..6 {
            (0..400).for_each(|_| world.step());
            let store = Store::open(&folder.0).unwrap();
            let before = segments(&folder.0);
            let intervals = |each: &mut dyn FnMut()| {
                let mut found = Vec::new();
                let put = |interval: &Interval| {
                    found.push(format!("{interval:?}"));
                    each();
                    Ok::<(), StoreError>(())
                };
                store.intervals(0, 1 << 60, put).map(|()| {
                    // A merge brings them in another order.
                    found.sort_unstable();
                    found
                })
            };
            let expected = intervals(&mut || {}).unwrap();
            let mut calls = 0;
            let found = intervals(&mut || {
                calls += 1;
                (0..if calls == 1 { 400 } else { 0 }).for_each(|_| world.step());
            });
            assert!(found.unwrap() == expected, "seed {seed}");
            let now = segments(&folder.0);
            gone += before.iter().filter(|path| !now.contains(path)).count();
            exported += expected.len();
        }
    }
    assert!(gone > 20 && exported > 1_000, "{gone} {exported}");
}

/// What is the same in all rows about one interval.
type Identity = ([u8; 16], u64, u32, (u16, u16), Option<Protocol>, Subscriber, Option<u16>);

/// Rows of exports that were made one after the other; of each interval the newest.
#[derive(Default)]
struct Collected(BTreeMap<Identity, (u64, Interval)>);

impl Collected {
    /// Adds an export of the time between two moments.
    fn add(&mut self, folder: &Path, from_us: u64, to_us: u64) {
        let put = |edition: Edition, interval: &Interval| {
            let Interval { holder, run, started_ms, .. } = interval;
            let ports = (holder.first_port, holder.last_port);
            let owner = (holder.protocol, holder.subscriber, holder.internal_port);
            let identity = (*run, *started_ms, holder.external.to_bits(), ports, owner.0, owner.1, owner.2);
            let known = self.0.entry(identity).or_insert_with(|| (0, interval.clone()));
            if known.0 <= edition.version {
                *known = (edition.version, interval.clone());
            }
            Ok::<(), StoreError>(())
        };
        Store::open(folder).unwrap().intervals_with(from_us, to_us, put, |_, _| {}).unwrap();
    }

    /// Who may have had an address at a time, and whether that is proved.
    fn at(&self, external: Ipv4Addr, at_us: u64) -> Vec<(u16, Subscriber, bool)> {
        let is_held = |interval: &&Interval| {
            let Interval { holder, .. } = interval;
            let is_ended = match holder.until {
                Until::Open => false,
                Until::Ended(end) | Until::Restart(end) | Until::Lost(end) => end <= at_us,
            };
            holder.external == external && holder.since_us <= at_us && !is_ended
        };
        let held = self.0.values().map(|(_, interval)| interval).filter(is_held);
        let mut held: Vec<_> = held
            .map(|interval| {
                let is_proved =
                    interval.known_us.is_some_and(|(since_us, until_us)| since_us <= at_us && at_us < until_us);
                assert!(is_proved || !interval.holder.is_certain, "{interval:?}");
                (interval.holder.first_port, interval.holder.subscriber, is_proved)
            })
            .collect();
        held.sort_unstable();
        held
    }
}

/// Compares exports, one a round, with lookups about any time. Returns how many holders were proved
/// and how many were only possible.
fn compare_rows(name: &str, seeds: core::ops::Range<u64>, faults: Faults) -> (usize, usize) {
    let (mut proved, mut possible) = (0, 0);
    for seed in seeds {
        let folder = Folder::new(&format!("{name}-{seed}"));
        let mut world = World::new(seed, &folder.0, faults);
        let (mut daily, mut to_us) = (Collected::default(), 0);
        for _ in 0..8 {
            (0..150).for_each(|_| world.step());
            let until_us = world.now_us.saturating_add_signed(world.offset);
            let mut whole = Collected::default();
            whole.add(&folder.0, 0, 1 << 60);
            daily.add(&folder.0, to_us, if faults.clock { 1 << 60 } else { until_us });
            // What is recorded late is in the next one.
            to_us = if faults.clock { 0 } else { until_us.saturating_sub(5_000_000) };
            let store = Store::open(&folder.0).unwrap();
            let first_us = world.settings.iter().map(|setting| setting.from_us.saturating_add_signed(setting.offset));
            let first_us = first_us.min().unwrap();
            for _ in 0..40 {
                let at_us = world.random.random_range(first_us..until_us.max(first_us + 1) + 3_000_000);
                let external = Ipv4Addr::from_bits(FIRST_EXTERNAL + world.random.random_range(0..2));
                let question = Question {
                    address: external,
                    host: None,
                    port: None,
                    protocol: None,
                    from_us: at_us,
                    to_us: at_us,
                };
                let truth = world.holders(&question);
                let found = store.look_up(&question).unwrap().holders;
                // Rows do not say what a millisecond leaves open of a moment.
                let shared: HashSet<(u16, Subscriber)> = found
                    .iter()
                    .filter(|holder| holder.is_ms_shared)
                    .map(|holder| (holder.first_port, holder.subscriber))
                    .collect();
                let mut found: Vec<_> =
                    found.iter().map(|holder| (holder.first_port, holder.subscriber, holder.is_certain)).collect();
                found.sort_unstable();
                let mut moment = Collected::default();
                moment.add(&folder.0, at_us, at_us);
                for (what, rows) in [("all", &whole), ("moment", &moment), ("daily", &daily)] {
                    let rows = rows.at(external, at_us);
                    let all = format!("{rows:?}");
                    let context = || format!("seed {seed}, {what}, at {at_us}: {all}\nfound {found:?}");
                    for (port, subscriber, is_certain) in &found {
                        let is_shared = shared.contains(&(*port, *subscriber));
                        let may_be_less_sure = faults.clock || what == "daily" || is_shared;
                        let is_as_sure = |row: &&(u16, Subscriber, bool)| row.2 == *is_certain || may_be_less_sure;
                        let same = rows.iter().filter(|row| (row.0, row.1) == (*port, *subscriber));
                        assert!(same.filter(is_as_sure).count() > 0, "{port} is missing: {}", context());
                    }
                    for (port, subscriber, is_proved) in rows {
                        let is_true =
                            truth.iter().any(|(key, _)| (key.first_port, key.subscriber) == (port, subscriber));
                        assert!(is_true || !is_proved, "{port} is wrong: {}", context());
                        // A torn journal may have lost what an earlier export has; where records
                        // were lost, a lookup may miss what a later segment has.
                        let is_less_sure = shared.contains(&(port, subscriber)) && is_proved;
                        let is_there = found.contains(&(port, subscriber, is_proved))
                            || (is_less_sure && found.contains(&(port, subscriber, false)));
                        let may_be_more = faults.clock || what == "daily" || (faults.loss && !is_proved);
                        assert!(is_there || may_be_more, "{port}: {}", context());
                        *(if is_proved { &mut proved } else { &mut possible }) += 1;
                    }
                }
            }
        }
    }
    (proved, possible)
}

#[test]
fn rows_of_exports_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows", 700..704, Faults::default());
    assert!(proved > 1_000 && possible > 0, "{proved} {possible}");
}

#[test]
fn rows_of_killed_runs_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows-kills", 710..718, Faults { kills: true, ..Faults::default() });
    assert!(proved > 1_000 && possible > 500, "{proved} {possible}");
}

#[test]
fn rows_about_lost_records_are_as_sure_as_lookups() {
    let (proved, possible) = compare_rows("rows-loss", 720..726, Faults { loss: true, ..Faults::default() });
    assert!(proved > 100 && possible > 500, "{proved} {possible}");
}

#[test]
fn rows_by_a_clock_that_is_set_are_never_surer_than_lookups() {
    let faults = Faults { clock: true, loss: true, kills: true, retention: false };
    let (proved, possible) = compare_rows("rows-clock", 730..738, faults);
    assert!(proved > 100 && possible > 500, "{proved} {possible}");
}
