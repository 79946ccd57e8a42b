//! Traffic over connections of TCP: what another ledger sends and counts, as segments with data.

use super::Conversations;
use crate::frame::Seen;
use crate::frame::Stamp;
use crate::frame::Stations;
use crate::frame::Stranger;
use crate::frame::TrialKey;
use crate::frame::Way;
use crate::segment::data_bytes;
use crate::tester::Taken;
use crate::tester::Traffic;
use crate::tuples::Endpoint;

/// What `inner` sends, over established connections.
pub struct Segments<'a, T> {
    inner: &'a mut T,
    conversations: &'a Conversations,
    /// Each way. Numbers from here on are no frame's.
    frames: [u64; 2],
}

impl<'a, T: Traffic> Segments<'a, T> {
    /// So many frames each way.
    pub fn new(inner: &'a mut T, conversations: &'a Conversations, frames: [u64; 2]) -> Segments<'a, T> {
        Segments { inner, conversations, frames }
    }
}

impl<T: Traffic> Traffic for Segments<'_, T> {
    #[inline]
    fn tuple(&self, way: Way, sequence: u32) -> u32 {
        self.inner.tuple(way, sequence)
    }

    #[inline]
    fn next(&mut self, way: Way, sequence: u32) -> (u32, Endpoint, Endpoint) {
        self.inner.next(way, sequence)
    }

    #[inline]
    fn write(&mut self, key: &TrialKey, frame: &mut [u8], stations: Stations, way: Way, sequence: u32) {
        let (tuple, source, destination) = self.inner.next(way, sequence);
        let numbers = self.conversations.send(way, tuple, data_bytes(frame.len()));
        key.segments().write_data(frame, stations, source, destination, (way, sequence, numbers));
    }

    #[inline]
    fn take(&mut self, key: &TrialKey, way: Way, frame: &[u8], now: u64) -> Result<Taken, Stranger> {
        let data = key.segments().read_data(frame, way, self.frames)?;
        if data.way != way {
            return Ok(Taken::Returned);
        }
        if data.is_misnumbered {
            self.inner.misnumbered(way);
            return Ok(Taken::Arrived);
        }
        let tuple = self.inner.tuple(way, data.sequence);
        let segment = data.segment;
        self.conversations.receive(way, tuple, segment.numbers, segment.data_bytes());
        let stamp = Stamp { tuple, sequence: data.sequence, way };
        let seen = Seen { stamp, source: segment.source, destination: segment.destination, ttl: segment.ttl };
        self.inner.arrived(way, &seen, now);
        Ok(Taken::Arrived)
    }

    #[inline]
    fn arrived(&mut self, way: Way, seen: &Seen, now: u64) {
        self.inner.arrived(way, seen, now);
    }

    #[inline]
    fn sent(&mut self, way: Way, sequence: u32, now: u64) {
        self.inner.sent(way, sequence, now);
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }
}
