//! S14: what refreshes.

use std::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::settings::Filtering;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::SYN_ACK;
use super::beds;

/// What is sent every three seconds, with the external endpoint.
type Traffic = fn(&mut Bed, SocketAddrV4);

#[test]
fn inside_traffic_refreshes_and_outside_traffic_if_configured() {
    covers!("S14", "4787-REQ-6", "4787-REQ-6a", "7857-7a", "7857-7.1a", "5508-REQ-6");
    const REMOTE: SocketAddrV4 = at(E1, 9);
    const INSIDE: SocketAddrV4 = at(I1, 5000);
    let udp: [(&str, Traffic, [bool; 2]); 8] = [
        ("datagrams from inside", |bed, _| bed.inside(&build::udp(INSIDE, REMOTE).payload(b"x").build()), [true, true]),
        (
            "datagrams from inside to another host",
            |bed, _| bed.inside(&build::udp(INSIDE, at(E2, 53)).payload(b"x").build()),
            [true, true],
        ),
        (
            "datagrams from outside",
            |bed, external| bed.outside(&build::udp(REMOTE, external).payload(b"x").build()),
            [false, true],
        ),
        (
            "datagrams from outside that the filter refuses",
            |bed, external| bed.outside(&build::udp(at(E2, 9), external).payload(b"x").build()),
            [false, false],
        ),
        (
            "rubbish from outside",
            |bed, external| {
                let good = build::udp(REMOTE, external).payload_length(100).build();
                let mut bad_header = good.clone();
                bad_header[10] ^= 1;
                bed.outside(&bad_header);
                bed.outside(&good[..60]);
                bed.outside(&build::tcp(REMOTE, external, Flags::ACK).build());
                bed.outside(&build::raw(E1, *external.ip(), 47).payload_length(20).build());
                bed.outside(&build::udp(REMOTE, external).ttl(1).payload(b"x").build());
            },
            [false, false],
        ),
        (
            "errors from outside",
            |bed, external| {
                let about = build::udp(external, REMOTE).payload_length(40).build();
                bed.outside(&build::icmp_error(E1, *external.ip(), 3, 3, &about).build());
                bed.outside(&build::icmp_error(OUTSIDE_ROUTER, *external.ip(), 11, 0, &about).build());
            },
            [false, false],
        ),
        (
            "errors from inside",
            |bed, _| {
                let about = build::udp(REMOTE, INSIDE).payload_length(40).build();
                bed.inside(&build::icmp_error(I1, E1, 3, 3, &about).build());
            },
            [false, false],
        ),
        (
            "datagrams from inside that end here",
            |bed, _| {
                bed.inside(&build::udp(INSIDE, REMOTE).ttl(1).payload(b"x").build());
            },
            [false, false],
        ),
    ];
    for (name, traffic, refreshes) in udp {
        for (inbound_refresh, refreshes) in [false, true].into_iter().zip(refreshes) {
            let mut wanted = settings().short_timers().filtering(Filtering::AddressDependent);
            wanted.inbound_refresh = inbound_refresh;
            for mut bed in beds(&wanted) {
                let external = bed.open_udp(INSIDE, REMOTE);
                for _ in 0..3 {
                    bed.advance_secs(3);
                    traffic(&mut bed, external);
                }
                bed.advance(Duration::from_millis(1_100));
                let alive = bed.mapping_of(Protocol::Udp, INSIDE).is_some();
                assert_eq!(alive, refreshes, "{name}, inbound refresh {inbound_refresh}");
            }
        }
    }
}

#[test]
fn resets_and_replies_refresh_nothing() {
    covers!("S14", "7857-7.1a");
    for mut bed in beds(&settings().short_timers()) {
        let (inside, remote) = (at(I1, 5000), at(E1, 80));
        let external = bed.open_tcp(inside, remote);
        let id = bed.ping(I1, 7, E1);
        for _ in 0..3 {
            bed.advance_secs(3);
            bed.inside(&build::tcp(inside, remote, Flags::RST).sequence(1_001).build());
            bed.outside(&build::tcp(at(E2, 80), external, SYN_ACK).build());
            bed.outside(&build::tcp(at(E2, 80), external, Flags::ACK).build());
            bed.outside(&build::echo_reply(E1, *id.ip(), id.port()).build());
            bed.inside(&build::echo_reply(I1, E1, 7).build());
        }
        bed.advance(Duration::from_millis(1_100));
        assert_eq!(bed.mappings(), []);
    }
}
