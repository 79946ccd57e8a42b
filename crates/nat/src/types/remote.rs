//! Endpoints of a session outside its subscriber, each with a type of its own: a redirection gives
//! a session two remote endpoints.

use core::net::Ipv4Addr;

use super::Endpoint;

/// The remote endpoint that the subscriber knows, which rules and filters are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteInside {
    pub(crate) address: u32,
    /// 0 for ICMP queries.
    pub(crate) port: u16,
}

/// The remote endpoint that exchanges packets with the external endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteOutside {
    pub(crate) address: u32,
    /// 0 for ICMP queries.
    pub(crate) port: u16,
}

/// An endpoint of Natrix that stands for a subscriber's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExternalEndpoint {
    pub(crate) address: u32,
    pub(crate) port: u16,
}

impl RemoteInside {
    /// The same endpoint outside, of a session without a redirection.
    #[inline(always)]
    pub(crate) const fn not_redirected(self) -> RemoteOutside {
        RemoteOutside { address: self.address, port: self.port }
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> (u32, u16) {
        (self.address, self.port)
    }
}

impl RemoteOutside {
    /// The same endpoint inside, of a session without a redirection.
    #[inline(always)]
    pub(crate) const fn not_redirected(self) -> RemoteInside {
        RemoteInside { address: self.address, port: self.port }
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> (u32, u16) {
        (self.address, self.port)
    }
}

impl ExternalEndpoint {
    #[inline(always)]
    pub(crate) const fn raw(self) -> (u32, u16) {
        (self.address, self.port)
    }
}

impl From<Endpoint> for RemoteInside {
    fn from(endpoint: Endpoint) -> RemoteInside {
        RemoteInside { address: endpoint.address.to_bits(), port: endpoint.port }
    }
}

impl From<Endpoint> for RemoteOutside {
    fn from(endpoint: Endpoint) -> RemoteOutside {
        RemoteOutside { address: endpoint.address.to_bits(), port: endpoint.port }
    }
}

impl From<Endpoint> for ExternalEndpoint {
    fn from(endpoint: Endpoint) -> ExternalEndpoint {
        ExternalEndpoint { address: endpoint.address.to_bits(), port: endpoint.port }
    }
}

impl From<RemoteInside> for Endpoint {
    fn from(remote: RemoteInside) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(remote.address), remote.port)
    }
}

impl From<RemoteOutside> for Endpoint {
    fn from(remote: RemoteOutside) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(remote.address), remote.port)
    }
}

impl From<ExternalEndpoint> for Endpoint {
    fn from(external: ExternalEndpoint) -> Endpoint {
        Endpoint::new(Ipv4Addr::from_bits(external.address), external.port)
    }
}
