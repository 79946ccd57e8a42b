use core::net::Ipv4Addr;

use super::*;
use crate::settings::InterfaceAddress;
use crate::types::Side;

fn address(text: &str) -> u32 {
    text.parse::<Ipv4Addr>().unwrap().to_bits()
}

fn interface(addresses: &[(&str, u8)]) -> Interface {
    let own = |&(text, prefix_length): &(&str, u8)| InterfaceAddress { address: text.parse().unwrap(), prefix_length };
    Interface {
        name: "wan0".to_owned(),
        side: Side::Outside,
        realm: Default::default(),
        addresses: addresses.iter().map(own).collect(),
        mtu: 1500,
    }
}

fn external(addresses: impl IntoIterator<Item = u32>) -> Vec<(Ipv4Addr, AddressIndex)> {
    addresses.into_iter().map(Ipv4Addr::from_bits).zip((0..).map(AddressIndex)).collect()
}

#[test]
fn addresses_of_pools_and_interfaces_are_distinguished() {
    let interfaces = [interface(&[("10.0.0.1", 24)]), interface(&[("192.0.2.1", 30), ("198.51.100.7", 32)])];
    let external = external(["203.0.113.1", "203.0.113.2", "198.51.100.7"].map(address));
    let set = LocalAddresses::new(&interfaces, &external);
    let expected = [
        ("10.0.0.1", Some(Local::Own(InterfaceId(0)))),
        ("10.0.0.255", Some(Local::Broadcast(InterfaceId(0)))),
        ("10.0.0.0", None),
        ("10.0.0.2", None),
        ("192.0.2.1", Some(Local::Own(InterfaceId(1)))),
        ("192.0.2.3", Some(Local::Broadcast(InterfaceId(1)))),
        ("198.51.100.7", Some(Local::OwnAndPool(InterfaceId(1), AddressIndex(2)))),
        ("203.0.113.1", Some(Local::Pool(AddressIndex(0)))),
        ("203.0.113.2", Some(Local::Pool(AddressIndex(1)))),
        ("203.0.113.3", None),
        ("0.0.0.0", None),
        ("255.255.255.255", None),
    ];
    for (text, local) in expected {
        assert_eq!(set.lookup(address(text)), local, "{text}");
    }
    assert_eq!(set.len(), 7);
}

#[test]
fn pool_or_own_address_is_no_broadcast_address() {
    let interfaces = [interface(&[("192.0.2.1", 24), ("198.51.100.255", 24)])];
    let set = LocalAddresses::new(&interfaces, &external([address("192.0.2.255")]));
    assert_eq!(set.lookup(address("192.0.2.255")), Some(Local::Pool(AddressIndex(0))));
    assert_eq!(set.lookup(address("198.51.100.255")), Some(Local::Own(InterfaceId(0))));
}

#[test]
fn point_to_point_links_have_no_broadcast_address() {
    let set = LocalAddresses::new(&[interface(&[("192.0.2.0", 31), ("192.0.2.9", 32)])], &[]);
    assert_eq!(set.lookup(address("192.0.2.1")), None);
    assert_eq!(set.len(), 2);
}

#[test]
fn thousands_of_addresses_are_found_others_are_filtered() {
    let blocks = [address("203.0.0.0"), address("100.64.0.0"), address("8.8.0.0")];
    let external = external(blocks.iter().flat_map(|&first| first..first + 2048));
    let set = LocalAddresses::new(&[], &external);
    for (own, index) in &external {
        assert_eq!(set.lookup(own.to_bits()), Some(Local::Pool(*index)));
    }
    let mut random = crate::random::Random::new([2; 4]);
    let mut passed = 0;
    for _ in 0..100_000 {
        let other = random.next_u64() as u32;
        let is_own = blocks.iter().any(|&first| (first..first + 2048).contains(&other));
        assert_eq!(set.lookup(other).is_some(), is_own);
        let bit = set.filter_bit(other);
        passed += u32::from(set.filter[bit / 64] >> (bit % 64) & 1 == 1);
    }
    assert!(passed < 12_000, "{passed} of 100000 pass the filter");
}

#[test]
fn addresses_are_found_by_their_places_whatever_these_are() {
    let places = [("203.0.113.1", 7), ("203.0.113.2", 8), ("203.0.113.3", 2), ("198.51.100.7", 0)];
    let external = places.map(|(text, place)| (text.parse().unwrap(), AddressIndex(place)));
    for count in 1..=places.len() {
        let set = LocalAddresses::new(&[], &external[..count]);
        for (position, (text, place)) in places.into_iter().enumerate() {
            let expected = (position < count).then_some(AddressIndex(place));
            assert_eq!(set.pool_address(address(text)), expected, "{text}");
            assert_eq!(set.lookup(address(text)).and_then(Local::pool_address), expected, "{text}");
        }
    }
}

#[test]
fn an_empty_set_knows_no_address() {
    let set = LocalAddresses::new(&[], &[]);
    assert!(set.is_empty());
    assert_eq!([0, 1, u32::MAX].map(|address| set.lookup(address)), [None; 3]);
}
