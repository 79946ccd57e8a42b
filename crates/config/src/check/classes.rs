//! Classes of subscribers and timers of ports, each against the others of its kind.

use std::collections::HashMap;

use nat::settings::Allocation;
use nat::types::Prefix;
use nat::types::Side;

use crate::check::unique_names;
use crate::draft::Draft;
use crate::draft::class::ClassDraft;
use crate::draft::pool::PoolDraft;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::quoted;

/// Checks what `[[class]]` and `[[port_timeout]]` say together.
pub(crate) fn check(draft: &Draft, report: &mut Report) {
    unique_names("class", draft.classes.iter().filter_map(|class| class.name.as_ref()), report);
    let mut taken: HashMap<Prefix, Vec<(&ClassDraft, &Place)>> = HashMap::new();
    for class in &draft.classes {
        for prefix in &class.subscribers {
            let owners = taken.entry(prefix.value).or_default();
            match owners.iter().find(|(owner, _)| owner.shares_vrf_with(class)) {
                Some((_, first)) => {
                    let problem = format!("is in a class already, {}", first.on_line());
                    report.fault(&prefix.place, problem, prefix.value.to_string(), "leave it in one class only");
                }
                None => owners.push((class, &prefix.place)),
            }
        }
    }
    for class in &draft.classes {
        penalty(class, draft, report);
    }
    for (position, timeout) in draft.port_timeouts.iter().enumerate() {
        timeout.check(draft.singles.allow_below_rfc, report);
        let Some(ports) = &timeout.ports else { continue };
        let covers = |earlier: &&crate::draft::port_timeout::PortTimeoutDraft| {
            let range = earlier.ports.as_ref().map(|ports| &ports.value);
            earlier.protocol == timeout.protocol
                && range.is_some_and(|range| range.start() <= ports.value.start() && range.end() >= ports.value.end())
        };
        if let Some(earlier) = draft.port_timeouts[..position].iter().find(covers) {
            let problem = format!("has no effect: an earlier one has these ports, {}", earlier.place.on_line());
            let seen = format!("\"{}-{}\"", ports.value.start(), ports.value.end());
            report.fault(&ports.place, problem, seen, "remove one of them, or write the narrower one first");
        }
    }
}

/// Whether offenders can get mappings from the pool they are sent to, and from another than before.
fn penalty(class: &ClassDraft, draft: &Draft, report: &mut Report) {
    let Some(penalty) = &class.penalty else { return };
    let Placed { value: name, place, .. } = &penalty.pool;
    let Some(pool) = draft.pools.iter().find(|pool| pool.label() == name) else {
        let known = draft.pools.iter().map(PoolDraft::label);
        let remedy = match nearest(name, known.clone()) {
            Some(meant) => format!("did you mean \"{meant}\"?"),
            None => format!("write {}", one_of(known)),
        };
        return report.fault(place, "is not the name of a pool", quoted(name), remedy);
    };
    let mut unfit = |problem: String, remedy: &str| report.fault(place, problem, quoted(name), remedy.to_owned());
    if pool.one_to_one.is_some() {
        unfit("is a one-to-one pool: each of its addresses is somebody's".to_owned(), "write another pool");
    }
    if matches!(pool.allocation.value, Some(Allocation::Deterministic { .. })) {
        let remedy = "write a pool with allocation = \"ports\" or \"blocks\"";
        unfit("is a deterministic pool: whoever has no slice gets nothing from it".to_owned(), remedy);
    }
    if pool.draining {
        unfit("drains: nobody gets a mapping from it".to_owned(), "write another pool, or end its draining");
    }
    let inside = draft.interfaces.iter().filter_map(|interface| match interface.facing() {
        Some((Side::Inside, vrf)) => Some(vrf),
        _ => None,
    });
    let is_meant = |vrf: &&str| class.vrfs.is_empty() || class.vrfs.iter().any(|meant| meant.value == **vrf);
    if let Some(vrf) = inside.filter(is_meant).find(|vrf| !pool.serves(vrf)) {
        let problem = format!("does not serve VRF \"{vrf}\", whose subscribers the class is about");
        unfit(problem, "write a pool that serves the VRFs of the class, or name its VRFs in the class");
    }
    // Of all pools with a prefix that has this one the longest serves it.
    let serving = |wanted: &Prefix| {
        let prefixes =
            draft.pools.iter().filter(|it| it.vrfs.is_empty() || class.vrfs.is_empty() || serves_one(it, class));
        let prefixes = prefixes.flat_map(|it| it.subscribers.iter().map(move |prefix| (it, prefix.value)));
        let around = prefixes.filter(|(_, prefix)| prefix.length() <= wanted.length() && prefix.overlaps(*wanted));
        around.max_by_key(|(_, prefix)| prefix.length()).map(|(it, _)| it.label())
    };
    let mut prefixes = class.subscribers.iter().map(|prefix| &prefix.value);
    if !class.subscribers.is_empty() && prefixes.all(|prefix| serving(prefix) == Some(name.as_str())) {
        let remedy = "write another pool for offenders, with subscribers = []";
        unfit("serves these subscribers anyway".to_owned(), remedy);
    }
}

fn serves_one(pool: &PoolDraft, class: &ClassDraft) -> bool {
    class.vrfs.iter().any(|vrf| pool.serves(&vrf.value))
}
