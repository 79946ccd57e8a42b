//! The subscriber of a record: an IPv4 host, or an IPv6 host by its name.

use core::fmt;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::HashMap;

use nat::event::Cause;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::HostName;
use nat::types::HostNumber;
use nat::types::WorkerId;

/// A subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subscriber {
    /// An IPv4 host.
    Ipv4(Ipv4Addr),
    /// An IPv6 host, one behind a softwire, or an IPv6 prefix.
    Host(HostName),
    /// An IPv6 host; the record of its name is missing.
    Unknown,
}

impl Subscriber {
    /// Its IPv4 address, if it is an IPv4 host.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        match self {
            Subscriber::Ipv4(address) => Some(*address),
            Subscriber::Host(_) | Subscriber::Unknown => None,
        }
    }

    /// Its IPv6 address, or that of its B4, or the first of its prefix.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        match self {
            Subscriber::Host(name) => Some(name.ipv6()),
            Subscriber::Ipv4(_) | Subscriber::Unknown => None,
        }
    }

    /// Length of its IPv6 prefix, 128 of a host.
    pub fn prefix_length(&self) -> u8 {
        match self {
            Subscriber::Host(name) => name.prefix_length,
            Subscriber::Ipv4(_) | Subscriber::Unknown => 128,
        }
    }

    /// Its IPv4 address behind a softwire.
    pub fn inner(&self) -> Option<Ipv4Addr> {
        match self {
            Subscriber::Host(name) => name.inner.map(Ipv4Addr::from_bits),
            Subscriber::Ipv4(_) | Subscriber::Unknown => None,
        }
    }

    /// Its address or prefix without the inner address; None if it is not known.
    pub fn address_text(&self) -> Option<String> {
        match self {
            Subscriber::Ipv4(address) => Some(address.to_string()),
            Subscriber::Host(name) if name.prefix_length < 128 => {
                Some(format!("{}/{}", name.ipv6(), name.prefix_length))
            }
            Subscriber::Host(name) => Some(name.ipv6().to_string()),
            Subscriber::Unknown => None,
        }
    }

    /// What [`Subscriber::address_text`] and [`Subscriber::inner`] say; None if it is no name of an
    /// IPv6 host or prefix.
    pub fn host(address: &str, inner: Option<Ipv4Addr>) -> Option<HostName> {
        let (address, length) = address.split_once('/').unwrap_or((address, "128"));
        let address: Ipv6Addr = address.parse().ok()?;
        let prefix_length = length.parse().ok().filter(|length| *length <= 128)?;
        Some(HostName { address: address.to_bits(), prefix_length, inner: inner.map(Ipv4Addr::to_bits) })
    }
}

impl fmt::Display for Subscriber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address_text(), self.inner()) {
            (Some(address), Some(inner)) => write!(out, "{inner} behind {address}"),
            (Some(address), None) => out.write_str(&address),
            (None, _) => out.write_str("unknown IPv6 host"),
        }
    }
}

/// The names of IPv6 hosts in a sequence of events.
#[derive(Debug, Default)]
pub struct HostNames {
    current: HashMap<u32, (WorkerId, HostName)>,
}

impl HostNames {
    /// The subscriber of the next event. Numbers have no names after lost events, until they are
    /// named again.
    #[inline]
    pub fn subscriber_of(&mut self, worker: WorkerId, event: &Event) -> Subscriber {
        if event.kind == EventKind::Gap && event.cause != Cause::NoAllocation {
            self.forget(worker);
        }
        if HostNumber::from(event.subscriber).is_ipv6() {
            self.host(worker, event)
        } else {
            Subscriber::Ipv4(event.subscriber)
        }
    }

    #[cold]
    fn host(&mut self, worker: WorkerId, event: &Event) -> Subscriber {
        let number = event.subscriber.to_bits();
        if event.kind == EventKind::HostNamed {
            match HostName::of(event) {
                Some(name) => self.current.insert(number, (worker, name)),
                None => self.current.remove(&number),
            };
        }
        self.current.get(&number).map_or(Subscriber::Unknown, |(_, name)| Subscriber::Host(*name))
    }

    pub(crate) fn insert(&mut self, number: u32, worker: WorkerId, name: HostName) {
        self.current.insert(number, (worker, name));
    }

    /// Events of a worker are missing.
    pub fn forget(&mut self, worker: WorkerId) {
        self.current.retain(|_, (of, _)| *of != worker);
    }

    /// Numbers begin again.
    pub fn clear(&mut self) {
        self.current.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_written_and_read() {
        let of = |text: &str, inner| Subscriber::host(text, inner).map(Subscriber::Host);
        for (text, inner) in
            [("2001:db8::7", None), ("2001:db8::/56", None), ("2001:db8::b4", Some(Ipv4Addr::new(192, 168, 1, 2)))]
        {
            let subscriber = of(text, inner).unwrap();
            assert_eq!((subscriber.address_text().as_deref(), subscriber.inner()), (Some(text), inner));
        }
        assert_eq!(
            of("2001:db8::b4", Some(Ipv4Addr::new(10, 0, 0, 1))).unwrap().to_string(),
            "10.0.0.1 behind 2001:db8::b4"
        );
        assert_eq!((of("100.64.0.1", None), of("2001:db8::/129", None)), (None, None));
    }

    #[test]
    fn a_number_without_a_name_is_no_address() {
        let mut names = HostNames::default();
        let number = Ipv4Addr::new(224, 0, 0, 5);
        let event = Event { subscriber: number, ..Event::new(EventKind::MappingCreated, nat::Instant::ORIGIN) };
        assert_eq!(names.subscriber_of(WorkerId(1), &event), Subscriber::Unknown);
        let name = HostName { address: 5, prefix_length: 128, inner: None };
        names.subscriber_of(WorkerId(1), &name.event(nat::Instant::ORIGIN, nat::types::RealmId(0), number));
        assert_eq!(names.subscriber_of(WorkerId(1), &event), Subscriber::Host(name));
        let gap = Event::new(EventKind::Gap, nat::Instant::ORIGIN);
        names.subscriber_of(WorkerId(0), &gap);
        assert_eq!(names.subscriber_of(WorkerId(1), &event), Subscriber::Host(name));
        names.subscriber_of(WorkerId(1), &gap);
        assert_eq!(names.subscriber_of(WorkerId(1), &event), Subscriber::Unknown);
    }
}
