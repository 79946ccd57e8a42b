//! Claims about single fields and malformed bytes, view by view.

use wire::arp;
use wire::ethernet;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;
use wire::ethernet::VlanTag;
use wire::icmp;
use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::quoted;
use wire::quoted::Quoted;
use wire::tcp;
use wire::tcp::Flags;
use wire::tcp::Tcp;
use wire::tcp::TcpOption;
use wire::udp;
use wire::udp::Udp;

/// A header without options or payload: total length 20, UDP.
const HEADER: [u8; 20] = [0x45, 0, 0, 20, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];

fn ipv4_fault(change: impl Fn(&mut Vec<u8>)) -> Option<ipv4::Fault> {
    let mut bytes = HEADER.to_vec();
    change(&mut bytes);
    Ipv4::new_checked(bytes).err()
}

#[test]
fn ipv4_headers_with_wrong_lengths_are_refused_by_name() {
    assert_eq!(ipv4_fault(|_| {}), None);
    assert_eq!(ipv4_fault(|bytes| bytes.truncate(19)), Some(ipv4::Fault::Truncated));
    assert_eq!(ipv4_fault(|bytes| bytes.clear()), Some(ipv4::Fault::Truncated));
    assert_eq!(ipv4_fault(|bytes| bytes[0] = 0x65), Some(ipv4::Fault::Version));
    assert_eq!(ipv4_fault(|bytes| bytes[0] = 0x44), Some(ipv4::Fault::HeaderLength));
    assert_eq!(ipv4_fault(|bytes| bytes[0] = 0x46), Some(ipv4::Fault::TotalLength));
    assert_eq!(ipv4_fault(|bytes| bytes[3] = 19), Some(ipv4::Fault::TotalLength));
    assert_eq!(ipv4_fault(|bytes| bytes[3] = 21), Some(ipv4::Fault::Truncated));
}

#[test]
fn padding_behind_the_total_length_is_no_payload() {
    let mut bytes = HEADER.to_vec();
    bytes[3] = 22;
    bytes.extend_from_slice(&[1, 2, 0, 0, 0, 0]);
    let view = Ipv4::new_checked(bytes.as_slice()).unwrap();
    assert_eq!(view.payload(), [1, 2]);
    assert_eq!(view.packet().len(), 22);
}

#[test]
fn fragment_fields_are_read_from_their_bits() {
    let mut bytes = HEADER;
    for (bits, dont, more, offset, fragment) in [
        (0x0000_u16, false, false, 0, false),
        (0x4000, true, false, 0, false),
        (0x2000, false, true, 0, true),
        (0x0001, false, false, 8, true),
        (0x3fff, false, true, 65_528, true),
        (0x8000, false, false, 0, false),
    ] {
        bytes[6..8].copy_from_slice(&bits.to_be_bytes());
        let view = Ipv4::new_checked(bytes.as_slice()).unwrap();
        assert_eq!(
            (view.dont_fragment(), view.more_fragments(), view.fragment_offset_bytes(), view.is_fragment()),
            (dont, more, offset, fragment),
            "{bits:#06x}"
        );
    }
}

#[test]
fn setters_write_what_getters_read() {
    let mut bytes = [0_u8; 28];
    let mut view = Ipv4::new_unchecked(bytes.as_mut_slice());
    view.set_header_length(24);
    view.set_ds_field(0xb8);
    view.set_total_length(28);
    view.set_identification(0xbeef);
    view.set_fragment_bits(0x4001);
    view.set_ttl(9);
    view.set_protocol(6);
    view.set_source(0x0a00_0001);
    view.set_destination(0xc000_0201);
    view.payload_mut().fill(7);
    view.fill_checksum();
    let view = Ipv4::new_checked(bytes.as_slice()).unwrap();
    assert!(view.is_checksum_valid());
    assert_eq!((view.header_length(), view.ds_field(), view.total_length()), (24, 0xb8, 28));
    assert_eq!((view.identification(), view.fragment_bits(), view.ttl(), view.protocol()), (0xbeef, 0x4001, 9, 6));
    assert_eq!((view.source(), view.destination(), view.payload()), (0x0a00_0001, 0xc000_0201, [7; 4].as_slice()));
}

#[test]
fn source_routes_are_found_behind_options_and_not_inside() {
    assert!(ipv4::has_source_route(&[131, 3, 4, 0]));
    assert!(ipv4::has_source_route(&[1, 1, 137, 3, 4, 0]));
    assert!(ipv4::has_source_route(&[7, 7, 4, 0, 0, 0, 0, 131, 3, 4]));
    assert!(!ipv4::has_source_route(&[7, 7, 4, 131, 3, 4, 0, 0]));
    assert!(!ipv4::has_source_route(&[0, 131, 3, 4]), "behind the end of the list");
    assert!(!ipv4::has_source_route(&[]));
}

#[test]
fn malformed_ipv4_options_end_the_list() {
    for bytes in [&[7_u8][..], &[7, 0, 1, 1], &[7, 1, 1, 1], &[7, 5, 1, 1], &[7, 255]] {
        assert_eq!(ipv4::options(bytes).count(), 0, "{bytes:?}");
    }
    let options: Vec<_> = ipv4::options(&[148, 4, 0, 0, 7, 0]).collect();
    assert_eq!(options, [ipv4::Ipv4Option { kind: 148, data: &[0, 0] }]);
}

#[test]
fn udp_lengths_must_fit() {
    assert_eq!(Udp::new_checked([0_u8; 7]).err(), Some(udp::Fault::Truncated));
    assert_eq!(Udp::new_checked([0, 1, 0, 2, 0, 7, 0, 0]).err(), Some(udp::Fault::Length));
    assert_eq!(Udp::new_checked([0, 1, 0, 2, 0, 9, 0, 0]).err(), Some(udp::Fault::Truncated));
    let view = Udp::new_checked([0, 1, 0, 2, 0, 9, 0xab, 0xcd, 5, 6]).unwrap();
    assert_eq!((view.source_port(), view.destination_port(), view.checksum()), (1, 2, 0xabcd));
    assert_eq!(view.payload(), [5]);
}

#[test]
fn tcp_data_offset_must_fit() {
    let mut bytes = [0_u8; 24];
    assert_eq!(Tcp::new_checked(&bytes[..19]).err(), Some(tcp::Fault::Truncated));
    bytes[12] = 0x40;
    assert_eq!(Tcp::new_checked(&bytes).err(), Some(tcp::Fault::DataOffset));
    bytes[12] = 0x70;
    assert_eq!(Tcp::new_checked(&bytes).err(), Some(tcp::Fault::Truncated));
    bytes[12] = 0x60;
    let view = Tcp::new_checked(&bytes).unwrap();
    assert_eq!((view.header_length(), view.payload().len(), view.sequence_length()), (24, 0, 0));
}

#[test]
fn syn_and_fin_each_take_one_sequence_number() {
    let mut bytes = [0_u8; 23];
    bytes[12] = 0x50;
    for (flags, length) in
        [(Flags::ACK, 3), (Flags::SYN, 4), (Flags::FIN | Flags::ACK, 4), (Flags::SYN | Flags::FIN, 5), (Flags::RST, 3)]
    {
        bytes[13] = flags.0;
        assert_eq!(Tcp::new_checked(&bytes).unwrap().sequence_length(), length, "{flags}");
    }
}

#[test]
fn tcp_options_are_distinguished() {
    let bytes = [1, 2, 4, 0x05, 0xb4, 3, 3, 7, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 5, 4, 9, 9, 2, 3, 1, 0, 2, 4, 1, 1];
    let options: Vec<_> = tcp::options(&bytes).collect();
    assert_eq!(
        options,
        [
            TcpOption::MaximumSegmentSize { size: 1460, offset: 3 },
            TcpOption::WindowScale(7),
            TcpOption::SackPermitted,
            TcpOption::Timestamps { value: 1, echo: 2 },
            TcpOption::Other { kind: 5, data: &[9, 9] },
            TcpOption::Other { kind: 2, data: &[1] },
        ]
    );
    assert_eq!(tcp::options(&bytes).maximum_segment_size(), Some(1460));
}

#[test]
fn malformed_tcp_options_end_the_list() {
    for bytes in [&[2_u8][..], &[2, 0, 5, 180], &[2, 1, 5, 180], &[2, 4, 5], &[3, 255]] {
        assert_eq!(tcp::options(bytes).count(), 0, "{bytes:?}");
    }
}

#[test]
fn flags_have_names() {
    assert_eq!((Flags::SYN | Flags::ACK).to_string(), "SYN|ACK");
    assert_eq!(Flags::NONE.to_string(), "-");
    assert!((Flags::SYN | Flags::ACK).contains(Flags::ACK));
    assert!(!Flags::SYN.contains(Flags::SYN | Flags::ACK));
    assert!(Flags::SYN.intersects(Flags::SYN | Flags::ACK));
}

#[test]
fn every_icmp_type_is_query_or_error_or_neither() {
    for icmp_type in 0..=u8::MAX {
        let query = [0, 8, 13, 14, 15, 16, 17, 18].contains(&icmp_type);
        assert_eq!(icmp::is_query(icmp_type), query, "{icmp_type}");
        assert_eq!(icmp::is_error(icmp_type), [3, 4, 5, 11, 12].contains(&icmp_type), "{icmp_type}");
        assert_eq!(icmp::is_request(icmp_type) ^ icmp::is_reply(icmp_type), query, "{icmp_type}");
    }
}

fn icmp_message(icmp_type: u8, words: u8, quote: usize, extension: &[u8]) -> Vec<u8> {
    let mut message = vec![icmp_type, 0, 0, 0, 0, words, 0, 0];
    message.resize(8 + quote, 0x11);
    message.extend_from_slice(extension);
    message
}

/// An extension with version 2, a right checksum and one object.
const EXTENSION: [u8; 8] = [0x20, 0, 0xde, 0xfa, 0, 4, 1, 1];
/// The same without checksum.
const EXTENSION_WITHOUT_CHECKSUM: [u8; 8] = [0x20, 0, 0, 0, 0, 4, 1, 1];

#[test]
fn the_length_field_splits_quote_and_extension() {
    assert!(icmp::is_extension_valid(&EXTENSION));
    for icmp_type in [3, 11, 12] {
        for extension in [EXTENSION, EXTENSION_WITHOUT_CHECKSUM] {
            let layout = icmp::extension_layout(&icmp_message(icmp_type, 32, 128, &extension));
            assert_eq!((layout.quote, layout.extension), (8..136, 136..144), "type {icmp_type}");
        }
        let layout = icmp::extension_layout(&icmp_message(icmp_type, 35, 140, &EXTENSION));
        assert_eq!((layout.quote, layout.extension), (8..148, 148..156));
    }
}

#[test]
fn without_a_length_only_a_checked_extension_at_128_counts() {
    let layout = icmp::extension_layout(&icmp_message(11, 0, 128, &EXTENSION));
    assert_eq!((layout.quote, layout.extension), (8..136, 136..144));
    for message in [
        icmp_message(11, 0, 128, &EXTENSION_WITHOUT_CHECKSUM),
        icmp_message(11, 0, 128, &[0x10, 0, 0xee, 0xfa, 0, 4, 1, 1]),
        icmp_message(11, 0, 128, &[0x20, 0, 0xde, 0xfb, 0, 4, 1, 1]),
        icmp_message(11, 0, 132, &EXTENSION),
        icmp_message(11, 0, 28, &[]),
        icmp_message(11, 0, 500, &[]),
    ] {
        let end = message.len();
        let layout = icmp::extension_layout(&message);
        assert_eq!((layout.quote, layout.extension), (8..end, end..end), "{message:02x?}");
    }
}

#[test]
fn other_types_have_no_length_field() {
    // A Redirect has the gateway address there, a Source Quench zeros.
    for icmp_type in [0, 4, 5, 8] {
        let layout = icmp::extension_layout(&icmp_message(icmp_type, 32, 128, &EXTENSION));
        assert_eq!((layout.quote, layout.extension), (8..144, 144..144));
    }
}

#[test]
fn a_length_past_the_end_means_that_all_is_quote() {
    let layout = icmp::extension_layout(&icmp_message(3, 255, 28, &[]));
    assert_eq!((layout.quote, layout.extension), (8..36, 36..36));
    let layout = icmp::extension_layout(&[3, 0, 0]);
    assert_eq!((layout.quote, layout.extension), (3..3, 3..3));
}

#[test]
fn a_quote_may_be_cut_anywhere_behind_its_header() {
    let mut packet = [HEADER.as_slice(), &[0x9c, 0x40, 0x01, 0xbb, 0, 8, 0, 0]].concat();
    packet[3] = 100;
    let view = Quoted::new_checked(packet.as_slice()).unwrap();
    assert_eq!((view.ports(), view.is_complete()), (Some((40_000, 443)), false));
    assert_eq!(Quoted::new_checked(&packet[..23]).unwrap().ports(), None);
    assert_eq!(Quoted::new_checked(&packet[..24]).unwrap().ports(), Some((40_000, 443)));
    assert_eq!(Quoted::new_checked(&packet[..19]).err(), Some(quoted::Fault::Truncated));
    packet[0] = 0x4f;
    assert_eq!(Quoted::new_checked(packet.as_slice()).err(), Some(quoted::Fault::Truncated));
    packet[0] = 0x42;
    assert_eq!(Quoted::new_checked(packet.as_slice()).err(), Some(quoted::Fault::HeaderLength));
    packet[0] = 0x60;
    assert_eq!(Quoted::new_checked(packet.as_slice()).err(), Some(quoted::Fault::Version));
    packet[0] = 0x45;
    packet[3] = 3;
    assert_eq!(Quoted::new_checked(packet.as_slice()).err(), Some(quoted::Fault::TotalLength));
}

#[test]
fn only_a_first_fragment_quotes_ports_or_an_identifier() {
    let mut packet = [HEADER.as_slice(), &[8, 0, 0, 0, 0x12, 0x34, 0, 1]].concat();
    packet[3] = 28;
    packet[9] = 1;
    assert_eq!(Quoted::new_checked(packet.as_slice()).unwrap().icmp_query(), Some((8, 0x1234)));
    assert_eq!(Quoted::new_checked(packet.as_slice()).unwrap().ports(), None);
    packet[20] = 3;
    assert_eq!(Quoted::new_checked(packet.as_slice()).unwrap().icmp_query(), None, "an error has no identifier");
    packet[20] = 8;
    packet[7] = 1;
    assert_eq!(Quoted::new_checked(packet.as_slice()).unwrap().icmp_query(), None, "a later fragment has none");
    packet[9] = 17;
    assert_eq!(Quoted::new_checked(packet.as_slice()).unwrap().ports(), None, "a later fragment has none");
}

#[test]
fn frames_shorter_than_their_header_are_refused() {
    let mut frame = [0_u8; 18];
    frame[12..14].copy_from_slice(&ethernet::ETHER_TYPE_VLAN.to_be_bytes());
    assert_eq!(LinkHeader::parse(&frame[..13]), Err(ethernet::Fault::Truncated));
    assert_eq!(LinkHeader::parse(&frame[..17]), Err(ethernet::Fault::Truncated));
    assert_eq!(LinkHeader::parse(&frame).unwrap().vlan, Some(VlanTag::default()));
    assert_eq!(LinkHeader::parse(&frame).unwrap().write(&mut [0; 17]), None);
}

#[test]
fn a_second_tag_is_seen_as_the_ether_type() {
    let mut frame = [0_u8; 22];
    frame[12..18].copy_from_slice(&[0x81, 0, 0xe0, 5, 0x81, 0]);
    let header = LinkHeader::parse(&frame).unwrap();
    assert_eq!(header.ether_type, ethernet::ETHER_TYPE_VLAN);
    assert_eq!(header.vlan, Some(VlanTag { id: 5, priority_bits: 0b1110 }));
}

#[test]
fn mac_addresses_are_written_and_read_as_text() {
    let address = MacAddress([0x02, 0, 0x5e, 0x10, 0xab, 0x01]);
    assert_eq!(address.to_string(), "02:00:5e:10:ab:01");
    for text in ["02:00:5e:10:ab:01", "02:00:5E:10:AB:01", "02-00-5e-10-ab-01"] {
        assert_eq!(text.parse(), Ok(address));
    }
    for text in
        ["", "02:00:5e:10:ab", "02:00:5e:10:ab:01:02", "2:0:5e:10:ab:1", "02:00:5e:10:ab:0g", "+2:00:5e:10:ab:01"]
    {
        assert!(text.parse::<MacAddress>().is_err(), "{text:?}");
    }
    assert!(address.is_unicast());
    assert!(MacAddress::BROADCAST.is_broadcast() && MacAddress::BROADCAST.is_multicast());
    assert!(!MacAddress::ZERO.is_unicast());
}

#[test]
fn arp_for_other_families_is_refused() {
    let message = arp::Message::request(MacAddress([2, 0, 0, 0, 0, 1]), 0x0a00_0001, 0x0a00_0002);
    let bytes = message.to_bytes();
    assert_eq!(arp::Message::parse(&bytes), Ok(message));
    assert_eq!(arp::Message::parse(&bytes[..27]), Err(arp::Fault::Truncated));
    for (offset, fault) in [
        (1, arp::Fault::OtherFamily),
        (3, arp::Fault::OtherFamily),
        (4, arp::Fault::OtherFamily),
        (5, arp::Fault::OtherFamily),
        (7, arp::Fault::Operation),
    ] {
        let mut changed = bytes;
        changed[offset] ^= 0x10;
        assert_eq!(arp::Message::parse(&changed), Err(fault), "offset {offset}");
    }
    assert!(!message.is_gratuitous());
    assert!(arp::Message { target_address: message.sender_address, ..message }.is_gratuitous());
}

#[test]
fn numbers_past_the_end_read_as_zero_and_are_not_written() {
    let mut bytes = [0xff_u8; 4];
    wire::field::set_u16(&mut bytes, 3, 0);
    wire::field::set_u32(&mut bytes, 1, 0);
    wire::field::set_u8(&mut bytes, 4, 0);
    wire::field::set_u32(&mut bytes, usize::MAX, 0);
    assert_eq!(bytes, [0xff; 4]);
    assert_eq!(wire::field::u16_at(&bytes, 3), 0);
    assert_eq!(wire::field::u32_at(&bytes, usize::MAX), 0);
    assert_eq!(wire::field::u8_at(&bytes, 4), 0);
    assert_eq!(wire::field::u32_at(&bytes, 0), u32::MAX);
}
