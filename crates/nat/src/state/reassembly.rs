//! Reassembly: of softwire packets in IPv6 fragments, before decapsulation (RFC 6333 §5.3), and of
//! datagrams without checksum to IPv6 hosts (RFC 6146 §3.4).
//!
//! All memory is allocated at construction: [`DATAGRAMS`] packets of up to [`BYTES_MAX`] bytes, the
//! last [`WITHOUT_CHECKSUM_MAX`] of them for datagrams without checksum, which any host outside can
//! send. One subscriber has at most [`PER_SUBSCRIBER`], and each ends with the timeout of
//! fragments. If there is no room for a new one, the subscriber with the most loses its oldest: a
//! flood has the most (RFC 6146 §5.3). A fragment that overlaps another ends its datagram, and one
//! of IPv6 stays refused until its timeout (RFC 5722 §4).

use core::cmp::Reverse;

use crate::time::Duration;
use crate::time::Instant;
use crate::types::RealmId;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// Datagrams kept at a time.
pub const DATAGRAMS: usize = 64;
/// Datagrams of one subscriber kept at a time.
pub const PER_SUBSCRIBER: usize = 8;
/// The last of [`DATAGRAMS`].
const WITHOUT_CHECKSUM_MAX: usize = 16;
pub(crate) const BYTES_MAX: usize = 9_216;
/// Room in front of each packet.
pub(crate) const ROOM: usize = 64;

/// In place of a softwire, for datagrams without checksum. Their source has the IPv4 source in its
/// upper half, and the host's number in the lower one.
pub(crate) const WITHOUT_CHECKSUM: u8 = u8::MAX;

/// Use reported as high, and the use that ends this (RFC 6333 §6.3).
const HIGH_PERCENT: usize = 75;
const LOW_PERCENT: usize = 50;

/// The bits of a class that routers mark, and two of their values (RFC 3168 §5).
const ECN: u8 = 3;
const CONGESTED: u8 = 3;
const NOT_CAPABLE: u8 = 0;

const UNIT: usize = 8;
const WORDS: usize = BYTES_MAX / UNIT / 64;

const _: () = assert!(BYTES_MAX.is_multiple_of(UNIT * 64), "every unit has a bit");

/// A fragment without headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) source: u128,
    /// Prefix or number of the sender; of a datagram without checksum, of the receiver.
    pub(crate) subscriber: u128,
    /// The subscriber's realm: realms may use the same prefixes.
    pub(crate) realm: RealmId,
    /// The softwire it comes by, or [`WITHOUT_CHECKSUM`].
    pub(crate) way: u8,
    pub(crate) identification: u32,
    /// Traffic class or type of service.
    pub(crate) class: u8,
    pub(crate) offset: usize,
    pub(crate) more: bool,
    pub(crate) bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The fragment is kept.
    Held,
    /// `held`: earlier fragments. `class` is that of the fragment at offset 0, and marked if any
    /// fragment's was (RFC 3168 §5.3).
    Whole { slot: usize, length: usize, held: u32, class: u8 },
    /// `held`: earlier fragments.
    Dropped { verdict: Verdict, held: u32 },
}

#[derive(Clone, Debug)]
struct Datagram {
    source: u128,
    subscriber: u128,
    realm: RealmId,
    identification: u32,
    way: u8,
    /// Class of the fragment at offset 0 (RFC 8200 §4.5).
    class: u8,
    has_mark: bool,
    /// A fragment says that its sender knows no marks.
    is_unmarkable: bool,
    in_use: bool,
    /// Fragments overlapped: none is taken any more.
    is_refused: bool,
    started: Instant,
    units: [u64; WORDS],
    received: usize,
    /// 0 until the last fragment has arrived.
    total: usize,
    held: u32,
}

const EMPTY: Datagram = Datagram {
    source: 0,
    subscriber: 0,
    realm: RealmId(0),
    identification: 0,
    way: 0,
    class: 0,
    has_mark: false,
    is_unmarkable: false,
    in_use: false,
    is_refused: false,
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
    /// Datagrams, refused ones among them.
    in_use: usize,
    held: u32,
    /// Fragments dropped for newer datagrams, not yet reported.
    evicted: u32,
    is_high: bool,
}

impl Reassembly {
    /// About 0.6 MiB; nothing without IPv6 hosts.
    pub(crate) fn new(has_hosts: bool) -> Reassembly {
        let count = if has_hosts { DATAGRAMS } else { 0 };
        Reassembly {
            datagrams: vec![EMPTY; count].into_boxed_slice(),
            bytes: vec![0; count * (ROOM + BYTES_MAX)].into_boxed_slice(),
            in_use: 0,
            held: 0,
            evicted: 0,
            is_high: false,
        }
    }

    /// Whether the use became high or low since the last call, and its percentage.
    pub(crate) fn crossing(&mut self) -> Option<(bool, u8)> {
        if self.datagrams.is_empty() || self.in_use == 0 && !self.is_high {
            return None;
        }
        let (softwires, others) = self.datagrams.split_at_checked(self.datagrams.len() - WITHOUT_CHECKSUM_MAX)?;
        let percent_of = |datagrams: &[Datagram]| {
            let in_use = datagrams.iter().filter(|datagram| datagram.in_use).count();
            (in_use * 100).checked_div(datagrams.len())
        };
        let percent = percent_of(softwires)?.max(percent_of(others)?);
        let is_high = if self.is_high { percent > LOW_PERCENT } else { percent >= HIGH_PERCENT };
        (core::mem::replace(&mut self.is_high, is_high) != is_high).then_some((is_high, percent as u8))
    }

    /// Fragments without a verdict.
    pub(crate) fn held(&self) -> u32 {
        self.held
    }

    pub(crate) fn frame(&mut self, slot: usize, length: usize) -> &mut [u8] {
        let start = slot * (ROOM + BYTES_MAX);
        self.bytes.get_mut(start..start + ROOM + length).unwrap_or_default()
    }

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
        if datagram.is_refused {
            return refused(Verdict::FragmentOverlap);
        }
        let units = part.offset / UNIT..end.div_ceil(UNIT);
        let overlaps = units.clone().any(|unit| datagram.units[unit / 64] >> (unit % 64) & 1 != 0);
        // Nothing may lie behind the end, or `received` would count it for what is missing.
        let disagrees = if part.more {
            datagram.total != 0 && end > datagram.total
        } else {
            datagram.total != 0 || datagram.has_from(units.end)
        };
        if overlaps || disagrees {
            let held = self.refuse(slot);
            return Outcome::Dropped { verdict: Verdict::FragmentOverlap, held };
        }
        for unit in units {
            datagram.units[unit / 64] |= 1 << (unit % 64);
        }
        datagram.received += part.bytes.len();
        if part.offset == 0 {
            datagram.class = part.class;
        }
        datagram.has_mark |= part.class & ECN == CONGESTED;
        datagram.is_unmarkable |= part.class & ECN == NOT_CAPABLE;
        if !part.more {
            datagram.total = end;
        }
        if let Some(place) = self.bytes.get_mut(start + part.offset..start + end) {
            place.copy_from_slice(part.bytes);
        }
        if datagram.total != 0 && datagram.received == datagram.total {
            let (length, mark) = (datagram.total, if datagram.has_mark { CONGESTED } else { 0 });
            let (class, is_unmarkable) = (datagram.class | mark, datagram.is_unmarkable);
            let held = self.end(slot);
            if mark != 0 && is_unmarkable {
                return Outcome::Dropped { verdict: Verdict::FragmentMalformed, held };
            }
            return Outcome::Whole { slot, length, held, class };
        }
        datagram.held += 1;
        self.held += 1;
        Outcome::Held
    }

    fn begin(&mut self, now: Instant, part: &Part<'_>) -> Result<usize, Verdict> {
        let shared = self.datagrams.len().saturating_sub(WITHOUT_CHECKSUM_MAX);
        let places = if part.way == WITHOUT_CHECKSUM { shared..self.datagrams.len() } else { 0..shared };
        let datagrams = self.datagrams.get(places.clone()).unwrap_or_default();
        let of_subscriber = |realm: RealmId, subscriber: u128| {
            let is_of = |one: &&Datagram| one.in_use && (one.subscriber, one.realm) == (subscriber, realm);
            datagrams.iter().filter(is_of).count()
        };
        if of_subscriber(part.realm, part.subscriber) >= PER_SUBSCRIBER {
            return Err(Verdict::ReassemblyQuota);
        }
        let free = datagrams.iter().position(|datagram| !datagram.in_use);
        let place = free.or_else(|| {
            let rank = |one: &Datagram| (of_subscriber(one.realm, one.subscriber), Reverse(one.started));
            (0..datagrams.len()).max_by_key(|place| datagrams.get(*place).map(rank))
        });
        let slot = places.start + place.ok_or(Verdict::ReassemblyFull)?;
        if free.is_none() {
            self.evicted += self.end(slot);
        }
        if let Some(datagram) = self.datagrams.get_mut(slot) {
            *datagram = Datagram {
                source: part.source,
                subscriber: part.subscriber,
                realm: part.realm,
                identification: part.identification,
                way: part.way,
                in_use: true,
                started: now,
                ..EMPTY
            };
            self.in_use += 1;
        }
        // A second line of defence: no byte of another customer's packet is left.
        self.frame(slot, BYTES_MAX).fill(0);
        Ok(slot)
    }

    pub(crate) fn take_evicted(&mut self) -> u32 {
        core::mem::take(&mut self.evicted)
    }

    /// Ends a datagram. Further fragments of it are refused, but IPv4 reuses its identifications
    /// too soon for that.
    fn refuse(&mut self, slot: usize) -> u32 {
        match self.datagrams.get_mut(slot) {
            Some(datagram) if datagram.way != WITHOUT_CHECKSUM => {
                datagram.is_refused = true;
                let held = core::mem::take(&mut datagram.held);
                self.held -= held;
                held
            }
            _ => self.end(slot),
        }
    }

    /// Returns the fragments it kept. The bytes stay until the slot is used again.
    fn end(&mut self, slot: usize) -> u32 {
        let Some(datagram) = self.datagrams.get_mut(slot) else { return 0 };
        self.in_use -= usize::from(core::mem::take(&mut datagram.in_use));
        let held = core::mem::take(&mut datagram.held);
        self.held -= held;
        held
    }

    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> u32 {
        if self.in_use == 0 {
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
