//! A synthetic log of a carrier, through the real writer: for sizing, benchmarks and tests.
//!
//! The model: 64 subscribers share an external address, each makes 20 mappings a minute from random
//! ports (all 16 bits but the first 1,024: real clients have less entropy). External ports are
//! random among the free ones of the address and transport. 60 in 100 are TCP connections
//! (log-normal, median 15 s), 30 are UDP exchanges that end with their timer of 120 s, 10 are
//! longer UDP flows. Leases: each subscriber takes a block of 512 ports every four hours, for 40
//! minutes in the median, log-normal.

use core::net::Ipv4Addr;

use nat::Instant;
use nat::Protocol;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::types::WorkerId;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::catalogue::Moment;

/// Subscribers of one external address.
const SHARING: u32 = 64;
/// Most subscribers of a generated carrier.
const SUBSCRIBERS_MAX: u64 = 100_000;
/// Milliseconds that the wheel of ends spans.
const WHEEL: usize = 1 << 20;
/// 203.0.112.0 and on: external addresses.
const FIRST_EXTERNAL: u32 = 0xcb00_7000;
/// 100.64.0.0 and on.
const FIRST_SUBSCRIBER: u32 = 0x6440_0000;
/// 1 May 2026, µs since 1970.
const FIRST_US: u64 = 1_777_593_600_000_000;
const BLOCK_PORTS: u16 = 512;
const FIRST_PORT: u32 = 1_024;

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generated {
    /// Mappings of single ports.
    Mappings(u64),
    /// Leases of port blocks.
    Leases(u64),
}

#[derive(Clone, Copy, Debug)]
struct Held {
    end_us: u64,
    start_us: u64,
    subscriber: u32,
    external: u32,
    internal_port: u16,
    port: u16,
    protocol: Option<Protocol>,
}

/// A source of events in the order of time.
pub struct Generator {
    random: SmallRng,
    kind: Generated,
    left: u64,
    subscribers: u32,
    /// Mean time from one beginning to the next, in µs.
    pause_us: f64,
    next_us: u64,
    now_us: u64,
    /// Ends by millisecond.
    wheel: Vec<Vec<Held>>,
    wheel_ms: u64,
    held: u64,
    /// Used ports: a bit each, by address and transport.
    used: Vec<u64>,
    sequence: u64,
}

impl core::fmt::Debug for Generator {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Generator").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Generator {
    /// A generator of so many mappings or leases.
    pub fn new(kind: Generated, seed: u64) -> Generator {
        let (left, rate_us) = match kind {
            Generated::Mappings(count) => (count, 3_000_000.0),
            Generated::Leases(count) => (count, 4.0 * 3_600_000_000.0),
        };
        let subscribers = (left / 10).clamp(u64::from(SHARING), SUBSCRIBERS_MAX) as u32;
        let addresses = subscribers.div_ceil(SHARING) as usize;
        Generator {
            random: SmallRng::seed_from_u64(seed),
            kind,
            left,
            subscribers,
            pause_us: rate_us / f64::from(subscribers),
            next_us: 0,
            now_us: 0,
            wheel: vec![Vec::new(); WHEEL],
            wheel_ms: 0,
            held: 0,
            used: vec![0; addresses * 2 * 1_024],
            sequence: 0,
        }
    }

    /// Both clocks at the beginning of the log.
    pub fn begin() -> Moment {
        Moment { monotonic_us: 0, unix_us: FIRST_US }
    }

    /// Both clocks now: every earlier event was returned.
    pub fn now(&self) -> Moment {
        Moment { monotonic_us: self.now_us, unix_us: FIRST_US + self.now_us }
    }

    /// The worker of all events.
    pub const WORKER: WorkerId = WorkerId(0);

    /// Appends events to `out` until it has about `count`. Appends none at the end, when all that
    /// began has begun; what is open then stays open.
    pub fn fill(&mut self, count: usize, out: &mut Vec<Event>) {
        while out.len() < count && self.left > 0 {
            let end_ms = self.next_us / 1_000;
            while self.wheel_ms < end_ms && out.len() < count {
                self.end_millisecond(out);
            }
            if self.wheel_ms < end_ms {
                break;
            }
            self.begin_one(out);
        }
    }

    fn end_millisecond(&mut self, out: &mut Vec<Event>) {
        let slot = self.wheel_ms as usize % WHEEL;
        let mut ended = core::mem::take(&mut self.wheel[slot]);
        for held in ended.drain(..) {
            if held.end_us / 1_000 > self.wheel_ms {
                self.put(held);
                continue;
            }
            self.held -= 1;
            self.release(&held);
            self.now_us = self.now_us.max(held.end_us);
            let age_us = self.now_us - held.start_us;
            let event = self.event(&held, false, self.now_us);
            out.push(Event { amount: (age_us / 1_000_000) as u32, ..event });
        }
        // Keeps the allocation, unless it went back into the same slot.
        if self.wheel[slot].is_empty() {
            self.wheel[slot] = ended;
        }
        self.wheel_ms += 1;
    }

    fn put(&mut self, held: Held) {
        let ahead = (held.end_us / 1_000).saturating_sub(self.wheel_ms).clamp(1, WHEEL as u64 - 1);
        self.wheel[(self.wheel_ms + ahead) as usize % WHEEL].push(held);
    }

    fn begin_one(&mut self, out: &mut Vec<Event>) {
        self.now_us = self.now_us.max(self.next_us);
        let pause_us = -self.random.random::<f64>().max(1e-12).ln() * self.pause_us;
        self.next_us += pause_us as u64;
        let place = self.random.random_range(0..self.subscribers);
        let address = place / SHARING;
        let is_lease = matches!(self.kind, Generated::Leases(_));
        let kind = self.random.random_range(0..10);
        let protocol = if is_lease { None } else { Some(if kind < 6 { Protocol::Tcp } else { Protocol::Udp }) };
        let Some(port) = self.take_port(address, protocol) else {
            // The address is full: the subscriber is refused.
            return;
        };
        let seconds = match (is_lease, kind) {
            (true, _) => self.log_normal(2_400.0, 1.3).min(86_400.0),
            (false, 0..6) => self.log_normal(15.0, 1.3).min(7_200.0),
            (false, 6..9) => 120.0 + self.random.random::<f64>() * 2.0,
            _ => 120.0 + self.log_normal(40.0, 1.2).min(7_200.0),
        };
        let internal_port = if is_lease { 0 } else { self.random.random_range(FIRST_PORT as u16..=u16::MAX) };
        let held = Held {
            end_us: self.now_us + (seconds * 1e6) as u64,
            start_us: self.now_us,
            subscriber: FIRST_SUBSCRIBER + place,
            external: FIRST_EXTERNAL + address,
            internal_port,
            port,
            protocol,
        };
        self.left -= 1;
        self.held += 1;
        let event = self.event(&held, true, self.now_us).because(Cause::Outbound);
        out.push(event);
        self.put(held);
    }

    fn event(&mut self, held: &Held, is_begin: bool, at_us: u64) -> Event {
        self.sequence += 1;
        let is_lease = held.protocol.is_none();
        let kind = match (is_lease, is_begin) {
            (true, true) => EventKind::BlockLeased,
            (true, false) => EventKind::BlockReturned,
            (false, true) => EventKind::MappingCreated,
            (false, false) => EventKind::MappingEnded,
        };
        Event {
            sequence: self.sequence,
            subscriber: Ipv4Addr::from_bits(held.subscriber),
            external: Ipv4Addr::from_bits(held.external),
            internal_port: held.internal_port,
            first_port: held.port,
            last_port: if is_lease { held.port + (BLOCK_PORTS - 1) } else { held.port },
            protocol: held.protocol,
            ..Event::new(kind, Instant::from_micros(at_us))
        }
    }

    fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        // Box and Muller.
        let (one, two) = (self.random.random::<f64>().max(1e-12), self.random.random::<f64>());
        let normal = (-2.0 * one.ln()).sqrt() * (core::f64::consts::TAU * two).cos();
        median * (sigma * normal).exp()
    }

    fn ports_of(address: u32, protocol: Option<Protocol>) -> usize {
        let transport = usize::from(protocol == Some(Protocol::Tcp));
        (address as usize * 2 + transport) * 1_024
    }

    fn take_port(&mut self, address: u32, protocol: Option<Protocol>) -> Option<u16> {
        let base = Generator::ports_of(address, protocol);
        let step = if protocol.is_none() { u32::from(BLOCK_PORTS) } else { 1 };
        let count = (65_536 - FIRST_PORT) / step;
        let first = self.random.random_range(0..count);
        (0..count).find_map(|tried| {
            let port = FIRST_PORT + (first + tried) % count * step;
            let (word, bit) = (base + port as usize / 64, 1 << (port % 64));
            if self.used[word] & bit != 0 {
                return None;
            }
            self.used[word] |= bit;
            Some(port as u16)
        })
    }

    fn release(&mut self, held: &Held) {
        let base = Generator::ports_of(held.external - FIRST_EXTERNAL, held.protocol);
        self.used[base + usize::from(held.port) / 64] &= !(1 << (held.port % 64));
    }

    /// Mappings or leases that are still to begin.
    pub fn left(&self) -> u64 {
        self.left
    }
}
