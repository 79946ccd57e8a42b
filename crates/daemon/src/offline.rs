//! Answers to `find` from a configuration alone: whose a port of a deterministic pool is (RFC 7422), or of a static mapping.

use core::net::Ipv4Addr;

use control::FindAnswer;
use control::OwnPorts;
use control::Place;
use nat::Protocol;
use nat::Settings;
use nat::StaticMappings;
use nat::deterministic::Formula;
use nat::deterministic::FormulaError;
use nat::deterministic::Owner;
use nat::deterministic::Slice;
use nat::redirection::Target;
use nat::settings::Allocation;
use nat::settings::Pool;
use nat::types::Endpoint;
use nat::types::RealmId;
use nat::view::BalancedView;
use nat::view::StaticView;

/// Why a configuration alone has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Ports of the pool are given out as they are asked for.
    #[error(
        "find \"{queried}\": pool \"{pool}\" gives its ports out by no formula (allocation = \"{allocation}\"); ask the running \
         instance, without --config"
    )]
    NotDeterministic {
        /// What was asked.
        queried: String,
        /// The pool of that address.
        pool: String,
        /// How it gives ports out.
        allocation: &'static str,
    },
    /// The configuration knows no VRF of this name.
    #[error("find --vrf \"{vrf}\": is none of this configuration; name one of: {known}")]
    UnknownVrf {
        /// What was asked.
        vrf: String,
        /// Those it knows.
        known: String,
    },
    /// The formula does not work out; a configuration that was checked has none such.
    #[error("pool \"{pool}\": {source}")]
    Formula {
        /// The pool.
        pool: String,
        /// What does not.
        source: FormulaError,
    },
}

/// What is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// External or inside address.
    pub address: Ipv4Addr,
    /// Its port, or query identifier; None: all of them.
    pub port: Option<u16>,
    /// Of ports only those of this transport.
    pub protocol: Option<Protocol>,
    /// Only inside addresses of this VRF, and of an external one only holders in it.
    pub vrf: Option<&'a str>,
}

impl Asked<'_> {
    fn queried(&self) -> String {
        queried(self.address, self.port)
    }

    fn protocols(&self) -> impl Iterator<Item = Protocol> + use<> {
        let wanted = self.protocol;
        Protocol::ALL.into_iter().filter(move |protocol| wanted.is_none_or(|wanted| wanted == *protocol))
    }

    /// The VRFs that are meant.
    fn realms(&self, settings: &Settings) -> Result<Vec<RealmId>, OfflineError> {
        let all = (0..settings.realm_names.len().max(1)).map(|realm| RealmId(realm as u16));
        let Some(vrf) = self.vrf else { return Ok(all.collect()) };
        let known = settings.realm_names.iter().position(|name| name == vrf);
        let realm = known
            .ok_or_else(|| OfflineError::UnknownVrf { vrf: vrf.to_owned(), known: settings.realm_names.join(", ") })?;
        Ok(vec![RealmId(realm as u16)])
    }
}

/// Whose an external port is, or what an inside address has, as far as the configuration alone tells: static mappings, and pools
/// with a formula. Without a port all that is known of an address.
///
/// # Errors
/// When the configuration alone does not tell.
pub fn find(settings: &Settings, asked: &Asked<'_>) -> Result<Vec<FindAnswer>, OfflineError> {
    let mut found = of_all(settings, asked)?;
    if let Some(vrf) = asked.vrf {
        found.retain(|answer| answer.vrf.as_ref().is_none_or(|held| held == vrf));
        if found.is_empty() {
            let queried = asked.queried();
            let detail = format!("nobody of VRF \"{vrf}\" holds {queried} by this configuration");
            found.push(FindAnswer { detail, ..nobody(Place::External, &queried) });
        }
    }
    Ok(found)
}

/// Of an external address whichever VRF its holder is in.
fn of_all(settings: &Settings, asked: &Asked<'_>) -> Result<Vec<FindAnswer>, OfflineError> {
    let queried = asked.queried();
    let realms = asked.realms(settings)?;
    let fixed = statics(settings, asked, &realms, &queried);
    if !fixed.is_empty() {
        return Ok(fixed);
    }
    if asked.port.is_some() {
        return by_address(settings, asked, &realms, &queried);
    }
    // Beside what is his, or theirs, by a formula.
    let from = forwards_from(settings, asked.address, asked.protocol, &queried);
    if !from.is_empty() {
        let others = by_address(settings, asked, &realms, &queried);
        let others =
            others.unwrap_or_else(|untold| vec![only_instance_knows(settings, asked.address, &untold, &queried)]);
        return Ok(from.into_iter().chain(others).collect());
    }
    let mut forwards = forwards_to(settings, asked.address, &queried);
    forwards.retain(|answer| answer.realm.is_some_and(|realm| realms.contains(&RealmId(realm))));
    if !forwards.is_empty() {
        let others = by_address(settings, asked, &realms, &queried).unwrap_or_default();
        let named = others.into_iter().filter(|answer| answer.place != Place::Nowhere);
        return Ok(forwards.into_iter().chain(named).collect());
    }
    by_address(settings, asked, &realms, &queried)
}

/// What a configuration does not tell of an external address that it tells the forwards of.
fn only_instance_knows(settings: &Settings, external: Ipv4Addr, untold: &OfflineError, queried: &str) -> FindAnswer {
    let pool = settings.pools.iter().find(|pool| pool.addresses.contains(&external)).map(|pool| pool.name.clone());
    let detail = match (untold, &pool) {
        (OfflineError::NotDeterministic { .. }, Some(pool)) => format!(
            "who uses other ports of {external} only the running instance knows: pool \"{pool}\" gives them out by no formula"
        ),
        (error, _) => error.to_string(),
    };
    FindAnswer { external_address: Some(external), pool, detail, ..nobody(Place::External, queried) }
}

/// The forwards to an inside address, with all their ports.
pub(crate) fn forwards_to(settings: &Settings, inside: Ipv4Addr, queried: &str) -> Vec<FindAnswer> {
    let one = settings.forwards.iter().filter(|forward| forward.inside == inside).map(|forward| {
        let (first, last) = forward.ports;
        let own = (forward.inside_port, forward.inside_port.saturating_add(last - first));
        let to = format!("{inside}:{}", ports_text(own));
        let from = format!("{}:{}", forward.external, ports_text(forward.ports));
        let answer = of_forward(settings, (forward.realm, forward.external), queried);
        FindAnswer { detail: format!("{} {from} is forwarded to {to} for ever", forward.protocol), ..answer }
    });
    let is_target = |target: &&Target| target.address == inside.to_bits();
    let several = settings.balanced_forwards.iter().flat_map(|forward| {
        forward.targets.iter().filter(is_target).map(move |target| {
            let (first, last) = forward.ports;
            let own = target.port.unwrap_or(first);
            let to = format!("{inside}:{}", ports_text((own, own.saturating_add(last - first))));
            let from = format!("{}:{}", forward.external, ports_text(forward.ports));
            let (count, weight) = (forward.targets.len(), target.weight);
            let detail = format!(
                "{} {from} leads to one of {count} targets, of which {to} is one of weight {weight}",
                forward.protocol
            );
            FindAnswer { detail, ..of_forward(settings, (forward.realm, forward.external), queried) }
        })
    });
    one.chain(several).map(|answer| FindAnswer { holder: Some(inside), ..answer }).collect()
}

/// The forwards from an external address, with all their ports, of one transport or all.
pub(crate) fn forwards_from(
    settings: &Settings,
    external: Ipv4Addr,
    protocol: Option<Protocol>,
    queried: &str,
) -> Vec<FindAnswer> {
    let is_asked = |from: Ipv4Addr, of: Protocol| from == external && protocol.is_none_or(|wanted| wanted == of);
    let range = |first: u16, (low, high): (u16, u16)| ports_text((first, first.saturating_add(high - low)));
    let one = settings.forwards.iter().filter(|forward| is_asked(forward.external, forward.protocol)).map(|forward| {
        let to = format!("{}:{}", forward.inside, range(forward.inside_port, forward.ports));
        let from = format!("{external}:{}", ports_text(forward.ports));
        FindAnswer {
            place: Place::External,
            holder: Some(forward.inside),
            detail: format!("{} {from} is forwarded to {to} for ever", forward.protocol),
            ..of_forward(settings, (forward.realm, external), queried)
        }
    });
    let several = settings.balanced_forwards.iter().filter(|forward| is_asked(forward.external, forward.protocol));
    let several = several.map(|forward| {
        let target = |target: &Target| {
            let first = target.port.unwrap_or(forward.ports.0);
            let address = Ipv4Addr::from_bits(target.address);
            format!("{address}:{} weight {}", range(first, forward.ports), target.weight)
        };
        let targets: Vec<String> = forward.targets.iter().map(target).collect();
        let from = format!("{external}:{}", ports_text(forward.ports));
        FindAnswer {
            place: Place::External,
            detail: format!("{} {from} leads to one of {}", forward.protocol, targets.join(", ")),
            ..of_forward(settings, (forward.realm, external), queried)
        }
    });
    one.chain(several).collect()
}

/// `80`, or `80-90`.
fn ports_text((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn of_forward(settings: &Settings, (realm, external): (RealmId, Ipv4Addr), queried: &str) -> FindAnswer {
    let pool = settings.pools.iter().find(|pool| pool.addresses.contains(&external));
    FindAnswer {
        realm: Some(realm.0),
        vrf: settings.realm_names.get(realm.index()).cloned(),
        external_address: Some(external),
        pool: pool.map(|pool| pool.name.clone()),
        ..nobody(Place::Internal, queried)
    }
}

/// What pools with a formula have for an address.
fn by_address(
    settings: &Settings,
    asked: &Asked<'_>,
    realms: &[RealmId],
    queried: &str,
) -> Result<Vec<FindAnswer>, OfflineError> {
    let (address, port) = (asked.address, asked.port);
    for pool in &settings.pools {
        if let Some(position) = pool.addresses.iter().position(|own| *own == address) {
            if let Some(port) = port.filter(|port| never_gives_out(pool, asked.protocol, *port)) {
                return Ok(vec![outside_of(pool, port, queried)]);
            }
            let formula = formula_of(pool, queried)?;
            return Ok(external(settings, pool, &formula, position as u32, port, queried));
        }
    }
    let mut answers = Vec::new();
    let mut untold = None;
    for realm in realms.iter().copied() {
        let Some(pool) = pool_for(settings, realm, address) else { continue };
        let formula = match formula_of(pool, queried) {
            Ok(formula) => formula,
            // In another VRF there may be a formula.
            Err(error) => {
                untold = untold.or(Some(error));
                continue;
            }
        };
        answers.push(match formula.slice_of(address.to_bits()) {
            Some(slice) => of_slice(settings, pool, slice, address, Place::Internal, queried),
            None => FindAnswer {
                pool: Some(pool.name.clone()),
                detail: format!("{address} is the network or broadcast address of its prefix, and no subscriber"),
                ..nobody(Place::Nowhere, queried)
            },
        });
    }
    match untold {
        Some(error) if answers.is_empty() => return Err(error),
        _ => {}
    }
    if answers.is_empty() {
        let of_vrf = asked.vrf.map(|vrf| format!(" of VRF \"{vrf}\"")).unwrap_or_default();
        let detail = format!("{address} is no pool's external address and no subscriber's{of_vrf}");
        answers.push(FindAnswer { detail, ..nobody(Place::Nowhere, queried) });
    }
    Ok(answers)
}

/// Whether a port can not come from a pool without a formula, whoever asks. Query identifiers are other numbers.
fn never_gives_out(pool: &Pool, protocol: Option<Protocol>, port: u16) -> bool {
    let has_ports = protocol.is_some_and(|protocol| protocol != Protocol::Icmp);
    has_ports && !pool.one_to_one && !(pool.port_min..=pool.port_max).contains(&port)
}

fn outside_of(pool: &Pool, port: u16, queried: &str) -> FindAnswer {
    let detail = format!("pool \"{}\" never gives out port {port}", pool.name);
    FindAnswer { pool: Some(pool.name.clone()), detail, ..nobody(Place::External, queried) }
}

/// All who have ports of an external address by the formula of its pool; nobody where there is none.
pub(crate) fn by_formula(settings: &Settings, address: Ipv4Addr) -> Option<Vec<FindAnswer>> {
    let mut pools = settings.pools.iter();
    let (pool, position) =
        pools.find_map(|pool| Some((pool, pool.addresses.iter().position(|own| *own == address)?)))?;
    let formula = Formula::of(pool).ok()??;
    Some(external(settings, pool, &formula, position as u32, None, &address.to_string()))
}

/// Forwards and one-to-one addresses.
fn statics(settings: &Settings, asked: &Asked<'_>, realms: &[RealmId], queried: &str) -> Vec<FindAnswer> {
    let (address, port) = (asked.address, asked.port);
    let mappings = StaticMappings::of(settings);
    let endpoint = Endpoint::new(address, port.unwrap_or(0));
    let mut answers: Vec<FindAnswer> = Vec::new();
    // Of a whole address the transport says nothing.
    for protocol in asked.protocols() {
        if port.is_some() {
            let all = settings.balanced_forwards.iter().filter(|forward| forward.protocol == protocol);
            for forward in all {
                let (first, last) = forward.ports;
                if forward.external == address && (first..=last).contains(&endpoint.port) {
                    answers.push(of_several(settings, Place::External, &forward.view(endpoint.port), None, queried));
                }
                let external = forward.external_of(forward.realm, endpoint);
                if let Some(external) = external.filter(|_| realms.contains(&forward.realm)) {
                    let view = forward.view(external.port);
                    answers.push(of_several(settings, Place::Internal, &view, Some(address), queried));
                }
            }
        }
        let outside = mappings.of_external(endpoint, protocol).map(|found| (Place::External, found));
        let inside = realms.iter();
        let inside =
            inside.filter_map(|realm| Some((Place::Internal, mappings.of_internal(*realm, endpoint, protocol)?)));
        for (place, found) in outside.into_iter().chain(inside) {
            // One-to-one is for all transports and ports.
            if found.one_to_one && answers.iter().any(|answer| answer.realm == Some(found.realm.0)) {
                continue;
            }
            if found.one_to_one || port.is_some() {
                answers.push(of_static(settings, place, &found, queried));
            }
        }
    }
    answers
}

/// Where an external endpoint leads that leads to several, in a sentence.
pub(crate) fn targets_of(found: &BalancedView) -> String {
    let BalancedView { protocol, external, targets, .. } = found;
    if targets.is_empty() {
        return format!("{protocol} {external} led to several, and is kept for the sessions that are left");
    }
    let targets: Vec<String> = targets.iter().map(|(target, weight)| format!("{target} weight {weight}")).collect();
    format!("{protocol} {external} leads to one of {}", targets.join(", "))
}

fn of_several(
    settings: &Settings,
    place: Place,
    found: &BalancedView,
    holder: Option<Ipv4Addr>,
    queried: &str,
) -> FindAnswer {
    let external = found.external.address;
    let pool = settings.pools.iter().find(|pool| pool.addresses.contains(&external));
    FindAnswer {
        holder,
        realm: Some(found.realm.0),
        vrf: settings.realm_names.get(found.realm.index()).cloned(),
        external_address: Some(external),
        pool: pool.map(|pool| pool.name.clone()),
        detail: targets_of(found),
        ..nobody(place, queried)
    }
}

fn of_static(settings: &Settings, place: Place, found: &StaticView, queried: &str) -> FindAnswer {
    let StaticView { protocol, realm, internal, external, one_to_one } = found;
    let pool = settings.pools.iter().find(|pool| pool.addresses.contains(&external.address));
    let detail = if *one_to_one {
        format!("{} is that of {} for ever, one to one", external.address, internal.address)
    } else {
        format!("{protocol} {external} is forwarded to {internal} for ever")
    };
    FindAnswer {
        holder: Some(internal.address),
        realm: Some(realm.0),
        vrf: settings.realm_names.get(realm.index()).cloned(),
        external_address: Some(external.address),
        pool: pool.map(|pool| pool.name.clone()),
        detail,
        ..nobody(place, queried)
    }
}

/// The pool of an inside address: the longest prefix wins.
fn pool_for(settings: &Settings, realm: RealmId, inside: Ipv4Addr) -> Option<&Pool> {
    let pools = settings.pools.iter().filter(|pool| pool.serves(realm));
    let prefixes = pools.flat_map(|pool| pool.subscribers.iter().map(move |prefix| (prefix, pool)));
    let matching = prefixes.filter(|(prefix, _)| prefix.contains(inside));
    matching.max_by_key(|(prefix, _)| prefix.length()).map(|(_, pool)| pool)
}

fn formula_of(pool: &Pool, queried: &str) -> Result<Formula, OfflineError> {
    match Formula::of(pool) {
        Ok(Some(formula)) => Ok(formula),
        Ok(None) => Err(OfflineError::NotDeterministic {
            queried: queried.to_owned(),
            pool: pool.name.clone(),
            allocation: if pool.allocation == Allocation::Ports { "ports" } else { "blocks" },
        }),
        Err(source) => Err(OfflineError::Formula { pool: pool.name.clone(), source }),
    }
}

/// Whose a port of an external address is, or those of whom all its ports are.
fn external(
    settings: &Settings,
    pool: &Pool,
    formula: &Formula,
    position: u32,
    port: Option<u16>,
    queried: &str,
) -> Vec<FindAnswer> {
    let Some(port) = port else {
        let firsts = (0..formula.slices()).map(|slice| u32::from(pool.port_min) + slice * formula.slice_ports());
        let owners = firsts.map(|first| formula.owner_of(position, first as u16));
        return owners
            .filter_map(|owner| if let Owner::Subscriber(inside) = owner { Some(inside) } else { None })
            .filter(|inside| elsewhere(settings, pool, *inside).is_none())
            .filter_map(|inside| Some((inside, formula.slice_of(inside.to_bits())?)))
            .map(|(inside, slice)| of_slice(settings, pool, slice, inside, Place::External, queried))
            .collect();
    };
    let without =
        |detail: String| vec![FindAnswer { pool: Some(pool.name.clone()), detail, ..nobody(Place::External, queried) }];
    match formula.owner_of(position, port) {
        Owner::Subscriber(inside) => match (elsewhere(settings, pool, inside), formula.slice_of(inside.to_bits())) {
            (Some(other), _) => without(format!(
                "port {port} is in a slice that no subscriber has: {inside}, which it would be for, is served by pool \"{other}\""
            )),
            (None, Some(slice)) => vec![of_slice(settings, pool, slice, inside, Place::External, queried)],
            (None, None) => without(format!("port {port} is nobody's")),
        },
        Owner::Nobody => without(format!("port {port} is in a slice that no subscriber has")),
        Owner::Dynamic => {
            let (first, last) = formula.dynamic().unwrap_or((port, port));
            without(format!(
                "port {port} is one of {first}-{last}, which are leased in blocks: the log or the running instance knows to whom"
            ))
        }
        Owner::Outside => vec![outside_of(pool, port, queried)],
    }
}

/// The name of the pool that serves an inside address in place of this deterministic one, by a longer prefix.
fn elsewhere<'a>(settings: &'a Settings, pool: &Pool, inside: Ipv4Addr) -> Option<&'a str> {
    // A deterministic pool serves one VRF.
    let realm = pool.realms.first().copied().unwrap_or_default();
    let serves = pool_for(settings, realm, inside).filter(|serves| serves.name != pool.name)?;
    Some(&serves.name)
}

fn of_slice(
    settings: &Settings,
    pool: &Pool,
    slice: Slice,
    inside: Ipv4Addr,
    place: Place,
    queried: &str,
) -> FindAnswer {
    let external = pool.addresses.get(slice.address as usize).copied();
    // A deterministic pool serves one VRF.
    let realm = pool.realms.first().copied().unwrap_or_default();
    FindAnswer {
        holder: Some(inside),
        realm: Some(realm.0),
        vrf: settings.realm_names.get(realm.index()).cloned(),
        external_address: external,
        pool: Some(pool.name.clone()),
        own_ports: external
            .map(|external_address| OwnPorts {
                kind: "slice".to_owned(),
                external_address,
                first_port: slice.first,
                last_port: slice.last,
            })
            .into_iter()
            .collect(),
        detail: format!(
            "subscriber {inside} has ports {}-{} of {}",
            slice.first,
            slice.last,
            external.unwrap_or(Ipv4Addr::UNSPECIFIED)
        ),
        ..nobody(place, queried)
    }
}

/// What is asked about, as people write it.
pub(crate) fn queried(address: Ipv4Addr, port: Option<u16>) -> String {
    port.map_or_else(|| address.to_string(), |port| format!("{address}:{port}"))
}

/// An answer that names nobody yet.
pub(crate) fn nobody(place: Place, queried: &str) -> FindAnswer {
    FindAnswer {
        queried: queried.to_owned(),
        place,
        holder: None,
        realm: None,
        vrf: None,
        external_address: None,
        pool: None,
        own_ports: Vec::new(),
        mapping: None,
        detail: String::new(),
    }
}

#[cfg(test)]
mod tests;
