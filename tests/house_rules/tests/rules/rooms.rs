//! The rooms of the engine: what each may name, and what makes records.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::code_of;
use crate::sources;

/// Folders of the engine, from the bottom up. A room names rooms of its own line or above it in
/// this list, never below.
const ROOMS: &[&[&str]] = &[
    &["types", "time", "random", "verdict", "headers"],
    &["settings", "routes", "rows", "state", "external", "policy", "event", "upkeep"],
    &["snapshot", "tables"],
    &["steps", "reload"],
    &["show", "shard"],
];

/// The policy in effect has parts that the shard walks; the view of a decision reads them.
const MAY_NAME_ABOVE: (&str, &str) = ("steps/view.rs", "use crate::shard::Policy;");

/// Where records begin.
const COMMIT: &str = "shard/commit";

/// Files of the engine, by path below `src`, each with its lines of code.
fn files() -> Vec<(String, Vec<String>)> {
    let shown = |path: &PathBuf| {
        let text = path.to_string_lossy().replace('\\', "/");
        text.split_once("crates/nat/src/").map(|(_, below)| below.to_owned()).expect("a file of the engine")
    };
    let lines = |text: &str| text.lines().map(|line| code_of(line).trim().to_owned()).collect();
    sources("nat").iter().map(|(path, text)| (shown(path), lines(text))).collect()
}

fn level(room: &str) -> Option<usize> {
    ROOMS.iter().position(|rooms| rooms.contains(&room))
}

#[test]
fn no_room_names_one_above_it() {
    let mut found = Vec::new();
    for (file, lines) in files() {
        let room = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(own) = level(room) else { continue };
        for line in lines {
            let named = line
                .split("crate::")
                .skip(1)
                .filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next());
            let goes_up = named.filter_map(level).any(|other| other > own);
            if goes_up && (file.as_str(), line.as_str()) != MAY_NAME_ABOVE {
                found.push(format!("{file}: {line}"));
            }
        }
    }
    assert!(found.is_empty(), "move what is named here to a room below: {found:#?}");
}

#[test]
fn every_folder_of_the_engine_is_a_room() {
    let folders: BTreeSet<String> =
        files().iter().filter_map(|(file, _)| file.split_once('/').map(|(folder, _)| folder.to_owned())).collect();
    let unknown: Vec<_> = folders.iter().filter(|folder| level(folder).is_none()).collect();
    assert!(unknown.is_empty(), "put {unknown:?} into the list of rooms");
}

#[test]
fn the_shard_has_its_methods_in_three_files() {
    let has_methods = |lines: &[String]| lines.iter().any(|line| line == "impl Shard {");
    let found: Vec<_> = files().into_iter().filter(|(_, lines)| has_methods(lines)).map(|(file, _)| file).collect();
    assert!((1..=3).contains(&found.len()), "impl Shard is in {found:?}");
}

/// The ledger is below the packet path, and both below the shard.
#[test]
fn the_ledger_names_nothing_that_stands_on_it() {
    for (file, lines) in files() {
        let is_ledger = lines.iter().any(|line| line == "impl Ledger {");
        for line in lines.iter().filter(|_| is_ledger) {
            let words: Vec<_> = line.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
            assert!(!words.contains(&"PacketPath") && !words.contains(&"Shard"), "{file}: {line}");
        }
    }
}

#[test]
fn only_a_commit_makes_records() {
    let stores = ["mappings", "outbound", "sessions", "flows", "subscribers", "shared_ports"];
    let makes = |line: &str| {
        stores.iter().any(|store| {
            line.contains(&format!("state.{store}.insert(")) || line.contains(&format!("state.{store}.add("))
        })
    };
    let found: Vec<_> =
        files().into_iter().filter(|(_, lines)| lines.iter().any(|line| makes(line))).map(|(file, _)| file).collect();
    assert!(!found.is_empty() && found.iter().all(|file| file.starts_with(COMMIT)), "records are made in {found:?}");
}
