//! Proof: is everything there that ever was, unchanged?

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use nat::event::Cause;

use super::aside;
use super::builder::Builder;
use super::builder::Coverage;
use super::builder::Gap;
use super::builder::Wanted;
use super::catalogue;
use super::catalogue::Aside;
use super::catalogue::Boot;
use super::catalogue::Catalogue;
use super::catalogue::Cut;
use super::catalogue::Head;
use super::catalogue::NO_HEAD;
use super::catalogue::Segment;
use super::error::StoreError;
use super::follow;
use super::hosts::NameTable;
use super::journal::FrameRead;
use super::journal::Hash;
use super::lookups;
use super::reader::Store;
use super::reserve;
use super::row::What;
use super::segment::SegmentFile;
use super::writer::JournalFile;
use super::writer::journals;
use super::writer::read_frames;
use super::writer::segment_path;
use crate::utc_text;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// What is wrong, a sentence each: the segment, its sequence numbers, the problem.
    pub faults: Vec<String>,
    /// Entries of the chain.
    pub entries: u64,
    /// Segments that were read.
    pub segments: u64,
    /// Frames of the journal that were read.
    pub frames: u64,
    /// Bytes that were hashed.
    pub bytes: u64,
    /// Segments that retention deleted, and when the last one was, µs since 1970.
    pub deleted: u64,
    /// Time of the last deletion.
    pub deleted_us: u64,
    /// Recorded gaps of sequence numbers, and the numbers in them.
    pub gaps: u64,
    /// Records in those gaps.
    pub lost: u64,
    /// Those gaps, the newest first.
    pub gaps_found: Vec<GapFound>,
    /// Starts that found the journal damaged, or without records that had been in it, or no head.
    pub cuts: u64,
    /// Bytes of journals that they could not read.
    pub cut_bytes: u64,
    /// Runs that ended without a stop, and whose last records may be lost.
    pub lost_ends: u64,
}

/// A recorded gap by the time of day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapFound {
    /// The worker, and the numbers of its records that are missing.
    pub worker: u8,
    /// First missing number.
    pub first: u64,
    /// Last missing number.
    pub last: u64,
    /// Time of the last record before, µs since 1970.
    pub from_us: u64,
    /// Time of the first record after.
    pub until_us: u64,
    /// `NoAllocation` if no allocation or end is among them: the gap changes no answer.
    pub cause: Cause,
}

impl GapFound {
    fn of(gap: &Gap, boot: Option<&Boot>) -> GapFound {
        let at = |monotonic_us| boot.map_or(monotonic_us, |boot| time_of(boot, monotonic_us));
        let Gap { worker, first, count, from_us, until_us, cause } = *gap;
        let last = first.saturating_add(count.saturating_sub(1));
        GapFound { worker, first, last, from_us: at(from_us), until_us: at(until_us), cause }
    }

    /// True if answers about its time are not complete.
    pub fn limits_answers(&self) -> bool {
        self.cause != Cause::NoAllocation
    }

    /// How many records are missing.
    pub fn records(&self) -> u64 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }
}

/// Time of day, µs since 1970, of a time of the clock of a boot.
fn time_of(boot: &Boot, monotonic_us: u64) -> u64 {
    let clock = boot.clocks.iter().rev().find(|clock| clock.monotonic_us <= monotonic_us);
    monotonic_us.saturating_add_signed(clock.or(boot.clocks.first()).map_or(0, super::Moment::offset))
}

/// Counts what the frames after the last segment have.
struct JournalCount {
    boot: u32,
    builder: Builder,
    frames: u64,
    mappings: u64,
    leases: u64,
}

/// Intervals that are kept while records are only counted.
const NONE_WANTED: Wanted = Wanted { external: None, subscriber: None, host: None };

impl JournalCount {
    fn new(catalogue: &Catalogue) -> JournalCount {
        let boot = catalogue.boots.len().saturating_sub(1) as u32;
        let clocks = catalogue.boots.last().map(|boot| &boot.clocks[..]).unwrap_or_default();
        let mut builder = Builder::new(clocks.first().map_or(0, |clock| clock.monotonic_us), Some(NONE_WANTED));
        if let Some(last) = catalogue.of_boot(boot).last() {
            builder.resume(&last.coverage, core::iter::empty(), &NameTable::default(), false);
        }
        JournalCount { boot, builder, frames: 0, mappings: 0, leases: 0 }
    }

    /// Adds a frame. None if an event of it cannot be read.
    fn add(&mut self, frame: &FrameRead<'_>) -> Option<()> {
        self.frames += 1;
        let JournalCount { builder, mappings, leases, .. } = self;
        frame.events(|worker, event| {
            // A report of all live state names what has a record already.
            if builder.apply(worker, event)
                && event.cause != Cause::LogOpened
                && let Some((what, true)) = What::of(event.kind)
            {
                *if what == What::Block { &mut *leases } else { &mut *mappings } += 1;
            }
        })?;
        builder.cover(frame.covered_us);
        Some(())
    }

    /// What the frames cover; None if there are none.
    fn end(mut self) -> Option<Coverage> {
        let coverage = self.builder.cut().coverage;
        (self.frames > 0).then_some(Coverage { mappings: self.mappings, leases: self.leases, ..coverage })
    }
}

impl Verified {
    fn add_gaps(&mut self, coverage: &Coverage, boot: Option<&Boot>) {
        self.gaps += coverage.gaps.len() as u64;
        self.lost = self.lost.saturating_add(coverage.lost());
        self.gaps_found.extend(coverage.gaps.iter().map(|gap| GapFound::of(gap, boot)));
    }
}

/// Verifies the store in `folder`: the chain, its copy and its signed head, every segment's hash,
/// the frames of journal and spool, and that every sequence number is there once or in a recorded
/// gap. With `head`, an exported head, also that nothing up to it was cut off or rewritten.
/// `progress` gets the bytes done and the bytes in all.
///
/// # Errors
/// [`StoreError`] if the catalogue cannot be read at all, or `head` is no head.
pub fn verify(folder: &Path, head: Option<&Path>, mut progress: impl FnMut(u64, u64)) -> Result<Verified, StoreError> {
    let exported = head.map(exported_in).transpose()?;
    let verified = verify_until(folder, exported.as_ref(), &mut |done, total| {
        progress(done, total);
        true
    })?;
    // It never asks to stop.
    Ok(verified.unwrap_or_default())
}

/// As [`verify`] with the text of an exported head; ends soon after `goes_on`, which gets the bytes
/// done and the bytes in all, is false. The result is None then.
///
/// # Errors
/// As [`verify`].
pub fn verify_text(
    folder: &Path,
    head: Option<&str>,
    goes_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Verified>, StoreError> {
    let exported = head.map(|text| Exported::of(text.to_owned(), Path::new("sent"))).transpose()?;
    verify_until(folder, exported.as_ref(), goes_on)
}

/// An exported head, its signature, and the text that both were in.
struct Exported {
    head: Head,
    signature: [u8; 64],
    text: String,
}

impl Exported {
    fn of(text: String, path: &Path) -> Result<Exported, StoreError> {
        let what = "not what natrix log head prints".to_owned();
        let wrong = || StoreError::Head { path: path.to_owned(), what };
        let (head, signature) = Head::parse(&text).ok_or_else(wrong)?;
        Ok(Exported { head, signature, text })
    }

    /// What is wrong before what it has is compared.
    fn fault(&self, catalogue: &Catalogue) -> Option<&'static str> {
        if self.head.store != catalogue.store {
            return Some("it is of another store");
        }
        let is_signed = self.head.is_signed(&self.text, &self.signature, &catalogue.key);
        (!is_signed).then_some("its signature is wrong; it was changed, or another key signed it")
    }
}

fn exported_in(path: &Path) -> Result<Exported, StoreError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_MAX).read_to_string(&mut text));
    read.map_err(|error| StoreError::Head { path: path.to_owned(), what: error.to_string() })?;
    Exported::of(text, path)
}

/// How often a fault must be seen, and how long after each other: a running instance goes on
/// writing, merging and deleting, and what is half done looks torn.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Bytes of a head that are read: more than one has.
const HEAD_MAX: u64 = 4_096;
/// Passes over the segments that were sealed during the pass before.
const PASSES: u32 = 8;

fn verify_until(
    folder: &Path,
    exported: Option<&Exported>,
    goes_on: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<Option<Verified>, StoreError> {
    let (mut sealed, mut spool) = (Sealed::default(), Spool::default());
    let (mut passes, mut looks) = (0, 0);
    loop {
        // Before what it is about, which only grows.
        let own = head_text(folder);
        let mut hashes: Vec<Hash> = Vec::new();
        let (catalogue, length) = Catalogue::read(folder, |_, hash| hashes.push(*hash))?;
        let mut is_new = false;
        for segment in catalogue.segments.values() {
            is_new |= !sealed.checked.contains(&segment.id);
            if !sealed.check(folder, segment, (&catalogue, length), goes_on) {
                return Ok(None);
            }
        }
        let total = length.saturating_add(sealed.bytes);
        if !spool.check(folder, &mut || goes_on(total, total))? {
            return Ok(None);
        }
        // That took its time, and the rest must be of one moment.
        if is_new && passes < PASSES {
            passes += 1;
            continue;
        }
        looks += 1;
        let mut verified = the_rest(folder, (own.as_deref(), exported), (&catalogue, length), &hashes, &sealed)?;
        spool.faults(folder, &catalogue, &mut verified.faults)?;
        copy_and_key(folder, (&catalogue, length), &mut verified.faults);
        if verified.faults.is_empty() || looks >= LOOKS {
            return Ok(Some(verified));
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// The signed head of a store; None if it cannot be read.
fn head_text(folder: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(folder.join(catalogue::HEAD)).ok()?.take(HEAD_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The segments that were read. A sealed one does not change any more.
#[derive(Debug, Default)]
struct Sealed {
    checked: BTreeSet<u64>,
    faults: Vec<String>,
    /// Those without a file: a fault, unless an entry that was not there yet says where they went.
    missing: Vec<(u64, String)>,
    bytes: u64,
}

impl Sealed {
    /// Reads a segment if that was not done yet; false if that is not wanted any more.
    fn check(
        &mut self,
        folder: &Path,
        segment: &Segment,
        (catalogue, length): (&Catalogue, u64),
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> bool {
        if !self.checked.insert(segment.id) {
            return true;
        }
        let of_all = catalogue.segments.values().map(|segment| segment.written.bytes);
        let total = of_all.fold(length, u64::saturating_add);
        let (mut is_wanted, mut done) = (true, length.saturating_add(self.bytes));
        let mut progress = |done| is_wanted = is_wanted && goes_on(done, total);
        let checked = check_segment(folder, segment, &mut done, &mut progress);
        self.bytes = done - length;
        match checked {
            Ok(()) => {}
            Err(what) if what == MISSING => self.missing.push((segment.id, format!("{}: {what}", name_of(segment)))),
            Err(what) => self.faults.push(format!("{}: {what}", name_of(segment))),
        }
        is_wanted
    }
}

/// The spool files that were read. They do not change any more.
#[derive(Debug, Default)]
struct Spool {
    checked: BTreeMap<u64, Spooled>,
}

/// The frames of a spool file, up to the first that is not whole or does not continue the chain.
#[derive(Debug)]
struct Spooled {
    /// What the first one says of the frame before it.
    before: Option<Hash>,
    /// The number after the last one, and the hash of that.
    next: u64,
    last: Option<Hash>,
}

impl Spool {
    /// Reads the spool files that were not read yet; false if that is not wanted any more.
    fn check(&mut self, folder: &Path, is_wanted: &mut impl FnMut() -> bool) -> Result<bool, StoreError> {
        for (first, path) in follow::spool_files(folder)? {
            if self.checked.contains_key(&first) {
                continue;
            }
            let length = match fs::metadata(&path) {
                // Its sinks have read it meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                metadata => metadata.map_err(StoreError::io(&path))?.len(),
            };
            let mut reader = match JournalFile::open(&path, length) {
                Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => continue,
                reader => reader?,
            };
            let mut spooled = Spooled { before: None, next: first, last: None };
            while let Some(frame) = reader.next()? {
                if !is_wanted() {
                    return Ok(false);
                }
                if frame.number != spooled.next || spooled.last.is_some_and(|last| last != frame.before) {
                    break;
                }
                spooled.before.get_or_insert(frame.before);
                (spooled.next, spooled.last) = (frame.number.saturating_add(1), Some(frame.hash));
            }
            self.checked.insert(first, spooled);
        }
        Ok(true)
    }

    /// What is wrong with those that are there: each goes on where the next one, or what no segment
    /// has, begins. What a kill tore off its end is in the next one.
    fn faults(&self, folder: &Path, catalogue: &Catalogue, faults: &mut Vec<String>) -> Result<(), StoreError> {
        let there = follow::spool_files(folder)?;
        let ends = there.iter().skip(1).map(|(first, _)| *first).chain([catalogue.next_frame]);
        for ((first, _), end) in there.iter().zip(ends) {
            let Some(Spooled { next, last, .. }) = self.checked.get(first) else { continue };
            let after = self.checked.get(&end).map_or(Some(catalogue.last_frame), |after| after.before);
            let meaning = "sinks that have not read them go on after them, and their collectors get a gap";
            if *next < end {
                let last = end - 1;
                faults.push(format!("spool-{first:016x}: frames {next} to {last} are damaged or missing; {meaning}"));
            } else if *next == end && last.zip(after).is_some_and(|(last, after)| last != after) {
                faults.push(format!("spool-{first:016x}: its frames do not continue the chain; it was changed"));
            }
        }
        Ok(())
    }
}

/// What is wrong with the copy of the catalogue and with the key, if the store has it.
fn copy_and_key(folder: &Path, (catalogue, length): (&Catalogue, u64), faults: &mut Vec<String>) {
    let [own, copy] = [catalogue::NAME, catalogue::COPY].map(|name| fs::read(folder.join(name)));
    // A fault of the catalogue is said elsewhere.
    let is_whole = length == catalogue.length;
    match (own, copy) {
        (Ok(own), Ok(copy)) if !is_whole || own == copy => {}
        (Ok(_), Ok(_)) => faults
            .push(format!("{}: it is not what the catalogue is; the next start writes a new one", catalogue::COPY)),
        (_, Err(error)) => {
            faults.push(format!("{}: cannot be read ({error}); the next start writes a new one", catalogue::COPY));
        }
        (Err(_), Ok(_)) => {}
    }
    let path = folder.join(catalogue::KEY);
    let is_key = match catalogue::read_key(&path) {
        Ok(key) => key.verifying_key().to_bytes() == catalogue.key,
        Err(StoreError::Key { .. }) => false,
        Err(error) if error.is_damage() => path.try_exists().is_ok_and(|is_there| !is_there),
        // Another file may have the key, and only its owner may read it.
        Err(_) => true,
    };
    if !is_key {
        faults.push(format!(
            "{}: it is not the key of this store; unless log.store.signing_key names another file, the next start puts \
             the store aside and begins a new one: put a copy of the key back before that",
            catalogue::KEY
        ));
    }
}

/// All but the content of the segments.
fn the_rest(
    folder: &Path,
    (own, exported): (Option<&str>, Option<&Exported>),
    (catalogue, length): (&Catalogue, u64),
    hashes: &[Hash],
    sealed: &Sealed,
) -> Result<Verified, StoreError> {
    let bytes = length.saturating_add(sealed.bytes);
    let segments = sealed.checked.len() as u64;
    let mut verified = Verified {
        entries: catalogue.entries,
        bytes,
        segments,
        lost_ends: catalogue.lost_ends(),
        ..Verified::default()
    };
    verified.cuts = catalogue.cuts.len() as u64;
    verified.cut_bytes = catalogue.cuts.iter().fold(0, |sum, cut| sum.saturating_add(cut.bytes));
    (verified.deleted, verified.deleted_us) = (catalogue.deleted.len() as u64, catalogue.deleted_us);
    if length > catalogue.length {
        let (bytes, entries) = (length - catalogue.length, catalogue.entries);
        verified.faults.push(format!(
            "catalogue: {bytes} bytes after entry {entries} do not continue the chain; an entry is torn or was changed"
        ));
    }
    verified.faults.extend(sealed.faults.iter().cloned());
    let is_there = |id: u64| catalogue.segments.values().any(|segment| segment.id == id);
    let missing = sealed.missing.iter().filter(|(id, _)| is_there(*id));
    verified.faults.extend(missing.map(|(_, fault)| fault.clone()));
    sequence_numbers(catalogue, &mut verified);
    for Cut { segment, boot, frame, signed, .. } in catalogue.wrong_cuts() {
        if let Some(id) = segment {
            verified.faults.push(format!(
                "segment-{id:08x} (boot {boot}): a start found it damaged, so what was open at its end is not known for the \
                 rest of that run"
            ));
            continue;
        }
        let what = match signed.saturating_sub(1) {
            _ if *signed == NO_HEAD => {
                format!("a start found no head of this store; frames from {frame} on may be missing")
            }
            last => format!(
                "frames {frame} to {last} were on the disk; a start found frame {frame} damaged or missing, and maybe \
                 others of them"
            ),
        };
        verified.faults.push(format!("journal of boot {boot}: {what}"));
    }
    for Aside { unix_us, place } in &catalogue.asides {
        let at = utc_text(*unix_us);
        if aside::is_store_place(place) && folder.join(place).exists() {
            verified.faults.push(format!(
                "{place}: a start at {at} could not go on with the store that is there, and began this one; move the folder \
                 elsewhere, and keep it as long as its records are wanted"
            ));
        } else if folder.join(place).join(catalogue::NAME).exists() {
            verified.faults.push(format!(
                "{place}: a start at {at} found the catalogue there damaged, and restored it from its copy; move the folder \
                 elsewhere once you know why"
            ));
        }
    }
    let mut frames = Vec::new();
    let mut count = JournalCount::new(catalogue);
    let boot = count.boot;
    let mut unread = None;
    let left_over = read_frames(folder, boot, catalogue.next_frame, catalogue.last_frame, |frame| {
        frames.push(frame.hash);
        if count.add(frame).is_none() {
            unread.get_or_insert(frame.number);
        }
        Ok(())
    })?;
    verified.frames = frames.len() as u64;
    if let Some(number) = unread {
        verified.faults.push(format!(
            "journal: frame {number} is whole, but its records cannot be read; a later release may have written it"
        ));
    }
    if let Some(coverage) = count.end() {
        verified.add_gaps(&coverage, catalogue.boots.last());
    }
    verified.gaps_found.sort_by_key(|gap| core::cmp::Reverse(gap.until_us));
    if left_over > 0 {
        verified.faults.push(format!(
            "journal: {left_over} bytes after frame {} do not continue the chain; the end is torn or was changed",
            catalogue.next_frame.saturating_add(verified.frames)
        ));
    }
    let path = folder.join(catalogue::HEAD);
    let is_running = catalogue.boots.last().is_some_and(|boot| boot.ended.is_none());
    if is_running && journals(folder)?.is_empty() {
        verified.faults.push(format!("journal: boot {boot} has not ended, and the file is missing"));
    }
    let own = match own {
        None => Head::read(&path, &catalogue.key),
        Some(text) => Head::signed(text, &path, &catalogue.key),
    };
    let own = own.map_err(|error| match error {
        StoreError::Damaged { what, .. } => format!("head of the store: {what}"),
        error => format!("head of the store: {error}"),
    });
    let own = own.map_err(|fault| verified.faults.push(fault)).ok();
    let fault = exported.and_then(|exported| exported.fault(catalogue));
    verified.faults.extend(fault.map(|fault| format!("exported head: {fault}")));
    let exported = exported.filter(|_| fault.is_none()).map(|exported| &exported.head);
    for (head, is_own) in [(own.as_ref(), true), (exported, false)] {
        let Some(head) = head else { continue };
        check_head(folder, catalogue, hashes, &frames, head, is_own, &mut verified);
        if let Some(fault) = lookups::against(folder, head.lookups)? {
            let which = if is_own { "head of the store" } else { "exported head" };
            verified.faults.push(format!("{which}: {fault}"));
        }
    }
    if let (_, Some(line)) = lookups::check(folder)? {
        let what = "does not follow the line before; a line was removed or changed";
        verified.faults.push(format!("lookups: line {line} {what}"));
    }
    unknown_files(folder, catalogue, &mut verified)?;
    Ok(verified)
}

/// Name of a segment with the numbers of its records.
fn name_of(segment: &Segment) -> String {
    let numbers: Vec<String> = segment
        .coverage
        .workers
        .iter()
        .filter(|(_, first, last)| last >= first)
        .map(|(worker, first, last)| format!("worker {worker}: {first}-{last}"))
        .collect();
    format!("segment-{:08x} (boot {}, {})", segment.id, segment.boot, numbers.join(", "))
}

/// What is said of a segment without a file.
const MISSING: &str = "the file is missing, and no deletion was recorded";

fn check_segment(
    folder: &Path,
    segment: &Segment,
    done: &mut u64,
    progress: &mut impl FnMut(u64),
) -> Result<(), String> {
    let path = segment_path(folder, segment.id);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(MISSING.to_owned());
        }
        Err(error) => return Err(format!("cannot be read ({error})")),
    };
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        let count = file.read(&mut buffer).map_err(|error| format!("cannot be read ({error})"))?;
        if count == 0 {
            break;
        }
        hasher.update(buffer.get(..count).unwrap_or_default());
        length += count as u64;
        *done += count as u64;
        progress(*done);
    }
    if *hasher.finalize().as_bytes() == segment.written.hash {
        return Ok(());
    }
    if length != segment.written.bytes {
        return Err(format!("{length} bytes instead of {}", segment.written.bytes));
    }
    // The first block that fails shows where; else its checksums were rewritten, too.
    let found = SegmentFile::open(&path, segment.written.footer_offset, segment.written.bytes)
        .and_then(|mut file| file.all(|_| {}).and_then(|()| file.others(|_| {})));
    match found {
        Err(StoreError::Damaged { what, .. }) => Err(what),
        _ => Err("the content is not what was sealed".to_owned()),
    }
}

/// Each worker's numbers follow each other from segment to segment.
fn sequence_numbers(catalogue: &Catalogue, verified: &mut Verified) {
    for boot in 0..catalogue.boots.len() as u32 {
        let mut segments: Vec<&Segment> = catalogue.segments.values().chain(&catalogue.deleted).collect();
        segments.retain(|segment| segment.boot == boot);
        segments.sort_unstable_by_key(|segment| segment.frames.0);
        let mut next: BTreeMap<u8, u64> = BTreeMap::new();
        for segment in segments {
            for (worker, first, last) in &segment.coverage.workers {
                let expected = next.get(worker).copied().unwrap_or(1);
                if *first != expected {
                    let name = name_of(segment);
                    verified
                        .faults
                        .push(format!("{name}: begins with number {first} of worker {worker} instead of {expected}"));
                }
                next.insert(*worker, last.saturating_add(1));
            }
            verified.add_gaps(&segment.coverage, catalogue.boots.get(boot as usize));
        }
    }
}

fn check_head(
    folder: &Path,
    catalogue: &Catalogue,
    hashes: &[Hash],
    journal: &[Hash],
    head: &Head,
    is_own: bool,
    verified: &mut Verified,
) {
    let which = if is_own { "head of the store" } else { "exported head" };
    if head.store != catalogue.store {
        verified.faults.push(format!("{which}: it is of another store"));
        return;
    }
    let index = usize::try_from(head.entries).ok().and_then(|entries| entries.checked_sub(1));
    match index.and_then(|index| hashes.get(index)) {
        None => verified.faults.push(format!(
            "{which}: the catalogue has {} entries instead of {}; its end was cut off",
            catalogue.entries, head.entries
        )),
        Some(hash) if *hash != head.hash => verified
            .faults
            .push(format!("{which}: entry {} of the catalogue is another one; the chain was rewritten", head.entries)),
        Some(_) => {}
    }
    let Some(last) = head.frames.checked_sub(1) else { return };
    let found = match last.checked_sub(catalogue.next_frame) {
        Some(place) => match usize::try_from(place).ok().and_then(|place| journal.get(place)) {
            Some(hash) => Some(*hash),
            None => {
                let frames = catalogue.next_frame.saturating_add(journal.len() as u64);
                verified
                    .faults
                    .push(format!("{which}: {frames} frames instead of {}; the end was cut off", head.frames));
                return;
            }
        },
        None => catalogue
            .segments
            .values()
            .find(|segment| (segment.frames.0..segment.frames.1).contains(&last))
            .and_then(|segment| {
                let path = segment_path(folder, segment.id);
                let mut file = SegmentFile::open(&path, segment.written.footer_offset, segment.written.bytes).ok()?;
                file.frames().ok()?.get((last - segment.frames.0) as usize).copied()
            }),
    };
    // A frame in a deleted or damaged segment was reported with that segment.
    if found.is_some_and(|hash| hash != head.frame) {
        verified.faults.push(format!("{which}: frame {last} is another one; the journal was rewritten"));
    }
}

/// Segments that no entry knows.
fn unknown_files(folder: &Path, catalogue: &Catalogue, verified: &mut Verified) -> Result<(), StoreError> {
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let name = entry.map_err(StoreError::io(folder))?.file_name();
        let name = name.to_string_lossy();
        let Some(id) = name.strip_prefix("segment-").and_then(|id| u64::from_str_radix(id, 16).ok()) else { continue };
        if id >= catalogue.next_segment {
            verified.faults.push(format!("{name}: no entry of the catalogue names it"));
        }
    }
    Ok(())
}

/// What a store has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stat {
    /// Records in segments and journal.
    pub records: u64,
    /// Those of them that are in the journal.
    pub in_journal: u64,
    /// Mappings, static ones and flows included, that began in them. What only a report of all live
    /// state names counts once it is in a segment.
    pub mappings: u64,
    /// Leases of port blocks that did.
    pub leases: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of all files but the room that is kept for a start.
    pub bytes: u64,
    /// Bytes of segments and catalogue for each mapping.
    pub bytes_per_mapping: Option<f64>,
    /// The same for each lease.
    pub bytes_per_lease: Option<f64>,
    /// Time of the first record, µs since 1970.
    pub first_us: Option<u64>,
    /// Time until which the store has all records.
    pub last_us: Option<u64>,
    /// Recorded gaps of sequence numbers.
    pub gaps: u64,
    /// Records in them.
    pub lost: u64,
    /// Starts that found the journal damaged, or without records that had been in it, or no head.
    pub cuts: u64,
    /// Runs that ended without a stop, and whose last records may be lost.
    pub lost_ends: u64,
    /// Bytes of a day at the mean rate of the segments.
    pub bytes_per_day: Option<f64>,
    /// Bytes that are free where the store is.
    pub bytes_free: u64,
    /// Days until these are used at that rate, if nothing is deleted.
    pub days_left: Option<f64>,
}

impl Stat {
    /// Adds what a stretch of records covers.
    fn add(&mut self, coverage: &Coverage, boot: Option<&Boot>) {
        let lost = coverage.lost();
        let numbers = coverage
            .workers
            .iter()
            .fold(0_u64, |sum, (_, first, last)| sum.saturating_add(last.saturating_add(1).saturating_sub(*first)));
        let add = |sum: &mut u64, number: u64| *sum = sum.saturating_add(number);
        add(&mut self.records, numbers.saturating_sub(lost));
        add(&mut self.mappings, coverage.mappings);
        add(&mut self.leases, coverage.leases);
        add(&mut self.gaps, coverage.gaps.len() as u64);
        add(&mut self.lost, lost);
        let at = |monotonic_us| boot.map_or(monotonic_us, |boot| time_of(boot, monotonic_us));
        let (first, last) = (at(coverage.from_us), at(coverage.covered_us));
        self.first_us = Some(self.first_us.map_or(first, |known| known.min(first)));
        self.last_us = Some(self.last_us.map_or(last, |known| known.max(last)));
    }
}

impl Store {
    /// Counts what the store has, from its catalogue and its journal.
    ///
    /// # Errors
    /// The folder cannot be listed, or the journal not be read.
    pub fn stat(&self) -> Result<Stat, StoreError> {
        let mut reopened: Option<Store> = None;
        loop {
            let store = reopened.as_ref().unwrap_or(self);
            let journal = store.journal_coverage();
            // A window that was sealed meanwhile took its journal away.
            let now = Store::open(&self.folder)?;
            if now.catalogue.next_frame == store.catalogue.next_frame {
                return store.stat_with(journal?.as_ref());
            }
            reopened = Some(now);
        }
    }

    /// What the frames after the last segment cover; None if there are none.
    fn journal_coverage(&self) -> Result<Option<Coverage>, StoreError> {
        let known = &self.catalogue;
        let mut count = JournalCount::new(known);
        read_frames(&self.folder, count.boot, known.next_frame, known.last_frame, |frame| {
            let what = || format!("frame {} of the journal", frame.number);
            count.add(frame).ok_or_else(|| StoreError::Later { path: self.folder.clone(), what: what() })
        })?;
        Ok(count.end())
    }

    fn stat_with(&self, journal: Option<&Coverage>) -> Result<Stat, StoreError> {
        let (segments, cuts) = (self.catalogue.segments.len() as u64, self.catalogue.cuts.len() as u64);
        let mut stat = Stat { segments, cuts, lost_ends: self.catalogue.lost_ends(), ..Stat::default() };
        for entry in fs::read_dir(&self.folder).map_err(StoreError::io(&self.folder))? {
            let entry = entry.map_err(StoreError::io(&self.folder))?;
            if entry.file_name() != reserve::NAME {
                stat.bytes += entry.metadata().map_err(StoreError::io(&self.folder))?.len();
            }
        }
        let (mut single, mut ranges, mut sealed) = (0_u64, 0_u64, self.catalogue.length);
        for segment in self.catalogue.segments.values() {
            stat.add(&segment.coverage, self.catalogue.boots.get(segment.boot as usize));
            let add = |sum: &mut u64, number: u64| *sum = sum.saturating_add(number);
            add(&mut single, segment.written.single_bytes);
            add(&mut ranges, segment.written.range_bytes);
            add(&mut sealed, segment.written.bytes);
        }
        // What belongs to neither table is shared in the proportion of the tables.
        let share = |of: u64| sealed as f64 * of as f64 / (single as f64 + ranges as f64);
        stat.bytes_per_mapping = (stat.mappings > 0 && single > 0).then(|| share(single) / stat.mappings as f64);
        stat.bytes_per_lease = (stat.leases > 0 && ranges > 0).then(|| share(ranges) / stat.leases as f64);
        let seconds = stat.last_us.zip(stat.first_us).map(|(last, first)| last.saturating_sub(first) as f64 / 1e6);
        stat.bytes_per_day = seconds.filter(|seconds| *seconds > 0.0).map(|seconds| sealed as f64 * 86_400.0 / seconds);
        if let Some(journal) = journal {
            let records = stat.records;
            stat.add(journal, self.catalogue.boots.last());
            stat.in_journal = stat.records - records;
        }
        let disk = rustix::fs::statvfs(&self.folder).map_err(|error| StoreError::io(&self.folder)(error.into()))?;
        stat.bytes_free = disk.f_bavail.saturating_mul(disk.f_frsize);
        stat.days_left = stat.bytes_per_day.map(|bytes| stat.bytes_free as f64 / bytes);
        Ok(stat)
    }

    /// The head of the chain now, signed by the key in the store or in `key`, as text to keep
    /// elsewhere.
    ///
    /// # Errors
    /// The key cannot be read or is not the store's, or the journal cannot be read.
    pub fn head(&self, key: Option<&Path>) -> Result<String, StoreError> {
        let own = self.folder.join(catalogue::KEY);
        let path = key.unwrap_or(&own);
        let key = catalogue::read_key(path)?;
        if key.verifying_key().to_bytes() != self.catalogue.key {
            let what = "it is not the key of this store".to_owned();
            return Err(StoreError::Key { path: path.to_owned(), what });
        }
        let known = &self.catalogue;
        let (mut frames, mut frame) = (known.next_frame, known.last_frame);
        let boot = known.boots.len().saturating_sub(1) as u32;
        read_frames(&self.folder, boot, known.next_frame, known.last_frame, |read| {
            (frames, frame) = (read.number.saturating_add(1), read.hash);
            Ok(())
        })?;
        let mut lookups = lookups::Lines::default();
        lookups.read_all(&self.folder).map_err(StoreError::io(&self.folder))?;
        let (store, entries, hash) = (known.store, known.entries, known.hash);
        let head = Head { store, entries, hash, frames, frame, lookups: lookups.signed() };
        Ok(head.text(&key))
    }

    /// When the segments that retention deleted were deleted last.
    pub fn deleted(&self) -> Option<(u64, String)> {
        let count = self.catalogue.deleted.len() as u64;
        (count > 0).then(|| (count, utc_text(self.catalogue.deleted_us)))
    }
}
