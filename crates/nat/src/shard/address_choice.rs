//! Which external address a subscriber is paired with.

use core::sync::atomic::Ordering;

use super::Shard;
use crate::mapping::InternalKey;
use crate::ports::PortClass;
use crate::ports::PortRange;
use crate::settings::Selection;
use crate::shared::PoolFacts;
use crate::types::AddressIndex;

/// Addresses whose blocks are looked through for a free one, at the most, for one packet: in vain so far, after a change that left single
/// ports everywhere. The next packet looks at others, as of these it is known then.
const LOOKS_MAX: u32 = 64;

impl Shard {
    /// An address of the pool with room for this internal endpoint: a free port, or a free block where ports come in blocks.
    pub(super) fn choose_address(
        &mut self,
        key: &InternalKey,
        facts: &PoolFacts,
        class: PortClass,
    ) -> Option<AddressIndex> {
        if facts.count == 0 {
            return None;
        }
        let first = match facts.selection {
            Selection::LeastUsed if facts.blocks.is_none() && !facts.is_guarded() => {
                let open = self.shared.choices(facts);
                return self.shared.ports.choose_address(open, key.protocol, class, &mut self.random);
            }
            Selection::LeastUsed => {
                let (one, other) = (self.random.below(facts.count), self.random.below(facts.count));
                let ports = &self.shared.ports;
                // By what is leased, as that is what nobody else can have; else by who will want more.
                let use_of = |n: u32| {
                    let address = self.open_address(facts, n);
                    (ports.ports_leased(address), ports.paired_subscribers(address))
                };
                let (less, more) = if use_of(one) <= use_of(other) { (one, other) } else { (other, one) };
                if self.has_room(facts, self.open_address(facts, less), key, class) {
                    return Some(self.open_address(facts, less));
                }
                if self.has_room(facts, self.open_address(facts, more), key, class) {
                    return Some(self.open_address(facts, more));
                }
                self.random.below(facts.count)
            }
            Selection::RoundRobin => self.shared.turns[facts.id.index()].fetch_add(1, Ordering::Relaxed) % facts.count,
            Selection::Hash => {
                let subscriber = u64::from(key.realm.0) << 32 | u64::from(key.address);
                home(subscriber, facts.count)
            }
        };
        // The next one with room, if that one has none.
        let mut looked_at = 0;
        let with_room = (0..facts.count)
            .map(|step| {
                self.open_address(facts, ((u64::from(first) + u64::from(step)) % u64::from(facts.count)) as u32)
            })
            .find(|address| {
                // Where all are leased that is seen at once.
                let needs_look = facts.blocks.is_some_and(|blocks| {
                    let range = PortRange { address: *address, first: blocks.first, last: blocks.last };
                    self.shared.ports.has_unleased_block(&range, blocks.size)
                });
                if facts.blocks.is_some() && (!needs_look || looked_at >= LOOKS_MAX) {
                    return false;
                }
                let has_room = self.has_room(facts, *address, key, class);
                looked_at += u32::from(needs_look && !has_room);
                has_room
            });
        match with_room {
            None if facts.is_guarded() => self.address_with_part_of_guarantee(facts, key),
            found => found,
        }
    }

    /// The n-th open address of a pool.
    #[inline]
    fn open_address(&self, facts: &PoolFacts, n: u32) -> AddressIndex {
        self.shared.choices(facts)[n as usize]
    }

    pub(super) fn has_room(
        &self,
        facts: &PoolFacts,
        address: AddressIndex,
        key: &InternalKey,
        class: PortClass,
    ) -> bool {
        let ports = &self.shared.ports;
        if facts.is_guarded() {
            // Blocks from before are in no book of guarantees.
            return ports.has_single_port(address, key.protocol, class)
                && self.has_room_beside_guarantees(facts, address, key);
        }
        match facts.blocks {
            Some(blocks) => {
                ports.has_free_block(&PortRange { address, first: blocks.first, last: blocks.last }, blocks.size)
            }
            None => {
                !ports.seems_full(address, key.protocol, class) && !ports.is_exhausted(address, key.protocol, class)
            }
        }
    }
}

/// Which of so many addresses a subscriber has, always. Not keyed: the same after each start, as people expect who look it up.
fn home(subscriber: u64, count: u32) -> u32 {
    // The finaliser of SplitMix64: each bit of the input changes half of the output's.
    let mixed = (subscriber ^ subscriber >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(mixed ^ mixed >> 31) * u128::from(count)) >> 64) as u32
}
