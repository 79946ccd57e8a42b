//! Workers, packet buffers and memory: what the machine must have.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use mem::Stock;
use nat::settings::IcmpPolicy;
use nat::settings::Limits;
use nat::types::MappingIndex;

use crate::check::pem;
use crate::check::pem::Holds;
use crate::draft::Draft;
use crate::draft::singles::DpdkDraft;
use crate::event_file;
use crate::keys::POOL_ADDRESSES_MAX;
use crate::memory::packet_memory_bytes;
use crate::model::Dpdk;
use crate::model::EventTarget;
use crate::model::LOG_FOLDER;
use crate::model::Port;
use crate::model::STATE_FOLDER;
use crate::model::Workers;
use crate::report::Place;
use crate::report::Report;
use crate::report::many;
use crate::section::size_text;

/// Places for external addresses beyond those of the pools, at least.
const SPARE_ADDRESSES: u64 = 16;

/// What the configuration is checked against; unknown things are not checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs there are.
    pub cpus: Option<usize>,
    /// Memory that can be taken.
    pub memory: Option<Stock>,
    /// Whether it is this one, whose folders can be looked at.
    pub has_folders: bool,
}

/// Where the event log goes: a start, or a reload, that finds no place for it fails.
pub(crate) fn event_log(draft: &Draft, machine: &Machine, report: &mut Report) {
    let singles = &draft.singles;
    let (true, Some(log), Some(place)) = (machine.has_folders, &singles.event_log, &singles.event_log_place) else {
        return;
    };
    let Some(EventTarget::File(path)) = &log.target else { return };
    if super::log::is_one_path(log) {
        return;
    }
    let seen = path.display().to_string();
    let folder = path.parent().filter(|folder| !folder.is_dir());
    if path.is_dir() {
        let remedy = format!("name a file in it, such as \"{seen}/events.json\"");
        report.fault(place, "is a folder", seen, remedy);
    } else if let Some((problem, remedy)) = event_file::problem(path) {
        report.fault(place, problem, seen, remedy);
    } else if let Some(folder) = folder {
        let folder = folder.display();
        report.fault(
            place,
            "is in a folder that does not exist",
            seen,
            format!("make {folder}, or name a file elsewhere"),
        );
    }
}

/// Where the store goes.
pub(crate) fn log_store(draft: &Draft, machine: &Machine, report: &mut Report) {
    let log = draft.singles.event_log.as_ref().filter(|log| !super::log::is_one_path(log));
    let store = log.and_then(|log| log.store.as_ref());
    let (true, Some(store), Some(place)) = (machine.has_folders, store, &draft.singles.log_store_place) else { return };
    let seen = store.path.display().to_string();
    if store.path.exists() && !store.path.is_dir() {
        report.fault(place, "is not a folder", seen, "name a folder, which is made if it is missing");
    } else if let Some(folder) = store.path.parent().filter(|folder| !folder.is_dir()) {
        let remedy = format!("make {}, or name a folder elsewhere", folder.display());
        report.fault(place, "is in a folder that does not exist", seen, remedy);
    }
}

/// Where the control socket, the audit log and the grants go. A start makes the folders that the
/// package's unit would make, and the folder of the socket with all above it.
pub(crate) fn own_files(draft: &Draft, machine: &Machine, report: &mut Report) {
    // A client that sends a text does not learn what files there are; no reload changes these.
    if !machine.has_folders || report.is_sent() {
        return;
    }
    let (control, places) = (&draft.singles.control, &draft.singles.control_places);
    let (socket, port_control) = (&control.socket, &draft.singles.port_control);
    if fs::symlink_metadata(socket).is_ok_and(|about| !about.file_type().is_socket()) {
        let remedy = "remove it, or name another path";
        report.fault(&places.socket, "exists and is not a socket", socket.display().to_string(), remedy);
    }
    let is_missing = |folder: &Path| match fs::metadata(folder) {
        Ok(about) => !about.is_dir(),
        // What may not be looked at may be there.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let is_made = |folder: &Path| {
        [LOG_FOLDER, STATE_FOLDER].iter().any(|made| folder == Path::new(made))
            || socket.parent().is_some_and(|made| made.starts_with(folder))
    };
    let state = port_control.state.as_ref().map(|state| (state, &port_control.state_place));
    let files = [(&control.audit, &places.audit)].into_iter().chain(state);
    for (path, place) in files.filter(|(path, _)| path.is_absolute()) {
        let seen = path.display().to_string();
        if path.is_dir() {
            report.fault(place, "is a folder", seen, "name a file in it, or a file elsewhere");
        } else if let Some(folder) = path.parent().filter(|folder| !is_made(folder) && is_missing(folder)) {
            let remedy = format!("make {}, or name a file elsewhere", folder.display());
            report.fault(place, "is in a folder that does not exist", seen, remedy);
        }
    }
}

/// The files of the API's certificate.
pub(crate) fn http_tls(draft: &Draft, machine: &Machine, report: &mut Report) {
    let Some(http) = &draft.singles.http else { return };
    let mut certificates = http.tls_certificates.as_slice();
    match (&http.http.tls, &http.tls_key, certificates) {
        // The first is the server's, the other has the authorities of clients.
        (Some(_), Some(key), [certificate, others @ ..]) => {
            pem::check_pair(certificate, key, machine, report);
            certificates = others;
        }
        (_, key, _) => key.iter().for_each(|file| pem::check(file, Holds::Key, machine, report)),
    }
    certificates.iter().for_each(|file| pem::check(file, Holds::Certificates, machine, report));
}

/// How many workers, and where.
pub(crate) fn workers(draft: &Draft, machine: &Machine, report: &mut Report) -> Workers {
    let written = &draft.singles.workers;
    let cpus: Vec<u16> = written.cpus.iter().map(|cpu| cpu.value).collect();
    let count = match &written.count {
        Some(count) => {
            if !cpus.is_empty() && count.value != cpus.len() as u64 {
                let problem = format!("is not the number of CPUs listed, {}", cpus.len());
                let remedy = "list one CPU for each worker, or remove count";
                report.fault(&count.place, problem, count.value.to_string(), remedy);
            }
            usize::try_from(count.value).unwrap_or(1)
        }
        None => cpus.len().max(1),
    };
    if cpus.len() > nat::types::WorkerId::COUNT_MAX {
        let place = Place { path: "workers.cpus".into(), line: written.place.line };
        let remedy = format!("list at most {}", nat::types::WorkerId::COUNT_MAX);
        report.fault(&place, "lists more CPUs than there can be workers", cpus.len().to_string(), remedy);
    }
    if let Some(there) = machine.cpus {
        if count > there {
            let place = written.count.as_ref().map_or(&written.place, |count| &count.place);
            let problem = format!("is over the {there} CPUs of this machine");
            report.fault(place, problem, count.to_string(), format!("write {there} or less"));
        }
        for cpu in written.cpus.iter().filter(|cpu| usize::from(cpu.value) >= there) {
            let remedy = format!("write a number from 0 to {}", there.saturating_sub(1));
            report.fault(&cpu.place, "is a CPU this machine does not have", cpu.value.to_string(), remedy);
        }
    }
    Workers { count, cpus }
}

/// The part of one worker of what all have together, with an eighth more where there are several.
pub(crate) fn share(total: u32, workers: usize) -> u64 {
    let total = u64::from(total);
    if workers < 2 { total } else { (total * 9).div_ceil(8 * workers as u64) }
}

/// Shares the limits out to the workers.
pub(crate) fn limits(draft: &Draft, addresses: usize, workers: usize, report: &mut Report) -> Limits {
    let all = &draft.singles.limits;
    let mappings = share(all.mappings_max, workers);
    if mappings > MappingIndex::COUNT_MAX as u64 {
        let most = if workers < 2 {
            MappingIndex::COUNT_MAX as u64
        } else {
            MappingIndex::COUNT_MAX as u64 * workers as u64 * 8 / 9
        };
        let problem = format!("gives each worker {mappings}, above the maximum of {}", MappingIndex::COUNT_MAX);
        let remedy = format!("write at most {most}, or add workers");
        report.fault(&draft.singles.mappings_place, problem, all.mappings_max.to_string(), remedy);
    }
    let share = |total: u32| u32::try_from(share(total, workers)).unwrap_or(u32::MAX);
    Limits {
        mappings_max: share(all.mappings_max),
        extra_sessions_max: share(all.extra_sessions_max),
        flows_max: share(all.flows_max),
        sessions_per_mapping_max: all.sessions_per_mapping_max,
        subscribers_max: share(all.subscribers_max),
        fragmented_datagrams_max: share(all.fragmented_datagrams_max),
        fragments_held_max: share(all.fragments_held_max),
        unsolicited_syns_max: share(all.unsolicited_syns_max),
        held_ports_max: share(all.held_ports_max),
        external_addresses_max: external_addresses(draft, addresses as u64, report),
    }
}

/// A worker's share of the table of IPv6 hosts.
pub(crate) fn hosts_share(hosts_max: u32, workers: usize) -> u32 {
    u32::try_from(share(hosts_max, workers)).unwrap_or(u32::MAX)
}

/// Places for external addresses: what the file says, or room to change the pools while it runs.
fn external_addresses(draft: &Draft, addresses: u64, report: &mut Report) -> u32 {
    let places = match &draft.singles.external_addresses {
        Some(written) => {
            if written.value < addresses {
                let problem = format!("is less than the {addresses} addresses of the pools");
                let remedy = format!("write {addresses} or more, with room for those that a reload adds");
                report.fault(&written.place, problem, written.value.to_string(), remedy);
            }
            written.value
        }
        None => usual_places(addresses),
    };
    u32::try_from(places).unwrap_or(u32::MAX)
}

/// Places for so many external addresses where the file does not say.
pub(crate) fn usual_places(addresses: u64) -> u64 {
    (addresses * 2).max(addresses + SPARE_ADDRESSES).min(POOL_ADDRESSES_MAX)
}

/// Shares the rate of errors out to the workers.
pub(crate) fn icmp(policy: IcmpPolicy, workers: usize) -> IcmpPolicy {
    let count = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
    IcmpPolicy { errors_per_second_max: policy.errors_per_second_max.div_ceil(count), ..policy }
}

/// Buffers in flight beyond the rings: the device's own stock for each queue, and bursts and
/// hand-off of each worker.
const BUFFERS_PER_QUEUE: u64 = 4_096;
const BUFFERS_PER_WORKER: u64 = 2_048;

/// The settings of DPDK, with enough buffers and memory for the ports and workers.
pub(crate) fn dpdk(draft: &DpdkDraft, ports: &[Port], workers: usize, report: &mut Report) -> Dpdk {
    let workers = workers as u64;
    let rings: u64 = ports.iter().map(|port| u64::from(port.rx_descriptors) + u64::from(port.tx_descriptors)).sum();
    let least = rings * workers + 256 * workers;
    let usual = (rings + BUFFERS_PER_QUEUE * ports.len() as u64) * workers + BUFFERS_PER_WORKER * workers;
    let buffers = match &draft.buffers {
        Some(written) => {
            if written.value < least {
                let (ports, workers) = (many(ports.len() as u64, "port"), many(workers, "worker"));
                let problem = format!("are too few to fill the rings of {ports} and {workers}");
                let remedy = format!("write {least} or more, {usual} for room in bursts");
                report.fault(&written.place, problem, written.value.to_string(), remedy);
            }
            written.value
        }
        None => usual,
    };
    let mtu = ports.iter().map(|port| port.mtu).max().unwrap_or(0);
    let needed = packet_memory_bytes(buffers, mtu);
    let memory_bytes = match &draft.memory {
        Some(written) => {
            if written.value < needed {
                let problem = format!("is less than {buffers} buffers for packets of {mtu} bytes take");
                let remedy = format!("write \"{}\" or more, or lower dpdk.buffers", size_text(needed));
                report.fault(&written.place, problem, size_text(written.value), remedy);
            }
            written.value
        }
        None => needed,
    };
    Dpdk { hugepages: draft.hugepages, memory_bytes, buffers: u32::try_from(buffers).unwrap_or(u32::MAX) }
}
