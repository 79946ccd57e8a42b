//! Natrix as the device: its release binary with one worker, in the device's namespace.

use core::fmt::Write as _;
use core::net::Ipv4Addr;
use core::time::Duration;
use std::fs;
use std::fs::File;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;

use super::Device;
use super::DeviceError;
use super::Needs;
use crate::topology;
use crate::topology::Topology;

const NAME: &str = "natrix";
/// How long it may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Natrix in a namespace.
#[derive(Debug)]
pub struct Natrix {
    binary: PathBuf,
    namespace: String,
    folder: PathBuf,
    needs: Needs,
    drivers: [String; 2],
    running: Option<Child>,
}

impl Natrix {
    /// This binary, on the device's ends of the pairs of `topology`, by the driver `net_af_xdp` or `net_af_packet`; its files go to `folder`.
    pub fn new(binary: &Path, topology: &Topology, driver: &str, folder: &Path, needs: Needs) -> Natrix {
        Natrix {
            binary: binary.to_owned(),
            namespace: topology.device(),
            folder: folder.to_owned(),
            needs,
            drivers: [
                format!("{driver}0,iface={}", topology::INSIDE),
                format!("{driver}1,iface={}", topology::OUTSIDE),
            ],
            running: None,
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("natrix.log")
    }

    /// The configuration it is measured with.
    fn configuration(&self) -> String {
        let Needs { sessions, external_addresses, udp_timeout_seconds, cpu } = self.needs;
        let last = Ipv4Addr::from_bits(topology::FIRST_EXTERNAL.to_bits() + external_addresses - 1);
        let length = topology::LINK_PREFIX_LENGTH;
        let mut text = String::new();
        let sides = [
            (topology::INSIDE, &self.drivers[0], topology::DEVICE_INSIDE),
            (topology::OUTSIDE, &self.drivers[1], topology::DEVICE_OUTSIDE),
        ];
        for (name, driver, address) in sides {
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "[[interface]]\nname = \"{name}\"\nrealm = \"{name}\"\ndriver = \"{driver}\"\naddresses = [\"{address}/{length}\"]\n\n"
            );
        }
        let routes =
            [(topology::INSIDE_PREFIX, topology::TESTER_INSIDE), (topology::REMOTE_PREFIX, topology::TESTER_OUTSIDE)];
        for (prefix, via) in routes {
            let _ = write!(text, "[[route]]\nprefix = \"{prefix}\"\nvia = \"{via}\"\n\n");
        }
        let _ = write!(
            text,
            "[[pool]]\nname = \"lab\"\naddresses = [\"{}-{last}\"]\nsubscribers = [\"{}\"]\nreuse_delay = \"0 s\"\n\n\
             [timeouts]\nudp = \"{udp_timeout_seconds} s\"\n\n\
             [tables]\nmappings = {sessions}\nextra_sessions = {sessions}\nsubscribers = 65536\n\n\
             [workers]\ncount = 1\ncpus = [{cpu}]\n\n\
             [control]\nsocket = \"{}\"\n",
            topology::FIRST_EXTERNAL,
            topology::INSIDE_PREFIX,
            self.socket().display(),
        );
        text
    }

    /// Its last words, for an error.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let error = text.lines().rev().find(|line| line.starts_with("error")).or_else(|| text.lines().next_back());
        error.unwrap_or("no message").to_owned()
    }

    fn asked(&self, words: &[&str]) -> Option<serde_json::Value> {
        let socket = self.socket();
        let output = Command::new(&self.binary)
            .args(words)
            .arg("--socket")
            .arg(socket)
            .arg("--json")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn stop(&mut self) {
        let Some(mut child) = self.running.take() else { return };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            // Where it has gone already there is nobody to tell.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Device for Natrix {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        self.stop();
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| DeviceError::File { device: NAME, path, source }
        };
        let configuration = self.folder.join("natrix.toml");
        fs::write(&configuration, self.configuration()).map_err(file_error(&configuration))?;
        let log = File::create(self.log()).map_err(file_error(&self.log()))?;
        let errors = log.try_clone().map_err(file_error(&self.log()))?;
        let child = Command::new("ip")
            // The tester's own CPU is not for the device's threads, which inherit it.
            .args(["netns", "exec", &self.namespace, "taskset", "-c", &self.needs.cpu.to_string()])
            .arg(&self.binary)
            .args(["run", "-c"])
            .arg(&configuration)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .map_err(file_error(&self.binary))?;
        self.running = Some(child);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let has_ended = self.running.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if has_ended {
                break;
            }
            if self.sessions()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.stop();
        Err(DeviceError::Start { device: NAME, told: self.last_words(), log: self.log() })
    }

    fn empty(&mut self) -> Result<(), DeviceError> {
        if self.running.is_some() && self.sessions()? == Some(0) {
            return Ok(());
        }
        // Its table goes with it.
        self.start()?;
        match self.sessions()? {
            Some(left) if left > 0 => Err(DeviceError::NotEmptied { device: NAME, left }),
            _ => Ok(()),
        }
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        Ok(self.asked(&["show", "status"]).and_then(|status| status["sessions"].as_u64()))
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let Needs { sessions, external_addresses, udp_timeout_seconds, cpu } = self.needs;
        vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("drivers", self.drivers.join(" ")),
            ("workers", format!("1 on CPU {cpu}")),
            ("sessions_max", sessions.to_string()),
            ("external_addresses", external_addresses.to_string()),
            ("udp_timeout_seconds", udp_timeout_seconds.to_string()),
            ("reuse_delay", "0 s".to_owned()),
        ]
    }
}

impl Drop for Natrix {
    fn drop(&mut self) {
        self.stop();
    }
}
