//! S6 and S7: headers that are cut or lie about lengths, and TTL.

use nat::Protocol;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use super::FAR_ROUTER;
use super::beds;

#[test]
fn headers_with_wrong_lengths_are_dropped_without_state() {
    covers!("S6");
    let good = [
        build::udp(at(I1, 5000), at(E1, 9)).payload_length(40).build(),
        build::tcp(at(I1, 5000), at(E1, 80), Flags::SYN).mss(1460).build(),
        build::echo_request(I1, E1, 7).payload_length(40).build(),
        build::icmp_error(I1, E1, 3, 3, &build::udp(at(E1, 9), at(I1, 5000)).build()).build(),
    ];
    // Rewrites a header field and makes the header checksum right again.
    let changed = |packet: &[u8], offset: usize, bytes: &[u8]| {
        let mut packet = packet.to_vec();
        packet[offset..offset + bytes.len()].copy_from_slice(bytes);
        if usize::from(packet[0] & 15) >= 5 && usize::from(packet[0] & 15) * 4 <= packet.len() {
            Ipv4::new_unchecked(packet.as_mut_slice()).fill_checksum();
        }
        packet
    };
    let [udp, tcp, _, _] = &good;
    let mut bad = Vec::new();
    for length in [0_u16, 1, 7, 49, 100, 65_535] {
        bad.push(changed(udp, 24, &length.to_be_bytes()));
    }
    for offset in [0_u8, 1, 4, 7, 15] {
        bad.push(changed(tcp, 32, &[offset << 4]));
    }
    for packet in &good {
        // A link pads short frames, so that a little more than there is may look like it were
        // there.
        for length in [0_u16, 1, 19, packet.len() as u16 + 100, 65_535] {
            bad.push(changed(packet, 2, &length.to_be_bytes()));
        }
        // Whole IP header, and less than a transport header behind it: 4 bytes of ICMP and so on.
        let shortest = if packet[9] == 6 { 20 } else { 8 };
        for length in 20..20 + shortest {
            bad.push(changed(&packet[..length], 2, &(length as u16).to_be_bytes()));
        }
        for version_and_length in [0x05, 0x15, 0x55, 0x65, 0xf5, 0x40, 0x41, 0x44] {
            bad.push(changed(packet, 0, &[version_and_length]));
        }
        for length in 0..20 {
            bad.push(packet[..length].to_vec());
        }
    }
    for mut bed in beds(&settings()) {
        for packet in &bad {
            bed.inside(packet);
            bed.outside(packet);
        }
        bed.advance_secs(10);
        bed.assert_silent();
        assert_eq!((bed.mappings(), bed.sessions()), (vec![], vec![]));
        assert_eq!(bed.counters().verdicts_total(), 2 * bad.len() as u64, "{:?}", bed.verdicts());
        // And the good ones pass.
        for packet in &good[..3] {
            bed.inside(packet);
            bed.only_outside();
        }
    }
}

// S7: TTL.

#[test]
fn ttl_falls_by_one_in_a_hairpin_and_expiry_makes_no_state() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ttl(1).payload(b"x").build());
        let error = bed.only_inside();
        assert!(is_icmp(&error, 11, 0));
        assert_eq!(source(quote(&error)), at(I1, 5000));
        assert_eq!((bed.mappings(), bed.ports_used()), (vec![], 0));
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).ttl(2).payload(b"x").build());
        let left = bed.only_outside();
        assert_eq!(ttl(&left), 1);
        for ttl_sent in [2, 3, 64, 255] {
            bed.outside(&build::udp(at(E1, 9), source(&left)).ttl(ttl_sent).payload(b"x").build());
            assert_eq!(ttl(&bed.only_inside()), ttl_sent - 1);
            bed.inside(&build::udp(at(I2, 5000), source(&left)).ttl(ttl_sent).payload(b"x").build());
            assert_eq!(ttl(&bed.only_inside()), ttl_sent - 1, "once for the two halves of a hairpin");
        }
        bed.inside(&build::udp(at(I3, 5000), source(&left)).ttl(1).payload(b"x").build());
        let error = bed.only_inside();
        assert!(is_icmp(&error, 11, 0));
        assert_eq!((destination(&error).ip(), source(quote(&error))), (&I3, at(I3, 5000)));
        assert!(bed.mapping_of(Protocol::Udp, at(I3, 5000)).is_none());
    }
}

#[test]
fn a_packet_to_an_unmapped_endpoint_does_not_loop() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        let mut sent = 0;
        for address in POOL {
            for (inside, from) in [(true, I1), (false, E1)] {
                let packets = [
                    build::udp(at(from, 5000), at(address, 40_000)).ttl(255).payload(b"x").build(),
                    build::tcp(at(from, 5000), at(address, 40_000), Flags::ACK).ttl(255).build(),
                    build::echo_request(from, address, 7).ttl(255).build(),
                    build::raw(from, address, 47).ttl(255).payload_length(20).build(),
                ];
                for packet in packets {
                    if inside {
                        bed.inside(&packet)
                    } else {
                        bed.outside(&packet)
                    }
                    sent += 1;
                }
            }
        }
        bed.assert_silent();
        assert_eq!(bed.counters().verdicts_total(), sent, "one drop each: {:?}", bed.verdicts());
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn traceroute_shows_sensible_hops_from_both_sides() {
    covers!("S7");
    for mut bed in beds(&settings()) {
        let probe =
            |ttl: u8| build::udp(at(I1, 5000), at(E1, 33_434)).ttl(ttl).dont_fragment().payload(b"probe").build();
        bed.inside(&probe(1));
        let hop = bed.only_inside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OWN_INSIDE, &probe(1)[..]));
        // The probe that lives one hop longer ends at the next router.
        bed.inside(&probe(2));
        let left = bed.only_outside();
        let external = source(&left);
        bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &left).build());
        let hop = bed.only_inside();
        assert!(is_icmp(&hop, 11, 0));
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OUTSIDE_ROUTER, &probe(1)[..]));

        let probe = |ttl: u8| build::udp(at(E1, 7), external).ttl(ttl).dont_fragment().payload(b"probe").build();
        bed.outside(&probe(1));
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (&OWN_OUTSIDE, &probe(1)[..]));
        bed.outside(&probe(2));
        let arrived = bed.only_inside();
        bed.inside(&build::icmp_error(FAR_ROUTER, E1, 11, 0, &arrived).build());
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), destination(&hop).ip()), (external.ip(), &E1));
        assert_eq!(quote(&hop), probe(1));
        bed.outside(&probe(3));
        let arrived = bed.only_inside();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &arrived).build());
        let hop = bed.only_outside();
        assert_eq!((source(&hop).ip(), quote(&hop)), (external.ip(), &probe(2)[..]));
    }
}
