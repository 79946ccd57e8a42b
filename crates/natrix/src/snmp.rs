//! `natrix snmp`, the process for SNMP.

use std::io;
use std::io::BufRead;

use control::Fault;
use snmp::Settings;

use crate::failure::Failure;

/// `natrix snmp`: the process itself.
pub(crate) fn run() -> Result<(), Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let settings: Settings = serde_json::from_str(&line).map_err(|error| {
        let fault = Fault::new("snmp", "has no settings", "do not start it; natrix run does");
        cli::CliError::from(fault.seen(error.to_string()))
    })?;
    Ok(::snmp::serve(settings)?)
}
