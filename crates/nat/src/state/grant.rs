//! Grants: external ports that inside endpoints keep for a time, with the remotes that may send.
//!
//! A subscriber requests a grant (port control), or a payload names the endpoint (an ALG's
//! expectation). It is a record *beside* a mapping, never another kind: the mapping has the port,
//! counts against the subscriber and leads packets in. But for remotes without a session,
//! [`crate::steps::door`] asks [`GrantStore::admission`] before the pool's filtering.
//!
//! ```text
//!   internal endpoint ─hash─► grant ─mapping─► mapping record     its port, its subscriber
//!                               │  ─hold────► further session     keeps the mapping alive
//!                               └─► next grant of the same owner (its count and its epoch time)
//! ```
//!
//! The *hold* is a further session that no packet matches: the mapping lives without other
//! sessions, and established packets need not check the grant.
//!
//! To make one, fill a [`Request`] and call `Ledger::open_grant`:
//!
//! | field | PCP MAP | PCP PEER | expectation of an ALG |
//! |---|---|---|---|
//! | `origin` | [`Origin::Pcp`] | [`Origin::Pcp`] | its own [`Origin`] |
//! | `kind` | [`Kind::Map`] | [`Kind::Peer`] | [`Kind::Once`]: ends with the first session |
//! | `remotes` | none: anyone; else the filters | the one remote endpoint | the expected one |
//! | `expires` | the lifetime | the lifetime | some seconds |
//!
//! A PPTP call ([`Kind::Call`]) has its peer as the remote, and lives as long as its control
//! session (`shard/commit/call.rs`).
//!
//! Expired grants count as absent at once; the sweep (`shard/upkeep/grants.rs`) frees them.

use core::net::Ipv4Addr;

use alg::AlgId;
use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromBytes;
use zerocopy::FromZeros;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use crate::random::KeyedHash;
use crate::state::calls::CallKey;
use crate::state::mapping::InternalKey;
use crate::state::table::BucketTable;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;

#[cfg(test)]
mod tests;

/// The remote of a hold: no packet may have the broadcast address as source or destination.
pub(crate) const HOLD_REMOTE: u32 = u32::MAX;

/// RFC 6887 §13.3: at least one.
pub const REMOTES_MAX: usize = 4;

/// The first gateway's [`Origin::number`].
const FIRST_ALG: u8 = 3;

/// What asked for a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// PCP (RFC 6887).
    Pcp,
    /// NAT-PMP (RFC 6886).
    NatPmp,
    /// A payload that this gateway read.
    Alg(AlgId),
}

impl Origin {
    const COUNT: usize = FIRST_ALG as usize - 1 + alg::ALGS.len();

    /// Stable in commands, JSON and logs.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Pcp => "pcp",
            Origin::NatPmp => "nat_pmp",
            Origin::Alg(alg) => alg.name(),
        }
    }

    /// False for port control.
    pub const fn is_alg(self) -> bool {
        matches!(self, Origin::Alg(_))
    }

    /// In records, from 1.
    pub const fn number(self) -> u8 {
        match self {
            Origin::Pcp => 1,
            Origin::NatPmp => 2,
            Origin::Alg(alg) => FIRST_ALG + alg.0,
        }
    }

    /// Inverse of [`Origin::number`].
    pub fn from_number(number: u8) -> Option<Origin> {
        match number {
            1 => Some(Origin::Pcp),
            2 => Some(Origin::NatPmp),
            _ => number.checked_sub(FIRST_ALG).map(AlgId).filter(|alg| alg.alg().is_some()).map(Origin::Alg),
        }
    }

    const fn place(self) -> usize {
        self.number() as usize - 1
    }
}

/// What a grant is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Open to the remotes that its filters allow.
    Map = 0,
    /// Keeps the session with its one remote (RFC 6887 §12).
    Peer = 1,
    /// Ends with the first session that it lets in.
    Once = 2,
    /// Its port is a call identifier (RFC 2637 §4.1), only for its peer's tunnelled packets.
    Call = 3,
}

impl Kind {
    /// Stable in commands and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Map => "map",
            Kind::Peer => "peer",
            Kind::Once => "once",
            Kind::Call => "call",
        }
    }

    /// Inverse of `as u8`.
    pub const fn from_number(number: u8) -> Option<Kind> {
        match number {
            0 => Some(Kind::Map),
            1 => Some(Kind::Peer),
            2 => Some(Kind::Once),
            3 => Some(Kind::Call),
            _ => None,
        }
    }
}

/// A remote filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Remote {
    address: u32,
    /// 0 for all.
    port: u16,
    length: u8,
    unused: u8,
}

impl Remote {
    /// Port 0 stands for all ports. Host bits are cleared.
    pub const fn new(address: Ipv4Addr, length: u8, port: u16) -> Remote {
        Remote { address: address.to_bits() & mask(length), port, length, unused: 0 }
    }

    /// Matches one endpoint.
    pub const fn exactly(endpoint: Endpoint) -> Remote {
        Remote::new(endpoint.address, 32, endpoint.port)
    }

    /// Address and length.
    pub const fn prefix(&self) -> (Ipv4Addr, u8) {
        (Ipv4Addr::from_bits(self.address), self.length)
    }

    /// 0 for all.
    pub const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) const fn contains(&self, (address, port): (u32, u16)) -> bool {
        (address ^ self.address) & mask(self.length) == 0 && (self.port == 0 || self.port == port)
    }
}

const fn mask(length: u8) -> u32 {
    match length {
        0 => 0,
        1..32 => u32::MAX << (32 - length),
        _ => u32::MAX,
    }
}

/// Up to [`REMOTES_MAX`]; an empty list admits everyone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Remotes {
    list: [Remote; REMOTES_MAX],
    count: u32,
}

impl Remotes {
    /// A list of one.
    pub fn one(remote: Remote) -> Remotes {
        let mut remotes = Remotes::default();
        remotes.add(remote);
        remotes
    }

    /// False if full.
    pub fn add(&mut self, remote: Remote) -> bool {
        let Some(free) = self.list.get_mut(self.count as usize) else { return false };
        *free = remote;
        self.count += 1;
        true
    }

    /// The filters.
    pub fn as_slice(&self) -> &[Remote] {
        self.list.get(..self.count as usize).unwrap_or(&self.list)
    }

    fn peer(&self, kind: Kind) -> Option<(u32, u16)> {
        let remote = self.as_slice().first().filter(|_| kind == Kind::Peer)?;
        Some((remote.address, remote.port))
    }

    fn admit(&self, remote: (u32, u16)) -> bool {
        self.count == 0 || self.as_slice().iter().any(|allowed| allowed.contains(remote))
    }
}

/// The client that asked, which gets messages about the grant. A gateway sets only `port`: its
/// control session's inside port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Requester {
    /// PCP mapping nonce.
    pub nonce: [u8; 12],
    /// Source of the request.
    pub address: HostNumber,
    /// See `address`.
    pub port: u16,
    /// Size of the port set (RFC 7753) that the port is in; 0 or 1 for none.
    pub set_size: u16,
    /// Its first internal port.
    pub set_first: u16,
    /// 1 if the B4 asked outside its softwire for the host at `address`.
    by_b4: u16,
}

impl Requester {
    /// A requester without a port set.
    pub const fn new(nonce: [u8; 12], from: Endpoint) -> Requester {
        Requester {
            nonce,
            address: HostNumber(from.address.to_bits()),
            port: from.port,
            set_size: 0,
            set_first: 0,
            by_b4: 0,
        }
    }

    pub(crate) const fn of_control(port: u16) -> Requester {
        Requester { nonce: [0; 12], address: HostNumber(0), port, set_size: 0, set_first: 0, by_b4: 0 }
    }

    /// The same requester, as the B4 that asked for a host behind it.
    #[must_use]
    pub const fn by_b4(self) -> Requester {
        Requester { by_b4: 1, ..self }
    }

    /// The answer goes to the B4, not the host.
    pub const fn is_b4(self) -> bool {
        self.by_b4 == 1
    }

    /// The same requester, for a port of this set.
    #[must_use]
    pub const fn in_set(self, first: u16, size: u16) -> Requester {
        Requester { set_first: first, set_size: size, ..self }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) key: InternalKey,
    pub(crate) origin: Origin,
    pub(crate) kind: Kind,
    pub(crate) remotes: Remotes,
    pub(crate) expires: Instant,
    pub(crate) requester: Requester,
    pub(crate) suggested: Suggested,
}

impl Request {
    pub(crate) fn again(grant: &Grant) -> Request {
        Request {
            key: grant.key(),
            origin: grant.origin(),
            kind: grant.kind(),
            remotes: grant.remotes,
            expires: grant.expires(),
            requester: grant.requester,
            suggested: Suggested::Any,
        }
    }

    pub(crate) fn peer(&self) -> Option<(u32, u16)> {
        self.remotes.peer(self.kind)
    }
}

/// The preferred external endpoint. An existing mapping takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suggested {
    Any,
    /// Prefer this endpoint, but accept any other.
    Rather(Wish),
    /// Accept only this endpoint: otherwise the request is refused.
    Only(Wish),
    /// Prefer this endpoint, but accept any whose port of the other protocol can be kept, too.
    WithTwin(Wish),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// `None` for the subscriber's own.
    pub(crate) address: Option<u32>,
    /// 0 for any.
    pub(crate) port: u16,
}

impl Wish {
    pub(crate) const NONE: Wish = Wish { address: None, port: 0 };

    pub(crate) fn fits(self, external: Endpoint) -> bool {
        self.address.is_none_or(|address| address == external.address.to_bits())
            && (self.port == 0 || self.port == external.port)
    }
}

const IN_USE: u8 = 1 << 0;
/// Deleted or expired: the port is only kept for its client (RFC 6887 §15).
const HELD_DOWN: u8 = 1 << 1;
/// Admits no remote: its session has come, and it only records the origin of its mapping.
const USED: u8 = 1 << 2;
/// Both ends accepted the call: the filter's port is the peer's identifier.
const CONNECTED: u8 = 1 << 3;

#[derive(FromZeros, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Grant {
    pub(crate) mapping: u32,
    /// 0 for none.
    pub(crate) hold: u32,
    owner: u32,
    next: u32,
    previous: u32,
    internal_address: HostNumber,
    pub(crate) external_address: u32,
    internal_port: u16,
    pub(crate) external_port: u16,
    expires: u64,
    created_s: u32,
    realm: u16,
    protocol: u8,
    origin: u8,
    kind: u8,
    flags: u8,
    /// Messages still to send about a change.
    pub(crate) updates_left: u8,
    pub(crate) update_number: u8,
    pub(crate) requester: Requester,
    pub(crate) update_due_ms: u64,
    pub(crate) remotes: Remotes,
}

const _: () = assert!(size_of::<Grant>() == 128, "a grant is two cache lines");

impl Grant {
    pub(crate) fn is_in_use(&self) -> bool {
        self.flags & IN_USE != 0
    }

    pub(crate) fn is_alive(&self, now: Instant) -> bool {
        self.flags & (IN_USE | HELD_DOWN | USED) == IN_USE && now < self.expires()
    }

    pub(crate) fn is_used(&self) -> bool {
        self.flags & USED != 0
    }

    pub(crate) fn set_used(&mut self) {
        self.flags |= USED;
    }

    /// RTCP beside RTP, not counted by itself.
    pub(crate) fn is_second_of_pair(&self) -> bool {
        self.requester.set_size == 2 && self.requester.set_first != self.internal_port
    }

    pub(crate) fn is_held_down(&self) -> bool {
        self.flags & HELD_DOWN != 0
    }

    /// True if it keeps no port, and only waits until its client knows of the end.
    pub(crate) fn is_given_up(&self) -> bool {
        self.is_held_down() && self.hold == 0
    }

    /// Its mapping ended first, so it needs another.
    pub(crate) fn has_lost_mapping(&self) -> bool {
        self.is_in_use() && self.mapping == 0
    }

    pub(crate) fn expires(&self) -> Instant {
        Instant::from_micros(self.expires)
    }

    pub(crate) fn set_expires(&mut self, at: Instant) {
        self.expires = at.as_micros();
    }

    pub(crate) fn created_s(&self) -> u32 {
        self.created_s
    }

    pub(crate) fn protocol(&self) -> Protocol {
        Protocol::from_index(usize::from(self.protocol)).unwrap_or(Protocol::Udp)
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
        Endpoint::new(self.internal_address.into(), self.internal_port)
    }

    pub(crate) fn external(&self) -> Endpoint {
        Endpoint::new(self.external_address.into(), self.external_port)
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin::from_number(self.origin).unwrap_or(Origin::Pcp)
    }

    pub(crate) fn kind(&self) -> Kind {
        Kind::from_number(self.kind).unwrap_or(Kind::Map)
    }

    /// True for a payload's endpoint that serves any number of flows.
    pub(crate) fn is_registration(&self) -> bool {
        self.kind() == Kind::Map && self.origin().is_alg()
    }

    pub(crate) fn is_map_of_client(&self) -> bool {
        self.kind() == Kind::Map && !self.origin().is_alg()
    }

    pub(crate) fn peer(&self) -> Option<(u32, u16)> {
        self.remotes.peer(self.kind())
    }

    pub(crate) fn admits(&self, remote: (u32, u16)) -> bool {
        self.remotes.admit(remote)
    }

    pub(crate) fn is_call_with(&self, remote: u32) -> bool {
        self.kind() == Kind::Call && self.remotes.as_slice().first().is_some_and(|peer| peer.address == remote)
    }

    /// Once both ends accepted it.
    pub(crate) fn call(&self) -> Option<CallKey> {
        let peer = self.remotes.as_slice().first().filter(|_| self.flags & CONNECTED != 0)?;
        Some(CallKey { realm: RealmId(self.realm), inside: self.internal_address, remote: (peer.address, peer.port) })
    }

    pub(crate) fn connect(&mut self, peer: u16) {
        self.flags |= CONNECTED;
        self.remotes.list[0].port = peer;
    }

    pub(crate) fn place_at(&mut self, mapping: u32, hold: u32, external: Endpoint) {
        (self.mapping, self.hold) = (mapping, hold);
        (self.external_address, self.external_port) = (external.address.to_bits(), external.port);
    }

    pub(crate) fn lose_mapping(&mut self) {
        (self.mapping, self.hold) = (0, 0);
    }

    pub(crate) fn announce(&mut self, times: u8, from: Instant) {
        (self.updates_left, self.update_number, self.update_due_ms) = (times, 0, from.as_micros() / 1_000);
    }

    pub(crate) fn reserve_until(&mut self, until: Instant) {
        self.flags |= HELD_DOWN;
        self.updates_left = 0;
        self.set_expires(until);
    }

    fn renew(&mut self, request: &Request) {
        self.flags &= !(HELD_DOWN | USED);
        self.remotes = request.remotes;
        self.requester = request.requester;
        self.origin = request.origin.number();
        self.kind = request.kind as u8;
        self.set_expires(request.expires);
    }
}

/// A subscriber with grants: an internal address, or an IPv6 prefix's number.
#[derive(FromZeros, Clone, Copy)]
#[repr(C)]
struct Owner {
    address: HostNumber,
    realm: u16,
    in_use: u16,
    head: u32,
    count: u32,
    /// Start of its epoch time: clock seconds plus [`EPOCH_BIAS`].
    epoch_began: u64,
}

/// An epoch time may have begun before the clock did.
const EPOCH_BIAS: u64 = 1 << 40;

/// What grants decide about a remote without a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The pool's filtering decides.
    AsPool,
    Granted(u32),
    /// The filter of this grant refuses the packet, or its port is held down.
    Refused(u32),
}

pub(crate) struct GrantStore {
    records: Arena<Grant>,
    owners: Arena<Owner>,
    by_internal: BucketTable,
    by_owner: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
    owners_free: u32,
    owners_untouched: u32,
    /// For clients without a record, as in [`Owner`].
    epoch_began: u64,
    /// As in [`Owner`]; 0 if never.
    addresses_changed: u64,
    /// Number of grants by [`Origin::place`].
    by_origin: [u32; Origin::COUNT],
}

impl GrantStore {
    pub(crate) fn new(grants_max: u32, hash: KeyedHash) -> Result<GrantStore, ArenaError> {
        // Pages come with the grants: without port control and gateways there are none.
        Ok(GrantStore {
            records: Arena::reserved(grants_max as usize + 1)?,
            owners: Arena::reserved(grants_max as usize + 1)?,
            by_internal: BucketTable::reserved(grants_max as usize)?,
            by_owner: BucketTable::reserved(grants_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            owners_free: 0,
            owners_untouched: 1,
            epoch_began: EPOCH_BIAS,
            addresses_changed: 0,
            by_origin: [0; Origin::COUNT],
        })
    }

    pub(crate) fn needs(grants_max: u32) -> [Need; 4] {
        let (records, entries) = (grants_max as usize + 1, BucketTable::need(grants_max as usize));
        let needs = [Arena::<Grant>::need(records), Arena::<Owner>::need(records), entries, entries];
        needs.map(|need| Need::Heap(need.bytes()))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.resident_bytes()
            + self.owners.resident_bytes()
            + self.by_internal.resident_bytes()
            + self.by_owner.resident_bytes()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_internal.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len() || self.by_internal.is_full()
    }

    pub(crate) fn has_room_for(&self, count: usize) -> bool {
        self.by_internal.len() + count < self.records.len()
    }

    /// Room for records that only keep a mapping's origin.
    pub(crate) fn is_half_empty(&self) -> bool {
        self.by_internal.len() < self.records.len() / 2
    }

    /// Including used ones.
    pub(crate) fn count_of_origin(&self, origin: Origin) -> u32 {
        self.by_origin[origin.place()]
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn get(&self, index: u32) -> &Grant {
        &self.records[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Grant {
        &mut self.records[index as usize]
    }

    fn hash_of(&self, key: &InternalKey) -> u64 {
        self.hash.hash(key.word(), 0x6772)
    }

    fn hash_of_owner(&self, realm: RealmId, address: HostNumber) -> u64 {
        self.hash.hash(u64::from(realm.0) << 32 | u64::from(address.0), 0x6f77)
    }

    /// Alive or not.
    pub(crate) fn find(&self, key: &InternalKey, is_it: impl Fn(&Grant) -> bool) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.by_internal.find(self.hash_of(key), |index| {
            let grant = self.get(index);
            grant.key() == *key && is_it(grant)
        })
    }

    /// For a remote without a session. `in_use`: the mapping has sessions, so that a held-down port
    /// is like any other.
    pub(crate) fn admission(&self, key: &InternalKey, remote: (u32, u16), in_use: bool, now: Instant) -> Admission {
        let admits = |grant: &Grant| grant.kind() != Kind::Call && grant.is_alive(now) && grant.remotes.admit(remote);
        if let Some(index) = self.find(key, admits) {
            return Admission::Granted(index);
        }
        // A gateway's grant excludes no remote: for others the pool's filtering decides.
        let is_exclusive = |grant: &Grant| match grant.kind() {
            Kind::Map => !grant.origin().is_alg(),
            Kind::Call => true,
            Kind::Peer | Kind::Once => false,
        };
        let closes = |grant: &Grant| match grant.is_held_down() {
            true => !in_use && now < grant.expires(),
            false => is_exclusive(grant) && grant.is_alive(now),
        };
        self.find(key, closes).map_or(Admission::AsPool, Admission::Refused)
    }

    fn find_owner(&self, realm: RealmId, address: HostNumber) -> Option<u32> {
        if self.by_owner.is_empty() {
            return None;
        }
        self.by_owner.find(self.hash_of_owner(realm, address), |index| {
            let owner = &self.owners[index as usize];
            owner.in_use != 0 && (owner.realm, owner.address) == (realm.0, address)
        })
    }

    /// Including held-down ones, latest first.
    pub(crate) fn of_owner(&self, realm: RealmId, address: HostNumber) -> impl Iterator<Item = u32> + '_ {
        let first = self.find_owner(realm, address).map_or(0, |owner| self.owners[owner as usize].head);
        let next = |index: &u32| Some(self.get(*index).next);
        core::iter::successors(Some(first), next).take_while(|index| *index != 0)
    }

    pub(crate) fn count_of_owner(&self, realm: RealmId, address: HostNumber) -> u32 {
        self.find_owner(realm, address).map_or(0, |owner| self.owners[owner as usize].count)
    }

    /// `owner`: the subscriber's address or number. `None` if full: nothing is evicted.
    pub(crate) fn insert(
        &mut self,
        request: &Request,
        owner: HostNumber,
        mapping: (u32, Endpoint),
        hold: u32,
        now: Instant,
    ) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let key = &request.key;
        let owner = self.owner_for(key.realm, owner)?;
        let index = if self.free != 0 { self.free } else { self.untouched };
        self.by_internal.insert(self.hash_of(key), index).ok()?;
        if index == self.free {
            self.free = self.get(index).next;
        } else {
            self.untouched += 1;
        }
        let head = self.owners[owner as usize].head;
        if head != 0 {
            self.get_mut(head).previous = index;
        }
        let (mapping, external) = mapping;
        self.records[index as usize] = Grant {
            mapping,
            hold,
            owner,
            next: head,
            internal_address: key.address,
            internal_port: key.port,
            external_address: external.address.to_bits(),
            external_port: external.port,
            expires: request.expires.as_micros(),
            created_s: (now.as_micros() / 1_000_000) as u32,
            realm: key.realm.0,
            protocol: key.protocol as u8,
            origin: request.origin.number(),
            kind: request.kind as u8,
            flags: IN_USE,
            requester: request.requester,
            remotes: request.remotes,
            ..Grant::new_zeroed()
        };
        self.by_origin[request.origin.place()] += 1;
        let owner = &mut self.owners[owner as usize];
        owner.head = index;
        owner.count += 1;
        Some(index)
    }

    /// Lifetime, filters and requester may differ.
    pub(crate) fn renew(&mut self, index: u32, request: &Request) {
        self.by_origin[self.get(index).origin().place()] -= 1;
        self.by_origin[request.origin.place()] += 1;
        self.get_mut(index).renew(request);
    }

    /// Its hold must be gone.
    pub(crate) fn remove(&mut self, index: u32) {
        let Grant { owner, next, previous, .. } = *self.get(index);
        let was_there = self.by_internal.remove(self.hash_of(&self.get(index).key()), index);
        debug_assert!(was_there, "every grant is in the table");
        self.by_origin[self.get(index).origin().place()] -= 1;
        if next != 0 {
            self.get_mut(next).previous = previous;
        }
        if previous != 0 {
            self.get_mut(previous).next = next;
        } else {
            self.owners[owner as usize].head = next;
        }
        self.owners[owner as usize].count -= 1;
        self.forget_owner_if_idle(owner);
        self.records[index as usize] = Grant { next: self.free, ..Grant::new_zeroed() };
        self.free = index;
    }

    fn owner_for(&mut self, realm: RealmId, address: HostNumber) -> Option<u32> {
        if let Some(known) = self.find_owner(realm, address) {
            return Some(known);
        }
        let index = if self.owners_free != 0 { self.owners_free } else { self.owners_untouched };
        if index as usize >= self.owners.len() {
            return None;
        }
        self.by_owner.insert(self.hash_of_owner(realm, address), index).ok()?;
        if index == self.owners_free {
            self.owners_free = self.owners[index as usize].head;
        } else {
            self.owners_untouched += 1;
        }
        let epoch_began = self.epoch_began;
        self.owners[index as usize] = Owner { address, realm: realm.0, in_use: 1, head: 0, count: 0, epoch_began };
        Some(index)
    }

    fn forget_owner_if_idle(&mut self, index: u32) {
        let Owner { address, realm, count, .. } = self.owners[index as usize];
        if count > 0 {
            return;
        }
        self.by_owner.remove(self.hash_of_owner(RealmId(realm), address), index);
        self.owners[index as usize] = Owner { head: self.owners_free, ..Owner::new_zeroed() };
        self.owners_free = index;
    }

    /// The epoch time of a client (RFC 6887 §8.5): seconds since its mappings were last lost.
    pub(crate) fn epoch(&self, realm: RealmId, address: HostNumber, now: Instant) -> u32 {
        let owner = self.find_owner(realm, address).map(|owner| self.owners[owner as usize].epoch_began);
        let now_s = EPOCH_BIAS + now.as_micros() / 1_000_000;
        now_s.saturating_sub(owner.unwrap_or(self.epoch_began)) as u32
    }

    /// The epoch time of requesters that depend on more than their own grants: seconds since state
    /// was lost or the external addresses changed. Equal on every worker.
    pub(crate) fn common_epoch(&self, now: Instant) -> u32 {
        let now_s = EPOCH_BIAS + now.as_micros() / 1_000_000;
        now_s.saturating_sub(self.epoch_began.max(self.addresses_changed)) as u32
    }

    /// Restarts only the common epoch time.
    pub(crate) fn note_addresses_changed(&mut self, now: Instant) {
        self.addresses_changed = EPOCH_BIAS + now.as_micros() / 1_000_000;
    }

    /// For all clients.
    pub(crate) fn set_epoch(&mut self, now: Instant, epoch_s: u32) {
        self.epoch_began = EPOCH_BIAS + now.as_micros() / 1_000_000 - u64::from(epoch_s);
        for owner in self.owners.iter_mut().take(self.owners_untouched as usize) {
            owner.epoch_began = self.epoch_began;
        }
    }

    /// For clients without a record.
    pub(crate) fn continue_epoch(&mut self, now: Instant, epoch_s: u32) {
        self.epoch_began = EPOCH_BIAS + now.as_micros() / 1_000_000 - u64::from(epoch_s);
    }

    /// The client's external address changed.
    pub(crate) fn reset_epoch(&mut self, realm: RealmId, address: HostNumber, now: Instant) {
        if let Some(owner) = self.find_owner(realm, address) {
            self.owners[owner as usize].epoch_began = EPOCH_BIAS + now.as_micros() / 1_000_000;
        }
    }

    /// For a restored grant.
    pub(crate) fn set_epoch_of(&mut self, realm: RealmId, address: HostNumber, now: Instant, epoch_s: u32) {
        if let Some(owner) = self.find_owner(realm, address) {
            let now_s = EPOCH_BIAS + now.as_micros() / 1_000_000;
            self.owners[owner as usize].epoch_began = now_s - u64::from(epoch_s);
        }
    }
}
