use std::collections::BTreeMap;
use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const SECRET: [u64; 4] = [2, 7, 1, 8];

#[derive(Clone, Debug)]
enum Step {
    Add(u32, u16),
    /// Modulo the existing ones.
    Take(usize, u32),
    GiveBack(usize),
    Remove(usize),
}

#[derive(Clone, Debug, Default)]
struct Known {
    group: u32,
    port: u16,
    flows: Vec<u32>,
    opener: u32,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u32..4, 1_u16..200).prop_map(|(group, port)| Step::Add(group, port)),
        (any::<usize>(), 1_u32..4).prop_map(|(n, subscriber)| Step::Take(n, subscriber)),
        any::<usize>().prop_map(Step::GiveBack),
        any::<usize>().prop_map(Step::Remove),
    ]
}

fn group(number: u32) -> Group {
    let protocol = if number & 1 == 0 { Protocol::Udp } else { Protocol::Tcp };
    Group::new(AddressIndex(number / 2), protocol, PortClass::High)
}

fn ports_of(ports: &SharedPorts, number: u32) -> BTreeSet<u16> {
    let mut random = Random::new(SECRET);
    let tries = 40 * ports.count(group(number)) as usize;
    let picked = (0..tries).filter_map(|_| ports.pick(group(number), &mut random));
    picked.filter_map(|slot| ports.get(slot)).map(SharedPort::port).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn groups_have_the_ports_a_plain_set_has(capacity in 1_u32..40, workers in 1_usize..3, steps in vec(step(), 0..200)) {
        let now = Instant::from_micros(10_000_000);
        let mut ports = SharedPorts::new(capacity, 2, workers, KeyedHash::new(SECRET)).unwrap();
        let mut model: BTreeMap<u32, Known> = BTreeMap::new();
        let nth = |model: &BTreeMap<u32, Known>, n: usize| model.keys().nth(n % model.len().max(1)).copied();
        for step in steps {
            match step {
                Step::Add(number, port) => {
                    if model.values().any(|known| (known.group, known.port) == (number, port)) {
                        continue;
                    }
                    let added = ports.add(group(number), port, now);
                    prop_assert_eq!(added.is_ok(), model.len() < capacity as usize);
                    if let Ok(slot) = added {
                        let before = model.insert(slot, Known { group: number, port, ..Known::default() });
                        prop_assert!(before.is_none());
                    }
                }
                Step::Take(n, subscriber) => if let Some(slot) = nth(&model, n) {
                    let known = model.get_mut(&slot).unwrap();
                    let opens = known.flows.is_empty();
                    if opens {
                        known.opener = subscriber;
                    }
                    known.flows.push(subscriber);
                    ports.take(slot, subscriber, opens);
                },
                Step::GiveBack(n) => if let Some(slot) = nth(&model, n) && !model[&slot].flows.is_empty() {
                    let known = model.get_mut(&slot).unwrap();
                    let subscriber = known.flows.swap_remove(n / 7 % known.flows.len());
                    let is_over = known.opener == subscriber && !known.flows.contains(&subscriber);
                    let was_last = ports.get(slot).is_some_and(|port| port.is_last_of_opener(subscriber));
                    prop_assert_eq!(was_last, is_over);
                    let given_back = GivenBack { is_idle: known.flows.is_empty(), counts_no_more: is_over };
                    prop_assert_eq!(ports.give_back(slot, subscriber, now), given_back);
                    if is_over {
                        known.opener = 0;
                    }
                },
                Step::Remove(n) => if let Some(slot) = nth(&model, n) && model[&slot].flows.is_empty() {
                    ports.remove(slot);
                    model.remove(&slot);
                },
            }
        }
        prop_assert_eq!(ports.len(), model.len());
        for slot in 1..ports.walk_end() {
            let found = ports.get(slot).map(|known| (known.group(), known.port(), known.flows(), known.opener));
            prop_assert_eq!(found, model.get(&slot).map(|known| (group(known.group), known.port, known.flows.len() as u32, known.opener)));
        }
        for number in 0..4 {
            let wanted: BTreeSet<u16> = model.values().filter(|known| known.group == number).map(|known| known.port).collect();
            prop_assert_eq!(ports.count(group(number)) as usize, wanted.len());
            // 40 n picks of n miss a random port with probability e^-40.
            prop_assert_eq!(ports_of(&ports, number), wanted);
            for port in 1..200 {
                let found = ports.find_port(group(number), port);
                let known = model.iter().find(|(_, known)| (known.group, known.port) == (number, port));
                prop_assert_eq!(found, known.map(|(slot, _)| *slot).filter(|_| workers > 1));
            }
        }
    }
}

#[test]
fn a_port_is_idle_since_its_last_flow_ended() {
    let at = |second: u64| Instant::from_micros(second * 1_000_000);
    let mut ports = SharedPorts::new(1, 1, 1, KeyedHash::new(SECRET)).unwrap();
    let slot = ports.add(group(0), 5_000, at(10)).unwrap();
    assert!(ports.is_idle_for(slot, 20, at(30)) && !ports.is_idle_for(slot, 21, at(30)));
    ports.take(slot, 1, true);
    ports.take(slot, 2, false);
    assert_eq!(ports.give_back(slot, 1, at(40)), GivenBack { is_idle: false, counts_no_more: true });
    assert!(!ports.is_idle_for(slot, 0, at(100)), "one flow is left");
    let given_back = ports.give_back(slot, 2, at(50));
    assert_eq!(given_back, GivenBack { is_idle: true, counts_no_more: false }, "it counts for nobody any more");
    assert!(ports.is_idle_for(slot, 50, at(100)) && !ports.is_idle_for(slot, 51, at(100)));
    ports.begin_idling(slot, at(70));
    assert!(ports.is_idle_for(slot, 30, at(100)) && !ports.is_idle_for(slot, 31, at(100)));
    ports.begin_idling(slot, Instant::from_micros(70_900_000));
    assert!(!ports.is_idle_for(slot, 30, at(100)), "29.1 s are not 30");
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

#[test]
fn a_subscriber_without_ports_joins_ports_in_use() {
    let now = Instant::from_micros(1);
    let mut ports = SharedPorts::new(1, 1, 1, KeyedHash::new(SECRET)).unwrap();
    let slot = ports.add(group(0), 5_000, now).unwrap();
    let may = |ports: &SharedPorts, subscriber, may_open, users| {
        ports.get(slot).unwrap().may_carry(subscriber, may_open, || users > 0)
    };
    assert!(may(&ports, 1, true, 0) && !may(&ports, 1, false, 0));
    assert!(may(&ports, 1, false, 1), "flows of another worker are there");
    for n in 0..u16::MAX {
        ports.take(slot, 1, n == 0);
    }
    assert!(
        !may(&ports, 1, true, 1) && !may(&ports, 1, false, 1),
        "one more of its opener could not be distinguished from others'"
    );
    assert!(may(&ports, 2, false, 1));
    ports.give_back(slot, 1, now);
    assert!(may(&ports, 1, false, 1));
}
