//! Pages of the holders of an earlier time.
//!
//! A page is a search of its own, and meanwhile time passes and retention deletes segments. So a
//! cursor has the times in question, not words such as "1 h ago", and the last holder that was
//! shown, not a number of holders.

use core::cmp::Ordering;
use core::hash::Hasher;
use std::hash::DefaultHasher;

use api::PastTime;
use cli::Remote;
use control::Fault;
use export::store::Holder;

use crate::log;
use crate::times;
use crate::times::Time;

/// The time in question, and where its page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The time.
    pub(crate) time: Time,
    /// The last holder of the page before.
    after: Option<Place>,
    /// Hash of the rest of the question, which a cursor must not continue with another.
    question: u64,
}

impl Scope {
    /// What is asked. Times relative to now are resolved here and only here, and those of a cursor
    /// come before them. `prefix` is what the names of arguments begin with.
    pub(crate) fn of(
        question: &control::Find,
        remote: Option<Remote>,
        time: &PastTime,
        prefix: &str,
    ) -> Result<Scope, Fault> {
        let name = |word: &str| format!("{prefix}{word}");
        let (asked, texts) = match time {
            PastTime::At(at) => (times::read(&name("at"), at)?, [at, at]),
            PastTime::Between { from, to } => {
                let (from_us, to_us) = log::span_of((&name("from"), from), (&name("to"), to))?;
                (Time { from_us, to_us }, [from, to])
            }
        };
        let question_hash = hash_of(question, remote, time);
        let Some(cursor) = &question.cursor else {
            return Ok(Scope { time: asked, after: None, question: question_hash });
        };
        let remedy = "repeat the question of the first page, or omit it";
        let wrong = |problem: &str| Fault::new(name("cursor"), problem, remedy).seen(cursor.clone());
        let scope = Scope::of_cursor(cursor).ok_or_else(|| wrong("is not from a list of holders"))?;
        if scope.question != question_hash {
            return Err(wrong("is from another question"));
        }
        let ends = [(asked.from_us, scope.time.from_us), (asked.to_us, scope.time.to_us)];
        if ends.iter().zip(texts).any(|((asked, has), text)| asked != has && !times::is_relative(text)) {
            return Err(wrong("is from a question about another time"));
        }
        Ok(scope)
    }

    /// What a cursor continues; None if it is not one.
    fn of_cursor(cursor: &str) -> Option<Scope> {
        let mut parts = cursor.split('.');
        let mut next = || u64::from_str_radix(parts.next()?, 16).ok();
        let time = Time { from_us: next()?, to_us: next()? };
        let question = next()?;
        let after = Place {
            since_us: next()?,
            external: next()?.try_into().ok()?,
            first_port: next()?.try_into().ok()?,
            rest: next()?,
        };
        let is_one = parts.next().is_none() && time.from_us <= time.to_us;
        is_one.then_some(Scope { time, after: Some(after), question })
    }

    /// True if nothing was shown before.
    pub(crate) fn is_first(&self) -> bool {
        self.after.is_none()
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
            let Scope { time: Time { from_us, to_us }, question, .. } = self;
            format!("{from_us:x}.{to_us:x}.{question:x}.{since_us:x}.{external:x}.{first_port:x}.{rest:x}")
        });
        Cut { begin, end, count, next }
    }
}

/// Of what a cursor continues, without the time itself.
fn hash_of(question: &control::Find, remote: Option<Remote>, time: &PastTime) -> u64 {
    let mut hasher = DefaultHasher::new();
    let kind = if matches!(time, PastTime::At(_)) { "at" } else { "from" };
    let towards = remote.map(|remote| format!(" towards {remote}")).unwrap_or_default();
    hasher.write(format!("{kind} {}{towards}", question.subject()).as_bytes());
    hasher.finish()
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
            is_ms_shared: false,
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
        let mut scope = Scope { time: Time { from_us: 7, to_us: 60_000_000 }, after: None, question: 5 };
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
            assert_eq!((next.time, next.question), (scope.time, 5));
            scope = next;
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn a_last_holder_that_is_gone_still_says_where_to_go_on() {
        let scope = Scope { time: Time { from_us: 0, to_us: 9 }, after: None, question: 5 };
        let mut first = vec![holder(1, 1), holder(2, 1), holder(3, 1)];
        let next = scope.cut(2, &mut first).next.unwrap();
        let mut then = vec![holder(3, 1), holder(4, 1)];
        let cut = Scope::of_cursor(&next).unwrap().cut(2, &mut then);
        assert_eq!((then, cut.next), (vec![holder(3, 1), holder(4, 1)], None));
    }

    #[test]
    fn what_is_no_cursor_is_not_taken_for_one() {
        for text in [
            "",
            "7",
            "x",
            "1.2.3.4.5.6",
            "2.1.9.3.4.5.6",
            "1.2.9.3.4.5.6.7",
            "1.2.9.3.4.10000.6",
            "1.2.9.3.100000000.5.6",
        ] {
            assert_eq!(Scope::of_cursor(text), None, "{text}");
        }
        assert!(Scope::of_cursor("1.2.9.3.ffffffff.ffff.6").is_some());
    }

    #[test]
    fn a_cursor_continues_its_own_question_only() {
        let question = |address: &str, cursor: Option<String>| control::Find {
            address: address.parse().unwrap(),
            port: None,
            protocol: None,
            vrf: None,
            limit: None,
            cursor,
        };
        let at = |text: &str| PastTime::At(text.to_owned());
        let between = |from: &str, to: &str| PastTime::Between { from: from.to_owned(), to: to.to_owned() };
        let (one, two) = ("2026-05-01T00:00:01Z", "2026-05-01T00:00:02Z");
        let page = |time: &PastTime| {
            let scope = Scope::of(&question("203.0.113.1", None), None, time, "--").unwrap();
            (scope.time, scope.cut(1, &mut vec![holder(1, 1), holder(2, 1)]).next)
        };
        let of = |address: &str, time: &PastTime, cursor: &Option<String>| {
            let scope = Scope::of(&question(address, cursor.clone()), None, time, "--");
            scope.map(|scope| scope.time).map_err(|fault| fault.problem)
        };
        let towards = |cursor: &Option<String>, time: &PastTime| {
            let remote = "198.51.100.7:443".parse().ok();
            Scope::of(&question("203.0.113.1", cursor.clone()), remote, time, "--").map_err(|fault| fault.problem)
        };
        let (time, cursor) = page(&between(one, two));
        assert_eq!(of("203.0.113.1", &between(one, two), &cursor), Ok(time));
        assert_eq!(of("203.0.113.1", &between(one, "now"), &cursor), Ok(time), "now was then");
        let other = Err("is from another question".to_owned());
        assert_eq!(of("203.0.113.9", &between(one, two), &cursor), other);
        assert_eq!(towards(&cursor, &between(one, two)).map(|scope| scope.time), other);
        assert_eq!(of("203.0.113.1", &at(one), &cursor), other);
        let other_time = Err("is from a question about another time".to_owned());
        assert_eq!(of("203.0.113.1", &between(two, two), &cursor), other_time);
        let (time, cursor) = page(&at("1 h ago"));
        assert_eq!(of("203.0.113.1", &at("1 h ago"), &cursor), Ok(time));
        assert_eq!(of("203.0.113.1", &at(one), &cursor), other_time);
    }
}
