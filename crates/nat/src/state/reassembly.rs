//! Packets that are put together: those of softwires that arrive in IPv6 fragments, before they are
//! taken off (RFC 6333 §5.3), and fragmented datagrams without checksum to IPv6 hosts (RFC 6146
//! §3.4).
//!
//! All memory is allocated at construction: [`DATAGRAMS`] packets of up to [`BYTES_MAX`] bytes. One
//! source has at most [`PER_SOURCE`] of them, and each ends with the timeout of fragments. A
//! fragment that overlaps another ends its datagram (RFC 5722 §4).

use crate::time::Duration;
use crate::time::Instant;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// Datagrams at a time.
pub const DATAGRAMS: usize = 64;
/// Datagrams of one /64 at a time.
pub const PER_SOURCE: usize = 8;
/// Largest packet.
pub(crate) const BYTES_MAX: usize = 9_216;
/// Room in front of each packet.
pub(crate) const ROOM: usize = 64;

/// In place of a softwire: datagrams without checksum. Their source has the IPv4 source in its
/// upper half, and the number of the host in the lower one.
pub(crate) const WITHOUT_CHECKSUM: u8 = u8::MAX;

/// Use of the memory, in percent, from which on it is reported (RFC 6333 §6.3), and that at which
/// this ends.
const HIGH_PERCENT: usize = 75;
const LOW_PERCENT: usize = 50;

const UNIT: usize = 8;
const WORDS: usize = BYTES_MAX / UNIT / 64;

const _: () = assert!(BYTES_MAX.is_multiple_of(UNIT * 64), "every unit has a bit");

/// A fragment, without its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) source: u128,
    /// The softwire it comes by, or [`WITHOUT_CHECKSUM`].
    pub(crate) way: u8,
    pub(crate) identification: u32,
    pub(crate) offset: usize,
    pub(crate) more: bool,
    pub(crate) bytes: &'a [u8],
}

/// What to do with a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is kept.
    Held,
    /// Its datagram is whole; so many other fragments were kept.
    Whole { slot: usize, length: usize, held: u32 },
    /// Dropped, with so many that were kept.
    Dropped { verdict: Verdict, held: u32 },
}

#[derive(Clone, Debug)]
struct Datagram {
    source: u128,
    identification: u32,
    way: u8,
    in_use: bool,
    started: Instant,
    units: [u64; WORDS],
    received: usize,
    /// Once the last fragment is here, else 0.
    total: usize,
    held: u32,
}

const EMPTY: Datagram = Datagram {
    source: 0,
    identification: 0,
    way: 0,
    in_use: false,
    started: Instant::ORIGIN,
    units: [0; WORDS],
    received: 0,
    total: 0,
    held: 0,
};

impl Datagram {
    /// True if a fragment covers this unit or a later one.
    fn has_from(&self, unit: usize) -> bool {
        self.units.iter().zip((0..).step_by(64)).any(|(word, first)| {
            let before = unit.saturating_sub(first).min(64) as u32;
            word & u64::MAX.checked_shl(before).unwrap_or(0) != 0
        })
    }
}

pub(crate) struct Reassembly {
    datagrams: Box<[Datagram]>,
    bytes: Box<[u8]>,
    held: u32,
    is_high: bool,
}

impl Reassembly {
    /// About 0.6 MiB; without IPv6 hosts nothing.
    pub(crate) fn new(has_hosts: bool) -> Reassembly {
        let count = if has_hosts { DATAGRAMS } else { 0 };
        Reassembly {
            datagrams: vec![EMPTY; count].into_boxed_slice(),
            bytes: vec![0; count * (ROOM + BYTES_MAX)].into_boxed_slice(),
            held: 0,
            is_high: false,
        }
    }

    /// Whether its use became high, or low again, since the last call, and the use in percent.
    pub(crate) fn crossing(&mut self) -> Option<(bool, u8)> {
        if self.held == 0 && !self.is_high {
            return None;
        }
        let in_use = self.datagrams.iter().filter(|datagram| datagram.in_use).count();
        let percent = (in_use * 100).checked_div(self.datagrams.len())?;
        let is_high = if self.is_high { percent > LOW_PERCENT } else { percent >= HIGH_PERCENT };
        (core::mem::replace(&mut self.is_high, is_high) != is_high).then_some((is_high, percent as u8))
    }

    /// Fragments without a verdict.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    /// The frame of a slot: room, then the packet.
    pub(crate) fn frame(&mut self, slot: usize, length: usize) -> &mut [u8] {
        let start = slot * (ROOM + BYTES_MAX);
        self.bytes.get_mut(start..start + ROOM + length).unwrap_or_default()
    }

    /// True if fragments of this datagram are kept.
    pub(crate) fn has(&self, now: Instant, timeout: Duration, source: u128, way: u8, identification: u32) -> bool {
        self.held != 0
            && self.datagrams.iter().any(|datagram| {
                datagram.in_use
                    && (datagram.source, datagram.identification, datagram.way) == (source, identification, way)
                    && now < datagram.started + timeout
            })
    }

    pub(crate) fn accept(&mut self, now: Instant, timeout: Duration, part: &Part<'_>) -> Outcome {
        let refused = |verdict| Outcome::Dropped { verdict, held: 0 };
        let end = part.offset + part.bytes.len();
        if part.bytes.is_empty() || part.more && !part.bytes.len().is_multiple_of(UNIT) {
            return refused(Verdict::FragmentMalformed);
        }
        if end > BYTES_MAX {
            return refused(Verdict::TooBig);
        }
        let is_it = |datagram: &Datagram| {
            datagram.in_use
                && (datagram.source, datagram.identification, datagram.way)
                    == (part.source, part.identification, part.way)
                && now < datagram.started + timeout
        };
        let slot = match self.datagrams.iter().position(is_it) {
            Some(slot) => slot,
            None => match self.begin(now, part) {
                Ok(slot) => slot,
                Err(verdict) => return refused(verdict),
            },
        };
        let start = slot * (ROOM + BYTES_MAX) + ROOM;
        let Some(datagram) = self.datagrams.get_mut(slot) else { return refused(Verdict::ReassemblyFull) };
        let units = part.offset / UNIT..end.div_ceil(UNIT);
        let overlaps = units.clone().any(|unit| datagram.units[unit / 64] >> (unit % 64) & 1 != 0);
        // Nothing may lie behind the end, or `received` would count it in place of what is missing.
        let disagrees = if part.more {
            datagram.total != 0 && end > datagram.total
        } else {
            datagram.total != 0 || datagram.has_from(units.end)
        };
        if overlaps || disagrees {
            let held = self.end(slot);
            return Outcome::Dropped { verdict: Verdict::FragmentOverlap, held };
        }
        for unit in units {
            datagram.units[unit / 64] |= 1 << (unit % 64);
        }
        datagram.received += part.bytes.len();
        if !part.more {
            datagram.total = end;
        }
        if let Some(place) = self.bytes.get_mut(start + part.offset..start + end) {
            place.copy_from_slice(part.bytes);
        }
        if datagram.total != 0 && datagram.received == datagram.total {
            let length = datagram.total;
            let held = self.end(slot);
            return Outcome::Whole { slot, length, held };
        }
        datagram.held += 1;
        self.held += 1;
        Outcome::Held
    }

    fn begin(&mut self, now: Instant, part: &Part<'_>) -> Result<usize, Verdict> {
        let of_source = |datagram: &&Datagram| datagram.in_use && datagram.source >> 64 == part.source >> 64;
        if self.datagrams.iter().filter(of_source).count() >= PER_SOURCE {
            return Err(Verdict::ReassemblyQuota);
        }
        let slot = self.datagrams.iter().position(|datagram| !datagram.in_use).ok_or(Verdict::ReassemblyFull)?;
        if let Some(datagram) = self.datagrams.get_mut(slot) {
            *datagram = Datagram {
                source: part.source,
                identification: part.identification,
                way: part.way,
                in_use: true,
                started: now,
                ..EMPTY
            };
        }
        // A second line of defence: no byte of another customer's packet is left.
        self.frame(slot, BYTES_MAX).fill(0);
        Ok(slot)
    }

    /// Returns the fragments it kept. The bytes stay until the slot is used again.
    fn end(&mut self, slot: usize) -> u32 {
        let Some(datagram) = self.datagrams.get_mut(slot) else { return 0 };
        datagram.in_use = false;
        let held = core::mem::take(&mut datagram.held);
        self.held -= held;
        held
    }

    /// Ends datagrams that are not whole in time. Returns the fragments they kept.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> u32 {
        if self.held == 0 {
            return 0;
        }
        let mut lost = 0;
        for slot in 0..self.datagrams.len() {
            if self.datagrams.get(slot).is_some_and(|datagram| datagram.in_use && datagram.started + timeout <= now) {
                lost += self.end(slot);
            }
        }
        lost
    }
}
