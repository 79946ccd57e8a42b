use core::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::random::Random;

fn prefix(address: [u8; 4], length: u8) -> Prefix {
    Prefix::new(Ipv4Addr::from(address), length).unwrap()
}

fn naive(routes: &[(Prefix, u32)], address: u32) -> Option<u32> {
    let address = Ipv4Addr::from_bits(address);
    routes.iter().filter(|(prefix, _)| prefix.contains(address)).max_by_key(|(prefix, _)| prefix.length()).map(|r| r.1)
}

fn route() -> impl Strategy<Value = (Prefix, u32)> {
    // Few different bits, so that prefixes lie inside each other.
    let address = (0_u32..4, 0_u32..4, 0_u32..4, any::<u8>())
        .prop_map(|(a, b, c, d)| 10 << 24 | a << 22 | b << 14 | c << 8 | u32::from(d));
    (address, 0_u8..=32, 0_u32..1000)
        .prop_map(|(address, length, value)| (Prefix::new(Ipv4Addr::from_bits(address), length).unwrap(), value))
}

fn edges(routes: &[(Prefix, u32)]) -> Vec<u32> {
    routes
        .iter()
        .flat_map(|(prefix, _)| [prefix.address().to_bits(), prefix.last().to_bits()])
        .flat_map(|bits| [bits.wrapping_sub(1), bits, bits.wrapping_add(1)])
        .chain([0, u32::MAX])
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn longest_prefix_wins(routes in vec(route(), 0..60), others in vec(any::<u32>(), 20)) {
        let table = RouteTable::new(&routes).unwrap();
        prop_assert_eq!(table.len(), routes.len());
        for address in edges(&routes).into_iter().chain(others) {
            prop_assert_eq!(table.lookup(address), naive(&routes, address), "{}", Ipv4Addr::from_bits(address));
        }
    }
}

#[test]
fn table_without_routes_knows_no_way() {
    let table = RouteTable::new(&[]).unwrap();
    assert!(table.is_empty());
    assert_eq!(table.lookup(0x0808_0808), None);
}

#[test]
fn default_route_covers_everything() {
    let table = RouteTable::new(&[(Prefix::ALL, 7)]).unwrap();
    assert_eq!([0, 1, 0x0808_0808, u32::MAX].map(|address| table.lookup(address)), [Some(7); 4]);
}

#[test]
fn later_route_for_the_same_prefix_counts() {
    for extra in [0, 20] {
        let mut routes: Vec<_> = (0..extra).map(|n| (prefix([172, 16, n, 0], 24), 100)).collect();
        routes.extend([(prefix([10, 0, 0, 0], 25), 1), (prefix([10, 0, 0, 0], 25), 2)]);
        assert_eq!(RouteTable::new(&routes).unwrap().lookup(0x0a00_0001), Some(2));
    }
}

#[test]
fn value_that_does_not_fit_is_an_error() {
    let error = RouteTable::new(&[(Prefix::ALL, VALUE_LIMIT)]).unwrap_err();
    assert!(matches!(error, RouteError::Value { value: VALUE_LIMIT, .. }));
    assert_eq!(RouteTable::new(&[(Prefix::ALL, VALUE_LIMIT - 1)]).unwrap().lookup(1), Some(VALUE_LIMIT - 1));
}

#[test]
fn table_of_the_size_of_the_internet_is_right_and_small() {
    // As in a full table: mostly /24, many /22 and /23.
    let mut random = Random::new([1; 4]);
    let routes: Vec<(Prefix, u32)> = (0..300_000_u32)
        .map(|value| {
            let length = [24, 24, 24, 24, 24, 24, 22, 23, 20, 16][random.below(10) as usize];
            (Prefix::new(Ipv4Addr::from_bits(random.next_u64() as u32), length).unwrap(), value)
        })
        .collect();
    let table = RouteTable::new(&routes).unwrap();
    assert!(table.bytes() < 80 << 20, "{} bytes", table.bytes());
    for (prefix, _) in routes.iter().step_by(3_000) {
        let address = prefix.last().to_bits();
        assert_eq!(table.lookup(address), naive(&routes, address));
    }
}
