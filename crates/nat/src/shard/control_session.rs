//! What gateways do with packets of control sessions. Sends nothing.

use alg::Alg;
use alg::AlgId;
use alg::CallStep;
use alg::Context;
use alg::Endpoint as AlgEndpoint;
use alg::Findings;
use alg::Frame;
use alg::Held;
use alg::Known;
use alg::Passed;
use alg::Reading;
use alg::Replacements;
use alg::Segment;
use alg::Step;
use alg::Stream;
use alg::WantKind;

use crate::headers::parse::Class;
use crate::headers::parse::Parsed;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::put_u32;
use crate::shard::Arrival;
use crate::shard::Ledger;
use crate::shard::commit::expectation::Reader;
use crate::state::alg::AlgKey;
use crate::state::alg::Begun;
use crate::state::alg::KNOWN_MAX;
use crate::state::alg::ways;
use crate::state::mapping::InternalKey;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::state::tcp;
use crate::steps::announcement::Asking;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::Side;
use crate::verdict::GatewayRefusal;
use crate::verdict::Verdict;
use mem::Arena;
use mem::ArenaError;
use wire::checksum;
use wire::tcp::Flags;

#[derive(Clone, Copy)]
pub(in crate::shard) struct Place {
    pub(in crate::shard) index: u32,
    pub(in crate::shard) session: Option<SessionRef>,
}

/// Longer payloads are not read.
const PAYLOAD_MAX: usize = 9_216;
const OUTPUT_MAX: usize = PAYLOAD_MAX + alg::MESSAGE_MAX + 2 * alg::EDITS_MAX * alg::TEXT_MAX;
/// IPv4 and TCP, with all options.
pub(in crate::shard) const HEADERS_MAX: usize = 120;
/// Idle time after a transfer began. A live data connection known to the gateway restarts it.
const TRANSFER: Duration = Duration::from_secs(4 * 60 * 60);

/// A sender that repeats only the start of something for this long waits for an answer to it,
/// unless that surely is a message. The least retransmission timeout (RFC 6298 §2.4).
const HELD_BACK: Duration = Duration::from_secs(1);

/// The sweep restarts it when less is left.
const RENEWED_BELOW: Duration = Duration::from_secs(4 * 60 * 60 - 60);

/// Reserved; takes memory once a gateway has a session.
pub(in crate::shard) struct Changed {
    pub(in crate::shard) output: Arena<u8>,
    pub(in crate::shard) packet: Arena<u8>,
    /// For a hairpin's second half.
    pub(in crate::shard) second: Option<Box<Changed>>,
}

impl Changed {
    pub(in crate::shard) fn new() -> Result<Box<Changed>, ArenaError> {
        let buffers = |second| -> Result<Box<Changed>, ArenaError> {
            let packet = Arena::reserved(OUTPUT_MAX + HEADERS_MAX)?;
            Ok(Box::new(Changed { output: Arena::reserved(OUTPUT_MAX)?, packet, second }))
        };
        buffers(Some(buffers(None)?))
    }
}

impl core::fmt::Debug for Changed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Changed")
    }
}

#[derive(Clone, Copy)]
pub(in crate::shard) struct Control {
    pub(in crate::shard) asking: Asking,
    pub(in crate::shard) flow: Place,
    pub(in crate::shard) from: Side,
    pub(in crate::shard) disabled: u8,
}

pub(in crate::shard) enum Done {
    AsItIs,
    /// The changed datagram, of length `total`, is in the packet buffer.
    Datagram {
        total: usize,
    },
    Segment {
        headers: usize,
        sequence: u32,
        ack: u32,
        length: usize,
        fin: bool,
    },
    Drop(Verdict),
}

impl View<'_> {
    /// Whether the store has this mapping's first session.
    pub(in crate::shard) fn has_control_session(&self, index: u32) -> bool {
        let mapping = self.state.mappings.get(index);
        let key = AlgKey::of(index, mapping, (mapping.remote_address(), mapping.remote_port()));
        self.state.control_sessions.as_ref().is_some_and(|store| store.find(&key).is_some())
    }

    /// A phone over UDP may send from one port and listen at others, named in its `REGISTER`. This
    /// is its session with the same remote endpoint at another of these, where requests may be
    /// answered.
    pub(crate) fn other_session(&self, asking: &Asking) -> Option<u32> {
        let Asking { now, key, .. } = *asking;
        let store = self.state.control_sessions.as_ref()?;
        let own = self.state.mappings.get(key.mapping).key();
        if own.protocol != Protocol::Udp || self.state.grants.is_empty() {
            return None;
        }
        let at_port = |port: u16| {
            let index = self.state.find_live_mapping(&InternalKey { port, ..own }, now)?;
            store.find(&AlgKey::of(index, self.state.mappings.get(index), key.remote))
        };
        let sends_from = self.registration(now, key.mapping, key.remote).map(|grant| grant.requester.port);
        sends_from.filter(|port| *port != own.port).and_then(at_port).or_else(|| {
            let mut listens_at = self.registrations_elsewhere(now, key.mapping, key.remote);
            listens_at.find_map(|grant| at_port(grant.key().port))
        })
    }

    /// The session's announcements, and how many entries count. The endpoint and the announcements
    /// of a phone's [other session](Self::other_session) come first.
    fn known_of(&self, asking: &Asking) -> ([Known; 2 * KNOWN_MAX + 1], usize) {
        let (mut known, mut len) = ([Known::default(); 2 * KNOWN_MAX + 1], 0);
        let mut add = |more: &[Known]| {
            known[len..len + more.len()].copy_from_slice(more);
            len += more.len();
        };
        if let Some(store) = self.state.control_sessions.as_ref() {
            if let Some(other) = self.other_session(asking).map(|other| store.get(other)) {
                let mapping = self.state.mappings.get(other.key.mapping);
                let (external, inside) = (mapping.external().port, mapping.internal_port());
                add(&[Known { external, inside, peer: None }]);
                add(other.known());
            }
            add(store.get(asking.place).known());
        }
        (known, len)
    }

    fn has_data(&self, now: Instant, key: &AlgKey, known: &[Known]) -> bool {
        let of_control = self.state.mappings.get(key.mapping).key();
        known.iter().any(|known| {
            let inside = InternalKey { port: known.inside, ..of_control };
            let found = self.state.find_live_mapping(&inside, now);
            found.is_some_and(|mapping| self.has_real_session(now, mapping))
        })
    }
}

impl Ledger {
    /// The first packet begins the session.
    pub(in crate::shard) fn control_of(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        flow: Place,
        from: Side,
    ) -> Option<Control> {
        let Arrival { now, parsed, .. } = at;
        let session = flow.session?;
        let (remote, _) = self.remote_of(flow.index, session)?;
        let mapping = self.state.mappings.get(flow.index);
        let (key, inside, subscriber) = (AlgKey::of(flow.index, mapping, remote), mapping.key(), mapping.subscriber);
        let known = self.state.control_sessions.as_ref()?.find(&key);
        let Some(Reader { gateway, client_is_inside, is_of_registration, awaits_request }) =
            self.gateway_of(now, flow.index, session, known)
        else {
            return self.no_longer_served(at, flow, from, key, known?);
        };
        let (alg, disabled) = (gateway.alg, gateway.disabled);
        let is_its =
            |place: &u32| self.state.control_sessions.as_ref().is_some_and(|store| store.get(*place).alg == alg);
        let read = known.filter(is_its);
        let is_first = match parsed.class {
            Class::Udp => {
                let is_asked = || from == Side::Outside && asks(alg, payload_of(bytes, parsed));
                read.is_none() && (!awaits_request || is_asked())
            }
            // Read from the first byte or never. Within a connection, a SYN leaves the state alone;
            // one that opens is new, repeated before its answer, or follows an ended connection.
            _ => {
                let from_client = (from == Side::Inside) == client_is_inside;
                let is_opening = self.state.session_state(flow.index, session).0.is_opening();
                tcp::opens(Flags(parsed.tcp_flags)) && from_client && is_opening
            }
        };
        if is_first {
            let begun = Begun { key, inside, subscriber, alg, client_is_inside, is_of_registration };
            let Some(place) = self.start_control(now, &begun) else {
                self.counters.gateways[usize::from(alg.0)].refuse(GatewayRefusal::TableFull);
                return None;
            };
            self.counters.control_sessions[usize::from(alg.0)] += u64::from(read.is_none());
            let asking = Asking { now, place, key, alg };
            if let Some(other) = self.view().other_session(&asking) {
                self.state.control_sessions.as_mut()?.copy_memory(other, place);
            }
            return Some(Control { asking, flow, from, disabled });
        }
        match read {
            Some(place) => Some(Control { asking: Asking { now, place, key, alg }, flow, from, disabled }),
            None => self.no_longer_served(at, flow, from, key, known?),
        }
    }

    /// For a client outside that asks a server inside over UDP, if a gateway can read it. The
    /// oldest unanswered session may be replaced.
    pub(in crate::shard) fn open_to_server(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        index: u32,
        new: &NewSession,
        by: HashedBy,
    ) -> Result<SessionRef, Verdict> {
        let Arrival { now, parsed, .. } = at;
        let gateway = self.view().gateway_of_server(index).map(|gateway| gateway.alg);
        let gateway = gateway.filter(|alg| asks(*alg, payload_of(bytes, parsed)));
        let remote = (new.remote_address, new.remote_port);
        let decided = self.view().decide_to_server(now, index, remote, gateway.is_some());
        if let Some(oldest) = decided.replaces {
            self.replace_control(now, oldest);
        }
        if let (Some(alg), Some(refusal)) = (gateway, decided.refusal) {
            self.counters.gateways[usize::from(alg.0)].refuse(refusal);
        }
        if decided.is_read {
            return self.create_session(now, index, new, by);
        }
        // The session is not for this packet.
        if decided.is_for_answers {
            self.create_session(now, index, new, by)?;
        }
        Err(Verdict::SessionTableFull)
    }

    /// An unanswered client's session ends, or forged clients could take all sessions of their
    /// server's mapping. A mapping's first session stays, as without a gateway.
    pub(in crate::shard) fn replace_control(&mut self, now: Instant, place: u32) {
        let extra = self.view().unanswered_client(now, place);
        self.end_control(now, place);
        if let Some((_, slot)) = extra {
            self.end_extra_session(now, slot);
        }
    }

    fn end_control(&mut self, now: Instant, place: u32) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        if store.get(place).alg == AlgId::PPTP {
            self.tend_calls(now, place, None);
        }
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.remove(place);
        }
    }

    /// A reload changed or removed the gateway. Nothing more is read, but the connection's numbers
    /// must remain shifted.
    fn no_longer_served(
        &mut self,
        at: Arrival<'_>,
        flow: Place,
        from: Side,
        key: AlgKey,
        place: u32,
    ) -> Option<Control> {
        let Arrival { now, parsed, .. } = at;
        let is_opening = self.state.session_state(flow.index, flow.session?).0.is_opening();
        let session = self.state.control_sessions.as_ref()?.get(place);
        let asking = Asking { now, place, key, alg: session.alg };
        let is_answered = session.streams.iter().all(Option::is_some);
        let begins_anew = tcp::opens(Flags(parsed.tcp_flags)) && is_opening;
        if parsed.class != Class::Tcp || begins_anew || !is_answered {
            self.end_control(now, place);
            return None;
        }
        let control = Control { asking, flow, from, disabled: 0 };
        self.end_reading(&control);
        Some(control)
    }

    /// Others may replace an unanswered or closed session: anyone can make as many as a worker
    /// reads.
    pub(in crate::shard) fn note_whether_replaceable(&mut self, control: &Control) {
        let Control { asking, flow, from, .. } = *control;
        let Some(session) = flow.session else { return };
        let is_tcp = self.state.mappings.get(flow.index).protocol() == Protocol::Tcp;
        let state = self.state.session_state(flow.index, session).0;
        let Some(store) = self.state.control_sessions.as_mut().filter(|store| store.is_in_use(asking.place)) else {
            return;
        };
        let session = store.get_mut(asking.place);
        let has_both = session.hear(from);
        let is_answered = match is_tcp {
            true => state.is_established() && session.streams.iter().all(Option::is_some),
            false => has_both,
        };
        store.set_replaceable(asking.place, !is_answered, is_tcp && state.is_over());
    }

    fn read_message(&mut self, control: &Control, message: &[u8]) -> (Reading, Replacements) {
        let mut findings = Findings::default();
        let Some(reading) =
            self.with_context(control, |alg, memory, context| alg.read(memory, context, message, &mut findings))
        else {
            return (Reading::Over, Replacements::default());
        };
        if findings.has_overflowed() {
            self.counters.gateways[usize::from(control.asking.alg.0)].refuse(GatewayRefusal::MessageLimit);
        }
        if findings.ends_registrations() {
            self.end_registrations(&control.asking, findings.via());
        }
        if let Some((step, request)) = findings.call() {
            self.note_call(&control.asking, step, request);
        }
        for (port, seconds) in findings.registered() {
            self.note_registered(&control.asking, *port, *seconds);
        }
        if findings.is_empty() {
            return (reading, Replacements::default());
        }
        let mut granted = [None; alg::WANTS_MAX];
        for (place, granted) in granted.iter_mut().enumerate() {
            let Some(want) = findings.wants().get(place).copied() else { break };
            let Some(external) = self.expect(&control.asking, &want) else { continue };
            if want.kind == WantKind::Pair && !self.view().has_second(&control.asking, &want, external) {
                findings.got_one_of_pair(place);
            }
            if let Some((CallStep::Asks, request)) = findings.call() {
                self.learn(&control.asking, Known { external: external.port, inside: want.port, peer: Some(request) });
            }
            *granted = Some(AlgEndpoint { address: external.address.to_bits(), port: external.port });
        }
        let external = self.state.mappings.get(control.flow.index).external();
        let own = AlgEndpoint { address: external.address.to_bits(), port: external.port };
        let changes = findings.resolve(own, &granted);
        if !changes.as_slice().is_empty() {
            self.counters.messages_changed[usize::from(control.asking.alg.0)] += 1;
        }
        (reading, changes)
    }

    fn with_context<R>(
        &mut self,
        control: &Control,
        act: impl FnOnce(&'static dyn Alg, &mut alg::Memory, &Context<'_>) -> R,
    ) -> Option<R> {
        let Control { asking, flow, from, disabled } = *control;
        let alg: AlgId = asking.alg;
        let mapping = self.state.mappings.get(flow.index);
        let (internal, external, protocol) = (mapping.internal(), mapping.external(), mapping.protocol());
        let serves = self.view().is_static(flow.index) && self.policy.lifetimes.is_served(protocol, internal.port);
        let (known, known_len) = self.view().known_of(&asking);
        let session = self.state.control_sessions.as_mut()?.get_mut(asking.place);
        let mut memory = session.memory;
        let from_inside = from == Side::Inside;
        let context = Context {
            transport: if protocol == Protocol::Tcp { alg::Transport::Tcp } else { alg::Transport::Udp },
            from_inside,
            from_client: from_inside == session.client_is_inside,
            serves,
            internal: AlgEndpoint { address: internal.address.to_bits(), port: internal.port },
            external: AlgEndpoint { address: external.address.to_bits(), port: external.port },
            remote: AlgEndpoint { address: asking.key.remote.0, port: asking.key.remote.1 },
            known: &known[..known_len],
            disabled,
            time_s: (asking.now.as_micros() / 1_000_000) as u32,
        };
        let result = act(alg.alg()?, &mut memory, &context);
        let has_changed = core::mem::replace(&mut session.memory, memory) != memory;
        if has_changed && let Some(other) = self.view().other_session(&asking) {
            self.state.control_sessions.as_mut()?.copy_memory(asking.place, other);
        }
        Some(result)
    }

    fn note_unread(&mut self, control: &Control, message: Option<&[u8]>) {
        self.with_context(control, |alg, memory, context| alg.note_unread(memory, context, message));
    }

    /// `is_stuck`: the sender keeps the rest of the first message back.
    fn step(&mut self, control: &Control, bytes: &[u8], seen: usize, is_stuck: bool) -> Step {
        let alg = control.asking.alg;
        let frame = self.with_context(control, |alg, memory, context| alg.frame(memory, context, bytes, seen));
        match frame {
            Some(Frame::More) if !is_stuck => Step::More,
            Some(Frame::Needs(count)) if !is_stuck => Step::Needs(count),
            Some(Frame::Skip(count)) => Step::Skip(count),
            Some(Frame::Message(length)) => self.step_over(control, bytes.get(..length).unwrap_or(bytes), None),
            Some(Frame::Part(length, rest)) => {
                self.step_over(control, bytes.get(..length).unwrap_or(bytes), Some(rest))
            }
            Some(Frame::More | Frame::Needs(_) | Frame::Over) | None => {
                self.counters.gateways[usize::from(alg.0)].refuse(GatewayRefusal::Unreadable);
                self.end_reading(control);
                Step::Over
            }
        }
    }

    /// Also steps over `rest` bytes after the message.
    fn step_over(&mut self, control: &Control, message: &[u8], rest: Option<usize>) -> Step {
        match (self.read_message(control, message), rest) {
            ((Reading::Done, changes), None) => Step::Message(message.len(), changes),
            ((Reading::Done, changes), Some(rest)) => Step::Part(message.len(), changes, rest),
            ((Reading::Over, _), _) => {
                self.end_reading(control);
                Step::Over
            }
        }
    }

    /// Stops reading this session in both directions, permanently.
    fn end_reading(&mut self, control: &Control) {
        let Some(store) = self.state.control_sessions.as_mut() else { return };
        for stream in store.get_mut(control.asking.place).streams.iter_mut().flatten() {
            stream.end();
        }
    }

    pub(in crate::shard) fn pass_datagram(
        &mut self,
        control: &Control,
        bytes: &[u8],
        parsed: &Parsed,
        changed: &mut Changed,
    ) -> Done {
        let header = usize::from(parsed.header_length) + 8;
        let end = usize::from(parsed.header_length) + usize::from(get_u16(bytes, header - 4));
        let Some(payload) = bytes.get(header..end) else { return Done::AsItIs };
        if payload.len() > alg::MESSAGE_MAX {
            self.note_unread(control, Some(payload));
            return Done::AsItIs;
        }
        let (_, changes) = self.read_message(control, payload);
        if changes.as_slice().is_empty() {
            return Done::AsItIs;
        }
        if !checksum::is_udp_valid(parsed.source, parsed.destination, &bytes[header - 8..end]) {
            return Done::Drop(Verdict::TransportMalformed);
        }
        changed.packet[..header].copy_from_slice(&bytes[..header]);
        let Some(length) = changes.apply(payload, &mut changed.packet[header..]) else { return Done::AsItIs };
        Done::Datagram { total: header + length }
    }

    pub(in crate::shard) fn pass_segment(
        &mut self,
        control: &Control,
        bytes: &[u8],
        parsed: &Parsed,
        changed: &mut Changed,
    ) -> Done {
        let (own, other) = ways(control.from);
        let transport = usize::from(parsed.header_length);
        let headers = transport + usize::from(get_u16(bytes, transport + 12) >> 12) * 4;
        let Some(payload) = bytes.get(headers..usize::from(parsed.total_length)) else { return Done::AsItIs };
        let sequence = get_u32(bytes, transport + 4);
        let mut ack = get_u32(bytes, transport + 8);
        let flags = Flags(parsed.tcp_flags);
        if !self.is_past_handshake(control, flags, (sequence, ack), payload) {
            return Done::AsItIs;
        }
        if payload.len() > PAYLOAD_MAX {
            self.end_reading(control);
        }
        let segment = &bytes[transport..usize::from(parsed.total_length)];
        if !checksum::is_tcp_valid(parsed.source, parsed.destination, segment) {
            return Done::Drop(Verdict::TransportMalformed);
        }
        changed.packet[..headers].copy_from_slice(&bytes[..headers]);
        if flags.contains(Flags::ACK) {
            let options = &mut changed.packet[transport + 20..headers];
            ack = match self.acknowledge(control.asking.place, other, (flags, ack), options) {
                Ok(ack) => ack,
                Err(verdict) => return Done::Drop(verdict),
            };
        }
        let segment = Segment { sequence, payload, fin: flags.contains(Flags::FIN) };
        match self.read_stream(control, own, &segment, &mut changed.output) {
            None => Done::AsItIs,
            Some(Passed::Gap) => Done::Drop(Verdict::AlgReordered),
            Some(Passed::On { sequence, length, fin }) => Done::Segment { headers, sequence, ack, length, fin },
        }
    }

    /// Whether both ends have sent a SYN before this segment. May end the session.
    fn is_past_handshake(
        &mut self,
        control: &Control,
        flags: Flags,
        (sequence, ack): (u32, u32),
        payload: &[u8],
    ) -> bool {
        let place = control.asking.place;
        let Some(store) = self.state.control_sessions.as_mut() else { return false };
        if flags.contains(Flags::SYN) {
            let begins = store.get_mut(place).take_syn(control.from, flags, sequence, ack);
            if begins && !payload.is_empty() {
                // Data before the handshake is over (RFC 7413) is not read.
                store.remove(place);
            }
            return false;
        }
        let is_answered = store.get_mut(place).streams.iter().all(Option::is_some);
        // Before the answer to the SYN. Outsiders can send this, and the end inside answers with an
        // RST (RFC 9293 §3.10.7.3). Anything else from inside means that the answer came another
        // way, so the first byte may be missed.
        if !is_answered && control.from == Side::Inside && !flags.contains(Flags::RST) {
            store.remove(place);
        }
        is_answered
    }

    /// Gives the number in the numbering of the end that it acknowledges.
    fn acknowledge(
        &mut self,
        place: u32,
        other: usize,
        (flags, ack): (Flags, u32),
        options: &mut [u8],
    ) -> Result<u32, Verdict> {
        let Some(store) = self.state.control_sessions.as_mut() else { return Ok(ack) };
        let Some((stream, held)) = store.stream(place, other) else { return Ok(ack) };
        // Blocks first: the acknowledgement forgets corrections.
        shift_sack(stream, held, options);
        let in_its_numbers = match stream.acknowledge(held, ack) {
            None if !flags.contains(Flags::RST) => return Err(Verdict::AlgAckUnsent),
            in_its_numbers => in_its_numbers.unwrap_or(ack),
        };
        store.settle_held(place, other);
        Ok(in_its_numbers)
    }

    /// `None` without a stream in this direction.
    fn read_stream(
        &mut self,
        control: &Control,
        own: usize,
        segment: &Segment<'_>,
        output: &mut [u8],
    ) -> Option<Passed> {
        let (place, now) = (control.asking.place, control.asking.now);
        let room = self.take_held(control, own, segment);
        let has_room = room.is_some();
        let mut held_bytes = room.unwrap_or_default();
        let store = self.state.control_sessions.as_mut()?;
        let held_since = store.held_since(place, own);
        let mut stream = store.get_mut(place).streams[own].take()?;
        let mut is_stuck = false;
        if stream.only_repeats(&held_bytes, segment) {
            let is_sure = self.with_context(control, |alg, memory, context| {
                alg.is_surely_its_own(memory, context, held_bytes.message())
            });
            let is_sure = is_sure == Some(true);
            is_stuck = !is_sure && held_since.is_some_and(|since| now.saturating_since(since) >= HELD_BACK);
            if is_stuck {
                held_bytes.ask_again();
            } else {
                stream.take_over(&mut held_bytes, is_sure);
            }
        }
        let before = (stream.next(), held_bytes.len());
        let passed =
            stream.pass(&mut held_bytes, segment, output, |bytes, seen| self.step(control, bytes, seen, is_stuck));
        let has_moved = (stream.next(), held_bytes.len()) != before;
        if let Some(store) = self.state.control_sessions.as_mut() {
            if has_room && let Some(held) = store.with_held(place, own) {
                *held = held_bytes;
            }
            if has_moved {
                store.note_progress(place, own, now);
            }
            store.put_back(place, own, stream);
        }
        Some(passed)
    }

    /// Bytes of this direction that wait for the rest of their message; `None` if none can wait.
    fn take_held(&mut self, control: &Control, own: usize, segment: &Segment<'_>) -> Option<Held> {
        let (place, has_payload) = (control.asking.place, !segment.payload.is_empty());
        let store = self.state.control_sessions.as_mut()?;
        // A bare acknowledgement begins no message.
        let needs_room = has_payload || segment.fin || store.has_held(place, own);
        let room = if needs_room { store.with_held(place, own).map(core::mem::take) } else { None };
        if room.is_none() && has_payload {
            // Too many messages are incomplete.
            self.counters.gateways[usize::from(control.asking.alg.0)].refuse(GatewayRefusal::TableFull);
            self.end_reading(control);
        }
        room
    }

    /// A first fragment is not read. Of a TCP segment, it ends reading and passes, unless the
    /// connection's numbers are shifted: then the verdict drops it. Forged fragments end nothing.
    pub(in crate::shard) fn check_fragment(
        &mut self,
        at: Arrival<'_>,
        flow: Place,
        from: Side,
        bytes: &[u8],
    ) -> Result<(), Verdict> {
        let Arrival { now, parsed, .. } = at;
        let found = flow.session.and_then(|session| self.remote_of(flow.index, session));
        let Some((remote, _)) = found else { return Ok(()) };
        let key = AlgKey::of(flow.index, self.state.mappings.get(flow.index), remote);
        let Some(store) = self.state.control_sessions.as_mut() else { return Ok(()) };
        let Some(place) = store.find(&key) else { return Ok(()) };
        if parsed.class == Class::Udp {
            let asking = Asking { now, place, key, alg: store.get(place).alg };
            self.note_unread(&Control { asking, flow, from, disabled: 0 }, None);
            return Ok(());
        }
        let (own, other) = ways(from);
        let sequence = get_u32(bytes, usize::from(parsed.header_length) + 4);
        let (held, held_back) = (store.held(place, own), store.held(place, other));
        let streams = &store.get(place).streams;
        let (Some(stream), Some(back)) = (&streams[own], &streams[other]) else { return Ok(()) };
        if !stream.is_unchanged(held) || !back.is_unchanged(held_back) {
            return Err(Verdict::AlgFragment);
        }
        if stream.may_begin_at(sequence, held.len()) {
            store.get_mut(place).streams.iter_mut().flatten().for_each(Stream::end);
        }
        Ok(())
    }

    /// Returns a session to the short way once it is not read and its numbers are not shifted.
    pub(in crate::shard) fn let_go(&mut self, control: &Control) {
        let Control { asking, flow, .. } = *control;
        let Some(store) = self.state.control_sessions.as_mut() else { return };
        if !store.is_in_use(asking.place) {
            return;
        }
        let session = store.get(asking.place);
        // A hairpin's second half may have taken the place.
        if session.key != asking.key {
            return;
        }
        let is_transparent = |way: usize| {
            session.streams[way].as_ref().is_some_and(|it| it.is_transparent(store.held(asking.place, way)))
        };
        if is_transparent(0) && is_transparent(1) {
            self.end_control(asking.now, asking.place);
            let mapping = self.state.mappings.get_mut(flow.index);
            if flow.session == Some(SessionRef::Inline)
                && self.policy.lifetimes.own(mapping.protocol(), mapping.remote_port()).is_none()
            {
                mapping.set_own_timer(false);
            }
        }
    }

    /// For the sweep, while the data connection lives.
    pub(in crate::shard) fn keep_while_data_lives(&mut self, now: Instant, index: u32, of: SessionRef) {
        let Some(store) = self.state.control_sessions.as_ref() else { return };
        let session = store.get(index);
        let mapping = session.key.mapping;
        if !session.alg.alg().is_some_and(|alg| alg.is_busy(&session.memory)) {
            return;
        }
        let (state, expires) = self.state.session_state(mapping, of);
        let is_due = state.is_established() && expires < now + RENEWED_BELOW;
        if is_due && self.view().has_data(now, &session.key, session.known()) {
            self.refresh(mapping, of, state, now + TRANSFER);
        }
    }

    /// The control session of a transfer may be idle (RFC 959 §3.2 has no keep-alive).
    pub(in crate::shard) fn keep_while_busy(&mut self, control: &Control) {
        let Control { asking, flow, .. } = *control;
        let Some(store) = self.state.control_sessions.as_ref().filter(|store| store.is_in_use(asking.place)) else {
            return;
        };
        let session = store.get(asking.place);
        let is_busy = asking.alg.alg().is_some_and(|alg| alg.is_busy(&session.memory));
        let Some(of) = flow.session.filter(|_| is_busy) else { return };
        let (state, expires) = self.state.session_state(flow.index, of);
        let until = asking.now + TRANSFER;
        if state.is_established() && expires < until {
            self.refresh(flow.index, of, state, until);
        }
    }
}

pub(in crate::shard) fn payload_of<'a>(bytes: &'a [u8], parsed: &Parsed) -> &'a [u8] {
    bytes.get(usize::from(parsed.header_length) + 8..usize::from(parsed.total_length)).unwrap_or_default()
}

/// Whether this could be a client's first request.
pub(in crate::shard) fn asks(alg: AlgId, payload: &[u8]) -> bool {
    alg.alg().and_then(Alg::is_first_request).is_some_and(|is_first_request| is_first_request(payload))
}

/// Shifts selective acknowledgements into the sender's numbers (RFC 2018). A block without a whole
/// byte left drops the option, which receivers may always do.
fn shift_sack(stream: &Stream, held: &Held, options: &mut [u8]) {
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        let length = match kind {
            0 => return,
            1 => 1,
            _ => match options.get(at + 1) {
                Some(&length) if length >= 2 => usize::from(length),
                _ => return,
            },
        };
        let Some(option) = options.get_mut(at..at + length) else { return };
        if kind == 5 && length >= 10 && (length - 2).is_multiple_of(8) {
            let mut is_empty = false;
            for block in option[2..].chunks_exact_mut(8) {
                let left = stream.place_in(held, get_u32(block, 0), true);
                let right = stream.place_in(held, get_u32(block, 4), false);
                is_empty |= right.wrapping_sub(left) as i32 <= 0;
                put_u32(block, 0, left);
                put_u32(block, 4, right);
            }
            if is_empty {
                option.fill(1);
            }
        }
        at += length;
    }
}
