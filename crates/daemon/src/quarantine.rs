//! Keeps bursts on which the engine failed in a capture of limited size, for its developers.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::SyncSender;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::thread::JoinHandle;

use export::FILE_MODE;
use nat::Duration;
use nat::Instant;

use crate::clock::Clock;
use crate::fleet::Quarantined;
use crate::log::Log;

/// Maximum size of the capture; later bursts are only counted.
const BYTES_MAX: u64 = 4 << 20;
/// Time between two log lines about failures.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Maximum failed bursts that wait to be written.
const WAITING_MAX: usize = 16;

/// The thread that writes the quarantine.
#[derive(Debug)]
pub struct Quarantine {
    sender: Option<SyncSender<Quarantined>>,
    thread: Option<JoinHandle<()>>,
}

impl Quarantine {
    /// Starts the thread. Creates or truncates the file at `path` only when there is a burst to
    /// write.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(path: PathBuf, clock: Clock, log: Log) -> io::Result<Quarantine> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let write = move || write_all(&path, clock, log, &receiver);
        let thread = thread::Builder::new().name("quarantine".to_owned()).spawn(write)?;
        Ok(Quarantine { sender: Some(sender), thread: Some(thread) })
    }

    /// The channel for failed bursts of the workers.
    pub fn sender(&self) -> Option<SyncSender<Quarantined>> {
        self.sender.clone()
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        // Without senders the thread writes the rest and ends.
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

/// Failures that are not logged yet: a sender that makes the engine fail must not fill the log.
#[derive(Default)]
struct Unreported {
    bursts: u64,
    packets: u64,
    reported_at: Option<Instant>,
}

impl Unreported {
    fn add(&mut self, failed: &Quarantined) {
        self.bursts += 1;
        self.packets += failed.lost;
    }

    fn report(&mut self, path: &Path, log: Log, now: Instant) {
        if self.reported_at.is_some_and(|at| now < at + REPORT_EVERY) {
            return;
        }
        let path = path.display();
        log.error(&format_args!(
            "workers: the engine failed on {} bursts ({} packets lost); report it with the capture {path}",
            self.bursts, self.packets,
        ));
        *self = Unreported { reported_at: Some(now), ..Unreported::default() };
    }
}

fn write_all(path: &Path, clock: Clock, log: Log, receiver: &Receiver<Quarantined>) {
    let mut file: Option<File> = None;
    let mut written = 0_u64;
    let mut unreported = Unreported::default();
    while let Ok(failed) = receiver.recv() {
        unreported.add(&failed);
        unreported.report(path, log, failed.at);
        let open = || -> io::Result<File> {
            let mut file = File::options().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
            file.write_all(&file_header())?;
            Ok(file)
        };
        for packet in &failed.packets {
            let record = record(clock.unix_us(failed.at), packet);
            if written + record.len() as u64 > BYTES_MAX {
                break;
            }
            let outcome = match &mut file {
                Some(file) => file.write_all(&record),
                None => open().and_then(|opened| file.insert(opened).write_all(&record)),
            };
            match outcome {
                Ok(()) => written += record.len() as u64,
                Err(error) => {
                    log.warn(&format_args!("quarantine {}: {error}; the burst is not kept", path.display()));
                    break;
                }
            }
        }
    }
}

/// A capture of raw IP packets (link type 101) in the classic format with microseconds.
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    let fields: [(usize, &[u8]); 5] = [
        (0, &0xa1b2_c3d4_u32.to_le_bytes()),
        (4, &2_u16.to_le_bytes()),
        (6, &4_u16.to_le_bytes()),
        (16, &65_535_u32.to_le_bytes()),
        (20, &101_u32.to_le_bytes()),
    ];
    for (offset, bytes) in fields {
        if let Some(place) = header.get_mut(offset..offset + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }
    header
}

fn record(unix_us: u64, packet: &[u8]) -> Vec<u8> {
    let length = packet.len() as u32;
    let mut record = Vec::with_capacity(16 + packet.len());
    record.extend(((unix_us / 1_000_000) as u32).to_le_bytes());
    record.extend(((unix_us % 1_000_000) as u32).to_le_bytes());
    record.extend(length.to_le_bytes());
    record.extend(length.to_le_bytes());
    record.extend_from_slice(packet);
    record
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn failed_bursts_are_kept_up_to_a_bound() {
        let path = std::env::temp_dir().join(format!("natrix-{}-quarantine.pcap", std::process::id()));
        let quarantine = Quarantine::start(path.clone(), Clock::start(), Log::silent()).expect("a thread starts");
        assert!(!path.exists(), "there is no file without a failure");
        let sender = quarantine.sender().expect("a sender");
        for number in 0..100 {
            let packets = vec![vec![number; 60_000]; 2];
            sender.send(Quarantined { worker: 0, at: Instant::ORIGIN, packets, lost: 2 }).expect("it is taken");
        }
        drop((sender, quarantine));
        let bytes = std::fs::read(&path).expect("the capture");
        let mode = std::fs::metadata(&path).expect("its mode").mode();
        assert_eq!(mode & 0o777 & !FILE_MODE, 0, "it has packets of subscribers: {mode:o}");
        let _ = std::fs::remove_file(&path);
        assert!(bytes.len() as u64 <= BYTES_MAX + 24 && bytes.len() > 4_000_000, "{}", bytes.len());
        assert_eq!(&bytes[..4], &[0xd4, 0xc3, 0xb2, 0xa1]);
        assert_eq!(&bytes[40..42], &[0, 0], "the first packet of the first burst");
    }
}
