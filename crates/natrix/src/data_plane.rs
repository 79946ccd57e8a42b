//! The commands that read a configuration: `check`, `run`, `replay`.

use core::net::Ipv4Addr;
use std::fs;
use std::io::Write;
#[cfg(feature = "dpdk")]
use std::os::unix::net::UnixStream;
use std::path::Path;

use cli::Check;
use cli::Find;
use cli::Replay;
use cli::Run;
use config::Config;
use config::Control;
use config::Fault;
use config::Machine;
use control::FindAddress;
use daemon::replay::ReplayFiles;
use daemon::replay::replay as replay_captures;
use export::store::HostPrefix;
use lookup::Asked;
use lookup::convert::engine_protocol;
use serde_json::json;

#[cfg(feature = "dpdk")]
use crate::doctor;
use crate::failure::Failure;
#[cfg(feature = "dpdk")]
use crate::machine::Files;
use crate::service_user;

/// Reads and checks a configuration, with the limits of `machine`.
fn load(path: &Path, machine: &Machine) -> Result<Config, Vec<Fault>> {
    let (text, file) = text_of(path)?;
    config::parse_for(&text, &file, machine)
}

/// The text of a configuration, and the name of its file.
fn text_of(path: &Path) -> Result<(String, String), Vec<Fault>> {
    let file = path.display().to_string();
    match fs::read(path) {
        Ok(bytes) => Ok((config::text(bytes, &file).map_err(|fault| vec![*fault])?, file)),
        Err(error) => Err(vec![Fault {
            file,
            line: None,
            object: String::new(),
            problem: "cannot be read".to_owned(),
            seen: error.to_string(),
            remedy: "check the path and its permissions".to_owned(),
        }]),
    }
}

/// The table `[control]` of a configuration, whatever else is wrong with it.
pub(crate) fn control_of(path: &Path) -> Result<Control, Failure> {
    // Bytes that are no text are elsewhere, or a fault of the table.
    let lossy = fs::read(path).map(|bytes| (String::from_utf8_lossy(&bytes).into_owned(), path.display().to_string()));
    let control = lossy.or_else(|_| text_of(path)).and_then(|(text, file)| config::control(&text, &file));
    control.map_err(Failure::Configuration)
}

/// A fault or warning as JSON.
fn object(level: &str, fault: &Fault) -> serde_json::Value {
    json!({
        "level": level,
        "file": fault.file,
        "line": fault.line,
        "object": fault.object,
        "problem": fault.problem,
        "seen": fault.seen,
        "remedy": fault.remedy,
    })
}

/// `natrix check`: reports all faults of a file, with `--json` on standard output, one object per
/// line. Checks CPUs and memory of this machine as `natrix run` does, unless the file is for any
/// machine.
pub(crate) fn check(arguments: &Check, out: &mut dyn Write) -> Result<(), Failure> {
    let machine = if arguments.any_machine { Machine::default() } else { daemon::machine::this_machine() };
    let config = match load(&arguments.config, &machine) {
        Ok(config) => config,
        Err(faults) if arguments.json => {
            for fault in &faults {
                writeln!(out, "{}", object("error", fault))?;
            }
            return Err(Failure::Reported);
        }
        Err(faults) => return Err(Failure::Configuration(faults)),
    };
    let of_service =
        if arguments.any_machine { Vec::new() } else { service_user::warnings(&config, &arguments.config) };
    for warning in config.warnings.iter().chain(&of_service) {
        if arguments.json {
            writeln!(out, "{}", object("warning", &warning.0))?;
        } else {
            writeln!(out, "{warning}")?;
        }
    }
    if !arguments.json {
        let counted = |number: usize, what| control::counted(number as u64, what);
        writeln!(
            out,
            "{}: valid; {} on {}, {} with {}, {}, {} MiB of memory",
            arguments.config.display(),
            counted(config.nat.interfaces.len(), "interface"),
            counted(config.ports.len(), "port"),
            counted(config.nat.pools.len(), "pool"),
            counted(config.nat.pools.iter().map(|pool| pool.addresses.len()).sum(), "address"),
            counted(config.workers.count, "worker"),
            config.memory_needed().total_bytes() >> 20,
        )?;
        if config.event_log.is_none() {
            writeln!(out, "note: event log: {}; set [log.store] path to record it", config::NO_LOG)?;
        }
    }
    Ok(())
}

/// `natrix find --config`: answers from the file alone, which may be for another machine.
pub(crate) fn find(arguments: &Find, file: &Path, out: &mut dyn Write) -> Result<(), Failure> {
    if let FindAddress::Ipv6(_) = arguments.endpoint.address {
        let remedy = "ask the instance, or its log: --at TIME; no formula has IPv6 hosts";
        let fault = control::Fault::new("find", "a configuration alone has no IPv6 hosts", remedy);
        return Err(cli::CliError::from(fault.seen(arguments.endpoint.address.to_string())).into());
    }
    let answers = lookup::formula::find(&config_of(file)?.nat, &asked(arguments))?;
    Ok(cli::print_found(&answers, arguments.output.json, out)?)
}

/// The question of `find`.
pub(crate) fn asked(arguments: &Find) -> Asked<'_> {
    let (address, host) = match arguments.endpoint.address {
        FindAddress::Ipv4(address) => (address, None),
        FindAddress::Ipv6(prefix) => {
            let host = HostPrefix { address: prefix.address().to_bits(), length: prefix.length() };
            (Ipv4Addr::UNSPECIFIED, Some(host))
        }
    };
    Asked {
        address,
        host,
        port: arguments.endpoint.port,
        protocol: arguments.protocol.map(engine_protocol),
        vrf: arguments.vrf.as_deref(),
    }
}

/// A configuration, which may be for another machine.
pub(crate) fn config_of(file: &Path) -> Result<Config, Failure> {
    load(file, &Machine::default()).map_err(Failure::Configuration)
}

/// `natrix run`: runs the data plane until a signal ends it.
#[cfg(feature = "dpdk")]
pub(crate) fn run(arguments: &Run) -> Result<(), Failure> {
    let config = load(&arguments.config, &daemon::machine::this_machine()).map_err(Failure::Configuration)?;
    // Before another process is started, whose own messages would hide the cause.
    if UnixStream::connect(&config.control.socket).is_ok() {
        let socket = config.control.socket.clone();
        return Err(daemon::run::RunError::from(daemon::server::SocketError::InUse(socket)).into());
    }
    if let Some(fault) = doctor::unprivileged(&Files::new(Path::new("/")), &config) {
        return Err(cli::CliError::from(fault).into());
    }
    let claims = daemon::claims::take(&config).map_err(daemon::run::RunError::from)?;
    // Before DPDK pins this thread. Until the instance answers, the API says so.
    let _api = crate::api_process::start(&config)?;
    let _snmp = crate::snmp_process::start(&config)?;
    Ok(daemon::dpdk::run(&config, &arguments.config, env!("CARGO_PKG_VERSION"), &claims)?)
}

/// `natrix run` needs ports, which this build cannot open.
#[cfg(not(feature = "dpdk"))]
pub(crate) fn run(arguments: &Run) -> Result<(), Failure> {
    load(&arguments.config, &daemon::machine::this_machine()).map_err(Failure::Configuration)?;
    let remedy = "build with: cargo build --release --package natrix --features dpdk";
    Err(cli::CliError::from(control::Fault::new("ports", "this build has no DPDK", remedy)).into())
}

/// `natrix replay`: reads captures, writes captures and a summary.
pub(crate) fn replay(arguments: &Replay, out: &mut dyn Write) -> Result<(), Failure> {
    let config = load(&arguments.config, &Machine::default()).map_err(Failure::Configuration)?;
    let files = ReplayFiles {
        inside: arguments.inside.clone(),
        outside: arguments.outside.clone(),
        out_dir: arguments.out_dir.clone(),
    };
    let summary = replay_captures(&config, &files)?;
    if arguments.json {
        serde_json::to_writer(&mut *out, &summary).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write!(out, "{summary}")?;
    }
    Ok(())
}
