//! What the daemon says about the instance as a whole, its pools and its counters.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::time::Duration;
use std::time::Instant;

use control::Client;
use control::ClientError;
use control::Counter;
use control::Counters;
use control::Pool;
use control::Protocol;
use control::Request;
use control::Resource;
use control::Status;

/// Numbers of one moment.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) status: Status,
    pub(crate) pools: Vec<Pool>,
    counters: HashMap<String, u64>,
    /// Packets dropped, by what was used up.
    dropped: BTreeMap<Resource, u64>,
    /// When the instance started.
    pub(crate) started: Instant,
}

impl Figures {
    pub(crate) fn ask(client: &mut Client) -> Result<Figures, ClientError> {
        let status: Status = client.request_one(&Request::Status)?;
        let now = Instant::now();
        let pools = client.request(&Request::Pools)?.0;
        let (counters, _) = client.request::<Counter>(&Request::Counters(Counters { per_worker: false }))?;
        let started = now.checked_sub(Duration::from_micros(status.uptime_us)).unwrap_or(now);
        let dropped = Resource::dropped(&counters);
        let counters = counters.into_iter().map(|counter| (counter.name, counter.value)).collect();
        Ok(Figures { status, pools, counters, dropped, started })
    }

    /// The sum of counters; those that the daemon does not have count as 0.
    pub(crate) fn sum(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.counters.get(*name)).sum()
    }

    /// Packets dropped because one of these was used up.
    pub(crate) fn dropped(&self, resources: &[Resource]) -> u64 {
        resources.iter().filter_map(|resource| self.dropped.get(resource)).sum()
    }

    /// Mappings created with a transport.
    pub(crate) fn created(&self, protocol: Protocol) -> u64 {
        self.sum(&[&format!("mappings_created_{protocol}")])
    }

    /// Mappings with a transport.
    pub(crate) fn mappings(&self, protocol: Protocol) -> u64 {
        self.created(protocol).saturating_sub(self.sum(&[&format!("mappings_removed_{protocol}")]))
    }

    /// Pairs of an internal and an external address: a subscriber has one in each pool that it has
    /// mappings in, with paired pooling.
    pub(crate) fn address_maps(&self) -> u64 {
        self.pools.iter().map(|pool| pool.subscribers).sum()
    }
}

/// External ports with a mapping, without those that are held down.
pub(crate) fn ports_mapped(pool: &Pool, protocol: Protocol) -> u64 {
    pool.ports_used.of(protocol).saturating_sub(pool.ports_held.of(protocol))
}

/// The transport with most mappings in a pool.
pub(crate) fn most_mapped(pool: &Pool) -> Protocol {
    let mut most = Protocol::Udp;
    for protocol in [Protocol::Tcp, Protocol::Icmp] {
        if ports_mapped(pool, protocol) > ports_mapped(pool, most) {
            most = protocol;
        }
    }
    most
}

/// The part of the ports of its most mapped transport that have a mapping, in percent.
pub(crate) fn usage_percent(pool: &Pool) -> u64 {
    let protocol = most_mapped(pool);
    (ports_mapped(pool, protocol) * 100).checked_div(pool.ports_total.of(protocol)).unwrap_or(0)
}

/// The number of a transport in the header of IP.
pub(crate) fn protocol_number(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Icmp => 1,
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

/// The realm of all external addresses.
pub(crate) const EXTERNAL_REALM: &str = "external";

/// The name of a realm. The VRF `default` has the name that RFC 7659 gives to the default realm of
/// subscribers; a name that is too long is cut off.
pub(crate) fn realm(vrf: &str) -> &str {
    const BYTES_MAX: usize = 32;
    if vrf == "default" {
        return "internal";
    }
    let end = (0..=BYTES_MAX.min(vrf.len())).rev().find(|end| vrf.is_char_boundary(*end));
    vrf.get(..end.unwrap_or(0)).unwrap_or_default()
}
