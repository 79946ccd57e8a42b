//! Conditions on the objects of a list.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::fault::Fault;
use crate::values::Prefix;
use crate::values::Prefix6;
use crate::values::Protocol;
use crate::values::RouteSource;
use crate::values::Side;
use crate::values::address;

/// Conditions on the objects of a list. All given conditions must hold. Each list takes only the
/// conditions of [`filters_of`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// Transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Prefix of the internal address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal: Option<Prefix>,
    /// Prefix of the address of an IPv6 host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Prefix6>,
    /// Internal port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_port: Option<u16>,
    /// Prefix of the external address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<Prefix>,
    /// External port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_port: Option<u16>,
    /// Prefix of the remote address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<Prefix>,
    /// Remote port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_port: Option<u16>,
    /// Internal, external or remote port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Session state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Name of the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Name of the VRF.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vrf: Option<String>,
    /// Number of the owning worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<u8>,
    /// Name of the gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alg: Option<String>,
    /// Address that a route covers, or that a neighbour has.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "address")]
    pub address: Option<IpAddr>,
    /// Name of the interface of a next hop or neighbour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Where a route is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<RouteSource>,
    /// Side of the table of a route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
}

/// What `protocol`, `internal` and their like are for every list of endpoints.
macro_rules! endpoints {
    ($($more:literal),*) => {
        &[
            "protocol", "internal", "host", "internal_port", "external", "external_port", "port", "pool", "vrf",
            "worker", $($more),*
        ]
    };
}

/// The lists by the names of their requests, and the conditions that each takes.
#[rustfmt::skip]
const LISTS: [(&str, &[&str]); 11] = [
    ("pool_addresses", &["external", "pool"]),
    ("subscribers", &["internal", "host", "external", "pool", "vrf", "worker"]),
    ("mappings", endpoints!()),
    ("sessions", endpoints!("remote", "remote_port", "state")),
    ("grants", endpoints!()),
    ("expectations", endpoints!("alg")),
    ("algs", &["worker", "alg"]),
    ("rules", &[]),
    ("routes", &["vrf", "address", "interface", "source", "side"]),
    ("neighbours", &["worker", "address", "interface"]),
    ("audit", &[]),
];

/// The conditions that a list takes; None if there is no such list.
pub fn filters_of(list: &str) -> Option<&'static [&'static str]> {
    LISTS.iter().find(|(name, _)| *name == list).map(|(_, takes)| *takes)
}

/// True if some list takes a condition of this name.
pub fn is_filter(name: &str) -> bool {
    LISTS.iter().any(|(_, takes)| takes.contains(&name))
}

/// The fields of an object that a [`Filter`] checks; None if the object does not have the field.
#[derive(Clone, Copy, Debug, Default)]
pub struct Candidate<'a> {
    /// Transport.
    pub protocol: Option<Protocol>,
    /// Internal address.
    pub internal: Option<Ipv4Addr>,
    /// Address of its IPv6 host; `Some(None)` for an IPv4 host.
    pub host: Option<Option<Ipv6Addr>>,
    /// Internal port.
    pub internal_port: Option<u16>,
    /// External address.
    pub external: Option<Ipv4Addr>,
    /// External port.
    pub external_port: Option<u16>,
    /// Remote endpoint.
    pub remote: Option<SocketAddrV4>,
    /// Session state.
    pub state: Option<&'a str>,
    /// Name of the pool.
    pub pool: Option<&'a str>,
    /// Name of the VRF.
    pub vrf: Option<&'a str>,
    /// Number of the owning worker.
    pub worker: Option<u8>,
    /// Name of the gateway.
    pub alg: Option<&'a str>,
}

fn use_one_of(takes: &[&str]) -> String {
    if takes.is_empty() {
        "omit it: this list takes no filter".to_owned()
    } else {
        format!("use one of: {}", takes.join(", "))
    }
}

/// True if the condition is not set, if the object does not have the field, or if `test` passes.
fn holds<W, H>(wanted: Option<W>, has: Option<H>, test: impl FnOnce(W, H) -> bool) -> bool {
    match (wanted, has) {
        (Some(wanted), Some(has)) => test(wanted, has),
        _ => true,
    }
}

impl Filter {
    /// The conditions that are given.
    pub fn given(&self) -> Vec<String> {
        let fields = serde_json::to_value(self).ok().and_then(|fields| fields.as_object().cloned());
        fields.into_iter().flatten().map(|(name, _)| name).collect()
    }

    /// Refuses a condition that `list` does not take.
    ///
    /// # Errors
    /// Names the condition, and those that the list takes.
    pub fn check(&self, list: &str) -> Result<(), Fault> {
        let takes = filters_of(list).unwrap_or_default();
        match self.given().iter().find(|name| !takes.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                Err(Fault::new(format!("filter {name}"), format!("does not apply to {list}"), use_one_of(takes)))
            }
        }
    }

    /// True if every condition holds for `candidate`. Allocates nothing.
    pub fn matches(&self, candidate: &Candidate<'_>) -> bool {
        let remote_address = candidate.remote.map(|endpoint| *endpoint.ip());
        let remote_port = candidate.remote.map(|endpoint| endpoint.port());
        let ports = [candidate.internal_port, candidate.external_port, remote_port];
        let has_ports = ports.iter().any(Option::is_some).then_some(ports);
        holds(self.protocol, candidate.protocol, |wanted, has| wanted == has)
            && holds(self.internal, candidate.internal, Prefix::contains)
            && holds(self.host, candidate.host, |wanted, has| has.is_some_and(|has| wanted.contains(has)))
            && holds(self.internal_port, candidate.internal_port, |wanted, has| wanted == has)
            && holds(self.external, candidate.external, Prefix::contains)
            && holds(self.external_port, candidate.external_port, |wanted, has| wanted == has)
            && holds(self.remote, remote_address, Prefix::contains)
            && holds(self.remote_port, remote_port, |wanted, has| wanted == has)
            && holds(self.port, has_ports, |wanted, has| has.contains(&Some(wanted)))
            && holds(self.state.as_deref(), candidate.state, |wanted, has| wanted == has)
            && holds(self.pool.as_deref(), candidate.pool, |wanted, has| wanted == has)
            && holds(self.vrf.as_deref(), candidate.vrf, |wanted, has| wanted == has)
            && holds(self.worker, candidate.worker, |wanted, has| wanted == has)
            && holds(self.alg.as_deref(), candidate.alg, |wanted, has| wanted == has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_lists_names_every_field_once() {
        let filter = Filter {
            protocol: Some(Protocol::Udp),
            internal: "100.64.0.0/10".parse().ok(),
            host: "2001:db8::/32".parse().ok(),
            internal_port: Some(1),
            external: "203.0.113.0/24".parse().ok(),
            external_port: Some(1),
            remote: "192.0.2.0/24".parse().ok(),
            remote_port: Some(1),
            port: Some(1),
            state: Some(String::new()),
            pool: Some(String::new()),
            vrf: Some(String::new()),
            worker: Some(0),
            alg: Some(String::new()),
            address: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            interface: Some(String::new()),
            source: Some(RouteSource::Static),
            side: Some(Side::Inside),
        };
        let given = filter.given();
        assert_eq!(given.len(), 18);
        for (list, takes) in LISTS {
            assert!(takes.iter().all(|name| given.iter().any(|given| given == name)), "{list}: {takes:?}");
        }
        assert!(given.iter().all(|name| LISTS.iter().any(|(_, takes)| takes.contains(&name.as_str()))), "{given:?}");
    }

    #[test]
    fn a_condition_that_a_list_lacks_is_named() {
        let remote = Filter { remote: "8.8.8.8".parse().ok(), ..Filter::default() };
        assert_eq!(remote.check("sessions"), Ok(()));
        let fault = remote.check("neighbours").unwrap_err();
        assert_eq!(
            fault.to_string(),
            "filter remote: does not apply to neighbours; use one of: worker, address, interface"
        );
        assert!(remote.check("rules").unwrap_err().remedy.starts_with("omit it"));
    }
}
