//! RFC 6146, stateful NAT64.

use nat::Duration;
use nat::Verdict;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

/// The endpoint of E1 as an IPv6 host knows it.
fn e1(port: u16) -> At6 {
    (behind(E1), port)
}

#[test]
fn a_datagram_and_its_answer_are_translated() {
    covers!("6146-1", "6146-27", "6146-28", "7915-5.5");
    let mut bed = Bed6::new(settings6());
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    assert!(inside.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Outbound));
    let mapped = source(&out[0]);
    assert!(POOL.contains(mapped.ip()));
    assert_eq!((destination(&out[0]), payload(&out[0]), ttl(&out[0])), (at(E1, 53), &b"question"[..], 63));

    let [back, out] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").build());
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Inbound));
    assert_eq!((source6(&back[0]), destination6(&back[0])), (e1(53), (v6(C6), 5_000)));
    assert_eq!((&back[0][48..], view6(&back[0]).hop_limit()), (&b"answer"[..], 63));
}

#[test]
fn a_mapping_of_an_ipv6_host_serves_all_destinations() {
    covers!("6146-5", "6146-17");
    let mut bed = Bed6::new(settings6());
    let mut mapped = Vec::new();
    for (remote, port) in [(E1, 53), (E1, 54), (E2, 53)] {
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(remote), port), b"x"));
        mapped.push(source(&out[0]));
    }
    assert!(mapped.iter().all(|one| *one == mapped[0]));
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""));
    assert_eq!(source(&out[0]).ip(), mapped[0].ip(), "one IPv4 address for all protocols");
}

#[test]
fn a_connection_is_translated_both_ways() {
    covers!("6146-20");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 2, (1, 0), b""));
    let mapped = source(&out[0]);
    bed.advance(Duration::from_secs(239));
    let [back, _] = bed.outside(&build::tcp(at(E1, 80), mapped, wire::tcp::Flags(0x12)).build());
    assert_eq!(destination6(&back[0]), (v6(C6), 5_000), "the SYN-ACK passes within 240 s");
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 0x10, (2, 1), b"GET /"));
    assert_eq!((source(&out[0]), payload(&out[0])), (mapped, &b"GET /"[..]));
}

#[test]
fn a_ping_is_translated_both_ways() {
    covers!("7915-4.2a", "7915-5.2a");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
    let mapped = identifier(&out[0]);
    let reply = build::echo_reply(E1, *source(&out[0]).ip(), mapped).build();
    let [back, _] = bed.outside(&reply);
    assert_eq!(icmp6_of(&back[0]).0, 129);
    assert_eq!(icmp6_of(&back[0]).2 >> 16, 77);
    assert_eq!(view6(&back[0]).source(), behind(E1));
}

#[test]
fn hosts_reach_each_other_by_their_ipv4_endpoints() {
    covers!("6146-29");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(D6), 7_000), e1(53), b"x"));
    let of_d = source(&out[0]);
    let [inside, out] = bed.inside(&udp6((v6(C6), 5_000), (behind(*of_d.ip()), of_d.port()), b"hello"));
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::Hairpin));
    assert_eq!(destination6(&inside[0]), (v6(D6), 7_000));
    let (from, port) = source6(&inside[0]);
    assert!(translate::Prefix::WELL_KNOWN.contains(from), "the source is the sender's IPv4 endpoint");
    let [inside, _] = bed.inside(&udp6((v6(D6), 7_000), (from, port), b"hello you"));
    assert_eq!((destination6(&inside[0]), &inside[0][48..]), ((v6(C6), 5_000), &b"hello you"[..]));
}

#[test]
fn errors_of_routers_outside_reach_the_host() {
    covers!("6146-6", "6146-13", "7915-4.2b", "7915-4.3");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let error = build::icmp_error(E2, *source(&out[0]).ip(), 3, 3, &out[0]).build();
    let [back, _] = bed.outside(&error);
    assert_eq!(icmp6_of(&back[0]), (1, 4, 0));
    assert_eq!((view6(&back[0]).source(), view6(&back[0]).destination()), (behind(E2), v6(C6)));
    let quoted = &back[0][48..];
    assert_eq!((source6(quoted), destination6(quoted)), ((v6(C6), 5_000), e1(53)));
}

#[test]
fn errors_from_inside_reach_the_remote_host() {
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").build());
    // From a router that is no host of NAT64.
    let error = icmp6_message(v6("2001:db8:ff::1"), behind(E1), (2, 0), 1_400, &back[0]);
    let [_, out] = bed.inside(&error);
    assert_eq!(bed.verdict(), Some(Verdict::Outbound));
    assert_eq!(source(&out[0]).ip(), mapped.ip());
    let message = &out[0][20..];
    assert_eq!((message[0], message[1]), (3, 4));
    assert_eq!(u16::from_be_bytes([message[6], message[7]]), 1_380);
    assert_eq!((source(&message[8..]), destination(&message[8..])), (at(E1, 53), mapped));
}

#[test]
fn own_errors_come_from_an_ipv6_address_of_natrix() {
    let mut bed = Bed6::new(settings6());
    let mut packet = udp6((v6(C6), 5_000), e1(53), b"question");
    packet[7] = 1;
    let [inside, out] = bed.inside(&packet);
    assert!(out.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
    assert_eq!(icmp6_of(&inside[0]), (3, 0, 0));
    assert_eq!((view6(&inside[0]).source(), view6(&inside[0]).destination()), (v6(OWN6), v6(C6)));
    let quoted = &inside[0][48..];
    assert_eq!((source6(quoted), destination6(quoted)), ((v6(C6), 5_000), e1(53)));
}
