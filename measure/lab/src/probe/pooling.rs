//! Whether all flows of a host have the same external address (RFC 4787 §4.1, RFC 6888 REQ-2).
//!
//! A host with blocks of ports has an address for each block: flows in the first block show nothing
//! of the next. So where hosts have ranges of their own, each goes on opening flows until it has
//! ports of another range, at the same address or not, gets no more, or has more than any block.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::ranges;
use super::ranges::listed;
use super::seen::Protocol;

/// Flows to servers of their own, of each protocol.
const FEW: [(Protocol, u32); 3] = [(Protocol::Udp, 16), (Protocol::Tcp, 8), (Protocol::Icmp, 4)];
/// Those of them that may be lost before no further one is sent.
const REFUSED: u32 = 2;
/// Their first inside port.
const FIRST_PORT: u16 = 25_000;
/// The first inside port of those that look for another range: beyond all others.
const FIRST_FURTHER: u16 = 53_000;
/// Flows without which nothing is said of a host: of two addresses each may be had by chance, but
/// not eight times.
const FLOWS_MIN: usize = 8;
/// Further flows of a host at most: more than the largest block that is in use, which has 4 096
/// ports.
const FURTHER_MAX: u16 = 4_608;
/// Those of all hosts at most.
const FURTHER_OF_ALL: usize = 20_000;
/// Further flows at once.
const BATCH: u16 = 64;

/// Whether a host has been seen in more than its first range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beyond {
    /// There are no ranges to look beyond.
    NotAsked,
    /// It has ports of another one.
    AnotherRange,
    /// It gets no further port, though others do.
    Refused,
    /// It has more of one range than the largest block that is in use.
    Large,
    /// Nothing of the kind was seen.
    NotSeen,
}

/// A host, and all that was seen of it.
#[derive(Clone, Debug)]
struct Host {
    address: Ipv4Addr,
    flows: usize,
    /// Ports of UDP by external address.
    ports: BTreeMap<Ipv4Addr, BTreeSet<u16>>,
    beyond: Beyond,
    keeps_ports: bool,
}

impl Host {
    fn note(&mut self, protocol: Protocol, internal: SocketAddrV4, external: SocketAddrV4) {
        self.flows += 1;
        self.keeps_ports &= external.port() == internal.port();
        let ports = self.ports.entry(*external.ip()).or_default();
        if protocol == Protocol::Udp {
            ports.insert(external.port());
        }
    }

    fn is_at_many(&self) -> bool {
        self.ports.len() > 1
    }

    /// Whether its flows decide something: there are some, and in more than one range where there
    /// are such.
    fn decides(&self) -> bool {
        self.flows >= FLOWS_MIN && self.beyond != Beyond::NotSeen
    }

    fn words(&self) -> String {
        let Host { address, flows, ports, beyond, .. } = self;
        if ports.is_empty() {
            return format!("{address}: no flow gets out");
        }
        let beyond = match beyond {
            Beyond::NotAsked => "",
            Beyond::AnotherRange => ", in more than one range of ports",
            Beyond::Refused => ", and gets no further port",
            Beyond::Large => ", all in one range of ports, which is larger than a block",
            Beyond::NotSeen => ", all in one range of ports",
        };
        format!("{address} leaves as {} ({flows} flows{beyond})", listed(ports.keys()))
    }
}

/// Asks with these hosts, whose first flows of UDP are given. With ranges of its own for each host,
/// beyond the first of them.
///
/// # Errors
/// When packets cannot be sent.
pub(super) fn find(
    prober: &mut Prober<'_>,
    hosts: &[(Ipv4Addr, &[(SocketAddrV4, SocketAddrV4)])],
    has_ranges: bool,
) -> Result<Finding, ProbeError> {
    let mut seen = Vec::new();
    for (address, flows) in hosts {
        let mut host =
            Host { address: *address, flows: 0, ports: BTreeMap::new(), beyond: Beyond::NotAsked, keeps_ports: true };
        for (internal, external) in *flows {
            host.note(Protocol::Udp, *internal, *external);
        }
        for (protocol, count) in FEW {
            let mut refused = 0;
            for number in 0..count {
                let internal = SocketAddrV4::new(*address, FIRST_PORT + number as u16);
                let server = prober.remote(number, 1000);
                match prober.open(protocol, internal, server)? {
                    Some(external) => host.note(protocol, internal, external),
                    None => refused += 1,
                }
                // Each is waited for, and a host may have nothing left.
                if refused == REFUSED {
                    break;
                }
            }
        }
        seen.push(host);
    }
    let mut left = FURTHER_OF_ALL;
    for host in seen.iter_mut().filter(|host| has_ranges && host.flows > 0) {
        let before = host.flows;
        host.beyond = if left > 0 { look_beyond(prober, host)? } else { Beyond::NotSeen };
        left = left.saturating_sub(host.flows - before);
        // One that has two addresses is enough.
        if host.is_at_many() {
            break;
        }
    }
    let is_shared = prober.external_addresses().is_shared;
    let all = prober.external_addresses().addresses;
    let (value, verdict) = judged(&seen, all, is_shared);
    Ok(Finding::new("pooling", value)
        .seen_all(seen.iter().map(Host::words).collect())
        .seen(format!("of all flows until now {all} external addresses were seen"))
        .judged("RFC 4787 REQ-2", "paired recommended", verdict)
        .judged("RFC 6888 REQ-2", "paired, across all protocols", verdict))
}

/// Further flows of a host, until it has ports of another range.
fn look_beyond(prober: &mut Prober<'_>, host: &mut Host) -> Result<Beyond, ProbeError> {
    let server = prober.remote(0, 1000);
    let first = host.ports.values().next().cloned().unwrap_or_default();
    for batch in 0..FURTHER_MAX / BATCH {
        if host.is_at_many() || is_beyond(&first, host.ports.values().next().unwrap_or(&first)) {
            return Ok(Beyond::AnotherRange);
        }
        let ports = (0..BATCH).map(|port| FIRST_FURTHER + batch * BATCH + port);
        let flows: Vec<_> = ports.map(|port| (SocketAddrV4::new(host.address, port), server)).collect();
        let externals = prober.open_many(Protocol::Udp, &flows)?;
        for ((internal, _), external) in flows.into_iter().zip(externals) {
            let external = match external {
                // A packet may be lost.
                None => prober.open(Protocol::Udp, internal, server)?,
                some => some,
            };
            let Some(external) = external else {
                // Where nobody gets one it is no limit of its own.
                let other = prober.new_host();
                let is_own = prober.open(Protocol::Udp, SocketAddrV4::new(other, FIRST_PORT), server)?.is_some();
                return Ok(match () {
                    () if host.is_at_many() => Beyond::AnotherRange,
                    () if is_own => Beyond::Refused,
                    () => Beyond::NotSeen,
                });
            };
            host.note(Protocol::Udp, internal, external);
        }
    }
    Ok(if host.is_at_many() { Beyond::AnotherRange } else { Beyond::Large })
}

/// Whether ports of one address lie in more than one range: apart from the first ones, or around
/// them, further than chance leaves of a range when 32 ports are drawn in it. Ports that were given
/// one after the other have no width to go by.
fn is_beyond(first: &BTreeSet<u16>, now: &BTreeSet<u16>) -> bool {
    let width =
        |ports: &BTreeSet<u16>| ports.first().zip(ports.last()).map_or(0, |(low, high)| usize::from(high - low) + 1);
    let is_scattered = width(first) * 4 >= first.len() * 5;
    ranges::of_ports(now).len() > 1 || is_scattered && width(now) * 2 >= width(first) * 3
}

fn judged(hosts: &[Host], addresses: usize, is_shared: bool) -> (&'static str, Verdict) {
    let everywhere: BTreeSet<&Ipv4Addr> = hosts.iter().flat_map(|host| host.ports.keys()).collect();
    let is_own = everywhere.len() == hosts.len() && hosts.iter().all(|host| host.keeps_ports) && !is_shared;
    let enough = hosts.iter().filter(|host| host.decides()).count() * 2 >= hosts.len();
    match addresses {
        0 => ("nothing gets out", Verdict::Undecided),
        1 => ("one external address", Verdict::NotApplicable),
        _ if hosts.iter().any(Host::is_at_many) => ("arbitrary", Verdict::NotMet),
        _ if hosts.iter().filter(|host| host.flows >= FLOWS_MIN).count() * 2 < hosts.len() => {
            ("not known: too few flows of a host get out", Verdict::Undecided)
        }
        _ if !enough => ("not known: hosts were seen in one range of ports each", Verdict::Undecided),
        _ if is_own => ("an address for each host, ports as they are", Verdict::Met),
        _ => ("paired", Verdict::Met),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addresses: u8, flows: usize, beyond: Beyond) -> Host {
        let ports = (0..addresses).map(|last| ([192, 0, 2, last].into(), BTreeSet::new())).collect();
        Host { address: [10, 0, 0, 1].into(), flows, ports, beyond, keeps_ports: false }
    }

    #[test]
    fn hosts_with_few_observed_flows_are_not_paired() {
        let of = |host: Host| judged(&vec![host; 8], 4, true);
        assert_eq!(of(host(1, 28, Beyond::NotAsked)), ("paired", Verdict::Met));
        assert_eq!(
            of(host(1, 1, Beyond::NotAsked)),
            ("not known: too few flows of a host get out", Verdict::Undecided)
        );
        assert_eq!(
            of(host(0, 0, Beyond::NotAsked)),
            ("not known: too few flows of a host get out", Verdict::Undecided)
        );
        let one_range = ("not known: hosts were seen in one range of ports each", Verdict::Undecided);
        assert_eq!(of(host(1, 28, Beyond::NotSeen)), one_range);
        assert_eq!(of(host(1, 4_668, Beyond::Large)), ("paired", Verdict::Met));
        assert_eq!(of(host(1, 600, Beyond::AnotherRange)), ("paired", Verdict::Met));
        assert_eq!(of(host(1, 250, Beyond::Refused)), ("paired", Verdict::Met));
        assert_eq!(of(host(2, 2, Beyond::NotAsked)), ("arbitrary", Verdict::NotMet));
        assert_eq!(judged(&[host(1, 28, Beyond::NotAsked)], 1, true), ("one external address", Verdict::NotApplicable));
        assert_eq!(
            host(2, 600, Beyond::AnotherRange).words(),
            "10.0.0.1 leaves as 192.0.2.0, 192.0.2.1 (600 flows, in more than one range of ports)"
        );
    }

    #[test]
    fn the_next_range_is_seen_whether_it_is_near_or_far() {
        let block = |first: u16, step: u16, count: u16| (0..count).map(move |port| first + port * step);
        let of = |now: Vec<u16>| is_beyond(&block(2_048, 2, 32).collect(), &now.into_iter().collect());
        assert!(!of(block(2_048, 2, 32).collect()));
        assert!(!of(block(2_048, 1, 64).collect()), "the same block, full");
        assert!(of(block(2_048, 1, 100).collect()), "the next block");
        assert!(of(block(2_048, 1, 64).chain([9_000]).collect()), "a block elsewhere");
        let in_order = |count| block(2_048, 1, count).collect::<BTreeSet<u16>>();
        assert!(!is_beyond(&in_order(32), &in_order(200)), "one after the other, in a block that has no end yet");
    }
}
