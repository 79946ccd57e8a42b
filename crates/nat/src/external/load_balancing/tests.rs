use core::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::settings::Forward;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::RemoteOutside;

const EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

fn target(last: u8, weight: u32) -> Target {
    Target { address: u32::from_be_bytes([100, 64, 0, last]), port: Some(80), weight }
}

fn forward(ports: (u16, u16), targets: &[Target]) -> BalancedForward {
    BalancedForward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: EXTERNAL,
        ports,
        targets: targets.to_vec(),
        admission: Admission::Anyone,
        is_sticky: false,
    }
}

fn settings(forwards: &[BalancedForward]) -> Settings {
    Settings { balanced_forwards: forwards.to_vec(), ..Settings::default() }
}

fn at(seconds: u64) -> Instant {
    Instant::from_micros(seconds * 1_000_000)
}

fn group(balance: &Balance, port: u16) -> &Group {
    balance.find(EXTERNAL.to_bits(), Protocol::Tcp, port).expect("the port leads to several")
}

fn chosen(balance: &Balance, remote_outside: RemoteOutside) -> HostNumber {
    group(balance, 443)
        .current()
        .and_then(|generation| generation.choose(443, remote_outside))
        .expect("there is a target")
        .address
}

proptest! {
    /// Within five standard deviations.
    #[test]
    fn each_target_gets_its_share(weights in prop::collection::vec(1_u32..20, 1..6), first in any::<u32>(), sticky in any::<bool>()) {
        let targets: Vec<Target> = (1..).zip(&weights).map(|(last, weight)| target(last, *weight)).collect();
        let list = BalancedForward { is_sticky: sticky, ..forward((443, 443), &targets) };
        let balance = Balance::new(&settings(&[list]));
        let mut counts = vec![0_u32; weights.len()];
        const REMOTES: u32 = 8_000;
        for i in 0..REMOTES {
            let host = chosen(&balance, RemoteOutside { address: first.wrapping_add(i), port: 40_000 });
            counts[(host.0 & 0xff) as usize - 1] += 1;
        }
        let total: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let share = f64::from(*weight) / f64::from(total);
            let (expected, deviation) = (share * f64::from(REMOTES), (share * (1.0 - share) * f64::from(REMOTES)).sqrt());
            prop_assert!((f64::from(*count) - expected).abs() <= 5.0 * deviation + 1.0, "{counts:?} for {weights:?}");
        }
    }

    #[test]
    fn a_change_moves_only_the_share_of_the_changed_target(weights in prop::collection::vec(1_u32..9, 2..6), first in any::<u32>()) {
        let targets: Vec<Target> = (1..).zip(&weights).map(|(last, weight)| target(last, *weight)).collect();
        let (fewer, added) = (&targets[..targets.len() - 1], targets[targets.len() - 1].address);
        let few = Balance::new(&settings(&[forward((443, 443), fewer)]));
        let all = Balance::new(&settings(&[forward((443, 443), &targets)]));
        for i in 0..500 {
            let remote_outside = RemoteOutside { address: first.wrapping_add(i), port: i as u16 };
            let (before, after) = (chosen(&few, remote_outside), chosen(&all, remote_outside));
            prop_assert!(after == before || after == HostNumber(added));
        }
    }

    /// A packet passes all workers that may have its session before one opens another. Older
    /// settings know the beginning of that way.
    #[test]
    fn a_packet_visits_the_lists_in_their_order(
        lists in prop::collection::vec(prop::collection::vec(1_u8..12, 1..5), 1..8),
        (address, port) in (any::<u32>(), any::<u16>()),
        workers in 1_u32..5,
    ) {
        let remote_outside = RemoteOutside { address, port };
        let mut balance: Option<Balance> = None;
        let mut opened_at = Vec::new();
        let mut ways: Vec<Vec<u32>> = Vec::new();
        for (second, list) in (1..).zip(&lists) {
            let mut list: Vec<Target> = list.iter().map(|last| target(*last, 1)).collect();
            list.sort_by_key(|target| target.address);
            list.dedup();
            let settings = settings(&[forward((443, 443), &list)]);
            let next = match &balance {
                None => Balance::new(&settings),
                Some(before) => before.successor(&settings, at(second)).expect("so many there may be"),
            };
            let group = group(&next, 443);
            // Each list has a session, so none is forgotten.
            group.current().expect("in use").enter(0);
            let worker_of = |host: HostNumber| host.0 % workers;
            let way: Vec<u32> = group.generations().filter_map(|generation| generation.choose(443, remote_outside)).map(|aim| worker_of(aim.address)).collect();
            opened_at.push(*way.last().expect("the list in use"));
            let (mut here, mut behind, mut visited) = (way[0], 1, vec![way[0]]);
            let last = loop {
                match group.next_stop(443, remote_outside, behind, &here, worker_of) {
                    Stop::Next(worker, turn) => {
                        prop_assert!(turn > behind && worker != here);
                        (here, behind) = (worker, turn);
                        visited.push(worker);
                    }
                    other => break other,
                }
            };
            prop_assert!(matches!(last, Stop::Here(aim) if worker_of(aim.address) == here));
            for worker in &opened_at {
                prop_assert!(visited.contains(worker), "{visited:?} leaves out {worker}");
            }
            for older in &ways {
                prop_assert!(way.starts_with(older));
            }
            ways.push(way);
            balance = Some(next);
        }
    }
}

#[test]
fn ports_of_a_range_lead_to_ports_of_a_range() {
    let free = Target { port: None, ..target(2, 1) };
    let balance = Balance::new(&settings(&[forward((8_000, 8_009), &[target(1, 1), free])]));
    assert!(balance.find(EXTERNAL.to_bits(), Protocol::Tcp, 8_010).is_none());
    assert!(balance.find(EXTERNAL.to_bits(), Protocol::Udp, 8_000).is_none());
    let generation = group(&balance, 8_003).current().expect("in use");
    let ports: Vec<u16> = (0..2).filter_map(|position| generation.aim(position, 8_003)).map(|aim| aim.port).collect();
    assert_eq!(ports, [83, 8_003]);
    let list = forward((8_000, 8_009), &[target(1, 1), free]);
    let to = |last: u8, port| list.external_of(RealmId(0), Endpoint::new(Ipv4Addr::new(100, 64, 0, last), port));
    assert_eq!(to(1, 83), Some(Endpoint::new(EXTERNAL, 8_003)));
    assert_eq!((to(1, 90), to(2, 8_009).map(|found| found.port), to(2, 7_999)), (None, Some(8_009), None));
}

#[test]
fn a_list_that_is_gone_is_remembered_while_it_has_sessions() {
    let first = Balance::new(&settings(&[forward((443, 443), &[target(1, 1), target(2, 1)])]));
    let generation = group(&first, 443).current().expect("in use").id();
    group(&first, 443).current().expect("in use").enter(0);
    let second = first.successor(&settings(&[forward((443, 443), &[target(2, 1)])]), at(10)).expect("room");
    assert_eq!(group(&second, 443).generations().count(), 2);
    let gone = (HostNumber(target(1, 1).address), 80);
    assert_eq!(group(&second, 443).left(443, RealmId(0), gone), Some(at(10)));
    assert!(group(&second, 443).leads_to(443, RealmId(0), (HostNumber(target(2, 1).address), 80)));
    assert!(!group(&second, 443).leads_to(443, RealmId(0), gone));
    let third = second.successor(&settings(&[]), at(20)).expect("room");
    assert_eq!(group(&third, 443).generations().count(), 2, "sessions go on without a forward");
    assert!(group(&third, 443).current().is_none());
    assert!(third.concerns(EXTERNAL.to_bits()));
    third.leave(generation);
    assert!(!third.concerns(EXTERNAL.to_bits()));
    let fourth = third.successor(&settings(&[]), at(30)).expect("room");
    let (ports, hold_down) = (group(&fourth, 443), Duration::from_secs(5));
    assert!(!ports.free(at(31), hold_down), "no session is left, and the ports rest");
    assert!(ports.free(at(36), hold_down));
    assert!(fourth.find(EXTERNAL.to_bits(), Protocol::Tcp, 443).is_none());
    let fifth = fourth.successor(&settings(&[]), at(40)).expect("room");
    assert!(fifth.is_empty(), "nothing is left");
}

#[test]
fn a_forward_reduced_to_one_target_keeps_its_group() {
    let first = Balance::new(&settings(&[forward((443, 443), &[target(1, 1), target(2, 1)])]));
    let single = Forward {
        realm: RealmId(0),
        protocol: Protocol::Tcp,
        external: EXTERNAL,
        ports: (440, 449),
        inside: Ipv4Addr::new(100, 64, 0, 9).into(),
        inside_port: 80,
        admission: Admission::AsPool,
    };
    let one = Settings { forwards: vec![single], ..Settings::default() };
    assert!(Balance::new(&one).is_empty(), "it is not one of these from the start");
    let second = first.successor(&one, at(10)).expect("room");
    assert!(second.has_taken(0));
    let ports: Vec<_> = second.ports().map(|(_, _, ports)| ports).collect();
    assert_eq!(ports, [(440, 442), (443, 443), (444, 449)]);
    assert_eq!(group(&second, 443).origin, Some(Origin::Forward(0)));
    assert_eq!(
        group(&second, 445)
            .current()
            .and_then(|generation| generation.choose(445, RemoteOutside { address: 1, port: 1 }))
            .map(|aim| aim.port),
        Some(85)
    );
}

#[test]
fn hits_are_counted_on_while_a_target_stays() {
    let targets = [target(2, 1), target(1, 1)];
    let before = settings(&[forward((443, 443), &targets)]);
    let first = Balance::new(&before);
    let generation = group(&first, 443).current().expect("in use");
    let position = generation.targets().iter().position(|other| *other == targets[0]).expect("it is one");
    generation.enter(position);
    assert_eq!(first.hits(&before, 0), [1, 0], "in the order of the settings");
    let after = settings(&[forward((443, 443), &[target(2, 5), target(3, 1)])]);
    let second = first.successor(&after, at(1)).expect("room");
    assert_eq!(second.hits(&after, 0), [1, 0]);
    let order = settings(&[forward((443, 443), &[target(3, 1), target(2, 5)])]);
    let third = second.successor(&order, at(2)).expect("room");
    assert_eq!(group(&third, 443).generations().count(), 1 + 1, "another order is no other list");
}

#[test]
fn so_many_lists_and_no_more() {
    let mut balance = Balance::new(&settings(&[forward((443, 443), &[target(0, 1)])]));
    for last in 1..40 {
        group(&balance, 443).current().expect("in use").enter(0);
        match balance.successor(&settings(&[forward((443, 443), &[target(last, 1)])]), at(u64::from(last))) {
            Ok(next) => balance = next,
            Err(TooManyGenerations { protocol, external }) => {
                assert_eq!(usize::from(last), TARGET_GENERATIONS_MAX);
                assert_eq!((protocol, external.port), (Protocol::Tcp, 443), "it names the endpoint");
                return;
            }
        }
    }
    panic!("there is an end");
}
