//! ICMP errors: the message, and the packet it quotes (RFC 7915 §4.2, §4.3, §5.2, §5.3, RFC 4884).
//!
//! ```text
//!   [ IPv4 │ ICMP │ IPv4 │ TCP …  │ pad │ extension ]
//!   [    IPv6     │ ICMPv6 │     IPv6      │ TCP … │ pad │ extension ]
//! ```
//!
//! An extension stays where it is and is passed as it came; what is in front of it is made to end
//! there. RFC 4884 §3: with an extension, the quote is padded to 128 bytes or more, and to whole
//! words. A message that would be too long gives up first the end of its quote, then the extension.

use core::ops::Range;

use wire::checksum;
use wire::field;
use wire::icmp as icmp4;
use wire::icmp::ExtensionLayout;
use wire::icmp6;
use wire::ipv4;
use wire::ipv6;

use crate::Limits;
use crate::Tuple4;
use crate::Tuple6;
use crate::Written;
use crate::headers;
use crate::headers::Headers4;
use crate::headers::Headers6;
use crate::icmp;
use crate::icmp::Meaning;
use crate::reason::Reason;
use crate::to_ipv4;
use crate::to_ipv6;
use crate::transport;

/// RFC 1812 §4.3.2.3.
const ERROR4_MAX: usize = 576;
/// RFC 4443 §2.4 (c).
const ERROR6_MAX: usize = ipv6::MTU_MIN as usize;
/// RFC 4884 §3.
const QUOTE_MIN: usize = icmp4::QUOTE_LENGTH_WITH_EXTENSION_MIN;

/// Where the parts of a message go in the frame.
struct Plan {
    /// Where the bytes behind the inner headers are now.
    from: usize,
    /// Where they go.
    to: usize,
    /// How many.
    kept: usize,
    /// Start and end of the quote, padding included.
    quote: (usize, usize),
    /// End of the message.
    end: usize,
    has_extension: bool,
}

/// Sizes of the parts of a message.
struct Parts {
    /// Where the bytes behind the inner headers are now, and how many.
    data: (usize, usize),
    /// Where the extension is; empty if there is none, or the new type has none.
    extension: (usize, usize),
    /// Length of the new inner headers.
    inner_header: usize,
    /// Bytes of a word in the length of RFC 4884.
    word: usize,
    /// What quote and extension may have together.
    room: usize,
}

impl Parts {
    fn plan(&self) -> Option<Plan> {
        let (from, available) = self.data;
        let extension_length = self.extension.1 - self.extension.0;
        let quote_max = self.room.checked_sub(extension_length).map_or(0, |room| room / self.word * self.word);
        if extension_length == 0 || quote_max < QUOTE_MIN {
            let kept = available.min(self.room.saturating_sub(self.inner_header));
            let start = from.checked_sub(self.inner_header)?;
            let end = from + kept;
            return Some(Plan { from, to: from, kept, quote: (start, end), end, has_extension: false });
        }
        let kept = available.min(quote_max - self.inner_header);
        let length = (self.inner_header + kept).max(QUOTE_MIN).next_multiple_of(self.word);
        let start = self.extension.0.checked_sub(length)?;
        Some(Plan {
            from,
            to: start + self.inner_header,
            kept,
            quote: (start, self.extension.0),
            end: self.extension.1,
            has_extension: true,
        })
    }
}

impl Plan {
    /// Moves the bytes behind the inner headers and clears the padding. Returns the moved bytes.
    fn carry_out<'a>(&self, frame: &'a mut [u8]) -> &'a mut [u8] {
        if self.from != self.to {
            frame.copy_within(self.from..self.from + self.kept, self.to);
        }
        if let Some(padding) = frame.get_mut(self.to + self.kept..self.quote.1) {
            padding.fill(0);
        }
        frame.get_mut(self.to..self.to + self.kept).unwrap_or_default()
    }
}

pub(crate) fn error_to_6(
    frame: &mut [u8],
    start: usize,
    outer: &Headers4,
    new: &Tuple6,
    quoted: &Tuple6,
    limits: &Limits,
) -> Result<Written, Reason> {
    let packet = frame.get(start..start + outer.length).ok_or(Reason::NoRoom)?;
    if !headers::is_icmp4_valid(packet, outer) {
        return Err(Reason::IcmpChecksum);
    }
    let inner = headers::quoted4(packet, outer)?;
    let message = packet.get(outer.transport..).unwrap_or(&[]);
    let old = Meaning {
        icmp_type: field::u8_at(message, icmp4::TYPE_OFFSET),
        code: field::u8_at(message, icmp4::CODE_OFFSET),
        parameter: 0,
    };
    let parameter = match old.icmp_type {
        icmp4::TYPE_PARAMETER_PROBLEM => field::u8_at(message, icmp4::POINTER_OFFSET).into(),
        _ => field::u16_at(message, icmp4::NEXT_HOP_MTU_OFFSET).into(),
    };
    let meaning = icmp::error_to_6(Meaning { parameter, ..old }, inner.length as u16, limits)?;

    let layout = icmp4::extension_layout(message);
    let message_start = start + outer.transport;
    let extension = passed_extension(&layout, icmp6::can_carry_extensions(meaning.icmp_type));
    let available = layout.quote.len().min(inner.length).saturating_sub(inner.transport);
    let inner_header = to_ipv6::header_length(inner.fragment);
    let parts = Parts {
        data: (message_start + layout.quote.start + inner.transport, available),
        extension: (message_start + extension.start, message_start + extension.end),
        inner_header,
        word: 8,
        room: ERROR6_MAX - ipv6::HEADER_LENGTH - icmp6::HEADER_LENGTH,
    };
    let plan = parts.plan().ok_or(Reason::NoRoom)?;
    let new_start = plan.quote.0.checked_sub(ipv6::HEADER_LENGTH + icmp6::HEADER_LENGTH).ok_or(Reason::NoRoom)?;

    transport::rewrite(plan.carry_out(frame), &inner, quoted);
    let out = frame.get_mut(plan.quote.0..).unwrap_or_default();
    let inner_length = inner_header + inner.transport_length();
    to_ipv6::write_header(out, &inner, quoted, inner.hop_limit, limits, inner_length);

    let length = plan.end - new_start;
    let out = frame.get_mut(new_start..plan.end).unwrap_or_default();
    to_ipv6::write_header(out, &whole(outer), new, limits.after(outer.hop_limit), limits, length);
    let message = out.get_mut(ipv6::HEADER_LENGTH..).unwrap_or_default();
    field::set_u32(message, 0, 0);
    let mut icmp = icmp6::Icmp6::new_unchecked(&mut *message);
    icmp.set_type_and_code(meaning.icmp_type, meaning.code);
    icmp.set_parameter(meaning.parameter);
    if plan.has_extension {
        let words = (plan.quote.1 - plan.quote.0) / 8;
        field::set_u8(message, icmp6::QUOTE_LENGTH_OFFSET, words as u8);
    }
    icmp6::Icmp6::new_unchecked(message).fill_checksum(new.source, new.destination);
    Ok(Written { start: new_start, length, split: None })
}

pub(crate) fn error_to_4(
    frame: &mut [u8],
    start: usize,
    outer: &Headers6,
    new: &Tuple4,
    quoted: &Tuple4,
    identification: u16,
    limits: &Limits,
) -> Result<Written, Reason> {
    let packet = frame.get(start..start + outer.length).ok_or(Reason::NoRoom)?;
    if !headers::is_icmp6_valid(packet, outer) {
        return Err(Reason::IcmpChecksum);
    }
    let inner = headers::quoted6(packet, outer)?;
    let message = packet.get(outer.transport..).unwrap_or(&[]);
    let view = icmp6::Icmp6::new_unchecked(message);
    let old = Meaning { icmp_type: view.icmp_type(), code: view.code(), parameter: view.parameter() };
    let meaning = icmp::error_to_4(old, inner.fragment.is_some(), limits)?;

    let layout = icmp6::extension_layout(message);
    let message_start = start + outer.transport;
    let extension = passed_extension(&layout, true);
    let available = layout.quote.len().min(inner.length).saturating_sub(inner.transport);
    let parts = Parts {
        data: (message_start + layout.quote.start + inner.transport, available),
        extension: (message_start + extension.start, message_start + extension.end),
        inner_header: ipv4::HEADER_LENGTH_MIN,
        word: 4,
        room: ERROR4_MAX - ipv4::HEADER_LENGTH_MIN - icmp4::HEADER_LENGTH,
    };
    if ipv4::HEADER_LENGTH_MIN + inner.transport_length() > usize::from(u16::MAX) {
        return Err(Reason::QuoteMalformed);
    }
    let plan = parts.plan().ok_or(Reason::NoRoom)?;
    let header_length = ipv4::HEADER_LENGTH_MIN + icmp4::HEADER_LENGTH;
    let new_start = plan.quote.0.checked_sub(header_length).ok_or(Reason::NoRoom)?;

    transport::rewrite(plan.carry_out(frame), &inner, quoted);
    let out = frame.get_mut(plan.quote.0..).unwrap_or_default();
    to_ipv4::write_header(out, &inner, quoted, inner.hop_limit, 0, limits);

    let length = plan.end - new_start;
    let out = frame.get_mut(new_start..plan.end).unwrap_or_default();
    let outer = Headers6 { fragment: None, transport: 0, length: length - ipv4::HEADER_LENGTH_MIN, ..*outer };
    to_ipv4::write_header(out, &outer, new, limits.after(outer.hop_limit), identification, limits);
    let message = out.get_mut(ipv4::HEADER_LENGTH_MIN..).unwrap_or_default();
    field::set_u32(message, 0, 0);
    field::set_u32(message, 4, 0);
    icmp4::Icmp::new_unchecked(&mut *message).set_type_and_code(meaning.icmp_type, meaning.code);
    match meaning.icmp_type {
        icmp4::TYPE_PARAMETER_PROBLEM => field::set_u8(message, icmp4::POINTER_OFFSET, meaning.parameter as u8),
        _ => field::set_u16(message, icmp4::NEXT_HOP_MTU_OFFSET, meaning.parameter as u16),
    }
    if plan.has_extension {
        let words = (plan.quote.1 - plan.quote.0) / 4;
        field::set_u8(message, icmp4::QUOTE_LENGTH_OFFSET, words as u8);
    }
    let checksum = checksum::of_bytes(message);
    field::set_u16(message, icmp4::CHECKSUM_OFFSET, checksum);
    Ok(Written { start: new_start, length, split: None })
}

/// Where the extension of a message is that the new message has, too; empty if there is none. A
/// quote of fewer than 128 bytes cannot have one (RFC 4884 §3), whatever its length field says: the
/// padding that it lacks has no bound but the room of the frame.
fn passed_extension(layout: &ExtensionLayout, can_carry: bool) -> Range<usize> {
    let end = layout.extension.end;
    if can_carry && layout.quote.len() >= QUOTE_MIN { layout.extension.clone() } else { end..end }
}

/// An error is whole, whatever its headers said.
fn whole(outer: &Headers4) -> Headers4 {
    Headers4 { fragment: None, ..*outer }
}
