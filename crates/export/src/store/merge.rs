//! Several segments become one.
//!
//! All tables are sorted. So the rows before the first endpoint of a block that was not read yet
//! are complete: they are taken from every segment, sorted together, and written; then that block
//! is read. An interval that was open at the end of one segment is in the next one, too, which
//! knows more about its end: only the last segment's open rows count.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use std::io;
use std::path::Path;

use super::error::StoreError;
use super::row::End;
use super::row::Row;
use super::segment::RANGES;
use super::segment::SINGLE;
use super::segment::SegmentFile;
use super::segment::SegmentWriter;
use super::segment::Written;
use super::sort::Sorted;

/// Reads a table of a segment from its start to its end, a block at a time.
struct Stream<'a> {
    segment: &'a mut SegmentFile,
    table: usize,
    next_block: usize,
    /// Rows that were read, from `taken` on not yet taken.
    rows: Vec<Row>,
    taken: usize,
    has_open: bool,
    block: Vec<Row>,
}

impl Stream<'_> {
    /// The first endpoint of what was not read; None if all was.
    fn bound(&self) -> Option<u64> {
        self.segment.footer.tables[self.table].blocks.get(self.next_block).map(|block| block.first)
    }

    /// Reads the next block, if there is one.
    fn fill(&mut self) -> Result<(), StoreError> {
        let Some(block) = self.segment.footer.tables[self.table].blocks.get(self.next_block).copied() else {
            return Ok(());
        };
        self.next_block += 1;
        self.segment.rows_of(self.table, &block, &mut self.block)?;
        self.rows.drain(..core::mem::take(&mut self.taken));
        let has_open = self.has_open;
        self.rows.extend(self.block.iter().filter(|row| has_open || row.until != End::Open));
        Ok(())
    }

    /// Moves the rows before an endpoint.
    fn take(&mut self, bound: u64, batch: &mut Vec<Row>) {
        let left = &self.rows[self.taken..];
        let count = left.partition_point(|row| row.endpoint() < bound);
        batch.extend_from_slice(&left[..count]);
        self.taken += count;
    }
}

/// Merges segments, given in the order of time, to one.
pub(crate) fn merge(path: &Path, segments: &mut [SegmentFile], is_ending: &AtomicBool) -> Result<Written, StoreError> {
    let mut writer = SegmentWriter::create(path)?;
    for table in [SINGLE, RANGES] {
        if table == RANGES {
            writer.begin_ranges()?;
        }
        let last = segments.len().saturating_sub(1);
        let stream = |(place, segment)| Stream {
            segment,
            table,
            next_block: 0,
            rows: Vec::new(),
            taken: 0,
            has_open: place == last,
            block: Vec::new(),
        };
        let mut streams: Vec<Stream<'_>> = segments.iter_mut().enumerate().map(stream).collect();
        let mut batch: Vec<Row> = Vec::new();
        loop {
            if is_ending.load(Ordering::Relaxed) {
                return Err(StoreError::io(path)(io::Error::from(io::ErrorKind::Interrupted)));
            }
            let next = streams.iter().enumerate().filter_map(|(place, stream)| Some((stream.bound()?, place))).min();
            let bound = next.map_or(u64::MAX, |(bound, _)| bound);
            streams.iter_mut().for_each(|stream| stream.take(bound, &mut batch));
            write(&mut writer, &Sorted::of(&batch))?;
            batch.clear();
            let Some((_, place)) = next else { break };
            streams[place].fill()?;
        }
    }
    writer.begin_others()?;
    let mut frames = Vec::new();
    for segment in segments.iter_mut() {
        for (offset, length, plain) in segment.footer.others.clone() {
            let packed = segment.read(offset, length as usize)?;
            writer.packed_others(&packed, plain)?;
        }
        for piece in segment.footer.names.clone() {
            let packed = segment.read(piece.offset, piece.length as usize)?;
            writer.packed_names(&packed, piece)?;
        }
        writer.set_next_name(segment.footer.next_name);
        frames.extend(segment.frames()?);
    }
    writer.finish(&frames)
}

/// Writes the rows of one table. Several segments can have a row for the same interval: a row with
/// a known end replaces an open one, and a later end an earlier one.
fn write(writer: &mut SegmentWriter, rows: &Sorted<'_>) -> Result<(), StoreError> {
    let is_same = |one: &Row, next: &Row| one.endpoint() == next.endpoint() && one.order() == next.order();
    let known = |row: &Row| (row.until != End::Open, row.end);
    let mut rows = rows.singles().chain(rows.ranges());
    let Some(mut best) = rows.next() else { return Ok(()) };
    for row in rows {
        if !is_same(best, row) {
            writer.row(best)?;
            best = row;
        } else if known(row) >= known(best) {
            best = row;
        }
    }
    writer.row(best)
}
