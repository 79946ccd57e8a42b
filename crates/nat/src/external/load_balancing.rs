//! External endpoints that lead to several inside targets, by weighted rendezvous hashing (ADR 7).
//!
//! Each worker on a packet's way chooses anew. After a change of the list the choice may differ, so
//! lists that may have sessions are kept as *generations*, oldest first. A packet visits their
//! workers in this order, and only the last stop opens a session. Its stops are the same under all
//! settings, so no session opens twice.

use core::net::Ipv4Addr;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::external::static_mapping::Run;
use crate::external::static_mapping::Runs;
use crate::external::static_mapping::external_key;
use crate::policy::redirection::Target;
use crate::random::mix;
use crate::rows::BalancedView;
use crate::settings::Admission;
use crate::settings::BalancedForward;
use crate::settings::Forward;
use crate::settings::Settings;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::InsideHost;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::RemoteOutside;

#[cfg(test)]
mod tests;

/// Lists of targets with sessions, for one external endpoint.
pub const TARGET_GENERATIONS_MAX: usize = 16;

#[derive(Debug)]
pub(crate) struct TargetGeneration {
    id: u32,
    realm: RealmId,
    /// External port of a target's configured port; the others follow.
    base: u16,
    is_sticky: bool,
    targets: Box<[Target]>,
    hits: Box<[AtomicU64]>,
    flows: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aim {
    pub(crate) position: usize,
    pub(crate) realm: RealmId,
    pub(crate) address: HostNumber,
    pub(crate) port: u16,
}

impl TargetGeneration {
    fn new(id: u32, forward: &Lead, before: Option<&TargetGeneration>) -> TargetGeneration {
        let known = |target: &Target| {
            let position =
                before?.targets.iter().position(|old| (old.address, old.port) == (target.address, target.port));
            Some(before?.hits(position?))
        };
        TargetGeneration {
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

    pub(crate) fn choose(&self, port: u16, remote_outside: RemoteOutside) -> Option<Aim> {
        let remote_outside = if self.is_sticky { RemoteOutside { port: 0, ..remote_outside } } else { remote_outside };
        let score = |target: &Target| {
            let remote = u64::from(remote_outside.address) << 16 | u64::from(remote_outside.port);
            let itself =
                u64::from(self.realm.0) << 48 | u64::from(target.address) << 16 | u64::from(target.port.unwrap_or(0));
            // Uniform in (0, 1). A target has the least -ln(u)/w as often as its weight w demands.
            let u = ((mix(mix(remote) ^ itself) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
            -u.ln() / f64::from(target.weight)
        };
        let scores = self.targets.iter().map(score).enumerate();
        let (position, _) = scores.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        self.aim(position, port)
    }

    pub(crate) fn aim(&self, position: usize, port: u16) -> Option<Aim> {
        let target = self.targets.get(position)?;
        let port = target.port.map_or(port, |first| first.wrapping_add(port.wrapping_sub(self.base)));
        Some(Aim { position, realm: self.realm, address: HostNumber(target.address), port })
    }

    pub(crate) fn aims(&self, port: u16) -> impl Iterator<Item = Aim> {
        (0..self.targets.len()).filter_map(move |position| self.aim(position, port))
    }

    fn leads_to(&self, port: u16, realm: RealmId, internal: (HostNumber, u16)) -> bool {
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

    /// Sessions opened while the target stays in the list.
    pub(crate) fn hits(&self, position: usize) -> u64 {
        self.hits.get(position).map_or(0, |hits| hits.load(Ordering::Relaxed))
    }

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

/// Used by the configuration or by sessions.
const TAKEN: u8 = 0;
/// The ports are free; a group never leaves this state.
const FREE: u8 = 1;
/// The next configuration decides whether the ports become free.
const HELD: u8 = 2;

const NEVER: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Group {
    /// Oldest first, each with the time of its replacement.
    generations: Vec<(Arc<TargetGeneration>, Option<Instant>)>,
    pub(crate) origin: Option<Origin>,
    pub(crate) admission: Admission,
    /// When the ports began to lead to several targets; `None` since the start.
    pub(crate) since: Option<Instant>,
    /// When they began again, after they were free.
    pub(crate) again: Option<Instant>,
    pub(crate) is_new: bool,
    state: AtomicU8,
    /// When a removed forward's last session ended, in µs.
    idle_since: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Balanced(u32),
    /// A forward to one target, on ports that led to several before.
    Forward(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop<W> {
    /// The flow may be on this worker: hand the packet on, with the stops so far.
    Next(W, u8),
    /// No worker has the flow; a new one leads here.
    Here(Aim),
    /// No worker has the flow, and none may be made.
    Nowhere,
}

impl Group {
    /// A group with the generations of `before`.
    fn after(before: Option<&Group>, lead: Option<&Lead>, now: Option<Instant>) -> Group {
        let again = before.and_then(|group| {
            let was_nobodys = group.origin.is_none() && lead.is_some();
            if was_nobodys { now } else { group.again }
        });
        let idle_since = before.filter(|_| lead.is_none());
        Group {
            generations: before.map(|group| group.generations.clone()).unwrap_or_default(),
            origin: lead.map(|lead| lead.origin),
            admission: lead.map(|lead| lead.admission).or(before.map(|group| group.admission)).unwrap_or_default(),
            since: before.map_or(now, |group| group.since),
            again,
            is_new: before.is_none(),
            state: AtomicU8::new(TAKEN),
            idle_since: AtomicU64::new(idle_since.map_or(NEVER, |group| group.idle_since.load(Ordering::Relaxed))),
        }
    }

    /// `stays`: the latest remains the current one; `is_led`: the ports still lead somewhere.
    fn end_generations(&mut self, stays: bool, is_led: bool, now: Option<Instant>) {
        if !stays && let Some((_, until)) = self.generations.last_mut() {
            // An earlier end counts.
            *until = until.or(now);
        }
        // Drop only generations that the previous settings had ended, too: one in use may get
        // sessions until all workers have adopted. Drop none while adding a list: packets may be
        // between the old stops.
        let had_ended = |until: &Option<Instant>| until.is_some_and(|until| Some(until) != now);
        let latest = self.generations.last().filter(|_| !is_led).cloned();
        if stays || !is_led || self.generations.len() >= TARGET_GENERATIONS_MAX {
            self.generations.retain(|(generation, until)| !had_ended(until) || generation.has_flows());
        }
        if self.generations.is_empty() {
            // Not free before the hold-down is over.
            self.generations.extend(latest);
        }
    }

    pub(crate) fn generations(&self) -> impl Iterator<Item = &TargetGeneration> {
        self.generations.iter().map(|(generation, _)| &**generation)
    }

    pub(crate) fn current(&self) -> Option<&TargetGeneration> {
        self.origin?;
        self.generations.last().map(|(generation, _)| &**generation)
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// Frees the ports after the last session and the hold-down. All workers must have adopted a
    /// configuration without them.
    pub(crate) fn free(&self, now: Instant, hold_down: Duration) -> bool {
        if self.origin.is_some()
            || self.state.load(Ordering::Relaxed) != TAKEN
            || self.generations().any(TargetGeneration::has_flows)
        {
            return false;
        }
        let idle_since = self.idle_since.load(Ordering::Relaxed).min(now.as_micros());
        self.idle_since.store(idle_since, Ordering::Relaxed);
        if now < Instant::from_micros(idle_since) + hold_down {
            return false;
        }
        self.state.compare_exchange(TAKEN, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn next_stop<W: PartialEq>(
        &self,
        port: u16,
        remote_outside: RemoteOutside,
        behind: u8,
        here: &W,
        worker_of: impl Fn(HostNumber) -> W,
    ) -> Stop<W> {
        let mut step = usize::from(behind);
        for (generation, _) in self.generations.get(step..).unwrap_or(&[]) {
            let Some(aim) = generation.choose(port, remote_outside) else { return Stop::Nowhere };
            let worker = worker_of(aim.address);
            step += 1;
            if worker != *here {
                return Stop::Next(worker, step as u8);
            }
        }
        // With older settings a worker may know fewer stops than the sender, and must open no
        // session.
        let is_last = step == self.generations.len();
        match self.current().filter(|_| is_last).and_then(|generation| generation.choose(port, remote_outside)) {
            Some(aim) if worker_of(aim.address) == *here => Stop::Here(aim),
            _ => Stop::Nowhere,
        }
    }

    /// When an internal endpoint ceased to be a target.
    pub(crate) fn left(&self, port: u16, realm: RealmId, internal: (HostNumber, u16)) -> Option<Instant> {
        let latest = self.generations.iter().rev().find(|(generation, _)| generation.leads_to(port, realm, internal));
        latest.and_then(|(_, until)| *until)
    }

    pub(crate) fn leads_to(&self, port: u16, realm: RealmId, internal: (HostNumber, u16)) -> bool {
        self.current().is_some_and(|generation| generation.leads_to(port, realm, internal))
    }
}

fn protocol_of(key: u64) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| *protocol as u64 == key >> 48)
}

#[derive(Debug)]
pub(crate) struct TooManyGenerations {
    pub(crate) protocol: Protocol,
    pub(crate) external: Endpoint,
}

impl BalancedForward {
    /// What an external port leads to.
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

    /// The external endpoint that leads to this one.
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
        // The order of targets has no meaning.
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

    fn of_one_target(forward: &Forward, inside: Ipv4Addr, position: usize) -> Lead {
        let target = Target { address: inside.to_bits(), port: Some(forward.inside_port), weight: 1 };
        let as_balanced = BalancedForward {
            realm: forward.realm,
            protocol: forward.protocol,
            external: forward.external,
            ports: forward.ports,
            targets: vec![target],
            admission: forward.admission,
            is_sticky: false,
        };
        Lead { origin: Origin::Forward(position as u32), ..Lead::of(&as_balanced, position) }
    }

    /// What the settings lead to several targets, sorted, and the positions of forwards to one
    /// target among it.
    fn all(settings: &Settings, known: &Runs<u32>) -> (Vec<Lead>, Vec<u32>) {
        let balanced = settings.balanced_forwards.iter().enumerate();
        let mut leads: Vec<Lead> = balanced.map(|(position, forward)| Lead::of(forward, position)).collect();
        let mut taken = Vec::new();
        for (position, forward) in settings.forwards.iter().enumerate() {
            // IPv6 hosts have no flows: their forwards wait until earlier ones end.
            let InsideHost::Ipv4(inside) = forward.inside else { continue };
            let lead = Lead::of_one_target(forward, inside, position);
            // Only flows distinguish its sessions from those of earlier targets.
            if known.overlaps(lead.first, lead.last) {
                taken.push(position as u32);
                leads.push(lead);
            }
        }
        leads.sort_unstable_by_key(|lead| lead.first);
        (leads, taken)
    }
}

/// Pieces of ports, each with one history and one new owner.
fn pieces(leads: &[Lead], known: &Runs<u32>) -> Vec<(u64, u64)> {
    let old_ends = known.iter().flat_map(|run| [run.first, run.last + 1]);
    let mut cuts: Vec<u64> = leads.iter().flat_map(|lead| [lead.first, lead.last + 1]).chain(old_ends).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| (cut[0], cut[1] - 1)).collect()
}

#[derive(Debug)]
pub(crate) struct Balance {
    runs: Runs<u32>,
    groups: Vec<Group>,
    generations: BTreeMap<u32, Arc<TargetGeneration>>,
    next_id: u32,
    /// Forwards to one target whose ports led to several before.
    taken: Vec<u32>,
}

impl Balance {
    pub(crate) fn new(settings: &Settings) -> Balance {
        let empty = Balance {
            runs: Runs::new(Vec::new()),
            groups: Vec::new(),
            generations: BTreeMap::new(),
            next_id: 0,
            taken: Vec::new(),
        };
        // Cannot fail without earlier groups.
        empty.followed_by(settings, None).unwrap_or(empty)
    }

    /// Fails if a port would have sessions of more than [`TARGET_GENERATIONS_MAX`] lists.
    pub(crate) fn successor(&self, settings: &Settings, now: Instant) -> Result<Balance, TooManyGenerations> {
        self.followed_by(settings, Some(now))
    }

    fn followed_by(&self, settings: &Settings, now: Option<Instant>) -> Result<Balance, TooManyGenerations> {
        let is_known = |run: &&Run<u32>| self.groups.get(run.to as usize).is_some_and(|group| !group.is_free());
        let known = Runs::new(self.runs.iter().filter(is_known).copied().collect());
        let (leads, taken) = Lead::all(settings, &known);
        let mut next = Balance {
            runs: Runs::new(Vec::new()),
            groups: Vec::new(),
            generations: BTreeMap::new(),
            next_id: self.next_id,
            taken,
        };
        let mut made: Vec<Option<Arc<TargetGeneration>>> = vec![None; leads.len()];
        let mut runs: Vec<Run<u32>> = Vec::new();
        for (first, last) in pieces(&leads, &known) {
            let before = known.find(first).and_then(|(group, _)| self.groups.get(*group as usize));
            let position = leads.partition_point(|lead| lead.first <= first).checked_sub(1);
            let position = position.filter(|position| first <= leads[*position].last);
            let lead = position.map(|position| &leads[position]);
            let stays = match (before.and_then(Group::current), lead) {
                (Some(generation), Some(lead)) => generation.is_of(lead),
                _ => false,
            };
            let mut group = Group::after(before, lead, now);
            group.end_generations(stays, lead.is_some(), now);
            if let Some(position) = position.filter(|_| !stays) {
                let old = before.and_then(|group| group.generations.last()).map(|(generation, _)| &**generation);
                let generation = made[position].get_or_insert_with(|| {
                    next.next_id += 1;
                    Arc::new(TargetGeneration::new(next.next_id, &leads[position], old))
                });
                group.generations.push((Arc::clone(generation), None));
            }
            if group.generations.len() > TARGET_GENERATIONS_MAX {
                let external = Endpoint::new(((first >> 16) as u32).into(), first as u16);
                return Err(TooManyGenerations { protocol: protocol_of(first).unwrap_or(Protocol::Tcp), external });
            }
            if group.generations.is_empty() {
                continue;
            }
            next.generations
                .extend(group.generations.iter().map(|(generation, _)| (generation.id, Arc::clone(generation))));
            runs.push(Run { first, last, to: next.groups.len() as u32 });
            next.groups.push(group);
        }
        next.runs = Runs::new(runs);
        Ok(next)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    #[inline]
    pub(crate) fn find(&self, address: u32, protocol: Protocol, port: u16) -> Option<&Group> {
        if self.is_empty() {
            return None;
        }
        let (group, _) = self.runs.find(external_key(protocol, address, port))?;
        self.groups.get(*group as usize).filter(|group| !group.is_free())
    }

    pub(crate) fn group(&self, number: u32) -> Option<&Group> {
        self.groups.get(number as usize)
    }

    pub(crate) fn removed_forwards(&self) -> impl Iterator<Item = (u32, u32, Protocol, (u16, u16))> {
        let left = self
            .runs
            .iter()
            .filter(|run| self.group(run.to).is_some_and(|group| group.origin.is_none() && !group.is_free()));
        left.filter_map(|run| {
            let (address, protocol) = ((run.first >> 16) as u32, protocol_of(run.first)?);
            Some((run.to, address, protocol, (run.first as u16, run.last as u16)))
        })
    }

    /// Call it when the next configuration takes over: this one must free no more ports.
    pub(crate) fn hold(&self) {
        for group in &self.groups {
            // A free one stays free.
            let _ = group.state.compare_exchange(TAKEN, HELD, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    pub(crate) fn leave(&self, id: u32) {
        let generation = self.generations.get(&id);
        debug_assert!(generation.is_some(), "a generation stays while it has flows");
        if let Some(generation) = generation {
            generation.flows.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn concerns(&self, address: u32) -> bool {
        let mut runs = self.runs.iter().filter(|run| (run.first >> 16) as u32 == address);
        runs.any(|run| {
            let group = self.groups.get(run.to as usize);
            group.is_some_and(|group| group.origin.is_some() || group.generations().any(TargetGeneration::has_flows))
        })
    }

    pub(crate) fn has_taken(&self, forward: u32) -> bool {
        self.taken.contains(&forward)
    }

    /// Ports that lead to several targets, or did and are not free yet.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        self.ports_of(|group| !group.is_free())
    }

    pub(crate) fn led_ports(&self) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        self.ports_of(|group| group.origin.is_some())
    }

    fn ports_of(&self, which: impl Fn(&Group) -> bool) -> impl Iterator<Item = (u32, Protocol, (u16, u16))> {
        let found = self.runs.iter().filter(move |run| self.group(run.to).is_some_and(&which));
        found.filter_map(|run| {
            Some(((run.first >> 16) as u32, protocol_of(run.first)?, (run.first as u16, run.last as u16)))
        })
    }

    pub(crate) fn has_past(&self) -> bool {
        self.groups.iter().any(|group| {
            group.since.or(group.again).is_some() || group.generations.iter().any(|(_, until)| until.is_some())
        })
    }

    pub(crate) fn hits(&self, settings: &Settings, position: usize) -> Vec<u64> {
        let Some(forward) = settings.balanced_forwards.get(position) else { return Vec::new() };
        let group = self.find(forward.external.to_bits(), forward.protocol, forward.ports.0);
        let Some(generation) = group.and_then(Group::current) else { return vec![0; forward.targets.len()] };
        let of = |target: &Target| {
            generation.targets().iter().position(|other| other == target).map_or(0, |found| generation.hits(found))
        };
        forward.targets.iter().map(of).collect()
    }
}
