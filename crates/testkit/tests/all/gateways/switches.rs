//! What enables, disables and overrides gateways.

use alg::AlgId;
use nat::Settings;
use nat::settings::Class;
use testkit::*;
use wire::build;

use super::CLIENT;
use super::INVITE;
use super::PORT;
use super::SERVER;
use super::Talk;
use super::server_behind_a_forward;
use super::udp_text;
use super::with;

/// Whether each gateway does its work, in the order of their numbers, on connections from `port`.
fn at_work(bed: &mut Bed, port: u16) -> [bool; alg::ALGS.len()] {
    let mut talk = Talk::open(bed, at(I1, port), SERVER).log_in(bed, false);
    let ftp = talk.send_out(bed, PORT) != PORT;
    bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build());
    let sip = udp_text(&bed.only_outside()) != INVITE;
    let setup = "SETUP rtsp://198.51.100.1/a RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    let rtsp = Talk::open(bed, at(I1, port), at(E1, 554)).send_out(bed, setup) != setup;
    bed.inside(&build::udp(at(I1, port), at(E1, 69)).payload(b"\0\x01boot\0octet\0").build());
    let external = source(&bed.only_outside());
    let tftp = bed.udp_reaches(at(E1, 3_000), external, at(I1, port));
    let pptp = crate::pptp::opens_a_call(bed, at(I1, port));
    [ftp, sip, rtsp, tftp, pptp]
}

/// RFC 4787 REQ-10a: each switch is for one gateway, at any time, whatever the others are.
#[test]
fn each_gateway_has_a_switch_of_its_own() {
    covers!("4787-REQ-10a");
    let names: Vec<&str> = alg::ALGS.iter().map(|gateway| gateway.name()).collect();
    assert_eq!(names, ["ftp", "sip", "rtsp", "tftp", "pptp"]);
    let mut bed = Bed::new(with(&names));
    assert_eq!(at_work(&mut bed, 40_000), [true; alg::ALGS.len()]);
    for (number, name) in names.iter().enumerate() {
        for only_it in [true, false] {
            let enabled: Vec<&str> = names.iter().copied().filter(|other| (other == name) == only_it).collect();
            bed.advance_secs(1_000);
            bed.reload(with(&enabled));
            let wanted = core::array::from_fn(|other| (other == number) == only_it);
            assert_eq!(
                at_work(&mut bed, 41_000 + 2 * number as u16 + u16::from(only_it)),
                wanted,
                "enabled: {enabled:?}"
            );
        }
    }
    bed.run_out();
}

/// Each command of FTP, too.
#[test]
fn each_command_of_ftp_has_a_switch_of_its_own() {
    covers!("4787-REQ-10a");
    let eprt = "EPRT |1|100.64.0.10|4661|\r\n";
    for disabled in 0..4 {
        let mut settings = with(&["ftp"]);
        settings.gateways[0].disabled = 1 << disabled;
        let mut bed = Bed::new(settings.clone());
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let active = [PORT, eprt].map(|text| talk.send_out(&mut bed, text) != text);
        settings.forwards = server_behind_a_forward().0.settings().forwards.clone();
        let mut bed = Bed::new(settings);
        let (server, external) = (at(I1, 21), at(POOL[0], 21));
        let mut talk = Talk::enter(&mut bed, server, at(E1, 50_000), external).log_in(&mut bed, true);
        let passive = [
            ("PASV\r\n", "227 Entering Passive Mode (100,64,0,10,18,52).\r\n"),
            ("EPSV\r\n", "229 Entering Extended Passive Mode (|||4662|)\r\n"),
        ]
        .map(|(command, reply)| {
            talk.send_in(&mut bed, command);
            talk.send_out(&mut bed, reply) != reply
        });
        let rewritten = [active, passive].concat();
        let wanted: Vec<bool> = (0..4).map(|command| command != disabled).collect();
        assert_eq!(rewritten, wanted, "PORT, EPRT, PASV, EPSV without the one at {disabled}");
    }
}

/// RFC 4787 REQ-10 and RFC 5382 REQ-6: byte for byte the same.
#[test]
fn off_means_byte_for_byte_the_same() {
    covers!("4787-REQ-10", "5382-REQ-6");
    let mut bed = Bed::new(with(&[]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,18,52\r\n";
    assert_eq!(talk.send_out(&mut bed, text), text);
    let phone = at(I1, 5060);
    bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_outside()), INVITE);
    assert_eq!(bed.counters().control_sessions, [0; alg::ALGS.len()]);
}

#[test]
fn a_pool_that_is_not_served_is_left_alone() {
    let mut settings = with(&["ftp"]);
    settings.gateways[0].pools = vec!["other".to_owned()];
    let mut bed = Bed::new(settings);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    assert_eq!(talk.send_out(&mut bed, PORT), PORT);
}

#[test]
fn a_class_overrides_which_gateways_read() {
    let ftp = AlgId::named("ftp").expect("a gateway");
    for (serves_everyone, own, is_read) in [
        (true, None, true),
        (false, None, false),
        (true, Some(vec![]), false),
        (false, Some(vec![ftp]), true),
        (true, Some(vec![ftp]), true),
    ] {
        let mut settings = with(&["ftp"]);
        settings.gateways[0].serves_everyone = serves_everyone;
        settings.classes.push(Class {
            name: "business".into(),
            subscribers: vec![nat::types::Prefix::host(I1)],
            realms: Vec::new(),
            limits: settings.subscriber,
            gateways: own,
        });
        let mut bed = Bed::new(settings);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        assert_eq!(talk.send_out(&mut bed, PORT) != PORT, is_read);
        // Others are not of the class.
        let text = "PORT 100,64,0,11,18,52\r\n";
        let mut talk = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
        assert_eq!(talk.send_out(&mut bed, text) != text, serves_everyone);
        bed.run_out();
    }
}

/// The numbers of a connection stay shifted when its gateway no longer serves it.
#[test]
fn a_reload_leaves_the_numbers_of_a_changed_stream_whole() {
    let off = |settings: &mut Settings| settings.gateways.clear();
    let elsewhere = |settings: &mut Settings| settings.gateways[0].ports = vec![2_121];
    let not_in_class = |settings: &mut Settings| {
        settings.classes.push(Class {
            name: "plain".into(),
            subscribers: vec![nat::types::Prefix::host(I1)],
            realms: Vec::new(),
            limits: settings.subscriber,
            gateways: Some(vec![]),
        });
    };
    let changes: [&dyn Fn(&mut Settings); 3] = [&off, &elsewhere, &not_in_class];
    for change in changes {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        for _ in 0..3 {
            assert_ne!(talk.send_out(&mut bed, "PORT 100,64,0,10,4,1\r\n").len(), 22);
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        }
        let shift = talk.numbers(true).1.wrapping_sub(talk.numbers(false).0);
        assert_ne!(shift, 0);
        let mut next = with(&["ftp"]);
        change(&mut next);
        bed.reload(next);
        let expected = bed.counters().expectations_created;
        for _ in 0..3 {
            assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
            // The sweep looks at the record.
            bed.advance_secs(5);
        }
        assert_eq!(talk.send_out(&mut bed, PORT), PORT, "it is not read any more");
        assert_eq!(bed.counters().expectations_created, expected);
        // Nor when the gateway is back.
        bed.reload(with(&["ftp"]));
        assert_eq!(talk.send_out(&mut bed, PORT), PORT);
        assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        bed.run_out();
    }
}
