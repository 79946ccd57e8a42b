use super::*;

const LINK_LOCAL: u128 = 0xfe80 << 112 | 1;
const ALL_NODES: u128 = 0xff02 << 112 | 1;

/// A query that is sound with these values.
fn query(hop_limit: u8, source: u128, options: [u8; 6], code: u16) -> Vec<u8> {
    let mut packet = vec![0; ipv6::HEADER_LENGTH + 8 + 28];
    let mut header = Ipv6::new_unchecked(packet.as_mut_slice());
    header.set_class_and_label(0, 0);
    header.set_payload_length(36);
    header.set_next_header(ipv6::HEADER_HOP_BY_HOP);
    header.set_hop_limit(hop_limit);
    header.set_source(source);
    header.set_destination(ALL_NODES);
    packet[40] = ipv6::PROTOCOL_ICMP6;
    packet[42..48].copy_from_slice(&options);
    let mut icmp = Icmp6::new_unchecked(&mut packet[48..]);
    icmp.set_type_and_code(icmp6::TYPE_LISTENER_QUERY, 0);
    icmp.set_parameter(u32::from(code) << 16);
    icmp.fill_checksum(source, ALL_NODES);
    packet
}

const ALERT: [u8; 6] = [5, 2, 0, 0, 1, 0];

#[test]
fn a_query_says_how_long_an_answer_may_take() {
    assert_eq!(query_delay_ms(&query(1, LINK_LOCAL, ALERT, 10_000)), Some(10_000));
    assert_eq!(query_delay_ms(&query(1, LINK_LOCAL, [0, 0, 5, 2, 0, 0], 0x8001)), Some(0x1001 << 3));
    assert_eq!(query_delay_ms(&query(1, LINK_LOCAL, ALERT, 0xffff)), Some(0x1fff << 10));
}

#[test]
fn queries_not_from_a_router_of_the_link_are_ignored() {
    for wrong in [
        query(2, LINK_LOCAL, ALERT, 1),
        query(1, 0x2001 << 112 | 1, ALERT, 1),
        query(1, LINK_LOCAL, [1, 4, 5, 2, 0, 0], 1),
    ] {
        assert_eq!(query_delay_ms(&wrong), None, "{wrong:02x?}");
    }
    let sound = query(1, LINK_LOCAL, ALERT, 1);
    for length in 0..sound.len() {
        assert_eq!(query_delay_ms(&sound[..length]), None);
    }
    let mut damaged = sound;
    damaged[60] ^= 1;
    assert_eq!(query_delay_ms(&damaged), None, "its checksum is wrong");
}

#[test]
fn a_report_lists_the_groups_and_stays_on_the_link() {
    let mut bytes = [0xa5; REPORT_MAX];
    let groups = [ipv6::solicited_node(7), ipv6::solicited_node(8)];
    let length = write_report(&mut bytes, LINK_LOCAL, Record::Joined, &groups);
    let view = Ipv6::new_checked(&bytes[..length]).expect("a whole packet");
    assert_eq!((view.hop_limit(), view.destination()), (1, ALL_LISTENER_ROUTERS));
    let chain = ipv6::chain(view.packet()).expect("its headers");
    assert_eq!((chain.protocol, chain.offset), (ipv6::PROTOCOL_ICMP6, 48));
    assert!(has_router_alert(&bytes[42..48]));
    let icmp = Icmp6::new_unchecked(&bytes[48..length]);
    assert!(icmp.is_checksum_valid(LINK_LOCAL, ALL_LISTENER_ROUTERS));
    assert_eq!((icmp.icmp_type(), icmp.parameter()), (icmp6::TYPE_LISTENER_REPORT, 2));
    for (record, group) in bytes[56..length].chunks(RECORD).zip(groups) {
        assert_eq!(record, [&[4, 0, 0, 0][..], &group.to_be_bytes()].concat());
    }
    let many = [1; RECORDS_MAX + 1];
    assert_eq!(write_report(&mut bytes, 0, Record::Current, &many), REPORT_MAX);
    assert_eq!(bytes[56], 2);
    assert!(REPORT_MAX <= usize::from(ipv6::MTU_MIN));
}
