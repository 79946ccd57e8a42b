//! The log of the daemon, by `tracing`: to the journal of systemd, or as lines on standard error.
//! Never from the packet path.

mod lines;

use core::fmt::Display;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

use config::LogFormat;
use config::LogLevel;
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;

use crate::log::lines::Lines;

/// The target of all events of the log; other libraries have theirs.
const TARGET: &str = "natrix";

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

    /// The log of this process, from here on in `format`. Messages before go nowhere. If the
    /// journal cannot be reached, it is lines of text, and the first one says so.
    pub fn start(level: LogLevel, format: LogFormat) -> Log {
        Log::start_with(level, format, Targets::new().with_target(TARGET, LevelFilter::TRACE))
    }

    /// As [`Log::start`], where other crates write to it by `tracing` with the target `natrix`: the
    /// level holds for them too.
    pub fn start_for_all(level: LogLevel, format: LogFormat) -> Log {
        let least = match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
        };
        Log::start_with(level, format, Targets::new().with_target(TARGET, least))
    }

    fn start_with(level: LogLevel, format: LogFormat, written: Targets) -> Log {
        let log = Log::new(level);
        let is_journal = match format {
            LogFormat::Auto => is_read_by_the_journal(),
            LogFormat::Journald => true,
            LogFormat::Text | LogFormat::Json => false,
        };
        let journal = is_journal.then(tracing_journald::layer);
        let failed = match &journal {
            Some(Err(error)) => Some(error.to_string()),
            _ => None,
        };
        let layer: Box<dyn Layer<Registry> + Send + Sync> = match (journal, format) {
            (Some(Ok(layer)), _) => {
                // The fields are MESSAGE, PRIORITY and NATRIX_OBJECT.
                layer.with_field_prefix(Some("NATRIX".to_owned())).with_syslog_identifier("natrix".to_owned()).boxed()
            }
            (_, LogFormat::Json) => Lines::Json.boxed(),
            _ => Lines::Text.boxed(),
        };
        // Only the first of a process counts.
        let _ =
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer.with_filter(written)));
        if let Some(error) = failed {
            log.warn(&format_args!("log.format: the journal cannot be reached ({error}); the log is lines of text"));
        }
        log
    }

    /// Reports a failure.
    pub fn error(self, message: &dyn Display) {
        self.write(LogLevel::Error, message);
    }

    /// Reports a coming failure, or a function that works less well than configured.
    pub fn warn(self, message: &dyn Display) {
        self.write(LogLevel::Warn, message);
    }

    /// Reports start, stop and changes.
    pub fn info(self, message: &dyn Display) {
        self.write(LogLevel::Info, message);
    }

    fn write(self, level: LogLevel, message: &dyn Display) {
        if self.level.is_none_or(|least| level > least) {
            return;
        }
        let text = message.to_string();
        let (object, message) = parts(&text);
        macro_rules! event {
            ($level:expr) => {
                match object {
                    Some(object) => tracing::event!(target: TARGET, $level, object, message),
                    None => tracing::event!(target: TARGET, $level, message),
                }
            };
        }
        match level {
            LogLevel::Error => event!(Level::ERROR),
            LogLevel::Warn => event!(Level::WARN),
            LogLevel::Info => event!(Level::INFO),
            LogLevel::Debug => event!(Level::DEBUG),
        }
    }
}

/// What a message is about, and what it says of it: all messages are `object: what is wrong`.
fn parts(text: &str) -> (Option<&str>, &str) {
    match text.split_once(": ") {
        Some((object, message)) => (Some(object), message),
        None => (None, text),
    }
}

/// True if systemd has connected standard error to its journal (`JOURNAL_STREAM`).
fn is_read_by_the_journal() -> bool {
    let Some(stream) = env::var_os("JOURNAL_STREAM") else { return false };
    let stat = rustix::fs::fstat(io::stderr().as_fd());
    stat.is_ok_and(|stat| is_stream(&stream, stat.st_dev, stat.st_ino))
}

/// `DEVICE:INODE`. A program that another one started may have inherited the variable.
fn is_stream(named: &OsStr, device: u64, inode: u64) -> bool {
    named.to_str() == Some(format!("{device}:{inode}").as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_an_object_and_a_text() {
        assert_eq!(parts("control socket: gone; see x"), (Some("control socket"), "gone; see x"));
        assert_eq!(parts("ended by a signal"), (None, "ended by a signal"));
        assert_eq!(parts("at 12:30"), (None, "at 12:30"));
    }

    #[test]
    fn only_the_own_standard_error_is_the_journal() {
        assert!(is_stream(OsStr::new("8:4711"), 8, 4711));
        for other in ["8:4712", "9:4711", "", "8", "8:4711:1"] {
            assert!(!is_stream(OsStr::new(other), 8, 4711), "{other}");
        }
    }
}
