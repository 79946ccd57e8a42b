//! Faulty files, each with the exact messages it gets: `tests/faults/NAME.toml` and
//! `NAME.expected`.
//!
//! `UPDATE=1 cargo test -p config --test faults` writes the messages anew; read the difference
//! before you commit.
#![allow(clippy::expect_used, reason = "helpers of tests; a missing file should stop them")]

use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
    let entries = fs::read_dir(folder).expect("the faulty files");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|it| it == "toml")).collect();
    files.sort();
    files
}

/// The messages of a file, one a line.
fn messages(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a faulty file");
    let name = path.file_name().expect("its name").to_string_lossy();
    match config::parse(&text, &name) {
        Err(faults) => faults.iter().map(|fault| format!("{fault}\n")).collect(),
        // What could start an instance has warnings at least.
        Ok(config) => config.warnings.iter().map(|warning| format!("{warning}\n")).collect(),
    }
}

#[test]
fn every_faulty_file_gets_exactly_its_messages() {
    // covers: 3022-11, 4787-REQ-7, 6052-1, 6052-2, 6146-1, 6333-7, 7915-4.6
    let mut different = Vec::new();
    for path in files() {
        let messages = messages(&path);
        let expected = path.with_extension("expected");
        if env::var_os("UPDATE").is_some() {
            fs::write(&expected, &messages).expect("the messages are written");
        }
        if fs::read_to_string(&expected).ok().as_deref() != Some(messages.as_str()) {
            different.push(format!("{}:\n{messages}", path.display()));
        }
    }
    assert!(different.is_empty(), "other messages than expected:\n{}", different.join("\n"));
}

#[test]
fn at_least_45_faulty_files_are_all_refused() {
    let files = files();
    assert!(files.len() >= 45, "{} files", files.len());
    for path in files {
        assert!(!messages(&path).is_empty(), "{} is accepted", path.display());
    }
}

#[test]
fn all_faults_of_a_file_are_reported() {
    let counts: Vec<usize> = files().iter().map(|path| messages(path).lines().count()).collect();
    assert!(counts.iter().filter(|count| **count >= 10).count() >= 2, "{counts:?}");
}

#[test]
fn every_message_names_the_file_what_is_wrong_and_what_to_do() {
    for path in files() {
        for message in messages(&path).lines() {
            let name = path.file_name().expect("its name").to_string_lossy();
            let reported = message.strip_prefix("error: ").or_else(|| message.strip_prefix("warning: "));
            let named = reported.and_then(|reported| reported.strip_prefix(&*name));
            let rest = named
                .or_else(|| reported.and_then(|reported| reported.strip_prefix("tests/faults/")))
                .expect("the file is named");
            let (wrong, remedy) = rest.rsplit_once("; ").expect("there is a remedy");
            assert!(wrong.contains(": ") && !remedy.is_empty(), "{message}");
        }
    }
}

#[test]
fn more_tables_than_a_host_can_name_are_refused() {
    let first = include_str!("every_key_of_ipv6.toml");
    let nat64 = |n| format!("\n[[nat64]]\nprefix = \"2001:db8:ff:{n:x}::/96\"\nvrf = \"red\"\npool = \"main\"\n");
    let softwire = |n| format!("\n[[softwire]]\naftr = \"2001:db8:fe::{n:x}\"\nvrf = \"red\"\npool = \"main\"\n");
    for (name, more) in [("nat64", &nat64 as &dyn Fn(usize) -> String), ("softwire", &softwire)] {
        let text = |count: usize| first.to_owned() + &(1..count).map(more).collect::<String>();
        let faults = |count| config::parse(&text(count), "natrix.toml").err().unwrap_or_default();
        assert_eq!(faults(254), [], "{name}");
        let found: Vec<String> = faults(255).iter().map(ToString::to_string).collect();
        let wanted = format!("{name}: has more than 254 tables");
        assert!(found.len() == 1 && found[0].contains(&wanted), "{found:?}");
    }
}
