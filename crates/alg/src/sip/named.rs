//! What the outside has named of the inside.
//!
//! No host outside has to know an internal address. A program inside may repeat or relay a message
//! that has it, as a registrar or a back-to-back user agent does, and would then seem to announce
//! an endpoint of its own. So after such a message nothing new of the session is opened as long as
//! it may be answered, and what it has named stays closed for much longer. What cannot be read may
//! name anything.

use super::Field;
use super::each;
use super::field;
use super::fields;
use super::is_register;
use super::sdp;
use super::uri_host;
use crate::Context;
use crate::Memory;
use crate::Ports;
use crate::text;

/// Flag of a session: the outside has named the internal address. Nothing new is opened until
/// [`Memory::number`], in seconds, and what it has named until [`Memory::named_until`].
const INSIDE_NAMED: u32 = 1;
/// A message may be answered, and so repeated, for so long (RFC 3261 §17.1.2.2, Timer F).
const ANSWERED_WITHIN_S: u32 = 32;
/// An INVITE may ring before (§16.6, Timer C).
const RINGS_S: u32 = 180;
/// What was named may be repeated as long as the call lasts, first by a request that refreshes it,
/// and each refresh names it again: twice the time that RFC 4028 §4.2 recommends between two.
const REMEMBERED_S: u32 = 3600;

/// What a message says about the inside.
#[derive(Default)]
pub(super) struct Said {
    /// It has the internal address where a message of the inside would open a port.
    pub(super) is_inside: bool,
    /// The ports that it has there.
    pub(super) ports: Ports,
}

/// Notes what a message of the outside names.
pub(super) fn note(memory: &mut Memory, context: &Context<'_>, message: &[u8], line_end: usize) {
    match said(context, message, line_end) {
        Some(said) if said.is_inside => {
            let rings = if text::starts(message, b"INVITE ") { RINGS_S } else { 0 };
            close(memory, context, rings + ANSWERED_WITHIN_S, &said.ports);
        }
        Some(_) => {}
        None => note_unread(memory, context, Some(message)),
    }
}

/// The same of a message that is not read, as far as it has come. Of a part, the rest may name
/// anything: that counts if the sender has begun the session. The inside has chosen its other
/// peers, and no other host is admitted for them.
pub(super) fn note_unread(memory: &mut Memory, context: &Context<'_>, message: Option<&[u8]>) {
    if context.internal.address == context.external.address {
        return;
    }
    match message {
        Some(message) if sdp::may_name(context, message) => {
            close(memory, context, RINGS_S + ANSWERED_WITHIN_S, &Ports::ALL);
        }
        Some(_) => {}
        None if context.from_client => close(memory, context, RINGS_S + ANSWERED_WITHIN_S, &Ports::ALL),
        None => {}
    }
}

fn close(memory: &mut Memory, context: &Context<'_>, seconds: u32, ports: &Ports) {
    let left = if is_closed(memory, context) { memory.number.wrapping_sub(context.time_s) } else { 0 };
    let mut all = named(memory, context);
    all.add_all(ports);
    memory.flags |= INSIDE_NAMED;
    memory.number = context.time_s.wrapping_add(left.max(seconds));
    (memory.named, memory.named_until) = (all, context.time_s.wrapping_add(REMEMBERED_S));
}

/// Whether nothing new may be opened.
pub(super) fn is_closed(memory: &Memory, context: &Context<'_>) -> bool {
    memory.flags & INSIDE_NAMED != 0 && memory.number.wrapping_sub(context.time_s) as i32 > 0
}

/// The ports that the outside has named.
pub(super) fn named(memory: &Memory, context: &Context<'_>) -> Ports {
    let is_remembered = memory.flags & INSIDE_NAMED != 0 && memory.named_until.wrapping_sub(context.time_s) as i32 > 0;
    if is_remembered { memory.named } else { Ports::default() }
}

/// `None` if not all of it can be read. A registrar may list what was registered before there was a
/// gateway.
fn said(context: &Context<'_>, message: &[u8], line_end: usize) -> Option<Said> {
    let mut said = Said::default();
    if context.internal.address == context.external.address {
        return Some(said);
    }
    let is_response = text::starts(message, b"SIP/2.0 ");
    let (mut is_of_registration, mut is_in_contact) = (false, false);
    // Only SDP opens ports. A text may name what it likes, where it is not read as SDP.
    let (mut types, mut is_text) = (0, false);
    let mut is_encoded = false;
    let mut all = fields(message, line_end);
    for (name, from, to) in all.by_ref() {
        match field(name) {
            Some(Field::Contact) => each(message, from, to, |from, to| {
                let host = uri_host(message, from, to).filter(|host| host.address == context.internal.address);
                is_in_contact |= host.is_some();
                host.iter().for_each(|host| said.ports.add(host.port()));
            }),
            Some(Field::Method) => is_of_registration = is_response && is_register(message, from, to),
            Some(Field::Type) => {
                types += 1;
                is_text = is_text_type(text::part(message, text::skip_blanks(message, from), to));
            }
            Some(Field::Encoding) => is_encoded = true,
            _ => {}
        }
    }
    let body = all.body?;
    said.is_inside = is_in_contact && !is_of_registration;
    let is_only_text = is_text && types == 1 && text::starts(message, b"MESSAGE ");
    if !is_only_text {
        sdp::note_named(context, message, body, &mut said);
        // Only its receiver can read it.
        if is_encoded && body < message.len() {
            (said.is_inside, said.ports) = (true, Ports::ALL);
        }
    }
    Some(said)
}

/// `text/…`, with any blanks around the slash (RFC 3261 §25.1).
fn is_text_type(value: &[u8]) -> bool {
    const TEXT: &[u8] = b"text";
    text::starts_with_ignoring_case(value, TEXT) && value.get(text::skip_blanks(value, TEXT.len())) == Some(&b'/')
}
