//! Requests.

use crate::Code;
use crate::HEADER;
use crate::MESSAGE_MAX;
use crate::VERSION;
use crate::array;
use crate::be16;
use crate::be32;

const RESPONSE: u8 = 1 << 7;
const ANNOUNCE: u8 = 0;
const MAP: u8 = 1;
const PEER: u8 = 2;
const MAP_LENGTH: usize = 36;
const PEER_LENGTH: usize = 56;

/// Why a datagram is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Send no answer.
    Ignored,
    /// Answer with this error.
    Error(Code),
}

/// A request with a sound header and opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The whole datagram.
    pub datagram: &'a [u8],
    /// Requested lifetime, seconds.
    pub lifetime: u32,
    /// The address that the client believes to have.
    pub client: [u8; 16],
    /// What it asks for.
    pub body: Body,
    /// Behind the opcode's data; see [`crate::parse_options`].
    pub options: &'a [u8],
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Whether the server lives.
    Announce,
    /// An external port.
    Map(Map),
    /// A session with one remote endpoint.
    Peer(Peer),
}

/// MAP (RFC 6887 §11.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Identifies the client's mapping.
    pub nonce: [u8; 12],
    /// IP protocol; 0 for all.
    pub protocol: u8,
    /// 0 for all.
    pub internal_port: u16,
    /// 0 for any.
    pub external_port: u16,
    /// The unspecified address for any.
    pub external_address: [u8; 16],
}

/// PEER (RFC 6887 §12.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// As of a MAP.
    pub map: Map,
    /// Remote endpoint.
    pub remote_port: u16,
    /// See `remote_port`.
    pub remote_address: [u8; 16],
}

fn parse_map(data: &[u8]) -> Map {
    Map {
        nonce: array(data, 0),
        protocol: data.get(12).copied().unwrap_or(0),
        internal_port: be16(data, 16),
        external_port: be16(data, 18),
        external_address: array(data, 20),
    }
}

/// The checks of RFC 6887 §8.2, in its order, up to the opcode's data.
///
/// # Errors
/// It is no request, or cannot be parsed.
pub fn parse(datagram: &[u8]) -> Result<Request<'_>, Refused> {
    let [version, opcode, ..] = *datagram else { return Err(Refused::Ignored) };
    if opcode & RESPONSE != 0 {
        return Err(Refused::Ignored);
    }
    if version != VERSION {
        return Err(Refused::Error(Code::UnsupportedVersion));
    }
    let Some((header, rest)) = datagram.split_at_checked(HEADER) else { return Err(Refused::Ignored) };
    if datagram.len() > MESSAGE_MAX || !datagram.len().is_multiple_of(4) {
        return Err(Refused::Error(Code::MalformedRequest));
    }
    let length = match opcode {
        ANNOUNCE => 0,
        MAP => MAP_LENGTH,
        PEER => PEER_LENGTH,
        _ => return Err(Refused::Error(Code::UnsupportedOpcode)),
    };
    let (data, options) = rest.split_at_checked(length).ok_or(Refused::Error(Code::MalformedRequest))?;
    let body = match opcode {
        MAP => Body::Map(parse_map(data)),
        PEER => Body::Peer(Peer { map: parse_map(data), remote_port: be16(data, 36), remote_address: array(data, 40) }),
        _ => Body::Announce,
    };
    Ok(Request { datagram, lifetime: be32(header, 4), client: array(header, 8), body, options })
}

impl Request<'_> {
    /// Length of header and opcode's data.
    pub const fn fixed_length(&self) -> usize {
        match self.body {
            Body::Announce => HEADER,
            Body::Map(_) => HEADER + MAP_LENGTH,
            Body::Peer(_) => HEADER + PEER_LENGTH,
        }
    }
}
