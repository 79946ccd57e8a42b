//! `natrix lab probe`: starts the device, finds how it behaves, prints a table or a JSON object.

use core::fmt;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::env;
use std::fs;
use std::io;
use std::io::IsTerminal;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use cli::Align;
use cli::LabPairs;
use cli::LabProbe;
use cli::LabProbePart;
use cli::LabProbed;
use cli::LabTransport;
use cli::Table;
use indicatif::ProgressBar;
use indicatif::ProgressState;
use indicatif::ProgressStyle;
use lab::device::Device;
use lab::device::DeviceTimers;
use lab::device::Natrix;
use lab::device::Needs;
use lab::device::Netfilter;
use lab::edge;
use lab::experiment::ExperimentError;
use lab::probe::Part;
use lab::probe::ProbeOptions;
use lab::probe::ProbeReport;
use lab::probe::Progress;
use lab::probe::Site;
use lab::probe::ports::PortsWorld;
use lab::probe::timers::TimerLimits;
use lab::result::Core;
use lab::result::Machine;
use lab::result::own_command_line;
use lab::result::unix_now;
use lab::tester::FIRST_PATIENCE;
use lab::tester::Tester;
use lab::topology;
use lab::topology::Topology;
use packet_io::dpdk;
use serde_json::Value;
use serde_json::json;

use super::cpus;
use super::lab_error;
use super::measure::Folder;
use super::measure::can_be_written;
use super::measure::ends;
use super::measure::fault;
use super::measure::pin;
use super::transport;
use crate::failure::Failure;

/// Flows a device has to hold while it is probed, beside those of one host that opens as many as it
/// can.
const SESSIONS: u64 = 50_000;
/// With `--quick`: timers longer than this are not there.
const QUICK_TIMER_MAX: f64 = 12.0;
/// With `--quick`: the interval a time is found in.
const QUICK_RESOLUTION: f64 = 0.5;
/// With `--quick`: flows of one host.
const QUICK_EXHAUST_MAX: u32 = 4_096;
/// Inside hosts, from 10.0.1.0 on.
const INSIDE_HOSTS: u32 = 32_768;
const REMOTES: u32 = 64;

/// Runs the command.
pub(super) fn run(options: &LabProbe, out: &mut dyn Write) -> Result<(), Failure> {
    let (started_unix, started) = (unix_now(), Instant::now());
    let options = &cpus::of_probe(options);
    let probe_options = probe_options(options);
    if let Some(path) = &options.output {
        can_be_written(path)?;
    }
    if options.masquerade && options.dut != LabProbed::Netfilter {
        return Err(fault("--masquerade: is a rule of Netfilter's; leave it out, or add --dut netfilter".to_owned()));
    }
    let given = given_ports(options)?;
    let family = transport::family(options.family);
    let transport: LabTransport = options.transport.into();
    let stop = super::measure::stopper()?;
    let topology = match (&given, Topology::standing()) {
        (Some(_), _) => None,
        (None, Some(topology)) => Some(topology),
        (None, None) if options.dut == LabProbed::External => {
            return Err(fault(
                "--dut external: there are no test hosts; build them with `natrix lab up` and start the device between them, or name the tester's own ports \
                 with --inside and --outside"
                    .to_owned(),
            ));
        }
        (None, None) => Some(Topology::build(&format!("natrix-lab-{}", std::process::id()), false).map_err(lab_error)?),
    };
    let folder = topology::run_folder(std::process::id());
    fs::create_dir_all(&folder)
        .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
    let folder = Folder(folder);
    let mut device = match &topology {
        Some(topology) => device_of(options, topology, &folder, &probe_options, &stop)?,
        None => None,
    };
    if let Some(topology) = &topology {
        topology.set_mtu(edge::mtu(family)).map_err(lab_error)?;
    }
    if let Some(device) = &mut device {
        device.start().map_err(lab_error)?;
    }
    if let Some(topology) = &topology {
        topology.enter_tester().map_err(lab_error)?;
    }
    pin(cpus_of(options).0)?;
    let ports = match given {
        Some(given) => transport::towards_device(given, family)?,
        None => transport::pairs(transport, family)?,
    };
    let mut tester = Tester::new(ports, ends());
    tester.stop_on(Arc::clone(&stop));
    let met: Result<(), ExperimentError> = tester.meet_while(|waited| match &mut device {
        Some(device) => {
            device.alive()?;
            Ok(waited < device.patience())
        }
        None => Ok(waited < FIRST_PATIENCE),
    });
    met.map_err(lab_error)?;
    let stations = tester.stations();
    let mut world = PortsWorld::new(tester.into_io(), ends(), stations);
    world.stop_on(stop);
    let mut shown = Waiting::new(started);
    let mut report =
        lab::probe::probe(&mut world, site(), &probe_options, &mut |what| shown.show(what)).map_err(lab_error)?;
    drop(shown);
    let set_by_lab = options.quick && device.is_some();
    if set_by_lab {
        lab::probe::timers::mark_as_set_by_the_lab(&mut report.findings);
    }
    let timer = |timer: &lab::probe::timers::Timer| {
        let mut record = timer.record();
        record["set_by_lab"] = json!(set_by_lab);
        record
    };
    let cores = cores(options);
    let name = device.as_ref().map_or("external", |device| device.name());
    let object = json!({
        "schema": lab::result::SCHEMA,
        "test": "probe",
        "dut": name,
        "transport": transport::named(transport, [&options.inside, &options.outside]),
        "parameters": probe_options,
        "seed": probe_options.seed,
        "site": site(),
        "findings": report.findings.iter().map(lab::probe::Finding::record).collect::<Vec<_>>(),
        "interrupted": report.interrupted,
        "timers": report.timers.iter().map(timer).collect::<Vec<_>>(),
        "device": device.as_ref().map(|device| device.settings()),
        "machine": Machine::this(),
        "versions": lab::result::versions(env!("CARGO_PKG_VERSION"), Some(&dpdk::version())),
        "cpus": cores.iter().map(|core| core.cpu).collect::<Vec<_>>(),
        "cores": cores,
        "started_unix": started_unix,
        "took_seconds": started.elapsed().as_secs_f64(),
        "command": own_command_line(),
    });
    give(&object, &report, options, out)?;
    if report.interrupted {
        let found = report.findings.len();
        return Err(fault(format!("lab: interrupted ({found} findings); what was found until then is in the result")));
    }
    Ok(())
}

/// The tester's ports to a device of somebody else's, where they are named.
fn given_ports(options: &LabProbe) -> Result<Option<[String; 2]>, Failure> {
    match (&options.inside, &options.outside) {
        (None, None) => Ok(None),
        (Some(inside), Some(outside)) if options.dut == LabProbed::External => {
            Ok(Some(transport::of_names(options.transport.into(), [inside, outside])))
        }
        (Some(_), Some(_)) => {
            Err(fault("--inside, --outside: are for a device that is not the lab's own; add --dut external".to_owned()))
        }
        _ => Err(fault("--inside, --outside: only one of them is given; name both ends".to_owned())),
    }
}

fn probe_options(options: &LabProbe) -> ProbeOptions {
    let (max, resolution, exhaust_max) = if options.quick {
        let max = options.timer_max.min(QUICK_TIMER_MAX);
        (max, options.resolution.min(QUICK_RESOLUTION), options.exhaust_max.min(QUICK_EXHAUST_MAX))
    } else {
        (options.timer_max, options.resolution, options.exhaust_max)
    };
    let parts = if options.only.is_empty() {
        Part::ALL.to_vec()
    } else {
        options.only.iter().map(|part| part_of(*part)).collect()
    };
    ProbeOptions {
        parts,
        patience: Duration::from_millis(u64::from(options.patience)),
        timers: TimerLimits { max: Duration::from_secs_f64(max), resolution: Duration::from_secs_f64(resolution) },
        exhaust_max,
        seed: options.seed,
        // The driver's sockets are a fan-out group that joins fragments, so that all of a datagram
        // goes to the same.
        family: transport::family(options.family),
        arrive_whole: options.transport == LabPairs::AfPacket,
    }
}

fn part_of(part: LabProbePart) -> Part {
    match part {
        LabProbePart::Mapping => Part::Mapping,
        LabProbePart::Filtering => Part::Filtering,
        LabProbePart::Ports => Part::Ports,
        LabProbePart::Hairpinning => Part::Hairpinning,
        LabProbePart::Fragments => Part::Fragments,
        LabProbePart::Ttl => Part::Ttl,
        LabProbePart::Icmp => Part::Icmp,
        LabProbePart::Tcp => Part::Tcp,
        LabProbePart::Timers => Part::Timers,
        LabProbePart::Exhaustion => Part::Exhaustion,
    }
}

fn site() -> Site {
    Site {
        first_inside: [10, 0, 1, 0].into(),
        inside_hosts: INSIDE_HOSTS,
        first_remote: [198, 19, 0, 1].into(),
        remotes: REMOTES,
        transit: topology::TESTER_OUTSIDE,
    }
}

/// Who works where, as far as it is known: not of a device from elsewhere.
fn cores(options: &LabProbe) -> Vec<Core> {
    let core = |cpu: u8, runs: &[&str]| Core {
        cpu: usize::from(cpu),
        runs: runs.iter().map(|what| (*what).to_owned()).collect(),
    };
    let tester = "tester: writes, sends and reads packets; the kernel's sending of them";
    let natrix = "device: a worker, which sleeps when idle, and the kernel's receiving and sending for it";
    let netfilter = "device: the kernel's receiving, translating and sending, when the tester sends";
    let (of_tester, of_device) = cpus_of(options);
    match options.dut {
        LabProbed::Natrix if of_device == of_tester => vec![core(of_tester, &[tester, natrix])],
        LabProbed::Natrix => vec![core(of_tester, &[tester]), core(of_device, &[natrix])],
        LabProbed::Netfilter => vec![core(of_tester, &[tester, netfilter])],
        LabProbed::External => vec![core(of_tester, &[tester])],
    }
}

/// CPUs of the tester and of the device, of options that have both.
fn cpus_of(options: &LabProbe) -> (u8, u8) {
    (options.tester_cpu.unwrap_or_default(), options.device_cpu.unwrap_or_default())
}

/// None for a device that somebody else has started.
fn device_of(
    options: &LabProbe,
    topology: &Topology,
    folder: &Folder,
    probe_options: &ProbeOptions,
    stop: &Arc<AtomicBool>,
) -> Result<Option<Box<dyn Device>>, Failure> {
    let timers = options.quick.then_some(DeviceTimers::SHORT);
    let sessions = SESSIONS + u64::from(probe_options.exhaust_max);
    let needs = Needs {
        ports: options.dut_ports.first..=options.dut_ports.last,
        family: transport::family(options.family),
        ..Needs::plain(sessions, options.external_addresses, 0, usize::from(cpus_of(options).1))
    };
    Ok(match options.dut {
        LabProbed::Natrix => {
            let binary = env::current_exe()
                .map_err(|error| fault(format!("natrix: its own file is not known ({error}); start it by its path")))?;
            let drivers = transport::pairs_of_device(options.transport.into());
            let natrix = Natrix::new(&binary, Some(topology), drivers, &folder.0, needs);
            Some(Box::new(natrix.with_timers(timers).with_sleep().with_stop(Arc::clone(stop))))
        }
        LabProbed::Netfilter => {
            let netfilter = Netfilter::new(topology, &folder.0, needs).map_err(lab_error)?;
            let netfilter = netfilter.with_timers(timers).with_loose_tracking();
            Some(Box::new(if options.masquerade { netfilter.as_home_router() } else { netfilter }))
        }
        LabProbed::External => None,
    })
}

/// How far it is, for people who wait: a line with the time left on a terminal, elsewhere a line
/// for each finding.
struct Waiting {
    started: Instant,
    bar: Option<ProgressBar>,
    /// When all will be over about, milliseconds after the start.
    ends_ms: Arc<AtomicU64>,
}

impl Waiting {
    fn new(started: Instant) -> Waiting {
        let ends_ms = Arc::new(AtomicU64::new(0));
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            // The template is a literal; without it the line has another look.
            if let Ok(style) = ProgressStyle::with_template("probe {spinner} {elapsed} gone, {left} left  {msg}") {
                let ends = Arc::clone(&ends_ms);
                bar.set_style(style.with_key("left", move |_: &ProgressState, text: &mut dyn fmt::Write| {
                    let left = Duration::from_millis(ends.load(Ordering::Relaxed)).saturating_sub(started.elapsed());
                    // It is only shown.
                    let _ = write!(text, "about {} s", left.as_secs());
                }));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Waiting { started, bar, ends_ms }
    }

    fn show(&mut self, progress: Progress<'_>) {
        let line = match progress {
            Progress::Part { part, seconds_left } => {
                let ends = self.started.elapsed() + Duration::from_secs_f64(seconds_left);
                self.ends_ms.store(u64::try_from(ends.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
                if let Some(bar) = &self.bar {
                    bar.set_message(json!(part).as_str().unwrap_or_default().to_owned());
                }
                return;
            }
            Progress::Found(finding) => format!("{}: {}", finding.name, finding.value),
            Progress::Waiting { what, flows, at_most } => {
                let line = format!("{what}: {flows} flows are asked, {:.0} s at most", at_most.as_secs_f64());
                if let Some(bar) = &self.bar {
                    bar.set_message(line);
                    return;
                }
                line
            }
        };
        let seconds = self.started.elapsed().as_secs_f64();
        let line = format!("{seconds:>6.1} s  {line}");
        match &self.bar {
            Some(bar) => bar.println(line),
            // A line that cannot be written has no reader.
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// To who asked and into the file: neither a full disk nor a reader that has gone takes what was
/// found away from the other.
fn give(object: &Value, report: &ProbeReport, options: &LabProbe, out: &mut dyn Write) -> Result<(), Failure> {
    let printed = if options.json { writeln!(out, "{object}") } else { table(report).flush(out) };
    let written = printed.and_then(|()| out.flush());
    if let Some(path) = &options.output {
        fs::write(path, format!("{object}\n"))
            .map_err(|error| fault(format!("--output: {}: {error}; name another file", path.display())))?;
    }
    Ok(written?)
}

fn table(report: &ProbeReport) -> Table {
    let mut table = Table::new(&[
        ("FINDING", Align::Left),
        ("VALUE", Align::Left),
        ("REQUIREMENT", Align::Left),
        ("", Align::Left),
    ]);
    for finding in &report.findings {
        let mut first = [finding.name.clone(), finding.value.clone()];
        for judgement in &finding.judgements {
            let [name, value] = std::mem::take(&mut first);
            let requirement = format!("{}: {}", judgement.requirement, judgement.asks);
            table.row(vec![name, value, requirement, judgement.verdict.to_string()]);
        }
        if finding.judgements.is_empty() {
            let [name, value] = first;
            table.row(vec![name, value, String::new(), String::new()]);
        }
    }
    table
}
