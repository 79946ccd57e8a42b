//! What was open at the end of a run has ended with it. No record says so: the last segment of the
//! run has what was open, and the catalogue when the run ended.
//!
//! The rows are read some blocks at a time, so that millions of them delay no stop and take no
//! memory. A follower that begins again in the middle repeats those of one external address.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::path::Path;

use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::HostNumber;
use nat::types::PoolName;
use nat::types::RealmId;
use nat::types::WorkerId;

use super::Ends;
use super::Follower;
use super::PutAside;
use super::Seen;
use super::files;
use super::gap_event;
use super::missing_of;
use super::unix_us;
use crate::line;
use crate::store::catalogue::Boot;
use crate::store::catalogue::Catalogue;
use crate::store::catalogue::Segment;
use crate::store::error::StoreError;
use crate::store::hosts::subscriber_of;
use crate::store::row::End;
use crate::store::row::Row;
use crate::store::row::What;
use crate::store::segment::Block;
use crate::store::segment::RANGES;
use crate::store::segment::SINGLE;
use crate::store::segment::SegmentFile;
use crate::store::segment::Written;
use crate::store::writer::segment_path;
use crate::subscriber::Subscriber;

/// Rows that are reported at a time, and blocks that are read for them at most.
const ROWS: usize = 1_024;
const BLOCKS: usize = 16;
/// Frames that are read to count what was deleted.
const FRAMES_AHEAD: usize = 64;

/// The open rows of a segment, sorted by external address.
#[derive(Debug)]
pub(super) struct Ending {
    segment: SegmentFile,
    /// The first address that is wanted.
    from: u32,
    /// Of single ports and of ranges: the next block, and the open rows before it.
    tables: [(usize, VecDeque<Row>); 2],
    block: Vec<Row>,
    /// The names of that run.
    names: line::Names,
}

/// Some of them.
#[derive(Debug, Default)]
struct Piece {
    rows: Vec<Row>,
    /// Names of their IPv6 hosts.
    hosts: HashMap<u32, HostName>,
    is_last: bool,
}

impl Ending {
    fn open(folder: &Path, segment: &Segment, boot: &Boot, from: u32) -> Result<Ending, StoreError> {
        let Written { footer_offset, bytes, .. } = segment.written;
        let segment = SegmentFile::open(&segment_path(folder, segment.id), footer_offset, bytes)?;
        let first = u64::from(from) << 16;
        let start = |table: usize| {
            let blocks = &segment.footer.tables[table].blocks;
            (blocks.partition_point(|block| block.first < first).saturating_sub(1), VecDeque::new())
        };
        let tables = [start(SINGLE), start(RANGES)];
        let names = line::Names {
            realms: boot.names.realms.clone(),
            pools: boot.names.pools.clone(),
            ..line::Names::default()
        };
        Ok(Ending { segment, from, tables, block: Vec::new(), names })
    }

    /// The block that must be read to know the next row of a table.
    fn due(&self, table: usize) -> Option<Block> {
        let (next, rows) = &self.tables[table];
        self.segment.footer.tables[table].blocks.get(*next).copied().filter(|_| rows.is_empty())
    }

    fn read(&mut self, table: usize, block: &Block) -> Result<(), StoreError> {
        self.segment.rows_of(table, block, &mut self.block)?;
        let (next, rows) = &mut self.tables[table];
        *next += 1;
        let from = self.from;
        rows.extend(self.block.iter().filter(|row| row.until == End::Open && row.external >= from));
        Ok(())
    }

    /// The next rows; there may be none although more follow.
    fn piece(&mut self) -> Result<Piece, StoreError> {
        let (mut piece, mut blocks) = (Piece::default(), BLOCKS);
        while piece.rows.len() < ROWS {
            let due = [SINGLE, RANGES].into_iter().find_map(|table| Some((table, self.due(table)?)));
            if let Some((table, block)) = due {
                let read = if blocks > 0 { self.read(table, &block) } else { break };
                blocks -= 1;
                match read {
                    Err(error) if piece.rows.is_empty() => return Err(error),
                    // The next call meets it again.
                    Err(_) => break,
                    Ok(()) => continue,
                }
            }
            // Of one address first the single ports.
            let next = |table: usize| self.tables[table].1.front().map(|row| (row.external, table));
            let Some((_, table)) = next(SINGLE).into_iter().chain(next(RANGES)).min() else {
                piece.is_last = true;
                break;
            };
            piece.rows.extend(self.tables[table].1.pop_front());
        }
        let named = self.name(&mut piece);
        if named.is_err() {
            // The next call meets them again.
            for row in piece.rows.into_iter().rev() {
                self.tables[if row.is_single() { SINGLE } else { RANGES }].1.push_front(row);
            }
            return named.map(|()| Piece::default());
        }
        Ok(piece)
    }

    fn name(&mut self, piece: &mut Piece) -> Result<(), StoreError> {
        let ids: BTreeSet<u32> =
            piece.rows.iter().map(|row| row.subscriber).filter(|id| HostNumber(*id).is_ipv6()).collect();
        if let (Some(first), Some(last)) = (ids.first(), ids.last()) {
            self.segment.names((*first, *last), |row| {
                if ids.contains(&row.id) {
                    piece.hosts.insert(row.id, row.name);
                }
            })?;
        }
        Ok(())
    }
}

/// The event that ends an interval, at a time of its boot's clock.
fn event_of(row: &Row, boot: &Boot, end_us: u64) -> Event {
    let kind = match row.what {
        What::Mapping => EventKind::MappingEnded,
        What::Static => EventKind::StaticEnded,
        What::Flow => EventKind::FlowEnded,
        What::Block => EventKind::BlockReturned,
    };
    let start_us = row.start.saturating_mul(1_000);
    let pool = boot.pool_of(row.external_address(), start_us).map_or(PoolName::NONE, PoolName);
    Event {
        subscriber: row.subscriber.into(),
        external: row.external_address(),
        remote: row.remote.into(),
        first_port: row.first_port,
        last_port: row.last_port,
        internal_port: row.internal_port,
        remote_port: row.remote_port,
        realm: RealmId(row.realm),
        protocol: row.protocol,
        pool,
        amount: u32::try_from(end_us.saturating_sub(start_us) / 1_000_000).unwrap_or(u32::MAX),
        ..Event::new(kind, Instant::from_micros(end_us))
    }
}

/// The last segment of a run, if the store still has it.
fn last_of(catalogue: &Catalogue, run: u32) -> Option<&Segment> {
    let last = catalogue.of_boot(run).last()?;
    let is_later = |other: &Segment| other.boot == run && other.frames.0 > last.frames.0;
    (!catalogue.deleted.iter().any(is_later)).then_some(last)
}

/// True if the store has all records of a run before these numbers of its workers.
fn has_seen(catalogue: &Catalogue, run: u32, workers: &BTreeMap<u8, u64>) -> bool {
    let segments = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == run);
    let (mut last, mut has_gaps): (BTreeMap<u8, u64>, bool) = Default::default();
    let coverages = segments.map(|segment| &segment.coverage).inspect(|of| has_gaps |= !of.gaps.is_empty());
    for (worker, _, number) in coverages.flat_map(|coverage| &coverage.workers) {
        let known = last.entry(*worker).or_default();
        *known = (*known).max(*number);
    }
    // A start may have continued with other files: these have not what the damaged ones had.
    if catalogue.damaged_of(run).next().is_some() {
        return false;
    }
    // Gaps may be of records that were in the journal, and were seen, before it was cut.
    let is_cut = catalogue.cuts.iter().any(|cut| cut.boot == run && cut.segment.is_none());
    if is_cut && has_gaps {
        return false;
    }
    workers.iter().all(|(worker, next)| *next <= last.get(worker).map_or(1, |last| last.saturating_add(1)))
}

impl Follower {
    /// Reports that what was open before the position is not known, and first what an earlier store
    /// had that was not sent.
    pub(super) fn report_unknown(&mut self, each: &mut impl FnMut(Seen<'_>)) {
        if let Some(aside) = self.position.aside.take() {
            for (worker, first, count) in &aside.gaps {
                let (worker, event) = (WorkerId(*worker), gap_event(*first, *count, Instant::from_micros(0)));
                let (unix_us, subscriber) = (aside.unix_us, Subscriber::Ipv4(event.subscriber));
                each(Seen::Event { worker, event: &event, subscriber, unix_us, is_of_last_run: false });
            }
            self.lost = self.lost.saturating_add(aside.records());
        }
        let run = self.position.boot.map_or(self.catalogue.boots.last(), |run| self.catalogue.boots.get(run as usize));
        let unix_us = run.and_then(|run| run.clocks.first()).map_or(0, |moment| moment.unix_us);
        // The rest of a run: its beginning is deleted.
        if self.position.boot.is_some() {
            each(Seen::Start { unix_us });
        }
        let (workers, names) = (&BTreeMap::new(), &line::Names::default());
        each(Seen::Over { unix_us, is_clean: false, are_ends_known: false, workers, names });
        self.position.is_unknown = false;
    }

    /// Begins to report the ends of the run of the position if that is over: the next frame is of
    /// `next`, or there is none and the position is behind the last frame of that run.
    pub(super) fn begin_ends(
        &mut self,
        next: Option<u32>,
        each: &mut impl FnMut(Seen<'_>),
    ) -> Result<bool, StoreError> {
        let is_due = self.reports_ends && self.position.ends != Ends::Reported;
        let Some(run) = self.position.boot.filter(|run| is_due && next.is_none_or(|next| next > *run)) else {
            return Ok(false);
        };
        self.refresh()?;
        let Follower { catalogue, position, lost, .. } = self;
        let Some(boot) = catalogue.boots.get(run as usize) else { return Ok(false) };
        let end = catalogue.boots.get(run as usize + 1).map_or(catalogue.next_frame, |next| next.first_frame);
        let is_read = position.frame >= end;
        if next.is_none() && (boot.ended.is_none() || !is_read) {
            return Ok(false);
        }
        if position.ends == Ends::Pending {
            if !is_read {
                let missing = missing_of(catalogue, run, &position.workers, each);
                *lost += missing;
                position.has_gap |= missing > 0;
                let all = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == run);
                for (worker, _, last) in all.flat_map(|segment| &segment.coverage.workers) {
                    let next = position.workers.entry(*worker).or_default();
                    *next = (*next).max(last.saturating_add(1));
                }
            }
            position.ends = Ends::From(0);
        }
        self.is_ending = true;
        Ok(true)
    }

    /// Reports some ends.
    pub(super) fn report_ends(&mut self, each: &mut impl FnMut(Seen<'_>)) -> Result<(), StoreError> {
        let run = self.position.boot.unwrap_or_default();
        let (piece, is_known) = match self.next_piece(run) {
            Ok(Some(piece)) => (piece, true),
            // Nothing is open in a run that has recorded nothing.
            Ok(None) => (Piece { is_last: true, ..Piece::default() }, self.position.workers.is_empty()),
            Err(error @ StoreError::Io { .. }) if !error.is_damage() => return Err(error),
            Err(_) => (Piece { is_last: true, ..Piece::default() }, false),
        };
        let Follower { catalogue, position, ending, .. } = self;
        let Some(boot) = catalogue.boots.get(run as usize) else { return Ok(()) };
        let latest_us = last_of(catalogue, run).map_or(0, |last| last.coverage.latest_us);
        let (end_us, is_clean) = boot.ended.unwrap_or_default();
        // A record of it may be later than the time until which there are all.
        let end_us = end_us.max(latest_us);
        for row in &piece.rows {
            let end_us = end_us.max(row.start.saturating_mul(1_000));
            let event = event_of(row, boot, end_us);
            let subscriber = subscriber_of(row.subscriber, |id| piece.hosts.get(&id).copied());
            let unix_us = unix_us(&boot.clocks, end_us);
            if let Some(Ending { names, .. }) = ending {
                each(Seen::Ended { event: &event, subscriber, unix_us, names });
            }
            position.ends = Ends::From(row.external);
        }
        if piece.is_last {
            let are_ends_known = is_known && !position.has_gap && has_seen(catalogue, run, &position.workers);
            let (unix_us, workers) = (unix_us(&boot.clocks, end_us), &position.workers);
            let unnamed = line::Names::default();
            let names = ending.as_ref().map_or(&unnamed, |ending| &ending.names);
            each(Seen::Over { unix_us, is_clean, are_ends_known, workers, names });
            position.ends = Ends::Reported;
            (self.is_ending, self.ending) = (false, None);
        }
        Ok(())
    }

    /// None if the store has no segment of the end of that run.
    fn next_piece(&mut self, run: u32) -> Result<Option<Piece>, StoreError> {
        while self.ending.is_none() {
            let Some(last) = last_of(&self.catalogue, run) else { return Ok(None) };
            let Some(boot) = self.catalogue.boots.get(run as usize) else { return Ok(None) };
            let from = if let Ends::From(address) = self.position.ends { address } else { 0 };
            let (id, opened) = (last.id, Ending::open(&self.folder, last, boot, from));
            match opened {
                Ok(ending) => self.ending = Some(ending),
                Err(error) => {
                    // A merge or the retention may have been faster.
                    self.refresh()?;
                    if last_of(&self.catalogue, run).is_some_and(|last| last.id == id) {
                        return Err(error);
                    }
                }
            }
        }
        self.ending.as_mut().map(Ending::piece).transpose()
    }

    /// Events after the position that are deleted, as far as the first frames that are left show:
    /// what a follower that does not read meanwhile will miss. It lets go of a deleted file, whose
    /// bytes would stay on the disk otherwise.
    ///
    /// # Errors
    /// The disk failed.
    pub fn deleted(&mut self) -> Result<u64, StoreError> {
        let of_earlier_store = self.position.aside.as_ref().map_or(0, PutAside::records);
        Ok(self.deleted_here()?.saturating_add(of_earlier_store))
    }

    fn deleted_here(&mut self) -> Result<u64, StoreError> {
        let Some((first, _)) = files(&self.folder)?.into_iter().next() else { return Ok(self.counted.1) };
        if first <= self.position.frame || first == self.counted.0 {
            return Ok(if first <= self.position.frame { 0 } else { self.counted.1 });
        }
        if self.file.as_ref().is_some_and(|(current, _)| *current < first) {
            (self.file, self.offset, self.at) = (None, 0, 0);
            self.buffer.clear();
        }
        self.refresh()?;
        let ahead = Follower::at(&self.folder, self.catalogue.clone(), self.position.clone());
        let mut ahead = ahead.without_ends();
        for _ in 0..FRAMES_AHEAD {
            if !ahead.step(|_| {})? {
                break;
            }
        }
        self.counted = (first, ahead.lost);
        Ok(ahead.lost)
    }
}
