use crate::policy::class::Classes;
use crate::policy::class::CompiledClass;
use crate::policy::class::EXTRA_SESSION_BYTES;
use crate::policy::class::MAPPING_BYTES;
use crate::policy::class::Marks;
use crate::settings::Class;
use crate::settings::Rate;
use crate::settings::SubscriberLimits;
use crate::settings::Threshold;
use crate::state::bucket::Bucket;
use crate::state::bucket::BucketRate;
use crate::state::subscriber::Account;
use crate::state::subscriber::Subscriber;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;
use proptest::prelude::*;
use zerocopy::FromZeros;

fn prefix(text: [u8; 4], length: u8) -> Prefix {
    Prefix::new(text.into(), length).expect("a length up to 32")
}

fn class(name: &str, subscribers: Vec<Prefix>, realms: Vec<RealmId>) -> Class {
    Class { name: name.into(), subscribers, realms, limits: SubscriberLimits::default(), gateways: None }
}

#[test]
fn the_longest_prefix_decides_the_class() {
    let classes = [
        class("all", vec![prefix([100, 64, 0, 0], 10)], vec![]),
        class("business", vec![prefix([100, 64, 1, 0], 24), prefix([100, 70, 0, 0], 16)], vec![]),
        class("one", vec![prefix([100, 64, 1, 7], 32)], vec![]),
    ];
    let classes = Classes::new(&SubscriberLimits::default(), &classes, 1).expect("memory suffices");
    let of = |address: [u8; 4]| classes.of(RealmId(0), u32::from_be_bytes(address));
    assert_eq!([of([10, 0, 0, 1]), of([100, 64, 2, 1]), of([100, 64, 1, 1]), of([100, 64, 1, 7])], [0, 1, 2, 3]);
    assert_eq!([of([100, 70, 3, 3]), of([100, 127, 255, 255]), of([100, 128, 0, 0])], [2, 1, 0]);
}

#[test]
fn a_class_may_be_of_one_realm_only() {
    let classes = [
        class("red", vec![prefix([10, 0, 0, 0], 8)], vec![RealmId(1)]),
        class("any", vec![prefix([10, 0, 0, 0], 9)], vec![]),
    ];
    let classes = Classes::new(&SubscriberLimits::default(), &classes, 3).expect("memory suffices");
    let of = |realm, address: [u8; 4]| classes.of(RealmId(realm), u32::from_be_bytes(address));
    assert_eq!([of(0, [10, 200, 0, 1]), of(1, [10, 200, 0, 1]), of(2, [10, 200, 0, 1])], [0, 1, 0]);
    assert_eq!([of(0, [10, 0, 0, 1]), of(1, [10, 0, 0, 1]), of(7, [10, 0, 0, 1])], [2, 2, 0]);
}

#[test]
fn a_class_that_is_no_more_has_the_limits_of_everybody() {
    let common = SubscriberLimits { ports_max: [0; 3], ..SubscriberLimits::default() };
    let classes = Classes::new(&common, &[], 1).expect("memory suffices");
    let nobody = Subscriber::new_zeroed();
    let refused = classes.compiled(9).admits_mapping(&nobody, 0, Protocol::Udp, Instant::ORIGIN);
    assert_eq!(refused, Err(Verdict::SubscriberPortQuota));
}

fn take_all(rate: BucketRate, bucket: &mut Bucket, now: Instant, wanted: u32) -> u32 {
    let mut taken = 0;
    for _ in 0..wanted {
        if rate.has_token(*bucket, now) {
            *bucket = rate.take(*bucket, now);
            taken += 1;
        }
    }
    taken
}

#[test]
fn a_bucket_gives_its_burst_at_once_and_then_its_rate() {
    let rate = BucketRate::new(Some(Rate { per_second: 10, burst: 25 }));
    let (mut bucket, start) = (Bucket::default(), Instant::from_micros(77_000_000));
    assert_eq!(take_all(rate, &mut bucket, start, 1_000), 25);
    assert_eq!(take_all(rate, &mut bucket, start + Duration::from_millis(99), 1_000), 0);
    assert_eq!(take_all(rate, &mut bucket, start + Duration::from_millis(100), 1_000), 1);
    assert_eq!(take_all(rate, &mut bucket, start + Duration::from_millis(1_100), 1_000), 10);
    assert_eq!(take_all(rate, &mut bucket, start + Duration::from_secs(3_600), 1_000), 25);
}

#[test]
fn a_bucket_outlives_its_own_numbers() {
    // Also around the wrap of the 48 bits, and after a pause as long as that.
    let rate = BucketRate::new(Some(Rate { per_second: 100, burst: 5 }));
    let round = (1_u64 << 48) / 16;
    for start in [0, round - 20_000, round, 3 * round - 1, 5 * round + round / 2] {
        let (mut bucket, start) = (Bucket::default(), Instant::from_micros(start));
        assert_eq!(take_all(rate, &mut bucket, start, 100), 5, "{start:?}");
        assert_eq!(take_all(rate, &mut bucket, start + Duration::from_millis(30), 100), 3, "{start:?}");
        assert_eq!(take_all(rate, &mut bucket, start + Duration::from_micros(round - 1_000_000), 100), 5, "{start:?}");
    }
}

#[test]
fn without_a_rate_nothing_is_refused_or_remembered() {
    let rate = BucketRate::new(None);
    let mut bucket = Bucket::default();
    assert_eq!(take_all(rate, &mut bucket, Instant::from_micros(5), 1_000), 1_000);
    assert!(rate.has_token(bucket, Instant::ORIGIN));
}

proptest! {
    #[test]
    fn no_window_gets_more_than_burst_and_rate(
        per_second in 1_u32..100_000, burst in 1_u32..500,
        asks in prop::collection::vec((0_u64..200_000, 1_u32..60), 1..120),
    ) {
        let rate = BucketRate::new(Some(Rate { per_second, burst }));
        let (mut bucket, mut now) = (Bucket::default(), Instant::from_micros(1));
        let mut taken = Vec::new();
        for (pause, wanted) in asks {
            now = now + Duration::from_micros(pause);
            taken.push((now, take_all(rate, &mut bucket, now, wanted)));
        }
        for (i, (from, _)) in taken.iter().enumerate() {
            let mut sum = 0_u64;
            for (at, count) in &taken[i..] {
                sum += u64::from(*count);
                let micros = at.saturating_since(*from).as_micros();
                let most = u64::from(burst) + (u64::from(per_second) * micros).div_ceil(1_000_000);
                prop_assert!(sum <= most, "{sum} in {micros} us, {most} allowed");
            }
        }
    }
}

fn compiled(limits: SubscriberLimits) -> CompiledClass {
    CompiledClass::new(&limits)
}

#[test]
fn ports_are_limited_by_protocol() {
    let compiled = compiled(SubscriberLimits { ports_max: [2, 1, 0], ..SubscriberLimits::default() });
    let mut subscriber = Subscriber::new_zeroed();
    let ask = |subscriber: &Subscriber, protocol| compiled.admits_mapping(subscriber, 0, protocol, Instant::ORIGIN);
    assert_eq!(ask(&subscriber, Protocol::Icmp), Err(Verdict::SubscriberPortQuota));
    subscriber.mappings = [1, 1, 0];
    assert_eq!(ask(&subscriber, Protocol::Udp), Ok(()));
    assert_eq!(ask(&subscriber, Protocol::Tcp), Err(Verdict::SubscriberPortQuota));
    subscriber.mappings = [2, 0, 0];
    assert_eq!(ask(&subscriber, Protocol::Udp), Err(Verdict::SubscriberPortQuota));
    assert_eq!(ask(&subscriber, Protocol::Tcp), Ok(()));
}

#[test]
fn sessions_and_memory_count_mappings_and_further_sessions() {
    let limits = SubscriberLimits { sessions_max: 5, ..SubscriberLimits::default() };
    let mut subscriber = Subscriber::new_zeroed();
    subscriber.mappings = [1, 1, 1];
    subscriber.extra_sessions = 1;
    let now = Instant::ORIGIN;
    assert_eq!(compiled(limits).admits_mapping(&subscriber, 0, Protocol::Udp, now), Ok(()));
    assert_eq!(compiled(limits).admits_session((&subscriber, &Account::default()), true, now), Ok(()));
    subscriber.extra_sessions = 2;
    assert_eq!(
        compiled(limits).admits_mapping(&subscriber, 0, Protocol::Udp, now),
        Err(Verdict::SubscriberSessionQuota)
    );
    assert_eq!(
        compiled(limits).admits_session((&subscriber, &Account::default()), true, now),
        Err(Verdict::SubscriberSessionQuota)
    );
    // An ended first session leaves its place to the next, but not above a lowered limit.
    assert_eq!(compiled(limits).admits_session((&subscriber, &Account::default()), false, now), Ok(()));
    let lowered = SubscriberLimits { sessions_max: 4, ..SubscriberLimits::default() };
    assert_eq!(
        compiled(lowered).admits_session((&subscriber, &Account::default()), false, now),
        Err(Verdict::SubscriberSessionQuota)
    );

    let used = 3 * MAPPING_BYTES + 2 * EXTRA_SESSION_BYTES;
    let memory = |memory_max| compiled(SubscriberLimits { memory_max, ..SubscriberLimits::default() });
    let full = Err(Verdict::SubscriberMemoryQuota);
    assert_eq!(memory(used + MAPPING_BYTES).admits_mapping(&subscriber, 0, Protocol::Tcp, now), Ok(()));
    assert_eq!(memory(used + MAPPING_BYTES - 1).admits_mapping(&subscriber, 0, Protocol::Tcp, now), full);
    assert_eq!(
        memory(used + EXTRA_SESSION_BYTES).admits_session((&subscriber, &Account::default()), true, now),
        Ok(())
    );
    assert_eq!(
        memory(used + EXTRA_SESSION_BYTES - 1).admits_session((&subscriber, &Account::default()), true, now),
        full
    );
    let in_place = |most| memory(most).admits_session((&subscriber, &Account::default()), false, now);
    assert_eq!((in_place(used), in_place(used - 1)), (Ok(()), Err(Verdict::SubscriberMemoryQuota)));
}

#[test]
fn a_threshold_has_hysteresis() {
    let threshold = Some(Threshold { high_percent: 80, low_percent: 60 });
    assert_eq!(Marks::new(threshold, 100), Marks { high: 80, low: 60, limit: 100 });
    assert_eq!(Marks::new(threshold, 7), Marks { high: 6, low: 4, limit: 7 });
    assert_eq!(Marks::new(threshold, u32::MAX), Marks::NEVER);
    assert_eq!(Marks::new(None, 100), Marks::NEVER);
    assert_eq!(Marks::new(threshold, 0).high, 1, "no limit of nothing is crossed by nothing");
}
