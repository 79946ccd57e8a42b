//! Where both ends of each TCP connection are in their sequence numbers.

use core::cell::Cell;

use crate::frame::Way;
use crate::segment::Numbers;
use crate::segment::WINDOW_BYTES;

/// One connection: sequence numbers by the way of the data they are of.
#[derive(Clone, Copy, Debug, Default)]
struct Conversation {
    /// Of the next byte to send.
    next: [u32; 2],
    /// Of the next byte that its receiver expects, who acknowledges all before it.
    received: [u32; 2],
    /// Of the first byte whose acknowledgement has not reached the sender.
    acknowledged: [u32; 2],
}

/// Those of a state table. They go on from trial to trial, as the connections do.
///
/// What a device lost is not sent again: the receiver takes the gap, and acknowledges what is
/// behind it. To the device that is as if what is missing had come another way. When a sender has
/// used its window and no acknowledgement comes, as where all data goes one way, it sends from the
/// first unacknowledged byte again. So each segment is within the window of its connection,
/// whatever is lost.
#[derive(Clone, Debug)]
pub struct Conversations(Vec<Cell<Conversation>>);

impl Conversations {
    /// So many connections, 24 bytes each.
    pub fn new(connections: u64) -> Conversations {
        Conversations(vec![Cell::default(); connections as usize])
    }

    /// The first of them.
    pub(super) fn first(&self, connections: usize) -> Conversations {
        Conversations(self.0.iter().take(connections).cloned().collect())
    }

    /// A connection is established: the next byte of either end has this number.
    #[inline]
    pub fn establish(&self, tuple: u32, next: [u32; 2]) {
        if let Some(conversation) = self.0.get(tuple as usize) {
            conversation.set(Conversation { next, received: next, acknowledged: next });
        }
    }

    /// Whether a connection is established.
    pub(super) fn has(&self, tuple: u32) -> bool {
        // Both numbers are drawn: that they are both zero is one chance in 2⁶⁴.
        self.0.get(tuple as usize).is_some_and(|conversation| conversation.get().next != [0; 2])
    }

    /// Numbers of the next segment that a way sends, with so many bytes of data.
    #[inline]
    pub fn send(&self, way: Way, tuple: u32, bytes: u32) -> Numbers {
        let Some(conversation) = self.0.get(tuple as usize) else { return Numbers::default() };
        let mut at = conversation.get();
        let way = way.index();
        if at.next[way].wrapping_sub(at.acknowledged[way]).saturating_add(bytes) > WINDOW_BYTES {
            at.next[way] = at.acknowledged[way];
        }
        let numbers = Numbers { sequence: at.next[way], acknowledgement: at.received[1 - way] };
        at.next[way] = at.next[way].wrapping_add(bytes);
        conversation.set(at);
        numbers
    }

    /// A segment of a way arrived with so many bytes of data.
    #[inline]
    pub fn receive(&self, way: Way, tuple: u32, numbers: Numbers, bytes: u32) {
        let Some(conversation) = self.0.get(tuple as usize) else { return };
        let mut at = conversation.get();
        let way = way.index();
        at.received[way] = later(at.received[way], numbers.sequence.wrapping_add(bytes));
        at.acknowledged[1 - way] = later(at.acknowledged[1 - way], numbers.acknowledgement);
        conversation.set(at);
    }
}

/// The later of two sequence numbers (RFC 9293 §3.4).
#[inline]
const fn later(one: u32, other: u32) -> u32 {
    if (other.wrapping_sub(one) as i32) > 0 { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: [u32; 2] = [u32::MAX - 3, 500];

    fn one() -> Conversations {
        let all = Conversations::new(1);
        all.establish(0, START);
        all
    }

    #[test]
    fn each_segment_follows_the_last_one_and_acknowledges_what_came() {
        let all = one();
        assert_eq!(all.send(Way::Outbound, 0, 6), Numbers { sequence: START[0], acknowledgement: 500 });
        let second = all.send(Way::Outbound, 0, 6);
        assert_eq!(second, Numbers { sequence: 2, acknowledgement: 500 });
        all.receive(Way::Outbound, 0, second, 6);
        assert_eq!(all.send(Way::Inbound, 0, 9), Numbers { sequence: 500, acknowledgement: 8 });
    }

    #[test]
    fn an_unacknowledged_sender_stays_in_the_window_and_sends_again() {
        let all = one();
        let mut before = 0;
        for segment in 0..u64::from(WINDOW_BYTES / 1460) * 3 {
            let numbers = all.send(Way::Outbound, 0, 1460);
            let offset = numbers.sequence.wrapping_sub(START[0]);
            assert!(offset + 1460 <= WINDOW_BYTES, "segment {segment} ends beyond the window");
            assert!(offset == 0 || offset == before + 1460, "segment {segment} leaves a gap");
            all.receive(Way::Outbound, 0, numbers, 1460);
            before = offset;
        }
        // The other end speaks at last, and the window goes on.
        let answer = all.send(Way::Inbound, 0, 1);
        assert_eq!(answer.acknowledgement.wrapping_sub(START[0]), WINDOW_BYTES / 1460 * 1460);
        all.receive(Way::Inbound, 0, answer, 1);
        let next = all.send(Way::Outbound, 0, 1460).sequence;
        assert_eq!(next.wrapping_sub(START[0]), WINDOW_BYTES / 1460 * 1460);
    }

    #[test]
    fn an_acknowledgement_that_comes_late_takes_nothing_back() {
        let all = one();
        let (first, second) = (all.send(Way::Outbound, 0, 10), all.send(Way::Outbound, 0, 10));
        all.receive(Way::Outbound, 0, second, 10);
        all.receive(Way::Outbound, 0, first, 10);
        assert_eq!(all.send(Way::Inbound, 0, 1).acknowledgement, START[0].wrapping_add(20));
    }
}
