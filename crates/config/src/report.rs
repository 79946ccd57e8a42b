//! Collects the faults of one file, and knows its lines.

use core::ops::Range;

use crate::fault::Fault;

/// Where something stands in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Path: `pool "a".addresses[2]`.
    pub(crate) path: String,
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

/// The faults found so far.
pub(crate) struct Report<'a> {
    file: &'a str,
    /// Offset at which each line starts.
    lines: Vec<usize>,
    faults: Vec<Fault>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(file: &'a str, text: &str) -> Report<'a> {
        let starts = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Report { file, lines: core::iter::once(0).chain(starts).collect(), faults: Vec::new() }
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
        self.faults.push(Fault {
            file: self.file.to_owned(),
            line: place.line,
            object: place.path.clone(),
            problem: problem.into(),
            seen: shorten(seen.as_ref()),
            remedy: remedy.into(),
        });
    }

    /// Faults so far.
    pub(crate) fn fault_count(&self) -> usize {
        self.faults.len()
    }

    /// Whether nothing is wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    /// The faults by line; those of the file as a whole come last.
    pub(crate) fn into_faults(mut self) -> Vec<Fault> {
        self.faults.sort_by_key(|fault| fault.line.unwrap_or(u32::MAX));
        self.faults
    }
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

/// The nearest of `known`, when one is near: what was meant, probably.
pub(crate) fn nearest<'k>(wrong: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let (likeness, best) =
        known.into_iter().map(|word| (strsim::jaro_winkler(wrong, word), word)).max_by(|a, b| a.0.total_cmp(&b.0))?;
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
