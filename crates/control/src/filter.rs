//! Conditions on the objects of a list.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddrV4;

use serde::Deserialize;
use serde::Serialize;

use crate::values::Prefix;
use crate::values::Prefix6;
use crate::values::Protocol;
use crate::values::RouteSource;
use crate::values::Side;

/// Conditions on mappings, sessions and subscribers. All given conditions must hold. A condition on
/// a field that the object does not have (the state of a mapping, the protocol of a subscriber) is
/// ignored.
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
    #[serde(skip_serializing_if = "Option::is_none")]
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

/// True if the condition is not set, if the object does not have the field, or if `test` passes.
fn holds<W, H>(wanted: Option<W>, has: Option<H>, test: impl FnOnce(W, H) -> bool) -> bool {
    match (wanted, has) {
        (Some(wanted), Some(has)) => test(wanted, has),
        _ => true,
    }
}

impl Filter {
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
