//! NAT64 and DS-Lite, compiled (ADR 19): the IPv6 destinations they serve, and the way back.
//!
//! Each realm with such hosts has two next hops of its own, for NAT64 and for softwires. A packet
//! is to a host if its next hop is [`Transition::first_hop`] or later.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use translate::Halves;

use crate::headers::packet::NextHopId;
use crate::policy::stand_in::StandIns;
use crate::settings;
use crate::settings::Interface;
use crate::settings::Settings;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::types::InsideHost;
use crate::types::InterfaceId;
use crate::types::Prefix;
use crate::types::RealmId;
use crate::types::Side;
use crate::verdict::Verdict;

/// The AFTR inside its softwires (RFC 6333 §5.7).
pub(crate) const AFTR_INSIDE: u32 = 0xc000_0001;

/// Whether packets may come from this IPv4 address to hosts behind a translation prefix. Addresses
/// that no packet can come from are refused on the whole; those of RFC 6052 §3.1 by their prefix.
pub(crate) fn check_embeddable(source: u32, prefix: translate::Prefix) -> Result<(), Verdict> {
    if translate::check_source4(source).is_err() {
        return Err(Verdict::SourceInvalid);
    }
    translate::check_embedded(source, prefix).map_err(|_| Verdict::EmbeddedPrivate)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RealmEdge {
    /// The first with an IPv6 address.
    pub(crate) interface: InterfaceId,
    /// Source of own ICMPv6 errors.
    pub(crate) own: u128,
    /// Smallest MTU of the interfaces with IPv6.
    pub(crate) mtu: u16,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Nat64Prefix {
    pub(crate) prefix: translate::Prefix,
    pub(crate) realm: RealmId,
    /// Packets of this size reach every host.
    pub(crate) lowest_mtu6: u16,
    /// Packets of this size reach every host whole over its realm's links; 0 without a link.
    pub(crate) whole_max: u16,
}

#[derive(Clone, Debug)]
pub(crate) struct SoftwireEnd {
    pub(crate) aftr: u128,
    pub(crate) aftr_halves: Halves,
    pub(crate) realm: RealmId,
    pub(crate) inner: Vec<Prefix>,
    /// Smallest MTU of the links of its realm; 0 without one.
    pub(crate) link_mtu: u16,
    /// First and last addresses of subscribers, ascending and apart; empty for all.
    subscribers: Vec<(u128, u128)>,
}

impl SoftwireEnd {
    /// True if packets inside a softwire may come from this address.
    #[inline(always)]
    pub(crate) fn permits(&self, inside: u32) -> bool {
        inside != AFTR_INSIDE && self.inner.iter().any(|prefix| prefix.contains(Ipv4Addr::from_bits(inside)))
    }

    /// True if softwires may come from this address. A binary search over the subscribers.
    #[inline(always)]
    pub(crate) fn serves(&self, b4: u128) -> bool {
        self.serves_halves(Halves::of(b4))
    }

    /// [`SoftwireEnd::serves`].
    #[inline(always)]
    pub(crate) fn serves_halves(&self, b4: Halves) -> bool {
        self.subscribers.is_empty() || self.is_subscriber(b4.address())
    }

    #[inline(never)]
    fn is_subscriber(&self, b4: u128) -> bool {
        let after = self.subscribers.partition_point(|(first, _)| *first <= b4);
        let before = after.checked_sub(1).and_then(|at| self.subscribers.get(at));
        before.is_some_and(|(_, last)| b4 <= *last)
    }

    fn new(settings: &settings::Softwire, edge: Option<&RealmEdge>) -> SoftwireEnd {
        let mut prefixes = settings.subscribers.clone();
        prefixes.sort_unstable();
        let mut subscribers: Vec<(u128, u128)> = Vec::with_capacity(prefixes.len());
        for prefix in prefixes {
            // Prefixes are nested or apart, and the wider one comes first.
            if subscribers.last().is_none_or(|(_, last)| *last < prefix.address()) {
                subscribers.push((prefix.address(), prefix.last()));
            }
        }
        SoftwireEnd {
            aftr: settings.aftr.to_bits(),
            aftr_halves: Halves::of(settings.aftr.to_bits()),
            realm: settings.realm,
            inner: settings.inner.clone(),
            link_mtu: edge.map_or(0, |edge| edge.mtu),
            subscribers,
        }
    }
}

pub(crate) enum Taker<'a> {
    Nat64(u8, &'a Nat64Prefix),
    Softwire(u8, &'a SoftwireEnd),
}

#[derive(Clone, Debug)]
pub(crate) struct Transition {
    nat64: Vec<Nat64Prefix>,
    softwires: Vec<SoftwireEnd>,
    /// The edge of each realm.
    realms: Vec<Option<RealmEdge>>,
    /// Natrix's own addresses, in all realms.
    own: Vec<u128>,
    pub(crate) first_hop: NextHopId,
    /// Smallest MTU outside.
    pub(crate) mtu4: u16,
    pub(crate) prefix_length: u8,
    pub(crate) stand_ins: StandIns,
}

impl Transition {
    pub(crate) fn new(settings: &Settings, first_hop: NextHopId) -> Transition {
        let outside = settings.interfaces.iter().filter(|interface| interface.side == Side::Outside);
        let transition = &settings.transition;
        let realms: Vec<_> = (0..settings.realms() as u16).map(|realm| realm_edge(settings, RealmId(realm))).collect();
        let edge_of = |realm: RealmId| realms.get(realm.index()).and_then(Option::as_ref);
        Transition {
            nat64: transition
                .nat64
                .iter()
                .map(|one| Nat64Prefix {
                    prefix: one.prefix,
                    realm: one.realm,
                    lowest_mtu6: one.lowest_mtu6,
                    whole_max: edge_of(one.realm).map_or(0, |edge| edge.mtu.min(one.lowest_mtu6)),
                })
                .collect(),
            softwires: transition.softwires.iter().map(|one| SoftwireEnd::new(one, edge_of(one.realm))).collect(),
            realms,
            own: settings.ipv6.addresses.iter().map(|own| own.address.to_bits()).collect(),
            first_hop: if transition.is_off() { NextHopId(u32::MAX) } else { first_hop },
            mtu4: outside.map(|interface| interface.mtu).min().unwrap_or(1_500),
            prefix_length: transition.prefix_length,
            stand_ins: StandIns::new(&transition.stand_ins),
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.nat64.is_empty() && self.softwires.is_empty()
    }

    pub(crate) const fn has_softwires(&self) -> bool {
        !self.softwires.is_empty()
    }

    /// True if no host can have this address: Natrix or a softwire's end has it.
    pub(crate) fn is_own(&self, address: u128) -> bool {
        self.own.contains(&address) || self.softwires.iter().any(|end| end.aftr == address)
    }

    /// What takes packets from this realm to this destination.
    #[inline]
    pub(crate) fn way_of(&self, realm: RealmId, destination: u128) -> Option<Way> {
        Some(match self.taker_of(realm, Halves::of(destination))? {
            Taker::Nat64(position, _) => Way::Nat64(position),
            Taker::Softwire(position, _) => Way::Softwire(position),
        })
    }

    #[inline(always)]
    pub(crate) fn taker_of(&self, realm: RealmId, destination: Halves) -> Option<Taker<'_>> {
        let prefixes = (0..).zip(&self.nat64);
        let mut ends = (0..).zip(&self.softwires);
        for (position, one) in prefixes {
            if one.realm == realm && one.prefix.contains_halves(destination) {
                return Some(Taker::Nat64(position, one));
            }
        }
        let (position, end) = ends.find(|(_, end)| end.realm == realm && end.aftr_halves == destination)?;
        Some(Taker::Softwire(position, end))
    }

    /// The way to the realm's grants and forwards of IPv6 hosts: the first prefix.
    pub(crate) fn way_of_grants(&self, realm: RealmId) -> Option<Way> {
        let found = self.nat64.iter().position(|one| one.realm == realm);
        found.map(|position| Way::Nat64(position as u8))
    }

    /// Identifies an IPv6 host named in the configuration; `None` for IPv4, and if nothing in the
    /// realm leads to the host.
    pub(crate) fn host_key(&self, realm: RealmId, host: &InsideHost) -> Option<HostKey> {
        match *host {
            InsideHost::Ipv4(_) => None,
            InsideHost::Ipv6(address) => {
                Some(HostKey { address: address.to_bits(), inner: 0, way: self.way_of_grants(realm)? })
            }
            InsideHost::BehindB4 { b4, inner } => {
                let permits = |end: &SoftwireEnd| end.realm == realm && end.permits(inner.to_bits());
                let position = self.softwires.iter().position(permits)?;
                let way = Way::Softwire(position as u8);
                Some(HostKey { address: b4.to_bits(), inner: inner.to_bits(), way })
            }
        }
    }

    /// The configuration's name of a host; `None` if its named hosts reach IPv4 in another way.
    pub(crate) fn configured_host(&self, key: &HostKey) -> Option<InsideHost> {
        let address = Ipv6Addr::from_bits(key.address);
        let host = match key.way {
            Way::Nat64(_) => InsideHost::Ipv6(address),
            Way::Softwire(_) => InsideHost::BehindB4 { b4: address, inner: Ipv4Addr::from_bits(key.inner) },
        };
        (self.host_key(self.realm_of(key.way), &host)? == *key).then_some(host)
    }

    #[inline]
    pub(crate) fn prefix(&self, position: u8) -> Option<translate::Prefix> {
        self.nat64(position).map(|one| one.prefix)
    }

    #[inline]
    pub(crate) fn nat64(&self, position: u8) -> Option<&Nat64Prefix> {
        self.nat64.get(usize::from(position))
    }

    pub(crate) fn softwire(&self, position: u8) -> Option<&SoftwireEnd> {
        self.softwires.get(usize::from(position))
    }

    #[inline]
    pub(crate) fn realm(&self, realm: RealmId) -> Option<&RealmEdge> {
        self.realms.get(realm.index())?.as_ref()
    }

    pub(crate) fn realm_of(&self, way: Way) -> RealmId {
        let realm = match way {
            Way::Nat64(position) => self.nat64(position).map(|one| one.realm),
            Way::Softwire(position) => self.softwire(position).map(|end| end.realm),
        };
        realm.unwrap_or_default()
    }
}

fn realm_edge(settings: &Settings, realm: RealmId) -> Option<RealmEdge> {
    let is_used = settings.transition.nat64.iter().any(|one| one.realm == realm)
        || settings.transition.softwires.iter().any(|one| one.realm == realm);
    let of_realm = |interface: &Interface| interface.side == Side::Inside && interface.realm == realm;
    let interfaces = || (0..).map(InterfaceId).zip(&settings.interfaces).filter(|(_, interface)| of_realm(interface));
    let own_of = |id: InterfaceId| settings.ipv6.addresses.iter().find(|own| own.interface == id);
    let with_ipv6 = || interfaces().filter_map(|(id, interface)| Some((id, interface, own_of(id)?)));
    let (interface, _, own) = with_ipv6().next().filter(|_| is_used)?;
    let mtu = with_ipv6().map(|(_, interface, _)| interface.mtu).min().unwrap_or(1_500);
    Some(RealmEdge { interface, own: own.address.to_bits(), mtu })
}
