//! `[http]`: the API and its users.

use std::net::SocketAddr;
use std::path::PathBuf;

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
        && !(token.value.starts_with("$argon2id$") && token.value.split('$').count() == 6)
    {
        // The value may be a secret.
        report.fault(&token.place, "is not a hash of a token", "", "write what natrix token NAME prints");
    }
    let group = section.text("group", report).map(|text| text.value).filter(|group| !group.is_empty());
    let name = name?;
    let user = HttpUser { name: name.value, role, token: token.map(|token| token.value), group };
    Some((user, section.place.clone()))
}
