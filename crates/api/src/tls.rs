//! The server's certificate, and the names in certificates of clients.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
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

/// The certificate in its files. A renewed one is used for new connections.
pub(crate) struct Certificates {
    files: Tls,
    current: Mutex<Current>,
}

struct Current {
    acceptor: TlsAcceptor,
    changed: Vec<Option<SystemTime>>,
    looked: Instant,
}

impl Certificates {
    pub(crate) fn load(files: Tls) -> Result<Certificates, String> {
        let current = Current { acceptor: acceptor(&files)?, changed: changed(&files), looked: Instant::now() };
        Ok(Certificates { files, current: Mutex::new(current) })
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= LOOKS_EVERY {
            current.looked = Instant::now();
            let changed = changed(&self.files);
            if changed != current.changed
                && let Ok(acceptor) = acceptor(&self.files)
            {
                current.acceptor = acceptor;
                current.changed = changed;
            }
        }
        current.acceptor.clone()
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

fn acceptor(files: &Tls) -> Result<TlsAcceptor, String> {
    let chain = chain_of(&files.certificate)?;
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
    Ok(TlsAcceptor::from(Arc::new(config)))
}
