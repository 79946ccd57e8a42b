//! The differences between two configurations, and whether a running instance can switch from one
//! to the other.
//!
//! Each configuration is listed as values with a name and a text, such as `pool "a".ports` and
//! `1024-65535`, and values of the same name are compared. The table of keys says which of them
//! need a restart; a test goes through it, so that no key is forgotten here.

use core::hash::BuildHasher;
use core::hash::BuildHasherDefault;
use core::hash::Hash;
use core::net::Ipv4Addr;
use core::net::Ipv6Addr;
use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::DefaultHasher;

use nat::Protocol;
use nat::Settings;
use nat::origin::Origin;
use nat::settings::Admission;
use nat::settings::Algorithm;
use nat::settings::Allocation;
use nat::settings::BalancedForward;
use nat::settings::Blocks;
use nat::settings::FilterRule;
use nat::settings::Filtering;
use nat::settings::Forward;
use nat::settings::Nat64;
use nat::settings::Penalty;
use nat::settings::Pool;
use nat::settings::Softwire;
use nat::settings::SubscriberLimits;
use nat::settings::Threshold;
use nat::settings::Transition;
use nat::types::Prefix;
use nat::types::RealmId;

use crate::check::machine::usual_places;
use crate::keys::live::Effect;
use crate::model::AgentX;
use crate::model::Config;
use crate::model::EventLog;
use crate::model::EventTarget;
use crate::model::Http;
use crate::model::HttpListen;
use crate::model::LogSync;
use crate::model::Snmp;
use crate::report::ports_text;
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
    /// It decides which records of subscribers are kept, or where they go: whatever the tables of
    /// the log say, and the `log` of filters.
    pub of_records: bool,
}

/// When a value differs from one of the same name.
enum Compare<'c> {
    /// When its text does.
    Text,
    /// When this digest does: the text says less.
    Digest(u64),
    /// When this digest does, and neither text is shown.
    Secret(u64),
    /// The text with the numbers of addresses that were added and removed.
    Addresses(&'c [Ipv4Addr]),
    /// When this total does: the text also has each worker's share, which follows from it.
    Total(u32),
    /// When its text does, unless the new value is the default.
    UnlessDefault(bool),
    /// Something with keys of its own: only reported when it comes or goes.
    Never,
}

/// One value of a configuration.
struct Value<'c> {
    /// Table and key of the manual.
    section: &'static str,
    key: &'static str,
    object: String,
    text: String,
    compare: Compare<'c>,
    /// It is reported when it is in one configuration only.
    comes_and_goes: bool,
}

impl Value<'_> {
    fn differs_from(&self, after: &Value<'_>) -> bool {
        match (&self.compare, &after.compare) {
            (Compare::Never, _) => false,
            (Compare::Digest(old), Compare::Digest(new)) | (Compare::Secret(old), Compare::Secret(new)) => old != new,
            (Compare::Addresses(old), Compare::Addresses(new)) => old != new,
            (Compare::Total(old), Compare::Total(new)) => old != new,
            (_, Compare::UnlessDefault(true)) => false,
            _ => self.text != after.text,
        }
    }

    /// It comes, or goes, with a change.
    fn note(&self, goes: bool) -> Change {
        let (before, after) = if goes { (Some(self.text.clone()), None) } else { (None, Some(self.text.clone())) };
        note(&self.object, before, after)
    }

    /// The change from it to another value.
    fn change(&self, after: &Value<'_>) -> Change {
        let (before, after) = match (&self.compare, &after.compare) {
            (Compare::Secret(_), _) => ("one key, not shown".to_owned(), "another key, not shown".to_owned()),
            (Compare::Addresses(old), Compare::Addresses(new)) => {
                let (was, is): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
                let (gone, come) = (was.difference(&is).count(), is.difference(&was).count());
                (self.text.clone(), format!("{}: {gone} fewer, {come} more", after.text))
            }
            _ => (self.text.clone(), after.text.clone()),
        };
        let restart = self.restart(before == NONE || after == NONE);
        Change { restart, ..note(&self.object, Some(before), Some(after)) }
    }

    /// Why a change of it needs a restart, if it does; it may begin or end with the change.
    fn restart(&self, begins_or_ends: bool) -> Option<&'static str> {
        match Effect::of(self.section, self.key) {
            Effect::Live => None,
            Effect::RestartToBeginOrEnd if !begins_or_ends => None,
            Effect::Restart | Effect::RestartToBeginOrEnd => Some(match (self.section, self.key) {
                ("tables", _) => "tables get their memory when the instance starts",
                ("nat64" | "softwire" | "subscriber", _) => "existing records of IPv6 hosts depend on it",
                ("workers", _) => "workers start with the instance",
                ("control", "audit") => "it is opened when the instance starts",
                ("control", _) => "clients find the socket by its path",
                ("http" | "http.tls" | "http.user", _) => "the process of the API starts with the instance",
                ("snmp", _) => "the process for SNMP starts with the instance",
                ("log", "events") => "existing mappings would have no record, or one without an end",
                ("log.store", _) => "the rings of the workers are created for it at start",
                ("log", "queue") => "workers get their queues when the instance starts",
                _ => "it is set up when the instance starts",
            }),
        }
    }
}

/// What has no value.
const NONE: &str = "none";

/// All differences from `before` to `after`: those that need a restart first, then the others, both
/// in the order of the manual.
pub fn changes(before: &Config, after: &Config) -> Vec<Change> {
    let (old, new) = (Values::of(before), Values::of(after));
    let by_object = |values: &'_ [Value<'_>]| -> HashMap<String, usize> {
        values.iter().map(|value| value.object.clone()).zip(0..).collect()
    };
    let (old_at, new_at) = (by_object(&old), by_object(&new));
    let mut found: Vec<(&'static str, Change)> = Vec::new();
    for value in &old {
        match new_at.get(&value.object).and_then(|at| new.get(*at)) {
            Some(next) if value.differs_from(next) => found.push((value.section, value.change(next))),
            None if value.comes_and_goes => found.push((value.section, value.note(true))),
            _ => {}
        }
    }
    let added = new.iter().filter(|value| value.comes_and_goes && !old_at.contains_key(&value.object));
    found.extend(added.map(|value| (value.section, value.note(false))));
    lists(&before.nat, &after.nat, &mut found);

    // What follows from another difference is no difference of its own.
    let is_changed = |object: &str| found.iter().any(|(_, change)| change.object == object);
    let (other_interfaces, other_workers) = (is_changed("interface"), is_changed("workers.count"));
    found.retain(|(_, Change { object, .. })| {
        let is_of_interface = object.starts_with("interface \"");
        let is_of_memory = ["dpdk.memory", "dpdk.buffers"].contains(&object.as_str());
        !(other_interfaces && is_of_interface || other_workers && is_of_memory)
    });
    let place = |section: &str| crate::keys::sections().iter().position(|known| known.name == section);
    found.sort_by_key(|(section, change)| (change.restart.is_none(), place(section)));
    let logging = |filter: &&FilterRule| filter.log;
    let logs_otherwise = !before.nat.filters.iter().filter(logging).eq(after.nat.filters.iter().filter(logging));
    let of_records = |(section, change): (&str, Change)| Change {
        of_records: match section {
            "log" | "log.store" | "log.sink" => true,
            "filter" => logs_otherwise,
            _ => false,
        },
        ..change
    };
    found.into_iter().map(of_records).collect()
}

/// Most prefixes of one kind that a change names.
const PREFIXES_MAX: usize = 8;

/// A few are looked for in the whole list: to hash a list of a million takes longer.
const ONE_BY_ONE_MAX: usize = 16;

/// The longest of these prefixes, which are about the fewest, and how many there are besides.
fn named(prefixes: impl Iterator<Item = (Prefix, String)>) -> String {
    let mut prefixes: Vec<_> = prefixes.collect();
    prefixes.sort_by_key(|(prefix, _)| core::cmp::Reverse(prefix.length()));
    let texts: Vec<String> = prefixes.iter().take(PREFIXES_MAX).map(|(_, text)| text.clone()).collect();
    match prefixes.len().saturating_sub(PREFIXES_MAX) {
        0 => texts.join(", "),
        more => format!("{} and {more} more", texts.join(", ")),
    }
}

/// The inside prefixes of what is in one list only: `; added: 100.64.0.7; removed: ...`.
fn prefixes<T: Eq + Hash>(
    (old, before): (&Settings, &[T]),
    (new, after): (&Settings, &[T]),
    inside: impl Fn(&T) -> Prefix,
) -> String {
    let text = |word: &str, settings: &Settings, only: Vec<&T>| {
        let only = only.into_iter().map(&inside);
        let only = named(only.map(|prefix| (prefix, settings.transition.shown(prefix))));
        if only.is_empty() { only } else { format!("; {word}: {only}") }
    };
    let (added, removed) = only_in_one(before, after);
    format!("{}{}", text("added", new, added), text("removed", old, removed))
}

/// What is only in `after`, and what is only in `before`. Hashes only what lies between the first
/// and the last difference: a change of one rule among a million takes milliseconds.
fn only_in_one<'a, T: Eq + Hash>(before: &'a [T], after: &'a [T]) -> (Vec<&'a T>, Vec<&'a T>) {
    let head = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (was, is) = (&before[head..], &after[head..]);
    let tail = was.iter().rev().zip(is.iter().rev()).take_while(|(one, other)| one == other).count();
    let (was, is) = (&was[..was.len() - tail], &is[..is.len() - tail]);
    let only = |all: &'a [T], others: &'a [T]| {
        let others: HashSet<&T> = others.iter().collect();
        let mut only: Vec<&T> = all.iter().filter(|one| !others.contains(one)).collect();
        // It may be among what is alike in both lists, too.
        let alike = || before[..head].iter().chain(&before[before.len() - tail..]);
        if only.len() <= ONE_BY_ONE_MAX {
            only.retain(|one| !alike().any(|other| other == *one));
        } else {
            let alike: HashSet<&T> = alike().collect();
            only.retain(|one| !alike.contains(one));
        }
        only
    };
    (only(is, was), only(was, is))
}

/// `1 rule`, `2 rules`.
fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Lists without names: how many there are, where the first one differs, and whose prefixes.
fn lists(old: &Settings, new: &Settings, found: &mut Vec<(&'static str, Change)>) {
    // `of` gets the position of the first difference.
    fn list<T: PartialEq>(
        object: &str,
        word: &str,
        (before, after): (&[T], &[T]),
        of: impl Fn(usize) -> String,
    ) -> Option<Change> {
        let alike = before.iter().zip(after).take_while(|(one, other)| one == other).count();
        let count = |list: &[T]| counted(list.len(), word, &format!("{word}s"));
        let texts = || note(object, Some(count(before)), Some(format!("{}{}", count(after), of(alike))));
        (alike < before.len().max(after.len())).then(texts)
    }
    // In words of `natrix check`: `rule[3]`, `web.csv:17`.
    let first = |table: &str, (was, is): (&[Origin], &[Origin]), position: usize| {
        let (place, gone) = match position < is.len() {
            true => (new.origins.place(is, position), ""),
            false => (old.origins.place(was, position), ", which is removed"),
        };
        let place = if place.contains(':') { place } else { format!("{table}[{place}]") };
        format!("; first difference at {place}{gone}")
    };
    let rules = |position| {
        let first = first("rule", (&old.origins.rules, &new.origins.rules), position);
        first + &prefixes((old, &old.rules), (new, &new.rules), |rule| rule.matches.source)
    };
    let filters = |position| {
        let first = first("filter", (&old.origins.filters, &new.origins.filters), position);
        first + &prefixes((old, &old.filters), (new, &new.filters), |filter| filter.matches.source)
    };
    let timers = |position: usize| {
        let gone = if position < new.port_timeouts.len() { "" } else { ", which is removed" };
        format!("; first difference at port_timeout[{position}]{gone}")
    };
    let all = [
        ("rule", list("rule", "rule", (&old.rules, &new.rules), rules)),
        (
            "rule",
            list("rule.redirect", "redirection", (&old.redirections, &new.redirections), |_| {
                "; they differ".to_owned()
            }),
        ),
        ("filter", list("filter", "filter", (&old.filters, &new.filters), filters)),
        ("port_timeout", list("port_timeout", "timer", (&old.port_timeouts, &new.port_timeouts), timers)),
    ];
    found.extend(all.into_iter().filter_map(|(section, change)| Some((section, change?))));
}

fn note(object: &str, before: Option<String>, after: Option<String>) -> Change {
    Change { object: object.to_owned(), before, after, restart: None, of_records: false }
}

/// The values of a configuration, table by table.
struct Values<'c> {
    section: &'static str,
    /// The name of the thing in this table, if it has one.
    object: String,
    list: Vec<Value<'c>>,
}

impl<'c> Values<'c> {
    fn of(config: &'c Config) -> Vec<Value<'c>> {
        let mut values = Values { section: "", object: String::new(), list: Vec::new() };
        values.interfaces(config);
        values.routes_and_forwards(&config.nat);
        values.pools(&config.nat);
        values.rules(&config.nat);
        values.subscribers(&config.nat);
        values.timers(config);
        values.process(config);
        values.http(config.http.as_ref());
        values.snmp(config.snmp.as_ref());
        values.log(config);
        values.list
    }

    /// What follows is in this table.
    fn table(&mut self, section: &'static str) {
        (self.section, self.object) = (section, section.to_owned());
    }

    /// A named thing; its keys follow.
    fn thing(&mut self, object: String, text: String, compare: Compare<'c>) {
        let (section, key) = (self.section, "");
        self.list.push(Value { section, key, object: object.clone(), text, compare, comes_and_goes: true });
        self.object = object;
    }

    fn push(&mut self, key: &'static str, text: impl ToString, compare: Compare<'c>) {
        let object = format!("{}.{key}", self.object);
        let section = self.section;
        self.list.push(Value { section, key, object, text: text.to_string(), compare, comes_and_goes: false });
    }

    fn key(&mut self, key: &'static str, text: impl ToString) {
        self.push(key, text, Compare::Text);
    }

    fn interfaces(&mut self, config: &'c Config) {
        self.table("interface");
        let interfaces = &config.nat.interfaces;
        let names = joined(interfaces.iter().map(|interface| &interface.name));
        for (object, text) in [("interface", names), ("vrf", joined(&config.nat.realm_names))] {
            let (section, compare) = (self.section, Compare::Text);
            let object = object.to_owned();
            self.list.push(Value { section, key: "name", object, text, compare, comes_and_goes: false });
        }
        for (index, (interface, link)) in interfaces.iter().zip(&config.interfaces).enumerate() {
            let Some(port) = config.ports.get(link.port) else { continue };
            self.object = format!("interface \"{}\"", interface.name);
            self.key("realm", word(&interface.side));
            self.key("vrf", vrf_name(&config.nat, interface.realm));
            let own = interface.addresses.iter().map(|own| format!("{}/{}", own.address, own.prefix_length));
            let own6 = config.nat.ipv6.addresses.iter().filter(|own| own.interface.index() == index);
            let own6 = own6.map(|own| format!("{}/{}", own.address, own.prefix_length));
            self.key("addresses", joined(own.chain(own6)));
            self.key("mtu", interface.mtu);
            self.key("kernel", or_none(config.kernel.get(index).and_then(Option::as_ref)));
            self.key("kernel_table", or_none(config.kernel_tables.get(index).and_then(Option::as_ref)));
            self.key("vlan", or_none(link.vlan));
            let is_own = port.name == interface.name;
            self.key("parent", or_none((!is_own).then_some(&port.name)));
            // What is said of a port is said where it has its own interface.
            if is_own {
                self.key("driver", &port.driver);
                self.key("rx_descriptors", port.rx_descriptors);
                self.key("tx_descriptors", port.tx_descriptors);
            }
        }
    }

    fn routes_and_forwards(&mut self, settings: &'c Settings) {
        self.table("route");
        for route in &settings.routes {
            let interface = settings.interfaces.get(route.interface.index()).map_or("?", |it| &it.name);
            let way = format!("via {} on \"{interface}\"", route.next_hop);
            self.thing(format!("route {} of \"{interface}\"", route.prefix), way, Compare::Text);
        }
        for route in &settings.ipv6.routes {
            let interface = settings.interfaces.get(route.interface.index()).map_or("?", |it| &it.name);
            let way = format!("via {} on \"{interface}\"", route.next_hop);
            let object = format!("route {}/{} of \"{interface}\"", route.prefix, route.prefix_length);
            self.thing(object, way, Compare::Text);
        }
        let hosts_pool = |realm: RealmId| {
            let serves = |pool: &&Pool| pool.serves(realm) && pool.subscribers.contains(&Transition::HOSTS);
            settings.pools.iter().find(serves).map_or("?", |pool| &pool.name)
        };
        let transition = &settings.transition;
        self.table("nat64");
        let prefix = |one: &Nat64| format!("{}/{}", Ipv6Addr::from_bits(one.prefix.address()), one.prefix.length());
        self.key("prefix", joined(transition.nat64.iter().map(prefix)));
        self.key("vrf", joined(transition.nat64.iter().map(|one| vrf_name(settings, one.realm))));
        self.key("pool", joined(transition.nat64.iter().map(|one| hosts_pool(one.realm))));
        self.key("lowest_ipv6_mtu", joined(transition.nat64.iter().map(|one| one.lowest_mtu6)));
        self.table("softwire");
        let softwires = &transition.softwires;
        self.key("aftr", joined(softwires.iter().map(|one| one.aftr)));
        self.key("vrf", joined(softwires.iter().map(|one| vrf_name(settings, one.realm))));
        self.key("pool", joined(softwires.iter().map(|one| hosts_pool(one.realm))));
        self.key("inner", joined(softwires.iter().map(|one| joined(&one.inner))));
        let subscribers = |one: &Softwire| match &one.subscribers[..] {
            [] => "all".to_owned(),
            some => joined(some),
        };
        self.key("subscribers", joined(softwires.iter().map(subscribers)));
        self.table("forward");
        let admitted = |admission: Admission| match admission {
            Admission::Anyone => "anyone",
            Admission::AsPool => "as the pool",
        };
        let name = |protocol: Protocol, external: Ipv4Addr, (first, last): (u16, u16)| {
            format!("forward {} {external}:{}", protocol.name(), ports_text(first, last))
        };
        for forward in &settings.forwards {
            let Forward { protocol, external, ports, inside, inside_port, .. } = forward;
            let (who, vrf) = (admitted(forward.admission), vrf_name(settings, forward.realm));
            let text = format!("to {} in VRF \"{vrf}\", {who}", inside.with_port(inside_port));
            self.thing(name(*protocol, *external, *ports), text, Compare::Text);
        }
        for forward in &settings.balanced_forwards {
            let BalancedForward { protocol, external, ports, targets, .. } = forward;
            let mut targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            targets.sort();
            let sticky = if forward.is_sticky { ", sticky" } else { "" };
            let (who, vrf) = (admitted(forward.admission), vrf_name(settings, forward.realm));
            let text = format!("to {} in VRF \"{vrf}\"{sticky}, {who}", targets.join(", "));
            self.thing(name(*protocol, *external, *ports), text, Compare::Text);
        }
    }

    fn pools(&mut self, settings: &'c Settings) {
        self.table("pool");
        for pool in &settings.pools {
            let count = counted(pool.addresses.len(), "address", "addresses");
            let shown = |prefix: &Prefix| match *prefix {
                Transition::HOSTS => "IPv6 hosts".to_owned(),
                prefix => prefix.to_string(),
            };
            let served = named(pool.subscribers.iter().map(|prefix| (*prefix, shown(prefix))));
            let about = format!("{count} for {}", if served.is_empty() { NONE } else { &served });
            self.thing(format!("pool \"{}\"", pool.name), about, Compare::Never);
            self.key("vrfs", vrf_names(settings, &pool.realms));
            self.push("addresses", count, Compare::Addresses(&pool.addresses));
            self.key("ports", format!("{}-{}", pool.port_min, pool.port_max));
            let reserved = format!("{} ports", pool.reserved_ports.len());
            self.push("reserved_ports", reserved, Compare::Digest(digest(&pool.reserved_ports)));
            // That it serves IPv6 hosts follows from their tables.
            let written = pool.subscribers.iter().filter(|prefix| **prefix != Transition::HOSTS);
            self.key("subscribers", joined(written));
            self.key("draining", pool.draining);
            self.key("drain", joined(&pool.draining_addresses));
            self.key("pooling", word(&pool.pooling));
            self.key("filtering", filterings(&pool.filtering));
            self.key("parity", pool.parity);
            self.key("allocation", allocation(pool));
            self.key("selection", word(&pool.selection));
            self.key("threshold", threshold(pool.threshold));
            self.key("reuse_delay", time(pool.reuse_delay));
            let at_once = [("tcp-closed", pool.reuse_at_once.tcp_closed), ("filtered", pool.reuse_at_once.filtered)];
            let at_once: Vec<&str> = at_once.iter().filter(|(_, is_so)| *is_so).map(|(name, _)| *name).collect();
            self.key("reuse_at_once", if at_once.is_empty() { "nothing".to_owned() } else { at_once.join(", ") });
            self.key("shared_ports", pool.shared_ports_min);
            self.key("one_to_one", pool.one_to_one);
            self.key("algorithm", word(&pool.algorithm));
            if let Algorithm::Keyed(key) = pool.algorithm {
                self.push("algorithm_key", "", Compare::Secret(key));
            }
        }
    }

    /// Of rules and filters, what is no list of its own.
    fn rules(&mut self, settings: &'c Settings) {
        self.table("rule");
        let pass = &settings.pass_rules;
        let inside = named(pass.iter().map(|rule| (rule.inside, settings.transition.shown(rule.inside))));
        let about = if inside.is_empty() { inside } else { format!(": {inside}") };
        let text = format!("{} that pass a protocol{about}", pass.len());
        let (section, compare) = (self.section, Compare::Digest(digest(pass)));
        let object = "rule".to_owned();
        self.list.push(Value { section, key: "action", object, text, compare, comes_and_goes: false });
        self.table("filter");
        let names = &settings.filter_names;
        self.push("name", format!("{} named", names.len()), Compare::Digest(digest(names)));
    }

    fn subscribers(&mut self, settings: &'c Settings) {
        self.table("class");
        for class in &settings.classes {
            let count = format!("{} prefixes", class.subscribers.len());
            self.thing(format!("class \"{}\"", class.name), count, Compare::Never);
            let shown = class.subscribers.iter().map(|prefix| settings.transition.shown(*prefix));
            self.key("subscribers", joined(shown));
            self.key("vrfs", vrf_names(settings, &class.realms));
            self.limits(&class.limits);
            let penalty = class.limits.penalty.map(|Penalty { pool, refusals, window, release }| {
                let pool = settings.pools.get(pool.index()).map_or("?", |pool| &pool.name);
                format!("pool \"{pool}\" after {refusals} refusals in {}, for {}", time(window), time(release))
            });
            self.key("penalty", or_none(penalty));
            let gateways = class.gateways.as_ref().map(|own| own.iter().filter_map(|id| id.alg()).map(alg::Alg::name));
            self.key("alg", gateways.map_or_else(|| "as [alg]".to_owned(), joined));
        }
        self.table("subscriber");
        self.limits(&settings.subscriber);
        self.key("ipv6_prefix_length", settings.transition.prefix_length);
        self.key("ipv6_hosts", settings.transition.hosts_per_subscriber_max);
        self.key("sessions_per_mapping", settings.limits.sessions_per_mapping_max);
        self.key("hairpin_between_vrfs", settings.hairpin_between_realms);
    }

    /// What each subscriber may use.
    fn limits(&mut self, limits: &SubscriberLimits) {
        let unlimited = || "no limit".to_owned();
        let number = |limit: u32| if limit == u32::MAX { unlimited() } else { limit.to_string() };
        for (key, protocol) in
            [("ports.udp", Protocol::Udp), ("ports.tcp", Protocol::Tcp), ("ports.icmp", Protocol::Icmp)]
        {
            self.key(key, number(limits.ports_max[protocol.index()]));
        }
        self.key("sessions", number(limits.sessions_max));
        let each = Protocol::ALL.iter().zip(limits.reserved_ports);
        self.key("reserved_ports", joined(each.map(|(protocol, ports)| format!("{} = {ports}", protocol.name()))));
        let memory = limits.memory_max;
        self.key("memory", if memory == u64::MAX { unlimited() } else { format!("{memory} B") });
        for (key, rate) in [("new_mappings", limits.new_mappings), ("new_sessions", limits.new_sessions)] {
            let text = |rate: nat::settings::Rate| format!("{}/s, {} at once", rate.per_second, rate.burst);
            self.key(key, rate.map_or_else(unlimited, text));
        }
        self.key("threshold", threshold(limits.threshold));
    }

    fn timers(&mut self, config: &'c Config) {
        self.table("timeouts");
        let timeouts = config.nat.timeouts;
        for (key, timeout) in [
            ("udp", timeouts.udp),
            ("tcp_opening", timeouts.tcp_opening),
            ("tcp_established", timeouts.tcp_established),
            ("tcp_closing", timeouts.tcp_closing),
            ("icmp", timeouts.icmp),
            ("unsolicited_syn", timeouts.unsolicited_syn),
            ("fragment", timeouts.fragment),
            ("udp_unanswered", timeouts.udp_unanswered),
        ] {
            self.key(key, time(timeout));
        }
        let percent = |share: u8| format!("{share} %");
        self.key("adapt_above", timeouts.adapt_above_percent.map_or("never".to_owned(), percent));
        self.key("inbound_refresh", config.nat.inbound_refresh);
        self.table("reload");
        let reload = config.nat.reload;
        self.key("removed", word(&reload.removed));
        self.key("drain_time", or_none(reload.drain_time.map(time)));
    }

    /// What the process is, and what it sends itself.
    fn process(&mut self, config: &'c Config) {
        let workers = config.workers.count;
        self.gateways(config);
        self.table("icmp");
        let icmp = config.nat.icmp;
        self.key("errors_to_inside", icmp.errors_to_inside);
        self.key("errors_to_outside", icmp.errors_to_outside);
        let rate = config.totals.icmp_errors_per_second;
        self.push("error_rate", format!("{rate}/s"), Compare::Total(rate));
        self.key("error_rate_per_destination", format!("{}/s", icmp.errors_per_second_per_destination_max));
        self.key("no_resources_code", or_none(icmp.no_resources_code));
        self.key("answer_echo", icmp.answer_echo);
        self.key("answer_unsolicited_syn", config.nat.answer_unsolicited_syn);
        self.table("port_control");
        let port_control = &config.nat.port_control;
        self.key("pcp", port_control.pcp);
        self.key("nat_pmp", port_control.nat_pmp);
        self.key("lifetime_min", time(port_control.lifetime_min));
        self.key("lifetime_max", time(port_control.lifetime_max));
        self.key("mappings_per_subscriber", port_control.mappings_per_subscriber);
        self.key("third_party", joined(&port_control.third_party));
        self.key("state", or_none(config.grants_file.as_ref().map(|path| path.display())));
        self.table("routing");
        self.key("kernel", config.nat.live_routes);
        self.table("workers");
        self.key("count", workers);
        self.key("cpus", joined(&config.workers.cpus));
        self.table("tables");
        let limits = config.nat.limits;
        let of_all = config.totals.limits;
        for (key, total, each) in [
            ("mappings", of_all.mappings_max, limits.mappings_max),
            ("extra_sessions", of_all.extra_sessions_max, limits.extra_sessions_max),
            ("flows", of_all.flows_max, limits.flows_max),
            ("subscribers", of_all.subscribers_max, limits.subscribers_max),
            ("ipv6_hosts", config.totals.hosts, config.nat.transition.hosts_max),
            ("fragmented_datagrams", of_all.fragmented_datagrams_max, limits.fragmented_datagrams_max),
            ("fragments_held", of_all.fragments_held_max, limits.fragments_held_max),
            ("unsolicited_syns", of_all.unsolicited_syns_max, limits.unsolicited_syns_max),
            ("held_ports", of_all.held_ports_max, limits.held_ports_max),
        ] {
            let text = if workers > 1 { format!("{total}, for each worker {each}") } else { total.to_string() };
            self.push(key, text, Compare::Total(total));
        }
        // Where the file does not say how many places there are, they follow from the addresses;
        // whether those fit is seen when they are to be placed.
        let places = u64::from(limits.external_addresses_max);
        let addresses = config.nat.pools.iter().map(|pool| pool.addresses.len() as u64).sum();
        self.push("external_addresses", places, Compare::UnlessDefault(places == usual_places(addresses)));
        self.table("dpdk");
        self.key("hugepages", word(&config.dpdk.hugepages));
        self.key("memory", config.dpdk.memory_bytes);
        self.key("buffers", config.dpdk.buffers);
        self.table("control");
        self.key("socket", config.control.socket.display());
        self.key("mode", format!("{:o}", config.control.mode));
        self.key("audit", config.control.audit.display());
    }

    fn http(&mut self, http: Option<&'c Http>) {
        self.table("http");
        self.key(
            "listen",
            or_none(http.map(|http| match &http.listen {
                HttpListen::Tcp(address) => address.to_string(),
                HttpListen::Unix(path) => format!("unix:{}", path.display()),
            })),
        );
        self.key("hosts", http.map_or_else(|| NONE.to_owned(), |http| joined(&http.hosts)));
        self.table("http.tls");
        let tls = http.and_then(|http| http.tls.as_ref());
        self.key("certificate", or_none(tls.map(|tls| tls.certificate.display())));
        self.key("key", or_none(tls.map(|tls| tls.key.display())));
        let authorities = tls.and_then(|tls| tls.client_authorities.as_ref());
        self.key("client_authorities", or_none(authorities.map(|path| path.display())));
        self.table("http.user");
        let users = http.map_or(&[][..], |http| &http.users);
        self.key("name", joined(users.iter().map(|user| &user.name)));
        for user in users {
            self.object = format!("http.user \"{}\"", user.name);
            self.key("role", word(&user.role));
            self.push("token", or_none(user.token.as_ref().map(|_| "a hash")), Compare::Secret(digest(&user.token)));
            self.key("group", or_none(user.group.as_ref()));
        }
    }

    fn snmp(&mut self, snmp: Option<&'c Snmp>) {
        self.table("snmp");
        self.key(
            "agentx",
            or_none(snmp.map(|snmp| match &snmp.agentx {
                AgentX::Tcp(address) => address.to_string(),
                AgentX::Unix(path) => path.display().to_string(),
            })),
        );
        self.key("alias", or_none(snmp.map(|snmp| &snmp.alias)));
        self.key("rows", or_none(snmp.map(|snmp| snmp.rows)));
        self.key("state", or_none(snmp.and_then(|snmp| snmp.state.as_ref()).map(|path| path.display())));
    }

    fn gateways(&mut self, config: &'c Config) {
        self.table("alg");
        self.key("sessions", config.nat.control_sessions_max);
        for (table, alg) in crate::draft::gateway::tables() {
            let found = config.nat.gateways.iter().find(|gateway| gateway.alg == alg);
            self.table(table);
            self.key("enabled", found.is_some_and(|gateway| gateway.serves_everyone));
            let usual = nat::settings::Gateway::new(alg);
            let gateway = found.unwrap_or(&usual);
            let all = |names: &[String]| if names.is_empty() { "all".to_owned() } else { names.join(", ") };
            self.key("ports", joined(gateway.ports.iter().map(u16::to_string)));
            let commands = alg.alg().map_or(&[][..], |alg| alg.commands());
            if !commands.is_empty() {
                let enabled = commands.iter().enumerate().filter(|(bit, _)| gateway.disabled & 1 << bit == 0);
                self.key("commands", joined(enabled.map(|(_, command)| (*command).to_owned())));
            }
            self.key("pools", all(&gateway.pools));
            self.key("expectations_per_subscriber", gateway.expectations_per_subscriber);
            self.key("timeout", time(gateway.timeout));
        }
    }

    fn log(&mut self, config: &'c Config) {
        self.table("log");
        self.key("level", word(&config.log.level));
        self.key("format", word(&config.log.format));
        let events = config.nat.events;
        self.key("back_pressure", word(&events.back_pressure));
        self.key("block_mappings", events.block_mappings);
        let rate = config.totals.filter_events_per_second;
        self.push("filter_rate", format!("{rate}/s"), Compare::Total(rate));
        self.key("refusal_interval", time(events.refusal_interval));
        self.key("events", or_none(config.event_log.as_ref().and_then(destination)));
        let Some(log) = &config.event_log else { return };
        self.key("queue", log.queue);
        self.key("rotate_size", format!("{} B", log.rotate_bytes));
        self.key("rotate_interval", time(log.rotate_interval));
        self.key("keep_files", log.keep_files);
        let interval =
            if let LogSync::Interval(every) = log.sync { format!(" {}", time(every)) } else { String::new() };
        self.key("sync", word(&log.sync) + &interval);
        if let Some(store) = &log.store {
            self.table("log.store");
            self.key("path", store.path.display());
            self.key("retention", or_none(store.retention.map(time)));
            self.key("sync_interval", time(store.sync_interval));
            self.key("segment_size", store.segment_rows);
            self.key("segment_interval", time(store.segment_interval));
            self.key("signing_key", or_none(store.signing_key.as_ref().map(|path| path.display())));
        }
        self.table("log.sink");
        for sink in &config.log_sinks {
            self.thing(format!("log.sink \"{}\"", sink.name), sink.address(), Compare::Never);
            self.key("kind", word(&sink.kind));
            self.key("address", sink.address());
            self.key("certificates", or_none(sink.certificates.as_ref().map(|path| path.display())));
            let own = sink.own.as_ref();
            self.key("certificate", or_none(own.map(|(certificate, _)| certificate.display())));
            self.key("key", or_none(own.map(|(_, key)| key.display())));
            self.key("domain", sink.domain);
            self.key("mtu", sink.mtu);
            self.key("template_interval", time(sink.template_interval));
            self.key("spool", sink.spool_bytes);
        }
    }
}

/// The name of a variant as the file has it, such as `least-used`, without what it holds.
fn word<T: core::fmt::Debug>(value: &T) -> String {
    let name = format!("{value:?}");
    let mut word = String::new();
    for letter in name.chars().take_while(|letter| letter.is_alphanumeric()) {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('-');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

fn time(time: nat::Duration) -> String {
    duration_text(time.as_micros())
}

fn or_none<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn joined<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") }
}

fn digest(value: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(value)
}

fn vrf_name(settings: &Settings, realm: RealmId) -> &str {
    settings.realm_names.get(realm.index()).map_or("?", String::as_str)
}

/// No VRF named is all of them.
fn vrf_names(settings: &Settings, realms: &[RealmId]) -> String {
    if realms.is_empty() { "all".to_owned() } else { joined(realms.iter().map(|realm| vrf_name(settings, *realm))) }
}

/// Where events go.
fn destination(log: &EventLog) -> Option<String> {
    log.target.as_ref().map(|target| match target {
        EventTarget::File(path) => path.display().to_string(),
        EventTarget::StandardOutput => "standard output".to_owned(),
    })
}

fn threshold(threshold: Option<Threshold>) -> String {
    or_none(threshold.map(|one| format!("{} %, clear at {} %", one.high_percent, one.low_percent)))
}

fn allocation(pool: &Pool) -> String {
    let blocks = |blocks: &Blocks| {
        let Blocks { size, per_subscriber_max, idle } = blocks;
        format!("blocks of {} ports, {per_subscriber_max} each, back after {}", size.ports(), time(*idle))
    };
    match &pool.allocation {
        Allocation::Ports => "ports".to_owned(),
        Allocation::Blocks(some) => blocks(some),
        Allocation::Deterministic { dynamic_slices, overflow } => {
            format!("deterministic, {dynamic_slices} dynamic slices, {}", blocks(overflow))
        }
    }
}

/// As one writes it: one word, or one for each protocol.
fn filterings(filterings: &[Filtering; Protocol::COUNT]) -> String {
    let [first, others @ ..] = filterings;
    if others.iter().all(|other| other == first) {
        return word(first);
    }
    joined(Protocol::ALL.iter().zip(filterings).map(|(protocol, it)| format!("{} = {}", protocol.name(), word(it))))
}

#[cfg(test)]
mod tests;
