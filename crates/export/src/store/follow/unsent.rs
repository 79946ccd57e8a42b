//! What the sinks of a store that was put aside had not sent. A new store does not have these
//! records, so they are lost for the sinks, and the collectors get a gap for each worker.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::Position;
use super::cursor::Kept;
use super::cursor::read_cursor;
use super::files;
use crate::store::error::StoreError;
use crate::store::rings::RingNumbers;
use crate::store::rings::following;
use crate::store::writer::JournalFile;

/// Gaps in a cursor.
const GAPS_MAX: usize = 1_000;
/// Bytes that are at least looked at to find whole frames after a damaged one.
const SEARCH_BYTES: u64 = 64 << 20;

/// Records of a store that was put aside, which a sink had not sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutAside {
    /// Name of the folder that has that store.
    pub place: String,
    /// When it was put there, µs since 1970.
    pub(super) unix_us: u64,
    /// False if its cursor was damaged, too: what was sent is not known then.
    pub is_known: bool,
    /// Worker, first number, count. Runs follow each other.
    pub(super) gaps: Vec<(u8, u64, u64)>,
}

impl PutAside {
    /// How many records were not sent.
    pub fn records(&self) -> u64 {
        self.gaps.iter().fold(0, |sum, (.., count)| sum.saturating_add(*count))
    }

    /// Keeps the cursor short. What is left out counts with the last gap.
    fn limit(&mut self) {
        let rest = self.gaps.split_off(self.gaps.len().min(GAPS_MAX));
        if let Some((.., count)) = self.gaps.last_mut() {
            *count = rest.iter().fold(*count, |sum, (.., more)| sum.saturating_add(*more));
        }
    }
}

/// First and last number of each worker, by run.
type Numbers = BTreeMap<(u32, u8), (u64, u64)>;

fn add(numbers: &mut Numbers, of: (u32, u8), number: u64) {
    let known = numbers.entry(of).or_insert((number, number));
    *known = (known.0.min(number), known.1.max(number));
}

/// What a store in `place` had not sent.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    /// The new positions of its sinks by the names of their cursors, and the bytes that may be kept
    /// for them.
    pub(crate) cursors: Vec<(String, Position, u64)>,
    /// Records that only the rings have.
    pub(crate) only_in_rings: u64,
}

/// Reads what the journal and the spool files of a store in `place` have, and what its rings had,
/// after the cursors with these names. `last_run` is the last one that its catalogue has, at least.
///
/// # Errors
/// The disk failed.
pub(crate) fn unsent_in(
    place: &Path,
    names: &[String],
    (rings, last_run): (&[RingNumbers], u32),
    unix_us: u64,
) -> Result<Unsent, StoreError> {
    let mut cursors: Vec<(&String, Kept, Numbers)> = Vec::new();
    for name in names {
        cursors.push((name, read_cursor(&place.join(name))?, Numbers::new()));
    }
    if cursors.is_empty() && rings.is_empty() {
        return Ok(Unsent::default());
    }
    let mut all = Numbers::new();
    for (_, path) in files(place)? {
        let length = fs::metadata(&path).map_err(StoreError::io(&path))?.len();
        let (mut reader, mut run) = (JournalFile::open(&path, length)?, 0);
        let mut budget = length.saturating_mul(2).saturating_add(SEARCH_BYTES);
        loop {
            let Some(frame) = reader.next()? else { if reader.search(run, &mut budget)? { continue } else { break } };
            run = frame.boot;
            // A section that cannot be read is followed by others in later frames.
            let _ = frame.events(|worker, event| {
                let (of, number) = ((run, worker), following(event).saturating_sub(1));
                add(&mut all, of, number);
                for (_, kept, numbers) in &mut cursors {
                    if matches!(kept, Kept::At(position, _) if position.frame <= frame.number) {
                        add(numbers, of, event.sequence);
                        add(numbers, of, number);
                    }
                }
            });
        }
    }
    let last_run = all.last_key_value().map_or(0, |((run, _), _)| *run).max(last_run);
    let mut unsent = Unsent::default();
    for RingNumbers { worker, first, last } in rings {
        let known = all.get(&(last_run, *worker)).map_or(0, |(_, last)| *last);
        unsent.only_in_rings += last.saturating_add(1).saturating_sub(known.saturating_add(1).max(*first));
    }
    let place = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for (name, kept, mut numbers) in cursors {
        let (before, spool_bytes) = match kept {
            Kept::Nothing => continue,
            Kept::Damaged => (None, u64::MAX),
            Kept::At(position, spool_bytes) => (Some(position), spool_bytes),
        };
        for RingNumbers { worker, first, last } in rings {
            add(&mut numbers, (last_run, *worker), *first);
            add(&mut numbers, (last_run, *worker), *last);
        }
        let mut aside = PutAside { place: place.clone(), unix_us, is_known: before.is_some(), gaps: Vec::new() };
        let mut position = Position { is_unknown: true, ..Position::default() };
        if let Some(before) = before {
            aside.gaps = gaps_after(&before, &numbers);
            position.datagram = before.datagram;
            // Of one more store, which it had not reported yet.
            let earlier = before.aside.map(|earlier| (earlier.is_known, earlier.gaps)).unwrap_or((true, Vec::new()));
            aside.is_known &= earlier.0;
            aside.gaps.splice(0..0, earlier.1);
            aside.limit();
        }
        position.aside = Some(aside);
        unsent.cursors.push((name.clone(), position, spool_bytes));
    }
    Ok(unsent)
}

/// The numbers after a position, up to the last ones.
fn gaps_after(position: &Position, numbers: &Numbers) -> Vec<(u8, u64, u64)> {
    let mut gaps = Vec::new();
    for ((run, worker), (first, last)) in numbers {
        let next = match position.boot {
            Some(known) if *run < known => continue,
            Some(known) if *run == known => {
                let new = if position.is_from_start { 1 } else { *first };
                position.workers.get(worker).copied().unwrap_or(new)
            }
            Some(_) => 1,
            None => *first,
        };
        let count = last.saturating_add(1).saturating_sub(next);
        gaps.extend((count > 0).then_some((*worker, next, count)));
    }
    gaps
}
