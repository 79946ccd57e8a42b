//! Collects the faults of one file, and knows its lines.

use core::ops::Range;
use std::borrow::Cow;

use crate::fault::Fault;
use crate::fault::Warning;

/// Where something stands in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Path: `pool "a".addresses[2]`.
    pub(crate) path: Cow<'static, str>,
    /// Line, from 1.
    pub(crate) line: Option<u32>,
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
    /// Whether the file says so; false for a default.
    pub(crate) given: bool,
}

impl Place {
    /// "on line 12", for the other half of a conflict.
    pub(crate) fn on_line(&self) -> String {
        self.line.map_or_else(|| "by default".to_owned(), |line| format!("on line {line}"))
    }
}

/// A count and a noun: `1 subscriber`, `2 addresses`.
pub(crate) fn many(count: u64, what: &str) -> String {
    let ending = if what.ends_with('s') { "es" } else { "s" };
    format!("{count} {what}{}", if count == 1 { "" } else { ending })
}

/// `443`, or `80-82`.
pub(crate) fn ports_text(first: u16, last: u16) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// The faults found so far.
pub(crate) struct Report<'a> {
    file: &'a str,
    /// Offset at which each line starts.
    lines: Vec<usize>,
    /// Which file they are about, in the order of reading, and they themselves.
    faults: Vec<(usize, Fault)>,
    /// The file that is being read, if not the first.
    other: Option<OtherFile>,
    /// Files read so far.
    files: usize,
    /// Faults that were not kept, as there were so many of their file.
    unreported: usize,
    /// Whether a client sent the text that may not read all that this process may.
    is_sent: bool,
}

/// A file that the first one names.
struct OtherFile {
    name: String,
    reported: usize,
    unreported: usize,
}

/// Faults reported one by one of each file that the configuration names; further ones are counted.
const OTHER_REPORTED_MAX: usize = 20;

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a str, text: &str) -> Report<'a> {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Report {
            file,
            lines: core::iter::once(0).chain(starts).collect(),
            faults: Vec::new(),
            other: None,
            files: 0,
            unreported: 0,
            is_sent: false,
        }
    }

    /// The same about a text that a client sent: faults of other files do not show what is in them.
    pub(crate) fn of_sent(self) -> Report<'a> {
        Report { is_sent: true, ..self }
    }

    /// Whether a client sent the text that may not read all that this process may.
    pub(crate) fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// The name of the first file.
    pub(crate) fn file(&self) -> &'a str {
        self.file
    }

    /// The line a span starts on.
    pub(crate) fn line(&self, span: Option<Range<usize>>) -> Option<u32> {
        let start = span?.start;
        u32::try_from(self.lines.partition_point(|line| *line <= start)).ok()
    }

    /// Adds a fault; an empty `seen` stands for none.
    pub(crate) fn fault(
        &mut self,
        place: &Place,
        problem: impl Into<String>,
        seen: impl AsRef<str>,
        remedy: impl Into<String>,
    ) {
        let (file, order) = match &mut self.other {
            Some(other) if other.reported == OTHER_REPORTED_MAX => {
                other.unreported += 1;
                self.unreported += 1;
                return;
            }
            Some(other) => {
                other.reported += 1;
                (other.name.as_str(), self.files)
            }
            None => (self.file, 0),
        };
        let seen = if self.is_sent && order > 0 { "" } else { seen.as_ref() };
        self.faults.push((order, fault_of(file, place, problem.into(), seen, remedy.into())));
    }

    /// Adds a fault of another file.
    pub(crate) fn fault_in(
        &mut self,
        file: &str,
        place: &Place,
        problem: impl Into<String>,
        seen: impl AsRef<str>,
        remedy: impl Into<String>,
    ) {
        let seen = if self.is_sent && file != self.file { "" } else { seen.as_ref() };
        self.faults.push((usize::MAX, fault_of(file, place, problem.into(), seen, remedy.into())));
    }

    /// A warning about something in the first file, or in `other`.
    pub(crate) fn warning(&self, other: Option<&str>, place: &Place, problem: String, remedy: &str) -> Warning {
        Warning(fault_of(other.unwrap_or(self.file), place, problem, "", remedy.to_owned()))
    }

    /// What follows is about another file, until [`Report::leave`].
    pub(crate) fn enter(&mut self, name: &str) {
        self.leave();
        self.files += 1;
        self.other = Some(OtherFile { name: name.to_owned(), reported: 0, unreported: 0 });
    }

    /// What follows is about the first file again.
    pub(crate) fn leave(&mut self) {
        if let Some(OtherFile { name, unreported, .. }) = self.other.take()
            && unreported > 0
        {
            let fault = Fault {
                file: name,
                line: None,
                object: String::new(),
                problem: format!("has {unreported} more faults"),
                seen: String::new(),
                remedy: "correct those reported and check again".to_owned(),
            };
            self.faults.push((self.files, fault));
        }
    }

    /// Faults so far.
    pub(crate) fn fault_count(&self) -> usize {
        self.faults.len() + self.unreported
    }

    /// Whether nothing is wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults by line; those of a file as a whole come last, and those of other files after
    /// those of the first.
    pub(crate) fn into_faults(mut self) -> Vec<Fault> {
        self.leave();
        self.faults.sort_by_key(|(file, fault)| (*file, fault.line.unwrap_or(u32::MAX)));
        self.faults.into_iter().map(|(_, fault)| fault).collect()
    }
}

fn fault_of(file: &str, place: &Place, problem: String, seen: &str, remedy: String) -> Fault {
    // Names of tables are in it.
    let object = without_tokens(&place.path);
    let (problem, remedy) = (without_secrets(&problem), without_secrets(&remedy));
    // A name may look like a key, but not like a token.
    let key_digits = if place.path.ends_with("name") { TOKEN_DIGITS } else { KEY_DIGITS };
    let seen = shorten(&without_secrets_from(seen, key_digits));
    Fault { file: file.to_owned(), line: place.line, object, problem, seen, remedy }
}

/// A text without tokens, hashes of tokens and keys, which may stand where they do not belong.
/// Faults are printed, and come into logs.
pub(crate) fn without_secrets(text: &str) -> String {
    without_secrets_from(text, KEY_DIGITS)
}

/// The same without what is as long as the secret of a token: names may look like a key.
pub(crate) fn without_tokens(text: &str) -> String {
    without_secrets_from(text, TOKEN_DIGITS)
}

/// Hexadecimal digits in a row that may be a key.
const KEY_DIGITS: usize = 32;
/// The same of the secret of a token.
const TOKEN_DIGITS: usize = 48;

/// The same, where digits in a row are a key only if there are so many of them.
fn without_secrets_from(text: &str, key_digits: usize) -> String {
    const HASH: &str = "$argon2";
    let mut shown = String::with_capacity(text.len());
    // Of what these are made of, and other bytes one by one.
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || "$=,+/".contains(c);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len()).max(first.len_utf8());
        let (word, after) = rest.split_at(length);
        let is_key = word.len() >= key_digits && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        shown += if word.contains(HASH) || is_key { "[secret]" } else { word };
        rest = after;
    }
    shown
}

/// What fits in a message: one line without control characters, of bounded length.
fn shorten(seen: &str) -> String {
    const SHOWN_MAX: usize = 80;
    let mut shown: String =
        seen.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_MAX + 1).collect();
    if shown.chars().count() > SHOWN_MAX {
        shown = shown.chars().take(SHOWN_MAX).collect::<String>() + "...";
    }
    shown
}

/// The nearest of `known`, when one is near: what was meant, probably. Capitals do not count.
pub(crate) fn nearest<'k>(wrong: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let wrong = wrong.to_lowercase();
    let likeness = |word: &str| strsim::jaro_winkler(&wrong, &word.to_lowercase());
    let (likeness, best) = known.into_iter().map(|word| (likeness(word), word)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness >= 0.8).then_some(best)
}

/// The words of a list, quoted: `"a", "b" or "c"`.
pub(crate) fn one_of<'k>(words: impl IntoIterator<Item = &'k str>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| format!("\"{word}\"")).collect();
    match words.split_last() {
        None => "nothing".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}
