//! Fragments at once: as many datagrams in pieces as fast as they leave, each from an endpoint of
//! its own, and their answers (the experiment with fragments of Hayashi's thesis: 2 000 datagrams
//! of 1 443 bytes).

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;
use std::collections::HashMap;

use wire::build;
use wire::ipv4::Ipv4;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// Datagrams, each of a session of its own.
const DATAGRAMS: usize = 2_000;
/// Data of each.
const BYTES: usize = 1_443;
/// They go in two pieces at this MTU.
const MTU: usize = 1_000;
/// The data begin with as many bytes that no other datagram has.
const MARK_BYTES: usize = 16;

/// A datagram of the burst.
struct Datagram {
    internal: SocketAddrV4,
    mark: [u8; MARK_BYTES],
}

/// Two findings: the burst in pieces, and the same datagrams whole, which says what is lost without
/// fragments.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Vec<Finding>, ProbeError> {
    let endpoints: Vec<SocketAddrV4> = (0..DATAGRAMS).map(|_| prober.fresh()).collect();
    let in_pieces = burst(prober, &endpoints, Some(MTU))?;
    let whole = burst(prober, &endpoints, None)?;
    let was_out = in_pieces.out.iter().zip(&whole.out).map(|(in_pieces, whole)| in_pieces | whole);
    let silent: Vec<SocketAddrV4> =
        endpoints.iter().zip(was_out).filter(|(_, was_out)| !was_out).map(|(endpoint, _)| *endpoint).collect();
    let refused = refused(prober, &silent)?;
    let sent = DATAGRAMS - refused;
    let mut findings = Vec::new();
    for (name, burst, pieces) in [
        ("fragments.burst", &in_pieces, "in two fragments each"),
        ("fragments.burst.whole", &whole, "in one frame each"),
    ] {
        let there = burst.out.iter().filter(|out| **out).count();
        let back = burst.back;
        let mut value = format!("{} out, {} back", lost(sent, there), lost(there, back));
        if refused > 0 {
            value.push_str(&format!(" ({refused} more flows got no port)"));
        }
        let mut finding = Finding::new(name, value).seen(format!(
            "{DATAGRAMS} datagrams of {BYTES} bytes from as many endpoints, {pieces}, sent at once: {there} arrive; they are answered alike: {back} arrive"
        ));
        if refused > 0 {
            finding = finding.seen(format!(
                "{refused} endpoints got no port afterwards either, with a small datagram: theirs are not counted as lost"
            ));
        }
        findings.push(if name == "fragments.burst" {
            let is_met = sent > 0 && there == sent && back == there;
            let verdict = if is_met { Verdict::Met } else { Verdict::Undecided };
            finding.judged("RFC 4787 REQ-14", "fragments in order", verdict)
        } else {
            finding
        });
    }
    Ok(findings)
}

/// How many of these endpoints the NAT has no port for: asked twice, as a link may lose one
/// datagram.
fn refused(prober: &mut Prober<'_>, endpoints: &[SocketAddrV4]) -> Result<usize, ProbeError> {
    let server = prober.remote(0, 1000);
    let mut left: Vec<(SocketAddrV4, SocketAddrV4)> = endpoints.iter().map(|internal| (*internal, server)).collect();
    for _ in 0..2 {
        let externals = prober.open_many(Protocol::Udp, &left)?;
        left =
            left.into_iter().zip(externals).filter(|(_, external)| external.is_none()).map(|(flow, _)| flow).collect();
    }
    Ok(left.len())
}

/// `none of 2000 lost`, `647 of 2000 lost (32.35 %)`.
fn lost(sent: usize, arrived: usize) -> String {
    match sent - arrived {
        0 => format!("none of {sent} lost"),
        lost => format!("{lost} of {sent} lost ({:.2} %)", 100.0 * lost as f64 / sent as f64),
    }
}

/// What became of a burst.
struct Burst {
    /// Which datagrams arrived outside; each was answered.
    out: Vec<bool>,
    /// Answers that arrived inside.
    back: usize,
}

fn burst(prober: &mut Prober<'_>, endpoints: &[SocketAddrV4], mtu: Option<usize>) -> Result<Burst, ProbeError> {
    let server = prober.remote(0, 1000);
    let datagrams: Vec<Datagram> =
        endpoints.iter().map(|internal| Datagram { internal: *internal, mark: prober.payload() }).collect();
    let packets: Vec<Vec<u8>> = datagrams
        .iter()
        .enumerate()
        .flat_map(|(number, datagram)| pieces(datagram.internal, server, &datagram.mark, number, mtu))
        .collect();
    let arrived = whole(prober.send_many(Side::Inside, &packets)?);
    let mut answers = Vec::new();
    let mut out = vec![false; datagrams.len()];
    for (number, datagram) in datagrams.iter().enumerate() {
        let is_right =
            |seen: &&Seen| seen.destination == server && seen.payload.len() == BYTES && seen.faults().is_empty();
        let Some(seen) = arrived.get(&datagram.mark).filter(is_right) else { continue };
        out[number] = true;
        answers.extend(pieces(server, seen.source, &datagram.mark, number, mtu));
    }
    let arrived = whole(prober.send_many(Side::Outside, &answers)?);
    let is_back = |datagram: &&Datagram| {
        arrived.get(&datagram.mark).is_some_and(|seen| {
            seen.source == server
                && seen.destination == datagram.internal
                && seen.payload.len() == BYTES
                && seen.faults().is_empty()
        })
    };
    let back = datagrams.iter().filter(is_back).count();
    Ok(Burst { out, back })
}

fn pieces(
    from: SocketAddrV4,
    to: SocketAddrV4,
    mark: &[u8; MARK_BYTES],
    number: usize,
    mtu: Option<usize>,
) -> Vec<Vec<u8>> {
    let mut payload: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    payload[..MARK_BYTES].copy_from_slice(mark);
    // No two datagrams of the burst have the same, whichever external address they get.
    let packet = build::udp(from, to).payload(&payload).identification(number as u16 + 1).build();
    match mtu {
        Some(mtu) => build::fragment(&packet, mtu),
        None => vec![packet],
    }
}

/// The datagrams that these packets make, by their marks.
fn whole(packets: Vec<Seen>) -> HashMap<[u8; MARK_BYTES], Seen> {
    let mut by_datagram: HashMap<(Ipv4Addr, Ipv4Addr, u16), Vec<Vec<u8>>> = HashMap::new();
    let mut all = Vec::new();
    for seen in packets {
        match Ipv4::new_checked(seen.packet.as_slice()) {
            Ok(view) if view.is_fragment() => {
                let key = (*seen.source.ip(), *seen.destination.ip(), view.identification());
                by_datagram.entry(key).or_default().push(seen.packet.clone());
            }
            _ => all.push(seen),
        }
    }
    all.extend(by_datagram.values().filter_map(|pieces| Seen::read(&build::reassemble(pieces)?)));
    let marked = all.into_iter().filter(|seen| seen.protocol == Some(Protocol::Udp));
    marked.filter_map(|seen| Some((*seen.payload.first_chunk()?, seen))).collect()
}
