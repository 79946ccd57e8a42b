//! The probe: finds how a NAT behaves from outside it, with hosts on both sides and nothing known
//! of the NAT.
//!
//! | module | what it finds |
//! |---|---|
//! | [`mapping`] [`filtering`] | endpoint-independent or not |
//! | [`assignment`] [`low_ports`] | ports kept, in order, shared, below 1024 |
//! | [`ranges`] [`pooling`] | ranges of ports of each host; addresses paired |
//! | [`crowd`] | who has the same external endpoint as another, for both |
//! | [`hairpin`] | two hosts inside that meet at their external endpoints |
//! | [`fragments`] [`fragment_burst`] [`ttl`] [`icmp`] | a router's duties, and a NAT's others |
//! | [`handshake`] | unsolicited SYNs, simultaneous open, stray segments |
//! | [`exhaustion`] | what happens past the last port |
//! | [`timers`] | how long flows of each state are kept, and what refreshes them |
//!
//! [`world`] is what it needs: a place on either side and a clock. It may be real ([`ports`]) or
//! simulated, where hours cost nothing.

pub mod assignment;
pub mod crowd;
pub mod exhaustion;
pub mod filtering;
pub mod finding;
pub mod flow_state;
pub mod fragment_burst;
pub mod fragments;
pub mod hairpin;
pub mod handshake;
pub mod icmp;
pub mod low_ports;
pub mod mapping;
pub mod pooling;
pub mod ports;
pub mod prober;
pub mod ranges;
pub mod seen;
pub mod timers;
pub mod ttl;
pub mod world;

use core::time::Duration;

use serde::Serialize;

use crate::edge::Family;

pub use finding::Finding;
pub use finding::Judgement;
pub use finding::Verdict;
pub use prober::ProbeError;
pub use prober::Site;
pub use world::Side;
pub use world::World;
pub use world::WorldError;

use flow_state::FlowState;
use prober::Prober;
use seen::Protocol;
use timers::Timer;
use timers::TimerLimits;

/// A part of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// What a mapping depends on.
    Mapping,
    /// Who may send to it.
    Filtering,
    /// Which ports and addresses are given.
    Ports,
    /// Hairpinning.
    Hairpinning,
    /// Fragments.
    Fragments,
    /// Time to live.
    Ttl,
    /// ICMP queries and errors.
    Icmp,
    /// Unsolicited SYNs, simultaneous open.
    Tcp,
    /// How long flows are kept, and what refreshes them.
    Timers,
    /// What happens past the last port.
    Exhaustion,
}

impl Part {
    /// All, in the order in which they are looked at.
    pub const ALL: [Part; 10] = [
        Part::Mapping,
        Part::Filtering,
        Part::Ports,
        Part::Hairpinning,
        Part::Fragments,
        Part::Ttl,
        Part::Icmp,
        Part::Tcp,
        Part::Timers,
        Part::Exhaustion,
    ];

    /// How long it takes about in real time.
    fn seconds(self, options: &ProbeOptions) -> f64 {
        let patience = options.patience.as_secs_f64();
        match self {
            // Beside them crowds, each waited for until nothing comes any more.
            Part::Mapping => 9.0 * patience,
            Part::Filtering => 6.0 * patience,
            Part::Hairpinning | Part::Ttl => 4.0 * patience,
            // Each datagram is waited for to the end: pieces may follow.
            Part::Fragments => 20.0 * patience,
            // Hosts that have used up their ports are waited for.
            Part::Ports => 20.0 * patience,
            Part::Icmp => 12.0 * patience,
            // It waits two times for what is to come after six seconds.
            Part::Tcp => 15.0 + 2.0 * patience,
            // One pass up to the limit, a second one for times near it, then what refreshes.
            Part::Timers => 2.5 * options.timers.max.as_secs_f64() + 10.0,
            Part::Exhaustion => exhaustion_seconds(options),
        }
    }
}

fn exhaustion_seconds(options: &ProbeOptions) -> f64 {
    f64::from(options.exhaust_max) / 1_000.0 + 10.0
}

/// What is looked for, and how patiently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProbeOptions {
    /// In which order whatever stands here.
    pub parts: Vec<Part>,
    /// A packet that has not come after this time is lost.
    pub patience: Duration,
    /// How timers are looked for.
    pub timers: TimerLimits,
    /// Flows one host opens at most, to see what happens past the last port.
    pub exhaust_max: u32,
    /// Decides ports and sequence numbers.
    pub seed: u64,
    /// What the device's subscribers are.
    pub family: Family,
    /// Whether the tester's ports hand over datagrams in place of their fragments, as the kernel's
    /// packet sockets do when they are asked to.
    pub arrive_whole: bool,
}

/// All that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// One after the other, each name once.
    pub findings: Vec<Finding>,
    /// The times behind the findings about timers.
    pub timers: Vec<Timer>,
    /// Whether it was ended by a signal before all was looked at: what is here was found until
    /// then.
    pub interrupted: bool,
}

impl ProbeReport {
    /// The finding of this name.
    pub fn finding(&self, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.name == name)
    }
}

/// How far the probe is.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// A part begins.
    Part {
        /// Which.
        part: Part,
        /// Seconds that it and those after it will take about.
        seconds_left: f64,
    },
    /// Something was found.
    Found(&'a Finding),
    /// This takes a while.
    Waiting {
        /// What is waited for.
        what: &'static str,
        /// Flows that are asked.
        flows: usize,
        /// The longest it takes.
        at_most: Duration,
    },
}

/// Datagrams that are sent before the probe gives up.
const TRIES: u32 = 10;

/// Probes the NAT of this world. The callback gets each finding as soon as it is there, and before
/// longer waits.
///
/// # Errors
/// When nothing gets through, or the tester fails. Not when it is interrupted after that: the
/// report says so and has what was found.
pub fn probe(
    world: &mut dyn World,
    site: Site,
    options: &ProbeOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<ProbeReport, ProbeError> {
    let mut prober = Prober::new(world, site, options.patience, options.seed);
    make_sure_something_passes(&mut prober)?;
    let mut report = ProbeReport::default();
    let parts: Vec<Part> = Part::ALL.into_iter().filter(|part| options.parts.contains(part)).collect();
    for (position, part) in parts.iter().copied().enumerate() {
        progress(Progress::Part {
            part,
            seconds_left: parts[position..].iter().map(|part| part.seconds(options)).sum(),
        });
        let found = match find(&mut prober, part, options, &mut report.timers, progress) {
            Err(ProbeError::World(WorldError::Interrupted)) => {
                report.interrupted = true;
                // Times are known better and better while they are looked for.
                if part == Part::Timers { timers::findings(&report.timers) } else { Vec::new() }
            }
            found => found?,
        };
        for finding in found {
            progress(Progress::Found(&finding));
            report.findings.push(finding);
        }
        if report.interrupted {
            break;
        }
    }
    Ok(report)
}

fn find(
    prober: &mut Prober<'_>,
    part: Part,
    options: &ProbeOptions,
    timers: &mut Vec<Timer>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Finding>, ProbeError> {
    let mut findings = Vec::new();
    match part {
        Part::Mapping => {
            for protocol in [Protocol::Udp, Protocol::Tcp, Protocol::Icmp] {
                findings.push(mapping::find(prober, protocol)?);
            }
        }
        Part::Filtering => {
            for protocol in [Protocol::Udp, Protocol::Tcp] {
                findings.push(filtering::find(prober, protocol)?);
            }
            findings.push(filtering::between_protocols(prober)?);
        }
        Part::Ports => findings = assignment::find(prober)?,
        Part::Hairpinning => findings = hairpin::find(prober)?,
        Part::Fragments => {
            findings = fragments::find(prober, options.arrive_whole)?;
            findings.extend(fragment_burst::find(prober)?);
        }
        Part::Ttl => findings = ttl::find(prober)?,
        Part::Icmp => findings = icmp::find(prober, options.family)?,
        Part::Tcp => findings = handshake::find(prober)?,
        Part::Exhaustion => {
            progress(Progress::Waiting {
                what: "exhaustion",
                flows: options.exhaust_max as usize,
                at_most: Duration::from_secs_f64(exhaustion_seconds(options)),
            });
            findings = exhaustion::find(prober, options.exhaust_max, timers)?;
        }
        Part::Timers => {
            timers::measure(prober, &FlowState::ALL, &options.timers, timers, progress)?;
            findings = timers::findings(timers);
        }
    }
    Ok(findings)
}

/// A datagram has to get out from another address and its answer in, or nothing that follows means
/// anything. The first ones may be lost to ARP.
fn make_sure_something_passes(prober: &mut Prober<'_>) -> Result<(), ProbeError> {
    let (internal, remote) = (prober.fresh(), prober.remote(0, 1000));
    let mut left = 0;
    for _ in 0..TRIES {
        let Some(external) = prober.open(Protocol::Udp, internal, remote)? else { continue };
        if external.ip() == internal.ip() {
            return Err(ProbeError::NothingTranslated { inside: *internal.ip(), remote: *remote.ip() });
        }
        left += 1;
        if prober.udp_reaches(remote, external, internal)? {
            return Ok(());
        }
    }
    Err(ProbeError::NothingPasses { sent: TRIES, left, inside: *internal.ip(), remote: *remote.ip() })
}
