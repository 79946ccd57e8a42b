//! DPDK over packet sockets of the kernel, on a virtual Ethernet pair with two queues.

#![cfg(feature = "dpdk")]

mod support;

use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::start;
use support::Wire;

const PORT: PortIndex = PortIndex(0);

#[test]
fn frames_cross_packet_sockets_unchanged() {
    support::own_network();
    support::veth("ours", "theirs", 2);
    support::run("ip link set ours mtu 9000");
    support::run("ip link set theirs mtu 9000");
    let mut port = support::port("net_af_packet0,iface=ours");
    port.mtu = 9_000;
    let settings = support::settings(vec![port], 2);
    let mut ios = start(&settings).expect("DPDK starts");
    assert!(ios.iter().all(|io| io.can_receive(PORT) && io.can_transmit(PORT)), "two queues, two workers");
    assert!(ios[0].link_up(PORT));
    assert_ne!(ios[0].mac(PORT), [0; 6]);

    support::exchange(&mut ios, PORT, &Wire::open("theirs"), &[60, 61, 128, 1514, 9014]);
    let statistics = ios[0].statistics(PORT);
    assert_eq!((statistics.received_packets, statistics.sent_packets), (5, 5));
}
