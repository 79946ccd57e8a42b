//! Which mapping a flow gets: by its inside endpoint only, or by where it goes too (RFC 4787 §4.1).
//!
//! A NAT that keeps ports looks endpoint-independent as long as nobody else has the port. So each host does it twice: with a port of its own, and
//! with one that another host has taken before.

use core::net::SocketAddrV4;

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

/// How often each question is asked: chance may give two flows the same port once, not always.
const ROUNDS: u32 = 3;

/// Mapping of one protocol.
///
/// # Errors
/// When packets can not be sent.
pub fn find(prober: &mut Prober<'_>, protocol: Protocol) -> Result<Finding, ProbeError> {
    let mut evidence = Vec::new();
    let mut alone = None;
    let mut beside = None;
    for _ in 0..ROUNDS {
        let internal = prober.fresh();
        alone = alone.max(one(prober, protocol, internal, &mut evidence)?);
        // Another host takes the port first, towards the same server.
        let other = SocketAddrV4::new(prober.new_host(), internal.port() + 1);
        let rival = SocketAddrV4::new(prober.new_host(), other.port());
        let server = prober.remote(0, 1000);
        if let Some(external) = prober.open(protocol, rival, server)? {
            evidence.push(format!("{rival} -> {server} leaves as {external}, and then:"));
        }
        beside = beside.max(one(prober, protocol, other, &mut evidence)?);
    }
    let name = format!("mapping.{}", protocol.name());
    let Some(worst) = alone.max(beside) else {
        return Ok(Finding::new(name, "nothing gets out").seen_all(evidence));
    };
    let value = if alone < beside {
        format!("{}, once another host has the port", worst.words())
    } else {
        worst.words().to_owned()
    };
    let (requirement, asks) = match protocol {
        Protocol::Udp => ("RFC 4787 REQ-1", "endpoint-independent mapping"),
        Protocol::Tcp => ("RFC 5382 REQ-1", "endpoint-independent mapping"),
        Protocol::Icmp => ("RFC 5508 REQ-1a", "query mapping independent of the server"),
    };
    Ok(Finding::new(name, value).seen_all(evidence).judged(
        requirement,
        asks,
        Verdict::of(worst == Dependence::Endpoint),
    ))
}

/// Three flows of one inside endpoint. None when one of them does not get out.
fn one(
    prober: &mut Prober<'_>,
    protocol: Protocol,
    internal: SocketAddrV4,
    evidence: &mut Vec<String>,
) -> Result<Option<Dependence>, ProbeError> {
    let servers = [prober.remote(0, 1000), prober.remote(0, 1001), prober.remote(1, 1000)];
    let mut externals = Vec::new();
    for server in servers {
        let external = prober.open(protocol, internal, server)?;
        let words = external.map_or("does not get out".to_owned(), |external| format!("leaves as {external}"));
        evidence.push(format!("{internal} -> {server} {words}"));
        externals.extend(external);
    }
    let [first, port, address] = externals[..] else { return Ok(None) };
    Ok(Some(match () {
        () if first != port => Dependence::AddressAndPort,
        () if first != address => Dependence::Address,
        () => Dependence::Endpoint,
    }))
}
