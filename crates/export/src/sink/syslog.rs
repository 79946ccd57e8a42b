//! Syslog (RFC 5424). Mappings and flows have the names of draft-ietf-behave-syslog-nat-logging-06,
//! as VPP uses them; everything is also in an element of our own, blocks only there.
//!
//! ```text
//!   <134>1 TIME HOST NAT - APMADD [napmap SSUBIX="0" SVLAN="0" IATYP="IPv4" …][natrix@32473 …]
//! ```

use std::io::Write;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;

use super::Item;
use super::encoder::Over;
use crate::line::is_late;
use crate::utc::UtcText;

/// The name of our element. 32473 is the number that RFC 5612 reserves for such uses.
const ELEMENT: &str = "natrix@32473";
/// Facility local0, as in VPP.
const FACILITY: u8 = 16;

/// The writing program.
#[derive(Debug)]
pub(crate) struct Origin {
    host: String,
    scratch: Vec<u8>,
}

impl Origin {
    pub(crate) fn new(host: &str) -> Origin {
        let is_printable = |letter: &char| letter.is_ascii_graphic();
        let host: String = host.chars().filter(is_printable).take(255).collect();
        Origin { host: if host.is_empty() { "-".to_owned() } else { host }, scratch: Vec::new() }
    }

    /// Appends the message that an instance starts.
    pub(crate) fn put_start(
        &mut self,
        out: &mut Vec<u8>,
        utc: &mut UtcText,
        unix_us: u64,
        version: &str,
        is_stream: bool,
    ) {
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.header(&mut text, utc, unix_us, 5, "started");
        text.extend_from_slice(format!("[{ELEMENT} EVENT=\"started\"").as_bytes());
        parameter(&mut text, "VERSION", version);
        text.push(b']');
        frame(out, &text, is_stream);
        self.scratch = text;
    }

    /// Appends the message that a run is over, if there is something to say: it was stopped, or the
    /// ends of what was open are not known. False if there is not.
    pub(crate) fn put_over(&mut self, out: &mut Vec<u8>, utc: &mut UtcText, over: &Over<'_>, is_stream: bool) -> bool {
        let (name, severity) = match over {
            Over { are_ends_known: false, .. } => ("ends_unknown", 4),
            Over { sequences: Some(_), .. } => ("stopped", 5),
            Over { .. } => return false,
        };
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.header(&mut text, utc, over.unix_us, severity, name);
        text.extend_from_slice(format!("[{ELEMENT} EVENT=\"{name}\"]").as_bytes());
        frame(out, &text, is_stream);
        self.scratch = text;
        true
    }

    /// Appends the message of an event. On streams it begins with its length (RFC 6587 §3.4.1).
    pub(crate) fn put(&mut self, out: &mut Vec<u8>, utc: &mut UtcText, item: &Item<'_>, is_stream: bool) {
        let event = item.event;
        let is_usual = matches!(event.kind, EventKind::HostNamed | EventKind::SnapshotComplete);
        let severity = if event.kind.is_allocation() || is_usual { 6 } else { 4 };
        let name = match event.kind {
            EventKind::MappingCreated | EventKind::StaticCreated => "APMADD",
            EventKind::MappingEnded | EventKind::StaticEnded => "APMDEL",
            EventKind::FlowCreated => "SADD",
            EventKind::FlowEnded => "SDEL",
            kind => kind.name(),
        };
        let mut text = core::mem::take(&mut self.scratch);
        text.clear();
        self.header(&mut text, utc, item.unix_us, severity, name);
        put_mapping(&mut text, item);
        put_own(&mut text, item);
        frame(out, &text, is_stream);
        self.scratch = text;
    }

    fn header(&self, text: &mut Vec<u8>, utc: &mut UtcText, unix_us: u64, severity: u8, name: &str) {
        // Writing to memory does not fail.
        let _ = write!(text, "<{}>1 ", FACILITY * 8 + severity);
        text.extend_from_slice(utc.of(unix_us));
        let _ = write!(text, " {} NAT - {name} ", self.host);
    }
}

fn frame(out: &mut Vec<u8>, text: &[u8], is_stream: bool) {
    if is_stream {
        let _ = write!(out, "{} ", text.len());
    }
    out.extend_from_slice(text);
}

/// The element of the draft, for what it knows.
fn put_mapping(text: &mut Vec<u8>, item: &Item<'_>) {
    let event = item.event;
    let element = match event.kind {
        EventKind::MappingCreated | EventKind::MappingEnded | EventKind::StaticCreated | EventKind::StaticEnded => {
            "napmap"
        }
        EventKind::FlowCreated | EventKind::FlowEnded => "nsess",
        _ => return,
    };
    let _ = write!(text, "[{element} SSUBIX=\"0\" SVLAN=\"{}\"", event.realm.0);
    match (item.subscriber.ipv6(), item.subscriber.inner()) {
        (Some(b4), Some(inner)) => {
            let _ = write!(text, " SV6ENC=\"{b4}\" IATYP=\"IPv4\" ISADDR=\"{inner}\"");
        }
        (Some(address), None) => {
            let _ = write!(text, " IATYP=\"IPv6\" ISADDR=\"{address}\"");
        }
        // No address of a host: its name was lost.
        (None, _) => match item.subscriber.ipv4() {
            Some(address) => {
                let _ = write!(text, " IATYP=\"IPv4\" ISADDR=\"{address}\"");
            }
            None => text.extend_from_slice(b" IATYP=\"IPv6\" ISADDR=\"::\""),
        },
    }
    let _ = write!(
        text,
        " ISPORT=\"{}\" XATYP=\"IPv4\" XSADDR=\"{}\" XSPORT=\"{}\" PROTO=\"{}\"",
        event.internal_port,
        event.external,
        event.first_port,
        event.protocol.map_or(0, |protocol| protocol.number())
    );
    if element == "nsess" {
        let _ = write!(text, " XDADDR=\"{}\" XDPORT=\"{}\"", event.remote, event.remote_port);
    }
    text.push(b']');
}

/// Our element: what a line of JSON has.
fn put_own(text: &mut Vec<u8>, item: &Item<'_>) {
    let event = item.event;
    let _ = write!(text, "[{ELEMENT} EVENT=\"{}\"", event.kind.name());
    if event.sequence == 0 {
        // No record of a worker: the run ended, and this with it.
        parameter(text, "CAUSE", "run_ended");
    } else {
        let _ = write!(text, " WORKER=\"{}\" SEQUENCE=\"{}\"", item.worker.0, event.sequence);
    }
    if event.cause != Cause::None {
        parameter(text, "CAUSE", event.cause.name());
    }
    let has_subscriber = !event.subscriber.is_unspecified();
    if has_subscriber {
        let realm = item.realm_name();
        if realm.is_empty() {
            let _ = write!(text, " REALM=\"{}\"", event.realm.0);
        } else {
            parameter(text, "REALM", realm);
        }
    }
    let is_mapping = matches!(
        event.kind,
        EventKind::MappingCreated
            | EventKind::MappingEnded
            | EventKind::StaticCreated
            | EventKind::StaticEnded
            | EventKind::FlowCreated
            | EventKind::FlowEnded
    );
    if has_subscriber && !is_mapping {
        if let Some(b4) = item.subscriber.ipv6().filter(|_| item.subscriber.inner().is_some()) {
            let _ = write!(text, " SV6ENC=\"{b4}\"");
        }
        match item.subscriber.inner() {
            Some(inner) => {
                let _ = write!(text, " ISADDR=\"{inner}\"");
            }
            None => parameter(text, "ISADDR", item.subscriber.address_text().as_deref().unwrap_or("::")),
        }
    }
    // The name of a host has a part of an IPv6 address in this field.
    if !event.external.is_unspecified() && !is_mapping && event.kind != EventKind::HostNamed {
        let _ = write!(text, " XSADDR=\"{}\"", event.external);
    }
    if matches!(event.kind, EventKind::BlockLeased | EventKind::BlockReturned) {
        let ports = u32::from(event.last_port.saturating_sub(event.first_port)) + 1;
        let _ = write!(text, " XFPORT=\"{}\" XLPORT=\"{}\" XPORTS=\"{ports}\"", event.first_port, event.last_port);
    }
    if matches!(event.kind, EventKind::FilterPermitted | EventKind::FilterDenied) {
        let (protocol, port, filter) = (event.first_port, event.internal_port, event.amount);
        let _ = write!(text, " PROTO=\"{protocol}\" ISPORT=\"{port}\" FILTER=\"{filter}\"");
        let _ = write!(text, " XDADDR=\"{}\" XDPORT=\"{}\"", event.remote, event.remote_port);
    } else if let Some(protocol) = event.protocol.filter(|_| !is_mapping) {
        let _ = write!(text, " PROTO=\"{}\"", protocol.number());
    }
    let has_pool = matches!(
        event.kind,
        EventKind::Refused
            | EventKind::PoolExhausted
            | EventKind::ThresholdReached
            | EventKind::ThresholdCleared
            | EventKind::PenaltyBegun
            | EventKind::PenaltyEnded
    );
    if has_pool && !item.pool_name().is_empty() {
        parameter(text, "POOL", item.pool_name());
    }
    if let Some(name) = amount_name(event) {
        let _ = write!(text, " {name}=\"{}\"", event.amount);
    }
    text.push(b']');
}

/// What the amount of an event is.
fn amount_name(event: &Event) -> Option<&'static str> {
    Some(match event.kind {
        EventKind::MappingEnded | EventKind::StaticEnded | EventKind::FlowEnded | EventKind::BlockReturned => "HELD",
        EventKind::PenaltyEnded => "HELD",
        _ if is_late(event) => "HELD",
        EventKind::Refused | EventKind::PoolExhausted | EventKind::PenaltyBegun | EventKind::FilterSuppressed => {
            "PACKETS"
        }
        EventKind::ThresholdReached | EventKind::ThresholdCleared => "PERCENT",
        EventKind::ConfigurationAdopted | EventKind::ConfigurationRecorded => "GENERATION",
        EventKind::SnapshotComplete => "RECORDS",
        EventKind::Gap => "LOST",
        _ => return None,
    })
}

/// Appends a parameter; three characters need an escape (RFC 5424 §6.3.3).
fn parameter(text: &mut Vec<u8>, name: &str, value: &str) {
    text.push(b' ');
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"=\"");
    for byte in value.bytes() {
        if matches!(byte, b'"' | b'\\' | b']') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text.push(b'"');
}
