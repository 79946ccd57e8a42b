//! What the log must have and does not have yet: steps of the clock and names.
//!
//! A clock that is wrong for seconds, or formulas that are in use for seconds, decide which
//! subscriber held an endpoint then. They must not be forgotten because the disk fails or is slow
//! at that time, or because the process is killed before they are written. So they wait here in
//! order, and are in a file in memory beside the rings, which the next writer of the store reads.
//! The file also has the time of the last reading of both clocks: how the clock was set after it is
//! unknown.
//!
//! ```text
//!   file := magic, run, boot of the machine, µs of the last reading, CRC of it, entry…
//!   entry := length, CRC, content
//! ```

use std::collections::VecDeque;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Read;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::fs::Timespec;
use rustix::io::Errno;
use rustix::time::Itimerspec;
use rustix::time::TimerfdClockId;
use rustix::time::TimerfdFlags;
use rustix::time::TimerfdTimerFlags;

use super::catalogue::Entry;
use super::catalogue::Moment;
use super::catalogue::Names;
use super::codec::Cursor;
use crate::FILE_MODE;

/// A step of the clock that is recorded, in µs.
pub(crate) const STEP_US: u64 = 10_000;
const MAGIC: [u8; 8] = *b"NATXDUE1";
/// Place of the time of the last reading.
const READING: usize = MAGIC.len() + 32;
/// Longest file that is read.
const FILE_MAX: u64 = 256 << 20;
/// Names and steps that wait. Of more than that, the first ones and the newest are kept.
const NAMES_MAX: usize = 64;
const STEPS_MAX: usize = 4_096;

/// The entries that wait, for the writer of the store and all that read the clock.
#[derive(Debug)]
pub(crate) struct Unwritten {
    state: Mutex<State>,
    /// Reports that the clock was set; None on a system without.
    alarm: Option<OwnedFd>,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<Entry>,
    /// Of the newest step.
    offset: i64,
    /// The last reading.
    read_us: u64,
    /// Before this reading `alarm` was looked at last.
    checked_us: u64,
    /// The newest names, and a time before which they were not in use.
    names: Names,
    names_since_us: u64,
    /// The file and how it begins.
    place: Option<(PathBuf, Vec<u8>)>,
    /// None if it could not be written: then it is not there.
    file: Option<File>,
}

/// What a killed process left.
#[derive(Debug)]
pub(crate) struct UnwrittenLeft {
    /// The last reading of both clocks. None if the file is damaged.
    pub(crate) read_us: u64,
    pub(crate) entries: Vec<Entry>,
}

impl Unwritten {
    /// Of a run that begins at this moment. There is no file yet.
    pub(crate) fn new(now: Moment) -> Unwritten {
        let state = State {
            entries: VecDeque::new(),
            offset: now.offset(),
            read_us: now.monotonic_us,
            checked_us: now.monotonic_us,
            names: Names::default(),
            names_since_us: 0,
            place: None,
            file: None,
        };
        Unwritten { state: Mutex::new(state), alarm: alarm().ok() }
    }

    /// Makes the file.
    pub(crate) fn keep(&self, path: PathBuf, run: &[u8; 16], machine: &[u8; 16]) -> io::Result<()> {
        let mut state = self.state();
        state.place = Some((path, [&MAGIC[..], run, machine].concat()));
        state.rewrite()
    }

    /// The run has ended cleanly: nothing is written to the file any more.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        (state.place, state.file) = (None, None);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads both clocks. A step is noticed, also by the next reader.
    pub(crate) fn read(&self, clocks: impl Fn() -> Moment) -> Moment {
        // One at a time: a reading is not overtaken by a later one.
        let mut state = self.state();
        let before = clocks();
        let was_set = self.alarm.as_ref().is_some_and(was_set);
        let now = if was_set { clocks() } else { before };
        state.note(now, was_set);
        state.checked_us = before.monotonic_us;
        now
    }

    /// Notes a reading of both clocks, if there is no later one.
    pub(crate) fn note(&self, now: Moment) {
        self.state().note(now, false);
    }

    /// Waits until the clock is set, but not longer than this.
    pub(crate) fn wait(&self, longest: core::time::Duration) {
        let Some(alarm) = &self.alarm else { return std::thread::sleep(longest) };
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        // An interrupted wait is a short one.
        let _ = rustix::event::poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&timeout));
    }

    /// Sets the names for the numbers in events from now on.
    pub(crate) fn set_names(&self, names: Names) {
        let mut state = self.state();
        if state.names.is_as(&names) {
            return;
        }
        // Different ones, so that an entry can be recognised.
        let since_us = state.read_us.max(state.names_since_us + 1);
        (state.names, state.names_since_us) = (names.clone(), since_us);
        if state.entries.iter().filter(|entry| matches!(entry, Entry::Names { .. })).count() >= NAMES_MAX
            && let Some(newest) = state.entries.iter().rposition(|entry| matches!(entry, Entry::Names { .. }))
        {
            state.entries.remove(newest);
        }
        state.push(Entry::Names { since_us, at_us: since_us, names: Box::new(names) });
    }

    /// The entry that must be written first. Names are in use at `now_us` at the latest.
    pub(crate) fn first(&self, now_us: u64) -> Option<Entry> {
        let mut entry = self.state().entries.front()?.clone();
        entry.set_latest(now_us);
        Some(entry)
    }

    /// Takes the first step of the clock, with a time before which the clock was not set. Call it
    /// only where no names are set.
    pub(crate) fn take_step(&self) -> Option<(Moment, u64)> {
        let Entry::Clock { moment, since_us } = self.state().entries.pop_front()? else { return None };
        Some((moment, since_us))
    }

    /// The first entry is in the catalogue.
    pub(crate) fn remove_first(&self) {
        let mut state = self.state();
        state.entries.pop_front();
        // Without its file, a start would find records missing.
        let _ = state.rewrite();
    }
}

impl State {
    fn note(&mut self, now: Moment, was_set: bool) {
        if now.monotonic_us < self.read_us {
            return;
        }
        let read_us = core::mem::replace(&mut self.read_us, now.monotonic_us);
        if was_set || now.offset().abs_diff(self.offset) > STEP_US {
            self.offset = now.offset();
            // The clock may have been set before the last reading and after the last look.
            let since_us = if was_set { read_us.min(self.checked_us) } else { read_us };
            let mut since_us = since_us;
            if self.entries.iter().filter(|entry| matches!(entry, Entry::Clock { .. })).count() >= STEPS_MAX
                && let Some(newest) = self.entries.iter().rposition(|entry| matches!(entry, Entry::Clock { .. }))
                && let Some(Entry::Clock { since_us: earlier_us, .. }) = self.entries.remove(newest)
            {
                since_us = earlier_us;
            }
            self.push(Entry::Clock { moment: now, since_us });
        } else if let Some(file) = &self.file
            && file.write_all_at(&reading(now.monotonic_us), READING as u64).is_err()
        {
            let _ = self.rewrite();
        }
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        // Without its file, a start would find records missing.
        let _ = self.rewrite();
    }

    /// Replaces the file by one that has everything. If that fails, there is none.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some((path, begin)) = &self.place else { return Ok(()) };
        let mut bytes = begin.clone();
        bytes.extend_from_slice(&reading(self.read_us));
        for entry in &self.entries {
            let mut content = Vec::new();
            entry.put(&mut content);
            bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&content).to_le_bytes());
            bytes.extend_from_slice(&content);
        }
        let new = path.with_extension("new");
        let write = || {
            // What another process left in its place, if anything.
            let _ = fs::remove_file(&new);
            let mut options = File::options();
            let mut file = options.write(true).create_new(true).mode(FILE_MODE).open(&new)?;
            file.write_all(&bytes)?;
            fs::rename(&new, path)?;
            Ok(file)
        };
        match write() {
            Ok(file) => {
                self.file = Some(file);
                Ok(())
            }
            Err(error) => {
                self.file = None;
                let _ = fs::remove_file(path);
                Err(error)
            }
        }
    }
}

fn reading(read_us: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&read_us.to_le_bytes());
    bytes[8..].copy_from_slice(&crc32fast::hash(&read_us.to_le_bytes()).to_le_bytes());
    bytes
}

/// What the file of a run has; None if it is another's, damaged or missing.
pub(crate) fn left(path: &Path, run: &[u8; 16], machine: &[u8; 16]) -> Option<UnwrittenLeft> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes).ok()?;
    parse(&bytes, run, machine)
}

fn parse(bytes: &[u8], run: &[u8; 16], machine: &[u8; 16]) -> Option<UnwrittenLeft> {
    let mut input = Cursor::new(bytes);
    let is_ours = input.array::<8>()? == MAGIC && input.array::<16>()? == *run && input.array::<16>()? == *machine;
    let read_us = input.u64()?;
    if !is_ours || input.u32()? != crc32fast::hash(&read_us.to_le_bytes()) {
        return None;
    }
    let mut entries = Vec::new();
    while !input.is_empty() {
        let (length, crc) = (input.u32()? as usize, input.u32()?);
        let content = input.take(length).filter(|content| crc32fast::hash(content) == crc)?;
        entries.push(Entry::parse(content)?);
    }
    Some(UnwrittenLeft { read_us, entries })
}

/// A timer that never ends, but is cancelled each time the clock is set (timerfd_create(2)).
fn alarm() -> rustix::io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = rustix::time::timerfd_create(TimerfdClockId::Realtime, flags)?;
    let never = Timespec { tv_sec: i64::from(u32::MAX) * 4, tv_nsec: 0 };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: never };
    rustix::time::timerfd_settime(&timer, TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET, &once)?;
    Ok(timer)
}

/// True if the clock was set since the last call.
fn was_set(timer: &OwnedFd) -> bool {
    rustix::io::read(timer, &mut [0_u8; 8]) == Err(Errno::CANCELED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(monotonic_us: u64, ahead_us: u64) -> Moment {
        Moment { monotonic_us, unix_us: 1_790_000_000_000_000 + monotonic_us + ahead_us }
    }

    #[test]
    fn a_clock_set_and_set_back_between_readings_is_unclear() {
        let unwritten = Unwritten::new(moment(1_000, 0));
        unwritten.read(|| moment(2_000, 0));
        unwritten.read(|| moment(3_000, 0));
        assert_eq!(unwritten.first(3_000), None);
        // It may have been set after the last look and before the last reading.
        let mut state = unwritten.state();
        state.checked_us = 2_500;
        state.note(moment(4_000, 0), true);
        drop(state);
        assert_eq!(unwritten.first(4_000), Some(Entry::Clock { moment: moment(4_000, 0), since_us: 2_500 }));
    }

    #[test]
    fn the_alarm_is_silent_while_the_clock_is_not_set() {
        // A test must not set it: nothing is reported.
        assert!(!was_set(&alarm().unwrap()));
    }

    #[test]
    fn very_many_clock_steps_lose_no_certainty() {
        let unwritten = Unwritten::new(moment(0, 0));
        let steps = STEPS_MAX as u64 + 5;
        (1..=steps).for_each(|step| unwritten.note(moment(step, step % 2 * 2 * STEP_US)));
        let mut entries = unwritten.state().entries.clone();
        assert_eq!(entries.len(), STEPS_MAX);
        // The last one is unclear for all that it stands for.
        let newest = Entry::Clock { moment: moment(steps, steps % 2 * 2 * STEP_US), since_us: STEPS_MAX as u64 - 1 };
        assert_eq!(entries.pop_back(), Some(newest));
    }

    #[test]
    fn a_damaged_file_or_one_of_another_run_is_ignored() {
        let folder = std::env::temp_dir().join(format!("natrix-unwritten-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let (path, run, machine) = (folder.join("due"), [1; 16], [2; 16]);
        let unwritten = Unwritten::new(moment(0, 0));
        unwritten.keep(path.clone(), &run, &machine).unwrap();
        unwritten.set_names(Names { formulas: 5, ..Names::default() });
        unwritten.note(moment(100, 50_000));
        unwritten.note(moment(200, 50_000));
        let found = left(&path, &run, &machine).unwrap();
        assert_eq!((found.read_us, found.entries.len()), (200, 2));
        assert!(left(&path, &[3; 16], &machine).is_none() && left(&path, &run, &[3; 16]).is_none());
        let bytes = fs::read(&path).unwrap();
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(parse(&damaged, &run, &machine).is_none(), "byte {place}");
        }
        unwritten.remove_first();
        assert_eq!(left(&path, &run, &machine).unwrap().entries.len(), 1);
        unwritten.end();
        fs::remove_dir_all(&folder).unwrap();
        unwritten.set_names(Names::default());
        assert!(!folder.exists());
    }
}
