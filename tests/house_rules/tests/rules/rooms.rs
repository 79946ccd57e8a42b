//! The rooms of the engine: what each may name, and what makes records.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::code_of;
use crate::sources;

/// Folders and files of the engine, from the bottom up. A room names rooms of its own line or above
/// it in this list, never below.
const ROOMS: &[&[&str]] = &[
    &["types", "time", "random", "verdict", "headers"],
    &["event", "upkeep"],
    &["settings", "routes", "rows", "state", "policy"],
    &["external"],
    &["snapshot", "tables"],
    &["steps", "reload"],
    &["show", "shard"],
    &["pieces"],
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

/// Words in the engine's root that a line names by `crate::`, or by `super::` from a file so many
/// modules below the root, or from a module in that file.
fn named_in_root(line: &str, depth: usize) -> Vec<&str> {
    let word = |rest: &'_ str| -> usize { rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len()) };
    let mut named: Vec<&str> = line.split("crate::").skip(1).map(|rest| &rest[..word(rest)]).collect();
    let mut rest = line;
    while let Some(place) = rest.find("super::") {
        rest = &rest[place..];
        let mut steps = 0;
        while let Some(above) = rest.strip_prefix("super::") {
            (rest, steps) = (above, steps + 1);
        }
        if steps >= depth {
            named.push(&rest[..word(rest)]);
        }
    }
    named
}

#[test]
fn paths_up_to_the_root_name_rooms() {
    assert_eq!(named_in_root("use crate::shard::Shard;", 2), ["shard"]);
    assert_eq!(named_in_root("use super::super::shard;", 2), ["shard"]);
    assert_eq!(named_in_root("fn of(x: super::event::Event, y: crate::time::Instant)", 1), ["time", "event"]);
    assert_eq!(named_in_root("use super::commit;", 2), [""; 0]);
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
        let depth = file.split('/').count();
        for line in lines {
            let named = named_in_root(&line, depth);
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
fn every_folder_and_file_of_the_engine_is_a_room() {
    let room_of = |file: &str| file.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
    let rooms: BTreeSet<String> = files().iter().map(|(file, _)| room_of(file)).collect();
    // The root names them all.
    let unknown: Vec<_> = rooms.iter().filter(|room| *room != "lib" && level(room).is_none()).collect();
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

/// Calls that keep a packet or a part of it, and where they are. These are no decisions about NAT
/// state, and their tables make room by themselves.
const KEPT: &[(&str, &[&str], &str)] = &[
    ("fragments", &["accept"], "shard/packet/fragments.rs"),
    ("reassembly", &["accept"], "shard/edge/"),
    ("syns", &["hold"], "shard/packet/inbound.rs"),
];

#[test]
fn only_a_commit_makes_records_of_nat() {
    // The stores themselves, and the tables of a benchmark, are below all decisions.
    let is_above =
        |file: &str| ["shard", "steps", "reload", "show", "snapshot"].iter().any(|room| file.starts_with(room));
    let makes = |line: &str, (store, verbs, _): &(&str, &[&str], &str)| {
        verbs.iter().any(|verb| line.contains(&format!("{store}.{verb}(")))
    };
    let all = || CREATIONS.iter().map(|(store, verbs)| (*store, *verbs, COMMIT)).chain(KEPT.iter().copied());
    let mut unseen: BTreeSet<&str> = all().map(|(store, _, _)| store).collect();
    let mut found = Vec::new();
    for (file, lines) in files().into_iter().filter(|(file, _)| is_above(file)) {
        for line in &lines {
            for creation in all().filter(|creation| makes(line, creation)) {
                unseen.remove(creation.0);
                if !file.starts_with(creation.2) {
                    found.push(format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "records are made in {found:#?}");
    assert!(unseen.is_empty(), "nothing makes {unseen:?}; is there a new name?");
}

/// What changes something through a shared reference: atomics themselves, and methods of what
/// workers share.
const CHANGES: &[&str] = &[
    ".compare_exchange(",
    ".compare_exchange_weak(",
    ".count_in_pool(",
    ".fetch_",
    ".store(",
    ".swap(",
    "filters.count(",
    "passes.count(",
    "rules.count(",
    "static_hits.count(",
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
