//! PPTP (RFC 2637): call identifiers in the control connection.
//!
//! Each end chooses an identifier for its side of a call, and the other end writes it into the
//! packets that it tunnels (`headers/gre.rs` of the engine). Two clients behind one external
//! address may choose the same, so the gateway replaces those of the inside. Those of the outside
//! stay.

use crate::Alg;
use crate::Context;
use crate::Findings;
use crate::Frame;
use crate::Known;
use crate::Memory;
use crate::Reading;
use crate::Transport;
use crate::Want;
use crate::WantKind;
use crate::findings::Put;
use crate::text;
use crate::work;

pub(crate) struct Pptp;

/// The client has asked for a control connection.
const ASKED: u32 = 1 << 0;
/// The server has accepted it.
const OPEN: u32 = 1 << 1;

/// Length, message type, magic cookie, control message type, reserved (RFC 2637 §2).
const HEADER: usize = 12;
/// What each message has at bytes 2 to 7: a control message, and the magic cookie.
const FIXED: [u8; 6] = [0, 1, 0x1a, 0x2b, 0x3c, 0x4d];
const CONNECTED: u8 = 1;

/// Lengths of the messages 1 to 15 (RFC 2637 §2.1 to §2.15).
const LENGTHS: [u16; 15] = [156, 156, 16, 16, 16, 20, 168, 32, 220, 24, 28, 16, 148, 40, 24];

const START_REQUEST: u16 = 1;
const START_REPLY: u16 = 2;
const STOP_REQUEST: u16 = 3;
const STOP_REPLY: u16 = 4;
const OUTGOING_CALL_REQUEST: u16 = 7;
const OUTGOING_CALL_REPLY: u16 = 8;
const INCOMING_CALL_REQUEST: u16 = 9;
const INCOMING_CALL_REPLY: u16 = 10;
const INCOMING_CALL_CONNECTED: u16 = 11;
const CALL_CLEAR_REQUEST: u16 = 12;
const CALL_DISCONNECT_NOTIFY: u16 = 13;
const WAN_ERROR_NOTIFY: u16 = 14;
const SET_LINK_INFO: u16 = 15;

impl Alg for Pptp {
    fn name(&self) -> &'static str {
        "pptp"
    }

    fn about(&self) -> &'static str {
        "PPTP (RFC 2637): the control connection, and the GRE packets of its calls."
    }

    fn ports(&self) -> &'static [u16] {
        &[1723]
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::Tcp]
    }

    fn frame(&self, memory: &mut Memory, context: &Context<'_>, bytes: &[u8], _: usize) -> Frame {
        let fixed = bytes.get(2..).unwrap_or(&[]);
        let has_spoken = has_spoken(memory, context);
        let may_speak = context.from_client || memory.flags & ASKED != 0;
        if !may_speak || !text::may_become(&fixed[..fixed.len().min(FIXED.len())], &[&FIXED]) {
            return Frame::Over;
        }
        // Another protocol is to be recognised by its first bytes, however few come at once.
        let (Some(length), Some(kind)) = (number(bytes, 0), number(bytes, 8)) else {
            return Frame::More;
        };
        let is_first = if context.from_client { START_REQUEST } else { START_REPLY };
        if length_of(kind) != Some(length) || !has_spoken && kind != is_first {
            return Frame::Over;
        }
        let length = usize::from(length);
        if bytes.len() < length { Frame::Needs(length) } else { Frame::Message(length) }
    }

    fn is_surely_its_own(&self, memory: &Memory, context: &Context<'_>, bytes: &[u8]) -> bool {
        has_spoken(memory, context) || bytes.len() >= 2 + FIXED.len()
    }

    fn read(&self, memory: &mut Memory, context: &Context<'_>, message: &[u8], findings: &mut Findings) -> Reading {
        let Some(kind) = number(message, 8) else { return Reading::Over };
        if length_of(kind).map(usize::from) != Some(message.len()) {
            return Reading::Over;
        }
        match kind {
            START_REQUEST if context.from_client => memory.flags |= ASKED,
            START_REPLY if !context.from_client && message[14] == CONNECTED => memory.flags |= OPEN,
            START_REQUEST | START_REPLY => return Reading::Over,
            STOP_REQUEST | STOP_REPLY => context.known.iter().for_each(|known| end(known, findings)),
            _ if memory.flags & OPEN == 0 => return Reading::Over,
            _ if context.from_inside => read_own(kind, message, findings),
            _ => read_peer(kind, context, message, findings),
        }
        Reading::Done
    }
}

fn has_spoken(memory: &Memory, context: &Context<'_>) -> bool {
    memory.flags & if context.from_client { ASKED } else { OPEN } != 0
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let (high, low) = (bytes.get(at)?, bytes.get(at + 1)?);
    work::count(2);
    Some(u16::from_be_bytes([*high, *low]))
}

fn length_of(kind: u16) -> Option<u16> {
    LENGTHS.get(usize::from(kind.checked_sub(1)?)).copied()
}

fn call(port: u16, peer: Option<u16>) -> Want {
    Want {
        port,
        kind: WantKind::Call,
        transport: Transport::Tcp,
        needs_own_address: true,
        peer,
        lifetime: None,
        renews: false,
        replaces: false,
    }
}

fn end(known: &Known, findings: &mut Findings) {
    findings.want(Want { lifetime: Some(0), ..call(known.inside, None) });
}

/// From inside: the sender's own identifier.
fn read_own(kind: u16, message: &[u8], findings: &mut Findings) {
    let Some(own) = number(message, HEADER) else { return };
    let want = match kind {
        OUTGOING_CALL_REQUEST | INCOMING_CALL_REQUEST => call(own, None),
        OUTGOING_CALL_REPLY | INCOMING_CALL_REPLY if message[16] == CONNECTED => call(own, number(message, HEADER + 2)),
        CALL_CLEAR_REQUEST | CALL_DISCONNECT_NOTIFY => Want { lifetime: Some(0), ..call(own, None) },
        _ => return,
    };
    let want = findings.want(want);
    findings.edit(HEADER, HEADER + 2, Put::Number(Some(want)));
}

/// From outside: the identifier of the receiver, as it was replaced.
fn read_peer(kind: u16, context: &Context<'_>, message: &[u8], findings: &mut Findings) {
    let at = match kind {
        OUTGOING_CALL_REPLY | INCOMING_CALL_REPLY => HEADER + 2,
        INCOMING_CALL_CONNECTED | WAN_ERROR_NOTIFY | SET_LINK_INFO => HEADER,
        CALL_CLEAR_REQUEST | CALL_DISCONNECT_NOTIFY => {
            let peer = number(message, HEADER);
            context.known.iter().filter(|known| known.peer == peer).for_each(|known| end(known, findings));
            return;
        }
        _ => return,
    };
    let external = number(message, at);
    let Some(known) = context.known.iter().find(|known| Some(known.external) == external) else { return };
    if at > HEADER {
        match message[16] {
            CONNECTED => findings.want(call(known.inside, number(message, HEADER))),
            _ => findings.want(Want { lifetime: Some(0), ..call(known.inside, None) }),
        };
    }
    findings.edit(at, at + 2, Put::LiteralNumber(known.inside));
}
