//! Everything a carrier may configure changes while traffic flows, and all guarantees are checked
//! at once: churn, exhaustion, quotas, rates, penalties, rules, filters, forwards, gateways, port
//! control and reloads, some of which fail and some of which are rolled back, on one worker and on
//! several.
//!
//! After each burst what was seen is compared with an account that knows only the packets on both
//! links and the events ([`testkit::account`]):
//!
//! - no external endpoint has two owners, and where ports are shared, no external and remote
//!   endpoint together;
//! - no subscriber gets more than the limits in use, nor faster than its rate allows;
//! - each packet that was dropped has one cause, which is right, and the events count as many as
//!   the counters;
//! - the events name the owner of each external endpoint;
//! - a port that a gateway or port control grants leads to the host that asked for it, or nowhere;
//! - a mapping that a reload orphans keeps its external endpoint and loses no packet, also in the
//!   middle of the change;
//! - in the end everything is free again, and a new subscriber can have every port.
//!
//! A failure says seed and step; `NATRIX_SEED` repeats it, `NATRIX_RUNS` asks for more seeds,
//! `NATRIX_STEPS` for longer runs.

#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod checks;
mod random_settings;
mod world;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::panic::resume_unwind;

use nat::Protocol;
use nat::settings::Pool;
use nat::settings::Pooling;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use testkit::account::Account;
use testkit::openers::Openers;
use testkit::seeds::for_each_seed;
use testkit::*;
use wire::build;
use wire::tcp::Flags;

use self::random_settings::host;
use self::random_settings::random_policy;
use self::random_settings::roomy;
use self::world::World;
use self::world::is_error;

/// When all is idle nothing is left, and somebody new can have every port of every pool.
fn ends_with_everything_back(world: &mut World, bed: &mut Bed) {
    bed.run_out();
    bed.advance_secs(300);
    bed.sweep();
    let seen = world.look(bed);
    assert!(seen.booked.is_empty() && seen.flows.is_empty() && world.ledger.lost == 0);
    assert_eq!(world.ledger.blocks(), 0, "all blocks are back");
    let mut last = roomy();
    let pools = world.in_use[0].pools.iter().filter(|pool| pool.name != "penalty");
    last.pools = pools
        .map(|pool| Pool {
            name: pool.name.clone(),
            addresses: pool.addresses.clone(),
            subscribers: pool.subscribers.clone(),
            port_min: pool.port_min,
            port_max: pool.port_min + 30,
            pooling: Pooling::Arbitrary,
            ..Pool::default()
        })
        .collect();
    bed.reload(last.clone());
    // A port that led to several targets is held down before it is given out again.
    bed.advance(last.pools[0].reuse_delay);
    bed.advance_secs(1);
    for (name, subscriber) in [("east", host(60)), ("west", host(20))] {
        let pool = last.pools.iter().find(|pool| pool.name == name).expect("it is there");
        let all = pool.addresses.len() * 31;
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let mut externals = BTreeSet::new();
            for port in 0..all as u16 + 20 {
                let internal = at(subscriber, 5_000 + port);
                bed.inside(&match protocol {
                    Protocol::Udp => build::udp(internal, at(E1, 80)).build(),
                    _ => build::tcp(internal, at(E1, 80), Flags::SYN).build(),
                });
                externals
                    .extend(bed.take_outside().iter().filter(|packet| !is_error(packet)).map(|packet| source(packet)));
                bed.take_inside();
            }
            assert_eq!(externals.len(), all, "every port of {name} can be had by {protocol:?}");
        }
    }
    bed.run_out();
}

fn run(seed: u64, workers: usize, steps: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let first = random_policy(&mut random);
    let mut bed = Bed::new(first.clone()).workers(workers).seed(seed).steering(Steering::Random).record_events(1 << 14);
    let mut world = World {
        random,
        workers,
        account: Account::default(),
        openers: Openers::default(),
        ledger: Ledger::default(),
        counted: bed.counters(),
        in_use: vec![first],
        before: None,
        led_to_several: HashSet::new(),
        kept: BTreeSet::new(),
        offenders: BTreeMap::new(),
        offences: HashMap::new(),
        serial: 0,
        has_asked: false,
        tally: BTreeMap::new(),
    };
    for step in 0..steps {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            world.traffic(&mut bed, 14, 8);
            world.ask(&mut bed);
            if world.random.random_ratio(1, 3) {
                world.reload(&mut bed);
                world.traffic(&mut bed, 30, 2);
            }
            world.time_passes(&mut bed);
        }));
        if let Err(cause) = outcome {
            eprintln!("seed {seed}, {workers} workers, step {step}, {} settings in use", world.in_use.len());
            resume_unwind(cause);
        }
    }
    let seen = |what: &str| world.tally.get(what).copied().unwrap_or_default();
    // Where rules and filters leave little, most are packets of what is there, and few make
    // something new.
    assert!(seen("passed out") > steps * 3 && seen("passed in") > steps * 3, "{:?}", world.tally);
    assert!(seen("reloads") > steps / 20 && seen("new mappings") > steps / 4, "{:?}", world.tally);
    ends_with_everything_back(&mut world, &mut bed);
}

fn steps() -> u64 {
    std::env::var("NATRIX_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

#[test]
fn all_that_may_change_changes_under_traffic_on_one_worker() {
    for_each_seed(4, |seed| run(seed, 1, steps()));
}

#[test]
fn all_that_may_change_changes_under_traffic_on_three_workers() {
    for_each_seed(4, |seed| run(seed, 3, steps()));
}

#[test]
fn all_that_may_change_changes_under_traffic_on_eight_workers() {
    for_each_seed(4, |seed| run(seed, 8, steps()));
}
