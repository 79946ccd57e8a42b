//! A file of IPFIX messages (RFC 5655) about intervals of the store.

use std::io;
use std::io::Write;

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
use crate::store::Holder;
use crate::store::Until;
use crate::store::What;
use crate::subscriber::Subscriber;

/// Bytes of a message in a file.
const MESSAGE_MAX: usize = 8 << 10;

/// Writes intervals as pairs of records: the beginning, and the end if it is known.
#[derive(Debug)]
pub struct IpfixFile {
    ipfix: Ipfix,
    waiting: Vec<Message>,
    names: Names,
    quotas: Quotas,
    /// Time of the messages: the last one of a record.
    unix_us: u64,
}

impl IpfixFile {
    /// Begins a file of this observation domain.
    ///
    /// # Errors
    /// Writing failed.
    pub fn begin(domain: u32, out: &mut dyn Write) -> io::Result<IpfixFile> {
        let mut ipfix = Ipfix::new(domain, MESSAGE_MAX);
        for mut templates in ipfix.templates() {
            ipfix.stamp(&mut templates, 0);
            out.write_all(&templates.bytes)?;
        }
        Ok(IpfixFile { ipfix, waiting: Vec::new(), names: Names::default(), quotas: Quotas::default(), unix_us: 0 })
    }

    /// Adds an interval.
    ///
    /// # Errors
    /// Writing failed.
    pub fn put(&mut self, holder: &Holder, out: &mut dyn Write) -> io::Result<()> {
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
        self.push((&event, holder.subscriber), holder.since_us);
        if let Until::Ended(until) | Until::Restart(until) | Until::Lost(until) = holder.until {
            self.push((&Event { kind: end, ..event }, holder.subscriber), until);
        }
        self.write(out)
    }

    fn push(&mut self, (event, subscriber): (&Event, Subscriber), unix_us: u64) {
        self.unix_us = self.unix_us.max(unix_us);
        let item = Item { worker: WorkerId(0), event, subscriber, unix_us, names: &self.names, quotas: &self.quotas };
        self.ipfix.push(&item, &mut self.waiting);
    }

    fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        for mut message in self.waiting.drain(..) {
            self.ipfix.stamp(&mut message, self.unix_us);
            out.write_all(&message.bytes)?;
        }
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// Writing failed.
    pub fn end(mut self, out: &mut dyn Write) -> io::Result<()> {
        self.ipfix.end(&mut self.waiting);
        self.write(out)
    }
}
