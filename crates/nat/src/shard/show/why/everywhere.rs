//! Explanations over all workers.

use crate::external::load_balancing::TARGET_GENERATIONS_MAX;
use crate::headers::parse::parse;
use crate::shard::edge::preview::source_of;
use crate::show::view::Explanation;
use crate::show::view::Onward;
use crate::snapshot::shared::Shared;
use crate::types::Facing;
use crate::types::HostNumber;
use crate::types::Side;
use crate::types::WorkerId;

/// Workers of the subscriber (twice if it asks for a port), of the destination (by port table or
/// configuration), and of the lists of targets.
const STOPS_MAX: usize = TARGET_GENERATIONS_MAX + 6;

impl Shared {
    /// Like [`Shard::explain`], on every worker. `ask` asks one worker: [`Shard::explain`], or
    /// [`Shard::explain_onward`] for an [`Onward`].
    ///
    /// # Errors
    /// The error of `ask`.
    pub fn explain<E>(
        &self,
        from: Facing,
        packet: &[u8],
        mut ask: impl FnMut(WorkerId, Option<Onward>) -> Result<Explanation, E>,
    ) -> Result<(WorkerId, Explanation), E> {
        let mut worker = match parse(packet) {
            Ok(parsed) if from.side == Side::Inside => self.worker_of_subscriber(HostNumber(parsed.source)),
            _ => source_of(packet).map_or(WorkerId(0), |source| self.worker_of_host(source)),
        };
        let mut explanation = ask(worker, None)?;
        // Both halves of a hairpin are shown.
        let half = |explanation: &Explanation| if from.side == Side::Inside { explanation.steps.len() } else { 0 };
        let mut first = half(&explanation);
        for _ in 0..STOPS_MAX {
            let Some(onward) = explanation.onward else { break };
            let next = ask(onward.worker, Some(onward))?;
            if onward.begins_again() {
                first = half(&next);
                (worker, explanation) = (onward.worker, next);
                continue;
            }
            explanation.steps.truncate(first);
            explanation.steps.extend(next.steps);
            explanation.verdict = next.verdict;
            explanation.destination_after = next.destination_after;
            explanation.onward = next.onward;
            if from.side == Side::Outside {
                (worker, explanation.source_after) = (onward.worker, next.source_after);
            }
        }
        Ok((worker, explanation))
    }
}
