use std::collections::HashMap;

use super::*;
use crate::random::Random;
use crate::types::RemoteInside;

const REMOTE_INSIDE: RemoteInside = RemoteInside { address: 0x0a01_0203, port: 53 };

fn target(address: u32, port: Option<u16>, weight: u32) -> Target {
    Target { address, port, weight }
}

#[test]
fn targets_get_their_weights_share() {
    let action = Redirection::Targets(vec![target(1, None, 1), target(2, Some(5_353), 3), target(3, None, 6)]);
    let mut random = Random::new([1, 2, 3, 4]);
    let mut found: HashMap<(u32, u16), u32> = HashMap::new();
    for _ in 0..100_000 {
        *found.entry(action.remote_outside(Protocol::Udp, REMOTE_INSIDE, random.next_u64()).raw()).or_default() += 1;
    }
    for (remote_outside, share) in [((1, 53), 10_000), ((2, 5_353), 30_000), ((3, 53), 60_000)] {
        // Six standard deviations.
        assert!(
            found[&remote_outside].abs_diff(share) < 1_000,
            "{remote_outside:?} got {} of 100 000",
            found[&remote_outside]
        );
    }
    assert_eq!(found.len(), 3);
}

#[test]
fn the_extremes_of_a_hash_fall_to_the_first_and_the_last_target() {
    let action = Redirection::Targets(vec![target(1, None, u32::MAX), target(2, None, u32::MAX)]);
    assert_eq!(action.remote_outside(Protocol::Tcp, REMOTE_INSIDE, 0).raw(), (1, 53));
    assert_eq!(action.remote_outside(Protocol::Tcp, REMOTE_INSIDE, u64::MAX).raw(), (2, 53));
    assert_eq!(
        Redirection::Targets(Vec::new()).remote_outside(Protocol::Tcp, REMOTE_INSIDE, 7),
        REMOTE_INSIDE.not_redirected()
    );
}

#[test]
fn pings_keep_their_port_of_zero() {
    let action = Redirection::Targets(vec![target(1, Some(80), 1)]);
    assert_eq!(action.remote_outside(Protocol::Icmp, RemoteInside { address: 9, port: 0 }, 7).raw(), (1, 0));
}

#[test]
fn a_prefix_keeps_the_host() {
    let prefix = Prefix::new([192, 168, 0, 0].into(), 16).unwrap();
    assert_eq!(Redirection::Prefix(prefix).remote_outside(Protocol::Tcp, REMOTE_INSIDE, 0).raw(), (0xc0a8_0203, 53));
    assert_eq!(
        Redirection::Prefix(Prefix::ALL).remote_outside(Protocol::Tcp, REMOTE_INSIDE, 0),
        REMOTE_INSIDE.not_redirected()
    );
    let host = Prefix::host([1, 2, 3, 4].into());
    assert_eq!(Redirection::Prefix(host).remote_outside(Protocol::Tcp, REMOTE_INSIDE, 0).raw(), (0x0102_0304, 53));
}
