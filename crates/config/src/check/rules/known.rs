//! What rules are compiled against: the names and networks of the rest of the file.

use std::collections::HashMap;
use std::collections::HashSet;

use nat::redirection::Redirection;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::Allocation;
use nat::settings::FilterAction;
use nat::settings::FilterRule;
use nat::settings::MappingKind;
use nat::settings::RuleAction;
use nat::stand_in::Prefix6;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;

use crate::check::Reach;
use crate::check::interfaces::vrf_names;
use crate::check::rules::ambiguous;
use crate::check::rules::ambiguous::Common;
use crate::check::rules::prefixes6::Prefixes6;
use crate::draft::Draft;
use crate::draft::interface::NO_HOST;
use crate::draft::interface::is_of_no_host;
use crate::draft::pool::PoolDraft;
use crate::draft::rule::FilterDraft;
use crate::draft::rule::MatchDraft;
use crate::draft::rule::RuleDraft;
use crate::draft::rule::RuleWord;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// Of IPv6 prefixes where there are no IPv6 hosts.
pub(crate) const NO_HOSTS: &str = "is an IPv6 prefix, and no [[nat64]] or [[softwire]] of the VRF has IPv6 hosts";
/// See [`NO_HOSTS`].
pub(crate) const HOSTS_REMEDY: &str = "add a [[nat64]] or [[softwire]], or write an IPv4 prefix";

/// Addresses in order, none of them twice.
#[derive(Default)]
struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    fn new(mut ranges: Vec<(u32, u32)>) -> Ranges {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Ranges(merged)
    }

    /// Whether all of `prefix` is in them.
    fn cover(&self, prefix: Prefix) -> bool {
        let (first, end) = (prefix.address().to_bits(), prefix.last().to_bits());
        // Those that touch are one only when they overlap, so that several may be needed.
        let mut next = Some(first);
        for (first, last) in &self.0[self.0.partition_point(|(_, last)| *last < first)..] {
            match next {
                Some(wanted) if *first <= wanted => next = last.checked_add(1),
                _ => return false,
            }
            if *last >= end {
                return true;
            }
        }
        false
    }

    /// Whether one of them is in `prefix`.
    fn overlaps(&self, prefix: Prefix) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < prefix.address().to_bits());
        self.0.get(at).is_some_and(|(first, _)| *first <= prefix.last().to_bits())
    }
}

/// The subscribers that a one-to-one or deterministic pool has ports for; None for other pools.
fn owners(pool: &PoolDraft) -> Option<Ranges> {
    let by_formula = matches!(pool.allocation.value, Some(Allocation::Deterministic { .. }));
    (pool.one_to_one.is_some() || by_formula).then(|| {
        let prefixes = pool.subscribers.iter().map(|prefix| prefix.value);
        Ranges::new(prefixes.map(|prefix| (prefix.address().to_bits(), prefix.last().to_bits())).collect())
    })
}

/// What rules name, found at once: there may be a million of them.
pub(super) struct Known<'d> {
    vrfs: Vec<String>,
    pools: &'d [PoolDraft],
    pool_by_name: HashMap<&'d str, usize>,
    inside: Ranges,
    outside: Ranges,
    external: Ranges,
    /// Natrix's own, on any interface.
    own: Ranges,
    /// Of pools, and Natrix's own on outside interfaces.
    here: Ranges,
    /// All that is reached, to find the longest prefix.
    reaches: &'d [Reach],
    /// By pool, the only subscribers it has ports for; None where it serves anyone.
    owners: Vec<Option<Ranges>>,
    /// By pool, whether it gives out nothing new.
    drains: Vec<bool>,
    /// By VRF, where inside interfaces and routes of it lead.
    inside_of: Vec<Ranges>,
    /// By VRF, whether it has IPv6 hosts behind NAT64 or softwires.
    has_hosts: Vec<bool>,
    /// IPv6 prefixes that rules and filters name.
    pub(super) prefixes6: Prefixes6,
    /// By pool, the positions of the VRFs that it does not serve.
    unserved: Vec<Vec<usize>>,
    /// Interfaces and routes are free of faults, so that unreachable addresses are worth reporting.
    is_network_clean: bool,
    /// Routes of the kernel may lead inside, and outside, to more than the configuration says.
    learns: [bool; 2],
}

/// The addresses of a pool but for those that it excludes.
fn given_out(pool: &PoolDraft) -> Vec<(u32, u32)> {
    let mut left: Vec<(u32, u32)> =
        pool.addresses.iter().map(|range| (*range.value.start(), *range.value.end())).collect();
    for excluded in &pool.exclude {
        let (first, last) = (*excluded.value.start(), *excluded.value.end());
        let parts = left.into_iter().flat_map(|(start, end)| {
            if last < start || first > end {
                return [Some((start, end)), None];
            }
            let before = first.checked_sub(1).filter(|before| *before >= start).map(|before| (start, before));
            let behind = last.checked_add(1).filter(|behind| *behind <= end).map(|behind| (behind, end));
            [before, behind]
        });
        left = parts.flatten().collect();
    }
    left
}

impl<'d> Known<'d> {
    pub(super) fn new(
        draft: &'d Draft,
        reaches: &'d [Reach],
        is_network_clean: bool,
        prefixes6: Prefixes6,
    ) -> Known<'d> {
        let reached = |side: Side| {
            let there = reaches.iter().filter(|reach| reach.side == side);
            Ranges::new(there.map(|reach| (reach.prefix.address().to_bits(), reach.prefix.last().to_bits())).collect())
        };
        let named =
            draft.pools.iter().enumerate().filter_map(|(at, pool)| Some((pool.name.as_ref()?.value.as_str(), at)));
        let own = draft.interfaces.iter().flat_map(|interface| &interface.addresses).map(|own| own.value.address);
        let outside = draft.interfaces.iter().filter(|interface| interface.side == Some(Side::Outside));
        let outside_own = outside.flat_map(|interface| &interface.addresses);
        let outside_own = outside_own.map(|own| own.value.address.to_bits()).map(|own| (own, own));
        let vrfs = vrf_names(&draft.interfaces);
        let mut inside_of = vec![Vec::new(); vrfs.len()];
        for reach in reaches.iter().filter(|reach| reach.side == Side::Inside) {
            if let Some(at) = vrfs.iter().position(|vrf| *vrf == reach.vrf) {
                inside_of[at].push((reach.prefix.address().to_bits(), reach.prefix.last().to_bits()));
            }
        }
        let unserved = |pool: &PoolDraft| {
            vrfs.iter().enumerate().filter(|(_, vrf)| !pool.serves(vrf)).map(|(at, _)| at).collect::<Vec<usize>>()
        };
        let has_hosts = |vrf: &String| draft.host_vrfs().any(|of| of == vrf);
        Known {
            has_hosts: vrfs.iter().map(has_hosts).collect(),
            prefixes6,
            drains: draft.pools.iter().map(PoolDraft::drains).collect(),
            inside_of: inside_of.into_iter().map(Ranges::new).collect(),
            unserved: draft.pools.iter().map(unserved).collect(),
            vrfs,
            pools: &draft.pools,
            // Of two pools with the same name, a fault reported elsewhere, the first counts.
            pool_by_name: named.rev().collect(),
            inside: reached(Side::Inside),
            outside: reached(Side::Outside),
            external: Ranges::new(draft.pools.iter().flat_map(given_out).collect()),
            here: Ranges::new(draft.pools.iter().flat_map(given_out).chain(outside_own).collect()),
            own: Ranges::new(own.map(|own| (own.to_bits(), own.to_bits())).collect()),
            reaches,
            owners: draft.pools.iter().map(owners).collect(),
            is_network_clean,
            learns: [Side::Inside, Side::Outside].map(|side| draft.learns(side)),
        }
    }

    /// The position of the pool with this name.
    pub(super) fn pool_named(&self, name: &str) -> Option<usize> {
        self.pool_by_name.get(name).copied()
    }

    /// Reports prefixes of a rule that lead nowhere.
    pub(super) fn reachable(&self, rule: &RuleDraft, report: &mut Report) {
        let is_pass = rule.action == Some(RuleWord::Pass);
        for (prefix, side) in [(&rule.matches.inside, Side::Inside), (&rule.matches.outside, Side::Outside)] {
            if let Some(prefix) = prefix.as_ref().filter(|prefix| is_pass || prefix.given)
                && self.is_network_clean
            {
                self.is_reached(prefix, side, report);
            }
        }
    }

    fn is_reached(&self, prefix: &Placed<Prefix>, side: Side, report: &mut Report) {
        let [inside, outside] = self.learns;
        let (there, may_learn) = if side == Side::Inside { (&self.inside, inside) } else { (&self.outside, outside) };
        if !may_learn && !there.overlaps(prefix.value) {
            let problem = format!("cannot be reached by any {} interface or route", side.name());
            let remedy = format!("add an {} [[route]] or interface that leads there", side.name());
            report.fault(&prefix.place, problem, prefix.value.to_string(), remedy);
        }
    }

    /// What a rule or filter matches; none when it names a VRF there is not.
    pub(super) fn matches_of(&self, draft: &MatchDraft, report: &mut Report) -> Option<Match> {
        let ports = |ports: &Option<Placed<core::ops::RangeInclusive<u16>>>| match ports {
            Some(ports) => PortRange { first: *ports.value.start(), last: *ports.value.end() },
            None => PortRange::ALL,
        };
        let realm = match &draft.vrf {
            None => None,
            Some(vrf) => match self.vrfs.iter().position(|known| *known == vrf.value) {
                Some(position) => Some(RealmId(u16::try_from(position).ok()?)),
                None => {
                    let known = || self.vrfs.iter().map(String::as_str);
                    let remedy = match nearest(&vrf.value, known()) {
                        Some(meant) => format!("did you mean \"{meant}\"?"),
                        None => format!("write {}", one_of(known())),
                    };
                    report.fault(&vrf.place, "is not the VRF of an inside interface", quoted(&vrf.value), remedy);
                    return None;
                }
            },
        };
        let prefix = |prefix: &Option<Placed<Prefix>>| prefix.as_ref().map_or(Prefix::ALL, |prefix| prefix.value);
        let source = match &draft.inside6 {
            Some(written) => self.source6(written, realm, report)?,
            None => prefix(&draft.inside),
        };
        if let Some(written) = draft.inside.as_ref().filter(|it| is_of_no_host(it.value)) {
            let remedy = "write a prefix of inside hosts";
            report.fault(&written.place, NO_HOST, source.to_string(), remedy);
            return None;
        }
        Some(Match {
            realm,
            protocol: draft.protocol,
            source,
            destination: prefix(&draft.outside),
            source_ports: ports(&draft.inside_ports),
            destination_ports: ports(&draft.outside_ports),
        })
    }

    /// What a rule has for IPv6 hosts; none when there are none in its VRF.
    fn source6(&self, written: &Placed<Prefix6>, realm: Option<RealmId>, report: &mut Report) -> Option<Prefix> {
        let has_some = match realm {
            Some(realm) => self.has_hosts.get(realm.index()) == Some(&true),
            None => self.has_hosts.contains(&true),
        };
        if !has_some {
            report.fault(&written.place, NO_HOSTS, written.value.to_string(), HOSTS_REMEDY);
            return None;
        }
        Some(self.prefixes6.number(written.value))
    }

    /// What a redirection comes to, if its targets can be reached outside and belong to nothing
    /// here.
    pub(super) fn redirection(&self, draft: &RuleDraft, matches: &Match, report: &mut Report) -> Option<Redirection> {
        let faults = report.fault_count();
        let action = match &draft.to {
            Some(to) => {
                if to.value.length() != matches.destination.length() {
                    let remedy =
                        format!("write a prefix of length {}, as that of `outside`", matches.destination.length());
                    report.fault(&to.place, "has another length than `outside`", to.value.to_string(), remedy);
                }
                if to.value == matches.destination {
                    let remedy = "write another prefix, or remove the rule";
                    report.fault(
                        &to.place,
                        "is `outside` itself, so nothing would change",
                        to.value.to_string(),
                        remedy,
                    );
                }
                self.is_sensible(to, report);
                Redirection::Prefix(to.value)
            }
            None => Redirection::Targets(draft.targets.iter().map(|target| target.value).collect()),
        };
        let mut seen = HashSet::new();
        for target in &draft.targets {
            let address = core::net::Ipv4Addr::from_bits(target.value.address);
            let host = Placed { value: Prefix::host(address), place: target.place.clone(), given: true };
            let shown = || match target.value.port {
                Some(port) => format!("{address}:{port}"),
                None => address.to_string(),
            };
            if !seen.insert((address, target.value.port)) {
                let remedy = "write it once, with a higher weight if it should get more";
                report.fault(&target.place, "is listed twice", shown(), remedy);
            }
            let keeps_port = target
                .value
                .port
                .is_none_or(|port| matches.destination_ports.first == port && matches.destination_ports.last == port);
            if matches.destination == host.value && keeps_port {
                let remedy = "write another host or port, or remove the rule";
                report.fault(&target.place, "is what the rule matches, so nothing would change", shown(), remedy);
            }
            self.is_sensible(&host, report);
            if target.value.port.is_some() && !matches.protocol.is_some_and(|number| matches!(number, 6 | 17)) {
                let remedy = "write protocol = \"tcp\" or \"udp\", or leave the port out";
                report.fault(
                    &target.place,
                    "has a port, but the rule has no protocol with ports",
                    address.to_string(),
                    remedy,
                );
            }
        }
        (report.fault_count() == faults).then_some(action)
    }

    /// Reports a redirection to addresses that no packet can be sent to.
    fn is_sensible(&self, to: &Placed<Prefix>, report: &mut Report) {
        let prefix = to.value;
        let is_host = prefix.length() == 32;
        // RFC 1122 §3.2.1.3, RFC 5771: this network, loopback, multicast, reserved and broadcast.
        let nowhere = [(0, 8), (0x7f00_0000, 8), (0xe000_0000, 3)];
        let mut nowhere = nowhere.into_iter().filter_map(|(address, length)| Prefix::new(address.into(), length));
        let problem = if nowhere.any(|nowhere| nowhere.overlaps(prefix)) {
            "is not an address that packets can be sent to"
        } else if self.external.overlaps(prefix) {
            if is_host { "is an address of a pool" } else { "has addresses of a pool" }
        } else if is_host && self.own.overlaps(prefix) {
            // Of a network on its own link all other hosts can be reached.
            "is Natrix's own address"
        } else if self.is_network_clean && self.is_inside(prefix) {
            "is inside"
        } else {
            return self.is_reached(to, Side::Outside, report);
        };
        let (seen, remedy) = match is_host {
            true => (prefix.address().to_string(), "write a host outside"),
            false => (prefix.to_string(), "write a prefix outside"),
        };
        report.fault(&to.place, problem, seen, remedy);
    }

    /// Whether the longest route to this prefix leads inside.
    fn is_inside(&self, prefix: Prefix) -> bool {
        // Few are, so that all routes are gone through for few.
        self.inside.overlaps(prefix) && {
            let longest = |side: Side| {
                let there = self.reaches.iter().filter(|reach| reach.side == side && reach.prefix.overlaps(prefix));
                there.map(|reach| reach.prefix.length()).max()
            };
            longest(Side::Inside) > longest(Side::Outside)
        }
    }

    /// Reports a pool that has no ports for some of the subscribers a rule sends there.
    fn has_ports_for(&self, pool: &Placed<String>, position: usize, matches: &Match, report: &mut Report) -> bool {
        let (Some(draft), Some(Some(owners))) = (self.pools.get(position), self.owners.get(position)) else {
            return true;
        };
        if draft.lacks_subscribers {
            return true;
        }
        let serves = |realm: RealmId| self.vrfs.get(realm.index()).is_some_and(|vrf| draft.serves(vrf));
        let is_served = match matches.realm {
            Some(realm) => serves(realm),
            None => self.vrfs.iter().all(|vrf| draft.serves(vrf)),
        };
        if is_served && owners.cover(matches.source) {
            return true;
        }
        let how = if draft.one_to_one.is_some() { "is one-to-one" } else { "gives out ports by a formula" };
        let problem = format!("{how}, and has none for some of the subscribers the rule sends there");
        let (name, seen) = (quoted(&pool.value), self.prefixes6.shown(matches.source));
        let whose = if is_served { format!("inside {seen}") } else { "a VRF it does not serve".to_owned() };
        let remedy =
            "match only its own subscribers by inside and vrf, add them to its subscribers, or choose another pool";
        report.fault(&pool.place, problem, format!("{name}, {whose}"), remedy);
        false
    }

    /// The inside addresses that more than one VRF has a way to; none where interfaces and routes
    /// are faulty.
    pub(super) fn common_inside(&self) -> Vec<Common> {
        if !self.is_network_clean {
            return Vec::new();
        }
        let inside = self.reaches.iter().filter(|reach| reach.side == Side::Inside);
        ambiguous::common(inside.filter_map(|reach| {
            let at = self.vrfs.iter().position(|vrf| *vrf == reach.vrf)?;
            Some((RealmId(u16::try_from(at).ok()?), reach.prefix, reach.is_link))
        }))
    }

    /// Whether all of these outside addresses are of pools, or Natrix's own.
    pub(super) fn is_here(&self, outside: Prefix) -> bool {
        self.here.cover(outside)
    }

    /// The name of a VRF.
    pub(super) fn vrf_name(&self, realm: RealmId) -> &str {
        self.vrfs.get(realm.index()).map_or("?", String::as_str)
    }

    /// How many VRFs packets come from.
    pub(super) fn realm_count(&self) -> u16 {
        u16::try_from(self.vrfs.len()).unwrap_or(u16::MAX)
    }

    /// Reports a pool that does not serve a VRF whose packets a rule may send there. A VRF without
    /// inside addresses that the rule matches does not count.
    fn serves_vrfs_of(&self, pool: &Placed<String>, position: usize, matches: &Match, report: &mut Report) -> bool {
        let unserved = self.unserved.get(position).map_or(&[][..], Vec::as_slice);
        let may_match = |at: &&usize| match matches.realm {
            Some(realm) => realm.index() == **at,
            None if Prefix::HOSTS.contains(matches.source.address()) => self.has_hosts.get(**at) == Some(&true),
            None => self.inside_of.get(**at).is_some_and(|inside| inside.overlaps(matches.source)),
        };
        let Some(vrf) = unserved.iter().find(may_match).and_then(|at| self.vrfs.get(*at)) else { return true };
        let problem = format!("does not serve VRF \"{vrf}\", whose subscribers the rule sends there");
        let remedy = match matches.realm {
            Some(_) => "write a pool that serves the VRF of the rule, or add it to vrfs of the pool",
            None => "name a VRF that the pool serves in the rule, or write a pool that serves all it may match",
        };
        report.fault(&pool.place, problem, quoted(&pool.value), remedy);
        false
    }

    /// What a rule does that is neither a redirection nor about other protocols.
    pub(super) fn action_of(&self, draft: &RuleDraft, matches: &Match, report: &mut Report) -> Option<RuleAction> {
        match draft.action? {
            RuleWord::Pass | RuleWord::Redirect => None,
            RuleWord::NoTranslation => Some(RuleAction::NoTranslation),
            RuleWord::Drop => Some(RuleAction::Drop),
            RuleWord::Translate => {
                let mapping = draft.mapping;
                if let (Some(pool), MappingKind::EndpointDependent) = (&draft.pool, mapping) {
                    let problem = "does not go with mapping = \"endpoint-dependent\", which shares ports of the subscriber's own pool";
                    report.fault(&pool.place, problem, quoted(&pool.value), "remove it");
                    return None;
                }
                let Some(name) = &draft.pool else { return Some(RuleAction::Translate { pool: None, mapping }) };
                match self.pool_named(&name.value) {
                    Some(position) if self.drains.get(position).is_some_and(|drains| *drains) => {
                        let remedy = "choose another pool, or stop draining this one";
                        let problem = "is draining and gives out no new mappings";
                        report.fault(&name.place, problem, quoted(&name.value), remedy);
                        None
                    }
                    Some(position) => {
                        let allocation = self.pools.get(position).and_then(|pool| pool.allocation.value);
                        let is_by_source = draft.matches.protocol.is_none()
                            && draft.matches.outside.as_ref().is_none_or(|outside| outside.value == Prefix::ALL);
                        if allocation.is_some_and(|allocation| allocation != Allocation::Ports) && !is_by_source {
                            let remedy = "match by inside and vrf only, or choose a pool with allocation = \"ports\"";
                            let problem = "gives out ports in blocks, which serve all destinations of a subscriber";
                            report.fault(&name.place, problem, quoted(&name.value), remedy);
                            return None;
                        }
                        if !self.has_ports_for(name, position, matches, report) {
                            return None;
                        }
                        if !self.serves_vrfs_of(name, position, matches, report) {
                            return None;
                        }
                        Some(RuleAction::Translate { pool: Some(PoolId(u16::try_from(position).ok()?)), mapping })
                    }
                    None => {
                        let remedy = match nearest(&name.value, self.pool_by_name.keys().copied()) {
                            Some(meant) => format!("did you mean \"{meant}\"?"),
                            None => format!("add a [[pool]] with name = {}", quoted(&name.value)),
                        };
                        report.fault(&name.place, "is not the name of a pool", quoted(&name.value), remedy);
                        None
                    }
                }
            }
        }
    }

    /// What a filter comes to.
    pub(super) fn filter_of(&self, draft: &FilterDraft, report: &mut Report) -> Option<FilterRule> {
        let matches = self.matches_of(&draft.matches, report)?;
        let action = if draft.permits? { FilterAction::Permit } else { FilterAction::Deny };
        (!draft.is_faulty).then_some(FilterRule { matches, action, out: draft.out, back: draft.back, log: draft.log })
    }
}
