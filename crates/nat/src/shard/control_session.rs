//! What gateways do with packets of control sessions. Sends nothing.
//!
//! A gateway reads a message. What it finds is decided ([`crate::steps::announcement`]) and carried
//! out (`commit/expectation.rs`). Then the message is written again.

use alg::Alg;
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

use crate::headers::parse::Parsed;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::put_u32;
use crate::shard::Arrival;
use crate::shard::Ledger;
use crate::state::alg::ways;
use crate::state::mapping::NewSession;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::steps::announcement::Asking;
use crate::steps::control_session::Control;
use crate::steps::control_session::FirstFragment;
use crate::steps::control_session::Handshake;
use crate::steps::control_session::Place;
use crate::steps::control_session::Served;
use crate::steps::control_session::ServedStep;
use crate::steps::control_session::asks;
use crate::steps::control_session::payload_of;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Protocol;
use crate::types::RemoteOutside;
use crate::types::Side;
use crate::verdict::GatewayRefusal;
use crate::verdict::Verdict;
use mem::Arena;
use mem::ArenaError;
use wire::checksum;
use wire::tcp::Flags;

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
        let Served { key, alg, disabled, step } = self.view().decide_control(now, parsed, bytes, flow, from)?;
        let place = match step {
            ServedStep::Begins(beginning) => self.begin_control(now, &beginning)?,
            ServedStep::Goes(place) => place,
            ServedStep::EndsReading(place) => {
                self.end_reading(place);
                place
            }
            ServedStep::Ends(place) => {
                self.end_control(now, place);
                return None;
            }
        };
        Some(Control { asking: Asking { now, place, key, alg }, flow, from, disabled })
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
        let remote = RemoteOutside { address: new.remote_address, port: new.remote_port };
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

    /// Lets the gateway read a message, carries out what it asks for, and returns what is written
    /// instead.
    fn read_message(&mut self, control: &Control, message: &[u8]) -> (Reading, Replacements) {
        let mut findings = Findings::default();
        let Some(reading) =
            self.with_context(control, |alg, memory, context| alg.read(memory, context, message, &mut findings))
        else {
            return (Reading::Over, Replacements::default());
        };
        let granted = self.carry_out(&control.asking, &mut findings);
        let changes = self.write(control, &findings, &granted);
        (reading, changes)
    }

    /// Each want is decided after the one before it is granted, which takes a port and room.
    fn carry_out(&mut self, asking: &Asking, findings: &mut Findings) -> [Option<AlgEndpoint>; alg::WANTS_MAX] {
        if findings.has_overflowed() {
            self.counters.gateways[usize::from(asking.alg.0)].refuse(GatewayRefusal::MessageLimit);
        }
        if findings.ends_registrations() {
            self.end_registrations(asking, findings.via());
        }
        if let Some((step, request)) = findings.call() {
            self.note_call(asking, step, request);
        }
        for (port, seconds) in findings.registered() {
            self.note_registered(asking, *port, *seconds);
        }
        let mut granted = [None; alg::WANTS_MAX];
        for (place, granted) in granted.iter_mut().enumerate() {
            let Some(want) = findings.wants().get(place).copied() else { break };
            let Some(external) = self.expect(asking, &want) else { continue };
            if want.kind == WantKind::Pair && !self.view().has_second(asking, &want, external) {
                findings.got_one_of_pair(place);
            }
            if let Some((CallStep::Asks, request)) = findings.call() {
                self.learn(asking, Known { external: external.port, inside: want.port, peer: Some(request) });
            }
            *granted = Some(AlgEndpoint { address: external.address.to_bits(), port: external.port });
        }
        granted
    }

    fn write(&mut self, control: &Control, findings: &Findings, granted: &[Option<AlgEndpoint>]) -> Replacements {
        if findings.is_empty() {
            return Replacements::default();
        }
        let external = self.state.mappings.get(control.flow.index).external();
        let own = AlgEndpoint { address: external.address.to_bits(), port: external.port };
        let changes = findings.resolve(own, granted);
        if !changes.as_slice().is_empty() {
            self.counters.messages_changed[usize::from(control.asking.alg.0)] += 1;
        }
        changes
    }

    fn with_context<R>(
        &mut self,
        control: &Control,
        act: impl FnOnce(&'static dyn Alg, &mut alg::Memory, &Context<'_>) -> R,
    ) -> Option<R> {
        let (result, memory) = self.view().in_context(control, act)?;
        self.note_memory(&control.asking, memory);
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
                self.end_reading(control.asking.place);
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
                self.end_reading(control.asking.place);
                Step::Over
            }
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
        if !checksum::is_udp_valid(parsed.source, parsed.destination, &bytes[header - 8..end]) {
            // Its receiver drops it.
            return Done::AsItIs;
        }
        if payload.len() > alg::MESSAGE_MAX {
            self.note_unread(control, Some(payload));
            return Done::AsItIs;
        }
        let (_, changes) = self.read_message(control, payload);
        if changes.as_slice().is_empty() {
            return Done::AsItIs;
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
        if !self.is_past_handshake(control, flags, (sequence, ack), payload.is_empty()) {
            return Done::AsItIs;
        }
        if payload.len() > PAYLOAD_MAX {
            self.end_reading(control.asking.place);
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

    /// Begins the streams, or ends a session that cannot be read from its first byte.
    fn is_past_handshake(&mut self, control: &Control, flags: Flags, numbers: (u32, u32), is_bare: bool) -> bool {
        let (handshake, place) = (self.view().handshake(control, flags), control.asking.place);
        let Some(store) = self.state.control_sessions.as_mut() else { return false };
        match handshake {
            Handshake::Syn => {
                let begins = store.get_mut(place).take_syn(control.from, flags, numbers.0, numbers.1);
                if begins && !is_bare {
                    // Data before the handshake is over (RFC 7413) is not read.
                    store.remove(place);
                }
            }
            Handshake::Missed => store.remove(place),
            Handshake::Early | Handshake::Over => {}
        }
        matches!(handshake, Handshake::Over)
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
            self.end_reading(control.asking.place);
        }
        room
    }

    pub(in crate::shard) fn check_fragment(
        &mut self,
        at: Arrival<'_>,
        flow: Place,
        from: Side,
        bytes: &[u8],
    ) -> Result<(), Verdict> {
        match self.view().decide_first_fragment(at.now, at.parsed, bytes, flow, from) {
            FirstFragment::Passes => {}
            FirstFragment::Unread(control) => self.note_unread(&control, None),
            FirstFragment::EndsReading(place) => self.end_reading(place),
            FirstFragment::Drops => return Err(Verdict::AlgFragment),
        }
        Ok(())
    }

    /// Returns a session to the short way once it is not read and its numbers are not shifted.
    pub(in crate::shard) fn let_go(&mut self, control: &Control) {
        let Control { asking, flow, .. } = *control;
        if !self.view().is_let_go(&asking) {
            return;
        }
        self.end_control(asking.now, asking.place);
        let mapping = self.state.mappings.get_mut(flow.index);
        if flow.session == Some(SessionRef::Inline)
            && self.policy.lifetimes.own(mapping.protocol(), mapping.remote_port()).is_none()
        {
            mapping.set_own_timer(false);
        }
    }

    /// For the sweep, while the data connection lives.
    pub(in crate::shard) fn keep_while_data_lives(&mut self, now: Instant, index: u32, of: SessionRef) {
        if !self.view().is_busy(index) {
            return;
        }
        let Some(session) = self.state.control_sessions.as_ref().map(|store| store.get(index)) else { return };
        let mapping = session.key.mapping;
        let (state, expires) = self.state.session_state(mapping, of);
        let is_due = state.is_established() && expires < now + RENEWED_BELOW;
        if is_due && self.view().has_data(now, &session.key, session.known()) {
            self.refresh(mapping, of, state, now + TRANSFER);
        }
    }

    /// The control session of a transfer may be idle (RFC 959 §3.2 has no keep-alive).
    pub(in crate::shard) fn keep_while_busy(&mut self, control: &Control) {
        let Control { asking, flow, .. } = *control;
        let Some(of) = flow.session.filter(|_| self.view().is_busy(asking.place)) else { return };
        let (state, expires) = self.state.session_state(flow.index, of);
        let until = asking.now + TRANSFER;
        if state.is_established() && expires < until {
            self.refresh(flow.index, of, state, until);
        }
    }
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
