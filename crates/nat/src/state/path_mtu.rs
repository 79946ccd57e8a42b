//! MTUs of paths to B4s, as reported by routers (RFC 2473 §7.2, RFC 8201). An entry may replace
//! another, whose path is then probed again.

use crate::random::KeyedHash;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::RealmId;

#[cfg(test)]
mod tests;

/// 32 KiB.
pub(crate) const ENTRIES: usize = 1_024;
/// RFC 8201 §5.3.
pub(crate) const LIFETIME: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u128,
    until: Instant,
    mtu: u16,
    /// Realms may use the same addresses for different B4s.
    realm: RealmId,
}

pub(crate) struct PathMtus {
    entries: Box<[Entry]>,
    hash: KeyedHash,
    until: Instant,
}

impl PathMtus {
    /// Allocates nothing without hosts.
    pub(crate) fn new(hash: KeyedHash, has_hosts: bool) -> PathMtus {
        let count = if has_hosts { ENTRIES } else { 0 };
        let free = Entry { address: 0, until: Instant::ORIGIN, mtu: 0, realm: RealmId::default() };
        PathMtus { entries: vec![free; count].into_boxed_slice(), hash, until: Instant::ORIGIN }
    }

    fn place(&self, realm: RealmId, address: u128) -> usize {
        let high = (address >> 64) as u64 ^ u64::from(realm.0).rotate_right(16);
        self.hash.hash(high, address as u64) as usize % ENTRIES
    }

    /// The MTU of a path, at most that of the link.
    #[inline(always)]
    pub(crate) fn of(&self, now: Instant, (realm, address): (RealmId, u128), link: u16) -> u16 {
        if self.until <= now { link } else { self.known(now, realm, address).map_or(link, |mtu| mtu.min(link)) }
    }

    #[cold]
    fn known(&self, now: Instant, realm: RealmId, address: u128) -> Option<u16> {
        let entry = self.entries.get(self.place(realm, address))?;
        ((entry.address, entry.realm) == (address, realm) && now < entry.until).then_some(entry.mtu)
    }

    /// A router says that larger packets do not pass. A larger MTU than the known one changes
    /// nothing.
    pub(crate) fn note(&mut self, now: Instant, (realm, address): (RealmId, u128), mtu: u16) {
        if self.known(now, realm, address).is_some_and(|known| known <= mtu) {
            return;
        }
        let place = self.place(realm, address);
        if let Some(entry) = self.entries.get_mut(place) {
            *entry = Entry { address, until: now + LIFETIME, mtu, realm };
            self.until = now + LIFETIME;
        }
    }
}
