//! Reports the state to the service manager (sd_notify(3)); nothing happens without one.

use std::os::fd::AsFd;

use sd_notify::NotifyState;

use crate::log::Log;

/// What the service manager learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Packets are forwarded, also after a change.
    Ready,
    /// The configuration changes.
    Reloading,
    /// The instance drains and ends.
    Stopping,
    /// All workers have made progress since the last report.
    Progress,
}

/// Sends a report. A failure is a warning in the log.
pub fn notify(log: Log, report: Report) {
    let sent = match report {
        Report::Ready => sd_notify::notify(&[NotifyState::Ready]),
        // systemd from release 253 on wants the time with it.
        Report::Reloading => {
            NotifyState::monotonic_usec_now().and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now]))
        }
        Report::Stopping => sd_notify::notify(&[NotifyState::Stopping]),
        Report::Progress => sd_notify::notify(&[NotifyState::Watchdog]),
    };
    if let Err(error) = sent {
        log.warn(&format_args!("NOTIFY_SOCKET: {error}; the service manager did not get the report {report:?}"));
    }
}

/// Gives the service manager a descriptor to keep over a restart, under a name. Nothing happens
/// without one.
pub fn store(log: Log, name: &str, descriptor: &impl AsFd) {
    let state = [NotifyState::FdStore, NotifyState::FdName(name)];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[descriptor.as_fd()]) {
        log.warn(&format_args!("NOTIFY_SOCKET: {error}; device {name} does not survive a restart"));
    }
}

/// Asks the service manager to close what it keeps under a name. Nothing happens without one.
pub fn give_back(log: Log, name: &str) {
    if let Err(error) = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]) {
        log.warn(&format_args!("NOTIFY_SOCKET: {error}; device {name} stays until the service is stopped"));
    }
}
