//! IPFIX (RFC 7011) with the events of RFC 8158.
//!
//! ```text
//!   message := version 10, length, export time, sequence, observation domain, set…
//!   set     := template's number, length, record…
//! ```
//!
//! The sequence number counts data records, so that a collector notices missing ones. It begins
//! anew with each TCP connection (RFC 7011 §3.1), and each connection begins with the templates. Of
//! datagrams it goes on over restarts.

pub(crate) mod binding;
pub(crate) mod file;
pub(crate) mod record;
pub(crate) mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::UNKNOWN_HOST;
use nat::types::PoolName;
use nat::types::WorkerId;

use super::Item;
use super::Message;
use super::Quotas;
use super::encoder::Over;
use crate::subscriber::Subscriber;
use binding::Bindings;
use binding::Change;
use record::NatEvent;
use record::Record;
use template::Template;

const HEADER: usize = 16;
const SET_HEADER: usize = 4;

/// Realms and subscribers with an external address, which has a pool.
#[derive(Debug, Default)]
struct Ending {
    holders: BTreeSet<(u16, Subscriber)>,
    external: u32,
    pool: u16,
}

/// Makes messages of events.
#[derive(Debug)]
pub struct Ipfix {
    domain: u32,
    message_max: usize,
    bindings: Bindings,
    has_bindings: bool,
    /// Of the event that is being added.
    changes: Vec<Change>,
    sequence: u32,
    /// Of the ends of a run: whose they were.
    ending: Ending,
    /// The message that is being filled: where its last set begins, and of which template it is.
    open: Option<(Message, usize, Template)>,
    scratch: Vec<u8>,
}

impl Ipfix {
    /// An encoder of one observation domain, with messages of at most so many bytes.
    pub fn new(domain: u32, message_max: usize) -> Ipfix {
        Ipfix {
            domain,
            message_max: message_max.clamp(512, 65_535),
            bindings: Bindings::default(),
            has_bindings: true,
            changes: Vec::new(),
            sequence: 0,
            ending: Ending::default(),
            open: None,
            scratch: Vec::new(),
        }
    }

    /// The same without address bindings: its events are in no order of time.
    pub(crate) fn without_bindings(self) -> Ipfix {
        Ipfix { has_bindings: false, ..self }
    }

    /// An instance starts with the next event.
    pub(crate) fn begin(&mut self) {
        self.bindings.begin();
    }

    /// Adds what the event says; full messages go to `out`.
    pub(crate) fn push(&mut self, item: &Item<'_>, out: &mut Vec<Message>) {
        if item.event.kind == EventKind::Gap {
            // Missing records are said as missing sequence numbers.
            self.end(out);
            out.push(Message { skipped: item.event.amount, ..Message::default() });
        }
        let mut changes = core::mem::take(&mut self.changes);
        if self.has_bindings {
            self.bindings.apply_of((item.worker, item.event, item.subscriber), &mut changes);
        }
        // A binding begins before what it is for, and ends after it.
        self.put_bindings(&changes, NatEvent::AddressBound, item, out);
        if let Some(record) = Record::of(item) {
            self.put(&record.about(&item.subscriber), item, out);
        }
        self.put_bindings(&changes, NatEvent::AddressReleased, item, out);
        changes.clear();
        self.changes = changes;
    }

    /// Adds the end of what was open when a run ended. They come sorted by external address; a
    /// binding ends after all that it is for.
    pub(crate) fn push_end(&mut self, item: &Item<'_>, out: &mut Vec<Message>) {
        let external = item.event.external.to_bits();
        if self.ending.external != external {
            self.put_released(item, out);
        }
        (self.ending.external, self.ending.pool) = (external, item.pool_number());
        if item.subscriber != Subscriber::Unknown {
            self.ending.holders.insert((item.event.realm.0, item.subscriber));
        }
        if let Some(record) = Record::of(item) {
            self.put(&record.about(&item.subscriber), item, out);
        }
    }

    /// Ends the bindings to the address whose ends were added.
    fn put_released(&mut self, item: &Item<'_>, out: &mut Vec<Message>) {
        let Ending { holders, external, pool } = core::mem::take(&mut self.ending);
        for (realm, subscriber) in holders {
            self.bindings.forget(realm, &subscriber, external);
            let address = subscriber.ipv4().unwrap_or(UNKNOWN_HOST);
            let pair = (realm, address.to_bits(), external);
            let event = binding::event_of(&Event { pool: PoolName(pool), ..*item.event }, pair);
            let item = Item { event: &event, subscriber, ..*item };
            let record = Record::new(Template::AddressBinding, NatEvent::AddressReleased).about(&subscriber);
            self.put(&record, &item, out);
        }
    }

    /// A run is over: so are all bindings. Ends that are not known are a missing record.
    pub(crate) fn finish(&mut self, over: &Over<'_>, out: &mut Vec<Message>) {
        let Over { unix_us, names, are_ends_known, .. } = *over;
        let (event, quotas) = (Event::new(EventKind::MappingEnded, Instant::ORIGIN), Quotas::default());
        let (worker, subscriber) = (WorkerId(0), Subscriber::Unknown);
        let item = &Item { worker, event: &event, subscriber, unix_us, names, quotas: &quotas };
        self.put_released(item, out);
        let left = self.bindings.all();
        let of: Vec<Change> = left.into_iter().map(|pair| (NatEvent::AddressReleased, pair)).collect();
        self.put_bindings(&of, NatEvent::AddressReleased, item, out);
        self.bindings.begin();
        if !are_ends_known {
            // Nor what follows in the same run.
            self.bindings = Bindings::default();
            self.end(out);
            out.push(Message { skipped: 1, ..Message::default() });
        }
    }

    fn put_bindings(&mut self, changes: &[Change], of: NatEvent, item: &Item<'_>, out: &mut Vec<Message>) {
        for (nat_event, pair) in changes.iter().filter(|(nat_event, _)| *nat_event == of) {
            let event = binding::event_of(item.event, *pair);
            let item = Item { event: &event, subscriber: self.bindings.subscriber(*pair), ..*item };
            let record = Record::new(Template::AddressBinding, *nat_event).about(&item.subscriber);
            self.put(&record, &item, out);
        }
    }

    fn put(&mut self, record: &Record, item: &Item<'_>, out: &mut Vec<Message>) {
        self.scratch.clear();
        record.put(&mut self.scratch, item, self.domain);
        let length = self.scratch.len();
        let is_full = |message: &Message| message.bytes.len() + SET_HEADER + length > self.message_max;
        if self.open.as_ref().is_some_and(|(message, ..)| is_full(message)) {
            self.end(out);
        }
        let (message, set, template) = self.open.get_or_insert_with(|| {
            let mut message = Message::default();
            message.bytes.resize(HEADER, 0);
            begin_set(&mut message.bytes, record.template);
            (message, HEADER, record.template)
        });
        if *template != record.template {
            end_set(&mut message.bytes, *set);
            (*set, *template) = (message.bytes.len(), record.template);
            begin_set(&mut message.bytes, record.template);
        }
        message.bytes.extend_from_slice(&self.scratch);
        message.records += 1;
    }

    /// Ends the message that is being filled.
    pub(crate) fn end(&mut self, out: &mut Vec<Message>) {
        if let Some((mut message, set, _)) = self.open.take() {
            end_set(&mut message.bytes, set);
            out.push(message);
        }
    }

    /// The messages with the templates, none longer than others.
    pub fn templates(&self) -> Vec<Message> {
        let mut messages = Vec::new();
        let mut left = &Template::ALL[..];
        while !left.is_empty() {
            let mut message = Message::default();
            message.bytes.resize(HEADER, 0);
            left = template::put_templates(left, self.message_max, &mut message.bytes);
            messages.push(message);
        }
        messages
    }

    /// A connection begins: so does the sequence.
    pub(crate) fn connected(&mut self) {
        self.sequence = 0;
    }

    /// The sequence number of the next message.
    pub(crate) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Goes on with this sequence number.
    pub(crate) fn resume(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    /// Writes the header, just before the message is sent.
    pub fn stamp(&mut self, message: &mut Message, unix_us: u64) {
        let length = message.bytes.len() as u16;
        if let Some(header) = message.bytes.first_chunk_mut::<HEADER>() {
            header[..2].copy_from_slice(&10_u16.to_be_bytes());
            header[2..4].copy_from_slice(&length.to_be_bytes());
            header[4..8].copy_from_slice(&((unix_us / 1_000_000) as u32).to_be_bytes());
            header[8..12].copy_from_slice(&self.sequence.to_be_bytes());
            header[12..].copy_from_slice(&self.domain.to_be_bytes());
        }
        self.sequence = self.sequence.wrapping_add(message.records).wrapping_add(message.skipped);
    }
}

fn begin_set(bytes: &mut Vec<u8>, template: Template) {
    bytes.extend_from_slice(&template.id().to_be_bytes());
    bytes.extend_from_slice(&[0; 2]);
}

fn end_set(bytes: &mut [u8], set: usize) {
    let length = (bytes.len() - set) as u16;
    if let Some(place) = bytes.get_mut(set + 2..set + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}
