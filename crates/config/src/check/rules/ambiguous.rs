//! Rules that let packets through as they are, of more than one VRF with the same inside addresses: of an answer from outside only
//! the address says whose it is, and it must not reach somebody else's subscriber.
//!
//! A rule is told where a packet is found that rules let through in two VRFs which both have a way to its inside address. Looked at
//! are the corners of what a rule matches within such addresses; no list gets more than [`STEPS_MAX`] lookups and comparisons. What
//! is not found is warned of, and goes to nobody: the engine lets in only what can be of one VRF.

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

/// Told one by one; more are counted.
const TOLD_MAX: usize = 20;
/// Lookups and comparisons, at most: about a second.
const STEPS_MAX: u32 = 4_000_000;

/// Inside addresses that several VRFs have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Common {
    first: u32,
    last: u32,
    realms: Vec<RealmId>,
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

/// The addresses that several VRFs have, in order, of all that each has.
pub(super) fn common(inside: impl Iterator<Item = (RealmId, Prefix)>) -> Vec<Common> {
    // Where an address of a VRF begins to be one, and where it no longer is.
    let mut ends: Vec<(u64, bool, RealmId)> = inside
        .flat_map(|(realm, prefix)| {
            let (first, last) = (u64::from(prefix.address().to_bits()), u64::from(prefix.last().to_bits()));
            [(first, true, realm), (last + 1, false, realm)]
        })
        .collect();
    ends.sort_unstable_by_key(|(at, ..)| *at);
    let mut counts: Vec<(RealmId, u32)> = Vec::new();
    let mut found: Vec<Common> = Vec::new();
    for (at, (place, begins, realm)) in ends.iter().enumerate() {
        let position = counts.iter().position(|(counted, _)| counted == realm);
        match (position, begins) {
            (Some(position), true) => counts[position].1 += 1,
            (None, true) => counts.push((*realm, 1)),
            (Some(position), false) if counts[position].1 == 1 => _ = counts.swap_remove(position),
            (Some(position), false) => counts[position].1 -= 1,
            (None, false) => {}
        }
        let Some((next, ..)) = ends.get(at + 1).filter(|(next, ..)| next > place && counts.len() > 1) else { continue };
        let mut realms: Vec<RealmId> = counts.iter().map(|(realm, _)| *realm).collect();
        realms.sort_unstable_by_key(|realm| realm.0);
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

/// Addresses of `prefix` that several VRFs have, and which.
fn within(common: &[Common], prefix: Prefix) -> impl Iterator<Item = ((u32, u32), &[RealmId])> {
    let (first, last) = (prefix.address().to_bits(), prefix.last().to_bits());
    let from = common.partition_point(|common| common.last < first);
    let within = common[from..].iter().take_while(move |common| common.first <= last);
    within.map(move |common| ((common.first.max(first), common.last.min(last)), common.realms.as_slice()))
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
        for (inside, realms) in within(self.common, matches.source) {
            for key in corners(&matches, inside) {
                if self.steps_left == 0 {
                    return None;
                }
                let mut own = None;
                let mut other = None;
                for realm in realms {
                    match self.passing(&key, *realm) {
                        Some(by) if by == rule && own.is_none() => own = Some(*realm),
                        Some(_) => other = Some(*realm),
                        None => {}
                    }
                    if let (Some(own), Some(other)) = (own, other) {
                        let realms = if own.0 < other.0 { [own, other] } else { [other, own] };
                        return Some(Ambiguity { rule, with: None, realms, inside });
                    }
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
            if !realms.iter().all(|realm| there.contains(realm)) {
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
        for (_, realms) in within(self.common, source) {
            self.steps_left = self.steps_left.saturating_sub(1);
            if self.steps_left == 0 {
                return false;
            }
            if realms.contains(&realm) {
                return true;
            }
        }
        false
    }

    /// All, by the rule that is told.
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
        // Prefixes nest or are apart: in this order those around one are the last that still reach to it.
        of_one.sort_by_key(|rule| {
            let source = self.matches[*rule].source;
            (source.address().to_bits(), source.length(), *rule)
        });
        // By VRF: those of one are nothing to each other.
        let mut around: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        let mut told = vec![false; self.matches.len()];
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
                    if !told[later]
                        && let Some(ambiguity) = self.of_two(earlier, later)
                    {
                        told[later] = true;
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

/// Tells the rules of a list whose answers could be those of more than one VRF; `passes` says of a position whether packets are let
/// through as they are. Warns where so many were to be compared that some may be untold.
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
    // Too many of them are told already.
    let set = RuleSet::new(matches).ok()?;
    let mut search = Search { matches, passes, set, common: &common, steps_left: STEPS_MAX };
    let found = search.all();
    for ambiguity in found.iter().take(TOLD_MAX) {
        let [one, other] = ambiguity.realms.map(|realm| known.vrf_name(realm));
        let seen = format!("inside {}", range_text(ambiguity.inside.0, ambiguity.inside.1));
        match ambiguity.with {
            None => {
                let problem = format!(
                    "lets packets of VRFs \"{one}\" and \"{other}\" through as they are, which have the same inside addresses: an answer \
                     could be for either"
                );
                let remedy = "write the vrf it is for, or an inside that only one of them has";
                sources.fault(ambiguity.rule, problem, &seen, remedy, report);
            }
            Some(with) => {
                let problem = format!(
                    "lets packets of VRF \"{other}\" through as they are, and the rule {} those of VRF \"{one}\", which has the same \
                     inside addresses: an answer could be for either",
                    sources.on_line(with)
                );
                let remedy = "narrow inside, outside or the ports of one of them, or remove one";
                sources.fault(ambiguity.rule, problem, &seen, remedy, report);
            }
        }
    }
    if let Some(next) = found.get(TOLD_MAX) {
        let problem =
            format!("is the first of {} more whose answers could be for more than one VRF", found.len() - TOLD_MAX);
        let seen = format!("{} in all", found.len());
        sources.fault(next.rule, problem, &seen, "write the VRF that each is for, or narrow them", report);
    }
    // What was found is of use first.
    (search.steps_left == 0 && found.is_empty()).then(|| {
        let problem = "list: so many rules let packets of VRFs with the same inside addresses through that not all were compared; \
                       answers that could be for more than one VRF are dropped"
            .to_owned();
        let place = Place { path: "rule".into(), line: None };
        report.warning(None, &place, problem, "write fewer and wider rules, or none for addresses that VRFs share")
    })
}
