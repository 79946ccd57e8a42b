//! What the log of the process says about pools without free ports: when a pool begins to refuse
//! mappings, and when it has stopped. At most a line a minute for each pool.
//!
//! A pool counts refusals for lack of a port together with those by a limit of the subscriber, and
//! a slice or a port of its own that a subscriber lacks counts as a port, too. So a pool that
//! refuses is only named if one of its addresses is full.

use std::collections::HashMap;

use control::count_text;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Shared;
use nat::Verdict;
use nat::types::PoolId;

use super::lists::fullest;
use super::log_watch::Episode;
use super::log_watch::Level;
use super::log_watch::Line;
use crate::instance::Instance;
use crate::mailbox::Snapshot;

/// What has not happened for so long is over. It is also the least time between two lines.
const OVER: Duration = Duration::from_secs(60);
/// Looks within which both counts of one refusal are seen: workers are read before pools.
const LOOKS: u64 = 2;

/// The counts at one moment.
struct Seen<'a> {
    now: Instant,
    /// Packets and requests without a free port.
    exhausted: u64,
    /// Those, and those that a limit of ports refused, by protocol.
    refused: [u64; Protocol::COUNT],
    /// Both by pool, with the pool's name.
    pools: Vec<(&'a str, u64)>,
    /// Whether the pool at a position has an address without a free port.
    is_full: &'a dyn Fn(usize) -> bool,
}

/// A count, and the look at which it last grew.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    last: u64,
    grew_at: Option<u64>,
}

impl Count {
    fn look(&mut self, look: u64, count: u64) {
        // A verdict may be reverted.
        if count > self.last {
            (self.last, self.grew_at) = (count, Some(look));
        }
    }

    fn grew_lately(&self, look: u64) -> bool {
        self.grew_at.is_some_and(|at| look - at < LOOKS)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    refused: Count,
    /// Its count two looks ago, and one look ago.
    before: [u64; 2],
    episode: Option<Episode>,
    said_at: Option<Instant>,
}

/// Follows the counts.
#[derive(Debug, Default)]
pub(super) struct PoolWatch {
    looks: u64,
    exhausted: Count,
    by_protocol: [Count; Protocol::COUNT],
    /// By name: numbers of pools change with the configuration.
    pools: HashMap<String, Known>,
}

impl PoolWatch {
    /// Looks at an instance; returns what there is to say.
    pub(super) fn look_at(&mut self, instance: &Instance, snapshots: &[Snapshot]) -> Vec<Line> {
        let shared = instance.shared();
        let sum = |of: &dyn Fn(&Snapshot) -> u64| snapshots.iter().map(of).sum::<u64>();
        let of = |verdict| sum(&|snapshot| snapshot.counters.of(verdict));
        let ids: Vec<PoolId> = shared.pools().map(|(id, _)| id).collect();
        let pools = shared.pools();
        let seen = Seen {
            now: instance.clock.now(),
            exhausted: of(Verdict::PortsExhausted),
            refused: Protocol::ALL.map(|protocol| sum(&|one| one.counters.ports_refused[protocol.index()])),
            pools: pools
                .map(|(id, pool)| (pool.name.as_str(), shared.counted_in_pool(id).refused_without_port))
                .collect(),
            is_full: &|position| ids.get(position).is_some_and(|id| is_full(&shared, *id)),
        };
        self.look(&seen)
    }

    fn look(&mut self, seen: &Seen<'_>) -> Vec<Line> {
        self.looks += 1;
        let look = self.looks;
        self.exhausted.look(look, seen.exhausted);
        self.by_protocol.iter_mut().zip(seen.refused).for_each(|(count, refused)| count.look(look, refused));
        for (name, refused) in &seen.pools {
            if !self.pools.contains_key(*name) {
                self.pools.insert((*name).to_owned(), Known::default());
            }
            if let Some(known) = self.pools.get_mut(*name) {
                known.before = [known.before[1], known.refused.last];
                known.refused.look(look, *refused);
            }
        }
        let is_exhausted = self.exhausted.grew_lately(look);
        let refusing = self.pools.values().filter(|known| known.refused.grew_lately(look)).count();
        let protocols = if refusing == 1 { self.protocols() } else { Vec::new() };
        let mut lines = Vec::new();
        for (position, (name, _)) in seen.pools.iter().enumerate() {
            let Some(known) = self.pools.get_mut(*name) else { continue };
            let refuses = is_exhausted && known.refused.grew_lately(look) && (seen.is_full)(position);
            lines.extend(known.follow(name, seen.now, refuses, &protocols));
        }
        self.pools.retain(|name, _| seen.pools.iter().any(|(known, _)| known == name));
        lines
    }

    /// The protocols with refusals.
    fn protocols(&self) -> Vec<&'static str> {
        let grown = Protocol::ALL.into_iter().zip(&self.by_protocol);
        grown.filter(|(_, count)| count.grew_lately(self.looks)).map(|(protocol, _)| protocol.name()).collect()
    }
}

impl Known {
    fn follow(&mut self, name: &str, now: Instant, refuses: bool, protocols: &[&str]) -> Option<Line> {
        match &mut self.episode {
            Some(episode) if refuses => {
                episode.last = now;
                None
            }
            Some(episode) if now.saturating_since(episode.last) >= OVER => {
                let Episode { began, last, before } = *episode;
                self.episode = None;
                self.said_at = Some(now);
                let count = control::counted(self.refused.last.saturating_sub(before), "refusal");
                let seconds = last.saturating_since(began).as_secs();
                let what = "for lack of a port, or by limits of subscribers";
                let text = format!("pool \"{name}\": no refusal for a minute, after {count} in {seconds} s {what}");
                Some((Level::Info, text))
            }
            None if refuses && self.said_at.is_none_or(|at| now.saturating_since(at) >= OVER) => {
                let before = self.before[0];
                self.episode = Some(Episode { began: now, last: now, before });
                self.said_at = Some(now);
                let protocols =
                    if protocols.is_empty() { String::new() } else { format!(" for {}", protocols.join(", ")) };
                let count = count_text(self.refused.last.saturating_sub(before));
                Some((
                    Level::Warn,
                    format!(
                        "pool \"{name}\": an address has no free port{protocols}, and new mappings are refused \
                         (ports_exhausted, {count} so far); add addresses or lower ports of [subscriber]; see \
                         natrix show pools --addresses, and natrix why for a packet"
                    ),
                ))
            }
            _ => None,
        }
    }
}

/// Whether an address of a pool has no free port of some protocol.
fn is_full(shared: &Shared, id: PoolId) -> bool {
    let own = shared.addresses().filter(|(_, slot)| slot.pool == id && slot.closed.is_none());
    own.map(|(index, _)| index).any(|index| {
        let numbers = |of: &dyn Fn(Protocol) -> u32| Protocol::ALL.map(|protocol| u64::from(of(protocol)));
        let used = numbers(&|protocol| shared.ports_used(index, protocol));
        let total = numbers(&|protocol| shared.ports_there(index, protocol));
        fullest(used, total, u64::from(shared.ports_leased(index)) + u64::from(shared.ports_unleasable(index))) >= 1.0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of the pools `a` and `b`.
    #[derive(Clone, Copy, Default)]
    struct Counts {
        exhausted: u64,
        udp: u64,
        pools: [u64; 2],
        full: [bool; 2],
    }

    fn look(watch: &mut PoolWatch, seconds: u64, counts: Counts) -> Vec<Line> {
        let Counts { exhausted, udp, pools: [a, b], full } = counts;
        watch.look(&Seen {
            now: Instant::from_micros(seconds * 1_000_000),
            exhausted,
            refused: [udp, 0, 0],
            pools: vec![("a", a), ("b", b)],
            is_full: &|position| full[position],
        })
    }

    #[test]
    fn a_pool_without_ports_is_said_when_it_begins_and_ends() {
        let mut watch = PoolWatch::default();
        assert_eq!(look(&mut watch, 0, Counts::default()), []);
        let at = |count| Counts { exhausted: count, udp: count, pools: [count, 0], full: [true, false] };
        let lines = look(&mut watch, 1, at(3));
        assert_eq!((lines.len(), lines[0].0), (1, Level::Warn), "{lines:?}");
        let begins = "pool \"a\": an address has no free port for udp, and new mappings are refused \
                      (ports_exhausted, 3 so far); add addresses";
        assert!(lines[0].1.starts_with(begins), "{lines:?}");
        for word in ["natrix show pools --addresses", "natrix why"] {
            assert!(lines[0].1.contains(word), "{lines:?}");
        }
        (2..=100).for_each(|second| assert_eq!(look(&mut watch, second, at(3 + second)), []));
        // The last refusals were seen at 100 s, and may be seen at the look after that.
        (101..=160).for_each(|second| assert_eq!(look(&mut watch, second, at(103)), []));
        let lines = look(&mut watch, 161, at(103));
        let ends = "pool \"a\": no refusal for a minute, after 103 refusals in 100 s for lack of a port, or by limits \
                    of subscribers";
        assert_eq!(lines, [(Level::Info, ends.to_owned())]);
        assert_eq!(look(&mut watch, 162, at(103)), []);
    }

    #[test]
    fn a_pool_has_at_most_a_line_a_minute() {
        let mut watch = PoolWatch::default();
        let mut said = Vec::new();
        let mut count = 0;
        for second in 0..3_600 {
            // A refusal every 65 s.
            count += u64::from(second % 65 == 0);
            let counts = Counts { exhausted: count, udp: count, pools: [count, 0], full: [true, false] };
            said.extend(look(&mut watch, second, counts).iter().map(|_| second));
        }
        assert!(said.len() > 10 && said.windows(2).all(|pair| pair[1] - pair[0] >= 60), "{said:?}");
    }

    #[test]
    fn a_limit_of_a_subscriber_is_no_lack_of_ports() {
        let mut watch = PoolWatch::default();
        look(&mut watch, 0, Counts::default());
        let limited = Counts { udp: 5, pools: [0, 5], ..Counts::default() };
        assert_eq!(look(&mut watch, 1, limited), []);
        // Nor is its own slice, or a port that it waits for, although the verdict is the same.
        let slice = Counts { exhausted: 1, udp: 6, pools: [0, 6], ..Counts::default() };
        assert_eq!(look(&mut watch, 2, slice), []);
        // At the same time another pool is full.
        let both = Counts { exhausted: 2, udp: 11, pools: [2, 9], full: [true, false] };
        let lines = look(&mut watch, 3, both);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].1.starts_with("pool \"a\": an address has no free port, and"),
            "of which protocol is not known: {lines:?}"
        );
        // Then both are.
        let both = Counts { exhausted: 4, udp: 14, pools: [4, 10], full: [true, true] };
        assert_eq!(look(&mut watch, 4, both).len(), 1, "b alone: a has its line");
    }

    #[test]
    fn a_refusal_between_two_readings_is_seen() {
        let mut watch = PoolWatch::default();
        look(&mut watch, 0, Counts::default());
        // The worker was read before it refused, and the pool after.
        let full = [true, false];
        assert_eq!(look(&mut watch, 1, Counts { pools: [1, 0], full, ..Counts::default() }), []);
        let lines = look(&mut watch, 2, Counts { exhausted: 1, udp: 1, pools: [1, 0], full });
        assert!(lines.len() == 1 && lines[0].1.contains("ports_exhausted, 1 so far"), "{lines:?}");
    }
}
