//! What rules say of flows: translated endpoint-dependently, and where to.

use crate::types::Prefix;
use crate::types::Protocol;
use crate::types::RealmId;

#[cfg(test)]
mod tests;

/// What becomes of the destination of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowAction {
    /// It stays: only the source is translated, with a port that others share.
    EndpointDependent,
    /// It becomes one of these, of which there is at least one (destination translation).
    Targets(Vec<Target>),
    /// Its address becomes that of the same host of this prefix, which is as long as the rule's destination: two networks with
    /// the same addresses know each other by others (twice NAT, RFC 2663 §4.3).
    Prefix(Prefix),
}

/// Where the packets of a rule go instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address outside, in host bit order.
    pub address: u32,
    /// The port; None leaves it as it is. Means nothing for ICMP.
    pub port: Option<u16>,
    /// Its share among the targets' weights together, at least 1.
    pub weight: u32,
}

/// Which packets from inside open flows, and what becomes of them. The first that matches counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Inside realm; None: any.
    pub realm: Option<RealmId>,
    /// None: any.
    pub protocol: Option<Protocol>,
    /// Inside addresses.
    pub source: Prefix,
    /// Outside addresses, as the inside knows them.
    pub destination: Prefix,
    /// First and last outside port, as the inside knows them; ICMP queries have port 0.
    pub ports: (u16, u16),
    /// What becomes of the destination.
    pub action: FlowAction,
}

impl FlowAction {
    /// Whether the destination is another one outside.
    pub const fn is_twice(&self) -> bool {
        !matches!(self, FlowAction::EndpointDependent)
    }

    /// The remote endpoint outside of one that is `near` to the inside. `hash` is the same for all flows of a subscriber and
    /// spreads subscribers evenly: so all flows of one go to the same target.
    pub fn far(&self, protocol: Protocol, near: (u32, u16), hash: u64) -> (u32, u16) {
        match self {
            FlowAction::EndpointDependent => near,
            FlowAction::Prefix(prefix) => (prefix.address().to_bits() | near.0 & !prefix.mask(), near.1),
            FlowAction::Targets(targets) => {
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
