//! DPDK on hugepages, reserved for the test.

#![cfg(feature = "dpdk")]
#![allow(clippy::expect_used, reason = "helpers of a test")]

mod support;

use std::fs;

use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::Hugepages;
use packet_io::dpdk::start;

const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// 64 MiB, the least DPDK is started with.
const PAGES: u64 = 32;

fn number(file: &str) -> u64 {
    fs::read_to_string(file).expect("the kernel has pages of 2 MiB").trim().parse().expect("a number")
}

/// Additional hugepages, given back at the end. What is free already may be wanted by others.
struct Reservation {
    pages: u64,
}

impl Reservation {
    fn new(pages: u64) -> Reservation {
        fs::write(RESERVED, (number(RESERVED) + pages).to_string()).expect("reserving hugepages needs root");
        Reservation { pages }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let left = number(RESERVED).saturating_sub(self.pages);
        fs::write(RESERVED, left.to_string()).expect("reserving hugepages needs root");
    }
}

#[test]
fn buffers_are_on_hugepages_when_they_are_required() {
    let _reservation = Reservation::new(PAGES + 8);
    let free = number(FREE);
    let mut settings = support::settings(vec![support::port("net_null0")], 1);
    settings.hugepages = Hugepages::Required;
    settings.memory_bytes = 64 << 20;

    let mut ios = start(&settings).expect("there are enough hugepages");
    assert!(number(FREE) < free, "DPDK took some");
    assert_eq!(ios[0].notices(), []);
    let mut burst = Burst::new();
    ios[0].receive(PortIndex(0), &mut burst);
    assert!(burst.is_full());
    ios[0].transmit(PortIndex(0), &mut burst);
    assert!(burst.is_empty());
}
