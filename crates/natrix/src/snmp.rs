//! `natrix snmp`, the process for SNMP.

use snmp::Settings;

use crate::beside::run_beside;
use crate::failure::Failure;

/// `natrix snmp`: the process itself.
pub(crate) fn run() -> Result<(), Failure> {
    run_beside("snmp", |settings: Settings| ::snmp::serve(settings).map_err(|error| format!("snmp: {error}")))
}
