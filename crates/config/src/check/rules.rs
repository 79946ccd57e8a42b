//! Rules and filters against each other and against the network.

mod ambiguous;
mod hidden;
pub(crate) mod known;
mod origin;
mod overlaps;
mod prefixes6;
mod served;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::path::Path;

use nat::Settings;
use nat::origin::Origin;
use nat::origin::Origins;
use nat::redirection::Redirection;
use nat::redirection::RedirectionId;
use nat::rules::Match;
use nat::settings::FilterRule;
use nat::settings::MappingKind;
use nat::settings::PassRule;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::stand_in::StandIn;
use nat::types::Prefix;

use crate::check::Reach;
use crate::check::interfaces::vrf_names;
use crate::draft::Draft;
use crate::draft::rule::FilterDraft;
use crate::draft::rule::RuleDraft;
use crate::draft::rule::RuleWord;
use crate::draft::rule_file::LINES_MAX;
use crate::draft::rule_file::RuleFile;
use crate::draft::rule_file::RuleFileDraft;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;
use crate::source::Lines;
use crate::source::Source;

use known::Known;
use origin::Sources;
use prefixes6::Prefixes6;

/// What the rules and filters come to.
#[derive(Default)]
pub(crate) struct Checked {
    pub(crate) pass_rules: Vec<PassRule>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) redirections: Vec<Redirection>,
    pub(crate) filters: Vec<FilterRule>,
    /// By position.
    pub(crate) filter_names: BTreeMap<u32, String>,
    pub(crate) origins: Origins,
    /// What stands for IPv6 prefixes of rules, filters and classes.
    pub(crate) stand_ins: Vec<StandIn>,
    pub(crate) warnings: Vec<Warning>,
}

/// What stands in the order of rules: a table, or a file of them.
enum Item {
    Table(usize),
    File(usize),
}

/// Tables and files of one kind in the order in which they stand.
fn in_order<'d>(tables: impl Iterator<Item = &'d Place>, files: &[RuleFileDraft]) -> Vec<Item> {
    let line = |place: &Place| place.line.unwrap_or(0);
    let tables = tables.enumerate().map(|(at, place)| (line(place), Item::Table(at)));
    let files = files.iter().enumerate().map(|(at, file)| (line(&file.place), Item::File(at)));
    let mut items: Vec<(u32, Item)> = tables.chain(files).collect();
    items.sort_by_key(|(line, _)| *line);
    items.into_iter().map(|(_, item)| item).collect()
}

/// What was in use before.
#[derive(Clone, Copy)]
pub(crate) struct Before<'b> {
    pub(crate) settings: &'b Settings,
    /// If the configuration differs in nothing but its files of rules and filters: a line that is
    /// the same then does the same.
    pub(crate) source: Option<&'b Source>,
}

/// Checks the rules and filters; faulty ones are left out. Files they are in are looked for from
/// `folder` on, and their texts added to `source`. Rules and filters of `before` are not compared
/// with each other again, and warnings about overlaps are left out then.
pub(crate) fn check(
    draft: &Draft,
    reaches: &[Reach],
    is_network_clean: bool,
    folder: &Path,
    before: Option<Before<'_>>,
    source: &mut Source,
    report: &mut Report,
) -> Checked {
    let prefixes6 = Prefixes6::new(before.map(|before| before.settings));
    let known = Known::new(draft, reaches, is_network_clean, prefixes6);
    let mut rules = Rules::new(draft, &known);
    let mut room = LINES_MAX;
    let same = before.and_then(|before| Some((before.settings, before.source?)));
    rules.rules.reserve(same.map_or(0, |(before, _)| before.rules.len()));
    for item in in_order(draft.rules.iter().map(|rule| &rule.matches.place), &draft.rule_files) {
        match item {
            Item::Table(at) => rules.add(&draft.rules[at], Origin::Table(at as u32), report),
            Item::File(at) => {
                let text = same.and_then(|(_, source)| source.rule_files.get(at)?.clone());
                let lines = Lines::following(text);
                let mut positions = same.map(|(before, _)| Positions::new(&before.origins.rules, at));
                let Some(mut file) = open("rule", &draft.rule_files, at, folder, lines, report) else { continue };
                while file.advance(report) {
                    let origin = Origin::Line(at as u16, file.number());
                    let position = positions.as_mut().zip(file.number_before());
                    let position = position.and_then(|(positions, was)| positions.of_line(was));
                    let rule = position.zip(same).and_then(|(at, (before, _))| before.rules.get(at));
                    let is_taken = rule.is_some_and(|rule| rules.take(rule, origin));
                    if !is_taken && let Some(line) = file.line(report) {
                        rules.add(&RuleDraft::read(&line, report), origin, report);
                    } else if !is_taken {
                        continue;
                    }
                    if !has_room(&mut room, "rule", file.number(), report) {
                        break;
                    }
                }
                source.rule_files.resize(at, None);
                source.rule_files.push(file.into_text());
                report.leave();
            }
        }
    }
    rules.pools_of_nobody(report);
    let mut filters = Vec::new();
    let mut filter_names = BTreeMap::new();
    let tables = draft.filters.iter().map(|filter| &filter.matches.place).collect();
    let mut filter_sources = Sources::new("filter", tables, &draft.filter_files);
    let mut room = LINES_MAX;
    for item in in_order(draft.filters.iter().map(|filter| &filter.matches.place), &draft.filter_files) {
        let mut add = |filter: &FilterDraft, origin, report: &mut Report| {
            if let Some(compiled) = known.filter_of(filter, report) {
                filter_names.extend(filter.name.clone().map(|name| (filters.len() as u32, name)));
                filters.push(compiled);
                filter_sources.push(origin);
            }
        };
        match item {
            Item::Table(at) => add(&draft.filters[at], Origin::Table(at as u32), report),
            Item::File(at) => {
                let Some(mut file) = open("filter", &draft.filter_files, at, folder, Lines::default(), report) else {
                    continue;
                };
                while file.advance(report) {
                    let Some(line) = file.line(report) else { continue };
                    add(&FilterDraft::read(&line, report), Origin::Line(at as u16, line.number), report);
                    if !has_room(&mut room, "filter", file.number(), report) {
                        break;
                    }
                }
                report.leave();
            }
        }
    }
    let Rules { sources, mut rules, redirections, passes, pass_origins, .. } = rules;
    let stand_ins = stand_ins(draft, &known, report);
    let of_rules = rules.iter_mut().map(|rule| &mut rule.matches);
    let matches = of_rules.chain(filters.iter_mut().map(|filter: &mut FilterRule| &mut filter.matches));
    known.prefixes6.settle(&stand_ins, matches);
    let shown = |block: Prefix| {
        let found = stand_ins.iter().find(|one| one.block == block && Prefix::HOSTS.contains(block.address()));
        found.map_or_else(|| block.to_string(), |one| one.prefix.to_string())
    };
    let realms = known.realm_count();
    let checked =
        before.map(|before| before.settings).filter(|before| before.realm_names == vrf_names(&draft.interfaces));
    let found = hidden::find_rules(&rules, checked.map(|it| it.rules.as_slice()), realms, report);
    hidden::report_all("rule", &found, |at| rules.get(at).map(|rule: &Rule| rule.matches), (&sources, &shown), report);
    let found = hidden::find_filters(&filters, checked.map(|it| it.filters.as_slice()), realms, report);
    let matches = |at: usize| filters.get(at).map(|filter: &FilterRule| filter.matches);
    hidden::report_all("filter", &found, matches, (&filter_sources, &shown), report);
    let matches: Vec<Match> = rules.iter().map(|rule| rule.matches).collect();
    let is_untranslated = |at: usize| rules.get(at).is_some_and(|rule: &Rule| rule.action == RuleAction::NoTranslation);
    let uncompared = ambiguous::check(&matches, &is_untranslated, &known, &sources, report);
    let tables = draft.rules.iter().map(|rule| &rule.matches.place).collect();
    let mut pass_sources = Sources::new("rule", tables, &draft.rule_files);
    pass_origins.iter().for_each(|origin| pass_sources.push(*origin));
    let matches: Vec<Match> = passes.iter().map(PassRule::matches).collect();
    let uncompared_passes = ambiguous::check(&matches, &|_| true, &known, &pass_sources, report);
    let mut warnings = served::check(&rules, &sources, draft, report);
    warnings.extend(to_natrix_itself(&rules, &known, &sources, report));
    warnings.extend(refusing_hosts(&rules, &sources, draft, report));
    warnings.extend(uncompared.into_iter().chain(uncompared_passes));
    warnings.extend(unheard(&filters, &filter_sources, draft, report));
    if report.is_clean() && before.is_none() {
        warnings.extend(overlaps::of_rules(&rules, (&sources, &shown), report));
        warnings.extend(overlaps::of_filters(&filters, (&filter_sources, &shown), report));
    }
    let (mut files, rule_origins) = sources.into_parts();
    let (filter_files, mut filter_origins) = filter_sources.into_parts();
    for origin in &mut filter_origins {
        if let Origin::Line(file, _) = origin {
            *file = file.saturating_add(u16::try_from(files.len()).unwrap_or(u16::MAX));
        }
    }
    files.extend(filter_files);
    let origins = Origins { files, rules: rule_origins, pass_rules: pass_origins, filters: filter_origins };
    Checked { pass_rules: passes, rules, redirections, filters, filter_names, origins, stand_ins, warnings }
}

/// What stands for the IPv6 prefixes of rules, filters and classes.
fn stand_ins(draft: &Draft, known: &Known<'_>, report: &mut Report) -> Vec<StandIn> {
    let of_classes = || draft.classes.iter().flat_map(|class| &class.subscribers6);
    match known.prefixes6.stand_ins(of_classes().map(|prefix| prefix.value)) {
        Ok(found) => found,
        Err(error) => {
            let place = Place { path: "inside".into(), line: None };
            report.fault(&place, format!("and subscribers name {error}"), "", "name fewer, or wider ones");
            Vec::new()
        }
    }
}

/// Warns of the first filter with `log = true` where there is no event log, and counts the others.
fn unheard(filters: &[FilterRule], sources: &Sources<'_>, draft: &Draft, report: &Report) -> Option<Warning> {
    if draft.singles.event_log.is_some() {
        return None;
    }
    let first = filters.iter().position(|filter| filter.log)?;
    let others = filters.iter().filter(|filter| filter.log).count() - 1;
    let more = if others == 0 { String::new() } else { format!(" (and {others} more)") };
    let problem = format!("has log = true{more}, and there is no event log to write to");
    sources.warning(first, problem, crate::check::log::REMEDY, report)
}

/// Warns of the first rule that sends packets untranslated and matches IPv6 hosts, and counts the
/// others. Rules with `inside` match none of them.
fn refusing_hosts(rules: &[Rule], sources: &Sources<'_>, draft: &Draft, report: &Report) -> Option<Warning> {
    let names = vrf_names(&draft.interfaces);
    let realms: Vec<usize> = draft.host_vrfs().filter_map(|vrf| names.iter().position(|name| name == vrf)).collect();
    let is_of_hosts = |rule: &&Rule| {
        rule.action == RuleAction::NoTranslation
            && rule.matches.source == Prefix::ALL
            && realms.iter().any(|realm| rule.matches.realm.is_none_or(|of| of.index() == *realm))
    };
    let first = rules.iter().position(|rule| is_of_hosts(&rule))?;
    let what = match rules.iter().filter(is_of_hosts).count() {
        1 => "drops what IPv6 hosts send to its destinations".to_owned(),
        all => format!("is the first of {all} rules that drop what IPv6 hosts send to their destinations"),
    };
    let problem = format!("{what}: these hosts have no IPv4 address to leave with");
    sources.warning(first, problem, "write inside with the IPv4 prefixes that are meant", report)
}

/// Rules for addresses of Natrix itself that are reported one by one; further ones are counted.
const TO_ITSELF_REPORTED_MAX: usize = 20;

/// Warns of rules that would pass or redirect packets to pools or to Natrix itself: such packets
/// never leave Natrix.
fn to_natrix_itself(rules: &[Rule], known: &Known<'_>, sources: &Sources<'_>, report: &Report) -> Vec<Warning> {
    let has_no_effect = |rule: &Rule| {
        matches!(rule.action, RuleAction::NoTranslation | RuleAction::Redirect(_))
            && known.is_here(rule.matches.destination)
    };
    let found: Vec<usize> = (0..).zip(rules).filter(|(_, rule)| has_no_effect(rule)).map(|(at, _)| at).collect();
    let tell = |at: &usize| {
        let rule = rules.get(*at)?;
        let problem = format!(
            "never applies: outside has only addresses of pools or Natrix's own ({}), and packets to them do not leave Natrix",
            rule.matches.destination
        );
        sources.warning(*at, problem, "write hosts outside, or remove the rule", report)
    };
    let mut warnings: Vec<Warning> = found.iter().take(TO_ITSELF_REPORTED_MAX).filter_map(tell).collect();
    if let Some(next) = found.get(TO_ITSELF_REPORTED_MAX) {
        let problem = format!("is the first of {} more about such addresses", found.len() - TO_ITSELF_REPORTED_MAX);
        warnings.extend(sources.warning(*next, problem, "correct those reported and check again", report));
    }
    warnings
}

fn open(
    what: &'static str,
    files: &[RuleFileDraft],
    at: usize,
    folder: &Path,
    lines: Lines,
    report: &mut Report,
) -> Option<RuleFile> {
    RuleFile::open(what, files.get(at)?, folder, lines, report)
}

/// Counts a line that has a rule; reports the first that is too many.
fn has_room(room: &mut u32, what: &'static str, number: u32, report: &mut Report) -> bool {
    let left = room.checked_sub(1);
    *room = left.unwrap_or_default();
    if left.is_none() {
        let place = Place { path: what.into(), line: Some(number) };
        let seen = format!("more than {LINES_MAX}");
        report.fault(
            &place,
            "exceeds the limit of rules for all files together",
            seen,
            "write fewer, with longer prefixes",
        );
    }
    left.is_some()
}

/// Finds the rules of a file by ascending lines.
struct Positions<'b> {
    origins: &'b [Origin],
    file: u16,
    next: usize,
}

impl<'b> Positions<'b> {
    fn new(origins: &'b [Origin], file: usize) -> Positions<'b> {
        let file = file as u16;
        let next = origins.iter().position(|origin| matches!(origin, Origin::Line(of, _) if *of == file));
        Positions { origins, file, next: next.unwrap_or(origins.len()) }
    }

    /// The position of the rule of a line; lines in between are passed over.
    fn of_line(&mut self, line: u32) -> Option<usize> {
        while let Some(Origin::Line(file, at)) = self.origins.get(self.next)
            && *file == self.file
            && *at <= line
        {
            self.next += 1;
            if *at == line {
                return Some(self.next - 1);
            }
        }
        None
    }
}

/// The rules found so far.
struct Rules<'d> {
    known: &'d Known<'d>,
    draft: &'d Draft,
    sources: Sources<'d>,
    rules: Vec<Rule>,
    redirections: Vec<Redirection>,
    passes: Vec<PassRule>,
    /// Where they stand.
    pass_origins: Vec<Origin>,
    /// Where each of `passes` stands.
    passed: HashMap<PassRule, String>,
    /// By pool, whether a rule names it.
    named: Vec<bool>,
    /// There is no room for flows, which is already reported.
    is_without_flows: bool,
}

impl<'d> Rules<'d> {
    fn new(draft: &'d Draft, known: &'d Known<'d>) -> Rules<'d> {
        let tables = draft.rules.iter().map(|rule| &rule.matches.place).collect();
        Rules {
            known,
            draft,
            sources: Sources::new("rule", tables, &draft.rule_files),
            rules: Vec::new(),
            redirections: Vec::new(),
            passes: Vec::new(),
            pass_origins: Vec::new(),
            passed: HashMap::new(),
            named: vec![false; draft.pools.len()],
            is_without_flows: false,
        }
    }

    /// The next rule in order, as it was before. False: it is more than this one rule.
    fn take(&mut self, rule: &Rule, origin: Origin) -> bool {
        if matches!(rule.action, RuleAction::Redirect(_)) {
            return false;
        }
        if let Some(named) = rule.action.pool().and_then(|pool| self.named.get_mut(usize::from(pool.0))) {
            *named = true;
        }
        let source = self.known.prefixes6.number_of_before(rule.matches.source);
        self.rules.push(Rule { matches: Match { source, ..rule.matches }, ..*rule });
        self.sources.push(origin);
        true
    }

    /// The next rule in order.
    fn add(&mut self, draft: &RuleDraft, origin: Origin, report: &mut Report) {
        let faults = report.fault_count();
        let Some(action) = draft.action else { return };
        self.known.reachable(draft, report);
        let makes_flows = action == RuleWord::Redirect || draft.mapping == MappingKind::EndpointDependent;
        if makes_flows && self.draft.singles.limits.flows_max == 0 && !self.is_without_flows {
            self.is_without_flows = true;
            let remedy = "write tables.flows, such as 500000: how many connections may use such rules at the same time";
            report.fault(
                &draft.matches.place,
                "needs flows, and there is no room for them",
                "tables.flows = 0",
                remedy,
            );
        }
        if let Some(at) = draft.pool.as_ref().and_then(|pool| self.known.pool_named(&pool.value)) {
            self.named[at] = true;
        }
        if action == RuleWord::Pass {
            return self.pass(draft, origin, report);
        }
        let Some(matches) = self.known.matches_of(&draft.matches, report) else { return };
        let is_sound = |report: &Report| !draft.is_faulty && report.fault_count() == faults;
        let action = match action {
            RuleWord::Redirect => {
                let Some(redirection) = self.known.redirection(draft, &matches, report) else { return };
                if !is_sound(report) {
                    return;
                }
                self.redirections.push(redirection);
                RuleAction::Redirect(RedirectionId(self.redirections.len() as u32 - 1))
            }
            _ => match self.known.action_of(draft, &matches, report) {
                Some(action) if is_sound(report) => action,
                _ => return,
            },
        };
        self.rules.push(Rule { matches, action });
        self.sources.push(origin);
    }

    /// A rule for a protocol that is not translated.
    fn pass(&mut self, draft: &RuleDraft, origin: Origin, report: &mut Report) {
        let written = &draft.matches;
        let Some(matches) = self.known.matches_of(written, report) else { return };
        let (Some(protocol), Some(inside), Some(outside), false) =
            (written.protocol, &written.inside, &written.outside, draft.is_faulty)
        else {
            return;
        };
        let rule = PassRule { realm: matches.realm, protocol, inside: inside.value, outside: outside.value };
        if let Some(first) = self.passed.get(&rule) {
            let problem = format!("repeats the rule {first}");
            report.fault(&written.place, problem, format!("protocol {protocol}"), "remove one of them");
            return;
        }
        self.passed.insert(rule, written.place.on_line());
        self.passes.push(rule);
        self.pass_origins.push(origin);
    }

    /// Reports pools that neither serve subscribers nor are named by a rule.
    fn pools_of_nobody(&self, report: &mut Report) {
        for (pool, named) in self.draft.pools.iter().zip(&self.named) {
            let penalties = self.draft.classes.iter().filter_map(|class| class.penalty.as_ref());
            let named = *named || penalties.into_iter().any(|penalty| penalty.pool.value == pool.label());
            if let Some(place) = pool.serves_nobody.as_ref().filter(|_| !named) {
                let remedy = "remove it to serve every subscriber, write the prefixes to serve, or name the pool in a [[rule]] or \
                              [[class]]";
                report.fault(place, "is empty, so no subscriber is served", "[]", remedy);
            }
        }
    }
}
