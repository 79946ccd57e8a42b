//! Corrections of what the shard has counted.

use nat::Counters;
use nat::Protocol;
use nat::Verdict;
use nat::verdict::Forwarded;

/// Verdicts to add and to take back.
#[derive(Debug)]
pub struct Ledger {
    dirty: bool,
    verdicts: [i64; Verdict::COUNT],
    bytes_forwarded: [i64; 3],
    translated: [i64; Protocol::COUNT],
    pub(crate) pending: i64,
    pub(super) handed_off: u64,
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger {
            dirty: false,
            verdicts: [0; Verdict::COUNT],
            bytes_forwarded: [0; 3],
            translated: [0; Protocol::COUNT],
            pending: 0,
            handed_off: 0,
        }
    }

    #[inline]
    pub(crate) fn add(&mut self, verdict: Verdict, count: i64) {
        self.dirty = true;
        if let Some(place) = self.verdicts.get_mut(verdict.index()) {
            *place += count;
        }
    }

    /// Replaces the verdict of a packet that the shard has not forwarded.
    #[inline]
    pub(super) fn change(&mut self, from: Verdict, to: Verdict) {
        self.add(from, -1);
        self.add(to, 1);
    }

    /// Counts a packet with its verdict (1), or takes back what was counted for it (-1).
    pub(crate) fn count(&mut self, verdict: Verdict, packet: &[u8], count: i64) {
        self.add(verdict, count);
        let Some(forwarded) = Forwarded::of(verdict, packet) else { return };
        if let Some(bytes) = self.bytes_forwarded.get_mut(forwarded.way) {
            *bytes += i64::from(forwarded.bytes) * count;
        }
        if let Some(packets) = forwarded.protocol.and_then(|protocol| self.translated.get_mut(protocol.index())) {
            *packets += count;
        }
    }

    /// Adds everything to `counters` and starts afresh.
    #[inline]
    pub fn settle(&mut self, counters: &mut Counters) {
        counters.handed_off += core::mem::take(&mut self.handed_off);
        if !self.dirty {
            return;
        }
        let verdicts = counters.verdicts.iter_mut().zip(&mut self.verdicts);
        let bytes = counters.bytes_forwarded.iter_mut().zip(&mut self.bytes_forwarded);
        let translated = counters.translated.iter_mut().zip(&mut self.translated);
        for (counter, change) in verdicts.chain(bytes).chain(translated) {
            *counter = counter.wrapping_add_signed(core::mem::take(change));
        }
        counters.neighbour_pending = counters.neighbour_pending.wrapping_add_signed(core::mem::take(&mut self.pending));
        self.dirty = false;
    }
}
