use super::*;

const fn home(address: u128) -> (RealmId, u128) {
    (RealmId(0), address)
}

#[test]
fn an_mtu_counts_for_ten_minutes_and_only_falls() {
    let mut mtus = PathMtus::new(KeyedHash::new([1, 2, 3, 4]), true);
    let start = Instant::from_micros(1_000_000);
    assert_eq!(mtus.of(start, home(7), 1_500), 1_500);
    mtus.note(start, home(7), 1_400);
    assert_eq!(
        (mtus.of(start, home(7), 1_500), mtus.of(start, home(8), 1_500), mtus.of(start, home(7), 1_300)),
        (1_400, 1_500, 1_300)
    );
    let later = start + Duration::from_secs(300);
    mtus.note(later, home(7), 1_450);
    assert_eq!(mtus.of(later, home(7), 1_500), 1_400);
    mtus.note(later, home(7), 1_280);
    let end = start + LIFETIME;
    assert_eq!(mtus.of(end, home(7), 1_500), 1_280);
    assert_eq!(mtus.of(later + LIFETIME, home(7), 1_500), 1_500);
}

#[test]
fn any_number_of_addresses_takes_one_table() {
    let mut mtus = PathMtus::new(KeyedHash::new([1, 2, 3, 4]), true);
    let now = Instant::from_micros(1_000_000);
    for address in 0..100_000 {
        mtus.note(now, home(address), 1_400);
        assert_eq!(mtus.of(now, home(address), 1_500), 1_400);
    }
    let known = (0..100_000).filter(|address| mtus.of(now, home(*address), 1_500) == 1_400).count();
    assert!((1..=ENTRIES).contains(&known));
    let mut none = PathMtus::new(KeyedHash::new([1, 2, 3, 4]), false);
    none.note(now, home(7), 1_400);
    assert_eq!(none.of(now, home(7), 1_500), 1_500);
}

#[test]
fn realms_with_equal_addresses_have_mtus_of_their_own() {
    let mut mtus = PathMtus::new(KeyedHash::new([1, 2, 3, 4]), true);
    let now = Instant::from_micros(1_000_000);
    for address in 0..1_000 {
        mtus.note(now, (RealmId(1), address), 1_280);
        assert_eq!(mtus.of(now, (RealmId(1), address), 1_500), 1_280);
        assert_eq!(mtus.of(now, home(address), 1_500), 1_500);
    }
}
