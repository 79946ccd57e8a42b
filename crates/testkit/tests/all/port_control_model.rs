//! Random requests of many clients, beside a model that knows only what the RFC says.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;

use nat::Protocol;
use nat::event::Cause;
use nat::event::EventKind;
use nat::settings::Filtering;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::seeds::for_each_seed;
use testkit::*;

const HOSTS: u8 = 6;
const MOST: usize = 5;

struct Known {
    nonce: u8,
    external: SocketAddrV4,
    /// Seconds of the model's clock.
    until: u64,
}

/// What every client believes to have.
#[derive(Default)]
struct Model {
    now: u64,
    grants: BTreeMap<(Ipv4Addr, Protocol, u16), Known>,
}

impl Model {
    fn live(&self, host: Ipv4Addr) -> usize {
        self.grants.iter().filter(|((of, ..), known)| *of == host && known.until > self.now).count()
    }

    /// Result code and lifetime.
    fn expected(&self, key: (Ipv4Addr, Protocol, u16), nonce: u8, asked: u32) -> (u8, u32) {
        let known = self.grants.get(&key).filter(|known| known.until > self.now);
        match known {
            Some(known) if known.nonce != nonce => (2, (known.until - self.now) as u32),
            _ if asked == 0 => (0, 0),
            None if self.live(key.0) >= MOST => (10, 30),
            _ => (0, asked.clamp(120, 86_400)),
        }
    }
}

/// Codes and lifetimes of all replies.
fn run(seed: u64, workers: usize) -> Vec<(u8, u32)> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    settings.port_control.mappings_per_subscriber = MOST as u32;
    let mut bed = Bed::new(settings).workers(workers).seed(seed).steering(Steering::Random);
    let mut model = Model::default();
    let mut replies = Vec::new();
    for _ in 0..300 {
        if random.random_ratio(1, 6) {
            let seconds = random.random_range(1..200);
            bed.advance_secs(seconds);
            model.now += seconds;
            continue;
        }
        let host = Ipv4Addr::new(100, 64, 0, 10 + random.random_range(0..HOSTS));
        let protocol = [Protocol::Udp, Protocol::Tcp][random.random_range(0..2)];
        let port = 7_000 + random.random_range(0..5_u16);
        let nonce = random.random_range(1..3_u8);
        let asked = [0, 60, 300, 5_000][random.random_range(0..4)];
        let key = (host, protocol, port);
        let told = bed.pcp(&Ask::map(host, protocol, port).nonce(nonce).lifetime(asked));
        let (code, lifetime) = model.expected(key, nonce, asked);
        // A deletion shows how long strangers' connections still keep the mapping.
        let is_kept = code == 0 && asked == 0 && protocol == Protocol::Tcp && told.lifetime <= 240;
        assert!(
            told.code == code && (is_kept || told.lifetime == lifetime),
            "{key:?}, {asked} s, seed {seed}: code {} for {} s",
            told.code,
            told.lifetime
        );
        replies.push((told.code, told.lifetime));
        if told.code == 0 && asked == 0 {
            model.grants.remove(&key);
        } else if told.code == 0 {
            let known = model.grants.get(&key).filter(|known| known.until > model.now);
            assert!(known.is_none_or(|known| known.external == told.external), "a renewal keeps its port");
            let is_taken = model.grants.iter().any(|(other, known)| {
                *other != key && other.1 == protocol && known.external == told.external && known.until > model.now
            });
            assert!(!is_taken, "{} has two owners", told.external);
            let until = model.now + u64::from(told.lifetime);
            model.grants.insert(key, Known { nonce, external: told.external, until });
        }
        // A stranger of this step gets exactly to those who asked for it.
        let stranger = at(E1, random.random_range(1_024..u16::MAX));
        let picked = model.grants.iter().nth(random.random_range(0..model.grants.len().max(1)));
        if let Some(((host, protocol, port), known)) = picked.filter(|(_, known)| known.until > model.now) {
            assert!(bed.is_open(*protocol, stranger, known.external, at(*host, *port)), "seed {seed}");
        }
    }
    bed.advance_secs(6_000);
    assert!(bed.grants().is_empty());
    bed.run_out();
    replies
}

#[test]
fn random_requests_are_answered_as_a_model_says() {
    for_each_seed(6, |seed| {
        let one = run(seed, 1);
        assert_eq!(one, run(seed, 2), "two workers");
        assert_eq!(one, run(seed, 8), "eight workers");
    });
}

#[test]
fn what_was_granted_is_there_after_a_restart() {
    covers!("6887-8.5b");
    let mut settings = settings().filtering(Filtering::AddressAndPortDependent);
    settings.port_control.pcp = true;
    for workers in [1, 2, 8] {
        let mut before = Bed::new(settings.clone()).workers(workers);
        before.restore(5_000, &[]);
        let hosts: Vec<Ipv4Addr> = (0..50).map(|last| Ipv4Addr::new(100, 64, 7, last)).collect();
        let externals: Vec<SocketAddrV4> =
            hosts.iter().map(|host| before.granted(&Ask::map(*host, Protocol::Tcp, 80))).collect();
        let peer = Ask::peer(I1, Protocol::Udp, 7_000, at(E1, 53)).lifetime(7_200);
        let of_peer = before.granted(&peer);
        before.advance_secs(100);
        let kept = before.grants();
        // Another number of workers, too.
        let mut after = Bed::new(settings.clone()).workers(3).seed(77).record_events(1 << 10);
        after.restore(5_100, &kept);
        after.sweep();
        let events = after.take_events_in_order().into_iter().map(|(_, event)| event);
        let made: Vec<_> = events.filter(|event| event.kind == EventKind::MappingCreated).collect();
        let made: Vec<_> = made.iter().map(|event| event.cause).collect();
        assert_eq!(made, vec![Cause::Pcp; hosts.len() + 1], "the log names the origin");
        for (host, external) in hosts.iter().zip(externals) {
            assert!(after.is_open(Protocol::Tcp, at(E1, 9), external, at(*host, 80)));
            let told = after.pcp(&Ask::map(*host, Protocol::Tcp, 80));
            assert_eq!((told.code, told.external), (0, external));
            assert!(told.epoch.abs_diff(5_100) <= 1, "the epoch time goes on");
        }
        // Longer than an idle session lasts.
        after.advance_secs(4_000);
        let is_there = after.grants().iter().any(|grant| grant.kind == nat::grant::Kind::Peer);
        assert!(is_there, "the PEER is there, too");
        assert!(after.is_open(Protocol::Udp, at(E1, 53), of_peer, at(I1, 7_000)));
        after.run_out();
    }
}
