//! Opening what should be a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read it. Never waits, as opening a FIFO without a writer does, and opens
/// no device, which may act on it.
///
/// # Errors
/// It is something else, or the system refuses it.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let checked = |is_file| if is_file { Ok(()) } else { Err(io::Error::other("not a regular file")) };
    checked(std::fs::metadata(path)?.is_file())?;
    // Another may take its place in between.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    checked(file.metadata()?.is_file())?;
    Ok(file)
}
