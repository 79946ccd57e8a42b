//! The engine does what a naive NAT written from the RFCs does, over random packets and pauses.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use nat::Duration;
use nat::Protocol;
use nat::Settings;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::types::Side;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::model::Expected;
use testkit::model::FORGED_SEQUENCE;
use testkit::model::Model;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

fn pick<T: Copy>(random: &mut SmallRng, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

fn random_settings(random: &mut SmallRng) -> Settings {
    let filterings = [Filtering::EndpointIndependent, Filtering::AddressDependent, Filtering::AddressAndPortDependent];
    let mut settings = settings().short_timers().timers(|timeouts| timeouts.tcp_opening = Duration::from_secs(7));
    for protocol in Protocol::ALL {
        settings = settings.filtering_of(protocol, pick(random, &filterings));
    }
    settings = settings.pooling(pick(random, &[Pooling::Paired, Pooling::Arbitrary]));
    settings.pools[0].parity = random.random();
    settings.inbound_refresh = random.random();
    // A refused SYN of a hairpin is held like any other; the model leaves that out.
    settings.answer_unsolicited_syn =
        settings.pools[0].filtering[Protocol::Tcp.index()] == Filtering::EndpointIndependent;
    settings.icmp.errors_per_second_max = 1_000_000;
    settings.icmp.errors_per_second_per_destination_max = 1_000_000;
    settings.limits.mappings_max = 1_000;
    settings.limits.extra_sessions_max = 1_000;
    settings
}

/// A run: engine, model, and all external endpoints that ever were.
struct Run {
    bed: Bed,
    model: Model,
    random: SmallRng,
    externals: Vec<(Protocol, SocketAddrV4)>,
    serial: u32,
    workers: usize,
    /// The steps so far, printed when the run fails.
    log: Vec<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("last steps:\n{}", self.log[self.log.len().saturating_sub(25)..].join("\n"));
        }
    }
}

impl Run {
    fn endpoint(&mut self, hosts: &[core::net::Ipv4Addr]) -> SocketAddrV4 {
        at(pick(&mut self.random, hosts), pick(&mut self.random, &[80, 5_000, 5_001]))
    }

    fn packet(&mut self, protocol: Protocol, from: SocketAddrV4, to: SocketAddrV4, side: Side) -> Vec<u8> {
        self.serial += 1;
        let payload = self.serial.to_be_bytes();
        let ttl = if self.random.random_ratio(1, 20) { 1 } else { 64 };
        let builder = match protocol {
            Protocol::Udp => build::udp(from, to),
            Protocol::Icmp => {
                let is_reply = (side == Side::Outside) != self.random.random_ratio(1, 20);
                let identifier = if side == Side::Inside { from.port() } else { to.port() };
                build::icmp_query(*from.ip(), *to.ip(), if is_reply { 0 } else { 8 }, identifier)
            }
            Protocol::Tcp => {
                let flags = [
                    Flags::SYN,
                    Flags::SYN,
                    Flags::SYN.union(Flags::ACK),
                    Flags::SYN.union(Flags::ACK),
                    Flags::ACK,
                    Flags::ACK,
                    Flags::ACK,
                    Flags::FIN.union(Flags::ACK),
                    Flags::RST,
                    Flags::RST.union(Flags::ACK),
                ];
                let flags = pick(&mut self.random, &flags);
                let forged = flags.contains(Flags::RST) && self.random.random_ratio(1, 4);
                let sequence = if forged { FORGED_SEQUENCE } else { 1_000 };
                build::tcp(from, to, flags).sequence(sequence).acknowledgment(1_001)
            }
        };
        builder.ttl(ttl).payload(&payload).build()
    }

    fn step(&mut self) {
        let protocol = pick(&mut self.random, &Protocol::ALL);
        let known: Vec<SocketAddrV4> =
            self.externals.iter().filter(|(of, _)| *of == protocol).map(|(_, external)| *external).collect();
        match self.random.random_range(0..10) {
            0..=4 => {
                let from = self.endpoint(&[I1, I2, I3]);
                let to = if !known.is_empty() && self.random.random_ratio(1, 4) {
                    pick(&mut self.random, &known)
                } else {
                    self.endpoint(&[E1, E2])
                };
                let packet = self.packet(protocol, from, to, Side::Inside);
                self.feed(Side::Inside, &packet);
            }
            5..=8 => {
                let to = if known.is_empty() || self.random.random_ratio(1, 10) {
                    at(pick(&mut self.random, &POOL), 40_000)
                } else {
                    pick(&mut self.random, &known)
                };
                let from = self.endpoint(&[E1, E2]);
                let packet = self.packet(protocol, from, to, Side::Outside);
                self.feed(Side::Outside, &packet);
            }
            _ => self.pause(),
        }
    }

    fn pause(&mut self) {
        let millis = pick(&mut self.random, &[1, 10, 500, 1_000, 2_500, 5_000, 10_000, 12_000, 25_000]);
        self.log.push(format!("{:?} pause {millis} ms", self.bed.now()));
        self.bed.advance(Duration::from_millis(millis));
        self.bed.sweep();
        let due = self.model.advance(self.bed.now());
        let answered: BTreeSet<_> = self
            .bed
            .take_outside()
            .iter()
            .map(|packet| {
                assert!(is_icmp(packet, 3, 3), "only answers to SYNs leave by themselves");
                (destination(quote(packet)), source(quote(packet)))
            })
            .collect();
        assert_eq!(answered, due.into_iter().collect(), "SYNs answered");
        self.bed.assert_silent();
        self.compare();
    }

    fn feed(&mut self, side: Side, packet: &[u8]) {
        let before = self.bed.counters().verdicts;
        let expected = match side {
            Side::Inside => self.model.inside(packet),
            Side::Outside => self.model.outside(packet),
        };
        // Who is hairpinned from a mapping still to be made has an address nobody knows yet.
        let explained = match expected {
            Expected::HairpinsFromNew(..) => None,
            _ => self.explain(side, packet),
        };
        match side {
            Side::Inside => self.bed.inside(packet),
            Side::Outside => self.bed.outside(packet),
        }
        let inside = self.bed.take_inside();
        let outside = self.bed.take_outside();
        let what = format!("{:?} to {:?} from {}", source(packet), destination(packet), side.name());
        let verdicts = self.bed.verdicts();
        self.log.push(format!("{:?} {} {what}: {expected:?}", self.bed.now(), packet::header(packet).protocol()));
        let expected = match expected {
            Expected::LeavesFromNew(internal, _) => {
                assert_eq!(outside.len(), 1, "{what} makes a mapping; {verdicts:?}");
                let external = source(&outside[0]);
                self.externals.push((internal.0, external));
                self.model.adopt(packet, internal, external)
            }
            Expected::HairpinsFromNew(internal, _) => {
                let mapping = self.bed.mapping_of(internal.0, internal.1).expect("a hairpin makes a mapping");
                let external = at(mapping.external.address, mapping.external.port);
                self.externals.push((internal.0, external));
                self.model.adopt(packet, internal, external)
            }
            other => other,
        };
        let nothing: Vec<Vec<u8>> = Vec::new();
        match expected {
            Expected::Silence => {
                assert_eq!((&inside, &outside), (&nothing, &nothing), "{what} ends here; {verdicts:?}");
            }
            Expected::Leaves(out, from, to) => {
                let (got, other) = if out == Side::Inside { (inside, outside) } else { (outside, inside) };
                assert_eq!(other, nothing, "{what}");
                assert_eq!(got.len(), 1, "{what} leaves; {verdicts:?}");
                // A query has one identifier for both ends.
                let from_port =
                    if packet::header(packet).protocol() == 1 { source(&got[0]).port() } else { from.port() };
                assert_eq!(source(&got[0]), at(*from.ip(), from_port), "source of {what}");
                if packet::header(packet).protocol() != 1 || out == Side::Inside {
                    assert_eq!(destination(&got[0]), to, "destination of {what}");
                } else {
                    assert_eq!(destination(&got[0]).ip(), to.ip(), "destination of {what}");
                    assert_eq!(source(&got[0]), from, "identifier of {what}");
                }
            }
            Expected::Error(out, icmp_type, code) => {
                let (got, other) = if out == Side::Inside { (inside, outside) } else { (outside, inside) };
                assert_eq!(other, nothing, "{what}");
                assert_eq!(got.len(), 1, "an error for {what}; {verdicts:?}");
                assert!(is_icmp(&got[0], icmp_type, code));
            }
            Expected::LeavesFromNew(..) | Expected::HairpinsFromNew(..) => panic!("{what}: adopted, but still new"),
        }
        if let Some(explained) = explained {
            let after = self.bed.counters().verdicts;
            let given: Vec<Verdict> = Verdict::ALL
                .iter()
                .copied()
                .filter(|verdict| after[verdict.index()] > before[verdict.index()])
                .collect();
            assert_eq!(given, [explained], "what was explained came true for {what}");
        }
        self.compare();
    }

    fn explain(&self, side: Side, packet: &[u8]) -> Option<Verdict> {
        let shard = self.bed.shards().next().filter(|_| self.workers == 1)?;
        Some(shard.explain(self.bed.now(), side.into(), packet).verdict)
    }

    /// All mappings and sessions are the same in engine and model.
    fn compare(&self) {
        let engine: BTreeMap<_, _> = self
            .bed
            .mappings()
            .into_iter()
            .map(|mapping| {
                let internal = at(mapping.internal.address, mapping.internal.port);
                ((mapping.protocol, internal), at(mapping.external.address, mapping.external.port))
            })
            .collect();
        let model: BTreeMap<_, _> =
            self.model.mappings.iter().map(|(internal, mapping)| (*internal, mapping.external)).collect();
        assert_eq!(engine, model, "mappings");
        let now = self.bed.now();
        let engine: BTreeSet<String> = self
            .bed
            .sessions()
            .into_iter()
            .map(|session| {
                let state = session.state.map(|state| state.name());
                format!("{} {} {} {state:?} {}", session.protocol, session.internal, session.remote, session.expires_in)
            })
            .collect();
        let timeouts = &self.bed.settings().timeouts;
        let model: BTreeSet<String> = self
            .model
            .mappings
            .iter()
            .flat_map(|(internal, mapping)| mapping.sessions.iter().map(move |session| (internal, session)))
            .map(|((protocol, internal), (remote, session))| {
                let left = session.expires.saturating_since(now);
                let idle = Duration::from_micros(
                    (timeouts.tcp_established + timeouts.tcp_closing).as_micros()
                        - left.as_micros().min((timeouts.tcp_established + timeouts.tcp_closing).as_micros()),
                );
                let state = session.state.map(|state| state.at_idle(idle, timeouts).name());
                format!("{protocol} {internal} {remote} {state:?} {left}")
            })
            .collect();
        assert_eq!(engine, model, "sessions");
    }
}

fn run(seed: u64, workers: usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let settings = random_settings(&mut random);
    let bed = Bed::new(settings.clone()).workers(workers).seed(seed).steering(Steering::Random);
    let model = Model::new(&settings, bed.now());
    let mut run = Run { bed, model, random, externals: Vec::new(), serial: 0, workers, log: Vec::new() };
    for _ in 0..300 {
        run.step();
    }
    run.bed.run_out();
}

#[test]
fn one_worker_does_what_the_model_does() {
    for_each_seed(60, |seed| run(seed, 1));
}

#[test]
fn three_workers_with_random_steering_do_what_the_model_does() {
    for_each_seed(40, |seed| run(seed, 3));
}
