//! Control sessions of application-level gateways.
//!
//! Address space is reserved for [`SESSIONS_CEILING`], because a reload can change their limit;
//! memory comes as places are first used.
//!
//! Their mappings have the bit of ports with their own timer (`state/mapping.rs`), which the short
//! way checks anyway: other sessions pay nothing.

use alg::Alg;
use alg::AlgId;
use alg::Held;
use alg::Known;
use alg::Memory;
use alg::Stream;

use self::owners::Owners;
use self::places::Places;
use self::queue::Links;
use self::queue::Queue;
use self::queue::Which;
use crate::random::KeyedHash;
use crate::state::calls::CallTable;
use crate::state::mapping::InternalKey;
use crate::state::mapping::Mapping;
use crate::state::table::BucketTable;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use mem::ArenaError;
use wire::tcp::Flags;

mod owners;
mod places;
mod queue;

/// For one worker, whatever is configured.
const SESSIONS_CEILING: u32 = crate::settings::CONTROL_SESSIONS_CEILING;
/// Sessions for each direction with held data: few messages are incomplete or unacknowledged at a
/// time.
const SESSIONS_PER_HELD: u32 = 32;
const HELD_MIN: u32 = 256;
const HELD_CEILING: u32 = SESSIONS_CEILING / SESSIONS_PER_HELD;
const _: () = assert!(HELD_CEILING < u16::MAX as u32, "a session has its place in 16 bits");
/// Unanswered UDP clients of one subscriber's servers: anyone can forge them.
const CLIENTS_MAX: u16 = 64;
/// One subscriber's part of the sessions, and of free places.
const SHARE: u32 = 8;
/// Places examined for one to take back; golden-ratio steps, in parts of 2³², spread them evenly.
const LOOKED_AT: u32 = 32;
const LOOK_STEP: u32 = 0x9e37_79b9;
/// Expectations of one session.
pub(crate) const KNOWN_MAX: usize = 8;
const CALLS_MAX: usize = SESSIONS_CEILING as usize;

#[derive(Clone, Copy)]
struct Room {
    sessions: u32,
    held: u32,
}

impl Room {
    fn of(sessions: u32) -> Room {
        let sessions = sessions.min(SESSIONS_CEILING);
        Room { sessions, held: (sessions / SESSIONS_PER_HELD).max(HELD_MIN) }
    }
}

/// Records are reused, so the index alone identifies no session.
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

/// Why a session may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spare {
    /// Opened from inside and unanswered; only another from inside may replace it.
    Asked,
    /// Ended, or opened from outside and unanswered, which anyone can forge.
    Stranger,
    /// A stranger over UDP, counted separately.
    Client,
}

/// Places of the direction from this side, and of the other.
pub(crate) fn ways(from: Side) -> (usize, usize) {
    if from == Side::Inside { (0, 1) } else { (1, 0) }
}

pub(crate) struct AlgSession {
    pub(crate) key: AlgKey,
    pub(crate) alg: AlgId,
    pub(crate) client_is_inside: bool,
    /// Read because it leads to a registered endpoint.
    pub(crate) is_of_registration: bool,
    /// Internal endpoint of its mapping, which may end earlier.
    pub(crate) inside: InternalKey,
    pub(crate) memory: Memory,
    known: [Known; KNOWN_MAX],
    known_len: usize,
    /// Streams from inside and from outside. TCP only, from the first byte or never.
    pub(crate) streams: [Option<Stream>; 2],
    /// Places of held data, plus one.
    held: [u16; 2],
    /// True once a packet came from inside, from outside.
    heard: [bool; 2],
    in_use: bool,
    owner: u32,
    spare: Option<Spare>,
    links: [Links; 2],
}

impl AlgSession {
    fn nobody() -> AlgSession {
        AlgSession {
            key: AlgKey { mapping: 0, created_s: 0, remote: (0, 0) },
            alg: AlgId(0),
            client_is_inside: true,
            is_of_registration: false,
            inside: InternalKey { realm: RealmId(0), protocol: Protocol::Udp, address: HostNumber(0), port: 0 },
            memory: Memory::default(),
            known: [Known::default(); KNOWN_MAX],
            known_len: 0,
            streams: [None, None],
            held: [0; 2],
            heard: [false; 2],
            in_use: false,
            owner: 0,
            spare: None,
            links: [Links::NONE; 2],
        }
    }

    /// A client outside asks a UDP server inside; the session exists only to be read.
    pub(crate) fn is_of_client(&self) -> bool {
        self.inside.protocol == Protocol::Udp && !self.client_is_inside && !self.is_of_registration
    }

    pub(crate) fn known(&self) -> &[Known] {
        &self.known[..self.known_len]
    }

    /// Starts the streams that a SYN starts; false if none. Only the server's answer counts, from
    /// outside only if it acknowledges the client's SYN: anyone can send either. The host answers
    /// later SYNs (RFC 5961 §4).
    pub(crate) fn take_syn(&mut self, from: Side, flags: Flags, sequence: u32, ack: u32) -> bool {
        let (own, other) = ways(from);
        let from_client = (from == Side::Inside) == self.client_is_inside;
        let is_answer = flags.contains(Flags::ACK);
        if self.streams.iter().all(Option::is_some) || flags.contains(Flags::RST) || is_answer == from_client {
            return false;
        }
        if is_answer && from == Side::Inside {
            // The acknowledgement shows which SYN it answers.
            self.streams[other] = Some(self.stream_starting(ack));
        } else if is_answer && self.streams[other].as_ref().is_none_or(|stream| stream.next() != ack) {
            return false;
        }
        self.streams[own] = Some(self.stream_starting(sequence.wrapping_add(1)));
        true
    }

    fn stream_starting(&self, first: u32) -> Stream {
        Stream::starting(first).keeping_ahead(self.alg.alg().is_some_and(Alg::keeps_ahead))
    }

    fn why_spare(&self, is_over: bool) -> Spare {
        match () {
            () if self.is_of_client() => Spare::Client,
            () if self.client_is_inside && !is_over => Spare::Asked,
            () => Spare::Stranger,
        }
    }

    pub(crate) fn hear(&mut self, from: Side) -> bool {
        self.heard[usize::from(from == Side::Outside)] = true;
        self.heard == [true; 2]
    }

    pub(crate) fn is_read(&self) -> bool {
        !self.streams.iter().flatten().any(Stream::is_over)
    }

    pub(crate) fn known_now(&self) -> ([Known; KNOWN_MAX], usize) {
        (self.known, self.known_len)
    }

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

    /// See [`Known::peer`] of SIP.
    pub(crate) fn forget_request(&mut self, request: u16) {
        let known = self.known[..self.known_len].iter_mut();
        known.filter(|known| known.peer == Some(request)).for_each(|known| known.peer = None);
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

pub(crate) struct Begun {
    pub(crate) key: AlgKey,
    pub(crate) inside: InternalKey,
    pub(crate) subscriber: u32,
    pub(crate) alg: AlgId,
    pub(crate) client_is_inside: bool,
    pub(crate) is_of_registration: bool,
}

impl Begun {
    pub(crate) fn from(&self) -> Side {
        if self.client_is_inside { Side::Inside } else { Side::Outside }
    }

    pub(crate) fn is_of_client(&self) -> bool {
        self.inside.protocol == Protocol::Udp && !self.client_is_inside && !self.is_of_registration
    }
}

/// A free place keeps its last session's index.
struct Holding {
    held: Held,
    since: Instant,
    session: u32,
    way: usize,
}

impl Holding {
    fn new() -> Holding {
        Holding { held: Held::new(), since: Instant::ORIGIN, session: 0, way: 0 }
    }
}

pub(crate) struct AlgStore {
    sessions: Places<AlgSession>,
    held: Places<Holding>,
    looked_at: u32,
    by_key: BucketTable,
    owners: Owners,
    /// Longest-waiting first.
    strangers: Queue,
    asked: Queue,
    pub(crate) calls: CallTable,
    hash: KeyedHash,
    room: Room,
    walked: usize,
    /// For directions without held data.
    nothing: Held,
    by_alg: [u32; alg::ALGS.len()],
}

impl AlgStore {
    pub(crate) fn new(hash: KeyedHash, sessions_max: u32) -> Result<AlgStore, ArenaError> {
        Ok(AlgStore {
            sessions: Places::reserved(SESSIONS_CEILING as usize)?,
            held: Places::reserved(HELD_CEILING as usize)?,
            looked_at: 0,
            by_key: BucketTable::reserved(SESSIONS_CEILING as usize)?,
            owners: Owners::reserved(SESSIONS_CEILING as usize)?,
            strangers: Queue::EMPTY,
            asked: Queue::EMPTY,
            calls: CallTable::new(CALLS_MAX, hash)?,
            hash,
            room: Room::of(sessions_max),
            walked: 0,
            nothing: Held::new(),
            by_alg: [0; alg::ALGS.len()],
        })
    }

    pub(crate) fn bytes_for(sessions_max: u32) -> u64 {
        let Room { sessions, held } = Room::of(sessions_max);
        let records = Places::<AlgSession>::bytes_for(sessions) + Places::<Holding>::bytes_for(held);
        let tables = BucketTable::need(SESSIONS_CEILING as usize).bytes() + CallTable::need(CALLS_MAX).bytes();
        records + Owners::bytes_for(sessions, SESSIONS_CEILING) + tables
    }

    /// The store must be empty.
    pub(crate) fn set_hash(&mut self, hash: KeyedHash) {
        self.hash = hash;
        self.calls.set_hash(hash);
    }

    /// Existing sessions stay.
    pub(crate) fn set_room(&mut self, sessions_max: u32) {
        self.room = Room::of(sessions_max);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

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

    pub(crate) fn copy_memory(&mut self, from: u32, to: u32) {
        let AlgSession { alg, memory, .. } = *self.get(from);
        let to = self.get_mut(to);
        if to.alg == alg {
            to.memory = memory;
        }
    }

    fn has_all(&self, subscriber: u32) -> bool {
        self.owners.find(&self.hash, subscriber).is_some_and(|owner| owner.sessions >= self.room.sessions / SHARE)
    }

    fn is_full(&self) -> bool {
        self.len() >= self.room.sessions as usize
    }

    /// `None` if the table or the subscriber's share is full; see [`AlgStore::to_replace`].
    pub(crate) fn start(&mut self, begun: &Begun) -> Option<u32> {
        let Begun { key, inside, subscriber, alg, client_is_inside, is_of_registration } = *begun;
        if let Some(known) = self.find(&key) {
            self.remove(known);
        }
        if self.is_full() || self.has_all(subscriber) {
            return None;
        }
        let index = self.sessions.take(AlgSession::nobody)?;
        if self.by_key.insert(key.hash(&self.hash), index).is_err() {
            self.sessions.give_back(index);
            return None;
        }
        let Some(owner) = self.owners.enter(&self.hash, subscriber) else {
            self.by_key.remove(key.hash(&self.hash), index);
            self.sessions.give_back(index);
            return None;
        };
        let nobody = AlgSession::nobody();
        self.sessions.list[index as usize] =
            AlgSession { key, alg, client_is_inside, is_of_registration, inside, owner, in_use: true, ..nobody };
        self.count_session(index, true);
        Some(index)
    }

    /// The session to replace by one that the subscriber starts from this side: unanswered or ended
    /// for longest, and its own if its share is full. Sessions from outside go first and replace no
    /// others, because anyone can forge them. `None` if there is room, or if a lowered limit needs
    /// more than one place.
    pub(crate) fn to_replace(&self, subscriber: u32, from: Side) -> Option<u32> {
        let (max, share) = (self.room.sessions, self.room.sessions / SHARE);
        let own = self.owners.find(&self.hash, subscriber);
        let count = own.map_or(0, |owner| owner.sessions);
        if self.len() > max as usize || count > share {
            return None;
        }
        let (of_outside, asked) = match own {
            Some(own) if count == share => (own.first_of_outside(share), own.asked),
            _ if self.is_full() => (self.strangers.first(), self.asked),
            _ => return None,
        };
        of_outside.or_else(|| asked.first().filter(|_| from == Side::Inside))
    }

    /// A client of a UDP server to replace, if the subscriber has [`CLIENTS_MAX`].
    pub(crate) fn client_to_replace(&self, subscriber: u32) -> Option<u32> {
        let own = self.owners.find(&self.hash, subscriber)?;
        if own.client_count < CLIENTS_MAX { None } else { own.clients.first() }
    }

    pub(crate) fn has_room_for(&self, subscriber: u32, from: Side) -> bool {
        !(self.is_full() || self.has_all(subscriber)) || self.to_replace(subscriber, from).is_some()
    }

    /// Call it with each packet. `is_over`: it was answered, and has ended.
    pub(crate) fn set_replaceable(&mut self, index: u32, is_replaceable: bool, is_over: bool) {
        let Some(session) = self.sessions.list.get_mut(index as usize) else { return };
        let spare = is_replaceable.then(|| session.why_spare(is_over));
        let before = core::mem::replace(&mut session.spare, spare);
        if before == spare {
            return;
        }
        let owner = self.owners.get_mut(session.owner);
        let are = |spare| u16::from(spare == Some(Spare::Client));
        owner.client_count = owner.client_count + are(spare) - are(before);
        if let Some(before) = before {
            let ([of_all, of_owner], list) = self.queues(index, before);
            of_all.unlink(list, Which::OfAll, index);
            of_owner.unlink(list, Which::OfOwner, index);
        }
        if let Some(spare) = spare {
            let ([of_all, of_owner], list) = self.queues(index, spare);
            of_all.append(list, Which::OfAll, index);
            of_owner.append(list, Which::OfOwner, index);
        }
    }

    fn queues(&mut self, index: u32, spare: Spare) -> ([&mut Queue; 2], &mut [AlgSession]) {
        let list = &mut self.sessions.list;
        let own = self.owners.get_mut(list[index as usize].owner);
        let queues = match spare {
            Spare::Asked => [&mut self.asked, &mut own.asked],
            Spare::Stranger => [&mut self.strangers, &mut own.strangers],
            Spare::Client => [&mut self.strangers, &mut own.clients],
        };
        (queues, list)
    }

    fn count_session(&mut self, index: u32, is_more: bool) {
        if let Some(count) = self.by_alg.get_mut(usize::from(self.sessions.list[index as usize].alg.0)) {
            *count = if is_more { *count + 1 } else { *count - 1 };
        }
    }

    pub(crate) fn remove(&mut self, index: u32) {
        for way in 0..2 {
            self.release_held(index, way);
        }
        self.set_replaceable(index, false, false);
        self.count_session(index, false);
        let session = &mut self.sessions.list[index as usize];
        session.in_use = false;
        session.streams = [None, None];
        let owner = session.owner;
        self.by_key.remove(session.key.hash(&self.hash), index);
        self.owners.leave(&self.hash, owner);
        self.sessions.give_back(index);
    }

    fn release_held(&mut self, index: u32, way: usize) {
        let session = &mut self.sessions.list[index as usize];
        if let Some(place) = session.held[way].checked_sub(1) {
            session.held[way] = 0;
            self.held.list[usize::from(place)].held.clear();
            self.held.give_back(place.into());
            self.owners.get_mut(session.owner).held -= 1;
        }
    }

    /// `None` without room.
    pub(crate) fn with_held(&mut self, index: u32, way: usize) -> Option<&mut Held> {
        let session = &self.sessions.list[index as usize];
        if session.held[way] == 0 {
            let owner = session.owner;
            if !self.may_hold(owner) && !self.take_back_for(owner) {
                return None;
            }
            let place = self.held.take(Holding::new)?;
            let holding = &mut self.held.list[place as usize];
            (holding.session, holding.way) = (index, way);
            self.owners.get_mut(owner).held += 1;
            self.sessions.list[index as usize].held[way] = place as u16 + 1;
        }
        let place = self.sessions.list[index as usize].held[way].checked_sub(1)?;
        self.held.list.get_mut(usize::from(place)).map(|holding| &mut holding.held)
    }

    /// The fuller the table, the smaller each part, so that a few cannot take all.
    fn may_hold(&mut self, owner: u32) -> bool {
        let free = self.room.held.saturating_sub(self.held.used());
        free > 0 && u32::from(self.owners.get_mut(owner).held) < (free / SHARE).max(1)
    }

    /// If no place is free, takes an incomplete message from the subscriber that holds most at
    /// [`LOOKED_AT`] places, and at least two more than this one.
    fn take_back_for(&mut self, owner: u32) -> bool {
        if self.held.used() != self.room.held {
            return false;
        }
        let own = self.owners.get_mut(owner).held;
        let total = self.held.list.len();
        let mut fullest: Option<(u16, u32, usize)> = None;
        for _ in 0..LOOKED_AT {
            self.looked_at = self.looked_at.wrapping_add(LOOK_STEP);
            let place = ((u64::from(self.looked_at) * total as u64) >> 32) as usize;
            let Some(Holding { held, session, way, .. }) = self.held.list.get(place) else { continue };
            let (session, way) = (*session, *way);
            let holder = &self.sessions.list[session as usize];
            if usize::from(holder.held[way]) != place + 1 || !held.may_be_lost() {
                continue;
            }
            let count = self.owners.get_mut(holder.owner).held;
            if count > own + 1 && fullest.is_none_or(|(most, ..)| count > most) {
                fullest = Some((count, session, way));
            }
        }
        let Some((_, session, way)) = fullest else { return false };
        self.release_held(session, way);
        true
    }

    pub(crate) fn has_held(&self, index: u32, way: usize) -> bool {
        self.sessions.list[index as usize].held[way] != 0
    }

    pub(crate) fn settle_held(&mut self, index: u32, way: usize) {
        if self.held(index, way).is_empty() {
            self.release_held(index, way);
        }
    }

    /// Since when no data was added or sent.
    pub(crate) fn held_since(&self, index: u32, way: usize) -> Option<Instant> {
        let held = self.sessions.list[index as usize].held[way];
        held.checked_sub(1).map(|place| self.held.list[usize::from(place)].since)
    }

    pub(crate) fn note_progress(&mut self, index: u32, way: usize, now: Instant) {
        let held = self.sessions.list[index as usize].held[way];
        if let Some(place) = held.checked_sub(1) {
            self.held.list[usize::from(place)].since = now;
        }
    }

    pub(crate) fn held(&self, index: u32, way: usize) -> &Held {
        let held = self.sessions.list[index as usize].held[way];
        held.checked_sub(1).map_or(&self.nothing, |place| &self.held.list[usize::from(place)].held)
    }

    pub(crate) fn stream(&mut self, index: u32, way: usize) -> Option<(&mut Stream, &mut Held)> {
        let session = &mut self.sessions.list[index as usize];
        let held = match session.held[way].checked_sub(1) {
            Some(place) => &mut self.held.list[usize::from(place)].held,
            None => &mut self.nothing,
        };
        session.streams[way].as_mut().map(|stream| (stream, held))
    }

    /// A stream that was taken out to be read.
    pub(crate) fn put_back(&mut self, index: u32, way: usize, mut stream: Stream) {
        let session = &mut self.sessions.list[index as usize];
        let other = &mut session.streams[1 - way];
        // The other direction may have learned that nothing more is read.
        if other.as_ref().is_some_and(Stream::is_over) {
            stream.end();
        }
        if stream.is_over() {
            other.iter_mut().for_each(Stream::end);
        }
        session.streams[way] = Some(stream);
        self.settle_held(index, way);
    }

    pub(crate) fn places(&self) -> u32 {
        self.sessions.list.len() as u32
    }

    pub(crate) fn walk(&mut self, count: u32) -> impl Iterator<Item = u32> + use<> {
        let (total, count) = (self.sessions.list.len().max(1), count as usize);
        let from = self.walked;
        self.walked = (from + count) % total;
        (from..from + count).map(move |at| (at % total) as u32)
    }

    pub(crate) fn is_in_use(&self, index: u32) -> bool {
        self.sessions.list.get(index as usize).is_some_and(|session| session.in_use)
    }
}

#[cfg(test)]
mod tests;
