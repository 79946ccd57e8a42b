//! A file of IPFIX messages (RFC 5655) about intervals of the store.

use std::io;
use std::io::Write;
use std::time::UNIX_EPOCH;

use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::UNKNOWN_HOST;
use nat::types::PoolName;
use nat::types::RealmId;
use nat::types::WorkerId;

use super::Ipfix;
use crate::line::Names;
use crate::sink::Item;
use crate::sink::Message;
use crate::sink::Quotas;
use crate::store::Interval;
use crate::store::What;
use crate::subscriber::Subscriber;

/// Bytes of a message in a file.
const MESSAGE_MAX: usize = 8 << 10;

/// Writes intervals as pairs of records: the beginning, and the end unless it is still held when
/// the records end. There is no field for what is only possible, so an interval that is not proved
/// to its end is cut to the part that is, and one of which nothing is proved is left out.
#[derive(Debug)]
pub struct IpfixFile {
    ipfix: Ipfix,
    waiting: Vec<Message>,
    names: Names,
    quotas: Quotas,
    /// Time of the messages: the last one of a record.
    unix_us: u64,
    /// Templates, until the time of the first record is known.
    templates: Vec<Message>,
    /// Intervals that were cut or left out.
    shortened: u64,
}

impl IpfixFile {
    /// Begins a file of this observation domain.
    pub fn begin(domain: u32) -> IpfixFile {
        let ipfix = Ipfix::new(domain, MESSAGE_MAX).without_bindings();
        let (templates, waiting) = (ipfix.templates(), Vec::new());
        let (names, quotas) = (Names::default(), Quotas::default());
        IpfixFile { ipfix, waiting, names, quotas, unix_us: 0, templates, shortened: 0 }
    }

    /// Adds an interval.
    ///
    /// # Errors
    /// Writing failed.
    pub fn put(&mut self, interval: &Interval, out: &mut dyn Write) -> io::Result<()> {
        let Interval { holder, known_us, .. } = interval;
        let is_open = interval.is_open_to_the_end;
        let is_cut = !is_open || known_us.is_none_or(|(since_us, _)| holder.since_us < since_us);
        self.shortened += u64::from(!holder.is_certain && is_cut);
        let Some((since_us, until_us)) = *known_us else { return Ok(()) };
        let (begin, end) = match holder.what {
            What::Mapping => (EventKind::MappingCreated, EventKind::MappingEnded),
            What::Static => (EventKind::StaticCreated, EventKind::StaticEnded),
            What::Flow => (EventKind::FlowCreated, EventKind::FlowEnded),
            What::Block => (EventKind::BlockLeased, EventKind::BlockReturned),
        };
        if let Some(vrf) = &holder.vrf {
            let place = usize::from(holder.realm);
            let realms = &mut self.names.realms;
            realms.resize(realms.len().max(place + 1), String::new());
            if realms[place] != *vrf {
                realms[place].clone_from(vrf);
            }
        }
        let remote = holder.remote;
        let event = Event {
            subscriber: holder.subscriber.ipv4().unwrap_or(UNKNOWN_HOST),
            external: holder.external,
            remote: remote.map_or(core::net::Ipv4Addr::UNSPECIFIED, |(address, _)| address),
            remote_port: remote.map_or(0, |(_, port)| port),
            internal_port: holder.internal_port.unwrap_or(0),
            first_port: holder.first_port,
            last_port: holder.last_port,
            realm: RealmId(holder.realm),
            pool: holder.pool.map_or(PoolName::NONE, PoolName),
            protocol: holder.protocol,
            ..Event::new(begin, Instant::ORIGIN)
        };
        self.push((&event, holder.subscriber), since_us);
        if !is_open {
            self.push((&Event { kind: end, ..event }, holder.subscriber), until_us);
        }
        self.write(out)
    }

    fn push(&mut self, (event, subscriber): (&Event, Subscriber), unix_us: u64) {
        self.unix_us = self.unix_us.max(unix_us);
        let item = Item { worker: WorkerId(0), event, subscriber, unix_us, names: &self.names, quotas: &self.quotas };
        self.ipfix.push(&item, &mut self.waiting);
    }

    fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        for mut templates in self.templates.drain(..) {
            self.ipfix.stamp(&mut templates, self.unix_us);
            out.write_all(&templates.bytes)?;
        }
        for mut message in self.waiting.drain(..) {
            self.ipfix.stamp(&mut message, self.unix_us);
            out.write_all(&message.bytes)?;
        }
        Ok(())
    }

    /// Writes the rest. Returns how many intervals were cut or left out because they are not
    /// proved.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end(mut self, out: &mut dyn Write) -> io::Result<u64> {
        self.ipfix.end(&mut self.waiting);
        if self.unix_us == 0 {
            // Without a record.
            self.unix_us = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_micros() as u64);
        }
        self.write(out)?;
        Ok(self.shortened)
    }
}
