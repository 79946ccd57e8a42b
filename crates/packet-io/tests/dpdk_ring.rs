//! DPDK ports without hardware, privileges or hugepages: a `net_ring` device gives back what it is
//! sent.

#![cfg(feature = "dpdk")]

use packet_io::Buffer;
use packet_io::Burst;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::TransportChecksum;
use packet_io::dpdk::DpdkPort;
use packet_io::dpdk::DpdkSettings;
use packet_io::dpdk::Hugepages;
use packet_io::dpdk::register_thread;
use packet_io::dpdk::start;

const PORT: PortIndex = PortIndex(0);
const BUFFERS: usize = 2_047;

// One test, for DPDK starts once per process.
#[test]
fn frames_come_back_as_sent_and_no_buffer_is_lost() {
    let port = DpdkPort {
        device: "net_ring0".to_owned(),
        is_pci: false,
        mtu: 1_500,
        rx_descriptors: 256,
        tx_descriptors: 256,
    };
    let settings = DpdkSettings {
        ports: vec![port],
        workers: 1,
        hugepages: Hugepages::Off,
        memory_bytes: 64 << 20,
        buffers: BUFFERS as u32,
    };
    let mut ios = start(&settings).expect("DPDK starts");
    let mut io = ios.pop().expect("one worker");
    register_thread();
    assert!(io.can_receive(PORT) && io.can_transmit(PORT) && !io.can_receive(PortIndex(1)));

    let mut burst = Burst::new();
    // Far more frames than there are buffers: each must come back to the pool.
    for round in 0..200_u16 {
        for number in 0..32_u16 {
            let mut buffer = io.allocate().expect("a free buffer");
            assert!(buffer.fill(&[b"head ", &round.to_be_bytes(), &number.to_be_bytes(), b" tail"]));
            assert_eq!(buffer.len(), 14);
            let (frame, start) = buffer.frame_mut();
            assert_eq!(frame[usize::from(start)..].first(), Some(&b'h'));
            let frame = buffer.set_frame(start + 3, 8).expect("inside the buffer");
            frame[..2].copy_from_slice(b"> ");
            burst.push(buffer).ok().expect("room in the burst");
        }
        io.transmit(PORT, &mut burst);
        assert!(burst.is_empty());
        io.receive(PORT, &mut burst);
        assert_eq!(burst.len(), 32);
        for (number, buffer) in burst.iter().enumerate() {
            let mut expected = b"> ".to_vec();
            expected.extend(round.to_be_bytes());
            expected.extend((number as u16).to_be_bytes());
            expected.extend(b" t");
            assert_eq!(buffer.bytes(), expected);
            assert_eq!(buffer.transport_checksum(), TransportChecksum::Unknown);
        }
        burst.clear();
    }
    let statistics = io.statistics(PORT);
    assert_eq!((statistics.sent_packets, statistics.received_packets), (6_400, 6_400));

    let mut buffer = io.allocate().expect("a free buffer");
    assert!(!buffer.fill(&[&[0; 4_000]]), "longer than the buffer");
    assert!(buffer.set_frame(0, 4_000).is_none(), "longer than the buffer");
    drop(buffer);
    let all: Vec<_> = core::iter::from_fn(|| io.allocate()).collect();
    assert_eq!(all.len(), BUFFERS);
}
