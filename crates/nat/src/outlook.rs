//! What a plan has to know of two configurations before subscribers are asked about: how rules differ, which packet stands for the
//! general traffic of each protocol, and which pool has addresses of which.

use std::collections::HashMap;
use std::collections::HashSet;

use crate::rules::General;
use crate::rules::is_narrow;
use crate::settings::Rule;
use crate::settings::RuleAction;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::types::PoolId;
use crate::types::Protocol;

/// Rules that are other ones under a configuration that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// Rules that are new.
    pub added: u64,
    /// Rules that are gone.
    pub removed: u64,
    /// Rules that stand elsewhere in the order, among others.
    pub moved: u64,
    /// Those of all these that are about some destinations or ports only.
    pub narrow: u64,
}

/// See the [module](self). Made where memory may be taken; asking takes none.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    /// By [`Protocol::index`]; None: rules of one of the two name everything.
    general: [Option<General>; Protocol::COUNT],
    /// There are rules, so that protocols may differ.
    has_rules: bool,
    /// A pool now, and one then that has an address of it which is open now and then.
    shares: HashSet<(PoolId, PoolId)>,
    changes: RuleChanges,
}

impl Outlook {
    /// From the settings in force to those of `candidate`, a successor of theirs.
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

    /// Whether there is no general traffic to compare the rules by.
    pub fn is_blind(&self) -> bool {
        self.general.iter().any(Option::is_none)
    }

    pub(crate) fn general(&self, protocol: Protocol) -> Option<&General> {
        self.general[protocol.index()].as_ref()
    }

    /// The protocols that a subscriber may fare differently by.
    pub(crate) fn protocols(&self) -> &'static [Protocol] {
        if self.has_rules { &Protocol::ALL } else { &[Protocol::Udp] }
    }

    /// Searches of rules for a subscriber, now and then.
    pub(crate) fn searches(&self) -> usize {
        if self.has_rules { 2 * Protocol::COUNT } else { 0 }
    }

    /// Whether who gets any address of a pool may get the same one of another pool then.
    pub(crate) fn shares(&self, now: PoolId, then: PoolId) -> bool {
        self.shares.contains(&(now, then))
    }
}

/// Rules of one list and not of the other, and those in another order.
fn changes(before: &Settings, after: &Settings) -> RuleChanges {
    let new = &after.rules;
    // Pools are known by name: their numbers say where they stand in the file.
    let numbers: HashMap<&str, PoolId> =
        after.pools.iter().map(|pool| pool.name.as_str()).zip((0..).map(PoolId)).collect();
    let old: Vec<Rule> = before.rules.iter().map(|rule| renumbered(rule, before, &numbers)).collect();
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

/// The rules of a list that another one has not, and those that it has; each as often as it is there.
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

/// A rule with the number that its pool has under other settings; one that is gone has no number there.
fn renumbered(rule: &Rule, before: &Settings, numbers: &HashMap<&str, PoolId>) -> Rule {
    let RuleAction::Translate { pool: Some(pool), mapping } = rule.action else { return *rule };
    let number = before.pools.get(pool.index()).and_then(|pool| numbers.get(pool.name.as_str()));
    let pool = Some(number.copied().unwrap_or(PoolId(u16::MAX)));
    Rule { action: RuleAction::Translate { pool, mapping }, ..*rule }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Match;
    use crate::rules::PortRange;
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
    fn rules_that_are_added_removed_and_moved_are_counted_and_narrow_ones_among_them() {
        let (one, two, all) = (rule(53, 0), rule(80, 0), rule(0, 1));
        let before = with(["a", "b"], &[one, two, all]);
        assert_eq!(told(&before, &before), [0; 4]);
        assert_eq!(told(&before, &with(["a", "b"], &[one, two])), [0, 1, 0, 0]);
        assert_eq!(told(&before, &with(["a", "b"], &[one, rule(81, 0), two, all])), [1, 0, 0, 1]);
        assert_eq!(told(&before, &with(["a", "b"], &[two, one, all])), [0, 0, 2, 2]);
        // Another pool makes it another rule; another place of the same pool does not.
        assert_eq!(told(&before, &with(["a", "b"], &[one, two, rule(0, 0)])), [1, 1, 0, 0]);
        assert_eq!(told(&before, &with(["b", "a"], &[rule(53, 1), rule(80, 1), rule(0, 0)])), [0; 4]);
        assert_eq!(told(&before, &with(["a", "c"], &[one, two, all])), [1, 1, 0, 0]);
    }
}
