//! The tester: sends frames on two ports at a given rate, takes what arrives, and says when it was
//! too slow itself.
//!
//! ```text
//!   Initiator ── inside port ──► device ──► outside port ── Responder
//! ```
//!
//! Initiator and Responder are one thread, which never waits. One turn of its loop sends what is
//! due on either port, at most a burst each, takes what has arrived on both, and answers it where
//! the traffic is one of questions and answers, as TCP's handshakes are. When a frame leaves late
//! by more than [`LATE_MAX_SECONDS`], or the sending takes longer than asked for by more than
//! [`SLOWER_MAX`], the trial is void: it shows the tester's limit and not the device's.
//!
//! A ring in memory that the tester shares with the device is full only because the device does not
//! empty it. A frame that finds no room there for [`FULL_MAX_SECONDS`] is lost by the device
//! ([`Sent::not_taken`]), and the time it waited is not the tester's.
//!
//! There is a loop for each kind of traffic. What it does for each frame of UDP is inlined by
//! force: with so many callers the compiler would call it, and the tester's ceiling was a sixth
//! lower.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use wire::arp;
use wire::checksum;
use wire::ethernet::ETHER_TYPE_ARP;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::LinkHeader;
use wire::ethernet::MacAddress;

use crate::clock::Clock;
use crate::frame::CHECK_SEQUENCE;
use crate::frame::FrameSizes;
use crate::frame::Seen;
use crate::frame::Stamp;
use crate::frame::Stations;
use crate::frame::Stranger;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::tuples::Endpoint;

/// Sending may take this share longer than asked for, and [`SLOWER_SECONDS`]: no rate is said to be
/// kept that was not.
pub const SLOWER_MAX: f64 = 0.01;
/// What a hitch at the end of a short trial may take, and no more than this share of it.
const SLOWER_SECONDS: f64 = 0.002;
const SLOWER_SHORT_MAX: f64 = 0.01;
/// How long a frame waits for room in a ring that the device has to empty, before it counts as lost
/// by the device.
pub const FULL_MAX_SECONDS: f64 = 0.002;
/// A trial whose frames wait longer than this for the tester is void, unless nothing of it depends
/// on when a frame leaves.
pub const LATE_MAX_SECONDS: f64 = 0.05;
/// Frames sent in one turn of the loop at most, on each port.
const TURN_FRAMES: usize = 32;
/// The same where each is the first of a conversation: all that its frames bring about fits the
/// bursts that are taken in one turn.
const TURN_CONVERSATIONS: usize = 16;
/// When nothing has arrived for this long after the last frame was sent, nothing will.
pub const SILENCE: Duration = Duration::from_millis(200);
/// How long the tester waits for frames still under way at most (RFC 2544 §23: 2 s).
pub const WAIT_MAX: Duration = Duration::from_secs(2);
/// How long the device may take to connect its links, and then to answer ARP, if nobody can see
/// whether it still runs.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// The same before the first trial: a client of shared memory may try to connect only every few
/// seconds, and a device that was started together with the tester may not be ready yet.
pub const FIRST_PATIENCE: Duration = Duration::from_secs(30);
/// How often it is asked for its Ethernet address.
const ARP_EVERY: Duration = Duration::from_millis(250);
/// How long the answer to a ping is waited for.
const PING_PATIENCE: Duration = Duration::from_millis(200);
const PROTOCOL_ICMP: u8 = 1;
const ECHO_REQUEST: u8 = 8;
/// Bytes of a ping: both headers.
const PING_BYTES: u8 = 28;

/// One end of the tester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The port.
    pub port: PortIndex,
    /// The tester's address on the link: a router in front of all its endpoints.
    pub address: u32,
    /// The device's address on the link.
    pub device: u32,
}

/// What it means that a port takes no more frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FullRing {
    /// The tester is too slow: its own kernel, or its card, empties the ring.
    #[default]
    Tester,
    /// The device is too slow: it empties the ring, which is in memory that both share.
    Device,
}

/// What a trial sends one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// Frames.
    pub frames: u64,
    /// Frames a second; infinite: as fast as they leave, and never too slow.
    pub rate: f64,
    /// Bytes of each, check sequence included.
    pub sizes: FrameSizes,
}

/// A frame of this trial that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// At the end that its way leads to.
    Arrived,
    /// At the end that it was sent from.
    Returned,
}

/// What is sent, and what becomes of what arrives.
pub trait Traffic {
    /// Whether frames that arrive are answered with others.
    const ANSWERS: bool = false;

    /// The tuple number of frame `sequence` of a way.
    fn tuple(&self, way: Way, sequence: u32) -> u32;

    /// The tuple number, source and destination of frame `sequence` of a way.
    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint);

    /// Writes frame `sequence` of a way over all of `frame`. UDP, if nothing else is said.
    #[inline(always)]
    fn write(&mut self, key: &TrialKey, frame: &mut [u8], stations: Stations, way: Way, sequence: u32) {
        let (tuple, source, destination) = self.next(way, sequence);
        key.write(frame, stations, source, destination, Stamp { tuple, sequence, way });
    }

    /// Takes a frame that came where `way` ends, `now` by the time-stamp counter.
    ///
    /// # Errors
    /// Why it does not belong to this trial.
    #[inline(always)]
    fn take(&mut self, key: &TrialKey, way: Way, frame: &[u8], now: u64) -> Result<Taken, Stranger> {
        let seen = key.read(frame)?;
        if seen.stamp.way != way {
            return Ok(Taken::Returned);
        }
        self.arrived(way, &seen, now);
        Ok(Taken::Arrived)
    }

    /// A frame of this trial arrived at the end that `way` leads to, `now` by the time-stamp
    /// counter.
    fn arrived(&mut self, way: Way, seen: &Seen, now: u64);

    /// Frame `sequence` of a way is about to be sent.
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        let _ = (way, sequence, now);
    }

    /// A segment of TCP arrived with a number that is not what was sent.
    fn misnumbered(&mut self, way: Way) {
        let _ = way;
    }

    /// Bytes of the next answer that is to go a way, without check sequence; None when there is
    /// none.
    fn answer_bytes(&self, way: Way) -> Option<usize> {
        let _ = way;
        None
    }

    /// Writes that answer over all of `frame`. When it became due, by the time-stamp counter.
    fn answer(&mut self, key: &TrialKey, frame: &mut [u8], stations: Stations, way: Way) -> Option<u64> {
        let _ = (key, frame, stations, way);
        None
    }

    /// Whether everything that can arrive has arrived.
    fn is_complete(&self) -> bool;
}

/// What a trial did, as far as the tester itself can know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sent {
    /// Frames sent each way, those among them that the device did not take.
    pub frames: [u64; 2],
    /// Frames sent each way in answer to others.
    pub answers: [u64; 2],
    /// Frames and answers for which there was no room in the device's ring, each way: the device
    /// has lost them.
    pub not_taken: [u64; 2],
    /// Seconds from the first frame to the last, without answers.
    pub seconds: f64,
    /// The longest a frame was late, answers included, seconds.
    pub latest_seconds: f64,
    /// Frames with a wrong tag at either end.
    pub forged: u64,
    /// Frames with a right tag and a wrong checksum.
    pub damaged: u64,
    /// Other frames: ARP, what the device says of its own accord.
    pub other: u64,
    /// Frames of this trial that came out of the end they were sent into.
    pub returned: u64,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TesterError {
    /// Nobody has the device's address.
    #[error(
        "device: does not answer ARP for {address} ({side}); see that it runs, has this address, and is connected to the tester"
    )]
    Silent {
        /// `inside` or `outside`.
        side: &'static str,
        /// The address asked for.
        address: core::net::Ipv4Addr,
    },
    /// There is nobody at the other end of a link.
    #[error("device: its {side} link is down; see that it runs and that both links are up, and start the test again")]
    NoLink {
        /// `inside` or `outside`.
        side: &'static str,
    },
    /// The tester could not keep the rate.
    #[error(
        "tester: slower than asked for ({asked:.0} frames/s asked for, {reached:.0} reached, a frame {late_ms:.1} ms late); \
         give it a core of its own, or another transport"
    )]
    TooSlow {
        /// Frames a second, both ways together.
        asked: f64,
        /// Frames a second that left.
        reached: f64,
        /// How late a frame left, milliseconds.
        late_ms: f64,
        /// What it did until then.
        sent: Box<Sent>,
    },
    /// A signal ended it.
    #[error("lab: interrupted before anything was measured; start it again")]
    Interrupted,
    /// No buffer.
    #[error("tester: no packet buffer is free; give it more buffers")]
    NoBuffer,
}

/// The tester with its two ports.
pub struct Tester<I: Io> {
    io: I,
    ends: [End; 2],
    stations: [Stations; 2],
    clock: Clock,
    stop: Arc<AtomicBool>,
    full_ring: FullRing,
}

/// Answers on their way out of a port, and how long the device has had no room for them.
struct Answers<B: Buffer> {
    burst: Burst<B>,
    full_since: Option<u64>,
    /// What the device's full ring has delayed the next answers by, ticks.
    excused: u64,
}

impl<B: Buffer> Answers<B> {
    fn new() -> Answers<B> {
        Answers { burst: Burst::new(), full_since: None, excused: 0 }
    }
}

/// Which port a way starts at: the Initiator's is 0, the Responder's 1. It ends at the other.
const fn start_of(way: Way) -> usize {
    way as usize
}

/// What a side is called.
const fn name_of(side: usize) -> &'static str {
    if side == 0 { "inside" } else { "outside" }
}

/// The way that ends at a port.
const fn end_of(side: usize) -> Way {
    if side == 0 { Way::Inbound } else { Way::Outbound }
}

impl<I: Io> Tester<I> {
    /// A tester on two ports. Its Ethernet addresses are those of the ports; the device's are asked
    /// for by [`Tester::meet`].
    pub fn new(io: I, ends: [End; 2]) -> Tester<I> {
        Tester::with_clock(io, ends, Clock::counter())
    }

    /// The same by another clock.
    pub(crate) fn with_clock(io: I, ends: [End; 2], clock: Clock) -> Tester<I> {
        let stations = ends.map(|end| Stations { own: MacAddress(io.mac(end.port)), device: MacAddress([0xff; 6]) });
        Tester { io, ends, stations, clock, stop: Arc::default(), full_ring: FullRing::default() }
    }

    /// Says whose fault a full ring is; the tester's, if this is never called.
    pub fn full_ring_means(&mut self, full_ring: FullRing) {
        self.full_ring = full_ring;
    }

    /// Trials end as interrupted once this is set.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// Takes either port for the neighbour of the other: there is only a wire between them.
    pub fn face_itself(&mut self) {
        let [one, other] = self.stations.map(|stations| stations.own);
        self.stations[0].device = other;
        self.stations[1].device = one;
    }

    /// Ticks of the time-stamp counter a second.
    pub fn ticks_a_second(&self) -> f64 {
        self.clock.ticks_a_second()
    }

    /// Seconds of the tester's clock until now.
    pub(crate) fn seconds(&self) -> f64 {
        self.clock.now() as f64 / self.ticks_a_second()
    }

    /// Ethernet addresses at both ends of each link, inside first. The device's are known after
    /// [`Tester::meet`].
    pub fn stations(&self) -> [Stations; 2] {
        self.stations
    }

    /// The side on which a port has no link, as far as its driver reports it.
    pub fn side_down(&self) -> Option<&'static str> {
        (0..2).find(|side| !self.io.link_up(self.ends[*side].port)).map(name_of)
    }

    /// Gives the ports back.
    pub fn into_io(self) -> I {
        self.io
    }

    /// Waits until both ports have a link, while `goes_on` says so of the time waited.
    ///
    /// # Errors
    /// No link by then, a signal, or an error of `goes_on`.
    pub fn connect<E: From<TesterError>>(&self, mut goes_on: impl FnMut(Duration) -> Result<bool, E>) -> Result<(), E> {
        let begin = self.clock.now();
        while let Some(side) = self.side_down() {
            self.check_stop()?;
            if !goes_on(self.waited(begin))? {
                return Err(TesterError::NoLink { side }.into());
            }
            std::thread::yield_now();
            self.clock.idle();
        }
        Ok(())
    }

    /// [`Self::meet_while`] for [`PATIENCE`].
    ///
    /// # Errors
    /// No link, no answer, or a signal.
    pub fn meet(&mut self) -> Result<(), TesterError> {
        self.meet_while(|waited| Ok(waited < PATIENCE))
    }

    /// Waits for both links, then asks for the device's Ethernet address on each, while `goes_on`
    /// says so of the time waited.
    ///
    /// # Errors
    /// No link or no answer by then, a signal, or an error of `goes_on`.
    pub fn meet_while<E: From<TesterError>>(
        &mut self,
        mut goes_on: impl FnMut(Duration) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.connect(&mut goes_on)?;
        for side in 0..2 {
            let begin = self.clock.now();
            while !self.meet_at(side)? {
                if !goes_on(self.waited(begin))? {
                    let address = self.ends[side].device.into();
                    return Err(TesterError::Silent { side: name_of(side), address }.into());
                }
            }
        }
        Ok(())
    }

    fn waited(&self, begin: u64) -> Duration {
        Duration::from_secs_f64((self.clock.now() - begin) as f64 / self.ticks_a_second())
    }

    fn check_stop(&self) -> Result<(), TesterError> {
        if self.stop.load(Ordering::Relaxed) { Err(TesterError::Interrupted) } else { Ok(()) }
    }

    /// Asks once for the device's Ethernet address on a link. Whether it answered in time.
    fn meet_at(&mut self, side: usize) -> Result<bool, TesterError> {
        let end = self.ends[side];
        let request = arp::Message::request(self.stations[side].own, end.address, end.device);
        self.send_arp(side, MacAddress([0xff; 6]), &request)?;
        let deadline = self.clock.now() + self.clock.ticks(ARP_EVERY);
        while self.clock.now() < deadline {
            self.check_stop()?;
            for at in 0..2 {
                let mut burst = Burst::new();
                self.io.receive(self.ends[at].port, &mut burst);
                for buffer in burst.drain() {
                    if let Some(sender) = self.take_arp(at, buffer.bytes())?
                        && at == side
                        && sender.sender_address == end.device
                    {
                        self.stations[side].device = sender.sender_mac;
                        return Ok(true);
                    }
                }
            }
            std::thread::yield_now();
            self.clock.idle();
        }
        Ok(false)
    }

    /// Pings the device from both links, so that it asks for the tester's Ethernet addresses now
    /// and not with the first frames of a trial, of which it would hold few. Where it does not
    /// answer pings the trial begins all the same.
    ///
    /// # Errors
    /// No buffer.
    pub fn be_known(&mut self) -> Result<(), TesterError> {
        for side in 0..2 {
            let mut answered = false;
            let end = self.clock.now() + self.clock.ticks(PING_PATIENCE);
            self.send_ping(side)?;
            while !answered && self.clock.now() < end {
                self.check_stop()?;
                for at in 0..2 {
                    let mut burst = Burst::new();
                    self.io.receive(self.ends[at].port, &mut burst);
                    for buffer in burst.drain() {
                        self.take_arp(at, buffer.bytes())?;
                        answered |= at == side && is_echo_reply(buffer.bytes());
                    }
                }
                std::thread::yield_now();
                self.clock.idle();
            }
        }
        Ok(())
    }

    fn send_ping(&mut self, side: usize) -> Result<(), TesterError> {
        let Stations { own, device } = self.stations[side];
        let mut frame = [0; 60];
        // There is room for the header.
        let _ =
            LinkHeader { destination: device, source: own, vlan: None, ether_type: ETHER_TYPE_IPV4 }.write(&mut frame);
        let packet = &mut frame[HEADER_LENGTH..];
        packet[..12].copy_from_slice(&[0x45, 0, 0, PING_BYTES, 0, 0, 0x40, 0, 64, PROTOCOL_ICMP, 0, 0]);
        packet[12..16].copy_from_slice(&self.ends[side].address.to_be_bytes());
        packet[16..20].copy_from_slice(&self.ends[side].device.to_be_bytes());
        let sum = checksum::ipv4_header_checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        // An echo request with identifier and number 0: the sum of all its words is that of the
        // first.
        packet[20] = ECHO_REQUEST;
        packet[22..24].copy_from_slice(&(!(u16::from(ECHO_REQUEST) << 8)).to_be_bytes());
        let mut buffer = self.io.allocate().ok_or(TesterError::NoBuffer)?;
        if !buffer.fill(&[&frame]) {
            return Err(TesterError::NoBuffer);
        }
        let mut burst = Burst::new();
        // An empty burst has room.
        let _ = burst.push(buffer);
        self.io.transmit(self.ends[side].port, &mut burst);
        Ok(())
    }

    fn send_arp(&mut self, side: usize, to: MacAddress, message: &arp::Message) -> Result<(), TesterError> {
        let header =
            LinkHeader { destination: to, source: self.stations[side].own, vlan: None, ether_type: ETHER_TYPE_ARP };
        let mut link = [0; HEADER_LENGTH];
        // The room is exactly the header's.
        let _ = header.write(&mut link);
        let mut buffer = self.io.allocate().ok_or(TesterError::NoBuffer)?;
        let padding = [0; 60 - HEADER_LENGTH - arp::LENGTH];
        if !buffer.fill(&[&link, &message.to_bytes(), &padding]) {
            return Err(TesterError::NoBuffer);
        }
        let mut burst = Burst::new();
        // An empty burst has room.
        let _ = burst.push(buffer);
        self.io.transmit(self.ends[side].port, &mut burst);
        Ok(())
    }

    /// Answers a request for the tester's own address; gives back what any ARP message says.
    fn take_arp(&mut self, side: usize, frame: &[u8]) -> Result<Option<arp::Message>, TesterError> {
        let Ok(header) = LinkHeader::parse(frame) else { return Ok(None) };
        if header.ether_type != ETHER_TYPE_ARP {
            return Ok(None);
        }
        let Ok(message) = arp::Message::parse(&frame[header.payload_offset()..]) else { return Ok(None) };
        if message.operation == arp::Operation::Request && message.target_address == self.ends[side].address {
            let reply = message.reply(self.stations[side].own);
            self.send_arp(side, message.sender_mac, &reply)?;
        }
        Ok(Some(message))
    }

    /// Runs one trial: sends the streams and takes what arrives until all is there or nothing more
    /// comes.
    ///
    /// # Errors
    /// The tester could not keep the rate: no result.
    pub fn run<T: Traffic>(
        &mut self,
        key: &TrialKey,
        streams: [Option<Stream>; 2],
        traffic: &mut T,
    ) -> Result<Sent, TesterError> {
        let mut report = Sent::default();
        let mut waiting = [Burst::new(), Burst::new()];
        let mut answers = [Answers::new(), Answers::new()];
        let turn_frames = if T::ANSWERS { TURN_CONVERSATIONS } else { TURN_FRAMES };
        let ticks_a_frame =
            streams.map(|stream| stream.map_or(f64::INFINITY, |stream| self.ticks_a_second() / stream.rate));
        let mut queued = [0_u64; 2];
        let mut latest_ticks = 0_u64;
        // What the device's full ring has delayed the next frames by, each way, and the most of
        // that.
        let mut excused = [0_u64; 2];
        let mut held_ticks = 0_u64;
        let full_max_ticks = self.full_max_ticks();
        let late_max_ticks = LATE_MAX_SECONDS * self.ticks_a_second();
        let is_paced = streams.iter().flatten().any(|stream| stream.rate.is_finite());
        let mut is_void = false;
        let begin = self.clock.now();
        let mut ended = begin;
        loop {
            let mut is_sending = false;
            for way in Way::BOTH {
                let side = start_of(way);
                let Some(stream) = streams[side] else { continue };
                if queued[side] == stream.frames && waiting[side].is_empty() {
                    continue;
                }
                is_sending = true;
                let now = self.clock.now();
                // A rate without bound: all are due at once.
                let due = if ticks_a_frame[side] > 0.0 {
                    (((now - begin) as f64 / ticks_a_frame[side]) as u64 + 1).min(stream.frames)
                } else {
                    stream.frames
                };
                while queued[side] < due && waiting[side].len() < turn_frames {
                    let Some(mut buffer) = self.io.allocate() else { break };
                    if !buffer.fill(&[&BLANK[..stream.sizes.at(queued[side]) - CHECK_SEQUENCE]]) {
                        return Err(TesterError::NoBuffer);
                    }
                    let sequence = queued[side] as u32;
                    traffic.write(key, buffer.bytes_mut(), self.stations[side], way, sequence);
                    traffic.sent(way, sequence, now);
                    queued[side] += 1;
                    // There is room below TURN_FRAMES.
                    let _ = waiting[side].push(buffer);
                }
                if !waiting[side].is_empty() {
                    let before = waiting[side].len();
                    self.io.transmit(self.ends[side].port, &mut waiting[side]);
                    let left = waiting[side].len();
                    let gone = queued[side] - left as u64;
                    report.frames[side] = gone;
                    if left < before {
                        ended = self.clock.now();
                    }
                    if ticks_a_frame[side] > 0.0 {
                        let late = |frame: u64, at: u64| {
                            at.saturating_sub(begin + (frame as f64 * ticks_a_frame[side]) as u64)
                        };
                        // The last that left; or where none did, the first that waits.
                        let late_ticks = if left < before { late(gone - 1, ended) } else { late(gone, now) };
                        latest_ticks = latest_ticks.max(late_ticks.saturating_sub(excused[side]));
                        if left > 0 && self.full_ring == FullRing::Device {
                            let waited = late(gone, now);
                            excused[side] = excused[side].max(waited.min(full_max_ticks));
                            held_ticks = held_ticks.max(excused[side]);
                            if waited > full_max_ticks {
                                report.not_taken[side] += left as u64;
                                report.frames[side] = queued[side];
                                waiting[side].clear();
                                ended = now;
                            }
                        } else if queued[side] == due {
                            excused[side] = 0;
                        }
                    }
                }
            }
            let taken = self.take(key, traffic, &mut report)?;
            if taken == 0 && waiting.iter().all(|burst| burst.is_empty()) {
                self.clock.idle();
            }
            if T::ANSWERS {
                let late_ticks = self.answer(key, traffic, &mut answers, &mut report)?;
                // Without a rate nothing is late.
                latest_ticks = latest_ticks.max(if is_paced { late_ticks } else { 0 });
            }
            if !is_sending {
                break;
            }
            self.check_stop()?;
            if latest_ticks as f64 > late_max_ticks {
                // It can't become a result any more. What is under way is taken, so that it does
                // not disturb the next.
                is_void = true;
                break;
            }
        }
        report.seconds = (ended - begin) as f64 / self.ticks_a_second();
        report.latest_seconds = latest_ticks as f64 / self.ticks_a_second();
        drop(waiting);
        self.wait(key, traffic, &mut answers, &mut report)?;
        let held_seconds = held_ticks as f64 / self.ticks_a_second();
        Self::judge(&streams, &report, held_seconds, is_void)?;
        Ok(report)
    }

    fn full_max_ticks(&self) -> u64 {
        (FULL_MAX_SECONDS * self.ticks_a_second()) as u64
    }

    /// Takes what is still under way.
    fn wait<T: Traffic>(
        &mut self,
        key: &TrialKey,
        traffic: &mut T,
        answers: &mut [Answers<I::Buffer>; 2],
        report: &mut Sent,
    ) -> Result<(), TesterError> {
        let (wait_max, silence) = (self.clock.ticks(WAIT_MAX), self.clock.ticks(SILENCE));
        let end = self.clock.now() + wait_max;
        let mut quiet = self.clock.now() + silence;
        while !traffic.is_complete() {
            let now = self.clock.now();
            if now > end || now > quiet {
                break;
            }
            self.check_stop()?;
            match self.take(key, traffic, report)? {
                0 => self.clock.idle(),
                _ => quiet = self.clock.now() + silence,
            }
            if T::ANSWERS {
                let late_ticks = self.answer(key, traffic, answers, report)?;
                report.latest_seconds = report.latest_seconds.max(late_ticks as f64 / self.ticks_a_second());
            }
        }
        Ok(())
    }

    /// Sends what has become due as an answer, on either port. Returns the longest wait among them,
    /// ticks.
    fn answer<T: Traffic>(
        &mut self,
        key: &TrialKey,
        traffic: &mut T,
        answers: &mut [Answers<I::Buffer>; 2],
        report: &mut Sent,
    ) -> Result<u64, TesterError> {
        let mut latest_ticks = 0_u64;
        let full_max_ticks = self.full_max_ticks();
        for way in Way::BOTH {
            let side = start_of(way);
            let Answers { burst, full_since, excused } = &mut answers[side];
            while !burst.is_full()
                && let Some(bytes) = traffic.answer_bytes(way)
            {
                let Some(mut buffer) = self.io.allocate() else { break };
                if !buffer.fill(&[&BLANK[..bytes]]) {
                    return Err(TesterError::NoBuffer);
                }
                if let Some(due) = traffic.answer(key, buffer.bytes_mut(), self.stations[side], way) {
                    latest_ticks = latest_ticks.max(self.clock.now().saturating_sub(due).saturating_sub(*excused));
                }
                // It is not full.
                let _ = burst.push(buffer);
            }
            if burst.is_empty() {
                continue;
            }
            let before = burst.len();
            self.io.transmit(self.ends[side].port, burst);
            report.answers[side] += (before - burst.len()) as u64;
            if self.full_ring == FullRing::Tester {
                continue;
            }
            if burst.is_empty() {
                *full_since = None;
                if traffic.answer_bytes(way).is_none() {
                    *excused = 0;
                }
                continue;
            }
            let now = self.clock.now();
            let waited = now - *full_since.get_or_insert(now);
            *excused = (*excused).max(waited.min(full_max_ticks));
            if waited > full_max_ticks {
                report.not_taken[side] += burst.len() as u64;
                burst.clear();
            }
        }
        Ok(latest_ticks)
    }

    /// Takes a burst from either port. Returns how many frames there were.
    #[inline(always)]
    fn take<T: Traffic>(&mut self, key: &TrialKey, traffic: &mut T, report: &mut Sent) -> Result<usize, TesterError> {
        let mut taken = 0;
        for side in 0..2 {
            let mut burst = Burst::new();
            self.io.receive(self.ends[side].port, &mut burst);
            if burst.is_empty() {
                continue;
            }
            taken += burst.len();
            let now = self.clock.now();
            for buffer in burst.iter() {
                match traffic.take(key, end_of(side), buffer.bytes(), now) {
                    Ok(Taken::Arrived) => {}
                    Ok(Taken::Returned) => report.returned += 1,
                    Err(Stranger::Forged) => report.forged += 1,
                    Err(Stranger::Damaged) => report.damaged += 1,
                    Err(Stranger::Other) => {
                        report.other += 1;
                        self.take_arp(side, buffer.bytes())?;
                    }
                }
            }
        }
        Ok(taken)
    }

    /// `held_seconds`: how much longer it took because the device's ring was full.
    fn judge(
        streams: &[Option<Stream>; 2],
        report: &Sent,
        held_seconds: f64,
        is_void: bool,
    ) -> Result<(), TesterError> {
        let asked: f64 = streams.iter().flatten().map(|stream| stream.rate).sum();
        let planned = streams.iter().flatten().map(|stream| stream.frames as f64 / stream.rate).fold(0.0, f64::max);
        let frames: u64 = report.frames.iter().sum();
        if asked.is_infinite() {
            return Ok(());
        }
        if is_void
            || report.seconds - held_seconds
                > planned * (1.0 + SLOWER_MAX) + SLOWER_SECONDS.min(planned * SLOWER_SHORT_MAX)
            || report.latest_seconds > LATE_MAX_SECONDS
        {
            return Err(TesterError::TooSlow {
                asked,
                reached: frames as f64 / report.seconds.max(f64::MIN_POSITIVE),
                late_ms: report.latest_seconds * 1e3,
                sent: Box::new(report.clone()),
            });
        }
        Ok(())
    }
}

/// Whether a frame is an answer to a ping.
fn is_echo_reply(frame: &[u8]) -> bool {
    frame.len() > HEADER_LENGTH + 20
        && frame[12..14] == ETHER_TYPE_IPV4.to_be_bytes()
        && frame[HEADER_LENGTH] == 0x45
        && frame[HEADER_LENGTH + 9] == PROTOCOL_ICMP
        && frame[HEADER_LENGTH + 20] == 0
}

/// What a buffer is filled with before the frame is written over it: only its length counts.
const BLANK: [u8; crate::frame::FRAME_BYTES_MAX] = [0; crate::frame::FRAME_BYTES_MAX];

#[cfg(test)]
pub(crate) mod tests;
