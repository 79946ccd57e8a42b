//! Messages of PCP (RFC 6887, with PREFIX64 of RFC 7225 and PORT_SET of RFC 7753) and NAT-PMP
//! (RFC 6886).
//!
//! Bytes to requests, replies to bytes. Nothing is allocated, kept or decided here. The order of
//! the checks is that of RFC 6887 §8.2: what cannot be a request is ignored, what can is refused
//! with a code.

#![no_std]
#![forbid(unsafe_code)]

pub mod nat_pmp;
mod options;
mod reply;
mod request;

pub use options::Filter;
pub use options::Options;
pub use options::PortSet;
pub use options::parse_options;
pub use reply::Fields;
pub use reply::Reply;
pub use reply::announcement;
pub use reply::error;
pub use reply::map_update;
pub use reply::peer_update;
pub use request::Body;
pub use request::Map;
pub use request::Peer;
pub use request::Refused;
pub use request::Request;
pub use request::parse;

/// Where servers listen.
pub const SERVER_PORT: u16 = 5351;
/// Where clients hear announcements.
pub const CLIENT_PORT: u16 = 5350;
/// The group of announcements.
pub const ALL_CLIENTS: [u8; 4] = [224, 0, 0, 1];
/// The version of PCP.
pub const VERSION: u8 = 2;
/// Longest message.
pub const MESSAGE_MAX: usize = 1_100;
/// A header, of requests and replies.
pub const HEADER: usize = 24;

/// Result codes (RFC 6887 §7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// Done.
    Success = 0,
    /// The version is not 2.
    UnsupportedVersion = 1,
    /// Not this client's to change.
    NotAuthorized = 2,
    /// The request cannot be parsed.
    MalformedRequest = 3,
    /// Unknown opcode.
    UnsupportedOpcode = 4,
    /// An option that must be processed is unknown or off.
    UnsupportedOption = 5,
    /// An option cannot be parsed, or makes no sense.
    MalformedOption = 6,
    /// The server has no address at the moment.
    NetworkFailure = 7,
    /// No resources for anyone.
    NoResources = 8,
    /// The protocol cannot be mapped.
    UnsupportedProtocol = 9,
    /// The subscriber has used up its share.
    UserExceededQuota = 10,
    /// The suggested endpoint is not to be had.
    CannotProvideExternal = 11,
    /// The source address is not that in the request.
    AddressMismatch = 12,
    /// Too many filters.
    ExcessiveRemotePeers = 13,
}

impl Code {
    /// All codes, by number.
    pub const ALL: [Code; 14] = [
        Code::Success,
        Code::UnsupportedVersion,
        Code::NotAuthorized,
        Code::MalformedRequest,
        Code::UnsupportedOpcode,
        Code::UnsupportedOption,
        Code::MalformedOption,
        Code::NetworkFailure,
        Code::NoResources,
        Code::UnsupportedProtocol,
        Code::UserExceededQuota,
        Code::CannotProvideExternal,
        Code::AddressMismatch,
        Code::ExcessiveRemotePeers,
    ];

    /// The name in RFC 6887, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Success => "success",
            Code::UnsupportedVersion => "unsupp_version",
            Code::NotAuthorized => "not_authorized",
            Code::MalformedRequest => "malformed_request",
            Code::UnsupportedOpcode => "unsupp_opcode",
            Code::UnsupportedOption => "unsupp_option",
            Code::MalformedOption => "malformed_option",
            Code::NetworkFailure => "network_failure",
            Code::NoResources => "no_resources",
            Code::UnsupportedProtocol => "unsupp_protocol",
            Code::UserExceededQuota => "user_ex_quota",
            Code::CannotProvideExternal => "cannot_provide_external",
            Code::AddressMismatch => "address_mismatch",
            Code::ExcessiveRemotePeers => "excessive_remote_peers",
        }
    }

    /// How long the error lasts (RFC 6887 §7.4), in seconds.
    pub const fn lifetime(self) -> u32 {
        match self {
            Code::Success => 0,
            Code::NetworkFailure | Code::NoResources | Code::UserExceededQuota | Code::CannotProvideExternal => 30,
            _ => 30 * 60,
        }
    }

    /// The request was understood, so the reply's reserved field is zero (RFC 6887 §7.2).
    const fn is_parsed(self) -> bool {
        !matches!(
            self,
            Code::UnsupportedVersion
                | Code::MalformedRequest
                | Code::UnsupportedOpcode
                | Code::UnsupportedOption
                | Code::MalformedOption
        )
    }
}

/// An address field of PCP: an IPv4 address is mapped into IPv6.
pub const fn mapped(address: u32) -> [u8; 16] {
    let [a, b, c, d] = address.to_be_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address of a field; `None` for one of IPv6. The unspecified address of either family
/// is 0.0.0.0.
pub fn unmapped(field: &[u8; 16]) -> Option<u32> {
    let (head, tail) = field.split_at(12);
    let tail = <[u8; 4]>::try_from(tail).unwrap_or_default();
    match head {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] => Some(u32::from_be_bytes(tail)),
        _ if *field == [0; 16] => Some(0),
        _ => None,
    }
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u16::from_be_bytes(*word))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_be_bytes(*word))
}

pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = out.get_mut(at..at + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}
