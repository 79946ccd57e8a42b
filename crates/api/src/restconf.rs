//! `/restconf/data/ietf-nat:nat`: the state of the instance as data of the YANG module ietf-nat
//! (RFC 8512), in the JSON of RFC 7951, at the path that RESTCONF (RFC 8040) gives it. Read only.
//!
//! A pool is a policy. The module has one prefix for each of its pools, so each prefix of a pool
//! is one.

use core::net::Ipv4Addr;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::time::Duration;
use std::time::SystemTime;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use axum::response::Response;
use control::Actor;
use control::Alg;
use control::AnyPrefix;
use control::Client;
use control::ClientError;
use control::Counter;
use control::Counters;
use control::CurrentTimeouts;
use control::Filter;
use control::Filtering;
use control::Host;
use control::List;
use control::Mapping;
use control::PAGE_OBJECTS_MAX;
use control::Pool;
use control::PoolAddress;
use control::Pooling;
use control::PortLimits;
use control::Protocol;
use control::Request;
use control::Resource;
use control::Rule;
use control::Status;
use serde_json::Value;
use serde_json::json;
use tokio::sync::mpsc;

use crate::access::Principal;
use crate::answer::ErrorBody;
use crate::answer::Query;
use crate::answer::Refused;
use crate::event_log::ForCase;
use crate::routes::Api;
use crate::settings::Role;
use crate::state::CHUNK_BYTES;
use crate::state::CHUNKS_MAX;
use crate::state::Gone;
use crate::state::begun;
use crate::state::page_by_page;

const YANG_JSON: &str = "application/yang-data+json";
/// The only instance.
pub(crate) const INSTANCE: u32 = 1;
/// Timers of single ports; a range of ports is given port by port.
const PORT_TIMEOUTS_MAX: usize = 1_024;

/// What one answer is made from, besides the mappings.
pub(crate) struct Figures {
    pub(crate) status: Status,
    pools: Vec<Pool>,
    pub(crate) addresses: Vec<PoolAddress>,
    algs: Vec<Alg>,
    counters: HashMap<String, u64>,
    /// Packets dropped, by what was used up.
    dropped: BTreeMap<Resource, u64>,
    /// When the instance started.
    started: String,
}

impl Figures {
    pub(crate) fn ask(client: &mut Client) -> Result<Figures, ClientError> {
        let status: Status = client.request_one(&Request::Status)?;
        let pools = client.request(&Request::Pools)?.0;
        let addresses = client.pages::<PoolAddress>(everything(), Request::PoolAddresses).collect::<Result<_, _>>()?;
        let algs = client.pages::<Alg>(everything(), Request::Algs).collect::<Result<_, _>>()?;
        let (counters, _) = client.request::<Counter>(&Request::Counters(Counters { per_worker: false }))?;
        let started = SystemTime::now().checked_sub(Duration::from_micros(status.uptime_us));
        let started = jiff::Timestamp::try_from(started.unwrap_or(SystemTime::UNIX_EPOCH)).unwrap_or_default();
        let dropped = Resource::dropped(&counters);
        let counters = counters.into_iter().map(|counter| (counter.name, counter.value)).collect();
        Ok(Figures { status, pools, addresses, algs, counters, dropped, started: format!("{started:.0}") })
    }

    fn sum(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.counters.get(*name)).sum()
    }

    /// Packets dropped because this was used up.
    fn dropped(&self, resource: Resource) -> u64 {
        self.dropped.get(&resource).copied().unwrap_or(0)
    }

    /// The prefixes of each pool, in the order of the pools.
    pub(crate) fn prefixes(&self) -> Vec<(u32, &Pool, NumberedPrefix)> {
        let mut addresses: HashMap<&str, Vec<Ipv4Addr>> = HashMap::new();
        for address in &self.addresses {
            addresses.entry(&address.pool).or_default().push(address.address);
        }
        let mut numbered = Vec::new();
        for (policy, pool) in self.numbered_pools() {
            for prefix in prefixes(addresses.remove(pool.name.as_str()).unwrap_or_default()) {
                numbered.push((policy, pool, NumberedPrefix { number: prefix.address.to_bits(), prefix }));
            }
        }
        numbered
    }

    /// The pools with their numbers as policies. A number comes from the name of the pool, so that
    /// it stays while other pools come and go. Of two names with one number, which are rare even
    /// among thousands of pools, the later one has the next.
    fn numbered_pools(&self) -> Vec<(u32, &Pool)> {
        let mut taken = BTreeSet::new();
        let numbered = self.pools.iter().map(|pool| {
            let mut number = number_of_name(&pool.name);
            while !taken.insert(number) {
                number = number % NUMBER_MAX + 1;
            }
            (number, pool)
        });
        numbered.collect()
    }

    /// The addresses of a prefix of a pool.
    pub(crate) fn addresses_of(&self, pool: &Pool, own: NumberedPrefix) -> impl Iterator<Item = &PoolAddress> {
        let inside = move |address: &&PoolAddress| address.pool == pool.name && own.prefix.contains(address.address);
        self.addresses.iter().filter(inside)
    }

    /// How many external addresses are in use.
    pub(crate) fn addresses_used(&self) -> u64 {
        self.addresses.iter().filter(|address| is_used(address)).count() as u64
    }
}

/// What rules pass untranslated, sorted. It reads all rules, of which there may be a million, so
/// only the answer that names these prefixes asks for it.
fn passed(client: &mut Client) -> Result<Vec<String>, ClientError> {
    let rules = client.pages::<Rule>(everything(), Request::Rules);
    let prefixes = rules.filter_map(|rule| rule.map(|rule| passed_by(&rule)).transpose());
    // The same prefix may be in several rules.
    let prefixes: BTreeSet<String> = prefixes.map(|prefix| Ok(prefix?.to_string())).collect::<Result<_, _>>()?;
    Ok(prefixes.into_iter().collect())
}

/// The inside prefix that a rule passes untranslated, if it does so for every packet of it: the
/// module has no other condition.
fn passed_by(rule: &Rule) -> Option<AnyPrefix> {
    let is_passed = rule.kind == "rule" && rule.action == "no-translation";
    let is_of_all = rule.ip_protocol.is_none() && rule.vrf.is_none() && rule.outside.length() == 0;
    let is_of_all = is_of_all && rule.outside_ports.is_none();
    (is_passed && is_of_all && rule.inside_ports.is_none()).then_some(rule.inside)
}

fn is_used(address: &PoolAddress) -> bool {
    address.ports_used.total() > 0 || address.subscribers.unwrap_or(0) > 0
}

fn everything() -> List {
    List { filter: Filter::default(), limit: Some(PAGE_OBJECTS_MAX), cursor: None }
}

/// The largest number of a policy; some clients have no greater integer.
const NUMBER_MAX: u32 = i32::MAX as u32;

/// A number from 1 for a name, always the same.
fn number_of_name(name: &str) -> u32 {
    let hash = blake3::hash(name.as_bytes());
    let [first, second, third, fourth, ..] = *hash.as_bytes();
    u32::from_be_bytes([first, second, third, fourth]) % NUMBER_MAX + 1
}

/// A prefix and its number as a pool of the module: its first address, for prefixes of pools do not
/// overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberedPrefix {
    pub(crate) number: u32,
    prefix: Prefix,
}

/// A prefix of external addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    address: Ipv4Addr,
    length: u8,
}

impl Prefix {
    fn text(self) -> String {
        format!("{}/{}", self.address, self.length)
    }

    fn contains(self, address: Ipv4Addr) -> bool {
        let bits = 32 - u32::from(self.length);
        (u64::from(self.address.to_bits()) ^ u64::from(address.to_bits())) >> bits == 0
    }
}

/// Addresses as few prefixes.
fn prefixes(mut addresses: Vec<Ipv4Addr>) -> Vec<Prefix> {
    addresses.sort_unstable();
    addresses.dedup();
    let mut found = Vec::new();
    let mut place = 0;
    while let Some(first) = addresses.get(place).map(|address| address.to_bits()) {
        let run =
            addresses[place..].iter().zip(first..).take_while(|(address, bits)| address.to_bits() == *bits).count();
        // As large as the run and the alignment of its first address permit.
        let bits = run.ilog2().min(first.trailing_zeros());
        found.push(Prefix { address: Ipv4Addr::from_bits(first), length: 32 - bits as u8 });
        place += 1 << bits;
    }
    found
}

fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Icmp => 1,
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

/// RFC 7951 writes numbers of 64 bits as text.
fn counter(number: u64) -> Value {
    Value::String(number.to_string())
}

/// A number of 32 bits.
fn gauge(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn seconds(micros: u64) -> u32 {
    gauge(micros.div_ceil(1_000_000))
}

fn capabilities() -> Value {
    let protocols = [(1, "ICMP"), (6, "TCP"), (17, "UDP")];
    json!({
        "nat-flavor": ["basic-nat44", "napt44", "dst-nat", "nat64"],
        "per-interface-binding": ["unsupported"],
        "transport-protocols": protocols.map(|(id, name)| json!({ "protocol-id": id, "protocol-name": name })),
        "restricted-port-support": true,
        "static-mapping-support": true,
        "port-randomization-support": true,
        "port-range-allocation-support": true,
        "port-preservation-suport": false,
        "port-parity-preservation-support": true,
        "address-roundrobin-support": true,
        "paired-address-pooling-support": true,
        "endpoint-independent-mapping-support": true,
        "address-dependent-mapping-support": false,
        "address-and-port-dependent-mapping-support": true,
        "endpoint-independent-filtering-support": true,
        "address-dependent-filtering": true,
        "address-and-port-dependent-filtering": true,
        "fragment-behavior": "out-of-order",
    })
}

/// The most permissive of a pool, so that no operator counts on a filter that not every transport
/// has.
fn filtering(pool: &Pool) -> &'static str {
    let each = [pool.filtering.udp, pool.filtering.tcp, pool.filtering.icmp];
    if each.contains(&Filtering::EndpointIndependent) {
        "eif"
    } else if each.contains(&Filtering::AddressDependent) {
        "adf"
    } else {
        "edf"
    }
}

fn timers(figures: &Figures, pool: &Pool) -> Value {
    let CurrentTimeouts { udp_us, tcp_opening_us, tcp_established_us, tcp_closing_us, icmp_us, .. } =
        figures.status.timeouts;
    // The module has one timer for each port. If several apply to a port, the first decides.
    let mut ports = BTreeMap::new();
    for own in &figures.status.port_timeouts {
        for port in own.first_port..=own.last_port {
            if ports.len() < PORT_TIMEOUTS_MAX {
                ports.entry(port).or_insert((protocol_number(own.protocol), seconds(own.idle_us)));
            }
        }
    }
    let ports = ports
        .into_iter()
        .map(|(port, (protocol, timeout))| json!({ "port-number": port, "protocol": protocol, "timeout": timeout }));
    json!({
        "udp-timeout": seconds(udp_us),
        "tcp-idle-timeout": seconds(tcp_established_us),
        "tcp-trans-open-timeout": seconds(tcp_opening_us),
        "tcp-trans-close-timeout": seconds(tcp_closing_us),
        // These two are fixed, at what RFC 5382 §4.3 and RFC 6146 §3.4 ask for.
        "tcp-in-syn-timeout": 6,
        "fragment-min-timeout": 2,
        "icmp-timeout": seconds(icmp_us),
        "per-port-timeout": ports.collect::<Vec<_>>(),
        "hold-down-timeout": seconds(pool.reuse_delay_us),
        "hold-down-max": gauge(figures.status.held_ports_max),
    })
}

/// The limit of each transport for a subscriber without a class.
fn port_quota(figures: &Figures) -> Vec<Value> {
    let PortLimits { udp, tcp, icmp } = *figures.status.subscriber_ports_max;
    let each = [(Protocol::Icmp, icmp), (Protocol::Tcp, tcp), (Protocol::Udp, udp)].into_iter();
    // A limit that the module has no number for is beyond the ports of an address anyway.
    let known = each.filter_map(|(protocol, limit)| Some((protocol, u16::try_from(limit?).ok()?)));
    known.map(|(protocol, limit)| json!({ "quota-type": protocol_number(protocol), "port-limit": limit })).collect()
}

fn policies(figures: &Figures, with_prefixes: bool) -> Vec<Value> {
    let prefixes = figures.prefixes();
    let mut algs: BTreeMap<&str, bool> = BTreeMap::new();
    for alg in &figures.algs {
        *algs.entry(&alg.name).or_default() |= alg.enabled;
    }
    let policy = |(number, pool): (u32, &Pool)| {
        let own = prefixes.iter().filter(|(policy, ..)| *policy == number);
        let addresses = own.map(|(_, _, own)| json!({ "pool-id": own.number, "external-ip-pool": own.prefix.text() }));
        let subnets = (1_u32..).zip(&pool.subscriber_prefixes);
        let subnets = subnets.map(|(number, prefix)| json!({ "match-id": number, "subnet": prefix.to_string() }));
        let nat64 = figures.status.nat64_prefixes.iter().filter(|own| own.pool.as_ref() == Some(&pool.name));
        let in_ranges = matches!(pool.allocation.as_str(), "blocks" | "deterministic");
        let mut policy = json!({
            "id": number,
            "external-ip-address-pool": addresses.collect::<Vec<_>>(),
            "port-set-restrict": { "start-port-number": pool.port_min, "end-port-number": pool.port_max },
            "address-allocation-type": if pool.pooling == Pooling::Paired { "paired" } else { "arbitrary" },
            "port-allocation-type": if in_ranges { "port-range-allocation" } else { "random" },
            "mapping-type": "eim",
            "filtering-type": filtering(pool),
            "fragment-behavior": "out-of-order",
            "timers": timers(figures, pool),
            "fragments-limit": figures.status.fragments_held_max,
            "port-quota": port_quota(figures),
            "nat64-prefixes": nat64.map(|own| json!({ "nat64-prefix": own.prefix })).collect::<Vec<_>>(),
            "algs": algs.iter().map(|(name, enabled)| json!({ "name": name, "status": enabled })).collect::<Vec<_>>(),
        });
        if let Some(policy) = policy.as_object_mut().filter(|_| with_prefixes) {
            policy.insert("subscriber-match".to_owned(), subnets.collect());
        }
        let size = pool.block_size.and_then(|size| u16::try_from(size).ok()).filter(|_| in_ranges);
        if let (Some(size), Some(policy)) = (size, policy.as_object_mut()) {
            let timeout = seconds(pool.block_idle_us.unwrap_or(0));
            policy.insert("port-set".to_owned(), json!({ "port-set-size": size, "port-set-timeout": timeout }));
        } else if let Some(policy) = policy.as_object_mut().filter(|_| in_ranges) {
            // 65,536 ports in a set are more than the module can say.
            policy.remove("port-allocation-type");
        }
        policy
    };
    figures.numbered_pools().into_iter().map(policy).collect()
}

fn statistics(figures: &Figures) -> Value {
    let Figures { status, pools, started, .. } = figures;
    let total = |of: fn(&Pool) -> u64| pools.iter().map(of).sum::<u64>();
    let used = figures.addresses_used();
    let ports_used = total(|pool| pool.ports_used.total());
    let per_pool = figures.prefixes().into_iter().map(|(_, pool, own)| {
        let addresses: Vec<&PoolAddress> = figures.addresses_of(pool, own).collect();
        let used = addresses.iter().filter(|address| is_used(address)).count();
        let ports_used: u64 = addresses.iter().map(|address| address.ports_used.total()).sum();
        let ports: u64 = addresses.iter().map(|address| address.ports_total.total()).sum();
        json!({
            "pool-id": own.number,
            "discontinuity-time": started,
            "pool-stats": { "addresses-allocated": used, "addresses-free": addresses.len() - used },
            "port-stats": { "ports-allocated": gauge(ports_used), "ports-free": gauge(ports - ports_used.min(ports)) },
        })
    });
    let per_protocol = [Protocol::Icmp, Protocol::Tcp, Protocol::Udp].map(|protocol| {
        let of = |what: &str| figures.sum(&[&format!("mappings_{what}_{protocol}")]);
        let now = of("created").saturating_sub(of("removed"));
        json!({ "protocol-id": protocol_number(protocol), "total": gauge(now) })
    });
    let ports = total(|pool| pool.ports_total.total());
    json!({
        "discontinuity-time": started,
        "traffic-statistics": {
            "sent-packets": counter(status.packets_forwarded),
            "sent-bytes": counter(status.bytes_forwarded),
            "rcvd-packets": counter(status.packets_received),
            "dropped-packets": counter(status.packets_dropped),
            "dropped-fragments": counter(figures.sum(&[
                "fragment_tiny", "fragment_overlap", "fragment_malformed", "fragment_table_full",
                "fragment_buffers_full", "fragment_timeout", "fragment_refused", "reassembly_full",
                "reassembly_quota",
            ])),
            "dropped-address-packets": counter(figures.dropped(Resource::Addresses)),
            "dropped-port-limit-packets": counter(figures.dropped(Resource::SubscriberPorts)),
            "dropped-port-packets": counter(figures.dropped(Resource::Ports)),
            "dropped-subscriber-limit-packets": counter(figures.dropped(Resource::Subscribers)),
        },
        "mappings-statistics": {
            "total-active-subscribers": gauge(status.subscribers),
            "total-address-mappings": gauge(total(|pool| pool.subscribers)),
            "total-port-mappings": gauge(status.mappings),
            "total-per-protocol": per_protocol,
        },
        "pools-stats": {
            "addresses-allocated": gauge(used),
            "addresses-free": gauge(figures.addresses.len() as u64 - used),
            "ports-stats": {
                "ports-allocated": gauge(ports_used), "ports-free": gauge(ports.saturating_sub(ports_used)),
            },
            "per-pool-stats": per_pool.collect::<Vec<_>>(),
        },
    })
}

/// The instance without its mappings. Prefixes of subscribers are in it only together with those
/// that are `passed` untranslated, because they name subscribers too.
fn instance(figures: &Figures, passed: Option<Vec<String>>) -> Value {
    let mut instance = json!({
        "id": INSTANCE,
        "name": "natrix",
        "enable": true,
        "capabilities": capabilities(),
        "type": "napt44",
        "policy": policies(figures, passed.is_some()),
        "mapping-limits": {
            "limit-subscribers": gauge(figures.status.subscribers_max),
            "limit-port-mappings": gauge(figures.status.mappings_max),
        },
        "statistics": statistics(figures),
    });
    if let (Some(passed), Some(instance)) = (passed, instance.as_object_mut()) {
        let passed = (1_u32..).zip(passed).map(|(id, prefix)| json!({ "id": id, "prefix": prefix }));
        instance.insert("nat-pass-through".to_owned(), passed.collect());
    }
    instance
}

/// The internal address as a prefix. Behind a softwire it is the address inside: ietf-dslite
/// (RFC 8513) adds the B4 only to an instance whose `per-interface-binding` is `dslite`, and this
/// one serves others too.
fn internal_prefix(mapping: &Mapping) -> String {
    match &mapping.host {
        Some(Host { inner: Some(inner), .. }) => format!("{inner}/32"),
        Some(Host { address, .. }) => format!("{address}/128"),
        None => format!("{}/32", mapping.internal.ip()),
    }
}

fn entry(index: u32, mapping: &Mapping) -> Value {
    let kind = match mapping.origin.as_deref() {
        Some("pcp" | "nat_pmp") => "dynamic-explicit",
        _ => "dynamic-implicit",
    };
    json!({
        "index": index,
        "type": kind,
        "transport-protocol": protocol_number(mapping.protocol),
        "internal-src-address": internal_prefix(mapping),
        "internal-src-port": { "start-port-number": mapping.internal.port() },
        "external-src-address": format!("{}/32", mapping.external.ip()),
        "external-src-port": { "start-port-number": mapping.external.port() },
        "lifetime": seconds(mapping.expires_in_us),
    })
}

/// The pieces of an answer on their way to a client.
struct Pieces {
    piece: Vec<u8>,
    to: mpsc::Sender<Result<Bytes, ClientError>>,
}

impl Pieces {
    fn push(&mut self, text: &str) -> Result<(), Gone> {
        self.piece.extend(text.as_bytes());
        if self.piece.len() >= CHUNK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Gone> {
        self.to.blocking_send(Ok(core::mem::take(&mut self.piece).into())).map_err(|_| Gone)
    }

    /// `"mapping-entry":[…]`, page by page.
    fn mappings(&mut self, client: &mut Client) -> Result<Result<(), Gone>, ClientError> {
        let to = self.to.clone();
        let mut count = 0;
        let sent = page_by_page::<Mapping>(client, everything(), Request::Mappings, &to, |mapping| {
            self.push(if count == 0 { "\"mapping-entry\":[" } else { "," })?;
            count += 1;
            self.push(&entry(count, &mapping).to_string())
        })?;
        Ok(sent.and_then(|()| self.push(if count == 0 { "\"mapping-entry\":[]" } else { "]" })))
    }
}

/// Answers with text that has the mappings between `head` and `tail`.
async fn with_mappings(
    api: &Api,
    actor: Actor,
    frame: impl FnOnce(&mut Client) -> Result<(String, &'static str), ClientError> + Send + 'static,
) -> Result<Response, Refused> {
    let turn = api.daemon.stream_turn()?;
    let daemon = api.daemon.clone();
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let asked = daemon.connect(actor).and_then(|mut client| {
            let (head, tail) = frame(&mut client)?;
            let mut pieces = Pieces { piece: head.into_bytes(), to: sender.clone() };
            if pieces.mappings(&mut client)?.is_ok() {
                let _ = pieces.push(tail).and_then(|()| pieces.flush());
            }
            Ok(())
        });
        if let Err(error) = asked {
            // After BEGUN, an answer that is cut off is an error for the client.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok(([(header::CONTENT_TYPE, YANG_JSON)], begun(receiver).await?).into_response())
}

/// All data of the module ietf-nat (RFC 8512), for the role `audit` with the mappings of now.
/// Without it they are left out, as RFC 8341 §3.2.4 asks for data that a user may not read; so are
/// the prefixes of subscribers without `operate` or `audit`.
#[utoipa::path(get, path = "/restconf/data/ietf-nat:nat", tag = "restconf", params(ForCase), responses(
    (status = OK, description = "Data of the module", body = Object, content_type = "application/yang-data+json"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub(crate) async fn nat(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(ForCase { case }): Query<ForCase>,
) -> Result<Response, Refused> {
    let actor = principal.actor_for(case);
    let whole = |client: &mut Client, with_prefixes: bool| {
        let figures = Figures::ask(client)?;
        let passed = with_prefixes.then(|| passed(client)).transpose()?;
        Ok(json!({ "ietf-nat:nat": { "instances": { "instance": [instance(&figures, passed)] } } }).to_string())
    };
    if !principal.permits(Role::Audit) {
        let with_prefixes = principal.sees_prefixes();
        let body = api.daemon.with(actor, move |client| whole(client, with_prefixes)).await?;
        return Ok(([(header::CONTENT_TYPE, YANG_JSON)], body).into_response());
    }
    let frame = move |client: &mut Client| {
        let mut head = whole(client, true)?;
        // The mappings are the last of the instance.
        head.truncate(head.len() - "}]}}}".len());
        head.push_str(",\"mapping-table\":{");
        Ok((head, "}}]}}}"))
    };
    with_mappings(&api, actor, frame).await
}

/// The mappings of now alone.
#[utoipa::path(
    get,
    path = "/restconf/data/ietf-nat:nat/instances/instance=1/mapping-table",
    tag = "restconf",
    params(ForCase),
    responses(
        (status = OK, description = "The mappings", body = Object, content_type = "application/yang-data+json"),
        (status = "4XX", description = "Refused", body = ErrorBody),
        (status = "5XX", description = "Failed", body = ErrorBody),
    )
)]
pub(crate) async fn mapping_table(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
    Query(ForCase { case }): Query<ForCase>,
) -> Result<Response, Refused> {
    with_mappings(&api, principal.actor_for(case), |_| Ok(("{\"ietf-nat:mapping-table\":{".to_owned(), "}}"))).await
}

/// The statistics alone, for pollers.
#[utoipa::path(
    get,
    path = "/restconf/data/ietf-nat:nat/instances/instance=1/statistics",
    tag = "restconf",
    responses(
        (status = OK, description = "The statistics", body = Object, content_type = "application/yang-data+json"),
        (status = "4XX", description = "Refused", body = ErrorBody),
        (status = "5XX", description = "Failed", body = ErrorBody),
    )
)]
pub(crate) async fn only_statistics(
    State(api): State<Api>,
    Extension(principal): Extension<Principal>,
) -> Result<Response, Refused> {
    let figures = api.daemon.with(principal.actor(), Figures::ask).await?;
    let body = json!({ "ietf-nat:statistics": statistics(&figures) }).to_string();
    Ok(([(header::CONTENT_TYPE, YANG_JSON)], body).into_response())
}

#[cfg(test)]
mod tests {
    use control::Reply;

    use super::*;

    /// Of the contract of the control protocol, with these counters.
    fn figures(counters: &[(&str, u64)]) -> Figures {
        let (mut status, mut pools) = (None, Vec::new());
        for line in include_str!("../../control/tests/replies.jsonl").lines() {
            match serde_json::from_str(line).unwrap() {
                Reply::Status(found) => status = Some(found),
                Reply::Pool(pool) => pools.push(pool),
                _ => {}
            }
        }
        Figures {
            status: status.unwrap(),
            pools,
            addresses: Vec::new(),
            algs: Vec::new(),
            counters: counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            dropped: BTreeMap::new(),
            started: String::new(),
        }
    }

    #[test]
    fn drops_because_of_limits_are_counted_by_limit() {
        // Each a power of two, so that a sum shows what it is of.
        let mut figures = figures(&[("fragment_table_full", 32), ("fragment_timeout", 64), ("filtered", 128)]);
        figures.dropped = BTreeMap::from([
            (Resource::Addresses, 1),
            (Resource::SubscriberPorts, 6),
            (Resource::Ports, 8),
            (Resource::Subscribers, 16),
            (Resource::Fragments, 32),
            (Resource::Other, 256),
        ]);
        let found = statistics(&figures);
        for (name, wanted) in [
            ("dropped-address-packets", "1"),
            ("dropped-port-limit-packets", "6"),
            ("dropped-port-packets", "8"),
            ("dropped-subscriber-limit-packets", "16"),
            ("dropped-fragments", "96"),
        ] {
            assert_eq!(found["traffic-statistics"][name], wanted, "{name}");
        }
    }

    #[test]
    fn a_policy_keeps_its_number_while_others_come_and_go() {
        let mut figures = figures(&[]);
        let pool = figures.pools[0].clone();
        let named = |name: &str| Pool { name: name.to_owned(), ..pool.clone() };
        let numbers = |figures: &Figures| -> BTreeMap<String, u64> {
            let numbered = figures.numbered_pools().into_iter().map(|(_, pool)| pool.name.clone());
            numbered.zip(policies(figures, false).iter().map(|policy| policy["id"].as_u64().unwrap())).collect()
        };
        figures.pools = ["first", "public", "last"].map(named).to_vec();
        let before = numbers(&figures);
        assert_eq!(before.values().collect::<BTreeSet<_>>().len(), 3, "{before:?}");
        assert!(before.values().all(|number| (1..=2_147_483_647).contains(number)), "{before:?}");
        figures.pools.remove(0);
        figures.pools.insert(1, named("another"));
        let after = numbers(&figures);
        assert_eq!((after["public"], after["last"]), (before["public"], before["last"]));
        // Whatever a release changes: managers keep these numbers.
        assert_eq!(number_of_name("public"), 952_005_016);
        // Of two with one number, the second has the next.
        figures.pools = ["public", "public"].map(named).to_vec();
        let twice: Vec<u32> = figures.numbered_pools().iter().map(|(number, _)| *number).collect();
        assert_eq!(twice, [number_of_name("public"), number_of_name("public") + 1]);
    }

    #[test]
    fn limits_and_prefixes_are_those_of_the_configuration() {
        let mut figures = figures(&[]);
        figures.status.nat64_prefixes[0].pool = Some(figures.pools[0].name.clone());
        let policies = policies(&figures, false);
        // ICMP has no limit there.
        let quota = json!([{ "quota-type": 6, "port-limit": 1000 }, { "quota-type": 17, "port-limit": 2000 }]);
        for policy in &policies {
            assert_eq!((&policy["port-quota"], &policy["fragments-limit"]), (&quota, &json!(2048)));
        }
        assert_eq!(policies[0]["nat64-prefixes"], json!([{ "nat64-prefix": "64:ff9b::/96" }]));
        assert_eq!(policies[0]["port-set"], json!({ "port-set-size": 512, "port-set-timeout": 120 }));
        figures.status.nat64_prefixes[0].pool = Some("another".to_owned());
        assert_eq!(super::policies(&figures, false)[0]["nat64-prefixes"], json!([]));
        let passed = ["192.168.1.0/24", "192.168.2.0/24"].map(str::to_owned).to_vec();
        let wanted = json!([{ "id": 1, "prefix": "192.168.1.0/24" }, { "id": 2, "prefix": "192.168.2.0/24" }]);
        assert_eq!(instance(&figures, Some(passed))["nat-pass-through"], wanted);
        assert_eq!(instance(&figures, None).get("nat-pass-through"), None);
    }

    #[test]
    fn each_port_with_a_timer_of_its_own_has_it() {
        let figures = figures(&[]);
        let timers = timers(&figures, &figures.pools[0]);
        let ports = timers["per-port-timeout"].as_array().unwrap();
        // UDP port 53 has 10 s; TCP ports 5000 to 5010 have a day.
        assert_eq!(ports[0], json!({ "port-number": 53, "protocol": 17, "timeout": 10 }));
        let of_tcp = (5000..=5010).map(|port| json!({ "port-number": port, "protocol": 6, "timeout": 86_400 }));
        assert_eq!(ports[1..], of_tcp.collect::<Vec<_>>());
        assert_eq!(timers["hold-down-max"], 500_000);
    }

    #[test]
    fn addresses_become_few_prefixes() {
        let run = |first: &str, count: u32| {
            let first: Ipv4Addr = first.parse().unwrap();
            (0..count).map(move |step| Ipv4Addr::from_bits(first.to_bits() + step)).collect::<Vec<_>>()
        };
        for (addresses, wanted) in [
            (run("203.0.113.0", 64), &["203.0.113.0/26"][..]),
            (run("203.0.113.1", 4), &["203.0.113.1/32", "203.0.113.2/31", "203.0.113.4/32"]),
            (
                [run("192.0.2.9", 1), run("203.0.113.8", 3)].concat(),
                &["192.0.2.9/32", "203.0.113.8/31", "203.0.113.10/32"],
            ),
            (Vec::new(), &[]),
        ] {
            let found = prefixes(addresses.clone());
            assert_eq!(found.iter().map(|prefix| prefix.text()).collect::<Vec<_>>(), wanted);
            assert!(
                addresses.iter().all(|address| found.iter().filter(|prefix| prefix.contains(*address)).count() == 1)
            );
        }
    }
}
