//! The far ends of both links: writes what arrives at Natrix, answers its ARP requests, looks at
//! what leaves.

use core::net::Ipv4Addr;

use packet_io::BURST_MAX;
use packet_io::Buffer;
use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use wire::arp::Message;
use wire::arp::Operation;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;

use super::frame;
use super::frame::ACK;
use super::frame::FRAME_BYTES;
use super::frame::Flow;
use super::frame::FrameFault;
use super::frame::SYN;
use super::frame::TCP;
use super::frame::Way;

/// Port 0, towards the subscribers.
pub(super) const INSIDE: usize = 0;
/// Port 1, towards the servers.
pub(super) const OUTSIDE: usize = 1;
/// The station next to Natrix on each link.
pub(super) const HOSTS: [MacAddress; 2] = [MacAddress([2, 0, 0, 0, 0x10, 1]), MacAddress([2, 0, 0, 0, 0x10, 2])];

/// Mappings of one subscriber, of both protocols together.
pub(super) const MAPPINGS_PER_SUBSCRIBER: u64 = 64;
const SERVERS: u16 = 1_024;
/// Of so many bursts that leave by a port while sessions are established, the frames of one are
/// looked at.
const LOOK_EVERY: u64 = 16;

/// What arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Script {
    /// Nothing but answers to ARP requests.
    Silence,
    /// From inside: the first packets of the flows from the number on, up to the end, and again
    /// from the start.
    Open { next: usize, end: usize },
    /// From outside: the servers' first packets, in the same order.
    Answer { next: usize, end: usize },
    /// From both sides: packets of random flows.
    Established,
}

/// Who is between the two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Device {
    /// Natrix: what leaves has to be translated.
    Natrix,
    /// The plain forwarder, which changes Ethernet addresses only.
    Plain,
}

/// A frame that was not what it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadFrame {
    pub(super) fault: FrameFault,
    pub(super) bytes: Vec<u8>,
}

/// The far ends of both links.
pub(super) struct Traffic {
    flows: Vec<Flow>,
    random: SmallRng,
    stations: [MacAddress; 2],
    script: Script,
    device: Device,
    /// The answer to the last ARP request of each link, until it is sent.
    replies: [Option<Message>; 2],
    bursts_seen: u64,
    /// Packets of flows written, by the port they arrive at.
    written: [u64; 2],
    /// Packets of flows that left, by port.
    seen: [u64; 2],
    /// Frames looked at in every byte.
    checked: u64,
    opened: usize,
    answered: usize,
    bad: Option<BadFrame>,
}

impl Traffic {
    /// Traffic of `sessions` flows, none of them opened.
    pub(super) fn new(sessions: usize) -> Traffic {
        let mut random = SmallRng::seed_from_u64(0x6e61_7472_6978);
        let flow = |number: usize| {
            let (subscriber, port) = (number as u64 / MAPPINGS_PER_SUBSCRIBER, number as u64 % MAPPINGS_PER_SUBSCRIBER);
            // Remote endpoints as in life: skewed to few servers.
            let skewed = random.random::<f64>().powi(3) * f64::from(SERVERS);
            Flow {
                internal_address: Ipv4Addr::new(10, 0, 0, 1).to_bits() + subscriber as u32,
                internal_port: (20_000 + port / 2 * 7) as u16,
                server: (skewed as u16).min(SERVERS - 1) | if port % 2 == 1 { TCP } else { 0 },
                ..Flow::default()
            }
        };
        Traffic {
            flows: (0..sessions).map(flow).collect(),
            random: SmallRng::seed_from_u64(11),
            stations: [MacAddress::default(); 2],
            script: Script::Silence,
            device: Device::Natrix,
            replies: [None; 2],
            bursts_seen: 0,
            written: [0; 2],
            seen: [0; 2],
            checked: 0,
            opened: 0,
            answered: 0,
            bad: None,
        }
    }

    /// Says which stations the two ports have.
    pub(super) fn set_stations(&mut self, stations: [MacAddress; 2]) {
        self.stations = stations;
    }

    pub(super) fn stations(&self) -> [MacAddress; 2] {
        self.stations
    }

    pub(super) fn set_script(&mut self, script: Script) {
        self.script = script;
    }

    /// Packets of established sessions, with this between the links. Returns the counts so far.
    pub(super) fn begin(&mut self, device: Device) -> (u64, u64) {
        (self.device, self.script) = (device, Script::Established);
        self.counts()
    }

    /// Packets of flows written, and those that left.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.written.iter().sum(), self.seen.iter().sum())
    }

    pub(super) fn checked(&self) -> u64 {
        self.checked
    }

    /// Flows whose first packet was seen translated.
    pub(super) fn opened(&self) -> usize {
        self.opened
    }

    /// Flows whose server's first answer was seen translated.
    pub(super) fn answered(&self) -> usize {
        self.answered
    }

    /// The first frame that was not as it has to be, if any.
    pub(super) fn bad(&self) -> Option<&BadFrame> {
        self.bad.as_ref()
    }

    /// External endpoints in use; each must belong to one flow of its protocol.
    pub(super) fn external_endpoints(&self) -> usize {
        let mut all: Vec<_> =
            self.flows.iter().map(|flow| (flow.external_address, flow.external_port, flow.server & TCP)).collect();
        all.sort_unstable();
        all.dedup();
        all.len()
    }

    /// Writes what arrives at a port in one burst into the buffers: all of them, or none (then
    /// false).
    pub(super) fn write<B: Buffer>(&mut self, side: usize, buffers: &mut [B]) -> bool {
        let reply = if self.device == Device::Natrix { self.replies[side].take() } else { None };
        let mut frame = [0; FRAME_BYTES];
        for (slot, buffer) in buffers.iter_mut().enumerate() {
            match reply {
                Some(reply) if slot == 0 || !self.write_flow(side, &mut frame) => self.write_reply(&reply, &mut frame),
                None if !self.write_flow(side, &mut frame) => return false,
                _ => {}
            }
            // A buffer takes any frame of Ethernet.
            let fits = buffer.fill(&[&frame]);
            debug_assert!(fits, "60 bytes fit each buffer");
        }
        true
    }

    fn write_reply(&self, reply: &Message, frame: &mut [u8; FRAME_BYTES]) {
        let header = LinkHeader {
            destination: reply.target_mac,
            source: reply.sender_mac,
            vlan: None,
            ether_type: ETHER_TYPE_ARP,
        };
        frame.fill(0);
        if let Some(length) = header.write(frame) {
            let bytes = reply.to_bytes();
            frame[length..length + bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The next packet of a flow that arrives here, if the script has any.
    fn write_flow(&mut self, side: usize, frame: &mut [u8; FRAME_BYTES]) -> bool {
        let (number, way, flags) = match (&mut self.script, side) {
            (Script::Open { next, end }, INSIDE) => (advance(next, *end), Way::Outbound, SYN),
            (Script::Answer { next, end }, OUTSIDE) => (advance(next, *end), Way::Inbound, SYN | ACK),
            (Script::Established, side) => {
                let number = self.random.random_range(0..self.flows.len());
                (number, if side == INSIDE { Way::Outbound } else { Way::Inbound }, ACK)
            }
            _ => return false,
        };
        let flow = &self.flows[number];
        frame::write(frame, way, flow, number as u32, flags, self.stations[side], HOSTS[side]);
        self.written[side] += 1;
        true
    }

    /// Takes in a burst that left by a port.
    pub(super) fn look<B: Buffer>(&mut self, side: usize, frames: &[B]) {
        debug_assert!(frames.len() <= BURST_MAX);
        let all = self.script != Script::Established || self.bursts_seen.is_multiple_of(LOOK_EVERY);
        self.bursts_seen += 1;
        for buffer in frames {
            let bytes = buffer.bytes();
            if frame::number_of(bytes).is_none() {
                self.take_other(side, bytes);
                continue;
            }
            self.seen[side] += 1;
            if self.device == Device::Plain || !all {
                continue;
            }
            match self.judge(side, bytes) {
                Ok(()) => self.checked += 1,
                Err(fault) if self.bad.is_none() => self.bad = Some(BadFrame { fault, bytes: bytes.to_vec() }),
                Err(_) => {}
            }
        }
    }

    fn judge(&mut self, side: usize, bytes: &[u8]) -> Result<(), FrameFault> {
        let leaving = frame::read(bytes, self.stations[side], HOSTS[side])?;
        let flow = self.flows.get_mut(leaving.number as usize).ok_or(FrameFault::Flow)?;
        let way = if side == OUTSIDE { Way::Outbound } else { Way::Inbound };
        if way == Way::Outbound && !flow.is_open() {
            let opened = Flow { external_address: leaving.source.0, external_port: leaving.source.1, ..*flow };
            // Whatever the endpoint is, it has to be one of the pool's.
            if !super::bed::is_pool_address(opened.external_address) {
                return Err(FrameFault::Endpoints);
            }
            leaving.fits(way, &opened)?;
            *flow = opened;
            self.opened += 1;
            return Ok(());
        }
        leaving.fits(way, flow)?;
        if way == Way::Inbound && !flow.is_answered {
            flow.is_answered = true;
            self.answered += 1;
        }
        Ok(())
    }

    /// What Natrix sends of its own accord: ARP. Requests for a host are answered; announcements
    /// need no answer.
    fn take_other(&mut self, side: usize, bytes: &[u8]) {
        let Ok(header) = LinkHeader::parse(bytes) else { return };
        if header.ether_type != ETHER_TYPE_ARP {
            return;
        }
        let Some(Ok(message)) = bytes.get(header.payload_offset()..).map(Message::parse) else { return };
        let asks = message.operation == Operation::Request && message.sender_address != 0;
        if asks && !message.is_gratuitous() {
            self.replies[side] = Some(message.reply(HOSTS[side]));
        }
    }
}

/// The next of the numbers up to `end`, over and over.
fn advance(next: &mut usize, end: usize) -> usize {
    let number = *next;
    *next = if number + 1 < end { number + 1 } else { 0 };
    number
}

#[cfg(test)]
mod tests {
    use packet_io::MemoryBuffer;
    use packet_io::memory::MemoryPool;

    use super::*;

    fn buffers() -> Vec<MemoryBuffer> {
        let pool = MemoryPool::new(BURST_MAX, 128);
        std::iter::from_fn(|| pool.allocate()).collect()
    }

    #[test]
    fn frames_that_come_back_as_they_were_sent_are_found_out() {
        let mut traffic = Traffic::new(100);
        traffic.set_script(Script::Open { next: 0, end: 100 });
        let mut burst = buffers();
        assert!(!traffic.write(OUTSIDE, &mut burst), "flows are opened from inside");
        assert!(traffic.write(INSIDE, &mut burst));
        traffic.look(OUTSIDE, &burst);
        assert_eq!(traffic.counts(), (64, 64));
        assert_eq!((traffic.checked(), traffic.opened()), (0, 0));
        assert!(traffic.bad().is_some());
    }

    #[test]
    fn a_request_for_the_host_is_answered_an_announcement_is_not() {
        let mut traffic = Traffic::new(1);
        let stations = [MacAddress([2, 0, 0, 0, 0, 1]), MacAddress([2, 0, 0, 0, 0, 2])];
        traffic.set_stations(stations);
        let mut burst = buffers();
        burst.truncate(1);
        let (own, host) = (0xc0a8_ff01, 0xc0a8_ff02);
        for (sender, target, answers) in [(0, own, false), (own, own, false), (own, host, true)] {
            let request = Message::request(stations[INSIDE], sender, target);
            let header = LinkHeader {
                destination: MacAddress::BROADCAST,
                source: stations[INSIDE],
                vlan: None,
                ether_type: ETHER_TYPE_ARP,
            };
            let mut bytes = [0; FRAME_BYTES];
            let length = header.write(&mut bytes).expect("there is room");
            bytes[length..length + 28].copy_from_slice(&request.to_bytes());
            assert!(burst[0].fill(&[&bytes]));
            traffic.look(INSIDE, &burst);
            assert_eq!(traffic.write(INSIDE, &mut burst), answers, "{sender:x} {target:x}");
        }
        let header = LinkHeader::parse(burst[0].bytes()).expect("a frame");
        let reply = Message::parse(&burst[0].bytes()[header.payload_offset()..]).expect("an ARP packet");
        assert_eq!((header.destination, header.source), (stations[INSIDE], HOSTS[INSIDE]));
        assert_eq!((reply.operation, reply.sender_mac, reply.sender_address), (Operation::Reply, HOSTS[INSIDE], host));
        assert!(!traffic.write(INSIDE, &mut burst), "once");
        assert_eq!(traffic.counts(), (0, 0));
    }
}
