//! Damaged, cut, foreign and locked stores.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use export::store::Moment;
use export::store::Store;
use export::store::StoreError;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::verify;
use nat::Protocol;
use nat::event::Event;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Folder;
use super::copy;
use super::segments;
use super::world::FIRST_EXTERNAL;
use super::world::Faults;
use super::world::Key;
use super::world::World;
use super::world::subscriber;

#[test]
fn a_store_cut_at_any_byte_answers_or_refuses() {
    let folder = Folder::new("cut");
    let mut world = World::new(7, &folder.0, Faults::default());
    for _ in 0..600 {
        world.step();
    }
    world.writer = None;
    let mut random = SmallRng::seed_from_u64(3);
    let cut = Folder::new("cut-copy");
    let names: Vec<PathBuf> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
    for _ in 0..150 {
        let _ = fs::remove_dir_all(&cut.0);
        copy(&folder.0, &cut.0);
        let path = cut.0.join(names[random.random_range(0..names.len())].file_name().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let place = random.random_range(0..bytes.len());
        if random.random_bool(0.5) {
            bytes.truncate(place)
        } else {
            bytes[place] ^= 1 << random.random_range(0..8)
        }
        fs::write(&path, &bytes).unwrap();
        let Ok(store) = Store::open(&cut.0) else { continue };
        for _ in 0..10 {
            let question = world.question();
            let expected = world.holders(&question);
            match store.look_up(&question) {
                Ok(found) => {
                    // What a damaged catalogue or journal no longer has is not "no record".
                    if !found.is_complete {
                        continue;
                    }
                    world.check(7, &question, &expected, &found);
                }
                Err(StoreError::Damaged { .. } | StoreError::Io { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn foreign_newer_and_locked_stores_are_refused() {
    let folder = Folder::new("refused");
    fs::create_dir_all(&folder.0).unwrap();
    let moment = Moment { monotonic_us: 1, unix_us: 1_790_000_000_000_000 };
    let open = || StoreWriter::open(&folder.0, StoreOptions::default(), moment);
    fs::write(folder.0.join("letter.txt"), "hello").unwrap();
    assert!(matches!(open().unwrap_err(), StoreError::Foreign { .. }));
    assert!(matches!(Store::open(&folder.0).unwrap_err(), StoreError::Foreign { .. }));
    fs::remove_file(folder.0.join("letter.txt")).unwrap();
    let first = open().unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }) && error.to_string().contains("another process"), "{error}");
    drop(first);
    // A later release writes the copy, too.
    let paths = ["catalogue", "catalogue.copy"].map(|name| folder.0.join(name));
    let mut bytes = fs::read(&paths[0]).unwrap();
    assert_eq!(bytes, fs::read(&paths[1]).unwrap());
    let write = |bytes: &[u8]| paths.iter().for_each(|path| fs::write(path, bytes).unwrap());
    bytes[14] = 2;
    write(&bytes);
    let error = open().unwrap_err();
    assert!(matches!(error, StoreError::Newer { version: 2, .. }), "{error}");
    bytes.truncate(30);
    bytes[14] = 1;
    write(&bytes);
    assert!(matches!(Store::open(&folder.0).unwrap_err(), StoreError::Damaged { .. }));
}

/// Damages a file in some way, and says which.
fn damage(random: &mut SmallRng, path: &Path) -> &'static str {
    let mut bytes = fs::read(path).unwrap();
    let place = random.random_range(0..bytes.len());
    let what = match random.random_range(0..10) {
        0..4 => {
            bytes[place] ^= 1 << random.random_range(0..8);
            "a flipped bit"
        }
        4..6 => {
            let sector = place..bytes.len().min(place + 512);
            bytes[sector].fill(0);
            "a sector of zeros"
        }
        6..9 => {
            bytes.truncate(place);
            "a cut"
        }
        _ => {
            fs::remove_file(path).unwrap();
            return "a removed file";
        }
    };
    fs::write(path, &bytes).unwrap();
    what
}

/// All files of a folder and of the folders in it.
fn contents(folder: &Path) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(contents(&path)) } else { found.push(fs::read(&path).unwrap()) }
    }
    found
}

#[test]
fn any_damaged_file_lets_a_store_begin_and_answers_say_so() {
    let mut random = SmallRng::seed_from_u64(17);
    let (mut complete, mut asked, mut of_segments) = (0, 0, 0);
    for seed in 0..6 {
        let folder = Folder::new(&format!("damage-{seed}"));
        let faults = Faults { loss: seed % 3 == 1, kills: seed % 3 == 2, ..Faults::default() };
        let mut world = World::new(900 + seed, &folder.0, faults);
        while segments(&folder.0).len() < 5 || world.boot < usize::from(faults.kills) {
            world.step();
        }
        (0..30).for_each(|_| world.step());
        world.writer.as_mut().unwrap().flush().unwrap();
        world.writer = None;
        let (unix_us, options) = (world.moment().unix_us + 1_000_000, world.options.clone());
        let hurt = Folder::new(&format!("damage-{seed}-copy"));
        for round in 0..12 {
            let _ = fs::remove_dir_all(&hurt.0);
            copy(&folder.0, &hurt.0);
            let mut paths: Vec<PathBuf> = fs::read_dir(&hurt.0).unwrap().map(|entry| entry.unwrap().path()).collect();
            // Work that was not completed is not read.
            paths.retain(|path| !path.to_str().unwrap().ends_with(".new") && fs::metadata(path).unwrap().len() > 0);
            paths.sort();
            let name_of = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            // The last segment is the one that a start needs.
            let last = segments(&hurt.0).pop().unwrap();
            let is_last = round % 3 == 0;
            let path = if is_last { last } else { paths.swap_remove(random.random_range(0..paths.len())) };
            let name = name_of(&path);
            let what = format!("seed {seed}, round {round}: {} of {name}", damage(&mut random, &path));
            let damaged = fs::read(&path).ok().filter(|_| name != "catalogue.copy" && name != "head");
            let moment = Moment { monotonic_us: 3_000_000, unix_us };
            let opened = StoreWriter::open(&hurt.0, options.clone(), moment);
            let mut writer = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
            // Nothing of it was deleted; what a power cut could have torn off is no damage.
            let is_torn = name.starts_with("journal-") && writer.damage().is_empty();
            let is_kept = damaged.is_none_or(|damaged| contents(&hurt.0).contains(&damaged));
            assert!(is_kept || is_torn, "{what}");
            let found = verify(&hurt.0, None, |_, _| {}).unwrap().faults;
            let is_catalogue = name == "catalogue" && !what.contains("removed");
            let must_show = name.starts_with("segment-") || is_catalogue || name == "head";
            assert!(!must_show || !found.is_empty(), "{what}");
            of_segments += u64::from(name.starts_with("segment-") && !writer.damage().is_empty());
            let mut ask = |world: &mut World, what: &str| {
                let store = Store::open(&hurt.0).unwrap_or_else(|error| panic!("{what}: {error}"));
                for _ in 0..25 {
                    let question = world.question();
                    let expected = world.holders(&question);
                    let found = store.look_up(&question).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(found.is_complete || !found.notes.is_empty(), "{what}");
                    world.check(900 + seed, &question, &expected, &found);
                    (asked, complete) = (asked + 1, complete + u32::from(found.is_complete));
                }
            };
            ask(&mut world, &what);
            // It goes on to write, to merge and to stop.
            for second in 4..8 {
                let at_us = second * 1_000_000;
                let key = Key {
                    external: FIRST_EXTERNAL + 9,
                    first_port: second as u16,
                    last_port: second as u16,
                    protocol: Some(Protocol::Udp),
                    subscriber: subscriber(0, false),
                    internal_port: 1,
                };
                let event = Event { sequence: second - 3, ..World::event(&key, true, at_us) };
                writer.push(WorkerId(0), &event);
                let now = Moment { monotonic_us: at_us, unix_us: unix_us + at_us - 3_000_000 };
                (0..3).for_each(|_| writer.advance(now, at_us).unwrap_or_else(|error| panic!("{what}: {error}")));
                writer.seal().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            let now = Moment { monotonic_us: 9_000_000, unix_us: unix_us + 6_000_000 };
            let ended = writer.finish(now, 9_000_000, true);
            ended.unwrap_or_else(|error| panic!("{what}: {error}"));
            ask(&mut world, &what);
            let again = Moment { monotonic_us: 1, unix_us: unix_us + 60_000_000 };
            let again = StoreWriter::open(&hurt.0, options.clone(), again);
            assert_eq!(again.unwrap_or_else(|error| panic!("{what}: {error}")).damage(), [""; 0], "{what}");
        }
    }
    println!("{asked} answers, {complete} complete; {of_segments} starts without all that was open");
    assert!(complete * 4 > asked, "{complete} of {asked} are complete");
    assert!(of_segments > 5, "{of_segments}");
}
