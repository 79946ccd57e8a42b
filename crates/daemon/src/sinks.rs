//! The sinks of an instance: which run, and how they change.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use std::time::Instant;

use config::Config;
use config::LogSink;
use config::SinkKind;
use config::SinkTransport;
use export::Names;
use export::sink::Kind;
use export::sink::Known;
use export::sink::News;
use export::sink::Quotas;
use export::sink::Security;
use export::sink::Sink;
use export::sink::SinkError;
use export::sink::SinkOptions;
use export::sink::Target;
use export::sink::Transport;
use export::store::CursorFile;
use nat::Settings;
use nat::event::LogsOpened;

use crate::event_log::names_of;
use crate::instance::lock;
use crate::log::Log;

/// Why a sink cannot start.
#[derive(Debug, thiserror::Error)]
#[error("log.sink \"{name}\": {source}")]
pub struct SinksError {
    name: String,
    source: SinkError,
}

/// The sinks that run. Dropping it stops them.
#[derive(Debug)]
pub struct Sinks {
    running: Mutex<Vec<Sink>>,
    known: Arc<Mutex<Known>>,
    store: PathBuf,
    host: String,
    version: String,
    reports: Arc<Reports>,
    log: Log,
}

/// Time between two reports of all live state.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Asks the workers to report all live state when a sink could not send some records, or begins
/// while the workers run: until then it does not know which subscriber is bound to which address.
#[derive(Debug)]
struct Reports {
    opened: Arc<LogsOpened>,
    /// When that was last, and whether records were lost since.
    last: Mutex<(Option<Instant>, bool)>,
}

impl Reports {
    fn hear(&self, news: &News, now: Instant) {
        let mut last = lock(&self.last);
        let is_recent = last.0.is_some_and(|at| now.duration_since(at) < REPORT_INTERVAL);
        match news {
            News::Resumed if is_recent => last.1 = true,
            News::CaughtUp if !last.1 => {}
            News::Resumed | News::CaughtUp => {
                *last = (Some(now), false);
                self.opened.count_one();
            }
            // What is deleted while a collector is away is reported when it goes on.
            News::Lost(_) | News::EndsUnknown | News::Begun | News::PutAside(_) => {}
            News::Connected | News::Failed(_) | News::Unkept(_) | News::Behind(_) => {}
        }
    }

    /// A sink began in the middle of a run.
    fn ask(&self, now: Instant) {
        *lock(&self.last) = (Some(now), false);
        self.opened.count_one();
    }
}

impl Sinks {
    /// Starts the sinks of `config`. None without a store to read from. `opened` shows the workers
    /// that all live state is to be reported.
    ///
    /// # Errors
    /// The certificates cannot be read.
    pub fn start(
        config: &Config,
        version: &str,
        opened: Arc<LogsOpened>,
        log: Log,
    ) -> Result<Option<Sinks>, SinksError> {
        let Some(store) = config.event_log.as_ref().and_then(|log| log.store.as_ref()) else { return Ok(None) };
        let sinks = Sinks {
            running: Mutex::new(Vec::new()),
            known: Arc::default(),
            store: store.path.clone(),
            host: host_name(),
            version: version.to_owned(),
            reports: Arc::new(Reports { opened, last: Mutex::default() }),
            log,
        };
        sinks.set_known(names_of(&config.nat), &config.nat);
        sinks.check(&config.log_sinks)?;
        // They follow the run from its start.
        let (_, failed) = sinks.begin(&config.log_sinks);
        failed.map_or(Ok(Some(sinks)), Err)
    }

    /// Sets the names and limits of a changed configuration.
    pub fn set_known(&self, names: Names, settings: &Settings) {
        *lock(&self.known) = Known { names: Arc::new(names), quotas: Arc::new(Quotas::of(settings)) };
    }

    /// Finds what would keep one of these from starting.
    ///
    /// # Errors
    /// As [`Sinks::start`].
    pub fn check(&self, wanted: &[LogSink]) -> Result<(), SinksError> {
        wanted.iter().try_for_each(|sink| {
            let checked = Sink::check(&self.options(sink));
            checked.map_err(|source| SinksError { name: sink.name.clone(), source })
        })
    }

    /// Makes these the sinks that run. One that is there already goes on; one that changes goes on
    /// from its cursor; the cursor of one that is removed is forgotten.
    ///
    /// # Errors
    /// As [`Sinks::start`].
    pub fn set(&self, wanted: &[LogSink]) -> Result<(), SinksError> {
        let (started, failed) = self.begin(wanted);
        if started.contains(&Kind::Ipfix) {
            self.reports.ask(Instant::now());
        }
        failed.map_or(Ok(()), Err)
    }

    /// Makes these the sinks that run. Returns the formats of those that it started, and why one
    /// could not be.
    fn begin(&self, wanted: &[LogSink]) -> (Vec<Kind>, Option<SinksError>) {
        let (mut begun, mut failed) = (Vec::new(), None);
        let mut running = lock(&self.running);
        let options: Vec<SinkOptions> = wanted.iter().map(|sink| self.options(sink)).collect();
        let (kept, ended): (Vec<Sink>, Vec<Sink>) =
            running.drain(..).partition(|sink| options.contains(sink.options()));
        *running = kept;
        // All end at the same time. What they have not sent waits for their successors.
        ended.iter().for_each(Sink::leave);
        drop(ended);
        let names: Vec<&str> = wanted.iter().map(|sink| sink.name.as_str()).collect();
        if let Err(error) = CursorFile::keep_only(&self.store, &names) {
            self.log.warn(&format_args!("log sinks: {error}"));
        }
        for options in options {
            if running.iter().any(|sink| *sink.options() == options) {
                continue;
            }
            let kind = options.kind;
            let (log, name) = (self.log, options.name.clone());
            let started = Sink::start(options, Arc::clone(&self.known), {
                let (name, reports) = (name.clone(), Arc::clone(&self.reports));
                move |news| {
                    log_news(log, &name, news);
                    reports.hear(news, Instant::now());
                }
            });
            // The others go on.
            match started {
                Ok(sink) => {
                    running.push(sink);
                    begun.push(kind);
                }
                Err(source) => {
                    failed.get_or_insert(SinksError { name, source });
                }
            }
        }
        (begun, failed)
    }

    fn options(&self, sink: &LogSink) -> SinkOptions {
        let certificates = sink.certificates.clone();
        SinkOptions {
            name: sink.name.clone(),
            kind: match sink.kind {
                SinkKind::Ipfix => Kind::Ipfix,
                SinkKind::Syslog => Kind::Syslog,
                SinkKind::Json => Kind::Json,
            },
            target: Target {
                transport: match sink.transport {
                    SinkTransport::Udp => Transport::Udp,
                    SinkTransport::Tcp => Transport::Tcp,
                    SinkTransport::Tls => Transport::Tls,
                },
                host: sink.host.clone(),
                port: sink.port,
            },
            security: certificates.map(|authorities| Security { authorities, own: sink.own.clone() }),
            domain: sink.domain,
            mtu: usize::from(sink.mtu),
            template_interval: Duration::from_micros(sink.template_interval.as_micros()),
            spool_bytes: sink.spool_bytes,
            store: self.store.clone(),
            host: self.host.clone(),
            version: self.version.clone(),
        }
    }

    /// Calls `each` for every sink that runs.
    pub(crate) fn for_each<T>(&self, each: impl Fn(&Sink) -> T) -> Vec<T> {
        lock(&self.running).iter().map(each).collect()
    }

    /// Ends all, after they sent what the store has, or after some seconds.
    pub fn stop(&self) {
        let ended = core::mem::take(&mut *lock(&self.running));
        ended.iter().for_each(Sink::end);
    }
}

/// Writes what happened to a sink into the log of the process.
fn log_news(log: Log, name: &str, news: &News) {
    match news {
        News::Connected | News::CaughtUp | News::Resumed => log.info(&format_args!("log sink {name}: {news}")),
        News::Failed(_) | News::Unkept(_) | News::Behind(_) | News::EndsUnknown | News::Begun => {
            log.warn(&format_args!("log sink {name}: {news}"))
        }
        News::PutAside(aside) if aside.is_known && aside.records() == 0 => {
            log.warn(&format_args!("log sink {name}: {news}"))
        }
        News::Lost(_) | News::PutAside(_) => log.error(&format_args!("log sink {name}: {news}")),
    }
}

/// The name of this machine; empty if the system does not say it.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(name: &str, transport: SinkTransport) -> LogSink {
        LogSink {
            name: name.to_owned(),
            kind: SinkKind::Json,
            transport,
            host: "localhost".to_owned(),
            port: 9,
            certificates: Some(PathBuf::from("/missing.pem")),
            own: None,
            domain: 0,
            mtu: 1_500,
            template_interval: nat::Duration::from_secs(600),
            spool_bytes: 1 << 20,
        }
    }

    #[test]
    fn one_sink_that_cannot_run_keeps_no_other_from_it() {
        let store = std::env::temp_dir().join(format!("natrix-no-store-{}", std::process::id()));
        let sinks = Sinks {
            running: Mutex::default(),
            known: Arc::default(),
            store: store.clone(),
            host: String::new(),
            version: String::new(),
            reports: Arc::new(Reports { opened: Arc::default(), last: Mutex::default() }),
            log: Log::silent(),
        };
        let wanted = [sink("a", SinkTransport::Tls), sink("b", SinkTransport::Tcp)];
        assert!(sinks.check(&wanted).is_err() && sinks.check(&wanted[1..]).is_ok());
        // There is no store either: it tries again.
        std::fs::create_dir_all(&store).unwrap();
        let error = sinks.set(&wanted).unwrap_err().to_string();
        assert!(error.starts_with("log.sink \"a\": certificates"), "{error}");
        assert_eq!(sinks.for_each(|sink| sink.options().name.clone()), ["b"]);
        let begin = Instant::now();
        while sinks.for_each(|sink| sink.figures().errors()) == [0] {
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
        assert!(sinks.for_each(|sink| sink.figures().last_error())[0].as_ref().unwrap().contains("no store"));
        drop(sinks);
        std::fs::remove_dir_all(&store).unwrap();
    }

    #[test]
    fn a_loss_is_followed_by_a_report_but_not_by_many() {
        let reports = Reports { opened: Arc::default(), last: Mutex::default() };
        let begin = Instant::now();
        let hear = |news: News, seconds: u64| {
            reports.hear(&news, begin + Duration::from_secs(seconds));
            reports.opened.count()
        };
        assert_eq!(hear(News::Connected, 0), 0);
        assert_eq!(hear(News::CaughtUp, 0), 0);
        assert_eq!(hear(News::Lost(3), 1), 0);
        assert_eq!(hear(News::Resumed, 1), 1);
        assert_eq!(hear(News::Resumed, 30), 1);
        // What was lost after the report is made good when nothing more is to be lost.
        assert_eq!(hear(News::CaughtUp, 30), 2);
        assert_eq!(hear(News::CaughtUp, 31), 2);
        assert_eq!(hear(News::Resumed, 60), 3);
    }
}
