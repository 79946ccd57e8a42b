//! Passes packets of control sessions to the gateway, and sends the result.
//!
//! A packet from inside is changed before translation, one from outside once its session is found.
//! So gateways always see the sender's own addresses.

use crate::headers::packet::Sink;
use crate::headers::parse::Class;
use crate::headers::parse::get_u16;
use crate::headers::parse::get_u32;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::headers::parse::put_u16;
use crate::headers::parse::put_u32;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::control_session::Changed;
use crate::shard::control_session::Done;
use crate::shard::control_session::HEADERS_MAX;
use crate::shard::packet::PacketPath;
use crate::shard::packet::inbound::Via;
use crate::shard::packet::outbound::Flow;
use crate::shard::packet::outbound::Way;
use crate::snapshot::shared::NextHop;
use crate::steps::control_session::Place;
use crate::types::Side;
use crate::verdict::Verdict;
use wire::checksum;
use wire::tcp::Flags;

/// Every path and receiver takes this size, headers included (RFC 9293 §3.7.1).
const TOTAL_MIN: u16 = 576;

/// With its link header, the packet fits a buffer of 2,048 bytes.
const HANDED_OFF_MAX: u16 = 2_000;

#[derive(Clone, Copy)]
pub(in crate::shard) enum Onward<'a> {
    Out(Way),
    In(&'a NextHop, Via),
}

impl PacketPath {
    /// `None` if the packet continues unchanged.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn by_gateway(
        &mut self,
        at: Arrival<'_>,
        bytes: &[u8],
        flow: Flow,
        onward: Onward<'_>,
        sink: &mut dyn Sink,
    ) -> Option<Fate> {
        let from = if matches!(onward, Onward::Out(_)) { Side::Inside } else { Side::Outside };
        let place = Place { index: flow.index, session: flow.session };
        if at.parsed.is_fragment() {
            let is_first = at.parsed.fragment_offset == 0;
            let checked = is_first.then(|| self.ledger.check_fragment(at, place, from, bytes))?;
            return checked.err().map(Fate::Done);
        }
        let control = self.ledger.control_of(at, bytes, place, from)?;
        let mut changed = self.changed.take()?;
        let done = match at.parsed.class {
            Class::Udp => self.ledger.pass_datagram(&control, bytes, at.parsed, &mut changed),
            Class::Tcp => self.ledger.pass_segment(&control, bytes, at.parsed, &mut changed),
            _ => Done::AsItIs,
        };
        self.ledger.keep_while_busy(&control);
        self.ledger.note_whether_replaceable(&control);
        self.changed = changed.second.take();
        let fate = match done {
            Done::AsItIs => None,
            Done::Drop(verdict) => Some(Fate::Done(verdict)),
            Done::Datagram { total } => {
                finish_datagram(&mut changed.packet[..total], usize::from(at.parsed.header_length));
                Some(self.send_changed(at, &mut changed.packet[..total], flow, onward, sink))
            }
            Done::Segment { headers, sequence, ack, length, fin } => {
                let numbers = (sequence, ack, fin);
                Some(self.send_segments(at, &mut changed, (headers, length), numbers, (flow, onward), sink))
            }
        };
        changed.second = self.changed.take();
        self.changed = Some(changed);
        self.ledger.let_go(&control);
        fate
    }

    /// Sends pieces that fit the way. The last one has the packet's verdict.
    fn send_segments(
        &mut self,
        at: Arrival<'_>,
        changed: &mut Changed,
        (headers, length): (usize, usize),
        (sequence, ack, fin): (u32, u32, bool),
        (flow, onward): (Flow, Onward<'_>),
        sink: &mut dyn Sink,
    ) -> Fate {
        let Changed { output, packet, .. } = changed;
        let transport = usize::from(at.parsed.header_length);
        // The sender knows what path and receiver take (RFC 9293 §3.7.1).
        let known = at.parsed.total_length.max(TOTAL_MIN);
        let (total_max, is_only_one) = match onward {
            Onward::Out(Way::Out(hop)) => (hop.mtu.min(known), false),
            Onward::In(hop, Via::Outside) => (hop.mtu.min(known), false),
            // The second half, perhaps on another worker, gets one packet, and cuts it or, if no
            // gateway reads it, fragments it. The sender repeats what does not fit.
            Onward::Out(Way::Hairpin { .. }) => (known.max(HANDED_OFF_MAX), true),
            // The packet may have grown.
            Onward::In(hop, Via::Hairpin) => (hop.mtu, false),
        };
        if is_only_one && length + headers > usize::from(known) {
            put_u16(packet, ip::FRAGMENT, 0);
        }
        let room = usize::from(total_max).saturating_sub(headers).max(1);
        let flags = packet[transport + 13] & !(Flags::FIN.0 | Flags::PSH.0);
        let psh = packet[transport + 13] & Flags::PSH.0;
        let mut from = 0;
        loop {
            let to = length.min(from + room);
            let is_last = to == length || is_only_one;
            packet[headers..headers + to - from].copy_from_slice(&output[from..to]);
            put_u32(packet, transport + 4, sequence.wrapping_add(from as u32));
            put_u32(packet, transport + 8, ack);
            let ends = if to == length { psh | if fin { Flags::FIN.0 } else { 0 } } else { 0 };
            packet[transport + 13] = flags | ends;
            let mut piece = [0; HEADERS_MAX];
            piece[..headers].copy_from_slice(&packet[..headers]);
            let total = headers + to - from;
            finish_segment(&mut packet[..total], transport);
            if is_last {
                return self.send_changed(at, &mut packet[..total], flow, onward, sink);
            }
            let Ok(parsed) = parse(&packet[..total]) else { return Fate::Done(Verdict::TransportMalformed) };
            self.ledger.counters.fragmented += u64::from(from == 0);
            let piece_at = Arrival { parsed: &parsed, ..at };
            match self.go_onward(piece_at, &mut packet[..total], flow, onward, sink) {
                Fate::Forward { egress, verdict, .. } => {
                    if let Err(refused) = self.emit(egress, &[&packet[..total]], sink) {
                        self.uncount_unsent(verdict, &packet[..total]);
                        return Fate::Done(refused);
                    }
                }
                fate => return fate,
            }
            packet[..headers].copy_from_slice(&piece[..headers]);
            from = to;
        }
    }

    /// Sends the changed packet, with the verdict of the packet that arrived.
    fn send_changed(
        &mut self,
        at: Arrival<'_>,
        packet: &mut [u8],
        flow: Flow,
        onward: Onward<'_>,
        sink: &mut dyn Sink,
    ) -> Fate {
        let Ok(parsed) = parse(packet) else { return Fate::Done(Verdict::TransportMalformed) };
        let fate = self.go_onward(Arrival { parsed: &parsed, ..at }, packet, flow, onward, sink);
        match fate {
            // It is counted there.
            Fate::Forward { .. } | Fate::HandOff { .. } => {
                self.deliver(fate, packet, sink);
                Fate::Held
            }
            fate => fate,
        }
    }

    fn go_onward(
        &mut self,
        at: Arrival<'_>,
        packet: &mut [u8],
        flow: Flow,
        onward: Onward<'_>,
        sink: &mut dyn Sink,
    ) -> Fate {
        match onward {
            Onward::Out(way) => self.leave_translated(at, packet, None, way, flow, sink),
            Onward::In(hop, via) => self.enter_translated(at, packet, flow, hop, via, sink),
        }
    }
}

/// It may be fragmented if it is too long for the way.
fn finish_datagram(packet: &mut [u8], transport: usize) {
    let total = packet.len() as u16;
    if get_u16(packet, ip::FRAGMENT) & 0x4000 != 0 {
        put_u16(packet, ip::FRAGMENT, 0);
    }
    finish_ip(packet, transport, total);
    put_u16(packet, transport + 4, total - transport as u16);
    if get_u16(packet, transport + 6) != 0 {
        put_u16(packet, transport + 6, 0);
        let sum = pseudo_header(packet, transport, 17).add_bytes(&packet[transport..]);
        put_u16(packet, transport + 6, sum.udp_checksum());
    }
}

fn finish_segment(packet: &mut [u8], transport: usize) {
    let total = packet.len() as u16;
    finish_ip(packet, transport, total);
    put_u16(packet, transport + 16, 0);
    let sum = pseudo_header(packet, transport, 6).add_bytes(&packet[transport..]);
    put_u16(packet, transport + 16, sum.checksum());
}

fn finish_ip(packet: &mut [u8], transport: usize, total: u16) {
    put_u16(packet, 2, total);
    put_u16(packet, ip::CHECKSUM, 0);
    let sum = checksum::of_bytes(&packet[..transport]);
    put_u16(packet, ip::CHECKSUM, sum);
}

fn pseudo_header(packet: &[u8], transport: usize, protocol: u8) -> checksum::Sum {
    let length = (packet.len() - transport) as u16;
    checksum::pseudo_header(get_u32(packet, ip::SOURCE), get_u32(packet, ip::DESTINATION), protocol, length)
}
