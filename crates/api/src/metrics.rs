//! `/metrics` for Prometheus. No label has a subscriber.
//!
//! A client that asks for OpenMetrics gets it, as Prometheus does. Others, such as promtool, get
//! the older text format. The two differ only in the names of counters in comments.

use std::collections::HashSet;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use control::Client;
use control::ClientError;
use control::Counter as Counted;
use control::CounterKind;
use control::Counters;
use control::DropReason;
use control::Interface;
use control::LogSink;
use control::PerProtocol;
use control::Pool;
use control::Request;
use control::Resource;
use control::Status;
use control::Withheld;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::encoding::MetricEncoder;
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use prometheus_client::registry::Unit;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Refused;
use crate::routes::Api;
use crate::tls::CertificateState;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What one scrape asks for.
struct Figures {
    status: Status,
    pools: Vec<Pool>,
    interfaces: Vec<Interface>,
    drops: Vec<DropReason>,
    counters: Vec<Counted>,
}

fn ask(client: &mut Client) -> Result<Figures, ClientError> {
    Ok(Figures {
        status: client.request_one(&Request::Status)?,
        pools: client.request(&Request::Pools)?.0,
        interfaces: client.request(&Request::Interfaces)?.0,
        drops: client.request(&Request::Drops)?.0,
        counters: client.request(&Request::Counters(Counters { per_worker: false }))?.0,
    })
}

/// Figures for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "state", responses(
    (status = OK, description = "OpenMetrics if `Accept` names it, otherwise the older text format", content(
        (String = "text/plain"), (String = "application/openmetrics-text"),
    )),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn metrics(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let figures = api.daemon.with(principal.actor(), ask).await?;
    let certificate = api.certificates.as_ref().map(|certificates| certificates.state());
    let text = text(&figures, certificate).map_err(|error| crate::ask::failed(&error.to_string()))?;
    let accepted = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let (kind, text) = match accepted.contains("application/openmetrics-text") {
        true => (OPEN_METRICS, text),
        false => (PLAIN, plain(&text)),
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

type Labels = Vec<(&'static str, String)>;

/// Rounds of the workers by time, as the workers counted them.
#[derive(Debug)]
struct Rounds(Vec<RoundsOfWorker>);

#[derive(Debug)]
struct RoundsOfWorker {
    labels: Labels,
    sum_s: f64,
    /// Upper bounds in seconds, and counts.
    buckets: Vec<(f64, u64)>,
}

impl Rounds {
    fn of(status: &Status) -> Rounds {
        let each = status.workers.iter().map(|worker| {
            let last = worker.rounds_by_time.len().saturating_sub(1);
            let bound = |entry: usize| if entry == last { f64::MAX } else { 2_f64.powi(entry as i32) / 1e6 };
            let buckets = worker.rounds_by_time.iter().enumerate().map(|(entry, count)| (bound(entry), *count));
            RoundsOfWorker {
                labels: vec![("worker", worker.worker.to_string())],
                sum_s: seconds(worker.busy_us),
                buckets: buckets.collect(),
            }
        });
        Rounds(each.collect())
    }
}

impl EncodeMetric for Rounds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), core::fmt::Error> {
        for RoundsOfWorker { labels, sum_s, buckets } in &self.0 {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_family(labels)?.encode_histogram::<NoLabelSet>(*sum_s, count, buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Metrics under construction.
struct Metrics {
    registry: Registry,
}

impl Metrics {
    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.registry.register(name, help, ConstCounter::new(value));
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn ratio(&mut self, name: &str, help: &str, value: f64) {
        self.registry.register(name, help, ConstGauge::new(value));
    }

    fn counters(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, prometheus_client::metrics::counter::Counter>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help, family);
    }

    fn gauges(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, core::sync::atomic::AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help, family);
    }
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

fn by_protocol(label: &'static str, name: &str, value: PerProtocol) -> [(Labels, f64); 3] {
    [("udp", value.udp), ("tcp", value.tcp), ("icmp", value.icmp)]
        .map(|(protocol, value)| (vec![(label, name.to_owned()), ("protocol", protocol.to_owned())], value as f64))
}

fn text(figures: &Figures, of_server: Option<CertificateState>) -> Result<String, core::fmt::Error> {
    let mut metrics = Metrics { registry: Registry::with_prefix("natrix") };
    instance(&mut metrics, &figures.status);
    workers(&mut metrics, &figures.status);
    clock(&mut metrics, &figures.status);
    event_log(&mut metrics, &figures.status);
    pools(&mut metrics, &figures.pools);
    interfaces(&mut metrics, &figures.interfaces);
    verdicts(&mut metrics, figures);
    if let Some(of_server) = of_server {
        certificate(&mut metrics, of_server);
    }
    let mut text = String::new();
    encode(&mut text, &metrics.registry)?;
    Ok(text)
}

/// OpenMetrics as the older text format, in which the name of a counter ends in `_total` in
/// comments too.
fn plain(text: &str) -> String {
    let name_of = |line: &str| line.split(' ').nth(2).map(str::to_owned);
    let types = text.lines().filter(|line| line.starts_with("# TYPE ") && line.ends_with(" counter"));
    let counters: HashSet<String> = types.filter_map(name_of).collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        match name_of(line).filter(|name| line.starts_with("# ") && counters.contains(name)) {
            Some(name) => plain.push_str(&line.replacen(&name, &format!("{name}_total"), 1)),
            None => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

fn instance(metrics: &mut Metrics, status: &Status) {
    let state = vec![("version", status.version.clone()), ("state", status.state.to_string())];
    metrics.gauges("build_info", "Release and state of the instance", [(state, 1.0)]);
    let uptime = ConstGauge::new(seconds(status.uptime_us));
    metrics.registry.register_with_unit("uptime", "Time since the start", Unit::Seconds, uptime);
    metrics.counter("packets_received", "Packets taken from ports", status.packets_received);
    metrics.counter("packets_forwarded", "Packets sent on", status.packets_forwarded);
    metrics.counter("packets_dropped", "Packets dropped, for any reason", status.packets_dropped);
    metrics.counter("forwarded_bytes", "Bytes of IP packets sent on", status.bytes_forwarded);
    metrics.counter("mappings_created", "Mappings created", status.mappings_created);
    metrics.counter("sessions_created", "Sessions created", status.sessions_created);
    let announcement = status.announcement;
    let prefixes = announcement.map_or(0, |announcement| announcement.prefixes);
    metrics.gauge("announced_prefixes", "Prefixes of pools, NAT64 and AFTRs announced to the kernel", prefixes);
    let reasons = Withheld::ALL.iter().map(|reason| {
        let holds = announcement.is_some_and(|announcement| announcement.withheld == Some(*reason));
        (vec![("reason", reason.name().to_owned())], f64::from(u8::from(holds)))
    });
    metrics.gauges("announcement_withheld", "1 if the pools are not announced, for this reason", reasons);
    for (name, help, now, max) in [
        ("subscribers", "Subscribers with a mapping", status.subscribers, status.subscribers_max),
        ("mappings", "Mappings", status.mappings, status.mappings_max),
        ("sessions", "Sessions", status.sessions, status.sessions_max),
        (
            "held_ports",
            "External ports held down before they are given out again",
            status.held_ports,
            status.held_ports_max,
        ),
    ] {
        metrics.gauge(name, help, now);
        metrics.gauge(&format!("{name}_max"), &format!("{help}: room for"), max);
    }
}

fn workers(metrics: &mut Metrics, status: &Status) {
    let label = |worker: &control::Worker| vec![("worker", worker.worker.to_string())];
    let each = |of: fn(&control::Worker) -> u64| status.workers.iter().map(move |worker| (label(worker), of(worker)));
    metrics.counters("worker_packets_received", "Packets taken from ports", each(|worker| worker.packets_received));
    metrics.counters("worker_packets_forwarded", "Packets sent on", each(|worker| worker.packets_forwarded));
    metrics.counters("worker_packets_dropped", "Packets dropped", each(|worker| worker.packets_dropped));
    metrics.counters("worker_handed_off", "Packets given to other workers", each(|worker| worker.handed_off));
    metrics.counters("worker_taken_over", "Packets taken from other workers", each(|worker| worker.taken_over));
    let busy = status.workers.iter().map(|worker| (label(worker), worker.busy_ratio));
    metrics.gauges("worker_busy_ratio", "Part of the last second with packets to work on", busy);
    let sessions = status.workers.iter().map(|worker| (label(worker), worker.sessions as f64));
    metrics.gauges("worker_sessions", "Sessions it owns", sessions);
    let rounds = Rounds::of(status);
    let about = "Time of rounds with packets: at most one burst from each port and ring, and a part of the upkeep";
    metrics.registry.register_with_unit("worker_round", about, Unit::Seconds, rounds);
}

fn clock(metrics: &mut Metrics, status: &Status) {
    let Some(clock) = &status.clock else { return };
    let is_synchronised = u64::from(clock.synchronised);
    metrics.gauge("clock_synchronised", "1 if a time service keeps the system's clock", is_synchronised);
    let estimated = seconds(clock.estimated_error_us);
    metrics.ratio("clock_estimated_error_seconds", "Error of the clock, as the service estimates it", estimated);
    let maximum = seconds(clock.maximum_error_us);
    metrics.ratio("clock_maximum_error_seconds", "Greatest possible error of the clock", maximum);
}

fn event_log(metrics: &mut Metrics, status: &Status) {
    let Some(log) = &status.event_log else { return };
    metrics.counter("log_records_written", "Records of the event log that were written", log.records_written);
    metrics.counter("log_records_lost", "Events without a record, for lack of room", log.records_lost);
    metrics.counter("log_written_bytes", "Bytes of the event log", log.bytes_written);
    metrics.counter("log_errors", "Failed attempts to open, write, sync or rotate the event log", log.errors);
    let taken = "Times that another program renamed, deleted or cut the file of lines";
    metrics.counter("log_files_taken", taken, log.files_taken);
    metrics.gauge("log_records_waiting", "Records that wait for the disk", log.records_waiting);
    metrics.ratio("log_lag_seconds", "Age of the oldest record that is not written", seconds(log.lag_us));
    metrics.gauge("log_failing", "1 if the last attempt to write failed", u64::from(log.failing));
    if let Some(store) = &log.store {
        metrics.counter("log_store_records_written", "Records this run wrote to the store", store.records_written);
        metrics.gauge("log_store_records_waiting", "Records that wait for the store", store.records_waiting);
        metrics.gauge("log_store_bytes", "Size of the store", store.bytes);
        metrics.gauge("log_store_segments", "Sealed segments of the store", store.segments);
        metrics.gauge("log_store_gaps", "Gaps of sequence numbers that the store records", store.gaps);
        metrics.gauge("log_store_records_lost", "Records in these gaps", store.records_lost);
        metrics.gauge("log_store_cuts", "Times a start found the log damaged or cut", store.cuts);
        metrics.counter("log_store_errors", "Failed attempts to write to the store", store.errors);
        let lag = seconds(store.lag_us);
        metrics.ratio("log_store_lag_seconds", "Age of the oldest record that is not in the store's journal", lag);
        metrics.gauge("log_store_failing", "1 if the last attempt to write failed", u64::from(store.failing));
    }
    let label = |sink: &LogSink| vec![("sink", sink.name.clone())];
    let each = |of: fn(&LogSink) -> u64| log.sinks.iter().map(move |sink| (label(sink), of(sink)));
    metrics.counters("log_sink_records_sent", "Records sent to the collector", each(|sink| sink.records_sent));
    metrics.counters(
        "log_sink_records_lost",
        "Records that did not reach the collector",
        each(|sink| sink.records_lost),
    );
    metrics.counters("log_sink_errors", "Failures to connect, to send or to read", each(|sink| sink.errors));
    let connected = log.sinks.iter().map(|sink| (label(sink), f64::from(u8::from(sink.connected))));
    metrics.gauges("log_sink_connected", "1 if there is a connection, and for datagrams", connected);
    let lag = log.sinks.iter().map(|sink| (label(sink), seconds(sink.lag_us)));
    metrics.gauges("log_sink_lag_seconds", "Age of the oldest event that was not sent", lag);
}

fn pools(metrics: &mut Metrics, pools: &[Pool]) {
    let label = |pool: &Pool| vec![("pool", pool.name.clone())];
    let each = |of: fn(&Pool) -> f64| pools.iter().map(move |pool| (label(pool), of(pool)));
    metrics.gauges("pool_addresses", "External addresses of the pool", each(|pool| pool.addresses as f64));
    metrics.gauges("pool_subscribers", "Subscribers with a mapping", each(|pool| pool.subscribers as f64));
    metrics.gauges("pool_ports_leased", "External ports in leased blocks", each(|pool| pool.ports_leased as f64));
    metrics.gauges(
        "pool_utilisation_ratio",
        "Part of the fullest transport's ports that cannot be given out",
        each(|pool| pool.utilisation_ratio),
    );
    metrics.gauges(
        "pool_draining",
        "1 if the pool makes no new mappings",
        each(|pool| f64::from(u8::from(pool.draining))),
    );
    let used = pools.iter().flat_map(|pool| by_protocol("pool", &pool.name, pool.ports_used));
    metrics.gauges("pool_ports_used", "External ports in use or held down", used);
    let held = pools.iter().flat_map(|pool| by_protocol("pool", &pool.name, pool.ports_held));
    metrics.gauges("pool_ports_held", "External ports held down, among those in use", held);
    let blocks = |of: fn(&Pool, u64) -> u64| {
        let sized = pools.iter().filter_map(|pool| Some((pool, u64::from(pool.block_size.filter(|size| *size > 0)?))));
        sized.map(move |(pool, size)| (label(pool), of(pool, size) as f64))
    };
    let leased = blocks(|pool, size| pool.ports_leased / size);
    metrics.gauges("pool_blocks_leased", "Port blocks leased to subscribers", leased);
    let unleasable = blocks(|pool, size| pool.ports_unleasable / size);
    metrics.gauges("pool_blocks_unleasable", "Port blocks of which single ports are in use", unleasable);
    metrics.gauges("pool_block_ports", "Ports of a block", blocks(|_, size| size));
    let total = pools.iter().flat_map(|pool| by_protocol("pool", &pool.name, pool.ports_total));
    metrics.gauges("pool_ports", "External ports of the pool", total);
}

/// The certificate of this server.
fn certificate(metrics: &mut Metrics, CertificateState { expires_s, failing, failures }: CertificateState) {
    let help = "When the certificate of the API ends, in seconds since 1970";
    let expires = ConstGauge::new(expires_s);
    metrics.registry.register_with_unit("api_certificate_expiry_timestamp", help, Unit::Seconds, expires);
    let help = "1 while a renewed certificate of the API cannot be loaded and the one before is in use";
    metrics.gauge("api_certificate_load_failing", help, failing.into());
    let help = "Renewed certificates of the API that could not be loaded";
    metrics.counter("api_certificate_load_failures", help, failures);
}

fn interfaces(metrics: &mut Metrics, interfaces: &[Interface]) {
    let label = |interface: &Interface| vec![("interface", interface.name.clone())];
    let each = |of: fn(&Interface) -> u64| interfaces.iter().map(move |interface| (label(interface), of(interface)));
    metrics.counters("interface_received_packets", "Packets received", each(|interface| interface.rx_packets));
    metrics.counters("interface_received_bytes", "Bytes received", each(|interface| interface.rx_bytes));
    metrics.counters(
        "interface_missed_packets",
        "Packets that the port lost because no worker took them in time",
        each(|interface| interface.rx_missed),
    );
    metrics.counters("interface_sent_packets", "Packets sent", each(|interface| interface.tx_packets));
    metrics.counters("interface_sent_bytes", "Bytes sent", each(|interface| interface.tx_bytes));
    metrics.counters(
        "interface_unsent_packets",
        "Packets not sent because the transmit queue was full",
        each(|interface| interface.tx_dropped),
    );
    let up = interfaces.iter().map(|interface| (label(interface), f64::from(u8::from(interface.link_up))));
    metrics.gauges("interface_up", "1 if the port has link", up);
}

fn verdicts(metrics: &mut Metrics, figures: &Figures) {
    let drops = figures.drops.iter().map(|drop| (vec![("reason", drop.reason.clone())], drop.packets));
    metrics.counters("drops", "Packets dropped, by reason", drops);
    let of_subscriber = |counter: &&Counted| counter.resource.is_some_and(Resource::is_of_subscriber);
    let refused = figures.counters.iter().filter(of_subscriber);
    let refused = refused.map(|counter| (vec![("limit", counter.name.clone())], counter.value));
    metrics.counters("quota_refused_packets", "Packets refused because of a limit of their subscriber", refused);
    let counted = |name: &str| figures.counters.iter().find(|counter| counter.name == name).map_or(0, |one| one.value);
    let unresolved = counted("neighbours_unresolved");
    let neighbours = [("answered", counted("neighbours").saturating_sub(unresolved)), ("unanswered", unresolved)];
    let neighbours = neighbours.map(|(state, count)| (vec![("state", state.to_owned())], count as f64));
    metrics.gauges("neighbours", "Neighbours in the workers' caches", neighbours);
    metrics.gauge("neighbour_waiting_packets", "Packets that wait for a neighbour", counted("neighbour_pending"));
    metrics.gauge("hand_off_waiting_packets", "Packets in the rings between workers", counted("hand_off_waiting"));
    metrics.counter("blocks_leased", "Port blocks leased", counted("blocks_leased"));
    metrics.counter("blocks_returned", "Port blocks returned", counted("blocks_returned"));
    metrics.counter("grants_opened", "Mappings made on request by PCP or NAT-PMP", counted("grants_opened"));
    metrics.counter("grants_deleted", "Mappings deleted on request", counted("grants_deleted"));
    metrics.counter("expectations_created", "Ports expected by gateways", counted("expectations_created"));
    metrics.counter("expectations_refused", "Announced ports that got no port", counted("expectations_refused"));
    for (end, name, help) in [
        ("_sessions", "alg_sessions", "Control sessions that a gateway read"),
        ("_changed", "alg_messages_changed", "Messages that a gateway rewrote"),
    ] {
        let gateways = figures.counters.iter().filter_map(|counter| {
            let gateway = counter.name.strip_prefix("alg_")?.strip_suffix(end)?;
            Some((vec![("alg", gateway.to_owned())], counter.value))
        });
        metrics.counters(name, help, gateways);
    }
    let of_kind = |kind: CounterKind| figures.counters.iter().filter(move |counter| counter.kind == kind);
    let packets = of_kind(CounterKind::Forwarded).chain(of_kind(CounterKind::Local));
    let packets = packets.map(|counter| (vec![("verdict", counter.name.clone())], counter.value));
    metrics.counters("verdicts", "Packets sent on, or handled by Natrix itself, by verdict", packets);
    let events = of_kind(CounterKind::Event).map(|counter| (vec![("event", counter.name.clone())], counter.value));
    metrics.counters("events", "Everything else that is counted; `natrix show counters` describes each", events);
    let gauges =
        of_kind(CounterKind::Gauge).map(|counter| (vec![("name", counter.name.clone())], counter.value as f64));
    metrics.gauges("current", "Numbers of now; `natrix show counters` describes each", gauges);
}
