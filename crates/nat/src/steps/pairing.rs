//! The pool and external address of a subscriber (RFC 4787 §4.1 REQ-2).

use crate::external::blocks::Block;
use crate::external::ports::PortClass;
use crate::settings::Pooling;
use crate::snapshot::shared::CompiledPool;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Entry;
use crate::steps::opening::Owner;
use crate::steps::opening::Place;
use crate::steps::view::View;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::verdict::Verdict;

#[cfg(test)]
mod tests;

/// The address of a subscriber with arbitrary pooling.
pub(crate) const UNPAIRED: AddressIndex = AddressIndex(u32::MAX);

impl View<'_> {
    /// The entry of a subscriber that gets something from this pool. It stays paired in its own
    /// pool if a rule sends some flows elsewhere.
    pub(crate) fn entry(
        &self,
        owner: &Owner,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
    ) -> Result<Entry, Verdict> {
        let Some(slot) = owner.slot else { return Ok(Entry::new(compiled.id, self.place_of_new(key, compiled)?)) };
        if !self.is_settled(owner, slot) {
            return self.pair_anew(owner, slot, key, compiled, class);
        }
        let record = self.state.subscribers.get(slot);
        let paired = AddressIndex(record.paired);
        if record.pool != compiled.id.0 && self.goes_to_own_pool(slot, compiled) {
            let place = match self.place_in_own_pool(slot, compiled) {
                Some(known) => Place::At(known),
                None => self.place_of_new(key, compiled)?,
            };
            return Ok(Entry {
                elsewhere: Some(paired).filter(|it| *it != UNPAIRED),
                ..Entry::new(compiled.id, place)
            });
        }
        let place = if paired == UNPAIRED { Place::Any } else { Place::At(paired) };
        Ok(Entry { is_new: false, ..Entry::new(PoolId(record.pool), place) })
    }

    pub(crate) fn place_of_new(&self, key: &InternalKey, compiled: &CompiledPool) -> Result<Place, Verdict> {
        if let Some(formula) = self.snapshot.formula(compiled.id) {
            let slice = formula.slice_of(key.address).ok_or_else(|| formula.why_no_slice(key.address))?;
            return Ok(Place::At(self.snapshot.member(compiled, slice.address)));
        }
        Ok(match (compiled.pooling, self.static_home(key, compiled.id)) {
            (Pooling::Arbitrary, _) => Place::Any,
            (Pooling::Paired, Some(home)) if compiled.one_to_one => Place::At(home),
            (Pooling::Paired, Some(home)) => Place::Preferred(home),
            (Pooling::Paired, None) => Place::Chosen,
        })
    }

    /// Pairs anew after a change of settings or penalty. Replaces a closed or moved address;
    /// existing mappings keep theirs.
    #[cold]
    fn pair_anew(
        &self,
        owner: &Owner,
        slot: u32,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
    ) -> Result<Entry, Verdict> {
        let (pool, penalty) = (compiled.id, owner.penalty);
        let record = self.state.subscribers.get(slot);
        let old = AddressIndex(record.paired);
        let at_old = if old == UNPAIRED { Place::Any } else { Place::At(old) };
        if let Some(own) = self.stays_in(old, key, pool, penalty) {
            return Ok(Entry::new(own, at_old));
        }
        let fits = self.fits(old, key, compiled);
        let there = self.place_in(slot, pool);
        let before_penalty = self.state.subscribers.account(slot).home();
        let may_return = compiled.pooling == Pooling::Paired
            && penalty.is_none()
            && !(fits && self.snapshot.formula(pool).is_none())
            && before_penalty.is_some();
        let home = match () {
            () if penalty == Some(pool) && old != UNPAIRED && self.snapshot.pool_of(old) != pool => Some(Some(old)),
            () if may_return => Some(None),
            () => None,
        };
        let way_home = before_penalty.filter(|home| may_return && self.is_way_home(slot, *home, key, compiled, class));
        let known = match compiled.pooling {
            Pooling::Paired if fits && self.snapshot.formula(pool).is_none() => Some(old),
            Pooling::Paired if penalty.is_none() => way_home.or(there),
            _ => None,
        };
        let place = match known {
            Some(known) => Place::At(known),
            None => self.place_of_new(key, compiled)?,
        };
        let moves = old != UNPAIRED && place != Place::At(old) && penalty.is_none();
        let stays_elsewhere =
            moves && self.stays_elsewhere(owner, slot, old, pool, there.map(Place::At) == Some(place));
        Ok(Entry { home, elsewhere: Some(old).filter(|_| stays_elsewhere), ..Entry::new(pool, place) })
    }

    /// True for an open address; in a one-to-one pool, only for the subscriber's own.
    pub(crate) fn fits(&self, paired: AddressIndex, key: &InternalKey, compiled: &CompiledPool) -> bool {
        paired != UNPAIRED
            && self.snapshot.pool_of(paired) == compiled.id
            && !self.snapshot.compiled_pool(paired).is_closed
            && (!compiled.one_to_one || self.static_home(key, compiled.id) == Some(paired))
    }

    /// The pool in which it stays while a rule sends only some flows to `pool`.
    fn stays_in(
        &self,
        paired: AddressIndex,
        key: &InternalKey,
        pool: PoolId,
        penalty: Option<PoolId>,
    ) -> Option<PoolId> {
        let snapshot = self.snapshot;
        let own = penalty.or_else(|| snapshot.pool_for(key.realm, key.address.into()))?;
        if own == pool || snapshot.formula(own).is_some() {
            return None;
        }
        let compiled = &snapshot.pools[own.index()];
        let stays =
            if paired == UNPAIRED { compiled.pooling == Pooling::Arbitrary } else { self.fits(paired, key, compiled) };
        stays.then_some(own)
    }

    /// True if a subscriber that a rule first paired in another pool, but no penalty pool, stays
    /// paired there too.
    fn stays_elsewhere(&self, owner: &Owner, slot: u32, old: AddressIndex, pool: PoolId, is_free: bool) -> bool {
        let before = self.snapshot.pool_of(old);
        let penalty = self.snapshot.classes.compiled(owner.class).penalty;
        let is_by_rule = before != pool && penalty.is_none_or(|penalty| penalty.pool != before);
        is_by_rule && (is_free || self.state.subscribers.elsewhere(slot).is_none())
    }

    /// True if an offender returns to its address before the penalty, where it may still have
    /// sessions and blocks (RFC 6888 §4 REQ-2).
    fn is_way_home(
        &self,
        slot: u32,
        home: AddressIndex,
        key: &InternalKey,
        compiled: &CompiledPool,
        class: PortClass,
    ) -> bool {
        let is_open = self.snapshot.slot(home).is_some()
            && self.snapshot.pool_of(home) == compiled.id
            && !self.snapshot.compiled_pool(home).is_closed;
        // A formula or a one-to-one pool determines the address.
        let is_free = self.snapshot.formula(compiled.id).is_none() && !compiled.one_to_one;
        let has_block = || self.blocks_of(slot).any(|block| block.address() == home);
        // A plan cannot check: its snapshot's ports are not offered yet.
        let has_room = || !self.is_in_effect || self.has_room(compiled, home, key, class);
        is_open && is_free && (has_block() || has_room())
    }

    /// The open address of another pool where it had something last (RFC 4787 §4.1 REQ-2).
    pub(crate) fn place_in(&self, slot: u32, pool: PoolId) -> Option<AddressIndex> {
        let place = self.state.subscribers.elsewhere(slot)?;
        if self.snapshot.slot(place).is_none() || self.snapshot.pool_of(place) != pool {
            return None;
        }
        let compiled = self.snapshot.compiled_pool(place);
        let is_paired =
            compiled.pooling == Pooling::Paired && !compiled.one_to_one && self.snapshot.formula(pool).is_none();
        (is_paired && !compiled.is_closed).then_some(place)
    }

    /// True if the subscriber must first be paired with its own pool again. Blocks and slices exist
    /// only there.
    fn goes_to_own_pool(&self, slot: u32, compiled: &CompiledPool) -> bool {
        if compiled.gives_single_ports() || compiled.one_to_one {
            return false;
        }
        let record = self.state.subscribers.get(slot);
        let Some(entered) = self.snapshot.pools.get(usize::from(record.pool)) else { return false };
        entered.gives_single_ports()
            && !entered.one_to_one
            && !entered.has_guarantees()
            && self.snapshot.pool_for(record.realm(), record.address.into()) == Some(compiled.id)
    }

    /// The address of its blocks, or its last one. `None` with a formula or arbitrary pooling.
    fn place_in_own_pool(&self, slot: u32, compiled: &CompiledPool) -> Option<AddressIndex> {
        let pool = compiled.id;
        if compiled.pooling != Pooling::Paired || self.snapshot.formula(pool).is_some() {
            return None;
        }
        let is_open = |address: &AddressIndex| {
            self.snapshot.slot(*address).is_some()
                && self.snapshot.pool_of(*address) == pool
                && !self.snapshot.compiled_pool(*address).is_closed
        };
        let of_blocks = self.blocks_of(slot).map(|block| block.address()).find(is_open);
        of_blocks.or_else(|| self.place_in(slot, pool))
    }

    /// The address in another pool. With paired pooling always the same: the last one, or one by
    /// hash.
    pub(crate) fn place_in_other_pool(&self, slot: u32, compiled: &CompiledPool) -> Option<Place> {
        if compiled.pooling == Pooling::Arbitrary {
            return Some(Place::Any);
        }
        let by_hash = || {
            let record = self.state.subscribers.get(slot);
            let open = self.snapshot.choices(compiled);
            let position = consistent(self.state.subscribers.hash_of(record.realm(), record.address), open.len());
            open.get(position?).copied()
        };
        self.place_in(slot, compiled.id).or_else(by_hash).map(Place::At)
    }

    pub(crate) fn blocks_of(&self, slot: u32) -> impl Iterator<Item = Block> {
        let blocks = &self.snapshot.ports.blocks;
        core::iter::successors(self.state.subscribers.get(slot).latest_block(), |block| blocks.next(*block))
    }

    #[cold]
    pub(crate) fn why_no_address(&self, compiled: &CompiledPool, key: &InternalKey) -> Verdict {
        let drains = self.snapshot.has_only_closed(compiled, key.realm, key.address);
        if drains { Verdict::AddressDraining } else { Verdict::PortsExhausted }
    }

    pub(crate) fn static_home(&self, key: &InternalKey, pool: PoolId) -> Option<AddressIndex> {
        let home = self.snapshot.address_index(self.static_home_address(key)?.into())?;
        (self.snapshot.pool_of(home) == pool).then_some(home)
    }

    fn static_home_address(&self, key: &InternalKey) -> Option<u32> {
        let static_mappings = &self.snapshot.static_mappings;
        if static_mappings.is_empty() {
            return None;
        }
        static_mappings.home(key.realm, &self.configured_host(key.address))
    }
}

/// A new position at the end moves as few as possible (Lamping and Veach, "A Fast, Minimal Memory,
/// Consistent Hash Algorithm").
fn consistent(hash: u64, positions: usize) -> Option<usize> {
    let (mut state, mut found, mut next) = (hash, None, 0_u64);
    while next < positions as u64 {
        found = Some(next as usize);
        state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // Below 2^63 at each step, because positions are addresses.
        next = (next + 1).saturating_mul(1 << 31) / ((state >> 33) + 1);
    }
    found
}
