//! The general traffic of subscribers, which rules distinguish only by protocol, VRF and
//! subscriber.
//!
//! A packet outside every destination and port range of a rule represents it.

use super::key::Match;
use super::key::PortRange;
use super::key::RuleKey;
use crate::types::HostNumber;
use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;

/// "This" network, loopback, multicast and reserved addresses.
const NO_DESTINATIONS: [(u32, u32); 3] = [(0, 0x00ff_ffff), (0x7f00_0000, 0x7fff_ffff), (0xe000_0000, u32::MAX)];
const HIGH_PORT: u32 = 1_024;

/// A packet of the [general traffic](self), without its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct General {
    protocol: Protocol,
    internal_port: u16,
    remote: (u32, u16),
}

impl General {
    /// `None` if the rules name all destinations or all ports.
    pub fn of<'a>(protocol: Protocol, rules: impl Iterator<Item = &'a Match>) -> Option<General> {
        let mut destinations = NO_DESTINATIONS.to_vec();
        let (mut internal_ports, mut remote_ports) = (Vec::new(), Vec::new());
        for rule in rules.filter(|rule| rule.protocol.is_none_or(|number| number == protocol.number())) {
            if rule.destination != Prefix::ALL {
                destinations.push((rule.destination.address().to_bits(), rule.destination.last().to_bits()));
                continue;
            }
            let range = |ports: PortRange| (u32::from(ports.first), u32::from(ports.last));
            internal_ports.extend((!is_any(rule.source_ports)).then(|| range(rule.source_ports)));
            let has_ports = protocol != Protocol::Icmp;
            remote_ports.extend((has_ports && !is_any(rule.destination_ports)).then(|| range(rule.destination_ports)));
        }
        let port = |taken: &mut Vec<(u32, u32)>| {
            taken.sort_unstable();
            let found = gap(taken, HIGH_PORT, u32::from(u16::MAX)).or_else(|| gap(taken, 1, HIGH_PORT - 1));
            found.and_then(|port| u16::try_from(port).ok())
        };
        let remote_port = if protocol == Protocol::Icmp { 0 } else { port(&mut remote_ports)? };
        destinations.sort_unstable();
        let remote = gap(&destinations, 0, u32::MAX)?;
        Some(General { protocol, internal_port: port(&mut internal_ports)?, remote: (remote, remote_port) })
    }

    pub(crate) fn key(&self, realm: RealmId, inside: HostNumber) -> RuleKey {
        let (remote, remote_port) = self.remote;
        RuleKey::new(realm, self.protocol.number(), inside.0, self.internal_port, remote, remote_port)
    }
}

fn is_any(ports: PortRange) -> bool {
    ports.covers(PortRange { first: 1, last: u16::MAX })
}

pub(crate) fn is_narrow(rule: &Match) -> bool {
    rule.destination != Prefix::ALL || !is_any(rule.source_ports) || !is_any(rule.destination_ports)
}

/// The lowest number outside these sorted ranges.
fn gap(taken: &[(u32, u32)], first: u32, last: u32) -> Option<u32> {
    let mut candidate = first;
    for (low, high) in taken {
        if *low > candidate {
            break;
        }
        if *high >= candidate {
            candidate = high.checked_add(1)?;
        }
    }
    (candidate <= last).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(address: [u8; 4], length: u8) -> Match {
        Match { destination: Prefix::new(address.into(), length).unwrap_or(Prefix::ALL), ..Match::ALL }
    }

    fn of(rules: &[Match]) -> Option<General> {
        General::of(Protocol::Udp, rules.iter())
    }

    fn fits_none(rules: &[Match]) {
        let general = of(rules).expect("there is general traffic");
        let key = general.key(RealmId(0), HostNumber(0x6440_0001));
        assert!(!rules.iter().any(|rule| is_narrow(rule) && rule.matches(&key)), "{general:?}");
        assert_ne!((key.source_port(), key.destination_port()), (0, 0));
    }

    #[test]
    fn general_traffic_is_outside_every_narrow_rule() {
        fits_none(&[]);
        let port = |first, last| Match { destination_ports: PortRange { first, last }, ..Match::ALL };
        let from = |first, last| Match { source_ports: PortRange { first, last }, ..Match::ALL };
        let some = [to([1, 0, 0, 0], 8), to([2, 0, 0, 0], 7), to([128, 0, 0, 0], 1), to([4, 0, 0, 0], 32)];
        fits_none(&some);
        fits_none(&[port(1_024, 60_000), port(53, 53), from(1_024, 65_535), to([1, 0, 0, 0], 9)]);
        // A port is needed only if a rule names no destination.
        let mut both = to([0, 0, 0, 0], 2);
        both.destination_ports = PortRange { first: 1, last: u16::MAX - 1 };
        fits_none(&[both]);
    }

    #[test]
    fn rules_that_name_everything_leave_no_general_packet() {
        let halves = [to([0, 0, 0, 0], 1), to([128, 0, 0, 0], 1)];
        assert_eq!(of(&halves), None);
        assert!(of(&halves[..1]).is_some());
        let port = |first, last| Match { destination_ports: PortRange { first, last }, ..Match::ALL };
        assert_eq!(of(&[port(0, 1_023), port(1_024, 65_535)]), None);
        let of_tcp = |rule: Match| Match { protocol: Some(Protocol::Tcp.number()), ..rule };
        assert!(of(&halves.map(of_tcp)).is_some(), "of another protocol");
        assert!(General::of(Protocol::Icmp, [port(1, 65_534)].iter()).is_some());
    }

    #[test]
    fn all_ports_are_those_that_packets_have() {
        let most = PortRange { first: 1, last: u16::MAX };
        assert!(!is_narrow(&Match { destination_ports: most, source_ports: most, ..Match::ALL }));
        assert!(is_narrow(&Match { destination_ports: PortRange::one(53), ..Match::ALL }));
        assert!(is_narrow(&to([198, 51, 100, 0], 24)));
    }
}
