//! Events become messages of one of three formats.

use std::sync::Arc;

use nat::event::Event;
use nat::types::PoolName;
use nat::types::WorkerId;

use super::ipfix::Ipfix;
use super::quotas::Quotas;
use super::syslog;
use crate::line;
use crate::line::Names;
use crate::line::Own;
use crate::subscriber::Subscriber;
use crate::utc::UtcText;

/// Format of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IPFIX with the events of RFC 8158.
    Ipfix,
    /// Syslog (RFC 5424).
    Syslog,
    /// Lines of JSON, as in files.
    Json,
}

/// Names and limits of the current configuration.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Names for the numbers in events.
    pub names: Arc<Names>,
    /// Limits that refusals name.
    pub quotas: Arc<Quotas>,
}

/// An event with what its record needs.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    /// The worker that recorded it.
    pub worker: WorkerId,
    /// The event.
    pub event: &'a Event,
    /// Its subscriber: `event.subscriber` may be a number.
    pub subscriber: Subscriber,
    /// Its time, µs since 1970.
    pub unix_us: u64,
    /// Names for its numbers.
    pub names: &'a Names,
    /// Limits that it may be about.
    pub quotas: &'a Quotas,
}

impl Item<'_> {
    /// The name of the realm; empty if it is not known.
    pub(crate) fn realm_name(&self) -> &str {
        self.names.realms.get(usize::from(self.event.realm.0)).map_or("", String::as_str)
    }

    /// The number of the pool. Records of mappings have none; their external address gives it,
    /// because it belongs to one pool only. [`PoolName::NONE`] if no pool has the address any more.
    pub(crate) fn pool_number(&self) -> u16 {
        let addresses = &self.names.addresses;
        if !self.event.kind.is_allocation() || addresses.ranges().is_empty() {
            return self.event.pool.0;
        }
        addresses.find(self.event.external).unwrap_or(PoolName::NONE.0)
    }

    pub(crate) fn pool_name(&self) -> &str {
        self.names.pools.get(usize::from(self.event.pool.0)).map_or("", String::as_str)
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub struct Over<'a> {
    /// Its time, µs since 1970.
    pub unix_us: u64,
    /// The last numbers of its workers, if it was stopped and has all records.
    pub sequences: Option<&'a [u64]>,
    /// False if the ends of what was open then are not known.
    pub are_ends_known: bool,
    /// Names for its numbers.
    pub names: &'a Names,
}

/// Bytes for one datagram, or for a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The bytes. In IPFIX the header is written when the message is sent.
    pub bytes: Vec<u8>,
    /// Records in it.
    pub records: u32,
    /// Records that are missing before it.
    pub(crate) skipped: u32,
}

/// Bytes of a message on a stream.
const STREAM_MESSAGE: usize = 16 << 10;
/// Bytes of an IPFIX message on a stream.
const STREAM_IPFIX: usize = 8 << 10;

/// Makes messages of events.
#[derive(Debug)]
pub struct Encoder {
    format: Format,
    /// Several records may share a message.
    is_stream: bool,
    open: Message,
    utc: UtcText,
    version: String,
}

#[derive(Debug)]
enum Format {
    Ipfix(Box<Ipfix>),
    Syslog(syslog::Origin),
    Json,
}

impl Encoder {
    /// An encoder for streams, or for datagrams of at most `datagram_max` bytes. `host` is the name
    /// of this machine, `domain` the number of this instance, `version` its release.
    pub fn new(kind: Kind, datagram_max: Option<usize>, host: &str, domain: u32, version: &str) -> Encoder {
        let format = match kind {
            Kind::Ipfix => Format::Ipfix(Box::new(Ipfix::new(domain, datagram_max.unwrap_or(STREAM_IPFIX)))),
            Kind::Syslog => Format::Syslog(syslog::Origin::new(host)),
            Kind::Json => Format::Json,
        };
        let is_stream = datagram_max.is_none();
        Encoder { format, is_stream, open: Message::default(), utc: UtcText::default(), version: version.to_owned() }
    }

    /// An instance starts with the next event.
    pub fn begin(&mut self, unix_us: u64, out: &mut Vec<Message>) {
        match &mut self.format {
            Format::Ipfix(ipfix) => ipfix.begin(),
            Format::Syslog(origin) => {
                let is_stream = self.is_stream;
                origin.put_start(&mut self.open.bytes, &mut self.utc, unix_us, &self.version, is_stream);
                self.added(out);
            }
            Format::Json => {
                let own = Own { event: "started", version: &self.version, ..Own::default() };
                line::write_own(&mut self.open.bytes, unix_us, &own);
                self.added(out);
            }
        }
    }

    /// Adds the end of something that was open at the end of a run: nothing recorded it. Lines of
    /// JSON have none, because `stopped` or `started` ends everything there.
    pub fn push_end(&mut self, item: &Item<'_>, out: &mut Vec<Message>) {
        match &mut self.format {
            Format::Ipfix(ipfix) => ipfix.push_end(item, out),
            Format::Syslog(_) => self.push(item, out),
            Format::Json => {}
        }
    }

    /// A run is over, and all its ends were added.
    pub fn finish(&mut self, over: &Over<'_>, out: &mut Vec<Message>) {
        match &mut self.format {
            Format::Ipfix(ipfix) => ipfix.finish(over, out),
            Format::Syslog(origin) => {
                let is_stream = self.is_stream;
                if origin.put_over(&mut self.open.bytes, &mut self.utc, over, is_stream) {
                    self.added(out);
                }
            }
            Format::Json => {
                let Over { unix_us, sequences, .. } = *over;
                if sequences.is_some() {
                    let own = Own { event: "stopped", version: &self.version, sequences, ..Own::default() };
                    line::write_own(&mut self.open.bytes, unix_us, &own);
                    self.added(out);
                }
            }
        }
    }

    /// The sequence number of the next message, in formats that have one.
    pub(crate) fn sequence(&self) -> u32 {
        if let Format::Ipfix(ipfix) = &self.format { ipfix.sequence() } else { 0 }
    }

    /// Goes on with this sequence number.
    pub(crate) fn resume(&mut self, sequence: u32) {
        if let Format::Ipfix(ipfix) = &mut self.format {
            ipfix.resume(sequence);
        }
    }

    /// Adds what the event says; full messages go to `out`.
    pub fn push(&mut self, item: &Item<'_>, out: &mut Vec<Message>) {
        match &mut self.format {
            Format::Ipfix(ipfix) => ipfix.push(item, out),
            Format::Syslog(origin) => {
                origin.put(&mut self.open.bytes, &mut self.utc, item, self.is_stream);
                self.added(out);
            }
            Format::Json => {
                let Item { worker, event, subscriber, unix_us, names, .. } = item;
                line::write_with(&mut self.open.bytes, &mut self.utc, *worker, (event, *subscriber), *unix_us, names);
                self.added(out);
            }
        }
    }

    fn added(&mut self, out: &mut Vec<Message>) {
        self.open.records += 1;
        if !self.is_stream || self.open.bytes.len() >= STREAM_MESSAGE {
            out.push(core::mem::take(&mut self.open));
        }
    }

    /// Ends the message that is being filled.
    pub fn end(&mut self, out: &mut Vec<Message>) {
        if let Format::Ipfix(ipfix) = &mut self.format {
            ipfix.end(out);
        } else if self.open.records > 0 {
            out.push(core::mem::take(&mut self.open));
        }
    }

    /// What a collector needs before the first record, and from time to time without a connection.
    pub fn preface(&self) -> Vec<Message> {
        match &self.format {
            Format::Ipfix(ipfix) => ipfix.templates(),
            Format::Syslog(_) | Format::Json => Vec::new(),
        }
    }

    /// A connection begins.
    pub(crate) fn connected(&mut self) {
        if let Format::Ipfix(ipfix) = &mut self.format {
            ipfix.connected();
        }
    }

    /// Completes a message just before it is sent.
    pub fn stamp(&mut self, message: &mut Message, unix_us: u64) {
        if let Format::Ipfix(ipfix) = &mut self.format {
            ipfix.stamp(message, unix_us);
        }
    }
}
