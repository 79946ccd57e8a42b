use core::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::types::Prefix;
use crate::types::RealmId;

fn first_of(rules: &[Match], key: &RuleKey) -> Option<usize> {
    rules.iter().position(|rule| rule.matches(key))
}

fn found(set: &RuleSet, key: &RuleKey) -> Option<usize> {
    set.lookup(key).and_then(|id| set.position(id))
}

/// Few different addresses, so that rules overlap and share cells.
fn prefix() -> impl Strategy<Value = Prefix> {
    let length = prop_oneof![Just(0_u8), Just(8), Just(15), Just(24), Just(31), Just(32), 0..=32_u8];
    (length, 0..4_u32, 0..4_u32, 0..4_u32).prop_map(|(length, a, b, c)| {
        let address = 10 << 24 | a << 30 | b << 8 | c;
        Prefix::new(Ipv4Addr::from_bits(address), length).unwrap_or(Prefix::ALL)
    })
}

fn ports() -> impl Strategy<Value = PortRange> {
    prop_oneof![
        3 => Just(PortRange::ALL),
        2 => (0..6_u16).prop_map(PortRange::one),
        2 => (0..40_u16, 0..40_u16).prop_map(|(first, more)| PortRange { first, last: first + more }),
        1 => any::<(u16, u16)>().prop_map(|(one, other)| PortRange { first: one.min(other), last: one.max(other) }),
    ]
}

fn rule() -> impl Strategy<Value = Match> {
    let realm = prop_oneof![2 => Just(None), 1 => (0..3_u16).prop_map(|realm| Some(RealmId(realm)))];
    let protocol = prop_oneof![1 => Just(None), 1 => prop_oneof![Just(6_u8), Just(17)].prop_map(Some)];
    (realm, protocol, prefix(), prefix(), ports(), ports()).prop_map(
        |(realm, protocol, source, destination, source_ports, destination_ports)| Match {
            realm,
            protocol,
            source,
            destination,
            source_ports,
            destination_ports,
        },
    )
}

fn key() -> impl Strategy<Value = RuleKey> {
    let address = || {
        (0..4_u32, 0..4_u32, 0..5_u32, any::<bool>())
            .prop_map(|(a, b, c, odd)| (10 << 24 | a << 30 | b << 8 | c) + if odd { 1 << 16 } else { 0 })
    };
    let port = || prop_oneof![0..80_u16, any::<u16>()];
    let protocol = prop_oneof![Just(6_u8), Just(17), Just(1)];
    (0..4_u16, protocol, address(), port(), address(), port()).prop_map(
        |(realm, protocol, source, source_port, destination, destination_port)| {
            RuleKey::new(RealmId(realm), protocol, source, source_port, destination, destination_port)
        },
    )
}

fn key_of(rule: &Match, salt: u64) -> RuleKey {
    let within = |prefix: Prefix, salt: u64| prefix.address().to_bits() | salt as u32 & !prefix.mask();
    let port = |range: PortRange, salt: u64| match salt % 3 {
        0 => range.first,
        1 => range.last,
        _ => range.first + (salt >> 8) as u16 % (range.last - range.first).max(1),
    };
    RuleKey::new(
        rule.realm.unwrap_or(RealmId(salt as u16 % 4)),
        rule.protocol.unwrap_or(salt as u8 % 200),
        within(rule.source, salt),
        port(rule.source_ports, salt >> 3),
        within(rule.destination, salt >> 5),
        port(rule.destination_ports, salt >> 7),
    )
}

#[derive(Clone, Debug)]
enum Change {
    Insert(usize, Match),
    Remove(usize),
    Replace(usize, Match),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        2 => (any::<prop::sample::Index>(), rule()).prop_map(|(at, rule)| Change::Insert(at.index(200), rule)),
        1 => any::<prop::sample::Index>().prop_map(|at| Change::Remove(at.index(200))),
        1 => (any::<prop::sample::Index>(), rule()).prop_map(|(at, rule)| Change::Replace(at.index(200), rule)),
    ]
}

fn agrees(set: &RuleSet, rules: &[Match], keys: &[RuleKey]) -> Result<(), TestCaseError> {
    prop_assert_eq!(set.len(), rules.len());
    for (position, rule) in rules.iter().enumerate() {
        prop_assert_eq!(set.at(position).map(|(_, rule)| *rule), Some(*rule));
    }
    for burst in keys.chunks(BURST_MAX) {
        let mut answers = [None; BURST_MAX];
        set.lookup_burst(burst, &mut answers);
        for (key, answer) in burst.iter().zip(answers) {
            let expected = first_of(rules, key);
            prop_assert_eq!(found(set, key), expected, "{:?}", key);
            prop_assert_eq!(answer.and_then(|id| set.position(id)), expected);
        }
    }
    Ok(())
}

fn keys_for(rules: &[Match], others: &[RuleKey]) -> Vec<RuleKey> {
    let of_rules = rules.iter().enumerate().flat_map(|(at, rule)| {
        (0..4_u64).map(move |turn| key_of(rule, (at as u64 * 4 + turn).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7))
    });
    of_rules.chain(others.iter().copied()).collect()
}

proptest! {
    #[test]
    fn the_first_rule_in_order_is_found(rules in vec(rule(), 0..150), others in vec(key(), 0..100)) {
        let set = RuleSet::new(&rules).expect("memory");
        agrees(&set, &rules, &keys_for(&rules, &others))?;
    }

    #[test]
    fn changes_lead_to_the_set_that_is_made_of_the_changed_list(
        mut rules in vec(rule(), 0..60), changes in vec(change(), 0..60), others in vec(key(), 0..100),
    ) {
        let mut set = RuleSet::new(&rules).expect("memory");
        let before = (set.clone(), rules.clone());
        for change in &changes {
            match change {
                Change::Insert(at, rule) => {
                    let at = (*at).min(rules.len());
                    rules.insert(at, *rule);
                    set.insert(at, rule).expect("memory");
                }
                Change::Remove(at) if *at < rules.len() => {
                    rules.remove(*at);
                    prop_assert!(set.remove(*at).expect("memory").is_some());
                }
                Change::Replace(at, rule) if *at < rules.len() => {
                    rules[*at] = *rule;
                    set.replace(*at, rule).expect("memory");
                }
                Change::Remove(at) => prop_assert_eq!(set.remove(*at).expect("memory"), None),
                Change::Replace(at, rule) => prop_assert_eq!(set.replace(*at, rule).expect("memory"), None),
            }
        }
        agrees(&set, &rules, &keys_for(&rules, &others))?;
        // Readers of the old set do not see the change.
        agrees(&before.0, &before.1, &keys_for(&before.1, &others))?;
    }

    #[test]
    fn a_rule_is_hidden_when_one_before_it_covers_it(rules in vec(rule(), 0..120)) {
        let set = RuleSet::new(&rules).expect("memory");
        for (position, rule) in rules.iter().enumerate() {
            let expected = rules[..position].iter().position(|before| before.covers(rule));
            prop_assert_eq!(set.hidden_by(position).and_then(|id| set.position(id)), expected);
        }
    }

    #[test]
    fn covering_and_overlapping_are_what_packets_say(one in rule(), other in rule(), salt in any::<u64>()) {
        let key = key_of(&other, salt);
        prop_assert!(other.matches(&key));
        if one.covers(&other) {
            prop_assert!(one.matches(&key) && one.overlaps(&other));
        }
        if one.matches(&key) {
            prop_assert!(one.overlaps(&other) && other.overlaps(&one));
        }
    }
}

proptest! {
    #[test]
    fn a_book_that_follows_another_is_as_one_made_anew(
        mut rules in vec((rule(), any::<bool>()), 0..60), changes in vec((change(), any::<bool>()), 0..6),
        others in vec(key(), 0..60),
    ) {
        let compiled = |rules: &[(Match, bool)]| -> Vec<Rule> {
            let action = |drops: bool| if drops { RuleAction::Drop } else { RuleAction::NoTranslation };
            rules.iter().map(|(matches, drops)| Rule { matches: *matches, action: action(*drops) }).collect()
        };
        let before = RuleBook::new(&compiled(&rules), 2).expect("memory");
        let keys: Vec<RuleKey> = rules.iter().map(|(rule, _)| rule.first()).chain(others).collect();
        for (change, drops) in changes {
            match change {
                Change::Insert(at, rule) => rules.insert(at.min(rules.len()), (rule, drops)),
                Change::Remove(at) if at < rules.len() => drop(rules.remove(at)),
                Change::Replace(at, rule) if at < rules.len() => rules[at] = (rule, drops),
                Change::Remove(_) | Change::Replace(..) => {}
            }
        }
        let rules = compiled(&rules);
        let book = RuleBook::successor(&rules, 2, &before).expect("memory");
        for key in keys {
            let expected = rules.iter().find(|rule| rule.matches.matches(&key)).map(|rule| rule.action);
            let ruling = book.ruling(&key);
            prop_assert_eq!(ruling.rule.map(|_| ruling.action), expected);
        }
        for (position, rule) in rules.iter().enumerate() {
            let (matches, action, hits) = book.at(position).expect("a rule");
            prop_assert_eq!((*matches, action, hits), (rule.matches, rule.action, 0));
        }
        prop_assert_eq!(book.set().len(), rules.len());
    }
}

fn prefix_of(address: u32, length: u8) -> Prefix {
    Prefix::new(Ipv4Addr::from_bits(address), length).expect("a length")
}

#[test]
fn many_rules_of_one_kind_make_one_table() {
    let rules: Vec<Match> = (0..20_000_u32)
        .map(|i| Match { source: prefix_of(0x6440_0000 + i, 32), ..Match::ALL })
        .chain((0..500).map(|i| Match {
            source: prefix_of(0x6440_0000 + i * 40, 32),
            protocol: Some(17),
            destination_ports: PortRange::one(53),
            ..Match::ALL
        }))
        .collect();
    let set = RuleSet::new(&rules).expect("memory");
    assert_eq!(set.table_count(), 1, "kinds that do not crowd each other's cells are merged");
    for (position, rule) in rules.iter().enumerate() {
        assert_eq!(
            found(&set, &key_of(rule, position as u64 * 31)),
            first_of(&rules, &key_of(rule, position as u64 * 31))
        );
    }
}

#[test]
fn port_ranges_do_not_explode() {
    // Each from another port on, of another length, and across borders of blocks.
    let rules: Vec<Match> = (0..4_000_u32)
        .map(|i| Match {
            destination: prefix_of(0xc633_6400 + i % 4, 32),
            protocol: Some(6),
            destination_ports: PortRange { first: (i * 13) as u16, last: (i * 13 + i % 300) as u16 },
            ..Match::ALL
        })
        .collect();
    let set = RuleSet::new(&rules).expect("memory");
    assert!(set.bytes() < 300 * rules.len(), "{} bytes", set.bytes());
    for port in 0..=u16::MAX {
        for address in 0..4 {
            let key = RuleKey::new(RealmId(0), 6, 1, 1, 0xc633_6400 + address, port);
            assert_eq!(found(&set, &key), first_of(&rules, &key));
        }
    }
}

#[test]
fn rules_keep_their_numbers_through_changes_at_one_spot() {
    let rule = |i: u32| Match { source: prefix_of(0x0a00_0000 + i, 32), ..Match::ALL };
    let mut set = RuleSet::new(&[rule(0), rule(1)]).expect("memory");
    let (first, second) = (set.at(0).expect("a rule").0, set.at(1).expect("a rule").0);
    // More insertions than there are orders between two rules: the set is rebuilt meanwhile.
    let ids: Vec<RuleId> = (2..100).map(|i| set.insert(1, &rule(i)).expect("memory")).collect();
    assert_eq!((set.at(0).expect("a rule").0, set.at(99).expect("a rule").0), (first, second));
    for (i, id) in (2_u32..).zip(&ids) {
        assert_eq!(set.lookup(&rule(i).first()), Some(*id));
        assert_eq!(set.position(*id), Some(100 - i as usize));
    }
    let removed = set.remove(50).expect("memory").expect("a rule");
    assert_eq!(set.position(removed), None);
    assert_eq!(set.insert(0, &rule(200)).expect("memory"), removed, "numbers are used again");
}

#[test]
fn more_kinds_of_rules_than_tables_are_still_found() {
    let rules: Vec<Match> = (0..3_000_u32)
        .map(|i| Match {
            source: prefix_of(i.wrapping_mul(0x9e37_79b9), (i % 33) as u8),
            destination: prefix_of(i.wrapping_mul(0x85eb_ca6b), (i / 33 % 33) as u8),
            protocol: (i % 2 == 0).then_some(6),
            destination_ports: if i % 3 == 0 { PortRange::one(i as u16) } else { PortRange::ALL },
            ..Match::ALL
        })
        .collect();
    let mut rules: Vec<Match> =
        rules.into_iter().filter(|rule| rule.source.length() + rule.destination.length() > 20).collect();
    let mut set = RuleSet::new(&rules).expect("memory");
    assert!(set.table_count() <= 64);
    let last = rules.len();
    let more = Match { protocol: Some(17), source_ports: PortRange::one(7), ..Match::ALL };
    set.insert(last, &more).expect("memory");
    rules.push(more);
    for (position, rule) in rules.iter().enumerate() {
        for turn in 0..3 {
            let key = key_of(rule, (position as u64 * 3 + turn) * 0x1234_5677);
            assert_eq!(found(&set, &key), first_of(&rules, &key));
        }
    }
}
