//! Messages that are neither query nor error (§5, §7).

use nat::Verdict;
use testkit::*;
use wire::build;

use super::beds;
use super::behind_a_hop;
use super::errors;

/// Sends messages of this type that quote a packet, and some that do not, from both sides.
fn assert_dropped(bed: &mut Bed, kind: u8, code: u8) {
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    let before = bed.counters().of(Verdict::IcmpTypeUnsupported);
    let outbound = build::udp(external, at(E1, 1000)).payload_length(40).build();
    let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(40).build();
    bed.outside(&build::icmp_error(E1, *external.ip(), kind, code, &outbound).rest_of_header([192, 0, 2, 9]).build());
    bed.outside(&build::icmp_query(E1, *external.ip(), kind, external.port()).payload_length(8).build());
    bed.inside(&build::icmp_error(I1, E1, kind, code, &inbound).rest_of_header([192, 0, 2, 9]).build());
    bed.inside(&build::icmp_query(I1, E1, kind, 5000).payload_length(8).build());
    bed.assert_silent();
    assert_eq!(bed.counters().of(Verdict::IcmpTypeUnsupported), before + 4, "type {kind}");
}

#[test]
fn redirects_are_not_translated() {
    covers!("5508-REQ-10b1");
    for mut bed in beds(&settings()) {
        for code in 0..4 {
            assert_dropped(&mut bed, 5, code);
        }
    }
}

#[test]
fn messages_about_a_source_route_do_not_pass_and_leak_nothing() {
    covers!("5508-REQ-10b3");
    for mut bed in beds(&settings()) {
        let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
        let mut expected = 0;
        for kind in [131, 137] {
            let [a, b, c, d] = I3.octets();
            let options = [kind, 7, 4, a, b, c, d, 0];
            let inbound = build::udp(at(E1, 1000), at(I1, 5000)).payload_length(40);
            let outbound = build::udp(external, at(E1, 1000)).payload_length(40);
            for (icmp_type, code) in errors() {
                // In the quoted header, in the outer one, and behind harmless options.
                let shifted: Vec<u8> = [1, 1, 1].into_iter().chain(options).collect();
                for route in [&options[..], &shifted] {
                    let quoted = inbound.clone().ip_options(route).build();
                    bed.inside(&build::icmp_error(I1, E1, icmp_type, code, &quoted).build());
                    let error = build::icmp_error(I1, E1, icmp_type, code, &inbound.build());
                    bed.inside(&error.ip_options(route).build());
                    let quoted = outbound.clone().ip_options(route).build();
                    bed.outside(&build::icmp_error(E1, *external.ip(), icmp_type, code, &quoted).build());
                    let error = build::icmp_error(E1, *external.ip(), icmp_type, code, &outbound.build());
                    bed.outside(&error.ip_options(route).build());
                    expected += 4;
                }
            }
            bed.inside(&build::echo_request(I1, E1, 7).ip_options(&options).build());
            expected += 1;
        }
        bed.assert_silent();
        assert_eq!(bed.count(Verdict::SourceRoute), expected);
    }
}

#[test]
fn address_mask_messages_are_not_translated() {
    covers!("5508-REQ-10b4");
    for mut bed in beds(&settings()) {
        for kind in [17, 18] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn the_pointer_of_a_parameter_problem_stays() {
    covers!("5508-REQ-10b5");
    for mut bed in beds(&settings()) {
        let sent = build::udp(at(I1, 5000), at(E1, 1000)).payload_length(40).dont_fragment().build();
        bed.inside(&sent);
        let left = bed.only_outside();
        let came = build::udp(at(E1, 1000), source(&left)).payload_length(40).dont_fragment().build();
        bed.outside(&came);
        let arrived = bed.only_inside();
        for pointer in [0, 1, 8, 20, 22, 59, 255] {
            let error = build::icmp_error(OUTSIDE_ROUTER, *source(&left).ip(), 12, 0, &left);
            bed.outside(&error.rest_of_header([pointer, 0, 0, 0]).build());
            let error = bed.only_inside();
            assert_eq!((error[24], quote(&error)), (pointer, &behind_a_hop(&sent)[..]));
            bed.inside(&build::icmp_error(I1, E1, 12, 0, &arrived).rest_of_header([pointer, 0, 0, 0]).build());
            let error = bed.only_outside();
            assert_eq!((error[24], quote(&error)), (pointer, &behind_a_hop(&came)[..]));
        }
    }
}

#[test]
fn router_advertisements_and_solicitations_are_not_translated() {
    covers!("5508-REQ-10b6");
    for mut bed in beds(&settings()) {
        for kind in [9, 10] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn source_quench_is_dropped() {
    covers!("5508-REQ-10c1");
    for mut bed in beds(&settings()) {
        assert_dropped(&mut bed, 4, 0);
    }
}

#[test]
fn information_requests_and_replies_are_dropped() {
    covers!("5508-REQ-10c2");
    for mut bed in beds(&settings()) {
        for kind in [15, 16] {
            assert_dropped(&mut bed, kind, 0);
        }
    }
}

#[test]
fn messages_that_are_neither_query_nor_error_are_dropped() {
    covers!("5508-REQ-11");
    for mut bed in beds(&settings()) {
        for kind in (0..=255).filter(|kind| ![0, 3, 8, 11, 12, 13, 14].contains(kind)) {
            assert_dropped(&mut bed, kind, 0);
        }
        // None of them costs a mapping.
        assert_eq!(bed.mappings().len(), 1);
    }
}
