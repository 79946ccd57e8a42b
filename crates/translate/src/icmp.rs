//! The tables of ICMP types, codes, pointers and MTUs (RFC 7915 §4.2 and §5.2).

use wire::icmp as icmp4;
use wire::icmp6;
use wire::ipv6::MTU_MIN;

use crate::Limits;
use crate::reason::Reason;

/// Sizes of links in use (RFC 1191 §7.1), for routers that do not say which MTU they have.
pub const PLATEAUS: [u16; 11] = [65_535, 32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 508, 296, 68];

/// Type, code, and MTU or pointer of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Type.
    pub icmp_type: u8,
    /// Code.
    pub code: u8,
    /// The next-hop MTU of a "too big", the pointer of a parameter problem, otherwise 0.
    pub parameter: u32,
}

const fn plain(icmp_type: u8, code: u8) -> Result<Meaning, Reason> {
    Ok(Meaning { icmp_type, code, parameter: 0 })
}

/// What an ICMPv4 error means in IPv6. `quoted_length` is the total length of the quoted packet.
///
/// # Errors
/// Names the field that has no meaning there.
pub fn error_to_6(error: Meaning, quoted_length: u16, limits: &Limits) -> Result<Meaning, Reason> {
    const UNREACHABLE: u8 = icmp6::TYPE_DESTINATION_UNREACHABLE;
    match (error.icmp_type, error.code) {
        (icmp4::TYPE_DESTINATION_UNREACHABLE, code) => match code {
            0 | 1 | 5..=8 | 11 | 12 => plain(UNREACHABLE, icmp6::CODE_NO_ROUTE),
            // Protocol unreachable: the Next Header field is at offset 6.
            2 => Ok(Meaning {
                icmp_type: icmp6::TYPE_PARAMETER_PROBLEM,
                code: icmp6::CODE_UNKNOWN_NEXT_HEADER,
                parameter: 6,
            }),
            3 => plain(UNREACHABLE, icmp6::CODE_PORT_UNREACHABLE),
            4 => {
                let parameter = mtu_to_6(error.parameter, quoted_length, limits);
                Ok(Meaning { icmp_type: icmp6::TYPE_PACKET_TOO_BIG, code: 0, parameter })
            }
            9 | 10 | 13 | 15 => plain(UNREACHABLE, icmp6::CODE_PROHIBITED),
            _ => Err(Reason::IcmpCode),
        },
        (icmp4::TYPE_TIME_EXCEEDED, code @ 0..=1) => plain(icmp6::TYPE_TIME_EXCEEDED, code),
        (icmp4::TYPE_PARAMETER_PROBLEM, 0 | 2) => {
            let parameter = pointer_to_6(error.parameter).ok_or(Reason::IcmpPointer)?;
            Ok(Meaning { icmp_type: icmp6::TYPE_PARAMETER_PROBLEM, code: icmp6::CODE_ERRONEOUS_FIELD, parameter })
        }
        (icmp4::TYPE_TIME_EXCEEDED | icmp4::TYPE_PARAMETER_PROBLEM, _) => Err(Reason::IcmpCode),
        _ => Err(Reason::IcmpType),
    }
}

/// What an ICMPv6 error means in IPv4. `has_fragment_header` is true if the quoted packet has one.
///
/// # Errors
/// Names the field that has no meaning there.
pub fn error_to_4(error: Meaning, has_fragment_header: bool, limits: &Limits) -> Result<Meaning, Reason> {
    const UNREACHABLE: u8 = icmp4::TYPE_DESTINATION_UNREACHABLE;
    match (error.icmp_type, error.code) {
        (icmp6::TYPE_DESTINATION_UNREACHABLE, code) => match code {
            0 | 2 | 3 => plain(UNREACHABLE, icmp4::CODE_HOST_UNREACHABLE),
            // Communication with the host is prohibited.
            1 => plain(UNREACHABLE, 10),
            4 => plain(UNREACHABLE, icmp4::CODE_PORT_UNREACHABLE),
            _ => Err(Reason::IcmpCode),
        },
        // RFC 4443 §3.2: the code is ignored.
        (icmp6::TYPE_PACKET_TOO_BIG, _) => {
            let parameter = mtu_to_4(error.parameter, has_fragment_header, limits)?;
            Ok(Meaning { icmp_type: UNREACHABLE, code: icmp4::CODE_FRAGMENTATION_NEEDED, parameter })
        }
        (icmp6::TYPE_TIME_EXCEEDED, code @ 0..=1) => plain(icmp4::TYPE_TIME_EXCEEDED, code),
        (icmp6::TYPE_PARAMETER_PROBLEM, icmp6::CODE_ERRONEOUS_FIELD) => {
            let parameter = pointer_to_4(error.parameter).ok_or(Reason::IcmpPointer)?;
            Ok(Meaning { icmp_type: icmp4::TYPE_PARAMETER_PROBLEM, code: 0, parameter })
        }
        (icmp6::TYPE_PARAMETER_PROBLEM, icmp6::CODE_UNKNOWN_NEXT_HEADER) => {
            plain(UNREACHABLE, icmp4::CODE_PROTOCOL_UNREACHABLE)
        }
        (icmp6::TYPE_TIME_EXCEEDED | icmp6::TYPE_PARAMETER_PROBLEM, _) => Err(Reason::IcmpCode),
        _ => Err(Reason::IcmpType),
    }
}

/// The type of an echo in IPv6.
#[inline]
#[must_use]
pub const fn echo_to_6(icmp_type: u8) -> Option<u8> {
    match icmp_type {
        icmp4::TYPE_ECHO_REQUEST => Some(icmp6::TYPE_ECHO_REQUEST),
        icmp4::TYPE_ECHO_REPLY => Some(icmp6::TYPE_ECHO_REPLY),
        _ => None,
    }
}

/// The type of an echo in IPv4.
#[inline]
#[must_use]
pub const fn echo_to_4(icmp_type: u8) -> Option<u8> {
    match icmp_type {
        icmp6::TYPE_ECHO_REQUEST => Some(icmp4::TYPE_ECHO_REQUEST),
        icmp6::TYPE_ECHO_REPLY => Some(icmp4::TYPE_ECHO_REPLY),
        _ => None,
    }
}

/// RFC 7915 §4.2. An MTU of 0 comes from a router older than RFC 1191: the next smaller plateau is
/// the MTU of its IPv4 link, to which the difference of the headers is added as to any other. The
/// result is never below 1,280, so that no sender is asked for atomic fragments (RFC 8021).
fn mtu_to_6(mtu: u32, quoted_length: u16, limits: &Limits) -> u32 {
    let mtu = if mtu == 0 { plateau_below(quoted_length) } else { mtu };
    let links = u32::from(limits.mtu6).min(u32::from(limits.mtu4) + 20);
    (mtu + 20).min(links).max(u32::from(MTU_MIN))
}

fn plateau_below(length: u16) -> u32 {
    let [.., smallest] = PLATEAUS;
    PLATEAUS.into_iter().find(|plateau| *plateau < length).unwrap_or(smallest).into()
}

/// RFC 7915 §5.2.
fn mtu_to_4(mtu: u32, has_fragment_header: bool, limits: &Limits) -> Result<u32, Reason> {
    if mtu < u32::from(MTU_MIN) {
        return Err(Reason::PacketTooBigSmall);
    }
    let difference = if has_fragment_header { 28 } else { 20 };
    let links = u32::from(limits.mtu4).min(u32::from(limits.mtu6).saturating_sub(20));
    Ok((mtu - difference).min(links))
}

/// RFC 7915 figure 3: the offset of the same field in the IPv6 header.
const fn pointer_to_6(pointer: u32) -> Option<u32> {
    match pointer {
        0 | 1 => Some(pointer),
        2 | 3 => Some(4),
        8 => Some(7),
        9 => Some(6),
        12..=15 => Some(8),
        16..=19 => Some(24),
        _ => None,
    }
}

/// RFC 7915 figure 6: the offset of the same field in the IPv4 header.
const fn pointer_to_4(pointer: u32) -> Option<u32> {
    match pointer {
        0 | 1 => Some(pointer),
        4 | 5 => Some(2),
        6 => Some(9),
        7 => Some(8),
        8..=23 => Some(12),
        24..=39 => Some(16),
        _ => None,
    }
}
