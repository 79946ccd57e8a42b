//! Subscribers with at least one mapping, and the external address each is paired with (RFC 4787 §4.1 REQ-2); and what counts still
//! of those that had one.

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::blocks::Block;
use crate::class::Bucket;
use crate::class::EXTRA_SESSION_BYTES;
use crate::class::FLOW_BYTES;
use crate::class::MAPPING_BYTES;
use crate::random::KeyedHash;
use crate::table::BucketTable;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::PoolName;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

mod lapsed;

/// A subscriber: an internal address of one realm. One cache line: all that a new mapping asks.
///
/// ```text
///   bytes  0-31  who it is, its class, and what it has
///         32-47  its port blocks (see `shard/port_choice.rs`)
///         48-57  what else it has, and a token bucket (see `shard/admission.rs`)
/// ```
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Subscriber {
    pub(crate) address: u32,
    /// Paired external address, by index; the next free record in a free one.
    pub(crate) paired: u32,
    pub(crate) realm: u16,
    pub(crate) pool: u16,
    /// [`IN_USE`] and what else is true of it.
    flags: u8,
    elsewhere_high: u8,
    /// Its class; see [`crate::class::Classes::of`].
    pub(crate) class: u16,
    /// Mappings by protocol index. Each has its first session with it.
    pub(crate) mappings: [u32; Protocol::COUNT],
    /// Flows, which share external ports.
    pub(crate) flows: u32,
    /// Its latest port block, by number; each names the one before. 0: it has none.
    blocks: u32,
    /// The block ports are taken from first, by protocol index; 0 for none.
    active: [u32; Protocol::COUNT],
    /// Sessions beyond the first of their mapping.
    pub(crate) extra_sessions: u32,
    /// The bucket of new mappings.
    pub(crate) mapping_bucket: Bucket,
    /// Number of the settings that `pool` and `paired` were last compared with; its lower bits. `shard/adopt.rs` sees to it that
    /// an old one is never taken for the present one.
    pub(crate) generation: u16,
    /// Of the settings that `class` was found in.
    pub(crate) class_epoch: u16,
    elsewhere_low: u16,
}

const _: () = assert!(size_of::<Subscriber>() == 64, "a subscriber is one cache line");

/// In `flags`: the record holds a subscriber.
const IN_USE: u8 = 1 << 0;
/// In `flags`, by protocol and for sessions: its use was reported as above a threshold.
const ABOVE: [u8; Protocol::COUNT + 1] = [1 << 1, 1 << 2, 1 << 3, 1 << 4];
const ABOVE_ANY: u8 = ABOVE[0] | ABOVE[1] | ABOVE[2] | ABOVE[3];
/// In `flags`: it is an offender, and stays while it is one, whatever it has (see `shard/penalty.rs`).
const OFFENDER: u8 = 1 << 5;
/// In `flags`, in place of [`IN_USE`]: it has nothing any more, and only waits until its past does not count (see
/// `subscriber/lapsed.rs`).
const LAPSED: u8 = 1 << 6;
/// In `flags`: ports that flows share count for it, as [`Account::shared`] says.
const SHARES: u8 = 1 << 7;

/// What else is known of a subscriber: beside its record, as it is seldom asked.
#[derive(FromZeros, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Account {
    /// What was refused to it since it has been one, by [`Account::CAUSES`].
    pub(crate) refused: RefusedToKnown,
    /// Offences within the time that counts.
    offences: u32,
    /// Of an offender: when its penalty began, in seconds.
    penalty_since_s: u32,
    /// Of an offender: the address it had in its own pool, by index, plus one; 0: none.
    home: u32,
    /// Ports that flows share and that count for it, by protocol.
    shared: [u32; Protocol::COUNT],
    /// Where ports are pledged to it, by index.
    pledged_at: u32,
    /// How many, by protocol.
    pledged: [u16; Protocol::COUNT],
    /// How many of these it uses.
    within: [u16; Protocol::COUNT],
    /// The first offence that counts.
    first_offence: Micros48,
    /// The latest one.
    last_offence: Micros48,
    /// The bucket of new sessions in existing mappings.
    pub(crate) session_bucket: Bucket,
    /// Of an offender: the pool it was sent to, by the number of its name.
    penalty_pool: u16,
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

    /// How long ago it was.
    fn elapsed(self, now: Instant) -> Duration {
        let [low, middle, high] = self.0.map(u64::from);
        Duration::from_micros(now.as_micros().wrapping_sub(low | middle << 16 | high << 32) & ((1 << 48) - 1))
    }
}

/// Refused packets by [`Account::CAUSES`].
pub(crate) type Refused = [u32; Account::CAUSES.len()];
/// The same but for the last one, which who has a record is never refused for.
pub(crate) type RefusedToKnown = [u32; Account::CAUSES.len() - 1];

/// Counts a refusal. False when it is none of [`Account::CAUSES`] that is counted here.
pub(crate) fn add_refusal(refused: &mut [u32], cause: Verdict) -> bool {
    let position = Account::CAUSES.iter().position(|known| *known == cause);
    let Some(count) = position.and_then(|position| refused.get_mut(position)) else { return false };
    *count = count.saturating_add(1);
    true
}

impl Account {
    /// What a subscriber can be refused for, each the verdict of the packet: its own limits, and that something has run out. That there is
    /// no record for it is the last one.
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

    /// Takes notice of a refusal.
    pub(crate) fn count(&mut self, cause: Verdict) {
        add_refusal(&mut self.refused, cause);
    }

    /// The address an offender had before it was sent to another pool.
    pub(crate) fn home(&self) -> Option<AddressIndex> {
        self.home.checked_sub(1).map(AddressIndex)
    }

    /// Remembers it, so that the offender finds back.
    pub(crate) fn set_home(&mut self, home: Option<AddressIndex>) {
        self.home = home.map_or(0, |home| home.0.saturating_add(1));
    }

    /// Where ports are pledged to it, if any are.
    pub(crate) fn pledged_at(&self) -> AddressIndex {
        AddressIndex(self.pledged_at)
    }

    /// Ports pledged to it.
    pub(crate) fn pledge(&self) -> [u32; Protocol::COUNT] {
        self.pledged.map(u32::from)
    }

    /// Whether any are.
    pub(crate) fn has_pledge(&self) -> bool {
        self.pledged != [0; Protocol::COUNT]
    }

    /// Whether they are at this address.
    pub(crate) fn is_pledged(&self, address: AddressIndex) -> bool {
        self.has_pledge() && self.pledged_at == address.0
    }

    /// Ports of its pledge in use.
    pub(crate) fn within(&self) -> [u32; Protocol::COUNT] {
        self.within.map(u32::from)
    }

    /// Whether any are.
    pub(crate) fn uses_pledge(&self) -> bool {
        self.within != [0; Protocol::COUNT]
    }

    /// Whether its pledge at this address is not used up.
    pub(crate) fn has_left(&self, address: AddressIndex, protocol: Protocol) -> bool {
        let p = protocol.index();
        self.is_pledged(address) && self.within[p] < self.pledged[p]
    }

    /// Takes notice of what is pledged to it. A port has 16 bits, so that the numbers fit.
    pub(crate) fn set_pledge(&mut self, address: AddressIndex, ports: [u32; Protocol::COUNT]) {
        self.pledged_at = address.0;
        self.pledged = ports.map(|number| u16::try_from(number).unwrap_or(u16::MAX));
    }

    pub(crate) fn count_within(&mut self, protocol: Protocol) {
        self.within[protocol.index()] += 1;
    }

    pub(crate) fn uncount_within(&mut self, protocol: Protocol) {
        let within = &mut self.within[protocol.index()];
        debug_assert!(*within > 0, "each port of a pledge was counted");
        *within = within.saturating_sub(1);
    }

    /// One offence more. One that comes after the time that counts is the first again.
    pub(crate) fn note_offence(&mut self, now: Instant, window: Duration) {
        if self.offences == 0 || self.first_offence.elapsed(now) >= window {
            (self.offences, self.first_offence) = (0, Micros48::at(now));
        }
        self.offences = self.offences.saturating_add(1);
        self.last_offence = Micros48::at(now);
    }

    /// Whether there were offences that count still: another one would be added to them.
    pub(crate) fn has_offences(&self, now: Instant, window: Duration) -> bool {
        self.offences > 0 && self.first_offence.elapsed(now) < window
    }

    /// Offences within the time that counts.
    pub(crate) fn offences(&self) -> u32 {
        self.offences
    }

    /// It is an offender from now on.
    pub(crate) fn begin_penalty(&mut self, now: Instant, pool: PoolName) {
        self.penalty_since_s = seconds(now);
        self.penalty_pool = pool.0;
        self.offences = 0;
    }

    /// The pool it was sent to when it became an offender, which may have no subscribers of its class any more, or be gone.
    pub(crate) fn penalty_pool(&self) -> PoolName {
        PoolName(self.penalty_pool)
    }

    /// For how many seconds it has been an offender.
    pub(crate) fn penalty_s(&self, now: Instant) -> u32 {
        seconds(now).saturating_sub(self.penalty_since_s)
    }

    /// Whether there was no offence for so long.
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

    /// Whether it has neither mapping nor flow nor block nor penalty.
    fn is_idle(&self) -> bool {
        self.flows == 0 && self.blocks == 0 && !self.is_offender() && self.mappings.iter().all(|count| *count == 0)
    }

    /// Whether ports that flows share count for it: how many says its account.
    #[inline]
    pub(crate) fn is_sharing(&self) -> bool {
        self.flags & SHARES != 0
    }

    /// Whether its new mappings come from its class's penalty pool.
    #[inline]
    pub(crate) fn is_offender(&self) -> bool {
        self.flags & OFFENDER != 0
    }

    /// Whether it has a mapping of any protocol.
    #[inline]
    pub(crate) fn has_mappings(&self) -> bool {
        self.mappings.iter().any(|count| *count > 0)
    }

    /// Its latest port block; the others follow it in the block table.
    #[inline]
    pub(crate) fn latest_block(&self) -> Option<Block> {
        Block::from_number(self.blocks)
    }

    /// The block that ports of this protocol are taken from first.
    #[inline]
    pub(crate) fn active_block(&self, protocol: Protocol) -> Option<Block> {
        Block::from_number(self.active[protocol.index()])
    }

    /// Whether its use of this (by protocol index; [`Protocol::COUNT`]: sessions) is above a threshold, as was reported.
    pub(crate) fn is_above(&self, mark: usize) -> bool {
        self.flags & ABOVE[mark] != 0
    }

    /// Whether any use of it is.
    #[inline]
    pub(crate) fn is_above_any(&self) -> bool {
        self.flags & ABOVE_ANY != 0
    }

    pub(crate) fn set_above(&mut self, mark: usize, is_above: bool) {
        self.flags = if is_above { self.flags | ABOVE[mark] } else { self.flags & !ABOVE[mark] };
    }

    /// The other external address than the one it is paired with on which it got something last, as a rule said, or before it was
    /// paired anew. It may have nothing there by now, but is paired with it in that address's pool.
    pub(crate) fn elsewhere(&self) -> Option<AddressIndex> {
        let number = u32::from(self.elsewhere_high) << 16 | u32::from(self.elsewhere_low);
        number.checked_sub(1).map(AddressIndex)
    }

    pub(crate) fn set_elsewhere(&mut self, address: Option<AddressIndex>) {
        // As many addresses as have no room here have none in the memory of any machine.
        let number = address.map_or(0, |address| address.0.saturating_add(1));
        let number = if number < 1 << 24 { number } else { 0 };
        (self.elsewhere_high, self.elsewhere_low) = ((number >> 16) as u8, number as u16);
    }

    /// It gets a mapping or flow on this address, of this pool.
    pub(crate) fn note_place(&mut self, address: AddressIndex, pool: PoolId) {
        // With arbitrary pooling all addresses of its pool are alike.
        if address.0 != self.paired && pool.0 != self.pool {
            self.set_elsewhere(Some(address));
        }
    }

    /// Mappings of all protocols.
    #[inline]
    pub(crate) fn mappings_total(&self) -> u32 {
        self.mappings.iter().sum()
    }

    /// Sessions of all mappings, and flows, which are no less.
    #[inline]
    pub(crate) fn sessions(&self) -> u32 {
        self.mappings_total().saturating_add(self.extra_sessions).saturating_add(self.flows)
    }

    /// Bytes of its state.
    #[inline]
    pub(crate) fn memory(&self) -> u64 {
        u64::from(self.mappings_total()) * MAPPING_BYTES
            + u64::from(self.extra_sessions) * EXTRA_SESSION_BYTES
            + u64::from(self.flows) * FLOW_BYTES
    }
}

/// The subscribers of one shard.
pub(crate) struct SubscriberStore {
    records: Arena<Subscriber>,
    accounts: Arena<Account>,
    table: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
    lapsed: lapsed::Lapsed,
}

impl SubscriberStore {
    pub(crate) fn new(subscribers_max: u32, hash: KeyedHash) -> Result<SubscriberStore, ArenaError> {
        Ok(SubscriberStore {
            records: Arena::zeroed(subscribers_max as usize + 1)?,
            accounts: Arena::zeroed(subscribers_max as usize + 1)?,
            table: BucketTable::with_capacity(subscribers_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
            lapsed: lapsed::Lapsed::default(),
        })
    }

    /// The memory `new` is going to take.
    pub(crate) fn needs(subscribers_max: u32) -> [Need; 3] {
        [
            Arena::<Subscriber>::need(subscribers_max as usize + 1),
            Arena::<Account>::need(subscribers_max as usize + 1),
            BucketTable::need(subscribers_max as usize),
        ]
    }

    /// Subscribers that have something.
    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.lapsed.count() as usize
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * (size_of::<Subscriber>() + size_of::<Account>()) + self.table.bytes()
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

    /// What else is known of it.
    pub(crate) fn account(&self, index: u32) -> &Account {
        &self.accounts[index as usize]
    }

    pub(crate) fn account_mut(&mut self, index: u32) -> &mut Account {
        &mut self.accounts[index as usize]
    }

    #[inline]
    pub(crate) fn hash_of(&self, realm: RealmId, address: u32) -> u64 {
        self.hash.hash(u64::from(realm.0) << 32 | u64::from(address), 0x5b5c)
    }

    pub(crate) fn find(&self, realm: RealmId, address: u32) -> Option<u32> {
        self.find_hashed(self.hash_of(realm, address), realm, address)
    }

    /// [`SubscriberStore::find`] with the hash known.
    #[inline]
    pub(crate) fn find_hashed(&self, hash: u64, realm: RealmId, address: u32) -> Option<u32> {
        self.table.find(hash, |index| self.is(index, realm, address))
    }

    /// Whether `slot` is the record of this subscriber.
    #[inline]
    pub(crate) fn is(&self, slot: u32, realm: RealmId, address: u32) -> bool {
        let record = &self.records[slot as usize];
        record.address == address && record.realm == realm.0 && record.is_in_use()
    }

    /// Asks for the table's line of this hash.
    #[inline]
    pub(crate) fn prefetch_table(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// The record that [`SubscriberStore::find_hashed`] would try first if it is in its home bucket; else 0.
    #[inline]
    pub(crate) fn candidate(&self, hash: u64) -> u32 {
        self.table.candidate(hash).0
    }

    /// Asks for a record.
    #[inline]
    pub(crate) fn prefetch(&self, slot: u32) {
        self.records.prefetch_write(slot as usize);
    }

    /// Whether there is no room for one more. Who only waits to be forgotten makes room.
    pub(crate) fn is_full(&self) -> bool {
        self.lapsed.count() == 0 && self.has_no_free_record()
    }

    fn has_no_free_record(&self) -> bool {
        self.free == 0 && self.untouched as usize >= self.records.len() || self.table.is_full()
    }

    /// Adds a subscriber; one that was one before goes on with the rates and offences it had. None when the table is full.
    pub(crate) fn insert(
        &mut self,
        realm: RealmId,
        address: u32,
        pool: PoolId,
        paired: AddressIndex,
        generation: u16,
    ) -> Option<u32> {
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
        self.accounts[slot as usize] = Account::default();
        Some(slot)
    }

    /// Takes notice of the pool and the address a subscriber has under the settings of this number.
    pub(crate) fn settle(&mut self, slot: u32, pool: PoolId, paired: AddressIndex, generation: u16) {
        let record = &mut self.records[slot as usize];
        (record.pool, record.paired, record.generation) = (pool.0, paired.0, generation);
    }

    /// Whether a subscriber is an offender. It is settled anew with its next mapping.
    pub(crate) fn set_offender(&mut self, slot: u32, is_offender: bool) {
        let record = &mut self.records[slot as usize];
        record.flags = if is_offender { record.flags | OFFENDER } else { record.flags & !OFFENDER };
        record.generation = record.generation.wrapping_sub(1);
    }

    /// Takes notice that a mapping ended. With the last one the subscriber goes, unless it has a block, and the address it
    /// was paired with is returned so that the caller can end the pairing.
    pub(crate) fn uncount_mapping(&mut self, slot: u32, protocol: Protocol) -> Option<AddressIndex> {
        let record = &mut self.records[slot as usize];
        record.mappings[protocol.index()] -= 1;
        self.remove_if_idle(slot)
    }

    pub(crate) fn count_flow(&mut self, slot: u32) {
        self.records[slot as usize].flows += 1;
    }

    /// A flow ended. Whether the subscriber goes with it is the caller's to ask.
    pub(crate) fn uncount_flow(&mut self, slot: u32) {
        self.records[slot as usize].flows -= 1;
    }

    /// Ports that flows share and that count for this subscriber, by protocol.
    #[inline]
    pub(crate) fn shared_ports(&self, slot: u32) -> [u32; Protocol::COUNT] {
        // The account is beside the record: read only where there is something in it.
        if self.records[slot as usize].is_sharing() {
            self.accounts[slot as usize].shared
        } else {
            [0; Protocol::COUNT]
        }
    }

    /// One more of them.
    pub(crate) fn count_shared_port(&mut self, slot: u32, protocol: Protocol) {
        self.accounts[slot as usize].shared[protocol.index()] += 1;
        self.records[slot as usize].flags |= SHARES;
    }

    /// One of them less.
    pub(crate) fn uncount_shared_port(&mut self, slot: u32, protocol: Protocol) {
        let shared = &mut self.accounts[slot as usize].shared;
        debug_assert!(shared[protocol.index()] > 0, "each was counted");
        shared[protocol.index()] = shared[protocol.index()].saturating_sub(1);
        if *shared == [0; Protocol::COUNT] {
            self.records[slot as usize].flags &= !SHARES;
        }
    }

    /// Removes a subscriber that has neither mapping nor flow nor block nor penalty; returns the address it was paired with.
    pub(crate) fn remove_if_idle(&mut self, slot: u32) -> Option<AddressIndex> {
        if self.records[slot as usize].is_idle() { self.remove(slot) } else { None }
    }

    /// From now on ports of this protocol are taken from this block first.
    #[inline]
    pub(crate) fn set_active_block(&mut self, slot: u32, protocol: Protocol, block: Block) {
        self.records[slot as usize].active[protocol.index()] = block.number();
    }

    /// The subscriber has one more block, which names the latest one before as its next.
    pub(crate) fn add_block(&mut self, slot: u32, block: Block) {
        let record = &mut self.records[slot as usize];
        record.blocks = block.number();
    }

    /// The subscriber has this block no more; `latest` is the latest one of those that are left.
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

    /// Frees a record.
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
    }
}
