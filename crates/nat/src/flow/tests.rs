use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: [u64; 4] = [3, 1, 4, 1];

/// What a flow is, without tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plain {
    internal: (u32, u16),
    near: (u32, u16),
    external: (u32, u16),
    far: (u32, u16),
    protocol: Protocol,
}

impl Plain {
    fn key(&self) -> InternalKey {
        InternalKey { realm: RealmId(3), protocol: self.protocol, address: self.internal.0, port: self.internal.1 }
    }

    fn inside(&self) -> InsideKey {
        InsideKey::new(&self.key(), self.near.0, self.near.1)
    }

    fn outside(&self) -> OutsideKey {
        OutsideKey { protocol: self.protocol, external: self.external, far: self.far }
    }

    fn new_flow(&self) -> NewFlow {
        NewFlow {
            is_hairpin: false,
            internal: self.key(),
            near: self.near,
            far: self.far,
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
    /// One of those that are there, counted around.
    Close(usize),
}

/// Few values, so that tuples meet again in all their parts.
fn endpoint_of(first: u32) -> impl Strategy<Value = (u32, u16)> {
    (0_u32..3, 0_u16..3).prop_map(move |(address, port)| (first + address, 1_000 + port))
}

fn plain() -> impl Strategy<Value = Plain> {
    let protocol = prop_oneof![Just(Protocol::Udp), Just(Protocol::Tcp), Just(Protocol::Icmp)];
    (endpoint_of(10), endpoint_of(20), endpoint_of(30), endpoint_of(20), protocol)
        .prop_map(|(internal, near, external, far, protocol)| Plain { internal, near, external, far, protocol })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn flows_are_found_from_both_sides_as_in_two_plain_maps(
        capacity in 1_u32..40,
        steps in vec(prop_oneof![3 => plain().prop_map(Step::Open), 1 => any::<usize>().prop_map(Step::Close)], 0..300),
    ) {
        let now = Instant::from_micros(5_000_000);
        let mut store = FlowStore::new(capacity, KeyedHash::new(SECRET)).unwrap();
        let mut model: Vec<(Plain, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Open(plain) => {
                    let inside = model.iter().find(|(known, _)| known.inside() == plain.inside());
                    let outside = model.iter().find(|(known, _)| known.outside() == plain.outside());
                    prop_assert_eq!(store.find_inside(&plain.inside()), inside.map(|known| known.1));
                    prop_assert_eq!(store.find_outside(&plain.outside()), outside.map(|known| known.1));
                    if inside.is_none() && outside.is_none() {
                        let entered = store.insert(&plain.new_flow(), now);
                        prop_assert_eq!(entered.is_ok(), model.len() < capacity as usize);
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
                Step::Close(_) => {}
            }
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
                near: flow.near(),
                external: flow.external(),
                far: flow.far(),
                protocol: flow.protocol(),
            };
            prop_assert_eq!(read, *plain);
            prop_assert_eq!((flow.port, flow.subscriber, flow.realm(), flow.created_s()), (7, 9, RealmId(3), 5));
            prop_assert_eq!(flow.is_twice(), plain.near != plain.far);
        }
    }
}

#[test]
fn a_refreshed_flow_keeps_its_endpoints_and_is_alive_until_its_end() {
    let plain = Plain {
        internal: (u32::MAX, u16::MAX),
        near: (u32::MAX - 1, u16::MAX),
        external: (u32::MAX - 2, u16::MAX),
        far: (u32::MAX - 3, u16::MAX),
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
        assert_eq!((flow.state(), flow.near(), flow.far()), (state, plain.near, plain.far));
        assert!(flow.is_alive(Instant::from_micros(1 << 47)));
        assert_eq!(store.find_inside(&plain.inside()), Some(index));
    }
    assert_eq!(
        store.insert(&Plain { internal: (1, 1), far: (1, 1), ..plain }.new_flow(), Instant::ORIGIN),
        Err(TableFull)
    );
}
