//! Deterministic pools (RFC 7422): the configuration alone maps subscribers to ports and back.
//!
//! ```text
//!   address   port_min                                                          port_max
//!   first     │ slice 0 │ slice 1 │ … │ slice C-1 │  D slices' worth for dynamic blocks │
//!   second    │ slice 0 │ …
//!
//!   subscriber i (from 0): address i / C, slice i % C
//! ```
//!
//! Subscribers are counted in the order of the file, without network and broadcast addresses. A
//! slice is one (C + D)-th of the ports, rounded down: one range of one address, as paired pooling
//! (RFC 6888 REQ-2) requires. This is algorithm 0 (sequential) of RFC 7422 §2; other [`Algorithm`]s
//! permute the places.

use core::net::Ipv4Addr;

use crate::settings::Algorithm;
use crate::settings::Allocation;
use crate::settings::Pool;
use crate::settings::Settings;
use crate::types::HostNumber;
use crate::types::Prefix;
use crate::verdict::Verdict;

/// A pool's formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Formula {
    /// In the order of the file.
    runs: Vec<Run>,
    /// Indices into `runs` by first address.
    by_address: Vec<u32>,
    subscribers: u64,
    slices: u32,
    dynamic_slices: u32,
    slice_ports: u32,
    port_min: u16,
    port_max: u16,
    addresses: u32,
    algorithm: Algorithm,
}

/// Identifies the formulas in the event log; 0 without any. Must never change between releases:
/// logs are read years later. Does not reveal the key of `keyed`.
pub fn checksum(settings: &Settings) -> u32 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut has_any = false;
    let mut add = |number: u64| {
        for byte in number.to_be_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for pool in &settings.pools {
        let Allocation::Deterministic { dynamic_slices, .. } = pool.allocation else { continue };
        has_any = true;
        add(pool.addresses.len() as u64);
        pool.addresses.iter().for_each(|address| add(u64::from(address.to_bits())));
        add(pool.subscribers.len() as u64);
        for prefix in &pool.subscribers {
            add(u64::from(prefix.address().to_bits()) << 8 | u64::from(prefix.length()));
        }
        // A realm's number depends on the rest of the file.
        for realm in &pool.realms {
            let name = settings.realm_names.get(realm.index()).map_or("", String::as_str);
            name.bytes().for_each(|byte| add(u64::from(byte)));
            add(u64::MAX);
        }
        add(u64::from(pool.port_min) << 32 | u64::from(pool.port_max) << 16 | u64::from(dynamic_slices));
        match pool.algorithm {
            Algorithm::Sequential => add(0),
            Algorithm::Spread => add(1),
            Algorithm::Keyed(key) => {
                add(2);
                add(key);
            }
        }
    }
    if !has_any {
        return 0;
    }
    // SplitMix64's finaliser; half is dropped, so it cannot be inverted.
    let mixed = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ mixed >> 31) as u32).max(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    count: u64,
    number: u64,
    /// The addresses next to the run are not subscribers.
    leaves_out_edges: bool,
}

/// Ports of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Position of its address in the pool, from 0.
    pub address: u32,
    /// Number of the slice.
    pub slice: u16,
    /// Lowest port.
    pub first: u16,
    /// Highest port.
    pub last: u16,
}

/// The owner of an external port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This subscriber.
    Subscriber(Ipv4Addr),
    /// A slice without a subscriber.
    Nobody,
    /// The subscriber that leases its block.
    Dynamic,
    /// Never given out.
    Outside,
}

/// Why there is no formula.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormulaError {
    /// There are fewer ports than subscribers.
    #[error(
        "{subscribers} subscribers on {addresses} addresses are {slices} on each, with {dynamic_slices} dynamic slices more than \
         its {ports} ports"
    )]
    TooMany {
        /// In all.
        subscribers: u64,
        /// External addresses.
        addresses: u64,
        /// Subscribers of an address.
        slices: u64,
        /// Slices for dynamic blocks.
        dynamic_slices: u64,
        /// Ports of an address.
        ports: u64,
    },
    /// No subscribers, or no addresses.
    #[error("there are {subscribers} subscribers and {addresses} addresses")]
    Nobody {
        /// In all.
        subscribers: u64,
        /// External addresses.
        addresses: u64,
    },
    /// A subscriber would have two numbers.
    #[error("prefix {0} overlaps prefix {1}")]
    Overlap(Prefix, Prefix),
}

fn hosts(prefix: Prefix) -> (u32, u64) {
    let (first, last) = (prefix.address().to_bits(), prefix.last().to_bits());
    if prefix.length() >= 31 {
        return (first, u64::from(last - first) + 1);
    }
    (first + 1, u64::from(last - first) - 1)
}

impl Formula {
    /// The formula of a pool; `None` unless it is deterministic.
    pub fn of(pool: &Pool) -> Result<Option<Formula>, FormulaError> {
        let Allocation::Deterministic { dynamic_slices, .. } = pool.allocation else { return Ok(None) };
        let formula =
            Formula::new(&pool.subscribers, pool.addresses.len(), dynamic_slices, pool.port_min, pool.port_max)?;
        Ok(Some(formula.ordered(pool.algorithm)))
    }

    /// The same formula with another order.
    #[must_use]
    pub fn ordered(self, algorithm: Algorithm) -> Formula {
        Formula { algorithm, ..self }
    }

    fn place_of(&self, number: u64) -> u64 {
        match self.algorithm {
            Algorithm::Sequential => number,
            Algorithm::Spread => {
                let addresses = u64::from(self.addresses);
                number % addresses * u64::from(self.slices) + number / addresses
            }
            Algorithm::Keyed(key) => self.permutation(key).forth(number),
        }
    }

    fn number_at(&self, place: u64) -> u64 {
        match self.algorithm {
            Algorithm::Sequential => place,
            Algorithm::Spread => {
                let slices = u64::from(self.slices);
                place % slices * u64::from(self.addresses) + place / slices
            }
            Algorithm::Keyed(key) => self.permutation(key).back(place),
        }
    }

    fn permutation(&self, key: u64) -> Permutation {
        Permutation::new(key, u64::from(self.addresses) * u64::from(self.slices))
    }

    /// A formula with subscribers in sequential order.
    pub fn new(
        prefixes: &[Prefix],
        addresses: usize,
        dynamic_slices: u16,
        port_min: u16,
        port_max: u16,
    ) -> Result<Formula, FormulaError> {
        let mut runs = Vec::with_capacity(prefixes.len());
        let mut subscribers = 0;
        for prefix in prefixes {
            let (first, count) = hosts(*prefix);
            let leaves_out_edges = first != prefix.address().to_bits();
            runs.push(Run { first, count, number: subscribers, leaves_out_edges });
            subscribers += count;
        }
        let mut by_address: Vec<u32> = (0..runs.len() as u32).collect();
        by_address.sort_unstable_by_key(|position| (runs[*position as usize].first, *position));
        for pair in by_address.windows(2) {
            let (one, other) = (prefixes[pair[0] as usize], prefixes[pair[1] as usize]);
            if one.overlaps(other) {
                return Err(FormulaError::Overlap(other, one));
            }
        }
        if subscribers == 0 || addresses == 0 {
            return Err(FormulaError::Nobody { subscribers, addresses: addresses as u64 });
        }
        let slices = subscribers.div_ceil(addresses as u64);
        let ports = u64::from(port_max) - u64::from(port_min) + 1;
        let slice_ports = ports / (slices + u64::from(dynamic_slices));
        if slice_ports == 0 {
            return Err(FormulaError::TooMany {
                subscribers,
                addresses: addresses as u64,
                slices,
                dynamic_slices: u64::from(dynamic_slices),
                ports,
            });
        }
        Ok(Formula {
            runs,
            by_address,
            subscribers,
            // Below the number of ports.
            slices: slices as u32,
            slice_ports: slice_ports as u32,
            dynamic_slices: u32::from(dynamic_slices),
            port_min,
            port_max,
            addresses: u32::try_from(addresses).unwrap_or(u32::MAX),
            algorithm: Algorithm::Sequential,
        })
    }

    /// Number of subscribers there can be.
    pub fn subscribers(&self) -> u64 {
        self.subscribers
    }

    /// Subscribers of an address (C).
    pub fn slices(&self) -> u32 {
        self.slices
    }

    /// Ports of a subscriber.
    pub fn slice_ports(&self) -> u32 {
        self.slice_ports
    }

    /// Lowest and highest port for dynamic blocks.
    pub fn dynamic(&self) -> Option<(u16, u16)> {
        let first = u32::from(self.port_min) + self.slices * self.slice_ports;
        (self.dynamic_slices > 0 && first <= u32::from(self.port_max)).then_some((first as u16, self.port_max))
    }

    /// The slice of a subscriber; `None` for any other address.
    pub fn slice_of(&self, inside: HostNumber) -> Option<Slice> {
        let next = self.by_address.partition_point(|position| self.runs[*position as usize].first <= inside.0);
        let run = &self.runs[*self.by_address.get(next.checked_sub(1)?)? as usize];
        let offset = u64::from(inside.0 - run.first);
        if offset >= run.count {
            return None;
        }
        let number = self.place_of(run.number + offset);
        let slice = (number % u64::from(self.slices)) as u32;
        let first = u32::from(self.port_min) + slice * self.slice_ports;
        Some(Slice {
            address: (number / u64::from(self.slices)) as u32,
            slice: slice as u16,
            first: first as u16,
            last: (first + self.slice_ports - 1) as u16,
        })
    }

    /// First and last port of each slice that overlaps these.
    pub(crate) fn slices_over(&self, first: u16, last: u16) -> impl Iterator<Item = (u16, u16)> + use<> {
        let (port_min, slice_ports) = (u32::from(self.port_min), self.slice_ports);
        let from = u32::from(first).saturating_sub(port_min) / slice_ports;
        let end = match u32::from(last).checked_sub(port_min) {
            Some(offset) => (offset / slice_ports + 1).min(self.slices),
            None => 0,
        };
        (from..end).map(move |slice| {
            let begins = port_min + slice * slice_ports;
            (begins as u16, (begins + slice_ports - 1) as u16)
        })
    }

    pub(crate) fn why_no_slice(&self, inside: HostNumber) -> Verdict {
        if self.leaves_out(inside) { Verdict::BoundaryAddress } else { Verdict::SourceNotSubscriber }
    }

    /// True for a prefix's network and broadcast address.
    pub fn leaves_out(&self, inside: HostNumber) -> bool {
        let run_before = |end: u64| {
            let next = self.by_address.partition_point(|at| u64::from(self.runs[*at as usize].first) < end);
            Some(&self.runs[*self.by_address.get(next.checked_sub(1)?)? as usize])
        };
        let inside = u64::from(inside.0);
        // A run may begin right behind this address, or have ended before it.
        let (behind, before) = (run_before(inside + 2), run_before(inside + 1));
        behind.is_some_and(|run| run.leaves_out_edges && u64::from(run.first) == inside + 1)
            || before.is_some_and(|run| run.leaves_out_edges && u64::from(run.first) + run.count == inside)
    }

    /// The owner of a port of the pool's n-th address.
    pub fn owner_of(&self, address: u32, port: u16) -> Owner {
        if port < self.port_min || port > self.port_max {
            return Owner::Outside;
        }
        let slice = u32::from(port - self.port_min) / self.slice_ports;
        if slice >= self.slices {
            return if self.dynamic_slices > 0 { Owner::Dynamic } else { Owner::Outside };
        }
        let number = self.number_at(u64::from(address) * u64::from(self.slices) + u64::from(slice));
        let run = self.runs.partition_point(|run| run.number <= number).checked_sub(1).map(|index| self.runs[index]);
        match run {
            Some(run) if number - run.number < run.count => {
                Owner::Subscriber(Ipv4Addr::from_bits(run.first + (number - run.number) as u32))
            }
            _ => Owner::Nobody,
        }
    }
}

/// A permutation by a key of the numbers below `size`: four Feistel rounds over the next even power
/// of two, repeated until in range.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    keys: [u64; 4],
    half_bits: u32,
    size: u64,
}

impl Permutation {
    fn new(key: u64, size: u64) -> Permutation {
        let bits = u64::BITS - size.saturating_sub(1).leading_zeros();
        let keys = [1, 2, 3, 4].map(|round: u64| mixed(key.wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        Permutation { keys, half_bits: bits.div_ceil(2).max(1), size }
    }

    fn forth(&self, number: u64) -> u64 {
        self.walk(number, |(left, right), key| (right, left ^ self.round(right, key)), false)
    }

    fn back(&self, number: u64) -> u64 {
        self.walk(number, |(left, right), key| (right ^ self.round(left, key), left), true)
    }

    fn round(&self, half: u64, key: u64) -> u64 {
        mixed(half ^ key) & ((1 << self.half_bits) - 1)
    }

    fn walk(&self, number: u64, step: impl Fn((u64, u64), u64) -> (u64, u64), is_back: bool) -> u64 {
        let mut now = number;
        loop {
            let mut halves = (now >> self.half_bits, now & ((1 << self.half_bits) - 1));
            for round in 0..self.keys.len() {
                halves = step(halves, self.keys[if is_back { self.keys.len() - 1 - round } else { round }]);
            }
            now = halves.0 << self.half_bits | halves.1;
            // The cycle's start is in range, so this ends.
            if now < self.size {
                return now;
            }
        }
    }
}

/// The finaliser of SplitMix64.
fn mixed(value: u64) -> u64 {
    let mixed = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests;
