//! Where rules send flows instead of where they were going: destination translation and twice NAT.

use core::fmt;
use core::net::Ipv4Addr;

use crate::types::Prefix;
use crate::types::Protocol;

#[cfg(test)]
mod tests;

/// A redirection, by its position in [`Settings::redirections`](crate::Settings::redirections).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RedirectionId(pub u32);

/// What becomes of the destination of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Redirection {
    /// It becomes one of these, of which there is at least one (destination translation).
    Targets(Vec<Target>),
    /// Its address becomes that of the same host of this prefix, which is as long as the rule's destination: two networks with
    /// the same addresses know each other by others (twice NAT, RFC 2663 §4.3).
    Prefix(Prefix),
}

/// Where the packets of a rule go instead, or those to a forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address, in host bit order: outside that of a rule, inside that of a forward.
    pub address: u32,
    /// The port; None leaves it as it is. Means nothing for ICMP.
    pub port: Option<u16>,
    /// Its share among the targets' weights together, at least 1.
    pub weight: u32,
}

impl fmt::Display for Target {
    /// As a configuration says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Ipv4Addr::from_bits(self.address))?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        if self.weight == 1 { Ok(()) } else { write!(f, " weight {}", self.weight) }
    }
}

impl Redirection {
    /// The remote endpoint outside of one that is `near` to the inside. `hash` is the same for all flows of a subscriber and
    /// spreads subscribers evenly: so all flows of one go to the same target.
    pub fn far(&self, protocol: Protocol, near: (u32, u16), hash: u64) -> (u32, u16) {
        match self {
            Redirection::Prefix(prefix) => (prefix.address().to_bits() | near.0 & !prefix.mask(), near.1),
            Redirection::Targets(targets) => {
                let Some(target) = choose(targets, hash) else { return near };
                let port = if protocol == Protocol::Icmp { None } else { target.port };
                (target.address, port.unwrap_or(near.1))
            }
        }
    }
}

/// The target that a hash falls to, each as likely as its weight says.
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
