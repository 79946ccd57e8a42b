//! What gateways do not read, and limits of control sessions.

use core::net::Ipv4Addr;

use nat::Duration;
use nat::Protocol;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::CLIENT;
use super::INVITE;
use super::PORT;
use super::SERVER;
use super::Talk;
use super::close;
use super::commas;
use super::server_behind_a_forward;
use super::syn_reaches;
use super::udp_text;
use super::with;

#[test]
fn limits_of_a_session_and_a_subscriber_hold() {
    let mut settings = with(&["ftp"]);
    settings.gateways[0].expectations_per_subscriber = 12;
    let mut bed = Bed::new(settings);
    let mut changed = Vec::new();
    for port in [40_000, 40_001, 40_002] {
        let before = changed.len();
        let mut talk = Talk::open(&mut bed, at(I1, port), SERVER).log_in(&mut bed, false);
        for i in 0..10_u32 {
            let inside = 5_000 + (u32::from(port) - 40_000) * 100 + i;
            let text = format!("PORT 100,64,0,10,{},{}\r\n", inside >> 8, inside & 255);
            if talk.send_out(&mut bed, &text) != text {
                changed.push(inside as u16);
            }
            talk.send_in(&mut bed, "200 ok\r\n");
        }
        assert_eq!(changed.len() - before, [10, 4, 0][usize::from(port - 40_000)], "session {port}");
    }
    // A further PORT is about the next transfer: the first two of the first session gave way.
    let mut waiting: Vec<u16> = bed.grants().iter().map(|grant| grant.internal.port).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, changed[2..]);
    bed.run_out();
}

#[test]
fn a_session_picked_up_in_the_middle_is_not_read() {
    let mut off = with(&[]);
    let on = with(&["ftp"]);
    off.timeouts = on.timeouts;
    let mut bed = Bed::new(off);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    bed.reload(on);
    let text = "PORT 100,64,0,10,18,52\r\n";
    assert_eq!(talk.send_out(&mut bed, text), text);
    assert_eq!(bed.counters().expectations_created, 0);
    // A new session is read, and survives a reload that changes nothing for it.
    let mut talk = Talk::open(&mut bed, at(I1, 40_001), SERVER).log_in(&mut bed, false);
    let mut other = with(&["ftp", "sip"]);
    other.timeouts.udp = Duration::from_secs(400);
    bed.reload(other);
    assert_ne!(talk.send_out(&mut bed, text), text);
    bed.run_out();
}

#[test]
fn closed_sessions_make_room_for_new_ones() {
    let (mut bed, server, external) = server_behind_a_forward();
    for client in 0..300 {
        let talk = Talk::enter(&mut bed, server, at(E1, 50_000 + client), external).log_in(&mut bed, true);
        close(&mut bed, &talk);
    }
    let mut talk = Talk::enter(&mut bed, server, at(E1, 60_000), external).log_in(&mut bed, true);
    talk.send_in(&mut bed, "PASV\r\n");
    let reply = "227 Entering Passive Mode (100,64,0,10,18,52).\r\n";
    assert_ne!(talk.send_out(&mut bed, reply), reply);
    assert_eq!(bed.counters().control_sessions[0], 301);
    bed.run_out();
}

/// Hosts that send SYNs to many FTP servers fill the table, and take nothing from others: neither
/// a new session, nor the place of one that is established.
#[test]
fn unanswered_sessions_block_no_subscriber() {
    let mut bed = Bed::new(with(&["ftp", "sip"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    assert_ne!(talk.send_out(&mut bed, PORT), PORT);
    for host in 20..29 {
        (0..150).for_each(|i| {
            bed.open_tcp(at(Ipv4Addr::new(100, 64, 0, host), 10_000 + i), SERVER);
        });
    }
    let phone = at(I2, 5060);
    bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.replace("64.0.10", "64.0.11").as_bytes()).build());
    assert!(!udp_text(&bed.only_outside()).contains("100.64.0.11"), "SIP is read");
    let mut other = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,11,18,52\r\n";
    assert_ne!(other.send_out(&mut bed, text), text);
    assert_ne!(talk.send_out(&mut bed, PORT), PORT, "it has kept its place");
    bed.run_out();
}

/// Few of the worker's tables are one subscriber's, and its expectations are limited. Meanwhile its
/// neighbours lose no packet, and later they are served.
#[test]
fn a_greedy_subscriber_leaves_its_neighbours_unharmed() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp", "sip"])).workers(workers);
        let mut control = Talk::open(&mut bed, at(I2, 39_000), SERVER).log_in(&mut bed, false);
        let flows = [I2, I3].map(|host| (at(host, 7_000), bed.open_udp(at(host, 7_000), at(E1, 53))));
        let (mut refused, mut unread) = (0, 0);
        for session in 0..400_u16 {
            let mut talk = Talk::open(&mut bed, at(I1, 10_000 + session), SERVER).log_in(&mut bed, false);
            for i in 0..250_u32 {
                let port = 2_000 + (u32::from(session) * 250 + i) % 60_000;
                let text = format!("PORT 100,64,0,10,{},{}\r\n", port >> 8, port & 255);
                if talk.send_out(&mut bed, &text) == text {
                    refused += 1;
                }
                talk.send_in(&mut bed, "200 ok\r\n");
            }
            // An incomplete line waits in each.
            let part = build::tcp(talk.inside, SERVER, Flags::ACK).sequence(talk.inner.0).acknowledgment(talk.inner.1);
            bed.inside(&part.payload(b"RETR ").build());
            unread += u32::from(!bed.take_outside().is_empty());
            assert_eq!(control.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
            for (inside, external) in flows {
                assert_eq!(bed.open_udp(inside, at(E1, 53)), external);
                assert!(bed.udp_reaches(at(E1, 53), external, inside));
            }
        }
        // In the first seven sessions the oldest gives way. Then the subscriber has its 64.
        assert_eq!(refused, 100_000 - 7 * 250 - 8, "of 100,000 announced");
        assert_eq!(bed.grants().len(), 64);
        assert!(unread >= 400 - 128, "at most an eighth of the table: {unread} pass unread");
        let mut neighbour = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
        for i in 0..8 {
            let sent = neighbour.send_out(&mut bed, &format!("PORT 100,64,0,11,18,{i}\r\n"));
            assert_eq!(syn_reaches(&mut bed, at(E1, 20), commas(&sent)), Some(at(I2, 0x1200 + i)));
        }
        let phone = at(I2, 5060);
        bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.replace("64.0.10", "64.0.11").as_bytes()).build());
        assert!(!udp_text(&bed.only_outside()).contains("100.64.0.11"));
        bed.run_out();
    }
}

/// What is in use does not count: a busy line may have more calls than expectations at a time.
#[test]
fn calls_in_progress_do_not_count_against_the_limits() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
    for call in 0..100_u16 {
        let port = 5_004 + 4 * call;
        let invite = INVITE.replace("5004", &port.to_string()).replace("5005", &(port + 1).to_string());
        bed.inside(&build::udp(phone, proxy).payload(invite.as_bytes()).build());
        let text = udp_text(&bed.only_outside());
        assert!(!text.contains("IP4 100.64"), "call {call}: {text}");
        // Every second phone speaks first, the other hears first.
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let external = at(POOL[0], media.parse().expect("a port"));
        let inside = at(I1, port);
        if call % 2 == 0 {
            assert_eq!(bed.open_udp(inside, at(E1, 20_000)).port(), external.port());
        } else {
            let address = bed.mapping_of(Protocol::Udp, inside).expect("a mapping").external.address;
            assert!(bed.udp_reaches(at(E1, 20_000), at(address, external.port()), inside));
        }
    }
    assert_eq!(bed.counters().expectations_refused, 0);
    bed.run_out();
}

/// The start of a fragment is not the start of a message, and the whole is not read either.
#[test]
fn fragments_of_a_message_are_not_read() {
    let mut bed = Bed::new(with(&["ftp", "sip", "rtsp", "tftp"]));
    let datagram = build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build();
    for fragment in build::fragment(&datagram, 200) {
        bed.inside(&fragment);
    }
    let whole = build::reassemble(&bed.take_outside()).expect("all fragments left");
    assert_eq!(udp_text(&whole), INVITE);
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}
