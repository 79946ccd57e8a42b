use core::sync::atomic::AtomicU32;
use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::random::Random;
use crate::types::ExternalEndpoint;
use crate::types::Protocol;
use crate::types::RemoteOutside;

const SECRET: [u64; 4] = [3, 1, 4, 1];

fn claims(flows_max: usize) -> Claims {
    let claims = Claims::new(flows_max).unwrap();
    claims.seed(KeyedHash::new(SECRET));
    claims
}

fn key(port: u16, remote_outside: u16) -> OutsideKey {
    let external = ExternalEndpoint { address: 0xc000_0201, port };
    let remote_outside = RemoteOutside { address: 0x0808_0808, port: remote_outside };
    OutsideKey { protocol: Protocol::Tcp, external, remote_outside }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_five_tuple_is_one_workers_until_it_lets_it_go(steps in vec((any::<bool>(), 1_u16..40, 0_u16..4, 0_u8..3), 0..300)) {
        let claims = claims(200);
        let mut model: BTreeMap<(u16, u16), u8> = BTreeMap::new();
        for (claim, port, remote_outside, worker) in steps {
            let known = model.get(&(port, remote_outside)).copied();
            prop_assert_eq!(claims.worker_of(&key(port, remote_outside)), known.map(WorkerId));
            if claim {
                prop_assert_eq!(claims.claim(&key(port, remote_outside), WorkerId(worker)), known.is_none());
                model.entry((port, remote_outside)).or_insert(worker);
            } else if let Some(owner) = known {
                claims.release(&key(port, remote_outside), WorkerId(owner));
                model.remove(&(port, remote_outside));
            }
            prop_assert_eq!(claims.len(), model.len());
        }
    }
}

#[test]
fn as_many_as_there_may_be_find_room() {
    let claims = claims(10_000);
    let granted =
        (0..10_000).filter(|n| claims.claim(&key(1_024 + (n / 100) as u16, (n % 100) as u16), WorkerId(0))).count();
    assert!(granted >= 9_990, "{granted} of 10000");
}

#[test]
fn a_full_window_refuses() {
    let claims = Claims::new(1_000).unwrap();
    let hash = |n: u64| n << 40 | 7;
    let granted = (1..=40).filter(|n| claims.claim_hash(hash(*n), WorkerId(1))).count();
    assert_eq!((granted, claims.len()), (WINDOW_LINES * LINE, WINDOW_LINES * LINE));
    claims.release_hash(hash(1), WorkerId(1));
    assert!(claims.claim_hash(hash(40), WorkerId(2)));
}

#[test]
fn no_five_tuple_is_two_workers_at_once() {
    const WORKERS: u8 = 4;
    const TUPLES: usize = 6;
    let claims = claims(64);
    let owners: [AtomicU32; TUPLES] = Default::default();
    let granted = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (claims, owners, granted) = (&claims, &owners, &granted);
            scope.spawn(move || {
                let mut random = Random::new([u64::from(worker) + 1; 4]);
                for _ in 0..200_000 {
                    let n = random.below(TUPLES as u32) as usize;
                    let key = key(1_024, n as u16);
                    if claims.claim(&key, WorkerId(worker)) {
                        let before = owners[n].swap(u32::from(worker) + 1, Ordering::SeqCst);
                        assert_eq!(before, 0, "claimed by another worker as well");
                        assert_eq!(claims.worker_of(&key), Some(WorkerId(worker)));
                        granted.fetch_add(1, Ordering::Relaxed);
                        owners[n].store(0, Ordering::SeqCst);
                        claims.release(&key, WorkerId(worker));
                    }
                }
            });
        }
    });
    assert!(granted.load(Ordering::Relaxed) > 1_000, "claims are granted");
    assert_eq!(claims.len(), 0);
}
