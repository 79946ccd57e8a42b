//! Whole instances whose log is lines of JSON alone, asked from outside: after a full disk, a stop,
//! rotation that deletes files, and reloads, no answer names a wrong holder for sure, and none says
//! that nobody had what was held.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::path::Path;
use std::thread;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use crate::disk::Disk;
use crate::instance::Instance;
use crate::instance::PATIENCE;
use crate::instance::ask;
use crate::instance::error;
use control::EventLog;
use control::List;
use control::Reply;
use control::Request;
use lookup::Asked;
use lookup::log::Query;
use lookup::log::files_of;
use lookup::log::look_up;
use nat::Verdict;

/// Endpoints that are asked about for each moment.
const ASKED: usize = 40;

/// The holders of all external endpoints at a moment.
struct Seen {
    at_us: u64,
    holders: Vec<(SocketAddrV4, SocketAddrV4)>,
}

/// How the lines answered.
#[derive(Debug, Default)]
struct Answers {
    /// The holder, and surely no other one.
    right: usize,
    /// The holder, perhaps others.
    incomplete: usize,
    /// Not the holder, but not said to be complete.
    missing: usize,
    /// An answer that is not complete, and what it says about that.
    example: Option<String>,
}

fn look(one: &mut Instance) -> Seen {
    thread::sleep(Duration::from_millis(3));
    let at_us = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros() as u64;
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

/// Asks about what was seen at a moment. A wrong holder fails the test.
fn compare(file: &Path, Seen { at_us, holders }: &Seen) -> Answers {
    let files = files_of(file).expect("a log");
    let mut answers = Answers::default();
    for (external, internal) in holders.iter().step_by(holders.len().div_ceil(ASKED).max(1)) {
        let asked =
            Asked { address: *external.ip(), host: None, port: Some(external.port()), protocol: None, vrf: None };
        let query = Query::moment(asked, *at_us);
        let found = look_up(&files, &query, |_, _| true).expect("an answer").found;
        let mut has_holder = false;
        for holder in &found.holders {
            let is_right =
                (holder.subscriber.ipv4(), holder.internal_port) == (Some(*internal.ip()), Some(internal.port()));
            assert!(is_right || !holder.is_certain, "{external} was of {internal}: {found:?}");
            has_holder |= is_right;
        }
        if !found.is_complete {
            answers.example = Some(format!("{external} of {internal} at {at_us}: {found:?}"));
        }
        match (has_holder, found.is_complete) {
            (true, true) => answers.right += 1,
            (true, false) => answers.incomplete += 1,
            (false, false) => answers.missing += 1,
            (false, true) => panic!("{external} was of {internal}, and nobody is said to have had it: {found:?}"),
        }
    }
    answers
}

fn start(name: &str, file: &Path, settings: &str) -> Instance {
    let log = format!("[log]\nevents = \"{}\"\nqueue = 256\n{settings}\n", file.display());
    Instance::start_with(name, &log, |text| {
        text.replace("mappings = 1000", "mappings = 40000").replace("held_ports = 1000", "held_ports = 40000")
    })
}

fn log_of(one: &mut Instance) -> EventLog {
    one.status().event_log.expect("there is a log")
}

/// Opens sessions that get a mapping, or are refused one.
fn open(one: &mut Instance, ports: core::ops::Range<u16>) {
    let count = |one: &Instance, verdicts: &[Verdict]| {
        let all = one.running.instance().snapshots().expect("numbers");
        let of = |verdict| all.iter().map(|snapshot| snapshot.counters.of(verdict)).sum::<u64>();
        verdicts.iter().copied().map(of).sum::<u64>()
    };
    let fates = |one: &Instance| count(one, &[Verdict::Outbound, Verdict::LogFull]) + one.unsent();
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
        // On a busy machine the writer may be late, and a full ring is not what is tested here. It
        // is the writer that says how many records wait, so that number may be old, too: each
        // packet had a record.
        loop {
            let log = log_of(one);
            let is_written = log.records_written + log.records_lost >= count(one, &[Verdict::Outbound]);
            if log.failing || is_written && log.records_waiting < 50 {
                break;
            }
            assert!(begin.elapsed() < PATIENCE, "records are written");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Replaces the pool's addresses, and waits until all mappings have ended.
fn renumber(one: &mut Instance, addresses: &str) {
    let text = one.text.replace("203.0.113.0/28", addresses);
    let asked = one.write("next.toml", &format!("{text}\n[reload]\nremoved = \"end\"\n"));
    assert_eq!(error(&one.reload(asked)), "");
    let begin = Instant::now();
    while one.status().mappings > 0 {
        assert!(begin.elapsed() < PATIENCE, "all mappings end");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the lines cover the time of what was seen.
fn expect_complete(file: &Path, seen: &Seen) {
    let begin = Instant::now();
    loop {
        let answers = compare(file, seen);
        if answers.incomplete + answers.missing == 0 {
            assert!(answers.right > 0, "somebody held something");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{answers:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Ends the instance and not its log.
fn halt(one: Instance) {
    let Instance { running, client, .. } = one;
    drop(client);
    running.stop();
}

#[test]
// covers: 6302-X
fn lines_name_every_holder_over_reloads_and_a_restart() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-plain-lines", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("events.json");
    let mut all = Vec::new();
    for _ in 0..2 {
        let mut one = start("lines-plain", &file, "");
        for (round, addresses) in ["203.0.113.16/29", "203.0.113.0/28"].into_iter().enumerate() {
            let from = 1_000 + round as u16 * 1_000;
            open(&mut one, from..from + 400);
            all.push(look(&mut one));
            // The first addresses come back: others hold what somebody held before.
            renumber(&mut one, addresses);
            open(&mut one, 20_000..20_200);
            all.push(look(&mut one));
        }
        // Also while it runs.
        all.iter().for_each(|seen| expect_complete(&file, seen));
        halt(one);
    }
    for seen in &all {
        let answers = compare(&file, seen);
        assert_eq!((answers.incomplete, answers.missing), (0, 0), "{answers:?}");
    }
    std::fs::remove_dir_all(&folder).expect("our own");
}

#[test]
fn lines_after_a_full_disk_and_a_stop_show_no_false_holder() {
    for policy in ["refuse", "drop"] {
        let disk = Disk::new();
        let file = disk.path.join("events.json");
        let settings = format!("back_pressure = \"{policy}\"");
        let name = format!("lines-{policy}");
        let mut one = start(&name, &file, &settings);
        open(&mut one, 1_000..2_000);
        let before = look(&mut one);
        expect_complete(&file, &before);
        // What ends, and who has the endpoints next, is not in any line.
        disk.fill();
        renumber(&mut one, "203.0.113.16/29");
        open(&mut one, 2_000..10_000);
        assert!(log_of(&mut one).failing, "the disk is full");
        let during = look(&mut one);
        halt(one);
        disk.make_room();
        let mut one = start(&name, &file, &settings);
        open(&mut one, 1_000..1_500);
        let after = look(&mut one);
        expect_complete(&file, &after);
        halt(one);
        let answers = compare(&file, &during);
        assert_eq!(answers.right, 0, "{policy}: records are missing: {answers:?}");
        let answers = compare(&file, &before);
        assert_eq!((answers.incomplete, answers.missing), (0, 0), "{policy}: {answers:?}");
    }
}

#[test]
fn lines_without_the_oldest_files_say_that_they_are_missing() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-few-lines", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("events.json");
    let mut one = start("lines-few", &file, "rotate_size = \"1 MiB\"\nkeep_files = 1");
    // These stay open, and then their lines are deleted.
    open(&mut one, 1_000..1_100);
    let begin = Instant::now();
    let mut from = 2_000;
    while log_of(&mut one).files_rotated < 3 {
        assert!(begin.elapsed() < PATIENCE, "files are rotated");
        open(&mut one, from..from + 2_000);
        from += 2_000;
    }
    let seen = look(&mut one);
    let of_first = |(_, internal): &&(SocketAddrV4, SocketAddrV4)| (1_000..1_100).contains(&internal.port());
    let first = Seen { at_us: seen.at_us, holders: seen.holders.iter().filter(of_first).copied().collect() };
    thread::sleep(Duration::from_millis(1_500));
    let answers = compare(&file, &first);
    assert!(answers.missing > 20 && answers.right == 0, "{answers:?}");
    let answers = compare(&file, &seen);
    assert!(answers.incomplete > 0 && answers.right == 0, "{answers:?}");
    one.stop();
    std::fs::remove_dir_all(&folder).expect("our own");
}

#[test]
fn lines_that_another_program_deletes_are_missed_for_a_while() {
    let folder = std::env::temp_dir().join(format!("natrix-{}-deleted-lines", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("events.json");
    let mut one = start("lines-deleted", &file, "");
    open(&mut one, 1_000..1_200);
    let before = look(&mut one);
    expect_complete(&file, &before);
    std::fs::remove_file(&file).expect("it is there");
    let begin = Instant::now();
    while log_of(&mut one).files_taken == 0 {
        assert!(begin.elapsed() < PATIENCE, "the deletion is seen");
        thread::sleep(Duration::from_millis(20));
    }
    open(&mut one, 2_000..2_200);
    // All that is held now, also what began before.
    loop {
        let after = look(&mut one);
        assert!(after.holders.len() >= before.holders.len() + 200, "mappings stay");
        thread::sleep(Duration::from_millis(1_500));
        let answers = compare(&file, &after);
        if answers.incomplete + answers.missing == 0 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{answers:?}");
    }
    assert_eq!(log_of(&mut one).files_taken, 1);
    let answers = compare(&file, &before);
    assert_eq!(answers.right, 0, "others may have held them, too: {answers:?}");
    let example = answers.example.expect("an answer");
    assert!(example.contains("another program deleted the log: earlier lines may be missing"), "{example}");
    one.stop();
    std::fs::remove_dir_all(&folder).expect("our own");
}
