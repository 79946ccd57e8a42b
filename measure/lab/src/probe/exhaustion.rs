//! What happens when all ports are in use: whether a packet is refused, whether an ICMP error says
//! so, and which flows suffer (RFC 6888 REQ-4 and REQ-11).

use core::net::SocketAddrV4;
use core::time::Duration;

use super::finding::Finding;
use super::finding::Verdict;
use super::flow_state::FlowState;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;
use super::timers::Timer;
use super::world::Side;

/// Flows opened before one looks again.
const STEP: usize = 256;
/// Refused ones are asked again so often: a packet may be lost.
const TRIES: u32 = 3;
/// Without a known timer nothing is said of flows older than this.
const YOUNG: Duration = Duration::from_secs(20);
/// Inside ports of a host, from 1024 on.
const PORTS_OF_HOST: u32 = 64_512;

/// Flows of one host (of more, when its own ports do not suffice) until one is refused, or `max`
/// are there.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>, max: u32, timers: &[Timer]) -> Result<Vec<Finding>, ProbeError> {
    let server = prober.remote(0, 1000);
    let lives = timers.iter().find(|timer| timer.state == FlowState::UdpUnanswered);
    let lives = lives.map_or(YOUNG, |timer| Duration::from_secs_f64(timer.alive_seconds.unwrap_or(0.0)));
    let begun = prober.now();
    let mut open: Vec<(SocketAddrV4, SocketAddrV4, Duration)> = Vec::new();
    let mut host = prober.new_host();
    let mut refused = None;
    let mut evidence = Vec::new();
    let mut evicted = false;
    let mut asked = 0;
    let mut ask_at = STEP;
    while refused.is_none() && !evicted && (open.len() as u32) < max {
        let used = open.len() as u32 % PORTS_OF_HOST;
        if used == 0 && !open.is_empty() {
            host = prober.new_host();
            evidence.push(format!("after {} flows, {host} goes on", open.len()));
        }
        let count = (STEP as u32).min(max - open.len() as u32).min(PORTS_OF_HOST - used);
        let flows: Vec<_> =
            (used..used + count).map(|port| (SocketAddrV4::new(host, 1_024 + port as u16), server)).collect();
        let externals = prober.open_many(Protocol::Udp, &flows)?;
        for ((internal, _), external) in flows.iter().zip(externals) {
            let external = match external {
                Some(external) => Some(external),
                None => retried(prober, *internal, server)?,
            };
            match external {
                Some(external) => open.push((*internal, external, prober.now())),
                None => {
                    refused = Some(*internal);
                    break;
                }
            }
        }
        // An old one may have had to go; each is asked once.
        if open.len() >= ask_at && asked < open.len() {
            evicted = is_gone(prober, &open, asked, server, lives, &mut evidence)?.unwrap_or(false);
            asked += 1;
            ask_at *= 2;
        }
    }
    let took = prober.now() - begun;
    evidence.push(format!(
        "{} flows of {host} and before it to {server} got a port, in {:.1} s",
        open.len(),
        took.as_secs_f64()
    ));
    let mut all_live = None;
    for _ in 0..8 {
        if evicted || asked >= open.len() {
            break;
        }
        match is_gone(prober, &open, asked, server, lives, &mut evidence)? {
            Some(true) => evicted = true,
            Some(false) => all_live = Some(true),
            None => {}
        }
        asked += 1;
    }
    let mut findings = vec![past_the_last(prober, refused, evicted, server, &mut evidence)?];
    let eviction = match (evicted, refused, all_live) {
        (true, ..) => ("flows are evicted to make room", Verdict::NotMet),
        // Nothing was short: one that evicts when something is would look the same.
        (false, None, _) => ("not known: no end was found, so that none had to go", Verdict::Undecided),
        (false, Some(_), Some(_)) => ("those that are there stay", Verdict::Met),
        (false, Some(_), None) => ("not known: they are older than their timer", Verdict::Undecided),
    };
    findings[0].evidence = evidence;
    findings.push(
        Finding::new("exhaustion.eviction", eviction.0)
            .seen("the oldest flows, asked by their server after all others were opened")
            .judged("RFC 6888 REQ-11d", "nothing is evicted to make room", eviction.1),
    );
    if let Some(refused) = refused {
        findings.push(whose_limit(prober, refused, server, &open)?);
    }
    Ok(findings)
}

fn retried(
    prober: &mut Prober<'_>,
    internal: SocketAddrV4,
    server: SocketAddrV4,
) -> Result<Option<SocketAddrV4>, ProbeError> {
    for _ in 0..TRIES {
        if let Some(external) = prober.open(Protocol::Udp, internal, server)? {
            return Ok(Some(external));
        }
    }
    Ok(None)
}

/// Whether the flow of this number is gone before its time; None when it is too old to judge.
fn is_gone(
    prober: &mut Prober<'_>,
    open: &[(SocketAddrV4, SocketAddrV4, Duration)],
    number: usize,
    server: SocketAddrV4,
    lives: Duration,
    evidence: &mut Vec<String>,
) -> Result<Option<bool>, ProbeError> {
    let Some((internal, external, opened)) = open.get(number) else { return Ok(None) };
    let age = prober.now() - *opened;
    if age >= lives {
        return Ok(None);
    }
    let reached =
        prober.udp_reaches(server, *external, *internal)? || prober.udp_reaches(server, *external, *internal)?;
    evidence.push(format!(
        "with {} flows there, {internal} is {} at {external}, after {:.1} s",
        open.len(),
        if reached { "still reached" } else { "no more reached" },
        age.as_secs_f64()
    ));
    Ok(Some(!reached))
}

fn past_the_last(
    prober: &mut Prober<'_>,
    refused: Option<SocketAddrV4>,
    evicted: bool,
    server: SocketAddrV4,
    evidence: &mut Vec<String>,
) -> Result<Finding, ProbeError> {
    let name = "exhaustion.refusal";
    let Some(refused) = refused else {
        let value = if evicted { "never refused" } else { "no end found" };
        return Ok(Finding::new(name, value).judged(
            "RFC 6888 REQ-11b",
            "ICMP 3/1 when refused",
            Verdict::NotApplicable,
        ));
    };
    let packet = prober.udp(refused, server);
    // Answers are limited in rate: some time without refusals first.
    prober.sleep(Duration::from_secs(1))?;
    let outcome = prober.pass(Side::Inside, &packet)?;
    let error = outcome.icmp_error(Side::Inside);
    evidence.push(format!("{refused} -> {server}: {}", outcome.words(Side::Inside)));
    let leaked = outcome.others.iter().any(|(side, seen)| *side == Side::Outside && seen.source.ip() == refused.ip());
    let value = match error {
        // Some search for a free port only so long.
        None if outcome.passed.is_some() => "refused now and then, silently".to_owned(),
        _ if leaked => "leaves untranslated".to_owned(),
        Some((icmp_type, code)) => format!("refused with ICMP {icmp_type}/{code}"),
        None => "refused silently".to_owned(),
    };
    Ok(Finding::new(name, value)
        .judged("RFC 6888 REQ-11a", "refused packets are dropped", Verdict::of(!leaked))
        .judged("RFC 6888 REQ-11b", "ICMP 3/1 when refused", Verdict::of(error == Some((3, 1)))))
}

/// Whether other hosts are refused, too, and whether the refused host still is. Only a host with
/// the same external address can separate a limit per host from a full address.
fn whose_limit(
    prober: &mut Prober<'_>,
    refused: SocketAddrV4,
    server: SocketAddrV4,
    open: &[(SocketAddrV4, SocketAddrV4, Duration)],
) -> Result<Finding, ProbeError> {
    /// Hosts asked, at least, and at most while none of them shares the address.
    const ROUNDS: u16 = 8;
    const ROUNDS_MAX: u16 = 32;
    let is_shared = |external: SocketAddrV4| {
        open.iter().any(|(internal, own, _)| internal.ip() == refused.ip() && own.ip() == external.ip())
    };
    let (mut asked, mut others, mut sharing, mut again) = (0, 0, 0, 0);
    while asked < ROUNDS || asked < ROUNDS_MAX && others == asked && sharing == 0 {
        let other = SocketAddrV4::new(prober.new_host(), refused.port());
        let external = retried(prober, other, server)?;
        others += u16::from(external.is_some());
        sharing += u16::from(external.is_some_and(is_shared));
        if asked < ROUNDS {
            // Ports below 1024 have no flow yet.
            let same = SocketAddrV4::new(*refused.ip(), if asked == 0 { refused.port() } else { asked });
            again += u16::from(prober.open(Protocol::Udp, same, server)?.is_some());
        }
        asked += 1;
    }
    let (value, verdict) = match (others, sharing, again) {
        (_, _, 1..) => ("none that is sharp: the same host gets ports again", Verdict::Undecided),
        (0, _, _) => ("of all hosts together", Verdict::NotMet),
        (all, 1.., _) if all == asked => ("of each host", Verdict::Met),
        (all, 0, _) if all == asked => ("not known: no other host has its external address", Verdict::Undecided),
        // Those that were refused share its external address, and the others have another one.
        (_, 0, _) => ("of the hosts that share an external address", Verdict::NotMet),
        (_, _, _) => ("not known: of those that share its external address some get ports", Verdict::Undecided),
    };
    let flows = open.len();
    Ok(Finding::new("exhaustion.limit", value)
        .seen(format!(
            "{flows} flows until one was refused; then other hosts got a port {others} times of {asked}, {sharing} of them at its external \
             address, the same host {again} times of {ROUNDS}"
        ))
        .judged("RFC 6888 REQ-4", "a limit for each subscriber", verdict))
}
