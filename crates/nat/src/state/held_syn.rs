//! Unsolicited inbound SYNs, held for six seconds (RFC 5382 §4.3 REQ-4).
//!
//! A matching outbound SYN (simultaneous open) discards the held one; otherwise the remote gets an
//! ICMP port unreachable. A full store drops SYNs silently, as REQ-4a allows.

use core::net::Ipv4Addr;

use crate::random::KeyedHash;
use crate::state::fifo_map::FifoMap;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::InterfaceId;

#[cfg(test)]
mod tests;

/// Largest IP and TCP headers.
pub const QUOTE_MAX: usize = 120;

/// A SYN to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldSyn {
    /// Its destination.
    pub external: Endpoint,
    /// Its source.
    pub remote: Endpoint,
    /// Ingress interface.
    pub ingress: InterfaceId,
    due: Instant,
    quote: [u8; QUOTE_MAX],
    quote_length: u8,
}

impl HeldSyn {
    /// Start of the received IP packet.
    pub fn quote(&self) -> &[u8] {
        self.quote.get(..usize::from(self.quote_length)).unwrap_or(&[])
    }
}

impl Default for HeldSyn {
    fn default() -> HeldSyn {
        let nobody = Endpoint::new(Ipv4Addr::UNSPECIFIED, 0);
        HeldSyn {
            external: nobody,
            remote: nobody,
            ingress: InterfaceId(0),
            due: Instant::ORIGIN,
            quote: [0; QUOTE_MAX],
            quote_length: 0,
        }
    }
}

/// Result of [`SynStore::hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Until [`SynStore::pop_due`] or [`SynStore::forget`].
    Held,
    /// One answer to these endpoints is enough.
    AlreadyHeld,
    /// No room.
    Full,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    external: u64,
    remote: u64,
}

fn packed(endpoint: Endpoint) -> u64 {
    u64::from(endpoint.address.to_bits()) << 16 | u64::from(endpoint.port)
}

impl Key {
    fn new(external: Endpoint, remote: Endpoint) -> Key {
        Key { external: packed(external), remote: packed(remote) }
    }
}

/// One worker's held SYNs.
#[derive(Debug)]
pub struct SynStore {
    held: FifoMap<Key, HeldSyn>,
    delay: Duration,
    hash: KeyedHash,
}

impl SynStore {
    /// `hash` needs its own secret.
    pub fn new(syns_max: u32, delay: Duration, hash: KeyedHash) -> SynStore {
        SynStore { held: FifoMap::new(syns_max as usize), delay, hash }
    }

    pub(crate) fn bytes_for(syns_max: u32) -> u64 {
        FifoMap::<Key, HeldSyn>::bytes_for(u64::from(syns_max))
    }

    /// Applies to later SYNs.
    pub fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    fn hash(&self, key: Key) -> u64 {
        self.hash.hash(key.external, key.remote)
    }

    /// O(1).
    pub fn hold(
        &mut self,
        now: Instant,
        external: Endpoint,
        remote: Endpoint,
        ingress: InterfaceId,
        packet: &[u8],
    ) -> Hold {
        let key = Key::new(external, remote);
        let hash = self.hash(key);
        if self.held.find(hash, &key).is_some() {
            return Hold::AlreadyHeld;
        }
        let mut syn = HeldSyn { external, remote, ingress, due: now + self.delay, ..HeldSyn::default() };
        for (to, from) in syn.quote.iter_mut().zip(packet) {
            *to = *from;
        }
        syn.quote_length = packet.len().min(QUOTE_MAX) as u8;
        match self.held.insert(hash, key, syn) {
            Some(_) => Hold::Held,
            None => Hold::Full,
        }
    }

    /// A matching outbound SYN was translated. O(1).
    pub fn forget(&mut self, external: Endpoint, remote: Endpoint) -> bool {
        if self.held.len() == 0 {
            return false;
        }
        let key = Key::new(external, remote);
        match self.held.find(self.hash(key), &key) {
            Some(slot) => self.held.remove(slot).is_some(),
            None => false,
        }
    }

    /// Removes the oldest SYN if due. O(1).
    pub fn pop_due(&mut self, now: Instant) -> Option<HeldSyn> {
        let (slot, syn) = self.held.oldest()?;
        if syn.due > now {
            return None;
        }
        self.held.remove(slot)
    }

    /// When the oldest is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.held.oldest().map(|(_, syn)| syn.due)
    }

    /// Held SYNs.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True if none is held.
    pub fn is_empty(&self) -> bool {
        self.held.len() == 0
    }
}
