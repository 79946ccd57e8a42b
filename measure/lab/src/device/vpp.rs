//! VPP as the device: a `vpp` found on the path, with its plugin nat44-ed, over memif.
//!
//! The start-up configuration and the commands are written for VPP 25.06 to 26.02. VPP starts with
//! an empty table, and the command `clear nat44 ed sessions` (25.02 and later) empties it.

use core::fmt::Write as _;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use super::Allocation;
use super::Device;
use super::DeviceError;
use super::Needs;
use super::PATIENCE;
use super::RulesKind;
use crate::process::end;
use crate::process::not_outliving;
use crate::result::Settings;
use crate::topology;

const NAME: &str = "vpp";
/// Program that sends commands to a running VPP.
const CONTROL: &str = "vppctl";
/// Packets that a ring holds: as many as the tester's.
const RING_SIZE: u32 = 2048;
/// Buffers for packets: enough for all rings, and for what is under way.
const BUFFERS: u32 = 65_536;
/// The heap without sessions, and with each: the session, its two flows, room in the hash.
const HEAP_MIB: u64 = 1024;
const HEAP_BYTES_PER_SESSION: u64 = 1024;
/// Sessions beyond those of the test: pings of the tester make a few.
const SPARE_SESSIONS: u64 = 1024;
/// External ports that nat44-ed uses; it has no other range.
const PORTS: (u16, u16) = (1024, 65_535);
/// How often a command is tried while VPP starts.
const TICK: Duration = Duration::from_millis(50);

/// VPP with one port on each side.
#[derive(Debug)]
pub struct Vpp {
    programs: Programs,
    folder: PathBuf,
    needs: Needs,
    running: Option<Child>,
    version: String,
    stop: Arc<AtomicBool>,
}

/// Where the programs of VPP are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    vpp: PathBuf,
    control: PathBuf,
}

impl Programs {
    /// The first `vpp` on the path, and the `vppctl` beside it or on the path.
    ///
    /// # Errors
    /// One of them is missing.
    pub fn find() -> Result<Programs, DeviceError> {
        Programs::find_in(&env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(path: &OsStr) -> Result<Programs, DeviceError> {
        let is_program = |file: &PathBuf| {
            fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
        };
        let find = |program: &'static str, first: Option<&Path>| {
            let folders = first.map(Path::to_owned).into_iter().chain(env::split_paths(path));
            folders.map(|folder| folder.join(program)).find(is_program).ok_or_else(|| DeviceError::NoProgram {
                device: NAME,
                program,
                path: path.to_string_lossy().into_owned(),
                remedy: "install VPP with its plugins (packages vpp and vpp-plugin-core), or add its folder to PATH",
            })
        };
        let vpp = find("vpp", None)?;
        let control = find(CONTROL, vpp.parent())?;
        Ok(Programs { vpp, control })
    }
}

impl Vpp {
    /// VPP as a client of the tester's sockets, `inside.memif` and `outside.memif` in `folder`,
    /// where its own files go, too. Its start ends early once `stop` is set.
    ///
    /// # Errors
    /// It lacks what is asked of it.
    pub fn new(programs: Programs, folder: &Path, needs: Needs, stop: Arc<AtomicBool>) -> Result<Vpp, DeviceError> {
        super::check_family(NAME, needs.family)?;
        let refused = |what, remedy| Err(DeviceError::Refused { device: NAME, what, remedy });
        if needs.allocation == Allocation::Blocks {
            return refused("port blocks", "leave --allocation out, or measure --dut natrix");
        }
        if needs.rules > 0 || needs.rules_kind == RulesKind::Masquerade {
            return refused("such rules", "leave --rules and --rules-kind out");
        }
        if needs.filters > 0 {
            return refused("filters that the lab could set", "leave --filters out");
        }
        if (*needs.ports.start(), *needs.ports.end()) != PORTS {
            return refused("other external ports than 1024-65535", "leave --dut-ports out");
        }
        let folder = folder.to_owned();
        Ok(Vpp { programs, folder, needs, running: None, version: String::new(), stop })
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("vpp-cli.sock")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("vpp.log")
    }

    fn commands_file(&self) -> PathBuf {
        self.folder.join("vpp.commands")
    }

    /// Threads with sessions of their own.
    fn threads(&self) -> u64 {
        (self.needs.cpus.len() as u64).saturating_sub(1).max(1)
    }

    /// The start-up configuration. With one CPU the main thread handles packets; with more, the
    /// first is for the main thread and each other for a worker.
    fn configuration(&self) -> String {
        let folder = self.folder.display();
        let heap_mib = HEAP_MIB + ((self.sessions_max() * HEAP_BYTES_PER_SESSION * self.threads()) >> 20);
        let mut cpu = format!("main-core {}", self.needs.cpus.first().copied().unwrap_or_default());
        if let [_, workers @ ..] = &self.needs.cpus[..]
            && !workers.is_empty()
        {
            let workers: Vec<String> = workers.iter().map(usize::to_string).collect();
            // Writing to a String does not fail.
            let _ = write!(cpu, " corelist-workers {}", workers.join(","));
        }
        format!(
            "unix {{\n  nodaemon\n  log {folder}/vpp-commands.log\n  cli-listen {}\n  runtime-dir {folder}/vpp\n  startup-config {}\n}}\n\
             api-segment {{ prefix natrix-lab-{} }}\n\
             cpu {{ {cpu} }}\n\
             memory {{ main-heap-size {heap_mib}M }}\n\
             buffers {{ buffers-per-numa {BUFFERS} }}\n\
             plugins {{ plugin dpdk_plugin.so {{ disable }} }}\n",
            self.socket().display(),
            self.commands_file().display(),
            std::process::id(),
        )
    }

    fn sessions_max(&self) -> u64 {
        self.needs.sessions + SPARE_SESSIONS
    }

    /// The commands that set it up.
    fn commands(&self) -> String {
        let mut text = String::new();
        let sides = [
            (0, topology::INSIDE, topology::DEVICE_INSIDE, topology::INSIDE_PREFIX, topology::TESTER_INSIDE),
            (1, topology::OUTSIDE, topology::DEVICE_OUTSIDE, topology::REMOTE_PREFIX, topology::TESTER_OUTSIDE),
        ];
        for (id, side, address, prefix, next_hop) in sides {
            let (socket, port) = (id + 1, interface(id));
            let file = self.folder.join(side);
            let length = topology::LINK_PREFIX_LENGTH;
            // Writing to a String does not fail.
            let _ = write!(
                text,
                "create memif socket id {socket} filename {}.memif\n\
                 create interface memif id {id} socket-id {socket} ring-size {RING_SIZE} slave\n\
                 set interface ip address {port} {address}/{length}\n\
                 set interface state {port} up\n\
                 ip route add {prefix} via {next_hop} {port}\n",
                file.display()
            );
        }
        let _ = write!(
            text,
            "nat44 plugin enable sessions {}\n\
             set nat timeout udp {}\n\
             nat44 add address {} - {}\n\
             set interface nat44 in {} out {}\n",
            self.sessions_max(),
            self.needs.udp_timeout_seconds,
            topology::FIRST_EXTERNAL,
            self.needs.last_external(),
            interface(0),
            interface(1),
        );
        text
    }

    fn write_files(&self) -> Result<PathBuf, DeviceError> {
        let configuration = self.folder.join("vpp.conf");
        for (path, text) in [(&configuration, self.configuration()), (&self.commands_file(), self.commands())] {
            fs::write(path, text).map_err(|source| DeviceError::File { device: NAME, path: path.clone(), source })?;
        }
        Ok(configuration)
    }

    /// What a command prints. None: VPP does not answer.
    fn asked(&self, command: &str) -> Option<String> {
        let output = Command::new(&self.programs.control)
            .arg("-s")
            .arg(self.socket())
            .args(command.split(' '))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .output()
            .ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The last line of its log, for an error.
    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no message").to_owned()
    }

    /// Its log where it stays when the folder is removed.
    fn kept_log(&self) -> PathBuf {
        let kept = env::temp_dir().join(format!("natrix-lab-{}.log", std::process::id()));
        // If it cannot be copied, its own place is named, for as long as it is there.
        fs::copy(self.log(), &kept).map_or_else(|_| self.log(), |_| kept)
    }

    /// True once all commands were carried out: the last one gives the interfaces their sides.
    fn is_set_up(&self) -> bool {
        let is_there = |message: &str| {
            let has =
                |id: u32, side: &str| message.lines().any(|line| line.trim() == format!("{} {side}", interface(id)));
            has(0, "in") && has(1, "out")
        };
        self.asked("show nat44 interfaces").is_some_and(|message| is_there(&message))
    }
}

/// VPP names an interface by the number of its socket and its own.
fn interface(id: u32) -> String {
    format!("memif{}/{id}", id + 1)
}

impl Device for Vpp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn start(&mut self) -> Result<(), DeviceError> {
        let begin = Instant::now();
        let configuration = self.write_files()?;
        let file_error = |path: &Path| {
            let path = path.to_owned();
            move |source| DeviceError::File { device: NAME, path, source }
        };
        let log = File::create(self.log()).map_err(file_error(&self.log()))?;
        let errors = log.try_clone().map_err(file_error(&self.log()))?;
        let cpus: Vec<String> = self.needs.cpus.iter().map(usize::to_string).collect();
        let child = not_outliving("taskset")
            .args(["-c", &cpus.join(",")])
            .arg(&self.programs.vpp)
            .arg("-c")
            .arg(configuration)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // A signal to the lab is for the lab, which ends VPP once its result is written.
            .process_group(0)
            .spawn()
            .map_err(file_error(&self.programs.vpp))?;
        self.running = Some(child);
        while begin.elapsed() < PATIENCE {
            if self.stop.load(Ordering::Relaxed) {
                return Err(DeviceError::Interrupted);
            }
            if self.running.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None))) {
                break;
            }
            if self.is_set_up() {
                let version = self.asked("show version").unwrap_or_default();
                self.version = version.lines().next().unwrap_or("unknown").trim().to_owned();
                return self.empty().map(drop);
            }
            std::thread::sleep(TICK);
        }
        Err(DeviceError::Start { device: NAME, message: self.last_words(), log: self.kept_log() })
    }

    fn empty(&mut self) -> Result<Duration, DeviceError> {
        let begin = Instant::now();
        let answer = self.asked("clear nat44 ed sessions");
        let took = begin.elapsed();
        match (answer, self.sessions()?) {
            (_, Some(left)) if left > 0 => Err(DeviceError::NotEmptied { device: NAME, left }),
            (Some(_), Some(_)) => Ok(took),
            _ => {
                self.alive()?;
                let (what, remedy) = ("answer to `clear nat44 ed sessions`", "use VPP 25.02 or later");
                Err(DeviceError::Refused { device: NAME, what, remedy })
            }
        }
    }

    fn sessions(&mut self) -> Result<Option<u64>, DeviceError> {
        let message = self.asked("show nat44 summary").unwrap_or_default();
        let number = |line: &str| line.trim().strip_prefix("total sessions: ")?.parse().ok();
        Ok(message.lines().find_map(number))
    }

    fn limit(&mut self) -> Result<(), DeviceError> {
        let command = format!("set nat44 session limit {}", self.needs.sessions);
        match self.asked(&command) {
            Some(message) if message.trim().is_empty() => Ok(()),
            _ => {
                let (what, remedy) = ("answer to `set nat44 session limit`", "see that it runs");
                Err(DeviceError::Refused { device: NAME, what, remedy })
            }
        }
    }

    fn alive(&mut self) -> Result<(), DeviceError> {
        let message = match self.running.as_mut().map(Child::try_wait) {
            None | Some(Ok(None)) => return Ok(()),
            Some(Ok(Some(status))) => format!("{status}; {}", self.last_words()),
            Some(Err(error)) => error.to_string(),
        };
        Err(DeviceError::Ended { device: NAME, message, log: self.kept_log() })
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn settings(&self) -> Settings {
        let mut all = vec![
            ("version", self.version.clone()),
            ("program", self.programs.vpp.display().to_string()),
            ("configuration", self.configuration()),
            ("commands", self.commands()),
            ("emptied_by", "clear nat44 ed sessions".to_owned()),
        ];
        all.extend(self.needs.settings());
        Settings(all)
    }
}

impl Drop for Vpp {
    fn drop(&mut self) {
        if let Some(child) = self.running.take() {
            end(child, &self.stop);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(cpus: &[usize]) -> Needs {
        Needs { cpus: cpus.to_vec(), ..Needs::plain(10_000, 64, 86_400, 1) }
    }

    fn vpp(needs: Needs) -> Result<Vpp, DeviceError> {
        let programs = Programs { vpp: "/usr/bin/vpp".into(), control: "/usr/bin/vppctl".into() };
        Vpp::new(programs, Path::new("/tmp/natrix-lab-7"), needs, Arc::default())
    }

    #[test]
    fn its_commands_connect_route_and_translate() {
        let expected = "create memif socket id 1 filename /tmp/natrix-lab-7/inside.memif\n\
            create interface memif id 0 socket-id 1 ring-size 2048 slave\n\
            set interface ip address memif1/0 10.255.0.1/30\n\
            set interface state memif1/0 up\n\
            ip route add 10.0.0.0/16 via 10.255.0.2 memif1/0\n\
            create memif socket id 2 filename /tmp/natrix-lab-7/outside.memif\n\
            create interface memif id 1 socket-id 2 ring-size 2048 slave\n\
            set interface ip address memif2/1 172.16.255.1/30\n\
            set interface state memif2/1 up\n\
            ip route add 198.19.0.0/16 via 172.16.255.2 memif2/1\n\
            nat44 plugin enable sessions 11024\n\
            set nat timeout udp 86400\n\
            nat44 add address 198.18.0.1 - 198.18.0.64\n\
            set interface nat44 in memif1/0 out memif2/1\n";
        assert_eq!(vpp(needs(&[1])).unwrap().commands(), expected);
    }

    #[test]
    fn its_configuration_names_cpus_memory_and_files() {
        let one = vpp(needs(&[1])).unwrap().configuration();
        for line in [
            "  nodaemon\n",
            "  cli-listen /tmp/natrix-lab-7/vpp-cli.sock\n",
            "  runtime-dir /tmp/natrix-lab-7/vpp\n",
            "  startup-config /tmp/natrix-lab-7/vpp.commands\n",
            "cpu { main-core 1 }\n",
            "memory { main-heap-size 1034M }\n",
            "plugins { plugin dpdk_plugin.so { disable } }\n",
        ] {
            assert!(one.contains(line), "{line}: {one}");
        }
        assert_eq!(one.matches('{').count(), one.matches('}').count());
        let three = vpp(needs(&[1, 2, 3])).unwrap().configuration();
        assert!(three.contains("cpu { main-core 1 corelist-workers 2,3 }\n"), "{three}");
        assert!(three.contains("main-heap-size 1045M"), "each worker has its sessions: {three}");
    }

    #[test]
    fn what_it_lacks_is_refused() {
        let plain = || needs(&[1]);
        for (needs, what) in [
            (Needs { allocation: Allocation::Blocks, ..plain() }, "has no port blocks"),
            (Needs { rules: 5, ..plain() }, "has no such rules"),
            (Needs { filters: 5, ..plain() }, "has no filters"),
            (Needs { ports: 2000..=2999, ..plain() }, "has no other external ports than 1024-65535"),
        ] {
            let error = vpp(needs).unwrap_err().to_string();
            assert!(error.starts_with(&format!("device vpp: {what}")), "{error}");
        }
    }

    #[test]
    fn its_programs_are_found_on_the_path() {
        let folder = env::temp_dir().join(format!("natrix-vpp-{}", std::process::id()));
        let [both, empty] = ["both", "empty"].map(|name| folder.join(name));
        fs::create_dir_all(&both).unwrap();
        fs::create_dir_all(&empty).unwrap();
        let make = |program: &str, mode: u32| {
            let file = both.join(program);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            file
        };
        let path = env::join_paths([&empty, &both]).unwrap();
        let missing = || Programs::find_in(&path).unwrap_err().to_string();
        make("vpp", 0o644);
        let error = missing();
        let whole = format!("device vpp: there is no program `vpp` on the path ({}); install VPP", path.display());
        assert!(error.starts_with(&whole), "a file that cannot be run: {error}");
        let vpp = make("vpp", 0o755);
        assert!(missing().contains("no program `vppctl`"));
        let control = make("vppctl", 0o755);
        assert_eq!(Programs::find_in(&path).unwrap(), Programs { vpp, control });
        fs::remove_dir_all(&folder).unwrap();
    }
}
