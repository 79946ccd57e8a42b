//! `why`: explains what would happen to a packet now. Builds a real packet and asks the engine.

use core::net::Ipv4Addr;
use core::net::SocketAddrV4;

use control::Direction;
use control::Fault;
use control::Step;
use control::TcpSegment;
use control::Why;
use control::WhyAnswer;
use lookup::convert::engine_protocol;
use lookup::convert::own_interface;
use lookup::convert::pool_name;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::settings::Filtering;
use nat::settings::Interface;
use nat::settings::RuleAction;
use nat::tcp::TcpState;
use nat::types::Facing;
use nat::types::Side;
use nat::view;
use wire::build;
use wire::tcp::Flags;

use super::convert;
use crate::instance::Instance;
use crate::instance::mismatch;
use crate::mailbox::Question;

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
    let packet = packet(why, protocol, side)?;
    let (worker, explanation) = shared.explain(from, &packet, |worker, onward| {
        let question = Question::Explain { from, onward, packet: packet.clone(), explanation: None };
        match instance.ask(worker.index(), question)? {
            Question::Explain { explanation: Some(explanation), .. } => Ok(explanation),
            _ => Err(mismatch(worker.index())),
        }
    })?;
    Ok(WhyAnswer {
        protocol: why.protocol,
        source: why.source,
        destination: why.destination,
        direction: if side == Side::Inside { Direction::Outbound } else { Direction::Inbound },
        verdict: explanation.verdict.name().to_owned(),
        kind: convert::verdict_kind(explanation.verdict.kind()),
        description: explanation.verdict.description().to_owned(),
        translated_source: explanation.source_after.map(convert::socket),
        translated_destination: explanation.destination_after.map(convert::socket),
        worker: worker.0,
        steps: explanation.steps.iter().map(|step| step_of(&shared, *step)).collect(),
        state_changed: false,
    })
}

/// The interface of the packet.
fn facing(settings: &Settings, why: &Why) -> Result<Facing, Fault> {
    let asked = if why.inbound { Side::Outside } else { Side::Inside };
    let Some(name) = &why.interface else {
        let first = settings.interfaces.iter().find(|interface| interface.side == asked);
        return Ok(first.map_or(asked.into(), Interface::facing));
    };
    let interface = settings.interfaces.iter().find(|interface| interface.name == *name);
    let interface = interface.ok_or_else(|| {
        let known: Vec<&str> = settings.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let remedy = format!("interfaces are: {}", known.join(", "));
        Fault::new(format!("interface \"{name}\""), "does not exist", remedy)
    })?;
    if why.inbound && interface.side == Side::Inside {
        let object = format!("interface \"{name}\"");
        return Err(Fault::new(object, "is an inside interface", "omit --inbound, or use an outside interface"));
    }
    Ok(interface.facing())
}

fn packet(why: &Why, protocol: Protocol, side: Side) -> Result<Vec<u8>, Fault> {
    let flags = match why.tcp_segment.unwrap_or(TcpSegment::Syn) {
        TcpSegment::Syn => Flags::SYN,
        TcpSegment::SynAck => Flags::SYN.union(Flags::ACK),
        TcpSegment::Ack => Flags::ACK,
        TcpSegment::Fin => Flags::FIN.union(Flags::ACK),
        TcpSegment::Rst => Flags::RST,
    };
    let (source, destination): (SocketAddrV4, SocketAddrV4) = (why.source, why.destination);
    let (from, to): (Ipv4Addr, Ipv4Addr) = (*source.ip(), *destination.ip());
    let builder = match protocol {
        Protocol::Udp => build::udp(source, destination),
        Protocol::Tcp => build::tcp(source, destination, flags),
        Protocol::Icmp if side == Side::Inside => build::echo_request(from, to, source.port()),
        Protocol::Icmp => build::echo_reply(from, to, destination.port()),
    };
    let length = why.length_bytes.map_or(shortest(protocol), usize::from);
    let payload = length.checked_sub(shortest(protocol)).ok_or_else(|| {
        let remedy = format!("a {} packet has at least {} bytes", protocol.name(), shortest(protocol));
        Fault::new("packet", "is too short", remedy).seen(format!("{length} bytes"))
    })?;
    let builder = builder.payload_length(payload);
    Ok(if why.dont_fragment { builder.dont_fragment() } else { builder }.build())
}

/// One step as text.
pub(crate) fn step_of(shared: &Shared, step: view::Step) -> Step {
    let settings = shared.settings();
    let (name, decision, detail) = match step {
        view::Step::Parsed { protocol, source, destination } => {
            let transport =
                Protocol::from_number(protocol).map_or_else(|| protocol.to_string(), |p| p.name().to_owned());
            ("parse", format!("{transport} {source} > {destination}"), "headers are complete and agree".to_owned())
        }
        view::Step::Owner(worker) => {
            ("owner", format!("worker {}", worker.0), "all packets of the flow go there".to_owned())
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
            ("route", format!("interface \"{name}\" via {next_hop}"), format!("longest prefix; MTU {mtu} bytes"))
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
            format!("{ports} ports guaranteed"),
            "reserved_ports of its class, including ports in use".to_owned(),
        ),
        view::Step::Guaranteed { ports, missing } => (
            "limits",
            format!("{ports} of {} guaranteed ports", ports + missing),
            format!("{missing} are in use by other subscribers; they will be reserved as they become free"),
        ),
        view::Step::SliceInBlocks { first, last, leased, ports } => (
            "port",
            format!("slice {first}-{last}: {leased} of {ports} ports are in port blocks of other subscribers"),
            "leased before the change to the formula; the subscriber gets them as those blocks are returned".to_owned(),
        ),
        view::Step::PairedWith(address) => (
            "pool",
            format!("external address {address}"),
            "the subscriber is paired with it (RFC 4787 REQ-2)".to_owned(),
        ),
        view::Step::MappingFound { internal, external, expires_in, origin } => {
            let asked = origin.map_or_else(String::new, |origin| format!("asked for by {}, ", origin.name()));
            ("lookup", format!("mapping {internal} = {external}"), format!("{asked}expires in {expires_in}"))
        }
        view::Step::MappingWouldBeCreated { ports_free } => (
            "port",
            "a mapping would be created".to_owned(),
            format!("a random port of {ports_free} free ones (RFC 6056)"),
        ),
        view::Step::FlowFound { internal, external, remote, expires_in } => (
            "lookup",
            format!("flow {internal} = {external} to {remote}"),
            format!("the external endpoint is shared; expires in {expires_in}"),
        ),
        view::Step::FlowWouldBeCreated { remote } => (
            "port",
            format!("a flow to {remote} would be created"),
            "with an external port that no other flow uses towards it".to_owned(),
        ),
        view::Step::StaticMapping { internal, external, one_to_one } => (
            "static",
            format!("static mapping {internal} = {external}"),
            if one_to_one { "a one-to-one pool" } else { "a port forward" }.to_owned(),
        ),
        view::Step::Target { internal, external, weight, total } => (
            "static",
            format!("{external} leads to {internal}, for this remote endpoint"),
            format!("one of several targets, of weight {weight} among {total}"),
        ),
        view::Step::AnyTarget { external, targets, agree } => (
            "static",
            format!("{external} leads to one of {targets} targets"),
            match agree {
                true => "the external port, which is random, decides the target; the verdict is the same for each",
                false => "the external port, which is random, decides the target; the verdict differs for some",
            }
            .to_owned(),
        ),
        view::Step::NoSharedPort { remote, at_quota } => (
            "port",
            format!("no port to share towards {remote}"),
            match at_quota {
                true => "the subscriber has reached its limit of ports, and each shared port has a flow to this remote",
                false => "no port is free, and each shared port has a flow to this remote",
            }
            .to_owned(),
        ),
        view::Step::PortAwaited(external) => (
            "static",
            format!("waiting for {external}"),
            "its static port is still in use by another subscriber, or held down (reuse_delay)".to_owned(),
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
                true => format!("granted by {} for another {expires_in}", origin.name()),
                false => "its filters name other remote endpoints, or its port is held down".to_owned(),
            },
        ),
        view::Step::SessionFound { state, expires_in } => {
            let state = state.map_or("active", TcpState::name);
            ("session", format!("session {state}"), format!("expires in {expires_in}"))
        }
        view::Step::SessionWouldBeCreated => {
            ("session", "a session would be created".to_owned(), "first packet with this remote endpoint".to_owned())
        }
        view::Step::Fragment { offset, more } => {
            let place = if more { format!("at {offset}, more follow") } else { format!("at {offset}, the last one") };
            let first = "only the first fragment has ports; others wait for it";
            ("fragment", place, first.to_owned())
        }
        view::Step::Quoted { protocol, source, destination } => (
            "icmp error",
            format!("about {protocol} {source} > {destination}"),
            "the quoted packet identifies the mapping (RFC 5508 §4)".to_owned(),
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
