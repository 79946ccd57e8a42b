//! What the file says, value by value and before anything is compared: the walk over the document.

pub(crate) mod allocation;
pub(crate) mod class;
pub(crate) mod forward;
pub(crate) mod gateway;
mod http;
pub(crate) mod interface;
pub(crate) mod limits;
pub(crate) mod pool;
pub(crate) mod port_control;
pub(crate) mod port_timeout;
pub(crate) mod route;
pub(crate) mod rule;
pub(crate) mod rule_file;
pub(crate) mod rule_keys;
pub(crate) mod singles;
pub(crate) mod sink;
mod snmp;
pub(crate) mod transition;

use nat::types::Side;
use toml_edit::Item;
use toml_edit::Key;
use toml_edit::Table;
use toml_edit::TableLike;
use toml_edit::Value;

use crate::draft::class::ClassDraft;
use crate::draft::forward::ForwardDraft;
use crate::draft::gateway::GatewayDraft;
use crate::draft::interface::Attachment;
use crate::draft::interface::InterfaceDraft;
use crate::draft::pool::PoolDraft;
use crate::draft::port_timeout::PortTimeoutDraft;
use crate::draft::route::RouteDraft;
use crate::draft::rule::FilterDraft;
use crate::draft::rule::RuleDraft;
use crate::draft::rule_file::RuleFileDraft;
use crate::draft::singles::Singles;
use crate::draft::sink::SinkDraft;
use crate::draft::transition::Nat64Draft;
use crate::draft::transition::Served;
use crate::draft::transition::SoftwireDraft;
use crate::keys::REPEATS_MAX;
use crate::keys::sections;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::report::without_tokens;
use crate::section::Section;
use crate::section::quoted;
use crate::section::unknown_key;

/// Everything the file says.
pub(crate) struct Draft {
    pub(crate) interfaces: Vec<InterfaceDraft>,
    pub(crate) routes: Vec<RouteDraft>,
    pub(crate) nat64: Vec<Nat64Draft>,
    pub(crate) softwires: Vec<SoftwireDraft>,
    pub(crate) pools: Vec<PoolDraft>,
    pub(crate) forwards: Vec<ForwardDraft>,
    pub(crate) rules: Vec<RuleDraft>,
    pub(crate) rule_files: Vec<RuleFileDraft>,
    pub(crate) filters: Vec<FilterDraft>,
    pub(crate) filter_files: Vec<RuleFileDraft>,
    pub(crate) classes: Vec<ClassDraft>,
    pub(crate) port_timeouts: Vec<PortTimeoutDraft>,
    pub(crate) sinks: Vec<SinkDraft>,
    pub(crate) gateways: Vec<GatewayDraft>,
    pub(crate) control_sessions: u32,
    pub(crate) singles: Singles,
}

impl Draft {
    /// The pools that serve IPv6 hosts.
    pub(crate) fn host_pools(&self) -> impl Iterator<Item = &str> {
        self.served().filter_map(|served| Some(served.pool.as_ref()?.value.as_str()))
    }

    fn served(&self) -> impl Iterator<Item = &Served> {
        self.nat64.iter().map(|one| &one.served).chain(self.softwires.iter().map(|one| &one.served))
    }

    /// The VRFs with IPv6 hosts behind NAT64 or softwires.
    pub(crate) fn host_vrfs(&self) -> impl Iterator<Item = &str> {
        self.served().filter_map(|served| Some(served.vrf.as_ref()?.value.as_str()))
    }

    /// Whether routes of the kernel may lead over an interface: it has a device there, its own or
    /// that of its port. Such routes are not known before they come.
    pub(crate) fn learns_by(&self, interface: &InterfaceDraft) -> bool {
        let has_device = || match &interface.attachment {
            Attachment::Parent(parent) => self.interfaces.iter().any(|other| {
                other.kernel.is_some() && other.name.as_ref().is_some_and(|name| name.value == parent.value)
            }),
            _ => false,
        };
        self.singles.routing_kernel && (interface.kernel.is_some() || has_device())
    }

    /// The same of any interface of a side.
    pub(crate) fn learns(&self, side: Side) -> bool {
        self.interfaces.iter().any(|it| it.side == Some(side) && self.learns_by(it))
    }

    /// The same of any inside interface of one of these VRFs.
    pub(crate) fn learns_inside(&self, is_meant: impl Fn(&str) -> bool) -> bool {
        let is_of = |it: &InterfaceDraft| matches!(it.facing(), Some((Side::Inside, vrf)) if is_meant(vrf));
        self.interfaces.iter().any(|it| is_of(it) && self.learns_by(it))
    }

    /// Walks the document.
    pub(crate) fn read(root: &Table, report: &mut Report) -> Draft {
        for (name, item) in root.iter() {
            if !tables().any(|table| table == name) {
                let line =
                    root.get_key_value(name).and_then(|(key, _)| report.line(key.span().or_else(|| item.span())));
                let place = Place { path: name.to_owned().into(), line };
                unknown_key(&place, name, tables(), report);
            }
        }
        let singles = Singles::read(root, report);
        let class = |section: &Section, report: &mut Report| ClassDraft::read(section, &singles.subscriber, report);
        Draft {
            interfaces: repeated(root, "interface", InterfaceDraft::read, report),
            routes: repeated(root, "route", RouteDraft::read, report),
            nat64: repeated(root, "nat64", Nat64Draft::read, report),
            softwires: repeated(root, "softwire", SoftwireDraft::read, report),
            pools: repeated(root, "pool", PoolDraft::read, report),
            forwards: repeated(root, "forward", ForwardDraft::read, report),
            rules: repeated(root, "rule", |section, report| RuleDraft::read(section, report), report),
            rule_files: repeated(root, "rule_file", RuleFileDraft::read, report),
            filters: repeated(root, "filter", |section, report| FilterDraft::read(section, report), report),
            filter_files: repeated(root, "filter_file", RuleFileDraft::read, report),
            classes: repeated(root, "class", class, report),
            port_timeouts: repeated(root, "port_timeout", PortTimeoutDraft::read, report),
            sinks: repeated(root, "log.sink", SinkDraft::read, report),
            control_sessions: gateway::control_sessions(root, report),
            gateways: gateway::gateways(root, report),
            singles,
        }
    }
}

/// The tables that are in no other one.
fn tables() -> impl Iterator<Item = &'static str> + Clone {
    sections().iter().map(|section| section.name).filter(|name| !name.contains('.'))
}

/// A table by its name; one inside another has its name after a dot.
fn find<'a>(root: &'a Table, name: &str) -> Option<(&'a Key, &'a Item)> {
    match name.split_once('.') {
        Some((outer, inner)) => root.get(outer)?.as_table_like()?.get_key_value(inner),
        None => root.get_key_value(name),
    }
}

/// All tables of one name.
fn repeated<T>(root: &Table, name: &str, read: impl Fn(&Section, &mut Report) -> T, report: &mut Report) -> Vec<T> {
    let Some((key, item)) = find(root, name) else { return Vec::new() };
    let whole = Place { path: name.to_owned().into(), line: report.line(item.span().or_else(|| key.span())) };
    let mut tables: Vec<(&dyn TableLike, Option<u32>)> = Vec::new();
    match item {
        Item::ArrayOfTables(array) => {
            tables.extend(array.iter().map(|table| (table as &dyn TableLike, report.line(table.span()))));
        }
        Item::Value(Value::Array(array)) => {
            for value in array {
                match value.as_inline_table() {
                    Some(table) => tables.push((table, report.line(value.span()))),
                    None => report.fault(&whole, "is not a table", value.to_string(), format!("write [[{name}]]")),
                }
            }
        }
        Item::Table(table) => {
            report.fault(&whole, "is a single table", format!("[{name}]"), format!("write [[{name}]]"));
            // Its keys have the only further faults: it counts as one of these tables.
            tables.push((table, whole.line));
        }
        Item::Value(_) | Item::None => {
            report.fault(&whole, "is not a table", item.to_string(), format!("write [[{name}]]"));
        }
    }
    if tables.len() > REPEATS_MAX {
        let remedy = format!("write at most {REPEATS_MAX}");
        report.fault(&whole, "appears too often in the file", tables.len().to_string(), remedy);
        tables.truncate(REPEATS_MAX);
    }
    let mut drafts = Vec::new();
    for (index, (table, line)) in tables.into_iter().enumerate() {
        let path = match table.get("name").and_then(Item::as_str) {
            Some(own) => {
                // A part of a secret is one, too.
                let own: String = without_tokens(own).chars().take(40).collect();
                format!("{name} \"{}\"", own.escape_debug())
            }
            None => format!("{name}[{index}]"),
        };
        let section = Section::new(name, table, Place { path: path.into(), line: line.or(whole.line) }, report);
        drafts.push(read(&section, report));
    }
    drafts
}

/// A table that stands in the file at most once; `empty` takes its place when it does not.
fn single<'a>(root: &'a Table, name: &str, empty: &'a Table, report: &mut Report) -> Section<'a> {
    let place = |line| Place { path: name.to_owned().into(), line };
    let Some((key, item)) = find(root, name) else {
        return Section::new(name, empty, place(None), report);
    };
    let line = report.line(item.span().or_else(|| key.span()));
    match item.as_table_like() {
        Some(table) => Section::new(name, table, place(line), report),
        None => {
            let problem = if item.is_array_of_tables() { "is an array of tables" } else { "is not a table" };
            report.fault(&place(line), problem, "", format!("write [{name}], once"));
            Section::new(name, empty, place(line), report)
        }
    }
}

/// The name of an interface or pool.
fn name(section: &Section, report: &mut Report) -> Option<Placed<String>> {
    section.text("name", report).and_then(|text| as_name(text, report))
}

/// A string that is to be a name.
fn as_name(name: Placed<String>, report: &mut Report) -> Option<Placed<String>> {
    match check_name(&name.value) {
        Ok(()) => Some(name),
        Err((problem, remedy)) => {
            report.fault(&name.place, problem, quoted(&name.value), remedy);
            None
        }
    }
}

/// Characters of a name.
const LENGTH_MAX: usize = 32;

/// Checks a name as every `name` of the configuration.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub fn check_name(name: &str) -> Result<(), (String, String)> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let is_well_formed = starts_well && name.chars().all(is_allowed);
    if is_well_formed && name.len() <= LENGTH_MAX {
        return Ok(());
    }
    let problem = if is_well_formed {
        format!("is too long for a name: {} characters", name.len())
    } else {
        "is not a name".to_owned()
    };
    Err((
        problem,
        format!("write 1 to {LENGTH_MAX} letters, digits, '-', '_' and '.', starting with a letter or digit"),
    ))
}
