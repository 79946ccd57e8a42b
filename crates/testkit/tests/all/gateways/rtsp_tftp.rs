//! RTSP and TFTP.

use testkit::*;
use wire::build;

use super::CLIENT;
use super::Talk;
use super::with;

/// RTCP has another port already: what RTSP announces is what is kept.
#[test]
fn half_a_pair_is_announced_as_one_port() {
    let (mut pairs, mut singles) = (0, 0);
    for other in 0..12 {
        let mut bed = Bed::new(with(&["rtsp"]));
        for other in 0..other {
            bed.open_udp(at(I1, 30_000 + other), at(E1, 9));
        }
        let rtcp = bed.open_udp(at(I1, 5_001), at(E1, 20_001));
        let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 554));
        let setup = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
        let sent = talk.send_out(&mut bed, setup);
        let ports = sent.split("client_port=").nth(1).expect("ports").trim_end();
        let (first, second) = ports.split_once('-').map_or((ports, None), |(first, second)| (first, Some(second)));
        let port: u16 = first.parse().expect("a port");
        assert!(bed.udp_reaches(at(E1, 20_000), at(*talk.external.ip(), port), at(I1, 5_000)), "{sent}");
        match second {
            Some(second) => {
                assert_eq!((port + 1).to_string(), second);
                assert_eq!(port + 1, rtcp.port());
                pairs += 1;
            }
            None => {
                assert_eq!(rtcp.port() % 2, 0, "no pair can be made of it");
                singles += 1;
            }
        }
        bed.run_out();
    }
    assert!(pairs > 0 && singles > 0, "both were seen");
}

#[test]
fn tftp_answers_come_from_another_port() {
    let mut bed = Bed::new(with(&["tftp"]));
    let client = at(I1, 40_000);
    bed.inside(&build::udp(client, at(E1, 69)).payload(b"\0\x01boot\0octet\0").build());
    let external = source(&bed.only_outside());
    assert!(!bed.udp_reaches(at(E2, 3_000), external, client));
    assert!(bed.udp_reaches(at(E1, 3_000), external, client));
    assert!(bed.udp_reaches(at(E1, 3_000), external, client), "the same flow goes on");
    assert!(!bed.udp_reaches(at(E1, 3_001), external, client), "one transfer");
    bed.run_out();
}

#[test]
fn rtsp_media_reach_the_client() {
    let mut bed = Bed::new(with(&["rtsp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 554));
    let setup =
        "SETUP rtsp://198.51.100.1/a RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    let sent = talk.send_out(&mut bed, setup);
    let range = sent.split("client_port=").nth(1).and_then(|rest| rest.split("\r\n").next()).expect("ports");
    let (first, second) = range.split_once('-').expect("two ports");
    let (first, second): (u16, u16) = (first.parse().expect("a port"), second.parse().expect("a port"));
    assert_eq!((first % 2, second), (0, first + 1));
    let reply = format!(
        "RTSP/1.0 200 OK\r\nCSeq: 1\r\nTransport: RTP/AVP;unicast;client_port={range};server_port=6000-6001\r\n\r\n"
    );
    assert_eq!(talk.send_in(&mut bed, &reply), reply.replace(range, "5000-5001"));
    assert!(bed.udp_reaches(at(E1, 6_000), at(*talk.external.ip(), first), at(I1, 5_000)));
    assert!(bed.udp_reaches(at(E1, 6_001), at(*talk.external.ip(), second), at(I1, 5_001)));
    bed.run_out();
}

/// What comes from outside need not keep a mapping (RFC 4787 §4.3 REQ-6), but a film comes only
/// from there, and so does music on hold.
#[test]
fn what_only_receives_keeps_its_announced_port() {
    for (workers, from_inside) in [(1, true), (1, false), (8, true)] {
        let mut bed = Bed::new(with(&["rtsp"])).workers(workers);
        let (_, inside, external) =
            crate::control_sessions::rtsp(&mut bed, CLIENT, 5_000, false).expect("a gateway reads it");
        let server = at(E1, 6_000);
        if from_inside {
            bed.inside(&build::udp(inside, server).build());
            assert_eq!(source(&bed.only_outside()), external);
        }
        for second in 0..900 {
            assert!(bed.udp_reaches(server, external, inside), "after {second} s");
            bed.advance_secs(1);
        }
        // For nobody else, and only while it comes.
        assert!(!bed.udp_reaches(at(E2, 6_000), external, inside));
        bed.advance_secs(400);
        assert!(!bed.udp_reaches(server, external, inside));
        bed.run_out();
    }
}

/// RFC 7826 §18.54, with RTCP on the same port, and with a pair.
#[test]
fn rtsp_2_media_reach_the_client() {
    for (own, ports) in [(r#"":5001""#, &[5_001][..]), (r#"":5000"/":5001""#, &[5_000, 5_001])] {
        let mut bed = Bed::new(with(&["rtsp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 554));
        let transport = |addresses: &str| format!("Transport: RTP/AVP;unicast;dest_addr={addresses}\r\n\r\n");
        let sent = talk.send_out(&mut bed, &format!("SETUP rtsp://198.51.100.1/a RTSP/2.0\r\n{}", transport(own)));
        let hidden = sent.split("dest_addr=").nth(1).and_then(|rest| rest.split("\r\n").next()).expect("addresses");
        assert_ne!(hidden, own);
        let externals: Vec<u16> =
            hidden.split('/').map(|part| part.trim_matches(['"', ':']).parse().expect("a port")).collect();
        assert_eq!(externals.len(), ports.len());
        let reply = format!("RTSP/2.0 200 OK\r\n{}", transport(hidden));
        assert_eq!(talk.send_in(&mut bed, &reply), reply.replace(hidden, own));
        for (external, inside) in externals.into_iter().zip(ports) {
            let external = at(*talk.external.ip(), external);
            assert!(!bed.udp_reaches(at(E2, 6_000), external, at(I1, *inside)), "another host");
            assert!(bed.udp_reaches(at(E1, 6_000), external, at(I1, *inside)), "{own}");
        }
        bed.run_out();
    }
}
