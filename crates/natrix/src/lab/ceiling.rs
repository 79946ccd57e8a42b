//! What the tester can do with nothing between its two ports: the limit beside every result.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;

use cli::LabCommand;
use cli::LabDevice;
use cli::LabDirection;
use cli::LabFrames;
use cli::LabProtocol;
use cli::LabTest;
use cli::LabTransport;
use lab::device::Device as _;
use lab::device::Wire;
use lab::experiment::Experiment;
use lab::result::Ceiling;
use lab::result::Machine;
use lab::result::Record;
use lab::result::unix_now;
use lab::tester::Tester;
use lab::topology;
use lab::topology::Topology;
use serde_json::Value;
use serde_json::json;

use super::lab_error;
use super::measure;
use super::measure::Folder;
use super::measure::fault;
use super::told::Told;
use super::transport;
use crate::failure::Failure;

/// Length of its trials, seconds, and the interval at which the search ends, as a share of the highest rate.
const TRIAL_SECONDS: f64 = 0.5;
const ERROR_SHARE: f64 = 1.0 / 128.0;
/// Connections whose frames go round: the tester's work for each frame hardly depends on it.
const CONNECTIONS: u64 = 10_000;

/// A ceiling in a file counts for so long: neighbours on the machine come and go.
const FRESH_SECONDS: u64 = 3600;

/// The tester's ceiling for this test; None where the test has no rate, or it is not wanted.
pub(super) fn measured(command: &LabCommand, options: &LabTest) -> Result<Option<Ceiling>, Failure> {
    let has_rate = matches!(
        command,
        LabCommand::Cps(_) | LabCommand::Throughput(_) | LabCommand::Loss(_) | LabCommand::Latency(_)
    );
    // A port of vhost and one of virtio can't be joined in one process: one waits for the other to begin.
    let has_loopback = options.dut != LabDevice::External && options.transport != LabTransport::VhostUser;
    if !has_rate || options.no_ceiling || !has_loopback {
        return Ok(None);
    }
    let arguments = arguments(command, options);
    let Some(path) = &options.ceiling_file else { return measure(&arguments).map(Some) };
    // What it was measured with says what it counts for.
    let key = arguments.join(" ");
    let mut known: BTreeMap<String, Ceiling> =
        fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let fresh_from = unix_now().saturating_sub(FRESH_SECONDS);
    if let Some(ceiling) = known.get(&key).filter(|ceiling| ceiling.measured_unix >= fresh_from) {
        return Ok(Some(ceiling.clone()));
    }
    let ceiling = measure(&arguments)?;
    known.insert(key, ceiling.clone());
    let text = serde_json::to_string_pretty(&known).map_err(io::Error::from)?;
    fs::write(path, text + "\n")
        .map_err(|error| fault(format!("--ceiling-file: {}: {error}; name another file", path.display())))?;
    Ok(Some(ceiling))
}

/// Arguments of `natrix lab ceiling` for the tester of this test.
fn arguments(command: &LabCommand, options: &LabTest) -> Vec<String> {
    let transport = match options.transport {
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
    // New connections come from one side; the frames of a handshake go both ways.
    let direction = match (command, options.direction) {
        (LabCommand::Cps(_), _) if options.protocol == LabProtocol::Tcp => "both",
        (LabCommand::Cps(_), _) | (_, LabDirection::Outbound) => "outbound",
        (_, LabDirection::Inbound) => "inbound",
        (_, LabDirection::Both) => "both",
    };
    let cpus: Vec<String> = options.device_cpus.iter().map(u8::to_string).collect();
    let pairs = [
        ("--transport", transport.to_owned()),
        ("--protocol", protocol.to_owned()),
        ("--frame-bytes", frames),
        ("--direction", direction.to_owned()),
        ("--tester-cpu", options.tester_cpu.to_string()),
        ("--seed", options.seed.to_string()),
        ("--sessions", CONNECTIONS.to_string()),
        ("--device-cpus", cpus.join(",")),
    ];
    let given = options.tester_arguments.iter().map(|arguments| ("--tester-arguments", arguments.clone()));
    let all = pairs.into_iter().chain(given);
    all.flat_map(|(option, value)| [option.to_owned(), value]).collect()
}

/// By the same program with the same options.
fn measure(arguments: &[String]) -> Result<Ceiling, Failure> {
    let binary = env::current_exe()
        .map_err(|error| fault(format!("natrix: its own file is not known ({error}); start it by its path")))?;
    let measured_unix = unix_now();
    let output = Command::new(binary)
        .args(["lab", "ceiling", "--json"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| fault(format!("tester: its ceiling can not be measured ({error}); use --no-ceiling")))?;
    let found: Option<Value> = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten();
    let Some(found) = found else {
        let told = String::from_utf8_lossy(&output.stderr);
        let error = told.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or("no message").to_owned();
        return Err(fault(format!("{error} (while the tester itself was measured)")));
    };
    Ok(Ceiling {
        loopback: found["result"]["loopback"].as_str().unwrap_or_default().to_owned(),
        frames_per_second: found["result"]["samples"]["median"].as_f64().unwrap_or_default(),
        measured_unix,
        share: None,
    })
}

/// `natrix lab ceiling`.
pub(super) fn run(options: &LabTest, out: &mut dyn Write) -> Result<(), Failure> {
    let (started_unix, started) = (unix_now(), Instant::now());
    if options.transport == LabTransport::VhostUser {
        return Err(fault(
            "--transport: vhost-user has no loopback in one process (one side waits for the other); use memif"
                .to_owned(),
        ));
    }
    let space = measure::tuple_space(options, options.sessions)?;
    let mut parameters = measure::parameters_of(options, options.sessions);
    parameters.trial_seconds = options.trial_seconds.unwrap_or(TRIAL_SECONDS);
    parameters.error = options.error.unwrap_or(parameters.rate_max * ERROR_SHARE);
    parameters.repetitions = options.repetitions.unwrap_or(1);
    let stop = measure::stopper()?;
    let folder = env::temp_dir().join(format!("natrix-lab-{}", std::process::id()));
    fs::create_dir_all(&folder)
        .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
    let folder = Folder(folder);
    let is_pair = !transport::is_shared_memory(options.transport);
    let topology = match is_pair {
        true => Some(Topology::straight(&format!("natrix-lab-{}", std::process::id())).map_err(lab_error)?),
        false => None,
    };
    if let Some(topology) = &topology {
        if options.transport == LabTransport::AfXdp {
            topology.poll_by_socket(&topology.tester()).map_err(lab_error)?;
        }
        topology.enter_tester().map_err(lab_error)?;
    }
    measure::pin(options.tester_cpu)?;
    let mut tester = Tester::new(transport::loopback(options, &folder.0)?, measure::ends());
    tester.stop_on(stop);
    tester.face_itself();
    let mut device = Wire;
    let mut experiment = Experiment::new(&mut tester, &mut device, &space, &parameters);
    let told = Told::new("ceiling", parameters.repetitions);
    experiment.on_trial = Box::new(move |progress| told.trial(progress));
    let samples = experiment.ceiling().map_err(lab_error)?;
    let (trials, interrupted) = (experiment.trials().to_vec(), experiment.was_interrupted());
    drop(experiment);
    let loopback = match options.transport {
        LabTransport::AfXdp | LabTransport::AfPacket => {
            format!("one virtual Ethernet pair, {} and {}", topology::INSIDE, topology::OUTSIDE)
        }
        LabTransport::Memif => "net_memif to net_memif in the tester".to_owned(),
        LabTransport::VhostUser => String::new(),
    };
    let record = Record {
        schema: lab::result::SCHEMA,
        test: "ceiling",
        dut: device.name(),
        transport: transport::driver(options.transport).to_owned(),
        parameters: json!(parameters),
        unit: "frames/s",
        result: json!({ "samples": samples, "loopback": loopback }),
        trials,
        interrupted,
        ceiling: None,
        device: device.settings(),
        machine: Machine::this(),
        versions: lab::result::versions(env!("CARGO_PKG_VERSION"), Some(&packet_io::dpdk::version())),
        seed: options.seed,
        cpus: [usize::from(options.tester_cpu); 2],
        cores: vec![],
        started_unix,
        took_seconds: started.elapsed().as_secs_f64(),
        command: env::args().collect::<Vec<_>>().join(" "),
    };
    measure::give(&record, options, out)?;
    Ok(())
}
