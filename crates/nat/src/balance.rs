//! External endpoints that lead to several inside targets: inbound load balancing.
//!
//! Each remote endpoint is led to one target, chosen by weighted rendezvous hashing: every target gets a number for the remote
//! endpoint, and the lowest wins. So a target that comes takes its share from all others, one that goes leaves its own to them,
//! and no other remote endpoint is led elsewhere. Which target it was is remembered by a flow (`flow.rs`), on the worker of the
//! target, so that a session stays where it is whatever becomes of the list.
//!
//! Who receives a packet finds that worker by choosing again. After a change of the list the choice may be another one, so lists
//! that sessions may be left of are kept as *eras*, oldest first, and a packet visits the workers they lead to in this order. A
//! session is opened at the last stop only. Every packet of one remote endpoint passes the same stops in the same order, whichever
//! settings each worker goes by at that moment, so no two workers open the same session (ADR 7).
//!
//! ```text
//!   protocol | external address | port ──► run of ports ──► group: eras, of which the last may be in force
//! ```
//!
//! Ports that lead nowhere any more are kept from everybody while sessions are left, and rest after the last one like those of a
//! mapping. Then they are free, without a further change ([`Group::free`]).

use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::random::mix;
use crate::redirection::Target;
use crate::settings::Admission;
use crate::settings::BalancedForward;
use crate::settings::Settings;
use crate::statics::Run;
use crate::statics::Runs;
use crate::statics::external_key;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::view::BalancedView;

#[cfg(test)]
mod tests;

/// Lists of targets, the present one among them, that one external endpoint may have sessions of at the same time.
pub const ERAS_MAX: usize = 16;

/// One list of targets, as long as it is in force or has sessions.
#[derive(Debug)]
pub(crate) struct Era {
    /// Flows name it by this number.
    id: u32,
    realm: RealmId,
    /// The external port that a target's port belongs to; the others follow.
    base: u16,
    is_sticky: bool,
    targets: Box<[Target]>,
    /// By target, the sessions opened.
    hits: Box<[AtomicU64]>,
    /// Flows that were made by it and are there still, over all workers.
    flows: AtomicU32,
}

/// Where a remote endpoint is led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aim {
    /// Position in the list of targets.
    pub(crate) position: usize,
    pub(crate) realm: RealmId,
    pub(crate) address: u32,
    pub(crate) port: u16,
}

impl Era {
    fn new(id: u32, forward: &Lead, before: Option<&Era>) -> Era {
        let known = |target: &Target| {
            let position =
                before?.targets.iter().position(|old| (old.address, old.port) == (target.address, target.port));
            Some(before?.hits(position?))
        };
        Era {
            id,
            realm: forward.realm,
            base: forward.ports.0,
            is_sticky: forward.is_sticky,
            hits: forward.targets.iter().map(|target| AtomicU64::new(known(target).unwrap_or(0))).collect(),
            targets: forward.targets.clone().into_boxed_slice(),
            flows: AtomicU32::new(0),
        }
    }

    fn is_of(&self, forward: &Lead) -> bool {
        *self.targets == *forward.targets
            && (self.realm, self.base, self.is_sticky) == (forward.realm, forward.ports.0, forward.is_sticky)
    }

    /// The target of a remote endpoint, for this external port.
    pub(crate) fn choose(&self, port: u16, far: (u32, u16)) -> Option<Aim> {
        let far = if self.is_sticky { (far.0, 0) } else { far };
        let score = |target: &Target| {
            let remote = u64::from(far.0) << 16 | u64::from(far.1);
            let itself =
                u64::from(self.realm.0) << 48 | u64::from(target.address) << 16 | u64::from(target.port.unwrap_or(0));
            // Evenly within (0, 1), so that the least of -ln(u)/w is a target's as often as its weight says.
            let u = ((mix(mix(remote) ^ itself) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            -u.ln() / f64::from(target.weight)
        };
        let scores = self.targets.iter().map(score).enumerate();
        let (position, _) = scores.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        self.aim(position, port)
    }

    /// A target, for this external port.
    pub(crate) fn aim(&self, position: usize, port: u16) -> Option<Aim> {
        let target = self.targets.get(position)?;
        let port = target.port.map_or(port, |first| first.wrapping_add(port.wrapping_sub(self.base)));
        Some(Aim { position, realm: self.realm, address: target.address, port })
    }

    /// Whether an internal endpoint is a target for this external port.
    fn leads_to(&self, port: u16, realm: RealmId, internal: (u32, u16)) -> bool {
        let aims = (0..self.targets.len()).filter_map(|position| self.aim(position, port));
        aims.into_iter().any(|aim| (aim.realm, aim.address, aim.port) == (realm, internal.0, internal.1))
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn realm(&self) -> RealmId {
        self.realm
    }

    pub(crate) fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Sessions opened to a target; they are counted on while it stays in the list.
    pub(crate) fn hits(&self, position: usize) -> u64 {
        self.hits.get(position).map_or(0, |hits| hits.load(Ordering::Relaxed))
    }

    /// A flow was made.
    pub(crate) fn enter(&self, position: usize) {
        self.flows.fetch_add(1, Ordering::Relaxed);
        if let Some(hits) = self.hits.get(position) {
            hits.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn has_flows(&self) -> bool {
        self.flows.load(Ordering::Relaxed) != 0
    }
}

/// Of a group: the configuration, or sessions, have its ports.
const TAKEN: u8 = 0;
/// Nobody has them. That is so once and for all.
const FREE: u8 = 1;
/// The next configuration says what becomes of them.
const HELD: u8 = 2;

/// No time at all.
const NEVER: u64 = u64::MAX;

/// The lists of targets of some external ports.
#[derive(Debug)]
pub(crate) struct Group {
    /// Oldest first, each with the time when it was in force no more.
    eras: Vec<(Arc<Era>, Option<Instant>)>,
    /// What the last era is of, while it is in force.
    pub(crate) origin: Option<Origin>,
    /// Who may open a session.
    pub(crate) admission: Admission,
    /// Since when the ports lead to several; None: since the start.
    pub(crate) since: Option<Instant>,
    /// Since when they do so again, after a time in which they may have been free.
    pub(crate) again: Option<Instant>,
    /// Under the configuration before, nothing was known of these ports.
    pub(crate) is_new: bool,
    /// [`TAKEN`], [`FREE`] or [`HELD`].
    state: AtomicU8,
    /// The µs at which no session was left of those the configuration speaks of no more.
    idle_since: AtomicU64,
}

/// What the configuration says of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A forward to several targets, by position.
    Balanced(u32),
    /// A forward to one, by position, of ports that led to several before.
    Forward(u32),
}

/// What there is to do with a packet that is no flow's of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop<W> {
    /// Another worker may have its flow, or is to open one: hand it on, with the number of stops behind it.
    Next(W, u8),
    /// No worker has a flow of it, and one would lead here.
    Here(Aim),
    /// No worker has one, and none may be made.
    Nowhere,
}

impl Group {
    /// The eras, oldest first.
    pub(crate) fn eras(&self) -> impl Iterator<Item = &Era> {
        self.eras.iter().map(|(era, _)| &**era)
    }

    /// The list that is in force.
    pub(crate) fn current(&self) -> Option<&Era> {
        self.origin?;
        self.eras.last().map(|(era, _)| &**era)
    }

    /// Whether nobody has these ports any more.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// Frees the ports if no session is left and they have rested; whether it did. All workers go by a configuration that does not
    /// speak of them, so that none comes any more.
    pub(crate) fn free(&self, now: Instant, rest: Duration) -> bool {
        if self.origin.is_some() || self.state.load(Ordering::Relaxed) != TAKEN || self.eras().any(Era::has_flows) {
            return false;
        }
        let idle_since = self.idle_since.load(Ordering::Relaxed).min(now.as_micros());
        self.idle_since.store(idle_since, Ordering::Relaxed);
        if now < Instant::from_micros(idle_since) + rest {
            return false;
        }
        self.state.compare_exchange(TAKEN, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Where a packet from `far` to this external port goes on from a worker that has no flow of it, with so many stops behind it.
    pub(crate) fn next_stop<W: PartialEq>(
        &self,
        port: u16,
        far: (u32, u16),
        behind: u8,
        here: &W,
        worker_of: impl Fn(u32) -> W,
    ) -> Stop<W> {
        let mut step = usize::from(behind);
        for (era, _) in self.eras.get(step..).unwrap_or(&[]) {
            let Some(aim) = era.choose(port, far) else { return Stop::Nowhere };
            let worker = worker_of(aim.address);
            step += 1;
            if worker != *here {
                return Stop::Next(worker, step as u8);
            }
        }
        // A worker that goes by older settings has fewer stops than who sent the packet: it has none to make.
        let is_last = step == self.eras.len();
        match self.current().filter(|_| is_last).and_then(|era| era.choose(port, far)) {
            Some(aim) if worker_of(aim.address) == *here => Stop::Here(aim),
            _ => Stop::Nowhere,
        }
    }

    /// When an internal endpoint ceased to be a target, if it is none now.
    pub(crate) fn left(&self, port: u16, realm: RealmId, internal: (u32, u16)) -> Option<Instant> {
        let latest = self.eras.iter().rev().find(|(era, _)| era.leads_to(port, realm, internal));
        latest.and_then(|(_, until)| *until)
    }

    /// Whether an internal endpoint is a target now.
    pub(crate) fn leads_to(&self, port: u16, realm: RealmId, internal: (u32, u16)) -> bool {
        self.current().is_some_and(|era| era.leads_to(port, realm, internal))
    }
}

/// The protocol of an [`external_key`].
fn protocol_of(key: u64) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| *protocol as u64 == key >> 48)
}

/// A change would leave more lists of targets with sessions than there may be.
#[derive(Debug)]
pub(crate) struct TooManyEras {
    pub(crate) protocol: Protocol,
    pub(crate) external: Endpoint,
}

impl BalancedForward {
    /// Where one of its external ports leads.
    pub fn view(&self, port: u16) -> BalancedView {
        let offset = port.wrapping_sub(self.ports.0);
        let target = |target: &Target| {
            let port = target.port.map_or(port, |first| first.wrapping_add(offset));
            (Endpoint::new(target.address.into(), port), target.weight)
        };
        BalancedView {
            protocol: self.protocol,
            realm: self.realm,
            external: Endpoint::new(self.external, port),
            targets: self.targets.iter().map(target).collect(),
        }
    }

    /// The external endpoint that leads to this internal one, if one does.
    pub fn external_of(&self, realm: RealmId, internal: Endpoint) -> Option<Endpoint> {
        let (first, last) = self.ports;
        let is_it = |target: &&Target| target.address == internal.address.to_bits() && self.realm == realm;
        let ports = self.targets.iter().filter(is_it).filter_map(|target| {
            let offset = internal.port.checked_sub(target.port.unwrap_or(first))?;
            first.checked_add(offset).filter(|port| *port <= last)
        });
        ports.into_iter().next().map(|port| Endpoint::new(self.external, port))
    }
}

/// One forward, of either kind.
struct Lead {
    first: u64,
    last: u64,
    ports: (u16, u16),
    realm: RealmId,
    targets: Vec<Target>,
    is_sticky: bool,
    admission: Admission,
    origin: Origin,
}

impl Lead {
    fn of(forward: &BalancedForward, position: usize) -> Lead {
        let mut targets = forward.targets.clone();
        // Their order means nothing.
        targets.sort_unstable_by_key(|target| (target.address, target.port));
        let first = external_key(forward.protocol, forward.external.to_bits(), forward.ports.0);
        Lead {
            first,
            last: first + u64::from(forward.ports.1 - forward.ports.0),
            ports: forward.ports,
            realm: forward.realm,
            targets,
            is_sticky: forward.is_sticky,
            admission: forward.admission,
            origin: Origin::Balanced(position as u32),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Balance {
    runs: Runs<u32>,
    groups: Vec<Group>,
    /// By number.
    eras: BTreeMap<u32, Arc<Era>>,
    next_id: u32,
    /// Forwards to one inside endpoint, by position, whose ports led to several before: they are here, and nowhere else.
    taken: Vec<u32>,
}

impl Balance {
    /// Of the settings an instance starts with.
    pub(crate) fn new(settings: &Settings) -> Balance {
        let empty = Balance {
            runs: Runs::new(Vec::new()),
            groups: Vec::new(),
            eras: BTreeMap::new(),
            next_id: 0,
            taken: Vec::new(),
        };
        // Nothing was before, so that nothing is left of it.
        empty.followed_by(settings, None).unwrap_or(empty)
    }

    /// Of the settings that follow at this time.
    ///
    /// # Errors
    /// When some ports would have sessions of more than [`ERAS_MAX`] lists.
    pub(crate) fn successor(&self, settings: &Settings, now: Instant) -> Result<Balance, TooManyEras> {
        self.followed_by(settings, Some(now))
    }

    fn followed_by(&self, settings: &Settings, now: Option<Instant>) -> Result<Balance, TooManyEras> {
        let is_known = |run: &&Run<u32>| self.groups.get(run.to as usize).is_some_and(|group| !group.is_free());
        let known = Runs::new(self.runs.iter().filter(is_known).copied().collect());
        let mut leads: Vec<Lead> = settings
            .balanced_forwards
            .iter()
            .enumerate()
            .map(|(position, forward)| Lead::of(forward, position))
            .collect();
        let mut taken = Vec::new();
        for (position, forward) in settings.forwards.iter().enumerate() {
            let target = Target { address: forward.inside.to_bits(), port: Some(forward.inside_port), weight: 1 };
            let as_balanced = BalancedForward {
                realm: forward.realm,
                protocol: forward.protocol,
                external: forward.external,
                ports: forward.ports,
                targets: vec![target],
                admission: forward.admission,
                is_sticky: false,
            };
            let lead = Lead { origin: Origin::Forward(position as u32), ..Lead::of(&as_balanced, position) };
            // Sessions of the targets before it are told apart by flows only, so its own have to be.
            if known.overlaps(lead.first, lead.last) {
                taken.push(position as u32);
                leads.push(lead);
            }
        }
        leads.sort_unstable_by_key(|lead| lead.first);
        let mut next = Balance {
            runs: Runs::new(Vec::new()),
            groups: Vec::new(),
            eras: BTreeMap::new(),
            next_id: self.next_id,
            taken,
        };
        let mut made: Vec<Option<Arc<Era>>> = vec![None; leads.len()];
        let mut runs: Vec<Run<u32>> = Vec::new();
        // The ends of all runs, old and new, cut the ports into pieces of which each has one past and one future.
        let old_ends = known.iter().flat_map(|run| [run.first, run.last + 1]);
        let mut cuts: Vec<u64> = leads.iter().flat_map(|lead| [lead.first, lead.last + 1]).chain(old_ends).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for piece in cuts.windows(2) {
            let (first, last) = (piece[0], piece[1] - 1);
            let before = known.find(first).and_then(|(group, _)| self.groups.get(*group as usize));
            let lead = leads.partition_point(|lead| lead.first <= first).checked_sub(1);
            let lead = lead.filter(|lead| first <= leads[*lead].last);
            let mut group = Group {
                eras: Vec::new(),
                origin: None,
                admission: before.map(|group| group.admission).unwrap_or_default(),
                since: before.map_or(now, |group| group.since),
                again: before.and_then(|group| {
                    let was_nobodys = group.origin.is_none() && lead.is_some();
                    if was_nobodys { now } else { group.again }
                }),
                is_new: before.is_none(),
                state: AtomicU8::new(TAKEN),
                idle_since: AtomicU64::new(
                    before.filter(|_| lead.is_none()).map_or(NEVER, |group| group.idle_since.load(Ordering::Relaxed)),
                ),
            };
            if let Some(before) = before {
                group.eras.clone_from(&before.eras);
            }
            let stays = match (before.and_then(Group::current), lead) {
                (Some(era), Some(lead)) => era.is_of(&leads[lead]),
                _ => false,
            };
            if !stays && let Some((_, until)) = group.eras.last_mut() {
                // Of one that had ended before the earlier time counts.
                *until = until.or(now);
            }
            // Only what workers made nothing by under the settings before, either: what is in force now may get sessions until
            // all have adopted. And not together with a new list, as packets may be under way between the stops of before.
            let had_ended = |until: &Option<Instant>| until.is_some_and(|until| Some(until) != now);
            let latest = group.eras.last().filter(|_| lead.is_none()).cloned();
            if stays || lead.is_none() || group.eras.len() >= ERAS_MAX {
                group.eras.retain(|(era, until)| !had_ended(until) || era.has_flows());
            }
            if group.eras.is_empty() {
                // The ports are not free before they have rested.
                group.eras.extend(latest);
            }
            if let Some(lead) = lead {
                let old = before.and_then(|group| group.eras.last()).map(|(era, _)| &**era);
                if !stays {
                    let era = made[lead].get_or_insert_with(|| {
                        next.next_id += 1;
                        Arc::new(Era::new(next.next_id, &leads[lead], old))
                    });
                    group.eras.push((Arc::clone(era), None));
                }
                group.origin = Some(leads[lead].origin);
                group.admission = leads[lead].admission;
            }
            if group.eras.len() > ERAS_MAX {
                let external = Endpoint::new(((first >> 16) as u32).into(), first as u16);
                return Err(TooManyEras { protocol: protocol_of(first).unwrap_or(Protocol::Tcp), external });
            }
            if group.eras.is_empty() {
                // Nothing was here, and nothing is.
                continue;
            }
            next.eras.extend(group.eras.iter().map(|(era, _)| (era.id, Arc::clone(era))));
            runs.push(Run { first, last, to: next.groups.len() as u32 });
            next.groups.push(group);
        }
        next.runs = Runs::new(runs);
        Ok(next)
    }

    /// Whether no external endpoint leads to several.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The lists of an external endpoint, if it has any.
    #[inline]
    pub(crate) fn find(&self, address: u32, protocol: Protocol, port: u16) -> Option<&Group> {
        if self.is_empty() {
            return None;
        }
        let (group, _) = self.runs.find(external_key(protocol, address, port))?;
        self.groups.get(*group as usize).filter(|group| !group.is_free())
    }

    /// By number.
    pub(crate) fn group(&self, number: u32) -> Option<&Group> {
        self.groups.get(number as usize)
    }

    /// The ports that the configuration speaks of no more, as far as they are not free: group, address, protocol and range.
    pub(crate) fn leftovers(&self) -> impl Iterator<Item = (u32, u32, Protocol, (u16, u16))> {
        let left = self
            .runs
            .iter()
            .filter(|run| self.group(run.to).is_some_and(|group| group.origin.is_none() && !group.is_free()));
        left.filter_map(|run| {
            let (address, protocol) = ((run.first >> 16) as u32, protocol_of(run.first)?);
            Some((run.to, address, protocol, (run.first as u16, run.last as u16)))
        })
    }

    /// Another configuration is about to be in force: ports that are not free now are not freed by this one any more.
    pub(crate) fn hold(&self) {
        for group in &self.groups {
            // One that is free stays so.
            let _ = group.state.compare_exchange(TAKEN, HELD, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// A flow of this era ended.
    pub(crate) fn leave(&self, id: u32) {
        let era = self.eras.get(&id);
        debug_assert!(era.is_some(), "an era stays while it has flows");
        if let Some(era) = era {
            era.flows.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether an external address has, or may get, flows here.
    pub(crate) fn concerns(&self, address: u32) -> bool {
        let mut runs = self.runs.iter().filter(|run| (run.first >> 16) as u32 == address);
        runs.any(|run| {
            let group = self.groups.get(run.to as usize);
            group.is_some_and(|group| group.origin.is_some() || group.eras().any(Era::has_flows))
        })
    }

    /// Whether this forward to one inside endpoint is here.
    pub(crate) fn has_taken(&self, forward: u32) -> bool {
        self.taken.contains(&forward)
    }

    /// All external ports that lead to several, or did and are not free: address, protocol and range.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        self.ports_of(|group| !group.is_free())
    }

    /// Those that do now.
    pub(crate) fn led_ports(&self) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        self.ports_of(|group| group.origin.is_some())
    }

    fn ports_of(&self, which: impl Fn(&Group) -> bool) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        let found = self.runs.iter().filter(move |run| self.group(run.to).is_some_and(&which));
        found.filter_map(|run| {
            Some(((run.first >> 16) as u32, protocol_of(run.first)?, (run.first as u16, run.last as u16)))
        })
    }

    /// Whether sessions may have to end at a given time: those of targets that are gone, and mappings that had the ports before.
    pub(crate) fn has_past(&self) -> bool {
        self.groups
            .iter()
            .any(|group| group.since.or(group.again).is_some() || group.eras.iter().any(|(_, until)| until.is_some()))
    }

    /// By forward to several, and by target in the order of the settings, the sessions opened.
    pub(crate) fn hits(&self, settings: &Settings, position: usize) -> Vec<u64> {
        let Some(forward) = settings.balanced_forwards.get(position) else { return Vec::new() };
        let group = self.find(forward.external.to_bits(), forward.protocol, forward.ports.0);
        let Some(era) = group.and_then(Group::current) else { return vec![0; forward.targets.len()] };
        let of =
            |target: &Target| era.targets().iter().position(|other| other == target).map_or(0, |found| era.hits(found));
        forward.targets.iter().map(of).collect()
    }
}
