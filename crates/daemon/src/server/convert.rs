//! Converts the engine's types to those of the control protocol.

use core::net::SocketAddrV4;

use control::AnyPrefix;
use control::Candidate;
use control::Direction;
use control::Expectation;
use control::Fault;
use control::Filter;
use control::Grant;
use control::Host;
use control::Mapping;
use control::PerProtocol;
use control::Refused;
use control::Session;
use control::Subscriber;
use lookup::convert::engine_protocol;
use lookup::convert::per_protocol;
use lookup::convert::pool_name;
use lookup::convert::protocol;
use lookup::convert::realm_named;
use lookup::convert::subscriber_ports;
use lookup::convert::vrf_name;
use nat::Settings;
use nat::Shared;
use nat::Verdict;
use nat::redirection::Redirection;
use nat::rules::Match;
use nat::rules::PortRange;
use nat::settings::MappingKind;
use nat::settings::RuleAction;
use nat::static_mapping::Static;
use nat::tcp::TcpState;
use nat::types::Endpoint;
use nat::types::InsideHost;
use nat::types::PoolId;
use nat::types::Prefix;
use nat::types::Side;
use nat::verdict::VerdictKind;
use nat::view;
use nat::view::ExpectationView;
use nat::view::GrantView;
use nat::view::HostView;
use nat::view::MappingView;
use nat::view::SessionView;
use nat::view::SubscriberView;

pub(crate) fn side(side: Side) -> control::Side {
    match side {
        Side::Inside => control::Side::Inside,
        Side::Outside => control::Side::Outside,
    }
}

pub(crate) fn verdict_kind(kind: VerdictKind) -> control::VerdictKind {
    match kind {
        VerdictKind::Forwarded => control::VerdictKind::Forwarded,
        VerdictKind::Local => control::VerdictKind::Local,
        VerdictKind::Dropped => control::VerdictKind::Dropped,
    }
}

pub(crate) fn prefix(prefix: Prefix) -> control::Prefix {
    // The length is at most 32 on both sides.
    control::Prefix::new(prefix.address(), prefix.length()).unwrap_or(control::Prefix::host(prefix.address()))
}

pub(crate) fn engine_prefix(prefix: control::Prefix) -> Prefix {
    Prefix::new(prefix.address(), prefix.length()).unwrap_or(Prefix::host(prefix.address()))
}

pub(crate) fn socket(endpoint: Endpoint) -> SocketAddrV4 {
    SocketAddrV4::new(endpoint.address, endpoint.port)
}

/// The conditions of a filter that the engine checks itself; [`Filter::matches`] checks the rest.
pub(crate) fn engine_filter(shared: &Shared, filter: &Filter) -> Result<view::Filter, Fault> {
    let pool = match &filter.pool {
        None => None,
        Some(name) => Some(pool_id(shared, name)?),
    };
    let realm = match &filter.vrf {
        None => None,
        Some(name) => Some(realm_named(shared.settings(), name)?),
    };
    Ok(view::Filter {
        protocol: filter.protocol.map(engine_protocol),
        internal: filter.internal.map(engine_prefix),
        internal_port: filter.internal_port,
        external: filter.external.map(engine_prefix),
        external_port: filter.external_port,
        remote: filter.remote.map(engine_prefix),
        remote_port: filter.remote_port,
        pool,
        realm,
        state: None,
    })
}

/// The pool with this name.
pub(crate) fn pool_id(shared: &Shared, name: &str) -> Result<PoolId, Fault> {
    let id = shared.pools().find(|(_, pool)| pool.name == name).map(|(id, _)| id);
    id.ok_or_else(|| {
        let known: Vec<&str> = shared.pools().map(|(_, pool)| pool.name.as_str()).collect();
        Fault::new(format!("pool \"{name}\""), "does not exist", format!("use one of: {}", known.join(", ")))
    })
}

pub(crate) fn host(view: &HostView) -> Host {
    Host { address: view.address, prefix_length: view.prefix_length, inner: view.inner }
}

pub(crate) fn mapping(shared: &Shared, view: &MappingView) -> Mapping {
    Mapping {
        protocol: protocol(view.protocol),
        realm: view.realm.0,
        vrf: vrf_name(shared.settings(), view.realm),
        internal: socket(view.internal),
        host: view.host.as_ref().map(host),
        external: socket(view.external),
        pool: pool_name(shared, view.pool),
        worker: view.worker.0,
        age_us: Some(view.age.as_micros()),
        idle_us: view.idle.as_micros(),
        expires_in_us: view.expires_in.as_micros(),
        sessions: u64::from(view.sessions),
        origin: view.origin.map(|origin| origin.name().to_owned()),
    }
}

pub(crate) fn grant(shared: &Shared, view: &GrantView) -> Grant {
    let remote = |remote: &nat::grant::Remote| {
        let (address, length) = remote.prefix();
        let port = if remote.port() == 0 { String::new() } else { format!(":{}", remote.port()) };
        if length == 32 { format!("{address}{port}") } else { format!("{address}/{length}{port}") }
    };
    Grant {
        protocol: protocol(view.protocol),
        realm: view.realm.0,
        vrf: vrf_name(shared.settings(), view.realm),
        internal: socket(view.internal),
        host: view.host.as_ref().map(host),
        external: socket(view.external),
        pool: pool_name(shared, view.pool),
        worker: view.worker.0,
        origin: view.origin.name().to_owned(),
        kind: view.kind.name().to_owned(),
        remotes: view.remotes.as_slice().iter().map(remote).collect(),
        client: socket(view.client),
        age_us: view.age.as_micros(),
        expires_in_us: view.expires_in.as_micros(),
        held_down: view.is_held_down,
    }
}

pub(crate) fn expectation(shared: &Shared, view: &ExpectationView) -> Expectation {
    let ExpectationView(view) = view;
    let Grant { protocol, realm, vrf, internal, external, pool, worker, origin, kind, remotes, age_us, .. } =
        grant(shared, view);
    Expectation {
        protocol,
        realm,
        vrf,
        internal,
        external,
        pool,
        worker,
        alg: origin,
        kind,
        remotes,
        used: view.is_used,
        age_us,
        expires_in_us: (!view.is_used || view.kind == nat::grant::Kind::Map).then(|| view.expires_in.as_micros()),
    }
}

/// The state of sessions that are not TCP connections.
const ACTIVE: &str = "active";

/// All states of a session.
pub(crate) fn session_states() -> impl Iterator<Item = &'static str> {
    [ACTIVE].into_iter().chain(TcpState::ALL.map(TcpState::name))
}

pub(crate) fn session(shared: &Shared, view: &SessionView) -> Session {
    let address = shared.address_index(view.external.address);
    let pool = address.map(|address| shared.pool_of(address)).unwrap_or_default();
    Session {
        protocol: protocol(view.protocol),
        realm: view.realm.0,
        vrf: vrf_name(shared.settings(), view.realm),
        internal: socket(view.internal),
        host: view.host.as_ref().map(host),
        external: socket(view.external),
        remote: socket(view.remote),
        target: view.target.map(socket),
        shared: view.shared,
        direction: Some(match view.opened_from {
            Side::Inside => Direction::Outbound,
            Side::Outside => Direction::Inbound,
        }),
        state: view.state.map_or(ACTIVE, TcpState::name).to_owned(),
        pool: pool_name(shared, pool),
        worker: view.worker.0,
        age_us: Some(view.age.as_micros()),
        idle_us: view.idle.as_micros(),
        expires_in_us: view.expires_in.as_micros(),
    }
}

/// The name of a class by its number; None for class 0, the default.
pub(crate) fn class_name(settings: &Settings, class: u16) -> Option<String> {
    let position = usize::from(class).checked_sub(1)?;
    settings.classes.get(position).map(|class| class.name.clone())
}

/// The limit of mappings of a class, if each transport has one.
fn ports_max(settings: &Settings, class: u16) -> Option<PerProtocol> {
    let class = usize::from(class).checked_sub(1).and_then(|position| settings.classes.get(position));
    let most = class.map_or(&settings.subscriber, |class| &class.limits).ports_max;
    most.iter().all(|most| *most != u32::MAX).then(|| per_protocol(most.map(u64::from)))
}

fn refused(counts: &[u32; SubscriberView::CAUSES.len()]) -> Refused {
    let of = |verdict: Verdict| {
        let position = SubscriberView::CAUSES.iter().position(|cause| *cause == verdict);
        position.map_or(0, |position| u64::from(counts[position]))
    };
    Refused {
        port_quota: of(Verdict::SubscriberPortQuota),
        session_quota: of(Verdict::SubscriberSessionQuota),
        memory_quota: of(Verdict::SubscriberMemoryQuota),
        rate_limit: of(Verdict::SubscriberRateLimit),
        block_limit: of(Verdict::BlockLimit),
        ports_exhausted: of(Verdict::PortsExhausted),
        address_draining: of(Verdict::AddressDraining),
        session_limit: of(Verdict::SessionLimit),
        mapping_table_full: of(Verdict::MappingTableFull),
        session_table_full: of(Verdict::SessionTableFull),
        flow_table_full: of(Verdict::FlowTableFull),
        subscriber_table_full: of(Verdict::SubscriberTableFull),
        log_full: of(Verdict::LogFull),
    }
}

pub(crate) fn subscriber(shared: &Shared, view: &SubscriberView) -> Subscriber {
    let own = shared.subscriber_ports(view.own_pool, view.realm, view.address, view.external_address);
    Subscriber {
        address: Some(view.address).filter(|address| !address.is_unspecified()),
        host: view.host.as_ref().map(host),
        realm: view.realm.0,
        vrf: vrf_name(shared.settings(), view.realm),
        pool: pool_name(shared, view.pool),
        external_address: view.external_address,
        other_pool: view.pool_elsewhere.map(|pool| pool_name(shared, pool)),
        other_external_address: view.elsewhere,
        worker: view.worker.0,
        mappings: per_protocol(view.mappings.map(u64::from)),
        shared_ports: per_protocol(view.shared_ports.map(u64::from)),
        subscriber_ports: own.iter().map(subscriber_ports).collect(),
        sessions: Some(u64::from(view.sessions)),
        class: class_name(shared.settings(), view.class),
        memory_bytes: view.memory_bytes,
        mappings_created: view.mappings_created,
        addresses_paired: view.addresses_paired.into(),
        refused: refused(&view.refused),
        guaranteed: per_protocol(view.guarantee.ports.map(u64::from)),
        guarantee_missing: per_protocol(view.guarantee.missing.map(u64::from)),
        ports_max: ports_max(shared.settings(), view.class),
        offender: view.is_offender,
        refused_only: view.is_refused_only,
    }
}

/// The fields for a filter.
pub(crate) fn mapping_candidate(mapping: &Mapping) -> Candidate<'_> {
    Candidate {
        protocol: Some(mapping.protocol),
        internal: Some(*mapping.internal.ip()),
        host: Some(mapping.host.map(|host| host.address)),
        internal_port: Some(mapping.internal.port()),
        external: Some(*mapping.external.ip()),
        external_port: Some(mapping.external.port()),
        remote: None,
        state: None,
        pool: Some(&mapping.pool),
        vrf: Some(&mapping.vrf),
        worker: Some(mapping.worker),
        alg: None,
    }
}

/// The fields for a filter.
pub(crate) fn grant_candidate(grant: &Grant) -> Candidate<'_> {
    Candidate {
        host: Some(grant.host.map(|host| host.address)),
        protocol: Some(grant.protocol),
        internal: Some(*grant.internal.ip()),
        internal_port: Some(grant.internal.port()),
        external: Some(*grant.external.ip()),
        external_port: Some(grant.external.port()),
        remote: None,
        state: None,
        pool: Some(&grant.pool),
        vrf: Some(&grant.vrf),
        worker: Some(grant.worker),
        alg: None,
    }
}

/// The fields for a filter.
pub(crate) fn expectation_candidate(expectation: &Expectation) -> Candidate<'_> {
    Candidate {
        host: Some(None),
        protocol: Some(expectation.protocol),
        internal: Some(*expectation.internal.ip()),
        internal_port: Some(expectation.internal.port()),
        external: Some(*expectation.external.ip()),
        external_port: Some(expectation.external.port()),
        remote: None,
        state: None,
        pool: Some(&expectation.pool),
        vrf: Some(&expectation.vrf),
        worker: Some(expectation.worker),
        alg: Some(&expectation.alg),
    }
}

/// The fields for a filter.
pub(crate) fn session_candidate(session: &Session) -> Candidate<'_> {
    Candidate {
        protocol: Some(session.protocol),
        internal: Some(*session.internal.ip()),
        host: Some(session.host.map(|host| host.address)),
        internal_port: Some(session.internal.port()),
        external: Some(*session.external.ip()),
        external_port: Some(session.external.port()),
        remote: Some(session.remote),
        state: Some(&session.state),
        pool: Some(&session.pool),
        vrf: Some(&session.vrf),
        worker: Some(session.worker),
        alg: None,
    }
}

/// The fields for a filter.
pub(crate) fn subscriber_candidate(subscriber: &Subscriber) -> Candidate<'_> {
    Candidate {
        host: Some(subscriber.host.map(|host| host.address)),
        internal: subscriber.address,
        external: subscriber.external_address,
        pool: Some(&subscriber.pool),
        vrf: Some(&subscriber.vrf),
        worker: Some(subscriber.worker),
        ..Candidate::default()
    }
}

/// The action of a rule: its name, the pool and the kind of mapping.
pub(crate) fn rule_action(shared: &Shared, action: RuleAction) -> (&'static str, Option<String>, Option<String>) {
    match action {
        RuleAction::Translate { pool, mapping } => {
            let mapping = match mapping {
                MappingKind::EndpointIndependent => "endpoint-independent",
                MappingKind::EndpointDependent => "endpoint-dependent",
            };
            ("translate", pool.map(|pool| pool_name(shared, pool)), Some(mapping.to_owned()))
        }
        RuleAction::NoTranslation => ("no-translation", None, None),
        RuleAction::Redirect(_) => ("redirect", None, None),
        RuleAction::Drop => ("drop", None, None),
    }
}

/// Inside hosts: what stands for an IPv6 prefix is shown as that.
fn inside(source: Prefix, settings: &Settings) -> AnyPrefix {
    let written = settings.transition.prefix6_of(source);
    let ipv6 = written.and_then(|written| control::Prefix6::new(written.address().into(), written.length()));
    ipv6.map_or_else(|| AnyPrefix::V4(prefix(source)), AnyPrefix::V6)
}

/// The conditions of a rule or filter.
pub(crate) fn rule(kind: &str, index: usize, action: &str, matches: &Match, settings: &Settings) -> control::Rule {
    let ports = |range: PortRange| (range != PortRange::ALL).then(|| range.to_string());
    control::Rule {
        index: index as u32,
        place: index.to_string(),
        kind: kind.to_owned(),
        action: action.to_owned(),
        direction: None,
        pool: None,
        mapping: None,
        vrf: matches.realm.map(|realm| vrf_name(settings, realm)),
        ip_protocol: matches.protocol,
        inside: inside(matches.source, settings),
        inside_ports: ports(matches.source_ports),
        outside: prefix(matches.destination),
        outside_ports: ports(matches.destination_ports),
        b4: None,
        targets: Vec::new(),
        target_hits: Vec::new(),
        external: None,
        hits: None,
    }
}

/// A static forward or a one-to-one pool. `index` counts both.
pub(crate) fn paired(index: usize, paired: Static<'_>, settings: &Settings) -> control::Rule {
    match paired {
        Static::Forward(forward) => {
            let (first, last) = forward.ports;
            let inside = PortRange { first: forward.inside_port, last: forward.inside_port + (last - first) };
            let matches = Match {
                realm: Some(forward.realm),
                protocol: Some(forward.protocol.number()),
                source_ports: inside,
                ..Match::ALL
            };
            let external = format!("{}:{}", forward.external, PortRange { first, last });
            let (inside, b4) = match forward.inside {
                InsideHost::Ipv4(address) => (AnyPrefix::V4(prefix(Prefix::host(address))), None),
                InsideHost::Ipv6(address) => (AnyPrefix::V6(control::Prefix6::host(address)), None),
                InsideHost::BehindB4 { b4, inner } => (AnyPrefix::V4(prefix(Prefix::host(inner))), Some(b4)),
            };
            let rule = rule("forward", index, "forward", &matches, settings);
            control::Rule { inside, b4, external: Some(external), ..rule }
        }
        Static::OneToOne(pool) => {
            let source = pool.subscribers.first().copied().unwrap_or(Prefix::ALL);
            let matches = Match { realm: Some(pool.realm()), source, ..Match::ALL };
            let external = match pool.addresses.as_slice() {
                [first, .., last] => format!("{first}-{last}"),
                addresses => addresses.first().map(ToString::to_string).unwrap_or_default(),
            };
            control::Rule {
                external: Some(external),
                pool: Some(pool.name.clone()),
                ..rule("one-to-one", index - settings.forwards.len(), "pair", &matches, settings)
            }
        }
    }
}

/// A forward to several inside endpoints, by position, and the sessions opened to each.
pub(crate) fn balanced(position: usize, hits: Vec<u64>, settings: &Settings) -> Option<control::Rule> {
    let forward = settings.balanced_forwards.get(position)?;
    let (first, last) = forward.ports;
    let matches = Match { realm: Some(forward.realm), protocol: Some(forward.protocol.number()), ..Match::ALL };
    Some(control::Rule {
        external: Some(format!("{}:{}", forward.external, PortRange { first, last })),
        targets: forward.targets.iter().map(ToString::to_string).collect(),
        hits: Some(hits.iter().sum()),
        target_hits: hits,
        ..rule("forward", settings.forwards.len() + position, "forward", &matches, settings)
    })
}

/// The targets of a redirecting rule; empty for other rules.
pub(crate) fn targets(settings: &Settings, action: RuleAction) -> Vec<String> {
    let RuleAction::Redirect(id) = action else { return Vec::new() };
    match settings.redirections.get(id.0 as usize) {
        Some(Redirection::Prefix(prefix)) => vec![prefix.to_string()],
        Some(Redirection::Targets(targets)) => targets.iter().map(ToString::to_string).collect(),
        None => Vec::new(),
    }
}
