//! Queries and replies (§3).

use std::collections::HashSet;
use std::net::Ipv4Addr;

use nat::Duration;
use nat::Settings;
use nat::Verdict;
use testkit::*;
use wire::build;

use super::beds;

fn timestamp(from: Ipv4Addr, to: Ipv4Addr, kind: u8, id: u16) -> Vec<u8> {
    build::icmp_query(from, to, kind, id).payload(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).build()
}

#[test]
fn queries_and_replies_keep_identifier_sequence_and_payload() {
    covers!("5508-REQ-1", "5508-REQ-10a3", "5508-REQ-10b2");
    for mut bed in beds(&settings()) {
        for sequence in 1..=100 {
            let query = build::echo_request(I1, E1, 7).sequence(sequence).payload_length(56).build();
            bed.inside(&query);
            let left = bed.only_outside();
            assert!(is_icmp(&left, 8, 0));
            assert_eq!(payload(&left), payload(&query));
            assert_eq!(u32::from(packet::icmp(&left).sequence()), sequence);
            let (external, id) = (*source(&left).ip(), identifier(&left));
            let reply = build::echo_reply(E1, external, id).sequence(sequence).payload_length(56).build();
            bed.outside(&reply);
            let back = bed.only_inside();
            assert!(is_icmp(&back, 0, 0));
            assert_eq!((source(&back).ip(), destination(&back)), (&E1, at(I1, 7)));
            assert_eq!(u32::from(packet::icmp(&back).sequence()), sequence);
            assert_eq!(payload(&back), payload(&query));
        }
        bed.inside(&timestamp(I1, E1, 13, 9));
        let left = bed.only_outside();
        assert!(is_icmp(&left, 13, 0));
        bed.outside(&timestamp(E1, *source(&left).ip(), 14, identifier(&left)));
        let back = bed.only_inside();
        assert!(is_icmp(&back, 14, 0));
        assert_eq!(destination(&back), at(I1, 9));
        assert_eq!(payload(&back), payload(&left));
    }
}

#[test]
fn subscribers_with_equal_identifiers_get_their_own_replies() {
    covers!("5508-REQ-1");
    for mut bed in beds(&settings().addresses(&POOL[..1])) {
        let (first, second) = (bed.ping(I1, 7, E1), bed.ping(I2, 7, E1));
        assert_ne!(first, second);
        for (external, host) in [(first, I1), (second, I2)] {
            bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
            assert_eq!(destination(&bed.only_inside()), at(host, 7));
        }
    }
}

#[test]
fn queries_from_outside_reach_no_subscriber() {
    covers!("5508-REQ-1");
    let mut bed = Bed::new(settings());
    let external = bed.ping(I1, 7, E1);
    bed.outside(&build::echo_request(E1, *external.ip(), external.port()).build());
    bed.outside(&timestamp(E1, *external.ip(), 13, external.port()));
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::NoMapping), 2);
}

#[test]
fn one_identifier_mapping_serves_every_destination() {
    covers!("5508-REQ-1a");
    for mut bed in beds(&settings()) {
        let externals: HashSet<_> = (1..=200).map(|host| bed.ping(I1, 7, Ipv4Addr::new(198, 51, 100, host))).collect();
        assert_eq!(externals.len(), 1);
        assert_eq!(bed.mappings().len(), 1);
    }
}

#[test]
fn a_reply_after_59_s_is_delivered() {
    covers!("5508-REQ-2");
    assert!(Settings::default().timeouts.icmp >= Duration::from_secs(60));
    let mut bed = Bed::new(settings());
    let external = bed.ping(I1, 7, E1);
    bed.advance_secs(59);
    bed.outside(&build::echo_reply(E1, *external.ip(), external.port()).build());
    assert_eq!(destination(&bed.only_inside()), at(I1, 7));
}

#[test]
fn the_query_timer_is_what_the_settings_say_to_the_second() {
    covers!("5508-REQ-2a");
    for seconds in [30, 60, 90] {
        let mut bed = Bed::new(settings().timers(|timeouts| timeouts.icmp = Duration::from_secs(seconds)));
        let external = bed.ping(I1, 7, E1);
        let reply = build::echo_reply(E1, *external.ip(), external.port()).build();
        bed.advance_secs(seconds - 1);
        bed.outside(&reply);
        assert_eq!(destination(&bed.only_inside()), at(I1, 7), "{seconds} s");
        bed.advance(Duration::from_millis(1_100));
        bed.outside(&reply);
        bed.assert_silent();
        assert_eq!(bed.mappings(), []);
    }
}

#[test]
fn queries_are_not_hairpinned_by_a_napt() {
    covers!("5508-REQ-7");
    for mut bed in beds(&settings()) {
        let external = bed.ping(I2, 7, E1);
        bed.inside(&build::echo_request(I1, *external.ip(), external.port()).build());
        bed.inside(&build::echo_reply(I1, *external.ip(), external.port()).build());
        bed.assert_silent();
        assert_eq!(bed.mappings().len(), 1, "and no mapping is made for them");
    }
}
