//! The notifications of ietf-nat (RFC 8512) as an event stream of RESTCONF (RFC 8040 §6). The data
//! can only be read, so the subscriber to a stream names the thresholds.

use core::convert::Infallible;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Sse;
use axum::response::sse::Event;
use axum::response::sse::KeepAlive;
use control::Actor;
use control::PerProtocol;
use futures_core::Stream;
use serde::Deserialize;
use serde_json::Value;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::sync::mpsc;
use utoipa::IntoParams;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::ask::Daemon;
use crate::restconf::Figures;
use crate::restconf::INSTANCE;
use crate::routes::Api;
use crate::state::Chunks;

/// How often the figures are looked at, for all streams together.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Intervals of the module, in seconds.
const POOL_INTERVAL_S: u32 = 20;
const INSTANCE_INTERVAL_S: u32 = 10;
const INTERVAL_S_MAX: u32 = 3_600;

fn pool_interval() -> u32 {
    POOL_INTERVAL_S
}

fn instance_interval() -> u32 {
    INSTANCE_INTERVAL_S
}

/// When to notify; names and defaults are those of the module. Without a threshold there is no
/// notification of its kind.
#[derive(Clone, Copy, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Thresholds {
    /// Percent of the ports of a pool: notify when so many are in use, or more.
    #[param(maximum = 100)]
    high_threshold: Option<u8>,
    /// Percent of the ports of a pool: notify when so many are in use, or fewer.
    #[param(maximum = 100)]
    low_threshold: Option<u8>,
    /// Seconds between two notifications for one pool, at least.
    #[serde(default = "pool_interval")]
    #[param(minimum = 1, maximum = 3_600)]
    pool_notify_interval: u32,
    /// Percent of all external addresses in use.
    #[param(maximum = 100)]
    notify_addresses_usage: Option<u8>,
    /// Percent of the ports of all pools in use.
    #[param(maximum = 100)]
    notify_ports_usage: Option<u8>,
    /// Active subscribers.
    notify_subscribers_limit: Option<u32>,
    /// Seconds between two notifications for the instance, at least.
    #[serde(default = "instance_interval")]
    #[param(minimum = 1, maximum = 3_600)]
    notify_interval: u32,
}

impl Thresholds {
    fn check(&self) -> Result<(), Refused> {
        let wrong = |object: &str, problem: &str, remedy: &str| {
            Err(Refused::new(StatusCode::BAD_REQUEST, object, problem, remedy))
        };
        let percents = [self.high_threshold, self.low_threshold, self.notify_addresses_usage, self.notify_ports_usage];
        if percents.into_iter().flatten().any(|percent| percent > 100) {
            return wrong("threshold", "is more than 100 percent", "use 0 to 100");
        }
        if self.high_threshold.zip(self.low_threshold).is_some_and(|(high, low)| high < low) {
            return wrong("high-threshold", "is below low-threshold", "swap them");
        }
        let is_interval = |seconds: u32| (1..=INTERVAL_S_MAX).contains(&seconds);
        if !is_interval(self.pool_notify_interval) || !is_interval(self.notify_interval) {
            return wrong("interval", "is out of range", "use 1 to 3600 seconds");
        }
        let has_any = percents.iter().any(Option::is_some) || self.notify_subscribers_limit.is_some();
        if has_any { Ok(()) } else { wrong("query", "has no threshold", "give one, such as high-threshold=80") }
    }
}

/// A pool of the module at one moment.
#[derive(Clone, Copy, Debug)]
struct PoolUsage {
    policy: u32,
    pool: u32,
    percent: u8,
}

/// What thresholds are compared with.
#[derive(Clone, Debug, Default)]
struct Usage {
    pools: Vec<PoolUsage>,
    addresses_percent: u8,
    ports_percent: u8,
    subscribers: u64,
}

/// The transport that uses most of its ports decides.
fn percent_of(used: PerProtocol, total: PerProtocol) -> u8 {
    let each = [(used.udp, total.udp), (used.tcp, total.tcp), (used.icmp, total.icmp)];
    let percents = each.map(|(used, total)| used.saturating_mul(100).checked_div(total).unwrap_or(0));
    percents.into_iter().max().map_or(0, |percent| percent.min(100) as u8)
}

fn sum(each: impl Iterator<Item = PerProtocol>) -> PerProtocol {
    each.fold(PerProtocol::default(), |sum, one| PerProtocol {
        udp: sum.udp + one.udp,
        tcp: sum.tcp + one.tcp,
        icmp: sum.icmp + one.icmp,
    })
}

impl Usage {
    fn of(figures: &Figures) -> Usage {
        let pools = figures.prefixes().into_iter().map(|(policy, pool, own)| {
            let inside: Vec<_> = figures.addresses_of(pool, own).collect();
            let used = sum(inside.iter().map(|address| address.ports_used));
            let total = sum(inside.iter().map(|address| address.ports_total));
            PoolUsage { policy, pool: own.number, percent: percent_of(used, total) }
        });
        let (used, all) = (figures.addresses_used(), figures.addresses.len() as u64);
        Usage {
            pools: pools.collect(),
            addresses_percent: (used * 100).checked_div(all).unwrap_or(0).min(100) as u8,
            ports_percent: percent_of(
                sum(figures.addresses.iter().map(|address| address.ports_used)),
                sum(figures.addresses.iter().map(|address| address.ports_total)),
            ),
            subscribers: figures.status.subscribers,
        }
    }
}

/// The latest look at the figures, which all streams share: they read every external address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks(Arc<Mutex<Option<Look>>>);

/// When it began, and what it found; None: the instance did not answer.
#[derive(Clone, Debug)]
struct Look {
    begun: Instant,
    usage: Option<Arc<Usage>>,
}

impl Looks {
    /// The usage of now, or of at most [`LOOKS_EVERY`] ago.
    async fn usage(&self, daemon: &Daemon, actor: Actor) -> Option<Arc<Usage>> {
        // Held while the instance is asked: the other streams wait for this answer.
        let mut latest = self.0.lock().await;
        let begun = Instant::now();
        if let Some(Look { usage, .. }) = latest.as_ref().filter(|look| begun - look.begun < LOOKS_EVERY) {
            return usage.clone();
        }
        let found = daemon.with(actor, |client| Ok(Usage::of(&Figures::ask(client)?))).await;
        let usage = found.ok().map(Arc::new);
        *latest = Some(Look { begun, usage: usage.clone() });
        usage
    }
}

/// Where a pool is, as its subscriber knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Level {
    #[default]
    Between,
    High,
    Low,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    level: Level,
    at: Option<Instant>,
}

impl Reported {
    fn rests(&self, now: Instant, interval: u32) -> bool {
        let interval = Duration::from_secs(interval.into());
        self.at.is_some_and(|at| now.saturating_duration_since(at) < interval)
    }
}

/// One subscription.
#[derive(Debug)]
struct Watch {
    thresholds: Thresholds,
    /// By number of the pool.
    pools: HashMap<u32, Reported>,
    /// Subscribers, addresses and ports: whether their threshold was met and reported.
    instance: [bool; 3],
    instance_at: Option<Instant>,
}

impl Watch {
    fn new(thresholds: Thresholds) -> Watch {
        Watch { thresholds, pools: HashMap::new(), instance: [false; 3], instance_at: None }
    }

    /// The notifications that are due.
    fn look(&mut self, now: Instant, usage: &Usage) -> Vec<Value> {
        let Thresholds { high_threshold, low_threshold, pool_notify_interval, .. } = self.thresholds;
        let mut due = Vec::new();
        for PoolUsage { policy, pool, percent } in &usage.pools {
            let (level, threshold) = match (high_threshold, low_threshold) {
                (Some(high), _) if *percent >= high => (Level::High, high),
                (_, Some(low)) if *percent <= low => (Level::Low, low),
                _ => (Level::Between, 0),
            };
            let reported = self.pools.entry(*pool).or_default();
            if level == Level::Between {
                reported.level = level;
            } else if reported.level != level && !reported.rests(now, pool_notify_interval) {
                *reported = Reported { level, at: Some(now) };
                due.push(json!({ "ietf-nat:nat-pool-event": {
                    "id": INSTANCE, "policy-id": policy, "pool-id": pool, "notify-pool-threshold": threshold,
                }}));
            }
        }
        self.pools.retain(|number, _| usage.pools.iter().any(|pool| pool.pool == *number));
        due.extend(self.look_at_instance(now, usage));
        due
    }

    fn look_at_instance(&mut self, now: Instant, usage: &Usage) -> Option<Value> {
        let Thresholds {
            notify_subscribers_limit, notify_addresses_usage, notify_ports_usage, notify_interval, ..
        } = self.thresholds;
        let each = [
            ("notify-subscribers-threshold", notify_subscribers_limit, usage.subscribers),
            ("notify-addresses-threshold", notify_addresses_usage.map(u32::from), usage.addresses_percent.into()),
            ("notify-ports-threshold", notify_ports_usage.map(u32::from), usage.ports_percent.into()),
        ];
        let reported = Reported { level: Level::Between, at: self.instance_at };
        let rests = reported.rests(now, notify_interval);
        let mut event = serde_json::Map::new();
        for ((name, threshold, value), reported) in each.into_iter().zip(&mut self.instance) {
            let met = threshold.filter(|threshold| value >= u64::from(*threshold));
            match met {
                None => *reported = false,
                Some(threshold) if !*reported && !rests => {
                    *reported = true;
                    event.insert(name.to_owned(), threshold.into());
                }
                Some(_) => {}
            }
        }
        if event.is_empty() {
            return None;
        }
        self.instance_at = Some(now);
        event.insert("id".to_owned(), INSTANCE.into());
        Some(json!({ "ietf-nat:nat-instance-event": event }))
    }
}

/// In the envelope of RFC 8040 §6.4.
fn notification(mut content: Value) -> Event {
    if let Some(content) = content.as_object_mut() {
        content.insert("eventTime".to_owned(), jiff::Timestamp::now().to_string().into());
    }
    Event::default().data(json!({ "ietf-restconf:notification": content }).to_string())
}

/// Notifications nat-pool-event and nat-instance-event, as server-sent events.
#[utoipa::path(get, path = "/restconf/streams/ietf-nat", tag = "restconf", params(Thresholds), responses(
    (status = OK, description = "Events", body = String, content_type = "text/event-stream"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn stream(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(thresholds): Query<Thresholds>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refused> {
    thresholds.check()?;
    let follower = api.followers.enter(principal.name(), "stream")?;
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _follower = follower;
        let mut watch = Watch::new(thresholds);
        while !sender.is_closed() {
            // Without an answer there is nothing to report; the next look may have one.
            if let Some(usage) = api.looks.usage(&api.daemon, principal.actor()).await {
                for content in watch.look(Instant::now(), &usage) {
                    if sender.send(Ok(notification(content))).await.is_err() {
                        return;
                    }
                }
            }
            tokio::time::sleep(LOOKS_EVERY).await;
        }
    });
    Ok(Sse::new(Chunks(receiver)).keep_alive(KeepAlive::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Thresholds = Thresholds {
        high_threshold: None,
        low_threshold: None,
        pool_notify_interval: 20,
        notify_addresses_usage: None,
        notify_ports_usage: None,
        notify_subscribers_limit: None,
        notify_interval: 10,
    };

    /// The thresholds of pools that are reported while the usage is as given, second by second.
    fn reported(thresholds: Thresholds, percents: &[u8]) -> Vec<(usize, u64)> {
        let (mut watch, begun) = (Watch::new(thresholds), Instant::now());
        let mut seen = Vec::new();
        for (second, percent) in percents.iter().enumerate() {
            let usage = Usage { pools: vec![PoolUsage { policy: 1, pool: 7, percent: *percent }], ..Usage::default() };
            for event in watch.look(begun + Duration::from_secs(second as u64), &usage) {
                let event = &event["ietf-nat:nat-pool-event"];
                assert_eq!((&event["id"], &event["policy-id"], &event["pool-id"]), (&1.into(), &1.into(), &7.into()));
                seen.push((second, event["notify-pool-threshold"].as_u64().unwrap()));
            }
        }
        seen
    }

    #[test]
    fn two_crossings_within_the_interval_are_one_event() {
        let high = Thresholds { high_threshold: Some(80), ..NONE };
        assert_eq!(reported(high, &[79, 80, 85, 70, 90, 70]), [(1, 80)]);
        assert_eq!(reported(high, &[79; 60]), []);
        // Still above at the end of the interval, after it was below.
        let mut percents = vec![80, 70];
        percents.extend([90; 30]);
        assert_eq!(reported(high, &percents), [(0, 80), (20, 80)]);
        // Nothing new to report.
        assert_eq!(reported(high, &[90; 60]), [(0, 80)]);
    }

    #[test]
    fn both_thresholds_of_a_pool_are_reported() {
        let both = Thresholds { high_threshold: Some(80), low_threshold: Some(20), pool_notify_interval: 1, ..NONE };
        assert_eq!(reported(both, &[50, 20, 50, 100, 0]), [(1, 20), (3, 80), (4, 20)]);
    }

    #[test]
    fn what_the_instance_crosses_is_one_event() {
        let thresholds = Thresholds {
            notify_subscribers_limit: Some(5),
            notify_addresses_usage: Some(50),
            notify_ports_usage: Some(90),
            ..NONE
        };
        let (mut watch, begun) = (Watch::new(thresholds), Instant::now());
        let at = |second| begun + Duration::from_secs(second);
        let usage = |subscribers, addresses_percent| Usage { subscribers, addresses_percent, ..Usage::default() };
        assert!(watch.look(at(0), &usage(4, 49)).is_empty());
        let both = json!({ "ietf-nat:nat-instance-event": {
            "id": 1, "notify-subscribers-threshold": 5, "notify-addresses-threshold": 50,
        }});
        assert_eq!(watch.look(at(1), &usage(5, 50)), [both]);
        assert!(watch.look(at(2), &usage(4, 50)).is_empty());
        assert!(watch.look(at(3), &usage(6, 50)).is_empty(), "within the interval");
        let one = json!({ "ietf-nat:nat-instance-event": { "id": 1, "notify-subscribers-threshold": 5 } });
        assert_eq!(watch.look(at(11), &usage(6, 50)), [one]);
    }

    #[test]
    fn thresholds_that_mean_nothing_are_refused() {
        assert!(NONE.check().is_err(), "no threshold");
        for wrong in [
            Thresholds { high_threshold: Some(101), ..NONE },
            Thresholds { high_threshold: Some(10), low_threshold: Some(20), ..NONE },
            Thresholds { high_threshold: Some(80), pool_notify_interval: 0, ..NONE },
            Thresholds { notify_ports_usage: Some(80), notify_interval: 3_601, ..NONE },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        assert!(Thresholds { notify_subscribers_limit: Some(0), ..NONE }.check().is_ok());
    }
}
