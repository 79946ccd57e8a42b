//! What other gateways stumbled over, as captures (`crates/testkit/captures`): they are replayed
//! packet by packet.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::fs;

use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use testkit::captures;
use testkit::captures::Capture;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Tcp;
use wire::udp::Udp;

use crate::gateways::with;

const ALL: [&str; 5] = ["ftp", "sip", "rtsp", "tftp", "pptp"];

/// The payload of a UDP datagram or a TCP segment that is no fragment.
fn text(packet: &[u8]) -> Vec<u8> {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    match ip.protocol() {
        6 => Tcp::new_checked(ip.payload()).expect("a segment").payload().to_vec(),
        _ => Udp::new_checked(ip.payload()).expect("a datagram").payload().to_vec(),
    }
}

/// What became of a capture.
#[derive(Default)]
struct Replayed {
    /// Datagrams, and packets from outside, that left with another payload, by their numbers in the
    /// capture.
    changed: Vec<usize>,
    /// Payload bytes of packets of subscribers that passed, and of what left for them, by the
    /// endpoint: a gateway may hold the start of a message.
    streams: HashMap<SocketAddrV4, (Vec<u8>, Vec<u8>)>,
}

/// Sends each packet of a capture at its time: what subscribers send as it is, and what comes for
/// them to the external endpoints that their packets got.
fn replay(bed: &mut Bed, capture: &Capture) -> Replayed {
    replay_under(bed, capture, None)
}

/// The same, with other settings from a packet on.
fn replay_under(bed: &mut Bed, capture: &Capture, later: Option<(usize, &Settings)>) -> Replayed {
    let (begin, mut known, mut result) = (bed.now(), HashMap::new(), Replayed::default());
    for (number, (time, packet)) in capture.packets.iter().enumerate() {
        bed.advance((begin + *time).saturating_since(bed.now()));
        if let Some((_, settings)) = later.filter(|(first, _)| *first == number) {
            bed.reload(settings.clone());
        }
        let from = source(packet);
        let is_fragment = Ipv4::new_unchecked(&packet[..]).is_fragment();
        let left = if from.ip().octets()[0] == 100 {
            bed.inside(packet);
            let left = bed.take_outside();
            if let Some(first) = left.first().filter(|_| !is_fragment) {
                known.insert((from, destination(packet)), source(first));
                let stream = result.streams.entry(from).or_default();
                stream.0.extend(text(packet));
                left.iter().for_each(|packet| stream.1.extend(text(packet)));
            }
            left
        } else {
            let ip = Ipv4::new_checked(&packet[..]).expect("a packet");
            let tcp = Tcp::new_checked(ip.payload()).expect("only servers of TCP answer");
            let external = known[&(destination(packet), from)];
            let segment = build::tcp(from, external, tcp.flags()).sequence(tcp.sequence());
            bed.outside(&segment.acknowledgment(tcp.acknowledgment()).payload(tcp.payload()).build());
            bed.take_inside()
        };
        let is_stream = from.ip().octets()[0] == 100 && packet[9] == 6;
        if !is_fragment && !is_stream && left.iter().any(|one| text(one) != text(packet)) {
            result.changed.push(number);
        }
    }
    result
}

/// Replays a capture that must get nothing, by 1, 2 and 8 workers: all leaves as it came, nothing
/// is expected, and the balance of verdicts is this.
fn gets_nothing(name: &str, settings: &Settings, verdicts: &[(Verdict, u64)]) {
    gets_nothing_under(name, settings, None, verdicts);
}

fn gets_nothing_under(name: &str, settings: &Settings, later: Option<(usize, &Settings)>, verdicts: &[(Verdict, u64)]) {
    let capture = Capture::hostile(name);
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(settings.clone()).workers(workers);
        let result = replay_under(&mut bed, &capture, later);
        assert_eq!(result.changed, Vec::<usize>::new(), "{name}: changed");
        for (endpoint, (sent, received)) in &result.streams {
            assert!(sent == received, "{name}: {endpoint} sent something else");
        }
        balance(name, &mut bed, &capture, verdicts);
        if workers == 1 {
            bed.run_out();
        }
    }
}

/// Nothing is expected, and each packet has its verdict.
fn balance(name: &str, bed: &mut Bed, capture: &Capture, verdicts: &[(Verdict, u64)]) {
    let counters = bed.counters();
    assert_eq!((counters.expectations_created, counters.expectations_refused), (0, 0), "{name}: expectations");
    assert!(bed.grants().is_empty(), "{name}: grants");
    let mut expected: Vec<_> = verdicts.iter().map(|(verdict, count)| (verdict.name(), *count)).collect();
    let mut given = bed.verdicts();
    expected.sort_unstable();
    given.sort_unstable();
    assert_eq!(given, expected, "{name}: verdicts");
    assert_eq!(counters.received, capture.packets.len() as u64, "{name}: received");
    // What was hoped for does not work.
    for (protocol, port) in [(Protocol::Tcp, 4_660), (Protocol::Udp, 9_999), (Protocol::Udp, 5_000)] {
        assert!(bed.mapping_of(protocol, at(I1, port)).is_none(), "{name}: a mapping of {port}");
    }
}

/// `cargo run -p testkit --bin captures` writes them again.
#[test]
fn the_kept_captures_are_what_the_generator_writes() {
    let (mut bytes, all) = (0, captures::all());
    for capture in &all {
        let kept = fs::read(captures::root().join(&capture.path)).expect("a kept file");
        assert!(kept == capture.to_file(), "{}: differs from what the generator writes", capture.path);
        assert!(Capture::kept(&capture.path) == *capture, "{}: it is read as it was made", capture.path);
        bytes += kept.len();
    }
    let folder = captures::root().join("crates/testkit/captures");
    assert_eq!(fs::read_dir(folder).expect("a folder").count(), captures::hostile().len(), "no other file");
    assert!(bytes < 400_000, "{bytes} bytes of captures are kept");
}

#[test]
fn slipstreams_expect_nothing_and_each_packet_has_its_verdict() {
    for name in captures::SLIPSTREAMS {
        // Packets outbound, inbound, and others.
        let (outbound, inbound, others): (u64, u64, &[(Verdict, u64)]) = match name {
            "slipstream-ftp-port-first" | "slipstream-sip-body" => (3, 1, &[]),
            "slipstream-ftp-bare-lf" | "slipstream-ftp-bare-cr" | "slipstream-ftp-port-after-220" => (3, 2, &[]),
            "slipstream-ftp-http-server" | "slipstream-ftp-user-request" => (3, 2, &[]),
            "slipstream-ftp-post-after-220" | "slipstream-ftp-user-before-220" | "slipstream-ftp-long-line" => {
                (4, 2, &[])
            }
            "slipstream-ftp-after-auth-tls" => (4, 3, &[]),
            "slipstream-ftp-address-of-another" | "slipstream-ftp-port-below-1024" => (4, 2, &[]),
            "slipstream-ftp-gap" => (6, 4, &[(Verdict::AlgReordered, 1)]),
            "slipstream-sip-picked-up" => (3, 1, &[]),
            "slipstream-sip-udp-fragment" => (2, 0, &[]),
            _ => (4, 1, &[]),
        };
        let both = [(Verdict::Outbound, outbound), (Verdict::Inbound, inbound)];
        let verdicts: Vec<_> = both.iter().chain(others).copied().filter(|(_, count)| *count > 0).collect();
        let (all, off) = (with(&ALL), with(&[]));
        // After the handshake of a connection that begins without gateways.
        let (first, later) = if name == "slipstream-sip-picked-up" { (&off, Some((3, &all))) } else { (&all, None) };
        gets_nothing_under(name, first, later, &verdicts);
    }
}

/// Many messages in one stream, with headers that are hard to delimit: a loop without an end.
#[test]
fn cve_2026_21905_odd_headers_in_a_sip_stream_end() {
    let name = "cve-2026-21905";
    let capture = Capture::hostile(name);
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&ALL)).workers(workers);
        // A message that is not complete may be held until it is.
        for (phone, (sent, received)) in replay(&mut bed, &capture).streams {
            assert!(sent.starts_with(&received), "{phone}: in order");
            assert!(sent.len() - received.len() <= 4_096, "{phone}: no more is held");
        }
        let inbound = 8;
        let outbound = capture.packets.len() as u64 - inbound;
        balance(name, &mut bed, &capture, &[(Verdict::Outbound, outbound), (Verdict::Inbound, inbound)]);
    }
}

#[test]
fn cve_2024_21616_malformed_sip_leaves_no_port_behind() {
    gets_nothing("cve-2024-21616", &with(&ALL), &[(Verdict::Outbound, 96)]);
}

/// A length of 2^32 + 32 is not 32: what follows in the segment is no message.
#[test]
fn cve_2026_23457_a_huge_length_hides_no_second_message() {
    gets_nothing("cve-2026-23457", &with(&ALL), &[(Verdict::Outbound, 6 * 3), (Verdict::Inbound, 6)]);
}

#[test]
fn cve_2026_31427_a_description_without_media_gets_no_address() {
    gets_nothing("cve-2026-31427", &with(&ALL), &[(Verdict::Outbound, 5)]);
}

#[test]
fn cve_2022_2663_a_command_within_a_line_is_ignored() {
    gets_nothing("cve-2022-2663", &with(&ALL), &[(Verdict::Outbound, 3 + 2 + 2 + 5), (Verdict::Inbound, 2 + 3)]);
}

#[test]
fn a_message_after_9_kb_of_a_form_is_part_of_it() {
    gets_nothing("junos-9-kb-bypass", &with(&ALL), &[(Verdict::Outbound, 2 * (2 + 7 + 1)), (Verdict::Inbound, 2)]);
}

/// A control connection without a packet for ten minutes of transfer, with a shorter idle time.
/// Without a transfer it is idle like any other: 300 s, and four minutes to be revived.
#[test]
fn an_idle_ftp_control_connection_outlives_its_transfer_only() {
    let outcome = |gateways: &[&str], verdicts: &[(Verdict, u64)]| {
        let mut settings = with(gateways);
        settings.timeouts.tcp_established = Duration::from_secs(300);
        gets_nothing("idle-ftp-control", &settings, verdicts);
    };
    // The last packet comes too late.
    outcome(&["ftp"], &[(Verdict::Outbound, 6), (Verdict::Inbound, 6), (Verdict::NoMapping, 1)]);
    // The reply after the transfer as well, and the next command is without a session.
    let late = [(Verdict::NoMapping, 2), (Verdict::TcpNoSession, 1)];
    outcome(&[], &[(Verdict::Outbound, 5), (Verdict::Inbound, 5), late[0], late[1]]);
}

/// The worker has room for 1,024 sessions, and for 128 of one subscriber. Unanswered ones make room
/// for others, so every message is read.
#[test]
fn a_full_table_of_sip_sessions_blocks_no_subscriber() {
    let (name, mut bed) = ("sip-table-full", Bed::new(with(&["sip"])));
    let capture = Capture::hostile(name);
    let result = replay(&mut bed, &capture);
    assert!(capture.packets.len() > 1_024);
    assert_eq!(result.changed, (0..capture.packets.len()).collect::<Vec<_>>());
    assert_eq!(bed.counters().control_sessions[1], capture.packets.len() as u64);
    balance(name, &mut bed, &capture, &[(Verdict::Outbound, capture.packets.len() as u64)]);
}
