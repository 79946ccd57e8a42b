//! Packets of endpoint-dependent sessions and to forwards with several targets.

use crate::steps::dependent::DependentSessionRequest;
use crate::steps::inbound::Inbound;
use crate::steps::view::View;

use super::Account;
use crate::external::load_balancing::Group;
use crate::headers::parse::Parsed;
use crate::settings::RuleAction;
use crate::state::flow::endpoint;
use crate::steps::outbound::Outbound;
use crate::steps::outbound::Way;
use crate::steps::outbound::translated;
use crate::steps::report::Report;
use crate::steps::step::Step;
use crate::types::Endpoint;
use crate::types::Protocol;
use crate::verdict::Verdict;

impl View<'_> {
    pub(super) fn explain_dependent(&self, packet: &Outbound<'_>, index: u32, account: &mut Account) -> Verdict {
        let way = match self.leave_by_dependent(packet, index, account).way {
            Ok(way) => way,
            Err(ending) => return self.explain_ending(packet, &ending, account),
        };
        let flow = self.state.flows.get(index);
        account.source_after = Some(endpoint(flow.external()));
        if let Way::Hairpin { .. } = way {
            return self.explain_translated(packet.now, &translated(packet.parsed, flow.external()), account);
        }
        account.destination_after = Some(destination_after(packet.key.protocol, packet.parsed, flow.remote_outside()));
        Verdict::Outbound
    }

    pub(super) fn explain_sharing(
        &self,
        packet: &Outbound<'_>,
        remote_outside: (u32, u16),
        action: RuleAction,
        account: &mut Account,
    ) -> Option<Verdict> {
        let Outbound { now, parsed, ref key, .. } = *packet;
        let ask =
            DependentSessionRequest { now, key, remote_inside: packet.remote(), remote_outside, wanted: action.pool() };
        match self.open_dependent(parsed, &ask, action, &mut account.random.clone(), account) {
            Ok(_) => {
                account.destination_after = Some(destination_after(key.protocol, parsed, remote_outside));
                Some(Verdict::Outbound)
            }
            Err(no_session) => no_session.verdict(),
        }
    }

    /// The target depends on the external port, which does not exist yet.
    pub(super) fn explain_any_target(&self, packet: &Inbound<'_>, account: &mut Account) -> Verdict {
        let parsed = packet.parsed;
        let Some(protocol) = parsed.protocol() else { return Verdict::ProtocolUnsupported };
        let group = self.snapshot.balance.find(parsed.destination, protocol, parsed.destination_port);
        let generation = group.and_then(Group::current);
        let (length, realm) = (account.steps.len(), account.realm);
        let mut said: Option<Verdict> = None;
        let mut agree = true;
        let mut passes = false;
        for aim in generation.iter().flat_map(|generation| generation.aims(parsed.destination_port)) {
            account.steps.truncate(length);
            account.realm = realm;
            let act = self.enter_target(packet, protocol, &aim, &mut None, account).unwrap_or_else(|act| act);
            let verdict = self.explain_act(packet, act, account);
            agree &= *said.get_or_insert(verdict) == verdict;
            passes |= verdict == Verdict::Hairpin;
        }
        let (Some(first), Some(generation)) = (said, generation) else { return self.explain_inbound(packet, account) };
        if generation.targets().len() == 1 {
            return first;
        }
        account.steps.truncate(length);
        account.destination_after = None;
        let external = endpoint((parsed.destination, parsed.destination_port));
        account.step(|| Step::AnyTarget { external, targets: generation.targets().len(), agree });
        if passes { Verdict::Hairpin } else { first }
    }
}

/// An ICMP identifier stands for both ports and is not the remote endpoint's.
fn destination_after(protocol: Protocol, parsed: &Parsed, remote_outside: (u32, u16)) -> Endpoint {
    Endpoint::new(
        remote_outside.0.into(),
        if protocol == Protocol::Icmp { parsed.destination_port } else { remote_outside.1 },
    )
}
