//! `[http]`: the API and its users.

use std::net::SocketAddr;
use std::path::PathBuf;

use argon2::ARGON2ID_IDENT;
use argon2::Params;
use argon2::PasswordHash;
use toml_edit::Table;

use crate::draft::name;
use crate::draft::repeated;
use crate::draft::single;
use crate::draft::singles::path;
use crate::model::Http;
use crate::model::HttpListen;
use crate::model::HttpRole;
use crate::model::HttpTls;
use crate::model::HttpUser;
use crate::report::Place;
use crate::report::Placed;
use crate::report::Report;
use crate::section::Section;
use crate::section::quoted;

/// The API, and the files of `[http.tls]` with their places.
pub(crate) struct HttpDraft {
    pub(crate) http: Http,
    pub(crate) tls_certificates: Vec<Placed<PathBuf>>,
    pub(crate) tls_key: Option<Placed<PathBuf>>,
}

/// `[http]`, `[http.tls]` and `[[http.user]]`; None without `listen`.
pub(crate) fn http(root: &Table, report: &mut Report) -> Option<HttpDraft> {
    let empty = Table::new();
    let section = single(root, "http", &empty, report);
    let tls_section = single(root, "http.tls", &empty, report);
    let (tls, tls_certificates, tls_key) = tls(&tls_section, report);
    let users = repeated(root, "http.user", user, report);
    let text = section.text("listen", report)?;
    let hosts = section.list("hosts", report).into_iter().filter_map(|host| match host.value.as_str() {
        Some(name) => Some(name.to_owned()),
        None => {
            report.fault(
                &host.place,
                "is not a string",
                host.value.to_string(),
                "write hosts = [\"nat1.example.net\"]",
            );
            None
        }
    });
    let hosts = hosts.collect();
    if text.value.is_empty() {
        return None;
    }
    let listen = listen(&text, report)?;
    if let HttpListen::Tcp(address) = listen
        && !address.ip().is_loopback()
        && tls.is_none()
    {
        let remedy = "add [http.tls] with certificate and key, or listen on 127.0.0.1 or unix:/run/natrix/http.sock";
        report.fault(&text.place, "is not loopback and has no TLS", quoted(&text.value), remedy);
    }
    let mut seen: Vec<(&str, &Place)> = Vec::new();
    for (user, place) in users.iter().flatten() {
        if seen.iter().any(|(name, _)| *name == user.name) {
            report.fault(place, "appears twice", quoted(&user.name), "give each user a name of its own");
        }
        seen.push((&user.name, place));
    }
    let users = users.into_iter().flatten().map(|(user, _)| user).collect();
    Some(HttpDraft { http: Http { listen, hosts, tls, users }, tls_certificates, tls_key })
}

fn listen(text: &Placed<String>, report: &mut Report) -> Option<HttpListen> {
    if let Some(path) = text.value.strip_prefix("unix:") {
        if !path.starts_with('/') || path.ends_with('/') || path.len() > super::singles::SOCKET_PATH_MAX {
            let remedy = "write the path from the root, such as \"unix:/run/natrix/http.sock\"";
            report.fault(&text.place, "is not the absolute path of a socket", quoted(&text.value), remedy);
            return None;
        }
        return Some(HttpListen::Unix(PathBuf::from(path)));
    }
    match text.value.parse::<SocketAddr>() {
        Ok(address) if address.port() != 0 => Some(HttpListen::Tcp(address)),
        _ => {
            let remedy = "write \"127.0.0.1:8080\", \"[::1]:8080\" or \"unix:/run/natrix/http.sock\"";
            report.fault(&text.place, "is not an address and port", quoted(&text.value), remedy);
            None
        }
    }
}

/// The most memory that a hash of a token may take, in KiB; `natrix token` uses 19 MiB.
const HASH_KIB_MAX: u32 = 256 << 10;
/// The most work: KiB times passes, 27 times that of `natrix token`.
const HASH_WORK_MAX: u32 = 1 << 20;

/// The files, those with certificates, and the one with the key.
type TlsFiles = (Option<HttpTls>, Vec<Placed<PathBuf>>, Option<Placed<PathBuf>>);

fn tls(section: &Section, report: &mut Report) -> TlsFiles {
    let mut file = |key: &str| path(section, key, "file", "/etc/natrix/tls/cert.pem", report);
    let (certificate, key, client_authorities) = (file("certificate"), file("key"), file("client_authorities"));
    if certificate.is_some() != key.is_some() || certificate.is_none() && client_authorities.is_some() {
        report.fault(&section.place, "needs both certificate and key", "", "name both files, or neither");
    }
    let value = |file: &Option<Placed<PathBuf>>| file.as_ref().map(|file| file.value.clone());
    let tls = value(&certificate).zip(value(&key)).map(|(certificate, key)| HttpTls {
        certificate,
        key,
        client_authorities: value(&client_authorities),
    });
    (tls, [certificate, client_authorities].into_iter().flatten().collect(), key)
}

fn user(section: &Section, report: &mut Report) -> Option<(HttpUser, Place)> {
    let name = name(section, report);
    let role = match section.choice("role", report) {
        Some("operate") => HttpRole::Operate,
        Some("audit") => HttpRole::Audit,
        _ => HttpRole::View,
    };
    let token = section.text("token", report).filter(|text| !text.value.is_empty());
    if let Some(token) = &token
        && let Some(problem) = problem_of_hash(&token.value)
    {
        // The value may be a secret.
        report.fault(&token.place, problem, "", "write what natrix token NAME prints");
    }
    let group = section.text("group", report).map(|text| text.value).filter(|group| !group.is_empty());
    let name = name?;
    let user = HttpUser { name: name.value, role, token: token.map(|token| token.value), group };
    Some((user, section.place.clone()))
}

/// Why a text is no argon2id hash that the API can check a token with.
fn problem_of_hash(text: &str) -> Option<&'static str> {
    let hash = PasswordHash::new(text).ok();
    let hash = hash.filter(|hash| hash.algorithm == ARGON2ID_IDENT && hash.salt.is_some() && hash.hash.is_some());
    let Some(cost) = hash.and_then(|hash| Params::try_from(&hash).ok()) else {
        return Some("is not a hash of a token");
    };
    let is_dear = cost.m_cost() > HASH_KIB_MAX || cost.m_cost().saturating_mul(cost.t_cost()) > HASH_WORK_MAX;
    is_dear.then_some("is a hash that takes too much memory or time to check")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hashes_that_can_be_checked_are_accepted() {
        let hash = |parameters: &str| {
            problem_of_hash(&format!(
                "$argon2id$v=19${parameters}$c2FsdHNhbHRzYWx0$b8XNaXQvzOSgOQb8XNaXQvzOSgOQb8XNaXQvzOSgOQA"
            ))
        };
        assert_eq!(hash("m=19456,t=2,p=1"), None);
        assert_eq!(hash("m=262144,t=4,p=1"), None);
        for dear in ["m=262145,t=1,p=1", "m=19456,t=4294967295,p=1", "m=4294967295,t=1,p=1"] {
            assert!(hash(dear).is_some_and(|problem| problem.contains("too much")), "{dear}");
        }
        for wrong in ["", "secret", "$argon2id$$$$", "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0"] {
            assert_eq!(problem_of_hash(wrong), Some("is not a hash of a token"), "{wrong}");
        }
        let of_other = "$argon2i$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0$b8XNaXQvzOSgOQb8XNaXQvzOSgOQb8XNaXQvzOSgOQA";
        assert!(problem_of_hash(of_other).is_some());
        assert!(hash("m=1,t=2,p=1").is_some() && hash("m=19456,t=0,p=1").is_some() && hash("").is_some());
    }
}
