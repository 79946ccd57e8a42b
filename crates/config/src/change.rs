//! What differs between two configurations, and whether a running instance can go over from one to the other.

use core::fmt::Display;
use std::collections::HashMap;
use std::collections::HashSet;

use nat::Settings;
use nat::event::BackPressure;
use nat::settings::Admission;
use nat::settings::Algorithm;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
use nat::settings::Blocks;
use nat::settings::Class;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Limits;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::Pooling;
use nat::settings::Rate;
use nat::settings::Removed;
use nat::settings::Selection;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::settings::Timeouts;

use crate::check::machine::share;
use crate::check::machine::usual_places;
use crate::model::Config;
use crate::model::EventLog;
use crate::model::EventTarget;
use crate::model::LogSync;
use crate::model::Port;
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

    /// A rate that is shared out to the workers. What follows from their number, which is told already, is no difference; what all have
    /// together may be rounded up.
    fn shared_rate(&mut self, object: &str, before: (&Config, u32), after: (&Config, u32)) {
        let (was, is) = (before.0.workers.count as u64, after.0.workers.count as u64);
        let (old, new) = (u64::from(before.1) * was, u64::from(after.1) * is);
        let rounding = if was == is { 1 } else { was.max(is) };
        if old.abs_diff(new) >= rounding {
            let text = |rate: u64| Some(format!("{rate}/s for all workers"));
            self.note(object, text(old), text(new));
        }
    }

    /// Things in order that have no names: how many there are, and where the first one differs.
    fn list<T: PartialEq>(&mut self, object: &str, before: &[T], after: &[T]) {
        if before == after {
            return;
        }
        let alike = before.iter().zip(after).take_while(|(one, other)| one == other).count();
        let after = format!("{} in all; they differ from number {} on", after.len(), alike + 1);
        self.note(object, Some(format!("{} in all", before.len())), Some(after));
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

/// One word, as one writes it: of what has a name and nothing else.
fn word<T: core::fmt::Debug>(value: &T) -> String {
    format!("{value:?}").to_lowercase()
}

fn joined<T: Display>(values: &[T]) -> String {
    if values.is_empty() { "none".to_owned() } else { values.iter().map(shown).collect::<Vec<_>>().join(", ") }
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
    forwards(old, new, &mut changes);
    let pass = |rules: &Vec<nat::settings::PassRule>| format!("{} that pass a protocol", rules.len());
    changes.value("rule", &old.pass_rules, &new.pass_rules, pass);
    changes.list("rule", &old.rules, &new.rules);
    changes.list("rule.redirect", &old.redirections, &new.redirections);
    changes.list("filter", &old.filters, &new.filters);
    let names = |names: &std::collections::BTreeMap<u32, String>| format!("{} named", names.len());
    changes.value("filter.name", &old.filter_names, &new.filter_names, names);
    classes(old, new, &mut changes);
    limits("subscriber", &old.subscriber, &new.subscriber, &mut changes);
    let sessions = |limits: &Limits| limits.sessions_per_mapping_max;
    changes.value("subscriber.sessions_per_mapping", &sessions(&old.limits), &sessions(&new.limits), shown);
    let (old_hairpin, new_hairpin) = (old.hairpin_between_realms, new.hairpin_between_realms);
    changes.value("subscriber.hairpin_between_vrfs", &old_hairpin, &new_hairpin, shown);
    timeouts(&old.timeouts, &new.timeouts, &mut changes);
    changes.value("timeouts.inbound_refresh", &old.inbound_refresh, &new.inbound_refresh, shown);
    changes.list("port_timeout", &old.port_timeouts, &new.port_timeouts);
    let removed = |policy: &nat::settings::ReloadPolicy| policy.removed;
    changes.value("reload.removed", &removed(&old.reload), &removed(&new.reload), |removed| match removed {
        Removed::Drain => "drain".to_owned(),
        Removed::End => "end".to_owned(),
    });
    let time = |time: &Option<nat::Duration>| time.map_or("none".to_owned(), |time| duration_text(time.as_micros()));
    changes.value("reload.drain_time", &old.reload.drain_time, &new.reload.drain_time, time);
    icmp(before, after, &mut changes);
    events(before, after, &mut changes);
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
        for position in 0..old.len() {
            let sides = (InterfaceKeys::of(before, position), InterfaceKeys::of(after, position));
            if let (Some(old), Some(new)) = sides {
                interface(&old, &new, changes);
            }
        }
    }
    let reason = "workers are started with the instance";
    let same_workers = before.workers.count == after.workers.count;
    changes.fixed("workers.count", &before.workers.count, &after.workers.count, shown, reason);
    changes.fixed("workers.cpus", &before.workers.cpus, &after.workers.cpus, |cpus| joined(cpus), reason);
    let limits = |config: &Config| {
        let limits = config.nat.limits;
        [
            ("mappings", limits.mappings_max),
            ("extra_sessions", limits.extra_sessions_max),
            ("flows", limits.flows_max),
            ("subscribers", limits.subscribers_max),
            ("fragmented_datagrams", limits.fragmented_datagrams_max),
            ("fragments_held", limits.fragments_held_max),
            ("unsolicited_syns", limits.unsolicited_syns_max),
            ("held_ports", limits.held_ports_max),
        ]
    };
    // The share of each worker follows from their number, which is told already.
    let (was, is) = (before.workers.count, after.workers.count);
    for ((name, old), (_, new)) in limits(before).into_iter().zip(limits(after)) {
        if same_workers || !is_one_total((old, was), (new, is)) {
            let (old, new) = (u64::from(old) * was as u64, u64::from(new) * is as u64);
            changes.fixed(&format!("tables.{name}"), &old, &new, |number| format!("{number} for all workers"), TABLES);
        }
    }
    // Where the file does not say how many places there are, they follow from the addresses; whether those fit is seen when
    // they are to be placed.
    let places = |config: &Config| u64::from(config.nat.limits.external_addresses_max);
    let usual = usual_places(after.nat.pools.iter().map(|pool| pool.addresses.len() as u64).sum());
    if places(after) != usual {
        changes.fixed("tables.external_addresses", &places(before), &places(after), shown, TABLES);
    }
    changes.fixed("dpdk.hugepages", &before.dpdk.hugepages, &after.dpdk.hugepages, word, AT_START);
    if same_workers {
        changes.fixed("dpdk.memory", &before.dpdk.memory_bytes, &after.dpdk.memory_bytes, shown, AT_START);
        changes.fixed("dpdk.buffers", &before.dpdk.buffers, &after.dpdk.buffers, shown, AT_START);
    }
    let by_place = "clients know the socket by its place";
    let path = |control: &crate::model::Control| control.socket.display().to_string();
    changes.fixed("control.socket", &path(&before.control), &path(&after.control), shown, by_place);
    changes.fixed("control.mode", &before.control.mode, &after.control.mode, |mode| format!("{mode:o}"), by_place);
    changes.fixed("log.level", &before.log.level, &after.log.level, word, AT_START);
    match (&before.event_log, &after.event_log) {
        (None, Some(_)) | (Some(_), None) => {
            let shown = |config: &Config| config.event_log.as_ref().map_or("none".to_owned(), destination);
            let reason = "who has a mapping then would be in no record, or in one without an end";
            changes.fixed("log.events", &shown(before), &shown(after), String::clone, reason);
        }
        (Some(old), Some(new)) => {
            changes.fixed(
                "log.queue",
                &old.queue,
                &new.queue,
                shown,
                "workers get their queues when the instance starts",
            );
        }
        (None, None) => {}
    }
}

/// Whether what each of so many workers has, before and after, can be its share of the same number.
fn is_one_total((old, was): (u32, usize), (new, is): (u32, usize)) -> bool {
    // Shares grow with the number, so that those with one share follow each other.
    let first_with = |wanted: u64| {
        let (mut low, mut high) = (0_u64, 1 << 32);
        while low < high {
            let middle = (low + high) / 2;
            if share(middle as u32, was) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    };
    let (first, past) = (first_with(u64::from(old)), first_with(u64::from(old) + 1));
    first < past && (share(first as u32, is)..=share((past - 1) as u32, is)).contains(&u64::from(new))
}

/// An interface and the port it is on, as the file says it.
struct InterfaceKeys<'a> {
    nat: &'a nat::settings::Interface,
    vrf: &'a str,
    vlan: Option<u16>,
    port: &'a Port,
}

impl InterfaceKeys<'_> {
    fn of(config: &Config, position: usize) -> Option<InterfaceKeys<'_>> {
        let (nat, link) = (config.nat.interfaces.get(position)?, config.interfaces.get(position)?);
        let vrf = config.nat.realm_names.get(nat.realm.index()).map_or("?", String::as_str);
        Some(InterfaceKeys { nat, vrf, vlan: link.vlan, port: config.ports.get(link.port)? })
    }
}

fn interface(old: &InterfaceKeys<'_>, new: &InterfaceKeys<'_>, changes: &mut Changes) {
    let name = &old.nat.name;
    let key = |name_of_key: &str| format!("interface \"{name}\".{name_of_key}");
    changes.fixed(&key("realm"), &old.nat.side, &new.nat.side, word, AT_START);
    changes.fixed(&key("vrf"), &old.vrf, &new.vrf, shown, AT_START);
    let own = |one: &InterfaceKeys<'_>| {
        let own = one.nat.addresses.iter().map(|own| format!("{}/{}", own.address, own.prefix_length));
        own.collect::<Vec<_>>().join(", ")
    };
    changes.fixed(&key("addresses"), &own(old), &own(new), String::clone, AT_START);
    changes.fixed(&key("mtu"), &old.nat.mtu, &new.nat.mtu, shown, AT_START);
    let vlan = |vlan: &Option<u16>| vlan.map_or("none".to_owned(), |vlan| vlan.to_string());
    changes.fixed(&key("vlan"), &old.vlan, &new.vlan, vlan, AT_START);
    let parent =
        |one: &InterfaceKeys<'_>| if one.port.name == *name { "none".to_owned() } else { one.port.name.clone() };
    changes.fixed(&key("parent"), &parent(old), &parent(new), String::clone, AT_START);
    // What is said of a port is said where it has its own interface.
    if old.port.name == *name && new.port.name == *name {
        changes.fixed(&key("driver"), &old.port.driver, &new.port.driver, String::clone, AT_START);
        changes.fixed(&key("rx_descriptors"), &old.port.rx_descriptors, &new.port.rx_descriptors, shown, AT_START);
        changes.fixed(&key("tx_descriptors"), &old.port.tx_descriptors, &new.port.tx_descriptors, shown, AT_START);
    }
}

/// Where events go.
fn destination(log: &EventLog) -> String {
    match &log.target {
        EventTarget::File(path) => path.display().to_string(),
        EventTarget::StandardOutput => "standard output".to_owned(),
    }
}

/// What may change about the log while it is written.
fn events(before: &Config, after: &Config, changes: &mut Changes) {
    let (old, new) = (before.nat.events, after.nat.events);
    changes.value("log.back_pressure", &old.back_pressure, &new.back_pressure, |policy| match policy {
        BackPressure::Refuse => "refuse".to_owned(),
        BackPressure::Drop => "drop".to_owned(),
    });
    changes.value("log.block_mappings", &old.block_mappings, &new.block_mappings, shown);
    let time = |time: &nat::Duration| duration_text(time.as_micros());
    let rate = |events: nat::event::EventSettings| events.filter_events_per_second;
    changes.shared_rate("log.filter_rate", (before, rate(old)), (after, rate(new)));
    changes.value("log.refusal_interval", &old.refusal_interval, &new.refusal_interval, time);
    let (Some(old), Some(new)) = (&before.event_log, &after.event_log) else { return };
    changes.value("log.events", &destination(old), &destination(new), String::clone);
    changes.value("log.rotate_size", &old.rotate_bytes, &new.rotate_bytes, |bytes| format!("{bytes} B"));
    changes.value("log.rotate_interval", &old.rotate_interval, &new.rotate_interval, time);
    changes.value("log.keep_files", &old.keep_files, &new.keep_files, shown);
    changes.value("log.sync", &old.sync, &new.sync, |sync| match sync {
        LogSync::Never => "never".to_owned(),
        LogSync::OnRotation => "on-rotation".to_owned(),
        LogSync::Interval(time) => format!("interval {}", duration_text(time.as_micros())),
        LogSync::Always => "always".to_owned(),
    });
}

/// ICMP that Natrix sends. Of rates a worker has its share, which follows from their number.
fn icmp(before: &Config, after: &Config, changes: &mut Changes) {
    let (old, new) = (before.nat.icmp, after.nat.icmp);
    changes.value("icmp.errors_to_inside", &old.errors_to_inside, &new.errors_to_inside, shown);
    changes.value("icmp.errors_to_outside", &old.errors_to_outside, &new.errors_to_outside, shown);
    let (old_rate, new_rate) = (old.errors_per_second_max, new.errors_per_second_max);
    changes.shared_rate("icmp.error_rate", (before, old_rate), (after, new_rate));
    let each = |policy: &nat::settings::IcmpPolicy| policy.errors_per_second_per_destination_max;
    changes.value("icmp.error_rate_per_destination", &each(&old), &each(&new), |rate| format!("{rate}/s"));
    let code = |code: &Option<u8>| code.map_or("none".to_owned(), |code| code.to_string());
    changes.value("icmp.no_resources_code", &old.no_resources_code, &new.no_resources_code, code);
    changes.value("icmp.answer_echo", &old.answer_echo, &new.answer_echo, shown);
    let answers = |config: &Config| config.nat.answer_unsolicited_syn;
    changes.value("icmp.answer_unsolicited_syn", &answers(before), &answers(after), shown);
}

fn admitted(admission: Admission) -> &'static str {
    match admission {
        Admission::Anyone => "anyone",
        Admission::AsPool => "as the pool",
    }
}

fn forwards(before: &Settings, after: &Settings, changes: &mut Changes) {
    let list = |settings: &Settings| {
        let entry = |forward: &Forward| {
            let Forward { protocol, external, ports: (first, last), inside, inside_port, .. } = forward;
            let name = format!("forward {} {external}:{first}-{last}", protocol.name());
            let who = admitted(forward.admission);
            let vrf = vrf_name(settings, forward.realm);
            (name, format!("to {inside}:{inside_port} in VRF \"{vrf}\", {who}"))
        };
        let several = |forward: &BalancedForward| {
            let BalancedForward { protocol, external, ports: (first, last), targets, .. } = forward;
            let name = format!("forward {} {external}:{first}-{last}", protocol.name());
            let mut targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            targets.sort();
            let sticky = if forward.is_sticky { ", sticky" } else { "" };
            let who = admitted(forward.admission);
            let vrf = vrf_name(settings, forward.realm);
            (name, format!("to {} in VRF \"{vrf}\"{sticky}, {who}", targets.join(", ")))
        };
        let one = settings.forwards.iter().map(entry);
        one.chain(settings.balanced_forwards.iter().map(several)).collect::<Vec<_>>()
    };
    differences(list(before), list(after), changes);
}

fn classes(before: &Settings, after: &Settings, changes: &mut Changes) {
    let count = |class: &Class| format!("{} prefixes", class.subscribers.len());
    for old in &before.classes {
        let object = format!("class \"{}\"", old.name);
        let Some(new) = after.classes.iter().find(|new| new.name == old.name) else {
            changes.note(object, Some(count(old)), None);
            continue;
        };
        let prefixes = |prefixes: &Vec<nat::types::Prefix>| joined(prefixes);
        changes.value(&format!("{object}.subscribers"), &old.subscribers, &new.subscribers, prefixes);
        let vrfs = (vrf_names(before, &old.realms), vrf_names(after, &new.realms));
        changes.value(&format!("{object}.vrfs"), &vrfs.0, &vrfs.1, String::clone);
        limits(&object, &old.limits, &new.limits, changes);
        let text = |settings: &Settings, penalty: &Option<Penalty>| {
            let Some(Penalty { pool, refusals, window, release }) = *penalty else { return "none".to_owned() };
            let pool = settings.pools.get(pool.index()).map_or("?", |pool| &pool.name);
            let (window, release) = (duration_text(window.as_micros()), duration_text(release.as_micros()));
            format!("pool \"{pool}\" after {refusals} refusals in {window}, for {release}")
        };
        let penalties = (text(before, &old.limits.penalty), text(after, &new.limits.penalty));
        changes.value(&format!("{object}.penalty"), &penalties.0, &penalties.1, String::clone);
        let alike = Class {
            subscribers: old.subscribers.clone(),
            realms: old.realms.clone(),
            limits: old.limits,
            ..new.clone()
        };
        if alike != *old {
            changes.note(format!("{object}.*"), Some("other keys".to_owned()), Some("changed".to_owned()));
        }
    }
    for new in after.classes.iter().filter(|new| before.classes.iter().all(|old| old.name != new.name)) {
        changes.note(format!("class \"{}\"", new.name), None, Some(count(new)));
    }
}

fn vrf_name(settings: &Settings, realm: nat::types::RealmId) -> &str {
    settings.realm_names.get(realm.index()).map_or("?", String::as_str)
}

/// No VRF named is all of them.
fn vrf_names(settings: &Settings, realms: &[nat::types::RealmId]) -> String {
    let names = realms.iter().map(|realm| vrf_name(settings, *realm)).collect::<Vec<_>>();
    if names.is_empty() { "all".to_owned() } else { names.join(", ") }
}

/// What each subscriber may use.
fn limits(object: &str, old: &SubscriberLimits, new: &SubscriberLimits, changes: &mut Changes) {
    let key = |name: &str| format!("{object}.{name}");
    let number = |limit: &u32| if *limit == u32::MAX { "no limit".to_owned() } else { limit.to_string() };
    for protocol in nat::Protocol::ALL {
        let index = protocol.index();
        let name = key(&format!("ports.{}", protocol.name()));
        changes.value(&name, &old.ports_max[index], &new.ports_max[index], number);
    }
    changes.value(&key("sessions"), &old.sessions_max, &new.sessions_max, number);
    let each = |ports: &[u32; nat::Protocol::COUNT]| {
        let each =
            nat::Protocol::ALL.iter().zip(ports).map(|(protocol, ports)| format!("{} = {ports}", protocol.name()));
        each.collect::<Vec<_>>().join(", ")
    };
    changes.value(&key("reserved_ports"), &old.reserved_ports, &new.reserved_ports, each);
    let bytes = |limit: &u64| if *limit == u64::MAX { "no limit".to_owned() } else { format!("{limit} B") };
    changes.value(&key("memory"), &old.memory_max, &new.memory_max, bytes);
    let rate = |rate: &Option<Rate>| {
        rate.map_or("no limit".to_owned(), |rate| format!("{}/s, {} at once", rate.per_second, rate.burst))
    };
    changes.value(&key("new_mappings"), &old.new_mappings, &new.new_mappings, rate);
    changes.value(&key("new_sessions"), &old.new_sessions, &new.new_sessions, rate);
    changes.value(&key("threshold"), &old.threshold, &new.threshold, threshold);
    #[allow(clippy::needless_update, reason = "limits that are added have no line above at first")]
    let alike = SubscriberLimits {
        ports_max: old.ports_max,
        sessions_max: old.sessions_max,
        reserved_ports: old.reserved_ports,
        memory_max: old.memory_max,
        new_mappings: old.new_mappings,
        new_sessions: old.new_sessions,
        threshold: old.threshold,
        penalty: old.penalty,
        ..*new
    };
    if alike != *old {
        changes.note(key("*"), Some("other keys".to_owned()), Some("changed".to_owned()));
    }
}

fn threshold(threshold: &Option<Threshold>) -> String {
    threshold.map_or("none".to_owned(), |one| format!("{} %, clear at {} %", one.high_percent, one.low_percent))
}

fn allocation(allocation: &Allocation) -> String {
    let blocks = |blocks: &Blocks| {
        let Blocks { size, per_subscriber_max, idle } = blocks;
        let idle = duration_text(idle.as_micros());
        format!("blocks of {} ports, {per_subscriber_max} each, back after {idle}", size.ports())
    };
    match allocation {
        Allocation::Ports => "ports".to_owned(),
        Allocation::Blocks(some) => blocks(some),
        Allocation::Deterministic { dynamic_slices, overflow } => {
            format!("deterministic, {dynamic_slices} dynamic slices, {}", blocks(overflow))
        }
    }
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
        let vrfs = (vrf_names(before, &old.realms), vrf_names(after, &new.realms));
        changes.value(&format!("{object}.vrfs"), &vrfs.0, &vrfs.1, String::clone);
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
    let prefixes = |prefixes: &Vec<nat::types::Prefix>| joined(prefixes);
    changes.value(&key("subscribers"), &old.subscribers, &new.subscribers, prefixes);
    changes.value(&key("draining"), &old.draining, &new.draining, shown);
    let addresses = |list: &Vec<std::net::Ipv4Addr>| joined(list);
    changes.value(&key("drain"), &old.draining_addresses, &new.draining_addresses, addresses);
    changes.value(&key("pooling"), &old.pooling, &new.pooling, |pooling| match pooling {
        Pooling::Paired => "paired".to_owned(),
        Pooling::Arbitrary => "arbitrary".to_owned(),
    });
    changes.value(&key("filtering"), &old.filtering, &new.filtering, filterings);
    changes.value(&key("parity"), &old.parity, &new.parity, shown);
    changes.value(&key("allocation"), &old.allocation, &new.allocation, allocation);
    changes.value(&key("selection"), &old.selection, &new.selection, |selection| match selection {
        Selection::LeastUsed => "least-used".to_owned(),
        Selection::RoundRobin => "round-robin".to_owned(),
        Selection::Hash => "hash".to_owned(),
    });
    changes.value(&key("threshold"), &old.threshold, &new.threshold, threshold);
    let time = |time: &nat::Duration| duration_text(time.as_micros());
    changes.value(&key("reuse_delay"), &old.reuse_delay, &new.reuse_delay, time);
    changes.value(&key("reuse_at_once"), &old.reuse_at_once, &new.reuse_at_once, |at_once| {
        let named = [("tcp-closed", at_once.tcp_closed), ("filtered", at_once.filtered)];
        let named: Vec<&str> = named.iter().filter(|(_, is_so)| *is_so).map(|(name, _)| *name).collect();
        if named.is_empty() { "nothing".to_owned() } else { named.join(", ") }
    });
    changes.value(&key("shared_ports"), &old.shared_ports_min, &new.shared_ports_min, shown);
    changes.value(&key("one_to_one"), &old.one_to_one, &new.one_to_one, shown);
    let (algorithm_before, algorithm_after) = (algorithm(old.algorithm), algorithm(new.algorithm));
    changes.value(&key("algorithm"), &algorithm_before, &algorithm_after, |word| (*word).to_owned());
    if algorithm_before == algorithm_after && old.algorithm != new.algorithm {
        // It is secret.
        let hidden = |which: &str| Some(format!("{which} key, not shown"));
        changes.note(key("algorithm_key"), hidden("one"), hidden("another"));
    }
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
        allocation: old.allocation,
        selection: old.selection,
        realms: old.realms.clone(),
        threshold: old.threshold,
        reuse_delay: old.reuse_delay,
        reuse_at_once: old.reuse_at_once,
        shared_ports_min: old.shared_ports_min,
        one_to_one: old.one_to_one,
        algorithm: old.algorithm,
        ..new.clone()
    };
    if alike != *old {
        changes.note(key("*"), Some("other keys".to_owned()), Some("changed".to_owned()));
    }
}

/// As one writes it. Its key is another one's to see.
fn algorithm(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Sequential => "sequential",
        Algorithm::Spread => "spread",
        Algorithm::Keyed(_) => "keyed",
    }
}

/// As one writes it: one word, or one for each protocol.
fn filterings(filterings: &[Filtering; nat::Protocol::COUNT]) -> String {
    let word = |filtering: &Filtering| match filtering {
        Filtering::EndpointIndependent => "endpoint-independent",
        Filtering::AddressDependent => "address-dependent",
        Filtering::AddressAndPortDependent => "address-and-port-dependent",
    };
    let [first, others @ ..] = filterings;
    if others.iter().all(|other| other == first) {
        return word(first).to_owned();
    }
    let each = nat::Protocol::ALL.iter().zip(filterings);
    let each = each.map(|(protocol, filtering)| format!("{} = {}", protocol.name(), word(filtering)));
    each.collect::<Vec<_>>().join(", ")
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
    changes.value("timeouts.udp_unanswered", &old.udp_unanswered, &new.udp_unanswered, text);
    let percent = |share: &Option<u8>| share.map_or("never".to_owned(), |share| format!("{share} %"));
    changes.value("timeouts.adapt_above", &old.adapt_above_percent, &new.adapt_above_percent, percent);
    #[allow(clippy::needless_update, reason = "timers that are added have no line above at first")]
    let alike = Timeouts {
        udp: old.udp,
        tcp_opening: old.tcp_opening,
        tcp_established: old.tcp_established,
        tcp_closing: old.tcp_closing,
        icmp: old.icmp,
        unsolicited_syn: old.unsolicited_syn,
        fragment: old.fragment,
        udp_unanswered: old.udp_unanswered,
        adapt_above_percent: old.adapt_above_percent,
        ..*new
    };
    if alike != *old {
        changes.note("timeouts.*", Some("other keys".to_owned()), Some("changed".to_owned()));
    }
}

/// Whatever the engine is told that has no line of its own: it can change live, as all of it is in one snapshot.
fn rest(old: &Settings, new: &Settings, changes: &mut Changes) {
    #[allow(clippy::needless_update, reason = "settings that are added have no line above at first")]
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
        rules: old.rules.clone(),
        filters: old.filters.clone(),
        filter_names: old.filter_names.clone(),
        redirections: old.redirections.clone(),
        forwards: old.forwards.clone(),
        balanced_forwards: old.balanced_forwards.clone(),
        classes: old.classes.clone(),
        subscriber: old.subscriber,
        port_timeouts: old.port_timeouts.clone(),
        hairpin_between_realms: old.hairpin_between_realms,
        events: old.events,
        ..new.clone()
    };
    if alike != *old {
        changes.note("*", Some("other settings".to_owned()), Some("changed".to_owned()));
    }
}

#[cfg(test)]
mod tests;
