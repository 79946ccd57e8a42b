//! The tables that stand in the file once: everything that is not a list.

use std::path::Path;
use std::path::PathBuf;

use nat::Duration;
use nat::event::BackPressure;
use nat::event::EventSettings;
use nat::settings::IcmpPolicy;
use nat::settings::Limits;
use nat::settings::ReloadPolicy;
use nat::settings::Removed;
use nat::settings::SubscriberLimits;
use nat::settings::Timeouts;
use toml_edit::Table;

use crate::draft::http::HttpDraft;
use crate::draft::port_control::PortControlDraft;
use crate::draft::single;
use crate::keys::Kind;
use crate::keys::keys_of;
use crate::model::Control;
use crate::model::EventLog;
use crate::model::EventTarget;
use crate::model::Hugepages;
use crate::model::LOG_FOLDER;
use crate::model::Log;
use crate::model::LogFormat;
use crate::model::LogLevel;
use crate::model::LogStore;
use crate::model::LogSync;
use crate::model::Snmp;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::duration_text;
use crate::section::quoted;
use crate::section::shown;

/// The single tables.
pub(crate) struct Singles {
    pub(crate) timeouts: Timeouts,
    pub(crate) inbound_refresh: bool,
    pub(crate) allow_below_rfc: bool,
    /// What each subscriber without a class may use.
    pub(crate) subscriber: SubscriberLimits,
    /// Bits that IPv6 hosts of one subscriber have in common.
    pub(crate) ipv6_prefix_length: u8,
    pub(crate) hosts_per_subscriber_max: u32,
    pub(crate) hosts_max: u32,
    /// Where the file says how many ports a subscriber may have, if it does.
    pub(crate) subscriber_ports: Option<Place>,
    /// Where the file says how much memory a subscriber may use, if it does.
    pub(crate) subscriber_memory: Option<Place>,
    /// The place of the threshold from which a subscriber's use is reported, if there is one.
    pub(crate) threshold: Option<Place>,
    /// For the whole instance: not yet shared out to the workers.
    pub(crate) limits: Limits,
    pub(crate) hairpin_between_vrfs: bool,
    pub(crate) mappings_place: Place,
    /// What the file says of it.
    pub(crate) external_addresses: Option<Placed<u64>>,
    pub(crate) reload: ReloadPolicy,
    /// As `limits`, the rate of errors is that of the whole instance.
    pub(crate) icmp: IcmpPolicy,
    pub(crate) answer_unsolicited_syn: bool,
    pub(crate) port_control: PortControlDraft,
    pub(crate) routing_kernel: bool,
    pub(crate) routing_place: Place,
    pub(crate) workers: WorkersDraft,
    pub(crate) dpdk: DpdkDraft,
    pub(crate) control: Control,
    pub(crate) control_places: ControlPlaces,
    pub(crate) http: Option<HttpDraft>,
    pub(crate) snmp: Option<Snmp>,
    pub(crate) log: Log,
    pub(crate) events: EventSettings,
    pub(crate) event_log: Option<EventLog>,
    /// Where the file names it.
    pub(crate) event_log_place: Option<Place>,
    /// Path of its store.
    pub(crate) log_store_place: Option<Place>,
    pub(crate) log_retention_place: Option<Place>,
    /// The file has a store, but not a usable one.
    pub(crate) is_log_store_faulty: bool,
    /// Where the file says how events are recorded, if it has no destination.
    pub(crate) event_keys: Vec<Place>,
}

/// Where the file names what `[control]` has, or would.
pub(crate) struct ControlPlaces {
    pub(crate) socket: Place,
    pub(crate) audit: Place,
}

/// `[workers]`.
pub(crate) struct WorkersDraft {
    pub(crate) place: Place,
    pub(crate) count: Option<Placed<u64>>,
    pub(crate) cpus: Vec<Placed<u16>>,
}

/// `[dpdk]`.
pub(crate) struct DpdkDraft {
    pub(crate) hugepages: Hugepages,
    pub(crate) memory: Option<Placed<u64>>,
    pub(crate) buffers: Option<Placed<u64>>,
}

impl Singles {
    pub(crate) fn read(root: &Table, report: &mut Report) -> Singles {
        let empty = Table::new();
        let section = |name: &str, report: &mut Report| single(root, name, &empty, report);

        let timers = section("timeouts", report);
        let tables = section("tables", report);
        let reload = section("reload", report);
        let subscriber = section("subscriber", report);
        let icmp = section("icmp", report);
        let port_control = section("port_control", report);
        let routing = section("routing", report);
        let workers = section("workers", report);
        let dpdk = section("dpdk", report);
        let (control, control_places) = control(root, report);
        let log = section("log", report);
        let allow_below_rfc = timers.boolean("allow_below_rfc", report).unwrap_or_default();
        let store_section = section("log.store", report);
        let (store, log_store_place) = log_store(&store_section, report).unzip();
        let log_retention_place = store_section.has("retention").then(|| store_section.place_of("retention", report));
        let (event_log, event_log_place) = event_log(&log, store, report);
        Singles {
            timeouts: timeouts(&timers, allow_below_rfc, report),
            allow_below_rfc,
            ipv6_prefix_length: u8::try_from(number(&subscriber, "ipv6_prefix_length", report)).unwrap_or(128),
            hosts_per_subscriber_max: number(&subscriber, "ipv6_hosts", report),
            hosts_max: number(&tables, "ipv6_hosts", report),
            subscriber_ports: subscriber.has("ports").then(|| subscriber.place_of("ports", report)),
            subscriber_memory: subscriber.has("memory").then(|| subscriber.place_of("memory", report)),
            threshold: subscriber.has("threshold").then(|| subscriber.place_of("threshold", report)),
            subscriber: crate::draft::limits::limits(&subscriber, &SubscriberLimits::default(), report),
            inbound_refresh: timers.boolean("inbound_refresh", report).unwrap_or_default(),
            limits: limits(&tables, &subscriber, report),
            hairpin_between_vrfs: subscriber.boolean("hairpin_between_vrfs", report).unwrap_or(true),
            mappings_place: tables.place_of("mappings", report),
            external_addresses: tables.integer("external_addresses", report),
            reload: ReloadPolicy {
                removed: match reload.choice("removed", report) {
                    Some("end") => Removed::End,
                    _ => Removed::Drain,
                },
                drain_time: reload.duration("drain_time", report).map(|time| time.value),
            },
            icmp: icmp_policy(&icmp, report),
            answer_unsolicited_syn: icmp.boolean("answer_unsolicited_syn", report).unwrap_or_default(),
            port_control: PortControlDraft::read(&port_control, report),
            routing_kernel: routing.boolean("kernel", report).unwrap_or_default(),
            routing_place: routing.place_of("kernel", report),
            workers: WorkersDraft {
                place: workers.place.clone(),
                count: workers.integer("count", report),
                cpus: cpus(&workers, report),
            },
            dpdk: DpdkDraft {
                hugepages: match dpdk.choice("hugepages", report) {
                    Some("off") => Hugepages::Off,
                    Some("required") => Hugepages::Required,
                    _ => Hugepages::Auto,
                },
                memory: dpdk.size("memory", report),
                buffers: dpdk.integer("buffers", report),
            },
            control,
            control_places,
            http: crate::draft::http::http(root, report),
            snmp: crate::draft::snmp::snmp(root, report),
            log: Log {
                level: match log.choice("level", report) {
                    Some("error") => LogLevel::Error,
                    Some("warn") => LogLevel::Warn,
                    Some("debug") => LogLevel::Debug,
                    _ => LogLevel::Info,
                },
                format: match log.choice("format", report) {
                    Some("text") => LogFormat::Text,
                    Some("json") => LogFormat::Json,
                    Some("journald") => LogFormat::Journald,
                    _ => LogFormat::Auto,
                },
            },
            events: event_settings(&log, report),
            event_log,
            event_log_place,
            is_log_store_faulty: log_store_place.is_none() && store_section.has_any(),
            log_store_place,
            log_retention_place,
            event_keys: event_keys(&log, report),
        }
    }
}

fn timeouts(section: &Section, allow_below_rfc: bool, report: &mut Report) -> Timeouts {
    let mut timer = |name: &str| {
        let Some(found) = section.duration(name, report) else { return Duration::ZERO };
        let kind = keys_of("timeouts").iter().find(|key| key.name == name).map(|key| key.kind);
        if let Some(Kind::Duration { bound: Some(bound), .. }) = kind {
            let micros = found.value.as_micros();
            if micros < bound.min_us && !allow_below_rfc {
                let least = duration_text(bound.min_us);
                let problem = format!("is below the {least} of {}", bound.requirement);
                let remedy = format!("write \"{least}\" or more, or set timeouts.allow_below_rfc = true");
                report.fault(&found.place, problem, quoted(&duration_text(micros)), remedy);
            }
        }
        found.value
    };
    let udp = timer("udp");
    Timeouts {
        udp,
        // Without it there is one state.
        udp_unanswered: if section.has("udp_unanswered") { timer("udp_unanswered") } else { udp },
        tcp_opening: timer("tcp_opening"),
        tcp_established: timer("tcp_established"),
        tcp_closing: timer("tcp_closing"),
        icmp: timer("icmp"),
        unsolicited_syn: timer("unsolicited_syn"),
        fragment: timer("fragment"),
        adapt_above_percent: section.integer("adapt_above", report).and_then(|found| u8::try_from(found.value).ok()),
    }
}

/// The key table's ranges keep these below 2^32; 0 stands for a value that was reported.
fn number(section: &Section, name: &str, report: &mut Report) -> u32 {
    section.integer(name, report).map_or(0, |found| u32::try_from(found.value).unwrap_or(u32::MAX))
}

fn limits(tables: &Section, subscriber: &Section, report: &mut Report) -> Limits {
    let mappings_max = number(tables, "mappings", report);
    let held_ports = tables.integer("held_ports", report).map(|found| u32::try_from(found.value).unwrap_or(u32::MAX));
    Limits {
        mappings_max,
        extra_sessions_max: number(tables, "extra_sessions", report),
        flows_max: number(tables, "flows", report),
        sessions_per_mapping_max: number(subscriber, "sessions_per_mapping", report),
        subscribers_max: number(tables, "subscribers", report),
        fragmented_datagrams_max: number(tables, "fragmented_datagrams", report),
        fragments_held_max: number(tables, "fragments_held", report),
        unsolicited_syns_max: number(tables, "unsolicited_syns", report),
        held_ports_max: held_ports.unwrap_or(Limits::held_ports_for(mappings_max)),
        external_addresses_max: 0,
    }
}

fn icmp_policy(section: &Section, report: &mut Report) -> IcmpPolicy {
    let mut rate = |name: &str| section.rate(name, report).map_or(0, |rate| u32::try_from(rate).unwrap_or(u32::MAX));
    let errors_per_second_max = rate("error_rate");
    let errors_per_second_per_destination_max = rate("error_rate_per_destination");
    IcmpPolicy {
        errors_to_inside: section.boolean("errors_to_inside", report).unwrap_or_default(),
        errors_to_outside: section.boolean("errors_to_outside", report).unwrap_or_default(),
        errors_per_second_max,
        errors_per_second_per_destination_max,
        no_resources_code: match section.choice("no_resources", report) {
            Some("administratively-prohibited") => Some(13),
            Some("silent") => None,
            _ => Some(1),
        },
        answer_echo: section.boolean("answer_echo", report).unwrap_or_default(),
    }
}

fn cpus(section: &Section, report: &mut Report) -> Vec<Placed<u16>> {
    let mut cpus: Vec<Placed<u16>> = Vec::new();
    for element in section.list("cpus", report) {
        let cpu = element.value.as_integer().and_then(|number| u16::try_from(number).ok());
        let Some(cpu) = cpu else {
            report.fault(
                &element.place,
                "is not a CPU number",
                shown(&element.value),
                "write the number of a CPU, from 0",
            );
            continue;
        };
        if cpus.iter().any(|other| other.value == cpu) {
            report.fault(&element.place, "is listed twice", cpu.to_string(), "give each worker a CPU of its own");
            continue;
        }
        cpus.push(Placed { value: cpu, place: element.place, given: element.given });
    }
    cpus
}

/// Keys of `[log]` that say something of events only.
const OF_EVENTS: [&str; 10] = [
    "back_pressure",
    "queue",
    "block_mappings",
    "refusal_interval",
    "filter_rate",
    "rotate_size",
    "rotate_interval",
    "keep_files",
    "sync",
    "sync_interval",
];

/// Those that the file has. An operator that writes that there is no event log does not wait for
/// one.
fn event_keys(section: &Section, report: &Report) -> Vec<Place> {
    let keys = OF_EVENTS.iter().filter(|key| section.has(key) && !section.has("events"));
    keys.map(|key| section.place_of(key, report)).collect()
}

fn event_settings(section: &Section, report: &mut Report) -> EventSettings {
    EventSettings {
        back_pressure: match section.choice("back_pressure", report) {
            Some("drop") => BackPressure::Drop,
            _ => BackPressure::Refuse,
        },
        block_mappings: section.boolean("block_mappings", report).unwrap_or_default(),
        refusal_interval: section.duration("refusal_interval", report).map_or(Duration::ZERO, |found| found.value),
        filter_events_per_second: section.rate("filter_rate", report).unwrap_or(0) as u32,
    }
}

/// A path from the root; none if the text is empty. `what` is a file or folder, as in `example`.
pub(crate) fn path(
    section: &Section,
    name: &str,
    what: &str,
    example: &str,
    report: &mut Report,
) -> Option<Placed<PathBuf>> {
    let text = section.text(name, report)?;
    let path = text.value.as_str();
    if path.is_empty() {
        return None;
    }
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        let remedy = format!("write the path from the root, such as \"{example}\"");
        report.fault(&text.place, format!("is not the absolute path of a {what}"), quoted(path), remedy);
        return None;
    }
    Some(Placed { value: PathBuf::from(path), place: text.place, given: text.given })
}

fn log_store(section: &Section, report: &mut Report) -> Option<(LogStore, Place)> {
    let mut duration = |name: &str| section.duration(name, report).map_or(Duration::ZERO, |found| found.value);
    let (sync_interval, segment_interval) = (duration("sync_interval"), duration("segment_interval"));
    let retention = Some(duration("retention")).filter(|retention| *retention > Duration::ZERO);
    let segment_rows = number(section, "segment_size", report) as usize;
    let signing_key = path(section, "signing_key", "file", "/etc/natrix/log.key", report);
    if !section.has("path") && section.has_any() {
        report.fault(&section.place, "has no path", "", "write path = \"/var/log/natrix/log\", or remove the table");
        return None;
    }
    let path = path(section, "path", "folder", "/var/log/natrix/log", report)?;
    let signing_key = signing_key.map(|key| key.value);
    let store = LogStore { path: path.value, retention, sync_interval, segment_rows, segment_interval, signing_key };
    Some((store, path.place))
}

/// The log, and the place of its lines' file.
fn event_log(section: &Section, store: Option<LogStore>, report: &mut Report) -> (Option<EventLog>, Option<Place>) {
    let mut duration = |name: &str| section.duration(name, report).map_or(Duration::ZERO, |found| found.value);
    let (rotate_interval, sync_interval) = (duration("rotate_interval"), duration("sync_interval"));
    let queue = number(section, "queue", report);
    let rotate_bytes = section.size("rotate_size", report).map_or(0, |found| found.value);
    let keep_files = number(section, "keep_files", report) as usize;
    let sync = match section.choice("sync", report) {
        Some("never") => LogSync::Never,
        Some("on-rotation") => LogSync::OnRotation,
        Some("always") => LogSync::Always,
        _ => LogSync::Interval(sync_interval),
    };
    let lines = lines(section, report);
    let (target, place) = lines.unzip();
    let has_any = target.is_some() || store.is_some();
    let log = EventLog { target, store, queue, rotate_bytes, rotate_interval, keep_files, sync };
    (has_any.then_some(log), place)
}

/// Where lines of events go.
fn lines(section: &Section, report: &mut Report) -> Option<(EventTarget, Place)> {
    let text = section.text("events", report)?;
    let target = match text.value.as_str() {
        "" => return None,
        "-" => EventTarget::StandardOutput,
        path if path.starts_with('/') && !path.ends_with('/') && !path.contains('\0') => {
            EventTarget::File(PathBuf::from(path))
        }
        path => {
            let remedy =
                "write the path from the root, such as \"/var/log/natrix/events.json\", or \"-\" for standard output";
            report.fault(&text.place, "is not the absolute path of a file", quoted(path), remedy);
            return None;
        }
    };
    Some((target, text.place))
}

/// A socket's path, with the terminating zero, fits in 108 bytes.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// The table `[control]`.
pub(crate) fn control(root: &Table, report: &mut Report) -> (Control, ControlPlaces) {
    let empty = Table::new();
    let section = single(root, "control", &empty, report);
    let places = ControlPlaces { socket: section.place_of("socket", report), audit: section.place_of("audit", report) };
    (control_of(&section, report), places)
}

fn control_of(section: &Section, report: &mut Report) -> Control {
    let socket = section.text("socket", report).map(|text| {
        if !text.value.starts_with('/') || text.value.ends_with('/') {
            let remedy = "write the path from the root, such as \"/run/natrix/control.sock\"";
            report.fault(&text.place, "is not the absolute path of a file", quoted(&text.value), remedy);
        } else if text.value.len() > SOCKET_PATH_MAX || text.value.contains('\0') {
            let problem = format!("is too long for a socket path: {} bytes", text.value.len());
            report.fault(&text.place, problem, quoted(&text.value), format!("write at most {SOCKET_PATH_MAX} bytes"));
        }
        text.value
    });
    let mode = section.text("mode", report).and_then(|text| {
        let is_octal = (3..=4).contains(&text.value.len()) && text.value.bytes().all(|byte| byte.is_ascii_digit());
        let mode = u32::from_str_radix(&text.value, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        match mode {
            None => {
                report.fault(&text.place, "is not an octal mode", quoted(&text.value), "write mode = \"0660\"");
            }
            Some(mode) if mode & 0o600 != 0o600 => {
                let problem = "does not let its owner read and write";
                report.fault(&text.place, problem, quoted(&text.value), "write \"0600\" or more");
            }
            Some(_) => {}
        }
        mode
    });
    let socket = PathBuf::from(socket.unwrap_or_default());
    let audit = section.text("audit", report).map(|text| {
        if !text.value.starts_with('/') || text.value.ends_with('/') {
            let remedy = "write the path from the root, such as \"/var/log/natrix/audit.jsonl\"";
            report.fault(&text.place, "is not the absolute path of a file", quoted(&text.value), remedy);
        }
        PathBuf::from(text.value)
    });
    let audit = audit.unwrap_or_else(|| audit_beside(&socket));
    Control { socket, mode: mode.unwrap_or_default(), audit }
}

/// The audit log of an instance that names none. The folder of a socket in /run is removed when the
/// service stops.
pub fn audit_beside(socket: &Path) -> PathBuf {
    let name = socket.with_extension("audit.jsonl");
    let is_volatile = ["/run/", "/var/run/"].iter().any(|folder| socket.starts_with(folder));
    match name.file_name() {
        Some(name) if is_volatile && !socket.starts_with("/run/user/") => Path::new(LOG_FOLDER).join(name),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_log_outlives_the_folder_of_the_socket() {
        for (socket, audit) in [
            ("/run/natrix/control.sock", "/var/log/natrix/control.audit.jsonl"),
            ("/var/run/natrix/east.sock", "/var/log/natrix/east.audit.jsonl"),
            ("/run/user/1000/natrix.sock", "/run/user/1000/natrix.audit.jsonl"),
            ("/tmp/natrix.sock", "/tmp/natrix.audit.jsonl"),
            ("/running/natrix.sock", "/running/natrix.audit.jsonl"),
        ] {
            assert_eq!(audit_beside(Path::new(socket)), Path::new(audit));
        }
    }
}
