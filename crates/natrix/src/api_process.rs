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
use daemon::http_group::group_key;
use daemon::http_group::group_of;
use daemon::http_group::users_without_group;
use daemon::log::Log;

use crate::failure::Failure;
use crate::watched::Beside;
use crate::watched::Watched;

/// Starts the API of a configuration, if it has one.
pub(crate) fn start(config: &Config) -> Result<Option<Watched>, Failure> {
    let Some(http) = &config.http else { return Ok(None) };
    let log = Log::new(config.log.level);
    for (user, group) in users_without_group(http) {
        let remedy = "add the group and start the instance again, or name another";
        let fault = Fault::new(group_key(user), "does not exist here, so no member of it can log in", remedy);
        log.error(&fault.seen(group));
    }
    let settings = settings(http, config);
    let beside = Beside { command: "api", table: "http", log };
    Ok(Some(Watched::start(beside, (config.log.level, config.log.format), settings)?))
}

fn settings(http: &Http, config: &Config) -> Settings {
    let users = http.users.iter().map(|user| {
        // A fault of the API stops no packets: without its group the user is still one of the list,
        // which keeps the API from serving everyone on loopback, but no user is its member.
        let group = user.group.as_ref().and_then(|group| group_of(group));
        let role = match user.role {
            HttpRole::View => Role::View,
            HttpRole::Operate => Role::Operate,
            HttpRole::Audit => Role::Audit,
        };
        User { name: user.name.clone(), role, token: user.token.clone(), group }
    });
    Settings {
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
        users: users.collect(),
        control: config.control.socket.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_its_group_stays_a_user_without_members() {
        let user = |name: &str, group: &str| config::HttpUser {
            name: name.to_owned(),
            role: HttpRole::View,
            token: None,
            group: Some(group.to_owned()),
        };
        let text = "[[interface]]\nname = \"lan\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"10.0.0.1/24\"]\n\
                    [[interface]]\nname = \"wan\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"192.0.2.2/24\"]\n\
                    [[pool]]\nname = \"public\"\naddresses = [\"203.0.113.0/28\"]\n[http]\nlisten = \"unix:/run/natrix/http.sock\"\n";
        let config = config::parse(text, "natrix.toml").unwrap();
        let users = vec![user("noc", "root"), user("gone", "no-such-group-here")];
        let http = Http { users, ..config.http.clone().unwrap() };
        assert_eq!(users_without_group(&http).collect::<Vec<_>>(), [("gone", "no-such-group-here")]);
        let settings = settings(&http, &config);
        let groups: Vec<_> = settings.users.iter().map(|user| (user.name.as_str(), user.group)).collect();
        assert_eq!(groups, [("noc", Some(0)), ("gone", None)]);
    }
}
