//! Pages of the holders of an earlier time.
//!
//! A page is a search of its own, and meanwhile time passes and retention deletes segments. So a
//! cursor has the times in question, not words such as "1 h ago", and the last holder that was
//! shown, not a number of holders.

use core::cmp::Ordering;
use core::hash::Hasher;
use std::hash::DefaultHasher;

use cli::CliError;
use cli::Find;
use control::Fault;
use export::store::Holder;
use export::utc_text;

use crate::failure::Failure;
use crate::times;

/// The time in question, and where its page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The first moment, µs since 1970.
    pub(crate) from_us: u64,
    /// The last one.
    pub(crate) to_us: u64,
    /// The last holder of the page before.
    after: Option<Place>,
}

impl Scope {
    /// What the arguments ask. Times relative to now are resolved here and only here; those of a
    /// cursor come before those in words.
    pub(crate) fn of(arguments: &Find) -> Result<Scope, Failure> {
        let (at, from, to) = (&arguments.at, &arguments.from, &arguments.to);
        let scope = match (from, to) {
            (Some(from), Some(to)) => {
                Scope { from_us: times::parse("--from", from)?, to_us: times::parse("--to", to)?, after: None }
            }
            _ => {
                let at_us = times::parse("--at", at.as_deref().unwrap_or_default())?;
                Scope { from_us: at_us, to_us: at_us, after: None }
            }
        };
        if scope.to_us < scope.from_us {
            let fault = Fault::new("--to", "is before --from", "give the earlier time as --from");
            return Err(CliError::from(fault).into());
        }
        let Some(cursor) = &arguments.paging.cursor else { return Ok(scope) };
        let is_range = from.is_some();
        Scope::of_cursor(cursor).filter(|scope| is_range || scope.from_us == scope.to_us).ok_or_else(|| {
            let fault = Fault::new("--cursor", "is not from this list", "use that of the note");
            CliError::from(fault.seen(cursor.clone())).into()
        })
    }

    /// What a cursor continues; None if it is not one.
    pub(crate) fn of_cursor(cursor: &str) -> Option<Scope> {
        let mut parts = cursor.split('.');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let (from_us, to_us) = (next()?, next()?);
        let after = Place {
            since_us: next()?,
            external: next()?.try_into().ok()?,
            first_port: next()?.try_into().ok()?,
            rest: next()?,
        };
        let is_one = parts.next().is_none() && from_us <= to_us;
        is_one.then_some(Scope { from_us, to_us, after: Some(after) })
    }

    /// The time in words.
    pub(crate) fn when(&self, is_range: bool) -> String {
        let (from, to) = (utc_text(self.from_us), utc_text(self.to_us));
        if is_range { format!("from {from} to {to}") } else { format!("at {from}") }
    }

    /// Keeps the holders of the page with at most `limit`.
    pub(crate) fn cut(&self, limit: usize, holders: &mut Vec<Holder>) -> Cut {
        holders.sort_unstable_by(in_order);
        let begin = self.after.map_or(0, |after| holders.partition_point(|holder| !after.is_before(holder)));
        let count = holders.len();
        let end = begin.saturating_add(limit).min(count);
        holders.truncate(end);
        holders.drain(..begin);
        let last = holders.last().filter(|_| end < count).map(Place::of);
        let next = last.map(|Place { since_us, external, first_port, rest }| {
            format!("{:x}.{:x}.{since_us:x}.{external:x}.{first_port:x}.{rest:x}", self.from_us, self.to_us)
        });
        Cut { begin, end, count, next }
    }
}

/// Which holders a page has.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Holders before it.
    pub(crate) begin: usize,
    /// Holders before its end.
    pub(crate) end: usize,
    /// All holders.
    pub(crate) count: usize,
    /// The cursor of the next page; None: there is none.
    pub(crate) next: Option<String>,
}

/// The place of a holder among the others: the same in each search, also once it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    since_us: u64,
    external: u32,
    first_port: u16,
    /// Of what else distinguishes it from others.
    rest: u64,
}

impl Place {
    fn of(holder: &Holder) -> Place {
        let (since_us, external, first_port) = begin_of(holder);
        Place { since_us, external, first_port, rest: rest_of(holder) }
    }

    fn is_before(&self, holder: &Holder) -> bool {
        *self < Place::of(holder)
    }
}

fn begin_of(holder: &Holder) -> (u64, u32, u16) {
    (holder.since_us, holder.external.to_bits(), holder.first_port)
}

/// Not its end, and not what the log may learn of it later.
fn rest_of(holder: &Holder) -> u64 {
    let Holder { what, realm, subscriber, protocol, internal_port, last_port, remote, .. } = holder;
    let mut hasher = DefaultHasher::new();
    let words = format!("{what:?} {realm} {subscriber:?} {protocol:?} {internal_port:?} {last_port} {remote:?}");
    hasher.write(words.as_bytes());
    hasher.finish()
}

/// As their places, without the hash of holders that differ before it.
fn in_order(one: &Holder, other: &Holder) -> Ordering {
    let begins = begin_of(one).cmp(&begin_of(other));
    begins.then_with(|| rest_of(one).cmp(&rest_of(other)))
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use export::Subscriber;
    use export::store::Until;
    use export::store::What;

    use super::*;

    fn holder(since_us: u64, first_port: u16) -> Holder {
        Holder {
            since_us,
            until: Until::Open,
            what: What::Mapping,
            realm: 0,
            vrf: None,
            pool: None,
            pool_name: None,
            subscriber: Subscriber::Ipv4([100, 64, 0, 10].into()),
            protocol: None,
            internal_port: Some(5_000),
            external: Ipv4Addr::new(203, 0, 113, 1),
            first_port,
            last_port: first_port,
            remote: None,
            is_certain: true,
            is_since_exact: true,
        }
    }

    #[test]
    fn pages_have_each_holder_once_though_holders_end_between_them() {
        // Two of each moment; of two with the same port, the subscribers differ.
        let mut all: Vec<Holder> = (0..100).map(|n| holder(n / 2 * 1_000, 2_000 + (n % 4) as u16)).collect();
        let other = Subscriber::Ipv4([100, 64, 0, 11].into());
        all.push(Holder { subscriber: other, ..all[40].clone() });
        let mut expected = all.clone();
        expected.sort_unstable_by(in_order);
        let mut scope = Scope { from_us: 7, to_us: 60_000_000, after: None };
        let mut found = Vec::new();
        for page in 0.. {
            // Retention deletes the oldest that were shown, and what was shown ends.
            let mut now = all.clone();
            now.sort_unstable_by(in_order);
            now.drain(..page * 3);
            for holder in &mut now {
                holder.until = Until::Ended(60_000_000 - holder.since_us + page as u64);
            }
            let count = now.len();
            let cut = scope.cut(7, &mut now);
            assert_eq!((cut.count, cut.end - cut.begin), (count, now.len()));
            found.extend(now.into_iter().map(|holder| Holder { until: Until::Open, ..holder }));
            let Some(next) = cut.next else { break };
            let next = Scope::of_cursor(&next).unwrap();
            assert_eq!((next.from_us, next.to_us), (7, 60_000_000));
            scope = next;
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_last_holder_that_is_gone_still_says_where_to_go_on() {
        let scope = Scope { from_us: 0, to_us: 9, after: None };
        let mut first = vec![holder(1, 1), holder(2, 1), holder(3, 1)];
        let next = scope.cut(2, &mut first).next.unwrap();
        let mut then = vec![holder(3, 1), holder(4, 1)];
        let cut = Scope::of_cursor(&next).unwrap().cut(2, &mut then);
        assert_eq!((then, cut.next), (vec![holder(3, 1), holder(4, 1)], None));
    }

    #[test]
    fn what_is_no_cursor_is_not_taken_for_one() {
        for text in
            ["", "7", "x", "1.2.3.4.5", "2.1.3.4.5.6", "1.2.3.4.5.6.7", "1.2.3.4.10000.6", "1.2.3.100000000.5.6"]
        {
            assert_eq!(Scope::of_cursor(text), None, "{text}");
        }
        assert!(Scope::of_cursor("1.2.3.ffffffff.ffff.6").is_some());
    }
}
