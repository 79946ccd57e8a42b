use super::*;
use crate::random::KeyedHash;

fn hashes() -> impl Iterator<Item = u64> {
    let hash = KeyedHash::new([1, 2, 3, 4]);
    (0..10_000).map(move |number| hash.hash(number, 0))
}

#[test]
fn one_more_position_moves_few_and_only_to_itself() {
    assert_eq!(consistent(7, 0), None);
    for positions in [1, 2, 3, 7, 100] {
        let mut moved = 0;
        for hash in hashes() {
            let (before, after) = (consistent(hash, positions), consistent(hash, positions + 1));
            assert!(before.is_some_and(|position| position < positions));
            if before != after {
                assert_eq!(after, Some(positions), "nobody moves among those that were there");
                moved += 1;
            }
        }
        let share = 10_000 / (positions + 1);
        assert!(
            (share * 3 / 4..=share * 5 / 4 + 5).contains(&moved),
            "{moved} of 10000 move to one of {positions} + 1"
        );
    }
}

#[test]
fn all_positions_are_chosen_alike() {
    let mut counts = [0; 8];
    for hash in hashes() {
        counts[consistent(hash, 8).expect("there are some")] += 1;
    }
    assert!(counts.iter().all(|count| (1_050..1_450).contains(count)), "{counts:?}");
}
