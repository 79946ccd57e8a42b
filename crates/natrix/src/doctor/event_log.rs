//! The event log: whether there is one, and whether its folder has room.

use std::fs;
use std::fs::OpenOptions;
use std::io;
use std::io::Write as _;
use std::path::Path;

use config::Config;
use config::EventTarget;

use super::Finding;
use super::Level;
use super::finding;
use super::ok;

/// With less free space, in bytes, an instance begins only to refuse mappings.
const FREE_LEAST: u64 = 64 << 20;
/// With less, it may soon.
const FREE_ENOUGH: u64 = 1 << 30;
/// What is written to find out whether that is possible: a block of the disk.
const PROBE_BYTES: usize = 4096;

/// An instance without a log is none that does not work.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let check = "event log";
    let Some(log) = &config.event_log else {
        return vec![finding(check, Level::Note, "none: holders cannot be found later", "set [log.store] path")];
    };
    let mut found = Vec::new();
    match &log.store {
        None => found.push(ok(check, "lines of JSON, without a store")),
        Some(store) => {
            let what = format!("store {}", store.path.display());
            found.push(judge(check, &what, &store.path, room_in(&store.path), is_root()));
        }
    }
    if let Some(EventTarget::File(path)) = &log.target {
        let folder = path.parent().unwrap_or(path);
        let what = format!("file {}", path.display());
        found.push(judge("event log: lines", &what, folder, room_in(folder), is_root()));
    }
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Writes into a folder, or where it would be made, and leaves nothing behind. Returns the bytes
/// that are free there for any user.
fn room_in(folder: &Path) -> io::Result<u64> {
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    let path = there.join(format!(".natrix-doctor-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let written = file.write_all(&[0; PROBE_BYTES]).and_then(|()| file.sync_all());
    fs::remove_file(&path)?;
    written?;
    let of_disk = rustix::fs::statvfs(there)?;
    Ok(of_disk.f_bavail.saturating_mul(of_disk.f_frsize))
}

/// `what` is the log in `folder`, in which there is `room`.
fn judge(check: &str, what: &str, folder: &Path, room: io::Result<u64>, is_root: bool) -> Finding {
    let shown = folder.display();
    let free = match room {
        Ok(free) if free >= FREE_ENOUGH => return ok(check, what),
        Ok(free) => free,
        // The service may have another user, that of its folder.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_root => {
            let seen = format!("{what}: whether it can be written is not known ({error})");
            return finding(check, Level::Warning, seen, "run natrix doctor as root");
        }
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => free_space(folder),
                io::ErrorKind::ReadOnlyFilesystem => {
                    format!("mount -o remount,rw \"$(findmnt -n -o TARGET -T {shown})\"; or set another path in [log]")
                }
                _ => format!("let Natrix write to {shown}, or set another path in [log]"),
            };
            return finding(check, Level::Error, format!("{what} cannot be written: {error}"), remedy);
        }
    };
    let level = if free < FREE_LEAST { Level::Error } else { Level::Warning };
    finding(check, level, format!("{what}: only {} MiB are free on its disk", free >> 20), free_space(folder))
}

fn free_space(folder: &Path) -> String {
    format!("free space on its disk (df {}), shorten log.store.retention, or set another path", folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Tree;

    fn config(log: &str) -> Config {
        let text = format!(
            "[[interface]]\nname = \"in\"\nrealm = \"inside\"\ndriver = \"net_tap0\"\naddresses = [\"100.64.0.1/24\"]\n\
             [[interface]]\nname = \"out\"\nrealm = \"outside\"\ndriver = \"net_tap1\"\naddresses = [\"192.0.2.2/30\"]\n\
             [[pool]]\nname = \"main\"\naddresses = [\"203.0.113.1\"]\nsubscribers = [\"100.64.0.0/24\"]\n{log}"
        );
        config::parse(&text, "test.toml").unwrap_or_else(|faults| panic!("{faults:?}"))
    }

    #[test]
    fn a_configuration_without_a_log_is_no_fault_but_is_noticed() {
        let found = check(&config(""));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].level, found[0].remedy.as_str()), (Level::Note, "set [log.store] path"));
        assert_eq!(found[0].seen, "none: holders cannot be found later");
    }

    #[test]
    fn the_folders_of_the_log_are_written_to() {
        let tree = Tree::new("log", &[("file", "")]);
        let folder = tree.0.display().to_string();
        // The store is made at the start. The machine may have little room, but it can be written.
        let log = format!("[log]\nevents = \"{folder}/events.json\"\n[log.store]\npath = \"{folder}/new/log\"\n");
        let found = check(&config(&log));
        let seen: Vec<&str> = found.iter().map(|one| one.check.as_str()).collect();
        assert_eq!(seen, ["event log", "event log: lines"]);
        assert!(found.iter().all(|one| !one.seen.contains("cannot be written")), "{found:?}");
        assert_eq!(tree.files().names(""), ["file"], "nothing is left behind");
        // A file is no folder.
        let found = check(&config(&format!("[log.store]\npath = \"{folder}/file/log\"\n")));
        assert_eq!((found.len(), found[0].level), (1, Level::Error), "{found:?}");
        assert!(found[0].seen.contains("/file/log cannot be written"), "{found:?}");
    }

    #[test]
    fn a_log_without_room_is_an_error_with_its_cause() {
        let folder = Path::new("/var/log/natrix/log");
        let found = |room: io::Result<u64>, is_root| {
            let one = judge("event log", "store /var/log/natrix/log", folder, room, is_root);
            (one.level, one.seen, one.remedy)
        };
        let failed = |kind: io::ErrorKind, is_root| found(Err(kind.into()), is_root);
        assert_eq!(found(Ok(1 << 30), true), (Level::Ok, "store /var/log/natrix/log".to_owned(), String::new()));
        let (level, seen, remedy) = found(Ok(900 << 20), true);
        assert_eq!((level, seen.contains("only 900 MiB are free")), (Level::Warning, true), "{seen}");
        assert!(remedy.contains("df /var/log/natrix/log"), "{remedy}");
        assert_eq!(found(Ok(63 << 20), true).0, Level::Error, "root may write what others may not");
        let (level, seen, remedy) = failed(io::ErrorKind::StorageFull, true);
        assert_eq!((level, seen.contains("cannot be written: no storage space")), (Level::Error, true), "{seen}");
        assert!(remedy.starts_with("free space"), "{remedy}");
        let (level, _, remedy) = failed(io::ErrorKind::ReadOnlyFilesystem, true);
        assert_eq!((level, remedy.contains("remount,rw")), (Level::Error, true), "{remedy}");
        assert_eq!(failed(io::ErrorKind::PermissionDenied, true).0, Level::Error);
        let (level, seen, remedy) = failed(io::ErrorKind::PermissionDenied, false);
        assert_eq!((level, remedy.as_str()), (Level::Warning, "run natrix doctor as root"), "{seen}");
    }
}
