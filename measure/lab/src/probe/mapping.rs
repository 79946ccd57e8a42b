//! Which mapping a flow gets: by its inside endpoint only, or by where it goes too (RFC 4787 §4.1).
//!
//! A NAT that keeps ports looks endpoint-independent as long as no other host has the port *at the
//! server that is asked*. A host that has it at the first server is no rival: the tested host gets
//! another port there at once, and has it everywhere. So each host is tested with a port of its
//! own, and with one that another host has taken before, at one server after the other:
//!
//! ```text
//!   rival:5000 -> server 2   leaves as :5000
//!   host:5000  -> server 1   leaves as :5000   ◄─ no host has it there
//!   host:5000  -> server 2   leaves as :28758  ◄─ another port: it depends on the destination
//! ```
//!
//! With several external addresses the rival may be at another one. So in the end two hosts are
//! looked for in a crowd that have the same external endpoint towards different servers, and one of
//! them sends to the server of the other.

use core::net::SocketAddrV4;

use super::crowd;
use super::crowd::Crowd;
use super::crowd::Shared;
use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;

/// What an external endpoint depends on besides the inside endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dependence {
    /// On nothing.
    Endpoint,
    /// On the server's address.
    Address,
    /// On its address and port.
    AddressAndPort,
}

impl Dependence {
    /// In the words of RFC 4787.
    pub const fn words(self) -> &'static str {
        match self {
            Dependence::Endpoint => "endpoint-independent",
            Dependence::Address => "address-dependent",
            Dependence::AddressAndPort => "address-and-port-dependent",
        }
    }
}

/// How often each question is asked, with a rival at another server each time: chance may give two
/// flows the same port once, not always.
const ROUNDS: usize = 3;
/// Hosts of the crowd for each of two servers: so many that some meet another one at one of 256
/// external addresses.
const HOSTS: u32 = 64;
/// Pairs of the crowd that are asked at most.
const PAIRS: usize = 4;

/// Mapping of one protocol.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>, protocol: Protocol) -> Result<Finding, ProbeError> {
    let servers = [prober.remote(0, 1000), prober.remote(0, 1001), prober.remote(1, 1000)];
    let mut flows = Flows { prober, protocol, last_port: 0, is_untranslated: false, evidence: Vec::new() };
    let mut alone = None;
    let mut beside = None;
    for server in servers.into_iter().cycle().take(ROUNDS) {
        let internal = flows.prober.fresh();
        alone = alone.max(flows.one(internal, servers)?);
        // Another host takes the port first, towards one of them.
        let other = SocketAddrV4::new(flows.prober.new_host(), internal.port() + 1);
        let rival = SocketAddrV4::new(flows.prober.new_host(), other.port());
        if flows.open(rival, server)?.is_some() {
            flows.evidence.push("and then:".to_owned());
        }
        beside = beside.max(flows.one(other, servers)?);
    }
    // A rival at the third server shows no more than that its address matters.
    if alone.max(beside).is_some_and(|class| class < Dependence::AddressAndPort) {
        beside = beside.max(flows.crowded()?);
    }
    let Flows { is_untranslated, evidence, .. } = flows;
    let name = format!("mapping.{}", protocol.name());
    let Some(worst) = alone.max(beside) else {
        return Ok(Finding::new(name, "nothing gets out").seen_all(evidence));
    };
    let value = match () {
        () if is_untranslated => "not translated".to_owned(),
        () if alone < beside => format!("{}, once another host has the port", worst.words()),
        () => worst.words().to_owned(),
    };
    let (requirement, asks) = match protocol {
        Protocol::Udp => ("RFC 4787 REQ-1", "endpoint-independent mapping"),
        Protocol::Tcp => ("RFC 5382 REQ-1", "endpoint-independent mapping"),
        Protocol::Icmp => ("RFC 5508 REQ-1a", "query mapping independent of the server"),
    };
    Ok(Finding::new(name, value).seen_all(evidence).judged(
        requirement,
        asks,
        Verdict::of(worst == Dependence::Endpoint && !is_untranslated),
    ))
}

/// Flows of one protocol, and what was seen of them.
struct Flows<'p, 'w> {
    prober: &'p mut Prober<'w>,
    protocol: Protocol,
    /// The external port that a flow had.
    last_port: u16,
    /// Whether one left from its inside address.
    is_untranslated: bool,
    evidence: Vec<String>,
}

impl Flows<'_, '_> {
    /// The external endpoint of a flow.
    fn open(&mut self, internal: SocketAddrV4, server: SocketAddrV4) -> Result<Option<SocketAddrV4>, ProbeError> {
        let external = self.prober.open(self.protocol, internal, server)?;
        let words = external.map_or("does not get out".to_owned(), |external| format!("leaves as {external}"));
        self.evidence.push(format!("{internal} -> {server} {words}"));
        self.last_port = external.map_or(self.last_port, |external| external.port());
        self.is_untranslated |= external.is_some_and(|external| external.ip() == internal.ip());
        Ok(external)
    }

    /// Three flows of one inside endpoint. None when one of them does not get out.
    fn one(&mut self, internal: SocketAddrV4, servers: [SocketAddrV4; 3]) -> Result<Option<Dependence>, ProbeError> {
        let mut externals = Vec::new();
        for server in servers {
            externals.extend(self.open(internal, server)?);
        }
        let [first, port, address] = externals[..] else { return Ok(None) };
        Ok(Some(match () {
            () if first != port => Dependence::AddressAndPort,
            () if first != address => Dependence::Address,
            () => Dependence::Endpoint,
        }))
    }

    /// Hosts of a crowd that share an external endpoint send to one another's servers. None when no
    /// two share one.
    fn crowded(&mut self) -> Result<Option<Dependence>, ProbeError> {
        // Ports are kept where they are in the NAT's own range: near one that it gave out, and that
        // nobody has.
        let first_port = if self.last_port < u16::MAX - 2 { self.last_port + 2 } else { self.last_port - 2 };
        let size = crowd::Size { hosts: HOSTS, first_port, ports: 1, servers: 2 };
        let Crowd { flows, externals, shared, .. } = crowd::gather(self.prober, self.protocol, size)?;
        self.evidence.push(format!("{flows} flows of as many hosts to two servers leave as {externals} endpoints"));
        let mut found = None;
        // Who shares it even towards the same server has nowhere to send to that would show it.
        for pair in shared.iter().filter(|pair| pair.first.server != pair.second.server).take(PAIRS) {
            found = found.max(self.crossed(pair)?);
        }
        Ok(found)
    }

    /// The first of two hosts with the same external endpoint sends to the server of the second.
    fn crossed(&mut self, pair: &Shared) -> Result<Option<Dependence>, ProbeError> {
        let Shared { external, first, second } = *pair;
        self.evidence.push(format!(
            "{} -> {} leaves as {external}, and so does {} -> {}; then:",
            first.internal, first.server, second.internal, second.server
        ));
        // Its address with another port, which nobody has used; then the very endpoint that the
        // other host sends to.
        let beside = SocketAddrV4::new(*second.server.ip(), second.server.port() + 1_000);
        for (server, class) in [(beside, Dependence::Address), (second.server, Dependence::AddressAndPort)] {
            if self.open(first.internal, server)?.is_some_and(|other| other != external) {
                return Ok(Some(class));
            }
        }
        Ok(None)
    }
}
