//! Many hosts with the same ports, towards one server after the other: whether two of them leave as
//! the same external endpoint.
//!
//! A NAT that keeps ports, or finds a free one, may give an external endpoint to several hosts as
//! long as they talk to different servers. Nobody sees that of one host alone, and with several
//! external addresses two hosts seldom meet at one of them; of many some do.

use core::net::SocketAddrV4;
use std::collections::BTreeMap;

use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;

/// How many.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Hosts for each server, others for each.
    pub hosts: u32,
    /// The first of the ports that each of them has, the same of all: a NAT that keeps ports is
    /// tempted.
    pub first_port: u16,
    /// How many there are from there on.
    pub ports: u16,
    /// Servers at most: no further one is asked once an external endpoint is shared.
    pub servers: u16,
}

/// An inside endpoint and where it sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The inside endpoint.
    pub internal: SocketAddrV4,
    /// The server.
    pub server: SocketAddrV4,
}

/// An external endpoint of two inside endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The external endpoint.
    pub external: SocketAddrV4,
    /// Who had it.
    pub first: Opened,
    /// Who got it, too.
    pub second: Opened,
}

/// What became of the crowd.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// Flows that got out.
    pub flows: usize,
    /// Servers that were asked.
    pub servers: u16,
    /// External endpoints of them all.
    pub externals: usize,
    /// Those that two inside endpoints have.
    pub shared: Vec<Shared>,
}

/// Opens the flows of a crowd.
///
/// # Errors
/// When packets cannot be sent.
pub fn gather(prober: &mut Prober<'_>, protocol: Protocol, size: Size) -> Result<Crowd, ProbeError> {
    let mut owners: BTreeMap<SocketAddrV4, Opened> = BTreeMap::new();
    let mut crowd = Crowd::default();
    while crowd.servers < size.servers && crowd.shared.is_empty() {
        let server = prober.remote(u32::from(crowd.servers), 1000 + crowd.servers);
        crowd.servers += 1;
        let mut flows = Vec::new();
        for number in 0..size.hosts {
            // Those of every crowd are the same: a NAT may have a block of ports for each host, and
            // not many of them.
            let host = prober.crowd_host(u32::from(crowd.servers - 1) * size.hosts + number);
            flows.extend((0..size.ports).map(|port| (SocketAddrV4::new(host, size.first_port + port), server)));
        }
        for ((internal, _), external) in flows.iter().zip(prober.open_many(protocol, &flows)?) {
            let Some(external) = external else { continue };
            crowd.flows += 1;
            let opened = Opened { internal: *internal, server };
            if let Some(first) = owners.insert(external, opened)
                && first.internal != *internal
            {
                crowd.shared.push(Shared { external, first, second: opened });
            }
        }
    }
    crowd.externals = owners.len();
    Ok(crowd)
}
