//! Before the NAT64 forgets an idle connection, it asks the host whether it still has it (RFC 6146
//! §3.5.2.2, state ESTABLISHED). The answer, a packet like any other, makes it established again.

use wire::ipv4;
use wire::ipv4::Ipv4;
use wire::tcp::Flags;
use wire::tcp::Tcp;

use crate::headers::packet::Sink;
use crate::shard::packet::PacketPath;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::state::tcp::state_now;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::upkeep::walk::Pace;
use crate::upkeep::walk::Savings;
use crate::upkeep::walk::Walk;

/// Later rounds probe the others; there is time for many.
const PROBES_PER_CALL_MAX: usize = 16;

/// Small tables need no minimum per call.
const PACE: Pace = Pace { per_call_min: 0, ..Pace::RECORDS };
/// A round takes at least this part of the time in which a connection can be probed: four minutes
/// by default.
const ROUNDS: u64 = 16;

fn pace(time: Duration) -> Pace {
    Pace { round_micros: PACE.round_micros.max(time.as_micros() / ROUNDS), ..PACE }
}

const LENGTH: usize = ipv4::HEADER_LENGTH_MIN + wire::tcp::HEADER_LENGTH_MIN;
const TTL: u8 = 64;

#[derive(Debug)]
pub(super) struct Probes {
    last: Instant,
    mappings: Walk,
    sessions: Walk,
    due: [Savings; 2],
}

impl Default for Probes {
    fn default() -> Probes {
        Probes {
            last: Instant::ORIGIN,
            mappings: Walk::default(),
            sessions: Walk::default(),
            due: [Savings::default(); 2],
        }
    }
}

/// An idle connection, with addresses as the host knows them.
struct Idle {
    realm: RealmId,
    remote: (u32, u16),
    host: (HostNumber, u16),
}

impl View<'_> {
    /// A connection of a NAT64 host whose time as an established one has just run out.
    #[inline]
    fn idle_connection(&self, now: Instant, index: u32, session: SessionRef) -> Option<Idle> {
        let mapping = self.state.mappings.get(index);
        let is_of_nat64 = mapping.internal_address().is_nat64();
        if !is_of_nat64 || !mapping.is_in_use() || mapping.protocol() != Protocol::Tcp {
            return None;
        }
        let remote = match session {
            SessionRef::Inline if mapping.has_live_session(now) => (mapping.remote_address(), mapping.remote_port()),
            SessionRef::Extra(slot) => {
                let session = self.state.sessions.get(slot);
                (session.is_alive(now) && !session.is_hold())
                    .then_some((session.remote_address, session.remote_port))?
            }
            SessionRef::Inline | SessionRef::Flow(_) => return None,
        };
        let (stored, expires) = self.state.session_state(index, session);
        let is_over = state_now(stored, expires, now, &self.snapshot.settings().timeouts) == TcpState::Transitory;
        let host = (mapping.internal_address(), mapping.internal_port());
        (stored.is_established() && is_over).then_some(Idle { realm: mapping.realm(), remote, host })
    }
}

impl PacketPath {
    pub(super) fn probe_idle(&mut self, now: Instant, sink: &mut dyn Sink) {
        let elapsed = now.saturating_since(self.edge.probes.last).as_micros();
        self.edge.probes.last = now;
        let pace = pace(self.ledger.shared.settings().timeouts.tcp_closing);
        let mut left = PROBES_PER_CALL_MAX;
        let end = self.ledger.state.mappings.walk_end();
        let due = self.edge.probes.due[0].due(&pace, end, elapsed);
        if due != 0 {
            for index in self.edge.probes.mappings.next(due, end) {
                self.probe(now, (index, SessionRef::Inline), &mut left, sink);
            }
            self.ledger.state.mappings.prefetch_range(self.edge.probes.mappings.ahead(due));
        }
        let end = self.ledger.state.sessions.walk_end();
        let due = self.edge.probes.due[1].due(&pace, end, elapsed);
        for slot in self.edge.probes.sessions.next(due, end) {
            let mapping = self.ledger.state.sessions.get(slot).mapping;
            if mapping != 0 {
                self.probe(now, (mapping, SessionRef::Extra(slot)), &mut left, sink);
            }
        }
    }

    #[inline]
    fn probe(&mut self, now: Instant, (index, session): (u32, SessionRef), left: &mut usize, sink: &mut dyn Sink) {
        if *left > 0
            && let Some(idle) = self.view().idle_connection(now, index, session)
        {
            *left -= 1;
            self.send_probe(&idle, sink);
            // Only once, even without a buffer: the host may be gone.
            self.ledger.note_probed(index, session);
        }
    }

    #[cold]
    fn send_probe(&mut self, idle: &Idle, sink: &mut dyn Sink) {
        let Some(egress) = self.hop_to_hosts(idle.realm) else { return };
        let mut packet = [0; LENGTH];
        let mut segment = Tcp::new_unchecked(&mut packet[ipv4::HEADER_LENGTH_MIN..]);
        segment.set_source_port(idle.remote.1);
        segment.set_destination_port(idle.host.1);
        segment.set_header_length(wire::tcp::HEADER_LENGTH_MIN);
        segment.set_flags(Flags::ACK);
        segment.fill_checksum(idle.remote.0, idle.host.0.0);
        let mut header = Ipv4::new_unchecked(packet.as_mut_slice());
        header.set_header_length(ipv4::HEADER_LENGTH_MIN);
        header.set_total_length(LENGTH as u16);
        header.set_fragment_bits(ipv4::FLAG_DONT_FRAGMENT);
        header.set_ttl(TTL);
        header.set_protocol(ipv4::PROTOCOL_TCP);
        header.set_source(idle.remote.0);
        header.set_destination(idle.host.0.0);
        header.fill_checksum();
        let sent = self.emit(egress, &[&packet], sink);
        self.ledger.counters.originated += u64::from(sent.is_ok());
    }
}
