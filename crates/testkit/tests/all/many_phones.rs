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

fn table_full_refusals(bed: &Bed) -> u64 {
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
        assert_eq!((read, read_now(&bed), table_full_refusals(&bed)), (3_000, 3_000, 0));
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
    assert_eq!((read(&mut bed, 0..300), table_full_refusals(&bed)), (256, 2 * 44), "a request and its answer each");
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
fn unanswered_datagrams_block_no_subscriber() {
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
        assert_eq!((read_now(&bed), table_full_refusals(&bed)), (256 * workers as u32, 0));
        assert!(registers(&mut bed, at(I2, 5060)), "a new one is read");
        bed.outside(&answer);
        assert_eq!(udp_text(&bed.only_inside()), restored, "the answered one has kept what it knows");
        bed.run_out();
    }
}

const COMMAND_START: &str = "PORT ";

fn command_rest(host: u8) -> String {
    format!("100,64,2,{host},19,137\r\n")
}

fn ftp_session(bed: &mut Bed, host: u8, port: u16) -> ControlSession {
    let inside = at(Ipv4Addr::new(100, 64, 2, host), port);
    let mut session = ControlSession::open(bed, inside, at(E1, 21)).expect("a session");
    for reply in ["220 ready\r\n", "331 password\r\n"] {
        session.send_in(bed, reply.as_bytes()).expect("a reply");
        session.send_out(bed, b"USER me\r\n").expect("a command");
    }
    session.send_in(bed, b"331 password\r\n").expect("a reply");
    session
}

/// Sessions of eight hosts that begin a message, and how many of them got no place.
fn begin_many(bed: &mut Bed) -> (Vec<(u8, ControlSession)>, u64) {
    let mut begun = Vec::new();
    for (host, port) in (1..=8).flat_map(|host| (10_000..10_060).map(move |port| (host, port))) {
        let mut session = ftp_session(bed, host, port);
        session.send_out(bed, COMMAND_START.as_bytes()).expect("it goes on, with or without the command");
        begun.push((host, session));
    }
    let refused = table_full(bed);
    assert!((200..400).contains(&refused), "{refused} of 480 get no place");
    (begun, refused)
}

fn table_full(bed: &Bed) -> u64 {
    bed.counters().gateways[0].refused[GatewayRefusal::TableFull as usize]
}

/// Ends the message. True if it was read.
fn finish(bed: &mut Bed, (host, session): &mut (u8, ControlSession), repeats: bool) -> bool {
    let rest = command_rest(*host);
    let sent = match repeats {
        true => session.repeat_out(bed, COMMAND_START.len(), format!("{COMMAND_START}{rest}").as_bytes()),
        false => session.send_out(bed, rest.as_bytes()),
    };
    let is_read = sent.expect("a command").starts_with(b"PORT 203,0,113,");
    assert!(session.send_in(bed, b"200 fine\r\n").is_some(), "it is acknowledged");
    is_read
}

fn bed_of_256_messages() -> Bed {
    Bed::new(Settings { control_sessions_max: 4_096, ..with(&["ftp"]) })
}

/// Over TCP, of subscribers that begin messages and never end them: all others are read, and what
/// was taken back for them is read once it is repeated.
#[test]
fn half_messages_of_a_few_subscribers_block_no_other() {
    let mut bed = bed_of_256_messages();
    let (begun, refused) = begin_many(&mut bed);
    let mut others = Vec::new();
    // More than there is room for.
    for host in 9..=200 {
        let mut session = ftp_session(&mut bed, host, 10_000);
        session.send_out(&mut bed, COMMAND_START.as_bytes()).expect("a segment");
        others.push((host, session));
    }
    for mut other in others {
        assert!(finish(&mut bed, &mut other, false), "{}", other.0);
    }
    assert_eq!(table_full(&bed), refused);
    let read = begun.into_iter().filter_map(|mut begun| finish(&mut bed, &mut begun, true).then_some(())).count();
    assert_eq!(read as u64, 480 - refused);
}

/// With no place left, it takes back nothing of others.
#[test]
fn a_bare_acknowledgement_needs_no_place() {
    let mut bed = bed_of_256_messages();
    let mut idle = ftp_session(&mut bed, 250, 10_000);
    let free = |refused: u64| 256 - (480 - refused);
    let fresh: Vec<ControlSession> = (9..=200).map(|host| ftp_session(&mut bed, host, 10_000)).collect();
    let (begun, refused) = begin_many(&mut bed);
    assert!((64..192).contains(&free(refused)));
    let mut all = begun;
    for (host, mut session) in (9..=200).zip(fresh).take(free(refused) as usize) {
        session.send_out(&mut bed, COMMAND_START.as_bytes()).expect("a segment");
        all.push((host, session));
    }
    let _ = idle.send_out(&mut bed, b"");
    assert_eq!(table_full(&bed), refused);
    let read = all.into_iter().filter_map(|mut begun| finish(&mut bed, &mut begun, false).then_some(())).count();
    assert_eq!(read, 256);
}
