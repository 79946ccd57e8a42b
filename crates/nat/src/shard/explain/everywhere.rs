//! Explaining over all workers: the one that has the session says what happens, and of a packet from one subscriber to another two
//! may have to be asked.

use crate::parse::Parsed;
use crate::parse::parse;
use crate::shard::Shard;
use crate::shard::dependent::key_of_inbound;
use crate::shard::inbound::Via;
use crate::shard::outbound::remote_port;
use crate::shared::Shared;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::Side;
use crate::types::WorkerId;
use crate::view::Explanation;
use crate::view::Onward;
use crate::view::Step;

use super::Account;

impl Shard {
    /// Explains the second half of a hairpin, which the explanation of the first one left to this worker.
    pub fn explain_onward(&self, now: Instant, onward: Onward, packet: &[u8]) -> Explanation {
        let mut account = Account::new(onward.realm, Vec::new());
        let parsed = match parse(packet) {
            Ok(parsed) => parsed,
            Err(verdict) => return account.end(verdict),
        };
        account.steps.push(Step::Owner(self.worker()));
        let translated = behind_translation(&parsed, onward);
        let verdict = self.explain_inbound(now, &translated, Via::Hairpin, &mut account);
        account.end(verdict)
    }
}

impl Shared {
    /// Explains what would happen now to an IP packet that came in by an interface that faces `from`, whichever workers it visits.
    /// `ask` brings the answer of one: of [`Shard::explain`], or of [`Shard::explain_onward`] where there is an [`Onward`].
    ///
    /// # Errors
    /// What `ask` failed by.
    pub fn explain<E>(
        &self,
        from: Facing,
        packet: &[u8],
        mut ask: impl FnMut(WorkerId, Option<Onward>) -> Result<Explanation, E>,
    ) -> Result<(WorkerId, Explanation), E> {
        let Ok(parsed) = parse(packet) else { return Ok((WorkerId(0), ask(WorkerId(0), None)?)) };
        if from.side == Side::Outside {
            return self.ask_each(&parsed, |worker| ask(worker, None));
        }
        let worker = self.worker_of_subscriber(parsed.source);
        let mut explanation = ask(worker, None)?;
        if let Some(onward) = explanation.onward.take() {
            let translated = behind_translation(&parsed, onward);
            let (_, second) = self.ask_each(&translated, |worker| ask(worker, Some(onward)))?;
            explanation.steps.extend(second.steps);
            explanation.verdict = second.verdict;
            explanation.destination_after = second.destination_after;
        }
        Ok((worker, explanation))
    }

    /// Asks the workers that may have what a packet to an external endpoint belongs to, in the order in which it visits them: who
    /// has it says what happens, else the last.
    fn ask_each<E>(
        &self,
        parsed: &Parsed,
        mut ask: impl FnMut(WorkerId) -> Result<Explanation, E>,
    ) -> Result<(WorkerId, Explanation), E> {
        let workers = self.workers_of_external(parsed);
        let (last, others) = workers.split_last().map_or((WorkerId(0), &[][..]), |(last, others)| (*last, others));
        for worker in others {
            let explanation = ask(*worker)?;
            let is_its = |step: &Step| matches!(step, Step::SessionFound { .. } | Step::MappingFound { .. });
            if explanation.steps.iter().any(is_its) {
                return Ok((*worker, explanation));
            }
        }
        Ok((last, ask(last)?))
    }

    /// The owner of the external endpoint, then those of its targets, or of whom it is forwarded to.
    fn workers_of_external(&self, parsed: &Parsed) -> Vec<WorkerId> {
        let Some(protocol) = parsed.protocol() else { return Vec::new() };
        let external = Endpoint::new(parsed.destination.into(), parsed.destination_port);
        let remote = Endpoint::new(parsed.source.into(), remote_port(protocol, parsed.source_port));
        let address = self.address_index(external.address);
        let key = key_of_inbound(parsed, protocol);
        let owner = address.and_then(|address| self.owner_towards(address, &key)).map(|(worker, _)| worker);
        let mut workers: Vec<WorkerId> = owner.into_iter().collect();
        workers.extend(self.balanced_workers(external, protocol, remote));
        let inside = self.statics.by_external(parsed.destination, protocol, external.port);
        workers.extend(inside.map(|inside| self.worker_of_subscriber(inside.address)));
        workers.dedup();
        workers
    }
}

fn behind_translation(parsed: &Parsed, onward: Onward) -> Parsed {
    Parsed { source: onward.source.address.to_bits(), source_port: onward.source.port, ..*parsed }
}
