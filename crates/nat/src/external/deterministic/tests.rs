use crate::types::HostNumber;
use proptest::prelude::*;

use super::*;

fn prefix(address: [u8; 4], length: u8) -> Prefix {
    Prefix::new(address.into(), length).expect("a prefix length")
}

/// RFC 7422 §2, with ports below 1024 left out.
#[test]
fn the_example_of_the_rfc() {
    let formula = Formula::new(&[prefix([198, 51, 100, 0], 28)], 1, 2, 1_024, 65_535).unwrap();
    assert_eq!((formula.subscribers(), formula.slices(), formula.slice_ports()), (14, 14, 4_032));
    let ports =
        |last| formula.slice_of(Ipv4Addr::new(198, 51, 100, last).into()).map(|slice| (slice.first, slice.last));
    assert_eq!(ports(1), Some((1_024, 5_055)));
    assert_eq!(ports(2), Some((5_056, 9_087)));
    assert_eq!(ports(14), Some((53_440, 57_471)));
    assert_eq!(formula.dynamic(), Some((57_472, 65_535)));
    assert_eq!((ports(0), ports(15)), (None, None));
    assert_eq!(formula.owner_of(0, 57_472), Owner::Dynamic);
    assert_eq!(formula.owner_of(0, 1_023), Owner::Outside);
    assert_eq!(formula.owner_of(0, 5_055), Owner::Subscriber([198, 51, 100, 1].into()));
}

#[test]
fn addresses_without_a_slice_have_a_reason() {
    let prefixes =
        [prefix([10, 0, 0, 0], 30), prefix([10, 0, 0, 4], 31), prefix([10, 0, 0, 6], 32), prefix([10, 0, 0, 8], 29)];
    let formula = Formula::new(&prefixes, 1, 0, 1_024, 65_535).unwrap();
    for last in 0..=255_u32 {
        let inside = HostNumber(0x0a00_0000 + last);
        assert_eq!(formula.leaves_out(inside), [0, 3, 8, 15].contains(&last), "10.0.0.{last}");
        assert!(!formula.leaves_out(inside) || formula.slice_of(inside).is_none(), "10.0.0.{last}");
    }
    assert_eq!(formula.why_no_slice(HostNumber(0x0a00_0003)), Verdict::BoundaryAddress);
    assert_eq!(formula.why_no_slice(HostNumber(0x0a00_0007)), Verdict::SourceNotSubscriber);
    assert!(!formula.leaves_out(HostNumber(u32::MAX)) && !formula.leaves_out(HostNumber(0)));
}

#[test]
fn single_hosts_and_pairs_have_no_boundaries() {
    let formula = Formula::new(&[prefix([10, 0, 0, 1], 32), prefix([10, 0, 0, 2], 31)], 1, 0, 1_024, 65_535).unwrap();
    assert_eq!((formula.subscribers(), formula.slice_ports()), (3, 21_504));
    assert_eq!(formula.dynamic(), None);
    assert_eq!(formula.owner_of(0, 65_535), Owner::Subscriber([10, 0, 0, 3].into()));
}

#[test]
fn an_impossible_formula_is_reported_with_its_numbers() {
    let net = prefix([10, 0, 0, 0], 8);
    let many = Formula::new(&[net], 4, 1, 1_024, 65_535).unwrap_err();
    let told = FormulaError::TooMany {
        subscribers: 16_777_214,
        addresses: 4,
        slices: 4_194_304,
        dynamic_slices: 1,
        ports: 64_512,
    };
    assert_eq!(many, told);
    assert_eq!(Formula::new(&[], 4, 1, 1_024, 65_535), Err(FormulaError::Nobody { subscribers: 0, addresses: 4 }));
    let inner = prefix([10, 1, 0, 0], 16);
    assert_eq!(Formula::new(&[inner, net], 4, 1, 1_024, 65_535), Err(FormulaError::Overlap(inner, net)));
}

proptest! {
    #[test]
    fn both_directions_agree(
        lengths in prop::collection::vec(24_u8..=32, 1..6), addresses in 1_usize..40, dynamic in 0_u16..20,
        port_min in 1_u16..2_000, port_max in 40_000_u16..,
    ) {
        let prefixes: Vec<Prefix> =
            lengths.iter().zip(0..).map(|(length, third)| prefix([10, 0, 10 - third, 0], *length)).collect();
        let formula = match Formula::new(&prefixes, addresses, dynamic, port_min, port_max) {
            Ok(formula) => formula,
            Err(error) => {
                let is_too_many = matches!(error, FormulaError::TooMany { .. });
                prop_assert!(is_too_many);
                return Ok(());
            }
        };
        let mut count = 0;
        let mut last = None;
        for prefix in &prefixes {
            for inside in prefix.address().to_bits()..=prefix.last().to_bits() {
                let Some(slice) = formula.slice_of(HostNumber(inside)) else {
                    let is_boundary = inside == prefix.address().to_bits() || inside == prefix.last().to_bits();
                    prop_assert!(is_boundary && prefix.length() < 31);
                    continue;
                };
                count += 1;
                prop_assert!((slice.address as usize) < addresses && slice.first >= port_min && slice.last <= port_max);
                prop_assert_eq!(u32::from(slice.last - slice.first) + 1, formula.slice_ports());
                for port in [slice.first, slice.first.midpoint(slice.last), slice.last] {
                    prop_assert_eq!(formula.owner_of(slice.address, port), Owner::Subscriber(inside.into()));
                }
                prop_assert!(last < Some((slice.address, slice.first)));
                last = Some((slice.address, slice.last));
            }
        }
        prop_assert_eq!(count, formula.subscribers());
        if let Some((first, end)) = formula.dynamic() {
            prop_assert_eq!(formula.owner_of(0, first), Owner::Dynamic);
            prop_assert_ne!(formula.owner_of(0, first - 1), Owner::Dynamic);
            prop_assert_eq!(end, port_max);
            prop_assert!(u32::from(end - first) + 1 >= u32::from(dynamic) * formula.slice_ports());
        }
    }
}

#[test]
fn every_order_maps_subscribers_and_ports_both_ways() {
    // covers: 7422-1, 7422-10
    for (length, addresses, dynamic) in [(28, 1, 2), (24, 3, 1), (22, 7, 0), (20, 16, 4)] {
        let prefixes = [prefix([10, 0, 0, 0], length), prefix([10, 9, 0, 8], 31)];
        for algorithm in [Algorithm::Sequential, Algorithm::Spread, Algorithm::Keyed(7), Algorithm::Keyed(8)] {
            let formula = Formula::new(&prefixes, addresses, dynamic, 1_024, 65_535).unwrap().ordered(algorithm);
            let insides = prefixes.iter().flat_map(|prefix| prefix.address().to_bits()..=prefix.last().to_bits());
            let mut taken = std::collections::HashSet::new();
            for inside in insides {
                let Some(slice) = formula.slice_of(HostNumber(inside)) else { continue };
                assert!((slice.address as usize) < addresses, "{algorithm:?}");
                assert!(taken.insert((slice.address, slice.slice)), "{algorithm:?}: a slice has two owners");
                for port in slice.first..=slice.last {
                    let owner = formula.owner_of(slice.address, port);
                    assert_eq!(owner, Owner::Subscriber(inside.into()), "{algorithm:?}");
                }
            }
            assert_eq!(taken.len() as u64, formula.subscribers(), "{algorithm:?}");
        }
    }
}

#[test]
fn neighbours_are_together_apart_or_anywhere_as_the_order_says() {
    // covers: 7422-10
    let prefixes = [prefix([10, 0, 0, 0], 24)];
    let addresses_of = |algorithm| {
        let formula = Formula::new(&prefixes, 4, 0, 1_024, 65_535).unwrap().ordered(algorithm);
        (1..255_u32).map(|n| formula.slice_of(HostNumber(0x0a00_0000 + n)).unwrap().address).collect::<Vec<_>>()
    };
    assert_eq!(addresses_of(Algorithm::Sequential)[..3], [0, 0, 0]);
    assert_eq!(addresses_of(Algorithm::Spread)[..5], [0, 1, 2, 3, 0]);
    let (one, other) = (addresses_of(Algorithm::Keyed(1)), addresses_of(Algorithm::Keyed(2)));
    assert_ne!(one, other, "each key has an order of its own");
    assert_eq!(one, addresses_of(Algorithm::Keyed(1)), "which is always the same");
}
