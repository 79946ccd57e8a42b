//! Holds down the port of an ended mapping (RFC 6888 REQ-8), so that late packets do not reach a
//! new one. Its old internal endpoint does not get it back either: REQ-8 covers any new mapping,
//! and to recognise the endpoint would cost each new mapping a lookup.

use crate::shard::Ledger;
use crate::steps::view::View;
use crate::time::Instant;

const RELEASES_PER_CALL_MIN: usize = 8;
const MICROS_PER_RELEASE: u64 = 2;
const RELEASES_PER_CALL_MAX: usize = 256;

impl View<'_> {
    /// External ports that are held down.
    pub fn held_ports_len(&self) -> u32 {
        self.state.held_ports.len()
    }
}

impl Ledger {
    pub(in crate::shard) fn release_ports(&mut self, now: Instant, elapsed: u64, ended: usize) {
        let by_time = (elapsed / MICROS_PER_RELEASE).min(RELEASES_PER_CALL_MAX as u64) as usize;
        let count = RELEASES_PER_CALL_MIN + by_time + ended;
        for _ in 0..count {
            let Some(place) = self.state.held_ports.pop_due(now) else { break };
            self.release_held_port(place);
        }
        if self.state.held_ports.next_is_due(now) {
            for place in self.state.held_ports.upcoming(RELEASES_PER_CALL_MIN + by_time) {
                self.shared.ports.prefetch_bit(place);
            }
        }
        self.counters.ports_held = u64::from(self.state.held_ports.len());
    }

    pub(in crate::shard) fn release_held_port(&mut self, place: usize) {
        let (address, protocol, port) = self.shared.ports.endpoint_at(place);
        self.give_back_port(address, protocol, port);
    }
}
