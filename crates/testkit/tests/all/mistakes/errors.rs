//! S11 and S12: errors about errors, and path MTU discovery.

use nat::Verdict;
use testkit::*;
use wire::build;

use super::beds;
use super::syns::one_port;

// S11: errors about errors.

#[test]
fn no_error_is_sent_about_an_error_without_resources() {
    covers!("S11", "5508-REQ-10e");
    for mut bed in beds(&one_port()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let about = build::udp(at(E1, 9), at(I2, 5000)).payload_length(40).build();
        for (kind, code) in [(3, 0), (3, 1), (3, 3), (3, 4), (11, 0), (11, 1), (12, 0)] {
            for ttl in [1, 64] {
                bed.inside(&build::icmp_error(I2, E1, kind, code, &about).ttl(ttl).build());
                bed.inside(&build::icmp_error(I2, *external.ip(), kind, code, &about).ttl(ttl).build());
                bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &about).ttl(ttl).build());
            }
        }
        for id in 0..10 {
            bed.inside(
                &build::udp(at(I2, 5000), at(E1, 9)).identification(id).fragment_bits(185).payload_length(8).build(),
            );
        }
        bed.inside(&build::udp(at(I2, 5000), at([239, 1, 1, 1].into(), 9)).ttl(1).build());
        bed.inside(&build::udp(at(I2, 5000), at([239, 1, 1, 1].into(), 9)).build());
        bed.advance_secs(5);
        bed.assert_silent();
        // About a datagram it does.
        bed.inside(&build::udp(at(I2, 5000), at(E1, 9)).payload(b"x").build());
        assert!(is_icmp(&bed.only_inside(), 3, 1));
        bed.inside(&build::echo_request(I2, E1, 7).ttl(1).build());
        assert!(is_icmp(&bed.only_inside(), 11, 0));
    }
}

#[test]
fn an_error_about_an_error_is_dropped() {
    covers!("S11");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let about = build::udp(at(E1, 9), at(I1, 5000)).payload_length(40).build();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &about).build());
        let left = bed.only_outside();
        bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &left).build());
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::IcmpQuoteMalformed), 1);
    }
}

// S12: path MTU discovery.

#[test]
fn dont_fragment_stays_as_it_is_in_both_directions() {
    covers!("S12");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        for is_set in [false, true] {
            let variant = |builder: build::Builder| match is_set {
                true => builder.dont_fragment().payload_length(1_472).build(),
                false => builder.payload_length(1_472).build(),
            };
            bed.inside(&variant(build::udp(at(I1, 5000), at(E1, 9))));
            let out = bed.only_outside();
            assert_eq!((packet::header(&out).dont_fragment(), out.len()), (is_set, 1_500));
            bed.outside(&variant(build::udp(at(E1, 9), external)));
            let back = bed.only_inside();
            assert_eq!((packet::header(&back).dont_fragment(), back.len()), (is_set, 1_500));
            bed.inside(&variant(build::udp(at(I2, 5000), external)));
            let hairpin = bed.only_inside();
            assert_eq!((packet::header(&hairpin).dont_fragment(), hairpin.len()), (is_set, 1_500));
        }
    }
}

#[test]
fn a_too_big_of_any_mtu_is_passed_on_and_never_applied_here() {
    covers!("S12");
    for mut bed in beds(&settings()) {
        bed.inside(&build::udp(at(I1, 5000), at(E1, 9)).payload_length(1_472).dont_fragment().build());
        let left = bed.only_outside();
        for mtu in [0, 1, 67, 68, 1_000, 1_500, 1_501, 65_535] {
            bed.outside(&build::icmp_error(E1, *source(&left).ip(), 3, 4, &left[..28]).next_hop_mtu(mtu).build());
            assert_eq!(packet::icmp(&bed.only_inside()).next_hop_mtu(), mtu);
            for host in [I1, I2] {
                for to in [at(E1, 9), at(E2, 9)] {
                    bed.inside(&build::udp(at(host, 5000), to).payload_length(1_472).dont_fragment().build());
                    assert_eq!(bed.only_outside().len(), 1_500);
                }
            }
        }
    }
}

#[test]
fn a_large_error_that_may_be_fragmented_leaves_in_fragments() {
    covers!("S12", "S1");
    // A host may quote all of a packet, and an error has no Don't Fragment.
    for mut bed in beds(&settings().mtu(1_300, 1_500)) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 9));
        let left = build::udp(external, at(E1, 9)).payload_length(1_400).build();
        bed.outside(&build::icmp_error(E1, *external.ip(), 3, 3, &left).build());
        let pieces = bed.take_inside();
        assert_eq!(pieces.len(), 2, "{:?}", bed.verdicts());
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(source(quote(&whole)), at(I1, 5000));
    }
    for mut bed in beds(&settings().mtu(1_500, 1_300)) {
        bed.open_udp(at(I1, 5000), at(E1, 9));
        let came = build::udp(at(E1, 9), at(I1, 5000)).payload_length(1_400).build();
        bed.inside(&build::icmp_error(I1, E1, 3, 3, &came).build());
        let pieces = bed.take_outside();
        assert_eq!(pieces.len(), 2, "{:?}", bed.verdicts());
        let whole = build::reassemble(&pieces).expect("they fit together");
        assert_eq!(wire::verify::faults(&whole), []);
        assert_eq!(destination(quote(&whole)).ip(), source(&whole).ip());
    }
}
