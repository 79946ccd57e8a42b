//! What the edge would make of a packet, for explanations and traces. The functions of the packet
//! path decide.

use core::net::Ipv4Addr;
use core::net::Ipv6Addr;

use translate::Kind;
use wire::ipv4::Ipv4;
use wire::ipv4::PROTOCOL_UDP;
use wire::ipv6;
use wire::ipv6::Ipv6;

use crate::headers::packet::Packet;
use crate::headers::parse::Class;
use crate::headers::parse::ip;
use crate::headers::parse::parse;
use crate::headers::rewrite::End;
use crate::headers::rewrite::Rewrite;
use crate::headers::rewrite::rewrite;
use crate::rows::HostView;
use crate::shard::edge::arrive::Incoming;
use crate::shard::edge::enter::parse_in_softwire;
use crate::shard::edge::enter::take_from_softwire;
use crate::shard::edge::refuse::Refusal;
use crate::shard::packet::PacketPath;
use crate::snapshot::transition::AFTR_INSIDE;
use crate::state::host::Host;
use crate::state::host::HostKey;
use crate::state::host::Previewed;
use crate::state::host::Way;
use crate::steps::report::Report;
use crate::steps::step::HostRole;
use crate::steps::step::Step;
use crate::time::Instant;
use crate::types::Endpoint;
use crate::types::HostNumber;
use crate::types::RealmId;
use crate::types::WorkerId;
use crate::verdict::Verdict;
use crate::verdict::VerdictKind;

pub(in crate::shard) enum Arrived {
    /// The packet begins as IPv4, from the number of its host if it was IPv6.
    Ipv4,
    /// Another worker has the host.
    Elsewhere(WorkerId),
    Ended(Verdict),
    /// A fragment in a softwire.
    Held,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::shard) enum Numbering {
    /// The packet has the host's number, or its stand-in if the host is new.
    Here,
    /// Another worker has the host, and has explained it.
    Any,
}

fn view_of(key: &HostKey) -> HostView {
    let is_softwire = matches!(key.way, Way::Softwire(_));
    let inner = is_softwire.then(|| Ipv4Addr::from_bits(key.inner));
    HostView { address: Ipv6Addr::from_bits(key.address), prefix_length: 128, inner, is_softwire }
}

impl PacketPath {
    #[cold]
    pub(in crate::shard) fn preview_arrival<R: Report>(
        &self,
        now: Instant,
        packet: &mut Packet<'_>,
        numbering: Numbering,
        report: &mut R,
    ) -> Arrived {
        let ends = self.ends_at_edge(packet);
        let verdict = match self.preview_entry(now, packet, numbering, report) {
            Ok(arrived) => return arrived,
            Err(refusal) => refusal.verdict(),
        };
        if verdict == Verdict::AddressNotUsed {
            let realm = self.ledger.shared.realm_of(packet.meta.ingress);
            self.report_unused(realm, Ipv6::new_unchecked(packet.bytes()).destination(), report);
        } else if let Some((source, about)) = ends.filter(|_| verdict.kind() == VerdictKind::Dropped) {
            report.step(|| Step::EdgeRefused { source, about, verdict });
        }
        Arrived::Ended(verdict)
    }

    fn ends_at_edge(&self, packet: &Packet<'_>) -> Option<(Ipv6Addr, Option<Ipv4Addr>)> {
        let view = Ipv6::new_checked(packet.bytes()).ok()?;
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let about = match self.ledger.shared.transition.way_of(realm, view.destination()) {
            Some(Way::Nat64(position)) => {
                self.ledger.shared.transition.prefix(position).map(|prefix| prefix.extract(view.destination()))
            }
            _ => Ipv4::new_checked(view.payload()).ok().map(|inner| inner.source()),
        };
        Some((Ipv6Addr::from_bits(view.source()), about.map(Ipv4Addr::from_bits)))
    }

    fn preview_entry<R: Report>(
        &self,
        now: Instant,
        packet: &mut Packet<'_>,
        numbering: Numbering,
        report: &mut R,
    ) -> Result<Arrived, Refusal> {
        let incoming = self.look_at_edge(packet)?;
        let Some(address) = incoming.host_address() else { return Ok(Arrived::Ipv4) };
        let owner = self.ledger.shared.worker_of_host(address);
        if owner != self.ledger.worker && numbering == Numbering::Here {
            return Ok(Arrived::Elsewhere(owner));
        }
        match incoming {
            Incoming::Nat64 { headers, destination, key, hash } => {
                let number = match (headers.kind, numbering) {
                    (Kind::Error, Numbering::Here) => report_sender(self.quoted_host(&key, hash)?, true, &key, report),
                    _ => self.preview_number(now, packet, numbering, (&key, hash), report)?,
                };
                self.translate_from(packet, &headers, (number, destination), key.way)?;
            }
            Incoming::Softwire { offset, key, hash } => {
                self.preview_from_softwire(now, packet, offset, numbering, (&key, hash), report)?;
            }
            Incoming::TooBig { key, hash, .. } => {
                report_sender(self.quoted_host(&key, hash)?, true, &key, report);
                return Err(Verdict::Local.into());
            }
            Incoming::Request { way, offset, .. } => {
                return Err(self.judge_request(packet, usize::from(offset), way).into());
            }
            Incoming::Fragment { fragment, .. } => {
                report.step(|| Step::SoftwireFragment { offset: fragment.offset, more: fragment.more });
                return Ok(Arrived::Held);
            }
            Incoming::Other => {}
        }
        Ok(Arrived::Ipv4)
    }

    fn preview_from_softwire<R: Report>(
        &self,
        now: Instant,
        packet: &mut Packet<'_>,
        offset: u16,
        numbering: Numbering,
        (key, hash): (&HostKey, u64),
        report: &mut R,
    ) -> Result<(), Verdict> {
        let parsed = parse_in_softwire(packet, offset)?;
        if parsed.destination == AFTR_INSIDE {
            let inner = packet.bytes_mut().get_mut(usize::from(offset)..).unwrap_or_default();
            report.step(|| Step::OwnAddress(Ipv4Addr::from_bits(AFTR_INSIDE)));
            if inner.get(ip::PROTOCOL) == Some(&PROTOCOL_UDP) {
                let request = self.request_in_softwire(inner)?;
                return Err(if request.is_some() { Verdict::Local } else { Verdict::LocalIgnored });
            }
            return Err(self.echo_in_softwire(inner, key.way, 0).err().unwrap_or(Verdict::Local));
        }
        let number = self.preview_number(now, packet, numbering, (key, hash), report)?;
        take_from_softwire(packet, offset, &parsed, (number, key), &self.ledger.state.subscribers.hosts)
    }

    fn preview_number<R: Report>(
        &self,
        now: Instant,
        packet: &Packet<'_>,
        numbering: Numbering,
        (key, hash): (&HostKey, u64),
        report: &mut R,
    ) -> Result<HostNumber, Verdict> {
        if numbering == Numbering::Any {
            return Ok(HostNumber(crate::types::HOSTS_FIRST));
        }
        let realm = self.ledger.shared.realm_of(packet.meta.ingress);
        let Previewed { number, is_known } = self.ledger.state.subscribers.hosts.preview(now, hash, key, realm)?;
        Ok(report_sender(number, is_known, key, report))
    }

    /// `new_host`: the IPv6 host that gets the packet, if it has no record.
    pub(in crate::shard) fn preview_receiver<R: Report>(
        &self,
        remote: Endpoint,
        (internal, new_host): (Endpoint, Option<HostKey>),
        report: &mut R,
    ) {
        let number = internal.address;
        let hosts = &self.ledger.state.subscribers.hosts;
        let known = || hosts.get(number.into()).filter(|host| !host.is_subscriber()).map(Host::key);
        let Some(key) = new_host.or_else(known) else { return };
        let host = view_of(&key);
        let prefix = match key.way {
            Way::Nat64(position) => self.ledger.shared.transition.prefix(position),
            Way::Softwire(_) => None,
        };
        let remote = prefix.map(|prefix| Ipv6Addr::from_bits(prefix.embed(remote.address.to_bits())));
        report.step(|| Step::Host { number, host, role: HostRole::Receiver { remote } });
    }

    fn report_unused<R: Report>(&self, realm: RealmId, address: u128, report: &mut R) {
        if let Some(now) = self.why_unused(realm, address) {
            report.step(|| Step::AddressNotUsed { address: Ipv6Addr::from_bits(address), now });
        }
    }

    /// Names the own address that a packet to this host would need and cannot have.
    pub(in crate::shard) fn report_unused_source<R: Report>(
        &self,
        number: Ipv4Addr,
        new_host: Option<HostKey>,
        report: &mut R,
    ) {
        let known = || self.ledger.state.subscribers.hosts.get(number.into()).map(Host::way);
        let Some(way) = new_host.map(|key| key.way).or_else(known) else { return };
        let transition = &self.ledger.shared.transition;
        let realm = transition.realm_of(way);
        let own = match way {
            Way::Nat64(_) => transition.realm(realm).map(|edge| edge.own),
            Way::Softwire(position) => transition.softwire(position).map(|end| end.aftr),
        };
        if let Some(own) = own {
            self.report_unused(realm, own, report);
        }
    }

    /// What [`PacketPath::depart`] would refuse. `frame` has room in front of the packet at
    /// `start`.
    pub(in crate::shard) fn preview_departure(
        &self,
        frame: &mut [u8],
        start: usize,
        (source, destination): (Endpoint, Endpoint),
        new_host: Option<HostKey>,
    ) -> Result<(), Verdict> {
        let bytes = frame.get_mut(start..).unwrap_or_default();
        let mut parsed = parse(bytes)?;
        // An ICMP error has been rewritten already.
        let ends = [(End::Source, source), (End::Destination, destination)];
        let is_written = parsed.class == Class::IcmpError;
        for (end, new) in ends.into_iter().filter(|_| !is_written) {
            let change = Rewrite {
                end,
                address: new.address.to_bits(),
                port: new.port,
                identification: None,
                decrement_ttl: end == End::Destination,
            };
            rewrite(bytes, &parsed, &change);
            parsed = parse(bytes)?;
        }
        let known = || self.ledger.state.subscribers.hosts.get(destination.address.into()).copied();
        let host = new_host.map(|key| Host::of(&key)).or_else(known).ok_or(Verdict::NoMapping)?;
        self.prepare_for(frame, (start, usize::from(parsed.total_length)), &host).map(|_| ())
    }
}

fn report_sender<R: Report>(number: HostNumber, is_known: bool, key: &HostKey, report: &mut R) -> HostNumber {
    report.step(|| Step::Host { number: number.into(), host: view_of(key), role: HostRole::Sender { is_known } });
    number
}

pub(in crate::shard) fn source_of(packet: &[u8]) -> Option<u128> {
    let header = packet.first_chunk::<{ ipv6::HEADER_LENGTH }>()?;
    (header[0] >> 4 == 6).then(|| Ipv6::new_unchecked(header.as_slice()).source())
}
