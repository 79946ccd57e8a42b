//! `[[log.sink]]`.

use std::path::PathBuf;

use nat::Duration;

use crate::draft::name;
use crate::draft::singles::path;
use crate::model::LogSink;
use crate::model::SinkKind;
use crate::model::SinkTransport;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::values;

/// One `[[log.sink]]`; what is faulty is missing.
pub(crate) struct SinkDraft {
    pub(crate) place: Place,
    pub(crate) name: Option<Placed<String>>,
    kind: SinkKind,
    pub(crate) address: Option<Placed<(SinkTransport, String, u16)>>,
    pub(crate) certificates: Option<Placed<PathBuf>>,
    pub(crate) certificate: Option<Placed<PathBuf>>,
    pub(crate) key: Option<Placed<PathBuf>>,
    domain: u32,
    mtu: u16,
    template_interval: Duration,
    spool_bytes: u64,
}

impl SinkDraft {
    pub(crate) fn read(section: &Section, report: &mut Report) -> SinkDraft {
        let mut file = |key: &str, example: &str| path(section, key, "file", example, report);
        let certificates = file("certificates", "/etc/natrix/collectors.pem");
        let certificate = file("certificate", "/etc/natrix/own.pem");
        let key = file("key", "/etc/natrix/own.key");
        let number = |key: &str, report: &mut Report| section.integer(key, report).map_or(0, |found| found.value);
        SinkDraft {
            place: section.place.clone(),
            name: name(section, report),
            kind: match section.choice("kind", report) {
                Some("syslog") => SinkKind::Syslog,
                Some("json") => SinkKind::Json,
                _ => SinkKind::Ipfix,
            },
            address: section.parsed("address", values::collector, report),
            certificates,
            certificate,
            key,
            domain: u32::try_from(number("domain", report)).unwrap_or(u32::MAX),
            mtu: u16::try_from(number("mtu", report)).unwrap_or(u16::MAX),
            template_interval: section.duration("template_interval", report).map_or(Duration::ZERO, |it| it.value),
            spool_bytes: section.size("spool", report).map_or(0, |found| found.value),
        }
    }

    pub(crate) fn sink(&self) -> Option<LogSink> {
        let (transport, host, port) = self.address.as_ref()?.value.clone();
        let path = |placed: &Option<Placed<PathBuf>>| placed.as_ref().map(|placed| placed.value.clone());
        Some(LogSink {
            name: self.name.as_ref()?.value.clone(),
            kind: self.kind,
            transport,
            host,
            port,
            certificates: path(&self.certificates),
            own: path(&self.certificate).zip(path(&self.key)),
            domain: self.domain,
            mtu: self.mtu,
            template_interval: self.template_interval,
            spool_bytes: self.spool_bytes,
        })
    }
}
