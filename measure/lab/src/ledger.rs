//! What the Responder and the Initiator remember, and what they count against it.
//!
//! The Responder's state table (RFC 9693 §4.2) has a record for each four-tuple: the external
//! endpoint it came from. Whatever arrives is compared with what was sent: the place of its tuple
//! is in the stamp, so a frame that reaches the wrong endpoint is known for what it is.
//!
//! [`Establish`] makes connections of UDP, [`Handshake`] those of TCP. Everything after that is the
//! same for both: with TCP [`Segments`] makes segments of what the other ledgers send.

mod conversation;
mod handshake;
mod remaining;
mod segments;

use core::fmt;
use core::ops::AddAssign;

use serde::Serialize;

pub use conversation::Conversations;
pub use handshake::Ending;
pub use handshake::Handshake;
pub use remaining::Remaining;
pub use segments::Segments;

use crate::frame::Protocol;
use crate::frame::Seen;
use crate::frame::TTL;
use crate::frame::Way;
use crate::tester::Traffic;
use crate::tuples::Endpoint;
use crate::tuples::Permutation;
use crate::tuples::TupleSpace;

/// Faults of frames that did arrive. A frame counts once, for the first that applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// It reached another endpoint than the one it was sent to: somebody else got it.
    pub swapped: u64,
    /// It came a second time.
    pub repeated: u64,
    /// It left with its inside address.
    pub untranslated: u64,
    /// It left from another external endpoint than the one its connection has.
    pub moved: u64,
    /// Its time to live is not less than when it was sent.
    pub not_routed: u64,
    /// A number of its TCP header, sequence, acknowledgement or window, is not what was sent.
    pub misnumbered: u64,
}

impl Faults {
    /// All together.
    pub fn sum(&self) -> u64 {
        self.swapped + self.repeated + self.untranslated + self.moved + self.not_routed + self.misnumbered
    }
}

/// `3 reached another endpoint, 2 left untranslated`; people read it behind what is missing.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults { swapped, repeated, untranslated, moved, not_routed, misnumbered } = *self;
        let all = [
            (swapped, "reached another endpoint"),
            (repeated, "came a second time"),
            (untranslated, "left untranslated"),
            (moved, "left from another external endpoint than before"),
            (not_routed, "with a time to live that is not less"),
            (misnumbered, "with another number in the header of TCP"),
        ];
        let told: Vec<String> =
            all.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        f.write_str(if told.is_empty() { "nothing wrong with those that came" } else { "" })?;
        f.write_str(&told.join(", "))
    }
}

impl AddAssign for Faults {
    fn add_assign(&mut self, other: Faults) {
        let Faults { swapped, repeated, untranslated, moved, not_routed, misnumbered } = other;
        self.swapped += swapped;
        self.repeated += repeated;
        self.untranslated += untranslated;
        self.moved += moved;
        self.not_routed += not_routed;
        self.misnumbered += misnumbered;
    }
}

/// A bit for each tuple.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: u64) -> Bits {
        Bits(vec![0; count.div_ceil(64) as usize])
    }

    /// Sets a bit; whether it was set before. None beyond the end.
    #[inline(always)]
    fn set(&mut self, index: u32) -> Option<bool> {
        let word = self.0.get_mut((index / 64) as usize)?;
        let bit = 1 << (index % 64);
        let was = *word & bit != 0;
        *word |= bit;
        Some(was)
    }
}

/// The Responder's state table.
#[derive(Clone, Debug)]
pub struct StateTable {
    /// By tuple number; port 0: not seen.
    external: Vec<Endpoint>,
    filled: u64,
    /// Where both ends of the connections are, if these are of TCP.
    pub conversations: Option<Conversations>,
}

/// What the Responder knew of a connection.
enum Noted {
    /// Nothing.
    New,
    /// The endpoint that it comes from now, too.
    Known,
}

impl StateTable {
    /// An empty table for so many connections. 8 bytes each.
    pub fn new(connections: u64) -> StateTable {
        StateTable { external: vec![Endpoint::default(); connections as usize], filled: 0, conversations: None }
    }

    /// The table of a wire: the first `connections` four-tuples, each with its inside endpoint as
    /// the external one.
    pub fn straight(space: &TupleSpace, connections: u64, protocol: Protocol) -> StateTable {
        StateTable {
            external: (0..connections).map(|number| space.at(number).inside).collect(),
            filled: connections,
            conversations: (protocol == Protocol::Tcp).then(|| Conversations::new(connections)),
        }
    }

    /// A table of the first connections only.
    #[must_use]
    pub fn first(&self, connections: usize) -> StateTable {
        let external: Vec<Endpoint> = self.external.iter().take(connections).copied().collect();
        StateTable {
            // Those that have an endpoint, whether the handshake was completed or not.
            filled: external.iter().filter(|endpoint| endpoint.port != 0).count() as u64,
            external,
            conversations: self.conversations.as_ref().map(|all| all.first(connections)),
        }
    }

    /// Connections in it.
    pub fn len(&self) -> u64 {
        self.filled
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Connections it has room for.
    pub fn room(&self) -> u64 {
        self.external.len() as u64
    }

    /// The external endpoint of a connection.
    #[inline(always)]
    pub fn external(&self, tuple: u32) -> Option<Endpoint> {
        self.external.get(tuple as usize).copied().filter(|endpoint| endpoint.port != 0)
    }

    /// Notes a frame that arrived outside. None: not as it should; the fault is counted.
    #[inline]
    fn note(&mut self, space: &TupleSpace, seen: &Seen, faults: &mut Faults) -> Option<Noted> {
        let tuple = space.at(u64::from(seen.stamp.tuple));
        if seen.destination != tuple.remote {
            faults.swapped += 1;
            return None;
        }
        if seen.source == tuple.inside {
            faults.untranslated += 1;
            return None;
        }
        if seen.ttl >= TTL {
            faults.not_routed += 1;
            return None;
        }
        let Some(known) = self.external.get_mut(seen.stamp.tuple as usize) else {
            faults.swapped += 1;
            return None;
        };
        if known.port == 0 {
            *known = seen.source;
            return Some(Noted::New);
        }
        if *known != seen.source {
            faults.moved += 1;
            return None;
        }
        Some(Noted::Known)
    }
}

/// Phase 1: each four-tuple once, Initiator to Responder.
pub struct Establish<'a> {
    space: &'a TupleSpace,
    /// What the Responder learned.
    pub table: StateTable,
    /// Distinct frames that arrived as they should.
    pub arrived: u64,
    /// Frames that did not.
    pub faults: Faults,
    times: Option<Times>,
}

impl<'a> Establish<'a> {
    /// For the first `connections` four-tuples.
    pub fn new(space: &'a TupleSpace, connections: u64) -> Establish<'a> {
        Establish { space, table: StateTable::new(connections), arrived: 0, faults: Faults::default(), times: None }
    }

    /// Takes the delay of this many of the frames.
    pub fn timed(mut self, timed: u64) -> Establish<'a> {
        self.times = Some(Times::new([self.table.room(), 0], timed));
        self
    }

    /// Delays taken, ticks of the time-stamp counter, in the order of arrival.
    pub fn delays(&self) -> &[u64] {
        self.times.as_ref().map_or(&[], |times| &times.delays[0])
    }
}

impl Traffic for Establish<'_> {
    #[inline]
    fn tuple(&self, _: Way, sequence: u32) -> u32 {
        sequence
    }

    #[inline]
    fn next(&mut self, _: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let tuple = self.space.at(u64::from(sequence));
        (sequence, tuple.inside, tuple.remote)
    }

    #[inline]
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        if let Some(times) = &mut self.times {
            times.sent(way, sequence, now);
        }
    }

    #[inline]
    fn arrived(&mut self, way: Way, seen: &Seen, now: u64) {
        match self.table.note(self.space, seen, &mut self.faults) {
            Some(Noted::New) => {
                self.table.filled += 1;
                self.arrived += 1;
                if let Some(times) = &mut self.times {
                    times.arrived(way, seen.stamp.sequence, now);
                }
            }
            Some(Noted::Known) => self.faults.repeated += 1,
            None => {}
        }
    }

    fn is_complete(&self) -> bool {
        self.arrived == self.table.room()
    }
}

/// Validation (RFC 9693 §4.5): each connection of the state table once, Responder to Initiator, in
/// pseudorandom order.
pub struct Validate<'a> {
    space: &'a TupleSpace,
    table: &'a StateTable,
    order: Permutation,
    seen: Bits,
    /// Distinct frames that reached their own endpoint.
    pub arrived: u64,
    /// Frames that did not.
    pub faults: Faults,
}

impl<'a> Validate<'a> {
    /// Of all connections; the table must be full.
    pub fn new(space: &'a TupleSpace, table: &'a StateTable, seed: u64) -> Validate<'a> {
        Validate {
            space,
            table,
            order: Permutation::new(table.room(), seed),
            seen: Bits::new(table.room()),
            arrived: 0,
            faults: Faults::default(),
        }
    }
}

impl Traffic for Validate<'_> {
    #[inline]
    fn tuple(&self, _: Way, sequence: u32) -> u32 {
        self.order.at(u64::from(sequence)) as u32
    }

    #[inline]
    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let tuple = self.tuple(way, sequence);
        (tuple, self.space.at(u64::from(tuple)).remote, self.table.external(tuple).unwrap_or_default())
    }

    #[inline]
    fn arrived(&mut self, _: Way, seen: &Seen, _: u64) {
        let tuple = self.space.at(u64::from(seen.stamp.tuple));
        if seen.destination != tuple.inside || seen.source != tuple.remote {
            self.faults.swapped += 1;
        } else if seen.ttl >= TTL {
            self.faults.not_routed += 1;
        } else {
            match self.seen.set(seen.stamp.tuple) {
                Some(false) => self.arrived += 1,
                Some(true) => self.faults.repeated += 1,
                None => self.faults.swapped += 1,
            }
        }
    }

    fn misnumbered(&mut self, _: Way) {
        self.faults.misnumbered += 1;
    }

    fn is_complete(&self) -> bool {
        self.arrived == self.table.room()
    }
}

/// Frames to external endpoints of a table that was emptied, Responder to Initiator: none may
/// arrive.
pub struct StaleFrames<'a> {
    space: &'a TupleSpace,
    /// Some connections and the external endpoints they had.
    before: &'a StateTable,
    /// Numbers of those that had one.
    known: Vec<u32>,
    /// Frames that arrived all the same.
    pub arrived: u64,
}

impl<'a> StaleFrames<'a> {
    /// For these earlier connections.
    pub fn new(space: &'a TupleSpace, before: &'a StateTable) -> StaleFrames<'a> {
        let known = (0..before.room() as u32).filter(|tuple| before.external(*tuple).is_some()).collect();
        StaleFrames { space, before, known, arrived: 0 }
    }
}

impl Traffic for StaleFrames<'_> {
    fn tuple(&self, _: Way, sequence: u32) -> u32 {
        self.known.get(sequence as usize).copied().unwrap_or_default()
    }

    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let tuple = self.tuple(way, sequence);
        (tuple, self.space.at(u64::from(tuple)).remote, self.before.external(tuple).unwrap_or_default())
    }

    fn arrived(&mut self, _: Way, _: &Seen, _: u64) {
        self.arrived += 1;
    }

    /// A device that changes numbers still has the connection.
    fn misnumbered(&mut self, _: Way) {
        self.arrived += 1;
    }

    fn is_complete(&self) -> bool {
        // There is nothing to wait for but silence.
        false
    }
}

/// Phase 2: pseudorandom connections of the state table, one way or both (RFC 9693 §4.6: extreme 2,
/// none created, none deleted).
pub struct Steady<'a> {
    space: &'a TupleSpace,
    table: &'a StateTable,
    orders: [Permutation; 2],
    expected: [u64; 2],
    seen: [Bits; 2],
    times: Option<Times>,
    /// Distinct frames that arrived as they should, each way.
    pub arrived: [u64; 2],
    /// Frames that did not, each way.
    pub faults: [Faults; 2],
}

/// When frames were sent and how long they took: every `every`-th of a way.
struct Times {
    every: u32,
    sent: [Vec<u64>; 2],
    delays: [Vec<u64>; 2],
}

impl Times {
    /// For so many frames each way, of which this many of each have their delay taken.
    fn new(frames: [u64; 2], timed: u64) -> Times {
        let most = frames[0].max(frames[1]);
        let every = most.div_ceil(timed.max(1)).max(1) as u32;
        let room = most.div_ceil(u64::from(every)) as usize;
        Times {
            every,
            sent: [vec![0; room], vec![0; room]],
            delays: [Vec::with_capacity(room), Vec::with_capacity(room)],
        }
    }

    #[inline]
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        if sequence.is_multiple_of(self.every)
            && let Some(place) = self.sent[way.index()].get_mut((sequence / self.every) as usize)
        {
            *place = now;
        }
    }

    #[inline]
    fn arrived(&mut self, way: Way, sequence: u32, now: u64) {
        if sequence.is_multiple_of(self.every)
            && let Some(sent) = self.sent[way.index()].get((sequence / self.every) as usize)
        {
            self.delays[way.index()].push(now.saturating_sub(*sent));
        }
    }
}

impl<'a> Steady<'a> {
    /// So many frames each way over the connections of a full table. With `timed`: that many of
    /// each way have their delay taken.
    pub fn new(
        space: &'a TupleSpace,
        table: &'a StateTable,
        frames: [u64; 2],
        timed: Option<u64>,
        seed: u64,
    ) -> Steady<'a> {
        let times = timed.map(|timed| Times::new(frames, timed));
        Steady {
            space,
            table,
            orders: [Permutation::new(table.room(), seed), Permutation::new(table.room(), seed ^ 1)],
            expected: frames,
            seen: frames.map(Bits::new),
            times,
            arrived: [0; 2],
            faults: [Faults::default(); 2],
        }
    }

    /// Delays taken on a way, ticks of the time-stamp counter, in the order of arrival.
    pub fn delays(&self, way: Way) -> &[u64] {
        self.times.as_ref().map_or(&[], |times| &times.delays[way.index()])
    }
}

impl Traffic for Steady<'_> {
    #[inline(always)]
    fn tuple(&self, way: Way, sequence: u32) -> u32 {
        self.orders[way.index()].at(u64::from(sequence)) as u32
    }

    fn misnumbered(&mut self, way: Way) {
        self.faults[way.index()].misnumbered += 1;
    }

    #[inline(always)]
    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let tuple = self.tuple(way, sequence);
        let inside = self.space.at(u64::from(tuple));
        match way {
            Way::Outbound => (tuple, inside.inside, inside.remote),
            Way::Inbound => (tuple, inside.remote, self.table.external(tuple).unwrap_or_default()),
        }
    }

    #[inline(always)]
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        if let Some(times) = &mut self.times {
            times.sent(way, sequence, now);
        }
    }

    #[inline(always)]
    fn arrived(&mut self, way: Way, seen: &Seen, now: u64) {
        let at = way.index();
        let tuple = self.space.at(u64::from(seen.stamp.tuple));
        let external = self.table.external(seen.stamp.tuple);
        let faults = &mut self.faults[at];
        let (is_there, is_whose) = match way {
            Way::Outbound => (seen.destination == tuple.remote, Some(seen.source) == external),
            Way::Inbound => (seen.destination == tuple.inside, seen.source == tuple.remote),
        };
        if !is_there {
            faults.swapped += 1;
            return;
        }
        if !is_whose {
            faults.moved += 1;
            return;
        }
        match self.seen[at].set(seen.stamp.sequence) {
            Some(false) => self.arrived[at] += 1,
            Some(true) => faults.repeated += 1,
            None => faults.swapped += 1,
        }
        if let Some(times) = &mut self.times {
            times.arrived(way, seen.stamp.sequence, now);
        }
    }

    fn is_complete(&self) -> bool {
        self.arrived == self.expected
    }
}
