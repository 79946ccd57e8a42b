//! The watchdog of the service manager is fed by the workers: a report is sent only after each has
//! answered a question, which it does between two bursts. A stuck worker means no report, and the
//! service manager restarts the instance.

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::thread::JoinHandle;

use crate::instance::Instance;
use crate::log::Log;
use crate::notify::Report;
use crate::notify::notify;

/// Reports in the time that the service manager waits for one.
const REPORTS: u32 = 3;

/// The reporting thread; stops when dropped.
#[derive(Debug)]
pub struct Watchdog {
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Reports the progress of the workers until dropped. None if the service manager has not asked
    /// for it (`WatchdogSec=`).
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(instance: &Arc<Instance>, log: Log) -> io::Result<Option<Watchdog>> {
        let Some(within) = sd_notify::watchdog_enabled() else { return Ok(None) };
        let (end, ended) = mpsc::channel();
        let instance = Arc::clone(instance);
        let watch = move || run(&instance, log, within / REPORTS, &ended);
        let thread = thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Some(Watchdog { end: Some(end), thread: Some(thread) }))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its own message.
            let _ = thread.join();
        }
    }
}

fn run(instance: &Instance, log: Log, every: Duration, ended: &mpsc::Receiver<()>) {
    let mut is_reported = false;
    loop {
        match instance.snapshots() {
            Ok(_) => {
                is_reported = false;
                notify(log, Report::Progress);
            }
            Err(fault) if !is_reported => {
                is_reported = true;
                log.error(&format_args!("watchdog: {fault}; the service manager gets no report until it does"));
            }
            Err(_) => {}
        }
        if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}
