//! Rules that never come to their turn, as one before covers all of their packets, or several do together.
//!
//! Whether several do is found by looking up packets of the rule ([`RuleSet::covered`]): nearly all are settled by the first. No rule
//! gets more than [`STEPS_OF_ONE`] lookups, and all of a list no more than [`STEPS_OF_ALL`].

use nat::Protocol;
use nat::rules::Covered;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleId;
use nat::rules::RuleSet;
use nat::settings::FilterRule;
use nat::types::Prefix;

use crate::check::rules::origin::Sources;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;

/// Told one by one; more are counted.
const TOLD_MAX: usize = 20;
/// Of those that hide another together, named; more are counted.
const NAMED_MAX: usize = 4;
/// Steps for one rule to find out whether several hide it together, each a lookup.
const STEPS_OF_ONE: u32 = 4_096;
/// Steps for all rules of a list: about a second.
const STEPS_OF_ALL: u32 = 4_000_000;

/// What is found of one list; all by position.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Who never applies, and by whom that is.
    hidden: Vec<(usize, By)>,
    /// Of whom it is not known, as too many pieces of them are taken by others.
    unsettled: Vec<usize>,
}

/// Who takes all packets of another.
#[derive(Clone, Debug, PartialEq, Eq)]
enum By {
    One(usize),
    Several(Box<[usize]>),
}

impl By {
    fn positions(&self) -> &[usize] {
        match self {
            By::One(by) => core::slice::from_ref(by),
            By::Several(by) => by,
        }
    }

    /// Both together.
    fn and(&self, other: &By) -> By {
        let mut all: Vec<usize> = self.positions().iter().chain(other.positions()).copied().collect();
        all.sort_unstable();
        all.dedup();
        if let [one] = all[..] { By::One(one) } else { By::Several(all.into()) }
    }
}

/// Who is covered by one before, or by several together, where there are so many VRFs.
pub(super) fn find(what: &str, rules: impl Iterator<Item = (usize, Match)>, realms: u16, report: &mut Report) -> Found {
    let (positions, matches): (Vec<usize>, Vec<Match>) = rules.unzip();
    match RuleSet::new(&matches) {
        Ok(set) => find_in(&set, &positions, realms, STEPS_OF_ALL),
        Err(error) => {
            let place = Place { path: what.to_owned().into(), line: None };
            report.fault(&place, error.to_string(), matches.len().to_string(), "write fewer, or add memory");
            Found::default()
        }
    }
}

/// `positions` are what the set's own stand for.
fn find_in(set: &RuleSet, positions: &[usize], realms: u16, mut steps_left: u32) -> Found {
    let mut found = Found::default();
    let of = |rule: RuleId| set.position(rule).and_then(|at| positions.get(at)).copied();
    for (at, position) in positions.iter().enumerate() {
        if let Some(by) = set.hidden_by(at).and_then(of) {
            found.hidden.push((*position, By::One(by)));
            continue;
        }
        let given = steps_left.min(STEPS_OF_ONE);
        let mut steps = given;
        match set.covered(at, realms, &mut steps) {
            Covered::No => {}
            Covered::By(by) => {
                let by: Vec<usize> = by.into_iter().filter_map(of).collect();
                found.hidden.push((*position, if let [one] = by[..] { By::One(one) } else { By::Several(by.into()) }));
            }
            Covered::Unsettled => found.unsettled.push(*position),
        }
        steps_left -= given - steps;
    }
    found
}

/// The same of filters: each is about one direction or both, and is hidden where it is in all of its own.
pub(super) fn find_filters<'f>(
    filters: impl Iterator<Item = &'f FilterRule> + Clone,
    realms: u16,
    report: &mut Report,
) -> Found {
    let directions: [fn(&FilterRule) -> bool; 2] = [|filter| filter.out, |filter| filter.back];
    let [out, back] = directions.map(|wanted| {
        let some = filters.clone().enumerate().filter(|(_, filter)| wanted(filter));
        find("filter", some.map(|(position, filter)| (position, filter.matches)), realms, report)
    });
    let mut found = Found::default();
    for (position, filter) in filters.enumerate() {
        let by = |found: &Found| {
            let at = found.hidden.binary_search_by_key(&position, |(hidden, _)| *hidden).ok()?;
            Some(found.hidden[at].1.clone())
        };
        let may_be = |found: &Found| found.unsettled.binary_search(&position).is_ok();
        let asked: Vec<&Found> = [(filter.out, &out), (filter.back, &back)]
            .into_iter()
            .filter_map(|(is_it, found)| is_it.then_some(found))
            .collect();
        let all: Option<Vec<By>> = asked.iter().map(|found| by(found)).collect();
        match all.and_then(|all| all.into_iter().reduce(|one, other| one.and(&other))) {
            Some(by) => found.hidden.push((position, by)),
            None if asked.iter().any(|found| may_be(found))
                && asked.iter().all(|found| may_be(found) || by(found).is_some()) =>
            {
                found.unsettled.push(position);
            }
            None => {}
        }
    }
    found
}

/// What a rule matches, as it is written.
fn written(matches: &Match) -> String {
    let mut parts = Vec::new();
    parts.extend(matches.protocol.map(|protocol| match Protocol::from_number(protocol) {
        Some(named) => format!("protocol {}", named.name()),
        None => format!("protocol {protocol}"),
    }));
    for (key, prefix) in [("inside", matches.source), ("outside", matches.destination)] {
        parts.extend((prefix != Prefix::ALL).then(|| format!("{key} {prefix}")));
    }
    for (key, ports) in [("inside_ports", matches.source_ports), ("outside_ports", matches.destination_ports)] {
        parts.extend((ports != PortRange::ALL).then(|| format!("{key} {ports}")));
    }
    if parts.is_empty() { "everything".to_owned() } else { parts.join(", ") }
}

/// Tells them; `matches` says what the one at a position matches.
pub(super) fn tell(
    what: &str,
    found: &Found,
    matches: impl Fn(usize) -> Option<Match>,
    sources: &Sources<'_>,
    report: &mut Report,
) -> Option<Warning> {
    for (hidden, by) in found.hidden.iter().take(TOLD_MAX) {
        let (problem, remedy) = match by.positions() {
            [one] => (
                format!("never applies: the {what} {} comes before it and covers all of it", sources.on_line(*one)),
                "remove it, or write it before that one",
            ),
            several => (
                format!(
                    "never applies: the {what}s {} come before it and cover all of it together",
                    named(several, sources)
                ),
                "remove it, or write it before one of them",
            ),
        };
        let seen = matches(*hidden).map_or_else(String::new, |matches| written(&matches));
        sources.fault(*hidden, problem, &seen, remedy, report);
    }
    if let Some((hidden, _)) = found.hidden.get(TOLD_MAX) {
        let more = found.hidden.len() - TOLD_MAX;
        let problem = format!("is the first of {more} more that never apply, covered by others before them");
        let seen = format!("{} in all", found.hidden.len());
        sources.fault(*hidden, problem, &seen, "remove them, or write specific ones first", report);
    }
    let first = found.unsettled.first()?;
    let problem = match found.unsettled.len() - 1 {
        0 => "may never apply".to_owned(),
        more => format!("is the first of {} that may never apply", more + 1),
    };
    let problem = format!("{problem}: those before it take so many pieces of it that not all was looked at");
    sources.warning(
        *first,
        problem,
        "see in natrix show rules whether it is ever used, or write it before them",
        report,
    )
}

/// Where several stand: `on line 3, on line 7 and 12 others`.
fn named(several: &[usize], sources: &Sources<'_>) -> String {
    let few = if several.len() > NAMED_MAX { NAMED_MAX } else { several.len().saturating_sub(1) };
    let first: Vec<String> = several[..few].iter().map(|by| sources.on_line(*by)).collect();
    let last = match &several[few..] {
        [one] => sources.on_line(*one),
        more => format!("{} others", more.len()),
    };
    format!("{} and {last}", first.join(", "))
}
