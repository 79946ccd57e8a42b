use core::net::Ipv4Addr;

use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Route;

use super::*;

fn prefix(text: &str) -> Prefix {
    let (address, length) = text.split_once('/').expect("a length");
    Prefix::new(address.parse().expect("an address"), length.parse().expect("a number")).expect("a prefix")
}

fn interface(name: &str, side: Side, address: [u8; 4], prefix_length: u8) -> Interface {
    Interface {
        name: name.to_owned(),
        side,
        realm: RealmId(0),
        addresses: vec![InterfaceAddress { address: Ipv4Addr::from(address), prefix_length }],
        mtu: 1_500,
    }
}

pub(crate) fn settings() -> Settings {
    let route = |text, next_hop: [u8; 4], interface| Route {
        prefix: prefix(text),
        next_hop: Ipv4Addr::from(next_hop),
        interface: InterfaceId(interface),
    };
    Settings {
        interfaces: vec![
            interface("lan", Side::Inside, [10, 0, 0, 1], 24),
            interface("wan", Side::Outside, [192, 0, 2, 1], 24),
        ],
        routes: vec![route("0.0.0.0/0", [192, 0, 2, 254], 1), route("100.64.0.0/10", [10, 0, 0, 2], 0)],
        ..Settings::default()
    }
}

fn kernel(metric: u32, gateway: u32) -> KernelRoute {
    let hops = vec![Hop { interface: InterfaceId(1), gateway, weight: 1 }];
    KernelRoute { protocol: 186, metric, hops }
}

fn sources(rib: &Rib, table: Table, text: &str) -> Vec<Source> {
    rib.candidates(table, prefix(text)).into_iter().map(|candidate| candidate.source).collect()
}

#[test]
fn a_static_route_is_preferred_to_the_kernels() {
    let mut rib = Rib::of(&settings());
    assert!(rib.set_kernel(Table::Outside, Prefix::ALL, &[kernel(20, 7)]));
    let found = sources(&rib, Table::Outside, "0.0.0.0/0");
    assert_eq!(found, [Source::Static, Source::Kernel { protocol: 186, metric: 20 }]);
}

#[test]
fn the_lowest_metric_of_the_kernel_counts() {
    let mut rib = Rib::of(&settings());
    let wanted = [kernel(200, 1), kernel(20, 2), kernel(100, 3)];
    assert!(rib.set_kernel(Table::Outside, prefix("198.51.100.0/24"), &wanted));
    assert!(!rib.set_kernel(Table::Outside, prefix("198.51.100.0/24"), &wanted), "nothing changed");
    let metrics: Vec<u32> =
        rib.kernel(Table::Outside, prefix("198.51.100.0/24")).iter().map(|route| route.metric).collect();
    assert_eq!((metrics, rib.kernel_len()), (vec![20, 100, 200], 3));
    assert!(rib.set_kernel(Table::Outside, prefix("198.51.100.0/24"), &[]));
    assert_eq!(rib.kernel_len(), 0);
    assert!(rib.hops.by_hops.is_empty(), "no list of next hops is left");
}

#[test]
fn what_leads_inside_is_excluded_outside() {
    let mut rib = Rib::of(&settings());
    assert_eq!(sources(&rib, Table::Outside, "100.64.0.0/10"), [Source::Excluded]);
    assert_eq!(sources(&rib, Table::Outside, "10.0.0.0/24"), [Source::Excluded]);
    rib.set_kernel(Table::Inside(RealmId(0)), prefix("10.9.0.0/16"), &[kernel(20, 7)]);
    assert_eq!(sources(&rib, Table::Outside, "10.9.0.0/16"), [Source::Excluded]);
    rib.set_kernel(Table::Outside, prefix("10.9.0.0/16"), &[kernel(20, 8)]);
    let found = sources(&rib, Table::Outside, "10.9.0.0/16");
    assert_eq!(found, [Source::Kernel { protocol: 186, metric: 20 }, Source::Excluded]);
}

#[test]
fn prefixes_come_in_order_with_the_excluded_ones() {
    let rib = Rib::of(&settings());
    let mut found = Vec::new();
    let mut from = Bound::Unbounded;
    while let Some(prefix) = rib.next_prefix(Table::Outside, from) {
        found.push(prefix.to_string());
        from = Bound::Excluded(prefix);
    }
    assert_eq!(found, ["0.0.0.0/0", "10.0.0.0/24", "100.64.0.0/10", "192.0.2.0/24"]);
}

#[test]
fn the_longest_prefix_of_an_address_is_found() {
    let rib = Rib::of(&settings());
    let longest =
        |address: [u8; 4]| rib.longest(Table::Outside, Ipv4Addr::from(address)).map(|found| found.to_string());
    assert_eq!(longest([8, 8, 8, 8]).as_deref(), Some("0.0.0.0/0"));
    assert_eq!(longest([192, 0, 2, 77]).as_deref(), Some("192.0.2.0/24"));
    assert_eq!(longest([100, 64, 0, 1]).as_deref(), Some("100.64.0.0/10"));
}
