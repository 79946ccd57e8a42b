//! The file that a restart reads. A change writes its text there if that is asked for, and a
//! rollback of the change puts back what the file had.

use std::fs;
use std::fs::File;
use std::fs::Metadata;
use std::fs::OpenOptions;
use std::io;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::fchown;

use crate::log::Log;

/// What a change has written to the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    path: String,
    before: String,
    after: String,
}

impl Saved {
    /// Writes `text` to the file `path`.
    ///
    /// # Errors
    /// The file is left as it is.
    pub(crate) fn new(path: &str, text: &str, log: Log) -> io::Result<Saved> {
        let before = fs::read_to_string(path)?;
        for lost in write_by(path, text, File::sync_all, give)? {
            log.warn(&format_args!("configuration {path}: {lost}"));
        }
        Ok(Saved { path: path.to_owned(), before, after: text.to_owned() })
    }

    /// Puts back what the file had.
    ///
    /// # Errors The file was changed since, or it cannot be written. It is left as it is.
    pub(crate) fn undone(self, log: Log) -> io::Result<Saved> {
        let Saved { path, before, after } = self;
        if fs::read_to_string(&path)? != after {
            return Err(io::Error::other(format!("{path} has changed since")));
        }
        Saved::new(&path, &before, log)
    }
}

/// Whether two paths lead to one file.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    one == other || fs::canonicalize(one).is_ok_and(|one| fs::canonicalize(other).is_ok_and(|other| one == other))
}

/// Replaces the file at once: a failure leaves the old one. It is on the disk, and so is its name
/// in the folder, which a power cut would otherwise take back. Returns what of the old file's
/// access could not be kept. `sync` brings a file or a folder to the disk, `give` gives a file to a
/// user or a group.
fn write_by(
    path: &str,
    text: &str,
    mut sync: impl FnMut(&File) -> io::Result<()>,
    give: impl Fn(&File, Option<u32>, Option<u32>) -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let path = fs::canonicalize(path)?;
    let old = fs::metadata(&path)?;
    let mut next = path.clone().into_os_string();
    next.push(".new");
    let write = || -> io::Result<Vec<String>> {
        // No other user opens it before it has its permissions.
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
        let lost = keep_access(&file, &old, give)?;
        file.write_all(text.as_bytes())?;
        sync(&file)?;
        fs::rename(&next, &path)?;
        let folder = path.parent().ok_or(io::ErrorKind::NotADirectory)?;
        sync(&File::open(folder)?)?;
        Ok(lost)
    };
    write().inspect_err(|_| {
        // It may not exist.
        let _ = fs::remove_file(&next);
    })
}

/// Gives a file to a user or a group.
fn give(file: &File, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    fchown(file, user, group)
}

/// Gives a new file the owner, the group and the permissions of the old one; returns what the
/// system does not permit. Another group gets only what everybody may.
fn keep_access(
    file: &File,
    old: &Metadata,
    give: impl Fn(&File, Option<u32>, Option<u32>) -> io::Result<()>,
) -> io::Result<Vec<String>> {
    let (made, mut mode, mut lost) = (file.metadata()?, old.mode() & 0o777, Vec::new());
    let belongs = |kind: &str, to: u32, before: u32, error: &io::Error| {
        format!("belongs to {kind} {to} now, not to {before} as before it was saved ({error})")
    };
    // Before the owner: a user that has given a file away may change nothing of it.
    if made.gid() != old.gid()
        && let Err(error) = give(file, None, Some(old.gid()))
    {
        mode &= !0o070 | mode << 3;
        lost.push(belongs("group", made.gid(), old.gid(), &error));
    }
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    if made.uid() != old.uid()
        && let Err(error) = give(file, Some(old.uid()), None)
    {
        lost.push(belongs("user", made.uid(), old.uid(), &error));
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::path::PathBuf;

    use super::*;

    const LOG: Log = Log::silent();

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("natrix-save-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_saved_file_and_then_its_name_are_brought_to_the_disk() {
        let folder = folder("sync");
        let path = folder.join("natrix.toml");
        fs::write(&path, "old").unwrap();
        // What is synced, and what the file has then.
        let mut synced = Vec::new();
        let sync = |file: &File| {
            let mut text = String::new();
            let is_folder = file.metadata()?.is_dir();
            File::open(&path)?.read_to_string(&mut text)?;
            synced.push((is_folder, text));
            Ok(())
        };
        write_by(path.to_str().unwrap(), "new", sync, give).unwrap();
        assert_eq!(synced, [(false, "old".to_owned()), (true, "new".to_owned())]);
        // A full disk leaves the old file and nothing else.
        write_by(path.to_str().unwrap(), "newer", |_| Err(io::ErrorKind::StorageFull.into()), give).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn undoing_a_save_restores_the_old_file_unless_it_changed() {
        let folder = folder("undo");
        let path = folder.join("natrix.toml");
        let has = || fs::read_to_string(&path).unwrap();
        fs::write(&path, "old").unwrap();
        let saved = Saved::new(path.to_str().unwrap(), "new", LOG).unwrap();
        assert_eq!(has(), "new");
        let undone = saved.undone(LOG).unwrap();
        assert_eq!(has(), "old");
        let again = undone.undone(LOG).unwrap();
        assert_eq!(has(), "new");
        fs::write(&path, "by hand").unwrap();
        let error = again.undone(LOG).unwrap_err().to_string();
        assert!(error.ends_with("natrix.toml has changed since"), "{error}");
        assert_eq!(has(), "by hand");
        let (link, path) = (folder.join("link"), path.to_str().unwrap());
        std::os::unix::fs::symlink(path, &link).unwrap();
        assert!(is_same(link.to_str().unwrap(), path) && !is_same(path, folder.to_str().unwrap()));
        fs::remove_dir_all(folder).unwrap();
    }

    /// Owner, group and permissions.
    fn access(path: &Path) -> (u32, u32, u32) {
        let about = fs::metadata(path).unwrap();
        (about.uid(), about.gid(), about.mode() & 0o7777)
    }

    #[test]
    fn a_saved_file_keeps_owner_group_and_permissions() {
        let folder = folder("owner");
        let path = folder.join("natrix.toml");
        fs::write(&path, "old").unwrap();
        let mut wanted = access(&path);
        // Only root may give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(2), Some(3)).unwrap();
            (wanted.0, wanted.1) = (2, 3);
        }
        wanted.2 = 0o640;
        fs::set_permissions(&path, fs::Permissions::from_mode(wanted.2)).unwrap();
        let saved = Saved::new(path.to_str().unwrap(), "new", LOG).unwrap();
        assert_eq!(access(&path), wanted);
        saved.undone(LOG).unwrap();
        assert_eq!(access(&path), wanted);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_group_that_is_not_kept_leaves_no_other_its_rights() {
        let folder = folder("refused");
        let (path, other) = (folder.join("new"), folder.join("old"));
        let refused = |_: &File, _: Option<u32>, _: Option<u32>| Err(io::ErrorKind::PermissionDenied.into());
        fs::write(&other, "").unwrap();
        let old = |mode| {
            fs::set_permissions(&other, fs::Permissions::from_mode(mode)).unwrap();
            fs::metadata(&other).unwrap()
        };
        let file = File::create(&path).unwrap();
        // Owner and group of the new file are those of the old one.
        assert_eq!(keep_access(&file, &old(0o640), refused).unwrap(), [""; 0]);
        assert_eq!(access(&path).2, 0o640);
        if !rustix::process::geteuid().is_root() {
            fs::remove_dir_all(folder).unwrap();
            return;
        }
        std::os::unix::fs::chown(&other, Some(2), Some(3)).unwrap();
        for (mode, kept) in [(0o640, 0o600), (0o664, 0o644), (0o600, 0o600), (0o777, 0o777)] {
            let lost = keep_access(&file, &old(mode), refused).unwrap();
            let (user, group, _) = access(&path);
            let said = [format!("group {group} now, not to 3"), format!("user {user} now, not to 2")];
            assert!(
                lost.len() == 2 && said.iter().zip(&lost).all(|(said, lost)| lost.contains(said.as_str())),
                "{lost:?}"
            );
            assert_eq!(access(&path).2, kept, "of {mode:o}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
