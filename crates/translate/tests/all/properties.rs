//! Any packet there and back again.

use proptest::prelude::*;
use translate::Limits;
use translate::Reason;
use wire::build;
use wire::build6;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use crate::support::*;

/// MTUs at which nothing is refused for its size.
const WIDE: Limits =
    Limits { mtu4: 65_535, mtu6: 65_535, lowest_mtu6: 65_535, copies_traffic_class: true, is_hop: true };

/// An IPv4 packet of the host or to it.
fn packet4() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..600);
    (0..4_u8, any::<bool>(), any::<[u16; 2]>(), any::<[u8; 2]>(), 3..=255_u8, payload).prop_map(
        |(kind, outbound, [a, b], [class, rest], ttl, payload)| {
            let (host, peer) = (build::endpoint([192, 0, 2, 1], a), build::endpoint([203, 0, 113, rest], b));
            let (from, to) = if outbound { (host, peer) } else { (peer, host) };
            let builder = match kind {
                0 => build::udp(from, to),
                1 => build::tcp(from, to, Flags::ACK),
                2 => build::echo_request(*from.ip(), *to.ip(), a),
                _ => build::echo_reply(*from.ip(), *to.ip(), b),
            };
            builder.ds_field(class).identification(0x4321).ttl(ttl).payload(&payload).build()
        },
    )
}

proptest! {
    #[test]
    fn packets_come_back_as_they_were(packet in packet4()) {
        let (packet6, written) = ipv6_of(&packet, &WIDE).unwrap();
        prop_assert_eq!(written.split, None);
        assert_right6(&packet6);
        let (back, _) = ipv4_of(&packet6, &WIDE).unwrap();
        assert_right4(&back);
        let mut expected = packet;
        let mut view = Ipv4::new_unchecked(expected.as_mut_slice());
        view.set_ttl(view.ttl() - 2);
        view.fill_checksum();
        prop_assert_eq!(back, expected);
    }

    #[test]
    fn errors_come_back_as_they_were(
        packet in packet4(),
        length in 28..500_usize,
        kind in prop::sample::select(vec![(3_u8, 3_u8, 0_u16), (3, 4, 1300), (11, 0, 0), (11, 1, 0)]),
    ) {
        let (icmp_type, code, mtu) = kind;
        let quote = &packet[..length.min(packet.len())];
        let source = Ipv4::new_unchecked(packet.as_slice()).source();
        let builder = build::icmp_error(v4("198.51.100.9"), source.into(), icmp_type, code, quote);
        let error = builder.next_hop_mtu(mtu).identification(0x4321).build();
        let (error6, _) = ipv6_of(&error, &WIDE).unwrap();
        assert_right6(&error6);
        let (back, _) = ipv4_of(&error6, &WIDE).unwrap();
        assert_right4(&back);
        // The quoted header is as before, except for what IPv6 does not carry.
        prop_assert_eq!(&back[48..], &error[48..]);
        prop_assert_eq!(&back[20..22], &error[20..22]);
        prop_assert_eq!(&back[24..28], &error[24..28]);
        prop_assert_eq!(&back[28..32], &error[28..32]);
        prop_assert_eq!(&back[36..38], &error[36..38]);
        prop_assert_eq!(&back[40..48], &error[40..48]);
    }

    #[test]
    fn fragments_join_to_the_same_packet(packet in packet4(), mtu in 68..400_usize) {
        let pieces = build::fragment(&packet, mtu);
        let is_icmp = packet[9] == 1;
        let mut pieces6 = Vec::new();
        for piece in &pieces {
            match ipv6_of(piece, &WIDE) {
                Ok((piece6, _)) => pieces6.push(piece6),
                Err(refused) => prop_assert!(is_icmp && refused.reason == Reason::FragmentedIcmp),
            }
        }
        if !is_icmp && pieces.len() > 1 {
            let whole = build6::reassemble(&pieces6).expect("all fragments");
            prop_assert_eq!(whole, ipv6_of(&packet, &WIDE).unwrap().0);
        }
    }

    #[test]
    fn any_bytes_are_translated_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        version in prop::sample::select(vec![0x45_u8, 0x46, 0x60]),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = version;
        }
        let _ = ipv6_of(&bytes, &WIDE);
        let _ = ipv4_of(&bytes, &WIDE);
    }
}
