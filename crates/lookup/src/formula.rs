//! From a configuration alone: static mappings, and ports of deterministic pools (RFC 7422).

use core::net::Ipv4Addr;

use control::FindAnswer;
use control::Place;
use control::SubscriberPorts;
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

use crate::Asked;
use crate::asked::holder_of;
use crate::asked::targets_of;

/// Why a configuration alone has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The pool has no formula.
    #[error(
        "find \"{queried}\": pool \"{pool}\" has no formula (allocation = \"{allocation}\"); ask the running \
         instance, without --config"
    )]
    NotDeterministic {
        /// Endpoint in question.
        queried: String,
        /// Pool of its address.
        pool: String,
        /// Allocation mode.
        allocation: &'static str,
    },
    /// The configuration has no such VRF.
    #[error("`--vrf {vrf}`: no such VRF in this configuration; use one of: {known}")]
    UnknownVrf {
        /// VRF in question.
        vrf: String,
        /// VRFs of the configuration.
        known: String,
    },
    /// A checked configuration has no impossible formula.
    #[error("pool \"{pool}\": {source}")]
    Formula {
        /// Pool name.
        pool: String,
        /// The problem.
        source: FormulaError,
    },
}

/// The holder of an external port, or the ports of an inside address. Without a port, all that is
/// known of the address.
///
/// # Errors
/// The configuration alone has no answer.
pub fn find(settings: &Settings, asked: &Asked<'_>) -> Result<Vec<FindAnswer>, NoAnswer> {
    let mut found = Configured { settings, asked: *asked }.of_all()?;
    asked.retain_vrf(&mut found);
    if let Some(vrf) = asked.vrf.filter(|_| found.is_empty()) {
        let detail = format!("no subscriber of VRF \"{vrf}\" holds {} by this configuration", asked.queried());
        found.push(asked.nobody(Place::External, detail));
    }
    Ok(found)
}

/// One question to one configuration.
#[derive(Clone, Copy)]
pub(crate) struct Configured<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) asked: Asked<'a>,
}

impl<'a> Configured<'a> {
    /// For an external address, in all VRFs.
    fn of_all(&self) -> Result<Vec<FindAnswer>, NoAnswer> {
        let realms = self.realms()?;
        let fixed = self.static_mappings(&realms);
        if !fixed.is_empty() {
            return Ok(fixed);
        }
        if self.asked.port.is_some() {
            return self.by_address(&realms);
        }
        // Besides the ports by a formula.
        let from = self.forwards_from();
        if !from.is_empty() {
            let others = self.by_address(&realms);
            let others = others.unwrap_or_else(|unanswered| vec![self.only_instance_knows(&unanswered)]);
            return Ok(from.into_iter().chain(others).collect());
        }
        let mut forwards = self.forwards_to();
        forwards.retain(|answer| answer.realm.is_some_and(|realm| realms.contains(&RealmId(realm))));
        if !forwards.is_empty() {
            let others = self.by_address(&realms).unwrap_or_default();
            let named = others.into_iter().filter(|answer| answer.place != Place::Nowhere);
            return Ok(forwards.into_iter().chain(named).collect());
        }
        self.by_address(&realms)
    }

    /// VRFs in question.
    fn realms(&self) -> Result<Vec<RealmId>, NoAnswer> {
        let names = &self.settings.realm_names;
        let all = (0..names.len().max(1)).map(|realm| RealmId(realm as u16));
        let Some(vrf) = self.asked.vrf else { return Ok(all.collect()) };
        let known = names.iter().position(|name| name == vrf);
        let unknown = || NoAnswer::UnknownVrf { vrf: vrf.to_owned(), known: names.join(", ") };
        Ok(vec![RealmId(known.ok_or_else(unknown)? as u16)])
    }

    fn of_external(&self, place: Place, (realm, external): (RealmId, Ipv4Addr), detail: String) -> FindAnswer {
        FindAnswer {
            realm: Some(realm.0),
            vrf: self.settings.realm_names.get(realm.index()).cloned(),
            external_address: Some(external),
            pool: self.pool_with(external).map(|pool| pool.name.clone()),
            ..self.asked.nobody(place, detail)
        }
    }

    fn pool_with(&self, external: Ipv4Addr) -> Option<&'a Pool> {
        self.settings.pools.iter().find(|pool| pool.addresses.contains(&external))
    }

    /// Other ports of a forwarded address.
    fn only_instance_knows(&self, unanswered: &NoAnswer) -> FindAnswer {
        let external = self.asked.address;
        let pool = self.pool_with(external).map(|pool| pool.name.clone());
        let detail = match (unanswered, &pool) {
            (NoAnswer::NotDeterministic { .. }, Some(pool)) => format!(
                "only the running instance knows the holders of other ports of {external}: pool \"{pool}\" has no formula"
            ),
            (error, _) => error.to_string(),
        };
        FindAnswer { external_address: Some(external), pool, ..self.asked.nobody(Place::External, detail) }
    }

    /// With all their ports.
    pub(crate) fn forwards_to(&self) -> Vec<FindAnswer> {
        let inside = self.asked.address;
        let one = self.settings.forwards.iter().filter(|forward| forward.inside == inside.into()).map(|forward| {
            let to = format!("{inside}:{}", range(forward.inside_port, forward.ports));
            let from = format!("{}:{}", forward.external, ports_text(forward.ports));
            let detail = format!("{} {from} is statically forwarded to {to}", forward.protocol);
            self.of_external(Place::Internal, (forward.realm, forward.external), detail)
        });
        let is_target = |target: &&Target| target.address == inside.to_bits();
        let several = self.settings.balanced_forwards.iter().flat_map(|forward| {
            forward.targets.iter().filter(is_target).map(move |target| {
                let to = format!("{inside}:{}", range(target.port.unwrap_or(forward.ports.0), forward.ports));
                let from = format!("{}:{}", forward.external, ports_text(forward.ports));
                let (count, weight) = (forward.targets.len(), target.weight);
                let detail = format!(
                    "{} {from} leads to one of {count} targets, of which {to} is one of weight {weight}",
                    forward.protocol
                );
                self.of_external(Place::Internal, (forward.realm, forward.external), detail)
            })
        });
        one.chain(several).map(|answer| FindAnswer { holder: Some(inside), ..answer }).collect()
    }

    /// With all their ports.
    pub(crate) fn forwards_from(&self) -> Vec<FindAnswer> {
        let Asked { address: external, protocol, .. } = self.asked;
        let is_asked = |from: Ipv4Addr, of: Protocol| from == external && protocol.is_none_or(|wanted| wanted == of);
        let one = self.settings.forwards.iter().filter(|forward| is_asked(forward.external, forward.protocol));
        let one = one.map(|forward| {
            let to = forward.inside.with_port(range(forward.inside_port, forward.ports));
            let from = format!("{external}:{}", ports_text(forward.ports));
            let detail = format!("{} {from} is statically forwarded to {to}", forward.protocol);
            let answer = self.of_external(Place::External, (forward.realm, external), detail);
            let (holder, host) = holder_of(&forward.inside);
            FindAnswer { holder, host, ..answer }
        });
        let several =
            self.settings.balanced_forwards.iter().filter(|forward| is_asked(forward.external, forward.protocol));
        let several = several.map(|forward| {
            let target = |target: &Target| {
                let address = Ipv4Addr::from_bits(target.address);
                let ports = range(target.port.unwrap_or(forward.ports.0), forward.ports);
                format!("{address}:{ports} weight {}", target.weight)
            };
            let targets: Vec<String> = forward.targets.iter().map(target).collect();
            let from = format!("{external}:{}", ports_text(forward.ports));
            let detail = format!("{} {from} leads to one of {}", forward.protocol, targets.join(", "));
            self.of_external(Place::External, (forward.realm, external), detail)
        });
        one.chain(several).collect()
    }

    /// From pools with a formula.
    fn by_address(&self, realms: &[RealmId]) -> Result<Vec<FindAnswer>, NoAnswer> {
        let Asked { address, port, protocol, .. } = self.asked;
        if let Some((pool, position)) = self.place_of(address) {
            if let Some(port) = port.filter(|port| never_gives_out(pool, protocol, *port)) {
                return Ok(vec![self.outside_of(pool, port)]);
            }
            return Ok(self.external(pool, &self.formula_of(pool)?, position));
        }
        let mut answers = Vec::new();
        let mut unanswered = None;
        for realm in realms.iter().copied() {
            let Some(pool) = self.pool_for(realm, address) else { continue };
            let formula = match self.formula_of(pool) {
                Ok(formula) => formula,
                // Another VRF may have a formula.
                Err(error) => {
                    unanswered = unanswered.or(Some(error));
                    continue;
                }
            };
            answers.push(match formula.slice_of(address.into()) {
                Some(slice) => self.of_slice(pool, slice, address, Place::Internal),
                None => {
                    let detail =
                        format!("{address} is the network or broadcast address of its prefix and not a subscriber");
                    self.without_holder(Place::Nowhere, pool, detail)
                }
            });
        }
        match unanswered {
            Some(error) if answers.is_empty() => return Err(error),
            _ => {}
        }
        if answers.is_empty() {
            let of_vrf = self.asked.of_vrf();
            let detail = format!("{address} is neither an external address of a pool nor a subscriber{of_vrf}");
            answers.push(self.asked.nobody(Place::Nowhere, detail));
        }
        Ok(answers)
    }

    /// Pool, and position of the address in it.
    fn place_of(&self, external: Ipv4Addr) -> Option<(&'a Pool, u32)> {
        let mut pools = self.settings.pools.iter();
        pools.find_map(|pool| {
            let position = pool.addresses.iter().position(|own| *own == external)?;
            Some((pool, position as u32))
        })
    }

    fn without_holder(&self, place: Place, pool: &Pool, detail: String) -> FindAnswer {
        FindAnswer { pool: Some(pool.name.clone()), ..self.asked.nobody(place, detail) }
    }

    fn outside_of(&self, pool: &Pool, port: u16) -> FindAnswer {
        let detail = format!("pool \"{}\" never allocates port {port}", pool.name);
        self.without_holder(Place::External, pool, detail)
    }

    /// All subscribers of an external address, if its pool has a formula.
    pub(crate) fn by_formula(&self) -> Option<Vec<FindAnswer>> {
        let (pool, position) = self.place_of(self.asked.address)?;
        let formula = Formula::of(pool).ok()??;
        Some(self.external(pool, &formula, position))
    }

    /// Forwards and one-to-one addresses.
    fn static_mappings(&self, realms: &[RealmId]) -> Vec<FindAnswer> {
        let Asked { address, port, .. } = self.asked;
        let mappings = StaticMappings::of(self.settings);
        let endpoint = Endpoint::new(address, port.unwrap_or(0));
        let mut answers: Vec<FindAnswer> = Vec::new();
        // A whole address has all transports.
        for protocol in self.asked.protocols() {
            if port.is_some() {
                let all = self.settings.balanced_forwards.iter().filter(|forward| forward.protocol == protocol);
                for forward in all {
                    let (first, last) = forward.ports;
                    if forward.external == address && (first..=last).contains(&endpoint.port) {
                        answers.push(self.of_several(Place::External, &forward.view(endpoint.port), None));
                    }
                    let external = forward.external_of(forward.realm, endpoint);
                    if let Some(external) = external.filter(|_| realms.contains(&forward.realm)) {
                        answers.push(self.of_several(Place::Internal, &forward.view(external.port), Some(address)));
                    }
                }
            }
            let outside = mappings.of_external(endpoint, protocol).map(|found| (Place::External, found));
            let inside = realms.iter();
            let inside =
                inside.filter_map(|realm| Some((Place::Internal, mappings.of_internal(*realm, endpoint, protocol)?)));
            for (place, found) in outside.into_iter().chain(inside) {
                // One-to-one covers all transports and ports.
                if found.one_to_one && answers.iter().any(|answer| answer.realm == Some(found.realm.0)) {
                    continue;
                }
                if found.one_to_one || port.is_some() {
                    answers.push(self.of_static(place, &found));
                }
            }
        }
        answers
    }

    fn of_several(&self, place: Place, found: &BalancedView, holder: Option<Ipv4Addr>) -> FindAnswer {
        let answer = self.of_external(place, (found.realm, found.external.address), targets_of(found));
        FindAnswer { holder, ..answer }
    }

    fn of_static(&self, place: Place, found: &StaticView) -> FindAnswer {
        let StaticView { protocol, realm, host: inside, internal_port, external, one_to_one } = found;
        let detail = if *one_to_one {
            format!("{} is mapped one-to-one to {inside}", external.address)
        } else {
            format!("{protocol} {external} is statically forwarded to {}", inside.with_port(internal_port))
        };
        let answer = self.of_external(place, (*realm, external.address), detail);
        let (holder, host) = holder_of(inside);
        FindAnswer { holder, host, ..answer }
    }

    /// The longest prefix wins.
    fn pool_for(&self, realm: RealmId, inside: Ipv4Addr) -> Option<&'a Pool> {
        let pools = self.settings.pools.iter().filter(|pool| pool.serves(realm));
        let prefixes = pools.flat_map(|pool| pool.subscribers.iter().map(move |prefix| (prefix, pool)));
        let matching = prefixes.filter(|(prefix, _)| prefix.contains(inside));
        matching.max_by_key(|(prefix, _)| prefix.length()).map(|(_, pool)| pool)
    }

    fn formula_of(&self, pool: &Pool) -> Result<Formula, NoAnswer> {
        match Formula::of(pool) {
            Ok(Some(formula)) => Ok(formula),
            Ok(None) => Err(NoAnswer::NotDeterministic {
                queried: self.asked.queried(),
                pool: pool.name.clone(),
                allocation: if pool.allocation == Allocation::Ports { "ports" } else { "blocks" },
            }),
            Err(source) => Err(NoAnswer::Formula { pool: pool.name.clone(), source }),
        }
    }

    /// Of one port, or of all ports.
    fn external(&self, pool: &Pool, formula: &Formula, position: u32) -> Vec<FindAnswer> {
        let Some(port) = self.asked.port else {
            let firsts = (0..formula.slices()).map(|slice| u32::from(pool.port_min) + slice * formula.slice_ports());
            let owners = firsts.map(|first| formula.owner_of(position, first as u16));
            return owners
                .filter_map(|owner| if let Owner::Subscriber(inside) = owner { Some(inside) } else { None })
                .filter(|inside| self.elsewhere(pool, *inside).is_none())
                .filter_map(|inside| Some((inside, formula.slice_of(inside.into())?)))
                .map(|(inside, slice)| self.of_slice(pool, slice, inside, Place::External))
                .collect();
        };
        let without = |detail: String| self.without_holder(Place::External, pool, detail);
        vec![match formula.owner_of(position, port) {
            Owner::Subscriber(inside) => match (self.elsewhere(pool, inside), formula.slice_of(inside.into())) {
                (Some(other), _) => without(format!(
                    "port {port} is in a slice without a subscriber: its subscriber {inside} is served by pool \"{other}\""
                )),
                (None, Some(slice)) => self.of_slice(pool, slice, inside, Place::External),
                (None, None) => without(format!("port {port} has no holder")),
            },
            Owner::Nobody => without(format!("port {port} is in a slice without a subscriber")),
            Owner::Dynamic => {
                let (first, last) = formula.dynamic().unwrap_or((port, port));
                without(format!(
                    "port {port} is one of {first}-{last}, which are leased in blocks; find the holder in the log or the running instance"
                ))
            }
            Owner::Outside => self.outside_of(pool, port),
        }]
    }

    /// Another pool that serves this inside address, by a longer prefix.
    fn elsewhere(&self, pool: &Pool, inside: Ipv4Addr) -> Option<&'a str> {
        let serves = self.pool_for(only_realm(pool), inside).filter(|serves| serves.name != pool.name)?;
        Some(&serves.name)
    }

    fn of_slice(&self, pool: &Pool, slice: Slice, inside: Ipv4Addr, place: Place) -> FindAnswer {
        let external = pool.addresses.get(slice.address as usize).copied();
        let (first, last, realm) = (slice.first, slice.last, only_realm(pool));
        let subscriber_ports = external.map(|external_address| SubscriberPorts {
            kind: "slice".to_owned(),
            external_address,
            first_port: first,
            last_port: last,
            ports_used: None,
        });
        let address = external.unwrap_or(Ipv4Addr::UNSPECIFIED);
        FindAnswer {
            holder: Some(inside),
            realm: Some(realm.0),
            vrf: self.settings.realm_names.get(realm.index()).cloned(),
            external_address: external,
            subscriber_ports: subscriber_ports.into_iter().collect(),
            ..self.without_holder(place, pool, format!("subscriber {inside} has ports {first}-{last} of {address}"))
        }
    }
}

/// A deterministic pool serves one VRF.
fn only_realm(pool: &Pool) -> RealmId {
    pool.realms.first().copied().unwrap_or_default()
}

/// True if a pool without a formula never allocates the port. Query identifiers are other numbers.
fn never_gives_out(pool: &Pool, protocol: Option<Protocol>, port: u16) -> bool {
    let has_ports = protocol.is_some_and(|protocol| protocol != Protocol::Icmp);
    has_ports && !pool.one_to_one && !(pool.port_min..=pool.port_max).contains(&port)
}

/// From `first` on, as many ports as the given range has.
pub(crate) fn range(first: u16, (low, high): (u16, u16)) -> String {
    ports_text((first, first.saturating_add(high - low)))
}

/// `80`, or `80-90`.
pub(crate) fn ports_text((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

#[cfg(test)]
mod tests;
