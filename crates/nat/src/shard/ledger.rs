use std::sync::Arc;

use crate::event::EventLog;
use crate::policy::Policy;
use crate::policy::filter_generations::FilterGenerations;
use crate::policy::former_timers::FormerTimers;
use crate::policy::rate_limit::RateLimit;
use crate::policy::refused::RefusedSubscribers;
use crate::policy::steady_timers::SteadyTimers;
use crate::random::KeyedHash;
use crate::random::Random;
use crate::routes::cache::RouteCache;
use crate::shard::burst::created::Created;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::shared::BuildError;
use crate::snapshot::shared::Shared;
use crate::state::State;
use crate::state::alg::AlgStore;
use crate::state::flow::FlowStore;
use crate::state::grant::GrantStore;
use crate::state::held_ports::HeldPorts;
use crate::state::held_syn::SynStore;
use crate::state::host::HostStore;
use crate::state::mapping::MappingStore;
use crate::state::session::SessionStore;
use crate::state::shared_ports::SharedPorts;
use crate::state::subscriber::SubscriberStore;
use crate::state::table::BucketTable;
use crate::state::timers::Timers;
use crate::steps::view::View;
use crate::types::HostNumber;
use crate::types::WorkerId;
use crate::upkeep::walk::Savings;
use crate::upkeep::walk::Walk;
use crate::verdict::Counters;

use crate::shard::commit;
use crate::shard::deltas;
use crate::shard::reload;
use crate::shard::upkeep;

/// One worker's records, and what must change with them: ports, counts, events.
///
/// It writes no packet, but reads TCP headers and gateways' payloads. Only it makes and ends
/// mappings, sessions, flows and subscribers.
pub(crate) struct Ledger {
    pub(in crate::shard) shared: Arc<Shared>,
    /// Of `shared`, and of a configuration about to follow.
    pub(in crate::shard) local: Arc<LocalAddresses>,
    pub(in crate::shard) worker: WorkerId,
    pub(in crate::shard) state: State,
    pub(in crate::shard) policy: Policy,
    pub(in crate::shard) upkeep: Upkeep,
    pub(in crate::shard) syns: SynStore,
    pub(in crate::shard) random: Random,
    pub(in crate::shard) events: EventLog,
    pub(in crate::shard) counters: Counters,
    pub(in crate::shard) deltas: deltas::Deltas,
    pub(in crate::shard) created: Created,
    pub(in crate::shard) route_cache: RouteCache,
    /// Clients are still to be notified of changed grants.
    pub(in crate::shard) updates_pending: bool,
}

pub(in crate::shard) struct Upkeep {
    pub(in crate::shard) watch: upkeep::watch::Watch,
    pub(in crate::shard) offenders: commit::penalty::Offenders,
    pub(in crate::shard) sweep: upkeep::sweep::Sweep,
    pub(in crate::shard) shortening: upkeep::shorten::Shortening,
    pub(in crate::shard) block_sweep: upkeep::blocks::BlockSweep,
    pub(in crate::shard) guarantees: Walk,
    pub(in crate::shard) grants: Walk,
    pub(in crate::shard) coverage_walk: commit::coverage::CoverageWalk,
    pub(in crate::shard) removed_forwards: Walk,
    pub(in crate::shard) settled: Walk,
    pub(in crate::shard) hosts: Savings,
    /// Mappings up to here may need a record since settings changed; None once all are recorded.
    pub(in crate::shard) unrecorded: Option<u32>,
    pub(in crate::shard) snapshot_report: reload::existing_state::SnapshotReport,
}

/// Derives a key for each use of randomness from one secret.
pub(in crate::shard) struct Keys {
    hash: KeyedHash,
    worker: WorkerId,
}

impl Keys {
    pub(in crate::shard) fn new(worker: WorkerId, secret: [u64; 4]) -> Keys {
        Keys { hash: KeyedHash::new(secret), worker }
    }

    fn key(&self, purpose: u64) -> u64 {
        self.hash.hash(purpose, u64::from(self.worker.0))
    }

    pub(in crate::shard) fn hash_for(&self, purpose: u64) -> KeyedHash {
        KeyedHash::new([0, 1, 2, 3].map(|word| self.key(purpose << 8 | word)))
    }
}

impl Ledger {
    pub(in crate::shard) fn new(shared: Arc<Shared>, worker: WorkerId, keys: &Keys) -> Result<Ledger, BuildError> {
        let limits = shared.settings().limits;
        let memory = |table| move |source| BuildError::Memory { table, source };
        let timeouts = shared.settings().timeouts;
        let icmp = shared.settings().icmp;
        let hash = keys.hash;
        if let Some(between_workers) = &shared.between_workers {
            between_workers.claims.seed(keys.hash_for(11));
        }
        let transition = &shared.settings().transition;
        let hosts_max = if transition.is_off() { 0 } else { transition.hosts_max };
        let bounds = (transition.prefix_length, transition.hosts_per_subscriber_max);
        let hosts = HostStore::new(hosts_max, bounds, (worker, shared.workers()), keys.hash_for(14));
        let hosts = hosts.map_err(memory("IPv6 hosts"))?;
        let state = State {
            mappings: MappingStore::new(limits.mappings_max).map_err(memory("mappings"))?,
            outbound: BucketTable::with_capacity(limits.mappings_max as usize).map_err(memory("outbound"))?,
            sessions: SessionStore::new(limits.extra_sessions_max, hash).map_err(memory("sessions"))?,
            flows: FlowStore::new(limits.flows_max, hash).map_err(memory("flows"))?,
            shared_ports: SharedPorts::new(limits.flows_max, shared.ports.places(), shared.workers(), hash)
                .map_err(memory("shared ports"))?,
            subscribers: SubscriberStore::new(limits.subscribers_max, hash, hosts).map_err(memory("subscribers"))?,
            grants: GrantStore::new(limits.grants_max(), keys.hash_for(12)).map_err(memory("grants"))?,
            control_sessions: match shared.settings().gateways.is_empty() {
                true => None,
                false => {
                    let store = AlgStore::new(keys.hash_for(13), shared.settings().control_sessions_max);
                    Some(Box::new(store.map_err(memory("control sessions"))?))
                }
            },
            held_ports: HeldPorts::new(limits.held_ports_max).map_err(memory("held ports"))?,
            hash,
        };
        let policy = Policy {
            refused_subscribers: RefusedSubscribers::new(keys.hash_for(10)),
            icmp_limit: RateLimit::new(&icmp, keys.hash_for(3)),
            lifetimes: Timers::new(shared.settings()),
            former: FormerTimers::new(Timers::new(shared.settings())),
            timers: SteadyTimers::new(&timeouts, shared.settings().inbound_refresh),
            generations: FilterGenerations::new(shared.filters.generation()),
            class_generation: commit::admission::FIRST_GENERATION,
        };
        let upkeep = Upkeep {
            watch: upkeep::watch::Watch::new(shared.settings()),
            offenders: commit::penalty::Offenders::default(),
            sweep: upkeep::sweep::Sweep::default(),
            shortening: upkeep::shorten::Shortening::default(),
            block_sweep: upkeep::blocks::BlockSweep::default(),
            guarantees: Walk::default(),
            grants: Walk::default(),
            coverage_walk: commit::coverage::CoverageWalk::default(),
            removed_forwards: Walk::default(),
            settled: Walk::default(),
            hosts: Savings::default(),
            unrecorded: None,
            snapshot_report: reload::existing_state::SnapshotReport::default(),
        };
        let mut events = EventLog::new(&shared.settings().events, keys.hash_for(9));
        if hosts_max > 0 {
            events.expect_names();
        }
        Ok(Ledger {
            state,
            policy,
            upkeep,
            syns: SynStore::new(limits.unsolicited_syns_max, timeouts.unsolicited_syn, keys.hash_for(2)),
            random: Random::new([keys.key(5), keys.key(6), keys.key(7), keys.key(8)]),
            events,
            counters: Counters::default(),
            deltas: deltas::Deltas::default(),
            created: Created::default(),
            route_cache: RouteCache::new(shared.live_routes().is_some(), |leaf| shared.way_of(leaf)),
            updates_pending: false,
            local: Arc::clone(&shared.local),
            shared,
            worker,
        })
    }

    #[inline(always)]
    pub(in crate::shard) fn follow_routes(&mut self) {
        if let Some(live) = self.shared.live_routes() {
            if self.route_cache.follow(live.version()) {
                self.route_cache.set_filled(live.outside_is_filled());
            }
            if self.route_cache.follow_hops(live.hops_version()) {
                self.take_over_ways();
            }
        }
    }

    /// Call it after next hops change.
    #[inline(never)]
    pub(in crate::shard) fn take_over_ways(&mut self) {
        let Ledger { route_cache, shared, .. } = self;
        route_cache.set_ways(|leaf| shared.way_of(leaf));
    }

    #[inline(always)]
    pub(in crate::shard) fn view(&self) -> View<'_> {
        View {
            state: &self.state,
            policy: &self.policy,
            snapshot: &self.shared,
            local: &self.local,
            events: &self.events,
            worker: self.worker,
            is_in_effect: true,
            new_host: None,
        }
    }

    /// As [`View::may_have_static_mapping`]. Makes no view as long as there are no static mappings.
    #[inline(always)]
    pub(in crate::shard) fn may_have_static_mapping(&self, number: HostNumber) -> bool {
        !self.shared.static_mappings.is_empty() && self.may_concern_static_mapping(number)
    }

    #[inline(never)]
    fn may_concern_static_mapping(&self, number: HostNumber) -> bool {
        self.view().may_have_static_mapping(number)
    }

    /// As [`View::class_now`], without a view if the record is up to date.
    #[inline(always)]
    pub(in crate::shard) fn class_now(&self, subscriber: u32) -> u16 {
        let record = self.state.subscribers.get(subscriber);
        if record.class_generation == self.policy.class_generation {
            record.class
        } else {
            self.class_found(subscriber)
        }
    }

    #[cold]
    #[inline(never)]
    fn class_found(&self, subscriber: u32) -> u16 {
        self.view().class_now(subscriber)
    }

    #[inline(always)]
    pub(in crate::shard) fn deciding(&mut self) -> (View<'_>, &mut Random) {
        let Ledger { state, policy, shared, local, events, worker, random, .. } = self;
        let worker = *worker;
        (View { state, policy, snapshot: shared, local, events, worker, is_in_effect: true, new_host: None }, random)
    }
}
