//! Both ways give guaranteed ports to nobody else.

use std::sync::Arc;

use proptest::prelude::*;
use wire::build;
use wire::tcp::Flags;

use super::Caught;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::settings::Class;
use crate::settings::Pool;
use crate::settings::SubscriberLimits;
use crate::shard::Shard;
use crate::shard::tests::settings;
use crate::snapshot::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

const ADDRESS: AddressIndex = AddressIndex(0);
/// Last byte of the first subscriber's address. The first two are guaranteed ports.
const FIRST: u8 = 10;
const GUARANTEED: u32 = 2;

struct Bed {
    shard: Shard,
    caught: Caught,
    now: Instant,
}

impl Bed {
    fn new(ports: u16, reserved: [u32; Protocol::COUNT], parity: bool, long_way_only: bool) -> Bed {
        let mut settings = settings();
        settings.pools = vec![Pool {
            name: "a".into(),
            addresses: vec![[203, 0, 113, 1].into()],
            port_min: 2_000,
            port_max: 1_999 + ports,
            subscribers: vec![Prefix::new([100, 64, 0, 0].into(), 24).expect("no host bits")],
            parity,
            reuse_delay: Duration::from_secs(30),
            ..Pool::default()
        }];
        settings.classes = vec![Class {
            name: "special".into(),
            subscribers: vec![Prefix::new([100, 64, 0, FIRST].into(), 31).expect("no host bits")],
            realms: vec![],
            limits: SubscriberLimits { reserved_ports: reserved, ..SubscriberLimits::default() },
            gateways: None,
        }];
        let shared = Arc::new(Shared::new(settings, 1).expect("settings in range"));
        let mut shard = Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory");
        shard.path.long_way_only = long_way_only;
        Bed { shard, caught: Caught::default(), now: Instant::ORIGIN }
    }

    fn burst(&mut self, opens: &[(u8, Protocol, u16)]) -> Vec<Option<Verdict>> {
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        for (subscriber, protocol, port) in opens {
            let source = build::endpoint([100, 64, 0, FIRST + subscriber], 5_000 + port);
            let server = build::endpoint([198, 51, 100, 1], 80);
            let packet = match protocol {
                Protocol::Tcp => build::tcp(source, server, Flags::SYN),
                _ => build::udp(source, server),
            };
            let mut packet = packet.payload_length(10).ttl(64).dont_fragment().build();
            packet.resize(packet.len().max(46), 0);
            buffers.push(packet);
        }
        let meta = PacketMeta { ingress: InterfaceId(Side::Inside as u16), ..PacketMeta::default() };
        let mut burst: Vec<Packet<'_>> = buffers.iter_mut().map(|buffer| Packet::new(buffer, meta)).collect();
        self.shard.process(self.now, &mut burst, &mut self.caught);
        let verdicts = burst.iter().map(|packet| packet.verdict).collect();
        self.shard.maintain(self.now, &mut self.caught);
        verdicts
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..20 {
            self.now = self.now + Duration::from_micros(time.as_micros() / 20);
            self.shard.maintain(self.now, &mut self.caught);
        }
    }

    fn free(&self, protocol: Protocol) -> u32 {
        self.shard.path.ledger.shared.ports.available(ADDRESS, protocol)
            - self.shard.path.ledger.shared.ports.used(ADDRESS, protocol)
    }

    /// Guaranteed ports not in use yet, also of subscribers without state.
    fn for_guarantees(&self, reserved: [u32; Protocol::COUNT], protocol: Protocol) -> u32 {
        let p = protocol.index();
        let within = (1..self.shard.path.ledger.state.subscribers.walk_end())
            .filter(|slot| self.shard.path.ledger.state.subscribers.get(*slot).is_in_use())
            .map(|slot| self.shard.path.ledger.state.subscribers.account(slot).within()[p]);
        GUARANTEED * reserved[p] - within.sum::<u32>()
    }

    fn books(&self) -> Vec<(u32, u32, u32)> {
        let Some(guarantees) = self.shard.path.ledger.shared.ports.guarantees() else { return Vec::new() };
        let each = Protocol::ALL.into_iter();
        each.map(|p| (guarantees.taken(ADDRESS, p), guarantees.guaranteed(ADDRESS, p), self.free(p))).collect()
    }
}

#[test]
fn the_short_way_leaves_guaranteed_ports_to_their_subscribers() {
    let mut bed = Bed::new(100, [10, 0, 0], false, false);
    // All three are known. The second subscriber with a guarantee has no state yet.
    assert_eq!(
        bed.burst(&[(0, Protocol::Udp, 0), (2, Protocol::Udp, 0), (3, Protocol::Udp, 0)]),
        [Some(Verdict::Outbound); 3]
    );
    let before = bed.shard.path.short_ways;
    let opens: Vec<(u8, Protocol, u16)> = (0..120).map(|n| (2 + (n % 2) as u8, Protocol::Udp, 1 + n)).collect();
    let mut verdicts = Vec::new();
    for some in opens.chunks(32) {
        verdicts.extend(bed.burst(some));
    }
    let given = verdicts.iter().filter(|verdict| **verdict == Some(Verdict::Outbound)).count();
    // 20 of 100 are guaranteed, two others in use.
    assert_eq!(given, 78);
    assert!(verdicts[given..].iter().all(|verdict| *verdict == Some(Verdict::PortsExhausted)), "{verdicts:?}");
    assert!(bed.shard.path.short_ways - before > 40, "{} short ways", bed.shard.path.short_ways);
    assert_eq!(bed.free(Protocol::Udp), 19);
    // Both get all their guaranteed ports.
    let own: Vec<(u8, Protocol, u16)> = (1..12).map(|n| (0, Protocol::Udp, n)).collect();
    let verdicts = bed.burst(&own);
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Some(Verdict::Outbound)).count(), 9);
    let own: Vec<(u8, Protocol, u16)> = (1..12).map(|n| (1, Protocol::Udp, n)).collect();
    let verdicts = bed.burst(&own);
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Some(Verdict::Outbound)).count(), 10);
    assert_eq!(bed.free(Protocol::Udp), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn both_ways_decide_alike_with_guaranteed_ports(
        bursts in prop::collection::vec(
            (prop::collection::vec((0_u8..6, any::<bool>(), 0_u16..30), 1..48), prop_oneof![6 => Just(0_u64), 1 => 1_u64..40, 1 => Just(400)]),
            1..14,
        ),
        reserved in (0_u32..8, 1_u32..8), ports in 24_u16..90, parity in any::<bool>(),
    ) {
        let reserved = [reserved.0, reserved.1, 0];
        let bed = |long_way_only| Bed::new(ports, reserved, parity, long_way_only);
        let (mut short, mut long) = (bed(false), bed(true));
        for (opens, pause) in &bursts {
            let protocol = |is_tcp| if is_tcp { Protocol::Tcp } else { Protocol::Udp };
            let opens: Vec<_> = opens.iter().map(|(who, is_tcp, port)| (*who, protocol(*is_tcp), *port)).collect();
            let (left, right) = (short.burst(&opens), long.burst(&opens));
            prop_assert_eq!(left, right, "verdicts of {:?}", opens);
            prop_assert_eq!(short.books(), long.books());
            for bed in [&mut short, &mut long] {
                for protocol in [Protocol::Udp, Protocol::Tcp] {
                    let (free, for_guarantees) = (bed.free(protocol), bed.for_guarantees(reserved, protocol));
                    prop_assert!(free >= for_guarantees, "{free} {protocol} ports are free, {for_guarantees} are guaranteed");
                }
                bed.pass(Duration::from_secs(*pause));
            }
        }
    }
}
