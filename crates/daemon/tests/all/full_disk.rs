//! A whole instance whose event log is on a disk that becomes full, under both policies of back
//! pressure. With `refuse` no mapping is created without its record; with `drop` the log counts the
//! missing ones. Files are rotated meanwhile, and sequence numbers have no gap.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use crate::disk::Disk;
use crate::instance::Instance;
use crate::instance::PATIENCE;
use control::EventLog;
use nat::Verdict;
use serde_json::Value;

/// More than the writer's buffer (1 MiB) and the rings of two workers hold.
const FLOWS: u16 = 8_000;
/// Packets to send before their verdicts are checked.
const AT_A_TIME: u16 = 50;

/// All lines of the log, the oldest file first.
fn lines(disk: &Disk) -> Vec<Value> {
    let names = fs::read_dir(&disk.path).expect("our disk").map(|entry| entry.expect("a file").path());
    let mut names: Vec<PathBuf> = names.filter(|name| name.extension().is_some_and(|it| it == "json")).collect();
    // Rotated files have a time in their name and sort before the current one, except for the
    // '-'.
    names.sort_by_key(|name| (name.ends_with("events.json"), name.clone()));
    assert!(names.len() >= 2, "files were rotated: {names:?}");
    let text: String = names.iter().map(|name| fs::read_to_string(name).expect("our file")).collect();
    text.lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect()
}

fn start(disk: &Disk, policy: &str) -> Instance {
    let log = format!(
        "[log]\nevents = \"{}/events.json\"\nback_pressure = \"{policy}\"\nqueue = 256\nrotate_size = \"1 MiB\"\nsync = \"always\"\n",
        disk.path.display()
    );
    Instance::start_with(&format!("full-disk-{policy}"), &log, |text| {
        text.replace("mappings = 1000", "mappings = 20000").replace("held_ports = 1000", "held_ports = 20000")
    })
}

fn log_of(one: &mut Instance) -> EventLog {
    one.status().event_log.expect("there is a log")
}

fn count(one: &Instance, verdict: Verdict) -> u64 {
    let all = one.running.instance().snapshots().expect("numbers");
    all.iter().map(|snapshot| snapshot.counters.of(verdict)).sum()
}

/// Sends packets that need mappings and waits until each has its verdict. Returns the number of new
/// mappings.
fn open(one: &mut Instance, ports: core::ops::Range<u16>) -> u64 {
    let before = one.status().mappings_created;
    let fates = |one: &Instance| count(one, Verdict::Outbound) + count(one, Verdict::LogFull) + one.unsent();
    let mut from = ports.start;
    while from < ports.end {
        let to = ports.end.min(from + AT_A_TIME);
        let wanted = fates(one) + u64::from(to - from);
        for port in from..to {
            one.push(SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 10 + (port % 8) as u8), port));
        }
        let begin = Instant::now();
        while fates(one) < wanted {
            assert!(begin.elapsed() < PATIENCE, "every packet has its verdict");
            thread::sleep(Duration::from_micros(200));
        }
        from = to;
    }
    one.status().mappings_created - before
}

/// Has all of these mappings made: what a few make is written before the next, also on a busy
/// machine, where the writer may not yet have seen that records wait.
fn open_all(one: &mut Instance, ports: core::ops::Range<u16>) {
    for first in ports.clone().step_by(usize::from(AT_A_TIME)) {
        let last = ports.end.min(first + AT_A_TIME);
        let written = log_of(one).records_written;
        assert_eq!(open(one, first..last), u64::from(last - first));
        let begin = Instant::now();
        while log_of(one).records_written < written + u64::from(last - first) {
            assert!(begin.elapsed() < PATIENCE, "a record for each is written: {:?}", log_of(one));
            thread::sleep(Duration::from_millis(5));
        }
        settle(one);
    }
}

/// Waits until everything is written.
fn settle(one: &mut Instance) {
    let begin = Instant::now();
    loop {
        let log = log_of(one);
        if log.records_waiting == 0 && !log.failing {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "it is written when there is room: {log:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Checks that each worker's records are numbered from 1 without gaps, over all files. Returns the
/// number of records that `gap` lines stand for.
fn expect_no_hole(lines: &[Value]) -> u64 {
    let (mut next, mut lost): (BTreeMap<u64, u64>, u64) = (BTreeMap::new(), 0);
    for line in lines {
        let (Some(worker), Some(sequence)) = (line["worker"].as_u64(), line["sequence"].as_u64()) else { continue };
        let expected = next.entry(worker).or_insert(1);
        assert_eq!(sequence, *expected, "worker {worker}");
        let gap = if line["event"] == "gap" { line["lost"].as_u64().expect("how many") } else { 0 };
        *expected += gap.max(1);
        lost += gap;
    }
    assert_eq!(next.len(), 2, "both workers have records");
    lost
}

fn created(lines: &[Value]) -> u64 {
    lines.iter().filter(|line| line["event"] == "mapping_created").count() as u64
}

#[test]
fn with_refuse_no_mapping_is_created_without_its_record() {
    let disk = Disk::new();
    let mut one = start(&disk, "refuse");
    open_all(&mut one, 1_000..2_000);
    disk.fill();
    let made = open(&mut one, 2_000..2_000 + FLOWS);
    let log = log_of(&mut one);
    assert!(log.failing && log.errors > 0, "{log:?}");
    assert!(log.last_error.is_some_and(|error| error.starts_with("write: ")), "the error of the system");
    assert!(made > 0 && made < u64::from(FLOWS), "what waits has a bound: {made} made");
    assert_eq!(count(&one, Verdict::LogFull), u64::from(FLOWS) - made);
    // Existing mappings are unaffected: their packets need no record.
    let refused = count(&one, Verdict::LogFull);
    assert_eq!(open(&mut one, 1_000..1_500), 0);
    assert_eq!(count(&one, Verdict::LogFull), refused);
    disk.make_room();
    settle(&mut one);
    // Everything works as before.
    open_all(&mut one, 20_000..21_000);
    let total = one.status().mappings_created;
    one.stop();
    let lines = lines(&disk);
    assert_eq!((created(&lines), total), (2_000 + made, 2_000 + made), "a record for each");
    // Only records of the refusals themselves are lost: one for each subscriber and interval.
    assert!(expect_no_hole(&lines) <= 2 * 8, "nothing else is lost");
}

#[test]
// covers: 8158-G3
fn with_drop_no_packet_is_refused_and_gaps_are_counted() {
    let disk = Disk::new();
    let mut one = start(&disk, "drop");
    assert_eq!(open(&mut one, 1_000..2_000), 1_000);
    settle(&mut one);
    disk.fill();
    assert_eq!(open(&mut one, 2_000..2_000 + FLOWS), u64::from(FLOWS), "every packet gets its mapping");
    let log = log_of(&mut one);
    assert!(log.failing && log.records_lost > 0, "{log:?}");
    assert_eq!(count(&one, Verdict::LogFull), 0);
    disk.make_room();
    settle(&mut one);
    assert_eq!(open(&mut one, 20_000..21_000), 1_000);
    settle(&mut one);
    let lost = log_of(&mut one).records_lost;
    one.stop();
    let lines = lines(&disk);
    assert_eq!(created(&lines) + lost, 2_000 + u64::from(FLOWS), "missing records are counted");
    assert_eq!(expect_no_hole(&lines), lost);
}
