//! Offloads of the kernel's interfaces, by ethtool's netlink messages (`linux/ethtool_netlink.h`).

use std::collections::BTreeSet;
use std::io;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink;
use crate::netlink::NESTED;
use crate::netlink::attribute;
use crate::netlink::attributes;
use crate::netlink::text;
use crate::netlink::text_of;
use crate::netlink::u16_at;

/// Bytes of the header of a generic message.
const GENERIC_HEADER: usize = 4;
/// The kernel's list of families (`linux/genetlink.h`): its number, the question, the attributes.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// ETHTOOL_MSG_FEATURES_GET and its attributes.
const GET_FEATURES: u8 = 11;
const FEATURES_HEADER: u16 = 1;
const HEADER_DEVICE: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;
/// Attributes of a bit set. With `NO_MASK` it lists the bits that are set; otherwise `BIT_VALUE`
/// says which bits of the list are set.
const NO_MASK: u16 = 1;
const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// Which offloads an interface uses now, by the kernel's names such as `rx-gro`.
pub(crate) fn active(interface: &str) -> io::Result<BTreeSet<String>> {
    let socket = netlink::connect(NETLINK_GENERIC)?;
    let question = attribute(FAMILY_NAME, &text("ethtool"));
    let answer = ask(&socket, CONTROLLER, GET_FAMILY, &question)?;
    let family = attributes(&answer).find(|(kind, _)| *kind == FAMILY_ID).and_then(|(_, value)| u16_at(value, 0));
    let family = family.ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let device = attribute(HEADER_DEVICE, &text(interface));
    let answer = ask(&socket, family, GET_FEATURES, &attribute(FEATURES_HEADER | NESTED, &device))?;
    Ok(set_bits(&answer))
}

/// One question and its answer, without headers.
fn ask(socket: &Socket, family: u16, command: u8, question: &[u8]) -> io::Result<Vec<u8>> {
    // Command, version.
    let answer = netlink::ask(socket, family, &[&[command, 1, 0, 0], question].concat())?;
    Ok(answer.get(GENERIC_HEADER..).unwrap_or_default().to_vec())
}

/// The names of the active features in an answer.
fn set_bits(answer: &[u8]) -> BTreeSet<String> {
    let inside =
        |bytes, wanted: u16| attributes(bytes).filter(move |(kind, _)| *kind == wanted).map(|(_, value)| value);
    let mut names = BTreeSet::new();
    for active in inside(answer, FEATURES_ACTIVE) {
        let are_all_set = inside(active, NO_MASK).next().is_some();
        for bit in inside(active, BITS).flat_map(|bits| inside(bits, BIT)) {
            let name = inside(bit, BIT_NAME).next().and_then(text_of);
            if are_all_set || inside(bit, BIT_VALUE).next().is_some() {
                names.extend(name.map(str::to_owned));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_active_features_of_an_answer_are_named() {
        let bit = |name: &str, is_set: bool| {
            let mut inside = [attribute(1, &[0; 4]), attribute(BIT_NAME, &text(name))].concat();
            if is_set {
                inside.extend(attribute(BIT_VALUE, &[]));
            }
            attribute(BIT | NESTED, &inside)
        };
        let bits = [bit("rx-gro", true), bit("rx-lro", false), bit("tx-checksum-ip-generic", true)].concat();
        let set = |kind: u16, bits: &[u8]| attribute(kind | NESTED, &attribute(BITS | NESTED, bits));
        // What the device could do comes first.
        let answer = [set(2, &bit("rx-lro", true)), set(FEATURES_ACTIVE, &bits)].concat();
        assert_eq!(set_bits(&answer), BTreeSet::from(["rx-gro".to_owned(), "tx-checksum-ip-generic".to_owned()]));
        // Without a mask, as kernels answer, all that are listed are set.
        let no_mask = [attribute(NO_MASK, &[]), attribute(BITS | NESTED, &bit("rx-lro", false))].concat();
        assert_eq!(set_bits(&attribute(FEATURES_ACTIVE | NESTED, &no_mask)), BTreeSet::from(["rx-lro".to_owned()]));
        for end in 0..answer.len() {
            // A cut answer is not read beyond its end.
            set_bits(&answer[..end]);
        }
    }

    #[test]
    fn the_kernel_answers_for_loopback() {
        let active = active("lo").expect("the kernel has ethtool's messages");
        // Loopback always has it (`loopback.c`).
        assert!(active.contains("tx-checksum-ip-generic"), "{active:?}");
        assert!(super::active("no-such-device").is_err());
    }
}
