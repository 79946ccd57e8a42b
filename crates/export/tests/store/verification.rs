//! `verify` finds tampering, and nothing else.

use std::fs;
use std::path::Path;

use export::store::Moment;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::lookups;
use export::store::verify;
use export::store::verify_text;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::Folder;
use super::copy;
use super::segments;
use super::world::Faults;
use super::world::World;

/// A store of some segments, one of them merged, and a journal. Returns an exported head.
fn stored(folder: &Path, key: Option<&Path>) -> String {
    let mut world = World::new(11, folder, Faults::default());
    while Store::open(folder).unwrap().stat().unwrap().segments < 4 {
        for _ in 0..50 {
            world.step();
        }
    }
    world.writer.as_mut().unwrap().flush().unwrap();
    world.writer = None;
    Store::open(folder).unwrap().head(key).unwrap()
}

#[test]
fn verify_finds_each_kind_of_tampering() {
    let (folder, changed) = (Folder::new("verify"), Folder::new("verify-copy"));
    let head = folder.0.with_extension("head");
    fs::write(&head, stored(&folder.0, None)).unwrap();
    let faults = |folder: &Path| verify(folder, Some(&head), |_, _| {}).unwrap().faults;
    assert_eq!(faults(&folder.0), Vec::<String>::new());
    let mut random = SmallRng::seed_from_u64(5);
    let again = || {
        let _ = fs::remove_dir_all(&changed.0);
        copy(&folder.0, &changed.0);
    };
    // A flipped byte anywhere in a segment.
    for _ in 0..40 {
        again();
        let all = segments(&changed.0);
        let path = &all[random.random_range(0..all.len())];
        let mut bytes = fs::read(path).unwrap();
        let place = random.random_range(0..bytes.len());
        bytes[place] ^= 1 << random.random_range(0..8);
        fs::write(path, bytes).unwrap();
        let found = faults(&changed.0);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(found.len() == 1 && found[0].contains(name) && found[0].contains("worker"), "{found:?}");
    }
    // A removed segment, and two that were swapped.
    again();
    let all = segments(&changed.0);
    fs::remove_file(&all[1]).unwrap();
    let found = faults(&changed.0);
    assert!(found.len() == 1 && found[0].contains("no deletion was recorded"), "{found:?}");
    again();
    fs::copy(&all[0], changed.0.join("other")).unwrap();
    fs::rename(&all[1], &all[0]).unwrap();
    fs::rename(changed.0.join("other"), &all[1]).unwrap();
    assert_eq!(faults(&changed.0).len(), 2);
    // The journal's end, and a byte in it.
    for is_cut in [true, false] {
        again();
        let journal = fs::read_dir(&changed.0).unwrap().map(|entry| entry.unwrap().path());
        let journal =
            journal.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("journal")).max().unwrap();
        let mut bytes = fs::read(&journal).unwrap();
        if is_cut {
            bytes.truncate(16);
        } else {
            bytes[40] ^= 4;
        }
        fs::write(&journal, bytes).unwrap();
        let found = faults(&changed.0);
        assert!(found.iter().any(|fault| fault.contains("exported head") && fault.contains("cut off")), "{found:?}");
    }
    // The journal of a run that has not ended, though nothing of it was synced.
    again();
    for entry in fs::read_dir(&changed.0).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with("journal-") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let found = verify(&changed.0, None, |_, _| {}).unwrap().faults;
    assert!(found.iter().any(|fault| fault.starts_with("journal: boot 0 has not ended")), "{found:?}");
    // The catalogue's end; its own head shows that, too.
    again();
    let path = changed.0.join("catalogue");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let found = faults(&changed.0);
    assert!(found.iter().any(|fault| fault.contains("exported head")), "{found:?}");
    assert!(found.iter().any(|fault| fault.contains("head of the store")), "{found:?}");
    // A start has it from its copy, and nothing that the exported head has is missing.
    let moment = Moment { monotonic_us: 0, unix_us: 1_790_001_000_000_000 };
    drop(StoreWriter::open(&changed.0, StoreOptions::default(), moment).unwrap());
    let found = faults(&changed.0);
    assert!(found.len() == 1 && found[0].starts_with("damaged-1: "), "{found:?}");
    // If that was cut, too, a new store begins.
    again();
    for name in ["catalogue", "catalogue.copy"] {
        fs::write(changed.0.join(name), &bytes[..bytes.len() - 10]).unwrap();
    }
    drop(StoreWriter::open(&changed.0, StoreOptions::default(), moment).unwrap());
    let found = faults(&changed.0);
    assert!(found.iter().any(|fault| fault == "exported head: it is of another store"), "{found:?}");
    assert!(found.iter().any(|fault| fault.starts_with("damaged-store-1: ")), "{found:?}");
    // A forged head.
    again();
    let text = fs::read_to_string(&head).unwrap().replace("entries ", "entries 1");
    fs::write(changed.0.join("head"), text).unwrap();
    assert!(faults(&changed.0)[0].contains("signature"));
    // A line of it that is not signed.
    again();
    let own = fs::read_to_string(changed.0.join("head")).unwrap();
    let (before, after) = own.split_once("\nkey ").unwrap();
    let other = if after.starts_with('0') { '1' } else { '0' };
    fs::write(changed.0.join("head"), format!("{before}\nkey {other}{}", &after[1..])).unwrap();
    assert!(faults(&changed.0)[0].contains("signature"));
    fs::remove_file(&head).unwrap();
}

#[test]
fn verify_finds_removed_lookups() {
    let folder = Folder::new("lookups");
    let now = |second: u64| Moment { monotonic_us: second * 1_000_000, unix_us: (1_800_000_000 + second) * 1_000_000 };
    let record = |count: u64| {
        for number in 0..count {
            lookups::record_export(&folder.0, (number, number), Some("case"), number).unwrap();
        }
    };
    let faults = |head: Option<&Path>| verify(&folder.0, head, |_, _| {}).unwrap().faults;
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), now(0)).unwrap();
    record(3);
    for second in [2, 4] {
        writer.advance(now(second), second * 1_000_000).unwrap();
    }
    let path = folder.0.join("lookups");
    let three = fs::read_to_string(&path).unwrap();
    record(2);
    let head = folder.0.with_extension("head");
    fs::write(&head, Store::open(&folder.0).unwrap().head(None).unwrap()).unwrap();
    assert_eq!(faults(Some(&head)), Vec::<String>::new());
    // Those after the last head: only one that was exported later knows them.
    fs::write(&path, &three).unwrap();
    assert_eq!(faults(None), Vec::<String>::new());
    assert_eq!(faults(Some(&head)), ["exported head: 3 lines of lookups instead of 5; the end was cut off"]);
    drop(writer);
    // Without a running instance, and with one that starts, and after further lookups.
    let cut = "head of the store: 2 lines of lookups instead of 3; the end was cut off";
    let two: String = three.split_inclusive('\n').take(2).collect();
    fs::write(&path, &two).unwrap();
    assert_eq!(faults(None), [cut]);
    let mut writer = StoreWriter::open(&folder.0, StoreOptions::default(), now(9)).unwrap();
    assert_eq!(faults(None), [cut]);
    record(4);
    for second in [12, 14] {
        writer.advance(now(second), second * 1_000_000).unwrap();
    }
    let other = ["head of the store: line 3 of lookups is another one; the record was rewritten"];
    assert_eq!(faults(None), other);
    drop(writer);
    drop(StoreWriter::open(&folder.0, StoreOptions::default(), now(20)).unwrap());
    assert_eq!(faults(None), other, "and still after the next start");
    fs::remove_file(&path).unwrap();
    assert_eq!(faults(None), ["head of the store: 0 lines of lookups instead of 3; the end was cut off"]);
    fs::remove_file(&head).unwrap();
}

#[test]
fn another_store_with_the_same_name_is_not_the_exported_one() {
    let (one, other) = (Folder::new("one"), Folder::new("other"));
    let head = one.0.with_extension("head");
    fs::write(&head, stored(&one.0, None)).unwrap();
    // The whole store written again, with the stolen key.
    let key = one.0.with_extension("key");
    fs::copy(one.0.join("signing.key"), &key).unwrap();
    let moment = Moment { monotonic_us: 1, unix_us: 1_790_000_000_000_000 };
    let options = StoreOptions { signing_key: Some(key.clone()), ..StoreOptions::default() };
    StoreWriter::open(&other.0, options, moment).unwrap().finish(moment, 1, false).unwrap();
    let found = verify(&other.0, Some(&head), |_, _| {}).unwrap().faults;
    assert_eq!(found, ["exported head: it is of another store"]);
    // What is no head is no fault of the store.
    let nowhere = one.0.join("nowhere");
    let error = verify(&one.0, Some(&nowhere), |_, _| {}).unwrap_err().to_string();
    assert!(error.starts_with(&format!("head {}: No such file", nowhere.display())), "{error}");
    let text = fs::read_to_string(&head).unwrap();
    let torn = one.0.join("torn");
    fs::write(&torn, &text[..text.len() / 2]).unwrap();
    let error = verify(&one.0, Some(&torn), |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("not what natrix log head prints"), "{error}");
    // Of this store, but changed.
    fs::write(&torn, text.replace("\nframes ", "\nframes 1")).unwrap();
    let found = verify(&one.0, Some(&torn), |_, _| {}).unwrap().faults;
    assert_eq!(found, ["exported head: its signature is wrong; it was changed, or another key signed it"]);
    fs::remove_file(&torn).unwrap();
    fs::remove_file(&head).unwrap();
    fs::remove_file(&key).unwrap();
}

#[test]
fn deletion_by_retention_is_not_tampering() {
    let folder = Folder::new("deleted");
    let mut world = World::new(21, &folder.0, Faults { retention: true, ..Faults::default() });
    for _ in 0..1_500 {
        world.step();
    }
    world.writer = None;
    let found = verify(&folder.0, None, |_, _| {}).unwrap();
    assert!(found.deleted > 0 && found.faults.is_empty(), "{found:?}");
}

/// While it is verified, an instance seals, merges and deletes segments and writes its journal.
#[test]
fn a_store_that_goes_on_meanwhile_is_whole() {
    let folder = Folder::new("live");
    let mut world = World::new(21, &folder.0, Faults { retention: true, ..Faults::default() });
    let mut deleted = 0;
    for _ in 0..30 {
        (0..60).for_each(|_| world.step());
        let mut calls = 0;
        let found = verify_text(&folder.0, None, &mut |_, _| {
            calls += 1;
            (0..if calls < 6 { 20 } else { 0 }).for_each(|_| world.step());
            true
        });
        let found = found.unwrap().expect("nobody stopped it");
        assert_eq!(found.faults, Vec::<String>::new());
        deleted = found.deleted;
    }
    assert!(deleted > 0);
    world.writer = None;
    // And it can be stopped.
    let mut asked = 0;
    let stopped = verify_text(&folder.0, None, &mut |_, _| {
        asked += 1;
        false
    });
    assert_eq!((stopped.unwrap(), asked), (None, 1));
}
