//! Flows: endpoint-dependent translations, one for each remote endpoint (RFC 4787 §4.1, RFC 2663
//! §4.1.2 and §4.3).
//!
//! ```text
//!   from inside: hash(internal endpoint, remote endpoint as known inside) ─┐
//!                                                                          ├─→ one 64-byte record
//!   from outside: hash(external endpoint, remote endpoint as it is)       ─┘
//! ```
//!
//! Flows of any subscribers share an external endpoint. With twice NAT the two remote endpoints
//! differ.
//!
//! An ended flow may be *held down* (RFC 6888 REQ-8): found only from outside, so that no other
//! gets its five-tuple. If no record is free, the first held-down one is reused.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::random::KeyedHash;
use crate::state::mapping::InternalKey;
use crate::state::table::BucketTable;
use crate::state::table::TableFull;
use crate::state::tcp::SequenceTracker;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::ExternalEndpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use crate::types::Side;

#[cfg(test)]
mod tests;

const INSTANT_MAX: u64 = (1 << 48) - 1;
const PROTOCOL: u8 = 0b0000_0011;
const IN_USE: u8 = 1 << 2;
/// Bit in the top byte of `internal`: held down. [`IN_USE`] is not set then.
const HELD_DOWN: u8 = 1 << 7;

/// One cache line. What is compared or written together is one word, lowest field first:
///
/// ```text
///   internal       address 32 | port 16 | realm 8 | kind 8    as in a mapping; 0 in a free record,
///                                                             only the kind if held down
///   remote_inside  address 32 | port 16 | state 8 | filter generation 8
///   life           marks 16 | end 48
/// ```
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    internal: u64,
    remote_inside: u64,
    life: u64,
    external_address: u32,
    remote_outside_address: u32,
    external_port: u16,
    remote_outside_port: u16,
    created_s: u32,
    pub(crate) tracker: SequenceTracker,
    /// Shared port's record, or [`BY_FORWARD`] and the generation of targets. Links free and
    /// held-down records.
    pub(crate) port: u32,
    /// Links held-down records back.
    pub(crate) subscriber: u32,
}

const _: () = assert!(size_of::<Flow>() == 64, "one flow is one cache line");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InsideKey {
    internal: u64,
    remote_inside: u64,
}

impl InsideKey {
    #[inline]
    pub(crate) const fn new(internal: &InternalKey, remote_inside: RemoteInside) -> InsideKey {
        InsideKey { internal: internal.word(), remote_inside: word_of(remote_inside) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideKey {
    pub(crate) protocol: Protocol,
    pub(crate) external: ExternalEndpoint,
    pub(crate) remote_outside: RemoteOutside,
}

impl OutsideKey {
    #[inline]
    pub(crate) fn hash(&self, hash: &KeyedHash) -> u64 {
        let ports =
            u64::from(self.external.port) << 32 | u64::from(self.remote_outside.port) << 16 | self.protocol as u64;
        hash.hash(u64::from(self.external.address) << 32 | u64::from(self.remote_outside.address), ports)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFlow {
    pub(crate) internal: InternalKey,
    pub(crate) remote_inside: RemoteInside,
    pub(crate) remote_outside: RemoteOutside,
    pub(crate) external: ExternalEndpoint,
    pub(crate) state: TcpState,
    pub(crate) expires: Instant,
    pub(crate) port: u32,
    pub(crate) is_hairpin: bool,
    pub(crate) subscriber: u32,
}

const fn word_of(remote_inside: RemoteInside) -> u64 {
    remote_inside.address as u64 | (remote_inside.port as u64) << 32
}

/// In `port`: opened through a forward with several targets, without a shared port.
pub(crate) const BY_FORWARD: u32 = 1 << 31;
const HAIRPIN: u64 = 1;

const GENERATION_SHIFT: u32 = 56;
const ENDPOINT: u64 = (1 << 48) - 1;

impl Flow {
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.kind() & IN_USE != 0
    }

    #[inline]
    pub(crate) fn is_held_down(&self) -> bool {
        self.kind() & HELD_DOWN != 0
    }

    #[inline]
    fn kind(&self) -> u8 {
        (self.internal >> 56) as u8
    }

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

    #[inline]
    pub(crate) fn internal(&self) -> (HostNumber, u16) {
        (HostNumber(self.internal as u32), (self.internal >> 32) as u16)
    }

    #[inline]
    pub(crate) fn remote_inside(&self) -> RemoteInside {
        RemoteInside { address: self.remote_inside as u32, port: (self.remote_inside >> 32) as u16 }
    }

    #[inline]
    pub(crate) fn remote_outside(&self) -> RemoteOutside {
        RemoteOutside { address: self.remote_outside_address, port: self.remote_outside_port }
    }

    #[inline]
    pub(crate) fn external(&self) -> ExternalEndpoint {
        ExternalEndpoint { address: self.external_address, port: self.external_port }
    }

    /// The generation of targets, if the flow came through a forward.
    #[inline]
    pub(crate) fn generation(&self) -> Option<u32> {
        (self.port & BY_FORWARD != 0).then_some(self.port & !BY_FORWARD)
    }

    #[inline]
    pub(crate) fn opened_from(&self) -> Side {
        if self.generation().is_some() { Side::Outside } else { Side::Inside }
    }

    #[inline]
    pub(crate) fn is_hairpin(&self) -> bool {
        self.life & HAIRPIN != 0
    }

    pub(crate) fn is_twice(&self) -> bool {
        self.remote_inside().not_redirected() != self.remote_outside()
    }

    #[inline]
    pub(crate) fn state(&self) -> TcpState {
        TcpState::from_number((self.remote_inside >> 48) as u8).unwrap_or(TcpState::Transitory)
    }

    #[inline]
    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(self.life >> 16)
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    pub(crate) fn set_created(&mut self, now: Instant, age: Duration) {
        self.created_s = (now.as_micros().saturating_sub(age.as_micros()) / 1_000_000) as u32;
    }

    pub(crate) fn is_at_inside(&self, key: &InsideKey) -> bool {
        self.is_in_use() && self.inside_key() == *key
    }

    #[inline]
    pub(crate) fn refresh(&mut self, state: TcpState, expires: Instant) {
        self.remote_inside = self.remote_inside & !(0xff << 48) | (state as u64) << 48;
        self.life = expires.as_micros().min(INSTANT_MAX) << 16 | self.life & 0xffff;
    }

    /// Generation of filters that permits both directions; 0 for none.
    #[inline]
    pub(crate) fn filter_generation(&self) -> u8 {
        (self.remote_inside >> GENERATION_SHIFT) as u8
    }

    #[inline]
    pub(crate) fn set_filter_generation(&mut self, generation: u8) {
        self.remote_inside =
            self.remote_inside & !(0xff << GENERATION_SHIFT) | u64::from(generation) << GENERATION_SHIFT;
    }

    /// Whatever its generation of filters.
    #[inline(always)]
    pub(crate) fn is_steady_inside(&self, key: &InsideKey) -> bool {
        let remote_inside = key.remote_inside | (TcpState::Established as u64) << 48;
        let differs = (self.remote_inside ^ remote_inside) & !(0xff << GENERATION_SHIFT);
        ((self.internal ^ key.internal) | differs | self.life & HAIRPIN) == 0
    }

    /// As [`Flow::is_steady_inside`].
    #[inline(always)]
    pub(crate) fn is_steady_outside(&self, key: &OutsideKey) -> bool {
        let state = (self.remote_inside >> 48) as u8 == TcpState::Established as u8;
        self.is_in_use() && state && !self.is_hairpin() && self.outside_key() == *key
    }

    fn inside_key(&self) -> InsideKey {
        InsideKey { internal: self.internal, remote_inside: self.remote_inside & ENDPOINT }
    }

    pub(crate) fn outside_key(&self) -> OutsideKey {
        OutsideKey { protocol: self.protocol(), external: self.external(), remote_outside: self.remote_outside() }
    }
}

pub(crate) struct FlowStore {
    records: Arena<Flow>,
    inside: BucketTable,
    outside: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
    /// First and last held-down record, or 0.
    held_down: (u32, u32),
}

impl FlowStore {
    /// 81 bytes a flow.
    pub(crate) fn new(flows_max: u32, hash: KeyedHash) -> Result<FlowStore, ArenaError> {
        Ok(FlowStore {
            records: Arena::zeroed(flows_max as usize + 1)?,
            inside: BucketTable::with_capacity(flows_max as usize)?,
            outside: BucketTable::with_capacity(flows_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            held_down: (0, 0),
        })
    }

    pub(crate) fn needs(flows_max: u32) -> [Need; 3] {
        let table = BucketTable::need(flows_max as usize);
        [Arena::<Flow>::need(flows_max as usize + 1), table, table]
    }

    pub(crate) fn len(&self) -> usize {
        self.inside.len()
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// True if no record is free, and no held-down one is left to reuse.
    pub(crate) fn is_full(&self) -> bool {
        self.inside.is_full()
    }

    pub(crate) fn has_no_records(&self) -> bool {
        self.outside.is_empty()
    }

    /// The held-down record to end first, if no other is free.
    pub(crate) fn in_the_way(&self) -> Option<u32> {
        (self.outside.is_full() && self.held_down.0 != 0).then_some(self.held_down.0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes() + self.inside.bytes() + self.outside.bytes()
    }

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
        self.hash.hash(key.internal, key.remote_inside)
    }

    #[inline]
    pub(crate) fn outside_hash(&self, key: &OutsideKey) -> u64 {
        key.hash(&self.hash)
    }

    #[inline(always)]
    pub(crate) fn prefetch_table(&self, outside: bool, hash: u64) {
        if outside { self.outside.prefetch(hash) } else { self.inside.prefetch(hash) }
    }

    #[inline(always)]
    pub(crate) fn candidate(&self, outside: bool, hash: u64) -> u32 {
        let table = if outside { &self.outside } else { &self.inside };
        match table.candidate(hash) {
            (0, true) => table.first_candidate(hash).unwrap_or(0),
            (found, _) => found,
        }
    }

    #[inline(always)]
    pub(crate) fn prefetch_write(&self, index: u32) {
        self.records.prefetch_write(index as usize);
    }

    #[inline]
    pub(crate) fn find_inside(&self, key: &InsideKey) -> Option<u32> {
        self.inside.find(self.inside_hash(key), |index| self.get(index).inside_key() == *key)
    }

    #[inline]
    pub(crate) fn find_outside(&self, key: &OutsideKey) -> Option<u32> {
        self.outside.find(self.outside_hash(key), |index| self.get(index).outside_key() == *key)
    }

    /// The five-tuples must be new. A full table evicts nothing (RFC 6888 REQ-11d).
    pub(crate) fn insert(&mut self, new: &NewFlow, now: Instant) -> Result<u32, TableFull> {
        if self.outside.is_full() {
            return Err(TableFull);
        }
        let index = if self.free != 0 {
            let index = self.free;
            self.free = self.records[index as usize].port;
            index
        } else {
            self.untouched += 1;
            self.untouched - 1
        };
        let mut flow = Flow {
            internal: new.internal.word(),
            remote_inside: word_of(new.remote_inside),
            life: if new.is_hairpin { HAIRPIN } else { 0 },
            external_address: new.external.address,
            remote_outside_address: new.remote_outside.address,
            external_port: new.external.port,
            remote_outside_port: new.remote_outside.port,
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

    /// The caller settles port and subscriber.
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

    pub(crate) fn hold_down(&mut self, index: u32, until: Instant) {
        let flow = self.get(index);
        debug_assert!(flow.is_in_use(), "only a flow that is there can rest");
        let inside = self.inside_hash(&flow.inside_key());
        let was_inside = self.inside.remove(inside, index);
        debug_assert!(was_inside, "every flow is in both tables");
        let before = self.held_down.1;
        let record = self.get_mut(index);
        record.internal = u64::from(record.protocol() as u8 | HELD_DOWN) << 56;
        record.refresh(TcpState::Transitory, until);
        (record.port, record.subscriber) = (0, before);
        match before {
            0 => self.held_down.0 = index,
            before => self.get_mut(before).port = index,
        }
        self.held_down.1 = index;
    }

    /// The caller releases the claim among workers.
    pub(crate) fn end_hold_down(&mut self, index: u32) {
        let record = self.get(index);
        debug_assert!(record.is_held_down(), "only a held-down record is released");
        let (before, after) = (record.subscriber, record.port);
        let outside = self.outside_hash(&record.outside_key());
        let was_outside = self.outside.remove(outside, index);
        debug_assert!(was_outside, "a held-down record is found from outside");
        match before {
            0 => self.held_down.0 = after,
            before => self.get_mut(before).port = after,
        }
        match after {
            0 => self.held_down.1 = before,
            after => self.get_mut(after).subscriber = before,
        }
        self.free_record(index);
    }
}
