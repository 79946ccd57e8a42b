//! `[snmp]`: the subagent for SNMP.

use std::net::SocketAddr;
use std::path::PathBuf;

use toml_edit::Table;

use crate::draft::single;
use crate::model::AgentX;
use crate::model::Snmp;
use crate::report::Placed;
use crate::report::Report;
use crate::section::quoted;

/// Octets of natv2InstanceAlias.
const ALIAS_MAX: usize = 64;

/// `[snmp]`; None without `agentx`.
pub(crate) fn snmp(root: &Table, report: &mut Report) -> Option<Snmp> {
    let empty = Table::new();
    let section = single(root, "snmp", &empty, report);
    let alias = section.text("alias", report)?;
    if alias.value.len() > ALIAS_MAX || !alias.value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let remedy = "write at most 64 printable ASCII characters";
        report.fault(&alias.place, "is not a name for the MIB", quoted(&alias.value), remedy);
    }
    let rows = section.integer("rows", report).map_or(0, |rows| rows.value as usize);
    let state = super::port_control::state(&section, "/var/lib/natrix/snmp/thresholds", report);
    let text = section.text("agentx", report)?;
    if text.value.is_empty() {
        return None;
    }
    Some(Snmp { agentx: master(&text, report)?, alias: alias.value, rows, state })
}

fn master(text: &Placed<String>, report: &mut Report) -> Option<AgentX> {
    if text.value.starts_with('/') {
        if text.value.ends_with('/') || text.value.len() > super::singles::SOCKET_PATH_MAX {
            let remedy = "write the path of agentXSocket, such as \"/var/agentx/master\"";
            report.fault(&text.place, "is not the path of a socket", quoted(&text.value), remedy);
            return None;
        }
        return Some(AgentX::Unix(PathBuf::from(&text.value)));
    }
    match text.value.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 && address.ip().is_loopback() => Some(AgentX::Tcp(address)),
        Ok(address) if address.port() != 0 => {
            let remedy = "let the master agent listen on loopback or on a Unix socket of this machine";
            report.fault(&text.place, "is not loopback, and AgentX has no login", quoted(&text.value), remedy);
            None
        }
        _ => {
            let remedy = "write \"/var/agentx/master\" or \"127.0.0.1:705\"";
            report.fault(&text.place, "is neither a path nor an address and port", quoted(&text.value), remedy);
            None
        }
    }
}
