//! What a test is made with, by the names of RFC 9693.

use serde::Serialize;

use super::HITCHES;
use super::HITCHES_OF_DELAYS;
use super::HITCHES_OF_DELAYS_SHORT;
use super::HITCHES_SHORT;
use super::SHORT_TRIAL_SECONDS;
use crate::frame::FrameSizes;
use crate::frame::Protocol;
use crate::ledger::Ending;

/// Which way the frames of phase 2 go (RFC 9693 §4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Both ways at once, half the frames each.
    Both,
    /// Initiator to Responder.
    Outbound,
    /// Responder to Initiator.
    Inbound,
}

/// Parameters, by the names of RFC 9693 §4.3 where it has one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameters {
    /// N: connections made in phase 1.
    #[serde(rename = "N")]
    pub n: u64,
    /// R of phase 1 where it only prepares phase 2: surely below the maximum establishment rate.
    #[serde(rename = "R")]
    pub preparation_rate: f64,
    /// α: rate of the validation, as a share of R.
    pub alpha: f64,
    /// What the connections are made of.
    pub protocol: Protocol,
    /// Of TCP in `cps`: whether each connection is closed as soon as it is established.
    pub tcp_close: bool,
    /// Bytes of a frame, check sequence included, or the mix of them. Segments that open or close a
    /// connection have what their headers need.
    pub frame_bytes: FrameSizes,
    /// Length of a trial of phase 2, seconds.
    pub trial_seconds: f64,
    /// The lowest rate searched, frames a second.
    pub rate_min: f64,
    /// The highest.
    pub rate_max: f64,
    /// The search of a rate ends at an interval of this, frames a second.
    pub error: f64,
    /// How often each test is made.
    pub repetitions: u32,
    /// Which way phase 2 goes.
    pub direction: Direction,
    /// Seed of every pseudorandom order.
    pub seed: u64,
}

impl Parameters {
    /// How connections of TCP end in phase 1.
    pub(super) const fn ending(&self) -> Ending {
        if self.tcp_close { Ending::Closed } else { Ending::Open }
    }

    /// So often a trial is made again that a hitch may have spoilt.
    pub(super) fn hitches(&self) -> u32 {
        if self.trial_seconds < SHORT_TRIAL_SECONDS { HITCHES_SHORT } else { HITCHES }
    }

    /// The same where delays are measured.
    pub(super) fn hitches_of_delays(&self) -> u32 {
        if self.trial_seconds < SHORT_TRIAL_SECONDS { HITCHES_OF_DELAYS_SHORT } else { HITCHES_OF_DELAYS }
    }

    /// Frames that each connection of phase 1 takes.
    pub const fn frames_per_connection(&self) -> u32 {
        match self.protocol {
            Protocol::Udp => 1,
            Protocol::Tcp => self.ending().segments(),
        }
    }
}
