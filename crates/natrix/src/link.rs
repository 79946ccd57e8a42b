//! What an interface of the kernel is, by rtnetlink (`linux/rtnetlink.h`, `linux/if_link.h`).

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::netlink;
use crate::netlink::attribute;
use crate::netlink::attributes;
use crate::netlink::text;
use crate::netlink::text_of;

/// RTM_GETLINK, and the bytes of its header (`struct ifinfomsg`).
const GET_LINK: u16 = 18;
const INFO: usize = 16;
/// IFLA_IFNAME, IFLA_LINK, IFLA_LINKINFO, IFLA_INFO_KIND in it, and IFLA_LINK_NETNSID.
const NAME: u16 = 3;
const LINK: u16 = 5;
const LINK_INFO: u16 = 18;
const KIND: u16 = 1;
const LINK_NAMESPACE: u16 = 37;

/// Where the other end of a virtual cable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherEnd {
    /// In this namespace, with this index.
    Here(u32),
    /// In another namespace, with this index there.
    Elsewhere(u32),
}

/// The other end of an interface; None if it is no virtual cable (`veth`). A VLAN or a macvlan
/// stands on another interface, which may be in another namespace.
pub(crate) fn other_end(interface: &str) -> io::Result<Option<OtherEnd>> {
    let question = [&[0; INFO][..], &attribute(NAME, &text(interface))].concat();
    let answer = netlink::ask(&netlink::connect(NETLINK_ROUTE)?, GET_LINK, &question)?;
    Ok(other_end_in(answer.get(INFO..).unwrap_or_default()))
}

fn other_end_in(answer: &[u8]) -> Option<OtherEnd> {
    let find = |bytes, wanted: u16| attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let kind = find(answer, LINK_INFO).and_then(|info| find(info, KIND)).and_then(text_of);
    let index = u32::from_ne_bytes(find(answer, LINK)?.try_into().ok()?);
    let is_elsewhere = find(answer, LINK_NAMESPACE).is_some();
    (kind == Some("veth")).then_some(if is_elsewhere { OtherEnd::Elsewhere(index) } else { OtherEnd::Here(index) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::NESTED;

    #[test]
    fn only_a_virtual_cable_has_another_end() {
        let answer = |kind: &str, index: u32, more: &[u8]| {
            let info = attribute(LINK_INFO | NESTED, &attribute(KIND, &text(kind)));
            [attribute(LINK, &index.to_ne_bytes()), info, more.to_vec()].concat()
        };
        let elsewhere = attribute(LINK_NAMESPACE, &0_i32.to_ne_bytes());
        assert_eq!(other_end_in(&answer("veth", 9, &[])), Some(OtherEnd::Here(9)));
        assert_eq!(other_end_in(&answer("veth", 9, &elsewhere)), Some(OtherEnd::Elsewhere(9)));
        assert_eq!(other_end_in(&answer("macvlan", 9, &elsewhere)), None);
        assert_eq!(other_end_in(&attribute(LINK, &9_u32.to_ne_bytes())), None, "a network card");
        for end in 0..answer("veth", 9, &elsewhere).len() {
            // A cut answer is not read beyond its end.
            other_end_in(&answer("veth", 9, &elsewhere)[..end]);
        }
    }

    #[test]
    fn the_kernel_answers_for_loopback() {
        assert_eq!(other_end("lo").expect("rtnetlink"), None);
        assert!(other_end("no-such-device").is_err());
    }
}
