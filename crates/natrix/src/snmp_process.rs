//! The settings of the process for SNMP.

use std::io;

use config::AgentX;
use config::Config;
use daemon::log::Log;
use snmp::Master;
use snmp::Settings;

use crate::failure::Failure;
use crate::watched::Beside;
use crate::watched::Watched;

/// Starts the subagent of a configuration, if it has one.
pub(crate) fn start(config: &Config) -> Result<Option<Watched>, Failure> {
    let Some(snmp) = &config.snmp else { return Ok(None) };
    let workers = config.workers.count as u32;
    let settings = Settings {
        agentx: match &snmp.agentx {
            AgentX::Tcp(address) => Master::Tcp(*address),
            AgentX::Unix(path) => Master::Unix(path.clone()),
        },
        alias: snmp.alias.clone(),
        rows_max: snmp.rows,
        // The limits of the engine are those of one worker.
        fragments_max: config.nat.limits.fragments_held_max.saturating_mul(workers),
        control: config.control.socket.clone(),
    };
    let line = serde_json::to_string(&settings).map_err(io::Error::from)?;
    let beside = Beside { command: "snmp", table: "snmp", log: Log::new(config.log.level) };
    Ok(Some(Watched::start(beside, line)?))
}
