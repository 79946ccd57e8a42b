//! What TCP wants beyond mapping and filtering: silence about unsolicited SYNs, and connections
//! opened from both ends at once (RFC 5382 §4).

use core::net::SocketAddrV4;
use core::time::Duration;

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

/// How long an answer to an unsolicited SYN is waited for.
const WATCH: Duration = Duration::from_millis(7_500);
/// The NAT keeps silent for so long (RFC 5382 REQ-4), as far as that can be seen from outside.
const SILENCE: Duration = Duration::from_millis(5_900);
/// An answer before this is one at once.
const AT_ONCE: Duration = Duration::from_millis(1_000);
/// How often one looks whether something came, so that its time is known.
const LOOK: Duration = Duration::from_millis(50);

/// Everything about TCP that is not in the other parts.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    Ok(vec![unsolicited_syn(prober)?, matching_syn(prober)?, simultaneous_open(prober)?, stray_segment(prober)?])
}

/// A SYN to a port of an external address that nobody has.
fn unsolicited_syn(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "tcp.unsolicited_syn";
    let internal = prober.fresh();
    let server = prober.remote(0, 1000);
    let Some(external) = prober.open(Protocol::Udp, internal, server)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    // UDP has a mapping on this port, TCP has not.
    let stranger = prober.remote(3, 2_345);
    let syn = prober.syn(stranger, external);
    let begun = prober.now();
    prober.send(Side::Outside, &syn)?;
    let (arrived, answer) = watch(prober, stranger, external, begun, begun + WATCH)?;
    let mut evidence = vec![format!("SYN {stranger} -> {external}, where TCP has no mapping")];
    let (value, verdict) = match &answer {
        _ if arrived => ("it reaches a host".to_owned(), Verdict::NotMet),
        None => (format!("silence for {} s", WATCH.as_secs_f64()), Verdict::Met),
        Some((after, seen)) => {
            evidence.push(format!(
                "answered after {:.2} s: {}",
                after.as_secs_f64(),
                seen.icmp.map_or_else(
                    || format!("segment with {}", seen.flags),
                    |(icmp_type, code)| format!("ICMP {icmp_type}/{code}"),
                )
            ));
            let what = words(seen);
            if *after >= SILENCE {
                (format!("silence for 6 s, then {what}"), Verdict::of(seen.icmp == Some((3, 3))))
            } else if *after < AT_ONCE {
                (format!("{what} at once"), Verdict::NotMet)
            } else {
                (format!("{what} before 6 s are over"), Verdict::NotMet)
            }
        }
    };
    Ok(Finding::new(name, value).seen_all(evidence).judged(
        "RFC 5382 REQ-4",
        "silence for 6 s, then at most ICMP 3/3",
        verdict,
    ))
}

/// Waits for an answer to a stranger's SYN, which was sent at `begun`: whether the SYN reached a
/// host meanwhile, and the answer with the time it took.
fn watch(
    prober: &mut Prober<'_>,
    stranger: SocketAddrV4,
    external: SocketAddrV4,
    begun: Duration,
    end: Duration,
) -> Result<(bool, Option<(Duration, Seen)>), ProbeError> {
    let mut arrived = false;
    while prober.now() < end {
        let until = end.min(prober.now() + LOOK);
        let Some((side, at, seen)) = prober.next(until)? else { continue };
        arrived |= side == Side::Inside && seen.flags == Flags::SYN && seen.source == stranger;
        let is_about_it = seen.quoted() == Some((stranger, external))
            || (seen.flags.contains(Flags::RST) && seen.destination == stranger);
        if side == Side::Outside && is_about_it {
            return Ok((arrived, Some((at - begun, seen))));
        }
    }
    Ok((arrived, None))
}

/// `ICMP 3/3`, `RST`.
fn words(answer: &Seen) -> String {
    answer.icmp.map_or("RST".to_owned(), |(icmp_type, code)| format!("ICMP {icmp_type}/{code}"))
}

/// A stranger's SYN that the filter keeps out, and the host's own SYN to that stranger before six
/// seconds are over: the first is to be forgotten.
fn matching_syn(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "tcp.matching_syn";
    let requirement = |value: String, verdict| {
        Finding::new(name, value).judged(
            "RFC 5382 REQ-4",
            "an unsolicited SYN is dropped silently once the host opens the same connection",
            verdict,
        )
    };
    let internal = prober.fresh();
    let server = prober.remote(0, 1000);
    let Some(connection) = prober.connect(internal, server)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    let (external, stranger) = (connection.external, prober.remote(3, 2_346));
    let mut evidence = vec![format!("{internal} is connected to {server} as {external}; SYN {stranger} -> {external}")];
    let syn = prober.syn(stranger, external);
    let begun = prober.now();
    prober.send(Side::Outside, &syn)?;
    let (arrived, answer) = watch(prober, stranger, external, begun, begun + AT_ONCE)?;
    if arrived {
        let value = "not to be seen: the filter lets the stranger's SYN in".to_owned();
        return Ok(requirement(value, Verdict::NotApplicable).seen_all(evidence));
    }
    if let Some((_, seen)) = answer {
        return Ok(requirement(format!("{} at once", words(&seen)), Verdict::NotMet).seen_all(evidence));
    }
    let own = prober.syn(internal, stranger);
    let outcome = prober.pass(Side::Inside, &own)?;
    evidence.push(format!("SYN {internal} -> {stranger}: {}", outcome.words(Side::Inside)));
    if outcome.passed.is_none_or(|seen| seen.source != external) {
        let value = "not to be seen: the host's SYN leaves from another endpoint".to_owned();
        return Ok(requirement(value, Verdict::NotApplicable).seen_all(evidence));
    }
    let (_, answer) = watch(prober, stranger, external, begun, begun + WATCH)?;
    let (value, verdict) = match answer {
        None => ("dropped silently".to_owned(), Verdict::Met),
        Some((after, seen)) => {
            evidence.push(format!("answered after {:.2} s", after.as_secs_f64()));
            (format!("{} all the same", words(&seen)), Verdict::NotMet)
        }
    };
    Ok(requirement(value, verdict).seen_all(evidence))
}

/// Both ends send a SYN before they have seen the other's (RFC 9293 §3.5).
fn simultaneous_open(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let name = "tcp.simultaneous_open";
    let internal = prober.fresh();
    let server = prober.remote(0, 1000);
    let Some(mut connection) = prober.half_open(internal, server)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    let both = Flags::SYN | Flags::ACK;
    // The client's sequence number of its SYN, which it repeats.
    let again = Connection { client_next: connection.client_next.wrapping_sub(1), ..connection };
    let syn = build::tcp(server, connection.external, Flags::SYN).sequence(connection.server_next).build();
    let mut steps = vec![("the server's SYN", Side::Outside, syn)];
    connection.server_next = connection.server_next.wrapping_add(1);
    let client = Connection { client_next: again.client_next, ..connection };
    steps.push(("the client's SYN-ACK", Side::Inside, client.from_client(both, &[])));
    let server_again = Connection { server_next: connection.server_next.wrapping_sub(1), ..connection };
    steps.push(("the server's SYN-ACK", Side::Outside, server_again.from_server(both, &[])));
    let payload = prober.payload();
    steps.push(("the client's data", Side::Inside, connection.from_client(Flags::ACK | Flags::PSH, &payload)));
    let payload = prober.payload();
    steps.push(("the server's data", Side::Outside, connection.from_server(Flags::ACK | Flags::PSH, &payload)));
    let mut evidence = vec![format!("SYN {internal} -> {server} leaves as {}", connection.external)];
    let mut lost = None;
    for (what, side, segment) in steps {
        let outcome = prober.pass(side, &segment)?;
        evidence.push(format!("{what}: {}", outcome.words(side)));
        let is_right = outcome.passed.as_ref().is_some_and(|seen| match side {
            Side::Inside => seen.source == connection.external,
            Side::Outside => seen.destination == internal,
        });
        if !is_right {
            lost = Some(what);
            break;
        }
    }
    let value = lost.map_or("works".to_owned(), |what| format!("{what} is lost"));
    Ok(Finding::new(name, value).seen_all(evidence).judged(
        "RFC 5382 REQ-2a",
        "simultaneous open",
        Verdict::of(lost.is_none()),
    ))
}

/// A segment from inside that belongs to no connection. The RFC leaves the choice, but no
/// connection may come of it unseen.
fn stray_segment(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let internal: SocketAddrV4 = prober.fresh();
    let server = prober.remote(0, 1000);
    let (sequence, acknowledgment) = (prober.random(), prober.random());
    let segment = build::tcp(internal, server, Flags::ACK).sequence(sequence).acknowledgment(acknowledgment).build();
    let outcome = prober.pass(Side::Inside, &segment)?;
    let reset = outcome.others.iter().any(|(side, seen)| *side == Side::Inside && seen.flags.contains(Flags::RST));
    let value = match (&outcome.passed, reset) {
        (Some(seen), _) if seen.source.ip() == internal.ip() => "passes untranslated",
        (Some(_), _) => "opens a connection",
        (None, true) => "answered with RST",
        (None, false) => "dropped",
    };
    Ok(Finding::new("tcp.stray_segment", value)
        .seen(format!("ACK {internal} -> {server} of no connection: {}", outcome.words(Side::Inside)))
        .judged(
            "RFC 5382 REQ-5",
            "drop or RST is left open; nothing may leave untranslated",
            if value == "passes untranslated" { Verdict::NotMet } else { Verdict::NotApplicable },
        ))
}
