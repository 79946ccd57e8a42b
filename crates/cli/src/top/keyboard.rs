//! Waits for a key or for the end of the terminal.
//!
//! At the end of its input the terminal library reads without end, because it takes the end for an
//! incomplete key. So call it only while the terminal exists.

use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::Duration;

use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;

/// The result of a wait.
pub(crate) enum Waited {
    /// A key, or a new size.
    Event(Event),
    /// Nothing.
    Nothing,
    /// The terminal is gone.
    Gone,
}

/// The terminal that keys come from: standard input, or else the terminal of the session, as in the
/// terminal library.
pub(crate) struct Keyboard {
    terminal: File,
}

impl Keyboard {
    /// Opens the terminal that keys come from.
    ///
    /// # Errors
    /// There is no terminal.
    pub(crate) fn open() -> io::Result<Keyboard> {
        let stdin = io::stdin();
        let terminal =
            if stdin.is_terminal() { File::from(stdin.as_fd().try_clone_to_owned()?) } else { File::open("/dev/tty")? };
        Ok(Keyboard { terminal })
    }

    /// The same terminal, for a thread that waits for its end.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub(crate) fn try_clone(&self) -> io::Result<Keyboard> {
        Ok(Keyboard { terminal: self.terminal.try_clone()? })
    }

    /// Waits for a key, at most `at_most`.
    ///
    /// # Errors
    /// The error of the terminal library.
    pub(crate) fn wait(&self, at_most: Duration) -> io::Result<Waited> {
        if self.is_gone_within(PollFlags::IN, Some(at_most))? {
            return Ok(Waited::Gone);
        }
        // Ask even if the terminal has no input: the library may hold a key, or a new size, which
        // comes by a signal.
        let has_event = event::poll(Duration::ZERO)?;
        Ok(if has_event { Waited::Event(event::read()?) } else { Waited::Nothing })
    }

    /// Waits until the terminal is gone.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn wait_for_end(&self) -> io::Result<()> {
        while !self.is_gone_within(PollFlags::empty(), None)? {}
        Ok(())
    }

    fn is_gone_within(&self, wanted: PollFlags, at_most: Option<Duration>) -> io::Result<bool> {
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        let mut terminal = [PollFd::new(&self.terminal, wanted)];
        let timeout =
            at_most.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        match poll(&mut terminal, timeout.as_ref()) {
            Ok(_) => Ok(terminal[0].revents().intersects(gone)),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
