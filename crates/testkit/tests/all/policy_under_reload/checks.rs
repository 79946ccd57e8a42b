//! The guarantees that each burst is checked for.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashSet;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::deterministic::Owner;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::settings::SubscriberLimits;
use nat::types::Prefix;
use nat::verdict::VerdictKind;
use testkit::account::Talk;
use testkit::account::TalkKey;
use testkit::account::is_balanced;
use testkit::account::is_static;
use testkit::account::limits_of;
use testkit::account::permits;
use testkit::account::pool_of;
use testkit::account::rule_for;
use testkit::bed::families::inside_host;
use testkit::*;

use super::world::Between;
use super::world::Probe;
use super::world::Reason;
use super::world::Seen;
use super::world::Sent;
use super::world::World;
use super::world::endpoint_of;
use super::world::leads_away;
use super::world::leads_to;
use super::world::without_port;

/// Longer than any port is kept back after its last use: sessions, reuse delays, shared ports that
/// carry nothing.
const LONG: Duration = Duration::from_secs(1_200);
/// What ends packets that could not have what they wanted; each is an event.
pub(super) const REFUSALS: [Verdict; 15] = [
    Verdict::PortsExhausted,
    Verdict::AddressDraining,
    Verdict::BlockLimit,
    Verdict::MappingTableFull,
    Verdict::SessionTableFull,
    Verdict::SessionLimit,
    Verdict::FlowTableFull,
    Verdict::SubscriberPortQuota,
    Verdict::SubscriberSessionQuota,
    Verdict::SubscriberMemoryQuota,
    Verdict::SubscriberRateLimit,
    Verdict::SubscriberTableFull,
    Verdict::SourceNotSubscriber,
    Verdict::BoundaryAddress,
    Verdict::LogFull,
];
/// Those that make offenders.
pub(super) const OFFENCES: [Verdict; 5] = [
    Verdict::SubscriberPortQuota,
    Verdict::SubscriberSessionQuota,
    Verdict::SubscriberMemoryQuota,
    Verdict::SubscriberRateLimit,
    Verdict::BlockLimit,
];

impl World {
    /// Each refusal is reported as often as it is counted, and no packet met another fate.
    pub(super) fn check_counts(&self, seen: &Seen) {
        let reported = |verdict: Verdict| {
            let of = seen
                .events
                .iter()
                .filter(|event| event.kind == EventKind::Refused && event.cause == Cause::Verdict(verdict));
            of.map(|event| u64::from(event.amount)).sum::<u64>()
        };
        for verdict in REFUSALS {
            let (events, packets) = (reported(verdict), seen.verdicts.of(verdict));
            let is_right = if self.has_asked { events >= packets } else { events == packets };
            assert!(is_right, "{events} events and {packets} packets of {}", verdict.name());
        }
        let by_design = [
            Verdict::DroppedByRule,
            Verdict::DeniedByFilter,
            Verdict::NoMapping,
            Verdict::Filtered,
            Verdict::UnsolicitedSyn,
            Verdict::TcpNoSession,
            Verdict::DestinationNotPool,
        ];
        for verdict in Verdict::ALL.iter().filter(|verdict| verdict.kind() == VerdictKind::Dropped) {
            // Tunnelled packets without a call.
            let is_tunnel = self.has_asked && *verdict == Verdict::ProtocolUnsupported;
            let is_expected = REFUSALS.contains(verdict) || by_design.contains(verdict) || is_tunnel;
            assert!(
                is_expected || seen.verdicts.of(*verdict) == 0,
                "{} packets: {}",
                seen.verdicts.of(*verdict),
                verdict.name()
            );
        }
    }

    /// Nothing made under the settings in use is ended by them at once.
    pub(super) fn check_ends(&self, events: &[Event]) {
        let key =
            |event: &Event| (event.protocol, event.subscriber, event.internal_port, event.external, event.first_port);
        let mut made = HashSet::new();
        for event in events.iter().filter(|_| self.in_use.len() == 1) {
            match event.kind {
                EventKind::MappingCreated | EventKind::StaticCreated
                    if event.cause != Cause::None && event.amount == 0 =>
                {
                    made.insert((event.at, key(event)));
                }
                EventKind::MappingEnded | EventKind::StaticEnded => {
                    let is_by_settings = matches!(event.cause, Cause::Configuration | Cause::Drained);
                    let is_at_once = made.contains(&(event.at, key(event)));
                    assert!(
                        !is_by_settings || !is_at_once,
                        "made and ended at once: {event:?} {:?} {:?} before {:?}",
                        self.in_use[0].reload,
                        (&self.in_use[0].forwards, &self.in_use[0].balanced_forwards),
                        self.before.as_ref().map(|s| (&s.forwards, &s.balanced_forwards))
                    );
                }
                _ => {}
            }
        }
    }

    pub(super) fn check_penalty(&self, bed: &Bed, event: &Event) {
        let (now, pool) = (bed.now(), bed.shared().pool_name(event.pool));
        let is_due = |settings: &Settings| {
            limits_of(settings, event.subscriber).penalty.is_some_and(|penalty| {
                let offences = self.offences[&event.subscriber].iter();
                let recent = offences.filter(|(at, _)| now.saturating_since(*at) <= penalty.window);
                let count: u64 = recent.map(|(_, amount)| amount).sum();
                let sent_to = settings.pools.get(penalty.pool.index()).map(|pool| pool.name.as_str());
                sent_to == pool && count >= u64::from(penalty.refusals)
            })
        };
        assert!(self.in_use.iter().any(is_due), "a penalty that is not due: {event:?}");
    }

    /// A packet that came out came from where it had to.
    pub(super) fn check_out(
        &self,
        bed: &Bed,
        seen: &Seen,
        one: &Sent,
        external: SocketAddrV4,
        remote_outside: SocketAddrV4,
    ) {
        let Sent { key, talk, .. } = one;
        let now = bed.now();
        assert!(self.in_use.iter().any(|settings| permits(settings, &key.rule_key(), true)), "denied: {key:?}");
        if let Some(talk) = talk.filter(|talk| talk.is_sure(now)) {
            assert_eq!(
                (external, remote_outside),
                (talk.external, talk.remote_outside),
                "it goes on as it was: {key:?} {talk:?}"
            );
        }
        let endpoint = endpoint_of(key.protocol, external);
        let is_flow =
            self.ledger.had_flow(&(endpoint, (*remote_outside.ip(), remote_outside.port())), key.internal, now);
        for (other, theirs) in self.account.talks.iter().filter(|(_, theirs)| theirs.is_sure(now)) {
            if other == key || (other.protocol, theirs.external) != (key.protocol, external) {
                continue;
            }
            // Who had the port before the targets goes on beside their sessions, also when both
            // drain, changes later.
            let is_now = || self.in_use.iter().any(|settings| is_balanced(settings, external));
            let is_taken = theirs.was_balanced || is_now();
            assert!(
                is_flow == theirs.is_flow || is_taken,
                "one has the port, the other shares it: {key:?}, {other:?} {theirs:?}"
            );
            let is_other = other.internal != key.internal;
            assert!(
                !is_other || (is_flow || is_taken) && theirs.remote_outside != remote_outside,
                "two owners: {key:?}, {other:?} {theirs:?}"
            );
        }
        if is_flow {
            return;
        }
        if let Some(mapped) = self.account.sure_mapping(now, key.protocol, key.internal) {
            assert_eq!(external, mapped, "one external endpoint for all remote ones (RFC 4787 REQ-1): {key:?}");
        }
        // The records name the owner: of the mapping, of its block, or by a formula.
        let block = self.ledger.block_holder(*external.ip(), external.port());
        let whose = match (seen.booked.get(&endpoint), block) {
            _ if self.ledger.had(&endpoint, key.internal, now) => true,
            (Some(_), _) => false,
            (None, Some(block)) => block.subscriber == *key.internal.ip(),
            // During a change, mappings are still unrecorded if their formula has changed.
            (None, None) if self.in_use.len() > 1 => true,
            (None, None) => {
                let place = bed.shared().address_index(*external.ip()).expect("an address of a pool");
                bed.shared().slice_owner(place, external.port()) == Some(Owner::Subscriber(*key.internal.ip()))
            }
        };
        assert!(whose, "the records say otherwise of {external}, {key:?}: {:?} {block:?}", seen.booked.get(&endpoint));
    }

    /// What is certainly new is where the settings in use put it.
    pub(super) fn check_place(&self, seen: &Seen, one: &Sent, external: SocketAddrV4) {
        let key = &one.key;
        let subscriber = *key.internal.ip();
        let was_there = one.talk.is_some() || one.was_mapped;
        let was_offender = seen.offenders_before.contains(&subscriber);
        let [settings] = &self.in_use[..] else { return };
        if was_there || was_offender != self.offenders.contains_key(&subscriber) || is_static(settings, key, external) {
            return;
        }
        let rule = rule_for(settings, &key.rule_key());
        let action = rule.map_or(RuleAction::DEFAULT, |rule| rule.action);
        let penalty = limits_of(settings, subscriber).penalty.filter(|_| was_offender);
        let wanted = penalty.map(|penalty| penalty.pool).or(action.pool());
        let pool = match wanted {
            Some(pool) => &settings.pools[pool.index()],
            None => pool_of(settings, subscriber).expect("a pool serves the subscriber"),
        };
        let what = format!("{key:?} by {external}; {pool:?}");
        let is_open = !pool.draining && !pool.draining_addresses.contains(external.ip());
        assert!(pool.addresses.contains(external.ip()) && is_open, "on an address of the pool that is open: {what}");
        let is_offered = (pool.port_min..=pool.port_max).contains(&external.port())
            && !pool.reserved_ports.contains(&external.port());
        assert!(is_offered || key.protocol == Protocol::Icmp, "on a port of the pool: {what}");
    }

    /// Packets that did not come out have the reasons they must have, and as many.
    pub(super) fn check_reasons<'s>(&mut self, now: Instant, seen: &Seen, lost: impl Iterator<Item = &'s Sent>) {
        let mut counts: BTreeMap<Reason, Between> = BTreeMap::new();
        let mut refused: BTreeMap<Ipv4Addr, Between> = BTreeMap::new();
        for one in lost {
            let key = one.key.rule_key();
            let reason = |settings: &Settings| match rule_for(settings, &key).map(|rule| rule.action) {
                _ if !permits(settings, &key, true) => Reason::Denied,
                Some(RuleAction::Drop) => Reason::Rule,
                _ if !one.opens => Reason::NoSession,
                _ => Reason::Refused,
            };
            let reasons: BTreeSet<Reason> = self.in_use.iter().map(reason).collect();
            let is_sure = one.talk.is_some_and(|talk| talk.is_sure(now));
            assert!(!is_sure || reasons.contains(&Reason::Denied), "a packet was lost: {one:?}; {}", seen.text());
            for reason in &reasons {
                let all = counts.entry(*reason).or_default();
                let his = refused.entry(*one.key.internal.ip()).or_default();
                for between in [Some(all), (*reason == Reason::Refused).then_some(his)].into_iter().flatten() {
                    between.least += u64::from(reasons.len() == 1);
                    between.most += 1;
                }
            }
        }
        let verdicts = [
            (Reason::Denied, Verdict::DeniedByFilter),
            (Reason::Rule, Verdict::DroppedByRule),
            (Reason::NoSession, Verdict::TcpNoSession),
        ];
        for (reason, verdict) in verdicts {
            let (expected, count) = (counts.remove(&reason).unwrap_or_default(), seen.verdicts.of(verdict));
            assert!(expected.holds(count), "{count} packets {}, expected {expected:?}", verdict.name());
            self.count(verdict.name(), count);
        }
        let mut reported: BTreeMap<Ipv4Addr, u64> = BTreeMap::new();
        for event in seen.events.iter().filter(|event| event.kind == EventKind::Refused) {
            *reported.entry(event.subscriber).or_default() += u64::from(event.amount);
        }
        for subscriber in reported.keys().chain(refused.keys()) {
            let expected = refused.get(subscriber).copied().unwrap_or_default();
            let count = reported.get(subscriber).copied().unwrap_or_default();
            assert!(expected.holds(count), "{count} packets of {subscriber} refused, expected {expected:?}");
        }
    }

    /// The cause of each refusal is one.
    pub(super) fn check_causes(&mut self, bed: &Bed, seen: &Seen) {
        for event in seen.events.iter().filter(|event| event.kind == EventKind::Refused) {
            let Cause::Verdict(cause) = event.cause else { panic!("a refusal without cause: {event:?}") };
            let protocol = event.protocol.expect("it has one");
            let most = self.account.at_most(bed.now(), event.subscriber);
            let opened = seen.opened_at_most.get(&(event.subscriber, protocol)).copied().unwrap_or_default();
            let is_right = |settings: &Settings| {
                let limits = limits_of(settings, event.subscriber);
                match cause {
                    Verdict::SubscriberPortQuota => {
                        most.ports[protocol.index()] + opened >= limits.ports_max[protocol.index()]
                    }
                    Verdict::SubscriberSessionQuota => most.sessions >= limits.sessions_max,
                    Verdict::SubscriberMemoryQuota => most.memory + nat::class::FLOW_BYTES > limits.memory_max,
                    Verdict::SubscriberRateLimit => limits.new_mappings.is_some() || limits.new_sessions.is_some(),
                    Verdict::BlockLimit => settings.pools.iter().any(|pool| {
                        blocks_of(pool).is_some_and(|blocks| {
                            let has = self.ledger.blocks_of(event.subscriber);
                            has >= usize::from(blocks.per_subscriber_max)
                        })
                    }),
                    // Who has no slice: others than its subscribers, and the first and last address
                    // of a prefix.
                    Verdict::SourceNotSubscriber => settings.pools.iter().any(|pool| {
                        matches!(pool.allocation, Allocation::Deterministic { .. })
                            && !pool.subscribers.iter().any(|prefix| prefix.contains(event.subscriber))
                    }),
                    Verdict::BoundaryAddress => settings.pools.iter().any(|pool| {
                        let is_edge = |prefix: &Prefix| [prefix.address(), prefix.last()].contains(&event.subscriber);
                        matches!(pool.allocation, Allocation::Deterministic { .. })
                            && pool.subscribers.iter().any(is_edge)
                    }),
                    // All of a pool drains, or what its formula gives the subscriber.
                    Verdict::AddressDraining => settings.pools.iter().any(|pool| {
                        let is_drained =
                            |address: &Ipv4Addr| pool.draining || pool.draining_addresses.contains(address);
                        match pool.allocation {
                            Allocation::Deterministic { .. } => pool.addresses.iter().any(is_drained),
                            _ => pool.addresses.iter().all(is_drained),
                        }
                    }),
                    Verdict::PortsExhausted => self.may_be_exhausted(bed, settings, event, protocol),
                    _ => false,
                }
            };
            assert!(
                self.in_use.iter().any(is_right),
                "the cause is wrong: {event:?}; {most:?} {:?}; {}",
                limits_of(&self.in_use[0], event.subscriber),
                seen.text()
            );
            self.count(cause.name(), u64::from(event.amount));
        }
    }

    /// Whether a pool may have had no port for a subscriber that was refused one: where single
    /// ports are given out, a port unused for long is certainly free.
    fn may_be_exhausted(&self, bed: &Bed, settings: &Settings, event: &Event, protocol: Protocol) -> bool {
        let [_] = &self.in_use[..] else { return true };
        let name = bed.shared().pool_name(event.pool);
        let Some(pool) = settings.pools.iter().find(|pool| Some(pool.name.as_str()) == name) else { return false };
        let is_open = pool.addresses.contains(&event.external)
            && !pool.draining
            && !pool.draining_addresses.contains(&event.external);
        let has_forward = settings.forwards.iter().any(|forward| forward.inside == inside_host(event.subscriber));
        let is_redirected = !settings.redirections.is_empty();
        if !is_open
            || pool.allocation != Allocation::Ports
            || has_forward
            || is_redirected
            || protocol == Protocol::Icmp
        {
            return true;
        }
        let since = Instant::from_micros(bed.now().as_micros() - LONG.as_micros());
        let used = self.ledger.ports_used_since(event.external, protocol, since);
        let is_forwarded = |port: u16| {
            let in_range = |external: Ipv4Addr, ports: (u16, u16)| {
                external == event.external && (ports.0..=ports.1).contains(&port)
            };
            settings.forwards.iter().any(|one| in_range(one.external, one.ports))
                || settings.balanced_forwards.iter().any(|one| in_range(one.external, one.ports))
                || self.led_to_several.contains(&(protocol, at(event.external, port)))
        };
        (pool.port_min..=pool.port_max)
            .all(|port| used.contains(&port) || pool.reserved_ports.contains(&port) || is_forwarded(port))
    }

    /// A subscriber that got something new is within the limits in use with all of it; one above
    /// them got nothing.
    pub(super) fn check_limits(&self, now: Instant, new: &New, seen: &Seen) {
        let most = |subscriber, of: &dyn Fn(&SubscriberLimits) -> u64| {
            self.in_use.iter().map(|settings| of(limits_of(settings, subscriber))).max().unwrap_or(0)
        };
        let mapped = new.mappings.iter().map(|(protocol, internal)| (*internal.ip(), *protocol));
        for (subscriber, protocol) in mapped.chain(seen.opened.iter().copied()) {
            let index = protocol.index();
            let allowed = most(subscriber, &|limits| u64::from(limits.ports_max[index]));
            let mappings = self.account.at_least(now, subscriber).ports[index];
            let has = u64::from(mappings) + u64::from(self.openers.of(subscriber, protocol));
            assert!(has <= allowed, "{subscriber} has {has} ports of {protocol:?}, {allowed} are allowed");
        }
        for subscriber in &new.sessions {
            let has = self.account.at_least(now, *subscriber);
            let allowed = most(*subscriber, &|limits| u64::from(limits.sessions_max));
            assert!(u64::from(has.sessions) <= allowed, "{subscriber} has {has:?}, {allowed} sessions are allowed");
            let allowed = most(*subscriber, &|limits| limits.memory_max);
            assert!(has.memory <= allowed, "{subscriber} has {has:?}, {allowed} bytes are allowed");
        }
    }

    /// A packet that came in reached the right host.
    pub(super) fn check_in(&mut self, now: Instant, probe: &Probe, internal: SocketAddrV4, remote: SocketAddrV4) {
        let (protocol, external, key) = match *probe {
            Probe::Reply(key) => {
                assert_eq!(internal, key.internal, "an answer to {key:?} reached somebody else");
                assert_eq!(without_port(key.protocol, remote), key.remote_inside, "an answer to {key:?}");
                self.account.passed_in(now, &key);
                let is_permitted = |settings: &Settings| permits(settings, &key.rule_key(), false);
                assert!(self.in_use.iter().any(is_permitted), "denied: {key:?}");
                return;
            }
            Probe::Stranger { protocol, remote: from, external } => {
                assert_eq!(remote, from, "the source stays");
                (protocol, external, TalkKey { protocol, internal, remote_inside: remote })
            }
        };
        let is_permitted = |settings: &Settings| permits(settings, &key.rule_key(), false);
        assert!(self.in_use.iter().any(is_permitted), "denied: {key:?}");
        let is_there = |(of, talk): (&TalkKey, &Talk)| (of.protocol, talk.external) == (protocol, external);
        let owners: Vec<(SocketAddrV4, bool)> = self
            .account
            .talks
            .iter()
            .filter(|one| is_there(*one))
            .map(|(of, talk)| (of.internal, talk.is_sure(now) && !talk.is_flow))
            .collect();
        // Targets take a port over while earlier owners go on with their remote hosts.
        let is_taken = self.in_use.iter().any(|settings| is_balanced(settings, external));
        if let Some((owner, _)) = owners.iter().find(|(_, is_sure)| *is_sure && !is_taken) {
            assert_eq!(internal, *owner, "{external} of {protocol:?} has two owners");
        }
        let is_forwarded =
            self.in_use.iter().any(|settings| leads_to(settings, protocol, external).contains(&internal));
        assert!(
            is_forwarded || owners.iter().any(|(owner, _)| *owner == internal),
            "{internal} has nothing to do with {external}"
        );
        if is_forwarded {
            self.account.opened_from_outside(now, key, external);
            let flow = (endpoint_of(protocol, external), (*remote.ip(), remote.port()));
            let talk = self.account.talks.get_mut(&key).expect("it was entered");
            talk.is_flow = self.ledger.had_flow(&flow, internal, now);
            self.count("forwarded", 1);
        } else if protocol == Protocol::Tcp
            || protocol == Protocol::Udp && self.in_use.iter().any(|settings| leads_away(settings, &key))
        {
            // A SYN, or what has to be answered from where it was sent to.
            self.account.opened_from_outside(now, key, external);
            self.count("asked", 1);
        }
        // It may keep what there is alive.
        let same = self.account.talks.keys().filter(|of| (of.protocol, of.internal) == (protocol, internal));
        for key in same.copied().collect::<Vec<_>>() {
            let stage = self.account.talks[&key].stage;
            self.account.passed_in(now, &key);
            self.account.talks.get_mut(&key).expect("it is there").stage = stage;
        }
    }
}

/// What a burst made for certain.
#[derive(Default)]
pub(super) struct New {
    pub(super) mappings: BTreeSet<(Protocol, SocketAddrV4)>,
    pub(super) flows: u64,
    pub(super) sessions: BTreeSet<Ipv4Addr>,
}

fn blocks_of(pool: &Pool) -> Option<Blocks> {
    match pool.allocation {
        Allocation::Ports => None,
        Allocation::Blocks(blocks) | Allocation::Deterministic { overflow: blocks, .. } => Some(blocks),
    }
}
