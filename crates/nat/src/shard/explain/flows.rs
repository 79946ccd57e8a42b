//! Explaining packets of flows: what endpoint-dependent translation does, and forwards with several targets.

use core::net::Ipv4Addr;

use super::Account;
use crate::balance::Aim;
use crate::balance::Era;
use crate::balance::Group;
use crate::flow::InsideKey;
use crate::flow::OutsideKey;
use crate::flow::endpoint;
use crate::mapping::InternalKey;
use crate::mapping::SessionRef;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::rules::RuleKey;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::shard::Shard;
use crate::shard::dependent::key_of_inbound;
use crate::shard::dormant::may_open;
use crate::shard::inbound::Via;
use crate::shard::outbound::remote_port;
use crate::shard::state::state_now;
use crate::tcp;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;
use crate::view::Step;
use wire::tcp::Flags;

impl Shard {
    /// A packet of a flow, or one that is to open one. None: no port is to be had for sharing, and a mapping serves as well.
    pub(super) fn explain_flow_outbound(
        &self,
        now: Instant,
        parsed: &Parsed,
        key: &InternalKey,
        (near, far, action): ((u32, u16), (u32, u16), RuleAction),
        flow: Option<u32>,
        account: &mut Account,
    ) -> Option<Verdict> {
        if flow.is_none() && !self.is_far_address(far.0) {
            return Some(Verdict::DestinationInvalid);
        }
        if let Some(verdict) = self.explain_route(Side::Outside, far.0, parsed, account) {
            return Some(verdict);
        }
        // A query identifier stands for both ports, and is not the remote endpoint's.
        let port = if key.protocol == Protocol::Icmp { parsed.destination_port } else { far.1 };
        let destination_after = Some(Endpoint::new(far.0.into(), port));
        if let Some(index) = flow {
            account.destination_after = destination_after;
            self.explain_flow(now, index, account);
            account.source_after = Some(endpoint(self.flows.get(index).external()));
            return Some(Verdict::Outbound);
        }
        if parsed.fragment_offset != 0 {
            return Some(Verdict::FragmentRefused);
        }
        if key.protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) {
            return Some(Verdict::TcpNoSession);
        }
        match self.explain_new_flow(now, key, (near, far, action), account) {
            Ok(()) => {
                account.destination_after = destination_after;
                account.steps.push(Step::FlowWouldBeCreated { remote: endpoint(far) });
                Some(Verdict::Outbound)
            }
            Err(verdict @ (Verdict::PortsExhausted | Verdict::SubscriberPortQuota)) => {
                let at_quota = verdict == Verdict::SubscriberPortQuota;
                account.steps.push(Step::NoSharedPort { remote: endpoint(far), at_quota });
                // What changes the destination needs a flow; a port of its own would be one too many as well.
                let serves = matches!(action, RuleAction::Translate { .. }) && !at_quota;
                (!serves).then_some(verdict)
            }
            Err(verdict) => Some(verdict),
        }
    }

    /// Whether a flow could be made, as [`Shard::create_flow`] finds it.
    fn explain_new_flow(
        &self,
        now: Instant,
        key: &InternalKey,
        (near, far, action): ((u32, u16), (u32, u16), RuleAction),
        account: &mut Account,
    ) -> Result<(), Verdict> {
        let dead = self.flows.find_inside(&InsideKey::new(key, near.0, near.1));
        if dead.is_some() && !self.events.would_end() {
            return Err(Verdict::LogFull);
        }
        if self.flows.is_full() && dead.is_none() {
            return Err(Verdict::FlowTableFull);
        }
        let known = self.subscribers.find(key.realm, key.address);
        let penalty = known.and_then(|slot| self.penalty_now(now, slot));
        let own = || self.shared.pool_for(key.realm, Ipv4Addr::from_bits(key.address));
        let pool = penalty.or(action.pool()).or_else(own).ok_or(Verdict::SourceNotSubscriber)?;
        Self::explain_pool(pool, penalty.is_some(), action.pool().is_some(), account);
        if self.shared.formula(pool).is_some() {
            return Err(Verdict::PortsExhausted);
        }
        if self.shared.has_only_closed(&self.shared.pools[pool.index()], key.realm, key.address) {
            return Err(Verdict::AddressDraining);
        }
        // The dead one ends first, and its port may count no more.
        let less = dead.is_some_and(|dead| self.is_last_on_port(dead));
        let may_open = self.would_admit_port(key, u32::from(less));
        let room = self.room_for_flow(now, key, pool, far, may_open)?;
        if let Some(address) = room.paired {
            account.steps.push(Step::PairedWith(self.shared.address(address)));
        }
        if known.is_none() && self.subscribers.is_full() {
            return Err(Verdict::SubscriberTableFull);
        }
        if !self.events.would_allocate() {
            return Err(Verdict::LogFull);
        }
        self.would_admit_flow(now, key.realm, key.address)?;
        match (room.has_port, may_open) {
            (true, _) => Ok(()),
            (false, true) => Err(Verdict::PortsExhausted),
            (false, false) => Err(Verdict::SubscriberPortQuota),
        }
    }

    /// Whether a port counts for the subscriber of a flow only because of it.
    pub(super) fn is_last_on_port(&self, flow: u32) -> bool {
        let flow = self.flows.get(flow);
        let port = flow.era().is_none().then(|| self.shared_ports.get(flow.port)).flatten();
        port.is_some_and(|port| port.is_last_of_opener(flow.subscriber))
    }

    pub(super) fn explain_flow(&self, now: Instant, index: u32, account: &mut Account) {
        let flow = self.flows.get(index);
        account.steps.push(Step::FlowFound {
            internal: endpoint(flow.internal()),
            external: endpoint(flow.external()),
            remote: endpoint(flow.far()),
            expires_in: flow.expires().saturating_since(now),
        });
        let (state, expires) = self.session_state(0, SessionRef::Flow(index));
        account.steps.push(Step::SessionFound {
            state: (flow.protocol() == Protocol::Tcp)
                .then(|| state_now(state, expires, now, &self.shared.settings().timeouts)),
            expires_in: expires.saturating_since(now),
        });
    }

    /// A packet to an external endpoint that flows share.
    pub(super) fn explain_flow_inbound(
        &self,
        now: Instant,
        parsed: &Parsed,
        protocol: Protocol,
        via: Via,
        account: &mut Account,
    ) -> Verdict {
        let found = self.live_flow_outside(&key_of_inbound(parsed, protocol), now);
        let Some(index) = found.filter(|index| self.is_via(*index, via)) else {
            let filtering = Filtering::AddressAndPortDependent;
            account.steps.push(Step::FilterAsked { filtering, allowed: false });
            let forged = if via == Via::Outside { self.check_source(Facing::OUTSIDE, parsed.source) } else { None };
            let is_syn = parsed.class == Class::Tcp && tcp::opens(Flags(parsed.tcp_flags));
            return match forged {
                Some(verdict) => verdict,
                None if is_syn && via == Via::Outside => Verdict::UnsolicitedSyn,
                None => Verdict::Filtered,
            };
        };
        self.explain_flow(now, index, account);
        let flow = self.flows.get(index);
        let internal = endpoint(flow.internal());
        if via == Via::Hairpin && !self.shared.may_hairpin(account.realm, flow.realm()) {
            return Verdict::HairpinRefused;
        }
        account.realm = flow.realm();
        let key = InternalKey { realm: flow.realm(), protocol, address: flow.internal().0, port: flow.internal().1 };
        if let Some(verdict) = self.explain_filter(false, &RuleKey::of_flow(&key, flow.near()), account) {
            return verdict;
        }
        if let Some(verdict) = self.explain_route(Side::Inside, internal.address.to_bits(), parsed, account) {
            return verdict;
        }
        account.destination_after = Some(internal);
        let port = if protocol == Protocol::Icmp { parsed.source_port } else { flow.near().1 };
        if via == Via::Outside {
            account.source_after = Some(Endpoint::new(flow.near().0.into(), port));
        }
        via.verdict()
    }

    /// A packet to an endpoint with several targets.
    pub(super) fn explain_balanced(
        &self,
        now: Instant,
        parsed: &Parsed,
        protocol: Protocol,
        via: Via,
        account: &mut Account,
    ) -> Verdict {
        let far = (parsed.source, remote_port(protocol, parsed.source_port));
        let forged = if via == Via::Outside { self.check_source(Facing::OUTSIDE, parsed.source) } else { None };
        if self.has_flow_of(parsed, now) {
            return self.explain_flow_inbound(now, parsed, protocol, via, account);
        }
        if let Some(verdict) = forged {
            return verdict;
        }
        let chosen = self.targets_in_force(parsed, protocol).and_then(|era| {
            let aim = era.choose(parsed.destination_port, far)?;
            Some((era, aim))
        });
        match chosen {
            Some((era, aim)) => self.explain_target(now, parsed, protocol, (era, &aim), via, account),
            None => explain_no_target(parsed, account),
        }
    }

    /// A packet from a subscriber to an endpoint with several targets, whose mapping is still to be made: which target it is
    /// depends on its external port.
    pub(super) fn explain_any_target(
        &self,
        now: Instant,
        parsed: &Parsed,
        protocol: Protocol,
        account: &mut Account,
    ) -> Verdict {
        let Some(era) = self.targets_in_force(parsed, protocol) else { return explain_no_target(parsed, account) };
        let (length, realm) = (account.steps.len(), account.realm);
        let mut said: Option<Verdict> = None;
        let mut agree = true;
        let mut passes = false;
        let aims = (0..era.targets().len()).filter_map(|position| era.aim(position, parsed.destination_port));
        for aim in aims {
            account.steps.truncate(length);
            account.realm = realm;
            let verdict = self.explain_target(now, parsed, protocol, (era, &aim), Via::Hairpin, account);
            agree &= *said.get_or_insert(verdict) == verdict;
            passes |= verdict == Verdict::Hairpin;
        }
        let Some(first) = said else { return explain_no_target(parsed, account) };
        if era.targets().len() == 1 {
            return first;
        }
        account.steps.truncate(length);
        account.destination_after = None;
        let external = endpoint((parsed.destination, parsed.destination_port));
        account.steps.push(Step::AnyTarget { external, targets: era.targets().len(), agree });
        if passes { Verdict::Hairpin } else { first }
    }

    fn targets_in_force(&self, parsed: &Parsed, protocol: Protocol) -> Option<&Era> {
        let group = self.shared.balance.find(parsed.destination, protocol, parsed.destination_port);
        group.and_then(Group::current)
    }

    /// A packet that is led to this target, with which its sender has no session.
    fn explain_target(
        &self,
        now: Instant,
        parsed: &Parsed,
        protocol: Protocol,
        (era, aim): (&Era, &Aim),
        via: Via,
        account: &mut Account,
    ) -> Verdict {
        let external = (parsed.destination, parsed.destination_port);
        let far = (parsed.source, remote_port(protocol, parsed.source_port));
        let internal = Endpoint::new(aim.address.into(), aim.port);
        let targets = era.targets();
        account.steps.push(Step::Target {
            internal,
            external: endpoint(external),
            weight: targets.get(aim.position).map_or(0, |target| target.weight),
            total: targets.iter().map(|target| u64::from(target.weight)).sum(),
        });
        if via == Via::Hairpin && !self.shared.may_hairpin(account.realm, aim.realm) {
            return Verdict::HairpinRefused;
        }
        if let Err(verdict) = may_open(parsed, protocol) {
            return verdict;
        }
        let address = self.local.pool_address(external.0);
        if let Some(facts) = address.map(|address| *self.shared.facts(address)) {
            let filtering = self.filtering_of_targets(parsed, protocol, &facts);
            let allowed = filtering == Filtering::EndpointIndependent;
            account.steps.push(Step::FilterAsked { filtering, allowed });
            if !allowed {
                return if protocol == Protocol::Tcp { Verdict::UnsolicitedSyn } else { Verdict::Filtered };
            }
        }
        let key = InternalKey { realm: aim.realm, protocol, address: aim.address, port: aim.port };
        if let Some(verdict) = self.explain_filter(false, &RuleKey::of_flow(&key, far), account) {
            return verdict;
        }
        account.realm = aim.realm;
        if let Some(verdict) = self.explain_route(Side::Inside, aim.address, parsed, account) {
            return verdict;
        }
        // What he has is known to his worker.
        if self.shared.worker_of_subscriber(aim.address) == self.worker
            && let Err(verdict) = self.would_lead(now, &key, external, far)
        {
            return verdict;
        }
        account.steps.push(Step::SessionWouldBeCreated);
        account.destination_after = Some(internal);
        if via == Via::Outside {
            account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
        }
        via.verdict()
    }

    /// Whether the flow of a session to a target could be made here.
    fn would_lead(
        &self,
        now: Instant,
        key: &InternalKey,
        external: (u32, u16),
        far: (u32, u16),
    ) -> Result<(), Verdict> {
        if self.speaks_to(key, far, now) {
            return Err(Verdict::Filtered);
        }
        let outside = OutsideKey { protocol: key.protocol, external, far };
        let inside = InsideKey::new(key, far.0, far.1);
        let has_dead = self.flows.find_outside(&outside).filter(|index| self.flows.get(*index).is_in_use());
        let has_dead = has_dead.or_else(|| self.flows.find_inside(&inside)).is_some();
        if has_dead && !self.events.would_end() {
            return Err(Verdict::LogFull);
        }
        if self.flows.is_full() && !has_dead {
            return Err(Verdict::FlowTableFull);
        }
        if self.subscribers.find(key.realm, key.address).is_none() {
            self.would_enter_target(key, external.0)?;
        }
        if !self.events.would_allocate() {
            return Err(Verdict::LogFull);
        }
        self.would_admit_flow(now, key.realm, key.address)
    }
}

/// A packet to an endpoint that led to several targets and does no more.
fn explain_no_target(parsed: &Parsed, account: &mut Account) -> Verdict {
    account.steps.push(Step::NoMapping);
    let is_syn = parsed.class == Class::Tcp && tcp::opens(Flags(parsed.tcp_flags));
    if is_syn { Verdict::UnsolicitedSyn } else { Verdict::NoMapping }
}
