use core::time::Duration;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use nat::Verdict;

use super::Fleet;
use super::Idle;
use super::ThreadOptions;
use crate::clock::Clock;
use crate::worker::tests::Bed;
use crate::worker::tests::OUTSIDE;
use crate::worker::tests::SERVER;
use crate::worker::tests::subscriber;

/// Waits until `done`, for a time no machine should need.
fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happened");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn workers_on_threads_forward_and_drain_when_told_to_stop() {
    for idle in [Idle::Sleep, Idle::Poll] {
        let clock = Clock::start();
        let Bed { ports, workers, .. } = Bed::new(2);
        let (quarantine, _receiver) = sync_channel(1);
        let options = ThreadOptions { clock, idle, quarantine };
        let fleet = Fleet::start(workers, &[], &options, || {}).expect("threads start");
        let bed = Bed::<packet_io::MemoryIo> { ports, workers: Vec::new(), now: clock.now() };
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
        // A packet whose neighbour never answers is given up, and accounted for, at the end.
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
