use proptest::prelude::*;

use super::*;
use crate::quoted::Quoted;
use crate::verify;

const INSIDE: SocketAddrV4 = endpoint([100, 64, 0, 10], 40_000);
const SERVER: SocketAddrV4 = endpoint([203, 0, 113, 1], 443);

#[test]
fn every_kind_of_packet_is_right() {
    let udp = udp(INSIDE, SERVER).payload(b"odd").build();
    let packets = [
        udp.clone(),
        super::udp(INSIDE, SERVER).without_checksum().build(),
        tcp(INSIDE, SERVER, Flags::SYN).mss(1460).sequence(7).build(),
        tcp(INSIDE, SERVER, Flags::ACK | Flags::PSH).payload_length(1000).ip_options(&[1, 1, 1]).build(),
        echo_request(*INSIDE.ip(), *SERVER.ip(), 0).build(),
        echo_reply(*INSIDE.ip(), *SERVER.ip(), 0).sequence(0).payload(&[0; 32]).build(),
        icmp_error(*SERVER.ip(), *INSIDE.ip(), 3, 4, &udp).next_hop_mtu(1400).build(),
        icmp_error(*SERVER.ip(), *INSIDE.ip(), 11, 0, &udp[..28]).build(),
        icmp_error(*SERVER.ip(), *INSIDE.ip(), 11, 0, &udp).extension(&[0, 8, 1, 1, 1, 2, 3, 4]).build(),
        icmp_error(*SERVER.ip(), *INSIDE.ip(), 12, 0, &udp).legacy_extension(&[0, 8, 1, 1, 1, 2, 3, 4]).build(),
        raw(*INSIDE.ip(), *SERVER.ip(), 47).payload_length(10).build(),
    ];
    for packet in packets {
        assert_eq!(verify::faults(&packet), [], "{packet:02x?}");
    }
}

#[test]
fn fields_come_back_out_of_the_views() {
    let packet = tcp(INSIDE, SERVER, Flags::SYN | Flags::ACK)
        .sequence(0x1234_5678)
        .acknowledgment(0x9abc_def0)
        .window(512)
        .mss(1400)
        .ttl(3)
        .ds_field(0xb8)
        .identification(77)
        .dont_fragment()
        .ip_options(&[ipv4::OPTION_ROUTER_ALERT, 4, 0, 0])
        .payload(b"hello")
        .build();
    let ip = Ipv4::new_checked(packet.as_slice()).unwrap();
    assert_eq!((ip.source(), ip.destination()), (INSIDE.ip().to_bits(), SERVER.ip().to_bits()));
    assert_eq!((ip.ttl(), ip.ds_field(), ip.identification(), ip.dont_fragment()), (3, 0xb8, 77, true));
    assert_eq!((ip.header_length(), ip.options().len()), (24, 4));
    let segment = Tcp::new_checked(ip.payload()).unwrap();
    assert_eq!((segment.source_port(), segment.destination_port()), (40_000, 443));
    assert_eq!((segment.sequence(), segment.acknowledgment()), (0x1234_5678, 0x9abc_def0));
    assert_eq!((segment.window(), segment.flags()), (512, Flags::SYN | Flags::ACK));
    assert_eq!(segment.options().maximum_segment_size(), Some(1400));
    assert_eq!((segment.payload(), segment.sequence_length()), (b"hello".as_slice(), 6));
}

#[test]
fn an_error_quotes_the_packet_and_leaves_the_extension_out() {
    let packet = udp(INSIDE, SERVER).payload_length(20).build();
    let error = icmp_error(*SERVER.ip(), *INSIDE.ip(), 11, 0, &packet).extension(&[0, 4, 1, 1]).build();
    let ip = Ipv4::new_checked(error.as_slice()).unwrap();
    let layout = icmp::extension_layout(ip.payload());
    assert_eq!((layout.quote.clone(), layout.extension.len()), (8..136, 8));
    let quoted = Quoted::new_checked(&ip.payload()[layout.quote]).unwrap();
    assert_eq!(quoted.ports(), Some((40_000, 443)));
    assert_eq!(quoted.transport(), &packet[20..]);
}

#[test]
fn only_copied_options_are_in_later_fragments() {
    let options = [ipv4::OPTION_RECORD_ROUTE, 3, ipv4::OPTION_NOP, ipv4::OPTION_ROUTER_ALERT, 4, 0, 0];
    let packet = udp(INSIDE, SERVER).ip_options(&options).payload_length(100).build();
    let fragments = fragment(&packet, 68);
    assert_eq!(Ipv4::new_checked(fragments[0].as_slice()).unwrap().options(), [&options[..], &[0]].concat());
    let later = Ipv4::new_checked(fragments[1].as_slice()).unwrap();
    assert_eq!(later.options(), [ipv4::OPTION_ROUTER_ALERT, 4, 0, 0]);
}

#[test]
fn reassembly_refuses_gaps_overlaps_and_strangers() {
    let fragments = fragment(&udp(INSIDE, SERVER).identification(1).payload_length(100).build(), 68);
    assert_eq!(reassemble(&fragments[1..]), None);
    assert_eq!(reassemble(&fragments[..1]), None);
    assert_eq!(reassemble(&[]), None);
    let twice = [fragments.clone(), vec![fragments[0].clone()]].concat();
    assert_eq!(reassemble(&twice), None);
    let other = fragment(&udp(INSIDE, SERVER).identification(2).payload_length(100).build(), 68);
    assert_eq!(reassemble(&[vec![fragments[0].clone()], other[1..].to_vec()].concat()), None);
}

#[test]
fn frames_are_padded_and_parse_back() {
    let (source, destination) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
    let packet = udp(INSIDE, SERVER).build();
    let tag = VlanTag { id: 100, priority_bits: 0b1010 };
    let plain = frame(source, destination, ethernet::ETHER_TYPE_IPV4, &packet);
    let tagged = tagged_frame(source, destination, tag, ethernet::ETHER_TYPE_IPV4, &packet);
    for (frame, vlan) in [(plain, None), (tagged, Some(tag))] {
        assert_eq!(frame.len(), 60);
        let header = LinkHeader::parse(&frame).unwrap();
        assert_eq!(header, LinkHeader { destination, source, vlan, ether_type: ethernet::ETHER_TYPE_IPV4 });
        assert_eq!(verify::faults(&frame[header.payload_offset()..]), []);
    }
}

#[test]
fn arp_requests_go_to_everyone_and_replies_to_the_asker() {
    let (asker, owner) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));
    let request = arp::Message::request(asker, 1, 2);
    let frame = arp_frame(None, &request);
    assert_eq!(LinkHeader::parse(&frame).unwrap().destination, MacAddress::BROADCAST);
    assert_eq!(arp::Message::parse(&frame[14..]), Ok(request));
    let reply = arp_frame(Some(VlanTag::new(5)), &request.reply(owner));
    let header = LinkHeader::parse(&reply).unwrap();
    assert_eq!((header.destination, header.source), (asker, owner));
    let reply = arp::Message::parse(&reply[header.payload_offset()..]).unwrap();
    assert_eq!((reply.sender_address, reply.target_address), (2, 1));
}

#[test]
fn a_payload_too_long_for_ipv4_is_cut() {
    let packet = udp(INSIDE, SERVER).payload_length(70_000).build();
    assert_eq!(packet.len(), 65_535);
    assert_eq!(verify::faults(&packet), []);
}

proptest! {
    #[test]
    fn whatever_is_built_is_right(
        source in any::<u32>(), destination in any::<u32>(), ports in any::<(u16, u16)>(),
        flags in any::<u8>(), options in proptest::collection::vec(any::<u8>(), 0..50),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let source = SocketAddrV4::new(Ipv4Addr::from_bits(source), ports.0);
        let destination = SocketAddrV4::new(Ipv4Addr::from_bits(destination), ports.1);
        let udp = udp(source, destination).payload(&payload).ip_options(&options).build();
        let tcp = tcp(source, destination, Flags(flags)).payload(&payload).tcp_options(&options).build();
        let echo = echo_request(*source.ip(), *destination.ip(), ports.0).payload(&payload).build();
        for packet in [udp, tcp, echo] {
            prop_assert_eq!(verify::faults(&packet), []);
            let error = icmp_error(*source.ip(), *destination.ip(), 3, 1, &packet);
            prop_assert_eq!(verify::faults(&error.build()), []);
            prop_assert_eq!(verify::faults(&error.extension(&options).build()), []);
        }
    }

    #[test]
    fn fragments_fit_and_reassemble_to_the_packet(
        length in 0_usize..4000, mtu in 68_usize..1500, second_mtu in 68_usize..1500, reverse in any::<bool>(),
    ) {
        let packet = udp(INSIDE, SERVER).identification(9).payload_length(length).build();
        let mut fragments = Vec::new();
        for piece in fragment(&packet, mtu) {
            fragments.extend(fragment(&piece, second_mtu));
        }
        for piece in &fragments {
            prop_assert!(piece.len() <= mtu.min(second_mtu));
            prop_assert_eq!(verify::faults(piece), []);
        }
        if reverse {
            fragments.reverse();
        }
        prop_assert_eq!(reassemble(&fragments), Some(packet));
    }
}
