use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;
use crate::settings::Pool;
use crate::types::Prefix;

fn forward(
    protocol: Protocol,
    external: [u8; 4],
    ports: (u16, u16),
    inside: impl Into<InsideHost>,
    inside_port: u16,
) -> Forward {
    Forward {
        realm: RealmId::default(),
        protocol,
        external: external.into(),
        ports,
        inside: inside.into(),
        inside_port,
        admission: Admission::Anyone,
    }
}

fn key(protocol: Protocol, address: [u8; 4], port: u16) -> StaticKey {
    StaticKey { realm: RealmId::default(), protocol, host: host(address), port }
}

fn host(address: [u8; 4]) -> InsideHost {
    Ipv4Addr::from(address).into()
}

/// Of all families; two behind one B4, two of one prefix.
fn host_of_family(number: u32) -> InsideHost {
    let address = |low: u16| Ipv6Addr::new(0x2001, 0xdb8, 0xc, 0x100, 0, 0, 0, low);
    match number {
        0..3 => host([10, 0, 0, number as u8]),
        3 => InsideHost::Ipv6(address(1)),
        4 => InsideHost::Ipv6(address(2)),
        _ => InsideHost::BehindB4 { b4: address(1), inner: Ipv4Addr::new(192, 168, 1, number as u8) },
    }
}

fn one_to_one(addresses: &[[u8; 4]], subscribers: &[([u8; 4], u8)]) -> Pool {
    Pool {
        addresses: addresses.iter().map(|address| (*address).into()).collect(),
        subscribers: subscribers
            .iter()
            .map(|(address, length)| Prefix::new((*address).into(), *length).unwrap())
            .collect(),
        one_to_one: true,
        ..Pool::default()
    }
}

#[test]
fn without_static_mappings_no_host_is_concerned() {
    let static_mappings = StaticMappingTable::new(&Settings::default(), |_| false);
    assert!(static_mappings.is_empty());
    assert!(!static_mappings.may_concern(&host([0, 0, 0, 7])));
    assert_eq!(static_mappings.by_external(7, Protocol::Udp, 7), None);
    assert_eq!(static_mappings.by_internal(&key(Protocol::Udp, [10, 0, 0, 1], 7)), None);
    assert_eq!(static_mappings.home(RealmId::default(), &host([0, 0, 0, 7])), None);
}

#[test]
fn a_range_of_ports_is_forwarded_port_by_port() {
    let forwards = vec![
        forward(Protocol::Tcp, [203, 0, 113, 1], (8_000, 8_010), host([100, 64, 0, 9]), 80),
        forward(Protocol::Tcp, [203, 0, 113, 1], (65_535, 65_535), host([100, 64, 0, 9]), 443),
    ];
    let static_mappings = StaticMappingTable::new(&Settings { forwards, ..Settings::default() }, |_| false);
    let external = u32::from_be_bytes([203, 0, 113, 1]);
    let inside = |port| static_mappings.by_external(external, Protocol::Tcp, port).map(|inside| inside.port);
    assert_eq!([7_999, 8_000, 8_010, 8_011, 65_535].map(inside), [None, Some(80), Some(90), None, Some(443)]);
    assert_eq!(static_mappings.by_external(external, Protocol::Udp, 8_000), None, "of its protocol only");
    assert_eq!(static_mappings.by_external(external + 1, Protocol::Tcp, 8_000), None);
    let outside = |port| {
        static_mappings.by_internal(&key(Protocol::Tcp, [100, 64, 0, 9], port)).map(|(external, _)| external.port)
    };
    assert_eq!([79, 80, 90, 91, 443].map(outside), [None, Some(8_000), Some(8_010), None, Some(65_535)]);
    assert_eq!(static_mappings.home(RealmId::default(), &host([100, 64, 0, 9])), Some(external));
    assert!(static_mappings.is_forwarded(external, Protocol::Tcp, 8_005));
    let other_realm = StaticKey { realm: RealmId(3), ..key(Protocol::Tcp, [100, 64, 0, 9], 80) };
    assert_eq!(static_mappings.by_internal(&other_realm), None);
}

#[test]
fn a_one_to_one_pool_pairs_addresses_in_order_and_keeps_ports() {
    let pool = one_to_one(
        &[[203, 0, 113, 4], [203, 0, 113, 5], [198, 51, 100, 9], [198, 51, 100, 10], [192, 0, 2, 1]],
        &[([10, 0, 0, 4], 31), ([10, 9, 0, 0], 31), ([10, 5, 5, 5], 32)],
    );
    let pairs = [
        ([203, 0, 113, 4], [10, 0, 0, 4]),
        ([203, 0, 113, 5], [10, 0, 0, 5]),
        ([198, 51, 100, 9], [10, 9, 0, 0]),
        ([198, 51, 100, 10], [10, 9, 0, 1]),
        ([192, 0, 2, 1], [10, 5, 5, 5]),
    ];
    let static_mappings = StaticMappingTable::new(&Settings { pools: vec![pool], ..Settings::default() }, |_| false);
    for (external, inside) in pairs {
        for protocol in Protocol::ALL {
            for port in [0, 1, 80, 65_535] {
                let found = static_mappings.by_external(u32::from_be_bytes(external), protocol, port).unwrap();
                assert_eq!(found.key(protocol), key(protocol, inside, port));
                assert_eq!(found.kind, Kind::OneToOne);
                let back = static_mappings.by_internal(&key(protocol, inside, port)).unwrap();
                assert_eq!(back, (Endpoint::new(external.into(), port), Kind::OneToOne));
            }
        }
        assert_eq!(static_mappings.home(RealmId::default(), &host(inside)), Some(u32::from_be_bytes(external)));
    }
    assert_eq!(static_mappings.by_internal(&key(Protocol::Udp, [10, 0, 0, 6], 1)), None);
    assert_eq!(static_mappings.by_external(u32::from_be_bytes([203, 0, 113, 6]), Protocol::Udp, 1), None);
}

proptest! {
    #[test]
    fn finds_what_a_walk_through_the_list_finds(
        rows in prop::collection::vec((0_u32..4, 0_usize..3, 0_u16..2_000, 0_u16..50, 0_u32..7), 0..60),
        questions in prop::collection::vec((0_u32..6, 0_usize..3, 0_u16..2_100), 1..200),
    ) {
        let mut forwards: Vec<Forward> = Vec::new();
        for (position, (external, protocol, first, more, inside)) in rows.into_iter().enumerate() {
            let protocol = Protocol::ALL[protocol];
            // Separate internal ports, as the configuration check demands.
            let new = forward(protocol, [203, 0, 113, external as u8], (first, first + more), host_of_family(inside),
                position as u16 * 100);
            let overlaps = |other: &Forward| {
                (other.protocol, other.external) == (new.protocol, new.external)
                    && other.ports.0 <= new.ports.1 && new.ports.0 <= other.ports.1
            };
            if !forwards.iter().any(overlaps) {
                forwards.push(new);
            }
        }
        let settings = Settings { forwards: forwards.clone(), ..Settings::default() };
        let static_mappings = StaticMappingTable::new(&settings, |_| false);
        for (external, protocol, port) in questions {
            let protocol = Protocol::ALL[protocol];
            let external = u32::from_be_bytes([203, 0, 113, external as u8]);
            let expected = forwards.iter().find(|forward| {
                (forward.protocol, forward.external.to_bits()) == (protocol, external)
                    && (forward.ports.0..=forward.ports.1).contains(&port)
            });
            let expected = expected.map(|forward| (forward.inside, forward.inside_port + port - forward.ports.0));
            let found = static_mappings.by_external(external, protocol, port);
            prop_assert_eq!(found.map(|inside| (inside.host, inside.port)), expected);
            if let Some(inside) = found {
                prop_assert!(static_mappings.may_concern(&inside.host));
                let back = static_mappings.by_internal(&inside.key(protocol)).map(|(external, _)| external);
                prop_assert_eq!(back, Some(Endpoint::new(external.into(), port)));
                // All hosts of an IPv6 prefix have one.
                let home = static_mappings.home(inside.realm, &inside.host);
                prop_assert!(forwards.iter().any(|forward| Some(forward.external.to_bits()) == home));
            }
        }
    }
}
