//! Followers: they read the journal while it is written, and keep what they have not read yet.
//!
//! ```text
//!   journal-N ─► (segment is sealed) ─► spool-N ─► deleted when every cursor is behind it
//! ```
//!
//! A follower that is registered has a cursor: a file in the store with its position and the bytes
//! that may be kept for it. The journal of a sealed window becomes a spool file as long as a cursor
//! is before its end. Beyond the bytes, and beyond the retention, it is deleted; the follower then
//! gets an event of the kind gap for each worker, with the number of events that are missing.
//!
//! The end of a run ends everything, and no record says so: the follower gets an end for each
//! interval that the last segment of the run has open ([`ends`]).

mod cursor;
mod ends;
mod unsent;

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use nat::Instant;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::WorkerId;

use self::ends::Ending;
use super::catalogue;
use super::catalogue::Catalogue;
use super::catalogue::Moment;
use super::error::StoreError;
use super::journal;
use super::journal::FrameRead;
use super::segment::SegmentFile;
use super::segment::Written;
use super::writer::segment_path;
use crate::line;
use crate::subscriber::HostNames;
use crate::subscriber::Subscriber;

pub(super) use self::cursor::CURSOR;
pub use self::cursor::CursorFile;
pub(super) use self::cursor::NEW;
pub(crate) use self::cursor::retire;
pub(crate) use self::cursor::trim;
pub use self::unsent::PutAside;
pub(crate) use self::unsent::Unsent;
pub(crate) use self::unsent::unsent_in;

const JOURNAL: &str = "journal-";
const SPOOL: &str = "spool-";
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// What a disk loses at once.
const SECTOR: u64 = 4_096;
/// Bytes of what looks like a frame and is none that are read at most to find the next one.
const SEARCH_BYTES: u64 = 64 << 20;

/// Where a follower is: before this frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of the next frame.
    pub frame: u64,
    /// The run of the last frame; None before the first.
    boot: Option<u32>,
    /// The next number of each worker of that run.
    workers: BTreeMap<u8, u64>,
    /// True if the run was followed from its beginning, so that a new worker begins with number 1.
    is_from_start: bool,
    /// How far it is with what was open at the end of that run.
    ends: Ends,
    /// True if the follower missed allocations or ends of that run.
    has_gap: bool,
    /// True if what was open before it is not known, and that was not reported yet.
    is_unknown: bool,
    /// What an earlier store had that was not sent, until that was reported.
    aside: Option<PutAside>,
    /// The sequence number of the sink's next datagram, for formats that have one. The store does
    /// not use it.
    pub(crate) datagram: u32,
}

/// Where a follower begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what is recorded from now on.
    Now,
    /// At this position.
    At(Position),
    /// With the last run.
    Run,
    /// With the oldest record that journal and spool have: where it was is not known, because its
    /// cursor is damaged. What was open before is not known either, which the follower reports.
    Oldest,
}

/// How far a follower is with the ends of what was open at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ends {
    /// The run has not ended yet, or none of them was reported.
    #[default]
    Pending,
    /// Those of external addresses before this one were reported.
    From(u32),
    /// All of them were.
    Reported,
}

/// What a follower sees, in order.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// A run of the instance begins at this time, µs since 1970.
    Start {
        /// Its time.
        unix_us: u64,
    },
    /// An event. A gap is one that a worker recorded, or stands for events that were deleted.
    Event {
        /// Its worker.
        worker: WorkerId,
        /// The event.
        event: &'a Event,
        /// Its subscriber: `event.subscriber` may be a number.
        subscriber: Subscriber,
        /// Its time, µs since 1970.
        unix_us: u64,
        /// True if the run is the last one.
        is_of_last_run: bool,
    },
    /// Something was open at the end of the run and so has ended, at this time at the latest that
    /// the store knows. They come sorted by external address.
    Ended {
        /// The end, without a worker and a sequence number: nothing recorded it.
        event: &'a Event,
        /// Its subscriber.
        subscriber: Subscriber,
        /// Its time, µs since 1970.
        unix_us: u64,
        /// The names of that run.
        names: &'a line::Names,
    },
    /// The run is over, and all ends of it were reported.
    Over {
        /// Its end, µs since 1970.
        unix_us: u64,
        /// True if it was stopped and has all its records.
        is_clean: bool,
        /// False if the store does not know what was open, because its last segment is deleted or
        /// damaged, or lacks records that were seen, or if the follower missed some.
        are_ends_known: bool,
        /// The next number of each worker.
        workers: &'a BTreeMap<u8, u64>,
        /// The names of the run, if they are known.
        names: &'a line::Names,
    },
}

/// Reads frames while they are written.
#[derive(Debug)]
pub struct Follower {
    folder: PathBuf,
    position: Position,
    /// The file that is read, with the number of its first frame.
    file: Option<(u64, File)>,
    offset: u64,
    buffer: Vec<u8>,
    /// Consumed bytes of the buffer.
    at: usize,
    /// True if a later file exists, so that this one will not grow.
    is_final: bool,
    /// True from bytes that are no frame to the next frame.
    is_searching: bool,
    catalogue_length: u64,
    catalogue: Catalogue,
    covered_unix_us: u64,
    lost: u64,
    /// Names of IPv6 hosts, as many as the workers have numbers for, and their run.
    hosts: Names,
    /// False if the ends of runs are passed over.
    reports_ends: bool,
    /// True while the ends of the run of the position are reported, and the segment that has them.
    is_ending: bool,
    ending: Option<Ending>,
    /// The first file that was left when lost events were last counted ahead, and their number.
    counted: (u64, u64),
}

/// Names of IPv6 hosts, with the run that they are of.
type Names = (Option<u32>, HostNames);

/// Journal and spool files, by their first frame.
fn files(folder: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let first = name.strip_prefix(JOURNAL).or_else(|| name.strip_prefix(SPOOL));
        if let Some(first) = first.and_then(|first| u64::from_str_radix(first, 16).ok()) {
            found.insert(first, path);
        }
    }
    Ok(found.into_iter().collect())
}

/// Spool files, by their first frame.
pub(crate) fn spool_files(folder: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = files(folder)?;
    let is_spool = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(SPOOL));
    found.retain(|(_, path)| is_spool(path));
    Ok(found)
}

impl Follower {
    /// Begins to follow a store.
    ///
    /// # Errors
    /// There is no store, or it cannot be read.
    pub fn open(folder: &Path, start: Start) -> Result<Follower, StoreError> {
        let catalogue = Catalogue::of_store(folder)?;
        let position = match start {
            Start::Now => None,
            Start::At(position) => Some(within(&catalogue, position)),
            Start::Run => {
                let frame = catalogue.boots.last().map_or(catalogue.next_frame, |boot| boot.first_frame);
                Some(Position { frame, ..Position::default() })
            }
            Start::Oldest => Some(oldest(folder, &catalogue)?),
        };
        let is_new = position.is_none();
        let mut follower = match position {
            Some(position) => {
                let hosts = names_before(folder, &catalogue, &position)?;
                Follower { hosts, ..Follower::at(folder, catalogue, position) }
            }
            None => {
                let frame = catalogue.next_frame;
                let hosts = names_at(folder, &catalogue, frame)?;
                let position = Position { frame, ..Position::default() };
                let mut follower = Follower { hosts, ..Follower::at(folder, catalogue, position) }.without_ends();
                while follower.step(|_| {})? {}
                Follower { reports_ends: true, ..follower }
            }
        };
        if is_new {
            // No reader got anything before.
            follower.position.has_gap = false;
        }
        follower.lost = 0;
        Ok(follower)
    }

    fn at(folder: &Path, catalogue: Catalogue, position: Position) -> Follower {
        Follower {
            folder: folder.to_owned(),
            position,
            file: None,
            offset: 0,
            buffer: Vec::new(),
            at: 0,
            is_final: false,
            is_searching: false,
            catalogue_length: catalogue.length,
            catalogue,
            covered_unix_us: 0,
            lost: 0,
            hosts: Names::default(),
            reports_ends: true,
            is_ending: false,
            ending: None,
            counted: (0, 0),
        }
    }

    /// The same, but the ends of runs are not reported.
    pub(crate) fn without_ends(self) -> Follower {
        Follower { reports_ends: false, ..self }
    }

    /// What an earlier store had that was not sent, until that was reported.
    pub fn put_aside(&self) -> Option<&PutAside> {
        self.position.aside.as_ref()
    }

    /// Where it is.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Everything until then, µs since 1970, was read.
    pub fn covered_unix_us(&self) -> u64 {
        self.covered_unix_us
    }

    /// Events that were deleted before they were read.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Reads the next frame if there is one, and calls `each` for what it has. Returns false if
    /// there is none yet.
    ///
    /// # Errors
    /// The disk failed; the next call tries again.
    pub fn step(&mut self, mut each: impl FnMut(Seen<'_>)) -> Result<bool, StoreError> {
        if self.position.is_unknown && self.reports_ends {
            self.report_unknown(&mut each);
            return Ok(true);
        }
        loop {
            if self.is_ending {
                return self.report_ends(&mut each).map(|()| true);
            }
            let (known, frame) = (self.position.frame, FrameRead::parse(&self.buffer[self.at..]));
            if let Some((number, length, boot)) = frame.map(|frame| (frame.number, frame.length, frame.boot)) {
                self.is_searching = false;
                if number >= known {
                    if self.begin_ends(Some(boot), &mut each)? {
                        return Ok(true);
                    }
                    self.take(&mut each)?;
                }
                self.at += length;
                if number >= known {
                    return Ok(true);
                }
                continue;
            }
            if self.fill()? || self.skip_damage()? {
                continue;
            }
            if !self.next_file()? {
                return self.begin_ends(None, &mut each);
            }
        }
    }

    /// Reads on in the file. False at its end.
    fn fill(&mut self) -> Result<bool, StoreError> {
        let Some((_, file)) = &self.file else { return Ok(false) };
        if self.buffer.len() - self.at > journal::FRAME_MAX {
            return Ok(false);
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let kept = self.buffer.len();
        // Not cleared first: an idle follower looks often.
        self.buffer.reserve(PIECE);
        let mut reader = file;
        let read = reader.seek(SeekFrom::Start(self.offset));
        let read = read.and_then(|_| reader.take(PIECE as u64).read_to_end(&mut self.buffer));
        let count = self.buffer.len() - kept;
        let begin = self.offset;
        self.offset += count as u64;
        if begin == 0 && count >= journal::MAGIC.len() {
            self.at = journal::MAGIC.len();
        }
        if count > 0 {
            // The next call meets the fault again, if there was one behind these bytes.
            return Ok(true);
        }
        match read.map_err(StoreError::io(&self.folder)) {
            // A bad sector: zeros instead, which are no frame.
            Err(error) if error.is_damage() => {
                let after = (self.offset / SECTOR + 1) * SECTOR;
                let length = file.metadata().map_err(StoreError::io(&self.folder))?.len();
                // More may be written to it.
                if after > length && !self.is_final {
                    return Ok(false);
                }
                let count = after.min(length).saturating_sub(self.offset);
                self.buffer.resize(kept + count as usize, 0);
                self.offset += count;
                Ok(count > 0)
            }
            read => read.map(|_| false),
        }
    }

    /// Goes on at the next whole frame of the file, behind bytes that are none. False if there is
    /// none yet, and while these bytes may be a frame that is being written. What was in between is
    /// missing by its numbers.
    fn skip_damage(&mut self) -> Result<bool, StoreError> {
        let left = self.buffer.len() - self.at;
        let is_damaged = self.is_searching || self.is_final || left > journal::FRAME_MAX;
        let Some(first) = self.file.as_ref().map(|(first, _)| *first).filter(|_| is_damaged && left > 0) else {
            return Ok(false);
        };
        self.refresh()?;
        let boot = self.catalogue.boots.partition_point(|boot| boot.first_frame <= first).saturating_sub(1) as u32;
        let mut budget = SEARCH_BYTES;
        self.is_searching = true;
        loop {
            while self.buffer.len() - self.at < journal::HEADER && self.fill()? {}
            let Some(header) = self.buffer.get(self.at..self.at + journal::HEADER) else {
                self.at = if self.is_final { self.buffer.len() } else { self.at };
                return Ok(false);
            };
            let Some(length) = journal::length_of(header, boot).filter(|_| budget > 0) else {
                self.at += journal::skipped(&self.buffer[self.at..]);
                continue;
            };
            while self.buffer.len() - self.at < length && self.fill()? {}
            if FrameRead::parse(&self.buffer[self.at..]).is_some() {
                return Ok(true);
            }
            if self.buffer.len() - self.at < length && !self.is_final {
                return Ok(false);
            }
            budget = budget.saturating_sub(length as u64);
            self.at += 1;
        }
    }

    /// Goes on to the file that the next frame is in. False if there is none.
    fn next_file(&mut self) -> Result<bool, StoreError> {
        let files = files(&self.folder)?;
        let current = self.file.as_ref().map(|(first, _)| *first);
        // The last one that begins no later than the next frame; or else what is left begins later.
        let may_be = |first: u64| current.is_none_or(|current| first > current) || self.is_replaced(first, &files);
        let next = match files.iter().rev().find(|(first, _)| *first <= self.position.frame && may_be(*first)) {
            Some(found) => Some(found),
            None => files.iter().find(|(first, _)| may_be(*first)),
        };
        let Some((first, path)) = next else { return Ok(false) };
        if current.is_some() && *first != self.position.frame && !self.is_final {
            // What was written before the later file began is read first.
            self.is_final = true;
            return Ok(true);
        }
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(StoreError::Io { path: path.clone(), source }),
        };
        self.file = Some((*first, file));
        (self.offset, self.at, self.is_final, self.is_searching) = (0, 0, false, false);
        self.buffer.clear();
        Ok(true)
    }

    /// True if the file that is read had no frame, and another one now has its number: a restart.
    fn is_replaced(&self, first: u64, files: &[(u64, PathBuf)]) -> bool {
        let Some((current, file)) = self.file.as_ref().filter(|(current, _)| *current == self.position.frame) else {
            return false;
        };
        let path = files.iter().find(|(known, _)| known == current).map(|(_, path)| path);
        let inode = |metadata: fs::Metadata| metadata.ino();
        let ours = file.metadata().ok().map(inode);
        first == *current && path.is_some_and(|path| fs::metadata(path).ok().map(inode) != ours)
    }

    fn refresh(&mut self) -> Result<(), StoreError> {
        let path = self.folder.join(catalogue::NAME);
        let length = fs::metadata(&path).map_err(StoreError::io(&path))?.len();
        if length != self.catalogue_length {
            self.catalogue = Catalogue::of_store(&self.folder)?;
            self.catalogue_length = self.catalogue.length;
        }
        Ok(())
    }

    /// Takes the frame at the beginning of the buffer.
    fn take(&mut self, each: &mut impl FnMut(Seen<'_>)) -> Result<(), StoreError> {
        self.refresh()?;
        let Follower { buffer, at, position, catalogue, covered_unix_us, lost, folder, hosts, .. } = self;
        let Some(frame) = FrameRead::parse(&buffer[*at..]) else { return Ok(()) };
        let is_of_last_run = frame.boot as usize + 1 == catalogue.boots.len();
        if position.boot != Some(frame.boot) {
            *lost += missing_until(catalogue, position, frame.boot, each);
            let begin = catalogue.boots.get(frame.boot as usize).and_then(|boot| boot.clocks.first());
            each(Seen::Start { unix_us: begin.map_or(0, |moment| moment.unix_us) });
            position.boot = Some(frame.boot);
            position.workers.clear();
            position.is_from_start = true;
            position.ends = Ends::Pending;
            position.has_gap = false;
        }
        let (named, hosts) = hosts;
        if named.replace(frame.boot) != Some(frame.boot) {
            hosts.clear();
        }
        let clocks = catalogue.boots.get(frame.boot as usize).map_or(&[][..], |boot| &boot.clocks);
        let Position { workers, is_from_start, has_gap, .. } = position;
        let is_readable = frame.events(|worker, event| {
            let unix_us = unix_us(clocks, event.at.as_micros());
            let next = workers.entry(worker).or_insert(if *is_from_start { 1 } else { event.sequence });
            if event.sequence < *next {
                // Known, from frames that a start replaced. It may name a host.
                hosts.subscriber_of(WorkerId(worker), event);
                return;
            }
            if event.sequence > *next {
                let gap = gap_event(*next, event.sequence - *next, event.at);
                *lost += event.sequence - *next;
                *has_gap = true;
                let subscriber = hosts.subscriber_of(WorkerId(worker), &gap);
                each(Seen::Event { worker: WorkerId(worker), event: &gap, subscriber, unix_us, is_of_last_run });
            }
            let amount = if event.kind == EventKind::Gap { u64::from(event.amount).max(1) } else { 1 };
            *has_gap |= event.kind == EventKind::Gap && event.cause != Cause::NoAllocation;
            *next = event.sequence.saturating_add(amount);
            let subscriber = hosts.subscriber_of(WorkerId(worker), event);
            each(Seen::Event { worker: WorkerId(worker), event, subscriber, unix_us, is_of_last_run });
        });
        position.frame = frame.number.saturating_add(1);
        *covered_unix_us = unix_us(clocks, frame.covered_us);
        // The next call goes on after it: it was written so.
        is_readable.ok_or_else(|| StoreError::damaged(folder, format!("frame {} is not readable", frame.number)))
    }
}

/// Before the oldest record that is there.
fn oldest(folder: &Path, catalogue: &Catalogue) -> Result<Position, StoreError> {
    let frame = files(folder)?.first().map_or(catalogue.next_frame, |(first, _)| *first);
    let run = catalogue.boots.partition_point(|boot| boot.first_frame <= frame).checked_sub(1);
    // Of a run whose beginning is deleted the first number of each worker is not known.
    let run = run.filter(|run| catalogue.boots[*run].first_frame < frame).map(|run| run as u32);
    Ok(Position { frame, boot: run, is_unknown: true, ..Position::default() })
}

/// The position in the frames that there are now. A start that finds the journal of the previous
/// run cut or damaged uses the numbers of lost frames again; what was read before is known by the
/// sequence numbers of the workers.
fn within(catalogue: &Catalogue, mut position: Position) -> Position {
    let Some(boot) = position.boot else { return position };
    let cuts = catalogue.cuts.iter().filter(|cut| cut.boot == boot && cut.segment.is_none()).map(|cut| cut.frame);
    let next = catalogue.boots.get(boot as usize + 1).map(|boot| boot.first_frame);
    position.frame = cuts.chain(next).fold(position.frame, u64::min);
    position
}

/// The names that events from this position on may refer to: those at the end of the segment before
/// its file, and what the file has before it.
fn names_before(folder: &Path, catalogue: &Catalogue, position: &Position) -> Result<Names, StoreError> {
    let (mut hosts, mut first) = (names_at(folder, catalogue, position.frame)?, position.frame);
    let files = files(folder)?;
    let mut earlier = files.iter().rev().map(|(first, _)| *first).filter(|first| *first <= position.frame);
    // No segment ends where a window is being sealed, and where a killed instance left records.
    while hosts.0.is_none()
        && let Some(file) = earlier.next()
    {
        (hosts, first) = (names_at(folder, catalogue, file)?, file);
    }
    let from = Position { frame: first, boot: position.boot, ..Position::default() };
    let mut follower = Follower { hosts, ..Follower::at(folder, catalogue.clone(), from) }.without_ends();
    while follower.position.frame < position.frame && follower.step(|_| {})? {}
    // Frames are missing: later ones may have given numbers to other hosts.
    let is_there = follower.position.frame == position.frame;
    Ok(if is_there { follower.hosts } else { Names::default() })
}

/// The names that events from this frame on may refer to, if it is the first one after a segment.
fn names_at(folder: &Path, catalogue: &Catalogue, frame: u64) -> Result<Names, StoreError> {
    let mut names = HostNames::default();
    let before = catalogue.segments.values().find(|segment| segment.frames.0 < frame && frame <= segment.frames.1);
    let Some(before) = before else { return Ok(Names::default()) };
    let Written { footer_offset, bytes, .. } = before.written;
    let segment = SegmentFile::open(&segment_path(folder, before.id), footer_offset, bytes);
    let known = match segment.and_then(|mut segment| segment.names_at(frame)) {
        // A merge or the retention was faster, or the file is damaged: hosts have no name until it
        // is recorded again.
        Err(error) if error.is_damage() => return Ok(Names::default()),
        known => known?,
    };
    for row in known.rows.iter().filter(|row| row.is_current) {
        names.insert(row.number, WorkerId(row.worker), row.name);
    }
    Ok((Some(before.boot), names))
}

fn gap_event(sequence: u64, count: u64, at: Instant) -> Event {
    Event { sequence, amount: u32::try_from(count).unwrap_or(u32::MAX), ..Event::new(EventKind::Gap, at) }
}

/// Time of day by the clock setting of that time.
fn unix_us(clocks: &[Moment], monotonic_us: u64) -> u64 {
    let clock = clocks.iter().rev().find(|clock| clock.monotonic_us <= monotonic_us).or(clocks.first());
    monotonic_us.saturating_add_signed(clock.map_or(0, Moment::offset))
}

/// Reports what the runs before `boot` recorded after the position, and returns its number.
fn missing_until(catalogue: &Catalogue, position: &Position, boot: u32, each: &mut impl FnMut(Seen<'_>)) -> u64 {
    let Some(from) = position.boot else { return 0 };
    let known = (position.ends == Ends::Pending).then(|| missing_of(catalogue, from, &position.workers, each));
    let later = (from.saturating_add(1)..boot).map(|run| missing_of(catalogue, run, &BTreeMap::new(), each));
    known.unwrap_or(0) + later.sum::<u64>()
}

/// Reports what a run recorded from these next numbers of its workers on, and returns its number.
fn missing_of(catalogue: &Catalogue, run: u32, workers: &BTreeMap<u8, u64>, each: &mut impl FnMut(Seen<'_>)) -> u64 {
    let (mut lost, mut last) = (0, BTreeMap::new());
    let segments = catalogue.segments.values().chain(&catalogue.deleted).filter(|segment| segment.boot == run);
    for segment in segments {
        for (worker, _, number) in &segment.coverage.workers {
            let known = last.entry(*worker).or_insert((0, 0));
            *known = (*known).max((*number, segment.coverage.covered_us));
        }
    }
    let clocks = catalogue.boots.get(run as usize).map_or(&[][..], |boot| &boot.clocks);
    for (worker, (last, at_us)) in last {
        let next = workers.get(&worker).copied().unwrap_or(1);
        if last >= next {
            lost += last - next + 1;
            let event = gap_event(next, last - next + 1, Instant::from_micros(at_us));
            let (worker, unix_us) = (WorkerId(worker), unix_us(clocks, at_us));
            let subscriber = Subscriber::Ipv4(event.subscriber);
            each(Seen::Event { worker, event: &event, subscriber, unix_us, is_of_last_run: false });
        }
    }
    lost
}

#[cfg(test)]
mod tests;
