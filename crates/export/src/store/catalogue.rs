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

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ed25519_dalek::Signature;
use ed25519_dalek::Signer;
use ed25519_dalek::SigningKey;
use ed25519_dalek::VerifyingKey;

use super::aside;
use super::builder::Coverage;
use super::builder::union;
use super::codec::Cursor;
use super::codec::put_bytes;
use super::codec::put_varint;
use super::error::StoreError;
use super::folder::is_file_of;
use super::folder::new_file;
use super::journal::Hash;
use super::lookups::Lines;
use super::segment::Written;
use crate::pools::PoolRange;
use crate::pools::PoolRanges;

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

/// One moment by the boot's clock and by the time of day, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic.
    pub monotonic_us: u64,
    /// Since 1970.
    pub unix_us: u64,
}

impl Moment {
    /// Time of day less monotonic time.
    pub(crate) fn offset(&self) -> i64 {
        self.unix_us as i64 - self.monotonic_us as i64
    }
}

/// A run of the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boot {
    pub(crate) id: [u8; 16],
    /// Number of its first frame.
    pub(crate) first_frame: u64,
    /// Both clocks at the start and when each step was noticed.
    pub(crate) clocks: Vec<Moment>,
    /// Since when each of them may have been right: the reading before it was without the step.
    pub(crate) clocks_since_us: Vec<u64>,
    /// Periods that only a later segment shows to be uncertain.
    pub(crate) uncertain: Vec<(u64, u64)>,
    /// Time of its end, and whether it stopped cleanly.
    pub(crate) ended: Option<(u64, bool)>,
    /// True if no record is missing at its end, and the clock was not set before the next one.
    pub(crate) is_whole: bool,
    /// True if the rings that had its last records were lost.
    pub(crate) is_end_lost: bool,
    /// The names used last; a run keeps the numbers of realms and pools.
    pub(crate) names: Names,
    /// The formulas that were in use.
    pub(crate) formulas: Vec<FormulasInUse>,
    /// Since when which pools had which addresses.
    pub(crate) pools: Vec<(u64, Arc<PoolRanges>)>,
}

impl Boot {
    /// A run that begins at this moment.
    pub(crate) fn begin(id: [u8; 16], moment: Moment) -> Boot {
        Boot {
            id,
            first_frame: 0,
            clocks: vec![moment],
            clocks_since_us: vec![moment.monotonic_us],
            uncertain: Vec::new(),
            ended: None,
            is_whole: false,
            is_end_lost: false,
            names: Names::default(),
            formulas: Vec::new(),
            pools: Vec::new(),
        }
    }

    /// A step of the clock was noticed, which was not there yet at `since_us`. None if it comes
    /// before an earlier one.
    pub(crate) fn set_clock(&mut self, moment: Moment, since_us: u64) -> Option<()> {
        let before = self.clocks.last()?.monotonic_us;
        if moment.monotonic_us < before {
            return None;
        }
        self.clocks.push(moment);
        self.clocks_since_us.push(since_us.clamp(before, moment.monotonic_us));
        Some(())
    }

    /// The pools that some worker used between two moments, if the run recorded its pools.
    pub(crate) fn pools_between(&self, from_us: u64, to_us: u64) -> impl Iterator<Item = &PoolRanges> {
        let next = move |place: usize| self.pools.get(place + 1).map_or(u64::MAX, |(since_us, _)| *since_us);
        let in_use = self.pools.iter().enumerate().filter(move |(place, (since_us, _))| {
            // A run begins with its first ones.
            let is_begun = *place == 0 || *since_us <= to_us.saturating_add(ADOPTED_US);
            is_begun && from_us <= next(*place).saturating_add(ADOPTED_US)
        });
        in_use.map(|(_, (_, pools))| pools.as_ref())
    }

    /// The number of the pool that an external address was of at a time. A mapping may be recorded
    /// shortly before the configuration that made it possible, and outlive its pool.
    pub(crate) fn pool_of(&self, address: Ipv4Addr, at_us: u64) -> Option<u16> {
        let next = self.pools.partition_point(|(since_us, _)| *since_us <= at_us);
        let (before, after) = self.pools.split_at(next.saturating_sub(1));
        after.iter().chain(before.iter().rev()).find_map(|(_, pools)| pools.find(address))
    }
}

/// Workers use a new configuration by then, in µs after the log got its names.
pub(crate) const ADOPTED_US: u64 = 5_000_000;

/// The formulas of deterministic pools from some moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormulasInUse {
    /// They came into use between these, by the boot's clock.
    pub(crate) since_us: u64,
    pub(crate) at_us: u64,
    /// Their checksum; 0 without.
    pub(crate) checksum: u32,
    /// The number of the first configuration with them.
    pub(crate) configuration: u32,
}

/// A segment of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) id: u64,
    /// Place of its boot.
    pub(crate) boot: u32,
    /// Number of its first frame and of the one after its last.
    pub(crate) frames: (u64, u64),
    /// Hash of its last frame.
    pub(crate) last_frame: Hash,
    /// True if it was merged from others.
    pub(crate) is_merged: bool,
    pub(crate) coverage: Coverage,
    pub(crate) written: Written,
}

/// An entry of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Created {
        store: [u8; 16],
        key: [u8; 32],
        unix_us: u64,
    },
    Boot {
        id: [u8; 16],
        moment: Moment,
    },
    /// A step of the clock was noticed; at `since_us` of the monotonic clock there was none yet.
    Clock {
        moment: Moment,
        since_us: u64,
    },
    Uncertain {
        boot: u32,
        period: (u64, u64),
    },
    Sealed(Box<Segment>),
    /// This segment replaces those with the same frames.
    Merged(Box<Segment>),
    Deleted {
        id: u64,
        unix_us: u64,
        retention_us: u64,
    },
    /// `is_whole`: no record is missing, and the clock was not set until the next start.
    /// `is_end_lost`: the rings that had the last records were not there, or not whole.
    BootEnd {
        covered_us: u64,
        is_clean: bool,
        is_whole: bool,
        is_end_lost: bool,
    },
    /// What the journal of the last boot had from this frame on was damaged or missing: bytes that
    /// could not be read, and the frames that a signed head says were on the disk, 0 if they are
    /// all there, [`NO_HEAD`] if there was no head.
    Cut {
        frame: u64,
        bytes: u64,
        signed: u64,
    },
    /// A start found the last segment of a run that had not ended damaged: what was open at its end
    /// is not known.
    Damaged {
        id: u64,
    },
    /// A start put damaged files into this folder of the store.
    Aside {
        unix_us: u64,
        place: String,
    },
    /// The names of realms and pools by number, from some moment between these on.
    Names {
        since_us: u64,
        at_us: u64,
        names: Box<Names>,
    },
}

/// Names for the numbers in events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// VRFs.
    pub realms: Vec<String>,
    /// Pools.
    pub pools: Vec<String>,
    /// Checksum of the formulas of deterministic pools, whose ports have no records; 0 without.
    pub formulas: u32,
    /// External addresses of the pools.
    pub addresses: Arc<PoolRanges>,
    /// The number of the first configuration with these names and formulas.
    pub configuration: u32,
}

/// The number of a configuration, of a version that did not record it.
const UNKNOWN_CONFIGURATION: u32 = u32::MAX;

impl Names {
    fn put(&self, out: &mut Vec<u8>) {
        for names in [&self.realms, &self.pools] {
            put_varint(out, names.len() as u64);
            names.iter().for_each(|name| put_bytes(out, name.as_bytes()));
        }
        put_varint(out, u64::from(self.formulas));
        let ranges = self.addresses.ranges();
        put_varint(out, ranges.len() as u64);
        for PoolRange { first, last, pool, is_one_to_one: _ } in ranges {
            put_varint(out, u64::from(*first));
            put_varint(out, u64::from(last - first));
            put_varint(out, u64::from(*pool));
        }
        put_varint(out, u64::from(self.configuration));
        if !self.addresses.is_of_earlier_version() {
            let one_to_one = ranges.iter().filter(|range| range.is_one_to_one).map(|range| range.pool);
            let one_to_one: BTreeSet<u16> = one_to_one.collect();
            put_varint(out, one_to_one.len() as u64);
            one_to_one.iter().for_each(|pool| put_varint(out, u64::from(*pool)));
        }
    }

    /// True if the others differ in the number of their configuration at most.
    pub(crate) fn is_as(&self, other: &Names) -> bool {
        let Names { realms, pools, formulas, addresses, configuration: _ } = self;
        (realms, pools, formulas, addresses) == (&other.realms, &other.pools, &other.formulas, &other.addresses)
    }

    fn take(input: &mut Cursor<'_>) -> Option<Names> {
        let mut names = Names::default();
        for list in [&mut names.realms, &mut names.pools] {
            for _ in 0..input.count(1)? {
                list.push(core::str::from_utf8(input.bytes()?).ok()?.to_owned());
            }
        }
        names.formulas = input.number()?;
        let mut ranges = Vec::new();
        for _ in 0..input.count(3)? {
            let (first, more): (u32, u32) = (input.number()?, input.number()?);
            let (last, pool) = (first.checked_add(more)?, input.number()?);
            ranges.push(PoolRange { first, last, pool, is_one_to_one: false });
        }
        names.configuration = if input.is_empty() { UNKNOWN_CONFIGURATION } else { input.number()? };
        if input.is_empty() {
            // Earlier versions did not say which pools are one-to-one.
            names.addresses = Arc::new(PoolRanges::of_earlier_version(ranges));
            return Some(names);
        }
        let mut one_to_one: BTreeSet<u16> = BTreeSet::new();
        for _ in 0..input.count(1)? {
            one_to_one.insert(input.number()?);
        }
        ranges.iter_mut().for_each(|range| range.is_one_to_one = one_to_one.contains(&range.pool));
        names.addresses = Arc::new(PoolRanges::of(ranges));
        Some(names)
    }
}

impl Entry {
    /// An entry of each kind that can follow each other.
    pub(crate) fn examples() -> Vec<Entry> {
        let moment = Moment { monotonic_us: 5, unix_us: 1_790_000_000_000_000 };
        let segment = |id: u64, frames: (u64, u64)| Segment {
            id,
            boot: 0,
            frames,
            last_frame: [7; 32],
            is_merged: id == 2,
            coverage: Coverage {
                covered_us: 9,
                workers: vec![(0, 1, 4)],
                uncertain: vec![(6, 7)],
                recorded: vec![(0, 3, 8)],
                ..Coverage::default()
            },
            written: Written { bytes: 500, ..Written::default() },
        };
        vec![
            Entry::Created { store: [1; 16], key: [2; 32], unix_us: 3 },
            Entry::Boot { id: [4; 16], moment },
            Entry::Clock { moment, since_us: 0 },
            Entry::Uncertain { boot: 0, period: (5, 6) },
            Entry::Sealed(Box::new(segment(0, (0, 3)))),
            Entry::Sealed(Box::new(segment(1, (3, 5)))),
            Entry::Merged(Box::new(segment(2, (0, 5)))),
            Entry::Deleted { id: 2, unix_us: 9, retention_us: 8 },
            Entry::Cut { frame: 5, bytes: 7, signed: 0 },
            Entry::Cut { frame: 5, bytes: 0, signed: 9 },
            Entry::Cut { frame: 5, bytes: 0, signed: NO_HEAD },
            Entry::Sealed(Box::new(segment(3, (5, 7)))),
            Entry::Damaged { id: 3 },
            Entry::Aside { unix_us: 9, place: "damaged-1".to_owned() },
            Entry::Names {
                since_us: 6,
                at_us: 7,
                names: Box::new(Names {
                    realms: vec!["a".to_owned()],
                    pools: vec!["b".to_owned()],
                    formulas: 9,
                    addresses: Arc::new(PoolRanges::of(vec![PoolRange {
                        first: 5,
                        last: 9,
                        pool: 0,
                        is_one_to_one: true,
                    }])),
                    configuration: 3,
                }),
            },
            Entry::BootEnd { covered_us: 9, is_clean: true, is_whole: true, is_end_lost: false },
            Entry::BootEnd { covered_us: 9, is_clean: false, is_whole: false, is_end_lost: true },
        ]
    }

    /// Names were in use at this time at the latest.
    pub(crate) fn set_latest(&mut self, latest_us: u64) {
        if let Entry::Names { since_us, at_us, .. } = self {
            *at_us = latest_us.max(*since_us);
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let moment = |out: &mut Vec<u8>, moment: &Moment| {
            put_varint(out, moment.monotonic_us);
            put_varint(out, moment.unix_us);
        };
        match self {
            Entry::Created { store, key, unix_us } => {
                out.push(1);
                out.extend_from_slice(store);
                out.extend_from_slice(key);
                put_varint(out, *unix_us);
            }
            Entry::Boot { id, moment: at } => {
                out.push(2);
                out.extend_from_slice(id);
                moment(out, at);
            }
            Entry::Clock { moment: at, since_us } => {
                out.push(11);
                moment(out, at);
                put_varint(out, *since_us);
            }
            Entry::Uncertain { boot, period } => {
                out.push(4);
                put_varint(out, u64::from(*boot));
                put_varint(out, period.0);
                put_varint(out, period.1);
            }
            Entry::Sealed(segment) => {
                out.push(5);
                put_segment(out, segment);
            }
            Entry::Merged(segment) => {
                out.push(6);
                put_segment(out, segment);
            }
            Entry::Deleted { id, unix_us, retention_us } => {
                out.push(7);
                put_varint(out, *id);
                put_varint(out, *unix_us);
                put_varint(out, *retention_us);
            }
            Entry::BootEnd { covered_us, is_clean, is_whole, is_end_lost } => {
                out.push(8);
                put_varint(out, *covered_us);
                out.push(u8::from(*is_clean) | u8::from(*is_whole) << 1 | u8::from(*is_end_lost) << 2);
            }
            Entry::Cut { frame, bytes, signed } => {
                out.push(9);
                put_varint(out, *frame);
                put_varint(out, *bytes);
                // Without it, earlier versions can read it, too.
                if *signed > 0 {
                    put_varint(out, *signed);
                }
            }
            Entry::Damaged { id } => {
                out.push(13);
                put_varint(out, *id);
            }
            Entry::Aside { unix_us, place } => {
                out.push(14);
                put_varint(out, *unix_us);
                put_bytes(out, place.as_bytes());
            }
            Entry::Names { since_us, at_us, names } => {
                out.push(12);
                put_varint(out, *since_us);
                put_varint(out, *at_us);
                names.put(out);
            }
        }
    }

    pub(crate) fn parse(content: &[u8]) -> Option<Entry> {
        let mut input = Cursor::new(content);
        let entry = match input.u8()? {
            1 => Entry::Created { store: input.array()?, key: input.array()?, unix_us: input.varint()? },
            2 => Entry::Boot { id: input.array()?, moment: take_moment(&mut input)? },
            3 => {
                let moment = take_moment(&mut input)?;
                Entry::Clock { moment, since_us: moment.monotonic_us }
            }
            11 => Entry::Clock { moment: take_moment(&mut input)?, since_us: input.varint()? },
            4 => Entry::Uncertain { boot: input.number()?, period: (input.varint()?, input.varint()?) },
            5 => Entry::Sealed(Box::new(take_segment(&mut input)?)),
            6 => Entry::Merged(Box::new(take_segment(&mut input)?)),
            7 => Entry::Deleted { id: input.varint()?, unix_us: input.varint()?, retention_us: input.varint()? },
            8 => {
                let (covered_us, flags) = (input.varint()?, input.u8()?);
                let [is_clean, is_whole, is_end_lost] = [1, 2, 4].map(|bit| flags & bit != 0);
                Entry::BootEnd { covered_us, is_clean, is_whole, is_end_lost }
            }
            10 => {
                let at_us = input.varint()?;
                Entry::Names { since_us: at_us, at_us, names: Box::new(Names::take(&mut input)?) }
            }
            12 => {
                let (since_us, at_us) = (input.varint()?, input.varint()?);
                Entry::Names { since_us, at_us, names: Box::new(Names::take(&mut input)?) }
            }
            9 => {
                let (frame, bytes) = (input.varint()?, input.varint()?);
                Entry::Cut { frame, bytes, signed: if input.is_empty() { 0 } else { input.varint()? } }
            }
            13 => Entry::Damaged { id: input.varint()? },
            14 => {
                let unix_us = input.varint()?;
                Entry::Aside { unix_us, place: core::str::from_utf8(input.bytes()?).ok()?.to_owned() }
            }
            _ => return None,
        };
        input.is_empty().then_some(entry)
    }
}

fn take_moment(input: &mut Cursor<'_>) -> Option<Moment> {
    let moment = Moment { monotonic_us: input.varint()?, unix_us: input.varint()? };
    // Far enough from the ends of the type that differences cannot overflow.
    (moment.monotonic_us < 1 << 60 && moment.unix_us < 1 << 60).then_some(moment)
}

fn put_segment(out: &mut Vec<u8>, segment: &Segment) {
    for number in [segment.id, u64::from(segment.boot), segment.frames.0, segment.frames.1] {
        put_varint(out, number);
    }
    out.extend_from_slice(&segment.last_frame);
    out.push(u8::from(segment.is_merged));
    let mut coverage = Vec::new();
    segment.coverage.put(&mut coverage);
    put_bytes(out, &coverage);
    let Written { bytes, hash, footer_offset, single_rows, range_rows, single_bytes, range_bytes } = &segment.written;
    out.extend_from_slice(hash);
    for number in [bytes, footer_offset, single_rows, range_rows, single_bytes, range_bytes] {
        put_varint(out, *number);
    }
}

fn take_segment(input: &mut Cursor<'_>) -> Option<Segment> {
    Some(Segment {
        id: input.varint()?,
        boot: input.number()?,
        frames: (input.varint()?, input.varint()?),
        last_frame: input.array()?,
        is_merged: input.u8()? != 0,
        coverage: Coverage::take(&mut Cursor::new(input.bytes()?))?,
        written: Written {
            hash: input.array()?,
            bytes: input.varint()?,
            footer_offset: input.varint()?,
            single_rows: input.varint()?,
            range_rows: input.varint()?,
            single_bytes: input.varint()?,
            range_bytes: input.varint()?,
        },
    })
}

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

    /// Runs that ended without a stop and whose last records may be lost with their rings. Nobody
    /// knows how many: a gap in time and not in numbers.
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

/// Begins the catalogue of a new store.
pub(crate) fn create(folder: &Path, key: &SigningKey, unix_us: u64) -> Result<(), StoreError> {
    let path = folder.join(NAME);
    let new = folder.join("catalogue.new");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let created = Entry::Created { store: random_bytes(folder)?, key: key.verifying_key().to_bytes(), unix_us };
    put_entry(&mut bytes, &created, &[0; 32]);
    write_whole(&new, &bytes)?;
    fs::rename(&new, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry, before: &Hash) -> Hash {
    let mut content = Vec::new();
    entry.put(&mut content);
    out.extend_from_slice(&(content.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&content).to_le_bytes());
    out.extend_from_slice(&content);
    let hash = chained(before, &content);
    out.extend_from_slice(&hash);
    hash
}

/// Writes and syncs a file.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let error = StoreError::io(path);
    let mut file = new_file(path).map_err(&error)?;
    file.write_all(bytes).map_err(&error)?;
    file.sync_all().map_err(&error)
}

/// Syncs the names in a folder.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), StoreError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(StoreError::io(folder))
}

/// The catalogue of a store that is written.
#[derive(Debug)]
pub(crate) struct CatalogueWriter {
    folder: PathBuf,
    pub(crate) file: File,
    pub(crate) catalogue: Catalogue,
    key: SigningKey,
    /// The frames that are on the disk, and the last one of them.
    synced: (u64, Hash),
    /// The signed head as it was found.
    found: Option<Head>,
    /// The record of lookups.
    lookups: Lines,
}

/// Puts the copy of the catalogue into its place if it is missing or damaged. The damaged one is
/// kept in a folder of the store. Returns true if it was missing.
///
/// # Errors
/// The disk failed.
pub(crate) fn restore(folder: &Path) -> Result<bool, StoreError> {
    let Some(length) = length_of_better_copy(folder) else { return Ok(false) };
    let (path, copy) = (folder.join(NAME), folder.join(COPY));
    let mut bytes = fs::read(&copy).map_err(StoreError::io(&copy))?;
    bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    let is_missing = !path.exists();
    if !is_missing {
        aside::link(folder, core::slice::from_ref(&path))?;
    }
    let new = folder.join("catalogue.new");
    write_whole(&new, &bytes)?;
    fs::rename(&new, &path).map_err(StoreError::io(&path))?;
    sync_folder(folder)?;
    Ok(is_missing)
}

/// How many bytes of the copy to use instead of the catalogue; None if the catalogue is whole, or
/// the copy no better.
fn length_of_better_copy(folder: &Path) -> Option<u64> {
    let mut hashes: Vec<Hash> = Vec::new();
    let (copy, _) = Catalogue::read_file(folder, COPY, |_, hash| hashes.push(*hash)).ok()?;
    let head = Head::text_in(folder);
    let signed = Head::entries_in(head.as_deref(), folder, &copy);
    let is_better = copy.entries >= signed.unwrap_or(0);
    let is_better = is_better
        && match Catalogue::read(folder, |_, _| {}) {
            // The catalogue has more, or the copy is of another store.
            Ok((known, _)) if known.store != copy.store || known.entries >= copy.entries => false,
            Ok((known, length)) => {
                let continues = hashes.get((known.entries - 1) as usize) == Some(&known.hash);
                let is_damaged = length > known.length || signed.is_some_and(|entries| known.entries < entries);
                continues && is_damaged
            }
            Err(StoreError::Later { .. }) => false,
            // A later release writes the copy, too.
            Err(_) => true,
        };
    is_better.then_some(copy.length)
}

impl CatalogueWriter {
    /// Opens the catalogue; a torn entry at its end is cut off.
    pub(crate) fn open(folder: &Path, key: SigningKey) -> Result<CatalogueWriter, StoreError> {
        let (catalogue, length) = Catalogue::read(folder, |_, _| {})?;
        let path = folder.join(NAME);
        let error = StoreError::io(&path);
        let signed = Head::read(&folder.join(HEAD), &catalogue.key).ok();
        if let Some(head) = signed.as_ref().filter(|head| head.entries > catalogue.entries) {
            let what = format!("{} entries instead of {} in its signed head", catalogue.entries, head.entries);
            return Err(StoreError::damaged(&path, what));
        }
        if length > catalogue.length && signed.is_none() {
            // Nothing says that no whole entry follows.
            let what = format!("entry {} cannot be read, and there is no head", catalogue.entries + 1);
            return Err(StoreError::damaged(&path, what));
        }
        if key.verifying_key().to_bytes() != catalogue.key {
            let what = "it is not the key of this store".to_owned();
            return Err(StoreError::Key { path: folder.to_owned(), what });
        }
        let file = File::options().append(true).open(&path).map_err(&error)?;
        if length > catalogue.length {
            file.set_len(catalogue.length).map_err(&error)?;
            file.sync_all().map_err(&error)?;
        }
        let found = signed.filter(|head| head.store == catalogue.store);
        let lookups = Lines::after(found.map_or((0, [0; 32]), |head| head.lookups));
        let folder = folder.to_owned();
        let writer = CatalogueWriter { folder, file, catalogue, key, synced: (0, [0; 32]), found, lookups };
        let copy = writer.folder.join(COPY);
        if fs::read(&path).map_err(&error)? != fs::read(&copy).unwrap_or_default() {
            // Without it a start goes on as with it.
            let _ = writer.write_copy();
        }
        Ok(writer)
    }

    /// Writes the whole copy.
    fn write_copy(&self) -> Result<(), StoreError> {
        let (path, copy) = (self.folder.join(NAME), self.folder.join(COPY));
        let mut bytes = fs::read(&path).map_err(StoreError::io(&path))?;
        bytes.truncate(usize::try_from(self.catalogue.length).unwrap_or(usize::MAX));
        let new = self.folder.join("catalogue.copy.new");
        write_whole(&new, &bytes)?;
        fs::rename(&new, &copy).map_err(StoreError::io(&copy))?;
        sync_folder(&self.folder)
    }

    /// Appends an entry to the copy. One that could not be written is written with the next one:
    /// the catalogue has it.
    fn append_to_copy(&self, bytes: &[u8]) {
        let before = self.catalogue.length - bytes.len() as u64;
        let append = || {
            let mut copy = File::options().append(true).open(self.folder.join(COPY))?;
            if copy.metadata()?.len() != before {
                return Err(std::io::Error::other("it has other entries"));
            }
            copy.write_all(bytes)?;
            copy.sync_all()
        };
        if append().is_err() {
            let _ = self.write_copy();
        }
    }

    /// True if the file that is written is still the one of the folder.
    pub(crate) fn is_in_place(&self) -> bool {
        is_file_of(&self.file, &self.folder.join(NAME))
    }

    /// Of these frames from `first` on, the first that is not what the signed head says was on the
    /// disk, and how many frames that head has. Without a head, the frame after these and
    /// [`NO_HEAD`]: frames and head may have been removed together.
    pub(crate) fn first_wrong(&self, first: u64, hashes: &[Hash]) -> Option<(u64, u64)> {
        let Some(Head { frames, frame, .. }) = self.found else {
            return Some((first + hashes.len() as u64, NO_HEAD));
        };
        let place = frames.checked_sub(first)?.checked_sub(1)?;
        match usize::try_from(place).ok().and_then(|place| hashes.get(place)) {
            Some(hash) if *hash == frame => None,
            Some(_) => Some((frames - 1, frames)),
            None => Some((first + hashes.len() as u64, frames)),
        }
    }

    /// Signs the head of a store that has had no run yet. If it is missing later, it was removed.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn sign_first(&mut self) -> Result<(), StoreError> {
        if !self.catalogue.boots.is_empty() {
            return Ok(());
        }
        self.sign()?;
        sync_folder(&self.folder)
    }

    /// Signs a head with the frames that are now on the disk.
    pub(crate) fn sign_synced(&mut self, frames: u64, last: Hash) {
        self.synced = (frames, last);
        // As for an entry, an older head is no fault.
        let _ = self.sign();
    }

    /// Appends an entry to the disk and signs the new head.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let path = self.folder.join(NAME);
        let mut bytes = Vec::new();
        let hash = put_entry(&mut bytes, &entry, &self.catalogue.hash);
        let written = (&self.file).write_all(&bytes).and_then(|()| self.file.sync_all());
        if let Err(source) = written {
            // What was written in part is cut off, or at the next start.
            let _ = self.file.set_len(self.catalogue.length);
            return Err(StoreError::Io { path, source });
        }
        self.catalogue.length += bytes.len() as u64;
        self.catalogue
            .add(entry, hash)
            .ok_or_else(|| StoreError::damaged(&path, "a new entry contradicts the earlier ones"))?;
        self.append_to_copy(&bytes);
        // The entry counts already. A head that could not be written is older than the catalogue,
        // which every reader accepts, and the next entry writes it again.
        let _ = self.sign();
        Ok(())
    }

    /// Writes the signed head.
    fn sign(&mut self) -> Result<(), StoreError> {
        let Catalogue { entries, hash, next_frame, last_frame, store, .. } = self.catalogue;
        let sealed = (next_frame, last_frame);
        let (frames, frame) = if self.synced.0 > next_frame { self.synced } else { sealed };
        // What cannot be read now is in the next head.
        let _ = self.lookups.read_on(&self.folder);
        let head = Head { store, entries, hash, frames, frame, lookups: self.lookups.signed() };
        let (new, path) = (self.folder.join("head.new"), self.folder.join(HEAD));
        // Some file systems (XFS) keep a new name over a power cut, but an empty file with it,
        // unless it was synced before.
        write_whole(&new, head.text(&self.key).as_bytes())?;
        fs::rename(&new, &path).map_err(StoreError::io(&path))
    }
}

/// The head of the chain at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub(crate) store: [u8; 16],
    /// Entries of the catalogue and the hash of the last one.
    pub(crate) entries: u64,
    pub(crate) hash: Hash,
    /// Frames so far and the hash of the last one.
    pub(crate) frames: u64,
    pub(crate) frame: Hash,
    /// Lines of the record of lookups and the hash of the last one.
    pub(crate) lookups: (u64, Hash),
}

impl Head {
    pub(crate) fn signed_text(&self) -> String {
        let mut text = format!("natrix log head\nstore {}\n", hex(&self.store));
        text += &format!("entries {} {}\n", self.entries, hex(&self.hash));
        text += &format!("frames {} {}\n", self.frames, hex(&self.frame));
        if self.lookups.0 > 0 {
            text += &format!("lookups {} {}\n", self.lookups.0, hex(&self.lookups.1));
        }
        text
    }

    /// The head as text with its signature.
    pub(crate) fn text(&self, key: &SigningKey) -> String {
        let text = self.signed_text();
        let signature = key.sign(text.as_bytes());
        format!("{text}key {}\nsignature {}\n", hex(key.verifying_key().as_bytes()), hex(&signature.to_bytes()))
    }

    /// Reads a head and checks its signature by the key of the store.
    ///
    /// # Errors
    /// The file cannot be read, is no head, or is not signed by `key`.
    pub(crate) fn read(path: &Path, key: &[u8; 32]) -> Result<Head, StoreError> {
        use std::io::Read;
        let mut text = String::new();
        let file = File::open(path).map_err(StoreError::io(path))?;
        file.take(4_096).read_to_string(&mut text).map_err(StoreError::io(path))?;
        Head::signed(&text, path, key)
    }

    /// The text of the head in a store; None if it cannot be read.
    pub(crate) fn text_in(folder: &Path) -> Option<String> {
        use std::io::Read;
        let mut text = String::new();
        File::open(folder.join(HEAD)).ok()?.take(4_096).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// How many entries the catalogue of a store had by the text of its head; None if that is not
    /// its head.
    fn entries_in(text: Option<&str>, folder: &Path, known: &Catalogue) -> Option<u64> {
        let head = Head::signed(text?, &folder.join(HEAD), &known.key).ok()?;
        (head.store == known.store).then_some(head.entries)
    }

    /// The head in `text`, which is from `path`, if it is signed by `key`.
    ///
    /// # Errors
    /// It is no head, or is not signed by `key`.
    pub(crate) fn signed(text: &str, path: &Path, key: &[u8; 32]) -> Result<Head, StoreError> {
        let (head, signature) =
            Head::parse(text).ok_or_else(|| StoreError::damaged(path, "not the head of a store"))?;
        let is_signed = head.is_signed(text, &signature, key);
        is_signed.then_some(head).ok_or_else(|| StoreError::damaged(path, "the signature of the head is wrong"))
    }

    /// True if it is what `text` has, and signed by `key`.
    pub(crate) fn is_signed(&self, text: &str, signature: &[u8; 64], key: &[u8; 32]) -> bool {
        // The line is for readers and not signed.
        let is_named = text.lines().any(|line| line.strip_prefix("key ") == Some(&hex(key)));
        let key = VerifyingKey::from_bytes(key).ok();
        key.filter(|_| is_named).is_some_and(|key| {
            key.verify_strict(self.signed_text().as_bytes(), &Signature::from_bytes(signature)).is_ok()
        })
    }

    pub(crate) fn parse(text: &str) -> Option<(Head, [u8; 64])> {
        let mut lines = text.lines().skip_while(|line| *line != "natrix log head").skip(1);
        let has_lookups = lines.clone().nth(3).is_some_and(|line| line.starts_with("lookups "));
        let mut line = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let store = unhex(&line("store")?)?;
        let pair = |text: String| -> Option<(u64, Hash)> {
            let (number, hash) = text.split_once(' ')?;
            Some((number.parse().ok()?, unhex(hash)?))
        };
        let ((entries, hash), (frames, frame)) = (pair(line("entries")?)?, pair(line("frames")?)?);
        // Without lookups there is no such line.
        let lookups = if has_lookups { pair(line("lookups")?)? } else { (0, [0; 32]) };
        line("key")?;
        Some((Head { store, entries, hash, frames, frame, lookups }, unhex(&line("signature")?)?))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, two) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(core::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// Reads the signing key: 64 hexadecimal digits.
pub(crate) fn read_key(path: &Path) -> Result<SigningKey, StoreError> {
    let text = fs::read_to_string(path).map_err(StoreError::io(path))?;
    let bytes = unhex(text.trim_end());
    let wrong = || StoreError::Key { path: path.to_owned(), what: "not 64 hexadecimal digits".to_owned() };
    Ok(SigningKey::from_bytes(&bytes.ok_or_else(wrong)?))
}

/// Bytes from the system's source of randomness.
pub(crate) fn random_bytes<const N: usize>(path: &Path) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    let filled = rand::TryRngCore::try_fill_bytes(&mut rand::rngs::OsRng, &mut bytes);
    filled.map_err(|error| StoreError::io(path)(std::io::Error::other(error)))?;
    Ok(bytes)
}

/// Reads the key, or makes one that only its owner can read.
pub(crate) fn key_of(path: &Path, may_make: bool) -> Result<SigningKey, StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    if path.exists() || !may_make {
        return read_key(path);
    }
    let key = SigningKey::from_bytes(&random_bytes(path)?);
    let error = StoreError::io(path);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path).map_err(&error)?;
    file.write_all(format!("{}\n", hex(&key.to_bytes())).as_bytes()).map_err(&error)?;
    file.sync_all().map_err(&error)?;
    Ok(key)
}
