//! External ports: which are free, and which worker and mapping owns each of the others.
//!
//! ```text
//!   (external address, protocol)
//!     used      1,024 words of 64 bits, one bit a port; set for ports that are not offered, too
//!     withheld  the same size: ports that must not be given out (`withheld.rs`)
//!     kept      the same size: withheld ports not in use
//!     full      2 × 16 words, one bit a word of `used`: a hint that no even (odd) port is free
//!     entries   65,536 × [worker: 6 bits | mapping: 26 bits], 0 = none: inbound table, by port
//!               of a port shared by flows (`sharing.rs`):
//!               [home worker: 6 bits | 18 bits set | lent: 1 bit | workers with flows: 7 bits]
//! ```
//!
//! Entries of query identifiers are in memory of their own, because few networks use many. It gets
//! its pages when an identifier of theirs is first used ([`Arena::reserved`]).
//!
//! All workers share the table (ADR 1); the worker that sets a bit first owns the port. Each worker
//! searches its own cache lines first.
//!
//! A port is chosen by RFC 6056 §3.3.1 (algorithm 1): a random port or, if taken, the next free one
//! in its word. If few are free, a search through `full` keeps the cost O(1) up to a full address.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::sync::OnceLock;

use mem::Arena;
use mem::ArenaError;
use mem::Need;

use crate::external::blocks::BlockTable;
use crate::types::AddressIndex;
use crate::types::Protocol;

mod aim;
mod class;
mod full;
mod guarantees;
mod load;
mod owners;
mod pick;
mod sharing;
mod spec;
mod take;
#[cfg(test)]
mod tests;
mod withheld;
mod within;

pub use aim::PortAim;
pub use class::Parity;
pub use class::PortClass;
pub(crate) use guarantees::Guarantees;
pub(crate) use guarantees::PerProtocol;
pub(crate) use guarantees::Share;
pub(crate) use guarantees::Stock;
pub(crate) use load::Draw;
pub use pick::Sought;
pub(crate) use sharing::Unshared;
pub use spec::AddressSpec;
pub use spec::never_offered;
pub use take::Taker;
pub use withheld::Mask;
pub use within::PortRange;
pub(crate) use within::UNLEASABLE_PIECES;

const WORDS: usize = 1_024;
const SUMMARY_WORDS: usize = WORDS / 64;
const PORTS: usize = 65_536;
/// UDP and TCP.
const WITH_PORTS: usize = 2;

/// The external ports of an instance.
pub struct PortTable {
    used: Arena<AtomicU64>,
    withheld: Arena<AtomicU64>,
    kept: Arena<AtomicU64>,
    full: Arena<AtomicU64>,
    entries: Arena<AtomicU32>,
    identifiers: Arena<AtomicU32>,
    /// By protocol, one bit an address: a hint that no high port is free.
    address_full: [Box<[AtomicU64]>; Protocol::COUNT],
    offers: Box<[withheld::Offer]>,
    paired: Box<[AtomicU32]>,
    pub(crate) blocks: BlockTable,
    guarantees: OnceLock<Guarantees>,
    /// One worker needs no atomic read-modify-write.
    exclusive: bool,
}

fn space(address: AddressIndex, protocol: Protocol) -> usize {
    address.index() * Protocol::COUNT + protocol.index()
}

impl PortTable {
    /// All ports are free. Takes about 0.6 MiB an address, and 0.25 MiB more if all its query
    /// identifiers are used.
    pub fn new(specs: &[AddressSpec]) -> Result<PortTable, ArenaError> {
        PortTable::with_room(specs, specs.len())
    }

    /// Places up to `addresses_max` offer nothing until [`PortTable::withhold`] and
    /// [`PortTable::offer`] are called.
    pub fn with_room(specs: &[AddressSpec], addresses_max: usize) -> Result<PortTable, ArenaError> {
        let places = specs.len().max(addresses_max);
        let spaces = (places * Protocol::COUNT).max(1);
        let hints = || (0..places.div_ceil(64)).map(|_| AtomicU64::new(0)).collect::<Box<[AtomicU64]>>();
        // No other thread uses the table yet.
        let table = PortTable {
            used: Arena::zeroed(spaces * WORDS)?,
            withheld: Arena::zeroed(spaces * WORDS)?,
            kept: Arena::zeroed(spaces * WORDS)?,
            full: Arena::zeroed(spaces * Parity::BOTH.len() * SUMMARY_WORDS)?,
            entries: Arena::zeroed((places * WITH_PORTS).max(1) * PORTS)?,
            identifiers: Arena::reserved(places.max(1) * PORTS)?,
            address_full: [hints(), hints(), hints()],
            offers: (0..spaces).map(|_| withheld::Offer::default()).collect(),
            paired: (0..places).map(|_| AtomicU32::new(0)).collect(),
            blocks: BlockTable::new(places)?,
            guarantees: OnceLock::new(),
            exclusive: true,
        };
        // Addresses of one pool have equal specs.
        let mut last: Option<(&AddressSpec, Vec<Mask>)> = None;
        for (position, spec) in specs.iter().enumerate() {
            let masks = match last.take() {
                Some((known, masks)) if known == spec => masks,
                _ => Protocol::ALL.iter().map(|protocol| never_offered(spec, *protocol)).collect(),
            };
            for (protocol, mask) in Protocol::ALL.iter().zip(&masks) {
                table.withhold(AddressIndex(position as u32), *protocol, mask);
            }
            last = Some((spec, masks));
        }
        Ok(PortTable { exclusive: false, ..table })
    }

    /// Addresses the table has room for.
    pub fn places(&self) -> usize {
        self.paired.len()
    }

    /// Memory that [`PortTable::new`] takes.
    pub fn needs(addresses: usize) -> [Need; 7] {
        let spaces = addresses.saturating_mul(Protocol::COUNT).max(1);
        let identifiers = addresses.max(1).saturating_mul(PORTS);
        [
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(WORDS)),
            Arena::<AtomicU64>::need(spaces.saturating_mul(Parity::BOTH.len() * SUMMARY_WORDS)),
            Arena::<AtomicU32>::need(identifiers.saturating_mul(WITH_PORTS)),
            Need::Heap(Arena::<AtomicU32>::need(identifiers).bytes()),
            BlockTable::need(addresses),
        ]
    }

    /// Memory of all arrays; of query identifiers' entries what is in use.
    pub fn bytes(&self) -> usize {
        let bits = self.used.bytes() + self.withheld.bytes() + self.kept.bytes() + self.full.bytes();
        let guarantees = self.guarantees.get().map_or(0, Guarantees::bytes);
        bits + self.entries.bytes() + self.identifiers.resident_bytes() + self.blocks.bytes() + guarantees
    }

    /// For one worker, which needs no atomic read-modify-write.
    #[must_use]
    pub fn for_one_worker(self) -> PortTable {
        PortTable { exclusive: true, ..self }
    }

    #[inline]
    fn offered_bits(&self, address: AddressIndex, protocol: Protocol, word: usize) -> u64 {
        !self.kept[space(address, protocol) * WORDS + word].load(Ordering::SeqCst)
    }
}
