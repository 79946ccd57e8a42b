use std::collections::HashSet;

use super::*;

fn hash() -> KeyedHash {
    KeyedHash::new([7, 1, 2, 3])
}

const SOURCE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const DESTINATION: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

#[test]
fn one_worker_gives_every_value_once_before_it_repeats() {
    let mut source = IdentificationSource::new(WorkerId(0), 1, hash());
    let values: HashSet<u16> = (0..65_536).map(|_| source.next(SOURCE, DESTINATION, 17)).collect();
    assert_eq!(values.len(), 65_536);
}

#[test]
fn workers_that_share_an_address_never_collide() {
    for workers in [2_usize, 3, 5, 16, 64] {
        let mut owners: Vec<Option<usize>> = vec![None; 65_536];
        for worker in 0..workers {
            let mut source = IdentificationSource::new(WorkerId(worker as u8), workers, hash());
            for _ in 0..2_000 {
                let value = usize::from(source.next(SOURCE, DESTINATION, 17));
                assert!(owners[value].is_none_or(|owner| owner == worker), "{value} of {workers}");
                owners[value] = Some(worker);
            }
        }
    }
}

#[test]
fn values_repeat_only_after_all_of_the_worker_were_used() {
    let mut source = IdentificationSource::new(WorkerId(2), 4, hash());
    let values: HashSet<u16> = (0..16_384).map(|_| source.next(SOURCE, DESTINATION, 17)).collect();
    assert_eq!(values.len(), 16_384);
    assert!(values.iter().all(|value| value % 4 == 2));
}

#[test]
fn counters_of_different_destinations_begin_at_unrelated_values() {
    let mut source = IdentificationSource::new(WorkerId(0), 1, hash());
    let firsts: HashSet<u16> =
        (0..100).map(|n| source.next(SOURCE, Ipv4Addr::from_bits(0x0a00_0000 + n), 17)).collect();
    assert!(firsts.len() > 90);
}

#[test]
fn a_node_cannot_guess_the_identifications_of_another() {
    let mut source = Identifications6::new(KeyedHash::new([1, 2, 3, 4]), true);
    let mut next = |realm, node| {
        let next = source.next(RealmId(realm), node);
        assert_eq!(source.next(RealmId(realm), node), next);
        source.advance(RealmId(realm), node);
        next
    };
    let own: Vec<u32> = (0..1_000).map(|_| next(0, 7)).collect();
    let unique: HashSet<u32> = own.iter().copied().collect();
    assert_eq!(unique.len(), own.len(), "no two packets to a node have the same");
    // Neither nodes nor realms follow each other.
    for (realm, node) in (8..1_000).map(|node| (0, node)).chain((1..1_000).map(|realm| (realm, 7))) {
        let distance = next(realm, node).wrapping_sub(own[999]).cast_signed().unsigned_abs();
        assert!(distance > 1_000, "{realm} {node}: {distance}");
    }
}
