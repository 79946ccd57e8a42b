//! A whole instance in this process: starts, notifies the service manager, forwards, refuses a
//! second instance, ignores SIGHUP, drains on SIGTERM.

#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use core::time::Duration;
use std::env;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread;
use std::time::Instant;

use control::Client;
use control::Object;
use control::Reply;
use control::Request;
use control::RunState;
use control::Status;
use daemon::run::RunError;
use daemon::run::run_on;
use daemon::server::SocketError;
use packet_io::MemoryIo;
use packet_io::memory::MemoryBed;
use packet_io::memory::MemorySettings;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGTERM;

const PATIENCE: Duration = Duration::from_secs(60);

fn ios() -> Vec<MemoryIo> {
    let ports = MemoryBed::new(&MemorySettings { workers: 2, ..MemorySettings::default() });
    (0..2).map(|worker| ports.io(worker)).collect()
}

fn status_of(socket: &Path) -> Option<Status> {
    let mut client = Client::connect(socket, "0", PATIENCE).ok()?;
    client.send(&Request::Status).ok()?;
    match client.receive().ok()? {
        Reply::Error(_) => None,
        reply => Status::from_reply(reply).ok(),
    }
}

#[test]
fn an_instance_starts_and_drains_on_sigterm() {
    let directory = env::temp_dir().join(format!("natrix-{}-run", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let manager = UnixDatagram::bind(directory.join("notify.sock")).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    #[allow(unsafe_code, reason = "the environment is how a service manager names its socket")]
    // SAFETY: this is the only test of this binary and it has started no thread yet, so no other
    // thread uses the environment.
    unsafe {
        env::set_var("NOTIFY_SOCKET", directory.join("notify.sock"));
    }
    let told = || {
        let mut state = [0; 64];
        let length = manager.recv(&mut state).expect("the service manager is notified");
        String::from_utf8_lossy(&state[..length]).trim().to_owned()
    };

    let config = common::configuration(&directory);
    let socket = config.control.socket.clone();
    let first = {
        let config = config.clone();
        thread::spawn(move || run_on(&config, Path::new("test.toml"), "0.1", |_, _| Ok(ios().into()), || {}))
    };
    assert_eq!(told(), "READY=1");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = status_of(&socket) {
            break status;
        }
        assert!(start.elapsed() < PATIENCE, "the control socket answers");
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((status.state, status.workers.len()), (RunState::Running, 2));
    assert_eq!(status.config, "test.toml");

    let second = run_on(&config, Path::new("test.toml"), "0.1", |_, _| Ok(ios().into()), || {});
    assert!(matches!(second, Err(RunError::Socket(SocketError::InUse(_)))), "{second:?}");

    // A closed terminal is not a request to stop: the service manager gets no message, and clients
    // are answered.
    for _ in 0..2 {
        signal_hook::low_level::raise(SIGHUP).expect("a signal to ourselves");
    }
    manager.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket option");
    assert!(manager.recv(&mut [0; 64]).is_err(), "it does not stop");
    manager.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    assert_eq!(status_of(&socket).map(|status| status.state), Some(RunState::Running));

    signal_hook::low_level::raise(SIGTERM).expect("a signal to ourselves");
    assert_eq!(told(), "STOPPING=1");
    first.join().expect("no panic").expect("a clean end");
    assert!(!socket.exists(), "the socket is gone");
    fs::remove_dir_all(&directory).expect("only our own files");
}
