//! Events become intervals: the pairing of starts with ends, and what is missing between them.

use std::collections::BTreeMap;
use std::collections::HashSet;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::HostNumber;

use super::codec::Cursor;
use super::codec::put_varint;
use super::hosts::HostPrefix;
use super::hosts::Hosts;
use super::hosts::NameTable;
use super::journal::put_event;
use super::open::Numbers;
use super::open::Table;
use super::row::End;
use super::row::ROUNDED_US;
use super::row::Row;
use super::row::What;

/// Sequence numbers without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The worker.
    pub worker: u8,
    /// First missing number.
    pub first: u64,
    /// How many are missing.
    pub count: u64,
    /// The last record before, by the boot's clock in µs.
    pub from_us: u64,
    /// The first record after.
    pub until_us: u64,
    /// `NoAllocation` if no allocation or end is among them, such as lost refusals: the gap changes
    /// no answer.
    pub cause: Cause,
}

/// What a stretch of records covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Every record until `covered_us` is here or before. Times are of the boot's clock in µs.
    pub(crate) from_us: u64,
    pub(crate) covered_us: u64,
    /// Times of the earliest and the latest record, which may be outside the above.
    pub(crate) earliest_us: u64,
    pub(crate) latest_us: u64,
    /// Each worker with the first and last sequence number; the last one is smaller where there was
    /// none.
    pub(crate) workers: Vec<(u8, u64, u64)>,
    pub(crate) gaps: Vec<Gap>,
    /// Periods in which a lost record may be the answer, sorted and apart from each other.
    pub(crate) uncertain: Vec<(u64, u64)>,
    /// True if the last of these periods has not ended.
    pub(crate) is_still_uncertain: bool,
    /// Mappings (also static ones and flows) and leases that began.
    pub(crate) mappings: u64,
    pub(crate) leases: u64,
    /// Records that are no interval.
    pub(crate) others: u64,
    /// Which worker has recorded, and when, all mappings that kept their ports when a configuration
    /// was adopted: worker, number of the configuration, time.
    pub(crate) recorded: Vec<(u8, u32, u64)>,
}

impl Coverage {
    /// Of nothing yet.
    fn begin(at_us: u64) -> Coverage {
        Coverage { from_us: at_us, covered_us: at_us, earliest_us: at_us, latest_us: at_us, ..Coverage::default() }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for number in [self.from_us, self.covered_us, self.earliest_us, self.latest_us] {
            put_varint(out, number);
        }
        for number in [self.mappings, self.leases, self.others] {
            put_varint(out, number);
        }
        out.push(u8::from(self.is_still_uncertain));
        put_varint(out, self.workers.len() as u64);
        for (worker, first, last) in &self.workers {
            out.push(*worker);
            put_varint(out, *first);
            put_varint(out, *last);
        }
        put_varint(out, self.gaps.len() as u64);
        for gap in &self.gaps {
            out.push(gap.worker);
            for number in [gap.first, gap.count, gap.from_us, gap.until_us] {
                put_varint(out, number);
            }
        }
        put_varint(out, self.uncertain.len() as u64);
        for (from, until) in &self.uncertain {
            put_varint(out, *from);
            put_varint(out, *until);
        }
        let is_minor = |place: &usize| self.gaps[*place].cause == Cause::NoAllocation;
        let minor: Vec<usize> = (0..self.gaps.len()).filter(is_minor).collect();
        // Without it, earlier versions can read it, too.
        if !self.recorded.is_empty() || !minor.is_empty() {
            put_varint(out, self.recorded.len() as u64);
        }
        for (worker, configuration, at_us) in &self.recorded {
            out.push(*worker);
            put_varint(out, u64::from(*configuration));
            put_varint(out, *at_us);
        }
        // Earlier versions ignore what follows.
        if !minor.is_empty() {
            put_varint(out, minor.len() as u64);
        }
        minor.iter().for_each(|place| put_varint(out, *place as u64));
    }

    pub(crate) fn take(input: &mut Cursor<'_>) -> Option<Coverage> {
        let mut coverage = Coverage {
            from_us: input.varint()?,
            covered_us: input.varint()?,
            earliest_us: input.varint()?,
            latest_us: input.varint()?,
            mappings: input.varint()?,
            leases: input.varint()?,
            others: input.varint()?,
            is_still_uncertain: input.u8()? != 0,
            ..Coverage::default()
        };
        for _ in 0..input.count(3)? {
            coverage.workers.push((input.u8()?, input.varint()?, input.varint()?));
        }
        for _ in 0..input.count(5)? {
            coverage.gaps.push(Gap {
                worker: input.u8()?,
                first: input.varint()?,
                count: input.varint()?,
                from_us: input.varint()?,
                until_us: input.varint()?,
                cause: Cause::None,
            });
        }
        for _ in 0..input.count(2)? {
            coverage.uncertain.push((input.varint()?, input.varint()?));
        }
        if !input.is_empty() {
            for _ in 0..input.count(3)? {
                coverage.recorded.push((input.u8()?, input.number()?, input.varint()?));
            }
        }
        if !input.is_empty() {
            for _ in 0..input.count(1)? {
                let place = usize::try_from(input.varint()?).ok()?;
                coverage.gaps.get_mut(place)?.cause = Cause::NoAllocation;
            }
        }
        Some(coverage)
    }

    /// Records in gaps.
    pub(crate) fn lost(&self) -> u64 {
        self.gaps.iter().fold(0, |sum, gap| sum.saturating_add(gap.count))
    }

    /// Appends the coverage of the records that follow these.
    pub(crate) fn join(&mut self, next: &Coverage) {
        self.covered_us = next.covered_us;
        self.earliest_us = self.earliest_us.min(next.earliest_us);
        self.latest_us = self.latest_us.max(next.latest_us);
        for (worker, first, last) in &next.workers {
            match self.workers.iter_mut().find(|known| known.0 == *worker) {
                Some(known) => known.2 = *last,
                None => self.workers.push((*worker, *first, *last)),
            }
        }
        self.gaps.extend_from_slice(&next.gaps);
        self.uncertain.extend_from_slice(&next.uncertain);
        self.uncertain = union(core::mem::take(&mut self.uncertain));
        self.is_still_uncertain = next.is_still_uncertain;
        self.recorded.extend_from_slice(&next.recorded);
        self.mappings += next.mappings;
        self.leases += next.leases;
        self.others += next.others;
    }
}

/// Joins periods that touch.
pub(crate) fn union(mut periods: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    periods.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (from, until) in periods {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// Identifies an interval among all that are open. A mapping may become static while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key(u64, u64, u64);

impl Numbers for Key {
    #[inline]
    fn numbers(&self) -> [u64; 3] {
        [self.0, self.1, self.2]
    }

    #[inline]
    fn from_numbers([one, two, three]: [u64; 3]) -> Key {
        Key(one, two, three)
    }
}

impl Numbers for Open {
    #[inline]
    fn numbers(&self) -> [u64; 3] {
        let flags = u64::from(self.worker) | (self.what as u64) << 8 | u64::from(self.is_start_rounded) << 16;
        [self.start_us, self.seen_us, flags]
    }

    #[inline]
    fn from_numbers([start_us, seen_us, flags]: [u64; 3]) -> Open {
        let what = What::ALL[(flags >> 8 & 3) as usize];
        Open { start_us, seen_us, worker: flags as u8, what, is_start_rounded: flags & 1 << 16 != 0 }
    }
}

impl Key {
    #[inline]
    fn of(row: &Row) -> Key {
        let what = if row.what == What::Static { What::Mapping } else { row.what };
        let protocol = row.protocol.map_or(0, |protocol| protocol.index() as u64 + 1);
        Key(
            row.endpoint() << 16 | u64::from(row.realm),
            u64::from(row.subscriber) << 32 | u64::from(row.internal_port) << 16 | u64::from(row.last_port),
            u64::from(row.remote) << 32 | u64::from(row.remote_port) << 16 | (what as u64) << 8 | protocol,
        )
    }

    fn subscriber(self) -> u32 {
        (self.1 >> 32) as u32
    }

    fn row(self, open: &Open) -> Row {
        let Key(one, two, three) = self;
        Row {
            start: open.start_us / 1_000,
            end: (open.seen_us / 1_000).max(open.start_us / 1_000),
            external: (one >> 32) as u32,
            subscriber: (two >> 32) as u32,
            remote: (three >> 32) as u32,
            first_port: (one >> 16) as u16,
            last_port: two as u16,
            internal_port: (two >> 16) as u16,
            remote_port: (three >> 16) as u16,
            realm: one as u16,
            what: open.what,
            protocol: (three & 3).checked_sub(1).and_then(|index| nat::Protocol::from_index(index as usize)),
            until: End::Open,
            is_start_rounded: open.is_start_rounded,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Open {
    start_us: u64,
    /// When a record last said that it is open.
    seen_us: u64,
    worker: u8,
    what: What,
    is_start_rounded: bool,
}

impl Open {
    /// The latest time at which it can have begun.
    fn latest_start_us(&self) -> u64 {
        self.start_us.saturating_add(if self.is_start_rounded { ROUNDED_US } else { 0 })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Worker {
    /// The sequence number that must come next.
    next: u64,
    /// The first one of this window; 0 before there is one.
    first: u64,
    /// Time of its last record.
    last_us: u64,
    uncertain_since: Option<u64>,
    /// A report of all live state: its first record's time and its number of records.
    report_first: Option<u64>,
    report_count: u64,
}

/// The worker of an interval that an earlier segment has.
const UNKNOWN: u8 = u8::MAX;

/// Rows that a buffer may have place for, for each that was in it.
const SPARE_ROWS_FACTOR: usize = 4;

/// Which intervals to keep; all others are skipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) external: Option<u32>,
    pub(crate) subscriber: Option<u32>,
    pub(crate) host: Option<HostPrefix>,
}

impl Wanted {
    fn matches(&self, row: &Row, hosts: &Hosts) -> bool {
        // A subscriber may be one behind a softwire.
        let is_of = |name: &HostName| {
            let is_inner = name.inner.is_some() && name.inner == self.subscriber;
            is_inner || self.host.is_some_and(|host| host.overlaps(name))
        };
        self.external == Some(row.external)
            || self.subscriber == Some(row.subscriber)
            || (HostNumber(row.subscriber).is_ipv6() && hosts.get(row.subscriber).is_some_and(is_of))
    }
}

/// The intervals of a window, and what it covers.
#[derive(Debug, Default)]
pub(crate) struct Window {
    pub(crate) rows: Vec<Row>,
    pub(crate) others: Vec<u8>,
    /// Names of IPv6 hosts.
    pub(crate) names: NameTable,
    pub(crate) coverage: Coverage,
}

/// Pairs starts with ends.
#[derive(Debug)]
pub(crate) struct Builder {
    open: Table<Key, Open>,
    window: Window,
    workers: BTreeMap<u8, Worker>,
    wanted: Option<Wanted>,
    hosts: Hosts,
    /// Names that the window recorded.
    named: usize,
    has_gaps: bool,
    /// True if it is not known which worker reported which interval.
    is_resumed: bool,
    boot_from_us: u64,
    /// Time before this window of something that only this window has.
    reaches_back: Option<u64>,
    /// Memory for the rows of the next window.
    spare: Vec<Row>,
}

impl Builder {
    /// A builder for a boot that begins at `from_us` of its clock, when nothing is open.
    pub(crate) fn new(from_us: u64, wanted: Option<Wanted>) -> Builder {
        let coverage = Coverage::begin(from_us);
        Builder {
            open: Table::new(),
            window: Window { coverage, ..Window::default() },
            workers: BTreeMap::new(),
            wanted,
            hosts: Hosts::new(),
            named: 0,
            has_gaps: false,
            is_resumed: false,
            boot_from_us: from_us,
            reaches_back: None,
            spare: Vec::new(),
        }
    }

    /// Continues after a segment of this coverage, which ended with these open intervals. If it
    /// `is_damaged`, others may have been open, too: that is a gap since the segment began.
    pub(crate) fn resume(
        &mut self,
        before: &Coverage,
        open: impl Iterator<Item = Row>,
        names: &NameTable,
        is_damaged: bool,
    ) {
        self.hosts.resume(names);
        for row in open {
            if self.wanted.is_some_and(|wanted| !wanted.matches(&row, &self.hosts)) {
                continue;
            }
            let Row { start, end, what, is_start_rounded, .. } = row;
            let (start_us, seen_us) = (start.saturating_mul(1_000), end.saturating_mul(1_000));
            let open = Open { start_us, seen_us, worker: UNKNOWN, what, is_start_rounded };
            self.open.insert(Key::of(&row), open);
        }
        for (worker, _, last) in &before.workers {
            let since_us = if is_damaged { before.from_us } else { before.covered_us };
            let uncertain_since = (is_damaged || before.is_still_uncertain).then_some(since_us);
            let next = last.saturating_add(1);
            let known = Worker { next, last_us: before.covered_us, uncertain_since, ..Worker::default() };
            self.workers.insert(*worker, known);
        }
        (self.has_gaps, self.is_resumed) = (true, true);
        self.window.coverage = Coverage::begin(before.covered_us);
    }

    /// Intervals of the window, open and ended: what a segment would have.
    pub(crate) fn rows(&self) -> usize {
        self.window.rows.len() + self.open.len()
    }

    /// Intervals and other records that this window adds.
    pub(crate) fn weight(&self) -> usize {
        self.window.rows.len() + self.window.others.len() / 32 + self.named / 2
    }

    /// Gaps of the window, and records in them.
    pub(crate) fn gaps(&self) -> (u64, u64) {
        (self.window.coverage.gaps.len() as u64, self.window.coverage.lost())
    }

    pub(crate) fn covered_us(&self) -> u64 {
        self.window.coverage.covered_us
    }

    pub(crate) fn cover(&mut self, covered_us: u64) {
        self.window.coverage.covered_us = self.window.coverage.covered_us.max(covered_us);
    }

    /// As [`Builder::cover`], when all records of all workers before this time were taken: whatever
    /// turns out to be missing was lost later.
    pub(crate) fn cover_all(&mut self, covered_us: u64) {
        self.cover(covered_us);
        self.boot_from_us = self.boot_from_us.max(covered_us);
        self.workers.values_mut().for_each(|state| state.last_us = state.last_us.max(covered_us));
    }

    /// The sequence number that must come next of a worker.
    pub(crate) fn next_of(&self, worker: u8) -> u64 {
        self.workers.get(&worker).map_or(1, |state| state.next)
    }

    /// A gap of this many records that come next of a worker, noticed at this time or later.
    pub(crate) fn gap_of(&self, worker: u8, amount: u32, at_us: u64) -> Event {
        let from_us = self.workers.get(&worker).map_or(self.boot_from_us, |state| state.last_us);
        let at = nat::Instant::from_micros(at_us.max(from_us));
        Event { sequence: self.next_of(worker), amount, ..Event::new(EventKind::Gap, at) }
    }

    /// Requests the memory that an event which comes soon will need.
    #[inline]
    pub(crate) fn prefetch(&self, event: &Event) {
        if let Some((what, _)) = What::of(event.kind) {
            self.open.prefetch(&Key::of(&Row::of_event(what, event)));
        }
    }

    /// A period before this window that a late record or a gap in this one makes uncertain.
    pub(crate) fn take_reach_back(&mut self) -> Option<(u64, u64)> {
        Some((self.reaches_back.take()?, self.window.coverage.from_us))
    }

    /// As [`Builder::apply`], for an event whose IPv6 host is named with it.
    pub(crate) fn apply_named(&mut self, worker: u8, event: &Event, name: HostName) -> bool {
        let id = self.hosts.intern(name);
        self.apply_known(worker, &Event { subscriber: id.into(), ..*event })
    }

    /// Takes the next event of a worker. Returns false if it was taken before.
    #[inline]
    pub(crate) fn apply(&mut self, worker: u8, event: &Event) -> bool {
        if HostNumber::from(event.subscriber).is_ipv6() {
            return self.apply_of_host(worker, event);
        }
        self.apply_known(worker, event)
    }

    #[cold]
    fn apply_of_host(&mut self, worker: u8, event: &Event) -> bool {
        // A name after missing records is known, but none before.
        let next = self.workers.get(&worker).map_or(1, |state| state.next);
        if event.sequence < next {
            return false;
        }
        if event.sequence > next {
            self.hosts.forget(worker);
        }
        if event.kind == EventKind::HostNamed {
            self.hosts.name(worker, event);
            self.named += 1;
            // A gap before it is found by its number; names stay.
            return self.apply_known(worker, event);
        }
        let event = self.hosts.with_identifier(event);
        self.apply_known(worker, &event)
    }

    #[inline]
    fn apply_known(&mut self, worker: u8, event: &Event) -> bool {
        let at_us = event.at.as_micros();
        let boot_from_us = self.boot_from_us;
        let fresh = || Worker { next: 1, last_us: boot_from_us, ..Worker::default() };
        let state = self.workers.entry(worker).or_insert_with(fresh);
        if event.sequence < state.next {
            return false;
        }
        let (missing, from_us) = (state.next..event.sequence, state.last_us);
        let is_gap = event.kind == EventKind::Gap;
        let amount = if is_gap { u64::from(event.amount).max(1) } else { 1 };
        state.next = event.sequence.saturating_add(amount);
        if state.first == 0 {
            state.first = if missing.is_empty() { event.sequence } else { missing.start };
        }
        state.last_us = state.last_us.max(at_us);
        let coverage = &mut self.window.coverage;
        coverage.earliest_us = coverage.earliest_us.min(at_us);
        coverage.latest_us = coverage.latest_us.max(at_us);
        let changed_from_us = if is_gap || !missing.is_empty() { from_us.min(at_us) } else { at_us };
        if changed_from_us < coverage.from_us {
            let known = self.reaches_back.unwrap_or(u64::MAX);
            self.reaches_back = Some(known.min(changed_from_us));
        }
        if !missing.is_empty() {
            if !HostNumber::from(event.subscriber).is_ipv6() {
                self.hosts.forget(worker);
            }
            let count = missing.end - missing.start;
            self.lose(
                worker,
                Gap { worker, first: missing.start, count, from_us, until_us: at_us, cause: Cause::None },
            );
        }
        match event.kind {
            EventKind::Gap => {
                let cause = if event.cause == Cause::NoAllocation { event.cause } else { Cause::None };
                let gap = Gap { worker, first: event.sequence, count: amount, from_us, until_us: at_us, cause };
                if cause == Cause::NoAllocation {
                    // No holding is affected.
                    self.window.coverage.gaps.push(gap);
                } else {
                    self.hosts.forget(worker);
                    self.lose(worker, gap);
                }
            }
            EventKind::SnapshotComplete => self.complete(worker, event),
            EventKind::HostNamed => {}
            EventKind::ConfigurationRecorded => {
                self.window.coverage.recorded.push((worker, event.amount, at_us));
                // One that has not recorded anything yet may use the formulas before.
                for other in 0..event.first_port.min(u16::from(UNKNOWN)) {
                    self.workers.entry(other as u8).or_insert_with(fresh);
                }
                self.other(worker, event);
            }
            kind => match What::of(kind) {
                Some((what, is_begin)) => self.allocation(worker, what, is_begin, event),
                None => self.other(worker, event),
            },
        }
        true
    }

    fn other(&mut self, worker: u8, event: &Event) {
        self.window.coverage.others += 1;
        if self.wanted.is_none() {
            let out = &mut self.window.others;
            out.push(worker);
            put_varint(out, event.sequence);
            put_event(out, event, &mut 0);
        }
    }

    fn lose(&mut self, worker: u8, gap: Gap) {
        self.has_gaps = true;
        self.window.coverage.gaps.push(gap);
        if let Some(state) = self.workers.get_mut(&worker) {
            state.uncertain_since.get_or_insert(gap.from_us);
            (state.report_first, state.report_count) = (None, 0);
        }
        // Any worker may have reported what is open: wait for all of them.
        if self.is_resumed {
            self.workers.values_mut().for_each(|state| {
                state.uncertain_since.get_or_insert(gap.from_us);
            });
        }
    }

    /// A worker has reported all that is open. What it did not name has ended without a record.
    fn complete(&mut self, worker: u8, event: &Event) {
        let at_us = event.at.as_micros();
        let Some(state) = self.workers.get_mut(&worker) else { return };
        let first = state.report_first.take().unwrap_or(at_us);
        let is_whole = core::mem::take(&mut state.report_count) == u64::from(event.amount);
        if is_whole && let Some(since) = state.uncertain_since.take() {
            self.window.coverage.uncertain.push((since, at_us));
            // Those of an unknown worker are lost when all workers have reported.
            let is_last = self.workers.values().all(|state| state.uncertain_since.is_none());
            let is_lost = |open: &Open| match open.worker {
                UNKNOWN => is_last,
                of => of == worker && open.seen_us < first,
            };
            let lost: Vec<Key> = self.open.iter().filter(|(_, open)| is_lost(open)).map(|(key, _)| key).collect();
            for key in lost {
                if let Some(open) = self.open.remove(&key) {
                    self.window.rows.push(ended(key.row(&open), at_us, End::Lost));
                }
            }
        }
        self.other(worker, event);
    }

    #[inline]
    fn allocation(&mut self, worker: u8, what: What, is_begin: bool, event: &Event) {
        let at_us = event.at.as_micros();
        let row = Row::of_event(what, event);
        let is_report = is_begin && event.cause == Cause::LogOpened;
        if is_report && let Some(state) = self.workers.get_mut(&worker) {
            state.report_first.get_or_insert(at_us);
            state.report_count += 1;
        }
        if self.wanted.is_some_and(|wanted| !wanted.matches(&row, &self.hosts)) {
            return;
        }
        // The age in an event is in whole seconds.
        let not_before_us = at_us.saturating_sub((u64::from(event.amount) + 1) * 1_000_000);
        let not_after_us = at_us.min(not_before_us.saturating_add(ROUNDED_US));
        let key = Key::of(&row);
        let mut new = Open { start_us: at_us, seen_us: at_us, worker, what, is_start_rounded: false };
        if is_begin {
            if is_report {
                if let Some(known) = self.open.get(&key)
                    && not_before_us <= known.latest_start_us()
                {
                    self.open.insert(key, Open { seen_us: at_us, worker, ..known });
                    return;
                }
                (new.start_us, new.is_start_rounded) = (not_before_us, true);
            } else if event.cause == Cause::Configuration && event.kind == EventKind::MappingCreated {
                // Older than the change since which no formula has its port.
                (new.start_us, new.is_start_rounded) = (not_before_us, true);
            }
            match what {
                What::Block => self.window.coverage.leases += 1,
                _ => self.window.coverage.mappings += 1,
            }
            if let Some(known) = self.open.insert(key, new) {
                let ended_us = if is_report { not_after_us } else { at_us };
                self.window.rows.push(ended(key.row(&known), ended_us, End::Lost));
            }
            return;
        }
        match self.open.remove(&key) {
            // A known start that is older than the age belongs to an earlier interval.
            Some(known) if !self.has_gaps || not_before_us <= known.latest_start_us() => {
                self.window.rows.push(ended(key.row(&known), at_us, End::Exact));
            }
            known => {
                if let Some(known) = known {
                    self.window.rows.push(ended(key.row(&known), not_after_us, End::Lost));
                }
                (new.start_us, new.is_start_rounded) = (not_before_us, true);
                self.window.rows.push(ended(key.row(&new), at_us, End::Exact));
            }
        }
    }

    /// Drops ended intervals, and what is known about single gaps: [`Builder::cut`] still has the
    /// periods that they make uncertain.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Row) -> bool) {
        self.window.rows.retain(keep);
        self.window.coverage.gaps.clear();
        if self.hosts.len() > 2 * self.rows() {
            let used = self.window.rows.iter().map(|row| row.subscriber);
            let used: HashSet<u32> = used.chain(self.open.iter().map(|(key, _)| key.subscriber())).collect();
            self.hosts.retain(|id| used.contains(&id));
        }
    }

    /// Takes the memory of rows that are not needed any longer: windows have hundreds of megabytes,
    /// which the kernel would have to clear anew. Buffers that are mostly empty are given back.
    pub(crate) fn reuse(&mut self, mut rows: Vec<Row>) {
        if rows.capacity() <= rows.len().saturating_mul(SPARE_ROWS_FACTOR) {
            rows.clear();
            self.spare = rows;
        }
    }

    /// Ends the window: returns its intervals, the open ones included, and begins the next one.
    pub(crate) fn cut(&mut self) -> Window {
        let covered_us = self.window.coverage.covered_us;
        let next = Coverage::begin(covered_us);
        let next = Window { rows: core::mem::take(&mut self.spare), coverage: next, ..Window::default() };
        let mut window = core::mem::replace(&mut self.window, next);
        window.rows.extend(self.open.iter().map(|(key, open)| key.row(&open)));
        let open = window.rows.iter().rev().take(self.open.len()).map(|row| row.subscriber);
        let open = open.filter(|subscriber| HostNumber(*subscriber).is_ipv6()).collect();
        window.names = self.hosts.cut(&open);
        self.named = 0;
        let coverage = &mut window.coverage;
        let mut is_still_uncertain = false;
        for (worker, state) in &mut self.workers {
            let first = if state.first > 0 { state.first } else { state.next };
            coverage.workers.push((*worker, first, state.next - 1));
            state.first = 0;
            if let Some(since) = state.uncertain_since {
                coverage.uncertain.push((since, u64::MAX));
            }
        }
        let mut periods = union(core::mem::take(&mut coverage.uncertain));
        for (from, until) in &mut periods {
            if *until == u64::MAX {
                is_still_uncertain = true;
                *until = covered_us.max(*from);
            }
        }
        (coverage.uncertain, coverage.is_still_uncertain) = (periods, is_still_uncertain);
        window
    }
}

fn ended(row: Row, end_us: u64, until: End) -> Row {
    Row { end: end_us.div_ceil(1_000).max(row.start + 1), until, ..row }
}
