//! `natrix find --at` on the lines of an event log.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

use export::store::Moment;
use export::store::Names;
use export::store::StoreOptions;
use export::store::StoreWriter;

fn natrix(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_natrix")).args(words).env_remove("NATRIX_SOCKET").output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The objects of an answer.
fn objects(output: &Output) -> Vec<serde_json::Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A log of two files, one of them rotated, in a folder that is removed at the end.
struct Log(PathBuf);

const OLDER: &str = r#"{"time":"2026-11-21T19:00:00.000000Z","event":"started","version":"0.1.0","formulas":"none"}
{"time":"2026-11-21T19:00:01.500000Z","worker":0,"sequence":1,"event":"mapping_created","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":5000,"external_address":"203.0.113.1","external_port":15007,"cause":"outbound"}
{"time":"2026-11-21T19:00:02.000000Z","worker":1,"sequence":1,"event":"block_leased","realm":"default","subscriber":"100.64.0.11","external_address":"203.0.113.2","first_port":4096,"last_port":4159}
{"time":"2026-11-21T19:06:00.000000Z","event":"covered","sequences":[1,1]}
"#;
const NEWER: &str = r#"{"time":"2026-11-21T19:10:00.000000Z","worker":0,"sequence":2,"event":"mapping_ended","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":5000,"external_address":"203.0.113.1","external_port":15007,"held_s":599,"cause":"idle"}
{"time":"2026-11-21T19:11:00.000000Z","event":"covered","sequences":[2,1]}
{"time":"2026-11-21T19:12:00.000000Z","worker":0,"sequence":3,"event":"gap","lost":5}
{"time":"2026-11-21T19:13:00.000000Z","event":"covered","sequences":[7,1]}
"#;

impl Log {
    fn new(name: &str) -> Log {
        let folder = std::env::temp_dir().join(format!("natrix-find-at-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("events-20261121T190500.000000Z.json"), OLDER).unwrap();
        fs::write(folder.join("events.json"), NEWER).unwrap();
        Log(folder)
    }

    fn find(&self, endpoint: &str, at: &str, more: &[&str]) -> Output {
        let file = self.0.join("events.json");
        let mut words = vec!["find", endpoint, "--at", at, "--log", file.to_str().unwrap()];
        words.extend(more);
        natrix(&words)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn holders_are_found_in_rotated_files_too() {
    let log = Log::new("who");
    let output = log.find("203.0.113.1:15007", "2026-11-21T19:05:00Z", &[]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        text(&output.stdout),
        "HOLDER       PROTO  INTERNAL PORT  EXTERNAL           TOWARDS  BY       POOL  SINCE                        \
         UNTIL                        CERTAIN\n\
         100.64.0.10  udp             5000  203.0.113.1:15007  -        mapping  -     2026-11-21T19:00:01.500000Z  \
         2026-11-21T19:10:00.000000Z  yes\n\
         203.0.113.1:15007 at 2026-11-21T19:05:00Z: 1 holding; the records of that time are complete\n"
    );
    assert_eq!(text(&output.stderr), "");
    let output = log.find("203.0.113.2:4100", "2026-11-21T20:12:30+01:00", &["--protocol", "tcp"]);
    assert_eq!(
        text(&output.stdout),
        "HOLDER       PROTO  INTERNAL PORT  EXTERNAL               TOWARDS  BY     POOL  SINCE                        \
         UNTIL  CERTAIN\n\
         100.64.0.11  -                  -  203.0.113.2:4096-4159  -        block  -     2026-11-21T19:00:02.000000Z  \
         open   no\n\
         203.0.113.2:4100 tcp at 2026-11-21T19:12:30Z: 1 holding; the records of that time are not complete: others \
         may have held it\n"
    );
}

#[test]
fn only_holders_in_the_given_vrf_are_found() {
    let log = Log::new("vrf");
    let of = |endpoint: &str, vrf: &str| {
        let output = log.find(endpoint, "2026-11-21T19:05:00Z", &["--vrf", vrf]);
        text(&output.stdout).lines().filter(|line| line.contains("  mapping  ")).count()
    };
    assert_eq!((of("100.64.0.10", "default"), of("100.64.0.10", "blue")), (1, 0));
    assert_eq!((of("203.0.113.1:15007", "default"), of("203.0.113.1:15007", "blue")), (1, 0));
    // The name may be wrong: lines do not say which VRFs there were.
    let output = log.find("203.0.113.1:15007", "2026-11-21T19:05:00Z", &["--vrf", "blue"]);
    let nobody = "no holder of 203.0.113.1:15007 in VRF blue at 2026-11-21T19:05:00Z found, but the records are not \
                  complete";
    assert!(text(&output.stdout).starts_with(nobody), "{output:?}");
    let note = "note: no line about that address has the VRF blue, but lines have default\n";
    assert_eq!(text(&output.stderr), note);
    let output = log.find("203.0.113.1:15008", "2026-11-21T19:05:00Z", &["--vrf", "blue"]);
    let nobody =
        "nobody held 203.0.113.1:15008 in VRF blue at 2026-11-21T19:05:00Z; the records of that time are complete";
    assert!(text(&output.stdout).starts_with(nobody), "no VRF had it: {output:?}");
}

#[test]
fn flows_that_share_a_port_hold_it_at_the_same_time() {
    let log = Log::new("shared");
    let flow = |sequence, subscriber, remote_port| {
        format!(
            r#"{{"time":"2026-11-21T19:05:01.000000Z","worker":0,"sequence":{sequence},"event":"flow_created","realm":"default","subscriber":"{subscriber}","protocol":"udp","internal_port":5000,"external_address":"203.0.113.50","external_port":1065,"remote_address":"192.0.2.10","remote_port":{remote_port},"cause":"outbound"}}
"#
        )
    };
    let lines = [flow(2, "100.64.0.171", 7017), flow(3, "100.64.0.172", 7018)].concat();
    let covered = r#"{"time":"2026-11-21T19:06:00.000000Z","event":"covered","sequences":[3,1]}"#;
    let (begin, _) = OLDER.split_once(r#"{"time":"2026-11-21T19:06"#).unwrap();
    fs::write(log.0.join("events-20261121T190500.000000Z.json"), format!("{begin}{lines}{covered}\n")).unwrap();
    let output = log.find("203.0.113.50:1065", "2026-11-21T19:05:30.000000Z", &[]);
    assert!(text(&output.stdout).contains("2 holdings"), "{output:?}");
    let notes = text(&output.stderr);
    assert!(notes.contains("several holders shared a port: the remote endpoint of a packet"), "{notes}");
    assert!(!notes.contains("within a millisecond"), "{notes}");
}

/// A port that two flows share, each towards one of two endpoints, and a mapping of another port.
const SHARED: &str = r#"{"time":"2026-11-21T19:00:00.000000Z","event":"started","version":"0.1.0","formulas":"none"}
{"time":"2026-11-21T19:05:01.000000Z","worker":0,"sequence":1,"event":"flow_created","realm":"default","subscriber":"100.64.0.171","protocol":"tcp","internal_port":5000,"external_address":"203.0.113.50","external_port":1065,"remote_address":"192.0.2.10","remote_port":443,"cause":"outbound"}
{"time":"2026-11-21T19:05:02.000000Z","worker":0,"sequence":2,"event":"flow_created","realm":"default","subscriber":"100.64.0.172","protocol":"tcp","internal_port":5000,"external_address":"203.0.113.50","external_port":1065,"remote_address":"192.0.2.11","remote_port":443,"cause":"outbound"}
{"time":"2026-11-21T19:05:03.000000Z","worker":0,"sequence":3,"event":"mapping_created","realm":"default","subscriber":"100.64.0.173","protocol":"tcp","internal_port":5000,"external_address":"203.0.113.50","external_port":1066,"cause":"outbound"}
{"time":"2026-11-21T19:06:00.000000Z","event":"covered","sequences":[3]}
"#;

/// The subscribers in an answer with `--json`, its last object, and its notes.
fn towards(output: &Output) -> (Vec<String>, serde_json::Value, String) {
    let mut found = objects(output);
    let last = found.pop().unwrap();
    let notes = last["notes"].to_string();
    (found.iter().map(|one| one["subscriber"].as_str().unwrap().to_owned()).collect(), last, notes)
}

#[test]
fn the_remote_endpoint_decides_between_flows_in_lines() {
    let log = Log::new("remote");
    fs::write(log.0.join("events.json"), SHARED).unwrap();
    fs::remove_file(log.0.join("events-20261121T190500.000000Z.json")).unwrap();
    let at = "2026-11-21T19:05:30.000000Z";
    let find = |endpoint: &str, more: &[&str]| towards(&log.find(endpoint, at, &[more, &["--json"]].concat()));
    let (one, two, three) = ("100.64.0.171", "100.64.0.172", "100.64.0.173");
    let (found, last, _) = find("203.0.113.50:1065", &[]);
    assert_eq!(
        (found, &last["remote_address"], &last["other_remotes"]),
        (vec![one.into(), two.into()], &serde_json::Value::Null, &0.into())
    );
    for (remote, holder) in [("192.0.2.10:443", one), ("192.0.2.11:443", two), ("192.0.2.11", two)] {
        let (found, last, notes) = find("203.0.113.50:1065", &["--remote", remote]);
        assert_eq!((found, &last["complete"]), (vec![holder.to_owned()], &true.into()), "{last}");
        assert_eq!(
            (&last["other_remotes"], &last["unrecorded_remotes"], &last["shown"]),
            (&1.into(), &0.into(), &1.into())
        );
        assert_eq!(last["asked"], format!("203.0.113.50:1065 towards {remote}"));
        assert!(notes.contains("are not listed: 1") && !notes.contains("shared a port"), "{notes}");
    }
    let (_, last, _) = find("203.0.113.50:1065", &["--remote", "192.0.2.11"]);
    assert_eq!((&last["remote_address"], &last["remote_port"]), (&"192.0.2.11".into(), &serde_json::Value::Null));
    let (_, last, _) = find("203.0.113.50:1065", &["--remote", "::ffff:192.0.2.11"]);
    assert_eq!(last["remote_address"], "192.0.2.11");
    for remote in ["192.0.2.10:80", "192.0.2.12"] {
        let (found, last, _) = find("203.0.113.50:1065", &["--remote", remote]);
        assert_eq!((found.len(), &last["other_remotes"], &last["complete"]), (0, &2.into(), &true.into()), "{last}");
        let output = log.find("203.0.113.50:1065", at, &["--remote", remote]);
        let nobody = format!("nobody held 203.0.113.50:1065 towards {remote} at {at}");
        assert!(text(&output.stdout).starts_with(&nobody), "{output:?}");
        assert!(text(&output.stderr).contains("are not listed: 2"), "{output:?}");
    }
    // Nobody knows where a mapping's packets went.
    let (found, last, notes) = find("203.0.113.50:1066", &["--remote", "192.0.2.10:443"]);
    assert_eq!((found, &last["unrecorded_remotes"]), (vec![three.to_owned()], &1.into()), "{last}");
    assert!(notes.contains("without a recorded destination") && notes.contains("192.0.2.10:443"), "{notes}");
    // All that a subscriber had.
    let (found, last, _) = find("100.64.0.171", &["--remote", "192.0.2.11"]);
    assert_eq!((found.len(), &last["other_remotes"]), (0, &1.into()), "{last}");
    let output = natrix(&["find", "203.0.113.50:1065", "--remote", "192.0.2.10"]);
    assert!(!output.status.success() && text(&output.stderr).contains("--at"), "{output:?}");
}

#[test]
fn the_remote_endpoint_decides_between_flows_in_a_store() {
    let folder = std::env::temp_dir().join(format!("natrix-find-at-{}-towards", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    let moment =
        |second: u64| Moment { monotonic_us: second * 1_000_000, unix_us: (1_795_289_400 + second) * 1_000_000 };
    let mut writer = StoreWriter::open(&folder, StoreOptions::default(), moment(0)).unwrap();
    for (sequence, kind, remote) in [
        (1, nat::event::EventKind::FlowCreated, [192, 0, 2, 10]),
        (2, nat::event::EventKind::FlowCreated, [192, 0, 2, 11]),
        (3, nat::event::EventKind::MappingCreated, [0, 0, 0, 0]),
    ] {
        let is_flow = kind == nat::event::EventKind::FlowCreated;
        let event = nat::event::Event {
            sequence,
            subscriber: [100, 64, 0, 170 + sequence as u8].into(),
            external: [203, 0, 113, 50].into(),
            internal_port: 5_000,
            first_port: if is_flow { 1_065 } else { 1_066 },
            last_port: if is_flow { 1_065 } else { 1_066 },
            protocol: Some(nat::Protocol::Tcp),
            remote: remote.into(),
            remote_port: if is_flow { 443 } else { 0 },
            ..nat::event::Event::new(kind, nat::Instant::from_micros(sequence * 1_000_000))
        };
        writer.push(nat::types::WorkerId(0), &event);
    }
    writer.finish(moment(60), 60_000_000, false).unwrap();
    let dir = folder.to_str().unwrap();
    let range = ["--from", "2026-11-21T19:30:00Z", "--to", "2026-11-21T19:30:40Z"];
    for when in [&["--at", "2026-11-21T19:30:20Z"][..], &range] {
        let find = |endpoint: &str, more: &[&str]| {
            towards(&natrix(&[&["find", endpoint, "--dir", dir, "--json"], when, more].concat()))
        };
        let (found, last, notes) = find("203.0.113.50:1065", &["--remote", "192.0.2.11:443"]);
        assert_eq!((found, &last["complete"]), (vec!["100.64.0.172".to_owned()], &true.into()), "{last}");
        assert_eq!(
            (&last["other_remotes"], last["asked"].as_str()),
            (&1.into(), Some("203.0.113.50:1065 towards 192.0.2.11:443"))
        );
        assert!(!notes.contains("shared a port"), "{notes}");
        // The record of lookups has it, and the holders that were listed.
        let lookups = fs::read_to_string(folder.join("lookups")).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(lookups.lines().last().unwrap()).unwrap();
        assert_eq!((&recorded["remote"], &recorded["holders"]), (&"192.0.2.11:443".into(), &1.into()), "{recorded}");
        // Without a port all of the address, and those of unknown destination.
        let (found, last, _) = find("203.0.113.50", &["--remote", "192.0.2.10"]);
        assert_eq!(found, ["100.64.0.171", "100.64.0.173"], "{last}");
        assert_eq!((&last["other_remotes"], &last["unrecorded_remotes"]), (&1.into(), &1.into()));
        // A cursor continues its own question only.
        let (_, _, notes) = find("203.0.113.50", &["--remote", "192.0.2.10", "--limit", "1"]);
        let cursor = notes.split("--cursor ").nth(1).unwrap().split(',').next().unwrap().to_owned();
        let (found, ..) = find("203.0.113.50", &["--remote", "192.0.2.10", "--limit", "1", "--cursor", &cursor]);
        assert_eq!(found, ["100.64.0.173"]);
        let other = natrix(&[&["find", "203.0.113.50", "--dir", dir, "--cursor", &cursor], when].concat());
        assert!(text(&other.stderr).contains("is from another question"), "{other:?}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_that_overlap_prove_nothing() {
    let log = Log::new("overlap");
    let mapping = |time, sequence, event, subscriber| {
        format!(
            r#"{{"time":"2026-11-21T19:{time}.000000Z","worker":0,"sequence":{sequence},"event":"{event}","realm":"default","subscriber":"{subscriber}","protocol":"udp","internal_port":5000,"external_address":"203.0.113.42","external_port":1064,"cause":"outbound"}}
"#
        )
    };
    let other = |time, line: &str| format!("{{\"time\":\"2026-11-21T19:{time}.000000Z\",{line}}}\n");
    // Reloads changed the file from a to b and back.
    let a = [
        other("00:00", r#""event":"started","version":"0.1.0","formulas":"none","file":"a""#),
        mapping("00:10", 1, "mapping_created", "100.64.0.49"),
        other("01:00", r#""event":"covered","sequences":[1]"#),
        other("04:00", r#""event":"opened","file":"a","earlier":"b","formulas":"none""#),
        mapping("04:10", 4, "mapping_ended", "100.64.0.52"),
        other("05:00", r#""event":"covered","sequences":[4]"#),
    ];
    let b = [
        other("01:00", r#""event":"opened","file":"b","earlier":"a","formulas":"none""#),
        mapping("01:10", 2, "mapping_ended", "100.64.0.49"),
        mapping("01:20", 3, "mapping_created", "100.64.0.52"),
        other("03:59", r#""event":"covered","sequences":[3]"#),
    ];
    let path = |name: &str| log.0.join(name).to_str().unwrap().to_owned();
    fs::write(path("a"), a.concat()).unwrap();
    fs::write(path("b"), b.concat()).unwrap();
    let moments = [("00:30", "100.64.0.49"), ("02:00", "100.64.0.52"), ("04:05", "100.64.0.52")];
    for (at, right) in moments.map(|(at, right)| (format!("2026-11-21T19:{at}Z"), right)) {
        for (first, second) in [("a", "b"), ("b", "a")] {
            let files = ["--log", &path(first), "--log", &path(second)];
            let output = natrix(&[&["find", "203.0.113.42:1064", "--at", &at, "--json"], files.as_slice()].concat());
            let objects = objects(&output);
            let (end, holders) = objects.split_last().unwrap();
            let is_certain = |holder: &&serde_json::Value| holder["certain"] == true;
            let mut certain = holders.iter().filter(is_certain).map(|holder| &holder["subscriber"]);
            // In the other order, the second file begins with the start of a run.
            let is_sound = certain.all(|holder| first == "b" && holder == right);
            assert!(is_sound, "{at}, {first} first: {objects:?}");
            assert_eq!(end["complete"], false, "{at}, {first} first");
        }
    }
}

#[test]
fn ports_of_a_formula_are_found_with_the_configuration() {
    let log = Log::new("formula");
    let config = log.0.join("natrix.toml");
    fs::write(&config, formula(1_024)).unwrap();
    let at = "2026-11-21T19:05:00Z";
    // The line of the start does not say which formulas were in use.
    let older = OLDER.replace(r#","formulas":"none""#, "");
    fs::write(log.0.join("events-20261121T190500.000000Z.json"), older).unwrap();
    let alone = log.find("203.0.113.9:5000", at, &[]);
    assert!(text(&alone.stdout).starts_with("no holder of 203.0.113.9:5000 at 2026-11-21T19:05:00Z found"));
    assert!(text(&alone.stderr).contains("--config FILE"), "{}", text(&alone.stderr));
    let both = log.find("203.0.113.9:5000", at, &["--config", config.to_str().unwrap()]);
    // 64512 ports for 14 subscribers and two dynamic slices are 4032 each.
    assert_eq!(
        text(&both.stdout),
        "HOLDER    PROTO  INTERNAL PORT  EXTERNAL               TOWARDS  BY       POOL  SINCE  UNTIL  CERTAIN\n\
         10.0.0.1  -                  -  203.0.113.9:1024-5055  -        formula  -     -      -      no\n\
         203.0.113.9:5000 at 2026-11-21T19:05:00Z: 1 holding; the records of that time are not complete: others may \
         have held it\n"
    );
    let other = log.find("203.0.113.1:15007", at, &["--config", config.to_str().unwrap(), "--json"]);
    let value = &objects(&other)[0];
    assert_eq!(value["subscriber"].as_str(), Some("100.64.0.10"));
}

#[test]
fn pages_of_holders_in_lines_have_each_once() {
    let log = Log::new("pages");
    let mapping = |n: u32| {
        format!(
            r#"{{"time":"2026-11-21T19:20:{:02}.000000Z","worker":0,"sequence":{},"event":"mapping_created","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":{},"external_address":"203.0.113.1","external_port":{},"cause":"outbound"}}
"#,
            n / 20,
            n + 1,
            5_000 + n,
            20_000 - n
        )
    };
    let lines: String = (0..250).map(mapping).collect();
    let begin = r#"{"time":"2026-11-21T19:20:00.000000Z","event":"started","version":"0.1.0","formulas":"none"}"#;
    let end = r#"{"time":"2026-11-21T19:40:00.000000Z","event":"covered","sequences":[250]}"#;
    fs::write(log.0.join("events.json"), format!("{begin}\n{lines}{end}\n")).unwrap();
    let find = |more: &[&str]| {
        let output = log.find("203.0.113.1", "2026-11-21T19:30:00Z", more);
        let mut found = objects(&output);
        let last = found.pop().unwrap_or_else(|| panic!("{output:?}"));
        (found, last)
    };
    let (all, last) = find(&["--json", "--all"]);
    assert_eq!((all.len(), &last["complete"]), (250, &true.into()), "{last}");
    let (mut shown, mut cursor) = (Vec::new(), None::<String>);
    for page in 0..3 {
        let mut words = vec!["--json"];
        words.extend(cursor.as_deref().map(|cursor| ["--cursor", cursor]).into_iter().flatten());
        let (found, last) = find(&words);
        // The records are complete, whatever is shown of them.
        assert_eq!((found.len(), &last["complete"]), ([100, 100, 50][page], &true.into()), "{last}");
        assert_eq!((&last["shown"], &last["more"]), (&found.len().into(), &(page < 2).into()), "{last}");
        shown.extend(found);
        let note = last["notes"].to_string();
        cursor = note.split_once("--cursor ").and_then(|(_, rest)| Some(rest.split_once(',')?.0.to_owned()));
    }
    assert_eq!((shown, cursor), (all, None));
}

#[test]
fn json_has_an_object_for_each_holder() {
    let log = Log::new("json");
    let output = log.find("100.64.0.10", "2026-11-21T19:05:00Z", &["--json"]);
    let value = &objects(&output)[0];
    assert_eq!(objects(&output)[1]["complete"], true);
    assert_eq!((value["external_address"].as_str(), value["first_port"].as_u64()), (Some("203.0.113.1"), Some(15_007)));
    assert_eq!(value["until"].as_str(), Some("2026-11-21T19:10:00.000000Z"));
}

#[test]
fn an_answer_without_a_holder_names_its_limits() {
    let log = Log::new("nobody");
    let output = log.find("203.0.113.1:15007", "2026-11-21T19:20:00Z", &[]);
    assert_eq!(output.status.code(), Some(0));
    let at = "203.0.113.1:15007 at 2026-11-21T19:20:00Z";
    assert_eq!(text(&output.stdout), format!("no holder of {at} found, but the records are not complete\n"));
    let notes = text(&output.stderr);
    assert!(notes.contains("the records end at 2026-11-21T19:13:00.000000Z, before that time"), "{notes}");
    let output = log.find("203.0.113.1:15007", "2026-11-21T19:12:30Z", &["--json"]);
    assert_eq!(objects(&output)[0]["complete"], false);
    let notes = objects(&output)[0]["notes"].to_string();
    assert!(notes.contains("records were lost"), "{notes}");
    let output = log.find("203.0.113.1:15007", "2026-11-21T18:00:00Z", &[]);
    assert!(text(&output.stderr).contains("the records begin at 2026-11-21T19:00:00.000000Z"), "{output:?}");
}

#[test]
fn a_wrong_time_and_a_missing_log_are_errors() {
    let log = Log::new("wrong");
    let output = log.find("203.0.113.1:15007", "yesterday", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "error: --at: not a time (\"yesterday\"); use 2026-11-21T19:30:00Z, an offset such as +01:00, 2026-11-21 19:30:00 for this machine's zone, or \"2 min ago\"\n"
    );
    let output = natrix(&["find", "203.0.113.1:1", "--at", "2026-11-21T19:30:00Z", "--log", "/nonexistent/e.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("error: log /nonexistent/e.json: "), "{output:?}");
    assert_eq!(natrix(&["find", "203.0.113.1:1", "--log", "x"]).status.code(), Some(2), "a log without a time");
    // A compressed file has no line, and none of them is lost.
    let path = std::env::temp_dir().join(format!("natrix-find-compressed-{}.json.gz", std::process::id()));
    fs::write(&path, [0x1f, 0x8b, 8, 0, 0, 0]).unwrap();
    let output = natrix(&["find", "203.0.113.1:1", "--at", "2026-11-21T19:30:00Z", "--log", path.to_str().unwrap()]);
    fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("it is compressed; decompress it, and ask again"), "{output:?}");
    let output = log.find("203.0.113.1:15007", "2026-11-21T19:30:00Z", &["--case", " "]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("it is empty"), "{output:?}");
}

/// A configuration whose formula begins with this port.
fn formula(first_port: u16) -> String {
    format!(
        r#"
[[interface]]
name = "lan"
realm = "inside"
driver = "net_null0"
addresses = ["10.0.0.1/24"]

[[interface]]
name = "wan"
realm = "outside"
driver = "net_null1"
addresses = ["198.51.100.2/24"]

[[pool]]
name = "slices"
addresses = ["203.0.113.9"]
subscribers = ["10.0.0.0/28"]
allocation = "deterministic"
ports = "{first_port}-65535"
"#
    )
}

/// The checksum of its formulas in the form of the log.
fn checksum(text: &str) -> String {
    let config = config::parse(text, "natrix.toml").unwrap();
    format!("{:08x}", nat::deterministic::checksum(&config.nat))
}

#[test]
fn a_formula_answers_only_for_the_time_of_its_use() {
    let log = Log::new("adopted");
    let (old, new) = (formula(1_024), formula(5_000));
    for (name, text) in [("old.toml", &old), ("new.toml", &new)] {
        fs::write(log.0.join(name), text).unwrap();
    }
    let lines = format!(
        r#"{{"time":"2026-11-21T19:20:00.000000Z","event":"started","version":"0.1.0","formulas":"{}"}}
{{"time":"2026-11-21T19:30:00.000000Z","worker":0,"sequence":1,"event":"configuration_adopted","generation":1,"formulas":"{}","cause":"configuration"}}
{{"time":"2026-11-21T19:40:00.000000Z","event":"covered","sequences":[1]}}
"#,
        checksum(&old),
        checksum(&new)
    );
    fs::write(log.0.join("events.json"), lines).unwrap();
    let find = |at: &str, name: &str| {
        let file = log.0.join(name);
        let output = log.find("203.0.113.9:5000", at, &["--config", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0));
        (text(&output.stdout).to_owned(), text(&output.stderr).to_owned())
    };
    let (early, late) = ("2026-11-21T19:25:00Z", "2026-11-21T19:35:00Z");
    // Each answers by its own formula, without a note.
    let (said, notes) = find(early, "old.toml");
    assert!(said.contains("203.0.113.9:1024-5055") && said.contains("formula"), "{said}");
    assert!(!notes.contains("configuration"), "{notes}");
    let (said, notes) = find(late, "new.toml");
    assert!(said.contains("203.0.113.9:5000-") && !notes.contains("configuration"), "{said}{notes}");
    // Neither answers for the time of the other.
    let (said, notes) = find(early, "new.toml");
    assert!(said.starts_with("no holder of 203.0.113.9:5000"), "{said}");
    assert!(notes.contains("new.toml is not the configuration of that time"), "{notes}");
    assert!(notes.contains("in use since 2026-11-21T19:20:00.000000Z"), "{notes}");
    assert!(notes.contains("new.toml since 2026-11-21T19:30:00.000000Z"), "{notes}");
    let (said, notes) = find(late, "old.toml");
    assert!(!said.contains("formula"), "{said}");
    assert!(notes.contains("old.toml is not the configuration of that time"), "{notes}");
    // Before its beginning the log cannot say.
    let (said, notes) = find("2026-11-21T18:00:00Z", "new.toml");
    assert!(said.contains("formula") && said.contains("  no\n"), "{said}");
    assert!(notes.contains("does not say which configuration was in use"), "{notes}");
    // Nor without a log.
    let file = log.0.join("new.toml");
    let output = natrix(&["find", "203.0.113.9:5000", "--at", early, "--config", file.to_str().unwrap()]);
    assert!(text(&output.stderr).contains("check that this configuration was in use"), "{output:?}");
}

#[test]
fn a_configuration_names_its_log() {
    let log = Log::new("own");
    let formulas = formula(1_024);
    let config = log.0.join("natrix.toml");
    let name = |events: &str| fs::write(&config, format!("{formulas}\n[log]\nevents = \"{events}\"\n")).unwrap();
    let at = "2026-11-21T19:05:00Z";
    let find = |endpoint: &str| natrix(&["find", endpoint, "--at", at, "--config", config.to_str().unwrap(), "--json"]);
    let object = |output: &Output| objects(output).remove(0);
    let limits = |output: &Output| objects(output).pop().unwrap()["notes"].to_string();
    // Its log and the rotated files have the holders and the time of the formulas.
    let started = format!(r#""event":"started","version":"0.1.0","formulas":"{}""#, checksum(&formulas));
    let older = OLDER.replace(r#""event":"started","version":"0.1.0","formulas":"none""#, &started);
    fs::write(log.0.join("events-20261121T190500.000000Z.json"), older).unwrap();
    name(log.0.join("events.json").to_str().unwrap());
    let output = find("203.0.113.1:15007");
    assert_eq!((&object(&output)["subscriber"], limits(&output)), (&"100.64.0.10".into(), "[]".to_owned()));
    assert_eq!(objects(&output).pop().unwrap()["complete"], true);
    assert_eq!(object(&output)["by_formula_alone"], false);
    let slice = object(&find("203.0.113.9:5000"));
    assert_eq!((&slice["subscriber"], &slice["by_formula_alone"]), (&"10.0.0.1".into(), &false.into()));
    // Another formula was in use then: no holder is named.
    fs::write(&config, fs::read_to_string(&config).unwrap().replace("1024-", "5000-")).unwrap();
    let output = find("203.0.113.9:5000");
    assert_eq!(object(&output)["complete"], false);
    assert!(limits(&output).contains("is not the configuration of that time"), "{output:?}");
    // Without a readable log the answer is by the formula alone, and a note says why.
    for (events, why) in [
        ("/nonexistent/events.json", "log /nonexistent/events.json of that configuration: No such file"),
        ("-", "[log] events of that configuration is not a file, so no log was read"),
        ("", "that configuration has no [log] events, so no log was read"),
    ] {
        name(events);
        let output = find("203.0.113.9:5000");
        let slice = object(&output);
        assert_eq!((&slice["subscriber"], &slice["by_formula_alone"]), (&"10.0.0.1".into(), &true.into()), "{events}");
        assert!(limits(&output).contains(why), "{output:?}");
        let words = natrix(&["find", "203.0.113.9:5000", "--at", at, "--config", config.to_str().unwrap()]);
        assert!(text(&words.stdout).contains("  formula  "), "{words:?}");
    }
}

/// The limits of the answer.
fn text_of(output: &Output) -> &str {
    text(&output.stderr)
}

#[test]
fn a_log_opened_later_names_the_earlier_one() {
    let log = Log::new("opened");
    let line = |time: &str, rest: &str| format!(r#"{{"time":"2026-11-21T{time}.000000Z",{rest}}}"#);
    let lives = r#""worker":0,"sequence":9,"event":"mapping_created","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":5000,"external_address":"203.0.113.1","external_port":15007,"held_s":300,"cause":"log_opened""#;
    let lines = [
        line(
            "19:20:00",
            r#""event":"opened","version":"0.1.0","formulas":"none","file":"/log/new.json","earlier":"/log/old.json","workers":1"#,
        ),
        line("19:20:01", lives),
    ];
    let file = log.0.join("new.json");
    fs::write(&file, format!("{}\n", lines.join("\n"))).unwrap();
    let find = |at: &str| natrix(&["find", "203.0.113.1:15007", "--at", at, "--log", file.to_str().unwrap()]);
    let after = find("2026-11-21T19:20:00Z");
    assert!(text(&after.stdout).contains("\n100.64.0.10 "), "{after:?}");
    let earlier = "note: until 2026-11-21T19:20:00.000000Z records went to /log/old.json; also give that file\n";
    assert!(text_of(&after).contains(earlier), "{after:?}");
    let all = [
        line("19:20:02", r#""worker":0,"sequence":10,"event":"snapshot_complete","records":1,"cause":"log_opened""#),
        line("19:20:03", r#""event":"covered","sequences":[10]"#),
    ];
    fs::write(&file, format!("{}\n{}\n", lines.join("\n"), all.join("\n"))).unwrap();
    let after = find("2026-11-21T19:20:02.5Z");
    assert!(text(&after.stdout).contains("the records of that time are complete"), "{after:?}");
    let before = find("2026-11-21T19:10:00Z");
    assert!(text(&before.stdout).starts_with("no holder of 203.0.113.1:15007"), "{before:?}");
    assert!(text_of(&before).contains(earlier), "{before:?}");
}

/// A second in which a port changes hands.
const IN_TURN: &str = r#"{"time":"2026-11-21T19:20:00.000000Z","event":"started","version":"0.1.0","formulas":"none"}
{"time":"2026-11-21T19:20:05.000000Z","worker":0,"sequence":1,"event":"mapping_created","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":5000,"external_address":"203.0.113.1","external_port":15007,"cause":"outbound"}
{"time":"2026-11-21T19:30:17.152000Z","worker":0,"sequence":2,"event":"mapping_ended","realm":"default","subscriber":"100.64.0.10","protocol":"udp","internal_port":5000,"external_address":"203.0.113.1","external_port":15007,"held_s":612,"cause":"idle"}
{"time":"2026-11-21T19:30:17.915000Z","worker":0,"sequence":3,"event":"mapping_created","realm":"default","subscriber":"100.64.0.11","protocol":"udp","internal_port":5001,"external_address":"203.0.113.1","external_port":15007,"cause":"outbound"}
{"time":"2026-11-21T19:40:00.000000Z","event":"covered","sequences":[3]}
"#;

#[test]
fn a_time_without_a_fraction_is_the_whole_second() {
    let log = Log::new("second");
    fs::write(log.0.join("events.json"), IN_TURN).unwrap();
    let find = |at: &str| {
        let output = log.find("203.0.113.1:15007", at, &["--json"]);
        let mut found = objects(&output);
        let last = found.pop().unwrap_or_else(|| panic!("{output:?}"));
        let holders =
            found.iter().map(|one| (one["subscriber"].as_str().unwrap().to_owned(), one["throughout"] == true));
        (holders.collect::<Vec<_>>(), last)
    };
    let (ten, eleven) = ("100.64.0.10".to_owned(), "100.64.0.11".to_owned());
    for at in ["2026-11-21T19:30:17Z", "2026-11-21T20:30:17+01:00", "2026-11-21 19:30:17Z"] {
        let (holders, last) = find(at);
        assert_eq!(holders, [(ten.clone(), false), (eleven.clone(), false)], "{at}");
        assert_eq!((&last["complete"], &last["asked"]), (&true.into(), &"203.0.113.1:15007".into()), "{last}");
        assert_eq!(last["from"], "2026-11-21T19:30:17.000000Z");
        assert_eq!(last["to"], "2026-11-21T19:30:17.999999Z");
        assert!(last["notes"][0].as_str().unwrap().starts_with("a port had several holders in that second"), "{last}");
    }
    // With a fraction it is what has these digits: programs cut those they do not write.
    for (at, holders) in [
        ("2026-11-21T19:30:17.000Z", vec![(ten.clone(), true)]),
        ("2026-11-21T19:30:17.000000Z", vec![(ten.clone(), true)]),
        ("2026-11-21T19:30:17.5Z", vec![]),
        ("2026-11-21T19:30:17.95Z", vec![(eleven.clone(), true)]),
        ("2026-11-21T19:30:16Z", vec![(ten.clone(), true)]),
        ("2026-11-21T19:30:18Z", vec![(eleven.clone(), true)]),
    ] {
        let (found, last) = find(at);
        assert_eq!((found, last["notes"].as_array().unwrap().len()), (holders, 0), "{at}: {last}");
    }
    for (at, held) in [("19:30:17.9Z", &eleven), ("19:30:17.91Z", &eleven), ("19:30:17.1Z", &ten)] {
        let (found, last) = find(&format!("2026-11-21T{at}"));
        assert_eq!(found, [(held.clone(), false)], "{at}");
        assert!(last["notes"][0].as_str().unwrap().starts_with("1 of 1 held it for a part of that time"), "{last}");
    }
    assert_eq!(find("2026-11-21T19:30:17.914999Z").0, [], "a microsecond is a moment");
    let (_, last) = find("2026-11-21T19:20:05Z");
    assert!(last["notes"].as_array().unwrap().is_empty(), "it began with the second: {last}");
    let began = IN_TURN.replace("19:20:05.000000Z", "19:20:05.000500Z").replace("19:20:05.0", "19:20:05.7");
    fs::write(log.0.join("events.json"), began).unwrap();
    let (holders, last) = find("2026-11-21T19:20:05Z");
    assert_eq!(holders.len(), 1, "not nobody: it began in that second");
    assert!(last["notes"][0].as_str().unwrap().starts_with("1 of 1 held it for a part"), "{last}");
}

#[test]
fn of_two_holders_in_one_millisecond_neither_is_proved() {
    let log = Log::new("millisecond");
    let lines = IN_TURN.replace("17.152000Z", "17.152300Z").replace("17.915000Z", "17.152600Z");
    fs::write(log.0.join("events.json"), lines).unwrap();
    let find = |at: &str| {
        let mut found = objects(&log.find("203.0.113.1:15007", at, &["--json"]));
        let last = found.pop().unwrap();
        assert_eq!(last["complete"], true, "{at}: {last}");
        let holder = |one: &serde_json::Value| {
            let last_digit = one["subscriber"].as_str().unwrap().ends_with('1');
            (last_digit, one["certain"] == true, one["throughout"] == true)
        };
        (found.iter().map(holder).collect::<Vec<_>>(), last["notes"].to_string())
    };
    for at in ["17.152001", "17.152299", "17.152700", "17.152999"] {
        let (holders, notes) = find(&format!("2026-11-21T19:30:{at}Z"));
        assert_eq!(holders, [(false, false, false), (true, false, false)], "{at}");
        assert!(notes.contains("within a millisecond of that moment"), "{at}: {notes}");
    }
    // Each had it in a part of that millisecond, and the second of the second one.
    for at in ["17.152Z", "17Z"] {
        let (holders, notes) = find(&format!("2026-11-21T19:30:{at}"));
        assert_eq!(holders, [(false, true, false), (true, true, false)], "{at}");
        assert!(notes.contains("a port had several holders in that"), "{at}: {notes}");
    }
    for (at, holder) in [("17.151999Z", false), ("17.153000Z", true), ("17.153Z", true), ("16Z", false)] {
        let (holders, notes) = find(&format!("2026-11-21T19:30:{at}"));
        assert_eq!((holders, &notes[..]), (vec![(holder, true, true)], "[]"), "{at}");
    }
}

#[test]
fn a_date_alone_is_refused() {
    let log = Log::new("date");
    for (at, problem) in [
        ("2026-11-21", "a date without a time of day (\"2026-11-21\")"),
        ("2026-11-21 19:30", "a time without seconds (\"2026-11-21 19:30\")"),
    ] {
        let output = log.find("203.0.113.1:15007", at, &[]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""));
        assert!(text(&output.stderr).starts_with(&format!("error: --at: {problem}; use ")), "{output:?}");
    }
}

#[test]
fn an_ipv4_mapped_address_finds_the_ipv4_holder() {
    let log = Log::new("mapped");
    let at = "2026-11-21T19:05:00Z";
    let plain = log.find("203.0.113.1:15007", at, &["--json"]);
    assert_eq!(objects(&plain)[0]["subscriber"], "100.64.0.10");
    assert_eq!(text(&log.find("[::ffff:203.0.113.1]:15007", at, &["--json"]).stdout), text(&plain.stdout));
    let all = log.find("203.0.113.1", at, &[]);
    assert_eq!(text(&log.find("::ffff:cb00:7101", at, &[]).stdout), text(&all.stdout));
}

#[test]
fn a_cursor_of_another_question_is_refused() {
    let log = Log::new("cursor");
    fs::write(log.0.join("events.json"), IN_TURN).unwrap();
    let at = "2026-11-21T19:30:17Z";
    let first = log.find("203.0.113.1", at, &["--json", "--limit", "1"]);
    let last = objects(&first).pop().unwrap();
    assert_eq!((&last["shown"], &last["more"], &last["complete"]), (&1.into(), &true.into(), &true.into()), "{last}");
    let note = last["notes"].to_string();
    let cursor = note.split_once("--cursor ").unwrap().1.split_once(',').unwrap().0.to_owned();
    let next = log.find("203.0.113.1", at, &["--json", "--cursor", &cursor]);
    assert_eq!(objects(&next)[0]["subscriber"], "100.64.0.11", "{next:?}");
    for (endpoint, at, problem) in [
        ("203.0.113.9", at, "is from another question"),
        ("203.0.113.1:15007", at, "is from another question"),
        ("203.0.113.1", "2026-11-21T19:30:18Z", "is from a question about another time"),
    ] {
        let output = log.find(endpoint, at, &["--cursor", &cursor]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(1), ""), "{output:?}");
        assert!(text(&output.stderr).starts_with(&format!("error: --cursor: {problem}")), "{output:?}");
    }
}

#[test]
fn a_slice_counts_in_the_record_of_lookups() {
    let folder = std::env::temp_dir().join(format!("natrix-find-at-{}-slice", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let (store, config) = (folder.join("store"), folder.join("natrix.toml"));
    fs::write(&config, formula(1_024)).unwrap();
    let formulas = nat::deterministic::checksum(&config::parse(&formula(1_024), "natrix.toml").unwrap().nat);
    // The formulas change after 20 s.
    let moment =
        |second: u64| Moment { monotonic_us: second * 1_000_000, unix_us: (1_795_289_400 + second) * 1_000_000 };
    let names = |formulas, configuration| Names { formulas, configuration, ..Names::default() };
    let mut writer = StoreWriter::open(&store, StoreOptions::default(), moment(0)).unwrap();
    writer.set_names(names(formulas, 0));
    writer.advance(moment(20), 20_000_000).unwrap();
    writer.set_names(names(7, 1));
    writer.advance(moment(40), 40_000_000).unwrap();
    writer.finish(moment(60), 60_000_000, false).unwrap();
    let find = |at: &str| {
        let at = format!("2026-11-21T19:30:{at}Z");
        let (store, config) = (store.to_str().unwrap(), config.to_str().unwrap());
        let words = ["find", "203.0.113.9:5000", "--at", &at, "--dir", store, "-c", config, "--json", "--case", "AZ 1"];
        let output = natrix(&words);
        let mut found = objects(&output);
        let last = found.pop().unwrap_or_else(|| panic!("{output:?}"));
        let lookups = fs::read_to_string(folder.join("store/lookups")).unwrap();
        let recorded: serde_json::Value = serde_json::from_str(lookups.lines().last().unwrap()).unwrap();
        (found, last, recorded)
    };
    let (found, last, recorded) = find("05");
    assert_eq!((&found[0]["subscriber"], &found[0]["certain"]), (&"10.0.0.1".into(), &true.into()), "{last}");
    assert_eq!((&last["complete"], &last["notes"]), (&true.into(), &serde_json::json!([])), "{last}");
    assert_eq!((&recorded["holders"], &recorded["complete"]), (&1.into(), &true.into()), "{recorded}");
    assert_eq!(
        (&recorded["formulas"], &recorded["vrf"]),
        (&format!("{formulas:08x}").into(), &serde_json::Value::Null)
    );
    assert_eq!((&recorded["from"], &recorded["case"]), (&"2026-11-21T19:30:05.000000Z".into(), &"AZ 1".into()));
    // Both are of that time: neither is refuted.
    let (found, last, recorded) = find("22");
    assert_eq!((found.len(), &recorded["holders"], &last["complete"]), (0, &0.into(), &false.into()), "{last}");
    let notes = last["notes"].to_string();
    assert!(notes.contains("the formulas of deterministic pools changed then"), "{notes}");
    assert!(!notes.contains("is not the one of that time"), "{notes}");
    let (_, last, _) = find("50");
    assert!(last["notes"].to_string().contains("the configuration is not the one of that time"), "{last}");
    fs::remove_dir_all(&folder).unwrap();
}
