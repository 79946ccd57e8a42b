//! Answers from the workers' counters: status, interfaces, pools, counters, drops.

use core::net::Ipv6Addr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use control::BackPressure;
use control::Counter;
use control::CounterKind;
use control::CurrentPortTimeout;
use control::CurrentTimeouts;
use control::DropReason;
use control::EventLog;
use control::Fault;
use control::FilteringByProtocol;
use control::Interface;
use control::LogSink;
use control::LogStore;
use control::Nat64Prefix;
use control::Pool;
use control::PortLimits;
use control::SinkKind;
use control::Status;
use control::SystemClock;
use control::Worker;
use control::WorkerPackets;
use export::sink::Kind;
use export::sink::Sink;
use lookup::convert::per_protocol;
use lookup::convert::protocol;
use nat::Counters;
use nat::Protocol;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::settings::Allocation;
use nat::settings::Filtering;
use nat::settings::Pooling;
use nat::settings::Transition;
use nat::types::AddressUse;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::verdict::VerdictKind;

use super::convert;
use super::drain::announcement;
use super::lists;
use super::lists::fullest;
use super::remedies::remedy;
use super::resources::resource;
use crate::event_log::EventLogView;
use crate::instance::Instance;
use crate::kernel::class::Class;
use crate::mailbox::Snapshot;
use crate::routing::shared::RouteCounters;

/// Packets with a verdict of this kind.
pub(crate) fn packets_of(counters: &Counters, kind: VerdictKind) -> u64 {
    Verdict::ALL.iter().filter(|verdict| verdict.kind() == kind).map(|verdict| counters.of(*verdict)).sum()
}

/// The current idle times, of the first worker: all workers use the same pools.
fn timeouts(snapshots: &[Snapshot]) -> CurrentTimeouts {
    snapshots.first().map_or_else(CurrentTimeouts::default, |snapshot| {
        let timeouts = &snapshot.timeouts;
        CurrentTimeouts {
            udp_us: timeouts.udp.as_micros(),
            udp_unanswered_us: timeouts.udp_unanswered.as_micros(),
            tcp_opening_us: timeouts.tcp_opening.as_micros(),
            tcp_established_us: timeouts.tcp_established.as_micros(),
            tcp_closing_us: timeouts.tcp_closing.as_micros(),
            icmp_us: timeouts.icmp.as_micros(),
        }
    })
}

/// Idle times of destination ports with their own.
fn port_timeouts(settings: &Settings) -> Vec<CurrentPortTimeout> {
    let current = |own: &nat::settings::PortTimeout| CurrentPortTimeout {
        protocol: protocol(own.protocol),
        first_port: *own.ports.start(),
        last_port: *own.ports.end(),
        idle_us: own.idle.as_micros(),
    };
    settings.port_timeouts.iter().map(current).collect()
}

pub(crate) fn status(instance: &Instance) -> Result<Status, Fault> {
    let snapshots = instance.snapshots()?;
    let rates = instance.rates();
    let shared = instance.shared();
    let limits = &shared.settings().limits;
    let workers = instance.worker_count() as u64;
    let sum = |of: &dyn Fn(&Snapshot) -> u64| snapshots.iter().map(of).sum::<u64>();
    let each = snapshots.iter().enumerate().map(|(number, snapshot)| Worker {
        worker: number as u8,
        cpu: instance.description.cpus.get(number).copied().flatten(),
        busy_ratio: rates.busy.get(number).copied().unwrap_or(0.0),
        packets_received_per_second: rates.received.get(number).copied().unwrap_or(0),
        packets_received: snapshot.counters.received,
        packets_forwarded: packets_of(&snapshot.counters, VerdictKind::Forwarded),
        packets_dropped: packets_of(&snapshot.counters, VerdictKind::Dropped),
        handed_off: snapshot.counters.handed_off,
        taken_over: snapshot.counters.taken_over,
        subscribers: snapshot.subscribers,
        mappings: snapshot.mappings,
        sessions: snapshot.sessions,
        busy_us: snapshot.busy_us,
        rounds_by_time: snapshot.rounds.counts().to_vec(),
    });
    Ok(Status {
        version: instance.description.version.clone(),
        pid: std::process::id(),
        config: instance.config_path(),
        state: instance.state(),
        uptime_us: instance.clock.uptime_us(),
        subscribers: sum(&|snapshot| snapshot.subscribers),
        subscribers_max: u64::from(limits.subscribers_max) * workers,
        mappings: sum(&|snapshot| snapshot.mappings),
        mappings_max: u64::from(limits.mappings_max) * workers,
        sessions: sum(&|snapshot| snapshot.sessions),
        // Every mapping contains one session.
        sessions_max: (u64::from(limits.mappings_max) + u64::from(limits.extra_sessions_max)) * workers,
        held_ports: sum(&|snapshot| snapshot.counters.ports_held),
        held_ports_max: u64::from(limits.held_ports_max) * workers,
        packets_received: sum(&|snapshot| snapshot.counters.received),
        packets_forwarded: sum(&|snapshot| packets_of(&snapshot.counters, VerdictKind::Forwarded)),
        packets_dropped: sum(&|snapshot| packets_of(&snapshot.counters, VerdictKind::Dropped)),
        bytes_forwarded: sum(&|snapshot| snapshot.counters.bytes_forwarded.iter().sum()),
        mappings_created: sum(&|snapshot| snapshot.counters.mappings_created.iter().sum()),
        sessions_created: sum(&|snapshot| snapshot.counters.sessions_created),
        packets_per_second: rates.packets,
        bits_per_second: rates.bits,
        drops_per_second: rates.drops,
        mappings_created_per_second: rates.mappings,
        sessions_created_per_second: rates.sessions,
        event_log: instance.event_log().map(|view| event_log(instance, view, &snapshots)),
        clock: mem::system_clock::state().ok().map(|state| SystemClock {
            synchronised: state.is_synchronised,
            estimated_error_us: state.estimated_error_us,
            maximum_error_us: state.maximum_error_us,
        }),
        port_timeouts: port_timeouts(shared.settings()),
        fragments_held_max: limits.fragments_held_max.saturating_mul(instance.worker_count() as u32),
        subscriber_ports_max: Box::new(port_limits(shared.settings().subscriber.ports_max)),
        nat64_prefixes: nat64_prefixes(shared.settings()),
        timeouts: timeouts(&snapshots),
        announcement: instance.routing().filter(|routing| routing.announces()).map(|routing| announcement(routing)),
        users_without_group: instance.description.users_without_group.clone().into(),
        workers: each.collect(),
    })
}

fn port_limits(ports_max: [u32; Protocol::COUNT]) -> PortLimits {
    let of = |protocol: Protocol| Some(ports_max[protocol.index()]).filter(|limit| *limit != u32::MAX);
    PortLimits { udp: of(Protocol::Udp), tcp: of(Protocol::Tcp), icmp: of(Protocol::Icmp) }
}

fn nat64_prefixes(settings: &Settings) -> Box<[Nat64Prefix]> {
    let serves =
        |pool: &&nat::settings::Pool, realm| pool.realm() == realm && pool.subscribers.contains(&Transition::HOSTS);
    let shown = |nat64: &nat::settings::Nat64| Nat64Prefix {
        prefix: format!("{}/{}", Ipv6Addr::from_bits(nat64.prefix.address()), nat64.prefix.length()),
        pool: settings.pools.iter().find(|pool| serves(pool, nat64.realm)).map(|pool| pool.name.clone()),
    };
    settings.transition.nat64.iter().map(shown).collect()
}

fn event_log(instance: &Instance, view: &EventLogView, snapshots: &[Snapshot]) -> EventLog {
    let figures = view.handle.figures();
    EventLog {
        destination: view.destination(),
        back_pressure: match instance.shared().settings().events.back_pressure {
            nat::event::BackPressure::Refuse => BackPressure::Refuse,
            nat::event::BackPressure::Drop => BackPressure::Drop,
        },
        records_written: figures.records,
        records_waiting: figures.waiting,
        records_lost: snapshots.iter().map(|snapshot| snapshot.events.lost).sum(),
        bytes_written: figures.bytes,
        files_rotated: figures.rotations,
        files_taken: figures.taken.0,
        errors: figures.errors,
        lag_us: figures.lag_us,
        failing: figures.failing,
        last_error: figures.last_error,
        store: view.store().zip(view.handle.stored()).map(|(path, stored)| LogStore {
            path: path.display().to_string(),
            records_written: stored.records,
            records_waiting: stored.waiting,
            bytes: stored.health.bytes,
            segments: stored.health.segments,
            gaps: stored.health.gaps,
            records_lost: stored.health.records_lost,
            cuts: stored.health.cuts,
            errors: stored.errors,
            lag_us: stored.lag_us,
            failing: stored.failing,
            last_error: stored.last_error,
        }),
        sinks: instance.sinks().map(|sinks| sinks.for_each(log_sink)).unwrap_or_default(),
    }
}

fn log_sink(sink: &Sink) -> LogSink {
    let (options, figures) = (sink.options(), sink.figures());
    LogSink {
        name: options.name.clone(),
        kind: match options.kind {
            Kind::Ipfix => SinkKind::Ipfix,
            Kind::Syslog => SinkKind::Syslog,
            Kind::Json => SinkKind::Json,
        },
        address: options.target.to_string(),
        connected: figures.is_connected(),
        records_sent: figures.records(),
        bytes_sent: figures.bytes(),
        records_lost: figures.lost(),
        lag_us: figures.lag_us(),
        connections: figures.connects(),
        errors: figures.errors(),
        last_error: figures.last_error(),
    }
}

/// The own addresses of an interface, of both families.
fn addresses(settings: &Settings, index: usize) -> Vec<String> {
    let own = settings.interfaces.get(index).into_iter().flat_map(|interface| &interface.addresses);
    let own = own.map(|own| format!("{}/{}", own.address, own.prefix_length));
    let own6 = settings.ipv6.addresses.iter().filter(|own| own.interface.index() == index);
    own.chain(own6.map(|own| format!("{}/{}", own.address, own.prefix_length))).collect()
}

/// The own IPv6 addresses of an interface that are not used, for this reason.
fn unused(instance: &Instance, index: usize, why: AddressUse) -> Vec<String> {
    let own = instance.own_addresses().into_iter().flat_map(|own| own.of(InterfaceId(index as u16)));
    let unused = own.filter(|own| own.now() == why);
    unused.map(|own| format!("{}/{}", Ipv6Addr::from_bits(own.address), own.prefix_length)).collect()
}

pub(crate) fn interfaces(instance: &Instance) -> Result<Vec<Interface>, Fault> {
    let (snapshots, rates) = (instance.snapshots()?, instance.rates());
    let ports = snapshots.first().map(|snapshot| (snapshot.ports.as_slice(), instance.ports_up(&snapshot.ports_up)));
    let (statistics, up) = ports.unwrap_or_default();
    let shared = instance.shared();
    let places = shared.settings().interfaces.iter().zip(&instance.description.links).enumerate();
    let objects = places.map(|(index, (interface, link))| {
        let counted = snapshots.iter().filter_map(|snapshot| snapshot.interfaces.get(index));
        let total = counted.fold([0_u64; 5], |[rx, rx_bytes, tx, tx_bytes, unsent], one| {
            [
                rx + one.received_packets,
                rx_bytes + one.received_bytes,
                tx + one.sent_packets,
                tx_bytes + one.sent_bytes,
                unsent + one.unsent_packets,
            ]
        });
        let [rx_packets, rx_bytes, tx_packets, tx_bytes, tx_dropped] = total;
        let [rx_packets_per_second, rx_bits_per_second, tx_packets_per_second, tx_bits_per_second] =
            rates.interfaces.get(index).copied().unwrap_or_default();
        let port = instance.description.ports.get(link.port.index());
        let missed = statistics.get(link.port.index()).map_or(0, |port| port.receive_missed + port.receive_no_buffer);
        Interface {
            name: interface.name.clone(),
            side: convert::side(interface.side),
            port: port.map(|port| port.name.clone()).unwrap_or_default(),
            driver: port.map(|port| port.driver.clone()).unwrap_or_default(),
            mac: port.map(|port| port.station.to_string()).unwrap_or_default(),
            addresses: addresses(shared.settings(), index),
            duplicate_addresses: unused(instance, index, AddressUse::Duplicate),
            tentative_addresses: unused(instance, index, AddressUse::Tentative),
            mtu_bytes: interface.mtu,
            vlan: link.vlan,
            link_up: up.get(link.port.index()).copied().unwrap_or(false),
            rx_packets,
            rx_bytes,
            // For the whole port: a packet that is not received has no VLAN yet.
            rx_missed: missed,
            tx_packets,
            tx_bytes,
            tx_dropped,
            rx_packets_per_second,
            rx_bits_per_second,
            tx_packets_per_second,
            tx_bits_per_second,
        }
    });
    Ok(objects.collect())
}

fn filtering(filtering: Filtering) -> control::Filtering {
    match filtering {
        Filtering::EndpointIndependent => control::Filtering::EndpointIndependent,
        Filtering::AddressDependent => control::Filtering::AddressDependent,
        Filtering::AddressAndPortDependent => control::Filtering::AddressAndPortDependent,
    }
}

/// Ports of a pool that are forwarded, by protocol.
fn forwarded(settings: &Settings, pool: &nat::settings::Pool) -> [u64; Protocol::COUNT] {
    let mut ports = [0; Protocol::COUNT];
    let one = settings.forwards.iter().map(|forward| (forward.external, forward.protocol, forward.ports));
    let several = settings.balanced_forwards.iter().map(|forward| (forward.external, forward.protocol, forward.ports));
    for (_, protocol, (first, last)) in one.chain(several).filter(|(external, ..)| pool.addresses.contains(external)) {
        ports[protocol.index()] += u64::from(last - first) + 1;
    }
    ports
}

pub(crate) fn pools(instance: &Instance) -> Result<Vec<Pool>, Fault> {
    let shared = &instance.shared();
    let mut objects = Vec::new();
    for (id, pool) in shared.pools() {
        let indices = shared.addresses().map(|(index, _)| index);
        let mut used = [0; Protocol::COUNT];
        let mut held = [0; Protocol::COUNT];
        let mut total = [0; Protocol::COUNT];
        let (mut leased, mut unleasable) = (0, 0);
        // With arbitrary pooling an address does not know its subscribers.
        let mut subscribers = match pool.pooling {
            Pooling::Paired => 0,
            Pooling::Arbitrary => lists::count_subscribers(instance, id)?,
        };
        for index in indices.filter(|index| shared.pool_of(*index) == id) {
            subscribers += u64::from(shared.paired_subscribers(index));
            leased += u64::from(shared.ports_leased(index));
            unleasable += u64::from(shared.ports_unleasable(index));
            for protocol in Protocol::ALL {
                let place = protocol.index();
                used[place] += u64::from(shared.ports_used(index, protocol));
                held[place] += u64::from(shared.ports_held_down(index, protocol));
                total[place] += u64::from(shared.ports_there(index, protocol));
            }
        }
        let [udp, tcp, icmp] = pool.filtering.map(filtering);
        let counted = shared.counted_in_pool(id);
        let blocks = match pool.allocation {
            Allocation::Ports => None,
            Allocation::Blocks(blocks) | Allocation::Deterministic { overflow: blocks, .. } => Some(blocks),
        };
        // The numbers of IPv6 hosts are no addresses.
        let prefixes = pool.subscribers.iter().copied().filter(|prefix| *prefix != Transition::HOSTS);
        objects.push(Pool {
            name: pool.name.clone(),
            addresses: pool.addresses.len() as u64,
            subscriber_prefixes: prefixes.map(convert::prefix).collect(),
            serves_ipv6_hosts: pool.subscribers.contains(&Transition::HOSTS),
            pooling: match pool.pooling {
                Pooling::Paired => control::Pooling::Paired,
                Pooling::Arbitrary => control::Pooling::Arbitrary,
            },
            filtering: FilteringByProtocol { udp, tcp, icmp },
            allocation: match pool.allocation {
                _ if pool.one_to_one => "one-to-one",
                Allocation::Ports => "ports",
                Allocation::Blocks(_) => "blocks",
                Allocation::Deterministic { .. } => "deterministic",
            }
            .to_owned(),
            block_size: blocks.map(|blocks| blocks.size.ports()),
            block_idle_us: blocks.map(|blocks| blocks.idle.as_micros()),
            ports_leased: leased,
            ports_unleasable: unleasable,
            ports_forwarded: per_protocol(forwarded(shared.settings(), pool)),
            reuse_delay_us: pool.reuse_delay.as_micros(),
            port_min: pool.port_min,
            port_max: pool.port_max,
            draining: is_draining(shared, id),
            subscribers,
            ports_used: per_protocol(used),
            ports_held: per_protocol(held),
            ports_total: per_protocol(total),
            utilisation_ratio: fullest(used, total, leased + unleasable),
            addresses_paired: counted.addresses_paired,
            mappings_created: counted.mappings_created,
            refused_without_address: counted.refused_without_address,
            refused_without_port: counted.refused_without_port,
        });
    }
    Ok(objects)
}

/// True if no address of the pool takes new mappings.
fn is_draining(shared: &Shared, id: PoolId) -> bool {
    let mut own = shared.addresses().filter(|(_, slot)| slot.pool == id);
    own.all(|(_, slot)| slot.closed.is_some())
}

/// All counters that are not verdicts: name, value, kind, sentence.
fn events(snapshot: &Snapshot) -> Vec<(String, u64, CounterKind, &'static str)> {
    use CounterKind::Event;
    use CounterKind::Gauge;
    let Counters {
        received,
        verdicts: _,
        handed_off,
        taken_over,
        fragments_held,
        neighbour_pending,
        fragmented,
        originated,
        icmp_errors_suppressed,
        icmp_errors_translated,
        mappings_created,
        mappings_removed,
        translated,
        flows_created,
        flows_removed,
        ports_refused,
        addresses_paired,
        blocks_leased,
        blocks_returned,
        penalties_begun,
        penalties_ended,
        refusals_unlisted,
        sessions_created,
        sessions_removed,
        tcp_resets_ignored,
        unsolicited_syns_matched,
        unsolicited_syns_overflow,
        ports_held,
        ports_held_short,
        pcp_results,
        nat_pmp_results,
        port_control_ignored,
        port_control_limited,
        port_control_updates,
        control_sessions,
        messages_changed,
        expectations_created,
        expectations_refused,
        gateways,
        grants_opened,
        grants_deleted,
        bytes_forwarded: [bytes_outbound, bytes_inbound, bytes_hairpin],
    } = snapshot.counters;
    let links = snapshot.links;
    let mut events = vec![
        ("received", received, Event, "Packets taken from ports."),
        ("handed_off", handed_off, Event, "Packets handed off to other workers."),
        ("taken_over", taken_over, Event, "Packets taken over from other workers."),
        ("fragments_held", fragments_held, Gauge, "Fragments waiting for the first fragment of their datagram."),
        (
            "neighbour_pending",
            neighbour_pending,
            Gauge,
            "Packets waiting for the link-layer address of their next hop.",
        ),
        ("fragmented", fragmented, Event, "Packets that left in fragments because of the next link's MTU."),
        ("originated", originated, Event, "Packets Natrix made itself (ICMP errors, replies)."),
        ("originated_dropped", links.originated_dropped, Event, "Packets Natrix made itself that could not be sent."),
        ("icmp_errors_suppressed", icmp_errors_suppressed, Event, "ICMP errors not sent because of the rate limits."),
        ("icmp_errors_translated", icmp_errors_translated, Event, "ICMP errors translated."),
        ("flows_created", flows_created, Event, "Endpoint-dependent flows created; each counts as a session too."),
        ("flows_removed", flows_removed, Event, "Endpoint-dependent flows removed."),
        ("addresses_paired", addresses_paired, Event, "Subscribers paired with an external address."),
        ("blocks_leased", blocks_leased, Event, "Port blocks leased to subscribers."),
        ("blocks_returned", blocks_returned, Event, "Port blocks returned by subscribers."),
        ("penalties_begun", penalties_begun, Event, "Subscribers moved to the penalty pool of their class."),
        ("penalties_ended", penalties_ended, Event, "Subscribers released from the penalty pool."),
        (
            "refusals_unlisted",
            refusals_unlisted,
            Event,
            "Refusals of subscribers without a mapping that `show subscribers` no longer lists, for lack of space.",
        ),
        ("sessions_created", sessions_created, Event, "Sessions created."),
        ("sessions_removed", sessions_removed, Event, "Sessions removed."),
        (
            "tcp_resets_ignored",
            tcp_resets_ignored,
            Event,
            "RSTs outside the connection's sequence numbers (RFC 7857 §2.2).",
        ),
        (
            "unsolicited_syns_matched",
            unsolicited_syns_matched,
            Event,
            "Unsolicited SYNs followed in time by a matching SYN from inside.",
        ),
        (
            "unsolicited_syns_overflow",
            unsolicited_syns_overflow,
            Event,
            "Unsolicited SYNs dropped at once, because too many were held.",
        ),
        ("ports_held", ports_held, Gauge, "External ports held down before they are used again."),
        (
            "ports_held_short",
            ports_held_short,
            Event,
            "External ports used again before the end of their hold-down, because too many were held.",
        ),
        (
            "port_control_ignored",
            port_control_ignored,
            Event,
            "Datagrams to the port of PCP and NAT-PMP that are no requests.",
        ),
        ("port_control_limited", port_control_limited, Event, "Requests not answered because of the rate limits."),
        ("port_control_updates", port_control_updates, Event, "Messages to clients about changed mappings."),
        ("expectations_created", expectations_created, Event, "Ports expected by application-level gateways."),
        (
            "expectations_refused",
            expectations_refused,
            Event,
            "Ports that a payload announced and that were not reserved: a limit, or no port.",
        ),
        ("grants_opened", grants_opened, Event, "Mappings made on request by PCP or NAT-PMP."),
        ("grants_deleted", grants_deleted, Event, "Mappings deleted on request."),
        ("bytes_outbound", bytes_outbound, Event, "Bytes of IP packets translated from inside to outside."),
        ("bytes_inbound", bytes_inbound, Event, "Bytes of IP packets translated from outside to inside."),
        ("bytes_hairpin", bytes_hairpin, Event, "Bytes of IP packets from one subscriber to another."),
        ("events_recorded", snapshot.events.recorded, Event, "Records passed to the event log."),
        (
            "events_lost",
            snapshot.events.lost,
            Event,
            "Events without a record, because the event log could not be written fast enough.",
        ),
        ("neighbours", snapshot.neighbours, Gauge, "Neighbours in the cache, with and without an answer."),
        ("neighbours_unresolved", snapshot.neighbours_unresolved, Gauge, "Neighbours that have not answered."),
        ("hand_off_waiting", snapshot.hand_off_waiting, Gauge, "Packets that wait in the rings between workers."),
        ("arp_replies", links.arp_replies, Event, "ARP requests answered."),
        ("arp_requests", links.arp_requests, Event, "ARP requests, probes and announcements sent."),
        (
            "address_conflicts",
            links.address_conflicts,
            Event,
            "ARP packets and IPv6 neighbour messages in which another station claimed an address of Natrix.",
        ),
    ]
    .into_iter()
    .map(|(name, value, kind, description)| (name.to_owned(), value, kind, description))
    .collect::<Vec<_>>();
    for (place, gateway) in alg::ALGS.iter().enumerate() {
        let (sessions, messages) = (control_sessions[place], messages_changed[place]);
        let name = gateway.name();
        events.push((format!("alg_{name}_sessions"), sessions, Event, "Control sessions that this gateway read."));
        events.push((format!("alg_{name}_changed"), messages, Event, "Messages that this gateway rewrote."));
        let refused = gateways[place].refused.iter().sum();
        events.push((format!("alg_{name}_refused"), refused, Event, "What this gateway refused; see `show algs`."));
    }
    for (code, count) in pcp::Code::ALL.into_iter().zip(pcp_results) {
        events.push((format!("pcp_{}", code.name()), count, Event, "Replies of PCP with this result code."));
    }
    for (code, count) in pcp::nat_pmp::Code::ALL.into_iter().zip(nat_pmp_results) {
        events.push((format!("nat_pmp_{}", code.name()), count, Event, "Replies of NAT-PMP with this result code."));
    }
    let kernel = snapshot.kernel;
    for (class, ((given, limited), full)) in
        Class::ALL.into_iter().zip(kernel.given.into_iter().zip(kernel.limited).zip(kernel.ring_full))
    {
        let name = class.name();
        events.push((format!("kernel_{name}_given"), given, Event, "Frames of this class given to the kernel."));
        events.push((
            format!("kernel_{name}_limited"),
            limited,
            Event,
            "Frames for the kernel above the rate of this class.",
        ));
        events.push((
            format!("kernel_{name}_full"),
            full,
            Event,
            "Frames of this class that the kernel took too slowly.",
        ));
    }
    events.push(("kernel_sent".to_owned(), kernel.sent, Event, "Frames of the kernel sent."));
    events.push((
        "kernel_unsent".to_owned(),
        kernel.unsent,
        Event,
        "Frames of the kernel without a buffer or interface.",
    ));
    for protocol in Protocol::ALL {
        let name = protocol.name();
        let of = |numbers: [u64; Protocol::COUNT]| numbers.get(protocol.index()).copied().unwrap_or(0);
        events.push((format!("translated_{name}"), of(translated), Event, "Packets translated."));
        events.push((format!("mappings_created_{name}"), of(mappings_created), Event, "Mappings created."));
        events.push((format!("mappings_removed_{name}"), of(mappings_removed), Event, "Mappings removed."));
        let refused =
            "Packets and requests refused because no port was free or the subscriber was at its limit of ports.";
        events.push((format!("ports_refused_{name}"), of(ports_refused), Event, refused));
    }
    events
}

fn all_counters(snapshot: &Snapshot, worker: Option<u8>) -> Vec<Counter> {
    let verdicts = Verdict::ALL.iter().map(|verdict| Counter {
        name: verdict.name().to_owned(),
        worker,
        value: snapshot.counters.of(*verdict),
        kind: match verdict.kind() {
            VerdictKind::Forwarded => CounterKind::Forwarded,
            VerdictKind::Local => CounterKind::Local,
            VerdictKind::Dropped => CounterKind::Dropped,
        },
        resource: resource(*verdict),
        description: verdict.description().to_owned(),
    });
    let events = events(snapshot).into_iter().map(|(name, value, kind, description)| Counter {
        name,
        worker,
        value,
        kind,
        resource: None,
        description: description.to_owned(),
    });
    verdicts.chain(events).collect()
}

pub(crate) fn counters(instance: &Instance, per_worker: bool) -> Result<Vec<Counter>, Fault> {
    let snapshots = instance.snapshots()?;
    let mut each = snapshots.iter().enumerate().map(|(number, snapshot)| {
        let worker = per_worker.then_some(number as u8);
        all_counters(snapshot, worker)
    });
    if per_worker {
        return Ok(each.flatten().collect());
    }
    let mut sums = each.next().unwrap_or_default();
    let routes = instance.routing().map(|routing| route_counters(&routing.counters)).unwrap_or_default();
    for counters in each {
        for (sum, counter) in sums.iter_mut().zip(counters) {
            sum.value += counter.value;
        }
    }
    sums.extend(routes);
    Ok(sums)
}

/// Counters of routes, which are those of no worker.
fn route_counters(counters: &RouteCounters) -> Vec<Counter> {
    use CounterKind::Event;
    use CounterKind::Gauge;
    let all = [
        ("routes_kernel", &counters.routes, Gauge, "Routes of the kernel."),
        ("routes_installed", &counters.installed, Gauge, "Routes in the tables of the workers."),
        ("routes_changes", &counters.changes, Event, "Changes of routes that the kernel reported."),
        ("routes_lost", &counters.lost, Event, "Times that the kernel reported faster than Natrix read."),
        ("routes_compared", &counters.compared, Event, "Comparisons of all routes with those of the kernel."),
        (
            "routes_corrected",
            &counters.corrected,
            Event,
            "Routes that a comparison corrected: messages of the kernel were lost or misread.",
        ),
        (
            "routes_reread",
            &counters.reread,
            Event,
            "Routes that changed without a message of their own, as when a device goes down.",
        ),
        ("routes_refused", &counters.refused, Event, "Routes for which the tables of the workers had no room."),
        (
            "routes_announced",
            &counters.announced,
            Gauge,
            "Prefixes announced to the kernel: of pools, NAT64 and AFTRs.",
        ),
    ];
    let counter = |(name, value, kind, description): (&str, &AtomicU64, CounterKind, &str)| Counter {
        name: name.to_owned(),
        worker: None,
        value: value.load(Ordering::Relaxed),
        kind,
        resource: None,
        description: description.to_owned(),
    };
    all.into_iter().map(counter).collect()
}

pub(crate) fn drops(instance: &Instance) -> Result<Vec<DropReason>, Fault> {
    let (snapshots, rates) = (instance.snapshots()?, instance.rates());
    let reasons = Verdict::ALL.iter().enumerate().filter(|(_, verdict)| verdict.kind() == VerdictKind::Dropped);
    let objects = reasons.map(|(place, verdict)| {
        let packets = |snapshot: &Snapshot| snapshot.counters.of(*verdict);
        let per_worker = snapshots.iter().enumerate();
        DropReason {
            reason: verdict.name().to_owned(),
            packets: snapshots.iter().map(packets).sum(),
            packets_per_second: rates.by_verdict.get(place).copied().unwrap_or(0),
            description: verdict.description().to_owned(),
            remedy: remedy(*verdict).to_owned(),
            per_worker: per_worker
                .map(|(number, snapshot)| WorkerPackets { worker: number as u8, packets: packets(snapshot) })
                .collect(),
        }
    });
    Ok(objects.collect())
}
