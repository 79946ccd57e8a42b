//! Answers to `find` from a configuration alone: whose a port of a deterministic pool is (RFC 7422).

use core::net::Ipv4Addr;

use control::FindAnswer;
use control::OwnPorts;
use control::Place;
use nat::Settings;
use nat::deterministic::Formula;
use nat::deterministic::FormulaError;
use nat::deterministic::Owner;
use nat::deterministic::Slice;
use nat::settings::Allocation;
use nat::settings::Pool;
use nat::types::RealmId;

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
    /// The formula does not work out; a configuration that was checked has none such.
    #[error("pool \"{pool}\": {source}")]
    Formula {
        /// The pool.
        pool: String,
        /// What does not.
        source: FormulaError,
    },
}

/// Whose a port of a deterministic pool is, or which ports an inside address has; without a port all that is known of an address.
///
/// # Errors
/// When the configuration alone does not tell.
pub fn find(settings: &Settings, address: Ipv4Addr, port: Option<u16>) -> Result<Vec<FindAnswer>, OfflineError> {
    let queried = port.map_or_else(|| address.to_string(), |port| format!("{address}:{port}"));
    for pool in &settings.pools {
        if let Some(position) = pool.addresses.iter().position(|own| *own == address) {
            let formula = formula_of(pool, &queried)?;
            return Ok(external(settings, pool, &formula, position as u32, port, &queried));
        }
    }
    let mut answers = Vec::new();
    for realm in (0..settings.realms()).map(|realm| RealmId(realm as u16)) {
        let Some(pool) = pool_for(settings, realm, address) else { continue };
        let formula = formula_of(pool, &queried)?;
        answers.push(match formula.slice_of(address.to_bits()) {
            Some(slice) => of_slice(settings, pool, slice, address, Place::Internal, &queried),
            None => FindAnswer {
                pool: Some(pool.name.clone()),
                detail: format!("{address} is the network or broadcast address of its prefix, and no subscriber"),
                ..nobody(Place::Nowhere, &queried)
            },
        });
    }
    if answers.is_empty() {
        let detail = format!("{address} is no pool's external address and no subscriber's");
        answers.push(FindAnswer { detail, ..nobody(Place::Nowhere, &queried) });
    }
    Ok(answers)
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
            .filter_map(|inside| Some((inside, formula.slice_of(inside.to_bits())?)))
            .map(|(inside, slice)| of_slice(settings, pool, slice, inside, Place::External, queried))
            .collect();
    };
    let without =
        |detail: String| vec![FindAnswer { pool: Some(pool.name.clone()), detail, ..nobody(Place::External, queried) }];
    match formula.owner_of(position, port) {
        Owner::Subscriber(inside) => match formula.slice_of(inside.to_bits()) {
            Some(slice) => vec![of_slice(settings, pool, slice, inside, Place::External, queried)],
            None => without(format!("port {port} is nobody's")),
        },
        Owner::Nobody => without(format!("port {port} is in a slice that no subscriber has")),
        Owner::Dynamic => {
            let (first, last) = formula.dynamic().unwrap_or((port, port));
            without(format!(
                "port {port} is one of {first}-{last}, which are leased in blocks: the log or the running instance knows to whom"
            ))
        }
        Owner::Outside => without(format!("pool \"{}\" never gives out port {port}", pool.name)),
    }
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

fn nobody(place: Place, queried: &str) -> FindAnswer {
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
