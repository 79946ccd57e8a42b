//! Packets of endpoint-dependent sessions.
//!
//! ```text
//!   from inside: the mapping of the endpoint has this session ─► outbound
//!                else an endpoint-dependent session has it    ─► outbound_by_flow
//!                else the endpoint has a live mapping         ─► a new session of that mapping
//!                else the rules                               ─► a mapping, or a session like this
//!   from outside: the port table says "shared"                ─► enter_by_flow, by five-tuple
//!                 a forward has several targets               ─► lead (`targets`), by five-tuple
//! ```
//!
//! So an endpoint with a mapping keeps what RFC 4787 REQ-1 promises; others get endpoint-dependent
//! sessions where a rule says so (ADR 11). No inside five-tuple has both.

use crate::snapshot::shared::NextHop;
use crate::steps::outbound::Way;
use crate::steps::outbound::translated;
use crate::steps::view::View;

use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::rewrite;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::state::fragments::DatagramIndex;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::types::ExternalEndpoint;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;

impl View<'_> {
    /// Endpoint-dependent sessions, including expired ones.
    pub fn flows_len(&self) -> usize {
        self.state.flows.len()
    }
}

impl PacketPath {
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn outbound_by_flow(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<DatagramIndex>,
        (index, way): (u32, Way),
        sink: &mut dyn Sink,
    ) -> Fate {
        let parsed = at.parsed;
        let flow = self.ledger.state.flows.get(index);
        let (remote_outside, external) = (flow.remote_outside(), flow.external());
        let Way::Out(hop) = way else { return self.hairpin_by_flow(at, bytes, datagram, index, sink) };
        self.advance_flow(at, bytes, index, Side::Inside);
        let outside = Parsed { destination: remote_outside.address, ..*parsed };
        let identification = self.identification_outside(&outside, external.address, datagram);
        if parsed.destination != remote_outside.address || parsed.destination_port != remote_outside.port {
            // An ICMP identifier stands for both ports and changes once.
            let port =
                if parsed.protocol() == Some(Protocol::Icmp) { parsed.destination_port } else { remote_outside.port };
            let change = Rewrite {
                end: End::Destination,
                address: remote_outside.address,
                port,
                identification: None,
                decrement_ttl: false,
            };
            rewrite(bytes, parsed, &change);
        }
        let change = Rewrite {
            end: End::Source,
            address: external.address,
            port: external.port,
            identification,
            decrement_ttl: true,
        };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, &hop, Verdict::Outbound, sink)
    }

    fn hairpin_by_flow(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<DatagramIndex>,
        index: u32,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        self.advance_flow(at, bytes, index, Side::Inside);
        let external @ ExternalEndpoint { address, port } = self.ledger.state.flows.get(index).external();
        let identification = self.identification_outside(parsed, address, datagram);
        rewrite(bytes, parsed, &Rewrite { end: End::Source, address, port, identification, decrement_ttl: false });
        let identification = identification.unwrap_or(parsed.identification);
        let translated = Parsed { identification, ..translated(parsed, external) };
        let meta = PacketMeta { record: 0, ..meta };
        self.hairpin(Arrival { parsed: &translated, meta, ..at }, bytes, sink)
    }

    pub(in crate::shard) fn enter_by_flow(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        index: u32,
        hop: &NextHop,
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        let flow = self.ledger.state.flows.get(index);
        let (protocol, remote_outside, internal, remote_inside) =
            (flow.protocol(), flow.remote_outside(), flow.internal(), flow.remote_inside());
        self.advance_flow(at, bytes, index, Side::Outside);
        if remote_inside.not_redirected() != remote_outside {
            let port = if protocol == Protocol::Icmp { parsed.source_port } else { remote_inside.port };
            let change = Rewrite {
                end: End::Source,
                address: remote_inside.address,
                port,
                identification: None,
                decrement_ttl: false,
            };
            rewrite(bytes, parsed, &change);
        }
        let change = Rewrite {
            end: End::Destination,
            address: internal.0.0,
            port: internal.1,
            identification: None,
            decrement_ttl: true,
        };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, hop, via.verdict(), sink)
    }

    fn advance_flow(&mut self, at: Arrival<'_>, bytes: &[u8], index: u32, from: Side) {
        let Arrival { now, parsed, .. } = at;
        if parsed.class == Class::Tcp {
            let advance = self.ledger.advance_tcp(now, 0, SessionRef::Flow(index), from, bytes, parsed);
            if let Some(expires) = advance.expires {
                self.ledger.state.flows.get_mut(index).refresh(advance.state, expires);
            }
            return;
        }
        let protocol = self.ledger.state.flows.get(index).protocol();
        if protocol == Protocol::Tcp {
            return;
        }
        // As `refresh_from_outside` for mappings.
        let (before, is_answer) =
            (self.ledger.state.flows.get(index).state(), from != self.ledger.state.flows.get(index).opened_from());
        let is_first_answer = is_answer && before == TcpState::UNANSWERED;
        if from == Side::Inside || self.ledger.shared.settings().inbound_refresh || is_first_answer {
            let state = if is_answer { TcpState::Established } else { before };
            let expires = now + self.view().lifetime(0, SessionRef::Flow(index), state);
            self.ledger.state.flows.get_mut(index).refresh(state, expires);
        }
    }
}
