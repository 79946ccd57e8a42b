//! `natrix replay`: sends captures through one worker, with the time of the captures as the clock.
//! The same captures and configuration always give the same result: even the ports are drawn from a
//! fixed seed.

use core::fmt;
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io;
use std::io::BufWriter;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use control::count_text;
use control::counted;
use export::HostNames;
use export::Names;
use export::write_line;
use mem::NotEnough;
use mem::Stock;
use mem::ring;
use mem::ring::Consumer;
use nat::BuildError;
use nat::Duration;
use nat::Instant;
use nat::Protocol;
use nat::Shared;
use nat::Verdict;
use nat::event::Record;
use nat::types::Side;
use nat::types::WorkerId;
use nat::verdict::VerdictKind;
use packet_io::Io;
use packet_io::PortIndex;
use packet_io::Replay;
use packet_io::capture::CaptureError;
use packet_io::capture::CaptureReader;
use packet_io::capture::CaptureWriter;
use packet_io::replay::ReplayPort;
use serde::Serialize;

use crate::event_log::names_of;
use crate::links::InterfaceLink;
use crate::worker::LinkMode;
use crate::worker::Worker;
use crate::worker::WorkerOptions;
use crate::worker::build_workers;

/// File of the event records in the folder for results.
pub const EVENTS_FILE: &str = "events.json";

const INSIDE: PortIndex = PortIndex(0);
const OUTSIDE: PortIndex = PortIndex(1);
/// A fixed secret: offline there is no attacker, and results must be the same each time.
const SEED: [u64; 4] = [0x6e61, 0x7472, 0x6978, 0x2e];
/// The clock of the engine at the first frame.
const START: Instant = Instant::from_micros(1_000_000);
/// Polls between frames that are far apart, so that timers expire in time: often at first, then
/// rarely.
const STEP: Duration = Duration::from_millis(100);
const STEPS_SHORT: u32 = 200;
const STEP_LONG: Duration = Duration::from_secs(10);
/// A gap that needs more polls is skipped; some captures have frames years apart.
const STEPS_MAX: u32 = 10_000;

/// Input captures and the folder for results.
#[derive(Clone, Debug)]
pub struct ReplayFiles {
    /// Packets from inside.
    pub inside: PathBuf,
    /// Packets from outside.
    pub outside: PathBuf,
    /// Folder for the results, created if missing: `inside.pcap` and `outside.pcap` with the
    /// packets that left on each side, and `events.json` if the configuration has an event log.
    pub out_dir: PathBuf,
}

/// Why a replay failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A capture cannot be read or written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The engine could not be built.
    #[error("engine: {0}")]
    Engine(#[from] BuildError),
    /// The tables do not fit into the memory of this machine. Nothing is allocated.
    #[error("memory: {0}; lower [tables], use fewer pool addresses, or add memory")]
    Memory(#[from] NotEnough),
    /// The folder for the results cannot be created.
    #[error("folder {path}: {source}; choose another --out-dir", path = .path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The event records cannot be written.
    #[error("event log {path}: {source}; choose another --out-dir", path = .path.display())]
    Events {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// No worker was built: a bug.
    #[error("engine: no worker was built; report this")]
    NoWorker,
    /// An output would replace an input.
    #[error("capture {path}: would be overwritten by the result; choose another --out-dir", path = .0.display())]
    Overwrites(PathBuf),
}

/// Numbers by side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BySide {
    /// Inside.
    pub inside: u64,
    /// Outside.
    pub outside: u64,
}

/// The result of a replay. The field names are a contract.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Time from the first frame to the last.
    pub duration_us: u64,
    /// Frames that came in, by side.
    pub frames_in: BySide,
    /// Frames that left, by side.
    pub frames_out: BySide,
    /// Forwarded frames.
    pub packets_forwarded: u64,
    /// Frames to Natrix itself.
    pub packets_local: u64,
    /// Dropped frames.
    pub packets_dropped: u64,
    /// Frames by verdict, for verdicts that occurred.
    pub verdicts: BTreeMap<&'static str, u64>,
    /// Created mappings by transport.
    pub mappings_created: BTreeMap<&'static str, u64>,
    /// Created sessions.
    pub sessions_created: u64,
    /// Mappings at the end.
    pub mappings: u64,
    /// Sessions at the end.
    pub sessions: u64,
    /// Subscribers at the end.
    pub subscribers: u64,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.duration_us / 1_000_000, self.duration_us % 1_000_000);
        writeln!(f, "captured time     {seconds}.{micros:06} s")?;
        writeln!(
            f,
            "frames in         {} from inside, {} from outside",
            count_text(self.frames_in.inside),
            count_text(self.frames_in.outside)
        )?;
        writeln!(
            f,
            "frames out        {} to inside, {} to outside",
            count_text(self.frames_out.inside),
            count_text(self.frames_out.outside)
        )?;
        writeln!(
            f,
            "packets           {} forwarded, {} local, {} dropped",
            count_text(self.packets_forwarded),
            count_text(self.packets_local),
            count_text(self.packets_dropped)
        )?;
        let mut created = String::new();
        for (protocol, count) in &self.mappings_created {
            let separator = if created.is_empty() { "" } else { ", " };
            write!(created, "{separator}{} {protocol}", count_text(*count))?;
        }
        writeln!(f, "mappings created  {created}")?;
        writeln!(f, "sessions created  {}", count_text(self.sessions_created))?;
        writeln!(
            f,
            "at the end        {}, {}, {}",
            counted(self.mappings, "mapping"),
            counted(self.sessions, "session"),
            counted(self.subscribers, "subscriber")
        )?;
        writeln!(f, "verdicts")?;
        for (verdict, count) in &self.verdicts {
            writeln!(f, "  {:>10}  {verdict}", count_text(*count))?;
        }
        Ok(())
    }
}

/// Sends the captures through a worker. Needs no privileges.
///
/// # Errors
/// [`ReplayError`] names the file.
pub fn replay(config: &Config, files: &ReplayFiles) -> Result<Summary, ReplayError> {
    let out_dir = &files.out_dir;
    fs::create_dir_all(out_dir).map_err(|source| ReplayError::Folder { path: out_dir.clone(), source })?;
    let port = |input: &Path, name: &str, last: u8| -> Result<ReplayPort, ReplayError> {
        let outputs = [out_dir.join(name), part_of(out_dir, name)];
        for (output, source) in outputs.iter().flat_map(|output| [(output, &files.inside), (output, &files.outside)]) {
            if fs::canonicalize(output).is_ok_and(|output| fs::canonicalize(source).is_ok_and(|input| input == output))
            {
                return Err(ReplayError::Overwrites(output.clone()));
            }
        }
        let input = Some(CaptureReader::open(input)?);
        Ok(ReplayPort { input, output: Some(CaptureWriter::create(&outputs[1])?), mac: [2, 0, 0, 0, 0, last] })
    };
    let ports = vec![port(&files.inside, "inside.pcap", 0)?, port(&files.outside, "outside.pcap", 1)?];
    let io = Replay::new(ports)?;
    Stock::of_this_machine().plan(nat::memory::needs(&config.nat, 1))?;
    let shared = Arc::new(Shared::new(config.nat.clone(), 1)?);
    let interfaces = config.nat.interfaces.iter().zip(&config.interfaces);
    let links: Vec<InterfaceLink> = interfaces
        .map(|(interface, link)| InterfaceLink {
            port: if interface.side == Side::Inside { INSIDE } else { OUTSIDE },
            vlan: link.vlan,
        })
        .collect();
    let options = WorkerOptions { mode: LinkMode::Offline, ..WorkerOptions::default() };
    let mut workers = build_workers(&shared, &links, vec![io], &options, SEED, START)?;
    // One view of the ports makes one worker.
    let mut worker = workers.pop().ok_or(ReplayError::NoWorker)?;
    let journal = match &config.event_log {
        Some(wanted) => {
            let (producer, ring) = ring::channel(wanted.queue as usize);
            // It has only one log.
            worker.set_events(producer, Arc::default());
            let first_us = worker.io().now_ns() / 1_000;
            Some(Journal::create(part_of(out_dir, EVENTS_FILE), ring, names_of(&config.nat), first_us)?)
        }
        None => None,
    };
    let has_events = journal.is_some();
    let summary = run(worker, journal)?;
    // They are whole now.
    for name in ["inside.pcap", "outside.pcap"].into_iter().chain(has_events.then_some(EVENTS_FILE)) {
        let renamed = fs::rename(part_of(out_dir, name), out_dir.join(name));
        renamed.map_err(|source| ReplayError::Folder { path: out_dir.join(name), source })?;
    }
    Ok(summary)
}

/// The name of a result until it is whole.
fn part_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.part"))
}

/// The event log of a replay, with the time of the captures. Ignores the path in the configuration.
struct Journal {
    path: PathBuf,
    file: BufWriter<File>,
    ring: Consumer<Record>,
    names: Names,
    /// Time of the first frame, µs since 1970.
    first_us: u64,
    line: Vec<u8>,
    hosts: HostNames,
}

impl Journal {
    fn create(path: PathBuf, ring: Consumer<Record>, names: Names, first_us: u64) -> Result<Journal, ReplayError> {
        let file = File::create(&path).map_err(|source| ReplayError::Events { path: path.clone(), source })?;
        Ok(Journal {
            path,
            file: BufWriter::new(file),
            ring,
            names,
            first_us,
            line: Vec::new(),
            hosts: HostNames::default(),
        })
    }

    /// Writes the records of the worker.
    fn take(&mut self) -> Result<(), ReplayError> {
        while let Some(event) = self.ring.try_pop().and_then(|record| record.event()) {
            let since_first = event.at.as_micros().saturating_sub(START.as_micros());
            self.line.clear();
            let who = self.hosts.subscriber_of(WorkerId(0), &event);
            write_line(&mut self.line, WorkerId(0), &event, who, self.first_us + since_first, &self.names);
            self.file
                .write_all(&self.line)
                .map_err(|source| ReplayError::Events { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), ReplayError> {
        self.take()?;
        self.file.flush().map_err(|source| ReplayError::Events { path: self.path.clone(), source })
    }
}

fn now_of(io: &Replay) -> Instant {
    START + Duration::from_micros(io.elapsed_us())
}

fn run(mut worker: Worker<Replay>, mut journal: Option<Journal>) -> Result<Summary, ReplayError> {
    loop {
        if let Some(next_ns) = worker.io().next_ns() {
            wait_until(&mut worker, next_ns, journal.as_mut())?;
        }
        if !worker.io_mut().step()? {
            break;
        }
        let now = now_of(worker.io());
        worker.poll(now);
        journal.as_mut().map_or(Ok(()), Journal::take)?;
    }
    let duration_us = worker.io().elapsed_us();
    // Let held fragments and unsolicited SYNs reach the end of their time.
    let settings = worker.shard().shared().settings();
    let longest = settings.timeouts.fragment.as_micros().max(settings.timeouts.unsolicited_syn.as_micros());
    let end_ns = worker.io().now_ns().saturating_add((longest + STEP.as_micros()).saturating_mul(1_000));
    wait_until(&mut worker, end_ns, journal.as_mut())?;
    worker.abandon_waiting();
    journal.map_or(Ok(()), Journal::finish)?;
    let summary = summary_of(&worker, duration_us);
    worker.into_io().finish()?;
    Ok(summary)
}

/// Polls until just before `time_ns`.
fn wait_until(worker: &mut Worker<Replay>, time_ns: u64, mut journal: Option<&mut Journal>) -> Result<(), ReplayError> {
    for count in 0..STEPS_MAX {
        let step = if count < STEPS_SHORT { STEP } else { STEP_LONG };
        let next_ns = worker.io().now_ns().saturating_add(step.as_micros() * 1_000);
        if next_ns >= time_ns {
            break;
        }
        worker.io_mut().advance_to(next_ns);
        let now = now_of(worker.io());
        worker.poll(now);
        journal.as_deref_mut().map_or(Ok(()), Journal::take)?;
    }
    Ok(())
}

fn summary_of(worker: &Worker<Replay>, duration_us: u64) -> Summary {
    let counters = worker.counters();
    let of_kind = |kind| {
        let verdicts = Verdict::ALL.iter().filter(|verdict| verdict.kind() == kind);
        verdicts.map(|verdict| counters.of(*verdict)).sum()
    };
    let (inside, outside) = (worker.io().statistics(INSIDE), worker.io().statistics(OUTSIDE));
    let occurred = Verdict::ALL.iter().filter(|verdict| counters.of(**verdict) > 0);
    let created = Protocol::ALL.iter().zip(counters.mappings_created);
    Summary {
        duration_us,
        frames_in: BySide { inside: inside.received_packets, outside: outside.received_packets },
        frames_out: BySide { inside: inside.sent_packets, outside: outside.sent_packets },
        packets_forwarded: of_kind(VerdictKind::Forwarded),
        packets_local: of_kind(VerdictKind::Local),
        packets_dropped: of_kind(VerdictKind::Dropped),
        verdicts: occurred.map(|verdict| (verdict.name(), counters.of(*verdict))).collect(),
        mappings_created: created.map(|(protocol, count)| (protocol.name(), count)).collect(),
        sessions_created: counters.sessions_created,
        mappings: u64::from(worker.shard().view().mappings_len()),
        sessions: worker.shard().sessions_len(),
        subscribers: worker.shard().view().subscribers_len() as u64,
    }
}
