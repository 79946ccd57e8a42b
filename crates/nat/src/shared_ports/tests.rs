use std::collections::BTreeMap;
use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: [u64; 4] = [2, 7, 1, 8];

#[derive(Clone, Debug)]
enum Step {
    Add(u32, u16),
    /// Of those that are there, counted around.
    Take(usize),
    GiveBack(usize),
    Remove(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u32..4, 1_u16..200).prop_map(|(group, port)| Step::Add(group, port)),
        any::<usize>().prop_map(Step::Take),
        any::<usize>().prop_map(Step::GiveBack),
        any::<usize>().prop_map(Step::Remove),
    ]
}

fn group(number: u32) -> Group {
    let protocol = if number & 1 == 0 { Protocol::Udp } else { Protocol::Tcp };
    Group::new(AddressIndex(number / 2), protocol, PortClass::High)
}

/// Every port that a group's picks give.
fn ports_of(ports: &SharedPorts, number: u32) -> BTreeSet<u16> {
    let mut random = Random::new(SECRET);
    let tries = 40 * ports.count(group(number)) as usize;
    let picked = (0..tries).filter_map(|_| ports.pick(group(number), &mut random));
    picked.filter_map(|slot| ports.get(slot)).map(SharedPort::port).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn groups_have_the_ports_a_plain_set_has(capacity in 1_u32..40, steps in vec(step(), 0..200)) {
        let now = Instant::from_micros(10_000_000);
        let mut ports = SharedPorts::new(capacity, 2, KeyedHash::new(SECRET)).unwrap();
        // By slot: group, port, flows.
        let mut model: BTreeMap<u32, (u32, u16, u32)> = BTreeMap::new();
        let nth = |model: &BTreeMap<u32, (u32, u16, u32)>, n: usize| model.keys().nth(n % model.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Add(number, port) => {
                    if model.values().any(|known| (known.0, known.1) == (number, port)) {
                        continue;
                    }
                    let added = ports.add(group(number), port, now);
                    prop_assert_eq!(added.is_ok(), model.len() < capacity as usize);
                    if let Ok(slot) = added {
                        prop_assert!(model.insert(slot, (number, port, 0)).is_none());
                    }
                }
                Step::Take(n) => if let Some(slot) = nth(&model, n) {
                    ports.take(slot);
                    model.entry(slot).and_modify(|known| known.2 += 1);
                },
                Step::GiveBack(n) => if let Some(slot) = nth(&model, n) && model[&slot].2 > 0 {
                    ports.give_back(slot, now);
                    model.entry(slot).and_modify(|known| known.2 -= 1);
                },
                Step::Remove(n) => if let Some(slot) = nth(&model, n) && model[&slot].2 == 0 {
                    ports.remove(slot);
                    model.remove(&slot);
                },
            }
        }
        prop_assert_eq!(ports.len(), model.len());
        for slot in 1..ports.walk_end() {
            let found = ports.get(slot).map(|known| (known.group(), known.port(), known.flows()));
            prop_assert_eq!(found, model.get(&slot).map(|known| (group(known.0), known.1, known.2)));
        }
        for number in 0..4 {
            let wanted: BTreeSet<u16> = model.values().filter(|known| known.0 == number).map(|known| known.1).collect();
            prop_assert_eq!(ports.count(group(number)) as usize, wanted.len());
            // A random port is missed in 40 n picks of n with probability e^-40.
            prop_assert_eq!(ports_of(&ports, number), wanted);
        }
    }
}

#[test]
fn a_port_is_idle_since_its_last_flow_ended() {
    let at = |second: u64| Instant::from_micros(second * 1_000_000);
    let mut ports = SharedPorts::new(1, 1, KeyedHash::new(SECRET)).unwrap();
    let slot = ports.add(group(0), 5_000, at(10)).unwrap();
    assert!(ports.is_idle_for(slot, 20, at(30)) && !ports.is_idle_for(slot, 21, at(30)));
    ports.take(slot);
    ports.take(slot);
    ports.give_back(slot, at(40));
    assert!(!ports.is_idle_for(slot, 0, at(100)), "one flow is left");
    ports.give_back(slot, at(50));
    assert!(ports.is_idle_for(slot, 50, at(100)) && !ports.is_idle_for(slot, 51, at(100)));
}

#[test]
fn a_group_says_what_it_was_made_of() {
    for address in [0, 1, 77_777] {
        for protocol in Protocol::ALL {
            for class in [PortClass::Low, PortClass::High] {
                let group = Group::new(AddressIndex(address), protocol, class);
                assert_eq!((group.address(), group.protocol()), (AddressIndex(address), protocol));
            }
        }
    }
}
