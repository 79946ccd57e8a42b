//! Application-level gateways in the whole packet path.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use alg::AlgId;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::blocks::BlockSize;
use nat::settings::Admission;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::settings::Class;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Gateway;
use nat::types::RealmId;
use testkit::*;
use wire::build;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;
use wire::udp::Udp;

const CLIENT: SocketAddrV4 = at(I1, 40_000);
const SERVER: SocketAddrV4 = at(E1, 21);
const PORT: &str = "PORT 100,64,0,10,18,52\r\n";

pub(crate) fn with(names: &[&str]) -> Settings {
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.gateways = names.iter().map(|name| Gateway::new(AlgId::named(name).expect("a gateway"))).collect();
    // Few, so that tests fill the table.
    settings.control_sessions_max = 1_024;
    settings
}

/// A network with an FTP server inside that a forward leads to: its endpoint inside, and the
/// external one.
pub(crate) fn server_behind_a_forward() -> (Bed, SocketAddrV4, SocketAddrV4) {
    let mut settings = with(&["ftp"]);
    let external = at(POOL[0], 21);
    settings.forwards.push(Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: *external.ip(),
        ports: (21, 21),
        inside: I1.into(),
        inside_port: 21,
        admission: Admission::Anyone,
    });
    (Bed::new(settings), at(I1, 21), external)
}

pub(crate) fn tcp_of(packet: &[u8]) -> (u32, u32, Vec<u8>) {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    let (source, destination) = (source(packet).ip().to_bits(), destination(packet).ip().to_bits());
    assert!(wire::checksum::is_tcp_valid(source, destination, ip.payload()), "the checksum is right");
    let tcp = Tcp::new_checked(ip.payload()).expect("a segment");
    (tcp.sequence(), tcp.acknowledgment(), tcp.payload().to_vec())
}

pub(crate) fn udp_text(packet: &[u8]) -> String {
    let ip = Ipv4::new_checked(packet).expect("a packet");
    let (source, destination) = (source(packet).ip().to_bits(), destination(packet).ip().to_bits());
    assert!(wire::checksum::is_udp_valid(source, destination, ip.payload()), "the checksum is right");
    String::from_utf8(Udp::new_checked(ip.payload()).expect("a datagram").payload().to_vec()).expect("text")
}

/// A connection through the bed, with the numbers each end believes in.
pub(crate) struct Talk {
    pub(crate) inside: SocketAddrV4,
    pub(crate) remote: SocketAddrV4,
    pub(crate) external: SocketAddrV4,
    /// Of the inside: the next to send, and the next expected.
    inner: (u32, u32),
    outer: (u32, u32),
}

impl Talk {
    pub(crate) fn open(bed: &mut Bed, inside: SocketAddrV4, remote: SocketAddrV4) -> Talk {
        let external = bed.connect(inside, remote);
        Talk::opened(inside, remote, external)
    }

    /// After a handshake with the numbers of [`Bed::connect`].
    pub(crate) fn opened(inside: SocketAddrV4, remote: SocketAddrV4, external: SocketAddrV4) -> Talk {
        Talk { inside, remote, external, inner: (1_001, 5_001), outer: (5_001, 1_001) }
    }

    /// The forward leads to `inside`.
    pub(crate) fn enter(bed: &mut Bed, inside: SocketAddrV4, remote: SocketAddrV4, external: SocketAddrV4) -> Talk {
        bed.outside(&build::tcp(remote, external, Flags::SYN).sequence(5_000).build());
        assert_eq!(destination(&bed.only_inside()), inside);
        let answer = build::tcp(inside, remote, Flags::SYN.union(Flags::ACK)).sequence(1_000).acknowledgment(5_001);
        bed.inside(&answer.build());
        assert_eq!(source(&bed.only_outside()), external);
        bed.outside(&build::tcp(remote, external, Flags::ACK).sequence(5_001).acknowledgment(1_001).build());
        bed.only_inside();
        Talk::opened(inside, remote, external)
    }

    pub(crate) fn send_out(&mut self, bed: &mut Bed, text: &str) -> String {
        String::from_utf8(self.pass_out(bed, text.as_bytes())).expect("text")
    }

    /// What the server gets.
    pub(crate) fn pass_out(&mut self, bed: &mut Bed, payload: &[u8]) -> Vec<u8> {
        let segment = build::tcp(self.inside, self.remote, Flags::ACK.union(Flags::PSH)).payload(payload);
        bed.inside(&segment.sequence(self.inner.0).acknowledgment(self.inner.1).build());
        self.inner.0 += payload.len() as u32;
        let (sequence, ack, payload) = tcp_of(&bed.only_outside());
        assert_eq!((sequence, ack), (self.outer.1, self.outer.0), "the server's numbers");
        self.outer.1 += payload.len() as u32;
        payload
    }

    pub(crate) fn send_in(&mut self, bed: &mut Bed, text: &str) -> String {
        String::from_utf8(self.pass_in(bed, text.as_bytes())).expect("text")
    }

    /// What the inside gets.
    pub(crate) fn pass_in(&mut self, bed: &mut Bed, payload: &[u8]) -> Vec<u8> {
        let segment = build::tcp(self.remote, self.external, Flags::ACK.union(Flags::PSH)).payload(payload);
        bed.outside(&segment.sequence(self.outer.0).acknowledgment(self.outer.1).build());
        self.outer.0 += payload.len() as u32;
        let (sequence, ack, payload) = tcp_of(&bed.only_inside());
        assert_eq!((sequence, ack), (self.inner.1, self.inner.0), "the client's numbers");
        self.inner.1 += payload.len() as u32;
        payload
    }

    /// The next sequence number and acknowledgement of the outside, or of the inside.
    pub(crate) fn numbers(&self, of_outside: bool) -> (u32, u32) {
        if of_outside { self.outer } else { self.inner }
    }

    pub(crate) fn log_in(mut self, bed: &mut Bed, server_is_inside: bool) -> Talk {
        for (is_server, text) in [
            (true, "220 ready\r\n"),
            (false, "USER me\r\n"),
            (true, "331 password\r\n"),
            (false, "PASS x\r\n"),
            (true, "230 in\r\n"),
        ] {
            let passed = if is_server == server_is_inside { self.send_out(bed, text) } else { self.send_in(bed, text) };
            assert_eq!(passed, text);
        }
        self
    }
}

/// `h1,h2,h3,h4,p1,p2`.
pub(crate) fn commas(text: &str) -> SocketAddrV4 {
    let digits = |c: char| !c.is_ascii_digit() && c != ',';
    let list = text.split(digits).find(|part| part.split(',').count() == 6).expect("six numbers");
    let n: Vec<u8> = list.split(',').map(|part| part.parse().expect("an octet")).collect();
    at(Ipv4Addr::new(n[0], n[1], n[2], n[3]), u16::from_be_bytes([n[4], n[5]]))
}

pub(crate) fn syn_reaches(bed: &mut Bed, from: SocketAddrV4, to: SocketAddrV4) -> Option<SocketAddrV4> {
    bed.outside(&build::tcp(from, to, Flags::SYN).sequence(9).build());
    bed.take_inside().first().map(|packet| destination(packet))
}

#[test]
fn an_active_transfer_reaches_the_client() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp"])).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        // 100.64.0.10:4660
        let sent = talk.send_out(&mut bed, "PORT 100,64,0,10,18,52\r\n");
        let expected = commas(&sent);
        assert_eq!(expected.ip(), talk.external.ip());
        assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        // Another host gets nothing, the server one connection.
        assert_eq!(syn_reaches(&mut bed, at(E2, 20), expected), None);
        assert_eq!(syn_reaches(&mut bed, at(E1, 20), expected), Some(at(I1, 4660)));
        assert_eq!(syn_reaches(&mut bed, at(E1, 21_000), expected), None);
        assert_eq!(talk.send_out(&mut bed, "RETR film\r\n"), "RETR film\r\n");
        let counters = bed.counters();
        assert_eq!((counters.expectations_created, counters.expectations_refused), (1, 0));
        bed.run_out();
    }
}

#[test]
fn a_passive_server_behind_a_forward_is_reached() {
    let (mut bed, server, external) = server_behind_a_forward();
    let client = at(E1, 50_000);
    let mut talk = Talk::enter(&mut bed, server, client, external).log_in(&mut bed, true);
    talk.send_in(&mut bed, "PASV\r\n");
    let reply = talk.send_out(&mut bed, "227 Entering Passive Mode (100,64,0,10,18,52).\r\n");
    let expected = commas(&reply);
    assert_eq!(syn_reaches(&mut bed, at(E2, 50_001), expected), None);
    assert_eq!(syn_reaches(&mut bed, at(E1, 50_001), expected), Some(at(I1, 4660)));
    assert_eq!(talk.send_out(&mut bed, "150 go\r\n"), "150 go\r\n");
    bed.run_out();
}

#[test]
fn repeated_and_reordered_commands_give_one_output() {
    covers!("3022-8");
    let mut bed = Bed::new(with(&["ftp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,18,52\r\n";
    let first = talk.inner.0;
    let sent = talk.send_out(&mut bed, text);
    let segment = |from: usize, to: usize| {
        build::tcp(CLIENT, SERVER, Flags::ACK)
            .sequence(first + from as u32)
            .acknowledgment(talk.inner.1)
            .payload(&text.as_bytes()[from..to])
            .build()
    };
    for (from, to) in [(0, text.len()), (0, 6), (8, 12), (20, text.len())] {
        bed.inside(&segment(from, to));
        let (_, _, payload) = tcp_of(&bed.only_outside());
        let part = String::from_utf8(payload).expect("text");
        assert!(sent.contains(&part) && !part.is_empty(), "{part:?} is part of {sent:?}");
    }
    // Ahead of what is missing.
    let later = build::tcp(CLIENT, SERVER, Flags::ACK).sequence(talk.inner.0 + 5).acknowledgment(talk.inner.1);
    bed.inside(&later.payload(b"later\r\n").build());
    bed.assert_silent();
    assert_eq!(bed.count(Verdict::AlgReordered), 1);
    assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
}

#[test]
fn an_unused_expectation_ends_after_30_s() {
    let mut bed = Bed::new(with(&["ftp"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let expected = commas(&talk.send_out(&mut bed, "PORT 100,64,0,10,18,52\r\n"));
    bed.advance_secs(31);
    assert_eq!(syn_reaches(&mut bed, at(E1, 20), expected), None);
    assert!(bed.mapping_of(Protocol::Tcp, at(I1, 4660)).is_none());
}

#[test]
fn a_control_session_survives_its_transfer() {
    let mut settings = with(&["ftp"]);
    settings.timeouts.tcp_established = Duration::from_secs(60);
    let mut bed = Bed::new(settings);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    talk.send_out(&mut bed, "RETR film\r\n");
    talk.send_in(&mut bed, "150 go\r\n");
    bed.advance_secs(3_600);
    assert_eq!(talk.send_in(&mut bed, "226 done\r\n"), "226 done\r\n");
}

/// Ten hours of an active transfer: the control session lives as long as the data connection.
#[test]
fn a_control_session_lives_as_long_as_its_data_connection() {
    for data_lives in [true, false] {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let expected = commas(&talk.send_out(&mut bed, PORT));
        let (server, inside) = (at(E1, 20), at(I1, 4660));
        bed.outside(&build::tcp(server, expected, Flags::SYN).sequence(7_000).build());
        assert_eq!(destination(&bed.only_inside()), inside);
        let answer = build::tcp(inside, server, Flags::SYN.union(Flags::ACK)).sequence(3_000).acknowledgment(7_001);
        bed.inside(&answer.build());
        bed.only_outside();
        talk.send_out(&mut bed, "RETR film\r\n");
        talk.send_in(&mut bed, "150 go\r\n");
        for hour in 0..10 {
            if data_lives {
                let data = build::tcp(server, expected, Flags::ACK).sequence(7_001 + hour).acknowledgment(3_001);
                bed.outside(&data.payload(b"x").build());
                bed.only_inside();
            }
            bed.advance_secs(3_600);
        }
        let done = build::tcp(SERVER, talk.external, Flags::ACK).sequence(talk.outer.0).acknowledgment(talk.outer.1);
        bed.outside(&done.payload(b"226 done\r\n").build());
        assert_eq!(bed.take_inside().len(), usize::from(data_lives));
    }
}

/// `client_port` names no address, so the peer sends to that of the control session.
#[test]
fn a_port_without_an_address_is_on_the_address_of_its_session() {
    for workers in [1, 2, 8] {
        let mut settings = with(&["rtsp"]);
        settings.pools[0].pooling = nat::settings::Pooling::Arbitrary;
        let mut bed = Bed::new(settings).workers(workers);
        let mut addresses = std::collections::HashSet::new();
        for number in 0..24 {
            let media = 5_000 + 2 * number;
            let mut talk = Talk::open(&mut bed, at(I1, 40_000 + number), at(E1, 554));
            addresses.insert(*talk.external.ip());
            let pair = format!("{media}-{}", media + 1);
            let setup = format!("SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port={pair}\r\n\r\n");
            let sent = talk.send_out(&mut bed, &setup);
            let port = sent.split("client_port=").nth(1).and_then(|rest| rest.split('-').next()).expect("a port");
            let port: u16 = port.parse().expect("a number");
            for plus in 0..2 {
                let (external, inside) = (at(*talk.external.ip(), port + plus), at(I1, media + plus));
                assert!(bed.udp_reaches(at(E1, 9_000), external, inside), "{sent}");
            }
        }
        assert!(addresses.len() > 1, "sessions have several addresses");
        bed.run_out();
    }
}

/// What must be on the session's address may come from a new block of it.
#[test]
fn a_port_on_the_address_of_its_session_may_need_a_new_block() {
    for workers in [1, 2, 8] {
        let mut settings = with(&["rtsp"]);
        settings.pools[0].allocation = Allocation::Blocks(Blocks {
            size: BlockSize::of_ports(64).expect("a block size"),
            per_subscriber_max: 2,
            idle: Duration::from_secs(60),
        });
        let mut bed = Bed::new(settings).workers(workers);
        let mut talk = Talk::open(&mut bed, CLIENT, at(E1, 554));
        for port in 0..64 {
            bed.open_udp(at(I1, 7_000 + port), at(E2, 9_000));
        }
        let setup = "SETUP rtsp://x/ RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
        let sent = talk.send_out(&mut bed, setup);
        let pair = sent.split("client_port=").nth(1).and_then(|rest| rest.trim_end().split_once('-')).expect("a pair");
        for (port, inside) in [(pair.0, 5_000), (pair.1, 5_001)] {
            let external = at(*talk.external.ip(), port.parse().expect("a port"));
            assert!(bed.udp_reaches(at(E1, 9_000), external, at(I1, inside)), "{sent}");
        }
        assert_eq!(bed.counters().expectations_refused, 0);
        bed.run_out();
    }
}

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
fn limits_of_a_session_and_a_subscriber_hold() {
    let mut settings = with(&["ftp"]);
    settings.gateways[0].expectations_per_subscriber = 12;
    let mut bed = Bed::new(settings);
    let mut changed = Vec::new();
    for port in [40_000, 40_001, 40_002] {
        let before = changed.len();
        let mut talk = Talk::open(&mut bed, at(I1, port), SERVER).log_in(&mut bed, false);
        for i in 0..10_u32 {
            let inside = 5_000 + (u32::from(port) - 40_000) * 100 + i;
            let text = format!("PORT 100,64,0,10,{},{}\r\n", inside >> 8, inside & 255);
            if talk.send_out(&mut bed, &text) != text {
                changed.push(inside as u16);
            }
            talk.send_in(&mut bed, "200 ok\r\n");
        }
        assert_eq!(changed.len() - before, [10, 4, 0][usize::from(port - 40_000)], "session {port}");
    }
    // A further PORT is about the next transfer: the first two of the first session gave way.
    let mut waiting: Vec<u16> = bed.grants().iter().map(|grant| grant.internal.port).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, changed[2..]);
    bed.run_out();
}

#[test]
fn a_session_picked_up_in_the_middle_is_not_read() {
    let mut off = with(&[]);
    let on = with(&["ftp"]);
    off.timeouts = on.timeouts;
    let mut bed = Bed::new(off);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    bed.reload(on);
    let text = "PORT 100,64,0,10,18,52\r\n";
    assert_eq!(talk.send_out(&mut bed, text), text);
    assert_eq!(bed.counters().expectations_created, 0);
    // A new session is read, and survives a reload that changes nothing for it.
    let mut talk = Talk::open(&mut bed, at(I1, 40_001), SERVER).log_in(&mut bed, false);
    let mut other = with(&["ftp", "sip"]);
    other.timeouts.udp = Duration::from_secs(400);
    bed.reload(other);
    assert_ne!(talk.send_out(&mut bed, text), text);
    bed.run_out();
}

/// Whether each gateway does its work, in the order of their numbers, on connections from `port`.
fn at_work(bed: &mut Bed, port: u16) -> [bool; alg::ALGS.len()] {
    let mut talk = Talk::open(bed, at(I1, port), SERVER).log_in(bed, false);
    let ftp = talk.send_out(bed, PORT) != PORT;
    bed.inside(&build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build());
    let sip = udp_text(&bed.only_outside()) != INVITE;
    let setup = "SETUP rtsp://198.51.100.1/a RTSP/1.0\r\nTransport: RTP/AVP;unicast;client_port=5000-5001\r\n\r\n";
    let rtsp = Talk::open(bed, at(I1, port), at(E1, 554)).send_out(bed, setup) != setup;
    bed.inside(&build::udp(at(I1, port), at(E1, 69)).payload(b"\0\x01boot\0octet\0").build());
    let external = source(&bed.only_outside());
    let tftp = bed.udp_reaches(at(E1, 3_000), external, at(I1, port));
    let pptp = crate::pptp::opens_a_call(bed, at(I1, port));
    [ftp, sip, rtsp, tftp, pptp]
}

/// RFC 4787 REQ-10a: each switch is for one gateway, at any time, whatever the others are.
#[test]
fn each_gateway_has_a_switch_of_its_own() {
    covers!("4787-REQ-10a");
    let names: Vec<&str> = alg::ALGS.iter().map(|gateway| gateway.name()).collect();
    assert_eq!(names, ["ftp", "sip", "rtsp", "tftp", "pptp"]);
    let mut bed = Bed::new(with(&names));
    assert_eq!(at_work(&mut bed, 40_000), [true; alg::ALGS.len()]);
    for (number, name) in names.iter().enumerate() {
        for only_it in [true, false] {
            let enabled: Vec<&str> = names.iter().copied().filter(|other| (other == name) == only_it).collect();
            bed.advance_secs(1_000);
            bed.reload(with(&enabled));
            let wanted = core::array::from_fn(|other| (other == number) == only_it);
            assert_eq!(
                at_work(&mut bed, 41_000 + 2 * number as u16 + u16::from(only_it)),
                wanted,
                "enabled: {enabled:?}"
            );
        }
    }
    bed.run_out();
}

/// Each command of FTP, too.
#[test]
fn each_command_of_ftp_has_a_switch_of_its_own() {
    covers!("4787-REQ-10a");
    let eprt = "EPRT |1|100.64.0.10|4661|\r\n";
    for disabled in 0..4 {
        let mut settings = with(&["ftp"]);
        settings.gateways[0].disabled = 1 << disabled;
        let mut bed = Bed::new(settings.clone());
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        let active = [PORT, eprt].map(|text| talk.send_out(&mut bed, text) != text);
        settings.forwards = server_behind_a_forward().0.settings().forwards.clone();
        let mut bed = Bed::new(settings);
        let (server, external) = (at(I1, 21), at(POOL[0], 21));
        let mut talk = Talk::enter(&mut bed, server, at(E1, 50_000), external).log_in(&mut bed, true);
        let passive = [
            ("PASV\r\n", "227 Entering Passive Mode (100,64,0,10,18,52).\r\n"),
            ("EPSV\r\n", "229 Entering Extended Passive Mode (|||4662|)\r\n"),
        ]
        .map(|(command, reply)| {
            talk.send_in(&mut bed, command);
            talk.send_out(&mut bed, reply) != reply
        });
        let rewritten = [active, passive].concat();
        let wanted: Vec<bool> = (0..4).map(|command| command != disabled).collect();
        assert_eq!(rewritten, wanted, "PORT, EPRT, PASV, EPSV without the one at {disabled}");
    }
}

/// RFC 4787 REQ-10 and RFC 5382 REQ-6: byte for byte the same.
#[test]
fn off_means_byte_for_byte_the_same() {
    covers!("4787-REQ-10", "5382-REQ-6");
    let mut bed = Bed::new(with(&[]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,10,18,52\r\n";
    assert_eq!(talk.send_out(&mut bed, text), text);
    let phone = at(I1, 5060);
    bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.as_bytes()).build());
    assert_eq!(udp_text(&bed.only_outside()), INVITE);
    assert_eq!(bed.counters().control_sessions, [0; alg::ALGS.len()]);
}

pub(crate) const INVITE: &str = "INVITE sip:bob@198.51.100.1 SIP/2.0\r\n\
Via: SIP/2.0/UDP 100.64.0.10:5060;branch=z9hG4bK1\r\n\
Contact: <sip:alice@100.64.0.10:5060>\r\n\
CSeq: 1 INVITE\r\n\
Content-Type: application/sdp\r\n\
Content-Length: 65\r\n\r\n\
v=0\r\nc=IN IP4 100.64.0.10\r\nm=audio 5004 RTP/AVP 0\r\na=rtcp:5005  \r\n";

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

#[test]
fn a_pool_that_is_not_served_is_left_alone() {
    let mut settings = with(&["ftp"]);
    settings.gateways[0].pools = vec!["other".to_owned()];
    let mut bed = Bed::new(settings);
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    assert_eq!(talk.send_out(&mut bed, PORT), PORT);
}

#[test]
fn a_class_overrides_which_gateways_read() {
    let ftp = AlgId::named("ftp").expect("a gateway");
    for (serves_everyone, own, is_read) in [
        (true, None, true),
        (false, None, false),
        (true, Some(vec![]), false),
        (false, Some(vec![ftp]), true),
        (true, Some(vec![ftp]), true),
    ] {
        let mut settings = with(&["ftp"]);
        settings.gateways[0].serves_everyone = serves_everyone;
        settings.classes.push(Class {
            name: "business".into(),
            subscribers: vec![nat::types::Prefix::host(I1)],
            realms: Vec::new(),
            limits: settings.subscriber,
            gateways: own,
        });
        let mut bed = Bed::new(settings);
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        assert_eq!(talk.send_out(&mut bed, PORT) != PORT, is_read);
        // Others are not of the class.
        let text = "PORT 100,64,0,11,18,52\r\n";
        let mut talk = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
        assert_eq!(talk.send_out(&mut bed, text) != text, serves_everyone);
        bed.run_out();
    }
}

/// The numbers of a connection stay shifted when its gateway no longer serves it.
#[test]
fn a_reload_leaves_the_numbers_of_a_changed_stream_whole() {
    let off = |settings: &mut Settings| settings.gateways.clear();
    let elsewhere = |settings: &mut Settings| settings.gateways[0].ports = vec![2_121];
    let not_in_class = |settings: &mut Settings| {
        settings.classes.push(Class {
            name: "plain".into(),
            subscribers: vec![nat::types::Prefix::host(I1)],
            realms: Vec::new(),
            limits: settings.subscriber,
            gateways: Some(vec![]),
        });
    };
    let changes: [&dyn Fn(&mut Settings); 3] = [&off, &elsewhere, &not_in_class];
    for change in changes {
        let mut bed = Bed::new(with(&["ftp"]));
        let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
        for _ in 0..3 {
            assert_ne!(talk.send_out(&mut bed, "PORT 100,64,0,10,4,1\r\n").len(), 22);
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        }
        let shift = talk.numbers(true).1.wrapping_sub(talk.numbers(false).0);
        assert_ne!(shift, 0);
        let mut next = with(&["ftp"]);
        change(&mut next);
        bed.reload(next);
        let expected = bed.counters().expectations_created;
        for _ in 0..3 {
            assert_eq!(talk.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
            assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
            // The sweep looks at the record.
            bed.advance_secs(5);
        }
        assert_eq!(talk.send_out(&mut bed, PORT), PORT, "it is not read any more");
        assert_eq!(bed.counters().expectations_created, expected);
        // Nor when the gateway is back.
        bed.reload(with(&["ftp"]));
        assert_eq!(talk.send_out(&mut bed, PORT), PORT);
        assert_eq!(talk.send_in(&mut bed, "200 ok\r\n"), "200 ok\r\n");
        bed.run_out();
    }
}

pub(crate) fn close(bed: &mut Bed, talk: &Talk) {
    let fin = Flags::FIN.union(Flags::ACK);
    let (sequence, ack) = talk.numbers(false);
    bed.inside(&build::tcp(talk.inside, talk.remote, fin).sequence(sequence).acknowledgment(ack).build());
    bed.only_outside();
    let (sequence, ack) = talk.numbers(true);
    bed.outside(&build::tcp(talk.remote, talk.external, fin).sequence(sequence).acknowledgment(ack + 1).build());
    bed.only_inside();
}

#[test]
fn closed_sessions_make_room_for_new_ones() {
    let (mut bed, server, external) = server_behind_a_forward();
    for client in 0..300 {
        let talk = Talk::enter(&mut bed, server, at(E1, 50_000 + client), external).log_in(&mut bed, true);
        close(&mut bed, &talk);
    }
    let mut talk = Talk::enter(&mut bed, server, at(E1, 60_000), external).log_in(&mut bed, true);
    talk.send_in(&mut bed, "PASV\r\n");
    let reply = "227 Entering Passive Mode (100,64,0,10,18,52).\r\n";
    assert_ne!(talk.send_out(&mut bed, reply), reply);
    assert_eq!(bed.counters().control_sessions[0], 301);
    bed.run_out();
}

/// Hosts that send SYNs to many FTP servers fill the table, and take nothing from others: neither
/// a new session, nor the place of one that is established.
#[test]
fn unanswered_sessions_keep_nobody_out() {
    let mut bed = Bed::new(with(&["ftp", "sip"]));
    let mut talk = Talk::open(&mut bed, CLIENT, SERVER).log_in(&mut bed, false);
    assert_ne!(talk.send_out(&mut bed, PORT), PORT);
    for host in 20..29 {
        (0..150).for_each(|i| {
            bed.open_tcp(at(Ipv4Addr::new(100, 64, 0, host), 10_000 + i), SERVER);
        });
    }
    let phone = at(I2, 5060);
    bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.replace("64.0.10", "64.0.11").as_bytes()).build());
    assert!(!udp_text(&bed.only_outside()).contains("100.64.0.11"), "SIP is read");
    let mut other = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
    let text = "PORT 100,64,0,11,18,52\r\n";
    assert_ne!(other.send_out(&mut bed, text), text);
    assert_ne!(talk.send_out(&mut bed, PORT), PORT, "it has kept its place");
    bed.run_out();
}

/// Few of the worker's tables are one subscriber's, and its expectations are limited. Meanwhile its
/// neighbours lose no packet, and later they are served.
#[test]
fn a_greedy_subscriber_leaves_its_neighbours_unharmed() {
    for workers in [1, 2, 8] {
        let mut bed = Bed::new(with(&["ftp", "sip"])).workers(workers);
        let mut control = Talk::open(&mut bed, at(I2, 39_000), SERVER).log_in(&mut bed, false);
        let flows = [I2, I3].map(|host| (at(host, 7_000), bed.open_udp(at(host, 7_000), at(E1, 53))));
        let (mut refused, mut unread) = (0, 0);
        for session in 0..400_u16 {
            let mut talk = Talk::open(&mut bed, at(I1, 10_000 + session), SERVER).log_in(&mut bed, false);
            for i in 0..250_u32 {
                let port = 2_000 + (u32::from(session) * 250 + i) % 60_000;
                let text = format!("PORT 100,64,0,10,{},{}\r\n", port >> 8, port & 255);
                if talk.send_out(&mut bed, &text) == text {
                    refused += 1;
                }
                talk.send_in(&mut bed, "200 ok\r\n");
            }
            // An incomplete line waits in each.
            let part = build::tcp(talk.inside, SERVER, Flags::ACK).sequence(talk.inner.0).acknowledgment(talk.inner.1);
            bed.inside(&part.payload(b"RETR ").build());
            unread += u32::from(!bed.take_outside().is_empty());
            assert_eq!(control.send_out(&mut bed, "NOOP\r\n"), "NOOP\r\n");
            for (inside, external) in flows {
                assert_eq!(bed.open_udp(inside, at(E1, 53)), external);
                assert!(bed.udp_reaches(at(E1, 53), external, inside));
            }
        }
        // In the first seven sessions the oldest gives way. Then the subscriber has its 64.
        assert_eq!(refused, 100_000 - 7 * 250 - 8, "of 100,000 announced");
        assert_eq!(bed.grants().len(), 64);
        assert!(unread >= 400 - 128, "at most an eighth of the table: {unread} pass unread");
        let mut neighbour = Talk::open(&mut bed, at(I2, 40_000), SERVER).log_in(&mut bed, false);
        for i in 0..8 {
            let sent = neighbour.send_out(&mut bed, &format!("PORT 100,64,0,11,18,{i}\r\n"));
            assert_eq!(syn_reaches(&mut bed, at(E1, 20), commas(&sent)), Some(at(I2, 0x1200 + i)));
        }
        let phone = at(I2, 5060);
        bed.inside(&build::udp(phone, at(E1, 5060)).payload(INVITE.replace("64.0.10", "64.0.11").as_bytes()).build());
        assert!(!udp_text(&bed.only_outside()).contains("100.64.0.11"));
        bed.run_out();
    }
}

/// What is in use does not count: a busy line may have more calls than expectations at a time.
#[test]
fn calls_in_progress_do_not_count_against_the_limits() {
    let mut bed = Bed::new(with(&["sip"]));
    let (phone, proxy) = (at(I1, 5060), at(E1, 5060));
    for call in 0..100_u16 {
        let port = 5_004 + 4 * call;
        let invite = INVITE.replace("5004", &port.to_string()).replace("5005", &(port + 1).to_string());
        bed.inside(&build::udp(phone, proxy).payload(invite.as_bytes()).build());
        let text = udp_text(&bed.only_outside());
        assert!(!text.contains("IP4 100.64"), "call {call}: {text}");
        // Every second phone speaks first, the other hears first.
        let media = text.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port");
        let external = at(POOL[0], media.parse().expect("a port"));
        let inside = at(I1, port);
        if call % 2 == 0 {
            assert_eq!(bed.open_udp(inside, at(E1, 20_000)).port(), external.port());
        } else {
            let address = bed.mapping_of(Protocol::Udp, inside).expect("a mapping").external.address;
            assert!(bed.udp_reaches(at(E1, 20_000), at(address, external.port()), inside));
        }
    }
    assert_eq!(bed.counters().expectations_refused, 0);
    bed.run_out();
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

/// The start of a fragment is not the start of a message, and the whole is not read either.
#[test]
fn fragments_of_a_message_are_not_read() {
    let mut bed = Bed::new(with(&["ftp", "sip", "rtsp", "tftp"]));
    let datagram = build::udp(at(I1, 5060), at(E1, 5060)).payload(INVITE.as_bytes()).build();
    for fragment in build::fragment(&datagram, 200) {
        bed.inside(&fragment);
    }
    let whole = build::reassemble(&bed.take_outside()).expect("all fragments left");
    assert_eq!(udp_text(&whole), INVITE);
    assert_eq!(bed.counters().expectations_created, 0);
    bed.run_out();
}
