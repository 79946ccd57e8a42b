//! The neighbour cache of one worker, with the packets that wait for an answer.
//!
//! ```text
//!  slots (open addressing, u32)          entries (dense)                    waiting (free list)
//!  ┌───┬───┬───┬───┬───┐                 ┌────────────────────────┐         ┌────────┐
//!  │   │ 2 │   │ 0 │ 1 │  ── index ──►   │ key, MAC, state, timer │ ─first─►│ packet │─next─► …
//!  └───┴───┴───┴───┴───┘                 └────────────────────────┘         └────────┘
//! ```
//!
//! Everything is taken once, at start. Entries are dense so that the sweep visits only what exists;
//! removing one moves the last into its place.
//!
//! A full cache gives up an old neighbour for a new one (RFC 6583 §6). Those without an answer are
//! in lists by the source of the packets that ask for them, and those with one by their station.
//! The oldest one of the longest list goes. So a source that asks for many addresses, and a station
//! that has many, leave room for others. In the same way, a packet takes the place of one of the
//! list with the most waiting packets: one neighbour may have many while no other needs them.
//!
//! A neighbour that did not answer is absent: packets to it are dropped at once, and while there
//! are any, it is asked again every second.

use core::net::IpAddr;

use arrayvec::ArrayVec;
use nat::Duration;
use nat::Instant;
use nat::types::InterfaceId;
use wire::ethernet::MacAddress;

/// Time between requests for the same neighbour (RFC 1122 §2.3.2.1: at most one per second).
pub const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Requests before a neighbour counts as absent, and unicast probes before a known one counts as
/// gone.
pub const ATTEMPTS_MAX: u8 = 3;
/// How long an answer is trusted (RFC 1122 §2.3.2.1: "on the order of a minute"). A neighbour used
/// within that time is probed by unicast, and keeps being used meanwhile; an unused one is
/// forgotten.
pub const TRUSTED_FOR: Duration = Duration::from_secs(60);

/// Lists of neighbours without an answer, by source; and as many of those with one, by station.
const LISTS: usize = 64;
/// The most entries that are looked at to find a packet that gives up its place.
const VICTIMS_MAX: usize = 16;
/// The last routers whose silence or answer is remembered.
const ROUTERS_MAX: usize = 8;
/// The most entries that a call of [`Neighbours::next_action`] looks at.
const SWEEP_MAX: usize = 32;
/// "No slot", "no packet".
const NONE: u32 = u32::MAX;

/// Bounds of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourLimits {
    /// Neighbours known or asked for.
    pub neighbours_max: u32,
    /// Of these, neighbours that have not answered yet. The others are left to known ones, so that
    /// a scan of an empty subnet takes no place of theirs.
    pub unresolved_max: u32,
    /// Packets waiting for one neighbour.
    pub waiting_per_neighbour_max: u8,
    /// Packets waiting for all neighbours together.
    pub waiting_max: u32,
}

impl Default for NeighbourLimits {
    fn default() -> NeighbourLimits {
        NeighbourLimits {
            neighbours_max: 16_384,
            unresolved_max: 1_024,
            // What hosts keep, too (Linux: about 100): a first burst to a station that is not known
            // yet.
            waiting_per_neighbour_max: 128,
            // Four such bursts at once. Each is a buffer that no ring has meanwhile.
            waiting_max: 512,
        }
    }
}

/// An address of a neighbour: IPv4 as `u32`, IPv6 as `u128`, in host bit order.
pub trait Address: Copy + Eq + core::fmt::Debug {
    /// A mix of all its bits. Outsiders must not find addresses with equal mixes.
    fn fold(self, secret: u64) -> u64;
}

impl Address for u32 {
    #[inline(always)]
    fn fold(self, _: u64) -> u64 {
        u64::from(self)
    }
}

impl Address for u128 {
    #[inline]
    fn fold(self, secret: u64) -> u64 {
        let (upper, lower) = ((self >> 64) as u64, self as u64);
        let product = u128::from(lower ^ secret) * u128::from(upper ^ secret.rotate_left(32));
        (product ^ product >> 64) as u64
    }
}

/// What the worker is to do for the cache.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<P, A = u32> {
    /// Send a request for `address`: to everybody, or as a probe to the station that answered last.
    Request {
        /// Interface to ask on.
        interface: InterfaceId,
        /// Address whose owner is wanted, in host bit order.
        address: A,
        /// None: broadcast.
        station: Option<MacAddress>,
    },
    /// Send this packet, whose neighbour has answered.
    Send {
        /// The packet.
        packet: P,
        /// Interface it leaves by.
        interface: InterfaceId,
        /// Link-layer address of the next hop.
        station: MacAddress,
    },
    /// Drop this packet: its neighbour did not answer.
    Unresolved {
        /// The packet.
        packet: P,
        /// Interface it was to leave by.
        interface: InterfaceId,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Asked by broadcast; no address known.
    Asking,
    /// Known and trusted until the timer runs out.
    Known,
    /// Known, and asked by unicast whether it is still there.
    Probing,
    /// Did not answer. Its packets are dropped, and it goes away once no more come.
    Absent,
}

/// Why a packet cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many wait as may.
    Full,
    /// The neighbour has left a question unanswered for a second or longer, and as many wait as
    /// may.
    Silent,
    /// The neighbour has answered no question.
    Absent,
}

/// A router that did not answer, or answered for the first time or again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterView<A = u32> {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Its address.
    pub address: A,
    /// Whether it answers.
    pub answers: bool,
    /// When that was found out the last time.
    pub at: Instant,
}

#[derive(Debug)]
struct Entry<A> {
    address: A,
    interface: InterfaceId,
    state: State,
    attempts: u8,
    used: bool,
    /// A next hop of a route.
    is_router: bool,
    waiting_count: u8,
    station: MacAddress,
    /// When the state calls for something.
    due: Instant,
    /// How long the last answer is good for.
    trusted_until: Instant,
    waiting_first: u32,
    waiting_last: u32,
    /// Its list, and the entries beside it there.
    list: u8,
    older: u32,
    newer: u32,
}

/// Entries from the oldest one to the newest.
#[derive(Clone, Copy, Debug)]
struct List {
    oldest: u32,
    newest: u32,
    count: u32,
    /// Packets that wait for them.
    waiting: u32,
}

#[derive(Debug)]
struct Waiting<P> {
    packet: Option<P>,
    next: u32,
}

impl<A> Entry<A> {
    /// Has missed its first answer.
    fn is_silent(&self, now: Instant) -> bool {
        match self.state {
            State::Asking => self.attempts > 1 || self.attempts == 1 && now >= self.due,
            State::Absent => true,
            State::Known | State::Probing => false,
        }
    }

    /// Drops packets, because it does not answer.
    fn refuses(&self, limits: &NeighbourLimits) -> bool {
        let is_full = self.waiting_count >= limits.waiting_per_neighbour_max;
        self.state == State::Absent || self.state == State::Asking && self.attempts > 1 && is_full
    }
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Asking => "asking",
            State::Known => "known",
            State::Probing => "probing",
            State::Absent => "absent",
        }
    }
}

/// A neighbour of either family, for `show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyView {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Its address.
    pub address: IpAddr,
    /// Its link-layer address, when known.
    pub station: Option<MacAddress>,
    /// What is known about it.
    pub state: &'static str,
    /// Packets that wait for it.
    pub waiting: u32,
    /// A packet to it would be dropped now.
    pub refuses: bool,
    /// The kernel asks for it, and not Natrix.
    pub is_kernel: bool,
}

/// What a neighbour looks like from outside, for `show` and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighbourView<A = u32> {
    /// Interface it is on.
    pub interface: InterfaceId,
    /// Its address, in host bit order.
    pub address: A,
    /// Its link-layer address, when known.
    pub station: Option<MacAddress>,
    /// What is known about it.
    pub state: &'static str,
    /// Packets that wait for it.
    pub waiting: u32,
    /// A packet to it would be dropped now.
    pub refuses: bool,
}

/// The cache; `P` is what waits (a packet buffer and what is to become of it).
#[derive(Debug)]
pub struct Neighbours<P, A = u32> {
    limits: NeighbourLimits,
    secret: u64,
    slots: Vec<u32>,
    entries: Vec<Entry<A>>,
    lists: [List; 2 * LISTS],
    waiting: Vec<Waiting<P>>,
    waiting_free: u32,
    waiting_count: u32,
    unresolved_count: u32,
    /// Entries from here on were not looked at in this lap of the sweep.
    sweep_next: usize,
    /// Changes whenever what was looked up may be no longer so. Never 0.
    generation: u64,
    /// Nothing is due before this.
    next_due: Instant,
    /// Earliest timer seen in this lap.
    lap_due: Instant,
    routers: ArrayVec<RouterView<A>, ROUTERS_MAX>,
}

const NEVER: Instant = Instant::from_micros(u64::MAX);

impl<P, A: Address> Neighbours<P, A> {
    /// An empty cache; `secret` keeps others from choosing addresses that collide.
    pub fn new(limits: NeighbourLimits, secret: u64) -> Neighbours<P, A> {
        let neighbours_max = limits.neighbours_max.max(1) as usize;
        let mut waiting = Vec::with_capacity(limits.waiting_max as usize);
        for index in 0..limits.waiting_max {
            let next = if index + 1 < limits.waiting_max { index + 1 } else { NONE };
            waiting.push(Waiting { packet: None, next });
        }
        Neighbours {
            limits,
            secret: secret | 1,
            slots: vec![NONE; (neighbours_max * 2).next_power_of_two()],
            entries: Vec::with_capacity(neighbours_max),
            lists: [List { oldest: NONE, newest: NONE, count: 0, waiting: 0 }; 2 * LISTS],
            waiting_free: if limits.waiting_max == 0 { NONE } else { 0 },
            waiting,
            waiting_count: 0,
            unresolved_count: 0,
            sweep_next: 0,
            generation: 1,
            next_due: NEVER,
            lap_due: NEVER,
            routers: ArrayVec::new(),
        }
    }

    /// Packets waiting now.
    pub fn waiting_count(&self) -> u32 {
        self.waiting_count
    }

    /// Entries, and those of them without an answer.
    pub fn len(&self) -> (u32, u32) {
        (self.entries.len() as u32, self.unresolved_count)
    }

    /// What [`Neighbours::lookup`] gave stays right while this stays the same.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The link-layer address of a neighbour that is known, and a note that it is in use.
    #[inline]
    pub fn lookup(&mut self, interface: InterfaceId, address: A) -> Option<MacAddress> {
        let entry = self.find(interface, address)?;
        let entry = self.entries.get_mut(entry)?;
        match entry.state {
            // Packets that already wait go first: [`Neighbours::next_action`] sends them, so keep
            // the order.
            State::Known | State::Probing if entry.waiting_count == 0 => {
                entry.used = true;
                Some(entry.station)
            }
            _ => None,
        }
    }

    /// Keeps a packet until its neighbour, which [`Neighbours::lookup`] did not know, has answered.
    /// `source` stands for the sender of the packet. `give_back` gets packets that wait no longer,
    /// because their place or their neighbour was given up for this one.
    ///
    /// # Errors
    /// Gives the packet back when it cannot wait.
    pub fn hold(
        &mut self,
        now: Instant,
        source: u64,
        (interface, address): (InterfaceId, A),
        packet: P,
        mut give_back: impl FnMut(P),
    ) -> Result<(), (P, Refusal)> {
        let mut list = self.mix(source) % LISTS;
        let mut refusal = Refusal::Full;
        if let Some(entry) = self.find(interface, address).and_then(|index| self.entries.get_mut(index)) {
            entry.used = true;
            list = usize::from(entry.list);
            if entry.state == State::Absent {
                return Err((packet, Refusal::Absent));
            }
            if entry.is_silent(now) {
                refusal = Refusal::Silent;
            }
            if entry.waiting_count >= self.limits.waiting_per_neighbour_max {
                return Err((packet, refusal));
            }
        }
        if self.waiting_free == NONE && !self.make_place(now, list, (interface, address), &mut give_back) {
            return Err((packet, refusal));
        }
        let index = match self.find(interface, address) {
            Some(index) => index,
            None => match self.ask(now, list, (interface, address), give_back) {
                Some(index) => index,
                None => return Err((packet, refusal)),
            },
        };
        let Some(entry) = self.entries.get_mut(index) else { return Err((packet, refusal)) };
        let place = self.waiting_free;
        let Some(waiting) = self.waiting.get_mut(place as usize) else { return Err((packet, refusal)) };
        if let Some(list) = self.lists.get_mut(usize::from(entry.list)) {
            list.waiting += 1;
        }
        self.waiting_free = waiting.next;
        *waiting = Waiting { packet: Some(packet), next: NONE };
        let last = core::mem::replace(&mut entry.waiting_last, place);
        if entry.waiting_count == 0 {
            entry.waiting_first = place;
        } else if let Some(waiting) = self.waiting.get_mut(last as usize) {
            waiting.next = place;
        }
        entry.waiting_count += 1;
        self.waiting_count += 1;
        Ok(())
    }

    /// Notes that a neighbour is the next hop of a route, if there is an entry for it.
    pub fn note_router(&mut self, interface: InterfaceId, address: A) {
        if let Some(entry) = self.find(interface, address).and_then(|index| self.entries.get_mut(index)) {
            entry.is_router = true;
        }
    }

    /// The routers that were found silent or answering last.
    pub fn routers(&self) -> &[RouterView<A>] {
        &self.routers
    }

    fn remember_router(&mut self, now: Instant, (interface, address): (InterfaceId, A), answers: bool) {
        let view = RouterView { interface, address, answers, at: now };
        let is_it = |known: &&mut RouterView<A>| known.interface == interface && known.address == address;
        if let Some(known) = self.routers.iter_mut().find(is_it) {
            *known = view;
            return;
        }
        if self.routers.is_full() {
            let oldest = (0..self.routers.len()).min_by_key(|position| self.routers.get(*position).map(|view| view.at));
            self.routers.swap_remove(oldest.unwrap_or(0));
        }
        self.routers.push(view);
    }

    /// Drops a packet so that another one can wait, for a neighbour of this list. It is the oldest
    /// one of the list with the most, or, if that is the same list, of a neighbour that has missed
    /// its first answer. False if there is none.
    fn make_place(
        &mut self,
        now: Instant,
        list: usize,
        (interface, address): (InterfaceId, A),
        give_back: &mut impl FnMut(P),
    ) -> bool {
        let waiting_of = |list: &usize| self.lists.get(*list).map_or(0, |list| list.waiting);
        let Some(most) = (0..2 * LISTS).max_by_key(waiting_of) else { return false };
        let is_own = waiting_of(&most) <= waiting_of(&list) + 1;
        let from = if is_own { list } else { most };
        let mut next = self.lists.get(from).map_or(NONE, |list| list.oldest);
        for _ in 0..VICTIMS_MAX {
            let index = next as usize;
            let Some(entry) = self.entries.get(index) else { return false };
            next = entry.newer;
            let is_same = entry.interface == interface && entry.address == address;
            if entry.waiting_count == 0 || is_same || is_own && !entry.is_silent(now) {
                continue;
            }
            if let Some(packet) = self.pop_waiting(index) {
                give_back(packet);
            }
            self.give_up_if_idle(now, index);
            return true;
        }
        false
    }

    /// Removes a neighbour without an answer for which no packet waits any more.
    fn give_up_if_idle(&mut self, now: Instant, index: usize) {
        let Some(entry) = self.entries.get(index) else { return };
        if entry.waiting_count == 0 && entry.state == State::Asking {
            self.unresolved_count -= 1;
            self.remove(index);
            // The sweep looks at all of them once more, because one may have moved behind it.
            (self.next_due, self.lap_due) = (now, now);
        }
    }

    /// Takes in what an ARP packet says about an address. Returns whether Natrix had asked for it:
    /// only then there is an entry (RFC 826 "merge"), so a sender cannot fill the cache with
    /// made-up addresses.
    pub fn learn(&mut self, now: Instant, interface: InterfaceId, address: A, station: MacAddress) -> bool {
        let Some(index) = self.find(interface, address) else { return false };
        self.unlink(index);
        self.link(index, self.list_of_station(station));
        let Some(entry) = self.entries.get(index) else { return false };
        if matches!(entry.state, State::Asking | State::Absent) {
            self.unresolved_count -= 1;
            if entry.is_router {
                self.remember_router(now, (interface, address), true);
            }
        }
        let Some(entry) = self.entries.get_mut(index) else { return false };
        entry.state = State::Known;
        entry.station = station;
        // Also where the station is the same: whether the neighbour is in use is found out anew.
        self.generation += 1;
        entry.attempts = 0;
        entry.used = false;
        entry.trusted_until = now + TRUSTED_FOR;
        entry.due = entry.trusted_until;
        if entry.waiting_count > 0 {
            // What waits goes next: the sweep continues here, and starts another lap for those it
            // skips.
            entry.used = true;
            entry.due = now;
            self.sweep_next = index;
        }
        self.next_due = self.next_due.min(entry.due);
        self.lap_due = self.lap_due.min(entry.due);
        self.make_room_for_known(now);
        true
    }

    /// A known neighbour says that it is still there.
    pub fn confirm(&mut self, now: Instant, interface: InterfaceId, address: A) {
        let Some(entry) = self.find(interface, address).and_then(|index| self.entries.get(index)) else { return };
        if matches!(entry.state, State::Known | State::Probing) {
            self.learn(now, interface, address, entry.station);
        }
    }

    /// Gives up the known neighbour that was confirmed longest ago of the station with the most, if
    /// too many are known.
    fn make_room_for_known(&mut self, now: Instant) {
        let known_max = self.limits.neighbours_max.saturating_sub(self.limits.unresolved_max).max(1);
        if self.entries.len() as u32 - self.unresolved_count > known_max
            && let Some((_, oldest)) = self.oldest_of_longest(LISTS..2 * LISTS)
            && self.entries.get(oldest).is_some_and(|entry| entry.waiting_count == 0)
        {
            self.remove(oldest);
            // The last one is in its place now.
            if self.sweep_next == self.entries.len() {
                self.sweep_next = oldest;
            }
            // The sweep looks at all of them once more, because one may have moved behind it.
            (self.next_due, self.lap_due) = (now, now);
        }
    }

    /// Another worker found out that the neighbour does not answer, or forgot it.
    pub fn forget(&mut self, now: Instant, interface: InterfaceId, address: A) {
        let Some(index) = self.find(interface, address) else { return };
        let Some(entry) = self.entries.get_mut(index) else { return };
        match entry.state {
            State::Known | State::Probing if entry.waiting_count == 0 => self.remove(index),
            State::Asking => {
                entry.attempts = ATTEMPTS_MAX;
                entry.due = now;
            }
            _ => return,
        }
        // The sweep looks at all of them once more, because one may have moved behind it.
        (self.next_due, self.lap_due) = (now, now);
    }

    /// The next thing to do, or None when nothing is due (or enough was looked at for one call;
    /// more follows at the next poll). Call until it returns None, or a bounded number of times.
    pub fn next_action(&mut self, now: Instant) -> Option<Action<P, A>> {
        if now < self.next_due {
            return None;
        }
        for _ in 0..SWEEP_MAX {
            let Some(entry) = self.entries.get(self.sweep_next) else {
                self.sweep_next = 0;
                self.next_due = core::mem::replace(&mut self.lap_due, NEVER);
                return None;
            };
            if entry.due <= now {
                // The entry stays where the sweep is until nothing more is due for it.
                if let Some(action) = self.act(now, self.sweep_next) {
                    return Some(action);
                }
            } else {
                self.lap_due = self.lap_due.min(entry.due);
                self.sweep_next += 1;
            }
        }
        None
    }

    /// Takes out one packet that waits, whatever its state; used to drain at the end.
    pub fn take_waiting(&mut self) -> Option<P> {
        let index = self.entries.iter().position(|entry| entry.waiting_count > 0)?;
        self.pop_waiting(index)
    }

    /// The entries from position `start` on.
    pub fn views(&self, start: usize) -> impl Iterator<Item = NeighbourView<A>> + '_ {
        self.entries.iter().skip(start).map(|entry| NeighbourView {
            interface: entry.interface,
            address: entry.address,
            station: matches!(entry.state, State::Known | State::Probing).then_some(entry.station),
            state: entry.state.name(),
            waiting: u32::from(entry.waiting_count),
            refuses: entry.refuses(&self.limits),
        })
    }

    /// What is due for the entry at `index`: an action, or None after its timer was set anew or it
    /// was removed.
    fn act(&mut self, now: Instant, index: usize) -> Option<Action<P, A>> {
        let entry = self.entries.get_mut(index)?;
        let (interface, address, station) = (entry.interface, entry.address, entry.station);
        match entry.state {
            State::Asking if entry.attempts < ATTEMPTS_MAX => {
                entry.attempts += 1;
                entry.due = now + RETRY_AFTER;
                entry.used = false;
                Some(Action::Request { interface, address, station: None })
            }
            State::Asking => {
                entry.state = State::Absent;
                if entry.is_router {
                    self.remember_router(now, (interface, address), false);
                }
                None
            }
            State::Absent if entry.waiting_count > 0 => {
                let packet = self.pop_waiting(index)?;
                Some(Action::Unresolved { packet, interface })
            }
            State::Absent if entry.used => {
                entry.used = false;
                entry.due = now + RETRY_AFTER;
                let (list, is_router) = (usize::from(entry.list), entry.is_router);
                if is_router {
                    self.remember_router(now, (interface, address), false);
                }
                // Behind those that packets wait for.
                self.unlink(index);
                self.link(index, list);
                Some(Action::Request { interface, address, station: None })
            }
            State::Absent => {
                self.unresolved_count -= 1;
                self.remove(index);
                None
            }
            State::Known if entry.waiting_count > 0 => {
                let packet = self.pop_waiting(index)?;
                Some(Action::Send { packet, interface, station })
            }
            State::Known if now < entry.trusted_until => {
                entry.due = entry.trusted_until;
                None
            }
            State::Known if entry.used => {
                entry.state = State::Probing;
                entry.attempts = 1;
                entry.due = now + RETRY_AFTER;
                Some(Action::Request { interface, address, station: Some(station) })
            }
            State::Probing if entry.attempts < ATTEMPTS_MAX => {
                entry.attempts += 1;
                entry.due = now + RETRY_AFTER;
                Some(Action::Request { interface, address, station: Some(station) })
            }
            State::Known | State::Probing => {
                self.remove(index);
                None
            }
        }
    }

    fn slot_of(&self, interface: InterfaceId, address: A) -> usize {
        let key = (u64::from(interface.0) << 32) ^ address.fold(self.secret);
        self.mix(key) & (self.slots.len() - 1)
    }

    /// A hash that outsiders cannot foresee.
    fn mix(&self, key: u64) -> usize {
        let mixed = (key ^ self.secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(self.secret);
        (mixed >> 32) as usize
    }

    fn list_of_station(&self, station: MacAddress) -> usize {
        let [a, b, c, d, e, f] = station.0;
        LISTS + self.mix(u64::from_be_bytes([0, 0, a, b, c, d, e, f])) % LISTS
    }

    /// Puts an entry at the end of a list.
    fn link(&mut self, index: usize, list: usize) {
        let Some(place) = self.lists.get_mut(list) else { return };
        let before = core::mem::replace(&mut place.newest, index as u32);
        if before == NONE {
            place.oldest = index as u32;
        }
        place.count += 1;
        place.waiting += self.entries.get(index).map_or(0, |entry| u32::from(entry.waiting_count));
        if let Some(entry) = self.entries.get_mut(before as usize) {
            entry.newer = index as u32;
        }
        if let Some(entry) = self.entries.get_mut(index) {
            (entry.list, entry.older, entry.newer) = (list as u8, before, NONE);
        }
    }

    fn unlink(&mut self, index: usize) {
        let Some(entry) = self.entries.get(index) else { return };
        let (list, older, newer) = (usize::from(entry.list), entry.older, entry.newer);
        let waiting = u32::from(entry.waiting_count);
        self.join(list, (older, newer), (newer, older));
        if let Some(list) = self.lists.get_mut(list) {
            list.count -= 1;
            list.waiting -= waiting;
        }
    }

    /// Lets the entries on both sides of a place in a list point to others: the older one to
    /// `after.0`, the newer one to `after.1`.
    fn join(&mut self, list: usize, (older, newer): (u32, u32), after: (u32, u32)) {
        let Some(list) = self.lists.get_mut(list) else { return };
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = after.0,
            None => list.oldest = after.0,
        }
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = after.1,
            None => list.newest = after.1,
        }
    }

    /// The longest of these lists, and its first entry.
    fn oldest_of_longest(&self, lists: core::ops::Range<usize>) -> Option<(usize, usize)> {
        let longest = lists.max_by_key(|list| self.lists.get(*list).map(|list| list.count))?;
        let oldest = self.lists.get(longest)?.oldest;
        (oldest != NONE).then_some((longest, oldest as usize))
    }

    #[inline]
    fn find(&self, interface: InterfaceId, address: A) -> Option<usize> {
        let mut slot = self.slot_of(interface, address);
        // At most half of the slots are taken, so an empty one ends the search.
        loop {
            let index = *self.slots.get(slot)?;
            let entry = self.entries.get(index as usize)?;
            if entry.address == address && entry.interface == interface {
                return Some(index as usize);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Makes an entry whose first request is due now.
    fn ask(
        &mut self,
        now: Instant,
        list: usize,
        (interface, address): (InterfaceId, A),
        mut give_back: impl FnMut(P),
    ) -> Option<usize> {
        while self.unresolved_count >= self.limits.unresolved_max {
            let (longest, oldest) = self.oldest_of_longest(0..LISTS)?;
            // A source beyond its share waits for the answers to its first questions.
            let is_own = self.lists.get(longest)?.count == self.lists.get(list)?.count;
            let oldest = if is_own { self.lists.get(list)?.oldest as usize } else { oldest };
            if is_own && now < self.entries.get(oldest)?.trusted_until + RETRY_AFTER {
                return None;
            }
            while let Some(packet) = self.pop_waiting(oldest) {
                give_back(packet);
            }
            self.unresolved_count -= 1;
            // The last entry takes its place, which the sweep may have passed. It comes by again.
            self.remove(oldest);
        }
        if self.entries.len() >= self.limits.neighbours_max as usize {
            return None;
        }
        let index = self.entries.len();
        self.entries.push(Entry {
            address,
            interface,
            state: State::Asking,
            attempts: 0,
            used: true,
            is_router: false,
            waiting_count: 0,
            station: MacAddress::ZERO,
            due: now,
            trusted_until: now,
            waiting_first: NONE,
            waiting_last: NONE,
            list: 0,
            older: NONE,
            newer: NONE,
        });
        self.link(index, list);
        self.unresolved_count += 1;
        self.next_due = self.next_due.min(now);
        self.lap_due = self.lap_due.min(now);
        let mut slot = self.slot_of(interface, address);
        while self.slots.get(slot).is_some_and(|taken| *taken != NONE) {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        if let Some(free) = self.slots.get_mut(slot) {
            *free = index as u32;
        }
        Some(index)
    }

    fn remove(&mut self, index: usize) {
        let Some(entry) = self.entries.get(index) else { return };
        let Some(slot) = self.slot_holding(entry.interface, entry.address, index) else { return };
        self.close_gap(slot);
        self.unlink(index);
        self.generation += 1;
        let last = self.entries.len() - 1;
        if last != index
            && let Some(moved) = self.entries.get(last)
            && let Some(slot) = self.slot_holding(moved.interface, moved.address, last)
        {
            let (list, beside) = (usize::from(moved.list), (moved.older, moved.newer));
            if let Some(slot) = self.slots.get_mut(slot) {
                *slot = index as u32;
            }
            self.join(list, beside, (index as u32, index as u32));
        }
        self.entries.swap_remove(index);
    }

    fn slot_holding(&self, interface: InterfaceId, address: A, index: usize) -> Option<usize> {
        let mut slot = self.slot_of(interface, address);
        loop {
            match *self.slots.get(slot)? {
                NONE => return None,
                found if found as usize == index => return Some(slot),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// Empties a slot and moves up those behind it that only stood there because it was taken.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let Some(&index) = self.slots.get(slot) else { return };
            let home = match self.entries.get(index as usize) {
                Some(entry) => self.slot_of(entry.interface, entry.address),
                // NONE is the index of no entry.
                None => break,
            };
            // Its home lies cyclically after the gap: it may stay.
            if (slot.wrapping_sub(home) & mask) < (slot.wrapping_sub(gap) & mask) {
                continue;
            }
            self.slots.swap(gap, slot);
            gap = slot;
        }
        if let Some(empty) = self.slots.get_mut(gap) {
            *empty = NONE;
        }
    }

    fn pop_waiting(&mut self, index: usize) -> Option<P> {
        let entry = self.entries.get_mut(index)?;
        if entry.waiting_count == 0 {
            return None;
        }
        let place = entry.waiting_first;
        let waiting = self.waiting.get_mut(place as usize)?;
        let packet = waiting.packet.take();
        entry.waiting_first = waiting.next;
        entry.waiting_count -= 1;
        if let Some(list) = self.lists.get_mut(usize::from(entry.list)) {
            list.waiting -= 1;
        }
        waiting.next = self.waiting_free;
        self.waiting_free = place;
        self.waiting_count -= 1;
        packet
    }
}

#[cfg(test)]
mod tests;
