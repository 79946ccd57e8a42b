pub mod class;
pub(crate) mod filter_generations;
pub(crate) mod former_timers;
pub(crate) mod gateways;
pub mod origin;
pub mod rate_limit;
pub mod redirection;
pub(crate) mod refused;
pub mod rules;
pub mod stand_in;
pub(crate) mod steady_timers;

use crate::state::timers::Timers;

use filter_generations::FilterGenerations;
use former_timers::FormerTimers;
use rate_limit::RateLimit;
use refused::RefusedSubscribers;
use steady_timers::SteadyTimers;

/// What one worker holds packets and records to, beside the settings.
pub(crate) struct Policy {
    pub(crate) refused_subscribers: RefusedSubscribers,
    pub(crate) icmp_limit: RateLimit,
    pub(crate) lifetimes: Timers,
    pub(crate) former: FormerTimers,
    pub(crate) timers: SteadyTimers,
    pub(crate) generations: FilterGenerations,
    pub(crate) class_generation: u16,
}

impl Policy {
    /// For records whose packets the filters permit in both directions.
    #[inline(always)]
    pub(crate) fn filter_generation(&self) -> u8 {
        self.generations.current()
    }
}
