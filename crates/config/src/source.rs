//! The text that a configuration was read from, kept so that the next one is read faster.

use std::path::PathBuf;
use std::sync::Arc;

/// Bytes of a rule file that are kept; a longer one is read anew each time.
const KEPT_MAX: usize = 1 << 28;
/// Lines of the text before among which a line is looked for: as many may be inserted or removed
/// in one place.
const LOOK_AHEAD: usize = 64;

/// What a configuration was read from. Any two compare equal: reformatting changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// Where files are looked for.
    pub(crate) folder: PathBuf,
    pub(crate) text: String,
    /// Of each `[[rule_file]]`, in their order; None if not kept.
    pub(crate) rule_files: Vec<Option<Arc<FileText>>>,
}

impl PartialEq for Source {
    fn eq(&self, _: &Source) -> bool {
        true
    }
}

/// The lines of a file.
#[derive(Debug, Default)]
pub(crate) struct FileText {
    text: Vec<u8>,
    /// Where each line ends.
    ends: Vec<u32>,
}

impl FileText {
    fn line(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |end| *end as usize);
        self.text.get(start..end)
    }
}

/// Keeps the lines of a file as they are read, and finds them in the file before.
#[derive(Default)]
pub(crate) struct Lines {
    kept: Option<FileText>,
    before: Option<Arc<FileText>>,
    /// The next line of `before`, from 0.
    next: usize,
}

impl Lines {
    pub(crate) fn following(before: Option<Arc<FileText>>) -> Lines {
        // Most of it will be the same.
        let (bytes, lines) = before.as_ref().map_or((0, 0), |before| (before.text.len(), before.ends.len()));
        let kept = FileText { text: Vec::with_capacity(bytes), ends: Vec::with_capacity(lines) };
        Lines { kept: Some(kept), before, next: 0 }
    }

    /// Keeps a line. The number, from 1, that it had before, if it was there.
    pub(crate) fn read(&mut self, line: &[u8]) -> Option<u32> {
        if let Some(kept) = &mut self.kept {
            if kept.text.len() + line.len() > KEPT_MAX {
                self.kept = None;
            } else {
                kept.text.extend_from_slice(line);
                kept.ends.push(kept.text.len() as u32);
            }
        }
        let before = self.before.as_ref()?;
        let at = (self.next..self.next + LOOK_AHEAD).find(|at| before.line(*at) == Some(line))?;
        self.next = at + 1;
        u32::try_from(at + 1).ok()
    }

    /// No further line is looked for.
    pub(crate) fn forget_before(&mut self) {
        self.before = None;
    }

    pub(crate) fn into_text(self) -> Option<Arc<FileText>> {
        self.kept.map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(before: &str, after: &str) -> Vec<Option<u32>> {
        let mut lines = Lines::following(None);
        for line in before.split_inclusive('\n') {
            assert_eq!(lines.read(line.as_bytes()), None);
        }
        let mut lines = Lines::following(lines.into_text());
        after.split_inclusive('\n').map(|line| lines.read(line.as_bytes())).collect()
    }

    #[test]
    fn lines_keep_their_numbers_around_a_change() {
        assert_eq!(numbers("a\nb\nc\n", "a\nx\nc\n"), [Some(1), None, Some(3)]);
        assert_eq!(numbers("a\nb\nc\n", "a\nx\ny\nb\nc\n"), [Some(1), None, None, Some(2), Some(3)]);
        assert_eq!(numbers("a\nb\nc\n", "c\n"), [Some(3)]);
        assert_eq!(numbers("a\nb", "a\nb\n"), [Some(1), None]);
        assert_eq!(numbers("a\n", "b\n"), [None]);
    }

    #[test]
    fn long_texts_are_not_kept() {
        let mut lines = Lines::following(None);
        let line = vec![b'a'; 1 << 20];
        for _ in 0..=KEPT_MAX >> 20 {
            lines.read(&line);
        }
        assert!(lines.into_text().is_none());
    }
}
