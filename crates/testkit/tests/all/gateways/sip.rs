//! SIP: messages, calls and registrations.

use core::net::SocketAddrV4;

use nat::Duration;
use nat::Protocol;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use super::CLIENT;
use super::INVITE;
use super::Talk;
use super::syn_reaches;
use super::tcp_of;
use super::udp_text;
use super::with;

#[test]
fn a_call_gets_media_both_ways() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["sip"])).workers(workers);
        let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
        bed.inside(&build::udp(phone, proxy).payload(INVITE.as_bytes()).build());
        let sent = bed.only_outside();
        let signalling = source(&sent);
        let text = udp_text(&sent);
        assert!(
            text.contains(&format!("UDP {signalling};")) && text.contains(&format!("alice@{signalling}>")),
            "{text}"
        );
        assert!(text.contains(&format!("c=IN IP4 {}\r\n", signalling.ip())), "{text}");
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let port: u16 = media.parse().expect("a port");
        assert_eq!(port % 2, 0, "RTP has an even port");
        let rtp = at(*signalling.ip(), port);
        assert!(bed.udp_reaches(at(E1, 20_000), rtp, at(I1, 5004)), "RTP before the phone sends any");
        assert!(bed.udp_reaches(at(E1, 20_001), at(*signalling.ip(), port + 1), at(I1, 5005)), "RTCP");
        assert!(!bed.udp_reaches(at(E2, 20_001), rtp, at(I1, 5004)), "only the peer");
        // The phone's own media leave from the announced ports.
        assert_eq!(bed.open_udp(at(I1, 5004), at(E1, 20_000)), rtp);
        // The answer names the phone's own endpoint again.
        let reply =
            format!("SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP {signalling};branch=z9hG4bK1\r\nCSeq: 1 INVITE\r\n\r\n");
        bed.outside(&build::udp(proxy, signalling).payload(reply.as_bytes()).build());
        assert_eq!(udp_text(&bed.only_inside()), reply.replace(&signalling.to_string(), "100.64.0.10:5060"));
        bed.run_out();
    }
}

/// A sender with Nagle's algorithm (RFC 896) keeps the body back until the header is acknowledged.
/// Its receiver has nothing of either, and acknowledges what it thinks is a repetition. What is
/// acknowledged is kept until the receiver has it.
#[test]
fn a_body_that_waits_for_its_header_is_read() {
    // As long as its `Content-Length` says.
    let whole = INVITE.strip_suffix('\n').expect("a line");
    let (header, body) = whole.split_at(whole.find("v=0").expect("a body"));
    for (from_inside, workers) in [(true, 1), (false, 1), (true, 8), (false, 8)] {
        let mut bed = Bed::new(with(&["sip"])).workers(workers);
        let talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 5060));
        let Talk { inside, remote, external, inner, outer } = talk;
        let first = if from_inside { outer.1 } else { inner.1 };
        let next = if from_inside { inner.0 } else { outer.0 };
        let pass = |bed: &mut Bed, is_out: bool, segment: &[u8]| {
            if is_out {
                bed.inside(segment);
                return bed.take_outside();
            }
            bed.outside(segment);
            bed.take_inside()
        };
        // What arrives of this part: its sequence number and its bytes.
        let say = |bed: &mut Bed, after: usize, text: &str| {
            let (from, to, ack) = if from_inside { (inside, remote, inner.1) } else { (remote, external, outer.1) };
            let segment = build::tcp(from, to, Flags::ACK).sequence(next + after as u32).acknowledgment(ack);
            let arrived = pass(bed, from_inside, &segment.payload(text.as_bytes()).build());
            let sequence = tcp_of(&arrived[0]).0;
            (sequence.wrapping_sub(first), arrived.iter().flat_map(|packet| tcp_of(packet).2).collect::<Vec<_>>())
        };
        // The sender sees an acknowledgement of so many bytes.
        let acknowledge = |bed: &mut Bed, count: usize| {
            let (from, to, sequence) =
                if from_inside { (remote, external, outer.0) } else { (inside, remote, inner.0) };
            let segment = build::tcp(from, to, Flags::ACK).sequence(sequence).acknowledgment(first + count as u32);
            let arrived = pass(bed, !from_inside, &segment.build());
            (tcp_of(&arrived[0]).1 - next) as usize
        };
        assert_eq!(say(&mut bed, 0, header), (0, vec![]), "held");
        assert_eq!(acknowledge(&mut bed, 0), 0, "nobody has asked");
        bed.advance(Duration::from_millis(200));
        assert_eq!(say(&mut bed, 0, header), (u32::MAX, vec![]), "as if it were a repetition");
        assert_eq!(acknowledge(&mut bed, 0), header.len());
        let (at, sent) = say(&mut bed, header.len(), body);
        let text = String::from_utf8_lossy(&sent);
        assert_eq!(at, 0);
        assert_eq!(text.contains(&format!("c=IN IP4 {}", external.ip())), from_inside, "{text}");
        assert!(text.contains("a=rtcp:"), "it is whole: {text}");
        // It was lost, and then its first part arrives.
        assert_eq!(say(&mut bed, header.len(), body), (0, sent.clone()));
        assert_eq!(acknowledge(&mut bed, 10), header.len());
        assert_eq!(say(&mut bed, header.len(), body), (10, sent[10..].to_vec()));
        assert_eq!(acknowledge(&mut bed, sent.len()), whole.len());
        bed.run_out();
    }
}

/// After a timeout a sender repeats its first unacknowledged segment only. What it has sent behind
/// that was kept.
#[test]
fn a_message_whose_first_segment_was_lost_is_read() {
    let whole = INVITE.strip_suffix('\n').expect("a line");
    for (cut, from_inside) in [(100, true), (200, true), (whole.find("v=0").expect("a body"), true), (100, false)] {
        let mut bed = Bed::new(with(&["sip"]));
        let mut talk = Talk::open(&mut bed, at(I1, 40_000), at(E1, 5060));
        let external = talk.external.ip().to_string();
        let text = if from_inside { whole.to_owned() } else { whole.replace(&I1.to_string(), "192.0.2.177") };
        let (first, second) = text.split_at(cut);
        for milliseconds in [0, 10] {
            bed.advance(Duration::from_millis(milliseconds));
            let (from, to, numbers) = match from_inside {
                true => (talk.inside, talk.remote, talk.inner),
                false => (talk.remote, talk.external, talk.outer),
            };
            let segment = build::tcp(from, to, Flags::ACK).payload(second.as_bytes());
            let segment = segment.sequence(numbers.0 + cut as u32).acknowledgment(numbers.1).build();
            match from_inside {
                true => bed.inside(&segment),
                false => bed.outside(&segment),
            };
            assert_eq!((bed.take_outside(), bed.take_inside()), (vec![], vec![]), "ahead of a gap");
        }
        bed.advance(Duration::from_millis(200));
        let passed = match from_inside {
            true => talk.send_out(&mut bed, first),
            false => talk.send_in(&mut bed, first),
        };
        assert!(passed.contains("m=audio ") && passed.contains("a=rtcp:"), "{passed}");
        assert_eq!(passed.contains(&format!("c=IN IP4 {external}")), from_inside, "{passed}");
        bed.run_out();
    }
}

/// Anyone can make a provider relay such a message. Whatever repeats it opens nothing by it, and
/// the phone keeps its registration and its call.
#[test]
fn a_message_that_names_the_inside_leaves_what_was_announced() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
    let say = |bed: &mut Bed, text: &str| {
        bed.inside(&build::udp(phone, proxy).payload(text.as_bytes()).build());
        let sent = bed.only_outside();
        (source(&sent), udp_text(&sent))
    };
    let register = "REGISTER sip:x SIP/2.0\r\nContact: <sip:a@100.64.0.10:5060>;expires=60\r\nCSeq: 1 REGISTER\r\n\r\n";
    let (external, registered) = say(&mut bed, register);
    let (_, announced) = say(&mut bed, INVITE);
    let grants = bed.grants().len();
    let named = INVITE.replace("INVITE", "MESSAGE").replace("Contact", "X");
    bed.outside(&build::udp(proxy, external).payload(named.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_inside()), named);
    bed.advance_secs(25);
    assert_eq!(say(&mut bed, register).1, registered);
    assert_eq!(say(&mut bed, INVITE).1, announced);
    let other = INVITE.replace("audio 5004", "audio 5006").replace("rtcp:5005", "rtcp:5007");
    assert!(say(&mut bed, &other).1.contains("c=IN IP4 100.64.0.10\r\nm=audio 5006 "), "it may be a repetition");
    assert_eq!(bed.grants().len(), grants);
    // Renewed, so that both are there after more than their first time.
    bed.advance_secs(20);
    assert_eq!(bed.grants().len(), grants);
    assert!(say(&mut bed, &other).1.contains(&format!("c=IN IP4 {}\r\n", external.ip())));
    let media = announced.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    let media = at(*external.ip(), media.parse().expect("a port"));
    assert!(bed.udp_reaches(at(E1, 20_000), media, at(I1, 5004)));
    bed.run_out();
}

/// A phone sends no sound before the callee answers, which may take minutes.
#[test]
fn a_call_may_ring_for_minutes() {
    for rings in [false, true] {
        let mut bed = Bed::new(with(&["sip"]));
        let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
        bed.inside(&build::udp(phone, proxy).payload(INVITE.as_bytes()).build());
        let sent = bed.only_outside();
        let (signalling, text) = (source(&sent), udp_text(&sent));
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let rtp = at(*signalling.ip(), media.parse().expect("a port"));
        let says = |bed: &mut Bed, code: &str| {
            let reply =
                format!("SIP/2.0 {code}\r\nVia: SIP/2.0/UDP {signalling};branch=z9hG4bK1\r\nCSeq: 1 INVITE\r\n\r\n");
            bed.outside(&build::udp(proxy, signalling).payload(reply.as_bytes()).build());
            bed.only_inside();
        };
        bed.advance_secs(10);
        says(&mut bed, if rings { "180 Ringing" } else { "401 Unauthorized" });
        bed.advance_secs(175);
        says(&mut bed, "200 OK");
        let from = bed.open_udp(at(I1, 5004), at(E1, 20_000));
        assert_eq!(from == rtp, rings, "from the announced port only if it was ringing");
        let has_rtcp = bed.udp_reaches(at(E1, 20_001), at(*rtp.ip(), rtp.port() + 1), at(I1, 5005));
        assert_eq!(has_rtcp, rings);
        if rings {
            assert!(bed.udp_reaches(at(E1, 20_000), rtp, at(I1, 5004)));
        }
        bed.run_out();
    }
}

/// A call with sound at this port, and what its peer gets.
fn invite_with(bed: &mut Bed, call: u16, media: u16) -> String {
    let text = INVITE
        .replace("CSeq: 1", &format!("Call-ID: {call}\r\nCSeq: 1"))
        .replace("5004", &media.to_string())
        .replace("5005", &(media + 1).to_string());
    bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(text.as_bytes()).build());
    udp_text(&bed.only_outside())
}

/// An answer of its peer.
fn answer_of(bed: &mut Bed, call: u16, code: &str, method: &str) {
    let to = bed.mapping_of(Protocol::Udp, at(I1, 5060)).expect("it has called").external;
    let to = at(to.address, to.port);
    let text = format!(
        "SIP/2.0 {code}\r\nVia: SIP/2.0/UDP {to};branch=z9hG4bK1\r\nCall-ID: {call}\r\nCSeq: 1 {method}\r\n\r\n"
    );
    bed.outside(&build::udp(at(E1, 5060), to).payload(text.as_bytes()).build());
    bed.only_inside();
}

/// A phone may try for as long as it likes: what a failed call has announced is free after 30 s.
#[test]
fn failed_calls_keep_no_phone_from_being_read() {
    for given_up in [false, true] {
        let mut bed = Bed::new(with(&["sip"]));
        for call in 0..20 {
            let sent = invite_with(&mut bed, call, 6_000 + 2 * call);
            assert!(sent.contains("c=IN IP4 203."), "call {call}: {sent}");
            answer_of(&mut bed, call, "100 Trying", "INVITE");
            answer_of(&mut bed, call, "180 Ringing", "INVITE");
            if given_up {
                let text = format!("CANCEL sip:b@{E1} SIP/2.0\r\nCall-ID: {call}\r\nCSeq: 1 CANCEL\r\n\r\n");
                bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(text.as_bytes()).build());
                bed.only_outside();
            } else {
                answer_of(&mut bed, call, "486 Busy Here", "INVITE");
            }
            // Too late.
            answer_of(&mut bed, call, "180 Ringing", "INVITE");
            bed.advance_secs(13);
        }
        bed.run_out();
    }
}

/// Only the call that rings waits for longer, and only until it has its answer: it may take less
/// than it was offered.
#[test]
fn other_answers_keep_no_port() {
    for (call, code, method, keeps) in [
        (1, "180 Ringing", "INVITE", true),
        (1, "100 Trying", "REGISTER", false),
        (1, "100 Trying", "OPTIONS", false),
        (2, "180 Ringing", "INVITE", false),
        (1, "200 OK", "INVITE", false),
    ] {
        let mut bed = Bed::new(with(&["sip"]));
        let sent = invite_with(&mut bed, 1, 6_000);
        let media = sent.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let address = bed.mapping_of(Protocol::Udp, at(I1, 5060)).expect("it has called").external.address;
        let media = at(address, media.parse().expect("a port"));
        if code == "200 OK" {
            answer_of(&mut bed, call, "180 Ringing", method);
        }
        answer_of(&mut bed, call, code, method);
        bed.advance_secs(35);
        let reaches = bed.udp_reaches(at(E1, 20_000), media, at(I1, 6_000));
        assert_eq!(reaches, keeps, "{code} to {method} of call {call}");
        bed.run_out();
    }
}

#[test]
fn a_registration_keeps_its_port() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, registrar) = (at(I1, 5060), at(E1, 5060));
    let register = |expires: u32| {
        format!(
            "REGISTER sip:198.51.100.1 SIP/2.0\r\nVia: SIP/2.0/UDP 100.64.0.10:5060;branch=z9\r\n\
Contact: <sip:a@100.64.0.10:5060>\r\nExpires: {expires}\r\nCSeq: 1 REGISTER\r\n\r\n"
        )
    };
    bed.inside(&build::udp(phone, registrar).payload(register(1_800).as_bytes()).build());
    let external = source(&bed.only_outside());
    bed.advance_secs(1_700);
    assert!(bed.udp_reaches(at(E1, 5070), external, phone), "the registrar calls");
    assert!(!bed.udp_reaches(at(E2, 5060), external, phone));
    bed.inside(&build::udp(phone, registrar).payload(register(0).as_bytes()).build());
    bed.only_outside();
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(at(E1, 5071), external, phone), "it has ended the registration");
    bed.run_out();
}

/// RFC 3261 §10.2.2: all contacts of the client.
#[test]
fn a_star_ends_all_registrations_of_the_session() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, registrar) = (at(I1, 5060), at(E1, 5060));
    let send = |bed: &mut Bed, contact: &str, expires: u32| {
        let text = format!(
            "REGISTER sip:198.51.100.1 SIP/2.0\r\nVia: SIP/2.0/UDP 100.64.0.10:5060;branch=z9\r\n\
Contact: {contact}\r\nExpires: {expires}\r\nCSeq: 1 REGISTER\r\n\r\n"
        );
        bed.inside(&build::udp(phone, registrar).payload(text.as_bytes()).build());
        bed.only_outside()
    };
    let external = source(&send(&mut bed, "<sip:a@100.64.0.10:5060>", 1_800));
    send(&mut bed, "<sip:b@100.64.0.10:6060>", 1_800);
    let second = bed.mapping_of(Protocol::Udp, at(I1, 6060)).expect("it is registered").external;
    let second = at(second.address, second.port);
    // Not what RFC 3261 allows: it ends nothing.
    send(&mut bed, "*", 60);
    assert!(bed.udp_reaches(at(E1, 5070), external, phone));
    assert!(bed.udp_reaches(at(E1, 5070), second, at(I1, 6060)));
    send(&mut bed, "*", 0);
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(at(E1, 5071), external, phone));
    assert!(!bed.udp_reaches(at(E1, 5071), second, at(I1, 6060)));
    bed.run_out();
}

/// To end what is not registered here ends nothing else: the registrar gets the contact as it is.
#[test]
fn ending_an_unknown_registration_ends_no_other() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, registrar) = (at(I1, 5060), at(E1, 5060));
    let send = |bed: &mut Bed, port: u16, expires: u32| {
        let text = format!(
            "REGISTER sip:198.51.100.1 SIP/2.0\r\nVia: SIP/2.0/UDP 100.64.0.10:5060;branch=z9\r\n\
Contact: <sip:a@100.64.0.10:{port}>;expires={expires}\r\nCSeq: 1 REGISTER\r\n\r\n"
        );
        bed.inside(&build::udp(phone, registrar).payload(text.as_bytes()).build());
        let sent = bed.only_outside();
        let text = String::from_utf8_lossy(&sent[28..]).into_owned();
        let contact = text.split("sip:a@").nth(1).and_then(|rest| rest.split('>').next()).expect("a contact");
        (source(&sent), contact.parse::<SocketAddrV4>().expect("an endpoint"))
    };
    let (external, registered) = send(&mut bed, 5060, 600);
    assert_eq!(registered, external);
    assert_eq!(send(&mut bed, 5071, 0).1, at(I1, 5071), "not that of another registration");
    assert!(bed.udp_reaches(at(E1, 5070), external, phone));
    assert_eq!(send(&mut bed, 5060, 0).1, external);
    bed.advance_secs(1);
    assert!(!bed.udp_reaches(at(E1, 5071), external, phone));
    // It says so once more.
    assert_eq!(send(&mut bed, 5060, 0).1, external);
    bed.run_out();
}

/// A `Contact` over TCP admits one connection, unless it is registered.
#[test]
fn a_contact_over_tcp_admits_one_connection() {
    for is_registration in [false, true] {
        let mut bed = Bed::new(with(&["sip"]));
        let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 5060));
        let method = if is_registration { "REGISTER" } else { "INVITE" };
        let send = |bed: &mut Bed, talk: &mut Talk, method: &str| {
            let text = format!(
                "{method} sip:198.51.100.1 SIP/2.0\r\nVia: SIP/2.0/TCP 100.64.0.10:40000;branch=z9\r\n\
Contact: <sip:a@100.64.0.10:5080>\r\nCSeq: 1 {method}\r\nContent-Length: 0\r\n\r\n"
            );
            let sent = talk.send_out(bed, &text);
            let contact = sent.split("sip:a@").nth(1).and_then(|rest| rest.split('>').next()).expect("a contact");
            contact.parse::<SocketAddrV4>().expect("an endpoint")
        };
        let expected = send(&mut bed, &mut talk, method);
        if is_registration {
            // A call does not take the registration's place.
            assert_eq!(send(&mut bed, &mut talk, "INVITE"), expected);
            assert_eq!(bed.grants().len(), 1);
        }
        let admitted = (0..4).filter(|i| syn_reaches(&mut bed, at(E1, 6_000 + i), expected).is_some()).count();
        assert_eq!(admitted, if is_registration { 4 } else { 1 });
        bed.run_out();
    }
}

/// baresip sends RTCP before it announces RTP.
#[test]
fn a_call_whose_rtcp_is_already_mapped_gets_media() {
    for parity in 0..12 {
        let mut bed = Bed::new(with(&["sip"]));
        // Other mappings, so that the port of RTCP is odd in some runs and even in others.
        for other in 0..parity {
            bed.open_udp(at(I1, 30_000 + other), at(E1, 9));
        }
        let rtcp = bed.open_udp(at(I1, 5005), at(E1, 20_001));
        bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build());
        let text = udp_text(&bed.only_outside());
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let rtp = at(*rtcp.ip(), media.parse().expect("a port"));
        assert!(bed.udp_reaches(at(E1, 20_000), rtp, at(I1, 5004)), "{text}");
        if rtcp.port() % 2 == 1 {
            assert_eq!(rtp.port() + 1, rtcp.port(), "a pair again");
        }
        bed.run_out();
    }
}

/// The peer may have got the first message.
#[test]
fn a_repeated_announcement_names_the_same_port() {
    let mut singles = 0;
    for parity in 0..12 {
        let mut bed = Bed::new(with(&["sip"]));
        for other in 0..parity {
            bed.open_udp(at(I1, 30_000 + other), at(E1, 9));
        }
        // On an even port, RTCP leaves RTP no pair.
        singles += u16::from(bed.open_udp(at(I1, 5005), at(E1, 20_001)).port().is_multiple_of(2));
        let invite = build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build();
        let [first, again] = [(); 2].map(|()| {
            bed.inside(&invite);
            udp_text(&bed.only_outside())
        });
        assert_eq!(first, again);
        bed.run_out();
    }
    assert!(singles > 0, "both were seen");
}

/// Its receiver drops it, and no port is kept for what it says.
#[test]
fn a_damaged_datagram_is_not_read() {
    let mut bed = Bed::new(with(&["sip"]));
    let mut invite = build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build();
    let last = invite.len() - 3;
    invite[last] ^= 1;
    bed.inside(&invite);
    assert_eq!(bed.only_outside()[28..], invite[28..]);
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}
