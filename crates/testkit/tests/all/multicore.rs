//! Many workers on flows that a card spreads without knowing which packets belong together.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::HashMap;
use std::collections::HashSet;
use std::net::SocketAddrV4;

use nat::Protocol;
use nat::Verdict;
use nat::types::Side;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::*;
use wire::build;

const WORKERS: usize = 16;
const SUBSCRIBERS: u32 = 400;
const FLOWS: u32 = 20;

fn subscriber(number: u32) -> SocketAddrV4 {
    at((0x6440_0100 + number / FLOWS).into(), (2_000 + number % FLOWS) as u16)
}

/// Serial number in the payload.
fn serial(packet: &[u8]) -> u32 {
    payload(packet).first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Sends packets in rounds over all flows, with workers polled in any order, and gives what came
/// out to `see`.
fn rounds(
    bed: &mut Bed,
    random: &mut SmallRng,
    side: Side,
    flows: u32,
    packet: impl Fn(u32, u32) -> Vec<u8>,
    mut see: impl FnMut(Vec<u8>),
) {
    for round in 0..5 {
        for flow in 0..flows {
            bed.offer(side, &packet(flow, round));
            if flow % 100 == 99 {
                for _ in 0..WORKERS {
                    bed.poll(random.random_range(0..WORKERS));
                }
            }
            if flow % 1_000 == 999 {
                bed.settle();
            }
        }
        // No settling between rounds: packets of a flow follow each other through rings that are
        // not empty.
        for packet in bed.take_inside().into_iter().chain(bed.take_outside()) {
            see(packet);
        }
    }
    bed.settle();
    for packet in bed.take_inside().into_iter().chain(bed.take_outside()) {
        see(packet);
    }
}

#[test]
fn sixteen_workers_lose_no_reply_and_keep_the_order_of_flows() {
    covers!("S15", "4787-REQ-3");
    for seed in 1..=3 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut bed = Bed::new(settings()).workers(WORKERS).seed(seed).steering(Steering::Hash(random.random()));
        let flows = SUBSCRIBERS * FLOWS;
        let remote = |flow: u32| at([198, 51, (flow % 200) as u8, (flow % 250) as u8 + 1].into(), 443);
        let mut externals: HashMap<SocketAddrV4, SocketAddrV4> = HashMap::new();
        let mut last: HashMap<SocketAddrV4, u32> = HashMap::new();
        let mut count = 0;
        let out = |flow, round: u32| {
            build::udp(subscriber(flow), remote(flow))
                .payload(&[(round + 1).to_be_bytes(), flow.to_be_bytes()].concat())
                .build()
        };
        rounds(&mut bed, &mut random, Side::Inside, flows, out, |packet| {
            let flow = u32::from_be_bytes(*payload(&packet)[4..].first_chunk().expect("eight bytes"));
            let external = source(&packet);
            assert_eq!(*externals.entry(subscriber(flow)).or_insert(external), external, "a flow changed its endpoint");
            let before = last.insert(external, serial(&packet)).unwrap_or(0);
            assert!(before < serial(&packet), "flow {flow} was reordered");
            count += 1;
        });
        assert_eq!(count, flows * 5, "{:?}", bed.verdicts());
        assert_eq!(externals.values().collect::<HashSet<_>>().len(), flows as usize, "an endpoint was given twice");

        last.clear();
        count = 0;
        let back = |flow, round: u32| {
            build::udp(remote(flow), externals[&subscriber(flow)]).payload(&(round + 1).to_be_bytes()).build()
        };
        rounds(&mut bed, &mut random, Side::Outside, flows, back, |packet| {
            let before = last.insert(destination(&packet), serial(&packet)).unwrap_or(0);
            assert!(before < serial(&packet), "{} was reordered", destination(&packet));
            count += 1;
        });
        assert_eq!(count, flows * 5, "{:?}", bed.verdicts());
        assert_eq!(last.len(), flows as usize, "each subscriber got its own packets");
        assert!(bed.counters().handed_off > u64::from(flows), "most packets came to another worker than their owner");
        assert_eq!(bed.count(Verdict::HandOffRingFull), 0);
        bed.run_out();
    }
}

#[test]
fn workers_that_fill_one_pool_together_get_every_port_once() {
    covers!("S15", "6888-REQ-11d");
    let mut bed = Bed::new(settings().ports(20_000, 20_999)).workers(WORKERS).steering(Steering::Hash(7));
    let mut externals = HashSet::new();
    let mut first = Vec::new();
    for number in 0..6_000_u32 {
        let internal = at((0x6440_0100 + number % 300).into(), (3_000 + number / 300) as u16);
        bed.inside(&build::udp(internal, at(E1, 9)).payload(b"x").build());
        for packet in bed.take_outside() {
            assert!(externals.insert(source(&packet)), "{} was given twice", source(&packet));
            first.push((internal, source(&packet)));
        }
        bed.take_inside();
    }
    assert_eq!(externals.len(), 3_000, "every port of every address: {:?}", bed.verdicts());
    for (internal, external) in first {
        assert!(bed.udp_reaches(at(E2, 1), external, internal), "nobody was evicted");
    }
    assert_eq!(bed.mappings().iter().filter(|mapping| mapping.protocol == Protocol::Udp).count(), 3_000);
}
