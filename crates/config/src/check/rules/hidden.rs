//! Rules that never apply, because one earlier rule covers all of their packets. A rule that only
//! several earlier rules cover together is not searched for.
//!
//! After a reload most rules are those that are in use already. None of these hides another, so
//! that only rules that are new, or have moved, are compared with all.

use core::ops::Range;
use std::collections::BTreeMap;

use nat::Protocol;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleSet;
use nat::settings::FilterRule;
use nat::settings::Rule;
use nat::types::Prefix;

use crate::check::rules::origin::Sources;
use crate::report::Place;
use crate::report::Report;

/// Hidden rules that are reported one by one; more are counted.
const REPORTED_MAX: usize = 20;
/// New rules that are compared with all others one by one; for more, all rules are searched.
const CHANGED_MAX: usize = 32;

/// A rule that never applies, and the earlier ones that cover it, by position. Two of a filter: one
/// for each direction.
pub(super) struct Hidden {
    position: usize,
    by: Vec<usize>,
}

/// The hidden ones of these rules, in order; `checked` are rules in the same VRFs, none of which is
/// hidden.
pub(super) fn find_rules(rules: &[Rule], checked: Option<&[Rule]>, realms: u16, report: &mut Report) -> Vec<Hidden> {
    let changed = checked.map(|checked| changed(rules, checked)).filter(|changed| changed.len() <= CHANGED_MAX);
    let Some(changed) = changed else {
        return find("rule", rules.iter().map(|rule| rule.matches).enumerate(), realms, report);
    };
    let covers = |one: &Rule, other: &Rule| of_any(one.matches, realms).covers(&of_any(other.matches, realms));
    let mut hidden: BTreeMap<usize, usize> = BTreeMap::new();
    for (at, rule) in changed.clone().zip(&rules[changed]) {
        if let Some(by) = rules[..at].iter().position(|earlier| covers(earlier, rule)) {
            hidden.insert(at, by);
        }
        for (later, _) in (0..).zip(rules).skip(at + 1).filter(|(_, later)| covers(rule, later)) {
            hidden.entry(later).or_insert(at);
        }
    }
    hidden.into_iter().map(|(position, by)| Hidden { position, by: vec![by] }).collect()
}

/// Where a list differs from the checked one: all rules outside of this range are there, in the
/// same order.
fn changed(rules: &[Rule], checked: &[Rule]) -> Range<usize> {
    let is_same = |(one, other): &(&Rule, &Rule)| one.matches == other.matches;
    let first = rules.iter().zip(checked).take_while(is_same).count();
    let behind = rules[first..].iter().rev().zip(checked[first..].iter().rev()).take_while(is_same).count();
    first..rules.len() - behind
}

/// With one VRF, a rule that names it matches as much as one that does not.
fn of_any(rule: Match, realms: u16) -> Match {
    if realms > 1 { rule } else { Match { realm: None, ..rule } }
}

/// The hidden ones of these rules, in order.
fn find(what: &str, rules: impl Iterator<Item = (usize, Match)>, realms: u16, report: &mut Report) -> Vec<Hidden> {
    let (positions, matches): (Vec<usize>, Vec<Match>) = rules.map(|(at, rule)| (at, of_any(rule, realms))).unzip();
    match RuleSet::new(&matches) {
        Ok(set) => {
            let by = |at: usize| positions.get(set.position(set.hidden_by(at)?)?).copied();
            let hidden = |(at, position): (usize, &usize)| Some(Hidden { position: *position, by: vec![by(at)?] });
            positions.iter().enumerate().filter_map(hidden).collect()
        }
        Err(error) => {
            let place = Place { path: what.to_owned().into(), line: None };
            report.fault(&place, error.to_string(), matches.len().to_string(), "write fewer, or add memory");
            Vec::new()
        }
    }
}

/// The hidden ones of these filters, in order. A filter is hidden if it is in each of its
/// directions. `checked`: filters in the same VRFs, none of which is hidden.
pub(super) fn find_filters(
    filters: &[FilterRule],
    checked: Option<&[FilterRule]>,
    realms: u16,
    report: &mut Report,
) -> Vec<Hidden> {
    // One that differs may hide the other direction of one that was hidden in one of two.
    if checked == Some(filters) {
        return Vec::new();
    }
    let directions: [fn(&FilterRule) -> bool; 2] = [|filter| filter.out, |filter| filter.back];
    let found = directions.map(|has| {
        let some = filters.iter().enumerate().filter(|(_, filter)| has(filter));
        find("filter", some.map(|(position, filter)| (position, filter.matches)), realms, report)
    });
    let hidden = |(position, filter): (usize, &FilterRule)| {
        let mut by = Vec::new();
        for (has, found) in directions.iter().zip(&found) {
            if has(filter) {
                let at = found.binary_search_by_key(&position, |hidden| hidden.position).ok()?;
                by.extend_from_slice(&found[at].by);
            }
        }
        by.sort_unstable();
        by.dedup();
        (!by.is_empty()).then_some(Hidden { position, by })
    };
    filters.iter().enumerate().filter_map(hidden).collect()
}

/// What a rule matches, as it is written.
fn written(matches: &Match, shown: &dyn Fn(Prefix) -> String) -> String {
    let mut parts = Vec::new();
    parts.extend(matches.protocol.map(|protocol| match Protocol::from_number(protocol) {
        Some(named) => format!("protocol {}", named.name()),
        None => format!("protocol {protocol}"),
    }));
    parts.extend((matches.source != Prefix::ALL).then(|| format!("inside {}", shown(matches.source))));
    parts.extend((matches.destination != Prefix::ALL).then(|| format!("outside {}", matches.destination)));
    for (key, ports) in [("inside_ports", matches.source_ports), ("outside_ports", matches.destination_ports)] {
        parts.extend((ports != PortRange::ALL).then(|| format!("{key} {ports}")));
    }
    if parts.is_empty() { "everything".to_owned() } else { parts.join(", ") }
}

/// Reports them; `matches` is what the rule at a position matches.
pub(super) fn report_all(
    what: &str,
    found: &[Hidden],
    matches: impl Fn(usize) -> Option<Match>,
    (sources, shown): (&Sources<'_>, &dyn Fn(Prefix) -> String),
    report: &mut Report,
) {
    for hidden in found.iter().take(REPORTED_MAX) {
        let (problem, remedy) = match hidden.by[..] {
            [out, back] => (
                format!(
                    "never applies: the {what}s {} and {} come before it, and each covers one direction of it",
                    sources.on_line(out),
                    sources.on_line(back)
                ),
                "remove it, or move it before one of them",
            ),
            _ => {
                let by = hidden.by.first().map_or_else(String::new, |by| sources.on_line(*by));
                (
                    format!("never applies: the {what} {by} comes before it and covers all of it"),
                    "remove it, or move it before the other",
                )
            }
        };
        let seen = matches(hidden.position).map_or_else(String::new, |matches| written(&matches, shown));
        sources.fault(hidden.position, problem, &seen, remedy, report);
    }
    if let Some(next) = found.get(REPORTED_MAX) {
        let more = found.len() - REPORTED_MAX;
        let problem = format!("is the first of {more} more that never apply, because earlier ones cover them");
        let seen = format!("{} in all", found.len());
        sources.fault(next.position, problem, &seen, "remove them, or move specific ones first", report);
    }
}

#[cfg(test)]
mod tests {
    use nat::settings::RuleAction;
    use nat::types::RealmId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn rule() -> impl Strategy<Value = Rule> {
        let prefix = || {
            (24..=27_u8, 0..4_u32).prop_map(|(length, part)| {
                let address = 0x0a00_0000_u32 | (part << 6 & (u32::MAX << (32 - length)));
                Prefix::new(address.into(), length).unwrap_or(Prefix::ALL)
            })
        };
        let realm = prop_oneof![3 => Just(None), 1 => (0..2_u16).prop_map(|realm| Some(RealmId(realm)))];
        (realm, prefix(), prefix()).prop_map(|(realm, source, destination)| {
            let matches = Match { realm, source, destination, ..Match::ALL };
            Rule { matches, action: RuleAction::Drop }
        })
    }

    fn places(hidden: Vec<Hidden>) -> Vec<(usize, Vec<usize>)> {
        hidden.into_iter().map(|hidden| (hidden.position, hidden.by)).collect()
    }

    proptest! {
        #[test]
        fn comparing_what_changed_finds_what_a_search_of_all_finds(
            rules in vec(rule(), 0..60),
            new in vec(rule(), 0..4),
            place in any::<(prop::sample::Index, u8)>(),
            realms in 1..3_u16,
        ) {
            let mut report = Report::new("natrix.toml", "");
            let mut checked: Vec<Rule> = Vec::new();
            for rule in rules {
                let covers = |it: &Rule| of_any(it.matches, realms).covers(&of_any(rule.matches, realms));
                if !checked.iter().any(covers) {
                    checked.push(rule);
                }
            }
            let start = place.0.index(checked.len() + 1);
            let end = (start + usize::from(place.1 % 3)).min(checked.len());
            let mut rules = checked.clone();
            rules.splice(start..end, new);
            let all = places(find_rules(&rules, None, realms, &mut report));
            prop_assert_eq!(places(find_rules(&rules, Some(&checked), realms, &mut report)), all);
        }
    }
}
