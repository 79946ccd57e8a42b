//! Packets that somebody made to do harm: each is refused by name.

use translate::Reason;
use wire::build;
use wire::build6;
use wire::ipv6;

use crate::support::*;

fn plain() -> Vec<u8> {
    build6::udp(build6::endpoint(HOST6, 1), build6::endpoint("64:ff9b::203.0.113.5", 2), &[7; 64])
}

const OPTIONS: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];

#[test]
fn chains_of_headers_are_bounded() {
    let mut many = plain();
    for _ in 0..64 {
        many = build6::with_extension(&many, ipv6::HEADER_DESTINATION_OPTIONS, &OPTIONS);
    }
    assert_eq!(refused6(&many), Reason::HeadersTooMany);
    let misplaced = build6::with_extension(&plain(), ipv6::HEADER_HOP_BY_HOP, &OPTIONS);
    let misplaced = build6::with_extension(&misplaced, ipv6::HEADER_DESTINATION_OPTIONS, &OPTIONS);
    assert_eq!(refused6(&misplaced), Reason::HeadersMisplaced);
    let overlong = build6::with_extension(&plain(), ipv6::HEADER_DESTINATION_OPTIONS, &[255, 1, 4, 0, 0, 0, 0]);
    assert_eq!(refused6(&overlong), Reason::HeadersTruncated);
}

#[test]
fn routing_headers_of_type_0_are_refused() {
    let mut body = vec![2, 0, 1, 0, 0, 0, 0];
    body.extend(bits("2001:db8::99").to_be_bytes());
    assert_eq!(refused6(&build6::with_extension(&plain(), ipv6::HEADER_ROUTING, &body)), Reason::SegmentsLeft);
}

#[test]
fn headers_behind_a_fragment_header_are_refused() {
    for header in [0, 43, 44, 51, 60] {
        let mut packet = build6::with_extension(&plain(), header, &OPTIONS);
        packet = build6::with_extension(&packet, ipv6::HEADER_FRAGMENT, &[0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(refused6(&packet), Reason::HeadersBehindFragment, "{header}");
    }
}

#[test]
fn jumbograms_are_refused() {
    let mut jumbo = build6::with_extension(&plain(), ipv6::HEADER_HOP_BY_HOP, &[0, 0xc2, 4, 0, 1, 0, 0]);
    jumbo[4..6].fill(0);
    assert_eq!(refused6(&jumbo), Reason::Jumbogram);
}

#[test]
fn malformed_fragments_are_refused() {
    let pieces = build6::fragment(&plain(), 96, 1);
    let fragment = |offset: u16, more: bool, payload: &[u8]| {
        let bits = (offset | u16::from(more)).to_be_bytes();
        let body = [&[17, 0], bits.as_slice(), &[0, 0, 0, 1], payload].concat();
        build6::raw(v6(HOST6), v6("64:ff9b::203.0.113.5"), 44, &body)
    };
    assert_right4(&to_ipv4(&pieces[0]));
    assert_eq!(refused6(&fragment(0, true, &[0; 15])), Reason::FragmentLength);
    assert_eq!(refused6(&fragment(0, true, &[0; 0])), Reason::FragmentTiny);
    assert_eq!(refused6(&fragment(65_528, false, &[0; 16])), Reason::FragmentOverrun);
    let tcp = build6::raw(v6(HOST6), v6("64:ff9b::1.2.3.4"), 44, &[6, 0, 0, 1, 0, 0, 0, 1, 0, 80, 1, 0, 0, 0, 0, 0]);
    assert_eq!(refused6(&tcp), Reason::FragmentTiny, "flags and checksum are in the next fragment");
    let long = build::echo_request(v4("203.0.113.5"), v4("192.0.2.1"), 1).payload_length(2000).build();
    for piece in build::fragment(&long, 600) {
        assert_eq!(refused4(&piece), Reason::FragmentedIcmp);
    }
    let long = build6::echo_request(v6(HOST6), v6("64:ff9b::203.0.113.5"), 1, &[0; 2000]);
    for piece in build6::fragment(&long, 600, 1) {
        assert_eq!(refused6(&piece), Reason::FragmentedIcmp);
    }
}

#[test]
fn lengths_that_disagree_are_refused() {
    let udp = plain();
    for length in 0..udp.len() {
        assert_eq!(refused6(&udp[..length]), Reason::Ipv6Malformed, "{length}");
    }
    let mut wrong = udp.clone();
    wrong[45] = 7;
    assert_eq!(refused6(&wrong), Reason::TransportMalformed);
    wrong[44..46].copy_from_slice(&200_u16.to_be_bytes());
    assert_eq!(refused6(&wrong), Reason::TransportMalformed);
    let mut checksum = build::udp(build::endpoint([1, 2, 3, 4], 1), build::endpoint([192, 0, 2, 1], 2)).build();
    checksum[10] ^= 1;
    assert_eq!(refused4(&checksum), Reason::Ipv4Checksum);
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let mut names: Vec<&str> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Reason::ALL.len());
}
