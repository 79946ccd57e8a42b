//! A pseudo-terminal, and the end of a process.

use std::fs::File;
use std::fs::OpenOptions;
use std::process::Child;
use std::process::ExitStatus;
use std::time::Duration;
use std::time::Instant;

use rustix::pty::OpenptFlags;

/// Time limit for an action of less than a second on a busy machine.
pub(crate) const GENEROUS: Duration = Duration::from_secs(20);

/// A terminal: the end of its reader, and the device for a program.
pub(crate) fn terminal() -> (File, File) {
    // Close it in the programs, so that the terminal is gone when the test closes it.
    let ours = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    rustix::pty::grantpt(&ours).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let name = rustix::pty::ptsname(&ours, Vec::new()).unwrap();
    let device = OpenOptions::new().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    (File::from(ours), device)
}

/// Waits at most [`GENEROUS`] for the process to end. Returns its status, or None if it did not
/// end.
pub(crate) fn ended(child: &mut Child) -> Option<ExitStatus> {
    let until = Instant::now() + GENEROUS;
    while Instant::now() < until {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}
