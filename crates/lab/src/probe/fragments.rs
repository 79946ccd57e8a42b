//! Fragments, in order and out of order, both ways (RFC 4787 §11).

use core::net::SocketAddrV4;

use wire::build;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::seen::Seen;
use super::world::Side;

/// A datagram in three fragments, and the orders in which they are sent.
struct Question {
    name: &'static str,
    asks: &'static str,
    bytes: usize,
    mtu: usize,
    orders: &'static [[usize; 3]],
}

/// Three fragments as they are, and those orders in which something comes before the first, or too early.
const IN_ORDER: &[[usize; 3]] = &[[0, 1, 2]];
const OUT_OF_ORDER: &[[usize; 3]] = &[[2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0]];
const ANY_ORDER: &[[usize; 3]] = &[[0, 1, 2], [2, 1, 0], [1, 0, 2]];
/// The MTU every link has room for (RFC 791), and that of an Ethernet link. Of the latter two fragments are as long as a frame can be.
const QUESTIONS: [Question; 3] = [
    Question { name: "in_order", asks: "fragments in order", bytes: 1_400, mtu: 576, orders: IN_ORDER },
    Question { name: "out_of_order", asks: "fragments out of order", bytes: 1_400, mtu: 576, orders: OUT_OF_ORDER },
    Question { name: "full_size", asks: "fragments in any order", bytes: 4_000, mtu: 1_500, orders: ANY_ORDER },
];

/// Where the tester's ports join fragments, a datagram of no more data surely fits what they hold.
const WHOLE_MAX: usize = 1_472;

/// Six findings: two directions, in order and not, and as large as they get. With `arrive_whole` the tester's ports hand over datagrams in place of
/// their fragments.
///
/// # Errors
/// When packets can not be sent.
pub fn find(prober: &mut Prober<'_>, arrive_whole: bool) -> Result<Vec<Finding>, ProbeError> {
    let mut findings = Vec::new();
    for (side, direction) in [(Side::Inside, "out"), (Side::Outside, "in")] {
        for question in &QUESTIONS {
            let Question { name, asks, mtu, orders, bytes } = *question;
            if arrive_whole && bytes > WHOLE_MAX {
                let finding =
                    Finding::new(format!("fragments.{direction}.{name}"), "not to be seen over packet sockets");
                let why = format!("the tester's ports join fragments, and cut datagrams longer than {WHOLE_MAX} bytes");
                findings.push(finding.seen(why).judged("RFC 4787 REQ-14", asks, Verdict::Undecided));
                continue;
            }
            let mut passed = 0;
            let mut evidence = Vec::new();
            for order in orders {
                let mut words = one(prober, side, question, *order)?;
                if words.is_err() {
                    // A link may lose one piece.
                    words = one(prober, side, question, *order)?;
                }
                passed += usize::from(words.is_ok());
                let words = words.unwrap_or_else(|words| words);
                evidence.push(format!("fragments {order:?} of {mtu} bytes and less: {words}"));
            }
            let value = match passed {
                0 => "lost".to_owned(),
                _ if passed == orders.len() => "passed".to_owned(),
                _ => format!("passed in {passed} of {} orders", orders.len()),
            };
            findings.push(Finding::new(format!("fragments.{direction}.{name}"), value).seen_all(evidence).judged(
                "RFC 4787 REQ-14",
                asks,
                Verdict::of(passed == orders.len()),
            ));
        }
    }
    Ok(findings)
}

/// Sends one datagram in pieces; what became of it, in words.
fn one(
    prober: &mut Prober<'_>,
    side: Side,
    question: &Question,
    order: [usize; 3],
) -> Result<Result<String, String>, ProbeError> {
    let (internal, server) = (prober.fresh(), prober.remote(0, 1000));
    let Some(external) = prober.open(Protocol::Udp, internal, server)? else {
        return Ok(Err("nothing gets out".to_owned()));
    };
    let (from, to) = match side {
        Side::Inside => (internal, server),
        Side::Outside => (server, external),
    };
    let mark = prober.payload();
    let mut payload: Vec<u8> = (0..question.bytes).map(|index| (index % 251) as u8).collect();
    payload[..mark.len()].copy_from_slice(&mark);
    let identification = prober.random() as u16 | 1;
    let packet = build::udp(from, to).payload(&payload).identification(identification).build();
    let pieces = build::fragment(&packet, question.mtu);
    for index in order {
        prober.send(side, &pieces[index])?;
    }
    let until = prober.now() + prober.patience();
    let arrived: Vec<Seen> = prober
        .collect(until)?
        .into_iter()
        .filter(|(at, _, _)| *at == side.other())
        .map(|(_, _, seen)| seen)
        .filter(|seen| seen.destination.ip() == expected(side, internal, server).ip())
        .collect();
    let count = arrived.len();
    let packets: Vec<Vec<u8>> = arrived.iter().map(|seen| seen.packet.clone()).collect();
    let whole = match &packets[..] {
        [only] => Some(only.clone()),
        several => build::reassemble(several),
    };
    let Some(seen) = whole.as_deref().and_then(Seen::read) else {
        return Ok(Err(format!("{count} packets arrive, which make no datagram")));
    };
    let ends = match side {
        Side::Inside => seen.source == external && seen.destination == server,
        Side::Outside => seen.source == server && seen.destination == internal,
    };
    let faults = seen.faults();
    Ok(match () {
        () if seen.payload != payload => Err(format!("{count} packets arrive, the data are not those sent")),
        () if !ends => Err(format!("{count} packets arrive as {} -> {}", seen.source, seen.destination)),
        () if !faults.is_empty() => Err(format!("{count} packets arrive: {}", faults.join(", "))),
        () => Ok(format!("{count} packets arrive, which make the datagram")),
    })
}

fn expected(side: Side, internal: SocketAddrV4, server: SocketAddrV4) -> SocketAddrV4 {
    match side {
        Side::Inside => server,
        Side::Outside => internal,
    }
}
