//! Which subscriber an external port that flows share counts for, found naively from the flows
//! alone: the one whose flow was the first on the port while it carried none, as long as that
//! subscriber has a flow there.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use nat::Protocol;

#[derive(Debug, Default)]
struct Carried {
    opener: Option<Ipv4Addr>,
    /// Internal and remote endpoints.
    flows: BTreeSet<(SocketAddrV4, SocketAddrV4)>,
}

/// All shared ports that carry flows, by protocol and external endpoint.
#[derive(Debug, Default)]
pub struct Openers(BTreeMap<(Protocol, SocketAddrV4), Carried>);

impl Openers {
    /// A flow began, from an internal endpoint to a remote one. Whether it opened its port.
    pub fn begin(
        &mut self,
        protocol: Protocol,
        external: SocketAddrV4,
        (internal, remote): (SocketAddrV4, SocketAddrV4),
    ) -> bool {
        let port = self.0.entry((protocol, external)).or_default();
        let opens = port.flows.is_empty();
        if opens {
            port.opener = Some(*internal.ip());
        }
        port.flows.insert((internal, remote)) && opens
    }

    /// A flow ended, if it is one that began.
    pub fn end(
        &mut self,
        protocol: Protocol,
        external: SocketAddrV4,
        (internal, remote): (SocketAddrV4, SocketAddrV4),
    ) {
        let Some(port) = self.0.get_mut(&(protocol, external)) else { return };
        port.flows.remove(&(internal, remote));
        port.opener = port.opener.filter(|opener| port.flows.iter().any(|(internal, _)| internal.ip() == opener));
        if port.flows.is_empty() {
            self.0.remove(&(protocol, external));
        }
    }

    /// How many ports count for a subscriber.
    pub fn of(&self, subscriber: Ipv4Addr, protocol: Protocol) -> u32 {
        let his = self.0.iter().filter(|((of, _), port)| *of == protocol && port.opener == Some(subscriber));
        his.count() as u32
    }

    /// The subscribers that ports count for, one entry for each port.
    pub fn all(&self) -> impl Iterator<Item = (Ipv4Addr, Protocol)> + '_ {
        self.0.iter().filter_map(|((protocol, _), port)| Some((port.opener?, *protocol)))
    }

    /// Whether a port that carries flows has none to this remote endpoint.
    pub fn has_room_towards(&self, protocol: Protocol, remote: SocketAddrV4) -> bool {
        let mut ports = self.0.iter().filter(|((of, _), _)| *of == protocol);
        ports.any(|(_, port)| port.flows.iter().all(|(_, towards)| *towards != remote))
    }
}
