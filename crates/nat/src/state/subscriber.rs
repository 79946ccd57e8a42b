//! Subscribers and their paired external addresses (RFC 4787 §4.1 REQ-2).

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::random::KeyedHash;
use crate::state::bucket::Bucket;
use crate::state::host::HostStore;
use crate::state::table::BucketTable;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Block;
use crate::types::HostNumber;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

mod lapsed;

/// Counted for a mapping with its first session.
pub const MAPPING_BYTES: u64 = 73;
/// Counted for a further session.
pub const EXTRA_SESSION_BYTES: u64 = 58;
/// Counted for a flow.
pub const FLOW_BYTES: u64 = 110;

/// An internal address of one realm, or an IPv6 prefix's number. One cache line with all that a new
/// mapping needs.
///
/// ```text
///   bytes  0-31  its identity, class and mappings
///         32-47  its port blocks (see `steps/port_choice.rs`)
///         48-57  further counts, and a token bucket (see `shard/commit/admission.rs`)
/// ```
///
/// What few subscribers need is in an [`Account`].
#[derive(FromZeros, Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Subscriber {
    pub(crate) address: HostNumber,
    pub(crate) paired: u32,
    pub(crate) realm: u16,
    pub(crate) pool: u16,
    flags: u8,
    /// 1 if it has an account.
    has_account: u8,
    pub(crate) class: u16,
    /// Mappings with their first sessions, by protocol.
    pub(crate) mappings: [u32; Protocol::COUNT],
    pub(crate) flows: u32,
    /// The latest block, which names the previous one; 0 for none.
    blocks: u32,
    /// Blocks from which ports are taken first, by protocol; 0 for none.
    active: [u32; Protocol::COUNT],
    pub(crate) extra_sessions: u32,
    pub(crate) mapping_bucket: Bucket,
    /// Low bits of the generation that last checked `pool` and `paired`. `shard/reload/adopt.rs`
    /// keeps old values from equalling the current one.
    pub(crate) generation: u16,
    /// Low bits of the generation that found `class`.
    pub(crate) class_generation: u16,
    /// Low bits of [`SubscriberStore::mappings_created`].
    mappings_created: u16,
}

const _: () = assert!(size_of::<Subscriber>() == 64, "a subscriber is one cache line");

const IN_USE: u8 = 1 << 0;
/// By protocol and for sessions: reported as above a threshold.
const ABOVE: [u8; Protocol::COUNT + 1] = [1 << 1, 1 << 2, 1 << 3, 1 << 4];
const ABOVE_ANY: u8 = ABOVE[0] | ABOVE[1] | ABOVE[2] | ABOVE[3];
/// Flag of an offender, whose record stays without mappings.
const OFFENDER: u8 = 1 << 5;
/// Set instead of [`IN_USE`]: see `subscriber/lapsed.rs`.
const LAPSED: u8 = 1 << 6;
/// Charged for shared ports, see [`Account::shared`].
const SHARES: u8 = 1 << 7;

/// All zero, and without memory, until something is written: a subscriber without limits, refusals
/// or ports on several addresses has none.
#[derive(FromZeros, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Account {
    pub(crate) refused: RefusedToKnown,
    offences: u32,
    penalty_since_s: u32,
    /// An offender's address in its own pool: index plus one; 0 for none.
    home: u32,
    shared: [u32; Protocol::COUNT],
    guaranteed_at: u32,
    guaranteed: [u16; Protocol::COUNT],
    within: [u16; Protocol::COUNT],
    first_offence: Micros48,
    last_offence: Micros48,
    pub(crate) session_bucket: Bucket,
    penalty_pool: u16,
    /// An address in another pool: index plus one; 0 for none.
    elsewhere: u32,
    /// Upper bits of the mappings created, in units of 65,536.
    mappings_created_high: u32,
    /// External addresses that the subscriber had before this one.
    addresses_before: u32,
}

/// Microseconds modulo 2^48: 8.9 years.
#[derive(FromZeros, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Micros48([u16; 3]);

impl Micros48 {
    fn at(now: Instant) -> Micros48 {
        let micros = now.as_micros();
        Micros48([micros as u16, (micros >> 16) as u16, (micros >> 32) as u16])
    }

    fn elapsed(self, now: Instant) -> Duration {
        let [low, middle, high] = self.0.map(u64::from);
        Duration::from_micros(now.as_micros().wrapping_sub(low | middle << 16 | high << 32) & ((1 << 48) - 1))
    }
}

pub(crate) type Refused = [u32; Account::CAUSES.len()];
/// Without the last cause, which no record can have.
pub(crate) type RefusedToKnown = [u32; Account::CAUSES.len() - 1];

pub(crate) fn add_refusal(refused: &mut [u32], cause: Verdict) -> bool {
    let position = Account::CAUSES.iter().position(|known| *known == cause);
    let Some(count) = position.and_then(|position| refused.get_mut(position)) else { return false };
    *count = count.saturating_add(1);
    true
}

impl Account {
    const NONE: Account = Account {
        refused: [0; Account::CAUSES.len() - 1],
        offences: 0,
        penalty_since_s: 0,
        home: 0,
        shared: [0; Protocol::COUNT],
        guaranteed_at: 0,
        guaranteed: [0; Protocol::COUNT],
        within: [0; Protocol::COUNT],
        first_offence: Micros48([0; 3]),
        last_offence: Micros48([0; 3]),
        session_bucket: Bucket::UNUSED,
        penalty_pool: 0,
        elsewhere: 0,
        mappings_created_high: 0,
        addresses_before: 0,
    };

    /// Reasons to refuse a subscriber; the last means that it has no record.
    pub(crate) const CAUSES: [Verdict; 13] = [
        Verdict::SubscriberPortQuota,
        Verdict::SubscriberSessionQuota,
        Verdict::SubscriberMemoryQuota,
        Verdict::SubscriberRateLimit,
        Verdict::BlockLimit,
        Verdict::PortsExhausted,
        Verdict::AddressDraining,
        Verdict::SessionLimit,
        Verdict::MappingTableFull,
        Verdict::SessionTableFull,
        Verdict::FlowTableFull,
        Verdict::LogFull,
        Verdict::SubscriberTableFull,
    ];

    pub(crate) fn count(&mut self, cause: Verdict) {
        add_refusal(&mut self.refused, cause);
    }

    pub(crate) fn home(&self) -> Option<AddressIndex> {
        self.home.checked_sub(1).map(AddressIndex)
    }

    pub(crate) fn set_home(&mut self, home: Option<AddressIndex>) {
        self.home = home.map_or(0, |home| home.0.saturating_add(1));
    }

    pub(crate) fn guaranteed_at(&self) -> AddressIndex {
        AddressIndex(self.guaranteed_at)
    }

    pub(crate) fn guarantee(&self) -> [u32; Protocol::COUNT] {
        self.guaranteed.map(u32::from)
    }

    pub(crate) fn has_guarantee(&self) -> bool {
        self.guaranteed != [0; Protocol::COUNT]
    }

    pub(crate) fn is_guaranteed(&self, address: AddressIndex) -> bool {
        self.has_guarantee() && self.guaranteed_at == address.0
    }

    pub(crate) fn within(&self) -> [u32; Protocol::COUNT] {
        self.within.map(u32::from)
    }

    pub(crate) fn uses_guarantee(&self) -> bool {
        self.within != [0; Protocol::COUNT]
    }

    pub(crate) fn has_left(&self, address: AddressIndex, protocol: Protocol) -> bool {
        let p = protocol.index();
        self.is_guaranteed(address) && self.within[p] < self.guaranteed[p]
    }

    /// Sets the guarantee. 16 bits suffice for the ports of an address.
    pub(crate) fn set_guarantee(&mut self, address: AddressIndex, ports: [u32; Protocol::COUNT]) {
        self.guaranteed_at = address.0;
        self.guaranteed = ports.map(|number| u16::try_from(number).unwrap_or(u16::MAX));
    }

    pub(crate) fn take_guarantee(&mut self, other: &Account) {
        (self.guaranteed_at, self.guaranteed, self.within) = (other.guaranteed_at, other.guaranteed, other.within);
    }

    pub(crate) fn count_within(&mut self, protocol: Protocol) {
        self.within[protocol.index()] += 1;
    }

    pub(crate) fn uncount_within(&mut self, protocol: Protocol) {
        let within = &mut self.within[protocol.index()];
        debug_assert!(*within > 0, "each port of a guarantee was counted");
        *within = within.saturating_sub(1);
    }

    /// After `window`, counting restarts from one.
    pub(crate) fn note_offence(&mut self, now: Instant, window: Duration) {
        if self.offences == 0 || self.first_offence.elapsed(now) >= window {
            (self.offences, self.first_offence) = (0, Micros48::at(now));
        }
        self.offences = self.offences.saturating_add(1);
        self.last_offence = Micros48::at(now);
    }

    pub(crate) fn has_offences(&self, now: Instant, window: Duration) -> bool {
        self.offences > 0 && self.first_offence.elapsed(now) < window
    }

    pub(crate) fn offences(&self) -> u32 {
        self.offences
    }

    pub(crate) fn begin_penalty(&mut self, now: Instant, pool: PoolName) {
        self.penalty_since_s = seconds(now);
        self.penalty_pool = pool.0;
        self.offences = 0;
    }

    /// May no longer exist, or no longer serve the class.
    pub(crate) fn penalty_pool(&self) -> PoolName {
        PoolName(self.penalty_pool)
    }

    pub(crate) fn penalty_s(&self, now: Instant) -> u32 {
        seconds(now).saturating_sub(self.penalty_since_s)
    }

    pub(crate) fn is_quiet(&self, now: Instant, release: Duration) -> bool {
        self.last_offence.elapsed(now) >= release
    }
}

fn seconds(at: Instant) -> u32 {
    (at.as_micros() / 1_000_000) as u32
}

impl Subscriber {
    pub(crate) fn realm(&self) -> RealmId {
        RealmId(self.realm)
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.flags & IN_USE != 0
    }

    fn is_idle(&self) -> bool {
        self.flows == 0 && self.blocks == 0 && !self.is_offender() && self.mappings.iter().all(|count| *count == 0)
    }

    #[inline]
    pub(crate) fn is_sharing(&self) -> bool {
        self.flags & SHARES != 0
    }

    #[inline]
    pub(crate) fn is_offender(&self) -> bool {
        self.flags & OFFENDER != 0
    }

    #[inline]
    pub(crate) fn has_mappings(&self) -> bool {
        self.mappings.iter().any(|count| *count > 0)
    }

    #[inline]
    pub(crate) fn latest_block(&self) -> Option<Block> {
        Block::from_number(self.blocks)
    }

    #[inline]
    pub(crate) fn active_block(&self, protocol: Protocol) -> Option<Block> {
        Block::from_number(self.active[protocol.index()])
    }

    /// `mark`: protocol index, or [`Protocol::COUNT`] for sessions.
    pub(crate) fn is_above(&self, mark: usize) -> bool {
        self.flags & ABOVE[mark] != 0
    }

    #[inline]
    pub(crate) fn is_above_any(&self) -> bool {
        self.flags & ABOVE_ANY != 0
    }

    pub(crate) fn set_above(&mut self, mark: usize, is_above: bool) {
        self.flags = if is_above { self.flags | ABOVE[mark] } else { self.flags & !ABOVE[mark] };
    }

    #[inline]
    pub(crate) fn mappings_total(&self) -> u32 {
        self.mappings.iter().sum()
    }

    #[inline]
    pub(crate) fn sessions(&self) -> u32 {
        self.mappings_total().saturating_add(self.extra_sessions).saturating_add(self.flows)
    }

    #[inline]
    pub(crate) fn memory(&self) -> u64 {
        u64::from(self.mappings_total()) * MAPPING_BYTES
            + u64::from(self.extra_sessions) * EXTRA_SESSION_BYTES
            + u64::from(self.flows) * FLOW_BYTES
    }
}

static NO_ACCOUNT: Account = Account::NONE;

pub(crate) struct SubscriberStore {
    records: Arena<Subscriber>,
    accounts: Arena<Account>,
    table: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
    lapsed: lapsed::Lapsed,
    pub(crate) hosts: HostStore,
}

impl SubscriberStore {
    pub(crate) fn new(subscribers_max: u32, hash: KeyedHash, hosts: HostStore) -> Result<SubscriberStore, ArenaError> {
        Ok(SubscriberStore {
            records: Arena::zeroed(subscribers_max as usize + 1)?,
            accounts: Arena::reserved(subscribers_max as usize + 1)?,
            table: BucketTable::with_capacity(subscribers_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            lapsed: lapsed::Lapsed::default(),
            hosts,
        })
    }

    pub(crate) fn needs(subscribers_max: u32) -> [Need; 3] {
        [
            Arena::<Subscriber>::need(subscribers_max as usize + 1),
            Need::Heap(Arena::<Account>::need(subscribers_max as usize + 1).bytes()),
            BucketTable::need(subscribers_max as usize),
        ]
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.lapsed.count() as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        let records = self.records.len() * size_of::<Subscriber>();
        records + self.accounts.resident_bytes() + self.table.bytes() + self.hosts.bytes()
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn get(&self, index: u32) -> &Subscriber {
        &self.records[index as usize]
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Subscriber {
        &mut self.records[index as usize]
    }

    #[inline]
    pub(crate) fn account(&self, index: u32) -> &Account {
        if self.records[index as usize].has_account == 0 { &NO_ACCOUNT } else { &self.accounts[index as usize] }
    }

    /// Its page may only come now. Look with [`SubscriberStore::account`] whether there is anything
    /// to change.
    pub(crate) fn account_mut(&mut self, index: u32) -> &mut Account {
        let (record, account) = (&mut self.records[index as usize], &mut self.accounts[index as usize]);
        if record.has_account == 0 {
            record.has_account = 1;
            // The account was that of a former subscriber.
            *account = Account::NONE;
        }
        account
    }

    #[inline(always)]
    pub(crate) fn count_mapping(&mut self, slot: u32, protocol: Protocol) {
        let record = &mut self.records[slot as usize];
        record.mappings[protocol.index()] += 1;
        record.mappings_created = record.mappings_created.wrapping_add(1);
        if record.mappings_created == 0 {
            self.account_mut(slot).mappings_created_high += 1;
        }
    }

    pub(crate) fn mappings_created(&self, slot: u32) -> u64 {
        let low = self.records[slot as usize].mappings_created;
        u64::from(self.account(slot).mappings_created_high) << 16 | u64::from(low)
    }

    /// External addresses that the subscriber has had, including the present one.
    pub(crate) fn addresses_paired(&self, slot: u32) -> u32 {
        self.account(slot).addresses_before + u32::from(self.records[slot as usize].paired != u32::MAX)
    }

    /// The latest address in another pool; the pairing there lasts.
    pub(crate) fn elsewhere(&self, slot: u32) -> Option<AddressIndex> {
        self.account(slot).elsewhere.checked_sub(1).map(AddressIndex)
    }

    pub(crate) fn set_elsewhere(&mut self, slot: u32, address: Option<AddressIndex>) {
        if self.elsewhere(slot) != address {
            self.account_mut(slot).elsewhere = address.map_or(0, |address| address.0.saturating_add(1));
        }
    }

    pub(crate) fn note_place(&mut self, slot: u32, address: AddressIndex, pool: PoolId) {
        let record = &self.records[slot as usize];
        // With arbitrary pooling all addresses of its pool are alike.
        if address.0 != record.paired && pool.0 != record.pool {
            self.set_elsewhere(slot, Some(address));
        }
    }

    #[inline]
    pub(crate) fn hash_of(&self, realm: RealmId, address: HostNumber) -> u64 {
        let address = self.hosts.subscriber_of(address);
        self.hash.hash(u64::from(realm.0) << 32 | u64::from(address.0), 0x5b5c)
    }

    pub(crate) fn find(&self, realm: RealmId, address: HostNumber) -> Option<u32> {
        self.find_hashed(self.hash_of(realm, address), realm, address)
    }

    #[inline]
    pub(crate) fn find_hashed(&self, hash: u64, realm: RealmId, address: HostNumber) -> Option<u32> {
        self.table.find(hash, |index| self.is(index, realm, address))
    }

    #[inline]
    pub(crate) fn is(&self, slot: u32, realm: RealmId, address: HostNumber) -> bool {
        let record = &self.records[slot as usize];
        record.address == self.hosts.subscriber_of(address) && record.realm == realm.0 && record.is_in_use()
    }

    #[inline]
    pub(crate) fn prefetch_table(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// The first record that [`SubscriberStore::find_hashed`] tries, or 0.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        self.table.candidate(hash).0
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        self.records.prefetch_write(slot as usize);
    }

    /// Prefetches the records of the next subscribers.
    pub(crate) fn prefetch_free(&self, count: u32) {
        if self.free != 0 {
            self.prefetch(self.free);
            return;
        }
        for slot in self.untouched..self.untouched.saturating_add(count) {
            self.prefetch(slot);
        }
    }

    /// True if no record is free. Lapsed records count as free.
    pub(crate) fn is_full(&self) -> bool {
        self.lapsed.count() == 0 && self.has_no_free_record()
    }

    fn has_no_free_record(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len() || self.table.is_full()
    }

    /// A former subscriber keeps rates and offences. `None` if full.
    pub(crate) fn insert(
        &mut self,
        realm: RealmId,
        address: HostNumber,
        pool: PoolId,
        paired: AddressIndex,
        generation: u16,
    ) -> Option<u32> {
        let address = self.hosts.subscriber_of(address);
        let fresh = Subscriber {
            address,
            paired: paired.0,
            realm: realm.0,
            pool: pool.0,
            flags: IN_USE,
            generation,
            ..Subscriber::new_zeroed()
        };
        if let Some(slot) = self.find_lapsed(realm, address) {
            self.renew(slot, fresh);
            return Some(slot);
        }
        if self.has_no_free_record()
            && let Some(oldest) = self.lapsed.oldest()
        {
            self.forget_lapsed(oldest);
        }
        let slot = if self.free != 0 {
            self.free
        } else if (self.untouched as usize) < self.records.len() {
            self.untouched
        } else {
            return None;
        };
        let hash = self.hash_of(realm, address);
        self.table.insert(hash, slot).ok()?;
        if slot == self.free {
            self.free = self.records[slot as usize].paired;
        } else {
            self.untouched += 1;
        }
        self.records[slot as usize] = fresh;
        self.hosts.retain(address);
        Some(slot)
    }

    pub(crate) fn settle(&mut self, slot: u32, pool: PoolId, paired: AddressIndex, generation: u16) {
        if ![paired.0, u32::MAX].contains(&self.records[slot as usize].paired) {
            self.account_mut(slot).addresses_before += 1;
        }
        let record = &mut self.records[slot as usize];
        (record.pool, record.paired, record.generation) = (pool.0, paired.0, generation);
    }

    /// The next mapping checks the pairing again.
    pub(crate) fn set_offender(&mut self, slot: u32, is_offender: bool) {
        let record = &mut self.records[slot as usize];
        record.flags = if is_offender { record.flags | OFFENDER } else { record.flags & !OFFENDER };
        record.generation = record.generation.wrapping_sub(1);
    }

    /// Removes an idle subscriber. Returns its paired address, for the caller to end the pairing.
    pub(crate) fn uncount_mapping(&mut self, slot: u32, protocol: Protocol) -> Option<AddressIndex> {
        let record = &mut self.records[slot as usize];
        record.mappings[protocol.index()] -= 1;
        self.remove_if_idle(slot)
    }

    pub(crate) fn count_flow(&mut self, slot: u32) {
        self.records[slot as usize].flows += 1;
    }

    /// The caller checks whether to remove the subscriber.
    pub(crate) fn uncount_flow(&mut self, slot: u32) {
        self.records[slot as usize].flows -= 1;
    }

    #[inline]
    pub(crate) fn shared_ports(&self, slot: u32) -> [u32; Protocol::COUNT] {
        // The account is another cache line.
        if self.records[slot as usize].is_sharing() {
            self.accounts[slot as usize].shared
        } else {
            [0; Protocol::COUNT]
        }
    }

    pub(crate) fn count_shared_port(&mut self, slot: u32, protocol: Protocol) {
        self.account_mut(slot).shared[protocol.index()] += 1;
        self.records[slot as usize].flags |= SHARES;
    }

    pub(crate) fn uncount_shared_port(&mut self, slot: u32, protocol: Protocol) {
        let shared = &mut self.account_mut(slot).shared;
        debug_assert!(shared[protocol.index()] > 0, "each was counted");
        shared[protocol.index()] = shared[protocol.index()].saturating_sub(1);
        if *shared == [0; Protocol::COUNT] {
            self.records[slot as usize].flags &= !SHARES;
        }
    }

    pub(crate) fn remove_if_idle(&mut self, slot: u32) -> Option<AddressIndex> {
        if self.records[slot as usize].is_idle() { self.remove(slot) } else { None }
    }

    #[inline]
    pub(crate) fn set_active_block(&mut self, slot: u32, protocol: Protocol, block: Block) {
        self.records[slot as usize].active[protocol.index()] = block.number();
    }

    pub(crate) fn add_block(&mut self, slot: u32, block: Block) {
        let record = &mut self.records[slot as usize];
        record.blocks = block.number();
    }

    /// `latest`: of the remaining blocks.
    pub(crate) fn remove_block(&mut self, slot: u32, block: Block, latest: Option<Block>) {
        let record = &mut self.records[slot as usize];
        record.blocks = latest.map_or(0, Block::number);
        for active in &mut record.active {
            if *active == block.number() {
                *active = 0;
            }
        }
    }

    fn remove(&mut self, slot: u32) -> Option<AddressIndex> {
        let paired = AddressIndex(self.records[slot as usize].paired);
        if self.has_past(slot) {
            self.lapse(slot);
        } else {
            self.erase(slot);
        }
        Some(paired)
    }

    fn erase(&mut self, slot: u32) {
        let free = self.free;
        let record = &mut self.records[slot as usize];
        let (realm, address) = (RealmId(record.realm), record.address);
        record.flags = 0;
        record.paired = free;
        self.free = slot;
        let hash = self.hash_of(realm, address);
        let was_there = self.table.remove(hash, slot);
        debug_assert!(was_there, "every subscriber is in the table");
        self.hosts.release_subscriber(address);
    }
}

#[cfg(test)]
mod tests;
