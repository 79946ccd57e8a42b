//! Whole instances with the log's store, asked from outside: every holder at several moments is
//! noted from the control socket. Later the store must name it, or say that it may miss records. No
//! answer may name another one.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::BTreeSet;
use std::path::Path;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use crate::disk::Disk;
use crate::instance::Instance;
use crate::instance::PATIENCE;
use crate::instance::ask;
use crate::instance::error;
use control::List;
use control::LogStore;
use control::Reply;
use control::Request;
use export::store::Question;
use export::store::Store;
use export::store::StoreOptions;
use export::store::StoreWriter;
use export::store::verify;
use nat::Verdict;

/// Endpoints that are asked about for each moment, of all that were seen.
const ASKED: usize = 300;

/// Who had which external endpoint at a moment, from outside.
struct Seen {
    at_us: u64,
    holders: Vec<(SocketAddrV4, SocketAddrV4)>,
}

/// How the store answered.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    /// The holder, and surely no other one.
    right: usize,
    /// The holder, perhaps others.
    incomplete: usize,
    /// Not the holder, but not said to be complete.
    missing: usize,
    /// What limits the incomplete ones, and at what moment.
    limits: BTreeSet<String>,
}

fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64
}

/// All holders now; nothing must change meanwhile.
fn look(one: &mut Instance) -> Seen {
    thread::sleep(Duration::from_millis(3));
    let at_us = unix_us();
    thread::sleep(Duration::from_millis(3));
    let (mut holders, mut cursor) = (Vec::new(), None);
    loop {
        let list = List { limit: Some(control::PAGE_OBJECTS_MAX), cursor, ..List::default() };
        cursor = None;
        for reply in ask(&mut one.client, &Request::Mappings(list)) {
            match reply {
                Reply::Mapping(mapping) => holders.push((mapping.external, mapping.internal)),
                Reply::End(end) => cursor = end.cursor,
                _ => {}
            }
        }
        if cursor.is_none() {
            return Seen { at_us, holders };
        }
    }
}

/// Asks about everything that was seen. A wrong holder fails the test.
fn compare(store: &Path, seen: &[Seen]) -> Answers {
    let store = Store::open(store).expect("a store");
    let mut answers = Answers::default();
    for Seen { at_us, holders } in seen {
        for (external, internal) in holders.iter().step_by(holders.len().div_ceil(ASKED).max(1)) {
            let port = Some(external.port());
            let (from_us, to_us) = (*at_us, *at_us);
            let question = Question { address: *external.ip(), host: None, port, protocol: None, from_us, to_us };
            let found = store.look_up(&question).expect("an answer");
            let mut has_holder = false;
            for holder in &found.holders {
                assert_eq!(holder.pool_name.as_deref(), Some("a"), "{found:?}");
                let is_right =
                    (holder.subscriber.ipv4(), holder.internal_port) == (Some(*internal.ip()), Some(internal.port()));
                assert!(is_right || !holder.is_certain, "{external} was of {internal}: {found:?}");
                has_holder |= is_right;
            }
            if !found.is_complete {
                answers.limits.insert(format!("{}: {}", at_us, found.notes.join("; ")));
            }
            match (has_holder, found.is_complete) {
                (true, true) => answers.right += 1,
                (true, false) => answers.incomplete += 1,
                (false, false) => answers.missing += 1,
                (false, true) => panic!("{external} was of {internal}, and nobody is said to have had it"),
            }
        }
        // Nobody has this one.
        let question = Question {
            address: Ipv4Addr::new(203, 0, 113, 200),
            host: None,
            port: None,
            protocol: None,
            from_us: *at_us,
            to_us: *at_us,
        };
        assert_eq!(store.look_up(&question).expect("an answer").holders, []);
    }
    let faults = verify(store.folder(), None, |_, _| {}).expect("a store").faults;
    assert_eq!(faults, Vec::<String>::new());
    answers
}

fn start(name: &str, store: &Path, policy: &str) -> Instance {
    // With "drop", a small queue loses records whenever the writer has to wait for a CPU; this one
    // holds all that is opened while the disk has room.
    let queue = if policy == "drop" { 2_048 } else { 256 };
    let log = format!(
        "[log]\nback_pressure = \"{policy}\"\nqueue = {queue}\n[log.store]\npath = \"{}\"\nsegment_size = 1024\n",
        store.display()
    );
    Instance::start_with(name, &log, |text| {
        text.replace("mappings = 1000", "mappings = 40000").replace("held_ports = 1000", "held_ports = 40000")
    })
}

fn store_of(one: &mut Instance) -> LogStore {
    one.status().event_log.and_then(|log| log.store).expect("there is a store")
}

/// Opens sessions that get a mapping, or are refused one.
fn open(one: &mut Instance, ports: core::ops::Range<u16>) {
    let fates = |one: &Instance| {
        let all = one.running.instance().snapshots().expect("numbers");
        let of = |verdict| all.iter().map(|snapshot| snapshot.counters.of(verdict)).sum::<u64>();
        of(Verdict::Outbound) + of(Verdict::LogFull) + one.unsent()
    };
    for from in ports.clone().step_by(50) {
        let to = ports.end.min(from + 50);
        let wanted = fates(one) + u64::from(to - from);
        for port in from..to {
            one.push(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10 + (port % 8) as u8), port));
        }
        let begin = Instant::now();
        while fates(one) < wanted {
            assert!(begin.elapsed() < PATIENCE, "every packet has its verdict");
            thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Waits until the journal has everything.
fn settle(one: &mut Instance) -> LogStore {
    let begin = Instant::now();
    loop {
        let store = store_of(one);
        if store.records_waiting == 0 && !store.failing {
            return store;
        }
        assert!(begin.elapsed() < PATIENCE, "{store:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the instance and not its folder.
fn halt(one: Instance) -> PathBuf {
    let Instance { directory, running, client, .. } = one;
    drop(client);
    running.stop();
    directory
}

/// Replaces the pool's addresses: all mappings end.
fn reload_with(one: &mut Instance, addresses: &str) {
    let text = one.text.replace("203.0.113.0/28", addresses);
    let asked = one.write("next.toml", &format!("{text}\n[reload]\nremoved = \"end\"\n"));
    assert_eq!(error(&one.reload(asked)), "");
}

#[test]
// covers: 6888-4, 6302-X
fn every_holder_is_named_over_reloads_segments_and_restarts() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-plain-log", std::process::id()));
    let mut seen = Vec::new();
    for run in 0..3 {
        let mut one = start("store-plain", &folder, "refuse");
        for round in 0..3 {
            open(&mut one, 1_000 + round * 2_000..3_000 + round * 2_000);
            seen.push(look(&mut one));
            // The first addresses come back: others hold what somebody held before.
            reload_with(&mut one, ["203.0.113.16/29", "203.0.113.32/29", "203.0.113.0/28"][usize::from(round)]);
            let begin = Instant::now();
            while one.status().mappings > 0 {
                assert!(begin.elapsed() < PATIENCE, "all mappings end");
                thread::sleep(Duration::from_millis(20));
            }
            open(&mut one, 20_000..20_500);
            seen.push(look(&mut one));
        }
        let store = settle(&mut one);
        // While the writer waits for its turn, reports of refused packets may be lost. Such a gap
        // takes nothing from any answer, see below.
        assert_eq!(store.errors, 0, "{store:?}");
        if run == 0 {
            // Also while it runs, from the journal; idle frames are a second apart.
            thread::sleep(Duration::from_millis(1_300));
            let answers = compare(&folder, &seen);
            assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
            assert!(answers.right > 1_000, "{answers:?}");
        }
        let refused =
            StoreWriter::open(&folder, StoreOptions::default(), export::store::Moment { monotonic_us: 1, unix_us: 1 });
        assert!(refused.expect_err("another process writes it").to_string().contains("another process"), "one writer");
        halt(one);
    }
    let answers = compare(&folder, &seen);
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
    assert!(answers.right > 3_000, "{answers:?}");
    let stat = Store::open(&folder).expect("a store").stat().expect("numbers");
    assert!(stat.segments > 3, "{stat:?}");
    std::fs::remove_dir_all(&folder).expect("our own");
}

#[test]
fn refuse_loses_no_holder_to_a_full_disk_and_a_stop() {
    let disk = Disk::new();
    let folder = disk.path.join("log");
    let mut one = start("store-refuse", &folder, "refuse");
    let mut seen = Vec::new();
    open(&mut one, 1_000..2_000);
    seen.push(look(&mut one));
    disk.fill();
    open(&mut one, 2_000..10_000);
    let store = store_of(&mut one);
    assert!(store.failing && store.errors > 0, "{store:?}");
    let made = one.status().mappings_created;
    assert!(made < 9_000, "new mappings are refused: {made}");
    seen.push(look(&mut one));
    disk.make_room();
    settle(&mut one);
    open(&mut one, 20_000..21_000);
    seen.push(look(&mut one));
    settle(&mut one);
    disk.fill();
    open(&mut one, 30_000..40_000);
    seen.push(look(&mut one));
    // What could not be written waits in memory for the next start.
    halt(one);
    disk.make_room();
    let mut one = start("store-refuse", &folder, "refuse");
    open(&mut one, 1_000..1_500);
    seen.push(look(&mut one));
    settle(&mut one);
    halt(one);
    let answers = compare(&folder, &seen);
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
    assert!(answers.right > 1_000, "{answers:?}");
}

#[test]
fn an_instance_starts_with_a_full_disk() {
    for policy in ["refuse", "drop"] {
        let disk = Disk::new();
        let folder = disk.path.join("log");
        let name = format!("store-start-full-{policy}");
        let mut one = start(&name, &folder, policy);
        open(&mut one, 1_000..2_000);
        let mut seen = vec![look(&mut one)];
        settle(&mut one);
        disk.fill();
        open(&mut one, 2_000..6_000);
        if policy == "refuse" {
            seen.push(look(&mut one));
        }
        // The records of the last ones are in memory only.
        halt(one);
        for run in 0..2 {
            let mut one = start(&name, &folder, policy);
            open(&mut one, 10_000..30_000);
            let made = one.status().mappings_created;
            match policy {
                "drop" => assert_eq!(made, 20_000, "nothing is refused in run {run}"),
                _ => assert!(made < 20_000, "{made} mappings were made in run {run}"),
            }
            assert!(store_of(&mut one).failing, "the disk is still full");
            halt(one);
        }
        disk.make_room();
        let mut one = start(&name, &folder, policy);
        open(&mut one, 1_000..2_000);
        seen.push(look(&mut one));
        settle(&mut one);
        halt(one);
        let answers = compare(&folder, &seen);
        assert_eq!((answers.incomplete, answers.missing), (0, 0), "{policy}: {answers:?}");
        assert!(answers.right >= 500, "{policy}: {answers:?}");
    }
}

#[test]
fn refuse_loses_no_holder_to_a_folder_that_is_moved() {
    let disk = Disk::new();
    let (folder, away) = (disk.path.join("log"), disk.path.join("away"));
    let mut one = start("store-moved", &folder, "refuse");
    let mut seen = Vec::new();
    open(&mut one, 1_000..2_000);
    seen.push(look(&mut one));
    settle(&mut one);
    std::fs::rename(&folder, &away).expect("our own");
    let begin = Instant::now();
    while !store_of(&mut one).failing {
        assert!(begin.elapsed() < PATIENCE, "{:?}", store_of(&mut one));
        thread::sleep(Duration::from_millis(20));
    }
    let error = store_of(&mut one).last_error.expect("an error");
    assert!(error.contains("moved or deleted") && error.contains("put the folder back"), "{error}");
    open(&mut one, 2_000..10_000);
    let made = one.status().mappings_created;
    assert!(made < 9_000, "new mappings are refused: {made}");
    seen.push(look(&mut one));
    std::fs::rename(&away, &folder).expect("our own");
    settle(&mut one);
    open(&mut one, 20_000..21_000);
    seen.push(look(&mut one));
    settle(&mut one);
    halt(one);
    let answers = compare(&folder, &seen);
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
    assert!(answers.right > 500, "{answers:?}");
}

#[test]
fn a_read_only_disk_refuses_a_writer_and_still_answers() {
    let mut disk = Disk::new();
    let folder = disk.path.join("log");
    let mut one = start("store-read-only", &folder, "refuse");
    open(&mut one, 1_000..2_000);
    let mut seen = vec![look(&mut one)];
    settle(&mut one);
    halt(one);
    disk.remount("ro");
    let now = export::store::Moment { monotonic_us: 1, unix_us: unix_us() };
    let refused = StoreWriter::open(&folder, StoreOptions::default(), now).expect_err("nothing can be written");
    assert!(refused.to_string().contains("Read-only file system"), "{refused}");
    let answers = compare(&folder, &seen);
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
    disk.remount("rw");
    let mut one = start("store-read-only", &folder, "refuse");
    open(&mut one, 1_000..1_500);
    seen.push(look(&mut one));
    settle(&mut one);
    halt(one);
    let answers = compare(&folder, &seen);
    assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
}

#[test]
fn drop_says_what_is_missing_until_the_workers_report() {
    let disk = Disk::new();
    let folder = disk.path.join("log");
    let mut one = start("store-drop", &folder, "drop");
    let mut seen = Vec::new();
    open(&mut one, 1_000..2_000);
    seen.push(look(&mut one));
    disk.fill();
    open(&mut one, 2_000..10_000);
    assert_eq!(one.status().mappings_created, 9_000, "nothing is refused");
    seen.push(look(&mut one));
    disk.make_room();
    settle(&mut one);
    let begin = Instant::now();
    while store_of(&mut one).records_lost == 0 {
        assert!(begin.elapsed() < PATIENCE, "lost records are counted");
        thread::sleep(Duration::from_millis(20));
    }
    // The workers report all live state: from there on every holder is known again.
    let late = loop {
        thread::sleep(Duration::from_millis(1_300));
        let late = look(&mut one);
        thread::sleep(Duration::from_millis(1_300));
        let answers = compare(&folder, core::slice::from_ref(&late));
        if answers.incomplete + answers.missing == 0 {
            break late;
        }
        assert!(begin.elapsed() < PATIENCE, "{answers:?}");
    };
    assert!(late.holders.len() >= 9_000);
    seen.push(late);
    disk.fill();
    open(&mut one, 30_000..40_000);
    seen.push(look(&mut one));
    halt(one);
    disk.make_room();
    let mut one = start("store-drop", &folder, "drop");
    open(&mut one, 1_000..1_500);
    seen.push(look(&mut one));
    halt(one);
    // Whatever was lost: a wrong holder fails in here.
    let answers = compare(&folder, &seen);
    assert!(answers.right >= 400, "{answers:?}");
    assert!(answers.incomplete + answers.missing > 0, "records were lost: {answers:?}");
}
