//! DPDK's null device: endless frames in, everything swallowed. Memory comes from hugepages where
//! there are any.

#![cfg(feature = "dpdk")]

mod support;

use std::thread;

use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::Hugepages;
use packet_io::dpdk::register_thread;
use packet_io::dpdk::start;

#[test]
fn workers_forward_on_threads_of_their_own_and_lose_no_buffer() {
    const WORKERS: usize = 2;
    const BURSTS: usize = 5_000;
    let ports = ["net_null0,size=64", "net_null1,size=128"].map(support::port).to_vec();
    let mut settings = support::settings(ports, WORKERS);
    settings.hugepages = Hugepages::Auto;
    let ios = start(&settings).expect("DPDK starts");
    assert_eq!(ios.len(), WORKERS);
    assert!(ios.iter().all(|io| (0..2).all(|port| io.can_receive(PortIndex(port)))));

    let worker = |mut io: packet_io::dpdk::DpdkIo| {
        register_thread();
        let mut burst = Burst::new();
        for _ in 0..BURSTS {
            io.receive(PortIndex(0), &mut burst);
            assert_eq!(burst.len(), 64);
            io.transmit(PortIndex(1), &mut burst);
            burst.clear();
        }
        io
    };
    let mut ios: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = ios.into_iter().map(|io| scope.spawn(move || worker(io))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the worker ends well")).collect()
    });

    let total = (WORKERS * BURSTS * 64) as u64;
    assert_eq!(ios[0].statistics(PortIndex(0)).received_packets, total);
    assert_eq!(ios[0].statistics(PortIndex(1)).sent_packets, total);
    let mut held = Vec::new();
    while let Some(buffer) = ios[0].allocate() {
        held.push(buffer);
    }
    // Ended threads leave their caches to the pool.
    assert_eq!(held.len(), settings.buffers as usize);
}
