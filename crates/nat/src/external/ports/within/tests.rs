use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::external::ports::AddressSpec;
use crate::external::ports::PortClass;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::WorkerId;

const A: AddressIndex = AddressIndex(0);
const NOW: Instant = Instant::ORIGIN;

fn table(first: u16, last: u16, reserved: Vec<u16>) -> PortTable {
    let table = PortTable::new(&[AddressSpec { port_min: first, port_max: last, reserved, ..AddressSpec::default() }])
        .expect("memory suffices");
    table.prepare_blocks().expect("memory suffices");
    table
}

fn random(seed: u64) -> Random {
    Random::new([seed, 2, 3, 4])
}

fn range(first: u16, last: u16) -> PortRange {
    PortRange { address: A, first, last }
}

fn holder(worker: u8) -> Holder {
    Holder { worker: WorkerId(worker), realm: RealmId(0), address: HostNumber(u32::from(worker)) }
}

fn size(ports: u32) -> BlockSize {
    BlockSize::of_ports(ports).expect("a block size")
}

fn drain(table: &PortTable, range: &PortRange, protocol: Protocol, parity: Option<Parity>, taker: Taker) -> Vec<u16> {
    let mut random = random(5);
    std::iter::from_fn(|| table.allocate_within(range, protocol, parity, taker, &mut random)).collect()
}

fn lease_in(
    table: &PortTable,
    range: &PortRange,
    size: BlockSize,
    holder: Holder,
    random: &mut Random,
) -> Option<Block> {
    loop {
        let block = table.find_block(range, size, random)?;
        if table.lease(block, holder, None, NOW) {
            return Some(block);
        }
    }
}

fn lease(table: &PortTable, size: BlockSize, random: &mut Random) -> Option<Block> {
    lease_in(table, &range(1_024, 65_535), size, holder(0), random)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_port_of_a_range_is_claimed_once_and_no_other(
        first in 1_024_u16..60_000, count in 1_u16..5_000, reserved in prop::collection::vec(1_024_u16..65_535, 0..20),
    ) {
        let range = range(first, first + count - 1);
        let table = table(1_024, 65_535, reserved.clone());
        let ports = drain(&table, &range, Protocol::Udp, None, Taker::Anyone);
        let naive: HashSet<u16> = (range.first..=range.last).filter(|port| !reserved.contains(port)).collect();
        prop_assert_eq!(ports.len(), naive.len());
        prop_assert_eq!(ports.iter().copied().collect::<HashSet<_>>(), naive);
        prop_assert_eq!(table.used_within(&range, Protocol::Udp), ports.len() as u32);
        prop_assert_eq!(table.used(A, Protocol::Udp), ports.len() as u32);
    }

    #[test]
    fn what_is_aimed_at_is_what_is_taken(first in 1_024_u16..60_000, count in 1_u16..600, seed: u64, parity in prop::option::of(any::<bool>())) {
        let range = range(first, first + count - 1);
        let table = table(1_024, 65_535, vec![]);
        let mut random = random(seed);
        let parity = parity.map(|even| if even { Parity::Even } else { Parity::Odd });
        for _ in 0..count {
            let aim = table.aim_within(&range, &mut random);
            prop_assert!((range.first..=range.last).contains(&aim.port()));
            let closer = table
                .aim_closer_within(&range, Protocol::Tcp, parity, aim, Taker::Anyone)
                .or_else(|| table.aim_elsewhere_within(&range, Protocol::Tcp, parity, &mut random))
                .and_then(|aim| table.aim_closer_within(&range, Protocol::Tcp, parity, aim, Taker::Anyone));
            let Some(closer) = closer else { continue };
            prop_assert!(table.take_picked(A, Protocol::Tcp, closer.port(), Taker::Anyone));
            prop_assert!(parity.is_none_or(|parity| Parity::of(closer.port()) == parity));
        }
    }
}

#[test]
fn ports_of_a_block_are_spread_evenly_and_not_related() {
    let table = table(1_024, 65_535, vec![]);
    let mut random = random(11);
    let block = lease(&table, size(512), &mut random).expect("a block is free");
    let range = PortRange::of_block(block);
    let mut bins = [0_u32; 512];
    let mut last = None;
    let mut steps = HashSet::new();
    for _ in 0..50_000 {
        let port = table.allocate_within(&range, Protocol::Udp, None, Taker::Holder, &mut random).expect("free");
        bins[usize::from(port - range.first)] += 1;
        if let Some(last) = last.replace(port) {
            steps.insert(port.wrapping_sub(last));
        }
        table.release(A, Protocol::Udp, port);
    }
    let expected = 50_000.0 / 512.0;
    let chi: f64 = bins.iter().map(|seen| (f64::from(*seen) - expected).powi(2) / expected).sum();
    // 511 degrees of freedom, 99.9 % quantile.
    assert!(chi < 615.0, "chi-square {chi}");
    assert!(steps.len() > 1_000, "{} differences between neighbours", steps.len());
}

#[test]
fn parity_is_kept_within_a_block_to_the_last_port_of_it() {
    let table = table(1_024, 65_535, vec![]);
    let block = lease(&table, size(64), &mut random(1)).expect("a block is free");
    let range = PortRange::of_block(block);
    let odd = drain(&table, &range, Protocol::Udp, Some(Parity::Odd), Taker::Holder);
    assert_eq!(odd.len(), 32);
    assert!(odd.iter().all(|port| port % 2 == 1));
    assert_eq!(drain(&table, &range, Protocol::Udp, None, Taker::Holder).len(), 32);
    assert_eq!(drain(&table, &range, Protocol::Tcp, None, Taker::Holder).len(), 64, "a block is for all protocols");
    assert_eq!(drain(&table, &range, Protocol::Icmp, None, Taker::Holder).len(), 64);
}

#[test]
fn blocks_of_each_size_use_an_address_to_the_last_port() {
    for ports in [64, 128, 256, 512, 1_024, 2_048, 4_096] {
        let first = ports.max(1_024) as u16;
        let table = table(first, 65_535, vec![]);
        let whole = range(first, 65_535);
        let mut random = random(u64::from(ports));
        let mut taken = HashSet::new();
        while let Some(block) = lease_in(&table, &whole, size(ports), holder(1), &mut random) {
            let range = PortRange::of_block(block);
            assert_eq!(range.len(), ports);
            for port in drain(&table, &range, Protocol::Udp, None, Taker::Holder) {
                assert!(taken.insert(port), "port {port} twice");
            }
        }
        assert_eq!(taken.len(), 65_536 - usize::from(first), "blocks of {ports}");
        assert!(!table.has_free_block(&whole, size(ports)));
        assert_eq!(table.blocks_free(&whole, size(ports)), 0);
    }
}

#[test]
fn a_block_with_a_single_port_taken_is_not_free() {
    let table = table(1_024, 1_279, vec![]);
    let whole = range(1_024, 1_279);
    assert_eq!(table.blocks_free(&whole, size(64)), 4);
    let port = table.allocate_within(&range(1_088, 1_151), Protocol::Tcp, None, Taker::Anyone, &mut random(1));
    assert!(port.is_some());
    assert_eq!(table.blocks_free(&whole, size(64)), 3);
    let mut leased = 0;
    while lease_in(&table, &whole, size(64), holder(1), &mut random(2)).is_some() {
        leased += 1;
    }
    assert_eq!((leased, table.blocks_free(&whole, size(64))), (3, 0));
}

#[test]
fn a_block_in_use_differs_from_one_that_can_go_back() {
    let table = table(1_024, 65_535, vec![]);
    let mut random = random(2);
    let block = lease(&table, size(256), &mut random).expect("a block is free");
    assert!(table.is_unused(block));
    let range = PortRange::of_block(block);
    for protocol in Protocol::ALL {
        let port = table.allocate_within(&range, protocol, None, Taker::Holder, &mut random).expect("free");
        assert!(!table.is_unused(block), "{protocol}");
        table.release(A, protocol, port);
        assert!(table.is_unused(block));
    }
    assert_eq!(table.ports_leased(A), 256);
    table.give_back(block);
    assert_eq!(table.ports_leased(A), 0);
    assert_eq!(table.lease_of(A, block.first_port()), None);
}

#[test]
fn single_ports_and_blocks_never_overlap() {
    let table = table(1_024, 65_535, vec![]);
    let mut random = random(3);
    let mut blocks = Vec::new();
    for _ in 0..200 {
        blocks.push(lease(&table, size(128), &mut random).expect("a block is free"));
    }
    let leased = |port: u16| blocks.iter().any(|block| (block.first_port()..=block.last_port()).contains(&port));
    assert!(!table.claim(A, Protocol::Udp, blocks[0].first_port()), "a leased port");
    let singles: Vec<u16> =
        std::iter::from_fn(|| table.allocate(A, Protocol::Udp, PortClass::High, None, WorkerId(0), 1, &mut random))
            .collect();
    assert_eq!(singles.len(), 64_512 - 200 * 128, "all that is not leased");
    assert!(!singles.iter().any(|port| leased(*port)));
    assert!(table.is_exhausted(A, Protocol::Udp, PortClass::High));
    assert_eq!(lease(&table, size(64), &mut random), None, "each grain left has a port that is taken");
    let grain = singles[0] / 64;
    for port in singles.iter().filter(|port| **port / 64 == grain) {
        table.release(A, Protocol::Udp, *port);
    }
    let last = lease(&table, size(64), &mut random).expect("the hint is cleared with the last port");
    assert_eq!(last.first_port() / 64, grain);
    table.give_back(blocks[0]);
    let port = table.allocate(A, Protocol::Udp, PortClass::High, None, WorkerId(0), 1, &mut random);
    assert!(port.is_some_and(|port| (blocks[0].first_port()..=blocks[0].last_port()).contains(&port)));
}

#[test]
fn a_block_of_nothing_but_reserved_ports_is_never_leased() {
    let table = table(1_024, 2_047, (1_024..1_088).chain(1_100..1_152).collect());
    let mut random = random(4);
    let whole = range(1_024, 2_047);
    let blocks: Vec<Block> =
        std::iter::from_fn(|| lease_in(&table, &whole, size(64), holder(0), &mut random)).collect();
    assert_eq!(blocks.len(), 15);
    let ports: usize = blocks
        .iter()
        .map(|block| drain(&table, &PortRange::of_block(*block), Protocol::Tcp, None, Taker::Holder).len())
        .sum();
    assert_eq!(ports, 1_024 - 64 - 52);
}

#[test]
fn workers_side_by_side_lease_and_take_without_ever_meeting() {
    let table = table(4_096, 4_096 + 2_047, vec![]);
    let whole = range(4_096, 4_096 + 2_047);
    for round in 0..10 {
        // Threads that believe the port is theirs, one bit each.
        let owners: Vec<core::sync::atomic::AtomicU32> = (0..65_536).map(|_| 0.into()).collect();
        let own = |port: u16, thread: u32| {
            let before = owners[usize::from(port)].fetch_or(1 << thread, Ordering::SeqCst);
            assert_eq!(before, 0, "port {port} has two owners");
        };
        let disown = |port: u16, thread: u32| {
            let before = owners[usize::from(port)].fetch_and(!(1 << thread), Ordering::SeqCst);
            assert_eq!(before, 1 << thread, "port {port} had two owners");
        };
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let (table, own, disown) = (&table, &own, &disown);
                scope.spawn(move || {
                    let mut random = random(round * 4 + u64::from(thread));
                    let mut singles = Vec::new();
                    let mut blocks = Vec::new();
                    for _ in 0..2_000 {
                        if thread % 2 == 0 {
                            let size = size([64, 128, 512][random.below(3) as usize]);
                            match lease_in(table, &whole, size, holder(thread as u8), &mut random) {
                                Some(block) if blocks.len() < 4 => {
                                    (block.first_port()..=block.last_port()).for_each(|port| own(port, thread));
                                    blocks.push(block);
                                }
                                Some(block) => table.give_back(block),
                                None if blocks.is_empty() => {}
                                None => {
                                    let block: Block = blocks.swap_remove(random.below(blocks.len() as u32) as usize);
                                    (block.first_port()..=block.last_port()).for_each(|port| disown(port, thread));
                                    table.give_back(block);
                                }
                            }
                        } else {
                            let worker = WorkerId(thread as u8);
                            let port = table.allocate(A, Protocol::Udp, PortClass::High, None, worker, 4, &mut random);
                            if let Some(port) = port {
                                own(port, thread);
                                singles.push(port);
                            }
                            if singles.len() > 100 || port.is_none() && !singles.is_empty() {
                                let port = singles.swap_remove(random.below(singles.len() as u32) as usize);
                                disown(port, thread);
                                table.release(A, Protocol::Udp, port);
                            }
                        }
                    }
                    for port in singles {
                        disown(port, thread);
                        table.release(A, Protocol::Udp, port);
                    }
                    for block in blocks {
                        (block.first_port()..=block.last_port()).for_each(|port| disown(port, thread));
                        table.give_back(block);
                    }
                });
            }
        });
        assert_eq!((table.used(A, Protocol::Udp), table.ports_leased(A)), (0, 0));
        assert!(table.has_free_block(&whole, size(2_048)), "no hint hides what is free");
        let all: Vec<u16> = drain(&table, &whole, Protocol::Udp, None, Taker::Anyone);
        assert_eq!(all.len(), 2_048);
        all.into_iter().for_each(|port| table.release(A, Protocol::Udp, port));
    }
}

#[test]
fn one_block_after_the_other_is_not_the_next_one() {
    let table = table(1_024, 65_535, vec![]);
    let mut random = random(9);
    let blocks: Vec<Block> = std::iter::from_fn(|| lease(&table, size(512), &mut random)).collect();
    assert_eq!(blocks.len(), 126);
    let next = blocks.windows(2).filter(|pair| pair[0].last_port().wrapping_add(1) == pair[1].first_port()).count();
    assert!(next < 10, "{next} of 125 blocks follow the one before");
}

#[test]
fn a_free_block_has_no_port_in_use() {
    let table = table(2_048, 2_048 + 511, vec![2_300]);
    let (all, size, mut random) = (range(2_048, 2_048 + 511), size(128), random(3));
    let lease = |random: &mut Random| lease_in(&table, &all, size, holder(0), random);
    let single = |port| {
        table.allocate_within(&range(port, port), Protocol::Udp, None, Taker::Anyone, &mut Random::new([1, 2, 3, 4]))
    };
    // Two in one block, in two words; one in each of two others.
    for port in [2_048, 2_112, 2_200, 2_310] {
        assert_eq!(single(port), Some(port));
    }
    assert!(table.has_free_block(&all, size));
    let block = lease(&mut random).expect("the last one");
    assert!(!table.has_free_block(&all, size));
    assert_eq!(lease(&mut random), None);
    assert!(table.seems_without_block(A), "known by now, also after somebody tried");
    // One of two ports that keep a block, then one of another word.
    table.release_vacant(A, Protocol::Udp, 2_048);
    assert!(!table.has_free_block(&all, size));
    table.release_vacant(A, Protocol::Udp, 2_112);
    assert!(table.has_free_block(&all, size));
    assert_eq!(lease(&mut random).map(|block| block.first_port()), Some(2_048));
    assert!(!table.has_free_block(&all, size));
    table.give_back(block);
    assert!(table.has_free_block(&all, size));
    // Smaller blocks may be free where larger are not.
    assert!(lease(&mut random).is_some());
    assert!(!table.has_free_block(&all, size));
    table.forget_full_addresses();
    assert!(table.has_free_block(&all, BlockSize::MIN));
}

#[test]
fn withheld_ports_in_use_do_not_keep_a_block_from_being_free() {
    let table = table(2_048, 2_048 + 127, Vec::new());
    let (all, mut random) = (range(2_048, 2_048 + 127), random(3));
    let taken = table.allocate_within(&range(2_050, 2_050), Protocol::Udp, None, Taker::Anyone, &mut random);
    assert_eq!(taken, Some(2_050));
    assert!(!table.has_free_block(&all, size(128)));
    let mut mask = Box::new([0_u64; WORDS]);
    mask[2_050 / 64] |= 1 << (2_050 % 64);
    table.withhold(A, Protocol::Udp, &mask);
    assert!(!table.has_free_block(&all, size(128)));
    table.release_vacant(A, Protocol::Udp, 2_050);
    assert!(table.has_free_block(&all, size(128)));
}
