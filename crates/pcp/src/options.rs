//! Options (RFC 6887 §7.3, §13, RFC 7225 §3.1, RFC 7753 §4).

use crate::Body;
use crate::Code;
use crate::Request;
use crate::array;
use crate::be16;

const THIRD_PARTY: u8 = 1;
const PREFER_FAILURE: u8 = 2;
const FILTER: u8 = 3;
const PREFIX64: u8 = 129;
const PORT_SET: u8 = 130;
/// From this code on an option may be ignored.
const OPTIONAL: u8 = 128;
/// Length of the prefix, prefix and suffix, and no IPv4 prefixes.
const PREFIX64_LENGTH: usize = 16;
/// The filters of a message, at most.
const FILTERS_MAX: usize = 44;

/// One filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Bits of the prefix within the 128 of the field; 0 removes all filters before.
    pub length: u8,
    /// Remote port; 0 for all.
    pub port: u16,
    /// Remote address.
    pub address: [u8; 16],
}

/// A set of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet {
    /// Number of ports.
    pub size: u16,
    /// The first internal port.
    pub first: u16,
    /// The first external port has the parity of the internal one.
    pub parity: bool,
}

/// The options of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// On behalf of this address.
    pub third_party: Option<[u8; 16]>,
    /// The suggested endpoint or nothing.
    pub prefer_failure: bool,
    /// A set of ports.
    pub port_set: Option<PortSet>,
    /// The client asks for the prefix of its NAT64 (RFC 7225).
    pub asks_prefix64: bool,
    filters: [Filter; FILTERS_MAX],
    filter_count: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            third_party: None,
            prefer_failure: false,
            port_set: None,
            asks_prefix64: false,
            filters: [Filter::default(); FILTERS_MAX],
            filter_count: 0,
        }
    }
}

impl Options {
    /// The filters, in the order of the message.
    pub fn filters(&self) -> &[Filter] {
        self.filters.get(..self.filter_count).unwrap_or(&self.filters)
    }
}

/// The options, in order of appearance. Optional ones that are unknown are skipped.
///
/// # Errors
/// The first that is malformed, repeated, out of place, or unknown although it must be processed.
pub fn parse_options(request: &Request<'_>) -> Result<Options, Code> {
    let mut options = Options::default();
    let mut rest = request.options;
    let (is_map, is_announce) = match request.body {
        Body::Map(_) => (true, false),
        Body::Peer(_) => (false, false),
        Body::Announce => (false, true),
    };
    while let Some((head, behind)) = rest.split_at_checked(4) {
        let (code, length) = (head.first().copied().unwrap_or(0), usize::from(be16(head, 2)));
        let padded = length.next_multiple_of(4);
        let (data, next) = behind.split_at_checked(padded).ok_or(Code::MalformedOption)?;
        let data = data.get(..length).unwrap_or(data);
        rest = next;
        let fits = match code {
            THIRD_PARTY => !is_announce && length == 16 && options.third_party.is_none(),
            PREFER_FAILURE => is_map && length == 0 && !options.prefer_failure,
            FILTER => is_map && length == 20,
            // RFC 7753 §4.2 checks a set only if something is to be mapped.
            PORT_SET => is_map && length == 5 && options.port_set.is_none(),
            // RFC 7225 §3.1 has it for MAP and ANNOUNCE, once.
            PREFIX64 => (is_map || is_announce) && length == PREFIX64_LENGTH && !options.asks_prefix64,
            _ if code >= OPTIONAL => continue,
            _ => return Err(Code::UnsupportedOption),
        };
        if !fits {
            return Err(Code::MalformedOption);
        }
        match code {
            THIRD_PARTY => options.third_party = Some(array(data, 0)),
            PREFER_FAILURE => options.prefer_failure = true,
            PREFIX64 => options.asks_prefix64 = true,
            FILTER => {
                let filter = Filter { length: array::<2>(data, 0)[1], port: be16(data, 2), address: array(data, 4) };
                let room = options.filters.get_mut(options.filter_count).ok_or(Code::ExcessiveRemotePeers)?;
                *room = filter;
                options.filter_count += 1;
            }
            _ => {
                let parity = data.get(4).is_some_and(|flags| flags & 1 != 0);
                options.port_set = Some(PortSet { size: be16(data, 0), first: be16(data, 2), parity });
            }
        }
    }
    if !rest.is_empty() {
        return Err(Code::MalformedOption);
    }
    if let Some(set) = options.port_set
        && request.lifetime != 0
        && (set.size == 0 || options.prefer_failure)
    {
        return Err(Code::MalformedOption);
    }
    Ok(options)
}
