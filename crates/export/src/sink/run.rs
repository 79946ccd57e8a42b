//! The thread of a sink: from the store to the collector, again and again.

use core::fmt;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use nat::types::WorkerId;

use super::Encoder;
use super::Item;
use super::Kind;
use super::Known;
use super::Message;
use super::Over;
use super::Security;
use super::Target;
use super::TargetError;
use super::Transport;
use super::outlet::Connector;
use super::outlet::Outlet;
use crate::line::Names;
use crate::store::CursorFile;
use crate::store::Follower;
use crate::store::Position;
use crate::store::PutAside;
use crate::store::Seen;
use crate::store::Start;
use crate::store::StoreError;

/// Sleep of a thread that has nothing to do.
const REST: Duration = Duration::from_millis(20);
/// First and longest wait before another attempt to connect.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often the connection is checked and the cursor written.
const CHECK: Duration = Duration::from_secs(1);
/// What was sent is kept for so long, and up to so many bytes: more than the systems on both sides
/// keep for a connection, and longer than they wait for each other. A collector that ends may not
/// have read it. Then it is sent again.
const KEPT_FOR: Duration = Duration::from_secs(60);
const KEPT_BYTES: usize = 8 << 20;
/// Datagrams that are sent at a time; then there is a pause, because collectors drop bursts.
const BURST: usize = 16;
const PAUSE: Duration = Duration::from_millis(1);
/// A lag that is reported.
const LAG: Duration = Duration::from_secs(10);
/// Time for the last records when the instance ends.
const FINISH_WITHIN: Duration = Duration::from_secs(5);
/// Bytes of the headers of IPv4 and UDP; those of IPv6 are longer by 20.
const UDP_HEADERS: usize = 48;

/// A sink.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkOptions {
    /// Its name, also that of its cursor.
    pub name: String,
    /// Its format.
    pub kind: Kind,
    /// Its collector.
    pub target: Target,
    /// Files for TLS.
    pub security: Option<Security>,
    /// Observation domain and NAT instance in IPFIX.
    pub domain: u32,
    /// Largest IP packet on the way to the collector.
    pub mtu: usize,
    /// Interval of templates in datagrams.
    pub template_interval: Duration,
    /// Bytes of the journal that are kept while the collector is away.
    pub spool_bytes: u64,
    /// The folder of the store.
    pub store: PathBuf,
    /// The name of this machine.
    pub host: String,
    /// The release.
    pub version: String,
}

/// What happened to a sink, for the log. `Display` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is connected.
    Connected,
    /// It cannot send, for this reason.
    Failed(String),
    /// It is this far behind.
    Behind(Duration),
    /// It is no longer behind.
    CaughtUp,
    /// Records were deleted or damaged before they were sent. Reported when that is known: a
    /// collector that is away does not have to come back first.
    Lost(u64),
    /// It goes on behind records that were deleted or damaged.
    Resumed,
    /// Where it was is not known.
    Begun,
    /// The store that it was reading was put aside, and what it had not sent is not in the new one.
    PutAside(PutAside),
    /// It cannot write where it is, for this reason.
    Unkept(String),
    /// The store does not know what was open at the end of an earlier run.
    EndsUnknown,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Connected => write!(f, "connected"),
            News::Failed(why) => write!(f, "cannot send: {why}; trying again"),
            News::Behind(lag) => write!(f, "{} s behind; its records wait in the store", lag.as_secs()),
            News::CaughtUp => write!(f, "no longer behind"),
            News::Lost(count) => {
                write!(
                    f,
                    "{count} records were deleted or damaged before they were sent: its collector was away for too long, or \
                     files of the store are damaged; see natrix log verify"
                )
            }
            News::Resumed => write!(f, "continues after the deleted or damaged records"),
            News::Begun => write!(
                f,
                "the cursor is damaged; sending restarts with the oldest record, so the collector may receive records \
                 twice, and must close all open mappings"
            ),
            News::PutAside(aside) => {
                let place = &aside.place;
                match (aside.is_known, aside.records()) {
                    (true, 0) => write!(f, "all records of the earlier store, in {place}, were sent")?,
                    (true, count) => write!(
                        f,
                        "by its cursor, {count} records of the earlier store, in {place}, were not sent and are lost"
                    )?,
                    (false, _) => write!(
                        f,
                        "records of the earlier store, in {place}, that were not sent are lost; how many is not known, \
                         because the cursor was damaged, too"
                    )?,
                }
                write!(f, "; sending starts with the new store, and the collector must close all open mappings")
            }
            News::Unkept(why) => write!(
                f,
                "cannot save the cursor: {why}; trying again; a restart before that may repeat records, or skip records \
                 that a new sink has not sent"
            ),
            News::EndsUnknown => write!(
                f,
                "records of an earlier run are deleted, damaged or lost, so the collector may never receive the end of some \
                 mappings"
            ),
        }
    }
}

/// Figures of a sink; any thread may read them.
#[derive(Debug, Default)]
pub struct SinkFigures {
    records: AtomicU64,
    bytes: AtomicU64,
    connects: AtomicU64,
    errors: AtomicU64,
    lost: AtomicU64,
    lag_us: AtomicU64,
    connected: AtomicBool,
    last_error: Mutex<Option<String>>,
}

impl SinkFigures {
    /// Records sent, those that were sent again included.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes sent.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Connections made.
    pub fn connects(&self) -> u64 {
        self.connects.load(Ordering::Relaxed)
    }

    /// Failures to connect, to send or to read.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    /// Events that were deleted before they were sent.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Age of the oldest event that was not sent; 0 if all were.
    pub fn lag_us(&self) -> u64 {
        self.lag_us.load(Ordering::Relaxed)
    }

    /// True if there is a connection; always, without one, for datagrams.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// The last failure.
    pub fn last_error(&self) -> Option<String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self, what: &str) {
        // Counted last, so that an error that is counted can be read.
        let mut last_error = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
        *last_error = Some(what.to_owned());
        self.errors.fetch_add(1, Ordering::Release);
    }
}

/// A running sink. Dropping it stops its thread.
#[derive(Debug)]
pub struct Sink {
    options: SinkOptions,
    figures: Arc<SinkFigures>,
    stop: Arc<AtomicBool>,
    leaves: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Why a sink cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// Its collector cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// No thread could be started.
    #[error("thread of a sink: {0}; see the system's log")]
    Thread(io::Error),
}

impl Sink {
    /// Finds what would keep such a sink from starting.
    ///
    /// # Errors
    /// As [`Sink::start`].
    pub fn check(options: &SinkOptions) -> Result<(), SinkError> {
        Ok(Connector::new(&options.target, options.security.as_ref()).map(|_| ())?)
    }

    /// Starts the thread. It calls `known` for names and limits, and `news` with what happens.
    ///
    /// # Errors
    /// [`SinkError`]. If the collector does not answer, the store cannot be read, or the cursor
    /// cannot be written, the sink tries again.
    pub fn start(
        options: SinkOptions,
        known: Arc<Mutex<Known>>,
        news: impl Fn(&News) + Send + 'static,
    ) -> Result<Sink, SinkError> {
        let connector = Connector::new(&options.target, options.security.as_ref())?;
        // At once, if that is possible: a new sink begins here.
        let opened = Opened::of(&options, Start::Now);
        let (figures, stop) = (Arc::new(SinkFigures::default()), Arc::new(AtomicBool::new(false)));
        let leaves = Arc::new(AtomicBool::new(false));
        let mut sink = Sink { options, figures, stop, leaves, thread: None };
        let begin = sink.begin(connector, known, Box::new(news));
        let thread = thread::Builder::new().name(format!("sink {}", sink.options.name));
        sink.thread = Some(thread.spawn(move || begin(opened)).map_err(SinkError::Thread)?);
        Ok(sink)
    }

    /// What the thread does.
    fn begin(
        &self,
        connector: Connector,
        known: Arc<Mutex<Known>>,
        news: Box<dyn Fn(&News) + Send>,
    ) -> impl FnOnce(Result<Opened, StoreError>) + Send + use<> {
        let (options, figures) = (self.options.clone(), Arc::clone(&self.figures));
        let (stop, leaves) = (Arc::clone(&self.stop), Arc::clone(&self.leaves));
        move |opened| {
            let mut is_behind = false;
            let opened = match opened {
                Ok(opened) => opened,
                Err(error) => match open_later(&options, error, (&figures, &stop), (&news, &mut is_behind)) {
                    Some(opened) => opened,
                    None => return,
                },
            };
            let Opened { cursor, follower, start, written, unsent_since_us } = opened;
            match follower.put_aside() {
                Some(aside) => news(&News::PutAside(aside.clone())),
                None if start == Start::Oldest => news(&News::Begun),
                None => {}
            }
            let is_datagram = options.target.transport == Transport::Udp;
            let datagram_max = is_datagram.then(|| options.mtu.saturating_sub(UDP_HEADERS));
            let mut encoder = Encoder::new(options.kind, datagram_max, &options.host, options.domain, &options.version);
            encoder.resume(follower.position().datagram);
            let now = Instant::now();
            let mut run = Run {
                is_datagram,
                template_interval: options.template_interval,
                connector,
                outlet: None,
                confirmed: follower.position().clone(),
                written: None,
                is_unkept: false,
                follower,
                cursor,
                encoder,
                known,
                figures,
                stop,
                leaves,
                news,
                kept: VecDeque::new(),
                kept_bytes: 0,
                retry_at: now,
                retry: RETRY,
                check_at: now + CHECK,
                preface_at: now,
                burst: 0,
                is_behind,
                unsent_since_us,
                is_failing: false,
                deleted: 0,
                reported: 0,
                failed_at: now,
                trimmed_at: now,
                unsent: 0,
            };
            run.is_kept(written);
            run.run();
        }
    }

    /// How it was started.
    pub fn options(&self) -> &SinkOptions {
        &self.options
    }

    /// Its figures.
    pub fn figures(&self) -> &Arc<SinkFigures> {
        &self.figures
    }

    /// Makes the thread end at once. What it has not sent stays in the store.
    pub fn leave(&self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.end();
    }

    /// Makes the thread end when it has sent what the store has, within some seconds.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its own message.
            let _ = thread.join();
        }
    }
}

/// What a sink reads.
struct Opened {
    cursor: CursorFile,
    follower: Follower,
    start: Start,
    /// Whether the cursor was written: from then on, the store keeps what this sink has not sent.
    written: Result<(), StoreError>,
    unsent_since_us: u64,
}

impl Opened {
    /// Begins at the cursor, or without one at `new`. That the cursor cannot be written keeps
    /// nothing from being sent.
    fn of(options: &SinkOptions, new: Start) -> Result<Opened, StoreError> {
        let cursor = CursorFile::new(&options.store, &options.name, options.spool_bytes);
        let start = match cursor.read()? {
            Start::Now => new,
            start => start,
        };
        let follower = Follower::open(&options.store, start.clone())?;
        let written = cursor.write(follower.position());
        let unsent_since_us = time_of_next(&options.store, follower.position()).unwrap_or_else(|_| unix_us());
        Ok(Opened { cursor, follower, start, written, unsent_since_us })
    }
}

/// Tries until it can be opened, because the store or the disk fails. None if the sink ends before.
fn open_later(
    options: &SinkOptions,
    mut error: StoreError,
    (figures, stop): (&SinkFigures, &AtomicBool),
    (news, is_behind): (&dyn Fn(&News), &mut bool),
) -> Option<Opened> {
    let since_us = CursorFile::new(&options.store, &options.name, 0).written_unix_us().unwrap_or_else(unix_us);
    news(&News::Failed(error.to_string()));
    loop {
        figures.failed(&error.to_string());
        let lag_us = unix_us().saturating_sub(since_us);
        figures.lag_us.store(lag_us, Ordering::Relaxed);
        if lag_us > LAG.as_micros() as u64 && !core::mem::replace(is_behind, true) {
            news(&News::Behind(Duration::from_micros(lag_us)));
        }
        let again_at = Instant::now() + CHECK;
        while Instant::now() < again_at {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            thread::sleep(REST);
        }
        // Without a cursor what was recorded meanwhile is sent, too.
        match Opened::of(options, Start::Run) {
            Ok(opened) => return Some(opened),
            Err(again) => error = again,
        }
    }
}

/// Messages of a frame that were sent or will be, with the position after it.
struct Batch {
    messages: Vec<Message>,
    bytes: usize,
    after: Position,
    at: Instant,
}

struct Run {
    is_datagram: bool,
    template_interval: Duration,
    connector: Connector,
    outlet: Option<Outlet>,
    follower: Follower,
    cursor: CursorFile,
    encoder: Encoder,
    known: Arc<Mutex<Known>>,
    figures: Arc<SinkFigures>,
    stop: Arc<AtomicBool>,
    leaves: Arc<AtomicBool>,
    news: Box<dyn Fn(&News) + Send>,
    kept: VecDeque<Batch>,
    kept_bytes: usize,
    confirmed: Position,
    /// The position in the file, if this wrote it.
    written: Option<Position>,
    /// True if that failed last.
    is_unkept: bool,
    retry_at: Instant,
    retry: Duration,
    check_at: Instant,
    preface_at: Instant,
    burst: usize,
    is_behind: bool,
    /// Time of the first frame that this sink has to send, until it has read one.
    unsent_since_us: u64,
    is_failing: bool,
    /// Events that were deleted before they were read, and how many of them were reported.
    deleted: u64,
    reported: u64,
    /// Of datagrams: the last failure, and records in those that failed.
    failed_at: Instant,
    trimmed_at: Instant,
    unsent: u64,
}

fn unix_us() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(unix.as_micros()).unwrap_or(u64::MAX)
}

/// Time of the frame at this position, or now if there is none yet.
fn time_of_next(store: &Path, position: &Position) -> Result<u64, StoreError> {
    let mut ahead = Follower::open(store, Start::At(position.clone()))?.without_ends();
    Ok(if ahead.step(|_| {})? { ahead.covered_unix_us() } else { unix_us() })
}

/// The last numbers of the workers of a run, by the next ones.
fn sequences_of(workers: &BTreeMap<u8, u64>) -> Vec<u64> {
    let count = workers.last_key_value().map_or(0, |(worker, _)| usize::from(*worker) + 1);
    let mut sequences = vec![0; count];
    for (worker, next) in workers {
        sequences[usize::from(*worker)] = next.saturating_sub(1);
    }
    sequences
}

impl Run {
    fn run(&mut self) {
        let mut stopping: Option<Instant> = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                let since = *stopping.get_or_insert_with(Instant::now);
                let is_leaving = self.leaves.load(Ordering::Relaxed);
                if is_leaving || since.elapsed() > FINISH_WITHIN || (self.outlet.is_none() && since.elapsed() > CHECK) {
                    break;
                }
            }
            self.check();
            let is_connected = self.outlet.is_some() || self.connect();
            let is_moving = is_connected && self.advance();
            self.report_lag(is_connected && !is_moving);
            if is_connected && !is_moving && stopping.is_some() {
                break;
            }
            if !is_moving {
                thread::sleep(REST);
            }
        }
        if self.outlet.take().is_some_and(Outlet::close) {
            self.confirmed = self.position();
        }
        self.write_cursor();
    }

    /// The position behind what was sent.
    fn position(&self) -> Position {
        let mut position = self.follower.position().clone();
        position.datagram = if self.is_datagram { self.encoder.sequence() } else { 0 };
        position
    }

    /// Connects if it is time to. A new connection begins with what may have been lost with the old
    /// one.
    fn connect(&mut self) -> bool {
        if Instant::now() < self.retry_at {
            return false;
        }
        // An attempt may take many seconds.
        let (stop, figures, since_us) = (&self.stop, &self.figures, self.unsent_since_us());
        let is_over = || {
            figures.lag_us.store(unix_us().saturating_sub(since_us), Ordering::Relaxed);
            stop.load(Ordering::Relaxed)
        };
        match self.connector.connect(is_over) {
            Ok(outlet) => {
                self.outlet = Some(outlet);
                self.figures.connects.fetch_add(1, Ordering::Relaxed);
                if !self.is_datagram {
                    self.encoder.connected();
                }
                self.preface_at = Instant::now();
                let mut batches = core::mem::take(&mut self.kept);
                let is_sent = batches.iter_mut().try_for_each(|batch| self.send_all(&mut batch.messages));
                self.kept = batches;
                match is_sent {
                    Ok(()) => {
                        self.figures.connected.store(true, Ordering::Relaxed);
                        self.is_failing = false;
                        self.retry = RETRY;
                        (self.news)(&News::Connected);
                    }
                    Err(error) => self.failed(&error.to_string()),
                }
            }
            Err(error) => self.failed(&error.to_string()),
        }
        self.outlet.is_some()
    }

    fn failed(&mut self, why: &str) {
        self.outlet = None;
        self.figures.connected.store(false, Ordering::Relaxed);
        self.figures.failed(why);
        if !core::mem::replace(&mut self.is_failing, true) {
            (self.news)(&News::Failed(format!("{}: {why}", self.connector.target())));
        }
        self.retry_at = Instant::now() + self.retry;
        self.retry = (self.retry * 2).min(RETRY_MAX);
    }

    /// Sends the next frame if there is one. True if it did.
    fn advance(&mut self) -> bool {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut messages, encoder) = (Vec::new(), &mut self.encoder);
        let (unnamed, mut has_all_ends) = (Names::default(), true);
        let stepped = self.follower.step(|seen| match seen {
            Seen::Start { unix_us } => encoder.begin(unix_us, &mut messages),
            Seen::Event { worker, event, subscriber, unix_us, is_of_last_run } => {
                // Names may have had other numbers in earlier runs.
                let names = if is_of_last_run { &known.names } else { &unnamed };
                let quotas = &known.quotas;
                encoder.push(&Item { worker, event, subscriber, unix_us, names, quotas }, &mut messages);
            }
            Seen::Ended { event, subscriber, unix_us, names } => {
                let (worker, quotas) = (WorkerId(0), &known.quotas);
                encoder.push_end(&Item { worker, event, subscriber, unix_us, names, quotas }, &mut messages);
            }
            Seen::Over { unix_us, is_clean, are_ends_known, workers, names } => {
                let sequences = sequences_of(workers);
                let sequences = is_clean.then_some(&sequences[..]);
                has_all_ends &= are_ends_known;
                encoder.finish(&Over { unix_us, sequences, are_ends_known, names }, &mut messages);
            }
        });
        match stepped {
            Ok(false) => {
                self.send_preface();
                return false;
            }
            Ok(true) => {}
            Err(error) => {
                self.figures.failed(&error.to_string());
                (self.news)(&News::Failed(error.to_string()));
                thread::sleep(CHECK);
            }
        }
        self.encoder.end(&mut messages);
        if !has_all_ends {
            (self.news)(&News::EndsUnknown);
        }
        let deleted = core::mem::replace(&mut self.deleted, self.follower.lost());
        if self.deleted > deleted {
            self.add_lost(self.deleted);
            (self.news)(&News::Resumed);
        }
        let after = self.follower.position().clone();
        let sent = self.send_all(&mut messages);
        self.report_lost();
        if self.is_datagram {
            self.confirmed = self.position();
        } else {
            let bytes = messages.iter().map(|message| message.bytes.len()).sum();
            self.kept_bytes += bytes;
            self.kept.push_back(Batch { messages, bytes, after, at: Instant::now() });
        }
        if let Err(error) = sent {
            self.failed(&error.to_string());
        }
        true
    }

    /// Says that so many events are lost in all.
    fn add_lost(&mut self, lost: u64) {
        if lost > self.reported {
            (self.news)(&News::Lost(lost - self.reported));
            self.reported = lost;
        }
    }

    fn report_lost(&self) {
        self.figures.lost.store(self.reported + self.unsent, Ordering::Relaxed);
    }

    /// Counts what is deleted while nothing can be sent.
    fn count_deleted(&mut self) {
        match self.follower.deleted() {
            Ok(ahead) => self.add_lost(self.deleted + ahead),
            Err(error) => self.figures.failed(&error.to_string()),
        }
        self.report_lost();
    }

    /// Sends what a collector needs to understand records, when it is due.
    fn send_preface(&mut self) {
        if Instant::now() < self.preface_at {
            return;
        }
        // A connection has it once; datagrams may be lost.
        let wait = if self.is_datagram { self.template_interval } else { Duration::from_secs(u64::from(u32::MAX)) };
        self.preface_at = Instant::now() + wait;
        for mut message in self.encoder.preface() {
            match self.send(&mut message) {
                Err(error) if self.is_datagram => self.datagram_failed(0, &error),
                Err(error) => return self.failed(&error.to_string()),
                Ok(()) => {}
            }
        }
    }

    fn send_all(&mut self, messages: &mut [Message]) -> io::Result<()> {
        for message in messages {
            self.send_preface();
            match self.send(message) {
                // A datagram that was not sent is as one that was lost on the way.
                Err(error) if self.is_datagram => self.datagram_failed(message.records, &error),
                sent => sent?,
            }
        }
        Ok(())
    }

    fn datagram_failed(&mut self, records: u32, error: &io::Error) {
        self.unsent += u64::from(records);
        self.failed_at = Instant::now();
        self.figures.failed(&error.to_string());
        if !core::mem::replace(&mut self.is_failing, true) {
            (self.news)(&News::Failed(format!("{}: {error}", self.connector.target())));
        }
    }

    fn send(&mut self, message: &mut Message) -> io::Result<()> {
        self.encoder.stamp(message, unix_us());
        let Some(outlet) = &mut self.outlet else { return Err(io::ErrorKind::NotConnected.into()) };
        if message.bytes.is_empty() {
            return Ok(());
        }
        let stop = &self.stop;
        outlet.send(&message.bytes, || stop.load(Ordering::Relaxed))?;
        self.figures.records.fetch_add(u64::from(message.records), Ordering::Relaxed);
        self.figures.bytes.fetch_add(message.bytes.len() as u64, Ordering::Relaxed);
        self.burst += 1;
        if self.is_datagram && self.burst >= BURST {
            self.burst = 0;
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Once a second: is there still a connection, and what need not be sent again?
    fn check(&mut self) {
        if Instant::now() < self.check_at {
            return;
        }
        self.check_at = Instant::now() + CHECK;
        let checked = self.outlet.as_mut().map_or(Ok(()), Outlet::check);
        if let Err(error) = checked {
            self.failed(&error.to_string());
        }
        if self.is_datagram && self.is_failing && self.failed_at.elapsed() > KEPT_FOR {
            self.is_failing = false;
            (self.news)(&News::Connected);
        }
        let is_connected = self.outlet.is_some();
        while let Some(first) = self.kept.front()
            && is_connected
            && (self.kept_bytes > KEPT_BYTES || first.at.elapsed() > KEPT_FOR)
            && let Some(first) = self.kept.pop_front()
        {
            self.kept_bytes -= first.bytes;
            self.confirmed = first.after;
        }
        self.write_cursor();
        if self.outlet.is_none() {
            self.count_deleted();
        }
    }

    fn write_cursor(&mut self) {
        if self.written.as_ref() == Some(&self.confirmed) {
            return;
        }
        let written = self.cursor.write(&self.confirmed);
        self.is_kept(written);
    }

    fn is_kept(&mut self, written: Result<(), StoreError>) {
        match written {
            Ok(()) => {
                self.written = Some(self.confirmed.clone());
                self.is_unkept = false;
                // The writer does this once a window; a sink that caught up need not wait for it.
                if self.trimmed_at.elapsed() > KEPT_FOR {
                    self.trimmed_at = Instant::now();
                    if let Err(error) = self.cursor.trim() {
                        self.figures.failed(&error.to_string());
                    }
                }
            }
            Err(error) => {
                self.figures.failed(&error.to_string());
                if !core::mem::replace(&mut self.is_unkept, true) {
                    (self.news)(&News::Unkept(error.to_string()));
                }
            }
        }
    }

    /// Everything before this time was sent, µs since 1970.
    fn unsent_since_us(&self) -> u64 {
        match self.follower.covered_unix_us() {
            0 => self.unsent_since_us,
            covered_us => covered_us,
        }
    }

    fn report_lag(&mut self, is_done: bool) {
        let lag_us = if is_done { 0 } else { unix_us().saturating_sub(self.unsent_since_us()) };
        self.figures.lag_us.store(lag_us, Ordering::Relaxed);
        let lag = Duration::from_micros(lag_us);
        if !self.is_behind && lag > LAG {
            self.is_behind = true;
            (self.news)(&News::Behind(lag));
        } else if self.is_behind && is_done {
            self.is_behind = false;
            (self.news)(&News::CaughtUp);
        }
    }
}
