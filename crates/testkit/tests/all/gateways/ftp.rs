//! FTP: transfers, and what is announced for them.

use nat::Duration;
use nat::Protocol;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::CLIENT;
use super::PORT;
use super::SERVER;
use super::Talk;
use super::commas;
use super::server_behind_a_forward;
use super::syn_reaches;
use super::tcp_of;
use super::with;

#[test]
fn an_active_transfer_reaches_the_client() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp"])).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        // 100.64.0.10:4660
        let sent = talk.send_out(&mut bed, "PORT 100,64,0,10,18,52\r\n");
        let expected = commas(&sent);
        assert_eq!(expected.ip(), talk.external.ip());
        assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        // Another host gets nothing, the server one connection.
        assert_eq!(syn_reaches(&mut bed, at(E2, 20), expected), None);
        assert_eq!(syn_reaches(&mut bed, at(E1, 20), expected), Some(at(I1, 4660)));
        assert_eq!(syn_reaches(&mut bed, at(E1, 21_000), expected), None);
        assert_eq!(talk.send_out(&mut bed, "RETR film\r\n"), "RETR film\r\n");
        let counters = bed.counters();
        assert_eq!((counters.expectations_created, counters.expectations_refused), (1, 0));
        bed.run_out();
    }
}

#[test]
fn a_passive_server_behind_a_forward_is_reached() {
    let (mut bed, server, external) = server_behind_a_forward();
    let client = at(E1, 50_000);
    let mut talk = Talk::enter(&mut bed, server, client, external).log_in(&mut bed, true);
    talk.send_in(&mut bed, "PASV\r\n");
    let reply = talk.send_out(&mut bed, "227 Entering Passive Mode (100,64,0,10,18,52).\r\n");
    let expected = commas(&reply);
    assert_eq!(syn_reaches(&mut bed, at(E2, 50_001), expected), None);
    assert_eq!(syn_reaches(&mut bed, at(E1, 50_001), expected), Some(at(I1, 4660)));
    assert_eq!(talk.send_out(&mut bed, "150 go\r\n"), "150 go\r\n");
    bed.run_out();
}

#[test]
fn repeated_and_reordered_commands_give_one_output() {
    covers!("3022-8");
    let mut bed = Bed::new(with(&["ftp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,18,52\r\n";
    let first = talk.inner.0;
    let sent = talk.send_out(&mut bed, text);
    let segment = |from: usize, to: usize| {
        build::tcp(CLIENT, SERVER, Flags::ACK)
            .sequence(first + from as u32)
            .acknowledgment(talk.inner.1)
            .payload(&text.as_bytes()[from..to])
            .build()
    };
    for (from, to) in [(0, text.len()), (0, 6), (8, 12), (20, text.len())] {
        bed.inside(&segment(from, to));
        let (_, _, payload) = tcp_of(&bed.only_outside());
        let part = String::from_utf8(payload).expect("text");
        assert!(sent.contains(&part) && !part.is_empty(), "{part:?} is part of {sent:?}");
    }
    // Ahead of what is missing.
    let later = build::tcp(CLIENT, SERVER, Flags::ACK).sequence(talk.inner.0 + 5).acknowledgment(talk.inner.1);
    bed.inside(&later.payload(b"later\r\n").build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::AlgReordered), 1);
    assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
}

#[test]
fn an_unused_expectation_ends_after_30_s() {
    let mut bed = Bed::new(with(&["ftp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let expected = commas(&talk.send_out(&mut bed, "PORT 100,64,0,10,18,52\r\n"));
    bed.advance_secs(31);
    assert_eq!(syn_reaches(&mut bed, at(E1, 20), expected), None);
    assert!(bed.mapping_of(Protocol::Tcp, at(I1, 4660)).is_none());
}

#[test]
fn a_control_session_survives_its_transfer() {
    let mut settings = with(&["ftp"]);
    settings.timeouts.tcp_established = Duration::from_secs(60);
    let mut bed = Bed::new(settings);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    talk.send_out(&mut bed, "RETR film\r\n");
    talk.send_in(&mut bed, "150 go\r\n");
    bed.advance_secs(3_600);
    assert_eq!(talk.send_in(&mut bed, "226 done\r\n"), "226 done\r\n");
}

/// Ten hours of an active transfer: the control session lives as long as the data connection.
#[test]
fn a_control_session_lives_as_long_as_its_data_connection() {
    for data_lives in [true, false] {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let expected = commas(&talk.send_out(&mut bed, PORT));
        let (server, inside) = (at(E1, 20), at(I1, 4660));
        bed.outside(&build::tcp(server, expected, Flags::SYN).sequence(7_000).build());
        assert_eq!(destination(&bed.only_inside()), inside);
        let answer = build::tcp(inside, server, Flags::SYN.union(Flags::ACK)).sequence(3_000).acknowledgment(7_001);
        bed.inside(&answer.build());
        bed.only_outside();
        talk.send_out(&mut bed, "RETR film\r\n");
        talk.send_in(&mut bed, "150 go\r\n");
        for hour in 0..10 {
            if data_lives {
                let data = build::tcp(server, expected, Flags::ACK).sequence(7_001 + hour).acknowledgment(3_001);
                bed.outside(&data.payload(b"x").build());
                bed.only_inside();
            }
            bed.advance_secs(3_600);
        }
        let done = build::tcp(SERVER, talk.external, Flags::ACK).sequence(talk.outer.0).acknowledgment(talk.outer.1);
        bed.outside(&done.payload(b"226 done\r\n").build());
        assert_eq!(bed.take_inside().len(), usize::from(data_lives));
    }
}

/// `client_port` names no address, so the peer sends to that of the control session.
#[test]
fn a_port_without_an_address_is_on_the_address_of_its_session() {
    for workers in [1, 2, 8] {
        let mut settings = with(&["rtsp"]);
        settings.pools[0].pooling = nat::settings::Pooling::Arbitrary;
        let mut bed = Bed::new(settings).workers(workers);
        let mut addresses = std::collections::HashSet::new();
        for number in 0..24 {
            let media = 5_000 + 2 * number;
            let mut talk = Talk::open(&mut bed, at(I1, 40_000 + number), at(E1, 554));
            addresses.insert(*talk.external.ip());
            let pair = format!("{media}-{}", media + 1);
            let setup = format!("SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port={pair}\r\n\r\n");
            let sent = talk.send_out(&mut bed, &setup);
            let port = sent.split("client_port=").nth(1).and_then(|rest| rest.split('-').next()).expect("a port");
            let port: u16 = port.parse().expect("a number");
            for plus in 0..2 {
                let (external, inside) = (at(*talk.external.ip(), port + plus), at(I1, media + plus));
                assert!(bed.udp_reaches(at(E1, 9_000), external, inside), "{sent}");
            }
        }
        assert!(addresses.len() > 1, "sessions have several addresses");
        bed.run_out();
    }
}

/// What must be on the session's address may come from a new block of it.
#[test]
fn a_port_on_the_address_of_its_session_may_need_a_new_block() {
    for workers in [1, 2, 8] {
        let mut settings = with(&["rtsp"]);
        settings.pools[0].allocation = Allocation::Blocks(Blocks {
            size: BlockSize::of_ports(64).expect("a block size"),
            per_subscriber_max: 2,
            idle: Duration::from_secs(60),
        });
        let mut bed = Bed::new(settings).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 554));
        for port in 0..64 {
            bed.open_udp(at(I1, 7_000 + port), at(E2, 9_000));
        }
        let setup = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
        let sent = talk.send_out(&mut bed, setup);
        let pair = sent.split("client_port=").nth(1).and_then(|rest| rest.trim_end().split_once('-')).expect("a pair");
        for (port, inside) in [(pair.0, 5_000), (pair.1, 5_001)] {
            let external = at(*talk.external.ip(), port.parse().expect("a port"));
            assert!(bed.udp_reaches(at(E1, 9_000), external, at(I1, inside)), "{sent}");
        }
        assert_eq!(bed.counters().expectations_refused, 0);
        bed.run_out();
    }
}
