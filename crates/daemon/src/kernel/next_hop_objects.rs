//! Next hops that the kernel keeps as objects of their own (`ip nexthop`), which routes only name.
//!
//! FRR from 8 on makes them. The kernel repeats the next hops in each route only while
//! `net.ipv4.nexthop_compat_mode` is 1.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::HashMap;

use crate::kernel::netlink::DELETED_NEXT_HOP;
use crate::kernel::netlink::HEADER;
use crate::kernel::netlink::HOP_IS_DEAD;
use crate::kernel::netlink::KernelHop;
use crate::kernel::netlink::NEW_NEXT_HOP;
use crate::kernel::netlink::attributes;
use crate::kernel::netlink::half;
use crate::kernel::netlink::word;
use crate::routing::family::Family;

/// Length of `struct nhmsg`: family, scope, protocol, reserved, flags (`linux/nexthop.h`).
const FIXED: usize = 8;
/// Attributes of an object.
const ID: u16 = 1;
const GROUP: u16 = 2;
const DEVICE: u16 = 5;
const GATEWAY: u16 = 6;
const TUNNEL_TYPE: u16 = 7;
const TUNNEL: u16 = 8;
const FDB: u16 = 11;

/// A next hop of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Object {
    /// A device, and a router or none.
    Single { device: u32, gateway: Option<IpAddr> },
    /// Others, with their weights.
    Group(Vec<(u32, u16)>),
    /// No packet can take it: it is dead, drops packets, leads into a tunnel, or belongs to the
    /// forwarding table of a bridge.
    Useless,
}

/// All of them, by their numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NextHopObjects {
    all: HashMap<u32, Object>,
}

impl NextHopObjects {
    /// Takes a message in. None: it is not about a next hop. True: routes may have others now. The
    /// kernel reports no route whose next hop goes or changes that way.
    pub fn take_in(&mut self, message: &[u8]) -> Option<bool> {
        let kind = half(message, 4);
        if !matches!(kind, NEW_NEXT_HOP | DELETED_NEXT_HOP) {
            return None;
        }
        let Some((id, object)) = read(message) else { return Some(false) };
        if kind == DELETED_NEXT_HOP {
            return Some(self.all.remove(&id).is_some());
        }
        let before = self.all.insert(id, object.clone());
        Some(before.is_some_and(|before| before != object))
    }

    /// Whether an object is known.
    pub fn has(&self, id: u32) -> bool {
        self.all.contains_key(&id)
    }

    /// The next hops of an object that packets of a family can take. A group has no groups.
    pub fn hops_of<P: Family>(&self, id: u32) -> Vec<KernelHop<P::Address>> {
        let single = |id: u32, weight: u16| match self.all.get(&id)? {
            Object::Single { device, gateway } => {
                // Nobody here asks for the station of a router of the other family (RFC 8950).
                let gateway = gateway.map_or(Some(P::Address::default()), address_of::<P>)?;
                Some((*device, gateway, weight))
            }
            Object::Group(_) | Object::Useless => None,
        };
        match self.all.get(&id) {
            Some(Object::Group(members)) => members.iter().filter_map(|&(id, weight)| single(id, weight)).collect(),
            _ => single(id, 1).into_iter().collect(),
        }
    }
}

/// The address, if it is one of this family.
fn address_of<P: Family>(address: IpAddr) -> Option<P::Address> {
    let (number, length) = match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    (length == P::LENGTH_MAX).then(|| P::address_of(number))
}

/// Number and content of the object in a message.
fn read(message: &[u8]) -> Option<(u32, Object)> {
    let flags = word(message, HEADER + 4);
    let (mut id, mut device, mut gateway, mut members) = (None, None, None, None);
    let mut is_plain = flags & u32::from(HOP_IS_DEAD) == 0;
    for (kind, value) in attributes(message.get(HEADER + FIXED..)?) {
        match (kind, value.len()) {
            (ID, 4) => id = Some(word(value, 0)),
            (DEVICE, 4) => device = Some(word(value, 0)),
            (GATEWAY, 4) => gateway = value.first_chunk().map(|bytes| Ipv4Addr::from_octets(*bytes).into()),
            (GATEWAY, 16) => gateway = value.first_chunk().map(|bytes| Ipv6Addr::from_octets(*bytes).into()),
            (GROUP, _) => members = Some(value.chunks_exact(8).map(member).collect()),
            (TUNNEL_TYPE | TUNNEL | FDB, _) => is_plain = false,
            _ => {}
        }
    }
    let object = match (is_plain, members, device) {
        (true, Some(members), _) => Object::Group(members),
        (true, None, Some(device)) => Object::Single { device, gateway },
        _ => Object::Useless,
    };
    Some((id?, object))
}

/// Number and weight in a `struct nexthop_grp`. The kernel's weights begin at 0, and have a high
/// byte since 6.12.
fn member(bytes: &[u8]) -> (u32, u16) {
    let weight = bytes.get(4..6).and_then(<[u8]>::first_chunk).map_or(0, |low| u16::from_le_bytes(*low));
    (word(bytes, 0), weight.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use nat::stand_in::Prefix6;
    use nat::types::Prefix;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn message(kind: u16, flags: u32, given: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 4];
        bytes.extend_from_slice(&flags.to_ne_bytes());
        for (attribute, value) in given {
            bytes.extend_from_slice(&(value.len() as u16 + 4).to_ne_bytes());
            bytes.extend_from_slice(&attribute.to_ne_bytes());
            bytes.extend_from_slice(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    }

    fn router(id: u32, device: u32, gateway: &[u8]) -> Vec<u8> {
        let (id, device) = (id.to_ne_bytes(), device.to_ne_bytes());
        message(NEW_NEXT_HOP, 0, &[(ID, &id), (DEVICE, &device), (GATEWAY, gateway)])
    }

    fn group(id: u32, members: &[(u32, u8, u8)]) -> Vec<u8> {
        let member = |&(id, low, high): &(u32, u8, u8)| [&id.to_ne_bytes()[..], &[low, high, 0, 0]].concat();
        let members: Vec<u8> = members.iter().flat_map(member).collect();
        message(NEW_NEXT_HOP, 0, &[(ID, &id.to_ne_bytes()), (GROUP, &members)])
    }

    #[test]
    fn objects_and_groups_become_next_hops() {
        let mut objects = NextHopObjects::default();
        assert_eq!(objects.take_in(&router(6, 3, &[192, 0, 2, 1])), Some(false), "no route has a new one");
        assert_eq!(objects.take_in(&router(7, 4, &[192, 0, 2, 2])), Some(false));
        assert_eq!(objects.take_in(&group(8, &[(6, 0, 0), (7, 2, 0), (9, 0, 1)])), Some(false));
        let hops = |objects: &NextHopObjects, id| objects.hops_of::<Prefix>(id);
        assert_eq!(hops(&objects, 6), [(3, 0xc000_0201, 1)]);
        assert_eq!(hops(&objects, 8), [(3, 0xc000_0201, 1), (4, 0xc000_0202, 3)], "member 9 is not known");
        assert!(objects.hops_of::<Prefix6>(6).is_empty(), "a router of the other family");
        let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
        objects.take_in(&router(9, 5, &link_local.octets()));
        assert_eq!(objects.hops_of::<Prefix6>(9), [(5, link_local.to_bits(), 1)]);
        assert_eq!(objects.hops_of::<Prefix6>(8), [(5, link_local.to_bits(), 257)], "weights of two bytes");
        assert_eq!(objects.take_in(&router(6, 3, &[192, 0, 2, 1])), Some(false), "as it was");
        assert_eq!(objects.take_in(&router(6, 3, &[192, 0, 2, 9])), Some(true), "in its place");
        assert_eq!(hops(&objects, 8)[0], (3, 0xc000_0209, 1), "the group follows");
        assert_eq!(objects.take_in(&message(DELETED_NEXT_HOP, 0, &[(ID, &6_u32.to_ne_bytes())])), Some(true));
        assert!(!objects.has(6) && hops(&objects, 6).is_empty() && hops(&objects, 8).len() == 1);
        assert_eq!(objects.take_in(&message(16, 0, &[])), None, "a link");
    }

    #[test]
    fn next_hops_that_no_packet_can_take_are_known_and_empty() {
        let (id, device) = (6_u32.to_ne_bytes(), 3_u32.to_ne_bytes());
        let useless = [
            message(NEW_NEXT_HOP, 0, &[(ID, &id), (4, &[])]),
            message(NEW_NEXT_HOP, 0, &[(ID, &id), (GATEWAY, &[192, 0, 2, 1]), (FDB, &[])]),
            message(NEW_NEXT_HOP, 0, &[(ID, &id), (DEVICE, &device), (TUNNEL_TYPE, &[1, 0]), (TUNNEL, &[])]),
            message(NEW_NEXT_HOP, 1, &[(ID, &id), (DEVICE, &device)]),
        ];
        for message in useless {
            let mut objects = NextHopObjects::default();
            objects.take_in(&message);
            assert!(objects.has(6) && objects.hops_of::<Prefix>(6).is_empty(), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_object_or_none(bytes in vec(any::<u8>(), 0..120), kind in 104_u16..106) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(4..6) {
                place.copy_from_slice(&kind.to_ne_bytes());
            }
            let mut objects = NextHopObjects::default();
            let _ = objects.take_in(&bytes);
            for id in objects.all.keys() {
                prop_assert!(objects.hops_of::<Prefix>(*id).len() <= 1);
            }
        }
    }
}
