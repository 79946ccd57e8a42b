//! The output of `check` and `replay`.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

use serde_json::Value;

fn natrix(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_natrix")).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn example() -> String {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    examples.join("small-isp.toml").to_str().unwrap().to_owned()
}

/// A directory of this test.
fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("natrix-{}-{name}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn check_reports_a_valid_file() {
    let output = natrix(&["check", "-c", &example()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains(": valid; 2 interfaces on 2 ports, 1 pool with "), "{output:?}");
    assert_eq!(text(&natrix(&["check", "--json", "-c", &example()]).stdout), "");
    // It has no log, which is no fault.
    let note = "note: event log: none, so who had an address and port cannot be answered later; set [log.store] path to \
                record it\n";
    assert!(text(&output.stdout).ends_with(note), "{output:?}");
    let file = directory("check-log").join("log.toml");
    let with_log = fs::read_to_string(example()).unwrap() + "\n[log.store]\npath = \"/var/log/natrix/log\"\n";
    fs::write(&file, with_log).unwrap();
    let output = natrix(&["check", "--any-machine", "-c", file.to_str().unwrap()]);
    assert!(output.status.success() && !text(&output.stdout).contains("event log"), "{output:?}");
}

#[test]
fn check_and_run_refuse_cpus_that_do_not_exist() {
    let folder = directory("check-cpus");
    let file = folder.join("cpus.toml");
    fs::write(&file, fs::read_to_string(example()).unwrap() + "\n[workers]\ncpus = [65000]\n").unwrap();
    let file = file.to_str().unwrap();
    let (checked, refused) = (natrix(&["check", "-c", file]), natrix(&["run", "-c", file]));
    let fault = "workers.cpus[0]: is a CPU this machine does not have (65000); write a number from 0 to ";
    assert!(text(&refused.stderr).contains(fault), "{refused:?}");
    assert_eq!((checked.status.code(), text(&checked.stderr)), (Some(1), text(&refused.stderr)));
    // The file may be for another machine.
    let checked = natrix(&["check", "--any-machine", "-c", file]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn check_reports_all_faults_as_text_and_json() {
    let folder = directory("check");
    let file = folder.join("faulty.toml");
    let faulty = fs::read_to_string(example()).unwrap().replace("realm = \"inside\"", "realm = \"insid\"");
    fs::write(&file, format!("{faulty}\n[nonsense]\n")).unwrap();
    let file = file.to_str().unwrap();
    let output = natrix(&["check", "-c", file]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<&str> = text(&output.stderr).lines().collect();
    assert!(lines.len() >= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.starts_with(&format!("error: {file}:"))), "{lines:?}");

    let output = natrix(&["check", "--json", "-c", file]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), ""));
    let objects: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), lines.len());
    let fields: Vec<&String> = objects[0].as_object().unwrap().keys().collect();
    assert_eq!(fields, ["file", "level", "line", "object", "problem", "remedy", "seen"]);

    let missing = natrix(&["check", "-c", "/nonexistent/natrix.toml"]);
    assert_eq!(missing.status.code(), Some(1));
    let error = text(&missing.stderr);
    assert!(error.starts_with("error: /nonexistent/natrix.toml: cannot be read ("), "{error}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn replay_prints_its_summary_as_text_and_json() {
    let folder = directory("replay");
    // An empty capture of Ethernet frames.
    let mut capture = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    capture.extend([0xff, 0xff, 0, 0, 1, 0, 0, 0]);
    let input = folder.join("none.pcap");
    fs::write(&input, capture).unwrap();
    let input = input.to_str().unwrap();
    let out = folder.join("out").to_str().unwrap().to_owned();
    let config = example();
    let words = ["replay", "-c", &config, "--inside", input, "--outside", input, "--out-dir", &out];
    let output = natrix(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(text(&output.stdout).contains("frames in         0 from inside, 0 from outside"), "{output:?}");
    let output = natrix(&[&words[..], &["--json"]].concat());
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["duration_us", "frames_in", "frames_out", "packets_forwarded", "packets_local", "packets_dropped"] {
        assert!(summary.get(field).is_some(), "{field}: {summary}");
    }
    for field in ["verdicts", "mappings_created", "sessions_created", "mappings", "sessions", "subscribers"] {
        assert!(summary.get(field).is_some(), "{field}: {summary}");
    }
    assert!(Path::new(&out).join("inside.pcap").exists() && Path::new(&out).join("outside.pcap").exists());
    fs::remove_dir_all(folder).unwrap();
}
