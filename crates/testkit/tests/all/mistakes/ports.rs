//! S13: port 0 and reserved ports.

use std::collections::HashSet;

use nat::types::Side;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::SYN_ACK;
use super::beds;
use super::stream;

#[test]
fn a_million_external_ports_are_never_0_and_never_reserved() {
    covers!("S13");
    let reserved = [1, 80, 443, 1_024, 3_478, 5_350, 5_351, 8_080, 65_535];
    for seed in 0..6 {
        let mut bed = Bed::new(settings().ports(1, 65_535).reserved(&reserved)).seed(seed);
        let mut seen = HashSet::new();
        // Three addresses, each protocol: 29 000 ports of each, at half load and with low ports
        // asked for too.
        let packets = (0..174_000_u32).map(|number| {
            let from = at(
                (0x6442_0000 + number / 64).into(),
                if number % 128 < 2 { number as u16 % 1_024 } else { 2_000 + number as u16 % 60_000 },
            );
            match number % 2 {
                0 => build::udp(from, at(E1, 9)).payload(&number.to_be_bytes()).build(),
                _ => build::tcp(from, at(E1, 9), Flags::SYN).sequence(number).build(),
            }
        });
        stream(&mut bed, Side::Inside, packets, |out| {
            let external = source(&out);
            assert_ne!(external.port(), 0);
            assert!(!reserved.contains(&external.port()), "{external}");
            assert!(seen.insert((out[9], external)), "{external} was given out twice");
        });
        assert_eq!(seen.len(), bed.mappings().len());
    }
}

#[test]
fn port_0_is_a_port_like_any_other_on_both_sides() {
    covers!("S13");
    for mut bed in beds(&settings().ports(1, 65_535)) {
        for port in [0, 1, 65_535] {
            let udp = bed.open_udp(at(I1, port), at(E1, 9));
            assert_ne!(udp.port(), 0);
            assert_eq!(bed.open_udp(at(I1, port), at(E1, 0)), udp, "consistently");
            assert!(bed.udp_reaches(at(E1, 0), udp, at(I1, port)));
            let tcp = bed.open_tcp(at(I1, port), at(E1, 0));
            bed.outside(&build::tcp(at(E1, 0), tcp, SYN_ACK).build());
            assert_eq!(destination(&bed.only_inside()), at(I1, port));
        }
        for id in [0, 0xffff] {
            let external = bed.ping(I1, id, E1);
            bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
            assert_eq!(destination(&bed.only_inside()), at(I1, id));
        }
        for address in POOL {
            bed.outside(&build::udp(at(E1, 9), at(address, 0)).build());
            bed.outside(&build::echo_reply(E1, address, 0).build());
        }
        bed.assert_silent();
    }
}
