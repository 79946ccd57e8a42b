//! The catalogue: what the store consists of, as a chain of entries, and its signed head.
//!
//! ```text
//!   file  := magic, format, entry…
//!   entry := length (4), CRC (4), content, hash (32)
//!   hash  := BLAKE3(hash of the entry before, content)
//! ```
//!
//! Entries are only appended: a segment that was sealed, segments that were merged, a segment that
//! retention deleted. So the chain says what ever was there, and its head proves it: with an
//! exported head, each later change to what came earlier is found.

mod entries;
mod head;
mod keys;
mod runs;
mod writer;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::builder::Coverage;
use super::builder::union;
use super::codec::Cursor;
use super::error::StoreError;
use super::journal::Hash;

pub(crate) use self::entries::Entry;
pub use self::entries::Names;
pub(crate) use self::entries::Segment;
pub use self::head::Head;
pub(crate) use self::head::hex;
pub(crate) use self::keys::key_of;
pub(crate) use self::keys::random_bytes;
pub(crate) use self::keys::read_key;
pub(crate) use self::runs::ADOPTED_US;
pub(crate) use self::runs::Boot;
pub(crate) use self::runs::FormulasInUse;
pub use self::runs::Moment;
pub(crate) use self::writer::CatalogueWriter;
pub(crate) use self::writer::create;
pub(crate) use self::writer::restore;
pub(crate) use self::writer::sync_folder;
pub(crate) use self::writer::write_whole;

/// Number of the format of all files.
pub(crate) const FORMAT: u16 = 1;
const MAGIC: [u8; 14] = *b"NATRIX-LOGBOOK";
/// Longest entry; a longer one is damage.
const ENTRY_MAX: usize = 16 << 20;
/// How often a catalogue is read, and how long after each other, before it counts as damaged: a
/// running instance may just be writing to it.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
/// Longest catalogue that is read: some million segments.
const CATALOGUE_MAX: u64 = 1 << 30;

/// Name of the catalogue in the folder.
pub(crate) const NAME: &str = "catalogue";
/// Name of its copy, for starts and answers after damage to it.
pub(crate) const COPY: &str = "catalogue.copy";
/// Name of the signed head.
pub(crate) const HEAD: &str = "head";
/// Name of the key in a store that was given none.
pub(crate) const KEY: &str = "signing.key";

/// A journal that a start found damaged, or without records that had been in it, or without a head;
/// or a damaged segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// The segment.
    pub(crate) segment: Option<u64>,
    /// Place of its boot.
    pub(crate) boot: u32,
    /// Number of the first frame that was not as it was written.
    pub(crate) frame: u64,
    /// Bytes that could not be read.
    pub(crate) bytes: u64,
    /// Frames that were on the disk, by the signed head; 0 if they were all there. [`NO_HEAD`] if
    /// nothing says how many there were.
    pub(crate) signed: u64,
}

/// Instead of the frames of a signed head: there was none, or it was not this store's.
pub(crate) const NO_HEAD: u64 = u64::MAX;

/// Damaged files that a start put into a folder of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aside {
    pub(crate) unix_us: u64,
    /// Name of the folder.
    pub(crate) place: String,
}

/// What all entries together say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) store: [u8; 16],
    pub(crate) key: [u8; 32],
    pub(crate) boots: Vec<Boot>,
    /// Segments that are there, by number of the first frame.
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// Coverage of segments that retention deleted.
    pub(crate) deleted: Vec<Segment>,
    /// Entries, the hash of the last one, and the length of the file up to it.
    pub(crate) entries: u64,
    pub(crate) hash: Hash,
    pub(crate) length: u64,
    /// The number of the next frame, and the hash of the last one that a segment has.
    pub(crate) next_frame: u64,
    pub(crate) last_frame: Hash,
    pub(crate) next_segment: u64,
    /// Damaged and missing ends of journals.
    pub(crate) cuts: Vec<Cut>,
    /// Time of the last deletion by retention.
    pub(crate) deleted_us: u64,
    /// Damaged files that are kept.
    pub(crate) asides: Vec<Aside>,
    /// True if entries that follow these are damaged, and so is the copy: the last run here may
    /// have lost records, or its clock may have been set, and what came later is not known.
    pub(crate) is_cut: bool,
}

impl Catalogue {
    /// Reads the catalogue of the store in `folder`. Entries after a damaged one are not read; then
    /// [`Catalogue::length`] is less than the length of the file, which is returned as well.
    /// `each` gets the hash of every entry.
    pub(crate) fn read(folder: &Path, each: impl FnMut(u64, &Hash)) -> Result<(Catalogue, u64), StoreError> {
        Catalogue::read_file(folder, NAME, each)
    }

    /// The catalogue that answers come from: its copy, if it is damaged. If both are, what is left
    /// of it ([`Catalogue::is_cut`]).
    ///
    /// # Errors
    /// There is no store, or nothing of it can be read.
    pub(crate) fn of_store(folder: &Path) -> Result<Catalogue, StoreError> {
        let mut looks = 0;
        loop {
            // Before the catalogue, which only grows.
            let head = Head::text_in(folder);
            let signed = |known: &Catalogue| Head::entries_in(head.as_deref(), folder, known);
            let read = Catalogue::read(folder, |_, _| {});
            if let Ok((known, length)) = &read {
                // A running instance may just be writing an entry, and a crash may have torn one.
                let is_whole = match signed(known) {
                    Some(entries) => known.entries >= entries,
                    None => known.length == *length,
                };
                looks += 1;
                if is_whole {
                    return read.map(|(known, _)| known);
                }
                if looks < LOOKS {
                    std::thread::sleep(BETWEEN_LOOKS);
                    continue;
                }
            }
            let least = read.as_ref().map_or(0, |(known, _)| known.entries + 1);
            return match Catalogue::read_file(folder, COPY, |_, _| {}) {
                Ok((copy, _)) if copy.entries >= least.max(signed(&copy).unwrap_or(0)) => Ok(copy),
                _ => read.map(|(known, _)| Catalogue { is_cut: true, ..known }),
            };
        }
    }

    /// Which store the files in a folder are of, and its last run, by what can be read of them.
    pub(crate) fn remains_in(folder: &Path) -> Option<([u8; 16], u32)> {
        let known = [NAME, COPY].iter().find_map(|name| Catalogue::read_file(folder, name, |_, _| {}).ok());
        let of_head = || Some((Head::parse(&Head::text_in(folder)?)?.0.store, 0));
        known.map(|(known, _)| (known.store, known.boots.len().saturating_sub(1) as u32)).or_else(of_head)
    }

    fn read_file(folder: &Path, name: &str, mut each: impl FnMut(u64, &Hash)) -> Result<(Catalogue, u64), StoreError> {
        let path = folder.join(name);
        let foreign = || StoreError::Foreign { path: folder.to_owned() };
        let length = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Err(foreign()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(foreign()),
            Err(error) => return Err(StoreError::io(&path)(error)),
        };
        if length > CATALOGUE_MAX {
            return Err(StoreError::damaged(&path, format!("{length} bytes are too many")));
        }
        let bytes = fs::read(&path).map_err(StoreError::io(&path))?;
        let mut input = Cursor::new(&bytes);
        if input.take(MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(foreign());
        }
        match input.u16() {
            Some(FORMAT) => {}
            Some(version) if version > FORMAT => return Err(StoreError::Newer { path, version }),
            _ => return Err(foreign()),
        }
        let mut catalogue = Catalogue { length: (bytes.len() - input.left()) as u64, ..Catalogue::default() };
        while let Some((entry, hash)) = catalogue.next(&mut input) {
            // It is whole, by its checksum and its hash.
            let entry = entry.ok_or_else(|| StoreError::Later {
                path: path.clone(),
                what: format!("entry {} of the catalogue", catalogue.entries + 1),
            })?;
            catalogue.add(entry, hash).ok_or_else(|| {
                StoreError::damaged(&path, format!("entry {} of the catalogue is impossible", catalogue.entries + 1))
            })?;
            catalogue.length = (bytes.len() - input.left()) as u64;
            each(catalogue.entries, &catalogue.hash);
        }
        if catalogue.entries == 0 {
            return Err(StoreError::damaged(&path, "the first entry of the catalogue is missing"));
        }
        Ok((catalogue, length))
    }

    /// The next entry if it is whole and continues the chain; its content is None if it cannot be
    /// read.
    fn next(&self, input: &mut Cursor<'_>) -> Option<(Option<Entry>, Hash)> {
        let (length, crc) = (input.u32()? as usize, input.u32()?);
        let content = input.take(length).filter(|_| length <= ENTRY_MAX)?;
        let hash: Hash = input.array()?;
        let is_whole = crc32fast::hash(content) == crc && hash == chained(&self.hash, content);
        is_whole.then(|| (Entry::parse(content), hash))
    }

    /// True if the time of day leapt by more than `leap_us`, between records or since the last one,
    /// and there are fewer than `trusted_us` of records since then.
    pub(crate) fn has_leapt(&self, now_us: u64, leap_us: u64, trusted_us: u64) -> bool {
        let (mut next_us, mut since_us) = (now_us, 0);
        for segment in self.segments.values().rev() {
            let Coverage { from_us, covered_us, .. } = segment.coverage;
            let clocks = self.boots.get(segment.boot as usize).map(|boot| &boot.clocks[..]).unwrap_or_default();
            let unix_us = |at_us: u64| {
                let clock = clocks.iter().rev().find(|clock| clock.monotonic_us <= at_us).or(clocks.first());
                at_us.saturating_add_signed(clock.map_or(0, Moment::offset))
            };
            let lasted_us = covered_us.saturating_sub(from_us);
            let has_leapt = |from_us: u64, to_us: u64| to_us.saturating_sub(from_us) > leap_us;
            if has_leapt(unix_us(covered_us), next_us)
                || has_leapt(unix_us(from_us).saturating_add(lasted_us), unix_us(covered_us))
            {
                return true;
            }
            since_us += lasted_us;
            if since_us >= trusted_us {
                return false;
            }
            next_us = unix_us(from_us);
        }
        false
    }

    pub(crate) fn add(&mut self, entry: Entry, hash: Hash) -> Option<()> {
        if (self.entries == 0) != matches!(entry, Entry::Created { .. }) {
            return None;
        }
        match entry {
            Entry::Created { store, key, .. } => (self.store, self.key) = (store, key),
            Entry::Boot { id, moment } => {
                // All that earlier runs left is in segments.
                self.boots.push(Boot { first_frame: self.next_frame, ..Boot::begin(id, moment) });
            }
            Entry::Clock { moment, since_us } => self.boots.last_mut()?.set_clock(moment, since_us)?,
            Entry::Uncertain { boot, period } => {
                let boot = self.boots.get_mut(boot as usize)?;
                boot.uncertain.push(period);
                boot.uncertain = union(core::mem::take(&mut boot.uncertain));
            }
            Entry::Sealed(segment) => {
                let is_next = segment.frames.0 == self.next_frame && segment.frames.1 > segment.frames.0;
                if !is_next || segment.id != self.next_segment || self.boots.len() <= segment.boot as usize {
                    return None;
                }
                (self.next_frame, self.last_frame) = (segment.frames.1, segment.last_frame);
                self.next_segment = self.next_segment.checked_add(1)?;
                self.segments.insert(segment.frames.0, *segment);
            }
            Entry::Merged(segment) => {
                let (from, to) = segment.frames;
                if from >= to || segment.id != self.next_segment {
                    return None;
                }
                let replaced: Vec<&Segment> = self.segments.range(from..to).map(|(_, other)| other).collect();
                let frames = (replaced.first()?.frames.0, replaced.last()?.frames.1);
                let is_of_boot = replaced.iter().all(|other| other.boot == segment.boot);
                let adjoin = replaced.windows(2).all(|two| two[0].frames.1 == two[1].frames.0);
                if segment.frames != frames || !is_of_boot || !adjoin {
                    return None;
                }
                self.next_segment = self.next_segment.checked_add(1)?;
                self.segments.retain(|first, _| !(from..to).contains(first));
                self.segments.insert(from, *segment);
            }
            Entry::Deleted { id, unix_us, .. } => {
                let place = *self.segments.iter().find(|(_, segment)| segment.id == id)?.0;
                self.deleted.extend(self.segments.remove(&place));
                self.deleted_us = self.deleted_us.max(unix_us);
            }
            Entry::BootEnd { covered_us, is_clean, is_whole, is_end_lost } => {
                let boot = self.boots.last_mut()?;
                (boot.ended, boot.is_whole) = (Some((covered_us, is_clean)), is_whole);
                boot.is_end_lost = is_end_lost;
            }
            Entry::Cut { frame, bytes, signed } => {
                let boot = self.boots.len().checked_sub(1)? as u32;
                self.cuts.push(Cut { segment: None, boot, frame, bytes, signed });
            }
            Entry::Damaged { id } => {
                let Segment { boot, frames, .. } = *self.segments.values().find(|segment| segment.id == id)?;
                self.cuts.push(Cut { segment: Some(id), boot, frame: frames.0, bytes: 0, signed: frames.1 });
            }
            Entry::Aside { unix_us, place } => self.asides.push(Aside { unix_us, place }),
            Entry::Names { since_us, at_us, names } => {
                let boot = self.boots.last_mut()?;
                boot.formulas.push(FormulasInUse {
                    since_us: since_us.min(at_us),
                    at_us,
                    checksum: names.formulas,
                    configuration: names.configuration,
                });
                if boot.pools.last().is_none_or(|(_, known)| *known != names.addresses) {
                    boot.pools.push((at_us, Arc::clone(&names.addresses)));
                }
                boot.names = *names;
            }
        }
        self.entries += 1;
        self.hash = hash;
        Some(())
    }

    /// Segments of a boot after which a start did not know what was open.
    pub(crate) fn damaged_of(&self, boot: u32) -> impl Iterator<Item = u64> {
        self.cuts.iter().filter(move |cut| cut.boot == boot).filter_map(|cut| cut.segment)
    }

    /// What starts found missing of what was on the disk. What retention would have deleted by now
    /// is not among it: a segment was deleted that ends after it.
    pub(crate) fn wrong_cuts(&self) -> impl Iterator<Item = &Cut> {
        let is_deleted = |cut: &Cut| self.deleted.iter().any(|segment| segment.frames.1 > cut.frame);
        self.cuts.iter().filter(move |cut| cut.signed > 0 && !is_deleted(cut))
    }

    /// Runs that ended without a stop and whose last records may be lost with their rings. Their
    /// number is unknown: a gap in time and not in numbers.
    pub(crate) fn lost_ends(&self) -> u64 {
        self.boots.iter().filter(|boot| boot.is_end_lost).count() as u64
    }

    /// The segments of a boot that are there, in order.
    pub(crate) fn of_boot(&self, boot: u32) -> impl Iterator<Item = &Segment> {
        self.segments.values().filter(move |segment| segment.boot == boot)
    }
}

fn chained(before: &Hash, content: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(before);
    hasher.update(content);
    *hasher.finalize().as_bytes()
}
