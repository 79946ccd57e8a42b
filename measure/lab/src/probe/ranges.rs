//! Whether each host has a range of ports of its own, or several: a slice by a formula (RFC 7422),
//! blocks (RFC 6888 REQ-14).
//!
//! The ports of a host whose mappings take any free port lie everywhere between the lowest and the
//! highest that anybody has. Those of a host with ranges of its own lie together, and nobody else's
//! lie between them at the same address:
//!
//! ```text
//!   host 1   ▪▪▪▪▪               ▪▪▪▪▪▪▪▪         a slice and a block
//!   host 2        ▪▪▪▪▪                  ▪▪▪▪▪▪▪▪
//!   host 3             ▪▪▪▪▪                        its slice only
//!            └──────────────── all ────────────┘
//! ```
//!
//! Neighbours may have the same slice of different addresses: hosts far from them are compared,
//! too.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use core::ops::RangeInclusive;
use std::collections::BTreeSet;

use super::finding::Finding;

/// Flows without which nothing is said of a host.
const FLOWS_MIN: usize = 8;
/// Ports that a range has on average at least: what is scattered is no ranges.
const PORTS_OF_RANGE: usize = 8;
/// Of so many ports of a host one may lie in a range of another: a gap of chance may have been
/// taken for the end of a range, or the other way.
const STRAYS: usize = 4;

/// Ports that lie together, from the lowest to the highest. Two ranges are further apart than all
/// the ports within them: by chance the largest gap between 32 ports of one range is longer than
/// all the others together once in 30 million times.
pub(super) fn of_ports(ports: &BTreeSet<u16>) -> Vec<RangeInclusive<u16>> {
    let mut gaps: Vec<u32> = ports.iter().zip(ports.iter().skip(1)).map(|(one, next)| u32::from(next - one)).collect();
    gaps.sort_unstable_by(|one, other| other.cmp(one));
    let mut within: u32 = gaps.iter().sum();
    let mut least = u32::MAX;
    for gap in gaps.iter().take(ports.len() / PORTS_OF_RANGE) {
        within -= gap;
        if *gap > within {
            least = *gap;
        }
    }
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for port in ports {
        match ranges.last_mut() {
            Some(last) if u32::from(port - last.end()) < least => *last = *last.start()..=*port,
            _ => ranges.push(*port..=*port),
        }
    }
    ranges
}

/// Ports from the lowest to the highest of all these ranges.
fn width(ranges: &[RangeInclusive<u16>]) -> u32 {
    ranges.iter().map(|range| u32::from(range.end() - range.start()) + 1).sum()
}

/// What is known of a host.
struct Host<'f> {
    flows: &'f [(SocketAddrV4, SocketAddrV4)],
    addresses: BTreeSet<Ipv4Addr>,
    ranges: Vec<RangeInclusive<u16>>,
}

impl Host<'_> {
    fn of(flows: &[(SocketAddrV4, SocketAddrV4)]) -> Host<'_> {
        let addresses = flows.iter().map(|(_, to)| *to.ip()).collect();
        let ports = flows.iter().map(|(_, to)| to.port()).collect();
        Host { flows, addresses, ranges: of_ports(&ports) }
    }

    /// Whether its ports lie among those of another host at the same address.
    fn is_among(&self, other: &Host<'_>) -> bool {
        let is_there = |to: &SocketAddrV4| {
            other.addresses.contains(to.ip()) && other.ranges.iter().any(|range| range.contains(&to.port()))
        };
        self.flows.iter().filter(|(_, to)| is_there(to)).count() * STRAYS > self.flows.len()
    }
}

/// What the flows of each host say: the finding, and whether each host has ranges of its own.
pub(super) fn find(hosts: &[Vec<(SocketAddrV4, SocketAddrV4)>]) -> (Finding, bool) {
    let hosts: Vec<Host<'_>> =
        hosts.iter().filter(|flows| flows.len() >= FLOWS_MIN).map(|flows| Host::of(flows)).collect();
    let name = "ports.range";
    let all: BTreeSet<u16> = hosts.iter().flat_map(|host| host.flows.iter().map(|(_, to)| to.port())).collect();
    let (Some(low), Some(high), 2..) = (all.first(), all.last(), hosts.len()) else {
        return (Finding::new(name, "not known: too few flows get out"), false);
    };
    let span = u32::from(high - low) + 1;
    let widest = hosts.iter().map(|host| width(&host.ranges)).max().unwrap_or(0);
    let together = |host: &Host<'_>| width(&host.ranges) * 2 < span;
    let pair = |(place, one): (usize, &Host<'_>)| {
        hosts.iter().skip(place + 1).any(|next| one.is_among(next) || next.is_among(one))
    };
    // Chance spreads 32 ports over nine tenths of what there is.
    let is_own = hosts.iter().all(together) && !hosts.iter().enumerate().any(pair);
    let value = match is_own {
        true if hosts.iter().all(|host| host.ranges.len() == 1) => {
            format!("each host has a range of its own, {widest} ports or more")
        }
        true => "each host has ranges of its own".to_owned(),
        false => "one for all hosts".to_owned(),
    };
    let mut finding = Finding::new(name, value).seen(format!("all: {low} to {high}"));
    for host in &hosts {
        let Some((from, _)) = host.flows.first() else { continue };
        finding = finding.seen(format!("{} at {}: {}", from.ip(), listed(&host.addresses), words(&host.ranges)));
    }
    (finding, is_own)
}

/// One after the other.
pub(super) fn listed<'a>(addresses: impl IntoIterator<Item = &'a Ipv4Addr>) -> String {
    addresses.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn words(ranges: &[RangeInclusive<u16>]) -> String {
    ranges.iter().map(|range| format!("{} to {}", range.start(), range.end())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows of the host of this number, at an address.
    fn host(number: u8, address: u8, ports: impl IntoIterator<Item = u16>) -> Vec<(SocketAddrV4, SocketAddrV4)> {
        let internal = SocketAddrV4::new([10, 0, 0, number].into(), 1);
        ports.into_iter().map(|port| (internal, SocketAddrV4::new([192, 0, 2, address].into(), port))).collect()
    }

    /// 32 ports in no order, from a first one on.
    fn chance(first: u16, ports: u32, seed: u32) -> impl Iterator<Item = u16> {
        (1..=32_u32)
            .map(move |number| first + ((number + seed * 32).wrapping_mul(2_654_435_761) / (u32::MAX / ports)) as u16)
    }

    #[test]
    fn ports_that_lie_together_are_one_range() {
        let ranges = |ports: &[u16]| of_ports(&ports.iter().copied().collect());
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[7]), [7..=7]);
        assert_eq!(ranges(&[10, 11, 12, 14, 15, 40, 41, 42]), [10..=15, 40..=42]);
        assert_eq!(ranges(&[10, 11, 12, 14, 15, 20, 21, 22]), [10..=22]);
        assert_eq!(ranges(&[1_024, 9_000, 30_000, 65_535]).len(), 1, "scattered");
    }

    #[test]
    fn one_slice_of_different_addresses_is_seen_by_hosts_far_away() {
        // RFC 7422's neighbours on different addresses: each has the first slice of another one.
        let near = (0..4).map(|number| host(number, number, chance(1_274, 247, u32::from(number))));
        let far =
            (4..8).map(|number| host(number, 9, chance(1_274 + u16::from(number) * 4_032, 247, u32::from(number))));
        let (finding, is_own) = find(&near.chain(far).collect::<Vec<_>>());
        assert!(is_own && finding.value.starts_with("each host has a range of its own, 2"), "{finding:?}");
    }

    #[test]
    fn a_slice_and_a_block_are_ranges_too() {
        let slice = |number: u8| 1_429 + u16::from(number) * 15..1_444 + u16::from(number) * 15;
        let with_block =
            |number: u8| slice(number).chain((0..17).map(move |port| 5_056 - u16::from(number) * 64 + port * 3));
        let hosts: Vec<_> = (0..4)
            .map(|number| host(number, 1, with_block(number)))
            .chain((4..8).map(|number| host(number, 1, slice(number))))
            .collect();
        let (finding, is_own) = find(&hosts);
        assert!(is_own, "{finding:?}");
        assert_eq!(finding.value, "each host has ranges of its own");
        assert_eq!(finding.evidence[1], "10.0.0.0 at 192.0.2.1: 1429 to 1443, 5056 to 5104");
    }

    #[test]
    fn ports_among_those_of_others_are_nobodys_own() {
        let of = |hosts: Vec<_>| find(&hosts).0.value;
        assert_eq!(
            of((0..8).map(|number| host(number, 1, chance(1_024, 64_000, u32::from(number)))).collect()),
            "one for all hosts"
        );
        // One after the other, of the first host at once and of all others in turn.
        let in_turn =
            (1..8).map(|number| host(number, 1, (0..32).map(move |port| 1_056 + port * 7 + u16::from(number))));
        assert_eq!(of(std::iter::once(host(0, 1, 1_024..1_056)).chain(in_turn).collect()), "one for all hosts");
        // Two hosts of one address in the same range, whatever the others have.
        let mut apart: Vec<_> =
            (0..8).map(|number| host(number, number, chance(1_024 + 2_000 * u16::from(number), 500, 1))).collect();
        assert!(of(apart.clone()).starts_with("each host has a range of its own"));
        apart.push(host(8, 7, chance(1_024 + 2_000 * 7, 500, 2)));
        assert_eq!(of(apart), "one for all hosts");
        assert_eq!(of(vec![host(0, 1, 1_024..1_056), host(1, 1, [3_000])]), "not known: too few flows get out");
    }
}
