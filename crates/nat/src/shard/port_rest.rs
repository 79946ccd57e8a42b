//! What becomes of the port of a mapping that has ended: it rests before it is given out again (RFC 6888 REQ-8), so that no
//! packet under way to the old mapping reaches a new one.
//!
//! A resting port has its bit in the port table, so that nobody takes it, and an empty entry, so that nothing sent to it
//! finds anybody. It is not given back to the internal endpoint it had either: REQ-8 speaks of any new mapping, and to know it
//! again would cost each new mapping a look.

use super::Shard;
use crate::mapping::Mapping;
use crate::settings::Filtering;
use crate::shared::PoolFacts;
use crate::tcp::TcpState;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::AddressIndex;
use crate::types::Protocol;

/// Ports given back in one call of the sweep at least, if so many have rested.
const RELEASES_PER_CALL_MIN: usize = 8;
/// And one more for each such time since the last call.
const MICROS_PER_RELEASE: u64 = 2;
/// And at most.
const RELEASES_PER_CALL_MAX: usize = 256;
/// While there is no room for more resting ports, the one that is this far behind the next to go is asked for.
const AHEAD: usize = 8;

impl Shard {
    /// How long the port of this mapping rests when it ends now.
    pub(super) fn rest_of(mapping: &Mapping, facts: &PoolFacts) -> Duration {
        if facts.one_to_one {
            // Nobody else ever gets it (RFC 6888 REQ-8B).
            return Duration::ZERO;
        }
        let protocol = mapping.protocol();
        let at_once = facts.reuse_at_once;
        let is_filtered = facts.filtering[protocol.index()] != Filtering::EndpointIndependent;
        let was_closed = protocol == Protocol::Tcp
            && mapping.has_session()
            && mapping.extra_count() == 0
            && mapping.state() == TcpState::Closing;
        if (at_once.filtered && is_filtered) || (at_once.tcp_closed && was_closed) {
            Duration::ZERO
        } else {
            facts.reuse_delay
        }
    }

    /// The mapping of this port has ended: nobody owns it any more, and it rests for so long.
    #[inline]
    pub(super) fn retire_port(
        &mut self,
        now: Instant,
        address: AddressIndex,
        protocol: Protocol,
        port: u16,
        rest: Duration,
    ) {
        self.shared.ports.vacate(address, protocol, port);
        if rest == Duration::ZERO || self.is_forwarded(address, protocol, port) {
            self.give_back_port(address, protocol, port);
            return;
        }
        let place = self.shared.ports.place(address, protocol, port);
        if let Some(gone) = self.held_ports.hold(place, rest, now) {
            self.counters.ports_held_short += 1;
            self.release_rested(gone);
            if let Some(ahead) = self.held_ports.ahead(AHEAD) {
                self.shared.ports.prefetch_bit(ahead);
            }
        }
    }

    /// Gives back ports that have rested for long enough: as many as the time since the last call is enough for, and as many
    /// as mappings were ended since.
    pub(super) fn release_ports(&mut self, now: Instant, elapsed: u64, ended: usize) {
        let by_time = (elapsed / MICROS_PER_RELEASE).min(RELEASES_PER_CALL_MAX as u64) as usize;
        let count = RELEASES_PER_CALL_MIN + by_time + ended;
        for _ in 0..count {
            let Some(place) = self.held_ports.pop_due(now) else { break };
            self.release_rested(place);
        }
        // For the next call, where there is one soon.
        if self.held_ports.next_is_due(now) {
            for place in self.held_ports.upcoming(RELEASES_PER_CALL_MIN + by_time) {
                self.shared.ports.prefetch_bit(place);
            }
        }
        self.counters.ports_held = u64::from(self.held_ports.len());
    }

    fn release_rested(&mut self, place: usize) {
        let (address, protocol, port) = self.shared.ports.endpoint_at(place);
        self.give_back_port(address, protocol, port);
    }

    /// External ports that rest now.
    pub fn held_ports_len(&self) -> u32 {
        self.held_ports.len()
    }
}
