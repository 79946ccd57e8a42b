//! The settings of the process for SNMP.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

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
    let log = Log::new(config.log.level);
    let workers = config.workers.count as u32;
    let settings = Settings {
        agentx: match &snmp.agentx {
            AgentX::Tcp(address) => Master::Tcp(*address),
            AgentX::Unix(path) => Master::Unix(path.clone()),
        },
        alias: snmp.alias.clone(),
        rows_max: snmp.rows,
        state: snmp.state.clone(),
        // The limits of the engine are those of one worker.
        fragments_max: config.nat.limits.fragments_held_max.saturating_mul(workers),
        control: config.control.socket.clone(),
    };
    if let Some(folder) = snmp.state.as_deref().and_then(Path::parent) {
        // The process itself may create no folders. Without one, packets still go on.
        if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            log.warn(&format_args!("snmp.state: {} cannot be created ({error}); create it", folder.display()));
        }
    }
    let beside = Beside { command: "snmp", table: "snmp", log };
    Ok(Some(Watched::start(beside, (config.log.level, config.log.format), settings)?))
}
