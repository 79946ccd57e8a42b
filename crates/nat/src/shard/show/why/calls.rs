//! Tunnelled packets of PPTP calls.

use crate::headers::parse::Parsed;
use crate::shard::show::why::Account;
use crate::steps::call::without_call;
use crate::steps::inbound::Inbound;
use crate::steps::outbound::Way;
use crate::steps::view::View;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::verdict::Verdict;

use crate::shard::packet::inbound::Via;

impl View<'_> {
    pub(super) fn explain_call_out(&self, now: Instant, parsed: &Parsed, account: &mut Account) -> Verdict {
        let realm = account.realm;
        let Some(calling) = self.decide_call_out(now, realm, parsed, account) else {
            return self.explain_other(Facing::inside(realm), &without_call(parsed), account);
        };
        let (mapping, way) = match calling.leaves {
            Ok(leaves) => leaves,
            Err(no_call) => return no_call.verdict(),
        };
        let external = self.state.mappings.get(mapping).external();
        account.source_after = Some(Endpoint::new(external.address, 0));
        let Way::Hairpin { .. } = way else {
            account.destination_after = Some(Endpoint::new(parsed.destination.into(), parsed.destination_port));
            return Verdict::Outbound;
        };
        self.explain_translated(now, &Parsed { source: external.address.to_bits(), ..*parsed }, account)
    }

    pub(super) fn explain_call_in(&self, packet: &Inbound<'_>, account: &mut Account) -> Verdict {
        match self.decide_call_in(packet, account) {
            Some(decided) => self.explain_act(packet, decided.act, account),
            None if packet.via == Via::Hairpin => Verdict::ProtocolUnsupported,
            None => self.explain_other(Facing::OUTSIDE, &without_call(packet.parsed), account),
        }
    }
}
