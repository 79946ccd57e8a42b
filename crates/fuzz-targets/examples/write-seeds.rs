//! Writes the seeds of the targets: `cargo run -p fuzz-targets --example write-seeds`.

use std::fs;
use std::io;
use std::path::Path;

use packet_io::capture::CaptureWriter;
use wire::arp::Message;
use wire::build;
use wire::build::endpoint;
use wire::build6;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::MacAddress;
use wire::ethernet::VlanTag;
use wire::ipv4::Ipv4;
use wire::neighbour;
use wire::tcp::Flags;

fn main() -> io::Result<()> {
    let inside = endpoint([100, 64, 0, 10], 40_000);
    let server = endpoint([203, 0, 113, 1], 443);
    let (client, router) = (MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2]));

    let route_options = [148, 4, 0, 0, 7, 7, 4, 0, 0, 0, 0, 131, 7, 4, 1, 2, 3, 4];
    let syn_options = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
    let extension = [0, 8, 1, 1, 0, 0, 17, 64];
    let udp = build::udp(inside, server).payload(b"payload").build();
    let plain = build::udp(inside, server).without_checksum().build();
    let routed = build::udp(inside, server).ip_options(&route_options).payload_length(200).build();
    let syn = build::tcp(inside, server, Flags::SYN).sequence(1).tcp_options(&syn_options).build();
    let data = build::tcp(inside, server, Flags::ACK | Flags::PSH).payload_length(100).build();
    let echo = build::echo_request(*inside.ip(), *server.ip(), 7).payload(b"ping").build();
    let zeros = build::echo_reply(*server.ip(), *inside.ip(), 0).sequence(0).payload(&[0; 8]).build();
    let error = |icmp_type, code, quote: &[u8]| build::icmp_error(*server.ip(), *inside.ip(), icmp_type, code, quote);
    let unreachable = error(3, 3, &udp).build();
    let too_big = error(3, 4, &syn[..28]).next_hop_mtu(1400).build();
    let extended = error(11, 0, &routed[..128]).extension(&extension).build();
    let legacy = error(11, 0, &data).legacy_extension(&extension).build();
    let about_echo = error(11, 0, &echo).build();
    let fragments = build::fragment(&routed, 100);

    let mut packets = vec![
        ("udp", udp.clone()),
        ("udp-without-checksum", plain.clone()),
        ("udp-with-options", routed.clone()),
        ("tcp-syn", syn.clone()),
        ("tcp-data", data),
        ("echo", echo),
        ("echo-reply-of-zeros", zeros),
        ("port-unreachable", unreachable),
        ("too-big", too_big),
        ("extension", extended),
        ("legacy-extension", legacy),
        ("error-about-echo", about_echo),
    ];
    packets.extend(["fragment-1", "fragment-2", "fragment-3"].into_iter().zip(fragments));

    for (name, packet) in &packets {
        write("translate_roundtrip", name, packet)?;
        write("wire_ipv4", name, packet)?;
        write("wire_verify", name, packet)?;
        write("wire_quoted", name, packet)?;
        write("wire_checksum", name, packet)?;
        write("nat_own_icmp", name, packet)?;
        write("nat_split", name, &[&[0, 100], packet.as_slice()].concat())?;
        if Ipv4::new_unchecked(packet.as_slice()).protocol() == 1 {
            write("nat_icmp_quote", name, packet)?;
        }
        write("wire_fragments", name, &[&[0, 100], packet.as_slice()].concat())?;
        let view = Ipv4::new_unchecked(packet.as_slice());
        let target = match view.protocol() {
            1 => "wire_icmp",
            6 => "wire_tcp",
            _ => "wire_udp",
        };
        write(target, name, view.payload())?;
    }
    write_ipv6()?;
    // Steps of `nat_fragments6`: datagram and flags (16: length in bytes, 32: behind the end),
    // offset, length in units of 8, end (1: last, 2: at the end of the datagram), wait.
    write("nat_fragments6", "softwire", &[0, 0, 0, 125, 0, 0, 0, 3, 232, 0, 3, 0])?;
    write("nat_fragments6", "softwire-last-first", &[0, 3, 232, 0, 3, 0, 0, 0, 0, 125, 0, 1])?;
    write("nat_fragments6", "nat64", &[1, 0, 0, 125, 0, 0, 1, 3, 232, 0, 3, 0])?;
    write("nat_fragments6", "nat64-last-first", &[1, 3, 232, 0, 3, 0, 1, 0, 0, 125, 0, 1])?;
    write(
        "nat_fragments6",
        "two-sources",
        &[0, 0, 0, 125, 0, 0, 2, 0, 0, 125, 0, 0, 2, 3, 232, 0, 3, 0, 0, 3, 232, 0, 3, 0],
    )?;
    write(
        "nat_fragments6",
        "overlap",
        &[0, 0, 0, 125, 0, 0, 0, 3, 224, 0, 3, 0, 1, 0, 0, 125, 0, 0, 1, 3, 224, 0, 3, 0],
    )?;
    write("nat_fragments6", "too-late", &[0, 0, 0, 125, 0, 0, 0, 3, 232, 0, 3, 63, 1, 0, 0, 125, 0, 63])?;
    write("nat_fragments6", "behind-the-end", &[32, 0, 0, 1, 0, 0, 0, 3, 240, 0, 3, 0, 0, 0, 0, 125, 0, 0])?;
    // Settings (3), then steps of `softwire_path`: a packet of a B4 (B4 twice, home and length,
    // destination twice, port, flags, kind, damage, worker), answers, errors, time.
    let packet = |kind: u8, spoil: u8| [0, 0, 1, 0, 3, 0, 0, 2, kind, spoil];
    let answer = [7, 0, 0, 0];
    for (name, kind) in [("udp", 0), ("tcp", 3), ("echo", 5), ("nested", 7)] {
        write(
            "softwire_path",
            name,
            &[&[0, 0, 0], &packet(kind, 0)[..], &answer, &[9, 0, 0, 0, 0, 0, 0], &answer].concat(),
        )?;
    }
    let cut = [&packet(0, 16)[..], &[4, 0, 0, 0], &packet(0, 16), &[4, 3, 0, 0, 0]].concat();
    write("softwire_path", "fragments", &[&[0, 0, 0], &cut[..], &answer].concat())?;
    // The length is 1,400 bytes, and 64 bytes of it come behind the end, before the first ones.
    let moved = [0, 0, 1, 24, 3, 0, 0, 2, 0, 16, 4, 1 | 8 | 7 << 4, 0, 0, 0];
    write("softwire_path", "behind-the-end", &[&[0, 0, 0], &moved[..]].concat())?;
    write("softwire_path", "extension", &[&[0, 0, 1], &packet(0, 4)[..], &answer].concat())?;
    write(
        "softwire_path",
        "families",
        &[&[0, 0, 1], &[10, 3, 0, 0, 0, 0, 11, 3, 0, 0, 0][..], &packet(0, 0), &answer].concat(),
    )?;
    // Steps of `nat_fragments`: flags (32: more fragments, 64: refused), offset, length in units of
    // 8, wait.
    write("nat_fragments", "in-order", &[32, 0, 0, 10, 0, 32, 0, 80, 10, 1, 0, 0, 160, 1, 1])?;
    write("nat_fragments", "last-first", &[0, 0, 160, 1, 0, 32, 0, 80, 10, 1, 32, 0, 0, 10, 1])?;
    write("nat_fragments", "overlap", &[32, 0, 80, 10, 0, 32, 0, 88, 1, 0, 32, 0, 0, 10, 0])?;
    write("nat_fragments", "too-late", &[32, 0, 80, 10, 0, 32, 0, 0, 10, 250, 0, 0, 160, 1, 255, 0, 0, 160, 1, 255])?;
    write("nat_fragments", "refused", &[32, 0, 80, 10, 0, 96, 0, 0, 10, 0, 0, 0, 160, 1, 0])?;
    write("wire_ipv4_options", "routes", &route_options)?;
    write("wire_ipv4_options", "nothing", &[1, 1, 1, 0])?;
    write("wire_tcp", "options-alone", &syn_options)?;
    write("wire_ethernet", "plain", &build::frame(client, router, ETHER_TYPE_IPV4, &plain))?;
    let tag = VlanTag { id: 100, priority_bits: 5 };
    write("wire_ethernet", "tagged", &build::tagged_frame(client, router, tag, ETHER_TYPE_IPV4, &plain))?;
    let request = Message::request(client, 0x6440_000a, 0x6440_0001);
    write("wire_arp", "request", &request.to_bytes())?;
    write("wire_arp", "reply", &request.reply(router).to_bytes())?;
    write("wire_mac_text", "colons", client.to_string().as_bytes())?;
    write("wire_mac_text", "dashes", b"02-00-5E-10-AB-01")?;
    captures_and_neighbours(&build::frame(client, router, ETHER_TYPE_IPV4, &plain), &request)?;
    configurations()?;
    paths()
}

/// The file with every key, and values of every kind.
fn configurations() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, file) in [
        ("every-key", "crates/config/tests/every_key.toml"),
        ("small-isp", "examples/small-isp.toml"),
        ("vlan", "examples/vlan.toml"),
        ("missing-keys", "crates/config/tests/faults/missing_keys.toml"),
    ] {
        write("config_text", name, &fs::read(root.join(file))?)?;
    }
    for (name, value) in [
        ("duration", "2 h 4 min"),
        ("size", "512 MiB"),
        ("rate", "5 k/s"),
        ("ports", "1024-65535"),
        ("address", "192.0.2.1"),
        ("addresses", "192.0.2.1-192.0.2.9"),
        ("prefix", "100.64.0.0/10"),
    ] {
        write("config_value", name, value.as_bytes())?;
    }
    port_control_seeds()?;
    Ok(())
}

/// Settings of `engine_path` and `frames_path`: all defaults, and variants of single bytes (see
/// `traffic::setup`).
const PLAIN: [u8; 8] = [0; 8];
const TWO_WORKERS: [u8; 8] = [0, 4, 0, 8, 0, 0, 1, 2];
const STRICT: [u8; 8] = [0b10_1010, 4, 0, 0, 0, 0, 2, 1];
const BY_ADDRESS: [u8; 8] = [0b1101_0101, 1, 64, 3, 0, 0, 3, 0];
const TINY: [u8; 8] = [0, 0, 8, 2, 0, 0x7f, 4, 0];
const NARROW: [u8; 8] = [0, 0, 0, 0, 3 << 3, 0x80, 5, 0];

/// Steps of `engine_path`: an operation, then what it reads (see `traffic::Traffic::packet`).
fn paths() -> io::Result<()> {
    // Packet at once, kind; and for flows: inside address, outside address, protocol fields, shape.
    let udp = [0, 0, 0x00, 0x00, 0];
    let other_udp = [0, 0, 0x11, 0x01, 0];
    let syn = [0, 2, 0x00, 0xc0, 0, 0, 0];
    let ping = [0, 4, 0x00, 0x00, 0, 0];
    // Kind, which packet that left, the difference; then as for flows.
    let reply = [0, 5, 0, 0, 0];
    let syn_ack = [0, 5, 0, 0, 1, 2, 0];
    let ack = [0, 2, 0x00, 0xc0, 2, 0x19, 0];
    let fin = [0, 2, 0x00, 0xc0, 3, 0x19, 0];
    let reset = [0, 5, 0, 0, 4, 0x19, 0];
    let strange_reply = [0, 5, 0, 1, 0x01, 0];
    let echo_reply = [0, 5, 0, 0, 0];
    let unreachable = [0, 8, 0, 1, 0, 5, 220, 0];
    let extended = [0, 8, 0, 0x21, 2, 0, 0, 0];
    let error_from_inside = [0, 9, 0, 1, 0, 0, 0, 0];
    let hairpin = [0, 10, 0x01, 0, 0];
    let syn_from_nobody = [0, 11, 0x00, 0, 0, 2, 1, 0, 0, 0];
    let pass = [0, 13, 0x00, 0x00, 0, 0];
    let long = [0, 0, 0x00, 0x00, 4];
    let fragments = [0, 0x40, 0x00, 0x00, 4, 2, 1, 0];
    let fragments_backwards = [0, 0x40, 0x00, 0x00, 4, 2, 2, 2];
    let fragmented_reply = [0, 0x45, 0, 0, 4, 2, 1, 2];
    let wait = |choice: u8| [13, choice];
    let sweep = [15];
    // The same as steps of `frames_path`: packets get a right link header, and neighbour requests
    // are answered.
    let framed = |step: &&[u8]| match step.first() {
        Some(0) => [*step, &[0, 9, 0, 15]].concat(),
        Some(13) => [*step, &[12, 0, 12, 1]].concat(),
        _ => step.to_vec(),
    };

    let tcp: &[&[u8]] = &[&syn, &syn_ack, &ack, &fin, &wait(10), &sweep, &reset, &wait(14), &ack, &sweep];
    let udp_paths: &[&[u8]] = &[&udp, &reply, &strange_reply, &other_udp, &hairpin, &wait(11), &reply, &sweep, &udp];
    let errors: &[&[u8]] =
        &[&udp, &reply, &unreachable, &extended, &error_from_inside, &ping, &echo_reply, &unreachable];
    let pieces: &[&[u8]] =
        &[&udp, &fragments, &fragments_backwards, &fragmented_reply, &long, &hairpin, &wait(5), &sweep];
    let rest: &[&[u8]] = &[&syn_from_nobody, &wait(6), &sweep, &pass, &udp, &hairpin, &other_udp, &hairpin];
    for (name, settings) in [
        ("plain", PLAIN),
        ("two-workers", TWO_WORKERS),
        ("strict", STRICT),
        ("by-address", BY_ADDRESS),
        ("tiny", TINY),
        ("narrow", NARROW),
    ] {
        for (path, list) in [("tcp", tcp), ("udp", udp_paths), ("errors", errors), ("pieces", pieces), ("rest", rest)] {
            write("engine_path", &format!("{path}-{name}"), &[settings.as_slice(), &list.concat()].concat())?;
            if name == "plain" {
                let with_hosts = [0, 0, 0, 0, 0, 0, 0, 16];
                write("engine_path", &format!("{path}-hosts"), &[with_hosts.as_slice(), &list.concat()].concat())?;
            }
            let frames: Vec<u8> = list.iter().flat_map(framed).collect();
            write("frames_path", &format!("{path}-{name}"), &[settings.as_slice(), &frames].concat())?;
        }
    }
    talks()?;
    let arp: &[&[u8]] =
        &[&[8, 0, 5, 2], &[8, 1, 1, 3], &[8, 9, 1, 4], &[8, 2, 3, 3], &udp, &[0], &[9, 3], &wait(9), &[12, 0]];
    write("frames_path", "arp", &[PLAIN.as_slice(), &arp.concat()].concat())?;
    write(
        "frames_path",
        "vlan-and-strangers",
        &[PLAIN.as_slice(), &[0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 12]].concat(),
    )?;
    let few_buffers = [0, 4, 0, 0, 0, 0, 1, 28];
    let flood: Vec<u8> = (0..30).flat_map(|_| [7, 0, 0x00, 0x00, 0, 0]).collect();
    write("frames_path", "few-buffers", &[few_buffers.as_slice(), &flood, &[12, 0, 9, 0, 12, 1, 15]].concat())
}

/// Control sessions of gateways and requests of port control: packet at once, kind from 48 on; then
/// as in `talk.rs`.
fn talks() -> io::Result<()> {
    let (open, answer) = (|server: u8| [0, 48, server << 2], [0, 50, 0]);
    let inside_says = |phrase: u8| [0, 51, 0, phrase, 8];
    let outside_says = |phrase: u8| [0, 55, 0, phrase, 8];
    let (in_two_parts, again) = ([0, 51, 0, 1, 10, 5, 0, 51, 0, 1, 0, 5], [0, 51, 0, 1, 0, 24]);
    let (peer, stranger) = ([0, 63, 0, 1], [0, 63, 0, 0]);
    let (wait, sweep) = ([13, 8], [15]);
    let ftp: &[&[u8]] = &[
        &open(0),
        &answer,
        &outside_says(0),
        &inside_says(0),
        &inside_says(1),
        &again,
        &stranger,
        &peer,
        &in_two_parts,
        &inside_says(5),
        &outside_says(2),
        &wait,
        &sweep,
    ];
    let sip: &[&[u8]] = &[
        &[0, 58, 0, 0],
        &[0, 58, 0, 1],
        &stranger,
        &peer,
        &open(1),
        &answer,
        &inside_says(1),
        &outside_says(1),
        &peer,
        &[0, 58, 20, 0],
        &wait,
        &peer,
    ];
    let rtsp: &[&[u8]] = &[&open(2), &answer, &inside_says(0), &outside_says(0), &peer, &inside_says(2), &stranger];
    let pptp: &[&[u8]] = &[
        &open(3),
        &answer,
        &[0, 51, 0, 8, 8, 0],
        &[0, 55, 0, 8, 8, 0],
        &[0, 51, 0, 8, 8, 1],
        &[0, 55, 0, 8, 8, 1, 8, 0],
        &peer,
        &[0, 58, 24, 0],
        &inside_says(1),
    ];
    let ports: &[&[u8]] = &[
        &[0, 61, 0, 0x08],
        &[0, 61, 0, 0x03],
        &stranger,
        &[0, 61, 4, 0x02],
        &[0, 61, 0, 0xc2],
        &[0, 61, 0, 0xa2],
        &[0, 61, 0, 0x00],
        &[0, 60, 1, 0, 0],
        &[0, 61, 0, 0x0a],
        &wait,
        &sweep,
        &stranger,
    ];
    for (path, list) in [("ftp", ftp), ("sip", sip), ("rtsp", rtsp), ("pptp", pptp), ("ports", ports)] {
        for (name, settings) in [("plain", PLAIN), ("two-workers", TWO_WORKERS), ("strict", STRICT), ("tiny", TINY)] {
            let mut settings = settings.to_vec();
            settings[7] |= 0xe0;
            write("engine_path", &format!("{path}-{name}"), &[settings.as_slice(), &list.concat()].concat())?;
        }
    }
    Ok(())
}

/// Captures of both formats and byte orders, and of steps of the neighbour cache.
fn captures_and_neighbours(packet: &[u8], arp: &Message) -> io::Result<()> {
    let writer = CaptureWriter::new("seed", Vec::new()).and_then(|mut writer| {
        writer.write(1_700_000_000_123_456_789, packet)?;
        writer.write(1_700_000_001_000_000_000, &[0; 14])?;
        writer.finish()
    });
    write("capture_read", "pcap-nanoseconds", &writer.map_err(io::Error::other)?)?;

    let big = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let little = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let micros = [0xa1b2_c3d4, 0x0002_0004, 0, 0, 65_535, 1, 1_700_000_000, 999_999, 4, 60, 0x0102_0304];
    write("capture_read", "pcap-big-endian", &big(&micros))?;
    let mut micros_little = little(&micros);
    micros_little[4..8].copy_from_slice(&[2, 0, 4, 0]);
    write("capture_read", "pcap-cut-frame", &micros_little)?;

    let section = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
    // Snapshot length, then options: time resolution of a nanosecond, offset of an hour, end.
    let interface = [1, 48, 1, 262_144, 0x0001_0009, 9, 0x0008_000e, 3_600, 0, 0, 0, 48];
    let enhanced = [6, 36, 0, 0x0005_f000, 0x1234_5678, 4, 60, 0x0403_0201, 36];
    let simple = [3, 20, 4, 0x0403_0201, 20];
    let unknown = [0x0bad, 16, 7, 16];
    let blocks = [section.as_slice(), &interface, &enhanced, &unknown, &simple].concat();
    write("capture_read", "pcapng", &little(&blocks))?;
    let sections = [little(&[section.as_slice(), &interface, &enhanced].concat()), big(&section)].concat();
    write("capture_read", "pcapng-two-sections", &sections)?;

    for (target, bytes) in export::store::fuzzing::seeds() {
        write(&format!("export_{target}"), "generated", &bytes)?;
    }
    write("daemon_arp", "request", &[&[0], arp.to_bytes().as_slice()].concat())?;
    let ours = Message::request(arp.sender_mac, 0xc000_0205, 0xcb00_7101);
    write("daemon_arp", "request-for-the-pool", &[&[1], ours.to_bytes().as_slice()].concat())?;
    let claim = Message::request(arp.sender_mac, 0xcb00_7101, 0xcb00_7101);
    write("daemon_arp", "claim-of-the-pool", &[&[1], claim.to_bytes().as_slice()].concat())?;
    write_ndp()?;

    // Bounds, then operation and argument: 0 hold, 2 learn, 4 act, 5 wait, 7 give up.
    write("daemon_neighbours", "answered", &[7, 7, 0, 0, 4, 9, 0, 0, 2, 5, 4, 9, 0, 0])?;
    write("daemon_neighbours", "absent", &[7, 7, 0, 0, 4, 9, 5, 4, 4, 9, 5, 4, 4, 9, 5, 4, 4, 9, 0, 0, 7, 0])?;
    write("daemon_neighbours", "full", &[1, 1, 0, 0, 8, 0, 16, 0, 4, 9, 10, 1, 4, 9, 24, 0, 5, 255, 4, 9])?;
    write(
        "daemon_neighbours",
        "probed",
        &[3, 3, 0, 0, 2, 1, 4, 9, 0, 0, 5, 201, 4, 9, 0, 0, 2, 2, 5, 201, 4, 9, 5, 255, 4, 9],
    )
}

fn port_control_seeds() -> io::Result<()> {
    let host = testkit::I1;
    let server = endpoint([198, 51, 100, 1], 53);
    let map = testkit::Ask::map(host, nat::Protocol::Udp, 7_000);
    let asks = [
        ("announce", testkit::Ask::announce(host)),
        ("map", map.clone()),
        ("map-filter", map.clone().filter(120, server)),
        ("map-set", map.clone().set(4, true)),
        ("map-prefer-failure", map.clone().suggest(endpoint([203, 0, 113, 1], 10_007)).prefer_failure()),
        ("map-third-party", map.clone().third_party(testkit::I2)),
        ("delete", map.clone().lifetime(0)),
        ("peer", testkit::Ask::peer(host, nat::Protocol::Tcp, 7_001, server)),
    ];
    let mut steps = vec![2];
    for (name, ask) in &asks {
        let message = ask.message();
        write("pcp_messages", name, &message)?;
        steps.extend([0, message.len() as u8]);
        steps.extend(&message);
        steps.extend([7, 60, 6, 0]);
    }
    let address = [0, 0];
    let nat_pmp = [0, 2, 0, 0, 27, 88, 0, 0, 0, 0, 14, 16];
    write("pcp_messages", "nat-pmp-address", &address)?;
    write("pcp_messages", "nat-pmp-map", &nat_pmp)?;
    for message in [address.as_slice(), &nat_pmp] {
        steps.extend([0, message.len() as u8]);
        steps.extend(message);
    }
    write("pcp_steps", "all", &steps)
}

fn write(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}

/// Packets of IPv6.
fn write_ipv6() -> io::Result<()> {
    let (host, server) = (build6::endpoint("2001:db8::7", 40_000), build6::endpoint("64:ff9b::cb00:7105", 443));
    let udp = build6::udp(host, server, b"payload");
    let options = [0, 1, 4, 0, 0, 0, 0];
    let extended = build6::with_extension(&udp, 60, &options);
    let routed = build6::with_extension(&extended, 43, &[0; 7]);
    let atomic = build6::with_extension(&udp, 44, &[0, 0, 0, 0, 0, 0, 1]);
    let echo = build6::echo_request(*host.ip(), *server.ip(), 7, b"ping");
    let error = |kind, rest, quote: &[u8]| build6::icmp(*server.ip(), *host.ip(), kind, rest, quote);
    let long = build6::udp(host, server, &[7; 72]);
    let extension = [0x20, 0, 0xdf, 0xff];
    let mut packets = vec![
        ("udp6", udp.clone()),
        ("tcp6", build6::tcp(host, server, Flags::SYN, b"")),
        ("echo6", echo.clone()),
        ("options6", build6::with_extension(&routed, 0, &options)),
        ("atomic6", atomic),
        ("unreachable6", error((1, 4), [0; 4], &udp)),
        ("too-big6", error((2, 0), [0, 0, 5, 120], &udp)),
        ("problem6", error((4, 0), [0, 0, 0, 7], &extended)),
        ("error-about-echo6", error((3, 0), [0; 4], &echo)),
        ("extension6", error((3, 0), [15, 0, 0, 0], &[long.as_slice(), &extension].concat())),
    ];
    let fragments = build6::fragment(&build6::udp(host, server, &[7; 300]), 200, 0xdead_beef);
    packets.extend(["fragment6-1", "fragment6-2", "fragment6-3"].into_iter().zip(fragments));
    for (name, packet) in &packets {
        write("wire_ipv6", name, packet)?;
        write("translate_roundtrip", name, packet)?;
        if packet[6] == 58 {
            write("wire_icmp6", name, packet.get(40..).unwrap_or_default())?;
        }
    }
    let station = MacAddress([2, 0, 0, 0, 0, 1]);
    let question = neighbour::Message::solicitation(host.ip().to_bits(), station, server.ip().to_bits());
    for (name, message) in [
        ("solicitation", question),
        ("advertisement", question.reply(station)),
        ("probe", neighbour::Message::probe(host.ip().to_bits())),
    ] {
        let mut packet = [0; neighbour::LENGTH_MAX];
        let length = message.write(&mut packet);
        write("wire_neighbour", name, packet.get(..length).unwrap_or_default())?;
    }
    Ok(())
}

/// A neighbour message is 0, how it is made, source, destination, target, station, sender of the
/// frame, and whether that went to a group; see `ndp.rs`.
fn write_ndp() -> io::Result<()> {
    const ASK_AND_SEND: [u8; 5] = [5, 4, 0, 7, 255];
    let solicitation = [0, 0, 4, 2, 0, 0, 0, 1];
    let probe = [0, 16, 10, 2, 0, 0, 1];
    let answer = [0, 13, 4, 0, 4, 0, 0, 0];
    let other_station = [0, 1, 4, 0, 4, 1, 1, 0];
    let claim = [0, 13, 0, 12, 0, 1, 1, 1];
    let claim_by_question = [0, 0, 0, 2, 4, 1, 1, 1];
    let (probe_is_sent, an_hour): ([u8; 2], [u8; 4]) = ([6, 0], [6, 7, 6, 7]);
    let target = "daemon_ndp";
    write(target, "solicitation", &[&[0], solicitation.as_slice()].concat())?;
    write(target, "duplicate", &[&[1], probe_is_sent.as_slice(), &probe, &an_hour, &claim_by_question].concat())?;
    write(target, "answer", &[&[0], ASK_AND_SEND.as_slice(), &answer, &[7, 255, 5, 4, 0]].concat())?;
    write(target, "other-station", &[&[0], ASK_AND_SEND.as_slice(), &answer, &other_station, &[5, 4, 0]].concat())?;
    write(target, "claim", &[&[0], claim.as_slice(), &claim_by_question].concat())?;
    write(
        target,
        "scan",
        &[&[0], (0..12).flat_map(|to| [5, 4 + to % 5, to]).collect::<Vec<u8>>().as_slice()].concat(),
    )?;
    write(target, "echo", &[0, 3, 4, 0, 0, 0])?;
    write(target, "unknown-header", &[0, 4, 4, 0, 253, 4, 1, 2, 3, 4, 0, 0])
}
