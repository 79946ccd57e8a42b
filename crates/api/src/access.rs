//! What a request may ask: Host, login, role, and how often.

use core::net::IpAddr;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Method;
use axum::http::StatusCode;
use axum::http::Uri;
use axum::http::header;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::response::Response;
use base64ct::Base64;
use base64ct::Encoding;
use control::Actor;
use tokio::sync::Semaphore;

use crate::answer::Problem;
use crate::answer::Refused;
use crate::ask::Daemon;
use crate::connections::Standing;
use crate::settings::Listen;
use crate::settings::Role;
use crate::settings::Settings;
use crate::settings::User;
use crate::token;
use crate::wrong_logins::NameKey;
use crate::wrong_logins::Place;
use crate::wrong_logins::WrongLogins;

/// Places whose rate of requests is known. The one that has been silent for longest is forgotten
/// for a further one, so that no client is refused because others fill the table.
const PLACES_MAX: usize = 4096;
/// Requests a second from one place, and how many may come at once.
const REQUESTS_PER_SECOND: f64 = 100.0;
const REQUESTS_AT_ONCE: f64 = 200.0;
/// Refusals of one place, and of all places, that a minute has lines and records for.
const REPORTED_OF_PLACE: u32 = 10;
const REPORTED_MAX: u32 = 100;
const REPORTED_WITHIN: Duration = Duration::from_secs(60);
/// Of a path that is refused.
const PATH_CHARACTERS_MAX: usize = 200;
/// Bytes of a body, and time for it to arrive.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
const BODY_WITHIN: Duration = Duration::from_secs(10);
/// Header with the token that proves that a change comes from the page.
pub(crate) const CSRF_HEADER: &str = "x-natrix-csrf";
/// The same header of a client that is no browser. A page of another site cannot send the header
/// without asking this server first, which never agrees, and a browser always adds `Origin`.
const NO_BROWSER: &str = "client";
/// Header with the case that a lookup belongs to.
pub(crate) const CASE_HEADER: &str = "x-natrix-case";

/// The client's end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    Tcp { address: IpAddr, certificate: Option<String> },
    Unix { uid: u32, groups: Vec<u32> },
}

impl Peer {
    fn place(&self) -> Place {
        match self {
            Peer::Tcp { address, .. } => Place::of(*address),
            Peer::Unix { uid, .. } => Place::User(*uid),
        }
    }

    fn name(&self) -> String {
        match self {
            Peer::Tcp { address, .. } => format!("http {address}"),
            Peer::Unix { uid, .. } => format!("http uid {uid}"),
        }
    }
}

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Principal {
    name: String,
    /// Several for root, and for members of several groups.
    roles: Vec<Role>,
    from: String,
    /// What its lookups are for.
    case: Option<String>,
    /// The client does not send this login by itself, so no other page can use it.
    explicit: bool,
}

impl Principal {
    /// For the audit log of the daemon.
    pub(crate) fn actor(&self) -> Actor {
        self.actor_for(None)
    }

    /// As [`Principal::actor`]; the case of the query comes before that of the header.
    pub(crate) fn actor_for(&self, case: Option<String>) -> Actor {
        Actor { who: self.name.clone(), from: self.from.clone(), case: case.or_else(|| self.case.clone()) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The words of its roles.
    pub(crate) fn roles(&self) -> String {
        self.roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ")
    }

    /// True if one of its roles suffices.
    pub(crate) fn permits(&self, needed: Role) -> bool {
        self.roles.iter().any(|role| role.permits(needed))
    }

    /// True if it may see the prefixes of subscribers: as configuration, or to look them up.
    pub(crate) fn sees_prefixes(&self) -> bool {
        self.permits(Role::Operate) || self.permits(Role::Audit)
    }

    /// Refuses what no role of it permits.
    pub(crate) fn require(&self, needed: Role) -> Result<(), Refused> {
        if self.permits(needed) {
            return Ok(());
        }
        let fault = control::Fault::new("role", format!("needs {needed}"), "ask for a user with this role");
        Err(Refused::of(StatusCode::FORBIDDEN, fault.seen(format!("{}: {}", self.name, self.roles()))))
    }
}

/// How many requests a place may send now.
#[derive(Debug)]
struct Budget {
    left: f64,
    refilled: Instant,
}

/// The user of a refused request.
#[derive(Clone, Debug)]
struct Denied(Actor);

/// The refusals of this minute. Bounded, so that no client fills the logs with them.
#[derive(Debug)]
struct Refusals {
    since: Instant,
    reported_of: HashMap<Place, u32>,
    reported: u32,
    /// Since the last one that was reported.
    unreported: u64,
}

impl Refusals {
    fn new(now: Instant) -> Refusals {
        Refusals { since: now, reported_of: HashMap::new(), reported: 0, unreported: 0 }
    }

    /// Counts a refusal. If it is to be reported: how many before it were not.
    fn report(&mut self, place: Place, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= REPORTED_WITHIN {
            *self = Refusals { unreported: self.unreported, ..Refusals::new(now) };
        }
        let of_place = self.reported_of.get(&place).copied().unwrap_or_default();
        if self.reported >= REPORTED_MAX || of_place >= REPORTED_OF_PLACE {
            self.unreported += 1;
            return None;
        }
        self.reported_of.insert(place, of_place + 1);
        self.reported += 1;
        Some(std::mem::take(&mut self.unreported))
    }
}

/// Access to one server.
#[derive(Debug)]
pub(crate) struct Access {
    settings: Settings,
    /// Secrets of this process: the key of what it remembers of tokens, and of CSRF tokens.
    key: [u8; 32],
    /// Keyed hashes of tokens that were verified, and the index of their user.
    verified: Mutex<HashMap<[u8; 32], usize>>,
    budgets: Mutex<HashMap<Place, Budget>>,
    wrong_logins: Mutex<WrongLogins>,
    refusals: Mutex<Refusals>,
    /// Secrets are verified one after the other: each takes memory and a processor.
    verifying: Arc<Semaphore>,
    own_uid: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Access {
    pub(crate) fn new(settings: Settings, key: [u8; 32], own_uid: u32) -> Access {
        let verifying = Arc::new(Semaphore::new(1));
        let refusals = Mutex::new(Refusals::new(Instant::now()));
        let (verified, budgets, wrong_logins) = (Mutex::default(), Mutex::default(), Mutex::default());
        Access { settings, key, verified, budgets, wrong_logins, refusals, verifying, own_uid }
    }

    /// The control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.settings.control.clone()
    }

    pub(crate) fn csrf_token(&self, name: &str) -> String {
        blake3::keyed_hash(&self.key, format!("csrf {name}").as_bytes()).to_hex().to_string()
    }

    /// A page of another site that resolves its own name to this machine is recognised by the name.
    /// A second `Host` is refused (RFC 9112 §3.2): a proxy may have looked at the other one.
    fn check_host(&self, headers: &HeaderMap, uri_host: Option<&str>) -> Result<(), Refused> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let first = hosts.next().map(|host| host.to_str().unwrap_or_default());
        if hosts.next().is_some() {
            return Err(Refused::new(StatusCode::BAD_REQUEST, "host", "is named twice", "send one Host header"));
        }
        let named = [first, uri_host].into_iter().flatten();
        // Without a name, too: every client of HTTP/1.1 sends one.
        let missing = first.is_none() && uri_host.is_none();
        named.chain(missing.then_some("")).try_for_each(|host| self.check_name(host))
    }

    /// Refuses a name that is not this server's.
    fn check_name(&self, host: &str) -> Result<(), Refused> {
        let Listen::Tcp(address) = &self.settings.listen else { return Ok(()) };
        let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let name = name.map_or(host, |(name, _)| name).trim_start_matches('[').trim_end_matches(']');
        let is_own = name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|named| named == address.ip() || address.ip().is_unspecified())
            || self.settings.hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
        if is_own {
            return Ok(());
        }
        let fault = control::Fault::new("host", "is not this server", "use its address, or add the name to http.hosts");
        Err(Refused::of(StatusCode::MISDIRECTED_REQUEST, fault.seen(host)))
    }

    /// Counts a request.
    fn check_rate(&self, peer: &Peer) -> Result<(), Refused> {
        let (place, now) = (peer.place(), Instant::now());
        let mut budgets = lock(&self.budgets);
        if budgets.len() >= PLACES_MAX && !budgets.contains_key(&place) {
            let silent = budgets.iter().min_by_key(|(_, budget)| budget.refilled).map(|(place, _)| *place);
            silent.map(|silent| budgets.remove(&silent));
        }
        let budget = budgets.entry(place).or_insert(Budget { left: REQUESTS_AT_ONCE, refilled: now });
        let earned = now.duration_since(budget.refilled).as_secs_f64() * REQUESTS_PER_SECOND;
        budget.left = (budget.left + earned).min(REQUESTS_AT_ONCE);
        budget.refilled = now;
        if budget.left < 1.0 {
            return Err(too_many("too many requests a second"));
        }
        budget.left -= 1.0;
        Ok(())
    }

    /// What wrong logins with the name in this token count by. The key keeps others from finding
    /// names that share it.
    fn name_key(&self, token: &str) -> NameKey {
        let name = token.split_once(':').map_or("", |(name, _)| name);
        let hash = blake3::keyed_hash(&self.key, format!("name {name}").as_bytes());
        hash.as_bytes().iter().take(8).fold(0, |key, byte| key << 8 | NameKey::from(*byte))
    }

    /// Refuses a login after too many wrong ones.
    fn check_logins(&self, peer: &Peer, token: &str) -> Result<(), Refused> {
        let name = self.name_key(token);
        if lock(&self.wrong_logins).refuse(peer.place(), name, token::is_random(token), Instant::now()) {
            return Err(too_many("too many wrong logins"));
        }
        Ok(())
    }

    fn count_wrong_login(&self, peer: &Peer, token: &str) {
        let name = self.name_key(token);
        lock(&self.wrong_logins).count(peer.place(), name, Instant::now());
    }

    fn remembered_as(&self, token: &str) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, format!("token {token}").as_bytes()).as_bytes()
    }

    /// The user whose token was verified before.
    fn remembered(&self, token: &str) -> Option<usize> {
        lock(&self.verified).get(&self.remembered_as(token)).copied()
    }

    /// The same, unless the secret can be guessed and there were too many wrong logins.
    fn known(&self, peer: &Peer, token: &str) -> Result<Option<usize>, Refused> {
        match self.remembered(token) {
            Some(user) if !token::is_random(token) => self.check_logins(peer, token).map(|()| Some(user)),
            found => Ok(found),
        }
    }

    /// The user with this name, and the hash to check the secret against. For an unknown name it is
    /// that of another user, so that the time of the answer does not show which names exist.
    fn candidate(&self, name: &str) -> Option<(Option<usize>, &str)> {
        let users = self.settings.users.iter().enumerate();
        let mut with_token = users.filter_map(|(index, user)| Some((index, user, user.token.as_deref()?)));
        let own = with_token.clone().find(|(_, user, _)| user.name == name);
        let own = own.map(|(index, _, hash)| (Some(index), hash));
        own.or_else(|| with_token.next().map(|(_, _, hash)| (None, hash)))
    }

    /// The user with this token. Blocks for tens of milliseconds.
    fn verify(&self, token: &str) -> Option<usize> {
        let (name, secret) = token.split_once(':')?;
        let (user, hash) = self.candidate(name)?;
        let is_right = token::verify(secret, hash);
        let user = user.filter(|_| is_right)?;
        // One for each user with a token: the map cannot grow beyond them.
        lock(&self.verified).insert(self.remembered_as(token), user);
        Some(user)
    }

    /// The user with this token.
    ///
    /// A right token that was verified before is let through whatever others send from its place:
    /// its keyed hash is known, which costs next to nothing. Only a random secret, though: this way
    /// has the rate of requests as its only limit, and guesses at a secret that a person made up
    /// must have the one of wrong logins.
    async fn user_of(self: &Arc<Access>, token: String, peer: &Peer) -> Result<Option<usize>, Refused> {
        // Without a hash to check there is no guess to count: a name without a secret, or no user.
        if token.split_once(':').and_then(|(name, _)| self.candidate(name)).is_none() {
            return Ok(None);
        }
        if let Some(user) = self.known(peer, &token)? {
            return Ok(Some(user));
        }
        let turn = Arc::clone(&self.verifying).acquire_owned().await;
        // Another request with this token may have come first.
        if let Some(user) = self.known(peer, &token)? {
            return Ok(Some(user));
        }
        // Logins that were sent at the same time have their turns one after the other, so each sees
        // what the others have failed.
        self.check_logins(peer, &token)?;
        let (access, peer) = (Arc::clone(self), peer.clone());
        let verified = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let user = access.verify(&token);
            // Here, so that it also counts if the client does not wait for the answer.
            if user.is_none() {
                access.count_wrong_login(&peer, &token);
            }
            user
        });
        Ok(verified.await.ok().flatten())
    }

    fn principal(&self, user: usize, peer: &Peer, explicit: bool) -> Option<Principal> {
        let user = self.settings.users.get(user)?;
        Some(Principal { name: user.name.clone(), roles: vec![user.role], from: peer.name(), case: None, explicit })
    }

    /// The user that the connection itself proves: by certificate, or by group on a Unix socket.
    fn by_connection(&self, peer: &Peer, needed: Role) -> Option<Principal> {
        let users = self.settings.users.iter().enumerate();
        match peer {
            Peer::Tcp { certificate: Some(name), .. } => {
                let (index, _) = users.into_iter().find(|(_, user)| user.name == *name)?;
                self.principal(index, peer, false)
            }
            Peer::Tcp { certificate: None, address } => {
                // The configuration names no user, and the address is this machine's own.
                let open = self.settings.users.is_empty() && address.is_loopback();
                let anonymous = || Principal {
                    name: "anonymous".to_owned(),
                    roles: vec![Role::View],
                    from: peer.name(),
                    case: None,
                    explicit: false,
                };
                open.then(anonymous)
            }
            // Root and the user of the daemon may use the control socket anyway.
            Peer::Unix { uid, .. } if *uid == 0 || *uid == self.own_uid => {
                let roles = vec![Role::View, Role::Operate, Role::Audit];
                Some(Principal { name: format!("uid {uid}"), roles, from: peer.name(), case: None, explicit: true })
            }
            Peer::Unix { groups, .. } => {
                let mut mine = users.filter(|(_, user)| user.group.is_some_and(|group| groups.contains(&group)));
                let roles = mine.clone().map(|(_, user)| user.role).collect();
                // The audit log names the user whose role was needed.
                let best = mine.clone().find(|(_, user)| user.role.permits(needed)).or_else(|| mine.next());
                Some(Principal { roles, ..self.principal(best?.0, peer, true)? })
            }
        }
    }

    /// The answer to a client that neither sends a token nor is known by its connection.
    fn not_logged_in(&self, peer: &Peer) -> Refused {
        let Peer::Unix { uid, .. } = peer else { return unauthorized("no login") };
        let has = |is_there: fn(&User) -> bool| self.settings.users.iter().any(is_there);
        let remedy = match (has(|user| user.group.is_some()), has(|user| user.token.is_some())) {
            (true, true) => "ask as a member of the group of an [[http.user]], with a token of one, or as root",
            (true, false) => "ask as a member of the group of an [[http.user]], or as root",
            (false, true) => {
                "send `Authorization: Bearer NAME:SECRET` with a token of an [[http.user]], or ask as root"
            }
            (false, false) => "add an [[http.user]] with a group of this user, or ask as root",
        };
        let fault = control::Fault::new("login", "no [[http.user]] has a group of this user", remedy);
        Refused::of(StatusCode::UNAUTHORIZED, fault.seen(format!("uid {uid}"))).with_challenge()
    }

    async fn login(self: &Arc<Access>, headers: &HeaderMap, peer: &Peer, needed: Role) -> Result<Principal, Refused> {
        let Some((token, explicit)) = token_of(headers) else {
            return self.by_connection(peer, needed).ok_or_else(|| self.not_logged_in(peer));
        };
        let found = self.user_of(token, peer).await?;
        let principal = found.and_then(|user| self.principal(user, peer, explicit));
        principal.ok_or_else(|| unauthorized("wrong name or token"))
    }

    /// A change must come from a client that logs in by itself or is no browser, or from our own
    /// page.
    fn check_origin(&self, headers: &HeaderMap, principal: &Principal) -> Result<(), Refused> {
        check_site(headers)?;
        let sent = headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        let of_browser = ["origin", "referer", "sec-fetch-site", "cookie"];
        let is_client = sent == Some(NO_BROWSER) && !of_browser.iter().any(|name| headers.contains_key(*name));
        let proved = is_client || sent.is_some_and(|sent| is_equal(sent, &self.csrf_token(&principal.name)));
        if principal.explicit || proved { Ok(()) } else { Err(foreign("has no CSRF token")) }
    }
}

fn foreign(problem: &str) -> Refused {
    let remedy = "send it from the page, with a bearer token, or not from a browser with X-Natrix-CSRF: client";
    Refused::new(StatusCode::FORBIDDEN, "request", problem, remedy)
}

/// Refuses what a page of another site sends.
fn check_site(headers: &HeaderMap) -> Result<(), Refused> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("host").unwrap_or_default();
    let is_ours = |origin: &str| origin.split_once("://").is_some_and(|(_, place)| place.eq_ignore_ascii_case(host));
    let is_foreign = text("origin").is_some_and(|origin| !is_ours(origin))
        || text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none");
    if is_foreign { Err(foreign("comes from a page of another site")) } else { Ok(()) }
}

/// Everything but the page, its files, and the metrics.
fn is_data(uri: &Uri) -> bool {
    ["/api/", "/restconf/"].iter().any(|folder| uri.path().starts_with(folder))
}

/// Compares in a time that does not depend on where they differ.
fn is_equal(left: &str, right: &str) -> bool {
    left.len() == right.len() && left.bytes().zip(right.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

fn too_many(problem: &str) -> Refused {
    Refused::new(StatusCode::TOO_MANY_REQUESTS, "client", problem, "wait a minute and try again")
}

fn unauthorized(problem: &str) -> Refused {
    let remedy = "send `Authorization: Bearer NAME:SECRET` with a token of natrix token";
    Refused::new(StatusCode::UNAUTHORIZED, "login", problem, remedy).with_challenge()
}

/// `NAME:SECRET`, and whether the client sends it on purpose: browsers repeat Basic by themselves.
fn token_of(headers: &HeaderMap) -> Option<(String, bool)> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
    let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((rest.trim().to_owned(), true));
    }
    let decoded = Base64::decode_vec(rest.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    Some((decoded.unwrap_or_default(), false))
}

/// The case in the header, as UTF-8. That in the query is checked here too.
fn case_of(headers: &HeaderMap, uri: &Uri) -> Result<Option<String>, Refused> {
    let wrong = |problem, remedy: &str| Refused::new(StatusCode::BAD_REQUEST, CASE_HEADER, problem, remedy);
    let mut sent = headers.get_all(CASE_HEADER).iter();
    let case = sent.next().map(|case| core::str::from_utf8(case.as_bytes())).transpose();
    let case = case.map_err(|_| wrong("is not UTF-8", "send UTF-8, or the parameter `case`"))?;
    if sent.next().is_some() {
        return Err(wrong("is named twice", "send one case"));
    }
    // A query that cannot be read is refused by its handler.
    let query = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).map(|query| query.0);
    let query = query.unwrap_or_default();
    let in_query = query.iter().filter(|(name, _)| name == "case").map(|(_, case)| case.as_str());
    for case in case.into_iter().chain(in_query) {
        control::check_case(case).map_err(|fault| Refused::of(StatusCode::BAD_REQUEST, fault))?;
    }
    Ok(case.map(str::to_owned))
}

/// For every request: the name of the server, and the rate. Refused attempts leave a trace.
pub(crate) async fn admit(
    State((access, daemon)): State<(Arc<Access>, Daemon)>,
    Extension(peer): Extension<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let _asking = request.extensions().get::<Arc<Standing>>().map(|standing| Arc::clone(standing).ask());
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let admitted = access.check_host(request.headers(), uri.host()).and_then(|()| access.check_rate(&peer));
    let response = match admitted {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    let status = response.status();
    if ![StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN, StatusCode::TOO_MANY_REQUESTS].contains(&status) {
        return response;
    }
    let Some(unreported) = lock(&access.refusals).report(peer.place(), Instant::now()) else { return response };
    let problem = response.extensions().get::<Problem>().map_or("is refused", |problem| &problem.0);
    let actor = response.extensions().get::<Denied>().map(|denied| denied.0.clone());
    let who = actor.as_ref().map_or("nobody known", |actor| &actor.who);
    // Without the query: subscribers may be in it. Without the headers: the token is in them.
    let action = format!("{method} {}", uri.path().chars().take(PATH_CHARACTERS_MAX).collect::<String>());
    let status = status.as_u16();
    let from = peer.name();
    tracing::warn!(
        target: "natrix", object = "api", from, status, unreported,
        "refused {action} of {who}: {problem}"
    );
    // Only a user with a login is refused for the role, and only of a lookup, a change, or what is
    // for users that make changes.
    if let Some(actor) = actor {
        let subject = uri.query().unwrap_or_default().to_owned();
        let result = Some(format!("refused: {problem}"));
        let record = control::Request::Record(control::Record { action, subject, result, id: None });
        let recorded = daemon.with(actor, move |client| client.request::<control::AuditRecord>(&record)).await;
        if let Err(refused) = recorded {
            let fault = refused.fault();
            tracing::warn!(target: "natrix", object = "api", "the audit log lacks this refusal: {fault}");
        }
    }
    response
}

/// Which role a request needs.
pub(crate) type Needed = fn(&Uri) -> Role;

/// Reads the body before a handler sees it, so that nothing waits for a slow client. Only changes
/// have one.
async fn with_body(request: Request) -> Result<Request, Refused> {
    if request.method() != Method::POST {
        return Ok(request);
    }
    let (parts, body) = request.into_parts();
    let read = tokio::time::timeout(BODY_WITHIN, axum::body::to_bytes(body, BODY_BYTES_MAX)).await;
    match read {
        Ok(Ok(bytes)) => Ok(Request::from_parts(parts, Body::from(bytes))),
        Ok(Err(_)) => {
            let remedy = "send at most 1 MiB, and all that Content-Length announces";
            Err(Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "body", "is too long or incomplete", remedy))
        }
        Err(_) => {
            let remedy = "send it within 10 s";
            Err(Refused::new(StatusCode::REQUEST_TIMEOUT, "body", "did not arrive in time", remedy))
        }
    }
}

/// For every request but those without a login: the user, and whether the role suffices. Only then
/// its body is read: it takes memory.
pub(crate) async fn authorize(
    State((access, needed)): State<(Arc<Access>, Needed)>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let needed = needed(request.uri());
    let mut principal = access.login(request.headers(), &peer, needed).await?;
    if let Some(standing) = request.extensions().get::<Arc<Standing>>() {
        standing.log_in();
    }
    let wrong_case = match case_of(request.headers(), request.uri()) {
        Ok(case) => {
            principal.case = case;
            Ok(())
        }
        Err(refused) => Err(refused),
    };
    let is_change = request.method() != Method::GET && request.method() != Method::HEAD;
    let permitted = principal.require(needed).and_then(|()| match is_change {
        true => access.check_origin(request.headers(), &principal),
        // A lookup is recorded in the user's name, and data of any role may have one. A link to the
        // page may be anywhere.
        false if is_data(request.uri()) => check_site(request.headers()),
        false => Ok(()),
    });
    // A user that may not ask at all is refused for that, and recorded.
    let permitted = permitted.and(wrong_case);
    let actor = principal.actor();
    let mut response = match permitted {
        Ok(()) => {
            request.extensions_mut().insert(principal);
            match with_body(request).await {
                Ok(request) => next.run(request).await,
                Err(refused) => refused.into_response(),
            }
        }
        Err(refused) => refused.into_response(),
    };
    // Here, and not above: a handler may need more than the path does.
    if response.status() == StatusCode::FORBIDDEN {
        response.extensions_mut().insert(Denied(actor));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: &str = "noc:wrong";
    /// As `natrix token` makes them.
    const RANDOM: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Two users, and the token of the first. The hashes are cheap ones.
    fn access() -> (Arc<Access>, String) {
        access_with(RANDOM)
    }

    fn access_with(secret: &str) -> (Arc<Access>, String) {
        let params = argon2::Params::new(8, 1, 1, None).unwrap();
        let cheap = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let salt = argon2::password_hash::SaltString::encode_b64(&[7; 16]).unwrap();
        let hash = argon2::PasswordHasher::hash_password(&cheap, secret.as_bytes(), &salt).unwrap().to_string();
        let user =
            |name: &str| User { name: name.to_owned(), role: Role::Operate, token: Some(hash.clone()), group: None };
        let settings = Settings {
            listen: Listen::Tcp(([127, 0, 0, 1], 8080).into()),
            hosts: Vec::new(),
            tls: None,
            users: vec![user("noc"), user("other")],
            control: "/nonexistent/control.sock".into(),
        };
        (Arc::new(Access::new(settings, [7; 32], u32::MAX)), format!("noc:{secret}"))
    }

    #[tokio::test]
    async fn a_local_user_without_a_login_learns_what_would_be_one() {
        let (access, _) = access();
        let refused = async |peer| access.login(&HeaderMap::new(), &peer, Role::View).await.unwrap_err();
        let local = refused(Peer::Unix { uid: 1000, groups: vec![1000] }).await.fault().to_string();
        assert!(local.starts_with("login: no [[http.user]] has a group of this user (uid 1000); send "), "{local}");
        let far = refused(Peer::Tcp { address: [192, 0, 2, 1].into(), certificate: None }).await.fault().to_string();
        assert!(far.starts_with("login: no login; send `Authorization: "), "{far}");
    }

    /// The statuses of as many logins at the same time, of one address.
    async fn log_in(access: &Arc<Access>, token: &str, count: usize) -> HashMap<StatusCode, usize> {
        log_in_from(access, [192, 0, 2, 1].into(), token, count).await
    }

    async fn log_in_from(
        access: &Arc<Access>,
        address: IpAddr,
        token: &str,
        count: usize,
    ) -> HashMap<StatusCode, usize> {
        let peer = Peer::Tcp { address, certificate: None };
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        let logins: Vec<_> = (0..count)
            .map(|_| {
                let (access, headers, peer) = (Arc::clone(access), headers.clone(), peer.clone());
                tokio::spawn(async move {
                    access.check_rate(&peer)?;
                    access.login(&headers, &peer, Role::View).await
                })
            })
            .collect();
        let mut statuses = HashMap::new();
        for login in logins {
            let status = match login.await.unwrap() {
                Ok(_) => StatusCode::OK,
                Err(refused) => axum::response::IntoResponse::into_response(refused).status(),
            };
            *statuses.entry(status).or_default() += 1;
        }
        statuses
    }

    #[tokio::test]
    async fn ten_wrong_logins_at_the_same_time_are_the_limit() {
        let (access, token) = access();
        let statuses = log_in(&access, WRONG, 64).await;
        let wanted = [(StatusCode::UNAUTHORIZED, 10), (StatusCode::TOO_MANY_REQUESTS, 54)];
        assert_eq!(statuses, HashMap::from(wanted));
        // It has never been verified, and that is what guessing is.
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]));
    }

    #[tokio::test]
    async fn guesses_do_not_lock_out_who_has_a_right_token() {
        let (access, token) = access();
        let ok = HashMap::from([(StatusCode::OK, 1)]);
        assert_eq!(log_in(&access, &token, 1).await, ok);
        log_in(&access, WRONG, 10).await;
        assert_eq!(log_in(&access, WRONG, 1).await, HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]));
        assert_eq!(log_in(&access, &token, 1).await, ok, "verified before");
        let other = token.replace("noc", "other");
        let refused = HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]);
        assert_eq!(log_in(&access, &other, 1).await, refused, "never verified, at the place of the guesses");
        let elsewhere = [192, 0, 2, 2].into();
        assert_eq!(log_in_from(&access, elsewhere, &other, 1).await, ok, "elsewhere");
        assert_eq!(log_in(&access, &other, 1).await, ok, "verified elsewhere");
    }

    #[tokio::test]
    async fn a_secret_that_somebody_made_up_is_not_guessed_at_the_rate_of_requests() {
        let (access, token) = access_with("secret");
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::OK, 1)]));
        log_in(&access, WRONG, 10).await;
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]));
    }

    #[tokio::test]
    async fn a_login_that_waited_is_checked_again() {
        for (secret, wanted) in [("secret", StatusCode::TOO_MANY_REQUESTS), (RANDOM, StatusCode::OK)] {
            let (access, token) = access_with(secret);
            let turn = Arc::clone(&access.verifying).acquire_owned().await.unwrap();
            let waiting = tokio::spawn({
                let (access, token) = (Arc::clone(&access), token.clone());
                async move { log_in(&access, &token, 1).await }
            });
            // It was let through, and waits behind another login.
            while lock(&access.budgets).is_empty() {
                tokio::task::yield_now().await;
            }
            tokio::task::yield_now().await;
            // Meanwhile the same token was verified for another request, and a client guessed.
            assert_eq!(access.verify(&token), Some(0));
            let peer = Peer::Tcp { address: [192, 0, 2, 1].into(), certificate: None };
            (0..10).for_each(|_| access.count_wrong_login(&peer, WRONG));
            drop(turn);
            assert_eq!(waiting.await.unwrap(), HashMap::from([(wanted, 1)]), "{secret}");
        }
    }

    #[tokio::test]
    async fn what_is_no_name_and_secret_is_not_counted() {
        let (access, token) = access();
        assert_eq!(log_in(&access, "noc", 64).await, HashMap::from([(StatusCode::UNAUTHORIZED, 64)]));
        // Ten wrong ones with a name count, so that the places in use stay known.
        log_in(&access, WRONG, 10).await;
        for last in 0..=u16::MAX {
            // Far more places than are counted at a time.
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, last, 0, 0, 0, 1);
            let peer = Peer::Tcp { address: address.into(), certificate: None };
            assert_eq!(access.user_of("noc".to_owned(), &peer).await.ok(), Some(None));
        }
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]));
    }

    #[tokio::test]
    async fn guesses_at_many_names_are_bounded_too() {
        let (access, _) = access();
        let mut verified = 0;
        for name in 0..80 {
            // Known and unknown names alike.
            let name = if name % 50 == 0 { "noc".to_owned() } else { format!("name{name}") };
            let statuses = log_in(&access, &format!("{name}:{RANDOM}x"), 1).await;
            verified += statuses.get(&StatusCode::UNAUTHORIZED).copied().unwrap_or_default();
        }
        assert_eq!(verified, 10);
    }

    /// How many wrong logins with this token were verified, of one from each address.
    async fn guesses(access: &Arc<Access>, addresses: impl Iterator<Item = IpAddr>, token: &str) -> usize {
        let mut verified = 0;
        for address in addresses {
            let statuses = log_in_from(access, address, token, 1).await;
            verified += statuses.get(&StatusCode::UNAUTHORIZED).copied().unwrap_or_default();
        }
        verified
    }

    #[tokio::test]
    async fn many_addresses_of_one_client_are_one_place() {
        let loopback = |last: u8| IpAddr::from([127, 0, 0, last]);
        let subnet = |last: u8| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last.into()]);
        for addresses in [&loopback as &dyn Fn(u8) -> IpAddr, &subnet] {
            let (access, token) = access();
            assert_eq!(guesses(&access, (1..=200).map(addresses), WRONG).await, 10);
            // Elsewhere nothing has happened.
            assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::OK, 1)]));
        }
    }

    #[tokio::test]
    async fn guesses_at_a_name_from_many_places_are_bounded() {
        let (access, token) = access();
        assert_eq!(guesses(&access, (0..=255).map(|last| [198, 51, 100, last].into()), WRONG).await, 100);
        // A random secret cannot be guessed, so its owner need not wait.
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::OK, 1)]));
        let other = token.replace("noc", "other");
        assert_eq!(log_in(&access, &other, 1).await, HashMap::from([(StatusCode::OK, 1)]));
        // The owner of a secret that a person made up has to.
        let (access, token) = access_with("secret");
        assert_eq!(guesses(&access, (0..100).map(|last| [198, 51, 100, last].into()), WRONG).await, 100);
        assert_eq!(log_in(&access, &token, 1).await, HashMap::from([(StatusCode::TOO_MANY_REQUESTS, 1)]));
    }

    #[test]
    fn requests_from_many_places_refuse_no_further_place() {
        let (access, _) = access();
        for number in 0..10_000_u32 {
            let peer = Peer::Tcp { address: core::net::Ipv4Addr::from(0xc612_0000 + number).into(), certificate: None };
            assert!(access.check_rate(&peer).is_ok(), "{peer:?}");
        }
        assert_eq!(lock(&access.budgets).len(), PLACES_MAX);
    }

    #[test]
    fn a_request_names_one_host_and_it_is_this_server() {
        let (access, _) = access();
        let status = |hosts: &[&str], in_target: Option<&str>| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            let refused = access.check_host(&headers, in_target).err()?;
            Some(axum::response::IntoResponse::into_response(refused).status())
        };
        let own = "127.0.0.1:8080";
        assert_eq!(status(&[own], None), None);
        assert_eq!(status(&[own], Some("localhost")), None);
        assert_eq!(status(&[own, own], None), Some(StatusCode::BAD_REQUEST));
        assert_eq!(status(&[own, "evil.example"], None), Some(StatusCode::BAD_REQUEST));
        for (hosts, in_target) in
            [(&["evil.example"][..], None), (&[], None), (&[own], Some("evil.example")), (&[], Some("evil.example"))]
        {
            assert_eq!(status(hosts, in_target), Some(StatusCode::MISDIRECTED_REQUEST), "{hosts:?} {in_target:?}");
        }
    }

    #[test]
    fn a_case_is_recorded_as_sent_or_refused() {
        let case = |sent: &[&[u8]], query: &str| {
            let mut headers = HeaderMap::new();
            for value in sent {
                headers.append(CASE_HEADER, axum::http::HeaderValue::from_bytes(value).unwrap());
            }
            let uri = format!("/api/v1/sessions{query}").parse().unwrap();
            case_of(&headers, &uri).map_err(|refused| IntoResponse::into_response(refused).status())
        };
        let bad = Err(StatusCode::BAD_REQUEST);
        let long = "x".repeat(control::CASE_BYTES_MAX);
        assert_eq!(case(&[], "?case=AZ-1"), Ok(None));
        assert_eq!(case(&["Müller 17".as_bytes()], ""), Ok(Some("Müller 17".to_owned())));
        assert_eq!(case(&[long.as_bytes()], ""), Ok(Some(long.clone())));
        assert_eq!(case(&[format!("{long}y").as_bytes()], ""), bad);
        assert_eq!(case(&[b"M\xfcller"], ""), bad, "not UTF-8");
        assert_eq!(case(&[b"a", b"b"], ""), bad);
        assert_eq!(case(&["a\u{202e}b".as_bytes()], ""), bad);
        assert_eq!(case(&[], "?limit=1&case=a%0Ab"), bad);
        assert_eq!(case(&[], &format!("?case={long}y")), bad);
    }

    #[tokio::test]
    async fn right_logins_at_the_same_time_count_for_nothing() {
        let (access, token) = access();
        assert_eq!(log_in(&access, WRONG, 9).await, HashMap::from([(StatusCode::UNAUTHORIZED, 9)]));
        assert_eq!(log_in(&access, &token, 64).await, HashMap::from([(StatusCode::OK, 64)]));
        assert_eq!(log_in(&access, WRONG, 1).await, HashMap::from([(StatusCode::UNAUTHORIZED, 1)]));
    }

    #[test]
    fn an_unknown_name_costs_a_hash_as_a_known_one() {
        let (access, token) = access();
        let (known, hash) = access.candidate("noc").unwrap();
        assert_eq!((known, access.candidate("nobody")), (Some(0), Some((None, hash))));
        assert_eq!(access.verify(&token), Some(0));
        assert_eq!(access.verify(&token.replace("noc", "nobody")), None);
    }

    #[test]
    fn refusals_are_reported_up_to_a_bound_and_the_rest_is_counted() {
        let begun = Instant::now();
        let mut refusals = Refusals::new(begun);
        let reported = (0..50).filter(|_| refusals.report(Place::User(1), begun).is_some()).count();
        assert_eq!((reported, refusals.unreported), (10, 40));
        assert_eq!(refusals.report(Place::User(2), begun), Some(40), "another place");
        let reported = (10..200).filter(|uid| refusals.report(Place::User(*uid), begun).is_some()).count();
        assert_eq!((reported, refusals.reported_of.len()), (89, 91), "many places");
        assert_eq!(refusals.report(Place::User(1), begun + REPORTED_WITHIN), Some(101), "a minute later");
        assert_eq!(refusals.report(Place::User(1), begun + REPORTED_WITHIN), Some(0));
    }

    #[test]
    fn roles_permit_what_they_name_and_view() {
        use Role::*;
        for (role, needed, permitted) in [
            (View, View, true),
            (View, Operate, false),
            (View, Audit, false),
            (Operate, View, true),
            (Operate, Audit, false),
            (Audit, View, true),
            (Audit, Operate, false),
        ] {
            assert_eq!(role.permits(needed), permitted, "{role} {needed}");
        }
    }
}
