//! A worker's end of the way to the kernel and back.

use core::net::IpAddr;
use std::sync::Arc;

use mem::ring::Consumer;
use mem::ring::Producer;
use nat::Instant;
use nat::Settings;
use nat::stand_in::Prefix6;
use nat::types::InterfaceId;
use nat::types::Prefix;
use packet_io::PortIndex;
use wire::ethernet::MacAddress;

use crate::kernel::class::Class;
use crate::kernel::class::Limiter;
use crate::kernel::class::classify;
use crate::kernel::sent::Sent;

/// Frames of one worker that may wait for the kernel.
pub const UP_FRAMES: usize = 1_024;
/// Frames of the kernel that may wait for a worker.
pub const DOWN_FRAMES: usize = 512;
/// Questions and news of neighbours that may wait.
pub const NEWS: usize = 4_096;

/// Room that a class leaves to those that matter more. A kernel that does not keep up loses first
/// what is sent or asked again, so a flood of such frames does not fill the queue for the others.
const fn reserved(class: Class) -> usize {
    let eighths = match class {
        Class::Bfd => 0,
        Class::Routing => 1,
        // Without ARP the sessions of BGP fall, too.
        Class::Neighbour => 2,
        Class::Bgp => 3,
        // All before can only be sent on the link, or are repeated.
        Class::BfdEcho => 4,
        Class::Connection => 5,
        Class::Other => 6,
    };
    UP_FRAMES / 8 * eighths
}

/// A frame for the kernel.
#[derive(Debug)]
pub struct Up<B> {
    /// Its port.
    pub port: PortIndex,
    /// The frame.
    pub buffer: B,
}

/// A frame of the kernel. Its memory goes back to the thread that allocated it.
#[derive(Debug)]
pub struct Down {
    /// Its port.
    pub port: PortIndex,
    /// The bytes, and behind them room.
    pub bytes: Box<[u8]>,
    /// Length of the frame.
    pub length: usize,
}

/// A neighbour to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Its address.
    pub address: IpAddr,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelNeighbour {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address; None: it did not answer, or is forgotten.
    pub station: Option<MacAddress>,
}

/// Frames given to the kernel and refused, by class. Only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Given.
    pub given: [u64; Class::ALL.len()],
    /// Above the rate of the class.
    pub limited: [u64; Class::ALL.len()],
    /// The ring was full.
    pub ring_full: [u64; Class::ALL.len()],
    /// Frames of the kernel sent.
    pub sent: u64,
    /// Frames of the kernel for which there was no buffer.
    pub unsent: u64,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// The kernel gets it.
    Yes,
    /// Above the rate of its class.
    Limited,
    /// The kernel does not keep up.
    RingFull,
}

/// A worker's ends of all rings.
#[derive(Debug)]
pub struct KernelEnd<B> {
    pub(crate) up: Producer<Up<B>>,
    pub(crate) down: Consumer<Down>,
    pub(crate) back: Producer<Down>,
    pub(crate) asks: Producer<Ask>,
    pub(crate) neighbours: Consumer<KernelNeighbour>,
    pub(crate) limiter: Limiter,
    sent: Arc<Sent>,
    pub(crate) counters: KernelCounters,
    interfaces: Vec<Twin>,
}

/// What the kernel has of an interface.
#[derive(Debug)]
struct Twin {
    /// It has a device.
    is_there: bool,
    own: Vec<u32>,
    /// Connected prefixes.
    on_link: Vec<Prefix>,
    near6: Vec<Prefix6>,
}

impl<B> KernelEnd<B> {
    #[allow(clippy::too_many_arguments, reason = "called in one place, which has all of these at hand")]
    pub(crate) fn new(
        up: Producer<Up<B>>,
        down: Consumer<Down>,
        back: Producer<Down>,
        asks: Producer<Ask>,
        neighbours: Consumer<KernelNeighbour>,
        settings: &Settings,
        sent: Arc<Sent>,
        secret: u64,
    ) -> KernelEnd<B> {
        let interfaces = (0..).map(InterfaceId).zip(&settings.interfaces).map(|(id, interface)| {
            let own6 = settings.ipv6.addresses.iter().filter(|own| own.interface == id);
            Twin {
                is_there: settings.kernel_interfaces.contains(&id),
                own: interface.addresses.iter().map(|own| own.address.to_bits()).collect(),
                on_link: interface
                    .addresses
                    .iter()
                    .filter_map(|own| Prefix::new(own.address, own.prefix_length))
                    .collect(),
                near6: own6.filter_map(|own| Prefix6::new(own.address.to_bits(), own.prefix_length)).collect(),
            }
        });
        KernelEnd {
            up,
            down,
            back,
            asks,
            neighbours,
            limiter: Limiter::new(secret),
            sent,
            counters: KernelCounters::default(),
            interfaces: interfaces.collect(),
        }
    }

    /// Whether the kernel has this interface.
    #[inline]
    pub fn has(&self, interface: InterfaceId) -> bool {
        self.interfaces.get(interface.index()).is_some_and(|twin| twin.is_there)
    }

    /// Whether the kernel has this address on this interface.
    pub fn owns(&self, interface: InterfaceId, address: u32) -> bool {
        self.interfaces.get(interface.index()).is_some_and(|twin| twin.is_there && twin.own.contains(&address))
    }

    /// Whether the kernel has this address on any interface.
    pub fn owns_anywhere(&self, address: u32) -> bool {
        self.interfaces.iter().any(|twin| twin.is_there && twin.own.contains(&address))
    }

    /// Gives a frame to the kernel, if its class allows.
    pub fn give(&mut self, now: Instant, interface: InterfaceId, port: PortIndex, buffer: B) -> Given
    where
        B: packet_io::Buffer,
    {
        let twin = self.interfaces.get(interface.index());
        let is_on_link = |source: IpAddr| {
            twin.is_some_and(|twin| match source {
                IpAddr::V4(source) => twin.on_link.iter().any(|prefix| prefix.contains(source)),
                IpAddr::V6(source) => twin.near6.iter().any(|prefix| prefix.contains(source.to_bits())),
            })
        };
        let (class, source) = match classify(buffer.bytes(), is_on_link) {
            (Class::Other, source) => match self.sent.connections.of(buffer.bytes()) {
                Some(connection) => (Class::Connection, connection),
                None => (Class::Other, source),
            },
            known => known,
        };
        let count = |counters: &mut [u64; Class::ALL.len()]| {
            if let Some(counter) = counters.get_mut(class as usize) {
                *counter += 1;
            }
        };
        let is_awaited = class == Class::Neighbour && self.sent.questions.answers(port, buffer.bytes());
        if !is_awaited && !self.limiter.allows(now, class, source) {
            count(&mut self.counters.limited);
            return Given::Limited;
        }
        // Traffic waits for these, and a flood cannot make more of them.
        let reserved = reserved(if is_awaited { Class::Routing } else { class });
        if self.up.room(reserved + 1) <= reserved || self.up.try_push(Up { port, buffer }).is_err() {
            count(&mut self.counters.ring_full);
            return Given::RingFull;
        }
        count(&mut self.counters.given);
        Given::Yes
    }
}
