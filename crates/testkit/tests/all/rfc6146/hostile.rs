//! Packets that are wrong or name what they must not.

use core::net::Ipv4Addr;

use nat::Verdict;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::e1;

#[test]
fn hostile_ipv6_packets_are_dropped_by_name() {
    covers!("6146-12", "6052-5", "7915-5.1b", "7915-5.1c");
    let mut bed = Bed6::new(settings6());
    let from = v6(C6);
    let drop = |bed: &mut Bed6, packet: &[u8], expected: Verdict| {
        let [_, out] = bed.inside(packet);
        assert_eq!((out.len(), bed.verdict()), (0, Some(expected)), "{packet:02x?}");
    };
    let to = |address: &str| behind(address.parse().expect("an IPv4 address"));
    for address in ["127.0.0.1", "0.0.0.0", "169.254.1.1", "224.0.0.1", "255.255.255.255", "240.0.0.5"] {
        drop(&mut bed, &udp6((from, 1), (to(address), 2), b"x"), Verdict::EmbeddedAddress);
    }
    for address in ["10.0.0.1", "192.168.7.7", "172.16.3.4", "100.64.0.10"] {
        drop(&mut bed, &udp6((from, 1), (to(address), 2), b"x"), Verdict::EmbeddedPrivate);
    }
    drop(&mut bed, &udp6((behind(E2), 1), e1(2), b"x"), Verdict::SourceInPrefix);
    for source in ["::", "::1", "ff02::1", "fe80::1", "::ffff:192.0.2.1"] {
        drop(&mut bed, &udp6((v6(source), 1), e1(2), b"x"), Verdict::SourceInvalid);
    }
    let whole = udp6((from, 1), e1(2), b"x");
    let with = |header: u8, body: &[u8]| wire::build6::with_extension(&whole, header, body);
    // A routing header of type 0 with segments left (RFC 5095).
    drop(&mut bed, &with(43, &[0, 0, 1, 0, 0, 0, 0]), Verdict::Ipv6Header);
    let mut many = whole.clone();
    for _ in 0..64 {
        many = wire::build6::with_extension(&many, 60, &[0, 1, 4, 0, 0, 0, 0]);
    }
    drop(&mut bed, &many, Verdict::Ipv6Header);
    let mut jumbogram = with(0, &[0, 0xc2, 4, 0, 1, 0, 0]);
    jumbogram[4..6].copy_from_slice(&[0, 0]);
    drop(&mut bed, &jumbogram, Verdict::Ipv6Header);
    drop(&mut bed, &whole[..39], Verdict::Ipv6Malformed);
    // Errors about errors, and a Packet Too Big that no link can mean.
    let error = icmp6_message(behind(E1), from, (1, 0), 0, &udp6((from, 1), e1(2), b"x"));
    drop(&mut bed, &icmp6_message(from, behind(E1), (1, 0), 0, &error), Verdict::IcmpQuoteMalformed);
    assert_eq!(bed.mappings(), 0, "nothing of all that made state");
}

#[test]
fn ipv4_packets_cannot_name_the_number_of_a_host() {
    let mut bed = Bed6::new(settings6());
    bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    for source in ["224.0.0.1", "224.0.0.2", "240.0.0.1", "255.255.255.254"] {
        let source = source.parse().expect("an address");
        bed.inside(&build::udp(at(source, 5_000), at(E1, 53)).build());
        assert_eq!(bed.verdict(), Some(Verdict::SourceInvalid));
    }
}

#[test]
fn no_inside_route_takes_packets_from_ipv6_hosts() {
    covers!("6146-5");
    let mut settings = settings6();
    let way = nat::settings::Route { interface: topology::INSIDE, ..settings.routes[0] };
    for (first, length) in [(224, 8), (232, 8), (240, 8), (248, 8), (224, 4), (240, 4)] {
        let prefix = topology::prefix([first, 0, 0, 0], length);
        settings.routes.push(nat::settings::Route { prefix, ..way });
    }
    let mut bed = Bed6::new(settings);
    for host in [C6, D6, "2001:db8:e::1"] {
        let [_, out] = bed.inside(&udp6((v6(host), 5_000), e1(53), b"x"));
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(destination6(&back[0]), (v6(host), 5_000));
        let home = Ipv4Addr::new(192, 168, 1, 2);
        let [_, out] = bed.inside(&softwire(v6(host), v6(AFTR), &build::udp(at(home, 5_000), at(E1, 53)).build()));
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(view6(&back[0]).destination(), v6(host));
    }
}
