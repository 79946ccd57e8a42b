//! `why`: explains what would happen to a packet now. Builds a real packet and asks the engine.

use core::net::IpAddr;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use core::net::SocketAddr;
use core::net::SocketAddrV4;
use core::net::SocketAddrV6;

use control::Direction;
use control::Fault;
use control::Host;
use control::Step;
use control::TcpSegment;
use control::Why;
use control::WhyAnswer;
use control::count_text;
use control::counted;
use control::duration_text;
use lookup::convert::engine_protocol;
use lookup::convert::own_address6;
use lookup::convert::own_interface;
use lookup::convert::pool_name;
use lookup::convert::realm_named;
use lookup::convert::vrf_name;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::RuleAction;
use nat::tcp::TcpState;
use nat::types::AddressUse;
use nat::types::Endpoint;
use nat::types::Facing;
use nat::types::HOSTS_FIRST;
use nat::types::InterfaceId;
use nat::types::RealmId;
use nat::types::SOFTWIRE_HOSTS_FIRST;
use nat::types::Side;
use nat::verdict::VerdictKind;
use nat::view;
use nat::view::HostRole;
use nat::view::HostView;
use wire::build;
use wire::build6;
use wire::ipv4;
use wire::ipv6;
use wire::tcp::Flags;

use super::convert;
use super::port;
use super::routes;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;

/// The AFTR inside its softwires.
const AFTR_INSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);

/// Header bytes of the shortest packet of each transport.
const fn shortest(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Udp | Protocol::Icmp => 28,
        Protocol::Tcp => 40,
    }
}

pub(crate) fn why(instance: &Instance, why: &Why) -> Result<WhyAnswer, Fault> {
    let shared = instance.shared();
    let settings = shared.settings();
    let from = facing(settings, why)?;
    let side = from.side;
    let protocol = engine_protocol(why.protocol);
    let (packet, destination) = packet(instance, &shared, why, protocol, from)?;
    let (worker, explanation) = shared.explain(from, &packet, |worker, onward| {
        let question = Question::Explain { from, onward, packet: packet.clone(), explanation: None };
        match instance.ask(worker.index(), question)? {
            Question::Explain { explanation: Some(explanation), .. } => Ok(*explanation),
            _ => Err(mismatch(worker.index())),
        }
    })?;
    let names = Names(&explanation.steps);
    let is_sender = |role: HostRole| matches!(role, HostRole::Sender { .. }) == (side == Side::Inside);
    let host = names.hosts().find(|(_, _, role)| is_sender(*role)).map(|(_, host, _)| convert::host(&host));
    // The steps of a packet that is refused at the edge name no host.
    let host = host.or_else(|| host_asked_for(why));
    let mut steps = steps_of(&shared, &explanation.steps);
    for (text, step) in steps.iter_mut().zip(&explanation.steps) {
        if let view::Step::NotRouted { towards, destination, by_route: true } = *step
            && let Some(reason) = routes::dropping(instance, towards, destination)
        {
            text.detail = reason;
        }
    }
    // One from outside is led to a realm inside.
    let led_to = explanation.steps.iter().rev().find_map(|step| match *step {
        view::Step::Routed { interface, .. } => settings.interfaces.get(usize::from(interface)).map(Interface::facing),
        view::Step::NotRouted { towards, .. } => Some(towards),
        _ => None,
    });
    let realm = match side {
        Side::Inside => Some(from.realm),
        Side::Outside => led_to.filter(|link| link.side == Side::Inside).map(|link| link.realm),
    };
    let has_way = lead_to_hosts(instance, &explanation.steps, &mut steps);
    let (more, verdict) = match explanation.verdict.kind() {
        VerdictKind::Forwarded if !has_way => (Vec::new(), Verdict::NoRoute),
        _ => port::after(instance, &explanation)?,
    };
    steps.extend(more);
    let (source_after, destination_after) = match verdict {
        Verdict::NoRoute => (None, None),
        _ => (explanation.source_after, explanation.destination_after),
    };
    Ok(WhyAnswer {
        protocol: why.protocol,
        source: why.source,
        destination,
        host,
        vrf: realm.map(|realm| vrf_name(settings, realm)).filter(|name| !name.is_empty()),
        direction: if side == Side::Inside { Direction::Outbound } else { Direction::Inbound },
        verdict: verdict.name().to_owned(),
        kind: convert::verdict_kind(verdict.kind()),
        description: description(verdict).to_owned(),
        translated_source: source_after.map(|source| names.source(source, destination_after)),
        translated_destination: destination_after.map(|destination| names.socket(destination)),
        worker: worker.0,
        steps,
        state_changed: false,
    })
}

/// The verdict in words, in the present tense: the packet was not sent.
fn description(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::NeighbourUnresolved => "The next hop does not answer (ARP or Neighbor Discovery).",
        verdict => verdict.description(),
    }
}

/// Adds the routes of IPv6 to the steps of a packet to an IPv6 host, which the engine leaves to the
/// worker. False if there is none.
fn lead_to_hosts(instance: &Instance, explained: &[view::Step], texts: &mut [Step]) -> bool {
    let (shared, names) = (instance.shared(), Names(explained));
    let mut has_way = true;
    for (text, step) in texts.iter_mut().zip(explained) {
        let view::Step::Routed { interface, next_hop, mtu } = *step else { continue };
        let Some(host) = names.host(next_hop) else { continue };
        let found = shared.settings().interfaces.get(usize::from(interface));
        let towards = found.map_or(Facing::OUTSIDE, Interface::facing);
        let way = routes::to_host(instance, towards, host.address);
        has_way = matches!(way, routes::ToHost::By { .. });
        (text.decision, text.detail) = match way {
            routes::ToHost::By { interface, neighbour, prefix } => {
                let name = routes::interface_name(shared.settings(), interface);
                let decision = format!("interface \"{name}\" via {neighbour}");
                (decision, format!("longest prefix {prefix}; {}", mtu_text(shared.settings(), towards, next_hop, mtu)))
            }
            routes::ToHost::Dropped { prefix } => {
                (format!("a route drops what goes to {}", host.address), format!("{prefix}, see natrix show routes"))
            }
            routes::ToHost::Nowhere => {
                (format!("none to {}", host.address), "no prefix of an IPv6 route contains it".to_owned())
            }
        };
    }
    has_way
}

/// The MTU of the way of a step. `mtu` is for IPv4, as the engine sees packets; to IPv6 hosts they
/// leave as IPv6.
fn mtu_text(settings: &Settings, towards: Facing, next_hop: Ipv4Addr, mtu: u16) -> String {
    let growth = (ipv6::HEADER_LENGTH - ipv4::HEADER_LENGTH_MIN) as u16;
    match next_hop.to_bits() {
        SOFTWIRE_HOSTS_FIRST.. => {
            let links = (0..).map(InterfaceId).zip(&settings.interfaces).filter(|(_, one)| one.facing() == towards);
            let with_ipv6 = links.filter(|(id, _)| settings.ipv6.addresses.iter().any(|own| own.interface == *id));
            let link = with_ipv6.map(|(_, one)| one.mtu).min().unwrap_or(ipv6::MTU_MIN);
            format!("MTU {link} bytes of IPv6, and larger softwire packets are fragmented")
        }
        HOSTS_FIRST.. => format!("MTU {} bytes of IPv6, which is {mtu} of IPv4", mtu.saturating_add(growth)),
        _ => format!("MTU {mtu} bytes"),
    }
}

/// The IPv6 hosts that the steps of one explanation name by their numbers.
#[derive(Clone, Copy)]
struct Names<'a>(&'a [view::Step]);

impl Names<'_> {
    /// Whether the packet is an ICMP query or an answer to one.
    fn is_about_icmp(self) -> bool {
        let is_icmp = |step: &view::Step| matches!(step, view::Step::Parsed { protocol, .. } if Protocol::from_number(*protocol) == Some(Protocol::Icmp));
        self.0.iter().any(is_icmp)
    }

    fn hosts(self) -> impl Iterator<Item = (Ipv4Addr, HostView, HostRole)> {
        self.0.iter().filter_map(|step| match *step {
            view::Step::Host { number, host, role } => Some((number, host, role)),
            _ => None,
        })
    }

    fn host(self, address: Ipv4Addr) -> Option<Host> {
        self.hosts().find(|(number, ..)| *number == address).map(|(_, host, _)| convert::host(&host))
    }

    /// As it is in the steps: with the host in place of its number.
    fn endpoint(self, endpoint: Endpoint) -> String {
        self.host(endpoint.address).map_or_else(|| endpoint.to_string(), |host| host.endpoint(endpoint.port))
    }

    fn address(self, address: Ipv4Addr) -> String {
        self.host(address).map_or_else(|| address.to_string(), |host| host.to_string())
    }

    /// As the host itself has it.
    fn socket(self, endpoint: Endpoint) -> SocketAddr {
        let address = match self.host(endpoint.address) {
            Some(Host { inner: Some(inner), .. }) => inner.into(),
            Some(host) => host.address.into(),
            None => IpAddr::from(endpoint.address),
        };
        SocketAddr::new(address, endpoint.port)
    }

    /// As the receiver sees it.
    fn source(self, source: Endpoint, destination: Option<Endpoint>) -> SocketAddr {
        let remote = self.hosts().find_map(|(number, _, role)| match role {
            HostRole::Receiver { remote } if destination.is_some_and(|to| to.address == number) => remote,
            _ => None,
        });
        remote.map_or_else(|| self.socket(source), |remote| SocketAddr::new(remote.into(), source.port))
    }
}

/// The interface of the packet.
fn facing(settings: &Settings, why: &Why) -> Result<Facing, Fault> {
    let asked = if why.inbound { Side::Outside } else { Side::Inside };
    let wanted = why.vrf.as_deref().map(|name| realm_named(settings, name)).transpose()?;
    let takes = |realm: RealmId| match (why.source, why.b4) {
        (_, Some(_)) => settings.transition.softwires.iter().any(|one| one.realm == realm),
        (SocketAddr::V6(_), None) => settings.transition.nat64.iter().any(|one| one.realm == realm),
        (SocketAddr::V4(_), None) => true,
    };
    let Some(name) = &why.interface else {
        if let Some(realm) = wanted {
            return if why.inbound {
                Err(not_from_inside(why, "omit it, or omit inbound"))
            } else {
                Ok(Facing::inside(realm))
            };
        }
        let of_side = || settings.interfaces.iter().filter(|interface| interface.side == asked);
        let first = of_side().find(|interface| takes(interface.realm)).or_else(|| of_side().next());
        return Ok(first.map_or(asked.into(), Interface::facing));
    };
    let interface = settings.interfaces.iter().find(|interface| interface.name == *name);
    let interface = interface.ok_or_else(|| {
        let known: Vec<&str> = settings.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let remedy = format!("use one of: {}", known.join(", "));
        Fault::new(format!("interface \"{name}\""), "does not exist", remedy)
    })?;
    if why.inbound && interface.side == Side::Inside {
        let object = format!("interface \"{name}\"");
        return Err(Fault::new(object, "is an inside interface", "omit --inbound, or use an outside interface"));
    }
    match wanted {
        Some(_) if interface.side == Side::Outside => Err(not_from_inside(why, "omit it, or use an inside interface")),
        Some(realm) if interface.realm != realm => {
            let remedy = "omit one of them, or use an interface of the VRF";
            let problem = format!("is in VRF \"{}\"", vrf_name(settings, interface.realm));
            Err(Fault::new(format!("interface \"{name}\""), problem, remedy))
        }
        _ => Ok(interface.facing()),
    }
}

/// A VRF is given, and the packet comes from outside: the external endpoint decides its VRF.
fn not_from_inside(why: &Why, remedy: &str) -> Fault {
    let vrf = why.vrf.as_deref().unwrap_or_default();
    Fault::new("vrf", "is for packets from inside", remedy).seen(vrf)
}

/// The host behind a B4, as the question names it.
fn host_asked_for(why: &Why) -> Option<Host> {
    match (why.source, why.b4) {
        (SocketAddr::V4(source), Some(address)) => {
            Some(Host { address, prefix_length: 128, inner: Some(*source.ip()) })
        }
        _ => None,
    }
}

/// The packet, and its destination.
fn packet(
    instance: &Instance,
    shared: &Shared,
    why: &Why,
    protocol: Protocol,
    from: Facing,
) -> Result<(Vec<u8>, SocketAddr), Fault> {
    match (why.source, why.destination, why.b4) {
        (SocketAddr::V4(source), SocketAddr::V4(destination), None) => {
            Ok((packet4(why, protocol, from.side, (source, destination))?, why.destination))
        }
        (_, _, Some(b4)) if from.side == Side::Outside => {
            let remedy = "omit it, or use an inside interface";
            Err(Fault::new(format!("b4 {b4}"), "is for packets from inside", remedy))
        }
        (SocketAddr::V4(source), SocketAddr::V4(destination), Some(b4)) => {
            let softwires = &shared.settings().transition.softwires;
            let Some(end) = softwires.iter().find(|end| end.realm == from.realm) else {
                let remedy = "add a [[softwire]] to the VRF, or name an interface of another VRF";
                return Err(Fault::new(format!("b4 {b4}"), "the VRF has no softwires", remedy));
            };
            let inner = packet4(why, protocol, from.side, (source, destination))?;
            Ok((build6::raw(b4, end.aftr, ipv6::PROTOCOL_IPV4, &inner), why.destination))
        }
        (SocketAddr::V6(source), destination, None) if from.side == Side::Inside => {
            let destination = match destination {
                SocketAddr::V6(destination) => destination,
                SocketAddr::V4(to) => behind_prefix(shared, from.realm, to)?,
            };
            let packet = packet6(why, protocol, (source, destination))?;
            let interfaces = &shared.settings().interfaces;
            let ingress = interfaces.iter().position(|interface| interface.facing() == from).unwrap_or_default();
            let is_taken = shared.takes_ipv6(InterfaceId(ingress as u16), &packet);
            if !is_taken && !is_own(instance, shared.settings(), *destination.ip()) {
                let object = format!("destination {}", destination.ip());
                let remedy = "use an address of a [[nat64]] prefix of the VRF, or one of Natrix itself; Natrix forwards no \
                              IPv6 to IPv6";
                return Err(Fault::new(object, "does not lead to IPv4", remedy));
            }
            Ok((packet, destination.into()))
        }
        (SocketAddr::V6(source), ..) => {
            let remedy = "give an IPv4 source; IPv6 packets come from inside, without --b4";
            Err(Fault::new(format!("source {source}"), "is IPv6", remedy))
        }
        (SocketAddr::V4(_), SocketAddr::V6(destination), _) => {
            let remedy = "give an IPv6 source, or an IPv4 destination";
            Err(Fault::new(format!("destination {destination}"), "is IPv6, and the source IPv4", remedy))
        }
    }
}

/// Whether Natrix itself answers for this address.
fn is_own(instance: &Instance, settings: &Settings, address: Ipv6Addr) -> bool {
    let mut own = instance.own_addresses().into_iter().flat_map(|own| own.all());
    let is_end = || settings.transition.softwires.iter().any(|end| end.aftr == address);
    own.any(|own| own.address == address.to_bits()) || is_end()
}

/// The destination of an IPv6 host that means this IPv4 endpoint.
fn behind_prefix(shared: &Shared, realm: RealmId, to: SocketAddrV4) -> Result<SocketAddrV6, Fault> {
    let Some(nat64) = shared.settings().transition.nat64.iter().find(|one| one.realm == realm) else {
        let remedy = "add a [[nat64]] to the VRF, or name an interface of another VRF";
        return Err(Fault::new(format!("destination {to}"), "the VRF has no prefix of NAT64", remedy));
    };
    let address = Ipv6Addr::from_bits(nat64.prefix.embed(to.ip().to_bits()));
    Ok(SocketAddrV6::new(address, to.port(), 0, 0))
}

const fn flags(why: &Why) -> Flags {
    match why.tcp_segment {
        None | Some(TcpSegment::Syn) => Flags::SYN,
        Some(TcpSegment::SynAck) => Flags::SYN.union(Flags::ACK),
        Some(TcpSegment::Ack) => Flags::ACK,
        Some(TcpSegment::Fin) => Flags::FIN.union(Flags::ACK),
        Some(TcpSegment::Rst) => Flags::RST,
    }
}

/// Payload bytes that the packet needs for its length; `shortest` without payload.
fn payload(why: &Why, protocol: Protocol, shortest: usize) -> Result<usize, Fault> {
    let length = why.length_bytes.map_or(shortest, usize::from);
    length.checked_sub(shortest).ok_or_else(|| {
        let remedy = format!("a {} packet has at least {shortest} bytes", protocol.name());
        Fault::new("packet", "is too short", remedy).seen(format!("{length} bytes"))
    })
}

fn packet4(
    why: &Why,
    protocol: Protocol,
    side: Side,
    (source, destination): (SocketAddrV4, SocketAddrV4),
) -> Result<Vec<u8>, Fault> {
    let (from, to): (Ipv4Addr, Ipv4Addr) = (*source.ip(), *destination.ip());
    let builder = match protocol {
        Protocol::Udp => build::udp(source, destination),
        Protocol::Tcp => build::tcp(source, destination, flags(why)),
        Protocol::Icmp if side == Side::Inside => build::echo_request(from, to, source.port()),
        Protocol::Icmp => build::echo_reply(from, to, destination.port()),
    };
    let builder = builder.payload_length(payload(why, protocol, shortest(protocol))?);
    Ok(if why.dont_fragment { builder.dont_fragment() } else { builder }.build())
}

fn packet6(
    why: &Why,
    protocol: Protocol,
    (source, destination): (SocketAddrV6, SocketAddrV6),
) -> Result<Vec<u8>, Fault> {
    let longer = ipv6::HEADER_LENGTH - ipv4::HEADER_LENGTH_MIN;
    let payload = vec![0; payload(why, protocol, shortest(protocol) + longer)?];
    Ok(match protocol {
        Protocol::Udp => build6::udp(source, destination, &payload),
        Protocol::Tcp => build6::tcp(source, destination, flags(why), &payload),
        Protocol::Icmp => build6::echo_request(*source.ip(), *destination.ip(), source.port(), &payload),
    })
}

/// Why an IPv6 packet does not become IPv4.
fn why_at_edge(settings: &Settings, source: Ipv6Addr, about: Option<Ipv4Addr>, verdict: Verdict) -> String {
    let transition = &settings.transition;
    let about = about.map_or_else(|| "its IPv4 address".to_owned(), |about| about.to_string());
    match verdict {
        Verdict::SourceInvalid => format!("{source} cannot be the address of a host or a B4 here"),
        Verdict::SourceInPrefix => format!("{source} is in a prefix of [[nat64]], so it stands for an IPv4 host"),
        Verdict::EmbeddedPrivate => {
            format!("{about} is private, and 64:ff9b::/96 does not lead there (RFC 6052 section 3.1)")
        }
        Verdict::EmbeddedAddress => {
            format!("the destination embeds {about}, which no host can have, or bits 64 to 71 are not 0 (RFC 6052)")
        }
        Verdict::HostLimit => format!(
            "the /{} of {source} has {} hosts, the limit of subscriber.ipv6_hosts",
            transition.prefix_length,
            count_text(transition.hosts_per_subscriber_max.into())
        ),
        Verdict::HostTableFull => {
            let records = count_text(transition.hosts_max.into());
            format!("the {records} records of tables.ipv6_hosts are in use; none is free for {source}")
        }
        Verdict::SoftwireSubscriber => format!("{source} is in no prefix of softwire.subscribers"),
        Verdict::SoftwireSource => format!("{about} behind {source} is in no prefix of softwire.inner"),
        _ => format!("from {source}: {}", verdict.description()),
    }
}

/// Steps as text.
pub(crate) fn steps_of(shared: &Shared, steps: &[view::Step]) -> Vec<Step> {
    steps.iter().map(|step| step_of(shared, Names(steps), *step)).collect()
}

/// The time until something ends.
fn left(time: nat::Duration) -> String {
    duration_text(time.as_micros())
}

/// One step as text.
fn step_of(shared: &Shared, names: Names<'_>, step: view::Step) -> Step {
    let settings = shared.settings();
    // ICMP queries have identifiers in place of ports.
    let port = if names.is_about_icmp() { "identifier" } else { "port" };
    let (name, decision, detail) = match step {
        view::Step::Host { host, role, .. } => {
            let host = convert::host(&host);
            let way = if host.inner.is_some() { "behind a softwire (RFC 6333)" } else { "by NAT64 (RFC 6146)" };
            match role {
                HostRole::Sender { is_known: true } => ("host", format!("from {host}"), way.to_owned()),
                HostRole::Sender { is_known: false } => {
                    ("host", format!("from {host}, a new host"), format!("{way}; its subscriber has room for it"))
                }
                HostRole::Receiver { .. } => ("host", format!("to {host}"), way.to_owned()),
            }
        }
        view::Step::EdgeRefused { source, about, verdict } => {
            ("edge", format!("dropped: {}", verdict.name()), why_at_edge(settings, source, about, verdict))
        }
        view::Step::Parsed { protocol, source, destination } => {
            let (source, destination) = (names.endpoint(source), names.endpoint(destination));
            let transport =
                Protocol::from_number(protocol).map_or_else(|| protocol.to_string(), |p| p.name().to_owned());
            ("parse", format!("{transport} {source} > {destination}"), "headers are complete and agree".to_owned())
        }
        view::Step::Owner(worker) => {
            ("owner", format!("worker {}", worker.0), "all packets of the flow go there".to_owned())
        }
        view::Step::OwnAddress(AFTR_INSIDE) => {
            let whose = format!("{AFTR_INSIDE} is its address inside softwires (RFC 6333 section 5.7)");
            ("local", "for Natrix itself".to_owned(), whose)
        }
        view::Step::OwnAddress6(address) => {
            let is_near = address.is_unicast_link_local();
            let known = own_address6(settings, address).filter(|_| !is_near);
            let whose = known.unwrap_or_else(|| format!("{address} is its link-local address"));
            ("local", "for Natrix itself".to_owned(), whose)
        }
        view::Step::AddressNotUsed { address, now } => {
            let why = match now {
                AddressUse::Duplicate => format!(
                    "another station on the link has {address} (RFC 4862 section 5.4); the log names it: give one of \
                     them another address"
                ),
                _ => format!(
                    "Natrix still asks whether another station on the link has {address}, for a second once the link is \
                     up; try again"
                ),
            };
            ("local", "its address is not used".to_owned(), why)
        }
        view::Step::OwnAddress(address) => {
            let interface = own_interface(settings, address).unwrap_or_default();
            ("local", "for Natrix itself".to_owned(), format!("{address} is its address on interface \"{interface}\""))
        }
        view::Step::Hairpin { external } => (
            "hairpin",
            "to another subscriber".to_owned(),
            format!("{external} is an external endpoint here (RFC 4787 REQ-9)"),
        ),
        view::Step::Routed { interface, next_hop, mtu } => {
            let name = settings.interfaces.get(usize::from(interface)).map_or("", |interface| &interface.name);
            let decision = match names.host(next_hop) {
                Some(host) => format!("by the IPv6 routes of interface \"{name}\" to {host}"),
                None => format!("interface \"{name}\" via {next_hop}"),
            };
            let towards = settings.interfaces.get(usize::from(interface)).map_or(Facing::OUTSIDE, Interface::facing);
            ("route", decision, format!("longest prefix; {}", mtu_text(settings, towards, next_hop, mtu)))
        }
        view::Step::NotRouted { destination, by_route, .. } => {
            let destination = names.address(destination);
            match by_route {
                true => {
                    ("route", format!("a route drops what goes to {destination}"), "see natrix show routes".to_owned())
                }
                false => ("route", format!("none to {destination}"), "no prefix of a route contains it".to_owned()),
            }
        }
        view::Step::Pool(pool) => {
            let name = pool_name(shared, pool);
            ("pool", format!("pool \"{name}\""), "longest subscriber prefix that contains the source".to_owned())
        }
        view::Step::Penalty(pool) => {
            let name = pool_name(shared, pool);
            let reason = "the subscriber exceeded its limits too often: the penalty pool of its class serves it";
            ("pool", format!("pool \"{name}\""), reason.to_owned())
        }
        view::Step::Class(class) => match convert::class_name(settings, class) {
            Some(name) => {
                ("limits", format!("class \"{name}\""), "longest class prefix that contains the source".to_owned())
            }
            None => ("limits", "no class".to_owned(), "the limits of [subscriber] apply".to_owned()),
        },
        view::Step::Guaranteed { ports, missing: 0 } => (
            "limits",
            format!("{} guaranteed", counted(ports.into(), port)),
            "reserved_ports of its class, including those in use".to_owned(),
        ),
        view::Step::Guaranteed { ports, missing } => (
            "limits",
            format!("{} of {} guaranteed {port}s", count_text(ports.into()), count_text((ports + missing).into())),
            format!(
                "{} are in use by other subscribers; they will be reserved as they become free",
                count_text(missing.into())
            ),
        ),
        view::Step::SliceInBlocks { first, last, leased, ports } => (
            "port",
            format!(
                "slice {first}-{last}: {} of {} {port}s are in port blocks of other subscribers",
                count_text(leased.into()),
                count_text(ports.into())
            ),
            "leased before the change to the formula; the subscriber gets them as those blocks are returned".to_owned(),
        ),
        view::Step::PairedWith(address) => (
            "pool",
            format!("external address {address}"),
            "the subscriber is paired with it (RFC 4787 REQ-2)".to_owned(),
        ),
        view::Step::MappingFound { internal, external, expires_in, origin } => {
            let asked = origin.map_or_else(String::new, |origin| format!("asked for by {}, ", origin.name()));
            let internal = names.endpoint(internal);
            ("lookup", format!("mapping {internal} = {external}"), format!("{asked}expires in {}", left(expires_in)))
        }
        view::Step::MappingWouldBeCreated { ports_free } => (
            "port",
            "a mapping would be created".to_owned(),
            format!("a random {port} of {} free ones (RFC 6056)", count_text(ports_free)),
        ),
        view::Step::FlowFound { internal, external, remote, expires_in } => (
            "lookup",
            format!("flow {} = {external} to {remote}", names.endpoint(internal)),
            format!("the external endpoint is shared; expires in {}", left(expires_in)),
        ),
        view::Step::FlowWouldBeCreated { remote } => (
            "port",
            format!("a flow to {remote} would be created"),
            format!("with an external {port} that no other flow uses towards it"),
        ),
        view::Step::StaticMapping { host, port, external, one_to_one } => (
            "static",
            format!("static mapping {} = {external}", host.with_port(port)),
            if one_to_one { "a one-to-one pool" } else { "a port forward" }.to_owned(),
        ),
        view::Step::Target { internal, external, weight, total } => (
            "static",
            format!("{external} leads to {internal}, for this remote endpoint"),
            format!("one of several targets, of weight {} among {}", count_text(weight.into()), count_text(total)),
        ),
        view::Step::AnyTarget { external, targets, agree } => (
            "static",
            format!("{external} leads to one of {} targets", count_text(targets as u64)),
            match agree {
                true => "the external port, which is random, decides the target; the verdict is the same for each",
                false => "the external port, which is random, decides the target; the verdict differs for some",
            }
            .to_owned(),
        ),
        view::Step::NoSharedPort { remote, at_quota } => (
            "port",
            format!("no {port} to share towards {remote}"),
            match at_quota {
                true => format!(
                    "the subscriber has reached its limit of ports, and each shared {port} has a flow to this remote"
                ),
                false => format!("no {port} is free, and each shared {port} has a flow to this remote"),
            },
        ),
        view::Step::PortAwaited(external) => (
            "static",
            format!("waiting for {external}"),
            format!("its static {port} is still in use by another subscriber, or held down (reuse_delay)"),
        ),
        view::Step::NoMapping => ("lookup", "no mapping".to_owned(), "this packet cannot create one".to_owned()),
        view::Step::FilterAsked { filtering, allowed } => {
            let rule = match filtering {
                Filtering::EndpointIndependent => "any remote may send to a mapping",
                Filtering::AddressDependent => "only addresses the subscriber has sent to",
                Filtering::AddressAndPortDependent => "only endpoints the subscriber has sent to",
            };
            ("filter", if allowed { "allowed" } else { "refused" }.to_owned(), format!("{rule} (RFC 4787 §5)"))
        }
        view::Step::Granted { origin, kind, allowed, expires_in } => (
            "grant",
            format!("{} {} {}", origin.name(), kind.name(), if allowed { "allows it" } else { "refuses it" }),
            match allowed {
                true => format!("granted by {} for another {}", origin.name(), left(expires_in)),
                false => "its filters name other remote endpoints, or its port is held down".to_owned(),
            },
        ),
        view::Step::SessionFound { state, expires_in } => {
            let state = state.map_or("active", TcpState::name);
            ("session", format!("session {state}"), format!("expires in {}", left(expires_in)))
        }
        view::Step::SessionWouldBeCreated => {
            ("session", "a session would be created".to_owned(), "first packet with this remote endpoint".to_owned())
        }
        view::Step::Fragment { offset, more } => {
            let follow = if more { "more follow" } else { "the last one" };
            let place = format!("at {}, {follow}", count_text(offset.into()));
            let first = "only the first fragment has ports; others wait for it";
            ("fragment", place, first.to_owned())
        }
        view::Step::SoftwireFragment { offset, more } => {
            let follow = if more { "more follow" } else { "the last one" };
            let place = format!("at {}, {follow}", count_text(offset.into()));
            let whole = "of a softwire's packet, which goes on as a whole when its last fragment arrives (RFC 6333 \
                         section 6.3)";
            ("fragment", place, whole.to_owned())
        }
        view::Step::Quoted { protocol, source, destination } => (
            "icmp error",
            format!("about {protocol} {} > {}", names.endpoint(source), names.endpoint(destination)),
            "the quoted packet identifies the mapping (RFC 5508 §4)".to_owned(),
        ),
        view::Step::QuotedPortless { protocol, source, destination } => (
            "icmp error",
            format!("about protocol {protocol} {source} > {destination}"),
            "passes if a rule with action \"pass\" passes the quoted packet".to_owned(),
        ),
        view::Step::Rule { position, action } => {
            let done = match action {
                RuleAction::Translate { pool: None, .. } => "translates it by the subscriber's pool".to_owned(),
                RuleAction::Translate { pool: Some(pool), .. } => {
                    format!("translates it by pool {}", pool_name(shared, pool))
                }
                RuleAction::NoTranslation => "passes it untranslated (RFC 6888 REQ-6)".to_owned(),
                RuleAction::Redirect(_) => {
                    format!("sends it to {}", convert::targets(shared.settings(), action).join(", "))
                }
                RuleAction::Drop => "drops it".to_owned(),
            };
            let origins = &shared.settings().origins;
            ("rule", format!("rule {} {done}", origins.place(&origins.rules, position)), "first match".to_owned())
        }
        view::Step::PacketFilter { position, permits } => {
            let done = if permits { "permits it" } else { "denies it" };
            let origins = &shared.settings().origins;
            let place = origins.place(&origins.filters, position);
            ("filter", format!("filter {place} {done}"), "first match in this direction".to_owned())
        }
        view::Step::PassRule(index) => {
            let origins = &shared.settings().origins;
            let place = origins.place(&origins.pass_rules, index);
            ("rule", format!("rule {place} passes it"), "the protocol is not translated".to_owned())
        }
    };
    Step { step: name.to_owned(), decision, detail }
}

#[cfg(test)]
mod tests {
    use nat::settings::Address6;

    use super::*;
    use crate::worker::tests::settings;

    #[test]
    fn why_says_that_the_next_hop_does_not_answer() {
        let now = "The next hop does not answer (ARP or Neighbor Discovery).";
        assert_eq!(description(Verdict::NeighbourUnresolved), now);
        assert_eq!(description(Verdict::NoRoute), Verdict::NoRoute.description());
    }

    #[test]
    fn the_mtu_towards_ipv6_hosts_is_that_of_ipv6() {
        let mut settings = settings();
        settings.interfaces[0].mtu = 1_460;
        let own = "2001:db8:1::1".parse().expect("an address");
        settings.ipv6.addresses = vec![Address6 { interface: InterfaceId(0), address: own, prefix_length: 64 }];
        let text = |hop: [u8; 4], mtu| mtu_text(&settings, Facing::inside(RealmId(0)), hop.into(), mtu);
        assert_eq!(text([10, 0, 0, 7], 1_500), "MTU 1500 bytes");
        assert_eq!(text([224, 0, 0, 7], 1_440), "MTU 1460 bytes of IPv6, which is 1440 of IPv4");
        let softwire = "MTU 1460 bytes of IPv6, and larger softwire packets are fragmented";
        assert_eq!(text([240, 0, 0, 7], u16::MAX), softwire);
    }
}
