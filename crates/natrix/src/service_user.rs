//! The user of the packaged service, and the files that it has to read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::path::PathBuf;

use config::Config;
use config::Fault;
use config::Warning;
use daemon::http_group;

/// The user of `natrix.service`.
const NAME: &str = "natrix";
/// Permission bits of one class of users.
const READ: u32 = 4;
const SEARCH: u32 = 1;

struct ServiceUser {
    uid: u32,
    groups: Vec<u32>,
}

impl ServiceUser {
    /// That of this machine, if there is one and this process is another user, which sees more.
    fn of_this_machine() -> Option<ServiceUser> {
        if !nix::unistd::geteuid().is_root() {
            return None;
        }
        let user = nix::unistd::User::from_name(NAME).ok().flatten()?;
        let name = std::ffi::CString::new(NAME).ok()?;
        let groups = nix::unistd::getgrouplist(&name, user.gid).ok()?;
        Some(ServiceUser { uid: user.uid.as_raw(), groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect() })
    }

    /// The file, or the folder on the way to it, that this user may not read or enter. Access lists
    /// that permit more are not seen.
    fn is_stopped_by(&self, file: &Path) -> Option<PathBuf> {
        // Links end somewhere else.
        let file = fs::canonicalize(file).ok()?;
        let mut folders: Vec<&Path> = file.ancestors().skip(1).collect();
        folders.reverse();
        let needs = folders.into_iter().map(|folder| (folder, SEARCH)).chain([(file.as_path(), READ)]);
        let mut needs = needs.filter(|(path, need)| !self.may(path, *need));
        needs.next().map(|(path, _)| path.to_owned())
    }

    fn may(&self, path: &Path, need: u32) -> bool {
        let Ok(about) = fs::metadata(path) else { return true };
        let class = match () {
            () if self.uid == 0 => return true,
            () if about.uid() == self.uid => 6,
            () if self.groups.contains(&about.gid()) => 3,
            () => 0,
        };
        about.mode() >> class & need != 0
    }
}

/// The files of TLS that the user of the service cannot read, as far as this process can know, and
/// the groups of the API that do not exist.
pub(crate) fn warnings(config: &Config, file: &Path) -> Vec<Warning> {
    let unreadable = ServiceUser::of_this_machine().map_or_else(Vec::new, |user| unreadable(&user, config, file));
    unreadable.into_iter().chain(without_group(config, file)).collect()
}

fn without_group(config: &Config, file: &Path) -> Vec<Warning> {
    let users = config.http.iter().flat_map(http_group::users_without_group);
    let warning = |(user, group): (&str, &str)| {
        Warning(Fault {
            file: file.display().to_string(),
            line: None,
            object: http_group::group_key(user),
            problem: "does not exist on this machine, so no member of it can log in".to_owned(),
            seen: group.to_owned(),
            remedy: format!("add the group with groupadd {group}, or name another"),
        })
    };
    users.map(warning).collect()
}

fn unreadable(user: &ServiceUser, config: &Config, file: &Path) -> Vec<Warning> {
    let stopped = files(config).into_iter().filter_map(|(object, path)| Some((object, user.is_stopped_by(&path)?)));
    let warning = |(object, stopped_by): (String, PathBuf)| {
        Warning(Fault {
            file: file.display().to_string(),
            line: None,
            object,
            problem: format!("cannot be read by the user {NAME} of the service"),
            seen: stopped_by.display().to_string(),
            remedy: format!("give it to the group {NAME} with chgrp, and chmod g+r, or g+x of a folder"),
        })
    };
    stopped.map(warning).collect()
}

/// All files of TLS, by their keys.
fn files(config: &Config) -> Vec<(String, PathBuf)> {
    let tls = config.http.iter().filter_map(|http| http.tls.as_ref());
    let of_http = tls.flat_map(|tls| {
        let all = [
            ("certificate", Some(&tls.certificate)),
            ("key", Some(&tls.key)),
            ("client_authorities", tls.client_authorities.as_ref()),
        ];
        all.into_iter().filter_map(|(key, path)| Some((format!("http.tls.{key}"), path?.clone())))
    });
    let of_sinks = config.log_sinks.iter().flat_map(|sink| {
        let (certificate, key) = sink.own.as_ref().map(|(certificate, key)| (certificate, key)).unzip();
        let all = [("certificates", sink.certificates.as_ref()), ("certificate", certificate), ("key", key)];
        let named = |key: &str| format!("log.sink \"{}\".{key}", sink.name);
        all.into_iter().filter_map(|(key, path)| Some((key, path?))).map(move |(key, path)| (named(key), path.clone()))
    });
    of_http.chain(of_sinks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_user_reads_what_its_class_may_in_folders_it_may_enter() {
        let folder = std::env::temp_dir().join(format!("natrix-service-user-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (folder, file) = (fs::canonicalize(&folder).unwrap(), folder.join("key.pem"));
        fs::write(&file, "").unwrap();
        let about = fs::metadata(&file).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let in_group = ServiceUser { uid: about.uid() + 7, groups: vec![about.gid() + 7, about.gid()] };
        let other = ServiceUser { uid: about.uid() + 7, groups: vec![about.gid() + 7] };
        for (of_folder, of_file, by_other, by_group) in [
            (0o755, 0o644, None, None),
            (0o755, 0o640, Some(&file), None),
            (0o755, 0o604, None, Some(&file)),
            (0o755, 0o600, Some(&file), Some(&file)),
            (0o750, 0o644, Some(&folder), None),
            (0o700, 0o644, Some(&folder), Some(&folder)),
        ] {
            set(&folder, of_folder);
            set(&file, of_file);
            assert_eq!(other.is_stopped_by(&file).as_ref(), by_other, "{of_folder:o} {of_file:o}");
            assert_eq!(in_group.is_stopped_by(&file).as_ref(), by_group, "{of_folder:o} {of_file:o}");
        }
        let warned = |user: &ServiceUser| -> Vec<String> {
            let found = unreadable(user, &with_files(&file), Path::new("natrix.toml"));
            found.into_iter().map(|warning| warning.0.object).collect()
        };
        let of_http = ["http.tls.certificate", "http.tls.key", "http.tls.client_authorities"];
        let of_sink = ["log.sink \"court\".certificates", "log.sink \"court\".certificate", "log.sink \"court\".key"];
        assert_eq!(warned(&other), [of_http, of_sink].concat());
        set(&folder, 0o755);
        assert!(warned(&other).is_empty());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_group_that_does_not_exist_is_a_warning() {
        let mut config = with_files(Path::new("/nonexistent"));
        let group = Some("no-such-group-here".to_owned());
        let user = config::HttpUser { name: "noc".to_owned(), role: config::HttpRole::View, token: None, group };
        config.http.as_mut().unwrap().users = vec![user];
        let found = without_group(&config, Path::new("natrix.toml"));
        let objects: Vec<_> = found.iter().map(|warning| (&*warning.0.object, &*warning.0.seen)).collect();
        assert_eq!(objects, [("http.user \"noc\".group", "no-such-group-here")]);
    }

    /// A configuration that names this file for everything.
    fn with_files(file: &Path) -> Config {
        let file = file.display();
        let text = format!(
            "[[interface]]\nname = \"lan\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"10.0.0.1/24\"]\n\
             [[interface]]\nname = \"wan\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"192.0.2.2/24\"]\n\
             [[pool]]\nname = \"public\"\naddresses = [\"203.0.113.0/28\"]\nsubscribers = [\"10.0.0.0/24\"]\n\
             [http]\nlisten = \"127.0.0.1:8080\"\n[http.tls]\ncertificate = \"{file}\"\nkey = \"{file}\"\n\
             client_authorities = \"{file}\"\n[log.store]\npath = \"/var/log/natrix/log\"\n\
             [[log.sink]]\nname = \"court\"\nkind = \"syslog\"\naddress = \"tls://c.example.net:6514\"\n\
             certificates = \"{file}\"\ncertificate = \"{file}\"\nkey = \"{file}\"\n"
        );
        config::parse(&text, "natrix.toml").unwrap()
    }
}
