//! Packets without ports: tunnelled packets of PPTP calls, and what rules pass untranslated.

use crate::headers::gre;
use crate::headers::packet::Sink;
use crate::headers::parse::Parsed;
use crate::policy::rules::Ruling;
use crate::shard::Arrival;
use crate::shard::Fate;
use crate::shard::packet::PacketPath;
use crate::shard::packet::outbound::Flow;
use crate::steps::untranslated::Portless;
use crate::verdict::Verdict;
use alg::AlgId;

impl PacketPath {
    /// Processes a packet without ports from inside, on the subscriber's worker.
    #[cold]
    #[inline(never)]
    pub(in crate::shard) fn leave_portless(&mut self, at: Arrival<'_>, bytes: &mut [u8], sink: &mut dyn Sink) -> Fate {
        let Arrival { now, meta, parsed } = at;
        let realm = self.ledger.shared.realm_of(meta.ingress);
        let Portless { judged, ruling, leaves } = self.view().leave_portless(now, realm, parsed, &mut ());
        if let Some(judged) = &judged {
            self.note_judged(now, judged);
        }
        if let Some(ruling) = ruling {
            self.count_passed(parsed, ruling);
        }
        match leaves {
            Ok((index, way)) => self.leave_translated(at, bytes, None, way, Flow { index, session: None }, sink),
            Err(ending) => self.end_outbound(at, bytes, Ruling::DEFAULT, ending, sink),
        }
    }

    /// Names the gateway if the fragment could belong to a call.
    pub(in crate::shard) fn fragment_of_call(&self, parsed: &Parsed, fate: Fate) -> Fate {
        let is_served = || self.ledger.shared.gateways.of(AlgId::PPTP).is_some();
        match fate {
            Fate::Done(Verdict::ProtocolUnsupported) if parsed.protocol_number == gre::PROTOCOL && is_served() => {
                Fate::Done(Verdict::CallFragment)
            }
            fate => fate,
        }
    }
}
