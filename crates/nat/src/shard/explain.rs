//! What would happen to a packet now, step by step, changing nothing: the answer to `natrix why`.
//!
//! It takes the decisions of the packet path in the same order with the same functions, but only reads. A
//! test sends the same packets both ways and compares the verdicts.

mod everywhere;
mod flows;
mod room;

use super::Shard;
use super::dependent::key_of_inbound;
use super::dormant::may_open;
use super::inbound::Via;
use super::outbound::remote_port;
use super::port_choice::port_class;
use super::state::state_now;
use crate::addresses::Local;
use crate::balance::Stop;
use crate::flow::endpoint;
use crate::icmp_quote;
use crate::mapping::InternalKey;
use crate::mapping::SessionRef;
use crate::packet::PacketMeta;
use crate::packet::Stage;
use crate::parse::Class;
use crate::parse::Parsed;
use crate::parse::destination_is_valid;
use crate::parse::parse;
use crate::rules::RuleKey;
use crate::rules::Ruling;
use crate::settings::FilterAction;
use crate::settings::Filtering;
use crate::settings::RuleAction;
use crate::shared::PoolFacts;
use crate::statics::Inside;
use crate::statics::Kind;
use crate::tcp;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::MappingIndex;
use crate::types::PoolId;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::view::Explanation;
use crate::view::Onward;
use crate::view::Step;
use wire::tcp::Flags;

/// Collects the steps of one explanation.
struct Account {
    /// The inside realm it is about.
    realm: RealmId,
    steps: Vec<Step>,
    source_after: Option<Endpoint>,
    destination_after: Option<Endpoint>,
    onward: Option<Onward>,
    /// The external address of a mapping that would be made, where there is no choice.
    address: Option<AddressIndex>,
}

impl Account {
    fn new(realm: RealmId, steps: Vec<Step>) -> Account {
        Account { realm, steps, source_after: None, destination_after: None, onward: None, address: None }
    }

    fn end(self, verdict: Verdict) -> Explanation {
        Explanation {
            steps: self.steps,
            verdict,
            source_after: self.source_after,
            destination_after: self.destination_after,
            onward: self.onward,
        }
    }
}

/// The worker whose shard can explain an IP packet from this side: ask that one. `behind`: stops behind it, if it is to an endpoint
/// with several targets.
pub(super) fn worker_to_ask(shard: &Shard, side: Side, packet: &[u8], behind: u8) -> WorkerId {
    let Ok(parsed) = parse(packet) else { return shard.worker };
    match side {
        Side::Inside => shard.shared.worker_of_subscriber(parsed.source),
        Side::Outside => shard.worker_of_external(&parsed, behind),
    }
}

impl Shard {
    /// The worker whose shard can explain this IP packet.
    pub fn worker_to_ask(&self, side: Side, packet: &[u8]) -> WorkerId {
        worker_to_ask(self, side, packet, 0)
    }

    /// The worker that has, or may come to have, the external endpoint that a packet is for.
    fn worker_of_external(&self, parsed: &Parsed, behind: u8) -> WorkerId {
        let address = self.local.pool_address(parsed.destination);
        let owner = address
            .zip(parsed.protocol())
            .and_then(|(address, protocol)| self.shared.owner_towards(address, &key_of_inbound(parsed, protocol)));
        let sleeper = parsed.protocol().and_then(|protocol| self.dormant(parsed, protocol));
        let sleeper = sleeper.map(|inside| self.shared.worker_of_subscriber(inside.address));
        let owner = owner.filter(|_| behind == 0).map(|(worker, _)| worker);
        owner.or_else(|| self.target_worker(parsed, behind)).or(sleeper).unwrap_or(self.worker)
    }

    /// The worker that may have the session of a packet to an endpoint with several targets, after so many others.
    fn target_worker(&self, parsed: &Parsed, behind: u8) -> Option<WorkerId> {
        let protocol = parsed.protocol()?;
        let external = (parsed.destination, parsed.destination_port);
        let group = self.shared.balance.find(external.0, protocol, external.1)?;
        let far = (parsed.source, remote_port(protocol, parsed.source_port));
        match self.next_stop(group, external.1, far, behind) {
            // Whether this one has it is for who asks with the time at hand.
            Stop::Next(worker, _) => Some(worker),
            Stop::Here(_) | Stop::Nowhere => Some(self.worker),
        }
    }

    /// Whether a packet from outside belongs to a flow of this worker.
    fn has_flow_of(&self, parsed: &Parsed, now: Instant) -> bool {
        let Some(protocol) = parsed.protocol() else { return false };
        self.live_flow_outside(&key_of_inbound(parsed, protocol), now).is_some()
    }

    /// Explains what would happen now to an IP packet that came in by an interface that faces `from`. Changes nothing.
    ///
    /// To be asked of the shard that [`Shard::worker_to_ask`] names. The second half of a hairpin is
    /// explained too if its mapping belongs to this shard.
    pub fn explain(&self, now: Instant, from: Facing, packet: &[u8]) -> Explanation {
        let Facing { side, realm } = from;
        let mut account = Account::new(realm, Vec::new());
        let parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        account.steps.push(Step::Parsed {
            protocol: parsed.protocol_number,
            source: Endpoint::new(parsed.source.into(), parsed.source_port),
            destination: Endpoint::new(parsed.destination.into(), parsed.destination_port),
        });
        account.steps.push(Step::Owner(if side == Side::Outside && self.has_flow_of(&parsed, now) {
            self.worker
        } else {
            worker_to_ask(self, side, packet, 0)
        }));
        let verdict = match side {
            Side::Inside => self.explain_outbound(now, &parsed, &mut account),
            Side::Outside => self.explain_inbound(now, &parsed, Via::Outside, &mut account),
        };
        account.end(verdict)
    }

    /// The steps that a packet at this place of its way is about to take; written to `steps`, whose content is
    /// replaced. For traces: ask just before [`Shard::process`] gets the packet. Changes nothing, and allocates
    /// nothing while `steps` has room for [`crate::view::STEPS_MAX`].
    pub fn explain_packet(&self, now: Instant, meta: PacketMeta, packet: &[u8], steps: &mut Vec<Step>) {
        steps.clear();
        let Ok(parsed) = parse(packet) else { return };
        let hairpin = matches!(meta.stage, Stage::Hairpin | Stage::HairpinFragment | Stage::OwnError);
        let side = self.shared.side(meta.ingress);
        let mut account = Account::new(self.shared.realm_of(meta.ingress), core::mem::take(steps));
        account.steps.push(Step::Parsed {
            protocol: parsed.protocol_number,
            source: Endpoint::new(parsed.source.into(), parsed.source_port),
            destination: Endpoint::new(parsed.destination.into(), parsed.destination_port),
        });
        if parsed.class == Class::IcmpError {
            self.explain_error(now, packet, &mut account);
        } else if parsed.is_fragment() {
            let offset = parsed.fragment_offset;
            account.steps.push(Step::Fragment { offset, more: parsed.more_fragments });
        } else if hairpin {
            self.explain_inbound(now, &parsed, Via::Hairpin, &mut account);
        } else {
            let is_here = side == Side::Outside && self.has_flow_of(&parsed, now);
            let owner = if is_here { self.worker } else { worker_to_ask(self, side, packet, meta.turn) };
            account.steps.push(Step::Owner(owner));
            match side {
                _ if owner != self.worker => {}
                Side::Inside => {
                    self.explain_outbound(now, &parsed, &mut account);
                }
                Side::Outside => {
                    self.explain_inbound(now, &parsed, Via::Outside, &mut account);
                }
            }
        }
        *steps = account.steps;
    }

    /// An ICMP error: the packet it quotes, and the mapping that explains it.
    fn explain_error(&self, now: Instant, packet: &[u8], account: &mut Account) {
        let Ok(quote) = icmp_quote::parse(packet) else { return };
        account.steps.push(Step::Quoted {
            protocol: quote.protocol,
            source: quote.source,
            destination: quote.destination,
        });
        let key = InternalKey {
            realm: account.realm,
            protocol: quote.protocol,
            address: quote.destination.address.to_bits(),
            port: quote.destination.port,
        };
        let outbound = self.find_live_mapping(&key, now);
        let inbound = self
            .shared
            .address_index(quote.source.address)
            .and_then(|address| self.shared.owner(address, quote.protocol, quote.source.port))
            .filter(|(worker, index)| *worker == self.worker && self.is_mapped(*index, now))
            .map(|(_, index)| index.0);
        let flow = self.quoted_flow(&quote, &key, now);
        if let Some(flow) = flow {
            return self.explain_flow(now, flow, account);
        }
        match outbound.or(inbound) {
            Some(index) => self.explain_mapping(now, index, account),
            None => account.steps.push(Step::NoMapping),
        }
    }

    fn explain_route(&self, side: Side, destination: u32, parsed: &Parsed, account: &mut Account) -> Option<Verdict> {
        if parsed.ttl <= 1 {
            return Some(Verdict::TtlExpired);
        }
        let towards = match side {
            Side::Inside => Facing::inside(account.realm),
            Side::Outside => Facing::OUTSIDE,
        };
        let Some(hop) = self.shared.route(towards, destination) else { return Some(Verdict::NoRoute) };
        account.steps.push(Step::Routed {
            interface: hop.interface.0,
            next_hop: hop.egress(destination).next_hop.into(),
            mtu: hop.mtu,
        });
        (parsed.total_length > hop.mtu && parsed.dont_fragment).then_some(Verdict::TooBig)
    }

    fn explain_outbound(&self, now: Instant, parsed: &Parsed, account: &mut Account) -> Verdict {
        if parsed.class == Class::Other {
            return self.explain_other(parsed, Side::Outside, account);
        }
        let Some(protocol) = parsed.protocol() else { return Verdict::ProtocolUnsupported };
        if parsed.class == Class::IcmpError {
            return Verdict::IcmpQuoteNoMapping;
        }
        if let Some(verdict) = self.check_source(Facing::inside(account.realm), parsed.source) {
            return verdict;
        }
        let destination = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        let target = self.dormant(parsed, protocol);
        let is_balanced = self.is_balanced(parsed, protocol);
        let is_static = target.is_some() || is_balanced;
        let hairpin = match self.local_to(Facing::inside(account.realm), parsed.destination) {
            Some(Local::Own(_)) => {
                account.steps.push(Step::OwnAddress(destination.address));
                return self.explain_local(Facing::inside(account.realm), parsed);
            }
            Some(Local::Broadcast(_)) => return Verdict::DestinationInvalid,
            Some(Local::OwnAndPool(_, address)) => {
                let owned = self.shared.owner(address, protocol, parsed.destination_port).is_some();
                if !is_static && (!owned || protocol == Protocol::Icmp) {
                    account.steps.push(Step::OwnAddress(destination.address));
                    return self.explain_local(Facing::inside(account.realm), parsed);
                }
                Some(address)
            }
            Some(Local::Pool(address)) => Some(address),
            None => None,
        };
        if !destination_is_valid(parsed.destination) {
            return Verdict::DestinationInvalid;
        }
        let key = InternalKey { realm: account.realm, protocol, address: parsed.source, port: parsed.source_port };
        let alive = self.find_live_mapping(&key, now);
        let is_answer = parsed.class == Class::IcmpReply;
        let answers = is_answer && alive.is_some() && self.shared.statics.by_internal(&key).is_some();
        if is_answer && !answers {
            return Verdict::IcmpTypeUnsupported;
        }
        let near = (parsed.destination, remote_port(protocol, parsed.destination_port));
        let session = alive.and_then(|index| {
            let facts = self.facts_of_mapping(index)?;
            self.find_session(index, near.0, near.1, Shard::hashed_by(&facts, protocol), now)
        });
        let rule_key = RuleKey::of_flow(&key, near);
        if let Some(verdict) = self.explain_filter(true, &rule_key, account) {
            return verdict;
        }
        let has_flow = session.is_none() && self.live_flow(&key, near, now).is_some();
        let ruling = match session {
            None if !has_flow => self.explain_rule(&rule_key, account),
            _ => Ruling::DEFAULT,
        };
        if ruling.action == RuleAction::Drop {
            return Verdict::DroppedByRule;
        }
        if let Some(index) = self.live_flow(&key, near, now).filter(|index| self.flows.get(*index).is_hairpin()) {
            account.steps.push(Step::Hairpin { external: destination });
            if parsed.ttl <= 1 {
                return Verdict::TtlExpired;
            }
            self.explain_flow(now, index, account);
            account.source_after = Some(endpoint(self.flows.get(index).external()));
            return Verdict::Hairpin;
        }
        if session.is_none() && hairpin.is_none() {
            let flow = self.live_flow(&key, near, now);
            let wanted = || self.flow_wanted(&key, near, alive.is_some(), ruling.action);
            if let Some(far) = flow.map(|index| self.flows.get(index).far()).or_else(wanted) {
                let aim = (near, far, ruling.action);
                if let Some(verdict) = self.explain_flow_outbound(now, parsed, &key, aim, flow, account) {
                    return verdict;
                }
            }
        }
        match hairpin {
            None => {
                if let Some(verdict) = self.explain_route(Side::Outside, parsed.destination, parsed, account) {
                    return verdict;
                }
            }
            Some(address) => {
                account.steps.push(Step::Hairpin { external: destination });
                if parsed.ttl <= 1 {
                    return Verdict::TtlExpired;
                }
                let owner = self.shared.owner(address, protocol, parsed.destination_port);
                let has_owner =
                    owner.is_some_and(|(worker, mapping)| worker != self.worker || self.is_mapped(mapping, now));
                if !is_static && ((protocol == Protocol::Icmp && !answers) || !has_owner) {
                    account.steps.push(Step::NoMapping);
                    return Verdict::NoMapping;
                }
                let opens_to = target.filter(|_| session.is_none());
                if opens_to.is_some_and(|target| !self.shared.may_hairpin(key.realm, target.realm)) {
                    return Verdict::HairpinRefused;
                }
                let here = owner.filter(|(worker, mapping)| *worker == self.worker && *mapping != MappingIndex::SHARED);
                if let Some((_, mapping)) = here.filter(|(_, mapping)| !is_balanced && self.is_mapped(*mapping, now))
                    && !self.shared.may_hairpin(key.realm, self.mappings.get(mapping.0).realm())
                {
                    return Verdict::HairpinRefused;
                }
            }
        }
        if ruling.action == RuleAction::NoTranslation && hairpin.is_none() {
            account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
            account.destination_after = Some(destination);
            return Verdict::Passed;
        }
        if let Some(index) = alive {
            self.explain_mapping(now, index, account);
            account.source_after = Some(self.mappings.get(index).external());
        }
        match (alive, session) {
            (Some(index), Some(session)) => self.explain_session(now, index, session, account),
            _ if protocol == Protocol::Tcp && !tcp::opens(Flags(parsed.tcp_flags)) => return Verdict::TcpNoSession,
            (Some(index), None) => {
                if self.is_before_targets(index) {
                    return Verdict::PortsExhausted;
                }
                match self.would_create_session(now, index) {
                    Ok(()) => account.steps.push(Step::SessionWouldBeCreated),
                    // Where nobody is filtered UDP goes on without one.
                    Err(Verdict::SessionLimit | Verdict::SessionTableFull)
                        if protocol == Protocol::Udp && self.is_unfiltered(index, protocol) => {}
                    Err(verdict) => return verdict,
                }
            }
            (None, _) => {
                if let Some(verdict) = self.explain_new_mapping(now, &key, ruling.action.pool(), account) {
                    return verdict;
                }
                account.steps.push(Step::SessionWouldBeCreated);
            }
        }
        match hairpin {
            None => {
                account.destination_after = Some(destination);
                Verdict::Outbound
            }
            Some(address) => {
                let owner = self.shared.owner(address, protocol, parsed.destination_port);
                let near = (alive, owner, is_balanced);
                self.explain_second_half(now, parsed, &key, near, account)
            }
        }
    }

    /// Behind the translation of the source of a packet from inside to a pool's address; `alive` is its mapping, if it has one already.
    fn explain_second_half(
        &self,
        now: Instant,
        parsed: &Parsed,
        key: &InternalKey,
        (alive, owner, is_balanced): (Option<u32>, Option<(WorkerId, MappingIndex)>, bool),
        account: &mut Account,
    ) -> Verdict {
        if let Some((worker, mapping)) = owner
            && worker == self.worker
            && alive == Some(mapping.0)
            && !is_balanced
        {
            // To itself: the session that this packet has, or opens, lets it in again, unless a filter says no.
            let internal = self.mappings.get(mapping.0).internal();
            let external = self.mappings.get(mapping.0).external();
            let remote = (external.address.to_bits(), remote_port(key.protocol, external.port));
            if let Some(verdict) = self.explain_filter(false, &RuleKey::of_flow(key, remote), account) {
                return verdict;
            }
            account.destination_after = Some(internal);
            let way = self.explain_route(Side::Inside, internal.address.to_bits(), parsed, account);
            return way.unwrap_or(Verdict::Hairpin);
        }
        let addressed = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        if alive.is_none() && !is_balanced && account.source_after == Some(addressed) {
            // To himself, by the forward that this packet wakes: the session that it opens lets it in.
            let remote = (parsed.destination, remote_port(key.protocol, parsed.destination_port));
            if let Some(verdict) = self.explain_filter(false, &RuleKey::of_flow(key, remote), account) {
                return verdict;
            }
            account.destination_after = Some(Endpoint::new(key.address.into(), key.port));
            return self.explain_route(Side::Inside, key.address, parsed, account).unwrap_or(Verdict::Hairpin);
        }
        // The port of a mapping that is still to be made is not known; its address is, where there is no choice.
        let address = account.address.map_or(parsed.source.into(), |index| self.shared.address(index));
        let is_known = account.source_after.is_some();
        let source = account.source_after.unwrap_or(Endpoint::new(address, 0));
        let translated = Parsed { source: source.address.to_bits(), source_port: source.port, ..*parsed };
        let has_mapping = owner.is_some_and(|(_, mapping)| mapping != MappingIndex::SHARED);
        if is_balanced && !is_known && !has_mapping {
            return self.explain_any_target(now, &translated, key.protocol, account);
        }
        if self.has_flow_of(&translated, now) || self.worker_of_external(&translated, 0) == self.worker {
            return self.explain_inbound(now, &translated, Via::Hairpin, account);
        }
        account.onward = Some(Onward { realm: account.realm, source });
        Verdict::Hairpin
    }

    fn explain_mapping(&self, now: Instant, index: u32, account: &mut Account) {
        let mapping = self.mappings.get(index);
        account.steps.push(Step::MappingFound {
            internal: mapping.internal(),
            external: mapping.external(),
            expires_in: mapping.expires().saturating_since(now),
        });
    }

    fn explain_session(&self, now: Instant, index: u32, session: SessionRef, account: &mut Account) {
        let (state, expires) = self.session_state(index, session);
        let timeouts = &self.shared.settings().timeouts;
        let is_tcp = self.mappings.get(index).protocol() == Protocol::Tcp;
        account.steps.push(Step::SessionFound {
            state: is_tcp.then(|| state_now(state, expires, now, timeouts)),
            expires_in: expires.saturating_since(now),
        });
    }

    /// What the filters say to a packet in this direction, if that ends it.
    fn explain_filter(&self, is_out: bool, key: &RuleKey, account: &mut Account) -> Option<Verdict> {
        let (position, filter) = self.shared.filters.deciding(is_out, key)?;
        let permits = filter.action == FilterAction::Permit;
        account.steps.push(Step::PacketFilter { position, permits });
        (!permits).then_some(Verdict::DeniedByFilter)
    }

    fn explain_rule(&self, key: &RuleKey, account: &mut Account) -> Ruling {
        let ruling = self.shared.rule_for(key);
        if let Some(position) = ruling.rule.and_then(|rule| self.shared.rules.set().position(rule)) {
            account.steps.push(Step::Rule { position, action: ruling.action });
        }
        ruling
    }

    /// A packet from outside to an address that no pool has.
    fn explain_untranslated_in(&self, parsed: &Parsed, account: &mut Account) -> Verdict {
        let Some((realm, ruling)) = self.passes_in(&self.shared.rules, |realm| RuleKey::inbound(realm, parsed)) else {
            return Verdict::DestinationNotPool;
        };
        if let Some(verdict) = self.check_source(Facing::OUTSIDE, parsed.source) {
            return verdict;
        }
        let key = RuleKey::inbound(realm, parsed);
        account.realm = realm;
        if let Some(verdict) = self.explain_filter(false, &key, account) {
            return verdict;
        }
        if let Some(position) = ruling.rule.and_then(|rule| self.shared.rules.set().position(rule)) {
            account.steps.push(Step::Rule { position, action: ruling.action });
        }
        if let Some(verdict) = self.explain_route(Side::Inside, parsed.destination, parsed, account) {
            return verdict;
        }
        account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
        account.destination_after = Some(Endpoint::new(parsed.destination.into(), parsed.destination_port));
        Verdict::Passed
    }

    /// [`Shard::create_session`] for who only asks.
    fn would_create_session(&self, now: Instant, index: u32) -> Result<(), Verdict> {
        let mapping = self.mappings.get(index);
        let takes_record = mapping.has_live_session(now);
        let limit = self.shared.settings().limits.sessions_per_mapping_max.min(u32::from(u16::MAX));
        if takes_record && u32::from(mapping.extra_count()) + 1 >= limit {
            return Err(Verdict::SessionLimit);
        }
        self.would_admit_session(now, index)?;
        if takes_record && self.sessions.is_full() { Err(Verdict::SessionTableFull) } else { Ok(()) }
    }

    /// Whether whoever likes may send to a mapping.
    fn is_unfiltered(&self, index: u32, protocol: Protocol) -> bool {
        let facts = self.facts_of_mapping(index);
        facts.is_some_and(|facts| facts.filtering[protocol.index()] == Filtering::EndpointIndependent)
    }

    fn explain_new_mapping(
        &self,
        now: Instant,
        key: &InternalKey,
        wanted: Option<PoolId>,
        account: &mut Account,
    ) -> Option<Verdict> {
        let (source, protocol) = (key.address, key.protocol);
        let own = || self.shared.pool_for(account.realm, source.into());
        let penalty = self.subscribers.find(account.realm, source).and_then(|slot| self.penalty_now(now, slot));
        let dormant = self.shared.statics.by_internal(key);
        let fixed = self.pool_of_own_address(dormant);
        let Some(pool) = fixed.or(penalty).or(wanted).or_else(own) else { return Some(Verdict::SourceNotSubscriber) };
        let comes_home = self
            .subscribers
            .find(account.realm, source)
            .filter(|slot| self.goes_to_own_pool(*slot, pool, &self.shared.pools[pool.index()]));
        let is_own = match self.subscribers.find(account.realm, source) {
            Some(slot) => comes_home.is_some() || self.would_be_of(slot, key, pool, penalty) == pool,
            None => true,
        };
        if fixed.is_none() {
            Self::explain_pool(pool, penalty.is_some(), wanted.is_some(), account);
        }
        let dead = self.find_mapping(key, self.hash_of(key));
        if dead.is_some_and(|dead| self.mappings.get(dead).is_recorded()) && !self.events.would_end() {
            return Some(Verdict::LogFull);
        }
        if self.mappings.is_full() && dead.is_none() {
            return Some(Verdict::MappingTableFull);
        }
        let facts = &self.shared.pools[pool.index()];
        let needs_record = self.shared.settings().events.block_mappings || facts.gives_single_ports();
        if needs_record && !self.events.would_allocate() {
            return Some(Verdict::LogFull);
        }
        if facts.one_to_one && dormant.is_none() {
            // Its addresses are those of its own subscribers, who were looked for.
            return Some(Verdict::PortsExhausted);
        }
        if dormant.is_some() && !self.events.would_allocate() {
            return Some(Verdict::LogFull);
        }
        if self.drains_for(key, facts, dormant) {
            return Some(Verdict::AddressDraining);
        }
        let known = self.subscribers.find(account.realm, source);
        if known.is_none() {
            if let Err(verdict) = self.would_get_address(key, pool, facts) {
                self.explain_guarantee(None, facts, None, key, account);
                return Some(verdict);
            }
            if self.subscribers.is_full() {
                return Some(Verdict::SubscriberTableFull);
            }
        }
        let class = known.map_or_else(|| self.shared.classes.of(account.realm, source), |slot| self.class_now(slot));
        let before = known.or_else(|| self.subscribers.find_lapsed(account.realm, source));
        let admitted = self.would_admit_mapping(now, class, before, protocol);
        if let Some((external, kind)) = dormant {
            let internal = Endpoint::new(source.into(), key.port);
            account.steps.push(Step::StaticMapping { internal, external, one_to_one: kind == Kind::OneToOne });
            if let Err(verdict) = admitted {
                return Some(verdict);
            }
            // Whom a rule sends to a formula that does not know him is refused there, whatever leads to him.
            if let Some(slot) = known.filter(|_| is_own && comes_home.is_none())
                && let Err(verdict) = self.would_be_paired(slot, key, pool, facts)
            {
                return Some(verdict);
            }
            account.source_after = Some(external);
            let is_ones_own = |owner| dead.is_some_and(|dead| owner == (self.worker, MappingIndex(dead)));
            let is_awaited = self.shared.address_index(external.address).is_some_and(|address| {
                let owner = self.shared.owner(address, protocol, external.port);
                !owner.is_some_and(is_ones_own) && !self.would_claim_static(address, protocol, external.port, kind)
            });
            if is_awaited {
                account.steps.push(Step::PortAwaited(external));
            }
            return is_awaited.then_some(Verdict::PortsExhausted);
        }
        let paired = match (comes_home, known) {
            (Some(slot), _) => self.would_go_to_own_pool(slot, key, pool, facts),
            (None, Some(slot)) if is_own => self.would_be_paired(slot, key, pool, facts),
            (None, None) => Ok(None),
            _ => Ok(self.address_in(key, pool)),
        };
        let paired = match paired {
            Ok(paired) => paired,
            // His limits come first.
            Err(verdict) => return Some(admitted.err().unwrap_or(verdict)),
        };
        account.address = paired.or(match self.shared.choices(facts) {
            [only] => Some(*only),
            _ => None,
        });
        let free = |address: AddressIndex| {
            if facts.is_guarded() {
                return self.left_beside_guarantees(known, facts, address, key);
            }
            u64::from(self.shared.ports.free_of_class(address, protocol, port_class(key.port, facts)))
        };
        if let Some(address) = paired {
            account.steps.push(Step::PairedWith(self.shared.address(address)));
        }
        account.steps.push(Step::Class(class));
        if let Err(verdict) = admitted {
            return Some(verdict);
        }
        let ports_free = match paired {
            _ if !facts.gives_single_ports() && !is_own => 0,
            _ if !facts.gives_single_ports() => {
                self.explain_slice(facts, key, account);
                match self.own_ports_left(known, paired, facts, source, protocol) {
                    Ok(left) => left,
                    Err(verdict) => return Some(verdict),
                }
            }
            Some(address) => free(address),
            None => self.shared.choices(facts).iter().map(|address| free(*address)).sum(),
        };
        self.explain_guarantee(known.filter(|_| is_own), facts, paired, key, account);
        if ports_free == 0 {
            return Some(Verdict::PortsExhausted);
        }
        account.steps.push(Step::MappingWouldBeCreated { ports_free });
        None
    }

    /// Why it is this pool. A rule has said so already.
    fn explain_pool(pool: PoolId, by_penalty: bool, by_rule: bool, account: &mut Account) {
        match (by_penalty, by_rule) {
            (true, _) => account.steps.push(Step::Penalty(pool)),
            (false, true) => {}
            (false, false) => account.steps.push(Step::Pool(pool)),
        }
    }

    /// What others have of the slice of a new mapping, if they have any.
    fn explain_slice(&self, facts: &PoolFacts, key: &InternalKey, account: &mut Account) {
        if let Some((slice, used)) = self.slice_in_blocks(facts, key).filter(|(_, used)| used.leased > 0) {
            let (first, last, leased, ports) = (slice.first, slice.last, used.leased, used.offered);
            account.steps.push(Step::SliceInBlocks { first, last, leased, ports });
        }
    }

    /// What is guaranteed to a subscriber that may be new, if anything is.
    fn explain_guarantee(
        &self,
        subscriber: Option<u32>,
        facts: &PoolFacts,
        address: Option<AddressIndex>,
        key: &InternalKey,
        account: &mut Account,
    ) {
        if let Some(guarantee) = self.guarantee_now(subscriber, facts, address, key) {
            let at = key.protocol.index();
            account.steps.push(Step::Guaranteed { ports: guarantee.ports[at], missing: guarantee.missing[at] });
        }
    }

    fn explain_inbound(&self, now: Instant, parsed: &Parsed, via: Via, account: &mut Account) -> Verdict {
        if parsed.class == Class::Other {
            return self.explain_other(parsed, Side::Inside, account);
        }
        let Some(protocol) = parsed.protocol() else { return Verdict::ProtocolUnsupported };
        if parsed.class == Class::IcmpError {
            return Verdict::IcmpQuoteNoMapping;
        }
        let destination = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        let (address, is_own) = match self.local.lookup(parsed.destination) {
            Some(Local::Pool(address)) => (address, false),
            Some(Local::OwnAndPool(_, address)) => (address, true),
            Some(Local::Own(interface)) if self.shared.side(interface) == Side::Outside => {
                account.steps.push(Step::OwnAddress(destination.address));
                return self.explain_local(Facing::OUTSIDE, parsed);
            }
            Some(Local::Broadcast(_)) => return Verdict::DestinationInvalid,
            None if !destination_is_valid(parsed.destination) => return Verdict::DestinationInvalid,
            Some(Local::Own(_)) => return Verdict::DestinationNotPool,
            None => return self.explain_untranslated_in(parsed, account),
        };
        let owner = match parsed.class {
            Class::IcmpRequest if !self.shared.facts(address).one_to_one => None,
            _ => self.shared.owner_towards(address, &key_of_inbound(parsed, protocol)),
        };
        // What a mapping has from before the forward is its own.
        let is_of_before = owner.is_some_and(|(worker, mapping)| {
            worker == self.worker && self.is_mapped(mapping, now) && {
                let by = Shard::hashed_by(self.shared.facts(address), protocol);
                let port = remote_port(protocol, parsed.source_port);
                self.find_session(mapping.0, parsed.source, port, by, now).is_some()
            }
        });
        if self.is_balanced(parsed, protocol) && !is_of_before {
            return self.explain_balanced(now, parsed, protocol, via, account);
        }
        if let Some((worker, MappingIndex::SHARED)) = owner
            && worker == self.worker
        {
            return self.explain_flow_inbound(now, parsed, protocol, via, account);
        }
        let sleeper = self.dormant(parsed, protocol);
        let is_syn = parsed.class == Class::Tcp && tcp::opens(Flags(parsed.tcp_flags));
        let forged = if via == Via::Outside { self.check_source(Facing::OUTSIDE, parsed.source) } else { None };
        let index = match owner {
            Some((worker, mapping)) if worker == self.worker && self.is_mapped(mapping, now) => mapping.0,
            _ if sleeper.is_some() => {
                return self.explain_sleeper(now, parsed, forged, sleeper, via, account);
            }
            _ => {
                if owner.is_none() && is_own && parsed.class != Class::IcmpReply {
                    account.steps.push(Step::OwnAddress(destination.address));
                    return self.explain_local(Facing::OUTSIDE, parsed);
                }
                account.steps.push(Step::NoMapping);
                return match forged {
                    Some(verdict) => verdict,
                    None if is_syn => Verdict::UnsolicitedSyn,
                    None => Verdict::NoMapping,
                };
            }
        };
        let realm = self.mappings.get(index).realm();
        if via == Via::Hairpin && !self.shared.may_hairpin(account.realm, realm) {
            return Verdict::HairpinRefused;
        }
        account.realm = realm;
        self.explain_mapping(now, index, account);
        if let Some(owner) = sleeper.filter(|owner| owner.key(protocol) != self.mappings.get(index).key()) {
            let internal = Endpoint::new(owner.address.into(), owner.port);
            let one_to_one = owner.kind == Kind::OneToOne;
            account.steps.push(Step::StaticMapping { internal, external: destination, one_to_one });
            account.steps.push(Step::PortAwaited(destination));
        }
        let remote = (parsed.source, remote_port(protocol, parsed.source_port));
        if let Some(verdict) =
            self.explain_filter(false, &RuleKey::of_flow(&self.mappings.get(index).key(), remote), account)
        {
            return verdict;
        }
        let facts = *self.shared.facts(address);
        let by = Shard::hashed_by(&facts, protocol);
        let remote_port = remote_port(protocol, parsed.source_port);
        if let Some(verdict) = forged {
            return verdict;
        }
        if let Some(session) = self.find_session(index, parsed.source, remote_port, by, now) {
            self.explain_session(now, index, session, account);
        } else {
            let filtering: Filtering = self.filtering_of_mapping(index, protocol, &facts);
            let key = self.mappings.get(index).key();
            let is_elsewhere = self.live_flow(&key, (parsed.source, remote_port), now).is_some();
            let allowed = !is_elsewhere && self.filter_allows(now, index, parsed.source, filtering, by);
            if is_elsewhere {
                account.steps.push(Step::FilterAsked { filtering, allowed });
                return Verdict::Filtered;
            }
            account.steps.push(Step::FilterAsked { filtering, allowed });
            match (allowed, protocol) {
                (false, _) if is_syn => return Verdict::UnsolicitedSyn,
                (false, _) => return Verdict::Filtered,
                (true, Protocol::Tcp) if !is_syn => return Verdict::TcpNoSession,
                (true, Protocol::Tcp) => {
                    if parsed.ttl > 1
                        && let Err(verdict) = self.would_create_session(now, index)
                    {
                        return verdict;
                    }
                    account.steps.push(Step::SessionWouldBeCreated);
                }
                (true, _) => {}
            }
        }
        let internal = self.mappings.get(index).internal();
        if let Some(verdict) = self.explain_route(Side::Inside, internal.address.to_bits(), parsed, account) {
            return verdict;
        }
        account.destination_after = Some(internal);
        match via {
            Via::Outside => {
                account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
                Verdict::Inbound
            }
            Via::Hairpin => Verdict::Hairpin,
        }
    }

    /// A packet to a static mapping that is not awake.
    fn explain_sleeper(
        &self,
        now: Instant,
        parsed: &Parsed,
        forged: Option<Verdict>,
        sleeper: Option<Inside>,
        via: Via,
        account: &mut Account,
    ) -> Verdict {
        let (Some(inside), Some(protocol)) = (sleeper, parsed.protocol()) else { return Verdict::NoMapping };
        let internal = Endpoint::new(inside.address.into(), inside.port);
        let external = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        let one_to_one = inside.kind == Kind::OneToOne;
        account.steps.push(Step::StaticMapping { internal, external, one_to_one });
        if let Some(verdict) = forged {
            return verdict;
        }
        if via == Via::Hairpin && !self.shared.may_hairpin(account.realm, inside.realm) {
            return Verdict::HairpinRefused;
        }
        if let Err(verdict) = may_open(parsed, protocol) {
            return verdict;
        }
        let facts = self.shared.address_index(external.address).map(|address| *self.shared.facts(address));
        if let Some(facts) = facts {
            let filtering = self.filtering_of(parsed, protocol, &facts);
            let allowed = filtering == Filtering::EndpointIndependent;
            account.steps.push(Step::FilterAsked { filtering, allowed });
            if !allowed {
                return if protocol == Protocol::Tcp { Verdict::UnsolicitedSyn } else { Verdict::Filtered };
            }
        }
        let key = inside.key(protocol);
        let remote = (parsed.source, remote_port(protocol, parsed.source_port));
        if let Some(verdict) = self.explain_filter(false, &RuleKey::of_flow(&key, remote), account) {
            return verdict;
        }
        account.realm = inside.realm;
        if let Some(verdict) = self.explain_route(Side::Inside, inside.address, parsed, account) {
            return verdict;
        }
        // What its owner has is known to his worker.
        if self.shared.worker_of_subscriber(inside.address) == self.worker {
            if self.find_live_mapping(&key, now).is_some() {
                // By another external endpoint, from before the configuration said so.
                account.steps.push(Step::NoMapping);
                return Verdict::NoMapping;
            }
            let source_after = account.source_after;
            let made = self.explain_new_mapping(now, &key, None, account);
            account.source_after = source_after;
            if let Some(verdict) = made {
                return verdict;
            }
        }
        account.steps.push(Step::SessionWouldBeCreated);
        account.destination_after = Some(internal);
        match via {
            Via::Outside => {
                account.source_after = Some(Endpoint::new(parsed.source.into(), parsed.source_port));
                Verdict::Inbound
            }
            Via::Hairpin => Verdict::Hairpin,
        }
    }

    fn explain_local(&self, from: Facing, parsed: &Parsed) -> Verdict {
        if let Some(verdict) = self.check_source(from, parsed.source) {
            return verdict;
        }
        match parsed.class {
            Class::IcmpRequest if self.shared.settings().icmp.answer_echo => Verdict::Local,
            Class::Udp => Verdict::Local,
            _ => Verdict::LocalIgnored,
        }
    }

    fn explain_other(&self, parsed: &Parsed, out_by: Side, account: &mut Account) -> Verdict {
        let from = if out_by == Side::Outside { Facing::inside(account.realm) } else { Facing::OUTSIDE };
        if let Some(verdict) = self.check_source(from, parsed.source) {
            return verdict;
        }
        match (from.side, self.local_to(from, parsed.destination)) {
            (_, Some(Local::Own(_))) | (Side::Inside, Some(Local::OwnAndPool(..))) => return Verdict::LocalIgnored,
            (Side::Outside, Some(_)) => return Verdict::ProtocolUnsupported,
            _ => {}
        }
        let passes = &self.shared.passes;
        let (key, ruling) = match out_by {
            Side::Outside => {
                let key = RuleKey::outbound(account.realm, parsed);
                (key, passes.ruling(&key))
            }
            Side::Inside => match self.passes_in(passes, |realm| RuleKey::inbound(realm, parsed)) {
                Some((realm, ruling)) => {
                    account.realm = realm;
                    (RuleKey::inbound(realm, parsed), ruling)
                }
                None => return Verdict::DestinationNotPool,
            },
        };
        let Some(rule) = ruling.rule.and_then(|rule| passes.set().position(rule)) else {
            return Verdict::ProtocolUnsupported;
        };
        account.steps.push(Step::PassRule(rule));
        if let Some(verdict) = self.explain_filter(out_by == Side::Outside, &key, account) {
            return verdict;
        }
        self.explain_route(out_by, parsed.destination, parsed, account).unwrap_or(Verdict::Passed)
    }
}
