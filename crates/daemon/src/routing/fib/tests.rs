use std::time::Instant;

use nat::types::InterfaceId;
use nat::types::RealmId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::routing::rib::KernelRoute;
use crate::routing::rib::Leads;
use crate::routing::rib::Rib;
use crate::routing::rib::Rib6;
use crate::routing::rib::tests::settings;

fn start(nodes: usize) -> (Rib, Fib) {
    let settings = settings();
    let live = Arc::new(LiveRoutes::new(settings.realms(), 0, nodes, true).unwrap());
    let rib = Rib::of(&settings);
    let mut fib = Fib::new(&live, rib.tables());
    for table in Table::all(settings.realms()) {
        let mut from = core::ops::Bound::Unbounded;
        while let Some(prefix) = rib.next_prefix(table, from) {
            fib.refresh(&rib, &settings, table, prefix).unwrap();
            from = core::ops::Bound::Excluded(prefix);
        }
    }
    (rib, fib)
}

fn route(metric: u32, gateway: u32, interface: u16) -> KernelRoute {
    let hops = vec![Hop { interface: InterfaceId(interface), gateway, weight: 1 }];
    KernelRoute { protocol: 186, metric, hops, object: None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_tables_follow_the_best_routes(
        changes in vec((any::<bool>(), 0_u32..6, 8_u8..=32, vec((0_u32..3, 1_u32..6), 0..3), any::<[bool; 2]>()), 0..60),
    ) {
        let settings = settings();
        let (mut rib, mut fib) = start(1 << 12);
        for (is_outside, bits, length, routes, is_up) in changes {
            let table = if is_outside { Table::Outside } else { Table::Inside(RealmId(0)) };
            let prefix = Prefix::new((10 << 24 | bits << 14 | bits).into(), length).unwrap();
            let interface = u16::from(is_outside);
            let mut wanted: Vec<KernelRoute> = Vec::new();
            for (metric, gateway) in routes {
                wanted.retain(|route| route.metric != metric);
                wanted.push(route(metric, gateway, interface));
            }
            let changed = rib.set_links(&is_up);
            for table in Table::all(settings.realms()) {
                for prefix in rib.prefixes_over(table, &changed) {
                    fib.refresh(&rib, &settings, table, prefix).unwrap();
                }
            }
            rib.set_kernel(table, prefix, &wanted);
            fib.refresh(&rib, &settings, table, prefix).unwrap();
            fib.publish();
            prop_assert!(fib.agrees(&rib, &settings));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn the_tables_of_ipv6_follow_the_best_routes(
        changes in vec((any::<bool>(), 0_u128..6, 8_u8..=128, vec((0_u32..3, 1_u128..6), 0..3)), 0..60),
        asked in 0_u128..6,
    ) {
        let settings = settings();
        let live = Arc::new(LiveRoutes::new(settings.realms(), 0, 1 << 12, true).unwrap());
        let (mut rib, mut fib) = (Rib6::of(&settings), Fib::new(&live, 1 + settings.realms()));
        let address = |bits: u128| 0x2001_0db8 << 96 | bits << 70 | bits;
        for (is_outside, bits, length, routes) in changes {
            let table = if is_outside { Table::Outside } else { Table::Inside(RealmId(0)) };
            let prefix = Prefix6::new(address(bits), length).unwrap();
            let mut wanted: Vec<KernelRoute<u128>> = Vec::new();
            for (metric, low) in routes {
                wanted.retain(|route| route.metric != metric);
                let hop = Hop { interface: InterfaceId(u16::from(is_outside)), gateway: 0xfe80 << 112 | low, weight: 1 };
                wanted.push(KernelRoute { protocol: 188, metric, hops: vec![hop], object: None });
            }
            rib.set_kernel(table, prefix, &wanted);
            fib.refresh(&rib, &settings, table, prefix).unwrap();
            fib.publish();
            prop_assert!(fib.agrees(&rib, &settings));
            // What a worker finds is the longest route of the collection.
            let best = rib.longest(table, address(asked)).and_then(|longest| rib.best(table, longest));
            let hop = live.lookup6(table.index(), address(asked), 0).map(|hop| (hop.interface, hop.gateway));
            prop_assert_eq!(hop, best.and_then(<[_]>::first).map(|hop| (hop.interface, hop.gateway)));
        }
    }
}

#[test]
fn the_weight_of_a_single_next_hop_means_nothing() {
    let settings = settings();
    let (mut rib, mut fib) = start(1 << 12);
    let prefixes = [24, 25].map(|length| Prefix::new([198, 18, 0, 0].into(), length).unwrap());
    let mut set = |prefix, hops: Vec<Hop>| {
        rib.set_kernel(Table::Outside, prefix, &[KernelRoute { protocol: 186, metric: 0, hops, object: None }]);
        fib.refresh(&rib, &settings, Table::Outside, prefix).unwrap();
        fib.publish();
        assert!(fib.agrees(&rib, &settings), "{prefix}");
    };
    let hop = |weight| vec![Hop { interface: InterfaceId(1), gateway: 7, weight }];
    set(prefixes[0], hop(1));
    set(prefixes[1], hop(2));
    set(prefixes[0], Vec::new());
    set(prefixes[1], Vec::new());
    assert!(!fib.half4.targets.contains_key(&hop(1)), "its next hop is free again");
}

#[test]
fn too_many_next_hops_leave_the_first_until_there_is_room() {
    let settings = settings();
    let (mut rib, mut fib) = start(1 << 12);
    let hop = |gateway| Hop { interface: InterfaceId(1), gateway, weight: 1 };
    let prefix = |number: u32| Prefix::new((198 << 24 | number << 8).into(), 24).unwrap();
    let set = |rib: &mut Rib, number: u32, hops: &[Hop]| {
        rib.set_kernel(
            Table::Outside,
            prefix(number),
            &[KernelRoute { protocol: 186, metric: 0, hops: hops.to_vec(), object: None }],
        );
    };
    let mut refused = None;
    for number in 0..10_000 {
        set(&mut rib, number, &[hop(1), hop(2 + number)]);
        if fib.refresh(&rib, &settings, Table::Outside, prefix(number)).is_err() {
            refused = Some(number);
            break;
        }
    }
    let refused = refused.expect("the room for pairs of next hops is bounded");
    let has = |fib: &Fib| {
        let target = fib.half4.installed[0].targets.get(&prefix(refused)).unwrap();
        fib.half4.hops_of.get(target).unwrap().clone()
    };
    assert_eq!(has(&fib), [hop(1)]);
    rib.set_kernel(Table::Outside, prefix(0), &[]);
    fib.refresh(&rib, &settings, Table::Outside, prefix(0)).unwrap();
    fib.publish();
    fib.refresh(&rib, &settings, Table::Outside, prefix(refused)).unwrap();
    assert_eq!(has(&fib), [hop(1), hop(2 + refused)]);
    assert!(fib.agrees(&rib, &settings));
}

/// What the kernel sends of a route over device 7: new with this gateway, or gone.
fn message(prefix: Prefix, gateway: Option<u32>) -> Vec<u8> {
    let attribute =
        |kind: u16, value: [u8; 4]| [8_u16.to_ne_bytes(), kind.to_ne_bytes()].concat().into_iter().chain(value);
    let mut attributes: Vec<u8> = attribute(15, 254_u32.to_ne_bytes()).collect();
    attributes.extend(attribute(1, prefix.address().octets()));
    attributes.extend(attribute(6, 20_u32.to_ne_bytes()));
    attributes.extend(attribute(5, gateway.unwrap_or(1).to_be_bytes()));
    attributes.extend(attribute(4, 7_u32.to_ne_bytes()));
    let kind: u16 = if gateway.is_some() { 24 } else { 25 };
    let length = 16 + 12 + attributes.len() as u32;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([kind.to_ne_bytes(), [0; 2]].concat());
    bytes.extend([0; 8]);
    bytes.extend([2, prefix.length(), 0, 0, 254, 186, 0, 1, 0, 0, 0, 0]);
    bytes.extend(attributes);
    bytes
}

/// Seconds that the calling thread has had a CPU: others on the machine do not count.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

/// Prints what a full table takes. Half of the prefixes of the Internet are /24s, near each other.
#[test]
fn a_million_routes_fit_in_200_mb() {
    let settings = settings();
    let (mut rib, mut fib) = start(1 << 20);
    let mut random = 7_u64;
    let mut next = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut prefixes = Vec::new();
    let begun = Instant::now();
    while rib.kernel_len() < 1_000_000 {
        let address = (1 << 24) + next(223 << 24) as u32;
        let length = match next(100) {
            0..60 => 24,
            60..72 => 22,
            72..80 => 23,
            80..90 => 16 + next(6) as u8,
            90..99 => 20 + next(2) as u8,
            _ => 25 + next(8) as u8,
        };
        let Some(prefix) = Prefix::new(address.into(), length) else { continue };
        // Each next hop is an object of the kernel.
        let gateway = 1 + next(64) as u32;
        let route = KernelRoute { object: Some(gateway), ..route(20, gateway, 1) };
        if rib.set_kernel(Table::Outside, prefix, &[route]) {
            fib.refresh(&rib, &settings, Table::Outside, prefix).unwrap();
            prefixes.push(prefix);
        }
        if prefixes.len().is_multiple_of(1_000) {
            fib.publish();
        }
    }
    let added = prefixes.len() as f64 / begun.elapsed().as_secs_f64();
    // As the keeper does it, from the bytes of the kernel on.
    let changes = 200_000;
    let messages: Vec<Vec<u8>> = (0..changes)
        .map(|change| {
            let prefix = prefixes[next(prefixes.len() as u64) as usize];
            message(prefix, (change % 3 != 0).then(|| 1 + next(64) as u32))
        })
        .collect();
    let objects = crate::kernel::next_hop_objects::NextHopObjects::default();
    let begun = cpu_seconds();
    for (change, message) in messages.iter().enumerate() {
        let news = crate::kernel::netlink::route_news::<Prefix>(message, &objects).unwrap();
        let hop = |&(_, gateway, weight): &(u32, u32, u16)| Hop { interface: InterfaceId(1), gateway, weight };
        let hops: Vec<Hop> = news.hops.iter().map(hop).collect();
        let route = news.is_there.then_some(Leads {
            protocol: news.protocol,
            hops: &hops,
            object: hops.first().map(|hop| hop.gateway),
        });
        if rib.change_kernel(Table::Outside, news.prefix, news.metric, route) {
            fib.refresh(&rib, &settings, Table::Outside, news.prefix).unwrap();
        }
        if change % 1_000 == 0 {
            fib.publish();
        }
    }
    let changed = f64::from(changes) / (cpu_seconds() - begun);
    // One of them leads to another router.
    let named = rib.naming(7);
    let begun = cpu_seconds();
    let moved = [Hop { interface: InterfaceId(1), gateway: 999, weight: 1 }];
    for &(table, prefix) in &named {
        assert!(rib.change_kernel(table, prefix, 20, Some(Leads { protocol: 186, hops: &moved, object: Some(7) })));
        fib.refresh(&rib, &settings, table, prefix).unwrap();
    }
    fib.publish();
    println!("an object with {} routes followed in {:.0} ms", named.len(), (cpu_seconds() - begun) * 1e3);
    // Entries of the collection: prefix and route in a B-tree that is two thirds full at least, and
    // prefix and target in a hash map that is seven sixteenths full at least. By object: tables and
    // prefixes in a B-tree that is half full at least.
    let tables = fib.bytes();
    let rib_bytes = rib.kernel_len() * (size_of::<Prefix>() + 12) * 3 / 2;
    let rib_bytes = rib_bytes + rib.kernel_len() * size_of::<(Table, Prefix)>() * 2;
    let map_bytes = fib.len() * (size_of::<(Prefix, Target)>() + 1) * 16 / 7;
    println!(
        "{} routes: tables of the workers {} MB, collection {} MB, installed {} MB; {added:.0} added/s, {changed:.0} changed/s",
        rib.kernel_len(),
        tables / 1_000_000,
        rib_bytes / 1_000_000,
        map_bytes / 1_000_000,
    );
    assert!(tables + rib_bytes + map_bytes < 200_000_000);
    assert!(fib.agrees(&rib, &settings));
}
