//! Claims about the test bed itself: it sees what it must see.

use nat::settings::Transition;
use testkit::bed::families::nat64_host;
use testkit::bed::families::with_families;
use testkit::*;
use wire::build;
use wire::tcp::Flags;
use wire::verify::Fault;

#[test]
fn a_datagram_goes_out_and_its_answer_comes_back() {
    let mut bed = Bed::new(settings());
    let external = bed.open_udp(at(I1, 5000), at(E1, 1000));
    assert!(POOL.contains(external.ip()));
    assert!(bed.udp_reaches(at(E1, 1000), external, at(I1, 5000)));
    assert_eq!(bed.mappings().len(), 1);
    assert_eq!(bed.sessions().len(), 1);
}

#[test]
fn a_connection_opens_and_everything_runs_out() {
    let mut bed = Bed::new(settings()).workers(2);
    bed.connect(at(I1, 5000), at(E1, 80));
    bed.ping(I2, 7, E1);
    bed.open_udp(at(I3, 53), at(E2, 53));
    bed.run_out();
    assert_eq!(bed.mappings(), []);
}

#[test]
fn every_worker_may_receive_every_packet() {
    for steering in [Steering::Owner, Steering::Wrong, Steering::Random, Steering::Fixed(3)] {
        let mut bed = Bed::new(settings()).workers(4).steering(steering);
        for host in 0..40 {
            let internal = at([100, 64, 1, host].into(), 4_000);
            let external = bed.connect(internal, at(E1, 443));
            bed.outside(&build::tcp(at(E1, 443), external, Flags::ACK).sequence(5_001).payload_length(100).build());
            assert_eq!(destination(&bed.only_inside()), internal);
        }
    }
}

#[test]
#[should_panic(expected = "nobody sent this")]
fn a_changed_payload_is_noticed() {
    let mut audit = bed::audit::Audit::new(&settings());
    audit.goes_in(&build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build());
    audit.comes_out(nat::types::Side::Outside, &build::udp(at(POOL[0], 1), at(E1, 2)).payload(b"abd").ttl(63).build());
}

#[test]
#[should_panic(expected = "TTL came out as 64")]
fn a_ttl_that_stays_is_noticed() {
    let mut audit = bed::audit::Audit::new(&settings());
    audit.goes_in(&build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build());
    audit.comes_out(nat::types::Side::Outside, &build::udp(at(POOL[0], 1), at(E1, 2)).payload(b"abc").build());
}

#[test]
#[should_panic(expected = "which is no pool's")]
fn an_inside_source_outside_is_noticed() {
    let mut audit = bed::audit::Audit::new(&settings());
    let packet = build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build();
    audit.goes_in(&packet);
    audit.comes_out(nat::types::Side::Outside, &packet);
}

#[test]
#[should_panic(expected = "faults [UdpChecksum]")]
fn a_wrong_checksum_is_noticed() {
    let mut audit = bed::audit::Audit::new(&settings());
    audit.goes_in(&build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build());
    let mut packet = build::udp(at(POOL[0], 1), at(E1, 2)).payload(b"abc").ttl(63).build();
    packet[26] ^= 1;
    audit.comes_out(nat::types::Side::Outside, &packet);
}

#[test]
#[should_panic(expected = "nobody sent this")]
fn a_packet_that_comes_out_twice_is_noticed() {
    let mut audit = bed::audit::Audit::new(&settings());
    audit.goes_in(&build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build());
    let packet = build::udp(at(POOL[0], 1), at(E1, 2)).payload(b"abc").ttl(63).build();
    audit.comes_out(nat::types::Side::Outside, &packet);
    audit.comes_out(nat::types::Side::Outside, &packet);
}

/// Natrix's own error about a datagram whose checksum is wrong.
fn error_about_a_wrong_checksum(went_in: bool) {
    let mut audit = bed::audit::Audit::new(&settings());
    let mut wrong = build::udp(at(I1, 1), at(E1, 2)).payload(b"abc").build();
    wrong[26] ^= 1;
    if went_in {
        audit.goes_in(&wrong);
    }
    audit.comes_out(nat::types::Side::Inside, &build::icmp_error(OWN_INSIDE, I1, 11, 0, &wrong).build());
}

#[test]
fn a_quote_of_a_wrong_checksum_may_stay_wrong() {
    error_about_a_wrong_checksum(true);
}

#[test]
#[should_panic(expected = "Natrix's own packet is wrong")]
fn a_quote_whose_checksum_became_wrong_is_noticed() {
    error_about_a_wrong_checksum(false);
}

/// A server reports that a NAT64 host's datagram was refused; the quote is as the server got it, or
/// has another payload, which its checksum does not fit.
fn refused_datagram_of_a_host(is_damaged: bool) -> Vec<u8> {
    let mut settings = with_families(settings());
    settings.pools[0].subscribers.push(Transition::HOSTS);
    let mut bed = Bed::new(settings);
    let host = at(nat64_host(1), 4_000);
    bed.inside(&build::udp(host, at(E1, 53)).payload(b"question").build());
    let mut quote = bed.only_outside();
    if is_damaged {
        quote[30] ^= 1;
    }
    bed.outside(&build::icmp_error(E1, *source(&quote).ip(), 3, 3, &quote).build());
    bed.only_inside()
}

#[test]
fn a_wrong_checksum_in_a_quote_reaches_an_ipv6_host_wrong() {
    assert_eq!(wire::verify::faults(&refused_datagram_of_a_host(false)), []);
    assert_eq!(wire::verify::faults(&refused_datagram_of_a_host(true)), [Fault::QuotedTransportChecksum]);
}
