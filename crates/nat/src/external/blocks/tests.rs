use crate::types::HostNumber;
use proptest::prelude::*;

use super::*;

const A: AddressIndex = AddressIndex(0);

fn sizes() -> impl Iterator<Item = BlockSize> {
    (BlockSize::MIN.0..=BlockSize::MAX.0).map(BlockSize)
}

#[test]
fn sizes_are_powers_of_two_from_64_to_4096() {
    let ports: Vec<u32> = sizes().map(BlockSize::ports).collect();
    assert_eq!(ports, [64, 128, 256, 512, 1_024, 2_048, 4_096]);
    for ports in 0..10_000 {
        let size = BlockSize::of_ports(ports);
        assert_eq!(size.is_some(), ports.is_power_of_two() && (64..=4_096).contains(&ports), "{ports}");
        assert!(size.is_none_or(|size| size.ports() == ports));
    }
}

proptest! {
    #[test]
    fn a_block_is_what_it_was_made_of(address in 0..Block::ADDRESSES_MAX as u32, grain in 0_u32..1_024, exponent in 0_u8..=6) {
        let size = BlockSize(exponent);
        let grain = grain & !(size.grains() - 1);
        prop_assume!(grain > 0);
        let block = Block::new(AddressIndex(address), grain, size);
        prop_assert_eq!(Block::from_number(block.number()), Some(block));
        prop_assert_eq!((block.address().0, block.size(), u32::from(block.first_port())), (address, size, grain * 64));
        prop_assert_eq!(u32::from(block.last_port()), grain * 64 + size.ports() - 1);
    }

    #[test]
    fn free_blocks_are_those_without_a_leased_grain(leased: u64, exponent in 0_u8..=6) {
        let size = BlockSize(exponent);
        let count = size.grains();
        for grain in 0..64 {
            let naive = grain % count == 0 && (grain..grain + count).all(|grain| leased >> grain & 1 == 0);
            prop_assert_eq!(size.free_starts(leased) >> grain & 1 != 0, naive, "grain {}", grain);
        }
    }

    #[test]
    fn blocks_lie_between_the_first_and_the_last_port(first in 1_u16.., span in 0_u16.., exponent in 0_u8..=6) {
        let last = first.saturating_add(span);
        let size = BlockSize(exponent);
        let table = BlockTable::new(1).unwrap();
        let found = table.free(0, size, first, last);
        for grain in 0..1_024_u32 {
            let block = Block::new(A, grain & !(size.grains() - 1), size);
            let naive = grain % size.grains() == 0
                && u32::from(block.first_port()) >= u32::from(first)
                && grain * 64 + size.ports() - 1 <= u32::from(last);
            prop_assert_eq!(found[grain as usize / 64] >> (grain % 64) & 1 != 0, naive, "grain {}", grain);
        }
    }
}

#[test]
fn nothing_can_be_held_before_the_records_are_there() {
    let table = BlockTable::new(2).unwrap();
    let block = Block::new(AddressIndex(1), 16, BlockSize::MIN);
    assert!(table.take(block));
    assert!(!table.is_leased(1, 16), "nobody looks as long as nothing can be leased");
    table.let_go(block);
    let before = table.bytes();
    table.prepare().unwrap();
    table.prepare().unwrap();
    assert_eq!(table.bytes() - before, 2 * 1_024 * 32);
}

#[test]
fn each_port_of_a_lease_leads_to_its_holder() {
    let table = BlockTable::new(2).unwrap();
    table.prepare().unwrap();
    let now = Instant::from_micros(7_000_000);
    let holder = Holder { worker: WorkerId(63), realm: RealmId(u16::MAX), address: HostNumber(u32::MAX) };
    let other = Holder { worker: WorkerId(0), realm: RealmId(0), address: HostNumber(0x6440_0001) };
    let one = Block::new(AddressIndex(1), 128, BlockSize::of_ports(1_024).unwrap());
    let two = Block::new(AddressIndex(1), 144, BlockSize::MIN);
    for (block, holder, next) in [(one, holder, None), (two, other, Some(one))] {
        assert!(table.take(block));
        table.hold(block, holder, next, now);
    }
    for port in 0..=u16::MAX {
        let found = table.lease_of(AddressIndex(1), port);
        let expected = match port {
            8_192..9_216 => Some(Lease { block: one, holder, since_s: 7 }),
            9_216..9_280 => Some(Lease { block: two, holder: other, since_s: 7 }),
            _ => None,
        };
        assert_eq!(found, expected, "port {port}");
        assert_eq!(table.lease_of(A, port), None);
    }
    assert_eq!((table.next(two), table.next(one)), (Some(one), None));
    table.set_next(two, None);
    assert_eq!(table.next(two), None);
    assert_eq!(table.lease(two).map(|lease| lease.since_s), Some(7), "the next one does not touch the time");
    assert_eq!(table.unused_since(one), None);
    table.set_unused_since(one, Some(Instant::ORIGIN));
    assert_eq!(table.unused_since(one), Some(Instant::ORIGIN));
    table.set_unused_since(one, None);
    assert_eq!(table.unused_since(one), None);
    assert_eq!(table.leased_grains(1), 17);
    table.forget(one);
    table.let_go(one);
    assert_eq!(table.lease_of(AddressIndex(1), 8_192), None);
    assert_eq!(table.lease_of(AddressIndex(1), 9_216).map(|lease| lease.block), Some(two));
}

#[test]
fn a_block_has_one_holder_however_many_want_it() {
    let table = BlockTable::new(1).unwrap();
    table.prepare().unwrap();
    let wins: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    // Sizes that contend for the same grains.
                    let mut grains = 0;
                    for first in (64..1_024).step_by(64) {
                        for size in sizes() {
                            for start in (first..first + 64).step_by(size.grains() as usize) {
                                if table.take(Block::new(A, start, size)) {
                                    grains += size.grains();
                                }
                            }
                        }
                    }
                    grains
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    assert_eq!(wins.iter().sum::<u32>(), 1_024 - 64);
    assert_eq!(table.leased_grains(0), 1_024 - 64);
}
