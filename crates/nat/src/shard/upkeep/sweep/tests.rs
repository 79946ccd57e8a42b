use std::sync::Arc;

use wire::build;

use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::settings::PortTimeout;
use crate::shard::Shard;
use crate::shard::tests::settings;
use crate::snapshot::shared::Shared;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::WorkerId;

const LONG: u32 = 20_000;
const SHORT: u32 = 4_000;
/// Its mappings end after five seconds.
const SHORT_PORT: u16 = 53;

struct Nothing;

impl Sink for Nothing {
    fn transmit(&mut self, _: Egress, _: &[&[u8]]) -> bool {
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        false
    }
}

/// A worker without a network.
struct Bench {
    shard: Shard,
    opened: u32,
}

impl Bench {
    fn new() -> Bench {
        let mut settings = settings();
        settings.port_timeouts =
            vec![PortTimeout { protocol: Protocol::Udp, ports: SHORT_PORT..=SHORT_PORT, idle: Duration::from_secs(5) }];
        let shared = Arc::new(Shared::new(settings, 1).unwrap());
        Bench { shard: Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).unwrap(), opened: 0 }
    }

    /// So many new flows in bursts, with a call of the sweep after each.
    fn open(&mut self, at: Instant, count: u32, remote_port: u16) {
        for first in (0..count).step_by(BURST_MAX) {
            let mut packets: Vec<Vec<u8>> = (first..count.min(first + BURST_MAX as u32))
                .map(|_| {
                    self.opened += 1;
                    let [high, low] = (self.opened as u16).to_be_bytes();
                    let inside = build::endpoint([100, 64, high, low.max(2)], 1_024 + (self.opened >> 16) as u16);
                    build::udp(inside, build::endpoint([198, 51, 100, 1], remote_port)).build()
                })
                .collect();
            let mut burst: Vec<Packet<'_>> =
                packets.iter_mut().map(|packet| Packet::new(packet, PacketMeta::default())).collect();
            self.shard.process(at, &mut burst, &mut Nothing);
            drop(burst);
            self.shard.maintain(at, &mut Nothing);
        }
    }

    fn mappings(&self) -> u32 {
        self.shard.view().mappings_len()
    }
}

/// At a standing clock the walk by time looks at 16 records a call: it would need 1,500 calls.
#[test]
fn new_mappings_find_expired_ones_among_many_that_live() {
    let mut bench = Bench::new();
    bench.open(Instant::ORIGIN, LONG / 2, 443);
    let short = bench.mappings();
    bench.open(Instant::ORIGIN, SHORT, SHORT_PORT);
    let short = u64::from(bench.mappings() - short);
    assert!(short > u64::from(SHORT) * 9 / 10, "few flows share a mapping: {short}");
    bench.open(Instant::ORIGIN, LONG / 2, 443);
    let later = Instant::ORIGIN + Duration::from_secs(6);
    let before = bench.shard.counters().mappings_removed.iter().sum::<u64>();
    for call in 0.. {
        assert!(call < 100, "{} mappings are left", bench.mappings());
        bench.open(later, BURST_MAX as u32, 443);
        let removed = bench.shard.counters().mappings_removed.iter().sum::<u64>() - before;
        if removed == short {
            break;
        }
        assert!(removed < short, "only expired mappings end");
    }
}
