//! Rules that never come to their turn, as one before covers all of their packets.

use nat::rules::Match;
use nat::rules::RuleSet;
use nat::settings::FilterRule;

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

/// Tells them.
pub(super) fn tell(what: &str, found: &[(usize, usize)], sources: &Sources<'_>, report: &mut Report) {
    for (hidden, by) in found.iter().take(TOLD_MAX) {
        let problem =
            format!("never applies: the {what} {} comes before it and covers all of it", sources.on_line(*by));
        sources.fault(*hidden, problem, "remove it, or write it before that one", report);
    }
    if let Some((hidden, _)) = found.get(TOLD_MAX) {
        let more = found.len() - TOLD_MAX;
        let problem = format!("is the first of {more} more that never apply, covered by others before them");
        sources.fault(*hidden, problem, "remove them, or write specific ones first", report);
    }
}
