//! What the tester can do with nothing between its two ports: the limit beside every result.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::io::BufRead as _;
use std::io::BufReader;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::process::ChildStdin;
use std::process::ChildStdout;
use std::process::Command;
use std::process::Stdio;
use std::rc::Rc;
use std::time::Instant;

use cli::LabCeiling;
use cli::LabCommand;
use cli::LabDevice;
use cli::LabDirection;
use cli::LabFamily;
use cli::LabFrames;
use cli::LabProtocol;
use cli::LabTest;
use cli::LabTransport;
use lab::device::Device as _;
use lab::device::Wire;
use lab::edge;
use lab::experiment::Experiment;
use lab::experiment::ExperimentError;
use lab::experiment::Numbers;
use lab::process::not_outliving;
use lab::result::Ceiling;
use lab::result::Machine;
use lab::result::Record;
use lab::result::own_command_line;
use lab::result::unix_now;
use lab::tester::Tester;
use lab::tester::TesterError;
use lab::topology;
use lab::topology::Topology;
use serde_json::Value;
use serde_json::json;

use super::join;
use super::lab_error;
use super::measure;
use super::measure::Folder;
use super::measure::fault;
use super::output;
use super::output::ShownProgress;
use super::transport;
use crate::failure::Failure;

/// Length of its trials, seconds, and the interval at which the search ends, as a share of the
/// highest rate.
const TRIAL_SECONDS: f64 = 0.5;
const ERROR_SHARE: f64 = 1.0 / 128.0;
/// Connections whose frames go round: the tester's work for each frame hardly depends on it.
const CONNECTIONS: u64 = 10_000;
/// Connections of a trial of handshakes at most: as many as fit its length.
const HANDSHAKES: u64 = 1_000_000;
/// How long the ends of the loopback may take to be connected.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ceiling in a file counts for so long: neighbours on the machine come and go.
const FRESH_SECONDS: u64 = 3600;

/// The tester's ceiling for this test; None where the tester makes none, or it is not wanted.
pub(super) fn measured(command: &LabCommand, options: &LabTest, stop: &AtomicBool) -> Result<Option<Ceiling>, Failure> {
    let has_rate = matches!(
        command,
        LabCommand::Cps(_)
            | LabCommand::Throughput(_)
            | LabCommand::Loss(_)
            | LabCommand::Latency(_)
            | LabCommand::Capacity(_)
            | LabCommand::Teardown(_)
    );
    if !has_rate || options.no_ceiling || options.dut == LabDevice::External {
        return Ok(None);
    }
    let arguments = arguments(command, options);
    let Some(path) = &options.ceiling_file else { return measure(&arguments, stop).map(Some) };
    // What it was measured with says what it counts for.
    let key = arguments.join(" ");
    let mut known: BTreeMap<String, Ceiling> =
        fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let fresh_from = unix_now().saturating_sub(FRESH_SECONDS);
    if let Some(ceiling) = known.get(&key).filter(|ceiling| ceiling.measured_unix >= fresh_from) {
        return Ok(Some(ceiling.clone()));
    }
    let ceiling = measure(&arguments, stop)?;
    known.insert(key, ceiling.clone());
    let text = serde_json::to_string_pretty(&known).map_err(io::Error::from)?;
    fs::write(path, text + "\n")
        .map_err(|error| fault(format!("--ceiling-file: {}: {error}; name another file", path.display())))?;
    Ok(Some(ceiling))
}

/// Arguments of `natrix lab ceiling` for the tester of this test.
fn arguments(command: &LabCommand, options: &LabTest) -> Vec<String> {
    let transport = match options.transport() {
        LabTransport::AfXdp => "af-xdp",
        LabTransport::AfPacket => "af-packet",
        LabTransport::Memif => "memif",
        LabTransport::VhostUser => "vhost-user",
    };
    let frames = match options.frame_bytes {
        LabFrames::Fixed(bytes) => bytes.to_string(),
        LabFrames::Imix => "imix".to_owned(),
    };
    let protocol = match options.protocol {
        LabProtocol::Udp => "udp",
        LabProtocol::Tcp => "tcp",
    };
    let family = match options.family {
        LabFamily::Nat44 => "nat44",
        LabFamily::Nat64 => "nat64",
        LabFamily::Dslite => "dslite",
    };
    // New connections come from one side.
    let direction = match (command, options.direction) {
        (LabCommand::Cps(_) | LabCommand::Capacity(_) | LabCommand::Teardown(_), _) | (_, LabDirection::Outbound) => {
            "outbound"
        }
        (_, LabDirection::Inbound) => "inbound",
        (_, LabDirection::Both) => "both",
    };
    let handshakes = handshakes_of(command);
    let connections = if handshakes.is_empty() { CONNECTIONS } else { HANDSHAKES };
    // No longer than those of the test it stands beside.
    let asked = options.trial_seconds.filter(|seconds| *seconds > 0.0);
    let trial_seconds = asked.map_or(TRIAL_SECONDS, |seconds| seconds.min(TRIAL_SECONDS));
    let cpus: Vec<String> = options.device_cpus.iter().map(u8::to_string).collect();
    let pairs = [
        ("--transport", transport.to_owned()),
        ("--protocol", protocol.to_owned()),
        ("--family", family.to_owned()),
        ("--frame-bytes", frames),
        ("--direction", direction.to_owned()),
        ("--tester-cpu", measure::tester_cpu(options).to_string()),
        ("--seed", options.seed.to_string()),
        ("--sessions", connections.to_string()),
        ("--trial-seconds", trial_seconds.to_string()),
        ("--device-cpus", cpus.join(",")),
    ];
    let of_tester = options.tester_arguments.iter().map(|arguments| ("--tester-arguments", arguments.clone()));
    // Where the far end of the loopback has the device's ports.
    let is_joined = options.transport() == LabTransport::VhostUser;
    let of_device = options.device_arguments.iter().filter(|_| is_joined);
    let of_device = of_device.map(|arguments| ("--device-arguments", arguments.clone()));
    let given = pairs.into_iter().chain(of_tester).chain(of_device);
    let given = given.flat_map(|(option, value)| [option.to_owned(), value]);
    given.chain(handshakes.iter().map(|option| (*option).to_owned())).collect()
}

/// Options by which the ceiling is one of handshakes: where the test's frames are those of
/// handshakes.
fn handshakes_of(command: &LabCommand) -> &'static [&'static str] {
    let (test, tcp_close) = match command {
        LabCommand::Cps(cps) => (&cps.test, cps.tcp_close),
        LabCommand::Latency(latency) if latency.first_packet => (&latency.test, false),
        LabCommand::Capacity(capacity) => (&capacity.test, false),
        LabCommand::Teardown(test) => (test, false),
        _ => return &[],
    };
    match (test.protocol, tcp_close) {
        (LabProtocol::Udp, _) => &[],
        (LabProtocol::Tcp, false) => &["--handshakes"],
        (LabProtocol::Tcp, true) => &["--handshakes", "--tcp-close"],
    }
}

/// By the same program with the same options.
fn measure(arguments: &[String], stop: &AtomicBool) -> Result<Ceiling, Failure> {
    let binary = env::current_exe()
        .map_err(|error| fault(format!("natrix: its own file is not known ({error}); start it by its path")))?;
    let measured_unix = unix_now();
    let busy = output::busy("the tester itself is measured first (--no-ceiling leaves that out)");
    let output =
        lab::process::output_of(not_outliving(binary).args(["lab", "ceiling", "--json"]).args(arguments), stop)
            .map_err(|error| fault(format!("tester: its ceiling cannot be measured ({error}); use --no-ceiling")))?;
    drop(busy);
    if stop.load(Ordering::Relaxed) {
        return Err(lab_error(ExperimentError::from(TesterError::Interrupted)));
    }
    let found: Option<Value> = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten();
    let Some(found) = found else {
        let errors = String::from_utf8_lossy(&output.stderr);
        let error =
            errors.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or("no message").to_owned();
        return Err(fault(format!("{error} (while the tester itself was measured)")));
    };
    let result = &found["result"];
    let median = result["samples"]["median"].as_f64().unwrap_or_default();
    let frames_per_connection = result["frames_per_connection"].as_f64();
    Ok(Ceiling {
        loopback: result["loopback"].as_str().unwrap_or_default().to_owned(),
        frames_per_second: median * frames_per_connection.unwrap_or(1.0),
        connections_per_second: frames_per_connection.map(|_| median),
        measured_unix,
        share: None,
    })
}

/// `natrix lab ceiling`, with the options of its test.
pub(super) fn run(ceiling: &LabCeiling, options: &LabTest, out: &mut dyn Write) -> Result<(), Failure> {
    let (started_unix, started) = (unix_now(), Instant::now());
    if ceiling.handshakes && options.protocol == LabProtocol::Udp {
        return Err(fault("--handshakes: datagrams have none (--protocol udp); add --protocol tcp".to_owned()));
    }
    if let Some(path) = &options.output {
        measure::can_be_written(path)?;
    }
    let space = measure::tuple_space(options, options.sessions)?;
    let mut parameters = measure::parameters_of(options, options.sessions);
    parameters.trial_seconds = options.trial_seconds.unwrap_or(TRIAL_SECONDS);
    parameters.tcp_close = ceiling.tcp_close;
    if let (true, None) = (ceiling.handshakes, options.rate_max) {
        // The rate is one of connections.
        parameters.rate_max /= f64::from(parameters.frames_per_connection());
    }
    parameters.error = options.error.unwrap_or(parameters.rate_max * ERROR_SHARE);
    parameters.repetitions = options.repetitions.unwrap_or(1);
    let timed_rate = Some(("--rate-max", parameters.rate_max));
    parameters.check(&Numbers { is_search: true, timed_rate, ..Numbers::default() }).map_err(lab_error)?;
    let stop = measure::stopper()?;
    let folder = topology::run_folder(std::process::id());
    fs::create_dir_all(&folder)
        .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
    let folder = Folder(folder);
    let is_pair = !transport::is_shared_memory(options.transport());
    let topology = match is_pair {
        true => Some(Topology::straight(&format!("natrix-lab-{}", std::process::id())).map_err(lab_error)?),
        false => None,
    };
    if let Some(topology) = &topology {
        topology.set_mtu(edge::mtu(transport::family(options.family))).map_err(lab_error)?;
        if options.transport() == LabTransport::AfXdp {
            topology.poll_by_socket(&topology.tester()).map_err(lab_error)?;
        }
        topology.enter_tester().map_err(lab_error)?;
    }
    measure::pin(measure::tester_cpu(options))?;
    let io = transport::loopback(options, &folder.0)?;
    let _joined = match options.transport() {
        LabTransport::VhostUser => Some(Joined::start(options, &folder.0)?),
        LabTransport::AfXdp | LabTransport::AfPacket | LabTransport::Memif => None,
    };
    let mut tester = Tester::new(io, measure::ends());
    tester.stop_on(stop);
    let connected: Result<(), TesterError> = tester.connect(|waited| Ok(waited < PATIENCE));
    connected.map_err(|error| lab_error(ExperimentError::from(error)))?;
    tester.face_itself();
    let mut device = Wire;
    let mut experiment = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let shown = Rc::new(ShownProgress::new("ceiling", parameters.repetitions));
    let (shown, begins) = (Rc::clone(&shown), shown);
    experiment.on_begin = Box::new(move |phase, time| begins.begins(phase, time));
    experiment.on_trial = Box::new(move |progress| shown.trial(progress));
    let samples = match ceiling.handshakes {
        true => experiment.ceiling_of_handshakes(),
        false => experiment.ceiling(),
    };
    let samples = samples.map_err(lab_error)?;
    let (trials, interrupted) = (experiment.trials().to_vec(), experiment.was_interrupted());
    drop(experiment);
    let loopback = match options.transport() {
        LabTransport::AfXdp | LabTransport::AfPacket => {
            format!("one virtual Ethernet pair, {} and {}", topology::INSIDE, topology::OUTSIDE)
        }
        LabTransport::Memif => "net_memif to net_memif in the tester".to_owned(),
        LabTransport::VhostUser => {
            let cpu = far_cpu(options);
            format!(
                "net_vhost to net_virtio_user and back, joined by a process on CPU {cpu} that passes frames as they are"
            )
        }
    };
    let (unit, result) = match ceiling.handshakes {
        true => {
            let frames = parameters.frames_per_connection();
            ("connections/s", json!({ "samples": samples, "loopback": loopback, "frames_per_connection": frames }))
        }
        false => ("frames/s", json!({ "samples": samples, "loopback": loopback })),
    };
    let mut all_parameters = json!(parameters);
    all_parameters["family"] = json!(transport::family(options.family));
    let record = Record {
        schema: lab::result::SCHEMA,
        test: "ceiling",
        dut: device.name(),
        transport: transport::named(options.transport(), [&options.inside, &options.outside]),
        parameters: all_parameters,
        unit,
        result,
        trials,
        interrupted,
        ceiling: None,
        device: device.settings(),
        machine: Machine::this(),
        versions: lab::result::versions(env!("CARGO_PKG_VERSION"), Some(&packet_io::dpdk::version())),
        seed: options.seed,
        cpus: vec![usize::from(measure::tester_cpu(options))],
        cores: vec![],
        started_unix,
        took_seconds: started.elapsed().as_secs_f64(),
        command: own_command_line(),
        failure: None,
    };
    measure::give(&record, options, out)?;
    measure::not_interrupted(&record)
}

/// CPU of the far end of the loopback: the device's first.
fn far_cpu(options: &LabTest) -> u8 {
    options.device_cpus.first().copied().unwrap_or_else(|| measure::tester_cpu(options))
}

/// The far end of a loopback between two processes: one with the device's ports, that only passes
/// frames on. One process cannot have a port of vhost and one of virtio: each waits for the other
/// to begin.
struct Joined {
    child: Child,
    /// It ends with its standard input, so that it does when this process is gone, too.
    input: Option<ChildStdin>,
    /// It ends also when nobody reads what it prints.
    output: Option<BufReader<ChildStdout>>,
}

impl Joined {
    /// Starts it for the tester's ports. Sockets are in `folder`.
    fn start(options: &LabTest, folder: &Path) -> Result<Joined, Failure> {
        let failed = |reason: String| {
            fault(format!("tester: the far end of its loopback does not start ({reason}); use --no-ceiling"))
        };
        let binary = env::current_exe().map_err(|error| failed(error.to_string()))?;
        let mut child = Command::new("taskset")
            .args(["-c", &far_cpu(options).to_string()])
            .arg(binary)
            .args(["lab", "join"])
            .args(transport::of_device(options, folder))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("taskset: {error}")))?;
        let (input, output) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        let mut joined = Joined { child, input, output };
        let mut line = String::new();
        if let Some(output) = &mut joined.output {
            output.read_line(&mut line)?;
        }
        if line.trim() != join::READY {
            return Err(failed("its message above says why".to_owned()));
        }
        Ok(joined)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        drop(self.input.take());
        // Where it has gone already there is nobody to wait for.
        let _ = self.child.wait();
    }
}
