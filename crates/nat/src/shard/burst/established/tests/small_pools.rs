//! Pools and tables run full, and subscribers come and go: ports, mappings, subscribers and
//! counters agree after each burst.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::net::SocketAddrV4;
use std::sync::Arc;

use proptest::prelude::*;
use wire::build;
use wire::tcp::Flags;
use wire::verify;

use super::Caught;
use crate::external::blocks::BlockSize;
use crate::external::deterministic::Owner;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::rows::SubscriberView;
use crate::settings::Allocation;
use crate::settings::Blocks;
use crate::settings::Class;
use crate::settings::Limits;
use crate::settings::Penalty;
use crate::settings::Pool;
use crate::settings::Pooling;
use crate::settings::PortTimeout;
use crate::settings::Rate;
use crate::settings::Selection;
use crate::settings::SubscriberLimits;
use crate::shard::Shard;
use crate::shard::tests::settings;
use crate::snapshot::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::InterfaceId;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

#[derive(Clone, Debug)]
struct Spec {
    inside: bool,
    tcp: bool,
    sub: u8,
    port: u8,
    remote: u8,
    flags: u8,
    pause: u8,
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = prop_oneof![6 => Just(0x02_u8), 3 => Just(0x10_u8), 1 => Just(0x12), 1 => Just(0x14), 1=>Just(0x11)];
    let pause = prop_oneof![60 => Just(0_u8), 3 => 10_u8..24];
    (prop::bool::weighted(0.8), any::<bool>(), 0_u8..6, 0_u8..24, 0_u8..3, flags, pause).prop_map(
        |(inside, tcp, sub, port, remote, flags, pause)| Spec { inside, tcp, sub, port, remote, flags, pause },
    )
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Ports {
        span: u16,
    },
    /// Blocks per address and per subscriber, seconds until their return, ports offered of each.
    Blocks {
        count: u16,
        max: u16,
        idle: u64,
        of_each: u16,
    },
    /// Ports per address, and blocks as above.
    Deterministic {
        ports: u16,
        dynamic_slices: u16,
        max: u16,
        idle: u64,
    },
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        2 => (8_u16..90).prop_map(|span| Mode::Ports { span }),
        3 => (1_u16..8, 1_u16..4, 0_u64..400, 1_u16..20)
            .prop_map(|(count, max, idle, of_each)| Mode::Blocks { count, max, idle, of_each }),
        2 => (190_u16..900, 0_u16..60, 0_u16..3, 0_u64..400)
            .prop_map(|(ports, dynamic_slices, max, idle)| Mode::Deterministic { ports, dynamic_slices, max, idle }),
    ]
}

impl Mode {
    fn blocks(per_subscriber_max: u16, idle: u64) -> Blocks {
        Blocks { size: BlockSize::MIN, per_subscriber_max, idle: Duration::from_secs(idle) }
    }

    fn ports(self) -> (u16, u16, Allocation) {
        match self {
            Mode::Ports { span } => (1_030, 1_030 + span, Allocation::Ports),
            Mode::Blocks { count, max, idle, .. } => {
                (1_024, 1_023 + count * 64, Allocation::Blocks(Mode::blocks(max, idle)))
            }
            Mode::Deterministic { ports, dynamic_slices, max, idle } => {
                let allocation = Allocation::Deterministic { dynamic_slices, overflow: Mode::blocks(max, idle) };
                (1_030, 1_029 + ports, allocation)
            }
        }
    }

    fn reserved(self) -> Vec<u16> {
        match self {
            Mode::Blocks { count, of_each, .. } => {
                (1_024..1_024 + count * 64).filter(|port| port % 64 >= of_each).collect()
            }
            _ => vec![1_033, 1_034, 1_040],
        }
    }
}

fn pools(two: bool, arbitrary: bool, parity: bool, mode: Mode, selection: Selection, reserved: bool) -> Vec<Pool> {
    let (port_min, port_max, allocation) = mode.ports();
    let pool = |name: &str, a: u8, subs: Prefix, is_arbitrary: bool| Pool {
        name: name.into(),
        addresses: vec![Ipv4Addr::new(203, 0, 113, a), Ipv4Addr::new(203, 0, 113, a + 1)],
        port_min,
        port_max,
        allocation,
        selection,
        reserved_ports: if reserved { mode.reserved() } else { vec![] },
        subscribers: vec![subs],
        pooling: if is_arbitrary { Pooling::Arbitrary } else { Pooling::Paired },
        parity,
        ..Pool::default()
    };
    let prefix = |address: [u8; 4], length| Prefix::new(address.into(), length).expect("no host bits");
    if two {
        vec![pool("a", 1, prefix([100, 64, 0, 10], 31), false), pool("b", 10, prefix([100, 64, 0, 0], 24), arbitrary)]
    } else {
        vec![pool("a", 1, prefix([100, 64, 0, 0], 24), arbitrary)]
    }
}

struct Bed {
    shard: Shard,
    caught: Caught,
    external: HashMap<(u8, bool, u8), SocketAddrV4>,
}

fn step(bed: &mut Bed, now: Instant, specs: &[Spec]) -> Vec<Option<Verdict>> {
    let mut keys = vec![];
    let mut buffers: Vec<Vec<u8>> = vec![];
    for s in specs {
        let internal = build::endpoint([100, 64, 0, 10 + s.sub], 5_000 + u16::from(s.port));
        let remote = build::endpoint([198, 51, 100, 1 + s.remote], 80 + u16::from(s.remote));
        let (source, destination) = if s.inside {
            (internal, remote)
        } else {
            // A port never offered, so both decide alike.
            (
                remote,
                bed.external.get(&(s.sub, s.tcp, s.port)).copied().unwrap_or(build::endpoint([203, 0, 113, 1], 500)),
            )
        };
        let b = if s.tcp {
            build::tcp(source, destination, Flags(s.flags)).sequence(100).acknowledgment(200)
        } else {
            build::udp(source, destination)
        };
        let mut v = b.payload_length(10).ttl(64).dont_fragment().build();
        v.resize(v.len().max(46), 0);
        keys.push(s.clone());
        buffers.push(v);
    }
    let ends: Vec<(Outcome, Option<Verdict>)> = {
        let mut burst: Vec<Packet<'_>> = buffers
            .iter_mut()
            .zip(&keys)
            .map(|(b, s)| {
                let side = if s.inside { Side::Inside } else { Side::Outside };
                Packet::new(b, PacketMeta { ingress: InterfaceId(side as u16), ..PacketMeta::default() })
            })
            .collect();
        bed.shard.process(now, &mut burst, &mut bed.caught);
        burst.iter().map(|p| (p.outcome, p.verdict)).collect()
    };
    bed.shard.maintain(now, &mut bed.caught);
    for ((s, b), (_, v)) in keys.iter().zip(&buffers).zip(&ends) {
        if s.inside && *v == Some(Verdict::Outbound) {
            assert_eq!(verify::faults(&b[..usize::from(u16::from_be_bytes([b[2], b[3]]))]), []);
            let e = build::endpoint([b[12], b[13], b[14], b[15]], u16::from_be_bytes([b[20], b[21]]));
            bed.external.insert((s.sub, s.tcp, s.port), e);
        }
    }
    check(bed);
    ends.into_iter().map(|e| e.1).collect()
}

fn check_blocks(bed: &Bed) {
    let shared = bed.shard.shared();
    let mut held = HashSet::new();
    for slot in 1..bed.shard.path.ledger.state.subscribers.walk_end() {
        let s = bed.shard.path.ledger.state.subscribers.get(slot);
        if !s.is_in_use() {
            continue;
        }
        let compiled = &shared.pools[usize::from(s.pool)];
        let mut next = s.latest_block();
        let mut count: u16 = 0;
        while let Some(block) = next {
            assert!(held.insert(block), "a block has two holders");
            let lease = shared.lease_of(block.address(), block.first_port()).expect("it is leased");
            assert_eq!((lease.block, lease.holder.address, lease.holder.realm.0), (block, s.address, s.realm));
            // A subscriber in a penalty pool keeps its earlier pool's blocks, which return by
            // themselves.
            let is_paired = s.paired == u32::MAX || s.paired == block.address().0;
            assert!(is_paired || bed.shard.counters().penalties_begun > 0, "of the paired address");
            next = shared.ports.blocks.next(block);
            count += u16::from(shared.pool_of(block.address()).0 == s.pool);
        }
        assert!(count <= compiled.blocks.map_or(0, |blocks| blocks.per_subscriber_max));
        for protocol in Protocol::ALL {
            assert!(s.active_block(protocol).is_none_or(|block| held.contains(&block)));
        }
    }
    let leased: u32 = (0..shared.address_count() as u32).map(|a| shared.ports.ports_leased(AddressIndex(a))).sum();
    assert_eq!(leased as usize, held.len() * 64, "no lease without holder");
    let c = bed.shard.counters();
    assert_eq!(c.blocks_leased - c.blocks_returned, held.len() as u64);
    for i in 1..bed.shard.path.ledger.state.mappings.walk_end() {
        let m = bed.shard.path.ledger.state.mappings.get(i);
        if !m.is_in_use() {
            continue;
        }
        let address = shared.address_index(m.external().address).unwrap();
        let compiled = shared.compiled_pool(address);
        let lease = shared.lease_of(address, m.external_port());
        if let Some(lease) = lease {
            assert_eq!(lease.holder.address, m.internal_address(), "in its own block");
        } else if compiled.slice_ports != 0 {
            let owner = shared.slice_owner(address, m.external_port());
            assert_eq!(owner, Some(Owner::Subscriber(m.internal_address().into())), "in its own slice");
        } else {
            assert!(compiled.gives_single_ports());
        }
    }
}

fn limits() -> impl Strategy<Value = SubscriberLimits> {
    let quota = || prop_oneof![1 => Just(u32::MAX), 2 => 0_u32..24];
    let rate = || {
        prop_oneof![
            2 => Just(None),
            1 => (1_u32..20, 1_u32..8).prop_map(|(per_second, burst)| Some(Rate { per_second, burst })),
        ]
    };
    let memory = prop_oneof![2 => Just(u64::MAX), 1 => 0_u64..2_000];
    (quota(), quota(), prop_oneof![1 => Just(u32::MAX), 1 => 1_u32..40], memory, rate(), rate()).prop_map(
        |(udp, tcp, sessions_max, memory_max, new_mappings, new_sessions)| SubscriberLimits {
            ports_max: [udp, tcp, u32::MAX],
            sessions_max,
            memory_max,
            new_mappings,
            new_sessions,
            ..SubscriberLimits::default()
        },
    )
}

fn check_books(bed: &Bed) {
    let shard = &bed.shard;
    let settings = shard.shared().settings();
    for slot in 1..shard.path.ledger.state.subscribers.walk_end() {
        let subscriber = shard.path.ledger.state.subscribers.get(slot);
        if !subscriber.is_in_use() {
            continue;
        }
        let (mut mappings, mut extra) = ([0_u32; 3], 0_u32);
        for i in 1..shard.path.ledger.state.mappings.walk_end() {
            let mapping = shard.path.ledger.state.mappings.get(i);
            if mapping.is_in_use() && mapping.subscriber == slot {
                mappings[mapping.protocol().index()] += 1;
                extra += u32::from(mapping.extra_count());
            }
        }
        assert_eq!((subscriber.mappings, subscriber.extra_sessions), (mappings, extra));
        let limits = match shard.view().class_now(slot) {
            0 => &settings.subscriber,
            class => &settings.classes[usize::from(class) - 1].limits,
        };
        assert!((0..3).all(|protocol| mappings[protocol] <= limits.ports_max[protocol]), "{mappings:?} {limits:?}");
        assert!(subscriber.sessions() <= limits.sessions_max, "{limits:?}");
        assert!(subscriber.memory() <= limits.memory_max, "{limits:?}");
    }
    let refused: u64 = (1..shard.path.ledger.state.subscribers.walk_end())
        .filter(|slot| shard.path.ledger.state.subscribers.get(*slot).is_in_use())
        .flat_map(|slot| shard.path.ledger.state.subscribers.account(slot).refused)
        .map(u64::from)
        .sum();
    let counted: u64 = SubscriberView::CAUSES.iter().map(|verdict| shard.counters().of(*verdict)).sum();
    assert!(refused <= counted, "{refused} refused to subscribers, {counted} packets refused");
}

fn check(bed: &Bed) {
    check_books(bed);
    let shared = bed.shard.shared();
    let used: u64 = (0..shared.address_count() as u32)
        .flat_map(|a| [Protocol::Udp, Protocol::Tcp].map(|p| u64::from(shared.ports_used(AddressIndex(a), p))))
        .sum();
    let held = u64::from(bed.shard.view().held_ports_len());
    assert_eq!(used, u64::from(bed.shard.view().mappings_len()) + held, "ports used = mappings + ports held down");
    let c = bed.shard.counters();
    let made: u64 = c.mappings_created.iter().sum();
    let gone: u64 = c.mappings_removed.iter().sum();
    assert_eq!(made - gone, u64::from(bed.shard.view().mappings_len()));
    assert_eq!(c.sessions_created - c.sessions_removed, bed.shard.sessions_len());
    let mut seen = HashSet::new();
    let mut owners = HashSet::new();
    for i in 1..bed.shard.path.ledger.state.mappings.walk_end() {
        let m = bed.shard.path.ledger.state.mappings.get(i);
        if m.is_in_use() {
            assert!(seen.insert((m.protocol(), m.external())), "external twice");
            owners.insert(m.internal_address());
            let s = bed.shard.path.ledger.state.subscribers.get(m.subscriber);
            assert!(s.is_in_use() && s.address == m.internal_address());
            let a = shared.address_index(m.external().address).unwrap();
            assert_eq!(shared.owner(a, m.protocol(), m.external_port()).map(|x| x.1.0), Some(i));
            assert!(m.external_port() >= 1_024 && m.external_port() <= 1_030 + 900);
        }
    }
    check_blocks(bed);
    // A subscriber stays while it has a block or is an offender.
    let without_mapping = (1..bed.shard.path.ledger.state.subscribers.walk_end())
        .map(|slot| bed.shard.path.ledger.state.subscribers.get(slot))
        .filter(|s| s.is_in_use() && (s.latest_block().is_some() || s.is_offender()) && !owners.contains(&s.address))
        .count();
    assert_eq!(owners.len() + without_mapping, bed.shard.view().subscribers_len());
    let paired: u32 =
        (0..shared.address_count() as u32).map(|a| shared.ports.paired_subscribers(AddressIndex(a))).sum();
    let want = (1..bed.shard.path.ledger.state.subscribers.walk_end())
        .filter(|s| {
            let s = bed.shard.path.ledger.state.subscribers.get(*s);
            s.is_in_use() && s.paired != u32::MAX
        })
        .count();
    assert_eq!(paired as usize, want);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_short_ways_hold_when_pools_and_tables_run_full(
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..64), 1..16),
        two in any::<bool>(), arbitrary in any::<bool>(), parity in any::<bool>(), mode in mode(),
        selection in prop_oneof![Just(Selection::LeastUsed), Just(Selection::RoundRobin), Just(Selection::Hash)],
        reserved in any::<bool>(),
        mappings_max in 8_u32..80, subscribers_max in 2_u32..8,
        common in limits(), special in limits(), is_limited in any::<bool>(), two_states in any::<bool>(), own_timer in any::<bool>(),
        penalty in prop::option::of(1_u32..6), guaranteed in prop_oneof![Just(0_u32), 1_u32..6],
    ) {
        let mut settings = settings();
        if is_limited {
            settings.subscriber = common;
            let subscribers = vec![Prefix::new([100, 64, 0, 12].into(), 31).unwrap()];
            // Offenders of one pool go to the other. A deterministic pool's formula does not know
            // them.
            let penalty = penalty.filter(|_| two && !matches!(mode.ports().2, Allocation::Deterministic { .. }));
            let penalty = penalty.map(|refusals| Penalty {
                pool: PoolId(0),
                refusals,
                window: Duration::from_secs(1),
                release: Duration::from_secs(2),
            });
            let special = SubscriberLimits { penalty, reserved_ports: [guaranteed; 3], ..special };
            settings.classes = vec![Class { name: "special".into(), subscribers, realms: vec![], limits: special, gateways: None }];
        }
        if two_states {
            settings.timeouts.udp_unanswered = Duration::from_secs(40);
        }
        if own_timer {
            settings.port_timeouts = [Protocol::Udp, Protocol::Tcp]
                .map(|protocol| PortTimeout { protocol, ports: 79..=80, idle: Duration::from_secs(20) })
                .to_vec();
        }
        settings.pools = pools(two, arbitrary, parity, mode, selection, reserved);
        settings.limits = Limits { mappings_max, subscribers_max, ..settings.limits };
        mem::arena::provide_on_demand();
        let bed = |long_way_only: bool| {
            let shared = Arc::new(Shared::new(settings.clone(), 1).unwrap());
            let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).unwrap();
            shard.path.long_way_only = long_way_only;
            Bed { shard, caught: Caught::default(), external: HashMap::new() }
        };
        let (mut short, mut long) = (bed(false), bed(true));
        let mut now = Instant::ORIGIN;
        let mut diverged = false;
        for burst in &bursts {
            for spec in burst { if spec.pause > 0 { now = now + Duration::from_millis(1 << spec.pause); } }
            let left = step(&mut short, now, burst);
            let right = step(&mut long, now, burst);
            // A second search takes further random numbers.
            for exhausted in [Some(Verdict::PortsExhausted), Some(Verdict::BlockLimit)] {
                diverged |= left.contains(&exhausted) || right.contains(&exhausted);
            }
            diverged |= short.external != long.external;
            if !diverged {
                prop_assert!(left == right, "verdicts differ: {:?}", left.iter().zip(&right).zip(burst).filter(|((x, y), _)| x != y).collect::<Vec<_>>());
            }
        }
        for bed in [&mut short, &mut long] {
            let mut later = now + Duration::from_secs(1_000_000);
            for _ in 0..2_000 { bed.shard.maintain(later, &mut bed.caught); later = later + Duration::from_secs(1); }
            prop_assert!(bed.shard.is_empty());
            if let Some(guarantees) = bed.shard.shared().ports.guarantees() {
                for address in (0..bed.shard.shared().address_count() as u32).map(AddressIndex) {
                    for protocol in Protocol::ALL {
                        prop_assert_eq!((guarantees.taken(address, protocol), guarantees.guaranteed(address, protocol)), (0, 0));
                    }
                }
            }
            check(bed);
        }
    }
}
