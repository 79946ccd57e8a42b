//! Overlaps against a comparison of all pairs.

use core::net::Ipv4Addr;

use nat::types::RealmId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn prefix() -> impl Strategy<Value = Prefix> {
    (prop_oneof![Just(0_u8), Just(8), Just(24), Just(31), Just(32)], 0..4_u32, 0..4_u32)
        .prop_map(|(length, b, c)| Prefix::new(Ipv4Addr::from_bits(10 << 24 | b << 8 | c), length).expect("a length"))
}

fn rule() -> impl Strategy<Value = Match> {
    let ports = prop_oneof![
        2 => Just(PortRange::ALL),
        1 => (0..9_u16, 0..9_u16).prop_map(|(first, more)| PortRange { first, last: first + more }),
    ];
    let protocol = prop_oneof![Just(None), Just(Some(6)), Just(Some(17))];
    let realm = prop_oneof![Just(None), Just(Some(RealmId(1)))];
    (realm, protocol, prefix(), prefix(), ports).prop_map(
        |(realm, protocol, source, destination, destination_ports)| Match {
            realm,
            protocol,
            source,
            destination,
            destination_ports,
            ..Match::ALL
        },
    )
}

proptest! {
    #[test]
    fn each_pair_that_partly_overlaps_is_found_once(rules in vec((rule(), 0..3_u8), 0..80)) {
        let matches: Vec<Match> = rules.iter().map(|(rule, _)| *rule).collect();
        let found = find(&matches, |one, other| rules[one].1 != rules[other].1, u64::MAX);
        let mut expected = Vec::new();
        for later in 0..rules.len() {
            for earlier in 0..later {
                let ((before, one), (after, other)) = (&rules[earlier], &rules[later]);
                if one != other && before.overlaps(after) && !before.covers(after) && !after.covers(before) {
                    expected.push((later, earlier));
                }
            }
        }
        prop_assert_eq!(found.count, expected.len());
        expected.truncate(REPORTED_MAX);
        prop_assert_eq!(found.first, expected);
        prop_assert!(!found.is_partial);
    }
}

#[test]
fn what_is_too_much_to_compare_is_said() {
    let rules: Vec<Match> = (0..300).map(|port| Match { source_ports: PortRange::one(port), ..Match::ALL }).collect();
    let found = find(&rules, |_, _| true, 1_000);
    assert!(found.is_partial && found.count == 0);
    assert!(!find(&rules, |_, _| true, 100_000).is_partial);
}
