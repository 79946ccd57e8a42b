//! Random control sessions, transfers and calls, while gateways are enabled, disabled and limited
//! under them.
//!
//! After each step the books balance and no external endpoint has two owners. A gateway that is
//! disabled changes no byte, one that is enabled leads in the peer and nobody else. In the end
//! nothing is left, and the number of workers has made no difference.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashSet;

use alg::AlgId;
use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::grant::Origin;
use nat::settings::Filtering;
use nat::settings::Gateway;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use crate::gateways::Talk;
use crate::gateways::commas;
use crate::gateways::syn_reaches;
use crate::gateways::tcp_of;
use crate::gateways::udp_text;
use crate::pptp;

const STEPS: usize = 60;
const NAMES: [&str; 5] = ["ftp", "sip", "rtsp", "tftp", "pptp"];

struct World {
    random: SmallRng,
    bed: Bed,
    base: Settings,
    may_enable: bool,
    next_port: u16,
    /// What happened, without anything that is drawn by a worker.
    seen: Vec<(usize, bool)>,
}

impl World {
    fn new(seed: u64, workers: usize, may_enable: bool) -> World {
        let base = settings().filtering(Filtering::AddressAndPortDependent);
        let bed = Bed::new(base.clone()).workers(workers).seed(seed);
        World { random: SmallRng::seed_from_u64(seed), bed, base, may_enable, next_port: 10_000, seen: Vec::new() }
    }

    fn gateway(&self, name: &str) -> Option<&Gateway> {
        self.bed.settings().gateways.iter().find(|gateway| gateway.alg.name() == name)
    }

    fn host(&mut self) -> (Ipv4Addr, u16) {
        self.next_port += 1;
        ([I1, I2, I3][self.random.random_range(0..3)], self.next_port)
    }

    fn reload(&mut self) {
        let mut next = self.base.clone();
        for name in NAMES {
            if self.may_enable && self.random.random_range(0..3) > 0 {
                let mut gateway = Gateway::new(AlgId::named(name).expect("a gateway"));
                gateway.expectations_per_subscriber = if self.random.random_range(0..4) == 0 { 1 } else { 64 };
                gateway.timeout = Duration::from_secs(self.random.random_range(5..60));
                next.gateways.push(gateway);
            }
        }
        next.timeouts.udp = Duration::from_secs(self.random.random_range(120..400));
        self.bed.reload(next);
    }

    /// Whether a changed message is what the settings let expect.
    fn check(&self, name: &str, is_changed: bool) {
        let served = self.gateway(name);
        assert!(served.is_some() || !is_changed, "{name} is disabled");
        let has_room = self.bed.grants().len() < 20;
        let may_all = served.is_some_and(|gateway| gateway.expectations_per_subscriber == 64);
        assert!(is_changed || !may_all || !has_room, "{name} is enabled");
    }

    /// SYNs and SYN-ACKs within a connection, repeated or forged, which must leave it alone.
    fn disturb(&mut self, talk: &Talk) {
        for _ in 0..self.random.random_range(0..4) {
            let flags = [Flags::SYN, Flags::SYN.union(Flags::ACK)][self.random.random_range(0..2)];
            let from_inside = self.random.random_range(0..2) == 0;
            let handshake = if from_inside { (1_000, 5_001) } else { (5_000, 1_001) };
            let is_repeated = self.random.random_range(0..2) == 0;
            let (sequence, ack) = if is_repeated { handshake } else { (self.random.random(), self.random.random()) };
            let payload: &[u8] = if self.random.random_range(0..4) == 0 { b"x" } else { b"" };
            let (from, to) = if from_inside { (talk.inside, talk.remote) } else { (talk.remote, talk.external) };
            let packet = build::tcp(from, to, flags).sequence(sequence).acknowledgment(ack).payload(payload).build();
            let passed = if from_inside {
                self.bed.inside(&packet);
                self.bed.only_outside()
            } else {
                self.bed.outside(&packet);
                self.bed.only_inside()
            };
            assert_eq!(tcp_of(&passed), tcp_of(&packet));
        }
    }

    fn transfer(&mut self) -> bool {
        let (host, port) = self.host();
        let mut talk = Talk::open(&mut self.bed, at(host, port), at(E1, 21)).log_in(&mut self.bed, false);
        let [a, b, c, d] = host.octets();
        let inside = port ^ 0x4000;
        let text = format!("PORT {a},{b},{c},{d},{},{}\r\n", inside >> 8, inside & 0xff);
        let sent = talk.send_out(&mut self.bed, &text);
        self.check("ftp", sent != text);
        self.disturb(&talk);
        let is_changed = sent != text && self.is_reached(&sent, &talk, at(host, inside));
        if self.random.random_range(0..2) == 0 {
            self.reload();
        }
        for _ in 0..2 {
            assert_eq!(talk.send_out(&mut self.bed, "NOOP\r\n"), "NOOP\r\n");
            assert_eq!(talk.send_in(&mut self.bed, "200 ok\r\n"), "200 ok\r\n");
            self.bed.advance(Duration::from_millis(900));
            // Answers to the stranger's SYNs.
            self.bed.take_outside();
        }
        is_changed
    }

    /// The server reaches the port that a command announces, and a stranger does not.
    fn is_reached(&mut self, sent: &str, talk: &Talk, inside: SocketAddrV4) -> bool {
        let expected = commas(sent);
        assert_eq!(expected.ip(), talk.external.ip());
        assert_eq!(syn_reaches(&mut self.bed, at(E2, 20), expected), None, "a stranger");
        assert_eq!(syn_reaches(&mut self.bed, at(E1, 20), expected), Some(inside));
        true
    }

    fn ring(&mut self) -> bool {
        let (host, port) = self.host();
        let media = port & !1 ^ 0x4000;
        let sdp = format!("v=0\r\nc=IN IP4 {host}\r\nm=audio {media} RTP/AVP 0\r\n");
        let text = format!(
            "INVITE sip:b@198.51.100.1 SIP/2.0\r\nVia: SIP/2.0/UDP {host}:{port};branch=z9\r\nCSeq: 1 INVITE\r\n\
Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{sdp}",
            sdp.len()
        );
        self.bed.inside(&build::udp(at(host, port), at(E1, 5060)).payload(text.as_bytes()).build());
        let sent = udp_text(&self.bed.only_outside());
        let rtp = sent.split("m=audio ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
        let is_changed = rtp != media.to_string();
        self.check("sip", is_changed);
        if is_changed {
            let own = self.bed.mapping_of(Protocol::Udp, at(host, port)).expect("it was sent").external;
            let to = at(own.address, rtp.parse().expect("a port"));
            assert!(!self.bed.udp_reaches(at(E2, 9), to, at(host, media)), "a stranger");
            assert!(self.bed.udp_reaches(at(E1, 9), to, at(host, media)));
        }
        is_changed
    }

    fn tunnel(&mut self) -> bool {
        let (host, port) = self.host();
        let mut talk = pptp::dial(&mut self.bed, at(host, port), at(E1, 1723));
        let (own, peer) = (self.random.random_range(0..3), port);
        let sent = talk.pass_out(&mut self.bed, &pptp::call_request(own));
        let external = pptp::word(&sent, 12);
        let reply = talk.pass_in(&mut self.bed, &pptp::call_reply(peer, external));
        let is_leased = self.bed.grants().iter().any(|grant| {
            (grant.internal.address, grant.external.port) == (host, external)
                && grant.origin == Origin::Alg(AlgId::PPTP)
        });
        assert!(self.gateway("pptp").is_some() || !is_leased);
        assert_eq!(pptp::word(&reply, 14), if is_leased { own } else { external });
        let from_server = pptp::gre_enters(&mut self.bed, E1, *talk.external.ip(), external);
        assert_eq!(from_server, is_leased.then_some((E1, host, own)));
        assert_eq!(pptp::gre_enters(&mut self.bed, E2, *talk.external.ip(), external), None, "a stranger");
        assert_eq!(pptp::gre_leaves(&mut self.bed, host, E1, peer).is_some(), is_leased);
        if self.random.random_range(0..2) == 0 {
            talk.pass_out(&mut self.bed, &pptp::message(12, 16, &[own]));
        } else if self.random.random_range(0..2) == 0 {
            let (sequence, ack) = talk.numbers(false);
            let reset = build::tcp(talk.inside, talk.remote, Flags::RST.union(Flags::ACK));
            self.bed.inside(&reset.sequence(sequence).acknowledgment(ack).build());
            self.bed.take_outside();
        }
        is_leased
    }

    fn step(&mut self) {
        let action = self.random.random_range(0..9);
        let seen = match action {
            0..2 => self.transfer(),
            2..4 => self.ring(),
            4..6 => self.tunnel(),
            6 => {
                self.reload();
                true
            }
            _ => {
                let time = [1, 900, 20_000, 400_000][self.random.random_range(0..4)];
                self.bed.advance(Duration::from_millis(time));
                true
            }
        };
        self.seen.push((action, seen));
        self.bed.take_inside();
        self.bed.take_outside();
        self.bed.check_books();
        let mappings = self.bed.mappings();
        let owners: HashSet<_> = mappings.iter().map(|mapping| (mapping.protocol, mapping.external)).collect();
        assert_eq!(owners.len(), mappings.len(), "an external endpoint has two owners");
        for grant in self.bed.grants() {
            let of_it: Vec<_> = mappings
                .iter()
                .filter(|mapping| (mapping.protocol, mapping.external) == (grant.protocol, grant.external))
                .collect();
            assert_eq!(of_it.len(), 1, "each grant has its mapping");
            assert_eq!(of_it[0].internal, grant.internal);
        }
    }
}

fn run(seed: u64, workers: usize, may_enable: bool) -> Vec<(usize, bool)> {
    let mut world = World::new(seed, workers, may_enable);
    (0..STEPS).for_each(|_| world.step());
    world.bed.run_out();
    assert!(world.bed.grants().is_empty());
    assert_eq!(world.bed.ports_used(), 0);
    world.seen
}

#[test]
fn gateways_change_under_their_sessions() {
    for_each_seed(6, |seed| {
        let one = run(seed, 1, true);
        assert_eq!(one, run(seed, 2, true), "two workers");
        assert_eq!(one, run(seed, 8, true), "eight workers");
    });
}

#[test]
fn without_gateways_no_byte_changes() {
    for_each_seed(3, |seed| {
        let seen = run(seed, 2, false);
        assert!(seen.iter().all(|(action, changed)| *action > 5 || !changed));
    });
}
