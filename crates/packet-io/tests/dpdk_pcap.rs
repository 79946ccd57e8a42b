//! DPDK's capture device: frames of one capture in, frames sent into another.

#![cfg(feature = "dpdk")]

mod support;

use std::env;
use std::fs;
use std::process;

use packet_io::PortIndex;
use packet_io::capture::CaptureReader;
use packet_io::capture::CaptureWriter;
use packet_io::dpdk::start;

const PORT: PortIndex = PortIndex(0);

#[test]
fn a_capture_comes_in_and_goes_out() {
    let folder = env::temp_dir().join(format!("natrix-pcap-{}", process::id()));
    fs::create_dir_all(&folder).expect("a writable folder for temporary files");
    let (input, output) = (folder.join("in.pcap"), folder.join("out.pcap"));
    let frames: Vec<_> = (0..100).map(|number| support::frame(number, 60 + number as usize * 14)).collect();
    let mut writer = CaptureWriter::create(&input).expect("writable");
    for frame in &frames {
        writer.write(0, frame).expect("writable");
    }
    writer.finish().expect("writable");

    let device = format!("net_pcap0,rx_pcap={},tx_pcap={}", input.display(), output.display());
    let settings = support::settings(vec![support::port(&device)], 1);
    let mut ios = start(&settings).expect("DPDK starts");
    let received = support::receive(&mut ios, PORT, frames.len());
    assert_eq!(received, frames);
    support::send(&mut ios[0], PORT, &received);
    // The file is written out when the port is closed.
    drop(ios);

    let mut reader = CaptureReader::open(&output).expect("just written");
    let mut written = Vec::new();
    while let Some(record) = reader.next_record().expect("just written") {
        written.push(record.bytes.to_vec());
    }
    assert_eq!(written, frames);
    fs::remove_dir_all(&folder).expect("it is there");
}
