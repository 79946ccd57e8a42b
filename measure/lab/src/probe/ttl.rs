//! Time to live: one less at each packet that passes, and an answer in the sender's terms when it
//! runs out (RFC 1812 §5.3.1, RFC 5508 §7.3).

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// What packets set out with.
const TTL: u8 = 64;

/// Four findings: passing and running out, both ways.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    let mut findings = Vec::new();
    for (side, direction) in [(Side::Inside, "out"), (Side::Outside, "in")] {
        findings.push(passing(prober, side, direction)?);
        findings.push(running_out(prober, side, direction)?);
    }
    Ok(findings)
}

/// A datagram of a flow that exists, from this side.
fn datagram(prober: &mut Prober<'_>, side: Side, ttl: u8) -> Result<Option<Vec<u8>>, ProbeError> {
    let (internal, server) = (prober.fresh(), prober.remote(0, 1000));
    let Some(external) = prober.open(Protocol::Udp, internal, server)? else { return Ok(None) };
    let (from, to) = match side {
        Side::Inside => (internal, server),
        Side::Outside => (server, external),
    };
    let payload = prober.payload();
    Ok(Some(wire::build::udp(from, to).ttl(ttl).payload(&payload).build()))
}

fn passing(prober: &mut Prober<'_>, side: Side, direction: &str) -> Result<Finding, ProbeError> {
    let name = format!("ttl.{direction}");
    let Some(packet) = datagram(prober, side, TTL)? else { return Ok(Finding::new(name, "nothing gets out")) };
    let outcome = prober.pass(side, &packet)?;
    let left = outcome.passed.as_ref().map(|seen| seen.ttl);
    let value = match left {
        Some(ttl) if ttl == TTL - 1 => "less by 1".to_owned(),
        Some(TTL) => "unchanged".to_owned(),
        Some(ttl) => format!("less by {}", i16::from(TTL) - i16::from(ttl)),
        None => "nothing arrives".to_owned(),
    };
    let arrives = left.map_or_else(|| "does not arrive".to_owned(), |left| format!("arrives with {left}"));
    Ok(Finding::new(name, value).seen(format!("sent with {TTL}, {arrives}")).judged(
        "RFC 1812 §5.3.1",
        "TTL less by at least 1",
        Verdict::of(left.is_some_and(|left| left < TTL)),
    ))
}

fn running_out(prober: &mut Prober<'_>, side: Side, direction: &str) -> Result<Finding, ProbeError> {
    let name = format!("ttl.{direction}.expired");
    let Some(packet) = datagram(prober, side, 1)? else { return Ok(Finding::new(name, "nothing gets out")) };
    let Some(sent) = Seen::read(&packet) else { return Ok(Finding::new(name, "nothing gets out")) };
    let outcome = prober.pass(side, &packet)?;
    let answer = outcome.others.iter().find(|(at, seen)| *at == side && seen.icmp == Some((11, 0)));
    let mut evidence = vec![format!("{} -> {} with TTL 1: {}", sent.source, sent.destination, outcome.words(side))];
    let value = match (&outcome.passed, answer) {
        (Some(_), _) => "the packet passes",
        (None, None) => "no answer",
        (None, Some((_, seen))) => {
            evidence.push(format!("from {}, {}", seen.source.ip(), seen.quotes()));
            let is_right = seen.quoted() == Some((sent.source, sent.destination))
                && seen.destination.ip() == sent.source.ip()
                && seen.faults().is_empty();
            if is_right { "ICMP 11/0 in the sender's terms" } else { "ICMP 11/0, but not in the sender's terms" }
        }
    };
    let is_met = value == "ICMP 11/0 in the sender's terms";
    Ok(Finding::new(name, value).seen_all(evidence).judged(
        "RFC 5508 REQ-10a",
        "ICMP 11/0 when TTL runs out",
        Verdict::of(is_met),
    ))
}
