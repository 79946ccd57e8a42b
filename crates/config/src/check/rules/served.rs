//! Rules that contradict what the pool of their subscribers is for: a guarantee that is of no use
//! elsewhere, and ports by a formula, which are not shared.

use nat::rules::Match;
use nat::settings::Allocation;
use nat::settings::MappingKind;
use nat::settings::Rule;
use nat::settings::RuleAction;
use nat::types::Prefix;

use crate::check::interfaces::vrf_names;
use crate::check::rules::origin::Sources;
use crate::draft::Draft;
use crate::draft::class::ClassDraft;
use crate::draft::pool::PoolDraft;
use crate::fault::Warning;
use crate::report::Report;
use crate::section::quoted;

/// Rules reported one by one; further ones are counted.
const REPORTED_MAX: usize = 20;

/// Warns of rules that contradict the pools of their subscribers.
pub(super) fn check(rules: &[Rule], sources: &Sources<'_>, draft: &Draft, report: &mut Report) -> Vec<Warning> {
    let served = Served {
        draft,
        vrfs: vrf_names(&draft.interfaces),
        guarantees: draft.classes.iter().filter(|class| class.limits.reserved_ports.iter().any(|it| *it > 0)).collect(),
        has_formulas: draft.pools.iter().any(is_by_formula),
    };
    let mut reported = Vec::new();
    let mut more = 0;
    let mut last = 0;
    for (position, rule) in rules.iter().enumerate() {
        let found = match rule.action {
            RuleAction::Translate { pool: Some(pool), .. } => {
                let problem =
                    draft.pools.get(pool.index()).and_then(|pool| served.loses_guarantee(&rule.matches, pool));
                problem.map(|problem| {
                    (
                        problem,
                        "add these subscribers to the subscribers of this pool, or leave the rule if this is intended",
                    )
                })
            }
            RuleAction::Translate { pool: None, mapping: MappingKind::EndpointDependent } => {
                let found = served.formula_of(&rule.matches);
                let problem = found.map(|found| {
                    let pool = quoted(found.pool.label());
                    format!(
                        "has no effect in pool {pool}, whose formula gives each port to one subscriber: inside {} keeps \
                         endpoint-independent mappings",
                        found.source
                    )
                });
                problem.map(|problem| {
                    (problem, "leave these subscribers out, or serve them from a pool with allocation = \"ports\"")
                })
            }
            RuleAction::Redirect(_) => {
                let found = served.formula_of(&rule.matches);
                let problem = found.as_ref().map(|found| {
                    let pool = quoted(found.pool.label());
                    format!(
                        "makes flows, which share ports, and the formula of pool {pool} gives each port to one subscriber: packets of \
                         inside {} that it matches are refused as ports_exhausted",
                        found.source
                    )
                });
                let remedy = "leave these subscribers out, or serve them from a pool with allocation = \"ports\"";
                match (found, problem) {
                    (Some(found), Some(problem)) if found.is_all => {
                        sources.fault(position, problem, &found.source.to_string(), remedy, report);
                        None
                    }
                    (_, problem) => problem.map(|problem| (problem, remedy)),
                }
            }
            _ => None,
        };
        let Some((problem, remedy)) = found else { continue };
        if reported.len() < REPORTED_MAX {
            reported.extend(sources.warning(position, problem, remedy, report));
        } else {
            (more, last) = (more + 1, position);
        }
    }
    if more > 0 {
        let problem = format!("is the last of {more} more that contradict the pools of their subscribers");
        reported.extend(sources.warning(last, problem, "correct those reported and check again", report));
    }
    reported
}

fn is_by_formula(pool: &PoolDraft) -> bool {
    matches!(pool.allocation.value, Some(Allocation::Deterministic { .. }))
}

/// The subscribers of a deterministic pool that a rule matches.
struct ByFormula<'d> {
    pool: &'d PoolDraft,
    source: Prefix,
    /// The rule matches no other subscriber.
    is_all: bool,
}

struct Served<'d> {
    draft: &'d Draft,
    vrfs: Vec<String>,
    /// Classes with a guarantee.
    guarantees: Vec<&'d ClassDraft>,
    has_formulas: bool,
}

impl<'d> Served<'d> {
    /// The VRFs a rule is about.
    fn vrfs_of(&self, matches: &Match) -> impl Iterator<Item = &String> {
        let realm = matches.realm.map(|realm| realm.index());
        self.vrfs.iter().enumerate().filter(move |(at, _)| realm.is_none_or(|realm| realm == *at)).map(|(_, vrf)| vrf)
    }

    /// The pool that serves a prefix as a whole: of all with one around it the one with the
    /// longest.
    fn pool_of(&self, prefix: Prefix, vrf: &str) -> Option<&'d PoolDraft> {
        let pools = self.draft.pools.iter().filter(|pool| pool.serves(vrf));
        let prefixes = pools.flat_map(|pool| pool.subscribers.iter().map(move |served| (pool, served.value)));
        let around = prefixes.filter(|(_, served)| served.length() <= prefix.length() && served.overlaps(prefix));
        around.max_by_key(|(_, served)| served.length()).map(|(pool, _)| pool)
    }

    /// Whether a rule sends subscribers with a guarantee to another pool than the one it is kept
    /// in.
    fn loses_guarantee(&self, matches: &Match, to: &PoolDraft) -> Option<String> {
        for class in &self.guarantees {
            for prefix in class.subscribers.iter().map(|prefix| prefix.value) {
                if !prefix.overlaps(matches.source) {
                    continue;
                }
                let both = if prefix.length() > matches.source.length() { prefix } else { matches.source };
                let is_meant = |vrf: &&String| class.vrfs.is_empty() || class.vrfs.iter().any(|it| it.value == **vrf);
                let mut vrfs = self.vrfs_of(matches).filter(is_meant);
                let own = vrfs.find_map(|vrf| self.pool_of(both, vrf).filter(|own| own.label() != to.label()));
                if let Some(own) = own {
                    let class = class.name.as_ref().map_or("", |name| name.value.as_str());
                    return Some(format!(
                        "sends subscribers of class {} to pool {}, but their reserved_ports are in pool {}: inside {both} has no \
                         guarantee for packets that the rule matches",
                        quoted(class),
                        quoted(to.label()),
                        quoted(own.label()),
                    ));
                }
            }
        }
        None
    }

    /// The subscribers of a deterministic pool that a rule matches.
    fn formula_of(&self, matches: &Match) -> Option<ByFormula<'d>> {
        if !self.has_formulas {
            return None;
        }
        let around = |vrf: &String| self.pool_of(matches.source, vrf).filter(|pool| is_by_formula(pool));
        if let Some(pool) = self.vrfs_of(matches).find_map(around) {
            let is_all = self.vrfs_of(matches).all(|vrf| around(vrf).is_some());
            return Some(ByFormula { pool, source: matches.source, is_all });
        }
        let pools = self.draft.pools.iter().filter(|pool| is_by_formula(pool));
        let mut pools = pools.filter(|pool| self.vrfs_of(matches).any(|vrf| pool.serves(vrf)));
        pools.find_map(|pool| {
            let mut prefixes = pool.subscribers.iter().map(|prefix| prefix.value);
            let source = prefixes.find(|prefix| prefix.overlaps(matches.source))?;
            Some(ByFormula { pool, source, is_all: false })
        })
    }
}
