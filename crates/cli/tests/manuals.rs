//! Each command that the manuals show exists, with its flags.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use clap::Command;
use clap::CommandFactory as _;

/// What ends a command in a line of a shell. The `|` of alternatives has no spaces around it.
const ENDS: [&str; 6] = ["; ", " | ", " && ", " # ", " > ", "`"];

/// Words behind the name where it is no command: a view of snmpd, and a sentence.
const NO_COMMANDS: [&str; 3] = ["included", "excluded", "runs"];

/// The manuals: README, and all pages in `docs`.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CHANGELOG.md")];
    for folder in ["docs", "docs/adr"] {
        let files = fs::read_dir(root.join(folder)).unwrap().map(|file| file.unwrap().path());
        pages.extend(files.filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    }
    pages
}

/// The code of a page: its blocks, with continued lines joined, and its spans.
fn code_of(page: &str) -> Vec<String> {
    let mut code = Vec::new();
    for (number, part) in page.split("```").enumerate() {
        if number % 2 == 0 {
            let spans = part.split('`').skip(1).step_by(2);
            code.extend(spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")));
            continue;
        }
        for line in part.lines() {
            match code.last_mut() {
                Some(last) if line.starts_with("       ") && last.starts_with("natrix ") => {
                    *last = format!("{last} {}", line.trim());
                }
                _ => code.push(line.trim().trim_start_matches("$ ").to_owned()),
            }
        }
    }
    code
}

/// The words behind each `natrix` in a piece of code.
fn commands_in(code: &str) -> Vec<Vec<&str>> {
    let mut commands = Vec::new();
    for (at, _) in code.match_indices("natrix ") {
        let rest = &code[at + "natrix ".len()..];
        let is_word = code[..at].chars().next_back().is_none_or(|before| " (\"$/".contains(before));
        if is_word && rest.starts_with(|first: char| first.is_ascii_lowercase()) {
            let end = ENDS.iter().filter_map(|end| rest.find(end)).min().unwrap_or(rest.len());
            let words: Vec<&str> = rest[..end].split(|letter: char| " []|,;()\"".contains(letter)).collect();
            commands.extend(Some(words).filter(|words| !NO_COMMANDS.contains(&words[0])));
        }
    }
    commands
}

/// What is wrong with the words of a command.
fn fault(root: &Command, words: &[&str]) -> Option<String> {
    let mut command = root;
    let mut rest = words;
    while let Some(found) = rest.first().and_then(|word| command.find_subcommand(word)) {
        (command, rest) = (found, &rest[1..]);
    }
    if rest.len() == words.len() {
        return Some("no such command".to_owned());
    }
    let has = |flag: &str| {
        command.get_arguments().any(|argument| match flag.strip_prefix("--") {
            Some(long) => argument.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long)),
            None => argument.get_short().is_some_and(|short| flag == format!("-{short}")),
        })
    };
    let flags = rest.iter().filter(|word| word.starts_with('-') && word.len() > 1);
    let unknown = flags.map(|word| word.split('=').next().unwrap_or(word)).find(|flag| !has(flag));
    unknown.map(|flag| format!("{} has no {flag}", command.get_name()))
}

#[test]
fn every_command_in_the_manuals_exists() {
    let mut root = cli::Arguments::command();
    root.build();
    let (mut count, mut faults) = (0, Vec::new());
    for path in pages() {
        for code in code_of(&fs::read_to_string(&path).unwrap()) {
            for words in commands_in(&code) {
                count += 1;
                let fault = fault(&root, &words);
                faults.extend(fault.map(|fault| format!("{}: {fault}: {code}", path.display())));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 300, "{count} commands");
}

#[test]
fn commands_with_faults_are_found() {
    let mut root = cli::Arguments::command();
    root.build();
    let faults = |code: &str| commands_in(code).iter().filter_map(|words| fault(&root, words)).collect::<Vec<String>>();
    assert_eq!(faults("natrix check -c FILE [--json]; natrix show drops | sort"), Vec::<String>::new());
    assert_eq!(faults("natrix check -c FILE --quiet=yes"), ["check has no --quiet"]);
    assert_eq!(faults("$ natrix look"), ["no such command"]);
}
