//! The writer: events into the journal, full windows into segments, segments into longer ones.
//!
//! ```text
//!   push ─► builder (what is held)            ┌─ thread: sort, encode ─► segment ─┐
//!        └► frame ─► journal file ─► window full                                   ├─► catalogue
//!                                             └─ thread: merge 64 segments to one ─┘
//! ```
//!
//! An event is safe when its frame is in the journal; the journal of a window is deleted when its
//! segment is on the disk and in the catalogue. A call that fails has changed nothing that the next
//! call does not repeat: frames that could not be written are kept and written later.

mod background;
mod journal_file;
mod recover;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use nat::event::Event;
use nat::types::WorkerId;

use self::background::Job;
use self::background::Merging;
use self::background::Sealing;
use self::background::Work;
use self::background::enter;
use self::background::merge_files;
use self::journal_file::create_journal;
use self::recover::Findings;
use self::recover::recover;
use super::aside;
use super::builder::Builder;
use super::builder::Coverage;
use super::catalogue;
use super::catalogue::CatalogueWriter;
use super::catalogue::Entry;
use super::catalogue::Moment;
use super::catalogue::Names;
use super::catalogue::Segment;
use super::catalogue::sync_folder;
use super::error::StoreError;
use super::folder;
use super::folder::FolderLock;
use super::follow;
use super::follow::CursorFile;
use super::journal;
use super::journal::Frame;
use super::journal::Hash;
use super::reserve;
use super::rings;
use super::rings::Ring;
use super::rings::Rings;
use super::segment::Written;
use super::unwritten::Unwritten;

pub(crate) use self::journal_file::JournalFile;
pub(crate) use self::journal_file::journals;
pub(crate) use self::journal_file::read_frames;
pub(crate) use self::journal_file::segment_path;

/// Waiting bytes at which the caller must stop adding events.
const WAITING_MAX: usize = 4 << 20;
/// Longest time between two frames while nothing happens, in µs: what is known about the present
/// is older by this.
const IDLE_US: u64 = 1_000_000;
/// A leap of the clock, in µs, that may be a mistake: an operator's, or a dead battery's.
const LEAP_US: i64 = 86_400_000_000;
/// After such a leap, retention deletes nothing for so long, in µs.
const LEAP_TRUSTED_US: u64 = 3_600_000_000;
/// Where rings are: a file system in memory.
const RINGS_FOLDER: &str = "/dev/shm";

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
    /// Bytes to keep free for a start while the disk is full; 0 for none.
    pub reserve_bytes: u64,
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
            reserve_bytes: 0,
            has_threads: true,
        }
    }
}

/// Segments that retention deleted, or would delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// How many.
    pub segments: u64,
    /// Time of day at which the first of them begins, µs since 1970.
    pub from_us: u64,
    /// The same of the first one that stays.
    pub until_us: u64,
}

impl Expired {
    /// The oldest of segments, as far as they begin before a time of day; never the newest.
    /// `begins`: of all, the oldest first.
    fn of(begins: impl ExactSizeIterator<Item = u64> + Clone, before_us: u64) -> Expired {
        let oldest = begins.len().saturating_sub(1);
        let segments = begins.clone().take(oldest).take_while(|at_us| *at_us < before_us).count();
        let at = |place: usize| begins.clone().nth(place).unwrap_or(0);
        Expired { segments: segments as u64, from_us: at(0), until_us: at(segments) }
    }

    /// Both together; `later` begins where this ends.
    pub(crate) fn join(&mut self, later: Expired) {
        let Expired { segments, from_us, .. } = *self;
        if later.segments > 0 {
            *self =
                if segments == 0 { later } else { Expired { segments: segments + later.segments, from_us, ..later } };
        }
    }
}

/// When a segment begins and ends, in µs since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Age {
    pub(crate) from_us: u64,
    pub(crate) covered_us: u64,
}

impl StoreOptions {
    /// What a retention would delete of segments of these ages, the oldest first.
    pub(crate) fn expiring(&self, ages: &[Age], now_us: u64) -> Expired {
        let Some(retention_us) = self.retention_us else { return Expired::default() };
        let span_us = self.span_us();
        let begins = ages.iter().map(|age| age.from_us.max(age.covered_us.saturating_sub(span_us)));
        Expired::of(begins, now_us.saturating_sub(retention_us))
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
    /// When the files were last known to be in the folder; None if that must be looked at now.
    checked_us: Option<u64>,
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
    /// What retention has deleted since the last question.
    expired: Expired,
    /// Entries of the catalogue at the last call of [`StoreWriter::ages`].
    ages_entries: u64,
    /// Set to end a merge early.
    is_ending: Arc<AtomicBool>,
    /// Segments that cannot be merged, because they are damaged.
    unreadable: BTreeSet<u64>,
    findings: Findings,
    /// Held as long as this writes.
    _lock: FolderLock,
}

/// Events between the request of memory and its use.
const AHEAD: usize = 12;

/// Opens or makes the catalogue of a store that is locked, and ends what an earlier writer left.
/// Also returns what it found.
fn open_catalogue(
    folder: &Path,
    options: &StoreOptions,
    now: Moment,
    uptime_us: i64,
) -> Result<(CatalogueWriter, Rings, Findings), StoreError> {
    let was_missing = catalogue::restore(folder)?;
    let own_key = folder.join(catalogue::KEY);
    let key_path = options.signing_key.as_ref().unwrap_or(&own_key);
    let is_new = !folder.join(catalogue::NAME).exists();
    if is_new && aside::has_store(folder) {
        return Err(StoreError::damaged(&folder.join(catalogue::NAME), "it is missing"));
    }
    let key = match catalogue::key_of(key_path, is_new) {
        Err(error) if error.is_damage() => {
            let what = error.to_string();
            return Err(StoreError::Key { path: key_path.clone(), what });
        }
        key => key?,
    };
    if is_new {
        catalogue::create(folder, &key, now.unix_us)?;
    }
    let mut catalogue = CatalogueWriter::open(folder, key)?;
    folder::clean(folder, &catalogue.catalogue)?;
    catalogue.sign_first()?;
    let rings = Rings::new(&options.rings_folder, folder, &catalogue.catalogue.store);
    let mut findings = recover(folder, &mut catalogue, &rings, now.unix_us as i64 - uptime_us)?;
    if was_missing {
        let folder = folder.display();
        findings.damage.push(format!(
            "store {folder}: its catalogue was missing and was made from its copy, so no record is lost"
        ));
    }
    // Also those of a start that was killed before it recorded them.
    for place in aside::unrecorded(folder, &catalogue.catalogue)? {
        let path = folder.join(&place);
        if aside::is_store_place(&place) {
            findings.damage.push(format!(
                "store {}: it is damaged and could not go on, so a new store begins; the earlier records are kept in {place}: \
                 natrix find --dir {} answers from what can be read of them",
                folder.display(),
                path.display()
            ));
        } else if path.join(catalogue::NAME).exists() {
            findings.damage.push(format!(
                "store {}: its catalogue was damaged and was restored from its copy, so no record is lost; the damaged \
                 file is kept in {place}",
                folder.display()
            ));
        }
        catalogue.append(Entry::Aside { unix_us: now.unix_us, place })?;
    }
    Ok((catalogue, rings, findings))
}

/// True if a start cannot go on with a store, because its files are not what was written. Not if
/// the disk or the configuration is wrong, or if a later release wrote it.
fn is_beyond_repair(error: &StoreError, folder: &Path, options: &StoreOptions) -> bool {
    match error {
        StoreError::Foreign { .. } => aside::has_store(folder),
        StoreError::Key { .. } => options.signing_key.is_none(),
        StoreError::Damaged { .. } => true,
        StoreError::Io { path, .. } => error.is_damage() && path.starts_with(folder),
        _ => false,
    }
}

impl StoreWriter {
    /// Opens the store in `folder`, or begins one in an empty or missing folder. What an earlier
    /// writer left in its journal becomes a segment. Begins a boot at this moment. Damage to files
    /// of the store does not keep it from that: see [`StoreWriter::damage`]. Nor does a full disk,
    /// if an earlier writer kept room for this.
    ///
    /// # Errors
    /// [`StoreError`] if the folder has another content, another process writes it, or the disk
    /// fails.
    pub fn open(folder: &Path, options: StoreOptions, now: Moment) -> Result<StoreWriter, StoreError> {
        StoreWriter::open_by(folder, options, || now)
    }

    /// As [`StoreWriter::open`], at the moment that `clocks` reads, possibly more than once.
    ///
    /// # Errors
    /// As [`StoreWriter::open`].
    pub fn open_by(
        folder: &Path,
        options: StoreOptions,
        clocks: impl Fn() -> Moment,
    ) -> Result<StoreWriter, StoreError> {
        let reserve_bytes = options.reserve_bytes;
        let (now, uptime_us) = rings::with_uptime(clocks);
        let mut opened = StoreWriter::open_once(folder, options.clone(), now, uptime_us);
        if opened.as_ref().is_err_and(reserve::is_full) && reserve::release(folder) {
            opened = StoreWriter::open_once(folder, options, now, uptime_us);
        }
        let opened = opened?;
        // Also for the start after this one.
        reserve::keep(folder, reserve_bytes);
        Ok(opened)
    }

    fn open_once(folder: &Path, options: StoreOptions, now: Moment, uptime_us: i64) -> Result<StoreWriter, StoreError> {
        let lock = FolderLock::of(folder)?;
        let (mut catalogue, rings, findings) = match open_catalogue(folder, &options, now, uptime_us) {
            Err(error) if is_beyond_repair(&error, folder, &options) => {
                let is_key_damaged = matches!(&error, StoreError::Key { .. });
                let unsent = aside::keep_store(folder, &options.rings_folder, is_key_damaged, now.unix_us)?;
                let (catalogue, rings, mut findings) = open_catalogue(folder, &options, now, uptime_us)?;
                // Their collectors have records of the store before: these sinks are not new.
                for (name, position, spool_bytes) in &unsent.cursors {
                    let name = name.strip_prefix(follow::CURSOR).unwrap_or(name);
                    CursorFile::new(folder, name, *spool_bytes).write(position)?;
                }
                if unsent.only_in_rings > 0 {
                    findings.damage.push(format!(
                        "store {}: the last {} records of the earlier store were in memory only; they are kept in its \
                         files ring-…, which no command reads",
                        folder.display(),
                        unsent.only_in_rings
                    ));
                }
                findings.damage.push(format!("the store could not go on: {error}"));
                (catalogue, rings, findings)
            }
            opened => opened?,
        };
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
            checked_us: None,
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
            expired: Expired::default(),
            ages_entries: 0,
            is_ending: Arc::default(),
            unreadable: BTreeSet::new(),
            findings,
            catalogue,
            _lock: lock,
        })
    }

    /// What this start found damaged, and what it did about it, in sentences.
    pub fn damage(&self) -> &[String] {
        &self.findings.damage
    }

    /// What this start found missing of the earlier run that changes no answer, in sentences.
    pub fn notices(&self) -> &[String] {
        &self.findings.notices
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

    /// True if the previous run ended without a stop and its last records may be lost.
    pub fn is_last_end_lost(&self) -> bool {
        let before = self.catalogue.catalogue.boots.iter().rev().nth(1);
        before.is_some_and(|boot| boot.is_end_lost)
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

    /// What retention has deleted since the last call.
    pub(crate) fn take_expired(&mut self) -> Expired {
        core::mem::take(&mut self.expired)
    }

    /// The ages of all segments, the oldest first, if they are others than at the last call.
    pub(crate) fn ages(&mut self) -> Option<Vec<Age>> {
        let entries = self.catalogue.catalogue.entries;
        let is_news = core::mem::replace(&mut self.ages_entries, entries) != entries;
        is_news.then(|| self.begins(u64::MAX).into_iter().map(|(_, age)| age).collect())
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
        self.check_files()?;
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

    /// Looks whether the files are still those of the folder, at most once in the interval of syncs
    /// while they are. What is written to others is lost.
    fn check_files(&mut self) -> Result<(), StoreError> {
        let now_us = self.now.monotonic_us;
        if self.checked_us.is_some_and(|at_us| now_us.saturating_sub(at_us) < self.options.sync_interval_us) {
            return Ok(());
        }
        if let Some((path, _)) = self.journal.as_ref().filter(|(path, file)| !folder::is_file_of(file, path)) {
            return Err(StoreError::Gone { path: path.clone() });
        }
        if !self.catalogue.is_in_place() {
            return Err(StoreError::Gone { path: self.folder.join(catalogue::NAME) });
        }
        self.checked_us = Some(now_us);
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
            reserve::keep(&self.folder, self.options.reserve_bytes);
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
        let retention_us = self.options.retention_us.filter(|_| may_expire);
        if let Some(retention_us) = retention_us {
            aside::expire(&self.folder, retention_us)?;
        }
        follow::trim(&self.folder, retention_us)
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
            let is_readable = !self.unreadable.contains(&segment.id)
                && !catalogue.damaged_of(segment.boot).any(|damaged| damaged == segment.id);
            let may_merge = is_readable && !segment.is_merged && Some(segment.frames.0) != newest;
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
        merged.written = match written {
            Err(error) => return self.leave_damaged(error),
            Ok(written) => written,
        };
        merged.id = self.catalogue.catalogue.next_segment;
        let old: Vec<u64> = self.catalogue.catalogue.segments.values().map(|segment| segment.id).collect();
        let path = segment_path(&self.folder, merged.id);
        fs::rename(self.folder.join("merging.new"), &path).map_err(StoreError::io(&path))?;
        sync_folder(&self.folder)?;
        self.catalogue.append(Entry::Merged(merged))?;
        let left: BTreeSet<u64> = self.catalogue.catalogue.segments.values().map(|segment| segment.id).collect();
        old.into_iter().filter(|id| !left.contains(id)).try_for_each(|id| self.remove_segment(id))
    }

    /// Deletes the file of a segment that the catalogue has no longer; it may be missing.
    fn remove_segment(&self, id: u64) -> Result<(), StoreError> {
        let path = segment_path(&self.folder, id);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StoreError::io(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Excludes a damaged segment from merges: that would fail again and again.
    ///
    /// # Errors
    /// The merge failed for another reason.
    fn leave_damaged(&mut self, error: StoreError) -> Result<(), StoreError> {
        let (StoreError::Damaged { path, .. } | StoreError::Io { path, .. }) = &error else { return Err(error) };
        let known = self.catalogue.catalogue.segments.values().map(|segment| segment.id);
        let damaged = known.into_iter().find(|id| segment_path(&self.folder, *id) == *path);
        match damaged.filter(|_| error.is_damage()) {
            Some(id) => {
                self.unreadable.insert(id);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// Deletes segments with records older than the retention, and records it. What is open is in
    /// the next one, too.
    fn expire(&mut self) -> Result<(), StoreError> {
        let Some(retention_us) = self.options.retention_us else { return Ok(()) };
        if self.now.monotonic_us < self.expires_from_us {
            return Ok(());
        }
        let before_us = self.now.unix_us.saturating_sub(retention_us);
        let begins = self.begins(self.options.span_us());
        let of = |some: &[(u64, Age)]| Expired::of(some.iter().map(|(_, age)| age.from_us), before_us);
        let count = of(&begins).segments as usize;
        for (place, (id, _)) in begins.iter().enumerate().take(count) {
            let unix_us = self.now.unix_us;
            self.catalogue.append(Entry::Deleted { id: *id, unix_us, retention_us })?;
            // Also if a later one fails.
            self.expired.join(of(&begins[place..place + 2]));
            self.remove_segment(*id)?;
        }
        Ok(())
    }

    /// All segments with their ages, the oldest first. Of one that is longer than `span_us`, only
    /// the last part counts.
    fn begins(&self, span_us: u64) -> Vec<(u64, Age)> {
        let catalogue = &self.catalogue.catalogue;
        let mut latest_us = self.now.unix_us;
        let mut begun = Vec::new();
        for segment in catalogue.segments.values().rev() {
            let Coverage { from_us, covered_us, .. } = segment.coverage;
            // A longer one was made with a longer retention: its last records stay their time.
            let from_us = from_us.max(covered_us.saturating_sub(span_us));
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
            let covered_us = covered_us.saturating_add_signed(offset);
            begun.push((segment.id, Age { from_us: own_us.min(latest_us), covered_us }));
        }
        begun.reverse();
        begun
    }

    /// Ends the boot: seals what is left and records a clean stop. With `compact`, merges what is
    /// left in short segments, too, which may take long.
    ///
    /// # Errors
    /// The disk failed. The journal has what no segment has.
    pub fn finish(mut self, now: Moment, covered_us: u64, compact: bool) -> Result<(), StoreError> {
        self.checked_us = None;
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
        self.catalogue.append(Entry::BootEnd { covered_us, is_clean: true, is_whole: true, is_end_lost: false })?;
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

#[cfg(test)]
mod tests;
