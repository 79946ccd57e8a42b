//! The writer: events into the journal, full windows into segments, segments into longer ones.
//!
//! ```text
//!   push ─► builder (who holds what)          ┌─ thread: sort, encode ─► segment ─┐
//!        └► frame ─► journal file ─► window full                                   ├─► catalogue
//!                                             └─ thread: merge 64 segments to one ─┘
//! ```
//!
//! An event is safe when its frame is in the journal; the journal of a window is deleted when its
//! segment is on the disk and in the catalogue. A call that fails has changed nothing that the next
//! call does not repeat: frames that could not be written are kept and written later.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

use nat::event::Event;
use nat::types::WorkerId;

use super::builder::Builder;
use super::builder::Coverage;
use super::builder::Window;
use super::catalogue;
use super::catalogue::Boot;
use super::catalogue::CatalogueWriter;
use super::catalogue::Entry;
use super::catalogue::FormulasInUse;
use super::catalogue::Moment;
use super::catalogue::Names;
use super::catalogue::Segment;
use super::catalogue::sync_folder;
use super::error::StoreError;
use super::folder;
use super::folder::FolderLock;
use super::follow;
use super::hosts::NameTable;
use super::journal;
use super::journal::Frame;
use super::journal::FrameRead;
use super::journal::Hash;
use super::merge;
use super::rings;
use super::rings::Leftover;
use super::rings::Ring;
use super::rings::RingLeft;
use super::rings::Rings;
use super::row::End;
use super::row::Row;
use super::segment;
use super::segment::SegmentFile;
use super::segment::Written;
use super::unwritten::STEP_US;
use super::unwritten::Unwritten;
use super::unwritten::UnwrittenLeft;
use crate::FILE_MODE;

/// Waiting bytes at which the caller must stop adding events.
const WAITING_MAX: usize = 4 << 20;
/// Longest time between two frames while nothing happens, in µs: what is known about the present
/// is older by this.
const IDLE_US: u64 = 1_000_000;
/// Difference of two readings of the clock between which it was not set: a step that is recorded,
/// and twice the resolution of the machine's uptime.
const SAME_CLOCK_US: u64 = STEP_US + 20_000;
/// A leap of the clock, in µs, that may be a mistake: an operator's, or a dead battery's.
const LEAP_US: i64 = 86_400_000_000;
/// After such a leap, retention deletes nothing for so long, in µs.
const LEAP_TRUSTED_US: u64 = 3_600_000_000;
/// Where rings are: a file system in memory.
const RINGS_FOLDER: &str = "/dev/shm";
/// Bytes of a frame of what the rings of a killed process had.
const LEFT_BYTES: usize = 1 << 20;
/// Bytes of them in memory before they are written.
const SPILL_BYTES: usize = 1 << 20;
/// A journal while it is made of what an earlier writer left.
const NEW_JOURNAL: &str = "journal.new";
/// Bytes that are at least looked at to find whole frames after a damaged one.
const SEARCH_BYTES: u64 = 64 << 20;
/// Longest journal that is read at once, when a store is opened.
const JOURNAL_MAX: u64 = 4 << 30;

/// Parts of the retention, each of one segment or several: at most one of them goes too early.
const SPANS: u64 = 64;
/// But no segment needs to span less than this, in µs, or than so many parts of a retention that is
/// shorter still.
const SPAN_LEAST_US: u64 = 60_000_000;
const SPANS_LEAST: u64 = 16;

/// How a store is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Intervals after which a window becomes a segment.
    pub segment_rows: usize,
    /// Age after which it does, in µs of the monotonic clock.
    pub segment_interval_us: u64,
    /// Segments that are merged to one.
    pub merge: usize,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Longest time from an event to its frame, in µs.
    pub frame_interval_us: u64,
    /// Longest time from a frame to the disk, in µs: what a power failure may lose.
    pub sync_interval_us: u64,
    /// No interval that ended longer ago than this stays: its segment is deleted.
    pub retention_us: Option<u64>,
    /// File of the key that signs the head; None for one in the store.
    pub signing_key: Option<PathBuf>,
    /// Folder of the workers' rings, in memory.
    pub rings_folder: PathBuf,
    /// True if sealing and merging may use a thread of their own.
    pub has_threads: bool,
}

impl StoreOptions {
    /// The time that a segment may span, in µs. A segment is deleted once its first record is too
    /// old, so its last one goes earlier than the retention by so much.
    fn span_us(&self) -> u64 {
        // Each segment has all that is open: a retention of minutes needs no more of them.
        let span_of = |retention_us: u64| (retention_us / SPANS).max(SPAN_LEAST_US.min(retention_us / SPANS_LEAST));
        self.retention_us.map_or(u64::MAX, span_of)
    }
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            segment_rows: 1 << 20,
            segment_interval_us: 3_600_000_000,
            merge: 64,
            frame_bytes: 256 << 10,
            frame_interval_us: 100_000,
            sync_interval_us: 1_000_000,
            retention_us: None,
            signing_key: None,
            rings_folder: PathBuf::from(RINGS_FOLDER),
            has_threads: true,
        }
    }
}

/// The state of a store that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Segments.
    pub segments: u64,
    /// Bytes of catalogue, segments and current journal.
    pub bytes: u64,
    /// Recorded gaps of sequence numbers.
    pub gaps: u64,
    /// Records in them.
    pub records_lost: u64,
    /// Starts that found the journal damaged, or without records that had been in it, or no head.
    pub cuts: u64,
}

/// A window that becomes a segment.
#[derive(Debug)]
struct Job {
    path: PathBuf,
    window: Window,
    frames: (u64, u64),
    last_frame: Hash,
    hashes: Vec<Hash>,
    boot: u32,
}

impl Job {
    fn run(&self) -> Result<Written, StoreError> {
        let Window { rows, others, names, .. } = &self.window;
        segment::write(&self.path, rows, others, (names, self.frames.1), &self.hashes)
    }
}

/// Work in progress, by a thread or already done.
#[derive(Debug)]
enum Work<T> {
    Thread(JoinHandle<T>),
    Done(T),
}

impl<T: Send + 'static> Work<T> {
    fn start(has_threads: bool, work: impl FnOnce() -> T + Send + 'static) -> Work<T> {
        if !has_threads {
            return Work::Done(work());
        }
        Work::Thread(thread::spawn(work))
    }

    fn is_finished(&self) -> bool {
        match self {
            Work::Thread(thread) => thread.is_finished(),
            Work::Done(_) => true,
        }
    }

    /// Waits, and forgets what came of it.
    fn end(self) {
        if let Work::Thread(thread) = self {
            // A panic there was reported by its own message.
            let _ = thread.join();
        }
    }

    fn wait(self) -> T {
        match self {
            Work::Thread(thread) => match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Work::Done(result) => result,
        }
    }
}

type Sealing = Work<(Box<Job>, Result<Written, StoreError>)>;
type Merging = Work<(Box<Segment>, Result<Written, StoreError>)>;

/// The only writer of a store. Dropping it without [`StoreWriter::finish`] is a crash: the next one
/// reads the journal.
#[derive(Debug)]
pub struct StoreWriter {
    folder: PathBuf,
    options: StoreOptions,
    catalogue: CatalogueWriter,
    boot: u32,
    builder: Builder,
    frame: Frame,
    /// Frames that are not written yet.
    pending: Vec<u8>,
    journal: Option<(PathBuf, File)>,
    journal_bytes: u64,
    first_frame: u64,
    next_frame: u64,
    last_frame: Hash,
    hashes: Vec<Hash>,
    /// Time of day less monotonic time, by the catalogue.
    offset: i64,
    /// By the monotonic clock: since when retention deletes.
    expires_from_us: u64,
    now: Moment,
    framed_us: u64,
    synced_us: u64,
    is_unsynced: bool,
    /// True if a sync failed: the system may have forgotten what it could not write, and the next
    /// sync would succeed.
    is_doubtful: bool,
    /// The frame after those of a doubtful journal: nothing is signed until a segment has them.
    doubtful_until: u64,
    window_us: u64,
    reach_back: Option<(u64, u64)>,
    sealing: Option<Sealing>,
    merging: Option<Merging>,
    /// True if segments may have become enough to merge.
    is_merge_due: bool,
    /// Steps of the clock and names that the catalogue does not have yet.
    unwritten: Arc<Unwritten>,
    rings: Rings,
    /// Time since the machine's boot less the clock of this run.
    base_us: i64,
    health: Health,
    /// Entries of the catalogue that `health` knows.
    health_entries: u64,
    /// Set to end a merge early.
    is_ending: Arc<AtomicBool>,
    /// Held as long as this writes.
    _lock: FolderLock,
}

/// Name of a segment's file.
pub(crate) fn segment_path(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("segment-{id:08x}"))
}

fn journal_path(folder: &Path, first_frame: u64) -> PathBuf {
    folder.join(format!("journal-{first_frame:016x}"))
}

/// The journal files of a store, by the number of their first frame.
pub(crate) fn journals(folder: &Path) -> Result<Vec<(u64, PathBuf)>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("journal-"));
        if let Some(first) = name.and_then(|name| u64::from_str_radix(name, 16).ok()) {
            found.push((first, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The frames after the last segment, in order, while they are whole and continue the chain.
/// Returns the number of bytes after the last whole one.
pub(crate) fn read_frames(
    folder: &Path,
    boot: u32,
    mut next: u64,
    mut last: Hash,
    mut each: impl FnMut(&FrameRead<'_>) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let mut left_over = 0;
    for (_, path) in journals(folder)? {
        let length = fs::metadata(&path).map_err(StoreError::io(&path))?.len();
        if length > JOURNAL_MAX {
            return Err(StoreError::damaged(&path, format!("{length} bytes are too many")));
        }
        let mut reader = JournalFile::open(&path, length)?;
        let mut is_whole = reader.is_journal;
        while is_whole {
            let Some(frame) = reader.next()? else { break };
            if frame.number < next {
                continue;
            }
            if frame.number > next || frame.before != last || frame.boot != boot {
                is_whole = false;
                break;
            }
            (next, last) = (next.saturating_add(1), frame.hash);
            each(&frame)?;
        }
        let rest = if is_whole { reader.left() } else { length };
        left_over += rest;
    }
    Ok(left_over)
}

/// Reads the frames of one file with a buffer of at most one frame and a half.
struct JournalFile {
    path: PathBuf,
    file: File,
    is_journal: bool,
    buffer: Vec<u8>,
    /// Consumed bytes of the buffer.
    at: usize,
    /// Bytes of the file that are not in the buffer.
    unread: u64,
}

/// Events between the request of memory and its use.
const AHEAD: usize = 12;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

impl JournalFile {
    fn open(path: &Path, length: u64) -> Result<JournalFile, StoreError> {
        let file = File::open(path).map_err(StoreError::io(path))?;
        let mut reader =
            JournalFile { path: path.to_owned(), file, is_journal: false, buffer: Vec::new(), at: 0, unread: length };
        reader.fill(journal::MAGIC.len())?;
        reader.is_journal = reader.buffer.starts_with(&journal::MAGIC);
        if reader.is_journal {
            reader.at = journal::MAGIC.len();
        }
        Ok(reader)
    }

    /// Makes at least `wanted` bytes available if the file has them.
    fn fill(&mut self, wanted: usize) -> Result<(), StoreError> {
        use std::io::Read;
        if self.buffer.len() - self.at >= wanted || self.unread == 0 {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.at = 0;
        let count = (wanted - self.buffer.len()).max(PIECE) as u64;
        let read = (&self.file).take(count.min(self.unread)).read_to_end(&mut self.buffer);
        let read = read.map_err(StoreError::io(&self.path))? as u64;
        self.unread = if read == 0 { 0 } else { self.unread - read };
        Ok(())
    }

    fn next(&mut self) -> Result<Option<FrameRead<'_>>, StoreError> {
        self.fill(journal::HEADER)?;
        let length = self.buffer.get(self.at..self.at + 4).and_then(|bytes| bytes.try_into().ok());
        let length = length.map_or(0, u32::from_le_bytes) as usize;
        if !(journal::HEADER..=journal::FRAME_MAX).contains(&length) {
            return Ok(None);
        }
        self.fill(length)?;
        let Some(frame) = FrameRead::parse(self.buffer.get(self.at..).unwrap_or_default()) else { return Ok(None) };
        self.at += frame.length;
        Ok(Some(frame))
    }

    /// Moves to the next whole frame of a boot, past bytes that are none. Returns false if there is
    /// none. `budget` is how many bytes of what looks like a frame and is none may be read.
    fn search(&mut self, boot: u32, budget: &mut u64) -> Result<bool, StoreError> {
        loop {
            self.fill(journal::HEADER)?;
            let Some(header) = self.buffer.get(self.at..self.at + journal::HEADER) else { return Ok(false) };
            if let Some(length) = journal::length_of(header, boot) {
                self.fill(length)?;
                if let Some(bytes) = self.buffer.get(self.at..self.at + length) {
                    if FrameRead::parse(bytes).is_some() {
                        return Ok(true);
                    }
                    // Bytes that only look like headers could make this take the square of time.
                    *budget = budget.saturating_sub(length as u64);
                    if *budget == 0 {
                        return Ok(false);
                    }
                }
            }
            self.at += 1;
        }
    }

    /// Bytes that are not in a whole frame.
    fn left(&self) -> u64 {
        self.unread + (self.buffer.len() - self.at) as u64
    }
}

impl StoreWriter {
    /// Opens the store in `folder`, or begins one in an empty or missing folder. What an earlier
    /// writer left in its journal becomes a segment. Begins a boot at this moment.
    ///
    /// # Errors
    /// [`StoreError`] if the folder has another content, another process writes it, or the disk
    /// fails.
    pub fn open(folder: &Path, options: StoreOptions, now: Moment) -> Result<StoreWriter, StoreError> {
        let uptime_us = rings::uptime_us();
        let lock = FolderLock::of(folder)?;
        let own_key = folder.join(catalogue::KEY);
        let key_path = options.signing_key.clone().unwrap_or(own_key);
        let is_new = !folder.join(catalogue::NAME).exists();
        let key = catalogue::key_of(&key_path, is_new)?;
        if is_new {
            catalogue::create(folder, &key, now.unix_us)?;
        }
        let mut catalogue = CatalogueWriter::open(folder, key)?;
        folder::clean(folder, &catalogue.catalogue)?;
        catalogue.sign_first()?;
        let rings = Rings::new(&options.rings_folder, folder, &catalogue.catalogue.store);
        recover(folder, &mut catalogue, &rings, now.unix_us as i64 - uptime_us)?;
        // What they had is in a segment.
        rings.remove().map_err(StoreError::io(&options.rings_folder))?;
        // A run that has not ended always has a journal, whenever a kill comes.
        let next_frame = catalogue.catalogue.next_frame;
        let journal = create_journal(folder, next_frame)?;
        let is_leap = catalogue.catalogue.has_leapt(now.unix_us, LEAP_US as u64, LEAP_TRUSTED_US);
        catalogue.append(Entry::Boot { id: catalogue::random_bytes(folder)?, moment: now })?;
        Ok(StoreWriter {
            folder: folder.to_owned(),
            options,
            boot: catalogue.catalogue.boots.len() as u32 - 1,
            builder: Builder::new(now.monotonic_us, None),
            frame: Frame::default(),
            pending: Vec::new(),
            journal: Some(journal),
            journal_bytes: journal::MAGIC.len() as u64,
            first_frame: next_frame,
            next_frame,
            last_frame: catalogue.catalogue.last_frame,
            hashes: Vec::new(),
            offset: now.offset(),
            expires_from_us: now.monotonic_us.saturating_add(if is_leap { LEAP_TRUSTED_US } else { 0 }),
            now,
            framed_us: now.monotonic_us,
            synced_us: now.monotonic_us,
            is_unsynced: false,
            is_doubtful: false,
            doubtful_until: 0,
            window_us: now.monotonic_us,
            reach_back: None,
            sealing: None,
            merging: None,
            is_merge_due: true,
            unwritten: Arc::new(Unwritten::new(now)),
            rings,
            base_us: uptime_us - now.monotonic_us as i64,
            health: Health::default(),
            health_entries: 0,
            is_ending: Arc::default(),
            catalogue,
            _lock: lock,
        })
    }

    /// Makes the rings of this run's workers. What is in them when the process is killed is not
    /// lost: the next writer of the store reads it.
    ///
    /// # Errors
    /// There is too little memory in the folder of rings, or it is not there.
    pub fn create_rings(&self, workers: usize, capacity: usize) -> Result<Vec<Ring>, StoreError> {
        let run = self.catalogue.catalogue.boots.last().map(|boot| boot.id).unwrap_or_default();
        let rings = self.rings.create(run, self.base_us, workers, capacity);
        let kept = rings.and_then(|rings| self.rings.keep(run, &self.unwritten).map(|()| rings));
        kept.map_err(StoreError::io(&self.options.rings_folder))
    }

    /// Steps of the clock and names that the catalogue does not have yet.
    pub(crate) fn unwritten(&self) -> &Arc<Unwritten> {
        &self.unwritten
    }

    /// Folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// How it is written.
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Changes how the store is written. Folders and key stay.
    pub fn set_options(&mut self, options: StoreOptions) {
        let StoreOptions { signing_key, rings_folder, .. } = core::mem::take(&mut self.options);
        self.options = StoreOptions { signing_key, rings_folder, ..options };
    }

    /// Sets the names for the numbers in events from now on.
    pub fn set_names(&mut self, names: Names) {
        self.unwritten.set_names(names);
    }

    /// Notes a reading of both clocks. What happened after the last one is not known for sure if
    /// the process is killed.
    pub fn note_clock(&mut self, now: Moment) {
        self.unwritten.note(now);
    }

    /// True if the journal has every event that was added: their sources need not keep them.
    pub fn is_all_written(&self) -> bool {
        self.pending.is_empty() && self.frame.is_empty()
    }

    /// The state of the store.
    pub fn health(&mut self) -> Health {
        let known = &self.catalogue.catalogue;
        if self.health_entries != known.entries {
            self.health_entries = known.entries;
            let mut health = Health::default();
            for segment in known.segments.values() {
                health.segments += 1;
                health.bytes = health.bytes.saturating_add(segment.written.bytes);
                health.gaps += segment.coverage.gaps.len() as u64;
                health.records_lost = health.records_lost.saturating_add(segment.coverage.lost());
            }
            health.bytes = health.bytes.saturating_add(known.length);
            health.cuts = known.cuts.len() as u64;
            self.health = health;
        }
        let (gaps, lost) = self.builder.gaps();
        Health {
            bytes: self.health.bytes.saturating_add(self.journal_bytes),
            gaps: self.health.gaps + gaps,
            records_lost: self.health.records_lost.saturating_add(lost),
            ..self.health
        }
    }

    /// True if more events may be added.
    pub fn has_room(&self) -> bool {
        self.pending.len() + self.frame.length() < WAITING_MAX
    }

    /// Adds an event of a worker. One that was added before, by its sequence number, is skipped.
    #[inline]
    pub fn push(&mut self, worker: WorkerId, event: &Event) {
        if self.builder.apply(worker.0, event) {
            self.frame.push(worker.0, event);
        }
    }

    /// Adds events of a worker, in order: faster than one by one.
    #[inline]
    pub fn push_all(&mut self, worker: WorkerId, events: &[Event]) {
        for (place, event) in events.iter().enumerate() {
            if let Some(later) = events.get(place + AHEAD) {
                self.builder.prefetch(later);
            }
            self.push(worker, event);
        }
    }

    /// Does what is due: frames, syncs, segments. `covered_us` is a time before which no event will
    /// follow, by the monotonic clock.
    ///
    /// # Errors
    /// The disk failed. Nothing is lost; call it again later.
    pub fn advance(&mut self, now: Moment, covered_us: u64) -> Result<(), StoreError> {
        self.now = now;
        self.unwritten.note(now);
        self.write_due()?;
        self.builder.cover(covered_us);
        let waited_us = now.monotonic_us.saturating_sub(self.framed_us);
        let is_due = if self.frame.is_empty() { IDLE_US } else { self.options.frame_interval_us };
        if self.frame.length() >= self.options.frame_bytes || waited_us >= is_due || !self.pending.is_empty() {
            self.flush()?;
        }
        if self.is_unsynced && now.monotonic_us.saturating_sub(self.synced_us) >= self.options.sync_interval_us {
            self.sync()?;
        }
        self.collect(false)?;
        let age_us = now.monotonic_us.saturating_sub(self.window_us);
        let open = self.builder.rows() - self.builder.weight().min(self.builder.rows());
        let is_full = self.builder.weight() >= self.options.segment_rows.max(open);
        let longest_us = self.options.segment_interval_us.min(self.options.span_us());
        let is_old = age_us >= longest_us && self.next_frame > self.first_frame;
        // What a doubtful journal should have is in memory: a segment is written of that.
        if is_full || is_old || self.is_doubtful {
            self.seal()?;
        }
        Ok(())
    }

    /// Writes steps of the clock and names. What fails is tried again by a later call.
    fn write_due(&mut self) -> Result<(), StoreError> {
        while let Some(entry) = self.unwritten.first(self.now.monotonic_us) {
            let offset = if let Entry::Clock { moment, .. } = &entry { moment.offset() } else { self.offset };
            self.catalogue.append(entry)?;
            self.unwritten.remove_first();
            if offset.saturating_sub(self.offset) > LEAP_US {
                self.expires_from_us = self.now.monotonic_us.saturating_add(LEAP_TRUSTED_US);
            }
            self.offset = offset;
        }
        Ok(())
    }

    /// Writes a frame of all that waits.
    ///
    /// # Errors
    /// As [`StoreWriter::advance`].
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.reach_back = self.reach_back.or_else(|| self.builder.take_reach_back());
        if let Some(period) = self.reach_back {
            self.catalogue.append(Entry::Uncertain { boot: self.boot, period })?;
            self.reach_back = None;
        }
        // After a failure, frames wait already; another one follows only if it has something.
        if self.pending.is_empty() || !self.frame.is_empty() {
            let covered_us = self.builder.covered_us();
            self.last_frame =
                self.frame.seal(&self.last_frame, self.next_frame, self.boot, covered_us, &mut self.pending);
            self.hashes.push(self.last_frame);
            self.next_frame += 1;
            self.framed_us = self.now.monotonic_us;
        }
        self.write_pending()
    }

    fn write_pending(&mut self) -> Result<(), StoreError> {
        let Some((path, file)) = &mut self.journal else {
            return Err(StoreError::damaged(&self.folder, "there is no journal"));
        };
        if let Err(source) = file.write_all(&self.pending) {
            // The next attempt writes all of it, at the same place.
            file.set_len(self.journal_bytes).map_err(StoreError::io(path))?;
            return Err(StoreError::Io { path: path.clone(), source });
        }
        self.journal_bytes += self.pending.len() as u64;
        self.pending.clear();
        self.is_unsynced = true;
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if let Some((path, file)) = &self.journal
            && let Err(source) = file.sync_data()
        {
            self.is_doubtful = true;
            return Err(StoreError::Io { path: path.clone(), source });
        }
        (self.is_unsynced, self.synced_us) = (false, self.now.monotonic_us);
        // A journal that is shorter later was cut.
        let is_certain = !self.is_doubtful && self.catalogue.catalogue.next_frame >= self.doubtful_until;
        if self.pending.is_empty() && is_certain {
            self.catalogue.sign_synced(self.next_frame, self.last_frame);
        }
        Ok(())
    }

    fn begin_journal(&mut self) -> Result<(), StoreError> {
        self.journal = Some(create_journal(&self.folder, self.next_frame)?);
        self.journal_bytes = journal::MAGIC.len() as u64;
        Ok(())
    }

    /// Ends the window: its intervals become a segment, and the next window begins.
    ///
    /// # Errors
    /// As [`StoreWriter::advance`].
    pub fn seal(&mut self) -> Result<(), StoreError> {
        self.collect(true)?;
        self.flush()?;
        self.sync()?;
        let before = self.journal.take();
        if let Err(error) = self.begin_journal() {
            self.journal = before;
            return Err(error);
        }
        let job = Box::new(Job {
            path: self.folder.join("sealing.new"),
            window: self.builder.cut(),
            frames: (self.first_frame, self.next_frame),
            last_frame: self.last_frame,
            hashes: core::mem::take(&mut self.hashes),
            boot: self.boot,
        });
        (self.first_frame, self.window_us) = (self.next_frame, self.now.monotonic_us);
        if core::mem::take(&mut self.is_doubtful) {
            self.doubtful_until = self.next_frame;
        }
        self.sealing = Some(Work::start(self.options.has_threads, move || {
            let written = job.run();
            (job, written)
        }));
        self.collect(false)
    }

    /// Enters finished segments in the catalogue. With `all`, waits for the one being sealed.
    fn collect(&mut self, all: bool) -> Result<(), StoreError> {
        if self.sealing.as_ref().is_some_and(|work| all || work.is_finished())
            && let Some(work) = self.sealing.take()
        {
            let (job, written) = work.wait();
            let entered = written.and_then(|written| enter(&mut self.catalogue, &self.folder, &job, written));
            if let Err(error) = entered {
                // The rows are still here: the next call tries again.
                self.sealing = Some(Work::start(self.options.has_threads, move || {
                    let written = job.run();
                    (job, written)
                }));
                return Err(error);
            }
            self.is_merge_due = true;
            self.builder.reuse(job.window.rows);
            self.remove_journals()?;
            self.expire()?;
        }
        if self.merging.as_ref().is_some_and(Work::is_finished) {
            self.is_merge_due = true;
            self.end_merge()?;
        }
        if self.merging.is_none() && core::mem::take(&mut self.is_merge_due) {
            self.begin_merge(self.options.merge, true);
        }
        Ok(())
    }

    fn remove_journals(&self) -> Result<(), StoreError> {
        for (first, path) in journals(&self.folder)? {
            if first < self.catalogue.catalogue.next_frame && first < self.first_frame {
                follow::retire(&self.folder, first, self.catalogue.catalogue.next_frame, &path)?;
            }
        }
        let may_expire = self.now.monotonic_us >= self.expires_from_us;
        follow::trim(&self.folder, self.options.retention_us.filter(|_| may_expire))
    }

    /// Starts to merge `count` neighbours, the newest segment of this boot apart.
    fn begin_merge(&mut self, count: usize, leave_newest: bool) {
        let catalogue = &self.catalogue.catalogue;
        let newest = catalogue.segments.last_key_value().map(|(first, _)| *first).filter(|_| leave_newest);
        let mut run: Vec<&Segment> = Vec::new();
        let mut is_full = false;
        for segment in catalogue.segments.values() {
            let spans_us = |first: &&Segment| segment.coverage.covered_us.saturating_sub(first.coverage.from_us);
            is_full = run.first().map_or(0, spans_us) > self.options.span_us();
            let continues = !is_full
                && run.last().is_none_or(|last| last.boot == segment.boot && last.frames.1 == segment.frames.0);
            let may_merge = !segment.is_merged && Some(segment.frames.0) != newest;
            // What an ended boot left behind is merged, too.
            let is_run_done = run.len() >= 2
                && (is_full || run.first().is_some_and(|first| first.boot != self.boot || !leave_newest));
            if !may_merge || !continues {
                if is_run_done {
                    break;
                }
                run.clear();
            }
            if may_merge {
                run.push(segment);
            }
            if run.len() >= count.max(2) {
                break;
            }
        }
        let is_of_ended = run.first().is_some_and(|first| first.boot != self.boot || !leave_newest);
        if run.len() < 2 || (run.len() < count && !is_full && !is_of_ended) {
            return;
        }
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let mut merged = Box::new(Segment { is_merged: true, ..(*first).clone() });
        (merged.frames.1, merged.last_frame) = (last.frames.1, last.last_frame);
        for segment in run.iter().skip(1) {
            merged.coverage.join(&segment.coverage);
        }
        let sources: Vec<(PathBuf, Written)> =
            run.iter().map(|segment| (segment_path(&self.folder, segment.id), segment.written)).collect();
        let path = self.folder.join("merging.new");
        let is_ending = Arc::clone(&self.is_ending);
        self.merging = Some(Work::start(self.options.has_threads, move || {
            let written = merge_files(&path, &sources, &is_ending);
            (merged, written)
        }));
    }

    fn end_merge(&mut self) -> Result<(), StoreError> {
        let Some(work) = self.merging.take() else { return Ok(()) };
        let (mut merged, written) = work.wait();
        // Retention may have deleted one of them while they were merged, even before its file was
        // opened: merge again without it.
        if !self.catalogue.catalogue.segments.contains_key(&merged.frames.0) {
            return Ok(());
        }
        merged.written = written?;
        merged.id = self.catalogue.catalogue.next_segment;
        let old: Vec<u64> = self.catalogue.catalogue.segments.values().map(|segment| segment.id).collect();
        let path = segment_path(&self.folder, merged.id);
        fs::rename(self.folder.join("merging.new"), &path).map_err(StoreError::io(&path))?;
        sync_folder(&self.folder)?;
        self.catalogue.append(Entry::Merged(merged))?;
        let left: BTreeSet<u64> = self.catalogue.catalogue.segments.values().map(|segment| segment.id).collect();
        for id in old.into_iter().filter(|id| !left.contains(id)) {
            let path = segment_path(&self.folder, id);
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
        Ok(())
    }

    /// Deletes segments with records older than the retention, and records it. What is open is in
    /// the next one, too.
    fn expire(&mut self) -> Result<(), StoreError> {
        let Some(retention_us) = self.options.retention_us else { return Ok(()) };
        if self.now.monotonic_us < self.expires_from_us {
            return Ok(());
        }
        let before_us = self.now.unix_us.saturating_sub(retention_us);
        for id in self.begun_before(before_us) {
            let unix_us = self.now.unix_us;
            self.catalogue.append(Entry::Deleted { id, unix_us, retention_us })?;
            let path = segment_path(&self.folder, id);
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
        Ok(())
    }

    /// The oldest segments, as far as they begin before a time of day; never the newest.
    fn begun_before(&self, before_us: u64) -> Vec<u64> {
        let catalogue = &self.catalogue.catalogue;
        let mut latest_us = self.now.unix_us;
        let mut begun = Vec::new();
        for segment in catalogue.segments.values().rev() {
            let Coverage { from_us, covered_us, .. } = segment.coverage;
            // A longer one was made with a longer retention: its last records stay their time.
            let from_us = from_us.max(covered_us.saturating_sub(self.options.span_us()));
            let clocks = catalogue.boots.get(segment.boot as usize).map_or(&[][..], |boot| &boot.clocks);
            let next = clocks.partition_point(|clock| clock.monotonic_us <= from_us);
            let during = clocks.iter().skip(next.saturating_sub(1));
            let during = during.take_while(|clock| clock.monotonic_us < covered_us.max(from_us + 1));
            let offset = during.map(Moment::offset).max().unwrap_or(0);
            let own_us = from_us.saturating_add_signed(offset);
            // With a clock that was ahead: not later than the next one.
            if own_us <= self.now.unix_us {
                latest_us = own_us;
            }
            begun.push((segment.id, own_us.min(latest_us)));
        }
        let oldest = begun.iter().skip(1).rev();
        oldest.take_while(|(_, at_us)| *at_us < before_us).map(|(id, _)| *id).collect()
    }

    /// Ends the boot: seals what is left and records a clean stop. With `compact`, merges what is
    /// left in short segments, too, which may take long.
    ///
    /// # Errors
    /// The disk failed. The journal has what no segment has.
    pub fn finish(mut self, now: Moment, covered_us: u64, compact: bool) -> Result<(), StoreError> {
        self.advance(now, covered_us)?;
        self.seal()?;
        self.collect(true)?;
        if compact {
            while let Some(merging) = self.merging.take() {
                self.merging = Some(Work::Done(merging.wait()));
                self.end_merge()?;
            }
            loop {
                self.begin_merge(self.options.merge, false);
                let Some(merging) = self.merging.take() else { break };
                self.merging = Some(Work::Done(merging.wait()));
                self.end_merge()?;
            }
        }
        self.catalogue.append(Entry::BootEnd { covered_us, is_clean: true, is_whole: true })?;
        if let Some((path, _)) = self.journal.take() {
            fs::remove_file(&path).map_err(StoreError::io(&path))?;
        }
        self.unwritten.end();
        self.rings.remove().map_err(StoreError::io(&self.options.rings_folder))
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        // A merge that has not ended is begun again by the next writer.
        self.is_ending.store(true, Ordering::Relaxed);
        // The lock must outlive the threads that write into the folder.
        if let Some(work) = self.sealing.take() {
            work.end();
        }
        if let Some(work) = self.merging.take() {
            work.end();
        }
    }
}

/// Makes the journal of the frames from `first` on.
fn create_journal(folder: &Path, first: u64) -> Result<(PathBuf, File), StoreError> {
    let path = journal_path(folder, first);
    let open = || {
        let mut file = File::options().create(true).append(true).mode(FILE_MODE).open(&path)?;
        file.set_len(0)?;
        file.write_all(&journal::MAGIC)?;
        Ok(file)
    };
    let file = open().map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    Ok((path, file))
}

/// Merges segment files to one.
fn merge_files(path: &Path, sources: &[(PathBuf, Written)], is_ending: &AtomicBool) -> Result<Written, StoreError> {
    let open = |(path, written): &(PathBuf, Written)| SegmentFile::open(path, written.footer_offset, written.bytes);
    let mut segments = sources.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    merge::merge(path, &mut segments, is_ending)
}

/// Gives a written segment its name and enters it in the catalogue.
fn enter(catalogue: &mut CatalogueWriter, folder: &Path, job: &Job, written: Written) -> Result<(), StoreError> {
    let id = catalogue.catalogue.next_segment;
    let path = segment_path(folder, id);
    fs::rename(&job.path, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    let segment = Segment {
        id,
        boot: job.boot,
        frames: job.frames,
        last_frame: job.last_frame,
        is_merged: false,
        coverage: job.window.coverage.clone(),
        written,
    };
    catalogue.append(Entry::Sealed(Box::new(segment)))
}

/// Makes a segment of the frames and rings that an earlier writer left, and ends its boot.
/// `offset_us` is the time of day less the time since the machine's boot.
fn recover(folder: &Path, catalogue: &mut CatalogueWriter, rings: &Rings, offset_us: i64) -> Result<(), StoreError> {
    let known = &catalogue.catalogue;
    let Some(boot) = known.boots.len().checked_sub(1) else { return Ok(()) };
    let Boot { id, clocks, ended, .. } = &known.boots[boot];
    let (id, is_ended) = (*id, ended.is_some());
    let began = clocks.first().map_or(0, |moment| moment.monotonic_us);
    let left = rings.left(id);
    let due = if is_ended { Vec::new() } else { missing_entries(&known.boots[boot], left.unwritten.as_ref()) };
    let steps =
        due.iter().filter_map(|entry| if let Entry::Clock { moment, .. } = entry { Some(moment) } else { None });
    let set = steps.chain(clocks.last()).max_by_key(|moment| moment.monotonic_us);
    let (offset, set_us) = set.map_or((0, 0), |moment| (moment.offset(), moment.monotonic_us));
    let boot = boot as u32;
    let mut builder = Builder::new(began, None);
    if let Some((coverage, open, names)) = last_of_boot(folder, known, boot)? {
        builder.resume(&coverage, open.into_iter(), &names);
    }
    let (mut hashes, mut last) = (Vec::new(), known.last_frame);
    let first = known.next_frame;
    let left_over = read_frames(folder, boot, first, known.last_frame, |frame| {
        let is_readable = frame.events(|worker, event| {
            builder.apply(worker, event);
        });
        is_readable.ok_or_else(|| StoreError::damaged(folder, format!("frame {} is not readable", frame.number)))?;
        builder.cover(frame.covered_us);
        hashes.push(frame.hash);
        last = frame.hash;
        Ok(())
    })?;
    // Each frame says that all before its time is in it or before it.
    builder.cover_all(builder.covered_us());
    let wrong = catalogue.first_wrong(first, &hashes);
    // An earlier start got as far as this.
    let is_known = catalogue.catalogue.cuts.last().is_some_and(|cut| cut.boot == boot);
    let mut rest = Rest::new(&mut builder, boot, (first, hashes, last));
    let frame = rest.next();
    let bytes = if left_over > 0 { left_over.saturating_sub(rest.add_frames(folder)?) } else { 0 };
    let (mut is_whole, mut set) = (false, None);
    if !is_ended {
        let is_covered = rest.add_rings(&left);
        // By the clock of that run. What a ring's file has may be damaged.
        let offset_now = offset_us.saturating_add(left.base_us);
        let is_clock_same = offset_now.abs_diff(offset) <= SAME_CLOCK_US;
        // What an earlier start found missing is a gap in the journal by now.
        is_whole = is_covered && is_clock_same && rest.missing == 0 && !is_known;
        let since_us = rest.known_us;
        let ahead_us = offset_now.saturating_sub(offset);
        // If the clock went forward by more than the rings cover, no record covers what it showed.
        let shows_again = ahead_us < rest.builder.covered_us().saturating_sub(since_us) as i64;
        if is_covered && !is_clock_same && shows_again {
            // The clock was set after the last frame, or after the end: nobody knows which.
            let monotonic_us = rest.builder.covered_us().max(set_us);
            let unix_us = monotonic_us.saturating_add_signed(offset_now);
            set = Some(Entry::Clock { moment: Moment { monotonic_us, unix_us }, since_us });
        }
    }
    // Before the journal is replaced: what was lost stays known.
    if (left_over > 0 || rest.missing > 0 || wrong.is_some()) && !is_known {
        let (frame, signed) = wrong.unwrap_or((frame, 0));
        catalogue.append(Entry::Cut { frame, bytes, signed })?;
    }
    let (hashes, last) = rest.write(folder)?;
    if let Some(period) = builder.take_reach_back() {
        catalogue.append(Entry::Uncertain { boot, period })?;
    }
    let next = first + hashes.len() as u64;
    let covered_us = builder.covered_us();
    for mut entry in due {
        entry.set_latest(covered_us);
        catalogue.append(entry)?;
    }
    if next > first {
        let window = builder.cut();
        let path = folder.join("sealing.new");
        let job = Job { path, window, frames: (first, next), last_frame: last, hashes, boot };
        let written = job.run()?;
        enter(catalogue, folder, &job, written)?;
    }
    if let Some(set) = set {
        catalogue.append(set)?;
    }
    if !is_ended {
        catalogue.append(Entry::BootEnd { covered_us, is_clean: false, is_whole })?;
    }
    for (first, path) in journals(folder)? {
        follow::retire(folder, first, catalogue.catalogue.next_frame, &path)?;
    }
    Ok(())
}

/// What an earlier writer had not written into the catalogue. It may have written the first ones,
/// and an earlier start all of them.
fn missing_entries(boot: &Boot, left: Option<&UnwrittenLeft>) -> Vec<Entry> {
    let known_us = boot.clocks.last().map_or(0, |moment| moment.monotonic_us);
    let is_missing = |entry: &&Entry| match entry {
        Entry::Clock { moment, .. } => moment.monotonic_us > known_us,
        Entry::Names { since_us, names, .. } => {
            let is_it = |known: &FormulasInUse| known.since_us == *since_us && known.checksum == names.formulas;
            !boot.formulas.iter().any(is_it)
        }
        _ => false,
    };
    left.map(|left| left.entries.iter().filter(is_missing).cloned().collect()).unwrap_or_default()
}

/// What an earlier writer left besides the frames that continue the chain. It becomes frames that
/// continue it.
struct Rest<'a> {
    builder: &'a mut Builder,
    boot: u32,
    /// Number of the first frame of the chain that no segment has.
    first: u64,
    /// Number of the first frame that is made here.
    made: u64,
    /// The frames from `first` on, and the last one of them.
    hashes: Vec<Hash>,
    last: Hash,
    frame: Frame,
    /// Frames that are not in the new journal yet, which is made once there are many.
    bytes: Vec<u8>,
    file: Option<File>,
    /// Until when the frames before these have everything.
    known_us: u64,
    /// Records that were in the journal and are not here.
    missing: u64,
}

impl<'a> Rest<'a> {
    fn new(builder: &'a mut Builder, boot: u32, (first, hashes, last): (u64, Vec<Hash>, Hash)) -> Rest<'a> {
        let (made, known_us) = (first + hashes.len() as u64, builder.covered_us());
        let (frame, bytes) = (Frame::default(), journal::MAGIC.to_vec());
        Rest { builder, boot, first, made, hashes, last, frame, bytes, file: None, known_us, missing: 0 }
    }

    /// Number of the next frame.
    fn next(&self) -> u64 {
        self.first + self.hashes.len() as u64
    }

    fn seal(&mut self, covered_us: u64) {
        let next = self.next();
        self.last = self.frame.seal(&self.last, next, self.boot, covered_us, &mut self.bytes);
        self.hashes.push(self.last);
    }

    /// Adds an event. What is in the journal, too, has a number that was there.
    fn push(&mut self, worker: u8, event: &Event) {
        self.missing += event.sequence.saturating_sub(self.builder.next_of(worker));
        if self.builder.apply(worker, event) {
            self.frame.push(worker, event);
        }
        if self.frame.length() >= LEFT_BYTES {
            self.seal(self.known_us);
        }
    }

    /// Adds whole frames after a damaged one; what is missing between is a gap, by the numbers.
    /// Returns their bytes.
    fn add_frames(&mut self, folder: &Path) -> Result<u64, StoreError> {
        let mut bytes = 0;
        for (_, path) in journals(folder)? {
            let length = fs::metadata(&path).map_err(StoreError::io(&path))?.len();
            let mut reader = JournalFile::open(&path, length)?;
            let mut budget = length.saturating_mul(2).saturating_add(SEARCH_BYTES);
            while reader.search(self.boot, &mut budget)? {
                let Some(frame) = reader.next()? else { break };
                if frame.number < self.made {
                    continue;
                }
                bytes += frame.length as u64;
                // What follows a section that cannot be read is a gap, too.
                let _ = frame.events(|worker, event| self.push(worker, event));
                self.spill(folder)?;
            }
        }
        Ok(bytes)
    }

    /// Writes the frames if there are many: a journal may have gigabytes after a damaged frame.
    fn spill(&mut self, folder: &Path) -> Result<(), StoreError> {
        if self.bytes.len() < SPILL_BYTES {
            return Ok(());
        }
        let path = folder.join(NEW_JOURNAL);
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::create(&path).map_err(StoreError::io(&path))?),
        };
        file.write_all(&self.bytes).map_err(StoreError::io(&path))?;
        self.bytes.clear();
        Ok(())
    }

    /// Adds what the rings have. They also say which numbers the journal must have; those that it
    /// has not are gaps. Returns true if every number is known until the time of the rings.
    fn add_rings(&mut self, left: &Leftover) -> bool {
        let mut covered_us = left.covered_us;
        for RingLeft { worker, next, events } in &left.rings {
            let count = next.saturating_sub(self.builder.next_of(*worker));
            match u32::try_from(count) {
                Ok(0) => {}
                Ok(amount) => {
                    let at_us = events.first().map(|event| event.at.as_micros()).or(left.covered_us);
                    let gap = self.builder.gap_of(*worker, amount, at_us.unwrap_or(self.known_us));
                    self.push(*worker, &gap);
                    self.missing += count;
                }
                // No ring's number.
                Err(_) => covered_us = None,
            }
            for event in events {
                self.push(*worker, event);
            }
        }
        self.builder.cover(covered_us.unwrap_or(self.known_us));
        covered_us.is_some()
    }

    /// Writes the frames into a journal. Returns the hashes of all that no segment has.
    fn write(mut self, folder: &Path) -> Result<(Vec<Hash>, Hash), StoreError> {
        if !self.frame.is_empty() || self.builder.covered_us() > self.known_us {
            self.seal(self.builder.covered_us());
        }
        if self.next() > self.made {
            let (new, path) = (folder.join(NEW_JOURNAL), journal_path(folder, self.made));
            match self.file.take() {
                None => catalogue::write_whole(&new, &self.bytes)?,
                Some(mut file) => {
                    file.write_all(&self.bytes).and_then(|()| file.sync_all()).map_err(StoreError::io(&new))?;
                }
            }
            fs::rename(&new, &path).map_err(StoreError::io(&path))?;
            sync_folder(folder)?;
        }
        Ok((self.hashes, self.last))
    }
}

/// The coverage of the last segment of a boot and what was open at its end.
fn last_of_boot(
    folder: &Path,
    known: &catalogue::Catalogue,
    boot: u32,
) -> Result<Option<(Coverage, Vec<Row>, NameTable)>, StoreError> {
    let Some(last) = known.of_boot(boot).last() else { return Ok(None) };
    let Written { footer_offset, bytes, .. } = last.written;
    let mut file = SegmentFile::open(&segment_path(folder, last.id), footer_offset, bytes)?;
    let mut open = Vec::new();
    file.all(|row| {
        if row.until == End::Open {
            open.push(*row);
        }
    })?;
    let names = file.names_at(last.frames.1)?;
    Ok(Some((last.coverage.clone(), open, names)))
}

#[cfg(test)]
mod tests {
    use nat::event::EventKind;

    use super::super::Generated;
    use super::super::Generator;
    use super::super::Question;
    use super::super::Store;
    use super::super::catalogue::Head;
    use super::super::verify;
    use super::*;

    /// Makes a store whose journal is in another file for one of three rounds. Returns how many
    /// calls failed.
    fn with_faults(name: &str, faulty: &str) -> u32 {
        let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut generator = Generator::new(Generated::Mappings(20_000), 2);
        let mut writer = StoreWriter::open(&folder, StoreOptions::default(), Generator::begin()).unwrap();
        let (mut events, mut count, mut failures) = (Vec::new(), 0, 0);
        for round in 0.. {
            events.clear();
            generator.fill(500, &mut events);
            if events.is_empty() {
                break;
            }
            let kept = writer.journal.as_ref().map(|(path, file)| (path.clone(), file.try_clone().unwrap()));
            let is_faulty = round % 3 == 1;
            if is_faulty {
                let path = kept.as_ref().map(|(path, _)| path.clone()).unwrap();
                writer.journal = Some((path, File::options().write(true).open(faulty).unwrap()));
            }
            writer.push_all(Generator::WORKER, &events);
            count += events.len() as u64;
            let now = generator.now();
            let mut done = writer.advance(now, now.monotonic_us).and_then(|()| writer.flush());
            if is_faulty {
                done = done.and_then(|()| writer.sync());
            }
            failures += u32::from(done.is_err());
            if is_faulty {
                writer.journal = kept;
            }
        }
        let now = generator.now();
        writer.finish(now, now.monotonic_us, false).unwrap();
        assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        let stat = Store::open(&folder).unwrap().stat().unwrap();
        assert_eq!((stat.records, stat.mappings, stat.lost), (count, 20_000, 0));
        fs::remove_dir_all(&folder).unwrap();
        failures
    }

    #[test]
    fn what_was_left_is_written_as_it_comes() {
        let folder = std::env::temp_dir().join(format!("natrix-store-spill-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut generator = Generator::new(Generated::Mappings(150_000), 2);
        let mut builder = Builder::new(0, None);
        let mut rest = Rest::new(&mut builder, 0, (0, Vec::new(), [0; 32]));
        let (mut events, mut count, mut most) = (Vec::new(), 0, 0);
        loop {
            events.clear();
            generator.fill(1_000, &mut events);
            if events.is_empty() {
                break;
            }
            events.iter().for_each(|event| rest.push(0, event));
            rest.spill(&folder).unwrap();
            (count, most) = (count + events.len(), most.max(rest.bytes.len()));
        }
        assert!(most < SPILL_BYTES, "{most} bytes are in memory");
        rest.write(&folder).unwrap();
        let mut found = 0;
        read_frames(&folder, 0, 0, [0; 32], |frame| {
            frame.events(|_, _| found += 1).unwrap();
            Ok(())
        })
        .unwrap();
        assert!(found == count && count > 150_000, "{found} of {count}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_full_disk_neither_loses_nor_repeats_records() {
        assert!(with_faults("full", "/dev/full") > 10);
    }

    #[test]
    fn input_and_output_errors_neither_lose_nor_repeat_records() {
        // The first page has no memory: writing there is EIO.
        assert!(with_faults("eio", "/proc/self/mem") > 10);
    }

    #[test]
    fn what_a_failed_sync_forgot_is_sealed_from_memory() {
        // It takes what is written, forgets it, and cannot be synced.
        assert!(with_faults("sync", "/dev/null") > 10);
    }

    /// Makes a store without threads in a folder of that name.
    fn store(name: &str) -> (PathBuf, StoreWriter) {
        let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let options = StoreOptions { rings_folder: folder.clone(), has_threads: false, ..StoreOptions::default() };
        let writer = StoreWriter::open(&folder, options, Generator::begin()).unwrap();
        (folder, writer)
    }

    /// Events of the next second, taken by the writer.
    fn push_a_second(writer: &mut StoreWriter, generator: &mut Generator) {
        let mut events = Vec::new();
        generator.fill(500, &mut events);
        writer.push_all(Generator::WORKER, &events);
        writer.now = generator.now();
        writer.flush().unwrap();
    }

    #[test]
    fn a_head_that_is_not_on_the_disk_replaces_none() {
        let (folder, mut writer) = store("head");
        let mut generator = Generator::new(Generated::Mappings(2_000), 4);
        let head = || fs::read_to_string(folder.join("head")).unwrap();
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        let first = head();
        // It takes what is written, and cannot be synced.
        let new = folder.join("head.new");
        std::os::unix::fs::symlink("/dev/null", &new).unwrap();
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        assert_eq!(head(), first);
        fs::remove_file(&new).unwrap();
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        assert_ne!(head(), first);
        assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        drop(writer);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn frames_of_a_doubtful_journal_are_not_signed() {
        let (folder, mut writer) = store("doubtful");
        let mut generator = Generator::new(Generated::Mappings(2_000), 5);
        let signed = |writer: &StoreWriter| {
            Head::read(&folder.join(catalogue::HEAD), &writer.catalogue.catalogue.key).unwrap().frames
        };
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        let (journal, before) = (writer.journal.as_ref().unwrap().0.clone(), signed(&writer));
        let is_on_disk = fs::read(&journal).unwrap();
        // A sync fails, and the segment cannot be written yet.
        push_a_second(&mut writer, &mut generator);
        writer.is_doubtful = true;
        fs::create_dir(folder.join("sealing.new")).unwrap();
        writer.seal().unwrap_err();
        for _ in 0..2 {
            push_a_second(&mut writer, &mut generator);
            writer.sync().unwrap();
            assert_eq!(signed(&writer), before);
        }
        // A power cut now loses what the system forgot, which is no tampering.
        let copy = folder.with_extension("copy");
        let _ = fs::remove_dir_all(&copy);
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
            }
        }
        fs::write(copy.join(journal.file_name().unwrap()), is_on_disk).unwrap();
        let options = writer.options.clone();
        drop(StoreWriter::open(&copy, options, generator.now()).unwrap());
        assert_eq!(verify(&copy, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        // When the segment has it, all is signed again.
        fs::remove_dir(folder.join("sealing.new")).unwrap();
        writer.seal().unwrap_or_default();
        writer.seal().unwrap();
        push_a_second(&mut writer, &mut generator);
        writer.sync().unwrap();
        assert_eq!(signed(&writer), writer.next_frame);
        drop(writer);
        assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        fs::remove_dir_all(&folder).unwrap();
        fs::remove_dir_all(&copy).unwrap();
    }

    #[test]
    fn a_run_that_lost_records_is_not_whole_after_two_starts() {
        let (folder, mut writer) = store("repeated");
        let (uptime_us, mut events) = (rings::uptime_us(), Vec::new());
        let mut generator = Generator::new(Generated::Mappings(2_000), 6);
        let (mut producer, mut consumer) = writer.create_rings(1, 4_096).unwrap().remove(0);
        let mut length = 0;
        for _ in 0..2 {
            length = writer.journal_bytes;
            events.clear();
            generator.fill(500, &mut events);
            events.iter().for_each(|event| producer.try_push((*event).into()).unwrap());
            consumer.hold_burst(events.len(), |_| {});
            writer.push_all(Generator::WORKER, &events);
            writer.flush().unwrap();
            consumer.release_at(events.last().unwrap().sequence + 1);
        }
        producer.mark(generator.now().monotonic_us);
        let journal = writer.journal.as_ref().unwrap().0.clone();
        let (options, rings) = (writer.options.clone(), writer.rings.clone());
        drop((writer, producer, consumer));
        File::options().write(true).open(&journal).unwrap().set_len(length).unwrap();
        // The clock runs on as it was.
        let now = || {
            let Moment { monotonic_us, unix_us } = Generator::begin();
            let unix_us = unix_us.saturating_add_signed(rings::uptime_us() - uptime_us);
            (Moment { monotonic_us, unix_us }, unix_us as i64 - rings::uptime_us())
        };
        // A start fails after it has put the rest of the journal together.
        let key = catalogue::read_key(&folder.join(catalogue::KEY)).unwrap();
        let mut catalogue = CatalogueWriter::open(&folder, key).unwrap();
        fs::create_dir(folder.join("sealing.new")).unwrap();
        recover(&folder, &mut catalogue, &rings, now().1).unwrap_err();
        assert_eq!(catalogue.catalogue.cuts.len(), 1);
        fs::remove_dir(folder.join("sealing.new")).unwrap();
        let writer = StoreWriter::open(&folder, options, now().0).unwrap();
        let first = &writer.catalogue.catalogue.boots[0];
        assert!(first.ended.is_some() && !first.is_whole, "{first:?}");
        drop(writer);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_retention_deletes_before_a_merge_opens_it_is_no_fault() {
        let folder = std::env::temp_dir().join(format!("natrix-store-expired-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut generator = Generator::new(Generated::Mappings(5_000), 3);
        let options = StoreOptions { merge: 100, has_threads: false, ..StoreOptions::default() };
        let mut writer = StoreWriter::open(&folder, options, Generator::begin()).unwrap();
        let mut events = Vec::new();
        loop {
            events.clear();
            generator.fill(500, &mut events);
            if events.is_empty() {
                break;
            }
            writer.push_all(Generator::WORKER, &events);
            let now = generator.now();
            writer.advance(now, now.monotonic_us).unwrap();
            writer.seal().unwrap();
        }
        let oldest = writer.catalogue.catalogue.segments.values().next().unwrap().clone();
        let path = segment_path(&folder, oldest.id);
        writer.options.retention_us = Some(0);
        writer.expire().unwrap();
        assert!(!path.exists());
        let not_found = StoreError::Io { path, source: std::io::ErrorKind::NotFound.into() };
        writer.merging = Some(Work::Done((Box::new(oldest), Err(not_found))));
        writer.collect(false).unwrap();
        let now = generator.now();
        writer.finish(now, now.monotonic_us, true).unwrap();
        assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        fs::remove_dir_all(&folder).unwrap();
    }

    /// A time of both clocks, so many seconds after the start, with a clock that is so many behind.
    fn moment(second: u64, behind: u64) -> Moment {
        let Moment { monotonic_us, unix_us } = Generator::begin();
        Moment { monotonic_us: monotonic_us + second * 1_000_000, unix_us: unix_us + (second - behind) * 1_000_000 }
    }

    fn names(configuration: u32, formulas: u32) -> Names {
        Names { formulas, configuration, ..Names::default() }
    }

    /// An endpoint is of one subscriber until second 20, and of another from second 25 to 35. In
    /// seconds 24 to 40 the catalogue cannot be written. Meanwhile the clock is 18 s behind, then
    /// right again, and other formulas are in use, then the first ones again.
    fn with_a_failing_catalogue(name: &str, is_killed: bool) -> (PathBuf, Store) {
        let (folder, mut writer) = store(name);
        let (mut producer, mut consumer) = writer.create_rings(1, 64).unwrap().remove(0);
        let mut push = |writer: &mut StoreWriter, sequence, kind, second, subscriber| {
            let at = nat::Instant::from_micros(moment(second, 0).monotonic_us);
            let event = Event {
                sequence,
                subscriber: [100, 64, 0, subscriber].into(),
                external: [203, 0, 113, 42].into(),
                internal_port: 4_000,
                first_port: 1_024,
                last_port: 1_024,
                protocol: Some(nat::Protocol::Udp),
                ..Event::new(kind, at)
            };
            producer.try_push(event.into()).unwrap();
            producer.mark(event.at.as_micros());
            consumer.hold_burst(64, |_| {});
            writer.push(WorkerId(0), &event);
        };
        let advance = |writer: &mut StoreWriter, second, behind| {
            let now = moment(second, behind);
            writer.advance(now, now.monotonic_us)
        };
        writer.set_names(names(0, 7));
        push(&mut writer, 1, EventKind::MappingCreated, 2, 40);
        push(&mut writer, 2, EventKind::MappingEnded, 20, 40);
        advance(&mut writer, 23, 0).unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let good = core::mem::replace(&mut writer.catalogue.file, full);
        writer.set_names(names(1, 8));
        push(&mut writer, 3, EventKind::MappingCreated, 25, 41);
        for (second, behind) in [(26, 18), (30, 18), (36, 0)] {
            if second == 36 {
                push(&mut writer, 4, EventKind::MappingEnded, 35, 41);
                writer.set_names(names(2, 7));
            }
            advance(&mut writer, second, behind).unwrap_err();
        }
        producer.mark(moment(40, 0).monotonic_us);
        writer.note_clock(moment(40, 0));
        if is_killed {
            let options = writer.options.clone();
            drop((writer, producer, consumer));
            writer = StoreWriter::open(&folder, options, moment(3_600, 0)).unwrap();
        } else {
            writer.catalogue.file = good;
            advance(&mut writer, 40, 0).unwrap();
        }
        let now = moment(3_601, 0);
        writer.finish(now, now.monotonic_us, false).unwrap();
        assert_eq!(verify(&folder, None, |_, _| {}).unwrap().faults, Vec::<String>::new());
        let store = Store::open(&folder).unwrap();
        (folder, store)
    }

    #[test]
    fn what_was_so_while_nothing_could_be_written_is_recorded() {
        for is_killed in [false, true] {
            let (folder, store) = with_a_failing_catalogue(&format!("due-{is_killed}"), is_killed);
            let ask = |second| {
                let at_us = moment(second, 0).unix_us;
                let (address, port) = ([203, 0, 113, 42].into(), Some(1_024));
                store
                    .look_up(&Question { address, host: None, port, protocol: None, from_us: at_us, to_us: at_us })
                    .unwrap()
            };
            // At second 30 the machine showed second 12.
            let found = ask(12);
            let mut holders: Vec<u8> = found.holders.iter().map(|holder| last_byte(holder.subscriber)).collect();
            holders.sort_unstable();
            assert_eq!(holders, [40, 41], "killed {is_killed}: {found:?}");
            assert!(!found.notes.is_empty(), "killed {is_killed}: {found:?}");
            // The other formulas were in use at that time, or may have been.
            let found = ask(38);
            assert!(found.formulas.contains(&8), "killed {is_killed}: {found:?}");
            assert!(!ask(15).formulas.is_empty());
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    fn last_byte(subscriber: crate::Subscriber) -> u8 {
        match subscriber {
            crate::Subscriber::Ipv4(address) => address.octets()[3],
            _ => 0,
        }
    }

    const HOUR_US: u64 = 3_600_000_000;

    /// A store that is written by a clock, with a segment each `hours`.
    struct Aged {
        folder: PathBuf,
        unix_us: u64,
    }

    impl Aged {
        fn new(name: &str) -> Aged {
            let folder = std::env::temp_dir().join(format!("natrix-store-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&folder);
            Aged { folder, unix_us: Generator::begin().unix_us }
        }

        fn now(&self, monotonic_us: u64) -> Moment {
            Moment { monotonic_us, unix_us: self.unix_us + monotonic_us }
        }

        fn open(&self, monotonic_us: u64, retention_us: Option<u64>) -> StoreWriter {
            let options = StoreOptions {
                retention_us,
                has_threads: false,
                segment_interval_us: u64::MAX,
                merge: 1_000,
                ..StoreOptions::default()
            };
            StoreWriter::open(&self.folder, options, self.now(monotonic_us)).unwrap()
        }

        /// Goes on for some hours and seals.
        fn go(&self, writer: &mut StoreWriter, hours: u64) {
            let now = self.now(writer.now.monotonic_us + hours * HOUR_US);
            writer.advance(now, now.monotonic_us).unwrap();
            writer.seal().unwrap();
            writer.collect(true).unwrap();
        }
    }

    impl Drop for Aged {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    fn ids(writer: &StoreWriter) -> Vec<u64> {
        writer.catalogue.catalogue.segments.values().map(|segment| segment.id).collect()
    }

    #[test]
    fn a_clock_set_back_at_the_end_deletes_nothing_from_before() {
        let mut aged = Aged::new("set-back");
        let mut writer = aged.open(1_000_000, Some(24 * HOUR_US));
        (0..5).for_each(|_| aged.go(&mut writer, 1));
        let known = ids(&writer);
        aged.unix_us -= 1_000 * HOUR_US;
        aged.go(&mut writer, 1);
        aged.unix_us += 1_000 * HOUR_US;
        // By then a leap forward is believed.
        (0..3).for_each(|_| aged.go(&mut writer, 1));
        assert!(ids(&writer).starts_with(&known), "{:?}", ids(&writer));
    }

    fn oldest_boot(writer: &StoreWriter) -> u32 {
        writer.catalogue.catalogue.segments.values().next().unwrap().boot
    }

    #[test]
    fn a_leap_of_the_clock_deletes_nothing_for_an_hour() {
        let mut aged = Aged::new("leap");
        let retention = Some(240 * HOUR_US);
        let mut writer = aged.open(1_000_000, retention);
        (0..3).for_each(|_| aged.go(&mut writer, 1));
        let now = writer.now;
        writer.finish(now, now.monotonic_us, false).unwrap();
        // A dead battery: 400 days ahead, over two starts.
        aged.unix_us += 400 * 24 * HOUR_US;
        for _ in 0..2 {
            let mut writer = aged.open(5 * HOUR_US, retention);
            aged.go(&mut writer, 0);
            assert_eq!(oldest_boot(&writer), 0);
            let now = aged.now(5 * HOUR_US + 60_000_000);
            writer.finish(now, now.monotonic_us, false).unwrap();
        }
        let mut writer = aged.open(6 * HOUR_US, retention);
        aged.go(&mut writer, 0);
        assert_eq!(oldest_boot(&writer), 0);
        // By then somebody has seen it.
        aged.go(&mut writer, 1);
        assert_eq!(oldest_boot(&writer), 1);
    }

    #[test]
    fn a_segment_of_a_longer_retention_keeps_its_last_records() {
        let aged = Aged::new("longer");
        let mut writer = aged.open(1_000_000, None);
        // It spans 20 hours, then each an hour.
        aged.go(&mut writer, 20);
        let long = ids(&writer)[0];
        writer.options.retention_us = Some(24 * HOUR_US);
        for hours in 1..24 {
            aged.go(&mut writer, 1);
            assert!(ids(&writer).contains(&long), "its last records are {hours} hours old");
        }
        aged.go(&mut writer, 2);
        assert!(!ids(&writer).contains(&long));
    }

    #[test]
    fn segments_of_a_clock_that_was_ahead_go_with_their_neighbours() {
        let mut aged = Aged::new("ahead");
        let mut writer = aged.open(1_000_000, Some(24 * HOUR_US));
        aged.go(&mut writer, 1);
        aged.unix_us += 20 * HOUR_US;
        aged.go(&mut writer, 1);
        let ahead = ids(&writer)[1];
        aged.unix_us -= 20 * HOUR_US;
        (0..23).for_each(|_| aged.go(&mut writer, 1));
        assert!(ids(&writer).contains(&ahead));
        (0..3).for_each(|_| aged.go(&mut writer, 1));
        assert!(!ids(&writer).contains(&ahead), "{:?}", ids(&writer));
    }

    #[test]
    fn a_short_retention_makes_no_tiny_segments() {
        let span_s = |retention_s: u64| {
            let retention_us = Some(retention_s * 1_000_000);
            StoreOptions { retention_us, ..StoreOptions::default() }.span_us() as f64 / 1e6
        };
        assert_eq!([span_s(4), span_s(600), span_s(1_800), span_s(86_400)], [0.25, 37.5, 60.0, 1_350.0]);
    }
}
