use core::time::Duration;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use nat::Verdict;
use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::MemoryBuffer;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::memory::MemorySettings;

use super::DOZE;
use super::Fleet;
use super::Idle;
use super::NAP;
use super::SLEEP;
use super::ThreadOptions;
use super::length_of_sleep;
use crate::clock::Clock;
use crate::worker::tests::Bed;
use crate::worker::tests::INSIDE;
use crate::worker::tests::OUTSIDE;
use crate::worker::tests::SERVER;
use crate::worker::tests::subscriber;

/// Waits until `done`, for longer than any machine needs.
fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn workers_on_threads_forward_and_drain_when_stopped() {
    for idle in [Idle::Sleep, Idle::Poll] {
        let clock = Clock::start();
        let Bed { ports, workers, .. } = Bed::new(2);
        let (quarantine, _receiver) = sync_channel(1);
        let options = ThreadOptions { clock, idle, quarantine };
        let fleet = Fleet::start(workers, &[], &options, || {}).expect("threads start");
        let bed = Bed::<MemoryIo> { ports, workers: Vec::new(), now: clock.now() };
        let mut out = 0;
        for host in 2..22 {
            bed.push_udp(usize::from(host) % 2, subscriber(host), SERVER, b"x");
            wait_until(|| {
                let sent = bed.sent(OUTSIDE);
                bed.answer_arp(0, OUTSIDE, &sent);
                out += sent.iter().filter(|frame| frame.udp().is_some()).count();
                out == usize::from(host) - 1
            });
        }
        // A packet whose neighbour never answers is dropped and counted at the end.
        let nobody = core::net::SocketAddrV4::new(core::net::Ipv4Addr::new(198, 51, 100, 99), 9);
        bed.push_udp(0, subscriber(2), nobody, b"x");
        wait_until(|| bed.ports.waiting() == 0);
        let last = fleet.stop();
        let sum = |of: &dyn Fn(&nat::Counters) -> u64| last.iter().map(|one| of(&one.counters)).sum::<u64>();
        assert_eq!(sum(&|counters| counters.received), sum(&nat::Counters::verdicts_total));
        assert_eq!(sum(&|counters| counters.of(Verdict::Outbound)), 20);
        assert_eq!(sum(&|counters| counters.of(Verdict::NeighbourUnresolved)), 1);
        assert_eq!(sum(&|counters| counters.neighbour_pending), 0);
    }
}

/// Ports that fail at a frame of a certain length.
struct Failing(MemoryIo);

/// Length of the frame that makes [`Failing`] panic.
const POISON: usize = 666;

impl Io for Failing {
    type Buffer = MemoryBuffer;

    fn port_count(&self) -> usize {
        self.0.port_count()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        self.0.receive(port, burst);
        assert!(burst.iter().all(|frame| frame.bytes().len() != POISON), "a poisonous frame");
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<MemoryBuffer>) {
        self.0.transmit(port, burst);
    }

    fn allocate(&mut self) -> Option<MemoryBuffer> {
        self.0.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.0.mac(port)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.0.can_receive(port)
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.0.can_transmit(port)
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.0.link_up(port)
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.0.statistics(port)
    }
}

#[test]
fn a_poll_that_panics_is_reported_and_the_worker_continues() {
    let clock = Clock::start();
    let Bed { ports, workers, .. } = Bed::with_io(1, &MemorySettings::default(), |_, io| Failing(io));
    let (quarantine, failures) = sync_channel(8);
    let options = ThreadOptions { clock, idle: Idle::Sleep, quarantine };
    let fleet = Fleet::start(workers, &[], &options, || {}).expect("threads start");
    let bed = Bed::<MemoryIo> { ports, workers: Vec::new(), now: clock.now() };
    for round in 1..=3 {
        bed.push(0, INSIDE, &[0; POISON]);
        wait_until(|| fleet.panics() == round);
        bed.push_udp(0, subscriber(2), SERVER, b"life goes on");
        wait_until(|| {
            let sent = bed.sent(OUTSIDE);
            bed.answer_arp(0, OUTSIDE, &sent);
            sent.iter().any(|frame| frame.udp().is_some())
        });
    }
    assert_eq!(failures.try_iter().count(), 3);
    let last = fleet.stop();
    assert_eq!(last[0].counters.of(Verdict::Outbound), 3);
    assert_eq!(last[0].counters.received, last[0].counters.verdicts_total());
    let _ = (bed.sent(INSIDE), bed.sent(OUTSIDE));
    assert_eq!(bed.ports.free_buffers(), MemorySettings::default().buffers, "no buffer is lost");
}

#[test]
fn a_worker_sleeps_longer_the_longer_nothing_happens() {
    let long_ago = u64::MAX;
    assert_eq!([500, 9_999].map(|idle_us| length_of_sleep(idle_us, long_ago)), [NAP; 2]);
    assert_eq!([10_000, 999_999].map(|idle_us| length_of_sleep(idle_us, long_ago)), [SLEEP; 2]);
    assert_eq!([1_000_000, long_ago].map(|idle_us| length_of_sleep(idle_us, long_ago)), [DOZE; 2]);
    // The next page of a list is asked for soon.
    assert_eq!([0, 19_999, 20_000].map(|unasked_us| length_of_sleep(long_ago, unasked_us)), [SLEEP, SLEEP, DOZE]);
}
