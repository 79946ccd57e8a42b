//! A shard whose mappings can all expire at once.

use core::net::Ipv4Addr;
use std::sync::Arc;

use nat::Duration;
use nat::Instant;
use nat::Outcome;
use nat::Packet;
use nat::Settings;
use nat::Shard;
use nat::Shared;
use nat::packet::Egress;
use nat::packet::PacketMeta;
use nat::packet::Sink;
use nat::packet::Stage;
use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Route;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;
use nat::types::WorkerId;

use crate::packets::BURST;
use crate::packets::packet;

pub(crate) const FROM_INSIDE: PacketMeta =
    PacketMeta { record: 0, ingress: InterfaceId(0), stage: Stage::Received, turn: 0, ports: (0, 0) };
/// Longer than any measurement.
const IDLE: Duration = Duration::from_secs(86_400);
/// About what a worker needs for a burst.
const BETWEEN_CALLS: Duration = Duration::from_micros(10);

struct Nobody;

impl Sink for Nobody {
    fn transmit(&mut self, _: Egress, _: &[&[u8]]) -> bool {
        unreachable!("the shard sends nothing by itself here")
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        unreachable!("there is one worker")
    }
}

pub(crate) struct World {
    pub(crate) shard: Shard,
    now: Instant,
    mappings: u32,
}

impl World {
    /// Empty, with room for so many mappings.
    pub(crate) fn new(mappings: u32) -> World {
        let shared = Shared::new(settings(mappings), 1).expect("the settings are in range");
        let shard = Shard::new(Arc::new(shared), WorkerId(0), [3, 1, 4, 1]).expect("there is memory");
        World { shard, now: Instant::ORIGIN, mappings }
    }

    /// Each internal endpoint sends a datagram, until all mappings exist.
    pub(crate) fn fill(&mut self) {
        let mut next = 0;
        while next < self.mappings {
            let serials = next..(next + BURST as u32).min(self.mappings);
            next = serials.end;
            let mut buffers: Vec<_> = serials.map(|serial| packet(false, serial)).collect();
            let mut burst: Vec<_> = buffers.iter_mut().map(|bytes| Packet::new(bytes, FROM_INSIDE)).collect();
            self.shard.process(self.now, &mut burst, &mut Nobody);
            assert!(burst.iter().all(|packet| matches!(packet.outcome, Outcome::Transmit { .. })), "there is room");
        }
        assert_eq!(self.shard.view().mappings_len(), self.mappings);
    }

    pub(crate) fn let_all_run_out(&mut self) {
        self.now = self.now + IDLE;
    }

    pub(crate) fn sweep_a_moment(&mut self) {
        self.now = self.now + BETWEEN_CALLS;
        self.shard.maintain(self.now, &mut Nobody);
    }

    pub(crate) fn sweep_until_empty(&mut self) {
        for _ in 0..self.mappings + 1_000 {
            if self.shard.is_empty() {
                return;
            }
            self.sweep_a_moment();
        }
        unreachable!("{} mappings are left", self.shard.view().mappings_len());
    }
}

fn settings(mappings: u32) -> Settings {
    let interface = |name: &str, side, last| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address: Ipv4Addr::new(192, 168, last, 1), prefix_length: 30 }],
        mtu: 1_500,
    };
    let route = |prefix, last, interface| Route {
        prefix,
        next_hop: Ipv4Addr::new(192, 168, last, 2),
        interface: InterfaceId(interface),
    };
    let inside = Prefix::new(Ipv4Addr::new(10, 0, 0, 0), 8).expect("a prefix");
    let addresses = (mappings + mappings / 4).div_ceil(64_512) + 1;
    let mut settings = Settings {
        interfaces: vec![interface("inside", Side::Inside, 255), interface("outside", Side::Outside, 254)],
        routes: vec![route(inside, 255, 0), route(Prefix::ALL, 254, 1)],
        pools: vec![Pool {
            name: "pool".to_owned(),
            addresses: (0..addresses).map(|i| Ipv4Addr::from_bits(0xcb00_0001 + i)).collect(),
            ..Pool::default()
        }],
        limits: Limits {
            mappings_max: mappings,
            extra_sessions_max: 1_024,
            subscribers_max: mappings / 64 + 1,
            ..Limits::default()
        },
        ..Settings::default()
    };
    settings.timeouts.udp = IDLE;
    settings
}
