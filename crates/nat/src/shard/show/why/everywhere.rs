//! Explains over all workers: each explains its part.

use crate::external::load_balancing::TARGET_GENERATIONS_MAX;
use crate::headers::parse::Parsed;
use crate::headers::parse::parse;
use crate::shard::Shard;
use crate::show::view::Explanation;
use crate::show::view::Onward;
use crate::show::view::Step;
use crate::snapshot::shared::Shared;
use crate::steps::inbound::Inbound;
use crate::steps::inbound::Via;
use crate::steps::report::Report;
use crate::time::Instant;
use crate::types::Facing;
use crate::types::Side;
use crate::types::WorkerId;

use super::Account;

/// The workers of the subscriber, of the destination (by port table or configuration), and of the
/// lists of targets.
const STOPS_MAX: usize = TARGET_GENERATIONS_MAX + 4;

impl Shard {
    /// Continues the explanation of another worker.
    pub fn explain_onward(&self, now: Instant, onward: Onward, packet: &[u8]) -> Explanation {
        let mut account = Account::new(onward.realm, &self.random, Vec::new());
        let parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        let Onward { realm, source, via, turn, is_vacated, .. } = onward;
        if via == Via::Outside {
            account.parsed(&parsed);
        }
        account.step(|| Step::Owner(self.view().worker));
        let parsed = Parsed { source: source.address.to_bits(), source_port: source.port, ..parsed };
        let verdict =
            self.view().explain_inbound(&Inbound { now, parsed: &parsed, via, realm, turn, is_vacated }, &mut account);
        account.end(verdict)
    }
}

impl Shared {
    /// As [`Shard::explain`], on every worker. `ask` brings the answer of one worker: of
    /// [`Shard::explain`], or of [`Shard::explain_onward`] if there is an [`Onward`].
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
            Ok(parsed) if from.side == Side::Inside => self.worker_of_subscriber(parsed.source),
            _ => WorkerId(0),
        };
        let mut explanation = ask(worker, None)?;
        // The steps of both halves of a hairpin are shown.
        let half = if from.side == Side::Inside { explanation.steps.len() } else { 0 };
        for _ in 0..STOPS_MAX {
            let Some(onward) = explanation.onward else { break };
            let next = ask(onward.worker, Some(onward))?;
            explanation.steps.truncate(half);
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
