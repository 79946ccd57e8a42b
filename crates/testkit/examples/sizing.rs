//! The figures of docs/operations.md: how many subscribers an external address carries, and how
//! much log they make, for each way to give out ports. The engine does the work, under a stated
//! load; the virtual clock makes a day short.
//!
//! ```text
//! cargo run --locked --release --package testkit --example sizing
//! ```
//!
//! With a word behind it, only the ways whose name has it (`-- "blocks of"`).
//!
//! The load is made of visits. A visit is a question to the resolver, two TCP connections to port
//! 443 and one QUIC flow to port 443, each from a port of its own; connections and flows end after
//! 5 to 115 s. Servers are chosen as the web's are visited: of 20 000, the n-th most popular one n
//! times less often than the first. In the busy hour a subscriber makes 4 visits a minute on
//! average: one in twenty seven times as many, five in twenty half as many again, the others two
//! fifths. All timers are the defaults.
//!
//! Carried: a subscriber more every four seconds, all with the load of the busy hour, until the
//! first packet is refused. Log: 40 subscribers for a day, most of it quieter than the busy hour;
//! bytes are those of the lines as they are written.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example that prints, and ends when it cannot go on")]

use core::cmp::Reverse;
use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BinaryHeap;

use export::Names;
use export::Subscriber;
use export::write_line;
use nat::Duration;
use nat::Settings;
use nat::blocks::BlockSize;
use nat::settings::Allocation;
use nat::settings::Blocks;
use nat::types::Prefix;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

/// Visits a minute of a mean subscriber in the busy hour.
const VISITS_A_MINUTE: f64 = 4.0;
/// The load of each hour of the day, from midnight on, as a share of the busy hour's.
const DAY: [f64; 24] = [
    0.35, 0.20, 0.12, 0.08, 0.07, 0.10, 0.20, 0.35, 0.45, 0.50, 0.50, 0.55, 0.60, 0.55, 0.55, 0.60, 0.70, 0.80, 0.90,
    0.95, 1.00, 1.00, 0.85, 0.60,
];
const SERVERS: u32 = 20_000;
const RESOLVER: SocketAddrV4 = at(Ipv4Addr::new(9, 9, 9, 9), 53);
/// Subscribers whose log is measured.
const LOGGED: u32 = 40;
/// Seconds from one new subscriber to the next while they are counted.
const JOIN_S: u64 = 4;
const JOINED_MAX: u32 = 8_192;
/// 1 November 2026, in microseconds.
const EPOCH_US: u64 = 1_793_491_200_000_000;

/// How busy a subscriber is, beside the mean.
fn weight(subscriber: u32) -> f64 {
    match subscriber % 20 {
        10 => 7.0,
        1 | 5 | 9 | 13 | 17 => 1.5,
        _ => 0.4,
    }
}

/// What of a visit ends later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    second: u64,
    tcp: bool,
    from: SocketAddrV4,
    to: SocketAddrV4,
    external: SocketAddrV4,
}

/// Subscribers who visit, and the NAT they do it through.
struct Town {
    bed: Bed,
    /// Address of the first subscriber.
    first: u32,
    random: SmallRng,
    popularity: Vec<f64>,
    ports: Vec<u16>,
    open: BinaryHeap<Reverse<Open>>,
    second: u64,
    refused: bool,
    names: Names,
    line: Vec<u8>,
    records: u64,
    bytes: u64,
}

impl Town {
    fn new(settings: Settings) -> Town {
        let names = Names {
            pools: settings.pools.iter().map(|pool| pool.name.clone()).collect(),
            realms: settings.realm_names.clone(),
            ..Names::default()
        };
        let mut sum = 0.0;
        let popularity = (1..=SERVERS).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        // The formula leaves out the first and the last address of a prefix (RFC 7422 §2).
        let formula = matches!(settings.pools[0].allocation, Allocation::Deterministic { .. });
        Town {
            first: 0x6440_1000 + u32::from(formula),
            popularity: popularity.collect(),
            bed: Bed::new(settings).record_events(1 << 16),
            random: SmallRng::seed_from_u64(1),
            ports: Vec::new(),
            open: BinaryHeap::new(),
            second: 0,
            refused: false,
            names,
            line: Vec::new(),
            records: 0,
            bytes: 0,
        }
    }

    fn server(&mut self) -> SocketAddrV4 {
        let total = self.popularity.last().copied().unwrap_or(1.0);
        let place = self.random.random::<f64>() * total;
        let rank = self.popularity.partition_point(|sum| *sum < place).min(SERVERS as usize - 1);
        at(Ipv4Addr::from_bits(0x2e00_0000 + rank as u32), 443)
    }

    /// A local endpoint that this subscriber has not used for long.
    fn endpoint(&mut self, subscriber: u32) -> SocketAddrV4 {
        let port = &mut self.ports[subscriber as usize];
        *port = port.checked_add(1).unwrap_or(1_024);
        at(Ipv4Addr::from_bits(self.first + subscriber), *port)
    }

    /// Sends it and takes what leaves; none is a refusal.
    fn leaves(&mut self, packet: &[u8]) -> Option<SocketAddrV4> {
        self.bed.inside(packet);
        let left = self.bed.take_outside().first().map(|packet| source(packet));
        self.bed.take_inside();
        self.refused |= left.is_none();
        left
    }

    fn enters(&mut self, packet: &[u8]) {
        self.bed.outside(packet);
        assert_eq!(self.bed.take_inside().len(), 1, "an answer arrives");
    }

    fn udp(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> Option<SocketAddrV4> {
        let external = self.leaves(&build::udp(from, to).build())?;
        self.enters(&build::udp(to, external).build());
        Some(external)
    }

    fn tcp(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> Option<SocketAddrV4> {
        let external = self.leaves(&build::tcp(from, to, Flags::SYN).sequence(1_000).build())?;
        let both = Flags::SYN.union(Flags::ACK);
        self.enters(&build::tcp(to, external, both).sequence(5_000).acknowledgment(1_001).build());
        self.leaves(&build::tcp(from, to, Flags::ACK).sequence(1_001).acknowledgment(5_001).build())
    }

    /// The last packets of a connection or flow.
    fn end(&mut self, open: Open) {
        if !open.tcp {
            self.udp(open.from, open.to);
            return;
        }
        let both = Flags::FIN.union(Flags::ACK);
        self.leaves(&build::tcp(open.from, open.to, both).sequence(1_001).acknowledgment(5_001).build());
        self.enters(&build::tcp(open.to, open.external, both).sequence(5_001).acknowledgment(1_002).build());
        self.leaves(&build::tcp(open.from, open.to, Flags::ACK).sequence(1_002).acknowledgment(5_002).build());
    }

    fn visit(&mut self, subscriber: u32) {
        let from = self.endpoint(subscriber);
        self.udp(from, RESOLVER);
        for tcp in [true, true, false] {
            let (from, to) = (self.endpoint(subscriber), self.server());
            let external = if tcp { self.tcp(from, to) } else { self.udp(from, to) };
            let second = self.second + self.random.random_range(5..=115);
            self.open.extend(external.map(|external| Reverse(Open { second, tcp, from, to, external })));
        }
    }

    /// A second of all who have joined, at this share of the busy hour's load.
    fn live(&mut self, share: f64) {
        self.second += 1;
        while let Some(Reverse(open)) = self.open.peek().copied().filter(|next| next.0.second <= self.second) {
            self.open.pop();
            self.end(open);
        }
        for subscriber in 0..self.ports.len() as u32 {
            if self.random.random_bool(share * weight(subscriber) * VISITS_A_MINUTE / 60.0) {
                self.visit(subscriber);
            }
        }
        // Housekeeping visits 16 records a time at least: often enough to see each within a second
        // or two.
        let records: u64 =
            self.bed.shards().map(|shard| u64::from(shard.view().mappings_len()).max(shard.sessions_len())).sum();
        let steps = 2 + records / 1_000;
        for _ in 0..steps {
            self.bed.jump(Duration::from_micros(1_000_000 / steps));
            self.bed.settle();
        }
        for event in self.bed.take_events(0, usize::MAX) {
            self.line.clear();
            let who = Subscriber::Ipv4(event.subscriber);
            write_line(&mut self.line, WorkerId(0), &event, who, EPOCH_US + event.at.as_micros(), &self.names);
            self.records += 1;
            self.bytes += self.line.len() as u64;
        }
    }

    /// One more, who begins with a visit.
    fn join(&mut self) {
        self.ports.push(1_024);
        self.visit(self.ports.len() as u32 - 1);
    }
}

/// Subscribers until the first refusal, at most so many; and whether there was one.
fn carried(settings: Settings, most: u32) -> (u32, bool) {
    let mut town = Town::new(settings);
    loop {
        let joined = town.ports.len() as u32;
        if joined < most {
            town.join();
        }
        // Who joined last gets to its steady state too: the longest timer of these sessions, and
        // the rest of their ports.
        let seconds = if joined < most { JOIN_S } else { 600 };
        for _ in 0..seconds {
            town.live(1.0);
            if town.refused {
                return (town.ports.len() as u32 - 1, true);
            }
        }
        if joined >= most {
            return (most, false);
        }
    }
}

/// Records and bytes of a day, a subscriber.
fn logged(settings: Settings) -> (f64, f64) {
    let mut town = Town::new(settings);
    (0..LOGGED).for_each(|_| town.join());
    for share in DAY {
        (0..3_600).for_each(|_| town.live(share));
    }
    assert!(!town.refused, "an address is enough for {LOGGED}: {:?}", town.bed.verdicts());
    (town.records as f64 / f64::from(LOGGED), town.bytes as f64 / f64::from(LOGGED))
}

fn blocks(ports: u32, idle: u64) -> Blocks {
    let size = BlockSize::of_ports(ports).expect("a block size");
    Blocks { size, per_subscriber_max: 16, idle: Duration::from_secs(idle) }
}

/// One address, with the default timers and hold-down time.
fn one_address(allocation: Allocation, subscribers: u8) -> Settings {
    let mut settings = settings().addresses(&POOL[..1]).limits(|limits| limits.sessions_per_mapping_max = 4_096);
    settings.pools[0].name = "public".into();
    settings.pools[0].allocation = allocation;
    settings.pools[0].subscribers = vec![topology::prefix([100, 64, 16, 0], subscribers)];
    settings.realm_names = vec!["default".into()];
    settings
}

fn main() {
    let slices = |dynamic_slices| Allocation::Deterministic { dynamic_slices, overflow: blocks(64, 120) };
    let mut ways = vec![("single ports".to_owned(), one_address(Allocation::Ports, 19), JOINED_MAX)];
    let mut web = one_address(Allocation::Ports, 19).endpoint_dependent(Prefix::ALL, (443, 443));
    web.limits.flows_max = 1_000_000;
    ways.push(("single ports, endpoint-dependent for port 443".into(), web, JOINED_MAX));
    for ports in [64, 256, 512, 1_024] {
        let allocation = Allocation::Blocks(blocks(ports, 120));
        ways.push((format!("blocks of {ports}"), one_address(allocation, 19), JOINED_MAX));
    }
    ways.push(("deterministic, 126 to an address, D = 2".into(), one_address(slices(2), 25), 126));
    ways.push(("deterministic, 254 to an address, D = 32".into(), one_address(slices(32), 24), 254));
    let word = std::env::args().nth(1).unwrap_or_default();
    println!("| allocation | subscribers carried | log records a subscriber and day | bytes a subscriber and day |");
    println!("|---|---|---|---|");
    for (name, settings, most) in ways.into_iter().filter(|(name, ..)| name.contains(&word)) {
        let (carried, refused) = carried(settings.clone(), most);
        let all = if refused { "" } else { ", all there can be" };
        let (records, bytes) = logged(settings);
        println!("| {name} | {carried}{all} | {records:.0} | {bytes:.0} |");
    }
}
