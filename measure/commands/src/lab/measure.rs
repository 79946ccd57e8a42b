//! The tests of RFC 9693 on a device that the lab starts: device, tester, progress, result.

use std::env;
use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use cli::LabAllocation;
use cli::LabCommand;
use cli::LabDevice;
use cli::LabDirection;
use cli::LabFrames;
use cli::LabProtocol;
use cli::LabRules;
use cli::LabTest;
use cli::LabTransport;
use lab::device::Allocation;
use lab::device::Device;
use lab::device::External;
use lab::device::Natrix;
use lab::device::Needs;
use lab::device::Netfilter;
use lab::device::RulesKind;
use lab::device::Vpp;
use lab::device::VppPrograms;
use lab::device::check_family;
use lab::edge;
use lab::experiment::Direction;
use lab::experiment::Experiment;
use lab::experiment::ExperimentError;
use lab::experiment::Numbers;
use lab::experiment::OverRepetitions;
use lab::experiment::Parameters;
use lab::experiment::Samples;
use lab::frame::FrameSizes;
use lab::frame::Protocol;
use lab::link;
use lab::result::Core;
use lab::result::Machine;
use lab::result::Record;
use lab::result::own_command_line;
use lab::result::unix_now;
use lab::search::CapacityLimits;
use lab::tester::End;
use lab::tester::FIRST_PATIENCE;
use lab::tester::FullRing;
use lab::tester::Tester;
use lab::topology;
use lab::topology::Topology;
use lab::tuples::EndpointRange;
use lab::tuples::TupleSpace;
use lab::watch::Watch;
use packet_io::PortIndex;
use packet_io::dpdk;
use serde_json::Value;
use serde_json::json;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGKILL;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use super::LabFailure;
use super::ceiling;
use super::cpus;
use super::lab_error;
use super::output;
use super::output::ShownProgress;
use super::transport;
use super::transport::Ports;
use crate::failure::Failure;

/// Subscribers have so many connections each, as far as there are enough inside addresses.
const CONNECTIONS_A_SUBSCRIBER: u64 = 64;
/// Inside addresses: 10.0.0.2 to 10.0.255.254 (RFC 9693 §4.1).
const INSIDE_ADDRESSES_MAX: u64 = 65_533;
/// Idle time of UDP on the device, longer than any test.
const UDP_TIMEOUT_SECONDS: u32 = 86_400;

/// Time for a command to end after a signal. It takes less than half a second on an idle machine.
const LAST_GRACE: Duration = Duration::from_secs(10);

/// A search begins at this share of what the tester alone can do, where nobody says otherwise.
const ABOVE_CEILING: f64 = 1.25;

/// A folder for the device's files, removed when it is over.
pub(super) struct Folder(pub(super) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left behind is in the system's folder for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(super) fn fault(text: String) -> Failure {
    lab_error(LabFailure::Fault(text))
}

fn options_of(command: &LabCommand) -> Option<(&'static str, &LabTest)> {
    match command {
        LabCommand::Throughput(test) => Some(("throughput", test)),
        LabCommand::Loss(test) => Some(("loss", test)),
        LabCommand::Cps(cps) => Some(("cps", &cps.test)),
        LabCommand::Teardown(test) => Some(("teardown", test)),
        LabCommand::Latency(latency) => Some(("latency", &latency.test)),
        LabCommand::Capacity(capacity) => Some(("capacity", &capacity.test)),
        LabCommand::Ceiling(ceiling) => Some(("ceiling", &ceiling.test)),
        LabCommand::Up
        | LabCommand::Down
        | LabCommand::Join(_)
        | LabCommand::Probe(_)
        | LabCommand::Sharing(_)
        | LabCommand::Study(_)
        | LabCommand::Report(_) => None,
    }
}

/// Runs one test.
pub(super) fn test(command: &LabCommand, out: &mut dyn Write) -> Result<(), Failure> {
    let Some((name, options)) = options_of(command) else { return Ok(()) };
    let options = &cpus::of_test(options);
    if let LabCommand::Ceiling(ceiling) = command {
        return ceiling::run(ceiling, options, out);
    }
    let (started_unix, started) = (unix_now(), Instant::now());
    let priority = lab::priority::Raised::new();
    let (n, room) = match command {
        // As many tuples as twice what the device is set up for: the search has to get beyond it.
        LabCommand::Capacity(capacity) => (capacity.room.saturating_mul(2), capacity.room),
        _ => (options.sessions, options.sessions),
    };
    let space = tuple_space(options, n)?;
    let mut parameters = parameters_of(options, n);
    if let LabCommand::Cps(cps) = command {
        if cps.tcp_close && parameters.protocol == Protocol::Udp {
            return Err(fault("--tcp-close: datagrams have no end (--protocol udp); add --protocol tcp".to_owned()));
        }
        parameters.tcp_close = cps.tcp_close;
    }
    let numbers =
        Numbers { endpoints_and_ports: endpoints_and_ports(options, room), ..numbers_of(command, &parameters) };
    parameters.check(&numbers).map_err(lab_error)?;
    if let Some(path) = &options.output {
        can_be_written(path)?;
    }
    // What a device cannot be is said before the tester is measured.
    transport::check(options.dut, options.transport())?;
    let family = transport::family(options.family);
    match options.dut {
        LabDevice::Netfilter => check_family("netfilter", family).map_err(lab_error)?,
        LabDevice::Vpp => check_family("vpp", family).map_err(lab_error)?,
        LabDevice::Natrix | LabDevice::External => {}
    }
    if options.dut == LabDevice::Vpp {
        VppPrograms::find().map_err(lab_error)?;
    }
    let stop = stopper()?;
    let mut ceiling = ceiling::measured(command, options, &stop)?;
    let rate_limit = parameters.rate_max;
    if let (Some(ceiling), None) = (&ceiling, options.rate_max) {
        // Nothing above can be kept: trials there would only take time.
        let rate = match command {
            LabCommand::Cps(_) | LabCommand::Capacity(_) => {
                ceiling.frames_per_second / f64::from(parameters.frames_per_connection())
            }
            _ => ceiling.frames_per_second,
        };
        let most = match command {
            // A curve has no step at which the tester loses by itself.
            LabCommand::Loss(_) => rate,
            _ => (rate * ABOVE_CEILING).max(2.0 * parameters.rate_min),
        };
        parameters.rate_max = parameters.rate_max.min(most);
    }
    let topology = topology_of(options)?;
    let folder = topology::run_folder(std::process::id());
    fs::create_dir_all(&folder)
        .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
    let folder = Folder(folder);
    let needs = Needs {
        sessions: room,
        external_addresses: options.external_addresses,
        ports: options.dut_ports.first..=options.dut_ports.last,
        udp_timeout_seconds: UDP_TIMEOUT_SECONDS,
        cpus: options.device_cpus.iter().map(|cpu| usize::from(*cpu)).collect(),
        rules: options.rules,
        rules_kind: match options.rules_kind {
            LabRules::List => RulesKind::List,
            LabRules::Set => RulesKind::Set,
            LabRules::Map => RulesKind::Map,
            LabRules::Masquerade => RulesKind::Masquerade,
        },
        filters: options.filters,
        allocation: match options.allocation {
            LabAllocation::Ports => Allocation::Ports,
            LabAllocation::Blocks => Allocation::Blocks,
        },
        family,
    };
    if let Some(topology) = &topology {
        topology.set_mtu(edge::mtu(family)).map_err(lab_error)?;
        // Each side takes its frames in on its own CPU.
        if options.transport() == LabTransport::AfXdp {
            topology.poll_by_socket(&topology.tester()).map_err(lab_error)?;
        }
        match options.dut {
            LabDevice::Natrix if options.transport() == LabTransport::AfXdp => {
                topology.poll_by_socket(&topology.device()).map_err(lab_error)?;
            }
            LabDevice::Netfilter => topology.thread_device_on(&needs.cpus).map_err(lab_error)?,
            LabDevice::Natrix | LabDevice::Vpp | LabDevice::External => (),
        }
    }
    // Where a device from elsewhere works is not known.
    let watch = match options.dut {
        LabDevice::Natrix | LabDevice::Netfilter | LabDevice::Vpp => Watch::start(&needs.cpus),
        LabDevice::External => None,
    };
    let watched = watch.is_some();
    let mut device = device_of(options, topology.as_ref(), &folder.0, needs, (priority.nice_before, &stop))?;
    // Ports in shared memory have to be there before the device that connects to them; kernel
    // interfaces are.
    let waits_for_tester = transport::is_shared_memory(options.transport());
    if !waits_for_tester {
        device.start().map_err(lab_error)?;
    }
    if let Some(topology) = &topology {
        topology.enter_tester().map_err(lab_error)?;
    }
    pin(tester_cpu(options))?;
    let mut tester = Tester::new(transport::ports(options, &folder.0)?, ends());
    if waits_for_tester {
        device.start().map_err(lab_error)?;
    }
    if matches!(command, LabCommand::Capacity(_)) {
        // What is searched for is where it ends.
        device.limit().map_err(lab_error)?;
    }
    if transport::is_ring_of_device(&transport::named(options.transport(), [&options.inside, &options.outside])) {
        tester.full_ring_means(FullRing::Device);
    }
    tester.stop_on(stop);
    let met: Result<(), ExperimentError> = tester.meet_while(|waited| {
        device.alive()?;
        Ok(waited < device.patience().max(FIRST_PATIENCE))
    });
    met.map_err(lab_error)?;
    let mut experiment = Experiment::new(&mut tester, device.as_mut(), &space, &parameters);
    experiment.rate_limit = rate_limit;
    let shown = Rc::new(ShownProgress::new(name, parameters.repetitions));
    let (shown, begins) = (Rc::clone(&shown), shown);
    experiment.on_begin = Box::new(move |phase, time| begins.begins(phase, time));
    experiment.on_trial = Box::new(move |progress| shown.trial(progress));
    let links = links_of(options);
    experiment.link_down = Box::new(move || links.iter().find(|(link, _)| link::is_down(link)).map(|(_, side)| *side));
    if let Some(watch) = watch {
        experiment.away = Box::new(move || watch.longest_seconds());
    }
    let alone = ceiling.as_ref().map(|ceiling| ceiling.frames_per_second);
    let measured = measure(command, &mut experiment, &space, alone);
    let (trials, interrupted) = (experiment.trials().to_vec(), experiment.was_interrupted());
    let (at_least, ended_by) = (experiment.at_least(), experiment.ended_by());
    let (disturbed, disturbed_repetitions) = (experiment.disturbed(), experiment.disturbed_repetitions().to_vec());
    drop(experiment);
    // A search that the tester ended early fails without a result. What did pass helps to compare
    // devices, and what was made before is kept.
    let (failure, (unit, result)) = match measured {
        Ok(measured) => (ended_by.map(lab_error), measured),
        Err(failure) if trials.is_empty() => return Err(failure),
        Err(failure) => {
            let mut result = json!({ "samples": null });
            if let Some(at_least) = at_least {
                result["at_least"] = json!(at_least);
            }
            (Some(failure), (unit_of(command), result))
        }
    };
    let mut result = result;
    if disturbed > 0 {
        result["disturbed"] = json!(disturbed);
        result["disturbed_repetitions"] = json!(disturbed_repetitions);
    }
    let has_figures = failure.is_none() || !result["samples"].is_null() || result.get("samples").is_none();
    if let (Some(ceiling), Some(median)) = (&mut ceiling, result["samples"]["median"].as_f64()) {
        let frames = match command {
            LabCommand::Cps(_) => Some(median * f64::from(parameters.frames_per_connection())),
            LabCommand::Throughput(_) => Some(median),
            // What these find is no rate of the tester's frames.
            _ => None,
        };
        ceiling.share = frames.map(|frames| frames / ceiling.frames_per_second);
    }
    let record = Record {
        schema: lab::result::SCHEMA,
        test: name,
        dut: device.name(),
        transport: transport::named(options.transport(), [&options.inside, &options.outside]),
        parameters: parameters_with(command, options, &parameters, &space, (&priority.told, watched)),
        unit,
        result,
        trials,
        interrupted,
        ceiling,
        device: device.settings(),
        machine: Machine::this(),
        versions: lab::result::versions(env!("CARGO_PKG_VERSION"), Some(&dpdk::version())),
        seed: options.seed,
        cpus: cpus(options),
        cores: cores(options),
        started_unix,
        took_seconds: started.elapsed().as_secs_f64(),
        command: own_command_line(),
        failure: failure.as_ref().map(ToString::to_string),
    };
    if has_figures || options.json || options.output.is_some() {
        give(&record, options, out)?;
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    not_interrupted(&record)
}

/// An error if a signal ended the test early.
pub(super) fn not_interrupted(record: &Record) -> Result<(), Failure> {
    let made = match record.trials.len() {
        1 => "1 trial".to_owned(),
        count => format!("{count} trials"),
    };
    match record.interrupted {
        true => Err(fault(format!("lab: interrupted ({made} made); the result has what was measured until then"))),
        false => Ok(()),
    }
}

/// The numbers that a test has of its own.
fn numbers_of(command: &LabCommand, parameters: &Parameters) -> Numbers {
    let highest = Some(("--rate-max", parameters.rate_max));
    match command {
        LabCommand::Cps(_) => Numbers { is_search: true, ..Numbers::default() },
        LabCommand::Throughput(_) => Numbers { is_search: true, timed_rate: highest, ..Numbers::default() },
        LabCommand::Loss(_) => Numbers { timed_rate: highest, ..Numbers::default() },
        LabCommand::Latency(latency) => {
            let rate = ("--rate", latency.rate);
            let timed_rate = (!latency.first_packet).then_some(rate);
            let delays = match latency.first_packet {
                true => ("--sessions", parameters.n as f64),
                false => ("--trial-seconds", latency.rate * parameters.trial_seconds),
            };
            Numbers { rates: vec![rate], timed_rate, delays: Some(delays), ..Numbers::default() }
        }
        LabCommand::Capacity(capacity) => {
            let shares = vec![("--beta", capacity.beta), ("--gamma", capacity.gamma)];
            Numbers { is_search: true, shares, ..Numbers::default() }
        }
        LabCommand::Teardown(_)
        | LabCommand::Ceiling(_)
        | LabCommand::Up
        | LabCommand::Down
        | LabCommand::Join(_)
        | LabCommand::Probe(_)
        | LabCommand::Sharing(_)
        | LabCommand::Study(_)
        | LabCommand::Report(_) => Numbers::default(),
    }
}

/// The tester's interfaces, with the side each is on, where these are the kernel's: it knows more
/// of their links than a driver of sockets.
fn links_of(options: &LabTest) -> Vec<(String, &'static str)> {
    if transport::is_shared_memory(options.transport()) {
        return Vec::new();
    }
    let sides = [(&options.inside, topology::INSIDE), (&options.outside, topology::OUTSIDE)];
    let named = sides.map(|(given, side)| (given.clone().unwrap_or_else(|| side.to_owned()), side));
    named.into_iter().filter(|(link, _)| transport::is_kernel_interface(link)).collect()
}

/// Said before anything is measured.
pub(super) fn can_be_written(path: &Path) -> Result<(), Failure> {
    let was_there = path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| fault(format!("--output: {}: {error}; name another file", path.display())))?;
    if !was_there {
        // It is made anew with the result; where it can't be removed it stays empty until then.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Prints the record, and writes it where it was asked for. A file that can't be written does not
/// take with it what is printed.
pub(super) fn give(record: &Record, options: &LabTest, out: &mut dyn Write) -> Result<(), Failure> {
    let object = serde_json::to_value(record).map_err(io::Error::from)?;
    if options.json {
        writeln!(out, "{object}")?;
    } else {
        output::print(&object, out)?;
    }
    out.flush()?;
    if let Some(path) = &options.output {
        fs::write(path, format!("{object}\n"))
            .map_err(|error| fault(format!("--output: {}: {error}; name another file", path.display())))?;
    }
    Ok(())
}

/// Inside endpoints of so many connections, and the external ports that the device gets for them.
/// None where somebody else has set it up.
fn endpoints_and_ports(options: &LabTest, connections: u64) -> Option<[u64; 2]> {
    let addresses = match (options.dut, options.rules_kind) {
        (LabDevice::External, _) => return None,
        // That of its interface.
        (LabDevice::Netfilter, LabRules::Masquerade) => 1,
        _ => u64::from(options.external_addresses),
    };
    let ports = u64::from(options.dut_ports.last - options.dut_ports.first) + 1;
    Some([connections.div_ceil(u64::from(options.remotes)), addresses * ports])
}

/// All parameters, those of one test only and the ranges of the tuples among them.
fn parameters_with(
    command: &LabCommand,
    options: &LabTest,
    parameters: &Parameters,
    space: &TupleSpace,
    (priority, watched): (&str, bool),
) -> Value {
    let mut all = json!(parameters);
    let mut add = |key: &str, value: Value| all[key] = value;
    add("priority", json!(priority));
    add("device_cpus_watched", json!(watched));
    add("family", json!(transport::family(options.family)));
    add("inside", json!(space.inside()));
    add("remote", json!(space.remote()));
    add("udp_timeout_seconds", json!(UDP_TIMEOUT_SECONDS));
    add("frames_per_connection", json!(parameters.frames_per_connection()));
    match command {
        LabCommand::Latency(latency) => {
            add("rate", json!(latency.rate));
            add("first_packet", json!(latency.first_packet));
        }
        LabCommand::Capacity(capacity) => {
            add("C0", json!(capacity.c0));
            add("beta", json!(capacity.beta));
            add("gamma", json!(capacity.gamma));
            add("E", json!(capacity.capacity_error));
            add("room", json!(capacity.room));
        }
        _ => {}
    }
    all
}

/// The tester's CPU, and those of the device where they are known.
pub(super) fn cpus(options: &LabTest) -> Vec<usize> {
    let of_device = match options.dut {
        LabDevice::Natrix | LabDevice::Netfilter | LabDevice::Vpp => &options.device_cpus[..],
        LabDevice::External => &[],
    };
    [&[tester_cpu(options)], of_device].concat().into_iter().map(usize::from).collect()
}

/// Who works where, as the lab has set it up.
fn cores(options: &LabTest) -> Vec<Core> {
    // Shared memory has no kernel on the way, nor have cards that DPDK drives.
    let is_kernels =
        transport::is_of_kernel(&transport::named(options.transport(), [&options.inside, &options.outside]));
    let tester = match is_kernels {
        true => "tester: writes, sends and checks frames; the kernel's sending of them".to_owned(),
        false => "tester: writes, sends and checks frames".to_owned(),
    };
    let device = match options.dut {
        LabDevice::Natrix if !is_kernels => "device: a worker, polling",
        LabDevice::Natrix => "device: a worker, polling, and the kernel's receiving and sending for it",
        LabDevice::Netfilter => "device: the kernel's receiving, translating and sending (threaded NAPI)",
        LabDevice::Vpp => {
            "device: VPP, polling (the main thread where this is its only or its first CPU, else a worker)"
        }
        LabDevice::External => return vec![Core { cpu: usize::from(tester_cpu(options)), runs: vec![tester] }],
    };
    let own = usize::from(tester_cpu(options));
    let mut all = vec![Core { cpu: own, runs: vec![tester] }];
    for cpu in options.device_cpus.iter().map(|cpu| usize::from(*cpu)) {
        match all.iter_mut().find(|core| core.cpu == cpu) {
            Some(core) => core.runs.push(device.to_owned()),
            None => all.push(Core { cpu, runs: vec![device.to_owned()] }),
        }
    }
    all
}

/// Unit of what is searched.
fn unit_of(command: &LabCommand) -> &'static str {
    match command {
        LabCommand::Cps(_) | LabCommand::Capacity(_) => "connections/s",
        LabCommand::Latency(_) => "us",
        _ => "frames/s",
    }
}

/// Unit and figures. `alone`: frames a second that the tester passes with nothing between its
/// ports.
fn measure(
    command: &LabCommand,
    experiment: &mut Experiment<'_, Ports>,
    space: &TupleSpace,
    alone: Option<f64>,
) -> Result<(&'static str, Value), Failure> {
    Ok(match command {
        LabCommand::Cps(_) => (unit_of(command), json!({ "samples": experiment.cps().map_err(lab_error)? })),
        LabCommand::Throughput(_) => {
            (unit_of(command), json!({ "samples": experiment.throughput().map_err(lab_error)? }))
        }
        LabCommand::Loss(_) => {
            let mut curve = experiment.loss().map_err(lab_error)?;
            if let Some(alone) = alone {
                curve.mark_beyond(alone);
            }
            ("frames", json!(curve))
        }
        LabCommand::Latency(latency) => {
            let all = match latency.first_packet {
                true => experiment.first_packet_latency(latency.rate),
                false => experiment.latency(latency.rate),
            };
            let all = all.map_err(lab_error)?;
            ("us", json!({ "over_repetitions": OverRepetitions::of(&all), "repetitions": all }))
        }
        LabCommand::Teardown(_) => {
            let all = experiment.teardown().map_err(lab_error)?;
            let rates = all.iter().map(|one| one.connections as f64 / one.seconds).collect();
            ("connections/s", json!({ "samples": Samples::of(rates), "repetitions": all }))
        }
        LabCommand::Capacity(capacity) => {
            let limits = CapacityLimits {
                c0: capacity.c0,
                beta: capacity.beta,
                gamma: capacity.gamma,
                error: capacity.capacity_error,
                max: space.len().min(capacity.room.saturating_mul(2)),
            };
            let all = experiment.capacity(&limits).map_err(lab_error)?;
            let stored = all.iter().map(|one| one.stored as f64).collect();
            ("connections", json!({ "samples": Samples::of(stored), "repetitions": all }))
        }
        LabCommand::Ceiling(_)
        | LabCommand::Join(_)
        | LabCommand::Up
        | LabCommand::Down
        | LabCommand::Probe(_)
        | LabCommand::Sharing(_)
        | LabCommand::Study(_)
        | LabCommand::Report(_) => ("", Value::Null),
    })
}

/// What the tables of a configuration take, and the ports of its pools.
fn table_bytes(configuration: &str) -> Option<[u64; 2]> {
    let needed = config::parse(configuration, "natrix.toml").ok()?.memory_needed();
    Some([needed.tables_bytes, needed.pools_bytes])
}

fn device_of(
    options: &LabTest,
    topology: Option<&Topology>,
    folder: &Path,
    needs: Needs,
    (nice, stop): (i32, &Arc<AtomicBool>),
) -> Result<Box<dyn Device>, Failure> {
    match (options.dut, topology) {
        (LabDevice::Natrix, _) => {
            let binary = env::current_exe()
                .map_err(|error| fault(format!("natrix: its own file is not known ({error}); start it by its path")))?;
            let drivers = transport::of_device(options, folder);
            let natrix = Natrix::new(&binary, topology, drivers, folder, needs);
            let natrix = natrix.with_table_bytes(table_bytes).with_stop(Arc::clone(stop));
            // With one remote endpoint no inside endpoint has two connections.
            Ok(Box::new(if options.remotes == 1 { natrix.with_mappings_only() } else { natrix }))
        }
        (LabDevice::Netfilter, Some(topology)) => {
            Ok(Box::new(Netfilter::new(topology, folder, needs).map_err(lab_error)?))
        }
        (LabDevice::Netfilter, None) => Err(fault("netfilter: there are no test hosts; report this".to_owned())),
        (LabDevice::Vpp, _) => {
            let programs = VppPrograms::find().map_err(lab_error)?;
            Ok(Box::new(Vpp::new(programs, folder, needs, Arc::clone(stop)).map_err(lab_error)?))
        }
        (LabDevice::External, _) => match &options.empty_command {
            Some(command) => Ok(Box::new(External::new(command, &options.described, nice, Arc::clone(stop)))),
            None => Err(fault(
                "--empty-command: is missing (every trial begins with an empty table); give a command that empties the table of the device".to_owned(),
            )),
        },
    }
}

/// The test hosts, where the transport and the device need them.
fn topology_of(options: &LabTest) -> Result<Option<Topology>, Failure> {
    if transport::is_shared_memory(options.transport()) || options.dut == LabDevice::External {
        return Ok(None);
    }
    if let Some(topology) = Topology::standing() {
        return Ok(Some(topology));
    }
    Topology::build(&format!("natrix-lab-{}", std::process::id()), false).map(Some).map_err(lab_error)
}

/// The tester's CPU, of options that have one.
pub(super) fn tester_cpu(options: &LabTest) -> u8 {
    options.tester_cpu.unwrap_or_default()
}

/// Lets the calling thread run on the tester's CPU only.
pub(super) fn pin(cpu: u8) -> Result<(), Failure> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if cores.into_iter().any(|core| core.id == usize::from(cpu) && core_affinity::set_for_current(core)) {
        return Ok(());
    }
    Err(fault(format!("--tester-cpu: cannot be used ({cpu}); name a CPU that is on and that this process may use")))
}

/// Ends everything in order when a signal asks for it.
pub(super) fn stopper() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(|error| fault(format!("lab: signals cannot be caught ({error}); start it from another shell")))?;
    }
    end_at_last(LAST_GRACE, || {
        let seconds = LAST_GRACE.as_secs();
        // Without a reader nobody misses it.
        let _ = writeln!(
            io::stderr(),
            "error: lab: still running {seconds} s after a signal, so it is killed; `natrix lab down` removes what is left"
        );
        // The device ends with this process.
        let _ = signal_hook::low_level::raise(SIGKILL);
    })
    .map_err(|error| fault(format!("lab: cannot start the watchdog thread ({error}); try again")))?;
    Ok(stop)
}

/// Calls `kill` a while after the first signal: a command that has ended by then does not see it.
/// Nothing that hangs at the end, in a driver or in the kernel, keeps the command for good.
fn end_at_last(grace: Duration, kill: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let watch = move || {
        if signals.forever().next().is_some() {
            thread::sleep(grace);
            kill();
        }
    };
    thread::Builder::new().name("end".to_owned()).spawn(watch).map(drop)
}

pub(super) fn ends() -> [End; 2] {
    [
        End {
            port: PortIndex(0),
            address: topology::TESTER_INSIDE.to_bits(),
            device: topology::DEVICE_INSIDE.to_bits(),
        },
        End {
            port: PortIndex(1),
            address: topology::TESTER_OUTSIDE.to_bits(),
            device: topology::DEVICE_OUTSIDE.to_bits(),
        },
    ]
}

pub(super) fn tuple_space(options: &LabTest, n: u64) -> Result<TupleSpace, Failure> {
    let remotes = u64::from(options.remotes);
    let inside_endpoints = n.div_ceil(remotes);
    let addresses = match options.rules {
        0 => inside_endpoints.div_ceil(CONNECTIONS_A_SUBSCRIBER).clamp(1, INSIDE_ADDRESSES_MAX),
        // The traffic comes from the addresses the rules are for.
        rules => u64::from(rules),
    };
    // With one remote endpoint the tuples are drawn from all ports (RFC 4814); with several each
    // inside endpoint talks to all.
    let ports = if remotes == 1 { 64_512 } else { inside_endpoints.div_ceil(addresses).min(64_512) };
    let inside = EndpointRange {
        first_address: lab::device::FIRST_INSIDE,
        addresses: addresses as u32,
        ports: 1024..=(1023 + ports) as u16,
    };
    let remote = EndpointRange { first_address: [198, 19, 0, 1].into(), addresses: options.remotes, ports: 80..=80 };
    TupleSpace::new(inside, remote, n, options.seed)
        .ok_or_else(|| fault(format!("--sessions: more than there are four-tuples ({n}); ask for fewer")))
}

pub(super) fn parameters_of(options: &LabTest, n: u64) -> Parameters {
    let most = if transport::is_shared_memory(options.transport()) { 20e6 } else { 2e6 };
    let rate_max = options.rate_max.unwrap_or(most);
    Parameters {
        n,
        preparation_rate: options.preparation_rate,
        alpha: options.alpha,
        protocol: match options.protocol {
            LabProtocol::Udp => Protocol::Udp,
            LabProtocol::Tcp => Protocol::Tcp,
        },
        tcp_close: false,
        frame_bytes: match options.frame_bytes {
            LabFrames::Fixed(bytes) => FrameSizes::Fixed(usize::from(bytes)),
            LabFrames::Imix => FrameSizes::Imix,
        },
        trial_seconds: options.trial_seconds.unwrap_or(if options.quick { 0.5 } else { 2.0 }),
        rate_min: options.rate_min,
        rate_max,
        error: options.error.unwrap_or(rate_max / if options.quick { 40.0 } else { 1000.0 }),
        repetitions: options.repetitions.unwrap_or(if options.quick { 1 } else { 3 }),
        direction: match options.direction {
            LabDirection::Both => Direction::Both,
            LabDirection::Outbound => Direction::Outbound,
            LabDirection::Inbound => Direction::Inbound,
        },
        seed: options.seed,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_command_that_does_not_end_after_a_signal_is_killed() {
        // The flag keeps the signal from ending the test.
        signal_hook::flag::register(SIGHUP, Arc::default()).unwrap();
        let (killed, seen) = mpsc::channel();
        end_at_last(Duration::from_millis(20), move || killed.send(Instant::now()).unwrap()).unwrap();
        let sent = Instant::now();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        let at = seen.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(at - sent >= Duration::from_millis(20));
    }
}
