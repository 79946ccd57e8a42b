//! Whether the numbers that somebody gave can be those of a test. Every check of them is here.

use super::Parameters;

/// Frames of a trial at most: their numbers have 32 bits.
pub(super) const TRIAL_FRAMES_MAX: f64 = u32::MAX as f64;

/// The least frames of a trial of delays, both ways together. RFC 8219 §7.2 wants 500: with fewer
/// there is a notice.
const FRAMES_MIN: f64 = 100.0;

/// A number that no test can be made with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NumberError {
    /// Zero, below, without bound, or none at all.
    #[error("{option}: is not a number above 0 ({seen}); give one that is, such as {example}")]
    NotPositive {
        /// The option.
        option: &'static str,
        /// What was given.
        seen: f64,
        /// What would do.
        example: &'static str,
    },
    /// More than the whole.
    #[error("{option}: is more than 1 ({seen}), and it is a share; give one such as {example}")]
    NoShare {
        /// The option.
        option: &'static str,
        /// What was given.
        seen: f64,
        /// What would do.
        example: &'static str,
    },
    /// Validation would not be slower than what it validates.
    #[error(
        "--alpha: is not below 1 ({seen}), and validation goes at that share of the rate (RFC 9693 §4.4); give one such as 0.8"
    )]
    NotBelowOne {
        /// What was given.
        seen: f64,
    },
    /// The device could not give each connection a port.
    #[error(
        "--sessions: need more external ports than the device is given ({ports} for {endpoints} inside endpoints); lower it (of capacity: --room), raise \
         --external-addresses, or widen --dut-ports"
    )]
    TooFewPorts {
        /// External ports.
        ports: u64,
        /// Inside endpoints, each with a port of its own.
        endpoints: u64,
    },
    /// There is nothing to search.
    #[error("--rate-min: is not below --rate-max ({rate_min} and {rate_max} frames/s); lower it, or raise --rate-max")]
    NoRange {
        /// The lowest rate.
        rate_min: f64,
        /// The highest.
        rate_max: f64,
    },
    /// A trial would be too long.
    #[error(
        "{option}: makes a trial of too many frames ({rate} frames/s for {seconds} s, of {TRIAL_FRAMES_MAX} frames at most); lower it, or --trial-seconds"
    )]
    TooManyFrames {
        /// The option.
        option: &'static str,
        /// Frames a second.
        rate: f64,
        /// How long.
        seconds: f64,
    },
    /// Too few frames for any percentile.
    #[error(
        "--rate: makes a trial of too few frames for a delay ({frames:.0}, {FRAMES_MIN} at least); raise it, or {option}"
    )]
    TooFewFrames {
        /// Frames of a trial.
        frames: f64,
        /// What makes them more besides.
        option: &'static str,
    },
}

/// What one test has besides its parameters, each with its option.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Numbers {
    /// Whether a rate is searched between the lowest and the highest.
    pub is_search: bool,
    /// The highest rate at which frames are sent for the time of a trial.
    pub timed_rate: Option<(&'static str, f64)>,
    /// Frames whose delay is taken, and the option that makes them more.
    pub delays: Option<(&'static str, f64)>,
    /// Rates that have to be above 0.
    pub rates: Vec<(&'static str, f64)>,
    /// Shares of something.
    pub shares: Vec<(&'static str, f64)>,
    /// Inside endpoints, and the external ports that there are for them, where the lab sets the
    /// device up.
    pub endpoints_and_ports: Option<[u64; 2]>,
}

impl Parameters {
    /// Whether a test can be made with these numbers, and with its own.
    ///
    /// # Errors
    /// The first impossible number.
    pub fn check(&self, own: &Numbers) -> Result<(), NumberError> {
        let common = [
            ("--preparation-rate", self.preparation_rate, "20000"),
            ("--alpha", self.alpha, "0.8"),
            ("--trial-seconds", self.trial_seconds, "2"),
            ("--rate-min", self.rate_min, "1000"),
            ("--rate-max", self.rate_max, "2000000"),
            ("--error", self.error, "2000"),
        ];
        let rates = own.rates.iter().map(|(option, rate)| (*option, *rate, "20000"));
        let shares = own.shares.iter().map(|(option, share)| (*option, *share, "0.5"));
        let positive = common.into_iter().chain(rates).chain(shares.clone());
        for (option, seen, example) in positive {
            // Not a number is not above 0 either.
            if !(seen > 0.0 && seen.is_finite()) {
                return Err(NumberError::NotPositive { option, seen, example });
            }
        }
        for (option, seen, example) in shares {
            if seen > 1.0 {
                return Err(NumberError::NoShare { option, seen, example });
            }
        }
        if self.alpha >= 1.0 {
            return Err(NumberError::NotBelowOne { seen: self.alpha });
        }
        if let Some([endpoints, ports]) = own.endpoints_and_ports.filter(|[endpoints, ports]| endpoints > ports) {
            return Err(NumberError::TooFewPorts { ports, endpoints });
        }
        let Parameters { rate_min, rate_max, trial_seconds: seconds, .. } = *self;
        if own.is_search && rate_min >= rate_max {
            return Err(NumberError::NoRange { rate_min, rate_max });
        }
        if let Some((option, frames)) = own.delays.filter(|(_, frames)| *frames < FRAMES_MIN) {
            return Err(NumberError::TooFewFrames { frames, option });
        }
        match own.timed_rate {
            Some((option, rate)) if rate * seconds > TRIAL_FRAMES_MAX => {
                Err(NumberError::TooManyFrames { option, rate, seconds })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parameters;
    use super::*;

    fn shown(parameters: &Parameters, own: &Numbers) -> String {
        parameters.check(own).map_or_else(|error| error.to_string(), |()| "fine".to_owned())
    }

    #[test]
    fn every_number_is_finite_and_above_0_or_its_option_is_named() {
        let plain = parameters();
        assert_eq!(shown(&plain, &Numbers::default()), "fine");
        for bad in [0.0, -5.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let of = |option: &str| format!("{option}: is not a number above 0 ({bad}); give one that is");
            let cases = [
                ("--preparation-rate", Parameters { preparation_rate: bad, ..plain.clone() }),
                ("--alpha", Parameters { alpha: bad, ..plain.clone() }),
                ("--trial-seconds", Parameters { trial_seconds: bad, ..plain.clone() }),
                ("--rate-min", Parameters { rate_min: bad, ..plain.clone() }),
                ("--rate-max", Parameters { rate_max: bad, ..plain.clone() }),
                ("--error", Parameters { error: bad, ..plain.clone() }),
            ];
            for (option, parameters) in cases {
                let shown = shown(&parameters, &Numbers::default());
                assert!(shown.starts_with(&of(option)), "{shown}");
            }
            let own = Numbers { rates: vec![("--rate", bad)], ..Numbers::default() };
            assert!(shown(&plain, &own).starts_with(&of("--rate")));
            let own = Numbers { shares: vec![("--beta", bad)], ..Numbers::default() };
            assert!(shown(&plain, &own).starts_with(&of("--beta")));
        }
    }

    #[test]
    fn a_share_is_no_more_than_the_whole() {
        let own = Numbers { shares: vec![("--beta", 0.1), ("--gamma", 1.5)], ..Numbers::default() };
        assert!(shown(&parameters(), &own).starts_with("--gamma: is more than 1 (1.5)"));
    }

    #[test]
    fn a_validation_is_slower_than_what_it_validates() {
        for alpha in [1.0, 3.0] {
            let shown = shown(&Parameters { alpha, ..parameters() }, &Numbers::default());
            assert!(shown.starts_with(&format!("--alpha: is not below 1 ({alpha})")), "{shown}");
        }
    }

    #[test]
    fn a_device_with_fewer_ports_than_connections_is_not_measured() {
        let with = |endpoints, ports| Numbers { endpoints_and_ports: Some([endpoints, ports]), ..Numbers::default() };
        assert_eq!(shown(&parameters(), &with(100, 100)), "fine");
        let shown = shown(&parameters(), &with(5000, 100));
        let whole =
            "--sessions: need more external ports than the device is given (100 for 5000 inside endpoints); lower it";
        assert!(shown.starts_with(whole) && shown.contains("--dut-ports"), "{shown}");
    }

    #[test]
    fn a_search_needs_two_rates_in_order_other_tests_do_not() {
        let narrow = Parameters { rate_min: 5000.0, rate_max: 3000.0, ..parameters() };
        let search = Numbers { is_search: true, ..Numbers::default() };
        let refused = "--rate-min: is not below --rate-max (5000 and 3000 frames/s); lower it, or raise --rate-max";
        assert_eq!([shown(&narrow, &search), shown(&narrow, &Numbers::default())], [refused, "fine"]);
        let equal = Parameters { rate_min: 3000.0, ..narrow };
        assert!(shown(&equal, &search).starts_with("--rate-min: is not below"));
    }

    #[test]
    fn no_delay_is_shown_for_a_single_frame() {
        let with = |frames| Numbers { delays: Some(("--trial-seconds", frames)), ..Numbers::default() };
        assert_eq!(shown(&parameters(), &with(100.0)), "fine");
        let shown = shown(&parameters(), &with(1.0));
        assert_eq!(
            shown,
            "--rate: makes a trial of too few frames for a delay (1, 100 at least); raise it, or --trial-seconds"
        );
    }

    #[test]
    fn a_trial_has_no_more_frames_than_can_be_numbered() {
        let minute = Parameters { trial_seconds: 60.0, ..parameters() };
        let with = |rate| Numbers { timed_rate: Some(("--rate-max", rate)), ..Numbers::default() };
        assert_eq!(shown(&minute, &with(20e6)), "fine");
        let shown = shown(&minute, &with(1e9));
        assert!(
            shown.starts_with("--rate-max: makes a trial of too many frames (1000000000 frames/s for 60 s"),
            "{shown}"
        );
    }
}
