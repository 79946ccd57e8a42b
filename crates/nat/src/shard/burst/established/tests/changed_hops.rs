//! Established flows follow changed next hops by the short way.

use core::net::Ipv4Addr;

use super::*;
use crate::headers::packet::NextHopId;
use crate::routes::live::Writer;
use crate::settings::Route;

const OUTSIDE: InterfaceId = InterfaceId(Side::Outside as u16);
const INSIDE: InterfaceId = InterfaceId(Side::Inside as u16);
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
const OTHER_ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 253);
/// Tables of live routes.
const OUT: usize = 0;
const IN: usize = 1;

struct Flow {
    shard: Shard,
    external: SocketAddrV4,
}

impl Flow {
    const SUBSCRIBER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(100, 64, 0, 9), 5_000);
    const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 53);

    fn new(mut shard: Shard) -> Flow {
        let sent = one(&mut shard, from(Side::Inside), &build::udp(Flow::SUBSCRIBER, Flow::SERVER).build()).0;
        let port = u16::from_be_bytes([sent[20], sent[21]]);
        let external = build::endpoint([sent[12], sent[13], sent[14], sent[15]], port);
        let mut flow = Flow { shard, external };
        flow.send(Side::Outside, 100);
        flow.send(Side::Inside, 100);
        flow
    }

    /// The next hop it leaves by, and how many packets took the short way.
    fn send(&mut self, side: Side, length: usize) -> (Option<NextHopId>, u64) {
        let packet = match side {
            Side::Inside => build::udp(Flow::SUBSCRIBER, Flow::SERVER),
            Side::Outside => build::udp(Flow::SERVER, self.external),
        };
        let before = self.shard.path.short_ways;
        let packet = packet.payload_length(length - 28).dont_fragment().build();
        let (_, outcome, _) = one(&mut self.shard, from(side), &packet);
        let hop = match outcome {
            Outcome::Transmit { egress, .. } => Some(egress.next_hop),
            _ => None,
        };
        (hop, self.shard.path.short_ways - before)
    }

    #[track_caller]
    fn expect_short(&mut self, what: &str) -> [(NextHopId, Option<Ipv4Addr>); 2] {
        [Side::Inside, Side::Outside].map(|side| {
            let (hop, short_ways) = self.send(side, 100);
            assert_eq!(short_ways, 1, "{what}: from {side:?} by the short way");
            let hop = hop.expect("it leaves");
            (hop, self.shard.shared().next_hops().nth(hop.index()).expect("a next hop").gateway)
        })
    }

    fn adopt(&mut self, routes: Vec<Route>) {
        let shared = self.shard.shared();
        let settings = Settings { routes, ..shared.settings().clone() };
        let next = Arc::new(shared.successor(settings, Instant::ORIGIN).expect("settings are sound"));
        self.shard.adopt(&mut crate::Successor::new(&self.shard.path.ledger.shared, &next));
    }
}

fn shard_of(settings: Settings) -> Shard {
    let shared = Arc::new(Shared::new(settings, 1).expect("settings are sound"));
    Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices")
}

fn route(prefix: Prefix, next_hop: Ipv4Addr) -> Route {
    Route { prefix, next_hop, interface: OUTSIDE }
}

#[test]
fn established_flows_follow_changed_live_routes() {
    follow_changed_live_routes(Prefix::ALL);
}

#[test]
fn established_flows_follow_changed_live_routes_of_a_full_table() {
    let server = Prefix::new(*Flow::SERVER.ip(), 24).expect("a prefix");
    let flow = follow_changed_live_routes(server);
    let remembered = flow.shard.path.ledger.route_cache.get(OUT as u16, Flow::SERVER.ip().to_bits());
    assert_eq!(remembered, None, "a byte for the /24 had the answer, so no address was remembered");
}

/// `prefix`: of the route to the server.
fn follow_changed_live_routes(prefix: Prefix) -> Flow {
    let shard = shard_of(Settings { live_routes: true, ..settings() });
    let live = Arc::clone(shard.shared().live_routes().expect("they are live"));
    let mut writer = Writer::new(&live);
    // The only worker has passed all changes.
    let pass = |writer: &mut Writer| {
        live.report(0, live.generation());
        writer.publish();
    };
    let subscribers = Prefix::new(Ipv4Addr::new(100, 64, 0, 0), 10).expect("a prefix");
    let inside = writer.target(&[(INSIDE, 0, 1_500, 1)]).expect("room");
    let first = writer.target(&[(OUTSIDE, ROUTER.to_bits(), 1_500, 1)]).expect("room");
    pass(&mut writer);
    writer.set(IN, subscribers, inside).expect("room");
    writer.set(OUT, prefix, first).expect("room");
    pass(&mut writer);

    let mut flow = Flow::new(shard);
    let [(slot, router), (_, none)] = flow.expect_short("routes that came after the shard");
    assert_eq!((router, none), (Some(ROUTER), None));
    assert_eq!(flow.send(Side::Inside, 1_500), (Some(slot), 1), "as long as the MTU");

    // Another router with a smaller MTU reuses the slot.
    writer.remove(OUT, prefix, None);
    writer.release(first);
    writer.publish();
    assert_eq!(flow.send(Side::Inside, 100), (None, 0), "no route");
    pass(&mut writer);
    let second = writer.target(&[(OUTSIDE, OTHER_ROUTER.to_bits(), 600, 1)]).expect("room");
    pass(&mut writer);
    writer.set(OUT, prefix, second).expect("room");
    pass(&mut writer);
    let [reused, _] = flow.expect_short("a slot with other content");
    assert_eq!(reused, (slot, Some(OTHER_ROUTER)));
    assert_eq!(flow.send(Side::Inside, 600), (Some(slot), 1), "as long as the MTU");
    assert_eq!(flow.send(Side::Inside, 601), (None, 0), "longer than the new MTU");

    flow.adopt(Vec::new());
    assert_eq!(flow.expect_short("a reload")[0], (slot, Some(OTHER_ROUTER)));
    flow
}

#[test]
fn established_flows_follow_renumbered_next_hops() {
    let mut flow = Flow::new(shard_of(settings()));
    let before = flow.expect_short("before the reload")[0];
    assert_eq!(before.1, Some(ROUTER));
    let elsewhere = Prefix::new(Ipv4Addr::new(8, 0, 0, 0), 8).expect("a prefix");
    flow.adopt(vec![route(elsewhere, OTHER_ROUTER), route(Prefix::ALL, ROUTER)]);
    let after = flow.expect_short("after the reload")[0];
    assert_ne!(after.0, before.0, "another number");
    assert_eq!(after.1, Some(ROUTER));
}
