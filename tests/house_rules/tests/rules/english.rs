//! Plain English, as far as a machine can judge it: line widths, words and the length of test names.
//!
//! Comments and strings of Rust sources are read, Markdown without its code spans, and Python, shell
//! and TOML files as a whole. Of the code itself, names of tests are, and all names for a few words.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::LazyLock;

const COMMENT_WIDTH: usize = 100;
const MARKDOWN_WIDTH: usize = 120;
const TEST_NAME_LENGTH: usize = 60;

/// Words and phrases that have a plainer one, which stands beside each. Compared in lower case,
/// between word boundaries; an underscore belongs to a word.
const PLAINER: &[(&str, &str)] = &[
    // One word, one meaning.
    ("all of a list", "name the list"),
    ("commons", "port shared between workers"),
    ("displaced", "orphaned mapping"),
    ("dormant", "static mapping; inactive"),
    ("entitled", "guarantee"),
    ("epoch", "generation"),
    ("era", "generation"),
    ("facts", "compiled pool"),
    ("far side", "remote_inside or remote_outside"),
    ("in_vain", "refused"),
    ("leftover", "port of a removed forward"),
    ("leftovers", "ports of removed forwards"),
    ("near side", "remote_inside or remote_outside"),
    ("open_usual", "first packet"),
    ("own_ports", "subscriber_ports"),
    ("pledge", "guarantee"),
    ("pledged", "guarantee"),
    ("rested", "held down"),
    ("resting", "held down"),
    ("rests", "is held down"),
    ("set aside", "guaranteed, reserved"),
    ("sets aside", "guarantees, reserves"),
    ("setting aside", "guaranteeing, reserving"),
    ("sleeper", "static mapping"),
    ("sleepers", "static mappings"),
    ("statics", "static mappings"),
    ("tell", "report, show, say"),
    ("telling", "reporting, showing"),
    ("tells", "reports, shows, says"),
    ("told", "reported, shown"),
    ("turned away", "refused"),
    ("turned_away", "refused"),
    ("untold", "unreported, suppressed"),
    // No person where a thing is meant.
    ("he", "name the thing"),
    ("her", "name the thing"),
    ("him", "name the thing"),
    ("himself", "name the thing"),
    ("his", "name the thing"),
    ("she", "name the thing"),
    ("whoever", "name the thing"),
    ("whom", "name the thing"),
    ("whomever", "name the thing"),
    ("that one", "name the thing"),
    ("the former", "name the thing"),
    // Phrases that have to be decoded.
    ("as ever", "as before, unchanged"),
    ("be it", "whether, including"),
    ("can not", "cannot"),
    ("clock on the wall", "wall-clock time"),
    ("for want of", "because there is no, without"),
    ("from before", "earlier, old"),
    ("go over", "switch to"),
    ("goes over", "switches to"),
    ("going over", "switching to"),
    ("has not got", "lacks, has no"),
    ("in force", "in use"),
    ("in vain", "without effect, refused"),
    ("is none of", "there is no such"),
    ("made room", "freed"),
    ("none of it", "nothing of"),
    ("nothing differs", "no changes"),
    ("of before", "earlier, old"),
    ("of late", "late, afterwards"),
    ("of these there", "turn the sentence round"),
    ("of them there", "turn the sentence round"),
    ("say nothing", "have no effect"),
    ("says nothing", "has no effect"),
    ("so that one", "name the thing"),
    ("there is none of", "there is no"),
    ("went over", "switched to"),
];

/// The same for names of tests and for comments in the sources of the crates, where these words
/// stand for a packet, a port, a program or a subscriber.
const PLAINER_THERE: &[(&str, &str)] = &[
    ("for good", "permanently"),
    ("nobody", "name the thing; no subscriber, no packet"),
    ("somebody", "name the thing; another subscriber"),
    ("who", "name the thing"),
];

/// Words that no name in Rust or Python contains, and the word in place of each. Other words of the
/// lists above also have a proper meaning in code.
const PLAINER_IDENTIFIERS: &[(&str, &str)] = &[
    ("commons", "shared between workers"),
    ("displaced", "orphaned, evicted"),
    ("dormant", "inactive"),
    ("entitled", "guaranteed"),
    ("foresight", "hints"),
    ("foretell", "preview, explain"),
    ("foretold", "preview, explained"),
    ("in_force", "current, in_use, running"),
    ("in_vain", "refused, has_no_effect"),
    ("leftover", "name the thing"),
    ("leftovers", "name the things"),
    ("newcomer", "new_host, new_subscriber"),
    ("own_ports", "subscriber_ports"),
    ("pledge", "guarantee"),
    ("pledged", "guaranteed"),
    ("rested", "held_down"),
    ("resting", "held_down"),
    ("sleeper", "static_mapping"),
    ("sleepers", "static_mappings"),
    ("statics", "static_mappings"),
    ("turned_away", "refused"),
    ("untold", "suppressed"),
];

/// Phrases in which a listed word is the right one.
const FINE: &[&str] = &["unix epoch", "unix_epoch", "since the epoch", "epoch time"];

/// Folders and files of the tree that are read, and the file that has to name the phrases.
const ROOTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Makefile",
    "README.md",
    "crates",
    "demo",
    "docs",
    "examples",
    "fuzz/README.md",
    "fuzz/run.sh",
    "fuzz/src",
    "measure",
    "scripts",
    "tests",
];
const ITSELF: &str = "tests/house_rules/tests/rules/english.rs";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Width,
    Word,
    Name,
    TestName,
}

/// A place that breaks a rule.
pub(crate) struct Fault {
    file: String,
    line: usize,
    rule: Rule,
    problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

/// Every fault of the tree below `root`, in the order of the files' names.
pub(crate) fn faults(root: &Path) -> Vec<Fault> {
    let mut files = Vec::new();
    for part in ROOTS {
        collect(&root.join(part), &mut files);
    }
    files.sort();
    let mut found = Vec::new();
    for path in files {
        let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if file != ITSELF {
            check(&file, &text, &mut found);
        }
    }
    found
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_dir() {
        if name != "target" && name != "__pycache__" {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.for_each(|entry| collect(&entry.path(), files));
        }
        return;
    }
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    if ["md", "py", "rs", "sh", "toml"].contains(&&*extension) || name == "Makefile" {
        files.push(path.to_owned());
    }
}

fn check(file: &str, text: &str, found: &mut Vec<Fault>) {
    let mut report = |line: usize, rule: Rule, problem: String| {
        found.push(Fault { file: file.to_owned(), line, rule, problem });
    };
    let is_rust = file.ends_with(".rs");
    let is_markdown = file.ends_with(".md");
    let has_names = !is_markdown && may_have_unplain_names(text);
    let mut in_code = false;
    let mut is_test = false;
    for (line, number) in text.lines().zip(1..) {
        let inner = line.trim_start();
        let width = line.chars().count();
        if is_markdown {
            in_code ^= inner.starts_with("```");
            if !in_code && !inner.starts_with('|') && width > MARKDOWN_WIDTH && line.trim().contains(' ') {
                report(number, Rule::Width, format!("a line of {width} columns; wrap at {MARKDOWN_WIDTH}"));
            }
        } else if inner.starts_with(if is_rust { "//" } else { "#" }) && width > COMMENT_WIDTH {
            report(number, Rule::Width, format!("a comment of {width} columns; wrap at {COMMENT_WIDTH}"));
        }
        if has_names {
            for (name, word, plainer) in unplain_names(super::code_of(line)) {
                report(number, Rule::Name, format!("\"{word}\" in `{name}`; say it plainly ({plainer})"));
            }
        }
        let (mark, keyword) = if is_rust { ("#[test]", "fn ") } else { ("@test(", "def ") };
        is_test |= inner.starts_with(mark);
        if let Some(rest) = inner.strip_prefix(keyword).filter(|_| is_test) {
            is_test = false;
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            if name.len() > TEST_NAME_LENGTH {
                let length = name.len();
                report(
                    number,
                    Rule::TestName,
                    format!("`{name}` has {length} characters; {TEST_NAME_LENGTH} are enough"),
                );
            }
            for (_, phrase, plainer) in unplain(&name.replace('_', " "), &[PLAINER, PLAINER_THERE].concat()) {
                report(number, Rule::TestName, format!("\"{phrase}\" in `{name}`; say it plainly ({plainer})"));
            }
        }
    }
    let proses = match () {
        () if is_rust => prose_of_rust(text),
        () if is_markdown => vec![(1, trimmed_lines(&without_code_spans(text)), false)],
        () => vec![(1, trimmed_lines(text), false)],
    };
    let is_source = is_rust && file.starts_with("crates/") && file.contains("/src/") && !is_of_tests(file);
    let everywhere = PLAINER.to_vec();
    let in_comments = [PLAINER, PLAINER_THERE].concat();
    for (first, prose, is_comment) in proses {
        let list = if is_comment && is_source { &in_comments } else { &everywhere };
        for (at, phrase, plainer) in unplain(&prose, list) {
            let line = first + prose.get(..at).map_or(0, |before| before.matches('\n').count());
            report(line, Rule::Word, format!("\"{phrase}\"; say it plainly ({plainer})"));
        }
    }
}

fn is_of_tests(file: &str) -> bool {
    file.contains("/tests/") || file.ends_with("tests.rs")
}

/// Where phrases of `list` occur in a text, each with the plainer one.
fn unplain(prose: &str, list: &[(&'static str, &'static str)]) -> Vec<(usize, &'static str, &'static str)> {
    let flat = FINE
        .iter()
        .fold(prose.to_lowercase().replace('\n', " "), |flat, fine| flat.replace(fine, &"-".repeat(fine.len())));
    let words: HashSet<&str> = flat.split(|c: char| c != '_' && !c.is_alphanumeric()).collect();
    let of = |(phrase, plainer): &(&'static str, &'static str)| {
        let (phrase, plainer) = (*phrase, *plainer);
        let places = flat.match_indices(phrase).filter(|(at, _)| is_bounded(&flat, *at, at + phrase.len()));
        places.map(|(at, _)| (at, phrase, plainer)).collect::<Vec<_>>()
    };
    let begins = |(phrase, _): &&(&str, &str)| phrase.split(' ').next().is_some_and(|word| words.contains(word));
    list.iter().filter(begins).flat_map(of).collect()
}

/// Names with a word of [`PLAINER_IDENTIFIERS`], in either case, each with the word and its plainer one.
fn unplain_names(code: &str) -> Vec<(&str, &'static str, &'static str)> {
    let in_words = |name: &str| {
        let of = |c: char| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.to_string() };
        let is_constant = !name.chars().any(char::is_lowercase);
        if is_constant { name.to_lowercase() } else { name.chars().map(of).collect() }
    };
    let of = |name| {
        let words = format!("_{}_", in_words(name));
        let listed = PLAINER_IDENTIFIERS.iter().filter(move |(word, _)| words.contains(&format!("_{word}_")));
        listed.map(move |(word, plainer)| (name, *word, *plainer))
    };
    code.split(|c: char| c != '_' && !c.is_alphanumeric()).flat_map(of).collect()
}

/// False if no name in a text can have a word of [`PLAINER_IDENTIFIERS`]: its letters are not there.
fn may_have_unplain_names(text: &str) -> bool {
    let letters = text.replace('_', "").to_lowercase();
    PLAINER_IDENTIFIERS.iter().any(|(word, _)| letters.contains(&word.replace('_', "")))
}

fn is_bounded(text: &str, from: usize, to: usize) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let before = text.get(..from).and_then(|part| part.chars().next_back());
    let after = text.get(to..).and_then(|part| part.chars().next());
    !before.is_some_and(is_part) && !after.is_some_and(is_part)
}

/// Names of files, functions and fields in code spans are replaced by blanks. Blocks of code stay.
fn without_code_spans(text: &str) -> String {
    let blank = |(i, part): (usize, &str)| if i % 2 == 0 { part.to_owned() } else { part.replace(|c| c != '\n', " ") };
    let outside = |part: &str| part.split('`').enumerate().map(blank).collect::<String>();
    let parts = text.split("```").enumerate();
    parts.map(|(i, part)| if i % 2 == 0 { outside(part) } else { part.to_owned() }).collect()
}

fn trimmed_lines(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// Comments, joined where they stand on successive lines, and string literals: each with its first
/// line, and whether it is a comment.
fn prose_of_rust(text: &str) -> Vec<(usize, String, bool)> {
    let mut found: Vec<(usize, String, bool)> = Vec::new();
    let mut comment_ends_at = 0;
    let mut rest = text;
    let mut line = 1;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            let words = rest[..length].trim_start_matches(['/', '!']).trim();
            match found.last_mut().filter(|_| comment_ends_at + 1 == line) {
                Some((_, prose, _)) => *prose = format!("{prose}\n{words}"),
                None => found.push((line, words.to_owned(), true)),
            }
            comment_ends_at = line;
            length
        } else if c == '"' {
            let (prose, length) = plain_string(rest);
            found.push((line, prose, false));
            comment_ends_at = 0;
            length
        } else if c == 'r' && !before.is_alphanumeric() && before != '_' && raw_string(rest).is_some() {
            let (prose, length) = raw_string(rest).unwrap_or_default();
            found.push((line, prose, false));
            comment_ends_at = 0;
            length
        } else if c == '\'' {
            character(rest)
        } else {
            c.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        before = c;
        rest = &rest[length..];
    }
    found
}

/// The text of a string literal at the start of `rest`, and the length of the literal.
fn plain_string(rest: &str) -> (String, usize) {
    let mut prose = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (prose, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n')) => prose.push('\n'),
                _ => prose.push('-'),
            },
            c => prose.push(c),
        }
    }
    (prose, rest.len())
}

fn raw_string(rest: &str) -> Option<(String, usize)> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let start = 2 + hashes;
    (rest.as_bytes().get(1 + hashes) == Some(&b'"')).then_some(())?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = rest[start..].find(&end)?;
    Some((rest[start..start + length].to_owned(), start + length + end.len()))
}

/// The length of a character literal, or of the quote alone where a lifetime begins.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some(_)) => chars.find(|(_, c)| *c == '\'').map_or(1, |(at, _)| at + 1),
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// Fails with all places that break a rule.
fn hold(rule: Rule) {
    static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| faults(&super::workspace_root()));
    let found: Vec<String> = FAULTS.iter().filter(|fault| fault.rule == rule).map(Fault::to_string).collect();
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn comments_and_markdown_keep_their_width() {
    hold(Rule::Width);
}

/// A newcomer should be able to read it in a quarter of an hour.
#[test]
fn the_architecture_has_at_most_200_lines() {
    let text = std::fs::read_to_string(crate::workspace_root().join("ARCHITECTURE.md")).expect("the file is there");
    assert!(text.lines().count() <= 200, "{} lines", text.lines().count());
}

#[test]
fn prose_uses_plain_words() {
    hold(Rule::Word);
}

#[test]
fn names_use_plain_words() {
    hold(Rule::Name);
}

#[test]
fn names_are_split_into_words() {
    for (code, count) in [
        ("let was_turned_away = OwnPorts::LEFTOVERS_MAX;", 3),
        ("fn turned(away: InForce)", 1),
        ("interesting(pledges, is_downed, force_in)", 0),
    ] {
        assert_eq!(unplain_names(code).len(), count, "{code}: {:?}", unplain_names(code));
    }
}

#[test]
fn test_names_are_short_and_plain() {
    hold(Rule::TestName);
}

#[test]
fn names_of_tests_are_read_word_by_word() {
    let source = "#[test]\nfn who_is_told() {}\nfn somebody() {}\n#[test]\nfn a_whole_epoch_time() {}\n";
    let python = "@test()\ndef nobody_answers(n):\n    told = 1\n\ndef who(n):\n";
    let mut found = Vec::new();
    check("crates/x/src/a.rs", source, &mut found);
    check("tests/netns/a.py", python, &mut found);
    let of_names = found.iter().filter(|fault| fault.rule == Rule::TestName);
    let seen: Vec<String> = of_names.map(ToString::to_string).collect();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("crates/x/src/a.rs:2: \"told\""), "{seen:?}");
    assert!(seen[2].starts_with("tests/netns/a.py:2: \"nobody\""), "{seen:?}");
}

#[test]
fn comments_of_sources_name_things() {
    let source = "/// Somebody\n/// who is told.\nsay(\"who\");\n";
    for (file, count) in [("crates/x/src/a.rs", 3), ("crates/x/src/a/tests.rs", 1), ("crates/x/tests/a.rs", 1)] {
        let mut found = Vec::new();
        check(file, source, &mut found);
        assert_eq!(found.len(), count, "{file}: {:?}", found.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}

#[test]
fn code_spans_of_markdown_are_code() {
    let page = "Names: `told`, `in\nforce`.\n\n```\nsay told\n```\n\nHe told\nit.\n";
    let mut found = Vec::new();
    check("docs/a.md", page, &mut found);
    let mut seen: Vec<String> = found.iter().map(ToString::to_string).collect();
    seen.sort();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("docs/a.md:5: ") && seen[2].starts_with("docs/a.md:8: "), "{seen:?}");
}

#[test]
fn phrases_are_found_across_lines_and_in_strings_but_not_in_code() {
    let source =
        "/// It can\n/// not be. Unix epoch.\nlet told = 'a'; say(\"who is \\\n   told\", r#\"in \"vain\"#);\n";
    let mut found = Vec::new();
    check("crates/x/src/a.rs", source, &mut found);
    let seen: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].starts_with("crates/x/src/a.rs:1: \"can not\""), "{seen:?}");
    assert!(seen[1].starts_with("crates/x/src/a.rs:3: \"told\""), "{seen:?}");
}
