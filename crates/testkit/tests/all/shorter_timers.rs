//! Timers that become shorter, by a change of the configuration or because ports run out, apply to
//! silent sessions too: none lasts longer than the timer now in use, and none ends sooner after its
//! last packet.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::settings::PortTimeout;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

const SERVER: SocketAddrV4 = at(E1, 80);
/// A round of the sweep over few records.
const ROUND_SECS: u64 = 6;

fn exists(bed: &Bed, protocol: Protocol, internal: SocketAddrV4) -> bool {
    bed.mapping_of(protocol, internal).is_some()
}

/// Opens a TCP connection up to data.
fn connect(bed: &mut Bed, internal: SocketAddrV4) {
    let external = bed.open_tcp(internal, SERVER);
    bed.outside(
        &build::tcp(SERVER, external, Flags::SYN.union(Flags::ACK)).sequence(5_000).acknowledgment(1_001).build(),
    );
    bed.inside(&build::tcp(internal, SERVER, Flags::ACK).sequence(1_001).acknowledgment(5_001).build());
    bed.take_inside();
    bed.take_outside();
}

#[test]
fn silent_sessions_end_by_the_timers_of_a_change() {
    for workers in [1, 3] {
        let mut settings = settings().endpoint_dependent(topology::prefix(E2.octets(), 32), (443, 443));
        settings.timeouts.tcp_established = Duration::from_secs(20_000);
        settings.port_timeouts =
            vec![PortTimeout { protocol: Protocol::Udp, ports: 53..=53, idle: Duration::from_secs(900) }];
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let (one, several, own, flow, tcp) =
            (at(I1, 1_000), at(I1, 2_000), at(I2, 3_000), at(I2, 4_000), at(I3, 5_000));
        bed.open_udp(one, SERVER);
        for port in 80..84 {
            bed.open_udp(several, at(E1, port));
        }
        bed.open_udp(own, at(E1, 53));
        bed.open_udp(flow, at(E2, 443));
        bed.ping(I3, 7, E1);
        bed.take_outside();
        connect(&mut bed, tcp);
        bed.advance_secs(50);
        settings.timeouts.udp = Duration::from_secs(130);
        settings.timeouts.udp_unanswered = Duration::from_secs(130);
        settings.timeouts.tcp_established = Duration::from_secs(7_440);
        bed.reload(settings);
        // Nobody's time is shorter than the new timer, counted from the last packet: 50 s are gone.
        bed.advance_secs(75);
        for internal in [one, several, own] {
            assert!(exists(&bed, Protocol::Udp, internal), "{internal} after 125 s");
        }
        assert_eq!(bed.shards().map(|shard| shard.view().flows_len()).sum::<usize>(), 1);
        // And from the change on it is no longer.
        bed.advance_secs(55 + ROUND_SECS);
        for internal in [one, several] {
            assert!(!exists(&bed, Protocol::Udp, internal), "{internal} 130 s after the change");
        }
        assert_eq!(bed.shards().map(|shard| shard.view().flows_len()).sum::<usize>(), 0);
        assert!(exists(&bed, Protocol::Udp, own), "its port has a timer of its own");
        bed.advance_secs(730);
        assert!(!exists(&bed, Protocol::Udp, own) && exists(&bed, Protocol::Tcp, tcp));
        // An established connection is transitory for a while behind its idle time (RFC 7857 §2).
        bed.advance_secs(7_440 + 240 - 866 + ROUND_SECS);
        assert!(!exists(&bed, Protocol::Tcp, tcp), "not 20 000 s");
        bed.check_books();
    }
}

#[test]
fn what_goes_on_is_not_touched_and_what_comes_back_lives_on() {
    let mut settings = settings();
    let mut bed = Bed::new(settings.clone()).workers(2);
    let (silent, busy) = (at(I1, 1_000), at(I1, 1_001));
    let external = [silent, busy].map(|internal| bed.open_udp(internal, SERVER));
    settings.timeouts.udp = Duration::from_secs(120);
    settings.timeouts.udp_unanswered = Duration::from_secs(120);
    bed.reload(settings);
    for _ in 0..6 {
        bed.advance_secs(60);
        assert_eq!(bed.open_udp(busy, SERVER), external[1]);
    }
    assert!(!exists(&bed, Protocol::Udp, silent) && exists(&bed, Protocol::Udp, busy));
    bed.check_books();
}

#[test]
fn a_full_pool_ends_silent_mappings_by_the_bounds_of_the_rfcs() {
    for workers in [1, 3] {
        let mut settings = settings().ports(1_024, 1_123).addresses(&POOL[..1]);
        settings.pools[0].reuse_delay = Duration::ZERO;
        settings.timeouts.adapt_above_percent = Some(50);
        let mut bed = Bed::new(settings).workers(workers);
        for port in 0..100 {
            bed.open_udp(at(I1, 2_000 + port), SERVER);
        }
        bed.advance_secs(115);
        assert_eq!(bed.mappings().len(), 100, "RFC 4787 REQ-5: not below two minutes");
        // The pool was seen to be full within a second of the last one.
        bed.advance_secs(5 + 1 + ROUND_SECS);
        assert_eq!(bed.mappings().len(), 0, "and not the five minutes they were made with");
        bed.check_books();
    }
}

#[test]
fn a_new_timer_of_ports_reaches_silent_sessions() {
    for workers in [1, 3] {
        let mut settings = settings();
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let (dns, other) = (at(I1, 1_000), at(I1, 1_001));
        bed.open_udp(dns, at(E1, 53));
        bed.open_udp(other, SERVER);
        settings.port_timeouts =
            vec![PortTimeout { protocol: Protocol::Udp, ports: 53..=53, idle: Duration::from_secs(10) }];
        bed.reload(settings.clone());
        bed.advance_secs(10 + ROUND_SECS);
        assert!(!exists(&bed, Protocol::Udp, dns), "silent for longer than its port's timer");
        assert!(exists(&bed, Protocol::Udp, other), "its port has none");
        bed.open_udp(dns, at(E1, 53));
        settings.port_timeouts.clear();
        bed.reload(settings);
        assert!(exists(&bed, Protocol::Udp, dns));
        // The next packet has the timer of all others again.
        bed.open_udp(dns, at(E1, 53));
        bed.advance_secs(60);
        assert!(exists(&bed, Protocol::Udp, dns), "the port has no timer of its own any more");
        bed.check_books();
    }
}

/// How long a mapping and its session are said to be idle, in seconds.
fn idle(bed: &Bed, internal: SocketAddrV4) -> [u64; 2] {
    let mapping = bed.mapping_of(Protocol::Udp, internal).expect("it lives").idle;
    let mut sessions = bed.sessions().into_iter();
    let session = sessions.find(|session| session.internal.port == internal.port()).expect("it lives").idle;
    [mapping, session].map(|idle| idle.as_micros() / 1_000_000)
}

#[test]
fn idle_time_follows_the_timers_of_the_last_use() {
    for (before, after) in [(100, 1_000), (1_000, 2_000), (1_000, 980)] {
        let mut settings = settings();
        settings.timeouts.udp = Duration::from_secs(before);
        settings.timeouts.udp_unanswered = Duration::from_secs(before);
        let mut bed = Bed::new(settings.clone());
        let (silent, busy) = (at(I1, 1_000), at(I1, 1_001));
        bed.open_udp(silent, SERVER);
        bed.open_udp(busy, SERVER);
        bed.advance_secs(10);
        settings.timeouts.udp = Duration::from_secs(after);
        settings.timeouts.udp_unanswered = Duration::from_secs(after);
        bed.reload(settings);
        assert_eq!(idle(&bed, silent), [10, 10], "right after {before} s became {after} s");
        bed.advance_secs(20);
        bed.open_udp(busy, SERVER);
        bed.advance_secs(5);
        assert_eq!(idle(&bed, busy), [5, 5], "after {before} s became {after} s");
        if after > before {
            assert_eq!(idle(&bed, silent), [35, 35], "after {before} s became {after} s");
        }
        bed.check_books();
    }
}
