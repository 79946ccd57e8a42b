//! The tester against devices of known behaviour: what they do to frames is what it reports.

use std::collections::HashMap;
use std::collections::VecDeque;

use packet_io::MemoryIo;
use packet_io::PortStatistics;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemoryBuffer;
use packet_io::memory::MemorySettings;

use super::*;
use crate::ledger::Establish;
use crate::ledger::Steady;
use crate::ledger::Validate;
use crate::tuples::EndpointRange;
use crate::tuples::TupleSpace;

const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);

/// What the device does to frame number n of those that pass it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mischief {
    /// Nothing is answered, nothing passes.
    pub(crate) deaf: bool,
    /// ARP is answered, nothing passes.
    pub(crate) lose_all: bool,
    pub(crate) lose: Option<u64>,
    /// Every n-th frame is lost.
    pub(crate) lose_one_in: Option<u64>,
    pub(crate) forge: Option<u64>,
    /// This inbound frame goes to the endpoint of the one before.
    pub(crate) swap: Option<u64>,
    pub(crate) delay_ticks: u64,
}

/// Two ports with a NAT behind them: one external port for each inside endpoint and remote endpoint, and mischief.
pub(crate) struct Toy {
    memory: MemoryIo,
    bed: MemoryBed,
    external: HashMap<(Endpoint, Endpoint), Endpoint>,
    inside: HashMap<(Endpoint, Endpoint), Endpoint>,
    mischief: Mischief,
    passed: u64,
    last: Option<Endpoint>,
    late: [VecDeque<(u64, Vec<u8>)>; 2],
}

impl Toy {
    pub(crate) fn new(mischief: Mischief) -> Toy {
        let bed = MemoryBed::new(&MemorySettings::default());
        Toy {
            memory: bed.io(0),
            bed,
            external: HashMap::new(),
            inside: HashMap::new(),
            mischief,
            passed: 0,
            last: None,
            late: [VecDeque::new(), VecDeque::new()],
        }
    }

    fn forward(&mut self, from: PortIndex, frame: &[u8]) {
        if self.mischief.deaf {
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
        if frame[23] != 17 {
            // A ping to its own address, which it does not answer.
            return;
        }
        self.passed += 1;
        let is_nth = self.mischief.lose_one_in.is_some_and(|nth| self.passed.is_multiple_of(nth));
        if self.mischief.lose_all || is_nth || self.mischief.lose == Some(self.passed) {
            return;
        }
        let mut frame = frame.to_vec();
        let long = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        let word = |at: usize| u16::from_be_bytes(frame[at..at + 2].try_into().unwrap());
        let source = Endpoint { address: long(26), port: word(34) };
        let destination = Endpoint { address: long(30), port: word(36) };
        let (new_source, new_destination) = if from == INSIDE {
            let fresh = Endpoint {
                address: 0xc612_0001 + (self.external.len() / 50_000) as u32,
                port: (1024 + self.external.len() % 50_000) as u16,
            };
            let external = *self.external.entry((source, destination)).or_insert(fresh);
            self.inside.insert((external, destination), source);
            (external, destination)
        } else {
            let own = self.inside[&(destination, source)];
            let swapped = self.mischief.swap == Some(self.passed);
            let to = if swapped { self.last.unwrap() } else { own };
            self.last = Some(own);
            (source, to)
        };
        frame[26..30].copy_from_slice(&new_source.address.to_be_bytes());
        frame[30..34].copy_from_slice(&new_destination.address.to_be_bytes());
        frame[34..36].copy_from_slice(&new_source.port.to_be_bytes());
        frame[36..38].copy_from_slice(&new_destination.port.to_be_bytes());
        frame[22] -= 1;
        if self.mischief.forge == Some(self.passed) {
            frame[45] ^= 1;
        }
        frame[24..26].fill(0);
        let sum = checksum::ipv4_header_checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame[40..42].fill(0);
        let pseudo =
            checksum::pseudo_header(new_source.address, new_destination.address, 17, (frame.len() - 34) as u16);
        let sum = pseudo.add_bytes(&frame[34..]).udp_checksum();
        frame[40..42].copy_from_slice(&sum.to_be_bytes());
        self.late[1 - from.index()].push_back((tsc::read() + self.mischief.delay_ticks, frame));
    }
}

impl Io for Toy {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        2
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        let now = tsc::read();
        while !burst.is_full() && self.late[port.index()].front().is_some_and(|(due, _)| *due <= now) {
            let (_, frame) = self.late[port.index()].pop_front().unwrap();
            let mut buffer = self.memory.allocate().unwrap();
            assert!(buffer.fill(&[&frame]));
            burst.push(buffer).map_err(|_| ()).unwrap();
        }
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        for buffer in burst.drain() {
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

    fn link_up(&self, _: PortIndex) -> bool {
        let _ = &self.bed;
        true
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

fn one_way(frames: u64) -> Stream {
    Stream { frames, rate: f64::INFINITY, sizes: FrameSizes::Fixed(64) }
}

/// Runs without a rate: a debug build on a busy machine keeps none, and here it is about what arrives.
fn run<T: Traffic>(tester: &mut Tester<Toy>, key: &TrialKey, streams: [Option<Stream>; 2], traffic: &mut T) -> Sent {
    tester.run(key, streams, traffic).unwrap()
}

#[test]
fn a_device_that_answers_arp_is_met_and_one_that_is_silent_is_named() {
    let mut tester = Tester::new(Toy::new(Mischief::default()), ENDS);
    tester.meet().unwrap();
    assert_eq!(tester.stations.map(|stations| stations.device), [MacAddress(DEVICE_MAC); 2]);
}

#[test]
fn one_forged_one_missing_and_one_swapped_frame_in_a_million_are_found() {
    const FRAMES: u64 = 1_000_000;
    let space = space();
    let mut tester = Tester::new(Toy::new(Mischief::default()), ENDS);
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
    run(&mut tester, &key, [None, Some(one_way(FRAMES))], &mut validate);
    assert_eq!(validate.arrived, FRAMES - 3);
    assert_eq!(validate.faults.swapped, 1);
    assert_eq!(validate.faults.sum(), 1);
}

#[test]
fn frames_of_an_earlier_trial_do_not_count() {
    let space = space();
    let mut tester = Tester::new(Toy::new(Mischief { delay_ticks: 1 << 60, ..Mischief::default() }), ENDS);
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
fn a_known_delay_is_reported_as_it_is() {
    let space = space();
    let mut tester = Tester::new(Toy::new(Mischief::default()), ENDS);
    let mut establish = Establish::new(&space, 1000);
    run(&mut tester, &TrialKey::new(1, 1), [Some(one_way(1000)), None], &mut establish);
    let delay = (tester.ticks_a_second() * 0.02) as u64;
    tester.io.mischief.delay_ticks = delay;
    let mut steady = Steady::new(&space, &establish.table, [500, 500], Some(500), 3);
    let slow = Stream { frames: 500, rate: f64::INFINITY, sizes: FrameSizes::Fixed(128) };
    run(&mut tester, &TrialKey::new(1, 2), [Some(slow), Some(slow)], &mut steady);
    assert_eq!(steady.arrived, [500, 500]);
    for way in Way::BOTH {
        let delays = steady.delays(way);
        assert_eq!(delays.len(), 500);
        assert!(delays.iter().all(|taken| *taken >= delay), "no frame can be faster than the device");
    }
}

#[test]
fn a_tester_that_can_not_keep_the_rate_has_no_result() {
    let space = space();
    let mut tester = Tester::new(Toy::new(Mischief::default()), ENDS);
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
    let mut tester = Tester::new(Toy::new(Mischief::default()), ENDS);
    let stop = Arc::new(AtomicBool::new(true));
    tester.stop_on(Arc::clone(&stop));
    let mut establish = Establish::new(&space, 1000);
    let ended = tester.run(&TrialKey::new(1, 1), [Some(one_way(1000)), None], &mut establish);
    assert_eq!(ended, Err(TesterError::Interrupted));
}
