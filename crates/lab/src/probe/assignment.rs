//! Which ports and addresses are given: kept or not, in order or at random, from which range, shared or not (RFC 4787 §4, RFC 6056).

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::crowd;
use super::crowd::Crowd;
use super::crowd::Shared;
use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;

/// Flows of one host whose ports are compared.
const FLOWS: usize = 32;
/// Hosts whose ports are compared with one another.
const HOSTS: usize = 8;
/// 512 flows towards each server, among which two with the same external endpoint are looked for. A NAT that shares ports at random among 258 048 external
/// endpoints (four addresses) has 15 pairs of such flows then, and none of them once in three million times; with two servers it would be once in three.
const CROWD: crowd::Size = crowd::Size { hosts: 64, first_port: 30_000, ports: 8, servers: 6 };
/// Pairs that are told.
const PAIRS_TOLD: usize = 16;
/// Differences of neighbours up to this are steps, not chance.
const STEP_MAX: i32 = 4;

/// Everything about ports and addresses.
///
/// # Errors
/// When packets can not be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    let server = prober.remote(0, 1000);
    let mut hosts = Vec::new();
    // In no order, as hosts choose them (RFC 6056), each once, of either parity.
    let first = prober.random() % 1_000;
    let ports: Vec<u16> = (0..FLOWS as u32).map(|number| (20_000 + first + (number * 7_919) % 30_011) as u16).collect();
    for _ in 0..HOSTS {
        let host = prober.new_host();
        let flows: Vec<_> = ports.iter().map(|port| (SocketAddrV4::new(host, *port), server)).collect();
        let externals = prober.open_many(Protocol::Udp, &flows)?;
        hosts.push(flows.iter().zip(externals).filter_map(|((from, _), to)| Some((*from, to?))).collect::<Vec<_>>());
    }
    let Some(first) = hosts.first().filter(|first| first.len() == FLOWS) else {
        return Ok(vec![Finding::new("ports.preservation", "not all flows get out")]);
    };
    let evidence = || list(first);
    let kept = first.iter().filter(|(from, to)| from.port() == to.port()).count();
    let is_kept = kept * 10 >= FLOWS * 9;
    let rivals: Vec<_> = hosts[1..].iter().flatten().filter(|(from, to)| from.port() != to.port()).copied().collect();
    let mut findings = Vec::new();
    let preserved = match kept {
        _ if is_kept && rivals.is_empty() => "kept, also when another host has the same",
        _ if is_kept => "kept, another one when it is taken",
        0..=2 => "not kept",
        _ => "kept sometimes",
    };
    findings.push(
        Finding::new("ports.preservation", preserved)
            .seen(format!(
                "{kept} of {FLOWS} ports of the first host were kept; {} of those after it were not",
                rivals.len()
            ))
            .seen_all(evidence()),
    );
    let same_parity = hosts.iter().flatten().filter(|(from, to)| from.port() % 2 == to.port() % 2).count();
    let all = hosts.iter().map(Vec::len).sum::<usize>();
    let has_parity = same_parity == all;
    findings.push(
        Finding::new("ports.parity", if has_parity { "kept" } else { "not kept" })
            .seen(format!("{same_parity} of {all} external ports are even or odd as the internal one"))
            .judged(
                "RFC 4787 REQ-4",
                "parity kept (RFC 7857 §8: it may be off)",
                if has_parity { Verdict::Met } else { Verdict::NotApplicable },
            ),
    );
    findings.push(order(first, &rivals, is_kept));
    findings.push(range(&hosts));
    findings.push(low_ports(prober)?);
    findings.push(overloading(prober)?);
    findings.push(pooling(prober)?);
    Ok(findings)
}

fn list(flows: &[(SocketAddrV4, SocketAddrV4)]) -> Vec<String> {
    flows.iter().map(|(from, to)| format!("{from} leaves as {to}")).collect()
}

/// Whether the next port can be told from those before.
fn order(first: &[(SocketAddrV4, SocketAddrV4)], rivals: &[(SocketAddrV4, SocketAddrV4)], is_kept: bool) -> Finding {
    let steps: Vec<i32> = if is_kept {
        // Only where it had to be another one something was chosen.
        rivals.iter().map(|(from, to)| i32::from(to.port()) - i32::from(from.port())).collect()
    } else {
        first.windows(2).map(|pair| i32::from(pair[1].1.port()) - i32::from(pair[0].1.port())).collect()
    };
    let mut counts = BTreeMap::new();
    for step in &steps {
        *counts.entry(*step).or_insert(0_usize) += 1;
    }
    let common = counts.iter().max_by_key(|(_, count)| **count).map(|(step, count)| (*step, *count));
    let short = steps.iter().filter(|step| step.abs() <= STEP_MAX && **step != 0).count();
    let is_sequential = steps.len() >= 8 && short * 4 >= steps.len() * 3;
    let (value, verdict) = match steps.len() {
        0..8 => ("as the hosts choose them", Verdict::NotApplicable),
        _ if is_sequential => ("one after the other", Verdict::NotMet),
        // Without steps, but by a formula: the same distance again and again.
        _ if common.is_some_and(|(_, count)| count * 2 > steps.len()) => ("by a fixed distance", Verdict::NotMet),
        _ => ("random", Verdict::Met),
    };
    let requirement = if is_kept { "RFC 7857 §9" } else { "RFC 6888 REQ-15" };
    Finding::new("ports.order", value)
        .seen(format!(
            "{} {}, {short} of {STEP_MAX} or less; the commonest is {common:?} (distance, how often)",
            steps.len(),
            if is_kept { "distances from the port asked for" } else { "distances from one port to the next" },
        ))
        .judged(requirement, "ports hard to guess", verdict)
}

/// From where to where, and whether each host has a range of its own.
fn range(hosts: &[Vec<(SocketAddrV4, SocketAddrV4)>]) -> Finding {
    let ports = |flows: &[(SocketAddrV4, SocketAddrV4)]| {
        let ports = flows.iter().map(|(_, to)| to.port());
        (ports.clone().min().unwrap_or(0), ports.max().unwrap_or(0))
    };
    let spans: Vec<_> = hosts.iter().map(|flows| ports(flows)).collect();
    let (low, high) = ports(&hosts.concat());
    let widest = spans.iter().map(|(low, high)| high - low).max().unwrap_or(0);
    // Chance spreads 32 ports over nine tenths of what there is.
    let value = if widest < 8_192 && u32::from(widest) * 2 < u32::from(high - low) {
        format!("each host has a range of its own, {} ports or more", u32::from(widest) + 1)
    } else {
        "one for all hosts".to_owned()
    };
    let mut finding = Finding::new("ports.range", value).seen(format!("all: {low} to {high}"));
    for (flows, (low, high)) in hosts.iter().zip(spans) {
        if let Some((from, to)) = flows.first() {
            finding = finding.seen(format!("{} at {}: {low} to {high}", from.ip(), to.ip()));
        }
    }
    finding
}

/// RFC 4787 §4.2.1: ports below 1024 map to such, and others to others.
fn low_ports(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let server = prober.remote(0, 1000);
    let mut evidence = Vec::new();
    let mut apart = [true; 2];
    for (class, ports) in [[500_u16, 123, 1_023, 53], [1_024, 5_060, 40_000, 65_535]].into_iter().enumerate() {
        for port in ports {
            let internal = SocketAddrV4::new(prober.fresh_host(), port);
            let Some(external) = prober.open(Protocol::Udp, internal, server)? else { continue };
            apart[class] &= (external.port() < 1_024) == (port < 1_024);
            evidence.push(format!("{internal} leaves as {external}"));
        }
    }
    let value = match apart {
        [true, true] => "ports below 1024 stay below, others do not",
        [false, true] => "all lead to 1024 or more",
        [true, false] => "all lead below 1024",
        [false, false] => "mixed",
    };
    Ok(Finding::new("ports.low", value).seen_all(evidence).judged(
        "RFC 4787 REQ-3a",
        "ports below 1024 lead below 1024, others to others",
        Verdict::of(apart == [true, true]),
    ))
}

/// RFC 4787 §4.2.1: whether two inside endpoints have the same external one at the same time.
fn overloading(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let Crowd { flows, servers, externals, shared } = crowd::gather(prober, Protocol::Udp, CROWD)?;
    let value = if shared.is_empty() { "none" } else { "external endpoints are shared" };
    let is_met = Verdict::of(shared.is_empty());
    let pairs = shared.iter().take(PAIRS_TOLD);
    let words = |pair: &Shared| {
        let Shared { external, first, second } = pair;
        format!("{} and {} leave as {external}", first.internal, second.internal)
    };
    Ok(Finding::new("ports.overloading", value)
        .seen(format!("{flows} flows to {servers} servers, {externals} external endpoints"))
        .seen_all(pairs.map(words).collect())
        .judged("RFC 4787 REQ-3", "no port overloading", is_met))
}

/// RFC 4787 §4.1: whether all flows of a host have the same external address.
fn pooling(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let mut everywhere: BTreeSet<Ipv4Addr> = BTreeSet::new();
    let mut evidence = Vec::new();
    let mut is_paired = true;
    let mut keeps_ports = true;
    // Neighbours may have the same address by a formula.
    for host in prober.far_hosts(HOSTS) {
        let mut addresses = BTreeSet::new();
        for (protocol, flows) in [(Protocol::Udp, 16), (Protocol::Tcp, 8), (Protocol::Icmp, 4)] {
            for number in 0..flows {
                let internal = SocketAddrV4::new(host, 25_000 + number as u16);
                let server = prober.remote(number, 1000);
                let Some(external) = prober.open(protocol, internal, server)? else { continue };
                addresses.insert(*external.ip());
                keeps_ports &= external.port() == internal.port();
            }
        }
        evidence.push(format!("{host} leaves as {addresses:?}"));
        // Whose flows do not get out says nothing of the others.
        is_paired &= addresses.len() <= 1;
        everywhere.extend(addresses);
    }
    let seen = prober.external_addresses();
    evidence.push(format!("of all flows until now {} external addresses were seen", seen.addresses));
    let is_own = everywhere.len() == HOSTS && keeps_ports && !seen.is_shared;
    let (value, verdict) = match everywhere.len() {
        0 => ("nothing gets out", Verdict::Undecided),
        _ if seen.addresses == 1 => ("one external address", Verdict::NotApplicable),
        _ if is_paired && is_own => ("an address for each host, ports as they are", Verdict::Met),
        _ if is_paired => ("paired", Verdict::Met),
        _ => ("arbitrary", Verdict::NotMet),
    };
    Ok(Finding::new("pooling", value)
        .seen_all(evidence)
        .judged("RFC 4787 REQ-2", "paired recommended", verdict)
        .judged("RFC 6888 REQ-2", "paired, across all protocols", verdict))
}
