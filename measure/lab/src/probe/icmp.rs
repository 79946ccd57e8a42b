//! ICMP queries, and ICMP errors about flows (RFC 5508).

use core::net::SocketAddrV4;

use wire::build;
use wire::tcp::Flags;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::Connection;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;
use crate::edge;
use crate::edge::Family;

/// Errors that are sent: type, code.
const ERRORS: [(u8, u8); 9] = [(3, 0), (3, 1), (3, 2), (3, 3), (3, 4), (3, 9), (3, 13), (11, 0), (11, 1)];
/// Next-hop MTU in 3/4.
const NEXT_HOP_MTU: u16 = 1_280;

/// Everything about ICMP.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>, family: Family) -> Result<Vec<Finding>, ProbeError> {
    let mut findings = vec![query(prober)?];
    for protocol in [Protocol::Udp, Protocol::Tcp] {
        findings.extend(errors_in(prober, protocol, family)?);
    }
    findings.push(error_out(prober)?);
    findings.push(bad_checksum(prober)?);
    findings.push(about_nothing(prober)?);
    Ok(findings)
}

/// Two hosts ask with the same identifier, and each gets its own answer.
fn query(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let server = prober.remote(0, 0);
    let identifier = prober.fresh().port();
    let mut evidence = Vec::new();
    let mut externals = Vec::new();
    for _ in 0..2 {
        let internal = SocketAddrV4::new(prober.new_host(), identifier);
        let external = prober.open(Protocol::Icmp, internal, server)?;
        externals.push((internal, external));
    }
    let is_untranslated = |(internal, external): &(SocketAddrV4, Option<SocketAddrV4>)| {
        external.is_some_and(|to| to.ip() == internal.ip())
    };
    let leaks = externals.iter().any(is_untranslated);
    let mut answered = 0;
    for (internal, external) in &externals {
        let Some(external) = external else {
            evidence.push(format!("Echo of {internal} (identifier) does not get out"));
            continue;
        };
        let payload = prober.payload();
        let reply = build::echo_reply(*server.ip(), *external.ip(), external.port()).payload(&payload).build();
        let outcome = prober.pass(Side::Outside, &reply)?;
        answered += usize::from(outcome.passed.as_ref().is_some_and(|seen| seen.destination == *internal));
        evidence.push(format!(
            "Echo of {internal} (identifier) leaves as {external}; reply: {}",
            outcome.words(Side::Outside)
        ));
    }
    let value = match answered {
        _ if leaks => "not translated",
        2 => "answered, each host by itself",
        1 => "answered for one of two hosts with the same identifier",
        _ => "not answered",
    };
    Ok(Finding::new("icmp.query", value).seen_all(evidence).judged(
        "RFC 5508 REQ-1",
        "queries and their replies pass",
        Verdict::of(answered == 2 && !leaks),
    ))
}

/// A flow, and the packet of it as it looks outside.
fn flow(prober: &mut Prober<'_>, protocol: Protocol) -> Result<Option<(Connection, Seen)>, ProbeError> {
    let (internal, remote) = (prober.fresh(), prober.remote(0, 1000));
    let connection = match protocol {
        Protocol::Tcp => prober.connect(internal, remote)?,
        _ => prober.open(protocol, internal, remote)?.map(|external| Connection {
            internal,
            external,
            remote,
            client_next: 0,
            server_next: 0,
        }),
    };
    let Some(connection) = connection else { return Ok(None) };
    let payload = prober.payload();
    let packet = match protocol {
        Protocol::Tcp => connection.from_client(Flags::ACK, &[]),
        _ => build::udp(internal, remote).payload(&payload).build(),
    };
    Ok(prober.pass(Side::Inside, &packet)?.passed.map(|seen| (connection, seen)))
}

/// Whether the server still reaches the client.
fn is_alive(prober: &mut Prober<'_>, protocol: Protocol, connection: &Connection) -> Result<bool, ProbeError> {
    let payload = prober.payload();
    let packet = match protocol {
        Protocol::Tcp => connection.from_server(Flags::ACK | Flags::PSH, &payload),
        _ => prober.udp(connection.remote, connection.external),
    };
    Ok(prober.pass(Side::Outside, &packet)?.passed.is_some_and(|seen| seen.destination == connection.internal))
}

/// Errors of a router outside about a flow: translated, and the flow lives on.
fn errors_in(prober: &mut Prober<'_>, protocol: Protocol, family: Family) -> Result<Vec<Finding>, ProbeError> {
    let name = format!("icmp.errors.in.{}", protocol.name());
    let Some((connection, outside)) = flow(prober, protocol)? else {
        return Ok(vec![Finding::new(name, "nothing gets out")]);
    };
    let transit = prober.site().transit;
    let mut evidence = Vec::new();
    let (mut expected, mut right, mut wrong) = (0, 0, 0);
    for (icmp_type, code) in ERRORS {
        let Some(arrives) = edge::arrives_as(family, (icmp_type, code)) else { continue };
        expected += 1;
        let mut error = build::icmp_error(transit, *connection.external.ip(), icmp_type, code, &outside.packet);
        if (icmp_type, code) == (3, 4) {
            error = error.next_hop_mtu(NEXT_HOP_MTU);
        }
        let outcome =
            prober.send_and_watch(Side::Outside, &error.build(), Side::Inside, |seen| seen.icmp == Some(arrives))?;
        let words = match &outcome.passed {
            None => "lost".to_owned(),
            Some(seen) => match faults_of(seen, &connection, transit, (icmp_type, code)) {
                faults if faults.is_empty() => {
                    right += 1;
                    "arrives, in the client's terms".to_owned()
                }
                faults => {
                    wrong += 1;
                    format!("arrives: {}", faults.join(", "))
                }
            },
        };
        evidence.push(format!("{icmp_type}/{code} about {} -> {}: {words}", connection.external, connection.remote));
    }
    let value = match (right, wrong) {
        (0, 0) => "lost".to_owned(),
        (_, 0) if right == expected => "translated".to_owned(),
        (_, 0) => format!("{right} of {expected} translated, the others lost"),
        _ => "wrong".to_owned(),
    };
    let lives = is_alive(prober, protocol, &connection)?;
    let (requirement, survival) = match protocol {
        Protocol::Tcp => ("RFC 5382 REQ-9", "RFC 5382 REQ-10"),
        _ => ("RFC 5508 REQ-4", "RFC 4787 REQ-12"),
    };
    Ok(vec![
        Finding::new(name, value).seen_all(evidence).judged(
            requirement,
            "errors are translated, what they quote too",
            Verdict::of(right == expected),
        ),
        Finding::new(
            format!("icmp.errors.survival.{}", protocol.name()),
            if lives { "the flow lives on" } else { "the flow is gone" },
        )
        .seen("asked by the server after all these errors")
        .judged(survival, "no ICMP error ends a flow", Verdict::of(lives)),
    ])
}

/// What is wrong with an error that came inside.
fn faults_of(seen: &Seen, connection: &Connection, transit: core::net::Ipv4Addr, sent: (u8, u8)) -> Vec<String> {
    let mut faults = seen.faults();
    if seen.quoted() != Some((connection.internal, connection.remote)) {
        faults.push(match seen.quoted() {
            Some((from, to)) => format!("quotes {from} -> {to}"),
            None => "quotes nothing".to_owned(),
        });
    }
    if seen.destination.ip() != connection.internal.ip() {
        faults.push(format!("sent to {}", seen.destination.ip()));
    }
    if *seen.source.ip() != transit {
        faults.push(format!("comes from {}", seen.source.ip()));
    }
    let next_hop_mtu = wire::ipv4::Ipv4::new_checked(seen.packet.as_slice())
        .ok()
        .and_then(|view| wire::icmp::Icmp::new_checked(view.payload().to_vec()).ok())
        .map(|message| message.next_hop_mtu());
    if sent == (3, 4) && next_hop_mtu != Some(NEXT_HOP_MTU) {
        faults.push(next_hop_mtu.map_or_else(|| "no next-hop MTU".to_owned(), |mtu| format!("next-hop MTU {mtu}")));
    }
    faults
}

/// The client says that its port is closed.
fn error_out(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "icmp.errors.out";
    let Some((connection, _)) = flow(prober, Protocol::Udp)? else { return Ok(Finding::new(name, "nothing gets out")) };
    let packet = prober.udp(connection.remote, connection.external);
    let Some(inside) = prober.pass(Side::Outside, &packet)?.passed else {
        return Ok(Finding::new(name, "nothing gets in"));
    };
    let error = build::icmp_error(*connection.internal.ip(), *connection.remote.ip(), 3, 3, &inside.packet).build();
    let outcome = prober.send_and_watch(Side::Inside, &error, Side::Outside, |seen| seen.icmp == Some((3, 3)))?;
    let (value, words) = match &outcome.passed {
        None => ("lost", "nothing".to_owned()),
        Some(seen) => {
            let is_right = seen.quoted() == Some((connection.remote, connection.external))
                && seen.source.ip() != connection.internal.ip()
                && seen.faults().is_empty();
            let words = format!("3/3 from {}, {}", seen.source.ip(), seen.quotes());
            (if is_right { "translated" } else { "wrong" }, words)
        }
    };
    Ok(Finding::new(name, value).seen(format!("{} answers 3/3; outside comes {words}", connection.internal)).judged(
        "RFC 5508 REQ-5",
        "errors from inside are translated",
        Verdict::of(value == "translated"),
    ))
}

/// An error whose checksum is wrong.
fn bad_checksum(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "icmp.errors.bad_checksum";
    let Some((connection, outside)) = flow(prober, Protocol::Udp)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    let mut error = build::icmp_error(prober.site().transit, *connection.external.ip(), 3, 3, &outside.packet).build();
    // The first byte of the checksum, behind a header without options.
    error[22] ^= 0xff;
    let outcome = prober.send_and_watch(Side::Outside, &error, Side::Inside, |seen| seen.icmp == Some((3, 3)))?;
    let is_dropped = outcome.passed.is_none();
    Ok(Finding::new(name, if is_dropped { "dropped" } else { "passed on" })
        .seen(format!("3/3 with a wrong checksum: {}", outcome.words(Side::Outside)))
        .judged("RFC 5508 REQ-3", "errors with a wrong checksum are dropped", Verdict::of(is_dropped)))
}

/// Ports of which one has no flow.
const CANDIDATES: u16 = 5;

/// An error about a flow that does not exist.
fn about_nothing(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "icmp.errors.unknown";
    let Some((connection, outside)) = flow(prober, Protocol::Udp)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    // Of another port than the flow's, to another server. Flows of the parts before may have it:
    // then a datagram gets in there.
    let candidate =
        |number: u16| SocketAddrV4::new(*connection.external.ip(), outside.source.port() ^ (0x0101 * number));
    let mut other = candidate(1);
    for number in 2..=CANDIDATES {
        let datagram = prober.udp(prober.remote(2, 9), other);
        if prober.pass(Side::Outside, &datagram)?.passed.is_none() {
            break;
        }
        other = candidate(number);
    }
    let quote = build::udp(other, prober.remote(2, 9)).payload_length(16).build();
    let error = build::icmp_error(prober.site().transit, *other.ip(), 3, 3, &quote).build();
    let outcome = prober.send_and_watch(Side::Outside, &error, Side::Inside, |seen| seen.icmp == Some((3, 3)))?;
    let is_silent = outcome.passed.is_none() && outcome.icmp_error(Side::Outside).is_none();
    Ok(Finding::new(name, if is_silent { "dropped silently" } else { "not dropped silently" })
        .seen(format!("3/3 about {other}, which has no flow: {}", outcome.words(Side::Outside)))
        .judged("RFC 5508 REQ-4", "errors about nothing are dropped silently", Verdict::of(is_silent)))
}
