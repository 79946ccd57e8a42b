//! What every structure of the study does, and what most of them share: the inbound array.
//!
//! ```text
//!   outbound: internal endpoint ─► the structure under study ─► number ─┐
//!                                                                       ├─► translations[number]
//!   inbound:  external endpoint = first address + number ───────────────┘
//! ```
//!
//! "All translation specific data is stored in that hash table" with direct addressing, and "the
//! outgoing NAT table refers to that hash table" (§2.3): so a structure of the paper maps a key to
//! a number, and the external endpoint is that number: its upper bits the address, its lower 16
//! bits the port.

use mem::Arena;
use mem::ArenaError;
use mem::FromZeros;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::workload::Endpoint;
use super::workload::Packet;

/// The first external address: 203.0.0.0. Threads take the same ones: each is a NAT of its own.
pub(super) const EXTERNAL: u32 = 0xcb00_0000;

/// There is no room for one more flow, or no free external endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table is full")]
pub(super) struct Full;

/// Why a structure could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// Memory is short.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// DPDK did not start, or refused the table.
    #[error("{0}")]
    Dpdk(String),
}

/// How large to make a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Flows it has to hold.
    pub(super) sessions: u32,
    /// Cells of the paper's hash tables: a power of two. The others choose for themselves.
    pub(super) cells: u32,
}

impl Size {
    /// As many cells as flows or more, up to twice as many; with `load` flows a cell instead of
    /// one, as many times fewer.
    pub(super) fn with_load(sessions: u32, load: u32) -> Size {
        let cells = sessions.div_ceil(load.max(1)).clamp(1, 1 << 31).next_power_of_two();
        Size { sessions, cells }
    }
}

/// A NAT table for a stream of packets each way. One thread's own.
pub(super) trait Nat: Sized {
    /// An empty table, all its memory present.
    ///
    /// # Errors
    /// When memory is short.
    fn new(size: Size) -> Result<Self, BuildError>;

    /// Translates a burst of at most [`BURST`] packets from inside; packets of new flows make new
    /// entries.
    ///
    /// # Errors
    /// When there are more flows than the table was made for.
    fn leave(&mut self, packets: &mut [Packet], now: u32) -> Result<(), Full>;

    /// Translates a burst of at most [`BURST`] packets from outside; those without an entry stay as
    /// they are.
    fn enter(&mut self, packets: &mut [Packet], now: u32);

    /// Bytes of all that was taken.
    fn bytes(&self) -> usize;
}

/// Packets in a burst.
pub(super) const BURST: usize = 64;

/// Internal endpoint and protocol in one word; never 0.
pub(super) type Key = u64;

/// The key of an internal endpoint of UDP.
#[inline(always)]
pub(super) fn key_of(endpoint: Endpoint) -> Key {
    const UDP: u64 = 17;
    UDP << 48 | u64::from(endpoint.0) << 16 | u64::from(endpoint.1)
}

/// From key to number: what the paper's structures differ in.
pub(super) trait Lookup: Sized {
    /// An empty one, all its memory present.
    ///
    /// # Errors
    /// When memory is short.
    fn new(size: Size) -> Result<Self, BuildError>;

    /// The number of `key`. When it is not there it is entered with the number `new`, and `new` is
    /// returned.
    ///
    /// # Errors
    /// When it is not there and there is no room; nothing is changed.
    fn find_or_insert(&mut self, key: Key, new: u32) -> Result<u32, Full>;

    /// Bytes of all that was taken.
    fn bytes(&self) -> usize;
}

/// One translation, by its number. The paper counts 20 bytes; the external endpoint is the number,
/// so 16 are left.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
struct Translation {
    address: u32,
    port: u16,
    protocol: u8,
    in_use: u8,
    timestamp: u32,
    _service: u32,
}

/// Translations by number, and the numbers that are free.
///
/// Free numbers are in random order: ports are drawn at random in life (RFC 6056), and answers that
/// came in the order of the array would flatter it.
pub(super) struct Translations {
    by_number: Arena<Translation>,
    free: Arena<u32>,
    used: usize,
}

impl Translations {
    /// Room for `count` translations.
    ///
    /// # Errors
    /// When memory is short.
    pub(super) fn new(count: u32) -> Result<Translations, ArenaError> {
        let mut free = Arena::zeroed(count as usize)?;
        for (place, number) in free.iter_mut().zip(0..) {
            *place = number;
        }
        free.shuffle(&mut SmallRng::seed_from_u64(0x0070_6f72_7473));
        Ok(Translations { by_number: Arena::zeroed(count as usize)?, free, used: 0 })
    }

    /// The next free number.
    #[inline(always)]
    pub(super) fn next_free(&self) -> Option<u32> {
        self.free.get(self.used).copied()
    }

    /// Notes that a packet of the internal endpoint took `number`, which is now in use if it was
    /// not, and translates it.
    #[inline(always)]
    pub(super) fn leave(&mut self, packet: &mut Packet, number: u32, now: u32) {
        let translation = self.by_number.at_mut(number);
        if translation.in_use == 0 {
            let (address, port) = packet.source();
            *translation = Translation { address, port, protocol: 17, in_use: 1, timestamp: now, _service: 0 };
            self.used += 1;
        }
        translation.timestamp = now;
        packet.set_source((EXTERNAL + (number >> 16), number as u16));
    }

    /// Translates an answer, when there is a translation for it.
    #[inline(always)]
    pub(super) fn enter(&mut self, packet: &mut Packet, now: u32) {
        let (address, port) = packet.destination();
        let number = u64::from(address.wrapping_sub(EXTERNAL)) << 16 | u64::from(port);
        if let Some(translation) = self.by_number.get_mut(number as usize)
            && translation.in_use != 0
        {
            translation.timestamp = now;
            packet.set_destination((translation.address, translation.port));
        }
    }

    /// Bytes of both arrays.
    pub(super) fn bytes(&self) -> usize {
        self.by_number.bytes() + self.free.bytes()
    }
}

/// A structure of the paper with the inbound array behind it: one packet after the other, as in the
/// paper.
pub(super) struct WithArray<L> {
    lookup: L,
    translations: Translations,
}

impl<L: Lookup> Nat for WithArray<L> {
    fn new(size: Size) -> Result<WithArray<L>, BuildError> {
        Ok(WithArray { lookup: L::new(size)?, translations: Translations::new(size.sessions)? })
    }

    #[inline]
    fn leave(&mut self, packets: &mut [Packet], now: u32) -> Result<(), Full> {
        for packet in packets {
            // A number that does not exist when none is free: flows that are known do not need one.
            let new = self.translations.next_free().unwrap_or(u32::MAX);
            let number = self.lookup.find_or_insert(key_of(packet.source()), new)?;
            if number == u32::MAX {
                return Err(Full);
            }
            self.translations.leave(packet, number, now);
        }
        Ok(())
    }

    #[inline]
    fn enter(&mut self, packets: &mut [Packet], now: u32) {
        for packet in packets {
            self.translations.enter(packet, now);
        }
    }

    fn bytes(&self) -> usize {
        self.lookup.bytes() + self.translations.bytes()
    }
}
