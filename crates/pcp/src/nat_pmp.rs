//! NAT-PMP (RFC 6886).

use crate::be16;
use crate::be32;

const RESPONSE: u8 = 1 << 7;

/// Result codes (RFC 6886 §3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Code {
    /// Done.
    Success = 0,
    /// The version is not 0.
    UnsupportedVersion = 1,
    /// Refused.
    NotAuthorized = 2,
    /// There is no external address at the moment.
    NetworkFailure = 3,
    /// No resources.
    OutOfResources = 4,
    /// Unknown opcode.
    UnsupportedOpcode = 5,
}

impl Code {
    /// All codes, by number.
    pub const ALL: [Code; 6] = [
        Code::Success,
        Code::UnsupportedVersion,
        Code::NotAuthorized,
        Code::NetworkFailure,
        Code::OutOfResources,
        Code::UnsupportedOpcode,
    ];

    /// The stable name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Success => "success",
            Code::UnsupportedVersion => "unsupp_version",
            Code::NotAuthorized => "not_authorized",
            Code::NetworkFailure => "network_failure",
            Code::OutOfResources => "out_of_resources",
            Code::UnsupportedOpcode => "unsupp_opcode",
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The external address.
    Address,
    /// A mapping.
    Map {
        /// TCP, else UDP.
        is_tcp: bool,
        /// 0 with lifetime 0: all of the protocol.
        internal_port: u16,
        /// Suggested external port; 0 for any.
        external_port: u16,
        /// Seconds; 0 deletes.
        lifetime: u32,
    },
}

/// Why a datagram is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Send no answer.
    Ignored,
    /// Answer with this error.
    Error(Code),
}

/// Parses a datagram, whatever its version.
///
/// # Errors
/// It is no request, or is refused.
pub fn parse(datagram: &[u8]) -> Result<Request, Refused> {
    let [version, opcode, ..] = *datagram else { return Err(Refused::Ignored) };
    if opcode & RESPONSE != 0 {
        return Err(Refused::Ignored);
    }
    if version != 0 {
        return Err(Refused::Error(Code::UnsupportedVersion));
    }
    match opcode {
        0 => Ok(Request::Address),
        1 | 2 if datagram.len() >= 12 => Ok(Request::Map {
            is_tcp: opcode == 2,
            internal_port: be16(datagram, 4),
            external_port: be16(datagram, 6),
            lifetime: be32(datagram, 8),
        }),
        // Too short to answer.
        1 | 2 => Err(Refused::Ignored),
        _ => Err(Refused::Error(Code::UnsupportedOpcode)),
    }
}

fn head(opcode: u8, code: Code, epoch: u32) -> [u8; 8] {
    let [high, low] = (code as u16).to_be_bytes();
    let [a, b, c, d] = epoch.to_be_bytes();
    [0, opcode | RESPONSE, high, low, a, b, c, d]
}

/// The reply to a request for the address, and the notice of a new one. The address is zero after a
/// failure.
pub fn address(code: Code, epoch: u32, address: u32) -> [u8; 12] {
    let [a, b, c, d, e, f, g, h] = head(0, code, epoch);
    let [i, j, k, l] = address.to_be_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

/// The reply to a request for a mapping.
pub fn map(code: Code, epoch: u32, is_tcp: bool, (internal, external): (u16, u16), lifetime: u32) -> [u8; 16] {
    let mut reply = [0; 16];
    crate::put(&mut reply, 0, &head(1 + u8::from(is_tcp), code, epoch));
    crate::put(&mut reply, 8, &internal.to_be_bytes());
    crate::put(&mut reply, 10, &external.to_be_bytes());
    crate::put(&mut reply, 12, &lifetime.to_be_bytes());
    reply
}

/// The reply to another version: opcode 0, without the response bit.
pub fn other_version(epoch: u32) -> [u8; 8] {
    let mut reply = head(0, Code::UnsupportedVersion, epoch);
    crate::put(&mut reply, 1, &[0]);
    reply
}

/// The shortest reply that has a result code.
pub const REPLY_MIN: usize = 4;

/// Writes the reply to an unknown opcode: the whole request, with the response bit and the code
/// (RFC 6886 §3.5). A request that is too short for the code is continued by zeros to
/// [`REPLY_MIN`].
pub fn unknown_opcode(datagram: &mut [u8]) {
    let opcode = datagram.get(1).copied().unwrap_or(0);
    let [high, low] = (Code::UnsupportedOpcode as u16).to_be_bytes();
    crate::put(datagram, 1, &[opcode | RESPONSE]);
    crate::put(datagram, 2, &[high, low]);
}
