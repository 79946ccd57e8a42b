//! The rooms of the engine: what each may name, and what makes records.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::code_of;
use crate::sources;

/// Folders of the engine, from the bottom up. A room names rooms of its own line or above it in
/// this list, never below.
const ROOMS: &[&[&str]] = &[
    &["types", "time", "random", "verdict", "headers"],
    &["event", "upkeep"],
    &["settings", "routes", "rows", "state", "policy"],
    &["external"],
    &["snapshot", "tables"],
    &["steps", "reload"],
    &["show", "shard"],
];

/// Rooms that a room does not name, although they are not above it: records know no rule and no
/// event.
const NEVER_NAMED: &[(&str, &[&str])] = &[("state", &["event", "policy"]), ("upkeep", &["event"])];

/// Where records begin.
const COMMIT: &str = "shard/commit";

/// Files of the engine, by path below `src`, each with its lines of code.
fn files() -> Vec<(String, Vec<String>)> {
    let shown = |path: &PathBuf| {
        let text = path.to_string_lossy().replace('\\', "/");
        text.split_once("crates/nat/src/").map(|(_, below)| below.to_owned()).expect("a file of the engine")
    };
    let lines = |text: &str| text.lines().map(|line| code_of(line).trim_end().to_owned()).collect();
    sources("nat").iter().map(|(path, text)| (shown(path), lines(text))).collect()
}

fn level(room: &str) -> Option<usize> {
    ROOMS.iter().position(|rooms| rooms.contains(&room))
}

#[test]
fn a_room_names_none_above_it_or_of_its_list() {
    let mut found = Vec::new();
    for (file, lines) in files() {
        let room = file.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(own) = level(room) else { continue };
        for line in lines {
            let named = line
                .split("crate::")
                .skip(1)
                .filter_map(|rest| rest.split(|c: char| c != '_' && !c.is_alphanumeric()).next());
            let is_never = |other| NEVER_NAMED.iter().any(|(from, never)| *from == room && never.contains(&other));
            let is_wrong = |other| level(other).is_some_and(|level| level > own) || is_never(other);
            if named.into_iter().any(is_wrong) {
                found.push(format!("{file}: {}", line.trim()));
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

/// Calls that make a record, by the name of its store.
const CREATIONS: &[(&str, &[&str])] = &[
    ("calls", &["insert"]),
    ("control_sessions.as_mut()?", &["start"]),
    ("flows", &["insert"]),
    ("grants", &["insert"]),
    ("held_ports", &["hold"]),
    ("hosts", &["enter"]),
    ("mappings", &["insert"]),
    ("outbound", &["insert", "add"]),
    ("sessions", &["insert"]),
    ("shared_ports", &["add"]),
    ("subscribers", &["insert"]),
];

#[test]
fn only_a_commit_makes_records() {
    // The stores themselves, and the tables of a benchmark, are below all decisions.
    let is_above =
        |file: &str| ["shard", "steps", "reload", "show", "snapshot"].iter().any(|room| file.starts_with(room));
    let makes = |line: &str, (store, verbs): &(&str, &[&str])| {
        verbs.iter().any(|verb| line.contains(&format!("{store}.{verb}(")))
    };
    let mut unseen: BTreeSet<&str> = CREATIONS.iter().map(|(store, _)| *store).collect();
    let mut found = Vec::new();
    for (file, lines) in files().into_iter().filter(|(file, _)| is_above(file)) {
        for line in &lines {
            for creation in CREATIONS.iter().filter(|creation| makes(line, creation)) {
                unseen.remove(creation.0);
                if !file.starts_with(COMMIT) {
                    found.push(format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "records are made in {found:#?}");
    assert!(unseen.is_empty(), "nothing makes {unseen:?}; is there a new name?");
}

/// Methods that change what workers share through a shared reference.
const CHANGES: &[&str] = &[
    ".claim(",
    ".claim_withheld(",
    ".forget(",
    ".free(",
    ".give_back(",
    ".keep(",
    ".let_go(",
    ".mark(",
    ".note_exhausted(",
    ".offer(",
    ".pair(",
    ".publish(",
    ".set_unused_since(",
    ".take_back(",
    ".take_picked(",
    ".unmark(",
    ".unpair(",
    ".vacate(",
    ".withdraw(",
    ".withhold(",
    "blocks.hold(",
    "blocks.take(",
    "guarantees.guarantee(",
    "guarantees.take(",
];

/// A decision is made with a view, and may be made to explain or to plan.
#[test]
fn views_change_nothing() {
    let mut found = Vec::new();
    for (file, lines) in files() {
        let mut is_view = false;
        // A method ends with a brace of its own line, and the block with one in the first column.
        for line in &lines {
            match line.as_str() {
                "impl View<'_> {" | "impl<'a> View<'a> {" => is_view = true,
                "}" => is_view = false,
                line if is_view && CHANGES.iter().any(|change| line.contains(change)) => {
                    found.push(format!("{file}: {}", line.trim()));
                }
                _ => {}
            }
        }
        let blocks = lines.iter().filter(|line| line.starts_with("impl") && line.contains(" View<"));
        let is_known = |line: &&String| ["impl View<'_> {", "impl<'a> View<'a> {"].contains(&line.as_str());
        found.extend(blocks.filter(|line| !is_known(line)).map(|line| format!("{file}: {line} is not read")));
    }
    assert!(found.is_empty(), "move what changes something to the ledger: {found:#?}");
}
