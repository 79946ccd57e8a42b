//! Captures that the tests replay, and what makes them: `cargo run -p testkit --bin captures`.
//!
//! - `crates/testkit/captures`: what other gateways stumbled over, rebuilt from public advisories,
//!   and slipstreams. Each is taken on the link of the subscribers: what they send, and what comes
//!   for them, with inside addresses.
//! - `examples/captures`: an FTP transfer and a SIP call for `natrix replay` with
//!   `examples/gateways.toml`, each from both sides.

mod conversation;
mod hostile;
mod replayed;

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use nat::Duration;
use packet_io::capture::CaptureReader;
use packet_io::capture::CaptureWriter;
use wire::build;
use wire::ethernet::ETHER_TYPE_IPV4;
use wire::ethernet::HEADER_LENGTH;
use wire::ethernet::MacAddress;
use wire::ipv4::Ipv4;

pub use hostile::SLIPSTREAMS;
pub use hostile::hostile;
pub use replayed::replayed;

/// When each capture begins: 1 January 2026.
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;

/// Stations on both ends of a link.
const STATIONS: (MacAddress, MacAddress) = (MacAddress([2, 0, 0, 0, 0, 0x64]), MacAddress([2, 0, 0, 0, 0, 1]));

/// A capture: its file and its IP packets, each with the time since the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Relative to the root of the repository.
    pub path: String,
    /// In the order of the file.
    pub packets: Vec<(Duration, Vec<u8>)>,
}

/// All captures that are kept.
pub fn all() -> Vec<Capture> {
    hostile().into_iter().chain(replayed()).collect()
}

impl Capture {
    /// The content of its file, in the byte order of this machine.
    ///
    /// # Panics
    /// Never: memory has room.
    pub fn to_file(&self) -> Vec<u8> {
        let mut writer = CaptureWriter::new(&self.path, Vec::new()).expect("memory has room");
        for (time, packet) in &self.packets {
            let frame = build::frame(STATIONS.0, STATIONS.1, ETHER_TYPE_IPV4, packet);
            writer.write(BEGIN_NS + time.as_micros() * 1_000, &frame).expect("memory has room");
        }
        writer.finish().expect("memory has room")
    }

    /// Reads a kept capture.
    ///
    /// # Panics
    /// When it is not there, or damaged.
    pub fn kept(path: &str) -> Capture {
        let mut reader = CaptureReader::open(&root().join(path)).expect("a kept capture");
        let mut packets = Vec::new();
        while let Some(record) = reader.next_record().expect("an undamaged capture") {
            let time = Duration::from_micros((record.time_ns - BEGIN_NS) / 1_000);
            let packet = &record.bytes[HEADER_LENGTH..];
            // Without what fills up a short frame.
            let length = usize::from(Ipv4::new_checked(packet).expect("an IPv4 packet").total_length());
            packets.push((time, packet[..length].to_vec()));
        }
        Capture { path: path.to_owned(), packets }
    }

    /// The hostile capture of this name.
    ///
    /// # Panics
    /// As [`Capture::kept`].
    pub fn hostile(name: &str) -> Capture {
        Capture::kept(&hostile_path(name))
    }

    /// Writes its file.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn keep(&self) -> std::io::Result<()> {
        let path = root().join(&self.path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, self.to_file())
    }
}

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn hostile_path(name: &str) -> String {
    format!("crates/testkit/captures/{name}.pcap")
}
