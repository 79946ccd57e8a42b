use core::net::Ipv4Addr;

use nat::settings::Interface;
use nat::settings::InterfaceAddress;
use nat::settings::Route;
use proptest::collection::vec;
use proptest::prelude::*;

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
    KernelRoute { protocol: 186, metric, hops, object: None }
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
fn a_reading_of_all_routes_finds_what_differs() {
    let mut rib = Rib::of(&settings());
    let (both, changed, gone) = (prefix("198.51.100.0/24"), prefix("203.0.113.0/25"), prefix("203.0.113.128/25"));
    rib.set_kernel(Table::Outside, both, &[kernel(20, 1), kernel(30, 2)]);
    rib.set_kernel(Table::Outside, changed, &[kernel(20, 1)]);
    rib.set_kernel(Table::Outside, gone, &[kernel(20, 1), kernel(40, 1)]);
    let other = prefix("192.0.2.128/25");
    rib.set_kernel(Table::Outside, other, &[kernel(10, 1), kernel(20, 1), kernel(30, 1)]);
    let meet = |rib: &mut Rib, prefix, metric, gateway| {
        let KernelRoute { protocol, hops, object, .. } = kernel(metric, gateway);
        rib.meet(Table::Outside, prefix, metric, Leads { protocol, hops: &hops, object })
    };
    // As many as the number of a reading has values, and some.
    for round in 0..600 {
        rib.begin_reading();
        let wanted = if round == 0 { Met::Changed } else { Met::Known };
        assert_eq!(meet(&mut rib, changed, 20, 9), wanted);
        assert_eq!(meet(&mut rib, changed, 20, 8), Met::Behind, "the first counts");
        assert_eq!(meet(&mut rib, both, 30, 2), Met::Known);
        assert_eq!(meet(&mut rib, both, 20, 1), Met::Known);
        assert_eq!(meet(&mut rib, prefix("192.0.2.0/25"), 5, 7), wanted, "a new one");
        assert_eq!(meet(&mut rib, gone, 40, 1), Met::Known);
        // One that changes leaves the others of its prefix to be met, or not.
        assert_eq!(meet(&mut rib, other, 20, 2), wanted);
        assert_eq!(meet(&mut rib, other, 30, 2), wanted);
        let mut unmet = rib.unmet(Table::Outside);
        unmet.sort_unstable();
        assert_eq!(unmet, if round == 0 { vec![(other, 10), (gone, 20)] } else { Vec::new() });
        for (prefix, metric) in unmet {
            assert!(rib.change_kernel(Table::Outside, prefix, metric, None));
        }
        assert_eq!(rib.kernel(Table::Outside, changed), [kernel(20, 9)]);
        assert_eq!(rib.kernel(Table::Outside, both), [kernel(20, 1), kernel(30, 2)]);
        assert_eq!(rib.kernel(Table::Outside, gone), [kernel(40, 1)]);
        assert_eq!(rib.kernel(Table::Outside, other), [kernel(20, 2), kernel(30, 2)]);
    }
    rib.begin_reading();
    let new = prefix("192.0.2.0/25");
    let all = [(new, 5), (other, 20), (other, 30), (both, 20), (both, 30), (changed, 20), (gone, 40)];
    let mut unmet = rib.unmet(Table::Outside);
    unmet.sort_unstable();
    assert_eq!(unmet, all);
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
fn a_device_fault_differs_from_a_lost_link() {
    let mut rib = Rib::of(&settings());
    let hop = |interface| Hop { interface: InterfaceId(interface), gateway: 7, weight: 1 };
    assert_eq!(rib.state(&hop(1)), HopState::Usable);
    rib.set_links(&[false, false]);
    rib.set_faulty(vec![InterfaceId(1)]);
    assert_eq!((rib.state(&hop(0)), rib.state(&hop(1))), (HopState::NoLink, HopState::DeviceFault));
    rib.set_links(&[false, true]);
    assert_eq!(rib.state(&hop(1)), HopState::Usable);
}

#[test]
fn prefixes_of_subscribers_are_excluded_while_no_route_leads() {
    let pool = |subscribers: &[&str]| nat::settings::Pool {
        subscribers: subscribers.iter().map(|text| prefix(text)).collect(),
        ..nat::settings::Pool::default()
    };
    let (pools, all) = (vec![pool(&["100.72.0.0/13", "0.0.0.0/0", "224.0.0.0/3"])], prefix("100.72.0.0/13"));
    let mut rib = Rib::of(&Settings { pools: pools.clone(), ..settings() });
    assert_eq!(sources(&rib, Table::Outside, "100.72.0.0/13"), [], "without routes of the kernel, check wants them");
    rib.set_fixed(&Settings { pools, live_routes: true, ..settings() });
    assert_eq!(sources(&rib, Table::Outside, "100.72.0.0/13"), [Source::Excluded]);
    assert_eq!(sources(&rib, Table::Outside, "0.0.0.0/0"), [Source::Static]);
    assert_eq!(sources(&rib, Table::Outside, "224.0.0.0/3"), [], "stands for IPv6 hosts");
    assert_eq!(rib.longest(Table::Outside, u32::from_be_bytes([100, 73, 0, 1])), Some(all));
    assert_eq!(rib.next_prefix(Table::Outside, Bound::Excluded(prefix("100.64.0.0/10"))), Some(all));
    assert!(rib.fixed_prefixes().any(|one| one == (Table::Outside, all)), "a reload that removes the pool sees it");
    assert_eq!(sources(&rib, Table::Inside(RealmId(0)), "100.72.0.0/13"), []);
    rib.set_kernel(Table::Outside, all, &[kernel(20, 8)]);
    assert_eq!(rib.best(Table::Outside, all).map(<[Hop]>::len), Some(1), "a route outside counts");
    rib.set_kernel(Table::Outside, all, &[]);
    rib.set_fixed(&settings());
    assert_eq!(sources(&rib, Table::Outside, "100.72.0.0/13"), []);
}

#[test]
fn routes_over_interfaces_without_link_do_not_count() {
    let mut settings = settings();
    settings.interfaces.push(settings.interfaces[1].clone());
    let mut rib = Rib::of(&settings);
    let default =
        |rib: &Rib| (rib.used(Table::Outside, Prefix::ALL), rib.best(Table::Outside, Prefix::ALL).unwrap().to_vec());
    let hop = |interface, gateway| Hop { interface: InterfaceId(interface), gateway, weight: 1 };
    let fixed = hop(1, u32::from_be_bytes([192, 0, 2, 254]));
    // The static route leads over interface 1, those of the kernel over 1 and 2, and over 2.
    let both = KernelRoute { protocol: 186, metric: 20, hops: vec![hop(1, 7), hop(2, 8)], object: None };
    let second = KernelRoute { protocol: 186, metric: 30, hops: vec![hop(2, 9)], object: None };
    rib.set_kernel(Table::Outside, Prefix::ALL, &[both, second]);
    assert_eq!(default(&rib), (0, vec![fixed]));
    assert_eq!(rib.set_links(&[true, false, true]), [InterfaceId(1)]);
    assert_eq!(default(&rib), (1, vec![hop(2, 8)]), "one next hop of two has a link");
    assert!(rib.set_links(&[true, false, true]).is_empty(), "nothing has changed");
    assert_eq!(rib.set_links(&[true, false, false]), [InterfaceId(2)]);
    assert_eq!(default(&rib), (0, vec![fixed]), "none has a link");
    assert_eq!(rib.set_links(&[true, true, false]), [InterfaceId(1)]);
    rib.set_fixed(&Settings { routes: Vec::new(), ..settings });
    assert_eq!(default(&rib), (0, vec![hop(1, 7)]));
    let another = KernelRoute { protocol: 186, metric: 10, hops: vec![hop(2, 5)], object: None };
    let drops = KernelRoute { protocol: 186, metric: 15, hops: Vec::new(), object: None };
    rib.set_kernel(Table::Outside, Prefix::ALL, &[another, drops]);
    assert_eq!(default(&rib), (1, Vec::new()), "a route that drops packets needs no link, and this list is new");
    // The last of two interfaces in the same network is that of its connected route.
    assert_eq!(rib.prefixes_over(Table::Outside, &[InterfaceId(2)]), [Prefix::ALL, prefix("192.0.2.0/24")]);
    assert_eq!(rib.prefixes_over(Table::Outside, &[InterfaceId(0)]), []);
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
        |address: [u8; 4]| rib.longest(Table::Outside, u32::from_be_bytes(address)).map(|found| found.to_string());
    assert_eq!(longest([8, 8, 8, 8]).as_deref(), Some("0.0.0.0/0"));
    assert_eq!(longest([192, 0, 2, 77]).as_deref(), Some("192.0.2.0/24"));
    assert_eq!(longest([100, 64, 0, 1]).as_deref(), Some("100.64.0.0/10"));
}

proptest! {
    #[test]
    fn one_change_does_what_a_list_of_all_routes_does(
        changes in vec(
            (0_u32..3, 0_u32..3, proptest::option::of((1_u8..3, 1_u32..4, proptest::option::of(6_u32..8)))),
            0..60,
        ),
    ) {
        let settings = settings();
        let (mut one, mut all) = (Rib::of(&settings), Rib::of(&settings));
        for (low, metric, route) in changes {
            let prefix = Prefix::new((198 << 24 | low << 8).into(), 24).unwrap();
            let hops = |gateway| vec![Hop { interface: InterfaceId(1), gateway, weight: 1 }];
            let route = route.map(|(protocol, gateway, object)| KernelRoute {
                protocol,
                metric,
                hops: hops(gateway),
                object,
            });
            let mut wanted = all.kernel(Table::Outside, prefix);
            wanted.retain(|other| other.metric != metric);
            wanted.extend(route.clone());
            let has_changed = all.set_kernel(Table::Outside, prefix, &wanted);
            let route = route.as_ref().map(|route| Leads {
                protocol: route.protocol,
                hops: &route.hops,
                object: route.object,
            });
            prop_assert_eq!(one.change_kernel(Table::Outside, prefix, metric, route), has_changed);
            prop_assert_eq!(one.kernel(Table::Outside, prefix), all.kernel(Table::Outside, prefix));
            prop_assert_eq!(one.kernel_len(), all.kernel_len());
            prop_assert_eq!(one.hops.by_hops.len(), all.hops.by_hops.len(), "lists that nobody uses go");
            let first = one.candidates(Table::Outside, prefix).into_iter().next().map(|candidate| candidate.hops);
            prop_assert_eq!(one.best(Table::Outside, prefix).map(<[Hop]>::to_vec), first);
            for object in 6..8 {
                let names = |prefix: &Prefix| {
                    one.kernel(Table::Outside, *prefix).iter().any(|route| route.object == Some(object))
                };
                let prefixes = (0_u32..3).filter_map(|low| Prefix::new((198 << 24 | low << 8).into(), 24));
                let wanted: Vec<_> = prefixes.filter(names).map(|prefix| (Table::Outside, prefix)).collect();
                prop_assert_eq!(one.naming(object), wanted.clone());
                prop_assert_eq!(all.naming(object), wanted);
            }
        }
    }
}
