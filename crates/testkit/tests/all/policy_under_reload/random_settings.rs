//! Random policies, their changes, and changes that must fail.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::redirection::Target;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
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
use nat::types::Prefix;
use nat::types::RealmId;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::seq::SliceRandom;
use testkit::bed::families::home;
use testkit::bed::families::inside_host;
use testkit::bed::families::nat64_host;
use testkit::bed::families::prefix_of;
use testkit::bed::families::with_families;
use testkit::random_pools::Mode;
use testkit::random_pools::PoolShape;
use testkit::random_pools::random_limits;
use testkit::random_pools::random_pool;
use testkit::*;

/// A service with an address that only the rules know, and where it is.
pub(super) const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 200);
const TARGETS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(198, 51, 100, 201), Ipv4Addr::new(198, 51, 100, 202), Ipv4Addr::new(198, 51, 100, 203)];
/// Ports that rules and filters are about, beside those that they are not.
pub(super) const PORTS: [u16; 4] = [80, 443, 8_080, 9_999];

/// Behind the inside router, so that the answers to many at once need not wait for as many
/// neighbours.
pub(super) fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(100, 64, 1, number)
}

/// Some hosts are reached by NAT64, some through softwires: all that changes is their address.
pub(super) fn any_host(number: u8) -> Ipv4Addr {
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
pub(super) fn all_hosts() -> impl Iterator<Item = Ipv4Addr> {
    (8..64).flat_map(|number| [host(number), any_host(number)])
}

pub(super) fn roomy() -> Settings {
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

pub(super) fn limits(penalty: PoolId, random: &mut SmallRng) -> SubscriberLimits {
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

pub(super) fn random_policy(random: &mut SmallRng) -> Settings {
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
pub(super) fn tweaked(before: &Settings, random: &mut SmallRng) -> Settings {
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
pub(super) fn impossible(before: &Settings, random: &mut SmallRng) -> Settings {
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
