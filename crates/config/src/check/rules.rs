//! Rules and filters against each other and against the network.

use nat::flow_rule::FlowAction;
use nat::flow_rule::FlowRule;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleSet;
use nat::settings::Allocation;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::MappingKind;
use nat::settings::PassRule;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;

use crate::check::Reach;
use crate::check::interfaces::vrf_names;
use crate::draft::Draft;
use crate::draft::pool::PoolDraft;
use crate::draft::rule::FilterDraft;
use crate::draft::rule::MatchDraft;
use crate::draft::rule::RuleDraft;
use crate::draft::rule::RuleWord;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// Hidden rules told one by one; more are counted.
const HIDDEN_TOLD_MAX: usize = 20;

/// What the rules and filters come to.
#[derive(Default)]
pub(crate) struct Checked {
    pub(crate) pass_rules: Vec<PassRule>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) redirections: Vec<FlowRule>,
    pub(crate) filters: Vec<FilterRule>,
}

/// Checks the rules and filters; faulty ones are left out.
pub(crate) fn check(draft: &Draft, reaches: &[Reach], is_network_clean: bool, report: &mut Report) -> Checked {
    let is_pass = |rule: &&RuleDraft| rule.action == Some(RuleWord::Pass);
    for rule in draft.rules.iter().filter(|rule| rule.action.is_some()) {
        for (prefix, side) in [(&rule.matches.inside, Side::Inside), (&rule.matches.outside, Side::Outside)] {
            let told = prefix.as_ref().filter(|prefix| is_network_clean && (is_pass(&rule) || prefix.given));
            if let Some(prefix) = told {
                reachable(prefix, side, reaches, report);
            }
        }
    }
    let passing = draft.rules.iter().filter(is_pass).filter(|rule| !rule.is_faulty);
    let vrfs = vrf_names(&draft.interfaces);
    for pool in &draft.pools {
        let named = draft.rules.iter().filter_map(|rule| rule.pool.as_ref()).any(|name| name.value == pool.label());
        if let Some(place) = pool.serves_nobody.as_ref().filter(|_| !named) {
            let remedy =
                "remove it to serve every subscriber, write the prefixes to serve, or name the pool in a [[rule]]";
            report.fault(place, "is empty, so that nobody is served", "[]", remedy);
        }
    }
    let mut rules = Vec::new();
    let is_redirection = |rule: &&RuleDraft| rule.action == Some(RuleWord::Redirect);
    let redirections = draft.rules.iter().filter(is_redirection);
    let redirections: Vec<_> =
        redirections.filter_map(|rule| redirection(rule, draft, &vrfs, reaches, report)).collect();
    let makes_flows = |rule: &&RuleDraft| is_redirection(rule) || rule.mapping == MappingKind::EndpointDependent;
    if let Some(first) = draft.rules.iter().find(makes_flows)
        && draft.singles.limits.flows_max == 0
    {
        let remedy = "write tables.flows, such as 500000: how many connections may use such rules at the same time";
        report.fault(&first.matches.place, "makes flows, and there is room for none", "tables.flows = 0", remedy);
    }
    for rule in draft.rules.iter().filter(|rule| !is_pass(rule) && !is_redirection(rule)) {
        if let (Some(pool), MappingKind::EndpointDependent) = (&rule.pool, rule.mapping) {
            let problem =
                "does not go with mapping = \"endpoint-dependent\", which shares ports of the subscriber's own pool";
            report.fault(&pool.place, problem, quoted(&pool.value), "remove it");
        }
        let faults = report.fault_count();
        let matches = matches_of(&rule.matches, &vrfs, report);
        let action = action_of(rule, &draft.pools, report);
        if let (Some(matches), Some(action), false) = (matches, action, rule.is_faulty || report.fault_count() > faults)
        {
            rules.push((Rule { matches, action }, &rule.matches.place));
        }
    }
    let filters: Vec<_> = draft
        .filters
        .iter()
        .filter_map(|filter| Some((filter_of(filter, &vrfs, report)?, &filter.matches.place)))
        .collect();
    let matches = rules.iter().map(|(rule, _)| rule.matches);
    let found = hidden("rule", matches.enumerate(), report);
    tell_hidden("rule", &found, |position| rules[position].1, report);
    // In each direction it is about.
    let directions: [fn(&FilterRule) -> bool; 2] = [|filter| filter.out, |filter| filter.back];
    let [out, back] = directions.map(|wanted| {
        let some = filters.iter().enumerate().filter(|(_, (filter, _))| wanted(filter));
        hidden("filter", some.map(|(position, (filter, _))| (position, filter.matches)), report)
    });
    let found = filters.iter().enumerate().filter_map(|(position, (filter, _))| {
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
    let found: Vec<_> = found.collect();
    tell_hidden("filter", &found, |position| filters[position].1, report);
    Checked {
        pass_rules: pass_rules(passing, report),
        rules: rules.into_iter().map(|(rule, _)| rule).collect(),
        redirections,
        filters: filters.into_iter().map(|(filter, _)| filter).collect(),
    }
}

/// Rules for protocols that are not translated.
fn pass_rules<'d>(drafts: impl Iterator<Item = &'d RuleDraft>, report: &mut Report) -> Vec<PassRule> {
    let mut rules: Vec<(PassRule, &RuleDraft)> = Vec::new();
    for draft in drafts {
        let matches = &draft.matches;
        let (Some(protocol), Some(inside), Some(outside)) = (matches.protocol, &matches.inside, &matches.outside)
        else {
            continue;
        };
        let rule = PassRule { protocol, inside: inside.value, outside: outside.value };
        if let Some((_, first)) = rules.iter().find(|(other, _)| *other == rule) {
            let problem = format!("repeats the rule {}", first.matches.place.on_line());
            report.fault(&matches.place, problem, format!("protocol {protocol}"), "remove one of them");
            continue;
        }
        rules.push((rule, draft));
    }
    rules.into_iter().map(|(rule, _)| rule).collect()
}

/// What a rule or filter matches; none when it names a VRF there is not.
fn matches_of(draft: &MatchDraft, vrfs: &[String], report: &mut Report) -> Option<Match> {
    let ports = |ports: &Option<Placed<core::ops::RangeInclusive<u16>>>| match ports {
        Some(ports) => PortRange { first: *ports.value.start(), last: *ports.value.end() },
        None => PortRange::ALL,
    };
    let realm = match &draft.vrf {
        None => None,
        Some(vrf) => match vrfs.iter().position(|known| *known == vrf.value) {
            Some(position) => Some(RealmId(u16::try_from(position).ok()?)),
            None => {
                let known = || vrfs.iter().map(String::as_str);
                let remedy = match nearest(&vrf.value, known()) {
                    Some(meant) => format!("did you mean \"{meant}\"?"),
                    None => format!("write {}", one_of(known())),
                };
                report.fault(&vrf.place, "is no VRF of an inside interface", quoted(&vrf.value), remedy);
                return None;
            }
        },
    };
    let prefix = |prefix: &Option<Placed<Prefix>>| prefix.as_ref().map_or(Prefix::ALL, |prefix| prefix.value);
    Some(Match {
        realm,
        protocol: draft.protocol,
        source: prefix(&draft.inside),
        destination: prefix(&draft.outside),
        source_ports: ports(&draft.inside_ports),
        destination_ports: ports(&draft.outside_ports),
    })
}

/// What a redirection comes to, if its targets can be reached outside and are nobody's here.
fn redirection(
    draft: &RuleDraft,
    all: &Draft,
    vrfs: &[String],
    reaches: &[Reach],
    report: &mut Report,
) -> Option<FlowRule> {
    let faults = report.fault_count();
    let matches = matches_of(&draft.matches, vrfs, report)?;
    let action = match &draft.to {
        Some(to) => {
            if to.value.length() != matches.destination.length() {
                let remedy = format!("write a prefix of length {}, as that of `outside`", matches.destination.length());
                report.fault(&to.place, "is not as long as `outside`", to.value.to_string(), remedy);
            }
            reachable(to, Side::Outside, reaches, report);
            FlowAction::Prefix(to.value)
        }
        None => FlowAction::Targets(draft.targets.iter().map(|target| target.value).collect()),
    };
    for target in &draft.targets {
        let address = core::net::Ipv4Addr::from_bits(target.value.address);
        let host = Placed { value: Prefix::host(address), place: target.place.clone(), given: true };
        let is_external =
            all.pools.iter().flat_map(|pool| &pool.addresses).any(|range| range.value.contains(&target.value.address));
        if is_external {
            report.fault(&target.place, "is an address of a pool", address.to_string(), "write a host outside");
        } else {
            reachable(&host, Side::Outside, reaches, report);
        }
        if target.value.port.is_some() && !matches.protocol.is_some_and(|number| matches!(number, 6 | 17)) {
            let remedy = "write protocol = \"tcp\" or \"udp\", or leave the port out";
            report.fault(&target.place, "has a port, and the rule no protocol with ports", address.to_string(), remedy);
        }
    }
    (report.fault_count() == faults && !draft.is_faulty).then(|| FlowRule {
        realm: matches.realm,
        protocol: matches.protocol.and_then(nat::Protocol::from_number),
        source: matches.source,
        destination: matches.destination,
        ports: (matches.destination_ports.first, matches.destination_ports.last),
        action,
    })
}

fn action_of(draft: &RuleDraft, pools: &[PoolDraft], report: &mut Report) -> Option<RuleAction> {
    match draft.action? {
        RuleWord::Pass | RuleWord::Redirect => None,
        RuleWord::NoTranslation => Some(RuleAction::NoTranslation),
        RuleWord::Drop => Some(RuleAction::Drop),
        RuleWord::Translate => {
            let mapping: MappingKind = draft.mapping;
            let Some(name) = &draft.pool else { return Some(RuleAction::Translate { pool: None, mapping }) };
            let names = || pools.iter().filter_map(|pool| pool.name.as_ref()).map(|name| name.value.as_str());
            match names().position(|known| known == name.value) {
                Some(position) => {
                    let allocation = pools.get(position).and_then(|pool| pool.allocation.value);
                    let is_by_source = draft.matches.protocol.is_none()
                        && draft.matches.outside.as_ref().is_none_or(|outside| outside.value == Prefix::ALL);
                    if allocation.is_some_and(|allocation| allocation != Allocation::Ports) && !is_by_source {
                        let remedy = "match by inside and vrf only, or choose a pool with allocation = \"ports\"";
                        let problem = "gives out ports in blocks, which a subscriber has for all destinations";
                        report.fault(&name.place, problem, quoted(&name.value), remedy);
                        return None;
                    }
                    Some(RuleAction::Translate { pool: Some(PoolId(u16::try_from(position).ok()?)), mapping })
                }
                None => {
                    let remedy = match nearest(&name.value, names()) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("add a [[pool]] with name = {}", quoted(&name.value)),
                    };
                    report.fault(&name.place, "is the name of no pool", quoted(&name.value), remedy);
                    None
                }
            }
        }
    }
}

fn filter_of(draft: &FilterDraft, vrfs: &[String], report: &mut Report) -> Option<FilterRule> {
    let matches = matches_of(&draft.matches, vrfs, report)?;
    let action = if draft.permits? { FilterAction::Permit } else { FilterAction::Deny };
    (!draft.is_faulty).then_some(FilterRule { matches, action, out: draft.out, back: draft.back })
}

/// Who is covered by one before, and so never comes to his turn; and by whom.
fn hidden(what: &str, rules: impl Iterator<Item = (usize, Match)>, report: &mut Report) -> Vec<(usize, usize)> {
    let (positions, matches): (Vec<usize>, Vec<Match>) = rules.unzip();
    match RuleSet::new(&matches) {
        Ok(set) => {
            let by = |position| set.hidden_by(position).and_then(|by| set.position(by));
            (0..matches.len()).filter_map(|hidden| Some((positions[hidden], positions[by(hidden)?]))).collect()
        }
        Err(error) => {
            let place = Place { path: what.to_owned(), line: None };
            report.fault(&place, error.to_string(), matches.len().to_string(), "write fewer, or add memory");
            Vec::new()
        }
    }
}

fn tell_hidden<'p>(what: &str, found: &[(usize, usize)], place_of: impl Fn(usize) -> &'p Place, report: &mut Report) {
    for (hidden, by) in found.iter().take(HIDDEN_TOLD_MAX) {
        let by = place_of(*by).on_line();
        let problem = format!("never applies: the {what} {by} comes before it and covers all of it");
        report.fault(place_of(*hidden), problem, "", "remove it, or write it before that one");
    }
    if let Some((hidden, _)) = found.get(HIDDEN_TOLD_MAX) {
        let more = found.len() - HIDDEN_TOLD_MAX;
        let problem = format!("is the first of {more} more that never apply, covered by others before them");
        report.fault(place_of(*hidden), problem, "", "remove them, or write specific ones first");
    }
}

fn reachable(prefix: &Placed<Prefix>, side: Side, reaches: &[Reach], report: &mut Report) {
    let is_there = |reach: &Reach| reach.side == side && reach.prefix.overlaps(prefix.value);
    if !reaches.iter().any(is_there) {
        let problem = format!("can not be reached by any {} interface or route", side.name());
        let remedy = format!("add an {} [[route]] or interface that leads there", side.name());
        report.fault(&prefix.place, problem, prefix.value.to_string(), remedy);
    }
}
