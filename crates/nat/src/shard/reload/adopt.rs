//! Adopts other settings between two bursts.
//!
//! Few records are visited; the others are settled when next used: a subscriber has the generation
//! of the settings it was settled under.

use crate::steps::view::View;
use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::sync::Arc;

use crate::policy::steady_timers::SteadyTimers;
use crate::random::KeyedHash;
use crate::shard::Shard;
use crate::shard::commit::admission::NO_GENERATION;
use crate::shard::control_session::Changed;
use crate::shard::upkeep::shorten::has_shorter;
use crate::shard::upkeep::watch::Watch;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::orphaned::Orphaned;
use crate::snapshot::shared::Shared;
use crate::state::alg::AlgStore;
use crate::state::timers::Timers;
use crate::time::Instant;
use crate::types::PoolId;

/// Records settled at each change; see `unsettle_some`.
const SETTLED_MIN: u32 = 64;
/// Changes within which each record is settled: fewer than there are generations.
const SETTLED_WITHIN: u32 = 1 << 14;

/// Other settings, built elsewhere so that adopting neither allocates nor frees.
#[derive(Debug)]
pub struct Successor {
    shared: Arc<Shared>,
    local: Arc<LocalAddresses>,
    lifetimes: Timers,
    watch: Watch,
    /// For each pool: its old number.
    pools_before: Vec<Option<PoolId>>,
    /// If a gateway is enabled, for a shard that has none yet.
    control_sessions: Option<Box<AlgStore>>,
    changed: Option<Box<Changed>>,
    has_other_addresses: bool,
}

impl Successor {
    /// The change from `before` to its successor `shared`, whose generations are used from now on.
    pub fn new(before: &Shared, shared: &Arc<Shared>) -> Successor {
        shared.note_adoption();
        let settings = shared.settings();
        let serves = !settings.gateways.is_empty();
        let known: HashMap<&str, PoolId> = before.pools().map(|(id, pool)| (pool.name.as_str(), id)).collect();
        Successor {
            lifetimes: Timers::new(settings),
            watch: Watch::new(settings),
            pools_before: settings.pools.iter().map(|pool| known.get(pool.name.as_str()).copied()).collect(),
            control_sessions: serves
                .then(|| AlgStore::new(KeyedHash::new([0; 4]), settings.control_sessions_max).ok().map(Box::new))
                .flatten(),
            changed: serves.then(|| Changed::new().ok()).flatten(),
            has_other_addresses: !external_addresses(before).eq(external_addresses(shared)),
            local: Arc::clone(&shared.local),
            shared: Arc::clone(shared),
        }
    }

    /// The new settings; after the change, the old ones.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

fn external_addresses(shared: &Shared) -> impl Iterator<Item = &Ipv4Addr> {
    shared.settings().pools.iter().flat_map(|pool| pool.addresses.iter())
}

impl View<'_> {
    /// True after the deadline of a closed address or an orphaned mapping.
    #[inline]
    pub(in crate::shard) fn is_overdue(&self, index: u32, now: Instant) -> bool {
        self.granted_until(index).is_some_and(|ends| ends <= now)
    }

    /// A mapping's deadline, beside its timers.
    #[inline]
    pub(in crate::shard) fn granted_until(&self, index: u32) -> Option<Instant> {
        if !self.snapshot.has_deadlines() {
            return None;
        }
        self.stay_of_mapping(self.snapshot, index).ends()
    }

    #[inline]
    pub(in crate::shard) fn flow_granted_until(&self, index: u32) -> Option<Instant> {
        if !self.snapshot.has_deadlines() {
            return None;
        }
        self.stay_of_flow(self.snapshot, index).ends()
    }

    pub(in crate::shard) fn is_flow_overdue(&self, index: u32, now: Instant) -> bool {
        self.flow_granted_until(index).is_some_and(|ends| ends <= now)
    }

    pub(in crate::shard) fn orphaned(&self, index: u32) -> Option<Orphaned> {
        let mapping = self.state.mappings.get(index);
        self.snapshot.orphaned(&self.static_key(&mapping.key()), mapping.external(), mapping.created_s())
    }

    pub(in crate::shard) fn orphaned_flow(&self, index: u32) -> Option<Orphaned> {
        let flow = self.state.flows.get(index);
        self.snapshot.orphaned_flow(flow, &self.configured_host(flow.internal().0))
    }
}

impl Shard {
    /// Adopts `next`, which then contains the old parts. Takes some microseconds.
    ///
    /// All state stays. Longer timers apply from a session's next packet on; for shorter ones see
    /// `upkeep/shorten.rs`.
    pub fn adopt(&mut self, next: &mut Successor) {
        debug_assert!(
            Arc::ptr_eq(&next.shared.ports, &self.path.ledger.shared.ports),
            "all snapshots of an instance share its ports"
        );
        let settings = next.shared.settings();
        self.path.ledger.policy.timers = SteadyTimers::new(&settings.timeouts, settings.inbound_refresh);
        // A pool above its threshold stays so, without another event.
        next.watch.follow(&self.path.ledger.upkeep.watch, &next.pools_before);
        self.path.ledger.forget_classes();
        self.path.fragments.set_timeout(settings.timeouts.fragment);
        self.path.ledger.syns.set_delay(settings.timeouts.unsolicited_syn);
        self.path.ledger.policy.icmp_limit.set_policy(&settings.icmp);
        if next.shared.rehashes_sessions() {
            self.path.ledger.state.sessions.hash_anew();
        }
        self.path.ledger.policy.generations.change(next.shared.filters.generation());
        self.path.ledger.events.adopt(next.shared.generation());
        self.path.ledger.upkeep.unrecorded =
            self.path.ledger.events.is_on().then(|| self.path.ledger.state.mappings.walk_end());
        core::mem::swap(&mut self.path.ledger.policy.lifetimes, &mut next.lifetimes);
        if has_shorter(next.lifetimes.current(), self.path.ledger.policy.lifetimes.current())
            || self.path.ledger.policy.lifetimes.has_other_ports(&next.lifetimes)
        {
            self.path.ledger.shorten_lives();
        }
        self.path.ledger.policy.former.follow(&mut next.lifetimes);
        core::mem::swap(&mut self.path.ledger.upkeep.watch, &mut next.watch);
        core::mem::swap(&mut self.path.ledger.shared, &mut next.shared);
        core::mem::swap(&mut self.path.ledger.local, &mut next.local);
        self.path.ledger.take_over_ways();
        if self.path.ledger.state.control_sessions.is_none()
            && let Some(mut store) = next.control_sessions.take()
        {
            store.set_hash(self.path.ledger.state.hash);
            self.path.ledger.state.control_sessions = Some(store);
        }
        if let Some(store) = &mut self.path.ledger.state.control_sessions {
            store.set_room(self.path.ledger.shared.settings().control_sessions_max);
        }
        if next.has_other_addresses {
            self.path.note_other_addresses();
        }
        if self.path.changed.is_none() {
            self.path.changed = next.changed.take();
        }
        self.unsettle_some();
    }

    /// Learns addresses other workers may use before this one adopts them ([`Shared::expected`]),
    /// so that packets to them reach their owner. Swaps the old ones out.
    pub fn expect(&mut self, expected: &mut Arc<LocalAddresses>) {
        core::mem::swap(&mut self.path.ledger.local, expected);
    }

    /// Before generations wrap, each record unused meanwhile gets one that differs from the next
    /// ones.
    fn unsettle_some(&mut self) {
        let end = self.path.ledger.state.subscribers.walk_end();
        let (generation, class_generation) =
            (self.path.ledger.shared.short_generation(), self.path.ledger.policy.class_generation);
        for slot in self.path.ledger.upkeep.settled.next(SETTLED_MIN.max(end / SETTLED_WITHIN + 1), end) {
            let record = self.path.ledger.state.subscribers.get_mut(slot);
            if record.generation != generation {
                record.generation = generation.wrapping_sub(1);
            }
            if record.class_generation != class_generation {
                record.class_generation = NO_GENERATION;
            }
        }
    }
}
