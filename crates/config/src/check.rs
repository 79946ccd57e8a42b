//! Values compared with each other: what would not pass traffic is a fault.

pub(crate) mod allocation;
pub(crate) mod classes;
pub(crate) mod forwards;
pub(crate) mod interfaces;
pub(crate) mod ipv6;
pub(crate) mod kernel;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod no_effect;
pub(crate) mod pem;
pub(crate) mod pools;
pub(crate) mod reserve;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod sinks;
pub(crate) mod transition;

use core::net::Ipv4Addr;
use std::collections::HashMap;

use nat::types::Prefix;
use nat::types::Side;

use crate::check::routes::ResolvedRoute;
use crate::draft::Draft;
use crate::draft::interface::InterfaceDraft;
use crate::draft::pool::PoolDraft;
use crate::report::Placed;
use crate::report::Report;

/// A prefix one can get to on one side, and by what.
pub(crate) struct Reach {
    pub(crate) side: Side,
    pub(crate) prefix: Prefix,
    pub(crate) interface: usize,
    /// VRF of the interface; means nothing outside.
    pub(crate) vrf: String,
    /// The connected prefix of a link to a router: subscribers are behind it, not on it.
    pub(crate) is_link: bool,
    /// For messages: `interface "lan"`, `the route on line 7`.
    pub(crate) by: String,
}

/// All connected prefixes and routes.
pub(crate) fn reaches(draft: &Draft, routes: &[ResolvedRoute]) -> Vec<Reach> {
    let mut reaches = Vec::new();
    for (interface, written) in draft.interfaces.iter().enumerate() {
        let Some(side) = written.side else { continue };
        for (prefix, _) in written.connected() {
            let by = format!("interface \"{}\"", written.label());
            let is_served = |pool: &PoolDraft| {
                pool.serves(&vrf_of(written)) && pool.subscribers.iter().any(|served| served.value.overlaps(prefix))
            };
            // The router of a route that the kernel learns is on it.
            let is_link_of_learned = draft.learns_by(written) && !draft.pools.iter().any(is_served);
            let is_link = is_link_of_learned
                || routes.iter().any(|route| route.interface == interface && prefix.contains(route.next_hop));
            reaches.push(Reach { side, prefix, interface, vrf: vrf_of(written), is_link, by });
        }
    }
    for route in routes {
        let Some(leads) = draft.interfaces.get(route.interface) else { continue };
        let (Some(side), vrf) = (leads.side, vrf_of(leads)) else { continue };
        let by = format!("the route {}", route.place.on_line());
        reaches.push(Reach { side, prefix: route.prefix, interface: route.interface, vrf, is_link: false, by });
    }
    reaches
}

fn vrf_of(interface: &InterfaceDraft) -> String {
    interface.vrf.as_ref().map_or_else(String::new, |vrf| vrf.value.clone())
}

/// Reports names that stand twice.
fn unique_names<'d>(what: &str, names: impl Iterator<Item = &'d Placed<String>>, report: &mut Report) {
    let mut seen: HashMap<&str, &Placed<String>> = HashMap::new();
    for name in names {
        match seen.get(name.value.as_str()) {
            Some(first) => {
                let problem = format!("is the name of another {what} {}", first.place.on_line());
                report.fault(&name.place, problem, format!("\"{}\"", name.value), "give each a name of its own");
            }
            None => {
                seen.insert(&name.value, name);
            }
        }
    }
}

/// `203.0.113.4` or `203.0.113.4-203.0.113.9`.
fn range_text(first: u32, last: u32) -> String {
    let (first, last) = (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(last));
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Pools that gateways name.
pub(crate) fn gateways(draft: &Draft, report: &mut Report) {
    let name = |name: &'_ Option<Placed<String>>| name.as_ref().map(|name| name.value.clone());
    let pools: Vec<String> = draft.pools.iter().filter_map(|pool| name(&pool.name)).collect();
    let pools: Vec<&str> = pools.iter().map(String::as_str).collect();
    for gateway in &draft.gateways {
        gateway.check(&pools, report);
    }
}
