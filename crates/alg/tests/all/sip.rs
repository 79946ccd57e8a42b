use alg::Transport;
use alg::WantKind;

use crate::host::Host;
use crate::host::Talk;

fn phone() -> Host {
    Host::new("sip", 5060, Transport::Udp)
}

fn sent(host: &mut Host, text: &str) -> String {
    String::from_utf8(host.message(true, text.as_bytes())).unwrap()
}

fn answered(host: &mut Host, text: &str) -> String {
    String::from_utf8(host.message(false, text.as_bytes())).unwrap()
}

fn with_body(head: &str, body: &str) -> String {
    format!("{head}Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

const INVITE: &str = "INVITE sip:bob@203.0.113.9 SIP/2.0\r\n\
Via: SIP/2.0/UDP 10.0.0.1:5060;branch=z9hG4bK74b43;rport\r\n\
Max-Forwards: 70\r\n\
Route: <sip:203.0.113.9;lr>\r\n\
From: Alice <sip:alice@10.0.0.1>;tag=9fxced76sl\r\n\
To: Bob <sip:bob@203.0.113.9>\r\n\
Call-ID: 3848276298220188511@10.0.0.1\r\n\
CSeq: 1 INVITE\r\n\
Contact: <sip:alice@10.0.0.1:5060;transport=udp>\r\n";

const SDP: &str = "v=0\r\n\
o=alice 2890844526 2890844526 IN IP4 10.0.0.1\r\n\
s=-\r\n\
c=IN IP4 10.0.0.1\r\n\
t=0 0\r\n\
m=audio 49172 RTP/AVP 0\r\n\
a=rtpmap:0 PCMU/8000\r\n\
m=video 51372 RTP/AVP 31\r\n\
a=rtcp:51373\r\n";

#[test]
fn an_invite_gets_external_endpoints() {
    let mut host = phone();
    let out = sent(&mut host, &with_body(INVITE, SDP));
    let body = SDP
        .replace("c=IN IP4 10.0.0.1", "c=IN IP4 198.51.100.7")
        .replace("audio 49172", "audio 3636")
        .replace("video 51372", "video 5836")
        .replace("rtcp:51373", "rtcp:5837");
    let head = INVITE
        .replace("UDP 10.0.0.1:5060", "UDP 198.51.100.7:25060")
        .replace("alice@10.0.0.1:5060", "alice@198.51.100.7:25060");
    assert_eq!(out, with_body(&head, &body));
    let wants: Vec<_> = host.wants.iter().map(|want| (want.port, want.kind)).collect();
    assert_eq!(wants, [(49_172, WantKind::Pair), (51_372, WantKind::Pair)]);
}

#[test]
fn blanks_around_the_colon_of_a_via_stay() {
    for (via, wanted) in [
        ("10.0.0.1 : 5060", "198.51.100.7 : 25060"),
        ("10.0.0.1\t:5060", "198.51.100.7\t:25060"),
        ("10.0.0.1:  5060 ", "198.51.100.7:  25060 "),
        ("10.0.0.1 ", "198.51.100.7:25060 "),
    ] {
        let text = |via: &str| format!("OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9\r\n\r\n");
        assert_eq!(sent(&mut phone(), &text(via)), text(wanted));
    }
}

#[test]
fn answers_get_the_phones_own_endpoints_back() {
    let mut host = phone();
    let reply = "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 198.51.100.7:25060;branch=z9hG4bK74b43;rport=25060;received=198.51.100.7\r\n\
Contact: <sip:alice@198.51.100.7:25060>;expires=60, <sip:other@203.0.113.77:5060>\r\nCSeq: 1 REGISTER\r\n\r\n";
    let wanted = reply
        .replace("UDP 198.51.100.7:25060", "UDP 10.0.0.1:5060")
        .replace("alice@198.51.100.7:25060", "alice@10.0.0.1:5060");
    assert_eq!(answered(&mut host, reply), wanted);
    let invite = "INVITE sip:alice@198.51.100.7:25060 SIP/2.0\r\nVia: SIP/2.0/UDP 203.0.113.9\r\n\r\n";
    let wanted = invite.replace("198.51.100.7:25060", "10.0.0.1:5060");
    assert_eq!(answered(&mut host, invite), wanted);
    assert!(host.wants.is_empty());
}

/// A provider may call by the name of a domain, the phone's or its own.
#[test]
fn requests_to_any_host_are_read() {
    for target in [
        "100@pbx.example.com",
        "pbx.example.com:5060",
        "a@[2001:db8::1]:5060",
        "100@203.0.113.77",
        "a@198.51.100.7:25060",
    ] {
        let mut host = phone();
        let head = "Via: SIP/2.0/UDP 203.0.113.9\r\nRecord-Route: <sip:198.51.100.7:25060;lr>\r\nCSeq: 1 INVITE\r\n";
        let invite = format!("INVITE sip:{target} SIP/2.0\r\n{head}\r\n");
        let wanted = invite.replace("198.51.100.7:25060", "10.0.0.1:5060");
        assert_eq!(answered(&mut host, &invite), wanted);
        let out = sent(&mut host, &with_body(&format!("SIP/2.0 200 OK\r\n{head}"), SDP));
        assert!(out.contains("c=IN IP4 198.51.100.7") && out.contains("m=audio 3636"), "{target}: {out}");
    }
}

/// Some phones send from a port of their own, and get answers at the port of their contact.
#[test]
fn a_via_may_name_the_port_of_the_contact() {
    let mut host = Host::new("sip", 50_123, Transport::Udp);
    for via in ["10.0.0.1:5060", "10.0.0.1"] {
        let text = format!(
            "REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9\r\nContact: <sip:a@10.0.0.1:5060>\r\n\
CSeq: 1 REGISTER\r\n\r\n"
        );
        let wanted = text.replace(&format!("UDP {via};"), "UDP 198.51.100.7:25060;");
        assert_eq!(sent(&mut host, &text), wanted.replace("a@10.0.0.1:5060", "a@198.51.100.7:25060"));
    }
    // Another message of the session, without a contact, and the answer to it.
    let text = "OPTIONS sip:x SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1:5060;branch=z9\r\n\r\n";
    assert_eq!(sent(&mut host, text), text.replace("10.0.0.1:5060", "198.51.100.7:25060"));
    let answer = "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 198.51.100.7:25060;branch=z9\r\n\r\n";
    assert_eq!(answered(&mut host, answer), answer.replace("198.51.100.7:25060", "10.0.0.1:5060"));
    // Nothing is known of this one.
    let text = text.replace("5060", "5070");
    assert_eq!(sent(&mut host, &text), text.replace("10.0.0.1", "198.51.100.7"));
    assert_eq!(host.wants.len(), 1);
}

/// The answers come there. Nothing but a REGISTER of the phone itself opens it.
#[test]
fn a_registered_via_lasts_as_long_as_the_registration() {
    let register =
        |vias: &str, rest: &str| format!("REGISTER sip:x SIP/2.0\r\n{vias}Contact: <sip:a@10.0.0.1:5060>{rest}");
    let via = "Via: SIP/2.0/UDP 10.0.0.1:6000;branch=z9\r\n";
    let lifetimes = |text: &str, transport: Transport| {
        let mut host = Host::new("sip", 5060, transport);
        let out = sent(&mut host, text);
        let of_via = host.wants.iter().find(|want| want.port == 6000).map(|want| want.lifetime);
        assert_eq!(out.contains("UDP 198.51.100.7:26000;"), of_via.is_some(), "{out}");
        of_via
    };
    assert_eq!(lifetimes(&register(via, ";expires=90\r\n\r\n"), Transport::Udp), Some(Some(90)));
    assert_eq!(lifetimes(&register(via, "\r\nExpires: 70\r\n\r\n"), Transport::Udp), Some(Some(70)));
    assert_eq!(lifetimes(&register(via, "\r\n\r\n"), Transport::Udp), Some(Some(3600)));
    assert_eq!(lifetimes(&register(via, ";expires=0\r\n\r\n"), Transport::Udp), Some(Some(0)));
    for text in [
        register(&via.repeat(2), "\r\n\r\n"),
        register(&via.replace("6000", "600"), "\r\n\r\n"),
        register(via, "\r\n\r\n").replace("REGISTER", "OPTIONS"),
        register(via, "\r\nCSeq: 1 REGISTER\r\n\r\n").replace("REGISTER sip:x SIP/2.0", "SIP/2.0 200 OK"),
    ] {
        assert_eq!(lifetimes(&text, Transport::Udp), None, "{text}");
    }
    assert_eq!(lifetimes(&register(via, "\r\n\r\n"), Transport::Tcp), None);
}

/// A parameter that is quoted may contain anything: RFC 5626 §4.1 puts a URI in brackets there.
#[test]
fn a_registration_lasts_as_its_contact_says() {
    let instance = "+sip.instance=\"<urn:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6>\"";
    for (contact, seconds) in [
        ("<sip:a@10.0.0.1:6000>;expires=60", 60),
        (&format!("<sip:a@10.0.0.1:6000>;expires=60;{instance}"), 60),
        (&format!("<sip:a@10.0.0.1:6000>;{instance};expires=60;q=0.5"), 60),
        (&format!("\"x>;expires=9\" <sip:a@10.0.0.1:6000;expires=8>; {instance} ;expires = 60"), 60),
        ("<sip:a@10.0.0.1:6000>;x=\"\\\";expires=9;\";expires=0000000060", 60),
        ("<sip:a@10.0.0.1:6000>;x=\"<,>;expires=9\";expires=0", 0),
        ("sip:a@10.0.0.1:6000;expires=60", 60),
        (&format!("sip:a@10.0.0.1:6000;{instance};expires=60"), 60),
        // RFC 3261 §20.19: up to 2³² − 1.
        ("<sip:a@10.0.0.1:6000>;expires=4294967295", u32::MAX),
        ("<sip:a@10.0.0.1:6000>\r\nExpires: 4294967295", u32::MAX),
        // No time: §10.2.1.1.
        ("<sip:a@10.0.0.1:6000>;expires=4294967296", 3600),
        ("<sip:a@10.0.0.1:6000>\r\nExpires: 4294967296", 3600),
        ("<sip:a@10.0.0.1:6000>;expires=x", 3600),
        ("<sip:a@10.0.0.1:6000>;expires;xexpires=9", 3600),
    ] {
        let mut host = phone();
        sent(&mut host, &format!("REGISTER sip:x SIP/2.0\r\nContact: {contact}\r\n\r\n"));
        let wanted: Vec<_> = host.wants.iter().map(|want| (want.port, want.lifetime)).collect();
        assert_eq!(wanted, [(6000, Some(seconds))], "{contact}");
    }
}

/// CANCEL and the ACK of a refusal have the `Via` of their INVITE (RFC 3261 §17.2.3), and no
/// `Contact`.
#[test]
fn messages_of_a_call_have_the_same_via() {
    for (transport, name) in [(Transport::Udp, "UDP"), (Transport::Tcp, "TCP")] {
        for via in ["10.0.0.1", "10.0.0.1:5060"] {
            let mut host = Host::new("sip", 50_123, transport);
            let vias = ["INVITE", "CANCEL", "ACK"].map(|method| {
                let contact = if method == "INVITE" { "Contact: <sip:a@10.0.0.1>\r\n" } else { "" };
                let text = format!(
                    "{method} sip:x SIP/2.0\r\nVia: SIP/2.0/{name} {via};branch=z9\r\n{contact}CSeq: 1 {method}\r\n\
Content-Length: 0\r\n\r\n"
                );
                sent(&mut host, &text).lines().nth(1).unwrap().to_owned()
            });
            let port = if transport == Transport::Udp { ":25060" } else { via.strip_prefix("10.0.0.1").unwrap() };
            let wanted = format!("Via: SIP/2.0/{name} 198.51.100.7{port};branch=z9");
            assert_eq!(vias, [(); 3].map(|()| wanted.clone()), "{name} {via}");
        }
    }
}

/// Only `Contact` needs the port that is refused.
#[test]
fn a_via_names_no_inside_address_if_its_port_is_refused() {
    for via in ["10.0.0.1", "10.0.0.1:5060"] {
        let mut host = Host::new("sip", 50_123, Transport::Udp);
        host.refuses = true;
        let text = format!(
            "REGISTER sip:x SIP/2.0\r\nVia: SIP/2.0/UDP {via};branch=z9\r\nContact: <sip:a@10.0.0.1:5060>\r\n\
CSeq: 1 REGISTER\r\n\r\n"
        );
        assert_eq!(sent(&mut host, &text), text.replace("UDP 10.0.0.1", "UDP 198.51.100.7"));
    }
}

/// Below it are those of hosts that the inside relays for, perhaps behind the same address.
#[test]
fn only_the_topmost_via_is_rewritten() {
    let lower = "SIP/2.0/UDP 198.51.100.7:23475;branch=zB";
    for between in [", ", "\r\nVia: "] {
        let mut host = phone();
        let request = format!(
            "INVITE sip:x SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1:5060;branch=zA{between}{lower}\r\n\
CSeq: 1 INVITE\r\n\r\n"
        );
        let out = sent(&mut host, &request);
        assert_eq!(out, request.replace("10.0.0.1:5060", "198.51.100.7:25060"));
        let answer = out.replace("INVITE sip:x SIP/2.0", "SIP/2.0 200 OK");
        assert_eq!(answered(&mut host, &answer), answer.replace("198.51.100.7:25060", "10.0.0.1:5060"));
    }
}

/// Others behind the same address may call, and find their own `Via` in the answer.
#[test]
fn the_via_of_a_caller_stays_as_it_is() {
    let mut host = phone();
    for via in ["198.51.100.7", "198.51.100.7:25060", "198.51.100.7:5060"] {
        let head = format!("Via: SIP/2.0/UDP {via};branch=zA\r\nCSeq: 1 OPTIONS\r\n\r\n");
        let request = format!("OPTIONS sip:a@203.0.113.77 SIP/2.0\r\n{head}");
        assert_eq!(answered(&mut host, &request), request);
        let answer = format!("SIP/2.0 200 OK\r\n{head}");
        assert_eq!(sent(&mut host, &answer), answer);
    }
}

/// Only SDP can announce what a text names, so a text does not end reading.
#[test]
fn a_text_may_name_the_inside() {
    for (method, kind, is_read) in [
        ("MESSAGE", ": text/plain", true),
        ("MESSAGE", ": Text /\r\n plain", true),
        ("MESSAGE", ": application/sdp", false),
        ("MESSAGE", ": application / sdp", false),
        ("MESSAGE", ": application/\r\n sdp", false),
        ("MESSAGE", ": textual/plain", false),
        ("MESSAGE", ": text/plain\r\nc: application/sdp", false),
        ("MESSAGE", ": application/sdp\r\nc: text/plain", false),
        ("MESSAGE", ": multipart/mixed;boundary=a", false),
        ("MESSAGE", ":", false),
        ("INVITE", ": text/plain", false),
    ] {
        let mut host = phone();
        let message = format!(
            "{method} sip:a@198.51.100.7:25060 SIP/2.0\r\nCSeq: 1 {method}\r\nContent-Type{kind}\r\n\r\n\
c=IN IP4 10.0.0.1\r\n"
        );
        answered(&mut host, &message);
        let out = sent(&mut host, &with_body(INVITE, SDP));
        assert_eq!(out.contains("c=IN IP4 198.51.100.7"), is_read, "{method}{kind}: {out}");
    }
}

#[test]
fn compact_and_folded_headers_are_read() {
    let mut host = phone();
    let text = "REGISTER sip:203.0.113.9 SIP/2.0\r\nv: SIP/2.0/UDP\r\n 10.0.0.1:5060;branch=z9\r\n\
m: \"a, <b>\" <sip:a@10.0.0.1:5061>\r\n ;expires=120,\r\n\tsip:b@10.0.0.1:5062;expires=60\r\nl: 0\r\n\r\n";
    let out = sent(&mut host, text);
    let wanted = text
        .replace("10.0.0.1:5060", "198.51.100.7:25060")
        .replace("10.0.0.1:5061", "198.51.100.7:25061")
        .replace("10.0.0.1:5062", "198.51.100.7:25062");
    assert_eq!(out, wanted);
    let wants: Vec<_> = host.wants.iter().map(|want| (want.port, want.kind, want.lifetime)).collect();
    assert_eq!(wants, [(5061, WantKind::Control, Some(120)), (5062, WantKind::Control, Some(60))]);
}

#[test]
fn a_registration_lives_as_long_as_it_says() {
    for (extra, lifetime) in [("Expires: 1800\r\n", 1800), ("Expires: 0\r\n", 0), ("", 3600)] {
        let mut host = phone();
        sent(&mut host, &format!("REGISTER sip:x SIP/2.0\r\nContact: <sip:a@10.0.0.1>\r\n{extra}\r\n"));
        assert_eq!(host.wants.iter().map(|want| want.lifetime).collect::<Vec<_>>(), [Some(lifetime)]);
        assert_eq!(host.wants[0].port, 5060);
    }
}

/// RFC 5626 §4.1: a phone names itself by a URN, which is in brackets and quotes.
#[test]
fn quoted_parameters_do_not_hide_a_lifetime() {
    const INSTANCE: &str = "+sip.instance=\"<urn:uuid:0a>;expires=7\\\">,\"";
    let uri = "<sip:a@10.0.0.1:5061>";
    for contact in [
        format!("{uri};expires=60;{INSTANCE}"),
        format!("{uri};{INSTANCE} ; expires = 60"),
        format!("\"<x>;expires=7\" {uri};{INSTANCE};reg-id=1;expires=60"),
        format!("sip:a@10.0.0.1:5061;{INSTANCE};expires=60;q=0.5"),
        format!("{uri};expires=60;methods=\"INVITE, <ACK>\", <sip:b@10.0.0.1:5062>;{INSTANCE};expires=90"),
    ] {
        let mut host = phone();
        sent(&mut host, &format!("REGISTER sip:x SIP/2.0\r\nContact: {contact}\r\nExpires: 1800\r\n\r\n"));
        let wanted: Vec<_> = host.wants.iter().map(|want| (want.port, want.lifetime)).collect();
        let both = [(5061, Some(60)), (5062, Some(90))];
        assert_eq!(wanted, both[..1 + usize::from(contact.contains("5062"))], "{contact}");
    }
}

#[test]
fn a_contact_without_a_port_gets_one() {
    let mut host = phone();
    let out = sent(&mut host, "OPTIONS sip:x SIP/2.0\r\nContact: <sip:a@10.0.0.1>\r\n\r\n");
    assert_eq!(out, "OPTIONS sip:x SIP/2.0\r\nContact: <sip:a@198.51.100.7:25060>\r\n\r\n");
}

#[test]
fn media_with_their_own_address_are_judged_one_by_one() {
    let mut host = phone();
    let body = "v=0\r\nc=IN IP4 10.0.0.1\r\nm=audio 5004 RTP/AVP 0\r\nc=IN IP4 203.0.113.5\r\n\
m=video 5006 RTP/AVP 0\r\nc=IN IP4 10.0.0.1\r\nm=image 5010 udptl t38\r\nm=message 2855 TCP/MSRP *\r\nm=audio 0 RTP/AVP 0\r\n";
    let out = sent(&mut host, &with_body("INVITE sip:x SIP/2.0\r\n", body));
    let wanted = body
        .replacen("c=IN IP4 10.0.0.1", "c=IN IP4 198.51.100.7", 2)
        .replace("video 5006", "video 25006")
        .replace("image 5010", "image 25010");
    assert_eq!(out, with_body("INVITE sip:x SIP/2.0\r\n", &wanted));
    let wants: Vec<_> = host.wants.iter().map(|want| (want.port, want.kind)).collect();
    assert_eq!(wants, [(5006, WantKind::Pair), (5010, WantKind::Data)]);
}

#[test]
fn an_rtcp_port_elsewhere_is_its_own_want() {
    let mut host = phone();
    let body = "c=IN IP4 10.0.0.1\r\nm=audio 5004 RTP/AVP 0\r\na=rtcp:6005 IN IP4 10.0.0.1\r\n";
    let out = sent(&mut host, &with_body("INVITE sip:x SIP/2.0\r\n", body));
    assert!(out.contains("m=audio 25004") && out.contains("a=rtcp:26005 IN IP4 198.51.100.7"), "{out}");
    assert_eq!(host.wants.iter().map(|want| want.port).collect::<Vec<_>>(), [5004, 6005]);
}

#[test]
fn too_many_media_leave_the_message_alone() {
    let description = |count: u16, rtcp: &str| {
        let line =
            |i: u16| format!("m=audio {} RTP/AVP 0\r\n{}", 5004 + 2 * i, rtcp.replace("PORT", &(7000 + i).to_string()));
        format!("c=IN IP4 10.0.0.1\r\n{}", (0..count).map(line).collect::<String>())
    };
    let elsewhere = INVITE.replace("alice@10.0.0.1:5060", "alice@10.0.0.1:5070");
    let (with_rtcp, with_address) = ("a=rtcp:PORT\r\n", "c=IN IP4 10.0.0.1\r\na=rtcp:PORT IN IP4 10.0.0.1\r\n");
    for (head, count, rtcp, is_rewritten) in [
        ("SIP/2.0 200 OK\r\n", 9, "", false),
        (INVITE, 8, "", true),
        (INVITE, 9, "", false),
        (INVITE, 100, "", false),
        // A ninth port, in the header or beside four of RTP.
        (&elsewhere, 7, "", true),
        (&elsewhere, 8, "", false),
        (INVITE, 4, with_rtcp, true),
        (INVITE, 5, with_rtcp, false),
        (INVITE, 4, with_address, true),
        (INVITE, 5, with_address, false),
    ] {
        let (mut host, text) = (phone(), with_body(head, &description(count, rtcp)));
        let out = sent(&mut host, &text);
        if is_rewritten {
            assert!(!out.contains("Contact: <sip:alice@10.0.0.1"), "{out}");
            assert!((0..count).all(|i| out.contains(&format!("m=audio {} ", 25_004 + 2 * i))), "{out}");
        } else {
            assert_eq!(out, text, "{count} media");
            assert_eq!(host.wants, [], "{count} media");
        }
    }
}

/// In a call with many changes, those that were taken out keep their lines (RFC 3264 §6).
#[test]
fn media_without_a_port_do_not_count() {
    let mut host = phone();
    let out: String = (0..20)
        .map(|n| format!("m=audio {} RTP/AVP 0\r\na=rtcp:9\r\nc=IN IP4 10.0.0.1\r\n", [0, 5004][n / 19]))
        .collect();
    let text = sent(&mut host, &with_body(INVITE, &format!("c=IN IP4 10.0.0.1\r\n{out}")));
    assert!(text.ends_with("m=audio 25004 RTP/AVP 0\r\na=rtcp:9\r\nc=IN IP4 198.51.100.7\r\n"), "{text}");
    let ports: Vec<_> = host.wants.iter().map(|want| want.port).collect();
    assert_eq!(ports, [5004]);
}

/// RFC 8224 §4: the signature of a caller is longer than other fields.
#[test]
fn a_signed_call_is_read() {
    let signature = |length: usize| format!("{};info=<https://x.example>;alg=ES256", "y".repeat(length));
    for (field, is_read) in
        [("Identity", true), ("identity ", true), ("y", true), ("X-Identity", false), ("Identity-Info", false)]
    {
        for transport in [Transport::Udp, Transport::Tcp] {
            let text = with_body(&INVITE.replacen("\r\n", &format!("\r\n{field}: {}\r\n", signature(900)), 1), SDP);
            let mut talk = Talk::new(Host::new("sip", 5060, transport));
            let out = match transport {
                Transport::Udp => talk.host.message(true, text.as_bytes()),
                Transport::Tcp => talk.client(text.as_bytes()),
            };
            let out = String::from_utf8(out).expect("text");
            assert_eq!(out.contains("c=IN IP4 198.51.100.7"), is_read, "{field}: {out}");
            assert!(out.contains(&signature(900)));
        }
    }
    // Folded, too, and within the length of a message.
    let folded = format!("\r\nIdentity: {}\r\n {}\r\n", signature(600), signature(600));
    assert!(
        sent(&mut phone(), &with_body(&INVITE.replacen("\r\n", &folded, 1), SDP)).contains("c=IN IP4 198.51.100.7")
    );
    let long = format!("\r\nIdentity: {}\r\n", signature(4_000));
    assert!(sent(&mut phone(), &with_body(&INVITE.replacen("\r\n", &long, 1), SDP)).contains("c=IN IP4 10.0.0.1"));
}

#[test]
fn hold_with_no_address_stays() {
    let mut host = phone();
    let text = with_body("SIP/2.0 200 OK\r\n", "c=IN IP4 0.0.0.0\r\nm=audio 5004 RTP/AVP 0\r\n");
    assert_eq!(sent(&mut host, &text), text);
    assert!(host.wants.is_empty());
}

#[test]
fn malformed_messages_stay_as_they_are() {
    for text in [
        "INVITE sip:x SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1:5060\nContact: <sip:10.0.0.1>\r\n\r\n",
        "INVITE sip:x SIP/2.0\r\nno colon 10.0.0.1\r\n\r\n",
        "INVITE sip:x SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.1:5060\r\nContent-Length: 90\r\n\r\nshort",
        "INVITE sip:x HTTP/1.1\r\nVia: SIP/2.0/UDP 10.0.0.1:5060\r\n\r\n",
        "\0\0\0\0",
        "",
    ] {
        assert_eq!(sent(&mut phone(), text), text);
    }
}

#[test]
fn routes_that_a_phone_copies_open_no_port() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut host = Host::new("sip", 5060, transport);
        let (mine, other) = ("<sip:10.0.0.1:5060;lr>", "<sip:10.0.0.1:1900;lr>");
        let answer = format!(
            "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 203.0.113.9:5060;branch=z9hG4bK1\r\nRecord-Route: {other}, {mine}\r\n\
             CSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        );
        let out = sent(&mut host, &answer);
        assert_eq!(host.wants.len(), 0, "{out}");
        assert!(!out.contains("10.0.0.1"), "no inside address leaves: {out}");
        assert!(out.contains("198.51.100.7:1900") && !out.contains("198.51.100.7:5060"), "{out}");
    }
}

#[test]
fn a_media_line_of_two_ports_keeps_its_own_connection() {
    let mut host = phone();
    let body = "v=0\r\no=a 1 1 IN IP4 203.0.113.1\r\ns=-\r\nt=0 0\r\nm=audio 49172 RTP/AVP 0\r\nc=IN IP4 10.0.0.1\r\n\
                m=video 6000/2 RTP/AVP 31\r\nc=IN IP4 10.0.0.1\r\n";
    let out = sent(&mut host, &with_body(INVITE, body));
    assert!(out.contains("m=audio 3636 RTP/AVP 0\r\nc=IN IP4 198.51.100.7\r\nm=video 6000/2"), "{out}");
}

/// What the phone sends for this message of somebody outside, who began, if it repeats it, and what
/// it wants.
fn repeated(host: &mut Host, text: &str) -> (String, usize) {
    host.client_is_inside = false;
    assert_eq!(sent(host, text), text, "nothing of it is the phone's");
    (answered(host, text), host.wants.len())
}

#[test]
fn a_repeated_message_that_names_the_inside_opens_nothing() {
    let contact = "Contact: <sip:a@10.0.0.1:7000>\r\n";
    for head in ["REGISTER sip:x SIP/2.0\r\n", "INVITE sip:x SIP/2.0\r\n", "SIP/2.0 200 OK\r\nCSeq: 1 INVITE\r\n"] {
        let mut host = phone();
        let text = format!("{head}{contact}\r\n");
        // The address of an answer's contact is hidden, and its port opens nothing.
        let hidden = if head.starts_with("SIP") { text.replace("10.0.0.1", "198.51.100.7") } else { text.clone() };
        assert_eq!(repeated(&mut host, &text), (hidden, 0));
    }
    for body in [SDP, "v=0\r\nm=audio 9000 RTP/AVP 0\r\na=rtcp:9001 IN IP4 10.0.0.1\r\nc=IN IP4 10.0.0.1"] {
        let mut host = phone();
        let text = with_body("INVITE sip:x SIP/2.0\r\n", body);
        assert_eq!(repeated(&mut host, &text), (text, 0));
        // Nor does anything else of this session by then.
        assert!(answered(&mut host, &with_body(INVITE, SDP)).contains("c=IN IP4 10.0.0.1"));
        assert!(host.wants.is_empty());
    }
}

/// What anyone can make a provider relay takes neither the phone's own endpoint nor what it has
/// announced before, and new sound only for as long as the message may be answered.
#[test]
fn a_message_that_names_the_inside_opens_nothing_for_a_time() {
    let later = SDP.replace("49172", "49180").replace("51372", "51380").replace("51373", "51381");
    for (method, seconds) in [("MESSAGE", 32), ("INVITE", 212)] {
        let mut host = phone();
        let before = sent(&mut host, &with_body(INVITE, SDP));
        let wants = host.wants.len();
        let named = with_body(&format!("{method} sip:a@198.51.100.7:25060 SIP/2.0\r\nCSeq: 1 {method}\r\n"), SDP);
        assert_eq!(answered(&mut host, &named), named.replace("198.51.100.7:25060", "10.0.0.1:5060"), "it is read");
        assert_eq!(sent(&mut host, &with_body(INVITE, SDP)), before, "announced before");
        for after in [0, 16, seconds - 1] {
            host.time_s = host.time_s.wrapping_add(after);
            let out = sent(&mut host, &with_body(INVITE, &later));
            assert!(out.contains("c=IN IP4 10.0.0.1\r\n") && out.contains("m=audio 49180 "), "{out}");
            assert!(out.contains("Via: SIP/2.0/UDP 198.51.100.7:25060;"), "{out}");
            assert!(out.contains("Contact: <sip:alice@198.51.100.7:25060;"), "{out}");
            host.time_s = host.time_s.wrapping_sub(after);
        }
        assert_eq!(host.wants.len(), wants, "nothing was opened");
        // A shorter time does not take the place of a longer one.
        answered(&mut host, &named.replace(method, "MESSAGE"));
        host.time_s = host.time_s.wrapping_add(seconds - 1);
        assert!(sent(&mut host, &with_body(INVITE, &later)).contains("c=IN IP4 10.0.0.1"), "{method}");
        host.time_s = host.time_s.wrapping_add(1);
        assert!(sent(&mut host, &with_body(INVITE, &later)).contains("c=IN IP4 198.51.100.7"), "{method}");
        assert!(host.wants.len() > wants);
    }
}

/// What the inside announces in a new call, and whether that opens something.
fn opens(host: &mut Host, media: u16) -> bool {
    let sdp = format!("v=0\r\nc=IN IP4 10.0.0.1\r\nm=audio {media} RTP/AVP 0\r\n");
    let before = host.wants.len();
    let out = sent(host, &with_body("INVITE sip:bob@203.0.113.9 SIP/2.0\r\nCSeq: 9 INVITE\r\n", &sdp));
    let is_open = out.contains(&format!("c=IN IP4 198.51.100.7\r\nm=audio {} ", media.wrapping_add(20_000)));
    assert!(is_open || host.wants.len() == before && out.contains(&sdp), "{out}");
    is_open
}

/// A program inside may understand more than the gateway reads, and repeat it. Of what is not read,
/// each port may be among it.
#[test]
fn what_is_not_read_counts_as_named() {
    let long = format!("X: {}\r\n", "y".repeat(600));
    let of = |head: &str, body: &str| with_body(&format!("{head} sip:a@198.51.100.7:25060 SIP/2.0\r\n"), body);
    let base64 = "--a\r\nContent-Type: application/sdp\r\nContent-Transfer-Encoding: base64\r\n\r\ndj0w\r\n--a--\r\n";
    for text in [
        of("INVITED", SDP),
        of("INVITE", SDP).replacen("\r\n", "\r\nno field\r\n", 1),
        of("INVITE", SDP).replacen("\r\n", &format!("\r\n{long}"), 1),
        of("INVITE", SDP).replacen("\r\n", "\n", 1),
        of("INVITE", "dj0w").replacen("\r\n", "\r\ne: gzip\r\n", 1),
        of("INVITE", base64),
        of("INVITED", base64),
    ] {
        let mut host = phone();
        answered(&mut host, &text);
        for after in [0, 211, 1, 3_387] {
            host.time_s = host.time_s.wrapping_add(after);
            assert!(!opens(&mut host, 9_000), "{after} s after {text}");
        }
        host.time_s = host.time_s.wrapping_add(1);
        assert!(opens(&mut host, 9_000), "after an hour: {text}");
    }
    // What is not read and has no internal address, or one where nobody is named, closes nothing.
    for text in [
        of("INVITE", SDP).replacen("\r\n", &format!("\r\n{long}"), 1).replace("10.0.0.1", "10.0.0.11"),
        of("INVITED", "").replace("10.0.0.1", "110.0.0.1"),
        of("INVITE", &base64.replace("base64", "7bit")),
        "\r\n\r\n".to_owned(),
        "\0\0\0\0".to_owned(),
    ] {
        let mut host = phone();
        answered(&mut host, &text);
        assert!(opens(&mut host, 9_000), "{text}");
    }
}

#[test]
fn addresses_that_only_some_programs_read_are_named() {
    for line in ["c=IN  IP4 10.0.0.1", "c=IN IP4 010.000.000.001", "c=IN IP6 ::ffff:10.0.0.1", "c=in ip4\t10.0.0.1/1"] {
        let mut host = phone();
        answered(
            &mut host,
            &with_body("INVITE sip:a SIP/2.0\r\n", &format!("v=0\r\n{line}\r\nm=audio 9000 RTP/AVP\r\n")),
        );
        assert!(!opens(&mut host, 9_000), "{line}");
        host.time_s = host.time_s.wrapping_add(3_599);
        assert!(!opens(&mut host, 9_001) && opens(&mut host, 9_002), "{line}");
    }
}

/// A call, and so what one end knows of the other, lasts longer than any of its messages waits for
/// an answer.
#[test]
fn what_was_named_long_ago_opens_nothing() {
    let mut host = phone();
    let named: Vec<u16> = (0..40).map(|n| 20_000 + 2 * n).collect();
    for port in &named {
        let sdp = format!("v=0\r\nc=IN IP4 10.0.0.1\r\nm=audio {port} RTP/AVP 0\r\na=rtcp:{}\r\n", 40_000 + port / 100);
        answered(&mut host, &with_body("INVITE sip:a SIP/2.0\r\n", &sdp));
        host.time_s = host.time_s.wrapping_add(10);
    }
    answered(&mut host, "OPTIONS sip:a SIP/2.0\r\nContact: <sip:a@10.0.0.1:7000>, <sip:b@10.0.0.1>\r\n\r\n");
    host.time_s = host.time_s.wrapping_add(215);
    for port in named.iter().flat_map(|port| [*port, port + 1]).chain([40_200, 7_000]) {
        assert!(!opens(&mut host, port), "{port}");
    }
    let contact = "OPTIONS sip:b SIP/2.0\r\nContact: <sip:a@10.0.0.1:7000>\r\n\r\n";
    assert_eq!((sent(&mut host, contact).as_str(), host.wants.len()), (contact, 0), "the contact");
    assert!(opens(&mut host, 30_100), "what was not named opens");
}

/// The rest of a datagram that came in fragments. A stranger has begun the session, or a server
/// that the inside has chosen.
#[test]
fn a_part_of_a_message_of_a_stranger_names_the_inside() {
    for is_stranger in [true, false] {
        let mut host = phone();
        host.client_is_inside = !is_stranger;
        let before = host.wants.len();
        host.unread_from_outside(None);
        let text = with_body("INVITE sip:bob@203.0.113.9 SIP/2.0\r\n", SDP);
        host.message(!is_stranger, text.as_bytes());
        assert_eq!(host.wants.len() == before, is_stranger);
    }
}

#[test]
fn answers_register_nothing() {
    let mut host = phone();
    host.client_is_inside = false;
    let answer = "SIP/2.0 200 OK\r\nCSeq: 1 REGISTER\r\nContact: <sip:a@10.0.0.1:7000>;expires=3600\r\n\r\n";
    answered(&mut host, answer);
    assert!(host.wants.iter().all(|want| want.lifetime.is_none()), "{:?}", host.wants);
}

/// A registrar that has opened the session itself.
#[test]
fn contacts_that_answers_list_open_nothing() {
    for (cseq, code) in [("1 REGISTER", "200"), ("1\tREGISTER", "200"), ("1 REGISTER ", "200"), ("1 INVITE", "485")] {
        let mut host = phone();
        answered(&mut host, &format!("REGISTER sip:198.51.100.7:25060 SIP/2.0\r\nCSeq: {cseq}\r\n\r\n"));
        sent(&mut host, &format!("SIP/2.0 {code} x\r\nCSeq: {cseq}\r\nContact: <sip:a@10.0.0.1:7000>\r\n\r\n"));
        assert!(host.wants.is_empty(), "{code}, CSeq {cseq:?}: {:?}", host.wants);
    }
}

/// It has sent something to the client first, by whatever the client has put into its `Via`.
#[test]
fn contacts_in_answers_of_a_forwarded_server_open_nothing() {
    for method in ["OPTIONS", "INVITE"] {
        let mut host = phone();
        host.serves = true;
        answered(&mut host, &format!("REGISTER sip:198.51.100.7:25060 SIP/2.0\r\nCSeq: 1 {method}\r\n\r\n"));
        sent(&mut host, &format!("SIP/2.0 200 OK\r\nCSeq: 1 {method}\r\nContact: <sip:a@10.0.0.1:7000>\r\n\r\n"));
        assert!(host.wants.is_empty(), "{method}: {:?}", host.wants);
    }
}

#[test]
fn answers_to_what_was_not_read_open_nothing() {
    let answer = with_body("SIP/2.0 200 OK\r\nCSeq: 1 INVITE\r\nContact: <sip:a@10.0.0.1:7000>\r\n", SDP);
    let mut host = phone();
    assert!(sent(&mut host, &answer).contains("c=IN IP4 10.0.0.1"));
    assert!(host.wants.is_empty());
    answered(&mut host, "INVITE sip:alice@198.51.100.7:25060 SIP/2.0\r\nCSeq: 1 INVITE\r\n\r\n");
    assert!(sent(&mut host, &answer).contains("c=IN IP4 198.51.100.7"));
    assert_eq!(host.wants.len(), 3);
}

#[test]
fn what_the_inside_relays_opens_nothing() {
    let mut host = phone();
    let relayed = INVITE.replace("Max-Forwards", "Via: SIP/2.0/UDP 192.0.2.9:5060;branch=z9\r\nMax-Forwards");
    let out = sent(&mut host, &with_body(&relayed, SDP));
    assert!(out.contains("Via: SIP/2.0/UDP 198.51.100.7:25060") && out.contains("c=IN IP4 10.0.0.1"), "{out}");
    assert!(host.wants.is_empty());
    let relayed = "REGISTER sip:x SIP/2.0\r\nv: SIP/2.0/UDP 10.0.0.1:5060, SIP/2.0/UDP 192.0.2.9\r\n\
Contact: <sip:a@10.0.0.1:7000>\r\n\r\n";
    sent(&mut host, relayed);
    assert!(host.wants.is_empty());
}

#[test]
fn a_registrar_may_list_what_was_registered_without_a_gateway() {
    let mut host = phone();
    let list = "SIP/2.0 200 OK\r\nCSeq: 1 REGISTER\r\nContact: <sip:a@10.0.0.1:5060>;expires=60\r\n\r\n";
    assert_eq!(answered(&mut host, list), list);
    sent(&mut host, &with_body(INVITE, SDP));
    assert_eq!(host.wants.len(), 2);
}
