//! Why a test has no result, each in one sentence with what helps.

use crate::device::DeviceError;
use crate::ledger::Faults;
use crate::tester::TesterError;

/// What a message begins with that is about the rates that were asked for, and neither about the
/// tester nor the device.
pub const RATE: &str = "rate: ";

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The tester.
    #[error(transparent)]
    Tester(#[from] TesterError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device is faster than the tester.
    #[error(
        "tester: slower than the device ({passed:.0} {what}/s pass; the tester sent {reached:.0} of {asked:.0}/s); the device does at \
         least what passed (`at_least` in the result): to find its limit, give the tester a CPU of its own, or a faster machine"
    )]
    Ceiling {
        /// `frames` or `connections`.
        what: &'static str,
        /// The highest rate that passed.
        passed: f64,
        /// The lowest rate that the tester did not keep.
        asked: f64,
        /// What it sent instead.
        reached: f64,
    },
    /// The device passes the highest rate of the search.
    #[error("rate: the device passes even the highest ({rate:.0} {what}/s); raise --rate-max")]
    RangeTooLow {
        /// `frames` or `connections`.
        what: &'static str,
        /// The highest asked for.
        rate: f64,
    },
    /// Not even the lowest rate passes.
    #[error(
        "device: loses frames at the lowest rate ({rate:.0} frames/s: {lost} of {sent} missing, {faults}); see that it translates and routes"
    )]
    NothingPasses {
        /// The lowest rate.
        rate: f64,
        /// Frames missing.
        lost: u64,
        /// Frames sent.
        sent: u64,
        /// Faults of those that arrived.
        faults: Faults,
    },
    /// Nothing that was sent came out.
    #[error(
        "device: answers ARP, but passes nothing (0 of {sent} frames arrived); see that it translates, and routes 198.19.0.0/16 to the tester"
    )]
    Silent {
        /// Frames sent.
        sent: u64,
    },
    /// What it passes it has not translated, or not routed.
    #[error(
        "device: made none of {sent} connections, though frames came out of it ({faults}); see that it translates what comes from \
         10.0.0.0/8, and routes it"
    )]
    NoConnection {
        /// Frames sent.
        sent: u64,
        /// Faults of those that arrived.
        faults: Faults,
    },
    /// It made connections, and then nothing more came out.
    #[error(
        "device: passes nothing {way} (0 of {sent} frames arrived), though it made the connections; see that it still runs and keeps them"
    )]
    OneWay {
        /// `outbound` or `inbound`.
        way: &'static str,
        /// Frames sent.
        sent: u64,
    },
    /// There is nobody at the other end of a link.
    #[error("device: its {side} link is down; see that it runs and that both links are up, and start the test again")]
    LinkDown {
        /// `inside` or `outside`.
        side: &'static str,
    },
    /// It does not even hold what a search begins with.
    #[error(
        "device: does not hold the connections that the search begins with ({lost} of {c0} are missing at {rate:.0} frames/s, \
         {faults}); lower --c0, or --rate-min"
    )]
    BelowC0 {
        /// C0.
        c0: u64,
        /// Connections missing.
        lost: u64,
        /// The lowest rate.
        rate: f64,
        /// Faults of frames that arrived.
        faults: Faults,
    },
    /// Phase 1 did not make all connections.
    #[error(
        "device: made {made} of {wanted} connections at {rate:.0} frames/s ({faults}); lower --preparation-rate, or ask for \
         fewer connections"
    )]
    NotPrepared {
        /// Connections made.
        made: u64,
        /// Connections wanted.
        wanted: u64,
        /// At this rate.
        rate: f64,
        /// Faults of frames that arrived.
        faults: Faults,
    },
    /// It does not say how full its table is.
    #[error(
        "device: its table holds fewer connections than were made ({made} made, {counted} in the table); no result"
    )]
    Miscounted {
        /// Connections made.
        made: u64,
        /// Entries of its table.
        counted: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_received_frames_are_put_into_words() {
        let faults = Faults { untranslated: 3000, ..Faults::default() };
        let message = ExperimentError::NoConnection { sent: 3000, faults }.to_string();
        assert!(message.contains("(3000 left untranslated)"), "{message}");
        let none = ExperimentError::NothingPasses { rate: 100.0, lost: 5, sent: 50, faults: Faults::default() };
        assert!(none.to_string().contains("5 of 50 missing, nothing wrong with those that came)"), "{none}");
        let faults = Faults { swapped: 1, not_routed: 2, ..Faults::default() };
        let both = ExperimentError::NotPrepared { made: 1, wanted: 2, rate: 1.0, faults };
        assert!(
            both.to_string().contains("(1 reached another endpoint, 2 with a time to live that is not less)"),
            "{both}"
        );
    }
}
