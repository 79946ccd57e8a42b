//! The destination of lines: standard output, or a file that other programs may rename, delete or
//! cut and whose disk may fill up.

use std::ffi::OsString;
use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::io::Read;
use std::io::Seek;
use std::io::SeekFrom;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use crate::FILE_MODE;
use crate::utc::utc_text;

/// What another program did to a file that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It has another name, which is None if it is out of reach.
    Renamed(Option<PathBuf>),
    /// It has no name any more, and its lines are lost with it.
    Deleted,
    /// Lines that were in it are gone.
    Cut,
}

impl Taken {
    /// As in lines and in the log of the daemon.
    pub fn name(&self) -> &'static str {
        match self {
            Taken::Renamed(_) => "renamed",
            Taken::Deleted => "deleted",
            Taken::Cut => "cut",
        }
    }
}

/// A destination of bytes. Every call may fail and can be repeated.
pub trait Medium: Send {
    /// Opens it unless it is open. Returns the bytes that are already in it.
    ///
    /// # Errors
    /// The error of the system.
    fn open(&mut self) -> io::Result<u64>;

    /// Writes some of `bytes` and returns their number.
    ///
    /// # Errors
    /// The error of the system; nothing was written then.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Writes everything to the disk.
    ///
    /// # Errors
    /// The error of the system.
    fn sync(&mut self) -> io::Result<()>;

    /// Renames the file to a name with this time and begins a new one. A medium that cannot do this
    /// does nothing.
    ///
    /// # Errors
    /// The error of the system; writing continues in the old file.
    fn rotate(&mut self, unix_us: u64) -> io::Result<()>;

    /// What another program did to the file, if it must be opened again. It had `length` bytes.
    fn taken(&self, length: u64) -> Option<Taken>;

    /// Closes it; the next [`Medium::open`] opens it again.
    fn close(&mut self);
}

impl<M: Medium + ?Sized> Medium for Box<M> {
    fn open(&mut self) -> io::Result<u64> {
        (**self).open()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (**self).write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        (**self).sync()
    }

    fn rotate(&mut self, unix_us: u64) -> io::Result<()> {
        (**self).rotate(unix_us)
    }

    fn taken(&self, length: u64) -> Option<Taken> {
        (**self).taken(length)
    }

    fn close(&mut self) {
        (**self).close();
    }
}

/// A file and its rotated predecessors.
///
/// `events.json` becomes `events-20261121T193000.123456Z.json`.
#[derive(Debug)]
pub struct Files {
    path: PathBuf,
    /// Rotated files kept; 0: all.
    keep: usize,
    file: Option<File>,
}

impl Files {
    /// Opens nothing yet. Keeps the `keep` newest rotated files, or all with 0.
    pub fn new(path: PathBuf, keep: usize) -> Files {
        Files { path, keep, file: None }
    }

    fn rotated_name(&self, unix_us: u64) -> PathBuf {
        // 2026-11-21T19:30:00.123456Z without the punctuation that file names do not need.
        let time: String = utc_text(unix_us).chars().filter(|letter| !matches!(letter, '-' | ':')).collect();
        let mut name = OsString::from(self.path.file_stem().unwrap_or_default());
        name.push("-");
        name.push(&time);
        if let Some(extension) = self.path.extension() {
            name.push(".");
            name.push(extension);
        }
        self.path.with_file_name(name)
    }

    fn forget_oldest(&self) -> io::Result<()> {
        if self.keep == 0 {
            return Ok(());
        }
        let rotated = rotated(&self.path)?;
        let excess = rotated.len().saturating_sub(self.keep);
        rotated.iter().take(excess).try_for_each(fs::remove_file)
    }
}

/// The rotated files of `path`, oldest first.
///
/// # Errors
/// The folder cannot be listed.
pub fn rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let candidate = entry?.path();
        let name = candidate.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let time = name.strip_prefix(&stem).and_then(|rest| rest.strip_prefix('-'));
        // The dot of the fraction ends the stem before it, unless there is an extension.
        let is_time = time.is_some_and(|time| time.len() >= 15 && time.get(..8).is_some_and(is_digits));
        if is_time && (path.extension().is_none() || candidate.extension() == path.extension()) {
            found.push(candidate);
        }
    }
    found.sort();
    Ok(found)
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

impl Medium for Files {
    fn open(&mut self) -> io::Result<u64> {
        if let Some(file) = &self.file {
            return Ok(file.metadata()?.len());
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(FILE_MODE).open(&self.path)?;
        let length = file.metadata()?.len();
        let is_regular = file.metadata()?.is_file();
        if length > 0 && is_regular {
            // A process that was killed in the middle of a line left it open.
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        self.file = Some(file);
        Ok(length)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.file {
            Some(file) => file.write(bytes),
            None => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    fn rotate(&mut self, unix_us: u64) -> io::Result<()> {
        let mut unix_us = unix_us;
        let mut name = self.rotated_name(unix_us);
        while name.exists() {
            unix_us += 1;
            name = self.rotated_name(unix_us);
        }
        fs::rename(&self.path, name)?;
        self.file = None;
        self.forget_oldest()
    }

    fn taken(&self, length: u64) -> Option<Taken> {
        let file = self.file.as_ref()?;
        let ours = file.metadata().ok()?;
        let is_ours = |theirs: &fs::Metadata| ours.ino() == theirs.ino() && ours.dev() == theirs.dev();
        let has_name = match fs::metadata(&self.path) {
            Ok(theirs) => is_ours(&theirs),
            Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
        };
        if has_name {
            return (ours.is_file() && ours.len() < length).then_some(Taken::Cut);
        }
        if ours.nlink() == 0 {
            return Some(Taken::Deleted);
        }
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        // NFS keeps a deleted file under such a name while it is open.
        let is_kept =
            |name: &PathBuf| name.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".nfs"));
        if name.as_ref().is_some_and(is_kept) {
            return Some(Taken::Deleted);
        }
        // It may be on a mount that this process does not see.
        Some(Taken::Renamed(name.filter(|name| fs::metadata(name).is_ok_and(|theirs| is_ours(&theirs)))))
    }

    fn close(&mut self) {
        self.file = None;
    }
}

/// Standard output, without rotation and sync.
#[derive(Debug, Default)]
pub struct Stdout;

impl Medium for Stdout {
    fn open(&mut self) -> io::Result<u64> {
        Ok(0)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = io::stdout().lock();
        // First write what the previous call left over; only then take more.
        out.flush()?;
        let taken = out.write(bytes)?;
        // The next call reports a failure: these bytes are taken.
        let _ = out.flush();
        Ok(taken)
    }

    fn sync(&mut self) -> io::Result<()> {
        io::stdout().lock().flush()
    }

    fn rotate(&mut self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn taken(&self, _: u64) -> Option<Taken> {
        None
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_user_and_group_read_a_new_log() {
        let path = std::env::temp_dir().join(format!("natrix-medium-{}.log", std::process::id()));
        let _ = fs::remove_file(&path);
        Files::new(path.clone(), 1).open().unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        // What was there before keeps the mode that it was given.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        Files::new(path.clone(), 1).open().unwrap();
        let kept = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        fs::remove_file(&path).unwrap();
        assert_eq!((mode & !FILE_MODE, mode & 0o600, kept), (0, 0o600, 0o604), "{mode:o} {kept:o}");
    }
}
