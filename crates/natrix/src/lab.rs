//! `natrix lab`: builds the test hosts, starts the device, runs a test of RFC 9693, prints its result.

use std::io::Write;

use cli::LabCommand;
use lab::topology::Topology;

use crate::failure::Failure;

/// Runs a command of the lab.
pub(crate) fn run(command: &LabCommand, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        LabCommand::Up => up(out),
        LabCommand::Down => {
            let was_there = Topology::remove_standing().map_err(lab_error)?;
            writeln!(out, "{}", if was_there { "the test hosts are removed" } else { "there are no test hosts" })?;
            Ok(())
        }
        command => test(command, out),
    }
}

fn lab_error(error: impl Into<LabFailure>) -> Failure {
    Failure::Lab(error.into())
}

/// Why the lab has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabFailure {
    /// The test hosts.
    #[error(transparent)]
    Topology(#[from] lab::topology::TopologyError),
    /// The device.
    #[error(transparent)]
    Device(#[from] lab::device::DeviceError),
    /// The test.
    #[error(transparent)]
    Experiment(#[from] lab::experiment::ExperimentError),
    /// Something else that the command line asks for and that is not there.
    #[cfg(feature = "dpdk")]
    #[error("{0}")]
    Fault(String),
    /// The tester's ports.
    #[cfg(feature = "dpdk")]
    #[error("tester: {0}")]
    Ports(#[from] packet_io::dpdk::DpdkError),
}

fn up(out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(topology) = Topology::standing() {
        writeln!(out, "the test hosts are there: {} and {}", topology.tester(), topology.device())?;
        return Ok(());
    }
    let topology = Topology::build(Topology::STANDING, true).map_err(lab_error)?;
    writeln!(
        out,
        "test hosts: {} ({} inside, {} outside) and {} ({}, {}); look inside with: ip netns exec {} ip address",
        topology.tester(),
        lab::topology::TESTER_INSIDE,
        lab::topology::TESTER_OUTSIDE,
        topology.device(),
        lab::topology::DEVICE_INSIDE,
        lab::topology::DEVICE_OUTSIDE,
        topology.tester(),
    )?;
    Ok(())
}

/// It needs drivers, and this build has none.
#[cfg(not(feature = "dpdk"))]
fn test(_: &LabCommand, _: &mut dyn Write) -> Result<(), Failure> {
    let remedy = "build it with: cargo build --release --package natrix --features dpdk";
    Err(cli::CliError::from(control::Fault::new("lab", "this build has no DPDK", remedy)).into())
}

#[cfg(feature = "dpdk")]
use with_ports::test;

#[cfg(feature = "dpdk")]
mod with_ports {
    use std::env;
    use std::fs;
    use std::io;
    use std::io::Write;
    use std::path::PathBuf;
    use std::time::Instant;

    use cli::LabCommand;
    use cli::LabDevice;
    use cli::LabDirection;
    use cli::LabTest;
    use cli::LabTransport;
    use lab::device::Device;
    use lab::device::Natrix;
    use lab::device::Needs;
    use lab::device::Netfilter;
    use lab::experiment::Direction;
    use lab::experiment::Experiment;
    use lab::experiment::Parameters;
    use lab::experiment::Samples;
    use lab::result::Machine;
    use lab::result::Record;
    use lab::result::unix_now;
    use lab::search::CapacityLimits;
    use lab::tester::End;
    use lab::tester::Tester;
    use lab::topology;
    use lab::topology::Topology;
    use lab::tuples::EndpointRange;
    use lab::tuples::TupleSpace;
    use packet_io::PortIndex;
    use packet_io::dpdk;
    use packet_io::dpdk::DpdkIo;
    use packet_io::dpdk::DpdkPort;
    use packet_io::dpdk::DpdkSettings;
    use packet_io::dpdk::Hugepages;
    use serde_json::Value;
    use serde_json::json;

    use super::LabFailure;
    use super::lab_error;
    use crate::failure::Failure;

    /// Subscribers have so many connections each, as far as there are enough inside addresses.
    const CONNECTIONS_A_SUBSCRIBER: u64 = 64;
    /// Inside addresses: 10.0.0.2 to 10.0.255.254 (RFC 9693 §4.1).
    const INSIDE_ADDRESSES_MAX: u64 = 65_533;
    /// Idle time of UDP on the device, longer than any test.
    const UDP_TIMEOUT_SECONDS: u32 = 86_400;
    const TESTER_BUFFERS: u32 = 32_768;
    const TESTER_MEMORY_BYTES: u64 = 512 << 20;

    /// A folder for the device's files, removed when it is over.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            // What is left behind is in the system's folder for such things.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn fault(text: String) -> Failure {
        lab_error(LabFailure::Fault(text))
    }

    fn options_of(command: &LabCommand) -> Option<(&'static str, &LabTest)> {
        match command {
            LabCommand::Throughput(test) => Some(("throughput", test)),
            LabCommand::Loss(test) => Some(("loss", test)),
            LabCommand::Cps(test) => Some(("cps", test)),
            LabCommand::Teardown(test) => Some(("teardown", test)),
            LabCommand::Latency(latency) => Some(("latency", &latency.test)),
            LabCommand::Capacity(capacity) => Some(("capacity", &capacity.test)),
            LabCommand::Up | LabCommand::Down => None,
        }
    }

    /// Runs one test.
    pub(super) fn test(command: &LabCommand, out: &mut dyn Write) -> Result<(), Failure> {
        let Some((name, options)) = options_of(command) else { return Ok(()) };
        let (started_unix, started) = (unix_now(), Instant::now());
        let (n, room) = match command {
            // As many tuples as twice what the device is set up for: the search has to get beyond it.
            LabCommand::Capacity(capacity) => (capacity.room.saturating_mul(2), capacity.room),
            _ => (options.sessions, options.sessions),
        };
        let space = tuple_space(options, n)?;
        let parameters = parameters_of(options, n);
        let topology = match Topology::standing() {
            Some(topology) => topology,
            None => Topology::build(&format!("natrix-lab-{}", std::process::id()), false).map_err(lab_error)?,
        };
        let folder = env::temp_dir().join(format!("natrix-lab-{}", std::process::id()));
        fs::create_dir_all(&folder)
            .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
        let folder = Folder(folder);
        let needs = Needs {
            sessions: room,
            external_addresses: options.external_addresses,
            udp_timeout_seconds: UDP_TIMEOUT_SECONDS,
            cpu: usize::from(options.device_cpu),
        };
        let mut device = device_of(options, &topology, &folder, needs)?;
        device.start().map_err(lab_error)?;
        topology.enter_tester().map_err(lab_error)?;
        let core = core_affinity::get_core_ids().unwrap_or_default();
        if !core
            .into_iter()
            .any(|core| core.id == usize::from(options.tester_cpu) && core_affinity::set_for_current(core))
        {
            return Err(fault(format!(
                "--tester-cpu: can not be used ({}); name a CPU that is on and that this process may use",
                options.tester_cpu
            )));
        }
        let mut tester = Tester::new(ports(options.transport)?, ends());
        tester.meet().map_err(|error| lab_error(lab::experiment::ExperimentError::from(error)))?;
        let mut experiment = Experiment::new(&mut tester, device.as_mut(), &space, &parameters);
        let mut told = io::stderr();
        experiment.on_trial = Box::new(move |line| {
            // Where it can not be written nobody reads it.
            let _ = writeln!(told, "{:>6.1} s  {line}", started.elapsed().as_secs_f64());
        });
        let result = measure(command, &mut experiment, &space)?;
        drop(experiment);
        let record = Record {
            test: name,
            dut: device.name(),
            transport: driver(options.transport).to_owned(),
            parameters: &parameters,
            result,
            device: device.settings(),
            machine: Machine::this(),
            version: env!("CARGO_PKG_VERSION"),
            cpus: [usize::from(options.tester_cpu), usize::from(options.device_cpu)],
            started_unix,
            took_seconds: started.elapsed().as_secs_f64(),
            command: env::args().collect::<Vec<_>>().join(" "),
        };
        let object = serde_json::to_value(&record).map_err(io::Error::from)?;
        if let Some(path) = &options.output {
            fs::write(path, format!("{object}\n"))
                .map_err(|error| fault(format!("--output: {}: {error}; name another file", path.display())))?;
        }
        if options.json {
            writeln!(out, "{object}")?
        } else {
            print(&object, out)?
        }
        Ok(())
    }

    fn measure(
        command: &LabCommand,
        experiment: &mut Experiment<'_, DpdkIo>,
        space: &TupleSpace,
    ) -> Result<Value, Failure> {
        let samples = |samples: Samples, unit: &str| json!({ "unit": unit, "samples": samples });
        let value = match command {
            LabCommand::Cps(_) => samples(experiment.cps().map_err(lab_error)?, "connections/s"),
            LabCommand::Throughput(_) => samples(experiment.throughput().map_err(lab_error)?, "frames/s"),
            LabCommand::Loss(_) => json!({ "steps": experiment.loss().map_err(lab_error)? }),
            LabCommand::Latency(latency) => {
                json!({ "repetitions": experiment.latency(latency.rate).map_err(lab_error)? })
            }
            LabCommand::Teardown(_) => {
                let all = experiment.teardown().map_err(lab_error)?;
                let rates = all.iter().map(|one| one.connections as f64 / one.seconds).collect();
                json!({ "unit": "connections/s", "samples": Samples::of(rates), "repetitions": all })
            }
            LabCommand::Capacity(capacity) => {
                let limits = CapacityLimits {
                    c0: capacity.c0,
                    beta: capacity.beta,
                    gamma: capacity.gamma,
                    error: capacity.capacity_error,
                    max: space.len().min(capacity.room.saturating_mul(2)),
                };
                json!({ "unit": "connections", "capacity": experiment.capacity(&limits).map_err(lab_error)? })
            }
            LabCommand::Up | LabCommand::Down => Value::Null,
        };
        Ok(value)
    }

    fn device_of(
        options: &LabTest,
        topology: &Topology,
        folder: &Folder,
        needs: Needs,
    ) -> Result<Box<dyn Device>, Failure> {
        Ok(match options.dut {
            LabDevice::Natrix => {
                let binary = env::current_exe().map_err(|error| {
                    fault(format!("natrix: its own file is not known ({error}); start it by its path"))
                })?;
                Box::new(Natrix::new(&binary, topology, driver(options.transport), &folder.0, needs))
            }
            LabDevice::Netfilter => Box::new(Netfilter::new(topology, needs).map_err(lab_error)?),
        })
    }

    fn driver(transport: LabTransport) -> &'static str {
        match transport {
            LabTransport::AfXdp => "net_af_xdp",
            LabTransport::AfPacket => "net_af_packet",
        }
    }

    fn ports(transport: LabTransport) -> Result<DpdkIo, Failure> {
        let driver = driver(transport);
        let port = |number: usize, interface: &str| DpdkPort {
            device: format!("{driver}{number},iface={interface}"),
            is_pci: false,
            mtu: 1500,
            rx_descriptors: 2048,
            tx_descriptors: 2048,
        };
        let settings = DpdkSettings {
            ports: vec![port(0, topology::INSIDE), port(1, topology::OUTSIDE)],
            workers: 1,
            hugepages: Hugepages::Off,
            memory_bytes: TESTER_MEMORY_BYTES,
            buffers: TESTER_BUFFERS,
        };
        let mut views = dpdk::start(&settings).map_err(|error| lab_error(LabFailure::Ports(error)))?;
        views.pop().ok_or_else(|| fault("tester: no view of its ports; report this".to_owned()))
    }

    fn ends() -> [End; 2] {
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

    fn tuple_space(options: &LabTest, n: u64) -> Result<TupleSpace, Failure> {
        let remotes = u64::from(options.remotes);
        let inside_endpoints = n.div_ceil(remotes);
        let addresses = inside_endpoints.div_ceil(CONNECTIONS_A_SUBSCRIBER).clamp(1, INSIDE_ADDRESSES_MAX);
        // With one remote endpoint the tuples are drawn from all ports (RFC 4814); with several each inside endpoint talks to all.
        let ports = if remotes == 1 { 64_512 } else { inside_endpoints.div_ceil(addresses).min(64_512) };
        let inside = EndpointRange {
            first_address: [10, 0, 0, 2].into(),
            addresses: addresses as u32,
            ports: 1024..=(1023 + ports) as u16,
        };
        let remote =
            EndpointRange { first_address: [198, 19, 0, 1].into(), addresses: options.remotes, ports: 80..=80 };
        TupleSpace::new(inside, remote, n, options.seed)
            .ok_or_else(|| fault(format!("--sessions: there are not so many four-tuples ({n}); ask for fewer")))
    }

    fn parameters_of(options: &LabTest, n: u64) -> Parameters {
        Parameters {
            n,
            preparation_rate: options.preparation_rate,
            alpha: options.alpha,
            frame_bytes: usize::from(options.frame_bytes),
            trial_seconds: options.trial_seconds,
            rate_min: options.rate_min,
            rate_max: options.rate_max,
            error: options.error,
            repetitions: options.repetitions,
            direction: match options.direction {
                LabDirection::Both => Direction::Both,
                LabDirection::Outbound => Direction::Outbound,
                LabDirection::Inbound => Direction::Inbound,
            },
            seed: options.seed,
        }
    }

    /// The result for people.
    fn print(record: &Value, out: &mut dyn Write) -> io::Result<()> {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        writeln!(
            out,
            "{} of {} over {}: {} connections, frames of {} bytes",
            text("test"),
            text("dut"),
            text("transport"),
            record["parameters"]["n"],
            record["parameters"]["frame_bytes"]
        )?;
        let result = &record["result"];
        if let Some(samples) = result.get("samples") {
            let number = |key: &str| samples[key].as_f64().unwrap_or_default();
            let count = samples["values"].as_array().map_or(0, Vec::len);
            writeln!(
                out,
                "  median {:.0} {}, 1st percentile {:.0}, 99th {:.0}, of {count}",
                number("median"),
                result["unit"].as_str().unwrap_or_default(),
                number("p1"),
                number("p99")
            )?;
        }
        for step in result["steps"].as_array().into_iter().flatten() {
            let number = |key: &str| step[key].as_f64().unwrap_or_default();
            let share = 100.0 * number("lost") / number("sent").max(1.0);
            writeln!(
                out,
                "  {:>10.0} frames/s: {share:.4} % lost ({} of {})",
                number("rate"),
                step["lost"],
                step["sent"]
            )?;
        }
        for repetition in result["repetitions"].as_array().into_iter().flatten() {
            for delays in repetition["delays"].as_array().into_iter().flatten() {
                let number = |key: &str| delays[key].as_f64().unwrap_or_default();
                writeln!(
                    out,
                    "  {:<8} typical {:.1} us, worst case {:.1} us, least {:.1}, most {:.1}, PDV {:.1}, {} frames, {} lost",
                    delays["way"].as_str().unwrap_or_default(),
                    number("typical_us"),
                    number("worst_case_us"),
                    number("min_us"),
                    number("max_us"),
                    number("pdv_us"),
                    delays["frames"],
                    repetition["lost"]
                )?;
            }
        }
        if let Some(capacity) = result.get("capacity") {
            match capacity["failed"].as_u64() {
                Some(failed) => writeln!(out, "  {} connections held, {failed} not", capacity["stored"])?,
                None => writeln!(out, "  {} connections held; the tester has no more", capacity["stored"])?,
            }
        }
        let machine = &record["machine"];
        writeln!(
            out,
            "  on {}, {} CPUs, Linux {}; tester on CPU {}, device on CPU {}",
            machine["cpu"].as_str().unwrap_or_default(),
            machine["cpus"],
            machine["kernel"].as_str().unwrap_or_default(),
            record["cpus"][0],
            record["cpus"][1]
        )
    }
}
