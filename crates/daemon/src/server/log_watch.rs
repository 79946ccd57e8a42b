//! What the log of the process says about the event log: that it cannot be written, that mappings
//! are refused or records lost for lack of room, and that it is over. Each is said when it begins
//! and when it ends, however long it takes. And what retention has deleted, and other programs have
//! renamed, deleted or cut.

use core::fmt::Display;

use export::FiguresView;
use export::Taken;
use export::store::Expired;
use nat::Duration;
use nat::Instant;
use nat::Verdict;
use nat::event::BackPressure;

use crate::event_log::records_text;
use crate::instance::Instance;
use crate::log::Log;
use crate::mailbox::Snapshot;

/// What has not happened for so long is over: a disk at its limit fails and works by turns.
const OVER: Duration = Duration::from_secs(5);

/// Time from one line about a file that another program took to the next.
const TAKEN_LINES_AFTER: Duration = Duration::from_secs(60);

/// How severe a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Info,
    Warn,
    Error,
}

/// A line for the log.
pub(super) type Line = (Level, String);

/// The figures at one moment.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    now: Instant,
    back_pressure: BackPressure,
    /// Of the store, and of the file of lines.
    writers: [Option<FiguresView>; 2],
    /// Path of that file.
    path: String,
    /// Records that the workers had no room for.
    lost: u64,
    /// Packets that were refused because their mapping would have had no record.
    refused: u64,
    /// What retention has deleted since the last look.
    expired: Option<Expired>,
}

impl Seen {
    /// The figures of an instance now; None without an event log.
    fn of(instance: &Instance, snapshots: &[Snapshot]) -> Option<Seen> {
        let view = instance.event_log()?;
        let path = view.destination();
        Some(Seen {
            now: instance.clock.now(),
            back_pressure: instance.shared().settings().events.back_pressure,
            expired: view.handle.take_expired(),
            writers: [view.handle.stored(), (!path.is_empty()).then(|| view.handle.figures())],
            path,
            lost: snapshots.iter().map(|snapshot| snapshot.events.lost).sum(),
            refused: snapshots.iter().map(|snapshot| snapshot.counters.of(Verdict::LogFull)).sum(),
        })
    }
}

/// Something that lasts for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Episode {
    pub(super) began: Instant,
    pub(super) last: Instant,
    /// The count before it.
    pub(super) before: u64,
}

/// A count whose growth is an episode.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    last: u64,
    episode: Option<Episode>,
}

/// What a look at a count shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Begins,
    /// After so many seconds, in which it grew by so much.
    Ends(u64, u64),
}

impl Count {
    /// Looks at the count. `goes_on` says that the episode goes on without growth.
    fn look(&mut self, now: Instant, count: u64, goes_on: bool) -> Option<Change> {
        let before = core::mem::replace(&mut self.last, count);
        let is_active = goes_on || count > before;
        match &mut self.episode {
            None if is_active => {
                self.episode = Some(Episode { began: now, last: now, before });
                Some(Change::Begins)
            }
            Some(episode) if is_active => {
                episode.last = now;
                None
            }
            Some(episode) if now.saturating_since(episode.last) >= OVER => self.end(),
            _ => None,
        }
    }

    /// Ends the episode, if there is one.
    fn end(&mut self) -> Option<Change> {
        let Episode { began, last, before } = self.episode.take()?;
        Some(Change::Ends(last.saturating_since(began).as_secs(), self.last.saturating_sub(before)))
    }
}

/// Follows the figures.
#[derive(Debug, Default)]
pub(super) struct LogWatch {
    failures: [Count; 2],
    lost: Count,
    refused: Count,
    taken: TakenWatch,
}

/// The files of lines that other programs took.
#[derive(Clone, Copy, Debug, Default)]
struct TakenWatch {
    /// Of them, those with a line.
    count: u64,
    /// When the last line was.
    at: Option<Instant>,
}

impl TakenWatch {
    fn look(&mut self, now: Instant, path: &str, figures: &FiguresView) -> Option<Line> {
        let (count, taken) = (figures.taken.0, figures.taken.1.as_ref()?);
        let is_soon = self.at.is_some_and(|at| now.saturating_since(at) < TAKEN_LINES_AFTER);
        if count <= self.count || is_soon {
            return None;
        }
        let since = core::mem::replace(self, TakenWatch { count, at: Some(now) });
        let times = match count - since.count {
            1 => String::new(),
            times => format!(", the last of {times} times"),
        };
        let (level, what) = match taken {
            Taken::Renamed(Some(to)) => (Level::Warn, format!("renamed {path} to {}{times}", to.display())),
            Taken::Renamed(None) => (Level::Warn, format!("moved {path} away{times}")),
            Taken::Deleted => {
                (Level::Error, format!("deleted {path}{times}; its records are lost unless there is a copy"))
            }
            Taken::Cut => (Level::Error, format!("cut {path}{times}; its records are lost unless there is a copy")),
        };
        let then = match taken {
            Taken::Renamed(_) | Taken::Deleted => "records go to a new file there, which begins with",
            Taken::Cut => "records go on in it, after",
        };
        let remedy =
            "leave this to Natrix (log.rotate_size, log.keep_files), and exclude it from logrotate and clean-up jobs";
        Some((level, format!("event log: another program {what}; {then} all existing state; {remedy}")))
    }
}

/// The two writers.
const NAMES: [&str; 2] = ["log store", "event log"];

impl LogWatch {
    /// Looks at an instance, and writes what there is to say.
    pub(super) fn tick(&mut self, instance: &Instance, log: Log, snapshots: &[Snapshot]) {
        if let Some(seen) = Seen::of(instance, snapshots) {
            self.look(&seen).iter().for_each(|line| write(log, line));
        }
    }

    /// Writes how much was lost or refused until the end of the instance, by the last numbers of
    /// its workers.
    pub(super) fn end(&mut self, instance: &Instance, log: Log, last: &[Snapshot]) {
        if let Some(seen) = Seen::of(instance, last) {
            self.look_last(&seen).iter().for_each(|line| write(log, line));
        }
    }

    /// The end of the instance need not be that of the lack of room.
    fn look_last(&mut self, seen: &Seen) -> Vec<Line> {
        let mut lines = self.look(seen);
        if let Some(Change::Ends(seconds, count)) = self.refused.end() {
            let what = format!("event log: {count} packets were refused in {seconds} s, until the instance ended");
            lines.push((Level::Warn, what));
        }
        if let Some(Change::Ends(seconds, count)) = self.lost.end() {
            let what = format!("event log: {count} records were lost in {seconds} s, until the instance ended");
            lines.push((
                Level::Warn,
                format!("{what}; the next start records those that the log does not have as gaps"),
            ));
        }
        lines
    }

    fn look(&mut self, seen: &Seen) -> Vec<Line> {
        let mut lines = Vec::new();
        for ((name, count), figures) in NAMES.iter().zip(&mut self.failures).zip(&seen.writers) {
            let Some(figures) = figures else { continue };
            let change = count.look(seen.now, figures.errors, figures.failing);
            lines.extend(change.map(|change| of_failure(name, change, figures, seen.back_pressure)));
        }
        let of_lines = seen.writers[1].as_ref();
        lines.extend(of_lines.and_then(|figures| self.taken.look(seen.now, &seen.path, figures)));
        let change = self.refused.look(seen.now, seen.refused, false);
        lines.extend(change.map(of_refused));
        let change = self.lost.look(seen.now, seen.lost, false);
        lines.extend(change.map(|change| of_lost(change, seen.back_pressure)));
        lines.extend(seen.expired.map(|Expired { segments, from_us, until_us }| {
            let records = records_text(segments, from_us, until_us);
            (Level::Info, format!("log store: log.store.retention has deleted {records}"))
        }));
        lines
    }
}

fn of_failure(name: &str, change: Change, figures: &FiguresView, back_pressure: BackPressure) -> Line {
    match change {
        Change::Begins => {
            let reason = figures.last_error.as_deref().unwrap_or("the system refused");
            let then = match back_pressure {
                BackPressure::Refuse => "new mappings are refused (log_full) until it is written again",
                BackPressure::Drop => "they are lost and counted until it is written again",
            };
            let is_missing = reason.contains("No such file") || reason.contains("Permission denied");
            let remedy = match reason.starts_with("open: ") && is_missing {
                true => "; create its folder, and let Natrix write there",
                false => "",
            };
            (
                Level::Error,
                format!(
                    "{name}: cannot be written: {reason}; records wait in memory, and once that is full, {then}{remedy}"
                ),
            )
        }
        Change::Ends(seconds, _) => (Level::Info, format!("{name}: written again after {seconds} s")),
    }
}

fn of_refused(change: Change) -> Line {
    match change {
        Change::Begins => (
            Level::Error,
            "event log: new mappings are refused, because there is no room for their records (log_full); existing ones \
             go on"
                .to_owned(),
        ),
        Change::Ends(seconds, count) => {
            let what = format!("event log: no more mappings are refused; {count} packets were refused in {seconds} s");
            (Level::Warn, what)
        }
    }
}

fn of_lost(change: Change, back_pressure: BackPressure) -> Line {
    match (change, back_pressure) {
        (Change::Begins, BackPressure::Drop) => (
            Level::Error,
            "event log: records are lost, because there is no room for them; answers about this time are not complete"
                .to_owned(),
        ),
        (Change::Begins, BackPressure::Refuse) => (
            Level::Warn,
            "event log: records of refusals are lost, because there is no room for them; every mapping has its record"
                .to_owned(),
        ),
        (Change::Ends(seconds, count), _) => {
            let what = format!("event log: no more records are lost; {count} were lost in {seconds} s");
            (Level::Warn, format!("{what}; natrix log verify names the gaps"))
        }
    }
}

pub(super) fn write(log: Log, (level, line): &Line) {
    let line: &dyn Display = line;
    match level {
        Level::Info => log.info(line),
        Level::Warn => log.warn(line),
        Level::Error => log.error(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seconds: u64, back_pressure: BackPressure) -> Seen {
        let store = Some(FiguresView::default());
        let now = Instant::from_micros(seconds * 1_000_000);
        let path = "/log/events.json".to_owned();
        Seen { now, back_pressure, writers: [store, None], path, lost: 0, refused: 0, expired: None }
    }

    #[test]
    fn what_retention_deletes_is_one_line_a_look() {
        let mut watch = LogWatch::default();
        let expired = Expired { segments: 3, from_us: 1_700_000_000_000_000, until_us: 1_700_003_600_000_000 };
        let lines = watch.look(&Seen { expired: Some(expired), ..seen(1, BackPressure::Drop) });
        let (from, until) = (export::utc_text(expired.from_us), export::utc_text(expired.until_us));
        let line = format!("log store: log.store.retention has deleted 3 segments with records from {from} to {until}");
        assert_eq!(lines, [(Level::Info, line)]);
        assert_eq!(watch.look(&seen(2, BackPressure::Drop)), []);
    }

    #[test]
    fn a_file_that_another_program_took_has_a_line_a_minute() {
        let mut watch = LogWatch::default();
        let mut look = |seconds, count, taken: &Taken| {
            let figures = FiguresView { taken: (count, Some(taken.clone())), ..FiguresView::default() };
            let mut seen = seen(seconds, BackPressure::Refuse);
            seen.writers[1] = Some(figures);
            watch.look(&seen)
        };
        let renamed = Taken::Renamed(Some("/log/events.json.1".into()));
        let lines = look(1, 1, &renamed);
        let line = "event log: another program renamed /log/events.json to /log/events.json.1; records go to a new \
                    file there, which begins with all existing state; leave this to Natrix (log.rotate_size, \
                    log.keep_files), and exclude it from logrotate and clean-up jobs";
        assert_eq!(lines, [(Level::Warn, line.to_owned())]);
        assert_eq!(look(2, 1, &renamed), [], "it is said once");
        (3..61).for_each(|second| assert_eq!(look(second, second, &Taken::Deleted), []));
        let lines = look(61, 60, &Taken::Deleted);
        assert_eq!((lines.len(), lines[0].0), (1, Level::Error), "{lines:?}");
        assert!(
            lines[0].1.contains("deleted /log/events.json, the last of 59 times; its records are lost"),
            "{lines:?}"
        );
        let moved = look(200, 61, &Taken::Renamed(None));
        assert!(moved[0].0 == Level::Warn && moved[0].1.contains("moved /log/events.json away; "), "{moved:?}");
        let cut = look(300, 62, &Taken::Cut);
        assert!(
            cut[0].0 == Level::Error && cut[0].1.contains("; records go on in it, after all existing state"),
            "{cut:?}"
        );
    }

    #[test]
    fn a_missing_folder_has_its_remedy() {
        let mut watch = LogWatch::default();
        let mut seen = seen(1, BackPressure::Refuse);
        let last_error = Some("open: No such file or directory (os error 2)".to_owned());
        seen.writers[1] = Some(FiguresView { errors: 1, failing: true, last_error, ..FiguresView::default() });
        let lines = watch.look(&seen);
        assert_eq!((lines.len(), lines[0].0), (1, Level::Error), "{lines:?}");
        assert!(lines[0].1.starts_with("event log: cannot be written: open: No such file"), "{lines:?}");
        assert!(lines[0].1.ends_with("; create its folder, and let Natrix write there"), "{lines:?}");
    }

    fn failing(mut seen: Seen, errors: u64, is_failing: bool) -> Seen {
        let last_error = Some("store /log/journal-1: No space left on device (os error 28)".to_owned());
        seen.writers[0] = Some(FiguresView { errors, failing: is_failing, last_error, ..FiguresView::default() });
        seen
    }

    #[test]
    fn a_full_disk_is_said_once_and_so_is_its_end() {
        let mut watch = LogWatch::default();
        let at = |seconds| seen(seconds, BackPressure::Drop);
        assert_eq!(watch.look(&at(0)), []);
        let lines = watch.look(&failing(at(1), 1, true));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].0, Level::Error);
        for part in ["log store: cannot be written", "/log/journal-1", "No space left", "lost and counted"] {
            assert!(lines[0].1.contains(part), "{lines:?}");
        }
        // It works for moments.
        assert_eq!(watch.look(&failing(at(2), 9, false)), []);
        assert_eq!(watch.look(&failing(at(5), 9, false)), []);
        assert_eq!(watch.look(&failing(at(6), 10, true)), []);
        let lost = |seconds, lost| Seen { lost, ..failing(at(seconds), 20, true) };
        let lines = watch.look(&lost(7, 4));
        assert_eq!((lines.len(), lines[0].0), (1, Level::Error), "{lines:?}");
        assert!(lines[0].1.contains("records are lost"), "{lines:?}");
        assert_eq!(watch.look(&lost(8, 306)), []);
        let after = |seconds| Seen { lost: 306, ..failing(at(seconds), 20, false) };
        assert_eq!(watch.look(&after(9)), []);
        let lines = watch.look(&after(13));
        let texts: Vec<&str> = lines.iter().map(|line| line.1.as_str()).collect();
        let lost = "event log: no more records are lost; 306 were lost in 1 s; natrix log verify names the gaps";
        assert_eq!(texts, ["log store: written again after 7 s", lost]);
        assert_eq!(watch.look(&after(90)), []);
    }

    #[test]
    fn refused_mappings_are_said_at_both_ends_with_their_count() {
        let mut watch = LogWatch::default();
        let at = |seconds, refused| Seen { refused, ..seen(seconds, BackPressure::Refuse) };
        assert_eq!(watch.look(&at(0, 0)), []);
        let lines = watch.look(&at(1, 3));
        assert_eq!((lines.len(), lines[0].0), (1, Level::Error), "{lines:?}");
        assert!(lines[0].1.contains("log_full"), "{lines:?}");
        (2..100).for_each(|second| assert_eq!(watch.look(&at(second, 3 + second)), []));
        let lines = watch.look(&at(104, 102));
        assert!(lines[0].1.ends_with("102 packets were refused in 98 s"), "{lines:?}");
        // What begins again is said again.
        assert_eq!(watch.look(&at(200, 103)).len(), 1);
    }

    #[test]
    fn a_stop_with_a_full_disk_counts_all_that_was_lost() {
        let mut watch = LogWatch::default();
        let at = |seconds, lost| Seen { lost, ..failing(seen(seconds, BackPressure::Drop), 1, true) };
        watch.look(&at(0, 0));
        assert_eq!(watch.look(&at(1, 527)).len(), 1);
        // What the workers lost while they stopped is among them.
        let lines = watch.look_last(&at(4, 973));
        assert_eq!(lines.len(), 1, "{lines:?}");
        let lost = "event log: 973 records were lost in 3 s, until the instance ended; the next start records";
        assert!(lines[0].0 == Level::Warn && lines[0].1.starts_with(lost), "{lines:?}");
        assert_eq!(watch.look_last(&at(5, 973)), [], "it is said once");
        // All of them may have been lost since the last look.
        let mut watch = LogWatch::default();
        watch.look(&at(0, 0));
        assert_eq!(watch.look_last(&at(1, 9)).len(), 2);
    }

    #[test]
    fn what_refuse_does_to_records_is_no_loss_of_holders() {
        let mut watch = LogWatch::default();
        let lines = watch.look(&failing(seen(1, BackPressure::Refuse), 1, true));
        assert!(lines[0].1.contains("new mappings are refused (log_full)"), "{lines:?}");
        let lines = watch.look(&Seen { lost: 2, ..failing(seen(2, BackPressure::Refuse), 1, true) });
        assert_eq!((lines.len(), lines[0].0), (1, Level::Warn), "{lines:?}");
    }
}
