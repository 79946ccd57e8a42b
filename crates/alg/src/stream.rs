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
        Held { bytes, start: 0, end: 0, ahead: (0, 0), seen: 0, needs: 0, corrections: 0, kept, kept_len: 0 }
    }

    /// No bytes and no corrections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && !self.has_ahead() && self.kept_len == 0
    }

    /// Bytes of an incomplete message.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True without corrections. The sender repeats bytes that are forgotten, as if their segments
    /// had been lost: their receiver has not acknowledged them.
    #[must_use]
    pub fn may_be_lost(&self) -> bool {
        self.kept_len == 0
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.drop_bytes();
        self.kept_len = 0;
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
        // Most of those who ask look at each.
        work::count(self.kept_len);
        &self.kept[..self.kept_len]
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn is_incomplete(&self) -> bool {
        self.seen > 0 || self.needs > 0 || self.corrections > 0
    }

    /// Moves what is there to the front, if it is not there already. Only an incomplete message is
    /// moved, so at most once a message: work stays linear.
    fn compact(&mut self) {
        let (start, to) = (self.start, self.end.max(self.ahead.1));
        if start > 0 {
            work::count(to - start);
            self.bytes.copy_within(start..to, 0);
            (self.start, self.end) = (0, self.end - start);
            if self.has_ahead() {
                self.ahead = (self.ahead.0 - start, self.ahead.1 - start);
            }
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
        if self.start == self.end && !self.has_ahead() {
            (self.start, self.end) = (0, 0);
        }
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
    skip: u32,
    is_over: bool,
    keeps_ahead: bool,
}

/// The distance, with its sign, between sequence numbers (RFC 9293 §3.4).
fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

fn later(a: u32, b: u32) -> u32 {
    if distance(a, b) > 0 { b } else { a }
}

/// Writes what `from..to` of a repeated segment became.
fn replay(held: &Held, sequence: u32, payload: &[u8], from: u32, to: u32, out: &mut Output<'_>) {
    let slice = |from: u32, to: u32| {
        let at = from.wrapping_sub(sequence) as usize;
        let end = to.wrapping_sub(sequence) as usize;
        payload.get(at..end).unwrap_or(&[])
    };
    let mut at = from;
    for correction in held.kept() {
        if distance(correction.input_end(), at) >= 0 {
            continue;
        }
        if distance(correction.input, to) <= 0 {
            break;
        }
        if distance(at, correction.input) > 0 {
            out.put(slice(at, correction.input));
        }
        out.put(correction.text());
        at = correction.input_end();
    }
    if distance(at, to) > 0 {
        out.put(slice(at, to));
    }
}

impl Stream {
    /// A stream whose first byte has this sequence number.
    #[must_use]
    pub fn starting(first: u32) -> Stream {
        Stream { base: first, shift: 0, floor: first, floor_shift: 0, skip: 0, is_over: false, keeps_ahead: false }
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

    /// An acknowledgement of the receiver, as the sender must see it. Corrections it covers are
    /// forgotten.
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
        }
        Some(result)
    }

    /// Keeps the floor so near that places can be compared (RFC 9293 §3.4), however much passes
    /// unchanged. The acknowledgement may be forged, so this leaves what may really be repeated.
    fn lift_floor(&mut self, held: &Held, to: u32) {
        let is_below_corrections = held.kept().first().is_none_or(|first| distance(to, first.input) >= 0);
        if distance(self.floor, to) > 0 && distance(to, self.base) >= 0 && is_below_corrections {
            self.floor = to;
        }
    }

    /// True if all sequence numbers are as they came.
    #[must_use]
    pub fn is_unchanged(&self, held: &Held) -> bool {
        self.shift == 0 && held.kept_len == 0
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
            return Passed::On { sequence: self.empty_at(held, sequence), length: 0, fin: false };
        }
        if distance(next, sequence) > 0 {
            if !self.is_over {
                // What passes unread does not go through the held bytes.
                if self.keeps_ahead && self.skip == 0 {
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
        let from = later(sequence, self.floor);
        let start = if distance(from, self.base) > 0 {
            let to = if distance(end, self.base) > 0 { end } else { self.base };
            let begins = self.place_out(held, from);
            replay(held, sequence, payload, from, to, &mut out);
            begins
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
        let fin = fin && !held.has_bytes();
        Passed::On { sequence: start, length: out.len, fin }
    }

    fn empty_at(&self, held: &Held, sequence: u32) -> u32 {
        if distance(self.base, sequence) >= 0 {
            return if self.is_over { sequence.wrapping_add(self.shift) } else { self.base.wrapping_add(self.shift) };
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
            match read(held.bytes(), held.seen) {
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
            out.put(&held.bytes()[..count]);
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
            out.put(&held.bytes()[at..from]);
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
        out.put(&held.bytes()[at..length]);
        held.take(length);
        self.base = first.wrapping_add(length as u32);
    }
}
