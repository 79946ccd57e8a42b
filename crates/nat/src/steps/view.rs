use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use crate::event::EventLog;
use crate::external::blocks::Holder;
use crate::external::static_mapping::Inside;
use crate::external::static_mapping::Kind;
use crate::external::static_mapping::StaticKey;
use crate::headers::parse::source_is_valid;
use crate::policy::Policy;
use crate::policy::rules::RuleKey;
use crate::policy::rules::Ruling;
use crate::settings::Filtering;
use crate::snapshot::addresses::Local;
use crate::snapshot::addresses::LocalAddresses;
use crate::snapshot::shared::CompiledPool;
use crate::snapshot::shared::Shared;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::State;
use crate::state::host::subscriber_prefix;
use crate::state::mapping::InternalKey;
use crate::state::session::HashedBy;
use crate::time::Instant;
use crate::types::DUMMY;
use crate::types::Endpoint;
use crate::types::Facing;
use crate::types::HOSTS_FIRST;
use crate::types::HostNumber;
use crate::types::InsideHost;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::types::Side;
use crate::types::WorkerId;
use crate::verdict::Verdict;

/// An IPv6 host without a record, by its stand-in number.
pub(crate) type NewHost = (HostNumber, InsideHost);

/// One worker's records, the settings, and the room for events, all read-only.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) state: &'a State,
    pub(crate) policy: &'a Policy,
    /// The settings. A plan passes others than those in effect.
    pub(crate) snapshot: &'a Shared,
    /// Addresses of the snapshot, and of the next one once workers expect it.
    pub(crate) local: &'a LocalAddresses,
    pub(crate) events: &'a EventLog,
    pub(crate) worker: WorkerId,
    /// False if a plan asks about a future snapshot.
    pub(crate) is_in_effect: bool,
    /// The decision is about this host.
    pub(crate) new_host: Option<&'a NewHost>,
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn local_to(&self, from: Facing, address: u32) -> Option<Local> {
        self.snapshot.as_seen(from, address, self.local.lookup(address)?)
    }

    /// Refuses invalid and own addresses, and from outside also inside ones (RFC 2827 §4, RFC 6598
    /// §4 "MUST filter such packets on ingress links").
    pub(crate) fn check_source(&self, from: Facing, source: u32) -> Option<Verdict> {
        let is_host = from.side == Side::Inside && HostNumber(source).is_ipv6() && !self.snapshot.transition.is_off();
        // From inside, this source would be the address of Natrix itself.
        let is_dummy = from.side == Side::Outside && source == DUMMY;
        if !(source_is_valid(source) || is_host) || is_dummy {
            return Some(Verdict::SourceInvalid);
        }
        // Inside softwires the AFTR has this address. Hosts accept errors and port control from it.
        if from.side == Side::Outside && source == AFTR_INSIDE && self.snapshot.transition.has_softwires() {
            return Some(Verdict::SourceSpoofed);
        }
        match self.local_to(from, source) {
            None => (from.side == Side::Outside && self.snapshot.is_inside(source)).then_some(Verdict::SourceSpoofed),
            Some(Local::Broadcast(_)) => Some(Verdict::SourceInvalid),
            Some(_) => Some(Verdict::SourceSpoofed),
        }
    }

    pub(crate) fn pool_of_mapping(&self, index: u32) -> Option<&'a CompiledPool> {
        let external = self.state.mappings.get(index).external_address;
        let address = self.snapshot.address_index(Ipv4Addr::from_bits(external))?;
        Some(self.snapshot.compiled_pool(address))
    }

    #[inline]
    pub(crate) fn under<'b>(&self, snapshot: &'b Shared) -> View<'b>
    where
        'a: 'b,
    {
        View { snapshot, is_in_effect: false, ..*self }
    }

    /// The holder of this subscriber's blocks. It is valid longer than the host, whose number may
    /// be reused.
    pub(crate) fn holder(&self, realm: RealmId, number: HostNumber) -> Holder {
        Holder { worker: self.worker, realm, address: self.state.owner_of(number) }
    }

    /// The subscriber's lasting address: an IPv4 address as a number below 2^32, or the first
    /// address of its IPv6 prefix. `number` may be any host of the subscriber.
    pub(crate) fn lasting_address(&self, number: HostNumber) -> u128 {
        if !number.is_ipv6() {
            return number.0.into();
        }
        let new_host = self.new_host.filter(|(of, _)| *of == number);
        let new_host = new_host.and_then(|(_, host)| host.ipv6()).map(Ipv6Addr::to_bits);
        let known = || self.state.subscribers.hosts.get(number).map(|host| host.address());
        let length = self.snapshot.transition.prefix_length;
        new_host.or_else(known).map_or(number.0.into(), |address| subscriber_prefix(address, length))
    }

    /// As [`View::lasting_address`], in 64 bits with the realm.
    pub(crate) fn lasting_name(&self, realm: RealmId, number: HostNumber) -> u64 {
        let lasting = self.lasting_address(number);
        let high = (lasting >> 64) as u64;
        u64::from(realm.0) << 32 ^ high.rotate_left(16) ^ lasting as u64
    }

    /// The host's address in rules, filters and classes; of an IPv6 host, its prefix's stand-in.
    #[inline(always)]
    pub(crate) fn ruled_address(&self, number: HostNumber) -> u32 {
        if number.is_ipv6() { self.stand_in(number) } else { number.0 }
    }

    #[inline(never)]
    fn stand_in(&self, number: HostNumber) -> u32 {
        let new_host = self.new_host.filter(|(of, _)| *of == number);
        let new_host = new_host.and_then(|(_, host)| host.ipv6()).map(Ipv6Addr::to_bits);
        let host = || self.state.subscribers.hosts.get(number).map(|host| host.address());
        new_host.or_else(host).map_or(HOSTS_FIRST, |address| self.snapshot.transition.stand_ins.of(address))
    }

    /// A host that the configuration cannot name gets an address that no host has.
    #[inline]
    pub(crate) fn configured_host(&self, number: HostNumber) -> InsideHost {
        let address = InsideHost::Ipv4(number.into());
        match number.is_ipv6() {
            true => self.host_of_number(number).unwrap_or(address),
            false => address,
        }
    }

    #[cold]
    #[inline(never)]
    fn host_of_number(&self, number: HostNumber) -> Option<InsideHost> {
        if let Some((_, host)) = self.new_host.filter(|(of, _)| *of == number) {
            return Some(*host);
        }
        let host = self.state.subscribers.hosts.get(number)?;
        if host.is_subscriber() {
            return Some(InsideHost::Ipv6(Ipv6Addr::from_bits(host.address())));
        }
        self.snapshot.transition.configured_host(&host.key())
    }

    /// True if its external endpoint is that of a forward or a one-to-one address.
    #[inline]
    pub(crate) fn is_static(&self, index: u32) -> bool {
        let static_mappings = &self.snapshot.static_mappings;
        if static_mappings.is_empty() {
            return false;
        }
        let mapping = self.state.mappings.get(index);
        static_mappings.by_external(mapping.external_address, mapping.protocol(), mapping.external_port()).is_some()
    }

    pub(crate) fn static_key(&self, key: &InternalKey) -> StaticKey {
        let InternalKey { realm, protocol, address, port } = *key;
        StaticKey { realm, protocol, host: self.configured_host(address), port }
    }

    /// The static mapping of an internal endpoint, active or not.
    #[inline]
    pub(crate) fn static_mapping_of(&self, key: &InternalKey) -> Option<(Endpoint, Kind)> {
        let static_mappings = &self.snapshot.static_mappings;
        if static_mappings.is_empty() { None } else { static_mappings.by_internal(&self.static_key(key)) }
    }

    /// A quick check: `false` is certain, `true` may be wrong.
    #[inline(always)]
    pub(crate) fn may_have_static_mapping(&self, number: HostNumber) -> bool {
        let static_mappings = &self.snapshot.static_mappings;
        !static_mappings.is_empty() && static_mappings.may_concern(&self.configured_host(number))
    }

    /// A host without a record has a stand-in, which only a view with this new host understands.
    pub(crate) fn endpoint_of_static(
        &self,
        now: Instant,
        inside: &Inside,
        protocol: Protocol,
    ) -> Result<(InternalKey, Option<NewHost>), Verdict> {
        let Inside { realm, host, port, .. } = *inside;
        let (address, new_host) = match host {
            InsideHost::Ipv4(address) => (address.into(), None),
            InsideHost::Ipv6(_) | InsideHost::BehindB4 { .. } => {
                let key = self.snapshot.transition.host_key(realm, &host).ok_or(Verdict::NoRoute)?;
                let hosts = &self.state.subscribers.hosts;
                let previewed = hosts.preview(now, hosts.hash_of(&key), &key, realm)?;
                (previewed.number, (!previewed.is_known).then_some((previewed.number, host)))
            }
        };
        Ok((InternalKey { realm, protocol, address, port }, new_host))
    }

    #[inline(always)]
    pub(crate) fn ruled(&self, key: RuleKey) -> RuleKey {
        let source = HostNumber::from(key.source());
        if source.is_ipv6() { key.from_source(self.stand_in(source)) } else { key }
    }

    #[inline]
    pub(crate) fn ruling(&self, key: RuleKey) -> Ruling {
        self.snapshot.rule_for(&self.ruled(key))
    }

    #[inline]
    pub(crate) fn class_of(&self, realm: RealmId, subscriber: HostNumber) -> u16 {
        self.snapshot.classes.of(realm, self.ruled_address(subscriber))
    }

    /// The subscriber's class under this snapshot. The record may still have an earlier one.
    #[inline(always)]
    pub(crate) fn class_now(&self, subscriber: u32) -> u16 {
        let record = self.state.subscribers.get(subscriber);
        if self.is_in_effect && record.class_generation == self.policy.class_generation {
            return record.class;
        }
        self.class_of(record.realm(), record.address)
    }
}

pub(crate) fn hashed_by(compiled: &CompiledPool, protocol: Protocol) -> HashedBy {
    match compiled.filtering[protocol.index()] {
        Filtering::AddressDependent => HashedBy::Address,
        _ => HashedBy::Endpoint,
    }
}
