//! Where the next mapping of a subscriber would be, now and under other settings: the twin of
//! [`create_mapping`](Shard::create_mapping) and [`settle_pairing`](Shard::settle_pairing) that takes nothing, for a plan.
//!
//! It follows the general traffic of a protocol ([`General`]), and does not ask whether there is room.

use super::Shard;
use super::penalty::penalty_under;
use super::penalty::pool_under;
use super::port_choice::UNPAIRED;
use crate::mapping::InternalKey;
use crate::rules::General;
use crate::settings::MappingKind;
use crate::settings::Pooling;
use crate::settings::RuleAction;
use crate::shared::PoolFacts;
use crate::shared::Shared;
use crate::types::AddressIndex;
use crate::types::PoolId;
use crate::types::Protocol;

/// Where a mapping would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// On this address.
    At(AddressIndex),
    /// On one of this pool that is chosen then, for this and all that follow.
    Chosen(PoolId),
    /// On any of this pool, each mapping anew.
    Any(PoolId),
    /// All that this pool may give drains.
    Drains(PoolId),
    /// There would be none.
    None(Denial),
}

/// Why a subscriber gets nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No pool serves him.
    NotServed,
    /// A rule sends him to a pool that has no ports for whoever is another's, as it gives out blocks, slices or whole addresses.
    OtherMode,
    /// A rule drops what he sends.
    Dropped,
    /// A rule lets it through as it is.
    Untranslated,
}

impl Denial {
    /// Whether a rule says so.
    pub fn is_by_rule(self) -> bool {
        self != Denial::NotServed
    }
}

impl Shard {
    /// Where the next mapping of the subscriber in `slot` would be. `general`: what stands for its general traffic; without it rules are
    /// taken to go on sending it where they did.
    pub(super) fn next_mapping(
        &self,
        shared: &Shared,
        slot: u32,
        (protocol, general): (Protocol, Option<&General>),
    ) -> Next {
        let subscriber = self.subscribers.get(slot);
        let (realm, inside) = (subscriber.realm(), subscriber.address);
        let action = general.map(|general| shared.rule_for(&general.key(realm, inside)).action);
        let shares_ports =
            matches!(action, Some(RuleAction::Translate { mapping: MappingKind::EndpointDependent, .. }));
        let wanted = match action {
            Some(RuleAction::Drop) => return Next::None(Denial::Dropped),
            Some(RuleAction::NoTranslation) => return Next::None(Denial::Untranslated),
            Some(action) => action.pool(),
            None => self.pool_by_pairing(shared, slot),
        };
        // Whose address is his own has that one, whatever pool rules name.
        let own_address = shared.statics.own_address(realm, inside);
        if let Some(address) = own_address.and_then(|own| shared.address_index(own.into())) {
            return match shared.closed(address) {
                Some(_) => Next::Drains(shared.pool_of(address)),
                None => Next::At(address),
            };
        }
        let own = pool_under(shared, subscriber);
        let penalty = penalty_under(shared, subscriber);
        let Some(pool) = penalty.or(wanted).or(own) else { return Next::None(Denial::NotServed) };
        let Some(facts) = shared.pools.get(pool.index()) else { return Next::None(Denial::NotServed) };
        if shared.has_only_closed(facts, realm, inside) {
            return Next::Drains(pool);
        }
        let key = InternalKey { realm, protocol, address: inside, port: 0 };
        let paired = AddressIndex(subscriber.paired);
        if subscriber.generation == shared.stamp() {
            return match paired {
                _ if penalty.is_none() && self.goes_to_own_pool(slot, pool, facts) => self
                    .place_in_own_pool(slot, pool, facts)
                    .map_or_else(|| self.next_in_pool(shared, slot, &key, facts), Next::At),
                _ if subscriber.pool != pool.0 => self.next_in_other_pool(shared, slot, facts, shares_ports),
                UNPAIRED => Next::Any(pool),
                paired => Next::At(paired),
            };
        }
        // As `pair_anew`.
        if let Some(own) = own.filter(|own| *own != pool && shared.formula(*own).is_none()) {
            let stays = match paired {
                UNPAIRED => shared.pools[own.index()].pooling == Pooling::Arbitrary,
                paired => shared.pool_of(paired) == own && shared.closed(paired).is_none(),
            };
            if stays {
                return self.next_in_other_pool(shared, slot, facts, shares_ports);
            }
        }
        self.next_in_pool(shared, slot, &key, facts)
    }

    /// Of a subscriber who is to be paired anew with this pool.
    fn next_in_pool(&self, shared: &Shared, slot: u32, key: &InternalKey, facts: &PoolFacts) -> Next {
        let (pool, subscriber) = (facts.id, self.subscribers.get(slot));
        if let Some(formula) = shared.formula(pool) {
            let slice = formula.slice_of(key.address);
            return slice.map_or(Next::None(Denial::NotServed), |slice| Next::At(shared.member(facts, slice.address)));
        }
        if facts.one_to_one {
            return Next::None(if pool_under(shared, subscriber) == Some(pool) {
                Denial::NotServed
            } else {
                Denial::OtherMode
            });
        }
        if facts.pooling == Pooling::Arbitrary {
            return Next::Any(pool);
        }
        let is_open = |address: &AddressIndex| {
            *address != UNPAIRED && shared.pool_of(*address) == pool && shared.closed(*address).is_none()
        };
        let paired = Some(AddressIndex(subscriber.paired)).filter(is_open);
        let is_penalised = penalty_under(shared, subscriber).is_some();
        let before_penalty = || self.subscribers.account(slot).home().filter(|home| !is_penalised && is_open(home));
        let of_static =
            || shared.statics.home(key.realm, key.address).and_then(|home| shared.address_index(home.into()));
        let place = || self.place_in(shared, slot, pool).filter(|_| !is_penalised);
        let known = paired
            .or_else(before_penalty)
            .or_else(place)
            .or_else(|| of_static().filter(|home| shared.pool_of(*home) == pool));
        known.map_or(Next::Chosen(pool), Next::At)
    }

    /// Of one who is paired with an address of another pool. Ports that flows share are to be had in a pool of blocks, too.
    fn next_in_other_pool(&self, shared: &Shared, slot: u32, facts: &PoolFacts, shares_ports: bool) -> Next {
        let gives_some = facts.gives_single_ports() || shares_ports && facts.slice_ports == 0;
        if !gives_some || facts.one_to_one {
            return Next::None(Denial::OtherMode);
        }
        match self.address_in_other_pool_under(shared, slot, facts.id, facts) {
            None => Next::Drains(facts.id),
            Some(UNPAIRED) => Next::Any(facts.id),
            Some(address) => Next::At(address),
        }
    }

    /// The pool that rules sent a subscriber to, as is told by whom he is paired with; None: it is his own, or not known.
    fn pool_by_pairing(&self, shared: &Shared, slot: u32) -> Option<PoolId> {
        let subscriber = self.subscribers.get(slot);
        let paired = AddressIndex(subscriber.paired);
        if paired == UNPAIRED || self.shared.closed(paired).is_some() {
            return None;
        }
        let is_by_rule = pool_under(&self.shared, subscriber) != Some(self.shared.pool_of(paired));
        // A pool that is removed takes the rules that name it with it.
        let pool = Some(shared.pool_of(paired)).filter(|pool| pool.index() < shared.settings().pools.len());
        pool.filter(|_| is_by_rule)
    }
}
