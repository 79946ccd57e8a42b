//! The watchdog of the service manager: reports while all workers work, none while one is stuck.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::env;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use daemon::run::run_on;
use packet_io::Burst;
use packet_io::Io;
use packet_io::MemoryIo;
use packet_io::PortIndex;
use packet_io::PortStatistics;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use signal_hook::consts::SIGTERM;

const PATIENCE: Duration = Duration::from_secs(60);

/// Ports whose driver hangs while `stuck` is set.
struct Hanging {
    io: MemoryIo,
    stuck: Arc<AtomicBool>,
}

impl Io for Hanging {
    type Buffer = <MemoryIo as Io>::Buffer;

    fn port_count(&self) -> usize {
        self.io.port_count()
    }

    fn receive(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>) {
        while self.stuck.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        self.io.receive(port, burst);
    }

    fn transmit(&mut self, port: PortIndex, burst: &mut Burst<Self::Buffer>) {
        self.io.transmit(port, burst);
    }

    fn allocate(&mut self) -> Option<Self::Buffer> {
        self.io.allocate()
    }

    fn mac(&self, port: PortIndex) -> [u8; 6] {
        self.io.mac(port)
    }

    fn can_receive(&self, port: PortIndex) -> bool {
        self.io.can_receive(port)
    }

    fn can_transmit(&self, port: PortIndex) -> bool {
        self.io.can_transmit(port)
    }

    fn link_up(&self, port: PortIndex) -> bool {
        self.io.link_up(port)
    }

    fn statistics(&self, port: PortIndex) -> PortStatistics {
        self.io.statistics(port)
    }
}

#[test]
fn a_stuck_worker_ends_the_reports() {
    let directory = env::temp_dir().join(format!("natrix-{}-watchdog", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let manager = UnixDatagram::bind(directory.join("notify.sock")).expect("a socket");
    #[allow(unsafe_code, reason = "the environment is how a service manager names its socket")]
    // SAFETY: this is the only test of this binary and it has started no thread yet, so no other
    // thread uses the environment.
    unsafe {
        env::set_var("NOTIFY_SOCKET", directory.join("notify.sock"));
        env::set_var("WATCHDOG_USEC", "600000");
    }
    let told = |within: Duration| {
        let mut state = [0; 64];
        manager.set_read_timeout(Some(within)).expect("a socket option");
        let length = manager.recv(&mut state).ok()?;
        Some(String::from_utf8_lossy(&state[..length]).trim().to_owned())
    };
    let config = common::configuration(&directory);
    let stuck = Arc::new(AtomicBool::new(false));
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let hang =
        |worker| Hanging { io: ports.io(worker), stuck: if worker == 1 { Arc::clone(&stuck) } else { Arc::default() } };
    let ios: Vec<Hanging> = (0..2).map(hang).collect();
    let instance = thread::spawn(move || run_on(&config, Path::new("test.toml"), "0.1", |_, _| Ok(ios.into()), || {}));

    let mut first: Vec<String> = (0..4).filter_map(|_| told(PATIENCE)).collect();
    first.sort();
    first.dedup();
    assert_eq!(first, ["READY=1", "WATCHDOG=1"]);

    stuck.store(true, Ordering::Relaxed);
    // One report may be on its way.
    let late = (0..2).filter(|_| told(Duration::from_secs(3)).is_some()).count();
    assert!(late <= 1, "reports although a worker is stuck");
    assert_eq!(told(Duration::from_secs(3)), None, "reports although a worker is stuck");

    stuck.store(false, Ordering::Relaxed);
    assert_eq!(told(PATIENCE).as_deref(), Some("WATCHDOG=1"));
    signal_hook::low_level::raise(SIGTERM).expect("a signal to ourselves");
    instance.join().expect("no panic").expect("a clean end");
    fs::remove_dir_all(&directory).expect("only our own files");
}
