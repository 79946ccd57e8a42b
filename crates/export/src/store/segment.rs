//! A segment: sorted rows in blocks, an index of the blocks, and everything that is no row.
//!
//! ```text
//!   magic, format | blocks of single ports | blocks of ranges | directory of subscribers
//!   | other records | hashes of the journal's frames | footer
//! ```
//!
//! The footer has for each block the first endpoint, the length, the number of rows and a CRC: one
//! read finds the block of an endpoint, a second one reads it. The directory is a table of the same
//! form with one row for each subscriber and external address. A segment has every interval of its
//! time, those that began earlier with their true start, so it answers alone, and older segments
//! can be deleted.

use std::fs::File;
use std::io::BufWriter;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::path::PathBuf;

use super::codec::Cursor;
use super::codec::put_varint;
use super::columns::BLOCK_BYTES_MAX;
use super::columns::BLOCK_ROWS;
use super::columns::Decoder;
use super::columns::Encoder;
use super::error::StoreError;
use super::folder::new_file;
use super::hosts::NAME_BYTES;
use super::hosts::NameRow;
use super::hosts::NameTable;
use super::journal::Hash;
use super::row::Row;
use super::sort::Sorted;

/// The first bytes of a segment; the last two are the number of its format.
pub(crate) const MAGIC: [u8; 16] = *b"NATRIX-SEGMENT\x01\x00";
/// Longest footer; a longer one is damage. 64 MiB index some 3 × 10^10 rows.
const FOOTER_MAX: u64 = 64 << 20;
/// Bytes of a block in the index.
const INDEX_BYTES: usize = 16;
/// Pairs of subscriber and external address in a directory. With more, as where every subscriber
/// uses every address, a segment has no directory, and its blocks are searched.
const PAIRS_MAX: usize = 4 << 20;
/// Other records are compressed in pieces of this size.
const OTHERS_BYTES: usize = 1 << 20;
/// Subscribers that are looked up one by one; with more, all intervals are read.
const EACH_MAX: usize = 256;
/// Blocks read at once when many follow each other.
const READ_AHEAD: u64 = 1 << 20;

/// Index of the table of single ports, of ranges, and of the directory.
pub(crate) const SINGLE: usize = 0;
pub(crate) const RANGES: usize = 1;
pub(crate) const DIRECTORY: usize = 2;

/// A block in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// First endpoint: address and port.
    pub(crate) first: u64,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) rows: u16,
    pub(crate) crc: u32,
}

/// The index of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<Block>,
    /// Longest range of ports less one.
    pub(crate) span_max: u16,
}

/// What the footer says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) tables: [Table; 3],
    pub(crate) has_directory: bool,
    /// Offset, compressed and plain length of pieces of other records.
    pub(crate) others: Vec<(u64, u32, u32)>,
    /// Offset and number of frame hashes.
    pub(crate) frames: (u64, u64),
    /// Pieces of names of IPv6 hosts.
    pub(crate) names: Vec<NamePiece>,
    /// See [`NameTable::next`]. 0 in segments without any such host, and in those of earlier
    /// releases.
    pub(crate) next_name: u32,
}

/// Compressed names of IPv6 hosts, sorted by identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamePiece {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) plain: u32,
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Its names that are current are so before this frame.
    pub(crate) frame: u64,
    /// Of the compressed bytes.
    pub(crate) crc: u32,
}

impl Footer {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let start = out.len();
        for table in &self.tables {
            put_varint(out, u64::from(table.span_max));
            put_varint(out, table.blocks.first().map_or(0, |block| block.offset));
            put_varint(out, table.blocks.len() as u64);
            for block in &table.blocks {
                out.extend_from_slice(&((block.first >> 16) as u32).to_le_bytes());
                out.extend_from_slice(&(block.first as u16).to_le_bytes());
                out.extend_from_slice(&block.rows.to_le_bytes());
                out.extend_from_slice(&block.length.to_le_bytes());
                out.extend_from_slice(&block.crc.to_le_bytes());
            }
        }
        out.push(u8::from(self.has_directory));
        put_varint(out, self.others.len() as u64);
        for (offset, length, plain) in &self.others {
            put_varint(out, *offset);
            put_varint(out, u64::from(*length));
            put_varint(out, u64::from(*plain));
        }
        put_varint(out, self.frames.0);
        put_varint(out, self.frames.1);
        if self.next_name != 0 {
            put_varint(out, u64::from(self.next_name));
            put_varint(out, self.names.len() as u64);
            for piece in &self.names {
                for number in [piece.length, piece.plain, piece.first, piece.last] {
                    put_varint(out, u64::from(number));
                }
                put_varint(out, piece.offset);
                put_varint(out, piece.frame);
                out.extend_from_slice(&piece.crc.to_le_bytes());
            }
        }
        let crc = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// Reads a footer. Returns None if it is damaged.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Footer> {
        let (content, crc) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
        if crc32fast::hash(content) != u32::from_le_bytes(crc.try_into().ok()?) {
            return None;
        }
        let mut input = Cursor::new(content);
        let mut footer = Footer::default();
        for table in &mut footer.tables {
            table.span_max = input.number()?;
            let mut offset = input.varint()?;
            let count = input.count(INDEX_BYTES)?;
            table.blocks.reserve_exact(count);
            for _ in 0..count {
                let (address, port) = (input.u32()?, input.u16()?);
                let first = u64::from(address) << 16 | u64::from(port);
                let (rows, length, crc) = (input.u16()?, input.u32()?, input.u32()?);
                if length as usize > BLOCK_BYTES_MAX || usize::from(rows) > BLOCK_ROWS {
                    return None;
                }
                table.blocks.push(Block { first, offset, length, rows, crc });
                offset = offset.checked_add(u64::from(length))?;
            }
            if !table.blocks.is_sorted_by_key(|block| block.first) {
                return None;
            }
        }
        footer.has_directory = input.u8()? != 0;
        for _ in 0..input.count(3)? {
            let (offset, length, plain) = (input.varint()?, input.number()?, input.number()?);
            if length > 2 * OTHERS_BYTES as u32 || plain > 2 * OTHERS_BYTES as u32 {
                return None;
            }
            footer.others.push((offset, length, plain));
        }
        footer.frames = (input.varint()?, input.varint()?);
        if input.is_empty() {
            return Some(footer);
        }
        footer.next_name = input.number().filter(|next| *next != 0)?;
        for _ in 0..input.count(10)? {
            let (length, plain, first, last) = (input.number()?, input.number()?, input.number()?, input.number()?);
            let (offset, frame, crc) = (input.varint()?, input.varint()?, input.u32()?);
            if length > 2 * OTHERS_BYTES as u32 || plain > 2 * OTHERS_BYTES as u32 {
                return None;
            }
            footer.names.push(NamePiece { offset, length, plain, first, last, frame, crc });
        }
        input.is_empty().then_some(footer)
    }
}

/// A finished file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) bytes: u64,
    pub(crate) hash: Hash,
    pub(crate) footer_offset: u64,
    pub(crate) single_rows: u64,
    pub(crate) range_rows: u64,
    /// Bytes of the tables of single ports and ranges.
    pub(crate) single_bytes: u64,
    pub(crate) range_bytes: u64,
}

/// Writes one segment from sorted rows.
pub(crate) struct SegmentWriter {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    offset: u64,
    encoder: Encoder,
    rows: Vec<Row>,
    bytes: Vec<u8>,
    footer: Footer,
    table: usize,
    written: Written,
    /// Pairs of subscriber and external address, and the ones seen last.
    pairs: Vec<(u64, u32)>,
    seen: Vec<(u64, u32)>,
}

/// Slots for pairs seen last, so that few are collected twice.
const SEEN: usize = 4_096;

impl SegmentWriter {
    pub(crate) fn create(path: &Path) -> Result<SegmentWriter, StoreError> {
        let error = StoreError::io(path);
        let file = new_file(path).map_err(&error)?;
        let mut writer = SegmentWriter {
            path: path.to_owned(),
            file: BufWriter::with_capacity(1 << 20, file),
            hasher: blake3::Hasher::new(),
            offset: 0,
            encoder: Encoder::new().map_err(&error)?,
            rows: Vec::with_capacity(BLOCK_ROWS),
            bytes: Vec::new(),
            footer: Footer { has_directory: true, ..Footer::default() },
            table: SINGLE,
            written: Written::default(),
            pairs: Vec::new(),
            seen: vec![(u64::MAX, 0); SEEN],
        };
        writer.bytes.extend_from_slice(&MAGIC);
        writer.flush_bytes()?;
        Ok(writer)
    }

    fn flush_bytes(&mut self) -> Result<(), StoreError> {
        self.hasher.update(&self.bytes);
        self.file.write_all(&self.bytes).map_err(StoreError::io(&self.path))?;
        self.offset += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }

    /// Appends a row to the current table. Rows must come in the order of [`Row::order`].
    #[inline]
    pub(crate) fn row(&mut self, row: &Row) -> Result<(), StoreError> {
        if self.rows.len() == BLOCK_ROWS {
            self.end_block()?;
        }
        self.rows.push(*row);
        if self.table != DIRECTORY && self.footer.has_directory {
            let pair = (u64::from(row.realm) << 32 | u64::from(row.subscriber), row.external);
            let slot = (pair.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize;
            if self.seen[slot] != pair {
                self.seen[slot] = pair;
                self.pairs.push(pair);
                if self.pairs.len() >= PAIRS_MAX {
                    self.pairs.sort_unstable();
                    self.pairs.dedup();
                    self.footer.has_directory = self.pairs.len() < PAIRS_MAX / 2;
                }
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), StoreError> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        let first = first.endpoint();
        self.encoder.encode(&self.rows, &mut self.bytes);
        let table = &mut self.footer.tables[self.table];
        let span = self.rows.iter().map(|row| row.last_port - row.first_port).max().unwrap_or(0);
        table.span_max = table.span_max.max(span);
        let (length, crc) = (self.bytes.len() as u32, crc32fast::hash(&self.bytes));
        table.blocks.push(Block { first, offset: self.offset, length, rows: self.rows.len() as u16, crc });
        let (rows, bytes) = (self.rows.len() as u64, u64::from(length));
        match self.table {
            SINGLE => {
                (self.written.single_rows, self.written.single_bytes) =
                    (self.written.single_rows + rows, self.written.single_bytes + bytes)
            }
            RANGES => {
                (self.written.range_rows, self.written.range_bytes) =
                    (self.written.range_rows + rows, self.written.range_bytes + bytes)
            }
            _ => {}
        }
        self.rows.clear();
        self.flush_bytes()
    }

    /// Ends the table of single ports; ranges follow.
    pub(crate) fn begin_ranges(&mut self) -> Result<(), StoreError> {
        self.end_block()?;
        self.table = RANGES;
        Ok(())
    }

    /// Ends the rows and writes the directory. Other records follow.
    pub(crate) fn begin_others(&mut self) -> Result<(), StoreError> {
        self.end_block()?;
        self.table = DIRECTORY;
        let mut pairs = core::mem::take(&mut self.pairs);
        if self.footer.has_directory {
            pairs.sort_unstable_by_key(|(subscriber, external)| (*subscriber as u32, *subscriber, *external));
            pairs.dedup();
            for (subscriber, external) in pairs {
                let (realm, address) = ((subscriber >> 32) as u16, subscriber as u32);
                self.row(&Row { external: address, subscriber: external, realm, ..Row::EMPTY })?;
            }
            self.end_block()?;
        }
        Ok(())
    }

    /// Appends other records, as the builder collected them.
    pub(crate) fn others(&mut self, records: &[u8]) -> Result<(), StoreError> {
        for piece in records.chunks(OTHERS_BYTES) {
            let packed = zstd::bulk::compress(piece, 1).map_err(StoreError::io(&self.path))?;
            self.packed_others(&packed, piece.len() as u32)?;
        }
        Ok(())
    }

    pub(crate) fn packed_others(&mut self, packed: &[u8], plain: u32) -> Result<(), StoreError> {
        self.footer.others.push((self.offset, packed.len() as u32, plain));
        self.bytes.extend_from_slice(packed);
        self.flush_bytes()
    }

    /// Appends names of IPv6 hosts. Events from `frame` on may refer to the current ones.
    pub(crate) fn names(&mut self, names: &NameTable, frame: u64) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        self.footer.next_name = names.next;
        for piece in names.rows.chunks(OTHERS_BYTES / NAME_BYTES) {
            bytes.clear();
            piece.iter().for_each(|row| row.put(&mut bytes));
            let packed = zstd::bulk::compress(&bytes, 1).map_err(StoreError::io(&self.path))?;
            let (first, last) = (piece.first().map_or(0, |row| row.id), piece.last().map_or(0, |row| row.id));
            let (length, plain, crc) = (packed.len() as u32, bytes.len() as u32, crc32fast::hash(&packed));
            self.packed_names(&packed, NamePiece { offset: 0, length, plain, first, last, frame, crc })?;
        }
        Ok(())
    }

    /// Of several segments the last one knows which identifier is the next.
    pub(crate) fn set_next_name(&mut self, next: u32) {
        if next != 0 {
            self.footer.next_name = next;
        }
    }

    pub(crate) fn packed_names(&mut self, packed: &[u8], piece: NamePiece) -> Result<(), StoreError> {
        self.footer.names.push(NamePiece { offset: self.offset, ..piece });
        self.bytes.extend_from_slice(packed);
        self.flush_bytes()
    }

    /// Writes the hashes of the frames and the footer, and syncs the file.
    pub(crate) fn finish(mut self, frames: &[Hash]) -> Result<Written, StoreError> {
        self.footer.frames = (self.offset, frames.len() as u64);
        for piece in frames.chunks(1 << 15) {
            self.bytes.extend(piece.iter().flatten());
            self.flush_bytes()?;
        }
        self.written.footer_offset = self.offset;
        self.footer.put(&mut self.bytes);
        self.flush_bytes()?;
        (self.written.bytes, self.written.hash) = (self.offset, *self.hasher.finalize().as_bytes());
        let error = StoreError::io(&self.path);
        let file = self.file.into_inner().map_err(|failed| error(failed.into_error()))?;
        file.sync_all().map_err(&error)?;
        Ok(self.written)
    }
}

/// A segment that is read. Every read is counted.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    path: PathBuf,
    file: File,
    pub(crate) footer: Footer,
    pub(crate) reads: u64,
    decoder: Decoder,
}

impl SegmentFile {
    /// Opens a segment whose footer begins at `footer_offset` and ends with the file, at `bytes`.
    pub(crate) fn open(path: &Path, footer_offset: u64, bytes: u64) -> Result<SegmentFile, StoreError> {
        SegmentFile::of(path, File::open(path).map_err(StoreError::io(path))?, footer_offset, bytes)
    }

    /// As [`SegmentFile::open`], for a file that was opened before.
    pub(crate) fn of(path: &Path, file: File, footer_offset: u64, bytes: u64) -> Result<SegmentFile, StoreError> {
        let length = bytes.checked_sub(footer_offset).filter(|length| *length <= FOOTER_MAX);
        let length = length.ok_or_else(|| StoreError::damaged(path, "the place of the footer is impossible"))?;
        let decoder = Decoder::new().map_err(StoreError::io(path))?;
        let mut segment = SegmentFile { path: path.to_owned(), file, footer: Footer::default(), reads: 0, decoder };
        let found = segment.file.metadata().map_err(StoreError::io(path))?.len();
        if found != bytes {
            return Err(StoreError::damaged(path, format!("{found} bytes instead of {bytes}")));
        }
        let footer = segment.read(footer_offset, length as usize)?;
        segment.footer =
            Footer::parse(&footer).ok_or_else(|| StoreError::damaged(path, "the footer is not what was written"))?;
        Ok(segment)
    }

    pub(crate) fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).map_err(StoreError::io(&self.path))?;
        self.reads += 1;
        Ok(bytes)
    }

    fn damaged_block(&self, table: usize, block: &Block) -> StoreError {
        let names = ["single ports", "port ranges", "subscribers"];
        let address = core::net::Ipv4Addr::from_bits((block.first >> 16) as u32);
        let what = format!(
            "the block of {} from {address}:{} on (byte {}) is not what was written",
            names[table], block.first as u16, block.offset
        );
        StoreError::damaged(&self.path, what)
    }

    /// Calls `each` for every row of a table whose first endpoint is between these, and for some
    /// around them.
    pub(crate) fn rows(
        &mut self,
        table: usize,
        from: u64,
        to: u64,
        mut each: impl FnMut(&Row),
    ) -> Result<(), StoreError> {
        let blocks = &self.footer.tables[table].blocks;
        // Rows of one endpoint may be in several blocks, and begin in the block before.
        let start = blocks.partition_point(|block| block.first < from).saturating_sub(1);
        let end = blocks.partition_point(|block| block.first <= to);
        let wanted = blocks.get(start..end).unwrap_or_default().to_vec();
        let mut rows = Vec::new();
        let mut left = &wanted[..];
        while let Some(first) = left.first() {
            let is_near = |block: &&Block| block.offset + u64::from(block.length) - first.offset <= READ_AHEAD;
            let count = left.iter().take_while(is_near).count().max(1);
            let (now, later) = left.split_at(count);
            let length: usize = now.iter().map(|block| block.length as usize).sum();
            let bytes = self.read(first.offset, length)?;
            let mut rest = &bytes[..];
            for block in now {
                let (content, next) = rest.split_at_checked(block.length as usize).unwrap_or_default();
                rest = next;
                self.decode(table, block, content, &mut rows)?;
                rows.iter().for_each(&mut each);
            }
            left = later;
        }
        Ok(())
    }

    /// Calls `each` for every row of one block.
    pub(crate) fn block(&mut self, table: usize, block: &Block, each: impl FnMut(&Row)) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        self.rows_of(table, block, &mut rows)?;
        rows.iter().for_each(each);
        Ok(())
    }

    /// Reads the rows of one block, which replace `rows`.
    pub(crate) fn rows_of(&mut self, table: usize, block: &Block, rows: &mut Vec<Row>) -> Result<(), StoreError> {
        let content = self.read(block.offset, block.length as usize)?;
        self.decode(table, block, &content, rows)
    }

    fn decode(&mut self, table: usize, block: &Block, bytes: &[u8], rows: &mut Vec<Row>) -> Result<(), StoreError> {
        let is_whole =
            crc32fast::hash(bytes) == block.crc && self.decoder.decode(bytes, usize::from(block.rows), rows).is_some();
        if is_whole { Ok(()) } else { Err(self.damaged_block(table, block)) }
    }

    /// Calls `each` for every interval that holds a port between these of an external address.
    pub(crate) fn external(
        &mut self,
        address: u32,
        ports: (u16, u16),
        mut each: impl FnMut(&Row),
    ) -> Result<(), StoreError> {
        let base = u64::from(address) << 16;
        let mut matching = |row: &Row| {
            if row.external == address && row.first_port <= ports.1 && row.last_port >= ports.0 {
                each(row);
            }
        };
        let (from, to) = (base | u64::from(ports.0), base | u64::from(ports.1));
        self.rows(SINGLE, from, to, &mut matching)?;
        let earliest = ports.0.saturating_sub(self.footer.tables[RANGES].span_max);
        self.rows(RANGES, base | u64::from(earliest), to, &mut matching)
    }

    /// Calls `each` for every interval of a subscriber's address.
    pub(crate) fn subscriber(&mut self, address: u32, mut each: impl FnMut(&Row)) -> Result<(), StoreError> {
        let mut matching = |row: &Row| {
            if row.subscriber == address {
                each(row);
            }
        };
        if !self.footer.has_directory {
            self.rows(SINGLE, 0, u64::MAX, &mut matching)?;
            return self.rows(RANGES, 0, u64::MAX, &mut matching);
        }
        let mut externals = Vec::new();
        let base = u64::from(address) << 16;
        self.rows(DIRECTORY, base, base | 0xffff, |pair| {
            if pair.external == address {
                externals.push(pair.subscriber);
            }
        })?;
        externals.sort_unstable();
        externals.dedup();
        for external in externals {
            self.external(external, (0, u16::MAX), &mut matching)?;
        }
        Ok(())
    }

    /// Calls `each` for every interval of these subscribers, which are sorted.
    pub(crate) fn subscribers(&mut self, ids: &[u32], mut each: impl FnMut(&Row)) -> Result<(), StoreError> {
        if ids.len() <= EACH_MAX {
            return ids.iter().try_for_each(|id| self.subscriber(*id, &mut each));
        }
        self.all(|row| {
            if ids.binary_search(&row.subscriber).is_ok() {
                each(row);
            }
        })
    }

    /// Calls `each` for every interval.
    pub(crate) fn all(&mut self, mut each: impl FnMut(&Row)) -> Result<(), StoreError> {
        self.rows(SINGLE, 0, u64::MAX, &mut each)?;
        self.rows(RANGES, 0, u64::MAX, &mut each)
    }

    /// Calls `each` for every interval of the blocks that can be read. Returns the first problem of
    /// the others.
    pub(crate) fn readable(&mut self, mut each: impl FnMut(&Row)) -> Result<Option<StoreError>, StoreError> {
        let mut first = None;
        for table in [SINGLE, RANGES] {
            for block in self.footer.tables[table].blocks.clone() {
                match self.block(table, &block, &mut each) {
                    Err(error) if error.is_damage() => drop(first.get_or_insert(error)),
                    read => read?,
                }
            }
        }
        Ok(first)
    }

    /// Calls `each` for the names whose identifiers are between these, and for some around them.
    pub(crate) fn names(&mut self, ids: (u32, u32), each: impl FnMut(&NameRow)) -> Result<(), StoreError> {
        self.names_in(|piece| piece.first <= ids.1 && ids.0 <= piece.last, each)
    }

    /// What events from this frame on may refer to, and the names of intervals in the same pieces.
    pub(crate) fn names_at(&mut self, frame: u64) -> Result<NameTable, StoreError> {
        let mut rows = Vec::new();
        self.names_in(|piece| piece.frame == frame, |row| rows.push(*row))?;
        Ok(NameTable { rows, next: self.footer.next_name })
    }

    fn names_in(
        &mut self,
        is_wanted: impl Fn(&NamePiece) -> bool,
        mut each: impl FnMut(&NameRow),
    ) -> Result<(), StoreError> {
        let pieces = self.footer.names.clone();
        for piece in pieces.iter().filter(|piece| is_wanted(piece)) {
            let packed = self.read(piece.offset, piece.length as usize)?;
            let damaged = || StoreError::damaged(&self.path, "names of IPv6 hosts are not what was written");
            if crc32fast::hash(&packed) != piece.crc {
                return Err(damaged());
            }
            let bytes = zstd::bulk::decompress(&packed, piece.plain as usize).map_err(|_| damaged())?;
            let mut input = Cursor::new(&bytes);
            while !input.is_empty() {
                let row = NameRow::take(&mut input).ok_or_else(damaged)?;
                each(&row);
            }
        }
        Ok(())
    }

    /// Hashes of the frames in this segment.
    pub(crate) fn frames(&mut self) -> Result<Vec<Hash>, StoreError> {
        let (offset, count) = self.footer.frames;
        let length = usize::try_from(count).ok().and_then(|count| count.checked_mul(32));
        let length = length.filter(|length| *length as u64 <= FOOTER_MAX * 4);
        let length = length.ok_or_else(|| StoreError::damaged(&self.path, "the number of frames is impossible"))?;
        let bytes = self.read(offset, length)?;
        Ok(bytes.chunks_exact(32).filter_map(|hash| hash.try_into().ok()).collect())
    }

    /// The other records: worker, number and event, as the builder collected them.
    pub(crate) fn others(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), StoreError> {
        for (offset, length, plain) in self.footer.others.clone() {
            let packed = self.read(offset, length as usize)?;
            let bytes = zstd::bulk::decompress(&packed, plain as usize)
                .map_err(|_| StoreError::damaged(&self.path, "other records are not what was written"))?;
            each(&bytes);
        }
        Ok(())
    }
}

/// Writes a segment of one window.
pub(crate) fn write(
    path: &Path,
    rows: &[Row],
    others: &[u8],
    (names, next_frame): (&NameTable, u64),
    frames: &[Hash],
) -> Result<Written, StoreError> {
    let rows = Sorted::of(rows);
    let mut writer = SegmentWriter::create(path)?;
    for row in rows.singles() {
        writer.row(row)?;
    }
    writer.begin_ranges()?;
    for row in rows.ranges() {
        writer.row(row)?;
    }
    writer.begin_others()?;
    writer.others(others)?;
    writer.names(names, next_frame)?;
    writer.finish(frames)
}
