//! The short ways where there is little of everything: pools run full, tables run full, subscribers come and go, and whatever
//! happens, ports, mappings, subscribers and counters agree.

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
use crate::packet::Outcome;
use crate::packet::Packet;
use crate::packet::PacketMeta;
use crate::settings::Limits;
use crate::settings::Pool;
use crate::settings::Pooling;
use crate::shard::Shard;
use crate::shard::tests::settings;
use crate::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// A packet, in small numbers.
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

fn pools(two: bool, arbitrary: bool, parity: bool, span: u16, reserved: bool) -> Vec<Pool> {
    let pool = |name: &str, a: u8, subs: Prefix, is_arbitrary: bool| Pool {
        name: name.into(),
        addresses: vec![Ipv4Addr::new(203, 0, 113, a), Ipv4Addr::new(203, 0, 113, a + 1)],
        port_min: 1_030,
        port_max: 1_030 + span,
        reserved_ports: if reserved { vec![1_033, 1_034, 1_040] } else { vec![] },
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

/// A shard, and the external endpoints it gave.
struct Bed {
    shard: Shard,
    caught: Caught,
    external: HashMap<(u8, bool, u8), SocketAddrV4>,
}

/// A burst; the verdicts.
fn step(bed: &mut Bed, now: Instant, specs: &[Spec]) -> Vec<Option<Verdict>> {
    let mut keys = vec![];
    let mut buffers: Vec<Vec<u8>> = vec![];
    for s in specs {
        let internal = build::endpoint([100, 64, 0, 10 + s.sub], 5_000 + u16::from(s.port));
        let remote = build::endpoint([198, 51, 100, 1 + s.remote], 80);
        let (source, destination) = if s.inside {
            (internal, remote)
        } else {
            // Without a mapping to a port that is never given out, so that both decide alike.
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

/// Ports in use, mappings, their owners, pairings and counters agree.
fn check(bed: &Bed) {
    let shared = bed.shard.shared();
    let used: u64 = (0..shared.address_count() as u32)
        .flat_map(|a| [Protocol::Udp, Protocol::Tcp].map(|p| u64::from(shared.ports_used(AddressIndex(a), p))))
        .sum();
    let held = u64::from(bed.shard.held_ports_len());
    assert_eq!(used, u64::from(bed.shard.mappings_len()) + held, "ports used, mappings and ports that rest");
    let c = bed.shard.counters();
    let made: u64 = c.mappings_created.iter().sum();
    let gone: u64 = c.mappings_removed.iter().sum();
    assert_eq!(made - gone, u64::from(bed.shard.mappings_len()));
    assert_eq!(c.sessions_created - c.sessions_removed, bed.shard.sessions_len());
    let mut seen = HashSet::new();
    let mut owners = HashSet::new();
    for i in 1..bed.shard.mappings.walk_end() {
        let m = bed.shard.mappings.get(i);
        if m.is_in_use() {
            assert!(seen.insert((m.protocol(), m.external())), "external twice");
            owners.insert(m.internal_address());
            let s = bed.shard.subscribers.get(m.subscriber);
            assert!(s.is_in_use() && s.address == m.internal_address());
            let a = shared.address_index(m.external().address).unwrap();
            assert_eq!(shared.owner(a, m.protocol(), m.external_port()).map(|x| x.1.0), Some(i));
            assert!(m.external_port() >= 1_030 && m.external_port() <= 1_030 + 200);
        }
    }
    assert_eq!(owners.len(), bed.shard.subscribers_len());
    let paired: u32 =
        (0..shared.address_count() as u32).map(|a| shared.ports.paired_subscribers(AddressIndex(a))).sum();
    let want = (1..bed.shard.subscribers.walk_end())
        .filter(|s| {
            let s = bed.shard.subscribers.get(*s);
            s.is_in_use() && s.paired != u32::MAX
        })
        .count();
    assert_eq!(paired as usize, want);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn the_short_ways_hold_where_everything_is_short(
        bursts in prop::collection::vec(prop::collection::vec(spec(), 1..64), 1..16),
        two in any::<bool>(), arbitrary in any::<bool>(), parity in any::<bool>(), span in 8_u16..90, reserved in any::<bool>(),
        mappings_max in 8_u32..80, subscribers_max in 2_u32..8,
    ) {
        let mut settings = settings();
        settings.pools = pools(two, arbitrary, parity, span, reserved);
        settings.limits = Limits { mappings_max, subscribers_max, ..settings.limits };
        let bed = |long_way_only: bool| {
            let shared = Arc::new(Shared::new(settings.clone(), 1).unwrap());
            let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).unwrap();
            shard.long_way_only = long_way_only;
            Bed { shard, caught: Caught::default(), external: HashMap::new() }
        };
        let (mut short, mut long) = (bed(false), bed(true));
        let mut now = Instant::ORIGIN;
        let mut diverged = false;
        for burst in &bursts {
            for spec in burst { if spec.pause > 0 { now = now + Duration::from_millis(1 << spec.pause); } }
            let left = step(&mut short, now, burst);
            let right = step(&mut long, now, burst);
            // A port looked for in vain twice takes more random numbers than once: from then on the ports differ.
            let exhausted = Some(Verdict::PortsExhausted);
            diverged |= left.contains(&exhausted) || right.contains(&exhausted) || short.external != long.external;
            if !diverged {
                prop_assert!(left == right, "verdicts differ: {:?}", left.iter().zip(&right).zip(burst).filter(|((x, y), _)| x != y).collect::<Vec<_>>());
            }
        }
        // Everything ends.
        for bed in [&mut short, &mut long] {
            let mut later = now + Duration::from_secs(1_000_000);
            for _ in 0..2_000 { bed.shard.maintain(later, &mut bed.caught); later = later + Duration::from_secs(1); }
            prop_assert!(bed.shard.is_empty());
            check(bed);
        }
    }
}
