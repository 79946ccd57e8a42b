//! Which ports are given: kept or not, in order or at random, shared or not (RFC 4787 §4, RFC
//! 6056). Beside it what is found of the same flows: ranges, and the addresses of a host.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::BTreeMap;

use super::crowd;
use super::crowd::Crowd;
use super::crowd::Shared;
use super::finding::Finding;
use super::finding::Verdict;
use super::low_ports;
use super::pooling;
use super::prober::ProbeError;
use super::prober::Prober;
use super::ranges;
use super::seen::Protocol;

/// Flows of one host whose ports are compared.
const FLOWS: usize = 32;
/// Fewer flows of a host would show nothing.
const FLOWS_MIN: usize = 8;
/// Neighbours whose ports are compared with one another.
const NEAR: usize = 4;
/// Hosts far from one another whose ports are.
const FAR: usize = 8;
/// 512 flows towards each server, among which two with the same external endpoint are looked for. A
/// NAT that shares ports at random among 258 048 external endpoints (four addresses) has 15 pairs
/// of such flows then, and none of them once in three million times; with two servers it would be
/// once in three.
const CROWD: crowd::Size = crowd::Size { hosts: 64, first_port: 30_000, ports: 8, servers: 6 };
/// The most pairs shown.
const PAIRS_REPORTED: usize = 16;
/// Differences of neighbours up to this are steps, not chance.
const STEP_MAX: i32 = 4;

/// Everything about ports and addresses.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    // In no order, as hosts choose them (RFC 6056), each once, of either parity.
    let first = prober.random() % 1_000;
    let ports: Vec<u16> = (0..FLOWS as u32).map(|number| (20_000 + first + (number * 7_919) % 30_011) as u16).collect();
    let near: Vec<Ipv4Addr> = (0..NEAR).map(|_| prober.new_host()).collect();
    // Neighbours may have the same address, or the same ports of different ones, by a formula.
    let far = prober.far_hosts(FAR);
    let (alone, others) = near.split_at(1);
    // The order of ports is seen of one host by itself; who gives them one after the other gives
    // none of the others a range of its own when they ask in turn.
    let mut hosts = opened(prober, alone, &ports)?;
    hosts.extend(opened(prober, &[others, &far].concat(), &ports)?);
    let mut findings = match hosts.first().filter(|first| first.len() >= FLOWS_MIN) {
        Some(first) => one_by_one(first, &hosts),
        None => vec![Finding::new("ports.preservation", "not known: too few flows of a host get out")],
    };
    let (range, has_ranges) = ranges::find(&hosts);
    findings.push(range);
    findings.push(low_ports::find(prober)?);
    findings.push(overloading(prober)?);
    let asked: Vec<_> = far.into_iter().zip(hosts[NEAR..].iter().map(Vec::as_slice)).collect();
    findings.push(pooling::find(prober, &asked, has_ranges)?);
    Ok(findings)
}

/// The flows of each of these hosts that get out; the hosts take turns.
fn opened(
    prober: &mut Prober<'_>,
    hosts: &[Ipv4Addr],
    ports: &[u16],
) -> Result<Vec<Vec<(SocketAddrV4, SocketAddrV4)>>, ProbeError> {
    let server = prober.remote(0, 1000);
    let flows: Vec<_> =
        ports.iter().flat_map(|port| hosts.iter().map(move |host| (SocketAddrV4::new(*host, *port), server))).collect();
    let mut found = vec![Vec::new(); hosts.len()];
    for (place, external) in prober.open_many(Protocol::Udp, &flows)?.into_iter().enumerate() {
        found[place % hosts.len()].extend(external.map(|external| (flows[place].0, external)));
    }
    Ok(found)
}

/// What is seen of each port by itself: kept or not, even or odd, before which other.
fn one_by_one(first: &[(SocketAddrV4, SocketAddrV4)], hosts: &[Vec<(SocketAddrV4, SocketAddrV4)>]) -> Vec<Finding> {
    let evidence = || list(first);
    let kept = first.iter().filter(|(from, to)| from.port() == to.port()).count();
    let is_kept = kept * 10 >= first.len() * 9;
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
                "{kept} of {} ports of the first host were kept; {} of those after it were not",
                first.len(),
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
    findings
}

fn list(flows: &[(SocketAddrV4, SocketAddrV4)]) -> Vec<String> {
    flows.iter().map(|(from, to)| format!("{from} leaves as {to}")).collect()
}

/// Whether the next port can be predicted from earlier ones.
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
            "{} {}, {short} of {STEP_MAX} or less; {}",
            steps.len(),
            if is_kept { "distances from the port asked for" } else { "distances from one port to the next" },
            common
                .map_or("none is there".to_owned(), |(step, count)| format!("the commonest is {step}, {count} times")),
        ))
        .judged(requirement, "ports hard to guess", verdict)
}

/// RFC 4787 §4.2.1: whether two inside endpoints have the same external one at the same time.
fn overloading(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let Crowd { flows, servers, externals, shared } = crowd::gather(prober, Protocol::Udp, CROWD)?;
    let value = if shared.is_empty() { "none" } else { "external endpoints are shared" };
    let is_met = Verdict::of(shared.is_empty());
    let pairs = shared.iter().take(PAIRS_REPORTED);
    let words = |pair: &Shared| {
        let Shared { external, first, second } = pair;
        format!("{} and {} leave as {external}", first.internal, second.internal)
    };
    Ok(Finding::new("ports.overloading", value)
        .seen(format!("{flows} flows to {servers} servers, {externals} external endpoints"))
        .seen_all(pairs.map(words).collect())
        .judged("RFC 4787 REQ-3", "no port overloading", is_met))
}
