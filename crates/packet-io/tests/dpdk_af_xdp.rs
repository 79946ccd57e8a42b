//! DPDK over AF_XDP sockets, on a virtual Ethernet pair with one queue.

#![cfg(feature = "dpdk")]

mod support;

use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::start;
use support::Wire;

const PORT: PortIndex = PortIndex(0);

#[test]
fn frames_cross_xdp_sockets_unchanged() {
    support::own_network();
    support::veth("ours", "theirs", 1);
    let settings = support::settings(vec![support::port("net_af_xdp0,iface=ours")], 2);
    let mut ios = start(&settings).expect("DPDK starts");
    assert_eq!(ios.iter().filter(|io| io.can_receive(PORT)).count(), 1, "one queue serves one of two workers");

    support::exchange(&mut ios, PORT, &Wire::open("theirs"), &[60, 61, 128, 1514]);
}
