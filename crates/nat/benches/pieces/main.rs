//! `cargo bench -p nat`: single pieces of the engine.
//!
//! An iteration is a burst of 64 unless noted, as in the engine; the printed rate is of packets.
//! CPU time leaves out other programs on the core. The engine takes less than the sum of its
//! pieces, because some wait for memory while others compute.

#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark that cannot go on has failed")]

mod cpu_time;
mod packets;
mod world;

use core::cell::LazyCell;
use core::cell::RefCell;
use core::hint::black_box;
use core::net::Ipv4Addr;
use std::time::Duration;

use criterion::BatchSize;
use criterion::BenchmarkGroup;
use criterion::BenchmarkId;
use criterion::Criterion;
use criterion::Throughput;
use nat::Packet;
use nat::pieces;
use nat::random::KeyedHash;
use nat::random::Random;
use nat::table::BucketTable;
use nat::tables::Tables;

use cpu_time::CpuTime;
use packets::BURST;
use packets::Burst;
use packets::Mix;
use packets::internal;
use packets::is_tcp;
use world::World;

const SECRET: [u64; 4] = [3, 1, 4, 1];
/// Alternating bursts: more than a branch predictor learns, and they fit the second cache level.
const TURNS: usize = 64;
/// A small office; then tables from in the cache to in memory.
const SIZES: [u32; 4] = [1_000, 65_536, 1_000_000, 10_000_000];
/// No mapping of [`Tables`] expires.
const NOW: nat::Instant = nat::Instant::ORIGIN;
const REMOTE: (u32, u16) = (packets::SERVER.ip().to_bits(), packets::SERVER.port());

type Bench = Criterion<CpuTime>;
type Group<'a> = BenchmarkGroup<'a, CpuTime>;
type Endpoint = (u32, u16);

/// An iteration is a burst.
fn group_of_bursts<'a>(criterion: &'a mut Bench, name: &str) -> Group<'a> {
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::Elements(BURST as u64));
    group
}

fn hash(criterion: &mut Bench) {
    let hash = KeyedHash::new(SECRET);
    let mut random = Random::new(SECRET);
    let keys: [u64; BURST] = core::array::from_fn(|_| random.next_u64() >> 16);
    group_of_bursts(criterion, "hash").bench_function("internal endpoint", |bencher| {
        bencher.iter(|| {
            for key in black_box(&keys) {
                black_box(hash.hash(*key, 17));
            }
        });
    });
}

fn parse(criterion: &mut Bench) {
    let mut group = group_of_bursts(criterion, "parse");
    for mix in Mix::ALL {
        let bursts = mix.bursts::<TURNS>();
        group.bench_function(BenchmarkId::new("any packet", mix.name()), |bencher| {
            let mut turns = bursts.iter().cycle();
            bencher.iter(|| {
                for bytes in turns.next().into_iter().flatten() {
                    black_box(pieces::parse(black_box(bytes))).expect("the packet is sound");
                }
            });
        });
    }
    let world = LazyCell::new(|| World::new(1_000));
    for mix in Mix::ALL {
        let mut bursts = mix.bursts::<TURNS>();
        group.bench_function(BenchmarkId::new("as usual, with hash and prefetch", mix.name()), |bencher| {
            let packets = bursts.each_mut().map(|burst| {
                let burst: &mut Burst = burst;
                burst.each_mut().map(|bytes| Packet::new(bytes, world::FROM_INSIDE))
            });
            let mut turns = packets.iter().cycle();
            let shard = &world.shard;
            bencher.iter(|| {
                for packet in turns.next().into_iter().flatten() {
                    black_box(pieces::first_pass(shard, packet));
                }
            });
        });
    }
}

fn rewrite(criterion: &mut Bench) {
    let mut group = group_of_bursts(criterion, "rewrite");
    let (address, port) = (0xcb00_7105, 40_000);
    for mix in Mix::ALL {
        let fresh = mix.bursts::<TURNS>();
        let headers = fresh.map(|burst| burst.map(|bytes| pieces::parse(&bytes).expect("the packet is sound")));
        let tcp = fresh.map(|burst| burst.map(|bytes| is_tcp(&bytes)));
        // A packet is fresh when its turn comes again.
        let batch = BatchSize::NumIterations(TURNS as u64);
        group.bench_function(BenchmarkId::new("any packet", mix.name()), |bencher| {
            let mut turns = fresh.iter().zip(&headers).cycle();
            let fresh = || turns.next().map(|(burst, headers)| (*burst, headers)).expect("there are bursts");
            bencher.iter_batched_ref(
                fresh,
                |(burst, headers)| {
                    for (bytes, headers) in burst.iter_mut().zip(*headers) {
                        pieces::rewrite(bytes, headers, address, black_box(port));
                    }
                },
                batch,
            );
        });
        group.bench_function(BenchmarkId::new("as usual", mix.name()), |bencher| {
            let mut turns = fresh.iter().zip(&tcp).cycle();
            let fresh = || turns.next().map(|(burst, tcp)| (*burst, tcp)).expect("there are bursts");
            bencher.iter_batched_ref(
                fresh,
                |(burst, tcp)| {
                    for (bytes, is_tcp) in burst.iter_mut().zip(*tcp) {
                        pieces::rewrite_usual(bytes, *is_tcp, address, black_box(port));
                    }
                },
                batch,
            );
        });
    }
}

fn empty_tables(mappings: u32) -> Tables {
    let first = Ipv4Addr::new(203, 0, 0, 1);
    Tables::new(mappings, first, SECRET, nat::Duration::from_secs(300)).expect("there is memory")
}

/// A burst in the engine's passes: finds or makes mappings, and returns external endpoints.
#[inline]
fn from_inside(tables: &mut Tables, endpoints: &[Endpoint; BURST]) -> [Endpoint; BURST] {
    let mut scratch = endpoints.map(|(address, port)| tables.look_ahead(address, port));
    for look in &mut scratch {
        tables.look_closer(look);
    }
    for (look, (address, _)) in scratch.iter_mut().zip(endpoints) {
        tables.look_for_port(look, *address);
    }
    core::array::from_fn(|slot| {
        let (address, port) = endpoints[slot];
        tables.find_or_map(NOW, address, port, REMOTE, &scratch[slot]).expect("there is room")
    })
}

/// A burst in the engine's passes; returns internal endpoints.
#[inline]
fn from_outside(tables: &mut Tables, endpoints: &[Endpoint; BURST]) -> [Endpoint; BURST] {
    let places = endpoints.map(|(address, port)| tables.look_ahead_inbound(address, port).expect("it is of the pool"));
    let records = places.map(|place| tables.look_closer_inbound(place).expect("it has a mapping"));
    records.map(|record| tables.internal(NOW, record).expect("the mapping is alive"))
}

fn endpoints_from(first: u32) -> [Endpoint; BURST] {
    core::array::from_fn(|slot| internal(first + slot as u32))
}

fn bursts_in(mappings: u32) -> u32 {
    mappings / BURST as u32
}

fn lookup(criterion: &mut Bench) {
    let mut group = group_of_bursts(criterion, "lookup");
    for size in SIZES {
        // By the first benchmark that is asked for.
        let filled = LazyCell::new(|| {
            let mut tables = empty_tables(size);
            let externals: Vec<_> = (0..bursts_in(size))
                .flat_map(|burst| from_inside(&mut tables, &endpoints_from(burst * BURST as u32)))
                .collect();
            RefCell::new((tables, externals))
        });
        group.bench_function(BenchmarkId::new("from inside", size), |bencher| {
            let (tables, externals) = &mut *filled.borrow_mut();
            let mut random = Random::new(SECRET);
            let mut random_ones = || core::array::from_fn(|_| internal(random.below(externals.len() as u32)));
            bencher.iter(|| from_inside(tables, &random_ones()));
            assert_eq!(tables.len(), externals.len(), "all were found");
        });
        group.bench_function(BenchmarkId::new("from outside", size), |bencher| {
            let (tables, externals) = &mut *filled.borrow_mut();
            let mut random = Random::new(SECRET);
            // Copied ahead of time, so that reading the list is not what takes the time.
            let mut random_ones = || core::array::from_fn(|_| externals[random.below(externals.len() as u32) as usize]);
            let lists: Vec<[Endpoint; BURST]> = (0..16 * TURNS).map(|_| random_ones()).collect();
            let mut turns = lists.iter().cycle();
            bencher.iter(|| turns.next().map(|endpoints| from_outside(tables, endpoints)));
        });
    }
}

fn insert(criterion: &mut Bench) {
    let mut group = group_of_bursts(criterion, "insert");
    group.sample_size(20);
    for size in SIZES {
        group.bench_function(BenchmarkId::new("a mapping with both entries and its port", size), |bencher| {
            // Full ones are replaced: the average from empty to full.
            let mut tables = empty_tables(size);
            let mut filled = 0;
            bencher.iter_custom(|bursts| {
                let mut took = Duration::ZERO;
                let mut left = bursts;
                while left > 0 {
                    if filled == bursts_in(size) {
                        tables = empty_tables(size);
                        filled = 0;
                    }
                    let end = filled + left.min(u64::from(bursts_in(size) - filled)) as u32;
                    left -= u64::from(end - filled);
                    let begin = cpu_time::now();
                    for burst in filled..end {
                        black_box(from_inside(&mut tables, &endpoints_from(burst * BURST as u32)));
                    }
                    took += cpu_time::now() - begin;
                    filled = end;
                }
                took
            });
        });
        group.bench_function(BenchmarkId::new("an entry into the full hash table, and out again", size), |bencher| {
            let hash = KeyedHash::new(SECRET);
            let mut table = BucketTable::with_capacity(size as usize).expect("there is memory");
            for index in 0..size - BURST as u32 {
                table.insert(hash.hash(u64::from(index), 0), index).expect("there is room");
            }
            let mut random = Random::new([2, 7, 1, 8]);
            bencher.iter(|| {
                let hashes: [u64; BURST] = core::array::from_fn(|_| random.next_u64());
                for hash in hashes {
                    table.prefetch(hash);
                }
                for hash in hashes {
                    table.insert(hash, size).expect("there is room");
                }
                for hash in hashes {
                    assert!(table.remove(hash, size), "it was entered");
                }
            });
        });
    }
}

fn expiry(criterion: &mut Bench) {
    let mut group = criterion.benchmark_group("expiry");
    group.sample_size(10);
    for size in [1_000, 65_536, 1_000_000] {
        group.throughput(Throughput::Elements(u64::from(size)));
        group.bench_function(BenchmarkId::new("of all at one instant", size), |bencher| {
            let mut world = World::new(size);
            bencher.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    world.fill();
                    world.let_all_run_out();
                    let begin = cpu_time::now();
                    world.sweep_until_empty();
                    took += cpu_time::now() - begin;
                }
                took
            });
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("a call with nothing due", size), |bencher| {
            let mut world = World::new(size);
            world.fill();
            bencher.iter(|| world.sweep_a_moment());
            assert_eq!(world.shard.view().mappings_len(), size, "nothing was due");
        });
    }
}

fn main() {
    let mut criterion = Criterion::default().with_measurement(CpuTime).configure_from_args();
    for piece in [hash, parse, rewrite, lookup, insert, expiry] {
        piece(&mut criterion);
    }
    criterion.final_summary();
}
