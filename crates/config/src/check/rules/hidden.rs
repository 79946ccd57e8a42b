//! Rules that never come to their turn, as one before covers all of their packets.

use nat::Protocol;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleSet;
use nat::settings::FilterRule;
use nat::types::Prefix;

use crate::check::rules::origin::Sources;
use crate::report::Place;
use crate::report::Report;

/// Told one by one; more are counted.
const TOLD_MAX: usize = 20;

/// Who is covered by one before, and by whom; both by position.
pub(super) fn find(
    what: &str,
    rules: impl Iterator<Item = (usize, Match)>,
    report: &mut Report,
) -> Vec<(usize, usize)> {
    let (positions, matches): (Vec<usize>, Vec<Match>) = rules.unzip();
    match RuleSet::new(&matches) {
        Ok(set) => {
            let by = |position| set.hidden_by(position).and_then(|by| set.position(by));
            (0..matches.len()).filter_map(|hidden| Some((positions[hidden], positions[by(hidden)?]))).collect()
        }
        Err(error) => {
            let place = Place { path: what.to_owned().into(), line: None };
            report.fault(&place, error.to_string(), matches.len().to_string(), "write fewer, or add memory");
            Vec::new()
        }
    }
}

/// The same of filters: each is about one direction or both, and is hidden where it is in all of its own.
pub(super) fn find_filters<'f>(
    filters: impl Iterator<Item = &'f FilterRule> + Clone,
    report: &mut Report,
) -> Vec<(usize, usize)> {
    let directions: [fn(&FilterRule) -> bool; 2] = [|filter| filter.out, |filter| filter.back];
    let [out, back] = directions.map(|wanted| {
        let some = filters.clone().enumerate().filter(|(_, filter)| wanted(filter));
        find("filter", some.map(|(position, filter)| (position, filter.matches)), report)
    });
    let found = filters.enumerate().filter_map(|(position, filter)| {
        let by = |found: &[(usize, usize)]| {
            let at = found.binary_search_by_key(&position, |(hidden, _)| *hidden).ok()?;
            Some(found[at].1)
        };
        let by = match (filter.out, filter.back) {
            (true, true) => by(&out).and(by(&back)),
            (true, false) => by(&out),
            (false, _) => by(&back),
        };
        Some((position, by?))
    });
    found.collect()
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
    found: &[(usize, usize)],
    matches: impl Fn(usize) -> Option<Match>,
    sources: &Sources<'_>,
    report: &mut Report,
) {
    for (hidden, by) in found.iter().take(TOLD_MAX) {
        let problem =
            format!("never applies: the {what} {} comes before it and covers all of it", sources.on_line(*by));
        let seen = matches(*hidden).map_or_else(String::new, |matches| written(&matches));
        sources.fault(*hidden, problem, &seen, "remove it, or write it before that one", report);
    }
    if let Some((hidden, _)) = found.get(TOLD_MAX) {
        let more = found.len() - TOLD_MAX;
        let problem = format!("is the first of {more} more that never apply, covered by others before them");
        let seen = format!("{} in all", found.len());
        sources.fault(*hidden, problem, &seen, "remove them, or write specific ones first", report);
    }
}
