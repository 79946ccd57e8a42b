//! The settings of the process: `[snmp]` of the configuration.

use core::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;

/// Settings of the process. It reads them as one JSON object from standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Where the master agent listens.
    pub agentx: Master,
    /// Name of the instance, natv2InstanceAlias.
    pub alias: String,
    /// Most rows of the tables of subscribers, of address maps and of port maps; 0: these tables
    /// are empty.
    pub rows_max: usize,
    /// The file that keeps what managers set; None: it is forgotten when the process ends.
    pub state: Option<PathBuf>,
    /// Fragments that may wait for their first one.
    pub fragments_max: u32,
    /// The control socket of the instance.
    pub control: PathBuf,
}

/// Where the master agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Master {
    /// A Unix stream socket.
    Unix(PathBuf),
    /// A TCP address.
    Tcp(SocketAddr),
}
