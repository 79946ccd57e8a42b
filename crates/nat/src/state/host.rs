//! A worker's IPv6 hosts, and the 32-bit numbers that stand for them in other records.
//!
//! ```text
//!   hash(address, inner address, way) → index → Host, 32 bytes
//!   number = 1110 (NAT64) or 1111 (softwire) │ 28 bits: first of the worker + index
//! ```
//!
//! So their mappings have the size and code of any other. The numbers look like addresses that no
//! IPv4 host can have ([`crate::types::HOSTS_FIRST`]).
//!
//! A prefix, which is the subscriber, has a record and a number of its own here. A record lives
//! while others refer to it, and then [`LINGER`] longer: held fragments and SYNs name a host
//! without a reference, and the number must not mean another host meanwhile. A record that nothing
//! has named, because the packets of its host were dropped, ends with the burst, or after
//! [`UNNAMED_LINGER`]. So packets from invented sources do not fill the table, and do not count
//! among the hosts of a prefix.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use translate::Halves;
use zerocopy::FromZeros;

use crate::random::KeyedHash;
use crate::state::table::BucketTable;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HOSTS_FIRST;
use crate::types::HostName;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::SOFTWIRE_HOSTS_FIRST;
use crate::types::WorkerId;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// Longer than a fragment or SYN is held.
pub(crate) const LINGER: Duration = Duration::from_secs(20);

/// A record that nothing has named stays longer than its packet is under way.
const UNNAMED_LINGER: Duration = Duration::from_secs(2);
/// Hosts that a burst can bring.
const FRESH_MAX: usize = 64;
/// Records that are looked at to find a replaceable one when the table is full.
const LOOKED_AT: u32 = 64;

/// Numbers of all workers together.
const NUMBERS: u64 = 1 << 28;

const IN_USE: u8 = 1 << 0;
const SOFTWIRE: u8 = 1 << 1;
/// Stands for all hosts with a prefix.
const SUBSCRIBER: u8 = 1 << 2;
/// No mapping, held packet or event has named it.
const UNNAMED: u8 = 1 << 3;
const KIND: u8 = IN_USE | SOFTWIRE | SUBSCRIBER;
/// From this bit on: [`HostStore::naming`] when its name was logged.
const NAMED_SHIFT: u32 = 4;
const NAMED_LAST: u8 = u8::MAX >> NAMED_SHIFT;

/// In [`Host::rest`].
const WAY_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 40;
const TOUCHED_SHIFT: u32 = 48;
/// What differs between hosts.
const KEY: u64 = rest_of(u32::MAX, u8::MAX, KIND, 0);

#[inline(always)]
const fn rest_of(inner: u32, position: u8, flags: u8, touched_s: u16) -> u64 {
    inner as u64 | (position as u64) << WAY_SHIFT | (flags as u64) << FLAGS_SHIFT | (touched_s as u64) << TOUCHED_SHIFT
}

/// A host, or a subscriber of several.
#[derive(Clone, Copy, FromZeros)]
#[repr(C, align(32))]
pub(crate) struct Host {
    /// The address as [`Halves`].
    address: [u64; 2],
    /// One word, so that a key is compared at once. From the lowest bit on: 32 bits inner address
    /// behind a softwire, else 0, or a subscriber's realm; 8 bits position of the way; 8 bits
    /// flags; 16 bits second in which a packet last needed it while it had no references.
    rest: u64,
    /// Its subscriber's number; a subscriber's count of hosts; a free record's successor.
    subscriber: u32,
    /// Mappings, flows, hosts and subscriber records that name it.
    references: u32,
}

const _: () = assert!(size_of::<Host>() == 32, "two hosts are one cache line");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostKey {
    pub(crate) address: u128,
    /// 0 without a softwire.
    pub(crate) inner: u32,
    pub(crate) way: Way,
}

/// A [`HostKey`] as the host's record has it.
#[derive(Clone, Copy)]
pub(crate) struct HostWords {
    pub(crate) address: Halves,
    /// [`Host::rest`] with [`KEY`].
    rest: u64,
}

impl HostWords {
    #[inline(always)]
    pub(crate) const fn new(address: Halves, inner: u32, way: Way) -> HostWords {
        HostWords { address, rest: rest_of(inner, way.position(), way.flags(), 0) }
    }

    #[inline(always)]
    const fn numbers(self) -> u32 {
        HOSTS_FIRST | ((self.rest >> FLAGS_SHIFT) as u32 & SOFTWIRE as u32) << (28 - SOFTWIRE.trailing_zeros())
    }
}

const _: () = assert!(SOFTWIRE_HOSTS_FIRST == HOSTS_FIRST | 1 << 28, "see HostWords::numbers");

impl HostKey {
    #[inline(always)]
    pub(crate) const fn words(&self) -> HostWords {
        HostWords::new(Halves::of(self.address), self.inner, self.way)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Previewed {
    pub(crate) number: HostNumber,
    pub(crate) is_known: bool,
}

/// How a host reaches IPv4, by position in the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Nat64(u8),
    Softwire(u8),
}

impl Way {
    #[inline(always)]
    const fn position(self) -> u8 {
        match self {
            Way::Nat64(position) | Way::Softwire(position) => position,
        }
    }

    #[inline(always)]
    const fn flags(self) -> u8 {
        match self {
            Way::Nat64(_) => IN_USE,
            Way::Softwire(_) => IN_USE | SOFTWIRE,
        }
    }

    #[inline(always)]
    const fn numbers(self) -> u32 {
        match self {
            Way::Nat64(_) => HOSTS_FIRST,
            Way::Softwire(_) => SOFTWIRE_HOSTS_FIRST,
        }
    }
}

impl Host {
    /// A record for an explanation.
    pub(crate) fn of(key: &HostKey) -> Host {
        Host { address: Halves::of(key.address).0, rest: key.words().rest, ..Host::new_zeroed() }
    }

    #[inline(always)]
    pub(crate) const fn address(&self) -> u128 {
        self.halves().address()
    }

    #[inline(always)]
    pub(crate) const fn halves(&self) -> Halves {
        Halves(self.address)
    }

    #[inline(always)]
    pub(crate) const fn inner(&self) -> u32 {
        self.rest as u32
    }

    #[inline(always)]
    const fn flags(&self) -> u8 {
        (self.rest >> FLAGS_SHIFT) as u8
    }

    const fn set_flags(&mut self, flags: u8) {
        self.rest = self.rest & !(0xff << FLAGS_SHIFT) | (flags as u64) << FLAGS_SHIFT;
    }

    const fn touched_s(&self) -> u16 {
        (self.rest >> TOUCHED_SHIFT) as u16
    }

    const fn touch(&mut self, now: Instant) {
        self.rest = self.rest & !(0xffff << TOUCHED_SHIFT) | (seconds(now) as u64) << TOUCHED_SHIFT;
    }

    pub(crate) const fn key(&self) -> HostKey {
        HostKey { address: self.address(), inner: self.inner(), way: self.way() }
    }

    pub(crate) const fn is_subscriber(&self) -> bool {
        self.flags() & SUBSCRIBER != 0
    }

    const fn is_in_use(&self) -> bool {
        self.flags() & IN_USE != 0
    }

    #[inline(always)]
    pub(crate) const fn way(&self) -> Way {
        let position = (self.rest >> WAY_SHIFT) as u8;
        if self.flags() & SOFTWIRE != 0 { Way::Softwire(position) } else { Way::Nat64(position) }
    }

    #[inline(always)]
    fn is(&self, words: HostWords) -> bool {
        let Halves([high, low]) = words.address;
        (self.address[0] ^ high) | (self.address[1] ^ low) | (self.rest & KEY ^ words.rest) == 0
    }
}

pub(crate) struct HostStore {
    records: Arena<Host>,
    table: BucketTable,
    hash: KeyedHash,
    /// The lower 28 bits of the number that index 0 has.
    first: u32,
    prefix_length: u8,
    per_subscriber_max: u32,
    free: u32,
    untouched: u32,
    cursor: u32,
    /// Hosts of the current burst that were not known before it.
    fresh: Vec<u32>,
    /// The number in [`Host::flags`] of records that were named since the log last forgot names.
    naming: u8,
}

#[inline]
pub(crate) const fn worker_of_number(number: HostNumber, workers: usize) -> WorkerId {
    WorkerId((((number.0 as u64 & (NUMBERS - 1)) * workers as u64) / NUMBERS) as u8)
}

const fn first_of(worker: WorkerId, workers: usize) -> u32 {
    (worker.0 as u64 * NUMBERS).div_ceil(workers as u64) as u32
}

#[inline]
pub(crate) const fn subscriber_prefix(address: u128, prefix_length: u8) -> u128 {
    match prefix_length {
        0 => 0,
        length => address & (u128::MAX << (128 - length as u32)),
    }
}

/// Room in the table, half as much again as there are records: a full one then has nearly all hosts
/// in their home buckets, which is the only place where the short way looks for them.
const fn entries_of(hosts_max: usize) -> usize {
    hosts_max + hosts_max / 2
}

impl HostStore {
    /// Allocates nothing without hosts.
    pub(crate) fn new(
        hosts_max: u32,
        (prefix_length, per_subscriber_max): (u8, u32),
        (worker, workers): (WorkerId, usize),
        hash: KeyedHash,
    ) -> Result<HostStore, ArenaError> {
        // The numbers of a worker, less index 0 and 255.255.255.255.
        let hosts_max = u64::from(hosts_max).min(NUMBERS / workers as u64 - 2) as usize;
        Ok(HostStore {
            records: Arena::zeroed(hosts_max + 1)?,
            table: BucketTable::with_capacity(entries_of(hosts_max))?,
            hash,
            first: first_of(worker, workers),
            prefix_length,
            per_subscriber_max,
            free: 0,
            untouched: 1,
            cursor: 1,
            fresh: Vec::with_capacity(if hosts_max == 0 { 0 } else { FRESH_MAX }),
            naming: 1,
        })
    }

    pub(crate) fn needs(hosts_max: u32) -> [Need; 2] {
        [Arena::<Host>::need(hosts_max as usize + 1), BucketTable::need(entries_of(hosts_max as usize))]
    }

    pub(crate) const fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.bytes() + self.table.bytes()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline(always)]
    pub(crate) fn hash_of(&self, key: &HostKey) -> u64 {
        self.hash_of_words(key.words())
    }

    /// What a host can choose lies over the first bits of its address, which it cannot choose.
    #[inline(always)]
    pub(crate) fn hash_of_words(&self, words: HostWords) -> u64 {
        let Halves([high, low]) = words.address;
        self.hash.hash(high ^ words.rest.to_le(), low)
    }

    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// The first record that [`HostStore::find`] compares, or 0.
    #[inline(always)]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        self.table.candidate(hash).0
    }

    #[inline(always)]
    pub(crate) fn prefetch_record(&self, candidate: u32) {
        self.records.prefetch(candidate as usize);
    }

    #[inline(always)]
    pub(crate) fn aim(&self, hash: u64) -> u32 {
        let candidate = self.candidate(hash);
        self.prefetch_record(candidate);
        candidate
    }

    #[inline(always)]
    fn number(&self, index: u32) -> HostNumber {
        HostNumber(self.records.at(index).way().numbers() | (self.first + index))
    }

    #[inline(always)]
    fn index_of(&self, number: HostNumber) -> Option<u32> {
        let index = (number.0 & (NUMBERS as u32 - 1)).checked_sub(self.first)?;
        (number.is_ipv6() && index < self.untouched).then_some(index)
    }

    /// The record of a number; `None` for a number of another worker.
    #[inline(always)]
    pub(crate) fn get(&self, number: HostNumber) -> Option<&Host> {
        self.index_of(number).map(|index| self.records.at(index)).filter(|host| host.is_in_use())
    }

    /// Place of the record, prefetched; 0 for none.
    #[inline(always)]
    pub(crate) fn aim_at_number(&self, number: HostNumber) -> u32 {
        let index = self.index_of(number).unwrap_or(0);
        self.records.prefetch(index as usize);
        index
    }

    #[inline(always)]
    pub(crate) fn at_place(&self, index: u32) -> Option<&Host> {
        Some(self.records.at(index)).filter(|host| host.is_in_use())
    }

    /// [`HostStore::at_place`] of a host of NAT64, with the position of its prefix.
    #[inline(always)]
    pub(crate) fn nat64_at_place(&self, index: u32) -> Option<(&Host, u8)> {
        let host = self.records.at(index);
        (host.flags() & (IN_USE | SOFTWIRE) == IN_USE).then_some((host, (host.rest >> WAY_SHIFT) as u8))
    }

    /// The name that the log needs before a record with this number.
    pub(crate) fn unlogged_name(&self, number: HostNumber) -> Option<HostName> {
        let host = self.get(number).filter(|host| host.flags() >> NAMED_SHIFT != self.naming)?;
        let prefix_length = if host.is_subscriber() { self.prefix_length } else { 128 };
        let is_softwire = host.flags() & SOFTWIRE != 0;
        Some(HostName { address: host.address(), prefix_length, inner: is_softwire.then_some(host.inner()) })
    }

    pub(crate) fn set_logged(&mut self, number: HostNumber) {
        let naming = self.naming;
        if let Some(index) = self.index_of(number) {
            let host = self.records.at_mut(index);
            host.set_flags(host.flags() & KIND | naming << NAMED_SHIFT);
        }
    }

    /// The log may have lost all names: each is recorded again when needed.
    pub(crate) fn forget_names(&mut self) {
        self.naming = if self.naming == NAMED_LAST { 1 } else { self.naming + 1 };
    }

    /// An address or number; an IPv4 address is its own subscriber.
    #[inline(always)]
    pub(crate) fn subscriber_of(&self, number: HostNumber) -> HostNumber {
        if number.is_ipv6() { self.subscriber_of_host(number) } else { number }
    }

    #[inline]
    fn subscriber_of_host(&self, number: HostNumber) -> HostNumber {
        match self.get(number) {
            Some(host) if !host.is_subscriber() => HostNumber(host.subscriber),
            // The number of a new host behind a softwire, see `preview`.
            Some(_) => HostNumber(number.0 & !(HOSTS_FIRST ^ SOFTWIRE_HOSTS_FIRST)),
            None => number,
        }
    }

    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, key: &HostKey) -> Option<HostNumber> {
        let words = key.words();
        self.table.find(hash, |index| self.records.at(index).is(words)).map(|index| self.number(index))
    }

    /// As [`HostStore::enter`] for the host from [`HostStore::aim`]; `None` if it is another.
    #[inline(always)]
    pub(crate) fn enter_expected(&mut self, now: Instant, candidate: u32, words: HostWords) -> Option<HostNumber> {
        let record = self.records.at_mut(candidate);
        if !record.is(words) {
            return None;
        }
        if record.references == 0 {
            record.touch(now);
        }
        Some(HostNumber(words.numbers() | (self.first + candidate)))
    }

    /// As [`HostStore::enter`] for a known host.
    #[cold]
    #[inline(never)]
    pub(crate) fn enter_known(&mut self, now: Instant, hash: u64, words: &HostWords) -> Option<HostNumber> {
        let index = self.table.find(hash, |index| self.records.at(index).is(*words))?;
        let record = self.records.at_mut(index);
        if record.references == 0 {
            record.touch(now);
        }
        Some(self.number(index))
    }

    /// Finds a host, or gives it a number.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        now: Instant,
        hash: u64,
        key: &HostKey,
        realm: RealmId,
    ) -> Result<HostNumber, Verdict> {
        let words = key.words();
        let found = self.table.find(hash, |index| self.records.at(index).is(words));
        let index = match found {
            Some(index) => index,
            None => self.add_host(now, hash, key, realm)?,
        };
        if self.records.at(index).references == 0 {
            self.records.at_mut(index).touch(now);
        }
        Ok(self.number(index))
    }

    #[cold]
    fn add_host(&mut self, now: Instant, hash: u64, key: &HostKey, realm: RealmId) -> Result<u32, Verdict> {
        let subscriber = self.subscriber_for(now, key.address, realm)?;
        let index = self.index_of(subscriber).ok_or(Verdict::HostTableFull)?;
        if self.records.at(index).subscriber >= self.per_subscriber_max {
            return Err(Verdict::HostLimit);
        }
        let mut fresh = Host { subscriber: subscriber.0, ..Host::of(key) };
        fresh.set_flags(key.way.flags() | UNNAMED);
        fresh.touch(now);
        // First, so that making room does not replace the subscriber.
        self.count_host(index, 1);
        let host = self.insert(now, hash, fresh);
        match host {
            Some(host) if self.fresh.len() < self.fresh.capacity() => self.fresh.push(host),
            Some(_) => {}
            None => self.count_host(index, -1),
        }
        host.ok_or(Verdict::HostTableFull)
    }

    fn count_host(&mut self, subscriber: u32, change: i32) {
        let record = self.records.at_mut(subscriber);
        record.subscriber = record.subscriber.saturating_add_signed(change);
        record.references = record.references.saturating_add_signed(change);
    }

    /// [`HostStore::enter`] without a change. A new host gets its subscriber's number: both have no
    /// mapping, and the same limits.
    pub(crate) fn preview(&self, now: Instant, hash: u64, key: &HostKey, realm: RealmId) -> Result<Previewed, Verdict> {
        if let Some(number) = self.find(hash, key) {
            return Ok(Previewed { number, is_known: true });
        }
        let subscriber = self.find_subscriber(key.address, realm);
        let index = subscriber.and_then(|number| self.index_of(number));
        let untouched = self.records.len() as u32 - self.untouched;
        let room = match self.free {
            0 => untouched,
            free => untouched + 1 + u32::from(self.records.at(free).subscriber != 0),
        };
        let mut unnamed = self.unnamed(seconds(now)).filter(|place| Some(*place) != index);
        let made = unnamed
            .clone()
            .take(2)
            .map(|place| 1 + u32::from(self.only_for(place).is_some_and(|only| Some(only) != index)));
        let room_at_most = room + made.sum::<u32>();
        if room_at_most == 0 && index.is_none() {
            return Err(Verdict::HostTableFull);
        }
        if index.map_or(0, |index| self.records.at(index).subscriber) >= self.per_subscriber_max {
            return Err(Verdict::HostLimit);
        }
        if room_at_most < 1 + u32::from(index.is_none()) {
            return Err(Verdict::HostTableFull);
        }
        let fresh = match self.free {
            0 if untouched == 0 => unnamed.next().unwrap_or(0),
            0 => self.untouched,
            free => free,
        };
        let number = subscriber.map_or(HOSTS_FIRST | (self.first + fresh), |number| number.0);
        // Routes recognise the way by the number.
        Ok(Previewed { number: HostNumber(number | key.way.numbers()), is_known: false })
    }

    fn hash_of_subscriber(&self, prefix: u128, realm: RealmId) -> u64 {
        self.hash.hash((prefix >> 64) as u64, prefix as u64 ^ u64::from(realm.0) << 16 ^ 0x5b5c)
    }

    pub(crate) fn find_subscriber(&self, address: u128, realm: RealmId) -> Option<HostNumber> {
        let prefix = subscriber_prefix(address, self.prefix_length);
        let hash = self.hash_of_subscriber(prefix, realm);
        let is_it = |index| {
            let record = self.records.at(index);
            record.is_subscriber() && record.address() == prefix && record.inner() == u32::from(realm.0)
        };
        self.table.find(hash, is_it).map(|index| self.number(index))
    }

    fn subscriber_for(&mut self, now: Instant, address: u128, realm: RealmId) -> Result<HostNumber, Verdict> {
        if let Some(number) = self.find_subscriber(address, realm) {
            return Ok(number);
        }
        let prefix = subscriber_prefix(address, self.prefix_length);
        let fresh = Host {
            address: Halves::of(prefix).0,
            rest: rest_of(realm.0.into(), 0, IN_USE | SUBSCRIBER | UNNAMED, seconds(now)),
            subscriber: 0,
            references: 0,
        };
        let index = self.insert(now, self.hash_of_subscriber(prefix, realm), fresh).ok_or(Verdict::HostTableFull)?;
        Ok(self.number(index))
    }

    fn insert(&mut self, now: Instant, hash: u64, fresh: Host) -> Option<u32> {
        if self.is_full() {
            let place = self.unnamed(seconds(now)).next();
            if let Some(index) = place {
                self.end(now, index);
            }
        }
        let index = match self.free {
            0 if (self.untouched as usize) < self.records.len() => self.untouched,
            0 => return None,
            free => free,
        };
        self.table.insert(hash, index).ok()?;
        if index == self.free {
            self.free = self.records.at(index).subscriber;
        } else {
            self.untouched += 1;
        }
        *self.records.at_mut(index) = fresh;
        Some(index)
    }

    fn is_full(&self) -> bool {
        self.free == 0 && self.untouched as usize == self.records.len()
    }

    fn unnamed(&self, now_s: u16) -> impl Iterator<Item = u32> + Clone + '_ {
        let places = 1..self.untouched;
        let start = if places.contains(&self.cursor) { self.cursor } else { places.start };
        let count = LOOKED_AT.min(places.len() as u32);
        let place = move |step| if start + step < places.end { start + step } else { start + step - places.end + 1 };
        (0..count).map(place).filter(move |place| {
            let record = self.records.at(*place);
            record.flags() & (IN_USE | UNNAMED) == IN_USE | UNNAMED && is_over(now_s, record)
        })
    }

    /// Ends a record, and its subscriber if that was made for this host alone.
    fn end(&mut self, now: Instant, index: u32) {
        let subscriber = self.only_for(index);
        self.remove(now, index);
        if let Some(index) = subscriber {
            self.remove(now, index);
        }
    }

    /// The burst is over: ends the records of its new hosts that nothing has named, because their
    /// packets were dropped.
    #[inline]
    pub(crate) fn settle(&mut self, now: Instant) {
        if !self.fresh.is_empty() {
            self.end_unnamed(now);
        }
    }

    #[cold]
    fn end_unnamed(&mut self, now: Instant) {
        while let Some(index) = self.fresh.pop() {
            let record = self.records.at(index);
            if record.flags() & (IN_USE | UNNAMED) == IN_USE | UNNAMED && record.references == 0 {
                self.end(now, index);
            }
        }
    }

    /// The subscriber of a host, if it has no other host and nothing else has named it.
    fn only_for(&self, host: u32) -> Option<u32> {
        let host = self.records.at(host);
        let index = if host.is_subscriber() { None } else { self.index_of(HostNumber(host.subscriber)) }?;
        let subscriber = self.records.at(index);
        (subscriber.references == 1 && subscriber.flags() & UNNAMED != 0).then_some(index)
    }

    /// Keeps a host that something without a reference names.
    pub(crate) fn keep(&mut self, number: HostNumber) {
        if number.is_ipv6()
            && let Some(index) = self.index_of(number)
        {
            let record = self.records.at_mut(index);
            record.set_flags(record.flags() & !UNNAMED);
        }
    }

    /// Counts a record that names the host. Ignores IPv4 addresses.
    #[inline(always)]
    pub(crate) fn retain(&mut self, number: HostNumber) {
        if number.is_ipv6()
            && let Some(index) = self.index_of(number)
        {
            let record = self.records.at_mut(index);
            record.references += 1;
            record.set_flags(record.flags() & !UNNAMED);
        }
    }

    /// Uncounts a record that named the host.
    #[inline(always)]
    pub(crate) fn release(&mut self, now: Instant, number: HostNumber) {
        if number.is_ipv6()
            && let Some(index) = self.index_of(number)
        {
            let record = self.records.at_mut(index);
            debug_assert!(record.references > 0, "each was counted");
            record.references = record.references.saturating_sub(1);
            record.touch(now);
        }
    }

    /// As [`HostStore::release`], but it lingers from its last touch.
    pub(crate) fn release_subscriber(&mut self, number: HostNumber) {
        if number.is_ipv6()
            && let Some(index) = self.index_of(number)
        {
            let record = self.records.at_mut(index);
            debug_assert!(record.references > 0, "each was counted");
            record.references = record.references.saturating_sub(1);
        }
    }

    pub(crate) fn sweep(&mut self, now: Instant, count: u32) {
        let now_s = seconds(now);
        for _ in 0..count.min(self.untouched - 1) {
            if self.cursor >= self.untouched {
                self.cursor = 1;
            }
            let index = self.cursor;
            self.cursor += 1;
            // Long before this naming's number comes again.
            let record = self.records.at(index);
            if record.flags() >> NAMED_SHIFT != self.naming {
                let flags = record.flags() & (KIND | UNNAMED);
                self.records.at_mut(index).set_flags(flags);
            }
            let record = self.records.at(index);
            if record.is_in_use() && is_over(now_s, record) {
                self.end(now, index);
            }
        }
        // For the next call. Two records are one line.
        for index in (self.cursor..self.cursor.saturating_add(count)).step_by(2) {
            self.records.prefetch(index as usize);
        }
    }

    fn remove(&mut self, now: Instant, index: u32) {
        let record = *self.records.at(index);
        let hash = if record.is_subscriber() {
            self.hash_of_subscriber(record.address(), RealmId(record.inner() as u16))
        } else {
            self.hash_of(&record.key())
        };
        let was_there = self.table.remove(hash, index);
        debug_assert!(was_there, "every record is in the table");
        if !record.is_subscriber()
            && let Some(subscriber) = self.index_of(HostNumber(record.subscriber))
        {
            self.count_host(subscriber, -1);
            self.records.at_mut(subscriber).touch(now);
        }
        *self.records.at_mut(index) = Host { subscriber: self.free, ..Host::new_zeroed() };
        self.free = index;
    }
}

fn is_over(now_s: u16, record: &Host) -> bool {
    let idle_s = now_s.wrapping_sub(record.touched_s());
    let linger = if record.flags() & UNNAMED == 0 { LINGER } else { UNNAMED_LINGER };
    record.references == 0 && u64::from(idle_s) > linger.as_secs()
}

const fn seconds(now: Instant) -> u16 {
    (now.as_micros() / 1_000_000) as u16
}
