//! What an observer knows that sees only the packets on both links and the events: which subscriber
//! talks to which remote endpoint by which external endpoint, how long that is certain, and how
//! long it is possible.
//!
//! Idle times lie between bounds that hold for every configuration in use. A talk certainly exists
//! until the lower bound has passed since its last packet, and is certainly gone from the upper
//! bound on. In between nothing is claimed.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::VecDeque;

use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::class::EXTRA_SESSION_BYTES;
use nat::class::FLOW_BYTES;
use nat::class::MAPPING_BYTES;
use nat::rules::RuleKey;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
use nat::settings::FilterAction;
use nat::settings::Forward;
use nat::settings::Pool;
use nat::settings::Rate;
use nat::settings::Removed;
use nat::settings::Rule;
use nat::settings::SubscriberLimits;
use nat::types::RealmId;

use crate::bed::families::inside_host;
use crate::bed::families::ruled;

/// What is said between an internal endpoint and a remote one, as the inside sees both. Of ICMP
/// queries the inside has the identifier as its port, and the remote one has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TalkKey {
    /// Transport.
    pub protocol: Protocol,
    /// The subscriber's end.
    pub internal: SocketAddrV4,
    /// The other end, as the subscriber knows it.
    pub remote_inside: SocketAddrV4,
}

impl TalkKey {
    /// Its packets as rules and filters see them.
    pub fn rule_key(&self) -> RuleKey {
        RuleKey::new(
            RealmId::default(),
            self.protocol.number(),
            self.internal.ip().to_bits(),
            self.internal.port(),
            self.remote_inside.ip().to_bits(),
            self.remote_inside.port(),
        )
    }

    /// Whether it is the same internal endpoint.
    fn is_of(&self, protocol: Protocol, internal: SocketAddrV4) -> bool {
        (self.protocol, self.internal) == (protocol, internal)
    }
}

/// How far a TCP connection is. Nothing of the other protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The first packet passed, from inside or from outside.
    Opened,
    /// Both sides were heard.
    Established,
    /// It was reset.
    Reset,
}

/// A talk that was seen.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    /// The remote end as it is outside.
    pub remote_outside: SocketAddrV4,
    /// The subscriber's end as it is outside.
    pub external: SocketAddrV4,
    /// The events say it has a share of its port only.
    pub is_flow: bool,
    /// The first packet came from outside.
    pub is_inbound: bool,
    /// Its mapping was made for it; not that of a flow.
    pub is_first: bool,
    /// A forward was about it at some time.
    pub is_static: bool,
    /// Its external endpoint led to several targets at some time.
    pub was_balanced: bool,
    /// It is there until then, if no change ends it.
    pub sure_until: Instant,
    /// It is gone from then on.
    pub gone_by: Instant,
    /// A change may have ended it, or may yet.
    pub is_at_risk: bool,
    /// How far it is.
    pub stage: Stage,
}

impl Talk {
    /// It is there.
    pub fn is_sure(&self, now: Instant) -> bool {
        now < self.sure_until && !self.is_at_risk
    }

    /// It may be there.
    pub fn is_possible(&self, now: Instant) -> bool {
        now < self.gone_by
    }
}

/// What a subscriber uses, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Mappings, by [`Protocol::index`].
    pub ports: [u32; Protocol::COUNT],
    /// Sessions and flows.
    pub sessions: u32,
    /// Bytes, as the limits count them.
    pub memory: u64,
}

/// The least a session lives after its last packet, whatever the configuration: the bounds of the
/// RFCs, and the shortest timer of a port that tests may configure.
fn life_min(key: &TalkKey) -> Duration {
    Duration::from_secs(match key.protocol {
        Protocol::Udp if key.remote_inside.port() == 443 => 60,
        Protocol::Udp => 120,
        Protocol::Tcp => 240,
        Protocol::Icmp => 60,
    })
}

/// The most: the timers of tests are no longer.
const LIFE_MAX: [Duration; Protocol::COUNT] =
    [Duration::from_secs(300), Duration::from_secs(900), Duration::from_secs(120)];

/// The books.
#[derive(Debug, Default)]
pub struct Account {
    /// All talks that may be there.
    pub talks: BTreeMap<TalkKey, Talk>,
    /// When each subscriber got a mapping or flow for certain, since its rate was changed.
    made: HashMap<Ipv4Addr, VecDeque<Instant>>,
    /// Internal and external endpoints that a forward was about while there was a talk by them.
    /// Their mapping may outlive the forward and have further talks; a later change may end it.
    were_static: BTreeSet<(Protocol, SocketAddrV4, SocketAddrV4)>,
}

impl Account {
    /// A packet of a talk came out, from inside (or the first one from outside), by these
    /// endpoints.
    pub fn passed_out(&mut self, now: Instant, key: TalkKey, (external, remote_outside): (SocketAddrV4, SocketAddrV4)) {
        // What a change may end takes all with it that came later.
        let shares = |(other, talk): (&TalkKey, &Talk)| {
            other.is_of(key.protocol, key.internal) && talk.external == external && talk.is_at_risk
        };
        let is_at_risk = self.talks.iter().any(shares);
        let (sure_until, gone_by) = (now + life_min(&key), now + LIFE_MAX[key.protocol.index()]);
        let fresh = Talk {
            remote_outside,
            external,
            is_flow: false,
            is_inbound: false,
            is_first: !self.may_have_mapping(now, key.protocol, key.internal),
            is_static: self.were_static.contains(&(key.protocol, key.internal, external)),
            was_balanced: false,
            sure_until,
            gone_by,
            is_at_risk,
            stage: Stage::Opened,
        };
        let talk = self.talks.entry(key).or_insert(fresh);
        if (talk.external, talk.remote_outside) != (external, remote_outside) {
            *talk = fresh;
        }
        talk.sure_until = sure_until;
        talk.gone_by = gone_by;
    }

    /// The first packet of a talk came in, to a forward. It is certain only once the inside has
    /// answered.
    pub fn opened_from_outside(&mut self, now: Instant, key: TalkKey, external: SocketAddrV4) {
        let known = self.talks.get(&key).is_some_and(|talk| talk.external == external && talk.is_possible(now));
        if !known {
            self.passed_out(now, key, (external, key.remote_inside));
            let talk = self.talks.get_mut(&key).expect("it was entered");
            (talk.sure_until, talk.is_inbound) = (now, true);
        }
        self.passed_in(now, &key);
    }

    /// A packet from the remote end came in.
    pub fn passed_in(&mut self, now: Instant, key: &TalkKey) {
        if let Some(talk) = self.talks.get_mut(key) {
            talk.gone_by = now + LIFE_MAX[key.protocol.index()];
            if key.protocol == Protocol::Tcp && talk.stage == Stage::Opened && !talk.is_inbound {
                talk.stage = Stage::Established;
            }
        }
    }

    /// Forgets what is gone by now.
    pub fn forget(&mut self, now: Instant) {
        self.talks.retain(|_, talk| talk.is_possible(now));
    }

    /// The events say that this internal endpoint lost this external one.
    pub fn ended(&mut self, protocol: Protocol, internal: SocketAddrV4, external: SocketAddrV4) {
        self.talks.retain(|key, talk| talk.is_flow || !key.is_of(protocol, internal) || talk.external != external);
    }

    /// The events say that this flow ended.
    pub fn flow_ended(&mut self, protocol: Protocol, internal: SocketAddrV4, ends: (SocketAddrV4, SocketAddrV4)) {
        self.talks.retain(|key, talk| {
            !talk.is_flow || !key.is_of(protocol, internal) || (talk.external, talk.remote_outside) != ends
        });
    }

    /// Whether the internal endpoint may have a mapping.
    pub fn may_have_mapping(&self, now: Instant, protocol: Protocol, internal: SocketAddrV4) -> bool {
        let mut all = self.talks.iter();
        all.any(|(key, talk)| key.is_of(protocol, internal) && !talk.is_flow && talk.is_possible(now))
    }

    /// The external endpoint that the internal one is certain to have for all it talks to.
    pub fn sure_mapping(&self, now: Instant, protocol: Protocol, internal: SocketAddrV4) -> Option<SocketAddrV4> {
        let mut all = self.talks.iter();
        let found = all.find(|(key, talk)| key.is_of(protocol, internal) && !talk.is_flow && talk.is_sure(now));
        found.map(|(_, talk)| talk.external)
    }

    fn count(&self, subscriber: Ipv4Addr, counts: impl Fn(&Talk) -> bool) -> Use {
        let mut mapped: BTreeSet<(Protocol, SocketAddrV4)> = BTreeSet::new();
        let mut total = Use::default();
        for (key, talk) in self.talks.iter().filter(|(key, talk)| *key.internal.ip() == subscriber && counts(talk)) {
            total.sessions += 1;
            if talk.is_flow {
                total.memory += FLOW_BYTES;
            } else if mapped.insert((key.protocol, key.internal)) {
                total.ports[key.protocol.index()] += 1;
                total.memory += MAPPING_BYTES;
            } else {
                total.memory += EXTRA_SESSION_BYTES;
            }
        }
        total
    }

    /// What a subscriber uses at least.
    pub fn at_least(&self, now: Instant, subscriber: Ipv4Addr) -> Use {
        self.count(subscriber, |talk| talk.is_sure(now))
    }

    /// What a subscriber uses at most.
    pub fn at_most(&self, now: Instant, subscriber: Ipv4Addr) -> Use {
        let mut total = self.count(subscriber, |talk| talk.is_possible(now));
        // A mapping counts with its first session, also when that is over and others go on.
        let his = self.talks.iter().filter(|(key, talk)| *key.internal.ip() == subscriber && !talk.is_flow);
        let mut has_first: BTreeMap<(Protocol, SocketAddrV4), bool> = BTreeMap::new();
        for (key, talk) in his.filter(|(_, talk)| talk.is_possible(now)) {
            *has_first.entry((key.protocol, key.internal)).or_default() |= talk.is_first;
        }
        let without = has_first.values().filter(|has_first| !**has_first).count() as u32;
        total.sessions += without;
        total.memory += u64::from(without) * EXTRA_SESSION_BYTES;
        total
    }

    /// A subscriber got a mapping or a flow, under this limit of their rate.
    ///
    /// # Panics
    /// When it got too many since some earlier one.
    pub fn made_one(&mut self, now: Instant, subscriber: Ipv4Addr, rate: Option<Rate>) {
        let made = self.made.entry(subscriber).or_default();
        made.push_back(now);
        let Some(Rate { per_second, burst }) = rate else { return };
        for (number, since) in made.iter().rev().enumerate() {
            let elapsed_us = now.saturating_since(*since).as_micros();
            let allowed = u64::from(burst) + elapsed_us * u64::from(per_second) / 1_000_000;
            let got = number as u64 + 1;
            assert!(got <= allowed, "{subscriber} got {got} within {elapsed_us} us, {rate:?}");
        }
    }

    /// The rate of a subscriber changes.
    pub fn forget_rate(&mut self, subscriber: Ipv4Addr) {
        self.made.remove(&subscriber);
    }

    /// Marks the talks that a forward is about.
    pub fn mark_static(&mut self, settings: &Settings) {
        for (key, talk) in &mut self.talks {
            talk.is_static |= is_static(settings, key, talk.external);
            talk.was_balanced |= is_balanced(settings, talk.external);
            if talk.is_static {
                self.were_static.insert((key.protocol, key.internal, talk.external));
            }
        }
    }

    /// The configuration becomes `next`: marks the talks that this may end, but for those that the
    /// plan says it keeps.
    pub fn follow(&mut self, before: &Settings, next: &Settings, kept: &BTreeSet<TalkKey>) {
        let ends_some = next.reload.removed == Removed::End || next.reload.drain_time.is_some();
        self.mark_static(before);
        self.mark_static(next);
        for (key, talk) in &mut self.talks {
            talk.is_at_risk |= ends_some && !kept.contains(key) && !keeps(next, talk);
        }
    }
}

/// Whether settings leave a talk its place for certain. What it denies may be kept, too: holders of
/// ports by a formula are not asked for.
pub fn keeps(next: &Settings, talk: &Talk) -> bool {
    let (address, port) = (*talk.external.ip(), talk.external.port());
    let Some(pool) = next.pools.iter().find(|pool| pool.addresses.contains(&address)) else { return false };
    !pool.draining
        && !pool.draining_addresses.contains(&address)
        && !matches!(pool.allocation, Allocation::Deterministic { .. })
        && (pool.port_min..=pool.port_max).contains(&port)
        && !pool.reserved_ports.contains(&port)
        && !talk.is_static
}

/// Whether an external endpoint leads to several targets.
pub fn is_balanced(settings: &Settings, external: SocketAddrV4) -> bool {
    let is_it = |one: &BalancedForward| {
        one.external == *external.ip() && (one.ports.0..=one.ports.1).contains(&external.port())
    };
    settings.balanced_forwards.iter().any(is_it)
}

/// Whether a forward is about a talk with this external endpoint, on either side.
pub fn is_static(settings: &Settings, key: &TalkKey, external: SocketAddrV4) -> bool {
    let has = |ports: (u16, u16), port: u16| (ports.0..=ports.1).contains(&port);
    let inside = |forward: &Forward| {
        let last = forward.inside_port + (forward.ports.1 - forward.ports.0);
        forward.inside == inside_host(*key.internal.ip()) && has((forward.inside_port, last), key.internal.port())
    };
    let single = |one: &Forward| inside(one) || (one.external == *external.ip() && has(one.ports, external.port()));
    let balanced = |one: &BalancedForward| one.external == *external.ip() && has(one.ports, external.port());
    settings.forwards.iter().any(single) || settings.balanced_forwards.iter().any(balanced)
}

/// The key as rules and filters know it: IPv6 hosts by their prefixes.
fn as_ruled(settings: &Settings, key: &RuleKey) -> RuleKey {
    key.from_source(ruled(settings, key.source()).to_bits())
}

/// Whether the filters let a packet of a talk pass, out or back: the first that matches counts.
pub fn permits(settings: &Settings, key: &RuleKey, is_out: bool) -> bool {
    let key = &as_ruled(settings, key);
    let is_about = |filter: &&nat::settings::FilterRule| if is_out { filter.out } else { filter.back };
    let first = settings.filters.iter().filter(is_about).find(|filter| filter.matches.matches(key));
    first.is_none_or(|filter| filter.action == FilterAction::Permit)
}

/// The rule for what a talk opens: the first that matches.
pub fn rule_for<'s>(settings: &'s Settings, key: &RuleKey) -> Option<&'s Rule> {
    let key = as_ruled(settings, key);
    settings.rules.iter().find(|rule| rule.matches.matches(&key))
}

/// The pool that serves a subscriber: that with the longest prefix.
pub fn pool_of(settings: &Settings, subscriber: Ipv4Addr) -> Option<&Pool> {
    let prefixes = settings.pools.iter().flat_map(|pool| pool.subscribers.iter().map(move |prefix| (prefix, pool)));
    let serving = prefixes.filter(|(prefix, _)| prefix.contains(subscriber));
    serving.max_by_key(|(prefix, _)| prefix.length()).map(|(_, pool)| pool)
}

/// What a subscriber may use: that of the class with the longest prefix.
pub fn limits_of(settings: &Settings, subscriber: Ipv4Addr) -> &SubscriberLimits {
    let prefixes =
        settings.classes.iter().flat_map(|class| class.subscribers.iter().map(move |prefix| (prefix, class)));
    let subscriber = ruled(settings, subscriber);
    let his = prefixes.filter(|(prefix, _)| prefix.contains(subscriber)).max_by_key(|(prefix, _)| prefix.length());
    his.map_or(&settings.subscriber, |(_, class)| &class.limits)
}
