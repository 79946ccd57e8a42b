//! Lines on standard error, for journald or a terminal. Never from the packet path.

use core::fmt::Display;
use std::io;
use std::io::Write;

use config::LogLevel;

/// Writes what is at least as severe as its level.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// None: nothing at all.
    level: Option<LogLevel>,
}

impl Log {
    /// A log that leaves out what is less severe than `level`.
    pub const fn new(level: LogLevel) -> Log {
        Log { level: Some(level) }
    }

    /// A log that nobody reads.
    pub const fn silent() -> Log {
        Log { level: None }
    }

    /// Something failed.
    pub fn error(self, message: &dyn Display) {
        self.write(LogLevel::Error, "error", message);
    }

    /// Something will fail, or works less well than asked for.
    pub fn warn(self, message: &dyn Display) {
        self.write(LogLevel::Warn, "warning", message);
    }

    /// Start, stop and changes.
    pub fn info(self, message: &dyn Display) {
        self.write(LogLevel::Info, "info", message);
    }

    fn write(self, level: LogLevel, word: &str, message: &dyn Display) {
        if self.level.is_some_and(|least| level <= least) {
            // Where the log cannot be written there is nobody to tell.
            let _ = writeln!(io::stderr().lock(), "{word}: {message}");
        }
    }
}
