//! `natrix lab sharing`: several NATs behind one router, measured, drained and killed.

use std::env;
use std::fs;
use std::io;
use std::io::Write;
use std::time::Instant;

use cli::LabSharing;
use lab::result::Machine;
use lab::result::own_command_line;
use lab::result::unix_now;
use lab::sharing::Sharing;
use lab::sharing::SharingOptions;
use lab::sharing::share;
use lab::topology;
use packet_io::dpdk;
use serde_json::json;

use super::lab_error;
use super::measure::Folder;
use super::measure::fault;
use super::measure::stopper;
use super::transport;
use crate::failure::Failure;

/// Runs the command.
pub(super) fn run(options: &LabSharing, out: &mut dyn Write) -> Result<(), Failure> {
    let (started_unix, started) = (unix_now(), Instant::now());
    let stop = stopper()?;
    let process = std::process::id();
    let folder = topology::run_folder(process);
    fs::create_dir_all(&folder)
        .map_err(|error| fault(format!("folder {}: {error}; set TMPDIR to another", folder.display())))?;
    let folder = Folder(folder);
    let driver = transport::driver(options.transport.into());
    let sharing_options = SharingOptions {
        binary: env::current_exe()
            .map_err(|error| fault(format!("natrix: its own file is not known ({error}); start it by its path")))?,
        nats: options.nats,
        subscribers: options.subscribers,
        rate_seconds: options.rate_seconds,
        drivers: [format!("{driver}0,iface=inside"), format!("{driver}1,iface=outside")],
        idle_seconds: options.idle,
        seed: options.seed,
    };
    let prefix = format!("{}-{process}", topology::Topology::STANDING);
    // Said where nobody reads JSON; without a reader nobody misses it.
    let tell = |what: &str| drop(writeln!(io::stderr(), "lab: {} NATs: {what}", options.nats));
    let result = share(&sharing_options, &prefix, &folder.0, &stop, tell).map_err(lab_error)?;
    if !options.json {
        return Ok(print(options, &result, out)?);
    }
    let record = json!({
        "schema": lab::result::SCHEMA,
        "test": "sharing",
        "nats": options.nats,
        "subscribers": options.subscribers,
        "streams": lab::sharing::STREAMS,
        "link_mbit_per_second": lab::sharing::PAPER_LINK_MBIT,
        "idle_seconds": options.idle,
        "driver": driver,
        "result": result,
        "machine": Machine::this(),
        "versions": lab::result::versions(env!("CARGO_PKG_VERSION"), Some(&dpdk::version())),
        "frr": lab::sharing::frr_version(),
        "seed": options.seed,
        "command": own_command_line(),
        "started_unix": started_unix,
        "took_seconds": started.elapsed().as_secs_f64(),
    });
    Ok(writeln!(out, "{record}")?)
}

fn print(options: &LabSharing, result: &Sharing, out: &mut dyn Write) -> io::Result<()> {
    let Sharing { limited, unlimited, steady, drain, kill } = result;
    let mut rows = vec![
        (
            format!("TCP over links of {} Mbit/s", lab::sharing::PAPER_LINK_MBIT),
            format!("{:.0} Mbit/s, packets of each NAT {:?}", limited.mbit_per_second, limited.packets_of_each_nat),
        ),
        (
            "TCP over links without a limit".to_owned(),
            format!("{:.0} Mbit/s, packets of each NAT {:?}", unlimited.mbit_per_second, unlimited.packets_of_each_nat),
        ),
        (
            "subscribers with one external address".to_owned(),
            format!("{} of {}, of each NAT {:?}", steady.kept_one_address, options.subscribers, steady.of_each_nat),
        ),
    ];
    if let Some(drain) = drain {
        let cell = format!(
            "{} of {}; of the other NATs {} of {}",
            drain.flows_lost, drain.flows, drain.other_flows_lost, drain.other_flows
        );
        rows.push((format!("flows lost in a drain of {:.1} s", drain.seconds), cell));
        let cell = format!("{} of {}", drain.new_at_drained, drain.new_subscribers);
        rows.push(("new subscribers at the drained NAT".to_owned(), cell));
    }
    if let Some(kill) = kill {
        let cell = format!(
            "{:.2} s for {} subscribers; the router noticed after {:.2} s",
            kill.back_seconds, kill.subscribers, kill.noticed_seconds
        );
        rows.push(("back after a kill".to_owned(), cell));
        let cell =
            format!("{} datagrams, {} addresses of {}", kill.others_datagrams_lost, kill.others_moved, kill.others);
        rows.push(("lost by the others in a kill".to_owned(), cell));
    }
    let rows: Vec<Vec<String>> = rows.into_iter().map(|(what, found)| vec![what, found]).collect();
    cli::write_table(&[format!("{} NATs", options.nats), "found".to_owned()], &rows, out)
}
