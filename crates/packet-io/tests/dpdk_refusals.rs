//! Settings that cannot work are refused with a reason and a remedy.

#![cfg(feature = "dpdk")]

mod support;

use packet_io::dpdk::start;

#[test]
fn settings_that_cannot_work_are_refused_with_the_remedy() {
    let mut port = support::port("net_af_xdp0,iface=any");
    port.mtu = 9_000;
    let error = start(&support::settings(vec![port], 1)).err().expect("refused").to_string();
    let expected = "port net_af_xdp0,iface=any: AF_XDP takes buffers of 3840 bytes at most (9154); lower the mtu of all \
                    ports, or use another driver";
    assert_eq!(error, expected);

    let mut port = support::port("net_af_packet0,iface=any,framesz=65536,blocksz=65536,framecnt=16");
    port.mtu = 1_500;
    let error = start(&support::settings(vec![port], 1)).err().expect("refused").to_string();
    assert_eq!(error, "packet buffers: 65664 bytes each are too many (most: 65535); lower the mtu or framesz");

    let mut settings = support::settings(vec![support::port("net_ring0"), support::port("net_ring1")], 1);
    settings.buffers = 511;
    let error = start(&settings).err().expect("refused").to_string();
    let expected = "packet buffers: 511 are too few for the receive queues (needed: 512); raise dpdk.buffers";
    assert_eq!(error, expected);
}
