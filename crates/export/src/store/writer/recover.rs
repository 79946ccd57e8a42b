//! What an earlier writer left: its frames and rings become a segment, and its boot ends.

use std::fs;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

use nat::event::Cause;
use nat::event::Event;

use super::background::Job;
use super::background::enter;
use super::journal_file::JournalFile;
use super::journal_file::journal_path;
use super::journals;
use super::read_frames;
use super::segment_path;
use crate::store::aside;
use crate::store::builder::Builder;
use crate::store::builder::Coverage;
use crate::store::catalogue;
use crate::store::catalogue::Boot;
use crate::store::catalogue::CatalogueWriter;
use crate::store::catalogue::Entry;
use crate::store::catalogue::FormulasInUse;
use crate::store::catalogue::Moment;
use crate::store::catalogue::Segment;
use crate::store::catalogue::sync_folder;
use crate::store::error::StoreError;
use crate::store::follow;
use crate::store::hosts::NameTable;
use crate::store::journal;
use crate::store::journal::Frame;
use crate::store::journal::Hash;
use crate::store::rings::RingLeft;
use crate::store::rings::RingRemains;
use crate::store::rings::Rings;
use crate::store::row::End;
use crate::store::row::Row;
use crate::store::segment::SegmentFile;
use crate::store::segment::Written;
use crate::store::unwritten::STEP_US;
use crate::store::unwritten::UnwrittenLeft;

/// Difference of two readings of the clock between which it was not set: a step that is recorded,
/// and what two readings may be off on a busy machine.
const SAME_CLOCK_US: u64 = STEP_US + 20_000;
/// Bytes of a frame of what the rings of a killed process had.
const LEFT_BYTES: usize = 1 << 20;
/// Bytes of them in memory before they are written.
pub(super) const SPILL_BYTES: usize = 1 << 20;
/// A journal while it is made of what an earlier writer left.
const NEW_JOURNAL: &str = "journal.new";
/// Bytes that are at least looked at to find whole frames after a damaged one.
const SEARCH_BYTES: u64 = 64 << 20;

/// What a start found of an earlier run, in sentences.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What is damaged, or lacks records that answers need.
    pub(super) damage: Vec<String>,
    /// What changes no answer.
    pub(super) notices: Vec<String>,
}

/// Makes a segment of the frames and rings that an earlier writer left, and ends its boot.
/// `offset_us` is the time of day less the time since the machine's boot. Returns what it found.
pub(super) fn recover(
    folder: &Path,
    catalogue: &mut CatalogueWriter,
    rings: &Rings,
    offset_us: i64,
) -> Result<Findings, StoreError> {
    let known = &catalogue.catalogue;
    let (mut damage, mut notices) = (Vec::new(), Vec::new());
    let Some(boot) = known.boots.len().checked_sub(1) else { return Ok(Findings::default()) };
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
    let (mut hashes, mut last) = (Vec::new(), known.last_frame);
    let (first, before) = (known.next_frame, known.last_frame);
    // All that an ended run left is in segments.
    let resumed = if is_ended { None } else { last_of_boot(folder, known, boot)? };
    if let Some(Resumed { segment, coverage, open, names, problem }) = resumed {
        builder.resume(&coverage, open.into_iter(), &names, problem.is_some());
        if let Some(problem) = problem {
            let is_known = catalogue.catalogue.damaged_of(boot).any(|id| id == segment);
            if !is_known {
                catalogue.append(Entry::Damaged { id: segment })?;
            }
            damage.push(format!(
                "{problem}; what was open at the end of that file is not known, so answers about the rest of the run \
                 before are not complete; if you have a copy of the file, put it back",
            ));
        }
    }
    let left_over = read_frames(folder, boot, first, before, |frame| {
        let is_readable = frame.events(|worker, event| {
            builder.apply(worker, event);
        });
        // It is whole, by its checksum.
        let what = || format!("frame {} of the journal", frame.number);
        is_readable.ok_or_else(|| StoreError::Later { path: folder.to_owned(), what: what() })?;
        builder.cover(frame.covered_us);
        hashes.push(frame.hash);
        last = frame.hash;
        Ok(())
    })?;
    // Each frame says that all before its time is in it or before it.
    builder.cover_all(builder.covered_us());
    let wrong = catalogue.first_wrong(first, &hashes);
    // An earlier start got as far as this.
    let mut known_cuts = catalogue.catalogue.cuts.iter().filter(|cut| cut.segment.is_none());
    let is_known = known_cuts.any(|cut| cut.boot == boot);
    let mut rest = Rest::new(&mut builder, boot, (first, hashes, last));
    let frame = rest.next();
    let after = if left_over > 0 { rest.add_frames(folder)? } else { 0 };
    let bytes = left_over.saturating_sub(after);
    let (mut is_whole, mut is_end_lost, mut set) = (false, false, None);
    if !is_ended {
        let is_covered = rest.add_rings(&left);
        is_end_lost = !is_covered;
        // By the clock of that run. What a ring's file has may be damaged.
        let offset_now = offset_us.saturating_add(left.base_us);
        let is_clock_same = offset_now.abs_diff(offset) <= SAME_CLOCK_US;
        // What an earlier start found missing is a gap in the journal by now.
        is_whole = is_covered && is_clock_same && rest.missing == 0 && rest.lost == 0 && !is_known;
        let since_us = rest.known_us;
        let ahead_us = offset_now.saturating_sub(offset);
        // If the clock went forward by more than the rings cover, no record covers what it showed.
        let shows_again = ahead_us < rest.builder.covered_us().saturating_sub(since_us) as i64;
        if is_covered && !is_clock_same && shows_again {
            // The clock was set after the last frame, or after the end: it is unknown which.
            let monotonic_us = rest.builder.covered_us().max(set_us);
            let unix_us = monotonic_us.saturating_add_signed(offset_now);
            set = Some(Entry::Clock { moment: Moment { monotonic_us, unix_us }, since_us });
        }
    }
    let (lost, minor, place) = (rest.lost, rest.minor, folder.display());
    if lost > 0 {
        damage.push(format!(
            "store {place}: the previous run lost its last {lost} records, because there was no room for them; answers \
             about that time are not complete; natrix log verify names the gaps"
        ));
    }
    if minor > 0 {
        notices.push(format!(
            "store {place}: the previous run lost {minor} records at its end, because there was no room for them; none of \
             these is an allocation (they are refusals, for example), so no answer is affected; natrix log verify names \
             the gaps"
        ));
    }
    // Before the journal is replaced: what was lost stays known.
    if (left_over > 0 || rest.missing > 0 || wrong.is_some()) && !is_known {
        let missing = rest.missing;
        // Not what a kill or a power cut tears off the end.
        if bytes > 0 && (wrong.is_some() || missing > 0 || after > 0) {
            let paths: Vec<PathBuf> = journals(folder)?.into_iter().map(|(_, path)| path).collect();
            let place = aside::link(folder, &paths)?;
            damage.push(format!(
                "store {}: the journal of the previous run is damaged: {bytes} bytes cannot be read, and answers about the \
                 rest of that run may not be complete; the file is kept in {place}",
                folder.display()
            ));
        } else if wrong.is_some() || missing > 0 {
            damage.push(format!(
                "store {}: the journal of the previous run lacks records that were in it, or the head is missing; answers \
                 about the rest of that run may not be complete; run natrix log verify",
                folder.display()
            ));
        }
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
        catalogue.append(Entry::BootEnd { covered_us, is_clean: false, is_whole, is_end_lost })?;
    }
    for (first, path) in journals(folder)? {
        follow::retire(folder, first, catalogue.catalogue.next_frame, &path)?;
    }
    Ok(Findings { damage, notices })
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
pub(super) struct Rest<'a> {
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
    pub(super) bytes: Vec<u8>,
    file: Option<File>,
    /// Until when the frames before these have everything.
    known_us: u64,
    /// Records that were in the journal and are not here.
    missing: u64,
    /// Records that never were in a ring, because there was no room.
    lost: u64,
    /// The same of runs of records without an allocation: no answer needs them.
    minor: u64,
}

impl<'a> Rest<'a> {
    pub(super) fn new(builder: &'a mut Builder, boot: u32, (first, hashes, last): (u64, Vec<Hash>, Hash)) -> Rest<'a> {
        let (made, known_us) = (first + hashes.len() as u64, builder.covered_us());
        let (frame, bytes) = (Frame::default(), journal::MAGIC.to_vec());
        let (file, missing, lost, minor) = (None, 0, 0, 0);
        Rest { builder, boot, first, made, hashes, last, frame, bytes, file, known_us, missing, lost, minor }
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
    pub(super) fn push(&mut self, worker: u8, event: &Event) {
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
    pub(super) fn spill(&mut self, folder: &Path) -> Result<(), StoreError> {
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
    fn add_rings(&mut self, left: &RingRemains) -> bool {
        let mut covered_us = left.covered_us;
        for RingLeft { worker, next, events, lost } in &left.rings {
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
            let count = lost.map_or(0, |lost| lost.next.saturating_sub(self.builder.next_of(*worker)));
            if let Some(lost) = lost
                && count > 0
            {
                match u32::try_from(count) {
                    Ok(amount) => {
                        let gap = self.builder.gap_of(*worker, amount, lost.at.as_micros());
                        self.push(*worker, &gap.because(lost.cause));
                        let is_minor = lost.cause == Cause::NoAllocation;
                        *if is_minor { &mut self.minor } else { &mut self.lost } += count;
                    }
                    Err(_) => covered_us = None,
                }
            }
        }
        self.builder.cover(covered_us.unwrap_or(self.known_us));
        covered_us.is_some()
    }

    /// Writes the frames into a journal. Returns the hashes of all that no segment has.
    pub(super) fn write(mut self, folder: &Path) -> Result<(Vec<Hash>, Hash), StoreError> {
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

/// The last segment of a boot: what it covers, and what was open at its end.
struct Resumed {
    segment: u64,
    coverage: Coverage,
    /// As far as it can be read.
    open: Vec<Row>,
    names: NameTable,
    /// What of it cannot be read.
    problem: Option<StoreError>,
}

/// Reads what can be read of the last segment of a boot.
fn last_of_boot(folder: &Path, known: &catalogue::Catalogue, boot: u32) -> Result<Option<Resumed>, StoreError> {
    let Some(last) = known.of_boot(boot).last() else { return Ok(None) };
    let mut resumed = Resumed {
        segment: last.id,
        coverage: last.coverage.clone(),
        open: Vec::new(),
        names: NameTable::default(),
        problem: None,
    };
    match resumed.read(&segment_path(folder, last.id), last) {
        Err(error) if error.is_damage() => resumed.problem = Some(error),
        read => resumed.problem = read?,
    }
    Ok(Some(resumed))
}

impl Resumed {
    /// Returns the first problem of a part that cannot be read.
    fn read(&mut self, path: &Path, last: &Segment) -> Result<Option<StoreError>, StoreError> {
        let Written { footer_offset, bytes, .. } = last.written;
        let mut file = SegmentFile::open(path, footer_offset, bytes)?;
        // An identifier must not get a second name.
        self.names.next = file.footer.next_name;
        let problem = file.readable(|row| {
            if row.until == End::Open {
                self.open.push(*row);
            }
        })?;
        match file.names_at(last.frames.1) {
            Ok(names) => self.names = names,
            Err(error) if error.is_damage() => return Ok(problem.or(Some(error))),
            Err(error) => return Err(error),
        }
        Ok(problem)
    }
}
