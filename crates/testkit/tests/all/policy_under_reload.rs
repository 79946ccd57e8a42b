//! Everything a carrier may configure changes while traffic flows, and all guarantees are checked
//! at once: churn, exhaustion, quotas, rates, penalties, rules, filters, forwards, gateways, port
//! control and reloads, some of which fail and some of which are rolled back, on one worker and on
//! several.
//!
//! After each burst what was seen is compared with an account that knows only the packets on both
//! links and the events ([`testkit::account`]):
//!
//! - no external endpoint has two owners, and where ports are shared, no external and remote
//!   endpoint together;
//! - no subscriber gets more than the limits in use, nor faster than its rate allows;
//! - each packet that was dropped has one cause, which is right, and the events count as many as
//!   the counters;
//! - the events name the owner of each external endpoint;
//! - a port that a gateway or port control grants leads to the host that asked for it, or nowhere;
//! - a mapping that a reload orphans keeps its external endpoint and loses no packet, also in the
//!   middle of the change;
//! - in the end everything is free again, and a new subscriber can have every port.
//!
//! A failure says seed and step; `NATRIX_SEED` repeats it, `NATRIX_RUNS` asks for more seeds,
//! `NATRIX_STEPS` for longer runs.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::panic::resume_unwind;

use nat::Counters;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::deterministic::Owner;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::redirection::Target;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
use nat::settings::Blocks;
use nat::settings::Class;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::Forward;
use nat::settings::Gateway;
use nat::settings::MappingKind;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::PortTimeout;
use nat::settings::Rate;
use nat::settings::Removed;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::settings::SubscriberLimits;
use nat::stand_in::Prefix6;
use nat::stand_in::StandIn;
use nat::stand_in::stand_ins;
use nat::types::PoolId;
use nat::types::PoolName;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::verdict::VerdictKind;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::seq::SliceRandom;
use testkit::account::Account;
use testkit::account::Stage;
use testkit::account::Talk;
use testkit::account::TalkKey;
use testkit::account::is_balanced;
use testkit::account::is_static;
use testkit::account::keeps;
use testkit::account::limits_of;
use testkit::account::permits;
use testkit::account::pool_of;
use testkit::account::rule_for;
use testkit::bed::families::home;
use testkit::bed::families::inside_host;
use testkit::bed::families::is_probe;
use testkit::bed::families::name_of_inside;
use testkit::bed::families::nat64_host;
use testkit::bed::families::prefix_of;
use testkit::bed::families::with_families;
use testkit::connection::SYN_ACK;
use testkit::ledger::ExternalEndpoint;
use testkit::ledger::FlowEndpoint;
use testkit::ledger::Holder;
use testkit::openers::Openers;
use testkit::random_pools::Mode;
use testkit::random_pools::PoolShape;
use testkit::random_pools::random_limits;
use testkit::random_pools::random_pool;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::control_sessions;

/// A service with an address that only the rules know, and where it is.
const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 200);
const TARGETS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(198, 51, 100, 201), Ipv4Addr::new(198, 51, 100, 202), Ipv4Addr::new(198, 51, 100, 203)];
/// Ports that rules and filters are about, beside those that they are not.
const PORTS: [u16; 4] = [80, 443, 8_080, 9_999];
/// Hosts that ask gateways and port control for ports, and send nothing else.
const ASKERS: Range<u8> = 50..56;
/// Longer than any port is kept back after its last use: sessions, reuse delays, shared ports that
/// carry nothing.
const LONG: Duration = Duration::from_secs(1_200);
/// What ends packets that could not have what they wanted; each is an event.
const REFUSALS: [Verdict; 15] = [
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
const OFFENCES: [Verdict; 5] = [
    Verdict::SubscriberPortQuota,
    Verdict::SubscriberSessionQuota,
    Verdict::SubscriberMemoryQuota,
    Verdict::SubscriberRateLimit,
    Verdict::BlockLimit,
];

/// Behind the inside router, so that the answers to many at once need not wait for as many
/// neighbours.
fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 1, number)
}

/// Some hosts are reached by NAT64, some through softwires: all that changes is their address.
fn any_host(number: u8) -> Ipv4Addr {
    match number % 4 {
        1 => nat64_host(number.into()),
        3 => home(number.into()),
        _ => host(number),
    }
}

/// IPv6 prefixes that rules, filters and classes may name: of eight hosts each, and now and then
/// some around them, so that the same prefix is another block.
fn random_stand_ins(random: &mut SmallRng) -> Vec<StandIn> {
    let of_eight = (8..32).step_by(8).flat_map(|number| [nat64_host(number), home(number)]);
    let mut prefixes: Vec<Prefix6> = of_eight.map(|host| prefix_of(host, 53)).collect();
    prefixes.extend([32, 50, 56].map(|length| prefix_of(nat64_host(17), length)).iter().filter(|_| random.random()));
    prefixes.extend([0, 40].map(|length| prefix_of(home(19), length)).iter().filter(|_| random.random()));
    stand_ins(prefixes).expect("they are few")
}

/// All that send packets.
fn all_hosts() -> impl Iterator<Item = Ipv4Addr> {
    (8..64).flat_map(|number| [host(number), any_host(number)])
}

fn roomy() -> Settings {
    with_families(settings()).limits(|limits| {
        limits.mappings_max = 8_000;
        limits.extra_sessions_max = 8_000;
        limits.flows_max = 4_000;
        limits.subscribers_max = 400;
        limits.external_addresses_max = 60;
    })
}

fn shape(name: &'static str, third: u8, subscribers: Prefix, random: &mut SmallRng) -> PoolShape {
    let modes = [Mode::Ports, Mode::Ports, Mode::Blocks(64), Mode::Blocks(128), Mode::Deterministic];
    let mode = modes[random.random_range(0..modes.len())];
    let spans = match mode {
        Mode::Blocks(_) => 200..700,
        Mode::Deterministic => 700..2_000,
        Mode::Ports | Mode::OneToOne => 4..40,
    };
    PoolShape { name, third, subscribers, mode, spans }
}

fn limits(penalty: PoolId, random: &mut SmallRng) -> SubscriberLimits {
    let few = random_limits(random);
    let rate = |random: &mut SmallRng| {
        let rate = Rate { per_second: random.random_range(1..4), burst: random.random_range(1..7) };
        random.random_ratio(1, 4).then_some(rate)
    };
    SubscriberLimits {
        sessions_max: if random.random_ratio(1, 4) { random.random_range(2..20) } else { few.sessions_max },
        memory_max: if random.random_ratio(1, 4) { random.random_range(100..1_500) } else { u64::MAX },
        new_mappings: rate(random),
        new_sessions: rate(random),
        penalty: random.random_ratio(1, 3).then(|| Penalty {
            pool: penalty,
            refusals: random.random_range(2..12),
            window: Duration::from_secs(random.random_range(5..60)),
            release: Duration::from_secs(random.random_range(5..90)),
        }),
        ..few
    }
}

fn random_match(stand_ins: &[StandIn], random: &mut SmallRng) -> Match {
    let protocol = Protocol::ALL[random.random_range(0..3)];
    let port = PORTS[random.random_range(0..PORTS.len())];
    Match {
        protocol: random.random::<bool>().then(|| protocol.number()),
        source: match random.random_range(0..4) {
            0 => topology::prefix([100, 64, 1, random.random_range(0..8) * 8], 29),
            1 => stand_ins.choose(random).map_or(Prefix::HOSTS, |one| one.block),
            _ => Prefix::ALL,
        },
        destination_ports: if random.random_ratio(3, 4) { PortRange::one(port) } else { PortRange::ALL },
        ..Match::ALL
    }
}

fn random_rules(settings: &mut Settings, random: &mut SmallRng) {
    for _ in 0..random.random_range(0..4) {
        let pool = random.random::<bool>().then(|| PoolId(random.random_range(0..3)));
        let mapping = [MappingKind::EndpointIndependent, MappingKind::EndpointDependent][random.random_range(0..2)];
        let action = match random.random_range(0..5) {
            0 => RuleAction::Drop,
            _ => RuleAction::Translate { pool, mapping },
        };
        settings.rules.push(Rule { matches: random_match(&settings.transition.stand_ins, random), action });
    }
    if random.random() {
        let weight = |random: &mut SmallRng| random.random_range(1..5);
        let target = |address: &Ipv4Addr, weight| Target { address: address.to_bits(), port: Some(7_000), weight };
        let targets = TARGETS[..random.random_range(1..4)].iter().map(|one| target(one, weight(random))).collect();
        settings.redirections.push(Redirection::Targets(targets));
        let matches = Match { destination: Prefix::new(SERVICE, 32).expect("a length"), ..Match::ALL };
        settings.rules.insert(0, Rule { matches, action: RuleAction::Redirect(RedirectionId(0)) });
    }
}

fn random_filters(settings: &mut Settings, random: &mut SmallRng) {
    for _ in 0..random.random_range(0..4) {
        let action = [FilterAction::Deny, FilterAction::Permit][random.random_range(0..2)];
        let (out, back) = [(true, true), (true, false), (false, true)][random.random_range(0..3)];
        let matches = random_match(&settings.transition.stand_ins, random);
        settings.filters.push(FilterRule { matches, action, out, back, log: random.random() });
    }
}

fn random_forwards(settings: &mut Settings, random: &mut SmallRng) {
    let protocol = |random: &mut SmallRng| [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
    let admission = |random: &mut SmallRng| [Admission::Anyone, Admission::AsPool][random.random_range(0..2)];
    let pools: Vec<Pool> = settings.pools.iter().filter(|pool| pool.name != "penalty").cloned().collect();
    // Ports of the pool's own range among them.
    let port = |pool: &Pool, random: &mut SmallRng| pool.port_min + random.random_range(0..60);
    if random.random() {
        let first = port(&pools[0], random);
        settings.forwards.push(Forward {
            realm: RealmId::default(),
            protocol: protocol(random),
            external: *pools[0].addresses.choose(random).expect("it has some"),
            ports: (first, first + random.random_range(0..3)),
            inside: inside_host(any_host(random.random_range(40..44))),
            inside_port: random.random_range(2_000..2_004),
            admission: admission(random),
        });
    }
    if random.random() {
        let first = port(&pools[1], random);
        let target = |number: u8, random: &mut SmallRng| Target {
            address: host(44 + number).to_bits(),
            port: Some(2_000),
            weight: random.random_range(1..4),
        };
        settings.balanced_forwards.push(BalancedForward {
            realm: RealmId::default(),
            protocol: protocol(random),
            external: *pools[1].addresses.choose(random).expect("it has some"),
            ports: (first, first),
            targets: (0..random.random_range(1..4)).map(|number| target(number, random)).collect(),
            admission: admission(random),
            is_sticky: random.random(),
        });
    }
}

fn random_services(settings: &mut Settings, random: &mut SmallRng) {
    let gateways = (0..alg::ALGS.len() as u8).filter(|_| random.random());
    settings.gateways = gateways.map(|id| Gateway::new(alg::AlgId(id))).collect();
    (settings.port_control.pcp, settings.port_control.nat_pmp) = (random.random(), random.random());
    settings.port_control.mappings_per_subscriber = random.random_range(1..8);
}

fn random_timers(settings: &mut Settings, random: &mut SmallRng) {
    let seconds = |random: &mut SmallRng, low: u64, high: u64| Duration::from_secs(random.random_range(low..high));
    settings.timeouts.udp = seconds(random, 180, 300);
    settings.timeouts.udp_unanswered = seconds(random, 120, 180);
    settings.timeouts.icmp = seconds(random, 60, 120);
    settings.timeouts.tcp_opening = seconds(random, 240, 300);
    settings.timeouts.tcp_established = seconds(random, 300, 600);
    settings.timeouts.tcp_closing = seconds(random, 240, 300);
    settings.timeouts.adapt_above_percent = random.random::<bool>().then(|| random.random_range(30..95));
    settings.port_timeouts.clear();
    if random.random() {
        let idle = seconds(random, 60, 200);
        settings.port_timeouts.push(PortTimeout { protocol: Protocol::Udp, ports: 443..=443, idle });
    }
    settings.inbound_refresh = random.random();
    settings.answer_unsolicited_syn = random.random();
}

fn random_classes(settings: &mut Settings, random: &mut SmallRng) {
    let penalty = settings.pools.iter().position(|pool| pool.name == "penalty").expect("there is one");
    let penalty = PoolId(penalty as u16);
    settings.subscriber = limits(penalty, random);
    settings.classes.clear();
    for number in 0..random.random_range(0..4_u8) {
        settings.classes.push(Class {
            name: format!("class {number}"),
            subscribers: {
                let some = settings.transition.stand_ins.iter().skip(usize::from(number)).step_by(4);
                let blocks = some.map(|one| one.block);
                blocks.chain([topology::prefix([100, 64, 1, number * 8 + 8], 29)]).collect()
            },
            realms: Vec::new(),
            limits: limits(penalty, random),
            gateways: None,
        });
    }
}

fn random_policy(random: &mut SmallRng) -> Settings {
    let mut settings = roomy();
    settings.transition.stand_ins = random_stand_ins(random);
    let mut penalty =
        random_pool(&PoolShape { mode: Mode::Ports, ..shape("penalty", 115, Prefix::ALL, random) }, random);
    penalty.subscribers = Vec::new();
    let (everybody, few) = (topology::prefix([100, 64, 1, 0], 26), topology::prefix([100, 64, 1, 16], 28));
    let (east, mut west) = (shape("east", 113, everybody, random), shape("west", 114, few, random));
    // A formula has no place for IPv6 hosts.
    while east.mode == Mode::Deterministic && west.mode == Mode::Deterministic {
        west = shape("west", 114, few, random);
    }
    settings.pools = vec![random_pool(&east, random), random_pool(&west, random), penalty];
    serve_families(&mut settings.pools, random);
    // Numbers of pools mean something else from now on.
    settings.pools.shuffle(random);
    random_classes(&mut settings, random);
    random_rules(&mut settings, random);
    random_filters(&mut settings, random);
    random_forwards(&mut settings, random);
    random_timers(&mut settings, random);
    random_services(&mut settings, random);
    settings.events.block_mappings = random.random();
    random_draining(&mut settings, random);
    settings
}

/// One pool without a formula serves all IPv6 hosts.
fn serve_families(pools: &mut [Pool], random: &mut SmallRng) {
    let can = |pool: &Pool| pool.name != "penalty" && !matches!(pool.allocation, Allocation::Deterministic { .. });
    let mut able: Vec<&mut Pool> = pools.iter_mut().filter(|pool| can(pool)).collect();
    able.shuffle(random);
    if let Some(pool) = able.first_mut() {
        pool.subscribers.push(Prefix::HOSTS);
    }
}

fn random_draining(settings: &mut Settings, random: &mut SmallRng) {
    settings.reload.removed = if random.random_ratio(1, 5) { Removed::End } else { Removed::Drain };
    settings.reload.drain_time = random.random_ratio(1, 3).then(|| Duration::from_secs(random.random_range(5..200)));
}

/// One thing of it is another than before.
fn tweaked(before: &Settings, random: &mut SmallRng) -> Settings {
    let mut next = before.clone();
    match random.random_range(0..8) {
        6 => random_services(&mut next, random),
        0 => random_timers(&mut next, random),
        1 => random_classes(&mut next, random),
        2 => {
            next.filters.clear();
            random_filters(&mut next, random);
        }
        3 => {
            (next.rules, next.redirections) = (Vec::new(), Vec::new());
            random_rules(&mut next, random);
        }
        4 => {
            (next.forwards, next.balanced_forwards) = (Vec::new(), Vec::new());
            random_forwards(&mut next, random);
        }
        5 => random_draining(&mut next, random),
        _ => {
            let pool = next.pools.choose_mut(random).expect("there are three");
            pool.port_max = pool.port_max.saturating_add(random.random_range(0..20));
            pool.draining = !pool.draining && random.random();
            pool.filtering.rotate_left(1);
        }
    }
    next
}

/// An impossible change: more addresses than there is room for, or a formula that does not work
/// out.
fn impossible(before: &Settings, random: &mut SmallRng) -> Settings {
    let mut next = before.clone();
    let pool = next.pools.iter_mut().find(|pool| pool.name == "east").expect("there is one");
    if random.random() {
        pool.addresses.extend((0..80).map(|host| Ipv4Addr::new(203, 0, 116, host)));
    } else {
        let overflow = random_pools::random_blocks(64, random);
        pool.allocation = Allocation::Deterministic { dynamic_slices: 60_000, overflow };
        pool.pooling = Pooling::Paired;
    }
    next
}

trait ChooseMut<T> {
    fn choose_mut(&mut self, random: &mut SmallRng) -> Option<&mut T>;
}

impl<T> ChooseMut<T> for Vec<T> {
    fn choose_mut(&mut self, random: &mut SmallRng) -> Option<&mut T> {
        let at = random.random_range(0..self.len().max(1));
        self.get_mut(at)
    }
}

/// A packet from inside that is on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    key: TalkKey,
    /// The talk as it was.
    talk: Option<Talk>,
    /// It may open something.
    opens: bool,
    resets: bool,
    /// The internal endpoint may have had a mapping.
    was_mapped: bool,
}

/// Why a packet from inside may not have come out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Denied,
    Rule,
    NoSession,
    Refused,
}

/// A packet from outside.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// The remote end of a talk says something.
    Reply(TalkKey),
    /// Somebody who may be a stranger.
    Stranger { protocol: Protocol, remote: SocketAddrV4, external: SocketAddrV4 },
}

/// Whether a rule would send what answers somebody elsewhere, or from elsewhere.
fn leads_away(settings: &Settings, key: &TalkKey) -> bool {
    let action = rule_for(settings, &key.rule_key()).map(|rule| rule.action);
    matches!(action, Some(RuleAction::Redirect(_) | RuleAction::NoTranslation))
}

/// At least and at most so many.
#[derive(Clone, Copy, Debug, Default)]
struct Between {
    least: u64,
    most: u64,
}

impl Between {
    fn holds(self, count: u64) -> bool {
        (self.least..=self.most).contains(&count)
    }
}

/// Ports that flows share, by the subscriber they count for.
type SharedPortCounts = HashMap<(Ipv4Addr, Protocol), u32>;

/// What a burst brought to light.
struct Seen {
    events: Vec<Event>,
    booked: HashMap<ExternalEndpoint, Holder>,
    flows: HashMap<FlowEndpoint, Holder>,
    /// Packets by verdict.
    verdicts: Counters,
    offenders_before: BTreeSet<Ipv4Addr>,
    /// Who opened a port for flows to share.
    opened: BTreeSet<(Ipv4Addr, Protocol)>,
    /// The most of such ports that counted for anybody meanwhile.
    opened_at_most: SharedPortCounts,
}

impl Seen {
    /// For people.
    fn text(&self) -> String {
        let given = Verdict::ALL.iter().filter(|verdict| self.verdicts.of(**verdict) > 0);
        let verdicts: Vec<_> = given.map(|verdict| (verdict.name(), self.verdicts.of(*verdict))).collect();
        format!("{verdicts:?}, {:?}", self.events)
    }
}

struct World {
    random: SmallRng,
    workers: usize,
    account: Account,
    openers: Openers,
    ledger: Ledger,
    counted: Counters,
    /// The settings in use: two during a change.
    in_force: Vec<Settings>,
    /// Those before the last change.
    before: Option<Settings>,
    /// External endpoints that led to several targets at some time. They rest after the last
    /// session before they are given out again, and till then nobody has them.
    led_to_several: HashSet<(Protocol, SocketAddrV4)>,
    /// Talks that the plan of the present change says it keeps, all of them or none.
    kept: BTreeSet<TalkKey>,
    /// Each with the pool it was sent to.
    offenders: BTreeMap<Ipv4Addr, PoolName>,
    offences: HashMap<Ipv4Addr, VecDeque<(Instant, u64)>>,
    serial: u32,
    /// A host has asked for ports. What it was refused is an event without a packet.
    has_asked: bool,
    tally: BTreeMap<&'static str, u64>,
}

/// The number that a packet carries.
fn serial_of(packet: &[u8]) -> Option<u32> {
    let bytes = payload(packet).get(..4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn without_port(protocol: Protocol, endpoint: SocketAddrV4) -> SocketAddrV4 {
    if protocol == Protocol::Icmp { at(*endpoint.ip(), 0) } else { endpoint }
}

fn endpoint_of(protocol: Protocol, external: SocketAddrV4) -> ExternalEndpoint {
    (*external.ip(), protocol, external.port())
}

fn is_his(holder: &Holder, internal: SocketAddrV4) -> bool {
    (holder.subscriber, holder.port) == (*internal.ip(), internal.port())
}

fn is_error(packet: &[u8]) -> bool {
    (0..=13).any(|code| is_icmp(packet, 3, code))
}

/// An answer, an announcement or an update, which comes unasked.
fn is_of_port_control(packet: &[u8]) -> bool {
    !is_error(packet) && packet[9] == Protocol::Udp.number() && source(packet) == at(OWN_INSIDE, pcp::SERVER_PORT)
}

/// What Natrix sends inside by itself.
fn is_unasked(packet: &[u8]) -> bool {
    is_of_port_control(packet) || is_probe(packet)
}

impl World {
    fn count(&mut self, what: &'static str, amount: u64) {
        *self.tally.entry(what).or_default() += amount;
    }

    /// What was made in the midst of a change may be what it ends.
    fn follow(&mut self) {
        if let [before, next] = &self.in_force[..] {
            self.account.follow(before, next, &self.kept);
        }
    }

    /// Reads what the events and counters say since the last time.
    fn look(&mut self, bed: &mut Bed) -> Seen {
        let offenders_before = self.offenders.keys().copied().collect();
        bed.finish_events();
        let reported = bed.take_events_in_order();
        for worker in 0..self.workers {
            let of_worker: Vec<Event> =
                reported.iter().filter(|(of, _)| *of == worker).map(|(_, event)| *event).collect();
            self.ledger.read(worker, &of_worker);
        }
        let events: Vec<Event> = reported.into_iter().map(|(_, event)| event).collect();
        for event in &events {
            let Cause::Verdict(cause) = event.cause else { continue };
            if event.kind == EventKind::Refused && OFFENCES.contains(&cause) {
                let offences = self.offences.entry(event.subscriber).or_default();
                offences.push_back((bed.now(), u64::from(event.amount)));
            }
        }
        for event in &events {
            match event.kind {
                EventKind::PenaltyBegun => {
                    self.offenders.insert(event.subscriber, event.pool);
                    self.check_penalty(bed, event);
                }
                EventKind::PenaltyEnded => {
                    let begun = self.offenders.remove(&event.subscriber);
                    assert_eq!(begun, Some(event.pool), "a penalty ends where it began: {event:?}");
                }
                _ => {}
            }
        }
        let counters = bed.counters();
        let mut verdicts = counters.clone();
        for (since, before) in verdicts.verdicts.iter_mut().zip(&self.counted.verdicts) {
            *since -= before;
        }
        self.counted = counters;
        self.check_ends(&events);
        let (opened, opened_at_most) = self.follow_shared_ports(&events);
        let (booked, flows) = (self.ledger.at(bed.now()), self.ledger.flows_at(bed.now()));
        let seen = Seen { events, booked, flows, verdicts, offenders_before, opened, opened_at_most };
        self.check_counts(&seen);
        seen
    }

    /// Who opened ports for flows to share, and the most that counted for anybody meanwhile.
    fn follow_shared_ports(&mut self, events: &[Event]) -> (BTreeSet<(Ipv4Addr, Protocol)>, SharedPortCounts) {
        let (mut opened, mut most) = (BTreeSet::new(), SharedPortCounts::new());
        for whose in self.openers.all() {
            *most.entry(whose).or_default() += 1;
        }
        for event in events {
            let Some(protocol) = event.protocol else { continue };
            let external = at(event.external, event.first_port);
            let flow = (at(event.subscriber, event.internal_port), at(event.remote, event.remote_port));
            if event.kind == EventKind::FlowEnded {
                self.openers.end(protocol, external, flow);
            }
            // What comes in by a forward shares no port of a pool.
            let begins = event.kind == EventKind::FlowCreated && event.cause == Cause::Outbound;
            if begins && self.openers.begin(protocol, external, flow) {
                let whose = (event.subscriber, protocol);
                opened.insert(whose);
                let count = self.openers.of(event.subscriber, protocol);
                most.entry(whose).and_modify(|most| *most = count.max(*most)).or_insert(count);
            }
        }
        (opened, most)
    }

    /// Each refusal is reported as often as it is counted, and no packet met another fate.
    fn check_counts(&self, seen: &Seen) {
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
    fn check_ends(&self, events: &[Event]) {
        let key =
            |event: &Event| (event.protocol, event.subscriber, event.internal_port, event.external, event.first_port);
        let mut made = HashSet::new();
        for event in events.iter().filter(|_| self.in_force.len() == 1) {
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
                        self.in_force[0].reload,
                        (&self.in_force[0].forwards, &self.in_force[0].balanced_forwards),
                        self.before.as_ref().map(|s| (&s.forwards, &s.balanced_forwards))
                    );
                }
                _ => {}
            }
        }
    }

    fn check_penalty(&self, bed: &Bed, event: &Event) {
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
        assert!(self.in_force.iter().any(is_due), "a penalty that is not due: {event:?}");
    }

    /// Forgets what the events say is over.
    fn close(&mut self, seen: &Seen) {
        for event in &seen.events {
            let Some(protocol) = event.protocol else { continue };
            let internal = at(event.subscriber, event.internal_port);
            let external = at(event.external, event.first_port);
            let endpoint = endpoint_of(protocol, external);
            match event.kind {
                EventKind::MappingEnded | EventKind::StaticEnded => {
                    let has_it_again = seen.booked.get(&endpoint).is_some_and(|holder| is_his(holder, internal));
                    if !has_it_again {
                        self.account.ended(protocol, internal, external);
                    }
                }
                EventKind::FlowEnded => {
                    let far = (event.remote, event.remote_port);
                    let has_it_again = seen.flows.get(&(endpoint, far)).is_some_and(|holder| is_his(holder, internal));
                    if !has_it_again {
                        self.account.flow_ended(protocol, internal, (external, at(far.0, far.1)));
                    }
                }
                _ => {}
            }
        }
    }

    /// The next packet of a talk, or its first.
    fn packet_out(&mut self, now: Instant, key: &TalkKey) -> (Sent, Vec<u8>) {
        self.serial += 1;
        let label = self.serial.to_be_bytes();
        let talk = self.account.talks.get(key).copied();
        let was_mapped = self.account.may_have_mapping(now, key.protocol, key.internal);
        let sent = Sent { key: *key, talk, opens: true, resets: false, was_mapped };
        let (from, to) = (key.internal, key.near);
        match key.protocol {
            Protocol::Udp => (sent, build::udp(from, to).payload(&label).build()),
            Protocol::Icmp => (sent, build::echo_request(*from.ip(), *to.ip(), from.port()).payload(&label).build()),
            Protocol::Tcp => {
                let stage = talk.map_or(Stage::Reset, |talk| talk.stage);
                let answers = talk.is_some_and(|talk| talk.is_inbound);
                let resets = stage == Stage::Established && self.random.random_ratio(1, 12);
                let (flags, sequence) = match stage {
                    _ if resets => (Flags::RST, 1_005),
                    Stage::Established => (Flags::ACK, 1_005),
                    Stage::Opened if answers => (SYN_ACK, 1_000),
                    Stage::Opened | Stage::Reset => (Flags::SYN, 1_000),
                };
                let opens = flags == Flags::SYN;
                let segment =
                    build::tcp(from, to, flags).sequence(sequence).acknowledgment(if opens { 0 } else { 5_005 });
                (Sent { opens, resets, ..sent }, segment.payload(&label).build())
            }
        }
    }

    /// Packets from inside, one of each talk, in one burst or several. Returns the talks whose
    /// packet came out.
    fn outbound(&mut self, bed: &mut Bed, keys: &[TalkKey]) -> Vec<TalkKey> {
        let now = bed.now();
        self.account.forget(now);
        let mut sent: BTreeMap<u32, Sent> = BTreeMap::new();
        for key in keys {
            let (one, packet) = self.packet_out(now, key);
            sent.insert(self.serial, one);
            bed.offer(Side::Inside, &packet);
            if self.random.random_ratio(1, 8) {
                bed.settle();
            }
        }
        bed.settle();
        let came_out: Vec<_> = bed.take_outside().into_iter().filter(|packet| !is_error(packet)).collect();
        let mut reported = bed.take_inside();
        reported.retain(|packet| !is_unasked(packet));
        assert!(reported.iter().all(|packet| is_error(packet)), "only errors go back");
        let seen = self.look(bed);

        let mut passed = Vec::new();
        let mut new = New::default();
        for packet in &came_out {
            let one =
                serial_of(packet).and_then(|serial| sent.remove(&serial)).expect("it was sent, and came out once");
            let external = source(packet);
            let far = without_port(one.key.protocol, destination(packet));
            self.check_out(bed, &seen, &one, external, far);
            // The rule for the packet that made the mapping counts, and those that found it go
            // where it is.
            if self.enter(now, &one, (external, far), &mut new) {
                self.check_place(&seen, &one, external);
            }
            passed.push(one.key);
        }
        self.check_reasons(now, &seen, sent.values());
        self.check_causes(bed, &seen);
        self.close(&seen);
        self.follow();
        self.check_limits(now, &new, &seen);
        self.count("passed out", passed.len() as u64);
        self.count("new mappings", new.mappings.len() as u64);
        self.count("new flows", new.flows);
        self.count("opened shared ports", seen.opened.len() as u64);
        passed
    }

    /// A packet that came out came from where it had to.
    fn check_out(&self, bed: &Bed, seen: &Seen, one: &Sent, external: SocketAddrV4, far: SocketAddrV4) {
        let Sent { key, talk, .. } = one;
        let now = bed.now();
        assert!(self.in_force.iter().any(|settings| permits(settings, &key.rule_key(), true)), "denied: {key:?}");
        if let Some(talk) = talk.filter(|talk| talk.is_sure(now)) {
            assert_eq!((external, far), (talk.external, talk.far), "it goes on as it was: {key:?} {talk:?}");
        }
        let endpoint = endpoint_of(key.protocol, external);
        let is_flow = self.ledger.had_flow(&(endpoint, (*far.ip(), far.port())), key.internal, now);
        for (other, theirs) in self.account.talks.iter().filter(|(_, theirs)| theirs.is_sure(now)) {
            if other == key || (other.protocol, theirs.external) != (key.protocol, external) {
                continue;
            }
            // Who had the port before the targets goes on beside their sessions, also when both
            // drain, changes later.
            let is_now = || self.in_force.iter().any(|settings| is_balanced(settings, external));
            let is_taken = theirs.was_balanced || is_now();
            assert!(
                is_flow == theirs.is_flow || is_taken,
                "one has the port, the other shares it: {key:?}, {other:?} {theirs:?}"
            );
            let is_other = other.internal != key.internal;
            assert!(
                !is_other || (is_flow || is_taken) && theirs.far != far,
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
            (None, None) if self.in_force.len() > 1 => true,
            (None, None) => {
                let place = bed.shared().address_index(*external.ip()).expect("an address of a pool");
                bed.shared().slice_owner(place, external.port()) == Some(Owner::Subscriber(*key.internal.ip()))
            }
        };
        assert!(whose, "the records say otherwise of {external}, {key:?}: {:?} {block:?}", seen.booked.get(&endpoint));
    }

    /// Enters a packet that came out into the account. Whether it made a mapping for certain.
    fn enter(&mut self, now: Instant, one: &Sent, ends: (SocketAddrV4, SocketAddrV4), new: &mut New) -> bool {
        let (key, (external, far)) = (one.key, ends);
        let flow = (endpoint_of(key.protocol, external), (*far.ip(), far.port()));
        let is_flow = self.ledger.had_flow(&flow, key.internal, now);
        self.account.passed_out(now, key, ends);
        let talk = self.account.talks.get_mut(&key).expect("it was entered");
        talk.is_flow = is_flow;
        if let Some(before) = one.talk.filter(|_| one.resets) {
            // One that was idle for long, or reset before, has no more time by this (RFC 7857
            // §7.1).
            talk.sure_until = talk.sure_until.min(before.sure_until);
        }
        talk.stage = match talk.stage {
            _ if one.resets => Stage::Reset,
            Stage::Opened if !one.opens => Stage::Established,
            Stage::Reset => Stage::Opened,
            other => other,
        };
        let was_there = one.talk.is_some_and(|talk| talk.is_possible(now));
        let is_new_mapping = !is_flow && !one.was_mapped && new.mappings.insert((key.protocol, key.internal));
        let is_new_flow = is_flow && !was_there;
        new.flows += u64::from(is_new_flow);
        if !was_there {
            new.sessions.insert(*key.internal.ip());
        }
        if is_new_mapping || is_new_flow {
            let rate = match &self.in_force[..] {
                [settings] => limits_of(settings, *key.internal.ip()).new_mappings,
                _ => None,
            };
            self.account.made_one(now, *key.internal.ip(), rate);
        }
        is_new_mapping
    }

    /// What is certainly new is where the settings in use put it.
    fn check_place(&self, seen: &Seen, one: &Sent, external: SocketAddrV4) {
        let key = &one.key;
        let subscriber = *key.internal.ip();
        let was_there = one.talk.is_some() || one.was_mapped;
        let was_offender = seen.offenders_before.contains(&subscriber);
        let [settings] = &self.in_force[..] else { return };
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
    fn check_reasons<'s>(&mut self, now: Instant, seen: &Seen, lost: impl Iterator<Item = &'s Sent>) {
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
            let reasons: BTreeSet<Reason> = self.in_force.iter().map(reason).collect();
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
    fn check_causes(&mut self, bed: &Bed, seen: &Seen) {
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
                self.in_force.iter().any(is_right),
                "the cause is wrong: {event:?}; {most:?} {:?}; {}",
                limits_of(&self.in_force[0], event.subscriber),
                seen.text()
            );
            self.count(cause.name(), u64::from(event.amount));
        }
    }

    /// Whether a pool may have had no port for a subscriber that was refused one: where single
    /// ports are given out, a port unused for long is certainly free.
    fn may_be_exhausted(&self, bed: &Bed, settings: &Settings, event: &Event, protocol: Protocol) -> bool {
        let [_] = &self.in_force[..] else { return true };
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
    fn check_limits(&self, now: Instant, new: &New, seen: &Seen) {
        let most = |subscriber, of: &dyn Fn(&SubscriberLimits) -> u64| {
            self.in_force.iter().map(|settings| of(limits_of(settings, subscriber))).max().unwrap_or(0)
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

    /// Packets from outside.
    fn inbound(&mut self, bed: &mut Bed, probes: &[Probe]) {
        let now = bed.now();
        let mut sent: BTreeMap<u32, Probe> = BTreeMap::new();
        for probe in probes {
            let (protocol, remote, external, stage) = match *probe {
                Probe::Reply(key) => {
                    let Some(talk) = self.account.talks.get(&key) else { continue };
                    (key.protocol, talk.far, talk.external, talk.stage)
                }
                Probe::Stranger { protocol, remote, external } => (protocol, remote, external, Stage::Reset),
            };
            self.serial += 1;
            let label = self.serial.to_be_bytes();
            let packet = match (protocol, stage) {
                (Protocol::Udp, _) => build::udp(remote, external),
                (Protocol::Icmp, _) => build::echo_reply(*remote.ip(), *external.ip(), external.port()),
                (Protocol::Tcp, Stage::Opened) => {
                    build::tcp(remote, external, SYN_ACK).sequence(5_000).acknowledgment(1_005)
                }
                (Protocol::Tcp, Stage::Established) => {
                    build::tcp(remote, external, Flags::ACK).sequence(5_005).acknowledgment(1_009)
                }
                (Protocol::Tcp, Stage::Reset) => build::tcp(remote, external, Flags::SYN).sequence(5_000),
            };
            sent.insert(self.serial, *probe);
            bed.offer(Side::Outside, &packet.payload(&label).build());
        }
        bed.settle();
        let mut came_in = bed.take_inside();
        came_in.retain(|packet| !is_unasked(packet));
        let reported = bed.take_outside();
        assert!(reported.iter().all(|packet| is_error(packet)), "only errors go back");
        let seen = self.look(bed);
        for packet in &came_in {
            let probe =
                serial_of(packet).and_then(|serial| sent.remove(&serial)).expect("it was sent, and came in once");
            self.check_in(now, &probe, destination(packet), source(packet));
        }
        for probe in sent.values() {
            let Probe::Reply(key) = probe else { continue };
            let talk = &self.account.talks[key];
            let is_permitted = self.in_force.iter().all(|settings| permits(settings, &key.rule_key(), false));
            // What is on an address that is only just added is answered once all workers know it.
            let is_known = self.in_force[0].pools.iter().any(|pool| pool.addresses.contains(talk.external.ip()));
            let was_lost = talk.is_sure(now) && is_permitted && (is_known || self.in_force.len() == 1);
            assert!(!was_lost, "an answer was lost: {key:?} {talk:?}; {}", seen.text());
        }
        let refused = REFUSALS.iter().map(|verdict| seen.verdicts.of(*verdict)).sum::<u64>();
        assert!(refused <= sent.len() as u64, "{refused} refused");
        self.check_causes(bed, &seen);
        self.close(&seen);
        self.follow();
        self.count("passed in", came_in.len() as u64);
    }

    /// A packet that came in reached the right host.
    fn check_in(&mut self, now: Instant, probe: &Probe, internal: SocketAddrV4, remote: SocketAddrV4) {
        let (protocol, external, key) = match *probe {
            Probe::Reply(key) => {
                assert_eq!(internal, key.internal, "an answer to {key:?} reached somebody else");
                assert_eq!(without_port(key.protocol, remote), key.near, "an answer to {key:?}");
                self.account.passed_in(now, &key);
                let is_permitted = |settings: &Settings| permits(settings, &key.rule_key(), false);
                assert!(self.in_force.iter().any(is_permitted), "denied: {key:?}");
                return;
            }
            Probe::Stranger { protocol, remote: from, external } => {
                assert_eq!(remote, from, "the source stays");
                (protocol, external, TalkKey { protocol, internal, near: remote })
            }
        };
        let is_permitted = |settings: &Settings| permits(settings, &key.rule_key(), false);
        assert!(self.in_force.iter().any(is_permitted), "denied: {key:?}");
        let is_there = |(of, talk): (&TalkKey, &Talk)| (of.protocol, talk.external) == (protocol, external);
        let owners: Vec<(SocketAddrV4, bool)> = self
            .account
            .talks
            .iter()
            .filter(|one| is_there(*one))
            .map(|(of, talk)| (of.internal, talk.is_sure(now) && !talk.is_flow))
            .collect();
        // Targets take a port over while earlier owners go on with their remote hosts.
        let is_taken = self.in_force.iter().any(|settings| is_balanced(settings, external));
        if let Some((owner, _)) = owners.iter().find(|(_, is_sure)| *is_sure && !is_taken) {
            assert_eq!(internal, *owner, "{external} of {protocol:?} has two owners");
        }
        let is_forwarded =
            self.in_force.iter().any(|settings| leads_to(settings, protocol, external).contains(&internal));
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
            || protocol == Protocol::Udp && self.in_force.iter().any(|settings| leads_away(settings, &key))
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

    /// A host asks for a port, or has a gateway ask. Then somebody comes to the port.
    fn ask(&mut self, bed: &mut Bed) {
        let random = &mut self.random;
        let inside = at(host(random.random_range(ASKERS)), random.random_range(3_000..3_006));
        let remote = at(E1, random.random_range(4_000..4_200));
        let protocol = [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
        self.has_asked = true;
        let resets = random.random_range(0..4) > 0;
        // A client uses no port twice.
        self.serial += 1;
        let client = at(*inside.ip(), 10_000 + (self.serial % 50_000) as u16);
        let granted = match random.random_range(0..7) {
            0..2 => {
                let lifetime = [0, 120, 600, 600][random.random_range(0..4)];
                bed.inside(&Ask::map(*inside.ip(), protocol, inside.port()).lifetime(lifetime).packet());
                let reply = bed.take_inside().into_iter().find(|packet| is_of_port_control(packet));
                // NAT-PMP alone answers with another version.
                let told = reply.filter(|reply| payload(reply)[0] == 2).map(|reply| Told::of(payload(&reply)));
                let is_granted = |told: &Told| told.code == 0 && lifetime > 0;
                told.filter(is_granted).map(|told| (protocol, inside, told.external))
            }
            2 => {
                bed.inside(&build::udp(inside, at(E1, 69)).payload(b"\0\x01film\0octet\0").build());
                let sent = bed.take_outside().into_iter().find(|packet| !is_error(packet));
                sent.map(|packet| (Protocol::Udp, inside, source(&packet)))
            }
            3 => {
                control_sessions::ftp(bed, client, inside.port(), resets).inspect(|_| self.count("announced by ftp", 1))
            }
            4 => control_sessions::rtsp(bed, client, 5_010, resets).inspect(|_| self.count("announced by rtsp", 1)),
            5 => {
                if let Some(found) = control_sessions::pptp(bed, client, 7, resets) {
                    assert_eq!(found, (*inside.ip(), 7), "a call leads to somebody else");
                    self.count("called by pptp", 1);
                }
                None
            }
            _ => {
                let phone = at(*inside.ip(), 5_060);
                let invite = crate::gateways::INVITE.replace("100.64.0.10", &inside.ip().to_string());
                bed.inside(&build::udp(phone, at(E1, 5_060)).payload(invite.as_bytes()).build());
                let sent = bed.take_outside().into_iter().find(|packet| !is_error(packet));
                sent.and_then(|packet| {
                    let text = String::from_utf8_lossy(payload(&packet)).into_owned();
                    let word = |before: &str| text.split(before).nth(1)?.split_ascii_whitespace().next();
                    let media: u16 = word("m=audio ")?.parse().ok()?;
                    let external = at(word("c=IN IP4 ")?.parse().ok()?, media);
                    // Nothing was asked for without the gateway.
                    (media != 5_004).then_some((Protocol::Udp, at(*inside.ip(), 5_004), external))
                })
            }
        };
        bed.take_inside();
        if let Some((protocol, inside, external)) = granted {
            self.count("granted", 1);
            bed.outside(&match protocol {
                Protocol::Tcp => build::tcp(remote, external, Flags::SYN).sequence(1).build(),
                _ => build::udp(remote, external).build(),
            });
            for packet in bed.take_inside().iter().filter(|packet| !is_error(packet) && !is_unasked(packet)) {
                assert_eq!(destination(packet), inside, "{external} leads to somebody else");
                self.count("reached", 1);
            }
        }
        bed.take_outside();
        let seen = self.look(bed);
        self.close(&seen);
        self.has_asked = false;
    }

    fn new_key(&mut self) -> TalkKey {
        let random = &mut self.random;
        let protocol = Protocol::ALL[random.random_range(0..3)];
        let number = if random.random_ratio(1, 8) { random.random_range(40..47) } else { random.random_range(8..32) };
        let internal = at(any_host(number), random.random_range(2_000..2_012));
        let near = match random.random_range(0..5) {
            0 => at(SERVICE, 80),
            1 => at(E1, 5_000),
            _ => at(Ipv4Addr::new(198, 51, 100, random.random_range(1..9)), PORTS[random.random_range(0..PORTS.len())]),
        };
        TalkKey { protocol, internal, near: without_port(protocol, near) }
    }

    /// A burst each way: so many of the talks there are, and so many new ones.
    fn traffic(&mut self, bed: &mut Bed, known: usize, fresh: usize) {
        let mut keys: Vec<TalkKey> = self.account.talks.keys().copied().collect();
        keys.shuffle(&mut self.random);
        keys.truncate(known);
        // Some subscriber wants many at once now and then.
        let greedy = self.random.random_ratio(1, 6).then(|| any_host(self.random.random_range(8..32)));
        for number in 0..if greedy.is_some() { fresh * 4 } else { fresh } {
            let mut key = self.new_key();
            if let Some(subscriber) = greedy {
                key.internal = at(subscriber, 2_000 + number as u16 % 40);
            }
            keys.push(key);
        }
        keys.sort();
        keys.dedup();
        keys.shuffle(&mut self.random);
        let passed = self.outbound(bed, &keys);
        let mut probes: Vec<Probe> = passed.iter().copied().map(Probe::Reply).collect();
        for _ in 0..known / 4 {
            let remote = at(Ipv4Addr::new(198, 51, 101, self.random.random_range(1..9)), 443);
            let Some(key) = keys.choose(&mut self.random) else { continue };
            let Some(talk) = self.account.talks.get(key).filter(|_| key.protocol == Protocol::Udp) else { continue };
            probes.push(Probe::Stranger { protocol: Protocol::Udp, remote, external: talk.external });
        }
        let settings = self.in_force[0].clone();
        let single = settings.forwards.iter().map(|one| (one.protocol, one.external, one.ports));
        let balanced = settings.balanced_forwards.iter().map(|one| (one.protocol, one.external, one.ports));
        for (protocol, external, (first, last)) in single.chain(balanced) {
            let remote =
                at(Ipv4Addr::new(198, 51, 102, self.random.random_range(1..9)), self.random.random_range(4_000..4_003));
            let external = at(external, self.random.random_range(first..=last));
            probes.push(Probe::Stranger { protocol, remote, external });
        }
        probes.shuffle(&mut self.random);
        self.inbound(bed, &probes);
    }

    /// Switches to other settings during traffic, or is refused.
    fn reload(&mut self, bed: &mut Bed) {
        let present = bed.settings().clone();
        let can_not_be = self.random.random_ratio(1, 6);
        let next = match self.random.random_range(0..6) {
            _ if can_not_be => impossible(&present, &mut self.random),
            0 if self.before.is_some() => {
                self.count("taken back", 1);
                self.before.clone().expect("it is there")
            }
            1..=3 => tweaked(&present, &mut self.random),
            _ => random_policy(&mut self.random),
        };
        let mut order: Vec<usize> = (0..self.workers).collect();
        order.shuffle(&mut self.random);
        if can_not_be {
            let (generation, used) = (bed.shared().generation(), bed.ports_used());
            let outcome = bed.reload_while(next, &order, |_| panic!("an impossible change was begun"));
            assert!(outcome.is_err());
            assert_eq!((bed.shared().generation(), bed.ports_used()), (generation, used), "nothing changed");
            assert_eq!(*bed.settings(), present);
            self.count("refused reloads", 1);
            return;
        }
        let now = bed.now();
        self.account.forget(now);
        let census = bed.census(next.clone());
        let fates = |of: &dyn Fn(&nat::Fates) -> u64| {
            census.iter().map(|pool| of(&pool.mappings) + of(&pool.flows)).sum::<u64>()
        };
        self.account.mark_static(&present);
        self.account.mark_static(&next);
        let kept = self.account.talks.iter().filter(|(_, talk)| talk.is_sure(now) && keeps(&next, talk));
        let kept: HashSet<_> =
            kept.map(|(key, talk)| (key.protocol, key.internal, talk.is_flow.then_some(key.near))).collect();
        assert!(fates(&|one| one.keep) >= kept.len() as u64, "the plan keeps {census:?}, and these {kept:?}");
        self.kept.clear();
        if fates(&|one| one.drain + one.drain_until + one.end) == 0 {
            self.kept.extend(self.account.talks.keys());
        }
        self.count("kept by plans", fates(&|one| one.keep));
        self.in_force = vec![present.clone(), next.clone()];
        self.account.follow(&present, &next, &self.kept);
        for one in &present.balanced_forwards {
            let ports = one.ports.0..=one.ports.1;
            self.led_to_several.extend(ports.map(|port| (one.protocol, at(one.external, port))));
        }
        all_hosts().for_each(|host| self.forget_rate_if_other(host));
        bed.reload_while(next.clone(), &order, |bed| {
            if self.random.random_ratio(1, 3) {
                self.traffic(bed, 6, 2);
            }
        })
        .expect("it can be");
        // Mappings that no formula or block explains any more are recorded.
        bed.sweep();
        all_hosts().for_each(|host| self.forget_rate_if_other(host));
        self.in_force = vec![next];
        self.before = Some(present);
        self.count("reloads", 1);
    }

    fn forget_rate_if_other(&mut self, subscriber: Ipv4Addr) {
        let rates: Vec<_> = self.in_force.iter().map(|settings| limits_of(settings, subscriber).new_mappings).collect();
        if rates.first() != rates.last() {
            self.account.forget_rate(subscriber);
        }
    }

    /// Time passes, with the housekeeping of a running instance or, more often, with all of it at
    /// the end.
    fn time_passes(&mut self, bed: &mut Bed) {
        let time = match self.random.random_range(0..12) {
            0 => Duration::from_secs(self.random.random_range(50..400)),
            _ => Duration::from_millis(self.random.random_range(10..9_000)),
        };
        if self.random.random_ratio(1, 8) {
            bed.advance(time);
        } else {
            bed.jump(time);
        }
        bed.sweep();
        bed.meet_neighbours();
        bed.take_inside();
        bed.take_outside();
        let seen = self.look(bed);
        self.close(&seen);
        self.account.forget(bed.now());
    }
}

/// What a burst made for certain.
#[derive(Default)]
struct New {
    mappings: BTreeSet<(Protocol, SocketAddrV4)>,
    flows: u64,
    sessions: BTreeSet<Ipv4Addr>,
}

fn blocks_of(pool: &Pool) -> Option<Blocks> {
    match pool.allocation {
        Allocation::Ports => None,
        Allocation::Blocks(blocks) | Allocation::Deterministic { overflow: blocks, .. } => Some(blocks),
    }
}

/// Where the forwards lead what comes to an external endpoint.
fn leads_to(settings: &Settings, protocol: Protocol, external: SocketAddrV4) -> Vec<SocketAddrV4> {
    let offset = |of: Protocol, address: Ipv4Addr, (first, last): (u16, u16)| {
        let is_one = (of, address) == (protocol, *external.ip()) && (first..=last).contains(&external.port());
        is_one.then(|| external.port() - first)
    };
    let single = settings.forwards.iter().filter_map(|one| {
        let port = one.inside_port + offset(one.protocol, one.external, one.ports)?;
        Some(at(name_of_inside(&one.inside)?, port))
    });
    let balanced = settings.balanced_forwards.iter().flat_map(|one| {
        let offset = offset(one.protocol, one.external, one.ports);
        one.targets.iter().filter_map(move |target| Some(at(target.address.into(), target.port? + offset?)))
    });
    single.chain(balanced).collect()
}

/// When all is idle nothing is left, and somebody new can have every port of every pool.
fn ends_with_everything_back(world: &mut World, bed: &mut Bed) {
    bed.run_out();
    bed.advance_secs(300);
    bed.sweep();
    let seen = world.look(bed);
    assert!(seen.booked.is_empty() && seen.flows.is_empty() && world.ledger.lost == 0);
    assert_eq!(world.ledger.blocks(), 0, "all blocks are back");
    let mut last = roomy();
    let pools = world.in_force[0].pools.iter().filter(|pool| pool.name != "penalty");
    last.pools = pools
        .map(|pool| Pool {
            name: pool.name.clone(),
            addresses: pool.addresses.clone(),
            subscribers: pool.subscribers.clone(),
            port_min: pool.port_min,
            port_max: pool.port_min + 30,
            pooling: Pooling::Arbitrary,
            ..Pool::default()
        })
        .collect();
    bed.reload(last.clone());
    // A port that led to several targets is held down before it is given out again.
    bed.advance(last.pools[0].reuse_delay);
    bed.advance_secs(1);
    for (name, subscriber) in [("east", host(60)), ("west", host(20))] {
        let pool = last.pools.iter().find(|pool| pool.name == name).expect("it is there");
        let all = pool.addresses.len() * 31;
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let mut externals = BTreeSet::new();
            for port in 0..all as u16 + 20 {
                let internal = at(subscriber, 5_000 + port);
                bed.inside(&match protocol {
                    Protocol::Udp => build::udp(internal, at(E1, 80)).build(),
                    _ => build::tcp(internal, at(E1, 80), Flags::SYN).build(),
                });
                externals
                    .extend(bed.take_outside().iter().filter(|packet| !is_error(packet)).map(|packet| source(packet)));
                bed.take_inside();
            }
            assert_eq!(externals.len(), all, "every port of {name} can be had by {protocol:?}");
        }
    }
    bed.run_out();
}

fn run(seed: u64, workers: usize, steps: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let first = random_policy(&mut random);
    let mut bed = Bed::new(first.clone()).workers(workers).seed(seed).steering(Steering::Random).record_events(1 << 14);
    let mut world = World {
        random,
        workers,
        account: Account::default(),
        openers: Openers::default(),
        ledger: Ledger::default(),
        counted: bed.counters(),
        in_force: vec![first],
        before: None,
        led_to_several: HashSet::new(),
        kept: BTreeSet::new(),
        offenders: BTreeMap::new(),
        offences: HashMap::new(),
        serial: 0,
        has_asked: false,
        tally: BTreeMap::new(),
    };
    for step in 0..steps {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            world.traffic(&mut bed, 14, 8);
            world.ask(&mut bed);
            if world.random.random_ratio(1, 3) {
                world.reload(&mut bed);
                world.traffic(&mut bed, 30, 2);
            }
            world.time_passes(&mut bed);
        }));
        if let Err(cause) = outcome {
            eprintln!("seed {seed}, {workers} workers, step {step}, {} settings in use", world.in_force.len());
            resume_unwind(cause);
        }
    }
    let seen = |what: &str| world.tally.get(what).copied().unwrap_or_default();
    // Where rules and filters leave little, most are packets of what is there, and few make
    // something new.
    assert!(seen("passed out") > steps * 3 && seen("passed in") > steps * 3, "{:?}", world.tally);
    assert!(seen("reloads") > steps / 20 && seen("new mappings") > steps / 4, "{:?}", world.tally);
    ends_with_everything_back(&mut world, &mut bed);
}

fn steps() -> u64 {
    std::env::var("NATRIX_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn all_that_may_change_changes_under_traffic_on_one_worker() {
    for_each_seed(4, |seed| run(seed, 1, steps()));
}

#[test]
fn all_that_may_change_changes_under_traffic_on_three_workers() {
    for_each_seed(4, |seed| run(seed, 3, steps()));
}

#[test]
fn all_that_may_change_changes_under_traffic_on_eight_workers() {
    for_each_seed(4, |seed| run(seed, 8, steps()));
}
