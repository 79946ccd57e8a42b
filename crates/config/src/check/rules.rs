//! Rules against each other and against the network.

use nat::settings::PassRule;
use nat::types::Prefix;
use nat::types::Side;

use crate::check::Reach;
use crate::draft::rule::RuleDraft;
use crate::report::Placed;
use crate::report::Report;

/// Checks the rules; faulty ones are left out.
pub(crate) fn check(
    drafts: &[RuleDraft],
    reaches: &[Reach],
    is_network_clean: bool,
    report: &mut Report,
) -> Vec<PassRule> {
    let mut rules: Vec<(PassRule, &RuleDraft)> = Vec::new();
    for draft in drafts {
        for (prefix, side) in [(&draft.inside, Side::Inside), (&draft.outside, Side::Outside)] {
            if let Some(prefix) = prefix.as_ref().filter(|_| is_network_clean) {
                reachable(prefix, side, reaches, report);
            }
        }
        let (Some(protocol), Some(inside), Some(outside)) = (draft.protocol, &draft.inside, &draft.outside) else {
            continue;
        };
        let rule = PassRule { protocol, inside: inside.value, outside: outside.value };
        if let Some((_, first)) = rules.iter().find(|(other, _)| *other == rule) {
            let problem = format!("repeats the rule {}", first.place.on_line());
            report.fault(&draft.place, problem, format!("protocol {protocol}"), "remove one of them");
            continue;
        }
        rules.push((rule, draft));
    }
    rules.into_iter().map(|(rule, _)| rule).collect()
}

fn reachable(prefix: &Placed<Prefix>, side: Side, reaches: &[Reach], report: &mut Report) {
    let is_there = |reach: &Reach| reach.side == side && reach.prefix.overlaps(prefix.value);
    if !reaches.iter().any(is_there) {
        let problem = format!("can not be reached by any {} interface or route", side.name());
        let remedy = format!("add an {} [[route]] or interface that leads there", side.name());
        report.fault(&prefix.place, problem, prefix.value.to_string(), remedy);
    }
}
