//! Prefixes of the translator and of subscribers.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use nat::event::Cause;
use nat::event::EventKind;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::e1;

#[test]
fn private_sources_are_not_put_behind_the_well_known_prefix() {
    covers!("6052-5", "7915-4.1f");
    let mut bed = Bed6::new(settings6());
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"question"));
    let mapped = source(&out[0]);
    let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
    let pinged = source(&out[0]);
    let from = |text: &str, verdict| (text.parse::<Ipv4Addr>().expect("an address"), verdict);
    for (private, verdict) in [
        from("10.0.0.1", Verdict::EmbeddedPrivate),
        from("172.16.0.1", Verdict::EmbeddedPrivate),
        from("172.31.255.255", Verdict::EmbeddedPrivate),
        from("192.168.1.1", Verdict::EmbeddedPrivate),
        from("192.0.0.170", Verdict::EmbeddedPrivate),
        from("169.254.1.1", Verdict::SourceInvalid),
        from("127.0.0.1", Verdict::SourceInvalid),
        from("0.0.0.1", Verdict::SourceInvalid),
    ] {
        for _ in 0..2 {
            let [back, out] = bed.outside(&build::udp(at(private, 53), mapped).payload(b"answer").build());
            assert_eq!((back.len(), out.len(), bed.verdict()), (0, 0, Some(verdict)), "{private}");
        }
        let [back, _] = bed.outside(&build::echo_reply(private, *pinged.ip(), pinged.port()).build());
        assert_eq!((back.len(), bed.verdict()), (0, Some(verdict)), "{private}");
    }
    for public in ["172.32.0.1", "192.0.1.1", "198.18.0.1", "8.8.8.8"] {
        let public: Ipv4Addr = public.parse().expect("an address");
        let [back, _] = bed.outside(&build::udp(at(public, 53), mapped).build());
        assert_eq!(source6(&back[0]), (behind(public), 53));
    }
    // A prefix of one's own leads there.
    let prefix = translate::Prefix::new(v6("2001:db8:64::"), 96).expect("a prefix");
    let mut settings = settings6();
    settings.transition.nat64[0].prefix = prefix;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (prefix.embed(E1.to_bits()), 53), b"question"));
    let private = Ipv4Addr::new(10, 0, 0, 1);
    let [back, _] = bed.outside(&build::udp(at(private, 53), source(&out[0])).build());
    assert_eq!(source6(&back[0]), (prefix.embed(private.to_bits()), 53));
    let [back, _] = bed.outside(&build::udp(at([169, 254, 0, 1].into(), 53), source(&out[0])).build());
    assert_eq!((back.len(), bed.verdict()), (0, Some(Verdict::SourceInvalid)));
}

#[test]
fn many_sources_of_one_prefix_are_bounded_and_harmless() {
    covers!("6146-30");
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 64;
    let mut bed = Bed6::new(settings);
    for host in 0..1 << 20 {
        bed.inside(&udp6((v6("2001:db8:bad:100::") + host, 5_000), e1(53), b"x"));
    }
    assert_eq!((bed.mappings(), bed.count(Verdict::HostLimit)), (64, (1 << 20) - 64));
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    assert_eq!(out.len(), 1, "other subscribers are not affected");
}

#[test]
fn hosts_whose_packets_are_dropped_take_no_room() {
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 2;
    settings.transition.hosts_max = 20;
    let mut bed = Bed6::new(settings);
    let host = |prefix: u128, n: u128| v6(C6) + (prefix << 72) + n;
    // Of one prefix, and of more prefixes than the table has room for.
    for n in 1..100 {
        for source in [host(0, n), host(n, 0)] {
            let mut dropped = udp6((source, 5_000), e1(53), b"x");
            dropped[7] = 1;
            assert!(bed.inside(&dropped)[1].is_empty());
            assert_eq!(bed.verdict(), Some(Verdict::TtlExpired));
        }
    }
    for n in 200..202 {
        assert_eq!(bed.inside(&udp6((host(0, n), 5_000), e1(53), b"x"))[1].len(), 1);
    }
    assert!(bed.inside(&udp6((host(0, 202), 5_000), e1(53), b"x"))[1].is_empty());
    assert_eq!(bed.verdict(), Some(Verdict::HostLimit));
}

#[test]
fn refused_hosts_are_events_with_their_prefix() {
    let refused = |bed: &mut Bed6| {
        let events = bed.take_events().into_iter().filter(|event| event.kind == EventKind::Refused);
        let events: Vec<_> = events.map(|event| (event.cause, event.subscriber, event.amount)).collect();
        let [(cause, subscriber, amount)] = events[..] else { panic!("one event: {events:?}") };
        (cause, subscriber, amount)
    };
    let mut settings = settings6();
    settings.transition.hosts_per_subscriber_max = 2;
    let mut bed = Bed6::new(settings).record_events(64);
    for host in 0..5 {
        bed.inside(&udp6((v6("2001:db8:c:100::") + host, 5_000), e1(53), b"x"));
    }
    assert_eq!(bed.count(Verdict::HostLimit), 3);
    let (cause, subscriber, amount) = refused(&mut bed);
    assert_eq!((cause, amount), (Cause::Verdict(Verdict::HostLimit), 1), "one for many");
    assert!(nat::types::HostNumber::from(subscriber).is_ipv6(), "the number of a named prefix");
    let mut settings = settings6();
    settings.transition.hosts_max = 2;
    let mut bed = Bed6::new(settings).record_events(64);
    bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(refused(&mut bed), (Cause::Verdict(Verdict::HostTableFull), Ipv4Addr::UNSPECIFIED, 1));
}

#[test]
fn a_prefix_leaves_room_for_fragments_of_others() {
    covers!("6146-30");
    let mut settings = settings6();
    settings.limits.fragmented_datagrams_max = 64;
    let mut bed = Bed6::new(settings);
    let begin = |source: u128| fragments6(&udp6((source, 5_000), e1(53), &[1; 2_000]), &[1_000], 1).swap_remove(0);
    for host in 0..64 {
        // Begun and never completed.
        bed.inside(&begin(v6("2001:db8:bad:100::") + host));
    }
    assert_eq!(bed.count(Verdict::FragmentTableFull), 56, "an eighth for each subscriber");
    let [_, out] = bed.inside(&begin(v6(C6)));
    assert_eq!(out.len(), 1, "other subscribers are not affected");
}

#[test]
fn a_prefix_is_one_subscriber_on_any_worker() {
    let mut settings = settings6();
    settings.subscriber.ports_max = [4; 3];
    for workers in [1, 3] {
        let mut bed = Bed6::with_workers(settings.clone(), workers);
        let mut mapped = Vec::new();
        for host in 0..6 {
            // Received by any worker.
            let packet = udp6((v6("2001:db8:c:1aa::") + host, 5_000), e1(53), b"x");
            let [_, out] = bed.receive(host as usize % workers, topology::INSIDE, &packet);
            mapped.extend(out.iter().map(|packet| source(packet)));
        }
        assert_eq!(mapped.len(), 4, "the quota is that of the prefix");
        assert!(mapped.iter().all(|one| one.ip() == mapped[0].ip()), "and so is the pairing");
        assert_eq!(bed.count(Verdict::SubscriberPortQuota), 2);
        for (host, mapped) in (0..4).zip(&mapped) {
            for worker in 0..workers {
                let answer = build::udp(at(E1, 53), *mapped).build();
                let [back, _] = bed.receive(worker, topology::OUTSIDE, &answer);
                assert_eq!(destination6(&back[0]), (v6("2001:db8:c:1aa::") + host, 5_000));
            }
        }
    }
}

#[test]
fn ipv4_and_ipv6_hosts_share_one_pool() {
    let mut bed = Bed6::new(settings6());
    let mut mapped = Vec::new();
    for port in 5_000..5_100 {
        mapped.push(source(&bed.inside(&build::udp(at(I1, port), at(E1, 53)).build())[1][0]));
        mapped.push(source(&bed.inside(&udp6((v6(C6), port), e1(53), b"x"))[1][0]));
        let inner = build::udp(at([192, 168, 1, 2].into(), port), at(E1, 53)).build();
        mapped.push(source(&bed.inside(&softwire(v6(D6), v6(AFTR), &inner))[1][0]));
    }
    let all = mapped.len();
    mapped.sort();
    mapped.dedup();
    assert_eq!((mapped.len(), all), (300, 300));
}

#[test]
fn a_udp_session_lives_for_five_minutes_from_its_last_packet() {
    covers!("6146-14");
    for (inbound_refresh, timeout) in [(false, 300), (true, 300), (false, 120), (true, 120)] {
        let mut settings = settings6().timers(|timeouts| timeouts.udp = Duration::from_secs(timeout));
        settings.inbound_refresh = inbound_refresh;
        if timeout == 300 {
            assert_eq!(settings.timeouts.udp, settings6().timeouts.udp, "the default");
        }
        let most = Duration::from_secs(timeout - 1);
        let open = |bed: &mut Bed6| source(&bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"))[1][0]);
        let comes_in = |bed: &mut Bed6, mapped| {
            let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).payload(b"answer").build());
            back.first().is_some_and(|packet| destination6(packet) == (v6(C6), 5_000))
        };
        // Packets from inside refresh it.
        let mut bed = Bed6::new(settings.clone());
        let mapped = open(&mut bed);
        for _ in 0..4 {
            bed.advance(most);
            assert_eq!(open(&mut bed), mapped);
        }
        bed.advance(most);
        assert!(comes_in(&mut bed, mapped), "its whole time after the last one");
        // Those from outside only if the operator wants it.
        for _ in 0..3 {
            bed.advance(most);
            assert_eq!(comes_in(&mut bed, mapped), inbound_refresh, "{timeout}");
        }
        bed.advance(Duration::from_secs(timeout + 2));
        assert!(!comes_in(&mut bed, mapped));
        assert_eq!((bed.verdict(), bed.mappings()), (Some(Verdict::NoMapping), 0));
    }
}

#[test]
fn a_host_ends_with_its_last_mapping() {
    covers!("6146-4");
    let mut settings = settings6();
    settings.transition.hosts_max = 3;
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&udp6((v6(C6), 5_000), e1(53), b"x"));
    let mapped = source(&out[0]);
    bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(bed.verdict(), Some(Verdict::HostTableFull), "a host and its prefix take a record each");
    bed.advance(Duration::from_secs(299));
    let [back, _] = bed.outside(&build::udp(at(E1, 53), mapped).build());
    assert_eq!(destination6(&back[0]), (v6(C6), 5_000));
    bed.advance(Duration::from_secs(400));
    assert_eq!(bed.mappings(), 0);
    let [_, out] = bed.inside(&udp6((v6(D6), 5_000), e1(53), b"x"));
    assert_eq!(out.len(), 1, "the records are free again");
}

#[test]
fn the_vectors_of_rfc_6052_hold_for_packets_both_ways() {
    covers!("6052-3");
    let server = Ipv4Addr::new(192, 0, 2, 33);
    for (prefix, length, expected) in [
        ("2001:db8::", 32, "2001:db8:c000:221::"),
        ("2001:db8:100::", 40, "2001:db8:1c0:2:21::"),
        ("2001:db8:122::", 48, "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::", 56, "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::", 64, "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::", 96, "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::", 96, "64:ff9b::192.0.2.33"),
    ] {
        let (text, expected) = (format!("{prefix}/{length}"), v6(expected));
        let prefix = translate::Prefix::new(v6(prefix), length).expect("a prefix");
        assert_eq!(prefix.embed(server.to_bits()), expected, "{text}");
        assert_eq!(prefix.extract(expected), server.to_bits(), "{text}");
        let mut settings = settings6();
        settings.transition.nat64[0].prefix = prefix;
        settings.ipv6.addresses[0].address = v6("fd00::1").into();
        let mut bed = Bed6::new(settings);
        // Sizes of the short way and of the long one.
        for payload in [1, 1_300] {
            let [_, out] = bed.inside(&udp6((v6("fd00:6::6"), 5_000), (expected, 53), &vec![7; payload]));
            assert_eq!(destination(&out[0]), at(server, 53), "{text}");
            let answer = build::udp(at(server, 53), source(&out[0])).payload_length(payload).dont_fragment();
            let [back, _] = bed.outside(&answer.build());
            assert_eq!(source6(&back[0]), (expected, 53), "{text}");
        }
    }
}

#[test]
fn prefixes_of_all_lengths_reach_the_address_inside() {
    covers!("6146-26", "6052-4");
    for (text, length) in [
        ("2001:db8::", 32),
        ("2001:db8:100::", 40),
        ("2001:db8:122::", 48),
        ("2001:db8:122:300::", 56),
        ("2001:db8:122:344::", 64),
        ("2001:db8:122:344::", 96),
    ] {
        let mut settings = settings6();
        let prefix = translate::Prefix::new(v6(text), length).expect("a prefix");
        settings.transition.nat64[0].prefix = prefix;
        settings.ipv6.addresses[0].address = v6("fd00::1").into();
        let mut bed = Bed6::new(settings);
        let host = v6("fd00:6::6");
        // Bits behind the address are ignored, and not repeated.
        let suffix = if length == 96 { 0 } else { 0xff };
        let [_, out] = bed.inside(&udp6((host, 5_000), (prefix.embed(E1.to_bits()) | suffix, 53), b"x"));
        assert_eq!(destination(&out[0]), at(E1, 53), "{text}/{length}");
        let [back, _] = bed.outside(&build::udp(at(E1, 53), source(&out[0])).build());
        assert_eq!(source6(&back[0]), (prefix.embed(E1.to_bits()), 53), "{text}/{length}");
    }
}

#[test]
fn the_local_use_prefix_reaches_private_addresses() {
    covers!("8215-3");
    for (text, length) in [("64:ff9b:1::", 48), ("64:ff9b:1:fffe::", 64), ("64:ff9b:1:fffe::", 96)] {
        let mut settings = settings6();
        let prefix = translate::Prefix::new(v6(text), length).expect("a prefix");
        settings.transition.nat64[0].prefix = prefix;
        let mut bed = Bed6::new(settings);
        for to in [E1, [10, 1, 2, 3].into(), [192, 168, 7, 7].into()] {
            let to: Ipv4Addr = to;
            let [_, out] = bed.inside(&udp6((v6(C6), 5_000), (prefix.embed(to.to_bits()), 53), b"x"));
            assert_eq!(destination(&out[0]), at(to, 53), "{text}/{length}");
            let [back, _] = bed.outside(&build::udp(at(to, 53), source(&out[0])).build());
            assert_eq!(source6(&back[0]), (prefix.embed(to.to_bits()), 53));
        }
        if length != 96 {
            let u_octet = prefix.embed(E1.to_bits()) | 1 << 56;
            assert!(bed.inside(&udp6((v6(C6), 5_000), (u_octet, 53), b"x"))[1].is_empty());
            assert_eq!(bed.verdict(), Some(Verdict::EmbeddedAddress), "bits 64 to 71 are zero");
        }
        let loopback = prefix.embed(0x7f00_0001);
        assert!(bed.inside(&udp6((v6(C6), 5_000), (loopback, 53), b"x"))[1].is_empty());
        assert_eq!(bed.verdict(), Some(Verdict::EmbeddedAddress));
    }
}
