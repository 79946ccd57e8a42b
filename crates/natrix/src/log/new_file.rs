//! A file that gets its name once it is whole, so that a run which fails leaves the earlier one as
//! it was.

use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use export::FILE_MODE;

/// A file that is written. Dropping it removes what was written so far.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    /// Its name until it is whole; None of what is no file, such as a pipe, and of what is whole.
    part: Option<PathBuf>,
    file: File,
}

impl NewFile {
    /// Begins the file at `path`, as `PATH.part` beside it. What exists and is no file, such as a
    /// device or a pipe, is written itself.
    pub(crate) fn begin(path: &Path) -> io::Result<NewFile> {
        let is_special = match fs::metadata(path) {
            Ok(known) => !known.is_file(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        // A link stays a link.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = (!is_special).then(|| PathBuf::from(part));
        let open = part.as_deref().unwrap_or(&path);
        let file = File::options().write(true).create(true).truncate(!is_special).mode(FILE_MODE).open(open)?;
        Ok(NewFile { path, part, file })
    }

    /// A handle to write to.
    pub(crate) fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The file is whole, and takes the place of an earlier one. Waits for the disk.
    pub(crate) fn end(mut self) -> io::Result<()> {
        let Some(part) = &self.part else { return Ok(()) };
        self.file.sync_all()?;
        fs::rename(part, &self.path)?;
        self.part = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(part) = &self.part {
            let _ = fs::remove_file(part);
        }
    }
}
