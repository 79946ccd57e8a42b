//! Frames on both sides of an edge.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use wire::build;
use wire::build::Builder;
use wire::tcp::Flags;

use super::*;
use crate::topology::FIRST_EXTERNAL;

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const DEVICE: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 7, 9);
const REMOTE: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
const FAMILIES: [Family; 2] = [Family::Nat64, Family::Dslite];
const PORTS: [PortIndex; 2] = [PortIndex(0), PortIndex(1)];

fn bed(family: Family, edges: Edges) -> (MemoryBed, CustomerEdge<MemoryIo>) {
    let bed = MemoryBed::new(&MemorySettings::default());
    let io = bed.io(0);
    (bed, CustomerEdge::new(io, family, edges))
}

/// What is on the link when the tester sends a frame.
fn sent(bed: &MemoryBed, edge: &mut CustomerEdge<MemoryIo>, frame: &[u8]) -> Vec<u8> {
    let mut buffer = edge.allocate().unwrap();
    assert!(buffer.fill(&[frame]));
    let mut burst = Burst::new();
    burst.push(buffer).unwrap();
    edge.transmit(PORTS[0], &mut burst);
    bed.pull(PORTS[0]).unwrap().1.bytes().to_vec()
}

/// What the tester gets of a frame on the link.
fn received(bed: &MemoryBed, edge: &mut CustomerEdge<MemoryIo>, port: PortIndex, frame: &[u8]) -> Vec<u8> {
    assert!(bed.push(0, port, frame));
    let mut burst = Burst::new();
    edge.receive(port, &mut burst);
    burst.first().unwrap().bytes().to_vec()
}

fn framed(packet: &[u8]) -> Vec<u8> {
    build::frame(OWN, DEVICE, ETHER_TYPE_IPV4, packet)
}

fn udp() -> Builder {
    build::udp(SocketAddrV4::new(HOST, 1_111), SocketAddrV4::new(REMOTE, 80)).payload(&[7; 18])
}

/// Packets of every kind that a test or a probe sends.
fn packets() -> Vec<Vec<u8>> {
    let (host, remote) = (SocketAddrV4::new(HOST, 1_111), SocketAddrV4::new(REMOTE, 80));
    let answer = build::udp(remote, host).payload(b"answer").build();
    let whole = udp().payload(&[3; 1_400]).identification(77).build();
    let mut all = vec![
        udp().build(),
        udp().payload(b"").build(),
        udp().ttl(3).ds_field(0x2e).build(),
        build::tcp(host, remote, Flags::SYN).mss(1_460).build(),
        build::tcp(host, remote, Flags::ACK).payload(&[1; 1_300]).dont_fragment().build(),
        build::echo_request(HOST, REMOTE, 5).payload(b"ping").build(),
        build::icmp_error(HOST, REMOTE, 3, 3, &answer).build(),
        build::udp(host, SocketAddrV4::new(FIRST_EXTERNAL, 9)).payload(b"hairpin").build(),
    ];
    all.extend(build::fragment(&whole, 700));
    all
}

#[test]
fn every_kind_of_packet_comes_back_as_it_was() {
    for family in FAMILIES {
        for packet in packets() {
            let (bed, mut edge) = bed(family, Edges::Both);
            let frame = framed(&packet);
            let on_link = sent(&bed, &mut edge, &frame);
            assert_eq!(ether_type(&on_link), ETHER_TYPE_IPV6, "{family:?}: {packet:02x?}");
            assert_eq!(on_link[..12], frame[..12], "{family:?}: the stations stay");
            let view = Ipv6::new_checked(&on_link[HEADER_LENGTH..]).unwrap();
            assert_eq!(view.source(), host(HOST.to_bits()), "{family:?}");
            let back = received(&bed, &mut edge, PORTS[1], &on_link);
            assert_eq!(back, frame, "{family:?}: {packet:02x?}");
        }
    }
}

#[test]
fn small_frames_grow_by_their_header_alone() {
    for (family, growth) in [(Family::Nat44, 0), (Family::Nat64, 20), (Family::Dslite, 40)] {
        let (bed, mut edge) = bed(family, Edges::Inside);
        let mut frame = framed(&udp().build());
        // Padding stays behind the packet.
        frame.extend([0; 6]);
        assert_eq!((sent(&bed, &mut edge, &frame).len(), family.growth()), (frame.len() + growth, growth));
    }
}

#[test]
fn a_frame_that_waits_for_room_changes_once() {
    let (bed, mut edge) = bed(Family::Nat64, Edges::Inside);
    let on_link = sent(&bed, &mut edge, &framed(&udp().build()));
    assert_eq!(sent(&bed, &mut edge, &on_link), on_link);
}

#[test]
fn only_the_inside_port_has_an_edge_towards_a_device() {
    let (bed, mut edge) = bed(Family::Nat64, Edges::Inside);
    let frame = framed(&udp().build());
    let mut buffer = edge.allocate().unwrap();
    assert!(buffer.fill(&[&frame]));
    let mut burst = Burst::new();
    burst.push(buffer).unwrap();
    edge.transmit(PORTS[1], &mut burst);
    assert_eq!(bed.pull(PORTS[1]).unwrap().1.bytes(), frame);
    let in_ipv6 = sent(&bed, &mut edge, &frame);
    assert_eq!(received(&bed, &mut edge, PORTS[1], &in_ipv6), in_ipv6);
}

#[test]
fn no_packet_of_another_softwire_arrives() {
    let (bed, mut edge) = bed(Family::Dslite, Edges::Inside);
    let inner = build::udp(SocketAddrV4::new(REMOTE, 80), SocketAddrV4::new(HOST, 1_111)).payload(&[7; 18]).build();
    let softwire = |to: u128| {
        let outer = wire::build6::raw(AFTR, Ipv6Addr::from_bits(to), PROTOCOL_IPV4, &inner);
        build::frame(DEVICE, OWN, ETHER_TYPE_IPV6, &outer)
    };
    let own = received(&bed, &mut edge, PORTS[0], &softwire(host(HOST.to_bits())));
    assert_eq!(own, build::frame(DEVICE, OWN, ETHER_TYPE_IPV4, &inner));
    let other = softwire(host(HOST.to_bits() + 1));
    assert_eq!(received(&bed, &mut edge, PORTS[0], &other), other);
}

#[test]
fn a_changed_address_or_checksum_is_no_frame_of_the_tester() {
    let (bed, mut edge) = bed(Family::Nat64, Edges::Both);
    let key = crate::frame::TrialKey::new(1, 2);
    let stamp = crate::frame::Stamp { tuple: 7, sequence: 9, way: crate::frame::Way::Outbound };
    let stations = crate::frame::Stations { own: OWN, device: DEVICE };
    let [from, to] = [(HOST, 1_111), (REMOTE, 80)].map(|(address, port)| crate::tuples::Endpoint::new(address, port));
    let mut frame = [0; 60];
    key.write(&mut frame, stations, from, to, stamp);
    let on_link = sent(&bed, &mut edge, &frame);
    let seen = key.read(&received(&bed, &mut edge, PORTS[1], &on_link)).unwrap();
    assert_eq!((seen.source, seen.destination, seen.stamp), (from, to, stamp));
    let packet = HEADER_LENGTH..on_link.len();
    for at in packet {
        // Traffic class, flow label and hop limit have no checksum.
        if (HEADER_LENGTH..HEADER_LENGTH + 4).contains(&at) || at == HEADER_LENGTH + ipv6::HOP_LIMIT_OFFSET {
            continue;
        }
        for bit in 0..8 {
            let mut changed = on_link.clone();
            changed[at] ^= 1 << bit;
            let back = received(&bed, &mut edge, PORTS[1], &changed);
            assert!(key.read(&back).is_err(), "bit {bit} of byte {at} may be changed unseen");
        }
    }
}

#[test]
fn arp_of_the_tester_is_neighbour_discovery_on_the_link() {
    for family in FAMILIES {
        let (bed, mut edge) = bed(family, Edges::Inside);
        let request = arp::Message::request(OWN, TESTER_INSIDE.to_bits(), DEVICE_INSIDE.to_bits());
        let on_link = sent(&bed, &mut edge, &build::arp_frame(None, &request));
        let asked = neighbour::Message::parse(&on_link[HEADER_LENGTH..]).unwrap();
        assert_eq!((asked.kind, asked.target), (neighbour::Kind::Solicitation, DEVICE_INSIDE6.to_bits()));
        assert_eq!(on_link[..6], ipv6::station_of_group(asked.destination));
        let mut packet = [0; neighbour::LENGTH_MAX];
        let length = asked.reply(DEVICE).write(&mut packet);
        let answer = build::frame(DEVICE, OWN, ETHER_TYPE_IPV6, &packet[..length]);
        let answer = arp_of(&received(&bed, &mut edge, PORTS[0], &answer)).unwrap();
        assert_eq!((answer.operation, answer.sender_mac), (arp::Operation::Reply, DEVICE));
        assert_eq!(answer.sender_address, DEVICE_INSIDE.to_bits());
    }
}

#[test]
fn the_edge_answers_solicitations_for_the_tester_alone() {
    let (bed, mut edge) = bed(Family::Nat64, Edges::Inside);
    for (target, answers) in [(TESTER_INSIDE6, true), (DEVICE_INSIDE6, false), (AFTR, false)] {
        let message = neighbour::Message::solicitation(DEVICE_INSIDE6.to_bits(), DEVICE, target.to_bits());
        let mut packet = [0; neighbour::LENGTH_MAX];
        let length = message.write(&mut packet);
        let group = MacAddress(ipv6::station_of_group(message.destination));
        received(&bed, &mut edge, PORTS[0], &build::frame(DEVICE, group, ETHER_TYPE_IPV6, &packet[..length]));
        let answer = bed.pull(PORTS[0]).map(|(_, buffer)| buffer.bytes().to_vec());
        assert_eq!(answer.is_some(), answers, "{target}");
        if let Some(answer) = answer {
            let advertised = neighbour::Message::parse(&answer[HEADER_LENGTH..]).unwrap();
            assert_eq!(
                (advertised.target, advertised.station),
                (target.to_bits(), Some(MacAddress(edge.mac(PORTS[0]))))
            );
            assert_eq!(answer[..6], DEVICE.0, "to who asked");
        }
    }
}

#[test]
fn each_inside_address_is_a_customer_of_its_own() {
    let customers: std::collections::HashSet<u128> = (0..0x1_0000_u32)
        .map(|low| {
            let inside = INSIDE << 16 | low;
            assert_eq!(address4(address6(inside)), Some(inside));
            customer_of(inside).to_bits() >> (128 - u32::from(CUSTOMER_PREFIX_LENGTH))
        })
        .collect();
    assert_eq!(customers.len(), 0x1_0000);
    for address in [DEVICE_INSIDE, TESTER_INSIDE, REMOTE, FIRST_EXTERNAL] {
        assert_eq!(address4(address6(address.to_bits())), Some(address.to_bits()), "{address}");
    }
    assert_eq!(address4(host(HOST.to_bits()) | 2), None);
}

#[test]
fn no_length_of_a_frame_is_a_panic() {
    for family in FAMILIES {
        for packet in packets() {
            let (bed, mut edge) = bed(family, Edges::Both);
            let frame = framed(&packet);
            let on_link = sent(&bed, &mut edge, &frame);
            for length in 0..on_link.len() {
                received(&bed, &mut edge, PORTS[0], &on_link[..length]);
                if length < frame.len() {
                    sent(&bed, &mut edge, &frame[..length]);
                }
            }
        }
    }
}

#[test]
fn errors_that_are_translated_twice_have_the_codes_ipv6_has() {
    for (sent, seen) in [((3, 0), (3, 1)), ((3, 2), (3, 2)), ((3, 3), (3, 3)), ((3, 4), (3, 4)), ((3, 13), (3, 10))] {
        assert_eq!(arrives_as(Family::Nat64, sent), Some(seen), "{sent:?}");
        assert_eq!(arrives_as(Family::Dslite, sent), Some(sent), "{sent:?}");
    }
    assert_eq!(arrives_as(Family::Nat64, (4, 0)), None, "a source quench has no meaning in IPv6");
}
