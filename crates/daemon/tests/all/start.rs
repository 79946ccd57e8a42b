//! Starts that fail, or that lose something.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::env;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

use config::Config;
use daemon::log::Log;
use daemon::running::Running;
use daemon::running::Start;
use daemon::running::StartError;
use daemon::server::Socket;
use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use tracing_subscriber::layer::SubscriberExt as _;

fn start(config: &Config, log: Log) -> Result<Running, StartError> {
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    let ios: Vec<MemoryIo> = (0..2).map(|worker| ports.io(worker)).collect();
    let socket = Socket::open(&config.control.socket, 0o600).expect("a socket");
    let config_path = Path::new("test.toml");
    Running::start(Start { config, config_path, version: "0.1", socket, ios, log }, || {})
}

/// What this thread writes to the log.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<String>>);

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Written {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        let mut text = format!("{}:", event.metadata().level());
        event.record(&mut |_: &tracing::field::Field, value: &dyn core::fmt::Debug| {
            text.push_str(&format!(" {value:?}"));
        });
        self.0.lock().expect("no panic").push_str(&format!("{text}\n"));
    }
}

#[test]
fn an_instance_that_cannot_record_does_not_start() {
    let folder = env::temp_dir().join(format!("natrix-{}-start", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary directory");
    let missing = folder.join("missing/audit.jsonl");
    for (audit, wrong) in [(&missing, "No such file or directory"), (&folder, "Is a directory")] {
        let mut config = crate::common::configuration(&folder);
        config.control.audit.clone_from(audit);
        let error = start(&config, Log::silent()).err().expect("it does not start").to_string();
        assert!(error.starts_with(&format!("control.audit {}: {wrong}", audit.display())), "{error}");
        assert!(error.ends_with("; create the folder and let Natrix write there, or set another path"), "{error}");
    }
    fs::remove_dir_all(&folder).expect("only our own files");
}

#[test]
fn a_damaged_file_of_grants_is_reported_and_kept() {
    let folder = env::temp_dir().join(format!("natrix-{}-damaged", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary directory");
    let mut config = crate::common::configuration(&folder);
    let (path, aside) = (folder.join("grants"), folder.join("grants.damaged-1"));
    config.grants_file = Some(path.clone());
    let run = || {
        let written = Written::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(written.clone()), || {
            start(&config, Log::new(config::LogLevel::Warn)).expect("an instance").stop();
        });
        written.0.lock().expect("no panic").clone()
    };
    assert_eq!(run(), "", "a start without the file");
    fs::write(&path, "garbage\n").expect("a file of our own");
    let said = run();
    let wanted = format!(
        "{}: is no file of grants of this version (8 bytes); none is restored; it is kept as {}, and clients must renew",
        path.display(),
        aside.display()
    );
    assert!(said.starts_with("ERROR: ") && said.contains(&wanted) && said.lines().count() == 1, "{said}");
    assert_eq!(fs::read(&aside).expect("it is kept"), b"garbage\n");
    assert!(fs::read(&path).expect("a new one").starts_with(b"NATRIX G"));
    assert_eq!(run(), "", "the new file is sound");
    fs::remove_dir_all(&folder).expect("only our own files");
}
