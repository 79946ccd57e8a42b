//! Calls to registered phones: from any port of the registrar, at any time, and for as long as the
//! registrar says.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;

use nat::settings::Filtering;
use testkit::*;
use wire::build;

use super::gateways::INVITE;
use super::gateways::Talk;
use super::gateways::syn_reaches;
use super::gateways::udp_text;
use super::gateways::with;

const PHONE: SocketAddrV4 = at(I1, 5062);
const REGISTRAR: SocketAddrV4 = at(E1, 5060);

fn register_text(transport: &str, via: SocketAddrV4, contact: SocketAddrV4, expires: u32) -> String {
    format!(
        "REGISTER sip:{E1} SIP/2.0\r\nVia: SIP/2.0/{transport} {via};branch=z9\r\nContact: <sip:a@{contact}>\r\n\
Expires: {expires}\r\nCall-ID: secret\r\nCSeq: 7 REGISTER\r\nContent-Length: 0\r\n\r\n"
    )
}

/// The external endpoint of the phone.
fn register(bed: &mut Bed, expires: u32) -> SocketAddrV4 {
    let text = register_text("UDP", PHONE, PHONE, expires);
    bed.inside(&build::udp(PHONE, REGISTRAR).payload(text.as_bytes()).build());
    let external = source(&bed.only_outside());
    bed.is_registered(PHONE, external);
    external
}

fn invite(to: SocketAddrV4) -> String {
    format!("INVITE sip:a@{to} SIP/2.0\r\nVia: SIP/2.0/UDP {E1}:6000\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n")
}

/// The phone answers with its own address.
const OK: &str = "SIP/2.0 200 OK\r\nContact: <sip:a@100.64.0.10:5062>\r\nCSeq: 1 INVITE\r\n\
Content-Type: application/sdp\r\nContent-Length: 55\r\n\r\n\
v=0\r\nc=IN IP4 100.64.0.10\r\nm=audio 5004 RTP/AVP 0    \r\n";

/// What arrives of an INVITE from this port of the registrar.
fn call(bed: &mut Bed, from: SocketAddrV4, external: SocketAddrV4) -> Option<String> {
    bed.outside(&build::udp(from, external).payload(invite(external).as_bytes()).build());
    bed.take_inside().first().map(|packet| udp_text(packet))
}

/// The call is set up, and has sound.
fn answer(bed: &mut Bed, caller: SocketAddrV4, external: SocketAddrV4) {
    say(bed, OK, caller, external);
}

/// The phone sends this to its peer; then sound reaches it.
fn say(bed: &mut Bed, text: &str, caller: SocketAddrV4, external: SocketAddrV4) {
    bed.inside(&build::udp(PHONE, caller).payload(text.as_bytes()).build());
    let sent = bed.only_outside();
    let text = udp_text(&sent);
    assert_eq!((source(&sent), destination(&sent)), (external, caller));
    assert!(text.contains(&format!("<sip:a@{external}>")) && !text.contains("100.64.0.10"), "{text}");
    let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    let media = at(*external.ip(), media.parse().expect("a port"));
    assert!(bed.udp_reaches(at(E1, 20_000), media, at(I1, 5004)), "{text}");
    assert!(!bed.udp_reaches(at(E2, 20_000), media, at(I1, 5004)), "the peer only");
}

#[test]
fn a_registrar_calls_from_any_port() {
    for workers in [1, 2, 8] {
        // The session of the registration is there, or has timed out.
        for (after_s, port) in [(0, 6_000), (600, 6_000), (600, 5_060)] {
            let filtering = Filtering::AddressAndPortDependent;
            let mut bed = Bed::new(with(&["sip"]).filtering(filtering)).workers(workers);
            let external = register(&mut bed, 3_600);
            bed.advance_secs(after_s);
            let caller = at(E1, port);
            assert_eq!(call(&mut bed, caller, external), Some(invite(PHONE)), "after {after_s} s from {port}");
            answer(&mut bed, caller, external);
            // Within the call, from both sides, and beyond the registration.
            for _ in 0..20 {
                bed.advance_secs(200);
                answer(&mut bed, caller, external);
                assert_eq!(call(&mut bed, caller, external), Some(invite(PHONE)));
            }
            assert_eq!(call(&mut bed, at(E1, 6_001), external), None, "its registration is over");
            bed.run_out();
        }
    }
}

/// From the registered port to another port of the registrar.
#[test]
fn a_phone_calls_another_port_of_its_registrar() {
    let mut bed = Bed::new(with(&["sip"]));
    let external = register(&mut bed, 3_600);
    let asks = OK.replace("SIP/2.0 200 OK", "INVITE sip:b@198.51.100.1:5080 SIP/2.0");
    say(&mut bed, &asks, at(E1, 5_080), external);
    // Another host is no peer of this registration.
    bed.inside(&build::udp(PHONE, at(E2, 5_080)).payload(asks.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_outside()), asks);
    bed.run_out();
}

/// A phone that sends from one port, and listens at another that its `Via` and `Contact` name.
struct TwoPorts {
    sends: SocketAddrV4,
    listens: SocketAddrV4,
    /// Where it listens.
    external: SocketAddrV4,
}

impl TwoPorts {
    fn register(bed: &mut Bed, listens: u16) -> TwoPorts {
        let (sends, listens) = (at(I1, 50_123), at(I1, listens));
        let mut phone = TwoPorts { sends, listens, external: listens };
        let sent = phone.say(bed, REGISTRAR, &register_text("UDP", listens, listens, 3_600));
        let external = sent.split("sip:a@").nth(1).and_then(|rest| rest.split('>').next()).expect("a contact");
        phone.external = external.parse().expect("an endpoint");
        assert!(sent.contains(&format!("UDP {external};")), "{sent}");
        bed.is_registered(listens, phone.external);
        phone
    }

    fn say(&self, bed: &mut Bed, to: SocketAddrV4, text: &str) -> String {
        bed.inside(&build::udp(self.sends, to).payload(text.as_bytes()).build());
        udp_text(&bed.only_outside())
    }

    fn hear(&self, bed: &mut Bed, from: SocketAddrV4, text: &str) -> String {
        bed.outside(&build::udp(from, self.external).payload(text.as_bytes()).build());
        let arrived = bed.only_inside();
        assert_eq!(destination(&arrived), self.listens);
        udp_text(&arrived)
    }

    /// Sound goes both ways by what this message of the phone announces.
    fn has_sound(&self, bed: &mut Bed, text: &str) {
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let own = at(*self.external.ip(), media.parse().expect("a port"));
        assert!(!text.contains("c=IN IP4 100.64.0.10"), "{text}");
        assert!(bed.udp_reaches(at(E1, 20_000), own, at(I1, 5004)), "{text}");
        assert!(!bed.udp_reaches(at(E2, 20_000), own, at(I1, 5004)), "the peer only");
        assert_eq!(bed.open_udp(at(I1, 5004), at(E1, 20_000)), own);
    }

    fn answers(&self, bed: &mut Bed, caller: SocketAddrV4) -> String {
        let answer = self.say(bed, caller, &OK.replace("100.64.0.10:5062", &self.listens.to_string()));
        assert!(answer.contains(&format!("Contact: <sip:a@{}>", self.external)), "{answer}");
        answer
    }
}

/// What comes there is another session, which knows what the first one has asked.
#[test]
fn a_phone_that_sends_from_another_port_is_called() {
    for workers in [1, 8] {
        // One of `ports`, and another.
        for listens in [5060, 5_062] {
            // The session that it sends from is there, or has timed out.
            for after_s in [0, 600] {
                let filtering = Filtering::AddressAndPortDependent;
                let mut bed = Bed::new(with(&["sip"]).filtering(filtering)).workers(workers);
                let phone = TwoPorts::register(&mut bed, listens);
                phone.hear(&mut bed, REGISTRAR, "SIP/2.0 401 Unauthorized\r\nCSeq: 6 REGISTER\r\n\r\n");
                bed.advance_secs(after_s);
                let arrived = phone.hear(&mut bed, REGISTRAR, &invite(phone.external));
                assert_eq!(arrived, invite(phone.listens));
                bed.advance_secs(20);
                let answer = phone.answers(&mut bed, REGISTRAR);
                phone.has_sound(&mut bed, &answer);
                bed.run_out();
            }
        }
    }
}

/// It sends nothing for longer than any of its sessions lasts, and hears nothing either. Its `Via`
/// names the port where it listens, its `Contact` the same, another, or the one it sends from.
#[test]
fn a_silent_phone_of_two_ports_is_called() {
    let sends = at(I1, 50_123);
    for (listens, contact) in [(5060, 5060), (5_062, 5_062), (5060, 50_123), (5_062, 5_064)] {
        for is_answered in [true, false] {
            let mut bed = Bed::new(with(&["sip"]).filtering(Filtering::AddressAndPortDependent));
            let (listens, contact) = (at(I1, listens), at(I1, contact));
            let text = register_text("UDP", listens, contact, 3_600);
            bed.inside(&build::udp(sends, REGISTRAR).payload(text.as_bytes()).build());
            let sent = udp_text(&bed.only_outside());
            let named = |before: &str, after: &str| -> SocketAddrV4 {
                let rest = sent.split(before).nth(1).and_then(|rest| rest.split(after).next()).expect("an endpoint");
                rest.parse().expect("an endpoint with a port")
            };
            let (via, external) = (named("UDP ", ";"), named("sip:a@", ">"));
            let what = format!("Via {listens}, Contact {contact}: {sent}");
            bed.is_registered(listens, via);
            bed.is_registered(contact, external);
            if is_answered {
                let answer = format!(
                    "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP {via};branch=z9hG4bK1\r\nCall-ID: secret\r\nCSeq: 7 REGISTER\r\n\
Contact: <sip:a@{external}>;expires=3600\r\nContent-Length: 0\r\n\r\n"
                );
                bed.outside(&build::udp(REGISTRAR, via).payload(answer.as_bytes()).build());
                let arrived = bed.take_inside();
                assert_eq!(arrived.first().map(|it| destination(it)), Some(listens), "the answer. {what}");
                let text = udp_text(&arrived[0]);
                assert!(text.contains(&format!("Contact: <sip:a@{contact}>")), "{text}. {what}");
            }
            bed.advance_secs(3_500);
            bed.outside(&build::udp(REGISTRAR, external).payload(invite(external).as_bytes()).build());
            let arrived = bed.take_inside();
            assert_eq!(arrived.first().map(|it| destination(it)), Some(contact), "the call. {what}");
            assert_eq!(udp_text(&arrived[0]), invite(contact), "{what}");
            let answer = OK.replace("100.64.0.10:5062", &contact.to_string());
            bed.inside(&build::udp(sends, REGISTRAR).payload(answer.as_bytes()).build());
            let answer = udp_text(&bed.only_outside());
            assert!(!answer.contains("100.64.0.10"), "it has sound: {answer}");
            bed.run_out();
        }
    }
}

/// The answers come to the port where it listens.
#[test]
fn a_call_of_a_phone_of_two_ports_may_ring_for_minutes() {
    let mut bed = Bed::new(with(&["sip"]).filtering(Filtering::AddressAndPortDependent));
    let phone = TwoPorts::register(&mut bed, 5060);
    let sent = phone.say(&mut bed, REGISTRAR, &INVITE.replace("\r\nContact", "\r\nCall-ID: c\r\nContact"));
    for _ in 0..3 {
        bed.advance_secs(25);
        phone.hear(&mut bed, REGISTRAR, "SIP/2.0 180 Ringing\r\nCall-ID: c\r\nCSeq: 1 INVITE\r\n\r\n");
    }
    bed.advance_secs(60);
    phone.has_sound(&mut bed, &sent);
    bed.run_out();
}

/// By the answer that comes where it listens.
#[test]
fn a_registrar_says_how_long_a_phone_of_two_ports_is_registered() {
    let mut bed = Bed::new(with(&["sip"]));
    let phone = TwoPorts::register(&mut bed, 5060);
    let contact = format!("Contact: <sip:a@{}>;expires=120", phone.external);
    let text = format!("SIP/2.0 200 OK\r\nCall-ID: secret\r\nCSeq: 7 REGISTER\r\n{contact}\r\n\r\n");
    phone.hear(&mut bed, REGISTRAR, &text);
    bed.advance_secs(110);
    assert!(call(&mut bed, at(E1, 9_000), phone.external).is_some());
    bed.advance_secs(20);
    assert!(call(&mut bed, at(E1, 9_000), phone.external).is_none());
    bed.run_out();
}

/// Who asks at the registered port without being the registrar, or another port of the phone,
/// opens nothing.
#[test]
fn a_phone_of_two_ports_answers_its_registrar_only() {
    let mut bed = Bed::new(with(&["sip"]).filtering(Filtering::EndpointIndependent));
    let phone = TwoPorts::register(&mut bed, 5_062);
    let stranger = at(E2, 5060);
    bed.outside(&build::udp(stranger, phone.external).payload(invite(phone.external).as_bytes()).build());
    bed.only_inside();
    let answer = phone.say(&mut bed, stranger, OK);
    assert!(answer.contains("c=IN IP4 100.64.0.10"), "{answer}");
    phone.hear(&mut bed, REGISTRAR, &invite(phone.external));
    let other = TwoPorts { sends: at(I1, 50_125), ..phone };
    let answer = other.say(&mut bed, REGISTRAR, OK);
    assert!(answer.contains("c=IN IP4 100.64.0.10"), "{answer}");
    bed.run_out();
}

/// The filtering of the pool lets them in, the registration does not: they are no peers of anything
/// that the phone has said.
#[test]
fn strangers_at_a_registration_are_not_read() {
    let mut bed = Bed::new(with(&["sip"]).filtering(Filtering::EndpointIndependent));
    let external = register(&mut bed, 3_600);
    let stranger = at(E2, 6_000);
    assert_eq!(call(&mut bed, stranger, external), Some(invite(external)));
    bed.inside(&build::udp(PHONE, stranger).payload(OK.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_outside()), OK);
    assert_eq!(call(&mut bed, at(E1, 6_000), external), Some(invite(PHONE)));
    bed.run_out();
}

/// What a call opened admits nobody once the registration is over, unless the phone has answered.
#[test]
fn calls_widen_no_filtering() {
    for filtering in [Filtering::AddressDependent, Filtering::AddressAndPortDependent] {
        for answers in [false, true] {
            let mut bed = Bed::new(with(&["sip"]).filtering(filtering));
            let external = register(&mut bed, 3_600);
            bed.advance_secs(3_595);
            let caller = at(E1, 6_000);
            assert_eq!(call(&mut bed, caller, external), Some(invite(PHONE)));
            if answers {
                answer(&mut bed, caller, external);
            }
            bed.advance_secs(10);
            let is_address = filtering == Filtering::AddressDependent;
            assert_eq!(call(&mut bed, caller, external).is_some(), answers, "{filtering:?}");
            let other = call(&mut bed, at(E1, 6_001), external);
            assert_eq!(other.is_some(), answers && is_address, "{filtering:?}");
            assert_eq!(call(&mut bed, at(E2, 6_000), external), None);
            bed.run_out();
        }
    }
}

/// Anyone may forge the address of a registrar.
#[test]
fn a_flood_of_calls_takes_few_sessions() {
    let mut bed = Bed::new(with(&["sip"]));
    let external = register(&mut bed, 3_600);
    bed.advance_secs(600);
    let arrived = (0..1_000).filter(|i| call(&mut bed, at(E1, 10_000 + i), external).is_some()).count();
    assert_eq!(arrived, 1_000, "all of them, as before");
    assert!(bed.sessions().len() <= 17, "{} sessions", bed.sessions().len());
    bed.advance_secs(300);
    assert_eq!(call(&mut bed, at(E1, 9_000), external), Some(invite(PHONE)), "read again");
    bed.run_out();
}

#[test]
fn a_registrar_connects_to_a_registered_port() {
    for workers in [1, 2, 8] {
        for filtering in [Filtering::EndpointIndependent, Filtering::AddressAndPortDependent] {
            let mut bed = Bed::new(with(&["sip"]).filtering(filtering)).workers(workers);
            let listens = at(I1, 5_080);
            let mut control = Talk::open(&mut bed, at(I1, 40_000), REGISTRAR);
            let sent = control.send_out(&mut bed, &register_text("TCP", at(I1, 40_000), listens, 3_600));
            let contact = sent.split("<sip:a@").nth(1).and_then(|rest| rest.split('>').next()).expect("a contact");
            let external: SocketAddrV4 = contact.parse().expect("an endpoint");
            bed.is_registered(listens, external);
            bed.advance_secs(600);
            let mut talk = Talk::enter(&mut bed, listens, at(E1, 6_000), external);
            assert_eq!(talk.send_in(&mut bed, &invite(external)), invite(listens));
            let sent = talk.send_out(&mut bed, &OK.replace("5062", "5080"));
            assert!(sent.contains(&format!("<sip:a@{external}>")) && !sent.contains("100.64.0.10"), "{sent}");
            let media = sent.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
            let media = at(*external.ip(), media.parse().expect("a port"));
            assert!(bed.udp_reaches(at(E1, 20_000), media, at(I1, 5_004)), "{sent}");
            // What answers may only repeat what it got: it registers nothing.
            let grants = bed.grants().len();
            let text = register_text("TCP", listens, at(I1, 7_000), 86_400);
            talk.send_out(&mut bed, &text);
            assert_eq!(bed.grants().len(), grants);
            // A stranger is let in by the filtering only, and not read.
            let stranger = at(E2, 6_000);
            if filtering == Filtering::EndpointIndependent {
                let mut talk = Talk::enter(&mut bed, listens, stranger, external);
                assert_eq!(talk.send_in(&mut bed, &invite(external)), invite(external));
            } else {
                assert_eq!(syn_reaches(&mut bed, stranger, external), None);
            }
            bed.run_out();
        }
    }
}

/// The answer of the registrar, with this `Call-ID` and field.
fn confirm(bed: &mut Bed, external: SocketAddrV4, call: &str, field: &str) {
    let text = format!("SIP/2.0 200 OK\r\nCall-ID: {call}\r\nCSeq: 7 REGISTER\r\n{field}\r\nContent-Length: 0\r\n\r\n");
    bed.outside(&build::udp(REGISTRAR, external).payload(text.as_bytes()).build());
    let arrived = udp_text(&bed.only_inside());
    assert_eq!(arrived, text.replace(&external.to_string(), &PHONE.to_string()));
}

fn is_registered(bed: &mut Bed, external: SocketAddrV4) -> bool {
    call(bed, at(E1, 9_000), external).is_some()
}

/// RFC 3261 §10.2.4: shorter or longer than the phone asked, by either field.
#[test]
fn a_registration_lives_as_long_as_its_registrar_says() {
    for workers in [1, 8] {
        for (asked, said) in [(3_600, 120), (600, 7_200)] {
            for by_contact in [true, false] {
                let mut bed = Bed::new(with(&["sip"])).workers(workers);
                let external = register(&mut bed, asked);
                let field = match by_contact {
                    true => format!("Contact: <sip:b@{E2}:9>;expires=9, <sip:a@{external}>;q=1;expires={said}"),
                    false => format!("Contact: <sip:a@{external}>\r\nExpires: {said}"),
                };
                confirm(&mut bed, external, "secret", &field);
                bed.advance_secs(said - 10);
                assert!(is_registered(&mut bed, external), "{asked} {said} {by_contact}");
                bed.advance_secs(20);
                assert!(!is_registered(&mut bed, external), "{asked} {said} {by_contact}");
                bed.run_out();
            }
        }
    }
}

/// An answer to nothing that the phone has asked, a second answer, and none about the phone.
#[test]
fn only_answers_change_a_registration() {
    let mut bed = Bed::new(with(&["sip"]));
    let external = register(&mut bed, 3_600);
    let contact = |seconds: u32| format!("Contact: <sip:a@{external}>;expires={seconds}");
    confirm(&mut bed, external, "guess", &contact(40));
    confirm(&mut bed, external, "secret", &format!("Contact: <sip:a@{E2}:5062>;expires=40"));
    confirm(&mut bed, external, "secret", &contact(40));
    bed.advance_secs(3_500);
    assert!(is_registered(&mut bed, external));
    // The shortest is the time of an expectation, and the longest a day.
    register(&mut bed, 3_600);
    confirm(&mut bed, external, "secret", &contact(0));
    bed.advance_secs(25);
    assert!(is_registered(&mut bed, external));
    bed.advance_secs(40);
    assert!(!is_registered(&mut bed, external));
    let external = register(&mut bed, 3_600);
    confirm(&mut bed, external, "secret", &format!("Contact: <sip:a@{external}>;expires=999999999"));
    bed.advance_secs(24 * 3_600 - 10);
    assert!(is_registered(&mut bed, external));
    bed.advance_secs(20);
    assert!(!is_registered(&mut bed, external));
    bed.run_out();
}
