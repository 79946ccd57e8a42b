//! How many subscribers one external address carries until the first of them is refused something:
//! with a port for each internal endpoint, and with ports that flows share.
//!
//! Each subscriber has so many connections to web servers at the same time, from a source port each
//! as browsers do; servers are chosen as the web's are visited, the n-th most popular one n times
//! less often than the first (Zipf). What bounds shared ports is the most popular server alone:
//! towards it each connection needs a port of its own.
//!
//! `NATRIX_PORTS=64512` measures a whole address (docs/operations.md has the figures); by default
//! it has 512 ports.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use core::net::Ipv4Addr;

use nat::Settings;
use nat::types::Prefix;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;

/// Connections of a subscriber at the same time.
const CONNECTIONS: u16 = 16;
/// Servers they go to.
const SERVERS: u32 = 20_000;

fn ports() -> u16 {
    std::env::var("NATRIX_PORTS").ok().and_then(|ports| ports.parse().ok()).unwrap_or(512)
}

/// The number of a server: the first is the most popular.
struct Popularity(Vec<f64>);

impl Popularity {
    fn new() -> Popularity {
        let mut sum = 0.0;
        let sums = (1..=SERVERS).map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        });
        Popularity(sums.collect())
    }

    fn draw(&self, random: &mut SmallRng) -> u32 {
        let total = self.0.last().copied().unwrap_or(1.0);
        let place = random.random::<f64>() * total;
        self.0.partition_point(|sum| *sum < place).min(SERVERS as usize - 1) as u32
    }
}

/// Subscribers that got all of their connections before one was refused one.
fn carried(settings: Settings) -> u32 {
    let popularity = Popularity::new();
    let mut random = SmallRng::seed_from_u64(1);
    let mut bed = Bed::new(settings);
    for subscriber in 0.. {
        let address = Ipv4Addr::from_bits(0x6440_1000 + subscriber);
        for n in 0..CONNECTIONS {
            let server = at(Ipv4Addr::from_bits(0x2e00_0000 + popularity.draw(&mut random)), 443);
            bed.inside(&build::udp(at(address, 40_000 + n), server).build());
        }
        let left = bed.take_outside().len();
        if left < usize::from(CONNECTIONS) {
            assert!(
                bed.take_inside().iter().any(|packet| is_icmp(packet, 3, 1)),
                "a refused sender gets an ICMP error"
            );
            return subscriber;
        }
    }
    0
}

#[test]
fn shared_ports_carry_more_than_five_times_as_many_subscribers() {
    let ports = ports();
    let mut settings = settings().addresses(&POOL[..1]).ports(1_024, 1_023 + ports).limits(|limits| {
        limits.mappings_max = 100_000;
        limits.subscribers_max = 200_000;
    });
    // All ports of the address serve web traffic here; what else there is has its own in this
    // comparison.
    settings.pools[0].shared_ports_min = 64;
    let single = carried(settings.clone());
    let mut hybrid = settings.endpoint_dependent(Prefix::ALL, (443, 443));
    hybrid.limits.flows_max = 2_000_000;
    let shared = carried(hybrid);
    println!("{ports} ports: {single} subscribers with a port for each endpoint, {shared} with shared ports");
    assert_eq!(single, u32::from(ports / CONNECTIONS), "a port for each connection");
    assert!(shared > 5 * single, "{shared} with shared ports, {single} without");
}
