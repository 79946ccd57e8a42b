//! Control sessions of application-level gateways: a side table of fixed size.
//!
//! A session is found by its mapping and remote endpoint. It takes the long way because its record
//! says so, by the bit of ports with their own timer (`state/mapping.rs`): the comparison of the
//! short way already covers it, so other sessions do not change by an instruction.

use alg::AlgId;
use alg::Held;
use alg::Known;
use alg::Memory;
use alg::Stream;

use crate::random::KeyedHash;
use crate::state::calls::CallTable;
use crate::state::mapping::InternalKey;
use crate::state::mapping::Mapping;
use crate::state::table::BucketTable;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use mem::ArenaError;
use mem::Reserved;
use wire::tcp::Flags;

/// Control sessions of one worker.
pub(crate) const SESSIONS_MAX: u32 = 1024;
/// Sessions with an incomplete message, in one direction, of one worker.
const HELD_MAX: usize = 256;
/// What one subscriber may have of both: an eighth.
const SESSIONS_OF_SUBSCRIBER_MAX: usize = SESSIONS_MAX as usize / 8;
const HELD_OF_SUBSCRIBER_MAX: usize = HELD_MAX / 8;
/// In a place that is free.
const NOBODY: u32 = u32::MAX;
/// Expectations of one session.
pub(crate) const KNOWN_MAX: usize = 8;

/// Calls of PPTP.
const CALLS_MAX: usize = SESSIONS_MAX as usize * KNOWN_MAX;

/// What identifies a control session. Records are used again, so the index alone does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlgKey {
    pub(crate) mapping: u32,
    created_s: u32,
    pub(crate) remote: (u32, u16),
}

impl AlgKey {
    pub(crate) fn of(index: u32, mapping: &Mapping, remote: (u32, u16)) -> AlgKey {
        AlgKey { mapping: index, created_s: mapping.created_s(), remote }
    }

    fn hash(&self, hash: &KeyedHash) -> u64 {
        let low = u64::from(self.mapping) << 32 | u64::from(self.remote.0);
        hash.hash(low, u64::from(self.created_s) << 16 | u64::from(self.remote.1))
    }
}

pub(crate) struct AlgSession {
    pub(crate) key: AlgKey,
    pub(crate) alg: AlgId,
    pub(crate) client_is_inside: bool,
    /// Of its mapping, which may end before it.
    pub(crate) inside: InternalKey,
    pub(crate) memory: Memory,
    known: [Known; KNOWN_MAX],
    known_len: usize,
    /// TCP only: from inside, from outside; from the first byte or never.
    pub(crate) streams: [Option<Stream>; 2],
    /// Place of the held bytes, plus one.
    held: [u16; 2],
    in_use: bool,
}

impl AlgSession {
    fn nobody() -> AlgSession {
        AlgSession {
            key: AlgKey { mapping: 0, created_s: 0, remote: (0, 0) },
            alg: AlgId(0),
            client_is_inside: true,
            inside: InternalKey { realm: RealmId(0), protocol: Protocol::Udp, address: 0, port: 0 },
            memory: Memory::default(),
            known: [Known::default(); KNOWN_MAX],
            known_len: 0,
            streams: [None, None],
            held: [0; 2],
            in_use: false,
        }
    }

    pub(crate) fn known(&self) -> &[Known] {
        &self.known[..self.known_len]
    }

    /// Begins what a SYN begins; false if nothing. Only the answer of the server is believed, and
    /// from outside only if it acknowledges the client's SYN: anyone can send either. Once it has
    /// come, a SYN is a duplicate, or forged, and for the host to answer (RFC 5961 §4).
    pub(crate) fn take_syn(&mut self, from: Side, flags: Flags, sequence: u32, ack: u32) -> bool {
        let (own, other) = if from == Side::Inside { (0, 1) } else { (1, 0) };
        let from_client = (from == Side::Inside) == self.client_is_inside;
        let is_answer = flags.contains(Flags::ACK);
        if self.streams.iter().all(Option::is_some) || flags.contains(Flags::RST) || is_answer == from_client {
            return false;
        }
        if is_answer && from == Side::Inside {
            // Says which of the SYNs it answers.
            self.streams[other] = Some(Stream::starting(ack));
        } else if is_answer && self.streams[other].as_ref().is_none_or(|stream| stream.next() != ack) {
            return false;
        }
        self.streams[own] = Some(Stream::starting(sequence.wrapping_add(1)));
        true
    }

    /// False once reading has ended for good.
    pub(crate) fn is_read(&self) -> bool {
        !self.streams.iter().flatten().any(Stream::is_over)
    }

    /// False if there are too many.
    pub(crate) fn learn(&mut self, known: Known) -> bool {
        let is_it = |it: &&mut Known| (it.external, it.inside) == (known.external, known.inside);
        if let Some(same) = self.known[..self.known_len].iter_mut().find(is_it) {
            same.peer = known.peer.or(same.peer);
            return true;
        }
        let Some(free) = self.known.get_mut(self.known_len) else { return false };
        *free = known;
        self.known_len += 1;
        true
    }

    pub(crate) fn forget(&mut self, keep: impl Fn(&Known) -> bool) {
        let mut len = 0;
        for i in 0..self.known_len {
            if keep(&self.known[i]) {
                self.known[len] = self.known[i];
                len += 1;
            }
        }
        self.known_len = len;
    }
}

impl core::fmt::Debug for AlgStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AlgStore").field("sessions", &self.len()).finish_non_exhaustive()
    }
}

/// A control session that begins.
pub(crate) struct Begun {
    pub(crate) key: AlgKey,
    /// The internal endpoint of its mapping.
    pub(crate) inside: InternalKey,
    pub(crate) subscriber: u32,
    pub(crate) alg: AlgId,
    pub(crate) client_is_inside: bool,
}

/// Records in memory that is reserved when a gateway is first enabled, and that the kernel provides
/// when each place is first used: without traffic of gateways it takes nothing.
struct Places<T> {
    list: Reserved<T>,
    /// Used before, and free again.
    free: Vec<u32>,
}

impl<T> Places<T> {
    fn reserved(max: usize) -> Result<Places<T>, ArenaError> {
        Ok(Places { list: Reserved::new(max)?, free: Vec::with_capacity(max) })
    }

    /// A free place, with `first` if it is new. `None` if all are taken.
    fn take(&mut self, first: impl FnOnce() -> T) -> Option<u32> {
        match self.free.pop() {
            Some(place) => Some(place),
            None => self.list.push(first()).ok().map(|place| place as u32),
        }
    }

    fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }
}

/// The table, made when a gateway is first enabled.
pub(crate) struct AlgStore {
    sessions: Places<AlgSession>,
    held: Places<Held>,
    by_key: BucketTable,
    /// Of PPTP.
    pub(crate) calls: CallTable,
    hash: KeyedHash,
    walked: usize,
    /// Subscribers by place, of sessions and of held bytes: apart, so that counting is one short
    /// scan.
    owners: Box<[u32]>,
    held_owners: Box<[u32]>,
    /// By place of a session: when, in this order, it became unanswered or closed; 0 if it is not.
    replaceable: Box<[u64]>,
    replaceable_last: u64,
    by_alg: [u32; alg::ALGS.len()],
}

fn count(owners: &[u32], subscriber: u32) -> usize {
    owners.iter().filter(|owner| **owner == subscriber).count()
}

impl AlgStore {
    pub(crate) fn new(hash: KeyedHash) -> Result<AlgStore, ArenaError> {
        Ok(AlgStore {
            sessions: Places::reserved(SESSIONS_MAX as usize)?,
            held: Places::reserved(HELD_MAX)?,
            by_key: BucketTable::reserved(SESSIONS_MAX as usize)?,
            calls: CallTable::new(CALLS_MAX, hash)?,
            hash,
            walked: 0,
            owners: vec![NOBODY; SESSIONS_MAX as usize].into_boxed_slice(),
            held_owners: vec![NOBODY; HELD_MAX].into_boxed_slice(),
            replaceable: vec![0; SESSIONS_MAX as usize].into_boxed_slice(),
            replaceable_last: 0,
            by_alg: [0; alg::ALGS.len()],
        })
    }

    /// What one worker's store takes once all its places have been used.
    pub(crate) fn bytes_for() -> u64 {
        let sessions = SESSIONS_MAX as usize * (size_of::<AlgSession>() + 2 * size_of::<u32>() + size_of::<u64>());
        let held = HELD_MAX * (size_of::<Held>() + 2 * size_of::<u32>());
        let tables = BucketTable::need(SESSIONS_MAX as usize).bytes() + CallTable::need(CALLS_MAX).bytes();
        (sessions + held) as u64 + tables
    }

    /// Of the shard that takes it, while it is empty.
    pub(crate) fn set_hash(&mut self, hash: KeyedHash) {
        self.hash = hash;
        self.calls.set_hash(hash);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Sessions that this gateway reads.
    pub(crate) fn count_of(&self, alg: AlgId) -> u32 {
        self.by_alg.get(usize::from(alg.0)).copied().unwrap_or(0)
    }

    pub(crate) fn find(&self, key: &AlgKey) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.by_key.find(key.hash(&self.hash), |index| self.get(index).key == *key)
    }

    pub(crate) fn get(&self, index: u32) -> &AlgSession {
        &self.sessions.list[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut AlgSession {
        &mut self.sessions.list[index as usize]
    }

    /// A new session, or the same one from its start. `None` if the table, or what the subscriber
    /// may have of it, is full; see [`AlgStore::to_replace`].
    pub(crate) fn start(&mut self, begun: &Begun) -> Option<u32> {
        let Begun { key, inside, subscriber, alg, client_is_inside } = *begun;
        let index = match self.find(&key) {
            Some(known) => {
                self.release_held(known);
                self.count_session(known, false);
                known
            }
            None => {
                if count(&self.owners, subscriber) >= SESSIONS_OF_SUBSCRIBER_MAX {
                    return None;
                }
                let index = self.sessions.take(AlgSession::nobody)?;
                if self.by_key.insert(key.hash(&self.hash), index).is_err() {
                    self.sessions.give_back(index);
                    return None;
                }
                index
            }
        };
        self.owners[index as usize] = subscriber;
        self.replaceable[index as usize] = 0;
        let session = &mut self.sessions.list[index as usize];
        (session.key, session.alg, session.client_is_inside) = (key, alg, client_is_inside);
        session.inside = inside;
        (session.memory, session.known_len, session.in_use) = (Memory::default(), 0, true);
        session.streams = [None, None];
        self.count_session(index, true);
        Some(index)
    }

    /// The place that a new session of this subscriber needs: that of the session which has been
    /// unanswered or closed for longest, of the subscriber if it has all that it may have. `None`
    /// if there is room, or none can be had. Costs one scan of the table.
    pub(crate) fn to_replace(&self, subscriber: u32) -> Option<u32> {
        let has_all = count(&self.owners, subscriber) >= SESSIONS_OF_SUBSCRIBER_MAX;
        if !has_all && self.len() < SESSIONS_MAX as usize {
            return None;
        }
        let places = (0..).zip(self.owners.iter().zip(&self.replaceable));
        let may_go = places.filter(|(_, (owner, order))| **order != 0 && (!has_all || **owner == subscriber));
        may_go.min_by_key(|(_, (_, order))| **order).map(|(place, _)| place)
    }

    /// Call it with each packet of a session over TCP.
    pub(crate) fn set_replaceable(&mut self, index: u32, is_replaceable: bool) {
        let Some(order) = self.replaceable.get_mut(index as usize) else { return };
        if !is_replaceable {
            *order = 0;
        } else if *order == 0 {
            self.replaceable_last += 1;
            *order = self.replaceable_last;
        }
    }

    fn count_session(&mut self, index: u32, is_more: bool) {
        if let Some(count) = self.by_alg.get_mut(usize::from(self.sessions.list[index as usize].alg.0)) {
            *count = if is_more { *count + 1 } else { *count - 1 };
        }
    }

    pub(crate) fn remove(&mut self, index: u32) {
        self.release_held(index);
        self.count_session(index, false);
        self.owners[index as usize] = NOBODY;
        self.replaceable[index as usize] = 0;
        let session = &mut self.sessions.list[index as usize];
        session.in_use = false;
        session.streams = [None, None];
        self.by_key.remove(session.key.hash(&self.hash), index);
        self.sessions.give_back(index);
    }

    fn release_held(&mut self, index: u32) {
        for held in &mut self.sessions.list[index as usize].held {
            if let Some(place) = held.checked_sub(1) {
                self.held.list[usize::from(place)].clear();
                self.held_owners[usize::from(place)] = NOBODY;
                self.held.give_back(place.into());
                *held = 0;
            }
        }
    }

    /// A session and the held bytes of one of its directions. `None` if no room is left for them.
    pub(crate) fn with_held(&mut self, index: u32, way: usize) -> Option<(&mut AlgSession, &mut Held)> {
        let session = &mut self.sessions.list[index as usize];
        if session.held[way] == 0 {
            let subscriber = self.owners[index as usize];
            if count(&self.held_owners, subscriber) >= HELD_OF_SUBSCRIBER_MAX {
                return None;
            }
            let place = self.held.take(Held::default)? as u16;
            self.held_owners[usize::from(place)] = subscriber;
            session.held[way] = place + 1;
        }
        let place = usize::from(session.held[way] - 1);
        Some((session, &mut self.held.list[place]))
    }

    /// Gives the room back if nothing is held.
    pub(crate) fn settle_held(&mut self, index: u32, way: usize) {
        let held = &mut self.sessions.list[index as usize].held[way];
        if let Some(place) = held.checked_sub(1)
            && self.held.list[usize::from(place)].is_empty()
        {
            self.held.list[usize::from(place)].clear();
            self.held_owners[usize::from(place)] = NOBODY;
            self.held.give_back(place.into());
            *held = 0;
        }
    }

    /// Bytes held of one direction.
    pub(crate) fn held_bytes(&self, index: u32, way: usize) -> usize {
        let held = self.sessions.list[index as usize].held[way];
        held.checked_sub(1).map_or(0, |place| self.held.list[usize::from(place)].len())
    }

    pub(crate) fn holds(&self, index: u32) -> bool {
        self.sessions.list[index as usize].held.iter().any(|held| *held != 0)
    }

    /// The next few sessions, round and round.
    pub(crate) fn walk(&mut self, count: usize) -> impl Iterator<Item = u32> + use<> {
        let total = self.sessions.list.len().max(1);
        let from = self.walked;
        self.walked = (from + count) % total;
        (from..from + count).map(move |at| (at % total) as u32)
    }

    pub(crate) fn is_in_use(&self, index: u32) -> bool {
        self.sessions.list.get(index as usize).is_some_and(|session| session.in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl AlgStore {
        fn resident_bytes(&self) -> usize {
            let tables = self.by_key.resident_bytes() + self.calls.resident_bytes();
            self.sessions.list.resident_bytes() + self.held.list.resident_bytes() + tables
        }
    }

    fn begun(subscriber: u32) -> Begun {
        Begun {
            key: AlgKey { mapping: subscriber, created_s: 0, remote: (1, 21) },
            inside: AlgSession::nobody().inside,
            subscriber,
            alg: AlgId(0),
            client_is_inside: true,
        }
    }

    #[test]
    fn tables_take_memory_when_they_are_used() {
        let mut store = AlgStore::new(KeyedHash::new([1; 4])).expect("memory");
        assert_eq!(store.resident_bytes(), 0);
        let first = store.start(&begun(1)).expect("room");
        assert!(store.with_held(first, 0).is_some());
        // The session, what it holds, and its line of the table; or 2 MiB of each on hugepages.
        assert!((4_096..3 * (2 << 20)).contains(&store.resident_bytes()));
        // What was used before is used again.
        let used = store.resident_bytes();
        for subscriber in 2..1_000 {
            store.remove(first);
            assert_eq!(store.start(&begun(subscriber)), Some(first));
            assert!(store.with_held(first, 0).is_some());
        }
        assert!(store.resident_bytes() <= used + 4 * 4_096, "{} after {used}", store.resident_bytes());
        // All of it, and no more.
        store.remove(first);
        let places: Vec<u32> = (0..SESSIONS_MAX).filter_map(|subscriber| store.start(&begun(subscriber))).collect();
        assert_eq!(places.len(), SESSIONS_MAX as usize);
        assert_eq!(store.start(&begun(SESSIONS_MAX)), None);
        assert_eq!(places.iter().filter(|place| store.with_held(**place, 1).is_some()).count(), HELD_MAX);
        assert!(store.resident_bytes() as u64 <= AlgStore::bytes_for() + 4 * (2 << 20));
    }
}
