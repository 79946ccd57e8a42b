use crate::types::ExternalEndpoint;
use crate::types::HostNumber;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;
use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: [u64; 4] = [3, 1, 4, 1];

/// A flow without tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain {
    internal: (HostNumber, u16),
    remote_inside: RemoteInside,
    external: ExternalEndpoint,
    remote_outside: RemoteOutside,
    protocol: Protocol,
}

impl Plain {
    fn key(&self) -> InternalKey {
        InternalKey { realm: RealmId(3), protocol: self.protocol, address: self.internal.0, port: self.internal.1 }
    }

    fn inside(&self) -> InsideKey {
        InsideKey::new(&self.key(), self.remote_inside)
    }

    fn outside(&self) -> OutsideKey {
        OutsideKey { protocol: self.protocol, external: self.external, remote_outside: self.remote_outside }
    }

    fn new_flow(&self) -> NewFlow {
        NewFlow {
            is_hairpin: false,
            internal: self.key(),
            remote_inside: self.remote_inside,
            remote_outside: self.remote_outside,
            external: self.external,
            state: TcpState::OpeningOutbound,
            expires: Instant::from_micros(1_000),
            port: 7,
            subscriber: 9,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Open(Plain),
    /// Modulo the live ones.
    Close(usize),
    Rest(usize),
    /// Modulo the held-down ones.
    EndRest(usize),
}

/// Few values, so that parts coincide.
fn endpoint_of(first: u32) -> impl Strategy<Value = (u32, u16)> {
    (0_u32..3, 0_u16..3).prop_map(move |(address, port)| (first + address, 1_000 + port))
}

fn plain() -> impl Strategy<Value = Plain> {
    let protocol = prop_oneof![Just(Protocol::Udp), Just(Protocol::Tcp), Just(Protocol::Icmp)];
    (endpoint_of(10), endpoint_of(20), endpoint_of(30), endpoint_of(20), protocol).prop_map(
        |(internal, remote_inside, external, remote_outside, protocol)| Plain {
            internal: (HostNumber(internal.0), internal.1),
            remote_inside: RemoteInside { address: remote_inside.0, port: remote_inside.1 },
            external: ExternalEndpoint { address: external.0, port: external.1 },
            remote_outside: RemoteOutside { address: remote_outside.0, port: remote_outside.1 },
            protocol,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => plain().prop_map(Step::Open),
        1 => any::<usize>().prop_map(Step::Close),
        1 => any::<usize>().prop_map(Step::Rest),
        1 => any::<usize>().prop_map(Step::EndRest),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flows_are_found_from_both_sides_as_in_two_plain_maps(
        capacity in 1_u32..40,
        steps in vec(step(), 0..300),
    ) {
        let now = Instant::from_micros(5_000_000);
        let mut store = FlowStore::new(capacity, KeyedHash::new(SECRET)).unwrap();
        let mut model: Vec<(Plain, u32)> = Vec::new();
        // In order of hold-down.
        let mut held_down: Vec<(Plain, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Open(plain) => {
                    let inside = model.iter().find(|(known, _)| known.inside() == plain.inside());
                    let all = || model.iter().chain(&held_down);
                    let outside = all().find(|(known, _)| known.outside() == plain.outside());
                    prop_assert_eq!(store.find_inside(&plain.inside()), inside.map(|known| known.1));
                    prop_assert_eq!(store.find_outside(&plain.outside()), outside.map(|known| known.1));
                    if inside.is_none() && outside.is_none() {
                        let is_full = model.len() + held_down.len() == capacity as usize;
                        let oldest = held_down.first().map(|(_, index)| *index).filter(|_| is_full);
                        prop_assert_eq!(store.in_the_way(), oldest);
                        prop_assert_eq!(store.is_full(), model.len() == capacity as usize);
                        let entered = store.insert(&plain.new_flow(), now);
                        prop_assert_eq!(entered.is_ok(), !is_full);
                        if let Ok(index) = entered {
                            model.push((plain, index));
                        }
                    }
                }
                Step::Close(n) if !model.is_empty() => {
                    let (plain, index) = model.swap_remove(n % model.len());
                    store.remove(index);
                    prop_assert_eq!(store.find_inside(&plain.inside()), None);
                    prop_assert_eq!(store.find_outside(&plain.outside()), None);
                }
                Step::Rest(n) if !model.is_empty() => {
                    let (plain, index) = model.swap_remove(n % model.len());
                    store.hold_down(index, Instant::from_micros(7_000_000));
                    held_down.push((plain, index));
                    prop_assert_eq!(store.find_inside(&plain.inside()), None);
                    let flow = store.get(index);
                    prop_assert!(flow.is_held_down() && !flow.is_in_use() && !flow.is_alive(now));
                    prop_assert_eq!((flow.outside_key(), flow.expires().as_micros()), (plain.outside(), 7_000_000));
                }
                Step::EndRest(n) if !held_down.is_empty() => {
                    let (plain, index) = held_down.remove(n % held_down.len());
                    store.end_hold_down(index);
                    prop_assert_eq!(store.find_outside(&plain.outside()), None);
                }
                Step::Close(_) | Step::Rest(_) | Step::EndRest(_) => {}
            }
            for (plain, index) in &held_down {
                prop_assert_eq!(store.find_outside(&plain.outside()), Some(*index));
            }
            prop_assert_eq!(store.has_no_records(), model.is_empty() && held_down.is_empty());
            prop_assert_eq!(store.len(), model.len());
            prop_assert_eq!(store.is_empty(), model.is_empty());
        }
        let by_index: HashMap<u32, Plain> = model.iter().map(|(plain, index)| (*index, *plain)).collect();
        prop_assert_eq!(by_index.len(), model.len(), "each has a record of its own");
        for index in 1..store.walk_end() {
            let flow = store.get(index);
            prop_assert_eq!(flow.is_in_use(), by_index.contains_key(&index));
            let Some(plain) = by_index.get(&index) else { continue };
            let read = Plain {
                internal: flow.internal(),
                remote_inside: flow.remote_inside(),
                external: flow.external(),
                remote_outside: flow.remote_outside(),
                protocol: flow.protocol(),
            };
            prop_assert_eq!(read, *plain);
            prop_assert_eq!((flow.port, flow.subscriber, flow.realm(), flow.created_s()), (7, 9, RealmId(3), 5));
            prop_assert_eq!(flow.is_twice(), plain.remote_inside.raw() != plain.remote_outside.raw());
        }
    }
}

#[test]
fn a_refreshed_flow_keeps_its_endpoints() {
    let plain = Plain {
        internal: (HostNumber(u32::MAX), u16::MAX),
        remote_inside: RemoteInside { address: u32::MAX - 1, port: u16::MAX },
        external: ExternalEndpoint { address: u32::MAX - 2, port: u16::MAX },
        remote_outside: RemoteOutside { address: u32::MAX - 3, port: u16::MAX },
        protocol: Protocol::Tcp,
    };
    let mut store = FlowStore::new(1, KeyedHash::new(SECRET)).unwrap();
    let index = store.insert(&plain.new_flow(), Instant::ORIGIN).unwrap();
    assert_eq!(store.get(index).state(), TcpState::OpeningOutbound);
    assert!(store.get(index).is_alive(Instant::from_micros(999)));
    assert!(!store.get(index).is_alive(Instant::from_micros(1_000)));
    for state in TcpState::ALL {
        store.get_mut(index).refresh(state, Instant::from_micros(u64::MAX));
        let flow = store.get(index);
        assert_eq!(
            (flow.state(), flow.remote_inside(), flow.remote_outside()),
            (state, plain.remote_inside, plain.remote_outside)
        );
        assert!(flow.is_alive(Instant::from_micros(1 << 47)));
        assert_eq!(store.find_inside(&plain.inside()), Some(index));
    }
    assert_eq!(
        store.insert(
            &Plain { internal: (HostNumber(1), 1), remote_outside: RemoteOutside { address: 1, port: 1 }, ..plain }
                .new_flow(),
            Instant::ORIGIN
        ),
        Err(TableFull)
    );
}
