//! Expectations of gateways: grants with another origin, after a decision of
//! [`crate::steps::announcement`].

use alg::CallStep;
use alg::Known;
use alg::Want;
use alg::WantKind;

use crate::shard::Ledger;
use crate::state::grant::Request;
use crate::steps::announcement::Announcement;
use crate::steps::announcement::Asking;
use crate::steps::announcement::Room;
use crate::steps::announcement::second_of_pair;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::verdict::GatewayRefusal;

impl Ledger {
    /// Reserves what a message announces; of a pair, returns the first.
    pub(in crate::shard) fn expect(&mut self, asking: &Asking, want: &Want) -> Option<Endpoint> {
        let (view, gateway) = (self.view(), self.shared.gateways.of(asking.alg)?);
        let answer = if want.kind == WantKind::Call {
            match view.decide_call(asking, want, gateway) {
                Ok(call) => self.carry_out_call(asking, want, call?),
                Err(why) => Err(why),
            }
        } else {
            match view.decide_announcement(asking, want, gateway) {
                Ok(announcement) => self.carry_out_announcement(asking, want, announcement),
                Err(why) => Err(why),
            }
        };
        if let Err(why) = answer {
            self.counters.expectations_refused += 1;
            self.counters.gateways[usize::from(asking.alg.0)].refuse(why);
        }
        answer.ok().flatten()
    }

    fn carry_out_announcement(
        &mut self,
        asking: &Asking,
        want: &Want,
        announcement: Announcement,
    ) -> Result<Option<Endpoint>, GatewayRefusal> {
        let (external, answer) = match announcement {
            Announcement::Ends { grant, answer } => {
                if let Some(index) = grant {
                    self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
                }
                return Ok(answer);
            }
            Announcement::Registered { external, answer } => (external, answer),
            Announcement::Grant { request, is_pair, room } => {
                let opened = match is_pair {
                    true => self.open_pair(asking.now, &request),
                    false => self.open_grant(asking.now, &request).ok(),
                };
                let external = self.state.grants.get(opened.ok_or(GatewayRefusal::NoPort)?).external();
                if let Some(room) = room {
                    self.count_expected(asking, &room);
                }
                (external, Some(external))
            }
        };
        self.learn(asking, Known { external: external.port, inside: want.port, peer: None });
        Ok(answer)
    }

    /// RTP and RTCP. Without a second port, RTP keeps its own: sound without reports is better than
    /// none. So nothing is undone, even if another worker takes the second port meanwhile.
    pub(in crate::shard) fn open_pair(&mut self, now: Instant, request: &Request) -> Option<u32> {
        let (view, random) = self.deciding();
        let pair = view.decide_pair(now, request, random);
        if let Some(first) = pair
            && let Ok(index) = self.open_grant(now, &first)
        {
            let external = self.state.grants.get(index).external();
            if external.port.is_multiple_of(2) {
                let _ = self.open_grant(now, &second_of_pair(&first, external));
            }
            return Some(index);
        }
        self.open_grant(now, request).ok()
    }

    pub(super) fn count_expected(&mut self, asking: &Asking, room: &Room) {
        self.counters.expectations_created += 1;
        self.counters.gateways[usize::from(asking.alg.0)].expected += 1;
        let Some(store) = self.state.control_sessions.as_mut().filter(|_| room.is_to_be_made) else { return };
        store.get_mut(asking.place).forget(|known| room.kept().contains(known));
        if let Some(oldest) = room.replaced {
            self.state.grants.get_mut(oldest).set_expires(Instant::ORIGIN);
        }
    }

    pub(in crate::shard) fn learn(&mut self, asking: &Asking, known: Known) {
        if let Some(store) = self.state.control_sessions.as_mut() {
            store.get_mut(asking.place).learn(known);
        }
    }

    pub(in crate::shard) fn end_registrations(&mut self, asking: &Asking, via: Option<u16>) {
        while let Some(index) = self.view().registration_of_sender(asking, via) {
            self.state.grants.get_mut(index).set_expires(Instant::ORIGIN);
        }
    }

    pub(in crate::shard) fn note_call(&mut self, asking: &Asking, step: CallStep, request: u16) {
        let Some(call) = self.view().decide_step_of_call(asking, step, request) else { return };
        if let Some(store) = self.state.control_sessions.as_mut().filter(|_| step == CallStep::Ends) {
            store.get_mut(call.place).forget_request(request);
        }
        for (index, until) in call.ends.into_iter().flatten() {
            self.move_end(asking.now, index, until);
        }
    }

    pub(in crate::shard) fn note_registered(&mut self, asking: &Asking, port: u16, seconds: u32) {
        if let Some((index, until)) = self.view().registered_until(asking, port, seconds) {
            self.move_end(asking.now, index, until);
        }
    }
}
