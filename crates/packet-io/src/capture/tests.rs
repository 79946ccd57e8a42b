use std::io::Cursor;

use proptest::prelude::*;

use super::CaptureError;
use super::CaptureReader;
use super::CaptureWriter;
use super::FRAME_BYTES_MAX;

/// A frame with its time, as a test sees it.
type Frame = (u64, Vec<u8>, u32);

fn read_all(bytes: &[u8]) -> Result<Vec<Frame>, CaptureError> {
    let mut reader = CaptureReader::new("test", Cursor::new(bytes))?;
    let mut frames = Vec::new();
    while let Some(record) = reader.next_record()? {
        frames.push((record.time_ns, record.bytes.to_vec(), record.original_len));
    }
    Ok(frames)
}

fn message(bytes: &[u8]) -> String {
    read_all(bytes).expect_err("the capture is bad").to_string()
}

/// Fields written in one byte order.
struct Build {
    big: bool,
    bytes: Vec<u8>,
}

impl Build {
    fn new(big: bool) -> Build {
        Build { big, bytes: Vec::new() }
    }

    fn u16(mut self, value: u16) -> Build {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn u32(mut self, value: u32) -> Build {
        self.bytes.extend(if self.big { value.to_be_bytes() } else { value.to_le_bytes() });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Build {
        self.bytes.extend(bytes);
        self
    }

    /// A pcapng block around `body`.
    fn block(self, kind: u32, body: Build) -> Build {
        let mut body = body.bytes;
        body.resize(body.len().next_multiple_of(4), 0);
        let length = body.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&body).u32(length)
    }

    fn pcap_header(self, magic: u32, link_type: u32) -> Build {
        self.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65_535).u32(link_type)
    }

    fn pcap_frame(self, seconds: u32, fraction: u32, frame: &[u8]) -> Build {
        self.u32(seconds).u32(fraction).u32(frame.len() as u32).u32(frame.len() as u32 + 5).raw(frame)
    }

    fn section(self) -> Build {
        let body = Build::new(self.big).u32(0x1a2b_3c4d).u16(1).u16(0).u32(u32::MAX).u32(u32::MAX);
        self.block(0x0a0d_0d0a, body)
    }

    /// An interface whose clock counts 10^-`resolution` s and starts `offset` s after 1970.
    fn interface(self, link_type: u16, resolution: u8, offset: u64) -> Build {
        let big = self.big;
        let offset = if big { offset.to_be_bytes() } else { offset.to_le_bytes() };
        let options = |body: Build| body.u16(9).u16(1).raw(&[resolution, 0, 0, 0]).u16(14).u16(8).raw(&offset).u32(0);
        let body = options(Build::new(big).u16(link_type).u16(0).u32(0));
        self.block(1, body)
    }

    fn enhanced(self, interface: u32, units: u64, frame: &[u8]) -> Build {
        let big = self.big;
        let body = Build::new(big).u32(interface).u32((units >> 32) as u32).u32(units as u32);
        let body = body.u32(frame.len() as u32).u32(frame.len() as u32).raw(frame);
        self.block(6, body)
    }
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_resolutions() {
    for big in [false, true] {
        for (magic, ns_per_fraction) in [(0xa1b2_c3d4, 1_000), (0xa1b2_3c4d, 1)] {
            let file = Build::new(big).pcap_header(magic, 1).pcap_frame(7, 42, b"frame").pcap_frame(8, 0, b"");
            let frames = read_all(&file.bytes).expect("a good capture");
            let expected = [(7_000_000_000 + 42 * ns_per_fraction, b"frame".to_vec(), 10), (8_000_000_000, vec![], 5)];
            assert_eq!(frames, expected, "big {big}, magic {magic:x}");
        }
    }
}

#[test]
fn pcapng_is_read_with_the_clock_of_each_interface() {
    for big in [false, true] {
        let file = Build::new(big).section().interface(1, 6, 0).interface(1, 9, 3);
        let file = file.block(0x0bad, Build::new(big).raw(b"a block nobody knows"));
        let file = file.enhanced(0, 5_000_001, b"micros").enhanced(1, 7_000_000_001, b"nanos");
        // A simple packet has no time of its own.
        let file = file.block(3, Build::new(big).u32(6).raw(b"simple"));
        // Another section, in the other byte order, starts its interfaces anew.
        let next = Build::new(!big).section().interface(1, 0x80 | 1, 0).enhanced(0, 9, b"halves");
        let file = file.raw(&next.bytes);
        let frames: Vec<_> =
            read_all(&file.bytes).expect("a good capture").into_iter().map(|(time, bytes, _)| (time, bytes)).collect();
        let expected = [
            (5_000_001_000, b"micros".to_vec()),
            (10_000_000_001, b"nanos".to_vec()),
            (10_000_000_001, b"simple".to_vec()),
            (4_500_000_000, b"halves".to_vec()),
        ];
        assert_eq!(frames, expected, "big {big}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let mut writer = CaptureWriter::new("test", Vec::new()).expect("memory");
    writer.write(1_700_000_000_123_456_789, b"first").expect("memory");
    writer.write(1_700_000_001_000_000_000, &[0xaa; 9000]).expect("memory");
    let bytes = writer.finish().expect("memory");
    let expected =
        [(1_700_000_000_123_456_789, b"first".to_vec(), 5), (1_700_000_001_000_000_000, vec![0xaa; 9000], 9000)];
    assert_eq!(read_all(&bytes).expect("a good capture"), expected);
}

#[test]
fn a_frame_too_long_for_a_capture_is_cut() {
    let mut writer = CaptureWriter::new("test", Vec::new()).expect("memory");
    writer.write(0, &vec![1; FRAME_BYTES_MAX + 1]).expect("memory");
    let frames = read_all(&writer.finish().expect("memory")).expect("a good capture");
    assert_eq!((frames[0].1.len(), frames[0].2 as usize), (FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1));
}

#[test]
fn each_fault_is_named_with_its_place() {
    let pcap = || Build::new(false).pcap_header(0xa1b2_c3d4, 1);
    let section = || Build::new(false).section();
    let cases = [
        (vec![], "capture test: is empty (0 bytes); a capture without frames still has a file header"),
        (
            b"GIF89a".to_vec(),
            "capture test: is neither pcap nor pcapng (starts with 47494638); convert it with editcap -F pcap",
        ),
        (
            vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0],
            "capture test: ends in the middle of the file header (at byte 6); keep the whole frames with editcap",
        ),
        (
            Build::new(false).pcap_header(0xa1b2_c3d4, 113).bytes,
            "capture test: frames are not Ethernet (link type 113); capture on an Ethernet interface",
        ),
        (
            Build::new(true).u32(0xa1b2_c3d4).raw(&[0; 20]).bytes,
            "capture test: version is impossible (0, before byte 24); the file is damaged",
        ),
        (
            pcap().raw(&[0; 7]).bytes,
            "capture test: ends in the middle of a header (at byte 31); keep the whole frames with editcap",
        ),
        (
            pcap().u32(0).u32(0).u32(60).u32(60).raw(&[0; 59]).bytes,
            "capture test: ends in the middle of a frame (at byte 99); keep the whole frames with editcap",
        ),
        (
            pcap().u32(0).u32(0).u32(u32::MAX).u32(60).bytes,
            "capture test: length of a frame is impossible (4294967295, before byte 40); the file is damaged",
        ),
        (
            section().u32(6).u32(13).bytes,
            "capture test: length of a block is impossible (13, before byte 36); the file is damaged",
        ),
        (
            section().u32(6).u32(0x7fff_fffc).bytes,
            "capture test: length of a block is impossible (2147483644, before byte 36); the file is damaged",
        ),
        (
            section().u32(99).u32(16).u32(0).u32(20).bytes,
            "capture test: length at the end of a block is impossible (20, before byte 44); the file is damaged",
        ),
        (
            section().enhanced(0, 0, b"").bytes,
            "capture test: interface of a packet is impossible (0, before byte 60); the file is damaged",
        ),
        (
            section().interface(101, 6, 0).enhanced(0, 0, b"").bytes,
            "capture test: frames are not Ethernet (link type 101); capture on an Ethernet interface",
        ),
        (
            section().interface(1, 20, 0).bytes,
            "capture test: time resolution of an interface is impossible (20, before byte 72); the file is damaged",
        ),
        (
            section().interface(1, 6, 0).block(3, Build::new(false).u32(100).raw(b"short")).bytes,
            "capture test: length of a frame is impossible (100, before byte 96); the file is damaged",
        ),
        (
            vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 1, 2, 3, 4],
            "capture test: byte order of a section is impossible (67305985, before byte 12); the file is damaged",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(message(&bytes), expected);
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = CaptureReader::open("no/such.pcap".as_ref()).err().expect("there is none").to_string();
    assert!(error.starts_with("capture no/such.pcap: cannot be opened ("), "{error}");
}

/// Files that are good but for some bytes.
fn nearly_good() -> impl Strategy<Value = Vec<u8>> {
    let good = any::<(bool, bool)>().prop_map(|(ng, big)| {
        let build = Build::new(big);
        if ng {
            let build = build.section().interface(1, 6, 0).enhanced(0, 1, &[1; 60]);
            build.block(3, Build::new(big).u32(4).raw(b"abcd")).block(2, Build::new(big).raw(&[0; 40])).bytes
        } else {
            build.pcap_header(0xa1b2_c3d4, 1).pcap_frame(1, 1, &[1; 60]).pcap_frame(2, 2, &[2; 90]).bytes
        }
    });
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (good, changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(|(mut bytes, changes, end, cut)| {
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read_all(&bytes);
    }

    #[test]
    fn no_damage_makes_the_reader_panic_or_invent_bytes(bytes in nearly_good()) {
        if let Ok(frames) = read_all(&bytes) {
            let total: usize = frames.iter().map(|(_, frame, _)| frame.len()).sum();
            prop_assert!(total <= bytes.len());
        }
    }
}
