use core::sync::atomic::Ordering;

use crate::external::ports::PortClass;
use crate::external::ports::PortRange;
use crate::random::Random;
use crate::settings::Selection;
use crate::snapshot::shared::CompiledPool;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Place;
use crate::steps::pairing::UNPAIRED;
use crate::steps::view::View;
use crate::types::AddressIndex;
use crate::verdict::Verdict;

/// Addresses searched for one packet. The next packet continues with others.
const CANDIDATES_MAX: u32 = 64;

impl View<'_> {
    pub(crate) fn choose_address(
        &self,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
        random: &mut Random,
    ) -> Option<AddressIndex> {
        if compiled.count == 0 {
            return None;
        }
        let first = match compiled.selection {
            Selection::LeastUsed if compiled.blocks.is_none() && !compiled.has_guarantees() => {
                let open = self.snapshot.choices(compiled);
                return self.snapshot.ports.choose_address(open, key.protocol, class, random);
            }
            Selection::LeastUsed => {
                let (one, other) = (random.below(compiled.count), random.below(compiled.count));
                let ports = &self.snapshot.ports;
                // Leased ports count first, because no other subscriber can get those.
                let use_of = |n: u32| {
                    let address = self.open_address(compiled, n);
                    (ports.ports_leased(address), ports.paired_subscribers(address))
                };
                let (less, more) = if use_of(one) <= use_of(other) { (one, other) } else { (other, one) };
                if self.has_room(compiled, self.open_address(compiled, less), key, class) {
                    return Some(self.open_address(compiled, less));
                }
                if self.has_room(compiled, self.open_address(compiled, more), key, class) {
                    return Some(self.open_address(compiled, more));
                }
                random.below(compiled.count)
            }
            // The turn advances when a mapping is made.
            Selection::RoundRobin => self.snapshot.turns[compiled.id.index()].load(Ordering::Relaxed) % compiled.count,
            Selection::Hash => home(self.lasting_name(key.realm, key.address), compiled.count),
        };
        match self.next_with_room(first, key, compiled, class) {
            None if compiled.has_guarantees() => self.address_with_part_of_guarantee(compiled, key),
            found => found,
        }
    }

    fn next_with_room(
        &self,
        first: u32,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
    ) -> Option<AddressIndex> {
        let mut looked_at = 0;
        (0..compiled.count)
            .map(|step| {
                self.open_address(compiled, ((u64::from(first) + u64::from(step)) % u64::from(compiled.count)) as u32)
            })
            .find(|address| {
                let needs_look = compiled.blocks.is_some_and(|blocks| {
                    let range = PortRange { address: *address, first: blocks.first, last: blocks.last };
                    self.snapshot.ports.has_unleased_block(&range, blocks.size)
                });
                if compiled.blocks.is_some() && (!needs_look || looked_at >= CANDIDATES_MAX) {
                    return false;
                }
                let has_room = self.has_room(compiled, *address, key, class);
                looked_at += u32::from(needs_look && !has_room);
                has_room
            })
    }

    pub(crate) fn address_at(
        &self,
        place: Place,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
        random: &mut Random,
    ) -> Result<AddressIndex, Verdict> {
        match place {
            Place::At(address) => Ok(address),
            Place::Any => Ok(UNPAIRED),
            Place::Preferred(home) if self.has_room(compiled, home, key, class) => Ok(home),
            Place::Preferred(home) => Ok(self.choose_address(key, compiled, class, random).unwrap_or(home)),
            Place::Chosen => {
                let chosen = self.choose_address(key, compiled, class, random);
                chosen.ok_or_else(|| self.why_no_address(compiled, key))
            }
        }
    }

    #[inline]
    fn open_address(&self, compiled: &CompiledPool, n: u32) -> AddressIndex {
        self.snapshot.choices(compiled)[n as usize]
    }

    /// True if the address has room for one more subscriber.
    pub(crate) fn has_room(
        &self,
        compiled: &CompiledPool,
        address: AddressIndex,
        key: &InternalKey,
        class: PortClass,
    ) -> bool {
        let ports = &self.snapshot.ports;
        if compiled.has_guarantees() {
            // Guarantees do not count blocks leased under earlier settings.
            return ports.has_single_port(address, key.protocol, class)
                && self.has_room_beside_guarantees(compiled, address, key);
        }
        match compiled.blocks {
            Some(blocks) => {
                ports.has_free_block(&PortRange { address, first: blocks.first, last: blocks.last }, blocks.size)
            }
            None => {
                !ports.seems_full(address, key.protocol, class) && !ports.is_exhausted(address, key.protocol, class)
            }
        }
    }
}

/// A hash without a key, so the same after restarts. The finaliser of SplitMix64.
fn home(subscriber: u64, count: u32) -> u32 {
    let mixed = (subscriber ^ subscriber >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((u128::from(mixed ^ mixed >> 31) * u128::from(count)) >> 64) as u32
}
