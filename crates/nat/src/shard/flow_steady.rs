//! The usual case of flows, a burst at a time: whole UDP and TCP packets of established ones.
//!
//! Like [`steady`](super::steady), which has found no mapping for them: [`Shard::find_flows`] asks for the tables' lines and for the
//! records these name, [`Shard::steady_flow_out`] and [`Shard::steady_flow_in`] compare, refresh and rewrite. Whatever is not as usual
//! (another state, filters that have not been asked yet) is left untouched for the long way in `dependent`.

use super::Shard;
use super::opening::bits;
use super::steady::Kind;
use super::steady::Looks;
use super::steady::SteadyClock;
use super::steady::segment;
use crate::flow::InsideKey;
use crate::flow::OutsideKey;
use crate::mapping::InternalKey;
use crate::packet::Egress;
use crate::packet::Packet;
use crate::parse::HEADERS;
use crate::parse::be16;
use crate::parse::be32;
use crate::rewrite::End;
use crate::rewrite::rewrite_both_ends;
use crate::rewrite::rewrite_headers;
use crate::tcp::TcpState;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;

fn protocol(kind: Kind) -> Protocol {
    if kind.is_tcp() { Protocol::Tcp } else { Protocol::Udp }
}

fn inside_key(header: &[u8; HEADERS], kind: Kind, realm: RealmId) -> InsideKey {
    let protocol = protocol(kind);
    let key = InternalKey { realm, protocol, address: be32::<12>(header), port: be16::<20>(header) };
    InsideKey::new(&key, be32::<16>(header), be16::<22>(header))
}

fn outside_key(header: &[u8; HEADERS], kind: Kind) -> OutsideKey {
    OutsideKey {
        protocol: protocol(kind),
        external: (be32::<16>(header), be16::<22>(header)),
        far: (be32::<12>(header), be16::<20>(header)),
    }
}

impl Shard {
    /// Flows of packets from inside that seem to have no mapping, and of those to shared ports.
    #[inline(never)]
    pub(super) fn find_flows(&self, looks: &mut Looks, burst: &[Packet<'_>]) {
        let mut usual = 0_u64;
        for i in bits(looks.unsettled | looks.shared) {
            let kind = looks.kind[i];
            let Some(header) = burst[i].bytes.first_chunk::<HEADERS>() else { continue };
            if !kind.is_steady() {
                continue;
            }
            usual |= 1 << i;
            looks.flow_hash[i] = if looks.shared >> i & 1 != 0 {
                self.flows.outside_hash(&outside_key(header, kind))
            } else {
                self.flows.inside_hash(&inside_key(header, kind, self.shared.realm_of(burst[i].meta.ingress)))
            };
        }
        for i in bits(usual) {
            self.flows.prefetch_table(looks.shared >> i & 1 != 0, looks.flow_hash[i]);
        }
        for i in bits(usual) {
            let flow = self.flows.candidate(looks.shared >> i & 1 != 0, looks.flow_hash[i]);
            if flow != 0 {
                looks.flow[i] = flow;
                looks.flows |= 1 << i;
            }
        }
        for i in bits(looks.flows) {
            self.flows.prefetch_write(looks.flow[i]);
        }
        looks.unsettled &= !looks.flows;
        looks.further &= !looks.flows;
    }

    /// A packet from inside that looks found a flow for: where it leaves, or None when it is not as usual and nothing was changed.
    #[inline]
    pub(super) fn steady_flow_out(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        index: u32,
        realm: RealmId,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        let stamp = self.stamps.current();
        if self.lifetimes.own(protocol(kind), be16::<22>(header)).is_some() {
            return None;
        }
        let key = inside_key(header, kind, realm);
        let flow = self.flows.get(index);
        let (near, far) = (flow.near(), flow.far());
        if !flow.is_steady_inside(&key, stamp) || flow.expires() <= clock.due[usize::from(is_tcp)] {
            return None;
        }
        let hop = *self.shared.route_out(far.0)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        let flow = self.flows.get_mut(index);
        flow.refresh(TcpState::Established, clock.end[usize::from(is_tcp)]);
        flow.tracker.observe_ack(Side::Inside, &segment(header), is_tcp);
        let external = flow.external();
        let identification = self.plain_identification(header, external.0, far.0);
        if near == far {
            rewrite_headers(header, is_tcp, End::Source, external.0, external.1, identification);
        } else {
            rewrite_both_ends(header, is_tcp, external, far, identification);
        }
        Some(hop.egress(far.0))
    }

    /// As [`Shard::steady_flow_out`], from outside.
    #[inline]
    pub(super) fn steady_flow_in(
        &mut self,
        clock: &SteadyClock,
        header: &mut [u8; HEADERS],
        kind: Kind,
        index: u32,
    ) -> Option<Egress> {
        let is_tcp = kind.is_tcp();
        let stamp = self.stamps.current();
        let key = outside_key(header, kind);
        let flow = self.flows.get(index);
        if !flow.is_steady_outside(&key, stamp) || flow.expires() <= clock.due[usize::from(is_tcp)] {
            return None;
        }
        let (realm, internal, near) = (flow.realm(), flow.internal(), flow.near());
        if self.lifetimes.own(protocol(kind), near.1).is_some() {
            return None;
        }
        let hop = *self.shared.route_in(realm, internal.0)?;
        if be16::<2>(header) > hop.mtu {
            return None;
        }
        let flow = self.flows.get_mut(index);
        if self.timers.inbound_refresh[usize::from(is_tcp)] {
            flow.refresh(TcpState::Established, clock.end[usize::from(is_tcp)]);
        }
        flow.tracker.observe_ack(Side::Outside, &segment(header), is_tcp);
        if near == key.far {
            rewrite_headers(header, is_tcp, End::Destination, internal.0, internal.1, None);
        } else {
            rewrite_both_ends(header, is_tcp, near, internal, None);
        }
        Some(hop.egress(internal.0))
    }
}
