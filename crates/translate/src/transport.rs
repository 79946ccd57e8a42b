//! Ports, identifiers and checksums of the transport header.

use wire::checksum::Delta;
use wire::checksum::Sum;
use wire::checksum::pseudo_header6;
use wire::field;
use wire::icmp as icmp4;
use wire::ipv4;
use wire::ipv6;
use wire::tcp;
use wire::udp;

use crate::Tuple;
use crate::headers::Headers;
use crate::headers::Kind;

/// An address that takes part in a checksum.
pub(crate) trait Address: Copy {
    /// Adds it to a sum.
    fn add_to(self, sum: Sum) -> Sum;
    /// The pseudo-header of ICMP: nothing in IPv4, addresses, length and protocol in IPv6.
    fn icmp_pseudo_header(source: Self, destination: Self, length: usize) -> Sum;
    /// The echo of this family with the type of the other family.
    fn echo_from_other(icmp_type: u8) -> Option<u8>;
}

impl Address for u32 {
    #[inline]
    fn add_to(self, sum: Sum) -> Sum {
        sum.add_u32(self)
    }

    #[inline]
    fn icmp_pseudo_header(_: u32, _: u32, _: usize) -> Sum {
        Sum::ZERO
    }

    #[inline]
    fn echo_from_other(icmp_type: u8) -> Option<u8> {
        crate::icmp::echo_to_4(icmp_type)
    }
}

impl Address for u128 {
    #[inline]
    fn add_to(self, sum: Sum) -> Sum {
        sum.add_u128(self)
    }

    #[inline]
    fn icmp_pseudo_header(source: u128, destination: u128, length: usize) -> Sum {
        pseudo_header6(source, destination, ipv6::PROTOCOL_ICMP6, length as u32)
    }

    #[inline]
    fn echo_from_other(icmp_type: u8) -> Option<u8> {
        crate::icmp::echo_to_6(icmp_type)
    }
}

/// Rewrites the transport header of a packet of the family `A` for the family `B`. `transport` is
/// as much of it as there is. Checksums are updated (RFC 1624) and not computed anew, so that a
/// damaged packet stays damaged. The pseudo-headers of both families differ in the addresses only,
/// except for ICMP.
#[inline]
pub(crate) fn rewrite<A: Address, B: Address>(transport: &mut [u8], old: &Headers<A>, new: &Tuple<B>) {
    let ports = new.ports.unwrap_or(old.ports);
    match old.kind {
        Kind::Tcp | Kind::Udp => {
            let before = old.destination.add_to(old.source.add_to(Sum::ZERO)).add_u16(old.ports.0).add_u16(old.ports.1);
            let after = new.destination.add_to(new.source.add_to(Sum::ZERO)).add_u16(ports.0).add_u16(ports.1);
            let delta = Delta::of_u16(before.fold(), after.fold());
            field::set_u16(transport, udp::SOURCE_PORT_OFFSET, ports.0);
            field::set_u16(transport, udp::DESTINATION_PORT_OFFSET, ports.1);
            if old.kind == Kind::Tcp {
                let checksum = delta.apply(field::u16_at(transport, tcp::CHECKSUM_OFFSET));
                field::set_u16(transport, tcp::CHECKSUM_OFFSET, checksum);
            } else {
                let checksum = delta.apply_udp(field::u16_at(transport, udp::CHECKSUM_OFFSET));
                field::set_u16(transport, udp::CHECKSUM_OFFSET, checksum);
            }
        }
        Kind::Echo => {
            let length = old.transport_length();
            let icmp_type = field::u8_at(transport, icmp4::TYPE_OFFSET);
            let Some(new_type) = B::echo_from_other(icmp_type) else { return };
            let code = field::u8_at(transport, icmp4::CODE_OFFSET);
            let word = |icmp_type| u16::from_be_bytes([icmp_type, code]);
            let before = A::icmp_pseudo_header(old.source, old.destination, length);
            let before = before.add_u16(word(icmp_type)).add_u16(old.ports.0);
            let after = B::icmp_pseudo_header(new.source, new.destination, length);
            let after = after.add_u16(word(new_type)).add_u16(ports.0);
            field::set_u8(transport, icmp4::TYPE_OFFSET, new_type);
            field::set_u16(transport, icmp4::IDENTIFIER_OFFSET, ports.0);
            let delta = Delta::of_u16(before.fold(), after.fold());
            let checksum = delta.apply_icmp(field::u16_at(transport, icmp4::CHECKSUM_OFFSET), transport);
            field::set_u16(transport, icmp4::CHECKSUM_OFFSET, checksum);
        }
        Kind::Error | Kind::LaterFragment | Kind::Other => {}
    }
}

/// Computes the checksum of a whole UDP datagram for IPv6. Its length was checked.
pub(crate) fn fill_udp6(datagram: &mut [u8], source: u128, destination: u128) {
    field::set_u16(datagram, udp::CHECKSUM_OFFSET, 0);
    let length = field::u16_at(datagram, udp::LENGTH_OFFSET);
    let bytes = datagram.get(..usize::from(length)).unwrap_or(&[]);
    let sum = pseudo_header6(source, destination, ipv4::PROTOCOL_UDP, length.into()).add_bytes(bytes);
    field::set_u16(datagram, udp::CHECKSUM_OFFSET, sum.udp_checksum());
}
