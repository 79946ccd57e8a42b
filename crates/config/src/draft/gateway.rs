//! `[alg.ftp]` and the others.

use alg::AlgId;
use nat::settings::Gateway;
use toml_edit::Table;

use crate::draft::single;
use crate::keys::sections;
use crate::report::Placed;
use crate::report::Report;
use crate::report::nearest;
use crate::report::one_of;
use crate::section::Section;
use crate::section::choose;
use crate::section::quoted;
use crate::section::shown;

/// One gateway, enabled or not; what is faulty is missing.
pub(crate) struct GatewayDraft {
    pub(crate) gateway: Gateway,
    pools: Vec<Placed<String>>,
}

/// The gateways, with their tables.
pub(crate) fn tables() -> impl Iterator<Item = (&'static str, AlgId)> {
    sections().iter().filter_map(|section| Some((section.name, AlgId::named(section.name.strip_prefix("alg.")?)?)))
}

/// `sessions` of `[alg]`, for all gateways together; 0 if it is faulty.
pub(crate) fn control_sessions(root: &Table, report: &mut Report) -> u32 {
    let empty = Table::new();
    single(root, "alg", &empty, report).integer("sessions", report).map_or(0, |limit| limit.value as u32)
}

/// All of them.
pub(crate) fn gateways(root: &Table, report: &mut Report) -> Vec<GatewayDraft> {
    let empty = Table::new();
    let mut found = Vec::new();
    for (table, alg) in tables() {
        let section = single(root, table, &empty, report);
        let mut draft = read(&section, alg, report);
        draft.gateway.serves_everyone = section.boolean("enabled", report) == Some(true);
        found.push(draft);
    }
    found
}

/// `alg` of a class: exactly these gateways, whatever their tables say. `None` without the key.
pub(crate) fn of_class(section: &Section, report: &mut Report) -> Option<Vec<AlgId>> {
    if !section.has("alg") {
        return None;
    }
    let known: Vec<_> = tables().filter_map(|(table, _)| table.strip_prefix("alg.")).collect();
    let named = section.parsed_list("alg", |text| Ok(text.to_owned()), "the name of a gateway", report);
    Some(named.iter().filter_map(|name| AlgId::named(choose(name, &known, report)?)).collect())
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
    let pools = section.parsed_list("pools", |text| Ok(text.to_owned()), "a name", report);
    gateway.pools = pools.iter().map(|pool| pool.value.clone()).collect();
    GatewayDraft { gateway, pools }
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
    /// Whether the pools it names exist.
    pub(crate) fn check(&self, pools: &[&str], report: &mut Report) {
        for name in self.pools.iter().filter(|name| !pools.contains(&name.value.as_str())) {
            let remedy = match nearest(&name.value, pools.iter().copied()) {
                Some(meant) => format!("did you mean \"{meant}\"?"),
                None if pools.is_empty() => "remove it".to_owned(),
                None => format!("write {}", one_of(pools.iter().copied())),
            };
            report.fault(&name.place, "is no pool", quoted(&name.value), remedy);
        }
    }
}
