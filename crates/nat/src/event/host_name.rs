//! Names of IPv6 hosts and prefixes in a log.
//!
//! Events have 32 bits for a subscriber: an IPv6 host's number, which may later mean another host.
//! So an event names the host before the first event with its number. Otherwise unused fields hold
//! the address.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use super::Event;
use super::EventKind;
use crate::time::Instant;
pub use crate::types::HostName;
use crate::types::PoolName;
use crate::types::RealmId;

/// Replaces the number of an unknown host. No host has this address.
pub const UNKNOWN_HOST: Ipv4Addr = Ipv4Addr::BROADCAST;

/// In `pool`: the host is behind a softwire. Lower bits: prefix length.
const SOFTWIRE: u16 = 1 << 8;

impl HostName {
    /// The event that gives `number` this name.
    pub const fn event(&self, at: Instant, realm: RealmId, number: Ipv4Addr) -> Event {
        let inner = match self.inner {
            Some(inner) => inner,
            None => 0,
        };
        let softwire = if self.inner.is_some() { SOFTWIRE } else { 0 };
        Event {
            subscriber: number,
            external: Ipv4Addr::from_bits((self.address >> 96) as u32),
            remote: Ipv4Addr::from_bits((self.address >> 64) as u32),
            amount: (self.address >> 32) as u32,
            internal_port: (self.address >> 16) as u16,
            first_port: self.address as u16,
            last_port: (inner >> 16) as u16,
            remote_port: inner as u16,
            realm,
            pool: PoolName(softwire | self.prefix_length as u16),
            ..Event::new(EventKind::HostNamed, at)
        }
    }

    /// None for another event or an impossible name.
    pub fn of(event: &Event) -> Option<HostName> {
        let Event { external, remote, amount, internal_port, first_port, last_port, remote_port, pool, .. } = *event;
        let prefix_length = u8::try_from(pool.0 & (SOFTWIRE - 1)).ok().filter(|length| *length <= 128)?;
        if event.kind != EventKind::HostNamed || pool.0 >= 2 * SOFTWIRE {
            return None;
        }
        let high = u64::from(external.to_bits()) << 32 | u64::from(remote.to_bits());
        let low = u64::from(amount) << 32 | u64::from(internal_port) << 16 | u64::from(first_port);
        let inner = u32::from(last_port) << 16 | u32::from(remote_port);
        Some(HostName {
            address: u128::from(high) << 64 | u128::from(low),
            prefix_length,
            inner: (pool.0 & SOFTWIRE != 0).then_some(inner),
        })
    }

    /// The address as people write it.
    pub const fn ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Record;

    #[test]
    fn a_name_fits_a_record_and_comes_back() {
        let address = 0x2001_0db8_1234_5678_9abc_def0_8765_4321_u128;
        for (prefix_length, inner) in [(128, None), (56, None), (128, Some(0)), (128, Some(0xc0a8_0102))] {
            let name = HostName { address, prefix_length, inner };
            let event = name.event(Instant::from_micros(7), RealmId(3), Ipv4Addr::new(224, 0, 0, 9));
            let event = Record::from(event).event().unwrap();
            assert_eq!(HostName::of(&event), Some(name));
            assert_eq!((event.subscriber, event.realm), (Ipv4Addr::new(224, 0, 0, 9), RealmId(3)));
        }
        let other = Event::new(EventKind::MappingCreated, Instant::ORIGIN);
        assert_eq!(HostName::of(&other), None);
        let impossible = Event { pool: PoolName(129), ..Event::new(EventKind::HostNamed, Instant::ORIGIN) };
        assert_eq!(HostName::of(&impossible), None);
    }
}
