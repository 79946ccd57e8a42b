//! The settings of the process of the API.

use api::Listen;
use api::Role;
use api::Settings;
use api::Tls;
use api::User;
use config::Config;
use config::Http;
use config::HttpListen;
use config::HttpRole;
use control::Fault;
use daemon::log::Log;

use crate::failure::Failure;
use crate::watched::Beside;
use crate::watched::Watched;

/// Starts the API of a configuration, if it has one.
pub(crate) fn start(config: &Config) -> Result<Option<Watched>, Failure> {
    let Some(http) = &config.http else { return Ok(None) };
    let settings = settings(http, config)?;
    let beside = Beside { command: "api", table: "http", log: Log::new(config.log.level) };
    Ok(Some(Watched::start(beside, (config.log.level, config.log.format), settings)?))
}

fn settings(http: &Http, config: &Config) -> Result<Settings, Failure> {
    let users = http.users.iter().map(|user| {
        let group = user.group.as_ref().map(|group| group_of(&user.name, group)).transpose()?;
        let role = match user.role {
            HttpRole::View => Role::View,
            HttpRole::Operate => Role::Operate,
            HttpRole::Audit => Role::Audit,
        };
        Ok(User { name: user.name.clone(), role, token: user.token.clone(), group })
    });
    let users: Result<Vec<User>, Failure> = users.collect();
    Ok(Settings {
        listen: match &http.listen {
            HttpListen::Tcp(address) => Listen::Tcp(*address),
            HttpListen::Unix(path) => Listen::Unix(path.clone()),
        },
        hosts: http.hosts.clone(),
        tls: http.tls.as_ref().map(|tls| Tls {
            certificate: tls.certificate.clone(),
            key: tls.key.clone(),
            client_authorities: tls.client_authorities.clone(),
        }),
        users: users?,
        control: config.control.socket.clone(),
    })
}

fn group_of(user: &str, group: &str) -> Result<u32, Failure> {
    let found = nix::unistd::Group::from_name(group).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| {
        let fault =
            Fault::new(format!("http.user \"{user}\".group"), "does not exist here", "add the group, or name another");
        cli::CliError::from(fault.seen(group)).into()
    })
}
