//! Sinks of the log: whether there is something to send, and all that TLS needs.

use crate::check::machine::Machine;
use crate::check::pem;
use crate::check::pem::Holds;
use crate::check::unique_names;
use crate::draft::Draft;
use crate::draft::sink::SinkDraft;
use crate::model::SinkTransport;
use crate::report::Report;

/// Reports what a sink lacks.
pub(crate) fn check(draft: &Draft, machine: &Machine, report: &mut Report) {
    unique_names("sink", draft.sinks.iter().filter_map(|sink| sink.name.as_ref()), report);
    let has_store = draft.singles.event_log.as_ref().is_some_and(|log| log.store.is_some());
    if let Some(first) = draft.sinks.first().filter(|_| !has_store && !draft.singles.is_log_store_faulty) {
        let remedy = "write [log.store] path = \"/var/log/natrix/log\": a sink sends what the store has";
        report.fault(&first.place, "has no store to read from", "", remedy);
    }
    for sink in &draft.sinks {
        check_tls(sink, report);
        sink.certificates.iter().for_each(|file| pem::check(file, Holds::Certificates, machine, report));
        match (&sink.certificate, &sink.key) {
            (Some(certificate), Some(key)) => pem::check_pair(certificate, key, machine, report),
            (certificate, key) => {
                certificate.iter().for_each(|file| pem::check(file, Holds::Certificates, machine, report));
                key.iter().for_each(|file| pem::check(file, Holds::Key, machine, report));
            }
        }
    }
}

fn check_tls(sink: &SinkDraft, report: &mut Report) {
    let Some(address) = &sink.address else { return };
    let is_tls = address.value.0 == SinkTransport::Tls;
    let files = [("certificates", &sink.certificates), ("certificate", &sink.certificate), ("key", &sink.key)];
    if is_tls && sink.certificates.is_none() {
        let remedy = "write certificates = \"/etc/natrix/collectors.pem\", those of the authorities that sign the \
                      collector's certificate";
        report.fault(&address.place, "needs certificates", "tls", remedy);
    }
    for (key, file) in files {
        if let Some(file) = file.as_ref().filter(|_| !is_tls) {
            let seen = file.value.display().to_string();
            report.fault(&file.place, "has no effect without TLS", seen, format!("use tls://, or remove {key}"));
        }
    }
    if let (Some(one), None, other) | (None, Some(one), other) =
        (&sink.certificate, &sink.key, if sink.key.is_none() { "key" } else { "certificate" })
    {
        let remedy = format!("write {other}, too, or remove it");
        report.fault(&one.place, format!("is set without {other}"), one.value.display().to_string(), remedy);
    }
}
