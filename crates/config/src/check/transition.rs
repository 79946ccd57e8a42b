//! NAT64 and softwires against interfaces, pools and each other.

use nat::settings::Allocation;
use nat::settings::Nat64;
use nat::settings::Softwire;
use nat::settings::Transition;
use nat::types::RealmId;
use nat::types::Side;
use translate::Prefix;

use crate::check::interfaces::vrf_names;
use crate::draft::Draft;
use crate::draft::interface::is_of_no_host;
use crate::draft::interface::not_a_host6;
use crate::draft::transition::Served;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// What is written, and the pools that serve IPv6 hosts: each with one realm. Faulty elements are
/// left out.
pub(crate) fn check(draft: &Draft, workers: usize, report: &mut Report) -> (Transition, Vec<(usize, RealmId)>) {
    let mut transition = Transition {
        prefix_length: draft.singles.ipv6_prefix_length,
        hosts_max: crate::check::machine::hosts_share(draft.singles.hosts_max, workers),
        hosts_per_subscriber_max: draft.singles.hosts_per_subscriber_max,
        ..Transition::default()
    };
    let mut pools: Vec<(usize, RealmId)> = Vec::new();
    let mut served = |served: &Served, report: &mut Report| {
        let realm = realm_of(draft, served, report)?;
        let pool = pool_of(draft, served, report)?;
        let other = pools.iter().find(|(other, of)| *of == realm && *other != pool);
        if let (Some((other, _)), Some(written)) = (other, &served.pool) {
            let problem = "is not the pool of another table with the same VRF";
            let named = draft.pools.get(*other).map_or("", |pool| pool.label());
            report.fault(
                &written.place,
                problem,
                quoted(&written.value),
                format!("write \"{named}\", or use another vrf"),
            );
            return None;
        }
        if !pools.contains(&(pool, realm)) {
            pools.push((pool, realm));
        }
        Some(realm)
    };
    let mut prefixes: Vec<(RealmId, Prefix, &Placed<_>)> = Vec::new();
    for one in &draft.nat64 {
        let realm = served(&one.served, report);
        let (Some(written), Some(realm), Some(lowest_mtu6)) = (&one.prefix, realm, &one.lowest_mtu6) else { continue };
        let (address, length) = written.value;
        let seen = format!("{address}/{length}");
        let prefix = match Prefix::new(address.to_bits(), length) {
            Ok(prefix) => prefix,
            Err(fault) => {
                let remedy = "write 64:ff9b::/96 or a prefix of your own (RFC 6052 section 2.2)";
                report.fault(&written.place, fault.to_string(), seen, remedy);
                continue;
            }
        };
        let overlapping = prefixes.iter().find(|(of, other, _)| {
            *of == realm && (other.contains(prefix.address()) || prefix.contains(other.address()))
        });
        if let Some((_, _, first)) = overlapping {
            let problem = format!("overlaps another prefix of the VRF {}", first.place.on_line());
            report.fault(&written.place, problem, seen, "keep one of them");
            continue;
        }
        let interfaces = draft.interfaces.iter().flat_map(|interface| &interface.addresses6);
        if let Some(own) = interfaces.into_iter().find(|own| prefix.contains(own.value.0.to_bits())) {
            let problem = format!("contains an address of Natrix {}", own.place.on_line());
            report.fault(&written.place, problem, seen, "write a prefix that nothing else uses");
            continue;
        }
        prefixes.push((realm, prefix, written));
        let lowest_mtu6 = u16::try_from(lowest_mtu6.value).unwrap_or(u16::MAX);
        transition.nat64.push(Nat64 { prefix, realm, lowest_mtu6 });
    }
    for one in &draft.softwires {
        let realm = served(&one.served, report);
        let (Some(aftr), Some(realm)) = (&one.aftr, realm) else { continue };
        if let Some(kind) = not_a_host6(aftr.value) {
            report.fault(&aftr.place, format!("is {kind}"), aftr.value.to_string(), "write an address of Natrix's own");
            continue;
        }
        if transition.softwires.iter().any(|other| other.aftr == aftr.value && other.realm == realm) {
            let remedy = "write both lists of inner prefixes in one table";
            report.fault(&aftr.place, "is the address of another softwire", aftr.value.to_string(), remedy);
            continue;
        }
        let is_translated = |one: &Nat64| one.realm == realm && one.prefix.contains(aftr.value.to_bits());
        if transition.nat64.iter().any(is_translated) {
            report.fault(&aftr.place, "is in a prefix of NAT64", aftr.value.to_string(), "write another address");
            continue;
        }
        for prefix in one.inner.iter().filter(|prefix| is_of_nobody(prefix.value)) {
            let problem = "has no address that a host behind a B4 can have";
            report.fault(&prefix.place, problem, prefix.value.to_string(), "write the prefixes that homes use inside");
        }
        let inner = one.inner.iter().map(|prefix| prefix.value).collect();
        let subscribers = one.subscribers.iter().map(|prefix| prefix.value).collect();
        transition.softwires.push(Softwire { aftr: aftr.value, realm, inner, subscribers });
    }
    tables_max("nat64", transition.nat64.len(), report);
    tables_max("softwire", transition.softwires.len(), report);
    (transition, pools)
}

/// Whether a prefix has only addresses that no packet can come from (RFC 1812 §5.3.7), or that are
/// Natrix's own in softwires: of the AFTR (RFC 6333 §5.7) and of its errors (RFC 7600 §4.8).
fn is_of_nobody(prefix: nat::types::Prefix) -> bool {
    is_of_no_host(prefix)
        || prefix.length() >= 8 && matches!(prefix.address().octets()[0], 0 | 127)
        || prefix.length() == 32 && matches!(prefix.address().octets(), [192, 0, 0, 1 | 8])
}

/// A host knows its table by a number of eight bits.
fn tables_max(path: &'static str, count: usize, report: &mut Report) {
    if count > Transition::TABLES_MAX {
        let nowhere = Place { path: path.into(), line: None };
        let problem = format!("has more than {} tables", Transition::TABLES_MAX);
        report.fault(&nowhere, problem, format!("tables: {count}"), "write fewer, or run a further instance");
    }
}

fn realm_of(draft: &Draft, served: &Served, report: &mut Report) -> Option<RealmId> {
    let written = served.vrf.as_ref()?;
    let known = vrf_names(&draft.interfaces);
    let Some(position) = known.iter().position(|name| *name == written.value) else {
        let names = known.iter().map(String::as_str);
        let remedy = match nearest(&written.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write the vrf of an inside interface: {}", one_of(names.take(4))),
        };
        report.fault(&written.place, "is not the VRF of any interface", quoted(&written.value), remedy);
        return None;
    };
    let has_ipv6 = draft.interfaces.iter().any(|interface| {
        let is_of_vrf = interface.vrf.as_ref().is_none_or(|vrf| vrf.value == written.value);
        interface.side == Some(Side::Inside) && is_of_vrf && !interface.addresses6.is_empty()
    });
    if !has_ipv6 {
        let problem = format!("needs an inside interface of VRF \"{}\" with an IPv6 address", written.value);
        report.fault(&served.place, problem, "addresses", "add one, such as \"2001:db8:1::1/64\"");
        return None;
    }
    u16::try_from(position).ok().map(RealmId)
}

fn pool_of(draft: &Draft, served: &Served, report: &mut Report) -> Option<usize> {
    let written = served.pool.as_ref()?;
    let found = draft.pools.iter().position(|pool| pool.label() == written.value);
    let Some(pool) = found.and_then(|position| draft.pools.get(position)) else {
        let names = draft.pools.iter().map(|pool| pool.label());
        let remedy = match nearest(&written.value, names.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write the name of a pool: {}", one_of(names.take(4))),
        };
        report.fault(&written.place, "is not the name of any pool", quoted(&written.value), remedy);
        return None;
    };
    let vrf = served.vrf.as_ref().map_or("", |vrf| vrf.value.as_str());
    let problem = if pool.one_to_one.is_some() {
        Some("is a pool of one-to-one addresses, which IPv6 hosts cannot use")
    } else if matches!(pool.allocation.value, Some(Allocation::Deterministic { .. })) {
        Some("is a deterministic pool, whose formula has no place for IPv6 hosts")
    } else if !pool.serves(vrf) {
        Some("is a pool that does not serve this VRF")
    } else {
        None
    };
    if let Some(problem) = problem {
        report.fault(&written.place, problem, quoted(&written.value), "write another pool");
        return None;
    }
    found
}
