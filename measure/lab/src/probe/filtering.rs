//! Who may send to a mapping from outside (RFC 4787 §5, RFC 5382 §4.3).

use super::finding::Finding;
use super::finding::Verdict;
use super::mapping::Dependence;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::world::Side;

/// How often each question is asked.
const ROUNDS: u32 = 2;

/// Filtering of UDP or TCP. Each stranger sends to a mapping of its own, because its packet may
/// open something.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>, protocol: Protocol) -> Result<Finding, ProbeError> {
    let name = format!("filtering.{}", protocol.name());
    let known = prober.remote(0, 1000);
    let strangers = [prober.remote(0, 1001), prober.remote(1, 7777)];
    let mut admitted = [true; 2];
    let mut evidence = Vec::new();
    for _ in 0..ROUNDS {
        for (stranger, admitted) in strangers.into_iter().zip(&mut admitted) {
            let internal = prober.fresh();
            let external = match protocol {
                Protocol::Tcp => prober.connect(internal, known)?.map(|connection| connection.external),
                _ => prober.open(protocol, internal, known)?,
            };
            let Some(external) = external else {
                return Ok(Finding::new(name, "nothing gets out").seen_all(evidence));
            };
            let packet = prober.first_packet(protocol, stranger, external);
            let outcome = prober.pass(Side::Outside, &packet)?;
            *admitted &= outcome.passed.as_ref().is_some_and(|seen| seen.destination == internal);
            evidence.push(format!(
                "{internal} -> {known} leaves as {external}; {stranger} -> {external}: {}",
                outcome.words(Side::Outside)
            ));
        }
    }
    let class = match admitted {
        [_, true] => Dependence::Endpoint,
        [true, false] => Dependence::Address,
        [false, false] => Dependence::AddressAndPort,
    };
    let requirement = match protocol {
        Protocol::Tcp => "RFC 5382 REQ-3",
        _ => "RFC 4787 REQ-8",
    };
    let asks = "endpoint-independent, or address-dependent filtering";
    let verdict = Verdict::of(class != Dependence::AddressAndPort);
    let asks_cgn = "endpoint-independent filtering";
    Ok(Finding::new(name, class.words()).seen_all(evidence).judged(requirement, asks, verdict).judged(
        "RFC 6888 REQ-7",
        asks_cgn,
        Verdict::of(class == Dependence::Endpoint),
    ))
}

/// Whether a mapping of TCP lets UDP in (RFC 7857 §6).
///
/// # Errors
/// When packets cannot be sent.
pub fn between_protocols(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let (internal, known) = (prober.fresh(), prober.remote(0, 1000));
    let name = "filtering.protocols";
    let Some(connection) = prober.connect(internal, known)? else {
        return Ok(Finding::new(name, "nothing gets out"));
    };
    let packet = prober.udp(known, connection.external);
    let outcome = prober.pass(Side::Outside, &packet)?;
    let is_apart = outcome.passed.is_none();
    let value = if is_apart { "each protocol by itself" } else { "a mapping of TCP lets UDP in" };
    let evidence =
        format!("only TCP is mapped at {}; a datagram to it: {}", connection.external, outcome.words(Side::Outside));
    Ok(Finding::new(name, value).seen(evidence).judged("RFC 7857 §6", "filtering by protocol", Verdict::of(is_apart)))
}
