//! PDUs of AgentX (RFC 2741 §6), to and from bytes.
//!
//! The crate `agentx` has them too. It is not used because it has had no release since its first
//! (2023), and because the limits that hostile bytes meet belong here: every length is checked
//! before anything is reserved for it.

use crate::bytes::Malformed;
use crate::bytes::Order;
use crate::bytes::Reader;
use crate::bytes::Writer;
use crate::oid::Oid;
use crate::value::VarBind;

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 20;
/// Bytes of a payload. What SNMP carries in UDP is smaller.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// Objects of a request.
pub(crate) const NAMES_MAX: usize = 1_024;

const VERSION: u8 = 1;
const FLAG_NON_DEFAULT_CONTEXT: u8 = 1 << 3;
const FLAG_NETWORK_BYTE_ORDER: u8 = 1 << 4;

/// Errors of a response (RFC 2741 §6.2.16, RFC 3416 §3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorStatus {
    NoError,
    GenErr,
    WrongType,
    WrongValue,
    NoCreation,
    ResourceUnavailable,
    CommitFailed,
    UndoFailed,
    NotWritable,
    OpenFailed,
    NotOpen,
    UnsupportedContext,
    DuplicateRegistration,
    ParseError,
    RequestDenied,
    ProcessingError,
    /// Another one.
    Other(u16),
}

impl ErrorStatus {
    const KNOWN: [(ErrorStatus, u16); 16] = [
        (ErrorStatus::NoError, 0),
        (ErrorStatus::GenErr, 5),
        (ErrorStatus::WrongType, 7),
        (ErrorStatus::WrongValue, 10),
        (ErrorStatus::NoCreation, 11),
        (ErrorStatus::ResourceUnavailable, 13),
        (ErrorStatus::CommitFailed, 14),
        (ErrorStatus::UndoFailed, 15),
        (ErrorStatus::NotWritable, 17),
        (ErrorStatus::OpenFailed, 256),
        (ErrorStatus::NotOpen, 257),
        (ErrorStatus::UnsupportedContext, 262),
        (ErrorStatus::DuplicateRegistration, 263),
        (ErrorStatus::ParseError, 266),
        (ErrorStatus::RequestDenied, 267),
        (ErrorStatus::ProcessingError, 268),
    ];

    fn of(code: u16) -> ErrorStatus {
        let known = ErrorStatus::KNOWN.iter().find(|(_, known)| *known == code);
        known.map_or(ErrorStatus::Other(code), |(status, _)| *status)
    }

    /// Its number on the wire.
    pub(crate) fn code(self) -> u16 {
        match self {
            ErrorStatus::Other(code) => code,
            status => ErrorStatus::KNOWN.iter().find(|(known, _)| *known == status).map_or(5, |(_, code)| *code),
        }
    }
}

/// Where to search: from `start`, itself included if `include`, up to but without `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SearchRange {
    /// Where it starts.
    pub(crate) start: Oid,
    /// True if `start` itself may be the answer.
    pub(crate) include: bool,
    /// Where it ends; null for no end.
    pub(crate) end: Oid,
}

/// What a PDU says, for those that this agent sends or answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A session begins.
    Open {
        /// Seconds within which the agent answers.
        timeout: u8,
        /// The agent's own identity; null for none.
        id: Oid,
        /// A description of the agent.
        description: Vec<u8>,
    },
    /// A session ends.
    Close {
        /// Why: 1 to 6.
        reason: u8,
    },
    /// The agent serves a subtree.
    Register {
        /// Seconds within which the agent answers for it.
        timeout: u8,
        /// Of several agents for one subtree, the lowest serves.
        priority: u8,
        /// The subtree.
        subtree: Oid,
    },
    /// The values of exactly these.
    Get(Vec<SearchRange>),
    /// The values of the next of each.
    GetNext(Vec<SearchRange>),
    /// The next of some, and the next ones of the others.
    GetBulk {
        /// As many ranges at the start are for one object each.
        non_repeaters: u16,
        /// As many objects of the other ranges.
        max_repetitions: u16,
        /// The ranges.
        ranges: Vec<SearchRange>,
    },
    /// Would these values be possible?
    TestSet(Vec<VarBind>),
    /// Set what was tested.
    CommitSet,
    /// Set it back.
    UndoSet,
    /// Forget what was tested.
    CleanupSet,
    /// A notification.
    Notify(Vec<VarBind>),
    /// Are you there?
    Ping,
    /// The answer to any of these.
    Response {
        /// Hundredths of a second since the master agent started.
        uptime: u32,
        /// What is wrong.
        error: ErrorStatus,
        /// With which object, counted from 1; 0 for none.
        index: u16,
        /// The values.
        values: Vec<VarBind>,
    },
    /// Of a type that this agent does not answer.
    Unknown(u8),
}

impl Body {
    fn code(&self) -> u8 {
        match self {
            Body::Open { .. } => 1,
            Body::Close { .. } => 2,
            Body::Register { .. } => 3,
            Body::Get(_) => 5,
            Body::GetNext(_) => 6,
            Body::GetBulk { .. } => 7,
            Body::TestSet(_) => 8,
            Body::CommitSet => 9,
            Body::UndoSet => 10,
            Body::CleanupSet => 11,
            Body::Notify(_) => 12,
            Body::Ping => 13,
            Body::Response { .. } => 18,
            Body::Unknown(code) => *code,
        }
    }
}

/// A PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pdu {
    /// Its session.
    pub(crate) session: u32,
    /// The SNMP request behind it.
    pub(crate) transaction: u32,
    /// Ties an answer to its question.
    pub(crate) packet: u32,
    /// The order of the bytes of its numbers.
    pub(crate) order: Order,
    /// The context, if it is not the default one.
    pub(crate) context: Option<Vec<u8>>,
    /// What it says.
    pub(crate) body: Body,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    code: u8,
    flags: u8,
    order: Order,
    session: u32,
    transaction: u32,
    packet: u32,
    /// Bytes that follow.
    pub(crate) payload_bytes: usize,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// Another version, or a payload that is too long or not whole words.
    pub(crate) fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Malformed> {
        let [version, code, flags, ..] = *bytes;
        if version != VERSION {
            return Err(Malformed("another version of AgentX"));
        }
        let order = if flags & FLAG_NETWORK_BYTE_ORDER != 0 { Order::Big } else { Order::Little };
        let mut rest = Reader::new(&bytes[4..], order);
        let (session, transaction, packet) = (rest.u32()?, rest.u32()?, rest.u32()?);
        let payload_bytes = rest.u32()? as usize;
        if payload_bytes > PAYLOAD_BYTES_MAX || !payload_bytes.is_multiple_of(4) {
            return Err(Malformed("payload too long or not of whole words"));
        }
        Ok(Header { code, flags, order, session, transaction, packet, payload_bytes })
    }

    /// The answer to a PDU with this header whose payload cannot be read.
    pub(crate) fn parse_error(&self, uptime: u32) -> Pdu {
        let body = Body::Response { uptime, error: ErrorStatus::ParseError, index: 0, values: Vec::new() };
        let Header { session, transaction, packet, order, .. } = *self;
        Pdu { session, transaction, packet, order, context: None, body }
    }

    /// True for a response, which is never answered.
    pub(crate) fn is_response(&self) -> bool {
        self.code == 18
    }
}

impl Pdu {
    /// Reads the payload behind `header`.
    ///
    /// # Errors
    /// It is not of the form that its type has.
    pub(crate) fn read(header: &Header, payload: &[u8]) -> Result<Pdu, Malformed> {
        let mut from = Reader::new(payload, header.order);
        let has_context = header.flags & FLAG_NON_DEFAULT_CONTEXT != 0 && header.code != 18;
        let context = has_context.then(|| from.octets()).transpose()?;
        let body = match header.code {
            1 => {
                let timeout = from.u8_and_padding()?;
                Body::Open { timeout, id: from.oid()?.0, description: from.octets()? }
            }
            2 => Body::Close { reason: from.u8_and_padding()? },
            3 => {
                let [timeout, priority, range, _] = from.four()?;
                if range != 0 {
                    return Err(Malformed("a range of subtrees"));
                }
                Body::Register { timeout, priority, subtree: from.oid()?.0 }
            }
            5 => Body::Get(ranges(&mut from)?),
            6 => Body::GetNext(ranges(&mut from)?),
            7 => {
                let (non_repeaters, max_repetitions) = (from.u16()?, from.u16()?);
                Body::GetBulk { non_repeaters, max_repetitions, ranges: ranges(&mut from)? }
            }
            8 => Body::TestSet(values(&mut from)?),
            9 => Body::CommitSet,
            10 => Body::UndoSet,
            11 => Body::CleanupSet,
            12 => Body::Notify(values(&mut from)?),
            13 => Body::Ping,
            18 => {
                let (uptime, error, index) = (from.u32()?, from.u16()?, from.u16()?);
                Body::Response { uptime, error: ErrorStatus::of(error), index, values: values(&mut from)? }
            }
            code => {
                from.skip_rest();
                Body::Unknown(code)
            }
        };
        if !from.is_empty() {
            return Err(Malformed("bytes after the end"));
        }
        let Header { session, transaction, packet, order, .. } = *header;
        Ok(Pdu { session, transaction, packet, order, context, body })
    }

    /// Its bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new(self.order);
        if let Some(context) = &self.context {
            to.octets(context);
        }
        match &self.body {
            Body::Open { timeout, id, description } => {
                to.four([*timeout, 0, 0, 0]);
                to.oid(id, false);
                to.octets(description);
            }
            Body::Close { reason } => to.four([*reason, 0, 0, 0]),
            Body::Register { timeout, priority, subtree } => {
                to.four([*timeout, *priority, 0, 0]);
                to.oid(subtree, false);
            }
            Body::Get(ranges) | Body::GetNext(ranges) => ranges.iter().for_each(|range| write_range(&mut to, range)),
            Body::GetBulk { non_repeaters, max_repetitions, ranges } => {
                to.u16(*non_repeaters);
                to.u16(*max_repetitions);
                ranges.iter().for_each(|range| write_range(&mut to, range));
            }
            Body::TestSet(values) | Body::Notify(values) => values.iter().for_each(|value| to.var_bind(value)),
            Body::CommitSet | Body::UndoSet | Body::CleanupSet | Body::Ping | Body::Unknown(_) => {}
            Body::Response { uptime, error, index, values } => {
                to.u32(*uptime);
                to.u16(error.code());
                to.u16(*index);
                values.iter().for_each(|value| to.var_bind(value));
            }
        }
        let payload = to.into_bytes();
        let order = if self.order == Order::Big { FLAG_NETWORK_BYTE_ORDER } else { 0 };
        let context = if self.context.is_some() { FLAG_NON_DEFAULT_CONTEXT } else { 0 };
        let mut head = Writer::new(self.order);
        head.four([VERSION, self.body.code(), order | context, 0]);
        head.u32(self.session);
        head.u32(self.transaction);
        head.u32(self.packet);
        head.u32(payload.len() as u32);
        let mut bytes = head.into_bytes();
        bytes.extend(payload);
        bytes
    }
}

fn write_range(to: &mut Writer, range: &SearchRange) {
    to.oid(&range.start, range.include);
    to.oid(&range.end, false);
}

fn ranges(from: &mut Reader) -> Result<Vec<SearchRange>, Malformed> {
    let mut ranges = Vec::new();
    while !from.is_empty() {
        if ranges.len() == NAMES_MAX {
            return Err(Malformed("too many objects"));
        }
        let (start, include) = from.oid()?;
        let (end, _) = from.oid()?;
        ranges.push(SearchRange { start, include, end });
    }
    Ok(ranges)
}

fn values(from: &mut Reader) -> Result<Vec<VarBind>, Malformed> {
    let mut values = Vec::new();
    while !from.is_empty() {
        if values.len() == NAMES_MAX {
            return Err(Malformed("too many objects"));
        }
        values.push(from.var_bind()?);
    }
    Ok(values)
}
