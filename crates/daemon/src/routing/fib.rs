//! Puts the best route of each prefix into the tables of the workers.

use core::hash::BuildHasher;
use core::hash::Hasher;
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
use nat::stand_in::Prefix6;
use nat::types::Prefix;

use crate::routing::family::Family;
use crate::routing::rib::HOPS_MAX;
use crate::routing::rib::Hop;
use crate::routing::rib::RibOf;
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
    pub(super) writer: Writer,
    pub(super) half4: Half<Prefix>,
    pub(super) half6: Half<Prefix6>,
}

/// What is in the tables of one family.
#[derive(Debug)]
pub struct Half<P: Family> {
    /// By table.
    installed: Vec<Installed<P>>,
    /// Targets in use, with the number of their routes.
    targets: HashMap<Vec<Hop<P::Address>>, (Target, u32)>,
    hops_of: HashMap<Target, Vec<Hop<P::Address>>>,
}

/// The next hops of the best route. The weight of a single one means nothing, so that routes which
/// differ only in it have the same target.
fn best<P: Family>(rib: &RibOf<P>, table: Table, prefix: P) -> Option<Cow<'_, [Hop<P::Address>]>> {
    Some(match rib.best(table, prefix)? {
        [single] if single.weight != 1 => Cow::Owned(vec![Hop { weight: 1, ..*single }]),
        hops => Cow::Borrowed(hops),
    })
}

/// Routes of a table by prefix.
#[derive(Debug)]
struct Installed<P> {
    targets: HashMap<P, Target, ByPrefix>,
    /// By length of the prefix, so that no length without a prefix is searched.
    count_of: [u32; 129],
}

impl<P: Family> Installed<P> {
    fn insert(&mut self, prefix: P, target: Target) {
        if self.targets.insert(prefix, target).is_none() {
            self.count_of[usize::from(prefix.bits())] += 1;
        }
    }

    fn remove(&mut self, prefix: P) {
        if self.targets.remove(&prefix).is_some() {
            self.count_of[usize::from(prefix.bits())] -= 1;
        }
    }

    /// The longest shorter route, but that of length 0.
    fn cover(&self, prefix: P) -> Option<(u8, Target)> {
        let there = (1..prefix.bits()).rev().filter(|length| self.count_of[usize::from(*length)] > 0);
        let shorter = there.filter_map(|length| P::of(prefix.first(), length));
        let target = |shorter: P| self.targets.get(&shorter).map(|target| (shorter.bits(), *target));
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

    fn write_u128(&mut self, word: u128) {
        self.seen[0] = self.hash.hash((word >> 64) as u64, word as u64);
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
        let tables6 = if live.has_ipv6() { tables } else { 0 };
        Fib { writer: Writer::new(live), half4: Half::new(tables), half6: Half::new(tables6) }
    }

    /// Routes in all tables.
    pub fn len(&self) -> usize {
        self.half4.len() + self.half6.len()
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
    /// As [`Fib::refresh_while`].
    pub fn refresh<P: Family>(
        &mut self,
        rib: &RibOf<P>,
        settings: &Settings,
        table: Table,
        prefix: P,
    ) -> Result<(), FibError> {
        self.refresh_while(rib, settings, table, prefix, &mut || thread::sleep(Duration::from_micros(50)))
    }

    /// The same. `wait` is called until all workers know a new next hop.
    ///
    /// # Errors
    /// [`FibError`]; the route before stays. If only its several next hops are too many, the first
    /// of them takes its place.
    pub fn refresh_while<P: Family>(
        &mut self,
        rib: &RibOf<P>,
        settings: &Settings,
        table: Table,
        prefix: P,
        wait: &mut dyn FnMut(),
    ) -> Result<(), FibError> {
        let (writer, half) = P::half(self);
        half.set(writer, settings, table, prefix, best(rib, table, prefix).as_deref(), wait)?;
        if table != Table::Outside && P::EXCLUDES_INSIDE {
            // It may be excluded outside from now on, or no longer.
            let outside = best(rib, Table::Outside, prefix);
            half.set(writer, settings, Table::Outside, prefix, outside.as_deref(), wait)?;
        }
        Ok(())
    }

    /// Whether the tables have exactly the best route of each prefix; for tests and measurements.
    pub fn agrees<P: Family>(&self, rib: &RibOf<P>, settings: &Settings) -> bool {
        let half = P::half_of(self);
        Table::all(settings.realms()).all(|table| {
            let mut count = 0;
            let mut next = rib.next_prefix(table, core::ops::Bound::Unbounded);
            while let Some(prefix) = next {
                let best = best(rib, table, prefix);
                let has = half.installed.get(table.index()).and_then(|routes| routes.targets.get(&prefix));
                let has = has.map(|target| half.hops_of.get(target).map_or(&[][..], Vec::as_slice));
                if best.as_deref() != has {
                    return false;
                }
                count += usize::from(has.is_some());
                next = rib.next_prefix(table, core::ops::Bound::Excluded(prefix));
            }
            count == half.installed.get(table.index()).map_or(0, |routes| routes.targets.len())
        })
    }
}

impl<P: Family> Half<P> {
    fn new(tables: usize) -> Half<P> {
        let table = || Installed { targets: HashMap::with_hasher(ByPrefix::new()), count_of: [0; 129] };
        Half { installed: (0..tables).map(|_| table()).collect(), targets: HashMap::new(), hops_of: HashMap::new() }
    }

    fn len(&self) -> usize {
        self.installed.iter().map(|routes| routes.targets.len()).sum()
    }

    fn set(
        &mut self,
        writer: &mut Writer,
        settings: &Settings,
        table: Table,
        prefix: P,
        hops: Option<&[Hop<P::Address>]>,
        wait: &mut dyn FnMut(),
    ) -> Result<(), FibError> {
        let before = self.installed.get(table.index()).and_then(|routes| routes.targets.get(&prefix)).copied();
        match (hops, before) {
            (None, None) => return Ok(()),
            (Some(hops), Some(before)) if self.hops_of.get(&before).map_or(&[][..], Vec::as_slice) == hops => {
                return Ok(());
            }
            (Some(hops), _) => {
                let target = match (self.target(writer, settings, hops, wait), hops) {
                    // One of them is better than none, or than those of the route before.
                    (Err(full @ FibError::Full(_)), [first, _, ..]) => {
                        self.set(writer, settings, table, prefix, Some(&[Hop { weight: 1, ..*first }]), wait)?;
                        return Err(full);
                    }
                    (target, _) => target?,
                };
                if let Err(full) = prefix.set(writer, table.index(), target) {
                    self.release(writer, target);
                    return Err(full.into());
                }
                if let Some(routes) = self.installed.get_mut(table.index()) {
                    routes.insert(prefix, target);
                }
            }
            (None, Some(_)) => {
                let Some(routes) = self.installed.get_mut(table.index()) else { return Ok(()) };
                routes.remove(prefix);
                prefix.remove(writer, table.index(), routes.cover(prefix));
            }
        }
        if let Some(before) = before {
            self.release(writer, before);
        }
        Ok(())
    }

    fn target(
        &mut self,
        writer: &mut Writer,
        settings: &Settings,
        hops: &[Hop<P::Address>],
        wait: &mut dyn FnMut(),
    ) -> Result<Target, FibError> {
        if hops.is_empty() {
            return Ok(Target::DROP);
        }
        if let Some((target, uses)) = self.targets.get_mut(hops) {
            *uses += 1;
            return Ok(*target);
        }
        let mtu =
            |hop: &Hop<P::Address>| settings.interfaces.get(hop.interface.index()).map_or(0, |interface| interface.mtu);
        let engine: Vec<_> =
            hops.iter().take(HOPS_MAX).map(|hop| (hop.interface, hop.gateway, mtu(hop), hop.weight)).collect();
        let target = P::target(writer, &engine)?;
        let begun = Instant::now();
        while !writer.is_ready() {
            if begun.elapsed() > KNOWN_WITHIN {
                writer.release(target);
                return Err(FibError::Stuck);
            }
            wait();
        }
        self.targets.insert(hops.to_vec(), (target, 1));
        self.hops_of.insert(target, hops.to_vec());
        Ok(target)
    }

    fn release(&mut self, writer: &mut Writer, target: Target) {
        let Some(hops) = self.hops_of.get(&target) else { return };
        let Some((_, uses)) = self.targets.get_mut(hops) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.targets.remove(hops);
            self.hops_of.remove(&target);
            writer.release(target);
        }
    }
}

#[cfg(test)]
mod tests;
