//! Makes control sessions of gateways.

use crate::shard::Ledger;
use crate::state::alg::Begun;
use crate::time::Instant;
use crate::types::Side;
use crate::verdict::GatewayRefusal;

impl Ledger {
    /// An unanswered or ended session may give way. `None` if there is no room.
    pub(in crate::shard) fn start_control(&mut self, now: Instant, begun: &Begun) -> Option<u32> {
        let store = self.state.control_sessions.as_ref()?;
        if store.find(&begun.key).is_none() {
            if begun.is_of_client()
                && store.has_room_for(begun.subscriber, Side::Outside)
                && let Some(oldest) = store.client_to_replace(begun.subscriber)
            {
                self.counters.gateways[usize::from(begun.alg.0)].refuse(GatewayRefusal::SubscriberLimit);
                self.replace_control(now, oldest);
            } else if let Some(place) = store.to_replace(begun.subscriber, begun.from()) {
                self.replace_control(now, place);
            }
        }
        self.state.control_sessions.as_mut()?.start(begun)
    }
}
