//! Transmit queues, and the rings to other workers.

use nat::Verdict;
use nat::packet::PacketMeta;
use nat::types::InterfaceId;
use nat::types::WorkerId;
use packet_io::BURST_MAX;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;

use super::Outlet;
use super::packet_of;
use crate::crossing::Crossing;

/// What is remembered of a frame in a transmit queue, should it not fit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) interface: InterfaceId,
    pub(super) verdict: Option<Verdict>,
    pub(super) length: u16,
}

pub(super) struct Queue<B: Buffer> {
    pub(super) burst: Burst<B>,
    pub(super) marks: [Mark; BURST_MAX],
    /// The worker that can send on this port; None: this one can.
    pub(super) sender: Option<WorkerId>,
}

impl<I: Io> Outlet<I> {
    #[inline(always)]
    pub(super) fn enqueue(&mut self, port: PortIndex, buffer: I::Buffer, mark: Mark) {
        let Some(queue) = self.queues.get_mut(port.index()) else {
            return self.drop_packet(mark.verdict, packet_of(buffer.bytes()), Verdict::NoRoute);
        };
        if let Some(place) = queue.marks.get_mut(queue.burst.len()) {
            *place = mark;
        }
        // There is room: a full burst is flushed at once.
        let _ = queue.burst.push(buffer);
        if queue.burst.is_full() {
            self.flush(port);
        }
    }

    /// Hands all queued frames to the ports, and shows the other workers what was handed off to
    /// them.
    #[inline]
    pub(crate) fn flush_all(&mut self) {
        self.publish();
        for port in 0..self.queues.len() {
            self.flush(PortIndex(port as u16));
        }
    }

    /// Shows the other workers what was handed off to them.
    #[inline]
    pub(crate) fn publish(&mut self) {
        for ring in self.crossings.to.iter_mut().flatten() {
            ring.publish();
        }
    }

    pub(super) fn flush(&mut self, port: PortIndex) {
        let Some(queue) = self.queues.get_mut(port.index()) else { return };
        let count = queue.burst.len();
        if count == 0 {
            return;
        }
        self.io.transmit(port, &mut queue.burst);
        let sent = count - queue.burst.len();
        let Some(marks) = queue.marks.get(..count) else { return };
        let first = marks.first().map_or_else(InterfaceId::default, |mark| mark.interface);
        if sent == count && marks.iter().all(|mark| mark.interface == first) {
            if let Some(interface) = self.interfaces.get_mut(first.index()) {
                interface.sent_packets += count as u64;
                interface.sent_bytes += marks.iter().map(|mark| u64::from(mark.length)).sum::<u64>();
            }
            return;
        }
        for (position, mark) in marks.iter().enumerate() {
            let Some(interface) = self.interfaces.get_mut(mark.interface.index()) else { continue };
            if position < sent {
                interface.sent_packets += 1;
                interface.sent_bytes += u64::from(mark.length);
                continue;
            }
            interface.unsent_packets += 1;
            let unsent = queue.burst.get(position - sent).map_or(&[][..], |buffer| packet_of(buffer.bytes()));
            match mark.verdict {
                Some(verdict) => {
                    self.ledger.count(verdict, unsent, -1);
                    self.ledger.add(Verdict::TransmitFull, 1);
                }
                None => self.counters.originated_dropped += 1,
            }
        }
        queue.burst.clear();
    }

    /// Gives an item to another worker; `verdict` was counted here and goes with it.
    pub(super) fn cross(&mut self, worker: WorkerId, item: Crossing<I::Buffer>, verdict: Option<Verdict>) {
        if let Some(verdict) = verdict {
            self.ledger.count(verdict, item.packet(), -1);
        }
        let ring = self.crossings.to.get_mut(worker.index()).and_then(Option::as_mut);
        let pushed = ring.is_some_and(|ring| ring.try_push(item).is_ok());
        match (pushed, verdict) {
            (true, Some(_)) => self.ledger.handed_off += 1,
            (true, None) => {}
            (false, Some(_)) => self.ledger.add(Verdict::HandOffRingFull, 1),
            (false, None) => self.counters.originated_dropped += 1,
        }
    }

    /// Gives a packet that the shard does not own to the worker that does, which sees it at the end
    /// of this poll. It has no verdict yet.
    #[inline]
    pub(crate) fn hand_off_buffer(&mut self, worker: WorkerId, buffer: I::Buffer, meta: PacketMeta) {
        let ring = self.crossings.to.get_mut(worker.index()).and_then(Option::as_mut);
        let pushed = ring.is_some_and(|ring| ring.stage(Crossing::Process { buffer, meta }).is_ok());
        if pushed {
            self.ledger.handed_off += 1;
        } else {
            self.ledger.add(Verdict::HandOffRingFull, 1);
        }
    }
}
