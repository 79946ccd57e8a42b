#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::atomic::AtomicBool;

use super::*;
use crate::ports::AddressSpec;
use crate::ports::Parity;
use crate::ports::PortClass;
use crate::ports::never_offered;
use crate::random::Random;
use crate::types::WorkerId;

const ADDRESS: AddressIndex = AddressIndex(0);

fn table(ports: u16) -> PortTable {
    let spec = AddressSpec { port_min: 2_000, port_max: 1_999 + ports, ..AddressSpec::default() };
    let table = PortTable::new(&[spec]).unwrap();
    table.prepare_guard().unwrap();
    table
}

/// What a worker does, in the order in which it does it.
struct Worker<'t> {
    table: &'t PortTable,
    random: Random,
    number: u8,
    has: Vec<(u16, Option<Share>)>,
}

impl Worker<'_> {
    fn take(&mut self, share: Option<Share>, limit: u32) {
        let guard = self.table.guard().unwrap();
        if share == Some(Share::Beyond) && !guard.take(ADDRESS, Protocol::Udp, limit) {
            return;
        }
        let (worker, parity) = (WorkerId(self.number), None::<Parity>);
        let class = PortClass::High;
        match self.table.allocate(ADDRESS, Protocol::Udp, class, parity, worker, 3, &mut self.random) {
            Some(port) => {
                // As under settings that set nothing aside: nobody takes notice.
                if let Some(share) = share {
                    guard.mark(ADDRESS, Protocol::Udp, port, share);
                }
                self.has.push((port, share));
            }
            None if share == Some(Share::Beyond) => guard.give_back(ADDRESS, Protocol::Udp),
            None => {}
        }
    }

    /// Makes one of its ports part of a pledge.
    fn turn(&mut self) {
        if !self.has.is_empty() {
            let at = self.random.below(self.has.len() as u32) as usize;
            let (port, share) = &mut self.has[at];
            if self.table.guard().unwrap().turn(ADDRESS, Protocol::Udp, *port, true, u32::MAX) {
                *share = Some(Share::Within);
            }
        }
    }

    fn give_back(&mut self) {
        if self.has.is_empty() {
            return;
        }
        let (port, _) = self.has.swap_remove(self.random.below(self.has.len() as u32) as usize);
        let guard = self.table.guard().unwrap();
        guard.unmark(ADDRESS, Protocol::Udp, port, Share::Within);
        let was_beyond = guard.unmark(ADDRESS, Protocol::Udp, port, Share::Beyond);
        self.table.release_vacant(ADDRESS, Protocol::Udp, port);
        if was_beyond {
            guard.give_back(ADDRESS, Protocol::Udp);
        }
        self.table.settle_mark(guard, ADDRESS, Protocol::Udp, port);
    }
}

#[test]
fn what_was_taken_before_counts_as_the_rests_from_the_recount_on() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([1, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..80).for_each(|_| worker.take(None, 0));
    let guard = table.guard().unwrap();
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 0);
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 80);
    assert_eq!(guard.stock(ADDRESS, Protocol::Udp, 100, 40), Stock { can_be: 20, pledged: 0 });
    assert_eq!(guard.stock(ADDRESS, Protocol::Udp, 100, 10), Stock { can_be: 10, pledged: 0 });
    // As much as there is of what is wanted, and never more in all.
    assert_eq!(guard.pledge(ADDRESS, [15, 0, 0], [20, 0, 0]), [15, 0, 0]);
    assert_eq!(guard.pledge(ADDRESS, [15, 0, 0], [20, 0, 0]), [5, 0, 0]);
    assert_eq!(guard.pledge(ADDRESS, [15, 0, 0], [20, 0, 0]), [0, 0, 0]);
    assert_eq!(guard.stock(ADDRESS, Protocol::Udp, 100, 40).room(), 0);
    assert_eq!(guard.stock(ADDRESS, Protocol::Tcp, 100, 9).room(), 9);
    assert!(!guard.take(ADDRESS, Protocol::Udp, 60), "the rest has none");
    (0..20).for_each(|_| worker.take(Some(Share::Within), 0));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 80, "what is part of a pledge is none of the rest");
    while !worker.has.is_empty() {
        worker.give_back();
    }
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 0);
}

#[test]
fn a_port_of_the_rest_that_turns_is_part_of_a_pledge_and_of_nothing_else() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([3, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..100).for_each(|_| worker.take(None, 0));
    table.recount(ADDRESS, Protocol::Udp);
    let guard = table.guard().unwrap();
    let books = || (guard.taken(ADDRESS, Protocol::Udp), guard.stock(ADDRESS, Protocol::Udp, 100, 2));
    let mut turn = |at: usize, raised| {
        let turned = guard.turn(ADDRESS, Protocol::Udp, worker.has[at].0, raised, 2);
        worker.has[at].1 = Some(Share::Within);
        turned
    };
    assert!(turn(0, true));
    assert_eq!(books(), (99, Stock { can_be: 1, pledged: 1 }));
    assert!(!turn(0, true), "it is none of the rest any more");
    assert!(turn(1, true));
    assert!(!turn(2, true), "no more than two are set aside");
    assert_eq!(books(), (98, Stock { can_be: 2, pledged: 2 }));
    assert!(turn(2, false), "of what is pledged already");
    assert_eq!(books(), (97, Stock { can_be: 2, pledged: 2 }));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 97);
    while !worker.has.is_empty() {
        worker.give_back();
    }
    assert_eq!(guard.taken(ADDRESS, Protocol::Udp), 0);
}

#[test]
fn what_is_withheld_is_none_of_the_rest_until_it_is_offered_again() {
    let table = table(100);
    let mut worker = Worker { table: &table, random: Random::new([2, 2, 3, 4]), number: 0, has: Vec::new() };
    (0..100).for_each(|_| worker.take(None, 0));
    table.recount(ADDRESS, Protocol::Udp);
    let spec = |ports: u16| AddressSpec { port_min: 2_000, port_max: 1_999 + ports, ..AddressSpec::default() };
    let mask = |ports| never_offered(&spec(ports), Protocol::Udp);
    assert_eq!(table.taken_of_the_rest(ADDRESS, Protocol::Udp, &mask(30)), 30);
    table.withhold(ADDRESS, Protocol::Udp, &mask(30));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(table.guard().unwrap().taken(ADDRESS, Protocol::Udp), 30);
    table.offer(ADDRESS, Protocol::Udp, &mask(100));
    table.recount(ADDRESS, Protocol::Udp);
    assert_eq!(table.guard().unwrap().taken(ADDRESS, Protocol::Udp), 100);
}

#[test]
fn recounts_while_workers_take_and_give_back_leave_each_port_counted_once() {
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
        let guard = table.guard().unwrap();
        let within = left.iter().filter(|(_, share)| *share == Some(Share::Within)).count();
        assert_eq!(guard.taken(ADDRESS, Protocol::Udp) as usize, left.len() - within, "seed {seed}");
        for (port, share) in &left {
            let word = space(ADDRESS, Protocol::Udp) * WORDS + usize::from(port / 64);
            let is_beyond = guard.beyond[word].load(Ordering::SeqCst) >> (port % 64) & 1 != 0;
            assert_eq!(is_beyond, *share != Some(Share::Within), "seed {seed}, port {port}");
        }
    }
}
