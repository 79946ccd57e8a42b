//! From text to snapshot: read, compare, and only then build.

use std::path::Path;

use nat::Protocol;
use nat::Settings;
use nat::event::EventSettings;
use nat::settings::BalancedForward;
use nat::settings::Class;
use nat::settings::Forward;
use nat::settings::Gateway;
use nat::settings::Interface;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::PortTimeout;
use nat::settings::Route;
use nat::settings::SubscriberLimits;
use nat::settings::Transition;
use nat::types::InterfaceId;
use nat::types::PoolId;
use nat::types::RealmId;
use nat::types::Side;
use toml_edit::ImDocument;

use crate::check;
use crate::check::interfaces::Links;
use crate::check::machine::Machine;
use crate::check::rules::Before;
use crate::draft::Draft;
use crate::draft::class::ClassDraft;
use crate::draft::forward::ForwardDraft;
use crate::draft::interface::Attachment;
use crate::draft::interface::InterfaceDraft;
use crate::draft::pool::PoolDraft;
use crate::draft::port_timeout::PortTimeoutDraft;
use crate::draft::singles;
use crate::draft::sink::SinkDraft;
use crate::fault::Fault;
use crate::model::Config;
use crate::model::Control;
use crate::model::Port;
use crate::model::Totals;
use crate::report::Place;
use crate::report::Report;
use crate::section::rounded_size;
use crate::source::Source;

/// Compiles a configuration for a machine nothing is known of. `file_name` stands in the faults;
/// files that it names are looked for in its folder.
///
/// # Errors
/// Every fault of the text, by line.
pub fn parse(text: &str, file_name: &str) -> Result<Config, Vec<Fault>> {
    parse_for(text, file_name, &Machine::default())
}

/// Compiles a configuration and checks that `machine` can carry it.
///
/// # Errors
/// Every fault of the text, by line.
pub fn parse_for(text: &str, file_name: &str, machine: &Machine) -> Result<Config, Vec<Fault>> {
    compile(text, machine, None, Report::new(file_name, text))
}

/// As [`parse_for`], for a configuration that is to follow `before`, which has no faults. Takes
/// less time if they have most rules in common, and leaves out warnings about overlaps of rules.
///
/// # Errors
/// Every fault of the text, by line.
pub fn parse_following(text: &str, file_name: &str, machine: &Machine, before: &Config) -> Result<Config, Vec<Fault>> {
    compile(text, machine, Some(before), Report::new(file_name, text))
}

/// As [`parse_following`], for a text that a client sent in place of the file `file_name`. Files of
/// rules must lie in its folder, and faults of these files do not show what is in them: a client
/// that sends a text may not read all that this process may.
///
/// # Errors
/// Every fault of the text, by line.
pub fn parse_sent(text: &str, file_name: &str, machine: &Machine, before: &Config) -> Result<Config, Vec<Fault>> {
    compile(text, machine, Some(before), Report::new(file_name, text).of_sent())
}

/// The table `[control]` of a configuration alone. Anything else in it may have faults, or not even
/// be TOML.
///
/// # Errors
/// Every fault of this table, by line.
pub fn control(text: &str, file_name: &str) -> Result<Control, Vec<Fault>> {
    let mut report = Report::new(file_name, text);
    let whole = ImDocument::parse(text.to_owned());
    let document = match whole {
        Ok(document) => document,
        Err(_) => ImDocument::parse(lines_of(text, "control"))
            .map_err(|_| parse(text, file_name).err().unwrap_or_default())?,
    };
    let (control, _) = singles::control(document.as_table(), &mut report);
    if report.is_clean() { Ok(control) } else { Err(report.into_faults()) }
}

/// The text with the lines of one table only, however TOML lets it be written; the others are
/// blank, and each is where it was.
fn lines_of(text: &str, table: &str) -> String {
    let is_name = |name: &str| name.trim().trim_matches(['"', '\'']) == table;
    let (mut is_inside, mut is_top) = (false, true);
    let mut kept = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if let Some(header) = line.trim_start().strip_prefix('[') {
            is_inside = header.split(']').next().is_some_and(is_name);
            is_top = false;
        }
        // `control.socket = …` and `control = { … }` above all tables.
        let is_of_top = is_top && line.split(['.', '=']).next().is_some_and(is_name);
        if is_inside || is_of_top {
            kept.push_str(line);
        } else {
            kept.extend(line.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
        }
    }
    kept
}

/// A line of a text that is not TOML, unless it may have a secret in it.
fn shown_line(text: &str, index: usize) -> &str {
    let line = text.lines().nth(index).unwrap_or_default();
    let before = text.lines().take(index + 1);
    let header = before.filter(|line| line.trim_start().starts_with('[')).last().unwrap_or_default();
    let is_of_secret = line.contains("token") || line.contains("argon2") || header.contains("user");
    if is_of_secret { "a line that may have a secret is not shown" } else { line }
}

/// What is wrong with a file of another system, whose lines end in CR alone.
pub(crate) const BARE_RETURN: &str = "has a line that ends in CR alone";
/// What to do about it.
pub(crate) const BARE_RETURN_REMEDY: &str = "save the file with the line ends of Unix (LF)";

/// Where a CR is that no LF follows.
pub(crate) fn bare_return(text: &[u8]) -> Option<usize> {
    (0..).zip(text).find(|(at, byte)| **byte == b'\r' && text.get(at + 1) != Some(&b'\n')).map(|(at, _)| at)
}

fn compile(
    text: &str,
    machine: &Machine,
    before: Option<&Config>,
    mut report: Report<'_>,
) -> Result<Config, Vec<Fault>> {
    let document = match ImDocument::parse(text) {
        Ok(document) => document,
        Err(error) => {
            let message = error.message().trim().replace('\n', ", ");
            if let Some(at) = bare_return(text.as_bytes())
                && (message.is_empty() || error.span().is_none_or(|span| at <= span.end))
            {
                let place = Place { path: "".into(), line: report.line(Some(at..at)) };
                report.fault(&place, BARE_RETURN, "", BARE_RETURN_REMEDY);
                return Err(report.into_faults());
            }
            let line = report.line(error.span()).unwrap_or(1);
            let source = shown_line(text, line as usize - 1);
            let place = Place { path: "".into(), line: Some(line) };
            let reason = if message.is_empty() { String::new() } else { format!(": {message}") };
            report.fault(&place, format!("is not TOML{reason}"), source, "correct this line and check again");
            return Err(report.into_faults());
        }
    };

    let draft = Draft::read(document.as_table(), &mut report);
    let links = check::interfaces::check(&draft.interfaces, &mut report);
    let routes = check::routes::check(&draft, &mut report);
    let ipv6 = check::ipv6::check(&draft, &mut report);
    // Addresses that are unreachable because of an earlier fault are not reported again.
    let is_network_clean = report.is_clean();
    let reaches = check::reaches(&draft, &routes);
    let addresses = check::pools::check(&draft, &routes, &reaches, is_network_clean, &mut report);
    check::forwards::check(&draft, &addresses, &reaches, is_network_clean, &mut report);
    let folder = Path::new(report.file()).parent().unwrap_or(Path::new(""));
    let mut source =
        Source { folder: std::path::absolute(folder).unwrap_or_default(), text: text.to_owned(), ..Source::default() };
    let before = before.map(|config| Before {
        settings: &config.nat,
        source: Some(&config.source).filter(|before| before.folder == source.folder && before.text == text),
    });
    let rules = check::rules::check(&draft, &reaches, is_network_clean, folder, before, &mut source, &mut report);
    check::classes::check(&draft, &mut report);
    check::gateways(&draft, &mut report);
    let workers = check::machine::workers(&draft, machine, &mut report);
    check::log::one_path_for_both(&draft, &mut report);
    check::machine::event_log(&draft, machine, &mut report);
    check::machine::log_store(&draft, machine, &mut report);
    check::machine::own_files(&draft, machine, &mut report);
    check::machine::http_tls(&draft, machine, &mut report);
    check::sinks::check(&draft, machine, &mut report);
    let limits = check::machine::limits(&draft, addresses.iter().map(Vec::len).sum(), workers.count, &mut report);
    let (mut transition, host_pools) = check::transition::check(&draft, workers.count, &mut report);
    transition.stand_ins = rules.stand_ins;
    let ports = ports(&draft.interfaces, &links);
    let dpdk = check::machine::dpdk(&draft.singles.dpdk, &ports, workers.count, &mut report);
    let kernel = check::kernel::check(&draft, &links, &mut report);
    if !report.is_clean() {
        return Err(report.into_faults());
    }

    let singles = &draft.singles;
    let realm_names = check::interfaces::vrf_names(&draft.interfaces);
    let classes = draft.classes.iter().filter_map(|it| class(it, &draft.pools, &realm_names, &transition)).collect();
    let mut config = Config {
        nat: Settings {
            interfaces: draft.interfaces.iter().zip(&links.mtus).filter_map(|it| interface(it, &realm_names)).collect(),
            hairpin_between_realms: singles.hairpin_between_vrfs,
            routes: routes
                .iter()
                .map(|route| Route {
                    prefix: route.prefix,
                    next_hop: route.next_hop,
                    interface: InterfaceId(u16::try_from(route.interface).unwrap_or(u16::MAX)),
                })
                .collect(),
            live_routes: singles.routing_kernel,
            kernel_interfaces: (0..)
                .map(InterfaceId)
                .zip(&kernel)
                .filter_map(|(id, name)| name.is_some().then_some(id))
                .collect(),
            ipv6,
            transition,
            pools: pools_of(&draft, addresses, &realm_names, &host_pools),
            forwards: draft.forwards.iter().flat_map(|it| forwards(it, &realm_names)).collect(),
            balanced_forwards: draft.forwards.iter().flat_map(|it| balanced_forwards(it, &realm_names)).collect(),
            classes,
            realm_names,
            pass_rules: rules.pass_rules,
            rules: rules.rules,
            filters: rules.filters,
            filter_names: rules.filter_names,
            origins: rules.origins,
            redirections: rules.redirections,
            timeouts: singles.timeouts,
            limits,
            reload: singles.reload,
            icmp: check::machine::icmp(singles.icmp, workers.count),
            subscriber: singles.subscriber,
            port_timeouts: draft.port_timeouts.iter().filter_map(port_timeout).collect(),
            gateways: gateways(&draft),
            control_sessions_max: draft.control_sessions,
            inbound_refresh: singles.inbound_refresh,
            answer_unsolicited_syn: singles.answer_unsolicited_syn,
            port_control: singles.port_control.policy.clone(),
            events: EventSettings {
                // Each worker has its share.
                filter_events_per_second: singles.events.filter_events_per_second.div_ceil(workers.count.max(1) as u32),
                ..singles.events
            },
        },
        interfaces: links.links.iter().flatten().copied().collect(),
        kernel_tables: draft.interfaces.iter().map(|it| it.kernel_table.as_ref().map(|table| table.value)).collect(),
        kernel,
        ports,
        workers,
        totals: Totals {
            limits: singles.limits,
            hosts: singles.hosts_max,
            icmp_errors_per_second: singles.icmp.errors_per_second_max,
            filter_events_per_second: singles.events.filter_events_per_second,
        },
        dpdk,
        control: singles.control.clone(),
        http: singles.http.as_ref().map(|draft| draft.http.clone()),
        snmp: singles.snmp.clone(),
        log: singles.log,
        event_log: singles.event_log.clone(),
        log_sinks: draft.sinks.iter().filter_map(SinkDraft::sink).collect(),
        grants_file: singles.port_control.state.clone(),
        warnings: {
            let drained = check::pools::drained(&draft, &report).into_iter();
            let drained = drained.chain(check::routes::no_default(&draft, &routes, &report));
            let of_log = check::log::unreported(&draft, &report).into_iter();
            drained.chain(rules.warnings).chain(of_log).chain(check::log::short_retention(&draft, &report)).collect()
        },
        source,
    };
    let unheld = check::reserve::check(&config.nat, &draft.classes, &draft.singles.limits, &mut report);
    config.warnings.extend(unheld);
    config.warnings.extend(check::no_effect::check(&draft, &config.nat, &report));
    check_memory(&config, &draft, machine, &mut report);
    if report.is_clean() { Ok(config) } else { Err(report.into_faults()) }
}

/// A pool named for IPv6 hosts serves their numbers, too.
fn pools_of(
    draft: &Draft,
    addresses: Vec<Vec<std::net::Ipv4Addr>>,
    realm_names: &[String],
    host_pools: &[(usize, RealmId)],
) -> Vec<Pool> {
    let mut pools: Vec<Pool> = draft.pools.iter().zip(addresses).filter_map(|it| pool(it, realm_names)).collect();
    for (position, _) in host_pools {
        if let Some(pool) = pools.get_mut(*position)
            && !pool.subscribers.contains(&Transition::HOSTS)
        {
            pool.subscribers.push(Transition::HOSTS);
        }
    }
    pools
}

fn interface((draft, mtu): (&InterfaceDraft, &u16), realm_names: &[String]) -> Option<Interface> {
    Some(Interface {
        name: draft.name.as_ref()?.value.clone(),
        side: draft.side?,
        realm: match draft.facing()? {
            (Side::Inside, vrf) => realm_id(vrf, realm_names)?,
            (Side::Outside, _) => RealmId::default(),
        },
        addresses: draft.addresses.iter().map(|own| own.value).collect(),
        mtu: *mtu,
    })
}

/// The number of the realm with this name.
fn realm_id(vrf: &str, realm_names: &[String]) -> Option<RealmId> {
    let position = realm_names.iter().position(|name| name == vrf)?;
    u16::try_from(position).ok().map(RealmId)
}

/// One for each protocol.
fn forwards(draft: &ForwardDraft, realm_names: &[String]) -> Vec<Forward> {
    let written = || {
        let (ports, inside_ports) = (&draft.ports.as_ref()?.value, draft.inside_ports()?);
        Some(Forward {
            realm: realm_id(&draft.vrf.as_ref()?.value, realm_names)?,
            protocol: Protocol::Tcp,
            external: draft.external.as_ref()?.value,
            ports: (*ports.start(), *ports.end()),
            inside: draft.inside.as_ref()?.value,
            inside_port: *inside_ports.start(),
            admission: draft.admission,
        })
    };
    let of = |forward: Forward| draft.protocols.iter().map(move |protocol| Forward { protocol: *protocol, ..forward });
    written().into_iter().flat_map(of).collect()
}

/// The same of one that leads to several.
fn balanced_forwards(draft: &ForwardDraft, realm_names: &[String]) -> Vec<BalancedForward> {
    let of = |protocol: &Protocol| {
        let ports = &draft.ports.as_ref()?.value;
        Some(BalancedForward {
            realm: realm_id(&draft.vrf.as_ref()?.value, realm_names)?,
            protocol: *protocol,
            external: draft.external.as_ref()?.value,
            ports: (*ports.start(), *ports.end()),
            targets: draft.targets.as_ref()?.iter().map(|target| target.value).collect(),
            admission: draft.admission,
            is_sticky: draft.is_sticky,
        })
    };
    draft.protocols.iter().filter_map(of).collect()
}

fn pool((draft, addresses): (&PoolDraft, Vec<std::net::Ipv4Addr>), realm_names: &[String]) -> Option<Pool> {
    let ports = &draft.ports.as_ref()?.value;
    let reserved = draft.reserved_ports.iter().flat_map(|range| range.value.clone());
    let mut reserved_ports: Vec<u16> = reserved.filter(|port| ports.contains(port)).collect();
    reserved_ports.sort_unstable();
    reserved_ports.dedup();
    Some(Pool {
        name: draft.name.as_ref()?.value.clone(),
        draining: draft.draining,
        draining_addresses: addresses
            .iter()
            .copied()
            .filter(|address| draft.drain.iter().any(|range| range.value.contains(&address.to_bits())))
            .collect(),
        addresses,
        port_min: *ports.start(),
        port_max: *ports.end(),
        reserved_ports,
        subscribers: draft.subscribers.iter().map(|prefix| prefix.value).collect(),
        realms: draft.vrfs.iter().filter_map(|vrf| realm_id(&vrf.value, realm_names)).collect(),
        pooling: draft.pooling,
        allocation: draft.allocation.value?,
        algorithm: draft.allocation.algorithm,
        selection: draft.allocation.selection,
        filtering: draft.filtering,
        parity: draft.parity,
        threshold: draft.threshold,
        one_to_one: draft.one_to_one.is_some(),
        reuse_delay: draft.reuse_delay,
        reuse_at_once: draft.reuse_at_once,
        shared_ports_min: draft.shared_ports,
    })
}

/// Those that are enabled, or that a class has.
fn gateways(draft: &Draft) -> Vec<Gateway> {
    let has = |class: &ClassDraft, alg| class.gateways.as_ref().is_some_and(|own| own.contains(&alg));
    let all = draft.gateways.iter().map(|draft| &draft.gateway);
    all.filter(|gateway| gateway.serves_everyone || draft.classes.iter().any(|class| has(class, gateway.alg)))
        .cloned()
        .collect()
}

fn class(draft: &ClassDraft, pools: &[PoolDraft], realm_names: &[String], transition: &Transition) -> Option<Class> {
    let penalty = draft.penalty.as_ref().and_then(|penalty| {
        let position = pools.iter().position(|pool| pool.label() == penalty.pool.value)?;
        Some(Penalty {
            pool: PoolId(u16::try_from(position).ok()?),
            refusals: penalty.refusals,
            window: penalty.window,
            release: penalty.release,
        })
    });
    Some(Class {
        name: draft.name.as_ref()?.value.clone(),
        subscribers: draft
            .subscribers
            .iter()
            .map(|prefix| prefix.value)
            .chain(draft.subscribers6.iter().filter_map(|prefix| transition.block_of(prefix.value)))
            .collect(),
        realms: draft.vrfs.iter().filter_map(|vrf| realm_id(&vrf.value, realm_names)).collect(),
        limits: SubscriberLimits { penalty, ..draft.limits },
        gateways: draft.gateways.clone(),
    })
}

fn port_timeout(draft: &PortTimeoutDraft) -> Option<PortTimeout> {
    Some(PortTimeout {
        protocol: draft.protocol,
        ports: draft.ports.as_ref()?.value.clone(),
        idle: draft.idle.as_ref()?.value,
    })
}

fn ports(interfaces: &[InterfaceDraft], links: &Links) -> Vec<Port> {
    let port = |index: &usize| {
        let interface = interfaces.get(*index)?;
        let Attachment::Port { driver, rx_descriptors, tx_descriptors } = &interface.attachment else { return None };
        Some(Port {
            name: interface.label().to_owned(),
            driver: driver.value.text.clone(),
            kind: driver.value.kind,
            mtu: links.mtus.get(*index).copied()?,
            rx_descriptors: *rx_descriptors,
            tx_descriptors: *tx_descriptors,
        })
    };
    links.ports.iter().filter_map(port).collect()
}

fn check_memory(config: &Config, draft: &Draft, machine: &Machine, report: &mut Report) {
    let Some(stock) = machine.memory else { return };
    let Err(not_enough) = config.memory_plan(&stock) else { return };
    let needed = config.memory_needed();
    let problem = format!(
        "needs {} of memory in all (tables {}, pools {}, rules {}, packets {})",
        rounded_size(not_enough.needed_bytes),
        rounded_size(needed.tables_bytes),
        rounded_size(needed.pools_bytes),
        rounded_size(needed.rules_bytes),
        rounded_size(needed.packets_bytes),
    );
    let seen = format!("{} MiB available", not_enough.available_bytes >> 20);
    let rest = not_enough.needed_bytes.saturating_sub(needed.packets_bytes);
    match &draft.singles.dpdk.memory {
        // The buffers take most of it.
        Some(memory) if needed.packets_bytes > rest => {
            report.fault(&memory.place, problem, seen, "lower dpdk.memory, or add memory");
        }
        _ => {
            let remedy = "lower [tables], use fewer pool addresses, or add memory";
            report.fault(&Place::default(), problem, seen, remedy);
        }
    }
}
