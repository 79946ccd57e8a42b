//! All types, codes, pointers and MTUs of ICMP.

use translate::Limits;
use translate::Reason;
use translate::icmp;
use translate::icmp::Meaning;
use wire::build;
use wire::build6;

use crate::support::*;

const fn meaning(icmp_type: u8, code: u8, parameter: u32) -> Meaning {
    Meaning { icmp_type, code, parameter }
}

#[test]
fn every_icmp_type_and_code_of_ipv4_follows_the_table() {
    for icmp_type in 0..=255 {
        for code in 0..=255 {
            let expected = match (icmp_type, code) {
                (3, 0 | 1 | 5 | 6 | 7 | 8 | 11 | 12) => Some((1, 0)),
                (3, 2) => Some((4, 1)),
                (3, 3) => Some((1, 4)),
                (3, 4) => Some((2, 0)),
                (3, 9 | 10 | 13 | 15) => Some((1, 1)),
                (11, 0) => Some((3, 0)),
                (11, 1) => Some((3, 1)),
                (12, 0 | 2) => Some((4, 0)),
                _ => None,
            };
            let result = icmp::error_to_6(meaning(icmp_type, code, 0), 1500, &Limits::default());
            assert_eq!(result.ok().map(|found| (found.icmp_type, found.code)), expected, "{icmp_type}/{code}");
        }
    }
}

#[test]
fn every_icmp_type_and_code_of_ipv6_follows_the_table() {
    for icmp_type in 0..=255 {
        for code in 0..=255 {
            let expected = match (icmp_type, code) {
                (1, 0 | 2 | 3) => Some((3, 1)),
                (1, 1) => Some((3, 10)),
                (1, 4) => Some((3, 3)),
                (2, _) => Some((3, 4)),
                (3, 0) => Some((11, 0)),
                (3, 1) => Some((11, 1)),
                (4, 0) => Some((12, 0)),
                (4, 1) => Some((3, 2)),
                _ => None,
            };
            let parameter = if icmp_type == 2 { 1400 } else { 0 };
            let result = icmp::error_to_4(meaning(icmp_type, code, parameter), false, &Limits::default());
            assert_eq!(result.ok().map(|found| (found.icmp_type, found.code)), expected, "{icmp_type}/{code}");
        }
    }
}

#[test]
fn messages_of_other_types_are_dropped() {
    for icmp_type in 0..=255_u8 {
        let message = [icmp_type, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
        let mut message4 = message;
        let sum = wire::checksum::of_bytes(&message4);
        message4[2..4].copy_from_slice(&sum.to_be_bytes());
        let packet4 = build::raw(v4("203.0.113.5"), v4("192.0.2.1"), 1).payload(&message4).build();
        match icmp_type {
            0 | 8 => assert_right6(&to_ipv6(&packet4)),
            3 | 4 | 5 | 11 | 12 => assert_eq!(refused4(&packet4), Reason::QuoteMalformed),
            _ => assert_eq!(refused4(&packet4), Reason::IcmpType, "{icmp_type}"),
        }
        let mut packet6 = build6::raw(v6(HOST6), v6("64:ff9b::203.0.113.5"), 58, &message);
        build6::fill_checksum(&mut packet6);
        match icmp_type {
            128 | 129 => assert_right4(&to_ipv4(&packet6)),
            0..=127 => assert_eq!(refused6(&packet6), Reason::QuoteMalformed),
            // Multicast listeners, neighbours, and whatever may come.
            _ => assert_eq!(refused6(&packet6), Reason::IcmpType, "{icmp_type}"),
        }
    }
}

#[test]
fn every_pointer_follows_the_figures() {
    for pointer in 0..=255 {
        let expected = match pointer {
            0 => Some(0),
            1 => Some(1),
            2 | 3 => Some(4),
            8 => Some(7),
            9 => Some(6),
            12..=15 => Some(8),
            16..=19 => Some(24),
            _ => None,
        };
        let result = icmp::error_to_6(meaning(12, 0, pointer), 0, &Limits::default());
        assert_eq!(result.map(|found| found.parameter), expected.ok_or(Reason::IcmpPointer), "{pointer}");
    }
    for pointer in (0..300).chain([u32::MAX]) {
        let expected = match pointer {
            0 => Some(0),
            1 => Some(1),
            4 | 5 => Some(2),
            6 => Some(9),
            7 => Some(8),
            8..=23 => Some(12),
            24..=39 => Some(16),
            _ => None,
        };
        let result = icmp::error_to_4(meaning(4, 0, pointer), false, &Limits::default());
        assert_eq!(result.map(|found| found.parameter), expected.ok_or(Reason::IcmpPointer), "{pointer}");
    }
}

#[test]
fn mtus_are_those_of_the_other_family() {
    let mtu6 = |mtu, quoted, mtu4, mtu6| {
        let limits = Limits { mtu4, mtu6, ..Limits::default() };
        icmp::error_to_6(meaning(3, 4, mtu), quoted, &limits).unwrap().parameter
    };
    assert_eq!(mtu6(1400, 1500, 1500, 1500), 1420);
    assert_eq!(mtu6(1500, 9000, 9000, 1500), 1500, "the IPv6 link");
    assert_eq!(mtu6(8000, 9000, 1500, 9000), 1520, "the IPv4 link");
    for small in [1, 68, 576, 905, 1259, 1260] {
        assert_eq!(mtu6(small, 1500, 1500, 1500), 1280, "{small}");
    }
    // From a router that does not say: the plateau below the length of the packet.
    assert_eq!(mtu6(0, 1500, 9000, 9000), 1492 + 20);
    assert_eq!(mtu6(0, 1492, 9000, 9000), 1280, "1006 is too small");
    assert_eq!(mtu6(0, 2002, 9000, 9000), 1492 + 20);
    assert_eq!(mtu6(0, 9000, 9000, 9000), 8166 + 20);
    assert_eq!(mtu6(0, 28, 1500, 1500), 1280);

    let mtu4 = |mtu, has_fragment_header, mtu4, mtu6| {
        let limits = Limits { mtu4, mtu6, ..Limits::default() };
        icmp::error_to_4(meaning(2, 0, mtu), has_fragment_header, &limits).map(|found| found.parameter)
    };
    assert_eq!(mtu4(1400, false, 1500, 1500), Ok(1380));
    assert_eq!(mtu4(1400, true, 1500, 1500), Ok(1372));
    assert_eq!(mtu4(9000, false, 1500, 9000), Ok(1500), "the IPv4 link");
    assert_eq!(mtu4(9000, false, 9000, 1500), Ok(1480), "the IPv6 link");
    assert_eq!(mtu4(u32::MAX, false, 1500, 1500), Ok(1480));
    assert_eq!(mtu4(1280, false, 1500, 1500), Ok(1260));
    for forged in [0, 68, 1279] {
        assert_eq!(mtu4(forged, false, 1500, 1500), Err(Reason::PacketTooBigSmall), "{forged}");
    }
}
