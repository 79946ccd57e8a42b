//! Puts the best route of each prefix into the tables of the workers.

use core::hash::BuildHasher;
use core::hash::Hasher;
use core::net::Ipv4Addr;
use core::time::Duration;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::RandomState;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use nat::Settings;
use nat::random::KeyedHash;
use nat::routes::live::Full;
use nat::routes::live::LiveRoutes;
use nat::routes::live::Target;
use nat::routes::live::Writer;
use nat::types::Prefix;

use crate::routing::rib::HOPS_MAX;
use crate::routing::rib::Hop;
use crate::routing::rib::Rib;
use crate::routing::rib::Table;

/// How long a worker may take to learn of a next hop.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);

/// A route could not be put into the table of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FibError {
    /// No room.
    #[error(transparent)]
    Full(#[from] Full),
    /// A worker does not poll.
    #[error("a worker does not take over a next hop")]
    Stuck,
}

/// The tables of the workers.
#[derive(Debug)]
pub struct Fib {
    writer: Writer,
    /// By table.
    installed: Vec<Installed>,
    /// Targets in use, with the number of their routes.
    targets: HashMap<Vec<Hop>, (Target, u32)>,
    hops_of: HashMap<Target, Vec<Hop>>,
}

/// The next hops of the best route. The weight of a single one means nothing, so that routes which
/// differ only in it have the same target.
fn best(rib: &Rib, table: Table, prefix: Prefix) -> Option<Cow<'_, [Hop]>> {
    Some(match rib.best(table, prefix)? {
        [single] if single.weight != 1 => Cow::Owned(vec![Hop { weight: 1, ..*single }]),
        hops => Cow::Borrowed(hops),
    })
}

/// Routes of a table by prefix.
#[derive(Debug)]
struct Installed {
    targets: HashMap<Prefix, Target, ByPrefix>,
    /// By length of the prefix, so that nobody looks for one of a length that there is not.
    count_of: [u32; 33],
}

impl Installed {
    fn insert(&mut self, prefix: Prefix, target: Target) {
        if self.targets.insert(prefix, target).is_none() {
            self.count_of[usize::from(prefix.length())] += 1;
        }
    }

    fn remove(&mut self, prefix: Prefix) {
        if self.targets.remove(&prefix).is_some() {
            self.count_of[usize::from(prefix.length())] -= 1;
        }
    }

    /// The longest shorter route, but that of length 0.
    fn cover(&self, prefix: Prefix) -> Option<(u8, Target)> {
        let there = (1..prefix.length()).rev().filter(|length| self.count_of[usize::from(*length)] > 0);
        let shorter = there.filter_map(|length| Prefix::new(prefix.address(), length));
        let target = |shorter: Prefix| self.targets.get(&shorter).map(|target| (shorter.length(), *target));
        shorter.into_iter().find_map(target)
    }
}

/// Hashes a prefix with a secret, so that no neighbour can choose prefixes that collide.
struct ByPrefix(KeyedHash);

impl ByPrefix {
    fn new() -> ByPrefix {
        // The standard library's own secret.
        let secret = |number: u64| RandomState::new().hash_one(number);
        ByPrefix(KeyedHash::new([secret(0), secret(1), secret(2), secret(3)]))
    }
}

impl BuildHasher for ByPrefix {
    type Hasher = PrefixHasher;

    fn build_hasher(&self) -> PrefixHasher {
        PrefixHasher { hash: self.0, seen: [0; 2] }
    }
}

/// Takes in an address and a length, which are one word each.
struct PrefixHasher {
    hash: KeyedHash,
    seen: [u64; 2],
}

impl Hasher for PrefixHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.seen[0] = self.seen[0] << 8 | u64::from(*byte);
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.seen[1] = self.seen[1] << 8 | u64::from(byte);
    }

    fn write_u32(&mut self, word: u32) {
        self.seen[0] = self.seen[0] << 32 | u64::from(word);
    }

    fn finish(&self) -> u64 {
        self.hash.hash(self.seen[0], self.seen[1])
    }
}

impl Fib {
    /// Empty tables.
    pub fn new(live: &Arc<LiveRoutes>, tables: usize) -> Fib {
        Fib {
            writer: Writer::new(live),
            installed: (0..tables)
                .map(|_| Installed { targets: HashMap::with_hasher(ByPrefix::new()), count_of: [0; 33] })
                .collect(),
            targets: HashMap::new(),
            hops_of: HashMap::new(),
        }
    }

    /// Routes in all tables.
    pub fn len(&self) -> usize {
        self.installed.iter().map(|routes| routes.targets.len()).sum()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the tables in use.
    pub fn bytes(&self) -> usize {
        self.writer.bytes()
    }

    /// To be called after each batch of changes.
    pub fn publish(&mut self) {
        self.writer.publish();
    }

    /// Brings a prefix into line with the best of its routes.
    ///
    /// # Errors
    /// [`FibError`]; the route before stays.
    pub fn refresh(&mut self, rib: &Rib, settings: &Settings, table: Table, prefix: Prefix) -> Result<(), FibError> {
        self.refresh_while(rib, settings, table, prefix, &mut || thread::sleep(Duration::from_micros(50)))
    }

    /// The same. `wait` is called until all workers know a new next hop.
    ///
    /// # Errors
    /// [`FibError`]; the route before stays.
    pub fn refresh_while(
        &mut self,
        rib: &Rib,
        settings: &Settings,
        table: Table,
        prefix: Prefix,
        wait: &mut dyn FnMut(),
    ) -> Result<(), FibError> {
        self.set(settings, table, prefix, best(rib, table, prefix).as_deref(), wait)?;
        if table != Table::Outside {
            // It may be excluded outside from now on, or no longer.
            self.set(settings, Table::Outside, prefix, best(rib, Table::Outside, prefix).as_deref(), wait)?;
        }
        Ok(())
    }

    fn set(
        &mut self,
        settings: &Settings,
        table: Table,
        prefix: Prefix,
        hops: Option<&[Hop]>,
        wait: &mut dyn FnMut(),
    ) -> Result<(), FibError> {
        let before = self.installed.get(table.index()).and_then(|routes| routes.targets.get(&prefix)).copied();
        match (hops, before) {
            (None, None) => return Ok(()),
            (Some(hops), Some(before)) if self.hops_of.get(&before).map_or(&[][..], Vec::as_slice) == hops => {
                return Ok(());
            }
            (Some(hops), _) => {
                let target = self.target(settings, hops, wait)?;
                if let Err(full) = self.writer.set(table.index(), prefix, target) {
                    self.release(target);
                    return Err(full.into());
                }
                if let Some(routes) = self.installed.get_mut(table.index()) {
                    routes.insert(prefix, target);
                }
            }
            (None, Some(_)) => {
                let Some(routes) = self.installed.get_mut(table.index()) else { return Ok(()) };
                routes.remove(prefix);
                self.writer.remove(table.index(), prefix, routes.cover(prefix));
            }
        }
        if let Some(before) = before {
            self.release(before);
        }
        Ok(())
    }

    fn target(&mut self, settings: &Settings, hops: &[Hop], wait: &mut dyn FnMut()) -> Result<Target, FibError> {
        if hops.is_empty() {
            return Ok(Target::DROP);
        }
        if let Some((target, uses)) = self.targets.get_mut(hops) {
            *uses += 1;
            return Ok(*target);
        }
        let mtu = |hop: &Hop| settings.interfaces.get(hop.interface.index()).map_or(0, |interface| interface.mtu);
        let engine: Vec<_> =
            hops.iter().take(HOPS_MAX).map(|hop| (hop.interface, hop.gateway, mtu(hop), hop.weight)).collect();
        let target = self.writer.target(&engine)?;
        let begun = Instant::now();
        while !self.writer.is_ready() {
            if begun.elapsed() > KNOWN_WITHIN {
                self.writer.release(target);
                return Err(FibError::Stuck);
            }
            wait();
        }
        self.targets.insert(hops.to_vec(), (target, 1));
        self.hops_of.insert(target, hops.to_vec());
        Ok(target)
    }

    fn release(&mut self, target: Target) {
        let Some(hops) = self.hops_of.get(&target) else { return };
        let Some((_, uses)) = self.targets.get_mut(hops) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.targets.remove(hops);
            self.hops_of.remove(&target);
            self.writer.release(target);
        }
    }

    /// Whether the tables have exactly the best route of each prefix; for tests and measurements.
    pub fn agrees(&self, rib: &Rib, settings: &Settings) -> bool {
        Table::all(settings.realms()).all(|table| {
            let mut count = 0;
            let mut from = core::ops::Bound::Included(Prefix::host(Ipv4Addr::UNSPECIFIED));
            from = rib.next_prefix(table, core::ops::Bound::Unbounded).map_or(from, core::ops::Bound::Included);
            while let Some(prefix) = rib.next_prefix(table, from) {
                let best = best(rib, table, prefix);
                let has = self.installed.get(table.index()).and_then(|routes| routes.targets.get(&prefix));
                let has = has.map(|target| self.hops_of.get(target).map_or(&[][..], Vec::as_slice));
                if best.as_deref() != has {
                    return false;
                }
                count += usize::from(has.is_some());
                from = core::ops::Bound::Excluded(prefix);
            }
            count == self.installed.get(table.index()).map_or(0, |routes| routes.targets.len())
        })
    }
}

#[cfg(test)]
mod tests;
