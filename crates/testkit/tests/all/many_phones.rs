//! More control sessions than a small table has: phones that stay, and senders without an answer.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Settings;
use nat::verdict::GatewayRefusal;
use testkit::*;
use wire::build;

use super::control_sessions::ControlSession;
use super::gateways::udp_text;
use super::gateways::with;

const REGISTRAR: SocketAddrV4 = at(E1, 5060);
/// In the hands of each subscriber.
const PHONES_EACH: u16 = 20;

/// One of many, 20 with each subscriber.
fn phone(number: u16) -> SocketAddrV4 {
    let host = number / PHONES_EACH;
    at(Ipv4Addr::new(100, 64, 1 + (host / 200) as u8, 1 + (host % 200) as u8), 10_000 + number % PHONES_EACH)
}

/// Whether the phone's registration is read.
fn registers(bed: &mut Bed, phone: SocketAddrV4) -> bool {
    let text = format!(
        "REGISTER sip:{E1} SIP/2.0\r\nVia: SIP/2.0/UDP {phone};branch=z9\r\n\
Contact: <sip:a@{phone}>\r\nExpires: 3600\r\nCSeq: 1 REGISTER\r\n\r\n"
    );
    bed.inside(&build::udp(phone, REGISTRAR).payload(text.as_bytes()).build());
    let sent = bed.only_outside();
    let (external, text) = (source(&sent), udp_text(&sent));
    bed.outside(&build::udp(REGISTRAR, external).payload(b"SIP/2.0 200 OK\r\n\r\n").build());
    bed.only_inside();
    text.contains(&format!("<sip:a@{external}>"))
}

fn sip() -> usize {
    usize::from(AlgId::named("sip").expect("a gateway").0)
}

fn read_now(bed: &Bed) -> u32 {
    bed.shards().map(|shard| shard.view().gateways_now()[sip()].sessions).sum()
}

fn turned_away(bed: &Bed) -> u64 {
    bed.counters().gateways[sip()].refused[GatewayRefusal::TableFull as usize]
}

fn with_room(sessions: u32) -> Settings {
    Settings { control_sessions_max: sessions, ..with(&["sip"]) }
}

/// Without a word about it in the configuration.
#[test]
fn a_worker_reads_thousands_of_phones() {
    for workers in [1, 2] {
        let room = Settings::default().control_sessions_max;
        let mut bed = Bed::new(with_room(room)).workers(workers);
        let read = (0..3_000).filter(|number| registers(&mut bed, phone(*number))).count();
        assert_eq!((read, read_now(&bed), turned_away(&bed)), (3_000, 3_000, 0));
        bed.advance_secs(4_000);
        assert_eq!(read_now(&bed), 0, "all state has gone");
        bed.run_out();
    }
}

#[test]
fn a_reload_changes_how_many_are_read() {
    let mut bed = Bed::new(with_room(256));
    let read =
        |bed: &mut Bed, numbers: core::ops::Range<u16>| numbers.filter(|number| registers(bed, phone(*number))).count();
    assert_eq!((read(&mut bed, 0..300), turned_away(&bed)), (256, 2 * 44), "a request and its answer each");
    bed.reload(with_room(1_024));
    assert_eq!((read(&mut bed, 0..600), read_now(&bed)), (600, 600));
    // Fewer: those that are read go on.
    bed.reload(with_room(256));
    assert_eq!((read(&mut bed, 0..600), read(&mut bed, 600..620), read_now(&bed)), (600, 0, 600));
    bed.run_out();
}

/// Hosts that send to many SIP servers fill the table, and take nothing from others: neither a new
/// session, nor what one that is answered knows.
#[test]
fn unanswered_datagrams_keep_nobody_out() {
    for workers in [1, 2] {
        let mut bed = Bed::new(with_room(256)).workers(workers);
        let own = at(I1, 5060);
        let listens = at(I1, 5080);
        let text = format!(
            "REGISTER sip:{E1} SIP/2.0\r\nVia: SIP/2.0/UDP {own};branch=z9\r\n\
Contact: <sip:a@{listens}>\r\nCSeq: 1 REGISTER\r\n\r\n"
        );
        bed.inside(&build::udp(own, REGISTRAR).payload(text.as_bytes()).build());
        let sent = bed.only_outside();
        let (external, text) = (source(&sent), udp_text(&sent));
        let contact = text.split("<sip:a@").nth(1).and_then(|rest| rest.split('>').next()).expect("a contact");
        let says = format!("SIP/2.0 200 OK\r\nCSeq: 2 OPTIONS\r\nContact: <sip:a@{contact}>\r\n\r\n");
        let restored = says.replace(contact, &listens.to_string());
        let answer = build::udp(REGISTRAR, external).payload(says.as_bytes()).build();
        bed.outside(&answer);
        assert_eq!(udp_text(&bed.only_inside()), restored);
        let options = b"OPTIONS sip:x SIP/2.0\r\nCSeq: 1 OPTIONS\r\n\r\n";
        for host in 20..60 {
            for port in 0..40 {
                let from = at(Ipv4Addr::new(100, 64, 0, host), 10_000 + port);
                bed.inside(&build::udp(from, at(E2, 5060)).payload(options).build());
            }
        }
        bed.take_outside();
        assert_eq!((read_now(&bed), turned_away(&bed)), (256 * workers as u32, 0));
        assert!(registers(&mut bed, at(I2, 5060)), "a new one is read");
        bed.outside(&answer);
        assert_eq!(udp_text(&bed.only_inside()), restored, "the answered one has kept what it knows");
        bed.run_out();
    }
}

/// Over TCP, of subscribers that begin messages and never end them: all others are read, and most
/// of what was taken back for them is read once it is repeated.
#[test]
fn half_messages_of_a_few_subscribers_keep_nobody_out() {
    // Of 256 places.
    let mut bed = Bed::new(Settings { control_sessions_max: 4_096, ..with(&["ftp"]) });
    let open = |bed: &mut Bed, host: u8, port: u16| {
        let mut session = ControlSession::open(bed, at(Ipv4Addr::new(100, 64, 2, host), port), at(E1, 21))?;
        session.send_in(bed, b"220 ready\r\n")?;
        session.send_out(bed, b"USER me\r\n")?;
        session.send_in(bed, b"331 password\r\n")?;
        Some(session)
    };
    let command = |host: u8| format!("PORT 100,64,2,{host},19,137\r\n");
    let mut begun = Vec::new();
    for host in 1..=8 {
        for port in 10_000..10_060 {
            let mut session = open(&mut bed, host, port).expect("a session");
            session.send_out(&mut bed, b"PORT ").expect("it goes on, with or without the command");
            begun.push((host, session));
        }
    }
    let refused = bed.counters().gateways[0].refused[GatewayRefusal::TableFull as usize];
    assert!((200..400).contains(&refused), "{refused} of 480 get no place");
    for host in 9..=200 {
        let mut session = open(&mut bed, host, 10_000).expect("a session");
        session.send_out(&mut bed, b"PORT ").expect("a segment");
        let line = command(host);
        let sent = session.send_out(&mut bed, line.split_at(5).1.as_bytes()).expect("a command");
        assert!(sent.starts_with(b"PORT 203,0,113,"), "{host}: {}", String::from_utf8_lossy(&sent));
        assert!(session.send_in(&mut bed, b"200 fine\r\n").is_some(), "it is acknowledged");
    }
    assert_eq!(bed.counters().gateways[0].refused[GatewayRefusal::TableFull as usize], refused);
    let mut read = 0;
    for (host, mut session) in begun {
        let line = command(host);
        let sent = session.repeat_out(&mut bed, 5, line.as_bytes()).expect("a command");
        read += u64::from(sent.starts_with(b"PORT 203,0,113,"));
        assert!(session.send_in(&mut bed, b"200 fine\r\n").is_some(), "it is acknowledged");
    }
    // A few find no place again, because their subscribers still hold more than others.
    assert!((150..=480 - refused).contains(&read), "{read} of {}", 480 - refused);
}
