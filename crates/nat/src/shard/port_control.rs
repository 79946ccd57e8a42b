//! The port-control server: PCP (RFC 6887, RFC 7753) and NAT-PMP (RFC 6886).
//!
//! The worker of the request's subject answers on the long way, like a ping. Only grants
//! ([`crate::state::grant`]) are made, renewed and ended.

mod map;
mod nat_pmp;
mod peer;
mod port_set;

use pcp::Body;
use pcp::Code;
use pcp::Options;
use pcp::Refused;
use pcp::Reply;

use crate::external::static_mapping::Kind as StaticKind;
use crate::shard::Ledger;
use crate::shard::notes::Unmade;
use crate::state::grant::Grant;
use crate::state::grant::Requester;
use crate::state::host::HostKey;
use crate::state::host::Way;
use crate::state::mapping::InternalKey;
use crate::steps::grant::Denied;
use crate::steps::view::View;
use crate::time::Duration;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::Protocol;
use crate::types::RealmId;
use crate::verdict::Verdict;

/// Prefix bits before an IPv4 address in a PCP field.
const MAPPED_BITS: u8 = 96;
/// Held-down ports of the client that a request may give up.
const GIVEN_UP_MAX: usize = 16;

#[expect(clippy::large_enum_variant, reason = "it lives for one call, and nothing may be allocated")]
pub(in crate::shard) enum Answer {
    Pcp(Reply),
    NatPmp([u8; 16], usize),
    /// A copy of the request, for an unknown NAT-PMP opcode.
    Copy,
    /// The request's subject, of another worker.
    Elsewhere(HostNumber),
    Nothing,
}

impl Answer {
    /// In `copy` if the reply repeats the request. `None` without a reply from here.
    pub(in crate::shard) fn as_bytes<'a>(
        &'a self,
        request: &[u8],
        copy: &'a mut [u8; pcp::MESSAGE_MAX],
    ) -> Option<&'a [u8]> {
        match self {
            Answer::Pcp(reply) => Some(reply.as_bytes()),
            Answer::NatPmp(reply, length) => Some(reply.get(..*length).unwrap_or(reply)),
            Answer::Copy => {
                for (to, from) in copy.iter_mut().zip(request) {
                    *to = *from;
                }
                pcp::nat_pmp::unknown_opcode(copy);
                let length = request.len().clamp(pcp::nat_pmp::REPLY_MIN, pcp::MESSAGE_MAX);
                Some(copy.get(..length).unwrap_or_default())
            }
            Answer::Elsewhere(_) | Answer::Nothing => None,
        }
    }
}

#[derive(Clone, Copy)]
pub(in crate::shard) struct Datagram<'p> {
    pub(in crate::shard) now: Instant,
    pub(in crate::shard) realm: RealmId,
    /// An IPv6 host's number. Of a B4, only the port counts.
    pub(in crate::shard) source: Endpoint,
    pub(in crate::shard) asker: Asker,
    pub(in crate::shard) payload: &'p [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Asker {
    Ipv4,
    /// A host of NAT64 or, in its softwire, behind a B4: the address by which it knows itself.
    Host([u8; 16]),
    /// A B4 outside its softwire, for hosts behind it. Their ports lead into this softwire.
    B4(u128, Way),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fault {
    code: Code,
    lifetime: u32,
}

impl From<Code> for Fault {
    fn from(code: Code) -> Fault {
        Fault { code, lifetime: code.lifetime() }
    }
}

impl Fault {
    /// RFC 6887 §7.4: another client has the mapping that long.
    fn not_authorized(left: Duration) -> Fault {
        Fault { code: Code::NotAuthorized, lifetime: seconds(left) }
    }
}

/// What a reply contains.
struct Done {
    lifetime: u32,
    external: Option<(u16, u32)>,
    set: Option<pcp::PortSet>,
}

/// Rounded up, so that no mapping ends before its client expects it.
fn seconds(left: Duration) -> u32 {
    u32::try_from(left.as_micros().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

fn code_of(denied: Denied) -> Code {
    match denied {
        Denied::OtherEndpoint => Code::CannotProvideExternal,
        Denied::Verdict(
            Verdict::SubscriberPortQuota
            | Verdict::SubscriberSessionQuota
            | Verdict::SubscriberMemoryQuota
            | Verdict::SubscriberRateLimit
            | Verdict::BlockLimit
            | Verdict::SessionLimit,
        ) => Code::UserExceededQuota,
        Denied::Verdict(Verdict::SourceNotSubscriber | Verdict::BoundaryAddress) => Code::NotAuthorized,
        Denied::Verdict(_) => Code::NoResources,
    }
}

fn is_own_limit(denied: Denied) -> bool {
    matches!(
        denied,
        Denied::Verdict(
            Verdict::SubscriberPortQuota
                | Verdict::SubscriberSessionQuota
                | Verdict::SubscriberMemoryQuota
                | Verdict::BlockLimit
        )
    )
}

impl Ledger {
    pub(in crate::shard) fn serve(&mut self, datagram: &Datagram<'_>) -> Answer {
        let policy = &self.shared.settings().port_control;
        // NAT-PMP knows only IPv4.
        let is_ipv4 = match datagram.asker {
            Asker::Ipv4 => true,
            Asker::Host(address) => pcp::unmapped(&address).is_some(),
            Asker::B4(..) => false,
        };
        let is_pmp = policy.nat_pmp && is_ipv4 && (datagram.payload.first() == Some(&0) || !policy.pcp);
        if is_pmp { self.serve_nat_pmp(datagram) } else { self.serve_pcp(datagram) }
    }

    fn serve_pcp(&mut self, datagram: &Datagram<'_>) -> Answer {
        let Datagram { now, realm, source, asker, payload } = *datagram;
        let own_epoch = |ledger: &Ledger| ledger.view().epoch_of(datagram);
        let request = match pcp::parse(payload) {
            Ok(request) => request,
            Err(Refused::Ignored) => {
                self.counters.port_control_ignored += 1;
                return Answer::Nothing;
            }
            Err(Refused::Error(code)) => return self.refuse_pcp(payload, code.into(), own_epoch(self)),
        };
        let (subject, options) = match self.check_pcp(datagram, &request) {
            Ok(checked) => checked,
            Err(code) => return self.refuse_pcp(payload, code.into(), own_epoch(self)),
        };
        // A prefix has one worker.
        if asker == Asker::Ipv4 && self.shared.worker_of_subscriber(subject) != self.worker {
            return Answer::Elsewhere(subject);
        }
        let asked = Asked { now, realm, subject, source, asker, lifetime: request.lifetime, options: &options };
        let done = match request.body {
            Body::Announce => Ok(Done { lifetime: 0, external: None, set: None }),
            // A change that could not be recorded is refused.
            Body::Map(_) | Body::Peer(_) if !self.may_change_grants() => Err(Some(Code::NoResources.into())),
            Body::Map(map) => self.map(&asked, &map),
            Body::Peer(peer) => self.peer(&asked, &peer),
        };
        let epoch = own_epoch(self);
        match done {
            Ok(done) => {
                let reply = Reply::success(&request, done.lifetime, epoch, done.external, &options, done.set);
                match reply.and_then(|reply| self.view().with_prefix64(&asked, reply)) {
                    Some(reply) => {
                        self.counters.pcp_results[Code::Success as usize] += 1;
                        Answer::Pcp(reply)
                    }
                    None => self.refuse_pcp(payload, Code::MalformedRequest.into(), epoch),
                }
            }
            // Other sets overlap; their updates are the only answer.
            Err(None) => Answer::Nothing,
            Err(Some(fault)) => self.refuse_pcp(payload, fault, epoch),
        }
    }

    fn refuse_pcp(&mut self, payload: &[u8], fault: Fault, epoch: u32) -> Answer {
        self.counters.pcp_results[fault.code as usize] += 1;
        Answer::Pcp(pcp::error(payload, fault.code, fault.lifetime, epoch))
    }

    /// The address the request is about, and its options.
    fn check_pcp(
        &mut self,
        datagram: &Datagram<'_>,
        request: &pcp::Request<'_>,
    ) -> Result<(HostNumber, Options), Code> {
        let own = HostNumber::from(datagram.source.address);
        let is_own = match datagram.asker {
            Asker::Ipv4 => pcp::unmapped(&request.client) == Some(own.0),
            Asker::Host(address) => request.client == address,
            Asker::B4(address, _) => request.client == address.to_be_bytes(),
        };
        if !is_own {
            return Err(Code::AddressMismatch);
        }
        let options = pcp::parse_options(request)?;
        match (datagram.asker, options.third_party) {
            (Asker::Ipv4, _) => {}
            (Asker::B4(address, way), third) => {
                let subject = self.behind_b4(datagram, request, (address, way), third)?;
                return Ok((subject, options));
            }
            (Asker::Host(_), None) => return Ok((own, options)),
            (Asker::Host(address), Some(third)) if third == address => return Err(Code::MalformedRequest),
            (Asker::Host(_), Some(_)) => return Err(Code::UnsupportedOption),
        }
        let Some(third) = options.third_party else { return Ok((own, options)) };
        let prefixes = &self.shared.settings().port_control.third_party;
        if !prefixes.iter().any(|prefix| prefix.contains(own.into())) {
            return Err(Code::UnsupportedOption);
        }
        match pcp::unmapped(&third) {
            Some(subject) if HostNumber(subject) == own => Err(Code::MalformedRequest),
            // The numbers of IPv6 hosts are no addresses.
            Some(address)
                if !HostNumber(address).is_ipv6() && self.shared.route_in(datagram.realm, address).is_some() =>
            {
                Ok((HostNumber(address), options))
            }
            _ => Err(Code::UnsupportedOption),
        }
    }

    /// A B4 could not ask for an IPv4 address of its own: it may choose among several (RFC 6333
    /// §5.7).
    fn behind_b4(
        &mut self,
        datagram: &Datagram<'_>,
        request: &pcp::Request<'_>,
        (address, way): (u128, Way),
        third: Option<[u8; 16]>,
    ) -> Result<HostNumber, Code> {
        let Some(third) = third else {
            return if request.body == Body::Announce { Ok(HostNumber(0)) } else { Err(Code::NotAuthorized) };
        };
        if third == address.to_be_bytes() {
            return Err(Code::MalformedRequest);
        }
        let Way::Softwire(position) = way else { return Err(Code::UnsupportedOption) };
        let end = self.shared.transition.softwire(position);
        let inner = pcp::unmapped(&third).filter(|inner| end.is_some_and(|end| end.permits(*inner)));
        let key = HostKey { address, inner: inner.ok_or(Code::UnsupportedOption)?, way };
        self.enter_host_of(datagram.now, &key, datagram.realm).map_err(|verdict| match verdict {
            Verdict::HostLimit => Code::UserExceededQuota,
            _ => Code::NoResources,
        })
    }

    /// False if there is none.
    fn give_up_held_down(&mut self, now: Instant, realm: RealmId, host: HostNumber) -> bool {
        let is_held_down = |index: &u32| self.state.grants.get(*index).is_held_down();
        let found = self.state.grants_beside(realm, host).find(is_held_down);
        let Some(index) = found else { return false };
        let mapping = self.state.grants.get(index).mapping;
        let is_shared = self.view().shares_mapping(now, index);
        self.end_grant(now, index);
        if mapping != 0 && !is_shared && !self.view().has_real_session(now, mapping) && self.may_end(mapping) {
            self.end_mapping(now, mapping);
        }
        true
    }

    /// [`Ledger::open_grant`], within a subscriber's limits.
    fn open_counted(&mut self, now: Instant, request: &crate::state::grant::Request) -> Result<u32, Fault> {
        let (realm, host) = (request.key.realm, request.key.address);
        let most = self.shared.settings().port_control.mappings_per_subscriber;
        let is_known = self.view().find_grant(request).is_some_and(|known| self.state.grants.get(known).is_alive(now));
        if !is_known && self.view().live_grants(now, realm, host) >= most {
            return Err(Code::UserExceededQuota.into());
        }
        let mut result = self.open_grant(now, request);
        for _ in 0..GIVEN_UP_MAX {
            match result {
                Err(denied) if is_own_limit(denied) && self.give_up_held_down(now, realm, host) => {
                    result = self.open_grant(now, request);
                }
                _ => break,
            }
        }
        let made = result.map_err(|denied| {
            if let Denied::Verdict(verdict) = denied {
                self.count_refusal(now, Unmade { key: &request.key, verdict, wanted: None });
            }
            Fault::from(code_of(denied))
        })?;
        self.counters.grants_opened += u64::from(!is_known);
        Ok(made)
    }
}

struct Asked<'o> {
    now: Instant,
    realm: RealmId,
    /// The inside host of the mapping.
    subject: HostNumber,
    source: Endpoint,
    asker: Asker,
    lifetime: u32,
    options: &'o Options,
}

impl Asked<'_> {
    fn key(&self, protocol: Protocol, port: u16) -> InternalKey {
        InternalKey { realm: self.realm, protocol, address: self.subject, port }
    }

    fn requester(&self, nonce: [u8; 12]) -> Requester {
        match self.asker {
            Asker::Ipv4 | Asker::Host(_) => Requester::new(nonce, self.source),
            Asker::B4(..) => Requester::new(nonce, Endpoint::new(self.subject.into(), self.source.port)).by_b4(),
        }
    }
}

impl View<'_> {
    /// Number of grants that hosts asked for. Gateways have their own limit.
    fn live_grants(&self, now: Instant, realm: RealmId, host: HostNumber) -> u32 {
        let of_subscriber = self.state.grants_beside(realm, host).map(|index| self.state.grants.get(index));
        of_subscriber.filter(|grant| grant.is_alive(now) && !grant.origin().is_alg()).count() as u32
    }

    /// No request changes a forward.
    fn forward_of(&self, key: &InternalKey) -> Option<Endpoint> {
        let (external, kind) = self.static_mapping_of(key)?;
        (kind == StaticKind::Forward).then_some(external)
    }

    fn epoch_of(&self, datagram: &Datagram<'_>) -> u32 {
        let Datagram { now, realm, source, .. } = *datagram;
        match datagram.asker {
            Asker::Ipv4 | Asker::Host(_) => self.epoch_for(now, realm, source.address.into()),
            Asker::B4(address, _) => {
                let owner = self.state.subscribers.hosts.find_subscriber(address, realm);
                self.state.grants.epoch(realm, owner.unwrap_or_default(), now)
            }
        }
    }

    /// The prefix through which a NAT64 host reaches its grants (RFC 7225 §4.3).
    fn with_prefix64(&self, asked: &Asked<'_>, reply: Reply) -> Option<Reply> {
        let prefix = self.prefix_of(asked.subject).filter(|_| asked.options.asks_prefix64);
        match prefix {
            Some(prefix) => reply.with_prefix64(prefix.address(), prefix.length()),
            None => Some(reply),
        }
    }

    pub(in crate::shard) fn prefix_of(&self, host: HostNumber) -> Option<translate::Prefix> {
        match self.state.subscribers.hosts.get(host)?.way() {
            Way::Nat64(position) => self.snapshot.transition.prefix(position),
            Way::Softwire(_) => None,
        }
    }

    /// A remote peer's IPv4 address, and how many of its bits the field's first `length` have.
    /// NAT64 hosts write IPv4 hosts with their prefix (RFC 6887 §12.1).
    fn remote_of(&self, subject: HostNumber, field: &[u8; 16], length: u8) -> Option<(u32, u8)> {
        if let Some(address) = pcp::unmapped(field) {
            return Some((address, length.checked_sub(MAPPED_BITS)?));
        }
        let (prefix, address) = (self.prefix_of(subject)?, u128::from_be_bytes(*field));
        if !prefix.contains(address) || length < prefix.length() {
            return None;
        }
        // The "u" octet does not count.
        let octet = if prefix.length() < MAPPED_BITS { length.clamp(64, 72) - 64 } else { 0 };
        Some((prefix.extract(address), (length - prefix.length() - octet).min(32)))
    }

    /// The epoch time of a reply (RFC 6887 §8.5). A requester that may ask for third parties has
    /// subjects on many workers, so it gets the common one; updates report what happens to a single
    /// subject.
    pub(in crate::shard) fn epoch_for(&self, now: Instant, realm: RealmId, requester: HostNumber) -> u32 {
        let third_party = &self.snapshot.settings().port_control.third_party;
        let is_host = requester.is_ipv6();
        match !is_host && third_party.iter().any(|prefix| prefix.contains(requester.into())) {
            true => self.state.grants.common_epoch(now),
            false => self.state.grants.epoch(realm, self.state.owner_of(requester), now),
        }
    }

    /// RFC 6887 §15.
    fn lifetime_for(&self, asked_s: u32) -> Duration {
        let policy = &self.snapshot.settings().port_control;
        Duration::from_secs(u64::from(asked_s)).max(policy.lifetime_min).min(policy.lifetime_max)
    }

    /// How long packets alone would keep the mapping.
    fn idle_left(&self, now: Instant, mapping: u32) -> Duration {
        let record = self.state.mappings.get(mapping);
        let mut last = if record.has_live_session(now) { record.session_expires() } else { now };
        let mut slot = record.extra_head;
        while slot != 0 {
            let session = self.state.sessions.get(slot);
            if !session.is_hold() {
                last = last.max(session.expires());
            }
            slot = session.next;
        }
        last.saturating_since(now)
    }

    fn left_of(&self, now: Instant, grant: &Grant) -> Duration {
        grant.expires().saturating_since(now)
    }
}
