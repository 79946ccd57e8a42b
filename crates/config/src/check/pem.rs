//! Files in PEM (RFC 7468) that TLS needs: the process that uses them would never start without.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::Error;
use rustls_pki_types::pem::PemObject;

use crate::check::machine::Machine;
use crate::report::Placed;
use crate::report::Report;

/// The most bytes of a file that are looked at. All authorities of a distribution have 0.3 MB.
const BYTES_MAX: u64 = 4 << 20;

/// What a file has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// One certificate or more.
    Certificates,
    /// A private key.
    Key,
}

impl Holds {
    /// Why `text` does not hold it.
    fn problem(self, text: &[u8]) -> Option<&'static str> {
        let (outcome, missing, broken) = match self {
            Holds::Certificates => (
                CertificateDer::pem_slice_iter(text)
                    .collect::<Result<Vec<_>, _>>()
                    .and_then(|all| if all.is_empty() { Err(Error::NoItemsFound) } else { Ok(()) }),
                "has no certificate in PEM",
                "has a broken certificate in PEM",
            ),
            Holds::Key => (
                PrivateKeyDer::from_pem_slice(text).map(drop),
                "has no private key in PEM",
                "has a broken private key in PEM",
            ),
        };
        match outcome {
            Ok(()) => None,
            Err(Error::NoItemsFound) => Some(missing),
            Err(_) => Some(broken),
        }
    }
}

/// Reports a file that is not there, cannot be read, or does not hold what it should. About a text
/// that somebody sent, only whether the file is there: they could try other files of the machine.
pub(crate) fn check(file: &Placed<PathBuf>, holds: Holds, machine: &Machine, report: &mut Report) {
    if !machine.has_folders {
        return;
    }
    let seen = file.value.display().to_string();
    if !file.value.is_file() {
        report.fault(&file.place, "is not a file", seen, "name a file in PEM that is there");
        return;
    }
    if report.is_sent() {
        return;
    }
    let text = match read(&file.value) {
        Ok(text) => text,
        Err(error) => {
            let seen = format!("{seen}: {error}");
            report.fault(&file.place, "cannot be read", seen, "let the user that runs natrix read the file");
            return;
        }
    };
    if let Some(problem) = holds.problem(&text) {
        let begins = if holds == Holds::Key { "-----BEGIN PRIVATE KEY-----" } else { "-----BEGIN CERTIFICATE-----" };
        report.fault(&file.place, problem, seen, format!("name a file with a section that begins with {begins}"));
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}
