//! Datagrams, connections and queries of IPv6 hosts, and which bindings they get.

use nat::Duration;
use nat::Verdict;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::ACK;
use super::SYN;
use super::e1;

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
fn parity_and_class_of_ports_are_those_of_ipv4_hosts() {
    covers!("6146-17");
    let mapped = |bed: &mut Bed6, port| {
        let [_, out] = bed.inside(&udp6((v6(C6), port), e1(53), b"x"));
        source(&out[0]).port()
    };
    let mut settings = settings6().parity();
    settings.pools[0].port_min = 1;
    let mut bed = Bed6::new(settings);
    for port in (500..600).chain(5_000..5_200) {
        let external = mapped(&mut bed, port);
        assert_eq!((external % 2, external < 1_024), (port % 2, port < 1_024), "{port}");
    }
    // Without the option, ports are random.
    let mut bed = Bed6::new(settings6());
    let kept = (5_000..5_500).filter(|port| mapped(&mut bed, *port) % 2 == port % 2).count();
    assert!((180..320).contains(&kept), "without parity {kept} of 500 ports kept it by chance");
}

#[test]
fn a_connection_is_translated_both_ways() {
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
fn udp_without_checksum_gets_one() {
    covers!("6146-10");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    let answer = build::udp(at(E1, 53), mapped).payload(b"answer").without_checksum().build();
    // The bed checks that the checksum is right.
    let [back, _] = bed.outside(&answer);
    assert_ne!(&back[0][46..48], [0, 0]);
}

#[test]
fn each_protocol_has_a_binding_of_its_own() {
    covers!("6146-2");
    let mut settings = settings6().addresses(&POOL[..1]).ports(2_000, 2_001);
    settings.pools[0].reuse_delay = Duration::ZERO;
    let mut bed = Bed6::new(settings);
    // Two ports, and each serves all three protocols.
    let mut ports = Vec::new();
    for host in 0..2 {
        let host = v6(C6) + host;
        let udp = source(&bed.inside(&udp6((host, 5_000), e1(53), b"x"))[1][0]);
        let tcp = source(&bed.inside(&tcp6((host, 5_000), e1(80), SYN, (1, 0), b""))[1][0]);
        let icmp = identifier(&bed.inside(&ping6(host, behind(E1), 5_000))[1][0]);
        ports.push([udp.port(), tcp.port(), icmp]);
        assert_eq!(destination6(&bed.outside(&build::udp(at(E1, 53), udp).build())[0][0]), (host, 5_000));
        let answer = build::tcp(at(E1, 80), tcp, wire::tcp::Flags(SYN | ACK)).acknowledgment(2).build();
        assert_eq!(destination6(&bed.outside(&answer)[0][0]), (host, 5_000));
    }
    assert!(ports[0].iter().zip(&ports[1]).all(|(one, other)| one != other), "an endpoint once in each table");
    assert_eq!(bed.mappings(), 6);
}

#[test]
fn an_endpoint_without_a_binding_is_silent() {
    covers!("6146-15");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    let other = at(*mapped.ip(), mapped.port() ^ 1);
    let [back, left] = bed.outside(&build::udp(at(E1, 53), other).build());
    assert!(back.is_empty() && left.is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::NoMapping));
    assert!(bed.advance(Duration::from_secs(10)).concat().is_empty());
    assert_eq!(bed.mappings(), 1);
}

#[test]
fn filtering_by_address_refuses_strangers_silently() {
    covers!("6146-16");
    use nat::settings::Filtering;
    for (filtering, passes) in [
        (Filtering::EndpointIndependent, [true, true]),
        (Filtering::AddressDependent, [true, false]),
        (Filtering::AddressAndPortDependent, [false, false]),
    ] {
        let mut bed = Bed6::new(settings6().filtering(filtering));
        let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
        let mapped = source(&out[0]);
        assert_eq!(bed.outside(&build::udp(at(E1, 53), mapped).build())[0].len(), 1);
        for (from, passes) in [(at(E1, 54), passes[0]), (at(E2, 53), passes[1])] {
            let [back, left] = bed.outside(&build::udp(from, mapped).build());
            assert_eq!((back.len(), left.len()), (usize::from(passes), 0), "{filtering:?} {from}");
            let expected = if passes { Verdict::Inbound } else { Verdict::Filtered };
            assert_eq!(bed.verdict(), Some(expected));
        }
    }
}

#[test]
fn packets_to_own_and_unmapped_addresses_end_here() {
    let mut bed = Bed6::new(settings6());
    for own in [OWN_INSIDE, OWN_OUTSIDE] {
        let [_, out] = bed.inside(&udp6((v6(C6), 1), (behind(own), 2), b"x"));
        assert!(out.is_empty(), "{own}");
        assert!(matches!(bed.verdict(), Some(Verdict::Local | Verdict::LocalIgnored | Verdict::EmbeddedPrivate)));
    }
    // The prefix around an address of the pool, where nothing is.
    let [_, out] = bed.inside(&udp6((v6(C6), 1), (behind(POOL[0]), 2), b"x"));
    assert!(out.is_empty());
    assert_eq!((bed.verdict(), bed.mappings()), (Some(Verdict::NoMapping), 0));
}

#[test]
fn the_hop_limit_falls_on_each_way_through_a_hairpin() {
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let own = source(&out[0]);
    // A host that sends to its own endpoint outside, again and again.
    let mut hops = Vec::new();
    let mut packet = udp6((v6(C6), 5_000), (behind(*own.ip()), own.port()), b"loop");
    packet[7] = 5;
    for _ in 0..10 {
        let [back, out] = bed.inside(&packet);
        assert!(out.is_empty());
        let Some(next) = back.first().filter(|next| next[6] == 17) else { break };
        assert_eq!(destination6(next), (v6(C6), 5_000));
        hops.push(next[7]);
        packet[7] = next[7];
    }
    assert_eq!(hops, [4, 3, 2, 1]);
    assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
}
