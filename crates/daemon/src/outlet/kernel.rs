//! Frames to and from the kernel.

use core::net::IpAddr;

use nat::Verdict;
use nat::types::InterfaceId;
use packet_io::Buffer;
use packet_io::Io;
use wire::ethernet::LinkHeader;

use super::Outlet;
use crate::kernel::end::Down;
use crate::kernel::end::Given;
use crate::kernel::end::KernelNeighbour;
use crate::next_hop::FrameHeader;

/// Frames of the kernel taken in one poll, behind all packets.
const KERNEL_FRAMES_MAX: usize = 32;
/// News of neighbours taken in one poll.
const KERNEL_NEWS_MAX: usize = 64;

impl<I: Io> Outlet<I> {
    /// Whether the kernel has this interface.
    #[inline]
    pub(crate) fn has_kernel(&self, interface: InterfaceId) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.has(interface))
    }

    /// Gives a frame to the kernel. Returns its verdict.
    pub(crate) fn give_to_kernel(&mut self, interface: InterfaceId, buffer: I::Buffer) -> Verdict {
        let (Some(kernel), Some(link)) = (&mut self.kernel, self.links.link(interface)) else {
            return Verdict::LocalIgnored;
        };
        match kernel.give(self.now, interface, link.port, buffer) {
            Given::Yes => Verdict::LocalKernel,
            Given::Limited => Verdict::KernelLimited,
            Given::RingFull => Verdict::KernelRingFull,
        }
    }

    /// Gives an IP packet that the shard has no use for to the kernel, if it is for the kernel.
    /// `counted` is the verdict so far.
    #[cold]
    pub(crate) fn offer_to_kernel(
        &mut self,
        ingress: InterfaceId,
        mut buffer: I::Buffer,
        start: u16,
        counted: Verdict,
    ) {
        let (bytes, from) = buffer.frame_mut();
        let length = bytes.len() as u16;
        let destination = bytes.get(usize::from(start) + 16..).and_then(<[u8]>::first_chunk);
        let Some(destination) = destination.map(|bytes| u32::from_be_bytes(*bytes)) else { return };
        let is_its =
            self.kernel.as_ref().is_some_and(|kernel| kernel.has(ingress) && kernel.owns_anywhere(destination));
        if !is_its {
            return;
        }
        if from == start {
            // Another worker received it, and took off the Ethernet header.
            let Some(link) = self.links.link(ingress) else { return };
            let header = FrameHeader::of(&self.links, ingress).map(|header| header.to(self.links.station(link.port)));
            let written = header.and_then(|header| header.write(&mut buffer, start, length.saturating_sub(start)));
            if written.is_none() {
                return;
            }
        }
        let verdict = self.give_to_kernel(ingress, buffer);
        self.ledger.change(counted, verdict);
    }

    /// Takes what the kernel learned, and sends its frames.
    #[cold]
    pub(crate) fn take_from_kernel(&mut self) -> usize {
        for _ in 0..KERNEL_NEWS_MAX {
            let known = self.kernel.as_mut().and_then(|kernel| kernel.neighbours.try_pop());
            match known {
                None => break,
                Some(KernelNeighbour { interface, address: IpAddr::V4(address), station }) => match station {
                    Some(station) => {
                        self.learn(interface, address.to_bits(), station);
                    }
                    None => self.neighbours.forget(self.now, interface, address.to_bits()),
                },
                Some(KernelNeighbour { interface, address: IpAddr::V6(address), station }) => {
                    self.learn6_of_kernel(interface, address.to_bits(), station);
                }
            }
        }
        let mut taken = 0;
        while taken < KERNEL_FRAMES_MAX {
            let Some(Down { port, bytes, length }) = self.kernel.as_mut().and_then(|kernel| kernel.down.try_pop())
            else {
                break;
            };
            taken += 1;
            let frame = bytes.get(..length).unwrap_or_default();
            let tag = LinkHeader::parse(frame).ok().map(|header| header.vlan);
            let interface = tag.and_then(|tag| self.links.interface(port, tag));
            let buffer = self.io.allocate().and_then(|mut buffer| buffer.fill(&[frame]).then_some(buffer));
            let is_sent = interface.is_some() && buffer.is_some();
            if let (Some(interface), Some(buffer)) = (interface, buffer) {
                self.send_frame(port, interface, buffer, None);
            }
            if let Some(kernel) = &mut self.kernel {
                *if is_sent { &mut kernel.counters.sent } else { &mut kernel.counters.unsent } += 1;
                // As many fit as the kernel's thread has made.
                let _ = kernel.back.try_push(Down { port, bytes, length });
            }
        }
        taken
    }
}
