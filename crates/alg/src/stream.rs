//! One direction of a TCP connection whose payload is changed.
//!
//! ```text
//!  input   ……ACKed│ c0 │ unchanged │ c1 │ unchanged │held: no whole message yet│ next
//!               floor                             base
//!  output  ……ACKed│ C0' │ unchanged │ C1 │ unchanged │
//! ```
//!
//! Below `floor` the receiver has acknowledged everything, so only the shift matters. Between
//! `floor` and `base` the corrections say what each byte became: a retransmission becomes the same
//! output. Above `base` nothing was sent on yet. So any cutting of the input into segments, with
//! loss, reordering and duplicates, gives one output stream.
//!
//! A sender may wait for an acknowledgement of what is held before it sends the rest. Then the
//! stream takes it over: it lets the sender have that acknowledgement, and keeps the bytes until
//! the receiver has acknowledged them ([`Owned`]). No clock is needed, because the segment that
//! completes the message is acknowledged by the receiver alone: until then its sender repeats it,
//! and the stream repeats the rest before it.

use crate::MESSAGE_MAX;
use crate::findings::EDITS_MAX;
use crate::findings::Replacements;
use crate::findings::TEXT_MAX;
use crate::work;

/// Corrections that the receiver has not acknowledged, in one direction. A message that needs more
/// waits for an acknowledgement.
pub const CORRECTIONS_MAX: usize = 2 * EDITS_MAX;

/// The largest window: what lies further below an acknowledgement is never repeated (RFC 7323
/// §2.3).
const WINDOW_MAX: u32 = 1 << 30;

#[derive(Clone, Copy, Debug)]
struct Correction {
    input: u32,
    output: u32,
    input_length: u16,
    output_length: u16,
    text: [u8; TEXT_MAX],
}

impl Correction {
    const NONE: Correction = Correction { input: 0, output: 0, input_length: 0, output_length: 0, text: [0; TEXT_MAX] };

    fn input_end(&self) -> u32 {
        self.input.wrapping_add(self.input_length.into())
    }

    fn output_end(&self) -> u32 {
        self.output.wrapping_add(self.output_length.into())
    }

    fn text(&self) -> &[u8] {
        self.text.get(..usize::from(self.output_length)).unwrap_or(&[])
    }
}

/// Bytes that were acknowledged to their sender before their receiver had them. Everything before
/// them had been acknowledged by the receiver then.
#[derive(Clone, Copy, Debug)]
struct Owned {
    /// In the input.
    from: u32,
    /// In the input.
    end: u32,
    /// Place of the first one in [`Held::bytes`].
    at: usize,
}

/// What a direction keeps only now and then: bytes of a message that is not complete, and
/// corrections that are not acknowledged. Each call about a stream gets the same one, and one that
/// [is empty](Held::is_empty) may be any.
#[derive(Clone, Debug)]
pub struct Held {
    bytes: [u8; MESSAGE_MAX],
    /// Where the incomplete message is.
    start: usize,
    end: usize,
    /// The same for bytes that came ahead of a gap, if there are any: a place above `end`.
    ahead: (usize, usize),
    /// How many bytes of the message the parser has seen.
    seen: usize,
    /// How many it needs.
    needs: usize,
    /// Corrections that the message at the start needs. It is read again once so many are free, so
    /// that segments that come meanwhile cost no reading.
    corrections: usize,
    /// In the order of the stream, so many of them.
    kept: [Correction; CORRECTIONS_MAX],
    kept_len: usize,
    /// They stay where they are when they are sent on: below `start`.
    owned: Option<Owned>,
}

impl Default for Held {
    fn default() -> Held {
        Held::new()
    }
}

impl Held {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Held {
        let kept = [Correction::NONE; CORRECTIONS_MAX];
        let bytes = [0; MESSAGE_MAX];
        let (ahead, owned) = ((0, 0), None);
        Held { bytes, start: 0, end: 0, ahead, seen: 0, needs: 0, corrections: 0, kept, kept_len: 0, owned }
    }

    /// No bytes and no corrections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.has_ahead() && self.may_be_lost()
    }

    /// Bytes of an incomplete message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True without corrections, and if no byte was acknowledged to its sender. The sender repeats
    /// bytes that are forgotten, as if their segments had been lost.
    #[must_use]
    pub fn may_be_lost(&self) -> bool {
        self.kept_len == 0 && self.owned.is_none()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.owned = None;
        self.drop_bytes();
        self.kept_len = 0;
    }

    /// The incomplete message.
    #[must_use]
    pub fn message(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// The reader is asked about the bytes once more, however many it needed.
    pub fn ask_again(&mut self) {
        self.needs = 0;
    }

    fn drop_bytes(&mut self) {
        (self.start, self.end, self.seen, self.needs, self.corrections) = (0, 0, 0, 0, 0);
        self.forget_ahead();
    }

    fn has_ahead(&self) -> bool {
        self.ahead.0 < self.ahead.1
    }

    fn forget_ahead(&mut self) {
        self.ahead = (0, 0);
    }

    /// Keeps bytes that came so far ahead, as many as fit. One piece: what does not touch it is for
    /// the sender to repeat.
    fn keep_ahead(&mut self, gap: usize, payload: &[u8]) {
        if self.is_incomplete() && gap + payload.len() > MESSAGE_MAX - self.end {
            self.compact();
        }
        let Some(from) = self.end.checked_add(gap).filter(|from| *from < MESSAGE_MAX) else { return };
        let to = from + payload.len().min(MESSAGE_MAX - from);
        let (old_from, old_to) = self.ahead;
        if self.has_ahead() && (to < old_from || from > old_to) {
            return;
        }
        work::count(to - from);
        self.bytes[from..to].copy_from_slice(&payload[..to - from]);
        self.ahead = if self.has_ahead() { (from.min(old_from), to.max(old_to)) } else { (from, to) };
    }

    /// Once nothing is missing before it.
    fn join_ahead(&mut self) {
        let (from, to) = self.ahead;
        if self.has_ahead() && self.end >= from {
            self.end = self.end.max(to);
            self.forget_ahead();
        }
    }

    fn has_bytes(&self) -> bool {
        self.start != self.end
    }

    fn kept(&self) -> &[Correction] {
        // Most callers look at each.
        work::count(self.kept_len);
        &self.kept[..self.kept_len]
    }

    fn is_incomplete(&self) -> bool {
        self.seen > 0 || self.needs > 0 || self.corrections > 0
    }

    /// Moves what is there to the front, if it is not there already. Only an incomplete message is
    /// moved, so at most once a message: work stays linear.
    fn compact(&mut self) {
        let (by, to) = (self.owned.map_or(self.start, |owned| owned.at), self.end.max(self.ahead.1));
        if by > 0 {
            work::count(to - by);
            self.bytes.copy_within(by..to, 0);
            (self.start, self.end) = (self.start - by, self.end - by);
            if self.has_ahead() {
                self.ahead = (self.ahead.0 - by, self.ahead.1 - by);
            }
            self.owned.iter_mut().for_each(|owned| owned.at = 0);
        }
    }

    /// Takes what fits, and returns the rest.
    fn add<'a>(&mut self, fresh: &'a [u8]) -> &'a [u8] {
        if self.is_incomplete() && fresh.len() > MESSAGE_MAX - self.end {
            self.compact();
        }
        let (now, rest) = fresh.split_at(fresh.len().min(MESSAGE_MAX - self.end));
        work::count(now.len());
        self.bytes[self.end..self.end + now.len()].copy_from_slice(now);
        self.end += now.len();
        self.join_ahead();
        rest
    }

    fn take(&mut self, count: usize) {
        self.start += count;
        (self.seen, self.needs, self.corrections) = (0, 0, 0);
        self.use_from_the_start();
    }

    fn use_from_the_start(&mut self) {
        if self.start == self.end && !self.has_ahead() && self.owned.is_none() {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Keeps these bytes of the message, the first of which is at `from`, until
    /// [`disown`](Held::disown).
    fn own(&mut self, from: u32, count: usize) {
        let end = from.wrapping_add(count as u32);
        let end = self.owned.map_or(end, |owned| later(owned.end, end));
        if end != from {
            self.owned = Some(Owned { from, end, at: self.start });
        }
    }

    fn disown(&mut self) {
        self.owned = None;
        self.use_from_the_start();
    }

    /// The bytes that are kept from there on.
    fn bytes_of(&self, owned: &Owned, from: u32) -> &[u8] {
        let offset = from.wrapping_sub(owned.from) as usize;
        let length = owned.end.wrapping_sub(owned.from) as usize;
        self.bytes.get(owned.at + offset..owned.at + length).unwrap_or(&[])
    }
}

/// What the reader says about the bytes not yet sent on.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// It needs more, and the end of the message is not among these bytes.
    More,
    /// It needs this many bytes.
    Needs(usize),
    /// Forward this many bytes without reading them. They may not all have arrived yet.
    Skip(usize),
    /// A message of this many bytes, with its changes.
    Message(usize, Replacements),
    /// The same, with so many further bytes that pass unread, as they come.
    Part(usize, Replacements, usize),
    /// The rest passes unread, the message of this many bytes included.
    Over,
}

/// A segment of the input.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Of its first byte.
    pub sequence: u32,
    /// Without headers.
    pub payload: &'a [u8],
    /// The stream ends after it.
    pub fin: bool,
}

/// Where the bytes of a segment go.
#[derive(Debug)]
struct Output<'a> {
    bytes: &'a mut [u8],
    len: usize,
    is_full: bool,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) {
        match self.bytes.get_mut(self.len..self.len + bytes.len()) {
            Some(free) => {
                work::count(bytes.len());
                free.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.is_full = true,
        }
    }
}

/// What became of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// So many bytes, from this sequence number on. `fin`: the end of the stream follows them.
    On {
        /// Of the first byte.
        sequence: u32,
        /// Bytes of output.
        length: usize,
        /// The stream ends after them.
        fin: bool,
    },
    /// An earlier segment is missing. Drop it: the sender repeats both, or, if the stream
    /// [keeps](Stream::keeping_ahead) this one, the missing one.
    Gap,
}

/// The state of one direction. What it keeps beside is in [`Held`].
#[derive(Clone, Debug)]
pub struct Stream {
    base: u32,
    shift: u32,
    floor: u32,
    floor_shift: u32,
    /// All output before it was acknowledged by the receiver.
    acked: u32,
    skip: u32,
    is_over: bool,
    /// The end of the stream was sent on.
    has_ended: bool,
    keeps_ahead: bool,
}

/// The distance, with its sign, between sequence numbers (RFC 9293 §3.4).
fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

fn later(a: u32, b: u32) -> u32 {
    if distance(a, b) > 0 { b } else { a }
}

/// Bytes of the input that were sent on before: those that the stream keeps, and those of a segment
/// that goes on where they end, or before.
struct Repeated<'a> {
    kept: (u32, &'a [u8]),
    segment: (u32, &'a [u8]),
}

impl Repeated<'_> {
    fn put(&self, from: u32, to: u32, out: &mut Output<'_>) {
        let border = self.kept.0.wrapping_add(self.kept.1.len() as u32);
        let border = if distance(border, to) > 0 { later(from, border) } else { to };
        for ((first, bytes), from, to) in [(self.kept, from, border), (self.segment, border, to)] {
            let (at, end) = (from.wrapping_sub(first) as usize, to.wrapping_sub(first) as usize);
            if distance(from, to) > 0 {
                out.put(bytes.get(at..end).unwrap_or(&[]));
            }
        }
    }

    /// Writes what `from..to` became.
    fn replay(&self, held: &Held, from: u32, to: u32, out: &mut Output<'_>) {
        let mut at = from;
        for correction in held.kept() {
            if distance(correction.input_end(), at) >= 0 {
                continue;
            }
            if distance(correction.input, to) <= 0 {
                break;
            }
            if distance(at, correction.input) > 0 {
                self.put(at, correction.input, out);
            }
            out.put(correction.text());
            at = correction.input_end();
        }
        if distance(at, to) > 0 {
            self.put(at, to, out);
        }
    }
}

impl Stream {
    /// A stream whose first byte has this sequence number.
    #[must_use]
    pub fn starting(first: u32) -> Stream {
        let (base, floor, acked) = (first, first, first);
        let (is_over, has_ended, keeps_ahead) = (false, false, false);
        Stream { base, shift: 0, floor, floor_shift: 0, acked, skip: 0, is_over, has_ended, keeps_ahead }
    }

    /// The same stream, keeping what comes ahead of a gap or not: see [`crate::Alg::keeps_ahead`].
    #[must_use]
    pub fn keeping_ahead(self, keeps_ahead: bool) -> Stream {
        Stream { keeps_ahead, ..self }
    }

    /// The sequence number of the next byte that no message has covered.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.base
    }

    /// Nothing is read any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sequence numbers are as they came, and will stay so.
    #[must_use]
    pub fn is_transparent(&self, held: &Held) -> bool {
        self.is_over && self.shift == 0 && held.is_empty()
    }

    /// Ends reading. Held bytes pass with the next segment.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// The output place of an input place between `floor` and `base`. Inside a correction: its
    /// start.
    fn place_out(&self, held: &Held, sequence: u32) -> u32 {
        let mut shift = self.floor_shift;
        for correction in held.kept() {
            if distance(correction.input_end(), sequence) >= 0 {
                shift = correction.output_end().wrapping_sub(correction.input_end());
            } else if distance(correction.input, sequence) > 0 {
                return correction.output;
            } else {
                break;
            }
        }
        sequence.wrapping_add(shift)
    }

    /// An acknowledgement of the receiver, as the sender must see it: at least of what was
    /// [taken over](Stream::take_over). Corrections it covers are forgotten.
    ///
    /// `None` if it covers bytes that were not sent on, so that it is forged: nothing changes, and
    /// a host drops such a segment (RFC 9293 §3.10.7.4).
    pub fn acknowledge(&mut self, held: &mut Held, ack: u32) -> Option<u32> {
        // The end of the stream counts as one.
        let is_of_unsent = distance(self.base.wrapping_add(self.shift), ack) > 1;
        if is_of_unsent && !self.is_over {
            return None;
        }
        let result = self.place_in(held, ack, false);
        let covered = held.kept().iter().take_while(|c| distance(c.output_end(), ack) >= 0).count();
        if covered > 0 {
            let last = held.kept[covered - 1];
            self.floor = last.input_end();
            self.floor_shift = last.output_end().wrapping_sub(last.input_end());
            work::count(held.kept_len - covered);
            held.kept.copy_within(covered..held.kept_len, 0);
            held.kept_len -= covered;
        }
        if !is_of_unsent {
            self.lift_floor(held, result.wrapping_sub(WINDOW_MAX));
            // Not the one for the end of the stream.
            let sent = self.base.wrapping_add(self.shift);
            self.acked = later(self.acked, if distance(sent, ack) > 0 { sent } else { ack });
        }
        let Some(Owned { end, .. }) = held.owned else { return Some(result) };
        if !is_of_unsent && distance(end, result) >= 0 {
            held.disown();
        }
        Some(later(result, end))
    }

    /// The sender may wait for an acknowledgement before it sends the rest of a message: see
    /// [`only_repeats`](Stream::only_repeats). From now on it gets one for what is held, `all` of
    /// it or all but the last byte. The stream keeps it until the receiver has it.
    ///
    /// With all but the last byte, the sender still repeats something, and so shows that it waits.
    pub fn take_over(&mut self, held: &mut Held, all: bool) {
        // An acknowledgement covers what came before as well, which only the sender has.
        let is_all_received = self.acked == self.base.wrapping_add(self.shift);
        if is_all_received && held.has_bytes() {
            held.own(self.base, held.len() - usize::from(!all));
        }
    }

    /// What was taken over and sent on, and is not acknowledged by the receiver, if this repeated
    /// segment goes on where it ends: its bytes, and where in the input they begin.
    fn repeated_before<'a>(&self, held: &'a Held, segment: &Segment<'_>) -> Option<(u32, &'a [u8])> {
        let owned = held.owned.as_ref()?;
        let from = later(owned.from, self.place_in(held, self.acked, false));
        let to = if distance(owned.end, self.base) > 0 { owned.end } else { self.base };
        let end = segment.sequence.wrapping_add(segment.payload.len() as u32);
        let goes_on = distance(segment.sequence, owned.end) >= 0 && distance(owned.from, end) > 0;
        let bytes = held.bytes_of(owned, from).get(..usize::try_from(distance(from, to)).ok()?)?;
        (goes_on && !bytes.is_empty()).then_some((from, bytes))
    }

    /// Keeps the floor so near that places can be compared (RFC 9293 §3.4), however much passes
    /// unchanged. The acknowledgement may be forged, so this leaves what may really be repeated.
    fn lift_floor(&mut self, held: &Held, to: u32) {
        let is_below_corrections = held.kept().first().is_none_or(|first| distance(to, first.input) >= 0);
        if distance(self.floor, to) > 0 && distance(to, self.base) >= 0 && is_below_corrections {
            self.floor = to;
        }
    }

    /// True if all sequence numbers are as they came, and the sender has all that its receiver has
    /// not.
    #[must_use]
    pub fn is_unchanged(&self, held: &Held) -> bool {
        self.shift == 0 && held.may_be_lost()
    }

    /// True if the sender's next segment may begin here, with so many bytes held.
    #[must_use]
    pub fn may_begin_at(&self, sequence: u32, held: usize) -> bool {
        let next = self.base.wrapping_add(held as u32);
        distance(self.floor, sequence) >= 0 && distance(sequence, next) >= 0
    }

    /// True for a segment that brings nothing but what is held, which waits for the rest of its
    /// message: perhaps the sender keeps that back until this is acknowledged (RFC 896).
    #[must_use]
    pub fn only_repeats(&self, held: &Held, segment: &Segment<'_>) -> bool {
        let end = segment.sequence.wrapping_add(segment.payload.len() as u32);
        let next = self.base.wrapping_add(held.len() as u32);
        let is_waiting = held.has_bytes() && held.corrections == 0 && !self.is_over && !segment.fin;
        is_waiting && distance(self.base, end) > 0 && distance(end, next) >= 0
    }

    /// The input place of an output place. Inside a correction: its start, or its end if `upwards`.
    #[must_use]
    pub fn place_in(&self, held: &Held, sequence: u32, upwards: bool) -> u32 {
        let mut shift = self.floor_shift;
        for correction in held.kept() {
            if distance(correction.output_end(), sequence) >= 0 {
                shift = correction.output_end().wrapping_sub(correction.input_end());
            } else if distance(correction.output, sequence) > 0 {
                return if upwards { correction.input_end() } else { correction.input };
            } else {
                break;
            }
        }
        sequence.wrapping_sub(shift)
    }

    /// Sends a segment on. `out` needs room for the payload, what is held, and what changes add.
    ///
    /// `read` gets the bytes that no message has covered yet, and how many of them it has seen.
    pub fn pass(
        &mut self,
        held: &mut Held,
        segment: &Segment<'_>,
        out: &mut [u8],
        mut read: impl FnMut(&[u8], usize) -> Step,
    ) -> Passed {
        let mut out = Output { bytes: out, len: 0, is_full: false };
        let Segment { sequence, payload, fin } = *segment;
        let end = sequence.wrapping_add(payload.len() as u32);
        let next = self.base.wrapping_add(held.len() as u32);
        if payload.is_empty() && !fin {
            let is_probe = |end| distance(self.base, sequence) >= 0 && distance(sequence, end) > 0;
            if held.owned.is_some_and(|owned| is_probe(owned.end)) {
                // It was acknowledged, so the sender asks for an answer (RFC 9293 §3.8.4).
                let repeated = self.base.wrapping_add(self.shift).wrapping_sub(1);
                return Passed::On { sequence: repeated, length: 0, fin: false };
            }
            return Passed::On { sequence: self.empty_at(held, sequence), length: 0, fin: false };
        }
        if distance(next, sequence) > 0 {
            if !self.is_over || held.owned.is_some() {
                // What passes unread does not go through the held bytes.
                if self.keeps_ahead && self.skip == 0 && !self.is_over {
                    held.keep_ahead(sequence.wrapping_sub(next) as usize, payload);
                }
                return Passed::Gap;
            }
            // Nothing is changed any more, so the order does not matter. The sender repeats what
            // was held.
            held.drop_bytes();
            out.put(payload);
            self.base = end;
            return Passed::On { sequence: sequence.wrapping_add(self.shift), length: out.len, fin };
        }
        let kept = self.repeated_before(held, segment);
        let from = kept.map_or(later(sequence, self.floor), |(first, _)| first);
        let start = if distance(from, self.base) > 0 {
            let kept = kept.unwrap_or((from, &[]));
            let kept_end = kept.0.wrapping_add(kept.1.len() as u32);
            let to = if distance(end, self.base) > 0 { later(end, kept_end) } else { self.base };
            Repeated { kept, segment: (sequence, payload) }.replay(held, from, to, &mut out);
            self.place_out(held, from)
        } else {
            self.base.wrapping_add(self.shift)
        };
        if distance(next, end) > 0 || (fin && end == next) {
            let fresh = usize::try_from(distance(sequence, next)).unwrap_or(0).min(payload.len());
            self.accept(held, &payload[fresh..], &mut out, &mut read);
            if fin && held.has_bytes() {
                // It will never be complete.
                self.is_over = true;
            }
            if self.is_over {
                self.flush(held, &mut out);
            }
        } else if self.is_over && distance(self.base, end) >= 0 {
            self.flush(held, &mut out);
        } else if held.has_bytes() && distance(self.base, end) > 0 {
            // Perhaps it waited for an acknowledgement.
            self.accept(held, &[], &mut out, &mut read);
        }
        if out.len == 0 && !fin && distance(self.floor, end) <= 0 {
            // A repetition of what was acknowledged: the receiver must say so again.
            return Passed::On { sequence: self.empty_at(held, end.wrapping_sub(1)), length: 0, fin: false };
        }
        if out.len == 0 && !fin && held.owned.is_some() && distance(sequence, next) > 0 {
            // The receiver has nothing new, and answers a repetition with what the sender waits
            // for.
            let repeated = self.base.wrapping_add(self.shift).wrapping_sub(1);
            return Passed::On { sequence: repeated, length: 0, fin: false };
        }
        // Not before bytes for which there was no room.
        let fin = fin && !held.has_bytes() && distance(end, self.base) >= 0;
        self.has_ended |= fin && end == self.base;
        Passed::On { sequence: start, length: out.len, fin }
    }

    fn empty_at(&self, held: &Held, sequence: u32) -> u32 {
        if distance(self.base, sequence) >= 0 {
            // The end of the stream counts as one (RFC 9293 §3.4).
            let next = self.base.wrapping_add(u32::from(self.has_ended && sequence != self.base));
            return if self.is_over { sequence } else { next }.wrapping_add(self.shift);
        }
        if distance(self.floor, sequence) >= 0 {
            return self.place_out(held, sequence);
        }
        sequence.wrapping_add(self.floor_shift)
    }

    /// Reads new bytes.
    fn accept(
        &mut self,
        held: &mut Held,
        mut fresh: &[u8],
        out: &mut Output<'_>,
        read: &mut impl FnMut(&[u8], usize) -> Step,
    ) {
        loop {
            if self.is_over {
                self.flush(held, out);
                out.put(fresh);
                self.base = self.base.wrapping_add(fresh.len() as u32);
                return;
            }
            if self.skip > 0 {
                let count = held.len().min(self.skip as usize);
                self.send_on(held, count, out);
                self.skip -= count as u32;
                if self.skip > 0 && !held.has_bytes() {
                    held.forget_ahead();
                    let (now, rest) = fresh.split_at(fresh.len().min(self.skip as usize));
                    out.put(now);
                    self.base = self.base.wrapping_add(now.len() as u32);
                    self.skip -= now.len() as u32;
                    fresh = rest;
                }
            }
            fresh = held.add(fresh);
            if !held.has_bytes() || held.len() < held.needs || held.kept_len + held.corrections > CORRECTIONS_MAX {
                return;
            }
            match read(held.message(), held.seen) {
                Step::Needs(count) if count <= MESSAGE_MAX && count > held.len() => {
                    held.needs = count;
                    if fresh.is_empty() {
                        return;
                    }
                }
                Step::More if held.len() < MESSAGE_MAX => {
                    (held.seen, held.needs) = (held.len(), held.len() + 1);
                    if fresh.is_empty() {
                        return;
                    }
                }
                Step::Skip(count) if count > 0 => self.skip = u32::try_from(count).unwrap_or(u32::MAX),
                Step::Message(length, changes) if (1..=held.len()).contains(&length) => {
                    self.change_or_wait(held, length, &changes, out);
                }
                Step::Part(length, changes, rest) if (1..=held.len()).contains(&length) => {
                    if self.change_or_wait(held, length, &changes, out) {
                        self.skip = u32::try_from(rest).unwrap_or(u32::MAX);
                    }
                }
                Step::More | Step::Needs(_) | Step::Skip(_) | Step::Message(..) | Step::Part(..) | Step::Over => {
                    self.is_over = true;
                }
            }
        }
    }

    /// False if the message waits for an acknowledgement. What does not fit, the sender repeats.
    fn change_or_wait(&mut self, held: &mut Held, length: usize, changes: &Replacements, out: &mut Output<'_>) -> bool {
        let has_room = held.kept_len + changes.as_slice().len() <= CORRECTIONS_MAX;
        if has_room {
            self.change(held, length, changes, out);
        } else {
            held.corrections = changes.as_slice().len();
        }
        has_room
    }

    fn send_on(&mut self, held: &mut Held, count: usize, out: &mut Output<'_>) {
        if count > 0 {
            out.put(&held.message()[..count]);
            held.take(count);
            self.base = self.base.wrapping_add(count as u32);
        }
    }

    fn flush(&mut self, held: &mut Held, out: &mut Output<'_>) {
        held.forget_ahead();
        self.send_on(held, held.len(), out);
    }

    fn change(&mut self, held: &mut Held, length: usize, changes: &Replacements, out: &mut Output<'_>) {
        let first = self.base;
        let mut at = 0;
        for change in changes.as_slice() {
            let from = usize::from(change.at);
            let to = from + usize::from(change.length);
            if from < at || to > length {
                continue;
            }
            out.put(&held.message()[at..from]);
            let text = change.text();
            let input = first.wrapping_add(from as u32);
            let mut correction = Correction {
                input,
                output: input.wrapping_add(self.shift),
                input_length: change.length,
                output_length: text.len() as u16,
                text: [0; TEXT_MAX],
            };
            correction.text[..text.len()].copy_from_slice(text);
            held.kept[held.kept_len] = correction;
            held.kept_len += 1;
            self.shift = correction.output_end().wrapping_sub(correction.input_end());
            out.put(text);
            at = to;
        }
        out.put(&held.message()[at..length]);
        held.take(length);
        self.base = first.wrapping_add(length as u32);
    }
}
