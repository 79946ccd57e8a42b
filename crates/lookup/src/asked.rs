//! The question, and an answer without a holder.

use core::net::Ipv4Addr;

use control::FindAnswer;
use control::Host;
use control::Place;
use export::store::HostPrefix;
use export::store::Question;
use nat::Protocol;
use nat::types::InsideHost;
use nat::view::BalancedView;

/// Which subscriber has this endpoint?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// External or internal.
    pub address: Ipv4Addr,
    /// IPv6 subscribers instead: only for the past.
    pub host: Option<HostPrefix>,
    /// Port or query identifier; None: all.
    pub port: Option<u16>,
    /// Only this transport.
    pub protocol: Option<Protocol>,
    /// Only internal addresses in this VRF, or holders in it.
    pub vrf: Option<&'a str>,
}

impl Asked<'_> {
    /// For a log.
    pub fn question(&self, from_us: u64, to_us: u64) -> Question {
        let Asked { address, host, port, protocol, .. } = *self;
        Question { address, host, port, protocol, from_us, to_us }
    }

    pub(crate) fn queried(&self) -> String {
        self.port.map_or_else(|| self.address.to_string(), |port| format!("{}:{port}", self.address))
    }

    /// Ends a sentence; empty for all VRFs.
    pub(crate) fn of_vrf(&self) -> String {
        self.vrf.map(|vrf| format!(" of VRF \"{vrf}\"")).unwrap_or_default()
    }

    pub(crate) fn protocols(&self) -> impl Iterator<Item = Protocol> + use<> {
        let wanted = self.protocol;
        Protocol::ALL.into_iter().filter(move |protocol| wanted.is_none_or(|wanted| wanted == *protocol))
    }

    /// An external address may have holders in each VRF.
    pub(crate) fn retain_vrf(&self, answers: &mut Vec<FindAnswer>) {
        if let Some(vrf) = self.vrf {
            answers.retain(|answer| answer.vrf.as_ref().is_none_or(|held| held == vrf));
        }
    }

    pub(crate) fn nobody(&self, place: Place, detail: String) -> FindAnswer {
        nobody(self.queried(), place, detail)
    }
}

pub(crate) fn nobody(queried: String, place: Place, detail: String) -> FindAnswer {
    FindAnswer {
        queried,
        place,
        holder: None,
        host: None,
        realm: None,
        vrf: None,
        external_address: None,
        pool: None,
        subscriber_ports: Vec::new(),
        mapping: None,
        detail,
    }
}

/// An IPv4 address or an IPv6 host.
pub(crate) fn holder_of(host: &InsideHost) -> (Option<Ipv4Addr>, Option<Host>) {
    match *host {
        InsideHost::Ipv4(address) => (Some(address), None),
        InsideHost::Ipv6(address) => (None, Some(Host { address, prefix_length: 128, inner: None })),
        InsideHost::BehindB4 { b4, inner } => {
            (None, Some(Host { address: b4, prefix_length: 128, inner: Some(inner) }))
        }
    }
}

/// A sentence about the targets.
pub(crate) fn targets_of(found: &BalancedView) -> String {
    let BalancedView { protocol, external, targets, .. } = found;
    if targets.is_empty() {
        return format!("{protocol} {external} had several targets and is reserved until their sessions end");
    }
    let targets: Vec<String> = targets.iter().map(|(target, weight)| format!("{target} weight {weight}")).collect();
    format!("{protocol} {external} leads to one of {}", targets.join(", "))
}
