//! Flows: endpoint-dependent translations, one record for one remote endpoint (RFC 4787 §4.1, RFC 2663 §4.1.2 and §4.3).
//!
//! ```text
//!   from inside: hash(internal endpoint, remote endpoint as the inside knows it) ─┐
//!                                                                                 ├─→ one 64-byte record
//!   from outside: hash(external endpoint, remote endpoint as it is outside)      ─┘
//! ```
//!
//! A mapping keeps its external endpoint for itself, whoever is spoken to. A flow shares it with other flows, of the same
//! subscriber or of others, as long as their remote endpoints differ: the five-tuple outside is unique, and that is what a
//! packet from outside is told apart by. The two remote endpoints of a flow differ where its destination is translated too
//! (twice NAT). Records hold indices, never pointers.
//!
//! A flow that is over may *rest* (RFC 6888 REQ-8): its record stays, found from outside only, so that no other flow has its five-tuple
//! meanwhile. Those that rest stand in the order in which they began to, and the first of them makes room where there is none.

use core::net::Ipv4Addr;

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::mapping::InternalKey;
use crate::random::KeyedHash;
use crate::table::BucketTable;
use crate::table::TableFull;
use crate::tcp::SequenceTracker;
use crate::tcp::TcpState;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

#[cfg(test)]
mod tests;

/// Instants inside records have 48 bits: 8.9 years of microseconds.
const INSTANT_MAX: u64 = (1 << 48) - 1;
/// In the top byte of `internal`: the protocol.
const PROTOCOL: u8 = 0b0000_0011;
/// In the top byte of `internal`: the record holds a flow, as [`InternalKey::word`] has it.
const IN_USE: u8 = 1 << 2;
/// In the top byte of `internal`, and no [`IN_USE`]: the five-tuple outside rests.
const RESTS: u8 = 1 << 7;

/// One flow; exactly one cache line.
///
/// What is compared or written together is one 64-bit word, lowest field first:
///
/// ```text
///   internal  address 32 | port 16 | realm 8 | kind 8           as in a mapping; 0 in a free record, and the kind alone in one that rests
///   near      address 32 | port 16 | state 8 | stamp 8          the remote endpoint as the inside knows it
///   life      marks 16 | end 48
/// ```
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    internal: u64,
    near: u64,
    life: u64,
    external_address: u32,
    far_address: u32,
    external_port: u16,
    far_port: u16,
    created_s: u32,
    pub(crate) tracker: SequenceTracker,
    /// The shared port's record, or [`ERA`] and the era that a forward to several made it by; in a free record the next free one, in one
    /// that rests that which began to rest next.
    pub(crate) port: u32,
    /// The subscriber's record; in a record that rests the one that began to rest before it.
    pub(crate) subscriber: u32,
}

const _: () = assert!(size_of::<Flow>() == 64, "one flow is one cache line");

/// What a flow is looked up by from inside: [`InternalKey::word`] and the remote endpoint as the inside knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InsideKey {
    internal: u64,
    near: u64,
}

impl InsideKey {
    /// The flow of this internal endpoint to this remote one; for ICMP queries the remote port is 0.
    #[inline]
    pub(crate) const fn new(internal: &InternalKey, address: u32, port: u16) -> InsideKey {
        InsideKey { internal: internal.word(), near: endpoint_word(address, port) }
    }
}

/// What a flow is looked up by from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideKey {
    pub(crate) protocol: Protocol,
    pub(crate) external: (u32, u16),
    /// The remote endpoint as it is outside; for ICMP queries the port is 0.
    pub(crate) far: (u32, u16),
}

impl OutsideKey {
    #[inline]
    pub(crate) fn hash(&self, hash: &KeyedHash) -> u64 {
        let ports = u64::from(self.external.1) << 32 | u64::from(self.far.1) << 16 | self.protocol as u64;
        hash.hash(u64::from(self.external.0) << 32 | u64::from(self.far.0), ports)
    }
}

/// The values a new flow starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFlow {
    pub(crate) internal: InternalKey,
    /// The remote endpoint as the inside knows it.
    pub(crate) near: (u32, u16),
    /// The remote endpoint as it is outside.
    pub(crate) far: (u32, u16),
    pub(crate) external: (u32, u16),
    pub(crate) state: TcpState,
    pub(crate) expires: Instant,
    /// The shared port's record, or [`ERA`] and the era's number.
    pub(crate) port: u32,
    /// The remote endpoint is another mapping's of this instance.
    pub(crate) is_hairpin: bool,
    pub(crate) subscriber: u32,
}

const fn endpoint_word(address: u32, port: u16) -> u64 {
    address as u64 | (port as u64) << 32
}

/// In `port`: the flow came from outside to a forward with several targets, and shares no port of a pool.
pub(crate) const ERA: u32 = 1 << 31;
/// In `life`: the remote endpoint is hairpinned to.
const HAIRPIN: u64 = 1;

/// Where in `near` the stamp of the filters begins.
const STAMP_SHIFT: u32 = 56;
/// The bits of `near` that are the endpoint.
const ENDPOINT: u64 = (1 << 48) - 1;

impl Flow {
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.kind() & IN_USE != 0
    }

    /// The flow is over, and no other may have its five-tuple outside before [`Flow::expires`].
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.kind() & RESTS != 0
    }

    #[inline]
    fn kind(&self) -> u8 {
        (self.internal >> 56) as u8
    }

    /// In use and not out of date.
    #[inline]
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        self.is_in_use() && now < self.expires()
    }

    #[inline]
    pub(crate) fn protocol(&self) -> Protocol {
        match self.kind() & PROTOCOL {
            0 => Protocol::Udp,
            1 => Protocol::Tcp,
            _ => Protocol::Icmp,
        }
    }

    pub(crate) fn realm(&self) -> RealmId {
        RealmId((self.internal >> 48) as u16 & 0xff)
    }

    /// The internal endpoint: address and port.
    #[inline]
    pub(crate) fn internal(&self) -> (u32, u16) {
        (self.internal as u32, (self.internal >> 32) as u16)
    }

    /// The remote endpoint as the inside knows it.
    #[inline]
    pub(crate) fn near(&self) -> (u32, u16) {
        (self.near as u32, (self.near >> 32) as u16)
    }

    /// The remote endpoint as it is outside.
    #[inline]
    pub(crate) fn far(&self) -> (u32, u16) {
        (self.far_address, self.far_port)
    }

    #[inline]
    pub(crate) fn external(&self) -> (u32, u16) {
        (self.external_address, self.external_port)
    }

    /// The era of a forward with several targets that it was made by, if it was.
    #[inline]
    pub(crate) fn era(&self) -> Option<u32> {
        (self.port & ERA != 0).then_some(self.port & !ERA)
    }

    /// Which side opened it.
    #[inline]
    pub(crate) fn opened_from(&self) -> Side {
        if self.era().is_some() { Side::Outside } else { Side::Inside }
    }

    /// Whether the remote endpoint is another mapping's of this instance.
    #[inline]
    pub(crate) fn is_hairpin(&self) -> bool {
        self.life & HAIRPIN != 0
    }

    /// Whether the destination is translated too.
    pub(crate) fn is_twice(&self) -> bool {
        self.near() != self.far()
    }

    #[inline]
    pub(crate) fn state(&self) -> TcpState {
        TcpState::from_number((self.near >> 48) as u8).unwrap_or(TcpState::Transitory)
    }

    #[inline]
    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(self.life >> 16)
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    /// Gives the flow a new state and end.
    #[inline]
    pub(crate) fn refresh(&mut self, state: TcpState, expires: Instant) {
        self.near = self.near & !(0xff << 48) | (state as u64) << 48;
        self.life = expires.as_micros().min(INSTANT_MAX) << 16 | self.life & 0xffff;
    }

    /// The stamp of the filters that permit its packets in both directions; 0: none.
    #[inline]
    pub(crate) fn stamp(&self) -> u8 {
        (self.near >> STAMP_SHIFT) as u8
    }

    #[inline]
    pub(crate) fn set_stamp(&mut self, stamp: u8) {
        self.near = self.near & !(0xff << STAMP_SHIFT) | u64::from(stamp) << STAMP_SHIFT;
    }

    /// Whether it is the established flow of this inside five-tuple, with this stamp, and leaves by no hairpin.
    #[inline(always)]
    pub(crate) fn is_steady_inside(&self, key: &InsideKey, stamp: u8) -> bool {
        let near = key.near | (TcpState::Established as u64) << 48 | u64::from(stamp) << STAMP_SHIFT;
        ((self.internal ^ key.internal) | (self.near ^ near) | self.life & HAIRPIN) == 0
    }

    /// Whether it is the established flow of this outside five-tuple, with this stamp, and comes by no hairpin.
    #[inline(always)]
    pub(crate) fn is_steady_outside(&self, key: &OutsideKey, stamp: u8) -> bool {
        let state = (self.near >> 48) as u16 == TcpState::Established as u16 | u16::from(stamp) << 8;
        self.is_in_use() && state && !self.is_hairpin() && self.outside_key() == *key
    }

    fn inside_key(&self) -> InsideKey {
        InsideKey { internal: self.internal, near: self.near & ENDPOINT }
    }

    pub(crate) fn outside_key(&self) -> OutsideKey {
        OutsideKey { protocol: self.protocol(), external: self.external(), far: self.far() }
    }
}

/// An address and a port for people.
pub(crate) fn endpoint((address, port): (u32, u16)) -> Endpoint {
    Endpoint::new(Ipv4Addr::from_bits(address), port)
}

/// The flows of one shard, found from either side.
pub(crate) struct FlowStore {
    records: Arena<Flow>,
    inside: BucketTable,
    outside: BucketTable,
    hash: KeyedHash,
    /// Head of the free list, 0 when empty.
    free: u32,
    /// Records never used yet start here.
    untouched: u32,
    /// The first and the last that began to rest, 0 when none does.
    resting: (u32, u32),
}

impl FlowStore {
    /// Room for `flows_max` flows: 81 bytes each.
    pub(crate) fn new(flows_max: u32, hash: KeyedHash) -> Result<FlowStore, ArenaError> {
        Ok(FlowStore {
            // Index 0 means "none" in every table, so the first record stays unused.
            records: Arena::zeroed(flows_max as usize + 1)?,
            inside: BucketTable::with_capacity(flows_max as usize)?,
            outside: BucketTable::with_capacity(flows_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            resting: (0, 0),
        })
    }

    /// The memory `new` is going to take.
    pub(crate) fn needs(flows_max: u32) -> [Need; 3] {
        let table = BucketTable::need(flows_max as usize);
        [Arena::<Flow>::need(flows_max as usize + 1), table, table]
    }

    pub(crate) fn len(&self) -> usize {
        self.inside.len()
    }

    /// Whether there is none: packets then need not be looked up here.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Whether no further flow can be entered, even if those that rest make room.
    pub(crate) fn is_full(&self) -> bool {
        self.inside.is_full()
    }

    /// Whether there is neither a flow nor one that rests.
    pub(crate) fn has_no_records(&self) -> bool {
        self.outside.is_empty()
    }

    /// That which has to make room before a flow is entered; None: there is some.
    pub(crate) fn in_the_way(&self) -> Option<u32> {
        (self.outside.is_full() && self.resting.0 != 0).then_some(self.resting.0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes() + self.inside.bytes() + self.outside.bytes()
    }

    /// One past the highest record ever used: what a walk over all flows has to visit.
    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Flow {
        &self.records[index as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Flow {
        &mut self.records[index as usize]
    }

    #[inline]
    pub(crate) fn inside_hash(&self, key: &InsideKey) -> u64 {
        self.hash.hash(key.internal, key.near)
    }

    #[inline]
    pub(crate) fn outside_hash(&self, key: &OutsideKey) -> u64 {
        key.hash(&self.hash)
    }

    /// Asks for the line of a hash, of the outside's table or of the inside's.
    #[inline(always)]
    pub(crate) fn prefetch_table(&self, outside: bool, hash: u64) {
        if outside { self.outside.prefetch(hash) } else { self.inside.prefetch(hash) }
    }

    /// The flow that would be tried first for a hash; 0 when there is none.
    #[inline(always)]
    pub(crate) fn candidate(&self, outside: bool, hash: u64) -> u32 {
        let table = if outside { &self.outside } else { &self.inside };
        match table.candidate(hash) {
            (0, true) => table.first_candidate(hash).unwrap_or(0),
            (found, _) => found,
        }
    }

    /// Asks for a record, to be written.
    #[inline(always)]
    pub(crate) fn prefetch_write(&self, index: u32) {
        self.records.prefetch_write(index as usize);
    }

    /// The flow of an inside five-tuple, alive or not.
    #[inline]
    pub(crate) fn find_inside(&self, key: &InsideKey) -> Option<u32> {
        self.inside.find(self.inside_hash(key), |index| self.get(index).inside_key() == *key)
    }

    /// The flow of an outside five-tuple, alive or not.
    #[inline]
    pub(crate) fn find_outside(&self, key: &OutsideKey) -> Option<u32> {
        self.outside.find(self.outside_hash(key), |index| self.get(index).outside_key() == *key)
    }

    /// Enters a flow whose five-tuples no other flow has, on either side: look first.
    ///
    /// # Errors
    /// When there are as many as there may be: nothing is evicted (RFC 6888 REQ-11d).
    pub(crate) fn insert(&mut self, new: &NewFlow, now: Instant) -> Result<u32, TableFull> {
        if self.outside.is_full() {
            return Err(TableFull);
        }
        let index = if self.free != 0 {
            let index = self.free;
            self.free = self.records[index as usize].port;
            index
        } else {
            // There are as many records as entries, so there is one left.
            self.untouched += 1;
            self.untouched - 1
        };
        let mut flow = Flow {
            internal: new.internal.word(),
            near: endpoint_word(new.near.0, new.near.1),
            life: if new.is_hairpin { HAIRPIN } else { 0 },
            external_address: new.external.0,
            far_address: new.far.0,
            external_port: new.external.1,
            far_port: new.far.1,
            created_s: (now.as_micros() / 1_000_000) as u32,
            tracker: SequenceTracker::default(),
            port: new.port,
            subscriber: new.subscriber,
        };
        flow.refresh(new.state, new.expires);
        let (inside, outside) = (flow.inside_key(), flow.outside_key());
        debug_assert!(self.find_inside(&inside).is_none(), "one flow for an inside five-tuple");
        debug_assert!(self.find_outside(&outside).is_none(), "one flow for an outside five-tuple");
        self.records[index as usize] = flow;
        self.inside.insert(self.inside_hash(&inside), index)?;
        self.outside.insert(self.outside_hash(&outside), index)?;
        Ok(index)
    }

    /// Takes a flow out. Its shared port and its subscriber are the caller's to settle.
    pub(crate) fn remove(&mut self, index: u32) {
        let flow = self.get(index);
        debug_assert!(flow.is_in_use(), "only a flow that is there is removed");
        let (inside, outside) = (self.inside_hash(&flow.inside_key()), self.outside_hash(&flow.outside_key()));
        let was_inside = self.inside.remove(inside, index);
        let was_outside = self.outside.remove(outside, index);
        debug_assert!(was_inside && was_outside, "every flow is in both tables");
        self.free_record(index);
    }

    fn free_record(&mut self, index: u32) {
        let free = self.free;
        let record = self.get_mut(index);
        record.internal = 0;
        record.port = free;
        self.free = index;
    }

    /// A flow is over, and its five-tuple outside rests until then. Its shared port and its subscriber are the caller's to settle.
    pub(crate) fn rest(&mut self, index: u32, until: Instant) {
        let flow = self.get(index);
        debug_assert!(flow.is_in_use(), "only a flow that is there can rest");
        let inside = self.inside_hash(&flow.inside_key());
        let was_inside = self.inside.remove(inside, index);
        debug_assert!(was_inside, "every flow is in both tables");
        let before = self.resting.1;
        let record = self.get_mut(index);
        record.internal = u64::from(record.protocol() as u8 | RESTS) << 56;
        record.refresh(TcpState::Transitory, until);
        (record.port, record.subscriber) = (0, before);
        match before {
            0 => self.resting.0 = index,
            before => self.get_mut(before).port = index,
        }
        self.resting.1 = index;
    }

    /// Takes out what rests. Who else knew of its five-tuple is the caller's to tell.
    pub(crate) fn end_rest(&mut self, index: u32) {
        let record = self.get(index);
        debug_assert!(record.rests(), "only what rests ceases to");
        let (before, after) = (record.subscriber, record.port);
        let outside = self.outside_hash(&record.outside_key());
        let was_outside = self.outside.remove(outside, index);
        debug_assert!(was_outside, "what rests is found from outside");
        match before {
            0 => self.resting.0 = after,
            before => self.get_mut(before).port = after,
        }
        match after {
            0 => self.resting.1 = before,
            after => self.get_mut(after).subscriber = before,
        }
        self.free_record(index);
    }
}
