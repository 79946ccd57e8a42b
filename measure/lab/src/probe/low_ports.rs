//! Ports below 1024 and others: whether each lead to their like (RFC 4787 §4.2.1).

use core::net::SocketAddrV4;

use super::finding::Finding;
use super::finding::Verdict;
use super::prober::ProbeError;
use super::prober::Prober;
use super::seen::Protocol;

/// The first port that is not below.
const FIRST_HIGH: u16 = 1_024;
/// Ports that are asked, of either class.
const ASKED: [[u16; 4]; 2] = [[500, 123, 1_023, 53], [1_024, 5_060, 40_000, 65_535]];
/// Hosts that ask for a port until one gets it: a host may have used up what it has.
const HOSTS: u32 = 3;

/// Where the ports of one class led.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Led {
    below: usize,
    above: usize,
}

/// Asks for both.
///
/// # Errors
/// When packets cannot be sent.
pub fn find(prober: &mut Prober<'_>) -> Result<Finding, ProbeError> {
    let server = prober.remote(0, 1000);
    let mut host = prober.new_host();
    let mut evidence = Vec::new();
    let mut led = [Led::default(); 2];
    for (ports, led) in ASKED.into_iter().zip(&mut led) {
        for port in ports {
            let mut external = prober.open(Protocol::Udp, SocketAddrV4::new(host, port), server)?;
            for _ in 1..HOSTS {
                if external.is_some() {
                    break;
                }
                host = prober.new_host();
                external = prober.open(Protocol::Udp, SocketAddrV4::new(host, port), server)?;
            }
            let internal = SocketAddrV4::new(host, port);
            let Some(external) = external else {
                evidence.push(format!("{internal} does not get out, nor that port of other hosts"));
                continue;
            };
            if external.port() < FIRST_HIGH {
                led.below += 1
            } else {
                led.above += 1
            }
            evidence.push(format!("{internal} leaves as {external}"));
        }
    }
    let (value, verdict) = judged(led);
    Ok(Finding::new("ports.low", value).seen_all(evidence).judged(
        "RFC 4787 REQ-3a",
        "ports below 1024 lead below 1024, others to others",
        verdict,
    ))
}

/// What it means; those below 1024 first. One port that leads to the other class decides; that none
/// was seen to do so decides only where both were seen.
fn judged([low, high]: [Led; 2]) -> (&'static str, Verdict) {
    match ((low.below, low.above), (high.below, high.above)) {
        ((0, 0), (0, 0)) => ("not known: none gets out", Verdict::Undecided),
        ((0, 0), (0, _)) => ("not known: no port below 1024 gets out", Verdict::Undecided),
        ((_, 0), (0, 0)) => ("not known: no port from 1024 on gets out", Verdict::Undecided),
        ((_, 0), (0, _)) => ("ports below 1024 stay below, others do not", Verdict::Met),
        ((0, _), (0, 1..)) => ("all lead to 1024 or more", Verdict::NotMet),
        ((1.., 0), (_, 0)) => ("all lead below 1024", Verdict::NotMet),
        ((0, 0), _) => ("ports from 1024 on lead below; no other gets out", Verdict::NotMet),
        (_, (0, 0)) => ("ports below 1024 lead to 1024 or more; no other gets out", Verdict::NotMet),
        _ => ("mixed", Verdict::NotMet),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_of_which_no_port_got_out_is_not_known() {
        let of = |low: [usize; 2], high: [usize; 2]| judged([low, high].map(|[below, above]| Led { below, above }));
        let unknown = [([0, 0], [0, 0]), ([0, 0], [0, 1]), ([4, 0], [0, 0])];
        for (low, high) in unknown {
            let (value, verdict) = of(low, high);
            assert_eq!((value.starts_with("not known: "), verdict), (true, Verdict::Undecided), "{low:?} {high:?}");
        }
        assert_eq!(of([1, 0], [0, 1]), ("ports below 1024 stay below, others do not", Verdict::Met));
        assert_eq!(of([0, 4], [0, 4]), ("all lead to 1024 or more", Verdict::NotMet));
        assert_eq!(of([4, 0], [4, 0]), ("all lead below 1024", Verdict::NotMet));
        assert_eq!(of([3, 1], [0, 4]), ("mixed", Verdict::NotMet));
        assert_eq!(of([4, 0], [1, 3]), ("mixed", Verdict::NotMet));
        // One that leads to the other class is enough.
        assert_eq!(of([0, 1], [0, 0]).1, Verdict::NotMet);
        assert_eq!(of([0, 0], [1, 3]).1, Verdict::NotMet);
    }
}
