//! What an event says in the terms of RFC 8158, field by field.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use nat::Verdict;
use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::reassembly;

use super::template::Field;
use super::template::Template;
use crate::line::is_late;
use crate::sink::Item;
use crate::subscriber::Subscriber;

/// natEvent (RFC 8158 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NatEvent {
    AddressesExhausted = 3,
    SessionCreated = 4,
    SessionDeleted = 5,
    Nat64SessionCreated = 6,
    Nat64SessionDeleted = 7,
    BibCreated = 8,
    BibDeleted = 9,
    Nat64BibCreated = 10,
    Nat64BibDeleted = 11,
    PortsExhausted = 12,
    QuotaExceeded = 13,
    AddressBound = 14,
    AddressReleased = 15,
    BlockAllocated = 16,
    BlockReleased = 17,
    ThresholdReached = 18,
}

/// A data record before it is bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) template: Template,
    nat_event: NatEvent,
    /// natQuotaExceededEvent or natThresholdEvent.
    reason: u32,
    /// The limit that was reached.
    limit: u32,
}

impl Record {
    pub(crate) fn new(template: Template, nat_event: NatEvent) -> Record {
        Record { template, nat_event, reason: 0, limit: 0 }
    }

    /// The same about this subscriber: NAT64 has events of its own, and an AFTR is a NAT44.
    pub(crate) fn about(self, subscriber: &Subscriber) -> Record {
        let template = self.template.for_subscriber(subscriber);
        let nat_event = match (template, self.nat_event) {
            (Template::Session6, NatEvent::SessionCreated) => NatEvent::Nat64SessionCreated,
            (Template::Session6, NatEvent::SessionDeleted) => NatEvent::Nat64SessionDeleted,
            (Template::Bib6, NatEvent::BibCreated) => NatEvent::Nat64BibCreated,
            (Template::Bib6, NatEvent::BibDeleted) => NatEvent::Nat64BibDeleted,
            (_, nat_event) => nat_event,
        };
        Record { template, nat_event, ..self }
    }

    /// The record of an event; None if RFC 8158 has none for it.
    pub(crate) fn of(item: &Item<'_>) -> Option<Record> {
        let Item { event, .. } = item;
        Some(match event.kind {
            EventKind::MappingCreated | EventKind::StaticCreated => Record::new(Template::Bib, NatEvent::BibCreated),
            EventKind::MappingEnded | EventKind::StaticEnded => Record::new(Template::Bib, NatEvent::BibDeleted),
            EventKind::FlowCreated => Record::new(Template::Session, NatEvent::SessionCreated),
            EventKind::FlowEnded => Record::new(Template::Session, NatEvent::SessionDeleted),
            EventKind::BlockLeased => Record::new(Template::PortBlock, NatEvent::BlockAllocated),
            EventKind::BlockReturned => Record::new(Template::PortBlock, NatEvent::BlockReleased),
            EventKind::PoolExhausted if event.external.is_unspecified() => {
                Record::new(Template::AddressesExhausted, NatEvent::AddressesExhausted)
            }
            EventKind::PoolExhausted => Record::new(Template::PortsExhausted, NatEvent::PortsExhausted),
            EventKind::Refused => return Record::of_refusal(item),
            EventKind::ThresholdReached | EventKind::ThresholdCleared => return Record::of_threshold(event),
            _ => return None,
        })
    }

    fn of_refusal(item: &Item<'_>) -> Option<Record> {
        let Cause::Verdict(verdict) = item.event.cause else { return None };
        let quotas = item.quotas;
        let (template, reason, limit) = match verdict {
            Verdict::SessionTableFull => (Template::SessionQuota, 1, quotas.sessions),
            Verdict::MappingTableFull => (Template::BibQuota, 2, quotas.mappings),
            Verdict::SubscriberPortQuota | Verdict::SubscriberSessionQuota => {
                (Template::UserQuota, 3, quotas.of_subscriber(item.event, verdict))
            }
            Verdict::SubscriberTableFull => (Template::SubscriberQuota, 4, quotas.subscribers),
            Verdict::FragmentTableFull => (Template::FragmentQuota, 5, quotas.fragmented_datagrams),
            Verdict::FragmentBuffersFull => (Template::FragmentQuota, 5, quotas.fragments_held),
            Verdict::ReassemblyFull => (Template::FragmentQuota, 5, reassembly::DATAGRAMS as u32),
            Verdict::ReassemblyQuota => (Template::FragmentQuota, 5, reassembly::PER_SUBSCRIBER as u32),
            _ => return None,
        };
        Some(Record { reason, limit, ..Record::new(template, NatEvent::QuotaExceeded) })
    }

    fn of_threshold(event: &Event) -> Option<Record> {
        let (template, reason) = match (event.cause, event.kind == EventKind::ThresholdReached) {
            (Cause::PoolPorts, true) => (Template::PoolHigh, 1),
            (Cause::PoolPorts, false) => (Template::PoolLow, 2),
            (Cause::SubscriberPorts | Cause::SubscriberSessions, true) => (Template::UserHigh, 4),
            (Cause::SubscriberPorts | Cause::SubscriberSessions, false) => (Template::UserLow, 4),
            _ => return None,
        };
        Some(Record { reason, limit: event.amount, ..Record::new(template, NatEvent::ThresholdReached) })
    }

    /// Appends its fields.
    pub(crate) fn put(&self, out: &mut Vec<u8>, item: &Item<'_>, instance: u32) {
        let event = item.event;
        for field in self.template.all_fields() {
            match field {
                Field::ObservationTimeMs => out.extend_from_slice(&(began_us(item) / 1_000).to_be_bytes()),
                Field::NatEvent => out.push(self.nat_event as u8),
                Field::NatInstance => out.extend_from_slice(&instance.to_be_bytes()),
                Field::IngressVrf => out.extend_from_slice(&u32::from(event.realm.0).to_be_bytes()),
                Field::InternalRealm => put_name(out, item.realm_name()),
                Field::Protocol => out.push(event.protocol.map_or(0, |protocol| protocol.number())),
                Field::SourceAddress => {
                    let address = item.subscriber.ipv4().or(item.subscriber.inner());
                    out.extend_from_slice(&address.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
                }
                // No address of a host: its name was lost.
                Field::SourceAddress6 => {
                    let address = item.subscriber.ipv6().unwrap_or(Ipv6Addr::UNSPECIFIED);
                    out.extend_from_slice(&address.octets());
                }
                Field::SourcePrefixLength6 => out.push(item.subscriber.prefix_length()),
                Field::PostNatSourceAddress => out.extend_from_slice(&event.external.octets()),
                Field::DestinationAddress | Field::PostNatDestinationAddress => {
                    out.extend_from_slice(&event.remote.octets())
                }
                Field::SourcePort => out.extend_from_slice(&event.internal_port.to_be_bytes()),
                Field::PostNaptSourcePort | Field::PortRangeStart => {
                    out.extend_from_slice(&event.first_port.to_be_bytes());
                }
                Field::PortRangeEnd => out.extend_from_slice(&event.last_port.to_be_bytes()),
                Field::PortRangePorts => {
                    let ports = event.last_port.wrapping_sub(event.first_port).saturating_add(1);
                    out.extend_from_slice(&ports.to_be_bytes());
                }
                Field::DestinationPort | Field::PostNaptDestinationPort => {
                    out.extend_from_slice(&event.remote_port.to_be_bytes());
                }
                Field::NatPool => out.extend_from_slice(&u32::from(item.pool_number()).to_be_bytes()),
                Field::QuotaExceededEvent | Field::ThresholdEvent => out.extend_from_slice(&self.reason.to_be_bytes()),
                Field::MaxSessionEntries
                | Field::MaxBibEntries
                | Field::MaxEntriesPerUser
                | Field::MaxSubscribers
                | Field::MaxFragmentsPending
                | Field::AddressPoolHigh
                | Field::AddressPoolLow
                | Field::AddressPortMappingHigh
                | Field::AddressPortMappingLow
                | Field::AddressPortMappingPerUserHigh => out.extend_from_slice(&self.limit.to_be_bytes()),
            }
        }
    }
}

/// The time of the event that a record reports (RFC 8158 §5.1): of an allocation that is recorded
/// later, when it began, to a second either way.
fn began_us(item: &Item<'_>) -> u64 {
    let age_s = if is_late(item.event) { item.event.amount } else { 0 };
    item.unix_us.saturating_sub(u64::from(age_s) * 1_000_000)
}

/// Appends a text with its length in one byte (RFC 7011 §7); names are shorter than 255 bytes.
fn put_name(out: &mut Vec<u8>, name: &str) {
    let bytes = &name.as_bytes()[..name.len().min(254)];
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}
