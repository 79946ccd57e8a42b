//! Warns of parts of a sound configuration that have no effect: classes without subscribers, limits
//! that nothing reaches, keys that do not apply to their pool, pools that are never used. Only
//! certain cases are reported.

use core::net::Ipv4Addr;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Protocol;
use nat::Settings;
use nat::deterministic::Formula;
use nat::rules::Match;
use nat::settings::Allocation;
use nat::settings::Class;
use nat::settings::FilterAction;
use nat::settings::Interface;
use nat::settings::MappingKind;
use nat::settings::Pool;
use nat::settings::RuleAction;
use nat::types::InsideHost;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::RealmId;
use nat::types::Side;

use crate::draft::Draft;
use crate::fault::Warning;
use crate::report::Report;

/// At most so many rules and filters, over the subscribers and protocols of all pools, are examined
/// to see whether a pool is ever used.
const BLOCKING_MAX: usize = 1_000_000;

/// Returns all of these warnings. The lists of `settings` have the same order as those of `draft`.
pub(crate) fn check(draft: &Draft, settings: &Settings, report: &Report) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for pool in &draft.pools {
        for place in &pool.no_effect {
            let problem = "has no effect in a one-to-one pool, whose subscribers keep their ports".to_owned();
            warnings.push(report.warning(None, place, problem, "remove it"));
        }
    }
    for (written, nat64) in draft.nat64.iter().zip(&settings.transition.nat64) {
        if let (Some(lowest), Some(mtu)) = (&written.lowest_mtu6, smallest_mtu6(settings, nat64.realm))
            && nat64.lowest_mtu6 > mtu
        {
            let problem =
                format!("is larger than the smallest MTU of the inside interfaces, {mtu} bytes, which counts");
            warnings.push(report.warning(None, &lowest.place, problem, "lower it, or raise the mtu of the interfaces"));
        }
    }
    for table in draft.interfaces.iter().filter_map(|interface| interface.kernel_table.as_ref()) {
        if !draft.singles.routing_kernel {
            let problem = format!("has no effect without [routing] kernel ({})", table.value);
            warnings.push(report.warning(None, &table.place, problem, "set it, or remove the table"));
        }
    }
    let is_used = pools_in_use(settings);
    for ((written, pool), _) in draft.pools.iter().zip(&settings.pools).zip(is_used).filter(|(_, is_used)| !is_used) {
        let first = pool.subscribers.first().copied().unwrap_or(Prefix::ALL);
        let others = if pool.subscribers.len() > 1 { " and others" } else { "" };
        let problem = format!(
            "is never used: rules and filters drop everything its subscribers ({first}{others}) send, or pass it untranslated"
        );
        let remedy = "narrow these rules and filters, add a rule before them that translates, or remove the pool";
        warnings.push(report.warning(None, &written.place, problem, remedy));
    }
    let forwarded = forwarded_ports(settings);
    for (written, pool) in draft.pools.iter().zip(&settings.pools) {
        if let Some(protocols) = all_forwarded(pool, &forwarded) {
            let problem = format!("has no {protocols} port to give out: forwards take all of them on each address");
            let remedy = "widen ports, or add addresses without forwards";
            warnings.push(report.warning(None, &written.place, problem, remedy));
        }
        if let Some(reserved) = written.reserved_ports.first()
            && let Some(poor) = poor_slices(pool)
        {
            let remedy = "reserve fewer ports, or ports that lie in the dynamic slices";
            warnings.push(report.warning(None, &reserved.place, poor, remedy));
        }
    }
    for (written, class) in draft.classes.iter().zip(&settings.classes) {
        for prefix in written.subscribers.iter().filter(|prefix| !is_served(settings, class, prefix.value)) {
            let problem =
                format!("is not served by any pool, so it adds no subscribers to the class ({})", prefix.value);
            let remedy = "add it to the subscribers of a pool, or remove it here";
            warnings.push(report.warning(None, &prefix.place, problem, remedy));
        }
        if let Some(place) = &written.ports
            && let Some(unreached) = above_blocks(settings, Some(class), &class.limits.ports_max)
        {
            warnings.push(report.warning(None, place, unreached.problem(), &unreached.remedy()));
        }
    }
    if let Some(place) = &draft.singles.subscriber_ports
        && let Some(unreached) = above_blocks(settings, None, &settings.subscriber.ports_max)
    {
        warnings.push(report.warning(None, place, unreached.problem(), &unreached.remedy()));
    }
    warnings
}

/// The smallest MTU of the interfaces with IPv6 hosts of a VRF.
fn smallest_mtu6(settings: &Settings, realm: RealmId) -> Option<u16> {
    let has_ipv6 = |id: InterfaceId| settings.ipv6.addresses.iter().any(|own| own.interface == id);
    let of_realm = |interface: &Interface| interface.side == Side::Inside && interface.realm == realm;
    let interfaces = (0..).map(InterfaceId).zip(&settings.interfaces);
    interfaces.filter(|(id, interface)| of_realm(interface) && has_ipv6(*id)).map(|(_, interface)| interface.mtu).min()
}

/// Whether two lists of VRFs, of which an empty one stands for all, have one in common.
fn share_a_realm(one: &[RealmId], other: &[RealmId]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|realm| other.contains(realm))
}

/// Whether a rule matches some of these subscribers.
fn matches_some(matches: &Match, prefix: Prefix, realms: &[RealmId]) -> bool {
    matches.source.overlaps(prefix) && matches.realm.is_none_or(|realm| realms.is_empty() || realms.contains(&realm))
}

/// Whether some of these subscribers of a class may have something from a pool: their own, or one
/// that a rule sends them to.
fn is_served(settings: &Settings, class: &Class, prefix: Prefix) -> bool {
    let serves = |pool: &Pool| {
        share_a_realm(&pool.realms, &class.realms) && pool.subscribers.iter().any(|served| served.overlaps(prefix))
    };
    let sends =
        |rule: &nat::settings::Rule| rule.action.pool().is_some() && matches_some(&rule.matches, prefix, &class.realms);
    settings.pools.iter().any(serves) || settings.rules.iter().any(sends)
}

/// A limit of ports that no subscriber can reach.
struct Unreached {
    /// Of which protocol, if not of all.
    protocol: Option<Protocol>,
    limit: u32,
    /// The most that a subscriber gets, and how that comes about.
    most: u32,
    how: String,
}

impl Unreached {
    fn problem(&self) -> String {
        let Unreached { protocol, limit, most, how } = self;
        let of = protocol.map_or_else(String::new, |protocol| format!("{protocol} "));
        format!("is never reached: {limit} ports, and a subscriber gets at most {most} {of}ports ({how})")
    }

    fn remedy(&self) -> String {
        format!("write at most {}, or raise blocks_per_subscriber or block_size", self.most)
    }
}

/// The most ports of a protocol that a subscriber can get from a pool, and how this number comes
/// about; None where only the pool sets a limit.
fn most_of(pool: &Pool) -> Option<(u32, String)> {
    let of_blocks = |blocks: nat::settings::Blocks| {
        let (count, size) = (u32::from(blocks.per_subscriber_max), blocks.size.ports());
        (count * size, format!("{count} block{} of {size}", if count == 1 { "" } else { "s" }))
    };
    match pool.allocation {
        _ if pool.one_to_one => None,
        Allocation::Ports => None,
        Allocation::Blocks(blocks) => {
            let (most, how) = of_blocks(blocks);
            Some((most, format!("pool \"{}\": {how}", pool.name)))
        }
        Allocation::Deterministic { overflow, .. } => {
            let slice = Formula::of(pool).ok()??.slice_ports();
            let (more, how) = of_blocks(overflow);
            let how = if more > 0 { format!(" and {how}") } else { String::new() };
            Some((slice + more, format!("pool \"{}\": a slice of {slice}{how}", pool.name)))
        }
    }
}

/// A limit above what blocks and slices give to each subscriber of a class, or to everybody. None
/// where a subscriber may have ports that are in none: of a rule, a forward, or another pool.
fn above_blocks(settings: &Settings, class: Option<&Class>, limits: &[u32; Protocol::COUNT]) -> Option<Unreached> {
    let (prefixes, realms) = match class {
        Some(class) if class.limits.penalty.is_some() => return None,
        Some(class) => (class.subscribers.as_slice(), class.realms.as_slice()),
        None => (&[Prefix::ALL][..], &[][..]),
    };
    let is_of_all = limits.iter().all(|other| *other == limits[0]);
    // A limit that a class inherits from `[subscriber]` is reported only there.
    let says = |protocol: Protocol| {
        let index = protocol.index();
        class.is_none() || is_of_all || limits[index] != settings.subscriber.ports_max[index]
    };
    let (protocol, limit) = Protocol::ALL
        .into_iter()
        .map(|protocol| (protocol, limits[protocol.index()]))
        .filter(|(protocol, limit)| *limit != u32::MAX && says(*protocol))
        .max_by_key(|(protocol, limit)| (*limit, core::cmp::Reverse(protocol.index())))?;
    // Of a limit for everybody a pool for offenders is one more.
    let serves = |pool: &&Pool| {
        let overlap = |served: &Prefix| prefixes.iter().any(|prefix| prefix.overlaps(*served));
        class.is_none() || share_a_realm(&pool.realms, realms) && pool.subscribers.iter().any(overlap)
    };
    let own: Option<Vec<(u32, String)>> = settings.pools.iter().filter(serves).map(most_of).collect();
    let (most, how) = own?.into_iter().max_by_key(|(most, _)| *most).filter(|(most, _)| limit > *most)?;
    let is_meant = |address: u32| prefixes.iter().any(|prefix| prefix.contains(address.into()));
    let targets = settings.balanced_forwards.iter().flat_map(|forward| &forward.targets);
    let is_forwarded = |forward: &nat::settings::Forward| match forward.inside {
        InsideHost::Ipv4(address) => is_meant(address.to_bits()),
        InsideHost::Ipv6(address) | InsideHost::BehindB4 { b4: address, .. } => {
            let mut written = prefixes.iter().filter_map(|block| settings.transition.prefix6_of(*block));
            written.any(|prefix| prefix.contains(address.to_bits()))
        }
    };
    if settings.forwards.iter().any(is_forwarded) || targets.map(|target| target.address).any(is_meant) {
        return None;
    }
    let gives_others = |rule: &nat::settings::Rule| match rule.action {
        RuleAction::Translate { pool, mapping } => pool.is_some() || mapping == MappingKind::EndpointDependent,
        RuleAction::Redirect(_) => true,
        RuleAction::NoTranslation | RuleAction::Drop => false,
    };
    let mut rules = settings.rules.iter().filter(|rule| gives_others(rule));
    if rules.any(|rule| prefixes.iter().any(|prefix| matches_some(&rule.matches, *prefix, realms))) {
        return None;
    }
    Some(Unreached { protocol: Some(protocol).filter(|_| !is_of_all), limit, most, how })
}

/// The ports of each external address that forwards have, from the first to the last.
type Forwarded = HashMap<Ipv4Addr, Vec<(Protocol, (u16, u16))>>;

/// The ports that forwards have.
fn forwarded_ports(settings: &Settings) -> Forwarded {
    let singles = settings.forwards.iter().map(|it| (it.external, it.protocol, it.ports));
    let balanced = settings.balanced_forwards.iter().map(|it| (it.external, it.protocol, it.ports));
    let mut by_address = Forwarded::new();
    for (external, protocol, ports) in singles.chain(balanced) {
        by_address.entry(external).or_default().push((protocol, ports));
    }
    by_address
}

/// The protocols of which a pool has no port for its subscribers, as forwards have all it could
/// give out.
fn all_forwarded(pool: &Pool, forwarded: &Forwarded) -> Option<String> {
    if pool.one_to_one || pool.subscribers.is_empty() {
        return None;
    }
    let mut reserved = vec![false; 1 << 16];
    pool.reserved_ports.iter().for_each(|port| reserved[usize::from(*port)] = true);
    let is_all = |protocol: Protocol| {
        pool.addresses.iter().all(|address| {
            let Some(forwards) = forwarded.get(address) else { return false };
            let mut is_taken = reserved.clone();
            for (_, (first, last)) in forwards.iter().filter(|(of, _)| *of == protocol) {
                is_taken[usize::from(*first)..=usize::from(*last)].fill(true);
            }
            is_taken[usize::from(pool.port_min)..=usize::from(pool.port_max)].iter().all(|is_taken| *is_taken)
        })
    };
    let names: Vec<String> =
        [Protocol::Udp, Protocol::Tcp].into_iter().filter(|it| is_all(*it)).map(|it| it.to_string()).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Whose slices of a formula have less than half of their ports, which is as poor as blocks may not
/// be, and what is said of it. Slices without any are faults.
fn poor_slices(pool: &Pool) -> Option<String> {
    let formula = Formula::of(pool).ok()??;
    let is_reserved: HashSet<u16> = pool.reserved_ports.iter().copied().collect();
    let size = formula.slice_ports();
    let first = |slice: u32| pool.port_min + (slice * size) as u16;
    let usable = |slice: u32| {
        let first = first(slice);
        (first..=first + (size - 1) as u16).filter(|port| !is_reserved.contains(port)).count()
    };
    let poor: Vec<(u32, usize)> = (0..formula.slices())
        .map(|slice| (slice, usable(slice)))
        .filter(|(_, usable)| *usable * 2 < size as usize)
        .collect();
    let (slice, usable) = poor.first()?;
    let first = first(*slice);
    Some(format!(
        "leaves less than half of its ports to {} of {} slices on each address, the first ports {first}-{} with {usable} of {size}",
        poor.len(),
        formula.slices(),
        u32::from(first) + size - 1,
    ))
}

/// By pool, whether something may be taken from it; true where that is not certain.
fn pools_in_use(settings: &Settings) -> Vec<bool> {
    let pieces: usize = settings.pools.iter().map(|pool| pool.subscribers.len() * pool.realms.len().max(1)).sum();
    let all = settings.rules.len() + settings.filters.iter().filter(|filter| filter.out).count();
    if all.saturating_mul(pieces * 3) > BLOCKING_MAX {
        return vec![true; settings.pools.len()];
    }
    let denies = settings.filters.iter().filter(|filter| filter.out && filter.action == FilterAction::Deny);
    let stops = |rule: &&nat::settings::Rule| matches!(rule.action, RuleAction::NoTranslation | RuleAction::Drop);
    // With one VRF, a rule that names it matches as much as one that does not.
    let of_any = |rule: Match| if settings.realms() > 1 { rule } else { Match { realm: None, ..rule } };
    let stopping = settings.rules.iter().filter(stops).map(|rule| rule.matches);
    let blocking: Vec<Match> = stopping.chain(denies.map(|filter| filter.matches)).map(of_any).collect();
    let permits = settings.filters.iter().filter(|filter| filter.out && filter.action == FilterAction::Permit);
    let opening: Vec<Match> = settings
        .rules
        .iter()
        .filter(|rule| !stops(rule))
        .map(|rule| rule.matches)
        .chain(permits.map(|filter| filter.matches))
        .collect();
    if blocking.is_empty() {
        return vec![true; settings.pools.len()];
    }
    let singles = settings.forwards.iter().map(|forward| forward.external);
    let forwarded: HashSet<_> = singles.chain(settings.balanced_forwards.iter().map(|it| it.external)).collect();
    let is_used = |(at, pool): (usize, &Pool)| {
        let id = PoolId(at as u16);
        // From outside, by a rule, or by a class, whatever its own subscribers do.
        let is_named = settings.rules.iter().any(|rule| rule.action.pool() == Some(id))
            || settings.classes.iter().any(|class| class.limits.penalty.is_some_and(|penalty| penalty.pool == id))
            || pool.addresses.iter().any(|address| forwarded.contains(address));
        if pool.one_to_one || pool.subscribers.is_empty() || is_named {
            return true;
        }
        let any_realm: &[Option<RealmId>] = &[None];
        let own: Vec<Option<RealmId>> = pool.realms.iter().copied().map(Some).collect();
        let of_pool = if own.is_empty() { any_realm } else { &own };
        let mut pieces = pool.subscribers.iter().flat_map(|source| {
            of_pool.iter().flat_map(move |realm| {
                let of = |protocol: Protocol| Match {
                    realm: *realm,
                    protocol: Some(protocol.number()),
                    source: *source,
                    ..Match::ALL
                };
                Protocol::ALL.map(of)
            })
        });
        pieces.any(|piece| opening.iter().any(|it| it.overlaps(&piece)) || !blocking.iter().any(|it| it.covers(&piece)))
    };
    settings.pools.iter().enumerate().map(is_used).collect()
}
