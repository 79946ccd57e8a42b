//! Sessions beyond the first of their mapping, chained per mapping.
//!
//! Hashed by mapping and remote endpoint; with address-dependent filtering without the port, so
//! that "may this address send here?" is one lookup, too.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::random::KeyedHash;
use crate::state::grant::HOLD_REMOTE;
use crate::state::mapping::Mapping;
use crate::state::mapping::MappingStore;
use crate::state::mapping::NewSession;
use crate::state::table::BucketTable;
use crate::state::tcp::SequenceTracker;
use crate::state::tcp::TcpState;
use crate::time::Instant;
use crate::types::Side;
use crate::upkeep::looked_over::LookedOver;

const HASHED_BY_ADDRESS: u8 = 1 << 0;
const FROM_OUTSIDE: u8 = 1 << 1;
const HAIRPIN: u8 = 1 << 2;
/// From this bit on: generation of filters that permits both directions; 0 for none.
const GENERATION_SHIFT: u32 = 3;

#[derive(FromZeros)]
#[repr(C, align(16))]
pub(crate) struct Session {
    /// 0 in a free record.
    pub(crate) mapping: u32,
    pub(crate) next: u32,
    previous: u32,
    pub(crate) remote_address: u32,
    pub(crate) remote_port: u16,
    state: u8,
    flags: u8,
    created_s: u32,
    expires: u64,
    pub(crate) tracker: SequenceTracker,
}

const _: () = assert!(size_of::<Session>() <= 64, "a session is at most one cache line");

impl Session {
    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        self.mapping != 0 && now < self.expires()
    }

    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(self.expires)
    }

    pub(crate) fn state(&self) -> TcpState {
        TcpState::from_number(self.state).unwrap_or(TcpState::Transitory)
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    pub(crate) fn is_hairpin(&self) -> bool {
        self.flags & HAIRPIN != 0
    }

    pub(crate) fn opened_from(&self) -> Side {
        if self.flags & FROM_OUTSIDE != 0 { Side::Outside } else { Side::Inside }
    }

    pub(crate) fn is_hold(&self) -> bool {
        self.remote_address == HOLD_REMOTE
    }

    pub(crate) fn filter_generation(&self) -> u8 {
        self.flags >> GENERATION_SHIFT
    }

    pub(crate) fn set_filter_generation(&mut self, generation: u8) {
        self.flags = self.flags & ((1 << GENERATION_SHIFT) - 1) | generation << GENERATION_SHIFT;
    }

    fn hashed_by(&self) -> HashedBy {
        if self.flags & HASHED_BY_ADDRESS != 0 { HashedBy::Address } else { HashedBy::Endpoint }
    }

    pub(crate) fn set_state(&mut self, state: TcpState) {
        self.state = state as u8;
    }

    pub(crate) fn refresh(&mut self, state: TcpState, expires: Instant) -> bool {
        let shortened = expires.as_micros() < self.expires;
        self.set_state(state);
        self.expires = expires.as_micros();
        shortened
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashedBy {
    Endpoint,
    /// By mapping and address, for address-dependent filtering.
    Address,
}

impl HashedBy {
    const fn other(self) -> HashedBy {
        match self {
            HashedBy::Endpoint => HashedBy::Address,
            HashedBy::Address => HashedBy::Endpoint,
        }
    }
}

pub(crate) struct SessionStore {
    records: Arena<Session>,
    table: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
    /// Records to rehash after pools changed how they hash.
    unsure: LookedOver,
}

/// Sessions of a mapping searched during a rehash.
const LOOKED_AT_MAX: usize = 64;

impl SessionStore {
    pub(crate) fn new(sessions_max: u32, hash: KeyedHash) -> Result<SessionStore, ArenaError> {
        Ok(SessionStore {
            records: Arena::zeroed(sessions_max as usize + 1)?,
            table: BucketTable::with_capacity(sessions_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            unsure: LookedOver::default(),
        })
    }

    pub(crate) fn needs(sessions_max: u32) -> [Need; 2] {
        [Arena::<Session>::need(sessions_max as usize + 1), BucketTable::need(sessions_max as usize)]
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * size_of::<Session>() + self.table.bytes()
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn get(&self, index: u32) -> &Session {
        &self.records[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Session {
        &mut self.records[index as usize]
    }

    fn hash_of(&self, mapping: u32, remote_address: u32, remote_port: u16, by: HashedBy) -> u64 {
        let port = match by {
            HashedBy::Endpoint => u64::from(remote_port),
            HashedBy::Address => 1 << 16,
        };
        self.hash.hash(u64::from(mapping) << 32 | u64::from(remote_address), port)
    }

    /// Call [`SessionStore::rehash`] for every record afterwards.
    pub(crate) fn hash_anew(&mut self) {
        self.unsure = LookedOver::all_before(self.untouched);
    }

    #[inline]
    pub(crate) fn is_unsure(&self) -> bool {
        self.unsure.is_due()
    }

    pub(crate) fn rehash(&mut self, slot: u32, by: Option<HashedBy>) {
        self.unsure.passed(slot..slot + 1);
        let record = &self.records[slot as usize];
        let Some(by) = by.filter(|by| record.mapping != 0 && *by != record.hashed_by()) else { return };
        let (index, address, port, before) =
            (record.mapping, record.remote_address, record.remote_port, record.hashed_by());
        let (old, new) = (self.hash_of(index, address, port, before), self.hash_of(index, address, port, by));
        self.table.remove(old, slot);
        let entered = self.table.insert(new, slot);
        debug_assert!(entered.is_ok(), "one place was just given up");
        self.records[slot as usize].flags ^= HASHED_BY_ADDRESS;
    }

    #[inline]
    pub(crate) fn find(&self, mapping: u32, address: u32, port: u16, by: HashedBy, now: Instant) -> Option<u32> {
        let found = self.find_by(mapping, address, port, by, now);
        if found.is_none() && self.is_unsure() {
            return self.find_by(mapping, address, port, by.other(), now);
        }
        found
    }

    fn find_by(&self, mapping: u32, address: u32, port: u16, by: HashedBy, now: Instant) -> Option<u32> {
        let hash = self.hash_of(mapping, address, port, by);
        self.table.find(hash, |index| {
            let session = &self.records[index as usize];
            session.mapping == mapping
                && session.remote_address == address
                && session.remote_port == port
                && now < session.expires()
        })
    }

    /// True if a live session has this remote address; only for sessions hashed by address.
    pub(crate) fn has_address(&self, mapping: u32, head: u32, address: u32, now: Instant) -> bool {
        if self.is_unsure() && self.chain_has_address(head, address, now) {
            return true;
        }
        let hash = self.hash_of(mapping, address, 0, HashedBy::Address);
        self.table
            .find(hash, |index| {
                let session = &self.records[index as usize];
                session.mapping == mapping && session.remote_address == address && now < session.expires()
            })
            .is_some()
    }

    #[cold]
    fn chain_has_address(&self, head: u32, address: u32, now: Instant) -> bool {
        let mut slot = head;
        for _ in 0..LOOKED_AT_MAX {
            if slot == 0 {
                break;
            }
            let session = self.get(slot);
            if session.remote_address == address && session.is_alive(now) {
                return true;
            }
            slot = session.next;
        }
        false
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len() || self.table.is_full()
    }

    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.table.len() + count <= self.table.capacity()
    }

    /// `None` if full: nothing is evicted.
    pub(crate) fn insert(
        &mut self,
        index: u32,
        mapping: &mut Mapping,
        new: &NewSession,
        by: HashedBy,
        now: Instant,
    ) -> Option<u32> {
        let slot = if self.free != 0 {
            self.free
        } else if (self.untouched as usize) < self.records.len() {
            self.untouched
        } else {
            return None;
        };
        let hash = self.hash_of(index, new.remote_address, new.remote_port, by);
        self.table.insert(hash, slot).ok()?;
        if slot == self.free {
            self.free = self.records[slot as usize].next;
        } else {
            self.untouched += 1;
        }
        let head = mapping.extra_head;
        if head != 0 {
            self.records[head as usize].previous = slot;
        }
        self.records[slot as usize] = Session {
            mapping: index,
            next: head,
            previous: 0,
            remote_address: new.remote_address,
            remote_port: new.remote_port,
            state: new.state as u8,
            flags: if new.opened_from == Side::Outside { FROM_OUTSIDE } else { 0 }
                | if new.hairpin { HAIRPIN } else { 0 }
                | if by == HashedBy::Address { HASHED_BY_ADDRESS } else { 0 },
            created_s: (now.as_micros() / 1_000_000) as u32,
            expires: new.expires.as_micros(),
            tracker: SequenceTracker::default(),
        };
        mapping.extra_head = slot;
        mapping.set_extra_count(mapping.extra_count() + 1);
        mapping.extend_to(new.expires, false);
        Some(slot)
    }

    pub(crate) fn remove(&mut self, slot: u32, mappings: &mut MappingStore) {
        let record = &self.records[slot as usize];
        let (index, next, previous) = (record.mapping, record.next, record.previous);
        let by = record.hashed_by();
        let hash = self.hash_of(index, record.remote_address, record.remote_port, by);
        let was_there = self.table.remove(hash, slot);
        debug_assert!(was_there, "every session is in the table");
        if next != 0 {
            self.records[next as usize].previous = previous;
        }
        let mapping = mappings.get_mut(index);
        if previous != 0 {
            self.records[previous as usize].next = next;
        } else {
            mapping.extra_head = next;
        }
        mapping.set_extra_count(mapping.extra_count() - 1);
        let free = self.free;
        let record = &mut self.records[slot as usize];
        record.mapping = 0;
        record.next = free;
        self.free = slot;
    }
}
