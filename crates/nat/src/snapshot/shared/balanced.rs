//! Forwards that lead to several targets, and what they count.

use super::Shared;
use crate::external::load_balancing::Group;
use crate::external::load_balancing::Origin;
use crate::external::static_mapping::carry_hits;
use crate::policy::rules::RuleId;
use crate::rows::BalancedView;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::WorkerId;

impl Shared {
    /// Adds what `before` counted while workers switched. Call it when no worker uses `before` any
    /// more, and not on a worker's thread.
    pub fn settle_hits(&self, before: &Shared) {
        self.rules.settle_hits(&before.rules);
        self.passes.settle_hits(&before.passes);
        self.filters.settle_hits(&before.filters);
        self.pool_counts.carry(&before.pool_counts);
        carry_hits((&self.settings, &self.static_hits), (&before.settings, &before.static_hits));
    }

    pub(crate) fn count_lead(&self, worker: WorkerId, group: Option<&Group>) {
        if let Some(Origin::Forward(position)) = group.and_then(|group| group.origin) {
            self.static_hits.count(worker, RuleId(position));
        }
    }

    /// Targets of an external endpoint; empty if only sessions are left.
    pub fn balanced(&self, external: Endpoint, protocol: Protocol) -> Option<BalancedView> {
        let group = self.balance.find(external.address.to_bits(), protocol, external.port)?;
        let generation = group.generations().last()?;
        let targets = (0..generation.targets().len()).filter_map(|position| {
            let aim = generation.aim(position, external.port)?;
            Some((Endpoint::new(aim.address.into(), aim.port), generation.targets()[position].weight))
        });
        let targets = if group.current().is_some() { targets.collect() } else { Vec::new() };
        Some(BalancedView { protocol, realm: generation.realm(), external, targets })
    }

    /// External endpoints that lead to this internal one among others.
    pub fn balanced_to(&self, realm: RealmId, internal: Endpoint, protocol: Protocol) -> Vec<BalancedView> {
        let forwards = self.settings.balanced_forwards.iter().filter(|forward| forward.protocol == protocol);
        let externals = forwards.filter_map(|forward| forward.external_of(realm, internal));
        externals.filter_map(|external| self.balanced(external, protocol)).collect()
    }

    /// Workers that may have the session of a remote endpoint, in the order of its packets' stops.
    pub fn balanced_workers(&self, external: Endpoint, protocol: Protocol, remote: Endpoint) -> Vec<WorkerId> {
        let Some(group) = self.balance.find(external.address.to_bits(), protocol, external.port) else {
            return Vec::new();
        };
        let aims = group.generations().filter_map(|generation| generation.choose(external.port, remote.into()));
        aims.map(|aim| self.worker_of_subscriber(aim.address)).collect()
    }

    /// Sessions by target, in the order of the settings.
    pub fn balanced_hits(&self, position: usize) -> Vec<u64> {
        self.balance.hits(&self.settings, position)
    }
}
