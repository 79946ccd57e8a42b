//! Random lookups in a store of `natrix log generate`: latency, reads and memory.
//!
//! ```text
//! natrix log generate --dir D --mappings 100000000 --seed 1
//! sync; echo 3 > /proc/sys/vm/drop_caches
//! cargo run --release --package export --example store-lookups -- D 100000000 1
//! ```
//!
//! Half of the questions are about the start of a mapping that was generated, picked at random;
//! each of these must name its subscriber. The others are about random endpoints and times, of
//! which few are held. The store is opened anew for each question, as by a command, after its pages
//! were dropped from the cache once; `cold` drops them before every question (as root).

#![allow(clippy::expect_used, clippy::print_stdout, reason = "an example that prints, and ends when it cannot go on")]

use core::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Instant;

use export::store::Generated;
use export::store::Generator;
use export::store::Question;
use export::store::Store;
use nat::event::Cause;
use nat::event::Event;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

const HITS: usize = 500;

fn main() {
    let mut words = std::env::args().skip(1);
    let folder = PathBuf::from(words.next().expect("folder of the store"));
    let mappings: u64 = words.next().and_then(|word| word.parse().ok()).expect("number of mappings");
    let seed: u64 = words.next().and_then(|word| word.parse().ok()).expect("seed");
    let is_cold = words.next().is_some_and(|word| word == "cold");
    let mut random = SmallRng::seed_from_u64(99);
    // A sample of equal chances of all that began.
    let mut generator = Generator::new(Generated::Mappings(mappings), seed);
    let (mut sample, mut events, mut seen): (Vec<Event>, Vec<Event>, u64) = (Vec::new(), Vec::new(), 0);
    loop {
        events.clear();
        generator.fill(65_536, &mut events);
        if events.is_empty() {
            break;
        }
        for event in events.iter().filter(|event| event.cause == Cause::Outbound) {
            seen += 1;
            if sample.len() < HITS {
                sample.push(*event);
            } else if let Some(place) = sample.get_mut(random.random_range(0..seen) as usize) {
                *place = *event;
            }
        }
    }
    let (begin, end) = (Generator::begin().unix_us, generator.now().unix_us);
    drop(generator);
    let highest = sample.iter().map(|event| event.external.to_bits()).max().unwrap_or(0);
    let lowest = sample.iter().map(|event| event.external.to_bits()).min().unwrap_or(0);
    let mut asked: Vec<(Question, Option<Ipv4Addr>)> = Vec::new();
    for event in &sample {
        let at_us = begin + event.at.as_micros();
        let (port, protocol) = (Some(event.first_port), event.protocol);
        let question = Question { host: None, address: event.external, port, protocol, from_us: at_us, to_us: at_us };
        asked.push((question, Some(event.subscriber)));
        let at_us = random.random_range(begin..end);
        let address = Ipv4Addr::from_bits(random.random_range(lowest..=highest));
        let port = Some(random.random_range(1_024..=u16::MAX));
        asked.push((Question { host: None, address, port, protocol, from_us: at_us, to_us: at_us }, None));
    }
    let (mut times, mut reads, mut missing) = (Vec::new(), Vec::new(), 0);
    for (question, subscriber) in &asked {
        if is_cold {
            std::fs::write("/proc/sys/vm/drop_caches", "3").expect("caches are dropped as root");
        }
        let started = Instant::now();
        let found = Store::open(&folder).and_then(|store| store.look_up(question)).expect("an answer");
        times.push(started.elapsed());
        reads.push(found.reads);
        let is_named =
            subscriber.is_none_or(|wanted| found.holders.iter().any(|holder| holder.subscriber.ipv4() == Some(wanted)));
        missing += u32::from(!is_named);
    }
    times.sort_unstable();
    reads.sort_unstable();
    let at = |share: usize| (asked.len() * share / 1_000).min(asked.len() - 1);
    println!("{} lookups, {missing} without the holder", asked.len());
    println!("  p50 {:?}, p99 {:?}, longest {:?}", times[at(500)], times[at(990)], times[at(1_000)]);
    println!("  reads: p50 {}, p99 {}, most {}", reads[at(500)], reads[at(990)], reads[at(1_000)]);
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("  peak memory, with the generator's: {peak}");
}
