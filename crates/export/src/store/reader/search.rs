//! One lookup: the intervals in segments and journal, and the holders they give.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::fs::File;

use nat::event::HostName;
use nat::types::HostNumber;

use super::Bounds;
use super::Found;
use super::Holder;
use super::Question;
use super::Store;
use super::Until;
use super::coverage::Assignment;
use super::coverage::changes;
use super::proof::Interval;
use super::proof::Losses;
use super::proof::lost_end_us;
use super::time::Stretch;
use super::time::span;
use super::time::unix_span;
use crate::Subscriber;
use crate::store::builder::Builder;
use crate::store::builder::Coverage;
use crate::store::builder::Wanted;
use crate::store::builder::Window;
use crate::store::catalogue::Boot;
use crate::store::catalogue::Segment;
use crate::store::error::StoreError;
use crate::store::hosts::NameTable;
use crate::store::hosts::subscriber_of;
use crate::store::row::End;
use crate::store::row::Row;
use crate::store::row::What;
use crate::store::segment::SegmentFile;
use crate::store::segment::Written;
use crate::store::writer::read_frames;
use crate::store::writer::segment_path;
use crate::utc_text;

/// Intervals of the journal that a lookup keeps; no single address has more.
const JOURNAL_ROWS_MAX: usize = 4 << 20;
/// Holders in an answer.
const HOLDERS_MAX: usize = 1 << 20;
/// Settings of the clock that a question may meet: each is searched by itself.
const STRETCHES_MAX: usize = 10_000;
/// Records of mappings that kept ports of others are looked for until then, in µs after a change of
/// formulas, if no record says that there are all of them: more than a walk over all mappings.
const REPORTED_WITHIN_US: u64 = 60_000_000;

/// Records that no segment has, by boot, as far as a lookup needs them: those after the last
/// segment of the last boot, or all of a replay.
pub(super) type Journal = BTreeMap<u32, Window>;

/// Where an interval was read: identifiers of names may mean another host elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// The segment with this number.
    Segment(u64),
    /// What the journal has of this boot.
    Journal(u32),
}

/// Rows for one holder: one that held long is in several segments.
pub(crate) const ROWS_OF_HOLDER: usize = 8;
/// Rows, each of which may need a read of its own, between two looks whether a search goes on.
const ROWS_BETWEEN_LOOKS: usize = 64;

/// One lookup.
pub(super) struct Search<'a> {
    pub(super) store: &'a Store,
    pub(super) question: Question,
    pub(super) journal: Option<Journal>,
    /// The segment read last.
    pub(super) cached: Option<(u64, SegmentFile)>,
    /// Segments that cannot be read, or not all of them.
    pub(super) unreadable: BTreeSet<u64>,
    /// Segments that were opened before they are read, because their files may be deleted.
    pub(super) held: HashMap<u64, File>,
    /// Names of IPv6 hosts that were met, by where they are and identifier.
    pub(super) names: HashMap<(Source, u32), HostName>,
    /// Times of day that occurred more than once, for an export.
    pub(super) twice: Vec<(u64, u64)>,
    /// What pools had to do with the address in question.
    pub(super) assignment: Assignment,
    pub(super) found: Found,
    pub(super) bounds: Bounds<'a>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        store: &'a Store,
        question: Question,
        journal: Option<Journal>,
        held: HashMap<u64, File>,
        bounds: Bounds<'a>,
    ) -> Search<'a> {
        let (found, names, twice, assignment) = (Found::default(), HashMap::new(), Vec::new(), Assignment::default());
        let unreadable = BTreeSet::new();
        Search { store, question, journal, cached: None, unreadable, held, names, twice, assignment, found, bounds }
    }

    pub(super) fn run(&mut self) -> Result<(), StoreError> {
        let Question { from_us, to_us, .. } = self.question;
        let mut moments = 0;
        // Time of day that some stretch shows, to find what no stretch shows.
        let mut shown: Vec<(u64, u64)> = Vec::new();
        let boots = &self.store.catalogue.boots;
        for (boot, known) in boots.iter().enumerate() {
            let boot = boot as u32;
            let end_us = match known.ended {
                Some((end, _)) => end,
                None => self.live_end(boot, from_us, known)?,
            };
            for stretch in self.store.stretches(boot, known, end_us) {
                let (first, last) = (stretch.unix_us(stretch.from_us), stretch.unix_us(stretch.to_us));
                shown.push((first, last));
                if from_us < last && first <= to_us {
                    moments += 1;
                    if moments > STRETCHES_MAX {
                        let what = "the clock was set too often in that time; ask for a shorter time";
                        return Err(StoreError::damaged(&self.store.folder, what));
                    }
                    let monotonic = |unix_us: u64| unix_us.saturating_add_signed(-stretch.offset);
                    let from = monotonic(from_us).max(stretch.from_us);
                    let to = monotonic(to_us).min(stretch.to_us - 1);
                    self.stretch_by_clock(known, &stretch, from, to)?;
                    self.note_formulas(boot, from, to, end_us)?;
                    self.note_assignment(boot, from, to);
                }
            }
            if known.ended.is_none_or(|(_, is_clean)| !is_clean) {
                self.after_end(known, boot, end_us)?;
            }
        }
        self.limits(shown);
        self.damages();
        self.found.holders.sort_unstable();
        self.found.holders.dedup();
        let has_rivals = self.share_milliseconds();
        self.assignments();
        self.ambiguity();
        self.note_rivals(&has_rivals);
        Ok(())
    }

    /// Calls `each` for those of some rows that were held in the time in question.
    pub(super) fn each_held<E>(
        &self,
        (boot, source): (u32, Source),
        losses: &Losses,
        rows: &[Row],
        each: &mut impl FnMut(&Interval) -> Result<(), E>,
    ) -> Result<(), E> {
        rows.iter().try_for_each(|row| self.if_held(&self.interval(boot, (source, row), losses), each))
    }

    fn if_held<E>(&self, interval: &Interval, each: &mut impl FnMut(&Interval) -> Result<(), E>) -> Result<(), E> {
        let end = match interval.holder.until {
            Until::Ended(end) | Until::Restart(end) | Until::Lost(end) => end,
            Until::Open => u64::MAX,
        };
        let is_held = interval.holder.since_us <= self.question.to_us && self.question.from_us < end;
        if is_held { each(interval) } else { Ok(()) }
    }

    /// Calls `each` for open rows of segments, by their places, whose ends no segment or journal
    /// that can be read has: they may be in one that cannot. As a lookup answers it.
    pub(super) fn each_without_end<E: From<StoreError>>(
        &mut self,
        (boot, segments): (u32, &[&Segment]),
        losses: &Losses,
        mut rows: Vec<(usize, Row)>,
        each: &mut impl FnMut(&Interval) -> Result<(), E>,
    ) -> Result<(), E> {
        rows.sort_unstable_by_key(|(place, row)| (*place, row.order()));
        let mut named = None;
        for (place, row) in rows {
            if named.replace(place) != Some(place) {
                self.load_names(segments[place])?;
            }
            let (row, doubtful_us) = self.with_end(segments, place, row)?;
            let of = (Source::Segment(segments[place].id), &row);
            self.if_held(&self.interval_until(boot, of, losses, doubtful_us), each)?;
        }
        Ok(())
    }

    /// Reads the journal, once.
    pub(super) fn journal(&mut self) -> Result<&Journal, StoreError> {
        if self.journal.is_none() {
            let address = self.question.address.to_bits();
            let host = self.question.host;
            let (journal, _) =
                self.read_journal(Some(Wanted { external: Some(address), subscriber: Some(address), host }))?;
            self.journal = Some(journal);
        }
        Ok(self.journal.get_or_insert_default())
    }

    /// True if the question may be about IPv6 hosts: any but one about an address of a pool, whose
    /// answer needs no names.
    fn searches_hosts(&self) -> bool {
        let Question { address, host, .. } = self.question;
        let is_of_pool = |boot: &Boot| boot.pools.iter().any(|(_, pools)| pools.find(address).is_some());
        host.is_some() || !self.store.catalogue.boots.iter().any(is_of_pool)
    }

    /// What the journal has of a boot, if it was read.
    pub(super) fn window(&self, boot: u32) -> Option<&Window> {
        self.journal.as_ref().and_then(|journal| journal.get(&boot))
    }

    /// What the journal has of the intervals that are wanted, or of all, and the number of frames.
    pub(super) fn read_journal(&mut self, wanted: Option<Wanted>) -> Result<(Journal, u64), StoreError> {
        let store = self.store;
        let known = &store.catalogue;
        let Some(boot) = known.boots.len().checked_sub(1) else { return Ok((Journal::new(), 0)) };
        let began_us = known.boots[boot].clocks.first().map_or(0, |moment| moment.monotonic_us);
        let boot = boot as u32;
        let mut builder = Builder::new(began_us, wanted);
        if let Some(last) = known.of_boot(boot).last() {
            let (mut open, mut names) = (Vec::new(), NameTable::default());
            let read = self.read_open(last, wanted.is_some(), &mut open, &mut names);
            let is_whole = self.is_read(last, read)?;
            // What the journal cannot answer then is uncertain by its coverage.
            builder.resume(&last.coverage, open.into_iter(), &names, !is_whole);
        }
        let mut frames = 0;
        let mut is_too_long = false;
        let bounds = self.bounds;
        read_frames(&store.folder, boot, known.next_frame, known.last_frame, |frame| {
            frames += 1;
            store.check_wanted(bounds)?;
            let is_readable = frame.events(|worker, event| {
                builder.apply(worker, event);
            });
            let what = || format!("frame {} of the journal", frame.number);
            is_readable.ok_or_else(|| StoreError::Later { path: store.folder.clone(), what: what() })?;
            builder.cover(frame.covered_us);
            is_too_long |= wanted.is_some() && builder.rows() > JOURNAL_ROWS_MAX;
            if is_too_long {
                return Err(StoreError::damaged(&store.folder, "the journal has too many records of one address"));
            }
            Ok(())
        })?;
        self.found.reads += 1;
        Ok(((frames > 0).then(|| (boot, builder.cut())).into_iter().collect(), frames))
    }

    /// Reads what a segment has open at its end, all of it or as far as the question needs it, and
    /// the names that later events may refer to.
    fn read_open(
        &mut self,
        last: &Segment,
        is_of_question: bool,
        open: &mut Vec<Row>,
        names: &mut NameTable,
    ) -> Result<(), StoreError> {
        let (question, searches_hosts) = (self.question, self.searches_hosts());
        let address = question.address.to_bits();
        let segment = self.segment(last)?;
        names.next = segment.footer.next_name;
        let mut keep = |row: &Row| {
            if row.until == End::Open {
                open.push(*row);
            }
        };
        if is_of_question {
            segment.external(address, (0, u16::MAX), &mut keep)?;
            segment.subscriber(address, &mut keep)?;
            let ids = if searches_hosts { ids_of(segment, &question)? } else { Vec::new() };
            segment.subscribers(&ids, &mut keep)?;
        } else {
            segment.all(&mut keep)?;
        }
        *names = segment.names_at(last.frames.1)?;
        Ok(())
    }

    /// True if a segment was read. If it is damaged, the answer goes on without it, and must say
    /// what that means.
    ///
    /// # Errors
    /// Another problem; also if the segment was merged or deleted meanwhile.
    pub(super) fn is_read(&mut self, segment: &Segment, read: Result<(), StoreError>) -> Result<bool, StoreError> {
        let error = match read {
            Ok(()) => return Ok(true),
            Err(error) if !error.is_damage() => return Err(error),
            Err(error) => error,
        };
        if self.unreadable.contains(&segment.id) {
            return Ok(false);
        }
        let now = Store::open(&self.store.folder)?;
        if !now.catalogue.segments.values().any(|known| known.id == segment.id) {
            return Err(error);
        }
        self.unreadable.insert(segment.id);
        if self.cached.as_ref().is_some_and(|(id, _)| *id == segment.id) {
            self.count_reads();
            self.cached = None;
        }
        Ok(false)
    }

    /// What it means that a segment cannot be read.
    fn note_of_damage(&self, segment: &Segment, what: &str) -> String {
        let boot = self.store.catalogue.boots.get(segment.boot as usize);
        let (first_us, last_us) = boot.map_or((0, 0), |boot| unix_span(segment, boot));
        let (id, first, last) = (segment.id, utc_text(first_us), utc_text(last_us));
        format!(
            "segment-{id:08x} is damaged or missing: {what} from {first} to {last} may be missing; natrix log verify says \
             what is wrong"
        )
    }

    /// Opens a segment, or returns the one opened last.
    pub(super) fn segment(&mut self, segment: &Segment) -> Result<&mut SegmentFile, StoreError> {
        let is_cached = self.cached.as_ref().is_some_and(|(id, _)| *id == segment.id);
        if !is_cached {
            let path = segment_path(&self.store.folder, segment.id);
            self.count_reads();
            let Written { footer_offset, bytes, .. } = segment.written;
            let file = match self.held.remove(&segment.id) {
                Some(file) => SegmentFile::of(&path, file, footer_offset, bytes)?,
                None => SegmentFile::open(&path, footer_offset, bytes)?,
            };
            self.cached = Some((segment.id, file));
        }
        match &mut self.cached {
            Some((_, file)) => Ok(file),
            None => Err(StoreError::damaged(&self.store.folder, "a segment is not open")),
        }
    }

    pub(super) fn count_reads(&mut self) {
        if let Some((_, file)) = &mut self.cached {
            self.found.reads += core::mem::take(&mut file.reads);
        }
    }

    /// The intervals in a segment that the question is about, and whether these are all.
    fn rows_of(&mut self, segment: &Segment) -> Result<(Vec<Row>, bool), StoreError> {
        let mut rows = Vec::new();
        let read = self.read_rows(segment, &mut rows);
        let is_whole = self.is_read(segment, read)?;
        if !is_whole {
            let note = self.note_of_damage(segment, "records");
            self.limit(note);
        }
        if rows.len() > HOLDERS_MAX {
            let what = "the question has more than a million answers; ask for a shorter time";
            return Err(StoreError::damaged(&self.store.folder, what));
        }
        Ok((rows, is_whole))
    }

    /// Adds the intervals in a segment that the question is about, and reads the names in them.
    fn read_rows(&mut self, segment: &Segment, rows: &mut Vec<Row>) -> Result<(), StoreError> {
        let read = self.read_asked(segment, rows);
        // Also of what could be read before damage.
        let protocol = self.question.protocol;
        rows.retain(|row| protocol.is_none_or(|wanted| row.protocol.is_none_or(|has| has == wanted)));
        read?;
        let ids: HashSet<u32> = rows.iter().map(|row| row.subscriber).filter(|id| HostNumber(*id).is_ipv6()).collect();
        if let (Some(first), Some(last)) = (ids.iter().min(), ids.iter().max()) {
            let mut names = Vec::new();
            self.segment(segment)?.names((*first, *last), |row| {
                if ids.contains(&row.id) {
                    names.push(((Source::Segment(segment.id), row.id), row.name));
                }
            })?;
            self.names.extend(names);
        }
        Ok(())
    }

    /// Adds the intervals in a segment that the question is about, whatever their protocol is.
    fn read_asked(&mut self, segment: &Segment, rows: &mut Vec<Row>) -> Result<(), StoreError> {
        let question = self.question;
        let address = question.address.to_bits();
        let ports = question.port.map_or((0, u16::MAX), |port| (port, port));
        let searches_hosts = self.searches_hosts();
        let file = self.segment(segment)?;
        if question.host.is_none() {
            file.external(address, ports, |row| rows.push(*row))?;
        }
        let mut take = |row: &Row| {
            if question.port.is_none_or(|port| row.what == What::Block || row.internal_port == port) {
                rows.push(*row);
            }
        };
        if question.host.is_none() {
            file.subscriber(address, &mut take)?;
        }
        if searches_hosts {
            let ids = ids_of(file, &question)?;
            file.subscribers(&ids, &mut take)?;
        }
        Ok(())
    }

    /// Replaces the names by all that a segment has.
    pub(super) fn load_names(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let mut names = HashMap::new();
        self.segment(segment)?.names((0, u32::MAX), |row| {
            names.insert((Source::Segment(segment.id), row.id), row.name);
        })?;
        self.names = names;
        Ok(())
    }

    /// Adds the names that the journal has.
    pub(super) fn take_names_of_journal(&mut self, boot: u32) {
        if let Some(window) = self.journal.as_ref().and_then(|journal| journal.get(&boot)) {
            self.names.extend(window.names.rows.iter().map(|row| ((Source::Journal(boot), row.id), row.name)));
        }
    }

    /// The intervals of the journal that the question is about.
    fn rows_of_journal(&mut self, boot: u32) -> Result<Vec<Row>, StoreError> {
        let question = self.question;
        let address = question.address.to_bits();
        let is_asked = |window: &Window, row: &Row| {
            let is_external = question.host.is_none()
                && row.external == address
                && question.port.is_none_or(|port| (row.first_port..=row.last_port).contains(&port));
            let is_it = match HostNumber(row.subscriber).is_ipv6() {
                true => window.names.get(row.subscriber).is_some_and(|name| question.is_of(&name)),
                false => question.host.is_none() && row.subscriber == address,
            };
            let is_internal =
                is_it && question.port.is_none_or(|port| row.what == What::Block || row.internal_port == port);
            (is_external || is_internal)
                && question.protocol.is_none_or(|wanted| row.protocol.is_none_or(|has| has == wanted))
        };
        let rows = |window: &Window| window.rows.iter().filter(|row| is_asked(window, row)).copied().collect();
        let rows = self.journal()?.get(&boot).map(rows).unwrap_or_default();
        self.take_names_of_journal(boot);
        Ok(rows)
    }

    /// The holders between two moments of a stretch.
    pub(super) fn stretch(&mut self, stretch: &Stretch, from_us: u64, to_us: u64) -> Result<(), StoreError> {
        let store = self.store;
        let segments: Vec<&Segment> = store.catalogue.of_boot(stretch.boot).collect();
        // What outlived a change of formulas is recorded some time later.
        let mut recorded_us = to_us;
        for change in store.catalogue.boots.get(stretch.boot as usize).into_iter().flat_map(changes) {
            if change.since_us <= to_us && from_us < change.until_us {
                let until_us = self.recorded_us(stretch.boot, &change)?;
                recorded_us = recorded_us.max(until_us.unwrap_or(change.adopted_us.saturating_add(REPORTED_WITHIN_US)));
            }
        }
        let is_about = |coverage: &Coverage| {
            let (first, last) = span(coverage);
            first <= recorded_us && from_us <= last
        };
        let mut rows = Vec::new();
        let damaged = damaged_places(store, stretch.boot, &segments);
        let is_asked = |(place, segment): &(usize, &&Segment)| {
            // What was open at the end of a damaged one may still be held.
            let is_after_damage = damaged.contains(place) && span(&segment.coverage).0 <= recorded_us;
            is_about(&segment.coverage) || is_after_damage
        };
        let asked = segments.iter().enumerate().filter(is_asked).map(|(place, _)| place);
        let mut left: BTreeSet<usize> = asked.collect();
        // Where retention deleted the segments of that time, the first one that is left has what
        // was still open when it began.
        if segments.first().is_some_and(|first| from_us < span(&first.coverage).0) {
            left.insert(0);
        }
        let mut done: BTreeSet<usize> = BTreeSet::new();
        let mut is_last_damaged = false;
        while let Some(place) = left.pop_first() {
            store.check_wanted(self.bounds)?;
            done.insert(place);
            let (of_segment, is_whole) = self.rows_of(segments[place])?;
            rows.extend(of_segment.into_iter().map(|row| (place, row)));
            if !is_whole {
                // Its neighbours have what was open when it began, and when it ended.
                let near = place.checked_sub(1).into_iter().chain([place + 1]);
                left.extend(near.filter(|near| *near < segments.len() && !done.contains(near)));
                is_last_damaged |= place + 1 == segments.len();
            }
            if rows.len() / ROWS_OF_HOLDER > self.bounds.holders_max {
                distinct(&mut rows);
                self.check_count(rows.len() / ROWS_OF_HOLDER)?;
            }
        }
        let sealed_us = segments.last().map_or(0, |last| last.coverage.covered_us);
        let is_last = stretch.boot as usize + 1 == store.catalogue.boots.len();
        let has_journal = is_last || self.window(stretch.boot).is_some();
        if has_journal && (recorded_us >= sealed_us || segments.is_empty() || is_last_damaged) {
            rows.extend(self.rows_of_journal(stretch.boot)?.into_iter().map(|row| (segments.len(), row)));
        }
        let (from_ms, to_ms) = (from_us / 1_000, to_us / 1_000);
        let mut done: Vec<(usize, Row, u64)> = Vec::new();
        distinct(&mut rows);
        for (number, (place, row)) in rows.into_iter().enumerate() {
            if number % ROWS_BETWEEN_LOOKS == 0 {
                store.check_wanted(self.bounds)?;
            }
            if !row.is_within(from_ms, to_ms) {
                continue;
            }
            let (row, doubtful_us) = self.with_end(&segments, place, row)?;
            if row.is_within(from_ms, to_ms) {
                done.push((place, row, doubtful_us));
            }
            self.check_count(self.found.holders.len() + done.len())?;
        }
        let losses = self.losses(stretch.boot);
        for (place, row, doubtful_us) in done {
            let (proved_from_us, proved_until_us) = losses.proved(&row);
            let proved_until_us = proved_until_us.min(doubtful_us);
            let at_us = from_us.max(row.start.saturating_mul(1_000));
            let is_proved = proved_from_us <= at_us && at_us < proved_until_us;
            let segment = segments.get(place).map(|segment| Source::Segment(segment.id));
            let source = segment.unwrap_or(Source::Journal(stretch.boot));
            let holder = self.holder(stretch.boot, (source, &row), is_proved);
            self.found.holders.push(holder);
        }
        self.check_covered(stretch, &segments, from_us, to_us)
    }

    pub(super) fn check_count(&self, holders: usize) -> Result<(), StoreError> {
        let max = self.bounds.holders_max;
        if holders > max { Err(StoreError::TooMany { max }) } else { Ok(()) }
    }

    /// The same interval with its end, from later segments. Also since when it may have ended in a
    /// segment that cannot be read.
    fn with_end(&mut self, segments: &[&Segment], place: usize, row: Row) -> Result<(Row, u64), StoreError> {
        if row.until != End::Open || place >= segments.len() {
            return Ok((row, u64::MAX));
        }
        let (mut known, has, has_not) = loop {
            let before = self.unreadable.len();
            let is_readable = |place: &usize| !self.unreadable.contains(&segments[*place].id);
            let later: Vec<usize> = (place + 1..segments.len()).filter(is_readable).collect();
            let (known, count) = self.last_with(segments, &later, &row)?;
            // If one more turned out to be damaged, the search was of no use.
            if self.unreadable.len() == before {
                let has = count.checked_sub(1).and_then(|last| later.get(last)).copied();
                break (known, has.unwrap_or(place), later.get(count).copied());
            }
        };
        if known.until != End::Open {
            return Ok((known, u64::MAX));
        }
        let boot = segments[place].boot;
        if has_not.is_none() && boot as usize + 1 == self.store.catalogue.boots.len() {
            let order = known.order();
            let window = self.journal()?.get(&boot);
            let found = window.and_then(|window| window.rows.iter().find(|later| later.order() == order).copied());
            known = found.unwrap_or(known);
            if known.until != End::Open {
                return Ok((known, u64::MAX));
            }
        }
        // A start did not know what was open at the end of this one, so it is not in later ones.
        let damaged = damaged_places(self.store, boot, segments);
        let until = has_not.unwrap_or(segments.len());
        if damaged.range(has..until).next().is_some() {
            let next_us = segments.get(has + 1).filter(|_| has + 1 < until).map(|next| span(&next.coverage).0);
            return Ok((known, next_us.unwrap_or(segments[has].coverage.covered_us)));
        }
        let Some(between) = segments.get(has + 1..until).filter(|between| !between.is_empty()) else {
            return Ok((known, u64::MAX));
        };
        let doubtful_us = between.iter().map(|segment| span(&segment.coverage).0).min().unwrap_or(u64::MAX);
        if has_not.is_some() {
            let ended_us = between.iter().map(|segment| span(&segment.coverage).1).max().unwrap_or(u64::MAX);
            known = Row { until: End::Lost, end: ended_us.div_ceil(1_000), ..known };
        }
        Ok((known, doubtful_us))
    }

    /// An open interval as it is in the last of some later segments that has it, and how many of
    /// them, from the first on, have it.
    fn last_with(&mut self, segments: &[&Segment], later: &[usize], row: &Row) -> Result<(Row, usize), StoreError> {
        // It is in every segment until it ends. The next ones are likeliest.
        let (mut known, mut has, mut has_not) = (*row, 0, later.len() + 1);
        let mut step = 1;
        while has + 1 < has_not {
            let middle = if has + step < has_not { has + step } else { has + (has_not - has) / 2 };
            match self.same(segments[later[middle - 1]], row)? {
                Some(later) => {
                    (known, has) = (later, middle);
                    if later.until != End::Open {
                        break;
                    }
                    step *= 4;
                }
                None => {
                    has_not = middle;
                    step = usize::MAX / 2;
                }
            }
            if step > segments.len() {
                step = usize::MAX / 4;
            }
        }
        Ok((known, has))
    }

    /// The same interval in another segment.
    fn same(&mut self, segment: &Segment, row: &Row) -> Result<Option<Row>, StoreError> {
        let mut found = None;
        let order = row.order();
        let read = self.segment(segment).and_then(|file| {
            file.external(row.external, (row.first_port, row.first_port), |other| {
                if other.order() == order {
                    found = Some(*other);
                }
            })
        });
        if !self.is_read(segment, read)? {
            // That there was no other holder before is known all the same.
            let note = self.note_of_damage(segment, "ends of holdings");
            if !self.found.notes.contains(&note) {
                self.found.notes.push(note);
            }
        }
        Ok(found)
    }

    pub(super) fn holder(&self, at_boot: u32, (source, row): (Source, &Row), is_proved: bool) -> Holder {
        let boots = &self.store.catalogue.boots;
        let boot = boots.get(at_boot as usize);
        let unix_us = |monotonic_ms: u64| self.unix_us(at_boot, monotonic_ms);
        let until = match (row.until, boot.and_then(|boot| Some((boot, boot.ended?)))) {
            (End::Exact, _) => Until::Ended(unix_us(row.end)),
            (End::Lost, _) => Until::Lost(unix_us(row.end)),
            (End::Open, None) => Until::Open,
            (End::Open, Some((boot, (covered_us, is_clean)))) => {
                let end = unix_us(covered_us.div_ceil(1_000));
                let next = boots.get(at_boot as usize + 1);
                Until::Restart(if is_clean { end } else { lost_end_us(boot, next, covered_us).max(end) })
            }
        };
        let port = (row.what != What::Block).then_some(row.internal_port);
        let pool = boot.and_then(|boot| boot.pool_of(row.external_address(), row.start.saturating_mul(1_000)));
        let pool_name = boot.zip(pool).and_then(|(boot, pool)| boot.names.pools.get(usize::from(pool))).cloned();
        let remote = (row.what == What::Flow).then(|| (Ipv4Addr::from_bits(row.remote), row.remote_port));
        let subscriber = subscriber_of(row.subscriber, |id| self.names.get(&(source, id)).copied());
        Holder {
            since_us: unix_us(row.start),
            until,
            what: row.what,
            realm: row.realm,
            vrf: boot.and_then(|boot| boot.names.realms.get(usize::from(row.realm))).cloned(),
            pool,
            pool_name,
            subscriber,
            protocol: row.protocol,
            internal_port: port,
            external: row.external_address(),
            first_port: row.first_port,
            last_port: row.last_port,
            remote,
            is_certain: is_proved && subscriber != Subscriber::Unknown,
            is_since_exact: !row.is_start_rounded,
            is_ms_shared: false,
        }
    }
}

/// Leaves one row of each interval: later segments know more about its end.
fn distinct(rows: &mut Vec<(usize, Row)>) {
    rows.sort_unstable_by_key(|(place, row)| (row.order(), core::cmp::Reverse(*place)));
    rows.dedup_by_key(|(_, row)| row.order());
}

/// Which of the segments of a boot a start found damaged.
fn damaged_places(store: &Store, boot: u32, segments: &[&Segment]) -> BTreeSet<usize> {
    let place = |id: u64| segments.iter().position(|segment| segment.id == id);
    store.catalogue.damaged_of(boot).filter_map(place).collect()
}

/// The identifiers of the IPv6 subscribers that a question is about.
fn ids_of(segment: &mut SegmentFile, question: &Question) -> Result<Vec<u32>, StoreError> {
    let mut ids = Vec::new();
    segment.names((0, u32::MAX), |row| {
        if question.is_of(&row.name) {
            ids.push(row.id);
        }
    })?;
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
