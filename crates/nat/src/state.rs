//! The records of one worker.

pub(crate) mod alg;
pub(crate) mod bucket;
pub(crate) mod calls;
pub mod delta;
pub(crate) mod fifo_map;
pub(crate) mod flow;
pub mod fragments;
pub mod grant;
pub(crate) mod grant_record;
pub(crate) mod held_ports;
pub mod held_syn;
pub(crate) mod host;
pub(crate) mod mapping;
pub(crate) mod path_mtu;
pub mod reassembly;
pub(crate) mod session;
pub(crate) mod shared_ports;
pub(crate) mod subscriber;
pub mod table;
pub mod tcp;
pub(crate) mod timers;

use crate::random::KeyedHash;
use crate::state::alg::AlgStore;
use crate::state::flow::FlowStore;
use crate::state::flow::InsideKey;
use crate::state::flow::OutsideKey;
use crate::state::grant::GrantStore;
use crate::state::held_ports::HeldPorts;
use crate::state::mapping::InternalKey;
use crate::state::mapping::MappingStore;
use crate::state::mapping::SessionRef;
use crate::state::session::HashedBy;
use crate::state::session::SessionStore;
use crate::state::shared_ports::SharedPorts;
use crate::state::subscriber::SubscriberStore;
use crate::state::table::BucketTable;
use crate::state::tcp::TcpState;
use crate::time::Instant;
use crate::types::HostNumber;
use crate::types::MappingIndex;
use crate::types::RealmId;
use crate::types::RemoteInside;
use crate::types::Side;

pub(crate) struct State {
    pub(crate) mappings: MappingStore,
    pub(crate) outbound: BucketTable,
    pub(crate) hash: KeyedHash,
    pub(crate) sessions: SessionStore,
    pub(crate) flows: FlowStore,
    pub(crate) shared_ports: SharedPorts,
    pub(crate) subscribers: SubscriberStore,
    pub(crate) held_ports: HeldPorts,
    pub(crate) grants: GrantStore,
    /// `None` until a gateway is enabled.
    pub(crate) control_sessions: Option<Box<AlgStore>>,
}

impl State {
    #[inline]
    pub(crate) fn hash_of(&self, key: &InternalKey) -> u64 {
        self.hash.hash(
            u64::from(key.port) << 32 | u64::from(key.address.0),
            u64::from(key.realm.0) << 8 | key.protocol as u64,
        )
    }

    /// As [`State::hash_of`], from [`InternalKey::word`].
    #[inline(always)]
    pub(crate) fn hash_of_word(&self, word: u64) -> u64 {
        self.hash.hash(InternalKey::port_and_address(word), InternalKey::realm_and_protocol(word))
    }

    /// The mapping of an internal endpoint, even if it has expired.
    #[inline(always)]
    pub(crate) fn find_mapping(&self, key: &InternalKey, hash: u64) -> Option<u32> {
        // Compute the word first: reading back a key just written in parts would stall.
        let internal = key.word();
        self.outbound.find(hash, |index| self.mappings.get(index).matches(internal))
    }

    #[inline]
    pub(crate) fn owner_of(&self, number: HostNumber) -> HostNumber {
        self.subscribers.hosts.subscriber_of(number)
    }

    /// As [`GrantStore::of_owner`].
    pub(crate) fn grants_beside(&self, realm: RealmId, number: HostNumber) -> impl Iterator<Item = u32> + '_ {
        self.grants.of_owner(realm, self.owner_of(number))
    }

    pub(crate) fn find_live_mapping(&self, key: &InternalKey, now: Instant) -> Option<u32> {
        self.find_mapping(key, self.hash_of(key)).filter(|index| self.is_alive(*index, now))
    }

    /// Exact: if the mapping's end is only a bound, searches its sessions, newest first.
    #[inline]
    pub(crate) fn is_alive(&self, index: u32, now: Instant) -> bool {
        let mapping = self.mappings.get(index);
        mapping.is_alive(now) && (!mapping.expiry_is_bound() || self.has_live_session(index, now))
    }

    #[cold]
    fn has_live_session(&self, index: u32, now: Instant) -> bool {
        let mapping = self.mappings.get(index);
        if mapping.has_live_session(now) {
            return true;
        }
        let mut slot = mapping.extra_head;
        while slot != 0 {
            let session = self.sessions.get(slot);
            if session.is_alive(now) {
                return true;
            }
            slot = session.next;
        }
        false
    }

    #[inline]
    pub(crate) fn find_session(
        &self,
        index: u32,
        remote_address: u32,
        remote_port: u16,
        by: HashedBy,
        now: Instant,
    ) -> Option<SessionRef> {
        let mapping = self.mappings.get(index);
        if mapping.session_matches(remote_address, remote_port, now) {
            return Some(SessionRef::Inline);
        }
        if mapping.extra_count() == 0 {
            return None;
        }
        self.sessions.find(index, remote_address, remote_port, by, now).map(SessionRef::Extra)
    }

    /// The remote endpoint and the client's side; `None` for flows, which no gateway reads.
    pub(crate) fn remote_of(&self, index: u32, session: SessionRef) -> Option<((u32, u16), Side)> {
        let mapping = self.mappings.get(index);
        match session {
            SessionRef::Inline => {
                Some(((mapping.remote_address(), mapping.remote_port()), mapping.session_opened_from()))
            }
            SessionRef::Extra(slot) => {
                let session = self.sessions.get(slot);
                Some(((session.remote_address, session.remote_port), session.opened_from()))
            }
            SessionRef::Flow(_) => None,
        }
    }

    /// Of the filters that permit it both ways.
    pub(crate) fn filter_generation(&self, index: u32, session: SessionRef) -> u8 {
        match session {
            SessionRef::Inline => self.mappings.get(index).session_generation(),
            SessionRef::Extra(slot) => self.sessions.get(slot).filter_generation(),
            SessionRef::Flow(flow) => self.flows.get(flow).filter_generation(),
        }
    }

    pub(crate) fn session_state(&self, index: u32, session: SessionRef) -> (TcpState, Instant) {
        match session {
            SessionRef::Inline => {
                let mapping = self.mappings.get(index);
                (mapping.state(), mapping.session_expires())
            }
            SessionRef::Extra(slot) => {
                let session = self.sessions.get(slot);
                (session.state(), session.expires())
            }
            SessionRef::Flow(flow) => (self.flows.get(flow).state(), self.flows.get(flow).expires()),
        }
    }

    #[inline(always)]
    pub(crate) fn live_flow(&self, key: &InternalKey, remote_inside: RemoteInside, now: Instant) -> Option<u32> {
        if self.flows.is_empty() { None } else { self.find_live_flow(key, remote_inside, now) }
    }

    /// As [`State::live_flow`]. Takes the key by value: a key in memory would be written in parts
    /// and read as a whole, which stalls.
    #[inline(always)]
    pub(crate) fn has_live_flow(&self, key: InternalKey, remote_inside: RemoteInside, now: Instant) -> bool {
        !self.flows.is_empty() && self.has_flow(key, remote_inside, now)
    }

    #[inline(never)]
    fn has_flow(&self, key: InternalKey, remote_inside: RemoteInside, now: Instant) -> bool {
        self.find_live_flow(&key, remote_inside, now).is_some()
    }

    fn find_live_flow(&self, key: &InternalKey, remote_inside: RemoteInside, now: Instant) -> Option<u32> {
        let found = self.flows.find_inside(&InsideKey::new(key, remote_inside))?;
        self.flows.get(found).is_alive(now).then_some(found)
    }

    pub(crate) fn live_flow_outside(&self, key: &OutsideKey, now: Instant) -> Option<u32> {
        self.flows.find_outside(key).filter(|index| self.flows.get(*index).is_alive(now))
    }

    pub(crate) fn is_mapped(&self, mapping: MappingIndex, now: Instant) -> bool {
        mapping != MappingIndex::SHARED && self.is_alive(mapping.0, now)
    }
}
