use core::net::Ipv4Addr;
use core::sync::atomic::AtomicBool;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Barrier;
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::policy::stand_in::Prefix6;
use crate::routes::RouteTable;

fn live(readers: usize) -> (Arc<LiveRoutes>, Writer) {
    let live = Arc::new(LiveRoutes::new(1, readers, 1 << 12, true).unwrap());
    let writer = Writer::new(&live);
    (live, writer)
}

fn hop(number: u32) -> (InterfaceId, u32, u16, u16) {
    (InterfaceId(1), number + 1, 1_500, 1)
}

fn gateway(live: &LiveRoutes, table: usize, address: u32, subscriber: u32) -> Option<u32> {
    live.hop(live.lookup(table, address)?, subscriber).map(|(_, hop)| hop.gateway() - 1)
}

#[derive(Default)]
struct Naive(BTreeMap<Prefix, (u32, Target)>);

impl Naive {
    fn covering(&self, address: u32) -> impl Iterator<Item = (&Prefix, &(u32, Target))> {
        self.0.iter().filter(move |(prefix, _)| prefix.contains(Ipv4Addr::from_bits(address)))
    }

    fn lookup(&self, address: u32) -> Option<u32> {
        self.covering(address).max_by_key(|(prefix, _)| prefix.length()).map(|(_, route)| route.0)
    }

    fn set(&mut self, writer: &mut Writer, prefix: Prefix, number: u32) {
        let target = writer.target(&[hop(number)]).unwrap();
        writer.set(0, prefix, target).unwrap();
        if let Some((_, old)) = self.0.insert(prefix, (number, target)) {
            writer.release(old);
        }
        writer.publish();
    }

    fn remove(&mut self, writer: &mut Writer, prefix: Prefix) {
        let Some((_, target)) = self.0.remove(&prefix) else { return };
        let shorter = self.covering(prefix.address().to_bits()).filter(|(other, _)| other.length() < prefix.length());
        let cover = shorter.max_by_key(|(other, _)| other.length()).map(|(other, route)| (other.length(), route.1));
        writer.remove(0, prefix, cover);
        writer.release(target);
        writer.publish();
    }
}

fn prefix() -> impl Strategy<Value = Prefix> {
    // Few different bits, so that prefixes nest.
    let address = (0_u32..4, 0_u32..4, 0_u32..4, any::<u8>())
        .prop_map(|(a, b, c, d)| 10 << 24 | a << 22 | b << 14 | c << 8 | u32::from(d));
    (address, 0_u8..=32).prop_map(|(address, length)| Prefix::new(Ipv4Addr::from_bits(address), length).unwrap())
}

fn is_in_24(prefix: &Prefix, address: u32) -> bool {
    prefix.address().to_bits() >> 8 == address >> 8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn changes_give_the_routes_of_a_naive_table(
        changes in vec((prefix(), any::<bool>(), 0_u32..50), 0..80),
        others in vec(any::<u32>(), 10),
    ) {
        let (live, mut writer) = live(0);
        let table = RouteTable::live(&live, 0);
        let mut naive = Naive::default();
        let mut trie = prefix_trie::PrefixMap::<(u32, u8), u32>::new();
        for (prefix, is_set, number) in &changes {
            let key = (prefix.address().to_bits(), prefix.length());
            if *is_set {
                naive.set(&mut writer, *prefix, *number);
                trie.insert(key, *number);
            } else {
                naive.remove(&mut writer, *prefix);
                trie.remove(&key);
            }
            let edges = [prefix.address().to_bits(), prefix.last().to_bits()].into_iter();
            let edges = edges.flat_map(|bits| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)]);
            for address in edges.chain(others.iter().copied()) {
                let found = gateway(&live, 0, address, 0);
                prop_assert_eq!(found, naive.lookup(address), "{}", Ipv4Addr::from_bits(address));
                prop_assert_eq!(found, trie.get_lpm(&(address, 32)).map(|(_, value)| *value));
                prop_assert_eq!(table.lookup(address), live.lookup(0, address), "by the coarse entries");
                if table.leaf(address) == CUT {
                    let is_cut = naive.0.keys().any(|prefix| prefix.length() > 24 && is_in_24(prefix, address));
                    let wanted = if is_cut { None } else { live.lookup(0, address) };
                    let leaf = table.fine_leaf(address).unwrap();
                    prop_assert_eq!(crate::routes::value_of(leaf), wanted, "by the fine entries");
                }
            }
        }
        for prefix in naive.0.keys().copied().collect::<Vec<_>>() {
            naive.remove(&mut writer, prefix);
        }
        prop_assert_eq!(writer.bytes(), 4 * ROOT_ENTRIES * 4, "all chunks are free");
    }
}

#[test]
fn a_table_with_many_longer_routes_has_fine_entries_everywhere() {
    let (live, mut writer) = live(0);
    let table = RouteTable::live(&live, 0);
    let mut naive = Naive::default();
    let prefix = |bits: u32, length: u8| Prefix::new(Ipv4Addr::from_bits(bits), length).unwrap();
    let part = |number: u32| number << (32 - COARSE_BITS);
    naive.set(&mut writer, Prefix::ALL, 0);
    for number in 1..FILLED_FROM {
        naive.set(&mut writer, prefix(part(number) | 0x1_2300, 24), number % 50);
    }
    assert!(!live.outside_is_filled());
    naive.set(&mut writer, prefix(part(FILLED_FROM), 16), 1);
    assert!(live.outside_is_filled());

    let (far, near) = (part(3_000), part(1) | 0x1_2345);
    let check = |naive: &Naive, what: &str| {
        for address in [far, far | 0x8_0000, near, part(1), part(FILLED_FROM), part(FILLED_FROM) | 0x1_0000, u32::MAX] {
            let leaf = table.fine_leaf(address).unwrap();
            let found = crate::routes::value_of(leaf).and_then(|value| live.gateway(value, 0));
            assert_eq!(
                found.map(|gateway| gateway - 1),
                naive.lookup(address),
                "{}: {what}",
                Ipv4Addr::from_bits(address)
            );
        }
    };
    check(&naive, "filled");
    // In a part that has no longer routes, and never had one.
    naive.set(&mut writer, prefix(far, 9), 7);
    check(&naive, "a shorter route over several parts");
    naive.set(&mut writer, prefix(far, 12), 8);
    naive.set(&mut writer, prefix(far | 0x8_0000, 20), 9);
    check(&naive, "longer routes");
    naive.set(&mut writer, Prefix::ALL, 10);
    check(&naive, "another default route");
    for number in 1..=FILLED_FROM {
        naive.remove(&mut writer, prefix(part(number) | 0x1_2300, 24));
    }
    naive.remove(&mut writer, prefix(part(FILLED_FROM), 16));
    naive.remove(&mut writer, prefix(far | 0x8_0000, 20));
    check(&naive, "few longer routes again");
    naive.remove(&mut writer, prefix(far, 12));
    naive.remove(&mut writer, Prefix::ALL);
    check(&naive, "no default route");
    assert!(live.outside_is_filled(), "for good");
}

#[test]
fn what_a_byte_cannot_name_has_no_fine_entry() {
    let (live, mut writer) = live(0);
    let table = RouteTable::live(&live, 0);
    let at = |last: u32| 10 << 24 | last << 8;
    let prefix = |last: u32| Prefix::new(Ipv4Addr::from_bits(at(last)), 24).unwrap();
    let targets: Vec<Target> = (0..300).map(|number| writer.target(&[hop(number)]).unwrap()).collect();
    let group = writer.target(&[hop(0), hop(1)]).unwrap();
    let routes = [(0, targets[253]), (1, targets[254]), (2, targets[299]), (3, group), (4, Target::DROP)];
    for (last, target) in routes {
        writer.set(0, prefix(last), target).unwrap();
    }
    let leaves = routes.map(|(last, _)| table.fine_leaf(at(last)));
    assert_eq!(leaves, [Some(254), Some(0), Some(0), Some(0), Some(0)]);
    assert_eq!(gateway(&live, 0, at(2), 0), Some(299), "by the table");
}

fn naive6(routes: &BTreeMap<Prefix6, (u32, Target)>, address: u128) -> Option<u32> {
    let covering = routes.iter().filter(|(prefix, _)| prefix.contains(address));
    covering.max_by_key(|(prefix, _)| prefix.length()).map(|(_, route)| route.0)
}

fn prefix6() -> impl Strategy<Value = Prefix6> {
    let parts = (0_u128..3, 0_u128..3, 0_u128..3, 0_u128..3, any::<u8>());
    let address = parts
        .prop_map(|(a, b, c, d, low)| 0x2001_0db8 << 96 | a << 110 | b << 90 | c << 70 | d << 40 | u128::from(low));
    (address, 0_u8..=128).prop_map(|(address, length)| Prefix6::new(address, length).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn changes_of_ipv6_give_the_routes_of_a_naive_table(
        changes in vec((prefix6(), any::<bool>(), 0_u32..50), 0..60),
        others in vec(any::<u128>(), 10),
    ) {
        let (live, mut writer) = live(0);
        let mut naive: BTreeMap<Prefix6, (u32, Target)> = BTreeMap::new();
        let mut trie = prefix_trie::PrefixMap::<(u128, u8), u32>::new();
        let router = |number: u32| 0xfe80 << 112 | u128::from(number) << 60 | 1;
        for (prefix, is_set, number) in &changes {
            let key = (prefix.address(), prefix.length());
            let before = if *is_set {
                let target = writer.target6(&[(InterfaceId(1), router(*number), 1_500, 1)]).unwrap();
                writer.set6(0, *prefix, target).unwrap();
                trie.insert(key, *number);
                naive.insert(*prefix, (*number, target))
            } else {
                let before = naive.remove(prefix);
                let shorter = naive.iter().filter(|(other, _)| {
                    other.length() < prefix.length() && other.contains(prefix.address())
                });
                let cover = shorter.max_by_key(|(other, _)| other.length());
                if before.is_some() {
                    writer.remove6(0, *prefix, cover.map(|(other, (_, target))| (other.length(), *target)));
                }
                trie.remove(&key);
                before
            };
            if let Some((_, target)) = before {
                writer.release(target);
            }
            writer.publish();
            let edges = [prefix.address(), prefix.last()].into_iter();
            let edges = edges.flat_map(|bits| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)]);
            for address in edges.chain(others.iter().copied()) {
                let hop = live.lookup6(0, address, 0);
                let wanted = naive6(&naive, address);
                prop_assert_eq!(hop.map(|hop| hop.gateway), wanted.map(router), "{:x}", address);
                prop_assert!(hop.is_none_or(|hop| hop.interface == InterfaceId(1)));
                prop_assert_eq!(wanted, trie.get_lpm(&(address, 128)).map(|(_, value)| *value));
                prop_assert_eq!(live.lookup6(1, address, 0), None, "another table has none");
            }
        }
        for (prefix, (_, target)) in core::mem::take(&mut naive) {
            writer.remove6(0, prefix, None);
            writer.release(target);
        }
        writer.publish();
        prop_assert_eq!(writer.bytes(), 4 * ROOT_ENTRIES * 4, "all chunks are free");
    }
}

#[test]
fn no_route_of_a_realm_takes_the_numbers_of_ipv6_hosts() {
    let (live, mut writer) = live(0);
    let numbers = [(0xe000_0000, HOST_HOPS), (0xefff_ffff, HOST_HOPS), (0xf000_0001, HOST_HOPS + 1)];
    let target = writer.target(&[hop(1)]).unwrap();
    for prefix in ["0.0.0.0/0", "224.0.0.0/3", "240.0.0.0/24", "240.0.0.1/32"] {
        let (address, length) = prefix.split_once('/').unwrap();
        let prefix = Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap();
        writer.set(1, prefix, target).unwrap();
        for (number, value) in numbers {
            assert_eq!(live.lookup(1, number), Some(value), "{number:x} with {prefix}");
        }
        writer.remove(1, prefix, None);
        for (number, value) in numbers {
            assert_eq!(live.lookup(1, number), Some(value), "{number:x} without {prefix}");
        }
    }
    assert_eq!(live.lookup(0, 0xe000_0000), None, "outside they mean nothing");
}

#[test]
fn short_routes_alone_need_no_walk() {
    let (live, mut writer) = live(0);
    let table = RouteTable::live(&live, 0);
    let set = |writer: &mut Writer, text: &str, hops: &[(InterfaceId, u32, u16, u16)]| {
        let (address, length) = text.split_once('/').unwrap();
        let prefix = Prefix::new(address.parse().unwrap(), length.parse().unwrap()).unwrap();
        let target = writer.target(hops).unwrap();
        writer.set(0, prefix, target).unwrap();
        prefix
    };
    let is_fine = |address| table.lookup_coarse(address).is_none();
    let [inside, elsewhere] = [0x0a01_0203, 0xc000_0201];
    set(&mut writer, "0.0.0.0/0", &[hop(1)]);
    let subscribers = set(&mut writer, "10.0.0.0/8", &[hop(2)]);
    assert!(!is_fine(inside) && !is_fine(elsewhere));
    assert_ne!(table.lookup_coarse(inside), table.lookup_coarse(elsewhere));
    let longer = set(&mut writer, "10.1.0.0/16", &[hop(3)]);
    assert!(is_fine(inside) && !is_fine(inside + (1 << 24)));
    let cover = writer.target(&[hop(2)]).unwrap();
    writer.remove(0, longer, Some((8, cover)));
    assert!(!is_fine(inside));
    writer.remove(0, subscribers, None);
    assert_eq!(table.lookup_coarse(inside), table.lookup_coarse(elsewhere));
    set(&mut writer, "0.0.0.0/0", &[hop(1), hop(4)]);
    assert!(is_fine(inside), "subscribers have to be asked");
    assert_eq!(table.lookup(inside), live.lookup(0, inside));
}

#[test]
fn a_subscriber_keeps_its_router_of_ipv6_when_another_leaves() {
    let (live, mut writer) = live(0);
    let router = |number: u128| (InterfaceId(1), 0xfe80 << 112 | number, 1_500, 1);
    let set = |writer: &mut Writer, routers: &[u128]| {
        let hops: Vec<_> = routers.iter().map(|number| router(*number)).collect();
        let target = writer.target6(&hops).unwrap();
        writer.set6(0, Prefix6::new(0, 0).unwrap(), target).unwrap();
    };
    set(&mut writer, &[1, 2, 3, 4]);
    let of = |subscriber: u32| live.lookup6(0, 7, subscriber).unwrap().gateway & 0xff;
    let before: Vec<u128> = (0..10_000).map(of).collect();
    for number in 1..=4 {
        let share = before.iter().filter(|router| **router == number).count();
        assert!((1_500..3_500).contains(&share), "{number} has {share} of 10,000");
    }
    set(&mut writer, &[1, 2, 4]);
    for (subscriber, before) in before.iter().enumerate() {
        let after = of(subscriber as u32);
        assert!(after == *before || *before == 3, "subscriber {subscriber} moved from {before} to {after}");
        assert_ne!(after, 3);
    }
}

#[test]
fn nothing_is_used_again_before_all_readers_have_passed() {
    let (live, mut writer) = live(2);
    live.report(0, live.generation());
    live.report(1, live.generation());
    let first = writer.target(&[hop(1)]).unwrap();
    assert!(!writer.is_ready(), "no reader knows the next hop");
    live.report(0, live.generation());
    assert!(!writer.is_ready(), "one reader does not");
    live.report(1, live.generation());
    assert!(writer.is_ready());
    writer.release(first);
    writer.publish();
    let second = writer.target(&[hop(2)]).unwrap();
    assert_ne!(first, second, "a reader may still hold the first");
    live.report(0, live.generation());
    live.report(1, live.generation());
    assert_eq!(writer.target(&[hop(3)]).unwrap(), first);
}

#[test]
fn a_subscriber_keeps_its_next_hop_when_another_leaves() {
    let (live, mut writer) = live(0);
    let all: Vec<_> = (0..16).map(hop).collect();
    let target = writer.target(&all).unwrap();
    writer.set(0, Prefix::ALL, target).unwrap();
    let of = |subscriber: u32| gateway(&live, 0, 0x0808_0808, 0x6440_0000 + subscriber).unwrap();
    let before: Vec<u32> = (0..10_000).map(of).collect();
    for number in 0..16 {
        let share = before.iter().filter(|gateway| **gateway == number).count();
        assert!((200..1_200).contains(&share), "{number} has {share} of 10,000");
    }
    let fewer: Vec<_> = (0..16).filter(|number| *number != 5).map(hop).collect();
    let target = writer.target(&fewer).unwrap();
    writer.set(0, Prefix::ALL, target).unwrap();
    for (subscriber, before) in before.iter().enumerate() {
        let after = of(subscriber as u32);
        assert!(after == *before || *before == 5, "subscriber {subscriber} moved from {before} to {after}");
        assert_ne!(after, 5);
    }
}

#[test]
fn weights_share_subscribers() {
    let (live, mut writer) = live(0);
    let target = writer.target(&[(InterfaceId(1), 1, 1_500, 3), (InterfaceId(1), 2, 1_500, 1)]).unwrap();
    writer.set(0, Prefix::ALL, target).unwrap();
    let first = (0..10_000_u32).filter(|subscriber| gateway(&live, 0, 0, *subscriber) == Some(0)).count();
    assert!((6_500..8_500).contains(&first), "{first} of 10,000, 7,500 expected");
}

#[test]
fn a_full_table_refuses_a_route_and_changes_nothing() {
    let live = Arc::new(LiveRoutes::new(0, 0, 2, false).unwrap());
    let mut writer = Writer::new(&live);
    let target = writer.target(&[hop(1)]).unwrap();
    let host = |last: u8| Prefix::host(Ipv4Addr::new(10, 0, 0, last));
    writer.set(0, host(1), target).unwrap();
    assert_eq!(writer.set(0, host(200), target), Err(Full::Nodes));
    assert_eq!(gateway(&live, 0, host(1).address().to_bits(), 0), Some(1));
    assert_eq!(gateway(&live, 0, host(200).address().to_bits(), 0), None);
    writer.remove(0, host(1), None);
    writer.publish();
    writer.set(0, host(200), target).unwrap();
}

#[test]
fn readers_see_a_valid_route_during_changes() {
    let (live, mut writer) = live(2);
    let mut naive = Naive::default();
    // Number 0 covers all; longer ones are even outside 10.0.0.128/25 and odd in it.
    naive.set(&mut writer, Prefix::ALL, 0);
    let (is_over, begun) = (AtomicBool::new(false), Barrier::new(3));
    thread::scope(|scope| {
        for reader in 0..2 {
            let (live, is_over, begun) = (&live, &is_over, &begun);
            scope.spawn(move || {
                begun.wait();
                loop {
                    live.report(reader, live.generation());
                    for low in 0..=255_u32 {
                        let found = gateway(live, 0, 0x0a00_0000 + low, 0).expect("the default route");
                        let fits = found == 0 || (found % 2 == 1) == (low >= 128);
                        assert!(fits, "10.0.0.{low} leads to {found}");
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                live.report(reader, u64::MAX);
            });
        }
        begun.wait();
        let mut random = 1_u64;
        for _ in 0..3_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let low = (random >> 40) as u32 % 256;
            let length = 25 + (random >> 50) as u8 % 8;
            let number = ((random >> 56) as u32 % 20) * 2 + if low >= 128 { 1 } else { 2 };
            let prefix = Prefix::new(Ipv4Addr::from_bits(0x0a00_0000 + low), length).unwrap();
            if random >> 63 == 0 {
                let target = writer.target(&[hop(number)]).unwrap();
                while !writer.is_ready() {
                    thread::yield_now();
                }
                writer.release(target);
                naive.set(&mut writer, prefix, number);
            } else {
                naive.remove(&mut writer, prefix);
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
