//! Which subscriber is bound to which external address (RFC 8158 events 14 and 15), from the events
//! about its ports and blocks: bound with the first one, released with the last one.
//!
//! Exact from the start of an instance on, when nothing is open. After lost events of a worker, and
//! for a sink that begins later, it is not known what a worker holds, until it has reported all its
//! live state: then what changed unseen is said. Meanwhile a binding that begins is said, and none
//! that ends: the subscriber may hold something that is not known. What was seen to end meanwhile
//! is released after the report, or with the run: the collector may know it as bound.

use std::collections::HashMap;
use std::collections::HashSet;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::UNKNOWN_HOST;
use nat::types::RealmId;
use nat::types::WorkerId;

use super::record::NatEvent;
use crate::store::hosts;
use crate::store::hosts::Hosts;
use crate::subscriber::Subscriber;

/// Names in memory before those without a pair are forgotten.
const HOSTS_MIN: usize = 1 << 16;

/// Realm, subscriber and external address.
pub(crate) type Pair = (u16, u32, u32);

/// Identifies what a worker reports: a mapping, a flow or a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Interval {
    pair: Pair,
    ports: (u16, u16, u16),
    remote: (u32, u16),
    protocol: u8,
    is_flow: bool,
}

impl Interval {
    fn of(event: &Event) -> Interval {
        Interval {
            pair: pair_of(event),
            ports: (event.internal_port, event.first_port, event.last_port),
            remote: (event.remote.to_bits(), event.remote_port),
            protocol: event.protocol.map_or(0, |protocol| protocol.number()),
            is_flow: matches!(event.kind, EventKind::FlowCreated | EventKind::FlowEnded),
        }
    }
}

fn pair_of(event: &Event) -> Pair {
    (event.realm.0, event.subscriber.to_bits(), event.external.to_bits())
}

fn is_begin(event: &Event) -> bool {
    matches!(
        event.kind,
        EventKind::MappingCreated | EventKind::StaticCreated | EventKind::FlowCreated | EventKind::BlockLeased
    )
}

/// What is known about the pairs of a worker.
#[derive(Debug)]
enum Held {
    /// How much each pair holds. As many entries as subscribers with state, each with few
    /// addresses.
    Known(HashMap<Pair, u32>),
    /// Events are missing. These pairs were bound before, or began since.
    Lost { bound: HashSet<Pair> },
    /// The worker is reporting all its live state: what it named and what began since, and how many
    /// it named. It takes memory for each mapping, for as long as the report takes.
    Reporting { bound: HashSet<Pair>, live: HashSet<Interval>, named: u32 },
}

/// The pairs that are bound.
#[derive(Debug, Default)]
struct Bound {
    /// How many workers hold something of each pair.
    workers: HashMap<Pair, u32>,
    /// Pairs that are not among them, and of which something was seen to end.
    ended: HashSet<Pair>,
}

#[derive(Debug, Default)]
pub(crate) struct Bindings {
    workers: HashMap<u8, Held>,
    bound: Bound,
    /// True if the instance was followed from its start.
    is_from_start: bool,
    /// Identifiers of IPv6 hosts in pairs: a number in events may mean another host later.
    hosts: Hosts,
}

/// A binding that began or ended.
pub(crate) type Change = (NatEvent, Pair);

impl Bindings {
    /// An instance starts: nothing is bound.
    pub(crate) fn begin(&mut self) {
        *self = Bindings { is_from_start: true, ..Bindings::default() };
    }

    /// As [`Bindings::apply`], of this subscriber.
    pub(crate) fn apply_of(&mut self, item: (WorkerId, &Event, Subscriber), changes: &mut Vec<Change>) {
        let (worker, event, subscriber) = item;
        match subscriber {
            Subscriber::Ipv4(_) => self.apply(worker, event, changes),
            Subscriber::Host(name) if event.kind.is_allocation() => {
                self.prune();
                let id = self.hosts.intern(name);
                self.apply(worker, &Event { subscriber: id.into(), ..*event }, changes);
            }
            Subscriber::Host(_) => self.apply(worker, event, changes),
            // Its number may be the identifier of another host.
            Subscriber::Unknown => self.apply(worker, &Event { subscriber: UNKNOWN_HOST, ..*event }, changes),
        }
    }

    /// The subscriber of a pair.
    pub(crate) fn subscriber(&self, (_, subscriber, _): Pair) -> Subscriber {
        hosts::subscriber_of(subscriber, |id| self.hosts.get(id).copied())
    }

    /// All pairs that are bound, or may be for the collector.
    pub(crate) fn all(&self) -> Vec<Pair> {
        let mut all: Vec<Pair> = self.bound.workers.keys().chain(&self.bound.ended).copied().collect();
        all.sort_unstable();
        all
    }

    /// The binding has ended with its run.
    pub(crate) fn forget(&mut self, realm: u16, subscriber: &Subscriber, external: u32) {
        let id = match subscriber {
            Subscriber::Ipv4(address) => Some(address.to_bits()),
            Subscriber::Host(name) => self.hosts.find(name),
            Subscriber::Unknown => None,
        };
        if let Some(id) = id {
            self.bound.workers.remove(&(realm, id, external));
            self.bound.ended.remove(&(realm, id, external));
        }
    }

    /// Forgets names without a pair, when there are many.
    fn prune(&mut self) {
        let Bound { workers, ended } = &self.bound;
        if self.hosts.len() < HOSTS_MIN.max(4 * (workers.len() + ended.len())) {
            return;
        }
        let mut used: HashSet<u32> = workers.keys().chain(ended).map(|(_, subscriber, _)| *subscriber).collect();
        for held in self.workers.values() {
            match held {
                Held::Known(counts) => used.extend(counts.keys().map(|pair| pair.1)),
                Held::Lost { bound } => used.extend(bound.iter().map(|pair| pair.1)),
                Held::Reporting { bound, live, .. } => {
                    used.extend(bound.iter().map(|pair| pair.1).chain(live.iter().map(|interval| interval.pair.1)));
                }
            }
        }
        self.hosts.retain(|id| used.contains(&id));
    }

    /// Adds what the event means for bindings to `changes`.
    pub(crate) fn apply(&mut self, worker: WorkerId, event: &Event, changes: &mut Vec<Change>) {
        let is_from_start = self.is_from_start;
        let held = self.workers.entry(worker.0).or_insert_with(|| match is_from_start {
            true => Held::Known(HashMap::new()),
            false => Held::Lost { bound: HashSet::new() },
        });
        match event.kind {
            // Lost records of this kind are about no allocation.
            EventKind::Gap if event.cause == Cause::NoAllocation => {}
            EventKind::Gap => lose(held),
            EventKind::SnapshotComplete => {
                if let Some((before, now)) = complete(held, event.amount) {
                    before.difference(&now).for_each(|pair| release(&mut self.bound, *pair, changes));
                    now.difference(&before).for_each(|pair| hold(&mut self.bound, *pair, changes));
                    // Another worker may hold something of such a pair.
                    if self.workers.values().all(|held| matches!(held, Held::Known(_))) {
                        changes.extend(self.bound.ended.drain().map(|pair| (NatEvent::AddressReleased, pair)));
                    }
                }
            }
            kind if kind.is_allocation() => match held {
                // It was counted when it began.
                Held::Known(_) if event.cause == Cause::LogOpened => {}
                Held::Known(counts) => match count(counts, event) {
                    Some(true) => hold(&mut self.bound, pair_of(event), changes),
                    Some(false) => release(&mut self.bound, pair_of(event), changes),
                    None => {}
                },
                Held::Lost { bound } if event.cause == Cause::LogOpened => {
                    let live = HashSet::from([Interval::of(event)]);
                    *held = Held::Reporting { bound: core::mem::take(bound), live, named: 1 };
                }
                Held::Lost { bound } => see(bound, event, (&mut self.bound, is_from_start), changes),
                Held::Reporting { bound, live, named } => {
                    let is_report = event.cause == Cause::LogOpened;
                    *named += u32::from(is_report);
                    if !is_report {
                        see(bound, event, (&mut self.bound, is_from_start), changes);
                    }
                    let interval = Interval::of(event);
                    if is_begin(event) {
                        live.insert(interval);
                    } else {
                        live.remove(&interval);
                    }
                }
            },
            _ => {}
        }
    }
}

/// Counts what a pair holds. True with its first, false with its last.
fn count(counts: &mut HashMap<Pair, u32>, event: &Event) -> Option<bool> {
    let pair = pair_of(event);
    if is_begin(event) {
        let count = counts.entry(pair).or_insert(0);
        *count += 1;
        return (*count == 1).then_some(true);
    }
    let count = counts.get_mut(&pair)?;
    *count -= 1;
    if *count > 0 {
        return None;
    }
    counts.remove(&pair);
    Some(false)
}

/// While not all is known: a pair that is not known to be bound begins, or the last of it may end.
fn see(known: &mut HashSet<Pair>, event: &Event, of: (&mut Bound, bool), changes: &mut Vec<Change>) {
    let (pair, (bound, is_from_start)) = (pair_of(event), of);
    if event.subscriber == UNKNOWN_HOST {
        return;
    }
    if is_begin(event) {
        if known.insert(pair) {
            hold(bound, pair, changes);
        }
    } else if !is_from_start && !bound.workers.contains_key(&pair) {
        // The collector may know it from an earlier connection.
        bound.ended.insert(pair);
    }
}

/// Events of the worker are missing.
fn lose(held: &mut Held) {
    let bound = match held {
        Held::Known(counts) => counts.keys().copied().collect(),
        Held::Lost { bound } | Held::Reporting { bound, .. } => core::mem::take(bound),
    };
    *held = Held::Lost { bound };
}

/// The worker has reported `amount` intervals. Returns what was bound before the loss, and what is.
fn complete(held: &mut Held, amount: u32) -> Option<(HashSet<Pair>, HashSet<Pair>)> {
    let (bound, live, named) = match held {
        Held::Known(_) => return None,
        Held::Lost { bound } => (core::mem::take(bound), HashSet::new(), 0),
        Held::Reporting { bound, live, named } => (core::mem::take(bound), core::mem::take(live), *named),
    };
    // Part of the report was lost, too, or this is the end of an earlier one.
    if named != amount {
        *held = Held::Lost { bound };
        return None;
    }
    let mut counts: HashMap<Pair, u32> = HashMap::new();
    live.iter().for_each(|interval| *counts.entry(interval.pair).or_insert(0) += 1);
    let now = counts.keys().copied().collect();
    *held = Held::Known(counts);
    Some((bound, now))
}

fn hold(bound: &mut Bound, pair: Pair, changes: &mut Vec<Change>) {
    let workers = bound.workers.entry(pair).or_insert(0);
    *workers += 1;
    if *workers == 1 {
        bound.ended.remove(&pair);
        changes.push((NatEvent::AddressBound, pair));
    }
}

fn release(bound: &mut Bound, pair: Pair, changes: &mut Vec<Change>) {
    let Some(workers) = bound.workers.get_mut(&pair) else { return };
    *workers -= 1;
    if *workers == 0 {
        bound.workers.remove(&pair);
        changes.push((NatEvent::AddressReleased, pair));
    }
}

/// The event with the addresses of a pair.
pub(crate) fn event_of(event: &Event, (realm, subscriber, external): Pair) -> Event {
    let (subscriber, external) = (subscriber.into(), external.into());
    let kind = EventKind::MappingCreated;
    Event { realm: RealmId(realm), subscriber, external, pool: event.pool, ..Event::new(kind, event.at) }
}

#[cfg(test)]
mod tests {
    use nat::Instant;

    use super::*;

    fn event(kind: EventKind, subscriber: u32, port: u16) -> Event {
        let (subscriber, external) = (subscriber.into(), 9.into());
        Event { subscriber, external, first_port: port, ..Event::new(kind, Instant::ORIGIN) }
    }

    fn say(bindings: &mut Bindings, worker: u8, event: &Event) -> Vec<(NatEvent, u32)> {
        let mut changes = Vec::new();
        bindings.apply(WorkerId(worker), event, &mut changes);
        changes.sort_unstable_by_key(|(_, pair)| *pair);
        changes.into_iter().map(|(nat_event, (_, subscriber, _))| (nat_event, subscriber)).collect()
    }

    fn report(subscriber: u32, port: u16) -> Event {
        event(EventKind::MappingCreated, subscriber, port).because(Cause::LogOpened)
    }

    fn completed(amount: u32) -> Event {
        Event { amount, ..event(EventKind::SnapshotComplete, 0, 0) }
    }

    #[test]
    fn a_report_says_what_changed_unseen() {
        use EventKind::*;
        let mut bindings = Bindings::default();
        bindings.begin();
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 1, 10)), [(NatEvent::AddressBound, 1)]);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 1, 11)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 2, 12)), [(NatEvent::AddressBound, 2)]);
        assert_eq!(say(&mut bindings, 1, &event(MappingCreated, 5, 13)), [(NatEvent::AddressBound, 5)]);
        // A loss that is about no allocation changes nothing; another one ends what is known.
        assert_eq!(say(&mut bindings, 0, &event(Gap, 0, 0).because(Cause::NoAllocation)), []);
        assert_eq!(say(&mut bindings, 0, &event(Gap, 0, 0)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 1, 10)), []);
        // The other worker lost nothing.
        assert_eq!(say(&mut bindings, 1, &event(MappingEnded, 5, 13)), [(NatEvent::AddressReleased, 5)]);
        // 2 ended and 3 began unseen; 4 begins and 3 ends during the report.
        assert_eq!(say(&mut bindings, 0, &report(1, 11)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 4, 14)), [(NatEvent::AddressBound, 4)]);
        assert_eq!(say(&mut bindings, 0, &report(4, 14)), []);
        assert_eq!(say(&mut bindings, 0, &report(3, 15)), []);
        assert_eq!(say(&mut bindings, 0, &report(6, 16)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 3, 15)), []);
        let changes = [(NatEvent::AddressReleased, 2), (NatEvent::AddressBound, 6)];
        assert_eq!(say(&mut bindings, 0, &completed(4)), changes);
        // From here on all is counted again.
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 1, 11)), [(NatEvent::AddressReleased, 1)]);
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 4, 14)), [(NatEvent::AddressReleased, 4)]);
    }

    #[test]
    fn a_report_with_lost_records_does_not_count() {
        let mut bindings = Bindings::default();
        bindings.begin();
        assert_eq!(say(&mut bindings, 0, &event(EventKind::MappingCreated, 1, 10)), [(NatEvent::AddressBound, 1)]);
        assert_eq!(say(&mut bindings, 0, &event(EventKind::Gap, 0, 0)), []);
        assert_eq!(say(&mut bindings, 0, &report(1, 10)), []);
        assert_eq!(say(&mut bindings, 0, &event(EventKind::Gap, 0, 0)), []);
        assert_eq!(say(&mut bindings, 0, &report(2, 11)), []);
        assert_eq!(say(&mut bindings, 0, &completed(2)), []);
        // The next one is whole: nothing is open any longer.
        assert_eq!(say(&mut bindings, 0, &completed(0)), [(NatEvent::AddressReleased, 1)]);
    }

    #[test]
    fn a_sink_that_begins_late_says_what_it_sees_begin() {
        use EventKind::*;
        let mut bindings = Bindings::default();
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 1, 10)), [(NatEvent::AddressBound, 1)]);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 1, 11)), []);
        assert_eq!(say(&mut bindings, 1, &event(MappingCreated, 1, 12)), [], "bound by another worker");
        // It may hold a mapping that the sink did not see.
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 1, 10)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 1, 11)), []);
        assert_eq!(say(&mut bindings, 1, &event(MappingEnded, 1, 12)), []);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, UNKNOWN_HOST.to_bits(), 13)), [], "whose?");
        // Reports know what it did not see, and what has ended.
        assert_eq!(say(&mut bindings, 0, &report(2, 20)), []);
        assert_eq!(say(&mut bindings, 0, &completed(1)), [(NatEvent::AddressBound, 2)]);
        assert_eq!(say(&mut bindings, 1, &completed(0)), [(NatEvent::AddressReleased, 1)]);
        assert_eq!(say(&mut bindings, 0, &event(MappingEnded, 2, 20)), [(NatEvent::AddressReleased, 2)]);
    }

    #[test]
    fn an_old_binding_that_ended_unseen_is_released() {
        use EventKind::*;
        let mut bindings = Bindings::default();
        // The collector knows 1, 2 and 3; 4 is new.
        for subscriber in [1, 2, 3] {
            assert_eq!(say(&mut bindings, 0, &event(MappingEnded, subscriber, 10)), []);
        }
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 4, 14)), [(NatEvent::AddressBound, 4)]);
        assert_eq!(say(&mut bindings, 0, &event(MappingCreated, 3, 15)), [(NatEvent::AddressBound, 3)]);
        // Another worker may hold something of them, until it has reported, too.
        assert_eq!(say(&mut bindings, 1, &event(MappingEnded, 5, 10)), []);
        assert_eq!(say(&mut bindings, 0, &report(1, 11)), []);
        assert_eq!(say(&mut bindings, 0, &report(3, 15)), []);
        assert_eq!(say(&mut bindings, 0, &report(4, 14)), []);
        assert_eq!(say(&mut bindings, 0, &completed(3)), [(NatEvent::AddressBound, 1)]);
        assert_eq!(bindings.all().iter().map(|pair| pair.1).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let released = [2, 5].map(|subscriber| (NatEvent::AddressReleased, subscriber));
        assert_eq!(say(&mut bindings, 1, &completed(0)), released);
        assert_eq!(bindings.all().iter().map(|pair| pair.1).collect::<Vec<_>>(), [1, 3, 4]);
    }
}
