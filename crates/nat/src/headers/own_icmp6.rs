//! ICMPv6 messages that Natrix originates (RFC 4443).

use wire::field;
use wire::icmp6;
use wire::icmp6::Icmp6;
use wire::ipv6;
use wire::ipv6::Ipv6;

const HOP_LIMIT: u8 = 64;
/// Longest error (RFC 4443 §2.4 (c)).
pub const ERROR_MAX: usize = ipv6::MTU_MIN as usize;
const HEADERS_LENGTH: usize = ipv6::HEADER_LENGTH + icmp6::HEADER_LENGTH;

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Type.
    pub icmp_type: u8,
    /// Code.
    pub code: u8,
    /// MTU or pointer, or 0.
    pub parameter: u32,
}

impl Problem {
    /// The hop limit has run out.
    pub const HOP_LIMIT: Problem =
        Problem { icmp_type: icmp6::TYPE_TIME_EXCEEDED, code: icmp6::CODE_HOP_LIMIT_EXCEEDED, parameter: 0 };
    /// There is no route.
    pub const NO_ROUTE: Problem =
        Problem { icmp_type: icmp6::TYPE_DESTINATION_UNREACHABLE, code: icmp6::CODE_NO_ROUTE, parameter: 0 };
    /// There is no room for the sender.
    pub const NO_RESOURCES: Problem =
        Problem { icmp_type: icmp6::TYPE_DESTINATION_UNREACHABLE, code: icmp6::CODE_ADDRESS_UNREACHABLE, parameter: 0 };
    /// The neighbour does not answer (RFC 4861 §7.2.2).
    pub const ADDRESS_UNREACHABLE: Problem =
        Problem { icmp_type: icmp6::TYPE_DESTINATION_UNREACHABLE, code: icmp6::CODE_ADDRESS_UNREACHABLE, parameter: 0 };
    /// There is a route, but Natrix does not forward.
    pub const PROHIBITED: Problem =
        Problem { icmp_type: icmp6::TYPE_DESTINATION_UNREACHABLE, code: icmp6::CODE_PROHIBITED, parameter: 0 };
}

/// True if an error may be sent (RFC 4443 §2.4 (e)): not about an error or redirect, to a group, or
/// from no single host. The caller excludes link-layer groups.
#[must_use]
pub fn may_answer(packet: &[u8]) -> bool {
    let view = Ipv6::new_unchecked(packet);
    if view.source() == 0 || ipv6::is_multicast(view.source()) || ipv6::is_multicast(view.destination()) {
        return false;
    }
    let Ok(chain) = ipv6::chain_to_transport(view.packet()) else { return false };
    if chain.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return false;
    }
    if chain.protocol != ipv6::PROTOCOL_ICMP6 {
        return true;
    }
    match packet.get(chain.offset) {
        Some(icmp_type) => !icmp6::is_error(*icmp_type) && *icmp_type != icmp6::TYPE_REDIRECT,
        None => false,
    }
}

/// True for an ICMPv6 message.
#[must_use]
pub fn is_icmp6(packet: &[u8]) -> bool {
    let chain = ipv6::chain_to_transport(Ipv6::new_unchecked(packet).packet());
    chain.is_ok_and(|chain| chain.protocol == ipv6::PROTOCOL_ICMP6)
}

/// Writes an error about `offending`, a packet without padding, and returns its length. First ask
/// [`may_answer`].
#[must_use]
pub fn write_error(out: &mut [u8; ERROR_MAX], problem: Problem, source: u128, offending: &[u8]) -> usize {
    let destination = Ipv6::new_unchecked(offending).source();
    let quoted = offending.len().min(ERROR_MAX - HEADERS_LENGTH);
    let length = HEADERS_LENGTH + quoted;
    write_header(out, length, source, destination);
    let message = out.get_mut(ipv6::HEADER_LENGTH..length).unwrap_or_default();
    field::set_u32(message, 0, 0);
    if let (Some(to), Some(from)) = (message.get_mut(icmp6::HEADER_LENGTH..), offending.get(..quoted)) {
        to.copy_from_slice(from);
    }
    let mut icmp = Icmp6::new_unchecked(message);
    icmp.set_type_and_code(problem.icmp_type, problem.code);
    icmp.set_parameter(problem.parameter);
    icmp.fill_checksum(source, destination);
    length
}

/// Turns an echo request without extension headers into its reply (RFC 4443 §4.2).
pub fn echo(packet: &mut [u8]) {
    let view = Ipv6::new_unchecked(&*packet);
    let (source, destination, length) = (view.destination(), view.source(), view.length());
    let class = view.traffic_class();
    write_header(packet, length, source, destination);
    Ipv6::new_unchecked(&mut *packet).set_class_and_label(class, 0);
    let message = packet.get_mut(ipv6::HEADER_LENGTH..length).unwrap_or_default();
    let mut icmp = Icmp6::new_unchecked(message);
    icmp.set_type_and_code(icmp6::TYPE_ECHO_REPLY, 0);
    icmp.fill_checksum(source, destination);
}

fn write_header(out: &mut [u8], length: usize, source: u128, destination: u128) {
    let mut ip = Ipv6::new_unchecked(out);
    ip.set_class_and_label(0, 0);
    ip.set_payload_length((length - ipv6::HEADER_LENGTH) as u16);
    ip.set_next_header(ipv6::PROTOCOL_ICMP6);
    ip.set_hop_limit(HOP_LIMIT);
    ip.set_source(source);
    ip.set_destination(destination);
}
