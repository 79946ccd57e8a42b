//! The journal: events in the order in which they arrived, in frames.
//!
//! ```text
//!   file   := magic, format, frame…
//!   frame  := length (4), CRC of the rest (4), hash of the frame before (32), number (8),
//!             boot (4), covered (8), section…
//!   section:= worker (1), first sequence number, count, event…
//! ```
//!
//! Events of a section have consecutive sequence numbers, so these cost nothing. A frame is written
//! at once; a torn one at the end of the last file is cut off when the store is opened.

use core::net::Ipv4Addr;

use nat::Instant;
use nat::Protocol;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::PoolName;
use nat::types::RealmId;

use super::codec::Cursor;
use super::codec::put_signed;
use super::codec::put_varint;

/// The first bytes of a journal file; the last two are the number of its format.
pub(crate) const MAGIC: [u8; 16] = *b"NATRIX-JOURNAL\x01\x00";
/// Longest frame. A longer length is damage.
pub(crate) const FRAME_MAX: usize = 8 << 20;
/// Bytes before the sections.
pub(crate) const HEADER: usize = 4 + 4 + 32 + 8 + 4 + 8;

/// A hash of the chain.
pub(crate) type Hash = [u8; 32];

/// A frame while it is filled.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    body: Vec<u8>,
    /// The section that is being filled: worker, first number, count, and its events.
    section: Vec<u8>,
    worker: u8,
    first: u64,
    count: u64,
    before_us: u64,
}

impl Frame {
    pub(crate) fn is_empty(&self) -> bool {
        self.body.is_empty() && self.count == 0
    }

    pub(crate) fn length(&self) -> usize {
        HEADER + self.body.len() + self.section.len()
    }

    /// Appends an event. Its number and, for gaps, its amount show which number follows.
    #[inline]
    pub(crate) fn push(&mut self, worker: u8, event: &Event) {
        if self.count == 0 || worker != self.worker || event.sequence != self.first + self.count {
            self.end_section();
            (self.worker, self.first, self.before_us) = (worker, event.sequence, 0);
        }
        put_event(&mut self.section, event, &mut self.before_us);
        self.count += 1;
        // A gap stands for several numbers: the next event begins a section.
        if event.kind == EventKind::Gap {
            self.end_section();
        }
    }

    fn end_section(&mut self) {
        if self.count > 0 {
            self.body.push(self.worker);
            put_varint(&mut self.body, self.first);
            put_varint(&mut self.body, self.count);
            self.body.append(&mut self.section);
            self.count = 0;
        }
    }

    /// Appends the whole frame to `out`, empties it, and returns its hash.
    pub(crate) fn seal(&mut self, before: &Hash, number: u64, boot: u32, covered_us: u64, out: &mut Vec<u8>) -> Hash {
        self.end_section();
        let start = out.len();
        let length = (HEADER + self.body.len()) as u32;
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(before);
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&boot.to_le_bytes());
        out.extend_from_slice(&covered_us.to_le_bytes());
        out.append(&mut self.body);
        let crc = crc32fast::hash(&out[start + 8..]);
        out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
        *blake3::hash(&out[start..]).as_bytes()
    }
}

/// A frame that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRead<'a> {
    pub(crate) before: Hash,
    pub(crate) hash: Hash,
    pub(crate) number: u64,
    pub(crate) boot: u32,
    /// Everything until then, by the boot's clock in µs, is in this frame or an earlier one.
    pub(crate) covered_us: u64,
    body: &'a [u8],
    /// Bytes of the frame.
    pub(crate) length: usize,
}

impl<'a> FrameRead<'a> {
    /// The frame at the beginning of `bytes`; None if it is cut or damaged.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<FrameRead<'a>> {
        let length = Cursor::new(bytes).u32()? as usize;
        if !(HEADER..=FRAME_MAX).contains(&length) {
            return None;
        }
        let whole = bytes.get(..length)?;
        let mut input = Cursor::new(whole);
        let (_, crc) = (input.u32()?, input.u32()?);
        if crc32fast::hash(&whole[8..]) != crc {
            return None;
        }
        let (before, number, boot, covered_us) = (input.array()?, input.u64()?, input.u32()?, input.u64()?);
        let hash = *blake3::hash(whole).as_bytes();
        Some(FrameRead { before, hash, number, boot, covered_us, body: &whole[HEADER..], length })
    }

    /// Calls `each` for every event, in order. Returns None if a section is damaged.
    pub(crate) fn events(&self, mut each: impl FnMut(u8, &Event)) -> Option<()> {
        let mut input = Cursor::new(self.body);
        while !input.is_empty() {
            let (worker, first, count) = (input.u8()?, input.varint()?, input.count(4)?);
            let mut before_us = 0;
            for place in 0..count as u64 {
                let event = take_event(&mut input, first.checked_add(place)?, &mut before_us)?;
                each(worker, &event);
            }
        }
        Some(())
    }
}

/// The length of a frame of this boot with this header; None if it cannot be one.
pub(crate) fn length_of(header: &[u8], boot: u32) -> Option<usize> {
    let mut input = Cursor::new(header);
    let length = input.u32()? as usize;
    // The CRC, the hash of the frame before, and the number.
    input.take(4 + 32 + 8)?;
    let may_be = (HEADER..=FRAME_MAX).contains(&length) && input.u32()? == boot;
    may_be.then_some(length)
}

/// How many bytes later a frame may begin at the earliest if none begins here: its length is not
/// zero.
pub(crate) fn skipped(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    // A hole in a file may have gigabytes.
    let whole = bytes.as_chunks().0.iter().take_while(|chunk| **chunk == ZEROS).count() * ZEROS.len();
    let rest = bytes.get(whole..).unwrap_or_default();
    let zeros = whole + rest.iter().position(|byte| *byte != 0).unwrap_or(rest.len());
    zeros.saturating_sub(size_of::<u32>() - 1).max(1)
}

const HAS_LAST_PORT: u8 = 1;
const HAS_REMOTE: u8 = 2;
const HAS_AMOUNT: u8 = 4;
const HAS_POOL: u8 = 8;
const HAS_REALM: u8 = 16;
const HAS_ENDPOINTS: u8 = 32;

/// Appends an event without its number. `before_us` is the time of the event before.
#[inline]
pub(crate) fn put_event(out: &mut Vec<u8>, event: &Event, before_us: &mut u64) {
    let mut has = 0;
    has |= if event.last_port == event.first_port { 0 } else { HAS_LAST_PORT };
    has |= if event.remote.is_unspecified() && event.remote_port == 0 { 0 } else { HAS_REMOTE };
    has |= if event.amount == 0 { 0 } else { HAS_AMOUNT };
    has |= if event.pool.0 == 0 { 0 } else { HAS_POOL };
    has |= if event.realm.0 == 0 { 0 } else { HAS_REALM };
    let is_bare = event.subscriber.is_unspecified()
        && event.external.is_unspecified()
        && event.internal_port == 0
        && event.first_port == 0;
    has |= if is_bare { 0 } else { HAS_ENDPOINTS };
    let protocol = event.protocol.map_or(0, |protocol| protocol.index() as u8 + 1);
    out.extend_from_slice(&[event.kind as u8 | protocol << 6, event.cause.code(), has]);
    let at_us = event.at.as_micros();
    put_signed(out, at_us.wrapping_sub(*before_us) as i64);
    *before_us = at_us;
    if has & HAS_ENDPOINTS != 0 {
        let mut fixed = [0; 12];
        fixed[..4].copy_from_slice(&event.subscriber.octets());
        fixed[4..8].copy_from_slice(&event.external.octets());
        fixed[8..10].copy_from_slice(&event.internal_port.to_le_bytes());
        fixed[10..].copy_from_slice(&event.first_port.to_le_bytes());
        out.extend_from_slice(&fixed);
    }
    if has & HAS_LAST_PORT != 0 {
        out.extend_from_slice(&event.last_port.to_le_bytes());
    }
    if has & HAS_REMOTE != 0 {
        out.extend_from_slice(&event.remote.octets());
        out.extend_from_slice(&event.remote_port.to_le_bytes());
    }
    if has & HAS_AMOUNT != 0 {
        put_varint(out, u64::from(event.amount));
    }
    if has & HAS_POOL != 0 {
        put_varint(out, u64::from(event.pool.0));
    }
    if has & HAS_REALM != 0 {
        put_varint(out, u64::from(event.realm.0));
    }
}

/// Reads what [`put_event`] wrote.
#[inline]
pub(crate) fn take_event(input: &mut Cursor<'_>, sequence: u64, before_us: &mut u64) -> Option<Event> {
    let (kind, cause, has) = (input.u8()?, Cause::from_code(input.u8()?)?, input.u8()?);
    let at_us = before_us.wrapping_add(input.signed()? as u64);
    *before_us = at_us;
    let mut event =
        Event::new(*EventKind::ALL.get(usize::from(kind & 0x3f))?, Instant::from_micros(at_us)).because(cause);
    event.sequence = sequence;
    let protocol = usize::from(kind >> 6);
    event.protocol = if protocol == 0 { None } else { Some(Protocol::from_index(protocol - 1)?) };
    if has & HAS_ENDPOINTS != 0 {
        event.subscriber = Ipv4Addr::from(input.array::<4>()?);
        event.external = Ipv4Addr::from(input.array::<4>()?);
        event.internal_port = input.u16()?;
        event.first_port = input.u16()?;
    }
    event.last_port = if has & HAS_LAST_PORT != 0 { input.u16()? } else { event.first_port };
    if has & HAS_REMOTE != 0 {
        event.remote = Ipv4Addr::from(input.array::<4>()?);
        event.remote_port = input.u16()?;
    }
    event.amount = if has & HAS_AMOUNT != 0 { input.number()? } else { 0 };
    event.pool = if has & HAS_POOL != 0 { PoolName(input.number()?) } else { PoolName(0) };
    event.realm = if has & HAS_REALM != 0 { RealmId(input.number()?) } else { RealmId(0) };
    Some(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_a_changed_one_does_not() {
        let mut frame = Frame::default();
        let mut pushed = Vec::new();
        for (place, kind) in EventKind::ALL.into_iter().enumerate() {
            for worker in [0, 3] {
                let mut event = Event::new(kind, Instant::from_micros(1_000 - place as u64 * 7));
                event.sequence = 7 + place as u64;
                event.amount = place as u32;
                event.subscriber = [100, 64, 0, 1].into();
                event.realm = RealmId(place as u16);
                event.last_port = 9;
                event.protocol = Protocol::from_index(place % 4);
                event.remote_port = place as u16;
                frame.push(worker, &event);
                pushed.push((worker, event));
            }
        }
        let mut out = Vec::new();
        let hash = frame.seal(&[5; 32], 77, 2, 1_234, &mut out);
        assert!(frame.is_empty());
        let read = FrameRead::parse(&out).unwrap();
        assert_eq!((read.hash, read.before, read.number, read.boot), (hash, [5; 32], 77, 2));
        assert_eq!((read.covered_us, read.length), (1_234, out.len()));
        let mut back = Vec::new();
        read.events(|worker, event| back.push((worker, *event))).unwrap();
        assert_eq!(back, pushed);
        for place in 0..out.len() {
            assert!(FrameRead::parse(&out[..place]).is_none());
            let mut changed = out.clone();
            changed[place] ^= 1;
            assert!(FrameRead::parse(&changed).is_none());
        }
    }
}
