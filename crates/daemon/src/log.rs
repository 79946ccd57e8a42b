//! Lines on standard error, for journald or a terminal. Never from the packet path.

use core::fmt::Display;
use std::io;
use std::io::Write;

use config::LogLevel;

/// Writes messages that are at least as severe as its level.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// None writes nothing.
    level: Option<LogLevel>,
}

impl Log {
    /// A log of messages at least as severe as `level`.
    pub const fn new(level: LogLevel) -> Log {
        Log { level: Some(level) }
    }

    /// A log that writes nothing.
    pub const fn silent() -> Log {
        Log { level: None }
    }

    /// Reports a failure.
    pub fn error(self, message: &dyn Display) {
        self.write(LogLevel::Error, "error", message);
    }

    /// Reports a coming failure, or a function that works less well than configured.
    pub fn warn(self, message: &dyn Display) {
        self.write(LogLevel::Warn, "warning", message);
    }

    /// Reports start, stop and changes.
    pub fn info(self, message: &dyn Display) {
        self.write(LogLevel::Info, "info", message);
    }

    fn write(self, level: LogLevel, word: &str, message: &dyn Display) {
        if self.level.is_some_and(|least| level <= least) {
            // A failure to write the log cannot be reported anywhere.
            let _ = writeln!(io::stderr().lock(), "{word}: {message}");
        }
    }
}
