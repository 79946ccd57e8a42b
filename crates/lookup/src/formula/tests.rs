//! Questions offline, in both directions.

use nat::blocks::BlockSize;
use nat::settings::Blocks;
use nat::types::Prefix;

use super::*;

fn settings(allocation: Allocation) -> Settings {
    Settings {
        pools: vec![Pool {
            name: "a".to_owned(),
            addresses: vec![[192, 0, 2, 1].into()],
            subscribers: vec![Prefix::new([198, 51, 100, 0].into(), 28).unwrap()],
            allocation,
            ..Pool::default()
        }],
        ..Settings::default()
    }
}

fn deterministic() -> Settings {
    let overflow = Blocks { size: BlockSize::MIN, per_subscriber_max: 1, idle: nat::Duration::ZERO };
    settings(Allocation::Deterministic { dynamic_slices: 2, overflow })
}

/// All transports and VRFs.
fn find(settings: &Settings, address: Ipv4Addr, port: Option<u16>) -> Result<Vec<FindAnswer>, NoAnswer> {
    super::find(settings, &Asked { address, host: None, port, protocol: None, vrf: None })
}

const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// RFC 7422 §2, SHOULD: an operator can ask for both.
#[test]
fn a_port_and_a_subscriber_are_found_without_an_instance() {
    // covers: 7422-2
    let settings = deterministic();
    for inside in 1..=14 {
        let inside = Ipv4Addr::new(198, 51, 100, inside);
        let [of_inside] = &find(&settings, inside, None).unwrap()[..] else { panic!("one answer") };
        assert_eq!(
            (of_inside.place, of_inside.holder, of_inside.external_address),
            (Place::Internal, Some(inside), Some(OUTSIDE))
        );
        let range = &of_inside.subscriber_ports[0];
        for port in [range.first_port, range.last_port] {
            let [of_port] = &find(&settings, OUTSIDE, Some(port)).unwrap()[..] else { panic!("one answer") };
            assert_eq!((of_port.place, of_port.holder), (Place::External, Some(inside)));
            assert_eq!(of_port.subscriber_ports, of_inside.subscriber_ports);
        }
    }
    assert_eq!(find(&settings, OUTSIDE, None).unwrap().len(), 14, "all subscribers of the address");
}

#[test]
fn ports_without_a_holder_are_reported() {
    let settings = deterministic();
    let detail = |address: [u8; 4], port| find(&settings, address.into(), port).unwrap()[0].detail.clone();
    assert!(detail([192, 0, 2, 1], Some(60_000)).contains("57472-65535, which are leased in blocks"));
    assert!(detail([192, 0, 2, 1], Some(80)).contains("never allocates port 80"));
    assert!(detail([198, 51, 100, 0], None).contains("network or broadcast"));
    assert!(detail([203, 0, 113, 1], None).contains("neither an external address of a pool"));
}

#[test]
fn a_subscriber_of_another_pool_has_no_slice() {
    let mut settings = deterministic();
    let inside = Ipv4Addr::new(198, 51, 100, 10);
    let port = find(&settings, inside, None).unwrap()[0].subscriber_ports[0].first_port;
    settings.pools.push(Pool {
        name: "p".to_owned(),
        addresses: vec![[192, 0, 2, 2].into()],
        subscribers: vec![Prefix::new([198, 51, 100, 8].into(), 30).unwrap()],
        ..Pool::default()
    });
    let [answer] = &find(&settings, OUTSIDE, Some(port)).unwrap()[..] else { panic!("one answer") };
    assert_eq!(answer.holder, None);
    assert!(answer.detail.contains("its subscriber 198.51.100.10 is served by pool \"p\""), "{answer:?}");
    assert_eq!(find(&settings, OUTSIDE, None).unwrap().len(), 10, "four of fourteen are served elsewhere");
}

#[test]
fn pools_without_a_formula_are_for_the_running_instance() {
    let error = find(&settings(Allocation::Ports), OUTSIDE, Some(5_000)).unwrap_err().to_string();
    let wanted = "find \"192.0.2.1:5000\": pool \"a\" has no formula (allocation = \"ports\"); ask the running \
                  instance, without --config";
    assert_eq!(error, wanted);
}

#[test]
fn static_mappings_are_found_in_the_configuration() {
    let mut settings = settings(Allocation::Ports);
    settings.forwards.push(nat::settings::Forward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external: OUTSIDE,
        ports: (8_000, 8_010),
        inside: Ipv4Addr::new(198, 51, 100, 5).into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    });
    settings.pools.push(Pool {
        name: "whole".to_owned(),
        addresses: vec![[192, 0, 2, 9].into()],
        subscribers: vec![Prefix::new([198, 51, 100, 99].into(), 32).unwrap()],
        one_to_one: true,
        ..Pool::default()
    });
    let found = |address: [u8; 4], port| {
        let answers = find(&settings, address.into(), port).unwrap();
        assert_eq!(answers.len(), 1, "{answers:?}");
        (answers[0].place, answers[0].holder.unwrap(), answers[0].external_address.unwrap())
    };
    let (server, whole) = (Ipv4Addr::new(198, 51, 100, 5), Ipv4Addr::new(192, 0, 2, 9));
    assert_eq!(found([192, 0, 2, 1], Some(8_003)), (Place::External, server, OUTSIDE));
    assert_eq!(found([198, 51, 100, 5], Some(83)), (Place::Internal, server, OUTSIDE));
    assert_eq!(found([192, 0, 2, 9], None), (Place::External, [198, 51, 100, 99].into(), whole));
    assert_eq!(found([198, 51, 100, 99], Some(1_234)), (Place::Internal, [198, 51, 100, 99].into(), whole));
    assert!(find(&settings, OUTSIDE, Some(9_000)).is_err(), "only an instance knows the holders of other ports");
}

#[test]
fn a_formula_is_found_although_another_vrf_has_no_formula() {
    let mut settings = deterministic();
    settings.realm_names = vec!["default".to_owned(), "blue".to_owned()];
    settings.pools[0].realms = vec![RealmId(1)];
    settings.pools.push(Pool {
        name: "all".to_owned(),
        addresses: vec![[192, 0, 2, 2].into()],
        subscribers: vec![Prefix::new([0, 0, 0, 0].into(), 0).unwrap()],
        ..Pool::default()
    });
    let answers = find(&settings, [198, 51, 100, 3].into(), None).unwrap();
    assert_eq!(answers.len(), 1);
    assert_eq!((answers[0].vrf.as_deref(), answers[0].external_address), (Some("blue"), Some(OUTSIDE)));
}

#[test]
fn forwards_are_found_by_their_inside_address() {
    let inside = Ipv4Addr::new(198, 51, 100, 5);
    let forward = nat::settings::Forward {
        realm: RealmId::default(),
        protocol: Protocol::Tcp,
        external: OUTSIDE,
        ports: (900, 910),
        inside: inside.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    };
    let target = |address: Ipv4Addr| Target { address: address.to_bits(), port: Some(53), weight: 2 };
    let several = nat::settings::BalancedForward {
        realm: RealmId::default(),
        protocol: Protocol::Udp,
        external: OUTSIDE,
        ports: (53, 53),
        targets: vec![target(inside), target([198, 51, 100, 6].into())],
        admission: nat::settings::Admission::Anyone,
        is_sticky: false,
    };
    for (mut settings, with_slice) in [(settings(Allocation::Ports), false), (deterministic(), true)] {
        settings.forwards.push(forward);
        settings.balanced_forwards.push(several.clone());
        let answers = find(&settings, inside, None).unwrap();
        let details: Vec<&str> = answers.iter().map(|answer| answer.detail.as_str()).collect();
        assert_eq!(
            details[..2],
            [
                "tcp 192.0.2.1:900-910 is statically forwarded to 198.51.100.5:80-90",
                "udp 192.0.2.1:53 leads to one of 2 targets, of which 198.51.100.5:53 is one of weight 2"
            ]
        );
        assert_eq!(answers.len(), if with_slice { 3 } else { 2 });
        assert!(answers.iter().all(|answer| answer.holder == Some(inside) && answer.place == Place::Internal));
    }
}

#[test]
fn forwards_are_found_by_their_external_address() {
    let inside = Ipv4Addr::new(198, 51, 100, 5);
    let forward = |protocol, ports| nat::settings::Forward {
        realm: RealmId::default(),
        protocol,
        external: OUTSIDE,
        ports,
        inside: inside.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    };
    let target = |last, port| Target { address: Ipv4Addr::new(198, 51, 100, last).to_bits(), port, weight: 1 };
    let several = nat::settings::BalancedForward {
        realm: RealmId::default(),
        protocol: Protocol::Udp,
        external: OUTSIDE,
        ports: (53, 54),
        targets: vec![target(6, Some(1_053)), target(7, None)],
        admission: nat::settings::Admission::Anyone,
        is_sticky: false,
    };
    for (mut settings, with_slices) in [(settings(Allocation::Ports), false), (deterministic(), true)] {
        settings.forwards.extend([forward(Protocol::Tcp, (900, 910)), forward(Protocol::Udp, (900, 900))]);
        settings.balanced_forwards.push(several.clone());
        let answers = find(&settings, OUTSIDE, None).unwrap();
        assert!(answers.iter().all(|it| (it.place, it.external_address) == (Place::External, Some(OUTSIDE))));
        assert_eq!((answers[0].holder, answers[1].holder, answers[2].holder), (Some(inside), Some(inside), None));
        let details: Vec<&str> = answers.iter().map(|answer| answer.detail.as_str()).collect();
        let of_forwards = [
            "tcp 192.0.2.1:900-910 is statically forwarded to 198.51.100.5:80-90",
            "udp 192.0.2.1:900 is statically forwarded to 198.51.100.5:80",
            "udp 192.0.2.1:53-54 leads to one of 198.51.100.6:1053-1054 weight 1, 198.51.100.7:53-54 weight 1",
        ];
        assert_eq!(details[..3], of_forwards);
        if with_slices {
            assert_eq!(details.len(), 3 + 14, "all subscribers of the address");
        } else {
            let unknown =
                "only the running instance knows the holders of other ports of 192.0.2.1: pool \"a\" has no formula";
            assert_eq!(details[3..], [unknown]);
        }
        let asked = Asked { address: OUTSIDE, host: None, port: None, protocol: Some(Protocol::Udp), vrf: None };
        let udp = super::find(&settings, &asked).unwrap();
        assert_eq!(udp[..2].iter().map(|answer| answer.detail.as_str()).collect::<Vec<_>>(), of_forwards[1..]);
    }
}

#[test]
fn only_the_given_transport_and_vrf_are_answered() {
    let server = Ipv4Addr::new(198, 51, 100, 5);
    let mut settings = settings(Allocation::Ports);
    settings.realm_names = vec!["default".to_owned(), "blue".to_owned()];
    let forward = |realm: u16, port: u16| nat::settings::Forward {
        realm: RealmId(realm),
        protocol: Protocol::Tcp,
        external: OUTSIDE,
        ports: (port, port),
        inside: server.into(),
        inside_port: 80,
        admission: nat::settings::Admission::Anyone,
    };
    settings.forwards = vec![forward(0, 80), forward(1, 81)];
    settings.balanced_forwards.push(nat::settings::BalancedForward {
        realm: RealmId(1),
        protocol: Protocol::Udp,
        external: OUTSIDE,
        ports: (53, 53),
        targets: vec![Target { address: server.to_bits(), port: None, weight: 1 }],
        admission: nat::settings::Admission::Anyone,
        is_sticky: false,
    });
    let answers_of = |address, port, protocol, vrf| {
        let answers = super::find(&settings, &Asked { address, host: None, port, protocol, vrf });
        answers.map(|answers| answers.into_iter().map(|answer| (answer.vrf, answer.detail)).collect::<Vec<_>>())
    };
    let (tcp, udp) = (Some(Protocol::Tcp), Some(Protocol::Udp));
    let of = |vrf: &str, detail: &str| vec![(Some(vrf.to_owned()), detail.to_owned())];
    let first = "tcp 192.0.2.1:80 is statically forwarded to 198.51.100.5:80";
    let second = "tcp 192.0.2.1:81 is statically forwarded to 198.51.100.5:80";
    assert_eq!(answers_of(OUTSIDE, Some(80), tcp, None).unwrap(), of("default", first));
    let nobody = vec![(None, "pool \"a\" never allocates port 80".to_owned())];
    assert_eq!(answers_of(OUTSIDE, Some(80), udp, None).unwrap(), nobody);
    // Only an instance knows dynamic ports and identifiers.
    for (port, protocol) in [(9_000, udp), (80, Some(Protocol::Icmp))] {
        assert!(matches!(answers_of(OUTSIDE, Some(port), protocol, None), Err(NoAnswer::NotDeterministic { .. })));
    }
    assert_eq!(answers_of(OUTSIDE, Some(80), tcp, Some("default")).unwrap(), of("default", first));
    let nobody = "no subscriber of VRF \"blue\" holds 192.0.2.1:80 by this configuration";
    assert_eq!(answers_of(OUTSIDE, Some(80), tcp, Some("blue")).unwrap(), vec![(None, nobody.to_owned())]);
    assert_eq!(answers_of(server, Some(80), None, Some("default")).unwrap(), of("default", first));
    assert_eq!(answers_of(server, Some(80), None, Some("blue")).unwrap(), of("blue", second));
    assert!(answers_of(server, Some(80), udp, Some("blue")).is_err());
    let several = "udp 192.0.2.1:53 leads to one of 198.51.100.5:53 weight 1";
    assert_eq!(answers_of(server, Some(53), None, Some("blue")).unwrap(), of("blue", several));
    assert!(answers_of(server, Some(53), None, Some("default")).is_err());
    assert_eq!(answers_of(server, None, None, Some("blue")).unwrap().len(), 2, "a forward and a target");
    assert_eq!(answers_of(server, None, None, Some("default")).unwrap(), of("default", first));
    let unknown = answers_of(OUTSIDE, Some(80), None, Some("nonesuch")).unwrap_err().to_string();
    assert_eq!(unknown, "`--vrf nonesuch`: no such VRF in this configuration; use one of: default, blue");
    let stranger = answers_of([10, 9, 9, 9].into(), None, None, Some("blue")).unwrap();
    assert_eq!(stranger[0].1, "10.9.9.9 is neither an external address of a pool nor a subscriber of VRF \"blue\"");
}
