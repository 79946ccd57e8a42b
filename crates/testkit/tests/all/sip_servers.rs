//! A SIP server inside, behind a static forward, with many clients outside.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Protocol;
use nat::Settings;
use nat::settings::Admission;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::types::RealmId;
use nat::verdict::GatewayRefusal;
use nat::view::Step;
use testkit::topology::OUTSIDE;
use testkit::*;
use wire::build;

use super::gateways::Talk;
use super::gateways::syn_reaches;
use super::gateways::udp_text;
use super::gateways::with;
use super::why::check;

const SERVER: SocketAddrV4 = at(I1, 5060);
const EXTERNAL: SocketAddrV4 = at(POOL[0], 5060);

fn bed(workers: usize) -> Bed {
    Bed::new(settings()).workers(workers)
}

fn bed_with(change: impl FnOnce(&mut Settings)) -> Bed {
    let mut settings = settings();
    change(&mut settings);
    Bed::new(settings)
}

fn settings() -> Settings {
    let mut settings = with(&["sip"]).filtering(Filtering::AddressAndPortDependent);
    settings.forwards = [Protocol::Udp, Protocol::Tcp].map(forward).to_vec();
    settings
}

fn forward(protocol: Protocol) -> Forward {
    Forward {
        realm: RealmId(0),
        protocol,
        external: *EXTERNAL.ip(),
        ports: (5060, 5060),
        inside: I1.into(),
        inside_port: 5060,
        admission: Admission::Anyone,
    }
}

fn invite(client: SocketAddrV4, to: SocketAddrV4) -> String {
    format!("INVITE sip:100@{to} SIP/2.0\r\nVia: SIP/2.0/UDP {client}\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n")
}

/// The server's, with sound at this port.
fn ok(media: u16) -> String {
    let sdp = format!("v=0\r\nc=IN IP4 {I1}\r\nm=audio {media} RTP/AVP 0\r\n");
    format!(
        "SIP/2.0 200 OK\r\nContact: <sip:100@{SERVER}>\r\nCSeq: 1 INVITE\r\nContent-Type: application/sdp\r\n\
Content-Length: {}\r\n\r\n{sdp}",
        sdp.len()
    )
}

/// What the server gets from the client.
fn asks(bed: &mut Bed, client: SocketAddrV4) -> String {
    bed.outside(&build::udp(client, EXTERNAL).payload(invite(client, EXTERNAL).as_bytes()).build());
    let got = bed.only_inside();
    assert_eq!((source(&got), destination(&got)), (client, SERVER));
    udp_text(&got)
}

/// What the client gets from the server.
fn answers(bed: &mut Bed, client: SocketAddrV4, text: &str) -> String {
    bed.inside(&build::udp(SERVER, client).payload(text.as_bytes()).build());
    let got = bed.only_outside();
    assert_eq!((source(&got), destination(&got)), (EXTERNAL, client));
    udp_text(&got)
}

/// Where the answer announces sound.
fn media(text: &str) -> SocketAddrV4 {
    let port = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    at(*EXTERNAL.ip(), port.parse().expect("a port"))
}

/// Clients of several hosts, and two of one host.
fn clients() -> Vec<SocketAddrV4> {
    let hosts = (0..40).map(|n| at(Ipv4Addr::new(198, 51, 100, 20 + n), 5060));
    hosts.chain([at(E2, 40_000), at(E2, 40_001)]).collect()
}

#[test]
fn each_client_of_a_server_over_udp_is_read() {
    for workers in [1, 2, 8] {
        let mut bed = bed(workers);
        let mut calls = Vec::new();
        for (n, client) in (0..).zip(clients()) {
            assert_eq!(asks(&mut bed, client), invite(client, SERVER), "{client}: the first request");
            let got = answers(&mut bed, client, &ok(20_000 + 2 * n));
            assert!(got.contains(&format!("<sip:100@{EXTERNAL}>")) && !got.contains("100.64."), "{got}");
            calls.push((client, at(I1, 20_000 + 2 * n), media(&got)));
        }
        let clients = clients();
        for (client, inside, external) in &calls {
            assert!(bed.udp_reaches(at(*client.ip(), 30_000), *external, *inside), "{client}: sound");
        }
        // Sound is for the client that asked.
        for (client, inside, external) in &calls {
            let other = clients.iter().find(|other| other.ip() != client.ip()).expect("another host");
            assert!(!bed.udp_reaches(at(*other.ip(), 30_001), *external, *inside), "{client}: sound of others");
        }
        bed.run_out();
    }
}

/// It opens no port for a client that has asked for nothing, also where it is read because it
/// leads to a port of SIP.
#[test]
fn an_unsolicited_answer_opens_nothing() {
    let mut bed = bed(1);
    asks(&mut bed, at(E1, 5060));
    for client in [at(E1, 5061), at(E2, 40_000)] {
        assert_eq!(answers(&mut bed, client, &ok(20_000)), ok(20_000));
    }
    let read = ok(20_000).replace(&format!("<sip:100@{SERVER}>"), &format!("<sip:100@{EXTERNAL}>"));
    assert_eq!(answers(&mut bed, at(E2, 5060), &ok(20_000)), read);
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}

/// Sends a request, and says whether it was read.
fn is_read(bed: &mut Bed, client: SocketAddrV4) -> bool {
    let got = asks(bed, client);
    assert!([SERVER, EXTERNAL].iter().any(|to| got == invite(client, *to)), "{got}");
    got == invite(client, SERVER)
}

fn forged(n: u16) -> SocketAddrV4 {
    at(Ipv4Addr::new(192, 0, 2, 100 + (n % 100) as u8), 10_000 + n / 100)
}

fn refused(bed: &Bed, why: GatewayRefusal) -> u64 {
    let sip = AlgId::named("sip").expect("a gateway");
    bed.counters().gateways[usize::from(sip.0)].refused[why as usize]
}

/// They take little memory, and keep no client from being read, nor those that the server has
/// answered from coming back. In a small table, the subscriber's share is below 64.
#[test]
fn forged_clients_have_few_sessions() {
    for (control_sessions, most) in [(1_024, 64), (256, 31)] {
        let mut bed = bed_with(|settings| settings.control_sessions_max = control_sessions);
        let client = at(E2, 40_000);
        assert!(is_read(&mut bed, at(E1, 5060)) && is_read(&mut bed, client));
        answers(&mut bed, client, &ok(20_000));
        assert!((0..1_000).all(|n| is_read(&mut bed, forged(n))));
        // The first session of a mapping stays until its time is over.
        assert!((most..=most + 1).contains(&(bed.sessions().len() - 1)), "{} sessions", bed.sessions().len());
        if most == 64 {
            assert_eq!(refused(&bed, GatewayRefusal::SubscriberLimit), 1_001 - 64);
        }
        assert_eq!(refused(&bed, GatewayRefusal::TableFull), 0);
        assert!(answers(&mut bed, client, &ok(20_002)).contains(&EXTERNAL.to_string()));
        assert!(is_read(&mut bed, client) && is_read(&mut bed, at(E2, 40_001)));
        // Unanswered ones end soon.
        bed.advance_secs(60);
        assert_eq!(bed.sessions().len(), 1);
        bed.run_out();
    }
}

/// Nor do they take the places of the subscriber's own phones whose registrar is slow.
#[test]
fn forged_clients_take_no_place_of_a_phone_inside() {
    for control_sessions in [256, 1_024] {
        let mut bed = bed_with(|settings| settings.control_sessions_max = control_sessions);
        let registrar = at(E2, 5060);
        // Each is called at another port than it sends from, which only a session that is read
        // knows.
        let phones: Vec<(SocketAddrV4, SocketAddrV4, String)> = (0..16)
            .map(|n| {
                let (phone, listens) = (at(I1, 6_000 + n), at(I1, 7_000 + n));
                let text = format!(
                    "REGISTER sip:{E2} SIP/2.0\r\nVia: SIP/2.0/UDP {phone};branch=z9\r\n\
Contact: <sip:a@{listens}>\r\nCSeq: 1 REGISTER\r\n\r\n"
                );
                bed.inside(&build::udp(phone, registrar).payload(text.as_bytes()).build());
                let sent = bed.only_outside();
                let text = udp_text(&sent);
                let contact = text.split("<sip:a@").nth(1).and_then(|rest| rest.split('>').next());
                (listens, source(&sent), contact.expect("a contact").to_owned())
            })
            .collect();
        assert!(is_read(&mut bed, at(E1, 5060)));
        assert!((0..1_000).all(|n| is_read(&mut bed, forged(n))));
        for (listens, external, contact) in phones {
            let answer = format!("SIP/2.0 200 OK\r\nCSeq: 2 OPTIONS\r\nContact: <sip:a@{contact}>\r\n\r\n");
            bed.outside(&build::udp(registrar, external).payload(answer.as_bytes()).build());
            assert_eq!(udp_text(&bed.only_inside()), answer.replace(&contact, &listens.to_string()));
        }
        assert_eq!(refused(&bed, GatewayRefusal::TableFull), 0);
        bed.run_out();
    }
}

/// A client that had no place when it asked, and has a session by the server's answer, is read from
/// its next request on; nothing else begins that. `is_first`: its session is that of the mapping's
/// own record.
#[test]
fn a_client_that_had_no_place_is_read_once_there_is_one() {
    for is_first in [false, true] {
        let sessions = |count| {
            let mut settings = settings();
            settings.control_sessions_max = count;
            settings
        };
        let mut bed = Bed::new(sessions(256));
        let client = at(E2, 40_000);
        if is_first {
            assert!(is_read(&mut bed, at(E1, 5060)));
        }
        for n in 0..32 {
            assert!(is_read(&mut bed, forged(n)));
            answers(&mut bed, forged(n), &ok(20_000 + 2 * n));
        }
        // The unanswered one has ended.
        bed.advance_secs(31);
        assert!(!is_read(&mut bed, client));
        assert_eq!(answers(&mut bed, client, &ok(30_000)), ok(30_000));
        assert!(!is_read(&mut bed, client), "still no place");
        bed.reload(sessions(1_024));
        assert_eq!(answers(&mut bed, client, &ok(30_000)), ok(30_000), "the server begins nothing");
        bed.outside(&build::udp(client, EXTERNAL).payload(ok(30_000).as_bytes()).build());
        assert_eq!(udp_text(&bed.only_inside()), ok(30_000), "nor does an answer");
        let sessions = bed.sessions().len();
        assert!(is_read(&mut bed, client), "a request does");
        let got = answers(&mut bed, client, &ok(30_002));
        assert!(got.contains(&format!("<sip:100@{EXTERNAL}>")) && !got.contains("100.64."), "{got}");
        assert!(bed.udp_reaches(at(*client.ip(), 30_000), media(&got), at(I1, 30_002)), "sound");
        assert_eq!(bed.sessions().len(), sessions + 1, "and no session beside that of sound");
        bed.run_out();
    }
}

/// A request that finds no place is one refusal, for one reason.
#[test]
fn a_client_without_a_place_is_refused_once() {
    let mut bed = bed_with(|settings| settings.limits.sessions_per_mapping_max = 64);
    assert!(is_read(&mut bed, at(E1, 5060)));
    assert!((0..63).all(|n| is_read(&mut bed, forged(n))));
    // The oldest of 64 has the first session of the mapping, which stays.
    assert!(!is_read(&mut bed, forged(63)));
    let refusals = [GatewayRefusal::SubscriberLimit, GatewayRefusal::TableFull].map(|why| refused(&bed, why));
    assert_eq!(refusals, [0, 1]);
    // It has not gone for one that is refused.
    let got = answers(&mut bed, at(E1, 5060), &ok(20_000));
    assert!(got.contains(&format!("<sip:100@{EXTERNAL}>")) && !got.contains("100.64."), "{got}");
    bed.run_out();
}

/// What answers its own request, as a forged client may at any time, is no call of the server.
#[test]
fn no_client_keeps_a_port_of_the_server() {
    let mut bed = bed(1);
    let client = at(E2, 40_000);
    asks(&mut bed, client);
    let media = media(&answers(&mut bed, client, &ok(20_000)));
    let rings = "SIP/2.0 180 Ringing\r\nCSeq: 1 INVITE\r\nContent-Length: 0\r\n\r\n";
    bed.outside(&build::udp(client, EXTERNAL).payload(rings.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_inside()), rings);
    bed.advance_secs(35);
    assert!(!bed.udp_reaches(at(E2, 30_000), media, at(I1, 20_000)));
    bed.run_out();
}

/// Also the mapping's first one, and also after a change of timers.
#[test]
fn a_session_that_the_server_opens_is_read_from_a_request_on() {
    for changes in [false, true] {
        let mut bed = bed(1);
        let client = at(E2, 40_000);
        assert_eq!(answers(&mut bed, client, &ok(30_000)), ok(30_000), "nothing was asked");
        if changes {
            let mut settings = settings();
            settings.timeouts.udp = nat::Duration::from_secs(130);
            bed.reload(settings);
            bed.advance_secs(60);
        }
        assert!(is_read(&mut bed, client), "a request begins it, after a change: {changes}");
        let got = answers(&mut bed, client, &ok(30_000));
        assert!(got.contains(&format!("<sip:100@{EXTERNAL}>")) && !got.contains("100.64."), "{got}");
        bed.run_out();
    }
}

/// Another instance learns of the session as it is: it ends soon unless the server answers.
#[test]
fn the_session_that_activates_a_server_is_reported_as_it_is() {
    let mut bed = bed(1).record_deltas(64);
    asks(&mut bed, at(E1, 5060));
    let mut lives = Vec::new();
    bed.shards().for_each(|shard| assert_eq!(shard.view().deltas_page(bed.now(), 0, 100, &mut lives), None));
    let of = |deltas: &[nat::Delta]| {
        let sessions = deltas.iter().filter_map(|delta| delta.session);
        sessions.map(|session| (session.remote, session.state, session.left)).collect::<Vec<_>>()
    };
    let told = of(&bed.take_deltas(0));
    assert_eq!((told.len(), &told), (1, &of(&lives)));
    bed.run_out();
}

/// With the subscriber's share full of clients that the server has answered, others pass unread.
#[test]
fn clients_that_cannot_be_read_have_no_sessions() {
    let mut bed = bed_with(|settings| settings.control_sessions_max = 256);
    for n in 0..32 {
        assert!(is_read(&mut bed, forged(n)));
        answers(&mut bed, forged(n), &ok(20_000 + 2 * n));
    }
    let sessions = bed.sessions().len();
    assert!((32..200).all(|n| !is_read(&mut bed, forged(n))));
    assert_eq!((bed.sessions().len(), refused(&bed, GatewayRefusal::TableFull)), (sessions, 200 - 32));
    bed.run_out();
}

/// Fragments cannot be read, and other datagrams are no requests.
#[test]
fn what_asks_nothing_opens_no_session() {
    let mut bed = bed(1);
    asks(&mut bed, at(E1, 5060));
    let sessions = bed.sessions().len();
    let request = invite(forged(0), EXTERNAL);
    for n in 0..100 {
        let datagram = build::udp(forged(n), EXTERNAL).payload(request.as_bytes()).build();
        bed.outside(&build::fragment(&datagram, 84)[0]);
        for text in ["\r\n\r\n", "INVITE", "SIP/2.0 200 OK\r\nCSeq: 1 INVITE\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
            bed.outside(&build::udp(forged(n), EXTERNAL).payload(text.as_bytes()).build());
        }
        assert_eq!(bed.take_inside().len(), 5, "all of them pass");
    }
    assert_eq!(bed.sessions().len(), sessions);
    bed.run_out();
}

/// What a client sends keeps no session of its own, not even if `inbound_refresh` is on.
#[test]
fn unanswered_clients_keep_no_session() {
    for refreshes in [false, true] {
        let mut bed = bed_with(|settings| settings.inbound_refresh = refreshes);
        // The first one activates the mapping.
        let (first, second, answered) = (at(E1, 5060), at(E2, 40_000), at(E2, 40_001));
        for client in [first, second, answered] {
            assert!(is_read(&mut bed, client));
        }
        answers(&mut bed, answered, &ok(20_000));
        bed.advance_secs(20);
        assert!(is_read(&mut bed, first) && is_read(&mut bed, second));
        assert_eq!(bed.sessions().len(), 3);
        bed.advance_secs(20);
        assert_eq!(bed.sessions().len(), 1, "the one that is answered");
        bed.advance_secs(120);
        assert_eq!(bed.sessions().len(), 1, "it lives as long as others over UDP");
        bed.run_out();
    }
}

#[test]
fn the_session_of_a_client_is_explained() {
    let mut bed = bed(1);
    asks(&mut bed, at(E1, 5060));
    let request = |client| build::udp(client, EXTERNAL).payload(invite(client, EXTERNAL).as_bytes()).build();
    let is_new = |bed: &mut Bed| {
        let preview = check(bed, OUTSIDE, &request(at(E2, 40_000)));
        preview.steps.iter().any(|step| matches!(step, Step::SessionWouldBeCreated))
    };
    assert!(is_new(&mut bed));
    assert!(!is_new(&mut bed), "it has one");
    // What is no request opens none.
    for text in ["\r\n\r\n", "SIP/2.0 200 OK\r\nCSeq: 1 INVITE\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        let datagram = build::udp(at(E2, 40_001), EXTERNAL).payload(text.as_bytes()).build();
        let (preview, before) = (check(&mut bed, OUTSIDE, &datagram), bed.sessions().len());
        assert!(!preview.steps.iter().any(|step| matches!(step, Step::SessionWouldBeCreated)), "{text:?}");
        assert_eq!(bed.sessions().len(), before);
    }
    bed.run_out();
}

/// Also where it takes the place of an older one, or there is none for it.
#[test]
fn the_session_of_one_client_in_place_of_another_is_explained() {
    for (sessions, read) in [(65, 100), (20, 20), (1_024, 100)] {
        let mut bed = bed_with(|settings| settings.limits.sessions_per_mapping_max = sessions);
        let mut count = 0;
        for n in 0..100 {
            let request = build::udp(forged(n), EXTERNAL).payload(invite(forged(n), EXTERNAL).as_bytes()).build();
            let preview = check(&mut bed, OUTSIDE, &request);
            let is_read = udp_text(&bed.only_inside()) == invite(forged(n), SERVER);
            let is_told = preview.steps.iter().any(|step| matches!(step, Step::SessionWouldBeCreated));
            assert_eq!(is_told, is_read, "{n}: {preview:?}");
            count += u32::from(is_read);
        }
        assert_eq!(count, read);
        bed.run_out();
    }
}

/// Nor do half-open connections to the server, which anyone can forge too.
#[test]
fn half_open_connections_keep_no_client_out() {
    let mut bed = bed(1);
    for n in 0..100 {
        assert_eq!(syn_reaches(&mut bed, forged(n), EXTERNAL), Some(SERVER));
    }
    assert!((100..164).all(|n| is_read(&mut bed, forged(n))));
    assert_eq!(refused(&bed, GatewayRefusal::SubscriberLimit), 0);
    bed.run_out();
}

/// What the client of one session has registered, with a port of the registrar itself, is listed by
/// the registrar in others. It copies `CSeq` as it came.
#[test]
fn contacts_that_a_server_lists_open_nothing() {
    let lists = [
        ("REGISTER", "1 REGISTER", "200 OK"),
        ("REGISTER", "1\tREGISTER", "200 OK"),
        ("REGISTER", "1 REGISTER ", "200 OK"),
        ("REGISTER", "1 OPTIONS", "200 OK"),
        ("INVITE", "1 INVITE", "302 Moved Temporarily"),
        ("INVITE", "1 INVITE", "485 Ambiguous"),
        ("INVITE", "1 INVITE", "200 OK"),
    ];
    for (method, cseq, code) in lists {
        let query = format!("{method} sip:{EXTERNAL} SIP/2.0\r\nCSeq: {cseq}\r\nContent-Length: 0\r\n\r\n");
        let answer = format!(
            "SIP/2.0 {code}\r\nCSeq: {cseq}\r\nContact: <sip:a@{I1}:3306;transport=tcp>;expires=3600, \
<sip:a@{I1}:3306>\r\nContent-Length: 0\r\n\r\n"
        );
        // Its address is the external one, with a port that leads nowhere.
        let got = answer.replace(&I1.to_string(), &EXTERNAL.ip().to_string());
        let mut bed = bed(1);
        let client = at(E1, 40_000);
        bed.outside(&build::udp(client, EXTERNAL).payload(query.as_bytes()).build());
        bed.only_inside();
        assert_eq!(answers(&mut bed, client, &answer), got, "{code}, CSeq {cseq:?}");
        let mut talk = Talk::enter(&mut bed, SERVER, at(E1, 40_002), EXTERNAL);
        talk.send_in(&mut bed, &query);
        assert_eq!(talk.send_out(&mut bed, &answer), got, "{code}, CSeq {cseq:?}");
        // A client to whose port 5060 the server has sent something first: that opens a session
        // from inside, which is a client's there.
        let asker = at(E1, 5_060);
        answers(&mut bed, asker, "SIP/2.0 200 OK\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n");
        bed.outside(&build::udp(asker, EXTERNAL).payload(query.as_bytes()).build());
        bed.only_inside();
        assert_eq!(answers(&mut bed, asker, &answer), got, "{code}, CSeq {cseq:?}");
        assert_eq!(bed.counters().expectations_created, 0, "{code}, CSeq {cseq:?}");
        for port in [3_306, 40_000] {
            assert_eq!(syn_reaches(&mut bed, at(E1, 40_003), at(*EXTERNAL.ip(), port)), None);
        }
        bed.run_out();
    }
}

/// A client outside has the server's address in a message that is not read, and another service's
/// port. Then the server repeats it, as a back-to-back user agent does.
#[test]
fn a_server_repeats_what_was_not_read_and_opens_nothing() {
    let client = at(E2, 40_000);
    let sdp = format!("v=0\r\nc=IN IP4 {I1}\r\nm=audio 20000 RTP/AVP 0\r\n");
    let named = |head: &str| invite(client, EXTERNAL).replace("Content-Length: 0", head) + &sdp;
    let datagram = |text: &str| build::udp(client, EXTERNAL).payload(text.as_bytes()).build();
    let fragments = build::fragment(&datagram(&(named("X: y") + &"a=x\r\n".repeat(700))), 1_500);
    let long = named(&format!("X: {}", "y".repeat(600)));
    let texts = [long, named("no field"), named("X: y").replacen("INVITE", "INVITED", 1)];
    let datagrams = texts.iter().map(|text| vec![datagram(text)]);
    for (number, datagrams) in datagrams.chain([fragments]).enumerate() {
        for workers in [1, 2] {
            let mut bed = bed(workers);
            asks(&mut bed, client);
            assert!(answers(&mut bed, client, &ok(20_100)).contains(&format!("c=IN IP4 {}", EXTERNAL.ip())));
            let grants = bed.grants().len();
            for datagram in &datagrams {
                bed.outside(datagram);
            }
            assert_eq!(bed.take_inside().len(), datagrams.len(), "they pass: {number}");
            let got = answers(&mut bed, client, &ok(20_000));
            assert!(got.contains(&sdp), "{number}: {got}");
            assert_eq!(bed.grants().len(), grants, "{number}");
            for external in (20_000..20_002).chain([media(&got).port()]) {
                assert!(!bed.udp_reaches(at(E2, 30_000), at(*EXTERNAL.ip(), external), at(I1, 20_000)), "{number}");
            }
            bed.run_out();
        }
    }
}

/// A call is refreshed long after its first message could be answered.
#[test]
fn a_server_repeats_what_was_named_long_ago_and_opens_nothing() {
    let client = at(E2, 40_000);
    let mut bed = bed(1);
    for port in (20_000..20_040).step_by(2) {
        let sdp = format!("v=0\r\nc=IN IP4 {I1}\r\nm=audio {port} RTP/AVP 0\r\n");
        let head = format!("Content-Type: application/sdp\r\nContent-Length: {}", sdp.len());
        let text = invite(client, EXTERNAL).replace("Content-Length: 0", &head) + &sdp;
        bed.outside(&build::udp(client, EXTERNAL).payload(text.as_bytes()).build());
        bed.only_inside();
        answers(&mut bed, client, &ok(port));
    }
    for _ in 0..43 {
        bed.advance_secs(25);
        asks(&mut bed, client);
        answers(&mut bed, client, "SIP/2.0 100 Trying\r\nCSeq: 1 INVITE\r\n\r\n");
        for port in [20_000, 20_038] {
            assert!(answers(&mut bed, client, &ok(port)).contains(&format!("c=IN IP4 {I1}\r\nm=audio {port} ")));
        }
        assert!(bed.grants().is_empty());
    }
    assert!(answers(&mut bed, client, &ok(20_100)).contains(&format!("c=IN IP4 {}", EXTERNAL.ip())));
    bed.run_out();
}
