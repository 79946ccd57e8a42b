//! Hairpinning: two hosts inside meet at their external endpoints (RFC 4787 §6, RFC 5382 §7.2, RFC
//! 5508 §4.2).

use core::net::SocketAddrV4;

use wire::build;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::Outcome;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// A host inside and how it looks outside.
#[derive(Clone, Copy, Debug)]
struct Peer {
    internal: SocketAddrV4,
    external: SocketAddrV4,
}

/// Hairpinning of UDP, of TCP, and of an ICMP error about UDP.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    let (udp, arrived) = of(prober, Protocol::Udp)?;
    let mut findings = vec![udp, of(prober, Protocol::Tcp)?.0];
    findings.push(match arrived {
        Some((sender, receiver, seen)) => error(prober, sender, receiver, &seen)?,
        None => Finding::new("hairpinning.icmp_error", "no").seen("there is no hairpinned packet to report").judged(
            "RFC 5508 REQ-7",
            "ICMP errors are hairpinned",
            Verdict::NotMet,
        ),
    });
    Ok(findings)
}

fn through(prober: &mut Prober<'_>, packet: &[u8]) -> Result<Outcome, ProbeError> {
    let Some(sent) = Seen::read(packet) else { return Ok(Outcome::default()) };
    prober.send_and_watch(Side::Inside, packet, Side::Inside, |seen| seen.is(&sent))
}

type Arrived = Option<(Peer, Peer, Seen)>;

fn of(prober: &mut Prober<'_>, protocol: Protocol) -> Result<(Finding, Arrived), ProbeError> {
    let name = format!("hairpinning.{}", protocol.name());
    let server = prober.remote(0, 1000);
    let mut peers = Vec::new();
    for _ in 0..2 {
        let internal = SocketAddrV4::new(prober.new_host(), prober.fresh().port());
        let external = prober.open(protocol, internal, server)?;
        peers.extend(external.map(|external| Peer { internal, external }));
    }
    let [sender, receiver] = peers[..] else { return Ok((Finding::new(name, "nothing gets out"), None)) };
    let mut evidence: Vec<String> =
        peers.iter().map(|peer| format!("{} leaves as {}", peer.internal, peer.external)).collect();
    let packet = prober.first_packet(protocol, sender.internal, receiver.external);
    let mut outcome = through(prober, &packet)?;
    evidence.push(format!("{} -> {}: {}", sender.internal, receiver.external, outcome.words(Side::Inside)));
    let mut when = "";
    if outcome.passed.is_none() {
        // A filter may want the receiver to have sent first.
        let punch = prober.first_packet(protocol, receiver.internal, sender.external);
        through(prober, &punch)?;
        let again = prober.first_packet(protocol, sender.internal, receiver.external);
        outcome = through(prober, &again)?;
        evidence.push(format!("after {} -> {}: {}", receiver.internal, sender.external, outcome.words(Side::Inside)));
        when = ", once both have sent";
    }
    let arrived = outcome.passed.filter(|seen| seen.destination == receiver.internal);
    let is_external = arrived.as_ref().map(|seen| seen.source.ip() != sender.internal.ip());
    let value = match is_external {
        None => "no".to_owned(),
        Some(true) => format!("yes, with the external source{when}"),
        Some(false) => format!("yes, with the internal source{when}"),
    };
    let (requirement, source) = match protocol {
        Protocol::Tcp => ("RFC 5382 REQ-8", "RFC 5382 REQ-8a"),
        _ => ("RFC 4787 REQ-9", "RFC 4787 REQ-9a"),
    };
    let finding = Finding::new(name, value)
        .seen_all(evidence)
        .judged(requirement, "hairpinning", Verdict::of(arrived.is_some()))
        .judged(source, "with the external source", is_external.map_or(Verdict::NotApplicable, Verdict::of));
    Ok((finding, arrived.map(|seen| (sender, receiver, seen))))
}

/// The receiver says that its port is closed.
fn error(prober: &mut Prober<'_>, sender: Peer, receiver: Peer, arrived: &Seen) -> Result<Finding, ProbeError> {
    let error = build::icmp_error(*receiver.internal.ip(), *arrived.source.ip(), 3, 3, &arrived.packet).build();
    let outcome = prober.send_and_watch(Side::Inside, &error, Side::Inside, |seen| seen.icmp == Some((3, 3)))?;
    let seen = outcome.passed.as_ref();
    let is_back = seen.is_some_and(|seen| {
        seen.destination.ip() == sender.internal.ip()
            && seen.quoted() == Some((sender.internal, receiver.external))
            && seen.source.ip() != receiver.internal.ip()
            && seen.faults().is_empty()
    });
    let value = match (is_back, seen) {
        (true, _) => "yes, quoting what was sent",
        (false, Some(_)) => "yes, but not in terms of the sender",
        (false, None) => "no",
    };
    let words = seen.map_or("nothing".to_owned(), |seen| {
        format!("3/3 {} -> {}, {}", seen.source.ip(), seen.destination.ip(), seen.quotes())
    });
    Ok(Finding::new("hairpinning.icmp_error", value)
        .seen(format!("{} answers 3/3; inside comes {words}", receiver.internal))
        .judged("RFC 5508 REQ-7", "ICMP errors are hairpinned", Verdict::of(is_back)))
}
