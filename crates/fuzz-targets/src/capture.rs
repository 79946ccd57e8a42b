//! Claims about capture files.

use packet_io::capture::CaptureReader;
use packet_io::capture::CaptureWriter;

/// The frames of any capture are no longer than the file, and the same after they are written.
pub fn read(bytes: &[u8]) {
    let frames = frames_of(bytes);
    let total: usize = frames.iter().map(|(_, frame)| frame.len()).sum();
    assert!(total <= bytes.len());

    let Ok(mut writer) = CaptureWriter::new("memory", Vec::new()) else { return };
    for (time_ns, frame) in &frames {
        assert!(writer.write(*time_ns, frame).is_ok());
    }
    let Ok(written) = writer.finish() else { return };
    let again = frames_of(&written);
    assert_eq!(again.len(), frames.len());
    for ((time_ns, frame), (time_again, frame_again)) in frames.iter().zip(&again) {
        assert_eq!(frame, frame_again);
        // The classic format has 32 bits for seconds.
        if *time_ns >> 32 < 1_000_000_000 {
            assert_eq!(time_ns, time_again);
        }
    }
}

/// The frames before the end or the first fault.
fn frames_of(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut frames = Vec::new();
    let Ok(mut reader) = CaptureReader::new("bytes", bytes) else { return frames };
    while let Ok(Some(record)) = reader.next_record() {
        frames.push((record.time_ns, record.bytes.to_vec()));
    }
    frames
}
