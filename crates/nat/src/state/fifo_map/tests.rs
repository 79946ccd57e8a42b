use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    RemoveOldest,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u16..24).prop_map(Step::Insert),
        2 => (0_u16..24).prop_map(Step::Remove),
        1 => Just(Step::RemoveOldest),
    ]
}

proptest! {
    /// Against a vector in insertion order, with hash collisions.
    #[test]
    fn behaves_like_a_list_of_pairs(capacity in 0_usize..12, steps in prop::collection::vec(step(), 0..200)) {
        let mut map: FifoMap<u16, u32> = FifoMap::new(capacity);
        let mut model: Vec<(u16, u32)> = Vec::new();
        let hash = |key: u16| u64::from(key / 3);
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(key) => {
                    if map.find(hash(key), &key).is_none() {
                        let inserted = map.insert(hash(key), key, n as u32).is_some();
                        prop_assert_eq!(inserted, model.len() < capacity);
                        if inserted {
                            model.push((key, n as u32));
                        }
                    }
                }
                Step::Remove(key) => {
                    let expected = model.iter().position(|(k, _)| *k == key).map(|at| model.remove(at).1);
                    let slot = map.find(hash(key), &key);
                    let got = slot.and_then(|slot| map.remove(slot));
                    prop_assert_eq!(got, expected);
                }
                Step::RemoveOldest => {
                    let expected = (!model.is_empty()).then(|| model.remove(0).1);
                    let slot = map.oldest().map(|(slot, _)| slot);
                    let got = slot.and_then(|slot| map.remove(slot));
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(map.len(), model.len());
            prop_assert_eq!(map.oldest().map(|(_, value)| *value), model.first().map(|(_, value)| *value));
            for (key, value) in &model {
                let slot = map.find(hash(*key), key);
                prop_assert_eq!(slot.and_then(|slot| map.get(slot)), Some(value));
            }
        }
    }
}

#[test]
fn slots_that_are_not_live_give_nothing() {
    let mut map: FifoMap<u8, u8> = FifoMap::new(2);
    assert_eq!(map.remove(0), None);
    let slot = map.insert(0, 1, 9).unwrap();
    assert_eq!(map.remove(slot), Some(9));
    assert_eq!(map.remove(slot), None);
    assert_eq!(map.get(slot), None);
    assert_eq!(map.get_mut(NONE), None);
}
