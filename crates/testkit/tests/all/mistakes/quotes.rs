//! S1: the four checksums of an ICMP error.

use std::net::SocketAddrV4;

use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;

use super::SYN_ACK;
use super::beds;
use super::behind_a_hop;
use super::word;

/// Packets of every transport between two endpoints, of odd length, with Don't Fragment so that the
/// identification stays.
fn quotable(from: SocketAddrV4, to: SocketAddrV4) -> [Vec<u8>; 4] {
    let udp = build::udp(from, to).payload_length(33).dont_fragment();
    let tcp = build::tcp(from, to, Flags::SYN).mss(1460).payload_length(9).dont_fragment();
    let echo = build::echo_request(*from.ip(), *to.ip(), from.port()).payload_length(33).dont_fragment();
    [udp.build(), udp.clone().without_checksum().build(), tcp.build(), echo.build()]
}

/// Offset at which the transport checksum would be cut in half, if the quote ended behind it.
fn half_checksum(packet: &[u8]) -> usize {
    match packet[9] {
        6 => 37,
        _ => 0,
    }
}

fn check_quote(error: &[u8], original: &[u8], length: usize) {
    assert_eq!(wire::verify::faults(error), []);
    assert_eq!(error.len(), 28 + length, "nothing is added behind the quote");
    let (quoted, expected) = (&error[28..], &behind_a_hop(original)[..length]);
    if length == half_checksum(original) {
        // Without its low byte the high one cannot be computed; it stays as it was quoted.
        assert_eq!(quoted[..length - 1], expected[..length - 1]);
    } else {
        assert_eq!(quoted, expected, "{length} bytes quoted");
    }
}

#[test]
fn an_error_quotes_what_its_receiver_sent_at_any_length() {
    covers!("S1", "5508-REQ-4a", "5508-REQ-5a", "3022-7");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let left = bed.only_outside();
            for (kind, code) in [(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)] {
                // From 8 bytes of the transport to the whole packet: odd and even.
                for length in 28..=left.len() {
                    let error = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), kind, code, &left[..length]);
                    // What a link puts behind the packet is not touched and does not leave.
                    let mut padded = error.build();
                    padded.extend([0xa5; 18]);
                    bed.outside(&padded);
                    let error = bed.only_inside();
                    assert!(is_icmp(&error, kind, code));
                    assert_eq!(destination(&error).ip(), &I1);
                    check_quote(&error, &sent, length);
                }
            }
        }
    }
}

#[test]
fn an_inside_error_quotes_what_its_receiver_sent_at_any_length() {
    covers!("S1", "5508-REQ-5a");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let external = source(&bed.only_outside());
            let came = match sent[9] {
                17 if word(&sent, 26) == 0 => build::udp(at(E1, 1000), external).payload_length(33).without_checksum(),
                17 => build::udp(at(E1, 1000), external).payload_length(33),
                6 => build::tcp(at(E1, 1000), external, SYN_ACK).mss(1460).payload_length(9),
                _ => build::echo_reply(E1, *external.ip(), external.port()).payload_length(33),
            };
            let came = came.dont_fragment().build();
            bed.outside(&came);
            let arrived = bed.only_inside();
            for (kind, code) in [(3, 1), (3, 3), (3, 4), (11, 0), (12, 0)] {
                for length in 28..=arrived.len() {
                    bed.inside(&build::icmp_error(I1, E1, kind, code, &arrived[..length]).build());
                    let error = bed.only_outside();
                    assert_eq!(source(&error).ip(), external.ip());
                    check_quote(&error, &came, length);
                }
            }
        }
    }
}

#[test]
fn a_quote_of_less_than_the_ports_is_dropped() {
    covers!("S1");
    for mut bed in beds(&settings()) {
        for sent in quotable(at(I1, 5000), at(E1, 1000)) {
            bed.inside(&sent);
            let left = bed.only_outside();
            for length in 0..28 {
                bed.outside(&build::icmp_error(E1, *source(&left).ip(), 3, 1, &left[..length]).build());
            }
            bed.assert_silent();
        }
    }
}

#[test]
fn a_fragmentable_quote_differs_in_identification_only() {
    covers!("S1");
    // RFC 7857 §10: such a packet leaves with a new identification, and Natrix does not keep the
    // old one.
    let mut bed = Bed::new(settings());
    let sent = build::udp(at(I1, 5000), at(E1, 1000)).identification(77).payload_length(33).build();
    bed.inside(&sent);
    let left = bed.only_outside();
    bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 3, 1, &left).build());
    let error = bed.only_inside();
    let mut restored = quote(&error).to_vec();
    assert_eq!(word(&restored, 4), word(&left, 4));
    let mut view = Ipv4::new_unchecked(restored.as_mut_slice());
    view.set_identification(77);
    view.fill_checksum();
    assert_eq!(restored, behind_a_hop(&sent));
}
