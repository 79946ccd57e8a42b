//! Mapping records: internal endpoint ↔ external endpoint of one protocol, with the first session inline.
//!
//! ```text
//!   outbound: hash(realm, protocol, internal address, port) → index ─┐
//!                                                                     ├─→ one 64-byte record
//!   inbound:  ports[external address][protocol][port]       → index ─┘      │ extra_head
//!                                                                           ▼
//!                                            further sessions of the mapping (module `session`)
//! ```
//!
//! One record is one cache line, so that an established packet touches two cold lines in either
//! direction: the table's and this one. Records hold indices, never pointers.

use core::net::Ipv4Addr;

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::tcp::SequenceTracker;
use crate::tcp::TcpState;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::MappingIndex;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

/// The record holds a mapping.
const IN_USE: u8 = 1 << 0;
/// Some session's life was cut short, so `expires` may be later than the last session's end.
const EXPIRY_IS_BOUND: u8 = 1 << 1;

/// The mapping has ended; the record waits for its further sessions to be reclaimed.
const CONDEMNED: u8 = 1 << 2;

/// The inline slot holds a session.
const SESSION_PRESENT: u8 = 1 << 0;
/// The session was opened from outside.
const SESSION_FROM_OUTSIDE: u8 = 1 << 1;
/// The remote endpoint is an external endpoint of Natrix: the session is hairpinned.
const SESSION_HAIRPIN: u8 = 1 << 2;

/// Instants inside records have 48 bits: 8.9 years of microseconds.
const INSTANT_MAX: u64 = (1 << 48) - 1;

/// One mapping and its first session; exactly one cache line. The fields an established packet
/// needs in either direction are all here.
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Mapping {
    pub(crate) internal_address: u32,
    pub(crate) external_address: u32,
    pub(crate) internal_port: u16,
    pub(crate) external_port: u16,
    realm: u16,
    protocol: u8,
    flags: u8,

    pub(crate) remote_address: u32,
    pub(crate) remote_port: u16,
    state: u8,
    session_flags: u8,

    session_expires_low: u32,
    expires_low: u32,
    session_expires_high: u16,
    expires_high: u16,
    created_s: u32,

    pub(crate) tracker: SequenceTracker,

    /// First further session, 0 for none; in a free record the next free one.
    pub(crate) extra_head: u32,
    /// Number of further sessions.
    pub(crate) extra_count: u16,
    _reserved: u16,
}

const _: () = assert!(size_of::<Mapping>() == 64, "one mapping is one cache line");

/// What a mapping is looked up by from inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InternalKey {
    pub(crate) realm: RealmId,
    pub(crate) protocol: Protocol,
    pub(crate) address: u32,
    pub(crate) port: u16,
}

/// Which session of a mapping is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionRef {
    /// The one inside the mapping record.
    Inline,
    /// A record of the session table.
    Extra(u32),
}

/// The values a new session starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) remote_address: u32,
    pub(crate) remote_port: u16,
    pub(crate) state: TcpState,
    pub(crate) opened_from: Side,
    pub(crate) hairpin: bool,
    pub(crate) expires: Instant,
}

impl Mapping {
    pub(crate) fn is_in_use(&self) -> bool {
        self.flags & IN_USE != 0
    }

    /// Ended, and waiting for its further sessions to be reclaimed.
    pub(crate) fn is_condemned(&self) -> bool {
        self.flags & CONDEMNED != 0
    }

    /// Marks the mapping as ended while it still has further sessions.
    pub(crate) fn condemn(&mut self) {
        self.flags = CONDEMNED;
    }

    /// In use and not out of date (or, while `expiry_is_bound`, perhaps out of date).
    #[inline]
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        self.is_in_use() && now < self.expires()
    }

    #[inline]
    pub(crate) fn matches(&self, key: &InternalKey) -> bool {
        self.internal_address == key.address
            && self.internal_port == key.port
            && self.protocol == key.protocol as u8
            && self.realm == key.realm.0
            && self.is_in_use()
    }

    #[inline]
    pub(crate) fn protocol(&self) -> Protocol {
        match self.protocol {
            0 => Protocol::Udp,
            1 => Protocol::Tcp,
            _ => Protocol::Icmp,
        }
    }

    pub(crate) fn key(&self) -> InternalKey {
        InternalKey {
            realm: RealmId(self.realm),
            protocol: self.protocol(),
            address: self.internal_address,
            port: self.internal_port,
        }
    }

    pub(crate) fn internal(&self) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(self.internal_address), self.internal_port)
    }

    pub(crate) fn external(&self) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(self.external_address), self.external_port)
    }

    #[inline]
    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(u64::from(self.expires_low) | u64::from(self.expires_high) << 32)
    }

    #[inline]
    pub(crate) fn set_expires(&mut self, at: Instant) {
        let micros = at.as_micros().min(INSTANT_MAX);
        self.expires_low = micros as u32;
        self.expires_high = (micros >> 32) as u16;
    }

    #[inline]
    pub(crate) fn session_expires(&self) -> Instant {
        Instant::from_micros(u64::from(self.session_expires_low) | u64::from(self.session_expires_high) << 32)
    }

    #[inline]
    fn set_session_expires(&mut self, at: Instant) {
        let micros = at.as_micros().min(INSTANT_MAX);
        self.session_expires_low = micros as u32;
        self.session_expires_high = (micros >> 32) as u16;
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    /// Whether `expires` is only an upper bound: some session ended early while others exist.
    pub(crate) fn expiry_is_bound(&self) -> bool {
        self.flags & EXPIRY_IS_BOUND != 0
    }

    /// The inline session exists and is not out of date.
    #[inline]
    pub(crate) fn has_live_session(&self, now: Instant) -> bool {
        self.session_flags & SESSION_PRESENT != 0 && now < self.session_expires()
    }

    pub(crate) fn has_session(&self) -> bool {
        self.session_flags & SESSION_PRESENT != 0
    }

    #[inline]
    pub(crate) fn session_matches(&self, remote_address: u32, remote_port: u16, now: Instant) -> bool {
        self.remote_address == remote_address && self.remote_port == remote_port && self.has_live_session(now)
    }

    #[inline]
    pub(crate) fn state(&self) -> TcpState {
        TcpState::from_number(self.state).unwrap_or(TcpState::Transitory)
    }

    /// Gives the inline session a new state and end. The mapping lives at least as long.
    #[inline]
    pub(crate) fn refresh_session(&mut self, state: TcpState, expires: Instant) {
        let shortened = expires < self.session_expires();
        self.state = state as u8;
        self.set_session_expires(expires);
        if self.extra_count == 0 {
            // The only session: the mapping ends with it.
            self.set_expires(expires);
        } else {
            self.extend_to(expires, shortened);
        }
    }

    /// Takes notice that a session now ends at `expires`; `shortened` when it would have ended later before.
    pub(crate) fn extend_to(&mut self, expires: Instant, shortened: bool) {
        if shortened {
            self.flags |= EXPIRY_IS_BOUND;
        }
        if expires > self.expires() {
            self.set_expires(expires);
        }
    }

    pub(crate) fn set_inline_session(&mut self, new: &NewSession) {
        self.remote_address = new.remote_address;
        self.remote_port = new.remote_port;
        self.state = new.state as u8;
        self.session_flags = SESSION_PRESENT
            | if new.opened_from == Side::Outside { SESSION_FROM_OUTSIDE } else { 0 }
            | if new.hairpin { SESSION_HAIRPIN } else { 0 };
        self.tracker = SequenceTracker::default();
        self.set_session_expires(new.expires);
        self.extend_to(new.expires, false);
    }

    pub(crate) fn clear_inline_session(&mut self) {
        self.session_flags = 0;
        self.set_session_expires(Instant::ORIGIN);
    }

    #[inline]
    pub(crate) fn session_is_hairpin(&self) -> bool {
        self.session_flags & SESSION_HAIRPIN != 0
    }

    pub(crate) fn session_opened_from(&self) -> Side {
        if self.session_flags & SESSION_FROM_OUTSIDE != 0 { Side::Outside } else { Side::Inside }
    }
}

/// The mapping records of one shard and their free list.
pub(crate) struct MappingStore {
    records: Arena<Mapping>,
    /// Head of the free list, 0 when empty.
    free: u32,
    /// Records never used yet start here.
    untouched: u32,
    len: u32,
}

impl MappingStore {
    /// Room for `mappings_max` records.
    pub(crate) fn new(mappings_max: u32) -> Result<MappingStore, ArenaError> {
        // Index 0 means "none" in every table, so the first record stays unused.
        let records = Arena::zeroed(mappings_max as usize + 1)?;
        Ok(MappingStore { records, free: 0, untouched: 1, len: 0 })
    }

    /// The memory `new` is going to take.
    pub(crate) fn need(mappings_max: u32) -> Need {
        Arena::<Mapping>::need(mappings_max as usize + 1)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len()
    }

    /// One past the highest record ever used: what a walk over all mappings has to visit.
    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * size_of::<Mapping>()
    }

    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        self.records.prefetch(index as usize);
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> &Mapping {
        &self.records[index as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Mapping {
        &mut self.records[index as usize]
    }

    /// Takes a free record and fills it. None when the table is full: nothing is evicted (RFC 6888 REQ-11d).
    pub(crate) fn insert(&mut self, key: &InternalKey, external: Endpoint, now: Instant) -> Option<MappingIndex> {
        let index = if self.free != 0 {
            let index = self.free;
            self.free = self.records[index as usize].extra_head;
            index
        } else if (self.untouched as usize) < self.records.len() {
            self.untouched += 1;
            self.untouched - 1
        } else {
            return None;
        };
        let record = &mut self.records[index as usize];
        record.internal_address = key.address;
        record.internal_port = key.port;
        record.external_address = external.address.to_bits();
        record.external_port = external.port;
        record.realm = key.realm.0;
        record.protocol = key.protocol as u8;
        record.flags = IN_USE;
        record.session_flags = 0;
        record.created_s = (now.as_micros() / 1_000_000) as u32;
        record.extra_head = 0;
        record.extra_count = 0;
        record.set_session_expires(Instant::ORIGIN);
        record.set_expires(Instant::ORIGIN);
        self.len += 1;
        Some(MappingIndex(index))
    }

    /// Gives the record back. Its sessions must be gone already.
    pub(crate) fn remove(&mut self, index: u32) {
        let free = self.free;
        let record = &mut self.records[index as usize];
        debug_assert!(record.flags != 0 && record.extra_count == 0, "sessions go before their mapping");
        record.flags = 0;
        record.session_flags = 0;
        record.extra_head = free;
        self.free = index;
        self.len -= 1;
    }
}
