//! `[alg.ftp]` and the others.

use alg::AlgId;
use nat::settings::Gateway;
use toml_edit::Table;

use crate::draft::single;
use crate::keys::SECTIONS;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::Section;
use crate::section::choose;
use crate::section::quoted;
use crate::section::shown;

/// One enabled gateway; what is faulty is missing.
pub(crate) struct GatewayDraft {
    pub(crate) gateway: Gateway,
    pools: Vec<Placed<String>>,
    classes: Vec<Placed<String>>,
}

/// The gateways, with their tables.
pub(crate) fn tables() -> impl Iterator<Item = (&'static str, AlgId)> {
    SECTIONS.iter().filter_map(|section| Some((section.name, AlgId::named(section.name.strip_prefix("alg.")?)?)))
}

/// All that are enabled.
pub(crate) fn gateways(root: &Table, report: &mut Report) -> Vec<GatewayDraft> {
    let empty = Table::new();
    single(root, "alg", &empty, report);
    let mut found = Vec::new();
    for (table, alg) in tables() {
        let section = single(root, table, &empty, report);
        let draft = read(&section, alg, report);
        if section.boolean("enabled", report) == Some(true) {
            found.push(draft);
        }
    }
    found
}

fn read(section: &Section, alg: AlgId, report: &mut Report) -> GatewayDraft {
    let mut gateway = Gateway::new(alg);
    gateway.ports = ports(section, report);
    let commands = alg.alg().map_or(&[][..], |alg| alg.commands());
    if !commands.is_empty() {
        let named = section.parsed_list("commands", |text| Ok(text.to_owned()), "the name of a command", report);
        let known: Vec<_> = named.iter().filter_map(|name| choose(name, commands, report)).collect();
        let disabled = commands.iter().enumerate().filter(|(_, command)| !known.contains(command));
        gateway.disabled = disabled.fold(0, |bits, (bit, _)| bits | 1 << bit);
    }
    if let Some(limit) = section.integer("expectations_per_subscriber", report) {
        gateway.expectations_per_subscriber = limit.value as u32;
    }
    if let Some(timeout) = section.duration("timeout", report) {
        gateway.timeout = timeout.value;
    }
    let names = |key: &str, report: &mut Report| section.parsed_list(key, |text| Ok(text.to_owned()), "a name", report);
    let (pools, classes) = (names("pools", report), names("classes", report));
    gateway.pools = pools.iter().map(|pool| pool.value.clone()).collect();
    gateway.classes = classes.iter().map(|class| class.value.clone()).collect();
    GatewayDraft { gateway, pools, classes }
}

fn ports(section: &Section, report: &mut Report) -> Vec<u16> {
    let mut ports = Vec::new();
    for element in section.list("ports", report) {
        let port = element.value.as_integer().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        match port {
            Some(port) => ports.push(port),
            None => report.fault(&element.place, "is not a port", shown(&element.value), "write 1 to 65535"),
        }
    }
    ports
}

impl GatewayDraft {
    /// Whether the pools and classes it names exist.
    pub(crate) fn check(&self, pools: &[&str], classes: &[&str], report: &mut Report) {
        for (names, known, what) in [(&self.pools, pools, "pool"), (&self.classes, classes, "class")] {
            for name in names.iter().filter(|name| !known.contains(&name.value.as_str())) {
                let remedy = match nearest(&name.value, known.iter().copied()) {
                    Some(meant) => format!("did you mean \"{meant}\"?"),
                    None if known.is_empty() => "remove it".to_owned(),
                    None => format!("write {}", one_of(known.iter().copied())),
                };
                report.fault(&name.place, format!("is no {what}"), quoted(&name.value), remedy);
            }
        }
    }
}
