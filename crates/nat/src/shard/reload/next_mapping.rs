//! Where a subscriber's next mapping would be, now and under other settings, for a protocol's
//! general traffic ([`General`]). Whether there is room does not count, so this is not
//! `decide_mapping` with another snapshot, but the steps of that which ask for no room, in the same
//! order: the pool, whether it gives anything new, the pairing, the place. Only the rules come
//! first, as the packet path asks them before. Endpoint-dependent sessions, which a rule may ask
//! for, have one step of their own here: blocks serve them for other pools' subscribers, too.

use crate::external::ports::PortClass;
use crate::external::static_mapping::Kind;
use crate::policy::rules::General;
use crate::settings::MappingKind;
use crate::settings::RuleAction;
use crate::shard::commit::port_of_ended::UNPAIRED;
use crate::snapshot::shared::Shared;
use crate::state::mapping::InternalKey;
use crate::steps::opening::Place;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Next {
    At(AddressIndex),
    /// In this pool, chosen once for all later mappings.
    Chosen(PoolId),
    /// In this pool, chosen for each mapping.
    Any(PoolId),
    /// All its addresses drain.
    Drains(PoolId),
    None(Denial),
}

/// Why a subscriber gets nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// No pool serves the subscriber.
    NotServed,
    /// A rule names a pool of blocks, slices or whole addresses, which has no ports for other
    /// pools' subscribers.
    OtherMode,
    /// A rule drops its packets.
    Dropped,
    /// A rule passes its packets untranslated.
    Untranslated,
}

impl Denial {
    /// Whether a rule is the reason.
    pub fn is_by_rule(self) -> bool {
        self != Denial::NotServed
    }
}

impl View<'_> {
    /// Without `general`, rules are assumed to name the same pools as before.
    pub(in crate::shard) fn next_mapping(
        &self,
        now: Instant,
        shared: &Shared,
        slot: u32,
        (protocol, general): (Protocol, Option<&General>),
    ) -> Next {
        let subscriber = self.state.subscribers.get(slot);
        let (realm, inside) = (subscriber.realm(), subscriber.address);
        let action = general.map(|general| self.under(shared).ruling(general.key(realm, inside)).action);
        let shares_ports =
            matches!(action, Some(RuleAction::Translate { mapping: MappingKind::EndpointDependent, .. }));
        let wanted = match action {
            Some(RuleAction::Drop) => return Next::None(Denial::Dropped),
            Some(RuleAction::NoTranslation) => return Next::None(Denial::Untranslated),
            Some(action) => action.pool(),
            None => self.pool_by_pairing(shared, slot),
        };
        let view = View { snapshot: shared, is_in_effect: false, ..*self };
        let owner = view.owner_in(now, slot);
        let key = InternalKey { realm, protocol, address: inside, port: u16::MAX };
        // Not a forward: that does not serve general traffic.
        let own_address = shared.static_mappings.own_address(realm, inside);
        let own_address = own_address.map(|own| (Endpoint::new(own.into(), key.port), Kind::OneToOne));
        let pool = view.pool_of_endpoint(&key, &owner, wanted, own_address);
        let Some(compiled) = pool.and_then(|pool| shared.pools.get(pool.index())) else {
            return Next::None(Denial::NotServed);
        };
        let pool = compiled.id;
        match view.check_pool(&key, compiled, own_address) {
            Err(Verdict::AddressDraining) => return Next::Drains(pool),
            Err(_) => {
                let own = owner.penalty.or_else(|| shared.pool_for(realm, inside.into()));
                return Next::None(if own == Some(pool) { Denial::NotServed } else { Denial::OtherMode });
            }
            Ok(()) => {}
        }
        if let Some(address) = own_address.and_then(|(external, _)| shared.address_index(external.address)) {
            return Next::At(address);
        }
        let Ok(entry) = view.entry(&owner, &key, compiled, PortClass::High) else {
            return Next::None(Denial::NotServed);
        };
        // A pool of blocks has ports for endpoint-dependent sessions, too.
        let serves_others = compiled.gives_single_ports() || shares_ports && compiled.slice_ports == 0;
        let Some(place) = view.place_given(Some(slot), &entry, compiled, serves_others) else {
            return if serves_others { Next::Drains(pool) } else { Next::None(Denial::OtherMode) };
        };
        match place {
            Place::At(address) | Place::Preferred(address) => Next::At(address),
            Place::Chosen => Next::Chosen(pool),
            Place::Any => Next::Any(pool),
        }
    }

    /// The pool of a rule, as the pairing shows; None if it is the subscriber's own, or unknown.
    fn pool_by_pairing(&self, shared: &Shared, slot: u32) -> Option<PoolId> {
        let subscriber = self.state.subscribers.get(slot);
        let paired = AddressIndex(subscriber.paired);
        if paired == UNPAIRED || self.snapshot.closed(paired).is_some() {
            return None;
        }
        let is_by_rule = self.pool_under(subscriber) != Some(self.snapshot.pool_of(paired));
        // Rules that name a removed pool go with it.
        let pool = Some(shared.pool_of(paired)).filter(|pool| pool.index() < shared.settings().pools.len());
        pool.filter(|_| is_by_rule)
    }
}
