//! Two ports joined as by a wire: the far end of the tester's loopback where one process cannot
//! have both ends.
//!
//! Where a port takes no more for now, its frames wait, and nothing further is taken from the
//! other: the sender is slowed down, nothing is lost.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;

use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;

/// Passes on what comes, either way, until it is over.
pub fn join<I: Io>(io: &mut I, ports: [PortIndex; 2], is_over: &AtomicBool) {
    let mut waiting = [Burst::new(), Burst::new()];
    while !is_over.load(Ordering::Relaxed) {
        let mut is_idle = true;
        for (from, burst) in waiting.iter_mut().enumerate() {
            if burst.is_empty() {
                io.receive(ports[from], burst);
            }
            if !burst.is_empty() {
                is_idle = false;
                io.transmit(ports[1 - from], burst);
            }
        }
        if is_idle {
            // The CPU may be the tester's, too.
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::time::Instant;

    use packet_io::Buffer as _;
    use packet_io::memory::MemoryBed;
    use packet_io::memory::MemorySettings;

    use super::*;

    #[test]
    fn frames_pass_both_ways_in_order_and_wait_for_a_full_port() {
        // A port holds four frames, far fewer than are sent.
        let bed = MemoryBed::new(&MemorySettings { queue_frames: 4, ..MemorySettings::default() });
        let mut io = bed.io(0);
        let ports = [PortIndex(0), PortIndex(1)];
        let is_over = AtomicBool::new(false);
        let frame = |port: usize, number: u32| [&[port as u8; 60][..], &number.to_be_bytes()[..]].concat();
        std::thread::scope(|scope| {
            scope.spawn(|| join(&mut io, ports, &is_over));
            let deadline = Instant::now() + Duration::from_secs(60);
            let (mut sent, mut arrived, mut turns) = ([0_u32; 2], [0_u32; 2], 0_u64);
            while arrived != [1000; 2] && Instant::now() < deadline {
                turns += 1;
                for from in 0..2 {
                    if sent[from] < 1000 && bed.push(0, ports[from], &frame(from, sent[from])) {
                        sent[from] += 1;
                    }
                }
                // The second port is emptied rarely.
                for (to, every) in [(0, 1), (1, 8)] {
                    if turns.is_multiple_of(every) {
                        while let Some((_, buffer)) = bed.pull(ports[to]) {
                            assert_eq!(buffer.bytes(), frame(1 - to, arrived[to]));
                            arrived[to] += 1;
                        }
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(arrived, [1000; 2]);
        });
    }
}
