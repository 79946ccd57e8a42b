//! A whole instance on any ports: worker threads, control server, rates, quarantine.

use core::fmt::Write as _;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use config::Config;
use control::RunState;
use control::UserWithoutGroup;
use control::count_text;
use control::counted;
use control::duration_text;
use export::Exporter;
use nat::BuildError;
use nat::Shared;
use nat::Verdict;
use nat::event::BackPressure;
use nat::types::AddressUse;
use nat::verdict::VerdictKind;
use packet_io::Io;
use packet_io::PortIndex;
use wire::ethernet::MacAddress;

use crate::audit::Audit;
use crate::below::Seen;
use crate::change::Live;
use crate::clock::Clock;
use crate::event_log;
use crate::event_log::EventLogError;
use crate::event_log::Started;
use crate::fleet::Fleet;
use crate::fleet::Idle;
use crate::fleet::ThreadOptions;
use crate::grants;
use crate::grants::GrantKeeper;
use crate::http_group::users_without_group;
use crate::instance::Description;
use crate::instance::Instance;
use crate::instance::PortDescription;
use crate::ipv6::OwnAddresses;
use crate::kernel;
use crate::kernel::setup::Devices;
use crate::kernel::setup::SetupError;
use crate::kernel::thread::KernelThread;
use crate::links::InterfaceLink;
use crate::log::Log;
use crate::machine::make_folder_of;
use crate::mailbox::Snapshot;
use crate::mailbox::mailbox;
use crate::quarantine::Quarantine;
use crate::routing::announcement::Health;
use crate::routing::keeper::Keeper;
use crate::routing::record::Record;
use crate::routing::shared::Routing;
use crate::run::quarantine_path;
use crate::server::Server;
use crate::server::Socket;
use crate::server::Ticker;
use crate::sinks::Sinks;
use crate::sinks::SinksError;
use crate::worker::Worker;
use crate::worker::WorkerOptions;
use crate::worker::build_workers;

/// Why an instance could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine could not be built.
    #[error("engine: {0}")]
    Engine(#[from] BuildError),
    /// The event log cannot be started.
    #[error(transparent)]
    EventLog(#[from] EventLogError),
    /// A sink of the event log cannot be started.
    #[error(transparent)]
    Sink(#[from] SinksError),
    /// The file of grants cannot be used.
    #[error("port_control.state {path}: {source}; create the folder and let Natrix write there, or set another path", path = .path.display())]
    Grants {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Changes and lookups cannot be recorded, so all would be refused.
    #[error("control.audit {path}: {source}; create the folder and let Natrix write there, or set another path", path = .path.display())]
    Audit {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A device of the kernel cannot be made.
    #[error(transparent)]
    Kernel(#[from] SetupError),
    /// The system refused a resource.
    #[error("{what}: {source}; see the system's log")]
    System {
        /// The resource.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The place of each interface of a configuration, for the workers.
pub fn links_of(config: &Config) -> Vec<InterfaceLink> {
    let links = config.interfaces.iter();
    links.map(|link| InterfaceLink { port: PortIndex(link.port as u16), vlan: link.vlan }).collect()
}

/// The arguments of an instance.
pub struct Start<'a, I> {
    /// The configuration.
    pub config: &'a Config,
    /// Its path.
    pub config_path: &'a Path,
    /// Release of the program.
    pub version: &'a str,
    /// The control socket, already open, so that a second instance fails before it touches a port.
    pub socket: Socket,
    /// One view of the ports for each worker.
    pub ios: Vec<I>,
    /// The log.
    pub log: Log,
}

/// A running instance. Dropping it stops it without a summary.
pub struct Running {
    // Dropped in this order: first what withdraws the pools, then the server, which asks workers.
    keeper: Option<Keeper>,
    kernel: Option<KernelThread>,
    server: Server,
    ticker: Ticker,
    fleet: Fleet,
    exporter: Option<Exporter>,
    // Behind the fleet, so that it writes the last changes.
    grants: Option<GrantKeeper>,
    _quarantine: Quarantine,
    instance: Arc<Instance>,
    log: Log,
}

impl Running {
    /// Starts everything; when it returns, packets are being forwarded. `prepare` runs first on
    /// each worker's thread.
    ///
    /// # Errors
    /// [`StartError`] names the cause; nothing runs then.
    pub fn start<I>(start: Start<'_, I>, prepare: impl Fn() + Clone + Send + 'static) -> Result<Running, StartError>
    where
        I: Io + Send + 'static,
    {
        let Start { config, config_path, version, socket, ios, log } = start;
        let audit = Audit::new(config.control.audit.clone())
            .map_err(|source| StartError::Audit { path: config.control.audit.clone(), source })?;
        let system = |what| move |source| StartError::System { what, source };
        let clock = Clock::start();
        let links = links_of(config);
        let port = |(index, port): (usize, &config::Port)| PortDescription {
            name: port.name.clone(),
            driver: port.driver.clone(),
            station: MacAddress(ios.first().map_or([0; 6], |io| io.mac(PortIndex(index as u16)))),
        };
        let without_group =
            |(user, group): (&str, &str)| UserWithoutGroup { user: user.to_owned(), group: group.to_owned() };
        let cpus: Vec<Option<u16>> = (0..ios.len()).map(|worker| config.workers.cpus.get(worker).copied()).collect();
        let known = core_affinity::get_core_ids().unwrap_or_default();
        for cpu in cpus.iter().flatten().filter(|cpu| !known.iter().any(|core| core.id == usize::from(**cpu))) {
            log.warn(&format_args!(
                "workers.cpus: this process may not run on CPU {cpu}; the system chooses the CPU of its worker"
            ));
        }
        let description = Description {
            version: version.to_owned(),
            config_path: config_path.display().to_string(),
            ports: config.ports.iter().enumerate().map(port).collect(),
            links: links.clone(),
            cpus: cpus.clone(),
            users_without_group: config.http.iter().flat_map(users_without_group).map(without_group).collect(),
        };
        let shared = Arc::new(Shared::new(config.nat.clone(), ios.len())?);
        let secret = random_secret().map_err(system("random numbers"))?;
        let station = |port| MacAddress(ios.first().map_or([0; 6], |io| io.mac(port)));
        let devices = Devices::make(config, station, log)?;
        let senders: Vec<usize> = (0..config.ports.len())
            .map(|port| ios.iter().position(|io| io.can_transmit(PortIndex(port as u16))).unwrap_or(0))
            .collect();
        let mut workers = build_workers(&shared, &links, ios, &WorkerOptions::default(), secret, clock.now())?;
        let own = workers.first().map(|worker| Arc::clone(worker.own_addresses()));
        let own = own.ok_or_else(|| system("workers")(io::Error::other("none")))?;
        for (interface, _) in &devices.interfaces {
            // Until the kernel has said that no other station has them.
            for address in own.of(*interface) {
                own.set(*interface, address.address, AddressUse::Tentative);
            }
        }
        let event_log = event_log::start(config, workers.len(), clock, version)?;
        let (exporter, event_log, rings, opened) = match event_log {
            Some(Started { exporter, view, rings, opened, is_last_end_lost, damage, notices }) => {
                damage.iter().for_each(|what| log.error(&format_args!("log: {what}")));
                notices.iter().for_each(|what| log.warn(&format_args!("log: {what}")));
                if is_last_end_lost {
                    log.warn(
                        &"log: the previous run ended without a stop, so its last records may be missing; answers about that time are not complete",
                    );
                }
                (Some(exporter), Some(view), rings, opened)
            }
            None => (None, None, Vec::new(), Arc::default()),
        };
        // Before the first event, so that they follow the run from its start.
        let sinks = Sinks::start(config, version, Arc::clone(&opened), log)?;
        for (worker, ring) in workers.iter_mut().zip(rings) {
            worker.set_events(ring, Arc::clone(&opened));
        }
        let mut rings = None;
        if !devices.interfaces.is_empty() {
            let (made, ends) = kernel::thread::rings(workers.len(), shared.settings(), secret[3]);
            workers.iter_mut().zip(ends).for_each(|(worker, end)| worker.set_kernel(end));
            rings = Some(made);
        }
        let grants = keep_grants(config, &shared, &mut workers, clock, log)?;
        let mut askers = Vec::new();
        for worker in &mut workers {
            let (asker, inbox) = mailbox();
            worker.set_mailbox(inbox);
            askers.push(asker);
        }
        let instance = Arc::new(Instance::new(description, shared, clock, askers));
        if let Some(view) = event_log {
            instance.set_event_log(view);
        }
        if let Some(sinks) = sinks {
            instance.set_sinks(sinks);
        }
        instance.set_own_addresses(Arc::clone(&own));
        instance.set_audit(audit);
        let path = config_path.display().to_string();
        instance.set_live(Live { config: config.clone(), started: path.clone(), path, previous: None, log });
        let captures = quarantine_path(config);
        let quarantine = Quarantine::start(captures, clock, log).map_err(system("quarantine thread"))?;
        // The sender exists until the quarantine is dropped.
        let Some(sender) = quarantine.sender() else {
            return Err(system("quarantine thread")(io::Error::other("ended")));
        };
        // A worker with its own CPU polls; on shared CPUs an idle worker yields.
        let idle = if config.workers.cpus.is_empty() { Idle::Sleep } else { Idle::Poll };
        let options = ThreadOptions { clock, idle, quarantine: sender };
        let sender_of = move |port: PortIndex| senders.get(port.index()).copied().unwrap_or(0);
        let kernel = rings.map(|rings| KernelThread::start(&devices, rings, sender_of, prepare.clone(), log));
        let kernel = kernel.transpose().map_err(system("kernel thread"))?;
        let fleet = Fleet::start(workers, &cpus, &options, prepare).map_err(system("worker thread"))?;
        drop(options);
        let record = Record::beside(&config.control.socket);
        let keeper = match devices.interfaces.is_empty() {
            true => None,
            false => Some(start_keeper(&instance, own, (devices, record), log).map_err(system("routes thread"))?),
        };
        let server = Server::start(socket, Arc::clone(&instance), log).map_err(system("control thread"))?;
        let ticker = Ticker::start(Arc::clone(&instance), log).map_err(system("rates thread"))?;
        instance.set_state(RunState::Running);
        Ok(Running { keeper, kernel, server, ticker, fleet, exporter, grants, _quarantine: quarantine, instance, log })
    }

    /// The instance, for the control server.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// Drains the workers and stops everything. Returns the last numbers of each worker.
    pub fn stop(self) -> Vec<Snapshot> {
        let Running { keeper, kernel, server, ticker, fleet, exporter, grants, _quarantine, instance, log } = self;
        instance.set_state(RunState::Draining);
        // Neighbours send elsewhere before no worker listens.
        drop(keeper);
        let panics = fleet.panics();
        let last = fleet.stop();
        ticker.end(&last);
        drop((server, grants, kernel));
        log.info(&format_args!("stopped after {}: {}", duration_text(instance.clock.uptime_us()), summary(&last)));
        if let Some(exporter) = exporter {
            let handle = exporter.handle();
            if !exporter.stop() {
                let figures = handle.figures();
                let reason = |error: Option<String>| error.unwrap_or_else(|| "writing took too long".to_owned());
                if figures.waiting > 0 {
                    let reason = reason(figures.last_error);
                    log.error(&format_args!("event log: {} records could not be written ({reason})", figures.waiting));
                }
                if let Some(stored) = handle.stored().filter(|stored| stored.waiting > 0 || stored.failing) {
                    let reason = reason(stored.last_error);
                    let what = match stored.waiting {
                        0 => "it could not be closed".to_owned(),
                        waiting => {
                            format!("{waiting} records are in memory until the next start, and were not written")
                        }
                    };
                    log.error(&format_args!("log store: {what} ({reason})"));
                }
            }
        }
        // After the store: they send its last records.
        if let Some(sinks) = instance.sinks() {
            sinks.stop();
        }
        if panics > 0 {
            log.error(&format_args!("workers: the engine failed on {panics} bursts; see the quarantine"));
        }
        last
    }
}

/// Starts the thread that follows the kernel's routes and announces the pools.
fn start_keeper(
    instance: &Arc<Instance>,
    own: Arc<OwnAddresses>,
    kernel: (Devices, Record),
    log: Log,
) -> io::Result<Keeper> {
    let routing = Arc::new(Routing::new(&instance.shared()));
    instance.set_routing(Arc::clone(&routing));
    let (of_shared, of_health) = (Arc::clone(instance), Arc::clone(instance));
    let health = move |seen: &Seen| {
        let snapshots = of_health.snapshots();
        let refuses = of_health.shared().settings().events.back_pressure == BackPressure::Refuse;
        let failed = || {
            of_health.event_log().is_some_and(|log| {
                log.handle.figures().failing || log.handle.stored().is_some_and(|stored| stored.failing)
            })
        };
        let ports_up = snapshots.as_ref().ok().and_then(|all| all.first()).map(|one| one.ports_up.clone());
        of_health.below().take(seen);
        let ports_up = of_health.ports_up(&ports_up.unwrap_or_default());
        let is_up = |link: &InterfaceLink| ports_up.get(link.port.index()).copied().unwrap_or(false);
        Health {
            now: of_health.clock.now(),
            interfaces_up: of_health.description.links.iter().map(is_up).collect(),
            ports_up,
            devices_below: of_health.below().indexes().collect(),
            devices_down: BTreeSet::new(),
            devices_down6: BTreeSet::new(),
            workers_alive: snapshots.is_ok(),
            log_healthy: !refuses || !failed(),
        }
    };
    Keeper::start((routing, own), move || of_shared.shared(), health, kernel, log)
}

/// Restores what port control granted before, and keeps what it grants from now on. Without the
/// file, clients learn that the state is lost.
fn keep_grants<I: Io>(
    config: &Config,
    shared: &Shared,
    workers: &mut [Worker<I>],
    clock: Clock,
    log: Log,
) -> Result<Option<GrantKeeper>, StartError> {
    let now = clock.now();
    let announce = |workers: &mut [Worker<I>]| {
        if config.nat.port_control.pcp || config.nat.port_control.nat_pmp {
            workers.iter_mut().for_each(|worker| worker.shard_mut().announce_loss(now));
        }
    };
    let Some(path) = &config.grants_file else {
        announce(workers);
        return Ok(None);
    };
    let failed = |source| StartError::Grants { path: path.clone(), source };
    make_folder_of(path);
    let mut kept = grants::read(path).map_err(failed)?;
    if kept.is_torn {
        log.warn(&format_args!(
            "grants: {}: the last record is incomplete; all earlier ones are restored",
            path.display()
        ));
    }
    if let Some(damage) = &kept.damage {
        let aside = match grants::put_aside(path) {
            Ok(aside) => format!("it is kept as {}", aside.display()),
            Err(error) => format!("it could not be kept ({error})"),
        };
        log.error(&format_args!("grants: {}: {damage}; {aside}, and clients must renew", path.display()));
    } else if kept.is_incomplete {
        log.warn(&format_args!(
            "grants: {}: the previous run did not stop cleanly, so clients must renew",
            path.display()
        ));
    }
    let found = kept.grants();
    let mut lost = 0;
    for grant in &found {
        let owner = shared.worker_of_grant(grant);
        let restored = workers.get_mut(owner.index()).map(|worker| worker.shard_mut().install_grant(now, grant));
        lost += usize::from(!matches!(restored, Some(Ok(()))));
    }
    if lost > 0 {
        log.warn(&format_args!("grants: {lost} of {} have no place in this configuration", found.len()));
    }
    match kept.epoch_s().filter(|_| lost == 0) {
        Some(epoch_s) => workers.iter_mut().for_each(|worker| worker.shard_mut().continue_epoch(now, epoch_s)),
        None => {
            kept.forget_epoch();
            workers.iter_mut().for_each(|worker| worker.shard_mut().set_epoch(now, 0));
            announce(workers);
        }
    }
    let (keeper, rings) = GrantKeeper::start(path, kept, (workers.len(), clock), log).map_err(failed)?;
    for (worker, ring) in workers.iter_mut().zip(rings) {
        worker.set_grant_deltas(ring);
    }
    Ok(Some(keeper))
}

/// A summary of all packets in one line.
pub fn summary(last: &[Snapshot]) -> String {
    let of = |verdict: Verdict| last.iter().map(|one| one.counters.of(verdict)).sum::<u64>();
    let of_kind = |kind| Verdict::ALL.iter().filter(|verdict| verdict.kind() == kind).map(|verdict| of(*verdict)).sum();
    let received: u64 = last.iter().map(|one| one.counters.received).sum();
    let (forwarded, local, dropped): (u64, u64, u64) =
        (of_kind(VerdictKind::Forwarded), of_kind(VerdictKind::Local), of_kind(VerdictKind::Dropped));
    let [forwarded, local, dropped] = [forwarded, local, dropped].map(count_text);
    let received = counted(received, "packet");
    let mut text = format!("{received} received, {forwarded} forwarded, {local} local, {dropped} dropped");
    let mut separator = ": ";
    for verdict in Verdict::ALL.iter().filter(|verdict| verdict.kind() == VerdictKind::Dropped) {
        if of(*verdict) > 0 {
            // Writing to a String does not fail.
            let _ = write!(text, "{separator}{} {}", verdict.name(), count_text(of(*verdict)));
            separator = ", ";
        }
    }
    text
}

/// 256 random bits.
fn random_secret() -> io::Result<[u64; 4]> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    Ok([0; 4].map(|_| words.next().unwrap_or_default()))
}
