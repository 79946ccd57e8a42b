//! A NAT's TCP state machine (RFC 7857 §2, figure 1), and which RSTs it believes (§2.2).
//!
//! ```text
//!              SYN                 SYN of the other side
//!   (none) ───────────► Opening* ──────────────────────────► Established ◄──────────┐
//!                          ▲                                  │        │            │
//!                          │ SYN                          FIN │        │ RST        │ anything but
//!                          │                                  ▼        │            │ RST, SYN
//!                          ├───────── Closing ◄── FIN ── Fin{Inside,   ▼            │
//!                          │                               Outside} ─ RST ─► Transitory
//!                          └───────────────────────────────────────────────────────┘
//! ```
//!
//! No packet marks "established idle time ran out", so callers pass the stored state through
//! [`TcpState::at_idle`] first.

use core::hint::select_unpredictable;

use wire::tcp::Flags;

use crate::settings::Timeouts;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Side;

#[cfg(test)]
mod tests;

/// A connection as the NAT sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpState {
    /// Only the inside sent a SYN (RFC 7857 §2: INIT).
    OpeningOutbound = 0,
    /// Only the outside sent a SYN.
    OpeningInbound = 1,
    /// Both sent a SYN.
    Established = 2,
    /// Only the inside sent a FIN.
    FinInside = 3,
    /// Only the outside sent a FIN.
    FinOutside = 4,
    /// Both sent a FIN.
    Closing = 5,
    /// After a RST or the established idle time (RFC 7857 §2: TRANS).
    Transitory = 6,
}

/// A SYN without ACK and RST.
pub const fn opens(flags: Flags) -> bool {
    flags.contains(Flags::SYN) && !flags.intersects(Flags::ACK.union(Flags::RST))
}

impl TcpState {
    /// An unanswered UDP session, if these have their own timer; otherwise it is "established".
    pub(crate) const UNANSWERED: TcpState = TcpState::OpeningOutbound;
    /// A UDP session that packets from outside keep alive, too (RFC 4787 §4.3 REQ-6a): media at a
    /// port that a gateway announced. Not for the short way.
    pub(crate) const ANNOUNCED: TcpState = TcpState::FinOutside;

    /// In number order.
    pub const ALL: [TcpState; 7] = [
        TcpState::OpeningOutbound,
        TcpState::OpeningInbound,
        TcpState::Established,
        TcpState::FinInside,
        TcpState::FinOutside,
        TcpState::Closing,
        TcpState::Transitory,
    ];

    /// After a first SYN from `side`.
    pub const fn opening(side: Side) -> TcpState {
        match side {
            Side::Inside => TcpState::OpeningOutbound,
            Side::Outside => TcpState::OpeningInbound,
        }
    }

    /// Inverse of `as u8`.
    pub const fn from_number(number: u8) -> Option<TcpState> {
        match number {
            0 => Some(TcpState::OpeningOutbound),
            1 => Some(TcpState::OpeningInbound),
            2 => Some(TcpState::Established),
            3 => Some(TcpState::FinInside),
            4 => Some(TcpState::FinOutside),
            5 => Some(TcpState::Closing),
            6 => Some(TcpState::Transitory),
            _ => None,
        }
    }

    /// As in commands and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            TcpState::OpeningOutbound => "opening_outbound",
            TcpState::OpeningInbound => "opening_inbound",
            TcpState::Established => "established",
            TcpState::FinInside => "fin_inside",
            TcpState::FinOutside => "fin_outside",
            TcpState::Closing => "closing",
            TcpState::Transitory => "transitory",
        }
    }

    /// Including half-closed: only both FINs start the transitory timer (RFC 7857 §2).
    pub const fn is_established(self) -> bool {
        matches!(self, TcpState::Established | TcpState::FinInside | TcpState::FinOutside)
    }

    pub(crate) const fn is_opening(self) -> bool {
        matches!(self, TcpState::OpeningOutbound | TcpState::OpeningInbound)
    }

    pub(crate) const fn is_over(self) -> bool {
        matches!(self, TcpState::Closing | TcpState::Transitory)
    }

    /// Established sessions become Transitory (RFC 7857 §2, "TCP_EST T.O."), and can revive within
    /// `tcp_closing`.
    #[must_use]
    pub fn at_idle(self, idle: Duration, timeouts: &Timeouts) -> TcpState {
        if self.is_established() && idle >= timeouts.tcp_established { TcpState::Transitory } else { self }
    }
}

/// The state after a segment. `reset_accepted`: see [`SequenceTracker::reset_is_plausible`].
pub fn next(state: TcpState, from: Side, flags: Flags, reset_accepted: bool) -> TcpState {
    if flags.contains(Flags::RST) {
        // RFC 7857 §2.2: only a RST of the connection ends an established one. Opening sessions
        // keep their short timer, so that a refused connection can be retried.
        return if reset_accepted && state.is_established() { TcpState::Transitory } else { state };
    }
    match state {
        TcpState::OpeningOutbound | TcpState::OpeningInbound => {
            // RFC 5382 §4.2 REQ-2a: with or without ACK (simultaneous open).
            let answered = flags.contains(Flags::SYN) && TcpState::opening(from) != state;
            if answered { after_fin(TcpState::Established, from, flags) } else { state }
        }
        TcpState::Established | TcpState::FinInside | TcpState::FinOutside => after_fin(state, from, flags),
        TcpState::Closing => {
            // A SYN starts a new connection (RFC 9293 §3.6.1, RFC 6191).
            if opens(flags) { TcpState::opening(from) } else { state }
        }
        TcpState::Transitory => {
            if opens(flags) {
                TcpState::opening(from)
            } else if flags.contains(Flags::SYN) {
                // A late SYN-ACK proves nothing.
                state
            } else {
                // RFC 7857 §2, "data pkt". Keep-alives count, too (RFC 6146 §3.5.2.2: all but RST).
                after_fin(TcpState::Established, from, flags)
            }
        }
    }
}

fn after_fin(state: TcpState, from: Side, flags: Flags) -> TcpState {
    if !flags.contains(Flags::FIN) {
        return state;
    }
    match (state, from) {
        (TcpState::Established, Side::Inside) => TcpState::FinInside,
        (TcpState::Established, Side::Outside) => TcpState::FinOutside,
        (TcpState::FinInside, Side::Outside) | (TcpState::FinOutside, Side::Inside) => TcpState::Closing,
        _ => state,
    }
}

/// RFC 7857 §2.2: RSTs against unwanted traffic must not keep a session alive (§7.1).
pub fn restarts_timer(before: TcpState, after: TcpState, flags: Flags) -> bool {
    !flags.contains(Flags::RST) || before != after
}

/// From the last packet to removal, including the Transitory phase (RFC 7857 §2).
pub fn lifetime(state: TcpState, timeouts: &Timeouts) -> Duration {
    match state {
        TcpState::OpeningOutbound | TcpState::OpeningInbound => timeouts.tcp_opening,
        TcpState::Established | TcpState::FinInside | TcpState::FinOutside => {
            timeouts.tcp_established + timeouts.tcp_closing
        }
        TcpState::Closing | TcpState::Transitory => timeouts.tcp_closing,
    }
}

/// How far outside the known range a RST may be: under three full-sized segments.
const RESET_SLACK: u32 = 4_096;

/// How far beyond the highest known number a segment may start: limits how far a forged one moves
/// the range for RSTs.
const JUMP_MAX: u32 = 65_535;

/// A segment's numbers.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Payload bytes.
    pub length: u32,
}

/// Detects forged RSTs by sequence number (RFC 7857 §2.2 note, RFC 5961 §3).
///
/// Per side: end of the highest segment, and highest acknowledgment sent. Zero means unseen; a true
/// zero is stored as one, which the slack covers.
///
/// A RST from outside must lie in [what the inside acknowledged, what the outside sent]. Off path,
/// the lower end cannot be forged; the upper end moves only with data inside the range, by at most
/// `JUMP_MAX` and the segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromZeros)]
#[repr(C)]
pub struct SequenceTracker {
    highest_end: [u32; 2],
    latest_ack: [u32; 2],
}

const _: () = assert!(size_of::<SequenceTracker>() <= 16, "one per session: see the memory budget");

/// RFC 9293 §3.4.
fn is_after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn seen(number: u32) -> u32 {
    number.max(1)
}

impl SequenceTracker {
    /// Also for a SYN that re-opens a session.
    pub const fn new() -> SequenceTracker {
        SequenceTracker { highest_end: [0; 2], latest_ack: [0; 2] }
    }

    /// `length`: payload plus one each for SYN and FIN. Ignores RSTs.
    pub fn observe(&mut self, side: Side, sequence: u32, length: u32, ack: u32, flags: Flags) {
        if flags.contains(Flags::RST) {
            return;
        }
        let from = side.index();
        let other = from ^ 1;
        let end = sequence.wrapping_add(length);
        let known_end = self.highest_end[from];
        let continues = !is_after(sequence, known_end.wrapping_add(JUMP_MAX));
        if known_end == 0 || (is_after(end, known_end) && continues) {
            self.highest_end[from] = seen(end);
        }
        if flags.contains(Flags::ACK) {
            let known_ack = self.latest_ack[from];
            if known_ack == 0 || is_after(ack, known_ack) {
                self.latest_ack[from] = seen(ack);
            }
            // Acknowledged data was sent. This closes gaps over `JUMP_MAX`.
            let other_end = self.highest_end[other];
            if other_end != 0 && is_after(ack, other_end) {
                self.highest_end[other] = seen(ack);
            }
        }
    }

    /// As [`SequenceTracker::observe`] for a segment with only ACK, branchless; does nothing unless
    /// `is_tcp`.
    #[inline(always)]
    pub fn observe_ack(&mut self, side: Side, segment: &Segment, is_tcp: bool) {
        let Segment { sequence, ack, length } = *segment;
        let from = side.index();
        let other = from ^ 1;
        let end = sequence.wrapping_add(length);
        let known_end = self.highest_end[from];
        let continues = !is_after(sequence, known_end.wrapping_add(JUMP_MAX));
        let takes_end = is_tcp & ((known_end == 0) | (is_after(end, known_end) & continues));
        self.highest_end[from] = select_unpredictable(takes_end, seen(end), known_end);
        let known_ack = self.latest_ack[from];
        let takes_ack = is_tcp & ((known_ack == 0) | is_after(ack, known_ack));
        self.latest_ack[from] = select_unpredictable(takes_ack, seen(ack), known_ack);
        let other_end = self.highest_end[other];
        let takes_other = is_tcp & (other_end != 0) & is_after(ack, other_end);
        self.highest_end[other] = select_unpredictable(takes_other, seen(ack), other_end);
    }

    /// True if a RST plausibly belongs to the connection; false if nothing was seen.
    pub fn reset_is_plausible(&self, side: Side, sequence: u32, ack: Option<u32>) -> bool {
        let from = side.index();
        let other = from ^ 1;
        let sent = self.highest_end[from];
        let expected = self.latest_ack[other];
        let (low, high) = match (expected, sent) {
            (0, 0) => {
                // The RST refuses a SYN: its sequence number is zero, and it must acknowledge the
                // SYN (RFC 9293 §3.5.2 group 1, §3.10.7.3).
                let opened = self.highest_end[other];
                return match ack {
                    Some(ack) if opened != 0 => {
                        opened.wrapping_sub(ack) <= RESET_SLACK || ack.wrapping_sub(opened) <= 1
                    }
                    _ => false,
                };
            }
            (0, sent) => (sent, sent),
            (expected, 0) => (expected, expected),
            (expected, sent) if is_after(expected, sent) => (sent, expected),
            (expected, sent) => (expected, sent),
        };
        let start = low.wrapping_sub(RESET_SLACK);
        let length = high.wrapping_sub(low).saturating_add(2 * RESET_SLACK);
        sequence.wrapping_sub(start) <= length
    }
}

/// See [`TcpState::at_idle`].
pub(crate) fn state_now(stored: TcpState, expires: Instant, now: Instant, timeouts: &Timeouts) -> TcpState {
    if stored.is_established() && expires.saturating_since(now) <= timeouts.tcp_closing {
        TcpState::Transitory
    } else {
        stored
    }
}
