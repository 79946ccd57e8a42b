//! Several NATs as next hops of one router: what they carry together, who serves a subscriber, and
//! what is lost when one of them is drained or killed.
//!
//! ```text
//!   subs ─ access ══ 10.255.0.0/24 ══ nat1 … natN ══ 198.51.100.0/24 ══ border ─ server
//! ```
//!
//! Each host is a network namespace. The routers and the NATs run the distribution's FRR with OSPF
//! and BFD. The access router has one default route with a next hop for each NAT, hashes by the
//! source address alone, and keeps its next hops resilient with `examples/sticky-next-hops.py`.
//! Each NAT has a pool of its own, 203.0.113.(16 n)/29.

mod network;
mod programs;
mod traffic;

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::io;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use serde::Serialize;

use crate::topology::TopologyError;
use network::Network;
use traffic::Echo;
use traffic::Flows;

/// TCP connections that measure a rate together.
pub const STREAMS: u32 = 24;
/// Links of the paper's devices (its tables 1 and 2), Mbit/s.
pub const PAPER_LINK_MBIT: u32 = 100;

/// How often a subscriber sends, at most, and how many datagrams all subscribers send a second.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const DATAGRAMS_PER_SECOND: u32 = 5_000;
/// So long may routing and answers take before the experiment gives up.
const PATIENCE: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(10);

/// What is measured.
#[derive(Clone, Debug)]
pub struct SharingOptions {
    /// The program `natrix` that each NAT runs.
    pub binary: PathBuf,
    /// NATs side by side, 1 to 8.
    pub nats: u8,
    /// Subscribers with a flow each.
    pub subscribers: u32,
    /// How long each rate is measured.
    pub rate_seconds: f64,
    /// Seconds without a packet after which the access router may give a bucket to another NAT, at
    /// least 1: longer than the pauses of all flows here.
    pub idle_seconds: u32,
    /// Driver strings of a NAT's ports, inside first.
    pub drivers: [String; 2],
    /// Chooses the addresses of the subscribers.
    pub seed: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum SharingError {
    /// The namespaces.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A program that does not start, or ends.
    #[error("lab: {program} does not run ({message}); see {}", .log.display())]
    Program {
        /// Which.
        program: String,
        /// Its last words.
        message: String,
        /// Its log.
        log: PathBuf,
    },
    /// A file or a socket of the experiment.
    #[error("lab: {what}: {source}; run as root, on a machine that is not short of files and memory")]
    System {
        /// What it is for.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// Something that has to happen before the next step does not.
    #[error("lab: {what}: not within {} s ({seen}); try again on a machine that is less busy", PATIENCE.as_secs())]
    NotYet {
        /// What was waited for.
        what: &'static str,
        /// What was there instead.
        seen: String,
    },
    /// A signal.
    #[error("lab: ended by a signal before there was a result; start it again")]
    Interrupted,
}

/// Bits a second that all streams had together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// The whole.
    pub mbit_per_second: f64,
    /// Packets that each NAT forwarded meanwhile, both ways.
    pub packets_of_each_nat: Vec<u64>,
}

/// What became of subscribers while nothing changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Steady {
    /// Subscribers that got an answer.
    pub answered: u64,
    /// Those that had one external address in all of their three flows.
    pub kept_one_address: u64,
    /// Subscribers of each NAT.
    pub of_each_nat: Vec<u64>,
}

/// What one drained NAT cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drain {
    /// How long the flows went on after `natrix drain`.
    pub seconds: f64,
    /// Flows at the drained NAT.
    pub flows: u64,
    /// Of these, flows that lost a datagram or got another external endpoint.
    pub flows_lost: u64,
    /// Flows of the other NATs, and those of them that lost something.
    pub other_flows: u64,
    /// As above.
    pub other_flows_lost: u64,
    /// New subscribers during the drain, and those of them that got to the drained NAT because
    /// they share a bucket with one of its flows.
    pub new_subscribers: u64,
    /// As above.
    pub new_at_drained: u64,
}

/// What one killed NAT cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kill {
    /// Subscribers of the killed NAT.
    pub subscribers: u64,
    /// From its end to the first answered packet of the last of them through another NAT.
    pub back_seconds: f64,
    /// From its end until the access router gave up its next hop.
    pub noticed_seconds: f64,
    /// Subscribers of the other NATs, and datagrams and addresses that these lost.
    pub others: u64,
    /// As above.
    pub others_datagrams_lost: u64,
    /// As above.
    pub others_moved: u64,
}

/// All of one experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sharing {
    /// With links of [`PAPER_LINK_MBIT`] between the access router and the NATs.
    pub limited: Rate,
    /// With links as fast as the machine.
    pub unlimited: Rate,
    /// While nothing changes.
    pub steady: Steady,
    /// None with a single NAT: there is no other way.
    pub drain: Option<Drain>,
    /// The same.
    pub kill: Option<Kill>,
}

/// Builds the network in namespaces whose names begin with `prefix`, measures, and removes it.
/// Files go to `folder`. Ends early once `stop` is set. Takes about half a minute; no step waits
/// for longer than a minute.
///
/// # Errors
/// [`SharingError`]. What was built is removed in any case.
pub fn share(
    options: &SharingOptions,
    prefix: &str,
    folder: &Path,
    stop: &AtomicBool,
    mut tell: impl FnMut(&str),
) -> Result<Sharing, SharingError> {
    tell("the network and its routing start");
    let mut network = Network::build(options, prefix, folder, stop)?;
    network.wait_until_all_serve(stop)?;
    tell("rates");
    network.limit_links(Some(PAPER_LINK_MBIT))?;
    let limited = rate(&network, options, stop)?;
    network.limit_links(None)?;
    let unlimited = rate(&network, options, stop)?;
    let echo = Echo::start(&network)?;
    tell("subscribers");
    let steady = steady(&network, &echo, options, stop)?;
    let (mut drain, mut kill) = (None, None);
    if options.nats > 1 {
        tell("a drain");
        drain = Some(drained(&mut network, &echo, options, stop)?);
        tell("a kill");
        kill = Some(killed(&mut network, &echo, options, stop)?);
    }
    Ok(Sharing { limited, unlimited, steady, drain, kill })
}

/// Release of the routing daemons, as they name it; None without them.
pub fn frr_version() -> Option<String> {
    let output = Command::new(format!("{}/zebra", network::FRR)).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.replace("zebra version", "FRR"))
}

/// The address of a subscriber, of those that a seed chooses.
fn subscriber(number: u32, seed: u64) -> core::net::Ipv4Addr {
    // Of 100.64.4.0 to 100.64.253.255, none twice below 60 000 subscribers.
    let place = (u64::from(number) + seed.wrapping_mul(7_919) % 60_000) % 60_000;
    core::net::Ipv4Addr::from_bits(0x6440_0400 + place as u32)
}

/// Waits for something, but neither after a signal nor for longer than the patience.
fn wait_for(
    what: &'static str,
    stop: &AtomicBool,
    mut is_there: impl FnMut() -> bool,
    seen: impl FnOnce() -> String,
) -> Result<(), SharingError> {
    let begun = Instant::now();
    while !is_there() {
        if stop.load(Ordering::Relaxed) {
            return Err(SharingError::Interrupted);
        }
        if begun.elapsed() > PATIENCE {
            return Err(SharingError::NotYet { what, seen: seen() });
        }
        thread::sleep(TICK);
    }
    Ok(())
}

/// Sleeps, but not after a signal.
fn pause(seconds: f64, stop: &AtomicBool) -> Result<(), SharingError> {
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        if stop.load(Ordering::Relaxed) {
            return Err(SharingError::Interrupted);
        }
        thread::sleep(TICK);
    }
    Ok(())
}

fn rate(network: &Network, options: &SharingOptions, stop: &AtomicBool) -> Result<Rate, SharingError> {
    let before = network.packets_of_each_nat();
    let mbit_per_second = traffic::tcp_rate(network, options, stop)?;
    let after = network.packets_of_each_nat();
    let packets_of_each_nat = after.iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect();
    Ok(Rate { mbit_per_second, packets_of_each_nat })
}

/// How often each of so many flows sends.
fn interval(flows: u32) -> Duration {
    INTERVAL_MIN.max(Duration::from_secs(1) * flows / DATAGRAMS_PER_SECOND)
}

/// Flows of these subscribers, each answered at least once.
fn answered_flows(
    network: &Network,
    echo: &Echo,
    numbers: core::ops::Range<u32>,
    (options, stop): (&SharingOptions, &AtomicBool),
) -> Result<Flows, SharingError> {
    let count = numbers.end - numbers.start;
    let addresses = numbers.map(|number| subscriber(number, options.seed)).collect();
    let flows = Flows::start(network, echo, addresses, interval(count))?;
    let seen = || format!("{} of {count} are answered", flows.answered());
    wait_for("each subscriber is answered", stop, || flows.answered() == u64::from(count), seen)?;
    Ok(flows)
}

/// Three flows of each subscriber, one after the other. The same address three times is no
/// accident with several NATs, and with several addresses of a pool (RFC 4787 REQ-2).
fn steady(network: &Network, echo: &Echo, options: &SharingOptions, stop: &AtomicBool) -> Result<Steady, SharingError> {
    let mut seen = vec![Vec::new(); options.subscribers as usize];
    for _ in 0..3 {
        let flows = answered_flows(network, echo, 0..options.subscribers, (options, stop))?.end();
        for (all, flow) in seen.iter_mut().zip(&flows) {
            all.extend(flow.external().map(|endpoint| *endpoint.ip()));
        }
    }
    for addresses in &mut seen {
        addresses.sort_unstable();
        addresses.dedup();
    }
    let mut of_each_nat = vec![0; usize::from(options.nats)];
    for nat in seen.iter().filter_map(|addresses| network::nat_of(*addresses.first()?)) {
        of_each_nat.get_mut(nat).map(|count| *count += 1).unwrap_or_default();
    }
    let count = |is_it: fn(&&Vec<core::net::Ipv4Addr>) -> bool| seen.iter().filter(is_it).count() as u64;
    Ok(Steady {
        answered: count(|addresses| !addresses.is_empty()),
        kept_one_address: count(|addresses| addresses.len() == 1),
        of_each_nat,
    })
}

/// Drains the second NAT under traffic, and undoes it. All flows end within the drain.
fn drained(
    network: &mut Network,
    echo: &Echo,
    options: &SharingOptions,
    stop: &AtomicBool,
) -> Result<Drain, SharingError> {
    const DRAINED: usize = 1;
    let flows = answered_flows(network, echo, 0..options.subscribers, (options, stop))?;
    let begun = Instant::now();
    network.drain(DRAINED, true)?;
    network.wait_for_state(DRAINED, "drains", stop)?;
    // Buckets without traffic leave after the idle time; those of the flows stay.
    pause(2.0 * f64::from(options.idle_seconds), stop)?;
    let fresh = options.subscribers..options.subscribers + (options.subscribers / 4).max(20);
    let later = answered_flows(network, echo, fresh.clone(), (options, stop))?.end();
    let flows = flows.end();
    let seconds = begun.elapsed().as_secs_f64();
    let of_nat = |flow: &&traffic::Flow| flow.first_nat() == Some(DRAINED);
    let lost = |flow: &&traffic::Flow| flow.lost() > 0 || flow.external().count() > 1;
    let there: Vec<_> = flows.iter().filter(of_nat).collect();
    let others: Vec<_> = flows.iter().filter(|flow| !of_nat(flow)).collect();
    let drain = Drain {
        seconds,
        flows: there.len() as u64,
        flows_lost: there.iter().filter(|flow| lost(flow)).count() as u64,
        other_flows: others.len() as u64,
        other_flows_lost: others.iter().filter(|flow| lost(flow)).count() as u64,
        new_subscribers: u64::from(fresh.end - fresh.start),
        new_at_drained: later.iter().filter(of_nat).count() as u64,
    };
    network.drain(DRAINED, false)?;
    network.wait_until_all_serve(stop)?;
    // Until the buckets have come back to it.
    pause(2.0 * f64::from(options.idle_seconds), stop)?;
    Ok(drain)
}

/// Kills the first NAT under traffic.
fn killed(
    network: &mut Network,
    echo: &Echo,
    options: &SharingOptions,
    stop: &AtomicBool,
) -> Result<Kill, SharingError> {
    const KILLED: usize = 0;
    let flows = answered_flows(network, echo, 0..options.subscribers, (options, stop))?;
    let killed = network.kill(KILLED);
    network.wait_for_state(KILLED, "is away", stop)?;
    let noticed_seconds = network.seconds_from(killed);
    let is_back = || flows.moved_from(KILLED) == flows.first_at(KILLED);
    let seen = || format!("{} of {} are", flows.moved_from(KILLED), flows.first_at(KILLED));
    wait_for("the subscribers of the killed NAT are back", stop, is_back, seen)?;
    // Some more rounds, in which the others may lose something.
    pause(1.0, stop)?;
    let flows = flows.end();
    let (moved, others): (Vec<_>, Vec<_>) = flows.iter().partition(|flow| flow.first_nat() == Some(KILLED));
    let back = moved.iter().filter_map(|flow| flow.first_after_move());
    Ok(Kill {
        subscribers: moved.len() as u64,
        back_seconds: back.map(|at| at.duration_since(killed.0).as_secs_f64()).fold(0.0, f64::max),
        noticed_seconds,
        others: others.len() as u64,
        others_datagrams_lost: others.iter().map(|flow| flow.lost()).sum(),
        others_moved: others.iter().filter(|flow| flow.external().count() > 1).count() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscribers_of_a_seed_have_addresses_of_their_own() {
        for seed in [1, 77, u64::MAX] {
            let mut addresses: Vec<_> = (0..2_000).map(|number| subscriber(number, seed)).collect();
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len(), 2_000);
            assert!(addresses.iter().all(|address| address.octets()[..2] == [100, 64]), "{seed}");
        }
        assert_ne!(subscriber(0, 1), subscriber(0, 2));
    }

    #[test]
    fn many_flows_send_less_often_than_few() {
        assert_eq!(interval(10), INTERVAL_MIN);
        assert_eq!(interval(1_000), Duration::from_millis(200));
        assert!(interval(4_000) < Duration::from_secs(1), "a bucket in use is never idle");
    }
}
