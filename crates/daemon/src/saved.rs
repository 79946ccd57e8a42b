//! The file that a restart reads. A change writes its text there if that is asked for, and a
//! rollback of the change puts back what the file had.

use std::fs;
use std::io;
use std::io::Write;

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
    pub(crate) fn new(path: &str, text: &str) -> io::Result<Saved> {
        let before = fs::read_to_string(path)?;
        write_by(path, text, fs::File::sync_all)?;
        Ok(Saved { path: path.to_owned(), before, after: text.to_owned() })
    }

    /// Puts back what the file had.
    ///
    /// # Errors The file was changed since, or it cannot be written. It is left as it is.
    pub(crate) fn undone(self) -> io::Result<Saved> {
        let Saved { path, before, after } = self;
        if fs::read_to_string(&path)? != after {
            return Err(io::Error::other(format!("{path} has changed since")));
        }
        Saved::new(&path, &before)
    }
}

/// Whether two paths lead to one file.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    one == other || fs::canonicalize(one).is_ok_and(|one| fs::canonicalize(other).is_ok_and(|other| one == other))
}

/// Replaces the file at once: a failure leaves the old one. It is on the disk, and so is its name
/// in the folder, which a power cut would otherwise take back. `sync` brings a file or a folder to
/// the disk.
fn write_by(path: &str, text: &str, mut sync: impl FnMut(&fs::File) -> io::Result<()>) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let permissions = fs::metadata(&path)?.permissions();
    let mut next = path.clone().into_os_string();
    next.push(".new");
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&next)?;
        file.set_permissions(permissions)?;
        file.write_all(text.as_bytes())?;
        sync(&file)?;
        fs::rename(&next, &path)?;
        let folder = path.parent().ok_or(io::ErrorKind::NotADirectory)?;
        sync(&fs::File::open(folder)?)
    };
    write().inspect_err(|_| {
        // It may not exist.
        let _ = fs::remove_file(&next);
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::PathBuf;

    use super::*;

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
        write_by(path.to_str().unwrap(), "new", |file| {
            let mut text = String::new();
            let is_folder = file.metadata()?.is_dir();
            fs::File::open(&path)?.read_to_string(&mut text)?;
            synced.push((is_folder, text));
            Ok(())
        })
        .unwrap();
        assert_eq!(synced, [(false, "old".to_owned()), (true, "new".to_owned())]);
        // A full disk leaves the old file and nothing else.
        write_by(path.to_str().unwrap(), "newer", |_| Err(io::ErrorKind::StorageFull.into())).unwrap_err();
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
        let saved = Saved::new(path.to_str().unwrap(), "new").unwrap();
        assert_eq!(has(), "new");
        let undone = saved.undone().unwrap();
        assert_eq!(has(), "old");
        let again = undone.undone().unwrap();
        assert_eq!(has(), "new");
        fs::write(&path, "by hand").unwrap();
        let error = again.undone().unwrap_err().to_string();
        assert!(error.ends_with("natrix.toml has changed since"), "{error}");
        assert_eq!(has(), "by hand");
        let (link, path) = (folder.join("link"), path.to_str().unwrap());
        std::os::unix::fs::symlink(path, &link).unwrap();
        assert!(is_same(link.to_str().unwrap(), path) && !is_same(path, folder.to_str().unwrap()));
        fs::remove_dir_all(folder).unwrap();
    }
}
