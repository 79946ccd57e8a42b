//! Classes of subscribers and timers of ports, each against the others of its kind.

use std::collections::HashMap;

use nat::Protocol;
use nat::class::MAPPING_BYTES;
use nat::settings::Allocation;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::stand_in::Prefix6;
use nat::types::Prefix;
use nat::types::Side;

use crate::check::rules::known::HOSTS_REMEDY;
use crate::check::rules::known::NO_HOSTS;
use crate::check::unique_names;
use crate::draft::Draft;
use crate::draft::class::ClassDraft;
use crate::draft::interface::NO_HOST;
use crate::draft::interface::is_of_no_host;
use crate::draft::pool::PoolDraft;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;
use crate::section::size_text;

/// Checks what `[[class]]` and `[[port_timeout]]` say together.
pub(crate) fn check(draft: &Draft, report: &mut Report) {
    unique_names("class", draft.classes.iter().filter_map(|class| class.name.as_ref()), report);
    let mut taken: HashMap<Prefix, Vec<(&ClassDraft, &Place)>> = HashMap::new();
    for class in &draft.classes {
        for prefix in &class.subscribers {
            if is_of_no_host(prefix.value) {
                report.fault(&prefix.place, NO_HOST, prefix.value.to_string(), "write a prefix of inside hosts");
                continue;
            }
            let owners = taken.entry(prefix.value).or_default();
            match owners.iter().find(|(owner, _)| owner.shares_vrf_with(class)) {
                Some((_, first)) => {
                    let problem = format!("is in a class already, {}", first.on_line());
                    report.fault(&prefix.place, problem, prefix.value.to_string(), "leave it in one class only");
                }
                None => owners.push((class, &prefix.place)),
            }
        }
    }
    ipv6_prefixes(draft, report);
    for class in &draft.classes {
        penalty(class, draft, report);
        guarantee_within_limits(class, report);
        room_for_a_mapping(&class.limits, class.memory.as_ref(), report);
    }
    room_for_a_mapping(&draft.singles.subscriber, draft.singles.subscriber_memory.as_ref(), report);
    thresholds(draft, report);
    for (position, timeout) in draft.port_timeouts.iter().enumerate() {
        timeout.check(draft.singles.allow_below_rfc, report);
        let Some(ports) = &timeout.ports else { continue };
        let covers = |earlier: &&crate::draft::port_timeout::PortTimeoutDraft| {
            let range = earlier.ports.as_ref().map(|ports| &ports.value);
            earlier.protocol == timeout.protocol
                && range.is_some_and(|range| range.start() <= ports.value.start() && range.end() >= ports.value.end())
        };
        if let Some(earlier) = draft.port_timeouts[..position].iter().find(covers) {
            let problem = format!("has no effect: an earlier one has these ports, {}", earlier.place.on_line());
            let seen = format!("\"{}-{}\"", ports.value.start(), ports.value.end());
            report.fault(&ports.place, problem, seen, "remove one of them, or write the narrower one first");
        }
    }
}

/// IPv6 prefixes: each in one class, not longer than a subscriber's, and with IPv6 hosts.
fn ipv6_prefixes(draft: &Draft, report: &mut Report) {
    let mut taken: Vec<(&ClassDraft, &Placed<Prefix6>)> = Vec::new();
    let length_max = draft.singles.ipv6_prefix_length;
    for class in &draft.classes {
        let is_meant = |vrf: &str| class.vrfs.is_empty() || class.vrfs.iter().any(|meant| meant.value == vrf);
        let has_hosts = draft.host_vrfs().any(is_meant);
        for prefix in &class.subscribers6 {
            let seen = prefix.value.to_string();
            let is_same = |(owner, other): &&(&ClassDraft, &Placed<Prefix6>)| {
                other.value == prefix.value && owner.shares_vrf_with(class)
            };
            if let Some((_, first)) = taken.iter().find(is_same) {
                let problem = format!("is in a class already, {}", first.place.on_line());
                report.fault(&prefix.place, problem, seen, "leave it in one class only");
            } else if !has_hosts {
                report.fault(&prefix.place, NO_HOSTS, seen, HOSTS_REMEDY);
            } else if prefix.value.length() > length_max {
                let problem = format!("is longer than the prefix of a subscriber: ipv6_prefix_length = {length_max}");
                report.fault(&prefix.place, problem, seen, "write the prefix of whole subscribers");
            } else if class.limits.reserved_ports != [0; Protocol::COUNT] {
                let problem = "is an IPv6 prefix, and ports can be guaranteed only to IPv4 subscribers";
                report.fault(&prefix.place, problem, seen, "write a class of its own, without reserved_ports");
            } else if class.gateways.is_some() && class.subscribers.is_empty() {
                let problem = "is an IPv6 prefix, and gateways serve no IPv6 hosts";
                report.fault(&prefix.place, problem, seen, "remove alg");
            }
            taken.push((class, prefix));
        }
    }
}

/// A minimum that is above a maximum.
fn guarantee_within_limits(class: &ClassDraft, report: &mut Report) {
    let limits = &class.limits;
    for protocol in Protocol::ALL {
        let (reserved, most) = (limits.reserved_ports[protocol.index()], limits.ports_max[protocol.index()]);
        if reserved > most {
            let problem =
                format!("is more than the {protocol} ports a subscriber of the class may have: ports = {most}");
            let remedy = format!("write at most {most}, or raise ports");
            // One number for several protocols is one fault.
            return report.fault(&class.reserved_ports, problem, reserved.to_string(), remedy);
        }
    }
    // Each port that is used has a mapping, with a session at least.
    let ports: u64 = limits.reserved_ports.iter().map(|ports| u64::from(*ports)).sum();
    let seen = format!("{ports} ports of all protocols");
    let sessions = u64::from(limits.sessions_max);
    if limits.sessions_max != u32::MAX && ports > sessions {
        let problem = format!("needs more sessions than a subscriber of the class may have: sessions = {sessions}");
        let remedy =
            format!("guarantee at most {sessions} ports of all protocols together, or write sessions = {ports}");
        report.fault(&class.reserved_ports, problem, seen.clone(), remedy);
    }
    let bytes = ports * MAPPING_BYTES;
    if bytes > limits.memory_max {
        let memory = size_text(limits.memory_max);
        let problem = format!("needs more memory than a subscriber of the class may use: memory = \"{memory}\"");
        let most = limits.memory_max / MAPPING_BYTES;
        let remedy = format!(
            "guarantee at most {most} ports of all protocols together, or write memory = \"{}\"",
            size_text(bytes)
        );
        report.fault(&class.reserved_ports, problem, seen, remedy);
    }
}

/// Less memory than one mapping takes: no subscriber would get any.
fn room_for_a_mapping(limits: &SubscriberLimits, place: Option<&Place>, report: &mut Report) {
    if let Some(place) = place
        && limits.memory_max < MAPPING_BYTES
    {
        let problem = format!("is less than the {MAPPING_BYTES} bytes of a mapping, so no subscriber gets one");
        let remedy =
            format!("write \"{}\" or more, or ports = 0 if subscribers should get none", size_text(MAPPING_BYTES));
        report.fault(place, problem, size_text(limits.memory_max), remedy);
    }
}

/// Whether there is a limit that a share can be measured by.
fn has_measure(limits: &SubscriberLimits) -> bool {
    limits.sessions_max != u32::MAX || limits.ports_max.iter().any(|ports| *ports != u32::MAX)
}

/// Thresholds are shares of limits.
fn thresholds(draft: &Draft, report: &mut Report) {
    let mut tell = |place: &Place, threshold: Threshold| {
        let problem = "is a share of a limit, and there is no limit on ports or sessions";
        let remedy = "write ports or sessions too, or remove it";
        report.fault(place, problem, threshold.high_percent.to_string(), remedy);
    };
    let common = &draft.singles.subscriber;
    // Classes without one of their own have that of everybody, and may have the limits.
    let is_used = has_measure(common)
        || draft.classes.iter().any(|class| class.threshold.is_none() && has_measure(&class.limits));
    if let (Some(place), Some(threshold)) = (&draft.singles.threshold, common.threshold)
        && !is_used
    {
        tell(place, threshold);
    }
    for class in &draft.classes {
        if let (Some(place), Some(threshold)) = (&class.threshold, class.limits.threshold)
            && !has_measure(&class.limits)
        {
            tell(place, threshold);
        }
    }
}

/// Whether a subscriber of the class can be refused anything for a limit of its own.
fn has_limit(class: &ClassDraft, draft: &Draft) -> bool {
    let limits = &class.limits;
    let is_limited = has_measure(limits)
        || limits.memory_max != u64::MAX
        || limits.new_mappings.is_some()
        || limits.new_sessions.is_some();
    // Where ports come in blocks, or by a formula, there are only so many.
    let has_blocks = |pool: &&PoolDraft| !matches!(pool.allocation.value, None | Some(Allocation::Ports));
    let serves = |pool: &PoolDraft| {
        let prefixes = || class.subscribers.iter().map(|prefix| prefix.value);
        pool.subscribers.iter().any(|served| prefixes().any(|prefix| prefix.overlaps(served.value)))
    };
    let serves_hosts =
        |pool: &PoolDraft| !class.subscribers6.is_empty() && draft.host_pools().any(|name| name == pool.label());
    is_limited || draft.pools.iter().filter(has_blocks).any(|pool| serves(pool) || serves_hosts(pool))
}

/// Whether offenders can get mappings from the pool they are sent to, and from another than before.
fn penalty(class: &ClassDraft, draft: &Draft, report: &mut Report) {
    let Some(penalty) = &class.penalty else { return };
    let Placed { value: name, place, .. } = &penalty.pool;
    // Of all pools with a prefix that has this one the longest serves it.
    let serving = |wanted: &Prefix| {
        let prefixes =
            draft.pools.iter().filter(|it| it.vrfs.is_empty() || class.vrfs.is_empty() || serves_one(it, class));
        let prefixes = prefixes.flat_map(|it| it.subscribers.iter().map(move |prefix| (it, prefix.value)));
        let around = prefixes.filter(|(_, prefix)| prefix.length() <= wanted.length() && prefix.overlaps(*wanted));
        around.max_by_key(|(_, prefix)| prefix.length()).map(|(it, _)| it.label())
    };
    let serves_anyway = |name: &str| {
        let mut prefixes = class.subscribers.iter().map(|prefix| &prefix.value);
        let mut hosts = draft.host_pools().peekable();
        let is_of_hosts = class.subscribers6.is_empty() || hosts.peek().is_some() && hosts.all(|pool| pool == name);
        let has_any = !class.subscribers.is_empty() || !class.subscribers6.is_empty();
        has_any && is_of_hosts && prefixes.all(|prefix| serving(prefix) == Some(name))
    };
    let Some(pool) = draft.pools.iter().find(|pool| pool.label() == name) else {
        // Others would be the next fault.
        let gives = |pool: &&PoolDraft| {
            let is_by_formula = matches!(pool.allocation.value, Some(Allocation::Deterministic { .. }));
            pool.one_to_one.is_none() && !is_by_formula && !pool.drains() && !serves_anyway(pool.label())
        };
        let known = draft.pools.iter().filter(gives).map(PoolDraft::label);
        let remedy = match nearest(name, known.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None if known.clone().next().is_none() => "write a pool for offenders, with subscribers = []".to_owned(),
            None => format!("write {}", one_of(known)),
        };
        return report.fault(place, "is not the name of a pool", quoted(name), remedy);
    };
    let mut unfit = |problem: String, remedy: &str| report.fault(place, problem, quoted(name), remedy.to_owned());
    if pool.one_to_one.is_some() {
        unfit("is a one-to-one pool: each of its addresses belongs to one subscriber".to_owned(), "write another pool");
    }
    if matches!(pool.allocation.value, Some(Allocation::Deterministic { .. })) {
        let remedy = "write a pool with allocation = \"ports\" or \"blocks\"";
        unfit("is a deterministic pool: a subscriber without a slice gets nothing from it".to_owned(), remedy);
    }
    if pool.drains() {
        unfit("is draining and gives out no new mappings".to_owned(), "write another pool, or stop draining this one");
    }
    if !has_limit(class, draft) {
        let remedy = "write a limit, such as ports or new_mappings, or remove penalty_pool";
        unfit("is never used: the class has no limit, so no subscriber becomes an offender".to_owned(), remedy);
    }
    let inside = draft.interfaces.iter().filter_map(|interface| match interface.facing() {
        Some((Side::Inside, vrf)) => Some(vrf),
        _ => None,
    });
    let is_meant = |vrf: &&str| class.vrfs.is_empty() || class.vrfs.iter().any(|meant| meant.value == **vrf);
    if let Some(vrf) = inside.filter(is_meant).find(|vrf| !pool.serves(vrf)) {
        let problem = format!("does not serve VRF \"{vrf}\", whose subscribers are in the class");
        unfit(problem, "write a pool that serves the VRFs of the class, or name its VRFs in the class");
    }
    if serves_anyway(name) {
        let remedy = "write another pool for offenders, with subscribers = []";
        unfit("already serves these subscribers".to_owned(), remedy);
    }
}

fn serves_one(pool: &PoolDraft, class: &ClassDraft) -> bool {
    class.vrfs.iter().any(|vrf| pool.serves(&vrf.value))
}
