//! `natrix log` and `natrix find --dir` on a generated store.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Output;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use export::PoolRange;
use export::PoolRanges;
use export::store::Generated;
use export::store::Generator;
use export::store::Moment;
use export::store::Names;
use export::store::StoreOptions;
use export::store::StoreWriter;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use parquet::file::reader::FileReader;
use parquet::file::reader::SerializedFileReader;
use parquet::record::Field;
use serde_json::Value;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("natrix-log-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn natrix(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    command.args(words).env_remove("NATRIX_SOCKET").env_remove("NATRIX_LOG_STORE").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_generated_store_is_counted_verified_exported_and_searched() {
    let folder = Folder::new("all");
    let (store, head, exported) = (folder.path("store"), folder.path("head.txt"), folder.path("all.json"));
    let made = natrix(&["log", "generate", "--dir", &store, "--mappings", "20000", "--seed", "7", "--json"]);
    assert_eq!(objects(&made)[0]["mappings"], 20_000, "{}", text(&made.stderr));
    let again = natrix(&["log", "generate", "--dir", &store, "--mappings", "10"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("use another folder"), "{}", text(&again.stderr));

    let stat = objects(&natrix(&["log", "stat", "--dir", &store, "--json"])).remove(0);
    assert_eq!((&stat["mappings"], &stat["gaps"]), (&20_000.into(), &0.into()));
    assert!(stat["bytes_per_mapping"].as_f64().unwrap() < 10.0, "{stat}");

    fs::write(&head, natrix(&["log", "head", "--dir", &store]).stdout).unwrap();
    let verified = natrix(&["log", "verify", "--dir", &store, "--head", &head]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stdout));

    let whole = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
    let words = [&["log", "export", "--dir", &store, "--output", &exported, "--case", "AZ 3"], &whole[..]].concat();
    assert!(text(&natrix(&words).stdout).starts_with("20000 intervals"));
    let lines = fs::read_to_string(&exported).unwrap();
    exported_alike(&store, &folder, &lines);
    // What no record covers is said.
    let early = ["--from", "2001-01-01T00:00:00Z", "--to", "2002-01-01T00:00:00Z"];
    let output = natrix(&[&["log", "export", "--dir", &store, "--output", "-", "--case", "AZ 2"], &early[..]].concat());
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
    let said = text(&output.stderr);
    assert!(said.contains("note: the records of that time are not complete"), "{said}");
    assert!(said.contains("note: the records begin at"), "{said}");
    for line in lines.lines().step_by(4_000) {
        let held: Value = serde_json::from_str(line).unwrap();
        let endpoint = format!("{}:{}", held["external_address"].as_str().unwrap(), held["first_port"]);
        let words = ["find", &endpoint, "--at", held["since"].as_str().unwrap(), "--dir", &store, "--json"];
        let found = objects(&natrix(&[&words[..], &["--case", "AZ 1"]].concat()));
        let (last, holders) = found.split_last().unwrap();
        assert_eq!(last["complete"], true, "{last}");
        assert!(holders.iter().any(|holder| holder["subscriber"] == held["subscriber"]), "{found:?}");
    }
    let lookups = fs::read_to_string(folder.0.join("store/lookups")).unwrap();
    assert_eq!(lookups.matches("\"case\":\"AZ 1\"").count(), 5);
    let first: Value = serde_json::from_str(lookups.lines().next().unwrap()).unwrap();
    assert_eq!((&first["case"], &first["address"], &first["holders"]), (&"AZ 3".into(), &Value::Null, &Value::Null));
    assert_eq!(first["to"], "2027-01-01T00:00:00.999999Z", "the last time is a whole second");
    let before = natrix(&["find", "203.0.112.1:5000", "--at", "2020-01-01T00:00:00Z", "--dir", &store]);
    assert!(text(&before.stdout).contains("the records are not complete"), "{}", text(&before.stdout));
    assert!(text(&before.stderr).contains("the records begin at"), "{}", text(&before.stderr));

    // A byte of a segment, and a line of the lookups.
    let segment = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.to_str().unwrap().contains("segment-")).max().unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let lookups = fs::read_to_string(folder.0.join("store/lookups")).unwrap().replacen("AZ 1", "AZ 2", 1);
    fs::write(folder.0.join("store/lookups"), lookups).unwrap();
    let verified = natrix(&["log", "verify", "--dir", &store, "--head", &head]);
    assert_eq!(verified.status.code(), Some(1));
    let faults = text(&verified.stdout);
    assert!(faults.contains("worker 0: 1-") && faults.contains("lookups: line 6"), "{faults}");
}

/// The other formats have the same intervals as the lines of JSON.
fn exported_alike(store: &str, folder: &Folder, lines: &str) {
    let whole = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
    let (parquet, ipfix) = (folder.path("all.parquet"), folder.path("all.ipfix"));
    for (format, file) in [("parquet", &parquet), ("ipfix", &ipfix)] {
        let words = [&["log", "export", "--dir", store, "--format", format, "--output", file], &whole[..]].concat();
        assert!(text(&natrix(&words).stdout).starts_with("20000 intervals"));
    }
    let reader = SerializedFileReader::new(fs::File::open(&parquet).unwrap()).unwrap();
    let mut rows = reader.get_row_iter(None).unwrap();
    for line in lines.lines() {
        let (held, row): (Value, _) = (serde_json::from_str(line).unwrap(), rows.next().unwrap().unwrap());
        let fields: BTreeMap<&String, &Field> = row.get_column_iter().collect();
        assert_eq!(fields.len(), held.as_object().unwrap().len());
        for (name, field) in fields {
            let same = match (field, &held[name]) {
                (Field::Null, value) => value.is_null(),
                (Field::Str(text), value) => value == text,
                (Field::Bool(is), value) => value == is,
                (Field::UShort(number), value) => value == number,
                (Field::Long(number), value) => value == number,
                (Field::TimestampMicros(time), Value::String(value)) => {
                    export::parse_utc(value).is_ok_and(|value| value == *time as u64)
                }
                _ => false,
            };
            assert!(same, "{name}: {field:?} and {}", held[name]);
        }
    }
    assert!(rows.next().is_none());
    // Every interval of the store has ended: two records each, in whole messages.
    let (messages, mut at, mut next) = (fs::read(&ipfix).unwrap(), 0, 0);
    while let Some(header) = messages.get(at..at + 16) {
        assert_eq!(header[..2], [0, 10]);
        assert_eq!(header[8..12], u32::to_be_bytes(next));
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let is_data = messages[at + 16..at + 18] != [0, 2];
        next += if is_data { (length as u32 - 20) / 35 } else { 0 };
        at += length;
    }
    assert_eq!((at, next), (messages.len(), 40_000));
    let refused =
        natrix(&[&["log", "export", "--dir", store, "--format", "parquet", "--output", "-"], &whole[..]].concat());
    assert!(text(&refused.stderr).contains("name a file"), "{}", text(&refused.stderr));
}

#[test]
fn a_range_ends_with_the_last_moment_of_its_last_time() {
    let folder = Folder::new("range");
    let store = folder.path("store");
    assert!(natrix(&["log", "generate", "--dir", &store, "--mappings", "2000", "--seed", "3"]).status.success());
    let whole = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
    let all = objects(&natrix(&[&["log", "export", "--dir", &store, "--output", "-"], &whole[..]].concat()));
    let (mut asked, mut complete) = (0, 0);
    for held in all.iter().step_by(100) {
        let since = held["since"].as_str().unwrap();
        let second = format!("{}Z", &since[..19]);
        let endpoint = format!("{}:{}", held["external_address"].as_str().unwrap(), held["first_port"]);
        let range = ["--from", &second, "--to", &second, "--dir", &store, "--json"];
        let found = objects(&natrix(&[&["find", &endpoint][..], &range].concat()));
        let (last, holders) = found.split_last().unwrap();
        // The records end within the last second.
        complete += usize::from(last["complete"] == true);
        assert_eq!(last["from"], format!("{}.000000Z", &since[..19]));
        assert_eq!(last["to"], format!("{}.999999Z", &since[..19]), "the whole second");
        assert!(
            holders.iter().any(|holder| holder["subscriber"] == held["subscriber"]),
            "{endpoint} {second}: {found:?}"
        );
        // An export has it, too.
        let output = natrix(&["log", "export", "--dir", &store, "--output", "-", "--from", &second, "--to", &second]);
        assert!(objects(&output).iter().any(|row| row["since"] == held["since"]), "{second}");
        asked += usize::from(!since.ends_with(".000000Z"));
    }
    assert!(asked > 10 && complete > 10, "{asked} began within a second, {complete} answers are complete");
}

/// A mapping that is recorded while an export runs is not in it.
#[test]
fn an_export_is_no_more_complete_than_when_it_began() {
    let folder = Folder::new("meanwhile");
    let (store, pipe) = (folder.path("store"), folder.path("pipe"));
    let mut generator = Generator::new(Generated::Mappings(20_000), 3);
    let options = StoreOptions { segment_interval_us: u64::MAX, ..StoreOptions::default() };
    let mut writer = StoreWriter::open(Path::new(&store), options, Generator::begin()).unwrap();
    let mut record = |count: usize| {
        let mut events = Vec::new();
        generator.fill(count, &mut events);
        writer.push_all(Generator::WORKER, &events);
        let now = generator.now();
        writer.advance(now, now.monotonic_us).unwrap();
        now.unix_us
    };
    // The records end before the time that is asked for.
    let to = export::utc_text(record(12_000) + 10_000);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_natrix"));
    command.args(["log", "export", "--dir", &store, "--from", "2026-01-01T00:00:00Z", "--to", &to, "--output", &pipe]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut file = fs::File::open(&pipe).unwrap();
    // It waits for its reader, and the log goes on.
    file.read_exact(&mut [0; 1]).unwrap();
    assert!(export::utc_text(record(4_000)) > to);
    file.read_to_end(&mut Vec::new()).unwrap();
    let said = text(&child.wait_with_output().unwrap().stderr);
    assert!(said.contains("note: the records of that time are not complete"), "{said}");
}

#[test]
fn an_export_that_fails_leaves_the_earlier_file() {
    let folder = Folder::new("whole");
    let (store, file) = (folder.path("store"), folder.path("all.json"));
    assert!(natrix(&["log", "generate", "--dir", &store, "--mappings", "2000", "--seed", "3"]).status.success());
    let words = |output: &str| {
        let whole = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
        [&["log", "export", "--dir", &store, "--output", output], &whole[..]].concat().join(" ")
    };
    let shell = |line: String| Command::new("sh").args(["-c", &line]).env_remove("NATRIX_SOCKET").output().unwrap();
    let program = env!("CARGO_BIN_EXE_natrix");
    for output in ["/dev/full", &folder.path("none/all.json"), &folder.path("")] {
        let done = shell(format!("{program} {}", words(output)));
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{output}: {said}");
        let is_about_it = said.lines().last().unwrap_or_default().starts_with("error: --output: cannot be written: ");
        assert!(is_about_it && said.contains(output), "{said}");
    }
    assert!(shell(format!("{program} {}", words(&file))).status.success());
    let before = fs::read(&file).unwrap();
    assert!(before.len() > 200_000 && before.ends_with(b"}\n"), "{}", before.len());
    // The kernel ends it after 64 KiB.
    let ended = shell(format!("ulimit -f 128; exec {program} {}", words(&file)));
    assert_eq!(ended.status.code(), None, "{ended:?}");
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(shell(format!("{program} {}", words(&file))).status.success());
    assert_eq!(fs::read(&file).unwrap(), before);
    assert!(!fs::exists(format!("{file}.part")).unwrap());
}

#[test]
fn a_page_of_holders_is_never_taken_for_all() {
    let folder = Folder::new("page");
    let store = folder.path("store");
    natrix(&["log", "generate", "--dir", &store, "--mappings", "20000", "--seed", "7"]);
    let find = |more: &[&str]| {
        let whole = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z", "--dir", &store, "--json"];
        let output = natrix(&[&["find", "203.0.112.1"], &whole[..], more].concat());
        let mut found = objects(&output);
        let last = found.pop().unwrap_or_else(|| panic!("{}", text(&output.stderr)));
        (found, last)
    };
    let (all, all_last) = find(&["--all"]);
    assert!(all.len() > 100, "{}", all.len());
    let is_cut = |last: &Value| last["notes"].to_string().contains("are shown");
    assert!(!is_cut(&all_last), "{all_last}");
    // By default and with a limit, an answer that is cut says so. Its records are complete.
    for (more, count) in [(&[][..], 100), (&["--limit", "7"], 7)] {
        let (shown, last) = find(more);
        assert_eq!(shown, all[..count], "{more:?}");
        assert!(is_cut(&last) && last["complete"] == all_last["complete"], "{last}");
    }
    // The cursor has the time: an hour that has passed meanwhile changes nothing.
    let cursor_of = |last: &Value| {
        let note = last["notes"].to_string();
        let (_, rest) = note.split_once("--cursor ")?;
        rest.split_once(',').map(|(cursor, _)| cursor.to_owned())
    };
    let (mut shown, last) = find(&["--limit", "101"]);
    let (mut next, mut pages) = (cursor_of(&last), 1);
    while let Some(cursor) = next.filter(|_| pages < 1_000) {
        let words = ["find", "203.0.112.1", "--from", "1 h ago", "--to", "now", "--dir", &store, "--json"];
        let output = natrix(&[&words[..], &["--limit", "101", "--cursor", &cursor]].concat());
        let mut found = objects(&output);
        let last = found.pop().unwrap_or_else(|| panic!("{}", text(&output.stderr)));
        assert!(is_cut(&last) && last["complete"] == all_last["complete"], "{last}");
        shown.extend(found);
        (next, pages) = (cursor_of(&last), pages + 1);
    }
    assert_eq!((shown.len(), pages), (all.len(), all.len().div_ceil(101)));
    assert_eq!(shown, all);
    let lookups = fs::read_to_string(folder.0.join("store/lookups")).unwrap();
    assert_eq!(lookups.matches(&format!("\"holders\":{}", all.len())).count(), 3 + pages, "all were found");
    // The other is that of a range.
    for cursor in ["x", "1.2.1.1.1.1"] {
        let words = ["find", "203.0.112.1", "--at", "2026-05-01T00:00:00Z", "--dir", &store, "--cursor", cursor];
        let wrong = natrix(&words);
        assert!(text(&wrong.stderr).contains("--cursor"), "{}", text(&wrong.stderr));
    }
}

/// A store whose records are all in the journal, with a gap of two records after each mapping.
fn with_gaps(store: &str, gaps: u64, cause: impl Fn(u64) -> Cause) -> (StoreWriter, Moment) {
    let begin = Generator::begin();
    let mut writer = StoreWriter::open(Path::new(store), StoreOptions::default(), begin).unwrap();
    let range = PoolRange::of_address([203, 0, 113, 1].into(), 0);
    writer.set_names(Names { addresses: Arc::new(PoolRanges::of(vec![range])), ..Names::default() });
    let mut now = begin;
    for place in 0..gaps {
        now = Moment { monotonic_us: now.monotonic_us + 1_000_000, unix_us: now.unix_us + 1_000_000 };
        let at = nat::Instant::from_micros(now.monotonic_us);
        let created = Event {
            sequence: 1 + 3 * place,
            external: [203, 0, 113, 1].into(),
            subscriber: [100, 64, 0, 1].into(),
            protocol: Some(nat::Protocol::Udp),
            first_port: 1_024 + place as u16,
            last_port: 1_024 + place as u16,
            ..Event::new(EventKind::MappingCreated, at)
        };
        let gap = Event { sequence: created.sequence + 1, amount: 2, ..Event::new(EventKind::Gap, at) };
        let gap = gap.because(cause(place));
        writer.push_all(Generator::WORKER, &[created, gap]);
        writer.advance(now, now.monotonic_us).and_then(|()| writer.flush()).unwrap();
    }
    (writer, now)
}

#[test]
fn gaps_without_allocations_are_said_to_change_no_answer() {
    let folder = Folder::new("minor");
    for (name, some) in [("all", 0), ("some", 1)] {
        let store = folder.path(name);
        let (writer, now) = with_gaps(&store, 3, |place| if place < some { Cause::None } else { Cause::NoAllocation });
        let check = || {
            let said = text(&natrix(&["log", "verify", "--dir", &store]).stdout).to_owned();
            let meaning = match some {
                0 => {
                    "3 recorded gaps, 6 records lost in them: no allocation is among these, so they change no answer\n"
                }
                _ => "6 records lost in them: answers about the times of 1 of them are not complete; the others",
            };
            assert!(said.contains(meaning), "{said}");
            assert!(said.contains("numbers 8-9, 2 records, no allocation among them\n"), "{said}");
            let mut verified = objects(&natrix(&["log", "verify", "--dir", &store, "--json"]));
            let found = verified.remove(0)["gaps_found"].take();
            let causes: Vec<&Value> = found.as_array().unwrap().iter().map(|gap| &gap["cause"]).collect();
            let minor = Value::from("no_allocation");
            assert_eq!(causes, [&minor, &minor, if some == 0 { &minor } else { &Value::Null }], "{found}");
        };
        check();
        // Segments say so, too.
        writer.finish(now, now.monotonic_us, false).unwrap();
        check();
    }
}

#[test]
fn gaps_of_the_journal_are_counted_and_named() {
    let folder = Folder::new("gaps");
    let store = folder.path("store");
    drop(with_gaps(&store, 12, |_| Cause::None));
    let stat = natrix(&["log", "stat", "--dir", &store]);
    let said = text(&stat.stdout);
    assert!(said.starts_with("12 records: 12 mappings, 0 leases; 0 segments, "), "{said}");
    for line in ["12 of the records are in the journal", "12 gaps, 24 records lost: `natrix log verify` names them"] {
        assert!(said.contains(line), "{said}");
    }
    let stat = objects(&natrix(&["log", "stat", "--dir", &store, "--json"])).remove(0);
    assert_eq!((&stat["records"], &stat["records_in_journal"]), (&12.into(), &12.into()));
    assert!(stat["first"].is_string() && stat["last"].is_string(), "{stat}");

    let verified = natrix(&["log", "verify", "--dir", &store]);
    let said = text(&verified.stdout);
    assert_eq!(verified.status.code(), Some(0), "{said}");
    assert!(said.contains("12 recorded gaps, 24 records lost in them: answers about these times"), "{said}");
    let named: Vec<&str> = said.lines().filter(|line| line.contains(": worker ")).collect();
    assert_eq!(named.len(), 10, "{said}");
    assert!(named[0].ends_with("worker 0, numbers 35-36, 2 records"), "the newest is first: {said}");
    assert!(said.contains("and 2 earlier ones: --json lists all"), "{said}");
    let verified = objects(&natrix(&["log", "verify", "--dir", &store, "--json"])).remove(0);
    let found = verified["gaps_found"].as_array().unwrap();
    assert_eq!((found.len(), &verified["gaps"], &verified["lost"]), (12, &12.into(), &24.into()));
    let first = &found[11];
    let numbers = (&first["worker"], &first["first"], &first["last"], &first["records"]);
    assert_eq!(numbers, (&0.into(), &2.into(), &3.into(), &2.into()));
    assert!(first["from"].as_str() <= first["to"].as_str() && first["to"].is_string(), "{first}");

    // An export asks about no address, so there is nothing to say of one.
    let times = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
    let words = ["log", "export", "--dir", &store, "--output", "-", "--case", "AZ 5"];
    let exported = natrix(&[&words[..], &times[..]].concat());
    assert_eq!(text(&exported.stdout).lines().count(), 12, "{exported:?}");
    assert!(!text(&exported.stderr).contains("0.0.0.0"), "{exported:?}");
}

#[test]
fn a_folder_without_a_store_is_named_with_a_remedy() {
    let folder = Folder::new("none");
    let output = natrix(&["log", "stat", "--dir", &folder.path("missing")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no store of Natrix here"), "{}", text(&output.stderr));
}

#[test]
fn a_store_is_sized_before_there_is_one() {
    let words = ["log", "size", "--subscribers", "100000", "--allocation", "blocks", "--json"];
    let size = objects(&natrix(&words)).remove(0);
    assert_eq!(size["bytes_per_year"].as_f64().unwrap(), size["bytes_per_day"].as_f64().unwrap() * 365.0);
    assert!(size["bytes_per_day"].as_f64().unwrap() > 1e6, "{size}");
    let few = natrix(&["log", "size", "--subscribers", "1000", "--allocation", "blocks"]);
    let said = text(&few.stdout);
    assert!(said.starts_with("1,000 subscribers with ") && said.contains(" kB a day, "), "{said}");
    assert!(said.ends_with(" MB a year\n"), "{said}");
}

#[test]
fn an_incomplete_store_of_an_earlier_run_is_to_be_removed() {
    let folder = Folder::new("incomplete");
    let store = folder.path("store");
    let made = natrix(&["log", "generate", "--dir", &store, "--mappings", "10"]);
    assert!(made.status.success(), "{made:?}");
    fs::rename(&store, format!("{store}.part")).unwrap();
    let again = natrix(&["log", "generate", "--dir", &store, "--mappings", "10"]);
    let wanted = format!("error: {store}.part: is an incomplete store of an earlier run; remove it\n");
    assert_eq!((again.status.code(), text(&again.stderr)), (Some(1), wanted));
}

/// An instance that has the store, and an audit log that it can write to or not.
fn instance(folder: &Folder, store: &str, refuses: bool) -> (String, std::sync::mpsc::Receiver<control::Record>) {
    let golden = include_str!("../../control/tests/replies.jsonl");
    let golden = |start: &str| golden.lines().find(|line| line.starts_with(start)).unwrap();
    let mut status: Value = serde_json::from_str(golden("{\"status\":")).unwrap();
    status["status"]["event_log"]["store"] = serde_json::json!({
        "path": store, "records_written": 0, "records_waiting": 0, "bytes": 0, "segments": 0, "gaps": 0,
        "records_lost": 0, "cuts": 0, "errors": 0, "lag_us": 0, "failing": false, "last_error": null,
    });
    let status: control::Reply = serde_json::from_value(status).unwrap();
    let record: control::Reply = serde_json::from_str(golden("{\"audit\":")).unwrap();
    let socket = folder.path(if refuses { "refuses.sock" } else { "records.sock" });
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let (sender, records) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut client = control::server::Connection::new(&stream, &stream, "0.1").unwrap();
            while let Ok(Some(request)) = client.next_request() {
                let reply = match request {
                    control::Request::Status => status.clone(),
                    control::Request::Record(asked) if !refuses => {
                        sender.send(asked).unwrap();
                        record.clone()
                    }
                    _ => control::Reply::Error(control::Fault::new("audit log", "cannot be written", "make room")),
                };
                let is_refusal = matches!(reply, control::Reply::Error(_));
                client.send(&reply).unwrap();
                if !is_refusal {
                    client.send(&control::Reply::End(control::End { cursor: None })).unwrap();
                }
            }
        }
    });
    (socket, records)
}

#[test]
fn a_lookup_is_answered_once_the_instance_recorded_it() {
    let folder = Folder::new("recorded");
    let (store, out) = (folder.path("store"), folder.path("out.json"));
    natrix(&["log", "generate", "--dir", &store, "--mappings", "2000", "--seed", "7"]);
    let times = ["--from", "2026-01-01T00:00:00Z", "--to", "2027-01-01T00:00:00Z"];
    let find = ["find", "203.0.112.1:5000", "--protocol", "udp"];
    let export = ["log", "export", "--output", &out];
    let (socket, records) = instance(&folder, &store, false);
    for words in [&find[..], &export[..]] {
        let done = natrix(&[words, &times[..], &["--socket", &socket]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    }
    let found: Vec<_> = records.try_iter().collect();
    let when = "from 2026-01-01T00:00:00.000000Z to 2027-01-01T00:00:00.999999Z";
    let record = |action: &str, subject: String, result: &str| control::Record {
        action: action.to_owned(),
        subject,
        result: Some(result.to_owned()),
        id: None,
    };
    // The end of what lasts names the record of its beginning.
    let end = |record: control::Record| control::Record { id: Some("18a3f1c2d4e5f607".to_owned()), ..record };
    let expected = [
        record("find", format!("203.0.112.1:5000 udp {when}"), "none; the records are not complete"),
        // It may be long: a record before it, and one with what came of it.
        record("log export", when.to_owned(), "started"),
        end(record("log export", when.to_owned(), "ended: found 2000")),
    ];
    assert_eq!(found, expected);
    // What the store says of itself too, once with a case.
    for words in [&["log", "head"][..], &["log", "verify", "--case", "AZ-17"]] {
        let done = natrix(&[words, &["--socket", &socket]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    }
    let found: Vec<_> = records.try_iter().collect();
    let of_store = |action: &str, result: &str| record(action, "the store".to_owned(), result);
    let expected = [
        of_store("log head", "answered"),
        of_store("log verify", "started"),
        end(of_store("log verify", "ended: no faults")),
    ];
    assert_eq!(found, expected);
    // Nothing of a folder has a case of what names no subscriber, and lines have no record at all.
    let lines = folder.path("lines.json");
    fs::write(&lines, "").unwrap();
    for words in [
        &["log", "head", "--dir", &store][..],
        &["log", "verify", "--dir", &store],
        &["find", "203.0.112.1:5000", "--at", "2026-06-01T00:00:00Z", "--log", &lines],
    ] {
        let refused = natrix(&[words, &["--case", "AZ-17"]].concat());
        assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(1), String::new()), "{words:?}");
        let said = text(&refused.stderr);
        assert!(said.starts_with("error: --case: would not be recorded") && said.lines().count() == 1, "{said}");
    }
    // The earlier time comes first.
    let reversed = ["--from", "2027-01-01T00:00:00Z", "--to", "2026-01-01T00:00:00Z", "--dir", &store];
    let refused = natrix(&[&export[..], &reversed[..]].concat());
    assert!(text(&refused.stderr).contains("--to: is before --from"), "{}", text(&refused.stderr));

    let (socket, _) = instance(&folder, &store, true);
    fs::remove_file(&out).unwrap();
    for words in [&find[..], &export[..]] {
        let refused = natrix(&[words, &times[..], &["--socket", &socket]].concat());
        assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(1), String::new()));
        assert!(text(&refused.stderr).contains("audit log"), "{}", text(&refused.stderr));
    }
    assert!(!fs::exists(&out).unwrap());
    for words in [&["log", "head"][..], &["log", "verify"]] {
        let refused = natrix(&[words, &["--socket", &socket]].concat());
        assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(1), String::new()));
        assert!(text(&refused.stderr).contains("audit log"), "{}", text(&refused.stderr));
    }

    // A copy in which nothing can be recorded, for root neither.
    let _ = fs::remove_file(folder.0.join("store/lookups"));
    fs::create_dir(folder.0.join("store/lookups")).unwrap();
    let refused = natrix(&[&find[..], &times[..], &["--dir", &store]].concat());
    assert_eq!((refused.status.code(), text(&refused.stdout)), (Some(1), String::new()));
    assert!(text(&refused.stderr).contains("cannot be recorded, so it is not answered"), "{}", text(&refused.stderr));
}

/// The process of the API, asked on its Unix socket.
struct ApiProcess {
    child: Child,
    listen: String,
}

impl ApiProcess {
    fn start(folder: &Folder, control: &str) -> ApiProcess {
        let listen = folder.path("http.sock");
        let settings = serde_json::json!({
            "listen": { "unix": listen }, "hosts": [], "tls": null, "users": [], "control": control,
        });
        let child = Command::new(env!("CARGO_BIN_EXE_natrix")).arg("api").stdin(Stdio::piped()).spawn().unwrap();
        let handed = serde_json::json!({ "level": "error", "format": "text", "settings": settings });
        writeln!(child.stdin.as_ref().unwrap(), "{handed}").unwrap();
        ApiProcess { child, listen }
    }

    /// The length of an answer with its headers, its first line, and its last bytes.
    fn get(&self, path: &str) -> (usize, String, Vec<u8>) {
        let mut stream = (0..600).find_map(|_| {
            let stream = UnixStream::connect(&self.listen).ok();
            if stream.is_none() {
                std::thread::sleep(Duration::from_millis(50));
            }
            stream
        });
        let stream = stream.as_mut().unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let (mut length, mut first, mut last, mut piece) = (0, Vec::new(), Vec::new(), vec![0; 1 << 16]);
        loop {
            let count = stream.read(&mut piece).unwrap();
            if count == 0 {
                let line = first.split(|byte| *byte == b'\r').next().unwrap_or_default();
                return (length, text(line), last);
            }
            length += count;
            first.extend_from_slice(&piece[..count.min(100_usize.saturating_sub(first.len()))]);
            last.extend_from_slice(&piece[..count]);
            last.drain(..last.len().saturating_sub(100));
        }
    }

    /// The most memory that it has had, in KiB.
    fn peak_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for ApiProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `NATRIX_ROWS` makes the store larger.
#[test]
fn an_export_by_the_api_takes_little_memory_however_large_it_is() {
    let rows = std::env::var("NATRIX_ROWS").map_or(300_000, |rows| rows.parse().unwrap());
    let folder = Folder::new("export-memory");
    let store = folder.path("store");
    natrix(&["log", "generate", "--dir", &store, "--mappings", &rows.to_string(), "--seed", "7"]);
    let (socket, records) = instance(&folder, &store, false);
    let api = ApiProcess::start(&folder, &socket);
    assert_eq!(api.get("/api/v1/log/stat").1, "HTTP/1.1 200 OK");
    let before_kib = api.peak_kib();
    for format in ["json", "ipfix", "parquet"] {
        let span = "from=2026-01-01T00:00:00Z&to=2027-01-01T00:00:00Z";
        let (length, first, last) = api.get(&format!("/api/v1/log/export?{span}&format={format}"));
        assert_eq!(first, "HTTP/1.1 200 OK");
        let recorded = records.try_iter().last().unwrap();
        assert_eq!(recorded.result, Some(format!("ended: found {rows}")));
        assert!(format != "parquet" || last.windows(4).any(|bytes| bytes == b"PAR1"), "{last:?}");
        let more_kib = api.peak_kib() - before_kib;
        println!("{format}: {rows} rows, {length} bytes, {more_kib} KiB more than before");
        // A group of rows, some pieces that wait for the client, and a segment of the store.
        assert!(more_kib < 64 * 1024, "{format}: {more_kib} KiB more for {length} bytes");
    }
}
