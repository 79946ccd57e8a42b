//! What a plan must know of two configurations before it asks about subscribers.

use std::collections::HashMap;
use std::collections::HashSet;

use crate::policy::rules::General;
use crate::policy::rules::Match;
use crate::policy::rules::is_narrow;
use crate::policy::stand_in::Prefix6;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::settings::Settings;
use crate::snapshot::shared::Shared;
use crate::types::PoolId;
use crate::types::Prefix;
use crate::types::Protocol;

/// Differences of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// New rules.
    pub added: u64,
    /// Removed rules.
    pub removed: u64,
    /// Moved in the order.
    pub moved: u64,
    /// Of all these, rules for some destinations or ports only.
    pub narrow: u64,
}

/// See the [module](self). Asking allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// By [`Protocol::index`]; `None` if either configuration's rules name everything.
    general: [Option<General>; Protocol::COUNT],
    /// There are rules, so protocols may differ.
    has_rules: bool,
    /// Pairs of a present pool and a candidate's pool that have an address open in both.
    shares: HashSet<(PoolId, PoolId)>,
    changes: RuleChanges,
}

impl Outlook {
    /// `candidate` succeeds `present`.
    pub fn between(present: &Shared, candidate: &Shared) -> Outlook {
        let (old, new) = (&present.settings().rules, &candidate.settings().rules);
        let of = |protocol| General::of(protocol, old.iter().chain(new).map(|rule| &rule.matches));
        let open = present.addresses().filter(|(_, slot)| slot.closed.is_none());
        let shares = open.filter_map(|(_, slot)| {
            let then = candidate.slot(candidate.address_index(slot.address)?)?;
            then.closed.is_none().then_some((slot.pool, then.pool))
        });
        Outlook {
            general: Protocol::ALL.map(of),
            has_rules: !(old.is_empty() && new.is_empty()),
            shares: shares.collect(),
            changes: changes(present.settings(), candidate.settings()),
        }
    }

    /// How rules differ.
    pub fn rule_changes(&self) -> RuleChanges {
        self.changes
    }

    /// True without general traffic to compare the rules with.
    pub fn is_blind(&self) -> bool {
        self.general.iter().any(Option::is_none)
    }

    pub(crate) fn general(&self, protocol: Protocol) -> Option<&General> {
        self.general[protocol.index()].as_ref()
    }

    pub(crate) fn protocols(&self) -> &'static [Protocol] {
        if self.has_rules { &Protocol::ALL } else { &[Protocol::Udp] }
    }

    pub(crate) fn searches(&self) -> usize {
        if self.has_rules { 2 * Protocol::COUNT } else { 0 }
    }

    pub(crate) fn shares(&self, now: PoolId, then: PoolId) -> bool {
        self.shares.contains(&(now, then))
    }
}

fn changes(before: &Settings, after: &Settings) -> RuleChanges {
    let new = &after.rules;
    // By name: pool numbers are positions in the file.
    let numbers: HashMap<&str, PoolId> =
        after.pools.iter().map(|pool| pool.name.as_str()).zip((0..).map(PoolId)).collect();
    let blocks = blocks_after(before, after);
    let old: Vec<Rule> = before.rules.iter().map(|rule| renumbered(rule, before, (&numbers, &blocks))).collect();
    let alike = old.iter().zip(new).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[alike..], &new[alike..]);
    let alike = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| one == other).count();
    let (old, new) = (&old[..old.len() - alike], &new[..new.len() - alike]);
    let (removed, kept) = without(old, new);
    let (added, kept_then) = without(new, old);
    let moved = kept.iter().zip(&kept_then).filter(|(one, other)| one != other).map(|(one, _)| *one);
    let moved: Vec<&Rule> = moved.collect();
    let narrow = added.iter().chain(&removed).chain(&moved).filter(|rule| is_narrow(&rule.matches)).count();
    RuleChanges {
        added: added.len() as u64,
        removed: removed.len() as u64,
        moved: moved.len() as u64,
        narrow: narrow as u64,
    }
}

/// Equal rules count separately.
fn without<'a>(rules: &'a [Rule], others: &[Rule]) -> (Vec<&'a Rule>, Vec<&'a Rule>) {
    let mut there: HashMap<&Rule, usize> = HashMap::new();
    for rule in others {
        *there.entry(rule).or_default() += 1;
    }
    rules.iter().partition(|rule| match there.get_mut(rule) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    })
}

/// The blocks that stand for the same IPv6 prefixes after the change, by those before.
fn blocks_after(before: &Settings, after: &Settings) -> HashMap<Prefix, Prefix> {
    let then: HashMap<Prefix6, Prefix> = after.transition.stand_ins.iter().map(|one| (one.prefix, one.block)).collect();
    before.transition.stand_ins.iter().filter_map(|one| Some((one.block, *then.get(&one.prefix)?))).collect()
}

/// A removed pool has no number in other settings.
fn renumbered(
    rule: &Rule,
    before: &Settings,
    (numbers, blocks): (&HashMap<&str, PoolId>, &HashMap<Prefix, Prefix>),
) -> Rule {
    let source = blocks.get(&rule.matches.source).copied().unwrap_or(rule.matches.source);
    let rule = &Rule { matches: Match { source, ..rule.matches }, ..*rule };
    let RuleAction::Translate { pool: Some(pool), mapping } = rule.action else { return *rule };
    let number = before.pools.get(pool.index()).and_then(|pool| numbers.get(pool.name.as_str()));
    let pool = Some(number.copied().unwrap_or(PoolId(u16::MAX)));
    Rule { action: RuleAction::Translate { pool, mapping }, ..*rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::rules::PortRange;
    use crate::settings::MappingKind;
    use crate::settings::Pool;

    fn rule(port: u16, pool: u16) -> Rule {
        let mapping = MappingKind::EndpointIndependent;
        let destination_ports = if port == 0 { PortRange::ALL } else { PortRange::one(port) };
        let matches = Match { destination_ports, ..Match::ALL };
        Rule { matches, action: RuleAction::Translate { pool: Some(PoolId(pool)), mapping } }
    }

    fn with(pools: [&str; 2], rules: &[Rule]) -> Settings {
        let pool = |name: &str| Pool { name: name.into(), ..Pool::default() };
        Settings { pools: pools.map(pool).to_vec(), rules: rules.to_vec(), ..Settings::default() }
    }

    fn told(before: &Settings, after: &Settings) -> [u64; 4] {
        let RuleChanges { added, removed, moved, narrow } = changes(before, after);
        [added, removed, moved, narrow]
    }

    #[test]
    fn added_removed_moved_and_narrow_rules_are_counted() {
        let (one, two, all) = (rule(53, 0), rule(80, 0), rule(0, 1));
        let before = with(["a", "b"], &[one, two, all]);
        assert_eq!(told(&before, &before), [0; 4]);
        assert_eq!(told(&before, &with(["a", "b"], &[one, two])), [0, 1, 0, 0]);
        assert_eq!(told(&before, &with(["a", "b"], &[one, rule(81, 0), two, all])), [1, 0, 0, 1]);
        assert_eq!(told(&before, &with(["a", "b"], &[two, one, all])), [0, 0, 2, 2]);
        // The pool matters, its position does not.
        assert_eq!(told(&before, &with(["a", "b"], &[one, two, rule(0, 0)])), [1, 1, 0, 0]);
        assert_eq!(told(&before, &with(["b", "a"], &[rule(53, 1), rule(80, 1), rule(0, 0)])), [0; 4]);
        assert_eq!(told(&before, &with(["a", "c"], &[one, two, all])), [1, 1, 0, 0]);
    }
}
