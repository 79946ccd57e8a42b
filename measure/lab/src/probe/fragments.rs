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

/// Three fragments as they are, and those orders in which something comes before the first, or too
/// early.
const IN_ORDER: &[[usize; 3]] = &[[0, 1, 2]];
const OUT_OF_ORDER: &[[usize; 3]] = &[[2, 1, 0], [1, 0, 2], [0, 2, 1], [2, 0, 1], [1, 2, 0]];
const ANY_ORDER: &[[usize; 3]] = &[[0, 1, 2], [2, 1, 0], [1, 0, 2]];
/// The MTU every link has room for (RFC 791), and that of an Ethernet link. Of the latter two
/// fragments are as long as a frame can be.
const QUESTIONS: [Question; 3] = [
    Question { name: "in_order", asks: "fragments in order", bytes: 1_400, mtu: 576, orders: IN_ORDER },
    Question { name: "out_of_order", asks: "fragments out of order", bytes: 1_400, mtu: 576, orders: OUT_OF_ORDER },
    Question { name: "full_size", asks: "fragments in any order", bytes: 4_000, mtu: 1_500, orders: ANY_ORDER },
];

/// Hosts that are tried before a NAT has no port for any: each may have a few only.
const HOSTS: u32 = 4;

/// Where the tester's ports join fragments, a datagram of no more data surely fits what they hold.
const WHOLE_MAX: usize = 1_472;

/// Six findings: two directions, in order and not, and as large as they get. With `arrive_whole`
/// the tester's ports hand over datagrams in place of their fragments.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>, arrive_whole: bool) -> Result<Vec<Finding>, ProbeError> {
    let mut findings = Vec::new();
    for (side, direction) in [(Side::Inside, "out"), (Side::Outside, "in")] {
        for question in &QUESTIONS {
            let Question { name, asks, bytes, .. } = *question;
            if arrive_whole && bytes > WHOLE_MAX {
                let finding =
                    Finding::new(format!("fragments.{direction}.{name}"), "not to be seen over packet sockets");
                let why = format!("the tester's ports join fragments, and cut datagrams longer than {WHOLE_MAX} bytes");
                findings.push(finding.seen(why).judged("RFC 4787 REQ-14", asks, Verdict::Undecided));
                continue;
            }
            findings.push(asked(prober, side, question, format!("fragments.{direction}.{name}"))?);
        }
    }
    Ok(findings)
}

/// What became of a datagram in pieces, in words.
enum Became {
    Whole(String),
    Broken(String),
    /// It was not sent: the NAT had no port for its flow.
    NoPort,
}

/// One question, in each of its orders.
fn asked(prober: &mut Prober<'_>, side: Side, question: &Question, name: String) -> Result<Finding, ProbeError> {
    let Question { asks, mtu, orders, .. } = *question;
    let (mut passed, mut asked) = (0, 0);
    let mut evidence = Vec::new();
    for order in orders {
        let mut became = one(prober, side, question, *order)?;
        if matches!(became, Became::Broken(_)) {
            // A link may lose one piece.
            let again = one(prober, side, question, *order)?;
            became = if matches!(again, Became::NoPort) { became } else { again };
        }
        passed += usize::from(matches!(became, Became::Whole(_)));
        asked += usize::from(!matches!(became, Became::NoPort));
        let words = match became {
            Became::Whole(words) | Became::Broken(words) => words,
            Became::NoPort => format!("not sent, as flows of {HOSTS} hosts get no port"),
        };
        let order: Vec<String> = order.iter().map(ToString::to_string).collect();
        let order = order.join(", ");
        evidence.push(format!("fragments {order} of {mtu} bytes and less: {words}"));
    }
    let count = orders.len();
    let value = match passed {
        _ if asked == 0 => "not asked: no flow gets a port".to_owned(),
        _ if passed == count => "passed".to_owned(),
        _ if asked < count => format!("passed in {passed} of {asked} orders, the others got no port"),
        0 => "lost".to_owned(),
        _ => format!("passed in {passed} of {count} orders"),
    };
    let verdict = if passed == asked && asked < count { Verdict::Undecided } else { Verdict::of(passed == count) };
    Ok(Finding::new(name, value).seen_all(evidence).judged("RFC 4787 REQ-14", asks, verdict))
}

/// A flow of a host that the NAT has a port for; its external endpoint.
fn flow(prober: &mut Prober<'_>, server: SocketAddrV4) -> Result<Option<[SocketAddrV4; 2]>, ProbeError> {
    for host in 0..HOSTS {
        let mut internal = prober.fresh();
        if host > 0 {
            internal.set_ip(prober.new_host());
        }
        if let Some(external) = prober.open(Protocol::Udp, internal, server)? {
            return Ok(Some([internal, external]));
        }
    }
    Ok(None)
}

/// Sends one datagram in pieces.
fn one(prober: &mut Prober<'_>, side: Side, question: &Question, order: [usize; 3]) -> Result<Became, ProbeError> {
    let server = prober.remote(0, 1000);
    let Some([internal, external]) = flow(prober, server)? else { return Ok(Became::NoPort) };
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
        return Ok(Became::Broken(format!("{count} packets arrive, which make no datagram")));
    };
    let ends = match side {
        Side::Inside => seen.source == external && seen.destination == server,
        Side::Outside => seen.source == server && seen.destination == internal,
    };
    let faults = seen.faults();
    Ok(match () {
        () if seen.payload != payload => Became::Broken(format!("{count} packets arrive, the data are not those sent")),
        () if !ends => Became::Broken(format!("{count} packets arrive as {} -> {}", seen.source, seen.destination)),
        () if !faults.is_empty() => Became::Broken(format!("{count} packets arrive: {}", faults.join(", "))),
        () => Became::Whole(format!("{count} packets arrive, which make the datagram")),
    })
}

fn expected(side: Side, internal: SocketAddrV4, server: SocketAddrV4) -> SocketAddrV4 {
    match side {
        Side::Inside => server,
        Side::Outside => internal,
    }
}
