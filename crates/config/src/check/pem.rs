//! Files in PEM (RFC 7468) that TLS needs: the process that uses them would never start without.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::path::PathBuf;

use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::Error;
use rustls_pki_types::pem::PemObject;

use crate::check::machine::Machine;
use crate::report::Placed;
use crate::report::Report;

/// The most bytes of a file that are looked at. All authorities of a distribution have 0.3 MB.
const BYTES_MAX: u64 = 4 << 20;

const NOT_X509: &str = "has a certificate that is not one of X.509";

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
            Holds::Certificates => {
                let found = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
                if found.iter().flatten().any(|certificate| !is_x509(certificate)) {
                    return Some(NOT_X509);
                }
                let found = found.and_then(|all| if all.is_empty() { Err(Error::NoItemsFound) } else { Ok(()) });
                (found, "has no certificate in PEM", "has a broken certificate in PEM")
            }
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

/// True if TLS can use it as that of an authority, which every certificate of X.509 could be.
fn is_x509(certificate: &CertificateDer<'_>) -> bool {
    RootCertStore::empty().add(certificate.clone().into_owned()).is_ok()
}

/// Reports what [`check`] does of the files of a certificate and its key, and a pair that TLS would
/// refuse.
pub(crate) fn check_pair(certificate: &Placed<PathBuf>, key: &Placed<PathBuf>, machine: &Machine, report: &mut Report) {
    let is_certificate = is_right(certificate, Holds::Certificates, machine, report);
    let is_key = is_right(key, Holds::Key, machine, report);
    // What is not one was reported.
    if !is_certificate || !is_key || !machine.has_folders || report.is_sent() {
        return;
    }
    let (Ok(chain), Ok(secret)) = (read(&certificate.value), read(&key.value)) else { return };
    let chain = CertificateDer::pem_slice_iter(&chain).collect::<Result<Vec<_>, _>>();
    let (Ok(chain), Ok(secret)) = (chain, PrivateKeyDer::from_pem_slice(&secret)) else { return };
    if chain.is_empty() {
        return;
    }
    let seen = key.value.display().to_string();
    let remedy = format!("name the key that {} was made for", certificate.value.display());
    match CertifiedKey::from_der(chain, secret, &rustls::crypto::ring::default_provider()) {
        Ok(_) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            report.fault(&key.place, "is not the key of the certificate", seen, remedy);
        }
        Err(error @ rustls::Error::InvalidCertificate(_)) => {
            let seen = format!("{}: {error}", certificate.value.display());
            report.fault(&certificate.place, "cannot be used by TLS", seen, "name a file with an X.509 certificate");
        }
        Err(error) => {
            let remedy = "make a key of RSA (2,048 bits or more), ECDSA (P-256 or P-384) or Ed25519, and a certificate";
            report.fault(&key.place, "cannot be used by TLS", format!("{seen}: {error}"), remedy);
        }
    }
}

/// Reports a file that is not there, cannot be read, or does not hold what it should. About a text
/// that a client sent, only whether the file is there: they could try other files of the machine.
pub(crate) fn check(file: &Placed<PathBuf>, holds: Holds, machine: &Machine, report: &mut Report) {
    is_right(file, holds, machine, report);
}

/// As [`check`]; false if it reported the file.
fn is_right(file: &Placed<PathBuf>, holds: Holds, machine: &Machine, report: &mut Report) -> bool {
    if !machine.has_folders {
        return true;
    }
    let seen = file.value.display().to_string();
    if !file.value.is_file() {
        report.fault(&file.place, "is not a file", seen, "name a file in PEM that is there");
        return false;
    }
    if report.is_sent() {
        return true;
    }
    let text = match read(&file.value) {
        Ok(text) => text,
        Err(error) => {
            let seen = format!("{seen}: {error}");
            report.fault(&file.place, "cannot be read", seen, "let the user that runs natrix read the file");
            return false;
        }
    };
    let problem = holds.problem(&text);
    if let Some(problem) = problem {
        let remedy = match holds {
            _ if problem == NOT_X509 => "name a file with X.509 certificates",
            Holds::Key => "name a file with a section that begins with -----BEGIN PRIVATE KEY-----",
            Holds::Certificates => "name a file with a section that begins with -----BEGIN CERTIFICATE-----",
        };
        report.fault(&file.place, problem, seen, remedy);
    }
    problem.is_none()
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}
