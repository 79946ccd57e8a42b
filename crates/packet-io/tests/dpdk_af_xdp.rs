//! DPDK over AF_XDP sockets, on a virtual Ethernet pair with one queue.

#![cfg(feature = "dpdk")]

mod support;

use std::thread;
use std::time::Duration;

use packet_io::Io;
use packet_io::PortIndex;
use packet_io::dpdk::DpdkNotice;
use packet_io::dpdk::start;
use support::Wire;
use support::XdpQueue;

const PORT: PortIndex = PortIndex(0);

#[test]
fn frames_cross_xdp_sockets_unchanged() {
    support::own_network();
    support::veth("ours", "theirs", 1);
    // A second one with two queues, of which DPDK's driver takes one: a virtual pair does not
    // report its queues to it.
    support::veth("wide", "other", 2);
    let devices = ["net_af_xdp0,iface=ours", "net_af_xdp1,iface=wide"];
    let settings = support::settings(devices.map(support::port).to_vec(), 2);
    // The kernel takes a queue from a process that has ended only a while later.
    let held = XdpQueue::hold("wide");
    let ends = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(held);
    });
    let mut ios = start(&settings).expect("it waits for the queue that another socket had");
    ends.join().expect("the other socket is closed");
    assert_eq!(ios.iter().filter(|io| io.can_receive(PORT)).count(), 1, "one queue serves one of two workers");
    let few = |device: &str| DpdkNotice::FewQueues { device: device.to_owned(), queues: 1, workers: 2 };
    let unserved = DpdkNotice::QueuesUnserved { device: devices[1].to_owned(), queues: 2, served: 1 };
    assert_eq!(ios[0].notices(), [few(devices[0]), few(devices[1]), unserved]);

    support::exchange(&mut ios, PORT, &Wire::open("theirs"), &[60, 61, 128, 1514]);
}
