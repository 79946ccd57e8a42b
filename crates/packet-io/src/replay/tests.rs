use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;
use std::process;

use super::Replay;
use super::ReplayPort;
use crate::burst::Burst;
use crate::capture::CaptureReader;
use crate::capture::CaptureWriter;
use crate::io::Buffer;
use crate::io::Io;
use crate::io::PortIndex;

const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);

/// A folder for one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = env::temp_dir().join(format!("natrix-replay-{}-{test}", process::id()));
        fs::create_dir_all(&path).expect("a writable folder for temporary files");
        Folder(path)
    }

    fn capture(&self, name: &str, frames: &[(u64, &[u8])]) -> PathBuf {
        let path = self.0.join(name);
        let mut writer = CaptureWriter::create(&path).expect("writable");
        for (time_ns, frame) in frames {
            writer.write(*time_ns, frame).expect("writable");
        }
        writer.finish().expect("writable");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn input(path: &Path) -> ReplayPort {
    ReplayPort { input: Some(CaptureReader::open(path).expect("readable")), ..ReplayPort::default() }
}

fn received(replay: &mut Replay, port: PortIndex) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    replay.receive(port, &mut burst);
    burst.iter().map(|buffer| buffer.bytes().to_vec()).collect()
}

#[test]
fn frames_of_both_ports_arrive_merged_by_time() {
    let folder = Folder::new("merged");
    let inside = folder.capture("inside.pcap", &[(1_000_000, b"a"), (3_000_000, b"c"), (3_000_000, b"d")]);
    let outside = folder.capture("outside.pcap", &[(2_500_000, b"b"), (3_000_000, b"e")]);
    let mut replay = Replay::new(vec![input(&inside), input(&outside)]).expect("good captures");

    let mut seen = Vec::new();
    while replay.step().expect("good captures") {
        for port in [INSIDE, OUTSIDE] {
            for frame in received(&mut replay, port) {
                seen.push((replay.elapsed_us(), port.0, frame[0]));
            }
        }
    }
    assert_eq!(seen, [(0, 0, b'a'), (1_500, 1, b'b'), (2_000, 0, b'c'), (2_000, 0, b'd'), (2_000, 1, b'e')]);
    assert_eq!(replay.statistics(INSIDE).received_packets, 3);
    replay.finish().expect("nothing to write");
}

#[test]
fn what_is_sent_is_captured_at_the_time_of_the_clock() {
    let folder = Folder::new("sent");
    let inside = folder.capture("inside.pcap", &[(5_000_000_001, b"hello")]);
    let path = folder.0.join("out.pcap");
    let output = ReplayPort { output: Some(CaptureWriter::create(&path).expect("writable")), ..ReplayPort::default() };
    let mut replay = Replay::new(vec![input(&inside), output]).expect("good captures");

    assert!(replay.step().expect("one frame"));
    let mut burst = Burst::new();
    replay.receive(INSIDE, &mut burst);
    replay.transmit(OUTSIDE, &mut burst);
    assert!(burst.is_empty());
    assert!(!replay.step().expect("the end"));
    replay.advance_to(6_000_000_000);
    let mut buffer = replay.allocate().expect("a buffer");
    assert!(buffer.fill(&[b"late"]));
    assert!(burst.push(buffer).is_ok());
    replay.transmit(OUTSIDE, &mut burst);
    replay.finish().expect("writable");

    let mut reader = CaptureReader::open(&path).expect("just written");
    let mut frames = Vec::new();
    while let Some(record) = reader.next_record().expect("just written") {
        frames.push((record.time_ns, record.bytes.to_vec()));
    }
    assert_eq!(frames, [(5_000_000_001, b"hello".to_vec()), (6_000_000_000, b"late".to_vec())]);
}

#[test]
fn the_clock_never_goes_back() {
    let folder = Folder::new("back");
    let inside = folder.capture("inside.pcap", &[(9_000, b"a"), (4_000, b"b"), (10_000, b"c")]);
    let mut replay = Replay::new(vec![input(&inside)]).expect("a good capture");
    let mut times = Vec::new();
    while replay.step().expect("a good capture") {
        times.extend(received(&mut replay, INSIDE).iter().map(|_| replay.now_ns()));
    }
    assert_eq!(times, [9_000, 9_000, 10_000]);
}

#[test]
fn more_frames_than_a_burst_at_one_time_all_arrive() {
    let folder = Folder::new("many");
    let inside = folder.capture("inside.pcap", &[(1, b"x"); 200].map(|(time, frame)| (time, &frame[..])));
    let mut replay = Replay::new(vec![input(&inside)]).expect("a good capture");
    let mut count = 0;
    while replay.step().expect("a good capture") {
        count += received(&mut replay, INSIDE).len();
    }
    assert_eq!((count, replay.elapsed_us()), (200, 0));
}

#[test]
fn damage_in_the_middle_is_reported_after_the_good_frames() {
    let folder = Folder::new("damage");
    let inside = folder.capture("inside.pcap", &[(1, b"good"), (2, b"cut off")]);
    let bytes = fs::read(&inside).expect("just written");
    fs::write(&inside, &bytes[..bytes.len() - 1]).expect("writable");
    let mut replay = Replay::new(vec![input(&inside)]).expect("the first frame is good");
    assert!(replay.step().expect("the first frame is good"));
    assert_eq!(received(&mut replay, INSIDE), [b"good"]);
    let error = replay.step().expect_err("the second is cut off").to_string();
    assert!(error.contains("ends in the middle of a frame"), "{error}");
    assert!(!replay.step().expect("nothing is left"));
}

#[test]
fn a_replay_of_nothing_ends_at_once() {
    let mut replay = Replay::new(vec![ReplayPort::default(), ReplayPort::default()]).expect("nothing to read");
    assert!(!replay.step().expect("nothing to read"));
    assert_eq!(replay.elapsed_us(), 0);
}
