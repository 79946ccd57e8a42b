//! States and lifetimes of sessions.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Verdict;
use testkit::bed6::*;
use testkit::packet6::*;
use testkit::*;
use wire::build;

use super::ACK;
use super::FIN;
use super::RST;
use super::SYN;
use super::e1;

/// A bed in which C6:5000 has a mapping of TCP, half open, and its endpoint outside.
fn half_open(settings: nat::Settings) -> (Bed6, core::net::SocketAddrV4) {
    let mut bed = Bed6::new(settings);
    let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), SYN, (1, 0), b""));
    let mapped = source(&out[0]);
    (bed, mapped)
}

/// The same, established.
fn established() -> (Bed6, core::net::SocketAddrV4) {
    let (mut bed, mapped) = half_open(settings6());
    assert!(passes_in(&mut bed, E1, mapped, SYN | ACK));
    assert!(passes_out(&mut bed, ACK));
    (bed, mapped)
}

/// True if a segment of C6 arrives at E1.
fn passes_out(bed: &mut Bed6, flags: u8) -> bool {
    !bed.inside(&tcp6((v6(C6), 5_000), e1(80), flags, (2, 2), b""))[1].is_empty()
}

/// True if a segment from port 80 outside arrives at C6.
fn passes_in(bed: &mut Bed6, from: Ipv4Addr, mapped: core::net::SocketAddrV4, flags: u8) -> bool {
    let segment = build::tcp(at(from, 80), mapped, wire::tcp::Flags(flags)).sequence(2).acknowledgment(2).build();
    let [back, out] = bed.outside(&segment);
    assert!(out.is_empty(), "nothing answers at once");
    back.first().is_some_and(|packet| destination6(packet) == (v6(C6), 5_000))
}

#[test]
fn an_unexpected_syn_is_kept_for_six_seconds() {
    covers!("6146-21");
    use nat::settings::Filtering;
    // No binding: kept, and answered after six seconds.
    let (mut bed, mapped) = half_open(settings6());
    let other = at(*mapped.ip(), mapped.port() ^ 1);
    assert!(!passes_in(&mut bed, E2, other, SYN));
    assert_eq!(bed.verdict(), Some(Verdict::UnsolicitedSyn));
    assert!(bed.advance(Duration::from_millis(5_900)).concat().is_empty(), "silence for six seconds");
    let [_, out] = bed.advance(Duration::from_secs(2));
    assert_eq!((out.len(), out[0][20], out[0][21]), (1, 3, 3));
    assert_eq!(
        (destination(&out[0]).ip(), source(quote(&out[0])), destination(quote(&out[0]))),
        (&E2, at(E2, 80), other)
    );
    // A binding and no filtering: forwarded at once.
    assert!(passes_in(&mut bed, E2, mapped, SYN));
    // A binding and filtering: kept, answered, or forgotten when the host opens the connection.
    for opens in [false, true] {
        let mut bed = Bed6::new(settings6().filtering(Filtering::AddressDependent));
        let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), (behind(E2), 443), SYN, (1, 0), b""));
        let mapped = source(&out[0]);
        assert!(!passes_in(&mut bed, E1, mapped, SYN));
        bed.advance(Duration::from_secs(3));
        if opens {
            assert!(passes_out(&mut bed, SYN));
            assert!(passes_in(&mut bed, E1, mapped, SYN), "both have sent a SYN");
            assert!(passes_out(&mut bed, SYN | ACK));
        }
        let [_, out] = bed.advance(Duration::from_secs(5));
        assert_eq!(out.len(), usize::from(!opens));
        if opens {
            bed.advance(Duration::from_secs(7_000));
            assert!(passes_in(&mut bed, E1, mapped, ACK), "established");
        }
    }
    // By policy, silence.
    let mut settings = settings6();
    settings.answer_unsolicited_syn = false;
    let (mut bed, mapped) = half_open(settings);
    assert!(!passes_in(&mut bed, E2, at(*mapped.ip(), mapped.port() ^ 1), SYN));
    assert!(bed.advance(Duration::from_secs(30)).concat().is_empty());
}

#[test]
fn a_connection_opens_as_the_states_say() {
    covers!("6146-20");
    // V6 INIT lasts for four minutes.
    for (quiet, passes) in [(239, true), (245, false)] {
        let (mut bed, mapped) = half_open(settings6());
        bed.advance(Duration::from_secs(quiet));
        assert_eq!(passes_in(&mut bed, E1, mapped, SYN | ACK), passes, "after {quiet} s");
    }
    // From the last SYN of the host.
    let (mut bed, mapped) = half_open(settings6());
    for _ in 0..3 {
        bed.advance(Duration::from_secs(200));
        assert!(passes_out(&mut bed, SYN), "a SYN that is sent again");
    }
    bed.advance(Duration::from_secs(239));
    assert!(passes_in(&mut bed, E1, mapped, SYN | ACK));
    // A SYN of the server, with ACK or without, makes it established.
    for flags in [SYN | ACK, SYN] {
        let (mut bed, mapped) = half_open(settings6());
        bed.advance(Duration::from_secs(100));
        assert!(passes_in(&mut bed, E1, mapped, flags));
        bed.advance(Duration::from_secs(7_000));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK), "{flags:02x}");
        assert_eq!(bed.mappings(), 1);
    }
    // Anything else leaves it as it is.
    let (mut bed, mapped) = half_open(settings6());
    bed.advance(Duration::from_secs(100));
    passes_in(&mut bed, E1, mapped, ACK);
    bed.advance(Duration::from_secs(300));
    assert!(!passes_in(&mut bed, E1, mapped, ACK));
    assert_eq!(bed.mappings(), 0);
}

#[test]
fn a_segment_without_session_opens_no_session() {
    covers!("6146-22");
    let (mut bed, mapped) = half_open(settings6());
    for flags in [ACK, FIN | ACK, RST, SYN | ACK, 0] {
        // No binding.
        assert!(!passes_in(&mut bed, E2, at(*mapped.ip(), mapped.port() ^ 1), flags));
        // A binding, and no session.
        assert!(!passes_in(&mut bed, E2, mapped, flags), "{flags:02x}");
        assert_eq!(bed.verdict(), Some(Verdict::TcpNoSession));
    }
    assert!(bed.advance(Duration::from_secs(10)).concat().is_empty());
    // From inside.
    let sessions = |bed: &Bed6| bed.shards()[0].counters().sessions_created;
    let before = sessions(&bed);
    for flags in [ACK, FIN | ACK, RST] {
        bed.inside(&tcp6((v6(D6), 5_000), e1(80), flags, (1, 1), b""));
        assert_eq!(bed.verdict(), Some(Verdict::TcpNoSession));
    }
    assert_eq!((sessions(&bed), bed.mappings()), (before, 1));
}

#[test]
fn a_connection_ends_as_the_states_say() {
    covers!("6146-23");
    // Established for two hours, refreshed from either side.
    let (mut bed, mapped) = established();
    for _ in 0..2 {
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_in(&mut bed, E1, mapped, ACK));
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_out(&mut bed, ACK));
    }
    // One FIN changes nothing, from whichever side.
    for first_inside in [true, false] {
        let (mut bed, mapped) = established();
        let fin = |bed: &mut Bed6, inside: bool| {
            if inside { passes_out(bed, FIN | ACK) } else { passes_in(bed, E1, mapped, FIN | ACK) }
        };
        assert!(fin(&mut bed, first_inside));
        bed.advance(Duration::from_secs(7_199));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK));
        // Both: four minutes.
        assert!(fin(&mut bed, !first_inside));
        bed.advance(Duration::from_secs(239));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK));
        bed.advance(Duration::from_secs(300));
        assert_eq!(bed.mappings(), 0);
    }
    // A RST: four minutes, unless anything but another RST follows.
    for inside in [true, false] {
        let (mut bed, mapped) = established();
        assert!(if inside { passes_out(&mut bed, RST | ACK) } else { passes_in(&mut bed, E1, mapped, RST | ACK) });
        bed.advance(Duration::from_secs(239));
        assert!(if inside { passes_in(&mut bed, E1, mapped, ACK) } else { passes_out(&mut bed, ACK) });
        bed.advance(Duration::from_secs(7_000));
        assert!(passes_in(&mut bed, E1, mapped, ACK) && passes_out(&mut bed, ACK), "established again");
        let (mut bed, mapped) = established();
        assert!(if inside { passes_out(&mut bed, RST | ACK) } else { passes_in(&mut bed, E1, mapped, RST | ACK) });
        bed.advance(Duration::from_secs(300));
        assert_eq!(bed.mappings(), 0);
    }
}

#[test]
fn an_idle_query_lives_for_a_minute() {
    covers!("6146-25");
    for (timeout, short) in [(None, 59), (Some(20), 19)] {
        let settings = match timeout {
            None => settings6(),
            Some(seconds) => settings6().timers(|timeouts| timeouts.icmp = Duration::from_secs(seconds)),
        };
        let mut bed = Bed6::new(settings);
        let [_, out] = bed.inside(&ping6(v6(C6), behind(E1), 77));
        let reply = build::echo_reply(E1, *source(&out[0]).ip(), identifier(&out[0])).build();
        bed.advance(Duration::from_secs(short));
        assert_eq!(bed.outside(&reply)[0].len(), 1);
        bed.advance(Duration::from_secs(short + 3));
        assert_eq!(bed.outside(&reply)[0].len(), 0);
        bed.advance(Duration::from_secs(30));
        assert_eq!(bed.mappings(), 0);
    }
}

/// A connection of [`C6`] from this port: its external endpoint.
fn opened_with(bed: &mut Bed6, port: u16, to: At6) -> std::net::SocketAddrV4 {
    let [_, out] = bed.inside(&tcp6((v6(C6), port), to, 2, (1, 0), b""));
    let (mapped, remote) = (source(&out[0]), destination(&out[0]));
    bed.outside(&build::tcp(remote, mapped, wire::tcp::Flags(0x12)).build());
    bed.inside(&tcp6((v6(C6), port), to, 0x10, (2, 1), b""));
    mapped
}

#[test]
fn an_idle_connection_is_probed_before_it_ends() {
    covers!("6146-24");
    for workers in [1, 2] {
        let mut bed = Bed6::with_workers(settings6(), workers);
        // Two sessions of one mapping, and hosts that RFC 6146 is not about: IPv4 and behind a B4.
        let mapped = opened_with(&mut bed, 5_000, e1(80));
        assert_eq!(opened_with(&mut bed, 5_000, e1(81)), mapped);
        bed.inside(&build::tcp(at(I1, 5), at(E1, 80), wire::tcp::Flags(2)).build());
        let inner = build::tcp(at([192, 168, 1, 2].into(), 5), at(E1, 80), wire::tcp::Flags(2)).build();
        bed.inside(&softwire(v6(D6), v6(AFTR), &inner));
        let [inside, out] = bed.advance(Duration::from_secs(7_430));
        assert_eq!((inside.len(), out.len()), (0, 0), "established");
        let [mut inside, out] = bed.advance(Duration::from_secs(30));
        inside.sort_by_key(|packet| source6(packet).1);
        assert_eq!((inside.len(), out.len()), (2, 0), "one probe for each connection");
        for (probe, port) in inside.iter().zip([80, 81]) {
            assert_eq!((source6(probe), destination6(probe)), (e1(port), (v6(C6), 5_000)));
            assert_eq!((&probe[44..52], probe[53], probe.len()), (&[0; 8][..], 0x10, 60), "ACK, 0, 0, and no data");
        }
        // The host answers one of them, as a host that has the connection does.
        let [_, out] = bed.inside(&tcp6((v6(C6), 5_000), e1(80), 0x10, (2, 1), b""));
        assert_eq!((source(&out[0]), destination(&out[0])), (mapped, at(E1, 80)));
        let [inside, _] = bed.advance(Duration::from_secs(7_000));
        assert_eq!(inside.len(), 0, "nothing is probed twice, and the other is over");
        let ack = |port| build::tcp(at(E1, port), mapped, wire::tcp::Flags(0x10)).build();
        assert_eq!(bed.outside(&ack(80))[0].len(), 1);
        let sessions = bed.mapping_views().iter().map(|view| view.sessions).sum::<u32>();
        assert_eq!(sessions, 1);
        // Probed again after another time, and over without an answer.
        let [inside, _] = bed.advance(Duration::from_secs(7_700));
        assert_eq!(inside.len(), 1);
        assert_eq!(bed.mapping_views(), []);
    }
}
