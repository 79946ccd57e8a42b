//! Collects lines and writes them to a medium in large pieces. Rotates between lines, syncs, and
//! repeats what failed.
//!
//! It reads no clock: times are arguments, so that tests need not wait.

use core::sync::atomic::Ordering;
use std::io;
use std::sync::Arc;

use crate::figures::Figures;
use crate::medium::Medium;
use crate::medium::Taken;

/// Time from a failure to the next attempt.
const RETRY_US: u64 = 500_000;
/// How often to check that the file is still there.
const LOOK_US: u64 = 1_000_000;
/// Maximum of waiting bytes. The exporter takes no more from the rings then.
pub(crate) const BUFFER_MAX: usize = 1 << 20;

/// When to write to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sync {
    /// When the system does.
    Never,
    /// When a file is rotated.
    OnRotation,
    /// At this interval in microseconds, and when a file is rotated.
    Interval(u64),
    /// After every piece: a record counts as written when it is on the disk.
    Always,
}

/// When files are rotated and synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Rotate a file that would exceed this number of bytes; 0: never.
    pub rotate_bytes: u64,
    /// Rotate a file of this age in µs; 0: never.
    pub rotate_us: u64,
    /// When to sync.
    pub sync: Sync,
}

/// Lines on their way to a medium.
#[derive(Debug)]
pub struct LogWriter<M> {
    medium: M,
    options: WriterOptions,
    figures: Arc<Figures>,
    /// Whole lines; the first `done` bytes are written.
    buffer: Vec<u8>,
    done: usize,
    /// Lines in the buffer.
    lines: u64,
    is_open: bool,
    /// True if the file has more than what [`LogWriter::aside`] added.
    has_lines: bool,
    file_bytes: u64,
    /// Times are those of the monotonic clock, in µs.
    file_since: u64,
    retry_at: u64,
    look_at: u64,
    synced_at: u64,
    is_unsynced: bool,
}

impl<M: Medium> LogWriter<M> {
    /// Opens nothing yet.
    pub fn new(medium: M, options: WriterOptions, figures: Arc<Figures>) -> LogWriter<M> {
        LogWriter {
            medium,
            options,
            figures,
            buffer: Vec::with_capacity(BUFFER_MAX + (64 << 10)),
            done: 0,
            lines: 0,
            is_open: false,
            has_lines: false,
            file_bytes: 0,
            file_since: 0,
            retry_at: 0,
            look_at: 0,
            synced_at: 0,
            is_unsynced: false,
        }
    }

    /// True if more lines may be added.
    pub fn has_room(&self) -> bool {
        self.buffer.len() < BUFFER_MAX
    }

    /// Unwritten bytes.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.done
    }

    /// Lines that are unwritten, or written in part.
    pub fn lines_waiting(&self) -> u64 {
        self.lines
    }

    /// True while the file is open.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Looks once a second whether another program took the file. If so, it is closed, and the next
    /// attempt to write begins another one, which gets a cut line as a whole.
    pub fn look(&mut self, now_us: u64) -> Option<Taken> {
        if !self.is_open || now_us < self.look_at {
            return None;
        }
        self.look_at = now_us.saturating_add(LOOK_US);
        let taken = self.medium.taken(self.file_bytes)?;
        if self.is_unsynced && self.options.sync != Sync::Never && taken != Taken::Deleted {
            // As with a rotation. Nothing waits for it: a failure is counted and not repeated.
            if let Err(error) = self.medium.sync() {
                self.figures.failed(&format!("sync: {error}"));
            }
        }
        self.medium.close();
        (self.is_open, self.is_unsynced, self.retry_at) = (false, false, 0);
        self.done = self.line_start();
        Some(taken)
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Adds one line. `write` appends it with its end of line.
    pub fn line(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.buffer);
        self.lines += 1;
        self.has_lines = true;
    }

    /// Adds a line before all that wait, to be the first one of another file. No line may be
    /// written in part.
    pub fn first_line(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut line = Vec::new();
        write(&mut line);
        self.buffer.splice(self.done..self.done, line);
        self.lines += 1;
        self.has_lines = true;
    }

    /// Adds a line that is no reason to rotate a file that has nothing else.
    pub fn aside(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.buffer);
        self.lines += 1;
    }

    /// Writes as much as possible. `now_us` is any clock that only goes forward, `unix_us` the time
    /// of day. Returns true if nothing is left. A failure is counted, and the next attempt follows
    /// after half a second.
    pub fn flush(&mut self, now_us: u64, unix_us: u64) -> bool {
        if now_us < self.retry_at {
            return self.waiting() == 0;
        }
        match self.try_flush(now_us, unix_us) {
            Ok(()) => {
                self.figures.failing.store(0, Ordering::Relaxed);
                true
            }
            Err((what, error)) => {
                self.figures.failed(&format!("{what}: {error}"));
                self.figures.failing.store(1, Ordering::Relaxed);
                self.retry_at = now_us + RETRY_US;
                false
            }
        }
    }

    fn try_flush(&mut self, now_us: u64, unix_us: u64) -> Result<(), (&'static str, io::Error)> {
        if !self.is_open {
            self.file_bytes = self.medium.open().map_err(|error| ("open", error))?;
            self.has_lines |= self.file_bytes > 0;
            self.is_open = true;
            self.file_since = now_us;
        }
        if self.is_due(now_us) {
            self.rotate(now_us, unix_us)?;
        }
        while self.done < self.buffer.len() {
            match self.medium.write(&self.buffer[self.done..]) {
                Ok(0) => return Err(("write", io::Error::from(io::ErrorKind::WriteZero))),
                Ok(count) => {
                    self.done += count;
                    self.file_bytes += count as u64;
                    self.figures.bytes.fetch_add(count as u64, Ordering::Relaxed);
                    self.is_unsynced = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(("write", error)),
            }
        }
        let is_sync_due = match self.options.sync {
            Sync::Never | Sync::OnRotation => false,
            Sync::Interval(interval) => now_us >= self.synced_at + interval,
            Sync::Always => true,
        };
        if is_sync_due && self.is_unsynced {
            self.sync(now_us)?;
        }
        self.figures.records.fetch_add(self.lines, Ordering::Relaxed);
        self.lines = 0;
        self.buffer.clear();
        self.done = 0;
        Ok(())
    }

    /// Start of the line that is written in part.
    fn line_start(&self) -> usize {
        let written = self.buffer.get(..self.done).unwrap_or_default();
        written.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
    }

    /// True if the file must be rotated before the next write.
    fn is_due(&self, now_us: u64) -> bool {
        let WriterOptions { rotate_bytes, rotate_us, .. } = self.options;
        let is_full = rotate_bytes > 0 && self.file_bytes + self.waiting() as u64 > rotate_bytes;
        let is_old = rotate_us > 0 && now_us >= self.file_since + rotate_us;
        // Between lines only, and never an empty file.
        self.done == self.line_start() && self.file_bytes > 0 && self.has_lines && (is_full || is_old)
    }

    fn rotate(&mut self, now_us: u64, unix_us: u64) -> Result<(), (&'static str, io::Error)> {
        if self.options.sync != Sync::Never && self.is_unsynced {
            self.sync(now_us)?;
        }
        let rotated = self.medium.rotate(unix_us);
        if rotated.is_err() {
            // It may have its new name already.
            self.medium.close();
            self.is_open = false;
        }
        rotated.map_err(|error| ("rotate", error))?;
        self.figures.rotations.fetch_add(1, Ordering::Relaxed);
        self.is_open = false;
        self.file_bytes = self.medium.open().map_err(|error| ("open", error))?;
        self.has_lines = self.file_bytes > 0 || self.waiting() > 0;
        self.is_open = true;
        self.file_since = now_us;
        Ok(())
    }

    fn sync(&mut self, now_us: u64) -> Result<(), (&'static str, io::Error)> {
        self.medium.sync().map_err(|error| ("sync", error))?;
        self.is_unsynced = false;
        self.synced_at = now_us;
        Ok(())
    }

    /// Changes to another medium, which is already open, and other options. Waiting lines go to the
    /// old medium if it accepts them now. Otherwise all of them go to the new one, a cut line as a
    /// whole.
    pub fn change(&mut self, medium: M, options: WriterOptions, now_us: u64, unix_us: u64) {
        self.finish(now_us, unix_us);
        self.done = self.line_start();
        self.medium.close();
        (self.medium, self.options) = (medium, options);
        (self.is_open, self.is_unsynced, self.retry_at, self.look_at) = (false, false, 0, 0);
    }

    /// As [`LogWriter::flush`], then syncs unless the options say never. For the end.
    pub fn finish(&mut self, now_us: u64, unix_us: u64) -> bool {
        self.retry_at = 0;
        let is_written = self.flush(now_us, unix_us);
        if is_written
            && self.is_unsynced
            && self.options.sync != Sync::Never
            && let Err((what, error)) = self.sync(now_us)
        {
            self.figures.failed(&format!("{what}: {error}"));
        }
        is_written
    }
}

#[cfg(test)]
mod tests;
