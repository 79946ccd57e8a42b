//! Starts that fail.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::env;
use std::fs;
use std::path::Path;

use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::server::Socket;
use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;

#[test]
fn an_instance_that_cannot_record_does_not_start() {
    let folder = env::temp_dir().join(format!("natrix-{}-start", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary directory");
    let missing = folder.join("missing/audit.jsonl");
    for (audit, wrong) in [(&missing, "No such file or directory"), (&folder, "Is a directory")] {
        let mut config = crate::common::configuration(&folder);
        config.control.audit.clone_from(audit);
        let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
        let ios: Vec<MemoryIo> = (0..2).map(|worker| ports.io(worker)).collect();
        let socket = Socket::open(&config.control.socket, 0o600).expect("a socket");
        let config_path = Path::new("test.toml");
        let start = Start { config: &config, config_path, version: "0.1", socket, ios, log: Log::silent() };
        let error = Running::start(start, || {}).err().expect("it does not start").to_string();
        assert!(error.starts_with(&format!("control.audit {}: {wrong}", audit.display())), "{error}");
        assert!(error.ends_with("; create the folder and let Natrix write there, or set another path"), "{error}");
    }
    fs::remove_dir_all(&folder).expect("only our own files");
}
