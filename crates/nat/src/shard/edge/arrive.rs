//! IPv6 packets from inside (RFC 6146 §3.4, RFC 6333 §6.3), in passes: headers, host table, host.

use core::num::NonZero;

use translate::Headers6;
use wire::ipv6::Fragment;

use crate::headers::packet::BURST_MAX;
use crate::headers::packet::Outcome;
use crate::headers::packet::Packet;
use crate::headers::packet::PacketMeta;
use crate::headers::packet::Sink;
use crate::headers::packet::Stage;
use crate::shard::burst::established::Scratch;
use crate::shard::edge::port_control::take_over_request;
use crate::shard::edge::refuse::Refusal;
use crate::shard::packet::PacketPath;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::time::Instant;
use crate::types::Side;
use crate::verdict::Verdict;

#[derive(Clone, Copy, Debug)]
pub(super) enum Incoming {
    /// The packet is IPv4, or finished.
    Other,
    Nat64 {
        headers: Headers6,
        destination: u32,
        key: HostKey,
        hash: u64,
    },
    Softwire {
        offset: u16,
        key: HostKey,
        hash: u64,
    },
    TooBig {
        mtu: u32,
        key: HostKey,
        hash: u64,
    },
    /// A request for port control, outside of softwires.
    Request {
        source: u128,
        way: Way,
        offset: u16,
    },
    Fragment {
        source: u128,
        way: Way,
        offset: u16,
        fragment: Fragment,
        length: u16,
    },
}

impl Incoming {
    /// The host that it belongs to.
    pub(super) const fn host_address(&self) -> Option<u128> {
        match self {
            Incoming::Other => None,
            Incoming::Nat64 { key, .. } | Incoming::Softwire { key, .. } | Incoming::TooBig { key, .. } => {
                Some(key.address)
            }
            Incoming::Request { source, .. } | Incoming::Fragment { source, .. } => Some(*source),
        }
    }
}

/// Sets of packets in a burst, a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Places {
    /// Packets on the short way, to translate.
    pub(super) nat64: u64,
    /// Packets on the short way, in softwires.
    pub(super) softwire: u64,
    /// Packets on the long way.
    others: u64,
}

#[inline(always)]
pub(super) fn each(mut places: u64) -> impl Iterator<Item = usize> {
    // Never of zero, for which the instruction of a baseline CPU has no result.
    core::iter::from_fn(move || {
        let left = NonZero::new(places)?;
        places &= places - 1;
        Some(left.trailing_zeros() as usize)
    })
}

impl PacketPath {
    /// Turns a burst's IPv6 packets into IPv4. Returns a bit for each finished packet.
    #[inline(never)]
    pub(in crate::shard) fn arrive(
        &mut self,
        now: Instant,
        burst: &mut [Packet<'_>],
        scratch: &mut Scratch,
        sink: &mut dyn Sink,
    ) -> u64 {
        let mut finished = 0;
        let mut places = Places::default();
        self.edge.now = now;
        (scratch.hosts.pending, scratch.hosts.pending_in, scratch.hosts.further) = (0, 0, 0);
        for (packet, i) in burst.iter_mut().zip(0..BURST_MAX) {
            packet.verdict = None;
            let facing = self.ledger.shared.facing(packet.meta.ingress);
            if facing.side == Side::Outside
                || !matches!(packet.meta.stage, Stage::Received | Stage::Steered) && !take_over_request(packet)
            {
                continue;
            }
            if !self.look_at_plain(packet, facing.realm, i % BURST_MAX, scratch, &mut places) {
                let is_waiting = self.look_at_further(now, i, packet, sink, &mut finished);
                places.others |= u64::from(is_waiting) << i;
            }
        }
        let plain = places.nat64 | places.softwire;
        for i in each(plain) {
            self.ledger.state.subscribers.hosts.prefetch(scratch.hosts.plain[i].hash);
        }
        for i in each(plain) {
            scratch.hosts.candidates[i] = self.ledger.state.subscribers.hosts.candidate(scratch.hosts.plain[i].hash);
        }
        for i in each(plain) {
            self.ledger.state.subscribers.hosts.prefetch_record(scratch.hosts.candidates[i]);
        }
        for i in each(places.others) {
            if let Incoming::Nat64 { hash, .. } | Incoming::Softwire { hash, .. } = self.edge.incoming[i] {
                self.ledger.state.subscribers.hosts.aim(hash);
            }
        }
        (scratch.hosts.pending, scratch.hosts.nat64) = (plain, places.nat64);
        for i in each(places.nat64) {
            let Some(packet) = burst.get_mut(i) else { break };
            if !self.enter_plain(now, packet, i, scratch) {
                finished |= self.enter_unexpected(now, packet, i, scratch, sink);
            }
        }
        for i in each(places.softwire) {
            let Some(packet) = burst.get_mut(i) else { break };
            if !self.enter_plain_from_softwire(now, packet, i, scratch) {
                finished |= self.enter_unexpected(now, packet, i, scratch, sink);
            }
        }
        for i in each(places.others) {
            let Some(packet) = burst.get_mut(i) else { break };
            if let Err(refusal) = self.enter_further(now, i, packet, sink, &mut finished) {
                self.refuse_at_edge(now, packet, &refusal, sink);
                finished |= 1 << i;
            }
        }
        finished
    }

    /// False if nothing is left to do here.
    #[inline(never)]
    fn look_at_further(
        &mut self,
        now: Instant,
        i: usize,
        packet: &mut Packet<'_>,
        sink: &mut dyn Sink,
        finished: &mut u64,
    ) -> bool {
        let incoming = match self.look_at_edge(packet) {
            Ok(incoming) => incoming,
            Err(refusal) => {
                self.refuse_at_edge(now, packet, &refusal, sink);
                *finished |= 1 << i;
                return false;
            }
        };
        let Some(address) = incoming.host_address() else { return false };
        let worker = self.ledger.shared.worker_of_host(address);
        if worker != self.ledger.worker {
            if self.is_request(packet, &incoming) {
                if let Err(verdict) = self.pass_request_of_host_on(now, worker, packet, address, sink) {
                    self.refuse_at_edge(now, packet, &verdict.into(), sink);
                }
                *finished |= 1 << i;
                return false;
            }
            let meta = PacketMeta { record: 0, stage: Stage::Steered, ..packet.meta };
            packet.verdict = None;
            packet.outcome = Outcome::HandOff { worker, meta };
            *finished |= 1 << i;
            return false;
        }
        if let Incoming::Nat64 { hash, .. } | Incoming::Softwire { hash, .. } = &incoming {
            self.ledger.state.subscribers.hosts.prefetch(*hash);
        }
        self.edge.incoming[i] = incoming;
        true
    }

    #[inline(never)]
    fn enter_further(
        &mut self,
        now: Instant,
        i: usize,
        packet: &mut Packet<'_>,
        sink: &mut dyn Sink,
        finished: &mut u64,
    ) -> Result<(), Refusal> {
        match self.edge.incoming[i] {
            Incoming::Other => Ok(()),
            Incoming::Nat64 { headers, destination, key, hash } => {
                self.enter_by_nat64(now, packet, &headers, destination, (key, hash))
            }
            Incoming::Softwire { offset, key, hash } => {
                self.enter_from_softwire(now, packet, offset, (key, hash), sink)
            }
            Incoming::TooBig { mtu, key, hash } => {
                *finished |= 1 << i;
                packet.outcome = Outcome::Done;
                self.note_path_mtu(now, mtu, (&key, hash)).map_err(Refusal::from)
            }
            Incoming::Request { source, way, offset } => {
                *finished |= 1 << i;
                packet.outcome = Outcome::Done;
                self.serve_host(now, packet, usize::from(offset), (source, way), sink).map_err(Refusal::from)
            }
            Incoming::Fragment { source, way, offset, fragment, length } => {
                *finished |= 1 << i;
                let bytes = usize::from(offset)..usize::from(length);
                self.reassemble(now, packet, (source, way), &fragment, bytes, sink)
            }
        }
    }

    /// Checks a host without a record, on the long way. Returns the packet's bit if it is finished.
    #[cold]
    #[inline(never)]
    pub(super) fn enter_new_host(
        &mut self,
        now: Instant,
        packet: &mut Packet<'_>,
        i: usize,
        sink: &mut dyn Sink,
    ) -> u64 {
        let entered = self.look_at_edge(packet).and_then(|incoming| match incoming {
            Incoming::Nat64 { headers, destination, key, hash } => {
                self.enter_by_nat64(now, packet, &headers, destination, (key, hash))
            }
            Incoming::Softwire { offset, key, hash } => {
                self.enter_from_softwire(now, packet, offset, (key, hash), sink)
            }
            // None of these is usual.
            Incoming::Other | Incoming::TooBig { .. } | Incoming::Request { .. } | Incoming::Fragment { .. } => {
                Err(Verdict::Ipv6Malformed.into())
            }
        });
        let Err(refusal) = entered else { return 0 };
        self.refuse_at_edge(now, packet, &refusal, sink);
        1 << i
    }
}
