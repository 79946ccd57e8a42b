//! Rows as columns: one block of rows, which is read and decoded alone.
//!
//! Each column is a sequence of numbers, stored as planes: the lowest bytes of all numbers, then
//! their second bytes, and so on. A plane is constant (one byte), compressed by zstd, or stored as
//! is, whichever is shortest. Ports and the low bytes of times are random, so no coder saves there;
//! their high bytes, the deltas of sorted ports and the numbers in the dictionary of subscribers
//! have skewed values, which the entropy coder of zstd packs to near their entropy.
//!
//! | column | content |
//! |---|---|
//! | external address | runs: delta to the address before, number of rows |
//! | first port | in a run the first one, then deltas (rows are sorted) |
//! | last port | distance from the first, in tables of ranges |
//! | flags | what, transport, kind of end |
//! | subscriber | number in the block's sorted dictionary of (realm, address) |
//! | internal port | as it is |
//! | start | ms after the block's earliest start |
//! | end | ms after the start; while open, when it was reported last |
//! | remote | address and port, where destinations are recorded |

use std::io;

use super::codec::Cursor;
use super::codec::put_bytes;
use super::codec::put_varint;
use super::row::Row;

/// Rows of a block. With about 8 bytes a row, one block is one read of 64 KiB.
pub(crate) const BLOCK_ROWS: usize = 8_192;
/// Longest encoded block: more is damage.
pub(crate) const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Level of zstd: higher levels search for repeats, which these planes do not have.
const LEVEL: i32 = 1;

/// Times are before this one, so that sums of them do not overflow: 285,000 years.
const TIME_MAX_MS: u64 = 1 << 53;

const CONSTANT: u8 = 0;
const PLAIN: u8 = 1;
const PACKED: u8 = 2;

/// Planes of a block, at most: eight of each of its ten sequences.
const PLANES_MAX: usize = 80;
/// Blocks whose plane is stored as it is without trying after one that could not be packed: the low
/// bytes of ports and times are random in all blocks.
const PLAIN_BLOCKS: u8 = 15;

/// The encoder of blocks, with its buffers.
pub(crate) struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    values: Vec<u64>,
    plane: Vec<u8>,
    packed: Vec<u8>,
    /// Slots of a hash table: a subscriber and its place in `dictionary`, plus one.
    slots: Vec<(u64, u32)>,
    /// Subscribers with the order in which they were seen.
    dictionary: Vec<(u64, u32)>,
    /// For each row, the order in which its subscriber was seen first.
    seen: Vec<u32>,
    ranks: Vec<u32>,
    /// For each plane of a block, how many blocks are to come that are not tried.
    untried: [u8; PLANES_MAX],
    /// The sequence that is being encoded.
    sequence: usize,
}

/// Slots for the subscribers of a block: twice as many as it can have.
const SLOTS: usize = 2 * BLOCK_ROWS;

impl Encoder {
    pub(crate) fn new() -> io::Result<Encoder> {
        Ok(Encoder {
            zstd: zstd::bulk::Compressor::new(LEVEL)?,
            values: Vec::with_capacity(BLOCK_ROWS),
            plane: Vec::with_capacity(BLOCK_ROWS),
            packed: vec![0; zstd::zstd_safe::compress_bound(BLOCK_ROWS)],
            slots: vec![(0, 0); SLOTS],
            dictionary: Vec::new(),
            seen: Vec::with_capacity(BLOCK_ROWS),
            ranks: Vec::new(),
            untried: [0; PLANES_MAX],
            sequence: 0,
        })
    }

    /// Appends at most [`BLOCK_ROWS`] rows, which must be sorted by [`Row::order`].
    pub(crate) fn encode(&mut self, rows: &[Row], out: &mut Vec<u8>) {
        self.sequence = 0;
        self.addresses(rows, out);
        let mut before = 0;
        self.fill(rows, |row| {
            let endpoint = row.endpoint();
            let is_same_address = endpoint >> 16 == before >> 16;
            let delta = if is_same_address { endpoint - before } else { endpoint & 0xffff };
            before = endpoint;
            delta
        });
        self.planes(out);
        self.fill(rows, |row| u64::from(row.last_port - row.first_port));
        self.planes(out);
        self.fill(rows, |row| u64::from(row.flags()));
        self.planes(out);
        self.subscribers(rows, out);
        self.fill(rows, |row| u64::from(row.internal_port));
        self.planes(out);
        let base = rows.iter().map(|row| row.start).min().unwrap_or(0);
        put_varint(out, base);
        self.fill(rows, |row| row.start - base);
        self.planes(out);
        self.fill(rows, |row| row.end.saturating_sub(row.start));
        self.planes(out);
        self.fill(rows, |row| u64::from(row.remote) << 16 | u64::from(row.remote_port));
        self.planes(out);
    }

    fn addresses(&mut self, rows: &[Row], out: &mut Vec<u8>) {
        let runs = rows.chunk_by(|one, next| one.external == next.external);
        put_varint(out, runs.clone().count() as u64);
        let mut before = 0;
        for run in runs {
            let external = run.first().map_or(0, |row| row.external);
            put_varint(out, u64::from(external - before));
            put_varint(out, run.len() as u64);
            before = external;
        }
    }

    fn subscribers(&mut self, rows: &[Row], out: &mut Vec<u8>) {
        let key = |row: &Row| u64::from(row.realm) << 32 | u64::from(row.subscriber);
        self.slots.fill((0, 0));
        self.dictionary.clear();
        self.seen.clear();
        // Neighbours in the order of ports are seldom of one subscriber: find each by its hash.
        for row in rows {
            let key = key(row);
            let mut place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SLOTS;
            let number = loop {
                match self.slots[place] {
                    (_, 0) => {
                        let number = self.dictionary.len() as u32;
                        self.slots[place] = (key, number + 1);
                        self.dictionary.push((key, number));
                        break number;
                    }
                    (known, number) if known == key => break number - 1,
                    _ => place = (place + 1) % SLOTS,
                }
            };
            self.seen.push(number);
        }
        self.dictionary.sort_unstable();
        self.ranks.clear();
        self.ranks.resize(self.dictionary.len(), 0);
        put_varint(out, self.dictionary.len() as u64);
        self.values.clear();
        let mut before = 0;
        for ((key, number), rank) in self.dictionary.iter().zip(0..) {
            self.values.push(key - before);
            self.ranks[*number as usize] = rank;
            before = *key;
        }
        self.planes(out);
        self.values.clear();
        let ranks = &self.ranks;
        self.values.extend(self.seen.iter().map(|number| u64::from(ranks[*number as usize])));
        self.planes(out);
    }

    fn fill(&mut self, rows: &[Row], value: impl FnMut(&Row) -> u64) {
        self.values.clear();
        self.values.extend(rows.iter().map(value));
    }

    /// Appends the planes of the values.
    fn planes(&mut self, out: &mut Vec<u8>) {
        let all = self.values.iter().fold(0, |all, value| all | value);
        let count = (u64::BITS - all.leading_zeros()).div_ceil(8);
        out.push(count as u8);
        for plane in 0..count {
            self.plane.clear();
            self.plane.extend(self.values.iter().map(|value| (value >> (8 * plane)) as u8));
            self.one_plane(self.sequence * 8 + plane as usize, out);
        }
        self.sequence += 1;
    }

    fn one_plane(&mut self, place: usize, out: &mut Vec<u8>) {
        let first = self.plane.first().copied().unwrap_or(0);
        if self.plane.iter().all(|byte| *byte == first) {
            return out.extend_from_slice(&[CONSTANT, first]);
        }
        // Short blocks are rare, and may be unlike the others.
        let is_full = self.plane.len() == BLOCK_ROWS;
        let untried = self.untried.get_mut(place).filter(|_| is_full);
        if let Some(untried) = untried
            && *untried > 0
        {
            *untried -= 1;
        } else {
            // A failure of zstd costs its saving only.
            let length = self.zstd.compress_to_buffer(&self.plane, &mut self.packed[..]).unwrap_or(usize::MAX);
            if length < self.plane.len() {
                out.push(PACKED);
                return put_bytes(out, &self.packed[..length]);
            }
            if let Some(untried) = self.untried.get_mut(place) {
                *untried = PLAIN_BLOCKS;
            }
        }
        out.push(PLAIN);
        out.extend_from_slice(&self.plane);
    }
}

impl core::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

/// The decoder of blocks, with its buffers.
pub(crate) struct Decoder {
    zstd: zstd::bulk::Decompressor<'static>,
    plane: Vec<u8>,
    values: Vec<u64>,
}

impl Decoder {
    pub(crate) fn new() -> io::Result<Decoder> {
        Ok(Decoder { zstd: zstd::bulk::Decompressor::new()?, plane: Vec::new(), values: Vec::new() })
    }

    /// Decodes one block of `count` rows into `rows`, replacing its content. Returns None if it is
    /// damaged; memory is bounded by `count` in any case.
    pub(crate) fn decode(&mut self, bytes: &[u8], count: usize, rows: &mut Vec<Row>) -> Option<()> {
        rows.clear();
        if count > BLOCK_ROWS {
            return None;
        }
        rows.resize(count, Row::EMPTY);
        let mut input = Cursor::new(bytes);
        self.plane.resize(BLOCK_ROWS, 0);
        self.values.resize(BLOCK_ROWS, 0);
        addresses(&mut input, rows)?;
        let mut before = (None, 0_u64);
        for (row, delta) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            let base = if before.0 == Some(row.external) { before.1 } else { 0 };
            let port = base.checked_add(*delta)?;
            row.first_port = u16::try_from(port).ok()?;
            before = (Some(row.external), port);
        }
        for (row, span) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            row.last_port = u16::try_from(u64::from(row.first_port).checked_add(*span)?).ok()?;
        }
        for (row, flags) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            row.set_flags(u8::try_from(*flags).ok()?)?;
        }
        let known = input.number::<usize>().filter(|known| *known <= count)?;
        let mut dictionary = Vec::with_capacity(known);
        let mut number = 0_u64;
        for delta in self.read(&mut input, known)? {
            number = number.checked_add(*delta).filter(|number| *number < 1 << 48)?;
            dictionary.push(number);
        }
        for (row, place) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            let number = *dictionary.get(usize::try_from(*place).ok()?)?;
            (row.realm, row.subscriber) = ((number >> 32) as u16, number as u32);
        }
        for (row, port) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            row.internal_port = u16::try_from(*port).ok()?;
        }
        let base = input.varint()?;
        for (row, after) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            row.start = base.checked_add(*after).filter(|start| *start < TIME_MAX_MS)?;
        }
        for (row, length) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            row.end = row.start.checked_add(*length).filter(|end| *end < TIME_MAX_MS)?;
        }
        for (row, remote) in rows.iter_mut().zip(self.read(&mut input, count)?) {
            (row.remote, row.remote_port) = (u32::try_from(remote >> 16).ok()?, *remote as u16);
        }
        input.is_empty().then_some(())
    }

    /// Reads the planes of `count` values.
    fn read(&mut self, input: &mut Cursor<'_>, count: usize) -> Option<&[u64]> {
        let values = self.values.get_mut(..count)?;
        values.fill(0);
        let planes = input.u8().filter(|planes| *planes <= 8)?;
        for plane in 0..planes {
            let shift = 8 * u32::from(plane);
            match input.u8()? {
                CONSTANT => {
                    let bits = u64::from(input.u8()?) << shift;
                    values.iter_mut().for_each(|value| *value |= bits);
                }
                PLAIN => {
                    let bytes = input.take(count)?;
                    values.iter_mut().zip(bytes).for_each(|(value, byte)| *value |= u64::from(*byte) << shift);
                }
                PACKED => {
                    let bytes = self.plane.get_mut(..count)?;
                    // The target is as long as the plane, so a longer content fails.
                    let length = self.zstd.decompress_to_buffer(input.bytes()?, bytes).ok()?;
                    if length != count {
                        return None;
                    }
                    values.iter_mut().zip(bytes).for_each(|(value, byte)| *value |= u64::from(*byte) << shift);
                }
                _ => return None,
            }
        }
        Some(values)
    }
}

impl core::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

fn addresses(input: &mut Cursor<'_>, rows: &mut [Row]) -> Option<()> {
    let runs = input.count(2)?;
    let (mut external, mut filled) = (0_u64, 0_usize);
    for _ in 0..runs {
        external = external.checked_add(input.varint()?).filter(|number| *number <= u64::from(u32::MAX))?;
        let length: usize = input.number()?;
        let end = filled.checked_add(length)?;
        rows.get_mut(filled..end)?.iter_mut().for_each(|row| row.external = external as u32);
        filled = end;
    }
    (filled == rows.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use nat::Protocol;
    use rand::Rng;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::super::row::End;
    use super::super::row::What;
    use super::*;

    pub(crate) fn random_rows(count: usize, random: &mut SmallRng) -> Vec<Row> {
        let mut rows: Vec<Row> = (0..count)
            .map(|_| {
                let first_port = random.random_range(0..=65_000);
                let start = random.random_range(1 << 30..(1 << 30) + 3_600_000);
                let is_range = random.random_bool(0.1);
                let until = [End::Exact, End::Exact, End::Open, End::Lost][random.random_range(0..4)];
                Row {
                    start,
                    end: if until == End::Open { start } else { start + random.random_range(0..1 << 20) },
                    external: 0xcb00_7100 + random.random_range(0..4),
                    subscriber: 0x6440_0000 + random.random_range(0..300),
                    remote: if is_range { random.random() } else { 0 },
                    first_port,
                    last_port: if is_range { first_port + 511 } else { first_port },
                    internal_port: random.random(),
                    remote_port: if is_range { random.random() } else { 0 },
                    realm: random.random_range(0..2),
                    what: What::ALL[random.random_range(0..4)],
                    protocol: [None, Some(Protocol::Udp), Some(Protocol::Tcp)][random.random_range(0..3)],
                    until,
                    is_start_rounded: random.random_bool(0.1),
                }
            })
            .collect();
        rows.sort_unstable_by_key(Row::order);
        rows
    }

    #[test]
    fn a_block_comes_back_and_a_changed_one_never_panics() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut encoder, mut decoder) = (Encoder::new().unwrap(), Decoder::new().unwrap());
        for count in [0, 1, 2, 300, BLOCK_ROWS] {
            let rows = random_rows(count, &mut random);
            let mut bytes = Vec::new();
            encoder.encode(&rows, &mut bytes);
            let mut back = Vec::new();
            decoder.decode(&bytes, count, &mut back).unwrap();
            assert_eq!(back, rows);
            assert_eq!(decoder.decode(&bytes, BLOCK_ROWS + 1, &mut back), None);
            for _ in 0..200 {
                let mut changed = bytes.clone();
                if let Some(last) = changed.len().checked_sub(1) {
                    changed[random.random_range(0..=last)] = random.random();
                    changed.truncate(random.random_range(0..=changed.len()));
                }
                let _ = decoder.decode(&changed, count, &mut back);
            }
        }
    }
}
