//! Packets from outside and second halves of hairpins.

use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::decrement_ttl;
use crate::headers::rewrite::rewrite;
use crate::policy::rules::Ruling;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::notes::Unmade;
use crate::shard::packet::PacketPath;
use crate::shard::packet::gateways::Onward;
use crate::shard::packet::outbound::Flow;
use crate::snapshot::shared::NextHop;
use crate::state::held_syn::Hold;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::steps::inbound::Act;
use crate::steps::inbound::Decided;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::OpenedFor;
pub(in crate::shard) use crate::steps::inbound::Via;
use crate::steps::view::View;
use crate::steps::way::NoWay;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::verdict::way_of;

impl View<'_> {
    pub(in crate::shard) fn inbound_of<'p>(&self, at: Arrival<'p>, via: Via) -> Inbound<'p> {
        let Arrival { now, meta, parsed } = at;
        let realm = self.snapshot.realm_of(meta.ingress);
        Inbound { now, parsed, via, realm, turn: meta.turn, is_vacated: false }
    }
}

impl PacketPath {
    #[inline]
    pub(in crate::shard) fn entering(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut dyn Sink) -> Fate {
        let Arrival { parsed, .. } = at;
        if parsed.class == Class::IcmpError {
            return self.inbound_error(at, bytes, Via::Outside, sink);
        }
        if parsed.is_fragment() {
            return self.inbound_fragment(at, bytes, sink);
        }
        self.inbound_flow(at, bytes, Via::Outside, sink)
    }

    #[inline]
    pub(in crate::shard) fn established_inbound(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        flow: Flow,
        hop: &NextHop,
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        let Flow { index, session } = flow;
        match session {
            Some(session) if parsed.class == Class::Tcp => {
                let advance = self.ledger.advance_tcp(now, index, session, Side::Outside, bytes, parsed);
                if let Some(expires) = advance.expires {
                    self.ledger.refresh(index, session, advance.state, expires);
                }
            }
            session => self.refresh_from_outside(now, index, session),
        }
        if self.changed.is_some()
            && let Some(fate) = self.by_gateway(at, bytes, flow, Onward::In(hop, via), sink)
        {
            return fate;
        }
        self.enter_translated(at, bytes, flow, hop, via, sink)
    }

    #[inline]
    pub(in crate::shard) fn enter_translated(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        flow: Flow,
        hop: &NextHop,
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let parsed = at.parsed;
        let mapping = self.ledger.state.mappings.get(flow.index);
        let change = Rewrite {
            end: End::Destination,
            address: mapping.internal_address().0,
            port: mapping.internal_port(),
            identification: None,
            decrement_ttl: true,
        };
        rewrite(bytes, parsed, &change);
        self.finish(bytes, parsed, hop, via.verdict(), sink)
    }

    #[inline]
    fn refresh_from_outside(&mut self, now: Instant, index: u32, session: Option<SessionRef>) {
        let protocol = self.ledger.state.mappings.get(index).protocol();
        if protocol == Protocol::Tcp {
            // A later fragment has no flags.
            return;
        }
        // RFC 4787 §4.3 REQ-6a for UDP; ICMP replies follow it.
        let refreshes = self.ledger.shared.settings().inbound_refresh;
        match session {
            Some(session) => {
                // Only the first answer changes the state and its timer, or an outside host could
                // keep the session alive.
                let state = self.ledger.state.session_state(index, session).0;
                let (is_unanswered, is_announced) = (state == TcpState::UNANSWERED, state == TcpState::ANNOUNCED);
                // The answer to a client outside must come from inside.
                let awaits_inside = is_unanswered && self.ledger.is_opened_from(index, session, Side::Outside);
                if (refreshes || is_unanswered || is_announced) && !awaits_inside {
                    let state = if is_announced { state } else { TcpState::Established };
                    let lifetime = self.view().lifetime(index, session, state);
                    self.ledger.refresh(index, session, state, now + lifetime);
                }
            }
            None if refreshes => {
                let expires = now + self.view().sessionless_lifetime(protocol);
                self.ledger.state.mappings.get_mut(index).extend_to(expires, false);
            }
            None => {}
        }
    }

    #[inline]
    pub(in crate::shard) fn finish(
        &mut self,
        bytes: &mut [u8],
        parsed: &Parsed,
        hop: &NextHop,
        verdict: Verdict,
        sink: &mut dyn Sink,
    ) -> Fate {
        self.ledger.counters.bytes_forwarded[way_of(verdict)] += u64::from(parsed.total_length);
        if verdict != Verdict::Passed
            && let Some(protocol) = parsed.protocol()
        {
            self.ledger.counters.translated[protocol.index()] += 1;
        }
        let egress = hop.egress();
        if parsed.total_length <= hop.mtu {
            return Fate::Forward { verdict, egress, length: parsed.total_length };
        }
        self.send_in_fragments(bytes, parsed, hop.mtu, egress, verdict, sink)
    }

    #[inline]
    pub(in crate::shard) fn inbound_flow(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        via: Via,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        let decided = self.view().decide_inbound(&self.view().inbound_of(at, via), &mut ());
        if let Some(judged) = &decided.judged {
            self.note_judged(at.now, judged);
        }
        if let Some(ruling) = decided.ruling {
            self.count_passed(parsed, ruling);
        }
        match decided {
            Decided { act: Act::Enter { mapping: index, session, hop }, judged, .. } => {
                if let Some(judged) = judged {
                    self.note_permitted(index, session, judged.permits);
                }
                self.established_inbound(at, bytes, Flow { index, session }, &hop, via, sink)
            }
            Decided { act: Act::EnterFlow { flow, hop }, judged, .. } => {
                if let Some(judged) = judged {
                    self.note_flow_permitted(flow, judged.permits);
                }
                self.enter_by_flow(at, bytes, flow, &hop, via, sink)
            }
            Decided { act, .. } => self.act_unusually(at, bytes, act, via, sink),
        }
    }

    #[cold]
    #[inline(never)]
    fn act_unusually(&mut self, at: Arrival<'_>, bytes: &mut [u8], act: Act, via: Via, sink: &mut dyn Sink) -> Fate {
        let Arrival { now, parsed, .. } = at;
        match act {
            Act::Enter { .. } | Act::EnterFlow { .. } => Fate::Done(Verdict::NoMapping),
            Act::EnterByCall { mapping: index, hop } => {
                self.enter_translated(at, bytes, Flow { index, session: None }, &hop, via, sink)
            }
            Act::Open { mapping: index, new, by, purpose, hop } => {
                let made = match purpose {
                    OpenedFor::Gateway => self.ledger.open_to_server(at, bytes, index, &new, by),
                    OpenedFor::Packet | OpenedFor::Answers => self.ledger.create_session(now, index, &new, by),
                };
                if made.is_ok() && !self.ledger.state.grants.is_empty() {
                    self.ledger.note_entered(now, index, (new.remote_address, new.remote_port));
                }
                match made {
                    Err(verdict) if purpose == OpenedFor::Packet => Fate::Done(verdict),
                    // A session only for the answers does not concern this packet.
                    made => {
                        let session = made.ok().filter(|_| purpose != OpenedFor::Answers);
                        self.established_inbound(at, bytes, Flow { index, session }, &hop, via, sink)
                    }
                }
            }
            Act::Activate { inside, expired, hop } => self.activate(at, bytes, (&inside, &expired), &hop, via, sink),
            Act::Lead { aim, hop } => self.lead(at, bytes, &aim, &hop, via, sink),
            Act::Local(answer) => self.local_packet(at, (Side::Outside, answer), bytes, sink),
            Act::Pass { hop } => self.pass_on(bytes, parsed, &hop, sink),
            Act::HandOff { worker, turn } => hand_inbound(at, worker, turn, via),
            Act::Vacate { expired, worker } => self.vacate(at, expired, worker, via),
            Act::Hold { is_stray } => self.hold_syn(at, bytes, is_stray && via == Via::Outside),
            Act::Drop(verdict) => Fate::Done(verdict),
            Act::Return(no_way) => self.turn_back(at, bytes, via.side(), no_way, sink),
            Act::Refuse { key, verdict, wanted } => {
                let unmade = Unmade { key: &key, verdict, wanted };
                self.ledger.count_refusal(now, unmade);
                self.ledger.note_refusal(now, unmade);
                Fate::Done(verdict)
            }
        }
    }

    pub(in crate::shard) fn turn_back(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        towards: Side,
        no_way: NoWay,
        sink: &mut dyn Sink,
    ) -> Fate {
        self.send_error(at.now, towards, at.meta, no_way.reason, bytes, sink);
        Fate::Done(no_way.verdict)
    }

    fn hold_syn(&mut self, at: Arrival<'_>, bytes: &[u8], is_stray: bool) -> Fate {
        let Arrival { now, meta, parsed } = at;
        // Retransmissions must meet on one worker; the awaited mapping has no owner yet.
        let keeper =
            self.ledger.shared.worker_of_stray(parsed.destination, parsed.source, u32::from(parsed.destination_port));
        if is_stray && keeper != self.ledger.worker && meta.stage == Stage::Received {
            return Fate::HandOff { worker: keeper, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        if self.ledger.shared.settings().answer_unsolicited_syn {
            let external = Endpoint::new(parsed.destination.into(), parsed.destination_port);
            let remote = Endpoint::new(parsed.source.into(), parsed.source_port);
            let packet = bytes.get(..usize::from(parsed.total_length)).unwrap_or(bytes);
            if self.ledger.syns.hold(now, external, remote, meta.ingress, packet) == Hold::Full {
                self.ledger.counters.unsolicited_syns_overflow += 1;
            }
        }
        Fate::Done(Verdict::UnsolicitedSyn)
    }

    /// Packets without ports have rules of their own.
    #[cold]
    pub(in crate::shard) fn count_passed(&self, parsed: &Parsed, ruling: Ruling) {
        let shared = &self.ledger.shared;
        let rules = if parsed.protocol().is_some() { &shared.rules } else { &shared.passes };
        rules.count(self.ledger.worker, ruling);
    }

    /// Passes a packet on untranslated (RFC 6888 REQ-6).
    pub(in crate::shard) fn pass_on(
        &mut self,
        bytes: &mut [u8],
        parsed: &Parsed,
        hop: &NextHop,
        sink: &mut dyn Sink,
    ) -> Fate {
        decrement_ttl(bytes);
        self.finish(bytes, parsed, hop, Verdict::Passed, sink)
    }
}

pub(in crate::shard) fn hand_inbound(at: Arrival<'_>, worker: WorkerId, turn: u8, via: Via) -> Fate {
    let Arrival { meta, parsed, .. } = at;
    let stage = match (via, parsed.class) {
        (Via::Outside, Class::LaterFragment) => Stage::FragmentResolved,
        (Via::Outside, _) if parsed.is_fragment() => Stage::FragmentResolved,
        // The next worker must not steer it by the port table again.
        (Via::Outside, _) if turn != 0 => Stage::Balanced,
        (Via::Outside, _) => Stage::Steered,
        (Via::Hairpin, Class::LaterFragment) => Stage::HairpinFragment,
        (Via::Hairpin, _) => Stage::Hairpin,
    };
    let ports = (parsed.source_port, parsed.destination_port);
    Fate::HandOff { worker, meta: PacketMeta { stage, turn, ports, ..meta } }
}
