//! What differs between two configurations, and whether a running instance can go over from one to the other.

use core::fmt::Display;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Settings;
use nat::settings::Limits;
use nat::settings::Pool;
use nat::settings::Timeouts;

use crate::model::Config;
use crate::section::duration_text;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What differs, as a path into the file.
    pub object: String,
    /// Its value before; None when it is new.
    pub before: Option<String>,
    /// Its value after; None when it is removed.
    pub after: Option<String>,
    /// Why it needs a restart; None when it does not.
    pub restart: Option<&'static str>,
}

/// What is gathered while two configurations are compared.
#[derive(Default)]
struct Changes(Vec<Change>);

impl Changes {
    fn note(&mut self, object: impl Into<String>, before: Option<String>, after: Option<String>) {
        self.0.push(Change { object: object.into(), before, after, restart: None });
    }

    /// A value that can change live.
    fn value<T: PartialEq>(&mut self, object: &str, before: &T, after: &T, text: impl Fn(&T) -> String) {
        if before != after {
            self.note(object, Some(text(before)), Some(text(after)));
        }
    }

    /// A value that is taken at start.
    fn fixed<T: PartialEq>(
        &mut self,
        object: &str,
        before: &T,
        after: &T,
        text: impl Fn(&T) -> String,
        reason: &'static str,
    ) {
        if before != after {
            let (before, after) = (Some(text(before)), Some(text(after)));
            self.0.push(Change { object: object.to_owned(), before, after, restart: Some(reason) });
        }
    }
}

fn shown<T: Display>(value: &T) -> String {
    value.to_string()
}

/// For what has no short form.
fn described<T: core::fmt::Debug>(value: &T) -> String {
    format!("{value:?}")
}

const AT_START: &str = "it is set up when the instance starts";
const TABLES: &str = "the memory of tables is taken when the instance starts";

/// All differences from `before` to `after`: what needs a restart first, then the rest in the order of the manual.
pub fn changes(before: &Config, after: &Config) -> Vec<Change> {
    let mut changes = Changes::default();
    fixed(before, after, &mut changes);
    let (old, new) = (&before.nat, &after.nat);
    routes(old, new, &mut changes);
    pools(old, new, &mut changes);
    changes.value("rule", &old.pass_rules, &new.pass_rules, |rules| format!("{} rules that pass", rules.len()));
    let sessions = |limits: &Limits| limits.sessions_per_mapping_max;
    changes.value("subscriber.sessions_per_mapping", &sessions(&old.limits), &sessions(&new.limits), shown);
    timeouts(&old.timeouts, &new.timeouts, &mut changes);
    changes.value("timeouts.inbound_refresh", &old.inbound_refresh, &new.inbound_refresh, shown);
    changes.value("reload", &old.reload, &new.reload, described);
    changes.value("icmp", &old.icmp, &new.icmp, described);
    let answers = |settings: &Settings| settings.answer_unsolicited_syn;
    changes.value("icmp.answer_unsolicited_syn", &answers(old), &answers(new), shown);
    rest(old, new, &mut changes);
    changes.0
}

/// What only a start can bring about.
fn fixed(before: &Config, after: &Config, changes: &mut Changes) {
    let interfaces = |config: &Config| {
        let names = config.nat.interfaces.iter().map(|interface| interface.name.clone());
        names.collect::<Vec<_>>()
    };
    let (old, new) = (interfaces(before), interfaces(after));
    changes.fixed("interface", &old, &new, |names| names.join(", "), AT_START);
    changes.fixed("vrf", &before.nat.realm_names, &after.nat.realm_names, |names| names.join(", "), AT_START);
    if old == new {
        for (position, name) in old.iter().enumerate() {
            let object = format!("interface \"{name}\"");
            let (one, other) = (before.nat.interfaces.get(position), after.nat.interfaces.get(position));
            changes.fixed(&object, &one, &other, described, AT_START);
            let (one, other) = (before.interfaces.get(position), after.interfaces.get(position));
            changes.fixed(&object, &one, &other, described, AT_START);
        }
        changes.fixed("interface.driver", &before.ports, &after.ports, described, AT_START);
    }
    let reason = "workers are started with the instance";
    changes.fixed("workers.count", &before.workers.count, &after.workers.count, shown, reason);
    changes.fixed("workers.cpus", &before.workers.cpus, &after.workers.cpus, described, reason);
    let limits = |config: &Config| {
        let limits = config.nat.limits;
        [
            ("mappings", limits.mappings_max),
            ("extra_sessions", limits.extra_sessions_max),
            ("subscribers", limits.subscribers_max),
            ("fragmented_datagrams", limits.fragmented_datagrams_max),
            ("fragments_held", limits.fragments_held_max),
            ("unsolicited_syns", limits.unsolicited_syns_max),
            ("held_ports", limits.held_ports_max),
        ]
    };
    for ((name, old), (_, new)) in limits(before).into_iter().zip(limits(after)) {
        let each = |number: &u32| format!("{number} for each worker");
        changes.fixed(&format!("tables.{name}"), &old, &new, each, TABLES);
    }
    // Not compared is the room for external addresses: whether they fit is seen when they are to be placed.
    changes.fixed("dpdk", &before.dpdk, &after.dpdk, described, AT_START);
    changes.fixed("control", &before.control, &after.control, described, "clients know the socket by its place");
    changes.fixed("log", &before.log, &after.log, described, AT_START);
}

fn routes(before: &Settings, after: &Settings, changes: &mut Changes) {
    let list = |settings: &Settings| {
        let name = |id: nat::types::InterfaceId| {
            settings.interfaces.get(id.index()).map_or("?".to_owned(), |interface| interface.name.clone())
        };
        let routes = settings.routes.iter();
        let entry = |route: &nat::settings::Route| {
            let way = format!("via {} on \"{}\"", route.next_hop, name(route.interface));
            (format!("route {} of \"{}\"", route.prefix, name(route.interface)), way)
        };
        routes.map(entry).collect::<Vec<_>>()
    };
    differences(list(before), list(after), changes);
}

/// Notes what was added, removed and changed of named things, each with a text.
fn differences(before: Vec<(String, String)>, after: Vec<(String, String)>, changes: &mut Changes) {
    let old: HashMap<String, String> = before.iter().cloned().collect();
    let new: HashMap<String, String> = after.iter().cloned().collect();
    for (name, text) in before {
        if !new.contains_key(&name) {
            changes.note(name, Some(text), None);
        }
    }
    for (name, text) in after {
        match old.get(&name) {
            None => changes.note(name, None, Some(text)),
            Some(was) if *was != text => changes.note(name, Some(was.clone()), Some(text)),
            Some(_) => {}
        }
    }
}

fn pools(before: &Settings, after: &Settings, changes: &mut Changes) {
    let count = |pool: &Pool| format!("{} addresses", pool.addresses.len());
    for old in &before.pools {
        let object = format!("pool \"{}\"", old.name);
        let Some(new) = after.pools.iter().find(|new| new.name == old.name) else {
            changes.note(object, Some(count(old)), None);
            continue;
        };
        pool(&object, old, new, changes);
    }
    for new in after.pools.iter().filter(|new| before.pools.iter().all(|old| old.name != new.name)) {
        changes.note(format!("pool \"{}\"", new.name), None, Some(count(new)));
    }
}

fn pool(object: &str, old: &Pool, new: &Pool, changes: &mut Changes) {
    let key = |name: &str| format!("{object}.{name}");
    if old.addresses != new.addresses {
        let (was, is): (HashSet<_>, HashSet<_>) = (old.addresses.iter().collect(), new.addresses.iter().collect());
        let (gone, come) = (was.difference(&is).count(), is.difference(&was).count());
        let after = format!("{} addresses: {gone} fewer, {come} more", new.addresses.len());
        changes.note(key("addresses"), Some(format!("{} addresses", old.addresses.len())), Some(after));
    }
    let ports = |pool: &Pool| format!("{}-{}", pool.port_min, pool.port_max);
    changes.value(&key("ports"), &ports(old), &ports(new), String::clone);
    let reserved = |ports: &Vec<u16>| format!("{} ports", ports.len());
    changes.value(&key("reserved_ports"), &old.reserved_ports, &new.reserved_ports, reserved);
    let prefixes = |prefixes: &Vec<nat::types::Prefix>| prefixes.iter().map(shown).collect::<Vec<_>>().join(", ");
    changes.value(&key("subscribers"), &old.subscribers, &new.subscribers, prefixes);
    changes.value(&key("draining"), &old.draining, &new.draining, shown);
    let addresses = |list: &Vec<std::net::Ipv4Addr>| list.iter().map(shown).collect::<Vec<_>>().join(", ");
    changes.value(&key("drain"), &old.draining_addresses, &new.draining_addresses, addresses);
    changes.value(&key("pooling"), &old.pooling, &new.pooling, described);
    changes.value(&key("filtering"), &old.filtering, &new.filtering, described);
    changes.value(&key("parity"), &old.parity, &new.parity, shown);
    // What has no line above.
    let alike = Pool {
        addresses: old.addresses.clone(),
        port_min: old.port_min,
        port_max: old.port_max,
        reserved_ports: old.reserved_ports.clone(),
        subscribers: old.subscribers.clone(),
        draining: old.draining,
        draining_addresses: old.draining_addresses.clone(),
        pooling: old.pooling,
        filtering: old.filtering,
        parity: old.parity,
        ..new.clone()
    };
    if alike != *old {
        changes.note(key("*"), Some("other keys".to_owned()), Some("changed".to_owned()));
    }
}

fn timeouts(old: &Timeouts, new: &Timeouts, changes: &mut Changes) {
    let text = |time: &nat::Duration| duration_text(time.as_micros());
    changes.value("timeouts.udp", &old.udp, &new.udp, text);
    changes.value("timeouts.tcp_opening", &old.tcp_opening, &new.tcp_opening, text);
    changes.value("timeouts.tcp_established", &old.tcp_established, &new.tcp_established, text);
    changes.value("timeouts.tcp_closing", &old.tcp_closing, &new.tcp_closing, text);
    changes.value("timeouts.icmp", &old.icmp, &new.icmp, text);
    changes.value("timeouts.unsolicited_syn", &old.unsolicited_syn, &new.unsolicited_syn, text);
    changes.value("timeouts.fragment", &old.fragment, &new.fragment, text);
    #[allow(clippy::needless_update, reason = "timers that are added have no line above at first")]
    let alike = Timeouts {
        udp: old.udp,
        tcp_opening: old.tcp_opening,
        tcp_established: old.tcp_established,
        tcp_closing: old.tcp_closing,
        icmp: old.icmp,
        unsolicited_syn: old.unsolicited_syn,
        fragment: old.fragment,
        ..*new
    };
    if alike != *old {
        changes.note("timeouts.*", Some("other keys".to_owned()), Some("changed".to_owned()));
    }
}

/// Whatever the engine is told that has no line of its own: it can change live, as all of it is in one snapshot.
fn rest(old: &Settings, new: &Settings, changes: &mut Changes) {
    let alike = Settings {
        interfaces: old.interfaces.clone(),
        realm_names: old.realm_names.clone(),
        routes: old.routes.clone(),
        pools: old.pools.clone(),
        pass_rules: old.pass_rules.clone(),
        timeouts: old.timeouts,
        limits: old.limits,
        inbound_refresh: old.inbound_refresh,
        reload: old.reload,
        icmp: old.icmp,
        answer_unsolicited_syn: old.answer_unsolicited_syn,
        ..new.clone()
    };
    if alike != *old {
        changes.note("*", Some("other settings".to_owned()), Some("changed".to_owned()));
    }
}

#[cfg(test)]
mod tests;
