//! `natrix run`: from a configuration to forwarded packets, until a signal ends it.

use core::error::Error;
use std::io;
use std::panic;
use std::path::Path;
use std::path::PathBuf;
use std::thread;

use config::Config;
use config::Hugepages;
use mem::NotEnough;
use mem::Stock;
use packet_io::Io;
use signal_hook::consts::SIGHUP;
use signal_hook::consts::SIGINT;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::claims::PortTaken;
use crate::log::Log;
use crate::notify::Report;
use crate::notify::notify;
use crate::running::Running;
use crate::running::Start;
use crate::running::StartError;
use crate::server::Socket;
use crate::server::SocketError;
use crate::watchdog::Watchdog;

/// Why an instance did not come up.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The control socket is not to be had.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// Another process has the device of a port.
    #[error(transparent)]
    Taken(#[from] PortTaken),
    /// Not everything fits this machine's memory. Nothing has been taken.
    #[error("memory: {0}; lower [tables], use fewer pool addresses, or add memory")]
    Memory(#[from] NotEnough),
    /// Ports could not be opened. The message is in the usual form already.
    #[error("{0}")]
    Ports(Box<dyn Error + Send + Sync>),
    /// Something else was missing.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals cannot be received.
    #[error("signals: {0}; see the system's log")]
    Signals(io::Error),
}

/// Ports that are open.
#[derive(Debug)]
pub struct Opened<I> {
    /// One view of them for each worker.
    pub ios: Vec<I>,
    /// Bytes of packet buffers that were to be on hugepages and are not.
    pub missed_bytes: u64,
}

impl<I> From<Vec<I>> for Opened<I> {
    fn from(ios: Vec<I>) -> Opened<I> {
        Opened { ios, missed_bytes: 0 }
    }
}

/// Runs an instance on the ports that `open` opens, until SIGTERM or SIGINT; then drains it. SIGHUP
/// changes nothing. `prepare` runs first on each worker's thread. All memory is planned before any
/// is taken.
///
/// # Errors
/// [`RunError`] says why it did not come up. Once it runs it ends without an error.
pub fn run_on<I: Io + Send + 'static>(
    config: &Config,
    config_path: &Path,
    version: &str,
    open: impl FnOnce(&Config, Log) -> Result<Opened<I>, Box<dyn Error + Send + Sync>>,
    prepare: impl Fn() + Clone + Send + 'static,
) -> Result<(), RunError> {
    let log = Log::start(config.log.level, config.log.format);
    // From here on a signal is kept until it is read, so a signal during the start is not lost.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(RunError::Signals)?;
    let socket = Socket::open(&config.control.socket, config.control.mode)?;
    report_panics(log);
    let plan = config.memory_plan(&Stock::of_this_machine())?;
    let Opened { ios, missed_bytes } = match open(config, log) {
        Ok(opened) => opened,
        // While it waited for the other end of a port.
        Err(_) if signals.pending().any(|signal| signal != SIGHUP) => {
            log.info(&"ended by a signal before all ports were open");
            return Ok(());
        }
        Err(error) => return Err(RunError::Ports(error)),
    };
    let workers = ios.len();
    let running = Running::start(Start { config, config_path, version, socket, ios, log }, prepare)?;
    if let Some(warning) = plan.warning(missed_bytes.saturating_add(mem::missed_bytes())) {
        match config.dpdk.hugepages {
            // An operator that wants none knows what it costs.
            Hugepages::Off => log.info(&warning),
            Hugepages::Auto | Hugepages::Required => log.warn(&warning),
        }
    }
    let counted = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    log.info(&format_args!(
        "natrix {version}: {} on {}, configuration {}, control socket {}",
        counted(workers, "worker"),
        counted(config.ports.len(), "port"),
        config_path.display(),
        config.control.socket.display(),
    ));
    if config.event_log.is_none() {
        log.info(&format_args!("event log: {}; set [log.store] path to record it", config::NO_LOG));
    }
    notify(log, Report::Ready);
    let watchdog =
        Watchdog::start(running.instance(), log).map_err(|source| StartError::System { what: "watchdog", source })?;
    let signal = await_end(&mut signals, log);
    // Workers that have ended answer no more.
    drop(watchdog);
    notify(log, Report::Stopping);
    let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
    log.info(&format_args!("{name}: stopping"));
    running.stop();
    Ok(())
}

/// Waits for the signal that ends the instance. SIGHUP is ignored, including the one sent when a
/// terminal closes: it must not end sessions, and as a request to reload it has no way to report
/// that a file is refused, and why. Only `natrix reload` can do that.
fn await_end(signals: &mut Signals, log: Log) -> i32 {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return signal;
        }
        log.warn(
            &"SIGHUP is ignored; run natrix reload -c FILE to change the configuration, or send SIGTERM to stop the instance",
        );
    }
    SIGTERM
}

/// A panic is one line in the log, like everything else.
fn report_panics(log: Log) {
    panic::set_hook(Box::new(move |information| {
        let thread = thread::current();
        let place = information.location().map(ToString::to_string).unwrap_or_default();
        let message = information.payload_as_str().unwrap_or("no message");
        log.error(&format_args!("thread \"{}\": {message} ({place}); report this", thread.name().unwrap_or("main")));
    }));
}

/// Where the captures of failed bursts go.
pub(crate) fn quarantine_path(config: &Config) -> PathBuf {
    config.control.socket.with_extension("quarantine.pcap")
}
