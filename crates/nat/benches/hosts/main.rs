//! `cargo bench -p nat --bench hosts [-- SESSIONS...]`: a number with a record for each IPv6 host,
//! against a side line of 16 bytes at each mapping (ADR 19).
//!
//! Filled tables of one size take turns, so that other load on the machine meets them all. A figure
//! is the median over the turns of the median burst, in TSC cycles a packet, without preparing the
//! burst.

#![allow(clippy::expect_used, reason = "a benchmark that cannot go on has failed")]

use std::env;

use mem::tsc;
use nat::Instant;
use nat::random::Random;
use nat::tables::hosts::BURST;
use nat::tables::hosts::ByNumber;
use nat::tables::hosts::Inside;
use nat::tables::hosts::Ipv4Only;
use nat::tables::hosts::Mappings;
use nat::tables::hosts::Outside;
use nat::tables::hosts::SideLines;

/// A small office; two tables in memory.
const SIZES: [u32; 3] = [1_000, 1_000_000, 10_000_000];
const SESSIONS_OF_A_HOST: u32 = 64;
const HOSTS_OF_A_SUBSCRIBER: u32 = 4;
const TURNS: usize = 21;
const BURSTS_OF_A_SLICE: usize = 2_000;
const SECRET: [u64; 4] = [3, 1, 4, 1];
/// No mapping expires.
const NOW: Instant = Instant::ORIGIN;

#[derive(Clone, Copy)]
enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    /// Interface identifiers are spread, as hosts choose them.
    fn endpoint(self, serial: u32) -> Inside {
        let host = serial / SESSIONS_OF_A_HOST;
        let port = (20_000 + serial % SESSIONS_OF_A_HOST * 7) as u16;
        let address = match self {
            Family::Ipv4 => u128::from(0x0a00_0001 + host),
            Family::Ipv6 => {
                let (subscriber, subnet) = (host / HOSTS_OF_A_SUBSCRIBER, host % HOSTS_OF_A_SUBSCRIBER);
                let interface = u64::from(host).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                0x2001_0db8 << 96 | u128::from(subscriber) << 72 | u128::from(subnet) << 64 | u128::from(interface)
            }
        };
        (address, port)
    }
}

struct Candidate<M> {
    name: &'static str,
    mappings: M,
    family: Family,
    /// By serial number.
    outside: Vec<Outside>,
    random: Random,
    opening: Vec<f64>,
    leaving: Vec<f64>,
    entering: Vec<f64>,
}

/// Hides the type of the tables.
trait Runner {
    fn open(&mut self, serials: &[u32]);
    fn leave(&mut self);
    fn enter(&mut self);
    fn report(&mut self, sessions: u32);
}

impl<M: Mappings> Candidate<M> {
    fn new(name: &'static str, family: Family, sessions: u32) -> Candidate<M> {
        let hosts = sessions.div_ceil(SESSIONS_OF_A_HOST);
        Candidate {
            name,
            mappings: M::new(sessions, hosts, SECRET).expect("there is memory"),
            family,
            outside: vec![(0, 0); sessions as usize],
            random: Random::new(SECRET),
            opening: Vec::new(),
            leaving: Vec::new(),
            entering: Vec::new(),
        }
    }

    fn serials(&mut self) -> [u32; BURST] {
        core::array::from_fn(|_| self.random.below(self.outside.len() as u32))
    }
}

/// In cycles a packet.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let begin = tsc::read();
    let result = work();
    (tsc::read().wrapping_sub(begin) as f64 / BURST as f64, result)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl<M: Mappings> Runner for Candidate<M> {
    fn open(&mut self, serials: &[u32]) {
        let mut cycles = Vec::new();
        for serials in serials.as_chunks::<BURST>().0 {
            let burst = serials.map(|serial| self.family.endpoint(serial));
            let (took, outside) = timed(|| self.mappings.leave(NOW, &burst));
            cycles.push(took);
            for (serial, outside) in serials.iter().zip(outside.expect("there is room")) {
                self.outside[*serial as usize] = outside;
            }
        }
        self.opening.push(median(&mut cycles));
    }

    fn leave(&mut self) {
        let mut cycles = Vec::new();
        for _ in 0..BURSTS_OF_A_SLICE {
            let serials = self.serials();
            let burst = serials.map(|serial| self.family.endpoint(serial));
            let (took, outside) = timed(|| self.mappings.leave(NOW, &burst));
            cycles.push(took);
            let wanted = serials.map(|serial| self.outside[serial as usize]);
            assert_eq!(outside, Some(wanted), "{}: each packet leaves from its endpoint", self.name);
        }
        self.leaving.push(median(&mut cycles));
    }

    fn enter(&mut self) {
        let mut cycles = Vec::new();
        for _ in 0..BURSTS_OF_A_SLICE {
            let serials = self.serials();
            let burst = serials.map(|serial| self.outside[serial as usize]);
            let (took, inside) = timed(|| self.mappings.enter(NOW, &burst));
            cycles.push(took);
            let wanted = serials.map(|serial| self.family.endpoint(serial));
            assert_eq!(inside, Some(wanted), "{}: each packet reaches its host", self.name);
        }
        self.entering.push(median(&mut cycles));
    }

    fn report(&mut self, sessions: u32) {
        let bytes = self.mappings.bytes() as f64 / f64::from(sessions);
        let [out, back, new] = [&mut self.leaving, &mut self.entering, &mut self.opening].map(|turns| {
            let middle = median(turns);
            let (least, most) = (turns.first().copied().unwrap_or(middle), turns.last().copied().unwrap_or(middle));
            format!("{middle:6.1} ({least:5.1} to {most:5.1})")
        });
        println!("{sessions:>10}  {:<22}  {out}  {back}  {new}  {bytes:7.2}", self.name);
    }
}

/// Whole bursts' serial numbers, each once, in random order.
fn shuffled(sessions: u32) -> Vec<u32> {
    let mut serials: Vec<u32> = (0..sessions / BURST as u32 * BURST as u32).collect();
    let mut random = Random::new([2, 7, 1, 8]);
    for last in (1..serials.len()).rev() {
        let other = random.below(last as u32 + 1);
        serials.swap(last, other as usize);
    }
    serials
}

fn measure(asked: u32) {
    let sessions = asked / BURST as u32 * BURST as u32;
    let mut candidates: Vec<Box<dyn Runner>> = vec![
        Box::new(Candidate::<Ipv4Only>::new("ipv4, as it is", Family::Ipv4, sessions)),
        Box::new(Candidate::<SideLines>::new("ipv4, with side lines", Family::Ipv4, sessions)),
        Box::new(Candidate::<ByNumber>::new("ipv6, host numbers", Family::Ipv6, sessions)),
        Box::new(Candidate::<SideLines>::new("ipv6, side lines", Family::Ipv6, sessions)),
    ];
    let serials = shuffled(sessions);
    let slice = (serials.len() / TURNS).next_multiple_of(BURST).max(BURST);
    for slice in serials.chunks(slice) {
        for candidate in &mut candidates {
            candidate.open(slice);
        }
    }
    for _ in 0..TURNS {
        for candidate in &mut candidates {
            candidate.leave();
        }
        for candidate in &mut candidates {
            candidate.enter();
        }
    }
    for candidate in &mut candidates {
        candidate.report(sessions);
    }
}

fn main() {
    let asked: Vec<u32> = env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let sizes = if asked.is_empty() { SIZES.to_vec() } else { asked };
    println!("  sessions  table                   {:<24}{:<24}{:<24}bytes a session", "out", "in", "new");
    for size in sizes {
        measure(size);
    }
}
