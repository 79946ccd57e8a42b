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

/// A flow by its inside and its external endpoint.
type Flow = (SocketAddrV4, SocketAddrV4);

/// Flows of one host whose ports are compared.
const FLOWS: usize = 32;
/// Hosts whose ports are compared with one another.
const HOSTS: usize = 8;
/// 512 flows towards each server, among which two with the same external endpoint are looked for. A NAT that shares ports at random among 258 048 external
/// endpoints (four addresses) has 15 pairs of such flows then, and none of them once in three million times; with two servers it would be once in three.
const CROWD: crowd::Size = crowd::Size { hosts: 64, first_port: 30_000, ports: 8, servers: 6 };
/// Pairs that are told.
const PAIRS_TOLD: usize = 16;
/// Of fewer pairs of ports nothing is said.
const PAIRS_MIN: usize = 32;
/// Hosts among which some with the same external address are looked for.
const MANY_HOSTS: usize = 256;
/// Flows of one host that hold more than any block of ports does, so many at once, from this port on.
const FLOWS_OF_ONE: u16 = 17 * FLOWS_AT_ONCE;
const FLOWS_AT_ONCE: u16 = 256;
const FIRST_OF_ONE: u16 = 30_000;
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
    let first_host = prober.new_host();
    hosts.extend(opened(prober, &[first_host], &ports, server)?);
    let others: Vec<_> = (1..HOSTS).map(|_| prober.new_host()).collect();
    hosts.extend(opened(prober, &others, &ports, server)?);
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
    let neighbours = match Neighbours::of(&hosts) {
        few if few.pairs < PAIRS_MIN => {
            hosts = of_one_address(prober, &ports, server)?;
            Neighbours::of(&hosts)
        }
        enough => enough,
    };
    findings.push(range(&hosts, &neighbours));
    findings.push(low_ports(prober)?);
    findings.push(overloading(prober)?);
    findings.push(pooling(prober, neighbours.have_ranges())?);
    Ok(findings)
}

/// A flow of each of these hosts from each of these ports, in turns: one who gives out ports in order gives none of the hosts a row of them. By host, as far
/// as they get out.
fn opened(
    prober: &mut Prober<'_>,
    hosts: &[Ipv4Addr],
    ports: &[u16],
    server: SocketAddrV4,
) -> Result<Vec<Vec<Flow>>, ProbeError> {
    let of_port = |port: &u16| hosts.iter().map(|host| (SocketAddrV4::new(*host, *port), server)).collect::<Vec<_>>();
    let flows: Vec<_> = ports.iter().flat_map(of_port).collect();
    let externals = prober.open_many(Protocol::Udp, &flows)?;
    let got: Vec<Flow> = flows.iter().zip(externals).filter_map(|((from, _), to)| Some((*from, to?))).collect();
    Ok(hosts.iter().map(|host| got.iter().filter(|(from, _)| from.ip() == host).copied().collect()).collect())
}

/// Flows of hosts that have the same external address: neighbours may each have another. None where none are found among many.
fn of_one_address(prober: &mut Prober<'_>, ports: &[u16], server: SocketAddrV4) -> Result<Vec<Vec<Flow>>, ProbeError> {
    // Where there are few hosts the same come again.
    let many: BTreeSet<Ipv4Addr> = (0..MANY_HOSTS).map(|_| prober.new_host()).collect();
    let many: Vec<Ipv4Addr> = many.into_iter().collect();
    let mut by_address: BTreeMap<Ipv4Addr, Vec<Ipv4Addr>> = BTreeMap::new();
    for (from, to) in opened(prober, &many, &ports[..1], server)?.concat() {
        by_address.entry(*to.ip()).or_default().push(*from.ip());
    }
    let together = by_address.into_values().max_by_key(Vec::len).filter(|hosts| hosts.len() > 1).unwrap_or_default();
    opened(prober, &together[..together.len().min(HOSTS)], ports, server)
}

/// Ports beside each other, at each external address that several hosts have: whose they are.
#[derive(Clone, Debug, Default)]
struct Neighbours {
    /// Ports that have a next one, and those of them whose next one is the same host's.
    pairs: usize,
    same: usize,
    /// Rows of ports between which no other host has any, and from the first to the last of the longest.
    rows: usize,
    longest: u16,
    /// Hosts that have them.
    hosts: usize,
}

impl Neighbours {
    fn of(hosts: &[Vec<Flow>]) -> Neighbours {
        let mut by_address: BTreeMap<Ipv4Addr, BTreeMap<u16, Ipv4Addr>> = BTreeMap::new();
        for (from, to) in hosts.iter().flatten() {
            by_address.entry(*to.ip()).or_default().insert(to.port(), *from.ip());
        }
        let mut found = Neighbours::default();
        let mut owners = BTreeSet::new();
        for ports in by_address.into_values() {
            let here: BTreeSet<Ipv4Addr> = ports.values().copied().collect();
            if here.len() < 2 {
                continue;
            }
            owners.extend(here);
            let ports: Vec<(u16, Ipv4Addr)> = ports.into_iter().collect();
            found.pairs += ports.len() - 1;
            for row in ports.chunk_by(|one, next| one.1 == next.1) {
                found.same += row.len() - 1;
                found.rows += 1;
                found.longest = found.longest.max(row[row.len() - 1].0 - row[0].0);
            }
        }
        found.hosts = owners.len();
        found
    }

    /// Whether hosts have ports of their own beside each other. By chance the next port of two hosts is the same one's every second time, and of more less
    /// often: of 32 pairs nine tenths never.
    fn have_ranges(&self) -> bool {
        self.pairs >= PAIRS_MIN && self.same * 10 >= self.pairs * 8
    }
}

fn list(flows: &[Flow]) -> Vec<String> {
    flows.iter().map(|(from, to)| format!("{from} leaves as {to}")).collect()
}

/// Whether the next port can be told from those before.
fn order(first: &[Flow], rivals: &[Flow], is_kept: bool) -> Finding {
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
            "{} {}, {short} of {STEP_MAX} or less{}",
            steps.len(),
            if is_kept { "distances from the port asked for" } else { "distances from one port to the next" },
            common.map_or_else(String::new, |(step, count)| format!("; the commonest, {step}, {count} times")),
        ))
        .judged(requirement, "ports hard to guess", verdict)
}

/// From where to where, and whether each host has a range of its own.
fn range(hosts: &[Vec<Flow>], neighbours: &Neighbours) -> Finding {
    let Neighbours { pairs, same, rows, longest, hosts: together } = *neighbours;
    let ports = u32::from(longest) + 1;
    let value = match neighbours.have_ranges() {
        _ if pairs < PAIRS_MIN => "not known: no two hosts have the same external address".to_owned(),
        true if rows <= together => format!("each host has a range of its own, {ports} ports or more"),
        true => format!("each host has ranges of its own, of {ports} ports or more"),
        false => "one for all hosts".to_owned(),
    };
    let told = hosts.iter().filter_map(|flows| {
        let ports = flows.iter().map(|(_, to)| to.port());
        let (low, high) = (ports.clone().min()?, ports.max()?);
        let (from, to) = flows.first()?;
        Some(format!("{} at {}: {low} to {high}", from.ip(), to.ip()))
    });
    Finding::new("ports.range", value)
        .seen(format!(
            "{same} of {pairs} ports of {together} hosts at the same addresses have one of the same host next to them"
        ))
        .seen_all(told.collect())
}

/// RFC 4787 §4.2.1: ports below 1024 map to such, and others to others.
fn low_ports(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let server = prober.remote(0, 1000);
    let mut evidence = Vec::new();
    // Whether all of them that get out stay where they are; None while none does.
    let mut apart: [Option<bool>; 2] = [None; 2];
    for (class, ports) in [[500_u16, 123, 1_023, 53], [1_024, 5_060, 40_000, 65_535]].into_iter().enumerate() {
        for port in ports {
            let internal = SocketAddrV4::new(prober.fresh_host(), port);
            let Some(external) = prober.open(Protocol::Udp, internal, server)? else {
                evidence.push(format!("{internal} does not get out"));
                continue;
            };
            apart[class] = Some(apart[class].unwrap_or(true) && (external.port() < 1_024) == (port < 1_024));
            evidence.push(format!("{internal} leaves as {external}"));
        }
    }
    let (value, verdict) = match apart {
        [Some(true), Some(true)] => ("ports below 1024 stay below, others do not", Verdict::Met),
        [Some(false), Some(true)] => ("all lead to 1024 or more", Verdict::NotMet),
        [Some(true), Some(false)] => ("all lead below 1024", Verdict::NotMet),
        [Some(false), Some(false)] => ("mixed", Verdict::NotMet),
        [Some(false), None] => ("ports below 1024 lead elsewhere; of others none gets out", Verdict::NotMet),
        [None, Some(false)] => ("ports from 1024 on lead below; of others none gets out", Verdict::NotMet),
        [None, _] => ("not known: from ports below 1024 nothing gets out", Verdict::Undecided),
        [_, None] => ("not known: from ports from 1024 on nothing gets out", Verdict::Undecided),
    };
    let asks = "ports below 1024 lead below 1024, others to others";
    Ok(Finding::new("ports.low", value).seen_all(evidence).judged("RFC 4787 REQ-3a", asks, verdict))
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

/// External addresses of ever more flows of one host, until there is a second one, or the host gets no more.
fn addresses_of_many(prober: &mut Prober<'_>, evidence: &mut Vec<String>) -> Result<BTreeSet<Ipv4Addr>, ProbeError> {
    let (host, server) = (prober.new_host(), prober.remote(0, 1000));
    let mut addresses = BTreeSet::new();
    let (mut count, mut is_refused) = (0, false);
    while count < FLOWS_OF_ONE && addresses.len() < 2 && !is_refused {
        let flows: Vec<_> = (count..count + FLOWS_AT_ONCE)
            .map(|number| (SocketAddrV4::new(host, FIRST_OF_ONE + number), server))
            .collect();
        let externals = prober.open_many(Protocol::Udp, &flows)?;
        is_refused = externals.contains(&None);
        addresses.extend(externals.into_iter().flatten().map(|external| *external.ip()));
        count += FLOWS_AT_ONCE;
    }
    let refused = if is_refused { ", of which some get no port" } else { "" };
    evidence.push(format!("{count} flows of {host}{refused} leave as {}", list_of(&addresses)));
    Ok(addresses)
}

fn list_of(addresses: &BTreeSet<Ipv4Addr>) -> String {
    let told: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if told.is_empty() { "nothing".to_owned() } else { told.join(", ") }
}

/// RFC 4787 §4.1: whether all flows of a host have the same external address. Where hosts have ranges, few flows are in one of them, whose address says
/// nothing of the next range.
fn pooling(prober: &mut Prober<'_>, have_ranges: bool) -> Result<Finding, ProbeError> {
    let mut everywhere: BTreeSet<Ipv4Addr> = BTreeSet::new();
    let mut evidence = Vec::new();
    let mut is_paired = true;
    let mut compared = 0;
    let mut keeps_ports = true;
    // Neighbours may have the same address by a formula.
    for host in prober.far_hosts(HOSTS) {
        let (mut addresses, mut flows_out) = (BTreeSet::new(), 0);
        for (protocol, flows) in [(Protocol::Udp, 16), (Protocol::Tcp, 8), (Protocol::Icmp, 4)] {
            for number in 0..flows {
                let internal = SocketAddrV4::new(host, 25_000 + number as u16);
                let server = prober.remote(number, 1000);
                let Some(external) = prober.open(protocol, internal, server)? else { continue };
                addresses.insert(*external.ip());
                flows_out += 1;
                keeps_ports &= external.port() == internal.port();
            }
        }
        evidence.push(format!("{host} leaves as {} by {flows_out} flows", list_of(&addresses)));
        // Whose flows do not get out, or only one, says nothing of the others.
        compared += usize::from(flows_out > 1);
        is_paired &= addresses.len() <= 1;
        everywhere.extend(addresses);
    }
    if have_ranges && is_paired && prober.external_addresses().addresses > 1 {
        is_paired = addresses_of_many(prober, &mut evidence)?.len() <= 1;
    }
    let seen = prober.external_addresses();
    evidence.push(format!("of all flows until now {} external addresses were seen", seen.addresses));
    let is_own = everywhere.len() == HOSTS && keeps_ports && !seen.is_shared;
    let (value, verdict) = match everywhere.len() {
        0 => ("nothing gets out", Verdict::Undecided),
        _ if seen.addresses == 1 => ("one external address", Verdict::NotApplicable),
        _ if compared == 0 => ("not known: no host gets two flows out", Verdict::Undecided),
        _ if is_paired && is_own => ("an address for each host, ports as they are", Verdict::Met),
        _ if is_paired => ("paired", Verdict::Met),
        _ => ("arbitrary", Verdict::NotMet),
    };
    Ok(Finding::new("pooling", value)
        .seen_all(evidence)
        .judged("RFC 4787 REQ-2", "paired recommended", verdict)
        .judged("RFC 6888 REQ-2", "paired, across all protocols", verdict))
}
