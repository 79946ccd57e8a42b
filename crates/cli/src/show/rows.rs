//! The rows of objects in tables.

use core::net::SocketAddrV4;

use control::Alg;
use control::Counter;
use control::Expectation;
use control::Filtering;
use control::Grant;
use control::Host;
use control::Interface;
use control::Mapping;
use control::Neighbour;
use control::PerProtocol;
use control::Pool;
use control::PoolAddress;
use control::Route;
use control::Rule;
use control::Session;
use control::Subscriber;

use crate::human;
use crate::output::Row;
use crate::table::Align;
use crate::table::Align::Left;
use crate::table::Align::Right;

/// The internal endpoint, with the address of its IPv6 host.
pub(crate) fn internal(internal: SocketAddrV4, host: Option<&Host>) -> String {
    host.map_or_else(|| internal.to_string(), |host| host.endpoint(internal.port()))
}

impl Row for Interface {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("NAME", Left),
        ("SIDE", Left),
        ("LINK", Left),
        ("ADDRESS", Left),
        ("MTU", Right),
        ("VLAN", Right),
        ("MAC", Left),
        ("RX PACKETS", Right),
        ("RX MISSED", Right),
        ("TX PACKETS", Right),
        ("TX DROPPED", Right),
        ("DRIVER", Left),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.side.to_string(),
            if self.link_up { "up" } else { "down" }.to_owned(),
            marked_addresses(self),
            self.mtu_bytes.to_string(),
            human::or_dash(self.vlan),
            self.mac.clone(),
            human::count(self.rx_packets),
            human::count(self.rx_missed),
            human::count(self.tx_packets),
            human::count(self.tx_dropped),
            self.driver.clone(),
        ]
    }
}

/// All addresses, and which of them are not used.
fn marked_addresses(interface: &Interface) -> String {
    let Interface { addresses, duplicate_addresses: duplicate, tentative_addresses: tentative, .. } = interface;
    let others = duplicate.iter().filter(|address| !addresses.contains(address));
    let marked = addresses.iter().chain(others).map(|address| match address {
        _ if duplicate.contains(address) => format!("{address} (duplicate)"),
        _ if tentative.contains(address) => format!("{address} (tentative)"),
        _ => address.clone(),
    });
    marked.collect::<Vec<_>>().join(",")
}

/// `used of total` of the transport with the fewest free ports.
fn fullest(used: &PerProtocol, total: &PerProtocol, in_blocks: u64) -> String {
    let fullest_of_blocks = control::ratio(in_blocks, total.icmp);
    if in_blocks > 0
        && control::Protocol::ALL.iter().all(|one| control::ratio(used.of(*one), total.of(*one)) <= fullest_of_blocks)
    {
        return format!("{} of {} in blocks", human::count(in_blocks), human::count(total.icmp));
    }
    let fullest = control::Protocol::ALL
        .iter()
        .max_by(|a, b| {
            control::ratio(used.of(**a), total.of(**a)).total_cmp(&control::ratio(used.of(**b), total.of(**b)))
        })
        .copied()
        .unwrap_or(control::Protocol::Udp);
    format!("{} of {} {fullest}", human::count(used.of(fullest)), human::count(total.of(fullest)))
}

/// The short names of RFC 5780 §4 and common use: EIF, ADF, APDF.
fn filtering(filtering: Filtering) -> &'static str {
    match filtering {
        Filtering::EndpointIndependent => "EIF",
        Filtering::AddressDependent => "ADF",
        Filtering::AddressAndPortDependent => "APDF",
    }
}

impl Row for Pool {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("NAME", Left),
        ("ADDRESSES", Right),
        ("PORTS", Left),
        ("POOLING", Left),
        ("FILTERING UDP/TCP/ICMP", Left),
        ("SUBSCRIBERS", Right),
        ("USED", Right),
        ("FULLEST TRANSPORT", Left),
        ("STATE", Left),
        ("SERVES", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let kinds = [self.filtering.udp, self.filtering.tcp, self.filtering.icmp].map(filtering);
        let mut serves: Vec<String> = self.subscriber_prefixes.iter().map(ToString::to_string).collect();
        serves.extend(self.serves_ipv6_hosts.then(|| "IPv6 hosts".to_owned()));
        vec![
            self.name.clone(),
            human::count(self.addresses),
            format!("{}-{}", self.port_min, self.port_max),
            self.pooling.to_string(),
            kinds.join("/"),
            human::count(self.subscribers),
            human::percent(self.utilisation_ratio),
            fullest(&self.ports_used, &self.ports_total, self.ports_leased + self.ports_unleasable),
            if self.draining { "draining" } else { "active" }.to_owned(),
            serves.join(","),
        ]
    }
}

impl Row for PoolAddress {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("POOL", Left),
        ("ADDRESS", Left),
        ("SUBSCRIBERS", Right),
        ("UDP PORTS", Right),
        ("TCP PORTS", Right),
        ("ICMP IDS", Right),
        ("HELD", Right),
        ("USED", Right),
        ("STATE", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let ends = self.ends_in_us.map(|left| format!(", ends in {}", human::duration(left))).unwrap_or_default();
        let withheld = if self.announced == Some(false) { ", not announced" } else { "" };
        let in_use = |used: u64, held: u64| human::count(used.saturating_sub(held));
        let (used, held) = (&self.ports_used, &self.ports_held);
        vec![
            self.pool.clone(),
            self.address.to_string(),
            self.subscribers.map_or_else(|| "-".to_owned(), human::count),
            in_use(used.udp, held.udp),
            in_use(used.tcp, held.tcp),
            in_use(used.icmp, held.icmp),
            human::count(held.total()),
            human::percent(self.utilisation_ratio),
            format!("{}{ends}{withheld}", self.state),
        ]
    }
}

impl Row for Subscriber {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("ADDRESS", Left),
        ("EXTERNAL", Left),
        ("POOL", Left),
        ("UDP", Right),
        ("TCP", Right),
        ("ICMP", Right),
        ("SESSIONS", Right),
        ("OWN PORTS", Left),
        ("REFUSED", Right),
        ("CLASS", Left),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            human::in_vrf(&self.vrf, self.host.map_or_else(|| human::or_dash(self.address), |host| host.to_string())),
            human::or_dash(self.external_address),
            match &self.other_pool {
                _ if self.offender => format!("{} (penalty)", self.pool),
                Some(other) => format!("{}, {other}", self.pool),
                None => self.pool.clone(),
            },
            human::count(self.mappings.udp),
            human::count(self.mappings.tcp),
            human::count(self.mappings.icmp),
            self.sessions.map_or_else(|| "-".to_owned(), human::count),
            human::subscriber_ports(&self.subscriber_ports, self.external_address),
            human::count(self.refused.total()),
            human::or_dash(self.class.as_deref()),
            self.worker.to_string(),
        ]
    }
}

impl Row for Mapping {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PROTO", Left),
        ("INTERNAL", Left),
        ("EXTERNAL", Left),
        ("SESSIONS", Right),
        ("AGE", Right),
        ("IDLE", Right),
        ("ENDS IN", Right),
        ("ORIGIN", Left),
        ("POOL", Left),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.to_string(),
            human::in_vrf(&self.vrf, internal(self.internal, self.host.as_ref())),
            self.external.to_string(),
            human::count(self.sessions),
            human::duration_or_dash(self.age_us),
            human::duration(self.idle_us),
            human::duration(self.expires_in_us),
            human::or_dash(self.origin.as_ref()),
            self.pool.clone(),
            self.worker.to_string(),
        ]
    }
}

impl Row for Grant {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PROTO", Left),
        ("INTERNAL", Left),
        ("EXTERNAL", Left),
        ("ORIGIN", Left),
        ("KIND", Left),
        ("FROM", Left),
        ("AGE", Right),
        ("ENDS IN", Right),
        ("POOL", Left),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        let anyone = || "anyone".to_owned();
        vec![
            self.protocol.to_string(),
            human::in_vrf(&self.vrf, internal(self.internal, self.host.as_ref())),
            self.external.to_string(),
            self.origin.clone(),
            if self.held_down { "held down".to_owned() } else { self.kind.clone() },
            if self.remotes.is_empty() { anyone() } else { self.remotes.join(" ") },
            human::duration(self.age_us),
            human::duration(self.expires_in_us),
            self.pool.clone(),
            self.worker.to_string(),
        ]
    }
}

impl Row for Alg {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("ALG", Left),
        ("STATE", Left),
        ("PORTS", Left),
        ("SESSIONS", Right),
        ("READ", Right),
        ("CHANGED", Right),
        ("EXPECTED", Right),
        ("OPEN", Right),
        ("REFUSED", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let transports: Vec<String> = self.transports.iter().map(ToString::to_string).collect();
        let ports: Vec<String> = self.ports.iter().map(ToString::to_string).collect();
        let refused: Vec<String> =
            self.refused.reasons().map(|(name, number)| format!("{name} {}", human::count(number))).collect();
        vec![
            self.name.clone(),
            match (self.enabled, self.classes.as_slice(), self.classes_without.as_slice()) {
                (true, _, []) => "on".to_owned(),
                (true, _, without) => format!("on, not {}", without.join(", ")),
                (false, [], _) => "off".to_owned(),
                (false, classes, _) => format!("for {}", classes.join(", ")),
            },
            format!("{} {}", transports.join("+"), ports.join(",")),
            human::count(self.sessions),
            human::count(self.sessions_total),
            human::count(self.messages_changed),
            human::count(self.expectations_total),
            human::count(self.expectations),
            if refused.is_empty() { "-".to_owned() } else { refused.join(", ") },
        ]
    }
}

impl Row for Expectation {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PROTO", Left),
        ("INTERNAL", Left),
        ("EXTERNAL", Left),
        ("ALG", Left),
        ("KIND", Left),
        ("FROM", Left),
        ("STATE", Left),
        ("AGE", Right),
        ("ENDS IN", Right),
        ("POOL", Left),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.to_string(),
            human::in_vrf(&self.vrf, self.internal),
            self.external.to_string(),
            self.alg.clone(),
            self.kind.clone(),
            self.remotes.join(" "),
            if self.used { "used" } else { "waits" }.to_owned(),
            human::duration(self.age_us),
            human::duration_or_dash(self.expires_in_us),
            self.pool.clone(),
            self.worker.to_string(),
        ]
    }
}

impl Row for Session {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("PROTO", Left),
        ("INTERNAL", Left),
        ("EXTERNAL", Left),
        ("REMOTE", Left),
        ("STATE", Left),
        ("OPENED", Left),
        ("AGE", Right),
        ("IDLE", Right),
        ("ENDS IN", Right),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.protocol.to_string(),
            human::in_vrf(&self.vrf, internal(self.internal, self.host.as_ref())),
            if self.shared { format!("{} shared", self.external) } else { self.external.to_string() },
            self.target.map_or_else(|| self.remote.to_string(), |target| format!("{} > {target}", self.remote)),
            self.state.clone(),
            human::or_dash(self.direction),
            human::duration_or_dash(self.age_us),
            human::duration(self.idle_us),
            human::duration(self.expires_in_us),
            self.worker.to_string(),
        ]
    }
}

impl Row for Route {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("TABLE", Left),
        ("PREFIX", Left),
        ("USED", Left),
        ("SOURCE", Left),
        ("METRIC", Right),
        ("NEXT HOPS", Left),
        ("REASON", Left),
    ];

    fn cells(&self) -> Vec<String> {
        let of_several = self.next_hops.len() > 1;
        let hops = self.next_hops.iter().map(|hop| {
            let via = hop.via.as_ref().map_or_else(|| "on link".to_owned(), |via| format!("via {via}"));
            let weight = of_several.then(|| hop.weight.to_string());
            let fault = match (hop.link_up, hop.device_up) {
                (false, _) => Some("no link".to_owned()),
                (true, false) => Some("kernel device".to_owned()),
                (true, true) => None,
            };
            let notes: Vec<String> = weight.into_iter().chain(fault).collect();
            let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
            format!("{} {via}{notes}", hop.interface)
        });
        let hops: Vec<String> = hops.collect();
        vec![
            self.vrf.as_ref().map_or_else(|| self.side.to_string(), |vrf| format!("{} {vrf}", self.side)),
            self.prefix.clone(),
            if self.used { "yes" } else { "no" }.to_owned(),
            self.protocol.as_ref().map_or_else(|| self.source.to_string(), |from| format!("{} {from}", self.source)),
            human::or_dash(self.metric),
            match hops.as_slice() {
                [] if self.drops => "drops packets".to_owned(),
                [] => "-".to_owned(),
                _ => hops.join(", "),
            },
            self.reason.clone(),
        ]
    }
}

impl Row for Neighbour {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("INTERFACE", Left),
        ("ADDRESS", Left),
        ("MAC", Left),
        ("STATE", Left),
        ("WAITING", Right),
        ("OWNER", Left),
        ("WORKER", Right),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.interface.clone(),
            self.address.clone(),
            human::or_dash(self.mac.as_deref()),
            self.state.clone(),
            human::count(self.waiting.into()),
            self.owner.clone(),
            self.worker.to_string(),
        ]
    }
}

impl Row for Rule {
    const COLUMNS: &'static [(&'static str, Align)] = &[
        ("KIND", Left),
        ("RULE", Right),
        ("ACTION", Left),
        ("IP PROTOCOL", Right),
        ("INSIDE", Left),
        ("OUTSIDE", Left),
        ("HITS", Right),
    ];

    fn cells(&self) -> Vec<String> {
        let mut action = self.action.clone();
        let words = [self.direction.as_deref().filter(|direction| *direction != "both"), self.pool.as_deref()];
        let mapping = self.mapping.as_deref().filter(|mapping| *mapping != "endpoint-independent");
        for word in words.into_iter().chain([mapping]).flatten() {
            action = format!("{action} {word}");
        }
        let external = self.external.as_ref().filter(|_| !self.target_hits.is_empty());
        if let Some(external) = external {
            let hits = self.target_hits.iter().map(|hits| human::count(*hits));
            let targets = self.targets.iter().zip(hits).map(|(target, hits)| format!("{target} ({hits} hits)"));
            action = format!("{action} {external} to {}", targets.collect::<Vec<_>>().join(", "));
        } else if let Some((first, rest)) = self.targets.split_first() {
            // Of many targets the first two.
            let second = rest.first().map(|second| format!(", {second}")).unwrap_or_default();
            let more = if rest.len() > 1 { format!(", {} more", rest.len() - 1) } else { String::new() };
            action = format!("{action} {first}{second}{more}");
        }
        if let Some(external) = self.external.as_ref().filter(|_| self.target_hits.is_empty()) {
            action = format!("{action} {external}");
        }
        let with_ports = |prefix: String, ports: &Option<String>| match ports {
            Some(ports) if prefix.matches(':').count() > 1 => format!("[{prefix}]:{ports}"),
            Some(ports) => format!("{prefix}:{ports}"),
            None => prefix,
        };
        let inside = with_ports(self.inside.to_string(), &self.inside_ports);
        let inside = self.b4.map(|b4| format!("{inside} behind {b4}")).unwrap_or(inside);
        vec![
            self.kind.clone(),
            self.place.clone(),
            action,
            self.ip_protocol.map_or_else(|| "any".to_owned(), |number| number.to_string()),
            match &self.vrf {
                Some(vrf) => format!("{inside} in {vrf}"),
                None => inside,
            },
            with_ports(self.outside.to_string(), &self.outside_ports),
            self.hits.map_or_else(|| "-".to_owned(), human::count),
        ]
    }
}

impl Row for Counter {
    const COLUMNS: &'static [(&'static str, Align)] =
        &[("COUNTER", Left), ("WORKER", Right), ("VALUE", Right), ("KIND", Left), ("MEANING", Left)];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.worker.map_or_else(|| "all".to_owned(), |worker| worker.to_string()),
            human::count(self.value),
            self.kind.to_string(),
            self.description.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hits_of_targets_are_called_hits() {
        let rule = r#"{"index":0,"place":"0","kind":"forward","action":"forward","direction":null,"pool":null,
            "mapping":null,"vrf":null,"ip_protocol":6,"inside":"0.0.0.0/0","inside_ports":null,"outside":"0.0.0.0/0",
            "outside_ports":null,"targets":["10.0.0.80:8080","10.0.0.81:8080"],"target_hits":[0,1200],
            "external":"203.0.113.9:443","hits":1200}"#;
        let rule: Rule = serde_json::from_str(rule).unwrap();
        let action = &rule.cells()[2];
        assert_eq!(action, "forward 203.0.113.9:443 to 10.0.0.80:8080 (0 hits), 10.0.0.81:8080 (1,200 hits)");
    }
}
