//! Destination translation and twice NAT by rules.

use core::fmt;
use core::net::Ipv4Addr;

use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RemoteInside;
use crate::types::RemoteOutside;

#[cfg(test)]
mod tests;

/// Position in [`Settings::redirections`](crate::Settings::redirections).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedirectionId(pub u32);

/// The new destination of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// At least one (destination translation).
    Targets(Vec<Target>),
    /// The same host of this prefix, as long as the rule's destination (twice NAT, RFC 2663 §4.3).
    Prefix(Prefix),
}

/// A target of a rule or a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Outside for a rule, inside for a forward.
    pub address: u32,
    /// `None` keeps the port. Ignored for ICMP.
    pub port: Option<u16>,
    /// Relative share, at least 1.
    pub weight: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv4Addr::from_bits(self.address))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if self.weight == 1 { Ok(()) } else { write!(f, " weight {}", self.weight) }
    }
}

impl Redirection {
    /// `hash` depends only on the subscriber, so that all its flows have one target.
    pub(crate) fn remote_outside(&self, protocol: Protocol, remote_inside: RemoteInside, hash: u64) -> RemoteOutside {
        match self {
            Redirection::Prefix(prefix) => {
                let address = prefix.address().to_bits() | remote_inside.address & !prefix.mask();
                RemoteOutside { address, port: remote_inside.port }
            }
            Redirection::Targets(targets) => {
                let Some(target) = choose(targets, hash) else { return remote_inside.not_redirected() };
                let port = if protocol == Protocol::Icmp { None } else { target.port };
                RemoteOutside { address: target.address, port: port.unwrap_or(remote_inside.port) }
            }
        }
    }
}

fn choose(targets: &[Target], hash: u64) -> Option<&Target> {
    let total: u64 = targets.iter().map(|target| u64::from(target.weight)).sum();
    let mut place = ((u128::from(hash) * u128::from(total)) >> 64) as u64;
    targets.iter().find(|target| {
        let weight = u64::from(target.weight);
        let is_it = place < weight;
        place = place.wrapping_sub(weight);
        is_it
    })
}
