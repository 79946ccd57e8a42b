//! Rules that pass packets of more than one VRF untranslated, where the VRFs have the same inside
//! addresses. Only the address of a reply shows its subscriber, and a reply must not reach another
//! subscriber.
//!
//! Addresses that all these VRFs have only on links to routers do not count, unless a rule is about
//! nothing else: the subscribers are behind the routers.
//!
//! A rule is at fault if a packet exists that rules pass untranslated in two VRFs, and both VRFs
//! have a route to its inside address. The search looks at the corners of what a rule matches
//! within such addresses, with at most [`STEPS_MAX`] lookups and comparisons per list. An
//! incomplete search gives a warning. Packets it missed are dropped: the engine lets in only what
//! can belong to exactly one VRF.

use std::collections::BTreeMap;

use nat::Protocol;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::rules::RuleKey;
use nat::rules::RuleSet;
use nat::types::Prefix;
use nat::types::RealmId;

use crate::check::range_text;
use crate::check::rules::known::Known;
use crate::check::rules::origin::Sources;
use crate::fault::Warning;
use crate::report::Place;
use crate::report::Report;

/// Faults reported one by one; further ones are counted.
const REPORTED_MAX: usize = 20;
/// Lookups and comparisons, at most: about a second.
const STEPS_MAX: u32 = 4_000_000;

/// Inside addresses that several VRFs have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Common {
    first: u32,
    last: u32,
    /// Each VRF, and whether the addresses are those of a link to a router there.
    realms: Vec<(RealmId, bool)>,
}

impl Common {
    /// The part of a prefix that is in it, if there is any.
    fn part_of(&self, prefix: Prefix) -> Option<(u32, u32)> {
        let (first, last) = (self.first.max(prefix.address().to_bits()), self.last.min(prefix.last().to_bits()));
        (first <= last).then_some((first, last))
    }

    /// Whether an answer to one of these addresses could be for either VRF, under a rule for this
    /// prefix.
    fn confuses(&self, one: (RealmId, bool), other: (RealmId, bool), prefix: Prefix) -> bool {
        let is_all = (prefix.address().to_bits(), prefix.last().to_bits());
        one.0 != other.0 && (!one.1 || !other.1 || self.part_of(prefix) == Some(is_all))
    }

    /// How the addresses are used in a VRF that has them.
    fn of(&self, realm: RealmId) -> Option<(RealmId, bool)> {
        self.realms.iter().find(|(there, _)| *there == realm).copied()
    }
}

/// What one rule lets through of more than one VRF.
#[derive(Debug, PartialEq, Eq)]
struct Ambiguity {
    /// Its position, and that of the one it is so together with: of another VRF.
    rule: usize,
    with: Option<usize>,
    realms: [RealmId; 2],
    inside: (u32, u32),
}

/// The addresses that several VRFs have, in order, of all prefixes that each has; a prefix may be
/// that of a link to a router.
pub(super) fn common(inside: impl Iterator<Item = (RealmId, Prefix, bool)>) -> Vec<Common> {
    // Where a prefix begins, and where it has ended.
    let mut ends: Vec<(u64, bool, RealmId, (u8, bool))> = inside
        .flat_map(|(realm, prefix, is_link)| {
            let (first, last) = (u64::from(prefix.address().to_bits()), u64::from(prefix.last().to_bits()));
            let kind = (prefix.length(), is_link);
            [(first, true, realm, kind), (last + 1, false, realm, kind)]
        })
        .collect();
    ends.sort_unstable_by_key(|(at, ..)| *at);
    // The prefixes of each VRF around an address: the longest one says what it is.
    let mut around: BTreeMap<u16, Vec<(u8, bool)>> = BTreeMap::new();
    let mut found: Vec<Common> = Vec::new();
    for (at, (place, begins, realm, kind)) in ends.iter().enumerate() {
        let prefixes = around.entry(realm.0).or_default();
        if *begins {
            prefixes.push(*kind);
        } else if let Some(ended) = prefixes.iter().position(|prefix| prefix == kind) {
            prefixes.swap_remove(ended);
        }
        let Some((next, ..)) = ends.get(at + 1).filter(|(next, ..)| next > place) else { continue };
        let longest = |prefixes: &Vec<(u8, bool)>| prefixes.iter().max().map(|(_, is_link)| *is_link);
        let realms: Vec<(RealmId, bool)> =
            around.iter().filter_map(|(realm, prefixes)| Some((RealmId(*realm), longest(prefixes)?))).collect();
        if realms.len() < 2 {
            continue;
        }
        let (first, last) = (*place as u32, (next - 1) as u32);
        match found.last_mut().filter(|before| before.last.checked_add(1) == Some(first) && before.realms == realms) {
            Some(before) => before.last = last,
            None => found.push(Common { first, last, realms }),
        }
    }
    found
}

/// The packets of both, if there are any whatever their VRFs are.
fn both(one: &Match, other: &Match) -> Option<Match> {
    let any_realm = Match { realm: None, ..*one };
    if !any_realm.overlaps(other) {
        return None;
    }
    let longer = |one: Prefix, other: Prefix| if one.length() >= other.length() { one } else { other };
    let ports = |one: PortRange, other: PortRange| PortRange {
        first: one.first.max(other.first),
        last: one.last.min(other.last),
    };
    Some(Match {
        realm: None,
        protocol: one.protocol.or(other.protocol),
        source: longer(one.source, other.source),
        destination: longer(one.destination, other.destination),
        source_ports: ports(one.source_ports, other.source_ports),
        destination_ports: ports(one.destination_ports, other.destination_ports),
    })
}

/// Packets at the corners of what is matched, of inside addresses from `first` to `last`.
fn corners(matches: &Match, (first, last): (u32, u32)) -> impl Iterator<Item = RuleKey> {
    let protocols = match matches.protocol {
        Some(number) => vec![number],
        None => Protocol::ALL.map(|protocol| protocol.number()).to_vec(),
    };
    let destinations = [matches.destination.address().to_bits(), matches.destination.last().to_bits()];
    let ends = |range: PortRange| [range.first, range.last];
    let (inside_ports, outside_ports) = (ends(matches.source_ports), ends(matches.destination_ports));
    protocols.into_iter().flat_map(move |protocol| {
        // Each bit chooses one of two ends.
        (0..16_usize).map(move |corner| {
            let end = |bit: usize| corner >> bit & 1;
            RuleKey::new(
                RealmId::default(),
                protocol,
                [first, last][end(0)],
                inside_ports[end(1)],
                destinations[end(2)],
                outside_ports[end(3)],
            )
        })
    })
}

/// Addresses of `prefix` that several VRFs have.
fn within(common: &[Common], prefix: Prefix) -> impl Iterator<Item = ((u32, u32), &Common)> {
    let from = common.partition_point(|common| common.last < prefix.address().to_bits());
    common[from..].iter().map_while(move |common| Some((common.part_of(prefix)?, common)))
}

/// A list of rules, of which those at some positions let packets through as they are.
struct Search<'r> {
    matches: &'r [Match],
    passes: &'r dyn Fn(usize) -> bool,
    set: RuleSet,
    common: &'r [Common],
    steps_left: u32,
}

impl Search<'_> {
    /// The rule that decides about a packet of this VRF, if it lets it through.
    fn passing(&mut self, key: &RuleKey, realm: RealmId) -> Option<usize> {
        self.steps_left = self.steps_left.saturating_sub(1);
        let key = RuleKey::new(
            realm,
            key.protocol(),
            key.source().to_bits(),
            key.source_port(),
            key.destination().to_bits(),
            key.destination_port(),
        );
        let position = self.set.position(self.set.lookup(&key)?)?;
        (self.passes)(position).then_some(position)
    }

    /// Whether a rule for any VRF lets packets through in two that could be either's.
    fn of_any(&mut self, rule: usize) -> Option<Ambiguity> {
        let matches = *self.matches.get(rule)?;
        for (inside, there) in within(self.common, matches.source) {
            for key in corners(&matches, inside) {
                if self.steps_left == 0 {
                    return None;
                }
                // Those whose packets are let through, and whether by this rule.
                let mut passed: Vec<((RealmId, bool), bool)> = Vec::new();
                for realm in &there.realms {
                    let Some(by) = self.passing(&key, realm.0) else { continue };
                    let is_own = by == rule;
                    let is_confused = |(other, others): &&((RealmId, bool), bool)| {
                        (is_own || *others) && there.confuses(*realm, *other, matches.source)
                    };
                    if let Some((other, _)) = passed.iter().find(is_confused) {
                        return Some(Ambiguity { rule, with: None, realms: [other.0, realm.0], inside });
                    }
                    passed.push((*realm, is_own));
                }
            }
        }
        None
    }

    /// Whether two rules, each of one VRF, let through what could be of either.
    fn of_two(&mut self, earlier: usize, later: usize) -> Option<Ambiguity> {
        self.steps_left = self.steps_left.saturating_sub(1);
        let (one, other) = (self.matches.get(earlier)?, self.matches.get(later)?);
        let realms = [one.realm?, other.realm?];
        if realms[0] == realms[1] {
            return None;
        }
        let matches = both(one, other)?;
        let common = within(self.common, matches.source);
        for (inside, there) in common {
            self.steps_left = self.steps_left.saturating_sub(1);
            if self.steps_left == 0 {
                return None;
            }
            let [Some(first), Some(second)] = realms.map(|realm| there.of(realm)) else { continue };
            if !there.confuses(first, second, matches.source) {
                continue;
            }
            for key in corners(&matches, inside) {
                if self.steps_left == 0 {
                    return None;
                }
                let is_of_both =
                    self.passing(&key, realms[0]) == Some(earlier) && self.passing(&key, realms[1]) == Some(later);
                if is_of_both {
                    return Some(Ambiguity { rule: later, with: Some(earlier), realms, inside });
                }
            }
        }
        None
    }

    /// Whether a VRF has addresses of this prefix that another has, too.
    fn has_common(&mut self, source: Prefix, realm: RealmId) -> bool {
        for (_, there) in within(self.common, source) {
            self.steps_left = self.steps_left.saturating_sub(1);
            if self.steps_left == 0 {
                return false;
            }
            if there.of(realm).is_some() {
                return true;
            }
        }
        false
    }

    /// All ambiguities, ordered by the rule at fault.
    fn all(&mut self) -> Vec<Ambiguity> {
        let mut found: Vec<Ambiguity> = Vec::new();
        let mut of_one: Vec<usize> = Vec::new();
        for rule in 0..self.matches.len() {
            if !(self.passes)(rule) {
                continue;
            }
            let matches = self.matches[rule];
            match matches.realm {
                None => found.extend(self.of_any(rule)),
                Some(own) if self.has_common(matches.source, own) => of_one.push(rule),
                Some(_) => {}
            }
        }
        // Prefixes nest or are apart: in this order those around one are the last that still reach
        // to it.
        of_one.sort_by_key(|rule| {
            let source = self.matches[*rule].source;
            (source.address().to_bits(), source.length(), *rule)
        });
        // By VRF: those of one are nothing to each other.
        let mut around: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        let mut reported = vec![false; self.matches.len()];
        for rule in of_one {
            let Match { source, realm: Some(realm), .. } = self.matches[rule] else { continue };
            for (other_realm, others) in &mut around {
                while others.last().is_some_and(|last| !self.matches[*last].source.overlaps(source)) {
                    others.pop();
                }
                if *other_realm == realm.0 {
                    continue;
                }
                for other in &*others {
                    self.steps_left = self.steps_left.saturating_sub(1);
                    if self.steps_left == 0 {
                        break;
                    }
                    let (earlier, later) = (rule.min(*other), rule.max(*other));
                    if !reported[later]
                        && let Some(ambiguity) = self.of_two(earlier, later)
                    {
                        reported[later] = true;
                        found.push(ambiguity);
                    }
                }
            }
            if self.steps_left == 0 {
                break;
            }
            around.entry(realm.0).or_default().push(rule);
        }
        found.sort_by_key(|ambiguity| ambiguity.rule);
        found
    }
}

/// Reports the rules of a list whose replies could belong to more than one VRF. `passes` is true at
/// the positions of rules that pass packets untranslated. Warns if there were too many rules to
/// compare them all.
pub(super) fn check(
    matches: &[Match],
    passes: &dyn Fn(usize) -> bool,
    known: &Known<'_>,
    sources: &Sources<'_>,
    report: &mut Report,
) -> Option<Warning> {
    let common = known.common_inside();
    if common.is_empty() || !(0..matches.len()).any(passes) {
        return None;
    }
    // A list with too many rules is already reported.
    let set = RuleSet::new(matches).ok()?;
    let mut search = Search { matches, passes, set, common: &common, steps_left: STEPS_MAX };
    let found = search.all();
    for ambiguity in found.iter().take(REPORTED_MAX) {
        let [one, other] = ambiguity.realms.map(|realm| known.vrf_name(realm));
        let seen = format!("inside {}", range_text(ambiguity.inside.0, ambiguity.inside.1));
        match ambiguity.with {
            None => {
                let problem = format!(
                    "passes packets of VRFs \"{one}\" and \"{other}\" untranslated, which have the same inside addresses: a reply \
                     could be for either"
                );
                let remedy = "write its vrf, or an inside prefix that only one of them has";
                sources.fault(ambiguity.rule, problem, &seen, remedy, report);
            }
            Some(with) => {
                let problem = format!(
                    "passes packets of VRF \"{other}\" untranslated, and the rule {} those of VRF \"{one}\", which has the same \
                     inside addresses: a reply could be for either",
                    sources.on_line(with)
                );
                let remedy = "narrow the inside, outside or ports of one of them, or remove one";
                sources.fault(ambiguity.rule, problem, &seen, remedy, report);
            }
        }
    }
    if let Some(next) = found.get(REPORTED_MAX) {
        let problem =
            format!("is the first of {} more whose replies could be for more than one VRF", found.len() - REPORTED_MAX);
        let seen = format!("{} in all", found.len());
        sources.fault(next.rule, problem, &seen, "write the VRF that each is for, or narrow them", report);
    }
    // What was found is of use first.
    (search.steps_left == 0 && found.is_empty()).then(|| {
        let problem =
            "list: so many rules pass packets of VRFs with the same inside addresses that not all were compared, and \
                       replies that could be for more than one VRF are dropped"
                .to_owned();
        let place = Place { path: "rule".into(), line: None };
        report.warning(None, &place, problem, "write fewer and wider rules, or none for addresses that VRFs share")
    })
}
