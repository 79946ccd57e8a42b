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
    /// Takes a message in. False: it is not about a next hop.
    pub fn take_in(&mut self, message: &[u8]) -> bool {
        let kind = half(message, 4);
        match read(message) {
            Some((id, _)) if kind == DELETED_NEXT_HOP => drop(self.all.remove(&id)),
            Some((id, object)) if kind == NEW_NEXT_HOP => drop(self.all.insert(id, object)),
            _ => {}
        }
        matches!(kind, NEW_NEXT_HOP | DELETED_NEXT_HOP)
    }

    /// The known objects that will lead elsewhere once this message is taken in: the one that it is
    /// about, and groups with it. The kernel reports no route whose next hop goes or changes that
    /// way.
    pub fn changed_by(&self, message: &[u8]) -> Vec<u32> {
        let kind = half(message, 4);
        let about = matches!(kind, NEW_NEXT_HOP | DELETED_NEXT_HOP).then(|| read(message)).flatten();
        let Some((changed, object)) = about else { return Vec::new() };
        match self.all.get(&changed) {
            Some(before) if kind == DELETED_NEXT_HOP || *before != object => {}
            _ => return Vec::new(),
        }
        let has = |object: &Object| match object {
            Object::Group(members) => members.iter().any(|(id, _)| *id == changed),
            Object::Single { .. } | Object::Useless => false,
        };
        let groups = self.all.iter().filter(|(_, object)| has(object)).map(|(id, _)| *id);
        core::iter::once(changed).chain(groups).collect()
    }

    /// Whether an object, or a member of it, cannot be taken by any packet. The kernel may report
    /// routes that name it as others that drop packets.
    pub fn is_useless(&self, id: u32) -> bool {
        let is_useless = |id: &u32| self.all.get(id) == Some(&Object::Useless);
        match self.all.get(&id) {
            Some(Object::Group(members)) => members.iter().any(|(id, _)| is_useless(id)),
            _ => is_useless(&id),
        }
    }

    /// Whether an object is known.
    pub fn has(&self, id: u32) -> bool {
        self.all.contains_key(&id)
    }

    /// The next hops of an object that packets of a family can take. A group has no groups.
    pub fn hops_of<P: Family>(&self, id: u32) -> Vec<KernelHop<P::Address>> {
        let single = |id: u32, weight: u16| match self.all.get(&id)? {
            Object::Single { device, gateway } => {
                // The station of a router of the other family (RFC 8950) is not asked for here.
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
        let changes = |objects: &mut NextHopObjects, message: &[u8]| {
            let mut changed = objects.changed_by(message);
            changed.sort_unstable();
            assert!(objects.take_in(message));
            changed
        };
        let none: [u32; 0] = [];
        assert_eq!(changes(&mut objects, &router(6, 3, &[192, 0, 2, 1])), none, "no route has a new one");
        assert_eq!(changes(&mut objects, &router(7, 4, &[192, 0, 2, 2])), none);
        assert_eq!(changes(&mut objects, &group(8, &[(6, 0, 0), (7, 2, 0), (9, 0, 1)])), none);
        let hops = |objects: &NextHopObjects, id| objects.hops_of::<Prefix>(id);
        assert_eq!(hops(&objects, 6), [(3, 0xc000_0201, 1)]);
        assert_eq!(hops(&objects, 8), [(3, 0xc000_0201, 1), (4, 0xc000_0202, 3)], "member 9 is not known");
        assert!(objects.hops_of::<Prefix6>(6).is_empty(), "a router of the other family");
        let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
        objects.take_in(&router(9, 5, &link_local.octets()));
        assert_eq!(objects.hops_of::<Prefix6>(9), [(5, link_local.to_bits(), 1)]);
        assert_eq!(objects.hops_of::<Prefix6>(8), [(5, link_local.to_bits(), 257)], "weights of two bytes");
        assert_eq!(changes(&mut objects, &router(6, 3, &[192, 0, 2, 1])), none, "as it was");
        assert_eq!(changes(&mut objects, &router(6, 3, &[192, 0, 2, 9])), [6, 8], "in its place");
        assert_eq!(hops(&objects, 8)[0], (3, 0xc000_0209, 1), "the group follows");
        let gone = message(DELETED_NEXT_HOP, 0, &[(ID, &6_u32.to_ne_bytes())]);
        assert_eq!(changes(&mut objects, &gone), [6, 8]);
        assert_eq!(changes(&mut objects, &gone), none, "it was gone");
        assert!(!objects.has(6) && hops(&objects, 6).is_empty() && hops(&objects, 8).len() == 1);
        assert!(!objects.take_in(&message(16, 0, &[])), "a link");
        assert!(objects.changed_by(&router(7, 3, &[192, 0, 2, 1])).len() == 2 && !objects.is_useless(8));
        objects.take_in(&message(NEW_NEXT_HOP, 1, &[(ID, &7_u32.to_ne_bytes())]));
        assert!(objects.is_useless(7) && objects.is_useless(8) && !objects.is_useless(9), "a member is dead");
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
        fn any_bytes_parse_as_an_object_or_are_ignored(bytes in vec(any::<u8>(), 0..120), kind in 104_u16..106) {
            let mut bytes = bytes;
            if let Some(place) = bytes.get_mut(4..6) {
                place.copy_from_slice(&kind.to_ne_bytes());
            }
            let mut objects = NextHopObjects::default();
            let _ = objects.changed_by(&bytes);
            let _ = objects.take_in(&bytes);
            for id in objects.all.keys() {
                prop_assert!(objects.hops_of::<Prefix>(*id).len() <= 1);
            }
        }
    }
}
