//! The server's certificate, and the names in certificates of clients.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::FromDer;
use x509_parser::prelude::X509Certificate;

use crate::settings::Tls;

/// How often to look whether the files have changed.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// The certificate in its files. A renewed one is used for new connections; while it cannot be
/// loaded, the one before is kept.
pub(crate) struct Certificates {
    files: Tls,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    /// When the certificate ends, seconds since 1970.
    expires_s: i64,
    /// The files that were loaded, or that failed to load.
    changed: Vec<Option<SystemTime>>,
    looked: Instant,
    /// The files could not be loaded when they were last looked at.
    failing: bool,
    failures: u64,
}

/// The state of the certificate, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CertificateState {
    /// When the one in use ends, seconds since 1970.
    pub(crate) expires_s: i64,
    /// Its files have changed, and the new one cannot be loaded.
    pub(crate) failing: bool,
    /// Changes that could not be loaded.
    pub(crate) failures: u64,
}

impl Certificates {
    pub(crate) fn load(files: Tls) -> Result<Certificates, String> {
        // First, so that files that change while they are read are read again.
        let (changed, looked) = (changed(&files), Instant::now());
        let (acceptor, expires_s) = acceptor(&files)?;
        let current = Current { acceptor, expires_s, changed, looked, failing: false, failures: 0 };
        Ok(Certificates { files, current: Mutex::new(current) })
    }

    /// The acceptor for new connections. It has the certificate that was in the files at the last
    /// look, at most [`LOOKS_EVERY`] ago.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current(LOOKS_EVERY).acceptor.clone()
    }

    /// When the certificate in use expires, and how often its files could not be loaded.
    pub(crate) fn state(&self) -> CertificateState {
        let current = self.current(LOOKS_EVERY);
        CertificateState { expires_s: current.expires_s, failing: current.failing, failures: current.failures }
    }

    /// The current certificate. Looks at the files if the last look was at least `looks_every` ago,
    /// and loads them if they have changed.
    fn current(&self, looks_every: Duration) -> MutexGuard<'_, Current> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() < looks_every {
            return current;
        }
        current.looked = Instant::now();
        let changed = changed(&self.files);
        let is_changed = changed != current.changed;
        // A failure is tried again: what is wrong may be outside these files.
        if !is_changed && !current.failing {
            return current;
        }
        match acceptor(&self.files) {
            Ok((acceptor, expires_s)) => {
                tracing::info!(target: "natrix", object = "api", "http.tls: the renewed certificate is in use");
                (current.acceptor, current.expires_s, current.failing) = (acceptor, expires_s, false);
            }
            Err(error) => {
                if is_changed {
                    tracing::error!(
                        target: "natrix", object = "api",
                        "http.tls: the renewed certificate cannot be loaded, the one before stays in use: {error}"
                    );
                    current.failures += 1;
                }
                current.failing = true;
            }
        }
        current.changed = changed;
        current
    }

    /// The common name in the certificate of a client, which was verified in the handshake.
    pub(crate) fn name_of(&self, chain: Option<&[CertificateDer<'_>]>) -> Option<String> {
        let (_, certificate) = X509Certificate::from_der(chain?.first()?).ok()?;
        let name = certificate.subject().iter_common_name().next()?;
        name.as_str().ok().map(str::to_owned)
    }
}

fn changed(files: &Tls) -> Vec<Option<SystemTime>> {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_authorities.as_ref()];
    let changed = |path: &std::path::PathBuf| std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    paths.into_iter().flatten().map(changed).collect()
}

fn chain_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: String| format!("{}: {error}; name a file of PEM certificates", path.display());
    let chain = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let chain = chain.map_err(|error| wrong(error.to_string()))?;
    if chain.is_empty() { Err(wrong("has no certificate".to_owned())) } else { Ok(chain) }
}

/// A server with the certificate of the files, and when that ends, seconds since 1970.
fn acceptor(files: &Tls) -> Result<(TlsAcceptor, i64), String> {
    let chain = chain_of(&files.certificate)?;
    let own = chain.first().and_then(|first| X509Certificate::from_der(first).ok());
    let expires_s = own.map(|(_, own)| own.validity().not_after.timestamp());
    let expires_s =
        expires_s.ok_or_else(|| format!("{}: is not a certificate of X.509", files.certificate.display()))?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| format!("{}: {error}; name a file with a PEM private key", files.key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in chain_of(path)? {
                roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| format!("{}: {error}", path.display()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder
        .with_single_cert(chain, key)
        .map_err(|error| format!("{}: {error}; use the key of the certificate", files.key.display()))?;
    Ok((TlsAcceptor::from(Arc::new(config)), expires_s))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_renewed_certificate_that_does_not_load_is_counted() {
        let folder = std::env::temp_dir().join(format!("natrix-tls-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (certificate, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        let good = include_str!("../../config/tests/tls/certificate.pem");
        fs::write(&certificate, good).unwrap();
        fs::write(&key, include_str!("../../config/tests/tls/key.pem")).unwrap();
        let files = Tls { certificate: certificate.clone(), key: key.clone(), client_authorities: None };
        let certificates = Certificates::load(files).unwrap();
        let look = || {
            let current = certificates.current(Duration::ZERO);
            (current.failing, current.failures, current.expires_s)
        };
        let expires_s = certificates.state().expires_s;
        assert!(expires_s > 1_700_000_000, "{expires_s}");
        assert_eq!(look(), (false, 0, expires_s));
        // The clock of a file system may be coarse, so each file has a time of its own.
        let write = |text: &str, seconds: u64| {
            fs::write(&certificate, text).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            fs::File::options().write(true).open(&certificate).unwrap().set_modified(time).unwrap();
        };
        write("half a certificate", 1_000);
        assert_eq!(look(), (true, 1, expires_s));
        assert_eq!(look(), (true, 1, expires_s), "counted once");
        write("the other half", 2_000);
        assert_eq!(look(), (true, 2, expires_s));
        write(good, 3_000);
        assert_eq!(look(), (false, 2, expires_s));
        fs::remove_dir_all(folder).unwrap();
    }
}
