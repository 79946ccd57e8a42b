//! First packets of new subscribers.
//!
//! A new subscriber gets the less used of two random addresses. These are drawn before the last
//! pass, so that what the choice reads is in the cache by then. The choice itself is made in the
//! last pass, because each one counts in the next.

use crate::headers::packet::Egress;
use crate::headers::packet::Packet;
use crate::headers::parse::HEADERS;
use crate::headers::parse::ip;
use crate::shard::burst::established::Scratch;
use crate::shard::burst::first_packet::bits;
use crate::shard::burst::first_packet::source_of;
use crate::shard::packet::PacketPath;
use crate::state::mapping::InternalKey;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::Protocol;

impl PacketPath {
    /// For unsettled packets of sources without a record.
    #[inline(never)]
    pub(super) fn draw_addresses(&mut self, scratch: &mut Scratch, burst: &[Packet<'_>]) {
        let new = bits(scratch.unsettled & !scratch.aimed).filter(|i| scratch.may_be_new(*i));
        let new = new.fold(0_u64, |new, i| new | 1 << i);
        self.ledger.state.subscribers.prefetch_free(new.count_ones());
        for i in bits(new) {
            let port = u16::from_be_bytes(*burst[i].chunk(ip::HEADER_MIN).unwrap_or(&[0; 2]));
            let protocol = if scratch.kind[i].is_tcp() { Protocol::Tcp } else { Protocol::Udp };
            let key =
                InternalKey { realm: scratch.realm[i], protocol, address: HostNumber(source_of(&burst[i])), port };
            let (view, random) = self.ledger.deciding();
            scratch.drawn[i] = view.draw_for_new_subscriber(&key, random);
            let Some(drawn) = &scratch.drawn[i] else { continue };
            let ports = &self.ledger.shared.ports;
            ports.prefetch_draw(&drawn.draw, protocol);
            for (address, aim) in drawn.draw.addresses().into_iter().zip(drawn.aims) {
                let Some(aim) = aim else { continue };
                let place = ports.place(address, protocol, aim.port());
                ports.prefetch_bit(place);
                ports.prefetch(place);
            }
        }
    }

    /// A source without a record, usually a new subscriber. Also for what has no aim for other
    /// reasons.
    #[inline(never)]
    pub(super) fn open_for_new_subscriber(
        &mut self,
        now: Instant,
        header: &mut [u8; HEADERS],
        scratch: &Scratch,
        i: usize,
    ) -> Option<Egress> {
        if !scratch.may_be_new(i) {
            return None;
        }
        let (key, hop) = self.usual_flow(now, header, scratch, i)?;
        // An earlier packet of the burst may have entered it.
        if self.ledger.state.subscribers.find_hashed(scratch.subscriber_hash[i], key.realm, key.address).is_some() {
            return None;
        }
        self.ledger.admit_record().ok()?;
        let (view, random) = self.ledger.deciding();
        let new = view.usual_new_subscriber(&key, scratch.place[i], scratch.drawn[i].as_ref(), random)?;
        let session = self.session_of(now, &key, header);
        let index = self.ledger.commit_mapping(now, &new, &session).ok()?;
        Some(self.leave_first(header, scratch, i, (&key, &hop), index))
    }
}
