//! Phase 1 with TCP: each four-tuple becomes a connection by a handshake of three segments, and is
//! closed again by four more where that is wanted.

use std::collections::VecDeque;

use super::Conversations;
use super::Faults;
use super::Noted;
use super::StateTable;
use super::Times;
use crate::frame::Seen;
use crate::frame::Stamp;
use crate::frame::Stations;
use crate::frame::Stranger;
use crate::frame::TTL;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::segment::Kind;
use crate::segment::Opening;
use crate::tester::Taken;
use crate::tester::Traffic;
use crate::tuples::Endpoint;
use crate::tuples::TupleSpace;

/// What either end does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It stays established.
    Open,
    /// The Initiator closes it as soon as it is established, and the Responder then, too.
    Closed,
}

impl Ending {
    /// Segments of each connection.
    pub const fn segments(self) -> u32 {
        match self {
            Ending::Open => 3,
            Ending::Closed => 7,
        }
    }

    /// A bit for each of them.
    const fn all(self) -> u8 {
        (1 << self.segments()) - 1
    }

    /// What is sent when a segment arrives.
    const fn answers(self, arrived: Kind) -> &'static [Kind] {
        match (arrived, self) {
            (Kind::Syn, _) => &[Kind::SynAck],
            (Kind::SynAck, Ending::Open) => &[Kind::Ack],
            (Kind::SynAck, Ending::Closed) => &[Kind::Ack, Kind::Fin],
            (Kind::Fin, _) => &[Kind::FinAcked, Kind::FinBack],
            (Kind::FinBack, _) => &[Kind::LastAck],
            (Kind::Ack | Kind::FinAcked | Kind::LastAck, _) => &[],
        }
    }
}

/// A segment that an end owes the other.
#[derive(Clone, Copy, Debug)]
struct Answer {
    kind: Kind,
    tuple: u32,
    /// When it became due, ticks of the time-stamp counter.
    due: u64,
}

/// Phase 1: the Initiator sends a SYN for each four-tuple, and both ends answer what arrives.
/// Nothing is sent twice.
///
/// A connection counts when all its segments have arrived, each once, and as they were sent: with a
/// handshake alone when the Initiator's acknowledgement has reached the Responder.
pub struct Handshake<'a> {
    space: &'a TupleSpace,
    /// What the Responder learned.
    pub table: StateTable,
    /// Connections of which all segments arrived as they should.
    pub arrived: u64,
    /// Segments that did not.
    pub faults: Faults,
    ending: Ending,
    /// The four-tuples that become connections; None: all, in their order.
    missing: Option<Vec<u32>>,
    /// By tuple number: which segments arrived, a bit for each kind.
    progress: Vec<u8>,
    /// By the way they go.
    answers: [VecDeque<Answer>; 2],
    times: Option<Times>,
    /// Whether there is only a wire between the ends, so that nothing is translated or routed.
    is_straight: bool,
}

impl<'a> Handshake<'a> {
    /// For the first `connections` four-tuples.
    pub fn new(space: &'a TupleSpace, connections: u64, ending: Ending) -> Handshake<'a> {
        let mut table = StateTable::new(connections);
        table.conversations = Some(Conversations::new(connections));
        Handshake {
            space,
            table,
            arrived: 0,
            faults: Faults::default(),
            ending,
            missing: None,
            progress: vec![0; connections as usize],
            answers: [VecDeque::new(), VecDeque::new()],
            times: None,
            is_straight: false,
        }
    }

    /// Over a wire, where each inside endpoint is the external one, too.
    #[must_use]
    pub fn straight(mut self) -> Handshake<'a> {
        let inside = |number: usize| self.space.at(number as u64).inside;
        self.table.external = (0..self.table.external.len()).map(inside).collect();
        self.is_straight = true;
        self
    }

    /// Once more for the connections of a table that were not established: for preparations, in
    /// which nothing is measured. Under the key of the trial before, so that the device sees
    /// retransmissions.
    pub fn resume(space: &'a TupleSpace, table: StateTable) -> Handshake<'a> {
        let is_missing = |tuple: &u32| table.conversations.as_ref().is_some_and(|all| !all.has(*tuple));
        let missing = (0..table.room() as u32).filter(is_missing).collect();
        let progress = vec![0; table.room() as usize];
        Handshake { table, missing: Some(missing), progress, ..Handshake::new(space, 0, Ending::Open) }
    }

    /// SYNs to be sent.
    pub fn frames(&self) -> u64 {
        self.missing.as_ref().map_or(self.table.room(), |missing| missing.len() as u64)
    }

    /// Takes the delay of this many of the SYNs.
    pub fn timed(mut self, timed: u64) -> Handshake<'a> {
        self.times = Some(Times::new([self.table.room(), 0], timed));
        self
    }

    /// Delays taken of SYNs, ticks of the time-stamp counter, in the order of arrival.
    pub fn delays(&self) -> &[u64] {
        self.times.as_ref().map_or(&[], |times| &times.delays[0])
    }

    fn ends(&self, kind: Kind, tuple: u32) -> (Endpoint, Endpoint) {
        let own = self.space.at(u64::from(tuple));
        match kind.way() {
            Way::Outbound => (own.inside, own.remote),
            Way::Inbound => (own.remote, self.table.external(tuple).unwrap_or_default()),
        }
    }

    /// Whether a segment came to its own end of its own connection; notes it when not.
    #[inline]
    fn is_in_place(&mut self, way: Way, opening: &Opening, seen: &Seen) -> bool {
        if self.is_straight {
            let (source, destination) = self.ends(opening.kind, opening.tuple);
            let is_own = seen.source == source && seen.destination == destination;
            self.faults.swapped += u64::from(!is_own);
            return is_own;
        }
        if way == Way::Outbound {
            return match self.table.note(self.space, seen, &mut self.faults) {
                Some(Noted::New | Noted::Known) => true,
                None => false,
            };
        }
        let tuple = self.space.at(u64::from(opening.tuple));
        if seen.destination != tuple.inside || seen.source != tuple.remote {
            self.faults.swapped += 1;
            return false;
        }
        if seen.ttl >= TTL {
            self.faults.not_routed += 1;
            return false;
        }
        true
    }
}

impl Traffic for Handshake<'_> {
    const ANSWERS: bool = true;

    #[inline]
    fn tuple(&self, _: Way, sequence: u32) -> u32 {
        match &self.missing {
            None => sequence,
            Some(missing) => missing.get(sequence as usize).copied().unwrap_or_default(),
        }
    }

    #[inline]
    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        let tuple = self.tuple(way, sequence);
        let (source, destination) = self.ends(Kind::Syn, tuple);
        (tuple, source, destination)
    }

    #[inline]
    fn write(&mut self, key: &TrialKey, frame: &mut [u8], stations: Stations, way: Way, sequence: u32) {
        let (tuple, source, destination) = self.next(way, sequence);
        key.segments().write(frame, stations, source, destination, (Kind::Syn, tuple));
    }

    #[inline]
    fn take(&mut self, key: &TrialKey, way: Way, frame: &[u8], now: u64) -> Result<Taken, Stranger> {
        let opening = key.segments().read(frame, self.table.room())?;
        let Opening { kind, tuple, is_misnumbered, segment } = opening;
        if kind.way() != way {
            return Ok(Taken::Returned);
        }
        if is_misnumbered {
            self.faults.misnumbered += 1;
            return Ok(Taken::Arrived);
        }
        let stamp = Stamp { tuple, sequence: tuple, way };
        let seen = Seen { stamp, source: segment.source, destination: segment.destination, ttl: segment.ttl };
        if !self.is_in_place(way, &opening, &seen) {
            return Ok(Taken::Arrived);
        }
        let Some(progress) = self.progress.get_mut(tuple as usize) else { return Err(Stranger::Forged) };
        let bit = 1 << kind as u8;
        if *progress & bit != 0 {
            self.faults.repeated += 1;
            return Ok(Taken::Arrived);
        }
        *progress |= bit;
        if *progress == self.ending.all() {
            self.arrived += 1;
            self.table.filled += 1;
            let next = Way::BOTH.map(|way| key.segments().initial(way, tuple).wrapping_add(1));
            if let Some(conversations) = &self.table.conversations {
                conversations.establish(tuple, next);
            }
        }
        if kind == Kind::Syn
            && let Some(times) = &mut self.times
        {
            times.arrived(way, tuple, now);
        }
        for kind in self.ending.answers(kind) {
            self.answers[kind.way().index()].push_back(Answer { kind: *kind, tuple, due: now });
        }
        Ok(Taken::Arrived)
    }

    /// Frames are taken whole, by [`Traffic::take`].
    fn arrived(&mut self, _: Way, _: &Seen, _: u64) {}

    #[inline]
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        if let Some(times) = &mut self.times {
            times.sent(way, sequence, now);
        }
    }

    #[inline]
    fn answer_bytes(&self, way: Way) -> Option<usize> {
        self.answers[way.index()].front().map(|answer| answer.kind.frame_bytes())
    }

    #[inline]
    fn answer(&mut self, key: &TrialKey, frame: &mut [u8], stations: Stations, way: Way) -> Option<u64> {
        let Answer { kind, tuple, due } = self.answers[way.index()].pop_front()?;
        let (source, destination) = self.ends(kind, tuple);
        key.segments().write(frame, stations, source, destination, (kind, tuple));
        Some(due)
    }

    fn is_complete(&self) -> bool {
        self.table.len() == self.table.room()
    }
}
