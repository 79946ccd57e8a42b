//! S8: errors through a hairpin.

use std::net::SocketAddrV4;

use nat::Protocol;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::FAR_ROUTER;
use super::beds;
use super::behind_a_hop;

/// A hairpinned packet of I1 to I2, as it was sent, as it arrived, and the external endpoint it was
/// sent to.
fn hairpinned(bed: &mut Bed, protocol: Protocol, length: usize) -> (Vec<u8>, Vec<u8>, SocketAddrV4) {
    let sent = match protocol {
        Protocol::Tcp => {
            let to = bed.open_tcp(at(I2, 6000), at(E1, 9));
            build::tcp(at(I1, 5000), to, Flags::SYN).payload_length(length)
        }
        _ => {
            let to = bed.open_udp(at(I2, 6000), at(E1, 9));
            build::udp(at(I1, 5000), to).payload_length(length)
        }
    };
    let sent = sent.dont_fragment().build();
    bed.inside(&sent);
    let arrived = bed.only_inside();
    assert_eq!(destination(&arrived), at(I2, 6000));
    let to = destination(&sent);
    (sent, arrived, to)
}

#[test]
fn errors_through_a_hairpin_come_from_a_public_source() {
    covers!("S8", "5508-REQ-7", "5508-REQ-7a");
    for mut bed in beds(&settings()) {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let (sent, arrived, to) = hairpinned(&mut bed, protocol, 200);
            let sender = source(&arrived);
            // The host itself, routers in front of it that have no mapping, and one that has one.
            bed.open_udp(at(I3, 1), at(E1, 9));
            for from in [I2, INSIDE_ROUTER, FAR_ROUTER, I3] {
                for (kind, code, mtu) in [(3, 3, 0), (3, 1, 0), (11, 0, 0), (11, 1, 0), (12, 0, 0), (3, 4, 1_280)] {
                    for length in [28, 61, arrived.len()] {
                        let error = build::icmp_error(from, *sender.ip(), kind, code, &arrived[..length]);
                        bed.inside(&error.next_hop_mtu(mtu).build());
                        let error = bed.only_inside();
                        assert!(is_icmp(&error, kind, code));
                        assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &I1), "not {from}");
                        assert_eq!(packet::icmp(&error).next_hop_mtu(), mtu);
                        assert_eq!(quote(&error), &behind_a_hop(&sent)[..length], "exactly what was sent");
                        assert_eq!(wire::verify::faults(&error), []);
                    }
                }
            }
            assert_eq!(bed.take_outside(), Vec::<Vec<u8>>::new());
        }
    }
}

#[test]
fn own_errors_about_hairpinned_packets_quote_what_was_sent() {
    covers!("S8", "S12", "5508-REQ-10a1", "5508-REQ-10a2");
    for mut bed in beds(&settings().mtu(1400, 1500)) {
        let (_, _, to) = hairpinned(&mut bed, Protocol::Udp, 200);
        for host in [I1, I3] {
            let sent = build::udp(at(host, 5000), to).payload_length(1_400).dont_fragment().build();
            bed.inside(&sent);
            let error = bed.only_inside();
            assert!(is_icmp(&error, 3, 4), "{host}: {:?}", bed.verdicts());
            assert_eq!(packet::icmp(&error).next_hop_mtu(), 1_400);
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &host));
            assert_eq!(quote(&error), &sent[..548]);

            let sent = build::udp(at(host, 5000), to).ttl(1).payload_length(100).dont_fragment().build();
            bed.inside(&sent);
            let error = bed.only_inside();
            assert!(is_icmp(&error, 11, 0));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (&OWN_INSIDE, &host));
            assert_eq!(quote(&error), sent);
        }
        // Without Don't Fragment it arrives in pieces.
        bed.inside(&build::udp(at(I1, 5000), to).payload_length(1_400).build());
        let pieces = bed.take_inside();
        assert_eq!(pieces.len(), 2);
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(destination(&whole), at(I2, 6000));
    }
}

#[test]
fn errors_about_hairpinned_fragments_reach_the_sender() {
    covers!("S8", "S4");
    for mut bed in beds(&settings()) {
        let to = bed.open_udp(at(I2, 6000), at(E1, 9));
        let whole = build::udp(at(I1, 5000), to).payload_length(4_000).build();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let pieces = build::fragment(&whole, 1_500);
            for piece in order {
                bed.inside(&pieces[piece]);
            }
            let arrived = bed.take_inside();
            let joined = build::reassemble(&arrived).expect("they fit together");
            assert_eq!((destination(&joined), payload(&joined)), (at(I2, 6000), payload(&whole)));
            let first = arrived.iter().find(|piece| packet::header(piece).fragment_offset_bytes() == 0);
            let first = first.expect("one of them is the first");
            let sender = source(first);
            // RFC 792: reassembly time exceeded quotes the first fragment.
            bed.inside(&build::icmp_error(I2, *sender.ip(), 11, 1, &first[..548]).build());
            let error = bed.only_inside();
            assert!(is_icmp(&error, 11, 1));
            assert_eq!((source(&error).ip(), destination(&error).ip()), (to.ip(), &I1));
            assert_eq!((source(quote(&error)), destination(quote(&error))), (at(I1, 5000), to));
        }
    }
}
