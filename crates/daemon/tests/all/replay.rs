//! Replays captures, with the same result each time.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use config::EventLog;
use config::EventTarget;
use config::LogSync;
use daemon::replay::EVENTS_FILE;
use daemon::replay::ReplayError;
use daemon::replay::ReplayFiles;
use daemon::replay::Summary;
use daemon::replay::replay;
use nat::settings::Gateway;
use packet_io::capture::CaptureReader;
use packet_io::capture::CaptureWriter;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::MacAddress;
use wire::tcp::Flags;

const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 2), 4_000);
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 100), 53);
const SECOND_NS: u64 = 1_000_000_000;
/// An arbitrary time of the captures.
const EPOCH_NS: u64 = 1_700_000_000 * SECOND_NS;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = env::temp_dir().join(format!("natrix-{}-replay-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary directory");
        Folder(path)
    }

    /// A capture of IP packets between two stations that are unknown to Natrix.
    fn capture(&self, name: &str, packets: &[(u64, Vec<u8>)]) -> PathBuf {
        let path = self.0.join(name);
        let mut writer = CaptureWriter::create(&path).expect("a file");
        for (seconds, packet) in packets {
            let (from, to) = (MacAddress([6, 5, 4, 3, 2, 1]), MacAddress([6, 9, 9, 9, 9, 9]));
            let frame = build::frame(from, to, ETHER_TYPE_IPV4, packet);
            writer.write(EPOCH_NS + seconds * SECOND_NS, &frame).expect("it is written");
        }
        writer.finish().expect("it is written");
        path
    }

    fn replay(&self, inside: &Path, outside: &Path, out: &str) -> Result<Summary, ReplayError> {
        let files = ReplayFiles { inside: inside.to_owned(), outside: outside.to_owned(), out_dir: self.0.join(out) };
        replay(&crate::common::configuration(&self.0), &files)
    }

    /// The IP packets of a capture, with their times in seconds.
    fn packets(&self, path: &str) -> Vec<(u64, Vec<u8>)> {
        let mut reader = CaptureReader::open(&self.0.join(path)).expect("a capture");
        let mut packets = Vec::new();
        while let Some(record) = reader.next_record().expect("an undamaged capture") {
            packets.push(((record.time_ns - EPOCH_NS) / SECOND_NS, record.bytes[HEADER_LENGTH..].to_vec()));
        }
        packets
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure only leaves files in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn captures_go_through_the_engine_at_their_own_time() {
    let folder = Folder::new("time");
    let question = |payload: &[u8]| build::udp(CLIENT, SERVER).payload(payload).build();
    let inside = folder.capture("in.pcap", &[(0, question(b"a")), (5, question(b"b")), (900, question(b"c"))]);
    let silence = folder.capture("silence.pcap", &[]);

    let summary = folder.replay(&inside, &silence, "first").expect("a replay");
    assert_eq!((summary.packets_forwarded, summary.packets_dropped), (3, 0), "{summary}");
    assert_eq!(summary.mappings_created["udp"], 2, "the mapping ran out between 5 s and 900 s: {summary}");
    assert_eq!((summary.mappings, summary.duration_us), (1, 900_000_000));
    let out = folder.packets("first/outside.pcap");
    assert_eq!(out.iter().map(|(seconds, _)| *seconds).collect::<Vec<_>>(), [0, 5, 900]);
    assert_eq!(out[0].1[12..16], [10, 0, 1, 9], "the source is the pool's address");

    // A second run has the same external endpoints, so replies can be captured for them.
    let port = u16::from_be_bytes([out[0].1[20], out[0].1[21]]);
    let external = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 9), port);
    let answer = build::udp(SERVER, external).payload(b"answer").build();
    let outside = folder.capture("out.pcap", &[(1, answer.clone()), (700, answer)]);
    let summary = folder.replay(&inside, &outside, "second").expect("a replay");
    assert_eq!(summary.verdicts["inbound"], 1);
    assert_eq!(summary.verdicts["no_mapping"], 1, "at 700 s the mapping is gone");
    let back = folder.packets("second/inside.pcap");
    assert_eq!((back.len(), back[0].0), (1, 1));
    assert_eq!(back[0].1[16..20], [10, 0, 0, 2]);
    assert_eq!(back[0].1[28..], *b"answer");
    assert_eq!(fs::read(folder.0.join("first/outside.pcap")).ok(), fs::read(folder.0.join("second/outside.pcap")).ok());
}

#[test]
fn events_are_written_beside_the_captures_with_their_time() {
    let folder = Folder::new("events");
    let question = build::udp(CLIENT, SERVER).payload(b"a").build();
    let inside = folder.capture("in.pcap", &[(0, question.clone()), (900, question)]);
    let silence = folder.capture("silence.pcap", &[]);
    let mut config = crate::common::configuration(&folder.0);
    let elsewhere = folder.0.join("not-here.json");
    config.event_log = Some(EventLog {
        target: Some(EventTarget::File(elsewhere.clone())),
        store: None,
        queue: 1_024,
        rotate_bytes: 1 << 20,
        rotate_interval: nat::Duration::from_secs(3_600),
        keep_files: 0,
        sync: LogSync::Never,
    });
    let files = ReplayFiles { inside, outside: silence, out_dir: folder.0.join("out") };
    replay(&config, &files).expect("a replay");
    let text = fs::read_to_string(folder.0.join("out").join(EVENTS_FILE)).expect("the records");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[0].starts_with("{\"time\":\"2023-11-14T22:13:20.0") && lines[0].contains("mapping_created"),
        "{text}"
    );
    // After exactly five minutes of silence, to the poll.
    assert!(lines[1].starts_with("{\"time\":\"2023-11-14T22:18:") && lines[1].contains("mapping_ended"), "{text}");
    assert!(
        lines[2].starts_with("{\"time\":\"2023-11-14T22:28:20.0") && lines[2].contains("mapping_created"),
        "{text}"
    );
    assert!(!elsewhere.exists(), "the log of an instance is not touched");
}

#[test]
fn every_frame_has_a_verdict_at_the_end() {
    let folder = Folder::new("verdicts");
    let big = build::udp(CLIENT, SERVER).payload_length(3_000).build();
    let fragments = build::fragment(&big, 1_500);
    // The first fragment never comes.
    let packets: Vec<(u64, Vec<u8>)> = fragments[1..].iter().map(|fragment| (0, fragment.clone())).collect();
    let inside = folder.capture("in.pcap", &packets);
    let syn = build::tcp(SERVER, SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 9), 5_000), Flags::SYN).build();
    let outside = folder.capture("out.pcap", &[(0, syn)]);
    let summary = folder.replay(&inside, &outside, "results").expect("a replay");
    assert_eq!(summary.verdicts["fragment_timeout"], fragments.len() as u64 - 1);
    assert_eq!(summary.verdicts["unsolicited_syn"], 1);
    let frames = summary.frames_in.inside + summary.frames_in.outside;
    assert_eq!(frames, summary.packets_forwarded + summary.packets_local + summary.packets_dropped);
    // RFC 5382 REQ-4: the SYN is answered after six seconds, with an ICMP error.
    let answers = folder.packets("results/outside.pcap");
    assert_eq!(answers.iter().map(|(seconds, packet)| (*seconds, packet[9])).collect::<Vec<_>>(), [(6, 1)]);
}

#[test]
fn wrong_captures_and_overwritten_inputs_are_refused() {
    let folder = Folder::new("refused");
    let good = folder.capture("inside.pcap", &[]);
    let bad = folder.0.join("bad.pcap");
    fs::write(&bad, "no capture").expect("a file");
    assert!(matches!(folder.replay(&good, &bad, "results"), Err(ReplayError::Capture(_))));
    assert!(matches!(folder.replay(&good, &good, "."), Err(ReplayError::Overwrites(_))));
    assert!(good.exists());
}

/// A replay with gateways of FTP and SIP.
fn replay_with_gateways(folder: &Folder, inside: &[(u64, Vec<u8>)], outside: &[(u64, Vec<u8>)]) -> Summary {
    let files = ReplayFiles {
        inside: folder.capture("in.pcap", inside),
        outside: folder.capture("out.pcap", outside),
        out_dir: folder.0.join("result"),
    };
    let mut config = crate::common::configuration(&folder.0);
    let gateways = ["ftp", "sip"].map(|name| Gateway::new(alg::AlgId::named(name).expect("a gateway")));
    config.nat.gateways = gateways.to_vec();
    replay(&config, &files).expect("a replay")
}

/// The payload of the last packet behind headers of this length.
fn last_text(packets: &[(u64, Vec<u8>)], headers: usize) -> String {
    let (_, last) = packets.last().expect("a packet");
    String::from_utf8(last[headers..].to_vec()).expect("text")
}

#[test]
fn an_active_ftp_session_is_translated_in_captures() {
    let folder = Folder::new("ftp");
    let server = SocketAddrV4::new(*SERVER.ip(), 21);
    let segment = |flags: Flags, sequence: u32, ack: u32, text: &str| {
        build::tcp(CLIENT, server, flags).sequence(sequence).acknowledgment(ack).payload(text.as_bytes()).build()
    };
    let mut inside = vec![(0, segment(Flags::SYN, 1_000, 0, ""))];
    replay_with_gateways(&folder, &inside, &[]);
    let first = folder.packets("result/outside.pcap");
    let external = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 9), u16::from_be_bytes([first[0].1[20], first[0].1[21]]));

    let answer = |flags: Flags, sequence: u32, ack: u32, text: &str| {
        build::tcp(server, external, flags).sequence(sequence).acknowledgment(ack).payload(text.as_bytes()).build()
    };
    let mut outside = vec![
        (1, answer(Flags::SYN.union(Flags::ACK), 5_000, 1_001, "")),
        (3, answer(Flags::ACK, 5_001, 1_001, "220 ready\r\n")),
        (5, answer(Flags::ACK, 5_012, 1_010, "230 in\r\n")),
    ];
    inside.push((2, segment(Flags::ACK, 1_001, 5_001, "")));
    inside.push((4, segment(Flags::ACK, 1_001, 5_012, "USER me\r\n")));
    inside.push((6, segment(Flags::ACK, 1_010, 5_020, "PORT 10,0,0,2,18,52\r\n")));
    replay_with_gateways(&folder, &inside, &outside);
    let sent = last_text(&folder.packets("result/outside.pcap"), 40);
    let numbers: Vec<u16> = sent
        .trim_end()
        .strip_prefix("PORT 10,0,1,9,")
        .expect("the pool's address")
        .split(',')
        .map(|number| number.parse().expect("a number"))
        .collect();
    let announced = SocketAddrV4::new(*external.ip(), numbers[0] * 256 + numbers[1]);

    let data = SocketAddrV4::new(*SERVER.ip(), 20);
    outside.push((7, build::tcp(data, announced, Flags::SYN).sequence(9_000).build()));
    let summary = replay_with_gateways(&folder, &inside, &outside);
    assert_eq!(summary.packets_dropped, 0, "{summary}");
    let packets = folder.packets("result/inside.pcap");
    let (_, opened) = packets.last().expect("the data connection");
    assert_eq!((&opened[16..20], &opened[22..24]), (&[10, 0, 0, 2][..], &[18, 52][..]));
}

#[test]
fn a_sip_call_is_translated_in_captures() {
    let folder = Folder::new("sip");
    let (phone, proxy) = (SocketAddrV4::new(*CLIENT.ip(), 5060), SocketAddrV4::new(*SERVER.ip(), 5060));
    let body = "v=0\r\nc=IN IP4 10.0.0.2\r\nm=audio 5004 RTP/AVP 0\r\n";
    let invite = format!(
        "INVITE sip:b@10.0.1.100 SIP/2.0\r\nVia: SIP/2.0/UDP 10.0.0.2:5060;branch=z9hG4bK1\r\nCSeq: 1 INVITE\r\n\
Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let inside = [(0, build::udp(phone, proxy).payload(invite.as_bytes()).build())];
    replay_with_gateways(&folder, &inside, &[]);
    let sent = last_text(&folder.packets("result/outside.pcap"), 28);
    assert!(sent.contains("c=IN IP4 10.0.1.9\r\n") && !sent.contains("10.0.0.2"), "{sent}");
    let port = sent.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
    let sound = SocketAddrV4::new(Ipv4Addr::new(10, 0, 1, 9), port.parse().expect("a port"));

    let from = SocketAddrV4::new(*SERVER.ip(), 20_000);
    let outside = [(1, build::udp(from, sound).payload(b"sound").build())];
    let summary = replay_with_gateways(&folder, &inside, &outside);
    assert_eq!(summary.packets_dropped, 0, "{summary}");
    let packets = folder.packets("result/inside.pcap");
    let (_, heard) = packets.last().expect("the sound");
    assert_eq!((&heard[16..20], &heard[22..24], &heard[28..]), (&[10, 0, 0, 2][..], &[0x13, 0x8c][..], &b"sound"[..]));
}

/// The captures and the configuration that the documentation shows: `examples`.
#[test]
fn the_examples_of_a_transfer_and_a_call_are_translated() {
    let folder = Folder::new("examples");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let text = fs::read_to_string(examples.join("gateways.toml")).expect("an example");
    let config = config::parse(&text, "gateways.toml").expect("a valid configuration");
    for (name, announced, expected) in [
        ("ftp", "PORT 203,0,113,10,18,52\r\n", (9, 14)),
        ("sip", "c=IN IP4 203.0.113.10\r\nt=0 0\r\nm=audio 5004 RTP/AVP 0\r\n", (5, 4)),
    ] {
        let files = ReplayFiles {
            inside: examples.join(format!("captures/{name}-inside.pcap")),
            outside: examples.join(format!("captures/{name}-outside.pcap")),
            out_dir: folder.0.join(name),
        };
        let summary = replay(&config, &files).expect("a replay");
        assert_eq!(summary.packets_dropped, 0, "{name}: {summary}");
        let texts = |side: &str| -> Vec<String> {
            let mut reader = CaptureReader::open(&files.out_dir.join(side)).expect("a capture");
            let mut texts = Vec::new();
            while let Some(record) = reader.next_record().expect("an undamaged capture") {
                texts.push(String::from_utf8_lossy(record.bytes).into_owned());
            }
            texts
        };
        let (outside, inside) = (texts("outside.pcap"), texts("inside.pcap"));
        assert_eq!((outside.len(), inside.len()), expected, "{name}: packets that left");
        assert_eq!(outside.iter().filter(|text| text.contains(announced)).count(), 1, "{name}: {announced}");
        // The origin of a description names nobody to be reached.
        let lines = outside.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with("o="));
        assert!(!lines.into_iter().any(|line| line.contains("100.64.0.10") || line.contains("100,64,0,10")), "{name}");
        assert!(!inside.iter().any(|text| text.contains("203.0.113.10")), "{name}");
    }
}
