//! Entries of the chain, and their bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::NO_HEAD;
use super::runs::Moment;
use crate::pools::PoolRange;
use crate::pools::PoolRanges;
use crate::store::builder::Coverage;
use crate::store::codec::Cursor;
use crate::store::codec::put_bytes;
use crate::store::codec::put_varint;
use crate::store::journal::Hash;
use crate::store::segment::Written;

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
    /// A merged segment, which replaces the segments whose frames it has.
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
