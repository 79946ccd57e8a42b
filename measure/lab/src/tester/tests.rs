//! The tester against devices of known behaviour: what they do to frames is what it reports.

use core::cell::Cell;
use std::collections::HashMap;
use std::collections::VecDeque;

use packet_io::MemoryIo;
use packet_io::PortStatistics;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemoryBuffer;
use packet_io::memory::MemorySettings;
use wire::ipv4::PROTOCOL_TCP;
use wire::tcp::Flags;

use super::*;
use crate::frame::Protocol;
use crate::ledger::Conversations;
use crate::ledger::Ending;
use crate::ledger::Establish;
use crate::ledger::Faults;
use crate::ledger::Handshake;
use crate::ledger::Segments;
use crate::ledger::StateTable;
use crate::ledger::Steady;
use crate::ledger::Validate;
use crate::tuples::EndpointRange;
use crate::tuples::TupleSpace;

const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);

/// Frames that find room in the toy's rings, where it takes them slowly.
const RING_FRAMES: f64 = 64.0;

/// What the device does to frame number n of those that pass it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mischief {
    /// Nothing is answered, nothing passes.
    pub(crate) deaf: bool,
    /// The same from this frame on.
    pub(crate) deaf_from: Option<u64>,
    /// ARP is answered, nothing passes.
    pub(crate) lose_all: bool,
    /// It does not translate: it only routes.
    pub(crate) only_route: bool,
    /// All from this frame on are lost.
    pub(crate) lose_from: Option<u64>,
    /// From this frame on its outside link is down.
    pub(crate) unplug_from: Option<u64>,
    /// Its outside link is down for so many looks at it.
    pub(crate) link_up_after: Option<u32>,
    /// It takes nothing for so long, after this frame.
    pub(crate) stall: Option<(u64, Duration)>,
    /// The ring of this port is full from this frame on: nothing is taken from the tester.
    pub(crate) full_from: Option<(PortIndex, u64)>,
    /// It takes so many frames a second out of its rings, which hold [`RING_FRAMES`].
    pub(crate) takes_a_second: Option<f64>,
    pub(crate) lose: Option<u64>,
    /// Every n-th frame is lost.
    pub(crate) lose_one_in: Option<u64>,
    pub(crate) forge: Option<u64>,
    /// This inbound frame goes to the endpoint of the one before.
    pub(crate) swap: Option<u64>,
    /// The checksum of this frame is wrong.
    pub(crate) damage: Option<u64>,
    /// This frame comes out where it went in.
    pub(crate) send_back: Option<u64>,
    /// The acknowledgement number of this segment is changed, and its checksum corrected.
    pub(crate) misnumber: Option<u64>,
    /// This frame passes twice.
    pub(crate) repeat: Option<u64>,
    pub(crate) delay_ticks: u64,
}

/// Two ports with a NAT behind them: one external port for each inside endpoint and remote
/// endpoint, and mischief.
pub(crate) struct Toy {
    clock: Clock,
    memory: MemoryIo,
    bed: MemoryBed,
    external: HashMap<(Endpoint, Endpoint), Endpoint>,
    inside: HashMap<(Endpoint, Endpoint), Endpoint>,
    mischief: Mischief,
    passed: u64,
    last: Option<Endpoint>,
    late: [VecDeque<(u64, Vec<u8>)>; 2],
    /// How long it kept each frame, ticks, by the port it came out of.
    kept: [Vec<u64>; 2],
    /// Looks at its outside link.
    looks: Cell<u32>,
    /// Room in its rings, by port, and when that was reckoned.
    room: [(f64, u64); 2],
    /// By inside endpoint: what data was seen before. None: it does not look.
    tracked: Option<HashMap<Endpoint, Tracked>>,
}

/// Whether a sequence number is later than another (RFC 9293 §3.4).
fn is_later(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) > 0
}

impl Toy {
    /// Sees that data follows what was sent before and is within the window.
    fn track(&mut self, from: PortIndex, inside: Endpoint, frame: &[u8]) {
        let Some(tracked) = &mut self.tracked else { return };
        let long = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let (sequence, acknowledgement) = (long(38), long(42));
        let end = sequence.wrapping_add((usize::from(word_of(frame, 16)) - 40) as u32);
        let (way, back) = (from.index(), 1 - from.index());
        let window = u32::from(word_of(frame, 48)) << 14;
        let known = tracked.entry(inside).or_default();
        if known.sent[way] != 0 {
            assert_eq!(sequence, known.sent[way], "data leaves a gap, or is sent again without need");
        }
        if known.allowed[way] != 0 {
            assert!(!is_later(end, known.allowed[way]), "data ends beyond the window");
        }
        if known.sent[back] != 0 {
            assert!(!is_later(acknowledgement, known.sent[back]), "what was never sent is acknowledged");
        }
        known.sent[way] = end;
        let allowed = acknowledgement.wrapping_add(window);
        if known.allowed[back] == 0 || is_later(allowed, known.allowed[back]) {
            known.allowed[back] = allowed;
        }
    }

    fn new(mischief: Mischief) -> Toy {
        let bed = MemoryBed::new(&MemorySettings::default());
        let clock = Clock::simulated();
        Toy {
            looks: Cell::new(0),
            room: [(RING_FRAMES, clock.now()); 2],
            clock,
            memory: bed.io(0),
            bed,
            external: HashMap::new(),
            inside: HashMap::new(),
            mischief,
            passed: 0,
            last: None,
            late: [VecDeque::new(), VecDeque::new()],
            kept: [Vec::new(), Vec::new()],
            tracked: None,
        }
    }

    /// How many frames it takes from a port now.
    fn room(&mut self, port: PortIndex) -> usize {
        if let Some((_, from)) = self.mischief.full_from.filter(|(full, _)| *full == port) {
            return from.saturating_sub(self.passed + 1) as usize;
        }
        let Some(rate) = self.mischief.takes_a_second else { return usize::MAX };
        let (room, at) = self.room[port.index()];
        let now = self.clock.now();
        let room = (room + (now - at) as f64 * rate / self.clock.ticks_a_second()).min(RING_FRAMES);
        self.room[port.index()] = (room, now);
        room as usize
    }

    fn forward(&mut self, from: PortIndex, frame: &[u8]) {
        if self.mischief.deaf || self.mischief.deaf_from.is_some_and(|from| self.passed >= from) {
            return;
        }
        let header = LinkHeader::parse(frame).unwrap();
        if header.ether_type == ETHER_TYPE_ARP {
            let request = arp::Message::parse(&frame[14..]).unwrap();
            let reply = request.reply(MacAddress(DEVICE_MAC));
            let mut answer = vec![0; 60];
            let link = LinkHeader {
                destination: request.sender_mac,
                source: MacAddress(DEVICE_MAC),
                vlan: None,
                ether_type: ETHER_TYPE_ARP,
            };
            link.write(&mut answer).unwrap();
            answer[14..14 + arp::LENGTH].copy_from_slice(&reply.to_bytes());
            self.late[from.index()].push_back((0, answer));
            return;
        }
        let protocol = frame[23];
        if ![PROTOCOL_TCP, 17].contains(&protocol) {
            // A ping to its own address, which it does not answer.
            return;
        }
        self.passed += 1;
        if let Some((_, time)) = self.mischief.stall.filter(|(frame, _)| *frame == self.passed) {
            self.clock.advance(time);
        }
        let is_nth = self.mischief.lose_one_in.is_some_and(|nth| self.passed.is_multiple_of(nth));
        let is_after = |from: Option<u64>| from.is_some_and(|from| self.passed >= from);
        let is_unplugged = is_after(self.mischief.unplug_from);
        let is_lost = self.mischief.lose_all
            || is_after(self.mischief.lose_from)
            || is_unplugged
            || is_nth
            || self.mischief.lose == Some(self.passed);
        let mut frame = frame.to_vec();
        let long = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let word = |at: usize| u16::from_be_bytes(frame[at..at + 2].try_into().unwrap());
        let source = Endpoint { address: long(26), port: word(34) };
        let destination = Endpoint { address: long(30), port: word(36) };
        let (new_source, new_destination, inside) = if from == INSIDE {
            let fresh = Endpoint {
                address: 0xc612_0001 + (self.external.len() / 50_000) as u32,
                port: (1024 + self.external.len() % 50_000) as u16,
            };
            let fresh = if self.mischief.only_route { source } else { fresh };
            let external = *self.external.entry((source, destination)).or_insert(fresh);
            self.inside.insert((external, destination), source);
            (external, destination, source)
        } else {
            let own = self.inside[&(destination, source)];
            let swapped = self.mischief.swap == Some(self.passed);
            let to = if swapped { self.last.unwrap() } else { own };
            self.last = Some(own);
            (source, to, own)
        };
        self.track(from, inside, &frame);
        if is_lost {
            return;
        }
        frame[26..30].copy_from_slice(&new_source.address.to_be_bytes());
        frame[30..34].copy_from_slice(&new_destination.address.to_be_bytes());
        frame[34..36].copy_from_slice(&new_source.port.to_be_bytes());
        frame[36..38].copy_from_slice(&new_destination.port.to_be_bytes());
        frame[22] -= 1;
        if self.mischief.forge == Some(self.passed) {
            // UDP: in the number of the frame; TCP: in the sequence number, which names the
            // connection, or the data's stamp.
            let place = match (protocol, frame[47] & Flags::PSH.0) {
                (PROTOCOL_TCP, 0) => 41,
                (PROTOCOL_TCP, _) => 57,
                _ => 45,
            };
            frame[place] ^= 1;
        }
        if self.mischief.misnumber == Some(self.passed) {
            frame[45] ^= 1;
        }
        frame[24..26].fill(0);
        let sum = checksum::ipv4_header_checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        // The segment ends with the packet; padding follows where it is short.
        let end = 14 + usize::from(word_of(&frame, 16));
        let place = if protocol == PROTOCOL_TCP { 50 } else { 40 };
        frame[place..place + 2].fill(0);
        let (source, destination) = (new_source.address, new_destination.address);
        let pseudo = checksum::pseudo_header(source, destination, protocol, (end - 34) as u16);
        let sum = pseudo.add_bytes(&frame[34..end]);
        let sum = if protocol == PROTOCOL_TCP { sum.checksum() } else { sum.udp_checksum() };
        frame[place..place + 2].copy_from_slice(&sum.to_be_bytes());
        if self.mischief.damage == Some(self.passed) {
            frame[place] ^= 1;
        }
        if self.mischief.send_back == Some(self.passed) {
            self.late[from.index()].push_back((self.clock.now(), frame));
            return;
        }
        let is_twice = self.mischief.repeat == Some(self.passed);
        for _ in 0..1 + usize::from(is_twice) {
            self.late[1 - from.index()].push_back((self.clock.now() + self.mischief.delay_ticks, frame.clone()));
        }
    }
}

fn word_of(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

impl Io for Toy {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        2
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let now = self.clock.now();
        while !burst.is_full() && self.late[port.index()].front().is_some_and(|(due, _)| *due <= now) {
            let (due, frame) = self.late[port.index()].pop_front().unwrap();
            self.kept[port.index()].push(now.saturating_sub(due) + self.mischief.delay_ticks);
            let mut buffer = self.memory.allocate().unwrap();
            assert!(buffer.fill(&[&frame]));
            burst.push(buffer).map_err(|_| ()).unwrap();
        }
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        if !self.link_up(port) {
            // Nobody takes them.
            return;
        }
        let taken = self.room(port).min(burst.len());
        self.room[port.index()].0 -= taken as f64;
        for buffer in burst.drain_front(taken) {
            self.forward(port, buffer.bytes());
        }
    }

    fn allocate(&mut self) -> Option<MemoryBuffer> {
        self.memory.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.memory.mac(port)
    }

    fn can_receive(&self, _: PortIndex) -> bool {
        true
    }

    fn can_transmit(&self, _: PortIndex) -> bool {
        true
    }

    fn link_up(&self, port: PortIndex) -> bool {
        let _ = &self.bed;
        let is_unplugged = self.mischief.unplug_from.is_some_and(|from| self.passed >= from);
        let looks = self.looks.get() + u32::from(port == OUTSIDE);
        self.looks.set(looks);
        port != OUTSIDE || (!is_unplugged && self.mischief.link_up_after.is_none_or(|after| looks > after))
    }

    fn statistics(&self, _: PortIndex) -> PortStatistics {
        PortStatistics::default()
    }
}

pub(crate) const ENDS: [End; 2] = [
    End { port: INSIDE, address: 0x0aff_0002, device: 0x0aff_0001 },
    End { port: OUTSIDE, address: 0xac10_ff02, device: 0xac10_ff01 },
];

pub(crate) fn space() -> TupleSpace {
    let inside = EndpointRange { first_address: [10, 0, 0, 2].into(), addresses: 100, ports: 1024..=65_535 };
    let remote = EndpointRange { first_address: [198, 19, 0, 0].into(), addresses: 4, ports: 80..=83 };
    TupleSpace::new(inside, remote, 1_000_000, 5).unwrap()
}

/// A tester whose device does this mischief, both by one simulated clock.
pub(crate) fn tester(mischief: Mischief) -> Tester<Toy> {
    let toy = Toy::new(mischief);
    let clock = toy.clock.clone();
    Tester::with_clock(toy, ENDS, clock)
}

fn one_way(frames: u64) -> Stream {
    Stream { frames, rate: f64::INFINITY, sizes: FrameSizes::Fixed(64) }
}

/// Runs without a rate: a debug build on a busy machine keeps none, and here it is about what
/// arrives.
fn run<T: Traffic>(tester: &mut Tester<Toy>, key: &TrialKey, streams: [Option<Stream>; 2], traffic: &mut T) -> Sent {
    tester.run(key, streams, traffic).unwrap()
}

#[test]
fn a_device_that_answers_arp_is_met_and_a_silent_one_is_named() {
    let mut tester = tester(Mischief::default());
    tester.meet().unwrap();
    assert_eq!(tester.stations.map(|stations| stations.device), [MacAddress(DEVICE_MAC); 2]);
}

#[test]
fn links_are_awaited_while_the_caller_wants() {
    let mut tester = tester(Mischief { unplug_from: Some(0), ..Mischief::default() });
    let mut asked = 0;
    let met: Result<(), TesterError> = tester.meet_while(|_| {
        asked += 1;
        Ok(asked < 3)
    });
    assert_eq!((met, asked), (Err(TesterError::NoLink { side: "outside" }), 3));
    // It is plugged in while the tester waits.
    tester.io.mischief = Mischief { link_up_after: Some(tester.io.looks.get() + 5), ..Mischief::default() };
    tester.meet().unwrap();
    tester.io.mischief = Mischief { unplug_from: Some(0), ..Mischief::default() };
    tester.stop.store(true, Ordering::Relaxed);
    assert_eq!(tester.meet(), Err(TesterError::Interrupted));
}

#[test]
fn single_faulty_frames_in_a_million_are_found() {
    const FRAMES: u64 = 1_000_000;
    let space = space();
    let mut tester = tester(Mischief::default());
    tester.meet().unwrap();
    let key = TrialKey::new(1, 1);
    let mut establish = Establish::new(&space, FRAMES);
    run(&mut tester, &key, [Some(one_way(FRAMES)), None], &mut establish);
    assert_eq!((establish.arrived, establish.faults.sum()), (FRAMES, 0));
    assert!(establish.is_complete());

    let base = tester.io.passed;
    tester.io.mischief = Mischief {
        lose: Some(base + 400_000),
        forge: Some(base + 500_000),
        swap: Some(base + 600_000),
        ..Mischief::default()
    };
    let key = TrialKey::new(1, 2);
    let mut validate = Validate::new(&space, &establish.table, 9);
    let sent = run(&mut tester, &key, [None, Some(one_way(FRAMES))], &mut validate);
    assert_eq!(validate.arrived, FRAMES - 3);
    assert_eq!((sent.forged, sent.damaged, sent.returned), (1, 0, 0));
    assert_eq!(validate.faults.swapped, 1);
    assert_eq!(validate.faults.sum(), 1);
}

#[test]
fn frames_of_an_earlier_trial_do_not_count() {
    let space = space();
    let mut tester = tester(Mischief { delay_ticks: 1 << 60, ..Mischief::default() });
    let mut establish = Establish::new(&space, 100);
    run(&mut tester, &TrialKey::new(1, 1), [Some(one_way(100)), None], &mut establish);
    assert_eq!(establish.arrived, 0);
    for late in &mut tester.io.late {
        late.iter_mut().for_each(|(due, _)| *due = 0);
    }
    tester.io.mischief = Mischief::default();
    let mut again = Establish::new(&space, 100);
    let sent = run(&mut tester, &TrialKey::new(1, 2), [Some(one_way(100)), None], &mut again);
    assert_eq!((again.arrived, again.faults.sum()), (100, 0));
    assert_eq!(sent.forged, 100);
}

#[test]
fn a_known_delay_is_reported_within_half_a_millisecond() {
    let space = space();
    let mut tester = tester(Mischief::default());
    let mut establish = Establish::new(&space, 1000);
    run(&mut tester, &TrialKey::new(1, 1), [Some(one_way(1000)), None], &mut establish);
    let delay = (tester.ticks_a_second() * 0.02) as u64;
    tester.io.mischief.delay_ticks = delay;
    tester.io.kept = [Vec::new(), Vec::new()];
    let mut steady = Steady::new(&space, &establish.table, [500, 500], Some(500), 3);
    let slow = Stream { frames: 500, rate: f64::INFINITY, sizes: FrameSizes::Fixed(128) };
    run(&mut tester, &TrialKey::new(1, 2), [Some(slow), Some(slow)], &mut steady);
    assert_eq!(steady.arrived, [500, 500]);
    for way in Way::BOTH {
        let delays = steady.delays(way);
        assert_eq!(delays.len(), 500);
        assert!(delays.iter().all(|taken| *taken >= delay), "no frame can be faster than the device");
        // On a busy machine the device itself is late: it says how much, which is what the tester
        // has to find. A median, as the tester may be kept from its CPU between the device and its
        // clock.
        let median = |ticks: &[u64]| {
            let mut sorted = ticks.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        let kept = median(&tester.io.kept[1 - way.index()]);
        let found = median(delays);
        let error = (tester.ticks_a_second() * 0.000_5) as u64;
        assert!(kept >= delay && found.abs_diff(kept) <= error, "{found} ticks are reported of {kept}");
    }
}

#[test]
fn a_tester_that_cannot_keep_the_rate_has_no_result() {
    let space = space();
    let mut tester = tester(Mischief::default());
    let mut establish = Establish::new(&space, 1_000_000);
    let asked = Stream { rate: 1e12, ..one_way(1_000_000) };
    match tester.run(&TrialKey::new(1, 1), [Some(asked), None], &mut establish) {
        Err(TesterError::TooSlow { reached, .. }) => assert!(reached < 1e12),
        other => panic!("{other:?}"),
    }
    assert!(establish.arrived < 1_000_000, "it goes on though the trial is void");
}

#[test]
fn a_signal_ends_a_trial_without_a_result() {
    let space = space();
    let mut tester = tester(Mischief::default());
    let stop = Arc::new(AtomicBool::new(true));
    tester.stop_on(Arc::clone(&stop));
    let mut establish = Establish::new(&space, 1000);
    let ended = tester.run(&TrialKey::new(1, 1), [Some(one_way(1000)), None], &mut establish);
    assert_eq!(ended, Err(TesterError::Interrupted));
}

#[test]
fn frames_for_a_full_ring_are_lost_by_the_device_that_shares_it() {
    const FRAMES: u64 = 1000;
    let space = space();
    let full = Mischief { full_from: Some((INSIDE, 301)), ..Mischief::default() };
    let stream = Some(Stream { frames: FRAMES, rate: 20_000.0, sizes: FrameSizes::Fixed(64) });
    let trial = |full_ring: FullRing| {
        let mut tester = tester(full);
        tester.full_ring_means(full_ring);
        let mut establish = Establish::new(&space, FRAMES);
        tester.run(&TrialKey::new(1, 1), [stream, None], &mut establish)
    };
    // Its own kernel, or its card: late by all the time that nothing left.
    assert!(matches!(trial(FullRing::Tester), Err(TesterError::TooSlow { .. })));
    let sent = trial(FullRing::Device).unwrap();
    assert_eq!((sent.frames, sent.not_taken), ([FRAMES, 0], [FRAMES - 300, 0]));
}

#[test]
fn a_device_with_a_full_shared_ring_loses_the_answers() {
    const CONNECTIONS: u64 = 300;
    let space = space();
    // The answers of the outside, after the first ones.
    let full = Mischief { full_from: Some((OUTSIDE, 100)), ..Mischief::default() };
    let [syns, _] = syns(CONNECTIONS);
    let paced = syns.map(|stream| Stream { rate: 20_000.0, ..stream });
    let mut tester = tester(full);
    tester.full_ring_means(FullRing::Device);
    let mut handshake = Handshake::new(&space, CONNECTIONS, Ending::Open);
    let sent = tester.run(&TrialKey::new(1, 1), [paced, None], &mut handshake).unwrap();
    let made = handshake.arrived;
    assert_eq!((sent.frames, sent.not_taken[0]), ([CONNECTIONS, 0], 0));
    assert!((1..100).contains(&made), "{made}");
    assert_eq!((sent.answers[1], sent.not_taken[1]), (made, CONNECTIONS - made));
}

fn syns(connections: u64) -> [Option<Stream>; 2] {
    let sizes = FrameSizes::Fixed(crate::segment::SYN_FRAME_BYTES);
    [Some(Stream { frames: connections, rate: f64::INFINITY, sizes }), None]
}

/// A tester and a device with so many connections of TCP between them.
fn connected(connections: u64, space: &TupleSpace) -> (Tester<Toy>, StateTable) {
    let mut tester = tester(Mischief::default());
    let mut handshake = Handshake::new(space, connections, Ending::Open);
    let sent = run(&mut tester, &TrialKey::new(1, 1), syns(connections), &mut handshake);
    assert_eq!((handshake.arrived, handshake.faults.sum()), (connections, 0));
    assert!(handshake.is_complete());
    assert_eq!((sent.frames, sent.answers), ([connections, 0], [connections, connections]));
    assert_eq!((sent.forged, sent.damaged, sent.other, sent.returned), (0, 0, 0, 0));
    (tester, handshake.table)
}

#[test]
fn with_tcp_single_faulty_frames_in_a_million_are_found() {
    const FRAMES: u64 = 1_000_000;
    let space = space();
    let (mut tester, table) = connected(FRAMES, &space);
    let base = tester.io.passed;
    tester.io.mischief = Mischief {
        lose: Some(base + 400_000),
        forge: Some(base + 500_000),
        swap: Some(base + 600_000),
        misnumber: Some(base + 700_000),
        ..Mischief::default()
    };
    let mut validate = Validate::new(&space, &table, 9);
    let conversations = table.conversations.as_ref().unwrap();
    let mut segments = Segments::new(&mut validate, conversations, [0, FRAMES]);
    let sent = run(&mut tester, &TrialKey::new(1, 2), [None, Some(one_way(FRAMES))], &mut segments);
    assert_eq!(validate.arrived, FRAMES - 4);
    assert_eq!((validate.faults.swapped, validate.faults.misnumbered, validate.faults.sum()), (1, 1, 2));
    assert_eq!((sent.forged, sent.damaged), (1, 0));
}

#[test]
fn a_connection_counts_only_after_a_complete_clean_handshake() {
    const CONNECTIONS: u64 = 1000;
    let space = space();
    // Frames pass in the order SYN, SYN-ACK, ACK of bursts: any number below three thousand is one
    // of them.
    for passed in [1, 16, 17, 32, 33, 40, 48, 1500, 3000] {
        let with = |mischief: Mischief| {
            let mut tester = tester(mischief);
            let mut handshake = Handshake::new(&space, CONNECTIONS, Ending::Open);
            let sent = run(&mut tester, &TrialKey::new(1, 1), syns(CONNECTIONS), &mut handshake);
            assert_eq!(handshake.table.len(), handshake.arrived);
            (CONNECTIONS - handshake.arrived, handshake.faults, sent.forged)
        };
        let none = Mischief::default();
        assert_eq!(with(Mischief { lose: Some(passed), ..none }), (1, Faults::default(), 0), "lost {passed}");
        assert_eq!(with(Mischief { forge: Some(passed), ..none }), (1, Faults::default(), 1), "forged {passed}");
        let misnumbered = Faults { misnumbered: 1, ..Faults::default() };
        assert_eq!(with(Mischief { misnumber: Some(passed), ..none }), (1, misnumbered, 0), "misnumbered {passed}");
        let repeated = Faults { repeated: 1, ..Faults::default() };
        assert_eq!(with(Mischief { repeat: Some(passed), ..none }), (0, repeated, 0), "repeated {passed}");
    }
}

#[test]
fn a_swapped_answer_of_a_handshake_is_known_for_what_it_is() {
    let space = space();
    let mut tester = tester(Mischief::default());
    let mut handshake = Handshake::new(&space, 1000, Ending::Open);
    // Bursts of 16 SYNs: 17 is the first answer and has none before it.
    tester.io.mischief.swap = Some(20);
    run(&mut tester, &TrialKey::new(1, 1), syns(1000), &mut handshake);
    assert_eq!((handshake.arrived, handshake.faults), (999, Faults { swapped: 1, ..Faults::default() }));
}

#[test]
fn connections_that_are_closed_take_seven_segments_each() {
    const CONNECTIONS: u64 = 10_000;
    let space = space();
    let mut tester = tester(Mischief::default());
    let mut handshake = Handshake::new(&space, CONNECTIONS, Ending::Closed);
    let sent = run(&mut tester, &TrialKey::new(1, 1), syns(CONNECTIONS), &mut handshake);
    assert_eq!((handshake.arrived, handshake.faults.sum()), (CONNECTIONS, 0));
    assert_eq!((sent.frames, sent.answers), ([CONNECTIONS, 0], [3 * CONNECTIONS, 3 * CONNECTIONS]));
    assert_eq!(tester.io.passed, 7 * CONNECTIONS);
    tester.io.mischief.lose = Some(tester.io.passed + 6 * CONNECTIONS);
    let mut again = Handshake::new(&space, CONNECTIONS, Ending::Closed);
    run(&mut tester, &TrialKey::new(1, 2), syns(CONNECTIONS), &mut again);
    assert_eq!(again.arrived, CONNECTIONS - 1, "a connection of which a segment is missing is not whole");
}

/// What a device that tracks connections knows of one: the end of what was sent, and the end of
/// what may be sent, by way.
#[derive(Default)]
struct Tracked {
    sent: [u32; 2],
    allowed: [u32; 2],
}

#[test]
fn data_goes_on_where_it_ended_within_the_window_after_losses() {
    const CONNECTIONS: u64 = 50;
    let space = space();
    let (mut tester, table) = connected(CONNECTIONS, &space);
    let conversations = table.conversations.as_ref().unwrap();
    let frames = 5000;
    tester.io.mischief.lose_one_in = Some(7);
    tester.io.tracked = Some(HashMap::new());
    for trial in 2..5 {
        let mut steady = Steady::new(&space, &table, [frames, frames], None, trial);
        let mut segments = Segments::new(&mut steady, conversations, [frames, frames]);
        let stream = Some(Stream { frames, rate: f64::INFINITY, sizes: FrameSizes::Imix });
        run(&mut tester, &TrialKey::new(1, trial), [stream, stream], &mut segments);
        let lost = 2 * frames - steady.arrived.iter().sum::<u64>();
        assert!((1420..1440).contains(&lost), "{lost} of 10000 are lost, one in seven");
        assert_eq!(steady.faults.map(|faults| faults.sum()), [0, 0]);
    }
    // What the toy saw it has checked.
    assert_eq!(tester.io.tracked.as_ref().unwrap().len() as u64, CONNECTIONS);
}

#[test]
fn over_a_wire_connections_need_no_handshake() {
    let space = space();
    let table = StateTable::straight(&space, 10, Protocol::Tcp);
    assert_eq!(table.len(), 10);
    assert_eq!(table.conversations.as_ref().map(|all: &Conversations| all.send(Way::Outbound, 9, 6).sequence), Some(0));
    assert!(StateTable::straight(&space, 10, Protocol::Udp).conversations.is_none());
}
