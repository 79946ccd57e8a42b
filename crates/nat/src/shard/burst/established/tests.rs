//! A shard with short ways and one without treat the same packets alike.

use std::net::SocketAddrV4;
use std::sync::Arc;

use proptest::prelude::*;
use wire::build;
use wire::tcp::Flags;
use wire::verify;

use crate::Counters;
use crate::external::blocks::BlockSize;
use crate::headers::packet::Egress;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::policy::redirection::Redirection;
use crate::policy::redirection::RedirectionId;
use crate::policy::redirection::Target;
use crate::policy::rules::Match;
use crate::policy::rules::PortRange;
use crate::rows::Filter;
use crate::rows::Query;
use crate::settings::Admission;
use crate::settings::Allocation;
use crate::settings::BalancedForward;
use crate::settings::Blocks;
use crate::settings::FilterAction;
use crate::settings::FilterRule;
use crate::settings::MappingKind;
use crate::settings::PortTimeout;
use crate::settings::Rate;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::settings::Settings;
use crate::settings::SubscriberLimits;
use crate::shard::Shard;
use crate::shard::tests::settings;
use crate::snapshot::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

mod changed_hops;
mod gateways;
mod guarantees;
mod hosts;
mod small_pools;

#[derive(Default, PartialEq, Debug)]
struct Caught(Vec<Vec<u8>>);

impl Sink for Caught {
    fn transmit(&mut self, _: Egress, parts: &[&[u8]]) -> bool {
        self.0.push(parts.concat());
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, parts: &[&[u8]]) -> bool {
        self.0.push(parts.concat());
        true
    }
}

/// Last byte of the address flows are redirected to, also a remote endpoint's.
const TARGET: u8 = 77;

#[derive(Clone, Debug)]
struct Spec {
    inside: bool,
    tcp: bool,
    flow: u8,
    remote: u8,
    flags: u8,
    payload: u8,
    ttl: u8,
    /// Bits: don't fragment, no checksum, IP options, first fragment, later fragment, frame
    /// padding.
    odd: u8,
    sequence: u16,
    pause: u8,
    /// Another worker claims to have found it; 0 for none.
    record: u8,
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = prop_oneof![6 => Just(0x10_u8), 2 => Just(0x02), 2 => Just(0x12), 1 => Just(0x11), 1 => Just(0x14), 1 => any::<u8>()];
    let odd = prop_oneof![8 => Just(1_u8), 2 => Just(0), 2 => Just(3), 1 => any::<u8>()];
    let ttl = prop_oneof![20 => Just(64_u8), 1 => 0_u8..4];
    let pause = prop_oneof![20 => Just(0_u8), 1 => 10_u8..24];
    let meta = (pause, prop_oneof![1 => Just(0_u8), 1 => 1_u8..12]);
    (any::<bool>(), any::<bool>(), 0_u8..4, 0_u8..4, flags, 0_u8..40, ttl, odd, any::<u16>(), meta).prop_map(
        |(inside, tcp, flow, remote, flags, payload, ttl, odd, sequence, (pause, record))| Spec {
            inside,
            tcp,
            flow,
            remote,
            flags,
            payload,
            ttl,
            odd,
            sequence,
            pause,
            record,
        },
    )
}

impl Spec {
    fn internal(&self) -> SocketAddrV4 {
        build::endpoint([100, 64, 0, 10 + self.flow % 2], 5_000 + u16::from(self.flow))
    }

    fn remote(&self) -> SocketAddrV4 {
        let last = if self.remote == 3 { TARGET } else { 1 + self.remote };
        build::endpoint([198, 51, 100, last], 80 + u16::from(self.remote == 1))
    }

    fn key(&self) -> usize {
        usize::from(self.flow) * 2 + usize::from(self.tcp)
    }

    fn packet(&self, external: Option<SocketAddrV4>) -> Option<Vec<u8>> {
        let (source, destination) =
            if self.inside { (self.internal(), self.remote()) } else { (self.remote(), external?) };
        let mut builder = if self.tcp {
            build::tcp(source, destination, Flags(self.flags & 0x3f))
                .sequence(u32::from(self.sequence))
                .acknowledgment(u32::from(self.sequence).wrapping_mul(3))
        } else {
            build::udp(source, destination)
        };
        builder = builder.payload_length(usize::from(self.payload)).ttl(self.ttl).identification(self.sequence);
        if self.odd & 1 != 0 {
            builder = builder.dont_fragment();
        }
        if self.odd & 2 != 0 && !self.tcp {
            builder = builder.without_checksum();
        }
        if self.odd & 4 != 0 {
            builder = builder.ip_options(&[1, 1, 1, 1]);
        }
        if self.odd & 0x38 == 0x38 {
            builder = builder.fragment_bits(0x2000);
        } else if self.odd & 0x38 == 0x30 {
            builder = builder.fragment_bits(4);
        }
        let mut packet = builder.build();
        if self.odd & 0x40 == 0 && packet.len() < 46 {
            packet.resize(46, 0);
        }
        Some(packet)
    }
}

struct Side2 {
    shard: Shard,
    caught: Caught,
}

impl Side2 {
    fn new(settings: &Settings, long_way_only: bool) -> Side2 {
        mem::arena::provide_on_demand();
        let shared = Arc::new(Shared::new(settings.clone(), 1).expect("settings are sound"));
        let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices");
        shard.path.long_way_only = long_way_only;
        Side2 { shard, caught: Caught::default() }
    }

    fn process(&mut self, now: Instant, packets: &[(PacketMeta, Vec<u8>)]) -> Vec<(Vec<u8>, Outcome, Option<Verdict>)> {
        let mut buffers: Vec<Vec<u8>> = packets.iter().map(|(_, bytes)| bytes.clone()).collect();
        let mut burst: Vec<Packet<'_>> =
            buffers.iter_mut().zip(packets).map(|(bytes, (meta, _))| Packet::new(bytes, *meta)).collect();
        self.shard.process(now, &mut burst, &mut self.caught);
        self.shard.maintain(now, &mut self.caught);
        let ends: Vec<_> = burst.iter().map(|packet| (packet.outcome, packet.verdict)).collect();
        drop(burst);
        buffers.into_iter().zip(ends).map(|(bytes, (outcome, verdict))| (bytes, outcome, verdict)).collect()
    }

    fn change_filters(&mut self, filters: &[FilterRule], now: Instant) {
        let shared = self.shard.shared();
        let settings = Settings { filters: filters.to_vec(), ..shared.settings().clone() };
        let next = shared.successor(settings, now).expect("settings are sound");
        let mut next = crate::Successor::new(&self.shard.path.ledger.shared, &Arc::new(next));
        self.shard.adopt(&mut next);
    }

    /// Of the rules and of the filters.
    fn hits(&self) -> (Vec<u64>, Vec<u64>) {
        let (rules, filters) = (self.shard.shared().rules(), self.shard.shared().filters());
        let of_rules = (0..rules.set().len()).filter_map(|position| rules.at(position)).map(|(_, _, hits)| hits);
        (of_rules.collect(), (0..filters.len()).filter_map(|at| filters.at(at)).map(|(_, hits)| hits).collect())
    }

    fn state(&self, now: Instant) -> (Counters, String) {
        let (mut mappings, mut sessions) = (Query::all(Filter::default()), Query::all(Filter::default()));
        self.shard.view().mappings_page(now, &mut mappings);
        self.shard.view().sessions_page(now, &mut sessions);
        (self.shard.counters().clone(), format!("{:?} {:?} {:?}", mappings.records, sessions.records, self.hits()))
    }
}

fn compare(settings: &Settings, bursts: &[Vec<Spec>]) -> u64 {
    compare_under(settings, &[], bursts)
}

fn compare_under(settings: &Settings, changes: &[Vec<FilterRule>], bursts: &[Vec<Spec>]) -> u64 {
    let (mut short, mut long) = (Side2::new(settings, false), Side2::new(settings, true));
    let mut now = Instant::ORIGIN;
    let mut external: [Option<SocketAddrV4>; 8] = [None; 8];
    let open = settings.balanced_forwards.first().map(|to| SocketAddrV4::new(to.external, to.ports.0));
    for (number, specs) in bursts.iter().enumerate() {
        if number % 3 == 2
            && let Some(filters) = changes.get((number / 3) % changes.len().max(1))
        {
            short.change_filters(filters, now);
            long.change_filters(filters, now);
        }
        let mut keys = Vec::new();
        let mut packets = Vec::new();
        for spec in specs {
            if spec.pause > 0 {
                now = now + Duration::from_millis(1 << spec.pause);
            }
            let to = if spec.flow < 2 { external[spec.key()] } else { open.or(external[spec.key()]) };
            if let Some(packet) = spec.packet(to) {
                keys.push((spec.inside, spec.key()));
                let ingress = InterfaceId(if spec.inside { Side::Inside } else { Side::Outside } as u16);
                let record = u32::from(spec.record);
                let stage = if record == 0 { Stage::Received } else { Stage::Steered };
                packets.push((PacketMeta { ingress, stage, record, ..PacketMeta::default() }, packet));
            }
        }
        let left = short.process(now, &packets);
        for (meta, _) in &mut packets {
            meta.record = 0;
        }
        let right = long.process(now, &packets);
        for ((left, right), (_, sent)) in left.iter().zip(&right).zip(&packets) {
            assert_eq!(left, right, "of {sent:?}");
        }
        for ((inside, key), (bytes, outcome, verdict)) in keys.into_iter().zip(&left) {
            if *verdict != Some(Verdict::Outbound) && *verdict != Some(Verdict::Inbound) {
                continue;
            }
            let Outcome::Transmit { length, .. } = outcome else { continue };
            let packet = &bytes[..usize::from(*length)];
            let whole = packet[6] & 0x3f == 0 && packet[7] == 0;
            if whole {
                assert_eq!(verify::faults(packet), [], "every whole packet that leaves is sound");
            }
            if inside && whole && packet[0] == 0x45 {
                let port = u16::from_be_bytes([packet[20], packet[21]]);
                external[key] = Some(build::endpoint([packet[12], packet[13], packet[14], packet[15]], port));
            }
        }
        assert_eq!(short.caught, long.caught);
        let (left, right) = (short.state(now), long.state(now));
        assert_eq!(format!("{:?}", left.0), format!("{:?}", right.0));
        assert_eq!(left.1, right.1);
    }
    short.shard.path.short_ways
}

fn runs(own: u32) -> u32 {
    std::env::var("NATRIX_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(own)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(runs(96)))]

    #[test]
    fn the_short_way_and_the_long_way_decide_alike(
        allocation in allocation(),
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..24), 1..24),
        inbound_refresh in any::<bool>(), two_states in any::<bool>(), own_timer in any::<bool>(), is_limited in any::<bool>(),
    ) {
        let mut settings = Settings { inbound_refresh, ..with(allocation) };
        if two_states {
            settings.timeouts.udp_unanswered = Duration::from_secs(40);
        }
        if own_timer {
            settings.port_timeouts = [Protocol::Udp, Protocol::Tcp]
                .map(|protocol| PortTimeout { protocol, ports: 81..=90, idle: Duration::from_secs(20) })
                .to_vec();
        }
        if is_limited {
            let rate = Some(Rate { per_second: 1, burst: 2 });
            let ports_max = [2, 1, 0];
            settings.subscriber = SubscriberLimits {
                ports_max, sessions_max: 4, new_mappings: rate, new_sessions: rate, ..SubscriberLimits::default()
            };
        }
        compare(&settings, &bursts);
    }
}

fn allocation() -> impl Strategy<Value = Allocation> {
    let blocks = (1_u16..3, 0_u64..400).prop_map(|(per_subscriber_max, idle)| Blocks {
        size: BlockSize::MIN,
        per_subscriber_max,
        idle: Duration::from_secs(idle),
    });
    prop_oneof![
        2 => Just(Allocation::Ports),
        2 => blocks.clone().prop_map(Allocation::Blocks),
        1 => (blocks, 1_u16..4)
            .prop_map(|(overflow, dynamic_slices)| Allocation::Deterministic { dynamic_slices, overflow }),
    ]
}

fn with(allocation: Allocation) -> Settings {
    let mut settings = settings();
    settings.pools[0].allocation = allocation;
    settings.pools[0].subscribers = vec![Prefix::new([100, 64, 0, 0].into(), 24).expect("a length")];
    settings
}

/// Sessions to one remote are endpoint-dependent, to another redirected.
fn with_flows() -> Settings {
    let mut settings = settings();
    let rule = |last, action| Rule {
        matches: Match {
            destination: Prefix::host([198, 51, 100, last].into()),
            destination_ports: PortRange::one(80),
            ..Match::ALL
        },
        action,
    };
    let target = Target { address: u32::from_be_bytes([198, 51, 100, TARGET]), port: None, weight: 1 };
    settings.redirections = vec![Redirection::Targets(vec![target])];
    let dependent = RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent };
    settings.rules = vec![rule(1, dependent), rule(3, RuleAction::Redirect(RedirectionId(0)))];
    settings.limits.flows_max = 100;
    settings.pools[0].shared_ports_min = 2;
    settings
}

fn with_targets(flows: core::ops::Range<u8>) -> Settings {
    let mut settings = with_flows();
    let target = |flow: u8| Target {
        address: u32::from_be_bytes([100, 64, 0, 10 + flow % 2]),
        port: Some(5_000 + u16::from(flow)),
        weight: 1,
    };
    settings.balanced_forwards = [Protocol::Tcp, Protocol::Udp]
        .map(|protocol| BalancedForward {
            realm: RealmId(0),
            protocol,
            external: settings.pools[0].addresses[0],
            ports: (80, 80),
            targets: flows.clone().map(target).collect(),
            admission: Admission::Anyone,
            is_sticky: false,
        })
        .to_vec();
    settings
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(runs(96)))]

    #[test]
    fn the_ways_of_targets_decide_alike(
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..24), 1..24),
        inbound_refresh in any::<bool>(), two_states in any::<bool>(),
        changes in prop::collection::vec(prop::collection::vec(filter(), 0..3), 0..3),
    ) {
        let mut settings = Settings { inbound_refresh, ..with_targets(2..4) };
        if two_states {
            settings.timeouts.udp_unanswered = Duration::from_secs(40);
        }
        compare_under(&settings, &changes, &bursts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(runs(96)))]

    #[test]
    fn the_ways_of_flows_decide_alike(
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..24), 1..24),
        inbound_refresh in any::<bool>(),
    ) {
        compare(&Settings { inbound_refresh, ..with_flows() }, &bursts);
    }
}

proptest! {
    // Each change builds a snapshot.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_ways_decide_alike_while_filters_change(
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..24), 1..24),
        changes in prop::collection::vec(prop::collection::vec(filter(), 0..4), 1..6),
    ) {
        compare_under(&with_flows(), &changes, &bursts);
    }
}

fn filter() -> impl Strategy<Value = FilterRule> {
    (0_u8..5, any::<bool>(), any::<bool>(), any::<bool>(), prop_oneof![Just(None), Just(Some(6)), Just(Some(17))])
        .prop_map(|(remote, permits, out, back, protocol)| FilterRule {
            matches: Match {
                protocol,
                destination: if remote == 4 { Prefix::ALL } else { Prefix::host([198, 51, 100, 1 + remote].into()) },
                ..Match::ALL
            },
            action: if permits { FilterAction::Permit } else { FilterAction::Deny },
            out,
            back,
            log: false,
        })
}

/// However often filters change before its record is visited.
#[test]
fn a_generation_permits_nothing_after_it_wraps() {
    let deny = |port: u16| FilterRule {
        matches: Match { destination_ports: PortRange { first: 80, last: port }, ..Match::ALL },
        action: FilterAction::Deny,
        out: true,
        back: true,
        log: false,
    };
    let permit = FilterRule { action: FilterAction::Permit, ..deny(80) };
    for settings in [settings(), with_flows()] {
        let mut side = Side2::new(&Settings { filters: vec![permit], ..settings }, false);
        let send = |side: &mut Side2, way_in: Option<SocketAddrV4>| {
            let (inside, remote) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
            let (source, destination) = way_in.map_or((inside, remote), |external| (remote, external));
            let mut bytes = build::udp(source, destination).payload_length(20).build();
            let ingress = InterfaceId(if way_in.is_some() { Side::Outside } else { Side::Inside } as u16);
            let mut burst = [Packet::new(&mut bytes, PacketMeta { ingress, ..PacketMeta::default() })];
            side.shard.process(Instant::ORIGIN, &mut burst, &mut side.caught);
            let verdict = burst[0].verdict;
            (verdict, bytes)
        };
        let (_, sent) = send(&mut side, None);
        let external =
            build::endpoint([sent[12], sent[13], sent[14], sent[15]], u16::from_be_bytes([sent[20], sent[21]]));
        for _ in 0..3 {
            assert_eq!(send(&mut side, None).0, Some(Verdict::Outbound));
            assert_eq!(send(&mut side, Some(external)).0, Some(Verdict::Inbound));
        }
        for change in 0..200 {
            side.change_filters(&[deny(80 + change)], Instant::ORIGIN);
            assert_eq!(send(&mut side, None).0, Some(Verdict::DeniedByFilter), "after change {change}");
            assert_eq!(send(&mut side, Some(external)).0, Some(Verdict::DeniedByFilter), "after change {change}");
        }
        side.change_filters(&[permit], Instant::ORIGIN);
        for _ in 0..4 {
            side.shard.maintain(Instant::ORIGIN, &mut side.caught);
        }
        assert_eq!(send(&mut side, None).0, Some(Verdict::Outbound));
        let before = side.shard.path.short_ways;
        assert_eq!(send(&mut side, None).0, Some(Verdict::Outbound));
        assert_eq!(send(&mut side, Some(external)).0, Some(Verdict::Inbound));
        assert_eq!(side.shard.path.short_ways, before + 2);
    }
}

/// Also those that filters permit one way only, about which they are asked each time.
#[test]
fn packets_take_the_short_way_after_filters_change() {
    let filter = |last, action, out, back| FilterRule {
        matches: Match { destination: Prefix::host([198, 51, 100, last].into()), ..Match::ALL },
        action,
        out,
        back,
        log: false,
    };
    let elsewhere = filter(99, FilterAction::Deny, true, true);
    let both_ways = filter(1, FilterAction::Permit, true, true);
    let out_only = [filter(1, FilterAction::Permit, true, false), filter(1, FilterAction::Deny, false, true)];
    let (inside, remote) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
    for settings in [settings(), with_flows()] {
        let mut side = Side2::new(&settings, false);
        let send = |side: &mut Side2, external: Option<SocketAddrV4>| {
            let (from, source, destination) =
                external.map_or((Side::Inside, inside, remote), |external| (Side::Outside, remote, external));
            let bytes = build::udp(source, destination).payload_length(20).build();
            let before = side.shard.path.short_ways;
            let meta = PacketMeta { ingress: InterfaceId(from as u16), ..PacketMeta::default() };
            let (bytes, _, verdict) = side.process(Instant::ORIGIN, &[(meta, bytes)]).remove(0);
            (verdict, side.shard.path.short_ways - before, bytes)
        };
        let (_, _, sent) = send(&mut side, None);
        let port = u16::from_be_bytes([sent[20], sent[21]]);
        let external = Some(build::endpoint([sent[12], sent[13], sent[14], sent[15]], port));
        send(&mut side, external);
        let mut expect = |filters: &[FilterRule], answers: (Verdict, u64), hits: &[u64]| {
            side.change_filters(filters, Instant::ORIGIN);
            for _ in 0..3 {
                let (verdict, short_ways, _) = send(&mut side, None);
                assert_eq!((verdict, short_ways), (Some(Verdict::Outbound), 1), "under {filters:?}");
                let (verdict, short_ways, _) = send(&mut side, external);
                assert_eq!((verdict, short_ways), (Some(answers.0), answers.1), "under {filters:?}");
            }
            assert_eq!(side.hits().1, hits, "of {filters:?}");
        };
        expect(&[elsewhere], (Verdict::Inbound, 1), &[0]);
        expect(&[both_ways, elsewhere], (Verdict::Inbound, 1), &[1, 0]);
        expect(&out_only, (Verdict::DeniedByFilter, 0), &[3, 3]);
        expect(&[], (Verdict::Inbound, 1), &[]);
    }
}

/// All packets take it, except the first and the establishing ones. Remote `back` answers for
/// `out`.
fn flows_take_the_short_way((out, back): (u8, u8), payload: u8, odd: u8) {
    let usual = |inside, tcp, flags| Spec {
        inside,
        tcp,
        flow: 1,
        remote: if inside { out } else { back },
        flags,
        payload,
        ttl: 64,
        odd,
        sequence: 100,
        pause: 0,
        record: 0,
    };
    let mut bursts = vec![
        vec![usual(true, true, 0x02), usual(true, false, 0)],
        vec![usual(false, true, 0x12), usual(false, false, 0)],
    ];
    for _ in 0..10 {
        bursts.push(vec![usual(true, true, 0x10), usual(true, false, 0)]);
        bursts.push(vec![usual(false, true, 0x10), usual(false, false, 0)]);
    }
    assert_eq!(compare(&with_flows(), &bursts), 40 + 1);
}

#[test]
fn packets_of_redirected_flows_take_the_short_way() {
    // Remote 2 is redirected to 3.
    flows_take_the_short_way((2, 3), 11, 0);
}

#[test]
fn packets_of_sessions_to_targets_take_the_short_way() {
    let usual = |inside, tcp, flags| Spec {
        inside,
        tcp,
        flow: 2,
        remote: 0,
        flags,
        payload: 10,
        ttl: 64,
        odd: 1,
        sequence: 100,
        pause: 0,
        record: 0,
    };
    let mut bursts = vec![
        vec![usual(false, true, 0x02), usual(false, false, 0)],
        vec![usual(true, true, 0x12), usual(true, false, 0)],
        vec![usual(false, true, 0x10), usual(false, false, 0)],
    ];
    for _ in 0..10 {
        bursts.push(vec![usual(true, true, 0x10), usual(true, false, 0)]);
        bursts.push(vec![usual(false, true, 0x10), usual(false, false, 0)]);
    }
    assert!(compare(&with_targets(2..3), &bursts) >= 40);
}

#[test]
fn packets_of_established_flows_take_the_short_way() {
    flows_take_the_short_way((0, 0), 10, 1);
}

fn usual(inside: bool, tcp: bool, remote: u8, flags: u8) -> Spec {
    Spec { inside, tcp, flow: 1, remote, flags, payload: 10, ttl: 64, odd: 1, sequence: 100, pause: 0, record: 0 }
}

/// Otherwise the comparisons show nothing.
#[test]
fn usual_packets_take_the_short_way() {
    let usual = |inside, tcp, flags| usual(inside, tcp, 1, flags);
    let mut bursts = vec![
        vec![usual(true, true, 0x02), usual(true, false, 0)],
        vec![usual(false, true, 0x12), usual(false, false, 0)],
    ];
    for _ in 0..10 {
        bursts.push(vec![usual(true, true, 0x10), usual(true, false, 0)]);
        bursts.push(vec![usual(false, true, 0x10), usual(false, false, 0)]);
    }
    // All but two of the four that open and establish.
    assert_eq!(compare(&settings(), &bursts), 40 + 2);
    let next = |tcp, flags| Spec { flow: 3, ..usual(true, tcp, flags) };
    bursts.push(vec![next(true, 0x02), next(false, 0), usual(true, true, 0x10)]);
    assert_eq!(compare(&settings(), &bursts), 40 + 2 + 3);
    // Both protocols have the same active block by then.
    let blocks = Blocks { size: BlockSize::MIN, per_subscriber_max: 1, idle: Duration::from_secs(60) };
    assert_eq!(compare(&with(Allocation::Blocks(blocks)), &bursts), 40 + 1 + 3);
    let deterministic = Allocation::Deterministic { dynamic_slices: 2, overflow: blocks };
    assert_eq!(compare(&with(deterministic), &bursts), 40 + 1 + 3);
}

/// All but the first of each and the answers that establish TCP.
#[test]
fn packets_of_further_sessions_take_the_short_way() {
    let mut bursts = Vec::new();
    for remote in 0..3 {
        bursts.push(vec![usual(true, true, remote, 0x02), usual(true, false, remote, 0)]);
        bursts.push(vec![usual(false, true, remote, 0x12), usual(false, false, remote, 0)]);
    }
    let opening = compare(&settings(), &bursts);
    for _ in 0..10 {
        for remote in 0..3 {
            bursts.push(vec![usual(true, true, remote, 0x10), usual(true, false, remote, 0)]);
            bursts.push(vec![usual(false, true, remote, 0x10), usual(false, false, remote, 0)]);
        }
    }
    assert_eq!(compare(&settings(), &bursts), opening + 3 * 40);
    // The general way judges each of four once after a change in the middle.
    let deny = FilterRule {
        matches: Match { destination: Prefix::host([198, 51, 100, 99].into()), ..Match::ALL },
        action: FilterAction::Deny,
        out: true,
        back: true,
        log: false,
    };
    let changes: Vec<_> = (0..22).map(|third| if third < 11 { Vec::new() } else { vec![deny] }).collect();
    assert_eq!(compare_under(&settings(), &changes, &bursts), opening + 3 * 40 - 4);
}

fn two_shards() -> (Shard, Shard, SocketAddrV4, SocketAddrV4) {
    let shared = Arc::new(Shared::new(settings(), 2).expect("settings are sound"));
    let shard = |worker| Shard::new(Arc::clone(&shared), WorkerId(worker), [1, 2, 3, 4]).expect("memory suffices");
    let owned =
        |last: &u8| shared.worker_of_subscriber(HostNumber(u32::from_be_bytes([100, 64, 0, *last]))) == WorkerId(1);
    let internal = (10..200).find(owned).map(|last| build::endpoint([100, 64, 0, last], 5_000));
    (shard(0), shard(1), internal.expect("half of all subscribers"), build::endpoint([198, 51, 100, 1], 53))
}

fn one(shard: &mut Shard, meta: PacketMeta, packet: &[u8]) -> (Vec<u8>, Outcome, Option<Verdict>) {
    let mut bytes = packet.to_vec();
    let mut burst = [Packet::new(&mut bytes, meta)];
    shard.process(Instant::ORIGIN, &mut burst, &mut Caught::default());
    let (outcome, verdict) = (burst[0].outcome, burst[0].verdict);
    (bytes, outcome, verdict)
}

fn from(side: Side) -> PacketMeta {
    PacketMeta { ingress: InterfaceId(side as u16), ..PacketMeta::default() }
}

fn answer(owner: &mut Shard, internal: SocketAddrV4, remote: SocketAddrV4) -> Vec<u8> {
    let sent = one(owner, from(Side::Inside), &build::udp(internal, remote).payload_length(20).build()).0;
    let port = u16::from_be_bytes([sent[20], sent[21]]);
    let external = build::endpoint([sent[12], sent[13], sent[14], sent[15]], port);
    let answer = build::udp(remote, external).payload_length(20).build();
    assert_eq!(one(owner, from(Side::Outside), &answer).2, Some(Verdict::Inbound));
    answer
}

#[test]
fn the_owner_tries_the_record_that_the_other_worker_found() {
    let (mut other, mut owner, internal, remote) = two_shards();
    let answer = answer(&mut owner, internal, remote);
    let (_, outcome, verdict) = one(&mut other, from(Side::Outside), &answer);
    let Outcome::HandOff { worker: WorkerId(1), meta } = outcome else { panic!("handed off, not {outcome:?}") };
    assert_eq!((meta.stage, verdict), (Stage::Steered, None));
    assert_ne!(meta.record, 0, "it goes with the record");
    let before = owner.path.short_ways;
    let (bytes, _, verdict) = one(&mut owner, meta, &answer);
    assert_eq!((verdict, owner.path.short_ways), (Some(Verdict::Inbound), before + 1));
    assert_eq!(bytes[16..20], internal.ip().octets());
    // Another endpoint's record, or a free one.
    for record in [meta.record + 1, meta.record + 2] {
        let (again, _, verdict) = one(&mut owner, PacketMeta { record, ..meta }, &answer);
        assert_eq!((verdict, owner.path.short_ways, again == bytes), (Some(Verdict::Inbound), before + 1, true));
    }
}

#[test]
fn a_packet_handed_on_loses_the_record_it_came_with() {
    let (mut other, mut owner, internal, remote) = two_shards();
    let answer = answer(&mut owner, internal, remote);
    let stale = PacketMeta { stage: Stage::Steered, record: 1, ..from(Side::Outside) };
    let (_, outcome, _) = one(&mut other, stale, &answer);
    let Outcome::HandOff { worker: WorkerId(1), meta } = outcome else { panic!("handed on, not {outcome:?}") };
    assert_eq!(meta.record, 0);
}

/// A poll ends as many expired flows as it opens.
#[test]
fn short_flows_leave_room_for_those_that_follow() {
    const ROOM: u32 = 50_000;
    for in_a_poll in [64_u32, 128, 512] {
        let mut settings = settings();
        settings.pools[0].addresses = (1..40).map(|host| [203, 0, 113, host].into()).collect();
        settings.timeouts.udp = Duration::from_millis(1);
        settings.limits.mappings_max = ROOM;
        settings.limits.subscribers_max = 10_000;
        let mut side = Side2::new(&settings, false);
        let meta = PacketMeta { ingress: InterfaceId(Side::Inside as u16), ..PacketMeta::default() };
        let (mut serial, mut now) = (0_u32, Instant::ORIGIN);
        for _ in 0..300_000 / in_a_poll {
            // 8 million new flows a second, so at most 8000 alive.
            now = now + Duration::from_micros(u64::from(in_a_poll) / 8);
            let packets: Vec<(PacketMeta, Vec<u8>)> = (0..in_a_poll)
                .map(|_| {
                    serial += 1;
                    let host = serial % 4_000;
                    let internal = build::endpoint(
                        [100, 64, 1 + (host / 250) as u8, 1 + (host % 250) as u8],
                        1_024 + (serial / 4_000) as u16,
                    );
                    (meta, build::udp(internal, build::endpoint([198, 51, 100, 1], 80)).payload_length(20).build())
                })
                .collect();
            side.process(now, &packets);
        }
        let counters = side.shard.counters();
        assert_eq!(counters.of(Verdict::MappingTableFull), 0, "{in_a_poll} in a poll");
        assert!(
            side.shard.view().mappings_len() < ROOM / 2,
            "{in_a_poll} in a poll: {}",
            side.shard.view().mappings_len()
        );
    }
}
