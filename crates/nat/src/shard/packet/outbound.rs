use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::rewrite;
use crate::policy::rules::Permits;
use crate::policy::rules::Ruling;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::commit::ATTEMPTS;
use crate::shard::notes::Unmade;
use crate::shard::packet::PacketPath;
use crate::shard::packet::gateways::Onward;
use crate::shard::packet::hairpin::made_mapping;
use crate::shard::packet::hairpin::made_session;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::local::Reason;
use crate::state::mapping::InternalKey;
use crate::state::mapping::SessionRef;
use crate::state::tcp::TcpState;
use crate::steps::dependent::NewDependent;
pub(in crate::shard) use crate::steps::door::remote_port;
use crate::steps::expired::Vacancy;
use crate::steps::opening::Hints;
use crate::steps::outbound::DecidedOutbound;
use crate::steps::outbound::Departure;
use crate::steps::outbound::Ending;
use crate::steps::outbound::Leaves;
use crate::steps::outbound::Outbound;
use crate::steps::outbound::Question;
pub(in crate::shard) use crate::steps::outbound::Way;
use crate::steps::outbound::translated;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::ExternalEndpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::Verdict;

#[derive(Clone, Copy)]
pub(in crate::shard) struct Flow {
    pub(in crate::shard) index: u32,
    /// None if an unfiltered UDP mapping has no record for it.
    pub(in crate::shard) session: Option<SessionRef>,
}

/// Rules are asked only about what is opened.
fn ruling_of(asked: &Option<Question>) -> Ruling {
    asked.as_ref().map_or(Ruling::DEFAULT, |question| question.ruling)
}

fn having_made(way: Way, made: u32) -> Way {
    match way {
        Way::Out(_) => way,
        Way::Hairpin { .. } => Way::Hairpin { made },
    }
}

impl PacketPath {
    #[inline]
    pub(in crate::shard) fn leaving(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        hints: &Hints,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { meta, parsed, .. } = at;
        if parsed.class == Class::IcmpError {
            // The subscriber's worker handles it; the sender may be a router.
            return self.outbound_error(at, bytes, sink);
        }
        let owner = self.ledger.shared.worker_of_subscriber(HostNumber(parsed.source));
        if owner != self.ledger.worker {
            if parsed.destination_port == pcp::SERVER_PORT
                && parsed.class == Class::Udp
                && let Some(fate) = self.pass_request_on(owner, at, bytes, sink)
            {
                return fate;
            }
            return Fate::HandOff { worker: owner, meta: PacketMeta { stage: Stage::Steered, ..meta } };
        }
        if parsed.is_fragment() {
            return self.outbound_fragment(at, bytes, sink);
        }
        self.outbound_flow(at, bytes, hints, None, sink)
    }

    #[inline]
    pub(in crate::shard) fn outbound_flow(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        hints: &Hints,
        datagram: Option<crate::state::fragments::DatagramIndex>,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let Some(protocol) = parsed.protocol() else { return self.leave_portless(at, bytes, sink) };
        let realm = self.ledger.shared.realm_of(meta.ingress);
        let key = InternalKey { realm, protocol, address: HostNumber(parsed.source), port: parsed.source_port };
        let found = self.ledger.state.find_mapping(&key, hints.hash);
        let packet = Outbound { now, parsed, key, hints: *hints, found, vacancy: Vacancy::at(meta.stage) };
        let leaves = match self.leaves_of(at, bytes, packet, sink) {
            Ok(leaves) => leaves,
            Err(fate) => return fate,
        };
        match leaves {
            Leaves::ByMapping { mapping: index, session, way } => {
                self.established_outbound(at, bytes, datagram, way, Flow { index, session }, sink)
            }
            Leaves::ByDependent { index, way } => self.outbound_by_flow(at, bytes, datagram, (index, way), sink),
        }
    }

    /// Decides, and commits what is to be opened, until the packet has a session or ends.
    #[inline]
    fn leaves_of(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        mut packet: Outbound<'_>,
        sink: &mut dyn Sink,
    ) -> Result<Leaves, Fate> {
        let (mut asked, mut permits) = (None, None);
        for _ in 0..ATTEMPTS {
            let (view, random) = self.ledger.deciding();
            let DecidedOutbound { judged, departure } = view.decide_outbound(&packet, &mut asked, random, &mut ());
            if let Some(judged) = &judged {
                self.note_judged(at.now, judged);
                permits = Some(judged.permits);
            }
            let leaves = match departure {
                Ok(Departure::Leave(leaves)) => Some(leaves),
                Ok(departure) => self.commit_departure(&mut packet, departure, ruling_of(&asked)),
                Err(Ending::Expire { expired, .. }) => {
                    for index in expired.mappings() {
                        self.ledger.end_mapping(at.now, index);
                    }
                    packet.found = None;
                    None
                }
                Err(ending) => return Err(self.end_outbound(at, bytes, ruling_of(&asked), ending, sink)),
            };
            if let Some(leaves) = leaves {
                if let Some(permits) = permits {
                    self.note_leaves_permitted(&leaves, permits);
                }
                return Ok(leaves);
            }
        }
        let ruling = ruling_of(&asked);
        let verdict = Verdict::PortsExhausted;
        let ending = Ending::Refuse { key: packet.key, verdict, wanted: ruling.action.pool() };
        Err(self.end_outbound(at, bytes, ruling, ending, sink))
    }

    fn note_leaves_permitted(&mut self, leaves: &Leaves, permits: Permits) {
        match *leaves {
            Leaves::ByMapping { mapping, session, .. } => self.note_permitted(mapping, session, permits),
            Leaves::ByDependent { index, .. } => self.note_flow_permitted(index, permits),
        }
    }

    /// `None`: another worker was faster, or an ended session was in the way. Decide again.
    #[cold]
    #[inline(never)]
    fn commit_departure(&mut self, packet: &mut Outbound<'_>, departure: Departure, ruling: Ruling) -> Option<Leaves> {
        let now = packet.now;
        let leaves = match departure {
            Departure::Leave(leaves) => return Some(leaves),
            Departure::Map { mapping, new, way } => {
                let Ok(index) = self.ledger.commit_mapping(now, &mapping.mapping, &new) else {
                    packet.hints.forget_draws();
                    return None;
                };
                let way = having_made(way, made_mapping(index));
                Leaves::ByMapping { mapping: index, session: Some(SessionRef::Inline), way }
            }
            Departure::Open { mapping, place, by, new, way } => {
                let session = self.ledger.commit_session(now, mapping, place, &new, by);
                let way = having_made(way, made_session(mapping, session));
                Leaves::ByMapping { mapping, session: Some(session), way }
            }
            Departure::OpenDependent { new: NewDependent { over: Some(over), .. }, .. } => {
                self.ledger.end_over(now, over);
                return None;
            }
            Departure::OpenDependent { new, way } => {
                let index = self.ledger.commit_dependent(now, &new).ok()?;
                Leaves::ByDependent { index, way }
            }
        };
        self.ledger.shared.rules.count(self.ledger.worker, ruling);
        if let Leaves::ByMapping { mapping, .. } = leaves
            && packet.key.protocol == Protocol::Tcp
        {
            let remote = Endpoint::from(packet.remote());
            if self.ledger.syns.forget(self.ledger.state.mappings.get(mapping).external(), remote) {
                self.ledger.counters.unsolicited_syns_matched += 1;
            }
        }
        Some(leaves)
    }

    pub(in crate::shard) fn end_outbound(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        ruling: Ruling,
        ending: Ending,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, meta, .. } = at;
        let verdict = ending.verdict();
        match ending {
            Ending::Local(answer) => return self.local_packet(at, (Side::Inside, answer), bytes, sink),
            Ending::Return(no_way) => return self.turn_back(at, bytes, Side::Inside, no_way, sink),
            Ending::DropByRule(ruling) => self.ledger.shared.rules.count(self.ledger.worker, ruling),
            Ending::Pass(hop) => {
                self.ledger.shared.rules.count(self.ledger.worker, ruling);
                return self.pass_on(bytes, at.parsed, &hop, sink);
            }
            Ending::Refuse { key, verdict, wanted } => {
                self.ledger.shared.rules.count(self.ledger.worker, ruling);
                self.ledger.end_quiet_penalty(now, &key);
                return self.refuse(now, Unmade { key: &key, verdict, wanted }, meta, bytes, sink);
            }
            Ending::Ask { worker, external } => {
                let (record, ports) = (external.address.to_bits(), (0, external.port));
                return Fate::HandOff { worker, meta: PacketMeta { stage: Stage::Vacate, record, ports, ..meta } };
            }
            Ending::Drop(_) | Ending::Expire { .. } => {}
        }
        Fate::Done(verdict)
    }

    /// RFC 6888 REQ-11: drops the packet and reports it to the sender.
    pub(in crate::shard) fn refuse(
        &mut self,
        now: Instant,
        unmade: Unmade<'_>,
        meta: PacketMeta,
        bytes: &[u8],
        sink: &mut dyn Sink,
    ) -> Fate {
        let Unmade { key, verdict, .. } = unmade;
        self.ledger.note_refusal(now, unmade);
        self.ledger.count_refusal(now, unmade);
        self.ledger.note_offence(now, key, verdict);
        if verdict != Verdict::SourceNotSubscriber
            && let Some(code) = self.ledger.shared.settings().icmp.no_resources_code
        {
            self.send_error(now, Side::Inside, meta, Reason::NoResources(code), bytes, sink);
        }
        Fate::Done(verdict)
    }

    #[inline]
    fn established_outbound(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<crate::state::fragments::DatagramIndex>,
        way: Way,
        flow: Flow,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { now, parsed, .. } = at;
        match flow.session {
            Some(session) if parsed.class == Class::Tcp => {
                let advance = self.ledger.advance_tcp(now, flow.index, session, Side::Inside, bytes, parsed);
                if let Some(expires) = advance.expires {
                    self.ledger.refresh(flow.index, session, advance.state, expires);
                }
            }
            Some(session) => {
                let (state, expires) = self.ledger.state.session_state(flow.index, session);
                let is_unanswered = state == TcpState::UNANSWERED;
                // The first answer of a server inside.
                let state = match is_unanswered && self.ledger.is_opened_from(flow.index, session, Side::Outside) {
                    true => TcpState::Established,
                    false => state,
                };
                // A later fragment must not shorten the timer.
                let lifetime = match self.ledger.state.mappings.get(flow.index).protocol() {
                    Protocol::Tcp => expires.saturating_since(now),
                    Protocol::Udp | Protocol::Icmp => self.view().lifetime(flow.index, session, state),
                };
                self.ledger.refresh(flow.index, session, state, now + lifetime);
            }
            None => {
                let expires = now + self.view().sessionless_lifetime(Protocol::Udp);
                self.ledger.state.mappings.get_mut(flow.index).extend_to(expires, false);
            }
        }
        if self.changed.is_some()
            && let Some(fate) = self.by_gateway(at, bytes, flow, Onward::Out(way), sink)
        {
            return fate;
        }
        self.leave_translated(at, bytes, datagram, way, flow, sink)
    }

    #[inline]
    pub(in crate::shard) fn leave_translated(
        &mut self,
        at: Arrival<'_>,
        bytes: &mut [u8],
        datagram: Option<crate::state::fragments::DatagramIndex>,
        way: Way,
        flow: Flow,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Arrival { parsed, .. } = at;
        let mapping = self.ledger.state.mappings.get(flow.index);
        let external @ ExternalEndpoint { address, port } = mapping.external().into();
        let identification = self.identification_outside(parsed, address, datagram);
        let decrement_ttl = matches!(way, Way::Out(_));
        let change = Rewrite { end: End::Source, address, port, identification, decrement_ttl };
        rewrite(bytes, parsed, &change);
        match way {
            Way::Out(hop) => self.finish(bytes, parsed, &hop, Verdict::Outbound, sink),
            Way::Hairpin { made, .. } => {
                let identification = identification.unwrap_or(parsed.identification);
                let translated = Parsed { identification, ..translated(parsed, external) };
                let meta = PacketMeta { record: made, ..at.meta };
                self.hairpin(Arrival { parsed: &translated, meta, ..at }, bytes, sink)
            }
        }
    }

    pub(in crate::shard) fn hairpin(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut dyn Sink) -> Fate {
        let fate = self.inbound_flow(at, bytes, Via::Hairpin, sink);
        self.after_hairpin(at, bytes, fate, sink)
    }

    /// Subscribers share an address, so datagrams that may be fragmented get new identifications
    /// (RFC 6864 §5.3.1, RFC 7857 §10).
    #[inline]
    pub(in crate::shard) fn identification_outside(
        &mut self,
        parsed: &Parsed,
        external_address: u32,
        datagram: Option<crate::state::fragments::DatagramIndex>,
    ) -> Option<u16> {
        let source = external_address.into();
        let destination = parsed.destination.into();
        match datagram {
            None if parsed.dont_fragment => None,
            None => Some(self.identifications.next(source, destination, parsed.protocol_number)),
            Some(datagram) => {
                let known = self.fragments.translated_identification(datagram);
                Some(known.unwrap_or_else(|| {
                    let fresh = self.identifications.next(source, destination, parsed.protocol_number);
                    self.fragments.set_translated_identification(datagram, fresh);
                    fresh
                }))
            }
        }
    }
}
