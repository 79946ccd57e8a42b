//! Mapping records: internal endpoint ↔ external endpoint of one protocol, and the first session.
//!
//! ```text
//!   outbound: hash(realm, protocol, internal address, port) → index ─┐
//!                                                                     ├─→ one 64-byte record
//!   inbound:  ports[external address][protocol][port]       → index ─┘      │ extra_head
//!                                                                           ▼
//!                                            further sessions of the mapping (module `session`)
//! ```
//!
//! An established packet touches two cold lines in either direction.

use core::hint::select_unpredictable;
use core::net::Ipv4Addr;
use core::ops::Range;

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use mem::prefetch_write;
use zerocopy::FromZeros;

use crate::state::tcp::SequenceTracker;
use crate::state::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

pub(crate) mod earliest_end;

use earliest_end::EarliestEnds;

const PROTOCOL: u8 = 0b0000_0011;
const IN_USE: u8 = 1 << 2;
/// A session ended early, so `expires` may be too late.
const EXPIRY_IS_BOUND: u8 = 1 << 3;
/// Ended, but its further sessions are not reclaimed yet.
const CONDEMNED: u8 = 1 << 4;

/// Creation was logged, so the end must be, too.
const RECORDED: u8 = 1 << 5;
/// Logged as static; the configuration may differ by the end.
const RECORDED_STATIC: u8 = 1 << 6;

/// A further session timed out, and was not closed.
const IDLED: u8 = 1 << 7;

const SESSION_PRESENT: u8 = 1 << 0;
const SESSION_FROM_OUTSIDE: u8 = 1 << 1;
/// The remote is an external endpoint of this instance.
const SESSION_HAIRPIN: u8 = 1 << 2;
/// From this bit on: generation of filters that permits both directions; 0 for none.
const SESSION_GENERATION_SHIFT: u32 = 3;

/// In the inline state: no short way, because the port has its own timer or a gateway.
const OWN_TIMER: u8 = 1 << 7;

const INSTANT_MAX: u64 = (1 << 48) - 1;

/// One cache line. What is compared or written together is one word, lowest field first:
///
/// ```text
///   internal  address 32 | port 16 | realm 8 | kind 8
///   remote    address 32 | port 16 | state 7 | own timer 1 | session flags 8
///   session   external port 16 | the first session's end 48
///   life      further sessions 16 | the mapping's end 48
/// ```
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Mapping {
    internal: u64,
    remote: u64,
    session: u64,
    life: u64,
    pub(crate) external_address: u32,
    created_s: u32,
    pub(crate) tracker: SequenceTracker,
    /// First further session, or 0. Links free records.
    pub(crate) extra_head: u32,
    pub(crate) subscriber: u32,
}

const _: () = assert!(size_of::<Mapping>() == 64, "one mapping is one cache line");

const INTERNAL_MASK: u64 = !(((EXPIRY_IS_BOUND | RECORDED | RECORDED_STATIC | IDLED) as u64) << 56);
/// Whichever side opened it.
const REMOTE_MASK: u64 = !((SESSION_FROM_OUTSIDE as u64) << 56);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InternalKey {
    pub(crate) realm: RealmId,
    pub(crate) protocol: Protocol,
    pub(crate) address: HostNumber,
    pub(crate) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRef {
    Inline,
    Extra(u32),
    Flow(u32),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) remote_address: u32,
    pub(crate) remote_port: u16,
    pub(crate) state: TcpState,
    pub(crate) opened_from: Side,
    pub(crate) hairpin: bool,
    pub(crate) has_own_timer: bool,
    pub(crate) expires: Instant,
}

impl NewSession {
    /// `remote` of a mapping.
    #[inline(always)]
    fn remote(&self) -> u64 {
        let flags = SESSION_PRESENT
            | if self.opened_from == Side::Outside { SESSION_FROM_OUTSIDE } else { 0 }
            | if self.hairpin { SESSION_HAIRPIN } else { 0 };
        let own_timer = if self.has_own_timer { OWN_TIMER } else { 0 };
        u64::from(self.remote_address)
            | u64::from(self.remote_port) << 32
            | u64::from(self.state as u8 | own_timer) << 48
            | u64::from(flags) << 56
    }
}

/// `remote` of an established session that is not hairpinned.
#[inline(always)]
pub(crate) const fn steady_remote(address: u32, port: u16, generation: u8) -> u64 {
    let flags = SESSION_PRESENT | generation << SESSION_GENERATION_SHIFT;
    address as u64 | (port as u64) << 32 | (TcpState::Established as u64) << 48 | (flags as u64) << 56
}

impl InternalKey {
    #[inline(always)]
    pub(crate) const fn word(&self) -> u64 {
        debug_assert!(self.realm.0 <= u8::MAX as u16, "a record has eight bits for the realm");
        self.address.0 as u64
            | (self.port as u64) << 32
            | (self.realm.0 as u8 as u64) << 48
            | ((self.protocol as u8 | IN_USE) as u64) << 56
    }

    /// The protocol is the last eight bits.
    #[inline(always)]
    pub(crate) const fn realm_and_protocol(word: u64) -> u64 {
        (((word >> 48) as u16).swap_bytes() & (0xff00 | PROTOCOL as u16)) as u64
    }

    #[inline(always)]
    pub(crate) const fn port_and_address(word: u64) -> u64 {
        word & 0xffff_ffff_ffff
    }
}

#[inline(always)]
fn micros48(at: Instant) -> u64 {
    at.as_micros().min(INSTANT_MAX)
}

impl Mapping {
    #[inline]
    fn kind(&self) -> u8 {
        (self.internal >> 56) as u8
    }

    #[inline]
    fn set_kind(&mut self, kind: u8) {
        self.internal = self.internal & !(0xff << 56) | u64::from(kind) << 56;
    }

    #[inline]
    fn session_flags(&self) -> u8 {
        (self.remote >> 56) as u8
    }

    #[inline]
    pub(crate) fn internal_address(&self) -> HostNumber {
        HostNumber(self.internal as u32)
    }

    #[inline(always)]
    pub(crate) fn realm(&self) -> RealmId {
        RealmId((self.internal >> 48) as u16 & 0xff)
    }

    #[inline]
    pub(crate) fn internal_port(&self) -> u16 {
        (self.internal >> 32) as u16
    }

    #[inline]
    pub(crate) fn external_port(&self) -> u16 {
        self.session as u16
    }

    #[inline]
    pub(crate) fn remote_address(&self) -> u32 {
        self.remote as u32
    }

    #[inline]
    pub(crate) fn remote_port(&self) -> u16 {
        (self.remote >> 32) as u16
    }

    #[inline]
    pub(crate) fn extra_count(&self) -> u16 {
        self.life as u16
    }

    pub(crate) fn set_extra_count(&mut self, count: u16) {
        self.life = self.life & !0xffff | u64::from(count);
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.kind() & IN_USE != 0
    }

    pub(crate) fn is_condemned(&self) -> bool {
        self.kind() & CONDEMNED != 0
    }

    pub(crate) fn condemn(&mut self) {
        self.set_kind(CONDEMNED);
    }

    #[inline]
    pub(crate) fn set_recorded(&mut self, is_static: bool) {
        self.set_kind(self.kind() | RECORDED | if is_static { RECORDED_STATIC } else { 0 });
    }

    pub(crate) fn clear_recorded(&mut self) {
        self.set_kind(self.kind() & !(RECORDED | RECORDED_STATIC));
    }

    #[inline]
    pub(crate) fn is_recorded_static(&self) -> bool {
        self.kind() & RECORDED_STATIC != 0
    }

    #[inline]
    pub(crate) fn is_recorded(&self) -> bool {
        self.kind() & RECORDED != 0
    }

    pub(crate) fn set_idled(&mut self) {
        self.set_kind(self.kind() | IDLED);
    }

    pub(crate) fn has_idled(&self) -> bool {
        self.kind() & IDLED != 0
    }

    /// May be wrong if `expiry_is_bound`.
    #[inline]
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        self.is_in_use() && now < self.expires()
    }

    /// True if free or certainly alive, from the record alone.
    #[inline(always)]
    pub(crate) fn is_settled(&self, now: Instant) -> bool {
        let kind = self.kind();
        (kind & IN_USE == 0) | ((kind & EXPIRY_IS_BOUND == 0) & (now < self.expires()))
    }

    #[inline]
    pub(crate) fn matches(&self, internal: u64) -> bool {
        (self.internal ^ internal) & INTERNAL_MASK == 0
    }

    /// Zero for this [`InternalKey::word`] and [`steady_remote`].
    #[inline(always)]
    pub(crate) fn differs_outbound(&self, internal: u64, remote: u64) -> u64 {
        (self.internal ^ internal) & INTERNAL_MASK | (self.remote ^ remote) & REMOTE_MASK
    }

    /// Zero for this external endpoint and [`steady_remote`].
    #[inline(always)]
    pub(crate) fn differs_inbound(&self, protocol: u8, address: u32, port: u16, remote: u64) -> u64 {
        let kind = (self.internal >> 56) as u8 & (PROTOCOL | IN_USE) ^ (protocol | IN_USE);
        let external = u64::from(self.external_address ^ address) | u64::from(self.session as u16 ^ port);
        external | u64::from(kind) | (self.remote ^ remote) & REMOTE_MASK
    }

    /// In use, with this external endpoint.
    pub(crate) fn is_at_outside(&self, protocol: u8, address: u32, port: u16) -> bool {
        self.kind() & (PROTOCOL | IN_USE) == protocol | IN_USE
            && (self.external_address, self.external_port()) == (address, port)
    }

    #[inline]
    pub(crate) fn protocol(&self) -> Protocol {
        match self.kind() & PROTOCOL {
            0 => Protocol::Udp,
            1 => Protocol::Tcp,
            _ => Protocol::Icmp,
        }
    }

    pub(crate) fn key(&self) -> InternalKey {
        InternalKey {
            realm: self.realm(),
            protocol: self.protocol(),
            address: self.internal_address(),
            port: self.internal_port(),
        }
    }

    pub(crate) fn internal(&self) -> Endpoint {
        Endpoint::new(self.internal_address().into(), self.internal_port())
    }

    pub(crate) fn external(&self) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(self.external_address), self.external_port())
    }

    #[inline]
    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(self.life >> 16)
    }

    #[inline]
    pub(crate) fn set_expires(&mut self, at: Instant) {
        self.life = micros48(at) << 16 | self.life & 0xffff;
    }

    #[inline]
    pub(crate) fn session_expires(&self) -> Instant {
        Instant::from_micros(self.session >> 16)
    }

    #[inline]
    fn set_session_expires(&mut self, at: Instant) {
        self.session = micros48(at) << 16 | self.session & 0xffff;
    }

    pub(crate) fn set_created(&mut self, now: Instant, age: Duration) {
        self.created_s = (now.as_micros().saturating_sub(age.as_micros()) / 1_000_000) as u32;
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    pub(crate) fn expiry_is_bound(&self) -> bool {
        self.kind() & EXPIRY_IS_BOUND != 0
    }

    #[inline]
    pub(crate) fn has_live_session(&self, now: Instant) -> bool {
        self.has_session() && now < self.session_expires()
    }

    #[inline]
    pub(crate) fn has_session(&self) -> bool {
        self.session_flags() & SESSION_PRESENT != 0
    }

    #[inline]
    pub(crate) fn session_matches(&self, remote_address: u32, remote_port: u16, now: Instant) -> bool {
        let wanted = u64::from(remote_address) | u64::from(remote_port) << 32;
        self.remote & 0xffff_ffff_ffff == wanted && self.has_live_session(now)
    }

    #[inline]
    pub(crate) fn state(&self) -> TcpState {
        TcpState::from_number((self.remote >> 48) as u8 & !OWN_TIMER).unwrap_or(TcpState::Transitory)
    }

    #[inline]
    pub(crate) fn has_own_timer(&self) -> bool {
        (self.remote >> 48) as u8 & OWN_TIMER != 0
    }

    /// Call it when ports' timers change.
    pub(crate) fn set_own_timer(&mut self, has_own_timer: bool) {
        let bit = u64::from(OWN_TIMER) << 48;
        self.remote = if has_own_timer { self.remote | bit } else { self.remote & !bit };
    }

    #[inline]
    pub(crate) fn set_state(&mut self, state: TcpState) {
        self.remote = self.remote & !(u64::from(!OWN_TIMER) << 48) | (state as u64) << 48;
    }

    #[inline]
    pub(crate) fn refresh_session(&mut self, state: TcpState, expires: Instant) {
        self.set_state(state);
        self.extend_session(expires);
    }

    #[inline(always)]
    pub(crate) fn extend_session(&mut self, expires: Instant) {
        if self.extra_count() == 0 {
            self.life = micros48(expires) << 16;
        } else {
            self.extend_to(expires, expires < self.session_expires());
        }
        self.set_session_expires(expires);
    }

    /// The caller adjusts the mapping.
    pub(crate) fn shorten_session(&mut self, expires: Instant) {
        self.set_session_expires(expires);
    }

    /// [`Mapping::extend_session`] if `extends`, branchless.
    #[inline(always)]
    pub(crate) fn extend_session_if(&mut self, extends: bool, expires: Instant) {
        let end = micros48(expires) << 16;
        if self.extra_count() == 0 {
            self.life = select_unpredictable(extends, end, self.life);
        } else if extends {
            self.extend_to(expires, expires < self.session_expires());
        }
        self.session = select_unpredictable(extends, end | self.session & 0xffff, self.session);
    }

    /// `shortened`: a session's end is earlier than before.
    pub(crate) fn extend_to(&mut self, expires: Instant, shortened: bool) {
        if shortened {
            self.set_kind(self.kind() | EXPIRY_IS_BOUND);
        }
        if expires > self.expires() {
            self.set_expires(expires);
        }
    }

    #[inline(always)]
    pub(crate) fn set_inline_session(&mut self, new: &NewSession) {
        self.remote = new.remote();
        self.tracker = SequenceTracker::default();
        self.set_session_expires(new.expires);
        self.extend_to(new.expires, false);
    }

    pub(crate) fn clear_inline_session(&mut self) {
        self.remote &= !(0xff << 56);
        self.set_session_expires(Instant::ORIGIN);
    }

    #[inline]
    pub(crate) fn session_generation(&self) -> u8 {
        self.session_flags() >> SESSION_GENERATION_SHIFT
    }

    #[inline]
    pub(crate) fn set_session_generation(&mut self, generation: u8) {
        let flags =
            self.session_flags() & ((1 << SESSION_GENERATION_SHIFT) - 1) | generation << SESSION_GENERATION_SHIFT;
        self.remote = self.remote & !(0xff << 56) | u64::from(flags) << 56;
    }

    #[inline]
    pub(crate) fn session_is_hairpin(&self) -> bool {
        self.session_flags() & SESSION_HAIRPIN != 0
    }

    pub(crate) fn session_opened_from(&self) -> Side {
        if self.session_flags() & SESSION_FROM_OUTSIDE != 0 { Side::Outside } else { Side::Inside }
    }
}

pub(crate) struct MappingStore {
    records: Arena<Mapping>,
    earliest_ends: EarliestEnds,
    free: u32,
    untouched: u32,
    len: u32,
}

impl MappingStore {
    pub(crate) fn new(mappings_max: u32) -> Result<MappingStore, ArenaError> {
        let records = Arena::zeroed(mappings_max as usize + 1)?;
        let earliest_ends = EarliestEnds::new(records.len())?;
        Ok(MappingStore { records, earliest_ends, free: 0, untouched: 1, len: 0 })
    }

    pub(crate) fn needs(mappings_max: u32) -> [Need; 2] {
        let records = mappings_max as usize + 1;
        [Arena::<Mapping>::need(records), EarliestEnds::need(records)]
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len()
    }

    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.len as usize + count < self.records.len()
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * size_of::<Mapping>() + self.earliest_ends.bytes()
    }

    /// Call it when a mapping may end at this time, which may be earlier than before.
    #[inline(always)]
    pub(crate) fn note_end(&mut self, index: u32, end: Instant) {
        self.earliest_ends.note(index, end);
    }

    /// True if a mapping of the group may have ended.
    #[inline]
    pub(crate) fn is_due(&self, group: u32, now: Instant) -> bool {
        self.earliest_ends.is_due(group, now)
    }

    /// After the ended mappings of the group were found.
    pub(crate) fn settle_group(&mut self, group: u32, now: Instant) {
        let records = EarliestEnds::records(group, self.untouched);
        let records = self.records.get(records.start as usize..records.end as usize).unwrap_or_default();
        let in_use = records.iter().filter(|record| record.is_in_use());
        let ends = in_use.map(|record| record.is_settled(now).then(|| record.expires()));
        self.earliest_ends.set(group, now, ends);
    }

    #[inline(always)]
    pub(crate) fn prefetch_write(&self, index: u32) {
        self.records.prefetch_write(index as usize);
    }

    /// Each insertion prefetches the next.
    #[inline]
    pub(crate) fn prefetch_free(&self, count: u32) {
        if self.free != 0 {
            self.prefetch_write(self.free);
            return;
        }
        for index in self.untouched..self.untouched.saturating_add(count) {
            self.prefetch_write(index);
        }
    }

    #[inline]
    pub(crate) fn prefetch_range(&self, range: Range<u32>) {
        let last = self.records.len();
        let (first, end) = ((range.start as usize).min(last), (range.end as usize).min(last));
        for record in &self.records[first..end] {
            prefetch_write(record);
        }
    }

    #[inline]
    pub(crate) fn next_unsettled(&self, range: Range<u32>, now: Instant) -> Option<u32> {
        let records = self.records.get(range.start as usize..range.end as usize)?;
        records.iter().position(|record| !record.is_settled(now)).map(|offset| range.start + offset as u32)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Mapping {
        &self.records[index as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Mapping {
        &mut self.records[index as usize]
    }

    /// Nothing is evicted (RFC 6888 REQ-11d).
    #[inline(always)]
    pub(crate) fn insert(
        &mut self,
        key: &InternalKey,
        subscriber: u32,
        external: Endpoint,
        now: Instant,
        session: &NewSession,
    ) -> Option<MappingIndex> {
        let index = if self.free != 0 {
            let index = self.free;
            self.free = self.records[index as usize].extra_head;
            self.prefetch_write(self.free);
            index
        } else if (self.untouched as usize) < self.records.len() {
            self.earliest_ends.note_untouched(self.untouched);
            self.untouched += 1;
            self.untouched - 1
        } else {
            return None;
        };
        let end = micros48(session.expires) << 16;
        self.records[index as usize] = Mapping {
            internal: key.word(),
            remote: session.remote(),
            session: end | u64::from(external.port),
            life: end,
            external_address: external.address.to_bits(),
            created_s: (now.as_micros() / 1_000_000) as u32,
            tracker: SequenceTracker::default(),
            extra_head: 0,
            subscriber,
        };
        self.earliest_ends.note(index, session.expires);
        self.len += 1;
        Some(MappingIndex(index))
    }

    pub(crate) fn remove(&mut self, index: u32) {
        let free = self.free;
        let record = &mut self.records[index as usize];
        debug_assert!(record.kind() & !PROTOCOL != 0 && record.extra_count() == 0, "sessions go before their mapping");
        record.internal = 0;
        record.remote = 0;
        record.extra_head = free;
        self.free = index;
        self.len -= 1;
    }
}
