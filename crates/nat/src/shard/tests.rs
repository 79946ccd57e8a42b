//! Tests that need the inside of a shard.

use core::net::Ipv4Addr;
use std::sync::Arc;

use wire::build;
use wire::tcp::Flags;
use wire::verify;

use super::*;
use crate::headers::packet::Outcome;
use crate::policy::rules::Match;
use crate::policy::rules::PortRange;
use crate::random::KeyedHash;
use crate::rows::Filter;
use crate::rows::Query;
use crate::settings::FilterAction;
use crate::settings::FilterRule;
use crate::settings::Interface;
use crate::settings::InterfaceAddress;
use crate::settings::Pool;
use crate::settings::Route;
use crate::settings::Settings;
use crate::time::Duration;
use crate::types::HostNumber;
use crate::types::InterfaceId;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

mod grants;
mod realms;

#[derive(Default)]
struct Caught(Vec<(Egress, Vec<u8>)>);

impl Sink for Caught {
    fn transmit(&mut self, egress: Egress, parts: &[&[u8]]) -> bool {
        self.0.push((egress, parts.concat()));
        true
    }

    fn hand_off(&mut self, _: WorkerId, _: PacketMeta, _: &[&[u8]]) -> bool {
        panic!("one worker hands nothing off");
    }
}

pub(super) fn settings() -> Settings {
    let interface = |name: &str, side, address: [u8; 4]| Interface {
        name: name.to_owned(),
        side,
        realm: RealmId::default(),
        addresses: vec![InterfaceAddress { address: address.into(), prefix_length: 24 }],
        mtu: 1_500,
    };
    Settings {
        interfaces: vec![
            interface("in", Side::Inside, [100, 64, 0, 1]),
            interface("out", Side::Outside, [192, 0, 2, 1]),
        ],
        routes: vec![Route { prefix: Prefix::ALL, next_hop: Ipv4Addr::new(192, 0, 2, 254), interface: InterfaceId(1) }],
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: vec![Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 129)],
            reserved_ports: vec![5_060],
            ..Pool::default()
        }],
        ..Settings::default()
    }
}

fn shard() -> Shard {
    let shared = Arc::new(Shared::new(settings(), 1).expect("settings are sound"));
    Shard::new(shared, WorkerId(0), [1, 2, 3, 4]).expect("memory suffices")
}

pub(super) fn send(shard: &mut Shard, at_s: u64, side: Side, packet: &[u8]) -> (Option<Verdict>, Vec<Vec<u8>>) {
    let (verdict, left) = send_by(shard, at_s, InterfaceId(side as u16), packet);
    (verdict, left.into_iter().map(|(_, packet)| packet).collect())
}

fn send_by(
    shard: &mut Shard,
    at_s: u64,
    ingress: InterfaceId,
    packet: &[u8],
) -> (Option<Verdict>, Vec<(InterfaceId, Vec<u8>)>) {
    let mut bytes = packet.to_vec();
    let mut caught = Caught::default();
    let meta = PacketMeta { ingress, ..PacketMeta::default() };
    let mut burst = [Packet::new(&mut bytes, meta)];
    shard.counters_mut().received += 1;
    shard.process(Instant::ORIGIN + Duration::from_secs(at_s), &mut burst, &mut caught);
    let (outcome, verdict) = (burst[0].outcome, burst[0].verdict);
    let interface_of = |egress: Egress| {
        shard.shared().next_hops().nth(egress.next_hop.index()).expect("a next hop of this snapshot").interface
    };
    let mut left: Vec<(InterfaceId, Vec<u8>)> =
        caught.0.into_iter().map(|(egress, packet)| (interface_of(egress), packet)).collect();
    if let Outcome::Transmit { egress, start, length } = outcome {
        left.push((interface_of(egress), bytes[usize::from(start)..][..usize::from(length)].to_vec()));
    }
    for (_, packet) in &left {
        assert_eq!(verify::faults(packet), [], "every packet that leaves is sound");
    }
    let counters = shard.counters();
    assert_eq!(counters.received, counters.verdicts_total() + counters.fragments_held, "every packet has one verdict");
    (verdict, left)
}

fn source_of(packet: &[u8]) -> (Ipv4Addr, u16) {
    let port = u16::from_be_bytes([packet[20], packet[21]]);
    (Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]), port)
}

#[test]
fn a_udp_exchange_is_translated_both_ways() {
    let mut shard = shard();
    let (i1, e1) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 53));
    let (verdict, left) = send(&mut shard, 0, Side::Inside, &build::udp(i1, e1).payload(b"query").build());
    assert_eq!(verdict, Some(Verdict::Outbound));
    let (address, port) = source_of(&left[0]);
    assert!([Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 129)].contains(&address));
    let external = std::net::SocketAddrV4::new(address, port);
    let (verdict, left) = send(&mut shard, 1, Side::Outside, &build::udp(e1, external).payload(b"answer").build());
    assert_eq!(verdict, Some(Verdict::Inbound));
    assert_eq!(&left[0][16..20], [100, 64, 0, 10]);
    assert_eq!(&left[0][22..24], 5_000u16.to_be_bytes());
}

#[test]
fn translations_and_creations_are_counted_by_what_they_are_of() {
    let mut settings = settings();
    settings.subscriber.ports_max[Protocol::Udp.index()] = 3;
    let mut shard = Shard::new(Arc::new(Shared::new(settings, 1).unwrap()), WorkerId(0), [1, 2, 3, 4]).unwrap();
    let inside = |port| build::endpoint([100, 64, 0, 10], port);
    let e1 = build::endpoint([198, 51, 100, 1], 53);
    // The fourth of UDP is one too many.
    let left = send(&mut shard, 0, Side::Inside, &build::udp(inside(1), e1).build()).1;
    send(&mut shard, 0, Side::Inside, &build::udp(inside(2), e1).build());
    send(&mut shard, 0, Side::Inside, &build::udp(inside(3), e1).build());
    send(&mut shard, 0, Side::Inside, &build::tcp(inside(4), e1, Flags::SYN).build());
    let (verdict, _) = send(&mut shard, 0, Side::Inside, &build::udp(inside(5), e1).build());
    assert_eq!(verdict, Some(Verdict::SubscriberPortQuota));
    // A packet with little time left takes the long way.
    let (address, port) = source_of(&left[0]);
    let external = std::net::SocketAddrV4::new(address, port);
    for ttl in [64, 2] {
        send(&mut shard, 1, Side::Inside, &build::udp(inside(1), e1).ttl(ttl).build());
        send(&mut shard, 1, Side::Outside, &build::udp(e1, external).ttl(ttl).build());
    }
    send(&mut shard, 1, Side::Inside, &build::echo_request(*inside(9).ip(), *e1.ip(), 9).build());
    let of = |protocol: Protocol| shard.counters().translated[protocol.index()];
    assert_eq!([Protocol::Udp, Protocol::Tcp, Protocol::Icmp].map(of), [7, 1, 1]);
    let counted = shard.shared().counted_in_pool(PoolId(0));
    assert_eq!((counted.addresses_paired, counted.mappings_created), (1, 5));
    assert_eq!((counted.refused_without_address, counted.refused_without_port), (0, 1));
    let mut subscribers = Query::all(Filter::default());
    shard.view().subscribers_page(Instant::ORIGIN + Duration::from_secs(1), &mut subscribers);
    let (made, paired) = (subscribers.records[0].mappings_created, subscribers.records[0].addresses_paired);
    assert_eq!((made, paired), (5, 1));
}

#[test]
fn a_bare_ack_makes_no_state() {
    let mut shard = shard();
    let (i1, e1) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
    let (verdict, left) = send(&mut shard, 0, Side::Inside, &build::tcp(i1, e1, Flags::ACK).build());
    assert_eq!((verdict, left.len()), (Some(Verdict::TcpNoSession), 0));
    assert!(shard.is_empty());
}

#[test]
fn idle_time_is_counted_from_the_last_packet_in_every_state() {
    let mut shard = shard();
    let i1 = build::endpoint([100, 64, 0, 10], 5_000);
    let (e1, e2) = (build::endpoint([198, 51, 100, 1], 80), build::endpoint([198, 51, 100, 2], 80));
    let idle = |shard: &Shard, at_s: u64| {
        let now = Instant::ORIGIN + Duration::from_secs(at_s);
        let (mut mappings, mut sessions) = (Query::all(Filter::default()), Query::all(Filter::default()));
        shard.view().mappings_page(now, &mut mappings);
        shard.view().sessions_page(now, &mut sessions);
        let seconds = |idle: Duration| idle.as_micros() / 1_000_000;
        let sessions: Vec<u64> = sessions.records.iter().map(|view| seconds(view.idle)).collect();
        (mappings.records.iter().map(|view| seconds(view.idle)).collect::<Vec<u64>>(), sessions)
    };
    let left = send(&mut shard, 0, Side::Inside, &build::tcp(i1, e1, Flags::SYN).build()).1;
    let (address, port) = source_of(&left[0]);
    let external = std::net::SocketAddrV4::new(address, port);
    assert_eq!(idle(&shard, 7), (vec![7], vec![7]), "opening");
    send(&mut shard, 10, Side::Outside, &build::tcp(e1, external, Flags::SYN.union(Flags::ACK)).build());
    assert_eq!(idle(&shard, 10), (vec![0], vec![0]), "established");
    assert_eq!(idle(&shard, 110), (vec![100], vec![100]), "established");
    assert_eq!(idle(&shard, 10 + 7_500), (vec![7_500], vec![7_500]), "transitory after the established time");
    // The further session ends first, but is younger.
    send(&mut shard, 200, Side::Inside, &build::tcp(i1, e2, Flags::SYN).build());
    assert_eq!(idle(&shard, 205), (vec![5], vec![195, 5]));
    send(&mut shard, 300, Side::Inside, &build::tcp(i1, e1, Flags::ACK.union(Flags::FIN)).build());
    send(&mut shard, 300, Side::Outside, &build::tcp(e1, external, Flags::ACK.union(Flags::FIN)).build());
    assert_eq!(idle(&shard, 303), (vec![3], vec![3, 103]), "closing");
}

#[test]
fn expired_mappings_are_swept_and_their_ports_freed() {
    let mut shard = shard();
    let e1 = build::endpoint([198, 51, 100, 1], 80);
    for port in 0..100 {
        let packet = build::udp(build::endpoint([100, 64, 0, 10], 5_000 + port), e1).build();
        assert_eq!(send(&mut shard, 0, Side::Inside, &packet).0, Some(Verdict::Outbound));
    }
    assert_eq!(shard.view().mappings_len(), 100);
    for round in 0..100 {
        shard.maintain(Instant::ORIGIN + Duration::from_secs(301 + round), &mut Caught::default());
    }
    assert_eq!((shard.view().mappings_len(), shard.view().held_ports_len()), (0, 100), "the ports are held down");
    for round in 0..100 {
        shard.maintain(Instant::ORIGIN + Duration::from_secs(500 + round), &mut Caught::default());
    }
    assert!(shard.is_empty());
    let shared = Arc::clone(shard.shared());
    assert_eq!((0..2).map(|i| shared.ports_used(crate::types::AddressIndex(i), Protocol::Udp)).sum::<u32>(), 0);
}

#[test]
fn a_hairpin_shows_the_external_source_and_takes_one_hop() {
    let mut shard = shard();
    let e1 = build::endpoint([198, 51, 100, 1], 80);
    let (i1, i2) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([100, 64, 0, 11], 6_000));
    let first = send(&mut shard, 0, Side::Inside, &build::udp(i1, e1).build()).1;
    let second = send(&mut shard, 0, Side::Inside, &build::udp(i2, e1).build()).1;
    let (p1, p2) = (source_of(&first[0]), source_of(&second[0]));
    let to = std::net::SocketAddrV4::new(p2.0, p2.1);
    let (verdict, left) = send(&mut shard, 0, Side::Inside, &build::udp(i1, to).ttl(9).payload(b"x").build());
    assert_eq!(verdict, Some(Verdict::Hairpin));
    assert_eq!(source_of(&left[0]), p1);
    assert_eq!(&left[0][16..20], [100, 64, 0, 11]);
    assert_eq!(left[0][8], 8);
}

#[test]
fn fragments_out_of_order_leave_with_one_identification() {
    let mut shard = shard();
    let (i1, e1) = (build::endpoint([100, 64, 0, 10], 5_000), build::endpoint([198, 51, 100, 1], 80));
    let whole = build::udp(i1, e1).payload_length(4_000).identification(77).build();
    let mut pieces = build::fragment(&whole, 1_500);
    pieces.reverse();
    let mut left = Vec::new();
    for piece in &pieces {
        left.extend(send(&mut shard, 0, Side::Inside, piece).1);
    }
    assert_eq!(left.len(), 3);
    let whole = build::reassemble(&left).expect("one datagram");
    assert_eq!(verify::faults(&whole), []);
}

/// Tests in `testkit` with forced collisions depend on this.
#[test]
fn under_a_known_secret_all_keys_of_a_protocol_collide() {
    for protocol in Protocol::ALL {
        let secret = KeyedHash::colliding_secret(protocol as u64);
        let shared = Arc::new(Shared::new(settings(), 1).expect("settings are sound"));
        let shard = Shard::new(shared, WorkerId(0), secret).expect("memory suffices");
        let hash = |address, port| {
            shard.path.ledger.state.hash_of(&crate::state::mapping::InternalKey {
                realm: RealmId::default(),
                protocol,
                address: HostNumber(address),
                port,
            })
        };
        assert!((0..100).all(|n| hash(0x6440_0000 + n, 5_000 + n as u16) == hash(1, 1)), "{protocol}");
    }
}

/// A worker that answered too late adopts a snapshot that the others never see.
#[test]
fn an_undone_snapshot_keeps_its_generations() {
    let filtered = |port| {
        let matches = Match { destination_ports: PortRange { first: port, last: port }, ..Match::ALL };
        let filter = FilterRule { matches, action: FilterAction::Deny, out: true, back: true, log: false };
        Settings { filters: vec![filter], ..settings() }
    };
    let numbers = |shared: &Shared| (shared.generation(), shared.short_generation(), shared.filters.generation());
    let before = Arc::new(Shared::new(filtered(1), 1).expect("settings are sound"));
    let after = |port| Arc::new(before.successor(filtered(port), Instant::ORIGIN).expect("settings are sound"));
    assert_eq!(numbers(&before), (0, 0, 1));
    let (planned, undone) = (after(2), after(3));
    assert_eq!((numbers(&planned), numbers(&undone)), ((1, 1, 2), (1, 1, 2)), "a plan takes no number");
    let _ = Successor::new(&before, &undone);
    let next = after(4);
    assert_eq!(numbers(&next), (2, 2, 3), "what undoes it could not be built");
    let _ = Successor::new(&before, &next);
    let last = next.successor(filtered(4), Instant::ORIGIN).expect("settings are sound");
    assert_eq!(numbers(&last), (3, 3, 3), "the same filters have the same number");
}
