use core::sync::atomic::AtomicBool;
use std::collections::HashSet;

use super::*;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortClass;
use crate::external::ports::never_offered;
use crate::random::Random;
use crate::types::MappingIndex;
use crate::types::WorkerId;

const A: AddressIndex = AddressIndex(0);
const B: AddressIndex = AddressIndex(1);
const W: WorkerId = WorkerId(0);
const UDP: Protocol = Protocol::Udp;

fn spec(port_min: u16, port_max: u16) -> AddressSpec {
    AddressSpec { port_min, port_max, ..AddressSpec::NOTHING }
}

fn mask(port_min: u16, port_max: u16) -> Mask {
    never_offered(&spec(port_min, port_max), UDP)
}

fn all_free(table: &PortTable, address: AddressIndex) -> HashSet<u16> {
    let mut random = Random::new([5, 6, 7, 8]);
    let mut take = || {
        let high = table.allocate(address, UDP, PortClass::High, None, W, 1, &mut random);
        high.or_else(|| table.allocate(address, UDP, PortClass::Low, None, W, 1, &mut random))
    };
    let ports: Vec<u16> = core::iter::from_fn(&mut take).collect();
    let set: HashSet<u16> = ports.iter().copied().collect();
    assert_eq!(set.len(), ports.len(), "each port once");
    for port in ports {
        table.release(address, UDP, port);
    }
    set
}

fn tables() -> [PortTable; 2] {
    let table = || PortTable::with_room(&[spec(2_000, 2_999)], 2).unwrap();
    [table(), table().for_one_worker()]
}

#[test]
fn a_port_in_use_is_withheld_when_it_is_given_back() {
    for table in tables() {
        assert!(table.claim(A, UDP, 2_100) && table.claim(A, UDP, 2_200) && table.claim(A, UDP, 2_900));
        table.publish(A, UDP, 2_100, W, MappingIndex(7));
        table.withhold(A, UDP, &mask(2_150, 2_999));
        assert_eq!((table.available(A, UDP), table.used(A, UDP)), (850, 3), "what is in use counts, withheld or not");
        assert_eq!(table.lookup(A, UDP, 2_100), Some((W, MappingIndex(7))), "nobody's mapping is touched");
        table.release(A, UDP, 2_100);
        assert_eq!((table.used(A, UDP), table.lookup(A, UDP, 2_100)), (2, None));
        assert!(!table.claim(A, UDP, 2_100) && !table.claim(A, UDP, 2_000));
        let free = all_free(&table, A);
        assert_eq!(free.len(), 848);
        assert!(free.iter().all(|port| (2_150..=2_999).contains(port) && ![2_200, 2_900].contains(port)));
    }
}

#[test]
fn an_offered_port_is_free_or_stays_with_its_owner() {
    for table in tables() {
        assert!(table.claim(A, UDP, 2_100) && table.claim(A, UDP, 2_200));
        table.withhold(A, UDP, &mask(2_500, 2_999));
        table.release(A, UDP, 2_200);
        table.offer(A, UDP, &mask(1_000, 2_999));
        assert_eq!((table.available(A, UDP), table.used(A, UDP)), (2_000, 1));
        assert!(!table.claim(A, UDP, 2_100), "it has an owner");
        assert!(table.claim(A, UDP, 2_200), "it has none");
        table.release(A, UDP, 2_100);
        table.release(A, UDP, 2_200);
        assert_eq!(all_free(&table, A).len(), 2_000);
        assert_eq!(table.used(A, UDP), 0);
    }
}

#[test]
fn a_place_is_opened_closed_and_opened_for_another_address() {
    for table in tables() {
        assert_eq!((table.places(), table.available(B, UDP)), (2, 0));
        let mut random = Random::new([1, 2, 3, 4]);
        assert_eq!(table.allocate(B, UDP, PortClass::High, None, W, 1, &mut random), None);
        for (low, high) in [(1, 65_535), (5_000, 5_999)] {
            table.withhold(B, UDP, &mask(low, high));
            table.offer(B, UDP, &mask(low, high));
            assert_eq!(all_free(&table, B).len(), usize::from(high - low) + 1);
            table.withhold(B, UDP, &never_offered(&AddressSpec::NOTHING, UDP));
            assert_eq!(all_free(&table, B).len(), 0);
            assert!(table.is_idle(B));
            assert!(table.is_exhausted(B, UDP, PortClass::High) && table.is_exhausted(B, UDP, PortClass::Low));
        }
    }
}

#[test]
fn a_withheld_port_is_had_by_one_and_stays_withheld() {
    for table in tables() {
        assert!(!table.claim_withheld(A, UDP, 2_100), "it is not withheld");
        assert!(table.claim_withheld(A, UDP, 80));
        assert!(!table.claim_withheld(A, UDP, 80));
        assert_eq!(table.used(A, UDP), 1);
        table.release(A, UDP, 80);
        assert_eq!(table.used(A, UDP), 0);
        assert!(table.is_withheld(A, UDP, 80) && !table.claim(A, UDP, 80));
        assert!(table.claim_withheld(A, UDP, 80));
        // Offered while in use, it is free afterwards.
        table.offer(A, UDP, &mask(80, 2_999));
        table.release(A, UDP, 80);
        assert!(table.claim(A, UDP, 80));
    }
}

#[test]
fn random_ports_spare_gaps_that_were_made_later() {
    for table in tables() {
        let mut gaps = mask(2_000, 2_999);
        for port in (2_000..3_000_usize).filter(|port| port % 8 != 0) {
            gaps[port / 64] |= 1 << (port % 64);
        }
        table.withhold(A, UDP, &gaps);
        assert_eq!(table.available(A, UDP), 125);
        let free = all_free(&table, A);
        assert!(free.len() == 125 && free.iter().all(|port| port % 8 == 0));
    }
}

#[test]
fn concurrent_withholding_loses_and_doubles_no_port() {
    const WORKERS: usize = 3;
    const CHANGES: u64 = 600;
    const TAKEN: u64 = 10_000;
    let table = PortTable::with_room(&[spec(1_000, 3_000)], 1).unwrap();
    let owned: Vec<AtomicBool> = (0..PORTS).map(|_| AtomicBool::new(false)).collect();
    let stop = AtomicBool::new(false);
    let taken_in_all = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (table, owned, stop, taken_in_all) = (&table, &owned, &stop, &taken_in_all);
            scope.spawn(move || {
                let mut random = Random::new([worker as u64, 1, 2, 3]);
                let mut mine: Vec<u16> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if mine.len() < 200 && random.below(2) == 0 {
                        let worker = WorkerId(worker as u8);
                        if let Some(port) = table.allocate(A, UDP, PortClass::High, None, worker, WORKERS, &mut random)
                        {
                            assert!(!owned[usize::from(port)].swap(true, Ordering::SeqCst), "port {port} had an owner");
                            mine.push(port);
                            taken_in_all.fetch_add(1, Ordering::Relaxed);
                        }
                    } else if !mine.is_empty() {
                        let port = mine.swap_remove(random.below(mine.len() as u32) as usize);
                        owned[usize::from(port)].store(false, Ordering::SeqCst);
                        table.release(A, UDP, port);
                    }
                }
                for port in mine {
                    owned[usize::from(port)].store(false, Ordering::SeqCst);
                    table.release(A, UDP, port);
                }
            });
        }
        let mut random = Random::new([9, 9, 9, 9]);
        // With few cores, workers may start late: wait until enough was taken.
        let mut changes = 0;
        while changes < CHANGES || (taken_in_all.load(Ordering::Relaxed) < TAKEN && changes < 10_000 * CHANGES) {
            changes += 1;
            let low = 1_024 + random.below(1_500) as u16;
            let next = mask(low, low + random.below(1_500) as u16);
            table.withhold(A, UDP, &next);
            table.offer(A, UDP, &next);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(taken_in_all.load(Ordering::Relaxed) >= TAKEN);
    assert_eq!(table.used(A, UDP), 0, "every port came back");
    let last = mask(2_000, 2_999);
    table.withhold(A, UDP, &last);
    table.offer(A, UDP, &last);
    assert_eq!(all_free(&table, A), (2_000..=2_999).collect(), "exactly those offered can be had");
}
