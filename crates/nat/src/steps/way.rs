use crate::headers::parse::Parsed;
use crate::snapshot::shared::NextHop;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::steps::view::View;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::Side;
use crate::verdict::Verdict;

const FRAGMENT_HEADER_LENGTH: u16 = wire::ipv6::FRAGMENT_HEADER_LENGTH as u16;

/// The ICMP error to the source of a dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// RFC 5508 §7 REQ-10a2.
    TtlExpired,
    /// RFC 4787 §11 REQ-13, with the MTU of the next link.
    TooBig(u16),
    NetUnreachable,
    HostUnreachable,
    PortUnreachable,
    /// RFC 7915 §4.1.
    SourceRouteFailed,
    /// RFC 6888 REQ-11b or RFC 5508 REQ-8, with the configured code.
    NoResources(u8),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NoWay {
    pub(crate) verdict: Verdict,
    pub(crate) reason: Reason,
}

impl View<'_> {
    /// Finds the way. `destination` may differ from the packet's.
    #[inline]
    pub(crate) fn way<T: Report>(
        &self,
        towards: Facing,
        destination: u32,
        parsed: &Parsed,
        report: &mut T,
    ) -> Result<NextHop, NoWay> {
        if parsed.ttl <= 1 {
            return Err(NoWay { verdict: Verdict::TtlExpired, reason: Reason::TtlExpired });
        }
        let Some(hop) = self.snapshot.route(towards, destination, parsed.source) else {
            report.step(|| Step::NotRouted {
                towards,
                destination: destination.into(),
                by_route: self.snapshot.has_route(towards, destination),
            });
            let reason = match towards.side {
                Side::Inside => Reason::HostUnreachable,
                Side::Outside => Reason::NetUnreachable,
            };
            return Err(NoWay { verdict: Verdict::NoRoute, reason });
        };
        report.step(|| Step::Routed {
            interface: hop.interface.0,
            next_hop: hop.neighbour(destination).into(),
            mtu: hop.mtu,
        });
        if parsed.dont_fragment {
            // RFC 7915 §4.1: to a NAT64 host, a fragment has a Fragment Header besides.
            let is_longer = parsed.is_fragment() && HostNumber(destination).is_nat64();
            let mtu = hop.mtu - if is_longer { FRAGMENT_HEADER_LENGTH } else { 0 };
            if parsed.total_length > mtu {
                return Err(NoWay { verdict: Verdict::TooBig, reason: Reason::TooBig(mtu) });
            }
        }
        Ok(hop)
    }
}
