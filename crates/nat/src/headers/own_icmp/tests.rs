use proptest::prelude::*;

use super::*;

const NATRIX: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const SUBSCRIBER: u32 = 0x6440_000a;
const SERVER: u32 = 0xc633_6401;

/// `options`: bytes of "no operation".
fn packet(protocol: u8, options: usize, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![ipv4::OPTION_NOP; 20 + options];
    bytes.extend(payload);
    let total = bytes.len() as u16;
    let mut view = Ipv4::new_unchecked(&mut bytes[..]);
    view.set_header_length(20 + options);
    view.set_ds_field(0xbb);
    view.set_total_length(total);
    view.set_identification(9);
    view.set_fragment_bits(0);
    view.set_ttl(1);
    view.set_protocol(protocol);
    view.set_source(SUBSCRIBER);
    view.set_destination(SERVER);
    view.fill_checksum();
    bytes
}

fn udp(payload_length: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload_length + 8).map(|n| n as u8).collect();
    packet(17, 0, &payload)
}

/// Also checks what all errors have in common.
fn error_about(error: IcmpError, offending: &[u8]) -> Vec<u8> {
    let mut buffer = [0xee; ERROR_MAX];
    let length = write_error(&mut buffer, error, NATRIX, 0x4321, offending);
    let bytes = buffer[..length].to_vec();
    let ip = Ipv4::new_checked(&bytes[..]).expect("a sound packet");
    assert!(ip.is_checksum_valid());
    assert_eq!(usize::from(ip.total_length()), length);
    assert_eq!((ip.source(), ip.ttl(), ip.protocol(), ip.identification()), (NATRIX.to_bits(), 64, 1, 0x4321));
    assert!(icmp::Icmp::new_checked(ip.payload()).expect("a message").is_checksum_valid());
    bytes
}

#[test]
fn errors_go_to_the_sender_with_its_dscp_and_a_quote() {
    let offending = udp(64);
    let bytes = error_about(IcmpError::TtlExceeded, &offending);
    let ip = Ipv4::new_unchecked(&bytes[..]);
    assert_eq!(ip.destination(), SUBSCRIBER);
    // RFC 5508 REQ-10d: DSCP 46 stays, the ECN bits do not.
    assert_eq!(ip.ds_field(), 0xb8);
    assert_eq!(bytes[20..22], [11, 0]);
    assert_eq!(bytes[24..28], [0; 4]);
    assert_eq!(bytes[28..], offending);
}

#[test]
fn errors_quote_as_much_of_a_large_packet_as_fits_in_576_bytes() {
    let offending = udp(1_400);
    let bytes = error_about(IcmpError::Unreachable(1), &offending);
    assert_eq!(bytes.len(), 576);
    assert_eq!(bytes[20..22], [3, 1]);
    assert_eq!(bytes[28..], offending[..548]);
}

#[test]
fn padding_of_the_link_is_not_quoted() {
    let mut offending = udp(3);
    let length = offending.len();
    offending.resize(60, 0xaa);
    let bytes = error_about(IcmpError::Unreachable(3), &offending);
    assert_eq!(bytes[28..], offending[..length]);
    assert_eq!(bytes[20..22], [3, 3]);
}

#[test]
fn too_big_has_the_mtu_of_the_next_link() {
    let bytes = error_about(IcmpError::TooBig { next_hop_mtu: 1_400 }, &udp(1_472));
    let message = icmp::Icmp::new_unchecked(&bytes[20..]);
    assert_eq!((message.icmp_type(), message.code(), message.next_hop_mtu()), (3, 4, 1_400));
    assert_eq!(bytes[24..26], [0, 0]);
}

#[test]
fn each_unreachable_code_is_sent_as_asked() {
    for code in [0, 1, 3, 13] {
        assert_eq!(error_about(IcmpError::Unreachable(code), &udp(1))[20..22], [3, code]);
    }
}

#[test]
fn no_error_is_sent_about_what_rfc_1812_lists() {
    assert!(may_answer(&udp(10)));
    let with = |change: &dyn Fn(&mut Ipv4<&mut [u8]>)| {
        let mut bytes = udp(10);
        change(&mut Ipv4::new_unchecked(&mut bytes[..]));
        may_answer(&bytes)
    };
    // Fragments other than the first.
    assert!(!with(&|ip| ip.set_fragment_bits(1)));
    assert!(!with(&|ip| ip.set_fragment_bits(ipv4::FLAG_MORE_FRAGMENTS | 100)));
    assert!(with(&|ip| ip.set_fragment_bits(ipv4::FLAG_MORE_FRAGMENTS)));
    for source in [0, 0x0000_0001, 0x7f00_0001, 0xe000_0001, 0xf000_0001, 0xffff_ffff] {
        assert!(!with(&|ip| ip.set_source(source)), "{source:#x}");
    }
    for destination in [0xe000_0001, 0xefff_ffff, 0xffff_ffff] {
        assert!(!with(&|ip| ip.set_destination(destination)), "{destination:#x}");
    }
    assert!(!may_answer(&udp(10)[..19]));
}

#[test]
fn only_icmp_queries_may_be_answered() {
    for icmp_type in 0..=u8::MAX {
        let expected = matches!(icmp_type, 0 | 8 | 13..=18);
        for options in [0, 8] {
            let bytes = packet(1, options, &[icmp_type, 0, 0, 0, 0, 0, 0, 0]);
            assert_eq!(may_answer(&bytes), expected, "type {icmp_type}");
        }
    }
    assert!(!may_answer(&packet(1, 0, &[])), "cut before the type");
}

fn echo_request(options: usize, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend(payload);
    icmp::Icmp::new_unchecked(&mut message[..]).fill_checksum();
    packet(1, options, &message)
}

#[test]
fn an_echo_request_comes_back_with_all_its_data() {
    for (options, length) in [(0, 0), (0, 1), (0, 56), (12, 57), (40, 1_472)] {
        let payload: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let mut bytes = echo_request(options, &payload);
        let padded = bytes.len() + 5;
        let request = bytes.clone();
        bytes.resize(padded, 0xee);
        assert_eq!(echo_reply(&mut bytes, 77), Some(request.len()));
        let ip = Ipv4::new_checked(&bytes[..]).unwrap();
        assert!(ip.is_checksum_valid());
        assert_eq!((ip.source(), ip.destination(), ip.ttl(), ip.identification()), (SERVER, SUBSCRIBER, 64, 77));
        let message = icmp::Icmp::new_checked(ip.payload()).unwrap();
        assert!(message.is_checksum_valid());
        assert_eq!((message.icmp_type(), message.code()), (0, 0));
        assert_eq!((message.identifier(), message.sequence()), (0x1234, 1));
        assert_eq!(message.payload(), payload);
        assert_eq!(bytes[request.len()..], [0xee; 5]);
    }
}

#[test]
fn a_reply_that_is_all_zeros_has_a_checksum_receivers_accept() {
    let mut message = vec![8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    icmp::Icmp::new_unchecked(&mut message[..]).fill_checksum();
    let mut bytes = packet(1, 0, &message);
    assert!(echo_reply(&mut bytes, 1).is_some());
    assert!(checksum::is_icmp_valid(&bytes[20..]));
}

#[test]
fn what_is_no_sound_echo_request_is_left_alone() {
    let mut wrong_checksum = echo_request(0, &[1, 2, 3]);
    wrong_checksum[22] ^= 1;
    let mut fragment = echo_request(0, &[1; 8]);
    Ipv4::new_unchecked(&mut fragment[..]).set_fragment_bits(ipv4::FLAG_MORE_FRAGMENTS);
    let mut forged = echo_request(0, &[1; 8]);
    Ipv4::new_unchecked(&mut forged[..]).set_source(0xffff_ffff);
    for mut bytes in [wrong_checksum, fragment, forged, udp(4), packet(1, 0, &[8, 0, 0])] {
        let before = bytes.clone();
        assert_eq!(echo_reply(&mut bytes, 1), None);
        assert_eq!(bytes, before);
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..700)) {
        may_answer(&bytes);
        let mut buffer = [0; ERROR_MAX];
        let length = write_error(&mut buffer, IcmpError::TtlExceeded, NATRIX, 1, &bytes);
        prop_assert!(length <= ERROR_MAX);
        echo_reply(&mut bytes, 1);
    }

    #[test]
    fn every_error_verifies(payload in prop::collection::vec(any::<u8>(), 8..1_500), options in 0_usize..=10) {
        error_about(IcmpError::TooBig { next_hop_mtu: 1_280 }, &packet(17, options * 4, &payload));
    }
}
