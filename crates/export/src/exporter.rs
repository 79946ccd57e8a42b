//! The thread between the rings and the medium.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;
use std::thread;
use std::thread::JoinHandle;

use mem::ring::Consumer;
use nat::Instant;
use nat::event::Event;
use nat::event::EventKind;
use nat::event::FINISHED;
use nat::event::LogsOpened;
use nat::event::Record;
use nat::types::WorkerId;

use crate::figures::Figures;
use crate::figures::FiguresView;
use crate::line;
use crate::line::Names;
use crate::line::Own;
use crate::medium::Medium;
use crate::medium::Taken;
use crate::store::Expired;
use crate::store::Moment;
use crate::store::StoreOptions;
use crate::store::StoreWriter;
use crate::store::unwritten::Unwritten;
use crate::storing;
use crate::storing::Storing;
use crate::subscriber::HostNames;
use crate::utc::UtcText;
use crate::writer::LogWriter;
use crate::writer::WriterOptions;

/// Records to take from one ring before the next ring has its turn.
const BATCH: usize = 1_024;
/// Write when this many bytes are waiting.
const PIECE_BYTES: usize = 256 << 10;
/// Sleep of an idle thread, short enough that no ring fills up.
const REST: Duration = Duration::from_millis(1);
/// Sleep while writing fails.
const REST_FAILING: Duration = Duration::from_millis(20);
/// Longest time between two readings of both clocks while the thread waits for a disk.
const READING: Duration = Duration::from_millis(10);
/// Time for the last records when the instance ends.
const FINISH_WITHIN: Duration = Duration::from_secs(5);
/// Time between two reports of all live state because another program took the file, in µs.
const REPORT_INTERVAL_US: u64 = 30_000_000;
/// Time from a record to the line that says until when the log has everything, in µs.
const COVERED_US: u64 = 1_000_000;
/// Time between two such lines while nothing happens.
const COVERED_IDLE_US: u64 = 10_000_000;

/// One moment by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clocks {
    /// By the clock of the events.
    pub now: Instant,
    /// µs since 1970.
    pub unix_us: u64,
}

/// The destination of lines from some moment on.
pub struct Output {
    /// The medium. It is already open, so a failure has been reported.
    pub medium: Box<dyn Medium>,
    /// When it is rotated and synced.
    pub options: WriterOptions,
    /// Its name. Another name is another log, which needs a snapshot of all current state.
    pub destination: String,
}

/// The arguments of a new exporter.
#[derive(Debug)]
pub struct Outputs {
    /// Where lines go, if there are lines.
    pub lines: Option<Output>,
    /// The store, if there is one; the rings are its own.
    pub store: Option<StoreWriter>,
    /// The rings of the workers, in order.
    pub rings: Vec<Consumer<Record>>,
    /// Names for the numbers in events.
    pub names: Names,
    /// Release, for the `started` line.
    pub version: String,
    /// Counts openings of another log.
    pub opened: Arc<LogsOpened>,
}

/// The running thread. Dropping it stops the thread after a last attempt to write.
#[derive(Debug)]
pub struct Exporter {
    stop: Arc<AtomicBool>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// The view of a running exporter for other threads.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Of lines.
    figures: Arc<Figures>,
    /// Of the store, if there is one.
    stored: Option<Arc<Figures>>,
    names: Arc<Mutex<Arc<Names>>>,
    next: Arc<Mutex<Option<Output>>>,
    next_store: Arc<Mutex<Option<StoreOptions>>>,
    /// Of the store, while it is written.
    unwritten: Weak<Unwritten>,
}

impl Clocks {
    /// Time of day of a time of the clock of events, in µs, as the clock is set now.
    fn unix_us_at(&self, at_us: u64) -> u64 {
        self.unix_us.saturating_add(at_us).saturating_sub(self.now.as_micros())
    }
}

impl core::fmt::Debug for Output {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Output").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Handle {
    /// Sends the next lines to another medium, or rotates and syncs them differently. Waiting lines
    /// go to the old medium if it accepts them, and otherwise to the new one. None is lost.
    pub fn set_output(&self, output: Output) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
    }

    /// Writes the store differently from now on; its folder and key stay.
    pub fn set_store(&self, options: StoreOptions) {
        *self.next_store.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
    }

    /// Current figures of lines.
    pub fn figures(&self) -> FiguresView {
        self.figures.view()
    }

    /// Current figures of the store, if there is one.
    pub fn stored(&self) -> Option<FiguresView> {
        self.stored.as_ref().map(|stored| stored.view())
    }

    /// What retention has deleted of the store since the last call.
    pub fn take_expired(&self) -> Option<Expired> {
        self.stored.as_ref().map(|stored| stored.take_expired()).filter(|expired| expired.segments > 0)
    }

    /// What the store would lose at once with these options, by the time of day.
    pub fn expiring(&self, options: &StoreOptions, now_us: u64) -> Expired {
        self.stored.as_ref().map_or_else(Expired::default, |stored| stored.expiring(options, now_us))
    }

    /// Sets the names of a changed configuration. Checksums of formulas and names of earlier
    /// filters are kept for a while, because lines about them may still be waiting.
    pub fn set_names(&self, names: Names) {
        self.follow(names, FILTERS_KEPT);
    }

    /// Adds the names of a configuration that workers are about to adopt. Its first lines may come
    /// before the last ones of the previous configuration.
    pub fn announce(&self, names: Names) {
        self.follow(names, FILTERS_KEPT + 1);
    }

    fn follow(&self, names: Names, filters_kept: usize) {
        let mut known = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        // At once: the thread may wait for a disk until these names are out of use again.
        if let Some(unwritten) = self.unwritten.upgrade() {
            unwritten.set_names(storing::names_of(&names));
        }
        let mut next = names;
        let formulas = known.formulas.iter().rev().take(FORMULAS_KEPT).map(|(number, sum)| (*number, *sum));
        next.formulas.extend(formulas);
        let is_before = |number: u16| next.filters.iter().all(|(other, _)| *other != number);
        let before: Vec<_> = known.filters.iter().filter(|(number, _)| is_before(*number)).cloned().collect();
        next.filters.splice(0..0, before.into_iter().rev().take(filters_kept).rev());
        *known = Arc::new(next);
    }
}

/// Number of earlier configurations whose checksums of formulas are kept.
const FORMULAS_KEPT: usize = 8;
/// Number of earlier configurations whose filter names are kept; each may have a million.
const FILTERS_KEPT: usize = 2;

impl Exporter {
    /// Starts the thread, which calls `clocks` some hundred times a second to read both clocks at
    /// one moment. Another one reads them while the first waits for a disk.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(outputs: Outputs, clocks: impl Fn() -> Clocks + Send + Sync + 'static) -> io::Result<Exporter> {
        let Outputs { lines, store, rings, names, version, opened } = outputs;
        let (stop, figures) = (Arc::new(AtomicBool::new(false)), Arc::new(Figures::default()));
        let unwritten = store.as_ref().map_or_else(Weak::new, |store| Arc::downgrade(store.unwritten()));
        if let Some(unwritten) = unwritten.upgrade() {
            unwritten.set_names(storing::names_of(&names));
        }
        let names = Arc::new(Mutex::new(Arc::new(names)));
        let (next, next_store) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
        // Before any worker has a record, which the thread may come to see later.
        let (begin, clocks) = (storing::moment_of(clocks()), Arc::new(clocks));
        let steps = Arc::new(Unwritten::new(begin));
        let lines = lines.map(|Output { medium, options, destination }| Lines {
            writer: LogWriter::new(medium, options, Arc::clone(&figures)),
            utc: UtcText::default(),
            oldest_us: u64::MAX,
            destination,
            progress: vec![Progress::default(); rings.len()],
            covered_us: 0,
            covered_at_us: 0,
            last_us: 0,
            steps: Arc::clone(&steps),
            offset: begin.offset(),
            hosts: HostNames::default(),
            is_report_due: false,
            reported_us: None,
        });
        let stored = store.is_some().then(Arc::<Figures>::default);
        let storing = |writer| Storing::new(writer, stored.clone().unwrap_or_default(), rings.len());
        let mut run = Run {
            store: store.map(storing),
            lines,
            next: Arc::clone(&next),
            next_store: Arc::clone(&next_store),
            rings,
            names: Arc::clone(&names),
            figures: Arc::clone(&figures),
            version,
            opened,
        };
        let stopped = Arc::clone(&stop);
        // Lines have it now, if there are lines.
        let steps = Arc::downgrade(&{ steps });
        for watched in [Weak::clone(&unwritten), steps].into_iter().filter(|watched| watched.strong_count() > 0) {
            let clocks = Arc::clone(&clocks);
            let thread = thread::Builder::new().name("event log clock".to_owned());
            // It ends with the store, or with the lines.
            thread.spawn(move || watch(&watched, &*clocks))?;
        }
        let (thread, seen) = (thread::Builder::new().name("event log".to_owned()), Weak::clone(&unwritten));
        let thread = thread.spawn(move || {
            let read = || read_clocks(&seen, &*clocks);
            run.run(begin.unix_us, &stopped, &read);
        })?;
        let handle = Handle { figures, stored, names, next, next_store, unwritten };
        Ok(Exporter { stop, handle, thread: Some(thread) })
    }

    /// The view for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Stops the thread when the rings are empty. Returns true if everything was written. Gives up
    /// on a medium that blocks after some seconds.
    pub fn stop(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.stop.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return true };
        let started = std::time::Instant::now();
        while !thread.is_finished() {
            if started.elapsed() > FINISH_WITHIN + Duration::from_secs(1) {
                return false;
            }
            thread::sleep(REST);
        }
        // A panic of the thread was reported by its own message.
        let stored = self.handle.stored().map_or(0, |stored| stored.waiting);
        thread.join().is_ok() && self.handle.figures().waiting == 0 && stored == 0
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads both clocks as long as there is a log: while its writer waits for a disk, the clock may be
/// set, and set back.
fn watch(unwritten: &Weak<Unwritten>, clocks: &impl Fn() -> Clocks) {
    while let Some(unwritten) = unwritten.upgrade() {
        unwritten.read(|| storing::moment_of(clocks()));
        unwritten.wait(READING);
    }
}

/// Reads both clocks; the store gets to know of a step.
fn read_clocks(unwritten: &Weak<Unwritten>, clocks: &impl Fn() -> Clocks) -> Clocks {
    let Some(unwritten) = unwritten.upgrade() else { return clocks() };
    let Moment { monotonic_us, unix_us } = unwritten.read(|| storing::moment_of(clocks()));
    Clocks { now: Instant::from_micros(monotonic_us), unix_us }
}

/// The lines, if there are any.
struct Lines {
    writer: LogWriter<Box<dyn Medium>>,
    utc: UtcText,
    /// Time of the oldest event in the writer's buffer; the maximum without one.
    oldest_us: u64,
    destination: String,
    /// How far the workers' records are in the log.
    progress: Vec<Progress>,
    /// The time that was last written as covered, and when.
    covered_us: u64,
    covered_at_us: u64,
    /// Time of the latest record.
    last_us: u64,
    /// Steps of the clock that have no line yet.
    steps: Arc<Unwritten>,
    /// Time of day less the clock of events, by the last line.
    offset: i64,
    /// Names of IPv6 hosts: as many as the workers have numbers for.
    hosts: HostNames,
    /// Another program took the file, and the new one lacks live state.
    is_report_due: bool,
    /// When workers were last asked for it because of this.
    reported_us: Option<u64>,
}

/// How far a worker's records are in the log.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The number of its last record.
    sequence: u64,
    /// All its records before this time were taken; see [`FINISHED`].
    known_us: u64,
}

struct Run {
    lines: Option<Lines>,
    store: Option<Storing>,
    next: Arc<Mutex<Option<Output>>>,
    next_store: Arc<Mutex<Option<StoreOptions>>>,
    rings: Vec<Consumer<Record>>,
    names: Arc<Mutex<Arc<Names>>>,
    figures: Arc<Figures>,
    version: String,
    opened: Arc<LogsOpened>,
}

impl Run {
    fn run(&mut self, began_us: u64, stop: &AtomicBool, clocks: &impl Fn() -> Clocks) {
        let file = self.lines.as_ref().map(|lines| lines.destination.clone());
        self.write_own(
            began_us,
            &Own { event: "started", formulas: self.formulas(), file: file.as_deref(), ..Own::default() },
        );
        let mut stopping: Option<std::time::Instant> = None;
        loop {
            let moment = clocks();
            self.look(moment.now.as_micros(), moment);
            let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(output) = next {
                self.change(output, moment);
            }
            let next = self.next_store.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(options), Some(store)) = (next, &mut self.store) {
                store.set_options(options);
            }
            if let Some(lines) = &mut self.lines {
                lines.follow_clock(moment);
            }
            let taken = self.take(moment);
            if let Some(lines) = &mut self.lines {
                lines.cover(moment);
            }
            let is_small = self.lines.as_ref().is_none_or(|lines| lines.writer.waiting() < PIECE_BYTES);
            let mut is_written = if taken > 0 && is_small { false } else { self.flush(moment) };
            if let Some(store) = &mut self.store {
                is_written &= store.write(moment, &mut self.rings);
                store.ask_for_report(moment, &self.opened);
            }
            self.report(moment);
            if taken == 0 && stop.load(Ordering::Relaxed) {
                let since = *stopping.get_or_insert_with(std::time::Instant::now);
                // If the writer was full a moment ago, the rings still have events.
                let is_drained = is_written && self.rings.iter().all(|ring| ring.is_empty());
                if is_drained || since.elapsed() > FINISH_WITHIN {
                    break;
                }
            }
            if taken == 0 {
                thread::sleep(if is_written { REST } else { REST_FAILING });
            }
        }
        self.finish(clocks());
    }

    /// Goes on in a new file if another program took the old one. What becomes of that is not
    /// known, so the new one gets all current state, as soon as it is there.
    fn look(&mut self, now_us: u64, moment: Clocks) {
        if let Some(taken) = self.lines.as_mut().and_then(|lines| lines.writer.look(now_us)) {
            self.begin_anew(&taken, moment);
            self.figures.set_taken(taken);
        }
        let Some(lines) = &mut self.lines else { return };
        let now_us = moment.now.as_micros();
        let is_soon = lines.reported_us.is_some_and(|at_us| now_us < at_us + REPORT_INTERVAL_US);
        if lines.is_report_due && lines.writer.is_open() && !is_soon {
            (lines.is_report_due, lines.reported_us) = (false, Some(now_us));
            self.opened.count_one();
        }
    }

    /// The first line of the new file says what another program did to the old one.
    fn begin_anew(&mut self, taken: &Taken, moment: Clocks) {
        let (workers, formulas) = (Some(self.rings.len()), self.formulas());
        let Some(lines) = &mut self.lines else { return };
        let earlier = match taken {
            Taken::Renamed(Some(path)) => Some(path.display().to_string()),
            Taken::Renamed(None) | Taken::Deleted | Taken::Cut => None,
        };
        let own = Own {
            event: "opened",
            version: &self.version,
            formulas,
            file: Some(&lines.destination),
            earlier: earlier.as_deref(),
            cause: Some(taken.name()),
            workers,
            ..Own::default()
        };
        lines.writer.first_line(|out| line::write_own(out, moment.unix_us, &own));
        lines.is_report_due = true;
    }

    fn finish(&mut self, moment: Clocks) {
        // The last records may be in a file that is gone.
        self.look(u64::MAX, moment);
        let is_empty = self.rings.iter().all(|ring| ring.is_empty());
        if let Some(lines) = &mut self.lines {
            // The clock may have been set while the last lines waited for the disk.
            lines.follow_clock(moment);
            lines.stopped(moment, &self.version, is_empty);
            lines.writer.finish(moment.now.as_micros(), moment.unix_us);
        }
        // What could not be written stays in journal and rings for the next start.
        if let Some(store) = self.store.take().filter(|_| is_empty) {
            store.finish(moment);
        }
        self.report(moment);
    }

    fn write_own(&mut self, unix_us: u64, own: &Own<'_>) {
        let own = Own { version: &self.version, ..*own };
        if let Some(lines) = &mut self.lines {
            lines.writer.line(|out| line::write_own(out, unix_us, &own));
        }
    }

    /// Checksum of the current formulas.
    fn formulas(&self) -> Option<u32> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.formulas.last_key_value().map(|(_, checksum)| *checksum)
    }

    /// Switches lines to another output. Another log gets a line that names the earlier one, and
    /// then all current state from the workers.
    fn change(&mut self, output: Output, moment: Clocks) {
        let workers = Some(self.rings.len());
        let Some(lines) = &mut self.lines else { return };
        lines.writer.change(output.medium, output.options, moment.now.as_micros(), moment.unix_us);
        if output.destination == lines.destination {
            return;
        }
        let earlier = core::mem::replace(&mut lines.destination, output.destination);
        let (file, formulas) = (lines.destination.clone(), self.formulas());
        let (file, earlier) = (Some(file.as_str()), Some(earlier.as_str()));
        self.write_own(moment.unix_us, &Own { event: "opened", formulas, file, earlier, workers, ..Own::default() });
        // After the `opened` line: whatever workers report is taken from the rings later.
        self.opened.count_one();
    }

    /// Takes the events in the rings until a writer is full.
    fn take(&mut self, moment: Clocks) -> usize {
        let names = Arc::clone(&self.names.lock().unwrap_or_else(PoisonError::into_inner));
        let Run { lines, store, rings, .. } = self;
        let mut total = 0;
        for (worker, ring) in rings.iter_mut().enumerate() {
            let is_full = lines.as_ref().is_some_and(|lines| !lines.writer.has_room());
            if is_full || store.as_ref().is_some_and(|store| !store.has_room()) {
                break;
            }
            let worker = WorkerId(worker as u8);
            // Read before the ring: what was published before this time is found below.
            let mark = ring.mark();
            let mut line = |event: &Event| {
                if let Some(lines) = lines {
                    lines.event(moment, worker, event, &names);
                }
            };
            let count = match store {
                Some(store) => store.take(worker, ring, BATCH, line),
                None => ring.pop_burst(BATCH, |record| {
                    if let Some(event) = record.event() {
                        line(&event);
                    }
                }),
            };
            if let Some(lines) = lines
                && count < BATCH
            {
                lines.reached(worker, mark);
            }
            total += count;
        }
        total
    }

    fn flush(&mut self, moment: Clocks) -> bool {
        self.lines.as_mut().is_none_or(|lines| lines.writer.flush(moment.now.as_micros(), moment.unix_us))
    }

    fn report(&self, moment: Clocks) {
        let in_rings = self.rings.iter().map(Consumer::len).sum::<usize>() as u64;
        if let Some(Lines { writer, oldest_us, .. }) = &self.lines {
            let oldest_us = if writer.lines_waiting() > 0 { *oldest_us } else { u64::MAX };
            self.figures.set_waiting(in_rings + writer.lines_waiting(), moment.now.as_micros(), oldest_us);
        }
        if let Some(store) = &self.store {
            store.report(in_rings, moment);
        }
    }
}

impl Lines {
    fn event(&mut self, moment: Clocks, worker: WorkerId, event: &Event, names: &Names) {
        if self.writer.lines_waiting() == 0 {
            self.oldest_us = u64::MAX;
        }
        let at = event.at.as_micros();
        self.oldest_us = at.min(self.oldest_us);
        // By the current time of day, which may have been set since the start.
        let unix_us = moment.unix_us_at(at);
        if let Some(known) = self.progress.get_mut(usize::from(worker.0)) {
            let amount = if event.kind == EventKind::Gap { u64::from(event.amount).max(1) } else { 1 };
            known.sequence = event.sequence.saturating_add(amount - 1);
            known.known_us = known.known_us.max(at);
        }
        self.last_us = self.last_us.max(at);
        let Lines { writer, utc, hosts, .. } = self;
        let who = hosts.subscriber_of(worker, event);
        writer.line(|out| line::write_with(out, utc, worker, (event, who), unix_us, names));
    }

    /// A worker's ring was emptied after it left this mark.
    fn reached(&mut self, worker: WorkerId, mark: u64) {
        if let Some(known) = self.progress.get_mut(usize::from(worker.0)) {
            known.known_us = known.known_us.max(mark);
        }
    }

    /// Writes each time at which the clock was set: later lines have the new time.
    fn follow_clock(&mut self, moment: Clocks) {
        self.steps.read(|| storing::moment_of(moment));
        while let Some((set, since_us)) = self.steps.take_step() {
            let before = core::mem::replace(&mut self.offset, set.offset());
            let (by_us, unclear_us) = (Some(self.offset - before), Some(set.monotonic_us.saturating_sub(since_us)));
            let own = Own { event: "clock_set", by_us, unclear_us, ..Own::default() };
            self.writer.aside(|out| line::write_own(out, set.unix_us, &own));
        }
    }

    /// Until when there are all records.
    fn known_us(&self, moment: Clocks) -> u64 {
        let known = self.progress.iter().map(|known| known.known_us).min().unwrap_or(0);
        // After its end a worker has no further record.
        if known & FINISHED == 0 { known } else { moment.now.as_micros() }
    }

    /// Writes until when the log has everything, if that is due.
    fn cover(&mut self, moment: Clocks) {
        let (now_us, known_us) = (moment.now.as_micros(), self.known_us(moment));
        let interval_us = if self.covered_us < self.last_us { COVERED_US } else { COVERED_IDLE_US };
        if now_us < self.covered_at_us + interval_us || known_us <= self.covered_us || !self.writer.has_room() {
            return;
        }
        let sequences: Vec<u64> = self.progress.iter().map(|known| known.sequence).collect();
        let own = Own { event: "covered", sequences: Some(&sequences), ..Own::default() };
        self.writer.aside(|out| line::write_own(out, moment.unix_us_at(known_us), &own));
        (self.covered_us, self.covered_at_us) = (known_us, now_us);
    }

    /// The last line, which says whether there are all records.
    fn stopped(&mut self, moment: Clocks, version: &str, is_empty: bool) {
        let sequences: Vec<u64> = self.progress.iter().map(|known| known.sequence).collect();
        let is_all = is_empty && self.progress.iter().all(|known| known.known_us & FINISHED != 0);
        let own =
            Own { event: "stopped", version, sequences: Some(&sequences[..]).filter(|_| is_all), ..Own::default() };
        self.writer.line(|out| line::write_own(out, moment.unix_us, &own));
    }
}
