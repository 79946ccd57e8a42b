//! Sinks against collectors of the test: outages, order, TLS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::io::BufRead;
use std::io::BufReader;
use std::io::Read;
use std::io::Write;
use std::net::Ipv4Addr;
use std::net::TcpListener;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use export::sink::Kind;
use export::sink::Known;
use export::sink::News;
use export::sink::Security;
use export::sink::Sink;
use export::sink::SinkOptions;
use export::sink::Target;
use export::sink::Transport;
use export::store::Generated;
use export::store::Generator;
use export::store::Moment;
use export::store::StoreOptions;
use export::store::StoreWriter;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::RealmId;
use nat::types::WorkerId;
use serde_json::Value;

const WAIT: Duration = Duration::from_secs(20);

/// A store that is written, with a folder of its own.
struct Bed {
    folder: PathBuf,
    writer: StoreWriter,
    generator: Generator,
    news: Arc<Mutex<Vec<News>>>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let folder = std::env::temp_dir().join(format!("natrix-sink-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let writer = StoreWriter::open(&folder, StoreOptions::default(), Generator::begin()).unwrap();
        let generator = Generator::new(Generated::Mappings(100_000), 7);
        Bed { folder, writer, generator, news: Arc::default() }
    }

    fn options(&self, kind: Kind, transport: Transport, port: u16) -> SinkOptions {
        SinkOptions {
            name: "one".to_owned(),
            kind,
            target: Target { transport, host: "localhost".to_owned(), port },
            security: None,
            domain: 5,
            mtu: 1_500,
            template_interval: Duration::from_millis(200),
            spool_bytes: 1 << 30,
            store: self.folder.clone(),
            host: "nat1".to_owned(),
            version: "0.0.0".to_owned(),
        }
    }

    fn start(&self, options: SinkOptions) -> Sink {
        let news = Arc::clone(&self.news);
        let known = Arc::new(Mutex::new(Known::default()));
        Sink::start(options, known, move |one| news.lock().unwrap().push(one.clone())).unwrap()
    }

    /// Records so many batches, and returns their sequence numbers.
    fn record(&mut self, rounds: usize) -> Vec<u64> {
        let mut sequences = Vec::new();
        for _ in 0..rounds {
            let mut events: Vec<Event> = Vec::new();
            self.generator.fill(50, &mut events);
            self.writer.push_all(Generator::WORKER, &events);
            let now = self.generator.now();
            self.writer.advance(now, now.monotonic_us).unwrap();
            self.writer.flush().unwrap();
            sequences.extend(events.iter().map(|event| event.sequence));
        }
        sequences
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_done() {
        assert!(since.elapsed() < WAIT, "{what} did not happen in {WAIT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads lines of JSON until the last of these numbers, and returns all numbers.
fn read_sequences(reader: &mut impl BufRead, last: u64) -> Vec<u64> {
    let mut sequences = Vec::new();
    while sequences.last() != Some(&last) {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ended after {:?}", sequences.last());
        let value: Value = serde_json::from_str(&line).unwrap();
        sequences.extend(value["sequence"].as_u64());
    }
    sequences
}

fn accept(listener: &TcpListener) -> BufReader<std::net::TcpStream> {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(WAIT)).unwrap();
    BufReader::new(stream)
}

#[test]
fn after_an_outage_everything_comes_in_order() {
    let mut bed = Bed::new("outage");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = bed.options(Kind::Json, Transport::Tcp, port);
    let sink = bed.start(options.clone());
    let mut expected = bed.record(3);
    let mut reader = accept(&listener);
    let first = read_sequences(&mut reader, *expected.last().unwrap());
    assert_eq!(first, expected);
    // The collector ends without reading on; windows are sealed meanwhile.
    drop((reader, listener));
    for _ in 0..3 {
        expected.extend(bed.record(4));
        bed.writer.seal().unwrap();
    }
    wait_until("the failure is reported", || {
        bed.news.lock().unwrap().iter().any(|news| matches!(news, News::Failed(_)))
    });
    expected.extend(bed.record(2));
    let listener = TcpListener::bind(("localhost", port)).unwrap();
    let mut reader = accept(&listener);
    let all = read_sequences(&mut reader, *expected.last().unwrap());
    // What was sent shortly before the outage comes again, and all the rest once, in order.
    assert!(all.is_sorted_by(|one, next| one < next), "in order");
    assert_eq!(all, expected);
    wait_until("all is sent", || sink.figures().lag_us() == 0);
    // A sink that ends while the collector reads on has nothing to repeat.
    let reading = std::thread::spawn(move || {
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
    });
    drop(sink);
    reading.join().unwrap();
    let again = bed.start(options);
    let later = bed.record(1);
    let mut reader = accept(&listener);
    assert_eq!(read_sequences(&mut reader, *later.last().unwrap()), later);
    assert_eq!(again.figures().lost(), 0);
}

#[test]
fn a_collector_that_takes_nothing_delays_no_other() {
    let mut bed = Bed::new("slow");
    let (slow, quick) = (TcpListener::bind("localhost:0").unwrap(), TcpListener::bind("localhost:0").unwrap());
    let port_of = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let slow_options =
        SinkOptions { name: "slow".to_owned(), ..bed.options(Kind::Json, Transport::Tcp, port_of(&slow)) };
    let one = bed.start(slow_options);
    let other = bed.start(bed.options(Kind::Json, Transport::Tcp, port_of(&quick)));
    let _stuck = slow.accept().unwrap();
    let mut reader = accept(&quick);
    // More than the buffers of a connection take.
    let expected = bed.record(1_000);
    assert_eq!(read_sequences(&mut reader, *expected.last().unwrap()), expected);
    wait_until("the other one has sent all", || other.figures().lag_us() == 0);
    assert!(one.figures().lag_us() > 0);
}

#[test]
fn datagrams_have_templates_and_consecutive_numbers() {
    let mut bed = Bed::new("udp");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut options = bed.options(Kind::Ipfix, Transport::Udp, port);
    options.target.host = "127.0.0.1".to_owned();
    let sink = bed.start(options);
    let events = bed.record(40).len() as u64;
    let (mut next, mut templates, mut bytes) = (0_u32, 0, [0; 9_000]);
    let since = Instant::now();
    // Every mapping of the generator is a subscriber's, so there are bindings, too.
    while templates < 3 || sink.figures().records() > u64::from(next) {
        assert!(since.elapsed() < WAIT);
        let length = socket.recv(&mut bytes).unwrap();
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        assert!(length <= 1_452 && usize::from(u16_at(2)) == length && u16_at(0) == 10);
        let sequence = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
        assert_eq!(u32::from_be_bytes(bytes[12..16].try_into().unwrap()), 5);
        assert_eq!(sequence, next);
        if u16_at(16) == 2 {
            templates += 1;
            continue;
        }
        // Records of a set: their length is that of their fixed fields and an empty name.
        let mut at = 16;
        while at < length {
            let (set, size) = (u16_at(at), usize::from(u16_at(at + 2)));
            let record = match set {
                257 => 8 + 1 + 4 + 4 + 4 + 1 + 4 + 4 + 1 + 2 + 2,
                258 => 8 + 1 + 4 + 4 + 4 + 1 + 4 + 4,
                other => panic!("set {other}"),
            };
            assert_eq!((size - 4) % record, 0);
            next += ((size - 4) / record) as u32;
            at += size;
        }
    }
    assert!(u64::from(next) >= events);
}

#[test]
fn syslog_messages_have_their_length_and_the_names_of_the_draft() {
    let mut bed = Bed::new("syslog");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let _sink = bed.start(bed.options(Kind::Syslog, Transport::Tcp, listener.local_addr().unwrap().port()));
    let expected = bed.record(2);
    let mut reader = accept(&listener);
    let mut sequences = Vec::new();
    while sequences.last() != expected.last() {
        let mut length = Vec::new();
        reader.read_until(b' ', &mut length).unwrap();
        let length: usize = String::from_utf8(length).unwrap().trim_end().parse().unwrap();
        let mut message = vec![0; length];
        reader.read_exact(&mut message).unwrap();
        let text = String::from_utf8(message).unwrap();
        if text.contains(" NAT - started [natrix@32473 EVENT=\"started\" VERSION=\"0.0.0\"]") {
            continue;
        }
        let is_add = text.contains(" nat1 NAT - APMADD [napmap SSUBIX=\"0\" SVLAN=\"");
        assert!(text.starts_with("<134>1 20") && (is_add || text.contains(" NAT - APMDEL [napmap ")), "{text}");
        let number = text.split(" SEQUENCE=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        sequences.push(number.parse::<u64>().unwrap());
        assert!(text.contains(" ISPORT=\"") && text.contains(" XSPORT=\"") && text.ends_with("\"]"), "{text}");
    }
    assert_eq!(sequences, expected);
}

/// The next messages of syslog over a stream, without that of the start.
fn read_messages(reader: &mut impl BufRead, count: usize) -> Vec<String> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let mut length = Vec::new();
        assert!(reader.read_until(b' ', &mut length).unwrap() > 0, "the stream ended after {messages:?}");
        let length: usize = String::from_utf8(length).unwrap().trim_end().parse().unwrap();
        let mut message = vec![0; length];
        reader.read_exact(&mut message).unwrap();
        let text = String::from_utf8(message).unwrap();
        if !text.contains(" NAT - started ") {
            messages.push(text);
        }
    }
    messages
}

/// Messages with this text, until there are so many: what was sent before a restart may come again.
fn read_until(reader: &mut impl BufRead, text: &str, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        found.extend(read_messages(reader, 1).into_iter().filter(|message| message.contains(text)));
    }
    found
}

const BEGIN_US: u64 = 1_000_000;

fn at(seconds: u64) -> nat::Instant {
    nat::Instant::from_micros(Generator::begin().monotonic_us + BEGIN_US * seconds)
}

fn host_number(last: u8, is_softwire: bool) -> Ipv4Addr {
    Ipv4Addr::new(if is_softwire { 240 } else { 224 }, 0, 0, last)
}

/// The record that a number means this host.
fn named(sequence: u64, second: u64, low: u128, (number, inner): (Ipv4Addr, Option<Ipv4Addr>)) -> Event {
    let address = 0x2001_0db8 << 96 | low;
    let name = HostName { address, prefix_length: 128, inner: inner.map(Ipv4Addr::to_bits) };
    Event { sequence, ..name.event(at(second), RealmId(0), number) }
}

fn mapping(sequence: u64, second: u64, kind: EventKind, number: Ipv4Addr, port: u16) -> Event {
    Event {
        sequence,
        subscriber: number,
        external: [203, 0, 113, 9].into(),
        internal_port: port,
        first_port: port,
        last_port: port,
        protocol: Some(nat::Protocol::Udp),
        ..Event::new(kind, at(second))
    }
}

fn write(writer: &mut StoreWriter, second: u64, events: &[Event]) {
    writer.push_all(WorkerId(0), events);
    let unix_us = Generator::begin().unix_us + BEGIN_US * second;
    writer.advance(Moment { monotonic_us: at(second).as_micros(), unix_us }, at(second).as_micros()).unwrap();
    writer.flush().unwrap();
}

#[test]
fn syslog_names_ipv6_hosts_over_restarts_of_sink_and_instance() {
    // covers: 6333-11
    let bed = Bed::new("hosts");
    let store = bed.folder.join("store");
    let open = |seconds: u64| {
        let begin = Generator::begin();
        let now = Moment { unix_us: begin.unix_us + BEGIN_US * seconds, ..begin };
        StoreWriter::open(&store, StoreOptions::default(), now).unwrap()
    };
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = SinkOptions { store: store.clone(), ..bed.options(Kind::Syslog, Transport::Tcp, port) };
    let mut writer = open(0);
    let sink = bed.start(options.clone());
    let mut reader = accept(&listener);
    let (host, home) = (host_number(1, false), host_number(2, true));
    let inner = Ipv4Addr::new(192, 168, 1, 2);
    write(
        &mut writer,
        10,
        &[
            named(1, 5, 7, (host, None)),
            mapping(2, 5, EventKind::MappingCreated, host, 1_000),
            named(3, 6, 8, (home, Some(inner))),
            mapping(4, 6, EventKind::MappingCreated, home, 1_001),
        ],
    );
    let fields = |of: &str, port: u16| {
        format!(" {of} ISPORT=\"{port}\" XATYP=\"IPv4\" XSADDR=\"203.0.113.9\" XSPORT=\"{port}\" PROTO=\"17\"]")
    };
    let nat64 = |low: u8, port| fields(&format!("IATYP=\"IPv6\" ISADDR=\"2001:db8::{low}\""), port);
    let softwire = |port| fields("SV6ENC=\"2001:db8::8\" IATYP=\"IPv4\" ISADDR=\"192.168.1.2\"", port);
    let check = |messages: &[String], expected: &[(&str, String)]| {
        let said: Vec<&String> = messages.iter().filter(|text| text.contains("[napmap ")).collect();
        assert_eq!(said.len(), expected.len(), "{messages:?}");
        for (text, (kind, fields)) in said.into_iter().zip(expected) {
            assert!(text.contains(&format!(" NAT - {kind} [napmap SSUBIX=\"0\" SVLAN=\"0\"{fields}")), "{text}");
        }
        assert!(messages.iter().all(|text| !text.contains("\"224.0.0.") && !text.contains("\"240.0.0.")), "no number");
    };
    let messages = read_messages(&mut reader, 4);
    check(&messages, &[("APMADD", nat64(7, 1_000)), ("APMADD", softwire(1_001))]);
    // A name is no allocation: it has no external address, and is nothing to worry about.
    let names: Vec<&String> = messages.iter().filter(|text| text.contains(" NAT - host_named ")).collect();
    let of = |name: &str| format!(" NAT - host_named [natrix@32473 EVENT=\"host_named\" {name}]");
    let expected = [
        of("WORKER=\"0\" SEQUENCE=\"1\" REALM=\"0\" ISADDR=\"2001:db8::7\""),
        of("WORKER=\"0\" SEQUENCE=\"3\" REALM=\"0\" SV6ENC=\"2001:db8::8\" ISADDR=\"192.168.1.2\""),
    ];
    assert_eq!(names.len(), expected.len(), "{messages:?}");
    for (text, expected) in names.iter().zip(&expected) {
        assert!(text.starts_with("<134>1 ") && text.ends_with(expected), "{text}");
    }
    // The sink ends; the names of what ends later are only in what it has sent.
    wait_until("all is sent", || sink.figures().lag_us() == 0);
    drop((sink, reader));
    write(
        &mut writer,
        20,
        &[mapping(5, 15, EventKind::MappingEnded, host, 1_000), mapping(6, 15, EventKind::MappingEnded, home, 1_001)],
    );
    let sink = bed.start(options.clone());
    let mut reader = accept(&listener);
    let messages = read_until(&mut reader, " NAT - APMDEL ", 2);
    check(&messages, &[("APMDEL", nat64(7, 1_000)), ("APMDEL", softwire(1_001))]);
    wait_until("all is sent", || sink.figures().lag_us() == 0);
    drop((sink, reader));
    // The next instance gives the number to another host, and its sink begins in the middle.
    drop(writer);
    let mut writer = open(3_600);
    let sink = bed.start(options);
    let mut reader = accept(&listener);
    let second = 3_620;
    write(
        &mut writer,
        second,
        &[named(1, second - 5, 9, (host, None)), mapping(2, second - 5, EventKind::MappingCreated, host, 1_000)],
    );
    let messages = read_until(&mut reader, "2001:db8::9\" ISPORT", 1);
    check(&messages, &[("APMADD", nat64(9, 1_000))]);
    assert_eq!(sink.figures().lost(), 0);
}

#[test]
fn a_stop_ends_everything_that_was_open() {
    let bed = Bed::new("stop");
    let store = bed.folder.join("store");
    let mut writer = StoreWriter::open(&store, StoreOptions::default(), Generator::begin()).unwrap();
    let start = |name: &str, kind: Kind| {
        let listener = TcpListener::bind("localhost:0").unwrap();
        let options = bed.options(kind, Transport::Tcp, listener.local_addr().unwrap().port());
        let sink = bed.start(SinkOptions { name: name.to_owned(), store: store.clone(), ..options });
        let reading = std::thread::spawn(move || {
            let mut all = String::new();
            accept(&listener).read_to_string(&mut all).unwrap();
            all
        });
        (sink, reading)
    };
    let (lines, messages) = (start("lines", Kind::Json), start("messages", Kind::Syslog));
    let subscriber = Ipv4Addr::new(100, 64, 0, 10);
    write(
        &mut writer,
        10,
        &[
            mapping(1, 5, EventKind::MappingCreated, subscriber, 1_000),
            mapping(2, 5, EventKind::MappingCreated, subscriber, 1_001),
            mapping(3, 6, EventKind::MappingEnded, subscriber, 1_000),
        ],
    );
    wait_until("the records are sent", || lines.0.figures().records() == 4 && messages.0.figures().records() == 4);
    let stopped = Moment { monotonic_us: at(20).as_micros(), unix_us: Generator::begin().unix_us + 20_000_000 };
    writer.finish(stopped, stopped.monotonic_us, false).unwrap();
    // As an instance that stops.
    let [lines, messages] = [lines, messages].map(|(sink, reading)| {
        sink.end();
        drop(sink);
        reading.join().unwrap()
    });
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["started", "mapping_created", "mapping_created", "mapping_ended", "stopped"]);
    assert_eq!((&lines[4]["sequences"], &lines[4]["version"]), (&serde_json::json!([3]), &serde_json::json!("0.0.0")));
    assert_eq!(lines[4]["time"], export::utc_text(stopped.unix_us));
    let ends: Vec<&str> = messages.split("<13").filter(|text| !text.contains(" SEQUENCE=")).skip(2).collect();
    assert_eq!(ends.len(), 2, "{ends:?}");
    let of_mapping = "XSADDR=\"203.0.113.9\" XSPORT=\"1001\" PROTO=\"17\"]\
                      [natrix@32473 EVENT=\"mapping_ended\" CAUSE=\"run_ended\" REALM=\"0\" HELD=\"15\"]";
    assert!(ends[0].contains(" NAT - APMDEL [napmap ") && ends[0].contains(of_mapping), "{}", ends[0]);
    assert!(ends[1].ends_with(" NAT - stopped [natrix@32473 EVENT=\"stopped\"]"), "{}", ends[1]);
}

#[test]
fn numbers_of_datagrams_go_on_over_restarts() {
    let mut bed = Bed::new("numbers");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let mut options = bed.options(Kind::Ipfix, Transport::Udp, socket.local_addr().unwrap().port());
    options.target.host = "127.0.0.1".to_owned();
    let mut sent = 0;
    let mut bytes = [0; 9_000];
    for round in 0..3 {
        let sink = bed.start(options.clone());
        let length = socket.recv(&mut bytes).unwrap();
        let sequence = u32::from_be_bytes(bytes[8..12].try_into().unwrap());
        assert!(length > 16, "templates");
        assert_eq!(u64::from(sequence), sent, "round {round}");
        let events = bed.record(2).len() as u64;
        let figures = Arc::clone(sink.figures());
        wait_until("all is sent", || figures.records() >= events && figures.lag_us() == 0);
        drop(sink);
        sent += figures.records();
        socket.set_nonblocking(true).unwrap();
        while socket.recv(&mut bytes).is_ok() {}
        socket.set_nonblocking(false).unwrap();
    }
}

#[test]
fn what_is_deleted_counts_while_the_collector_is_away() {
    let mut bed = Bed::new("away");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let options = SinkOptions { spool_bytes: 20_000, ..bed.options(Kind::Json, Transport::Tcp, port) };
    let sink = bed.start(options);
    let mut recorded = Vec::new();
    for _ in 0..6 {
        recorded.extend(bed.record(20));
        bed.writer.seal().unwrap();
    }
    // The last of these windows is sealed, too.
    recorded.extend(bed.record(1));
    bed.writer.seal().unwrap();
    recorded.extend(bed.record(1));
    wait_until("the loss is known", || sink.figures().lost() > 0);
    assert!(!sink.figures().is_connected());
    let is_reported = |news: &News| matches!(news, News::Lost(_));
    assert!(bed.news.lock().unwrap().iter().any(is_reported));
    let listener = TcpListener::bind(("localhost", port)).unwrap();
    let mut reader = accept(&listener);
    let mut gaps = 0;
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0);
        let value: Value = serde_json::from_str(&line).unwrap();
        gaps += value["lost"].as_u64().unwrap_or(0);
        if value["sequence"].as_u64() == recorded.last().copied() {
            break;
        }
    }
    wait_until("the same is counted", || sink.figures().lost() == gaps);
    let reported: u64 =
        bed.news.lock().unwrap().iter().map(|news| if let News::Lost(count) = news { *count } else { 0 }).sum();
    assert_eq!(reported, gaps, "reported once");
}

/// Certificates of an authority of the test.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Authority { issuer: rcgen::Issuer::new(parameters, key), pem }
    }

    /// A certificate with these names, which ends in this year.
    fn sign(&self, names: &[&str], last_year: i32) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(last_year, 1, 1);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
        let key = rcgen::KeyPair::generate().unwrap();
        (parameters.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// A collector with this certificate: returns what it read, or why there was no connection.
fn serve(
    listener: TcpListener,
    (certificate, key): (String, String),
    clients: Option<String>,
) -> std::thread::JoinHandle<Result<Vec<u8>, String>> {
    use rustls::pki_types::pem::PemObject;
    std::thread::spawn(move || {
        let certificate = rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(rustls::pki_types::CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.unwrap())
            }
        };
        let config = builder.with_single_cert(vec![certificate], key).unwrap();
        let (stream, _) = listener.accept().map_err(|error| error.to_string())?;
        stream.set_read_timeout(Some(WAIT)).unwrap();
        let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, stream);
        let (mut all, mut bytes) = (Vec::new(), [0; 4_096]);
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&bytes[..count]),
                Err(error) => return Err(error.to_string()),
            }
            let _ = stream.flush();
        }
    })
}

#[test]
fn tls_carries_everything_and_shows_our_certificate() {
    let mut bed = Bed::new("tls");
    let authority = Authority::new("ours");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let mut options = bed.options(Kind::Json, Transport::Tls, listener.local_addr().unwrap().port());
    let server = serve(listener, authority.sign(&["localhost"], 4_000), Some(authority.pem.clone()));
    let path = |name: &str, text: &str| {
        let path = bed.folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let own = authority.sign(&["nat1"], 4_000);
    let own = (path("own.pem", &own.0), path("own.key", &own.1));
    options.security = Some(Security { authorities: path("authorities.pem", &authority.pem), own: Some(own) });
    let sink = bed.start(options);
    let expected = bed.record(30);
    wait_until("all is sent", || sink.figures().records() > expected.len() as u64);
    drop(sink);
    let all = server.join().unwrap().unwrap();
    let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let values = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
    assert_eq!(values.filter_map(|value| value["sequence"].as_u64()).collect::<Vec<_>>(), expected);
}

#[test]
fn wrong_expired_and_nameless_certificates_are_refused() {
    let mut bed = Bed::new("refused");
    let (authority, other) = (Authority::new("ours"), Authority::new("theirs"));
    bed.record(1);
    let cases = [
        (authority.sign(&["elsewhere.example"], 4_000), "not valid for"),
        (authority.sign(&["localhost"], 2_021), "expired"),
        (authority.sign(&[], 4_000), "not valid for"),
        (other.sign(&["localhost"], 4_000), "UnknownIssuer"),
    ];
    for (number, (certificate, why)) in cases.into_iter().enumerate() {
        let listener = TcpListener::bind("localhost:0").unwrap();
        let mut options = bed.options(Kind::Json, Transport::Tls, listener.local_addr().unwrap().port());
        let server = serve(listener, certificate, None);
        let path = bed.folder.join("authorities.pem");
        std::fs::write(&path, &authority.pem).unwrap();
        options.security = Some(Security { authorities: path, own: None });
        options.name = format!("number{number}");
        let sink = bed.start(options);
        bed.record(1);
        wait_until("a refusal", || sink.figures().errors() > 0);
        let error = sink.figures().last_error().unwrap();
        assert!(error.contains(why), "{error}");
        assert!(server.join().unwrap().is_err());
        assert_eq!((sink.figures().records(), sink.figures().is_connected()), (0, false));
    }
}

#[test]
fn a_handshake_of_tls_that_never_ends_does_not_hold_the_sink() {
    let mut bed = Bed::new("handshake");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let mut options = bed.options(Kind::Json, Transport::Tls, listener.local_addr().unwrap().port());
    let path = bed.folder.join("authorities.pem");
    std::fs::write(&path, Authority::new("ours").pem).unwrap();
    options.security = Some(Security { authorities: path, own: None });
    let sink = bed.start(options);
    let (mut stream, _) = listener.accept().unwrap();
    let drip = std::thread::spawn(move || {
        // A record of TLS, and in it a message, of 16 KiB.
        let begun = stream.write_all(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc");
        let since = Instant::now();
        while begun.is_ok() && since.elapsed() < WAIT && stream.write_all(b"\0").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    bed.record(1);
    std::thread::sleep(Duration::from_millis(500));
    let since = Instant::now();
    drop(sink);
    assert!(since.elapsed() < WAIT / 2, "the sink ended after {:?}", since.elapsed());
    drip.join().unwrap();
}

#[test]
fn a_collector_that_never_answers_does_not_hold_the_sink() {
    let mut bed = Bed::new("silent");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let address = listener.local_addr().unwrap();
    // With a full queue, requests for connections get no answer.
    rustix::net::listen(&listener, 0).unwrap();
    let waiting: Vec<_> =
        (0..8).map_while(|_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok()).collect();
    assert!((1..8).contains(&waiting.len()), "{} connections", waiting.len());
    let sink = bed.start(bed.options(Kind::Json, Transport::Tcp, address.port()));
    bed.record(1);
    // The first attempt goes on for ten seconds.
    let figures = sink.figures();
    wait_until("a lag", || figures.lag_us() > 400_000 && figures.errors() == 0);
    let since = Instant::now();
    drop(sink);
    assert!(since.elapsed() < WAIT * 2 / 5, "the sink ended after {:?}", since.elapsed());
    assert!(!bed.news.lock().unwrap().contains(&News::Connected));
}

#[test]
fn a_sink_that_was_never_connected_is_behind() {
    let mut bed = Bed::new("never");
    let port = TcpListener::bind("localhost:0").unwrap().local_addr().unwrap().port();
    let options = bed.options(Kind::Json, Transport::Tcp, port);
    let sink = bed.start(options.clone());
    bed.record(1);
    wait_until("a lag", || sink.figures().lag_us() > 0);
    drop(sink);
    // The next one knows how old the records are that wait: of last spring, by the generator.
    let sink = bed.start(options);
    let is_behind = |news: &News| matches!(news, News::Behind(lag) if *lag > Duration::from_secs(86_400));
    wait_until("the lag is reported", || bed.news.lock().unwrap().iter().any(is_behind));
    assert!(!sink.figures().is_connected());
}

#[test]
fn a_store_that_cannot_be_read_is_tried_again() {
    let mut bed = Bed::new("unreadable");
    let expected = bed.record(2);
    let mut moved: Vec<_> = ["catalogue", "catalogue.copy"].map(|name| bed.folder.join(name)).into();
    moved.retain(|path| path.exists());
    let aside = |path: &PathBuf| PathBuf::from(format!("{}.moved", path.display()));
    moved.iter().for_each(|path| std::fs::rename(path, aside(path)).unwrap());
    let listener = TcpListener::bind("localhost:0").unwrap();
    let sink = bed.start(bed.options(Kind::Json, Transport::Tcp, listener.local_addr().unwrap().port()));
    wait_until("the second attempt", || sink.figures().errors() > 1);
    assert!(sink.figures().last_error().unwrap().contains("no store of Natrix"));
    assert!(sink.figures().lag_us() > 0 && !sink.figures().is_connected());
    moved.iter().for_each(|path| std::fs::rename(aside(path), path).unwrap());
    // What the run recorded meanwhile is not passed over.
    let mut reader = accept(&listener);
    assert_eq!(read_sequences(&mut reader, *expected.last().unwrap()), expected);
    let failed = |news: &&News| matches!(news, News::Failed(_));
    assert_eq!(bed.news.lock().unwrap().iter().filter(failed).count(), 1, "said once");
}

#[test]
fn a_cursor_that_cannot_be_written_holds_back_nothing() {
    let mut bed = Bed::new("unwritable");
    let in_the_way = bed.folder.join("new-cursor-one");
    std::fs::create_dir(&in_the_way).unwrap();
    let listener = TcpListener::bind("localhost:0").unwrap();
    let sink = bed.start(bed.options(Kind::Json, Transport::Tcp, listener.local_addr().unwrap().port()));
    let expected = bed.record(2);
    let mut reader = accept(&listener);
    assert_eq!(read_sequences(&mut reader, *expected.last().unwrap()), expected);
    wait_until("another attempt", || sink.figures().errors() > 1);
    let unkept = |news: &&News| matches!(news, News::Unkept(_));
    assert_eq!(bed.news.lock().unwrap().iter().filter(unkept).count(), 1, "said once");
    std::fs::remove_dir(&in_the_way).unwrap();
    wait_until("the cursor", || bed.folder.join("cursor-one").exists());
}

#[test]
fn a_damaged_cursor_is_said_and_everything_is_sent_again() {
    let mut bed = Bed::new("cursor");
    let listener = TcpListener::bind("localhost:0").unwrap();
    let options = bed.options(Kind::Syslog, Transport::Tcp, listener.local_addr().unwrap().port());
    let first = bed.record(1);
    std::fs::write(bed.folder.join("cursor-one"), "").unwrap();
    let sink = bed.start(options);
    let messages = read_messages(&mut accept(&listener), 1 + first.len());
    assert!(messages[0].contains("EVENT=\"ends_unknown\""), "{messages:?}");
    assert!(messages[1].contains("SEQUENCE=\"1\""), "{messages:?}");
    assert!(bed.news.lock().unwrap().contains(&News::Begun));
    assert_eq!(sink.figures().lost(), 0);
}

#[test]
fn certificates_that_cannot_be_used_are_an_error_at_the_start() {
    let bed = Bed::new("files");
    let mut options = bed.options(Kind::Json, Transport::Tls, 1);
    let known = Arc::new(Mutex::new(Known::default()));
    let path = bed.folder.join("empty.pem");
    std::fs::write(&path, "no certificate\n").unwrap();
    for (authorities, why) in [(path, "no certificate is in it"), (bed.folder.join("missing.pem"), "No such file")] {
        options.security = Some(Security { authorities, own: None });
        let error = Sink::start(options.clone(), Arc::clone(&known), |_| {}).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_first_datagram_after_an_outage_arrives() {
    let mut bed = Bed::new("refused-datagrams");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut options = bed.options(Kind::Json, Transport::Udp, address.port());
    options.target.host = "127.0.0.1".to_owned();
    drop(socket);
    let sink = bed.start(options);
    let before = 1 + bed.record(2).len() as u64;
    wait_until("all is tried", || sink.figures().records() + sink.figures().lost() == before);
    let (lost, socket) = (sink.figures().lost(), UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(WAIT)).unwrap();
    let expected = bed.record(2);
    let (mut seen, mut bytes) = (Vec::new(), [0; 2_000]);
    while seen.last() != expected.last() {
        let length = socket.recv(&mut bytes).unwrap();
        let value: Value = serde_json::from_slice(&bytes[..length]).unwrap();
        seen.extend(value["sequence"].as_u64());
    }
    assert_eq!(seen, expected);
    assert!(lost > 0 && sink.figures().lost() <= lost + 1);
}
