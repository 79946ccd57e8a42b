#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::AtomicBool;

use super::*;
use crate::external::ports::AddressSpec;
use crate::external::ports::Parity;
use crate::external::ports::PortClass;
use crate::external::ports::never_offered;
use crate::random::Random;
use crate::types::WorkerId;

const ADDRESS: AddressIndex = AddressIndex(0);

fn table(ports: u16) -> PortTable {
    let spec = AddressSpec { port_min: 2_000, port_max: 1_999 + ports, ..AddressSpec::default() };
    let table = PortTable::new(&[spec]).unwrap();
    table.prepare_guarantees().unwrap();
    table
}

struct Worker<'t> {
    table: &'t PortTable,
    random: Random,
    number: u8,
    has: Vec<(u16, Option<Share>)>,
}

impl Worker<'_> {
    fn take(&mut self, share: Option<Share>, limit: u32) {
        let guarantees = self.table.guarantees().unwrap();
        if share == Some(Share::Beyond) && !guarantees.take(ADDRESS, Protocol::Udp, limit) {
            return;
        }
        let (worker, parity) = (WorkerId(self.number), None::<Parity>);
        let class = PortClass::High;
        match self.table.allocate(ADDRESS, Protocol::Udp, class, parity, worker, 3, &mut self.random) {
            Some(port) => {
                // As under settings without guarantees.
                if let Some(share) = share {
                    guarantees.mark(ADDRESS, Protocol::Udp, port, share);
                }
                self.has.push((port, share));
            }
            None if share == Some(Share::Beyond) => guarantees.give_back(ADDRESS, Protocol::Udp),
            None => {}
        }
    }

    fn turn(&mut self) {
        if !self.has.is_empty() {
            let at = self.random.below(self.has.len() as u32) as usize;
            let (port, share) = &mut self.has[at];
            if self.table.guarantees().unwrap().turn(ADDRESS, Protocol::Udp, *port, true, u32::MAX) {
                *share = Some(Share::Within);
            }
        }
    }

    fn give_back(&mut self) {
        if self.has.is_empty() {
            return;
        }
        let (port, _) = self.has.swap_remove(self.random.below(self.has.len() as u32) as usize);
        let guarantees = self.table.guarantees().unwrap();
        guarantees.unmark(ADDRESS, Protocol::Udp, port, Share::Within);
        let was_beyond = guarantees.unmark(ADDRESS, Protocol::Udp, port, Share::Beyond);
        self.table.release_vacant(ADDRESS, Protocol::Udp, port);
        if was_beyond {
            guarantees.give_back(ADDRESS, Protocol::Udp);
        }
        self.table.settle_mark(guarantees, ADDRESS, Protocol::Udp, port);
    }
}

#[test]
fn a_recount_counts_earlier_ports_as_the_rest() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([1, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..80).for_each(|_| worker.take(None, 0));
    let guarantees = table.guarantees().unwrap();
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 0);
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 80);
    assert_eq!(guarantees.stock(ADDRESS, Protocol::Udp, 100, 40), Stock { can_be: 20, guaranteed: 0 });
    assert_eq!(guarantees.stock(ADDRESS, Protocol::Udp, 100, 10), Stock { can_be: 10, guaranteed: 0 });
    assert_eq!(guarantees.guarantee(ADDRESS, [15, 0, 0], [20, 0, 0]), [15, 0, 0]);
    assert_eq!(guarantees.guarantee(ADDRESS, [15, 0, 0], [20, 0, 0]), [5, 0, 0]);
    assert_eq!(guarantees.guarantee(ADDRESS, [15, 0, 0], [20, 0, 0]), [0, 0, 0]);
    assert_eq!(guarantees.stock(ADDRESS, Protocol::Udp, 100, 40).room(), 0);
    assert_eq!(guarantees.stock(ADDRESS, Protocol::Tcp, 100, 9).room(), 9);
    assert!(!guarantees.take(ADDRESS, Protocol::Udp, 60), "the rest has none");
    (0..20).for_each(|_| worker.take(Some(Share::Within), 0));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 80, "what is part of a guarantee is not of the rest");
    while !worker.has.is_empty() {
        worker.give_back();
    }
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 0);
}

#[test]
fn a_port_that_turns_belongs_to_the_guarantee_only() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([3, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..100).for_each(|_| worker.take(None, 0));
    table.recount(ADDRESS, Protocol::Udp);
    let guarantees = table.guarantees().unwrap();
    let books = || (guarantees.taken(ADDRESS, Protocol::Udp), guarantees.stock(ADDRESS, Protocol::Udp, 100, 2));
    let mut turn = |at: usize, raised| {
        let turned = guarantees.turn(ADDRESS, Protocol::Udp, worker.has[at].0, raised, 2);
        worker.has[at].1 = Some(Share::Within);
        turned
    };
    assert!(turn(0, true));
    assert_eq!(books(), (99, Stock { can_be: 1, guaranteed: 1 }));
    assert!(!turn(0, true), "it is no longer of the rest");
    assert!(turn(1, true));
    assert!(!turn(2, true), "no more than two are kept");
    assert_eq!(books(), (98, Stock { can_be: 2, guaranteed: 2 }));
    assert!(turn(2, false), "of what is guaranteed already");
    assert_eq!(books(), (97, Stock { can_be: 2, guaranteed: 2 }));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 97);
    while !worker.has.is_empty() {
        worker.give_back();
    }
    assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp), 0);
}

#[test]
fn withheld_ports_do_not_count_as_the_rest() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([2, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..100).for_each(|_| worker.take(None, 0));
    table.recount(ADDRESS, Protocol::Udp);
    let spec = |ports: u16| AddressSpec { port_min: 2_000, port_max: 1_999 + ports, ..AddressSpec::default() };
    let mask = |ports| never_offered(&spec(ports), Protocol::Udp);
    assert_eq!(table.taken_of_the_rest(ADDRESS, Protocol::Udp, &mask(30)), 30);
    table.withhold(ADDRESS, Protocol::Udp, &mask(30));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(table.guarantees().unwrap().taken(ADDRESS, Protocol::Udp), 30);
    table.offer(ADDRESS, Protocol::Udp, &mask(100));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(table.guarantees().unwrap().taken(ADDRESS, Protocol::Udp), 100);
}

#[test]
fn concurrent_recounts_count_each_port_once() {
    for seed in 0..20 {
        let table = table(200);
        let is_over = AtomicBool::new(false);
        let left = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3_u8)
                .map(|number| {
                    let random = Random::new([seed * 10 + u64::from(number), 2, 3, 4]);
                    let mut worker = Worker { table: &table, random, number, has: Vec::new() };
                    scope.spawn(move || {
                        for round in 0..4_000 {
                            // First nobody takes notice, then everybody.
                            let shares = [Some(Share::Within), Some(Share::Beyond)];
                            let share = if round < 1_000 { None } else { shares[worker.random.below(2) as usize] };
                            match worker.random.below(3) {
                                0 => worker.take(share, 120),
                                1 => worker.turn(),
                                _ => worker.give_back(),
                            }
                        }
                        worker.has
                    })
                })
                .collect();
            let recounts = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    table.recount(ADDRESS, Protocol::Udp);
                }
            });
            let left: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
            is_over.store(true, Ordering::Relaxed);
            recounts.join().unwrap();
            left
        });
        let guarantees = table.guarantees().unwrap();
        let within = left.iter().filter(|(_, share)| *share == Some(Share::Within)).count();
        assert_eq!(guarantees.taken(ADDRESS, Protocol::Udp) as usize, left.len() - within, "seed {seed}");
        for (port, share) in &left {
            let word = space(ADDRESS, Protocol::Udp) * WORDS + usize::from(port / 64);
            let is_beyond = guarantees.beyond[word].load(Ordering::SeqCst) >> (port % 64) & 1 != 0;
            assert_eq!(is_beyond, *share != Some(Share::Within), "seed {seed}, port {port}");
        }
    }
}
