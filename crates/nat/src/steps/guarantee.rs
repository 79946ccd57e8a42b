use crate::external::ports::Guarantees;
use crate::external::ports::PerProtocol;
use crate::external::ports::Share;
use crate::external::ports::Stock;
use crate::rows::Guarantee;
use crate::snapshot::shared::CompiledPool;
use crate::state::mapping::InternalKey;
use crate::state::subscriber::Account;
use crate::steps::opening::FromGuaranteed;
use crate::steps::opening::Owner;
use crate::steps::pairing::UNPAIRED;
use crate::steps::port_choice::port_class;
use crate::steps::view::View;
use crate::types::AddressIndex;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;

pub(crate) const NOTHING: PerProtocol = [0; Protocol::COUNT];

/// Less than the guarantee if the address offers fewer ports than before, or others took ports
/// before it kept any.
pub(crate) fn backed(stock: [Stock; Protocol::COUNT], address: AddressIndex, account: &Account) -> PerProtocol {
    if !account.is_guaranteed(address) {
        return NOTHING;
    }
    let (guarantee, within) = (account.guarantee(), account.within());
    [0, 1, 2].map(|p| {
        let too_many = stock[p].guaranteed.saturating_sub(stock[p].can_be);
        guarantee[p].saturating_sub(too_many).max(within[p])
    })
}

fn guarantee(reserved: PerProtocol, there: PerProtocol) -> Guarantee {
    let ports = [0, 1, 2].map(|p| reserved[p].min(there[p]));
    Guarantee { ports, missing: [0, 1, 2].map(|p| reserved[p] - ports[p]) }
}

impl View<'_> {
    pub(crate) fn rest_of_address(&self, compiled: &CompiledPool, address: AddressIndex, protocol: Protocol) -> u32 {
        self.snapshot.ports.available(address, protocol).saturating_sub(compiled.for_guarantees[protocol.index()])
    }

    /// Only the pool that serves a subscriber keeps ports for it, not that of a rule or a penalty.
    pub(crate) fn reserved_in(
        &self,
        compiled: &CompiledPool,
        class: u16,
        realm: RealmId,
        host: HostNumber,
    ) -> PerProtocol {
        let reserved = self.snapshot.classes.compiled(class).reserved;
        if reserved == NOTHING || !compiled.has_guarantees() {
            return NOTHING;
        }
        let own = self.snapshot.pool_for(realm, host.into());
        if own == Some(compiled.id) { reserved } else { NOTHING }
    }

    pub(crate) fn reserved_for(&self, compiled: &CompiledPool, slot: u32) -> PerProtocol {
        let subscriber = self.state.subscribers.get(slot);
        self.reserved_in(compiled, self.class_now(slot), subscriber.realm(), subscriber.address)
    }

    pub(crate) fn reserved_for_key(&self, compiled: &CompiledPool, key: &InternalKey) -> PerProtocol {
        self.reserved_in(compiled, self.class_of(key.realm, key.address), key.realm, key.address)
    }

    pub(crate) fn stock(
        &self,
        guarantees: &Guarantees,
        compiled: &CompiledPool,
        address: AddressIndex,
    ) -> [Stock; Protocol::COUNT] {
        Protocol::ALL.map(|protocol| {
            let offered = self.snapshot.ports.available(address, protocol);
            guarantees.stock(address, protocol, offered, compiled.for_guarantees[protocol.index()])
        })
    }

    pub(crate) fn has_room_beside_guarantees(
        &self,
        compiled: &CompiledPool,
        address: AddressIndex,
        key: &InternalKey,
    ) -> bool {
        let Some(guarantees) = self.snapshot.ports.guarantees() else { return false };
        let reserved = self.reserved_for_key(compiled, key);
        if reserved == NOTHING {
            return guarantees.taken(address, key.protocol) < self.rest_of_address(compiled, address, key.protocol);
        }
        let known =
            self.state.subscribers.find(key.realm, key.address).map(|slot| self.state.subscribers.account(slot));
        if known.is_some_and(|account| account.is_guaranteed(address)) {
            return true;
        }
        let stock = self.stock(guarantees, compiled, address);
        stock.into_iter().zip(reserved).all(|(stock, wanted)| stock.room() >= wanted)
    }

    /// A free port, preferably a kept one, if no address has room for the whole guarantee.
    pub(crate) fn address_with_part_of_guarantee(
        &self,
        compiled: &CompiledPool,
        key: &InternalKey,
    ) -> Option<AddressIndex> {
        let guarantees =
            self.snapshot.ports.guarantees().filter(|_| self.reserved_for_key(compiled, key) != NOTHING)?;
        let (p, protocol) = (key.protocol.index(), key.protocol);
        let class = port_class(key.port, compiled);
        let is_free = |address: AddressIndex| self.snapshot.ports.has_single_port(address, protocol, class);
        let some_guaranteed =
            |address: &&AddressIndex| self.stock(guarantees, compiled, **address)[p].room() > 0 && is_free(**address);
        let some_rest = |address: &&AddressIndex| {
            guarantees.taken(**address, protocol) < self.rest_of_address(compiled, **address, protocol)
                && is_free(**address)
        };
        let open = self.snapshot.choices(compiled);
        open.iter().find(some_guaranteed).or_else(|| open.iter().find(some_rest)).copied()
    }

    pub(crate) fn guarantee_of(&self, slot: u32) -> Guarantee {
        let (subscriber, account) = (self.state.subscribers.get(slot), self.state.subscribers.account(slot));
        let address = AddressIndex(subscriber.paired);
        let Some(guarantees) = self.snapshot.ports.guarantees().filter(|_| address != UNPAIRED) else {
            return Guarantee::default();
        };
        let compiled = self.snapshot.compiled_pool(address);
        let reserved = self.reserved_for(compiled, slot);
        let has = backed(self.stock(guarantees, compiled, address), address, account);
        guarantee(reserved, has)
    }

    /// The guarantee as the next mapping finds it. `None` if nothing is guaranteed.
    pub(crate) fn guarantee_now(
        &self,
        subscriber: Option<u32>,
        compiled: &CompiledPool,
        address: Option<AddressIndex>,
        key: &InternalKey,
    ) -> Option<Guarantee> {
        let reserved = self.reserved_for_key(compiled, key);
        let guarantees = self.snapshot.ports.guarantees().filter(|_| reserved != NOTHING)?;
        let at = |address: AddressIndex| {
            let stock = self.stock(guarantees, compiled, address);
            let account = subscriber.map(|slot| self.state.subscribers.account(slot));
            let has = account.map_or(NOTHING, |account| backed(stock, address, account));
            guarantee(reserved, [0, 1, 2].map(|p| has[p] + stock[p].room()))
        };
        match address {
            Some(address) => Some(at(address)),
            None => {
                let open = self.snapshot.choices(compiled).iter().map(|address| at(*address));
                open.min_by_key(|guarantee| guarantee.missing.iter().map(|ports| u64::from(*ports)).sum::<u64>())
            }
        }
    }

    pub(crate) fn left_beside_guarantees(
        &self,
        subscriber: Option<u32>,
        compiled: &CompiledPool,
        address: AddressIndex,
        key: &InternalKey,
    ) -> u64 {
        let (p, protocol) = (key.protocol.index(), key.protocol);
        let (ports, Some(guarantees)) = (&self.snapshot.ports, self.snapshot.ports.guarantees()) else { return 0 };
        let rest =
            self.rest_of_address(compiled, address, protocol).saturating_sub(guarantees.taken(address, protocol));
        let account =
            subscriber.map(|slot| self.state.subscribers.account(slot)).filter(|it| it.is_guaranteed(address));
        let within = account.map_or(0, |account| account.within()[p]);
        let own = self.guarantee_now(subscriber, compiled, Some(address), key).map_or(0, |it| it.ports[p]);
        // A guarantee from other settings may include ports no longer offered or in older blocks.
        let free = ports.free_of_class(address, protocol, port_class(key.port, compiled));
        u64::from((rest + own.saturating_sub(within)).min(free))
    }

    pub(crate) fn has_beyond_guarantees(
        &self,
        compiled: &CompiledPool,
        address: AddressIndex,
        protocol: Protocol,
    ) -> bool {
        let limit = self.rest_of_address(compiled, address, protocol);
        self.snapshot.ports.guarantees().is_some_and(|guarantees| guarantees.taken(address, protocol) < limit)
    }

    fn guarantee_at(
        &self,
        stock: [Stock; Protocol::COUNT],
        account: &Account,
        reserved: PerProtocol,
        address: AddressIndex,
    ) -> PerProtocol {
        if account.has_guarantee() && !account.is_guaranteed(address) && account.uses_guarantee() {
            return NOTHING;
        }
        let keeps = keeps(stock, account, reserved, address);
        let has = if account.is_guaranteed(address) { account.guarantee() } else { NOTHING };
        [0, 1, 2].map(|p| {
            let others = stock[p].guaranteed.saturating_sub(has[p].saturating_sub(keeps[p]));
            keeps[p] + (reserved[p] - keeps[p].min(reserved[p])).min(stock[p].can_be.saturating_sub(others))
        })
    }

    /// `None` if everything left is guaranteed to others.
    pub(crate) fn share_at(
        &self,
        owner: &Owner,
        key: &InternalKey,
        compiled: &CompiledPool,
        address: AddressIndex,
    ) -> Option<FromGuaranteed> {
        let (guarantees, protocol) = (self.snapshot.ports.guarantees()?, key.protocol);
        let fresh = Account::default();
        let account = owner.slot.map_or(&fresh, |slot| self.state.subscribers.account(slot));
        let reserved = self.reserved_in(compiled, owner.class, key.realm, key.address);
        let guaranteed = self.guarantee_at(self.stock(guarantees, compiled, address), account, reserved, address);
        let p = protocol.index();
        let uses = if account.is_guaranteed(address) { account.within()[p] } else { 0 };
        let needs_all = owner.slot.is_none() && guaranteed.into_iter().zip(reserved).all(|(has, wanted)| has >= wanted);
        let share = match () {
            () if uses < guaranteed[p] => Share::Within,
            () if self.has_beyond_guarantees(compiled, address, protocol) => Share::Beyond,
            () => return None,
        };
        Some(FromGuaranteed { share, is_own: true, needs_all })
    }
}

pub(crate) fn keeps(
    stock: [Stock; Protocol::COUNT],
    account: &Account,
    reserved: PerProtocol,
    address: AddressIndex,
) -> PerProtocol {
    if !account.is_guaranteed(address) {
        return NOTHING;
    }
    let (has, uses, backed) = (account.guarantee(), account.within(), backed(stock, address, account));
    [0, 1, 2].map(|p| if has[p] == 0 { 0 } else { backed[p].min(reserved[p]).max(uses[p]) })
}
