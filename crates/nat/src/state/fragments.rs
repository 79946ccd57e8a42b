//! Virtual reassembly (RFC 4787 §11 REQ-14): later fragments get the ports of their datagram's
//! first. Those that arrive before it wait in slots, and leave in offset order.
//!
//! Memory is allocated at construction:
//!
//! - datagrams: `Limits::fragmented_datagrams_max`, each until complete, or `Timeouts::fragment`
//!   after its first fragment.
//! - held fragments: `Limits::fragments_held_max` slots.
//! - shares (REQ-14a): one of [`SOURCES`] classes of sources gets at most an eighth of either
//!   table, but at least 64 slots (one large datagram); one side at most three quarters. All IPv6
//!   hosts of a prefix are one source. A flood is dropped at its share, and evicts nothing.
//!
//! Refused are overlaps (the whole datagram, as in RFC 5722 §4 for IPv6), tiny first fragments (RFC
//! 1858, RFC 3128), and contradictory offsets. Two bits for each 8-byte unit, 2 KiB a datagram,
//! distinguish duplicates from overlaps.

use core::net::Ipv4Addr;

use self::units::Fit;
use self::units::Units;
use crate::headers::packet::PacketMeta;
use crate::random::KeyedHash;
use crate::settings::Limits;
use crate::state::fifo_map::FifoMap;
use crate::state::fifo_map::Slot;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;
mod units;

/// 64 KiB in pieces of 512 bytes.
pub const HELD_PER_DATAGRAM_MAX: u32 = 128;

/// Classes of sources with their own share.
pub const SOURCES: usize = 1_024;

/// An Ethernet packet with room to spare.
pub const SLOT_BYTES_MIN: usize = 2_048;

/// A jumbo packet. Larger out-of-order fragments are `FragmentBuffersFull`.
pub const SLOT_BYTES_MAX: usize = 9_216;

/// Without an IP header; total length is 16 bits (RFC 791 §3.1).
const PAYLOAD_MAX: u32 = 65_535 - 20;

/// TCP's fixed header (RFC 3128 §4).
const TCP_FIRST_MIN: u32 = 20;

/// The UDP or ICMP query header.
const OTHER_FIRST_MIN: u32 = 8;

const EXPIRE_PER_ACCEPT: usize = 2;

const NO_SLOT: u32 = u32::MAX;

const REALM_SHIFT: u32 = 25;

const _: () = assert!(RealmId::COUNT_MAX <= 1 << (32 - REALM_SHIFT), "a realm fits a key");

/// A datagram's identity (RFC 791 §3.2) and side: inside addresses may equal outside ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentKey {
    addresses: u64,
    rest: u32,
    /// 0 for IPv4.
    identification6: u32,
}

impl FragmentKey {
    /// From header fields.
    pub fn new(side: Side, source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, identification: u16) -> FragmentKey {
        FragmentKey {
            addresses: u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()),
            rest: (side.index() as u32) << 24 | u32::from(protocol) << 16 | u32::from(identification),
            identification6: 0,
        }
    }

    /// The same in this inside realm.
    #[must_use]
    pub const fn in_realm(self, realm: RealmId) -> FragmentKey {
        FragmentKey { rest: self.rest | (realm.0 as u32) << REALM_SHIFT, ..self }
    }

    /// The same for an IPv6 datagram.
    #[must_use]
    pub const fn of_ipv6(self, identification: u32) -> FragmentKey {
        FragmentKey { identification6: identification, ..self }
    }

    /// Realms may share source addresses.
    fn facing(self) -> u64 {
        u64::from(self.rest >> 24)
    }

    fn side(self) -> usize {
        (self.rest >> 24) as usize & 1
    }

    fn protocol(self) -> u8 {
        (self.rest >> 16) as u8
    }
}

/// A fragment's part of the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentInfo {
    /// In bytes: the offset field times eight.
    pub offset: u32,
    /// In bytes.
    pub length: u32,
    /// More-fragments flag.
    pub more: bool,
    /// Ports of a first fragment; for ICMP the identifier twice.
    pub first_ports: Option<(u16, u16)>,
    /// Whose share it takes: the source, or an IPv6 host's subscriber.
    pub owner: HostNumber,
}

/// Valid until the next [`FragmentTracker::accept`] or [`FragmentTracker::expire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramIndex(Slot);

/// What to do with a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// Process it, then what [`FragmentTracker::next_held`] returns.
    Resolved {
        /// Its datagram.
        datagram: DatagramIndex,
        /// Its ports.
        ports: (u16, u16),
    },
    /// Copied, until [`FragmentTracker::next_held`] or discarded.
    Held,
    /// Dropped.
    Dropped {
        /// Why.
        verdict: Verdict,
        /// Held fragments discarded with it.
        held_discarded: u32,
    },
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Waiting,
    Resolved((u16, u16)),
    /// Drops the remaining fragments.
    GivenUp(Verdict),
}

#[derive(Clone, Copy, Debug)]
struct Datagram {
    first_seen: Instant,
    state: State,
    received: u32,
    highest_end: u32,
    /// 0 until the last fragment has arrived.
    total: u32,
    held_head: u32,
    held_tail: u32,
    held: u32,
    source: u16,
    side: u8,
    translated_identification: Option<u16>,
}

impl Default for Datagram {
    fn default() -> Datagram {
        Datagram {
            first_seen: Instant::ORIGIN,
            state: State::Waiting,
            received: 0,
            highest_end: 0,
            total: 0,
            held_head: NO_SLOT,
            held_tail: NO_SLOT,
            held: 0,
            source: 0,
            side: 0,
            translated_identification: None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct HeldFragment {
    offset: u32,
    length: u16,
    meta: PacketMeta,
    next: u32,
    previous: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    datagrams: u32,
    held: u32,
}

/// One worker's fragmented datagrams.
#[derive(Debug)]
pub struct FragmentTracker {
    datagrams: FifoMap<FragmentKey, Datagram>,
    units: Box<[Units]>,
    bytes: Box<[u8]>,
    slot_bytes: usize,
    slots: Box<[HeldFragment]>,
    free_slot: u32,
    held: u32,
    /// Discarded, but not yet reported to the caller.
    timed_out: u32,
    complete: Option<Slot>,
    sources: Box<[Share]>,
    sides: [Share; 2],
    source_max: Share,
    side_max: Share,
    timeout: Duration,
    hash: KeyedHash,
}

impl FragmentTracker {
    /// `slot_bytes`: the largest packet held, clamped to [`SLOT_BYTES_MIN`]..=[`SLOT_BYTES_MAX`].
    /// `hash` needs its own secret. A datagram takes about 2.2 KiB.
    pub fn new(limits: &Limits, timeout: Duration, slot_bytes: usize, hash: KeyedHash) -> FragmentTracker {
        let slot_bytes = slot_bytes.clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX);
        let datagrams_max = limits.fragmented_datagrams_max;
        let held_max = limits.fragments_held_max.min(NO_SLOT - 1);
        let slots: Vec<HeldFragment> = (0..held_max)
            .map(|i| HeldFragment {
                offset: 0,
                length: 0,
                meta: PacketMeta::default(),
                next: if i + 1 < held_max { i + 1 } else { NO_SLOT },
                previous: NO_SLOT,
            })
            .collect();
        FragmentTracker {
            datagrams: FifoMap::new(datagrams_max as usize),
            units: vec![Units::NONE; datagrams_max as usize].into_boxed_slice(),
            bytes: vec![0; held_max as usize * slot_bytes].into_boxed_slice(),
            slot_bytes,
            slots: slots.into_boxed_slice(),
            free_slot: if held_max == 0 { NO_SLOT } else { 0 },
            held: 0,
            timed_out: 0,
            complete: None,
            sources: vec![Share::default(); SOURCES].into_boxed_slice(),
            sides: [Share::default(); 2],
            source_max: Share {
                datagrams: (datagrams_max / 8).max(1),
                // At least one large datagram out of order fits.
                held: (held_max / 8).max(held_max.min(HELD_PER_DATAGRAM_MAX / 2)),
            },
            side_max: Share {
                datagrams: (datagrams_max - datagrams_max / 4).max(1),
                held: (held_max - held_max / 4).max(1),
            },
            timeout,
            hash,
        }
    }

    pub(crate) fn bytes_for(limits: &Limits, slot_bytes: usize) -> u64 {
        let slot_bytes = slot_bytes.clamp(SLOT_BYTES_MIN, SLOT_BYTES_MAX) + size_of::<HeldFragment>();
        let datagrams = u64::from(limits.fragmented_datagrams_max);
        FifoMap::<FragmentKey, Datagram>::bytes_for(datagrams)
            + datagrams * size_of::<Units>() as u64
            + u64::from(limits.fragments_held_max) * slot_bytes as u64
            + (SOURCES * size_of::<Share>()) as u64
    }

    /// Applies to existing datagrams, too.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Buffer size for [`FragmentTracker::next_held`].
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Fragments without a verdict yet.
    pub fn held(&self) -> u32 {
        self.held + self.timed_out
    }

    /// Datagrams tracked.
    pub fn datagrams(&self) -> usize {
        self.datagrams.len() - usize::from(self.complete.is_some())
    }

    /// True if nothing can expire.
    pub fn is_empty(&self) -> bool {
        self.datagrams() == 0 && self.timed_out == 0
    }

    /// `packet`: the IP packet without padding. O(1), except for sorting a held fragment (at most
    /// [`HELD_PER_DATAGRAM_MAX`] steps, none in order).
    pub fn accept(
        &mut self,
        now: Instant,
        key: FragmentKey,
        info: FragmentInfo,
        packet: &[u8],
        meta: PacketMeta,
    ) -> FragmentOutcome {
        self.free_complete();
        for _ in 0..EXPIRE_PER_ACCEPT {
            if !self.expire_oldest(now) {
                break;
            }
        }
        if let Some(verdict) = fault_of(key.protocol(), info) {
            return dropped(verdict);
        }
        let hash = self.hash.hash(key.addresses, u64::from(key.identification6) << 32 | u64::from(key.rest));
        let mut known = self.datagrams.find(hash, &key);
        if let Some(slot) = known {
            let first_seen = self.datagrams.get(slot).map_or(now, |datagram| datagram.first_seen);
            if first_seen + self.timeout <= now {
                self.time_out(slot);
                known = None;
            }
        }
        let slot = match known {
            Some(slot) => slot,
            None => match self.begin(now, hash, key, info.owner) {
                Some(slot) => slot,
                None => return dropped(Verdict::FragmentTableFull),
            },
        };
        self.accept_into(slot, info, packet, meta)
    }

    fn accept_into(&mut self, slot: Slot, info: FragmentInfo, packet: &[u8], meta: PacketMeta) -> FragmentOutcome {
        let end = info.offset + info.length;
        let (Some(datagram), Some(units)) = (self.datagrams.get_mut(slot), self.units.get_mut(slot as usize)) else {
            return dropped(Verdict::FragmentTableFull);
        };
        if let State::GivenUp(verdict) = datagram.state {
            return dropped(verdict);
        }
        let contradicts = if info.more {
            datagram.total != 0 && end > datagram.total
        } else {
            end < datagram.highest_end || (datagram.total != 0 && end != datagram.total)
        };
        if contradicts {
            return self.give_up(slot, Verdict::FragmentMalformed);
        }
        let (from, to) = ((info.offset / 8) as usize, end.div_ceil(8) as usize);
        match units.fit(from, to) {
            Fit::New => {}
            Fit::Duplicate => {
                // The sender reused its identification too soon (RFC 6864 §4.2): one subscriber
                // must not get another's data.
                if let (State::Resolved(ports), Some(others)) = (datagram.state, info.first_ports)
                    && ports != others
                {
                    return self.give_up(slot, Verdict::FragmentOverlap);
                }
                return dropped(Verdict::FragmentOverlap);
            }
            Fit::Overlap => return self.give_up(slot, Verdict::FragmentOverlap),
        }
        let resolved = match (datagram.state, info.first_ports) {
            (State::Waiting, Some(ports)) if info.offset == 0 => Some(ports),
            (State::Resolved(ports), _) => Some(ports),
            _ => None,
        };
        match resolved {
            Some(ports) => datagram.state = State::Resolved(ports),
            None => {
                if !self.hold(slot, info.offset, packet, meta) {
                    // Not marked as arrived: a retransmitted copy may find room.
                    return dropped(Verdict::FragmentBuffersFull);
                }
            }
        }
        let (Some(datagram), Some(units)) = (self.datagrams.get_mut(slot), self.units.get_mut(slot as usize)) else {
            return dropped(Verdict::FragmentTableFull);
        };
        units.mark(from, to);
        datagram.received += info.length;
        datagram.highest_end = datagram.highest_end.max(end);
        if !info.more {
            datagram.total = end;
        }
        match resolved {
            Some(ports) => {
                if datagram.total != 0 && datagram.received == datagram.total {
                    self.complete = Some(slot);
                }
                FragmentOutcome::Resolved { datagram: DatagramIndex(slot), ports }
            }
            None => FragmentOutcome::Held,
        }
    }

    /// Moves the held fragment with the lowest offset to `buffer`; returns length and metadata.
    /// `None` before the first fragment.
    pub fn next_held(&mut self, datagram: DatagramIndex, buffer: &mut [u8]) -> Option<(usize, PacketMeta)> {
        let entry = self.datagrams.get(datagram.0)?;
        if !matches!(entry.state, State::Resolved(_)) {
            return None;
        }
        let index = entry.held_head;
        let held = *self.slots.get(index as usize)?;
        let start = index as usize * self.slot_bytes;
        let bytes = self.bytes.get(start..start + usize::from(held.length)).unwrap_or(&[]);
        let length = bytes.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.release_head(datagram.0);
        Some((length, held.meta))
    }

    /// Call it when the first fragment is dropped: drops the others as `FragmentRefused`. Returns
    /// how many were held.
    pub fn refuse(&mut self, datagram: DatagramIndex) -> u32 {
        match self.give_up(datagram.0, Verdict::FragmentRefused) {
            FragmentOutcome::Dropped { held_discarded, .. } => held_discarded,
            _ => 0,
        }
    }

    /// Outgoing identification, once set.
    pub fn translated_identification(&self, datagram: DatagramIndex) -> Option<u16> {
        self.datagrams.get(datagram.0).and_then(|entry| entry.translated_identification)
    }

    /// Sets the outgoing identification.
    pub fn set_translated_identification(&mut self, datagram: DatagramIndex, identification: u16) {
        if let Some(entry) = self.datagrams.get_mut(datagram.0) {
            entry.translated_identification = Some(identification);
        }
    }

    /// Frees at most `budget` complete or old datagrams. `on_drop` gets the number of fragments
    /// discarded as `FragmentTimeout`.
    pub fn expire(&mut self, now: Instant, budget: usize, mut on_drop: impl FnMut(u32)) {
        self.free_complete();
        for _ in 0..budget {
            if !self.expire_oldest(now) {
                break;
            }
        }
        if self.timed_out != 0 {
            on_drop(core::mem::take(&mut self.timed_out));
        }
    }

    fn free_complete(&mut self) {
        if let Some(slot) = self.complete.take() {
            // Held fragments that the caller has not taken still need a verdict.
            self.time_out(slot);
        }
    }

    fn expire_oldest(&mut self, now: Instant) -> bool {
        let Some((slot, datagram)) = self.datagrams.oldest() else { return false };
        if datagram.first_seen + self.timeout > now {
            return false;
        }
        self.time_out(slot);
        true
    }

    fn time_out(&mut self, slot: Slot) {
        self.timed_out += self.free(slot);
    }

    fn free(&mut self, slot: Slot) -> u32 {
        let discarded = self.discard_held(slot);
        let Some(datagram) = self.datagrams.remove(slot) else { return discarded };
        if let Some(units) = self.units.get_mut(slot as usize) {
            units.clear(datagram.highest_end.div_ceil(8) as usize);
        }
        if let Some(share) = self.sources.get_mut(usize::from(datagram.source)) {
            share.datagrams = share.datagrams.saturating_sub(1);
        }
        if let Some(share) = self.sides.get_mut(usize::from(datagram.side)) {
            share.datagrams = share.datagrams.saturating_sub(1);
        }
        discarded
    }

    fn begin(&mut self, now: Instant, hash: u64, key: FragmentKey, owner: HostNumber) -> Option<Slot> {
        let source = self.hash.hash(owner.0.into(), key.facing()) as usize & (SOURCES - 1);
        let by_source = self.sources.get_mut(source)?;
        let by_side = self.sides.get_mut(key.side())?;
        if by_source.datagrams >= self.source_max.datagrams || by_side.datagrams >= self.side_max.datagrams {
            return None;
        }
        let datagram =
            Datagram { first_seen: now, source: source as u16, side: key.side() as u8, ..Datagram::default() };
        let slot = self.datagrams.insert(hash, key, datagram)?;
        by_source.datagrams += 1;
        by_side.datagrams += 1;
        Some(slot)
    }

    fn give_up(&mut self, slot: Slot, verdict: Verdict) -> FragmentOutcome {
        let held_discarded = self.discard_held(slot);
        if let Some(datagram) = self.datagrams.get_mut(slot) {
            datagram.state = State::GivenUp(verdict);
        }
        FragmentOutcome::Dropped { verdict, held_discarded }
    }

    fn discard_held(&mut self, slot: Slot) -> u32 {
        let mut discarded = 0;
        while self.release_head(slot) {
            discarded += 1;
        }
        discarded
    }

    fn release_head(&mut self, slot: Slot) -> bool {
        let Some(datagram) = self.datagrams.get_mut(slot) else { return false };
        let index = datagram.held_head;
        let Some(held) = self.slots.get_mut(index as usize) else { return false };
        datagram.held_head = held.next;
        datagram.held -= 1;
        if held.next == NO_SLOT {
            datagram.held_tail = NO_SLOT;
        }
        let next = core::mem::replace(&mut held.next, self.free_slot);
        self.free_slot = index;
        if let Some(next) = self.slots.get_mut(next as usize) {
            next.previous = NO_SLOT;
        }
        self.held -= 1;
        if let Some(share) = self.sources.get_mut(usize::from(datagram.source)) {
            share.held = share.held.saturating_sub(1);
        }
        if let Some(share) = self.sides.get_mut(usize::from(datagram.side)) {
            share.held = share.held.saturating_sub(1);
        }
        true
    }

    /// False if there is no room.
    fn hold(&mut self, slot: Slot, offset: u32, packet: &[u8], meta: PacketMeta) -> bool {
        let Some(datagram) = self.datagrams.get_mut(slot) else { return false };
        let (Some(by_source), Some(by_side)) =
            (self.sources.get_mut(usize::from(datagram.source)), self.sides.get_mut(usize::from(datagram.side)))
        else {
            return false;
        };
        if packet.len() > self.slot_bytes
            || datagram.held >= HELD_PER_DATAGRAM_MAX
            || by_source.held >= self.source_max.held
            || by_side.held >= self.side_max.held
        {
            return false;
        }
        let index = self.free_slot;
        let Some(free) = self.slots.get(index as usize) else { return false };
        let next_free = free.next;
        let start = index as usize * self.slot_bytes;
        let Some(bytes) = self.bytes.get_mut(start..start + packet.len()) else { return false };
        bytes.copy_from_slice(packet);

        // Fragments mostly come in order.
        let mut previous = datagram.held_tail;
        while let Some(held) = self.slots.get(previous as usize) {
            if held.offset < offset {
                break;
            }
            previous = held.previous;
        }
        let next = match self.slots.get_mut(previous as usize) {
            Some(held) => core::mem::replace(&mut held.next, index),
            None => core::mem::replace(&mut datagram.held_head, index),
        };
        match self.slots.get_mut(next as usize) {
            Some(held) => held.previous = index,
            None => datagram.held_tail = index,
        }
        if let Some(held) = self.slots.get_mut(index as usize) {
            *held = HeldFragment { offset, length: packet.len() as u16, meta, next, previous };
        }
        self.free_slot = next_free;
        datagram.held += 1;
        by_source.held += 1;
        by_side.held += 1;
        self.held += 1;
        true
    }
}

fn dropped(verdict: Verdict) -> FragmentOutcome {
    FragmentOutcome::Dropped { verdict, held_discarded: 0 }
}

fn fault_of(protocol: u8, info: FragmentInfo) -> Option<Verdict> {
    let end = u64::from(info.offset) + u64::from(info.length);
    let malformed = info.length == 0
        || !info.offset.is_multiple_of(8)
        || (info.more && !info.length.is_multiple_of(8))
        || (info.offset == 0 && !info.more)
        || end > u64::from(PAYLOAD_MAX);
    if malformed {
        return Some(Verdict::FragmentMalformed);
    }
    let first_min = if protocol == 6 { TCP_FIRST_MIN } else { OTHER_FIRST_MIN };
    let tiny = if info.offset == 0 {
        info.length < first_min || info.first_ports.is_none()
    } else {
        // RFC 3128 §4: a fragment at 8 would overlay the flags. Behind a long enough first one, no
        // honest one starts at 8 or 16.
        info.offset < first_min
    };
    tiny.then_some(Verdict::FragmentTiny)
}
