//! Both directions, offline, and what can not be told.

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
        let range = &of_inside.own_ports[0];
        for port in [range.first_port, range.last_port] {
            let [of_port] = &find(&settings, OUTSIDE, Some(port)).unwrap()[..] else { panic!("one answer") };
            assert_eq!((of_port.place, of_port.holder), (Place::External, Some(inside)));
            assert_eq!(of_port.own_ports, of_inside.own_ports);
        }
    }
    assert_eq!(find(&settings, OUTSIDE, None).unwrap().len(), 14, "all subscribers of the address");
}

#[test]
fn what_nobody_has_is_told_as_such() {
    let settings = deterministic();
    let detail = |address: [u8; 4], port| find(&settings, address.into(), port).unwrap()[0].detail.clone();
    assert!(detail([192, 0, 2, 1], Some(60_000)).contains("57472-65535, which are leased in blocks"));
    assert!(detail([192, 0, 2, 1], Some(80)).contains("never gives out port 80"));
    assert!(detail([198, 51, 100, 0], None).contains("network or broadcast"));
    assert!(detail([203, 0, 113, 1], None).contains("no pool's external address"));
}

#[test]
fn pools_without_a_formula_are_for_the_running_instance() {
    let told = find(&settings(Allocation::Ports), OUTSIDE, Some(5_000)).unwrap_err().to_string();
    let wanted = "find \"192.0.2.1:5000\": pool \"a\" gives its ports out by no formula (allocation = \"ports\"); ask the running \
                  instance, without --config";
    assert_eq!(told, wanted);
}
