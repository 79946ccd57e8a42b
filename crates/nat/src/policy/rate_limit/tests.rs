use super::*;
use crate::time::Duration;
use crate::types::RealmId;

fn hash() -> KeyedHash {
    KeyedHash::new([7, 1, 2, 3])
}

fn policy(total: u32, per_destination: u32) -> IcmpPolicy {
    IcmpPolicy {
        errors_per_second_max: total,
        errors_per_second_per_destination_max: per_destination,
        ..IcmpPolicy::default()
    }
}

fn host(n: u32) -> (Facing, Ipv4Addr) {
    (Facing::inside(RealmId(0)), Ipv4Addr::from_bits(0x6440_0000 + n))
}

fn allowed(limit: &mut RateLimit, seconds: u64, destination: (Facing, Ipv4Addr)) -> u64 {
    let start = Instant::from_micros(5_000_000);
    (0..seconds * 1_000).filter(|ms| limit.allow(start + Duration::from_millis(*ms), destination)).count() as u64
}

#[test]
fn one_destination_gets_its_rate_and_one_burst() {
    let mut limit = RateLimit::new(&policy(1_000, 20), hash());
    let got = allowed(&mut limit, 10, host(1));
    assert!((200..=208).contains(&got), "{got}");
}

#[test]
fn a_burst_is_a_quarter_of_a_second_within_bounds() {
    for (rate, burst) in [(1_u32, 1), (5, 5), (20, 8), (100, 25), (1_000, 250)] {
        let mut limit = RateLimit::new(&policy(1_000_000, rate), hash());
        let now = Instant::from_micros(1);
        let got = (0..10_000).filter(|_| limit.allow(now, host(1))).count();
        assert_eq!(got, burst, "at {rate} per second");
    }
}

#[test]
fn one_noisy_destination_leaves_the_rest_to_others() {
    let mut limit = RateLimit::new(&policy(1_000, 20), hash());
    let start = Instant::from_micros(1);
    let mut others = 0;
    for ms in 0..1_000 {
        let now = start + Duration::from_millis(ms);
        for _ in 0..100 {
            limit.allow(now, host(1));
        }
        if ms % 100 == 0 {
            others += u32::from(limit.allow(now, host(2 + ms as u32)));
        }
    }
    assert_eq!(others, 10);
}

#[test]
fn all_destinations_together_get_the_total_rate() {
    let mut limit = RateLimit::new(&policy(100, 20), hash());
    let start = Instant::from_micros(1);
    let mut got = 0;
    for ms in 0..10_000_u64 {
        for n in 0..5 {
            got += u32::from(limit.allow(start + Duration::from_millis(ms), host(ms as u32 * 5 + n)));
        }
    }
    assert!((1_000..=1_025).contains(&got), "{got}");
}

#[test]
fn a_rate_of_zero_allows_nothing() {
    for policy in [policy(0, 20), policy(1_000, 0)] {
        let mut limit = RateLimit::new(&policy, hash());
        assert_eq!(allowed(&mut limit, 2, host(1)), 0);
    }
}

#[test]
fn a_crowded_table_makes_the_limit_stricter_never_looser() {
    let mut limit = RateLimit::new(&policy(u32::MAX, 1), hash());
    let now = Instant::from_micros(1);
    let hosts = (SETS * WAYS * 4) as u32;
    let got = (0..hosts).filter(|n| limit.allow(now, host(*n))).count();
    assert!(got <= SETS * WAYS, "{got}");
    let again = (0..hosts).filter(|n| limit.allow(now, host(*n))).count();
    assert!(again + got <= SETS * WAYS, "nobody gets a second one: {again}");
}

#[test]
fn a_new_policy_counts_what_was_used_before() {
    let mut limit = RateLimit::new(&policy(1_000, 1), hash());
    let now = Instant::from_micros(1);
    assert!(limit.allow(now, host(1)));
    assert!(!limit.allow(now, host(1)));
    limit.set_policy(&policy(1_000, 20));
    assert!(limit.allow(now + Duration::from_millis(900), host(1)));
}

#[test]
fn hosts_with_one_address_in_two_realms_have_two_buckets() {
    let mut limit = RateLimit::new(&policy(1_000, 20), hash());
    let (now, (_, address)) = (Instant::from_micros(1), host(1));
    let realms = [Facing::inside(RealmId(0)), Facing::inside(RealmId(1)), Facing::inside(RealmId(2)), Facing::OUTSIDE];
    for facing in realms {
        let got = (0..100).filter(|_| limit.allow(now, (facing, address))).count();
        assert_eq!(got, 8, "{facing:?}");
    }
}
