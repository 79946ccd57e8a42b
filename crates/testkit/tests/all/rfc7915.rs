//! RFC 7915 and RFC 6052 through the whole engine: headers, all of ICMP, sizes.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use nat::Duration;
use nat::Settings;
use nat::Verdict;
use testkit::bed6::*;
use testkit::packet::header;
use testkit::packet6::*;
use testkit::*;
use wire::build;
use wire::icmp6;

const ROUTER6: &str = "2001:db8:ffff::1";
/// An MPLS label stack (RFC 4950).
const LABELS: [u8; 8] = [0, 8, 1, 1, 0, 0, 17, 64];

/// The endpoint of E1 as an IPv6 host knows it.
fn e1(port: u16) -> At6 {
    (behind(E1), port)
}

/// A bed in which C6 has sent a datagram of this IPv4 length to E1, and that datagram outside.
fn after_sending(settings: Settings, length: usize) -> (Bed6, Vec<u8>) {
    let mut bed = Bed6::new(settings);
    let [_, mut out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &vec![7; length - 28]));
    (bed, out.remove(0))
}

/// The endpoint of C6:5000 outside.
fn mapped(bed: &mut Bed6) -> SocketAddrV4 {
    source(&bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"))[1][0])
}

/// Type, code and parameter of what came in, if anything did.
fn meaning6(inside: &[Vec<u8>]) -> Option<(u8, u8, u32)> {
    inside.first().map(|packet| icmp6_of(packet))
}

/// Type, code and last word of the header of what went out, if anything did.
fn meaning4(outside: &[Vec<u8>]) -> Option<(u8, u8, [u8; 4])> {
    outside.first().map(|packet| (packet[20], packet[21], [packet[24], packet[25], packet[26], packet[27]]))
}

#[test]
fn every_icmp_type_and_code_from_outside_follows_the_table() {
    covers!("7915-4.2a", "7915-4.2b", "7915-4.2d");
    let (mut bed, sent) = after_sending(settings6(), 100);
    let to = *source(&sent).ip();
    for icmp_type in 0..=255 {
        for code in (0..=20).chain([127, 255]) {
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
            let [back, out] = bed.outside(&build::icmp_error(E2, to, icmp_type, code, &sent).build());
            assert!(out.is_empty(), "{icmp_type}/{code} is answered");
            let found = meaning6(&back);
            assert_eq!(found.map(|(icmp_type, code, _)| (icmp_type, code)), expected, "{icmp_type}/{code}");
            if expected == Some((4, 1)) {
                assert_eq!(found.map(|found| found.2), Some(6), "the Next Header field");
            }
            if expected.is_none() && matches!(icmp_type, 3 | 11 | 12) {
                assert_eq!(bed.verdict(), Some(Verdict::IcmpUntranslatable), "{icmp_type}/{code}");
            }
        }
    }
    // IGMP concerns one link.
    let [back, out] = bed.outside(&build::raw(E1, to, 2).payload(&[0x16; 8]).build());
    assert!(back.is_empty() && out.is_empty());
}

#[test]
fn every_icmp_type_and_code_from_inside_follows_the_table() {
    covers!("7915-5.2a", "7915-5.2b", "7915-5.2d");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    let [answer, _] = bed.outside(&build::udp(at(E1, 53), from).payload(b"answer").build());
    for icmp_type in 0..=255 {
        // An echo request makes a mapping of its own.
        if icmp_type == icmp6::TYPE_ECHO_REQUEST {
            continue;
        }
        for code in (0..=20).chain([127, 255]) {
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
            let parameter = if icmp_type == 2 { 1_400 } else { 0 };
            let error = icmp6_message(v6(ROUTER6), behind(E1), (icmp_type, code), parameter, &answer[0]);
            let [back, out] = bed.inside(&error);
            assert!(back.is_empty(), "{icmp_type}/{code} is answered");
            let found = meaning4(&out).map(|(icmp_type, code, _)| (icmp_type, code));
            assert_eq!(found, expected, "{icmp_type}/{code}");
            if expected.is_none() && icmp_type != icmp6::TYPE_ECHO_REPLY {
                assert_eq!(bed.verdict(), Some(Verdict::IcmpUntranslatable), "{icmp_type}/{code}");
            }
        }
    }
}

#[test]
fn every_pointer_follows_the_figures_both_ways() {
    covers!("7915-4.2d", "7915-5.2d");
    let (mut bed, sent) = after_sending(settings6(), 100);
    let from = source(&sent);
    for (code, pointer) in (0..3).flat_map(|code| (0..=255).map(move |pointer| (code, pointer))) {
        let expected = match pointer {
            _ if code == 1 => None,
            0 | 1 => Some(u32::from(pointer)),
            2 | 3 => Some(4),
            8 => Some(7),
            9 => Some(6),
            12..=15 => Some(8),
            16..=19 => Some(24),
            _ => None,
        };
        let error = build::icmp_error(E2, *from.ip(), 12, code, &sent).rest_of_header([pointer, 0, 0, 0]);
        let [back, _] = bed.outside(&error.build());
        assert_eq!(meaning6(&back), expected.map(|pointer| (4, 0, pointer)), "12/{code} {pointer}");
    }
    let [answer, _] = bed.outside(&build::udp(at(E1, 53), from).payload(b"answer").build());
    for pointer in (0..300).chain([u32::MAX]) {
        let expected = match pointer {
            0 | 1 => Some(pointer as u8),
            4 | 5 => Some(2),
            6 => Some(9),
            7 => Some(8),
            8..=23 => Some(12),
            24..=39 => Some(16),
            _ => None,
        };
        let error = icmp6_message(v6(ROUTER6), behind(E1), (4, 0), pointer, &answer[0]);
        let [_, out] = bed.inside(&error);
        assert_eq!(meaning4(&out), expected.map(|pointer| (12, 0, [pointer, 0, 0, 0])), "4/0 {pointer}");
    }
}

#[test]
fn a_fragmentation_needed_becomes_a_packet_too_big() {
    covers!("7915-4.2c");
    // MTU of the links inside and outside, length of the packet, MTU said, and what it becomes.
    for (links, length, said, expected) in [
        ((9_000, 9_000), 1_500, 1_400, 1_420),
        ((9_000, 9_000), 1_500, 1_261, 1_281),
        ((9_000, 9_000), 1_500, 1_260, 1_280),
        ((9_000, 9_000), 1_500, 905, 1_280),
        ((9_000, 9_000), 1_500, 576, 1_280),
        ((9_000, 9_000), 1_500, 68, 1_280),
        ((9_000, 9_000), 1_500, 1, 1_280),
        // From a router that does not say: the plateaus of RFC 1191.
        ((9_000, 9_000), 1_500, 0, 1_512),
        ((9_000, 9_000), 1_492, 0, 1_280),
        ((9_000, 9_000), 4_353, 0, 4_372),
        ((9_000, 9_000), 4_352, 0, 2_022),
        ((9_000, 9_000), 8_900, 0, 8_186),
        // Not more than either link takes.
        ((1_500, 9_000), 1_480, 1_490, 1_500),
        ((9_000, 1_500), 1_500, 8_000, 1_520),
        ((1_280, 1_500), 1_260, 1_400, 1_280),
    ] {
        let (mut bed, sent) = after_sending(settings6().mtu(links.0, links.1), length);
        let error = build::icmp_error(E2, *source(&sent).ip(), 3, 4, &sent[..60]).next_hop_mtu(said).build();
        let [back, _] = bed.outside(&error);
        assert_eq!(meaning6(&back), Some((2, 0, expected)), "{links:?} {length} {said}");
    }
}

#[test]
fn a_link_below_1280_is_reached_in_fragments() {
    covers!("7915-4.2c", "7915-5a");
    // A TCP segment too large for a link with an MTU of 905: the host learns 1,280, and its next
    // segments may be fragmented on the way.
    let mut bed = Bed6::new(settings6());
    let segment = |length: usize| tcp6((v6(C6), 5_000), e1(80), 0x10, (2, 1), &vec![7; length - 60]);
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""));
    bed.outside(&build::tcp(at(E1, 80), source(&out[0]), wire::tcp::Flags(0x12)).acknowledgment(2).build());
    for said in [0, 68, 905] {
        let [_, out] = bed.inside(&segment(1_300));
        assert!(header(&out[0]).dont_fragment());
        let error = build::icmp_error(E1, *source(&out[0]).ip(), 3, 4, &out[0][..28]).next_hop_mtu(said).build();
        let [back, _] = bed.outside(&error);
        assert_eq!(meaning6(&back), Some((2, 0, 1_280)), "{said}");
        let [_, out] = bed.inside(&segment(1_280));
        assert_eq!((out[0].len(), header(&out[0]).dont_fragment()), (1_260, false));
    }
}

#[test]
fn a_packet_too_big_becomes_a_fragmentation_needed() {
    covers!("7915-5.2c", "8201-4");
    for (links, said, expected) in [
        ((9_000, 9_000), 1_400, Some(1_380)),
        ((9_000, 9_000), 1_280, Some(1_260)),
        ((9_000, 9_000), 1_281, Some(1_261)),
        ((9_000, 1_500), 8_000, Some(1_500)),
        ((1_500, 9_000), 9_000, Some(1_480)),
        ((1_500, 1_500), u32::MAX, Some(1_480)),
        // No link of IPv6 is that small: forged.
        ((1_500, 1_500), 1_279, None),
        ((1_500, 1_500), 68, None),
        ((1_500, 1_500), 0, None),
    ] {
        let mut bed = Bed6::new(settings6().mtu(links.0, links.1));
        let from = mapped(&mut bed);
        let [answer, _] = bed.outside(&build::udp(at(E1, 53), from).payload_length(1_000).build());
        let [_, out] = bed.inside(&icmp6_message(v6(ROUTER6), behind(E1), (2, 0), said, &answer[0][..100]));
        let found = meaning4(&out).map(|(icmp_type, code, rest)| {
            assert_eq!((icmp_type, code), (3, 4));
            u16::from_be_bytes([rest[2], rest[3]])
        });
        assert_eq!(found, expected, "{links:?} {said}");
        if expected.is_none() {
            assert_eq!(bed.verdict(), Some(Verdict::IcmpQuoteMalformed));
        }
    }
    // The quoted packet has a Fragment header, which IPv4 does not need.
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    let [pieces, _] = bed.outside(&build::udp(at(E1, 53), from).payload_length(1_400).build());
    assert!(pieces.len() > 1);
    let [_, out] = bed.inside(&icmp6_message(v6(ROUTER6), behind(E1), (2, 0), 1_400, &pieces[0][..1_000]));
    assert_eq!(meaning4(&out), Some((3, 4, [0, 0, 0x05, 0x5c])), "28 bytes less");
}

#[test]
fn extensions_of_errors_pass_with_an_adjusted_length() {
    covers!("7915-4.2e", "7915-5.2e", "4884-4");
    for length in [100, 128, 132, 200, 400] {
        let (mut bed, sent) = after_sending(settings6(), length);
        let from = source(&sent);
        let [back, _] = bed.outside(&build::icmp_error(E2, *from.ip(), 11, 0, &sent).extension(&LABELS).build());
        let message = &back[0][40..];
        let layout = icmp6::extension_layout(message);
        assert_eq!(layout.quote.len(), (length.max(108) + 20).next_multiple_of(8), "{length}");
        assert!(wire::icmp::is_extension_valid(&message[layout.extension.clone()]));
        assert_eq!(message[layout.extension][4..], LABELS);
        assert_eq!(source6(&back[0][48..]), (v6(C6), 5_000));

        let [answer, _] = bed.outside(&build::udp(at(E1, 53), from).payload_length(length).build());
        let mut quote = answer[0].clone();
        quote.resize(quote.len().max(128).next_multiple_of(8), 0);
        let mut extension = [&[0x20, 0, 0, 0], LABELS.as_slice()].concat();
        let sum = wire::checksum::of_bytes(&extension);
        extension[2..4].copy_from_slice(&sum.to_be_bytes());
        let words = (quote.len() / 8) as u32;
        let rest = [quote.as_slice(), &extension].concat();
        let [_, out] = bed.inside(&icmp6_message(v6(ROUTER6), behind(E1), (1, 0), words << 24, &rest));
        let message = &out[0][20..];
        let layout = wire::icmp::extension_layout(message);
        assert_eq!(message[layout.extension.clone()], extension);
        assert_eq!(usize::from(message[5]) * 4, layout.quote.len());
        assert_eq!(layout.quote.len(), (answer[0].len() - 20).max(128).next_multiple_of(4));
    }
    // An extension that leaves no room for a quote goes.
    let (mut bed, sent) = after_sending(settings6(), 140);
    let long = [vec![4, 176], vec![1; 1_198]].concat();
    let [back, _] = bed.outside(&build::icmp_error(E2, *source(&sent).ip(), 11, 0, &sent).extension(&long).build());
    assert!(back[0].len() <= 1_280);
    assert_eq!(icmp6::extension_layout(&back[0][40..]).extension.len(), 0);
}

#[test]
fn header_fields_to_ipv6_are_those_of_the_rfc() {
    covers!("7915-4.1d");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    // The short way of whole packets, and the long way of fragments and queries.
    for length in [12, 200] {
        for tos in [0, 1, 2, 3, 0x28, 0xb8, 0xff] {
            let packet = build::udp(at(E1, 53), from).payload_length(length).ds_field(tos);
            for packet in [packet.build(), packet.ip_options(&[1, 1, 1, 1]).build()] {
                let [back, _] = bed.outside(&packet);
                let view = view6(&back[0]);
                assert_eq!((view.traffic_class(), view.flow_label()), (tos, 0));
                assert_eq!((usize::from(view.payload_length()), view.next_header()), (length + 8, 17));
            }
        }
    }
    let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 7));
    let reply = build::echo_reply(E1, *source(&out[0]).ip(), identifier(&out[0])).ds_field(0xb8).build();
    let [back, _] = bed.outside(&reply);
    assert_eq!((view6(&back[0]).next_header(), view6(&back[0]).traffic_class()), (58, 0xb8));
}

#[test]
fn header_fields_to_ipv4_are_those_of_the_rfc() {
    covers!("7915-5.1a");
    let mut bed = Bed6::new(settings6());
    let mut seen = HashSet::new();
    for (n, class) in [0, 1, 2, 3, 0x28, 0xb8, 0xff].into_iter().cycle().take(5_000).enumerate() {
        let mut packet = udp6((v6(C6), 5_000), e1(53), &vec![7; if n % 2 == 0 { 12 } else { 100 }]);
        let length = packet.len();
        packet[0] = 0x60 | class >> 4;
        packet[1] = class << 4 | 0xf;
        packet[2..4].copy_from_slice(&[0xab, 0xcd]);
        let [_, out] = bed.inside(&packet);
        let view = header(&out[0]);
        assert_eq!((view.header_length(), view.ds_field(), usize::from(view.total_length())), (20, class, length - 20));
        assert_eq!((view.is_fragment(), view.dont_fragment(), view.protocol()), (false, false, 17));
        assert!(seen.insert(view.identification()), "an identification twice in {n} packets");
    }
}

#[test]
fn time_to_live_is_decremented_once_and_its_end_answered() {
    covers!("7915-4.1e", "7915-5.1a");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    for payload in [12, 200] {
        let packet = build::udp(at(E1, 53), from).payload_length(payload);
        for ttl in [2, 3, 64, 255] {
            let [back, _] = bed.outside(&packet.clone().ttl(ttl).build());
            assert_eq!(view6(&back[0]).hop_limit(), ttl - 1);
            let mut packet = udp6((v6(C6), 5_000), e1(53), &vec![7; payload]);
            packet[7] = ttl;
            let [_, out] = bed.inside(&packet);
            assert_eq!(header(&out[0]).ttl(), ttl - 1);
        }
        for ttl in [0, 1] {
            bed.advance(Duration::from_secs(2));
            let [back, out] = bed.outside(&packet.clone().ttl(ttl).build());
            assert!(back.is_empty());
            assert_eq!((bed.verdict(), out[0][20], out[0][21]), (Some(Verdict::TtlExpired), 11, 0));
            assert_eq!(destination(quote(&out[0])), from, "the packet as E1 sent it");
            let mut packet = udp6((v6(C6), 5_000), e1(53), &vec![7; payload]);
            packet[7] = ttl;
            let [back, out] = bed.inside(&packet);
            assert!(out.is_empty());
            assert_eq!((bed.verdict(), icmp6_of(&back[0])), (Some(Verdict::TtlExpired), (3, 0, 0)));
        }
    }
}

#[test]
fn illegal_ipv4_sources_are_dropped_silently() {
    covers!("7915-4.1f");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    for illegal in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"] {
        let illegal: Ipv4Addr = illegal.parse().expect("an address");
        for packet in [
            build::udp(at(illegal, 53), from).payload_length(100).build(),
            build::icmp_error(illegal, *from.ip(), 3, 3, &build::udp(from, at(E1, 53)).build()).build(),
        ] {
            let [back, out] = bed.outside(&packet);
            assert!(back.is_empty() && out.is_empty(), "{illegal}");
            assert_eq!(bed.verdict(), Some(Verdict::SourceInvalid), "{illegal}");
        }
    }
}

#[test]
fn fragments_to_ipv6_keep_offset_and_identification() {
    covers!("7915-4.1h");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    let whole = build::udp(at(E1, 53), from).payload_length(3_000).identification(0xbeef).build();
    for order in [[0, 1, 2], [2, 1, 0]] {
        let fragments = build::fragment(&whole, 1_220);
        let mut left = Vec::new();
        for i in order {
            left.extend(bed.outside(&fragments[i])[0].clone());
        }
        assert_eq!(left.len(), 3);
        for piece in &left {
            let fragment = wire::ipv6::Fragment::at(piece, 40);
            assert_eq!((piece[6], piece[40], fragment.identification), (44, 17, 0xbeef));
        }
        left.sort_by_key(|piece| wire::ipv6::Fragment::at(piece, 40).offset);
        let parts: Vec<(u16, bool)> =
            left.iter().map(|piece| wire::ipv6::Fragment::at(piece, 40)).map(|it| (it.offset, it.more)).collect();
        assert_eq!(parts, [(0, true), (1_200, true), (2_400, false)]);
        assert_eq!(wire::build6::reassemble(&left).expect("one packet").len(), 3_048);
    }
}

#[test]
fn sizes_from_outside_meet_every_mtu_inside() {
    covers!("7915-4.1a", "7915-4.1b", "7915-4.1c");
    for mtu in [1_280, 1_281, 1_500] {
        let mut bed = Bed6::new(settings6().mtu(mtu, 1_500));
        let from = mapped(&mut bed);
        let mtu = usize::from(mtu);
        for length in [1_259, 1_260, 1_261, 1_262, mtu - 21, mtu - 20, mtu - 19, 1_500] {
            bed.advance(Duration::from_secs(2));
            let packet = build::udp(at(E1, 53), from).payload_length(length - 28).identification(0x4242);
            // With Don't Fragment: as it is, or back.
            let [back, out] = bed.outside(&packet.clone().dont_fragment().build());
            if length + 20 <= mtu {
                assert_eq!((back.len(), back[0].len(), view6(&back[0]).next_header()), (1, length + 20, 17));
            } else {
                assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::TooBig)), "{mtu} {length}");
                let said = u16::from_be_bytes([out[0][26], out[0][27]]);
                assert_eq!((out[0][20], out[0][21], usize::from(said)), (3, 4, mtu - 20));
            }
            // Without: cut to 1,280 bytes, and no Fragment header without need.
            let [back, out] = bed.outside(&packet.build());
            assert!(out.is_empty());
            assert!(back.iter().all(|piece| piece.len() <= 1_280), "{mtu} {length}");
            assert_eq!(back.len() == 1, length <= 1_260);
            if back.len() == 1 {
                assert_eq!(view6(&back[0]).next_header(), 17);
            } else {
                assert_eq!(wire::ipv6::Fragment::at(&back[0], 40).identification, 0x4242);
                assert_eq!(wire::build6::reassemble(&back).expect("one packet").len(), length + 20);
            }
        }
        // A Fragment Header takes eight bytes more, and fragments come in eights.
        let fits = 20 + (mtu - 48) / 8 * 8;
        for (number, length) in [(1, fits), (2, fits + 8)] {
            bed.advance(Duration::from_secs(2));
            let whole = build::udp(at(E1, 53), from).payload_length(2 * length).identification(number);
            let first = build::fragment(&whole.dont_fragment().build(), length).remove(0);
            assert_eq!((first.len(), first[6] >> 5), (length, 3), "Don't Fragment and More Fragments");
            let [back, out] = bed.outside(&first);
            if length == fits {
                assert_eq!((back.len(), back[0].len()), (1, length + 28));
            } else {
                assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::TooBig)), "{mtu} {length}");
                let said = u16::from_be_bytes([out[0][26], out[0][27]]);
                assert_eq!((out[0][20], out[0][21], usize::from(said)), (3, 4, mtu - 28));
            }
        }
        // Fragments that fit pass, and those that do not are cut again.
        let whole = build::udp(at(E1, 53), from).payload_length(4_000).identification(0x1717).build();
        for size in [600, 1_252, 1_260, 1_500] {
            let mut left = Vec::new();
            for piece in build::fragment(&whole, size) {
                left.extend(bed.outside(&piece)[0].clone());
            }
            assert!(left.iter().all(|piece| piece.len() <= 1_280), "{mtu} {size}");
            assert_eq!(wire::build6::reassemble(&left).expect("one packet").len(), 4_048, "{mtu} {size}");
        }
    }
}

#[test]
fn the_smallest_mtu_of_ipv6_can_be_raised() {
    covers!("7915-4.1a");
    let with_lowest = |mtu: u16| {
        let mut settings = settings6();
        settings.transition.nat64[0].lowest_mtu6 = mtu;
        settings
    };
    let mut bed = Bed6::new(with_lowest(1_400));
    let from = mapped(&mut bed);
    let check = |bed: &mut Bed6, mtu: usize| {
        for (length, pieces) in [(mtu - 20, 1), (mtu - 19, 2)] {
            let [back, _] = bed.outside(&build::udp(at(E1, 53), from).payload_length(length - 28).build());
            assert_eq!(back.len(), pieces, "{length}");
            assert!(back.iter().all(|piece| piece.len() <= mtu));
        }
    };
    check(&mut bed, 1_400);
    bed.reload(with_lowest(1_281), |_| {}).expect("it can be changed by a reload");
    check(&mut bed, 1_281);
}

#[test]
fn sizes_from_inside_meet_every_mtu_outside() {
    covers!("7915-5a", "7915-5.1.1c");
    for mtu in [576, 1_000, 1_259, 1_260, 1_261, 1_280, 1_500] {
        let mut bed = Bed6::new(settings6().mtu(1_500, mtu));
        let mtu = usize::from(mtu);
        for length in [1_279, 1_280, 1_281, 1_282, 1_500] {
            bed.advance(Duration::from_secs(2));
            let [back, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), &vec![7; length - 48]));
            let fits = length - 20 <= mtu;
            if length > 1_280 && !fits {
                assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::TooBig)), "{mtu} {length}");
                let said = (mtu as u32 + 20).max(1_280);
                assert_eq!(meaning6(&back), Some((2, 0, said)), "{mtu} {length}");
                continue;
            }
            assert!(back.is_empty());
            assert!(out.iter().all(|piece| piece.len() <= mtu), "{mtu} {length}");
            assert_eq!(out.len() == 1, fits, "{mtu} {length}");
            assert_eq!(header(&out[0]).dont_fragment(), length > 1_280, "{mtu} {length}");
            if !fits {
                assert_eq!(build::reassemble(&out).expect("one packet").len(), length - 20);
            }
        }
        // Fragments of the host are cut again, without Don't Fragment.
        let whole = udp6((v6(C6), 5_000), e1(53), &[7; 3_000]);
        let mut left = Vec::new();
        for fragment in fragments6(&whole, &[1_232, 1_232], 0xabcd_0001) {
            left.extend(bed.inside(&fragment)[1].clone());
        }
        assert!(left.iter().all(|piece| piece.len() <= mtu && !header(piece).dont_fragment()), "{mtu}");
        assert_eq!(build::reassemble(&left).expect("one packet").len(), 3_028, "{mtu}");
    }
}

#[test]
fn checksums_are_right_with_every_prefix() {
    covers!("7915-4.5a", "7915-5.5", "6052-7", "7915-6");
    for (text, length) in [("64:ff9b::", 96), ("2001:db8:64::", 96), ("2001:db8:122:344::", 64), ("2001:db8::", 32)] {
        let mut settings = settings6();
        let prefix = translate::Prefix::new(v6(text), length).expect("a prefix");
        settings.transition.nat64[0].prefix = prefix;
        settings.ipv6.addresses[0].address = v6("fd00::1").into();
        settings.transition.softwires.clear();
        let mut bed = Bed6::new(settings);
        let (host, server) = (v6("fd00:6::6"), prefix.embed(E1.to_bits()));
        let [_, out] = bed.inside(&udp6((host, 5_000), (server, 53), b"x"));
        let udp = source(&out[0]);
        let [_, out] = bed.inside(&tcp6((host, 5_000), (server, 80), 2, (1, 0), b""));
        let tcp = source(&out[0]);
        // The bed checks every packet that leaves.
        for n in 0..300_usize {
            let data: Vec<u8> = (0..n).map(|byte| (byte * 31 + n) as u8).collect();
            let [_, out] = bed.inside(&udp6((host, 5_000), (server, 53), &data));
            assert_eq!(payload(&out[0]), data);
            let [back, _] = bed.outside(&build::udp(at(E1, 53), udp).payload(&data).build());
            assert_eq!(back[0][48..], data);
            let [_, out] = bed.inside(&tcp6((host, 5_000), (server, 80), 0x10, (n as u32, 7), &data));
            assert_eq!(payload(&out[0]), data);
            let [back, _] = bed.outside(
                &build::tcp(at(E1, 80), tcp, wire::tcp::Flags(0x10)).sequence(n as u32).payload(&data).build(),
            );
            assert_eq!(back[0][60..], data);
            let [_, out] = bed.inside(&ping6(host, server, n as u16));
            let reply = build::echo_reply(E1, *source(&out[0]).ip(), identifier(&out[0])).payload(&data).build();
            let [back, _] = bed.outside(&reply);
            assert_eq!((icmp6_of(&back[0]).0, icmp6_of(&back[0]).2 >> 16), (129, n as u32));
        }
    }
}

#[test]
fn extension_headers_are_skipped_and_open_routes_refused() {
    covers!("7915-5.1b");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), b"question");
    let options = [0, 1, 4, 0, 0, 0, 0];
    for headers in [&[0][..], &[60], &[43], &[0, 60, 43, 60], &[60, 60, 60, 60, 60, 60]] {
        let mut packet = whole.clone();
        for header in headers.iter().rev() {
            // A routing header of an unknown type without segments left.
            let body = if *header == 43 { [0, 253, 0, 0, 0, 0, 0] } else { options };
            packet = wire::build6::with_extension(&packet, *header, &body);
        }
        let [_, out] = bed.inside(&packet);
        assert_eq!((payload(&out[0]), out[0].len(), header(&out[0]).protocol()), (&b"question"[..], 36, 17));
    }
    let open = wire::build6::with_extension(&whole, 43, &[0, 253, 1, 0, 0, 0, 0]);
    let behind_options = wire::build6::with_extension(&open, 60, &options);
    for (packet, pointer) in [(open, 43), (behind_options, 51)] {
        bed.advance(Duration::from_secs(2));
        let [back, out] = bed.inside(&packet);
        assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::Ipv6Header)));
        assert_eq!(meaning6(&back), Some((4, 0, pointer)), "Segments Left");
    }
}

#[test]
fn headers_behind_a_fragment_header_are_dropped() {
    covers!("7915-5.1.1b");
    let mut bed = Bed6::new(settings6());
    let whole = udp6((v6(C6), 5_000), e1(53), b"question");
    for header in [0, 43, 44, 51, 60] {
        for fragment in [[0, 0, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 1]] {
            let packet = wire::build6::with_extension(&whole, header, &[0, 1, 4, 0, 0, 0, 0]);
            let packet = wire::build6::with_extension(&packet, 44, &fragment);
            let [_, out] = bed.inside(&packet);
            assert_eq!((out.len(), bed.verdict()), (0, Some(Verdict::Ipv6Header)), "{header}");
        }
    }
    assert_eq!(bed.mappings(), 0);
}

#[test]
fn ipsec_passes_in_udp_and_in_nothing_else() {
    covers!("7915-8", "7915-4.5c", "6146-11");
    let mut bed = Bed6::new(settings6());
    for protocol in [50, 51] {
        bed.advance(Duration::from_secs(2));
        let [back, out] = bed.inside(&packet6(v6(C6), behind(E1), protocol, &[0; 64]));
        assert!(out.is_empty());
        if protocol == 50 {
            assert_eq!((bed.verdict(), meaning6(&back)), (Some(Verdict::ProtocolUnsupported), Some((1, 4, 0))));
        }
        let from = mapped(&mut bed);
        let [back, _] = bed.outside(&build::raw(E1, *from.ip(), protocol).payload(&[0; 64]).build());
        assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::ProtocolUnsupported)));
    }
    // RFC 3948: a checksum of zero in IPv4, and keepalives of one byte.
    let [_, out] = bed.inside(&udp6((v6(C6), 4_500), e1(4_500), &[0xff]));
    let answer = build::udp(at(E1, 4_500), source(&out[0])).payload(&[0xff]).without_checksum().build();
    let [back, _] = bed.outside(&answer);
    assert_eq!(back[0][48..], [0xff]);
}

#[test]
fn only_ipv4_hosts_have_addresses_of_the_prefix() {
    covers!("6052-6");
    let mut bed = Bed6::new(settings6());
    // A host whose address would be IPv4-translatable.
    for address in [E2, POOL[0], I1] {
        let [back, out] = bed.inside(&udp6((behind(address), 1), e1(2), b"x"));
        assert!(back.is_empty() && out.is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::SourceInPrefix));
    }
}

#[test]
fn a_dropped_packet_is_answered_but_never_an_icmp_message() {
    covers!("7915-5.4");
    let to = |address: &str| behind(address.parse().expect("an IPv4 address"));
    let mut bed = Bed6::new(settings6());
    for address in ["10.0.0.1", "127.0.0.1", "224.0.0.1", "0.0.0.0", "240.0.0.1"] {
        bed.advance(Duration::from_secs(2));
        let [back, out] = bed.inside(&udp6((v6(C6), 1), (to(address), 2), b"x"));
        assert!(out.is_empty());
        assert_eq!(meaning6(&back), Some((1, 1, 0)), "{address}");
        assert_eq!((view6(&back[0]).source(), view6(&back[0]).destination()), (v6(OWN6), v6(C6)));
        let [back, out] = bed.inside(&ping6(v6(C6), to(address), 7));
        assert!(back.is_empty() && out.is_empty(), "{address}");
    }
    // Without a checksum.
    let mut packet = udp6((v6(C6), 1), e1(2), b"x");
    packet[46..48].fill(0);
    let [back, _] = bed.inside(&packet);
    assert_eq!((bed.verdict(), meaning6(&back)), (Some(Verdict::ChecksumMissing), Some((1, 1, 0))));
    // The source of a forged packet hears nothing.
    for source in [behind(E2), 0, 1, v6("ff02::1"), v6("fe80::1")] {
        let [back, out] = bed.inside(&udp6((source, 1), (to("10.0.0.1"), 2), b"x"));
        assert!(back.is_empty() && out.is_empty());
    }
    // No room for a host (RFC 6146 §3.5.1.1).
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 1;
    let mut bed = Bed6::new(settings);
    bed.inside(&udp6((v6(C6), 1), e1(2), b"x"));
    let [back, _] = bed.inside(&udp6((v6(C6) + 1, 1), e1(2), b"x"));
    assert_eq!((bed.verdict(), meaning6(&back)), (Some(Verdict::HostLimit), Some((1, 3, 0))));
    // Switched off.
    let mut settings = settings6();
    settings.icmp.errors_to_inside = false;
    let mut bed = Bed6::new(settings);
    let [back, out] = bed.inside(&udp6((v6(C6), 1), (to("10.0.0.1"), 2), b"x"));
    assert!(back.is_empty() && out.is_empty());
}

#[test]
fn every_drop_of_an_ipv6_packet_has_its_answer() {
    covers!("7915-5.4");
    let mut settings = settings6();
    settings.interfaces[1].mtu = 1_400;
    settings.transition.hosts_per_subscriber_max = 1;
    let mut bed = Bed6::new(settings);
    bed.inside(&udp6((v6(C6), 1), e1(2), b"x"));
    let to = |address: [u8; 4]| behind(address.into());
    let extended = |packet: &[u8], times| {
        let options = |packet: Vec<u8>, _| wire::build6::with_extension(&packet, 60, &[0, 1, 4, 0, 0, 0, 0]);
        (0..times).fold(packet.to_vec(), options)
    };
    let behind_fragment = |packet: &[u8]| {
        let packet = wire::build6::with_extension(packet, 60, &[0, 1, 4, 0, 0, 0, 0]);
        wire::build6::with_extension(&packet, 44, &[0, 0, 1, 0, 0, 0, 1])
    };
    let open = |packet: &[u8]| wire::build6::with_extension(packet, 43, &[0, 253, 1, 0, 0, 0, 0]);
    let with_hops = |mut packet: Vec<u8>, hops| {
        packet[7] = hops;
        packet
    };
    let without_checksum = |mut packet: Vec<u8>| {
        packet[46..48].fill(0);
        packet
    };
    let udp = |to: u128| udp6((v6(C6), 1), (to, 2), b"x");
    let ping = |to: u128| ping6(v6(C6), to, 7);
    let prohibited = Some((1, 1, 0));
    // The packet, what a host hears of it, and what it hears of a ping in its place.
    for (packet, hears, ping, hears_of_ping) in [
        (udp(to([10, 0, 0, 1])), prohibited, ping(to([10, 0, 0, 1])), None),
        (udp(to([127, 0, 0, 1])), prohibited, ping(to([127, 0, 0, 1])), None),
        (udp(to([169, 254, 0, 1])), prohibited, ping(to([169, 254, 0, 1])), None),
        (tcp6((v6(C6), 1), (to([224, 0, 0, 1]), 2), 2, (1, 0), b""), prohibited, ping(to([224, 0, 0, 1])), None),
        (without_checksum(udp(behind(E1))), prohibited, fragments6(&ping(behind(E1)), &[8], 1).remove(0), None),
        (behind_fragment(&udp(behind(E1))), prohibited, behind_fragment(&ping(behind(E1))), None),
        (open(&udp(behind(E1))), Some((4, 0, 43)), open(&ping(behind(E1))), Some((4, 0, 43))),
        (packet6(v6(C6), behind(E1), 132, &[0; 12]), Some((1, 4, 0)), ping(to([0, 0, 0, 1])), None),
        (with_hops(udp(behind(E1)), 1), Some((3, 0, 0)), with_hops(ping(behind(E1)), 1), Some((3, 0, 0))),
        (udp6((v6(C6), 1), e1(2), &[7; 1_400]), Some((2, 0, 1_420)), ping(to([255; 4])), None),
        (udp6((v6(C6) + 1, 1), e1(2), b"x"), Some((1, 3, 0)), ping6(v6(C6) + 1, behind(E1), 7), None),
        // Whether more than 8 headers hide an ICMPv6 error, nobody knows.
        (extended(&udp(behind(E1)), 9), None, extended(&ping(behind(E1)), 9), None),
    ] {
        for (packet, expected) in [(packet, hears), (ping, hears_of_ping)] {
            bed.advance(Duration::from_secs(2));
            let [back, out] = bed.inside(&packet);
            assert_eq!(out.len(), 0, "it is dropped: {packet:02x?}");
            assert_eq!((back.len(), meaning6(&back)), (usize::from(expected.is_some()), expected), "{packet:02x?}");
        }
    }
    // Of an ICMPv6 error never, whatever is wrong with it.
    let quote = udp6(e1(2), (v6(C6), 1), b"x");
    let error = |to: u128| icmp6_message(v6(C6), to, (1, 4), 0, &quote);
    for packet in [
        error(to([10, 0, 0, 1])),
        error(to([127, 0, 0, 1])),
        open(&error(behind(E1))),
        with_hops(error(behind(E1)), 1),
        extended(&error(behind(E1)), 9),
        icmp6_message(v6(C6), behind(E1), (1, 200), 0, &quote),
    ] {
        bed.advance(Duration::from_secs(2));
        assert_eq!(bed.inside(&packet).concat().len(), 0, "{packet:02x?}");
    }
}

#[test]
fn errors_about_dropped_packets_are_limited_and_optional() {
    covers!("7915-4.4", "7915-5.4");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    let expired = build::udp(at(E1, 53), from).ttl(1).build();
    let answers: usize = (0..2_000).map(|_| bed.outside(&expired)[1].len()).sum();
    assert!((1..100).contains(&answers), "{answers} answers in no time");
    let answers: usize =
        (0..2_000).map(|_| bed.inside(&udp6((v6(C6), 1), (behind([10, 0, 0, 1].into()), 2), b"x"))[0].len()).sum();
    assert!((1..100).contains(&answers), "{answers} answers in no time");
    // Never about an error.
    bed.advance(Duration::from_secs(60));
    let sent = build::udp(from, at(E1, 53)).build();
    let [back, out] = bed.outside(&build::icmp_error(E1, *from.ip(), 3, 3, &sent).ttl(1).build());
    assert!(back.is_empty() && out.is_empty());
    let mut settings = settings6();
    settings.icmp.errors_to_outside = false;
    let mut bed = Bed6::new(settings);
    let from = mapped(&mut bed);
    let [back, out] = bed.outside(&build::udp(at(E1, 53), from).ttl(1).build());
    assert!(back.is_empty() && out.is_empty());
}

#[test]
fn fragments_without_checksum_reach_any_worker() {
    covers!("6146-10");
    let mut bed = Bed6::with_workers(settings6(), 3);
    let [_, out] = bed.receive(0, topology::INSIDE, &udp6((v6(C6), 5_000), e1(53), b"x"));
    let from = source(&out[0]);
    for identification in 0..20 {
        let whole = build::udp(at(E1, 53), from).payload_length(3_000).identification(identification);
        let mut left = Vec::new();
        for (n, fragment) in build::fragment(&whole.without_checksum().build(), 1_000).iter().enumerate() {
            left.extend(bed.receive((n + usize::from(identification)) % 3, topology::OUTSIDE, fragment)[0].clone());
        }
        let whole6 = wire::build6::reassemble(&left).expect("one packet");
        assert_eq!((wire::verify6::faults(&whole6), whole6.len()), (vec![], 3_048));
    }
}

#[test]
fn ipv4_options_are_ignored_and_source_routes_refused() {
    covers!("7915-4.1g");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    let packet = build::udp(at(E1, 53), from).payload(b"answer");
    for options in [&[7, 7, 4, 0, 0, 0, 0, 1][..], &[68, 8, 5, 0, 0, 0, 0, 0], &[148, 4, 0, 0], &[1; 40]] {
        let [back, _] = bed.outside(&packet.clone().ip_options(options).build());
        assert_eq!((back[0].len(), &back[0][48..]), (54, &b"answer"[..]), "nothing of {options:?} is left");
    }
    for kind in [131, 137] {
        bed.advance(Duration::from_secs(2));
        let [back, out] = bed.outside(&packet.clone().ip_options(&[kind, 7, 4, 192, 0, 2, 9, 0]).build());
        assert!(back.is_empty());
        assert_eq!((bed.verdict(), out[0][20], out[0][21]), (Some(Verdict::SourceRoute), 3, 5));
        assert_eq!(destination(&out[0]).ip(), &E1);
    }
}

#[test]
fn packets_of_a_flow_leave_in_their_order() {
    covers!("7915-4a");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    // Sizes that take the short way, the long way, and those that are cut.
    let number = |n: u16, length: usize| [&n.to_be_bytes()[..], &vec![7; length]].concat();
    let sizes = [10, 600, 1_400, 20, 1_230, 1_240, 4, 1_300];
    for round in 0..20_u16 {
        let packets: Vec<Vec<u8>> = (0..32)
            .map(|n| {
                let data = number(round * 32 + n, sizes[usize::from(n + round) % sizes.len()]);
                build::udp(at(E1, 53), from).payload(&data).identification(round * 32 + n).build()
            })
            .collect();
        let [back, _] = bed.burst(topology::OUTSIDE, &packets);
        let whole = back.iter().filter(|packet| packet[6] == 17 || wire::ipv6::Fragment::at(packet, 40).offset == 0);
        let numbers: Vec<u16> = whole
            .map(|packet| if packet[6] == 17 { &packet[48..50] } else { &packet[56..58] })
            .map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
            .collect();
        assert_eq!(numbers, (round * 32..round * 32 + 32).collect::<Vec<_>>());
        let packets: Vec<Vec<u8>> =
            (0..32).map(|n| udp6((v6(C6), 5_000), e1(53), &number(n, sizes[usize::from(n) % sizes.len()]))).collect();
        let [_, out] = bed.burst(topology::INSIDE, &packets);
        let numbers: Vec<u16> = out.iter().map(|packet| u16::from_be_bytes([packet[28], packet[29]])).collect();
        assert_eq!(numbers, (0..32).collect::<Vec<_>>());
    }
}

#[test]
fn udp_without_checksum_gets_one_even_in_fragments() {
    covers!("6146-10", "7915-4.5b");
    let mut bed = Bed6::new(settings6());
    let from = mapped(&mut bed);
    for length in [1_400, 3_000, 9_000] {
        let whole = build::udp(at(E1, 53), from).payload_length(length).identification(7).without_checksum().build();
        let fragments = build::fragment(&whole, 1_000);
        for backwards in [false, true] {
            let mut left = Vec::new();
            let order: Vec<_> = if backwards { fragments.iter().rev().collect() } else { fragments.iter().collect() };
            for fragment in order {
                left.extend(bed.outside(fragment)[0].clone());
            }
            assert!(left.iter().all(|piece| piece.len() <= 1_280));
            // Reassembling checks nothing; the checksum is looked at here.
            let whole6 = wire::build6::reassemble(&left).expect("one packet");
            assert_ne!(&whole6[46..48], [0, 0]);
            assert_eq!(wire::verify6::faults(&whole6), []);
            assert_eq!((whole6.len(), destination6(&whole6)), (length + 48, (v6(C6), 5_000)));
        }
    }
    assert!(bed.count(Verdict::Reassembled) > 0);
    // A datagram that does not become whole, and one that is too large.
    let whole = build::udp(at(E1, 53), from).payload_length(3_000).without_checksum().build();
    let fragments = build::fragment(&whole, 1_000);
    bed.outside(&fragments[0]);
    bed.outside(&fragments[1]);
    bed.advance(Duration::from_secs(30));
    assert_eq!(bed.count(Verdict::FragmentTimeout), 2);
    let whole = build::udp(at(E1, 53), from).payload_length(20_000).without_checksum().build();
    for fragment in build::fragment(&whole, 1_500) {
        assert!(bed.outside(&fragment)[0].is_empty());
    }
    assert!(bed.count(Verdict::TooBig) > 0);
    // One source takes a bounded share.
    let whole = build::udp(at(E1, 53), from).payload_length(3_000).without_checksum();
    for identification in 0..100 {
        bed.outside(&build::fragment(&whole.clone().identification(identification).build(), 1_000)[0]);
    }
    // Those that are put together have fewer places than those that are followed.
    let refused = [Verdict::ReassemblyQuota, Verdict::FragmentTableFull].map(|verdict| bed.count(verdict));
    assert!(refused[0] > 0 && refused.iter().sum::<u64>() >= 90, "{refused:?}");
    let [back, _] = bed.outside(&build::udp(at(E1, 53), from).payload(b"answer").build());
    assert_eq!(back.len(), 1);
}
