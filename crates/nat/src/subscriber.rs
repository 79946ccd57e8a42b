//! Subscribers with at least one mapping, and the external address each is paired with (RFC 4787 §4.1 REQ-2).

use mem::Arena;
use mem::ArenaError;
use mem::Need;
use zerocopy::FromZeros;

use crate::blocks::Block;
use crate::random::KeyedHash;
use crate::table::BucketTable;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;

/// A subscriber: an internal address of one realm. One cache line: first who it is and what it has, then what it may have.
#[derive(FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Subscriber {
    pub(crate) address: u32,
    /// Paired external address, by index; the next free record in a free one.
    pub(crate) paired: u32,
    pub(crate) realm: u16,
    pub(crate) pool: u16,
    in_use: u32,
    /// Mappings by protocol index.
    pub(crate) mappings: [u32; Protocol::COUNT],
    /// Flows, which share external ports.
    pub(crate) flows: u32,
    /// Its latest port block, by number; each names the one before. 0: it has none.
    blocks: u32,
    /// The block ports are taken from first, by protocol index; 0 for none.
    active: [u32; Protocol::COUNT],
    /// For limits.
    _limits: [u32; 4],
}

const _: () = assert!(size_of::<Subscriber>() == 64, "one subscriber is one cache line");

impl Subscriber {
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use != 0
    }

    /// Whether it has neither mapping nor flow nor block.
    fn is_idle(&self) -> bool {
        self.flows == 0 && self.blocks == 0 && self.mappings.iter().all(|count| *count == 0)
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
}

/// The subscribers of one shard.
pub(crate) struct SubscriberStore {
    records: Arena<Subscriber>,
    table: BucketTable,
    hash: KeyedHash,
    free: u32,
    untouched: u32,
}

impl SubscriberStore {
    pub(crate) fn new(subscribers_max: u32, hash: KeyedHash) -> Result<SubscriberStore, ArenaError> {
        Ok(SubscriberStore {
            records: Arena::zeroed(subscribers_max as usize + 1)?,
            table: BucketTable::with_capacity(subscribers_max as usize)?,
            hash,
            free: 0,
            untouched: 1,
        })
    }

    /// The memory `new` is going to take.
    pub(crate) fn needs(subscribers_max: u32) -> [Need; 2] {
        [Arena::<Subscriber>::need(subscribers_max as usize + 1), BucketTable::need(subscribers_max as usize)]
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.records.len() * size_of::<Subscriber>() + self.table.bytes()
    }

    pub(crate) fn walk_end(&self) -> u32 {
        self.untouched
    }

    pub(crate) fn get(&self, index: u32) -> &Subscriber {
        &self.records[index as usize]
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

    /// Adds a subscriber. None when the table is full.
    pub(crate) fn insert(&mut self, realm: RealmId, address: u32, pool: PoolId, paired: AddressIndex) -> Option<u32> {
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
        self.records[slot as usize] = Subscriber {
            address,
            paired: paired.0,
            realm: realm.0,
            pool: pool.0,
            in_use: 1,
            mappings: [0; Protocol::COUNT],
            flows: 0,
            blocks: 0,
            active: [0; Protocol::COUNT],
            _limits: [0; 4],
        };
        Some(slot)
    }

    pub(crate) fn count_mapping(&mut self, slot: u32, protocol: Protocol) {
        self.records[slot as usize].mappings[protocol.index()] += 1;
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

    /// As [`SubscriberStore::uncount_mapping`], of a flow.
    pub(crate) fn uncount_flow(&mut self, slot: u32) -> Option<AddressIndex> {
        self.records[slot as usize].flows -= 1;
        self.remove_if_idle(slot)
    }

    /// Removes a subscriber that has neither mapping nor flow nor block; returns the address it was paired with.
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
        let free = self.free;
        let record = &mut self.records[slot as usize];
        let (realm, address, paired) = (RealmId(record.realm), record.address, AddressIndex(record.paired));
        record.in_use = 0;
        record.paired = free;
        self.free = slot;
        let hash = self.hash_of(realm, address);
        let was_there = self.table.remove(hash, slot);
        debug_assert!(was_there, "every subscriber is in the table");
        Some(paired)
    }
}
