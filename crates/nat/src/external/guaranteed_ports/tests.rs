use super::*;
use crate::settings::Class;
use crate::settings::Pool;
use crate::settings::SubscriberLimits;
use crate::types::Prefix;

fn prefix(address: [u8; 4], length: u8) -> Prefix {
    Prefix::new(address.into(), length).expect("a prefix")
}

fn class(prefix: Prefix, reserved: u32) -> Class {
    let limits = SubscriberLimits { reserved_ports: [reserved, reserved, 1], ..SubscriberLimits::default() };
    Class { name: prefix.to_string(), subscribers: vec![prefix], realms: Vec::new(), limits, gateways: None }
}

#[test]
fn each_pool_counts_its_subscribers_by_class() {
    let pool = |subscribers| Pool { subscribers: vec![subscribers], ..Pool::default() };
    let settings = Settings {
        pools: vec![pool(prefix([10, 0, 0, 0], 8)), pool(prefix([10, 0, 1, 0], 24))],
        // A class in one pool, a class in both, and a part of it with more.
        classes: vec![
            class(prefix([10, 1, 0, 0], 28), 100),
            class(prefix([10, 0, 0, 0], 23), 10),
            class(prefix([10, 0, 1, 4], 32), 50),
            class(prefix([192, 168, 0, 0], 16), 7),
        ],
        ..Settings::default()
    };
    let found = reservations(&settings).expect("sound prefixes");
    assert_eq!((found[0].subscribers, found[0].ports), (272, [1_600 + 2_560, 1_600 + 2_560, 272]));
    assert_eq!((found[1].subscribers, found[1].ports), (256, [255 * 10 + 50, 255 * 10 + 50, 256]));
    assert!(found[0].is_mixed && found[1].is_mixed);
    assert_eq!(found[1].of_each_address(2), [1_300 + 50, 1_300 + 50, 128 + 1]);
}

#[test]
fn equal_guarantees_are_shared_evenly_by_addresses() {
    let settings = Settings {
        pools: vec![Pool::default()],
        classes: vec![class(prefix([10, 0, 0, 0], 30), 100)],
        ..Settings::default()
    };
    let found = reservations(&settings).expect("sound prefixes")[0];
    assert_eq!(found.of_each_address(3), [200, 200, 2]);
}
