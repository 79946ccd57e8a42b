//! The settings of the process: `[http]` of the configuration.

use core::fmt;
use core::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

/// Settings of the process. It reads them as one JSON object from standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Where to listen.
    pub listen: Listen,
    /// Names by which clients may call this server, besides the address and `localhost`.
    pub hosts: Vec<String>,
    /// The certificate; None for plain HTTP.
    pub tls: Option<Tls>,
    /// Users that may log in.
    pub users: Vec<User>,
    /// The control socket of the instance.
    pub control: PathBuf,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// Files of the certificate, PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tls {
    /// Certificate and its chain.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates; None asks for none.
    pub client_authorities: Option<PathBuf>,
}

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// See figures: nothing that names a subscriber.
    View,
    /// Also see the network's configuration (rules, routes), plan, reload, roll back and drain.
    Operate,
    /// Also see and look up subscribers, and what is theirs, and read the audit log.
    Audit,
}

impl Role {
    /// True if a user with this role may do what needs `needed`.
    pub fn permits(self, needed: Role) -> bool {
        needed == Role::View || self == needed
    }

    /// The word of the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Audit => "audit",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One `[[http.user]]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct User {
    /// Name, in tokens, client certificates (common name) and the audit log.
    pub name: String,
    /// What the user may do.
    pub role: Role,
    /// Hash of the token, as `natrix token` prints it; None for a user without a token.
    pub token: Option<String>,
    /// Members of this Unix group are this user when they connect to the Unix socket.
    pub group: Option<u32>,
}
