//! DPDK with a tap device of the kernel: what Natrix sends, the kernel receives on it.

#![cfg(feature = "dpdk")]

mod support;

use std::fs;

use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::start;
use support::Wire;

const PORT: PortIndex = PortIndex(0);
/// IFF_ALLMULTI.
const ALL_MULTICAST: u32 = 0x200;

#[test]
fn frames_cross_a_tap_device_unchanged() {
    support::own_network();
    let settings = support::settings(vec![support::port("net_tap0,iface=natrix-tap")], 2);
    let mut ios = start(&settings).expect("DPDK starts");
    assert!(ios.iter().all(|io| io.can_receive(PORT) && io.can_transmit(PORT)), "a tap has queues for all workers");
    support::silence("natrix-tap");
    let flags = || {
        let text = fs::read_to_string("/sys/class/net/natrix-tap/flags").expect("flags of the interface");
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).expect("a number")
    };
    assert_eq!(flags() & ALL_MULTICAST, 0, "a port starts without");
    ios[0].receive_groups(PORT).expect("the driver can");
    assert_ne!(flags() & ALL_MULTICAST, 0);

    support::exchange(&mut ios, PORT, &Wire::open("natrix-tap"), &[60, 61, 128, 1514]);
}
