//! Asks for and announces own addresses at start (RFC 5227 §2.1, §2.3), paced, so that a pool of
//! many addresses on the link is no flood.

use nat::Duration;
use nat::Instant;
use nat::Settings;
use nat::types::InterfaceId;
use nat::types::Prefix;
use nat::types::Side;

/// Announcements of each address after its probe; one may get lost while a link comes up.
const ROUNDS: u8 = 3;
/// Time between two announcements of one address (RFC 5227 §1.1 ANNOUNCE_INTERVAL).
const ROUND_INTERVAL: Duration = Duration::from_secs(2);
/// Addresses sent at once, and the pause behind them.
const GROUP: usize = 8;
const GROUP_INTERVAL: Duration = Duration::from_millis(2);

/// One packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Interface it goes out by.
    pub interface: InterfaceId,
    /// The own or pool address it is about, in host bit order.
    pub address: u32,
    /// True: a request with no sender address, to find a duplicate (RFC 5227 §2.1.1). False: "it is
    /// here".
    pub probe: bool,
}

/// The plan of announcements of one worker.
#[derive(Debug)]
pub struct Announcer {
    addresses: Vec<(InterfaceId, u32)>,
    /// By interface: whether this worker announces there.
    transmits: Vec<bool>,
    round: u8,
    next: usize,
    due: Instant,
    round_started: Instant,
}

impl Announcer {
    /// Plans for the own addresses of the interfaces that `transmits_on` accepts, and for the pool
    /// addresses that lie on their connected subnets outside.
    pub fn new(settings: &Settings, now: Instant, transmits_on: impl Fn(InterfaceId) -> bool) -> Announcer {
        let mut addresses = Vec::new();
        for (index, interface) in settings.interfaces.iter().enumerate() {
            let id = InterfaceId(index as u16);
            if !transmits_on(id) {
                continue;
            }
            for own in &interface.addresses {
                addresses.push((id, own.address.to_bits()));
            }
            if interface.side != Side::Outside {
                continue;
            }
            for address in settings.pools.iter().flat_map(|pool| &pool.addresses) {
                let connected = interface.addresses.iter().any(|own| {
                    Prefix::new(own.address, own.prefix_length).is_some_and(|prefix| prefix.contains(*address))
                });
                if connected && !interface.addresses.iter().any(|own| own.address == *address) {
                    addresses.push((id, address.to_bits()));
                }
            }
        }
        let transmits = (0..settings.interfaces.len()).map(|index| transmits_on(InterfaceId(index as u16))).collect();
        Announcer { addresses, transmits, round: 0, next: 0, due: now, round_started: now }
    }

    /// Plans anew: for the `fresh` addresses, or if those before have not all been announced for
    /// `all`. The list taken is exchanged for the one before.
    pub fn announce(&mut self, now: Instant, fresh: &mut Vec<(InterfaceId, u32)>, all: &mut Vec<(InterfaceId, u32)>) {
        if fresh.is_empty() {
            return;
        }
        let wanted = if self.round > ROUNDS { fresh } else { all };
        wanted.retain(|(interface, _)| self.transmits.get(interface.index()) == Some(&true));
        core::mem::swap(&mut self.addresses, wanted);
        (self.round, self.next, self.due, self.round_started) = (0, 0, now, now);
    }

    /// The next packet that is due, or None for now (or for ever).
    #[inline]
    pub fn next(&mut self, now: Instant) -> Option<Announcement> {
        if now < self.due || self.round > ROUNDS {
            return None;
        }
        self.next_due(now)
    }

    fn next_due(&mut self, now: Instant) -> Option<Announcement> {
        if self.next == 0 {
            self.round_started = now;
        }
        let Some(&(interface, address)) = self.addresses.get(self.next) else {
            self.round += 1;
            self.next = 0;
            self.due = self.round_started + ROUND_INTERVAL;
            return None;
        };
        self.next += 1;
        if self.next.is_multiple_of(GROUP) {
            self.due = now + GROUP_INTERVAL;
        }
        Some(Announcement { interface, address, probe: self.round == 0 })
    }
}

#[cfg(test)]
mod tests;
