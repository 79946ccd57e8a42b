//! Whether the rules before one take all of its packets together, so that it never comes to its turn.
//!
//! ```text
//!   what is left of the rule ─► its first packet ─► whose is it? ─► the rule's own: it has its turn
//!        ▲                                              └─► one's before: what that one takes is cut off
//!        └──── at most six smaller pieces ◄────────────────────────────────┘
//! ```
//!
//! Each step costs a lookup, whatever the number of rules. As not every union can be told in few steps, they are counted.

use super::key::Match;
use super::key::PortRange;
use super::key::RuleKey;
use super::set::RuleId;
use super::set::RuleSet;
use crate::types::Prefix;
use crate::types::RealmId;

/// What rules fix: realm, protocol, source, destination, source port, destination port.
const SIDES: usize = 6;
/// Packets of a rule that are looked up before anything is cut: whoever has one of them is settled.
const SAMPLES: u32 = 16;

/// Packets between two corners, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    first: [u32; SIDES],
    last: [u32; SIDES],
}

/// What is known of a rule and those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Covered {
    /// Some packet is its own.
    No,
    /// By these together, in their order; each takes some of its packets.
    By(Vec<RuleId>),
    /// The steps did not suffice.
    Unsettled,
}

impl Piece {
    /// The packets of a rule where there are so many realms.
    fn of(rule: &Match, realms: u16) -> Piece {
        let any = |one: Option<u32>, last: u32| one.map_or((0, last), |one| (one, one));
        let prefix = |prefix: Prefix| (prefix.address().to_bits(), prefix.last().to_bits());
        let ports = |range: PortRange| (u32::from(range.first), u32::from(range.last));
        let sides = [
            any(rule.realm.map(|realm| u32::from(realm.0)), u32::from(realms.max(1)) - 1),
            any(rule.protocol.map(u32::from), u32::from(u8::MAX)),
            prefix(rule.source),
            prefix(rule.destination),
            ports(rule.source_ports),
            ports(rule.destination_ports),
        ];
        Piece { first: sides.map(|(first, _)| first), last: sides.map(|(_, last)| last) }
    }

    fn key(sides: &[u32; SIDES]) -> RuleKey {
        let [realm, protocol, source, destination, source_port, destination_port] = *sides;
        RuleKey::new(
            RealmId(realm as u16),
            protocol as u8,
            source,
            source_port as u16,
            destination,
            destination_port as u16,
        )
    }

    /// Packets all over it, the last among them.
    fn samples(&self) -> impl Iterator<Item = RuleKey> + '_ {
        // Odd parts of 2^32, so that each side goes its own way through its values.
        const STEPS: [u32; SIDES] = [0x9e37_79b9, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0xd3a2_646d];
        (0..SAMPLES).map(|turn| {
            let at = |side: usize| {
                let span = u64::from(self.last[side] - self.first[side]);
                let part = if turn == 0 { u32::MAX } else { turn.wrapping_mul(STEPS[side]) };
                self.first[side] + ((span * u64::from(part) + (u64::from(u32::MAX) >> 1)) / u64::from(u32::MAX)) as u32
            };
            Piece::key(&core::array::from_fn(at))
        })
    }

    /// Adds what is left of it without `taken`, which has its first packet.
    fn without(mut self, taken: &Piece, left: &mut Vec<Piece>) {
        for side in 0..SIDES {
            let end = taken.last[side];
            if end < self.last[side] {
                let mut beyond = self;
                beyond.first[side] = end + 1;
                left.push(beyond);
                self.last[side] = end;
            }
        }
    }
}

impl RuleSet {
    /// Whether the rules before the one at `position` take all of its packets together, as far as so many `steps` tell, which are
    /// counted down; where packets come from so many realms. One look at its first packet is free, and settles nearly all rules.
    pub fn covered(&self, position: usize, realms: u16, steps: &mut u32) -> Covered {
        let Some((own, rule)) = self.at(position) else { return Covered::No };
        // The first that matches a packet of the rule is the rule itself or stands before it.
        let before = |key: &RuleKey| self.lookup(key).filter(|winner| *winner != own);
        let whole = Piece::of(rule, realms);
        if before(&Piece::key(&whole.first)).is_none() || whole.samples().any(|key| before(&key).is_none()) {
            return Covered::No;
        }
        let mut by: Vec<RuleId> = Vec::new();
        let mut left = vec![whole];
        while let Some(piece) = left.pop() {
            let Some(less) = steps.checked_sub(1) else { return Covered::Unsettled };
            *steps = less;
            let Some(winner) = before(&Piece::key(&piece.first)) else { return Covered::No };
            let Some(taken) = self.rule(winner) else { return Covered::No };
            piece.without(&Piece::of(taken, realms), &mut left);
            by.push(winner);
        }
        by.sort_unstable_by_key(|rule| (self.order(rule.0), *rule));
        by.dedup();
        Covered::By(by)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Rules over so few packets that all can be looked at: two realms, two protocols, four addresses a side, four ports.
    fn small_rule() -> impl Strategy<Value = Match> {
        let realm = prop_oneof![2 => Just(None), 1 => (0..2_u16).prop_map(|realm| Some(RealmId(realm)))];
        let prefix = || {
            (30..=32_u8, 0..4_u32).prop_map(|(length, host)| {
                Prefix::new(Ipv4Addr::from_bits(0x0a00_0000 | host), length).expect("a length")
            })
        };
        let ports =
            || (0..4_u16, 0..4_u16).prop_map(|(one, other)| PortRange { first: one.min(other), last: one.max(other) });
        (realm, prefix(), prefix(), ports()).prop_map(|(realm, source, destination, destination_ports)| Match {
            realm,
            protocol: Some(6),
            source,
            destination,
            destination_ports,
            source_ports: PortRange::one(7),
        })
    }

    fn packets() -> impl Iterator<Item = RuleKey> {
        (0..2 * 4 * 4 * 4).map(|n: u32| {
            let address = |n: u32| 0x0a00_0000 | (n % 4);
            RuleKey::new(RealmId((n % 2) as u16), 6, address(n / 2), 7, address(n / 8), (n / 32) as u16)
        })
    }

    proptest! {
        #[test]
        fn a_rule_is_covered_when_it_has_no_packet_of_its_own(rules in vec(small_rule(), 1..40)) {
            let set = RuleSet::new(&rules).expect("memory");
            for (position, rule) in rules.iter().enumerate() {
                let own = packets().any(|key| rule.matches(&key) && !rules[..position].iter().any(|it| it.matches(&key)));
                match set.covered(position, 2, &mut 100_000) {
                    Covered::No => prop_assert!(own, "{position}"),
                    Covered::Unsettled => prop_assert!(false, "{position}"),
                    Covered::By(by) => {
                        prop_assert!(!own, "{position}");
                        let by: Vec<usize> = by.iter().filter_map(|id| set.position(*id)).collect();
                        prop_assert!(by.is_sorted() && by.iter().all(|before| *before < position));
                        let taken = |key: &RuleKey| by.iter().any(|before| rules[*before].matches(key));
                        prop_assert!(packets().filter(|key| rule.matches(key)).all(|key| taken(&key)), "{position} by {by:?}");
                    }
                }
            }
        }
    }

    fn prefix(text: [u8; 4], length: u8) -> Match {
        Match { source: Prefix::new(text.into(), length).expect("a length"), ..Match::ALL }
    }

    #[test]
    fn two_halves_cover_the_whole_and_what_is_left_out_does_not() {
        let halves = [prefix([10, 0, 0, 0], 25), prefix([10, 0, 0, 128], 25), prefix([10, 0, 0, 0], 24)];
        let set = RuleSet::new(&halves).expect("memory");
        assert_eq!(set.covered(2, 1, &mut 10), Covered::By(vec![RuleId(0), RuleId(1)]));
        assert_eq!(set.covered(1, 1, &mut 10), Covered::No);
        // All but one address.
        let mut rules: Vec<Match> =
            (0..=255).filter(|host| *host != 77).map(|host| prefix([10, 0, 0, host], 32)).collect();
        rules.push(prefix([10, 0, 0, 0], 24));
        let set = RuleSet::new(&rules).expect("memory");
        assert_eq!(set.covered(255, 1, &mut 1_000), Covered::No);
        assert_eq!(set.covered(254, 1, &mut 0), Covered::No, "whoever has his first packet needs no steps");
    }

    #[test]
    fn all_realms_together_are_any_realm() {
        let of = |realm: u16| Match { realm: Some(RealmId(realm)), ..prefix([10, 0, 0, 0], 24) };
        let set = RuleSet::new(&[of(0), of(1), prefix([10, 0, 0, 0], 24)]).expect("memory");
        assert_eq!(set.covered(2, 2, &mut 10), Covered::By(vec![RuleId(0), RuleId(1)]));
        assert_eq!(set.covered(2, 3, &mut 10), Covered::No);
    }

    #[test]
    fn steps_are_counted_and_end() {
        let mut rules: Vec<Match> = (0..=255).map(|host| prefix([10, 0, 0, host], 32)).collect();
        rules.push(prefix([10, 0, 0, 0], 24));
        let set = RuleSet::new(&rules).expect("memory");
        let mut steps = 300;
        assert!(matches!(set.covered(256, 1, &mut steps), Covered::By(by) if by.len() == 256));
        assert_eq!(steps, 300 - 256);
        assert_eq!(set.covered(256, 1, &mut steps), Covered::Unsettled);
        assert_eq!(steps, 0);
    }
}
