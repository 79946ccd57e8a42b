//! S15: many workers, and exhaustion.

use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::DefaultHasher;
use std::hash::Hash;
use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Verdict;
use nat::settings::Pooling;
use nat::types::Side;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use super::SYN_ACK;

/// Which queue a card with `queues` queues and this key puts a packet into: the two directions of a
/// flow differ.
fn queue(key: u64, packet: &[u8], queues: usize) -> usize {
    (dice((key, packet[9], source(packet), destination(packet))) % queues as u64) as usize
}

/// A number that looks random and is the same in each run.
fn dice(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

const WORKERS: usize = 16;

/// The packet of one direction of a flow, the `number`-th of its flow.
fn flow_packet(from: SocketAddrV4, to: SocketAddrV4, protocol: Protocol, number: u32) -> Vec<u8> {
    let payload = number.to_be_bytes();
    match protocol {
        Protocol::Udp => build::udp(from, to).payload(&payload).build(),
        Protocol::Tcp if number == 0 => build::tcp(from, to, Flags::SYN).build(),
        Protocol::Tcp => build::tcp(from, to, Flags::ACK).sequence(1).acknowledgment(1).payload(&payload).build(),
        Protocol::Icmp if to.port() == 0 => {
            build::echo_request(*from.ip(), *to.ip(), from.port()).payload(&payload).build()
        }
        Protocol::Icmp => build::echo_reply(*from.ip(), *to.ip(), to.port()).payload(&payload).build(),
    }
}

#[test]
fn sixteen_workers_share_no_endpoint_and_lose_no_reply() {
    covers!("S15", "4787-REQ-3", "5382-REQ-7");
    const FLOWS: u32 = 480_000;
    const KEY: u64 = 0x6d5a_56da_255b_0ec2;
    let mut wanted = settings().pooling(Pooling::Arbitrary);
    wanted.limits.mappings_max = 40_000;
    wanted.limits.extra_sessions_max = 1_000;
    wanted.limits.subscribers_max = 1_000;
    let mut bed = Bed::new(wanted).workers(WORKERS);
    // One subscriber of each worker and more, so that all know the next hops before the bursts
    // come.
    for number in 0..200_u32 {
        let internal = at((0x6445_0000 + number).into(), 5_000);
        let external = bed.open_udp(internal, at(E1, 443));
        assert!(bed.udp_reaches(at(E1, 443), external, internal));
    }
    let mut seen = HashSet::new();
    let hosts = |number: u32| Ipv4Addr::from(0x6443_0000 + number / 60);
    let protocol = |number: u32| Protocol::ALL[number as usize % 3];
    let mut chunk_start = 0;
    while chunk_start < FLOWS {
        let chunk = chunk_start..(chunk_start + 960).min(FLOWS);
        chunk_start = chunk.end;
        let internals: Vec<(SocketAddrV4, Protocol)> =
            chunk.map(|number| (at(hosts(number), 2_000 + (number % 60) as u16), protocol(number))).collect();
        let remote = |protocol| if protocol == Protocol::Icmp { at(E1, 0) } else { at(E1, 443) };
        // Each flow three packets, all flows mixed.
        let mut externals: HashMap<(u8, SocketAddrV4), Vec<u32>> = HashMap::new();
        for number in 0..3 {
            for (internal, protocol) in &internals {
                let packet = flow_packet(*internal, remote(*protocol), *protocol, number);
                bed.offer_to(queue(KEY, &packet, WORKERS), Side::Inside, &packet);
            }
        }
        bed.settle();
        for packet in bed.take_outside() {
            let data = payload(&packet);
            let number = if data.is_empty() { 0 } else { u32::from_be_bytes([data[0], data[1], data[2], data[3]]) };
            externals.entry((packet[9], source(&packet))).or_default().push(number);
        }
        assert_eq!(externals.len(), internals.len(), "each flow has one external endpoint of its own");
        assert!(externals.values().all(|numbers| numbers == &[0, 1, 2]), "in order and without loss");
        for external in externals.keys() {
            assert!(seen.insert(*external), "{external:?} was given out twice");
        }
        // The replies, each by the queue its own hash says.
        for number in 0..3 {
            for (kind, external) in externals.keys() {
                let protocol = Protocol::from_number(*kind).expect("one of the three");
                let from = at(E1, 443);
                let packet = match (protocol, number) {
                    (Protocol::Tcp, 0) => build::tcp(from, *external, SYN_ACK).acknowledgment(1).build(),
                    _ => flow_packet(from, *external, protocol, number),
                };
                bed.offer_to(queue(KEY, &packet, WORKERS), Side::Outside, &packet);
            }
        }
        bed.settle();
        let mut back: HashMap<(u8, SocketAddrV4), Vec<u32>> = HashMap::new();
        for packet in bed.take_inside() {
            let data = payload(&packet);
            let number = if data.is_empty() { 0 } else { u32::from_be_bytes([data[0], data[1], data[2], data[3]]) };
            back.entry((packet[9], destination(&packet))).or_default().push(number);
        }
        assert!(back.values().all(|numbers| numbers == &[0, 1, 2]), "in order and without loss");
        for (internal, protocol) in &internals {
            assert!(back.contains_key(&(protocol.number(), *internal)), "{internal} got its replies");
        }
    }
    assert_eq!(seen.len(), FLOWS as usize);
    assert_eq!(bed.ports_used(), u64::from(FLOWS) + 200);
    let busy = bed.shards().filter(|shard| shard.view().mappings_len() > FLOWS / WORKERS as u32 / 2).count();
    assert_eq!(busy, WORKERS, "the work is spread");
}

#[test]
fn sixteen_workers_use_the_last_port_and_evict_nothing() {
    covers!("S15", "6888-REQ-11a", "6888-REQ-11b", "6888-REQ-11d");
    let mut wanted = settings().pooling(Pooling::Arbitrary).ports(10_000, 10_999);
    wanted.limits.mappings_max = 4_000;
    let mut bed = Bed::new(wanted).workers(WORKERS).steering(Steering::Random);
    let mut firsts = HashMap::new();
    for number in 0..3_000_u32 {
        let internal = at((0x6443_0000 + number / 10).into(), 2_000 + (number % 10) as u16);
        let external = bed.open_udp(internal, at(E1, 9));
        assert!(firsts.insert(external, internal).is_none(), "{external} was given out twice");
    }
    assert_eq!(bed.ports_used(), 3_000, "every port of every address");
    let mut reported = 0;
    for number in 0..500_u32 {
        let internal = at((0x6444_0000 + number).into(), 5_000);
        bed.inside(&build::udp(internal, at(E1, 9)).payload(b"x").build());
        assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new(), "neither translated nor leaked");
        for error in bed.take_inside() {
            assert!(is_icmp(&error, 3, 1));
            assert_eq!(source(quote(&error)), internal);
            reported += 1;
        }
        bed.advance(Duration::from_millis(1));
    }
    assert_eq!((bed.count(Verdict::PortsExhausted), reported), (500, 500));
    for (external, internal) in firsts {
        assert!(bed.udp_reaches(at(E2, 7), external, internal), "the first ones still work");
    }
}

#[test]
fn sixteen_workers_route_errors_and_fragments_to_their_owner() {
    covers!("S15", "S8", "S4");
    let mut wanted = settings();
    wanted.limits.mappings_max = 4_000;
    let mut bed = Bed::new(wanted).workers(WORKERS).steering(Steering::Random);
    for round in 0..200_u16 {
        let host = |number: u16| Ipv4Addr::from(0x6443_0000 + u32::from(round * 2 + number));
        let (one, two) = (host(0), host(1));
        let to = bed.open_udp(at(two, 6000), at(E1, 9));
        let whole = build::udp(at(one, 5000), to).identification(round).payload_length(4_000).build();
        let mut pieces = build::fragment(&whole, 1_500);
        pieces.rotate_left(usize::from(round) % 3);
        for piece in &pieces {
            bed.inside(piece);
        }
        let joined = build::reassemble(&bed.take_inside()).expect("all pieces came out");
        assert_eq!((destination(&joined), payload(&joined)), (at(two, 6000), payload(&whole)));
        let sender = source(&joined);
        bed.inside(&build::icmp_error(two, *sender.ip(), 3, 3, &joined[..100]).build());
        let error = bed.only_inside();
        assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &one));

        let whole = build::udp(at(E1, 9), sender).identification(round).payload_length(4_000).build();
        let mut pieces = build::fragment(&whole, 1_500);
        pieces.rotate_left(usize::from(round) % 3);
        for piece in &pieces {
            bed.outside(piece);
        }
        let joined = build::reassemble(&bed.take_inside()).expect("all pieces came out");
        assert_eq!((destination(&joined), payload(&joined)), (at(one, 5000), payload(&whole)));
        bed.inside(&build::icmp_error(one, E1, 3, 3, &joined[..100]).build());
        assert_eq!(destination(quote(&bed.only_outside())), sender);
    }
    assert_eq!(bed.counters().fragments_held, 0);
}

#[test]
fn nothing_leaves_untranslated_whatever_comes() {
    covers!("S15");
    // The bed looks at both addresses, the checksums and every byte of what leaves on either side.
    // Natrix sends no errors here: they would quote broken packets, as they should.
    let mut quiet = settings();
    (quiet.icmp.errors_to_inside, quiet.icmp.errors_to_outside) = (false, false);
    let mut bed = Bed::new(quiet).workers(4).steering(Steering::Random);
    let external = bed.open_udp(at(I1, 5000), at(E1, 9));
    let tcp = bed.connect(at(I1, 5000), at(E1, 80));
    let id = bed.ping(I1, 7, E1);
    let outbound = [
        build::udp(at(I1, 5000), at(E1, 9)).payload_length(40).build(),
        build::tcp(at(I1, 5000), at(E1, 80), Flags::ACK).sequence(1_001).payload_length(40).build(),
        build::echo_request(I1, E1, 7).payload_length(40).build(),
        build::icmp_error(I1, E1, 3, 3, &build::udp(at(E1, 9), at(I1, 5000)).payload_length(40).build()).build(),
        build::udp(at(I2, 6000), external).payload_length(40).build(),
    ];
    let inbound = [
        build::udp(at(E1, 9), external).payload_length(40).build(),
        build::tcp(at(E1, 80), tcp, Flags::ACK).sequence(5_001).payload_length(40).build(),
        build::echo_reply(E1, *id.ip(), id.port()).payload_length(40).build(),
        build::icmp_error(E1, *id.ip(), 3, 3, &build::udp(external, at(E1, 9)).payload_length(40).build()).build(),
    ];
    for round in 0..20_000_u32 {
        for (side, packets) in [(Side::Inside, &outbound[..]), (Side::Outside, &inbound[..])] {
            let thrown = dice((round, side.index()));
            let mut packet = packets[thrown as usize % packets.len()].clone();
            // One to three bytes of the headers become others, and the header checksum is mostly
            // made right again.
            for change in 0..=thrown >> 8 & 1 {
                let byte = dice((thrown, change));
                let offset = (byte >> 16) as usize % packet.len().min(56);
                packet[offset] = byte as u8;
            }
            let header_length = usize::from(packet[0] & 15) * 4;
            if thrown >> 16 & 7 != 0 && (20..=packet.len()).contains(&header_length) {
                Ipv4::new_unchecked(packet.as_mut_slice()).fill_checksum();
            }
            bed.burst(side, &[packet]);
        }
        if round % 64 == 0 {
            bed.advance(Duration::from_millis(50));
        }
        bed.take_inside();
        bed.take_outside();
    }
    let counters = bed.counters();
    assert!(counters.of(Verdict::Outbound) > 1_000 && counters.of(Verdict::Inbound) > 1_000);
}
