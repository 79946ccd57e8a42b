//! The only creator of mappings and their sessions, after a decision of [`crate::steps`].
//!
//! A `commit_…` checks only what other workers may have changed meanwhile: the bits of the port and
//! its block, and the number of guaranteed ports. If it loses the race, at most the subscriber's
//! guarantee stays, and the packet is decided again. An `open_…`, `create_…`, `expect…` or
//! `carry_out_…` asks for the decision, or for one that follows, itself.

pub(in crate::shard) mod admission;
pub(in crate::shard) mod call;
mod control_session;
pub(in crate::shard) mod coverage;
mod dependent;
mod dependent_end;
pub(in crate::shard) mod expectation;
pub(in crate::shard) mod grant;
pub(in crate::shard) mod guarantee;
mod host;
pub(in crate::shard) mod penalty;
pub(in crate::shard) mod port_of_ended;

use super::Ledger;
use crate::external::ports::PortRange;
use crate::external::ports::Share;
use crate::external::ports::Taker;
use crate::external::static_mapping::Inside;
use crate::external::static_mapping::Kind;
use crate::policy::rules::RuleId;
use crate::snapshot::pool_counts::PoolCount;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::state::subscriber::Account;
use crate::steps::expired::Expired;
use crate::steps::opening::Ask;
use crate::steps::opening::Entered;
use crate::steps::opening::Entry;
use crate::steps::opening::External;
use crate::steps::opening::FromGuaranteed;
use crate::steps::opening::Hints;
use crate::steps::opening::NewMapping;
use crate::steps::opening::Owner;
use crate::steps::opening::Source;
use crate::steps::pairing::UNPAIRED;
use crate::steps::session::SessionPlace;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::InsideHost;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::verdict::Verdict;
use core::sync::atomic::Ordering;

/// All but the first follow a lost race, or the end of what was in the way.
pub(super) const ATTEMPTS: usize = 64;

/// Another worker was faster. Nothing has changed, except that a subscriber keeps a guarantee that
/// it has just got. A full table is no reason: the decision has found room.
pub(super) struct Lost;

impl Ledger {
    pub(super) fn open_mapping(
        &mut self,
        now: Instant,
        key: &InternalKey,
        hints: &Hints,
        wanted: Option<PoolId>,
        session: &NewSession,
    ) -> Result<u32, Verdict> {
        let mut ask = Ask { now, key, wanted, hints: *hints, expired: Expired::NONE };
        for _ in 0..ATTEMPTS {
            let (view, random) = self.deciding();
            let opening = match view.decide_mapping(&ask, random, &mut ()) {
                Ok(opening) => opening.mapping,
                Err(verdict) => {
                    self.end_quiet_penalty(now, key);
                    return Err(verdict);
                }
            };
            if let Ok(index) = self.commit_mapping(now, &opening, session) {
                return Ok(index);
            }
            ask.hints.forget_draws();
        }
        Err(Verdict::PortsExhausted)
    }

    #[inline(always)]
    pub(super) fn commit_mapping(&mut self, now: Instant, new: &NewMapping, session: &NewSession) -> Result<u32, Lost> {
        let protocol = new.key.protocol;
        let (port, account) = self.take_external(now, new)?;
        let address = new.external.address;
        let slot = match new.owner.slot {
            Some(slot) if new.entered.is_none() && new.owner.released.is_none() => slot,
            _ => {
                let slot = self.commit_subscriber(now, *new);
                debug_assert!(slot.is_some(), "the decision has found room for the subscriber");
                slot.ok_or(Lost)?
            }
        };
        self.note_source(now, slot, new, port, account);
        let external = Endpoint::new(self.shared.address(address), port);
        let index = self.state.mappings.insert(&new.key, slot, external, now, session);
        debug_assert!(index.is_some(), "the decision has found room for the mapping");
        let index = index.ok_or(Lost)?;
        let entered = self.state.outbound.insert(new.hash, index.0);
        self.created.note(new.hash);
        self.state.subscribers.hosts.retain(new.key.address);
        debug_assert!(entered.is_ok(), "it was not full");
        if new.notes_place {
            self.state.subscribers.note_place(slot, address, self.shared.pool_of(address));
        }
        self.update_class(slot);
        self.count_mapping(now, slot, protocol);
        self.counters.sessions_created += 1;
        if let Some(pool) = new.turn {
            self.shared.turns[pool.index()].fetch_add(1, Ordering::Relaxed);
        }
        // Last: other workers find the endpoint's owner from here on.
        self.shared.ports.publish(address, protocol, port, self.worker, index);
        self.counters.mappings_created[protocol.index()] += 1;
        self.shared.count_in_pool(self.worker, self.shared.pool_of(address), PoolCount::Mapped);
        self.note_mapping_created(now, index.0, new, external);
        self.emit_session(now, index.0, SessionRef::Inline);
        Ok(index.0)
    }

    #[inline(always)]
    fn take_external(&mut self, now: Instant, new: &NewMapping) -> Result<(u16, Option<Account>), Lost> {
        let External { address, port, source } = new.external;
        let (ports, protocol) = (&self.shared.ports, new.key.protocol);
        let is_taken = match source {
            Source::Free { taker, guaranteed: None, .. } => ports.take_picked(address, protocol, port, taker),
            Source::Free { guaranteed: Some(guaranteed), .. } => return self.take_guaranteed(*new, guaranteed),
            Source::Static(Kind::OneToOne) => ports.claim(address, protocol, port),
            Source::Static(Kind::Forward) => ports.claim_withheld(address, protocol, port),
            Source::Lease { .. } | Source::Given(_) => return self.take_in_lease(now, *new),
        };
        if is_taken { Ok((port, None)) } else { Err(Lost) }
    }

    /// A port outside the guarantee counts as unguaranteed.
    #[cold]
    fn take_guaranteed(&mut self, new: NewMapping, from: FromGuaranteed) -> Result<(u16, Option<Account>), Lost> {
        let External { address, port, .. } = new.external;
        let (view, protocol) = (self.view(), new.key.protocol);
        let compiled = self.shared.compiled_pool(address);
        let slot = new.owner.slot;
        let mut account = slot.map_or_else(Account::default, |slot| *self.state.subscribers.account(slot));
        let mut has_all = true;
        if from.is_own {
            let reserved = view.reserved_in(compiled, new.owner.class, new.key.realm, new.key.address);
            has_all = self.guarantee_to(&mut account, reserved, compiled, address);
        }
        let is_beyond = from.share == Share::Beyond;
        let has_share = match from.share {
            Share::Within => account.has_left(address, protocol) && (has_all || !from.needs_all),
            Share::Beyond => self.take_unguaranteed(compiled, address, protocol).is_ok(),
        };
        if has_share && self.shared.ports.take_picked(address, protocol, port, Taker::Anyone) {
            if let Some(guarantees) = self.shared.ports.guarantees() {
                guarantees.mark(address, protocol, port, from.share);
            }
            if from.share == Share::Within {
                account.count_within(protocol);
            }
            return Ok((port, from.is_own.then_some(account)));
        }
        if has_share && is_beyond {
            self.settle_unguaranteed(address, protocol, None);
        }
        match (slot, self.shared.ports.guarantees()) {
            // A guarantee stays with its subscriber even if the mapping fails.
            (Some(slot), _) => *self.state.subscribers.account_mut(slot) = account,
            (None, Some(guarantees)) if account.has_guarantee() => guarantees.withdraw(address, account.guarantee()),
            (None, _) => {}
        }
        Err(Lost)
    }

    #[cold]
    fn take_in_lease(&mut self, now: Instant, new: NewMapping) -> Result<(u16, Option<Account>), Lost> {
        let (block, parity, given) = match new.external.source {
            Source::Lease { block, parity } => (block, parity, None),
            Source::Given(block) => (block, None, Some(new.external.port)),
            _ => return Err(Lost),
        };
        let latest = new.owner.slot.and_then(|slot| self.state.subscribers.get(slot).latest_block());
        let holder = self.view().holder(new.key.realm, new.key.address);
        let ports = &self.shared.ports;
        if !ports.lease(block, holder, latest, now) {
            return Err(Lost);
        }
        let (range, protocol) = (PortRange::of_block(block), new.key.protocol);
        let taken = match given {
            Some(port) => ports.take_picked(block.address(), protocol, port, Taker::Holder).then_some(port),
            None => [parity, None]
                .into_iter()
                .find_map(|parity| ports.allocate_within(&range, protocol, parity, Taker::Holder, &mut self.random)),
        };
        if taken.is_none() {
            ports.give_back(block);
        }
        taken.map(|port| (port, None)).ok_or(Lost)
    }

    #[inline(always)]
    fn note_source(&mut self, now: Instant, slot: u32, new: &NewMapping, port: u16, account: Option<Account>) {
        match new.external.source {
            Source::Free { guaranteed: None, activates: None, .. } => {}
            Source::Free { guaranteed: Some(_), .. } => {
                let Some(guaranteed) = account else { return };
                let account = self.state.subscribers.account_mut(slot);
                account.take_guarantee(&guaranteed);
            }
            Source::Free { activates: Some(block), .. } => {
                self.state.subscribers.set_active_block(slot, new.key.protocol, block);
            }
            Source::Lease { block, .. } | Source::Given(block) => {
                self.state.subscribers.add_block(slot, block);
                self.state.subscribers.set_active_block(slot, new.key.protocol, block);
                self.counters.blocks_leased += 1;
                self.note_block_leased(now, slot, block);
            }
            Source::Static(_) => self.count_static(new.external.address, new.key.protocol, port),
        }
    }

    #[cold]
    fn count_static(&self, address: AddressIndex, protocol: Protocol, port: u16) {
        let external = self.shared.address(address).to_bits();
        if let Some(inside) = self.shared.static_mappings.by_external(external, protocol, port) {
            self.shared.static_hits.count(self.worker, RuleId(inside.number));
        }
    }

    #[cold]
    fn commit_subscriber(&mut self, now: Instant, new: NewMapping) -> Option<u32> {
        match (new.owner.slot, new.entered) {
            (None, Some(entered)) => self.enter(&new.key, &entered),
            (None, None) => None,
            (Some(slot), entered) => {
                self.settle(now, slot, &new.owner, entered);
                Some(slot)
            }
        }
    }

    /// An IPv6 host gets a number.
    pub(in crate::shard) fn enter_static(
        &mut self,
        now: Instant,
        inside: &Inside,
        protocol: Protocol,
    ) -> Result<InternalKey, Verdict> {
        let Inside { realm, host, port, .. } = *inside;
        let address = match host {
            InsideHost::Ipv4(address) => address.into(),
            InsideHost::Ipv6(_) | InsideHost::BehindB4 { .. } => {
                let key = self.shared.transition.host_key(realm, &host).ok_or(Verdict::NoRoute)?;
                self.enter_host_of(now, &key, realm)?
            }
        };
        Ok(InternalKey { realm, protocol, address, port })
    }

    pub(super) fn enter(&mut self, key: &InternalKey, entered: &Entered) -> Option<u32> {
        let Entered { entry: Entry { pool, .. }, address } = *entered;
        let generation = self.shared.short_generation();
        let slot = self.state.subscribers.insert(key.realm, key.address, pool, address, generation)?;
        if address != UNPAIRED {
            self.shared.ports.pair(address);
            self.count_pairing(address);
        }
        Some(slot)
    }

    fn count_pairing(&mut self, address: AddressIndex) {
        self.counters.addresses_paired += 1;
        self.shared.count_in_pool(self.worker, self.shared.pool_of(address), PoolCount::Paired);
    }

    fn settle(&mut self, now: Instant, slot: u32, owner: &Owner, entered: Option<Entered>) {
        if let Some(cause) = owner.released {
            self.release(now, slot, cause);
        }
        let Some(Entered { entry, address }) = entered.filter(|entered| entered.entry.is_new) else { return };
        if let Some(home) = entry.home {
            self.state.subscribers.account_mut(slot).set_home(home);
        }
        self.pair_with(slot, entry.pool, address);
        if entry.elsewhere.is_some() {
            self.state.subscribers.set_elsewhere(slot, entry.elsewhere);
        }
    }

    pub(super) fn pair_with(&mut self, slot: u32, pool: PoolId, new: AddressIndex) {
        let old = AddressIndex(self.state.subscribers.get(slot).paired);
        if new != old {
            if new != UNPAIRED {
                self.shared.ports.pair(new);
                self.count_pairing(new);
            }
            if old != UNPAIRED {
                self.shared.ports.unpair(old);
            }
        }
        self.state.subscribers.settle(slot, pool, new, self.shared.short_generation());
    }

    pub(super) fn commit_session(
        &mut self,
        now: Instant,
        index: u32,
        place: SessionPlace,
        new: &NewSession,
        by: HashedBy,
    ) -> SessionRef {
        let slot = self.state.mappings.get(index).subscriber;
        self.update_class(slot);
        let mapping = self.state.mappings.get_mut(index);
        let session = match place {
            SessionPlace::First | SessionPlace::Again => {
                mapping.set_inline_session(new);
                SessionRef::Inline
            }
            SessionPlace::Extra => {
                let extra = self.state.sessions.insert(index, mapping, new, by, now);
                debug_assert!(extra.is_some(), "the decision has found room for the session");
                SessionRef::Extra(extra.unwrap_or_default())
            }
        };
        if place != SessionPlace::First {
            self.count_session(now, index, place == SessionPlace::Extra);
        }
        self.counters.sessions_removed += u64::from(place == SessionPlace::Again);
        self.counters.sessions_created += 1;
        self.emit_session(now, index, session);
        session
    }

    pub(super) fn create_session(
        &mut self,
        now: Instant,
        index: u32,
        new: &NewSession,
        by: HashedBy,
    ) -> Result<SessionRef, Verdict> {
        let place = self.view().decide_session(now, index)?;
        Ok(self.commit_session(now, index, place, new, by))
    }
}
