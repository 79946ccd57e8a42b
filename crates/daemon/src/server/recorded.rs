//! The lookups of a connection that the audit log has, and what their pages found.
//!
//! A list of several pages has two records: one with the first page, before it is sent, and one
//! with the number of all objects, before the last page is sent or when the client leaves.

use core::time::Duration;
use std::time::Instant;

/// A lookup as the audit log has it: action and subject.
pub(crate) type Lookup = (&'static str, String);

/// The subject of a list without a condition.
pub(crate) const WHOLE_LIST: &str = "all";
/// How long a whole list that a connection asks for again is the same lookup. SNMP reads the
/// subscribers every few seconds, and would hide the lookups of people.
const SAME_LIST: Duration = Duration::from_secs(60);
/// Lookups that a connection may have recorded and go on with.
const LOOKUPS_KEPT: usize = 4;

/// What a page of a lookup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) found: u64,
    /// There are more pages.
    pub(crate) is_open: bool,
}

impl Part {
    /// In the words of the audit log.
    pub(crate) fn text(self) -> String {
        let more = if self.is_open { " so far" } else { "" };
        match self.found {
            0 => format!("none{more}"),
            found => format!("found {found}{more}"),
        }
    }
}

#[derive(Debug)]
struct Known {
    lookup: Lookup,
    at: Instant,
    /// All pages since the first.
    all: Part,
    pages: u32,
    /// The audit log has the number of all.
    is_over: bool,
}

/// The latest lookups of a connection that are in the audit log.
#[derive(Debug, Default)]
pub(crate) struct Recorded(Vec<Known>);

impl Recorded {
    /// True if the audit log has it already. The next pages belong to the first, if this connection
    /// asked for it: any client can make up a cursor.
    pub(crate) fn covers(&self, lookup: &Lookup, goes_on: bool, now: Instant) -> bool {
        let known = self.0.iter().find(|known| known.lookup == *lookup);
        known.is_some_and(|known| goes_on || lookup.1 == WHOLE_LIST && now.duration_since(known.at) < SAME_LIST)
    }

    /// Remembers a lookup that has been recorded with its first page; without one, it has no pages.
    pub(crate) fn remember(&mut self, lookup: Lookup, part: Option<Part>, now: Instant) {
        self.0.retain(|known| known.lookup != lookup);
        let all = part.unwrap_or(Part { found: 0, is_open: false });
        self.0.insert(0, Known { lookup, at: now, all, pages: 1, is_over: !all.is_open });
        self.0.truncate(LOOKUPS_KEPT);
    }

    /// Adds a page to a lookup that is covered; returns all that was found, if it was the last page
    /// of several and no record says so yet. [`Recorded::end`] follows once one does.
    pub(crate) fn add(&mut self, lookup: &Lookup, goes_on: bool, part: Part) -> Option<Part> {
        let known = self.0.iter_mut().find(|known| known.lookup == *lookup)?;
        if goes_on {
            known.all = Part { found: known.all.found + part.found, ..part };
            known.pages += 1;
        } else {
            (known.all, known.pages) = (part, 1);
        }
        (!part.is_open && known.pages > 1 && !known.is_over).then_some(known.all)
    }

    /// A record says what was found in all.
    pub(crate) fn end(&mut self, lookup: &Lookup) {
        self.0.iter_mut().filter(|known| known.lookup == *lookup).for_each(|known| known.is_over = true);
    }

    /// The lookups of several pages whose client has left before the end.
    pub(crate) fn left(self) -> impl Iterator<Item = (Lookup, Part)> {
        let left = self.0.into_iter().filter(|known| known.pages > 1 && !known.is_over);
        left.map(|known| (known.lookup, Part { is_open: true, ..known.all }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(subject: &str) -> Lookup {
        ("show mappings", subject.to_owned())
    }

    const fn part(found: u64, is_open: bool) -> Part {
        Part { found, is_open }
    }

    #[test]
    fn what_a_connection_goes_on_with_is_recorded_once() {
        let (begun, mut recorded) = (Instant::now(), Recorded::default());
        let later = |seconds| begun + Duration::from_secs(seconds);
        let (whole, narrowed) = (lookup(WHOLE_LIST), lookup("{\"external_port\":7}"));
        assert!(!recorded.covers(&narrowed, true, begun), "a cursor that somebody made up");
        for lookup in [&whole, &narrowed] {
            assert!(!recorded.covers(lookup, false, begun));
            recorded.remember(lookup.clone(), Some(part(3, true)), begun);
            assert!(recorded.covers(lookup, true, later(300)), "its next page");
        }
        assert!(!recorded.covers(&narrowed, false, later(1)), "asked once more");
        assert!(recorded.covers(&whole, false, later(59)) && !recorded.covers(&whole, false, later(60)));
    }

    #[test]
    fn the_last_page_says_what_was_found_in_all() {
        let (now, mut recorded) = (Instant::now(), Recorded::default());
        let whole = lookup(WHOLE_LIST);
        recorded.remember(whole.clone(), Some(part(10, true)), now);
        assert_eq!(recorded.add(&whole, true, part(10, true)), None);
        assert_eq!(recorded.add(&whole, true, part(3, false)), Some(part(23, false)));
        recorded.end(&whole);
        // SNMP reads it again within a minute.
        assert_eq!(recorded.add(&whole, false, part(10, true)), None);
        assert_eq!(recorded.add(&whole, true, part(4, false)), None);
        assert_eq!(recorded.left().count(), 0);
    }

    #[test]
    fn a_client_that_leaves_between_two_pages_leaves_a_number() {
        let (now, mut recorded) = (Instant::now(), Recorded::default());
        for (subject, pages) in [("one page of many", 1), ("two of many", 2)] {
            recorded.remember(lookup(subject), Some(part(10, true)), now);
            (1..pages).for_each(|_| assert_eq!(recorded.add(&lookup(subject), true, part(7, true)), None));
        }
        recorded.remember(lookup("all of one"), Some(part(10, false)), now);
        recorded.remember(lookup("a trace"), None, now);
        assert_eq!(recorded.left().collect::<Vec<_>>(), [(lookup("two of many"), part(17, true))]);
        assert_eq!(part(17, true).text(), "found 17 so far");
    }
}
